/* The placement pass: walks forward and backward instructions in order, places each op where it is cheapest, and
 * inserts conversions.
 *
 * One op on one axis has few candidates: R (all replicated), P (if the op is linear), or S(L) for a label L that may be
 * sharded: inputs with L are S(L), others R; an output with L is S(L), one that sums over L is P. The candidate that
 * moves the fewest bytes wins; axes are settled in order of their cheapest candidate. */
#include <stdlib.h>

#include "core/passes/passes.h"
#include "core/passes/place.h"

#define MAX_LABELS 32
#define COST_PINNED 1e9 /* parameters are never converted: only strategies move them */

struct constraint { /* allowed placements of output 0 on one axis; n = 0: any */
    uint16_t at[2];
    uint8_t n, reserved[3];
};

struct placed_op {
    const struct hd__op *row;
    hd_tensor in[HD_MAX_IN];
    const struct hd__tensor *out[HD_MAX_OUT];
    uint32_t n_in, n_out, n_labels;
    uint16_t label[MAX_LABELS];
    int64_t ways[MAX_LABELS]; /* how often a label is cut already */
    struct constraint constraint[HD_AXIS_COUNT];
    hd__goal hint; /* breaks ties; without it greedy choices drift */
};

struct plan {
    double cost;
    uint16_t candidate; /* HD__REPLICATED, HD__PARTIAL or a dim id */
    uint16_t in[HD_MAX_IN], out[HD_MAX_OUT];
};

static int has_letter(const struct hd_program *p, const char *letters, uint16_t dim)
{
    return letters && strchr(letters, p->dims.at[dim].name[0]) && p->dims.at[dim].name[0] != '#';
}

/* ---- rules */

static int rule_partial(const struct hd__placer *w, const struct placed_op *o, int32_t axis, struct plan *plan)
{
    uint32_t count = 0, first = 0;
    if (o->row->redop == HD_MAX)
        return 0;
    for (uint32_t n = 0; n < o->n_in; n++) {
        const struct hd__tensor *t = hd__tensor_const(w->p, o->in[n]);
        int is = hd__placement_on(t, axis) == HD__PARTIAL && t->placement.redop == HD_SUM;
        if (is && !count++)
            first = n;
        plan->in[n] = is || o->row->linear == HD__LINEAR_ALL ? HD__PARTIAL : HD__REPLICATED;
    }
    for (uint32_t n = 0; n < o->n_out; n++)
        plan->out[n] = HD__PARTIAL;
    switch (o->row->linear) {
    case HD__LINEAR_ALL:
        return count > 0;
    case HD__LINEAR_ONE:
        return count == 1;
    case HD__LINEAR_FIRST:
        return count == 1 && first == 0;
    default:
        return 0;
    }
}

/* Attention over a sharded sequence is a ring: see ring_attention.c. */
static int is_ring_axis(const struct hd_program *p, const struct placed_op *o, int32_t axis, uint16_t dim)
{
    return p->ring_axes & HD_AXIS_BIT(axis) && dim == p->letter['s'] &&
           (o->row == hd__op(HD_OP_ATTENTION) || o->row == hd__op(HD_OP_ATTENTION_GRAD));
}

/* Is output n made of an input that has this dim? */
static int depends_on(const struct hd__placer *w, const struct placed_op *o, uint32_t n, uint16_t dim)
{
    for (uint32_t k = 0; k < o->n_in && o->row->from[n]; k++)
        if (o->row->from[n] >> k & 1 && hd__dim_index(hd__tensor_const(w->p, o->in[k]), dim) >= 0)
            return 1;
    return !o->row->from[n];
}

static int may_not_shard(const struct hd__placer *w, const struct placed_op *o, int32_t axis, uint16_t dim)
{
    const struct hd__tensor *x = o->n_in ? hd__tensor_const(w->p, o->in[0]) : NULL;
    if (o->row->unsharded && *o->row->unsharded == '$')
        return x && x->ndim && x->dim[x->ndim - 1] == dim;
    return has_letter(w->p, o->row->unsharded, dim) && !is_ring_axis(w->p, o, axis, dim);
}

static int rule_shard(const struct hd__placer *w, const struct placed_op *o, int32_t axis, uint16_t dim,
                      struct plan *plan)
{
    if (may_not_shard(w, o, axis, dim))
        return 0;
    for (uint32_t n = 0; n < o->n_out; n++) {
        const char *sums = o->row->partial[n];
        if (hd__dim_index(o->out[n], dim) >= 0)
            plan->out[n] = dim;
        else if (!depends_on(w, o, n, dim))
            plan->out[n] = HD__REPLICATED;
        else if (sums && (sums[0] == '*' || has_letter(w->p, sums, dim)))
            plan->out[n] = HD__PARTIAL;
        else
            return 0;
    }
    for (uint32_t n = 0; n < o->n_in; n++)
        plan->in[n] = hd__dim_index(hd__tensor_const(w->p, o->in[n]), dim) >= 0 ? dim : HD__REPLICATED;
    return 1;
}

static int rule(const struct hd__placer *w, const struct placed_op *o, int32_t axis, uint16_t candidate,
                struct plan *plan)
{
    if (candidate == HD__PARTIAL)
        return rule_partial(w, o, axis, plan);
    if (candidate != HD__REPLICATED)
        return rule_shard(w, o, axis, candidate, plan);
    memset(plan->in, 0, sizeof plan->in);
    memset(plan->out, 0, sizeof plan->out);
    return 1;
}

/* ---- cost */

static int is_converted(const struct hd__placer *w, hd_tensor t, int32_t axis, uint16_t to)
{
    uint8_t backward = w->p->phase != HD__PHASE_F;
    for (uint32_t m = w->first_conversion[hd__tensor_const(w->p, t)->origin]; m; m = w->conversions.at[m - 1].next) {
        const struct hd__conversion *conversion = &w->conversions.at[m - 1];
        if (conversion->backward == backward && conversion->block == w->p->block &&
            hd__placement_on(hd__tensor_const(w->p, conversion->tensor), axis) == to)
            return 1;
    }
    return 0;
}

/* Elements moved to convert one input on one axis. */
static double cost(const struct hd__placer *w, hd_tensor id, int32_t axis, uint16_t to)
{
    const struct hd__tensor *t = hd__tensor_const(w->p, id);
    double n = w->p->mesh.size[axis], size;
    uint16_t from = hd__placement_on(t, axis);
    if (from == to)
        return 0;
    if (t->role == HD__ROLE_PARAM)
        return COST_PINNED;
    if (is_converted(w, id, axis, to))
        return 0;
    size = (double)hd__numel(w->p, t) * (hd__is_shard(from) ? n : 1) * (n - 1) / n; /* not sharded on this axis */
    if (from == HD__PARTIAL && to == HD__REPLICATED)
        return 2 * size;
    if (hd__is_shard(from) && hd__is_shard(to))
        return size / n;
    return size; /* a slice counts as the all_gather that it will cause */
}

static int allowed(const struct constraint *constraint, uint16_t at)
{
    return !constraint->n || constraint->at[0] == at || (constraint->n == 2 && constraint->at[1] == at);
}

static int64_t *ways_of(struct placed_op *o, uint16_t dim)
{
    for (uint32_t n = 0; n < o->n_labels; n++)
        if (o->label[n] == dim)
            return &o->ways[n];
    return NULL;
}

static void best_candidate(const struct hd__placer *w, struct placed_op *o, int32_t axis, struct plan *found)
{
    found->cost = -1;
    for (uint32_t c = 0; c < o->n_labels + 2; c++) {
        uint16_t candidate = c == 0 ? HD__REPLICATED : c == 1 ? HD__PARTIAL : o->label[c - 2];
        struct plan plan = {.candidate = candidate};
        if (hd__is_shard(candidate) &&
            w->p->dims.at[candidate].extent % (*ways_of(o, candidate) * w->p->mesh.size[axis]))
            continue;
        if (!rule(w, o, axis, candidate, &plan))
            continue;
        for (uint32_t n = 0; n < o->n_in; n++)
            plan.cost += cost(w, o->in[n], axis, plan.in[n]);
        plan.cost += plan.out[0] == o->hint[axis] ? 0 : 1e-3;
        if (!allowed(&o->constraint[axis], plan.out[0])) /* mandatory: at worst a slice of a replicated result */
            plan.cost += candidate == HD__REPLICATED ? 1e6 : 1e9;
        if (found->cost < 0 || plan.cost < found->cost)
            *found = plan;
    }
}

/* ---- one op */

static void add_label(struct placed_op *o, uint16_t dim)
{
    if (ways_of(o, dim) || o->n_labels == MAX_LABELS)
        return;
    o->label[o->n_labels] = dim;
    o->ways[o->n_labels++] = 1;
}

static void find_labels(const struct hd__placer *w, struct placed_op *o)
{
    for (const char *s = o->row->prefer; s && *s; s++)
        if (w->p->letter[(int)*s])
            add_label(o, w->p->letter[(int)*s]);
    for (uint32_t n = 0; n < o->n_in; n++)
        for (int32_t d = 0; d < hd__tensor_const(w->p, o->in[n])->ndim; d++)
            add_label(o, hd__tensor_const(w->p, o->in[n])->dim[d]);
    for (uint32_t n = 0; n < o->n_out; n++)
        for (int32_t d = 0; d < o->out[n]->ndim; d++)
            add_label(o, o->out[n]->dim[d]);
}

/* Chooses the placements of inputs and outputs on every axis. */
static void choose_placements(const struct hd__placer *w, struct placed_op *o, hd__goal *in, hd__goal *out)
{
    int32_t open[HD_AXIS_COUNT], n_open = w->n_axes;
    memcpy(open, w->axes, sizeof open);
    while (n_open) { /* the cheapest axis first, so that an axis that costs nothing does not lose its dim to another */
        struct plan least = {.cost = -1};
        int32_t pick = 0, axis;
        for (int32_t n = 0; n < n_open; n++) {
            struct plan found;
            best_candidate(w, o, open[n], &found);
            if (least.cost < 0 || found.cost < least.cost) {
                least = found;
                pick = n;
            }
        }
        axis = open[pick];
        n_open--;
        for (int32_t n = pick; n < n_open; n++)
            open[n] = open[n + 1];
        if (hd__is_shard(least.candidate))
            *ways_of(o, least.candidate) *= w->p->mesh.size[axis];
        for (uint32_t n = 0; n < o->n_in; n++)
            in[n][axis] = least.in[n];
        for (uint32_t n = 0; n < o->n_out; n++)
            out[n][axis] = least.out[n];
    }
}

/* Operands that share a dim cut by several axes must agree on which axis is major: parameters decide, then the
 * first. */
static void same_order(struct hd__placer *w, struct placed_op *o, hd_tensor *conv)
{
    for (uint32_t l = 0; l < o->n_labels; l++) {
        uint32_t ref = 0, differ = 0;
        for (uint32_t pass = 0; pass < 2 && !ref; pass++)
            for (uint32_t n = 0; n < o->n_in && !ref; n++) {
                const struct hd__tensor *t = hd__tensor_const(w->p, conv[n]);
                int32_t d = hd__dim_index(t, o->label[l]);
                if (d >= 0 && t->placement.shard[d] >> 4 && (pass || t->role == HD__ROLE_PARAM))
                    ref = t->placement.shard[d];
            }
        for (uint32_t n = 0; n < o->n_in; n++) {
            uint32_t shard[HD_MAX_DIMS];
            int32_t d = hd__dim_index(hd__tensor_const(w->p, conv[n]), o->label[l]);
            differ = ref && d >= 0 && hd__tensor_const(w->p, conv[n])->placement.shard[d] >> 4 &&
                     hd__tensor_const(w->p, conv[n])->placement.shard[d] != ref;
            if (!differ)
                continue;
            memcpy(shard, hd__tensor_const(w->p, conv[n])->placement.shard, sizeof shard);
            shard[d] = ref;
            conv[n] = hd__reorder(w, conv[n], shard);
        }
    }
}

/* Writes the placement of a logical output: order of axes from the inputs, then the dims that only the output has. */
static void set_output_placement(struct hd__placer *w, const struct placed_op *o, const hd_tensor *conv, hd_tensor out,
                                 const uint16_t *goal)
{
    struct hd__tensor *t = hd__tensor_at(w->p, out);
    memset(t->placement.shard, 0, sizeof t->placement.shard);
    t->placement.partial = 0;
    for (int32_t d = 0; d < t->ndim; d++)
        for (uint32_t n = 0; n < o->n_in; n++) {
            const struct hd__tensor *x = hd__tensor_const(w->p, conv[n]);
            int32_t k = hd__dim_index(x, t->dim[d]);
            if (k >= 0 && x->placement.shard[k])
                t->placement.shard[d] = x->placement.shard[k];
        }
    for (int32_t n = 0; n < w->n_axes; n++) {
        int32_t a = w->axes[n];
        if (goal[a] == HD__PARTIAL) {
            t->placement.partial |= (uint8_t)HD_AXIS_BIT(a);
        } else if (goal[a] != HD__REPLICATED) {
            int32_t d = hd__dim_index(t, goal[a]);
            if (!(hd__shard_mask(t->placement.shard[d]) & HD_AXIS_BIT(a)))
                t->placement.shard[d] = hd__shard_push(t->placement.shard[d], a);
        }
    }
}

/* ---- constraints, hints, marks */

static void mark_goal(const struct hd__placer *w, const struct hd__tensor *t, uint8_t mark, hd__goal goal,
                      uint32_t *shard)
{
    const uint32_t *by_letter = w->p->mark_shard[mark];
    memset(goal, 0, sizeof(hd__goal));
    for (int32_t d = 0; d < t->ndim; d++) {
        const char *name = w->p->dims.at[t->dim[d]].name;
        shard[d] = name[0] == '#' ? 0 : by_letter[(int)name[0]];
        for (uint32_t s = shard[d]; s; s >>= 4)
            goal[(s & 15) - 1] = t->dim[d];
    }
}

static hd_tensor convert_to_mark(struct hd__placer *w, hd_tensor t, uint8_t mark)
{
    hd__goal goal;
    uint32_t shard[HD_MAX_DIMS];
    mark_goal(w, hd__tensor_const(w->p, t), mark, goal, shard);
    return hd__reorder(w, hd__convert(w, t, goal), shard);
}

/* The dim that an axis cuts in the residual stream; without one, a hint that equals no candidate. */
static uint16_t residual_dim(const struct hd_program *p, int32_t axis)
{
    const uint32_t *by_letter = p->mark_shard[HD__MARK_RESIDUAL];
    for (uint32_t letter = 0; letter < HD__COUNT(p->mark_shard[0]); letter++)
        if (by_letter[letter] && p->letter[letter] && hd__shard_mask(by_letter[letter]) & HD_AXIS_BIT(axis))
            return p->letter[letter];
    return HD__PARTIAL - 1;
}

static void find_constraints(const struct hd__placer *w, const struct hd__instr *i, struct placed_op *o)
{
    const struct hd__tensor *out = o->out[0];
    for (int32_t n = 0; n < w->n_axes;
         n++) { /* the default of an axis: its dim in the token ids, or in the residual stream */
        int32_t a = w->axes[n];
        const struct hd__tensor *ids = hd__tensor_const(w->p, w->p->ids);
        o->hint[a] = w->p->ids ? hd__placement_on(ids, a) : HD__REPLICATED;
        if (o->hint[a] == HD__REPLICATED)
            o->hint[a] = residual_dim(w->p, a);
        if (out->grad_of)
            o->hint[a] = hd__placement_on(hd__tensor_const(w->p, w->current[out->grad_of]), a);
    }
    if (i->op == HD_OP_ADD && i->phase == HD__PHASE_F && out->mark) {
        hd__goal goal;
        uint32_t shard[HD_MAX_DIMS];
        mark_goal(w, out, out->mark, goal, shard);
        for (int32_t n = 0; n < w->n_axes; n++)
            o->constraint[w->axes[n]] = (struct constraint){.at = {goal[w->axes[n]]}, .n = 1};
    } else if (o->row->flags & HD__OP_TOKENWISE) { /* nor is its output sharded on axes that do not shard tokens */
        for (int32_t n = 0; n < w->n_axes; n++)
            if (hd__placement_on(hd__tensor_const(w->p, o->in[0]), w->axes[n]) == HD__REPLICATED)
                o->constraint[w->axes[n]] = (struct constraint){.at = {HD__REPLICATED}, .n = 1};
    } else if (out->grad_of &&
               (i->op == HD_OP_SPREAD || hd__tensor_const(w->p, out->grad_of)->role == HD__ROLE_PARAM)) {
        /* spread is placed like its twin; a parameter's gradient is S where the parameter is, else R or P: the pending
         * reduction */
        const struct hd__tensor *like = hd__tensor_const(w->p, w->current[out->grad_of]);
        for (int32_t n = 0; n < w->n_axes; n++) {
            uint16_t at = hd__placement_on(like, w->axes[n]);
            o->constraint[w->axes[n]] = (struct constraint){.at = {at}, .n = 1};
            if (like->role == HD__ROLE_PARAM && at == HD__REPLICATED)
                o->constraint[w->axes[n]] = (struct constraint){.at = {HD__REPLICATED, HD__PARTIAL}, .n = 2};
        }
    }
}

static hd_tensor apply_constraints(struct hd__placer *w, const struct placed_op *o, hd_tensor t)
{
    hd__goal goal;
    hd__goal_of(w, hd__tensor_const(w->p, t), goal);
    for (int32_t n = 0; n < w->n_axes; n++)
        if (!allowed(&o->constraint[w->axes[n]], goal[w->axes[n]]))
            goal[w->axes[n]] = o->constraint[w->axes[n]].at[0];
    return hd__convert(w, t, goal);
}

/* Places one logical instruction whose inputs are given as placed tensors. */
static void place_one(struct hd__placer *w, const struct hd__instr *logical, const hd_tensor *ins)
{
    struct hd_program *p = w->p;
    struct hd__instr i = *logical;
    struct placed_op o = {.row = hd__op(i.op), .n_in = i.n_in, .n_out = i.n_out};
    struct hd__tensor outs[HD_MAX_OUT]; /* copies: the array of tensors grows while we convert */
    hd__goal in_goal[HD_MAX_IN] = {{0}}, out_goal[HD_MAX_OUT] = {{0}};
    memcpy(o.in, ins, i.n_in * sizeof *ins);
    if (o.row->flags & HD__OP_TOKENWISE)
        o.in[0] = convert_to_mark(w, ins[0], HD__MARK_TOKENS);
    for (uint32_t n = 0; n < i.n_out; n++) {
        outs[n] = *hd__tensor_const(p, i.out[n]);
        o.out[n] = &outs[n];
    }
    find_labels(w, &o);
    find_constraints(w, &i, &o);
    choose_placements(w, &o, in_goal, out_goal);
    for (uint32_t n = 0; n < i.n_in; n++)
        i.in[n] = hd__convert(w, o.in[n], in_goal[n]);
    same_order(w, &o, i.in);
    for (uint32_t n = 0; n < i.n_out; n++)
        set_output_placement(w, &o, i.in, i.out[n], out_goal[n]);
    i.id = ++p->next_id;
    hd__push(w->code, i);
    for (uint32_t n = 0; n < i.n_out; n++) {
        hd_tensor t = n ? i.out[n] : apply_constraints(w, &o, i.out[n]);
        w->current[i.out[n]] =
            hd__tensor_const(p, i.out[n])->mark ? convert_to_mark(w, t, hd__tensor_const(p, i.out[n])->mark) : t;
    }
}

/* ---- sums of gradients: terms of equal placement first, then the rest */

static int same_placement(const struct hd__tensor *a, const struct hd__tensor *b)
{
    return !memcmp(a->placement.shard, b->placement.shard, sizeof a->placement.shard) &&
           a->placement.partial == b->placement.partial;
}

static hd_tensor logical_copy(struct hd__placer *w, hd_tensor of)
{
    struct hd__tensor t = *hd__tensor_const(w->p, of);
    t.origin = 0;
    t.mark = 0;
    t.name = hd__arena_format(&w->p->arena, "add.%u", w->p->tensors.count);
    return hd__tensor_new(w->p, &t);
}

static void grow_current(struct hd__placer *w)
{
    uint32_t n = w->p->tensors.count;
    w->current = hd__realloc(w->current, n * sizeof *w->current);
    w->first_conversion = hd__realloc(w->first_conversion, n * sizeof *w->first_conversion);
    memset(w->current + w->logical, 0, (n - w->logical) * sizeof *w->current);
    memset(w->first_conversion + w->logical, 0, (n - w->logical) * sizeof *w->first_conversion);
    w->logical = n;
}

static void place_gradsum(struct hd__placer *w, const struct hd__instr *i)
{
    hd_tensor term[HD_MAX_IN], rest[HD_MAX_IN];
    uint32_t n_rest = 0, left = i->n_in;
    for (uint32_t n = 0; n < i->n_in; n++)
        term[n] = w->current[i->in[n]];
    while (left) {
        hd_tensor equal[HD_MAX_IN], other[HD_MAX_IN];
        uint32_t n_equal = 0, n_other = 0;
        for (uint32_t n = 0; n < left; n++)
            if (same_placement(hd__tensor_const(w->p, term[n]), hd__tensor_const(w->p, term[0])))
                equal[n_equal++] = term[n];
            else
                other[n_other++] = term[n];
        if (n_equal > 1 && n_equal < i->n_in) { /* a sum of its own */
            struct hd__instr part = *i;
            part.n_in = (uint8_t)n_equal;
            part.out[0] = logical_copy(w, i->out[0]);
            grow_current(w);
            place_one(w, &part, equal);
            equal[0] = w->current[part.out[0]];
            n_equal = 1;
        }
        memcpy(rest + n_rest, equal, n_equal * sizeof *equal);
        n_rest += n_equal;
        memcpy(term, other, n_other * sizeof *other);
        left = n_other;
    }
    struct hd__instr total = *i;
    total.n_in = (uint8_t)n_rest;
    place_one(w, &total, rest);
}

/* ---- accumulators */

/* An accumulator has ONE placement: P on every data axis on which its parameter is R, and on axes on which any
 * contribution is P. A contribution that is R there is masked, or it would be counted n times. */
static void place_accumulators(struct hd__placer *w)
{
    const uint32_t data = HD_AXIS_BIT(HD_AXIS_DP_REPLICATE) | HD_AXIS_BIT(HD_AXIS_DP_SHARD) | HD_AXIS_BIT(HD_AXIS_CP) |
                          HD_AXIS_BIT(HD_AXIS_EP);
    struct hd_program *p = w->p;
    hd__code old = p->template, fresh = {0};
    for (uint32_t k = 0; k < old.count; k++) {
        const struct hd__instr *i = &old.at[k];
        if (i->op != HD_OP_ACCUM)
            continue;
        struct hd__param *param = &p->params.at[hd__tensor_const(p, i->out[0])->param - 1];
        for (int32_t n = 0; n < w->n_axes; n++)
            if (hd__placement_on(hd__tensor_const(p, i->out[0]), w->axes[n]) == HD__REPLICATED)
                param->unreduced_axes |=
                    HD_AXIS_BIT(w->axes[n]) & (data | hd__tensor_const(p, i->in[0])->placement.partial);
    }
    w->code = &fresh;
    for (uint32_t k = 0; k < old.count; k++) {
        struct hd__instr i = old.at[k];
        if (i.op == HD_OP_ACCUM) {
            uint32_t unreduced = p->params.at[hd__tensor_const(p, i.out[0])->param - 1].unreduced_axes;
            hd__goal goal;
            p->block = i.block;
            p->phase = HD__PHASE_W;
            hd__goal_of(w, hd__tensor_const(p, i.in[0]), goal);
            for (int32_t n = 0; n < w->n_axes; n++)
                if (unreduced & HD_AXIS_BIT(w->axes[n]))
                    goal[w->axes[n]] = HD__PARTIAL;
            i.in[0] = hd__convert(w, i.in[0], goal);
        }
        hd__push(&fresh, i);
    }
    p->template = fresh;
    hd__free_array(&old);
    w->code = NULL;
}

/* ---- the walk */

/* May a dim be padded? Its parameters have it first, so that what a checkpoint has of them comes before the zeros that
 * pad them; no op makes anything else of these. */
static int can_pad(const struct hd_program *p, uint16_t dim)
{
    int can = 1;
    for (uint32_t k = 0; k < p->params.count; k++)
        can &= hd__dim_index(hd__tensor_const(p, p->params.at[k].tensor), dim) <= 0;
    for (uint32_t k = 0; k < p->logical.count; k++) {
        const struct hd__instr *i = &p->logical.at[k];
        for (uint32_t n = 0; n < (uint32_t)i->n_in + i->n_out; n++)
            can &= hd__op(i->op)->flags & HD__OP_PADS ||
                   hd__dim_index(hd__tensor_const(p, n < i->n_in ? i->in[n] : i->out[n - i->n_in]), dim) < 0;
    }
    return can;
}

/* Lengthens dims of parameters, the vocabulary for one, until the axes that shard them divide them; every rank has some
 * of the dim. */
static void pad(struct hd_program *p)
{
    for (int32_t letter = 0; letter < 128; letter++) {
        struct hd__dim *dim = &p->dims.at[p->letter[letter]];
        int64_t ways = hd__mesh_ways(&p->mesh, hd__shard_mask(p->param_shard[letter])),
                part = (dim->extent + ways - 1) / ways;
        if (p->letter[letter] && part * ways > dim->extent && part * (ways - 1) < dim->extent &&
            can_pad(p, p->letter[letter]))
            dim->extent = part * ways;
    }
}

/* Every shard must have the same size. */
static int32_t check_marks(const struct hd_program *p, const uint32_t *by_letter, struct hd_error *err)
{
    for (int32_t letter = 0; letter < 128; letter++) {
        const struct hd__dim *dim = &p->dims.at[p->letter[letter]];
        uint32_t axes = hd__shard_mask(by_letter[letter]);
        long long ways = (long long)hd__mesh_ways(&p->mesh, axes), is = (long long)dim->extent;
        if (p->letter[letter] && letter == 's' && is % ways)
            return hd_fail(err, HD_E_INVALID,
                           "data.seq_len: %lld is not a multiple of %lld, the ranks of %s that cut the sequence; "
                           "nearest that work: %lld, %lld",
                           is, ways, hd__axes(axes), is / ways * ways, (is / ways + 1) * ways);
        if (p->letter[letter] && dim->extent % hd__mesh_ways(&p->mesh, axes))
            return hd_fail(
                err, HD_E_INVALID,
                "%s = %lld cannot be cut over mesh axes %s (%lld ways): it does not divide, and cannot be padded",
                dim->long_name, (long long)dim->extent, hd__axes(axes), (long long)hd__mesh_ways(&p->mesh, axes));
    }
    return HD_OK;
}

static void apply_marks(struct hd_program *p, hd_tensor id, const uint32_t *by_letter)
{
    struct hd__tensor *t = hd__tensor_at(p, id);
    for (int32_t d = 0; d < t->ndim; d++)
        t->placement.shard[d] = by_letter[(int)p->dims.at[t->dim[d]].name[0]];
}

/* Places parameters and inputs as the strategies marked them; everything else follows. */
static int32_t apply_layout(struct hd_program *p, struct hd_error *err)
{
    pad(p);
    int32_t rc = check_marks(p, p->param_shard, err);
    for (int32_t m = 0; m < 3 && !rc; m++)
        rc = check_marks(p, p->mark_shard[m], err);
    for (uint32_t k = 0; k < p->params.count; k++)
        if (!(p->params.at[k].desc.flags & HD_PARAM_WHOLE))
            apply_marks(p, p->params.at[k].tensor, p->param_shard);
    for (uint32_t n = 0; n < HD__INPUTS; n++)
        if (p->inputs[n])
            apply_marks(p, p->inputs[n], p->mark_shard[HD__MARK_TOKENS]);
    if (p->positions) /* read whole by attention over moved heads, cut for a ring without a message */
        hd__tensor_at(p, p->positions)->placement.shard[1] = 0;
    return rc;
}

static void place_all(struct hd__placer *w)
{
    struct hd_program *p = w->p;
    for (uint32_t k = 0; k < p->logical.count && !p->failed; k++) {
        struct hd__instr i = p->logical.at[k];
        hd_tensor ins[HD_MAX_IN];
        p->block = i.block;
        p->phase = i.phase;
        for (uint32_t n = 0; n < i.n_in; n++)
            ins[n] = w->current[i.in[n]];
        if (i.op == HD_OP_ACCUM) {
            i.id = ++p->next_id;
            i.in[0] = ins[0];
            hd__push(w->code, i);
        } else if (i.flags & HD__FLAG_GRADSUM) {
            place_gradsum(w, &i);
        } else {
            place_one(w, &i, ins);
        }
    }
}

int32_t hd__place(struct hd_program *p, struct hd_error *err)
{
    struct hd__placer w = {.p = p, .code = &p->template, .logical = p->tensors.count};
    uint32_t live = hd__mesh_live(&p->mesh);
    int32_t rc = apply_layout(p, err);
    if (rc)
        return rc;
    for (int32_t a = 0; a < HD_AXIS_COUNT; a++)
        if (live & HD_AXIS_BIT(a))
            w.axes[w.n_axes++] = a;
    w.current = hd__alloc(w.logical * sizeof *w.current);
    w.first_conversion = hd__alloc(w.logical * sizeof *w.first_conversion);
    for (uint32_t t = 0; t < w.logical; t++) /* parameters and inputs as marked; the rest is set by its producer */
        w.current[t] = t;
    place_all(&w);
    place_accumulators(&w);
    p->phase = HD__PHASE_F;
    free(w.current);
    free(w.first_conversion);
    hd__free_array(&w.conversions);
    if (p->failed) {
        *err = p->error;
        return p->failed;
    }
    return HD_OK;
}

/* ---- the rules again, for verify */

int hd__place_allows(const struct hd_program *p, const struct hd__instr *i, const struct hd__tensor *const *outs,
                     int32_t axis)
{
    const struct hd__placer w = {.p = (struct hd_program *)p};
    struct placed_op o = {.row = hd__op(i->op), .n_in = i->n_in, .n_out = i->n_out};
    memcpy(o.in, i->in, sizeof o.in);
    memcpy(o.out, outs, i->n_out * sizeof *outs);
    find_labels(&w, &o);
    for (uint32_t c = 0; c < o.n_labels + 2; c++) {
        struct plan plan = {.cost = 0};
        int same = rule(&w, &o, axis, c == 0 ? HD__REPLICATED : c == 1 ? HD__PARTIAL : o.label[c - 2], &plan);
        for (uint32_t n = 0; n < o.n_in && same; n++)
            same = hd__placement_on(hd__tensor_const(p, o.in[n]), axis) == plan.in[n];
        for (uint32_t n = 0; n < o.n_out && same; n++)
            same = hd__placement_on(o.out[n], axis) == plan.out[n];
        if (same)
            return 1;
    }
    return 0;
}
