/* cuBLASLt's products as loops, and its rules as checks: what it would refuse is refused, what it would read wrongly
 * ends the process. Sums are in double. */
#include "cublasLt.h"
#include "cuda_runtime.h"
#include <initializer_list>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <vector>

struct emulate_blas {
    int open;
};
struct emulate_desc {
    cublasComputeType_t compute;
    cudaDataType_t scale;
    cublasOperation_t a, b;
    uint32_t epilogue;
    void *bias, *aux;
    int64_t aux_ld;
    const float *scales[2]; /* NULL: 1 */
};
struct emulate_layout {
    cudaDataType_t type;
    int64_t rows, cols, ld, stride;
    int32_t batch;
};
struct emulate_preference {
    uint64_t workspace;
    uint32_t align[4], reductions;
};

namespace
{

/* Algorithms that were given out say so, and what they count on. PARTS: terms in two parts, whose sums are rounded
 * to the output's type before they are added, which is what they may be unless the preference forbids it. */
enum : uint64_t { MAGIC = 0x6865646c, PARTS = (uint64_t)1 << 32 };
enum { IN_OUTPUT_TYPE = CUBLASLT_REDUCTION_SCHEME_INPLACE | CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE };

[[noreturn]] void broken(const char *what)
{
    fprintf(stderr, "emulated cuBLASLt: %s\n", what);
    abort();
}

bool is_fp8(cudaDataType_t type)
{
    return type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2;
}

double load(const void *p, cudaDataType_t type, int64_t i)
{
    if (type == CUDA_R_64F)
        return static_cast<const double *>(p)[i];
    if (type == CUDA_R_32F)
        return static_cast<const float *>(p)[i];
    if (is_fp8(type))
        return emulate_from_fp8(static_cast<const uint8_t *>(p)[i], type == CUDA_R_8F_E4M3 ? 3 : 2);
    uint16_t bits = static_cast<const uint16_t *>(p)[i];
    return type == CUDA_R_16F ? emulate_from_half(bits) : __uint_as_float((unsigned)bits << 16);
}

void store(void *p, cudaDataType_t type, int64_t i, double v)
{
    if (type == CUDA_R_64F)
        static_cast<double *>(p)[i] = v;
    else if (type == CUDA_R_32F)
        static_cast<float *>(p)[i] = (float)v;
    else
        static_cast<uint16_t *>(p)[i] = type == CUDA_R_16F ? emulate_to_half((float)v) : emulate_to_bfloat((float)v);
}

/* op(x) as rows of the sums' terms: [outer][k]. */
std::vector<double> gather(const void *p, const emulate_layout &x, int64_t batch, bool terms_are_rows)
{
    int64_t outer = terms_are_rows ? x.cols : x.rows, k = terms_are_rows ? x.rows : x.cols;
    std::vector<double> all((size_t)(outer * k));
    for (int64_t i = 0; i < outer; i++)
        for (int64_t j = 0; j < k; j++)
            all[(size_t)(i * k + j)] =
                load(p, x.type, batch * x.stride + (terms_are_rows ? j + i * x.ld : i + j * x.ld));
    return all;
}

double dot(const double *a, const double *b, int64_t k)
{
    double sum[4] = {};
    for (int64_t i = 0; i < k; i++)
        sum[i % 4] += a[i] * b[i];
    return sum[0] + sum[1] + sum[2] + sum[3];
}

struct job {
    emulate_desc desc;
    emulate_layout a, b, d;
    const void *pa, *pb;
    void *pd;
    double alpha, beta;
    bool parts;
};

double round_to(cudaDataType_t type, double v)
{
    double room;
    store(&room, type, 0, v);
    return load(&room, type, 0);
}

double sum_of_terms(const job &x, const double *a, const double *b, int64_t k)
{
    int64_t half = x.parts ? k / 2 : k;
    double first = dot(a, b, half);
    return x.parts ? round_to(x.d.type, first) + round_to(x.d.type, dot(a + half, b + half, k - half)) : first;
}

/* ---- epilogues */

bool is(const emulate_desc &desc, std::initializer_list<uint32_t> some)
{
    for (uint32_t epilogue : some)
        if (desc.epilogue == epilogue)
            return true;
    return false;
}

bool has_bias(const emulate_desc &desc)
{
    return is(desc, {CUBLASLT_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_GELU_BIAS, CUBLASLT_EPILOGUE_GELU_AUX_BIAS});
}

bool has_gradient(const emulate_desc &desc)
{
    return is(desc, {CUBLASLT_EPILOGUE_BGRADA, CUBLASLT_EPILOGUE_BGRADB});
}

bool has_aux(const emulate_desc &desc)
{
    return is(desc, {CUBLASLT_EPILOGUE_GELU_AUX_BIAS, CUBLASLT_EPILOGUE_DGELU});
}

/* The tanh form: arXiv 1606.08415, section 2. */
double gelu_tanh(double x)
{
    return tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x));
}

double gelu(double x)
{
    return 0.5 * x * (1 + gelu_tanh(x));
}

double gelu_slope(double x)
{
    double t = gelu_tanh(x);
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
}

double behind(const job &x, int64_t i, int64_t j, double v)
{
    int64_t at = i + j * x.desc.aux_ld;
    if (has_bias(x.desc))
        v += load(x.desc.bias, x.d.type, i);
    if (x.desc.epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS)
        store(x.desc.aux, x.d.type, at, v);
    if (x.desc.epilogue == CUBLASLT_EPILOGUE_DGELU)
        v *= gelu_slope(load(x.desc.aux, x.d.type, at));
    return is(x.desc, {CUBLASLT_EPILOGUE_GELU_BIAS, CUBLASLT_EPILOGUE_GELU_AUX_BIAS}) ? gelu(v) : v;
}

/* rows of `from` [outer][k], summed. */
void sum_terms(const job &x, const std::vector<double> &from, int64_t k)
{
    for (int64_t i = 0; i < (int64_t)from.size() / k; i++) {
        double sum = 0;
        for (int64_t j = 0; j < k; j++)
            sum += from[(size_t)(i * k + j)];
        store(x.desc.bias, x.d.type, i, sum);
    }
}

double scale_of(const float *scale)
{
    return scale ? *scale : 1;
}

void multiply(const job &x)
{
    double alpha = x.alpha * scale_of(x.desc.scales[0]) * scale_of(x.desc.scales[1]);
    for (int64_t batch = 0; batch < x.d.batch; batch++) {
        std::vector<double> a = gather(x.pa, x.a, batch, x.desc.a == CUBLAS_OP_T);
        std::vector<double> b = gather(x.pb, x.b, batch, x.desc.b == CUBLAS_OP_N);
        int64_t k = x.desc.a == CUBLAS_OP_T ? x.a.rows : x.a.cols;
        if (has_gradient(x.desc))
            sum_terms(x, x.desc.epilogue == CUBLASLT_EPILOGUE_BGRADA ? a : b, k);
        for (int64_t j = 0; j < x.d.cols; j++)
            for (int64_t i = 0; i < x.d.rows; i++) {
                int64_t at = batch * x.d.stride + i + j * x.d.ld;
                double v = alpha * sum_of_terms(x, &a[(size_t)(i * k)], &b[(size_t)(j * k)], k);
                if (x.beta != 0)
                    v += x.beta * load(x.pd, x.d.type, at);
                store(x.pd, x.d.type, at, behind(x, i, j, v));
            }
    }
}

/* cuBLAS 13.0, cublasLtMatmul: what holds for every GPU with fp8. No epilogue: which ones there are depends on the
 * GPU. */
bool fp8_fits(const emulate_desc &desc, const emulate_layout &a, const emulate_layout &b, const emulate_layout &d)
{
    for (const emulate_layout *x : {&a, &b, &d})
        if (x->rows % 16 || x->cols % 16 || x->ld % 16 || x->stride % 16)
            return false;
    return is_fp8(a.type) && is_fp8(b.type) && (a.type == CUDA_R_8F_E4M3 || b.type == CUDA_R_8F_E4M3) &&
           desc.a == CUBLAS_OP_T && desc.b == CUBLAS_OP_N && desc.compute == CUBLAS_COMPUTE_32F &&
           desc.scale == CUDA_R_32F && desc.epilogue == CUBLASLT_EPILOGUE_DEFAULT &&
           (d.type == CUDA_R_32F || d.type == CUDA_R_16F || d.type == CUDA_R_16BF);
}

bool types_fit(const emulate_desc &desc, const emulate_layout &a, const emulate_layout &b, const emulate_layout &d)
{
    if (is_fp8(a.type) || is_fp8(b.type))
        return fp8_fits(desc, a, b, d);
    if (a.type != b.type || desc.scales[0] || desc.scales[1])
        return false;
    if (a.type == CUDA_R_64F)
        return d.type == CUDA_R_64F && desc.compute == CUBLAS_COMPUTE_64F && desc.scale == CUDA_R_64F;
    return desc.compute != CUBLAS_COMPUTE_64F && desc.scale == CUDA_R_32F && (d.type == a.type || d.type == CUDA_R_32F);
}

bool shapes_fit(const emulate_desc &desc, const emulate_layout &a, const emulate_layout &b, const emulate_layout &d)
{
    int64_t m = desc.a == CUBLAS_OP_N ? a.rows : a.cols, k = desc.a == CUBLAS_OP_N ? a.cols : a.rows;
    int64_t kb = desc.b == CUBLAS_OP_N ? b.rows : b.cols, n = desc.b == CUBLAS_OP_N ? b.cols : b.rows;
    return m == d.rows && n == d.cols && k == kb && a.batch == b.batch && a.batch == d.batch &&
           (d.batch == 1 || d.stride >= 1) && a.ld >= a.rows && b.ld >= b.rows && d.ld >= d.rows;
}

/* What no table of cuBLASLt's promises is refused. */
bool epilogue_fits(const emulate_desc &desc, const emulate_layout &d)
{
    if (desc.epilogue == CUBLASLT_EPILOGUE_DEFAULT)
        return true;
    if (!has_bias(desc) && !has_gradient(desc) && !has_aux(desc))
        return false;
    return d.type != CUDA_R_64F && d.batch == 1 &&
           (!has_aux(desc) || (desc.aux && desc.aux_ld >= d.rows && desc.aux_ld % 8 == 0)) &&
           (!(has_bias(desc) || has_gradient(desc)) || desc.bias);
}

uint64_t alignment_of(const void *p)
{
    uint64_t a = 256;
    while ((uintptr_t)p % a)
        a /= 2;
    return a;
}

void check_aligned(const void *p, uint64_t align)
{
    if ((uintptr_t)p % align)
        broken("an operand is less aligned than it was said to be");
}

template <class T> cublasStatus_t set(T &to, const void *value, size_t bytes)
{
    if (bytes != sizeof to)
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(&to, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

template <class T> cublasStatus_t destroy(T *p)
{
    delete p;
    return CUBLAS_STATUS_SUCCESS;
}

} // namespace

extern "C" {

const char *cublasLtGetStatusString(cublasStatus_t rc)
{
    return rc == CUBLAS_STATUS_SUCCESS            ? "CUBLAS_STATUS_SUCCESS"
           : rc == CUBLAS_STATUS_NOT_SUPPORTED    ? "CUBLAS_STATUS_NOT_SUPPORTED"
           : rc == CUBLAS_STATUS_EXECUTION_FAILED ? "CUBLAS_STATUS_EXECUTION_FAILED"
                                                  : "CUBLAS_STATUS_INVALID_VALUE";
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle)
{
    *handle = new emulate_blas{1};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    return destroy(handle);
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *desc, cublasComputeType_t compute, cudaDataType_t scale)
{
    *desc = new emulate_desc{compute, scale,   CUBLAS_OP_N, CUBLAS_OP_N,       CUBLASLT_EPILOGUE_DEFAULT,
                             nullptr, nullptr, 0,           {nullptr, nullptr}};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t what,
                                              const void *value, size_t bytes)
{
    switch (what) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
        return set(desc->a, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
        return set(desc->b, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
        return set(desc->epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
        return set(desc->bias, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
        return set(desc->aux, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
        return set(desc->aux_ld, value, bytes);
    case CUBLASLT_MATMUL_DESC_A_SCALE_POINTER:
        return set(desc->scales[0], value, bytes);
    case CUBLASLT_MATMUL_DESC_B_SCALE_POINTER:
        return set(desc->scales[1], value, bytes);
    }
    return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc)
{
    return destroy(desc);
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout, cudaDataType_t type, uint64_t rows,
                                          uint64_t cols, int64_t ld)
{
    *layout = new emulate_layout{type, (int64_t)rows, (int64_t)cols, ld, 0, 1};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t what,
                                                const void *value, size_t bytes)
{
    return what == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT ? set(layout->batch, value, bytes)
                                                      : set(layout->stride, value, bytes);
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout)
{
    return destroy(layout);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference)
{
    *preference = new emulate_preference{0, {256, 256, 256, 256}, CUBLASLT_REDUCTION_SCHEME_MASK};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t what, const void *value,
                                                    size_t bytes)
{
    if (what == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES)
        return set(preference->workspace, value, bytes);
    if (what == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK)
        return set(preference->reductions, value, bytes);
    return set(preference->align[what - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES], value, bytes);
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference)
{
    return destroy(preference);
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,
                                              cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                                              cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t preference, int most,
                                              cublasLtMatmulHeuristicResult_t found[], int *n)
{
    *n = 0;
    if (!types_fit(*desc, *a, *b, *d) || c->type != d->type || !epilogue_fits(*desc, *d))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (!shapes_fit(*desc, *a, *b, *d))
        return CUBLAS_STATUS_INVALID_VALUE;
    found[0] = {}; /* one that is none: its state says so */
    found[0].state = CUBLAS_STATUS_NOT_SUPPORTED;
    for (*n = 1; *n < most && *n < 4; ++*n) {
        cublasLtMatmulHeuristicResult_t *x = &found[*n];
        *x = {};
        x->workspaceSize = (size_t)(*n - 1) * 4096;
        if (x->workspaceSize > preference->workspace)
            break;
        x->algo.data[0] = MAGIC;
        if (preference->reductions & IN_OUTPUT_TYPE)
            x->algo.data[0] |= PARTS;
        x->algo.data[1] = x->workspaceSize;
        for (int i = 0; i < 4; i++)
            x->algo.data[2 + i] = preference->align[i];
        x->algo.data[6] = alignment_of(desc->bias);
        x->algo.data[7] = alignment_of(desc->aux);
        x->state = CUBLAS_STATUS_SUCCESS;
    }
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t desc, const void *alpha, const void *a,
                              cublasLtMatrixLayout_t a_layout, const void *b, cublasLtMatrixLayout_t b_layout,
                              const void *beta, const void *c, cublasLtMatrixLayout_t, void *d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *algo, void *workspace,
                              size_t workspace_bytes, cudaStream_t stream)
{
    job x = {*desc,
             *a_layout,
             *b_layout,
             *d_layout,
             a,
             b,
             d,
             load(alpha, desc->scale, 0),
             load(beta, desc->scale, 0),
             (algo->data[0] & PARTS) != 0};
    if ((algo->data[0] & ~PARTS) != MAGIC)
        broken("the algorithm is none that was given out");
    if (algo->data[1] > workspace_bytes || (algo->data[1] && !workspace))
        broken("the workspace is smaller than the algorithm's");
    if (c != d || !shapes_fit(x.desc, x.a, x.b, x.d))
        broken("shapes do not fit");
    check_aligned(a, algo->data[2]);
    check_aligned(b, algo->data[3]);
    check_aligned(d, algo->data[5]);
    if (is_fp8(a_layout->type)) {
        for (const void *p : {a, b, const_cast<const void *>(d)})
            check_aligned(p, 16);
        for (const void *p : desc->scales) /* as 13.1 does, which offers an algorithm all the same */
            if ((uintptr_t)p % 16)
                return CUBLAS_STATUS_NOT_SUPPORTED;
    }
    check_aligned(desc->bias, algo->data[6]);
    check_aligned(desc->aux, algo->data[7]);
    if (!epilogue_fits(*desc, *d_layout))
        broken("the epilogue lacks an operand");
    if (algo->data[1]) /* it is used, by all products */
        cudaMemsetAsync(workspace, 0xff, algo->data[1], stream);
    return emulate_enqueue(stream, [=] { multiply(x); }) ? CUBLAS_STATUS_EXECUTION_FAILED : CUBLAS_STATUS_SUCCESS;
}
}
