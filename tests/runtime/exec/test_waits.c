/* Waits over more than one transport: all of them make progress, and a rank that waits for long sleeps. */
#include <check.h>
#include <sys/resource.h>

#include "core/base/base.h"
#include "runtime/exec/transports.h"
#include "tests/suite.h"

enum { LOOKS = 5000 };
static int32_t calls[2], looks; /* of progress, by transport; of test */

static int32_t fake_progress(struct hd_comm *comm, struct hd_error *err)
{
    (void)err;
    ++*(int32_t *)comm;
    return 0;
}

static int32_t fake_test(struct hd_comm *comm, hd_request request, int32_t *done, struct hd_error *err)
{
    (void)comm, (void)request, (void)err;
    *done = ++looks == LOOKS;
    return HD_OK;
}

START_TEST(two_transports)
{
    const struct hd_comm_ops ops = {.struct_size = sizeof ops, .progress = fake_progress, .test = fake_test};
    struct hd__transport each[2] = {{.ops = &ops, .comm = (struct hd_comm *)&calls[0]},
                                    {.ops = &ops, .comm = (struct hd_comm *)&calls[1]}};
    struct hd__transports t = {0};
    struct hd_error err = HD_ERROR_INIT;
    struct rusage before, after;
    hd__push(&t.opened, &each[0]);
    hd__push(&t.opened, &each[1]);
    getrusage(RUSAGE_THREAD, &before);
    ck_assert_int_eq(hd__exec_transports_wait(&t, &each[0], 1, hd__now() + 1000, &err), HD_OK);
    getrusage(RUSAGE_THREAD, &after);
    ck_assert_int_eq(calls[0], LOOKS);
    ck_assert_int_eq(calls[1], LOOKS);
    ck_assert_int_gt(after.ru_nvcsw - before.ru_nvcsw, LOOKS / 10); /* sched_yield() counts as an involuntary one */
    hd__free_array(&t.opened);
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("waits");
    tcase_add_test(tc, two_transports);
    tcase_set_timeout(tc, 60);
    return suite_run_case("waits", tc);
}
