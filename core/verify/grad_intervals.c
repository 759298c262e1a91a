/* Buffers that hold gradients, as lists of pieces: looking, cutting, writing and adding. */
#include "core/verify/verify.h"

const char *hd__gradient_name(const struct hd__walk *w, uint32_t param)
{
    return param == HD__NO_PARAM ? "directions" : hd__name_of(w, w->p->params.at[param].tensor);
}

hd__gradients *hd__gradients_of(struct hd__walk *w, hd_tensor t, int make)
{
    struct hd__buffer_state *b = &w->buffer[hd__tensor_const(w->p, t)->buffer];
    b->has_gradients |= make;
    return b->has_gradients ? &b->gradients : NULL;
}

struct hd__range hd__range_of(const struct hd_program *p, hd_tensor id)
{
    const struct hd__tensor *t = hd__tensor_const(p, id);
    int64_t local = hd__numel(p, t), all = t->param ? local : hd__global_numel(p, t);
    int64_t ways = t->shard_view || !local ? 1 : all / local;
    return (struct hd__range){t->offset * ways, t->offset * ways + all};
}

uint32_t hd__gradient_find(const hd__gradients *l, int64_t lo)
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

static void insert_interval(hd__gradients *l, uint32_t at, struct hd__gradient x)
{
    hd__push(l, x);
    memmove(l->at + at + 1, l->at + at, (l->count - 1 - at) * sizeof *l->at);
    l->at[at] = x;
}

void hd__gradient_split(hd__gradients *l, int64_t at)
{
    uint32_t n = hd__gradient_find(l, at);
    if (n == l->count || l->at[n].lo >= at)
        return;
    struct hd__gradient left = l->at[n];
    left.hi = l->at[n].lo = at;
    insert_interval(l, n, left);
}

void hd__gradient_erase(hd__gradients *l, struct hd__range r)
{
    hd__gradient_split(l, r.lo);
    hd__gradient_split(l, r.hi);
    uint32_t from = hd__gradient_find(l, r.lo), to = from;
    while (to < l->count && l->at[to].lo < r.hi)
        to++;
    if (to == from) /* also the empty list, whose array is NULL */
        return;
    memmove(l->at + from, l->at + to, (l->count - to) * sizeof *l->at);
    l->count -= to - from;
}

void hd__gradient_set(hd__gradients *l, struct hd__gradient x)
{
    hd__gradient_erase(l, (struct hd__range){x.lo, x.hi});
    insert_interval(l, hd__gradient_find(l, x.lo), x);
}

/* One piece of what is there gets more: both must owe the same. */
static void add_to_interval(struct hd__walk *w, struct hd__gradient *has, const struct hd__gradient *x)
{
    if (has->form != HD__GRADIENT_ZERO && has->unreduced_axes != x->unreduced_axes) {
        hd__diag(
            w,
            "%s: accumulated after it was partly reduced: the sum so far is unreduced over [%s], this term over [%s]",
            hd__gradient_name(w, x->param), hd__axes(has->unreduced_axes), hd__axes(x->unreduced_axes));
    }
    struct hd__gradient sum = *x;
    sum.lo = has->lo;
    sum.hi = has->hi;
    sum.value += has->value;
    *has = sum;
}

void hd__gradient_add(struct hd__walk *w, hd_tensor to, struct hd__gradient x)
{
    hd__gradients *l = hd__gradients_of(w, to, 1);
    uint32_t n;
    int64_t at = x.lo;
    hd__gradient_split(l, x.lo);
    hd__gradient_split(l, x.hi);
    for (n = hd__gradient_find(l, x.lo); n < l->count && l->at[n].lo < x.hi && l->at[n].lo == at; n++) {
        at = l->at[n].hi;
        add_to_interval(w, &l->at[n], &x);
    }
    if (at >= x.hi)
        return;
    if (!w->buffer[hd__tensor_const(w->p, to)->buffer].zero_init)
        hd__diag(w, "%s: accumulates into a buffer that nothing has zeroed", hd__gradient_name(w, x.param));
    hd__gradient_set(l, x);
}
