/* Where parameters lie in Hugging Face files: against files that transformers wrote, every element of every tensor
 * belongs to exactly one parameter. */
#include <check.h>
#include <jansson.h>
#include <stdlib.h>

#include "load.h"
#include "mock.h"

/* A file's tensors: name -> {"shape": [...]}, from the safetensors header. */
static json_t *read_shapes(const char *path)
{
    unsigned char bytes[8];
    FILE *file = fopen(path, "rb");
    ck_assert_msg(file != NULL, "%s", path);
    ck_assert_uint_eq(fread(bytes, 1, 8, file), 8);
    size_t length = bytes[0] | (size_t)bytes[1] << 8 | (size_t)bytes[2] << 16;
    char *text = malloc(length);
    ck_assert_uint_eq(fread(text, 1, length, file), length);
    fclose(file);
    json_error_t where;
    json_t *header = json_loadb(text, length, 0, &where);
    ck_assert_msg(header != NULL, "%s", where.text);
    free(text);
    json_object_del(header, "__metadata__");
    return header;
}

static int64_t shape_at(const json_t *tensor, size_t axis)
{
    return json_integer_value(json_array_get(json_object_get(tensor, "shape"), axis));
}

/* The extent of the parameter's dims that belong to a file axis. */
static int64_t axis_extent(const struct hd_program *p, const struct mock_param *param, size_t axis)
{
    int64_t n = 1;
    for (size_t i = 0; param->dims[i]; i++)
        if (param->axes[i] == (char)('0' + axis))
            n *= p->extent[(unsigned char)param->dims[i]];
    return n;
}

/* Marks the parameter's elements in `seen`, one count for each element of the file's tensor. */
static void mark(const struct hd_program *p, const struct mock_param *param, const json_t *tensor, unsigned char *seen)
{
    size_t ndim = json_array_size(json_object_get(tensor, "shape"));
    int64_t extent[2] = {1, 1}, first[2] = {0, 0}, whole[2] = {1, 1};
    ck_assert_uint_le(ndim, 2);
    for (size_t axis = 0; axis < ndim; axis++) {
        size_t at = axis + 2 - ndim; /* one-dimensional tensors are rows */
        uint32_t parts = param->part_axis == axis ? param->parts : 1;
        extent[at] = axis_extent(p, param, axis);
        whole[at] = shape_at(tensor, axis);
        first[at] = param->part_axis == axis ? param->part * extent[at] : 0;
        ck_assert_msg(extent[at] * parts == whole[at], "%s: axis %zu has %lld of %lld elements", param->name, axis,
                      (long long)(extent[at] * parts), (long long)whole[at]);
    }
    ck_assert_int_eq(extent[0] * extent[1], mock_count(p, param->dims));
    for (int64_t i = 0; i < extent[0]; i++)
        for (int64_t j = 0; j < extent[1]; j++)
            seen[(first[0] + i) * whole[1] + first[1] + j]++;
}

static int64_t check_tensor(const struct hd_program *p, const char *name, const json_t *tensor)
{
    int64_t count = 1;
    size_t axis;
    json_t *extent;
    json_array_foreach(json_object_get(tensor, "shape"), axis, extent)
        count *= json_integer_value(extent);
    unsigned char *seen = calloc((size_t)count, 1);
    for (uint32_t i = 0; i < p->n_params; i++)
        if (!strcmp(p->params[i].file, name))
            mark(p, &p->params[i], tensor, seen);
    for (int64_t i = 0; i < count; i++)
        ck_assert_msg(seen[i] == 1, "%s: element %lld belongs to %d parameters", name, (long long)i, seen[i]);
    free(seen);
    return count;
}

/* The dims of a file axis keep their order: nothing is transposed. */
static void check_axes_ascend(const struct mock_param *param)
{
    for (size_t i = 1; param->axes[i]; i++)
        ck_assert_msg(param->axes[i] >= param->axes[i - 1], "%s: %s", param->name, param->axes);
}

static const char *const names[] = {"gpt2", "llama", "llama-tied", "qwen2"};

START_TEST(every_element_once)
{
    struct hd_error err = HD_ERROR_INIT;
    char folder[512], path[600];
    snprintf(folder, sizeof folder, GOLDEN_DIR "/%s", names[_i]);
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    struct hd_model *model = model_open(&err, model_settings("from", folder, NULL));
    ck_assert_msg(model != NULL, "%s", err.message);
    struct hd_program *p = mock_new(4, 8);
    ck_assert_msg(model_ops->build(model, p, &err) == HD_OK, "%s", err.message);

    json_t *shapes = read_shapes(path), *tensor;
    const char *name;
    int64_t count = 0;
    json_object_foreach(shapes, name, tensor)
        count += check_tensor(p, name, tensor);
    ck_assert_int_eq(count, mock_parameters(p));
    for (uint32_t i = 0; i < p->n_params; i++) {
        ck_assert_msg(json_object_get(shapes, p->params[i].file) != NULL, "%s is not in the file", p->params[i].file);
        check_axes_ascend(&p->params[i]);
    }
    json_decref(shapes);
    mock_free(p);
    model_ops->close(model);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("model_mapping");
    TCase *tests = tcase_create("mapping");
    tcase_add_checked_fixture(tests, model_load, NULL);
    tcase_add_loop_test(tests, every_element_once, 0, (int)(sizeof names / sizeof names[0]));
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
