/* Obligations by abstract interpretation. A weight gradient comes out as a partial sum over some axes; each
 * must be summed over exactly once before the optimizer reads it, and every micro-batch must have added what it was
 * lowered to add (terms.c). So every buffer that holds gradients is a list of pieces, in elements of the whole flat
 * buffer: which parameter, the axes still owed, and of how many terms. A shard stands for the whole flat: all ranks'
 * shards are alike. */
#include <stdlib.h>

#include "core/program/verify.h"

struct piece {
    int64_t lo, hi; /* of codes too: which elements they stand for */
    uint32_t param; /* index into hd_program.params */
    uint32_t owed;
    uint32_t brought; /* codes: axes whose members' parts are here, to be summed when they are decoded */
    uint32_t form;    /* CLEARED: zeros; of a matrix also: */
    uint32_t terms;   /* of a step, all micro-batches */
};

enum { WHOLE = 0, PROJECTED, DIRECTIONS, CLEARED }; /* its product with another; the same at right angles, equal on all */

typedef HD__ARRAY(struct piece) pieces; /* sorted, disjoint */

struct hd__owed {
    const struct hd_program *p;
    uint32_t *slot; /* by buffer: index + 1 into lists */
    HD__ARRAY(pieces) lists;
    uint32_t *flat_of; /* by tensor: the flat, index + 1, whose shard it is */
};

struct range {
    int64_t lo, hi;
};

struct hd__owed *hd__owed_new(const struct hd_program *p)
{
    struct hd__owed *o = hd__alloc(sizeof *o);
    o->p = p;
    o->slot = hd__alloc(p->buffers.count * sizeof *o->slot);
    o->flat_of = hd__alloc(p->tensors.count * sizeof *o->flat_of);
    for (uint32_t f = 0; f < p->flats.count; f++)
        o->flat_of[p->flats.at[f].shard] = f + 1;
    o->flat_of[0] = 0;
    return o;
}

void hd__owed_free(struct hd__owed *o)
{
    for (uint32_t n = 0; n < o->lists.count; n++)
        hd__free_array(&o->lists.at[n]);
    hd__free_array(&o->lists);
    free(o->slot);
    free(o->flat_of);
    free(o);
}

#define NO_PARAM UINT32_MAX /* directions that nothing was projected onto yet */

static const char *name_of(const struct hd__owed *o, uint32_t param)
{
    return param == NO_PARAM ? "directions" : hd__tc(o->p, o->p->params.at[param].tensor)->name;
}

/* ---- pieces */

static pieces *list_of(struct hd__owed *o, hd_tensor t, int make)
{
    uint32_t buffer = hd__tc(o->p, t)->buffer;
    if (!o->slot[buffer] && make) {
        pieces none = {0};
        hd__push(&o->lists, none);
        o->slot[buffer] = o->lists.count;
    }
    return o->slot[buffer] ? &o->lists.at[o->slot[buffer] - 1] : NULL;
}

/* Elements of the whole flat buffer that a tensor stands for. */
static struct range range_of(const struct hd_program *p, hd_tensor id)
{
    const struct hd__tensor *t = hd__tc(p, id);
    int64_t local = hd__numel(p, t), all = t->param ? local : hd__global_numel(p, t);
    int64_t ways = t->window || !local ? 1 : all / local;
    return (struct range){t->offset * ways, t->offset * ways + all};
}

static uint32_t first_in(const pieces *l, int64_t lo)
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

static void insert_piece(pieces *l, uint32_t at, struct piece x)
{
    hd__push(l, x);
    memmove(l->at + at + 1, l->at + at, (l->count - 1 - at) * sizeof *l->at);
    l->at[at] = x;
}

/* No piece crosses `at` afterwards. */
static void cut(pieces *l, int64_t at)
{
    uint32_t n = first_in(l, at);
    if (n == l->count || l->at[n].lo >= at)
        return;
    struct piece left = l->at[n];
    left.hi = l->at[n].lo = at;
    insert_piece(l, n, left);
}

static void erase(pieces *l, struct range r)
{
    cut(l, r.lo);
    cut(l, r.hi);
    uint32_t from = first_in(l, r.lo), to = from;
    while (to < l->count && l->at[to].lo < r.hi)
        to++;
    if (to == from) /* also the empty list, whose array is NULL */
        return;
    memmove(l->at + from, l->at + to, (l->count - to) * sizeof *l->at);
    l->count -= to - from;
}

static void set(pieces *l, struct piece x)
{
    erase(l, (struct range){x.lo, x.hi});
    insert_piece(l, first_in(l, x.lo), x);
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
static void add_to(const struct hd__owed *o, struct hd__faults *f, struct piece *has, const struct piece *x)
{
    char first[64], then[64];
    if (has->form != CLEARED && has->owed != x->owed) {
        hd__axes_text(has->owed, first);
        hd__axes_text(x->owed, then);
        hd__fault(f, "%s is added to after a part of its reduction: the sum so far owes [%s], this owes [%s]",
                  name_of(o, x->param), first, then);
    }
    struct piece sum = *x;
    sum.lo = has->lo;
    sum.hi = has->hi;
    sum.terms += has->terms;
    *has = sum;
}

/* Adding to what is in this tensor's memory. */
static void add(struct hd__owed *o, struct hd__faults *f, hd_tensor to, struct piece x)
{
    pieces *l = list_of(o, to, 1);
    uint32_t n;
    int64_t at = x.lo;
    cut(l, x.lo);
    cut(l, x.hi);
    for (n = first_in(l, x.lo); n < l->count && l->at[n].lo < x.hi && l->at[n].lo == at; n++) {
        at = l->at[n].hi;
        add_to(o, f, &l->at[n], &x);
    }
    if (at >= x.hi)
        return;
    if (!is_kept(o->p, hd__tc(o->p, to)->buffer))
        hd__fault(f, "%s is added to what was there before: nothing has cleared it", name_of(o, x.param));
    set(l, x);
}

/* ---- instructions */

/* Where ranks are apart each keeps its own. */
static uint32_t obligation(const struct hd_program *p, const struct hd__param *param)
{
    int tied = __builtin_popcount(param->stages) > 1;
    return (param->obligation & ~p->apart) | (tied ? HD_AXIS_BIT(HD_AXIS_PP) : 0);
}

/* A gradient joins its flat buffer. */
static void contribute(struct hd__owed *o, struct hd__faults *f, const struct hd__instr *i, uint32_t k)
{
    hd_tensor out = i->out[k];
    uint32_t param = hd__tc(o->p, out)->param - 1;
    struct range r = range_of(o->p, out);
    struct piece x = {.lo = r.lo, .hi = r.hi, .param = param, .owed = obligation(o->p, &o->p->params.at[param]), .terms = f->terms[k]};
    if (i->op == HD_OP_ACCUM && hd__tc(o->p, i->in[0])->place.partial != o->p->params.at[param].obligation) {
        char has[64], owes[64];
        hd__axes_text(hd__tc(o->p, i->in[0])->place.partial, has);
        hd__axes_text(o->p->params.at[param].obligation, owes);
        hd__fault(f, "the contribution to %s is partial over [%s], its obligation is [%s]",
                  hd__tc(o->p, o->p->params.at[param].tensor)->name, has, owes);
    }
    if (hd__reads_output(i, k))
        add(o, f, out, x);
    else
        set(list_of(o, out, 1), x);
}

/* Axes over which an instruction sums x. */
static uint32_t summed(const struct hd__instr *i, const struct piece *x)
{
    if (i->op == HD_OP_DECODE)
        return x->brought;
    return i->op == HD_OP_ALL_REDUCE || i->op == HD_OP_REDUCE_SCATTER ? i->axes : 0;
}

/* What a reduction leaves of what x owes. */
static uint32_t reduced(struct hd__owed *o, struct hd__faults *f, const struct hd__instr *i,
                        const struct piece *x)
{
    uint32_t axes = x->form == CLEARED ? 0 : summed(i, x);
    char twice[64];
    if (axes & ~x->owed) {
        hd__axes_text(axes & ~x->owed, twice);
        hd__fault(f, "%s is summed twice over %s", name_of(o, x->param),
                  twice);
    }
    return x->owed & ~axes;
}

/* Bytes of codes have no elements of their own: a buffer of codes stands for what was encoded into it. */
static struct range span_of(const struct hd_program *p, hd_tensor t)
{
    return hd__tc(p, t)->dtype == HD_U8 ? (struct range){0, INT64_MAX} : range_of(p, t);
}

/* Gradients go from one buffer into another, or back into the same. */
static void move(struct hd__owed *o, struct hd__faults *f, const struct hd__instr *i)
{
    struct range from = span_of(o->p, i->in[0]), to = span_of(o->p, i->out[0]);
    pieces taken = {0}, *source;
    if (!list_of(o, i->in[0], 0))
        return;
    list_of(o, i->out[0], 1); /* may move the lists */
    source = list_of(o, i->in[0], 0);
    cut(source, from.lo);
    cut(source, from.hi);
    for (uint32_t n = first_in(source, from.lo); n < source->count && source->at[n].lo < from.hi; n++) {
        struct piece x = source->at[n];
        x.owed = reduced(o, f, i, &x);
        x.brought = i->op == HD_OP_ALL_TO_ALL ? i->axes : i->op == HD_OP_DECODE ? 0 : x.brought;
        if (i->op != HD_OP_ENCODE && i->op != HD_OP_DECODE) {
            x.lo += to.lo - from.lo;
            x.hi += to.lo - from.lo;
        }
        hd__push(&taken, x);
    }
    if (i->op != HD_OP_ACCUM)
        erase(list_of(o, i->out[0], 0), to);
    for (uint32_t n = 0; n < taken.count; n++)
        if (i->op == HD_OP_ACCUM)
            add(o, f, i->out[0], taken.at[n]);
        else
            set(list_of(o, i->out[0], 0), taken.at[n]);
    hd__free_array(&taken);
}

/* ---- matrices that travel as products: P = M Q and Q = M^T P stand for all of the matrix that M is, and owe what M owes;
 * P, summed and made orthogonal, gives directions that all members have in common; directions times the summed M^T P is
 * the matrix again. */

/* What it still owes to the ranks with which it travels: stages that share a parameter are summed in the update. */
static uint32_t owed_here(const struct piece *x)
{
    return x->owed & ~HD_AXIS_BIT(HD_AXIS_PP);
}

/* The piece that an operand is; NULL where it is none, or several. */
static const struct piece *one_piece(struct hd__owed *o, hd_tensor t)
{
    const pieces *l = list_of(o, t, 0);
    struct range r = range_of(o->p, t);
    uint32_t n = l ? first_in(l, r.lo) : 0;
    return l && n < l->count && l->at[n].lo <= r.lo && l->at[n].hi >= r.hi ? &l->at[n] : NULL;
}

static void orthogonalise(struct hd__owed *o, struct hd__faults *f, const struct hd__instr *i)
{
    struct range r = range_of(o->p, i->out[0]);
    const struct piece *from = one_piece(o, i->in[0]);
    struct piece x = from ? *from : (struct piece){.param = NO_PARAM};
    char owes[64];
    if (owed_here(&x)) {
        hd__axes_text(owed_here(&x), owes);
        hd__fault(f, "directions of %s are taken before its sum over %s", name_of(o, x.param), owes);
    }
    x.lo = r.lo;
    x.hi = r.hi;
    x.form = DIRECTIONS;
    set(list_of(o, i->out[0], 1), x);
}

static void multiply(struct hd__owed *o, struct hd__faults *f, const struct hd__instr *i)
{
    const struct piece *a = one_piece(o, i->in[0]), *b = one_piece(o, i->in[1]);
    struct range r = range_of(o->p, i->out[0]);
    struct piece x;
    if (!a)
        return;
    if (hd__reads_output(i, 0))
        hd__fault(f, "%s is added to what was there before", name_of(o, a->param));
    x = *a;
    x.form = a->form == DIRECTIONS ? WHOLE : PROJECTED;
    if (a->form == DIRECTIONS && (!b || b->form != PROJECTED || b->param != a->param))
        hd__fault(f, "%s is not what was projected onto these directions", hd__tc(o->p, i->in[1])->name);
    if (a->form == PROJECTED ||
        (a->form == WHOLE && (!b || b->form != DIRECTIONS || (b->param != a->param && b->param != NO_PARAM))))
        hd__fault(f, "%s is no product of a gradient with directions of its own", hd__tc(o->p, i->out[0])->name);
    if (a->form == DIRECTIONS && b)
        x.owed = b->owed;
    x.lo = r.lo;
    x.hi = r.hi;
    set(list_of(o, i->out[0], 1), x);
}

/* What joins the error of the steps before owes what it owed. */
static void join(struct hd__owed *o, struct hd__faults *f, hd_tensor from, hd_tensor to)
{
    struct range r = range_of(o->p, from), at = range_of(o->p, to);
    const pieces *source;
    list_of(o, to, 1); /* may move the lists */
    source = list_of(o, from, 0);
    for (uint32_t n = first_in(source, r.lo); n < source->count && source->at[n].lo < r.hi; n++) {
        struct piece x = source->at[n];
        x.lo += at.lo - r.lo;
        x.hi += at.lo - r.lo;
        add(o, f, to, x);
    }
}

/* What is taken away again is what travelled, of all members; the rest is an error, and no gradient. */
static void leave(struct hd__owed *o, struct hd__faults *f, hd_tensor from, hd_tensor to)
{
    struct range r = range_of(o->p, from);
    const pieces *l = list_of(o, from, 0);
    for (uint32_t n = first_in(l, r.lo); n < l->count && l->at[n].lo < r.hi; n++)
        if (owed_here(&l->at[n])) {
            hd__fault(f, "the error of %s is taken before its sum", name_of(o, l->at[n].param));
            break;
        }
    if (list_of(o, to, 0))
        erase(list_of(o, to, 0), range_of(o->p, to));
}

static void blend(struct hd__owed *o, struct hd__faults *f, const struct hd__instr *i)
{
    for (uint32_t k = 0; k < i->n_in && i->attrs && k < i->attrs->n_table; k++)
        if (i->in[k] != i->out[0] && list_of(o, i->in[k], 0))
            (i->attrs->table[k] < 0 ? leave : join)(o, f, i->in[k], i->out[0]);
}

/* What a strategy keeps from step to step is no gradient any more when the step is over. */
static void check_kept(struct hd__owed *o, struct hd__faults *f)
{
    for (uint32_t n = 0; n < o->p->zeros.count; n++) {
        const pieces *l = list_of(o, o->p->zeros.at[n], 0);
        for (uint32_t k = 0; l && k < l->count; k++)
            if (l->at[k].form == WHOLE) {
                hd__fault(f, "%s still has the gradient of %s: what travelled was not taken away",
                          hd__tc(o->p, o->p->zeros.at[n])->name, name_of(o, l->at[k].param));
                return;
            }
    }
}

/* What is wrong with the piece that the optimizer finds where a parameter's gradient should be; NULL is no piece. */
static void blame(const struct hd__owed *o, struct hd__faults *f, const struct hd__param *param, const struct piece *x)
{
    const char *name = hd__tc(o->p, param->tensor)->name;
    char axes[64];
    if (!x || x->form == CLEARED) {
        hd__fault(f, "%s has no gradient", name);
    } else if (x->owed) {
        hd__axes_text(x->owed, axes);
        hd__fault(f, "%s still owes a sum over %s", name, axes);
    } else {
        hd__fault(f, "the gradient of %s has %u terms, and its micro-batches make %u", name, x->terms, param->terms);
    }
}

/* The optimizer reads: all of every parameter must be there, with nothing owed. */
static void update(struct hd__owed *o, struct hd__faults *f, const struct hd__instr *i)
{
    const struct hd__flat *flat = &o->p->flats.at[o->flat_of[i->in[0]] - 1];
    const pieces *l = list_of(o, i->in[0], 0);
    int64_t base = range_of(o->p, i->in[0]).lo;
    for (uint32_t k = 0; k < flat->n_params; k++) {
        const struct hd__param *param = &o->p->params.at[flat->params[k]];
        int64_t at = base + flat->offset[k], end = at + hd__numel(o->p, hd__tc(o->p, param->tensor));
        const struct piece *x = l && l->count ? l->at + first_in(l, at) : NULL, *past = x ? l->at + l->count : NULL;
        while (at < end && x < past && x->lo <= at && x->form != CLEARED && !x->owed && x->terms == param->terms)
            at = x++->hi;
        if (at < end)
            blame(o, f, param, x < past && x->lo <= at ? x : NULL);
    }
}

void hd__owed_step(struct hd__owed *o, struct hd__faults *f, const struct hd__instr *i)
{
    if (i->op == HD_OP_FILL0) {
        struct range r = range_of(o->p, i->out[0]);
        set(list_of(o, i->out[0], 1), (struct piece){.lo = r.lo, .hi = r.hi, .param = NO_PARAM, .form = CLEARED});
        return;
    }
    if (i->op == HD_OP_RELEASE) {
        hd_tensor t = hd__instr_tensor(i);
        if (list_of(o, t, 0))
            erase(list_of(o, t, 0), range_of(o->p, t));
        return;
    }
    if (hd__op(i->op)->class == HD__CLASS_UPDATE) {
        if (i->n_in && o->flat_of[i->in[0]])
            update(o, f, i);
        check_kept(o, f);
        return;
    }
    if (i->op == HD_OP_BLEND) {
        blend(o, f, i);
        return;
    }
    for (uint32_t k = 0; k < i->n_out; k++)
        if (hd__tc(o->p, i->out[k])->param)
            contribute(o, f, i, k);
        else if (i->op == HD_OP_ORTHOGONALISE)
            orthogonalise(o, f, i);
        else if (i->op == HD_OP_EINSUM)
            multiply(o, f, i);
        else if (k == 0 && i->n_in)
            move(o, f, i);
}
