/* An einsum as matrix products of labels (../common/einsum_labels.h). One label of each group makes the matrix product,
 * chosen so that each operand has a unit stride in it; what is left over (experts, heads) is looped over around it. */
#include "../common/einsum_labels.h"
#include "kernels/rows.h"
#include "products/products.h"

#include <stdlib.h>

enum { A = LABELS_A, B = LABELS_B, C = LABELS_C, OPERANDS = LABELS_OPERANDS };
enum { M = LABEL_M, N = LABEL_N, K = LABEL_K };
enum { GRAIN = 16384 };

struct einsum {
    struct cpu_gemm gemm;
    struct labels outer; /* loops around the product; a contracted one comes last */
    size_t size[OPERANDS];
    struct cpu_gemm gemm_add; /* second and later terms of a contracted outer loop */
    int64_t swapped;          /* c is column-major: the product is of the transposes */
    int64_t via_scratch;      /* c is made in scratch and then added */
};

/* ---- choice of the product */

static struct cpu_matrix matrix_of(uint32_t dtype, const struct label *row, const struct label *col, int which)
{
    struct cpu_matrix x = {.dtype = dtype};
    label_strides(row, col, which, &x.rs, &x.cs);
    return x;
}

static int product_fits(const struct cpu_gemm *g)
{
    return (g->a.rs == 1 || g->a.cs == 1) && (g->b.rs == 1 || g->b.cs == 1) && (g->c.rs == 1 || g->c.cs == 1);
}

struct choice {
    const struct label *m, *n, *k;
};

static struct cpu_gemm product_of(const struct choice *x, const struct hd_kernel *kernel)
{
    struct cpu_gemm g = {.m = x->m->extent, .n = x->n->extent, .k = x->k->extent, .device = kernel->device};
    g.a = matrix_of(kernel->in[0].dtype, x->m, x->k, A);
    g.b = matrix_of(kernel->in[1].dtype, x->k, x->n, B);
    g.c = matrix_of(kernel->out[0].dtype, x->m, x->n, C);
    return g;
}

/* The choice with the largest product among those with unit strides; 0 if there is none. */
static int choose(const struct labels *l, const struct hd_kernel *kernel, struct choice *best)
{
    double most = 0;
    int64_t count_m = labels_count(l, M), count_n = labels_count(l, N), count_k = labels_count(l, K);
    for (int64_t m = 0; m < (count_m ? count_m : 1); m++)
        for (int64_t n = 0; n < (count_n ? count_n : 1); n++)
            for (int64_t k = 0; k < (count_k ? count_k : 1); k++) {
                struct choice x = {labels_member(l, M, m), labels_member(l, N, n), labels_member(l, K, k)};
                struct cpu_gemm g = product_of(&x, kernel);
                double size = (double)g.m * (double)g.n * (double)g.k;
                if (product_fits(&g) && size > most) {
                    most = size;
                    *best = x;
                }
            }
    return most > 0;
}

/* c row-major: products of transposes where it is not. */
static void make_row_major(struct einsum *e)
{
    struct cpu_gemm *g = &e->gemm, t = e->gemm;
    if (g->c.cs == 1)
        return;
    g->m = t.n;
    g->n = t.m;
    g->a = (struct cpu_matrix){.dtype = t.b.dtype, .rs = t.b.cs, .cs = t.b.rs};
    g->b = (struct cpu_matrix){.dtype = t.a.dtype, .rs = t.a.cs, .cs = t.a.rs};
    g->c = (struct cpu_matrix){.dtype = t.c.dtype, .rs = t.c.cs, .cs = t.c.rs};
    e->swapped = 1;
}

static int plan(struct einsum *e, const struct hd_kernel *k)
{
    struct labels l = {.count = 0};
    struct choice x = {&label_none, &label_none, &label_none};
    if (!labels_enter(&l, &k->in[0], A) || !labels_enter(&l, &k->in[1], B) || !labels_enter(&l, &k->out[0], C))
        return 0;
    labels_fuse(&l);
    if (!labels_valid(&l) || !choose(&l, k, &x))
        return 0;
    e->gemm = product_of(&x, k);
    make_row_major(e);
    for (int pass = 0; pass < 2; pass++) /* contracted loops last */
        for (int64_t i = 0; i < l.count; i++) {
            const struct label *y = &l.at[i];
            if (y != x.m && y != x.n && y != x.k && (y->where == K) == pass)
                e->outer.at[e->outer.count++] = *y;
        }
    return 1;
}

/* ---- running */

/* All the products of outer loops `depth` and on; `add`: c already has terms of a contracted loop. */
static void run_loops(struct einsum *e, int64_t depth, const char *a, const char *b, char *c, int add)
{
    if (depth == e->outer.count) {
        struct cpu_gemm *g = add ? &e->gemm_add : &e->gemm;
        g->run(g, e->swapped ? b : a, e->swapped ? a : b, c);
        return;
    }
    const struct label *x = &e->outer.at[depth];
    for (int64_t i = 0; i < x->extent; i++)
        run_loops(e, depth + 1, a + i * x->stride[A] * (int64_t)e->size[A], b + i * x->stride[B] * (int64_t)e->size[B],
                  c + i * x->stride[C] * (int64_t)e->size[C], add || (x->where == K && i > 0));
}

static void add_rows(void *context, int64_t first, int64_t last)
{
    const struct hd_kernel *k = context;
    const float *from = cpu_rows(k->device);
    float *to = k->out[0].data;
    for (int64_t i = first; i < last; i++)
        to[i] += from[i];
}

static void einsum_run(struct hd_kernel *k)
{
    struct einsum *e = k->state;
    run_loops(e, 0, k->in[0].data, k->in[1].data, e->via_scratch ? cpu_rows(k->device) : k->out[0].data, 0);
    if (e->via_scratch)
        cpu_parallel(k->device, hd_operand_count(&k->out[0]), GRAIN, add_rows, k);
}

static void einsum_release(struct hd_kernel *k)
{
    struct einsum *e = k->state;
    if (!e)
        return;
    if (e->gemm.release)
        e->gemm.release(&e->gemm);
    if (e->gemm_add.release)
        e->gemm_add.release(&e->gemm_add);
    free(e);
    k->state = NULL;
}

/* ---- preparing */

static int32_t products_prepare(struct einsum *e, struct hd_error *err)
{
    int32_t status = cpu_gemm_prepare(&e->gemm, err);
    if (status || !labels_count(&e->outer, K))
        return status;
    if (e->gemm.c.dtype != HD_F32)
        return hd_fail(err, HD_E_UNSUPPORTED, "a sum over separated dims needs an fp32 output");
    e->gemm_add = e->gemm;
    e->gemm_add.release = NULL;
    e->gemm_add.state = NULL;
    e->gemm_add.accumulate = 1;
    return cpu_gemm_prepare(&e->gemm_add, err);
}

/* HD_ATTR_ONCE: the product itself if it can, else it is made in scratch. */
static int32_t once_prepare(struct einsum *e, const struct hd_kernel *k, struct hd_error *err)
{
    struct hd_error why = HD_ERROR_INIT;
    int32_t status = HD_E_UNSUPPORTED;
    e->gemm.once = !labels_count(&e->outer, K);
    if (e->gemm.once)
        status = products_prepare(e, &why);
    if (status != HD_E_UNSUPPORTED) {
        *err = why;
        return status;
    }
    e->via_scratch = 1;
    e->gemm.once = e->gemm.accumulate = 0;
    status = cpu_rows_reserve(k->device, (size_t)hd_operand_count(&k->out[0]) * sizeof(float), err);
    return status ? status : products_prepare(e, err);
}

static int empty(const struct hd_kernel *k)
{
    return !hd_operand_count(&k->in[0]) || !hd_operand_count(&k->in[1]);
}

/* Element by element, as of GeGLU's halves: all dims are in all operands, in one order. */
static int is_elementwise(const struct hd_kernel *k)
{
    struct labels l = {.count = 0};
    if (!labels_enter(&l, &k->in[0], A) || !labels_enter(&l, &k->in[1], B) || !labels_enter(&l, &k->out[0], C))
        return 0;
    labels_fuse(&l);
    return l.count == 1 && l.at[0].where == LABEL_BATCH && l.at[0].stride[A] == 1 && l.at[0].stride[B] == 1 &&
           l.at[0].stride[C] == 1;
}

int32_t cpu_fast_einsum(struct hd_kernel *k, struct hd_error *err)
{
    struct einsum *e;
    int32_t status;
    if (k->d.attrs.flags & HD_ATTR_ONCE && k->out[0].dtype != HD_F32)
        return hd_fail(err, HD_E_UNSUPPORTED, "einsum: sums that are added once are fp32");
    if (k->d.n_in != 2 || k->d.n_out != 1 || k->in[0].dtype != k->in[1].dtype || !cpu_fast_dtype(k->in[0].dtype) ||
        !cpu_fast_dtype(k->out[0].dtype) || empty(k))
        return hd_fail(err, HD_E_UNSUPPORTED, "einsum: no fast kernel for these dtypes");
    if (is_elementwise(k))
        return cpu_fast_mul(k, err);
    e = calloc(1, sizeof *e);
    if (!e)
        return hd_fail(err, HD_E_NOMEM, "no memory for an einsum");
    k->state = e;
    if (plan(e, k)) {
        e->gemm.accumulate = (k->d.attrs.flags & HD_ATTR_ACCUMULATE) != 0;
        e->size[A] = hd_dtype_size(k->in[0].dtype);
        e->size[B] = hd_dtype_size(k->in[1].dtype);
        e->size[C] = hd_dtype_size(k->out[0].dtype);
        status =
            e->gemm.accumulate && k->d.attrs.flags & HD_ATTR_ONCE ? once_prepare(e, k, err) : products_prepare(e, err);
    } else {
        status = hd_fail(err, HD_E_UNSUPPORTED, "einsum: no matrix product with these orders of dims");
    }
    if (status) {
        einsum_release(k);
        return status;
    }
    k->run = einsum_run;
    k->release = einsum_release;
    return HD_OK;
}
