/* Things that a step does exactly once, besides gradients: the loss and the norm are summed over the ranks that have
 * parts of them, every parameter counts in the norm and is updated, and changes to a staged tensor are written back to
 * its own memory. */
#include <math.h>
#include <stdlib.h>

#include "core/verify/verify.h"

static uint32_t stages_bit(const struct hd_program *p)
{
    return p->mesh.size[HD_AXIS_PP] > 1 ? HD_AXIS_BIT(HD_AXIS_PP) : 0;
}

static uint32_t loss_axes(const struct hd_program *p)
{
    return hd__tensor_const(p, p->loss_sum)->placement.partial | stages_bit(p);
}

/* ---- the loss */

static void visit_loss(struct hd__walk *w, const struct hd__instr *i)
{
    if (i->op != HD_OP_ALL_REDUCE) {
        if (i->op != HD_OP_FILL0 && !hd__reads_output(i, 0))
            hd__diag(w, "loss: the accumulated sum is overwritten");
        else if (i->op != HD_OP_FILL0 && !w->loss_cleared)
            hd__diag(w, "loss: not zeroed: it would add to the previous step's");
        w->loss_cleared = 1;
        w->loss += i->op == HD_OP_FILL0 ? 0 : w->contribution[0];
        w->loss_unreduced = loss_axes(w->p);
        return;
    }
    if (i->axes & ~w->loss_unreduced)
        hd__diag(w, "loss: reduced over %s, where it is not partial", hd__axes(i->axes & ~w->loss_unreduced));
    w->loss_unreduced &= ~i->axes;
}

/* ---- the norm */

static double ways(const struct hd_program *p, uint32_t axes)
{
    return (double)hd__mesh_ways(&p->mesh, axes);
}

static int64_t overlap(const struct hd_range *r, int64_t first, int64_t count)
{
    return HD__MAX(0, HD__MIN(r->first + r->count, first + count) - HD__MAX(r->first, first));
}

/* The weight of parameter k of the flat, the same for all its elements. counted[n] grows by those in range n. */
static double norm_weight(struct hd__walk *w, const struct hd__instr *i, const struct hd__flat *flat, uint32_t k,
                          int64_t *counted)
{
    hd_tensor param = w->p->params.at[flat->params[k]].tensor;
    int64_t count = hd__numel(w->p, hd__tensor_const(w->p, param));
    double weight = 0;
    for (uint64_t n = 0; i->attrs && n < i->attrs->n_ranges; n++) {
        int64_t common = overlap(&i->attrs->ranges[n], flat->offset[k], count);
        counted[n] += common;
        weight += common ? i->attrs->ranges[n].value : 0;
        if (common && common < count)
            hd__diag(w, "%s: the gradient norm counts %lld of its %lld elements", hd__name_of(w, param),
                     (long long)common, (long long)count);
    }
    return weight;
}

static void add_norm_terms(struct hd__walk *w, const struct hd__instr *i)
{
    const struct hd_program *p = w->p;
    const struct hd__flat *flat = &p->flats.at[w->tensor[i->in[0]].shard_of - 1];
    uint32_t live = hd__mesh_live(&p->mesh), shards = hd__shard_mask(hd__tensor_const(p, i->in[0])->placement.shard[0]);
    uint64_t n_ranges = i->attrs ? i->attrs->n_ranges : 0;
    int64_t *counted = hd__alloc((n_ranges + 1) * sizeof *counted);
    for (uint32_t k = 0; k < flat->n_params; k++) {
        const struct hd__param *param = &p->params.at[flat->params[k]];
        const struct hd__tensor *t = hd__tensor_const(p, param->tensor);
        struct hd__norm_term x = {flat->params[k], shards, norm_weight(w, i, flat, k, counted)};
        for (int32_t a = 0; a < HD_AXIS_COUNT; a++)
            if (live & HD_AXIS_BIT(a) && hd__placement_on(t, a) != HD__REPLICATED)
                x.cut |= HD_AXIS_BIT(a);
        if (param->stages && p->mesh.size[HD_AXIS_PP] > 1)
            x.weight *= __builtin_popcountll(param->stages);
        hd__push(&w->norm_terms, x);
    }
    for (uint64_t n = 0; n < n_ranges; n++)
        if (counted[n] < i->attrs->ranges[n].count)
            hd__diag(w, "gradient norm: range %llu counts padding between parameters, which nothing has to zero",
                     (unsigned long long)n);
    free(counted);
}

/* Summed over these axes (without pp, where each stage has its own): does every parameter count once? */
static void check_norm(struct hd__walk *w, uint32_t axes)
{
    const struct hd_program *p = w->p;
    double *times = hd__alloc(p->params.count * sizeof *times);
    uint32_t before = w->count;
    for (uint32_t k = 0; k < w->norm_terms.count && w->count == before; k++) {
        const struct hd__norm_term *x = &w->norm_terms.at[k];
        times[x->param] += x->weight * ways(p, axes) / ways(p, x->cut);
        if (x->cut & ~axes)
            hd__diag(w, "%s: the gradient norm is reduced over too few axes: only this rank's shard is counted",
                     hd__name_of(w, p->params.at[x->param].tensor));
    }
    for (uint32_t n = 0; n < p->flats.count; n++)
        for (uint32_t k = 0; k < p->flats.at[n].n_params && w->count == before; k++) {
            uint32_t param = p->flats.at[n].params[k];
            if (!(fabs(times[param] - 1) < 1e-9))
                hd__diag(w, "%s is counted %g times in the gradient norm, not once",
                         hd__name_of(w, p->params.at[param].tensor), times[param]);
        }
    free(times);
}

static void check_norm_read(struct hd__walk *w)
{
    if (w->norm_checked)
        return;
    w->norm_checked = 1;
    if (!w->norm_cleared)
        hd__diag(w, "gradient norm: not zeroed: it would add to the previous step's");
    if (w->p->norm_digits && !w->norm_added)
        hd__diag(w, "gradient norm: read before its exact partial sums are added up");
    if (stages_bit(w->p) & ~w->norm_summed)
        hd__diag(w, "gradient norm: not reduced over pp");
    check_norm(w, w->norm_summed & ~HD_AXIS_BIT(HD_AXIS_PP));
}

static void visit_norm(struct hd__walk *w, const struct hd__instr *i)
{
    w->norm_added = w->norm_checked = 0;
    if (i->op == HD_OP_FILL0) {
        w->norm_cleared = 1;
        w->norm_terms.count = 0;
        w->norm_summed = 0;
    } else if (i->op == HD_OP_ALL_REDUCE) {
        if (i->axes & w->norm_summed)
            hd__diag(w, "gradient norm: reduced twice over %s", hd__axes(i->axes & w->norm_summed));
        w->norm_summed |= i->axes;
    } else if (w->norm_summed) {
        hd__diag(w, "gradient norm: accumulated after its all_reduce");
    }
}

/* ---- updates */

static void visit_update(struct hd__walk *w, const struct hd__instr *i)
{
    uint32_t flat = i->n_in ? w->tensor[i->in[0]].shard_of : 0;
    if (i->op == HD_OP_SUMSQ) {
        if (flat)
            add_norm_terms(w, i);
        return;
    }
    for (uint32_t k = 0; k < i->n_in; k++)
        if (i->in[k] == w->p->norm2)
            check_norm_read(w);
    if (flat)
        w->flat[flat - 1].updates++;
}

static void visit(struct hd__walk *w, const struct hd__instr *i)
{
    if (i->n_out && i->out[0] == w->p->loss_sum)
        visit_loss(w, i);
    if (i->n_out && i->out[0] == (w->p->norm_digits ? w->p->norm_digits : w->p->norm2))
        visit_norm(w, i);
    if (i->op == HD_OP_TOTAL && i->out[0] == w->p->norm2 && i->in[0] == w->p->norm_digits && i->attrs &&
        i->attrs->scale == 1)
        w->norm_added = 1, w->norm_checked = 0;
    if (hd__op(i->op)->class == HD__CLASS_UPDATE)
        visit_update(w, i);
    /* a tensor of another memory goes back when it was changed; that it was in its place: value_numbers.c */
    for (uint32_t k = 0; k < i->n_out; k++)
        w->tensor[i->out[k]].dirty = !hd__is_copy(i);
    for (uint32_t n = 0; n < w->p->offloaded.count && hd__is_copy(i); n++)
        if (w->p->offloaded.at[n].main_copy == i->in[0] && w->p->offloaded.at[n].home == i->out[0])
            w->tensor[i->in[0]].dirty = 0;
}

static void section_begin(struct hd__walk *w)
{
    w->loss = 0;
    if (w->section->kind == HD__SECTION_BEGIN) /* of every step that is walked */
        w->loss_cleared = w->norm_cleared = 0;
    if (w->section->kind == HD__SECTION_EVAL) { /* whoever runs it has cleared the loss */
        w->loss_unreduced = loss_axes(w->p);
        w->loss_cleared = 1;
    }
}

static void section_end(struct hd__walk *w)
{
    const struct hd_program *p = w->p;
    if (w->loss != w->section->loss_value)
        hd__diag(w, "loss is not the sum over its micro-batches: a term is missing, doubled or wrong");
    if ((w->section->kind == HD__SECTION_UPDATE || w->section->kind == HD__SECTION_EVAL_END) && w->loss_unreduced)
        hd__diag(w, "loss: not reduced over %s", hd__axes(w->loss_unreduced));
    for (uint32_t k = 0; k < p->flats.count && w->section->kind == HD__SECTION_UPDATE; w->flat[k++].updates = 0)
        if (p->flats.at[k].n_params && w->flat[k].updates != 1)
            hd__diag(w, "parameters %s are updated %u times in a step, not once", p->flats.at[k].name,
                     w->flat[k].updates);
    for (uint32_t n = 0; n < p->offloaded.count; w->tensor[p->offloaded.at[n++].main_copy].dirty = 0)
        if (w->tensor[p->offloaded.at[n].main_copy].dirty)
            hd__diag(w, "%s: modified copy of an offloaded tensor is not written back",
                     hd__name_of(w, p->offloaded.at[n].home));
}

/* ---- micro-batches: of a step, each is fed once */

static void check_fed(struct hd__walk *w, hd_tensor input, int64_t step)
{
    const struct hd_program *p = w->p;
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
        hd__diag(w, "step %lld is fed %u micro-batches of %s%s, and has %d", (long long)step, all,
                 hd__name_of(w, input), wrong ? ", some of them twice" : "", p->accumulation);
    free(times);
}

static void finish(struct hd__walk *w)
{
    const struct hd_program *p = w->p;
    for (uint32_t n = 0; n < HD__INPUTS && p->accumulation > 0; n++)
        for (int64_t step = 1; p->inputs[n] && step <= hd__steady_step(p); step += HD__MAX(hd__steady_step(p) - 1, 1))
            check_fed(w, p->inputs[n], step);
}

const struct hd__rules hd__rules_once = {
    .section_begin = section_begin, .visit = visit, .section_end = section_end, .finish = finish};
