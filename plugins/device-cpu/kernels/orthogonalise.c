/* Orthogonalises columns, row by row: classical Gram-Schmidt, repeated for each column as often as needed. Sums are in
 * double, over blocks of rows that depend on the shape alone: the same bits for any number of threads. */
#include "kernels/rows.h"
#include "reference/reference.h"

enum { BLOCK = 8192 /* elements */, GRAIN = 4 };

struct columns {
    float *at;
    int64_t rows, n, block; /* block: rows of one */
    int64_t j;              /* the column that is worked on */
    uint32_t attempt, reserved;
    double factor;
    double *sums; /* of j + 1 products, a block each */
    double *dots;
};

static int64_t blocks(const struct columns *c)
{
    return (c->rows + c->block - 1) / c->block;
}

/* Products of column j with those before it and with itself. */
static void multiply(void *context, int64_t first, int64_t last)
{
    const struct columns *c = context;
    for (int64_t b = first; b < last; b++) {
        double *sum = c->sums + b * c->n;
        memset(sum, 0, (size_t)(c->j + 1) * sizeof *sum);
        for (int64_t row = b * c->block; row < cpu_min(c->rows, (b + 1) * c->block); row++) {
            const float *q = c->at + row * c->n;
            for (int64_t i = 0; i <= c->j; i++)
                sum[i] += (double)q[i] * (double)q[c->j];
        }
    }
}

static void subtract(void *context, int64_t first, int64_t last)
{
    const struct columns *c = context;
    for (int64_t row = first * c->block; row < cpu_min(c->rows, last * c->block); row++) {
        float *q = c->at + row * c->n;
        double sum = 0;
        for (int64_t i = 0; i < c->j; i++)
            sum += c->dots[i] * (double)q[i];
        q[c->j] = (float)((double)q[c->j] - sum);
    }
}

static void stretch(void *context, int64_t first, int64_t last)
{
    const struct columns *c = context;
    for (int64_t row = first * c->block; row < cpu_min(c->rows, last * c->block); row++)
        c->at[row * c->n + c->j] = (float)((double)c->at[row * c->n + c->j] * c->factor);
}

static void direct(void *context, int64_t first, int64_t last)
{
    const struct columns *c = context;
    for (int64_t row = first * c->block; row < cpu_min(c->rows, last * c->block); row++)
        c->at[row * c->n + c->j] = (float)hd_direction(row, c->j, c->attempt);
}

/* Fills dots; the length of column j. */
static double measure(const struct hd_device *d, struct columns *c)
{
    cpu_parallel(d, blocks(c), GRAIN, multiply, c);
    memset(c->dots, 0, (size_t)(c->j + 1) * sizeof *c->dots);
    for (int64_t b = 0; b < blocks(c); b++)
        for (int64_t i = 0; i <= c->j; i++)
            c->dots[i] += c->sums[b * c->n + i];
    return sqrt(c->dots[c->j]);
}

/* As the reference's: the length that is left, or 0. */
static double project(const struct hd_device *d, struct columns *c)
{
    double least = cpu_rounding(HD_F32), whole = measure(d, c), before = whole, length = whole;
    for (int pass = 0; (pass < 2 || length < before / 2) && length > least * whole; pass++) {
        before = length;
        cpu_parallel(d, blocks(c), GRAIN, subtract, c);
        length = measure(d, c);
    }
    return length > least * whole ? length : 0;
}

static int all_finite(const float *x, int64_t n)
{
    float sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += x[i] * 0.0f; /* NaN of what is not finite */
    return sum == 0;
}

static void run_orthogonalise(struct hd_kernel *k)
{
    struct columns *c = k->state;
    int64_t n = c->rows * c->n;
    c->at = k->out[0].data;
    if (k->in[0].data != k->out[0].data)
        memcpy(c->at, k->in[0].data, (size_t)n * sizeof *c->at);
    if (!all_finite(c->at, n)) {
        for (int64_t i = 0; i < n; i++)
            c->at[i] = NAN;
        return;
    }
    for (c->j = 0; c->j < c->n; c->j++) {
        double length = project(k->device, c);
        for (c->attempt = 0; length == 0; c->attempt++) {
            cpu_parallel(k->device, blocks(c), GRAIN, direct, c);
            length = project(k->device, c);
        }
        c->factor = 1 / length;
        cpu_parallel(k->device, blocks(c), GRAIN, stretch, c);
    }
}

int32_t cpu_fast_orthogonalise(struct hd_kernel *k, struct hd_error *err)
{
    int32_t rc = cpu_check_orthogonalise(k, err);
    struct columns c = {.rows = k->out[0].extent[0], .n = k->out[0].extent[1]}, *state;
    if (rc)
        return rc;
    if (k->in[0].dtype != HD_F32 || k->out[0].dtype != HD_F32)
        return hd_fail(err, HD_E_UNSUPPORTED, "orthogonalise: the fast kernel is for fp32");
    c.block = c.n < BLOCK ? BLOCK / c.n : 1;
    rc = cpu_kernel_state(k, sizeof c + (size_t)((blocks(&c) + 1) * c.n) * sizeof(double), err);
    if (rc)
        return rc;
    state = k->state;
    *state = c;
    state->sums = (double *)(void *)(state + 1);
    state->dots = state->sums + blocks(&c) * c.n;
    k->run = run_orthogonalise;
    return HD_OK;
}
