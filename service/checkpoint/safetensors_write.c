/* Writing safetensors: the header of a file. And the floats of its dtypes. */
#include <jansson.h>
#include <stdlib.h>

#include "service/checkpoint/safetensors.h"

enum { ALIGN = 4096 };

const char *hd__st_dtype_name(uint32_t dtype)
{
    static const struct {
        const char *name;
        uint32_t dtype;
    } names[] = {
#define ST_NAME(name, bytes, dtype) {name, dtype},
        HD__ST_DTYPES(ST_NAME)
#undef ST_NAME
    };
    for (size_t i = 0; dtype && i < HD__COUNT(names); i++)
        if (names[i].dtype == dtype)
            return names[i].name;
    return NULL;
}

/* Offsets from the begin of the data; adds the item to the header. */
static int32_t add_item(json_t *header, struct hd__st_item *item, uint64_t *at, struct hd_error *err)
{
    const char *dtype = hd__st_dtype_name(item->dtype);
    json_t *shape = json_array();
    uint64_t bytes = hd_dtype_size(item->dtype);
    int bad = !dtype || json_object_get(header, item->name) || !strcmp(item->name, "__metadata__");
    for (uint32_t i = 0; i < item->ndim; i++) {
        bad |= item->shape[i] < 0 || __builtin_mul_overflow(bytes, (uint64_t)item->shape[i], &bytes);
        json_array_append_new(shape, json_integer(item->shape[i]));
    }
    bad |= bytes > INT64_MAX || *at > INT64_MAX - bytes;
    item->offset = *at;
    item->bytes = bytes;
    *at += bad ? 0 : bytes;
    json_t *entry = json_pack("{s:s, s:o, s:[I, I]}", "dtype", dtype ? dtype : "?", "shape", shape,
                              "data_offsets", (json_int_t)item->offset, (json_int_t)*at);
    if (bad || json_object_set(header, item->name, entry)) {
        json_decref(entry);
        return hd_fail(err, HD_E_INVALID,
                       "tensor %s: cannot be stored: a dtype without a name in safetensors, a size "
                       "that does not fit, or a name that is there twice or not UTF-8",
                       item->name);
    }
    json_decref(entry);
    return HD_OK;
}

int32_t hd__st_layout(struct hd__st_item *items, uint32_t n, struct hd__text *head, uint64_t *file_bytes,
                      struct hd_error *err)
{
    json_t *header = json_pack("{s:{s:s}}", "__metadata__", "format", "pt"); /* transformers asks for it */
    uint64_t at = 0;
    int32_t rc = HD_OK;
    for (uint32_t i = 0; i < n && !rc; i++)
        rc = add_item(header, &items[i], &at, err);
    char *json = rc ? NULL : json_dumps(header, JSON_COMPACT);
    json_decref(header);
    if (rc)
        return rc;
    /* The format allows spaces after the JSON. */
    uint64_t used = strlen(json), begin = (8 + used + ALIGN - 1) / ALIGN * ALIGN, length = begin - 8;
    char *first = hd__alloc(begin);
    memset(first, ' ', begin);
    memcpy(first, &length, 8);
    memcpy(first + 8, json, used);
    head->at = hd__realloc(head->at, head->length + begin + 1);
    memcpy(head->at + head->length, first, begin);
    head->length += begin;
    head->room = head->length + 1;
    head->at[head->length] = '\0';
    for (uint32_t i = 0; i < n; i++)
        items[i].offset += begin;
    *file_bytes = begin + at;
    free(first);
    free(json);
    return HD_OK;
}

/* ---- floats */

static uint32_t bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    return u;
}

static float from_bits(uint32_t u)
{
    float x;
    memcpy(&x, &u, 4);
    return x;
}

static uint16_t to_bf16(float x)
{
    uint32_t u = bits(x);
    if ((u & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(u >> 16 | 0x40); /* stays a NaN */
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

static float from_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, fraction = h & 0x3ff;
    if (exponent == 31)
        return from_bits(sign | 0x7f800000 | fraction << 13);
    if (exponent == 0) /* subnormal: a multiple of 2^-24 */
        return from_bits(sign | bits((float)fraction * 0x1p-24f));
    return from_bits(sign | (exponent + 112) << 23 | fraction << 13);
}

static uint16_t to_f16(float x)
{
    uint32_t u = bits(x), sign = u >> 16 & 0x8000, abs = u & 0x7fffffff;
    if (abs > 0x7f800000)
        return (uint16_t)(sign | 0x7e00);
    if (abs >= 0x477ff000) /* 65520: from here on rounds to infinity */
        return (uint16_t)(sign | 0x7c00);
    if (abs <
        0x38800000) /* below 2^-14: a multiple of 2^-24, rounded by adding 2^-1 whose last bit that is */
        return (uint16_t)(sign | (bits(from_bits(abs) + 0.5f) - bits(0.5f)));
    return (uint16_t)(sign | ((abs - (112u << 23) + 0xfff + (abs >> 13 & 1)) >> 13));
}

int hd__to_f32(uint32_t dtype, const void *in, float *out, uint64_t count)
{
    const uint16_t *h = in;
    const double *d = in;
    switch (dtype) {
    case HD_F32:
        memcpy(out, in, count * sizeof *out);
        return 0;
    case HD_BF16:
        for (uint64_t i = 0; i < count; i++)
            out[i] = from_bits((uint32_t)h[i] << 16);
        return 0;
    case HD_F16:
        for (uint64_t i = 0; i < count; i++)
            out[i] = from_f16(h[i]);
        return 0;
    case HD_F64:
        for (uint64_t i = 0; i < count; i++)
            out[i] = (float)d[i];
        return 0;
    default:
        return -1;
    }
}

int hd__from_f32(uint32_t dtype, const float *in, void *out, uint64_t count)
{
    uint16_t *h = out;
    double *d = out;
    switch (dtype) {
    case HD_F32:
        memcpy(out, in, count * sizeof *in);
        return 0;
    case HD_BF16:
        for (uint64_t i = 0; i < count; i++)
            h[i] = to_bf16(in[i]);
        return 0;
    case HD_F16:
        for (uint64_t i = 0; i < count; i++)
            h[i] = to_f16(in[i]);
        return 0;
    case HD_F64:
        for (uint64_t i = 0; i < count; i++)
            d[i] = in[i];
        return 0;
    default:
        return -1;
    }
}
