/* c[*] <- a[*], b[*] with any labels: an odometer over the labels of c, and for each element one over those that c
 * lacks, which are summed. */
#include "reference/reference.h"

struct label {
    int64_t id;
    int64_t extent, a, b; /* strides; 0 where an operand lacks the label */
};

static struct label label_of(const struct hd_kernel *k, const struct hd_operand *o, uint32_t i)
{
    struct label l = {.id = o->dim[i], .extent = o->extent[i]};
    int32_t a = cpu_dim(&k->in[0], o->dim[i]), b = cpu_dim(&k->in[1], o->dim[i]);
    l.a = a < 0 ? 0 : cpu_stride(&k->in[0], (uint32_t)a);
    l.b = b < 0 ? 0 : cpu_stride(&k->in[1], (uint32_t)b);
    return l;
}

/* Labels that are summed: those of a and b that c lacks. */
static uint32_t summed_labels(const struct hd_kernel *k, struct label *sum)
{
    uint32_t n = 0;
    for (uint32_t side = 0; side < 2; side++)
        for (uint32_t i = 0; i < k->in[side].ndim; i++) {
            uint8_t id = k->in[side].dim[i];
            if (cpu_dim(&k->out[0], id) < 0 && !(side == 1 && cpu_dim(&k->in[0], id) >= 0))
                sum[n++] = label_of(k, &k->in[side], i);
        }
    return n;
}

/* Steps the odometer; moves the offsets; 0 when it has gone round. */
static int next(const struct label *l, uint32_t n, int64_t *at, int64_t *a, int64_t *b)
{
    while (n--) {
        *a += l[n].a;
        *b += l[n].b;
        if (++at[n] < l[n].extent)
            return 1;
        *a -= l[n].a * l[n].extent;
        *b -= l[n].b * l[n].extent;
        at[n] = 0;
    }
    return 0;
}

#define ADD_PRODUCTS(type)          \
    for (int64_t i = 0; i < n; i++) \
    total += (double)((const type *)a->data)[at_a + i * by_a] * (double)((const type *)b->data)[at_b + i * by_b]

double cpu_add_products(double total, int64_t n, const struct hd_operand *a, int64_t at_a, int64_t by_a,
                        const struct hd_operand *b, int64_t at_b, int64_t by_b)
{
    if (a->dtype == HD_F64 && b->dtype == HD_F64)
        ADD_PRODUCTS(double);
    else if (a->dtype == HD_F32 && b->dtype == HD_F32)
        ADD_PRODUCTS(float);
    else
        for (int64_t i = 0; i < n; i++)
            total += cpu_load(a, at_a + i * by_a) * cpu_load(b, at_b + i * by_b);
    return total;
}

/* The last label is summed at once. */
static double dot(const struct hd_kernel *k, const struct label *sum, uint32_t n, int64_t a, int64_t b)
{
    int64_t at[2 * HD_MAX_DIMS] = {0};
    const struct label none = {.extent = 1}, *last = n ? &sum[n - 1] : &none;
    double total = 0;
    for (uint32_t i = 0; i < n; i++)
        if (sum[i].extent == 0)
            return 0;
    do
        total = cpu_add_products(total, last->extent, &k->in[0], a, last->a, &k->in[1], b, last->b);
    while (next(sum, n ? n - 1 : 0, at, &a, &b));
    return total;
}

void cpu_each_product(struct hd_kernel *k, void (*put)(const struct hd_kernel *k, int64_t i, double v))
{
    struct label keep[HD_MAX_DIMS], sum[2 * HD_MAX_DIMS];
    int64_t at[HD_MAX_DIMS] = {0}, a = 0, b = 0;
    int64_t count = hd_operand_count(&k->out[0]);
    uint32_t n_sum = summed_labels(k, sum);
    for (uint32_t i = 0; i < k->out[0].ndim; i++)
        keep[i] = label_of(k, &k->out[0], i);
    for (int64_t i = 0; i < count; i++) {
        put(k, i, dot(k, sum, n_sum, a, b));
        next(keep, k->out[0].ndim, at, &a, &b);
    }
}

static void put_product(const struct hd_kernel *k, int64_t i, double v)
{
    cpu_put(k, 0, i, v);
}

void cpu_ref_einsum(struct hd_kernel *k)
{
    cpu_each_product(k, put_product);
}

/* ---- epilogues of a matmul */

static double biased(const struct hd_kernel *k, int64_t i, double v)
{
    return v + cpu_load(&k->in[2], cpu_subset_index(&k->out[0], &k->in[2], i));
}

static void put_biased(const struct hd_kernel *k, int64_t i, double v)
{
    cpu_put(k, 0, i, biased(k, i, v));
}

void cpu_ref_einsum_bias(struct hd_kernel *k)
{
    cpu_each_product(k, put_biased);
}

static void put_gelu(const struct hd_kernel *k, int64_t i, double v)
{
    double z = biased(k, i, v);
    cpu_put(k, 0, i, cpu_gelu(z));
    if (k->d.n_out > 1)
        cpu_put(k, 1, i, z);
}

void cpu_ref_einsum_gelu(struct hd_kernel *k)
{
    cpu_each_product(k, put_gelu);
}

static void put_gelu_grad(const struct hd_kernel *k, int64_t i, double v)
{
    cpu_put(k, 0, i, v * cpu_gelu_slope(cpu_load(&k->in[2], i)));
}

void cpu_ref_einsum_gelu_grad(struct hd_kernel *k)
{
    cpu_each_product(k, put_gelu_grad);
}

void cpu_ref_einsum_bias_dw(struct hd_kernel *k)
{
    cpu_sum_subset(k, 1);
    cpu_each_product(k, put_product);
}
