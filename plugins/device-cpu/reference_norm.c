/* RMSNorm (Zhang and Sennrich, arXiv 1910.07467) and LayerNorm (Ba et al., arXiv 1607.06450) over the last dim.
 * With r = 1/sqrt(variance + eps), xhat = (x - mean) r and a = w dy, the gradient is
 * dx = r (a - mean(a) - xhat mean(a xhat)); RMSNorm is the case without means. */
#include "reference.h"

struct row {
    double mean, r;
};

static struct row row_of(const struct hd_kernel *k, int64_t at, int64_t h, int centred)
{
    double sum = 0, square = 0;
    const struct hd_operand *x = &k->in[0];
    for (int64_t j = 0; centred && j < h; j++)
        sum += cpu_load(x, at + j);
    double mean = sum / (double)h;
    for (int64_t j = 0; j < h; j++) {
        double v = cpu_load(x, at + j) - mean;
        square += v * v;
    }
    return (struct row){mean, 1 / sqrt(square / (double)h + k->d.attrs.eps)};
}

static void forward(struct hd_kernel *k, int centred)
{
    int64_t h = k->in[1].extent[0], n = hd_operand_count(&k->out[0]);
    for (int64_t at = 0; at < n; at += h) {
        struct row row = row_of(k, at, h, centred);
        for (int64_t j = 0; j < h; j++) {
            double y = (cpu_load(&k->in[0], at + j) - row.mean) * row.r * cpu_load(&k->in[1], j);
            cpu_put(k, 0, at + j, centred ? y + cpu_load(&k->in[2], j) : y);
        }
    }
}

static void gradient_x(struct hd_kernel *k, int centred)
{
    int64_t h = k->in[1].extent[0], n = hd_operand_count(&k->out[0]);
    for (int64_t at = 0; at < n; at += h) {
        struct row row = row_of(k, at, h, centred);
        double mean_a = 0, mean_ax = 0;
        for (int64_t j = 0; j < h; j++) {
            double a = cpu_load(&k->in[1], j) * cpu_load(&k->in[2], at + j);
            mean_a += centred ? a / (double)h : 0;
            mean_ax += a * (cpu_load(&k->in[0], at + j) - row.mean) * row.r / (double)h;
        }
        for (int64_t j = 0; j < h; j++) {
            double a = cpu_load(&k->in[1], j) * cpu_load(&k->in[2], at + j);
            double xhat = (cpu_load(&k->in[0], at + j) - row.mean) * row.r;
            cpu_put(k, 0, at + j, row.r * (a - mean_a - xhat * mean_ax));
        }
    }
}

static void gradient_w(struct hd_kernel *k, int centred)
{
    int64_t h = k->out[0].extent[0], n = hd_operand_count(&k->in[0]);
    double *dw = k->state, *dc = dw + h;
    memset(dw, 0, 2 * (size_t)h * sizeof *dw);
    for (int64_t at = 0; at < n; at += h) {
        struct row row = row_of(k, at, h, centred);
        for (int64_t j = 0; j < h; j++) {
            double dy = cpu_load(&k->in[1], at + j);
            dw[j] += dy * (cpu_load(&k->in[0], at + j) - row.mean) * row.r;
            dc[j] += dy;
        }
    }
    for (int64_t j = 0; j < h; j++) {
        cpu_put(k, 0, j, dw[j]);
        if (centred)
            cpu_put(k, 1, j, dc[j]);
    }
}

void cpu_ref_rmsnorm(struct hd_kernel *k)
{
    forward(k, 0);
}

void cpu_ref_rmsnorm_dx(struct hd_kernel *k)
{
    gradient_x(k, 0);
}

void cpu_ref_rmsnorm_dw(struct hd_kernel *k)
{
    gradient_w(k, 0);
}

void cpu_ref_layernorm(struct hd_kernel *k)
{
    forward(k, 1);
}

void cpu_ref_layernorm_dx(struct hd_kernel *k)
{
    gradient_x(k, 1);
}

void cpu_ref_layernorm_dw(struct hd_kernel *k)
{
    gradient_w(k, 1);
}
