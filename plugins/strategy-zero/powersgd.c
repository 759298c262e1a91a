/* Low-rank compression of gradients with error feedback: PowerSGD (Vogels et al., arXiv 1905.13727, algorithms 1 and
 * 2). Here every member has its part of a sum, not of a mean:
 *
 *   M += gradient            M [m n] holds the error of the steps before
 *   Q [n r] orthogonal       that of the step before (warm start); the first one, of zeros, gets fixed directions
 *   P = M Q; all_reduce P; P orthogonal
 *   Q = M^T P; all_reduce Q
 *   gradient = P Q^T         of all members
 *   M -= gradient / members  the error: the part of this member's M that the product lacks
 *
 * Other parameters (norms, biases) follow the matrices in a flat and are reduced uncompressed. */
#include <stdio.h>

#include "internal.h"

static int64_t factor_rank(const struct zero *z, const struct hd_pass_param *param)
{
    int64_t columns = param->count / param->rows, least = param->rows < columns ? param->rows : columns;
    return z->rank < least ? z->rank : least;
}

static hd_tensor block(struct zero *z, const struct hd_pass_param *param, const char *letter, hd_tensor inside,
                       int64_t first, uint32_t rows, uint32_t columns)
{
    char name[256];
    snprintf(name, sizeof name, "%s:%s", letter, param->name);
    return z->api->view(z->p, inside, name, first, (const uint32_t[]){rows, columns}, 2);
}

static uint32_t dim(struct zero *z, const struct hd_pass_param *param, const char *letter, int64_t n)
{
    char name[256];
    snprintf(name, sizeof name, "%s %s", letter, param->name);
    return z->api->dim(z->p, name, n);
}

static void make_matrix(struct zero *z, struct zero_flat *f, uint32_t k, hd_tensor grad, hd_tensor error, int64_t at[3])
{
    const struct hd_pass_param *param = &z->params[f->params[k]];
    int64_t rows = param->rows, columns = param->count / rows, r = factor_rank(z, param);
    uint32_t m = dim(z, param, "m", rows), n = dim(z, param, "n", columns), thin = dim(z, param, "r", r);
    f->matrices[k] = (struct zero_matrix){.moved = block(z, param, "E", error, at[0], m, n),
                                          .grad = block(z, param, "G", grad, at[0], m, n),
                                          .p = block(z, param, "LP", f->left, at[1], m, thin),
                                          .q = block(z, param, "LQ", f->right, at[2], n, thin)};
    at[1] += rows * r;
    at[2] += columns * r;
    z->matrices += rows * columns;
    z->factors += (rows + columns) * r;
}

/* Elements of a flat up to the last of its matrices. */
static int64_t end_of_matrices(const struct zero *z, const struct zero_flat *f, const struct hd_pass_flat *flat)
{
    uint32_t last = f->n_matrices - 1;
    return flat->offset[last] + z->params[f->params[last]].count;
}

static hd_tensor new_state(struct zero *z, struct zero_flat *f, const char *name, int64_t count, uint32_t dtype)
{
    hd_tensor t = z->api->vector(z->p, f->id, name, count, dtype, 0, HD_LIFE_PERSISTENT);
    z->api->declare(z->p, t, HD_FACT_FEEDBACK, 0, NULL);
    return t;
}

static int make_matrices(struct zero *z, struct zero_flat *f, hd_tensor grad)
{
    uint32_t wide = z->api->dtype(z->p, "grad") == HD_F64 ? HD_F64 : HD_F32;
    int64_t left = 0, right = 0, at[3] = {0};
    struct hd_pass_flat flat;
    hd_tensor error;
    uint32_t all;
    f->matrices = z->host->alloc(f->n_matrices * sizeof *f->matrices);
    if (!f->matrices) {
        z->api->fail(z->p, "strategy-zero: out of memory");
        return 0;
    }
    z->api->flat_get(z->p, f->id, &flat);
    for (uint32_t k = 0; k < f->n_matrices; k++) {
        const struct hd_pass_param *param = &z->params[f->params[k]];
        left += param->rows * factor_rank(z, param);
        right += param->count / param->rows * factor_rank(z, param);
    }
    f->code.ways = zero_ways(z, zero_code_axes(z, f));
    all = z->api->dim(z->p, "#matrices", end_of_matrices(z, f, &flat));
    error = new_state(z, f, "E", end_of_matrices(z, f, &flat), wide);
    f->code.sum = z->api->view(z->p, grad, NULL, 0, &all, 1);
    f->code.error = z->api->view(z->p, error, NULL, 0, &all, 1);
    f->left = z->api->vector(z->p, f->id, "LP", left, wide, 0, HD_LIFE_TEMP);
    f->right = new_state(z, f, "LQ", right, wide);
    for (uint32_t k = 0; k < f->n_matrices; k++) {
        at[0] = flat.offset[k];
        make_matrix(z, f, k, grad, f->code.error, at);
    }
    return 1;
}

/* out = a, or the product of a and b where there is one. */
static void put(struct zero *z, const struct zero_flat *f, uint32_t op, hd_tensor a, hd_tensor b, hd_tensor out,
                uint32_t section, uint32_t index)
{
    struct hd_pass_instr i = zero_instr(z, f, op, a, out, op == HD_OP_ALL_REDUCE ? zero_code_axes(z, f) : 0);
    if (b)
        i.in[i.n_in++] = b;
    z->api->insert(z->p, section, index, 1, &i);
}

/* M += factor * the gradient. */
static void add(struct zero *z, const struct zero_flat *f, double factor, uint32_t section, uint32_t index)
{
    const double factors[] = {1, factor};
    struct hd_attrs attrs = {.struct_size = sizeof attrs, .table = factors, .n_table = 2};
    struct hd_pass_instr i = zero_instr(z, f, HD_OP_BLEND, f->code.error, f->code.error, 0);
    i.in[i.n_in++] = f->code.sum;
    i.attrs = &attrs;
    z->api->insert(z->p, section, index, 1, &i);
}

/* Reduces the parameters after the matrices, uncompressed. */
static void reduce_rest(struct zero *z, struct zero_flat *f, hd_tensor grad, uint32_t section, uint32_t index)
{
    uint32_t last = f->n_params - 1;
    struct hd_pass_flat flat;
    hd_tensor rest;
    if (f->n_matrices == f->n_params)
        return;
    z->api->flat_get(z->p, f->id, &flat);
    rest = z->api->flat_range(z->p, f->id, grad, flat.offset[f->n_matrices],
                              flat.offset[last] + z->params[f->params[last]].count - flat.offset[f->n_matrices]);
    put(z, f, HD_OP_ALL_REDUCE, rest, 0, rest, section, index);
}

/* P = M Q of directions Q, or back, Q = M^T P; then the sum over all members. */
static void project(struct zero *z, struct zero_flat *f, int back, uint32_t section, uint32_t index)
{
    hd_tensor all = back ? f->right : f->left;
    for (uint32_t k = 0; k < f->n_matrices; k++) {
        const struct zero_matrix *m = &f->matrices[k];
        hd_tensor directions = back ? m->p : m->q;
        put(z, f, HD_OP_ORTHOGONALISE, directions, 0, directions, section, index);
        put(z, f, HD_OP_EINSUM, m->moved, directions, back ? m->q : m->p, section, index);
    }
    if (f->n_matrices)
        put(z, f, HD_OP_ALL_REDUCE, all, 0, all, section, index);
}

void zero_project(struct zero *z, struct zero_flat *f, hd_tensor grad, struct zero_tail *tail, uint32_t section,
                  uint32_t index)
{
    if (f->n_matrices && !make_matrices(z, f, grad))
        return;
    if (f->n_matrices)
        add(z, f, 1, section, index);
    project(z, f, 0, section, index);
    reduce_rest(z, f, grad, section, index);
    zero_flush(z, tail, section, index);
    *tail = (struct zero_tail){.flat = f, .op = HD_OP_DECODE};
}

/* All members have the same P. */
void zero_project_back(struct zero *z, struct zero_flat *f, uint32_t section, uint32_t index)
{
    project(z, f, 1, section, index);
}

void zero_multiply(struct zero *z, struct zero_flat *f, uint32_t section, uint32_t index)
{
    for (uint32_t k = 0; k < f->n_matrices; k++) {
        const struct zero_matrix *m = &f->matrices[k];
        put(z, f, HD_OP_EINSUM, m->p, m->q, m->grad, section, index);
    }
    if (f->n_matrices)
        add(z, f, -1.0 / (double)f->code.ways, section, index);
}
