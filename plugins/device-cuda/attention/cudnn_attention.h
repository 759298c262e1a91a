/* cuDNN's fused attention, where a libcudnn is found: opened at run time, declared here, so that nothing of it is
 * needed to build. Names and values are those of cudnn_graph.h; the tests hold them against it where it is found.
 *
 * A graph of small operations says what attention is (cudnn_graph.c); cuDNN finds a fused kernel for it, or says that
 * it has none. Its kernel is verified and timed before it is used, once a shape (attention_autotune.c). */
#ifndef HD_DEVICE_CUDA_ATTENTION_CUDNN_ATTENTION_H
#define HD_DEVICE_CUDA_ATTENTION_CUDNN_ATTENTION_H

#include "attention/attention_autotune.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef void *dnn_descriptor;

/* X(result, name, arguments) */
/* clang-format off */
#define CU_DNN_FUNCTIONS(X) \
    X(size_t, GetVersion, (void)) \
    X(const char *, GetErrorString, (int status)) \
    X(void, GetLastErrorString, (char *text, size_t bytes)) \
    X(int, Create, (void **handle)) \
    X(int, Destroy, (void *handle)) \
    X(int, SetStream, (void *handle, cudaStream_t stream)) \
    X(int, BackendCreateDescriptor, (int type, dnn_descriptor *descriptor)) \
    X(int, BackendDestroyDescriptor, (dnn_descriptor descriptor)) \
    X(int, BackendSetAttribute, (dnn_descriptor descriptor, int name, int type, int64_t count, const void *elements)) \
    X(int, BackendGetAttribute, \
      (dnn_descriptor descriptor, int name, int type, int64_t room, int64_t *count, void *elements)) \
    X(int, BackendFinalize, (dnn_descriptor descriptor)) \
    X(int, BackendExecute, (void *handle, dnn_descriptor plan, dnn_descriptor pack))
/* clang-format on */

struct dnn_api {
    size_t version; /* 91900: 9.19.0 */
#define ROW(result, name, arguments) result(*name) arguments;
    CU_DNN_FUNCTIONS(ROW)
#undef ROW
};

/* From 9.10 on, graphs mask with -inf, and cuDNN clears what it sums gradients in. */
enum { CU_DNN_LEAST = 91000, CU_DNN_BELOW = 100000 };

/* ---- values of cudnn_graph.h, without CUDNN_: X(name, value) */

/* clang-format off */
#define CU_DNN_VALUES(X) \
    X(STATUS_SUCCESS, 0) X(STATUS_BAD_PARAM, 2000) X(STATUS_NOT_SUPPORTED, 3000) X(STATUS_INTERNAL_ERROR, 4000) \
    X(STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED, 4003) X(STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED, 4004) \
    X(TYPE_HANDLE, 0) X(TYPE_DATA_TYPE, 1) X(TYPE_BOOLEAN, 2) X(TYPE_INT64, 3) X(TYPE_VOID_PTR, 6) \
    X(TYPE_HEUR_MODE, 8) X(TYPE_POINTWISE_MODE, 14) X(TYPE_BACKEND_DESCRIPTOR, 15) \
    X(TYPE_REDUCTION_OPERATOR_TYPE, 18) X(BACKEND_POINTWISE_DESCRIPTOR, 0) X(BACKEND_ENGINECFG_DESCRIPTOR, 3) \
    X(BACKEND_ENGINEHEUR_DESCRIPTOR, 4) X(BACKEND_EXECUTION_PLAN_DESCRIPTOR, 5) \
    X(BACKEND_OPERATION_POINTWISE_DESCRIPTOR, 13) X(BACKEND_OPERATIONGRAPH_DESCRIPTOR, 15) \
    X(BACKEND_VARIANT_PACK_DESCRIPTOR, 16) X(BACKEND_TENSOR_DESCRIPTOR, 17) X(BACKEND_MATMUL_DESCRIPTOR, 18) \
    X(BACKEND_OPERATION_MATMUL_DESCRIPTOR, 19) X(BACKEND_REDUCTION_DESCRIPTOR, 21) \
    X(BACKEND_OPERATION_REDUCTION_DESCRIPTOR, 22) X(BACKEND_OPERATION_RESHAPE_DESCRIPTOR, 31) \
    X(ATTR_POINTWISE_MODE, 0) X(ATTR_POINTWISE_MATH_PREC, 1) X(ATTR_POINTWISE_AXIS, 9) X(ATTR_ENGINEHEUR_MODE, 200) \
    X(ATTR_ENGINEHEUR_OPERATION_GRAPH, 201) X(ATTR_ENGINEHEUR_RESULTS, 202) X(ATTR_EXECUTION_PLAN_HANDLE, 400) \
    X(ATTR_EXECUTION_PLAN_ENGINE_CONFIG, 401) X(ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, 402) \
    X(ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, 750) X(ATTR_OPERATION_POINTWISE_XDESC, 751) \
    X(ATTR_OPERATION_POINTWISE_BDESC, 752) X(ATTR_OPERATION_POINTWISE_YDESC, 753) \
    X(ATTR_OPERATION_POINTWISE_TDESC, 758) X(ATTR_OPERATIONGRAPH_HANDLE, 800) X(ATTR_OPERATIONGRAPH_OPS, 801) \
    X(ATTR_TENSOR_BYTE_ALIGNMENT, 900) X(ATTR_TENSOR_DATA_TYPE, 901) X(ATTR_TENSOR_DIMENSIONS, 902) \
    X(ATTR_TENSOR_STRIDES, 903) X(ATTR_TENSOR_UNIQUE_ID, 906) X(ATTR_TENSOR_IS_VIRTUAL, 907) \
    X(ATTR_TENSOR_IS_BY_VALUE, 908) X(ATTR_VARIANT_PACK_UNIQUE_IDS, 1000) X(ATTR_VARIANT_PACK_DATA_POINTERS, 1001) \
    X(ATTR_VARIANT_PACK_WORKSPACE, 1003) X(ATTR_MATMUL_COMP_TYPE, 1500) X(ATTR_OPERATION_MATMUL_ADESC, 1520) \
    X(ATTR_OPERATION_MATMUL_BDESC, 1521) X(ATTR_OPERATION_MATMUL_CDESC, 1522) X(ATTR_OPERATION_MATMUL_DESC, 1523) \
    X(ATTR_REDUCTION_OPERATOR, 1600) X(ATTR_REDUCTION_COMP_TYPE, 1601) X(ATTR_OPERATION_REDUCTION_XDESC, 1610) \
    X(ATTR_OPERATION_REDUCTION_YDESC, 1611) X(ATTR_OPERATION_REDUCTION_DESC, 1612) \
    X(ATTR_OPERATION_RESHAPE_XDESC, 2200) X(ATTR_OPERATION_RESHAPE_YDESC, 2201) X(HEUR_MODE_A, 3) X(DATA_FLOAT, 0) \
    X(DATA_HALF, 2) X(DATA_INT32, 4) X(DATA_BFLOAT16, 9) X(DATA_BOOLEAN, 11) X(POINTWISE_ADD, 0) X(POINTWISE_MUL, 1) \
    X(POINTWISE_DIV, 6) X(POINTWISE_SUB, 9) X(POINTWISE_EXP, 13) X(POINTWISE_LOG, 15) X(POINTWISE_IDENTITY, 21) \
    X(POINTWISE_CMP_GE, 303) X(POINTWISE_GEN_INDEX, 501) X(POINTWISE_BINARY_SELECT, 601) X(REDUCE_TENSOR_ADD, 0) \
    X(REDUCE_TENSOR_MAX, 3)
/* clang-format on */

enum {
#define ROW(name, value) DNN_##name = value,
    CU_DNN_VALUES(ROW)
#undef ROW
};

/* ---- cudnn.c */

/* Opens the library at path and finds its functions; HD_E_NOTFOUND or HD_E_UNSUPPORTED, and why. */
int32_t dnn_open(struct dnn_api *api, const char *path, struct hd_error *err);
/* A status of cuDNN as an error: "cuDNN: what: its name: its last words". */
int32_t dnn_fail(const struct dnn_api *api, int status, const char *what, struct hd_error *err);

/* ---- cudnn_graph.c */

/* Causal attention of s queries and as many keys, or its gradient. */
struct dnn_shape {
    int64_t b, s, kv_heads, heads, d;
    uint32_t dtype; /* HD_BF16, HD_F16 */
    int32_t back;
};

/* Operands of a graph, by cuDNN's unique ids. stats is fp32 [b, heads, s]: the logarithm of the sum of
 * exponentials. Scalars lie in host memory. sums and dq_sums: fp32 memory for cuDNN's own use. */
enum {
    DNN_Q = 1,
    DNN_K,
    DNN_V,
    DNN_O,
    DNN_STATS,
    DNN_SCALE,
    DNN_MASKED,
    DNN_DO,
    DNN_DQ,
    DNN_DK,
    DNN_DV,
    DNN_ONE,
    DNN_SUMS,
    DNN_DQ_SUMS,
    DNN_IDS
};

enum { DNN_MOST = 192 };

/* Everything that a graph is made of; lives as long as its plan. */
struct dnn_graph {
    const struct dnn_api *api;
    dnn_descriptor all[DNN_MOST]; /* for dnn_graph_free */
    dnn_descriptor tensor[64];    /* by id */
    dnn_descriptor op[32];
    int64_t n_all, n_ops, next;
    dnn_descriptor graph;
    int32_t rc;
    int32_t reserved;
    struct hd_error *err;
};

/* Fills in g->graph. The handle may be NULL where nothing will run. dnn_graph_free takes what was made, failed or
 * not. */
int32_t dnn_graph_make(struct dnn_graph *g, const struct dnn_api *api, void *handle, const struct dnn_shape *shape,
                       struct hd_error *err);
void dnn_graph_free(struct dnn_graph *g);
/* A new descriptor of the graph's, and an attribute of one. After a failure they do nothing: ask g->rc. */
dnn_descriptor dnn_make(struct dnn_graph *g, int type);
void dnn_set(struct dnn_graph *g, dnn_descriptor x, int name, int type, int64_t count, const void *elements);
void dnn_finalize(struct dnn_graph *g, dnn_descriptor x, const char *what);
/* The plan of the first of cuDNN's proposals that can be had, and the bytes that it works in. */
int32_t dnn_plan(struct dnn_graph *g, void *handle, dnn_descriptor *plan, int64_t *workspace);

/* ---- cudnn_attention.c */

struct cu_dnn; /* the library, its handle, results of autotuning by shape */

/* Can the option be followed? For open: opens the library. */
int32_t cu_dnn_check(struct hd_device *d, struct hd_error *err);
/* Autotunes cuDNN's kernel for such an instruction, once a shape; NULL: cuDNN is not for it. */
const struct cu_autotune_result *cu_dnn_autotune(struct hd_device *d, const struct hd_instr_desc *i,
                                                 const struct cu_heads *h);
/* Prepares k with it. */
int32_t cu_dnn_attention(struct hd_device *d, const struct hd_instr_desc *i, const struct cu_heads *h,
                         struct hd_kernel *k, struct hd_error *err);
void cu_dnn_close(struct hd_device *d);

/* ---- cudnn_rows.cu: enqueue */

/* fp32 [outer, m, n] as [outer, n, m]. */
cudaError_t dnn_turn(float *to, const float *from, int64_t outer, int64_t m, int64_t n, cudaStream_t stream);
#ifdef __cplusplus
}
#endif

#endif
