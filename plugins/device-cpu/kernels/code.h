/* Codes of gradients: where things lie. heddle/program.h has the format. */
#ifndef HD_DEVICE_CPU_KERNELS_CODE_H
#define HD_DEVICE_CPU_KERNELS_CODE_H

#include "internal.h"

struct cpu_code {
    uint8_t *data;
    int64_t parts, part, bytes; /* elements and bytes of a part */
    int64_t block, blocks;      /* elements of a block, blocks of a part */
    uint32_t bits;
    int32_t sums; /* decode: parts are summed */
};

/* Operands of an ENCODE or a DECODE, which check.c has checked. */
struct cpu_code cpu_code_of(const struct hd_kernel *k);

static inline uint8_t *cpu_code_at(const struct cpu_code *c, int64_t part, int64_t element)
{
    return c->data + part * c->bytes + element * c->bits / 8;
}

static inline float *cpu_code_scale(const struct cpu_code *c, int64_t part, int64_t block)
{
    return (float *)(void *)(c->data + part * c->bytes + c->part * c->bits / 8) + block;
}

/* Largest code: s * 127 or s * 7. */
static inline int32_t cpu_code_most(const struct cpu_code *c)
{
    return c->bits == 8 ? 127 : 7;
}

#endif
