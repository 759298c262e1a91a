/* Buffers that hold gradients, as lists of pieces: looking, cutting, writing and adding. */
#include <stdlib.h>

#include "core/verify/grad_reduce.h"

void *hd__owed_create(const struct hd_program *p)
{
    struct hd__owed *o = hd__alloc(sizeof *o);
    o->p = p;
    o->slot = hd__alloc(p->buffers.count * sizeof *o->slot);
    o->flat_of = hd__flats_by_shard(p);
    return o;
}

void hd__owed_destroy(void *state)
{
    struct hd__owed *o = state;
    for (uint32_t n = 0; n < o->lists.count; n++)
        hd__free_array(&o->lists.at[n]);
    hd__free_array(&o->lists);
    free(o->slot);
    free(o->flat_of);
    free(o);
}

const char *hd__owed_name(const struct hd__owed *o, uint32_t param)
{
    return param == HD__OWED_NO_PARAM ? "directions" : hd__tc(o->p, o->p->params.at[param].tensor)->name;
}

hd__owed_pieces *hd__owed_list(struct hd__owed *o, hd_tensor t, int make)
{
    uint32_t buffer = hd__tc(o->p, t)->buffer;
    if (!o->slot[buffer] && make) {
        hd__owed_pieces none = {0};
        hd__push(&o->lists, none);
        o->slot[buffer] = o->lists.count;
    }
    return o->slot[buffer] ? &o->lists.at[o->slot[buffer] - 1] : NULL;
}

struct hd__owed_range hd__owed_range_of(const struct hd_program *p, hd_tensor id)
{
    const struct hd__tensor *t = hd__tc(p, id);
    int64_t local = hd__numel(p, t), all = t->param ? local : hd__global_numel(p, t);
    int64_t ways = t->window || !local ? 1 : all / local;
    return (struct hd__owed_range){t->offset * ways, t->offset * ways + all};
}

uint32_t hd__owed_first(const hd__owed_pieces *l, int64_t lo)
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

static void insert_piece(hd__owed_pieces *l, uint32_t at, struct hd__owed_piece x)
{
    hd__push(l, x);
    memmove(l->at + at + 1, l->at + at, (l->count - 1 - at) * sizeof *l->at);
    l->at[at] = x;
}

void hd__owed_cut(hd__owed_pieces *l, int64_t at)
{
    uint32_t n = hd__owed_first(l, at);
    if (n == l->count || l->at[n].lo >= at)
        return;
    struct hd__owed_piece left = l->at[n];
    left.hi = l->at[n].lo = at;
    insert_piece(l, n, left);
}

void hd__owed_erase(hd__owed_pieces *l, struct hd__owed_range r)
{
    hd__owed_cut(l, r.lo);
    hd__owed_cut(l, r.hi);
    uint32_t from = hd__owed_first(l, r.lo), to = from;
    while (to < l->count && l->at[to].lo < r.hi)
        to++;
    if (to == from) /* also the empty list, whose array is NULL */
        return;
    memmove(l->at + from, l->at + to, (l->count - to) * sizeof *l->at);
    l->count -= to - from;
}

void hd__owed_set(hd__owed_pieces *l, struct hd__owed_piece x)
{
    hd__owed_erase(l, (struct hd__owed_range){x.lo, x.hi});
    insert_piece(l, hd__owed_first(l, x.lo), x);
}

/* Does a strategy keep it from step to step? Then what it had before may stay. */
static int is_kept(const struct hd_program *p, uint32_t buffer)
{
    for (uint32_t n = 0; n < p->zeros.count; n++)
        if (hd__tc(p, p->zeros.at[n])->buffer == buffer)
            return 1;
    return 0;
}

/* One piece of what is there gets more: both must owe the same. */
static void add_to(const struct hd__owed *o, struct hd__faults *f, struct hd__owed_piece *has, const struct hd__owed_piece *x)
{
    char first[64], then[64];
    if (has->form != HD__OWED_CLEARED && has->owed != x->owed) {
        hd__axes_text(has->owed, first);
        hd__axes_text(x->owed, then);
        hd__fault(f, "%s is added to after a part of its reduction: the sum so far owes [%s], this owes [%s]",
                  hd__owed_name(o, x->param), first, then);
    }
    struct hd__owed_piece sum = *x;
    sum.lo = has->lo;
    sum.hi = has->hi;
    sum.value += has->value;
    *has = sum;
}

void hd__owed_add(struct hd__owed *o, struct hd__faults *f, hd_tensor to, struct hd__owed_piece x)
{
    hd__owed_pieces *l = hd__owed_list(o, to, 1);
    uint32_t n;
    int64_t at = x.lo;
    hd__owed_cut(l, x.lo);
    hd__owed_cut(l, x.hi);
    for (n = hd__owed_first(l, x.lo); n < l->count && l->at[n].lo < x.hi && l->at[n].lo == at; n++) {
        at = l->at[n].hi;
        add_to(o, f, &l->at[n], &x);
    }
    if (at >= x.hi)
        return;
    if (!is_kept(o->p, hd__tc(o->p, to)->buffer))
        hd__fault(f, "%s is added to what was there before: nothing has cleared it", hd__owed_name(o, x.param));
    hd__owed_set(l, x);
}
