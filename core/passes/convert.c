/* Conversions: the identity on the logical value, another placement (DTensor's redistribute). One instruction per step:
 *
 *   S(d) -> R     all_gather      axis minor-most in d
 *   S(a) -> S(b)  all_to_all      axis minor-most in a, no axis still has to leave b; appended to b
 *   S(d) -> P     pad             axis minor-most in d
 *   P -> R        all_reduce      several axes at once
 *   P -> S(d)     reduce_scatter  sums only; appended to d
 *   R -> S(d)     slice           appended to d
 *   R -> P        mask            sums only
 *
 * Order: leave shards (minor axis first; those that go to another dim last), all_reduce, then reduce_scatter, slice and
 * mask from the outermost axis inwards. */
#include "core/passes/place.h"

static const char *op_short(uint16_t op)
{
    switch (op) {
    case HD_OP_ALL_GATHER:
        return "ag";
    case HD_OP_ALL_REDUCE:
        return "ar";
    case HD_OP_REDUCE_SCATTER:
        return "rs";
    case HD_OP_ALL_TO_ALL:
        return "a2a";
    default:
        return hd__op(op)->name;
    }
}

/* Appends one conversion; its output has the placement `place`. */
static hd_tensor emit_conversion(struct hd__placer *w, uint16_t op, hd_tensor t, uint32_t axes, uint16_t from,
                                 uint16_t to, const struct hd__placement *place)
{
    struct hd_program *p = w->p;
    struct hd__tensor out = *hd__tensor_const(p, t);
    const char *base = hd__tensor_const(p, out.origin)->name;
    struct hd__instr i = hd__instr_new(p, op);
    out.name = hd__arena_format(&p->arena, "%s~%s.%u", base, op_short(op), p->tensors.count);
    out.placement = *place;
    out.block = p->block;
    out.role = out.role == HD__ROLE_INPUT ? HD__ROLE_INPUT : HD__ROLE_ACT;
    out.buffer = out.param = 0;
    i.in[i.n_in++] = t;
    i.out[i.n_out++] = hd__tensor_new(p, &out);
    i.axes = axes;
    i.from = from;
    i.to = to;
    i.redop = out.placement.redop;
    i.flags |= HD__FLAG_CONV;
    if (hd__is_collective(op))
        i.stream = (uint16_t)(HD__STREAM_AXIS + __builtin_ctz(axes));
    hd__push(w->code, i);
    return i.out[0];
}

/* One axis: `from` and `to` are dim ids or 0; `partial` is the new set of partial axes. */
static hd_tensor convert_axis(struct hd__placer *w, uint16_t op, hd_tensor t, int32_t axis, uint16_t from, uint16_t to,
                              uint32_t partial)
{
    struct hd__placement place = hd__tensor_const(w->p, t)->placement;
    if (from) {
        int32_t d = hd__dim_index(hd__tensor_const(w->p, t), from);
        if (hd__shard_minor(place.shard[d]) != axis)
            hd__program_fail(w->p, HD_E_INTERNAL, "%s of %s: %s is not the minor-most axis of its dim",
                             hd__op(op)->name, hd__tensor_const(w->p, t)->name, hd__axis_name(axis));
        place.shard[d] = hd__shard_pop(place.shard[d]);
    }
    if (to) {
        int32_t d = hd__dim_index(hd__tensor_const(w->p, t), to);
        place.shard[d] = hd__shard_push(place.shard[d], axis);
    }
    place.partial = (uint8_t)partial;
    return emit_conversion(w, op, t, HD_AXIS_BIT(axis), from, to, &place);
}

static uint16_t placement_on(const struct hd__placer *w, hd_tensor t, int32_t axis)
{
    return hd__placement_on(hd__tensor_const(w->p, t), axis);
}

void hd__goal_of(const struct hd__placer *w, const struct hd__tensor *t, hd__goal goal)
{
    for (int32_t n = 0; n < w->n_axes; n++)
        goal[w->axes[n]] = hd__placement_on(t, w->axes[n]);
}

/* Axes inside (minor to) a leaving axis of the same dim: gathered too, and sliced again by reduce_and_shard. */
static uint32_t inner_axes(const struct hd__tensor *t, uint32_t change)
{
    uint32_t again = 0;
    for (int32_t d = 0; d < t->ndim; d++) {
        int seen = 0;
        for (uint32_t s = t->placement.shard[d]; s; s >>= 4) {
            uint32_t bit = HD_AXIS_BIT((s & 15) - 1);
            seen |= (change & bit) != 0;
            if (seen && !(change & bit))
                again |= bit;
        }
    }
    return again;
}

static int target_is_ready(const struct hd__placer *w, hd_tensor t, uint32_t open, uint16_t dim)
{
    for (int32_t n = 0; n < w->n_axes; n++)
        if ((open & HD_AXIS_BIT(w->axes[n])) && placement_on(w, t, w->axes[n]) == dim)
            return 0;
    return 1;
}

/* The axis that leaves next: a minor-most one; first those that end as R or P, then all_to_alls whose target has its
 * place. */
static int32_t next_to_gather(const struct hd__placer *w, hd_tensor t, uint32_t open, uint32_t change,
                              const uint16_t *goal)
{
    int32_t any = -1, plain = -1, ready = -1;
    for (int32_t n = 0; n < w->n_axes; n++) {
        int32_t a = w->axes[n];
        const struct hd__tensor *x = hd__tensor_const(w->p, t);
        if (!(open & HD_AXIS_BIT(a)) ||
            hd__shard_minor(x->placement.shard[hd__dim_index(x, placement_on(w, t, a))]) != a)
            continue;
        any = a;
        if (!((change & HD_AXIS_BIT(a)) && hd__is_shard(goal[a])))
            plain = a;
        else if (target_is_ready(w, t, open, goal[a]))
            ready = a;
    }
    return plain >= 0 ? plain : ready >= 0 ? ready : any;
}

static hd_tensor gather_shards(struct hd__placer *w, hd_tensor t, uint32_t change, uint32_t again, const uint16_t *goal)
{
    uint32_t open = 0;
    for (int32_t n = 0; n < w->n_axes; n++)
        if (hd__is_shard(placement_on(w, t, w->axes[n])) && ((change | again) & HD_AXIS_BIT(w->axes[n])))
            open |= HD_AXIS_BIT(w->axes[n]);
    while (open) {
        int32_t a = next_to_gather(w, t, open, change, goal);
        uint16_t from = placement_on(w, t, a);
        uint32_t partial = hd__tensor_const(w->p, t)->placement.partial;
        int moves = (change & HD_AXIS_BIT(a)) != 0;
        open &= ~HD_AXIS_BIT(a);
        if (moves && goal[a] == HD__PARTIAL)
            t = convert_axis(w, HD_OP_PAD, t, a, from, 0, partial | HD_AXIS_BIT(a));
        else if (moves && hd__is_shard(goal[a]) && target_is_ready(w, t, open, goal[a]))
            t = convert_axis(w, HD_OP_ALL_TO_ALL, t, a, from, goal[a], partial);
        else
            t = convert_axis(w, HD_OP_ALL_GATHER, t, a, from, 0, partial); /* missing shards are sliced later */
    }
    return t;
}

static hd_tensor reduce_all(struct hd__placer *w, hd_tensor t, uint32_t change, const uint16_t *goal)
{
    struct hd__placement place = hd__tensor_const(w->p, t)->placement;
    uint32_t axes = 0;
    for (int32_t n = 0; n < w->n_axes; n++)
        if ((change & HD_AXIS_BIT(w->axes[n])) && goal[w->axes[n]] == HD__REPLICATED &&
            placement_on(w, t, w->axes[n]) == HD__PARTIAL)
            axes |= HD_AXIS_BIT(w->axes[n]);
    if (!axes)
        return t;
    place.partial &= (uint8_t)~axes;
    return emit_conversion(w, HD_OP_ALL_REDUCE, t, axes, 0, 0, &place);
}

/* final: by axis, the placement at the end: the goal, or for axes that were in the way the one they had before. */
static hd_tensor reduce_and_shard(struct hd__placer *w, hd_tensor t, const uint16_t *final)
{
    for (int32_t n = 0; n < w->n_axes; n++) {
        int32_t a = w->axes[n];
        uint16_t now = placement_on(w, t, a), to = final[a];
        uint32_t partial = hd__tensor_const(w->p, t)->placement.partial;
        if (to == now)
            continue;
        if (to == HD__PARTIAL)
            t = convert_axis(w, HD_OP_MASK, t, a, 0, 0, partial | HD_AXIS_BIT(a));
        else if (now == HD__PARTIAL)
            t = convert_axis(w, HD_OP_REDUCE_SCATTER, t, a, 0, to, partial & ~HD_AXIS_BIT(a));
        else if (to != HD__REPLICATED)
            t = convert_axis(w, HD_OP_SLICE, t, a, 0, to, partial);
    }
    return t;
}

static int has_placement(const struct hd__placer *w, const struct hd__tensor *t, const uint16_t *goal)
{
    for (int32_t n = 0; n < w->n_axes; n++)
        if (hd__placement_on(t, w->axes[n]) != goal[w->axes[n]])
            return 0;
    return 1;
}

/* An existing conversion of the same value, in this block. The backward pass may use one of the forward pass only where
 * that is no larger than the original: an all_gather is done again (Megatron's choice). */
static hd_tensor find_conversion(struct hd__placer *w, hd_tensor t, const uint16_t *goal)
{
    struct hd_program *p = w->p;
    hd_tensor origin = hd__tensor_const(p, t)->origin;
    uint8_t backward = p->phase != HD__PHASE_F;
    hd_tensor forward_hit = 0;
    for (uint32_t m = w->first_conversion[origin]; m; m = w->conversions.at[m - 1].next) {
        const struct hd__conversion *conversion = &w->conversions.at[m - 1];
        if (conversion->block != p->block || conversion->backward > backward ||
            !has_placement(w, hd__tensor_const(p, conversion->tensor), goal))
            continue;
        if (conversion->backward == backward)
            return conversion->tensor;
        if (hd__numel(p, hd__tensor_const(p, conversion->tensor)) <= hd__numel(p, hd__tensor_const(p, t)))
            forward_hit = conversion->tensor;
    }
    return forward_hit;
}

static void record_conversion(struct hd__placer *w, hd_tensor t)
{
    struct hd_program *p = w->p;
    hd_tensor origin = hd__tensor_const(p, t)->origin;
    struct hd__conversion conversion = {.tensor = t,
                                        .origin = origin,
                                        .next = w->first_conversion[origin],
                                        .block = p->block,
                                        .backward = p->phase != HD__PHASE_F};
    hd__push(&w->conversions, conversion);
    w->first_conversion[origin] = w->conversions.count;
}

hd_tensor hd__convert(struct hd__placer *w, hd_tensor t, const hd__goal goal)
{
    uint32_t change = 0, again;
    hd__goal final;
    hd_tensor hit;
    for (int32_t n = 0; n < w->n_axes; n++)
        if (placement_on(w, t, w->axes[n]) != goal[w->axes[n]])
            change |= HD_AXIS_BIT(w->axes[n]);
    if (!change)
        return t;
    if ((hit = find_conversion(w, t, goal)))
        return hit;
    memcpy(final, goal, sizeof final); /* axes in the way keep their goal, which is where they are now */
    again = inner_axes(hd__tensor_const(w->p, t), change);
    t = gather_shards(w, t, change, again, goal);
    t = reduce_all(w, t, change, goal);
    t = reduce_and_shard(w, t, final);
    record_conversion(w, t);
    return t;
}

hd_tensor hd__reorder(struct hd__placer *w, hd_tensor t, const uint32_t *shard)
{
    for (int32_t d = 0; d < hd__tensor_const(w->p, t)->ndim; d++) {
        uint32_t now = hd__tensor_const(w->p, t)->placement.shard[d],
                 partial = hd__tensor_const(w->p, t)->placement.partial;
        uint16_t dim = hd__tensor_const(w->p, t)->dim[d];
        if (now == shard[d] || hd__shard_mask(now) != hd__shard_mask(shard[d]))
            continue;
        while (hd__tensor_const(w->p, t)->placement.shard[d])
            t = convert_axis(w, HD_OP_ALL_GATHER, t, hd__shard_minor(hd__tensor_const(w->p, t)->placement.shard[d]),
                             dim, 0, partial);
        for (uint32_t s = shard[d]; s; s >>= 4)
            t = convert_axis(w, HD_OP_SLICE, t, (int32_t)(s & 15) - 1, 0, dim, partial);
    }
    return t;
}
