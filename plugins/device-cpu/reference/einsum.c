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

/* A chain of additions for each sum: several chains run at once. */
#define ADD_PRODUCTS(type)                                                                         \
    do {                                                                                           \
        const type *x = (const type *)a->of->data + a->at, *y = (const type *)b->of->data + b->at; \
        double t[CPU_SUMS];                                                                        \
        memcpy(t, total, sizeof t);                                                                \
        for (int64_t i = 0; i < n; i++, x += a->by, y += b->by)                                    \
            for (int s = 0; s < CPU_SUMS; s++)                                                     \
                t[s] += (double)x[s * a->step] * (double)y[s * b->step];                           \
        memcpy(total, t, sizeof t);                                                                \
    } while (0)

void cpu_add_products(double total[CPU_SUMS], int64_t sums, int64_t n, const struct cpu_walk *a,
                      const struct cpu_walk *b)
{
    if (sums == CPU_SUMS && a->of->dtype == HD_F64 && b->of->dtype == HD_F64)
        ADD_PRODUCTS(double);
    else if (sums == CPU_SUMS && a->of->dtype == HD_F32 && b->of->dtype == HD_F32)
        ADD_PRODUCTS(float);
    else
        for (int64_t s = 0; s < sums; s++)
            for (int64_t i = 0; i < n; i++)
                total[s] +=
                    cpu_load(a->of, a->at + i * a->by + s * a->step) * cpu_load(b->of, b->at + i * b->by + s * b->step);
}

/* The last label is summed at once. */
static void dots(const struct label *sum, uint32_t n, struct cpu_walk a, struct cpu_walk b, double total[CPU_SUMS],
                 int64_t sums)
{
    int64_t at[2 * HD_MAX_DIMS];
    const struct label none = {.extent = 1}, *last = n ? &sum[n - 1] : &none;
    a.by = last->a;
    b.by = last->b;
    for (uint32_t i = 0; i < n; i++) {
        at[i] = 0;
        if (sum[i].extent == 0)
            return;
    }
    do
        cpu_add_products(total, sums, last->extent, &a, &b);
    while (next(sum, n ? n - 1 : 0, at, &a.at, &b.at));
}

void cpu_each_product(struct hd_kernel *k, void (*put)(const struct hd_kernel *k, int64_t i, double v))
{
    struct label keep[HD_MAX_DIMS], sum[2 * HD_MAX_DIMS], last = {.extent = 1};
    int64_t at[HD_MAX_DIMS] = {0}, a = 0, b = 0;
    int64_t count = hd_operand_count(&k->out[0]);
    uint32_t n_sum = summed_labels(k, sum), n_keep = k->out[0].ndim ? k->out[0].ndim - 1 : 0;
    for (uint32_t i = 0; i < k->out[0].ndim; i++)
        keep[i] = last = label_of(k, &k->out[0], i);
    for (int64_t row = 0; row < count; row += last.extent) {
        for (int64_t j = 0; j < last.extent; j += CPU_SUMS) {
            double total[CPU_SUMS] = {0};
            int64_t sums = last.extent - j < CPU_SUMS ? last.extent - j : CPU_SUMS;
            dots(sum, n_sum, (struct cpu_walk){.of = &k->in[0], .at = a + j * last.a, .step = last.a},
                 (struct cpu_walk){.of = &k->in[1], .at = b + j * last.b, .step = last.b}, total, sums);
            for (int64_t s = 0; s < sums; s++)
                put(k, row + j + s, total[s]);
        }
        next(keep, n_keep, at, &a, &b);
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
