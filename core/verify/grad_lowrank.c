/* Obligations of matrices that travel as products: P = M Q and Q = M^T P stand for all of the matrix that M is, and owe what M
 * owes; P, summed and made orthogonal, gives directions that all members have in common; directions times the summed M^T P
 * is the matrix again. */
#include "core/verify/grad_reduce.h"

/* What it still owes to the ranks with which it travels: stages that share a parameter are summed in the update. */
static uint32_t owed_here(const struct hd__owed_piece *x)
{
    return x->owed & ~HD_AXIS_BIT(HD_AXIS_PP);
}

/* The piece that an operand is; NULL where it is none, or several. */
static const struct hd__owed_piece *one_piece(struct hd__owed *o, hd_tensor t)
{
    const hd__owed_pieces *l = hd__owed_list(o, t, 0);
    struct hd__owed_range r = hd__owed_range_of(o->p, t);
    uint32_t n = l ? hd__owed_first(l, r.lo) : 0;
    return l && n < l->count && l->at[n].lo <= r.lo && l->at[n].hi >= r.hi ? &l->at[n] : NULL;
}

void hd__owed_orthogonalise(struct hd__owed *o, struct hd__faults *f, const struct hd__instr *i)
{
    struct hd__owed_range r = hd__owed_range_of(o->p, i->out[0]);
    const struct hd__owed_piece *from = one_piece(o, i->in[0]);
    struct hd__owed_piece x = from ? *from : (struct hd__owed_piece){.param = HD__OWED_NO_PARAM};
    char owes[64];
    if (owed_here(&x)) {
        hd__axes_text(owed_here(&x), owes);
        hd__fault(f, "directions of %s are taken before its sum over %s", hd__owed_name(o, x.param), owes);
    }
    x.lo = r.lo;
    x.hi = r.hi;
    x.form = HD__OWED_DIRECTIONS;
    hd__owed_set(hd__owed_list(o, i->out[0], 1), x);
}

void hd__owed_multiply(struct hd__owed *o, struct hd__faults *f, const struct hd__instr *i)
{
    const struct hd__owed_piece *a = one_piece(o, i->in[0]), *b = one_piece(o, i->in[1]);
    struct hd__owed_range r = hd__owed_range_of(o->p, i->out[0]);
    struct hd__owed_piece x;
    if (!a)
        return;
    if (hd__reads_output(i, 0))
        hd__fault(f, "%s is added to what was there before", hd__owed_name(o, a->param));
    x = *a;
    x.form = a->form == HD__OWED_DIRECTIONS ? HD__OWED_WHOLE : HD__OWED_PROJECTED;
    if (a->form == HD__OWED_DIRECTIONS && (!b || b->form != HD__OWED_PROJECTED || b->param != a->param))
        hd__fault(f, "%s is not what was projected onto these directions", hd__tc(o->p, i->in[1])->name);
    if (a->form == HD__OWED_PROJECTED ||
        (a->form == HD__OWED_WHOLE && (!b || b->form != HD__OWED_DIRECTIONS || (b->param != a->param && b->param != HD__OWED_NO_PARAM))))
        hd__fault(f, "%s is no product of a gradient with directions of its own", hd__tc(o->p, i->out[0])->name);
    if (a->form == HD__OWED_DIRECTIONS && b)
        x.owed = b->owed;
    x.lo = r.lo;
    x.hi = r.hi;
    hd__owed_set(hd__owed_list(o, i->out[0], 1), x);
}

/* What joins the error of the steps before owes what it owed. */
static void join(struct hd__owed *o, struct hd__faults *f, hd_tensor from, hd_tensor to)
{
    struct hd__owed_range r = hd__owed_range_of(o->p, from), at = hd__owed_range_of(o->p, to);
    const hd__owed_pieces *source;
    hd__owed_list(o, to, 1); /* may move the lists */
    source = hd__owed_list(o, from, 0);
    for (uint32_t n = hd__owed_first(source, r.lo); n < source->count && source->at[n].lo < r.hi; n++) {
        struct hd__owed_piece x = source->at[n];
        x.lo += at.lo - r.lo;
        x.hi += at.lo - r.lo;
        hd__owed_add(o, f, to, x);
    }
}

/* What is taken away again is what travelled, of all members; the rest is an error, and no gradient. */
static void leave(struct hd__owed *o, struct hd__faults *f, hd_tensor from, hd_tensor to)
{
    struct hd__owed_range r = hd__owed_range_of(o->p, from);
    const hd__owed_pieces *l = hd__owed_list(o, from, 0);
    for (uint32_t n = hd__owed_first(l, r.lo); n < l->count && l->at[n].lo < r.hi; n++)
        if (owed_here(&l->at[n])) {
            hd__fault(f, "the error of %s is taken before its sum", hd__owed_name(o, l->at[n].param));
            break;
        }
    if (hd__owed_list(o, to, 0))
        hd__owed_erase(hd__owed_list(o, to, 0), hd__owed_range_of(o->p, to));
}

void hd__owed_blend(struct hd__owed *o, struct hd__faults *f, const struct hd__instr *i)
{
    for (uint32_t k = 0; k < i->n_in && i->attrs && k < i->attrs->n_table; k++)
        if (i->in[k] != i->out[0] && hd__owed_list(o, i->in[k], 0))
            (i->attrs->table[k] < 0 ? leave : join)(o, f, i->in[k], i->out[0]);
}

/* What a strategy keeps from step to step is no gradient any more when the step is over. */
void hd__owed_check_kept(struct hd__owed *o, struct hd__faults *f)
{
    for (uint32_t n = 0; n < o->p->zeros.count; n++) {
        const hd__owed_pieces *l = hd__owed_list(o, o->p->zeros.at[n], 0);
        for (uint32_t k = 0; l && k < l->count; k++)
            if (l->at[k].form == HD__OWED_WHOLE) {
                hd__fault(f, "%s still has the gradient of %s: what travelled was not taken away",
                          hd__tc(o->p, o->p->zeros.at[n])->name, hd__owed_name(o, l->at[k].param));
                return;
            }
    }
}
