/* A step of decoding: attention of a few queries over the rows of a cache. It reads every row once for all query heads
 * of its kv head, so it runs as fast as memory; the softmax is of a whole row of scores. */
#include "attention/attention.h"
#include "kernels/rows.h"

#include <math.h>

/* A thread's memory: scores of each query head over the cache, queries, sums, and a row that is widened. */
struct room {
    float *scores, *q, *o, *wide;
};

static int64_t room_floats(const struct hd_kernel *k)
{
    const struct hd_operand *q = &k->in[0];
    return cpu_round_up(q->extent[3] * k->in[3].extent[1] + (2 * q->extent[3] + 1) * q->extent[4], 16);
}

static struct room room_of(const struct hd_kernel *k, int64_t thread)
{
    const struct hd_operand *q = &k->in[0];
    int64_t all = q->extent[3] * q->extent[4];
    struct room r = {.scores = (float *)cpu_scratch(k->device) + thread * room_floats(k)};
    r.q = r.scores + q->extent[3] * k->in[3].extent[1];
    r.o = r.q + all;
    r.wide = r.o + all;
    return r;
}

CPU_CLONES(void, score_row, (float *scores, int64_t step, const float *q, const float *key, int64_t g, int64_t d),
           (scores, step, q, key, g, d))
{
    for (int64_t n = 0; n < g; n++, q += d) {
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t e = 0; e < d; e++)
            sum += q[e] * key[e];
        scores[n * step] = sum;
    }
}

CPU_CLONES(void, add_row, (float *o, const float *weights, int64_t step, const float *value, int64_t g, int64_t d),
           (o, weights, step, value, g, d))
{
    for (int64_t n = 0; n < g; n++, o += d) {
        float w = weights[n * step];
#pragma omp simd
        for (int64_t e = 0; e < d; e++)
            o[e] += w * value[e];
    }
}

/* Scores times the scale become weights; returns 1 / their sum. */
CPU_CLONES(float, softmax, (float *s, int64_t n, float scale, float cap), (s, n, scale, cap))
{
    float most = -INFINITY, sum = 0;
    for (int64_t j = 0; j < n; j++) {
        s[j] = cap > 0 ? cap * tanhf(scale * s[j] / cap) : scale * s[j];
        most = s[j] > most ? s[j] : most;
    }
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < n; j++) {
        s[j] = cpu_exp(s[j] - most);
        sum += s[j];
    }
    return 1 / sum;
}

/* Query i of [b, t], all heads of one kv head. */
static void attend(struct hd_kernel *k, const struct room *r, int64_t i, int64_t kv)
{
    const struct hd_operand *q = &k->in[0], *keys = &k->out[1], *values = &k->out[2];
    int64_t g = q->extent[3], d = q->extent[4], heads = q->extent[2], rows = keys->extent[1], step = heads * d;
    int64_t at = cpu_cache_row(k, i), window = k->d.attrs.window,
            first = window > 0 && at >= window ? at - window + 1 : 0;
    int64_t base = (i / q->extent[1] * rows * heads + kv) * d, to = (i * heads + kv) * g * d;
    memcpy(r->q, cpu_read(q, to, g * d, r->o), (size_t)(g * d) * sizeof(float));
    memset(r->o, 0, (size_t)(g * d) * sizeof(float));
    for (int64_t j = first; j <= at; j++)
        score_row(r->scores + j - first, rows, r->q, cpu_read(keys, base + j * step, d, r->wide), g, d);
    for (int64_t n = 0; n < g && at >= 0; n++) {
        float *s = r->scores + n * rows,
              part = softmax(s, at - first + 1, (float)k->d.attrs.scale, (float)k->d.attrs.clip);
        for (int64_t j = 0; j <= at - first; j++)
            s[j] *= part;
    }
    for (int64_t j = first; j <= at; j++)
        add_row(r->o, r->scores + j - first, rows, cpu_read(values, base + j * step, d, r->wide), g, d);
    cpu_write(&k->out[0], to, g * d, r->o);
}

struct units {
    struct hd_kernel *k;
    int64_t next; /* (query, kv head) to take */
};

static void units_run(void *context, int64_t first, int64_t last)
{
    struct units *u = context;
    const struct hd_operand *q = &u->k->in[0];
    struct room r = room_of(u->k, first);
    int64_t heads = q->extent[2], n = cpu_span(q, 0, 3);
    (void)last;
    for (int64_t unit; (unit = __atomic_fetch_add(&u->next, 1, __ATOMIC_RELAXED)) < n;)
        attend(u->k, &r, unit / heads, unit % heads);
}

static void run(struct hd_kernel *k)
{
    struct units u = {.k = k};
    cpu_cache_put(k);
    cpu_parallel(k->device, k->device->threads, 1, units_run, &u);
}

int32_t cpu_fast_attention_cached(struct hd_kernel *k, struct hd_error *err)
{
    int32_t rc = cpu_fast_dtypes(k, 1 << 5, err);
    if (!rc)
        rc = cpu_scratch_reserve(k->device, (size_t)(room_floats(k) * k->device->threads) * sizeof(float), err);
    if (!rc)
        k->run = run;
    return rc;
}
