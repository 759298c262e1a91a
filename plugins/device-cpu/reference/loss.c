/* Cross-entropy over a vocabulary that may be sharded: the largest logit, this shard's sum and label, and the loss
 * -log(exp(z_label) / sum exp(z)) = log(l) + (m - c). A label of another shard counts there. */
#include "reference/reference.h"

static int64_t vocabulary(const struct hd_operand *z)
{
    return z->extent[z->ndim - 1];
}

/* Index of the label within v entries of the vocabulary from `start` on, -1 where it is not among them. */
static int64_t label_in(const struct hd_operand *labels, int64_t row, int64_t start, int64_t v)
{
    int64_t at = (int64_t)cpu_load(labels, row) - start;
    return at >= 0 && at < v ? at : -1;
}

static int64_t label_at(const struct hd_operand *z, const struct hd_operand *labels, int64_t row)
{
    return label_in(labels, row, z->start[z->ndim - 1], vocabulary(z));
}

void cpu_ref_rowmax(struct hd_kernel *k)
{
    int64_t rows = hd_operand_count(&k->out[0]), v = vocabulary(&k->in[0]), n = hd_vocabulary(&k->d.attrs, &k->in[0]);
    for (int64_t r = 0; r < rows; r++) {
        double most = -INFINITY;
        for (int64_t j = 0; j < n; j++) {
            double z = cpu_load(&k->in[0], r * v + j);
            most = z > most || isnan(z) ? z : most;
        }
        cpu_store(&k->out[0], r, most);
    }
}

void cpu_ref_xent_local(struct hd_kernel *k)
{
    const struct hd_operand *z = &k->in[0];
    int64_t rows = hd_operand_count(&k->in[1]), v = vocabulary(z), n = hd_vocabulary(&k->d.attrs, z);
    for (int64_t r = 0; r < rows; r++) {
        double sum = 0, m = cpu_load(&k->in[1], r);
        int64_t label = label_at(z, &k->in[2], r);
        for (int64_t j = 0; j < n; j++)
            sum += exp(cpu_load(z, r * v + j) - m);
        double correct = label < 0 ? 0 : cpu_load(z, r * v + label);
        if (cpu_ignored(&k->in[2], r))
            cpu_xent_ignored(z, m, &sum, &correct);
        cpu_put(k, 0, r, sum);
        cpu_put(k, 1, r, correct);
    }
}

void cpu_ref_nll(struct hd_kernel *k)
{
    int64_t rows = hd_operand_count(&k->out[0]);
    for (int64_t r = 0; r < rows; r++)
        cpu_put(k, 0, r, log(cpu_load(&k->in[0], r)) + (cpu_load(&k->in[1], r) - cpu_load(&k->in[2], r)));
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
    int64_t rows = hd_operand_count(&k->in[1]), v = vocabulary(z), n = hd_vocabulary(&k->d.attrs, z);
    for (int64_t r = 0; r < rows; r++) {
        double m = cpu_load(&k->in[1], r), dl = cpu_load(&k->in[3], r), dc = cpu_load(&k->in[4], r);
        int64_t label = label_at(z, &k->in[2], r);
        for (int64_t j = 0; j < v; j++)
            cpu_put(k, 0, r * v + j,
                    j < n && !cpu_ignored(&k->in[2], r) ? exp(cpu_load(z, r * v + j) - m) * dl + (j == label ? dc : 0)
                                                        : 0);
    }
}

/* ---- the fused head: nothing is kept but one number a row, so logits are made twice */

struct head {
    const struct hd_kernel *k;
    int64_t rows, v, h;
    double seed;
    double *lse, *z, *sum; /* a row; an entry of the vocabulary; an element of a row of w */
};

static double head_logit(const struct head *a, int64_t row, int64_t j)
{
    double z = 0;
    for (int64_t i = 0; i < a->h; i++)
        z += cpu_load(&a->k->in[0], row * a->h + i) * cpu_load(&a->k->in[1], j * a->h + i);
    return z;
}

/* d loss / d logit: scale (p - onehot). */
static double head_dz(const struct head *a, int64_t row, int64_t j, double z)
{
    int64_t label = label_in(&a->k->in[2], row, a->k->in[1].start[0], a->v);
    return cpu_ignored(&a->k->in[2], row) ? 0 : a->seed * (exp(z - a->lse[row]) - (j == label));
}

static void head_loss(const struct head *a, int64_t row)
{
    int64_t label = label_in(&a->k->in[2], row, a->k->in[1].start[0], a->v);
    double most = -INFINITY, sum = 0;
    for (int64_t j = 0; j < a->v; j++) {
        a->z[j] = head_logit(a, row, j);
        most = a->z[j] > most || isnan(a->z[j]) ? a->z[j] : most;
    }
    for (int64_t j = 0; j < a->v; j++)
        sum += exp(a->z[j] - most);
    a->lse[row] = log(sum) + most;
    double nll = log(sum) + (most - (label < 0 ? 0 : a->z[label]));
    cpu_store(&a->k->out[0], row, cpu_ignored(&a->k->in[2], row) ? 0 : nll);
}

/* After head_loss, which leaves the row's logits in z. */
static void head_dx(const struct head *a, int64_t row)
{
    memset(a->sum, 0, (size_t)a->h * sizeof *a->sum);
    for (int64_t j = 0; j < a->v; j++) {
        double dz = head_dz(a, row, j, a->z[j]);
        for (int64_t i = 0; i < a->h; i++)
            a->sum[i] += dz * cpu_load(&a->k->in[1], j * a->h + i);
    }
    for (int64_t i = 0; i < a->h; i++)
        cpu_store(&a->k->out[1], row * a->h + i, a->sum[i]);
}

static void head_dw(const struct head *a, int64_t j)
{
    memset(a->sum, 0, (size_t)a->h * sizeof *a->sum);
    for (int64_t row = 0; row < a->rows; row++) {
        double dz = head_dz(a, row, j, head_logit(a, row, j));
        for (int64_t i = 0; i < a->h; i++)
            a->sum[i] += dz * cpu_load(&a->k->in[0], row * a->h + i);
    }
    for (int64_t i = 0; i < a->h; i++)
        cpu_put(a->k, 2, j * a->h + i, a->sum[i]);
}

void cpu_ref_xent_head(struct hd_kernel *k)
{
    struct head a = {.k = k,
                     .rows = hd_operand_count(&k->out[0]),
                     .v = k->in[1].extent[0],
                     .h = k->in[1].extent[1],
                     .seed = cpu_seed(k, 3),
                     .lse = k->state};
    a.z = a.lse + a.rows;
    a.sum = a.z + a.v;
    for (int64_t row = 0; row < a.rows; row++) {
        head_loss(&a, row);
        if (k->d.n_out == 3)
            head_dx(&a, row);
    }
    for (int64_t j = 0; j < a.v && k->d.n_out == 3; j++)
        head_dw(&a, j);
}
