/* Numbers beside the operands that instructions of a step must agree on: the factor of the loss and of its gradient,
 * the loss scale, what all updates have in common, each parameter's weight decay, random numbers, error feedback. */
#include <stdlib.h>

#include "core/program/ops.h"
#include "core/verify/verify.h"

struct attributes {
    const struct hd_program *p;
    uint32_t *shard_of; /* by tensor: hd__flats_by_shard */
    uint64_t *seed;     /* by flat: of stochastic rounding, + 1 */
};

static void *create(const struct hd_program *p)
{
    struct attributes *a = hd__alloc(sizeof *a);
    a->p = p;
    a->shard_of = hd__flats_by_shard(p);
    a->seed = hd__alloc((p->flats.count + 1) * sizeof *a->seed);
    return a;
}

static void destroy(void *state)
{
    struct attributes *a = state;
    free(a->shard_of);
    free(a->seed);
    free(a);
}

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
static void check_seed(const struct hd_program *p, struct hd__verify_diags *f, const struct hd__instr *i)
{
    int fused = i->op == HD_OP_XENT_HEAD;
    const struct hd__tensor *out = hd__tensor_const(p, i->out[0]);
    const struct hd__instr *total = find_total(p, fused ? out->origin : out->grad_of);
    double wanted = total ? total->attrs->scale * (double)hd__replicas(p) : 0;
    hd_tensor factor = i->n_in > (fused ? 3 : 0) ? i->in[i->n_in - 1] : 0;
    if (total && (!i->attrs || i->attrs->scale != wanted))
        hd__verify_diag(f, "the gradient of the loss begins with %g, not with %g", i->attrs ? i->attrs->scale : 0,
                        wanted);
    if (factor != p->scale)
        hd__verify_diag(f, p->scale ? "%s is not multiplied by the loss scale" : "%s is multiplied by a loss scale",
                        out->name);
}

/* The loss is the mean over the tokens of all micro-batches. */
static void check_mean(const struct hd_program *p, struct hd__verify_diags *f)
{
    for (uint32_t k = 0; k < p->forward; k++) {
        const struct hd__instr *i = &p->logical.at[k];
        double tokens = (double)p->accumulation * (double)p->dims.at[p->letter['b']].extent *
                        (double)p->dims.at[p->letter['s']].extent;
        if (i->op == HD_OP_TOTAL && i->out[0] == p->loss && p->ids && i->attrs &&
            !(i->attrs->scale * tokens > 1 - 1e-9 && i->attrs->scale * tokens < 1 + 1e-9))
            hd__verify_diag(f, "the loss is a sum over %g tokens, divided by %g", tokens, 1 / i->attrs->scale);
    }
}

/* ---- updates */

/* All updates are the optimizer's, but for ranges and random numbers. */
static void check_rule(const struct hd_program *p, struct hd__verify_diags *f, const struct hd__instr *i)
{
    const struct hd_attrs *a = i->attrs, *b = p->update_rule;
    if (p->update_op && (i->op != p->update_op || !a || a->scale != b->scale || a->eps != b->eps ||
                         a->beta1 != b->beta1 || a->beta2 != b->beta2 || a->clip != b->clip || a->flags != b->flags ||
                         a->step != b->step || a->settings != b->settings))
        hd__verify_diag(f, "is not the optimizer's update: its moments, clipping or rounding differ");
}

/* Of every parameter where it lies, and nowhere else. */
static void check_decay(const struct hd_program *p, struct hd__verify_diags *f, const struct hd__instr *i,
                        const struct hd__flat *flat)
{
    uint64_t n = 0, n_ranges = i->attrs ? i->attrs->n_ranges : 0;
    for (uint32_t k = 0; k < flat->n_params; k++) {
        const struct hd__param *param = &p->params.at[flat->params[k]];
        const struct hd__tensor *t = hd__tensor_const(p, param->tensor);
        const struct hd_range *r = n < n_ranges ? &i->attrs->ranges[n] : NULL;
        int its = r && r->first == flat->offset[k] && r->count == hd__numel(p, t);
        if (param->decay == 0 ? its : !its || r->value != param->decay)
            hd__verify_diag(f, "%s has another weight decay than %g", t->name, param->decay);
        n += its;
    }
    if (n != n_ranges)
        hd__verify_diag(f, "weight decay lies where no parameter of %s does", flat->name);
}

static void check_update(struct attributes *a, struct hd__verify_diags *f, const struct hd__instr *i)
{
    const struct hd_program *p = a->p;
    uint32_t flat = i->n_in ? a->shard_of[i->in[0]] : 0;
    check_rule(p, f, i);
    if (!flat || !p->update_op)
        return;
    check_decay(p, f, i, &p->flats.at[flat - 1]);
    if (!i->attrs || !(i->attrs->flags & HD_ATTR_STOCHASTIC))
        return;
    a->seed[flat - 1] = (uint64_t)i->attrs->index + 1;
    for (uint32_t n = 0; n < p->flats.count; n++)
        if (n != flat - 1 && a->seed[n] == a->seed[flat - 1])
            hd__verify_diag(f, "parameters %s and %s are rounded by the same random numbers", p->flats.at[n].name,
                            p->flats.at[flat - 1].name);
}

static void visit(void *state, struct hd__verify_diags *f, const struct hd__instr *i)
{
    struct attributes *a = state;
    if (i->op == HD_OP_SPREAD || (i->op == HD_OP_XENT_HEAD && i->n_out > 1))
        check_seed(a->p, f, i);
    else if (i->op == HD_OP_ENCODE && !(i->attrs && i->attrs->flags & HD_ATTR_ACCUMULATE))
        hd__verify_diag(f, "%s: the error of the step before is not added", hd__tensor_const(a->p, i->in[0])->name);
    else if (hd__is_update(i))
        check_update(a, f, i);
}

static void finish(void *state, struct hd__verify_diags *f)
{
    check_mean(((struct attributes *)state)->p, f);
}

const struct hd__verify_analysis hd__verify_attributes = {
    .create = create, .destroy = destroy, .visit = visit, .finish = finish};
