/* Obligations of matrices that travel as products: P = M Q and Q = M^T P stand for all of the matrix that M is, and
 * owe what M owes; P, summed and made orthogonal, gives directions that all members have in common; directions times
 * the summed M^T P is the matrix again. */
#include "core/verify/verify.h"

/* Unreduced axes without pp: stages that share a parameter are summed in the update. */
static uint32_t unreduced_here(const struct hd__gradient *x)
{
    return x->unreduced_axes & ~HD_AXIS_BIT(HD_AXIS_PP);
}

/* The piece that an operand is; NULL where it is none, or several. */
static const struct hd__gradient *single_interval(struct hd__walk *w, hd_tensor t)
{
    const hd__gradients *l = hd__gradients_of(w, t, 0);
    struct hd__range r = hd__range_of(w->p, t);
    uint32_t n = l ? hd__gradient_find(l, r.lo) : 0;
    return l && n < l->count && l->at[n].lo <= r.lo && l->at[n].hi >= r.hi ? &l->at[n] : NULL;
}

void hd__lowrank_orthogonalise(struct hd__walk *w, const struct hd__instr *i)
{
    struct hd__range r = hd__range_of(w->p, i->out[0]);
    const struct hd__gradient *from = single_interval(w, i->in[0]);
    struct hd__gradient x = from ? *from : (struct hd__gradient){.param = HD__NO_PARAM};
    if (unreduced_here(&x))
        hd__diag(w, "%s: orthogonalised before its all_reduce over %s", hd__gradient_name(w, x.param),
                 hd__axes(unreduced_here(&x)));
    x.lo = r.lo;
    x.hi = r.hi;
    x.form = HD__GRADIENT_ORTHOGONAL;
    hd__gradient_set(hd__gradients_of(w, i->out[0], 1), x);
}

void hd__lowrank_multiply(struct hd__walk *w, const struct hd__instr *i)
{
    const struct hd__gradient *a = single_interval(w, i->in[0]), *b = single_interval(w, i->in[1]);
    struct hd__range r = hd__range_of(w->p, i->out[0]);
    struct hd__gradient x;
    if (!a)
        return;
    if (hd__reads_output(i, 0))
        hd__diag(w, "%s: accumulates into a buffer that nothing has zeroed", hd__gradient_name(w, a->param));
    x = *a;
    x.form = a->form == HD__GRADIENT_ORTHOGONAL ? HD__GRADIENT_WHOLE : HD__GRADIENT_PROJECTED;
    if (a->form == HD__GRADIENT_ORTHOGONAL && (!b || b->form != HD__GRADIENT_PROJECTED || b->param != a->param))
        hd__diag(w, "%s: low-rank factor and projection do not belong together", hd__name_of(w, i->in[1]));
    if (a->form == HD__GRADIENT_PROJECTED ||
        (a->form == HD__GRADIENT_WHOLE &&
         (!b || b->form != HD__GRADIENT_ORTHOGONAL || (b->param != a->param && b->param != HD__NO_PARAM))))
        hd__diag(w, "%s: low-rank factor is not this gradient times its own projection", hd__name_of(w, i->out[0]));
    if (a->form == HD__GRADIENT_ORTHOGONAL && b)
        x.unreduced_axes = b->unreduced_axes;
    x.lo = r.lo;
    x.hi = r.hi;
    hd__gradient_set(hd__gradients_of(w, i->out[0], 1), x);
}

/* Error feedback: the error of earlier steps and the gradient, each once, less a member's share of the sum over all
 * members. */
static void check_factor(struct hd__walk *w, hd_tensor t, double is, double wanted)
{
    if (!(is > wanted - 1e-9 && is < wanted + 1e-9))
        hd__diag(w, "error feedback has %g of %s, not %g", is, hd__name_of(w, t), wanted);
}

/* Adds a gradient to the error feedback of earlier steps, or the other way round: both must be unreduced over the same
 * axes. */
static void add_feedback(struct hd__walk *w, hd_tensor from, hd_tensor to, double factor)
{
    struct hd__range r = hd__range_of(w->p, from), at = hd__range_of(w->p, to);
    const hd__gradients *source = hd__gradients_of(w, from, 0);
    check_factor(w, from, factor, 1);
    for (uint32_t n = hd__gradient_find(source, r.lo); n < source->count && source->at[n].lo < r.hi; n++) {
        struct hd__gradient x = source->at[n];
        x.lo += at.lo - r.lo;
        x.hi += at.lo - r.lo;
        hd__gradient_add(w, to, x);
    }
}

/* Subtracts the low-rank part that was reduced over all members: the rest is error feedback, and no gradient. */
static void subtract_sent(struct hd__walk *w, hd_tensor from, hd_tensor to, double factor)
{
    struct hd__range r = hd__range_of(w->p, from);
    const hd__gradients *l = hd__gradients_of(w, from, 0);
    for (uint32_t n = hd__gradient_find(l, r.lo); n < l->count && l->at[n].lo < r.hi; n++)
        if (unreduced_here(&l->at[n])) {
            hd__diag(w, "%s: error feedback computed before its all_reduce", hd__gradient_name(w, l->at[n].param));
            break;
        }
    l = hd__gradients_of(w, to, 0);
    if (!l || !l->count)
        return;
    check_factor(w, from, factor, -1 / (double)hd__mesh_ways(&w->p->mesh, unreduced_here(&l->at[0])));
    hd__gradient_erase(hd__gradients_of(w, to, 0), hd__range_of(w->p, to));
}

void hd__lowrank_blend(struct hd__walk *w, const struct hd__instr *i)
{
    uint32_t n = i->attrs ? HD__MIN(i->n_in, (uint32_t)i->attrs->n_table) : 0;
    int feeds_back = 0, adds = 0;
    struct hd__range r = hd__range_of(w->p, i->out[0]);
    for (uint32_t k = 0; k < n; k++) {
        adds |= i->in[k] == i->out[0];
        feeds_back |= i->in[k] != i->out[0] && hd__gradients_of(w, i->in[k], 0);
    }
    if (!adds && feeds_back) /* overwritten: a sum of its inputs */
        hd__gradient_set(
            hd__gradients_of(w, i->out[0], 1),
            (struct hd__gradient){.lo = r.lo, .hi = r.hi, .param = HD__NO_PARAM, .form = HD__GRADIENT_ZERO});
    for (uint32_t k = 0; k < n; k++)
        if (i->in[k] != i->out[0] && hd__gradients_of(w, i->in[k], 0))
            (i->attrs->table[k] < 0 ? subtract_sent : add_feedback)(w, i->in[k], i->out[0], i->attrs->table[k]);
    for (uint32_t k = 0; k < n && feeds_back; k++)
        if (i->in[k] == i->out[0])
            check_factor(w, i->in[k], i->attrs->table[k], 1);
}

/* State that a strategy keeps across steps holds no gradient when the step is over. */
void hd__lowrank_check_state(struct hd__walk *w)
{
    for (uint32_t n = 0; n < w->p->facts.count; n++) {
        const hd__gradients *l = hd__gradients_of(w, w->p->facts.at[n].tensor, 0);
        for (uint32_t k = 0; l && k < l->count; k++)
            if (l->at[k].form == HD__GRADIENT_WHOLE) {
                hd__diag(w, "%s: error feedback of %s does not subtract the low-rank part that was reduced",
                         hd__name_of(w, w->p->facts.at[n].tensor), hd__gradient_name(w, l->at[k].param));
                return;
            }
    }
}
