/* Checks of each op's operands. A program that passes heddle's own checks never fails here; a user of the plug-in with
 * descriptors of their own may. */
#include "reference/reference.h"

static int32_t same_count(const struct hd_kernel *k, const struct hd_operand *o, int64_t n, const char *what,
                          struct hd_error *err)
{
    if (hd_operand_count(o) == n)
        return HD_OK;
    return cpu_invalid(k, err, "%s has %lld elements, the others ask for %lld", what, (long long)hd_operand_count(o),
                       (long long)n);
}

/* Every operand with as many elements as the first output. */
int32_t cpu_check_same(struct hd_kernel *k, struct hd_error *err)
{
    int64_t n = hd_operand_count(&k->out[0]);
    int32_t rc = HD_OK;
    for (uint32_t i = 0; !rc && i < k->d.n_in; i++)
        rc = same_count(k, &k->in[i], n, "an input", err);
    for (uint32_t i = 1; !rc && i < k->d.n_out; i++)
        rc = same_count(k, &k->out[i], n, "an output", err);
    return rc;
}

int32_t cpu_check_blend(struct hd_kernel *k, struct hd_error *err)
{
    if (!k->d.attrs.table || k->d.attrs.n_table != k->d.n_in)
        return cpu_invalid(k, err, "a blend of %u tensors has %llu factors", k->d.n_in,
                           (unsigned long long)k->d.attrs.n_table);
    return cpu_check_same(k, err);
}

/* Equal dim ids have equal extents. */
static int32_t agree(const struct hd_kernel *k, const struct hd_operand *x, const struct hd_operand *y,
                     struct hd_error *err)
{
    for (uint32_t i = 0; i < x->ndim; i++) {
        int32_t j = cpu_dim(y, x->dim[i]);
        if (j >= 0 && x->extent[i] != y->extent[j])
            return cpu_invalid(k, err, "dim id %u has extent %lld in one operand and %lld in another", x->dim[i],
                               (long long)x->extent[i], (long long)y->extent[j]);
    }
    return HD_OK;
}

/* A label twice in one operand would be a diagonal, which no op means. */
static int32_t distinct(const struct hd_kernel *k, const struct hd_operand *x, struct hd_error *err)
{
    for (uint32_t i = 0; i < x->ndim; i++)
        if (cpu_dim(x, x->dim[i]) != (int32_t)i)
            return cpu_invalid(k, err, "dim id %u is twice in one operand", x->dim[i]);
    return HD_OK;
}

int32_t cpu_check_einsum(struct hd_kernel *k, struct hd_error *err)
{
    const struct hd_operand *a = &k->in[0], *b = &k->in[1], *c = &k->out[0];
    if (distinct(k, a, err) || distinct(k, b, err) || distinct(k, c, err))
        return HD_E_INVALID;
    for (uint32_t i = 0; i < c->ndim; i++)
        if (cpu_dim(a, c->dim[i]) < 0 && cpu_dim(b, c->dim[i]) < 0)
            return cpu_invalid(k, err, "dim id %u of the output is in no input", c->dim[i]);
    int32_t rc = agree(k, a, b, err);
    if (!rc)
        rc = agree(k, c, a, err);
    return rc ? rc : agree(k, c, b, err);
}

/* The dims of w are some of x's. */
static int32_t subset(const struct hd_kernel *k, const struct hd_operand *x, const struct hd_operand *w,
                      struct hd_error *err)
{
    if (distinct(k, x, err) || distinct(k, w, err))
        return HD_E_INVALID;
    for (uint32_t i = 0; i < w->ndim; i++)
        if (cpu_dim(x, w->dim[i]) < 0)
            return cpu_invalid(k, err, "dim id %u of the bias is not in the input", w->dim[i]);
    return agree(k, w, x, err);
}

int32_t cpu_check_bias(struct hd_kernel *k, struct hd_error *err)
{
    int32_t rc = same_count(k, &k->in[0], hd_operand_count(&k->out[0]), "input 0", err);
    return rc ? rc : subset(k, &k->in[0], &k->in[1], err);
}

int32_t cpu_check_bias_dw(struct hd_kernel *k, struct hd_error *err)
{
    int32_t rc = subset(k, &k->in[0], &k->out[0], err);
    return rc ? rc : cpu_kernel_state(k, (size_t)hd_operand_count(&k->out[0]) * sizeof(double), err);
}

/* einsum_bias and einsum_gelu: the bias has the last dims of what it is added to. */
int32_t cpu_check_einsum_bias(struct hd_kernel *k, struct hd_error *err)
{
    const struct hd_operand *y = &k->out[0], *w = &k->in[2];
    int32_t rc = cpu_check_einsum(k, err);
    if (!rc && k->d.n_out > 1)
        rc = same_count(k, &k->out[1], hd_operand_count(y), "output 1", err);
    if (!rc)
        rc = subset(k, y, w, err);
    for (uint32_t i = 0; !rc && i < w->ndim; i++)
        if (w->dim[i] != y->dim[y->ndim - w->ndim + i])
            rc = cpu_invalid(k, err, "the bias must have the last dims of the output");
    return rc;
}

int32_t cpu_check_einsum_gelu_grad(struct hd_kernel *k, struct hd_error *err)
{
    int32_t rc = cpu_check_einsum(k, err);
    return rc ? rc : same_count(k, &k->in[2], hd_operand_count(&k->out[0]), "input 2", err);
}

int32_t cpu_check_einsum_bias_dw(struct hd_kernel *k, struct hd_error *err)
{
    const struct hd_operand *dy = &k->in[0], *dw = &k->out[0], *db = &k->out[1];
    int32_t rc = cpu_check_einsum(k, err);
    if (!rc)
        rc = subset(k, dy, db, err);
    for (uint32_t i = 0; !rc && i < dy->ndim; i++)
        if ((cpu_dim(dw, dy->dim[i]) >= 0) != (cpu_dim(db, dy->dim[i]) >= 0))
            rc = cpu_invalid(k, err, "dim id %u is in one of the two gradients alone", dy->dim[i]);
    return rc ? rc : cpu_kernel_state(k, (size_t)hd_operand_count(db) * sizeof(double), err);
}

/* x and its equals end in h, the weights are [h]. */
static int32_t last_is(const struct hd_kernel *k, const struct hd_operand *x, const struct hd_operand *w,
                       struct hd_error *err)
{
    if (x->ndim < 1 || w->ndim != 1 || x->extent[x->ndim - 1] != w->extent[0] || w->extent[0] < 1)
        return cpu_invalid(k, err, "the weight must be one dim, the last one of the input");
    return HD_OK;
}

int32_t cpu_check_norm(struct hd_kernel *k, struct hd_error *err)
{
    const struct hd_operand *w = &k->in[1];
    int forward = k->d.op == HD_OP_RMSNORM || k->d.op == HD_OP_LAYERNORM;
    int32_t rc = last_is(k, &k->in[0], w, err);
    if (!rc)
        rc = same_count(k, &k->in[0], hd_operand_count(&k->out[0]), "input 0", err);
    if (!rc && k->d.n_in > 2)
        rc = same_count(k, &k->in[2], forward ? w->extent[0] : hd_operand_count(&k->out[0]), "input 2", err);
    return rc;
}

int32_t cpu_check_norm_sum(struct hd_kernel *k, struct hd_error *err)
{
    struct cpu_norm o = cpu_norm(k);
    int64_t n = hd_operand_count(&k->out[0]);
    int32_t rc = last_is(k, o.x, o.w, err);
    for (uint32_t i = 0; !rc && i < 2; i++)
        rc = same_count(k, &k->in[i], n, i ? "input 1" : "input 0", err);
    if (!rc && k->d.n_in > 3)
        rc = same_count(k, o.c, o.sum_before ? o.w->extent[0] : n, "input 3", err);
    return rc || !o.sum_before ? rc : same_count(k, &k->out[1], n, "output 1", err);
}

int32_t cpu_check_norm_dw(struct hd_kernel *k, struct hd_error *err)
{
    struct cpu_norm o = cpu_norm(k);
    const struct hd_operand *dw = &k->out[o.dw];
    int32_t rc = last_is(k, o.x, dw, err);
    if (!rc && !o.dw)
        rc = same_count(k, &k->in[1], hd_operand_count(&k->in[0]), "input 1", err);
    if (!rc && o.centred)
        rc = same_count(k, dw + 1, dw->extent[0], o.dw ? "output 2" : "output 1", err);
    return rc ? rc : cpu_kernel_state(k, 2 * (size_t)dw->extent[0] * sizeof(double), err);
}

int32_t cpu_check_norm_grad(struct hd_kernel *k, struct hd_error *err)
{
    int32_t rc = cpu_check_norm_sum(k, err);
    return rc ? rc : cpu_check_norm_dw(k, err);
}

static int32_t check_positions(const struct hd_kernel *k, uint32_t in, int64_t rows, struct hd_error *err)
{
    if (k->in[in].dtype != HD_I32)
        return cpu_invalid(k, err, "positions must be int32");
    return same_count(k, &k->in[in], rows, "positions", err);
}

int32_t cpu_check_rope(struct hd_kernel *k, struct hd_error *err)
{
    const struct hd_operand *x = &k->in[0];
    if (x->ndim < 3 || x->extent[x->ndim - 1] % 2)
        return cpu_invalid(k, err, "rope wants [batch, sequence, ..., head size], the head size even");
    if (!k->d.attrs.n_table || !k->d.attrs.table)
        return cpu_invalid(k, err, "rope wants a table of inverse frequencies, of all %lld pairs or of the first",
                           (long long)x->extent[x->ndim - 1] / 2);
    int32_t rc = k->d.n_in > 1 ? check_positions(k, 1, cpu_span(x, 0, 2), err) : HD_OK;
    return rc ? rc : same_count(k, &k->out[0], hd_operand_count(x), "output 0", err);
}

int32_t cpu_check_softcap(struct hd_kernel *k, struct hd_error *err)
{
    if (!(k->d.attrs.scale > 0))
        return cpu_invalid(k, err, "a soft cap (scale) must be above 0, not %g", k->d.attrs.scale);
    return cpu_check_same(k, err);
}

static int32_t check_heads(struct hd_kernel *k, struct hd_error *err)
{
    const struct hd_operand *q = &k->in[0], *key = &k->in[1];
    if (q->ndim < 4 || key->ndim < 3)
        return cpu_invalid(k, err, "attention wants q [.., s, k, g, d] and k, v [.., s, k, d]");
    struct cpu_heads h = cpu_heads(q, key, &k->d.attrs);
    if (h.prefix > 0 && (h.window > 0 || !h.causal))
        return cpu_invalid(k, err, "attention with a prefix is causal and has no window");
    uint32_t last = k->d.op == HD_OP_ATTENTION ? 3 : 6;
    if (k->d.n_in > last &&
        (h.prefix > 0 || !h.causal || k->in[last].dtype != HD_I32 || hd_operand_count(&k->in[last]) != h.b * h.s))
        return cpu_invalid(k, err, "positions in documents are int32 [.., s], of causal attention without a prefix");
    int64_t keys = h.b * h.t * h.k * h.d;
    if (key->extent[key->ndim - 1] != h.d || key->extent[key->ndim - 2] != h.k)
        return cpu_invalid(k, err, "q and k differ in heads or head size");
    int32_t rc = same_count(k, key, keys, "k", err);
    return rc ? rc : same_count(k, &k->in[2], keys, "v", err);
}

int32_t cpu_check_attention(struct hd_kernel *k, struct hd_error *err)
{
    int32_t rc = check_heads(k, err);
    if (rc)
        return rc;
    struct cpu_heads h = cpu_heads(&k->in[0], &k->in[1], &k->d.attrs);
    rc = same_count(k, &k->out[0], hd_operand_count(&k->in[0]), "o", err);
    if (!rc)
        rc = same_count(k, &k->out[1], h.b * h.s * h.k * h.g, "lse", err);
    return rc ? rc : cpu_kernel_state(k, (size_t)(h.d + h.t) * sizeof(double), err);
}

int32_t cpu_check_attention_cached(struct hd_kernel *k, struct hd_error *err)
{
    const struct hd_operand *q = &k->in[0], *key = &k->in[1], *cache = &k->in[3];
    const struct hd_attrs *a = &k->d.attrs;
    if (q->ndim != 5 || key->ndim != 4 || cache->ndim != 4)
        return cpu_invalid(k, err, "attention_cached wants q [b, t, k, g, d], k, v [b, t, k, d], caches [b, s, k, d]");
    if (a->top_k > 0 || a->flags & HD_ATTR_NOT_CAUSAL || a->flags & HD_ATTR_ACCUMULATE)
        return cpu_invalid(k, err, "attention_cached is causal, without a prefix, and adds to nothing");
    if (cache->extent[0] != q->extent[0] || cache->extent[2] != q->extent[2] || cache->extent[3] != q->extent[4] ||
        key->extent[3] != q->extent[4])
        return cpu_invalid(k, err, "q, k and their cache differ in batch, heads or head size");
    int64_t step = cpu_span(q, 0, 3) * q->extent[4], n = hd_operand_count(cache);
    const struct {
        const struct hd_operand *o;
        int64_t n;
        const char *name;
    } want[] = {{key, step, "k"},
                {&k->in[2], step, "v"},
                {&k->in[4], n, "the cache of values"},
                {&k->out[1], n, "output 1"},
                {&k->out[2], n, "output 2"},
                {&k->out[0], hd_operand_count(q), "o"}};
    int32_t rc = check_positions(k, 5, cpu_span(q, 0, 2), err);
    for (uint32_t i = 0; !rc && i < sizeof want / sizeof want[0]; i++)
        rc = same_count(k, want[i].o, want[i].n, want[i].name, err);
    for (uint32_t i = 1; !rc && i <= 2; i++)
        if (k->in[i].dtype != k->out[i].dtype || k->in[2 + i].dtype != k->out[i].dtype)
            rc = cpu_invalid(k, err, "a cache has the dtype of what it keeps");
    return rc ? rc : cpu_kernel_state(k, (size_t)q->extent[4] * sizeof(double), err);
}

int32_t cpu_check_attention_grad(struct hd_kernel *k, struct hd_error *err)
{
    int32_t rc = check_heads(k, err);
    if (rc)
        return rc;
    struct cpu_heads h = cpu_heads(&k->in[0], &k->in[1], &k->d.attrs);
    int64_t n_q = hd_operand_count(&k->in[0]), n_k = hd_operand_count(&k->in[1]);
    const struct {
        const struct hd_operand *o;
        int64_t n;
        const char *name;
    } want[] = {{&k->in[3], n_q, "o"},   {&k->in[4], h.b * h.s * h.k * h.g, "lse"},
                {&k->in[5], n_q, "do"},  {&k->out[0], n_q, "dq"},
                {&k->out[1], n_k, "dk"}, {&k->out[2], n_k, "dv"}};
    for (uint32_t i = 0; !rc && i < sizeof want / sizeof want[0]; i++)
        rc = same_count(k, want[i].o, want[i].n, want[i].name, err);
    return rc ? rc : cpu_kernel_state(k, (size_t)(n_q + 2 * n_k) * sizeof(double), err);
}

int32_t cpu_check_attention_merge(struct hd_kernel *k, struct hd_error *err)
{
    const struct hd_operand *o = &k->in[0];
    int64_t n = hd_operand_count(o), rows = hd_operand_count(&k->in[1]);
    int32_t rc = same_count(k, &k->in[2], n, "o2", err);
    if (!o->ndim || n != rows * o->extent[o->ndim - 1])
        return cpu_invalid(k, err, "o must be lse with one more dim");
    if (!rc)
        rc = same_count(k, &k->in[3], rows, "lse2", err);
    if (!rc)
        rc = same_count(k, &k->out[0], n, "o", err);
    return rc ? rc : same_count(k, &k->out[1], rows, "lse", err);
}

/* tokens [..], rows [.., h], table [rows, h]. */
static int32_t check_table(const struct hd_kernel *k, const struct hd_operand *rows, const struct hd_operand *table,
                           struct hd_error *err)
{
    if (table->ndim != 2 || rows->ndim < 2 || rows->extent[rows->ndim - 1] != table->extent[1])
        return cpu_invalid(k, err, "the table must be [rows, h] and the other operand end in h");
    return HD_OK;
}

static int32_t check_ids(const struct hd_kernel *k, const struct hd_operand *ids, const struct hd_operand *rows,
                         const struct hd_operand *table, struct hd_error *err)
{
    int32_t rc = check_table(k, rows, table, err);
    if (!rc && ids->dtype != HD_I32)
        return cpu_invalid(k, err, "token ids must be int32");
    return rc ? rc : same_count(k, rows, hd_operand_count(ids) * table->extent[1], "the operand of rows", err);
}

int32_t cpu_check_embed(struct hd_kernel *k, struct hd_error *err)
{
    return check_ids(k, &k->in[0], &k->out[0], &k->in[1], err);
}

int32_t cpu_check_embed_dw(struct hd_kernel *k, struct hd_error *err)
{
    int32_t rc = check_ids(k, &k->in[0], &k->in[1], &k->out[0], err);
    return rc ? rc : cpu_kernel_state(k, (size_t)k->out[0].extent[0] * sizeof(double), err);
}

int32_t cpu_check_position(struct hd_kernel *k, struct hd_error *err)
{
    int32_t rc = check_table(k, &k->in[0], &k->in[1], err);
    return rc ? rc : same_count(k, &k->in[0], hd_operand_count(&k->out[0]), "input 0", err);
}

int32_t cpu_check_position_dw(struct hd_kernel *k, struct hd_error *err)
{
    int32_t rc = check_table(k, &k->in[0], &k->out[0], err);
    return rc ? rc : cpu_kernel_state(k, (size_t)hd_operand_count(&k->out[0]) * sizeof(double), err);
}

/* z is [.., v]; operand `o` has one element a row. */
static int32_t one_a_row(const struct hd_kernel *k, const struct hd_operand *o, struct hd_error *err)
{
    const struct hd_operand *z = &k->in[0];
    if (z->ndim < 1)
        return cpu_invalid(k, err, "logits must have a dim");
    return same_count(k, o, cpu_span(z, 0, z->ndim - 1), "an operand with one element a row", err);
}

int32_t cpu_check_rowmax(struct hd_kernel *k, struct hd_error *err)
{
    return one_a_row(k, &k->out[0], err);
}

static int32_t check_labels(struct hd_kernel *k, struct hd_error *err)
{
    int32_t rc = HD_OK;
    for (uint32_t i = 1; !rc && i < k->d.n_in; i++)
        rc = one_a_row(k, &k->in[i], err);
    if (!rc && k->in[2].dtype != HD_I32)
        return cpu_invalid(k, err, "labels must be int32");
    return rc;
}

int32_t cpu_check_xent_local(struct hd_kernel *k, struct hd_error *err)
{
    int32_t rc = check_labels(k, err);
    if (!rc)
        rc = one_a_row(k, &k->out[0], err);
    return rc ? rc : one_a_row(k, &k->out[1], err);
}

int32_t cpu_check_xent_grad(struct hd_kernel *k, struct hd_error *err)
{
    int32_t rc = check_labels(k, err);
    return rc ? rc : same_count(k, &k->out[0], hd_operand_count(&k->in[0]), "dz", err);
}

/* x [.., h], w [v, h]. State: what the reference needs of a row of logits and a row of w. */
/* The scalar that a seed is multiplied by, where input `at` is there. */
static int32_t check_seed(const struct hd_kernel *k, uint32_t at, struct hd_error *err)
{
    if (k->d.n_in > at && (k->in[at].dtype != HD_F64 || hd_operand_count(&k->in[at]) != 1))
        return cpu_invalid(k, err, "the loss scale must be one fp64 number");
    return HD_OK;
}

int32_t cpu_check_xent_head(struct hd_kernel *k, struct hd_error *err)
{
    const struct hd_operand *x = &k->in[0], *w = &k->in[1];
    if (x->ndim < 1 || w->ndim != 2 || x->extent[x->ndim - 1] != w->extent[1] || w->extent[0] < 1)
        return cpu_invalid(k, err, "xent_head wants x [.., h] and w [v, h] with at least one row");
    if (k->in[2].dtype != HD_I32)
        return cpu_invalid(k, err, "labels must be int32");
    int64_t rows = cpu_span(x, 0, x->ndim - 1);
    int32_t rc = same_count(k, &k->in[2], rows, "labels", err);
    if (!rc)
        rc = same_count(k, &k->out[0], rows, "the loss", err);
    if (!rc && k->d.n_out == 2)
        rc = cpu_invalid(k, err, "xent_head gives the loss alone, or with dx and dw");
    if (!rc && k->d.n_out == 3)
        rc = same_count(k, &k->out[1], hd_operand_count(x), "dx", err);
    if (!rc && k->d.n_out == 3)
        rc = same_count(k, &k->out[2], hd_operand_count(w), "dw", err);
    if (!rc)
        rc = check_seed(k, 3, err);
    return rc ? rc : cpu_kernel_state(k, (size_t)(rows + w->extent[0] + w->extent[1]) * sizeof(double), err);
}

int32_t cpu_check_spread(struct hd_kernel *k, struct hd_error *err)
{
    return check_seed(k, 0, err);
}

int32_t cpu_check_scalar_out(struct hd_kernel *k, struct hd_error *err)
{
    if (k->d.op == HD_OP_SUMSQ && k->in[0].ndim != 1)
        return cpu_invalid(k, err, "sumsq wants a flat buffer");
    if (k->d.op == HD_OP_SUMSQ && hd_operand_count(&k->out[0]) == HD_SUM_DIGITS)
        return HD_OK;
    return same_count(k, &k->out[0], 1, "the output", err);
}

int32_t cpu_check_parts(struct hd_kernel *k, struct hd_error *err)
{
    const struct hd_attrs *a = &k->d.attrs;
    int slice = k->d.op == HD_OP_SLICE;
    const struct hd_operand *small = slice ? &k->out[0] : &k->in[0], *large = slice ? &k->in[0] : &k->out[0];
    uint32_t dim = slice ? a->to : a->from;
    if (cpu_dim(small, (uint8_t)dim) < 0 || small->ndim != large->ndim)
        return cpu_invalid(k, err, "dim id %u is not in the operands", dim);
    if (a->index >= a->parts)
        return cpu_invalid(k, err, "part %u of %u", a->index, a->parts);
    return same_count(k, large, hd_operand_count(small) * a->parts, "the whole", err);
}

int32_t cpu_check_update(struct hd_kernel *k, struct hd_error *err)
{
    int64_t n = hd_operand_count(&k->out[0]);
    int32_t rc = same_count(k, &k->in[0], n, "the gradient", err);
    int step = k->d.op == HD_OP_OPTIM_STEP; /* its states and its scratch memory are of any size */
    for (uint32_t i = step ? k->d.attrs.index + 1 : 1; !rc && i < k->d.n_out; i++)
        if (!step || i + 1 != k->d.attrs.parts)
            rc = same_count(k, &k->out[i], n, "an output", err);
    if (!rc)
        rc = same_count(k, &k->in[1], 1, "the squared norm", err);
    if (!rc)
        rc = same_count(k, &k->in[2], HD_HYPER_COUNT, "hyper", err);
    if (!rc && k->out[0].ndim != 1)
        return cpu_invalid(k, err, "an update wants flat buffers");
    if (!rc && k->d.op == HD_OP_SGD && k->d.attrs.beta1 != 0 && k->d.n_out < 2)
        return cpu_invalid(k, err, "sgd with momentum wants the momentum as its second output");
    return rc;
}

int32_t cpu_check_optim_step(struct hd_kernel *k, struct hd_error *err)
{
    int32_t rc = cpu_check_update(k, err);
    if (rc)
        return rc;
    if (!k->d.attrs.step)
        return cpu_invalid(k, err, "the optimizer gives no step function");
    if (k->d.attrs.parts && k->d.attrs.parts != k->d.n_out)
        return cpu_invalid(k, err, "scratch memory is not its last output");
    uint32_t last = k->d.n_out - 1 - (k->d.attrs.parts > 0);
    if (k->d.attrs.index > 4 || last < k->d.attrs.index || last > k->d.attrs.index + 1)
        return cpu_invalid(k, err, "outputs are parameters, states and the low-precision copy");
    for (uint32_t i = 1; i <= k->d.attrs.index; i++) /* of a dtype of its own: codes */
        if (hd_dtype_size(k->out[i].dtype) > 4)
            return hd_fail(err, HD_E_UNSUPPORTED,
                           "%s: a state in %s, and the optimizer's step works on fp32: --numerics, which computes in "
                           "fp64, cannot emulate it; for that check say optimizer.use=adamw or sgd",
                           k->d.label, hd_dtype_name(k->out[i].dtype));
    if (k->in[0].dtype != HD_F32 || k->out[0].dtype != HD_F32)
        return hd_fail(err, HD_E_UNSUPPORTED, "%s: an optimizer's step function works on fp32 only", k->d.label);
    return HD_OK;
}

int32_t cpu_check_custom(struct hd_kernel *k, struct hd_error *err)
{
    const struct hd_custom_op *op = k->d.custom;
    if (!op || !op->run)
        return cpu_invalid(k, err, "a custom op without a function for host memory");
    return op->check ? op->check(op->settings, &k->d, err) : HD_OK;
}
