/* core/base/float_convert: numbers of one dtype as another.
 * Between F32, BF16, F16 and F64; rounds to nearest, ties to even. 0: converted, else the
 * dtype is none of these. `in` and `out` may not overlap. */
#ifndef HD_CORE_BASE_FLOAT_CONVERT_H
#define HD_CORE_BASE_FLOAT_CONVERT_H

#include <stdint.h>

int hd__to_f32(uint32_t dtype, const void *in, float *out, uint64_t count);
int hd__from_f32(uint32_t dtype, const float *in, void *out, uint64_t count);

#endif
