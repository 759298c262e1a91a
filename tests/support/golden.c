#include "tests/support/golden.h"

#include <check.h>
#include <jansson.h>
#include <stdlib.h>

const char *const golden_names[] = {"gpt2",    "llama", "llama-tied", "qwen2",
                                    "mistral", "qwen3", "mixtral",    "mixtral-aux"};

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

static struct hd__ckpt_st *open_tensors(const char *folder, const char *name)
{
    char path[600];
    struct hd__ckpt_st *file = NULL;
    struct hd_error err = HD_ERROR_INIT;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    ck_assert_msg(hd__ckpt_st_open(path, &file, &err) == HD_OK, "%s", err.message);
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
    hd__ckpt_st_close(g->weights);
    hd__ckpt_st_close(g->expected);
}

static const struct hd__ckpt_st_tensor *find(const struct hd__ckpt_st *file, const char *name)
{
    const struct hd__ckpt_st_tensor *tensor = hd__ckpt_st_find(file, name);
    ck_assert_msg(tensor != NULL, "no tensor %s", name);
    return tensor;
}

int32_t *golden_tokens(const struct golden *g, const char *which, int64_t step)
{
    struct hd_error err = HD_ERROR_INIT;
    const struct hd__ckpt_st_tensor *tensor = find(g->expected, which);
    uint64_t bytes = (uint64_t)(g->batch * g->seq) * sizeof(int32_t);
    int32_t *tokens = malloc(bytes);
    ck_assert_uint_eq(tensor->dtype, HD_I32);
    ck_assert_uint_eq(tensor->bytes, bytes * (uint64_t)g->steps);
    ck_assert_msg(hd__ckpt_st_read(g->expected, tensor, bytes * (uint64_t)step, bytes, tokens, &err) == HD_OK, "%s",
                  err.message);
    return tokens;
}

static float *read_all(const struct hd__ckpt_st *file, const struct hd__ckpt_st_tensor *tensor)
{
    struct hd_error err = HD_ERROR_INIT;
    float *data = malloc(tensor->count * sizeof *data);
    ck_assert_msg(hd__ckpt_st_read_f32(file, tensor, 0, tensor->count, data, &err) == HD_OK, "%s", err.message);
    return data;
}

float *golden_floats(const struct hd__ckpt_st *file, const char *name, int64_t *count)
{
    const struct hd__ckpt_st_tensor *tensor = find(file, name);
    if (count)
        *count = (int64_t)tensor->count;
    return read_all(file, tensor);
}

/* One tensor of the file, or the part of it that belongs to the parameter: of every `width` elements `own`. */
static void copy_part(const struct hd__ckpt_st *file, const char *name, const struct hd_param_desc *param, int64_t own,
                      float *out, int64_t count)
{
    const struct hd__ckpt_st_tensor *tensor = find(file, name);
    int64_t width = own * param->parts;
    float *whole = read_all(file, tensor);
    ck_assert_uint_eq(tensor->count, (uint64_t)(count * param->parts));
    for (int64_t row = 0; row < count / own; row++)
        memcpy(out + row * own, whole + row * width + param->part * own, (size_t)own * sizeof *out);
    free(whole);
}

float *golden_part(const struct hd__ckpt_st *file, const char *prefix, const struct hd_param_desc *param,
                   const int64_t *extents, int64_t *count)
{
    int64_t tensors = param->file_axes[0] == '*' ? extents[0] : 1, own = 1;
    const char *star = strchr(param->file_name, '*');
    float *all;
    *count = 1;
    for (size_t i = 0; param->dims[i]; i++) {
        *count *= extents[i];
        int behind = param->part_dim ? i + 1 >= param->part_dim : param->file_axes[i] - '0' >= (int)param->part_axis;
        if (param->file_axes[i] != '*' && (param->parts == 1 || behind))
            own *= extents[i];
    }
    all = malloc((size_t)*count * sizeof *all);
    for (int64_t n = 0; n < tensors; n++) {
        char name[256];
        if (star)
            snprintf(name, sizeof name, "%s%.*s%lld%s", prefix, (int)(star - param->file_name), param->file_name,
                     (long long)n, star + 1);
        else
            snprintf(name, sizeof name, "%s%s", prefix, param->file_name);
        copy_part(file, name, param, own, all + n * (*count / tensors), *count / tensors);
    }
    return all;
}
