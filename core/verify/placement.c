/* Placements, derived a second time: an op's by the rules that placed it (place.c), a conversion's by the table of
 * conversions (convert.c), and what works element by element on operands that lie alike. Cuts come out even.
 *
 * What accumulates into a gradient buffer is another matter: views of flat buffers are placed like their parameter,
 * and the sum that is still owed stands in the parameter's obligation. */
#include "core/passes/place.h"
#include "core/verify/verify.h"

static const char *at_text(const struct hd_program *p, uint16_t at)
{
    return at == HD__REPLICATED ? "replicated" : at == HD__PARTIAL ? "partial" : p->dims.at[at].name;
}

/* "x partial, w replicated -> y k" on one axis. */
static void describe(const struct hd_program *p, const struct hd__instr *i, const struct hd__tensor *const *outs,
                     int32_t axis, char out[256])
{
    size_t n = 0;
    out[0] = 0;
    for (uint32_t k = 0; k < (uint32_t)i->n_in + i->n_out && n < 256; k++) {
        const struct hd__tensor *t = k < i->n_in ? hd__tensor_const(p, i->in[k]) : outs[k - i->n_in];
        n += (size_t)snprintf(out + n, 256 - n, "%s%s %s",
                              k == i->n_in ? " -> "
                              : k          ? ", "
                                           : "",
                              t->name, at_text(p, hd__placement_on(t, axis)));
    }
}

/* Axes in another order on the same dim are other pieces. */
static void check_order(struct hd__walk *w, const struct hd__instr *i)
{
    const struct hd__tensor *first = hd__tensor_const(w->p, i->n_in ? i->in[0] : i->out[0]);
    for (uint32_t k = 0, other = 0; k < (uint32_t)i->n_in + i->n_out; k++, other = 0) {
        const struct hd__tensor *t = hd__tensor_const(w->p, k < i->n_in ? i->in[k] : i->out[k - i->n_in]);
        for (int32_t d = 0, e; d < first->ndim; d++)
            if ((e = hd__dim_index(t, first->dim[d])) >= 0 && first->placement.shard[d] != t->placement.shard[e])
                other |= hd__shard_mask(first->placement.shard[d]) == hd__shard_mask(t->placement.shard[e]);
        if (other)
            hd__diag(w, "%s and %s are sharded by the same axes in a different order", first->name, t->name);
    }
}

static void check_even(struct hd__walk *w, const struct hd__instr *i)
{
    for (uint32_t k = 0; k < i->n_out; k++) {
        const struct hd__tensor *t = hd__tensor_const(w->p, i->out[k]);
        for (int32_t d = 0; d < t->ndim; d++) {
            int64_t ways = hd__mesh_ways(&w->p->mesh, hd__shard_mask(t->placement.shard[d])),
                    extent = w->p->dims.at[t->dim[d]].extent;
            if (extent % ways)
                hd__diag(w, "%s cannot be sharded %lld ways along %s, whose extent is %lld", t->name, (long long)ways,
                         w->p->dims.at[t->dim[d]].name, (long long)extent);
        }
    }
}

/* ---- ops of the model */

static void check_rules(struct hd__walk *w, const struct hd__instr *i)
{
    const struct hd_program *p = w->p;
    struct hd__tensor sums[HD_MAX_OUT];
    const struct hd__tensor *outs[HD_MAX_OUT];
    uint32_t live = hd__mesh_live(&p->mesh);
    char how[256];
    for (uint32_t n = 0; n < i->n_out; n++) {
        sums[n] = *hd__tensor_const(p, i->out[n]);
        outs[n] = &sums[n];
        if (sums[n].role == HD__ROLE_FLAT && sums[n].param)
            sums[n].placement.partial |= (uint8_t)p->params.at[sums[n].param - 1].unreduced_axes;
    }
    for (int32_t a = 0; a < HD_AXIS_COUNT; a++)
        if ((live & HD_AXIS_BIT(a)) && !hd__place_allows(p, i, outs, a)) {
            describe(p, i, outs, a, how);
            hd__diag(w, "no placement rule of this op allows this on %s: %s", hd__axis_name(a), how);
        }
    check_order(w, i);
}

/* ---- conversions */

/* Does a tensor lie so on the axes of its conversion? S: along `dim`, minor-most. */
static int is_placed(const struct hd__tensor *t, uint32_t axes, char how, uint16_t dim)
{
    for (; axes; axes &= axes - 1) {
        int32_t a = __builtin_ctz(axes);
        if (hd__placement_on(t, a) != (how == 'R' ? HD__REPLICATED : how == 'P' ? HD__PARTIAL : dim))
            return 0;
        if (how == 'S' && hd__shard_minor(t->placement.shard[hd__dim_index(t, dim)]) != a)
            return 0;
    }
    return 1;
}

static void check_conversion(struct hd__walk *w, const struct hd__instr *i)
{
    const struct hd__tensor *in = hd__tensor_const(w->p, i->in[0]), *out = hd__tensor_const(w->p, i->out[0]);
    const char *converts = hd__op(i->op)->converts;
    uint32_t live = hd__mesh_live(&w->p->mesh);
    for (int32_t a = 0; a < HD_AXIS_COUNT; a++)
        if ((live & ~i->axes & HD_AXIS_BIT(a)) && hd__placement_on(in, a) != hd__placement_on(out, a))
            hd__diag(w, "%s is %s on %s, %s is %s: the conversion is not over %s", in->name,
                     at_text(w->p, hd__placement_on(in, a)), hd__axis_name(a), out->name,
                     at_text(w->p, hd__placement_on(out, a)), hd__axis_name(a));
    if (*converts && !is_placed(in, i->axes, converts[0], i->from))
        hd__diag(w, "%s does not have the placement of this conversion's input", in->name);
    if (*converts && !is_placed(out, i->axes, converts[1], i->to))
        hd__diag(w, "%s does not have the placement of this conversion's output", out->name);
    check_order(w, i);
}

/* ---- element by element: accum, copy, and the update of a flat buffer */

static void check_same_shard(struct hd__walk *w, hd_tensor a, hd_tensor b)
{
    const struct hd__tensor *in = hd__tensor_const(w->p, a), *out = hd__tensor_const(w->p, b);
    if (in->ndim != out->ndim || memcmp(in->dim, out->dim, in->ndim * sizeof *in->dim) ||
        memcmp(in->placement.shard, out->placement.shard, in->ndim * sizeof *in->placement.shard))
        hd__diag(w, "%s and %s are not the same shard of one tensor", in->name, out->name);
}

/* Element by element are what a map makes of input 0, and state. */
static void check_custom(struct hd__walk *w, const struct hd__instr *i)
{
    uint32_t proof = i->custom->proof;
    for (uint32_t k = 0; k < i->n_out; k++)
        if (i->custom->state >> k & 1 || (!k && (proof == HD_CUSTOM_LINEAR || proof == HD_CUSTOM_MAP)))
            check_same_shard(w, i->in[0], i->out[k]);
}

/* Sums of flat buffers: all of one flat. */
static void check_blend(struct hd__walk *w, const struct hd__instr *i)
{
    for (uint32_t k = 0; k < i->n_in; k++)
        check_same_shard(w, i->in[k], i->out[0]);
    if (i->n_in > 4 || !i->attrs || i->attrs->n_table != i->n_in)
        hd__diag(w, "weighted sum of %u tensors has %llu weights", i->n_in,
                 (unsigned long long)(i->attrs ? i->attrs->n_table : 0));
}

static void check_same_placement(struct hd__walk *w, const struct hd__instr *i)
{
    for (uint32_t n = 0; n < i->n_out; n++) {
        const struct hd__tensor *in = hd__tensor_const(w->p, i->in[0]), *out = hd__tensor_const(w->p, i->out[n]);
        for (int32_t d = 0; d < in->ndim && d < out->ndim; d++)
            if (in->dim[d] == out->dim[d] && in->placement.shard[d] != out->placement.shard[d])
                hd__diag(w, "%s and %s hold different shards of %s", in->name, out->name,
                         w->p->dims.at[in->dim[d]].name);
    }
}

/* An all_gather's input is sharded along just its axes more than its output; a reduce_scatter's the other way round. */
static void check_shards(struct hd__walk *w, const struct hd__instr *i)
{
    const struct hd__tensor *pieces = hd__tensor_const(w->p, hd__op_joins(i->op) ? i->in[0] : i->out[0]),
                            *whole = hd__tensor_const(w->p, hd__op_joins(i->op) ? i->out[0] : i->in[0]);
    uint32_t live = hd__mesh_live(&w->p->mesh), cut = 0;
    for (int32_t d = 0; d < pieces->ndim; d++)
        cut |= hd__shard_mask(pieces->placement.shard[d]);
    for (int32_t d = 0; d < whole->ndim; d++)
        cut &= ~hd__shard_mask(whole->placement.shard[d]);
    if ((cut ^ i->axes) & live)
        hd__diag(w, "%s is sharded along [%s], not along [%s]", pieces->name, hd__axes(cut), hd__axes(i->axes));
}

static void visit(struct hd__walk *w, const struct hd__instr *i)
{
    uint8_t class = hd__op(i->op)->class;
    check_even(w, i);
    if (class == HD__CLASS_MODEL)
        check_rules(w, i);
    else if (i->op == HD_OP_BLEND)
        check_blend(w, i);
    else if (i->custom)
        check_custom(w, i);
    else if (i->flags & HD__FLAG_CONV)
        check_conversion(w, i);
    else if (hd__op_joins(i->op) != hd__op_splits(i->op))
        check_shards(w, i);
    else if (i->n_in && (i->op == HD_OP_ACCUM || i->op == HD_OP_COPY || class == HD__CLASS_UPDATE))
        check_same_placement(w, i);
}

const struct hd__rules hd__rules_placement = {.visit = visit};
