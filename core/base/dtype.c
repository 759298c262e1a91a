#include "core/base/dtype.h"

#pragma GCC optimize("O3") /* vectors */

#define ROW(constant, name, class, sum, T, A, load, store, digits, max_exp, ...) \
    [constant] = {HD__CLASS_##class, sum, digits, max_exp, __VA_ARGS__},
#define DTYPE(constant, value, name, bytes) HD__DTYPE_COLUMNS(ROW, constant, name)
const struct hd__dtype hd__dtypes[HD__DTYPE_COUNT] = {{.mnemonic = "?"}, HD_DTYPES(DTYPE)};

uint32_t hd__dtype_float_at(uint32_t n)
{
    for (uint32_t d = 1; d < HD__DTYPE_COUNT; d++)
        if (hd__is_float(d) && !n--)
            return d;
    return 0;
}

double hd__dtype_load(uint32_t dtype, const void *at)
{
    switch (dtype) {
#define LOAD(constant, name, class, sum, T, A, load, ...) \
    case constant:                                        \
        return (double)load(*(const T *)at);
#define LOAD_ROW(constant, value, name, bytes) HD__DTYPE_COLUMNS(LOAD, constant, name)
        HD_DTYPES(LOAD_ROW)
    default:
        return 0;
    }
}

void hd__dtype_store(uint32_t dtype, void *at, double value)
{
    switch (dtype) {
#define STORE(constant, name, class, sum, T, A, load, store, ...) \
    case constant:                                                \
        *(T *)at = (T)store((A)value);                            \
        break;
#define STORE_ROW(constant, value, name, bytes) HD__DTYPE_COLUMNS(STORE, constant, name)
        HD_DTYPES(STORE_ROW)
    }
}

int hd__to_f32(uint32_t dtype, const void *in, float *out, uint64_t count)
{
    if (!hd__is_float(dtype))
        return -1;
    switch (dtype) {
#define TO_F32(constant, name, class, sum, T, A, load, ...) \
    case constant:                                          \
        for (uint64_t i = 0; i < count; i++)                \
            out[i] = (float)load(((const T *)in)[i]);       \
        break;
#define TO_F32_ROW(constant, value, name, bytes) HD__DTYPE_COLUMNS(TO_F32, constant, name)
        HD_DTYPES(TO_F32_ROW)
    }
    return 0;
}

int hd__from_f32(uint32_t dtype, const float *in, void *out, uint64_t count)
{
    if (!hd__is_float(dtype))
        return -1;
    switch (dtype) {
#define FROM_F32(constant, name, class, sum, T, A, load, store, ...) \
    case constant:                                                   \
        for (uint64_t i = 0; i < count; i++)                         \
            ((T *)out)[i] = (T)store((A)in[i]);                      \
        break;
#define FROM_F32_ROW(constant, value, name, bytes) HD__DTYPE_COLUMNS(FROM_F32, constant, name)
        HD_DTYPES(FROM_F32_ROW)
    }
    return 0;
}
