/* comm-shm where members are of uneven speed: long runs of rooted operations, in which some are ahead, between
 * others of all sizes; and a member that goes astray in the middle of it. All ranks draw the same plan; each has its
 * own pace, on which nothing that is asked here depends. Run as test_uneven FOLDER [SEED [TIMES]]: so many times as
 * long. */
#include <check.h>
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

#include "conformance/comm/jobs.h"
#include "tests/suite.h"

enum { AHEAD = 64, WINDOW = 3, ROOM = 200 << 10, OPERATIONS = 1500, TRIALS = 40 };

static uint64_t the_seed = 1, times = 1;

struct plan {
    uint64_t state;
    int left, slow; /* of the present run; who is slow in it */
    uint32_t coll;  /* 0: any */
    int32_t root;
};

/* Bytes of one part: in the slot, in its place, about the largest small one, staged or not. */
static uint64_t draw_bytes(uint64_t *p, uint64_t most)
{
    static const uint64_t sizes[] = {0, 4, 40, 48, 49, 200, 256, 257, 1024, 1025, 4096, 4097, 16384, 20000, 190000};
    uint64_t k = value_below(p, 42), bytes = k < HD__COUNT(sizes) ? sizes[k] : value_below(p, 300);
    return HD__MIN(bytes, most);
}

static void draw_run(struct plan *p, int32_t n)
{
    uint64_t kind = value_below(&p->state, 4);
    p->coll = kind == 0 ? HD_COLL_BROADCAST : kind == 1 ? HD_COLL_REDUCE : 0;
    p->root = (int32_t)value_below(&p->state, (uint64_t)n);
    p->left = p->coll ? 1 + (int)value_below(&p->state, 180) : 1 + (int)value_below(&p->state, 20);
    p->slow = (int)value_below(&p->state, 2 * (uint64_t)n);
}

static struct job draw_job(struct plan *p, int32_t n, int32_t me, uint64_t seed)
{
    if (p->left-- <= 0)
        draw_run(p, n);
    struct job j = {.n = n, .me = me, .seed = seed, .coll = p->coll, .root = p->root};
    if (!j.coll) {
        j.coll = 1 + (uint32_t)value_below(&p->state, 7);
        j.root = (int32_t)value_below(&p->state, (uint64_t)n);
    }
    j.dtype = all_dtypes[value_below(&p->state, HD__COUNT(all_dtypes))];
    j.redop = HD_SUM + (uint32_t)value_below(&p->state, 3);
    j.count = draw_bytes(&p->state, (ROOM - 4 * GUARD) / (uint64_t)n) / hd_dtype_size(j.dtype);
    j.in_place = value_below(&p->state, 2) && j.coll != HD_COLL_ALL_TO_ALL;
    j.memory = (int)value_below(&p->state, 3);
    return j;
}

static void dawdle(const struct rank *rank, const struct plan *p, uint64_t *own)
{
    if (p->slow == rank->rank && value_below(own, 8) == 0)
        usleep((useconds_t)value_below(own, 400));
    else if (value_below(own, 50) == 0)
        sched_yield();
}

static int end(struct rank *rank, struct job *j)
{
    struct hd_error err = HD_ERROR_INIT;
    EXPECT(finish(rank, j->request, &err) == HD_OK, "operation %llu: %s", (unsigned long long)j->seed, err.message);
    return j->coll == HD_COLL_BARRIER ? 0 : job_check(rank, j);
}

static int start(struct rank *rank, struct hd_comm_group *group, struct buffers *b, struct job *j, int slot)
{
    int s = j->memory == MIXED ? rank->rank & 1 : j->memory, r = j->memory == MIXED ? rank->rank >> 1 & 1 : j->memory;
    return job_start(rank, group, j, b->send[s] + (size_t)slot * ROOM, b->recv[r] + (size_t)slot * ROOM);
}

static int uneven(struct rank *rank)
{
    const uint64_t operations = OPERATIONS * times;
    struct plan plan = {.state = the_seed};
    struct job jobs[WINDOW];
    struct buffers buffers;
    struct hd_comm_group *group;
    uint64_t own = the_seed ^ (uint64_t)(rank->rank + 1) << 32, begun = 0, ended = 0;
    if (buffers_open(rank, &buffers) || world_group(rank, "uneven", &group))
        return 1;
    while (ended < operations) {
        uint64_t window = 1 + value_below(&own, WINDOW);
        while (begun < operations && begun - ended < window) {
            struct job *j = &jobs[begun % WINDOW];
            *j = draw_job(&plan, rank->size, rank->rank, begun + 1);
            dawdle(rank, &plan, &own);
            if (start(rank, group, &buffers, j, (int)(begun++ % WINDOW)))
                return 1;
        }
        if (end(rank, &jobs[ended++ % WINDOW]))
            return 1;
    }
    return 0;
}

/* ---- one member does something else */

static void deviate(struct job *j, int how, uint64_t *tag)
{
    switch (how) {
    case 0:
        *tag += 1;
        break;
    case 1:
        j->root = (j->root + 1) % j->n;
        *tag += !coll_is_rooted(j->coll);
        break;
    case 2:
        j->count = j->count == 1000 ? 20 : 1000;
        *tag += j->coll == HD_COLL_BARRIER;
        break;
    case 3:
        j->dtype = j->dtype == HD_F64 ? HD_U8 : HD_F64;
        *tag += j->coll == HD_COLL_BARRIER;
        break;
    default:
        j->coll = 1 + j->coll % 7;
    }
}

static int32_t run_job(struct rank *rank, struct hd_comm_group *group, struct buffers *b, const struct job *j,
                       uint64_t tag, struct hd_error *err)
{
    hd_request request;
    struct hd_comm_call call = {sizeof call, j->coll,    j->dtype, j->redop, j->root,
                                b->send[0],  b->recv[0], j->count, tag};
    int32_t code = rank->ops->collective(group, &call, &request, err);
    return code == HD_OK ? finish(rank, request, err) : code;
}

/* Everybody is told, at the latest by the operation that may not be posted before the one that differs was compared. */
static int astray_once(struct rank *rank, struct buffers *b, struct plan *plan, uint64_t *own, int trial)
{
    char name[32], text[100];
    struct hd_comm_group *group;
    struct hd_error err = HD_ERROR_INIT;
    int32_t odd = (int32_t)value_below(&plan->state, (uint64_t)rank->size), code = HD_OK, k;
    int where = (int)value_below(&plan->state, 70), how = (int)value_below(&plan->state, 5);
    snprintf(name, sizeof name, "astray-%d", trial);
    if (world_group(rank, name, &group))
        return 1;
    for (k = 0; k <= where + AHEAD && code == HD_OK; k++) {
        uint64_t tag = 1;
        struct job j = draw_job(plan, rank->size, rank->rank, 1);
        if (k == where && rank->rank == odd)
            deviate(&j, how, &tag);
        dawdle(rank, plan, own);
        code = run_job(rank, group, b, &j, tag, &err);
    }
    EXPECT(code == HD_E_MISMATCH && k > where, "trial %d: operation %d of which %d differs: %d %s", trial, k - 1, where,
           code, err.message);
    snprintf(text, sizeof text, "operation %d of group %s differs", where + 1, name);
    EXPECT(strstr(err.message, text), "trial %d: %s", trial, err.message);
    snprintf(text, sizeof text, "rank %d has", odd);
    EXPECT(strstr(err.message, text), "trial %d: %s", trial, err.message);
    if (value_below(own, 2))
        rank->ops->group_free(group);
    return 0;
}

static int astray(struct rank *rank)
{
    struct buffers buffers;
    uint64_t own = the_seed ^ (uint64_t)(rank->rank + 1) << 32;
    if (buffers_open(rank, &buffers))
        return 1;
    for (int trial = 0; trial < TRIALS * (int)times; trial++) {
        struct plan plan = {.state = the_seed * 100000 + (uint64_t)trial};
        if (astray_once(rank, &buffers, &plan, &own, trial))
            return 1;
    }
    return 0;
}

static const struct {
    int32_t ranks;
    int (*body)(struct rank *rank);
    const char *settings;
    int one_core; /* small operations are larger where ranks share cores */
} cases[] = {
    {2, uneven, "stage=64KiB", 0}, {2, uneven, "stage=64KiB", 1}, {3, uneven, "small=1KiB stage=64KiB", 0},
    {5, uneven, "stage=64KiB", 0}, {2, astray, NULL, 0},          {3, astray, NULL, 0},
    {5, astray, NULL, 1},
};

START_TEST(paces)
{
    struct ranks_options options = {.size = cases[_i].ranks, .settings = cases[_i].settings};
    cpu_set_t all, one;
    ck_assert_int_eq(sched_getaffinity(0, sizeof all, &all), 0);
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    sched_setaffinity(0, sizeof one, cases[_i].one_core ? &one : &all);
    ck_assert_int_eq(run_ranks(&options, cases[_i].body, NULL), 0);
    sched_setaffinity(0, sizeof all, &all);
}
END_TEST

int main(int argc, char **argv)
{
    TCase *tc = tcase_create("uneven");
    transport_name = "shm";
    transport_folder = argc > 1 ? argv[1] : transport_folder;
    the_seed = argc > 2 ? (uint64_t)atoll(argv[2]) : the_seed;
    times = argc > 3 ? (uint64_t)atoll(argv[3]) : times;
    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, paces, 0, HD__COUNT(cases));
    return suite_run_case("uneven", tc);
}
