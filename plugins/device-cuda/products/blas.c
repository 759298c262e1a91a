#include "products/blas.h"
#include "products/fp8.h"
#include <cublasLt.h>
#include <math.h>

/* ALIGNED: what cuBLASLt takes for granted unless told otherwise; telling it less leaves kernels out. Scratch and
 * memory for timing are that, tensors of an arena 64 or more. */
enum { CANDIDATES = 16, ALIGNED = 256 };

struct key {
    struct cu_product product;
    uint32_t align[5]; /* of a, b, d, and besides bias, aux, bytes: ALIGNED at most */
    uint32_t reserved;
};

struct cu_gemm {
    struct cu_gemm *next;
    struct cu_blas *blas;
    struct key key;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, d;
    cublasLtMatmulAlgo_t algo;
    int32_t note; /* cu_gemm_note */
    int32_t reserved;
};

struct cu_blas {
    cublasLtHandle_t handle;
    struct cu_gemm *gemms;
    void *workspace;
    size_t workspace_bytes;
};

/* ---- errors and types */

static int32_t fail(struct hd_error *err, cublasStatus_t rc, const char *what)
{
    if (rc == CUBLAS_STATUS_SUCCESS)
        return HD_OK;
    if (err)
        err->native = rc;
    return hd_fail(err,
                   rc == CUBLAS_STATUS_NOT_SUPPORTED  ? HD_E_UNSUPPORTED
                   : rc == CUBLAS_STATUS_ALLOC_FAILED ? HD_E_NOMEM
                                                      : HD_E_IO,
                   "device cuda: %s: cuBLASLt says %s (%d)", what, cublasLtGetStatusString(rc), (int)rc);
}

static int is_fp8(uint32_t dtype)
{
    return dtype == CU_E4M3 || dtype == CU_E5M2;
}

static cudaDataType_t type_of(uint32_t dtype)
{
    if (is_fp8(dtype))
        return dtype == CU_E4M3 ? CUDA_R_8F_E4M3 : CUDA_R_8F_E5M2;
    return dtype == HD_BF16 ? CUDA_R_16BF : dtype == HD_F16 ? CUDA_R_16F : dtype == HD_F64 ? CUDA_R_64F : CUDA_R_32F;
}

static cublasComputeType_t compute_of(const struct hd_device *d, uint32_t dtype)
{
    if (dtype == HD_F64)
        return CUBLAS_COMPUTE_64F;
    return dtype == HD_F32 && d->settings->tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
}

static uint32_t alignment(const void *p)
{
    uint32_t a = ALIGNED;
    while ((uintptr_t)p % a)
        a /= 2;
    return a;
}

/* ---- descriptors */

static cublasStatus_t make_layout(cublasLtMatrixLayout_t *layout, const struct cu_matrix *x, int64_t batch)
{
    int32_t count = (int32_t)batch;
    cublasStatus_t rc =
        cublasLtMatrixLayoutCreate(layout, type_of(x->dtype), (uint64_t)x->rows, (uint64_t)x->cols, x->ld);
    if (rc == CUBLAS_STATUS_SUCCESS && batch > 1)
        rc = cublasLtMatrixLayoutSetAttribute(*layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count);
    if (rc == CUBLAS_STATUS_SUCCESS && batch > 1)
        rc = cublasLtMatrixLayoutSetAttribute(*layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &x->batch_stride,
                                              sizeof x->batch_stride);
    return rc;
}

static uint32_t epilogue_of(uint32_t epilogue)
{
    static const uint32_t all[] = {
        [CU_EPILOGUE_NONE] = CUBLASLT_EPILOGUE_DEFAULT,
        [CU_EPILOGUE_BIAS] = CUBLASLT_EPILOGUE_BIAS,
        [CU_EPILOGUE_GELU_BIAS] = CUBLASLT_EPILOGUE_GELU_BIAS,
        [CU_EPILOGUE_GELU_AUX_BIAS] = CUBLASLT_EPILOGUE_GELU_AUX_BIAS,
        [CU_EPILOGUE_DGELU] = CUBLASLT_EPILOGUE_DGELU,
        [CU_EPILOGUE_BGRADA] = CUBLASLT_EPILOGUE_BGRADA,
        [CU_EPILOGUE_BGRADB] = CUBLASLT_EPILOGUE_BGRADB,
    };
    return all[epilogue];
}

static cublasStatus_t set_scales(cublasLtMatmulDesc_t desc, const struct cu_beside *x)
{
    cublasStatus_t rc =
        cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &x->scale[0], sizeof x->scale[0]);
    if (rc == CUBLAS_STATUS_SUCCESS)
        rc = cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &x->scale[1],
                                            sizeof x->scale[1]);
    return rc;
}

/* They belong to the description of a product: those of the kernel that is to run. */
static cublasStatus_t set_beside(cublasLtMatmulDesc_t desc, const struct cu_product *p, const struct cu_beside *x)
{
    if (is_fp8(p->a.dtype))
        return set_scales(desc, x);
    if (!p->epilogue)
        return CUBLAS_STATUS_SUCCESS;
    cublasStatus_t rc =
        cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &x->bias, sizeof x->bias);
    if (rc == CUBLAS_STATUS_SUCCESS)
        rc = cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &x->aux, sizeof x->aux);
    return rc;
}

/* aux lies like d. */
static cublasStatus_t describe_epilogue(struct cu_gemm *g, const struct cu_beside *beside)
{
    const struct cu_product *p = &g->key.product;
    uint32_t epilogue = epilogue_of(p->epilogue);
    int64_t ld = p->d.ld;
    cublasStatus_t rc;
    if (!p->epilogue)
        return set_beside(g->desc, p, beside);
    rc = cublasLtMatmulDescSetAttribute(g->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
    if (rc == CUBLAS_STATUS_SUCCESS && beside->aux)
        rc = cublasLtMatmulDescSetAttribute(g->desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &ld, sizeof ld);
    return rc == CUBLAS_STATUS_SUCCESS ? set_beside(g->desc, p, beside) : rc;
}

static cublasStatus_t describe(struct hd_device *device, struct cu_gemm *g, const struct cu_beside *beside)
{
    const struct cu_product *p = &g->key.product;
    cublasOperation_t a = p->a.trans ? CUBLAS_OP_T : CUBLAS_OP_N, b = p->b.trans ? CUBLAS_OP_T : CUBLAS_OP_N;
    cudaDataType_t scale = p->a.dtype == HD_F64 ? CUDA_R_64F : CUDA_R_32F;
    cublasStatus_t rc = cublasLtMatmulDescCreate(&g->desc, compute_of(device, p->a.dtype), scale);
    if (rc == CUBLAS_STATUS_SUCCESS)
        rc = cublasLtMatmulDescSetAttribute(g->desc, CUBLASLT_MATMUL_DESC_TRANSA, &a, sizeof a);
    if (rc == CUBLAS_STATUS_SUCCESS)
        rc = cublasLtMatmulDescSetAttribute(g->desc, CUBLASLT_MATMUL_DESC_TRANSB, &b, sizeof b);
    if (rc == CUBLAS_STATUS_SUCCESS)
        rc = describe_epilogue(g, beside);
    if (rc == CUBLAS_STATUS_SUCCESS)
        rc = make_layout(&g->a, &p->a, p->batch);
    if (rc == CUBLAS_STATUS_SUCCESS)
        rc = make_layout(&g->b, &p->b, p->batch);
    return rc == CUBLAS_STATUS_SUCCESS ? make_layout(&g->d, &p->d, p->batch) : rc;
}

/* Sums are in fp32: where the output has less, parts of a sum must not be kept in its type, nor in the output itself.
 * In one sequence (CUBLASLT_REDUCTION_SCHEME_NONE, no bit) is always allowed. */
static uint32_t reductions_of(const struct cu_product *p)
{
    int is_half = p->d.dtype == HD_BF16 || p->d.dtype == HD_F16;
    return is_half ? CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE : CUBLASLT_REDUCTION_SCHEME_MASK;
}

static cublasStatus_t prefer(cublasLtMatmulPreference_t preference, const struct key *key, uint64_t workspace)
{
    uint32_t reductions = reductions_of(&key->product);
    const struct {
        int64_t what;
        const void *value;
        size_t bytes;
    } all[] = {
        {CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace},
        {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions, sizeof reductions},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &key->align[0], sizeof key->align[0]},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &key->align[1], sizeof key->align[1]},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &key->align[2], sizeof key->align[2]},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &key->align[2], sizeof key->align[2]},
    };
    cublasStatus_t rc = CUBLAS_STATUS_SUCCESS;
    for (size_t i = 0; i < sizeof all / sizeof all[0] && rc == CUBLAS_STATUS_SUCCESS; i++)
        rc = cublasLtMatmulPreferenceSetAttribute(preference, (cublasLtMatmulPreferenceAttributes_t)all[i].what,
                                                  all[i].value, all[i].bytes);
    return rc;
}

/* Results whose state is no success have nothing valid but that. */
static cublasStatus_t ask(struct cu_gemm *g, cublasLtMatmulHeuristicResult_t *found, int *n)
{
    cublasLtMatmulPreference_t preference;
    int all = 0;
    cublasStatus_t rc = cublasLtMatmulPreferenceCreate(&preference);
    if (rc != CUBLAS_STATUS_SUCCESS)
        return rc;
    rc = prefer(preference, &g->key, g->blas->workspace_bytes);
    if (rc == CUBLAS_STATUS_SUCCESS)
        rc = cublasLtMatmulAlgoGetHeuristic(g->blas->handle, g->desc, g->a, g->b, g->d, g->d, preference, CANDIDATES,
                                            found, &all);
    cublasLtMatmulPreferenceDestroy(preference);
    *n = 0;
    for (int i = 0; i < all && rc == CUBLAS_STATUS_SUCCESS; i++)
        if (found[i].state == CUBLAS_STATUS_SUCCESS)
            found[(*n)++] = found[i];
    return rc == CUBLAS_STATUS_SUCCESS && !*n ? CUBLAS_STATUS_NOT_SUPPORTED : rc;
}

/* ---- timing: on memory of its own, since what the operands hold must stay */

enum { OPERANDS = 5 }; /* a, b, d, bias or scales, aux */

struct timing {
    struct cu_gemm *gemm;
    void *memory[OPERANDS];
};

static size_t bytes_of(const struct cu_matrix *x, int64_t batch)
{
    return (size_t)((batch - 1) * x->batch_stride + x->ld * x->cols) * (is_fp8(x->dtype) ? 1 : hd_dtype_size(x->dtype));
}

static void timing_close(struct timing *t)
{
    for (int i = 0; i < OPERANDS; i++)
        cudaFree(t->memory[i]);
}

/* Random numbers: with constants a product draws less power and is faster than with others. In fp8 and fp64, and for
 * scales, a small one. */
static cudaError_t fill(void *to, uint32_t dtype, size_t bytes, uint32_t seed, cudaStream_t stream)
{
    if (is_fp8(dtype) || dtype == HD_F64)
        return cudaMemsetAsync(to, 0x3c, bytes, stream);
    return cu_fill_random(to, dtype, (int64_t)(bytes / hd_dtype_size(dtype)), seed, 1, stream);
}

static cudaError_t timing_open(struct timing *t, struct cu_gemm *g, cudaStream_t stream)
{
    const struct cu_product *p = &g->key.product;
    uint32_t beside = is_fp8(p->a.dtype) ? p->a.dtype : p->d.dtype;
    const uint32_t dtype[OPERANDS] = {p->a.dtype, p->b.dtype, p->d.dtype, beside, beside};
    const size_t bytes[OPERANDS] = {bytes_of(&p->a, p->batch), bytes_of(&p->b, p->batch), bytes_of(&p->d, p->batch),
                                    (size_t)(p->m + p->n) * hd_dtype_size(p->d.dtype), bytes_of(&p->d, p->batch)};
    cudaError_t rc = cudaSuccess;
    *t = (struct timing){.gemm = g};
    for (int i = 0; i < (p->epilogue || is_fp8(p->a.dtype) ? OPERANDS : 3) && rc == cudaSuccess; i++) {
        rc = cudaMalloc(&t->memory[i], bytes[i]);
        if (rc == cudaSuccess)
            rc = fill(t->memory[i], dtype[i], bytes[i], (uint32_t)i + 1, stream);
    }
    return rc;
}

static int32_t run_timing(struct hd_kernel *k, cudaStream_t stream, struct hd_error *err)
{
    const struct timing *t = k->state;
    const struct cu_beside beside = {t->memory[3], t->memory[4], {t->memory[3], t->memory[3]}};
    return cu_gemm_run(t->gemm, t->memory[0], t->memory[1], t->memory[2], &beside, stream, err);
}

/* Which candidate is fastest; the first where that cannot be measured. */
static int fastest(struct hd_device *device, struct cu_gemm *g, const cublasLtMatmulHeuristicResult_t *found, int n)
{
    struct timing t;
    struct hd_kernel k = {.run = run_timing, .device = device, .state = &t};
    int best = 0;
    if (n > 1 && timing_open(&t, g, device->stream[HD_STREAM_COMPUTE]) == cudaSuccess) {
        float least = INFINITY, ms;
        for (int i = 0; i < n; i++) {
            struct hd_error err = HD_ERROR_INIT;
            g->algo = found[i].algo;
            if (!cu_time_kernel(device, &k, &ms, &err) && ms < least) {
                least = ms;
                best = i;
            }
        }
    }
    if (n > 1)
        timing_close(&t);
    (void)cudaGetLastError(); /* too little memory for timing is no failure */
    return best;
}

/* ---- opening and preparing */

static int32_t open_blas(struct hd_device *device, struct hd_error *err)
{
    void *workspace = NULL;
    if (device->blas)
        return HD_OK;
    struct cu_blas *b = device->host->alloc(sizeof *b);
    if (!b)
        return hd_fail(err, HD_E_NOMEM, "no memory for cuBLASLt");
    int32_t rc = fail(err, cublasLtCreate(&b->handle), "opening cuBLASLt");
    b->workspace_bytes = (size_t)device->settings->workspace;
    if (rc == HD_OK && b->workspace_bytes)
        rc = cu_zeros(device, b->workspace_bytes, &workspace, err);
    b->workspace = workspace;
    device->blas = b;
    if (rc)
        cu_blas_close(device);
    return rc;
}

static void free_gemm(struct hd_device *device, struct cu_gemm *g)
{
    if (g->desc)
        cublasLtMatmulDescDestroy(g->desc);
    if (g->a)
        cublasLtMatrixLayoutDestroy(g->a);
    if (g->b)
        cublasLtMatrixLayoutDestroy(g->b);
    if (g->d)
        cublasLtMatrixLayoutDestroy(g->d);
    device->host->free(g);
}

static int32_t choose(struct hd_device *device, struct cu_gemm *g, const struct cu_beside *beside, struct hd_error *err)
{
    cublasLtMatmulHeuristicResult_t found[CANDIDATES];
    int n = 0;
    int32_t rc = fail(err, describe(device, g, beside), "describing a matrix product");
    if (rc == HD_OK)
        rc = fail(err, ask(g, found, &n), "choosing an algorithm for a matrix product");
    if (rc == HD_OK)
        g->algo = found[device->settings->tune ? fastest(device, g, found, n) : 0].algo;
    return rc;
}

int32_t cu_gemm_prepare(struct hd_device *device, const struct cu_product *product, const void *a, const void *b,
                        const void *d, const struct cu_beside *beside, const struct cu_gemm **gemm,
                        struct hd_error *err)
{
    struct key key = {.product = *product, .align = {alignment(a), alignment(b), alignment(d)}};
    if (product->epilogue) {
        key.align[3] = alignment(beside->bias);
        key.align[4] = alignment(beside->aux);
    }
    int32_t rc = open_blas(device, err);
    if (rc)
        return rc;
    for (struct cu_gemm *g = device->blas->gemms; g; g = g->next)
        if (!memcmp(&g->key, &key, sizeof key)) {
            *gemm = g;
            return HD_OK;
        }
    struct cu_gemm *g = device->host->alloc(sizeof *g);
    if (!g)
        return hd_fail(err, HD_E_NOMEM, "no memory for a matrix product");
    g->blas = device->blas;
    g->key = key;
    rc = choose(device, g, beside, err);
    if (rc) {
        free_gemm(device, g);
        return rc;
    }
    g->next = device->blas->gemms;
    device->blas->gemms = g;
    *gemm = g;
    return HD_OK;
}

int32_t *cu_gemm_note(const struct cu_gemm *g)
{
    return &((struct cu_gemm *)g)->note; /* const to those who run it */
}

int32_t cu_gemm_run(const struct cu_gemm *g, const void *a, const void *b, void *d, const struct cu_beside *beside,
                    cudaStream_t stream, struct hd_error *err)
{
    static const float one = 1, zero = 0;
    static const double one_double = 1, zero_double = 0;
    int is_double = g->key.product.a.dtype == HD_F64;
    const void *alpha = is_double ? (const void *)&one_double : &one;
    const void *none = is_double ? (const void *)&zero_double : &zero;
    int32_t rc = fail(err, set_beside(g->desc, &g->key.product, beside), "what a product reads besides");
    if (rc)
        return rc;
    return fail(err,
                cublasLtMatmul(g->blas->handle, g->desc, alpha, a, g->a, b, g->b,
                               g->key.product.accumulate ? alpha : none, d, g->d, d, g->d, &g->algo, g->blas->workspace,
                               g->blas->workspace_bytes, stream),
                "a matrix product");
}

void cu_blas_close(struct hd_device *device)
{
    struct cu_blas *b = device->blas;
    if (!b)
        return;
    while (b->gemms) {
        struct cu_gemm *g = b->gemms;
        b->gemms = g->next;
        free_gemm(device, g);
    }
    if (b->handle)
        cublasLtDestroy(b->handle);
    device->host->free(b);
    device->blas = NULL;
}
