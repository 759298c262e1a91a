/* Where parameters lie in Hugging Face files: against files that transformers wrote, every element of every
 * tensor belongs to exactly one parameter. */
#include <check.h>
#include <stdlib.h>

#include "golden.h"
#include "load.h"
#include "mock.h"

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
static void mark(const struct hd_program *p, const struct mock_param *param,
                 const struct hd__st_tensor *tensor, unsigned char *seen)
{
    size_t ndim = tensor->ndim;
    int64_t extent[2] = {1, 1}, first[2] = {0, 0}, whole[2] = {1, 1};
    ck_assert_uint_le(ndim, 2);
    for (size_t axis = 0; axis < ndim; axis++) {
        size_t at = axis + 2 - ndim; /* one-dimensional tensors are rows */
        uint32_t parts = param->part_axis == axis ? param->parts : 1;
        extent[at] = axis_extent(p, param, axis);
        whole[at] = tensor->shape[axis];
        first[at] = param->part_axis == axis ? param->part * extent[at] : 0;
        ck_assert_msg(extent[at] * parts == whole[at], "%s: axis %zu has %lld of %lld elements", param->name,
                      axis, (long long)(extent[at] * parts), (long long)whole[at]);
    }
    ck_assert_int_eq(extent[0] * extent[1], mock_count(p, param->dims));
    for (int64_t i = 0; i < extent[0]; i++)
        for (int64_t j = 0; j < extent[1]; j++)
            seen[(first[0] + i) * whole[1] + first[1] + j]++;
}

static void check_tensor(const struct hd_program *p, const struct hd__st_tensor *tensor)
{
    unsigned char *seen = calloc(tensor->count, 1);
    for (uint32_t i = 0; i < p->n_params; i++)
        if (!strcmp(p->params[i].file, tensor->name))
            mark(p, &p->params[i], tensor, seen);
    for (uint64_t i = 0; i < tensor->count; i++)
        ck_assert_msg(seen[i] == 1, "%s: element %llu belongs to %d parameters", tensor->name,
                      (unsigned long long)i, seen[i]);
    free(seen);
}

/* The dims of a file axis keep their order: nothing is transposed. */
static void check_axes_ascend(const struct mock_param *param)
{
    for (size_t i = 1; param->axes[i]; i++)
        ck_assert_msg(param->axes[i] >= param->axes[i - 1], "%s: %s", param->name, param->axes);
}

START_TEST(every_element_once)
{
    struct golden g;
    struct hd_error err = HD_ERROR_INIT;
    golden_open(&g, golden_names[_i]);
    struct hd_model *model = model_open(&err, model_settings("from", g.folder, NULL));
    ck_assert_msg(model != NULL, "%s", err.message);
    struct hd_program *p = mock_new(g.batch, g.seq);
    ck_assert_msg(model_ops->build(model, p, &err) == HD_OK, "%s", err.message);

    for (uint32_t i = 0; i < hd__st_count(g.weights); i++)
        check_tensor(p, hd__st_at(g.weights, i));
    for (uint32_t i = 0; i < p->n_params; i++) {
        ck_assert_msg(hd__st_find(g.weights, p->params[i].file) != NULL, "%s is not in the file",
                      p->params[i].file);
        check_axes_ascend(&p->params[i]);
    }
    ck_assert_int_eq(mock_parameters(p), g.parameters);
    mock_free(p);
    model_ops->close(model);
    golden_close(&g);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("model_mapping");
    TCase *tests = tcase_create("mapping");
    tcase_add_checked_fixture(tests, model_load, NULL);
    tcase_add_loop_test(tests, every_element_once, 0, GOLDEN_NAMES);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
