/* Rotary positions (Su et al., arXiv 2104.09864) and grouped-query attention (Ainslie et al., arXiv
 * 2305.13245). With p = exp(scale q k - lse) and D = sum_d do o, the gradients are
 * dv = p do,  ds = p (do v - D),  dq = scale ds k,  dk = scale ds q  (Dao, arXiv 2307.08691, section 3.1). A soft cap
 * c makes scores z = c tanh(scale q k / c), and ds is multiplied by dz/d(scale q k) = 1 - (z / c)^2. */
#include "reference/reference.h"

void cpu_ref_rope(struct hd_kernel *k)
{
    const struct hd_operand *x = &k->in[0];
    int64_t d = x->extent[x->ndim - 1], n = hd_operand_count(x), per_s = cpu_stride(x, 1);
    struct cpu_pairs pairs = cpu_pairs(k);
    double scale = k->d.attrs.scale != 0 ? k->d.attrs.scale : 1;
    for (int64_t at = 0; at < n; at += d) {
        double position = k->d.n_in > 1 ? cpu_load(&k->in[1], at / per_s)
                                        : (double)hd_position(&k->d.attrs, x->start[1] + at / per_s % x->extent[1]);
        for (int64_t i = 0; i < pairs.n; i++) {
            double angle = k->d.attrs.sign * position * k->d.attrs.table[i];
            int64_t first = at + i * pairs.step, second = first + pairs.apart;
            double a = cpu_load(x, first), b = cpu_load(x, second);
            cpu_put(k, 0, first, scale * (a * cos(angle) - b * sin(angle)));
            cpu_put(k, 0, second, scale * (b * cos(angle) + a * sin(angle)));
        }
        for (int64_t i = 2 * pairs.n; i < d; i++)
            cpu_put(k, 0, at + i, cpu_load(x, at + i));
    }
}

struct cpu_order cpu_order(const struct hd_operand *o, uint32_t dim, const struct hd_attrs *attrs)
{
    struct cpu_order order = {.n = o->extent[dim], .first = o->extent[dim]};
    int64_t run = attrs->zigzag_parts > 1 ? attrs->zigzag_length / (2 * attrs->zigzag_parts) : 0;
    if (run && run - o->start[dim] % run < order.n)
        order.first = run - o->start[dim] % run;
    order.at[0] = hd_position(attrs, o->start[dim]);
    order.at[1] = order.first < order.n ? hd_position(attrs, o->start[dim] + order.first) : order.at[0] + order.n;
    return order;
}

struct cpu_heads cpu_heads(const struct hd_operand *q, const struct hd_operand *k, const struct hd_attrs *attrs)
{
    uint32_t s = q->ndim - 4, t = k->ndim - 3;
    return (struct cpu_heads){.b = cpu_span(q, 0, s),
                              .s = q->extent[s],
                              .t = k->extent[t],
                              .k = q->extent[s + 1],
                              .g = q->extent[s + 2],
                              .d = q->extent[s + 3],
                              .window = attrs->window,
                              .prefix = attrs->top_k,
                              .causal = !(attrs->flags & HD_ATTR_NOT_CAUSAL),
                              .queries = cpu_order(q, s, attrs),
                              .keys = cpu_order(k, t, attrs)};
}

/* Offsets of one query head's vector, and of key j of its kv head. */
static int64_t query_at(const struct cpu_heads *h, int64_t b, int64_t i, int64_t kv, int64_t g)
{
    return ((b * h->s + i) * h->k + kv) * h->g + g;
}

static int64_t key_at(const struct cpu_heads *h, int64_t b, int64_t j, int64_t kv)
{
    return ((b * h->t + j) * h->k + kv) * h->d;
}

static double dot(const struct hd_operand *x, int64_t i, const struct hd_operand *y, int64_t j, int64_t d)
{
    double sum = 0;
    if (x->dtype == HD_F64 && y->dtype == HD_F64) {
        const double *a = (const double *)x->data + i, *b = (const double *)y->data + j;
        for (int64_t e = 0; e < d; e++)
            sum += a[e] * b[e];
        return sum;
    }
    for (int64_t e = 0; e < d; e++)
        sum += cpu_load(x, i + e) * cpu_load(y, j + e);
    return sum;
}

/* The score of a query, at an element of q, and a key. */
static double score(const struct hd_kernel *k, const struct cpu_heads *h, int64_t query, int64_t key)
{
    double x = k->d.attrs.scale * dot(&k->in[0], query, &k->in[1], key, h->d), cap = k->d.attrs.clip;
    return cap > 0 ? cap * tanh(x / cap) : x;
}

/* One query head's row: row is (b, i, kv, g) counted up. */
static void attend(struct hd_kernel *k, const struct cpu_heads *h, int64_t b, int64_t i, int64_t kv, int64_t row)
{
    int64_t first, end;
    double most = -INFINITY, sum = 0, *o = k->state, *scores = o + h->d;
    cpu_visible(h, i, &first, &end);
    for (int64_t j = first; j < end; j++) {
        scores[j] = score(k, h, row * h->d, key_at(h, b, j, kv));
        most = fmax(most, scores[j]);
    }
    for (int64_t j = first; j < end; j++)
        sum += exp(scores[j] - most);
    double lse = sum > 0 ? most + log(sum) : -INFINITY;
    memset(o, 0, (size_t)h->d * sizeof *o);
    for (int64_t j = first; j < end; j++) {
        double p = exp(scores[j] - lse);
        for (int64_t e = 0; e < h->d; e++)
            o[e] += p * cpu_load(&k->in[2], key_at(h, b, j, kv) + e);
    }
    for (int64_t e = 0; e < h->d; e++)
        cpu_put(k, 0, row * h->d + e, o[e]);
    cpu_store(&k->out[1], row, lse); /* a statistic of this call: never added to what was there */
}

void cpu_ref_attention(struct hd_kernel *k)
{
    struct cpu_heads h = cpu_heads(&k->in[0], &k->in[1], &k->d.attrs);
    for (int64_t b = 0; b < h.b; b++) {
        cpu_heads_row(&h, k, b);
        for (int64_t i = 0; i < h.s; i++)
            for (int64_t kv = 0; kv < h.k; kv++)
                for (int64_t g = 0; g < h.g; g++)
                    attend(k, &h, b, i, kv, query_at(&h, b, i, kv, g));
    }
}

/* Adds one row's share to dq, dk and dv, which are sums in double. */
static void attend_back(struct hd_kernel *k, const struct cpu_heads *h, int64_t b, int64_t i, int64_t kv, int64_t row,
                        double *dq, double *dk, double *dv)
{
    const struct hd_operand *q = &k->in[0], *key = &k->in[1], *v = &k->in[2], *o = &k->in[3], *go = &k->in[5];
    int64_t first, end, d = h->d, at = row * d;
    double scale = k->d.attrs.scale, lse = cpu_load(&k->in[4], row), mean = dot(go, at, o, at, d);
    double cap = k->d.attrs.clip;
    cpu_visible(h, i, &first, &end);
    for (int64_t j = first; j < end; j++) {
        int64_t to = key_at(h, b, j, kv);
        double z = score(k, h, at, to), p = exp(z - lse), slope = cap > 0 ? 1 - z / cap * (z / cap) : 1;
        double ds = scale * slope * p * (dot(go, at, v, to, d) - mean);
        for (int64_t e = 0; e < d; e++) {
            dq[at + e] += ds * cpu_load(key, to + e);
            dk[to + e] += ds * cpu_load(q, at + e);
            dv[to + e] += p * cpu_load(go, at + e);
        }
    }
}

void cpu_ref_attention_grad(struct hd_kernel *k)
{
    struct cpu_heads h = cpu_heads(&k->in[0], &k->in[1], &k->d.attrs);
    int64_t n_q = hd_operand_count(&k->in[0]), n_k = hd_operand_count(&k->in[1]);
    double *dq = k->state, *dk = dq + n_q, *dv = dk + n_k;
    memset(dq, 0, (size_t)(n_q + 2 * n_k) * sizeof *dq);
    for (int64_t b = 0; b < h.b; b++) {
        cpu_heads_row(&h, k, b);
        for (int64_t i = 0; i < h.s; i++)
            for (int64_t kv = 0; kv < h.k; kv++)
                for (int64_t g = 0; g < h.g; g++)
                    attend_back(k, &h, b, i, kv, query_at(&h, b, i, kv, g), dq, dk, dv);
    }
    for (int64_t i = 0; i < n_q; i++)
        cpu_put(k, 0, i, dq[i]);
    for (int64_t i = 0; i < n_k; i++) {
        cpu_put(k, 1, i, dk[i]);
        cpu_put(k, 2, i, dv[i]);
    }
}

/* o = w1 o1 + w2 o2 with w = exp(lse of one - lse of both). A query that sees no keys on one side has lse -inf
 * there. */
void cpu_ref_attention_merge(struct hd_kernel *k)
{
    int64_t rows = hd_operand_count(&k->in[1]), d = rows ? hd_operand_count(&k->in[0]) / rows : 0;
    for (int64_t row = 0; row < rows; row++) {
        double a = cpu_load(&k->in[1], row), b = cpu_load(&k->in[3], row), most = fmax(a, b);
        double lse = most == -INFINITY ? most : most + log(exp(a - most) + exp(b - most));
        double wa = a == -INFINITY ? 0 : exp(a - lse), wb = b == -INFINITY ? 0 : exp(b - lse);
        for (int64_t e = 0; e < d; e++)
            cpu_put(k, 0, row * d + e, wa * cpu_load(&k->in[0], row * d + e) + wb * cpu_load(&k->in[2], row * d + e));
        cpu_store(&k->out[1], row, lse);
    }
}

/* ---- a step of decoding */

void cpu_cache_put(const struct hd_kernel *k)
{
    const struct hd_operand *step = &k->in[1];
    int64_t rows = k->in[3].extent[1], per_row = cpu_stride(step, 1), all = k->in[3].extent[0] * rows * per_row;
    for (uint32_t n = 1; n <= 2; n++) {
        size_t size = hd_dtype_size(k->out[n].dtype);
        char *cache = k->out[n].data;
        if (cache != k->in[2 + n].data)
            memmove(cache, k->in[2 + n].data, (size_t)all * size);
        for (int64_t i = 0; i < cpu_span(step, 0, 2); i++) {
            int64_t at = cpu_cache_row(k, i);
            if (at >= 0)
                memcpy(cache + (size_t)((i / step->extent[1] * rows + at) * per_row) * size,
                       (const char *)k->in[n].data + (size_t)(i * per_row) * size, (size_t)per_row * size);
        }
    }
}

static double cached_score(const struct hd_kernel *k, int64_t query, int64_t key)
{
    const struct hd_operand *q = &k->in[0];
    double x = k->d.attrs.scale * dot(q, query, &k->out[1], key, q->extent[4]), cap = k->d.attrs.clip;
    return cap > 0 ? cap * tanh(x / cap) : x;
}

/* Row `row` of [b, t, kv head, query head], with the cache's element of its kv head at position 0. */
static void attend_cached(struct hd_kernel *k, int64_t row, int64_t position, int64_t first)
{
    int64_t d = k->in[0].extent[4], step = cpu_stride(&k->in[3], 1);
    double most = -INFINITY, sum = 0, *o = k->state;
    memset(o, 0, (size_t)d * sizeof *o);
    for (int64_t j = 0; j <= position; j++)
        if (hd_attends(&k->d.attrs, position, j))
            most = fmax(most, cached_score(k, row * d, first + j * step));
    for (int64_t j = 0; j <= position; j++) {
        if (!hd_attends(&k->d.attrs, position, j))
            continue;
        double p = exp(cached_score(k, row * d, first + j * step) - most);
        sum += p;
        for (int64_t e = 0; e < d; e++)
            o[e] += p * cpu_load(&k->out[2], first + j * step + e);
    }
    for (int64_t e = 0; e < d; e++)
        cpu_put(k, 0, row * d + e, sum > 0 ? o[e] / sum : 0);
}

void cpu_ref_attention_cached(struct hd_kernel *k)
{
    const struct hd_operand *q = &k->in[0], *cache = &k->in[3];
    int64_t groups = q->extent[3], heads = q->extent[2], d = q->extent[4], n = cpu_span(q, 0, 4);
    cpu_cache_put(k);
    for (int64_t row = 0; row < n; row++) {
        int64_t i = row / groups / heads, kv = row / groups % heads, b = i / q->extent[1];
        attend_cached(k, row, cpu_cache_row(k, i), (b * cache->extent[1] * heads + kv) * d);
    }
}
