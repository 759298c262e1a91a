/* An einsum as matrix products.
 *
 * c (+)= a b with labelled dims. Each label falls in one group: batch (in a, b and c), m (a and c), n (b and
 * c) or k (a and b). Neighbouring labels that lie next to each other in every operand that has them are one:
 * y[bskgd] = x[bsh] w[kgdh] has m = bs, n = kgd, k = h. One dim of each group makes the matrix product,
 * chosen so that each operand has a unit stride in it; what is left over (experts, heads) is looped over
 * around it. */
#include "fast.h"

#include <stdlib.h>

enum { A, B, C, OPERANDS };
enum { IN_A = 1, IN_B = 2, IN_C = 4 };
enum { BATCH = IN_A | IN_B | IN_C, M = IN_A | IN_C, N = IN_B | IN_C, K = IN_A | IN_B };
enum { MAX_LABELS = 3 * HD_MAX_DIMS };

/* A label, or several fused: where it occurs, its extent, its stride in each operand (elements; 0 where
 * absent). */
struct label {
    uint32_t where;
    uint32_t id;
    int64_t extent;
    int64_t stride[OPERANDS];
};

struct labels {
    struct label at[MAX_LABELS];
    int64_t count;
};

struct einsum {
    struct cpu_gemm gemm;
    struct labels outer; /* loops around the product; a contracted one comes last */
    size_t size[OPERANDS];
    struct cpu_gemm gemm_add; /* second and later terms of a contracted outer loop */
    int64_t swapped;          /* c is column-major: the product is of the transposes */
};

/* ---- labels */

static struct label *label_find(struct labels *l, uint32_t id)
{
    for (int64_t i = 0; i < l->count; i++)
        if (l->at[i].id == id)
            return &l->at[i];
    l->at[l->count] = (struct label){.id = id};
    return &l->at[l->count++];
}

/* Enters an operand's dims; 0 if a label occurs twice in it or with different extents. */
static int labels_enter(struct labels *l, const struct hd_operand *o, int which)
{
    int64_t stride = 1;
    for (int i = (int)o->ndim - 1; i >= 0; i--) {
        struct label *x;
        if (o->extent[i] == 1)
            continue;
        x = label_find(l, o->dim[i]);
        if (x->where & (UINT32_C(1) << which) || (x->where && x->extent != o->extent[i]))
            return 0;
        x->where |= UINT32_C(1) << which;
        x->extent = o->extent[i];
        x->stride[which] = stride;
        stride *= o->extent[i];
    }
    return 1;
}

/* outer is followed by inner in every operand that has them. */
static int fusible(const struct label *outer, const struct label *inner)
{
    if (outer->where != inner->where)
        return 0;
    for (int i = 0; i < OPERANDS; i++)
        if (outer->stride[i] != inner->stride[i] * inner->extent)
            return 0;
    return 1;
}

static void labels_remove(struct labels *l, int64_t i)
{
    l->count--;
    memmove(&l->at[i], &l->at[i + 1], (size_t)(l->count - i) * sizeof l->at[0]);
}

static int labels_fuse_once(struct labels *l)
{
    for (int64_t i = 0; i < l->count; i++)
        for (int64_t j = 0; j < l->count; j++)
            if (i != j && fusible(&l->at[i], &l->at[j])) {
                l->at[j].extent *= l->at[i].extent;
                labels_remove(l, i);
                return 1;
            }
    return 0;
}

/* Each label must be in one of the four groups: sums over a dim of one operand alone are nobody's product. */
static int labels_valid(const struct labels *l)
{
    for (int64_t i = 0; i < l->count; i++)
        if (l->at[i].where != BATCH && l->at[i].where != M && l->at[i].where != N && l->at[i].where != K)
            return 0;
    return 1;
}

/* ---- choice of the product */

static const struct label none = {.extent = 1};

/* The stride of a missing or present dim beside `other`: a missing one takes what a dense matrix would
 * have. */
static struct cpu_matrix matrix_of(uint32_t dtype, const struct label *row, const struct label *col,
                                   int which)
{
    struct cpu_matrix x = {.dtype = dtype, .rs = row->stride[which], .cs = col->stride[which]};
    if (row == &none && col == &none)
        x.rs = x.cs = 1;
    else if (row == &none)
        x.rs = x.cs == 1 ? col->extent : 1;
    else if (col == &none)
        x.cs = x.rs == 1 ? row->extent : 1;
    return x;
}

static int product_fits(const struct cpu_gemm *g)
{
    return (g->a.rs == 1 || g->a.cs == 1) && (g->b.rs == 1 || g->b.cs == 1) && (g->c.rs == 1 || g->c.cs == 1);
}

static int64_t group_count(const struct labels *l, uint32_t where)
{
    int64_t n = 0;
    for (int64_t i = 0; i < l->count; i++)
        n += l->at[i].where == where;
    return n;
}

static const struct label *group_member(const struct labels *l, uint32_t where, int64_t index)
{
    for (int64_t i = 0; i < l->count; i++)
        if (l->at[i].where == where && index-- == 0)
            return &l->at[i];
    return &none;
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
    int64_t count_m = group_count(l, M), count_n = group_count(l, N), count_k = group_count(l, K);
    for (int64_t m = 0; m < (count_m ? count_m : 1); m++)
        for (int64_t n = 0; n < (count_n ? count_n : 1); n++)
            for (int64_t k = 0; k < (count_k ? count_k : 1); k++) {
                struct choice x = {group_member(l, M, m), group_member(l, N, n), group_member(l, K, k)};
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
    struct choice x;
    if (!labels_enter(&l, &k->in[0], A) || !labels_enter(&l, &k->in[1], B) ||
        !labels_enter(&l, &k->out[0], C))
        return 0;
    while (labels_fuse_once(&l))
        ;
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
        run_loops(e, depth + 1, a + i * x->stride[A] * (int64_t)e->size[A],
                  b + i * x->stride[B] * (int64_t)e->size[B], c + i * x->stride[C] * (int64_t)e->size[C],
                  add || (x->where == K && i > 0));
}

static void einsum_run(struct hd_kernel *k)
{
    run_loops(k->state, 0, k->in[0].data, k->in[1].data, k->out[0].data, 0);
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
    if (status || !group_count(&e->outer, K))
        return status;
    if (e->gemm.c.dtype != HD_F32)
        return hd_fail(err, HD_E_UNSUPPORTED, "a sum over separated dims needs an fp32 output");
    e->gemm_add = e->gemm;
    e->gemm_add.release = NULL;
    e->gemm_add.state = NULL;
    e->gemm_add.accumulate = 1;
    return cpu_gemm_prepare(&e->gemm_add, err);
}

static int empty(const struct hd_kernel *k)
{
    return !hd_operand_count(&k->in[0]) || !hd_operand_count(&k->in[1]);
}

int32_t cpu_fast_einsum(struct hd_kernel *k, struct hd_error *err)
{
    struct einsum *e;
    int32_t status;
    if (k->d.n_in != 2 || k->d.n_out != 1 || k->in[0].dtype != k->in[1].dtype || !cpu_fast_dtype(k->in[0].dtype) ||
        !cpu_fast_dtype(k->out[0].dtype) || empty(k))
        return hd_fail(err, HD_E_UNSUPPORTED, "einsum: no fast kernel for these dtypes");
    e = calloc(1, sizeof *e);
    if (!e)
        return hd_fail(err, HD_E_NOMEM, "no memory for an einsum");
    k->state = e;
    if (plan(e, k)) {
        e->gemm.accumulate = (k->d.attrs.flags & HD_ATTR_ACCUMULATE) != 0;
        e->size[A] = hd_dtype_size(k->in[0].dtype);
        e->size[B] = hd_dtype_size(k->in[1].dtype);
        e->size[C] = hd_dtype_size(k->out[0].dtype);
        status = products_prepare(e, err);
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
