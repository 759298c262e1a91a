/* Writing safetensors: the header of a file. */
#include <jansson.h>
#include <stdlib.h>

#include "core/base/dtype.h"
#include "service/checkpoint/safetensors.h"

enum { ALIGN = 4096 };

/* Offsets from the begin of the data; adds the item to the header. */
static int32_t add_item(json_t *header, struct hd__ckpt_st_item *item, uint64_t *at, struct hd_error *err)
{
    const char *dtype = hd__dtype(item->dtype)->safetensors;
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
    json_t *entry = json_pack("{s:s, s:o, s:[I, I]}", "dtype", dtype ? dtype : "?", "shape", shape, "data_offsets",
                              (json_int_t)item->offset, (json_int_t)*at);
    if (bad || json_object_set(header, item->name, entry)) {
        json_decref(entry);
        return hd_fail(err, HD_E_INVALID,
                       "tensor %s: cannot be stored: a dtype without a name in safetensors, a size "
                       "that does not fit, or a name that is a duplicate or not UTF-8",
                       item->name);
    }
    json_decref(entry);
    return HD_OK;
}

int32_t hd__ckpt_st_layout(struct hd__ckpt_st_item *items, uint32_t n, struct hd__text *head, uint64_t *file_bytes,
                           struct hd_error *err)
{
    json_t *header = json_loads(HD__CKPT_ST_BEGINS "}", 0, NULL);
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
