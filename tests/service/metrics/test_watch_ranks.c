/* Alarms of ranks: how soon a rank that is slow is named, how often one that is not, and what grows or waits. */
#include <check.h>
#include <math.h>
#include <stdlib.h>

#include "service/metrics/watch.h"
#include "tests/suite.h"

enum { RANKS = 16, STRIDE = HD__RANK_NUMBERS };

static const struct hd__watch_config on = {
    .straggler = 0.1, .data_wait = 0.1, .exposed_comm = 0.2, .utilisation = 0.8, .memory = 0.05, .descriptors = 16};

struct cluster {
    struct hd__watch watch;
    uint64_t state;         /* of the random numbers */
    double deviation, busy; /* of a rank's compute; how often another program takes half of its time */
    double rank[RANKS][STRIDE];
    int32_t n;
    int64_t step;
    struct hd__alarm alarm[HD__WATCH_ALARMS];
};

static double draw(struct cluster *c) /* 0 to 1 */
{
    c->state = c->state * 6364136223846793005u + 1442695040888963407u;
    return ((double)(c->state >> 11) + 0.5) * 0x1p-53;
}

static double normal(struct cluster *c)
{
    return sqrt(-2 * log(draw(c))) * cos(2 * 3.14159265358979323846 * draw(c));
}

/* Steps of 100 ms and noise that all ranks share. */
static void make_row(struct cluster *c)
{
    double all = 0.1 * exp(0.2 * normal(c));
    for (int32_t r = 0; r < c->n; r++) {
        double own = all * exp(c->deviation * normal(c)) * (draw(c) < c->busy ? 2 : 1);
        c->rank[r][HD__RANK_COMPUTE] = own;
        c->rank[r][HD__RANK_RSS] = 1e9 + 1e6 * draw(c);
        c->rank[r][HD__RANK_FILES] = 20;
    }
    for (int32_t r = 0; r < c->n; r++)
        c->rank[r][HD__RANK_COMM_WAIT] = 0.02 * all;
}

static uint32_t watch(struct cluster *c)
{
    const struct hd__metrics_row row = {.step = ++c->step,
                                        .loss = 1,
                                        .grad_norm = 1,
                                        .tokens_per_s = 1,
                                        .ranks = c->rank[0],
                                        .n_ranks = c->n,
                                        .stride = STRIDE};
    return hd__watch_step(&c->watch, &row, c->alarm);
}

/* Is there this alarm, alone? */
static int alone(const struct cluster *c, uint32_t n, int32_t rule)
{
    if (n)
        ck_assert_msg(n == 1 && !strcmp(c->alarm[0].rule, hd__watch_rule_name(rule)), "%s: %s", c->alarm[0].rule,
                      c->alarm[0].words);
    return n == 1;
}

/* Other times than those with which the rule was tuned: WATCH_SEED=1 test_watch_ranks prints what it counts of them. */
static uint64_t other_times(void)
{
    const char *seed = getenv("WATCH_SEED");
    return seed ? strtoull(seed, NULL, 10) * 1000003 : 0;
}

static void print_count(const char *what, int which, int count)
{
    if (other_times())
        printf("%s %d: %d\n", what, which, count);
    fflush(stdout);
}

static const struct {
    int32_t n;
    double deviation, busy;
} machines[] = {{2, 0.03, 0}, {16, 0.03, 0.01}, {8, 0.06, 0.02}, {16, 0.15, 0.05}, {4, 0, 0}, {2, 0.5, 0.1}};

/* 100,000 steps on each machine, none slower than the others: fewer than one alarm in 10,000. */
START_TEST(false_alarms)
{
    struct cluster c = {.watch = {.config = {.straggler = 0.1}},
                        .state = other_times() + (uint64_t)_i + 1,
                        .n = machines[_i].n,
                        .deviation = machines[_i].deviation,
                        .busy = machines[_i].busy};
    uint32_t alarms = 0;
    while (c.step < 100000) {
        make_row(&c);
        alarms += watch(&c);
    }
    print_count("false alarms in 100,000 steps of machine", _i, (int)alarms);
    ck_assert_msg(alarms < 10, "%u false alarms in 100,000 steps", alarms);
    hd__watch_finish(&c.watch);
}
END_TEST

/* A rank that becomes slower by 10%, after any number of steps: named within 20, and no other one. */
START_TEST(named_in_time)
{
    enum { TRIALS = 500 };
    int late = 0;
    for (int trial = 0; trial < TRIALS; trial++) {
        struct cluster c = {
            .watch = {.config = on}, .state = other_times() + (uint64_t)trial + 7, .n = _i ? 16 : 2, .deviation = 0.02};
        int64_t from = trial % 90, named = 0;
        int32_t slow = trial % c.n;
        while (!named && c.step < from + 40) {
            make_row(&c);
            if (c.step >= from)
                c.rank[slow][HD__RANK_COMPUTE] *= 1.1;
            if (alone(&c, watch(&c), HD__WATCH_STRAGGLER)) {
                named = c.step;
                ck_assert_int_eq(c.alarm[0].rank, slow);
                ck_assert(c.alarm[0].value > 0.07 && c.alarm[0].value < 0.15 && c.alarm[0].limit >= on.straggler &&
                          c.alarm[0].limit < 0.15);
                ck_assert_ptr_nonnull(strstr(c.alarm[0].words, "longer than the median of the other ranks, waits"));
            }
        }
        late += !named || named - from > 20;
        hd__watch_finish(&c.watch);
    }
    print_count("late of 500, of ranks", _i ? 16 : 2, late);
    ck_assert_msg(late <= TRIALS / 100, "%d of %d were named late or never", late, TRIALS);
}
END_TEST

/* Ranks beside other programs, whose times change by 15% from row to row: one that becomes slower by 40%. */
START_TEST(named_beside_others)
{
    enum { TRIALS = 500 };
    int late = 0;
    for (int trial = 0; trial < TRIALS; trial++) {
        struct cluster c = {.watch = {.config = {.straggler = 0.1}},
                            .state = other_times() + (uint64_t)trial + 7,
                            .n = _i ? 16 : 2,
                            .deviation = 0.15};
        int64_t from = 60 + trial % 90, named = 0;
        int32_t slow = trial % c.n;
        while (!named && c.step < from + 40) {
            make_row(&c);
            if (c.step >= from)
                c.rank[slow][HD__RANK_COMPUTE] *= 1.4;
            if (alone(&c, watch(&c), HD__WATCH_STRAGGLER) && c.alarm[0].rank == slow)
                named = c.step;
        }
        late += !named || named - from > 20;
        hd__watch_finish(&c.watch);
    }
    print_count("late of 500 beside others, of ranks", _i ? 16 : 2, late);
    ck_assert_msg(late <= TRIALS / 5, "%d of %d were named late or never", late, TRIALS);
}
END_TEST

/* On a machine where ranks take turns it takes a rank that is much slower. */
START_TEST(named_in_noise)
{
    struct cluster c = {.watch = {.config = {.straggler = 0.1}}, .state = 11, .n = 2, .deviation = 0.4};
    int64_t named = 0;
    while (!named && c.step < 140) {
        make_row(&c);
        c.rank[1][HD__RANK_COMPUTE] *= c.step >= 100 ? 4 : 1;
        if (alone(&c, watch(&c), HD__WATCH_STRAGGLER))
            named = c.step;
    }
    ck_assert_msg(named > 100 && named <= 120, "named at step %d", (int)named);
    ck_assert(c.alarm[0].rank == 1 && c.alarm[0].value > 1 && c.alarm[0].limit > 0.2);
    hd__watch_finish(&c.watch);
}
END_TEST

/* A stage that has more to do is no straggler, one of its ranks may be. It is named again once it was well between. */
START_TEST(stages)
{
    struct cluster c = {.watch = {.config = on}, .state = 5, .n = 4, .deviation = 0.01};
    int named = 0;
    for (int64_t k = 0; k < 400; k++) {
        make_row(&c);
        for (int32_t r = 2; r < 4; r++) {
            c.rank[r][HD__RANK_STAGE] = 1;
            c.rank[r][HD__RANK_COMPUTE] *= 1.5;
        }
        if (k > 100 && k % 200 > 100)
            c.rank[3][HD__RANK_COMPUTE] *= 1.3;
        if (alone(&c, watch(&c), HD__WATCH_STRAGGLER)) {
            ck_assert_int_eq(c.alarm[0].rank, 3);
            ck_assert_ptr_nonnull(strstr(c.alarm[0].words, "of its stage"));
            named++;
        }
    }
    ck_assert_int_eq(named, 2);
    ck_assert_int_eq(c.watch.total[HD__WATCH_STRAGGLER], 2);
    hd__watch_finish(&c.watch);
}
END_TEST

/* One thing goes wrong from step 200 on, on rank 2. */
static void plant(struct cluster *c, int32_t rule)
{
    double *rank = c->rank[2], since = (double)(c->step - 200);
    if (since < 0)
        return;
    if (rule == HD__WATCH_DATA_WAIT)
        rank[HD__RANK_DATA_WAIT] = 0.2 * rank[HD__RANK_COMPUTE];
    for (int32_t r = 0; r < c->n && rule == HD__WATCH_EXPOSED_COMM; r++)
        c->rank[r][HD__RANK_COMM_WAIT] = 0.28 * c->rank[r][HD__RANK_COMPUTE];
    if (rule == HD__WATCH_MEMORY)
        rank[HD__RANK_RSS] += 1e6 * since;
    if (rule == HD__WATCH_DESCRIPTORS)
        rank[HD__RANK_FILES] += floor(since / 4);
}

START_TEST(each)
{
    static const int32_t rules[] = {HD__WATCH_DATA_WAIT, HD__WATCH_EXPOSED_COMM, HD__WATCH_MEMORY,
                                    HD__WATCH_DESCRIPTORS};
    struct cluster c = {.watch = {.config = on}, .state = 3, .n = 4, .deviation = 0.02};
    int found = 0;
    c.watch.config.utilisation = 0.5;
    for (int64_t k = 0; k < 500; k++) {
        make_row(&c);
        plant(&c, rules[_i]);
        if (!alone(&c, watch(&c), rules[_i]))
            continue;
        found++;
        ck_assert(c.step > 200 && c.step < 200 + 3 * HD__WATCH_ROWS);
        ck_assert_int_eq(c.alarm[0].rank, rules[_i] == HD__WATCH_EXPOSED_COMM ? 0 : 2);
        ck_assert(c.alarm[0].value > c.alarm[0].limit && strstr(c.alarm[0].words, ": "));
    }
    ck_assert_int_eq(found, 1);
    hd__watch_finish(&c.watch);
}
END_TEST

/* Memory that is touched once, at any step, and a page more in every row: no leak. */
START_TEST(touched_once)
{
    struct cluster c = {.watch = {.config = {.memory = 0.05}}, .state = 3, .n = 2, .deviation = 0.02};
    for (int64_t k = 0; k < 1000; k++) {
        make_row(&c);
        c.rank[1][HD__RANK_RSS] +=
            4096.0 * (double)k + (k % 200 >= (_i + 1) * 20 ? 1 : 0) * 32e6 + (double)(k / 200) * 32e6;
        ck_assert_msg(watch(&c) == 0, "step %d: %s", (int)k, c.alarm[0].words);
    }
    hd__watch_finish(&c.watch);
}
END_TEST

START_TEST(utilisation)
{
    struct cluster c = {.watch = {.config = {.utilisation = 0.8}}, .state = 3, .n = 2, .deviation = 0.02};
    int found = 0;
    for (int64_t k = 0; k < 200; k++) {
        make_row(&c);
        for (int32_t r = 0; r < 2 && k >= 100; r++)
            c.rank[r][HD__RANK_DATA_WAIT] = c.rank[r][HD__RANK_COMPUTE] / 3;
        found += alone(&c, watch(&c), HD__WATCH_UTILISATION);
    }
    ck_assert_int_eq(found, 1);
    hd__watch_finish(&c.watch);
}
END_TEST

int main(void)
{
    TCase *t = tcase_create("watch_ranks");
    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, false_alarms, 0, HD__COUNT(machines));
    tcase_add_loop_test(t, named_in_time, 0, 2);
    tcase_add_loop_test(t, named_beside_others, 0, 2);
    tcase_add_test(t, named_in_noise);
    tcase_add_test(t, stages);
    tcase_add_loop_test(t, each, 0, 4);
    tcase_add_loop_test(t, touched_once, 0, 9);
    tcase_add_test(t, utilisation);
    return suite_run_case("watch_ranks", t);
}
