/* Reading safetensors: one file, or several with an index. */
#include "core/base/dtype.h"
#include "heddle/file.h"
#include "service/checkpoint/safetensors.h"

#include <errno.h>
#include <glob.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdlib.h>
#include <unistd.h>

/* The limit of the reference implementation. */
#define HEADER_MAX (UINT64_C(100) << 20)
#define INDEX_MAX (UINT64_C(256) << 20)

struct st_file {
    const char *path, *name;
    int fd;
    uint64_t data, data_bytes; /* range of the tensors' bytes */
};

struct hd__ckpt_st {
    struct hd__arena arena;
    const char *path;
    HD__ARRAY(struct st_file) files;
    HD__ARRAY(struct hd__ckpt_st_tensor) tensors;
    const char *twice; /* of a tensor in another file than that of the index, in words */
};

/* Heddle does not compute with them. */
static const struct {
    const char *name;
    uint32_t bytes;
} other_dtypes[] = {{"I64", 8},  {"U64", 8},     {"U32", 4},     {"I16", 2},     {"U16", 2}, {"I8", 1},
                    {"BOOL", 1}, {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"F8_E8M0", 1}, {"C64", 8}};

uint32_t hd__ckpt_st_dtype(const char *name)
{
    for (uint32_t d = 1; name && d < HD__DTYPE_COUNT; d++)
        if (!strcmp(name, hd__dtype(d)->safetensors))
            return d;
    return 0;
}

/* ---- one header */

/* shape -> count; false for a negative dim, too many dims, or an overflow. */
static bool parse_shape(const json_t *shape, struct hd__ckpt_st_tensor *t)
{
    size_t n = json_array_size(shape);
    if (!json_is_array(shape) || n > HD_MAX_DIMS)
        return false;
    t->ndim = (uint32_t)n;
    t->count = 1;
    for (size_t i = 0; i < n; i++) {
        json_t *dim = json_array_get(shape, i);
        t->shape[i] = json_integer_value(dim);
        if (!json_is_integer(dim) || t->shape[i] < 0 ||
            __builtin_mul_overflow(t->count, (uint64_t)t->shape[i], &t->count))
            return false;
    }
    return true;
}

static int32_t parse_dtype(const char *file, const json_t *dtype, struct hd__ckpt_st_tensor *t, uint32_t *size,
                           struct hd_error *err)
{
    const char *name = json_string_value(dtype);
    t->dtype = hd__ckpt_st_dtype(name);
    t->dtype_name = hd__dtype(t->dtype)->safetensors;
    *size = (uint32_t)hd_dtype_size(t->dtype);
    for (size_t i = 0; name && !*size && i < HD__COUNT(other_dtypes); i++) {
        if (!strcmp(name, other_dtypes[i].name)) {
            t->dtype_name = other_dtypes[i].name;
            *size = other_dtypes[i].bytes;
        }
    }
    if (*size)
        return HD_OK;
    return hd_fail(err, HD_E_UNSUPPORTED, "%s: tensor %s: unknown dtype %.32s", file, t->name,
                   name ? name : "(not a string)");
}

static int32_t parse_tensor(const char *file, const json_t *entry, uint64_t data_bytes, struct hd__ckpt_st_tensor *t,
                            struct hd_error *err)
{
    json_t *span = json_object_get(entry, "data_offsets");
    json_t *from = json_array_get(span, 0), *to = json_array_get(span, 1);
    uint32_t size = 0;
    int32_t rc = parse_dtype(file, json_object_get(entry, "dtype"), t, &size, err);
    if (rc)
        return rc;
    if (!parse_shape(json_object_get(entry, "shape"), t) || __builtin_mul_overflow(t->count, size, &t->bytes))
        return hd_fail(err, HD_E_CORRUPT, "%s: tensor %s: its shape is not a list of at most %d sizes, or too large",
                       file, t->name, HD_MAX_DIMS);
    if (json_array_size(span) != 2 || !json_is_integer(from) || !json_is_integer(to) || json_integer_value(from) < 0 ||
        json_integer_value(to) < json_integer_value(from))
        return hd_fail(err, HD_E_CORRUPT, "%s: tensor %s: data_offsets are not [begin, end]", file, t->name);
    uint64_t begin = (uint64_t)json_integer_value(from), end = (uint64_t)json_integer_value(to);
    if (end > data_bytes)
        return hd_fail(err, HD_E_CORRUPT, "%s: tensor %s: ends at byte %lu of %lu: the file is truncated", file,
                       t->name, (unsigned long)end, (unsigned long)data_bytes);
    if (end - begin != t->bytes)
        return hd_fail(err, HD_E_CORRUPT, "%s: tensor %s: %s of its shape takes %lu bytes, data_offsets give %lu", file,
                       t->name, t->dtype_name, (unsigned long)t->bytes, (unsigned long)(end - begin));
    t->offset = begin;
    return HD_OK;
}

static int by_offset(const void *a, const void *b)
{
    const struct hd__ckpt_st_tensor *x = a, *y = b;
    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    return x->bytes != y->bytes ? (x->bytes < y->bytes ? -1 : 1) : strcmp(x->name, y->name);
}

/* Every byte belongs to exactly one tensor. */
static int32_t check_cover(const char *file, struct hd__ckpt_st_tensor *t, size_t n, uint64_t data_bytes,
                           struct hd_error *err)
{
    uint64_t at = 0;
    qsort(t, n, sizeof *t, by_offset);
    for (size_t i = 0; i < n; at = t[i].offset + t[i].bytes, i++) {
        if (t[i].offset < at)
            return hd_fail(err, HD_E_CORRUPT, "%s: tensors %s and %s overlap", file, t[i - 1].name, t[i].name);
        if (t[i].offset > at)
            return hd_fail(err, HD_E_CORRUPT, "%s: tensor %s: bytes %lu to %lu before it belong to no tensor", file,
                           t[i].name, (unsigned long)at, (unsigned long)t[i].offset);
    }
    if (at != data_bytes)
        return hd_fail(err, HD_E_CORRUPT, "%s: %lu bytes after the last tensor", file,
                       (unsigned long)(data_bytes - at));
    return HD_OK;
}

static int32_t parse_tensors(const char *file, json_t *root, uint64_t data_bytes, struct hd__ckpt_st_tensor *tensors,
                             size_t *n, struct hd_error *err)
{
    const char *key;
    json_t *entry;
    json_object_foreach(root, key, entry)
    {
        if (!strcmp(key, "__metadata__"))
            continue;
        struct hd__ckpt_st_tensor *t = &tensors[(*n)++];
        t->name = key;
        if (!json_is_object(entry))
            return hd_fail(err, HD_E_CORRUPT, "%s: tensor %s: is not described by an object", file, key);
        int32_t rc = parse_tensor(file, entry, data_bytes, t, err);
        if (rc)
            return rc;
    }
    return check_cover(file, tensors, *n, data_bytes, err);
}

int32_t hd__ckpt_st_parse(const char *file, const char *header, size_t header_bytes, uint64_t data_bytes,
                          void (*visit)(void *user, const struct hd__ckpt_st_tensor *tensor), void *user,
                          struct hd_error *err)
{
    json_error_t why;
    size_t n = 0;
    json_t *root = json_loadb(header, header_bytes, JSON_REJECT_DUPLICATES, &why);
    if (!root)
        return hd_fail(err, HD_E_CORRUPT, "%s: header, byte %d: %s", file, why.position, why.text);
    if (!json_is_object(root)) {
        json_decref(root);
        return hd_fail(err, HD_E_CORRUPT, "%s: the header is not a JSON object", file);
    }
    struct hd__ckpt_st_tensor *tensors = hd__alloc((json_object_size(root) + 1) * sizeof *tensors);
    int32_t rc = parse_tensors(file, root, data_bytes, tensors, &n, err);
    for (size_t i = 0; i < n && !rc && visit; i++)
        visit(user, &tensors[i]);
    free(tensors);
    json_decref(root);
    return rc;
}

/* ---- files */

static int32_t read_at(int fd, const char *path, uint64_t at, void *out, uint64_t bytes, struct hd_error *err)
{
    char *p = out;
    while (bytes) {
        ssize_t n = pread(fd, p, HD__MIN(bytes, UINT64_C(1) << 30), (off_t)at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return hd_fail(err, HD_E_IO, "%s: reading at byte %lu: %s", path, (unsigned long)at, strerror(errno));
        if (!n)
            return hd_fail(err, HD_E_CORRUPT, "%s: ends at byte %lu, earlier than its header says", path,
                           (unsigned long)at);
        p += n;
        at += (uint64_t)n;
        bytes -= (uint64_t)n;
    }
    return HD_OK;
}

/* The tensors of one file: all of them, or those that the index assigns to it. */
struct tensor_filter {
    struct hd__ckpt_st *st;
    const json_t *map; /* NULL: all */
    uint32_t file;
};

static void filter_tensor(void *user, const struct hd__ckpt_st_tensor *tensor)
{
    struct tensor_filter *c = user;
    struct hd__ckpt_st_tensor t = *tensor;
    const struct st_file *f = &c->st->files.at[c->file];
    if (c->map) {
        const char *file = json_string_value(json_object_get(c->map, t.name));
        if (file && strcmp(file, f->name) && !c->st->twice)
            c->st->twice = hd__arena_format(&c->st->arena, "tensor %s: is in %s, too", t.name, f->name);
        if (!file || strcmp(file, f->name))
            return;
    }
    t.name = hd__arena_strdup(&c->st->arena, t.name);
    t.file = c->file;
    t.offset += f->data;
    hd__push(&c->st->tensors, t);
}

static int32_t read_header(struct hd__ckpt_st *st, uint32_t file, const json_t *map, uint64_t bytes,
                           struct hd_error *err)
{
    struct st_file *f = &st->files.at[file];
    struct tensor_filter tensor_filter = {st, map, file};
    uint64_t length = 0;
    if (bytes < 8)
        return hd_fail(err, HD_E_CORRUPT, "%s: %lu bytes are too few for a safetensors file", f->path,
                       (unsigned long)bytes);
    int32_t rc = read_at(f->fd, f->path, 0, &length, 8, err);
    if (rc)
        return rc;
    if (!memcmp(&length, "version ", 8))
        return hd_fail(err, HD_E_INVALID, "%s: is a Git LFS pointer to a file, not the file: git lfs pull fetches it",
                       f->path);
    if (length > bytes - 8 || length > HEADER_MAX)
        return hd_fail(err, HD_E_CORRUPT,
                       "%s: a header of %lu bytes in a file of %lu: truncated, or not a safetensors file", f->path,
                       (unsigned long)length, (unsigned long)bytes);
    char *header = hd__alloc(length);
    f->data = 8 + length;
    f->data_bytes = bytes - f->data;
    rc = read_at(f->fd, f->path, 8, header, length, err);
    if (!rc)
        rc = hd__ckpt_st_parse(f->path, header, length, f->data_bytes, filter_tensor, &tensor_filter, err);
    free(header);
    return rc;
}

static int32_t add_file(struct hd__ckpt_st *st, const char *path, const json_t *map, struct hd_error *err)
{
    struct st_file f = {.path = hd__arena_strdup(&st->arena, path)};
    uint64_t bytes;
    const char *slash = strrchr(f.path, '/');
    f.name = slash ? slash + 1 : f.path;
    int32_t rc = hd_open_regular(path, &f.fd, &bytes, err);
    if (rc)
        return rc;
    hd__push(&st->files, f);
    return read_header(st, st->files.count - 1, map, bytes, err);
}

/* ---- an index and its files */

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct hd__ckpt_st_tensor *)a)->name, ((const struct hd__ckpt_st_tensor *)b)->name);
}

static void sort_tensors(struct hd__ckpt_st *st)
{
    hd__sort(&st->tensors, by_name);
}

static int32_t load_map(struct hd__ckpt_st *st, const char *path, const json_t *map, struct hd_error *err)
{
    const char *tensor, *slash = strrchr(path, '/');
    json_t *entry;
    int folder = slash ? (int)(slash - path) + 1 : 0;
    json_object_foreach((json_t *)map, tensor, entry)
    {
        const char *name = json_string_value(entry);
        if (!name || !*name || strchr(name, '/') || name[0] == '.')
            return hd_fail(err, HD_E_CORRUPT, "%s: tensor %s: not the name of a file in the same folder", path, tensor);
        uint32_t known = 0;
        while (known < st->files.count && strcmp(st->files.at[known].name, name))
            known++;
        if (known < st->files.count)
            continue;
        char *full = hd__format("%.*s%s", folder, path, name);
        int32_t rc = add_file(st, full, map, err);
        free(full);
        if (rc == HD_E_NOTFOUND)
            return hd_fail(err, rc, "%s names %s, which is not there: fetch it as well", path, name);
        if (rc)
            return rc;
    }
    sort_tensors(st);
    json_object_foreach((json_t *)map, tensor, entry) if (!hd__ckpt_st_find(st, tensor)) return hd_fail(
        err, HD_E_CORRUPT, "%s: tensor %s: is not in %s", path, tensor, json_string_value(entry));
    if (st->twice)
        return hd_fail(err, HD_E_CORRUPT, "%s: %s: files of two models? Fetch all of one", path, st->twice);
    return HD_OK;
}

static int32_t read_index(const char *path, json_t **root, struct hd_error *err)
{
    uint64_t bytes;
    int fd;
    json_error_t why;
    int32_t rc = hd_open_regular(path, &fd, &bytes, err);
    if (rc)
        return rc;
    if (bytes > INDEX_MAX) {
        close(fd);
        return hd_fail(err, HD_E_CORRUPT, "%s: %lu bytes are too many for an index", path, (unsigned long)bytes);
    }
    char *text = hd__alloc(bytes);
    rc = read_at(fd, path, 0, text, bytes, err);
    close(fd);
    *root = rc ? NULL : json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &why);
    free(text);
    if (!rc && !*root)
        rc = hd_fail(err, HD_E_CORRUPT, "%s:%d:%d: %s", path, why.line, why.column, why.text);
    else if (!rc && !json_is_object(json_object_get(*root, "weight_map")))
        rc = hd_fail(err, HD_E_CORRUPT, "%s: has no weight_map", path);
    return rc;
}

static int32_t add_index(struct hd__ckpt_st *st, const char *path, struct hd_error *err)
{
    json_t *root = NULL;
    int32_t rc = read_index(path, &root, err);
    if (!rc)
        rc = load_map(st, path, json_object_get(root, "weight_map"), err);
    json_decref(root);
    return rc;
}

/* An index beside model.safetensors may be of that file alone, as MLX writes it. */
static int32_t check_index_beside(const char *folder, const char *path, struct hd_error *err)
{
    json_t *root = NULL, *entry;
    const char *tensor, *name;
    int32_t rc = read_index(path, &root, err);
    json_object_foreach(rc ? NULL : json_object_get(root, "weight_map"), tensor, entry)
    {
        name = json_string_value(entry);
        if (rc || (name && !strcmp(name, "model.safetensors")))
            continue;
        rc = hd_fail(err, HD_E_INVALID,
                     "%s: holds model.safetensors, and model.safetensors.index.json, by which tensor %s is in %s: two "
                     "models? transformers takes model.safetensors; move what is not the model out of the folder",
                     folder, tensor, name ? name : "no file");
    }
    json_decref(root);
    return rc;
}

/* A folder whose weights have other names: a shard without the index, a variant. */
static int32_t fail_unnamed(const char *folder, struct hd_error *err)
{
    char *pattern = hd__format("%s/*.safetensors", folder), *pickled = hd__format("%s/pytorch_model.bin*", folder);
    glob_t found = {0}, old = {0};
    int there = !glob(pattern, 0, NULL, &found), was = !glob(pickled, 0, NULL, &old);
    const char *name = there ? strrchr(found.gl_pathv[0], '/') + 1 : "";
    int32_t rc =
        hd_fail(err, HD_E_NOTFOUND, "%s: holds neither model.safetensors nor model.safetensors.index.json%s%s%s",
                folder, there ? "; it has " : "", name,
                !strncmp(name, "adapter_", 8)
                    ? ", a LoRA adapter: merge it into its base model first (merge_and_unload of peft, then "
                      "save_pretrained)"
                : there ? ": fetch the index as well, where it is a part of several files, or call it model.safetensors"
                : was   ? "; pytorch_model.bin is not read: load and save the model with transformers, whose "
                          "save_pretrained writes safetensors"
                        : ": fetch them; to begin with random weights say the model's sizes in place of from");
    globfree(&found);
    globfree(&old);
    free(pattern);
    free(pickled);
    return rc;
}

int32_t hd__ckpt_st_open(const char *path, struct hd__ckpt_st **out, struct hd_error *err)
{
    struct stat info;
    struct hd__ckpt_st *st = hd__alloc(sizeof *st);
    size_t n = strlen(path);
    int32_t rc;
    st->path = hd__arena_strdup(&st->arena, path);
    if (!stat(path, &info) && S_ISDIR(info.st_mode)) {
        const char *file = hd__arena_format(&st->arena, "%s/model.safetensors", path);
        const char *index = hd__arena_format(&st->arena, "%s/model.safetensors.index.json", path);
        if (!access(file, F_OK)) {
            rc = access(index, F_OK) ? HD_OK : check_index_beside(path, index, err);
            if (!rc)
                rc = add_file(st, file, NULL, err);
        } else if (!access(index, F_OK))
            rc = add_index(st, index, err);
        else
            rc = fail_unnamed(path, err);
    } else if (n > 5 && !strcmp(path + n - 5, ".json"))
        rc = add_index(st, path, err);
    else
        rc = add_file(st, path, NULL, err);
    if (rc) {
        hd__ckpt_st_close(st);
        return rc;
    }
    sort_tensors(st);
    *out = st;
    return HD_OK;
}

void hd__ckpt_st_close(struct hd__ckpt_st *st)
{
    if (!st)
        return;
    for (uint32_t i = 0; i < st->files.count; i++)
        close(st->files.at[i].fd);
    hd__free_array(&st->files);
    hd__free_array(&st->tensors);
    hd__arena_free(&st->arena);
    free(st);
}

/* ---- asking */

uint32_t hd__ckpt_st_count(const struct hd__ckpt_st *st)
{
    return st->tensors.count;
}

const struct hd__ckpt_st_tensor *hd__ckpt_st_tensor_at(const struct hd__ckpt_st *st, uint32_t i)
{
    return &st->tensors.at[i];
}

const struct hd__ckpt_st_tensor *hd__ckpt_st_find(const struct hd__ckpt_st *st, const char *name)
{
    const struct hd__ckpt_st_tensor key = {.name = name};
    return st->tensors.count ? bsearch(&key, st->tensors.at, st->tensors.count, sizeof key, by_name) : NULL;
}

const char *hd__ckpt_st_file_name(const struct hd__ckpt_st *st, uint32_t file)
{
    return st->files.at[file].path;
}

int32_t hd__ckpt_st_read(const struct hd__ckpt_st *st, const struct hd__ckpt_st_tensor *t, uint64_t first,
                         uint64_t bytes, void *out, struct hd_error *err)
{
    const struct st_file *f = &st->files.at[t->file];
    if (first > t->bytes || bytes > t->bytes - first)
        return hd_fail(err, HD_E_INTERNAL, "%s: tensor %s: bytes %lu + %lu of %lu", f->path, t->name,
                       (unsigned long)first, (unsigned long)bytes, (unsigned long)t->bytes);
    return read_at(f->fd, f->path, t->offset + first, out, bytes, err);
}

int32_t hd__ckpt_st_read_f32(const struct hd__ckpt_st *st, const struct hd__ckpt_st_tensor *t, uint64_t first,
                             uint64_t count, float *out, struct hd_error *err)
{
    char chunk[65536];
    uint64_t size = hd_dtype_size(t->dtype);
    if (!hd__is_float(t->dtype))
        return hd_fail(err, HD_E_UNSUPPORTED,
                       "%s: tensor %s: %s is not supported for weights; convert it to F32 or BF16",
                       hd__ckpt_st_file_name(st, t->file), t->name, t->dtype_name);
    if (t->dtype == HD_F32)
        return hd__ckpt_st_read(st, t, first * size, count * size, out, err);
    while (count) {
        uint64_t n = HD__MIN(count, sizeof chunk / size);
        int32_t rc = hd__ckpt_st_read(st, t, first * size, n * size, chunk, err);
        if (rc)
            return rc;
        hd__to_f32(t->dtype, chunk, out, n);
        out += n;
        first += n;
        count -= n;
    }
    return HD_OK;
}
