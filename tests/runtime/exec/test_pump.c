/* The thread that makes progress: it works while others compute, never beside another call, and stops. */
#include "runtime/exec/progress_thread.h"

#include <check.h>
#include <stdatomic.h>
#include <time.h>

#include "core/base/base.h"
#include "tests/suite.h"

struct transport {
    int32_t inside; /* plain: whoever is in there alone needs no atomic */
    int64_t calls;
    _Atomic int64_t seen;
    int32_t fails_at;
};

static int32_t work(void *user, struct hd_error *err)
{
    struct transport *t = user;
    ck_assert_int_eq(t->inside++, 0);
    t->calls++;
    atomic_store(&t->seen, t->calls);
    t->inside--;
    if (t->fails_at && t->calls == t->fails_at)
        return hd_fail(err, HD_E_IO, "as asked");
    return t->calls & 1;
}

static void wait_for_calls(struct transport *t, int64_t n)
{
    struct timespec some = {.tv_nsec = 1000000};
    while (atomic_load(&t->seen) < n)
        nanosleep(&some, NULL);
}

static void call(struct hd__progress_thread *pump, struct transport *t, int32_t more)
{
    hd__exec_progress_lock(pump);
    ck_assert_int_eq(t->inside++, 0);
    t->inside--;
    hd__exec_progress_unlock(pump, more);
}

START_TEST(works_while_something_is_in_flight)
{
    struct transport t = {0};
    struct hd__progress_thread *pump = hd__exec_progress_start(work, &t);
    int64_t before;
    ck_assert_ptr_nonnull(pump);
    call(pump, &t, 2);
    wait_for_calls(&t, 100);
    call(pump, &t, -1);
    wait_for_calls(&t, atomic_load(&t.seen) + 100);
    call(pump, &t, -1);
    hd__exec_progress_lock(pump);
    before = t.calls;
    hd__exec_progress_unlock(pump, 0);
    nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    ck_assert_int_eq(atomic_load(&t.seen), before);
    hd__exec_progress_stop(pump);
}
END_TEST

START_TEST(one_at_a_time)
{
    struct transport t = {0};
    struct hd__progress_thread *pump = hd__exec_progress_start(work, &t);
    for (int i = 0; i < 20000; i++) {
        call(pump, &t, 1);
        call(pump, &t, -1);
    }
    call(pump, &t, 1);
    hd__exec_progress_stop(pump); /* with something in flight */
}
END_TEST

/* Between instructions the thread that computes does what there is to do; the pump then has nothing of it. */
START_TEST(others_may_look)
{
    struct transport t = {0};
    struct hd_error err = HD_ERROR_INIT;
    struct hd__progress_thread *pump = hd__exec_progress_start(work, &t);
    int64_t moved = 0, before;
    ck_assert_int_eq(hd__exec_progress_poll(pump, &err), 1);
    call(pump, &t, 1);
    for (int i = 0; i < 20000 || moved < 100; i++)
        moved += hd__exec_progress_poll(pump, &err);
    call(pump, &t, -1);
    hd__exec_progress_lock(pump);
    before = t.calls;
    ck_assert_int_eq(hd__exec_progress_poll(pump, &err), 0); /* somebody is inside */
    ck_assert_int_eq(t.calls, before);
    hd__exec_progress_unlock(pump, 0);
    t.fails_at = (int32_t)before + 1;
    ck_assert_int_eq(hd__exec_progress_poll(pump, &err), HD_E_IO);
    ck_assert_int_eq(hd__exec_progress_poll(pump, &err), HD_E_IO);
    hd__exec_progress_stop(pump);
}
END_TEST

/* An error of the thread is returned to whoever waits. */
START_TEST(an_error_ends_it)
{
    struct transport t = {.fails_at = 10};
    struct hd_error err = HD_ERROR_INIT;
    struct hd__progress_thread *pump = hd__exec_progress_start(work, &t);
    call(pump, &t, 1);
    wait_for_calls(&t, 10);
    call(pump, &t, 1);
    nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    ck_assert_int_eq(atomic_load(&t.seen), 10);
    ck_assert_int_eq(hd__exec_progress_poll(pump, &err), HD_E_IO);
    ck_assert_str_eq(err.message, "as asked");
    hd__exec_progress_stop(pump);
    hd__exec_progress_lock(NULL);
    hd__exec_progress_unlock(NULL, 1);
    hd__exec_progress_stop(NULL);
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("pump");
    tcase_add_test(tc, works_while_something_is_in_flight);
    tcase_add_test(tc, one_at_a_time);
    tcase_add_test(tc, others_may_look);
    tcase_add_test(tc, an_error_ends_it);
    tcase_set_timeout(tc, 60);
    return suite_run_case("pump", tc);
}
