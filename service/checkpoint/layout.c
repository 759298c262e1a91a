/* Where tensors lie in files, and runs in blocks. */
#include <stdbool.h>
#include <stdlib.h>

#include "runtime/cpu/parallel_for.h"
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

static bool file_has_room(const struct hd__ckpt_tensor *tensors, uint32_t first, uint32_t i, uint64_t used,
                          uint64_t limit)
{
    uint64_t bytes = hd__ckpt_tensor_numel(&tensors[i]) * hd_dtype_size(tensors[i].dtype);
    return i == first || used + bytes <= limit;
}

/* One file: tensors [first, end). */
static int32_t make_file(const struct hd__ckpt_tensor *tensors, uint32_t first, uint32_t end, struct hd__ckpt_layout *l,
                         struct hd_error *err)
{
    struct hd__ckpt_st_item *items = hd__alloc((end - first) * sizeof *items);
    struct hd__ckpt_file *f = &l->files[l->n_files];
    for (uint32_t i = first; i < end; i++)
        items[i - first] = (struct hd__ckpt_st_item){
            .name = tensors[i].name, .dtype = tensors[i].dtype, .ndim = tensors[i].ndim, .shape = tensors[i].shape};
    int32_t rc = hd__ckpt_st_layout(items, end - first, &f->header, &f->bytes, err);
    for (uint32_t i = first; i < end && !rc; i++)
        l->locations[i] = (struct hd__ckpt_location){l->n_files, 0, items[i - first].offset, items[i - first].bytes};
    l->n_files += !rc;
    free(items);
    return rc;
}

static void name_files(struct hd__ckpt_layout *l, uint32_t first, const char *group)
{
    for (uint32_t i = first; i < l->n_files; i++)
        l->files[i].name = hd__format("%s-%05u-of-%05u.safetensors", group, i - first + 1, l->n_files - first);
}

/* Tensors of a group follow each other; each group begins a file. */
static int32_t make_files(const struct hd__ckpt_tensor *tensors, uint32_t n, uint64_t limit, struct hd__ckpt_layout *l,
                          struct hd_error *err)
{
    int32_t rc = HD_OK;
    for (uint32_t i = 0, group_file = 0; i < n && !rc;) {
        uint32_t first = i;
        uint64_t used = 0;
        while (i < n && !strcmp(tensors[i].group, tensors[first].group) &&
               file_has_room(tensors, first, i, used, limit)) {
            used += hd__ckpt_tensor_numel(&tensors[i]) * hd_dtype_size(tensors[i].dtype);
            i++;
        }
        rc = make_file(tensors, first, i, l, err);
        if (!rc && (i == n || strcmp(tensors[i].group, tensors[first].group))) {
            name_files(l, group_file, tensors[first].group);
            group_file = l->n_files;
        }
    }
    return rc;
}

static int by_key(const void *a, const void *b, void *tensors)
{
    const struct hd__ckpt_tensor *t = tensors;
    return hd__ckpt_compare_tensors(&t[*(const uint32_t *)a], &t[*(const uint32_t *)b]);
}

static int32_t check_tensors(const struct hd__ckpt_tensor *t, uint32_t n, struct hd_error *err)
{
    uint32_t *sorted = hd__alloc(n * sizeof *sorted);
    int32_t rc = HD_OK;
    for (uint32_t i = 0; i < n && !rc; i++) {
        sorted[i] = i;
        uint64_t count = hd__ckpt_tensor_numel(&t[i]), size = hd_dtype_size(t[i].dtype);
        if (!size || t[i].ndim > HD_MAX_DIMS || count > INT64_MAX / 8)
            rc = hd_fail(err, HD_E_INVALID, "checkpoint: tensor %s: dtype %u and %u dims cannot be stored", t[i].name,
                         t[i].dtype, t[i].ndim);
        else if (!*t[i].group || strpbrk(t[i].group, "/.") || strlen(t[i].group) > 100)
            rc = hd_fail(err, HD_E_INVALID, "checkpoint: '%s' is no name for a group of tensors", t[i].group);
    }
    if (!rc && n)
        qsort_r(sorted, n, sizeof *sorted, by_key, (void *)t);
    for (uint32_t i = 1; i < n && !rc; i++)
        if (!hd__ckpt_compare_tensors(&t[sorted[i - 1]], &t[sorted[i]]))
            rc = hd_fail(err, HD_E_INVALID, "checkpoint: tensor %s is twice in group %s", t[sorted[i]].name,
                         t[sorted[i]].group);
    free(sorted);
    return rc;
}

int32_t hd__ckpt_layout_make(const struct hd__ckpt_tensor *tensors, uint32_t n, uint64_t file_bytes,
                             struct hd__ckpt_layout *layout, struct hd_error *err)
{
    struct hd__ckpt_layout l = {.n_locations = n};
    int32_t rc = check_tensors(tensors, n, err);
    if (rc)
        return rc;
    l.files = hd__alloc((n + 1) * sizeof *l.files);
    l.locations = hd__alloc((n + 1) * sizeof *l.locations);
    rc = make_files(tensors, n, file_bytes ? file_bytes : UINT64_C(2) << 30, &l, err);
    if (rc) {
        hd__ckpt_layout_free(&l);
        return rc;
    }
    hd__ckpt_layout_number_blocks(&l);
    *layout = l;
    return HD_OK;
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

void hd__ckpt_layout_free(struct hd__ckpt_layout *l)
{
    for (uint32_t i = 0; l->files && i < l->n_files + 1; i++) { /* the last one may have failed half-way */
        if (i < l->n_files)
            free(l->files[i].name);
        hd__text_free(&l->files[i].header);
    }
    free(l->files);
    free(l->locations);
    *l = (struct hd__ckpt_layout){0};
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

static int by_file_offset(const void *a, const void *b)
{
    const struct hd__ckpt_byte_range *x = a, *y = b;
    if (x->file != y->file)
        return x->file < y->file ? -1 : 1;
    return x->offset != y->offset ? (x->offset < y->offset ? -1 : 1) : 0;
}

static int by_block(const void *a, const void *b)
{
    const struct hd__ckpt_block_ref *x = a, *y = b;
    if (x->block != y->block)
        return x->block < y->block ? -1 : 1;
    return x->range != y->range ? (x->range < y->range ? -1 : 1) : 0;
}

static int32_t add_range(const struct hd__ckpt_layout *l, const struct hd__ckpt_tensor *tensors, uint32_t n_tensors,
                         const struct hd__ckpt_run *run, struct hd__ckpt_byte_ranges *p, struct hd_error *err)
{
    if (run->tensor >= n_tensors)
        return hd_fail(err, HD_E_INTERNAL, "checkpoint: a run of tensor %u of %u", run->tensor, n_tensors);
    const struct hd__ckpt_tensor *t = &tensors[run->tensor];
    const struct hd__ckpt_location *location = &l->locations[run->tensor];
    int64_t size = (int64_t)hd_dtype_size(t->dtype), count = (int64_t)location->bytes / size;
    if (run->first < 0 || run->count < 0 || run->first > count || run->count > count - run->first)
        return hd_fail(err, HD_E_INTERNAL, "checkpoint: tensor %s: a run of %ld elements at %ld of %ld", t->name,
                       (long)run->count, (long)run->first, (long)count);
    if (run->count)
        p->list[p->n++] =
            (struct hd__ckpt_byte_range){location->file, run->tensor, location->offset + (uint64_t)(run->first * size),
                                         (uint64_t)(run->count * size), run->data};
    return HD_OK;
}

/* Neighbours in the file that are neighbours in memory become one. */
static void coalesce(struct hd__ckpt_byte_ranges *p)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->n; i++) {
        struct hd__ckpt_byte_range *last = n ? &p->list[n - 1] : NULL, *next = &p->list[i];
        if (last && last->file == next->file && last->tensor == next->tensor &&
            last->offset + last->bytes == next->offset && last->data + last->bytes == next->data)
            last->bytes += next->bytes;
        else
            p->list[n++] = *next;
    }
    p->n = n;
}

static void map_blocks(const struct hd__ckpt_layout *l, struct hd__ckpt_byte_ranges *p)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < p->n; i++)
        n += (p->list[i].offset + p->list[i].bytes - 1) / HD__CKPT_BLOCK - p->list[i].offset / HD__CKPT_BLOCK + 1;
    p->refs = hd__alloc((n + 1) * sizeof *p->refs);
    p->first_ref = hd__alloc((n + 1) * sizeof *p->first_ref);
    for (uint32_t i = 0; i < p->n; i++) {
        uint64_t last = (p->list[i].offset + p->list[i].bytes - 1) / HD__CKPT_BLOCK;
        for (uint64_t b = p->list[i].offset / HD__CKPT_BLOCK; b <= last; b++)
            p->refs[p->n_refs++] = (struct hd__ckpt_block_ref){l->files[p->list[i].file].first_block + b, i, 0};
    }
    qsort(p->refs, n, sizeof *p->refs, by_block);
    for (uint64_t k = 0; k < n; k++)
        if (!k || p->refs[k].block != p->refs[k - 1].block)
            p->first_ref[p->n_blocks++] = k;
    p->first_ref[p->n_blocks] = n;
}

int32_t hd__ckpt_byte_ranges_make(const struct hd__ckpt_layout *layout, const struct hd__ckpt_tensor *tensors,
                                  uint32_t n_tensors, const struct hd__ckpt_run *runs, uint32_t n_runs, int headers,
                                  struct hd__ckpt_byte_ranges *pieces, struct hd_error *err)
{
    struct hd__ckpt_byte_ranges p = {0};
    int32_t rc = HD_OK;
    p.list = hd__alloc(((size_t)n_runs + layout->n_files + 1) * sizeof *p.list);
    for (uint32_t i = 0; i < n_runs && !rc; i++)
        rc = add_range(layout, tensors, n_tensors, &runs[i], &p, err);
    if (rc) {
        free(p.list);
        return rc;
    }
    for (uint32_t i = 0; headers && i < layout->n_files; i++)
        p.list[p.n++] =
            (struct hd__ckpt_byte_range){i, UINT32_MAX, 0, layout->files[i].header.length, layout->files[i].header.at};
    qsort(p.list, p.n, sizeof *p.list, by_file_offset);
    coalesce(&p);
    map_blocks(layout, &p);
    *pieces = p;
    return HD_OK;
}

void hd__ckpt_byte_ranges_free(struct hd__ckpt_byte_ranges *p)
{
    free(p->list);
    free(p->refs);
    free(p->first_ref);
    *p = (struct hd__ckpt_byte_ranges){0};
}

uint64_t hd__ckpt_clip_to_block(const struct hd__ckpt_byte_range *range, uint64_t begin, uint64_t bytes, uint64_t *at,
                                uint64_t *from)
{
    uint64_t low = HD__MAX(begin, range->offset), high = HD__MIN(begin + bytes, range->offset + range->bytes);
    *at = low - begin;
    *from = low - range->offset;
    return high - low;
}

/* ---- threads */

int32_t hd__ckpt_parallel_for(uint32_t threads, uint64_t count,
                              int32_t (*work)(void *user, uint64_t i, char *block, struct hd_error *err), void *user,
                              struct hd_error *err)
{
    return hd__parallel_for(threads ? threads : 2, count, HD__CKPT_BLOCK, work, user, err);
}
