/* Fast kernels: prepare functions, by file. */
#ifndef HD_DEVICE_CPU_FAST_H
#define HD_DEVICE_CPU_FAST_H

#include "cpu.h"

int32_t cpu_fast_einsum(struct hd_kernel *k, struct hd_error *err);
int32_t cpu_fast_attention(struct hd_kernel *k, struct hd_error *err);
int32_t cpu_fast_attention_grad(struct hd_kernel *k, struct hd_error *err);

#ifdef CPU_HAS_EINSUM
#define CPU_FAST_EINSUM cpu_fast_einsum
#else
#define CPU_FAST_EINSUM NULL
#endif
#ifdef CPU_HAS_ATTENTION
#define CPU_FAST_ATTENTION cpu_fast_attention
#define CPU_FAST_ATTENTION_GRAD cpu_fast_attention_grad
#else
#define CPU_FAST_ATTENTION NULL
#define CPU_FAST_ATTENTION_GRAD NULL
#endif

#endif
