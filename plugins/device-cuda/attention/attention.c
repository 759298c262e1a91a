/* Attention and its gradient: what an instruction says, and which kernels run it. */
#include "attention/cudnn_attention.h"
#include "op_table.h"

static struct cu_order order_of(const struct hd_operand *o, uint32_t dim, const struct hd_attrs *attrs)
{
    int64_t start = o->start[dim], n = o->extent[dim], first = n;
    int64_t run = attrs->zigzag_parts > 1 ? attrs->zigzag_length / (2 * attrs->zigzag_parts) : 0;
    if (run && run - start % run < n)
        first = run - start % run;
    int64_t at = hd_position(attrs, start), next = first < n ? hd_position(attrs, start + first) : at + n;
    return (struct cu_order){.at = {(int32_t)at, (int32_t)next}, .first = (int32_t)first, .n = (int32_t)n};
}

/* Inputs without the last, optional one: positions in documents. */
static uint32_t inputs_of(const struct hd_instr_desc *i)
{
    return i->op == HD_OP_ATTENTION_GRAD ? 6 : 3;
}

static struct cu_heads heads_of(const struct hd_instr_desc *i)
{
    const struct hd_operand *q = &i->in[0], *k = &i->in[1];
    uint32_t s = q->ndim - 4, t = k->ndim - 3;
    int64_t window = i->attrs.window, prefix = i->attrs.top_k;
    return (struct cu_heads){.b = (int32_t)cu_span(q, 0, s),
                             .s = (int32_t)q->extent[s],
                             .t = (int32_t)k->extent[t],
                             .k = (int32_t)q->extent[s + 1],
                             .g = (int32_t)q->extent[s + 2],
                             .d = (int32_t)q->extent[s + 3],
                             .window = (int32_t)(window < 0               ? 0
                                                 : window < INT32_MAX / 4 ? window
                                                                          : INT32_MAX / 4),
                             .prefix = (int32_t)(prefix < 0               ? 0
                                                 : prefix < INT32_MAX / 4 ? prefix
                                                                          : INT32_MAX / 4),
                             .causal = !(i->attrs.flags & HD_ATTR_NOT_CAUSAL),
                             .queries = order_of(q, s, &i->attrs),
                             .keys = order_of(k, t, &i->attrs),
                             .in_document = i->n_in > inputs_of(i) ? i->in[inputs_of(i)].data : NULL};
}

/* Which dim of its n-th operand, inputs first, is the sequence's. */
static uint32_t sequence_dim(const struct hd_instr_desc *i, uint32_t n)
{
    static const uint8_t from_end[2][8] = {{4, 3, 3, 4, 3},
                                           {4, 3, 3, 4, 3, 4, 4, 3}}; /* q k v o lse, q k v o lse do dq dk */
    int back = i->op == HD_OP_ATTENTION_GRAD;
    const struct hd_operand *o = n < i->n_in ? &i->in[n] : &i->out[n - i->n_in];
    return o->ndim - (n < 8 ? from_end[back][n] : 3);
}

static int32_t same_count(const struct hd_instr_desc *i, const struct hd_operand *o, int64_t n, uint64_t ndim,
                          const char *name, struct hd_error *err)
{
    if (o->ndim != ndim)
        return cu_refuse(err, HD_E_INVALID, i, "%s has %u dims, not %u", name, o->ndim, (uint32_t)ndim);
    if (hd_operand_count(o) != n)
        return cu_refuse(err, HD_E_INVALID, i, "%s has %lld elements, not %lld", name, (long long)hd_operand_count(o),
                         (long long)n);
    return HD_OK;
}

/* Indices, positions and heads are 32-bit in the kernels. */
static int32_t check_sizes(const struct hd_instr_desc *i, struct hd_error *err)
{
    const struct hd_operand *q = &i->in[0], *k = &i->in[1];
    uint32_t s = q->ndim - 4, t = k->ndim - 3;
    int64_t most = INT32_MAX / 4, end_q = q->start[s] + q->extent[s], end_k = k->start[t] + k->extent[t];
    if (end_q > most || end_k > most || i->attrs.zigzag_length > most ||
        cu_span(q, 0, s) * cu_span(q, s + 1, s + 4) > most)
        return cu_refuse(err, HD_E_UNSUPPORTED, i, "attention of more than %lld positions or heads times batch",
                         (long long)most);
    return HD_OK;
}

static int32_t check(const struct hd_instr_desc *i, struct hd_error *err)
{
    const struct hd_operand *q = &i->in[0], *k = &i->in[1];
    if (q->ndim < 4 || k->ndim < 3)
        return cu_refuse(err, HD_E_INVALID, i, "attention wants q [.., s, k, g, d] and k, v [.., s, k, d]");
    if (i->attrs.top_k > 0 && (i->attrs.window > 0 || i->attrs.flags & HD_ATTR_NOT_CAUSAL))
        return cu_refuse(err, HD_E_INVALID, i, "attention with a prefix is causal and has no window");
    int32_t rc = check_sizes(i, err);
    if (rc)
        return rc;
    struct cu_heads h = heads_of(i);
    const struct hd_operand *documents = &i->in[inputs_of(i)];
    if (i->n_in > inputs_of(i) &&
        (h.prefix > 0 || !h.causal || documents->dtype != HD_I32 || hd_operand_count(documents) != (int64_t)h.b * h.s))
        return cu_refuse(err, HD_E_INVALID, i,
                         "positions in documents are int32 [.., s], of causal attention without a prefix");
    int64_t keys = (int64_t)h.b * h.t * h.k * h.d, rows = (int64_t)h.b * h.s * h.k * h.g, queries = rows * h.d;
    int back = i->op == HD_OP_ATTENTION_GRAD;
    if (k->extent[k->ndim - 1] != h.d || k->extent[k->ndim - 2] != h.k)
        return cu_refuse(err, HD_E_INVALID, i, "q and k differ in heads or head size");
    const struct {
        const struct hd_operand *o;
        int64_t n;
        const char *name;
        uint64_t ndim;
    } want[] = {{k, keys, "k", k->ndim},
                {&i->in[2], keys, "v", k->ndim},
                {back ? &i->in[3] : &i->out[0], queries, "o", q->ndim},
                {back ? &i->in[4] : &i->out[1], rows, "lse", q->ndim - 1},
                {back ? &i->in[5] : q, queries, "do", q->ndim},
                {back ? &i->out[0] : q, queries, "dq", q->ndim},
                {back ? &i->out[1] : k, keys, "dk", k->ndim},
                {back ? &i->out[2] : k, keys, "dv", k->ndim}};
    for (uint32_t n = 0; !rc && n < sizeof want / sizeof want[0]; n++)
        rc = same_count(i, want[n].o, want[n].n, want[n].ndim, want[n].name, err);
    return rc;
}

/* Whether the kernels for tensor cores can do it. */
static int fits(const struct hd_device *d, const struct hd_instr_desc *i, const struct cu_heads *h)
{
    uint32_t dtype = i->in[0].dtype;
    int back = i->op == HD_OP_ATTENTION_GRAD,
        ok = (dtype == HD_BF16 || dtype == HD_F16) && h->d % 8 == 0 && h->d <= 128 && h->k * h->g <= 1 << 15;
    const struct hd_operand *lse = back ? &i->in[4] : &i->out[1];
    ok &= d->major >= 8 && i->attrs.scale > 0 && !(i->attrs.clip > 0) && lse->dtype == HD_F32;
    for (uint32_t n = 0; n < inputs_of(i); n++)
        ok &= &i->in[n] == lse || (i->in[n].dtype == dtype && cu_aligned(i->in[n].data, 16));
    for (uint32_t n = 0; n < i->n_out; n++)
        ok &= &i->out[n] == lse ||
              ((i->out[n].dtype == dtype || i->out[n].dtype == HD_F32) && cu_aligned(i->out[n].data, 8));
    return ok && h->b && h->s && h->t && h->k && h->g && h->d;
}

static struct cu_attention pack(const struct hd_instr_desc *i, const struct cu_heads *h)
{
    struct cu_attention a = {.q = i->in[0].data,
                             .k = i->in[1].data,
                             .v = i->in[2].data,
                             .dtype = i->in[0].dtype,
                             .add = (int32_t)cu_accumulates(i),
                             .scale = (float)i->attrs.scale,
                             .h = *h};
    for (uint32_t n = 0; n < i->n_out; n++) {
        a.out[n] = i->out[n].data;
        a.out_dtype[n] = i->out[n].dtype;
    }
    return a;
}

static int32_t prepare_kernels(const struct hd_instr_desc *i, const struct cu_heads *h, int32_t wgmma,
                               struct hd_kernel *k, struct hd_error *err)
{
    struct cu_attention a = pack(i, h);
    a.wgmma = wgmma;
    if (i->op == HD_OP_ATTENTION) {
        a.out[1] = NULL;
        a.out_lse = i->out[1].data;
        return cu_attention_forward(&a, k, err);
    }
    a.o = i->in[3].data;
    a.lse = i->in[4].data;
    a.grad = i->in[5].data;
    return cu_attention_backward(&a, k, err);
}

int32_t cu_attention_own(struct hd_device *d, const struct hd_instr_desc *i, const struct cu_heads *h,
                         struct hd_kernel *k, struct hd_error *err)
{
    int32_t rc = fits(d, i, h) ? prepare_kernels(i, h, 0, k, err) : HD_E_UNSUPPORTED;
    return rc == HD_E_UNSUPPORTED ? cu_attention_plain(i, h, k, err) : rc;
}

/* ---- products of warpgroups: autotuned for each shape, of a whole sequence, whatever part of one an instruction
 * has */

struct cu_wgmma_choice {
    struct cu_wgmma_choice *next;
    struct cu_heads h; /* autotuned */
    uint32_t dtype, out_dtype, op;
    int32_t reserved;
    struct cu_autotune_result result;
};

static int is_hopper(const struct hd_device *d)
{
    return d->major == 9 && d->minor == 0;
}

static int may_wgmma(const struct hd_device *d, const struct hd_instr_desc *i, const struct cu_heads *h)
{
    return is_hopper(d) && fits(d, i, h) && (h->d <= 64 || h->d > 96) && h->s > 1 && h->t > 1;
}

static int32_t prepare_candidate(struct hd_device *d, const struct hd_instr_desc *i, const struct cu_heads *h,
                                 void *state, char *scratch, struct hd_kernel *k, struct hd_error *err)
{
    (void)d, (void)state, (void)scratch; /* what they need of scratch is the device's */
    return prepare_kernels(i, h, 1, k, err);
}

static const struct cu_autotune_result *wgmma_autotune(struct hd_device *d, const struct hd_instr_desc *like,
                                                       const struct cu_heads *part)
{
    struct hd_instr_desc i = *like;
    struct hd_operand in[6], out[3];
    struct hd_error why = HD_ERROR_INIT;
    int32_t n = part->s < part->t ? part->s : part->t;
    i.n_in = inputs_of(like); /* as without documents, which are others in each batch */
    i.in = memcpy(in, like->in, i.n_in * sizeof *in);
    i.out = memcpy(out, like->out, like->n_out * sizeof *out);
    i.attrs.flags &= ~(uint32_t)HD_ATTR_ACCUMULATE;
    i.attrs.zigzag_parts = 0;
    for (uint32_t o = 0; o < i.n_in + i.n_out; o++) {
        struct hd_operand *x = o < i.n_in ? &in[o] : &out[o - i.n_in];
        uint32_t s = sequence_dim(&i, o);
        x->extent[s] = n;
        x->start[s] = 0;
    }
    struct cu_heads h = heads_of(&i);
    for (struct cu_wgmma_choice *c = d->wgmma; c; c = c->next)
        if (!memcmp(&c->h, &h, sizeof h) && c->dtype == in[0].dtype && c->out_dtype == out[0].dtype && c->op == i.op)
            return &c->result;
    struct cu_wgmma_choice *c = d->host->alloc(sizeof *c);
    if (!c)
        return NULL;
    *c =
        (struct cu_wgmma_choice){.next = d->wgmma, .h = h, .dtype = in[0].dtype, .out_dtype = out[0].dtype, .op = i.op};
    d->wgmma = c;
    if (cu_attention_autotune(d, &i, &h, &(struct cu_candidate){.who = "by wgmma", .prepare = prepare_candidate},
                              &c->result, &why))
        d->host->log(d->settings->attention == CU_ATTENTION_WGMMA ? HD_LOG_WARN : HD_LOG_INFO, "device-cuda",
                     "%s: attention is not by wgmma: %s", i.label, why.message);
    return &c->result;
}

int32_t cu_attention_check(struct hd_device *d, struct hd_error *err)
{
    if (d->settings->attention == CU_ATTENTION_WGMMA && !is_hopper(d))
        d->host->log(HD_LOG_WARN, "device-cuda",
                     "option attention: wgmma is for GPUs of compute capability 9.0, and GPU %d has %d.%d: as own",
                     d->index, d->major, d->minor);
    return cu_dnn_check(d, err);
}

void cu_attention_close(struct hd_device *d)
{
    for (struct cu_wgmma_choice *c; (c = d->wgmma);) {
        d->wgmma = c->next;
        d->host->free(c);
    }
    cu_dnn_close(d);
}

/* ---- the choice: ours where nothing else is asked for, or verified; of two that are, the faster. What is to have the
 * same bits wherever it runs is not left to a clock, nor what is so small that there is nothing to gain. */

static int is_small(const struct hd_device *d, const struct cu_heads *h)
{
    return (int64_t)h->b * h->k * h->g * h->s * h->t < d->settings->attention_above;
}

static int32_t prepare(struct hd_device *d, const struct hd_instr_desc *i, struct hd_kernel *k, struct hd_error *err)
{
    int32_t rc = check(i, err), asked = d->settings->attention;
    if (rc)
        return rc;
    struct cu_heads h = heads_of(i);
    if (asked == CU_ATTENTION_AUTO && (cu_is_exact(i) || is_small(d, &h)))
        asked = CU_ATTENTION_OWN;
    const struct cu_autotune_result *wgmma = NULL, *dnn = NULL;
    if ((asked == CU_ATTENTION_WGMMA || asked == CU_ATTENTION_AUTO) && may_wgmma(d, i, &h))
        wgmma = wgmma_autotune(d, i, &h);
    if (!h.in_document && (asked == CU_ATTENTION_CUDNN || asked == CU_ATTENTION_AUTO))
        dnn = cu_dnn_autotune(d, i, &h);
    if (dnn && dnn->used && !(wgmma && wgmma->used && wgmma->theirs <= dnn->theirs))
        return cu_dnn_attention(d, i, &h, k, err);
    if (wgmma && wgmma->used)
        return prepare_kernels(i, &h, 1, k, err);
    return cu_attention_own(d, i, &h, k, err);
}

int32_t cu_prepare_attention(struct hd_device *d, const struct hd_instr_desc *i, struct hd_kernel *k,
                             struct hd_error *err)
{
    return prepare(d, i, k, err);
}

int32_t cu_prepare_attention_grad(struct hd_device *d, const struct hd_instr_desc *i, struct hd_kernel *k,
                                  struct hd_error *err)
{
    return prepare(d, i, k, err);
}
