/* Obligations of matrices that travel as products: P = M Q and Q = M^T P stand for all of the matrix that M is, and
 * owe what M owes; P, summed and made orthogonal, gives directions that all members have in common; directions times
 * the summed M^T P is the matrix again. */
#include "core/verify/grad_reduce_internal.h"

/* Unreduced axes without pp: stages that share a parameter are summed in the update. */
static uint32_t unreduced_here(const struct hd__verify_interval *x)
{
    return x->unreduced_axes & ~HD_AXIS_BIT(HD_AXIS_PP);
}

/* The piece that an operand is; NULL where it is none, or several. */
static const struct hd__verify_interval *single_interval(struct hd__verify_grads *o, hd_tensor t)
{
    const hd__verify_intervals *l = hd__verify_intervals_of(o, t, 0);
    struct hd__verify_range r = hd__verify_range_of(o->p, t);
    uint32_t n = l ? hd__verify_interval_find(l, r.lo) : 0;
    return l && n < l->count && l->at[n].lo <= r.lo && l->at[n].hi >= r.hi ? &l->at[n] : NULL;
}

void hd__verify_lowrank_orthogonalise(struct hd__verify_grads *o, struct hd__verify_diags *f, const struct hd__instr *i)
{
    struct hd__verify_range r = hd__verify_range_of(o->p, i->out[0]);
    const struct hd__verify_interval *from = single_interval(o, i->in[0]);
    struct hd__verify_interval x = from ? *from : (struct hd__verify_interval){.param = HD__INTERVAL_NO_PARAM};
    char owes[64];
    if (unreduced_here(&x)) {
        hd__axes_text(unreduced_here(&x), owes);
        hd__verify_diag(f, "%s: orthogonalised before its all_reduce over %s", hd__verify_grad_name(o, x.param), owes);
    }
    x.lo = r.lo;
    x.hi = r.hi;
    x.form = HD__INTERVAL_ORTHOGONAL;
    hd__verify_interval_set(hd__verify_intervals_of(o, i->out[0], 1), x);
}

void hd__verify_lowrank_multiply(struct hd__verify_grads *o, struct hd__verify_diags *f, const struct hd__instr *i)
{
    const struct hd__verify_interval *a = single_interval(o, i->in[0]), *b = single_interval(o, i->in[1]);
    struct hd__verify_range r = hd__verify_range_of(o->p, i->out[0]);
    struct hd__verify_interval x;
    if (!a)
        return;
    if (hd__reads_output(i, 0))
        hd__verify_diag(f, "%s: accumulates into a buffer that nothing has zeroed", hd__verify_grad_name(o, a->param));
    x = *a;
    x.form = a->form == HD__INTERVAL_ORTHOGONAL ? HD__INTERVAL_GRADIENT : HD__INTERVAL_PROJECTED;
    if (a->form == HD__INTERVAL_ORTHOGONAL && (!b || b->form != HD__INTERVAL_PROJECTED || b->param != a->param))
        hd__verify_diag(f, "%s: low-rank factor and projection do not belong together",
                        hd__tensor_const(o->p, i->in[1])->name);
    if (a->form == HD__INTERVAL_PROJECTED ||
        (a->form == HD__INTERVAL_GRADIENT &&
         (!b || b->form != HD__INTERVAL_ORTHOGONAL || (b->param != a->param && b->param != HD__INTERVAL_NO_PARAM))))
        hd__verify_diag(f, "%s: low-rank factor is not this gradient times its own projection",
                        hd__tensor_const(o->p, i->out[0])->name);
    if (a->form == HD__INTERVAL_ORTHOGONAL && b)
        x.unreduced_axes = b->unreduced_axes;
    x.lo = r.lo;
    x.hi = r.hi;
    hd__verify_interval_set(hd__verify_intervals_of(o, i->out[0], 1), x);
}

/* Error feedback: the error of earlier steps and the gradient, each once, less a member's share of the sum over all
 * members. */
static void check_factor(struct hd__verify_diags *f, hd_tensor t, double is, double wanted)
{
    if (!(is > wanted - 1e-9 && is < wanted + 1e-9))
        hd__verify_diag(f, "error feedback has %g of %s, not %g", is, hd__tensor_const(f->p, t)->name, wanted);
}

/* Adds a gradient to the error feedback of earlier steps, or the other way round: both must be unreduced over the same
 * axes. */
static void add_feedback(struct hd__verify_grads *o, struct hd__verify_diags *f, hd_tensor from, hd_tensor to,
                         double factor)
{
    struct hd__verify_range r = hd__verify_range_of(o->p, from), at = hd__verify_range_of(o->p, to);
    const hd__verify_intervals *source;
    check_factor(f, from, factor, 1);
    hd__verify_intervals_of(o, to, 1); /* may move the lists */
    source = hd__verify_intervals_of(o, from, 0);
    for (uint32_t n = hd__verify_interval_find(source, r.lo); n < source->count && source->at[n].lo < r.hi; n++) {
        struct hd__verify_interval x = source->at[n];
        x.lo += at.lo - r.lo;
        x.hi += at.lo - r.lo;
        hd__verify_interval_add(o, f, to, x);
    }
}

/* Subtracts the low-rank part that was reduced over all members: the rest is error feedback, and no gradient. */
static void subtract_sent(struct hd__verify_grads *o, struct hd__verify_diags *f, hd_tensor from, hd_tensor to,
                          double factor)
{
    struct hd__verify_range r = hd__verify_range_of(o->p, from);
    const hd__verify_intervals *l = hd__verify_intervals_of(o, from, 0);
    for (uint32_t n = hd__verify_interval_find(l, r.lo); n < l->count && l->at[n].lo < r.hi; n++)
        if (unreduced_here(&l->at[n])) {
            hd__verify_diag(f, "%s: error feedback computed before its all_reduce",
                            hd__verify_grad_name(o, l->at[n].param));
            break;
        }
    l = hd__verify_intervals_of(o, to, 0);
    if (!l || !l->count)
        return;
    check_factor(f, from, factor, -1 / (double)hd__mesh_ways(&o->p->mesh, unreduced_here(&l->at[0])));
    hd__verify_interval_erase(hd__verify_intervals_of(o, to, 0), hd__verify_range_of(o->p, to));
}

void hd__verify_lowrank_blend(struct hd__verify_grads *o, struct hd__verify_diags *f, const struct hd__instr *i)
{
    uint32_t n = i->attrs ? HD__MIN(i->n_in, (uint32_t)i->attrs->n_table) : 0;
    int feeds_back = 0;
    for (uint32_t k = 0; k < n; k++)
        if (i->in[k] != i->out[0] && hd__verify_intervals_of(o, i->in[k], 0)) {
            double factor = i->attrs->table[k];
            (factor < 0 ? subtract_sent : add_feedback)(o, f, i->in[k], i->out[0], factor);
            feeds_back = 1;
        }
    for (uint32_t k = 0; k < n && feeds_back; k++)
        if (i->in[k] == i->out[0])
            check_factor(f, i->in[k], i->attrs->table[k], 1);
}

/* State that a strategy keeps across steps holds no gradient when the step is over. */
void hd__verify_lowrank_check_state(struct hd__verify_grads *o, struct hd__verify_diags *f)
{
    for (uint32_t n = 0; n < o->p->zero_init.count; n++) {
        const hd__verify_intervals *l = hd__verify_intervals_of(o, o->p->zero_init.at[n], 0);
        for (uint32_t k = 0; l && k < l->count; k++)
            if (l->at[k].form == HD__INTERVAL_GRADIENT) {
                hd__verify_diag(f, "%s: error feedback of %s does not subtract the low-rank part that was reduced",
                                hd__tensor_const(o->p, o->p->zero_init.at[n])->name,
                                hd__verify_grad_name(o, l->at[k].param));
                return;
            }
    }
}
