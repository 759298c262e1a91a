/* Autotuning of attention: memory, random operands, both kernels, their difference, their times. */
#include "attention/attention_autotune.h"
#include <math.h>

enum { MOST_OUT = 3, UNIT = 256 };

struct autotune {
    struct hd_device *d;
    cudaStream_t stream;
    char *memory, *scratch;
    struct hd_instr_desc ours, theirs;
    struct hd_operand in[6], out[2][MOST_OUT];
    float (*rows)[2];
    double error;
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
    size_t at = *bytes;
    *bytes += (more + UNIT - 1) / UNIT * UNIT;
    return base ? base + at : NULL;
}

/* Lays out all operands, results and scratch in memory from `base` on; with base NULL it only counts bytes. */
static size_t lay_out(struct autotune *t, const struct hd_instr_desc *i, size_t scratch, char *base)
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
    t->scratch = later(base, &bytes, scratch);
    return bytes;
}

static struct hd_instr_desc instr_of(const struct hd_instr_desc *like, const struct hd_operand *in,
                                     const struct hd_operand *out)
{
    struct hd_instr_desc i = *like;
    i.in = in;
    i.out = out;
    return i;
}

static int32_t autotune_open(struct autotune *t, struct hd_device *d, const struct hd_instr_desc *i, size_t scratch,
                             struct hd_error *err)
{
    void *memory = NULL;
    *t = (struct autotune){.d = d, .stream = d->stream[HD_STREAM_COMPUTE]};
    size_t bytes = lay_out(t, i, scratch, NULL);
    cudaError_t rc = cudaMalloc(&memory, bytes);
    if (rc == cudaSuccess) {
        t->memory = memory;
        lay_out(t, i, scratch, memory);
        t->ours = instr_of(i, t->in, t->out[0]);
        t->theirs = instr_of(i, t->in, t->out[1]);
    }
    return cu_fail(err, rc, NULL, "device memory to autotune attention");
}

static void autotune_close(struct autotune *t)
{
    cudaStreamSynchronize(t->stream);
    cudaFree(t->memory);
    (void)cudaGetLastError(); /* too little memory for it is no failure */
}

static int32_t launch(struct autotune *t, struct hd_kernel *k, struct hd_error *err)
{
    return k->run(k, t->stream, err);
}

static void drop(struct autotune *t, struct hd_kernel *k)
{
    cudaStreamSynchronize(t->stream);
    if (k->release)
        k->release(k);
    else
        t->d->host->free(k->state);
}

/* The gradient reads what the forward pass left: ours makes it. */
static int32_t go_forward(struct autotune *t, const struct cu_heads *h, struct hd_error *err)
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
static int32_t fill(struct autotune *t, struct hd_error *err)
{
    float wide =
        sqrtf(6 / (float)fmax(t->ours.attrs.scale, 1e-3)) / powf((float)t->in[0].extent[t->in[0].ndim - 1], 0.25f);
    cudaError_t rc = cudaSuccess;
    for (uint32_t n = 0; n < t->ours.n_in && !rc; n++)
        rc = cu_fill_random(t->in[n].data, t->in[n].dtype, hd_operand_count(&t->in[n]), n + 1, n < 2 ? wide : 1,
                            t->stream);
    for (uint32_t n = 0; n < t->ours.n_out && !rc; n++)
        for (int who = 0; who < 2 && !rc; who++)
            rc = cudaMemsetAsync(t->out[who][n].data, 0xff, size_of(&t->out[who][n]), t->stream);
    return cu_fail(err, rc, NULL, "inputs to autotune attention");
}

static int32_t compare(struct autotune *t, uint32_t n, struct hd_error *err)
{
    const struct hd_operand *a = &t->out[0][n], *b = &t->out[1][n];
    int64_t count = rows_of(a);
    float(*rows)[2] = t->d->host->alloc((size_t)count * sizeof rows[0]);
    if (!rows)
        return hd_fail(err, HD_E_NOMEM, "no host memory to autotune attention");
    cudaError_t rc = cu_verify_compare(t->rows, a->data, b->data, a->dtype, count, a->extent[a->ndim - 1], t->stream);
    if (!rc)
        rc = cudaMemcpyAsync(rows, t->rows, (size_t)count * sizeof rows[0], cudaMemcpyDeviceToHost, t->stream);
    if (!rc)
        rc = cudaStreamSynchronize(t->stream);
    if (!rc)
        t->error = fmax(t->error, cu_verify_error((const float(*)[2])rows, count));
    t->d->host->free(rows);
    return cu_fail(err, rc, NULL, "verifying results of attention");
}

static int32_t try_both(struct autotune *t, struct hd_kernel *ours, struct hd_kernel *theirs, struct hd_error *err)
{
    int32_t rc = launch(t, ours, err);
    rc = rc ? rc : launch(t, theirs, err);
    for (uint32_t n = 0; n < t->ours.n_out && !rc; n++)
        rc = compare(t, n, err);
    rc = rc ? rc : cu_time_kernel(t->d, ours, &t->ms[0], err);
    return rc ? rc : cu_time_kernel(t->d, theirs, &t->ms[1], err);
}

static int32_t try_on(struct autotune *t, const struct cu_heads *h, const struct cu_candidate *c, struct hd_error *err)
{
    struct hd_kernel ours = {.device = t->d, .op = t->ours.op}, theirs = ours;
    int32_t rc = fill(t, err);
    if (!rc && t->ours.op == HD_OP_ATTENTION_GRAD)
        rc = go_forward(t, h, err);
    rc = rc ? rc : cu_attention_own(t->d, &t->ours, h, &ours, err);
    rc = rc ? rc : c->prepare(t->d, &t->theirs, h, c->state, t->scratch, &theirs, err);
    rc = rc ? rc : try_both(t, &ours, &theirs, err);
    drop(t, &ours);
    drop(t, &theirs);
    return rc;
}

static void say(const struct autotune *t, const struct cu_heads *h, const char *who, const struct cu_autotune_result *v)
{
    double tolerance = cu_verify_tolerance(t->in[0].dtype);
    int wrong = !(v->error <= tolerance);
    t->d->host->log(wrong ? HD_LOG_WARN : HD_LOG_INFO, "device-cuda",
                    "%s: attention%s of %d x %d, %d heads (%d) of %d: %s is %s: %.3f ms, ours %.3f ms; a row is off by "
                    "%.2g of its norm, %.2g is allowed",
                    t->ours.label, t->ours.op == HD_OP_ATTENTION_GRAD ? "'s gradient" : "", h->b, h->s, h->k * h->g,
                    h->k, h->d, who,
                    v->used ? "used"
                    : wrong ? "wrong, and not used"
                            : "not used",
                    (double)v->theirs, (double)v->ours, v->error, tolerance);
}

int32_t cu_attention_autotune(struct hd_device *d, const struct hd_instr_desc *i, const struct cu_heads *h,
                              const struct cu_candidate *c, struct cu_autotune_result *v, struct hd_error *err)
{
    struct autotune t;
    int32_t rc = autotune_open(&t, d, i, c->scratch, err);
    rc = rc ? rc : try_on(&t, h, c, err);
    if (!rc) {
        *v = (struct cu_autotune_result){.error = t.error, .ours = t.ms[0], .theirs = t.ms[1]};
        v->used = cu_autotune_accepts(d->settings->attention, v->error, cu_verify_tolerance(i->in[0].dtype), v->ours,
                                      v->theirs);
        say(&t, h, c->who, v);
    }
    autotune_close(&t);
    return rc;
}
