/* Template -> sections. Without a pipeline: begin, micro (accumulation - 1 times), micro_last, update; with one: begin,
 * step (all micro-batches of this stage, pipeline_unroll.c), update. And, run only on demand (repeat 0): eval and
 * eval_end (forward only), decode (decode.c), restore (after loading: recomputes what derives from the master weights).
 * Each section gets its own copies of the template's tensors, since a temporary belongs to one section. */
#include <stdlib.h>

#include "core/passes/passes.h"
#include "core/program/ops.h"

struct copier {
    struct hd_program *p;
    hd_tensor *twin; /* by template tensor */
    uint32_t n;
};

static hd_tensor copy_of(struct copier *c, hd_tensor t)
{
    struct hd__tensor copy = *hd__tensor_const(c->p, t);
    if (copy.role == HD__ROLE_PARAM || copy.role == HD__ROLE_STATE || copy.buffer) /* a cache */
        return t;
    if (!c->twin[t])
        c->twin[t] = hd__tensor_new(c->p, &copy);
    return c->twin[t];
}

static hd_tensor scalar_state(struct hd_program *p, const char *name, uint8_t dtype, uint16_t dim)
{
    struct hd__tensor t = {.name = name, .role = HD__ROLE_STATE, .dtype = dtype, .placement.redop = HD_SUM};
    if (dim) {
        t.ndim = 1;
        t.dim[0] = dim;
    }
    t.buffer = hd__buffer_new(p, name, 64, HD__LIFE_PERSISTENT);
    return hd__tensor_new(p, &t);
}

static void feed(struct hd_program *p, hd__code *code, hd_tensor t)
{
    struct hd__instr i = hd__instr_new(p, HD_OP_FEED);
    i.out[i.n_out++] = t;
    hd__push(code, i);
}

static void emit_micro_batch(struct hd_program *p, hd__code *code, int forward_only)
{
    struct copier c = {.p = p, .n = p->tensors.count};
    c.twin = hd__alloc(c.n * sizeof *c.twin);
    p->block = 0;
    p->phase = HD__PHASE_F;
    for (uint32_t n = 0; n < HD__INPUTS; n++)
        if (p->inputs[n])
            feed(p, code, copy_of(&c, p->inputs[n]));
    for (uint32_t k = 0; k < p->template.count; k++) {
        struct hd__instr i = p->template.at[k];
        if (forward_only && i.phase != HD__PHASE_F)
            continue;
        i.id = ++p->next_id;
        for (uint32_t n = 0; n < i.n_in; n++)
            i.in[n] = copy_of(&c, i.in[n]);
        for (uint32_t n = 0; n < i.n_out; n++)
            i.out[n] = copy_of(&c, i.out[n]);
        hd__push(code, i);
        if (p->template.at[k].out[0] == p->loss && i.op != HD_OP_ACCUM) {
            struct hd__instr sum = hd__instr_new(p, HD_OP_ACCUM);
            sum.block = i.block;
            sum.in[sum.n_in++] = i.out[0];
            sum.out[sum.n_out++] = p->loss_sum;
            hd__push(code, sum);
        }
    }
    if (forward_only && p->keep_logits && p->logits)
        p->kept_logits = copy_of(&c, p->logits);
    for (uint32_t n = 0; n < p->caches.count && forward_only; n++)
        p->caches.at[n].kept = copy_of(&c, p->caches.at[n].made);
    for (uint32_t n = 0; n < HD__COUNT(p->kept_losses) && forward_only; n++)
        p->kept_losses[n] = p->kept_losses[n] ? copy_of(&c, p->kept_losses[n]) : 0;
    free(c.twin);
}

static struct hd__instr update_instr(struct hd_program *p, uint16_t op)
{
    struct hd__instr i = hd__instr_new(p, op);
    i.phase = HD__PHASE_O;
    i.block = 0;
    return i;
}

/* Clears the accumulators of a step. */
static void lower_begin(struct hd_program *p, hd__code *code)
{
    hd_tensor sums[] = {p->loss_sum, p->norm2};
    for (uint32_t n = 0; n < HD__COUNT(sums); n++) {
        struct hd__instr i = update_instr(p, HD_OP_FILL0);
        i.out[i.n_out++] = sums[n];
        hd__push(code, i);
    }
}

/* With a pipeline only the last stage has the loss; the others add zero. */
static void reduce_loss(struct hd_program *p, hd__code *code)
{
    uint32_t axes = hd__tensor_const(p, p->loss_sum)->placement.partial;
    struct hd__instr i = update_instr(p, HD_OP_ALL_REDUCE);
    int stages = p->mesh.size[HD_AXIS_PP] > 1;
    if (stages)
        axes |= HD_AXIS_BIT(HD_AXIS_PP);
    if (!axes)
        return;
    i.in[i.n_in++] = i.out[i.n_out++] = p->loss_sum;
    i.axes = axes;
    i.redop = HD_SUM;
    i.stream = (uint16_t)(stages ? HD__STREAM_WORLD : HD__STREAM_AXIS + __builtin_ctz(axes));
    hd__push(code, i);
}

/* Sampling and evaluation read these after the section. */
static void keep(struct hd_program *p, const char *name, hd_tensor kept)
{
    struct hd__tensor *t = hd__tensor_at(p, kept);
    if (kept)
        t->buffer = hd__buffer_new(p, name, hd__tensor_bytes(p, t), HD__LIFE_PERSISTENT);
}

/* The template's, which the copy of its code makes those of the section. */
static void find_losses(struct hd_program *p)
{
    for (uint32_t k = 0; k < p->template.count && p->keep_losses; k++) {
        const struct hd__instr *i = &p->template.at[k];
        if (i->op == HD_OP_NLL) {
            p->kept_losses[0] = i->out[0];
            p->kept_losses[1] = i->in[1];
            p->kept_losses[2] = i->in[2];
        }
    }
}

static void lower_step(struct hd_program *p)
{
    if (p->pipeline) {
        hd__unroll_stages(p);
        hd__unroll_step(p, hd__section_new(p, HD__SECTION_STEP, 1));
        return;
    }
    if (p->accumulation > 1)
        emit_micro_batch(p, &hd__section_new(p, HD__SECTION_MICRO, p->accumulation - 1)->code, 0);
    emit_micro_batch(p, &hd__section_new(p, HD__SECTION_MICRO_LAST, 1)->code, 0);
}

static void emit_forward(struct hd_program *p, struct hd__code_section *section)
{
    if (p->pipeline)
        hd__unroll_eval(p, section);
    else
        emit_micro_batch(p, &section->code, 1);
}

static void lower_eval(struct hd_program *p)
{
    struct hd__code_section *section = hd__section_new(p, HD__SECTION_EVAL, 0);
    find_losses(p);
    hd__decode_find_caches(p);
    emit_forward(p, section);
    keep(p, "logits", p->kept_logits);
    keep(p, "losses", p->kept_losses[0]);
    keep(p, "largest", p->kept_losses[1]);
    keep(p, "chosen", p->kept_losses[2]);
    for (uint32_t n = 0; n < p->caches.count; n++)
        if (p->caches.at[n].kept) {
            struct hd__tensor *t = hd__tensor_at(p, p->caches.at[n].kept);
            t->name = hd__arena_format(&p->arena, "%s.%u", n % 2 ? "values" : "keys", n / 2);
            keep(p, t->name, p->caches.at[n].kept);
        }
}

int32_t hd__lower(struct hd_program *p, struct hd_error *err)
{
    (void)err;
    p->loss_sum = scalar_state(p, "loss", p->precision.fixed, 0);
    hd__tensor_at(p, p->loss_sum)->placement.partial = hd__tensor_const(p, p->loss)->placement.partial;
    p->norm2 = scalar_state(p, "norm2", HD_F64, 0);
    p->hyper = scalar_state(p, "hyper", HD_F64, hd__dim_new(p, "#hyper", HD_HYPER_COUNT));
    lower_begin(p, &hd__section_new(p, HD__SECTION_BEGIN, 1)->code);
    lower_step(p);
    reduce_loss(p, &hd__section_new(p, HD__SECTION_UPDATE, 1)->code);
    lower_eval(p);
    reduce_loss(p, &hd__section_new(p, HD__SECTION_EVAL_END, 0)->code);
    hd__decode_lower(p, emit_forward);
    keep(p, "logits", p->decode_logits);
    hd__section_new(p, HD__SECTION_RESTORE, 0);
    return HD_OK;
}

static int is_auxiliary(const struct hd_program *p, hd_tensor terms)
{
    for (uint32_t k = 0; k < p->forward; k++)
        for (uint32_t n = 0; n < p->auxiliary.count; n++)
            if (p->logical.at[k].op == HD_OP_TOTAL && p->logical.at[k].in[0] == terms &&
                p->logical.at[k].out[0] == p->auxiliary.at[n])
                return 1;
    return 0;
}

/* Loss scaling: every seed of the backward program is multiplied by a scalar, and so are all gradients. The update
 * divides by it (HD_HYPER_INV_SCALE): the loss itself and evaluation are not scaled. Auxiliary losses have a scalar of
 * their own, since they stay means over tokens where the loss becomes one over the labels that count. */
void hd__scale_loss(struct hd_program *p)
{
    p->scale = scalar_state(p, "loss_scale", HD_F64, 0);
    p->auxiliary_scale = p->auxiliary.count ? scalar_state(p, "auxiliary_scale", HD_F64, 0) : 0;
    for (uint32_t s = 0; s < p->sections.count; s++)
        for (uint32_t k = 0; k < p->sections.at[s].code.count; k++) {
            struct hd__instr *i = &p->sections.at[s].code.at[k];
            if (i->op == HD_OP_SPREAD)
                i->in[i->n_in++] =
                    is_auxiliary(p, hd__tensor_const(p, i->out[0])->grad_of) ? p->auxiliary_scale : p->scale;
        }
}
