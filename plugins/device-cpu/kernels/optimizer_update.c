/* The squared norm and the optimizers' updates. Ranges are cut, once, into segments of this shard. */
#include "kernels/rows.h"
#include <math.h>
#include <stdlib.h>

enum { GRAIN = 32 };

/* The state: segments, then one sum a chunk (sumsq). Sorted; where ranges overlap, each stays as it is. */
struct segments {
    int64_t count;
    double *sums;
    struct cpu_segment s[];
};

static int by_first(const void *a, const void *b)
{
    int64_t x = ((const struct cpu_segment *)a)->first, y = ((const struct cpu_segment *)b)->first;
    return (x > y) - (x < y);
}

int64_t cpu_segments(const struct hd_kernel *k, const struct hd_operand *o, struct cpu_segment *out)
{
    int64_t n = hd_operand_count(o), start = o->start[0], count = 0;
    for (uint64_t i = 0; i < k->d.attrs.n_ranges; i++) {
        const struct hd_range *r = &k->d.attrs.ranges[i];
        int64_t first = r->first - start, last = cpu_min(first + r->count, n);
        first = first > 0 ? first : 0;
        if (first < last)
            out[count++] = (struct cpu_segment){first, last, r->value};
    }
    return count;
}

static int32_t cut(struct hd_kernel *k, const struct hd_operand *o, int64_t sums, struct hd_error *err)
{
    size_t bytes = sizeof(struct segments) + k->d.attrs.n_ranges * sizeof(struct cpu_segment);
    int32_t rc = cpu_kernel_state(k, bytes + (size_t)sums * sizeof(double), err);
    if (rc)
        return rc;
    struct segments *list = k->state;
    list->sums = (double *)((char *)k->state + bytes);
    list->count = cpu_segments(k, o, list->s);
    qsort(list->s, (size_t)list->count, sizeof list->s[0], by_first);
    return HD_OK;
}

/* ---- sum of squares: each chunk's in double, summed in order */

CPU_CLONES(double, square_sum, (const float *x, int64_t n), (x, n))
{
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    return sum;
}

static void sumsq_chunks(void *context, int64_t first, int64_t last)
{
    struct hd_kernel *k = context;
    struct segments *list = k->state;
    float buf[CPU_CHUNK];
    int64_t n = hd_operand_count(&k->in[0]), at = 0;
    for (int64_t c = first; c < last; c++) {
        int64_t from = c * CPU_CHUNK, to = cpu_min(from + CPU_CHUNK, n);
        double sum = 0;
        while (at < list->count && list->s[at].last <= from)
            at++;
        for (int64_t i = at; i < list->count && list->s[i].first < to; i++) {
            int64_t a = list->s[i].first > from ? list->s[i].first : from, b = cpu_min(list->s[i].last, to);
            if (a < b)
                sum += list->s[i].value * square_sum(cpu_read(&k->in[0], a, b - a, buf), b - a);
        }
        list->sums[c] = sum;
    }
}

static void run_sumsq(struct hd_kernel *k)
{
    const struct segments *list = k->state;
    int64_t chunks = cpu_chunks(hd_operand_count(&k->in[0]));
    double sum = 0;
    cpu_parallel(k->device, chunks, GRAIN, sumsq_chunks, k);
    for (int64_t c = 0; c < chunks; c++)
        sum += list->sums[c];
    *(double *)k->out[0].data += sum;
}

int32_t cpu_fast_sumsq(struct hd_kernel *k, struct hd_error *err)
{
    int32_t rc = cpu_fast_dtypes(k, 1 << 16, err);
    if (!rc && k->out[0].dtype != HD_F64)
        return hd_fail(err, HD_E_UNSUPPORTED, "the sum is %s", hd_dtype_name(k->out[0].dtype));
    if (!rc && hd_operand_count(&k->out[0]) == HD_SUM_DIGITS)
        return cpu_fast_digits(k, err);
    k->run = run_sumsq;
    return rc ? rc : cut(k, &k->in[0], cpu_chunks(hd_operand_count(&k->in[0])), err);
}

/* ---- updates */

/* State of a launch: a copy of hyper, and values derived from it. */
struct update {
    struct hd_kernel *k;
    uint64_t key; /* of stochastic rounding */
    float factor, lr, beta1, beta2, rest1, rest2, fix1, fix2, eps;
    float shrink; /* of this segment: 1 - lr decay; sgd: decay */
};

static int begin_update(struct hd_kernel *k, struct update *u)
{
    const struct hd_attrs *a = &k->d.attrs;
    const double *hyper = k->in[2].data;
    double t = hyper[HD_HYPER_STEP], inv_scale = hyper[HD_HYPER_INV_SCALE];
    double norm2 = *(const double *)k->in[1].data * inv_scale * inv_scale;
    *u = (struct update){
        .k = k,
        .factor = (float)(inv_scale * hd_clip_factor(norm2, a->clip, sqrt)),
        .lr = (float)hyper[HD_HYPER_LR],
        .beta1 = (float)a->beta1,
        .beta2 = (float)a->beta2,
        .rest1 = (float)(1 - a->beta1),
        .rest2 = (float)(1 - a->beta2),
        .fix1 = (float)(1 / (1 - pow(a->beta1, t))),
        .fix2 = (float)(1 / (1 - pow(a->beta2, t))),
        .eps = (float)a->eps,
        .key = hd_round_stochastic_key(a->index, t),
    };
    return hd_update_runs(hyper, norm2);
}

CPU_CLONES(void, adamw, (const struct update *all, float *p, float *m, float *v, const float *g, int64_t n),
           (all, p, m, v, g, n))
{
    const struct update u = *all;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float d = g[i] * u.factor;
        float m1 = u.beta1 * m[i] + u.rest1 * d;
        float v1 = u.beta2 * v[i] + u.rest2 * d * d;
        m[i] = m1;
        v[i] = v1;
        p[i] = p[i] * u.shrink - u.lr * (m1 * u.fix1) / (sqrtf(v1 * u.fix2) + u.eps);
    }
}

/* Elements whose first is the `index`-th of the whole flat buffer. */
CPU_CLONES(void, round_stochastic, (float *p, int64_t n, uint64_t key, int64_t index), (p, n, key, index))
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        p[i] = hd_round_stochastic_bf16(p[i], key, index + i);
}

CPU_CLONES(void, sgd, (const struct update *all, float *p, float *m, const float *g, int64_t n), (all, p, m, g, n))
{
    const struct update u = *all;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float step = u.beta1 * m[i] + (g[i] * u.factor + u.shrink * p[i]);
        m[i] = step;
        p[i] -= u.lr * step;
    }
}

CPU_CLONES(void, sgd_plain, (const struct update *all, float *p, const float *g, int64_t n), (all, p, g, n))
{
    const struct update u = *all;
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        p[i] -= u.lr * (g[i] * u.factor + u.shrink * p[i]);
}

/* Elements [at, at + n), at most a chunk, under one decay. Outputs are read, changed and written back. */
static void update_segment(const struct update *u, int64_t at, int64_t n)
{
    struct hd_kernel *k = u->k;
    float gb[CPU_CHUNK], buf[3][CPU_CHUNK], *x[3];
    int adam = k->d.op == HD_OP_ADAMW;
    uint32_t states = adam ? 3 : k->d.attrs.beta1 != 0 ? 2 : 1;
    const float *g = cpu_read(&k->in[0], at, n, gb);
    for (uint32_t i = 0; i < states; i++)
        x[i] = (float *)cpu_read(&k->out[i], at, n, buf[i]);
    if (adam)
        adamw(u, x[0], x[1], x[2], g, n);
    else if (states == 2)
        sgd(u, x[0], x[1], g, n);
    else
        sgd_plain(u, x[0], g, n);
    if (adam && k->d.attrs.flags & HD_ATTR_STOCHASTIC && k->out[0].dtype == HD_BF16)
        round_stochastic(x[0], n, u->key, k->out[0].start[0] + at);
    for (uint32_t i = 0; i < states; i++)
        cpu_write(&k->out[i], at, n, x[i]);
    if (k->d.n_out > states)
        cpu_write(&k->out[states], at, n, x[0]);
}

static void update_chunks(void *context, int64_t first, int64_t last)
{
    struct update u = *(struct update *)context;
    struct hd_kernel *k = u.k;
    const struct segments *list = k->state;
    int adam = k->d.op == HD_OP_ADAMW;
    int64_t n = hd_operand_count(&k->out[0]), i = 0;
    for (int64_t c = first; c < last; c++) {
        int64_t at = c * CPU_CHUNK, to = cpu_min(at + CPU_CHUNK, n);
        while (at < to) {
            while (i < list->count && list->s[i].last <= at)
                i++;
            const struct cpu_segment *s = i < list->count ? &list->s[i] : NULL;
            int inside = s && s->first <= at;
            int64_t end = cpu_min(to, inside ? s->last : s ? s->first : to);
            double decay = inside ? s->value : 0;
            u.shrink = (float)(adam ? 1 - ((const double *)k->in[2].data)[HD_HYPER_LR] * decay : decay);
            update_segment(&u, at, end - at);
            at = end;
        }
    }
}

static void run_update(struct hd_kernel *k)
{
    struct update u;
    if (begin_update(k, &u))
        cpu_parallel(k->device, cpu_chunks(hd_operand_count(&k->out[0])), GRAIN, update_chunks, &u);
}

static int32_t prepare_update(struct hd_kernel *k, struct hd_error *err)
{
    int32_t rc = cpu_fast_dtypes(k, 6, err);
    if (!rc && (k->in[1].dtype != HD_F64 || k->in[2].dtype != HD_F64))
        return hd_fail(err, HD_E_UNSUPPORTED, "norm and hyper are not fp64");
    k->run = run_update;
    if (!rc)
        rc = cut(k, &k->out[0], 0, err);
    const struct segments *list = k->state;
    for (int64_t i = 1; !rc && i < list->count; i++)
        if (list->s[i].first < list->s[i - 1].last)
            return hd_fail(err, HD_E_UNSUPPORTED, "decay ranges overlap");
    return rc;
}

int32_t cpu_fast_adamw(struct hd_kernel *k, struct hd_error *err)
{
    return prepare_update(k, err);
}

int32_t cpu_fast_sgd(struct hd_kernel *k, struct hd_error *err)
{
    return prepare_update(k, err);
}
