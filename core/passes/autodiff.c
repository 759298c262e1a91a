/* Reverse mode on the logical program. Appends the backward instructions and one accum for each parameter gradient.
 *
 * Contributions to one gradient are summed in the consumer's block first, so that one tensor crosses a pipeline
 * boundary; placement later splits each sum by equal placement, so that P + P + P needs one reduction. */
#include <stdlib.h>

#include "core/passes/passes.h"
#include "core/program/op_gradients.h"

struct part {
    hd_tensor grad;
    uint16_t block;
};

typedef HD__ARRAY(struct part) parts;

struct reverse {
    struct hd_program *p;
    parts *got;     /* by logical tensor: terms of its gradient */
    uint8_t *needs; /* by logical tensor: it depends on a parameter */
    uint32_t n;     /* tensors before the backward program */
};

static hd_tensor emit_sum(struct reverse *r, hd_tensor of, const hd_tensor *terms, uint32_t n)
{
    hd_tensor total = terms[0];
    for (uint32_t at = 1; at < n;) { /* more than HD_MAX_IN terms: a chain of adds */
        struct hd__instr i = hd__instr_new(r->p, HD_OP_ADD);
        i.in[i.n_in++] = total;
        while (at < n && i.n_in < HD_MAX_IN)
            i.in[i.n_in++] = terms[at++];
        i.flags |= HD__FLAG_GRADSUM;
        i.n_out = 1;
        total = i.out[0] = hd__grad_like(r->p, of, "add");
        hd__push(&r->p->logical, i);
    }
    return total;
}

/* The gradient of a logical tensor: all contributions, block by block; 0 if there is none. */
static hd_tensor sum_contributions(struct reverse *r, hd_tensor of, uint16_t home)
{
    struct hd_program *p = r->p;
    parts *got = &r->got[of];
    HD__ARRAY(hd_tensor) totals = {0}, terms = {0};
    hd_tensor result = 0;
    for (uint32_t i = 0; i < got->count; i++) {
        uint16_t block = got->at[i].block;
        if (block == 0xffff)
            continue; /* added already */
        terms.count = 0;
        for (uint32_t j = i; j < got->count; j++)
            if (got->at[j].block == block) {
                hd__push(&terms, got->at[j].grad);
                got->at[j].block = 0xffff;
            }
        p->block = block;
        hd__push(&totals, emit_sum(r, of, terms.at, terms.count));
        if (hd__tensor_const(p, of)->mark) /* the gradient of a marked tensor takes its mark */
            hd__tensor_at(p, totals.at[totals.count - 1])->mark = hd__tensor_const(p, of)->mark;
    }
    p->block = home;
    if (totals.count)
        result = emit_sum(r, of, totals.at, totals.count);
    hd__free_array(&totals);
    hd__free_array(&terms);
    return result;
}

static void contribute(struct reverse *r, hd_tensor to, hd_tensor grad, uint16_t block)
{
    struct hd_program *p = r->p;
    if (hd__tensor_const(p, to)->role == HD__ROLE_PARAM) {
        p->phase = HD__PHASE_W;
        struct hd__instr i = hd__instr_new(p, HD_OP_ACCUM);
        p->phase = HD__PHASE_B;
        i.in[i.n_in++] = grad;
        i.out[i.n_out++] = to;
        hd__push(&p->logical, i);
    } else {
        hd__push(&r->got[to], (struct part){grad, block});
    }
}

/* Is t the loss or an auxiliary loss? Their gradient is 1, folded into the op that computes them. */
static int is_root(const struct hd_program *p, hd_tensor t)
{
    int root = t == p->loss;
    for (uint32_t i = 0; i < p->auxiliary.count; i++)
        root |= t == p->auxiliary.at[i];
    return root;
}

static void reverse_one(struct reverse *r, const struct hd__instr *i)
{
    struct hd_program *p = r->p;
    struct hd__grad g = {.p = p, .i = i};
    uint32_t flows = 0;
    for (uint32_t n = 0; n < i->n_out; n++)
        flows |= r->got[i->out[n]].count;
    if ((!flows && !is_root(p, i->out[0])) || !hd__has_gradient(i->op))
        return;
    for (uint32_t n = 0; n < i->n_out; n++)
        g.dy[n] = sum_contributions(r, i->out[n], i->block);
    p->block = i->block;
    for (uint32_t n = 0; n < i->n_in; n++)
        g.needed[n] = r->needs[i->in[n]];
    hd__grad_emit(&g);
    for (uint32_t n = 0; n < i->n_in; n++)
        if (g.dx[n] && g.needed[n])
            contribute(r, i->in[n], g.dx[n], i->block);
}

/* Marks the logical tensors that depend on a parameter through differentiable ops. */
static void find_needs(struct reverse *r)
{
    struct hd_program *p = r->p;
    for (uint32_t i = 0; i < p->params.count; i++)
        r->needs[p->params.at[i].tensor] = 1;
    for (uint32_t k = 0; k < p->forward; k++) {
        const struct hd__instr *i = &p->logical.at[k];
        uint8_t reached = 0;
        if (!hd__has_gradient(i->op))
            continue;
        for (uint32_t n = 0; n < i->n_in; n++)
            reached |= r->needs[i->in[n]];
        for (uint32_t n = 0; n < i->n_out; n++)
            r->needs[i->out[n]] |= reached;
    }
}

int32_t hd__autodiff(struct hd_program *p, struct hd_error *err)
{
    struct reverse r = {.p = p, .n = p->tensors.count};
    if (!p->loss)
        return hd_fail(err, HD_E_INVALID, "the model built no loss");
    r.got = hd__alloc(r.n * sizeof *r.got);
    r.needs = hd__alloc(r.n);
    p->forward = p->logical.count;
    find_needs(&r);
    p->phase = HD__PHASE_B;
    for (uint32_t k = p->forward; k-- > 0;) {
        struct hd__instr forward = p->logical.at[k]; /* a copy: the array grows */
        reverse_one(&r, &forward);
    }
    p->phase = HD__PHASE_F;
    for (uint32_t i = 0; i < r.n; i++)
        hd__free_array(&r.got[i]);
    free(r.got);
    free(r.needs);
    return HD_OK;
}
