/* Which matrix product an einsum is: no CUDA in here, so it can be tested anywhere. */
#ifndef HD_DEVICE_CUDA_PRODUCTS_PLAN_H
#define HD_DEVICE_CUDA_PRODUCTS_PLAN_H

#include "../common/einsum_labels.h"

enum { CU_LOOPS_MOST = 256 }; /* products that an einsum may be launched as */

/* Epilogues of a product, in cuBLAS's words: see CUBLASLT_EPILOGUE_... */
enum {
    CU_EPILOGUE_NONE = 0,
    CU_EPILOGUE_BIAS,          /* d = product + bias[m] */
    CU_EPILOGUE_GELU_BIAS,     /* d = gelu(product + bias[m]) */
    CU_EPILOGUE_GELU_AUX_BIAS, /* the same, and aux [m n] = product + bias[m] */
    CU_EPILOGUE_DGELU,         /* d = product times the slope of gelu at aux [m n] */
    CU_EPILOGUE_BGRADA,        /* besides, bias[m] = the sum of a's columns */
    CU_EPILOGUE_BGRADB,        /* besides, bias[n] = the sum of b's rows */
};

/* As cuBLAS sees it: column-major, `rows` x `cols` as stored, transposed when used where `trans` says so. */
struct cu_matrix {
    uint32_t dtype;
    uint32_t trans;
    int64_t rows, cols, ld;
    int64_t batch_stride; /* elements; 0: every product reads the same */
};

/* d [m n] (+)= op(a) [m k] op(b) [k n], `batch` times. */
struct cu_product {
    int64_t m, n, k, batch;
    struct cu_matrix a, b, d;
    uint32_t accumulate;
    uint32_t epilogue;
};

struct cu_plan {
    struct cu_product product;
    struct labels outer; /* loops around the product; those that are summed come last */
    int64_t loops;       /* product of their extents */
    uint32_t swapped;    /* a of the product is the einsum's first input, not its second */
    uint32_t sums;       /* a loop is summed: later products add to d */
};

/* NULL, or why the einsum in[0], in[1] -> out is no (small number of) products. `accumulate`: out is added to. */
const char *cu_plan(struct cu_plan *plan, const struct hd_operand *in, const struct hd_operand *out,
                    uint32_t accumulate);
/* NULL, with plan->product.epilogue set, or why the product that was planned for inputs 0 and 1 cannot do the rest of
 * `op` (HD_OP_EINSUM_BIAS and those that follow it) with it. */
const char *cu_plan_epilogue(struct cu_plan *plan, uint32_t op, const struct hd_operand *in,
                             const struct hd_operand *out, uint32_t n_out);
/* NULL, or why the product that was planned may not have its operands in fp8. `above`: the least m n / (m + n), in
 * elements. */
const char *cu_plan_fp8(const struct cu_plan *plan, int64_t above);
/* How many rows of logits to make at a time, `most` at most: a product [rows width] of them is to take the fewest waves
 * of tiles of 128 x 256 on so many multiprocessors, in the fewest chunks. `most` is 64 or more. */
int64_t cu_plan_rows(int64_t rows, int64_t most, int64_t width, int64_t processors);

#endif
