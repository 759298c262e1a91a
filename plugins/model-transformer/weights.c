/* Which tensors a Hugging Face folder holds: the header of model.safetensors, or model.safetensors.index.json where the
 * weights are in several files. Only names are read here; the core reads the numbers. */
#include "internal.h"

#include <stdlib.h>

enum { LONGEST_HEADER = 100 << 20 }; /* the format's own limit */

/* Reads a safetensors header: 8 bytes of length, little-endian, then JSON. */
static int32_t read_header(FILE *file, const char *path, json_t **header, struct hd_error *err)
{
    unsigned char bytes[8];
    uint64_t length = 0;
    json_error_t where;
    if (fread(bytes, 1, 8, file) != 8)
        return hd_fail(err, HD_E_CORRUPT, "%s: shorter than a safetensors header", path);
    if (!memcmp(bytes, "version ", 8))
        return hd_fail(err, HD_E_INVALID, "%s: is a Git LFS pointer to a file, not the file: git lfs pull fetches it",
                       path);
    for (int i = 7; i >= 0; i--)
        length = length << 8 | bytes[i];
    if (length > LONGEST_HEADER)
        return hd_fail(err, HD_E_CORRUPT, "%s: not a safetensors file (its header would be %llu bytes long)", path,
                       (unsigned long long)length);
    char *text = malloc((size_t)length + 1);
    if (!text)
        return hd_fail(err, HD_E_NOMEM, "%s: no memory", path);
    int whole = fread(text, 1, (size_t)length, file) == length;
    *header = whole ? json_loadb(text, (size_t)length, 0, &where) : NULL;
    free(text);
    if (!whole)
        return hd_fail(err, HD_E_CORRUPT, "%s: the safetensors header is cut off", path);
    if (!*header)
        return hd_fail(err, HD_E_CORRUPT, "%s: bad safetensors header at byte %d: %s", path, 8 + where.position,
                       where.text);
    return HD_OK;
}

static int32_t read_index(FILE *file, const char *path, json_t **index, struct hd_error *err)
{
    json_error_t where;
    *index = json_loadf(file, 0, &where);
    if (!*index)
        return hd_fail(err, HD_E_INVALID, "%s:%d:%d: %s", path, where.line, where.column, where.text);
    return HD_OK;
}

int32_t tf_weights_have(const char *folder, const char *tensor, int *found, struct hd_error *err)
{
    char path[4096];
    json_t *root = NULL;
    FILE *file;
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    int32_t rc = tf_open_file(path, &file, err);
    int sharded = rc == HD_E_NOTFOUND;
    if (sharded) {
        snprintf(path, sizeof path, "%s/model.safetensors.index.json", folder);
        rc = tf_open_file(path, &file, err);
    }
    *found = 0;
    if (rc)
        return rc == HD_E_NOTFOUND ? HD_OK : rc;
    rc = sharded ? read_index(file, path, &root, err) : read_header(file, path, &root, err);
    fclose(file);
    if (rc)
        return rc;
    *found = json_object_get(sharded ? json_object_get(root, "weight_map") : root, tensor) != NULL;
    json_decref(root);
    return HD_OK;
}
