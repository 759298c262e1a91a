/* Attention by cuDNN: which instructions it may take, its autotuning, once a shape, and its launch. */
#include "attention/cudnn_attention.h"
#include <math.h>

enum { UNIT = 256 };

/* A shape that was autotuned. */
struct choice {
    struct choice *next;
    struct dnn_shape shape;
    struct dnn_graph graph;
    dnn_descriptor plan;
    int64_t workspace;
    struct cu_autotune_result result; /* zeros, not used, where autotuning failed */
};

struct cu_dnn {
    struct dnn_api api;
    void *handle;
    cudaStream_t stream; /* that the handle has */
    struct choice *choices;
};

/* Offsets in scratch. */
struct layout {
    size_t stats, sums, dq_sums, workspace, bytes;
};

struct attention {
    struct cu_dnn *dnn;
    struct choice *choice;
    struct layout at;
    void *operand[DNN_IDS]; /* by id; those in scratch are 0 */
    float *lse;             /* ours, [b, s, heads] */
    float scale, masked, one;
    int32_t reserved;
    dnn_descriptor pack; /* of this scratch; it moves while instructions are prepared */
    char *scratch;
    char *fixed; /* scratch of its own, while it is autotuned */
};

/* ---- opening */

static int32_t open_dnn(struct hd_device *d, struct hd_error *err)
{
    struct cu_dnn *x = d->host->alloc(sizeof *x);
    if (!x)
        return hd_fail(err, HD_E_NOMEM, "no memory for cuDNN");
    d->dnn = x;
    int32_t rc = dnn_open(&x->api, d->settings->cudnn_library, err);
    return rc ? rc : dnn_fail(&x->api, x->api.Create(&x->handle), "opening it on this GPU", err);
}

void cu_dnn_close(struct hd_device *d)
{
    struct cu_dnn *x = d->dnn;
    if (!x)
        return;
    while (x->choices) {
        struct choice *c = x->choices;
        x->choices = c->next;
        dnn_graph_free(&c->graph);
        d->host->free(c);
    }
    if (x->handle)
        x->api.Destroy(x->handle);
    d->host->free(x);
    d->dnn = NULL;
}

int32_t cu_dnn_check(struct hd_device *d, struct hd_error *err)
{
    struct hd_error why = HD_ERROR_INIT;
    int32_t rc = d->settings->attention == CU_ATTENTION_CUDNN ? open_dnn(d, &why) : HD_OK;
    return rc ? hd_fail(err, rc, "device option attention: cudnn: %s (device.cudnn_library=PATH says where it is)",
                        why.message)
              : HD_OK;
}

/* With attention: auto it is opened for the first instruction that it may take, and looked for once. */
static int is_open(struct hd_device *d)
{
    struct hd_error why = HD_ERROR_INIT;
    if (!d->dnn && !d->dnn_missing && open_dnn(d, &why)) {
        cu_dnn_close(d);
        d->dnn_missing = 1;
        d->host->log(HD_LOG_INFO, "device-cuda", "attention without cuDNN: %s", why.message);
    }
    return d->dnn != NULL;
}

/* ---- which instructions */

/* Every query sees the keys up to its own position: no window, no part of a ring. */
static int is_causal(const struct cu_heads *h)
{
    return h->s == h->t && h->causal && !h->prefix && !h->window && h->queries.first == h->s && h->keys.first == h->t &&
           h->queries.at[0] == h->keys.at[0];
}

static int is_plain(const struct hd_operand *o, uint32_t dtype)
{
    return o->dtype == dtype && cu_aligned(o->data, 16);
}

/* deterministic: exact is not for cuDNN, which adds in the order in which blocks finish. */
static int may_take(const struct hd_instr_desc *i, const struct cu_heads *h)
{
    uint32_t dtype = i->in[0].dtype;
    if (cu_is_exact(i))
        return 0;
    if ((dtype != HD_BF16 && dtype != HD_F16) || h->d % 8 || h->d > 128 || !(i->attrs.scale > 0) || i->attrs.clip > 0)
        return 0;
    if (!is_causal(h) || h->s < 2 || cu_accumulates(i))
        return 0;
    for (uint32_t n = 0; n < i->n_in; n++)
        if (!is_plain(&i->in[n], n == 4 ? HD_F32 : dtype))
            return 0;
    for (uint32_t n = 0; n < i->n_out; n++)
        if (!is_plain(&i->out[n], i->op == HD_OP_ATTENTION && n == 1 ? HD_F32 : dtype))
            return 0;
    return 1;
}

static struct dnn_shape shape_of(const struct hd_instr_desc *i, const struct cu_heads *h)
{
    return (struct dnn_shape){.b = h->b,
                              .s = h->s,
                              .kv_heads = h->k,
                              .heads = (int64_t)h->k * h->g,
                              .d = h->d,
                              .dtype = i->in[0].dtype,
                              .back = i->op == HD_OP_ATTENTION_GRAD};
}

/* ---- the launch */

static size_t reserve(size_t *bytes, size_t more)
{
    size_t at = *bytes;
    *bytes += (more + UNIT - 1) / UNIT * UNIT;
    return at;
}

static struct layout layout_of(const struct choice *c)
{
    const struct dnn_shape *s = &c->shape;
    size_t rows = (size_t)(s->b * s->heads * s->s) * sizeof(float);
    struct layout at = {0};
    at.stats = reserve(&at.bytes, rows);
    at.sums = reserve(&at.bytes, s->back ? rows : 0);
    at.dq_sums = reserve(&at.bytes, s->back ? rows * (size_t)s->d : 0);
    at.workspace = reserve(&at.bytes, (size_t)c->workspace);
    return at;
}

static int32_t fill_pack(struct attention *x, dnn_descriptor pack, struct hd_error *err)
{
    const struct dnn_api *api = &x->dnn->api;
    int64_t id[DNN_IDS], n = 0;
    void *at[DNN_IDS], *workspace = x->scratch + x->at.workspace;
    for (int64_t i = 1; i < DNN_IDS; i++)
        if (x->choice->graph.tensor[i]) {
            id[n] = i;
            at[n++] = i == DNN_STATS     ? x->scratch + x->at.stats
                      : i == DNN_SUMS    ? x->scratch + x->at.sums
                      : i == DNN_DQ_SUMS ? x->scratch + x->at.dq_sums
                                         : x->operand[i];
        }
    int status = api->BackendSetAttribute(pack, DNN_ATTR_VARIANT_PACK_UNIQUE_IDS, DNN_TYPE_INT64, n, id);
    if (!status)
        status = api->BackendSetAttribute(pack, DNN_ATTR_VARIANT_PACK_DATA_POINTERS, DNN_TYPE_VOID_PTR, n, at);
    if (!status)
        status = api->BackendSetAttribute(pack, DNN_ATTR_VARIANT_PACK_WORKSPACE, DNN_TYPE_VOID_PTR, 1, &workspace);
    return dnn_fail(api, status ? status : api->BackendFinalize(pack), "naming operands", err);
}

static void drop_pack(struct attention *x)
{
    if (x->pack)
        x->dnn->api.BackendDestroyDescriptor(x->pack);
    x->pack = NULL;
}

static int32_t make_pack(struct attention *x, char *scratch, struct hd_error *err)
{
    drop_pack(x);
    x->scratch = scratch;
    int32_t rc =
        dnn_fail(&x->dnn->api, x->dnn->api.BackendCreateDescriptor(DNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &x->pack),
                 "naming operands", err);
    rc = rc ? rc : fill_pack(x, x->pack, err);
    if (rc)
        drop_pack(x);
    return rc;
}

static int32_t execute(struct attention *x, cudaStream_t stream, struct hd_error *err)
{
    struct cu_dnn *dnn = x->dnn;
    int status = 0;
    if (dnn->stream != stream)
        status = dnn->api.SetStream(dnn->handle, stream);
    if (!status) {
        dnn->stream = stream;
        status = dnn->api.BackendExecute(dnn->handle, x->choice->plan, x->pack);
    }
    return dnn_fail(&dnn->api, status, "attention", err);
}

static int32_t run(struct hd_kernel *k, cudaStream_t stream, struct hd_error *err)
{
    struct attention *x = k->state;
    const struct dnn_shape *s = &x->choice->shape;
    char *scratch = x->fixed ? x->fixed : cu_scratch(k->device);
    float *stats = (float *)(scratch + x->at.stats);
    int32_t rc = x->pack && x->scratch == scratch ? HD_OK : make_pack(x, scratch, err);
    if (!rc && s->back)
        rc = cu_fail(err, dnn_turn(stats, x->lse, s->b, s->s, s->heads, stream), k->label, "turning lse");
    if (!rc)
        rc = execute(x, stream, err);
    if (!rc && !s->back)
        rc = cu_fail(err, dnn_turn(x->lse, stats, s->b, s->heads, s->s, stream), k->label, "turning lse");
    return rc;
}

static void release(struct hd_kernel *k)
{
    struct attention *x = k->state;
    if (x)
        drop_pack(x);
    k->device->host->free(x);
}

static void name_operands(struct attention *x, const struct hd_instr_desc *i)
{
    static const int64_t out[2][3] = {{DNN_O, DNN_STATS}, {DNN_DQ, DNN_DK, DNN_DV}};
    static const int64_t in[] = {DNN_Q, DNN_K, DNN_V, DNN_O, DNN_STATS, DNN_DO};
    int back = i->op == HD_OP_ATTENTION_GRAD;
    for (uint32_t n = 0; n < i->n_in; n++)
        x->operand[in[n]] = i->in[n].data;
    for (uint32_t n = 0; n < i->n_out; n++)
        x->operand[out[back][n]] = i->out[n].data;
    x->lse = x->operand[DNN_STATS];
    x->scale = (float)i->attrs.scale;
    x->masked = -INFINITY;
    x->one = 1;
    x->operand[DNN_SCALE] = &x->scale;
    x->operand[DNN_MASKED] = &x->masked;
    x->operand[DNN_ONE] = &x->one;
}

static int32_t prepare_theirs(struct hd_device *d, const struct hd_instr_desc *i, struct choice *c, char *fixed,
                              struct hd_kernel *k, struct hd_error *err)
{
    struct attention *x = d->host->alloc(sizeof *x);
    if (!x)
        return cu_refuse(err, HD_E_NOMEM, i, "no memory for attention");
    x->dnn = d->dnn;
    x->choice = c;
    x->at = layout_of(c);
    x->fixed = fixed;
    name_operands(x, i);
    k->state = x;
    k->run = run;
    k->release = release;
    return fixed ? HD_OK : cu_scratch_reserve(d, x->at.bytes, err);
}

/* ---- the choice */

static int32_t prepare_candidate(struct hd_device *d, const struct hd_instr_desc *i, const struct cu_heads *h,
                                 void *state, char *scratch, struct hd_kernel *k, struct hd_error *err)
{
    (void)h;
    return prepare_theirs(d, i, state, scratch, k, err);
}

static int32_t autotune(struct hd_device *d, const struct hd_instr_desc *i, const struct cu_heads *h, struct choice *c,
                        struct hd_error *err)
{
    int32_t rc = dnn_graph_make(&c->graph, &d->dnn->api, d->dnn->handle, &c->shape, err);
    rc = rc ? rc : dnn_plan(&c->graph, d->dnn->handle, &c->plan, &c->workspace);
    if (rc)
        return rc;
    struct cu_candidate theirs = {
        .who = "cuDNN's", .scratch = layout_of(c).bytes, .state = c, .prepare = prepare_candidate};
    return cu_attention_autotune(d, i, h, &theirs, &c->result, err);
}

static struct choice *choice_of(struct hd_device *d, const struct dnn_shape *shape)
{
    for (struct choice *c = d->dnn->choices; c; c = c->next)
        if (!memcmp(&c->shape, shape, sizeof *shape))
            return c;
    return NULL;
}

const struct cu_autotune_result *cu_dnn_autotune(struct hd_device *d, const struct hd_instr_desc *i,
                                                 const struct cu_heads *h)
{
    struct hd_error why = HD_ERROR_INIT;
    struct dnn_shape shape = shape_of(i, h);
    if (!may_take(i, h) || !is_open(d))
        return NULL;
    struct choice *c = choice_of(d, &shape);
    if (c || !(c = d->host->alloc(sizeof *c)))
        return c ? &c->result : NULL;
    c->shape = shape;
    c->next = d->dnn->choices;
    d->dnn->choices = c;
    if (autotune(d, i, h, c, &why))
        d->host->log(HD_LOG_INFO, "device-cuda", "%s: attention is heddle's own: %s", i->label, why.message);
    c->graph.err = NULL;
    return &c->result;
}

int32_t cu_dnn_attention(struct hd_device *d, const struct hd_instr_desc *i, const struct cu_heads *h,
                         struct hd_kernel *k, struct hd_error *err)
{
    struct dnn_shape shape = shape_of(i, h);
    return prepare_theirs(d, i, choice_of(d, &shape), NULL, k, err);
}
