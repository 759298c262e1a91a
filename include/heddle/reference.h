/* heddle/reference.h: arithmetic that every implementation of an op must agree on to the bit, as plain C. */
#ifndef HEDDLE_REFERENCE_H
#define HEDDLE_REFERENCE_H

#include <stdint.h>
#include <string.h>

#include "heddle/gradient_clipping.h"

/* ---- updates (HD_OP_ADAMW, HD_OP_SGD, HD_OP_OPTIM_STEP) */

/* The tensor hyper[8], fp64, which the training loop fills before every update. */
enum {
    HD_HYPER_LR = 0,        /* learning rate of this step, after the schedule */
    HD_HYPER_STEP = 1,      /* number of this step, from 1 */
    HD_HYPER_INV_SCALE = 2, /* gradients are multiplied by this first (loss scaling); 1 without */
    HD_HYPER_SKIP = 3,      /* not 0: the gradients overflowed: change nothing */
    HD_HYPER_COUNT = 8
};

/* 1 if an update may change anything: skip is not set and the gradient norm is finite. A step that overflowed thus
 * leaves the weights as they were on all ranks alike, since norm2 is the same on all. */
static inline int32_t hd_update_runs(const double *hyper, double norm2)
{
    return hyper[HD_HYPER_SKIP] == 0 && norm2 - norm2 == 0;
}

/* ---- stochastic rounding to bf16 (HD_ATTR_STOCHASTIC; Gupta et al., arXiv 1502.02551, section 3)
 * A weight is rounded away from zero with a probability equal to its distance from the neighbour towards zero, so that
 * updates too small for bf16 are not lost. The random bits are a function of the seed (attrs.index), the step and the
 * element's index in the whole flat buffer: the same on every mesh and device, and after a resume. Infinities and NaN
 * stay. A low-precision copy is a copy of the rounded weight. */
static inline uint64_t hd_splitmix64(uint64_t x) /* finaliser of splitmix64 (Steele et al. 2014) */
{
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

/* Key of one step, for all elements. */
static inline uint64_t hd_round_stochastic_key(uint32_t seed, double step)
{
    return hd_splitmix64(((uint64_t)seed << 32) + (uint64_t)step * UINT64_C(0x9e3779b97f4a7c15));
}

/* x rounded to bf16 and widened again. */
static inline float hd_round_stochastic_bf16(float x, uint64_t key, int64_t index)
{
    uint32_t random = (uint32_t)(hd_splitmix64(key + (uint64_t)index * UINT64_C(0x9e3779b97f4a7c15)) >> 48), bits;
    memcpy(&bits, &x, sizeof bits);
    if ((bits & 0x7f800000) != 0x7f800000)
        bits = (bits + random) & 0xffff0000;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Names until ABI 1.0; they go with the next minor. */
#define hd_rounding_mix hd_splitmix64
#define hd_rounding_key hd_round_stochastic_key
#define hd_rounding_lot hd_round_stochastic_bf16

/* ---- block quantisation (HD_OP_ENCODE, HD_OP_DECODE): n elements in `parts` equal parts, each a multiple of 16
 * elements, in blocks of `block` (a multiple of 16; the last of a part may be shorter). A part is its codes, then
 * one fp32 scale a block, then zeros up to a multiple of 16 bytes. Code q of a block with scale s means s (q - 128)
 * with 8 bits; with 4 bits s (q - 8), the first of two elements in the low half. s = max |x| / 127 or / 7; q is x /
 * s to nearest even. */

/* Elements of one part. */
static inline int64_t hd_code_part(int64_t n, int64_t parts)
{
    return ((n + parts - 1) / parts + 15) / 16 * 16;
}

/* Bytes of one part of that many elements. */
static inline int64_t hd_code_bytes(int64_t part, int64_t block, uint32_t bits)
{
    return (part * bits / 8 + (part + block - 1) / block * 4 + 15) / 16 * 16;
}

/* Replacement direction of HD_OP_ORTHOGONALISE for a linearly dependent column: element `row` of direction `column`, in
 * [-1, 1), the same on every rank. `attempt` counts from 0: the next one where this one is dependent too. */
static inline double hd_direction(int64_t row, int64_t column, uint32_t attempt)
{
    uint64_t x = (uint64_t)row * UINT64_C(0x9e3779b97f4a7c15) + attempt + 1;
    x = hd_splitmix64(x + (uint64_t)column * UINT64_C(0xd1b54a32d192ed03));
    return (double)(x >> 11) / 4503599627370496.0 - 1;
}

#endif
