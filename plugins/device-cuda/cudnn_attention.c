/* Attention by cuDNN: which instructions it may take, the trial that it has to pass, and its launch.
 *
 * A shape is tried once, at prepare: both attentions run on the same numbers, in memory of their own. Where a row of a result
 * is further from ours than `near`, cuDNN is not used for that shape, and a warning says so; else the option decides, or the
 * clock. */
#include "cudnn_attention.h"
#include <math.h>
#include <stddef.h>

enum { ROUNDS = 3, UNIT = 256 };

/* A shape that has been tried. */
struct choice {
    struct choice *next;
    struct dnn_shape shape;
    struct dnn_graph graph;
    dnn_descriptor plan;
    int64_t workspace;
    int32_t taken;
    int32_t reserved;
};

struct cu_dnn {
    struct dnn_api api;
    void *handle;
    cudaStream_t stream; /* that the handle has */
    struct choice *choices;
};

/* Where things lie in scratch. */
struct places {
    size_t stats, sums, dq_sums, workspace, bytes;
};

struct attention {
    struct cu_dnn *dnn;
    struct choice *choice;
    struct places at;
    void *operand[DNN_IDS]; /* by id; those in scratch are 0 */
    float *lse;             /* ours, [b, s, heads] */
    float scale, masked, one;
    int32_t reserved;
    dnn_descriptor pack; /* of this scratch; it moves while instructions are prepared */
    char *scratch;
    char *fixed; /* scratch of its own, in a trial */
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
    int32_t rc = HD_OK;
    if (d->settings->attention == CU_ATTENTION_OWN || (rc = open_dnn(d, &why)) == HD_OK)
        return HD_OK;
    cu_dnn_close(d);
    if (d->settings->attention == CU_ATTENTION_CUDNN)
        return hd_fail(err, rc, "device option attention: cudnn: %s (device.cudnn_library=PATH says where it is)", why.message);
    d->host->log(HD_LOG_INFO, "device-cuda", "attention is heddle's own: %s", why.message);
    return HD_OK;
}

/* ---- which instructions */

/* Every query sees the keys up to its own position: no window, no part of a ring. */
static int is_causal(const struct cu_heads *h)
{
    return h->s == h->t && !h->window && h->queries.first == h->s && h->keys.first == h->t && h->queries.at[0] == h->keys.at[0];
}

static int is_plain(const struct hd_operand *o, uint32_t dtype)
{
    return o->dtype == dtype && cu_aligned(o->data, 16);
}

static const char *why_not(const struct hd_device *d, const struct hd_instr_desc *i, const struct cu_heads *h)
{
    uint32_t dtype = i->in[0].dtype;
    if (!d->dnn)
        return "it is not open";
    if (i->struct_size < offsetof(struct hd_instr_desc, flags) + sizeof i->flags || i->flags & HD_INSTR_EXACT)
        return "deterministic: exact, and cuDNN adds in the order in which blocks finish";
    if ((dtype != HD_BF16 && dtype != HD_F16) || h->d % 8 || h->d > 128 || !(i->attrs.scale > 0))
        return "its kernels are for 16 bits and head sizes that are multiples of 8 up to 128";
    if (!is_causal(h) || cu_accumulates(i))
        return "a window, a part of a ring, or a sum";
    for (uint32_t n = 0; n < i->n_in; n++)
        if (!is_plain(&i->in[n], n == 4 ? HD_F32 : dtype))
            return "an operand of another dtype";
    for (uint32_t n = 0; n < i->n_out; n++)
        if (!is_plain(&i->out[n], i->op == HD_OP_ATTENTION && n == 1 ? HD_F32 : dtype))
            return "an output of another dtype";
    return NULL;
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

static size_t place(size_t *bytes, size_t more)
{
    size_t at = *bytes;
    *bytes += (more + UNIT - 1) / UNIT * UNIT;
    return at;
}

static struct places places_of(const struct choice *c)
{
    const struct dnn_shape *s = &c->shape;
    size_t rows = (size_t)(s->b * s->heads * s->s) * sizeof(float);
    struct places at = {0};
    at.stats = place(&at.bytes, rows);
    at.sums = place(&at.bytes, s->back ? rows : 0);
    at.dq_sums = place(&at.bytes, s->back ? rows * (size_t)s->d : 0);
    at.workspace = place(&at.bytes, (size_t)c->workspace);
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
    int32_t rc = dnn_fail(&x->dnn->api, x->dnn->api.BackendCreateDescriptor(DNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &x->pack),
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
    x->at = places_of(c);
    x->fixed = fixed;
    name_operands(x, i);
    k->state = x;
    k->run = run;
    k->release = release;
    return fixed ? HD_OK : cu_scratch_reserve(d, x->at.bytes, err);
}

/* ---- the trial */

enum { MOST_OUT = 3 };

struct trial {
    struct hd_device *d;
    cudaStream_t stream;
    char *memory, *scratch;
    struct hd_instr_desc ours, theirs;
    struct hd_operand in[6], out[2][MOST_OUT];
    float (*rows)[2];
    cudaEvent_t from, to;
    double distance;
    float ms[2]; /* ours, theirs */
};

static size_t size_of(const struct hd_operand *o)
{
    return (size_t)hd_operand_count(o) * hd_dtype_size(o->dtype);
}

/* Rows of a result: all but its last dim. */
static int64_t rows_of(const struct hd_operand *o)
{
    return hd_operand_count(o) / o->extent[o->ndim - 1];
}

static void *later(char *base, size_t *bytes, size_t more)
{
    size_t at = place(bytes, more);
    return base ? base + at : NULL;
}

/* Gives places to all that a trial reads and writes; with base NULL it only counts. */
static size_t lay_out(struct trial *t, const struct hd_instr_desc *i, const struct choice *c, char *base)
{
    size_t bytes = 0;
    int64_t rows = 0;
    for (uint32_t n = 0; n < i->n_in; n++) {
        t->in[n] = i->in[n];
        t->in[n].data = later(base, &bytes, size_of(&i->in[n]));
    }
    for (uint32_t n = 0; n < i->n_out; n++)
        for (int who = 0; who < 2; who++) {
            t->out[who][n] = i->out[n];
            t->out[who][n].data = later(base, &bytes, size_of(&i->out[n]));
            rows = rows_of(&i->out[n]) > rows ? rows_of(&i->out[n]) : rows;
        }
    t->rows = later(base, &bytes, (size_t)rows * sizeof t->rows[0]);
    t->scratch = later(base, &bytes, places_of(c).bytes);
    return bytes;
}

static struct hd_instr_desc instr_of(const struct hd_instr_desc *like, const struct hd_operand *in, const struct hd_operand *out)
{
    struct hd_instr_desc i = *like;
    i.in = in;
    i.out = out;
    return i;
}

static int32_t trial_open(struct trial *t, struct hd_device *d, const struct hd_instr_desc *i, const struct choice *c,
                          struct hd_error *err)
{
    void *memory = NULL;
    *t = (struct trial){.d = d, .stream = d->stream[HD_STREAM_COMPUTE]};
    size_t bytes = lay_out(t, i, c, NULL);
    cudaError_t rc = cudaMalloc(&memory, bytes);
    if (rc == cudaSuccess) {
        t->memory = memory;
        lay_out(t, i, c, memory);
        t->ours = instr_of(i, t->in, t->out[0]);
        t->theirs = instr_of(i, t->in, t->out[1]);
        rc = cudaEventCreateWithFlags(&t->from, cudaEventDefault);
    }
    if (rc == cudaSuccess)
        rc = cudaEventCreateWithFlags(&t->to, cudaEventDefault);
    return cu_fail(err, rc, NULL, "memory for a trial");
}

static void trial_close(struct trial *t)
{
    cudaStreamSynchronize(t->stream);
    if (t->from)
        cudaEventDestroy(t->from);
    if (t->to)
        cudaEventDestroy(t->to);
    cudaFree(t->memory);
    (void)cudaGetLastError(); /* too little memory for a trial is no fault */
}

static int32_t launch(struct trial *t, struct hd_kernel *k, struct hd_error *err)
{
    return k->run(k, t->stream, err);
}

static void drop(struct trial *t, struct hd_kernel *k)
{
    cudaStreamSynchronize(t->stream);
    if (k->release)
        k->release(k);
    else
        t->d->host->free(k->state);
}

/* The gradient reads what the forward pass left: ours makes it. */
static int32_t go_forward(struct trial *t, const struct cu_heads *h, struct hd_error *err)
{
    const struct hd_operand out[] = {t->in[3], t->in[4]};
    struct hd_instr_desc i = instr_of(&t->ours, t->in, out);
    struct hd_kernel k = {.device = t->d, .op = HD_OP_ATTENTION};
    i.op = HD_OP_ATTENTION;
    i.n_in = 3;
    i.n_out = 2;
    int32_t rc = cu_attention_own(t->d, &i, h, &k, err);
    rc = rc ? rc : launch(t, &k, err);
    drop(t, &k);
    return rc;
}

/* Scores of a few units: weights are neither all alike nor one of them all. Outputs begin as something else. */
static int32_t fill(struct trial *t, struct hd_error *err)
{
    float wide = sqrtf(6 / (float)fmax(t->ours.attrs.scale, 1e-3)) / powf((float)t->in[0].extent[t->in[0].ndim - 1], 0.25f);
    cudaError_t rc = cudaSuccess;
    for (uint32_t n = 0; n < t->ours.n_in && !rc; n++)
        rc = dnn_fill(t->in[n].data, t->in[n].dtype, hd_operand_count(&t->in[n]), n + 1, n < 2 ? wide : 1, t->stream);
    for (uint32_t n = 0; n < t->ours.n_out && !rc; n++)
        for (int who = 0; who < 2 && !rc; who++)
            rc = cudaMemsetAsync(t->out[who][n].data, 0xff, size_of(&t->out[who][n]), t->stream);
    return cu_fail(err, rc, NULL, "numbers for a trial");
}

static int32_t compare(struct trial *t, uint32_t n, struct hd_error *err)
{
    const struct hd_operand *a = &t->out[0][n], *b = &t->out[1][n];
    int64_t count = rows_of(a);
    float(*rows)[2] = t->d->host->alloc((size_t)count * sizeof rows[0]);
    if (!rows)
        return hd_fail(err, HD_E_NOMEM, "no memory for a trial");
    cudaError_t rc = dnn_compare(t->rows, a->data, b->data, a->dtype, count, a->extent[a->ndim - 1], t->stream);
    if (!rc)
        rc = cudaMemcpyAsync(rows, t->rows, (size_t)count * sizeof rows[0], cudaMemcpyDeviceToHost, t->stream);
    if (!rc)
        rc = cudaStreamSynchronize(t->stream);
    if (!rc)
        t->distance = fmax(t->distance, dnn_distance((const float(*)[2])rows, count));
    t->d->host->free(rows);
    return cu_fail(err, rc, NULL, "comparing results of a trial");
}

static int32_t clock_one(struct trial *t, struct hd_kernel *k, float *best, struct hd_error *err)
{
    int32_t rc = HD_OK;
    *best = INFINITY;
    for (int n = 0; n < ROUNDS && !rc; n++) {
        float ms = 0;
        cudaError_t at = cudaEventRecord(t->from, t->stream);
        rc = at ? HD_OK : launch(t, k, err);
        if (!rc && !at)
            at = cudaEventRecord(t->to, t->stream);
        if (!rc && !at)
            at = cudaEventSynchronize(t->to);
        if (!rc && !at)
            at = cudaEventElapsedTime(&ms, t->from, t->to);
        rc = rc ? rc : cu_fail(err, at, NULL, "timing a trial");
        *best = ms < *best ? ms : *best;
    }
    return rc;
}

static int32_t try_both(struct trial *t, struct hd_kernel *ours, struct hd_kernel *theirs, struct hd_error *err)
{
    int32_t rc = launch(t, ours, err);
    rc = rc ? rc : launch(t, theirs, err);
    for (uint32_t n = 0; n < t->ours.n_out && !rc; n++)
        rc = compare(t, n, err);
    rc = rc ? rc : clock_one(t, ours, &t->ms[0], err);
    return rc ? rc : clock_one(t, theirs, &t->ms[1], err);
}

static int32_t try_on(struct trial *t, const struct cu_heads *h, struct choice *c, struct hd_error *err)
{
    struct hd_kernel ours = {.device = t->d, .op = t->ours.op}, theirs = ours;
    int32_t rc = fill(t, err);
    if (!rc && c->shape.back)
        rc = go_forward(t, h, err);
    rc = rc ? rc : cu_attention_own(t->d, &t->ours, h, &ours, err);
    rc = rc ? rc : prepare_theirs(t->d, &t->theirs, c, t->scratch, &theirs, err);
    rc = rc ? rc : try_both(t, &ours, &theirs, err);
    drop(t, &ours);
    drop(t, &theirs);
    return rc;
}

/* ---- the choice */

static void say(const struct trial *t, const struct choice *c, const char *label)
{
    const struct dnn_shape *s = &c->shape;
    double near = dnn_near(s->dtype);
    int wrong = !(t->distance <= near);
    t->d->host->log(wrong ? HD_LOG_WARN : HD_LOG_INFO, "device-cuda",
                    "%s: attention%s of %lld x %lld, %lld heads (%lld) of %lld: cuDNN's is %s: %.3f ms, ours %.3f ms; a row is off by "
                    "%.2g of its norm, %.2g is allowed",
                    label, s->back ? "'s gradient" : "", (long long)s->b, (long long)s->s, (long long)s->heads,
                    (long long)s->kv_heads, (long long)s->d, c->taken ? "used" : wrong ? "wrong, and not used" : "not used",
                    (double)t->ms[1], (double)t->ms[0], t->distance, near);
}

static int32_t judge(struct hd_device *d, const struct hd_instr_desc *i, const struct cu_heads *h, struct choice *c,
                     struct hd_error *err)
{
    struct trial t;
    int32_t rc = dnn_graph_make(&c->graph, &d->dnn->api, d->dnn->handle, &c->shape, err);
    rc = rc ? rc : dnn_plan(&c->graph, d->dnn->handle, &c->plan, &c->workspace);
    if (rc)
        return rc;
    rc = trial_open(&t, d, i, c, err);
    rc = rc ? rc : try_on(&t, h, c, err);
    if (!rc) {
        c->taken = dnn_takes(d->settings->attention, t.distance, dnn_near(c->shape.dtype), t.ms[0], t.ms[1]);
        say(&t, c, i->label);
    }
    trial_close(&t);
    return rc;
}

static struct choice *choose(struct hd_device *d, const struct hd_instr_desc *i, const struct cu_heads *h,
                             const struct dnn_shape *shape)
{
    struct hd_error why = HD_ERROR_INIT;
    for (struct choice *c = d->dnn->choices; c; c = c->next)
        if (!memcmp(&c->shape, shape, sizeof *shape))
            return c;
    struct choice *c = d->host->alloc(sizeof *c);
    if (!c)
        return NULL;
    c->shape = *shape;
    c->next = d->dnn->choices;
    d->dnn->choices = c;
    if (judge(d, i, h, c, &why))
        d->host->log(HD_LOG_INFO, "device-cuda", "%s: attention is heddle's own: %s", i->label, why.message);
    c->graph.err = NULL;
    return c;
}

int32_t cu_dnn_attention(struct hd_device *d, const struct hd_instr_desc *i, const struct cu_heads *h, struct hd_kernel *k,
                         struct hd_error *err)
{
    const char *why = why_not(d, i, h);
    struct dnn_shape shape = shape_of(i, h);
    struct choice *c = why ? NULL : choose(d, i, h, &shape);
    if (!c || !c->taken)
        return hd_fail(err, HD_E_UNSUPPORTED, "not by cuDNN: %s", why ? why : "a trial said so");
    return prepare_theirs(d, i, c, NULL, k, err);
}
