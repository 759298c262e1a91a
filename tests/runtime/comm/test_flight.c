/* The flight recorder: what it keeps, that it can be read while it is written; and what the rendezvous gathers.
 *   test_flight --cost    prints what recording one operation costs, the least of many samples */
#include <check.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "runtime/comm/flight_recorder.h"
#include "runtime/rendezvous/liveness.h"
#include "runtime/rendezvous/store.h"
#include "tests/suite.h"

static const int32_t members[] = {0, 2, 5};

static struct hd__flight_op op_on(struct hd__flight_channel *channel, const char *name)
{
    return (struct hd__flight_op){
        .name = name, .section = "micro", .block = "L0", .channel = channel, .calls = 1, .root = -1};
}

/* Between two looks at the system's clock it is between them, but for some microseconds. */
START_TEST(the_fast_clock_is_the_slow_one)
{
    struct hd__clock clock = {0};
    double last = 0, end = hd__now() + 0.2, before, now, after;
    uint64_t looks = 0, n = 0, anchor = 0;
    do {
        before = hd__now();
        now = hd__clock_now(&clock);
        after = hd__now();
        ck_assert_msg(now > before - 1e-4 && now < after + 1e-4, "%.9f, between %.9f and %.9f", now, before, after);
        ck_assert_msg(now >= last, "%.9f after %.9f", now, last);
        last = now;
        looks += clock.anchor != anchor;
        anchor = clock.anchor;
        n++;
    } while (after < end);
    ck_assert(!clock.span || looks < n); /* where it counts, it does not look each time */
}
END_TEST

START_TEST(the_newest_stay)
{
    struct hd__flight *f = hd__comm_flight_create(5); /* rounded up to 8 */
    struct hd__flight_channel *a = hd__comm_flight_channel(f, "dp", members, 3, -1, -1, 0),
                              *b = hd__comm_flight_channel(f, "tp", members, 2, -1, -1, 0);
    struct hd__flight_op sum = op_on(a, "all_reduce"), gather = op_on(b, "all_gather");
    struct hd__flight_record r;
    ck_assert_ptr_eq(hd__comm_flight_channel(f, "dp", members, 3, -1, -1, 0), a);
    ck_assert_ptr_ne(hd__comm_flight_channel(f, "dp", members, 2, -1, -1, 0), a);
    ck_assert_ptr_ne(hd__comm_flight_channel(f, "dp", members, 3, 0, 2, 1), a);
    for (uint64_t i = 1; i <= 20; i++)
        ck_assert_uint_eq(hd__comm_flight_start(f, i % 4 ? &sum : &gather, (double)i), i);
    ck_assert_int_eq(hd__comm_flight_read(f, 12, &r), 0);
    ck_assert_int_eq(hd__comm_flight_read(f, 0, &r), 0);
    ck_assert_int_eq(hd__comm_flight_read(f, 21, &r), 0);
    for (uint64_t i = 13; i <= 20; i++) {
        ck_assert_int_eq(hd__comm_flight_read(f, i, &r), 1);
        ck_assert_ptr_eq(r.op, i % 4 ? &sum : &gather);
        ck_assert_uint_eq(r.seq, i % 4 ? i - i / 4 : i / 4);
        ck_assert_double_eq(r.enqueued, (double)i);
        ck_assert_double_eq(r.completed, 0);
    }
    hd__comm_flight_destroy(f);
}
END_TEST

START_TEST(waiting_and_failing)
{
    struct hd__flight *f = hd__comm_flight_create(8);
    struct hd__flight_op sum = op_on(hd__comm_flight_channel(f, "dp", members, 3, -1, -1, 0), "all_reduce");
    struct hd__flight_record r;
    uint64_t first = hd__comm_flight_start(f, &sum, hd__now()), second = hd__comm_flight_start(f, &sum, hd__now());
    ck_assert_double_eq(hd__comm_flight_waited(f), 0);
    hd__comm_flight_wait(f, first, hd__now() - 3);
    ck_assert(hd__comm_flight_waited(f) >= 3 && hd__comm_flight_waited(f) < 60);
    ck_assert(hd__comm_flight_took(f, hd__now() - 3) >= 3);
    hd__comm_flight_went_on(f, hd__now() + 1000); /* it had been stopped: that was no waiting */
    ck_assert_double_eq(hd__comm_flight_waited(f), 0);
    ck_assert_double_eq(hd__comm_flight_took(f, hd__now() - 3), 0);
    ck_assert(hd__comm_flight_took(f, hd__now() + 1001) < 0); /* what began since then is measured */
    hd__comm_flight_end(f, first, hd__now(), HD_OK);
    ck_assert_double_eq(hd__comm_flight_waited(f), 0);
    hd__comm_flight_wait(f, second, hd__now());
    hd__comm_flight_end(f, second, hd__now(), HD_E_TIMEOUT);
    ck_assert_uint_eq(f->waiting, second); /* it stays where it failed */
    ck_assert_int_eq(hd__comm_flight_read(f, second, &r), 1);
    ck_assert_int_eq(r.code, HD_E_TIMEOUT);
    for (int i = 0; i < 8; i++)
        hd__comm_flight_start(f, &sum, hd__now());
    hd__comm_flight_end(f, second, 99, HD_OK); /* overwritten long ago: nobody else's record is touched */
    ck_assert_int_eq(hd__comm_flight_read(f, second + 8, &r), 1);
    ck_assert_double_eq(r.completed, 0);
    hd__comm_flight_destroy(f);
}
END_TEST

/* A record that is read whole fits together, whatever the writer does meanwhile. */
static _Atomic int stop;

static void *read_all_the_time(void *arg)
{
    const struct hd__flight *f = arg;
    uint64_t read = 0;
    while (!atomic_load(&stop)) {
        uint64_t last = __atomic_load_n(&f->number, __ATOMIC_ACQUIRE);
        for (uint64_t n = last > 8 ? last - 8 : 1; n <= last; n++) {
            struct hd__flight_record r;
            if (!hd__comm_flight_read(f, n, &r))
                continue;
            if (r.enqueued != (double)n || r.seq != n || (r.waited != 0 && r.waited != (double)n + 0.25) ||
                (r.completed != 0 && (r.completed != (double)n + 0.5 || r.code != -(int64_t)(n % 5))))
                return NULL;
            read++;
        }
        hd__comm_flight_waited(f);
    }
    return (void *)(uintptr_t)(read + 1);
}

START_TEST(read_while_written)
{
    struct hd__flight *f = hd__comm_flight_create(8);
    struct hd__flight_op sum = op_on(hd__comm_flight_channel(f, "dp", members, 3, -1, -1, 0), "all_reduce");
    pthread_t reader;
    void *fine;
    atomic_store(&stop, 0);
    pthread_create(&reader, NULL, read_all_the_time, f);
    for (uint64_t n = 1; n <= 300000; n++) {
        hd__comm_flight_start(f, &sum, (double)n);
        hd__comm_flight_wait(f, n, (double)n + 0.25);
        hd__comm_flight_end(f, n, (double)n + 0.5, -(int32_t)(n % 5));
    }
    atomic_store(&stop, 1);
    pthread_join(reader, &fine);
    ck_assert_ptr_nonnull(fine);
    hd__comm_flight_destroy(f);
}
END_TEST

/* ---- gathering at the rendezvous */

enum { RANKS = 3 };
static struct {
    pthread_mutex_t lock;
    int looks, ends, verdict;
    int32_t code, rank;
    char cause[512], part[RANKS][64];
    uint8_t state[RANKS];
    double waited;
} seen = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void (*while_gathered)(void);

static int32_t gathered(void *user, const struct hd__rank_dumps *g, int32_t *rank, char cause[512])
{
    (void)user;
    if (while_gathered)
        while_gathered();
    pthread_mutex_lock(&seen.lock);
    seen.looks += g->code == HD_OK;
    seen.ends += g->code != HD_OK;
    seen.code = g->code;
    seen.rank = g->rank;
    seen.waited = g->waited;
    snprintf(seen.cause, sizeof seen.cause, "%s", g->cause);
    for (int r = 0; r < RANKS; r++) {
        snprintf(seen.part[r], sizeof seen.part[r], "%s", g->dump[r] ? g->dump[r] : "silent");
        seen.state[r] = g->state[r];
    }
    pthread_mutex_unlock(&seen.lock);
    *rank = 1;
    snprintf(cause, 512, "rank 1 diverged: collective mismatch");
    return seen.verdict;
}

static struct hd__server *server;
static struct hd_store *store[RANKS];
static int who[RANKS] = {0, 1, 2};
static double waited_for[RANKS], comm_timeout; /* 0: none */
static pthread_mutex_t waited_lock = PTHREAD_MUTEX_INITIALIZER;

static size_t tell(void *user, char *out, size_t room)
{
    return (size_t)snprintf(out, room, "part of %d", *(int *)user);
}

static double waited(void *user)
{
    pthread_mutex_lock(&waited_lock);
    double w = waited_for[*(int *)user];
    pthread_mutex_unlock(&waited_lock);
    return w;
}

static void open_served_by(int32_t server_rank, int witnesses)
{
    struct hd_error err = HD_ERROR_INIT;
    struct hd__server_options o = {.address = "127.0.0.1",
                                   .size = RANKS,
                                   .rank = server_rank,
                                   .dead_after = 8,
                                   .timeout = comm_timeout,
                                   .on_dumps = gathered};
    hd__store_secret_generate(o.secret);
    ck_assert_msg(!hd__server_open(&o, &server, &err), "%s", err.message);
    for (int r = 0; r < RANKS; r++) {
        struct hd__store_options s = {
            .host = "127.0.0.1", .port = hd__server_port(server), .rank = r, .size = RANKS, .dead_after = 8};
        struct hd__store_status_provider w = {
            .user = &who[r], .write_dump = tell, .wait_seconds = waited, .poll_after = 0.5, .timeout = comm_timeout};
        memcpy(s.secret, o.secret, sizeof s.secret);
        ck_assert_msg(!hd__store_connect(&s, hd__now() + 10, &store[r], &err), "%s", err.message);
        if (r < witnesses)
            hd__store_set_status_provider(store[r], &w);
    }
}

static void open_all(int witnesses)
{
    open_served_by(-1, witnesses);
}

static void close_all(void)
{
    for (int r = 0; r < RANKS; r++)
        hd__store_close(store[r]);
    hd__server_close(server); /* what was to be gathered is handed over by then */
}

START_TEST(parts_at_the_end)
{
    open_all(RANKS);
    hd__store_fail(store[2], HD_E_TIMEOUT, "no sign of rank 1");
    close_all();
    ck_assert_int_eq(seen.ends, 1);
    ck_assert_int_eq(seen.looks, 0);
    ck_assert_int_eq(seen.code, HD_E_TIMEOUT);
    ck_assert_int_eq(seen.rank, 2);
    ck_assert_str_eq(seen.cause, "rank 2: no sign of rank 1");
    ck_assert_str_eq(seen.part[2], "part of 2");
    for (int r = 0; r < 2; r++) /* the others were told, and answered or were closed first */
        ck_assert_msg(!strncmp(seen.part[r], "part of", 7) || seen.state[r] == HD__RANK_LEFT, "rank %d: %s", r,
                      seen.part[r]);
}
END_TEST

START_TEST(a_silent_rank_is_not_waited_for_long)
{
    double began;
    open_all(2);
    began = hd__now();
    hd__store_fail(store[0], HD_E_MISMATCH, "ranks differ");
    while (hd__now() < began + 30) {
        usleep(10000);
        pthread_mutex_lock(&seen.lock);
        int done = seen.ends;
        pthread_mutex_unlock(&seen.lock);
        if (done)
            break;
    }
    ck_assert_int_eq(seen.ends, 1);
    ck_assert_str_eq(seen.part[0], "part of 0");
    ck_assert_str_eq(seen.part[1], "part of 1");
    ck_assert_str_eq(seen.part[2], "silent");
    ck_assert_int_eq(seen.state[2], HD__RANK_CONNECTED);
    close_all();
}
END_TEST

/* A job that ends while a rank still opens its transports: what it does is told as soon as it can be. */
START_TEST(a_late_witness)
{
    struct hd__store_status_provider w = {
        .user = &who[1], .write_dump = tell, .wait_seconds = waited, .poll_after = 0.5};
    open_all(1);
    hd__store_fail(store[0], HD_E_MISMATCH, "ranks differ");
    while (!hd__store_liveness_check(hd__store_liveness(store[1]), NULL, NULL))
        usleep(1000);
    hd__store_set_status_provider(store[1], &w);
    close_all();
    ck_assert_int_eq(seen.ends, 1);
    ck_assert_str_eq(seen.part[1], "part of 1");
}
END_TEST

/* A rank that waits asks; the verdict of whoever looked ends the job on all. */
START_TEST(a_look_may_end_the_job)
{
    struct hd_error err = HD_ERROR_INIT;
    double until = hd__now() + 30;
    int32_t rank = -1;
    seen.verdict = HD_E_MISMATCH;
    open_all(RANKS);
    pthread_mutex_lock(&waited_lock);
    waited_for[0] = waited_for[2] = 0.7;
    pthread_mutex_unlock(&waited_lock);
    while (!hd__store_liveness_check(hd__store_liveness(store[1]), &rank, &err) && hd__now() < until)
        usleep(1000);
    ck_assert_int_eq(hd__store_liveness_check(hd__store_liveness(store[1]), &rank, &err), HD_E_CANCELLED);
    ck_assert_int_eq(rank, 1);
    ck_assert_str_eq(err.message, "rank 1 diverged: collective mismatch");
    close_all();
    ck_assert_int_eq(seen.looks, 1); /* one serves both that asked */
    ck_assert_int_eq(seen.ends, 1);
    ck_assert_int_eq(seen.code, HD_E_MISMATCH);
}
END_TEST

static sem_t report_begun, answered;

static void await_answer(void)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 30;
    sem_post(&report_begun);
    sem_timedwait(&answered, &until);
    sem_post(&answered); /* for the next */
}

/* A report takes seconds where there are thousands of ranks: the server answers meanwhile, and the end of the job gets
 * a report of its own after it. */
START_TEST(the_server_answers_during_a_report)
{
    struct hd_error err = HD_ERROR_INIT;
    sem_init(&report_begun, 0, 0);
    sem_init(&answered, 0, 0);
    while_gathered = await_answer;
    open_all(RANKS);
    pthread_mutex_lock(&waited_lock);
    waited_for[0] = 0.7;
    pthread_mutex_unlock(&waited_lock);
    while (sem_wait(&report_begun))
        continue;
    ck_assert_msg(!hd__store_put(store[1], "key", "x", 1, &err), "%s", err.message);
    hd__store_fail(store[2], HD_E_MISMATCH, "ranks differ");
    for (double until = hd__now() + 30; hd__now() < until && !hd__store_liveness_fault(hd__store_liveness(store[1]));)
        usleep(1000);
    ck_assert_int_eq(hd__store_liveness_fault(hd__store_liveness(store[1])), HD_E_MISMATCH);
    sem_post(&answered);
    close_all();
    ck_assert_int_eq(seen.looks, 1);
    ck_assert_int_eq(seen.ends, 1);
    ck_assert_str_eq(seen.part[2], "part of 2");
    ck_assert_int_eq(seen.code, HD_E_MISMATCH);
}
END_TEST

/* A rank asks when its wait has doubled; and soon after comm.timeout, however short the time since. */
START_TEST(a_look_after_the_timeout)
{
    static const double waits[] = {90, 101.5, 102.5, 104.5};
    comm_timeout = 100;
    open_all(1);
    for (int i = 0; i < (int)HD__COUNT(waits); i++) {
        double until = hd__now() + 30;
        int looks;
        pthread_mutex_lock(&waited_lock);
        waited_for[0] = waits[i];
        pthread_mutex_unlock(&waited_lock);
        do {
            usleep(1000);
            pthread_mutex_lock(&seen.lock);
            looks = seen.waited >= waits[i];
            pthread_mutex_unlock(&seen.lock);
        } while (!looks && hd__now() < until);
        ck_assert_msg(looks, "nobody looked after a wait of %g s", waits[i]);
    }
    close_all();
}
END_TEST

/* A launcher kills all that is left when the first rank has gone. Rank 2 is slow to answer: it gives rank 1 time to
 * go. */
static sem_t one_has_gone;
static int ends_when_it_went;

static size_t tell_late(void *user, char *out, size_t room)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += 300000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    sem_timedwait(&one_has_gone, &until);
    return tell(user, out, room);
}

static void *leave(void *of)
{
    hd__store_close(of);
    pthread_mutex_lock(&seen.lock);
    ends_when_it_went = seen.ends;
    pthread_mutex_unlock(&seen.lock);
    sem_post(&one_has_gone);
    return NULL;
}

START_TEST(nobody_leaves_before_the_report)
{
    static const struct {
        int32_t server, fails; /* ranks; -1: the launcher serves */
    } cases[] = {{0, 0}, {0, 1}, {0, 2}, {-1, 0}, {-1, 1}};
    struct hd__store_status_provider late = {
        .user = &who[2], .write_dump = tell_late, .wait_seconds = waited, .poll_after = 0.5};
    pthread_t thread;
    int32_t rank;
    sem_init(&one_has_gone, 0, 0);
    open_served_by(cases[_i].server, 2);
    hd__store_set_status_provider(store[2], &late);
    hd__store_fail(store[cases[_i].fails], HD_E_MISMATCH, "ranks differ");
    while (!hd__store_liveness_check(hd__store_liveness(store[1]), &rank, NULL)) /* it has heard of it */
        usleep(1000);
    ck_assert_int_eq(rank, cases[_i].fails);
    pthread_create(&thread, NULL, leave, store[1]);
    pthread_join(thread, NULL);
    store[1] = NULL;
    ck_assert_int_eq(ends_when_it_went, 1);
    ck_assert_str_eq(seen.part[2], "part of 2");
    close_all();
}
END_TEST

/* ---- what it costs */

static int cost(void)
{
    enum { RUN = 1000, SAMPLES = 3000 };
    struct hd__flight *f = hd__comm_flight_create(64);
    struct hd__flight_op sum = op_on(hd__comm_flight_channel(f, "dp", members, 3, -1, -1, 0), "all_reduce");
    double best[2] = {1, 1};
    for (int i = 0; i < SAMPLES; i++)
        for (int clock = 0; clock < 2; clock++) {
            double start = hd__now(), now = start;
            for (int k = 0; k < RUN; k++) {
                uint64_t number = hd__comm_flight_start(f, &sum, clock ? now = hd__now() : now);
                hd__comm_flight_wait(f, number, now);
                hd__comm_flight_end(f, number, now, HD_OK);
                __asm__ volatile("" ::: "memory");
            }
            best[clock] = HD__MIN(best[clock], (hd__now() - start) / RUN);
        }
    printf("an operation costs %.1f ns, with the one look at the clock that it adds %.1f ns\n", best[0] * 1e9,
           best[1] * 1e9);
    hd__comm_flight_destroy(f);
    return 0;
}

int main(int argc, char **argv)
{
    TCase *tc = tcase_create("flight");
    if (argc > 1 && !strcmp(argv[1], "--cost"))
        return cost();
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, the_fast_clock_is_the_slow_one);
    tcase_add_test(tc, the_newest_stay);
    tcase_add_test(tc, waiting_and_failing);
    tcase_add_test(tc, read_while_written);
    tcase_add_test(tc, parts_at_the_end);
    tcase_add_test(tc, a_silent_rank_is_not_waited_for_long);
    tcase_add_test(tc, a_late_witness);
    tcase_add_test(tc, a_look_may_end_the_job);
    tcase_add_test(tc, the_server_answers_during_a_report);
    tcase_add_test(tc, a_look_after_the_timeout);
    tcase_add_loop_test(tc, nobody_leaves_before_the_report, 0, 5);
    return suite_run_case("flight", tc);
}
