/* Buffers that hold gradients, as lists of pieces: looking, cutting, writing and adding. */
#include <stdlib.h>

#include "core/verify/grad_reduce_internal.h"

void *hd__verify_grads_create(const struct hd_program *p)
{
    struct hd__verify_grads *o = hd__alloc(sizeof *o);
    o->p = p;
    o->list_of = hd__alloc(p->buffers.count * sizeof *o->list_of);
    o->flat_of = hd__flats_by_shard(p);
    return o;
}

void hd__verify_grads_destroy(void *state)
{
    struct hd__verify_grads *o = state;
    for (uint32_t n = 0; n < o->intervals.count; n++)
        hd__free_array(&o->intervals.at[n]);
    hd__free_array(&o->intervals);
    free(o->list_of);
    free(o->flat_of);
    free(o);
}

const char *hd__verify_grad_name(const struct hd__verify_grads *o, uint32_t param)
{
    return param == HD__INTERVAL_NO_PARAM ? "directions" : hd__tensor_const(o->p, o->p->params.at[param].tensor)->name;
}

hd__verify_intervals *hd__verify_intervals_of(struct hd__verify_grads *o, hd_tensor t, int make)
{
    uint32_t buffer = hd__tensor_const(o->p, t)->buffer;
    if (!o->list_of[buffer] && make) {
        hd__verify_intervals none = {0};
        hd__push(&o->intervals, none);
        o->list_of[buffer] = o->intervals.count;
    }
    return o->list_of[buffer] ? &o->intervals.at[o->list_of[buffer] - 1] : NULL;
}

struct hd__verify_range hd__verify_range_of(const struct hd_program *p, hd_tensor id)
{
    const struct hd__tensor *t = hd__tensor_const(p, id);
    int64_t local = hd__numel(p, t), all = t->param ? local : hd__global_numel(p, t);
    int64_t ways = t->shard_view || !local ? 1 : all / local;
    return (struct hd__verify_range){t->offset * ways, t->offset * ways + all};
}

uint32_t hd__verify_interval_find(const hd__verify_intervals *l, int64_t lo)
{
    uint32_t a = 0, z = l->count;
    while (a < z) {
        uint32_t mid = (a + z) / 2;
        if (l->at[mid].hi <= lo)
            a = mid + 1;
        else
            z = mid;
    }
    return a;
}

static void insert_interval(hd__verify_intervals *l, uint32_t at, struct hd__verify_interval x)
{
    hd__push(l, x);
    memmove(l->at + at + 1, l->at + at, (l->count - 1 - at) * sizeof *l->at);
    l->at[at] = x;
}

void hd__verify_interval_split(hd__verify_intervals *l, int64_t at)
{
    uint32_t n = hd__verify_interval_find(l, at);
    if (n == l->count || l->at[n].lo >= at)
        return;
    struct hd__verify_interval left = l->at[n];
    left.hi = l->at[n].lo = at;
    insert_interval(l, n, left);
}

void hd__verify_interval_erase(hd__verify_intervals *l, struct hd__verify_range r)
{
    hd__verify_interval_split(l, r.lo);
    hd__verify_interval_split(l, r.hi);
    uint32_t from = hd__verify_interval_find(l, r.lo), to = from;
    while (to < l->count && l->at[to].lo < r.hi)
        to++;
    if (to == from) /* also the empty list, whose array is NULL */
        return;
    memmove(l->at + from, l->at + to, (l->count - to) * sizeof *l->at);
    l->count -= to - from;
}

void hd__verify_interval_set(hd__verify_intervals *l, struct hd__verify_interval x)
{
    hd__verify_interval_erase(l, (struct hd__verify_range){x.lo, x.hi});
    insert_interval(l, hd__verify_interval_find(l, x.lo), x);
}

/* Does a strategy keep it from step to step? Then what it had before may stay. */
static int is_strategy_state(const struct hd_program *p, uint32_t buffer)
{
    for (uint32_t n = 0; n < p->zero_init.count; n++)
        if (hd__tensor_const(p, p->zero_init.at[n])->buffer == buffer)
            return 1;
    return 0;
}

/* One piece of what is there gets more: both must owe the same. */
static void add_to_interval(const struct hd__verify_grads *o, struct hd__verify_diags *f,
                            struct hd__verify_interval *has, const struct hd__verify_interval *x)
{
    char first[64], then[64];
    if (has->form != HD__INTERVAL_ZERO && has->unreduced_axes != x->unreduced_axes) {
        hd__axes_text(has->unreduced_axes, first);
        hd__axes_text(x->unreduced_axes, then);
        hd__verify_diag(
            f,
            "%s: accumulated after it was partly reduced: the sum so far is unreduced over [%s], this term over [%s]",
            hd__verify_grad_name(o, x->param), first, then);
    }
    struct hd__verify_interval sum = *x;
    sum.lo = has->lo;
    sum.hi = has->hi;
    sum.value += has->value;
    *has = sum;
}

void hd__verify_interval_add(struct hd__verify_grads *o, struct hd__verify_diags *f, hd_tensor to,
                             struct hd__verify_interval x)
{
    hd__verify_intervals *l = hd__verify_intervals_of(o, to, 1);
    uint32_t n;
    int64_t at = x.lo;
    hd__verify_interval_split(l, x.lo);
    hd__verify_interval_split(l, x.hi);
    for (n = hd__verify_interval_find(l, x.lo); n < l->count && l->at[n].lo < x.hi && l->at[n].lo == at; n++) {
        at = l->at[n].hi;
        add_to_interval(o, f, &l->at[n], &x);
    }
    if (at >= x.hi)
        return;
    if (!is_strategy_state(o->p, hd__tensor_const(o->p, to)->buffer))
        hd__verify_diag(f, "%s: accumulates into a buffer that nothing has zeroed", hd__verify_grad_name(o, x.param));
    hd__verify_interval_set(l, x);
}
