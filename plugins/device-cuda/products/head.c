/* The loss and its gradients from the last activations, in chunks of rows: of the logits only a chunk exists, in
 * scratch. A product makes it, each row becomes its gradient in place, two more products use it. Chunks follow one
 * another: dw is summed in their order. */
#include "products/head.h"
#include "op_table.h"
#include "products/blas.h"

enum { LEAST_ROWS = 64, COLUMNS_UNIT = 8 };
enum { LOGITS, DX, DW, PRODUCTS };
enum { FIRST, MIDDLE, LAST, CHUNKS };

struct head {
    const char *x, *w;
    char *dx, *dw;
    int64_t rows, v, h, ld, chunk;
    int64_t x_row, dx_row; /* bytes */
    struct cu_head_rows of;
    const struct cu_gemm *product[CHUNKS][PRODUCTS];
};

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t round_up(int64_t n, int64_t unit)
{
    return (n + unit - 1) / unit * unit;
}

/* ---- running */

static int32_t run_chunk(struct hd_kernel *k, const struct head *a, int64_t done, cudaStream_t stream,
                         struct hd_error *err)
{
    const struct cu_gemm *const *g = a->product[!done ? FIRST : done + a->chunk < a->rows ? MIDDLE : LAST];
    struct cu_head_rows rows = a->of;
    const char *x = a->x + done * a->x_row;
    void *z = cu_scratch(k->device);
    rows.z = z;
    rows.rows = least(a->chunk, a->rows - done);
    rows.labels += done;
    rows.nll += done;
    int32_t rc = cu_gemm_run(g[LOGITS], a->w, x, z, NULL, stream, err);
    if (rc == HD_OK)
        rc = cu_head_launch(k, &rows, stream, err);
    if (rc == HD_OK && a->of.trains)
        rc = cu_gemm_run(g[DX], a->w, z, a->dx + done * a->dx_row, NULL, stream, err);
    if (rc == HD_OK && a->of.trains)
        rc = cu_gemm_run(g[DW], x, z, a->dw, NULL, stream, err);
    return rc;
}

static int32_t run(struct hd_kernel *k, cudaStream_t stream, struct hd_error *err)
{
    const struct head *a = k->state;
    int32_t rc = HD_OK;
    for (int64_t done = 0; done < a->rows && rc == HD_OK; done += a->chunk)
        rc = run_chunk(k, a, done, stream, err);
    return rc;
}

/* ---- preparing */

/* By the option; not so few rows that reading all of w is dear. */
static int64_t chunk_rows(const struct hd_device *d, const struct head *a, uint32_t dtype)
{
    int64_t most = d->settings->logits / (a->ld * (int64_t)hd_dtype_size(dtype));
    return cu_plan_rows(a->rows, most < LEAST_ROWS ? LEAST_ROWS : most, a->h, d->processors);
}

static struct cu_matrix matrix(uint32_t dtype, int64_t rows, int64_t cols, int64_t ld, uint32_t trans)
{
    return (struct cu_matrix){.dtype = dtype, .trans = trans, .rows = rows, .cols = cols, .ld = ld};
}

/* Column-major, as cuBLAS has it: a matrix [rows h] of ours is [h rows] of its. */
static int32_t prepare_chunk(struct hd_device *d, const struct hd_instr_desc *i, struct head *a, int which,
                             int64_t rows, struct hd_error *err)
{
    uint32_t dtype = i->in[0].dtype, adds = which != FIRST || cu_accumulates(i);
    const void *z = CU_SCRATCH_LATER;
    struct cu_matrix x = matrix(dtype, a->h, rows, a->h, 0), w = matrix(dtype, a->h, a->v, a->h, 0), wt = w;
    struct cu_matrix of_z = matrix(dtype, a->v, rows, a->ld, 0), zt = of_z;
    wt.trans = zt.trans = 1;
    struct cu_product p = {.m = a->v, .n = rows, .k = a->h, .batch = 1, .a = wt, .b = x, .d = of_z};
    int32_t rc = cu_gemm_prepare(d, &p, a->w, a->x, z, NULL, &a->product[which][LOGITS], err);
    if (rc || !a->of.trains)
        return rc;
    p = (struct cu_product){.m = a->h, .n = rows, .k = a->v, .batch = 1, .a = w, .b = of_z};
    p.d = matrix(i->out[1].dtype, a->h, rows, a->h, 0);
    rc = cu_gemm_prepare(d, &p, a->w, z, a->dx, NULL, &a->product[which][DX], err);
    if (rc)
        return rc;
    p = (struct cu_product){.m = a->h, .n = a->v, .k = rows, .batch = 1, .a = x, .b = zt, .accumulate = adds};
    p.d = matrix(i->out[2].dtype, a->h, a->v, a->h, 0);
    return cu_gemm_prepare(d, &p, a->x, z, a->dw, NULL, &a->product[which][DW], err);
}

static int32_t prepare_chunks(struct hd_device *d, const struct hd_instr_desc *i, struct head *a, struct hd_error *err)
{
    int64_t chunks = (a->rows + a->chunk - 1) / a->chunk;
    int32_t rc = cu_scratch_reserve(d, (size_t)(a->chunk * a->ld) * hd_dtype_size(i->in[0].dtype), err);
    if (rc == HD_OK && chunks > 0)
        rc = prepare_chunk(d, i, a, FIRST, a->chunk, err);
    if (rc == HD_OK && chunks > 2)
        rc = prepare_chunk(d, i, a, MIDDLE, a->chunk, err);
    if (rc == HD_OK && chunks > 1)
        rc = prepare_chunk(d, i, a, LAST, a->rows - (chunks - 1) * a->chunk, err);
    return rc;
}

static void fill(struct hd_device *d, const struct hd_instr_desc *i, struct head *a)
{
    const struct hd_operand *x = &i->in[0], *w = &i->in[1];
    a->x = x->data;
    a->w = w->data;
    a->v = w->extent[0];
    a->h = w->extent[1];
    a->ld = round_up(a->v, COLUMNS_UNIT);
    a->rows = cu_span(x, 0, x->ndim - 1);
    a->x_row = a->h * (int64_t)hd_dtype_size(x->dtype);
    a->of = (struct cu_head_rows){.dtype = x->dtype,
                                  .trains = i->n_out == 3,
                                  .v = a->v,
                                  .ld = a->ld,
                                  .labels = i->in[2].data,
                                  .start = w->start[0],
                                  .nll = i->out[0].data,
                                  .scale = i->attrs.scale,
                                  .seed = i->n_in > 3 ? i->in[3].data : NULL};
    if (a->of.trains) {
        a->dx = i->out[1].data;
        a->dw = i->out[2].data;
        a->dx_row = a->h * (int64_t)hd_dtype_size(i->out[1].dtype);
    }
    a->chunk = chunk_rows(d, a, x->dtype);
}

int32_t cu_prepare_xent_head(struct hd_device *d, const struct hd_instr_desc *i, struct hd_kernel *k,
                             struct hd_error *err)
{
    if (i->in[0].dtype != i->in[1].dtype || i->out[0].dtype != HD_F32 || i->in[2].dtype != HD_I32 || i->in[1].ndim != 2)
        return cu_refuse(err, HD_E_UNSUPPORTED, i, "x of %s, w of %s and a loss of %s", hd_dtype_name(i->in[0].dtype),
                         hd_dtype_name(i->in[1].dtype), hd_dtype_name(i->out[0].dtype));
    struct head *a = d->host->alloc(sizeof *a);
    if (!a)
        return cu_refuse(err, HD_E_NOMEM, i, "no memory for a fused head");
    fill(d, i, a);
    k->state = a;
    k->run = run;
    int32_t rc = cu_head_prepare(d, &a->of, err);
    return rc ? rc : prepare_chunks(d, i, a, err);
}
