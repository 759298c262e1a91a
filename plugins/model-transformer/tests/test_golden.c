/* The golden files agree with themselves: their logits give their first loss, their gradients their first
 * norm. What the compiled program makes of them is tested where programs run. */
#include <check.h>
#include <math.h>
#include <stdlib.h>

#include "load.h"
#include "mock.h"
#include "tests/suite.h"
#include "tests/support/golden.h"

/* Mean cross-entropy of logits[tokens, vocab]. */
static double loss_of(const float *logits, const int32_t *labels, int64_t tokens, int64_t vocab)
{
    double loss = 0;
    for (int64_t t = 0; t < tokens; t++, logits += vocab) {
        double sum = 0;
        for (int64_t v = 0; v < vocab; v++)
            sum += exp(logits[v]);
        loss += log(sum) - logits[labels[t]];
    }
    return loss / (double)tokens;
}

START_TEST(logits_give_the_loss)
{
    struct golden g;
    int64_t count;
    golden_open(&g, golden_names[_i]);
    float *logits = golden_floats(g.expected, "logits", &count);
    int32_t *labels = golden_tokens(&g, "labels", 0), *ids = golden_tokens(&g, "ids", 0);
    int64_t tokens = g.batch * g.seq;
    ck_assert_double_eq_tol(loss_of(logits, labels, tokens, count / tokens), g.losses[0], 1e-6);
    for (int64_t i = 0; i + 1 < g.seq; i++) /* labels are the ids one later */
        ck_assert_int_eq(labels[i], ids[i + 1]);
    free(logits);
    free(labels);
    free(ids);
    golden_close(&g);
}
END_TEST

START_TEST(parts_hold_all_weights_and_gradients)
{
    struct golden g;
    struct hd_error err = HD_ERROR_INIT;
    golden_open(&g, golden_names[_i]);
    struct hd_model *model = model_open(&err, model_settings("from", g.folder, NULL));
    ck_assert_msg(model != NULL, "%s", err.message);
    struct hd_program *p = mock_new(g.batch, g.seq);
    ck_assert_msg(model_ops->build(model, p, &err) == HD_OK, "%s", err.message);
    double squares = 0;
    int64_t total = 0;
    for (uint32_t i = 0; i < p->n_params; i++) {
        const struct mock_param *m = &p->params[i];
        struct hd_param_desc desc = {.struct_size = sizeof desc,
                                     .name = m->name,
                                     .dims = m->dims,
                                     .file_name = m->file,
                                     .file_axes = m->axes,
                                     .part = m->part,
                                     .parts = m->parts,
                                     .part_axis = m->part_axis};
        int64_t extents[HD_MAX_DIMS], count;
        for (size_t d = 0; m->dims[d]; d++)
            extents[d] = p->extent[(unsigned char)m->dims[d]];
        float *grad = golden_part(g.expected, "grad.", &desc, extents, &count);
        for (int64_t n = 0; n < count; n++)
            squares += (double)grad[n] * grad[n];
        free(grad);
        free(golden_part(g.weights, "", &desc, extents, &count));
        total += count;
    }
    ck_assert_int_eq(total, g.parameters);
    ck_assert_double_eq_tol(sqrt(squares), g.grad_norms[0], 1e-6 * g.grad_norms[0]);
    mock_free(p);
    model_ops->close(model);
    golden_close(&g);
}
END_TEST

int main(void)
{
    TCase *tests = tcase_create("golden");
    tcase_add_checked_fixture(tests, model_load, NULL);
    tcase_add_loop_test(tests, logits_give_the_loss, 0, GOLDEN_NAMES);
    tcase_add_loop_test(tests, parts_hold_all_weights_and_gradients, 0, GOLDEN_NAMES);
    return suite_run_case("model_golden", tests);
}
