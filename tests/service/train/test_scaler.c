/* The loss scale against PyTorch's GradScaler, and as a part of a checkpoint. */
#include <check.h>
#include <math.h>

#include "service/train/loss_scaler.h"
#include "tests/golden/run/scaler.h"
#include "tests/suite.h"

static struct hd__train_loss_scaler started(uint32_t scaling, double scale)
{
    struct hd__job job = {.precision = {.loss_scaling = scaling, .loss_scale = scale}};
    struct hd__train_loss_scaler s;
    hd__train_loss_scaler_init(&s, &job);
    return s;
}

static int overflows(int64_t step)
{
    for (size_t i = 0; i < HD__COUNT(scaler_overflows); i++)
        if (scaler_overflows[i] == step)
            return 1;
    return 0;
}

START_TEST(scale_follows_grad_scaler)
{
    struct hd__train_loss_scaler s = started(HD__LOSS_SCALE_DYNAMIC, 65536);
    double before = s.scale;
    size_t change = 0;
    ck_assert_double_eq(s.scale, SCALER_FIRST);
    for (int64_t step = 1; step <= SCALER_STEPS; step++) {
        if (step % 1000 == 17) { /* saved and loaded in between, also while it counts up to the next growth */
            struct hd__train_loss_scaler again = started(HD__LOSS_SCALE_DYNAMIC, 65536);
            json_t *saved = hd__train_loss_scaler_json(&s);
            hd__train_loss_scaler_load(&again, saved);
            json_decref(saved);
            s = again;
        }
        ck_assert(hd__train_loss_scaler_update(&s, overflows(step)));
        if (s.scale != before) {
            ck_assert_uint_lt(change, HD__COUNT(scaler_changes));
            ck_assert_int_eq(step, scaler_changes[change].step);
            ck_assert_double_eq(s.scale, scaler_changes[change++].scale);
        }
        before = s.scale;
    }
    ck_assert_uint_eq(change, HD__COUNT(scaler_changes));
    ck_assert_int_eq(s.skipped, (int64_t)HD__COUNT(scaler_overflows));
}
END_TEST

/* AdamW as in heddle/optimizer.h, with the step number that the training loop gives it. */
START_TEST(bias_correction_does_not_count_skipped_steps)
{
    struct hd__train_loss_scaler s = started(HD__LOSS_SCALE_DYNAMIC, 65536);
    double p = 0.5, m = 0, v = 0;
    for (int64_t step = 1; step <= (int64_t)HD__COUNT(scaler_values); step++) {
        double t = (double)(step - s.skipped), g = 0.3 + 0.1 * (double)(step % 5);
        int overflow = overflows(step);
        if (!overflow) {
            p *= 1 - 0.01 * 0.1;
            m = 0.9 * m + 0.1 * g;
            v = 0.95 * v + 0.05 * g * g;
            p -= 0.01 * (m / (1 - pow(0.9, t))) / (sqrt(v / (1 - pow(0.95, t))) + 1e-8);
        }
        hd__train_loss_scaler_update(&s, overflow);
        ck_assert_double_eq_tol(p, scaler_values[step - 1], 1e-6);
    }
}
END_TEST

START_TEST(scale_never_falls_below_one)
{
    struct hd__train_loss_scaler s = started(HD__LOSS_SCALE_DYNAMIC, 65536);
    for (int i = 0; i < 16; i++)
        ck_assert(hd__train_loss_scaler_update(&s, 1));
    ck_assert_double_eq(s.scale, 1);
    ck_assert(!hd__train_loss_scaler_update(&s, 1));
    ck_assert_int_eq(s.skipped, 16);
}
END_TEST

START_TEST(fixed_scale_stays_and_does_not_skip)
{
    struct hd__train_loss_scaler s = started(HD__LOSS_SCALE_STATIC, 1024), none = started(HD__LOSS_SCALE_NONE, 1);
    json_t *saved = json_pack("{s:f,s:i,s:i}", "scale", 8.0, "good_steps", 1999, "skipped", 3);
    hd__train_loss_scaler_load(&s, saved);
    hd__train_loss_scaler_load(&none, saved);
    json_decref(saved);
    ck_assert(hd__train_loss_scaler_update(&s, 0));
    ck_assert_double_eq(s.scale, 1024);
    ck_assert(!hd__train_loss_scaler_update(&s, 1));
    ck_assert_int_eq(s.skipped, 3); /* of the run before: the optimizer's own count goes on */
    ck_assert_double_eq(none.scale, 1);
    ck_assert(!hd__train_loss_scaler_update(&none, 1));
}
END_TEST

START_TEST(nonsense_is_not_loaded)
{
    static const char *const texts[] = {"{}",
                                        "{\"scale\": 0.25, \"good_steps\": 1}",
                                        "{\"scale\": \"x\", \"good_steps\": 1}",
                                        "{\"scale\": 4.0}",
                                        "{\"skipped\": -1}",
                                        "[]"};
    for (size_t i = 0; i < HD__COUNT(texts); i++) {
        struct hd__train_loss_scaler s = started(HD__LOSS_SCALE_DYNAMIC, 65536);
        json_t *saved = json_loads(texts[i], 0, NULL);
        hd__train_loss_scaler_load(&s, saved);
        hd__train_loss_scaler_load(&s, NULL);
        json_decref(saved);
        ck_assert_double_eq(s.scale, 65536);
        ck_assert_int_eq(s.skipped, 0);
    }
}
END_TEST

int main(void)
{
    TCase *c = tcase_create("scaler");
    tcase_add_test(c, scale_follows_grad_scaler);
    tcase_add_test(c, bias_correction_does_not_count_skipped_steps);
    tcase_add_test(c, scale_never_falls_below_one);
    tcase_add_test(c, fixed_scale_stays_and_does_not_skip);
    tcase_add_test(c, nonsense_is_not_loaded);
    return suite_run_case("scaler", c);
}
