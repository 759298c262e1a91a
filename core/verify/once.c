/* Things that a step does exactly once, besides gradients: the loss and the norm are summed over the ranks that have
 * parts of them, every parameter counts in the norm and is updated, and changes to a staged tensor are written back to
 * its own memory. */
#include <math.h>
#include <stdlib.h>

#include "core/verify/verify.h"

struct norm_term {       /* of the norm: one parameter's */
    uint32_t param, cut; /* axes along which it lies in pieces */
    double weight;
};

struct once {
    const struct hd_program *p;
    uint32_t *flat_of; /* by tensor: the flat, index + 1, whose shard it is */
    uint32_t *updates; /* by flat: in this step */
    HD__ARRAY(struct norm_term) norm_terms;
    uint32_t loss_unreduced, norm_summed; /* axes */
    uint64_t loss;                        /* what this section adds to it */
    int32_t loss_cleared, norm_cleared;
    int32_t norm_added, norm_checked; /* norm2 is made of all digits; what it is now was looked at */
    uint32_t *main_copy_of;           /* by tensor: index + 1 into p->staged of the twin that it is */
    uint8_t *dirty;                   /* by index into p->staged: computed in, and not written back */
};

static uint32_t stages_bit(const struct hd_program *p)
{
    return p->mesh.size[HD_AXIS_PP] > 1 ? HD_AXIS_BIT(HD_AXIS_PP) : 0;
}

static uint32_t loss_axes(const struct hd_program *p)
{
    return hd__tensor_const(p, p->loss_sum)->placement.partial | stages_bit(p);
}

static void *create(const struct hd_program *p)
{
    struct once *s = hd__alloc(sizeof *s);
    s->p = p;
    s->flat_of = hd__flats_by_shard(p);
    s->updates = hd__alloc(p->flats.count * sizeof *s->updates);
    s->main_copy_of = hd__alloc(p->tensors.count * sizeof *s->main_copy_of);
    s->dirty = hd__alloc(p->offloaded.count + 1);
    for (uint32_t n = 0; n < p->offloaded.count; n++)
        s->main_copy_of[p->offloaded.at[n].main_copy] = n + 1;
    return s;
}

static void destroy(void *state)
{
    struct once *s = state;
    hd__free_array(&s->norm_terms);
    free(s->flat_of);
    free(s->updates);
    free(s->main_copy_of);
    free(s->dirty);
    free(s);
}

/* ---- the loss */

static void visit_loss(struct once *s, struct hd__verify_diags *f, const struct hd__instr *i)
{
    char axes[64];
    if (i->op != HD_OP_ALL_REDUCE) {
        if (i->op != HD_OP_FILL0 && !hd__reads_output(i, 0))
            hd__verify_diag(f, "loss: the accumulated sum is overwritten");
        else if (i->op != HD_OP_FILL0 && !s->loss_cleared)
            hd__verify_diag(f, "loss: not zeroed: it would add to the previous step's");
        s->loss_cleared = 1;
        s->loss += i->op == HD_OP_FILL0 ? 0 : f->contribution[0];
        s->loss_unreduced = loss_axes(s->p);
        return;
    }
    if (i->axes & ~s->loss_unreduced) {
        hd__axes_text(i->axes & ~s->loss_unreduced, axes);
        hd__verify_diag(f, "loss: reduced over %s, where it is not partial", axes);
    }
    s->loss_unreduced &= ~i->axes;
}

/* ---- the norm */

static double ways(const struct hd_program *p, uint32_t axes)
{
    return (double)hd__mesh_ways(&p->mesh, axes);
}

static double weight_at(const struct hd__instr *i, int64_t offset)
{
    for (uint64_t k = 0; i->attrs && k < i->attrs->n_ranges; k++)
        if (i->attrs->ranges[k].first <= offset && offset < i->attrs->ranges[k].first + i->attrs->ranges[k].count)
            return i->attrs->ranges[k].value;
    return 1;
}

static void add_norm_terms(struct once *s, const struct hd__instr *i)
{
    const struct hd_program *p = s->p;
    const struct hd__flat *flat = &p->flats.at[s->flat_of[i->in[0]] - 1];
    uint32_t live = hd__mesh_live(&p->mesh), shards = hd__shard_mask(hd__tensor_const(p, i->in[0])->placement.shard[0]);
    for (uint32_t k = 0; k < flat->n_params; k++) {
        const struct hd__param *param = &p->params.at[flat->params[k]];
        const struct hd__tensor *t = hd__tensor_const(p, param->tensor);
        struct norm_term x = {flat->params[k], shards, weight_at(i, flat->offset[k])};
        for (int32_t a = 0; a < HD_AXIS_COUNT; a++)
            if (live & HD_AXIS_BIT(a) && hd__placement_on(t, a) != HD__REPLICATED)
                x.cut |= HD_AXIS_BIT(a);
        if (param->stages && p->mesh.size[HD_AXIS_PP] > 1)
            x.weight *= __builtin_popcount(param->stages);
        hd__push(&s->norm_terms, x);
    }
}

/* Summed over these axes (without pp, where each stage has its own): does every parameter count once? */
static void check_norm(const struct once *s, struct hd__verify_diags *f, uint32_t axes)
{
    const struct hd_program *p = s->p;
    double *times = hd__alloc(p->params.count * sizeof *times);
    uint32_t before = f->count;
    for (uint32_t k = 0; k < s->norm_terms.count && f->count == before; k++) {
        const struct norm_term *x = &s->norm_terms.at[k];
        times[x->param] += x->weight * ways(p, axes) / ways(p, x->cut);
        if (x->cut & ~axes)
            hd__verify_diag(f, "%s: the gradient norm is reduced over too few axes: only this rank's shard is counted",
                            hd__tensor_const(p, p->params.at[x->param].tensor)->name);
    }
    for (uint32_t n = 0; n < p->flats.count; n++)
        for (uint32_t k = 0; k < p->flats.at[n].n_params && f->count == before; k++) {
            uint32_t param = p->flats.at[n].params[k];
            if (!(fabs(times[param] - 1) < 1e-9))
                hd__verify_diag(f, "%s is counted %g times in the gradient norm, not once",
                                hd__tensor_const(p, p->params.at[param].tensor)->name, times[param]);
        }
    free(times);
}

/* The tensor that accumulates the norm. */
static hd_tensor norm_sum(const struct hd_program *p)
{
    return p->norm_digits ? p->norm_digits : p->norm2;
}

static void reduce_norm(struct once *s, struct hd__verify_diags *f, const struct hd__instr *i)
{
    char axes[64];
    if (i->axes & s->norm_summed) {
        hd__axes_text(i->axes & s->norm_summed, axes);
        hd__verify_diag(f, "gradient norm: reduced twice over %s", axes);
    }
    s->norm_summed |= i->axes;
}

static void check_norm_read(struct once *s, struct hd__verify_diags *f)
{
    if (s->norm_checked)
        return;
    s->norm_checked = 1;
    if (!s->norm_cleared)
        hd__verify_diag(f, "gradient norm: not zeroed: it would add to the previous step's");
    if (s->p->norm_digits && !s->norm_added)
        hd__verify_diag(f, "gradient norm: read before its exact partial sums are added up");
    if (stages_bit(s->p) & ~s->norm_summed)
        hd__verify_diag(f, "gradient norm: not reduced over pp");
    check_norm(s, f, s->norm_summed & ~HD_AXIS_BIT(HD_AXIS_PP));
}

static void visit_norm(struct once *s, struct hd__verify_diags *f, const struct hd__instr *i)
{
    s->norm_added = s->norm_checked = 0;
    if (i->op == HD_OP_FILL0) {
        s->norm_cleared = 1;
        s->norm_terms.count = 0;
        s->norm_summed = 0;
    } else if (i->op == HD_OP_ALL_REDUCE) {
        reduce_norm(s, f, i);
    } else if (s->norm_summed) {
        hd__verify_diag(f, "gradient norm: accumulated after its all_reduce");
    }
}

/* ---- updates */

static void visit_update(struct once *s, struct hd__verify_diags *f, const struct hd__instr *i)
{
    uint32_t flat = i->n_in ? s->flat_of[i->in[0]] : 0;
    if (i->op == HD_OP_SUMSQ) {
        if (flat)
            add_norm_terms(s, i);
        return;
    }
    for (uint32_t k = 0; k < i->n_in; k++)
        if (i->in[k] == s->p->norm2)
            check_norm_read(s, f);
    if (flat)
        s->updates[flat - 1]++;
}

static void end_updates(struct once *s, struct hd__verify_diags *f)
{
    for (uint32_t k = 0; k < s->p->flats.count; k++)
        if (s->p->flats.at[k].n_params && s->updates[k] != 1)
            hd__verify_diag(f, "parameters %s are updated %u times in a step, not once", s->p->flats.at[k].name,
                            s->updates[k]);
    memset(s->updates, 0, s->p->flats.count * sizeof *s->updates);
}

/* ---- what lives in another memory goes back when it was changed; that it was in its place: value_numbers.c */

static void visit_offloaded(struct once *s, const struct hd__instr *i)
{
    uint32_t from = i->n_in ? s->main_copy_of[i->in[0]] : 0;
    for (uint32_t k = 0; k < i->n_out; k++)
        if (s->main_copy_of[i->out[k]])
            s->dirty[s->main_copy_of[i->out[k]] - 1] = !hd__is_copy(i);
    if (from && hd__is_copy(i) && s->p->offloaded.at[from - 1].home == i->out[0])
        s->dirty[from - 1] = 0;
}

static void check_written_back(struct once *s, struct hd__verify_diags *f)
{
    for (uint32_t n = 0; n < s->p->offloaded.count; n++)
        if (s->dirty[n]) {
            hd__verify_diag(f, "%s: modified copy of an offloaded tensor is not written back",
                            hd__tensor_const(s->p, s->p->offloaded.at[n].home)->name);
            s->dirty[n] = 0;
        }
}

static void visit(void *state, struct hd__verify_diags *f, const struct hd__instr *i)
{
    struct once *s = state;
    if (i->n_out && i->out[0] == s->p->loss_sum)
        visit_loss(s, f, i);
    if (i->n_out && i->out[0] == norm_sum(s->p))
        visit_norm(s, f, i);
    if (i->op == HD_OP_TOTAL && i->out[0] == s->p->norm2 && i->in[0] == s->p->norm_digits && i->attrs &&
        i->attrs->scale == 1)
        s->norm_added = 1, s->norm_checked = 0;
    if (hd__op(i->op)->class == HD__CLASS_UPDATE)
        visit_update(s, f, i);
    visit_offloaded(s, i);
}

static void section_begin(void *state, struct hd__verify_diags *f)
{
    struct once *s = state;
    s->loss = 0;
    if (f->section->kind == HD__SECTION_BEGIN) /* of every step that is walked */
        s->loss_cleared = s->norm_cleared = 0;
    if (f->section->kind == HD__SECTION_EVAL) { /* whoever runs it has cleared the loss */
        s->loss_unreduced = loss_axes(s->p);
        s->loss_cleared = 1;
    }
}

static void section_end(void *state, struct hd__verify_diags *f)
{
    struct once *s = state;
    char axes[64];
    if (s->loss != f->section->loss_value)
        hd__verify_diag(f, "loss is not the sum over its micro-batches: a term is missing, doubled or wrong");
    if ((f->section->kind == HD__SECTION_UPDATE || f->section->kind == HD__SECTION_EVAL_END) && s->loss_unreduced) {
        hd__axes_text(s->loss_unreduced, axes);
        hd__verify_diag(f, "loss: not reduced over %s", axes);
    }
    if (f->section->kind == HD__SECTION_UPDATE)
        end_updates(s, f);
    check_written_back(s, f);
}

/* ---- micro-batches: of a step, each is fed once */

static void check_fed(const struct hd_program *p, struct hd__verify_diags *f, hd_tensor input, int64_t step)
{
    uint32_t *times = hd__alloc(((uint32_t)p->accumulation + 1) * sizeof *times), all = 0, wrong = 0;
    for (uint32_t s = 0; s < p->sections.count; s++) {
        const struct hd__code_section *x = &p->sections.at[s];
        for (uint32_t k = 0; k < x->code.count && hd__section_due(x, step); k++) {
            const struct hd__instr *i = &x->code.at[k];
            if (i->op != HD_OP_FEED || hd__tensor_const(p, i->out[0])->origin != input)
                continue;
            all += (uint32_t)x->repeat;
            wrong +=
                x->kind == HD__SECTION_STEP && (i->micro < 0 || i->micro >= p->accumulation || times[i->micro]++ > 0);
        }
    }
    if (all && (wrong || all != (uint32_t)p->accumulation))
        hd__verify_diag(f, "step %lld is fed %u micro-batches of %s%s, and has %d", (long long)step, all,
                        hd__tensor_const(p, input)->name, wrong ? ", some of them twice" : "", p->accumulation);
    free(times);
}

static void finish(void *state, struct hd__verify_diags *f)
{
    const struct hd_program *p = f->p;
    const hd_tensor inputs[] = {p->ids, p->labels};
    (void)state;
    for (uint32_t n = 0; n < HD__COUNT(inputs) && p->accumulation > 0; n++)
        for (int64_t step = 1; inputs[n] && step <= hd__steady_step(p); step += HD__MAX(hd__steady_step(p) - 1, 1))
            check_fed(p, f, inputs[n], step);
}

const struct hd__verify_analysis hd__verify_once = {.create = create,
                                                    .destroy = destroy,
                                                    .section_begin = section_begin,
                                                    .visit = visit,
                                                    .section_end = section_end,
                                                    .finish = finish};
