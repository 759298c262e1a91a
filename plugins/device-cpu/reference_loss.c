/* Cross-entropy over a vocabulary that may be sharded: the largest logit, this shard's sum and label, and the loss
 * -log(exp(z_label) / sum exp(z)) = log(l) + m - c. A label of another shard counts there. */
#include "reference.h"

static int64_t vocabulary(const struct hd_operand *z)
{
    return z->extent[z->ndim - 1];
}

/* Index of the label within this shard of z, -1 where it is not here. */
static int64_t label_at(const struct hd_operand *z, const struct hd_operand *labels, int64_t row)
{
    int64_t at = (int64_t)cpu_load(labels, row) - z->start[z->ndim - 1];
    return at >= 0 && at < vocabulary(z) ? at : -1;
}

void cpu_ref_rowmax(struct hd_kernel *k)
{
    int64_t rows = hd_operand_count(&k->out[0]), v = vocabulary(&k->in[0]);
    for (int64_t r = 0; r < rows; r++) {
        double most = -INFINITY;
        for (int64_t j = 0; j < v; j++) {
            double z = cpu_load(&k->in[0], r * v + j);
            most = z > most || isnan(z) ? z : most;
        }
        cpu_store(&k->out[0], r, most);
    }
}

void cpu_ref_xent_local(struct hd_kernel *k)
{
    const struct hd_operand *z = &k->in[0];
    int64_t rows = hd_operand_count(&k->in[1]), v = vocabulary(z);
    for (int64_t r = 0; r < rows; r++) {
        double sum = 0, m = cpu_load(&k->in[1], r);
        int64_t label = label_at(z, &k->in[2], r);
        for (int64_t j = 0; j < v; j++)
            sum += exp(cpu_load(z, r * v + j) - m);
        cpu_put(k, 0, r, sum);
        cpu_put(k, 1, r, label < 0 ? 0 : cpu_load(z, r * v + label));
    }
}

void cpu_ref_nll(struct hd_kernel *k)
{
    int64_t rows = hd_operand_count(&k->out[0]);
    for (int64_t r = 0; r < rows; r++)
        cpu_put(k, 0, r, log(cpu_load(&k->in[0], r)) + cpu_load(&k->in[1], r) - cpu_load(&k->in[2], r));
}

void cpu_ref_nll_grad(struct hd_kernel *k)
{
    int64_t rows = hd_operand_count(&k->out[0]);
    for (int64_t r = 0; r < rows; r++) {
        double dn = cpu_load(&k->in[1], r);
        cpu_put(k, 0, r, dn / cpu_load(&k->in[0], r));
        cpu_put(k, 1, r, -dn);
    }
}

void cpu_ref_xent_grad(struct hd_kernel *k)
{
    const struct hd_operand *z = &k->in[0];
    int64_t rows = hd_operand_count(&k->in[1]), v = vocabulary(z);
    for (int64_t r = 0; r < rows; r++) {
        double m = cpu_load(&k->in[1], r), dl = cpu_load(&k->in[3], r), dc = cpu_load(&k->in[4], r);
        int64_t label = label_at(z, &k->in[2], r);
        for (int64_t j = 0; j < v; j++)
            cpu_put(k, 0, r * v + j, exp(cpu_load(z, r * v + j) - m) * dl + (j == label ? dc : 0));
    }
}
