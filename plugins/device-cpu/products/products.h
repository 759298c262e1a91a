/* Shared by the fast matrix kernels: one scratch memory a device, and matrix products.
 *
 * Kernels of a device run one at a time, so they share one scratch memory: each reserves at prepare what it
 * needs and asks for the address when it runs (a later reservation may move it). */
#ifndef HD_DEVICE_CPU_PRODUCTS_PRODUCTS_H
#define HD_DEVICE_CPU_PRODUCTS_PRODUCTS_H

#include "internal.h"

/* At least `bytes`, 4096-byte aligned, touched (no page faults later). */
int32_t cpu_scratch_reserve(struct hd_device *d, size_t bytes, struct hd_error *err);
void *cpu_scratch(struct hd_device *d);

/* A second one, for a kernel that makes products of what it keeps there: products use the first. */
int32_t cpu_rows_reserve(struct hd_device *d, size_t bytes, struct hd_error *err);
void *cpu_rows(struct hd_device *d);

/* Frees scratch and engines of a device; called when it closes. */
void cpu_fast_close(struct hd_device *d);

/* ---- matrix products */

/* Element (i, j) of a matrix lies at data + i * rs + j * cs, in elements. */
struct cpu_matrix {
    uint32_t dtype;
    uint32_t reserved;
    int64_t rs, cs;
};

/* c[m, n] (+)= a[m, k] b[k, n], summed in fp32. a and b have the same dtype and a unit stride each; c.cs is
 * 1. */
struct cpu_gemm {
    int64_t m, n, k;
    struct cpu_matrix a, b, c;
    struct hd_device *device;
    int32_t accumulate;
    int32_t once; /* accumulate when all terms are summed: HD_ATTR_ONCE; c is fp32 */
    /* Set by an engine. */
    void (*run)(struct cpu_gemm *g, const void *a, const void *b, void *c);
    void (*release)(struct cpu_gemm *g);
    void *state;
};

/* The engine that the device's options ask for. Our own takes everything; oneDNN, asked for and unable, is an error: it
 * is never replaced in silence. HD_E_UNSUPPORTED where `once` is asked for and is not how this product adds. */
int32_t cpu_gemm_prepare(struct cpu_gemm *g, struct hd_error *err);

/* Our own kernels: packed panels and the machine's best micro-kernel. Takes everything, but `once` for many terms. */
int32_t cpu_gemm_own(struct cpu_gemm *g, struct hd_error *err);

/* oneDNN's matmul. Both fill run, release and state, or decline with HD_E_UNSUPPORTED. */
int32_t cpu_gemm_onednn(struct cpu_gemm *g, struct hd_error *err);
void cpu_gemm_onednn_close(void *engine);

/* device->onednn points to one. */
struct cpu_scratch {
    void *at;
    size_t bytes;
};

struct cpu_fast {
    struct cpu_scratch scratch, rows;
    void *engine; /* gemm_onednn.c's own */
};
struct cpu_fast *cpu_fast_state(struct hd_device *d);

#endif
