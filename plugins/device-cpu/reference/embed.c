/* Look-ups by token id and by position, and the sums that are their gradients. */
#include "reference/reference.h"

/* Row of w that holds id, or -1 where this rank has it not. */
static int64_t row_of(const struct hd_operand *w, double id)
{
    int64_t row = (int64_t)id - w->start[0];
    return row >= 0 && row < w->extent[0] ? row : -1;
}

void cpu_ref_embed(struct hd_kernel *k)
{
    const struct hd_operand *ids = &k->in[0], *w = &k->in[1];
    int64_t tokens = hd_operand_count(ids), h = w->extent[1];
    for (int64_t t = 0; t < tokens; t++) {
        int64_t row = row_of(w, cpu_load(ids, t));
        for (int64_t j = 0; j < h; j++)
            cpu_put(k, 0, t * h + j, row < 0 ? 0 : cpu_load(w, row * h + j));
    }
}

void cpu_ref_embed_dw(struct hd_kernel *k)
{
    const struct hd_operand *ids = &k->in[0], *dw = &k->out[0];
    int64_t tokens = hd_operand_count(ids), h = dw->extent[1];
    double *sum = k->state; /* one column */
    for (int64_t j = 0; j < h; j++) {
        memset(sum, 0, (size_t)dw->extent[0] * sizeof *sum);
        for (int64_t t = 0; t < tokens; t++) {
            int64_t row = row_of(dw, cpu_load(ids, t));
            if (row >= 0)
                sum[row] += cpu_load(&k->in[1], t * h + j);
        }
        for (int64_t row = 0; row < dw->extent[0]; row++)
            cpu_put(k, 0, row * h + j, sum[row]);
    }
}

void cpu_ref_position(struct hd_kernel *k)
{
    const struct hd_operand *x = &k->in[0], *w = &k->in[1];
    int64_t n = hd_operand_count(x), h = w->extent[1];
    uint32_t s = x->ndim - 2;
    for (int64_t i = 0; i < n; i++) {
        int64_t row = row_of(w, (double)hd_position(&k->d.attrs, x->start[s] + i / h % x->extent[s]));
        cpu_put(k, 0, i, cpu_load(x, i) + (row < 0 ? 0 : cpu_load(w, row * h + i % h)));
    }
}

void cpu_ref_position_dw(struct hd_kernel *k)
{
    const struct hd_operand *dy = &k->in[0], *dw = &k->out[0];
    int64_t n = hd_operand_count(dy), m = hd_operand_count(dw), h = dw->extent[1];
    uint32_t s = dy->ndim - 2;
    double *sum = k->state;
    memset(sum, 0, (size_t)m * sizeof *sum);
    for (int64_t i = 0; i < n; i++) {
        int64_t row = row_of(dw, (double)hd_position(&k->d.attrs, dy->start[s] + i / h % dy->extent[s]));
        if (row >= 0)
            sum[row * h + i % h] += cpu_load(dy, i);
    }
    for (int64_t i = 0; i < m; i++)
        cpu_put(k, 0, i, sum[i]);
}
