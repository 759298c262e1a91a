/* index.json: written last, parsed as untrusted input. */
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>

#include "core/base/dtype.h"
#include "service/checkpoint/internal.h"
#include "service/checkpoint/safetensors.h"

#define FORMAT "heddle checkpoint 1"
#define HEX "%016" PRIx64 /* a checksum */

/* Its own checksum is that of the object without it, as text with sorted keys and no spaces: reformatting keeps it
 * valid, any other change does not. */
enum { CANONICAL = JSON_COMPACT | JSON_SORT_KEYS };

static bool parse_hex(const json_t *value, uint64_t *hash)
{
    const char *text = json_string_value(value);
    char *end;
    if (!text || strlen(text) != 16 || strspn(text, "0123456789abcdef") != 16)
        return false;
    *hash = strtoull(text, &end, 16);
    return true;
}

/* ---- writing */

char *hd__ckpt_index_text(const struct hd__ckpt_save *save, const struct hd__ckpt_layout *l, const uint64_t *hashes)
{
    json_t *files = json_array(), *tensors = json_array();
    for (uint32_t i = 0; i < l->n_files; i++) {
        json_t *sums = json_array();
        for (uint64_t b = 0; b < l->files[i].n_blocks; b++)
            json_array_append_new(sums, json_sprintf(HEX, hashes[l->files[i].first_block + b]));
        json_array_append_new(files, json_pack("{s:s, s:I, s:o}", "name", l->files[i].name, "bytes",
                                               (json_int_t)l->files[i].bytes, "xxh3", sums));
    }
    for (uint32_t i = 0; i < save->n_tensors; i++) {
        const struct hd__ckpt_tensor *t = &save->tensors[i];
        json_t *shape = json_array();
        for (uint32_t d = 0; d < t->ndim; d++)
            json_array_append_new(shape, json_integer(t->shape[d]));
        json_array_append_new(tensors,
                              json_pack("{s:s, s:s, s:s, s:o, s:i, s:I}", "group", t->group, "name", t->name, "dtype",
                                        hd__dtype(t->dtype)->safetensors, "shape", shape, "file",
                                        (int)l->locations[i].file, "offset", (json_int_t)l->locations[i].offset));
    }
    json_t *root = json_pack("{s:s, s:s, s:s, s:I, s:I, s:o, s:o, s:o}", "format", FORMAT, "heddle",
                             save->version ? save->version : "", "run", save->run ? save->run : "", "step",
                             (json_int_t)save->step, "block_bytes", (json_int_t)HD__CKPT_BLOCK, "files", files,
                             "tensors", tensors, "state", save->state ? json_deep_copy(save->state) : json_object());
    char *text = root ? json_dumps(root, CANONICAL) : NULL;
    if (text) {
        json_object_set_new(root, "checksum", json_sprintf(HEX, hd__hash(text, strlen(text), 0)));
        free(text);
        text = json_dumps(root, JSON_INDENT(1));
    }
    json_decref(root);
    return text;
}

/* ---- parsing */

static int32_t corrupt(const struct hd__ckpt *c, struct hd_error *err, const char *what, const char *which)
{
    return hd_fail(err, HD_E_CORRUPT, "checkpoint %s: index.json: %s%s%s", c->name, what, *which ? " " : "", which);
}

static int32_t check_sum(struct hd__ckpt *c, struct hd_error *err)
{
    uint64_t stored;
    if (!parse_hex(json_object_get(c->json, "checksum"), &stored))
        return corrupt(c, err, "has no checksum", "");
    json_object_del(c->json, "checksum");
    char *text = json_dumps(c->json, CANONICAL);
    uint64_t computed = text ? hd__hash(text, strlen(text), 0) : ~stored;
    free(text);
    return computed == stored ? HD_OK : corrupt(c, err, "its checksum differs: it was changed", "");
}

static bool parse_u64(const json_t *value, uint64_t most, uint64_t *out)
{
    if (!json_is_integer(value) || json_integer_value(value) < 0 || (uint64_t)json_integer_value(value) > most)
        return false;
    *out = (uint64_t)json_integer_value(value);
    return true;
}

static int32_t parse_file(struct hd__ckpt *c, const json_t *entry, struct hd__ckpt_file *f, struct hd_error *err)
{
    const char *name = json_string_value(json_object_get(entry, "name"));
    const json_t *sums = json_object_get(entry, "xxh3");
    if (!name || !*name || name[0] == '.' || strchr(name, '/'))
        return corrupt(c, err, "a file without a valid name", "");
    if (!parse_u64(json_object_get(entry, "bytes"), INT64_MAX / 2, &f->bytes))
        return corrupt(c, err, "a wrong size of file", name);
    if (json_array_size(sums) != (f->bytes + HD__CKPT_BLOCK - 1) / HD__CKPT_BLOCK)
        return corrupt(c, err, "a wrong number of checksums of file", name);
    f->name = hd__arena_strdup(&c->arena, name);
    return HD_OK;
}

static int32_t parse_files(struct hd__ckpt *c, struct hd_error *err)
{
    const json_t *files = json_object_get(c->json, "files");
    size_t n = json_array_size(files), b = 0;
    if (!json_is_array(files) || n > UINT32_MAX / 2)
        return corrupt(c, err, "has no list of files", "");
    c->layout.files = hd__arena_alloc(&c->arena, n * sizeof *c->layout.files);
    for (size_t i = 0; i < n; i++) {
        int32_t rc = parse_file(c, json_array_get(files, i), &c->layout.files[i], err);
        if (rc)
            return rc;
        c->layout.n_files++;
    }
    hd__ckpt_layout_number_blocks(&c->layout);
    c->hashes = hd__arena_alloc(&c->arena, c->layout.n_blocks * sizeof *c->hashes);
    for (size_t i = 0; i < n; i++) {
        const json_t *sums = json_object_get(json_array_get(files, i), "xxh3");
        for (size_t k = 0; k < json_array_size(sums); k++)
            if (!parse_hex(json_array_get(sums, k), &c->hashes[b++]))
                return corrupt(c, err, "malformed checksum of file", c->layout.files[i].name);
    }
    return HD_OK;
}

static bool parse_shape(const json_t *shape, struct hd__ckpt_tensor *t)
{
    uint64_t dim = 0;
    size_t n = json_array_size(shape);
    if (!json_is_array(shape) || n > HD_MAX_DIMS)
        return false;
    t->ndim = (uint32_t)n;
    for (size_t d = 0; d < n; d++) {
        if (!parse_u64(json_array_get(shape, d), INT64_MAX, &dim))
            return false;
        t->shape[d] = (int64_t)dim;
    }
    return hd__ckpt_tensor_numel(t) <= INT64_MAX / 8;
}

static int32_t parse_tensor(struct hd__ckpt *c, const json_t *entry, uint32_t i, struct hd_error *err)
{
    struct hd__ckpt_tensor *t = &c->tensors[i];
    struct hd__ckpt_location *p = &c->layout.locations[i];
    const char *name = json_string_value(json_object_get(entry, "name"));
    const char *group = json_string_value(json_object_get(entry, "group"));
    uint64_t file = 0;
    if (!name || !group)
        return corrupt(c, err, "a tensor without name or group", "");
    t->name = hd__arena_strdup(&c->arena, name);
    t->group = hd__arena_strdup(&c->arena, group);
    t->dtype = hd__ckpt_st_dtype(json_string_value(json_object_get(entry, "dtype")));
    if (!t->dtype || !parse_shape(json_object_get(entry, "shape"), t))
        return corrupt(c, err, "unusable dtype or shape of tensor", name);
    p->bytes = hd__ckpt_tensor_numel(t) * hd_dtype_size(t->dtype);
    if (!c->layout.n_files || !parse_u64(json_object_get(entry, "file"), c->layout.n_files - 1, &file) ||
        !parse_u64(json_object_get(entry, "offset"), c->layout.files[file].bytes, &p->offset) ||
        p->bytes > c->layout.files[file].bytes - p->offset)
        return corrupt(c, err, "exceeds its file: tensor", name);
    p->file = (uint32_t)file;
    return HD_OK;
}

struct placed_tensor {
    const struct hd__ckpt_location *at;
    const char *name;
};

static int by_location(const void *a, const void *b)
{
    const struct hd__ckpt_location *x = ((const struct placed_tensor *)a)->at,
                                   *y = ((const struct placed_tensor *)b)->at;
    if (x->file != y->file)
        return x->file < y->file ? -1 : 1;
    return x->offset != y->offset ? (x->offset < y->offset ? -1 : 1) : (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

/* A byte of a file belongs to one tensor. */
static int32_t check_overlap(const struct hd__ckpt *c, struct hd_error *err)
{
    struct placed_tensor *all = hd__alloc((c->n_tensors + 1) * sizeof *all);
    int32_t rc = HD_OK;
    for (uint32_t i = 0; i < c->n_tensors; i++)
        all[i] = (struct placed_tensor){&c->layout.locations[i], c->tensors[i].name};
    qsort(all, c->n_tensors, sizeof *all, by_location);
    for (uint32_t i = 1; i < c->n_tensors && !rc; i++)
        if (all[i].at->file == all[i - 1].at->file && all[i].at->offset < all[i - 1].at->offset + all[i - 1].at->bytes)
            rc = hd_fail(err, HD_E_CORRUPT, "checkpoint %s: index.json: tensors %s and %s overlap in %s", c->name,
                         all[i - 1].name, all[i].name, c->layout.files[all[i].at->file].name);
    free(all);
    return rc;
}

static int32_t parse_tensors(struct hd__ckpt *c, struct hd_error *err)
{
    const json_t *tensors = json_object_get(c->json, "tensors");
    size_t n = json_array_size(tensors);
    if (!json_is_array(tensors) || n > UINT32_MAX / 2)
        return corrupt(c, err, "has no list of tensors", "");
    c->tensors = hd__arena_alloc(&c->arena, n * sizeof *c->tensors);
    c->sorted = hd__arena_alloc(&c->arena, n * sizeof *c->sorted);
    c->layout.locations = hd__arena_alloc(&c->arena, n * sizeof *c->layout.locations);
    for (size_t i = 0; i < n; i++) {
        int32_t rc = parse_tensor(c, json_array_get(tensors, i), (uint32_t)i, err);
        if (rc)
            return rc;
        c->sorted[i] = &c->tensors[i];
    }
    c->n_tensors = (uint32_t)n;
    if (n)
        qsort(c->sorted, n, sizeof *c->sorted, hd__ckpt_by_name);
    for (size_t i = 1; i < n; i++)
        if (!hd__ckpt_by_name(&c->sorted[i - 1], &c->sorted[i]))
            return corrupt(c, err, "has a duplicate tensor", c->sorted[i]->name);
    return check_overlap(c, err);
}

int32_t hd__ckpt_index_parse(struct hd__ckpt *c, const char *text, size_t bytes, struct hd_error *err)
{
    json_error_t why;
    uint64_t block = 0;
    c->json = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &why);
    if (!c->json)
        return hd_fail(err, HD_E_CORRUPT, "checkpoint %s: index.json:%d:%d: %s", c->name, why.line, why.column,
                       why.text);
    const char *format = json_string_value(json_object_get(c->json, "format"));
    if (!format)
        return corrupt(c, err, "says no format: it is empty, or was cut off", "");
    if (strcmp(format, FORMAT))
        return hd_fail(err, HD_E_UNSUPPORTED, "checkpoint %s: index.json: format '%.40s'; known is '" FORMAT "'",
                       c->name, format);
    int32_t rc = check_sum(c, err);
    if (!rc && (!parse_u64(json_object_get(c->json, "step"), INT64_MAX, &c->step) ||
                !parse_u64(json_object_get(c->json, "block_bytes"), INT64_MAX, &block) || block != HD__CKPT_BLOCK))
        rc = corrupt(c, err, "step or block_bytes is unusable", "");
    if (!rc)
        rc = parse_files(c, err);
    return rc ? rc : parse_tensors(c, err);
}

int64_t hd__ckpt_find_tensor(const struct hd__ckpt *c, const char *group, const char *name)
{
    const struct hd__ckpt_tensor key = {.group = group, .name = name}, *wanted = &key;
    const struct hd__ckpt_tensor **found =
        c->n_tensors ? bsearch(&wanted, c->sorted, c->n_tensors, sizeof *c->sorted, hd__ckpt_by_name) : NULL;
    return found ? *found - c->tensors : -1;
}
