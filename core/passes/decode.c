/* The section `decode`: the forward pass of one position of a sequence, whose attention reads the keys and values of
 * the positions before it from a cache. The caches are what the eval section made of a prompt: its keys and values stay
 * behind, [batch, sequence, kv heads, head size] of each attention.
 *
 * Its template is what the logits need of the forward pass, with a dim `step` of one position in place of the sequence:
 * as many elements as the sequence is cut into parts, of which element 0 counts. Positions become an input: rope is
 * rope_at, a look-up by index one by positions, and attention is attention_cached. So its values are the template's
 * (value_number.c), and placements stay. */
#include <stdlib.h>

#include "core/passes/passes.h"
#include "core/program/ops.h"

struct decode {
    struct hd_program *p;
    hd_tensor *twin; /* by tensor of the template: of one position */
    uint8_t *needed; /* by tensor */
    uint16_t from;   /* the sequence; hd_program.step stands for it */
    hd_tensor positions;
    hd__code code;
};

static int has_sequence(const struct hd_program *p, hd_tensor t)
{
    return p->letter['s'] && hd__dim_index(hd__tensor_const(p, t), p->letter['s']) >= 0;
}

/* ---- what stands in the way */

/* Does the output that position 0 needs depend on other positions, so that one of them is not enough? */
static int mixes_positions(const struct hd_program *p, const struct hd__instr *i)
{
    const char *unsharded = hd__op(i->op)->unsharded;
    int reads = 0, all = 1;
    for (uint32_t n = 0; n < i->n_in; n++)
        reads |= has_sequence(p, i->in[n]);
    for (uint32_t n = 0; n < i->n_out; n++)
        all &= has_sequence(p, i->out[n]);
    return reads && (!all || (unsharded && strchr(unsharded, 's')));
}

static const char *obstacle(struct hd_program *p, const struct hd__instr *i)
{
    const struct hd_attrs *a = i->attrs;
    if (i->op == HD_OP_ATTENTION && i->axes)
        return "ring attention has a sequence's keys on several ranks (context: ulysses has not)";
    if (i->op == HD_OP_ATTENTION && a && (a->flags & HD_ATTR_NOT_CAUSAL || a->top_k > 0))
        return "its attention sees later positions";
    if (i->op == HD_OP_ATTENTION)
        return NULL;
    for (uint32_t n = 0; n < i->n_in; n++)
        if (hd__tensor_const(p, i->in[n])->role == HD__ROLE_PARAM && has_sequence(p, i->in[n]))
            return hd__arena_format(&p->arena, "parameter %s has the length of the sequence",
                                    hd__tensor_const(p, i->in[n])->name);
    if (mixes_positions(p, i))
        return hd__arena_format(&p->arena, "its %s computes a position from others%s", hd__instr_name(i),
                                i->op == HD_OP_ROUTE ? " (experts with a capacity)" : "");
    return NULL;
}

/* ---- what is needed */

static void mark_needed(struct decode *d)
{
    const hd__code *code = &d->p->template;
    d->needed[d->p->logits] = 1;
    for (uint32_t k = code->count; k-- > 0;) {
        const struct hd__instr *i = &code->at[k];
        int needed = 0;
        for (uint32_t n = 0; n < i->n_out && i->phase == HD__PHASE_F; n++)
            needed |= d->needed[i->out[n]];
        for (uint32_t n = 0; n < i->n_in && needed; n++)
            d->needed[i->in[n]] = 1;
    }
}

static int is_needed(const struct decode *d, const struct hd__instr *i)
{
    int needed = 0;
    for (uint32_t n = 0; n < i->n_out && i->phase == HD__PHASE_F; n++)
        needed |= d->needed[i->out[n]];
    return needed;
}

static struct decode open_decode(struct hd_program *p)
{
    struct decode d = {.p = p, .from = p->letter['s']};
    d.twin = hd__alloc(p->tensors.count * sizeof *d.twin);
    d.needed = hd__alloc(p->tensors.count);
    mark_needed(&d);
    return d;
}

static void close_decode(struct decode *d)
{
    hd__free_array(&d->code);
    free(d->twin);
    free(d->needed);
}

void hd__decode_find_caches(struct hd_program *p)
{
    if (!p->keep_cache || p->no_cache)
        return;
    if (!p->logits || !p->ids || !p->letter['s']) {
        p->no_cache = "the model names no logits, or reads no tokens";
        return;
    }
    struct decode d = open_decode(p);
    for (uint32_t k = 0; k < p->template.count && !p->no_cache; k++) {
        const struct hd__instr *i = &p->template.at[k];
        if (!is_needed(&d, i))
            continue;
        p->no_cache = obstacle(p, i);
        for (uint32_t n = 1; n <= 2 && i->op == HD_OP_ATTENTION; n++)
            hd__push(&p->caches, ((struct hd__cache){.made = i->in[n]}));
    }
    if (p->no_cache)
        p->caches.count = 0;
    close_decode(&d);
}

/* ---- the template of one position */

static uint16_t step_of(const struct decode *d, uint16_t dim)
{
    return dim == d->from ? d->p->step : dim;
}

static hd_tensor at_step(struct decode *d, hd_tensor t)
{
    struct hd__tensor copy = *hd__tensor_const(d->p, t);
    if (copy.role == HD__ROLE_PARAM || copy.role == HD__ROLE_STATE)
        return t;
    for (int32_t n = 0; n < copy.ndim; n++)
        copy.dim[n] = step_of(d, copy.dim[n]);
    if (!d->twin[t])
        d->twin[t] = hd__tensor_new(d->p, &copy);
    return d->twin[t];
}

/* As many positions as the sequence is cut into parts. */
static void make_step(struct decode *d)
{
    struct hd_program *p = d->p;
    uint32_t axes = 0;
    for (hd_tensor t = 1; t < p->tensors.count; t++) {
        int32_t n = d->needed[t] ? hd__dim_index(hd__tensor_const(p, t), d->from) : -1;
        axes |= n >= 0 ? hd__shard_mask(hd__tensor_const(p, t)->placement.shard[n]) : 0;
    }
    p->step = hd__dim_new(p, "#step", hd__mesh_ways(&p->mesh, axes));
}

/* The input, whole on each rank, as feeding wants it. */
static void make_positions(struct decode *d)
{
    struct hd_program *p = d->p;
    if (!p->positions) {
        struct hd__tensor t = *hd__tensor_const(p, p->ids);
        t.name = "positions";
        t.placement.shard[1] = 0;
        t.value_number = 0;
        p->positions = hd__tensor_new(p, &t);
        hd__tensor_at(p, p->positions)->origin = p->positions;
        d->twin = hd__realloc(d->twin, p->tensors.count * sizeof *d->twin);
        d->twin[p->positions] = 0;
    }
    d->positions = at_step(d, p->positions);
}

static struct hd__instr like(struct decode *d, const struct hd__instr *of, uint16_t op)
{
    struct hd__instr i = hd__instr_new(d->p, op);
    i.block = of->block;
    i.phase = of->phase;
    i.chunk = of->chunk;
    i.micro = of->micro;
    return i;
}

/* The positions as a tensor [b, step, ...] lies. */
static hd_tensor positions_like(struct decode *d, const struct hd__instr *of, hd_tensor x)
{
    struct hd_program *p = d->p;
    hd_tensor at = d->positions;
    for (uint32_t rest = hd__tensor_const(p, x)->placement.shard[1]; rest; rest >>= 4) {
        struct hd__tensor t = *hd__tensor_const(p, at);
        struct hd__instr i = like(d, of, HD_OP_SLICE);
        t.placement.shard[1] = hd__shard_push(t.placement.shard[1], (int32_t)(rest & 15) - 1);
        i.axes = HD_AXIS_BIT((rest & 15) - 1);
        i.to = p->step;
        i.flags = HD__FLAG_CONV;
        i.redop = HD_SUM;
        i.in[i.n_in++] = at;
        i.out[i.n_out++] = at = hd__tensor_new(p, &t);
        hd__push(&d->code, i);
    }
    return at;
}

/* position: x + w[index] is x + w[n]. */
static void add_look_up(struct decode *d, const struct hd__instr *of, struct hd__instr i)
{
    struct hd_program *p = d->p;
    struct hd__tensor t = *hd__tensor_const(p, i.out[0]);
    struct hd__instr look_up = like(d, of, HD_OP_EMBED);
    look_up.in[look_up.n_in++] = positions_like(d, of, i.in[0]);
    look_up.in[look_up.n_in++] = i.in[1];
    t.value_number = 0;
    look_up.out[look_up.n_out++] = i.in[1] = hd__tensor_new(p, &t);
    i.op = HD_OP_ADD;
    hd__push(&d->code, look_up);
    hd__push(&d->code, i);
}

static const struct hd__cache *cache_of(const struct hd_program *p, hd_tensor made)
{
    uint32_t n = 0;
    while (p->caches.at[n].made != made)
        n++;
    return &p->caches.at[n];
}

/* Attention of another stage, which has its caches, is left out by whoever instantiates the template. */
static void read_cache(struct decode *d, const struct hd__instr *of, struct hd__instr i)
{
    hd_tensor keys = cache_of(d->p, of->in[1])->kept, values = cache_of(d->p, of->in[2])->kept;
    if (keys && values) {
        i.op = HD_OP_ATTENTION_CACHED;
        i.n_in = 6;
        i.in[3] = i.out[1] = keys;
        i.in[4] = i.out[2] = values;
        i.in[5] = d->positions;
        i.n_out = 3;
    }
    hd__push(&d->code, i);
}

static void add_instr(struct decode *d, const struct hd__instr *of)
{
    struct hd__instr i = *of;
    i.id = ++d->p->next_id;
    i.from = step_of(d, i.from);
    i.to = step_of(d, i.to);
    for (uint32_t n = 0; n < i.n_in; n++)
        i.in[n] = at_step(d, i.in[n]);
    for (uint32_t n = 0; n < i.n_out; n++)
        i.out[n] = at_step(d, i.out[n]);
    if (i.op == HD_OP_POSITION) {
        add_look_up(d, of, i);
        return;
    }
    if (i.op == HD_OP_ATTENTION) {
        read_cache(d, of, i);
        return;
    }
    if (i.op == HD_OP_ROPE) {
        i.op = HD_OP_ROPE_AT;
        i.in[i.n_in++] = positions_like(d, of, i.in[0]);
    }
    hd__push(&d->code, i);
}

/* ---- the section */

/* The function that emits a section reads the program's template, inputs and logits: here, those of one position. */
static void emit_section(struct decode *d, void (*emit)(struct hd_program *p, struct hd__code_section *section))
{
    struct hd_program *p = d->p;
    hd_tensor inputs[HD__INPUTS], losses[HD__COUNT(p->kept_losses)], logits = p->logits, kept = p->kept_logits;
    hd__code template = p->template;
    uint32_t caches = p->caches.count;
    memcpy(inputs, p->inputs, sizeof inputs);
    memcpy(losses, p->kept_losses, sizeof losses);
    p->template = d->code;
    for (uint32_t n = 0; n < HD__INPUTS; n++)
        p->inputs[n] = n == HD__INPUT_POSITIONS ? d->positions : d->needed[inputs[n]] ? at_step(d, inputs[n]) : 0;
    memset(p->kept_losses, 0, sizeof losses);
    p->logits = at_step(d, logits);
    p->caches.count = 0;
    emit(p, hd__section_new(p, HD__SECTION_DECODE, 0));
    p->decode_logits = p->kept_logits;
    memcpy(p->inputs, inputs, sizeof inputs);
    memcpy(p->kept_losses, losses, sizeof losses);
    p->template = template;
    p->caches.count = caches;
    p->kept_logits = kept;
    p->logits = logits;
}

void hd__decode_lower(struct hd_program *p, void (*emit)(struct hd_program *p, struct hd__code_section *section))
{
    if (!p->keep_cache || p->no_cache)
        return;
    struct decode d = open_decode(p);
    make_step(&d);
    make_positions(&d);
    for (uint32_t k = 0; k < p->template.count; k++)
        if (is_needed(&d, &p->template.at[k]))
            add_instr(&d, &p->template.at[k]);
    emit_section(&d, emit);
    close_decode(&d);
}
