/* plugins/device-cuda: kernels on NVIDIA GPUs.
 *
 * prepare looks the op up in the table of op_table.c and calls its cu_prepare_NAME, which checks what it needs, packs
 * the launch into the kernel (function and arguments) and reserves scratch. launch calls `run`, which only enqueues.
 * Kernel families are .cu files; everything else is C. Both include this header; .cu files get the rest from
 * kernels/kernel.cuh. */
#ifndef HD_DEVICE_CUDA_INTERNAL_H
#define HD_DEVICE_CUDA_INTERNAL_H

#include "heddle/device.h"
#include "heddle/host.h"
#include "heddle/optimizer.h"
#include <cuda_runtime_api.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

struct cu_settings {
    int64_t index;           /* which GPU; -1: local rank modulo their number */
    int64_t workspace;       /* bytes that a matrix product may use */
    int64_t logits;          /* bytes of logits at a time in the fused head */
    int32_t tf32;            /* fp32 products in TF32 */
    int32_t tune;            /* time the candidates for a matrix product */
    int64_t fp8_above;       /* the least m n / (m + n) of a product in fp8 */
    int32_t fp8;             /* CU_FP8_... of fp8.h */
    int32_t attention;       /* CU_ATTENTION_... of attention/attention_autotune.h */
    int64_t attention_above; /* the least scores that are autotuned */
    const char *cudnn_library;
    int64_t connections; /* queues to the GPU; 0: as the environment says */
    int64_t threads;     /* nobody reads it */
};

struct cu_block; /* memory.c */
struct cu_table; /* memory.c */
struct cu_blas;  /* cuBLASLt and its workspace: blas.c */

struct hd_device {
    const struct hd_host *host;
    const struct cu_settings *settings;
    int32_t index;
    int32_t major, minor;    /* compute capability */
    int32_t processors;      /* multiprocessors */
    int32_t shared_limit;    /* bytes of shared memory that a block may ask for */
    int32_t clock;           /* kHz */
    int32_t plain_einsums;   /* how many could not be a matrix product */
    int32_t plain_epilogues; /* how many products could not do what stands behind them */
    int32_t plain_fp8;       /* how many products keep their dtype where fp8 is asked for */
    int32_t captured;        /* graphs that were captured and not freed */
    int32_t dnn_missing;     /* cuDNN was looked for, and is not here */
    int32_t reserved;
    cudaStream_t stream[HD_STREAM_COUNT];
    struct cu_block *allocations; /* what alloc gave */
    struct cu_block *blocks;      /* pools of small allocations, scratch */
    struct cu_table *tables;
    char *pool; /* the rest of the newest pool */
    size_t pool_left;
    void *scratch;
    size_t scratch_bytes;
    struct cu_blas *blas;
    struct cu_dnn *dnn;            /* NULL: cuDNN is not used, or not yet; cudnn_attention.c */
    struct cu_wgmma_choice *wgmma; /* results of autotuning; attention.c */
};

enum { CU_ARGS_BYTES = 768 };

/* A prepared launch. */
struct hd_kernel {
    /* Enqueues on stream; HD_OK or what cu_fail returned. */
    int32_t (*run)(struct hd_kernel *k, cudaStream_t stream, struct hd_error *err);
    void (*release)(struct hd_kernel *k); /* NULL: nothing but host->free(state) */
    struct hd_device *device;
    void *state;
    uint32_t op;
    uint32_t reserved;
    char label[64];
    uint64_t args[CU_ARGS_BYTES / 8]; /* what run packs into the launch: cu_pack, cu_args */
};

typedef int32_t (*cu_prepare_fn)(struct hd_device *d, const struct hd_instr_desc *i, struct hd_kernel *k,
                                 struct hd_error *err);

/* ---- error.c */

/* "LABEL: what: CUDA's name of the code" as an error; HD_OK where rc is cudaSuccess. The label may be NULL. */
int32_t cu_fail(struct hd_error *err, cudaError_t rc, const char *label, const char *what);
/* "LABEL: ..." with HD_E_INVALID or HD_E_UNSUPPORTED. */
int32_t cu_refuse(struct hd_error *err, int32_t code, const struct hd_instr_desc *i, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* ---- memory.c */

/* Device memory that holds a copy of these bytes as long as the device lives; equal tables share it. For prepare. */
int32_t cu_table(struct hd_device *d, const void *host, size_t bytes, const void **table, struct hd_error *err);
/* Zeros that live as long as the device: counters that a kernel sets back to zero. For prepare. */
int32_t cu_zeros(struct hd_device *d, size_t bytes, void **memory, struct hd_error *err);
/* Scratch of all kernels: what one leaves there, the next may overwrite. prepare reserves, `run` asks cu_scratch for
 * the address, which a later prepare may change. 256-byte aligned. As large as the largest wish, beside the core's
 * arena. */
int32_t cu_scratch_reserve(struct hd_device *d, size_t bytes, struct hd_error *err);

static inline void *cu_scratch(const struct hd_device *d)
{
    return d->scratch;
}

/* Stands for scratch in prepare: as aligned, and never followed. */
#define CU_SCRATCH_LATER ((void *)(uintptr_t)256)

/* The slots of the vtable. */
int32_t cu_alloc(struct hd_device *d, uint32_t kind, size_t bytes, void **memory, struct hd_error *err);
void cu_free(struct hd_device *d, uint32_t kind, void *memory);
/* Gives everything back. */
void cu_memory_close(struct hd_device *d);

/* ---- stream.c, graph.c: slots of the vtable */
int32_t cu_streams_open(struct hd_device *d, struct hd_error *err);
void cu_streams_close(struct hd_device *d);
int32_t cu_sync(struct hd_device *d, uint32_t stream, struct hd_error *err);
int32_t cu_event(struct hd_device *d, struct hd_event **event, struct hd_error *err);
void cu_event_free(struct hd_device *d, struct hd_event *event);
int32_t cu_record(struct hd_device *d, struct hd_event *event, uint32_t stream, struct hd_error *err);
int32_t cu_follow(struct hd_device *d, uint32_t stream, struct hd_event *event, struct hd_error *err);
int32_t cu_reached(struct hd_device *d, struct hd_event *event, int32_t *done, struct hd_error *err);
int32_t cu_copy(struct hd_device *d, uint32_t stream, void *to, const void *from, size_t bytes, struct hd_error *err);
void *cu_native(struct hd_device *d, uint32_t stream);
int32_t cu_capture_begin(struct hd_device *d, struct hd_error *err);
int32_t cu_capture_end(struct hd_device *d, struct hd_captured **captured, struct hd_error *err);
int32_t cu_replay(struct hd_device *d, struct hd_captured *captured, struct hd_error *err);
void cu_captured_free(struct hd_device *d, struct hd_captured *captured);

/* Milliseconds of a launch on the compute stream, of several in a row, the best of three rounds. Its operands are
 * memory to try it on. For prepare. */
int32_t cu_time_kernel(struct hd_device *d, struct hd_kernel *k, float *ms, struct hd_error *err);

/* ---- probe.c: HD_OK, or why no GPU can be used; how many there are. */
int32_t cu_probe(const struct hd_host *host, struct hd_error *err);
int32_t cu_count(int32_t *count, struct hd_error *err);

/* ---- peak.c */
double cu_peak_flops(struct hd_device *d, uint32_t dtype);

/* ---- kernels */

/* Keeps `bytes` of arguments in the kernel and sets run. */
static inline void cu_pack(struct hd_kernel *k, int32_t (*run)(struct hd_kernel *, cudaStream_t, struct hd_error *),
                           const void *args, size_t bytes)
{
    k->run = run;
    memcpy(k->args, args, bytes);
}

/* A launch of this many blocks covers `items`, `each` of them a block, in strides of the grid where there are more. */
static inline unsigned cu_blocks(const struct hd_device *d, int64_t items, int64_t each)
{
    int64_t want = (items + each - 1) / each, most = (int64_t)d->processors * 16;
    return (unsigned)(want < 1 ? 1 : want < most ? want : most);
}

/* add.cu: enqueues to += scratch, which has as many elements of the same dtype, fp32 or fp64. */
int32_t cu_scratch_add(struct hd_kernel *k, const struct hd_operand *to, cudaStream_t stream, struct hd_error *err);

/* elementwise.cu: enqueues pseudo-random numbers in [-1, 1) times scale; fp32, bf16 or fp16. */
cudaError_t cu_fill_random(void *to, uint32_t dtype, int64_t n, uint32_t seed, float scale, cudaStream_t stream);

/* ---- operands: small questions, shared by all kernels */

/* Index of a logical dim in an operand, -1 if it has none. */
static inline int32_t cu_dim(const struct hd_operand *o, uint8_t id)
{
    for (uint32_t i = 0; i < o->ndim; i++)
        if (o->dim[i] == id)
            return (int32_t)i;
    return -1;
}

/* Product of the extents of dims [first, last). */
static inline int64_t cu_span(const struct hd_operand *o, uint32_t first, uint32_t last)
{
    int64_t n = 1;
    for (uint32_t i = first; i < last; i++)
        n *= o->extent[i];
    return n;
}

/* Elements between neighbours along dim i. */
static inline int64_t cu_stride(const struct hd_operand *o, uint32_t i)
{
    return cu_span(o, i + 1, o->ndim);
}

static inline int32_t cu_aligned(const void *p, size_t unit)
{
    return (uintptr_t)p % unit == 0;
}

static inline uint32_t cu_accumulates(const struct hd_instr_desc *i)
{
    return (i->attrs.flags & HD_ATTR_ACCUMULATE) != 0;
}

/* Are its bits to be the same on every mesh (deterministic: exact)? A heddle that does not say may mean it. */
static inline int cu_is_exact(const struct hd_instr_desc *i)
{
    return i->struct_size < offsetof(struct hd_instr_desc, flags) + sizeof i->flags || i->flags & HD_INSTR_EXACT;
}

#ifdef __cplusplus
}
#endif

#endif
