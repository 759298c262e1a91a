/* Numbers beside the operands that instructions of a step must agree on: the factor of the loss and of its gradient,
 * the loss scale, what all updates have in common, each parameter's weight decay, random numbers. */
#include "core/verify/verify.h"

/* ---- the loss and its gradient */

/* The logical instruction that sums losses of `terms` up; NULL if there is none. */
static const struct hd__instr *find_total(const struct hd_program *p, hd_tensor terms)
{
    for (uint32_t k = 0; k < p->forward; k++)
        if (p->logical.at[k].op == HD_OP_TOTAL && p->logical.at[k].in[0] == terms && p->logical.at[k].attrs)
            return &p->logical.at[k];
    return NULL;
}

/* The gradient of a loss begins with that loss's factor; replicas that take local steps divide by their own tokens. */
static void check_seed(struct hd__walk *w, const struct hd__instr *i)
{
    const struct hd_program *p = w->p;
    int fused = i->op == HD_OP_XENT_HEAD;
    const struct hd__tensor *out = hd__tensor_const(p, i->out[0]);
    const struct hd__instr *total = find_total(p, fused ? out->origin : out->grad_of);
    double wanted = total ? total->attrs->scale * (double)hd__replicas(p) : 0;
    hd_tensor factor = i->n_in > (fused ? 3 : 0) ? i->in[i->n_in - 1] : 0;
    if (total && (!i->attrs || i->attrs->scale != wanted))
        hd__diag(w, "the gradient of the loss begins with %g, not with %g", i->attrs ? i->attrs->scale : 0, wanted);
    if (factor != (total && total->out[0] != p->loss ? p->auxiliary_scale : p->scale))
        hd__diag(w, p->scale ? "%s is not multiplied by its loss's scale" : "%s is multiplied by a loss scale",
                 out->name);
}

/* The loss is the mean over the tokens of all micro-batches. */
static void finish(struct hd__walk *w)
{
    const struct hd_program *p = w->p;
    for (uint32_t k = 0; k < p->forward; k++) {
        const struct hd__instr *i = &p->logical.at[k];
        double sequences = (double)hd__step_sequences(p);
        double tokens = sequences * (double)p->dims.at[p->letter['s']].extent;
        if (i->op == HD_OP_TOTAL && i->out[0] == p->loss && p->ids && i->attrs &&
            !(i->attrs->scale * tokens > 1 - 1e-9 && i->attrs->scale * tokens < 1 + 1e-9))
            hd__diag(w, "the loss is a sum over %g tokens, divided by %g", tokens, 1 / i->attrs->scale);
    }
}

/* ---- updates */

/* attrs.index: the seed of random numbers; of an optimizer's own step the number of its states. */
static int index_fits(const struct hd__walk *w, const struct hd__instr *i, const struct hd__flat *flat)
{
    if (i->op == HD_OP_OPTIM_STEP)
        return !flat || i->attrs->index == flat->n_states;
    return i->attrs->flags & HD_ATTR_STOCHASTIC || i->attrs->index == w->p->update_rule->index;
}

/* All updates are the optimizer's, but for ranges and random numbers. */
static void check_rule(struct hd__walk *w, const struct hd__instr *i, const struct hd__flat *flat)
{
    const struct hd_attrs *a = i->attrs, *b = w->p->update_rule;
    if (w->p->update_op &&
        (i->op != w->p->update_op || !a || a->scale != b->scale || a->eps != b->eps || a->beta1 != b->beta1 ||
         a->beta2 != b->beta2 || a->clip != b->clip || a->flags != b->flags || a->step != b->step ||
         a->settings != b->settings || !index_fits(w, i, flat)))
        hd__diag(w, "is not the optimizer's update: its moments, clipping, rounding or states differ");
}

/* Weight decay of every parameter where it lies, and nowhere else. */
static void check_decay(struct hd__walk *w, const struct hd__instr *i, const struct hd__flat *flat)
{
    const struct hd_program *p = w->p;
    uint64_t n = 0, n_ranges = i->attrs ? i->attrs->n_ranges : 0;
    for (uint32_t k = 0; k < flat->n_params; k++) {
        const struct hd__param *param = &p->params.at[flat->params[k]];
        const struct hd__tensor *t = hd__tensor_const(p, param->tensor);
        const struct hd_range *r = n < n_ranges ? &i->attrs->ranges[n] : NULL;
        int its = r && r->first == flat->offset[k] && r->count == hd__numel(p, t);
        if (param->decay == 0 ? its : !its || r->value != param->decay)
            hd__diag(w, "%s has another weight decay than %g", t->name, param->decay);
        n += its;
    }
    if (n != n_ranges)
        hd__diag(w, "weight decay lies where no parameter of %s does", flat->name);
}

static void check_update(struct hd__walk *w, const struct hd__instr *i)
{
    const struct hd_program *p = w->p;
    uint32_t flat = i->n_in ? w->tensor[i->in[0]].shard_of : 0;
    check_rule(w, i, flat ? &p->flats.at[flat - 1] : NULL);
    if (!flat || !p->update_op)
        return;
    check_decay(w, i, &p->flats.at[flat - 1]);
    if (!i->attrs || !(i->attrs->flags & HD_ATTR_STOCHASTIC))
        return;
    w->flat[flat - 1].seed = (uint64_t)i->attrs->index + 1;
    for (uint32_t n = 0; n < p->flats.count; n++)
        if (n != flat - 1 && w->flat[n].seed == w->flat[flat - 1].seed)
            hd__diag(w, "parameters %s and %s are rounded by the same random numbers", p->flats.at[n].name,
                     p->flats.at[flat - 1].name);
}

/* State of a strategy's op is kept from step to step, and its own; weights are the updates'. */
static void check_custom(struct hd__walk *w, const struct hd__instr *i)
{
    for (uint32_t k = 0; k < i->n_out; k++) {
        const struct hd__buffer_state *b = &w->buffer[hd__tensor_const(w->p, i->out[k])->buffer];
        int state = i->custom && i->custom->state >> k & 1;
        if (state && !b->feedback)
            hd__diag(w, "%s, state of %s, is not declared HD_FACT_FEEDBACK: what is in it would be lost",
                     hd__name_of(w, i->out[k]), i->custom->name);
        if (b->state_of && (!state || b->state_of != i->custom))
            hd__diag(w, "%s is state of %s: nothing else may write it", hd__name_of(w, i->out[k]), b->state_of->name);
        if (i->custom && b->is_model)
            hd__diag(w, "%s holds weights or states of the optimizer, which no op of a strategy's own may write",
                     hd__name_of(w, i->out[k]));
    }
}

static void begin(struct hd__walk *w)
{
    const struct hd_program *p = w->p;
    for (struct hd__flat_tensor t = {0}; hd__flat_next(p, HD__FLAT_IS_PARAM | HD__FLAT_IS_OPTIM_STATE, &t);)
        w->buffer[hd__tensor_const(p, t.tensor)->buffer].is_model = 1;
    for (uint32_t s = 0; s < p->sections.count; s++)
        for (uint32_t n = 0; n < p->sections.at[s].code.count; n++) {
            const struct hd__instr *i = &p->sections.at[s].code.at[n];
            for (uint32_t k = 0; i->custom && k < i->n_out; k++)
                if (i->custom->state >> k & 1)
                    w->buffer[hd__tensor_const(p, i->out[k])->buffer].state_of = i->custom;
        }
}

static void visit(struct hd__walk *w, const struct hd__instr *i)
{
    check_custom(w, i);
    if (i->op == HD_OP_SPREAD || (i->op == HD_OP_XENT_HEAD && i->n_out > 1))
        check_seed(w, i);
    else if (hd__is_update(i))
        check_update(w, i);
}

const struct hd__rules hd__rules_attributes = {.begin = begin, .visit = visit, .finish = finish};
