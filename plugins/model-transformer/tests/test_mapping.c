/* Where parameters lie in Hugging Face files: against files that transformers wrote, every element of every
 * tensor belongs to exactly one parameter. */
#include <check.h>
#include <stdlib.h>

#include "load.h"
#include "mock.h"
#include "tests/suite.h"
#include "tests/support/golden.h"

/* Marks the parameter's elements of this tensor in `seen`: of every `own * parts` elements `own`, from axis
 * part_axis on. */
static void mark(const struct hd_program *p, const struct mock_param *param, const struct hd__ckpt_st_tensor *tensor,
                 unsigned char *seen)
{
    int64_t extent[HD_MAX_DIMS] = {1, 1, 1, 1, 1, 1}, own = 1, rows = 1;
    for (size_t i = 0; param->dims[i]; i++)
        if (param->axes[i] != '*')
            extent[param->axes[i] - '0'] *= p->extent[(unsigned char)param->dims[i]];
    for (uint32_t axis = 0; axis < tensor->ndim; axis++) {
        uint32_t parts = param->part_axis == axis ? param->parts : 1;
        ck_assert_msg(extent[axis] * parts == tensor->shape[axis], "%s: axis %u has %lld of %lld elements", param->name,
                      axis, (long long)(extent[axis] * parts), (long long)tensor->shape[axis]);
        *(axis < param->part_axis ? &rows : &own) *= extent[axis];
    }
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < own; j++)
            seen[(i * param->parts + param->part) * own + j]++;
}

/* Does the parameter lie in this tensor, or one of those that it is made of? */
static int lies_in(const struct hd_program *p, const struct mock_param *param, const char *tensor)
{
    const char *star = strchr(param->file, '*');
    if (!star)
        return !strcmp(param->file, tensor);
    ck_assert_int_eq(param->axes[0], '*');
    for (int64_t n = 0; n < p->extent[(unsigned char)param->dims[0]]; n++) {
        char name[160];
        snprintf(name, sizeof name, "%.*s%lld%s", (int)(star - param->file), param->file, (long long)n, star + 1);
        if (!strcmp(name, tensor))
            return 1;
    }
    return 0;
}

static void check_tensor(const struct hd_program *p, const struct hd__ckpt_st_tensor *tensor)
{
    unsigned char *seen = calloc(tensor->count, 1);
    for (uint32_t i = 0; i < p->n_params; i++)
        if (lies_in(p, &p->params[i], tensor->name))
            mark(p, &p->params[i], tensor, seen);
    for (uint64_t i = 0; i < tensor->count; i++)
        ck_assert_msg(seen[i] == 1, "%s: element %llu belongs to %d parameters", tensor->name, (unsigned long long)i,
                      seen[i]);
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

    for (uint32_t i = 0; i < hd__ckpt_st_count(g.weights); i++)
        check_tensor(p, hd__ckpt_st_tensor_at(g.weights, i));
    for (uint32_t i = 0; i < p->n_params; i++) {
        uint32_t found = 0;
        for (uint32_t k = 0; k < hd__ckpt_st_count(g.weights); k++)
            found += (uint32_t)lies_in(p, &p->params[i], hd__ckpt_st_tensor_at(g.weights, k)->name);
        ck_assert_msg(found == (p->params[i].axes[0] == '*' ? p->extent[(unsigned char)p->params[i].dims[0]] : 1),
                      "%s is not in the file", p->params[i].file);
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
    TCase *tests = tcase_create("mapping");
    tcase_add_checked_fixture(tests, model_load, NULL);
    tcase_add_loop_test(tests, every_element_once, 0, GOLDEN_NAMES);
    return suite_run_case("model_mapping", tests);
}
