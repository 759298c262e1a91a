/* Causal attention and its gradient as graphs of cuDNN's operations.
 *
 * The operations, their order and what lies in memory between them are those of NVIDIA's cudnn-frontend
 * (node/scaled_dot_product_flash_attention.h): cuDNN knows fused kernels for exactly these. With S = scale Q K^T,
 * masked where the key comes after the query, and stats = log(sum(exp(S))):
 *
 *     P = exp(S - max(S)) / sum        O = P V
 *     sums = rowsum(dO O)              dS = scale P (dO V^T - sums),  P = exp(S - stats)
 *     dV = P^T dO                      dK = dS^T Q,  dQ = dS K
 *
 * dQ is summed in dq_sums by blocks as they finish: its last bits differ from run to run. */
#include "attention/cudnn_attention.h"
#include <stdbool.h>

dnn_descriptor dnn_make(struct dnn_graph *g, int type)
{
    dnn_descriptor x = NULL;
    if (g->rc)
        return NULL;
    if (g->n_all == DNN_MOST)
        g->rc = hd_fail(g->err, HD_E_NOMEM, "a graph of more than %d descriptors", DNN_MOST);
    else
        g->rc = dnn_fail(g->api, g->api->BackendCreateDescriptor(type, &x), "a descriptor", g->err);
    if (g->rc)
        return NULL;
    g->all[g->n_all++] = x;
    return x;
}

void dnn_set(struct dnn_graph *g, dnn_descriptor x, int name, int type, int64_t count, const void *elements)
{
    if (!g->rc)
        g->rc = dnn_fail(g->api, g->api->BackendSetAttribute(x, name, type, count, elements), "an attribute", g->err);
}

void dnn_finalize(struct dnn_graph *g, dnn_descriptor x, const char *what)
{
    if (!g->rc)
        g->rc = dnn_fail(g->api, g->api->BackendFinalize(x), what, g->err);
}

void dnn_graph_free(struct dnn_graph *g)
{
    while (g->n_all > 0)
        g->api->BackendDestroyDescriptor(g->all[--g->n_all]);
}

/* ---- tensors */

enum { IN_MEMORY, VIRTUAL, SCALAR };

struct layout {
    int64_t dim[4], stride[4];
};

static int64_t add_tensor(struct dnn_graph *g, int64_t id, int32_t dtype, const struct layout *l, int32_t where)
{
    int64_t align = 16;
    bool is_virtual = where == VIRTUAL, is_scalar = where == SCALAR;
    dnn_descriptor x = dnn_make(g, DNN_BACKEND_TENSOR_DESCRIPTOR);
    dnn_set(g, x, DNN_ATTR_TENSOR_DATA_TYPE, DNN_TYPE_DATA_TYPE, 1, &dtype);
    dnn_set(g, x, DNN_ATTR_TENSOR_DIMENSIONS, DNN_TYPE_INT64, 4, l->dim);
    dnn_set(g, x, DNN_ATTR_TENSOR_STRIDES, DNN_TYPE_INT64, 4, l->stride);
    dnn_set(g, x, DNN_ATTR_TENSOR_UNIQUE_ID, DNN_TYPE_INT64, 1, &id);
    dnn_set(g, x, DNN_ATTR_TENSOR_BYTE_ALIGNMENT, DNN_TYPE_INT64, 1, &align);
    dnn_set(g, x, DNN_ATTR_TENSOR_IS_VIRTUAL, DNN_TYPE_BOOLEAN, 1, &is_virtual);
    dnn_set(g, x, DNN_ATTR_TENSOR_IS_BY_VALUE, DNN_TYPE_BOOLEAN, 1, &is_scalar);
    dnn_finalize(g, x, "a tensor");
    g->tensor[id] = x;
    return id;
}

static int64_t add_virtual(struct dnn_graph *g, int32_t dtype, const struct layout *l)
{
    return add_tensor(g, g->next++, dtype, l, VIRTUAL);
}

/* [b, h, s, d] as it lies in [b, s, h, d]; turned: [b, h, d, s]. */
static struct layout heads_of(const struct dnn_shape *x, int64_t h, int turned)
{
    struct layout l = {{x->b, h, x->s, x->d}, {x->s * h * x->d, x->d, h * x->d, 1}};
    struct layout t = {{x->b, h, x->d, x->s}, {x->s * h * x->d, x->d, 1, h * x->d}};
    return turned ? t : l;
}

/* [b, h, m, n], dense; turned: n and m the other way round in memory. */
static struct layout dense(const struct dnn_shape *x, int64_t m, int64_t n, int turned)
{
    struct layout l = {{x->b, x->heads, m, n}, {x->heads * m * n, m * n, turned ? 1 : n, turned ? m : 1}};
    return l;
}

static const struct layout scalar = {{1, 1, 1, 1}, {1, 1, 1, 1}};

/* ---- operations: each gives back the id of what it makes */

static dnn_descriptor add_op(struct dnn_graph *g, int type)
{
    dnn_descriptor x = dnn_make(g, type);
    if (x)
        g->op[g->n_ops++] = x;
    return x;
}

static void bind(struct dnn_graph *g, dnn_descriptor op, int name, int64_t id)
{
    dnn_set(g, op, name, DNN_TYPE_BACKEND_DESCRIPTOR, 1, &g->tensor[id]);
}

/* y = mode(x, b); of a selection x where t, else b. 0: none. axis: of an index. */
struct pointwise {
    int64_t mode, x, b, t, y, axis;
};

/* Tensors are made in any order: where initializers make several, none depends on another. */
static int64_t pointwise(struct dnn_graph *g, struct pointwise p)
{
    int32_t math = p.mode == DNN_POINTWISE_CMP_GE ? DNN_DATA_BOOLEAN : DNN_DATA_FLOAT, mode = (int32_t)p.mode;
    dnn_descriptor what = dnn_make(g, DNN_BACKEND_POINTWISE_DESCRIPTOR);
    dnn_set(g, what, DNN_ATTR_POINTWISE_MODE, DNN_TYPE_POINTWISE_MODE, 1, &mode);
    dnn_set(g, what, DNN_ATTR_POINTWISE_MATH_PREC, DNN_TYPE_DATA_TYPE, 1, &math);
    if (p.mode == DNN_POINTWISE_GEN_INDEX)
        dnn_set(g, what, DNN_ATTR_POINTWISE_AXIS, DNN_TYPE_INT64, 1, &p.axis);
    dnn_finalize(g, what, "an elementwise operation");
    dnn_descriptor op = add_op(g, DNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    dnn_set(g, op, DNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, DNN_TYPE_BACKEND_DESCRIPTOR, 1, &what);
    bind(g, op, DNN_ATTR_OPERATION_POINTWISE_XDESC, p.x);
    if (p.b)
        bind(g, op, DNN_ATTR_OPERATION_POINTWISE_BDESC, p.b);
    if (p.t)
        bind(g, op, DNN_ATTR_OPERATION_POINTWISE_TDESC, p.t);
    bind(g, op, DNN_ATTR_OPERATION_POINTWISE_YDESC, p.y);
    dnn_finalize(g, op, "an elementwise operation");
    return p.y;
}

static int64_t matmul(struct dnn_graph *g, int64_t a, int64_t b, int64_t c)
{
    int32_t math = DNN_DATA_FLOAT;
    dnn_descriptor what = dnn_make(g, DNN_BACKEND_MATMUL_DESCRIPTOR);
    dnn_set(g, what, DNN_ATTR_MATMUL_COMP_TYPE, DNN_TYPE_DATA_TYPE, 1, &math);
    dnn_finalize(g, what, "a matrix product");
    dnn_descriptor op = add_op(g, DNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    dnn_set(g, op, DNN_ATTR_OPERATION_MATMUL_DESC, DNN_TYPE_BACKEND_DESCRIPTOR, 1, &what);
    bind(g, op, DNN_ATTR_OPERATION_MATMUL_ADESC, a);
    bind(g, op, DNN_ATTR_OPERATION_MATMUL_BDESC, b);
    bind(g, op, DNN_ATTR_OPERATION_MATMUL_CDESC, c);
    dnn_finalize(g, op, "a matrix product");
    return c;
}

/* y has extent 1, or fewer heads, where x is reduced. */
static int64_t reduce(struct dnn_graph *g, int32_t how, int64_t x, int64_t y)
{
    int32_t math = DNN_DATA_FLOAT;
    dnn_descriptor what = dnn_make(g, DNN_BACKEND_REDUCTION_DESCRIPTOR);
    dnn_set(g, what, DNN_ATTR_REDUCTION_OPERATOR, DNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &how);
    dnn_set(g, what, DNN_ATTR_REDUCTION_COMP_TYPE, DNN_TYPE_DATA_TYPE, 1, &math);
    dnn_finalize(g, what, "a reduction");
    dnn_descriptor op = add_op(g, DNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    dnn_set(g, op, DNN_ATTR_OPERATION_REDUCTION_DESC, DNN_TYPE_BACKEND_DESCRIPTOR, 1, &what);
    bind(g, op, DNN_ATTR_OPERATION_REDUCTION_XDESC, x);
    bind(g, op, DNN_ATTR_OPERATION_REDUCTION_YDESC, y);
    dnn_finalize(g, op, "a reduction");
    return y;
}

static int64_t reshape(struct dnn_graph *g, int64_t x, int64_t y)
{
    dnn_descriptor op = add_op(g, DNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
    bind(g, op, DNN_ATTR_OPERATION_RESHAPE_XDESC, x);
    bind(g, op, DNN_ATTR_OPERATION_RESHAPE_YDESC, y);
    dnn_finalize(g, op, "a reshape");
    return y;
}

/* x where the query's index is at least the key's, else -inf. */
static int64_t causal(struct dnn_graph *g, int64_t x, const struct layout *scores)
{
    int64_t row = pointwise(
        g, (struct pointwise){DNN_POINTWISE_GEN_INDEX, .x = x, .y = add_virtual(g, DNN_DATA_INT32, scores), .axis = 2});
    int64_t col = pointwise(
        g, (struct pointwise){DNN_POINTWISE_GEN_INDEX, .x = x, .y = add_virtual(g, DNN_DATA_INT32, scores), .axis = 3});
    int64_t seen =
        pointwise(g, (struct pointwise){DNN_POINTWISE_CMP_GE, row, col, .y = add_virtual(g, DNN_DATA_BOOLEAN, scores)});
    return pointwise(g, (struct pointwise){DNN_POINTWISE_BINARY_SELECT, x, DNN_MASKED, seen,
                                           add_virtual(g, DNN_DATA_FLOAT, scores)});
}

/* ---- the graphs */

static int32_t type_of(const struct dnn_shape *x)
{
    return x->dtype == HD_BF16 ? DNN_DATA_BFLOAT16 : DNN_DATA_HALF;
}

/* Operands of attention and of its gradient, which takes V transposed, too. */
static void add_operands(struct dnn_graph *g, const struct dnn_shape *x)
{
    struct layout q = heads_of(x, x->heads, 0), k = heads_of(x, x->kv_heads, 1), v = heads_of(x, x->kv_heads, x->back),
                  stats = dense(x, x->s, 1, 0);
    add_tensor(g, DNN_Q, type_of(x), &q, IN_MEMORY);
    add_tensor(g, DNN_K, type_of(x), &k, IN_MEMORY);
    add_tensor(g, DNN_V, type_of(x), &v, IN_MEMORY);
    add_tensor(g, DNN_O, type_of(x), &q, IN_MEMORY);
    add_tensor(g, DNN_STATS, DNN_DATA_FLOAT, &stats, IN_MEMORY);
    add_tensor(g, DNN_SCALE, DNN_DATA_FLOAT, &scalar, SCALAR);
    add_tensor(g, DNN_MASKED, DNN_DATA_FLOAT, &scalar, SCALAR);
}

static int64_t scores_of(struct dnn_graph *g, const struct layout *scores)
{
    int64_t s = matmul(g, DNN_Q, DNN_K, add_virtual(g, DNN_DATA_FLOAT, scores));
    return pointwise(g,
                     (struct pointwise){DNN_POINTWISE_MUL, s, DNN_SCALE, .y = add_virtual(g, DNN_DATA_FLOAT, scores)});
}

static void forward(struct dnn_graph *g, const struct dnn_shape *x)
{
    struct layout scores = dense(x, x->s, x->s, 0), row = dense(x, x->s, 1, 0);
    int32_t f = DNN_DATA_FLOAT;
    int64_t s = causal(g, scores_of(g, &scores), &scores);
    int64_t most = reduce(g, DNN_REDUCE_TENSOR_MAX, s, add_virtual(g, f, &row));
    int64_t less = pointwise(g, (struct pointwise){DNN_POINTWISE_SUB, s, most, .y = add_virtual(g, f, &scores)});
    int64_t e = pointwise(g, (struct pointwise){DNN_POINTWISE_EXP, less, .y = add_virtual(g, f, &scores)});
    int64_t sum = reduce(g, DNN_REDUCE_TENSOR_ADD, e, add_virtual(g, f, &row));
    int64_t log = pointwise(g, (struct pointwise){DNN_POINTWISE_LOG, sum, .y = add_virtual(g, f, &row)});
    pointwise(g, (struct pointwise){DNN_POINTWISE_ADD, most, log, .y = DNN_STATS});
    int64_t p = pointwise(g, (struct pointwise){DNN_POINTWISE_DIV, e, sum, .y = add_virtual(g, type_of(x), &scores)});
    matmul(g, p, DNN_V, DNN_O);
}

/* left^T right for every query head, added up over the heads of a group. */
static void summed(struct dnn_graph *g, const struct dnn_shape *x, int64_t left, int64_t right, int64_t to)
{
    struct layout turned = dense(x, x->s, x->s, 1), each = dense(x, x->s, x->d, 0);
    int64_t l = reshape(g, left, add_virtual(g, type_of(x), &turned));
    if (x->heads == x->kv_heads)
        matmul(g, l, right, to);
    else
        reduce(g, DNN_REDUCE_TENSOR_ADD, matmul(g, l, right, add_virtual(g, type_of(x), &each)), to);
}

static void add_gradients(struct dnn_graph *g, const struct dnn_shape *x)
{
    struct layout q = heads_of(x, x->heads, 0), k = heads_of(x, x->kv_heads, 0), row = dense(x, x->s, 1, 0),
                  each = dense(x, x->s, x->d, 0);
    add_tensor(g, DNN_DO, type_of(x), &q, IN_MEMORY);
    add_tensor(g, DNN_DQ, type_of(x), &q, IN_MEMORY);
    add_tensor(g, DNN_DK, type_of(x), &k, IN_MEMORY);
    add_tensor(g, DNN_DV, type_of(x), &k, IN_MEMORY);
    add_tensor(g, DNN_ONE, DNN_DATA_FLOAT, &scalar, SCALAR);
    add_tensor(g, DNN_SUMS, DNN_DATA_FLOAT, &row, IN_MEMORY);
    add_tensor(g, DNN_DQ_SUMS, DNN_DATA_FLOAT, &each, IN_MEMORY);
}

static void sum_rows(struct dnn_graph *g, const struct dnn_shape *x)
{
    struct layout row = dense(x, x->s, 1, 0), product = heads_of(x, x->heads, 0);
    int64_t p = pointwise(
        g, (struct pointwise){DNN_POINTWISE_MUL, DNN_DO, DNN_O, .y = add_virtual(g, DNN_DATA_FLOAT, &product)});
    int64_t sum = reduce(g, DNN_REDUCE_TENSOR_ADD, p, add_virtual(g, DNN_DATA_FLOAT, &row));
    pointwise(g, (struct pointwise){DNN_POINTWISE_MUL, sum, DNN_ONE, .y = DNN_SUMS});
}

static void backward(struct dnn_graph *g, const struct dnn_shape *x)
{
    struct layout scores = dense(x, x->s, x->s, 0), keys = heads_of(x, x->kv_heads, 0);
    int32_t f = DNN_DATA_FLOAT;
    add_gradients(g, x);
    sum_rows(g, x);
    int64_t less = pointwise(
        g, (struct pointwise){DNN_POINTWISE_SUB, scores_of(g, &scores), DNN_STATS, .y = add_virtual(g, f, &scores)});
    int64_t p =
        pointwise(g, (struct pointwise){DNN_POINTWISE_EXP, causal(g, less, &scores), .y = add_virtual(g, f, &scores)});
    summed(g, x, p, DNN_DO, DNN_DV);
    int64_t dp = matmul(g, DNN_DO, DNN_V, add_virtual(g, f, &scores));
    dp = pointwise(g, (struct pointwise){DNN_POINTWISE_SUB, dp, DNN_SUMS, .y = add_virtual(g, f, &scores)});
    int64_t ds = pointwise(g, (struct pointwise){DNN_POINTWISE_MUL, dp, p, .y = add_virtual(g, f, &scores)});
    ds = pointwise(g, (struct pointwise){DNN_POINTWISE_MUL, ds, DNN_SCALE, .y = add_virtual(g, f, &scores)});
    summed(g, x, ds, DNN_Q, DNN_DK);
    int64_t k = reshape(g, DNN_K, add_virtual(g, f, &keys));
    matmul(g, ds, k, DNN_DQ_SUMS);
    pointwise(g, (struct pointwise){DNN_POINTWISE_IDENTITY, DNN_DQ_SUMS, .y = DNN_DQ});
}

int32_t dnn_graph_make(struct dnn_graph *g, const struct dnn_api *api, void *handle, const struct dnn_shape *shape,
                       struct hd_error *err)
{
    memset(g, 0, sizeof *g);
    g->api = api;
    g->err = err;
    g->next = DNN_IDS;
    add_operands(g, shape);
    if (shape->back)
        backward(g, shape);
    else
        forward(g, shape);
    g->graph = dnn_make(g, DNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    dnn_set(g, g->graph, DNN_ATTR_OPERATIONGRAPH_OPS, DNN_TYPE_BACKEND_DESCRIPTOR, g->n_ops, g->op);
    if (handle)
        dnn_set(g, g->graph, DNN_ATTR_OPERATIONGRAPH_HANDLE, DNN_TYPE_HANDLE, 1, &handle);
    dnn_finalize(g, g->graph, "the graph of attention");
    return g->rc;
}

/* ---- a plan */

enum { PROPOSALS = 8 };

static int64_t proposals(struct dnn_graph *g, dnn_descriptor *found)
{
    int32_t mode = DNN_HEUR_MODE_A;
    int64_t n = 0;
    dnn_descriptor asked = dnn_make(g, DNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    dnn_set(g, asked, DNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, DNN_TYPE_BACKEND_DESCRIPTOR, 1, &g->graph);
    dnn_set(g, asked, DNN_ATTR_ENGINEHEUR_MODE, DNN_TYPE_HEUR_MODE, 1, &mode);
    dnn_finalize(g, asked, "asking for kernels");
    for (int i = 0; i < PROPOSALS; i++)
        found[i] = dnn_make(g, DNN_BACKEND_ENGINECFG_DESCRIPTOR);
    if (!g->rc)
        g->rc = dnn_fail(g->api,
                         g->api->BackendGetAttribute(asked, DNN_ATTR_ENGINEHEUR_RESULTS, DNN_TYPE_BACKEND_DESCRIPTOR,
                                                     PROPOSALS, &n, found),
                         "asking for kernels", g->err);
    return n;
}

/* A proposal that cannot be had is no fault: the next one is tried. */
static void plan_of(struct dnn_graph *g, void *handle, dnn_descriptor proposal, dnn_descriptor *plan)
{
    dnn_descriptor x = dnn_make(g, DNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    dnn_set(g, x, DNN_ATTR_EXECUTION_PLAN_HANDLE, DNN_TYPE_HANDLE, 1, &handle);
    dnn_set(g, x, DNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, DNN_TYPE_BACKEND_DESCRIPTOR, 1, &proposal);
    dnn_finalize(g, x, "preparing a kernel");
    if (!g->rc)
        *plan = x;
}

int32_t dnn_plan(struct dnn_graph *g, void *handle, dnn_descriptor *plan, int64_t *workspace)
{
    dnn_descriptor found[PROPOSALS];
    int64_t one = 1, n = proposals(g, found);
    if (!g->rc && n < 1)
        g->rc = hd_fail(g->err, HD_E_UNSUPPORTED, "cuDNN has no kernel for it");
    *plan = NULL;
    for (int64_t i = 0; i < n && i < PROPOSALS && !*plan; i++) {
        if (i > 0)
            g->rc = HD_OK;
        plan_of(g, handle, found[i], plan);
    }
    if (!g->rc)
        g->rc = dnn_fail(g->api,
                         g->api->BackendGetAttribute(*plan, DNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, DNN_TYPE_INT64, 1,
                                                     &one, workspace),
                         "asking for the size of its workspace", g->err);
    return g->rc;
}
