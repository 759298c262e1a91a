/* RMSNorm (Zhang and Sennrich, arXiv 1910.07467) and LayerNorm (Ba et al., arXiv 1607.06450) over the last dim.
 * With r = 1/sqrt(variance + eps), xhat = (x - mean) r and a = w dy, the gradient is
 * dx = r (a - mean(a) - xhat mean(a xhat)); RMSNorm is the case without means. */
#include "reference/reference.h"

struct row {
    double mean, r;
};

static struct row row_of(const struct hd_kernel *k, const struct hd_operand *x, int64_t at, int64_t h, int centred)
{
    double sum = 0, square = 0;
    for (int64_t j = 0; centred && j < h; j++)
        sum += cpu_load(x, at + j);
    double mean = sum / (double)h;
    for (int64_t j = 0; j < h; j++) {
        double v = cpu_load(x, at + j) - mean;
        square += v * v;
    }
    return (struct row){mean, 1 / sqrt(square / (double)h + k->d.attrs.eps)};
}

/* The sum before a norm is what the norm is of: rounded as it is written. */
static void forward(struct hd_kernel *k)
{
    struct cpu_norm o = cpu_norm(k);
    int64_t h = o.w->extent[0], n = hd_operand_count(&k->out[0]);
    for (int64_t at = 0; at < n; at += h) {
        for (int64_t j = 0; o.sum_before && j < h; j++)
            cpu_store(&k->out[0], at + j, cpu_load(&k->in[0], at + j) + cpu_load(&k->in[1], at + j));
        struct row row = row_of(k, o.x, at, h, o.centred);
        for (int64_t j = 0; j < h; j++) {
            double y = (cpu_load(o.x, at + j) - row.mean) * row.r * cpu_load(o.w, j);
            cpu_put(k, o.sum_before, at + j, o.centred ? y + cpu_load(o.c, j) : y);
        }
    }
}

/* Adds r, which may lie where dx does, to dx as it would be written without it. */
static void put_sum(struct hd_kernel *k, int64_t i, double dx)
{
    double room;
    struct hd_operand held = {.data = &room, .dtype = k->out[0].dtype};
    cpu_store(&held, 0, dx);
    dx = cpu_load(&k->in[0], i) + cpu_load(&held, 0);
    if (cpu_norm(k).dw) /* only gradients of weights are added */
        cpu_store(&k->out[0], i, dx);
    else
        cpu_put(k, 0, i, dx);
}

static void gradient_x(struct hd_kernel *k)
{
    struct cpu_norm o = cpu_norm(k);
    int64_t h = o.w->extent[0], n = hd_operand_count(&k->out[0]);
    for (int64_t at = 0; at < n; at += h) {
        struct row row = row_of(k, o.x, at, h, o.centred);
        double mean_a = 0, mean_ax = 0;
        for (int64_t j = 0; j < h; j++) {
            double a = cpu_load(o.w, j) * cpu_load(o.c, at + j);
            mean_a += o.centred ? a / (double)h : 0;
            mean_ax += a * (cpu_load(o.x, at + j) - row.mean) * row.r / (double)h;
        }
        for (int64_t j = 0; j < h; j++) {
            double a = cpu_load(o.w, j) * cpu_load(o.c, at + j);
            double xhat = (cpu_load(o.x, at + j) - row.mean) * row.r, dx = row.r * (a - mean_a - xhat * mean_ax);
            if (o.sum_behind)
                put_sum(k, at + j, dx);
            else
                cpu_put(k, 0, at + j, dx);
        }
    }
}

static void gradient_w(struct hd_kernel *k)
{
    struct cpu_norm o = cpu_norm(k);
    int64_t h = k->out[o.dw].extent[0], n = hd_operand_count(o.x);
    double *dw = k->state, *dc = dw + h;
    memset(dw, 0, 2 * (size_t)h * sizeof *dw);
    for (int64_t at = 0; at < n; at += h) {
        struct row row = row_of(k, o.x, at, h, o.centred);
        for (int64_t j = 0; j < h; j++) {
            double dy = cpu_load(o.c, at + j);
            dw[j] += dy * (cpu_load(o.x, at + j) - row.mean) * row.r;
            dc[j] += dy;
        }
    }
    for (int64_t j = 0; j < h; j++) {
        cpu_put(k, o.dw, j, dw[j]);
        if (o.centred)
            cpu_put(k, o.dw + 1, j, dc[j]);
    }
}

void cpu_ref_rmsnorm(struct hd_kernel *k)
{
    forward(k);
}

void cpu_ref_rmsnorm_dx(struct hd_kernel *k)
{
    gradient_x(k);
}

void cpu_ref_rmsnorm_dw(struct hd_kernel *k)
{
    gradient_w(k);
}

void cpu_ref_layernorm(struct hd_kernel *k)
{
    forward(k);
}

void cpu_ref_layernorm_dx(struct hd_kernel *k)
{
    gradient_x(k);
}

void cpu_ref_layernorm_dw(struct hd_kernel *k)
{
    gradient_w(k);
}

void cpu_ref_add_rmsnorm(struct hd_kernel *k)
{
    forward(k);
}

void cpu_ref_add_layernorm(struct hd_kernel *k)
{
    forward(k);
}

void cpu_ref_rmsnorm_dx_add(struct hd_kernel *k)
{
    gradient_x(k);
}

void cpu_ref_layernorm_dx_add(struct hd_kernel *k)
{
    gradient_x(k);
}

/* dx may lie where r does, not where x or dy do. */
void cpu_ref_rmsnorm_grad_add(struct hd_kernel *k)
{
    gradient_x(k);
    gradient_w(k);
}

void cpu_ref_layernorm_grad_add(struct hd_kernel *k)
{
    gradient_x(k);
    gradient_w(k);
}
