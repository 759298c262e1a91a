/* Writing safetensors: the header of a file. */
#include <jansson.h>
#include <stdlib.h>

#include "core/base/dtype.h"
#include "service/checkpoint/safetensors.h"

enum { ALIGN = 4096 };

int32_t hd__ckpt_st_layout(struct hd__ckpt_st_item *items, uint32_t n, struct hd__text *head, uint64_t *file_bytes,
                           struct hd_error *err)
{
    json_t *header = json_loads(HD__CKPT_ST_BEGINS "}", 0, NULL);
    const struct hd__ckpt_st_item *bad = NULL;
    uint64_t at = 0; /* offsets count from the begin of the data at first */
    for (uint32_t i = 0; i < n && !bad; i++) {
        struct hd__ckpt_st_item *item = &items[i];
        const char *dtype = hd__dtype(item->dtype)->safetensors;
        json_t *shape = json_array();
        int fits = dtype && !json_object_get(header, item->name) && strcmp(item->name, "__metadata__") != 0;
        item->offset = at;
        item->bytes = hd_dtype_size(item->dtype);
        for (uint32_t d = 0; d < item->ndim; d++) {
            fits &= item->shape[d] >= 0 && !__builtin_mul_overflow(item->bytes, (uint64_t)item->shape[d], &item->bytes);
            json_array_append_new(shape, json_integer(item->shape[d]));
        }
        fits &= item->bytes <= INT64_MAX && at <= INT64_MAX - item->bytes;
        at += fits ? item->bytes : 0;
        json_t *entry = json_pack("{s:s, s:o, s:[I, I]}", "dtype", dtype ? dtype : "?", "shape", shape, "data_offsets",
                                  (json_int_t)item->offset, (json_int_t)at);
        bad = json_object_set_new(header, item->name, entry) || !fits ? item : NULL;
    }
    char *json = json_dumps(header, JSON_COMPACT);
    json_decref(header);
    if (!bad) {
        /* The format allows spaces after the JSON. */
        uint64_t begin = (8 + strlen(json) + ALIGN - 1) / ALIGN * ALIGN, length = begin - 8;
        hd__text_add_bytes(head, (const char *)&length, 8);
        hd__text_add(head, "%-*s", (int)length, json);
        for (uint32_t i = 0; i < n; i++)
            items[i].offset += begin;
        *file_bytes = begin + at;
    }
    free(json);
    return bad ? hd_fail(err, HD_E_INVALID,
                         "tensor %s: cannot be stored: a dtype without a name in safetensors, a size that does not "
                         "fit, or a name that is a duplicate or not UTF-8",
                         bad->name)
               : HD_OK;
}
