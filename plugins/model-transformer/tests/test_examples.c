/* Every job in examples/ is understood: the core's keys, the mesh, the model's fields, and its program is
 * built. */
#include <check.h>
#include <glob.h>
#include <stdlib.h>

#include "core/job/job.h"
#include "load.h"
#include "mock.h"
#include "tests/suite.h"

static void check_example(const char *path)
{
    struct hd_error err = HD_ERROR_INIT;
    struct hd__job *job = NULL;
    void *settings = calloc(1, model_component->settings_size);
    ck_assert_msg(hd__job_load(path, NULL, 0, &job, &err) == HD_OK, "%s", err.message);
    ck_assert_msg(hd__job_resolve(job, 0, &err) == HD_OK, "%s", err.message);
    ck_assert_str_eq(job->model->use, "transformer");
    int32_t rc = hd__job_section_parse(job, job->model, model_component->options, model_component->n_options,
                                       model_component->option_size, settings, &err);
    ck_assert_msg(rc == HD_OK, "%s", err.message);
    struct hd_model *model = model_open(&err, settings);
    ck_assert_msg(model != NULL, "%s: %s", path, err.message);
    struct hd_program *p = mock_new(job->micro_batch, job->seq_len);
    ck_assert_msg(model_ops->build(model, p, &err) == HD_OK, "%s: %s", path, err.message);
    mock_free(p);
    model_ops->close(model);
    free(settings);
    hd__job_free(job);
}

START_TEST(examples)
{
    glob_t found;
    ck_assert_int_eq(glob(EXAMPLES_DIR "/*.yaml", 0, NULL, &found), 0);
    ck_assert_uint_ge(found.gl_pathc, 5);
    for (size_t i = 0; i < found.gl_pathc; i++)
        check_example(found.gl_pathv[i]);
    globfree(&found);
}
END_TEST

int main(void)
{
    TCase *tests = tcase_create("examples");
    tcase_add_checked_fixture(tests, model_load, NULL);
    tcase_add_test(tests, examples);
    return suite_run_case("model_examples", tests);
}
