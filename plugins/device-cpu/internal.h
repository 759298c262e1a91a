/* plugins/device-cpu: kernels on host memory.
 *
 * An instruction becomes a kernel: a deep copy of its descriptor, a function, and whatever state the function wants.
 * Each op has a plain reference kernel (reference/: loops in double over dtype-generic loads and stores, the
 * definition of the op) and may have a fast one (attention/, kernels/, products/). A fast prepare function may decline
 * (HD_E_UNSUPPORTED): then the reference kernel is used, and the device logs it once per op. */
#ifndef HD_DEVICE_CPU_INTERNAL_H
#define HD_DEVICE_CPU_INTERNAL_H

#include "heddle/device.h"
#include "heddle/host.h"
#include "heddle/optimizer.h"

enum { CPU_KERNELS_FAST = 0, CPU_KERNELS_REFERENCE = 1 };
enum { CPU_PRODUCTS_OWN = 0, CPU_PRODUCTS_ONEDNN = 1 };

struct cpu_settings {
    int64_t threads;  /* 0: one for each core this process may use, shared among local ranks */
    int32_t kernels;  /* CPU_KERNELS_... */
    int32_t products; /* CPU_PRODUCTS_... */
    int32_t isa;      /* CPU_ISA_... */
    int32_t reserved;
    int64_t logits; /* bytes of logits at a time in the fused head */
};

struct cpu_block; /* an allocation: memory.c */

struct hd_device {
    const struct hd_host *host;
    const struct cpu_settings *settings;
    int32_t threads;
    int32_t has_isa;                                /* reference kernels are of none */
    uint64_t declined[HD_OP_LIMIT / 64];            /* ops whose fast kernel declined: said once */
    void *onednn;                                   /* engine, stream, shared scratch: products/einsum.c */
    void (*onednn_close)(struct hd_device *device); /* frees it; NULL where nothing was opened */
    int32_t onednn_failed, reserved;                /* the status of a product of this launch */
    struct cpu_block *blocks;
    double peak[3]; /* measured FLOP/s of fp32, bf16 and fp16; 0: not yet */
};

struct hd_kernel {
    void (*run)(struct hd_kernel *k);
    void (*release)(struct hd_kernel *k); /* frees `state`; may be NULL */
    struct hd_device *device;
    void *state;
    struct hd_error *err; /* of the launch that runs, may be NULL */
    int32_t failed;       /* set by `run`: what launch returns */
    uint32_t reserved;
    struct hd_instr_desc d; /* d.in and d.out point to the arrays below; ranges and tables are copied too */
    struct hd_operand in[HD_MAX_IN], out[HD_MAX_OUT];
};

/* Sets run, release and state of a kernel whose descriptor is filled. */
typedef int32_t (*cpu_prepare_fn)(struct hd_kernel *k, struct hd_error *err);

/* ---- op_table.c: one row an op */
struct cpu_op {
    uint8_t min_in, max_in, min_out, max_out;
    uint32_t slower; /* it runs, but takes longer than the ops that it stands for: supports says no */
    void (*reference)(struct hd_kernel *k);
    cpu_prepare_fn check; /* what the reference demands of shapes; may allocate state. NULL: nothing */
    cpu_prepare_fn fast;  /* NULL: there is none */
};

/* NULL for an op that is none of a device's. */
const struct cpu_op *cpu_op(uint32_t op);

/* NULL where an op has none. */
cpu_prepare_fn cpu_reference(uint32_t op);
cpu_prepare_fn cpu_fast(uint32_t op);

/* Fast prepare functions, by op. */
/* clang-format off */
#define CPU_FAST_KERNELS(X) \
    X(add) X(bias) X(bias_dw) X(rmsnorm) X(rmsnorm_dx) X(rmsnorm_dw) X(layernorm) X(layernorm_dx) X(layernorm_dw) \
    X(rope) X(swiglu) X(swiglu_grad) X(gelu) X(gelu_grad) X(embed) X(embed_dw) X(position) X(position_dw) X(rowmax) \
    X(xent_local) X(nll) X(nll_grad) X(xent_grad) X(total) X(spread) X(slice) X(mask) X(pad) X(fill0) X(accum) \
    X(copy) X(blend) X(sumsq) X(adamw) X(sgd) X(optim_step) X(einsum) X(attention) X(attention_grad) X(xent_head) \
    X(attention_merge) X(attention_cached) \
    X(gate) X(gate_grad) X(route) X(dispatch) X(dispatch_dx) X(grouped) X(grouped_dw) X(combine) \
    X(combine_dz) X(combine_dg) X(expert_count) X(router_loss) X(router_loss_dz) X(encode) X(decode) \
    X(orthogonalise) X(add_rmsnorm) X(add_layernorm) X(rmsnorm_dx_add) X(layernorm_dx_add) \
    X(rmsnorm_grad_add) X(layernorm_grad_add) \
    X(gelu_erf) X(gelu_erf_grad) X(relu2) X(relu2_grad) X(softcap) X(softcap_grad) X(scale)
/* clang-format on */

#define CPU_FAST_KERNEL(name) int32_t cpu_fast_##name(struct hd_kernel *k, struct hd_error *err);
CPU_FAST_KERNELS(CPU_FAST_KERNEL)
#undef CPU_FAST_KERNEL

/* ---- kernel.c */
int32_t cpu_kernel_new(struct hd_device *device, const struct hd_instr_desc *instr, struct hd_kernel **kernel,
                       struct hd_error *err);
void cpu_kernel_free(struct hd_kernel *k);
/* Gives a kernel `bytes` of zeroed state that lives as long as it. */
int32_t cpu_kernel_state(struct hd_kernel *k, size_t bytes, struct hd_error *err);
/* "<label>: ..." with HD_E_INVALID. */
int32_t cpu_invalid(const struct hd_kernel *k, struct hd_error *err, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* ---- memory.c */
int32_t cpu_alloc(struct hd_device *device, uint32_t kind, size_t bytes, void **memory, struct hd_error *err);
void cpu_free(struct hd_device *device, uint32_t kind, void *memory);
void cpu_free_all(struct hd_device *device);

/* ---- peak.c */
double cpu_peak_flops(struct hd_device *device, uint32_t dtype);

/* ---- parallel.c: a parallel for: calls fn for ranges that cover [0, n), one a thread; in the calling thread alone
 * where there is one thread or less than `grain` items for each. The range that an item falls into depends on the
 * number of threads: its result must not depend on the range. */
typedef void (*cpu_range_fn)(void *context, int64_t first, int64_t last);
void cpu_parallel(const struct hd_device *device, int64_t n, int64_t grain, cpu_range_fn fn, void *context);

/* ---- operands: small questions, shared by all kernels */

/* Index of a logical dim in an operand, -1 if it has none. */
static inline int32_t cpu_dim(const struct hd_operand *o, uint8_t id)
{
    for (uint32_t i = 0; i < o->ndim; i++)
        if (o->dim[i] == id)
            return (int32_t)i;
    return -1;
}

/* Elements between neighbours along dim i. */
static inline int64_t cpu_stride(const struct hd_operand *o, uint32_t i)
{
    int64_t n = 1;
    for (i++; i < o->ndim; i++)
        n *= o->extent[i];
    return n;
}

/* Product of the extents of dims [first, last). */
static inline int64_t cpu_span(const struct hd_operand *o, uint32_t first, uint32_t last)
{
    int64_t n = 1;
    for (uint32_t i = first; i < last; i++)
        n *= o->extent[i];
    return n;
}

/* Operands of a norm or its gradient, with a sum beside it or not. */
struct cpu_norm {
    const struct hd_operand *x, *w, *c; /* c: LayerNorm's shift, or dy; not there for RMSNorm */
    uint32_t dw;                        /* the output that is the weights' gradient */
    int centred, sum_behind;
    uint32_t sum_before; /* 1: output 0 is a sum, and 1 its norm */
};

static inline struct cpu_norm cpu_norm(const struct hd_kernel *k)
{
    uint32_t op = k->d.op;
    struct cpu_norm n = {.centred = op == HD_OP_LAYERNORM || op == HD_OP_LAYERNORM_DX || op == HD_OP_LAYERNORM_DW ||
                                    op == HD_OP_ADD_LAYERNORM || op == HD_OP_LAYERNORM_DX_ADD ||
                                    op == HD_OP_LAYERNORM_GRAD_ADD,
                         .sum_before = op == HD_OP_ADD_RMSNORM || op == HD_OP_ADD_LAYERNORM,
                         .dw = op == HD_OP_RMSNORM_GRAD_ADD || op == HD_OP_LAYERNORM_GRAD_ADD,
                         .sum_behind = op == HD_OP_RMSNORM_DX_ADD || op == HD_OP_LAYERNORM_DX_ADD ||
                                       op == HD_OP_RMSNORM_GRAD_ADD || op == HD_OP_LAYERNORM_GRAD_ADD};
    n.x = n.sum_before ? &k->out[0] : &k->in[n.sum_behind];
    n.w = &k->in[n.sum_before || n.sum_behind ? 2 : 1];
    n.c = op == HD_OP_RMSNORM_DW || op == HD_OP_LAYERNORM_DW ? n.w : n.w + 1;
    return n;
}

/* Dtypes of fast kernels, which compute in fp32. */
static inline int cpu_fast_dtype(uint32_t dtype)
{
    return dtype == HD_F32 || dtype == HD_BF16 || dtype == HD_F16;
}

/* attrs.scale, times a scalar that the instruction may have as input `at`: the loss scale. */
static inline double cpu_seed(const struct hd_kernel *k, uint32_t at)
{
    return k->d.attrs.scale * (k->d.n_in > at ? *(const double *)k->in[at].data : 1);
}

/* The factor of input `x` in a blend (weighted sum). */
static inline double cpu_blend_factor(const struct hd_kernel *k, uint32_t x)
{
    return k->d.attrs.table[x] / (k->d.attrs.parts ? k->d.attrs.parts : 1);
}

static inline int cpu_accumulates(const struct hd_kernel *k)
{
    return (k->d.attrs.flags & HD_ATTR_ACCUMULATE) != 0;
}

#endif
