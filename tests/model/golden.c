#include "golden.h"

#include <check.h>
#include <jansson.h>
#include <stdlib.h>

const char *const golden_names[] = {"gpt2", "llama", "llama-tied", "qwen2", "mistral", "qwen3"};

static double number(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    ck_assert_msg(json_is_number(value), "expected.json: %s", key);
    return json_number_value(value);
}

static void numbers(const json_t *object, const char *key, double *out, int64_t count)
{
    const json_t *list = json_object_get(object, key);
    ck_assert_uint_eq(json_array_size(list), (size_t)count);
    for (int64_t i = 0; i < count; i++)
        out[i] = json_number_value(json_array_get(list, (size_t)i));
}

static void read_numbers(struct golden *g, const char *path)
{
    json_error_t where;
    json_t *root = json_load_file(path, 0, &where);
    double betas[2];
    ck_assert_msg(root != NULL, "%s: %s", path, where.text);
    g->steps = (int64_t)number(root, "steps");
    g->batch = (int64_t)number(root, "batch");
    g->seq = (int64_t)number(root, "seq");
    g->parameters = (int64_t)number(root, "parameters");
    g->lr = number(root, "lr");
    g->eps = number(root, "eps");
    g->weight_decay = number(root, "weight_decay");
    g->clip = number(root, "clip");
    numbers(root, "betas", betas, 2);
    g->beta1 = betas[0];
    g->beta2 = betas[1];
    ck_assert_int_le(g->steps, GOLDEN_STEPS);
    numbers(root, "losses", g->losses, g->steps);
    numbers(root, "grad_norms", g->grad_norms, g->steps);
    json_decref(root);
}

static struct hd__st *open_tensors(const char *folder, const char *name)
{
    char path[600];
    struct hd__st *file = NULL;
    struct hd_error err = HD_ERROR_INIT;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    ck_assert_msg(hd__st_open(path, &file, &err) == HD_OK, "%s", err.message);
    return file;
}

void golden_open(struct golden *g, const char *name)
{
    char path[600];
    *g = (struct golden){0};
    snprintf(g->folder, sizeof g->folder, GOLDEN_DIR "/%s", name);
    snprintf(path, sizeof path, "%s/expected.json", g->folder);
    read_numbers(g, path);
    g->weights = open_tensors(g->folder, "model.safetensors");
    g->expected = open_tensors(g->folder, "expected.safetensors");
}

void golden_close(struct golden *g)
{
    hd__st_close(g->weights);
    hd__st_close(g->expected);
}

static const struct hd__st_tensor *find(const struct hd__st *file, const char *name)
{
    const struct hd__st_tensor *tensor = hd__st_find(file, name);
    ck_assert_msg(tensor != NULL, "no tensor %s", name);
    return tensor;
}

int32_t *golden_tokens(const struct golden *g, const char *which, int64_t step)
{
    struct hd_error err = HD_ERROR_INIT;
    const struct hd__st_tensor *tensor = find(g->expected, which);
    uint64_t bytes = (uint64_t)(g->batch * g->seq) * sizeof(int32_t);
    int32_t *tokens = malloc(bytes);
    ck_assert_uint_eq(tensor->dtype, HD_I32);
    ck_assert_uint_eq(tensor->bytes, bytes * (uint64_t)g->steps);
    ck_assert_msg(hd__st_read(g->expected, tensor, bytes * (uint64_t)step, bytes, tokens, &err) == HD_OK,
                  "%s", err.message);
    return tokens;
}

static float *read_all(const struct hd__st *file, const struct hd__st_tensor *tensor)
{
    struct hd_error err = HD_ERROR_INIT;
    float *data = malloc(tensor->count * sizeof *data);
    ck_assert_msg(hd__st_read_f32(file, tensor, 0, tensor->count, data, &err) == HD_OK, "%s", err.message);
    return data;
}

float *golden_floats(const struct hd__st *file, const char *name, int64_t *count)
{
    const struct hd__st_tensor *tensor = find(file, name);
    if (count)
        *count = (int64_t)tensor->count;
    return read_all(file, tensor);
}

float *golden_part(const struct hd__st *file, const char *prefix, const struct hd_param_desc *param,
                   const int64_t *extents, int64_t *count)
{
    char name[256];
    snprintf(name, sizeof name, "%s%s", prefix, param->file_name);
    const struct hd__st_tensor *tensor = find(file, name);
    int64_t own[2] = {1, 1}, first[2] = {0, 0}, width = tensor->shape[tensor->ndim - 1];
    uint32_t shift = 2 - tensor->ndim; /* one-dimensional tensors are rows */
    float *whole = read_all(file, tensor), *part;
    ck_assert_uint_le(tensor->ndim, 2);
    for (size_t i = 0; param->dims[i]; i++)
        own[param->file_axes[i] - '0' + (int)shift] *= extents[i];
    first[param->part_axis + shift] = param->part * own[param->part_axis + shift];
    *count = own[0] * own[1];
    part = malloc((size_t)*count * sizeof *part);
    for (int64_t row = 0; row < own[0]; row++)
        memcpy(part + row * own[1], whole + (first[0] + row) * width + first[1],
               (size_t)own[1] * sizeof *part);
    free(whole);
    return part;
}
