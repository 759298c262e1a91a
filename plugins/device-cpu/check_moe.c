/* Checks of operands for ops of mixtures of experts: how many dims each has, equal extents for equal dims. */
#include "kernels/moe.h"

struct shape {
    uint32_t op;
    int32_t rows;         /* which input says the tokens of slots; -1: none */
    const char *in, *out; /* dims of each operand */
};

static const struct shape shapes[] = {
    {HD_OP_GATE, -1, "3", "3"},
    {HD_OP_GATE_GRAD, -1, "33", "3"},
    {HD_OP_ROUTE, -1, "3", "3"},
    {HD_OP_DISPATCH, 1, "33", "4"},
    {HD_OP_DISPATCH_DX, 1, "43", "3"},
    {HD_OP_GROUPED, 2, "433", "4"},
    {HD_OP_GROUPED_DW, 2, "443", "3"},
    {HD_OP_COMBINE, 2, "433", "3"},
    {HD_OP_COMBINE_DZ, 2, "333", "4"},
    {HD_OP_COMBINE_DG, 2, "433", "3"},
    {HD_OP_EXPERT_COUNT, -1, "3", "2"},
    {HD_OP_ROUTER_LOSS, -1, "32", "2"},
    {HD_OP_ROUTER_LOSS_DZ, -1, "322", "3"},
};

static const struct hd_operand *operand(const struct hd_kernel *k, uint32_t i)
{
    return i < k->d.n_in ? &k->in[i] : &k->out[0];
}

static int32_t check_extents(struct hd_kernel *k, struct hd_error *err)
{
    for (uint32_t a = 0; a <= k->d.n_in; a++)
        for (uint32_t b = 0; b < a; b++)
            for (uint32_t i = 0; i < operand(k, a)->ndim; i++) {
                int32_t j = cpu_dim(operand(k, b), operand(k, a)->dim[i]);
                if (j >= 0 && operand(k, a)->extent[i] != operand(k, b)->extent[j])
                    return cpu_invalid(k, err, "dim id %u has extent %lld in one operand and %lld in another",
                                       operand(k, a)->dim[i], (long long)operand(k, a)->extent[i],
                                       (long long)operand(k, b)->extent[j]);
            }
    return HD_OK;
}

int32_t cpu_check_moe(struct hd_kernel *k, struct hd_error *err)
{
    const struct shape *s = shapes;
    int32_t rc;
    while (s->op != k->d.op)
        s++;
    for (uint32_t i = 0; i <= k->d.n_in; i++) {
        uint32_t want = (uint32_t)((i < k->d.n_in ? s->in[i] : s->out[0]) - '0');
        if (operand(k, i)->ndim != want || hd_operand_count(operand(k, i)) < 1)
            return cpu_invalid(k, err, "an operand has %u dims; this op wants %u, none of them empty",
                               operand(k, i)->ndim, want);
    }
    if (s->rows >= 0 && k->in[s->rows].dtype != HD_I32)
        return cpu_invalid(k, err, "the tokens of slots must be int32");
    if (k->d.op == HD_OP_GATE && k->d.attrs.top_k < 1)
        return cpu_invalid(k, err, "top_k is %lld", (long long)k->d.attrs.top_k);
    rc = check_extents(k, err);
    if (!rc && (k->d.op == HD_OP_DISPATCH_DX || k->d.op == HD_OP_COMBINE)) /* a row of sums, for the reference */
        rc = cpu_kernel_state(k, (size_t)k->out[0].extent[2] * sizeof(double), err);
    return rc;
}
