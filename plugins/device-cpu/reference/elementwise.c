/* Elements for themselves, sums of all, and the local conversions between placements. */
#include "reference/reference.h"

void cpu_ref_add(struct hd_kernel *k)
{
    int64_t n = hd_operand_count(&k->out[0]);
    for (int64_t i = 0; i < n; i++) {
        double y = 0;
        for (uint32_t x = 0; x < k->d.n_in; x++)
            y += cpu_load(&k->in[x], i);
        cpu_put(k, 0, i, y);
    }
}

int64_t cpu_subset_index(const struct hd_operand *x, const struct hd_operand *w, int64_t i)
{
    int64_t at = 0;
    for (uint32_t d = x->ndim; d--; i /= x->extent[d]) {
        int32_t j = cpu_dim(w, x->dim[d]);
        if (j >= 0)
            at += i % x->extent[d] * cpu_stride(w, (uint32_t)j);
    }
    return at;
}

void cpu_ref_bias(struct hd_kernel *k)
{
    int64_t n = hd_operand_count(&k->out[0]);
    for (int64_t i = 0; i < n; i++)
        cpu_put(k, 0, i, cpu_load(&k->in[0], i) + cpu_load(&k->in[1], cpu_subset_index(&k->in[0], &k->in[1], i)));
}

void cpu_sum_subset(struct hd_kernel *k, uint32_t output)
{
    double *sum = k->state;
    int64_t n = hd_operand_count(&k->in[0]), m = hd_operand_count(&k->out[output]);
    memset(sum, 0, (size_t)m * sizeof *sum);
    for (int64_t i = 0; i < n; i++)
        sum[cpu_subset_index(&k->in[0], &k->out[output], i)] += cpu_load(&k->in[0], i);
    for (int64_t i = 0; i < m; i++)
        cpu_put(k, output, i, sum[i]);
}

void cpu_ref_bias_dw(struct hd_kernel *k)
{
    cpu_sum_subset(k, 0);
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

void cpu_ref_swiglu(struct hd_kernel *k)
{
    int64_t n = hd_operand_count(&k->out[0]);
    for (int64_t i = 0; i < n; i++) {
        double g = cpu_load(&k->in[0], i), u = cpu_load(&k->in[1], i);
        cpu_put(k, 0, i, g * sigmoid(g) * u);
    }
}

void cpu_ref_swiglu_grad(struct hd_kernel *k)
{
    int64_t n = hd_operand_count(&k->out[0]);
    for (int64_t i = 0; i < n; i++) {
        double g = cpu_load(&k->in[0], i), u = cpu_load(&k->in[1], i), dy = cpu_load(&k->in[2], i);
        double s = sigmoid(g);
        cpu_put(k, 0, i, dy * u * s * (1 + g * (1 - s)));
        cpu_put(k, 1, i, dy * g * s);
    }
}

/* sqrt(2/pi) and the cubic coefficient of GELU's tanh form: Hendrycks and Gimpel, arXiv 1606.08415, section 2. */
static const double gelu_a = 0.79788456080286535588, gelu_b = 0.044715;

double cpu_gelu(double x)
{
    return 0.5 * x * (1 + tanh(gelu_a * (x + gelu_b * x * x * x)));
}

double cpu_gelu_slope(double x)
{
    double t = tanh(gelu_a * (x + gelu_b * x * x * x));
    double slope = gelu_a * (1 + 3 * gelu_b * x * x);
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * slope;
}

void cpu_ref_gelu(struct hd_kernel *k)
{
    int64_t n = hd_operand_count(&k->out[0]);
    for (int64_t i = 0; i < n; i++)
        cpu_put(k, 0, i, cpu_gelu(cpu_load(&k->in[0], i)));
}

void cpu_ref_gelu_grad(struct hd_kernel *k)
{
    int64_t n = hd_operand_count(&k->out[0]);
    for (int64_t i = 0; i < n; i++)
        cpu_put(k, 0, i, cpu_load(&k->in[1], i) * cpu_gelu_slope(cpu_load(&k->in[0], i)));
}

static const double sqrt_half = 0.70710678118654752440, normal_peak = 0.39894228040143267794; /* 1 / sqrt(2 pi) */

void cpu_ref_gelu_erf(struct hd_kernel *k)
{
    int64_t n = hd_operand_count(&k->out[0]);
    for (int64_t i = 0; i < n; i++) {
        double x = cpu_load(&k->in[0], i);
        cpu_put(k, 0, i, 0.5 * x * erfc(-x * sqrt_half));
    }
}

void cpu_ref_gelu_erf_grad(struct hd_kernel *k)
{
    int64_t n = hd_operand_count(&k->out[0]);
    for (int64_t i = 0; i < n; i++) {
        double x = cpu_load(&k->in[0], i), slope = 0.5 * erfc(-x * sqrt_half) + x * normal_peak * exp(-0.5 * x * x);
        cpu_put(k, 0, i, cpu_load(&k->in[1], i) * slope);
    }
}

void cpu_ref_relu2(struct hd_kernel *k)
{
    int64_t n = hd_operand_count(&k->out[0]);
    for (int64_t i = 0; i < n; i++) {
        double x = cpu_load(&k->in[0], i);
        cpu_put(k, 0, i, x < 0 ? 0 : x * x);
    }
}

void cpu_ref_relu2_grad(struct hd_kernel *k)
{
    int64_t n = hd_operand_count(&k->out[0]);
    for (int64_t i = 0; i < n; i++) {
        double x = cpu_load(&k->in[0], i);
        cpu_put(k, 0, i, x < 0 ? 0 : 2 * x * cpu_load(&k->in[1], i));
    }
}

void cpu_ref_softcap(struct hd_kernel *k)
{
    int64_t n = hd_operand_count(&k->out[0]);
    for (int64_t i = 0; i < n; i++)
        cpu_put(k, 0, i, k->d.attrs.scale * tanh(cpu_load(&k->in[0], i) / k->d.attrs.scale));
}

void cpu_ref_softcap_grad(struct hd_kernel *k)
{
    int64_t n = hd_operand_count(&k->out[0]);
    for (int64_t i = 0; i < n; i++) {
        double t = cpu_load(&k->in[0], i) / k->d.attrs.scale;
        cpu_put(k, 0, i, cpu_load(&k->in[1], i) * (1 - t * t));
    }
}

void cpu_ref_scale(struct hd_kernel *k)
{
    int64_t n = hd_operand_count(&k->out[0]);
    for (int64_t i = 0; i < n; i++)
        cpu_put(k, 0, i, k->d.attrs.scale * cpu_load(&k->in[0], i));
}

void cpu_ref_total(struct hd_kernel *k)
{
    int64_t n = hd_operand_count(&k->in[0]);
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += cpu_load(&k->in[0], i);
    cpu_put(k, 0, 0, k->d.attrs.scale * sum);
}

void cpu_ref_spread(struct hd_kernel *k)
{
    int64_t n = hd_operand_count(&k->out[0]);
    for (int64_t i = 0; i < n; i++)
        cpu_put(k, 0, i, cpu_seed(k, 0));
}

void cpu_ref_fill0(struct hd_kernel *k)
{
    int64_t n = hd_operand_count(&k->out[0]);
    for (int64_t i = 0; i < n; i++)
        cpu_store(&k->out[0], i, 0);
}

void cpu_ref_accum(struct hd_kernel *k)
{
    int64_t n = hd_operand_count(&k->out[0]);
    for (int64_t i = 0; i < n; i++)
        cpu_store(&k->out[0], i, cpu_load(&k->out[0], i) + cpu_load(&k->in[0], i));
}

void cpu_ref_copy(struct hd_kernel *k)
{
    int64_t n = hd_operand_count(&k->out[0]);
    for (int64_t i = 0; i < n; i++)
        cpu_put(k, 0, i, cpu_load(&k->in[0], i));
}

void cpu_ref_blend(struct hd_kernel *k)
{
    int64_t n = hd_operand_count(&k->out[0]);
    for (int64_t i = 0; i < n; i++) {
        double y = 0;
        for (uint32_t x = 0; x < k->d.n_in; x++)
            y += cpu_blend_factor(k, x) * cpu_load(&k->in[x], i);
        cpu_store(&k->out[0], i, y);
    }
}

void cpu_ref_mask(struct hd_kernel *k)
{
    int64_t n = hd_operand_count(&k->out[0]);
    for (int64_t i = 0; i < n; i++)
        cpu_put(k, 0, i, k->d.attrs.index == 0 ? cpu_load(&k->in[0], i) : 0);
}

/* The larger operand seen as [outer, parts, inner]: the smaller is [outer, inner]. */
static int64_t inner_count(const struct hd_operand *small, uint32_t dim)
{
    uint32_t at = (uint32_t)cpu_dim(small, (uint8_t)dim);
    return small->extent[at] * cpu_stride(small, at);
}

void cpu_ref_slice(struct hd_kernel *k)
{
    int64_t n = hd_operand_count(&k->out[0]);
    int64_t inner = inner_count(&k->out[0], k->d.attrs.to);
    for (int64_t i = 0; i < n; i++)
        cpu_put(k, 0, i, cpu_load(&k->in[0], (i / inner * k->d.attrs.parts + k->d.attrs.index) * inner + i % inner));
}

void cpu_ref_pad(struct hd_kernel *k)
{
    int64_t n = hd_operand_count(&k->out[0]);
    int64_t inner = inner_count(&k->in[0], k->d.attrs.from);
    for (int64_t i = 0; i < n; i++) {
        int64_t part = i / inner % k->d.attrs.parts, outer = i / inner / k->d.attrs.parts;
        cpu_put(k, 0, i, part == k->d.attrs.index ? cpu_load(&k->in[0], outer * inner + i % inner) : 0);
    }
}
