/* plugins/device-cpu: kernels on host memory.
 *
 * An instruction becomes a kernel: a deep copy of its descriptor, a function, and whatever state the function wants.
 * Each op has a plain reference kernel (reference_*.c: loops in double over dtype-generic loads and stores, the
 * definition of the op) and may have a fast one (fast_*.c). A fast prepare function may decline (HD_E_UNSUPPORTED):
 * then the reference kernel is used, and the device logs it once per op. */
#ifndef HD_DEVICE_CPU_H
#define HD_DEVICE_CPU_H

#include "heddle/device.h"
#include "heddle/host.h"
#include "heddle/optimizer.h"

enum { CPU_KERNELS_FAST = 0, CPU_KERNELS_REFERENCE = 1 };

struct cpu_settings {
    int64_t threads; /* 0: one for each core this process may use, shared among local ranks */
    int32_t kernels; /* CPU_KERNELS_... */
    int32_t reserved;
};

struct hd_device {
    const struct hd_host *host;
    const struct cpu_settings *settings;
    int32_t threads;
    int32_t reserved;
    uint64_t declined[HD_OP_LIMIT / 64]; /* ops whose fast kernel declined: said once */
    void *onednn;                        /* engine, stream, shared scratch: fast_einsum.c */
};

struct hd_kernel {
    void (*run)(struct hd_kernel *k);
    void (*release)(struct hd_kernel *k); /* frees `state`; may be NULL */
    struct hd_device *device;
    void *state;
    struct hd_instr_desc d; /* d.in and d.out point to the arrays below; ranges and tables are copied too */
    struct hd_operand in[HD_MAX_IN], out[HD_MAX_OUT];
};

/* Sets run, release and state of a kernel whose descriptor is filled. */
typedef int32_t (*cpu_prepare_fn)(struct hd_kernel *k, struct hd_error *err);

/* NULL where an op has none. */
cpu_prepare_fn cpu_reference(uint32_t op);
cpu_prepare_fn cpu_fast(uint32_t op);

#endif
