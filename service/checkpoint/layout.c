/* Layout of tensors in files, and of runs in blocks. */
#include <stdlib.h>

#include "service/checkpoint/internal.h"
#include "service/checkpoint/safetensors.h"

uint64_t hd__ckpt_tensor_numel(const struct hd__ckpt_tensor *t)
{
    uint64_t count = 1;
    for (uint32_t i = 0; i < t->ndim; i++)
        if (t->shape[i] < 0 || __builtin_mul_overflow(count, (uint64_t)t->shape[i], &count))
            return UINT64_MAX;
    return count;
}

/* ---- files */

int hd__ckpt_by_name(const void *a, const void *b)
{
    const struct hd__ckpt_tensor *x = *(const struct hd__ckpt_tensor *const *)a,
                                 *y = *(const struct hd__ckpt_tensor *const *)b;
    int group = strcmp(x->group, y->group);
    return group ? group : strcmp(x->name, y->name);
}

/* Tensors of a group are contiguous; each group begins a file, and so does a tensor that would make one too large. */
int32_t hd__ckpt_layout_make(struct hd__arena *arena, const struct hd__ckpt_tensor *tensors, uint32_t n,
                             uint64_t file_bytes, struct hd__ckpt_layout *l, struct hd_error *err)
{
    uint64_t limit = file_bytes ? file_bytes : UINT64_C(2) << 30;
    struct hd__ckpt_st_item *items;
    struct hd__text header = {0};
    int32_t rc = HD_OK;
    l->files = hd__arena_alloc(arena, n * sizeof *l->files);
    l->locations = hd__arena_alloc(arena, n * sizeof *l->locations);
    items = hd__alloc(n * sizeof *items);
    for (uint32_t i = 0; i < n; i++)
        items[i] = (struct hd__ckpt_st_item){
            .name = tensors[i].name, .dtype = tensors[i].dtype, .ndim = tensors[i].ndim, .shape = tensors[i].shape};
    for (uint32_t i = 0, named = 0; i < n && !rc;) {
        const char *group = tensors[i].group;
        struct hd__ckpt_file *f = &l->files[l->n_files];
        uint32_t first = i;
        for (uint64_t used = 0; i < n && !strcmp(tensors[i].group, group); i++) {
            used += hd__ckpt_tensor_numel(&tensors[i]) * hd_dtype_size(tensors[i].dtype);
            if (i > first && used > limit)
                break;
        }
        header.length = 0;
        rc = hd__ckpt_st_layout(&items[first], i - first, &header, &f->bytes, err);
        if (rc)
            break;
        f->header = hd__arena_copy(arena, header.at, header.length);
        f->header_bytes = header.length;
        for (uint32_t k = first; k < i; k++)
            l->locations[k] = (struct hd__ckpt_location){l->n_files, 0, items[k].offset, items[k].bytes};
        l->n_files++;
        if (i < n && !strcmp(tensors[i].group, group))
            continue;
        for (uint32_t k = named; k < l->n_files; k++) /* the group is complete */
            l->files[k].name =
                hd__arena_format(arena, "%s-%05u-of-%05u.safetensors", group, k - named + 1, l->n_files - named);
        named = l->n_files;
    }
    hd__ckpt_layout_number_blocks(l);
    hd__text_free(&header);
    free(items);
    return rc;
}

void hd__ckpt_layout_number_blocks(struct hd__ckpt_layout *l)
{
    l->n_blocks = l->bytes = 0;
    for (uint32_t i = 0; i < l->n_files; i++) {
        l->files[i].first_block = l->n_blocks;
        l->files[i].n_blocks = (l->files[i].bytes + HD__CKPT_BLOCK - 1) / HD__CKPT_BLOCK;
        l->n_blocks += l->files[i].n_blocks;
        l->bytes += l->files[i].bytes;
    }
}

uint32_t hd__ckpt_locate_block(const struct hd__ckpt_layout *l, uint64_t block, uint64_t *begin, uint64_t *bytes)
{
    uint32_t low = 0, high = l->n_files - 1;
    while (low < high) {
        uint32_t middle = (low + high + 1) / 2;
        if (l->files[middle].first_block <= block)
            low = middle;
        else
            high = middle - 1;
    }
    *begin = (block - l->files[low].first_block) * HD__CKPT_BLOCK;
    *bytes = HD__MIN(HD__CKPT_BLOCK, l->files[low].bytes - *begin);
    return low;
}

/* ---- pieces */

static int by_position(const void *a, const void *b)
{
    const struct hd__ckpt_piece *x = a, *y = b;
    if (x->block != y->block)
        return x->block < y->block ? -1 : 1;
    return x->at != y->at ? (x->at < y->at ? -1 : 1) : 0;
}

int32_t hd__ckpt_cut(struct hd__arena *arena, const struct hd__ckpt_layout *l, const struct hd__ckpt_tensor *tensors,
                     uint32_t n_tensors, const struct hd__ckpt_run *runs, uint32_t n_runs, int headers,
                     struct hd__ckpt_pieces *pieces, struct hd_error *err)
{
    uint64_t n = (uint64_t)n_runs + (headers ? l->n_files : 0), k = 0;
    for (uint64_t i = 0; i < n; i++) { /* the headers follow the runs */
        uint32_t tensor = i < n_runs ? runs[i].tensor : UINT32_MAX, file = (uint32_t)(i - n_runs);
        uint64_t offset = 0, bytes;
        char *data;
        if (i >= n_runs) {
            data = l->files[file].header;
            bytes = l->files[file].header_bytes;
        } else if (tensor >= n_tensors) {
            return hd_fail(err, HD_E_INTERNAL, "checkpoint: a run of tensor %u of %u", tensor, n_tensors);
        } else {
            const struct hd__ckpt_location *location = &l->locations[tensor];
            int64_t size = (int64_t)hd_dtype_size(tensors[tensor].dtype), count = (int64_t)location->bytes / size;
            if (runs[i].first < 0 || runs[i].count < 0 || runs[i].first > count ||
                runs[i].count > count - runs[i].first)
                return hd_fail(err, HD_E_INTERNAL, "checkpoint: tensor %s: a run of %ld elements at %ld of %ld",
                               tensors[tensor].name, (long)runs[i].count, (long)runs[i].first, (long)count);
            file = location->file;
            offset = location->offset + (uint64_t)(runs[i].first * size);
            bytes = (uint64_t)(runs[i].count * size);
            data = runs[i].data;
        }
        for (uint64_t end = offset + bytes, take; offset < end; offset += take, data += take) {
            uint64_t at = offset % HD__CKPT_BLOCK;
            take = HD__MIN(HD__CKPT_BLOCK - at, end - offset);
            hd__push(pieces, (struct hd__ckpt_piece){l->files[file].first_block + offset / HD__CKPT_BLOCK, data,
                                                     (uint32_t)at, (uint32_t)take, tensor, 0});
        }
    }
    hd__sort(pieces, by_position);
    pieces->first = hd__arena_alloc(arena, (l->n_blocks + 1) * sizeof *pieces->first);
    for (uint64_t b = 0; b <= l->n_blocks; b++) {
        while (k < pieces->count && pieces->at[k].block < b)
            k++;
        pieces->first[b] = k;
    }
    return HD_OK;
}
