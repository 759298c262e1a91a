/* Learning rates against PyTorch's and transformers' schedulers (tests/golden/lr.py), and by hand. */
#include <check.h>
#include <math.h>
#include <stdlib.h>

#include "core/base/base.h"
#include "core/job/lr_schedule.h"
#include "tests/golden/job/lr.h"
#include "tests/suite.h"

START_TEST(same_as_pytorch)
{
    for (int64_t step = 1; step <= golden[_i].steps; step++) {
        double want = golden[_i].rate[step - 1], have = hd__lr(&golden[_i].schedule, step, golden[_i].steps);
        ck_assert_msg(fabs(have - want) <= 1e-12 * golden[_i].schedule.lr, "case %d step %d: %.17g, not %.17g", _i,
                      (int)step, have, want);
    }
}
END_TEST

START_TEST(by_hand)
{
    struct hd__lr_schedule s = {.kind = HD__LR_COSINE, .warmup = 4, .lr = 8, .min_lr = 2};
    ck_assert_double_eq(hd__lr(&s, 1, 12), 2);
    ck_assert_double_eq(hd__lr(&s, 4, 12), 8);
    ck_assert_double_eq(hd__lr(&s, 5, 12), 8);
    ck_assert_double_eq_tol(hd__lr(&s, 9, 12), 5, 1e-12); /* half way: the mean */
    ck_assert_double_eq(hd__lr(&s, 13, 12), 2);
    ck_assert_double_eq(hd__lr(&s, 1000, 12), 2);
    s = (struct hd__lr_schedule){.kind = HD__LR_WSD, .lr = 1, .min_lr = 0}; /* decay: a tenth of 100 */
    ck_assert_double_eq(hd__lr(&s, 90, 100), 1);
    ck_assert_double_eq(hd__lr(&s, 91, 100), 1);
    ck_assert_double_eq_tol(hd__lr(&s, 92, 100), 0.9, 1e-12);
    ck_assert_double_eq_tol(hd__lr(&s, 100, 100), 0.1, 1e-12);
    s = (struct hd__lr_schedule){.kind = HD__LR_LINEAR, .warmup = 3, .lr = 3}; /* all warm-up */
    ck_assert_double_eq(hd__lr(&s, 2, 3), 2);
    ck_assert_double_eq(hd__lr(&s, 3, 3), 3);
    s.kind = HD__LR_CONSTANT;
    ck_assert_double_eq(hd__lr(&s, 999, 3), 3);
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("lr");
    tcase_add_loop_test(tc, same_as_pytorch, 0, HD__COUNT(golden));
    tcase_add_test(tc, by_hand);
    return suite_run_case("schedule", tc);
}
