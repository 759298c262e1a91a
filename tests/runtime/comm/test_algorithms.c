/* Every algorithm of the core, for every operation, dtype, reduction and number of members that it can do: the
 * schedules of all members are run in one process, their steps and the arrival of messages in random order. A message
 * is copied at a random time between its posting and the fence that waits for it, so what touches a buffer too early is
 * found. */
#include <check.h>
#include <malloc.h>
#include <stdlib.h>

#include "conformance/comm/values.h"
#include "core/base/dtype.h"
#include "runtime/comm/algorithms/plan.h"
#include "tests/suite.h"

enum { MEMBERS = 17 };

struct message {
    int32_t from, to;
    const void *data; /* NULL: not sent yet */
    void *room;       /* NULL: not asked for yet */
    uint64_t bytes, room_bytes, number[2];
    int copied;
};

struct member {
    struct hd__coll_plan schedule;
    uint32_t at;
    uint64_t posted;
    uint8_t *send, *recv;
};

struct world {
    struct member member[MEMBERS];
    HD__ARRAY(struct message) messages;
    struct hd_comm_call call;
    uint64_t seed, random;
    int32_t n;
};

static uint64_t draw(struct world *w, uint64_t n)
{
    w->random = w->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (w->random >> 33) % n;
}

/* ---- messages: matched in order of their pair */

static struct message *match(struct world *w, int32_t from, int32_t to, int sends)
{
    struct message m = {.from = from, .to = to};
    for (uint32_t i = 0; i < w->messages.count; i++) {
        struct message *x = &w->messages.at[i];
        if (x->from == from && x->to == to && (sends ? !x->number[0] : !x->number[1]))
            return x;
    }
    hd__push(&w->messages, m);
    return &w->messages.at[w->messages.count - 1];
}

static void post(struct world *w, int32_t me, const struct hd__coll_step *step)
{
    int sends = step->kind == HD__COLL_STEP_SEND;
    struct message *m = match(w, sends ? me : step->peer, sends ? step->peer : me, sends);
    if (step->peer < 0 || step->peer >= w->n)
        ck_abort_msg("a message with member %d of %d", step->peer, w->n);
    m->number[!sends] = ++w->member[me].posted;
    if (sends)
        m->data = step->from, m->bytes = step->bytes;
    else
        m->room = step->to, m->room_bytes = step->bytes;
}

static void copy(struct message *m)
{
    if (m->bytes != m->room_bytes)
        ck_abort_msg("%llu bytes sent from %d to %d, %llu expected", (unsigned long long)m->bytes, m->from, m->to,
                     (unsigned long long)m->room_bytes);
    if (m->bytes)
        memcpy(m->room, m->data, m->bytes);
    m->copied = 1;
}

/* Whether the first so many messages of a member are done; those that can be are, now that somebody waits. */
static int fence(struct world *w, int32_t me, uint64_t first)
{
    int all = 1;
    for (uint32_t i = 0; i < w->messages.count; i++) {
        struct message *m = &w->messages.at[i];
        int mine = (m->from == me && m->number[0] && m->number[0] <= first) ||
                   (m->to == me && m->number[1] && m->number[1] <= first);
        if (!mine || m->copied)
            continue;
        if (m->number[0] && m->number[1])
            copy(m);
        else
            all = 0;
    }
    return all;
}

static int one_step(struct world *w, int32_t me)
{
    struct member *m = &w->member[me];
    const struct hd__coll_step *step = &m->schedule.steps.at[m->at];
    switch (step->kind) {
    case HD__COLL_STEP_SEND:
    case HD__COLL_STEP_RECV:
        post(w, me, step);
        break;
    case HD__COLL_STEP_COPY:
        memmove(step->to, step->from, step->bytes);
        break;
    case HD__COLL_STEP_REDUCE:
        hd__comm_reduce(step->to, m->schedule.sources.at + step->first, (int32_t)step->n, w->n, step->bytes,
                        step->dtype, step->redop);
        break;
    case HD__COLL_STEP_WIDEN:
        hd__to_f32(step->dtype, step->from, step->to, step->bytes);
        break;
    case HD__COLL_STEP_NARROW:
        hd__from_f32(step->dtype, step->from, step->to, step->bytes);
        break;
    default:
        if (!fence(w, me, step->bytes))
            return 0;
    }
    m->at++;
    return 1;
}

static void run(struct world *w)
{
    for (;;) {
        int moved = 0, left = 0;
        for (int32_t k = 0, first = (int32_t)draw(w, (uint64_t)w->n); k < w->n; k++) {
            struct member *m = &w->member[(first + k) % w->n];
            for (uint64_t steps = draw(w, 5); steps && m->at < m->schedule.steps.count; steps--)
                if (one_step(w, (first + k) % w->n))
                    moved = 1;
                else
                    break;
            left += m->at < m->schedule.steps.count;
        }
        for (uint32_t i = 0; i < w->messages.count; i++) {
            struct message *m = &w->messages.at[i];
            if (!m->copied && m->number[0] && m->number[1] && draw(w, 8) == 0)
                copy(m);
        }
        if (!left)
            break;
        if (!moved) { /* it may be that nobody was drawn: then all are */
            for (int32_t r = 0; r < w->n; r++)
                moved |= w->member[r].at < w->member[r].schedule.steps.count && one_step(w, r);
            ck_assert_msg(moved, "nobody can go on");
        }
    }
    for (uint32_t i = 0; i < w->messages.count; i++)
        if (!w->messages.at[i].copied)
            ck_abort_msg("a message is left over");
}

/* ---- one call */

static uint64_t parts(const struct world *w, int sends)
{
    uint32_t c = w->call.coll;
    int many = c == HD_COLL_ALL_TO_ALL || c == (sends ? HD_COLL_REDUCE_SCATTER : HD_COLL_ALL_GATHER);
    return many ? (uint64_t)w->n : 1;
}

static void prepare(struct world *w, const struct hd__tuning *tuning, int in_place)
{
    size_t esize = hd_dtype_size(w->call.dtype), most = (size_t)w->call.count * (size_t)w->n * esize + 64;
    struct hd_error err = HD_ERROR_INIT;
    w->messages.count = 0;
    for (int32_t r = 0; r < w->n; r++) {
        struct member *m = &w->member[r];
        uint64_t piece = (uint64_t)r * w->call.count * esize;
        struct hd_comm_call call = w->call;
        uint8_t *a = calloc(1, most), *b = in_place ? a : calloc(1, most);
        m->send = in_place && call.coll == HD_COLL_ALL_GATHER ? a + piece : a;
        m->recv = in_place && call.coll == HD_COLL_REDUCE_SCATTER ? a + piece : b;
        values_fill(m->send, call.dtype, w->seed, r, 0, call.count * parts(w, 1));
        call.send = m->send;
        call.recv = call.coll == HD_COLL_REDUCE && r != call.root ? NULL : m->recv;
        m->at = 0;
        m->posted = 0;
        hd__comm_plan_clear(&m->schedule);
        if (hd__comm_plan_build(&m->schedule, tuning, w->n, r, &call, &err))
            ck_abort_msg("%s", err.message);
        m->send = a; /* to free */
        m->recv = in_place ? m->recv : b;
    }
}

static void check_all(const struct world *w, const char *name, int in_place)
{
    for (int32_t r = 0; r < w->n; r++) {
        int nothing = w->call.coll == HD_COLL_BARRIER || (w->call.coll == HD_COLL_REDUCE && r != w->call.root);
        uint64_t n = nothing ? 0 : w->call.count * parts(w, 0);
        uint64_t at = n ? values_wrong(w->member[r].recv, &w->call, w->seed, w->n, r) : 0;
        if (at < n)
            ck_abort_msg("%s by %s: %s redop %u, member %d of %d, element %llu of %llu, in place %d",
                         hd_coll_name(w->call.coll), name, hd_dtype_name(w->call.dtype), w->call.redop, r, w->n,
                         (unsigned long long)at, (unsigned long long)w->call.count, in_place);
    }
}

static void one_call(struct world *w, const struct hd__tuning *tuning, const char *name, int in_place)
{
    w->seed = (w->seed & ~VALUES_KIND) + 1;
    if (tuning->any_order && w->call.dtype != HD_I32 && w->call.dtype != HD_U8 && w->call.redop != HD_MAX)
        w->seed |= VALUES_WHOLE;
    prepare(w, tuning, in_place);
    run(w);
    check_all(w, name, in_place);
    for (int32_t r = 0; r < w->n; r++) {
        if (!in_place)
            free(w->member[r].recv);
        free(w->member[r].send);
    }
}

/* ---- all of them */

static void all_calls(struct world *w, const struct hd__algorithm *a, struct hd__tuning *tuning)
{
    static const uint32_t dtypes[] = {HD_F32, HD_BF16, HD_F16, HD_F64, HD_I32, HD_U8};
    static const uint64_t counts[] = {1, 7, 97};
    int reduces = a->coll == HD_COLL_ALL_REDUCE || a->coll == HD_COLL_REDUCE || a->coll == HD_COLL_REDUCE_SCATTER;
    for (size_t k = 0; k < HD__COUNT(dtypes) * HD__COUNT(counts); k++)
        for (uint32_t redop = HD_SUM; redop <= (reduces ? HD_AVG : HD_SUM); redop++) {
            uint64_t chunk;
            int in_place = a->coll != HD_COLL_ALL_TO_ALL && a->coll != HD_COLL_BARRIER && draw(w, 2);
            w->call = (struct hd_comm_call){.struct_size = sizeof w->call,
                                            .coll = a->coll,
                                            .redop = redop,
                                            .dtype = dtypes[k / HD__COUNT(counts)],
                                            .count = counts[k % HD__COUNT(counts)],
                                            .root = (int32_t)draw(w, (uint64_t)w->n)};
            if (!hd__comm_algorithm_supports(a, &w->call, w->n, tuning->any_order))
                continue;
            ck_assert_ptr_eq(hd__comm_algorithm_select(tuning, &w->call, w->n, &chunk), a);
            one_call(w, tuning, a->name, in_place);
        }
}

/* _i: the algorithm, twice: sums in the tree, and in any order. */
START_TEST(every_algorithm)
{
    const struct hd__algorithm *a = hd__comm_algorithm_at((uint32_t)_i / 2);
    static struct world w;
    w.random = 77 + (uint64_t)_i;
    for (w.n = 1; w.n <= MEMBERS; w.n += w.n < 9 ? 1 : 4)
        for (uint64_t chunk = 64; chunk <= 1 << 20; chunk <<= 14) {
            struct hd__tuning tuning = {.any_order = _i & 1};
            struct hd__tuning_rule rule = {a->coll, INT32_MAX, UINT64_MAX, a, chunk};
            hd__push(&tuning.rules, rule);
            all_calls(&w, a, &tuning);
            hd__free_array(&tuning.rules);
        }
    for (int r = 0; r < MEMBERS; r++)
        hd__comm_plan_free(&w.member[r].schedule);
    hd__free_array(&w.messages);
}
END_TEST

/* Whatever the call, there is somebody who can do it. */
START_TEST(somebody_can)
{
    for (uint32_t coll = HD_COLL_ALL_REDUCE; coll <= HD_COLL_BARRIER; coll++)
        for (int32_t n = 1; n < 20; n++)
            for (uint32_t dtype = HD_F32; dtype <= HD_U8; dtype++)
                for (uint64_t count = 1; count < UINT64_C(1) << 40; count *= 8)
                    for (uint32_t redop = HD_SUM; redop <= HD_AVG; redop++) {
                        struct hd_comm_call call = {.coll = coll, .dtype = dtype, .redop = redop, .count = count};
                        uint64_t chunk = 0;
                        const struct hd__algorithm *a = hd__comm_algorithm_select(NULL, &call, n, &chunk);
                        if (!a || !chunk || !hd__comm_algorithm_supports(a, &call, n, 0))
                            ck_abort_msg("%s of %s, n %d: nobody can", hd_coll_name(coll), hd_dtype_name(dtype), n);
                    }
}
END_TEST

/* A group of more than 1,024: what each member sends to each other is what that one receives from it. */
START_TEST(large_group)
{
    enum { N = 1100, COUNT = 1500 };
    const struct hd__algorithm *a = hd__comm_algorithm_at((uint32_t)_i);
    int64_t *between = calloc((size_t)N * N, sizeof *between);
    uint8_t *send = malloc((size_t)N * COUNT * 4), *recv = malloc((size_t)N * COUNT * 4);
    struct hd__tuning tuning = {.any_order = 1};
    struct hd__tuning_rule rule = {a->coll, INT32_MAX, UINT64_MAX, a, 4096};
    struct hd_comm_call call = {.struct_size = sizeof call,
                                .coll = a->coll,
                                .dtype = HD_F32,
                                .redop = HD_SUM,
                                .count = COUNT,
                                .root = 1050,
                                .send = send,
                                .recv = recv};
    struct hd__coll_plan plan = {0};
    struct hd_error err = HD_ERROR_INIT;
    uint64_t messages = 0;
    mallopt(M_PERTURB, 0); /* meson has malloc fill what it gives: here scratch of megabytes a plan that nothing runs */
    hd__push(&tuning.rules, rule);
    for (int32_t r = 0; r < N && hd__comm_algorithm_supports(a, &call, N, 1); r++) {
        ck_assert_msg(!hd__comm_plan_build(&plan, &tuning, N, r, &call, &err), "%s", err.message);
        ck_assert_ptr_eq(plan.use, a);
        messages += plan.messages;
        for (uint32_t i = 0; i < plan.steps.count; i++) {
            const struct hd__coll_step *step = &plan.steps.at[i];
            if (step->kind == HD__COLL_STEP_SEND)
                between[(size_t)r * N + (size_t)step->peer] += (int64_t)step->bytes;
            if (step->kind == HD__COLL_STEP_RECV)
                between[(size_t)step->peer * N + (size_t)r] -= (int64_t)step->bytes;
        }
        hd__comm_plan_clear(&plan);
    }
    for (size_t i = 0; i < (size_t)N * N; i++)
        if (between[i])
            ck_abort_msg("from member %zu to %zu: %lld bytes are not received", i / N, i % N, (long long)between[i]);
    ck_assert(messages || !hd__comm_algorithm_supports(a, &call, N, 1));
    hd__comm_plan_free(&plan);
    hd__free_array(&tuning.rules);
    free(between), free(send), free(recv);
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("algorithms");
    int n = 0;
    while (hd__comm_algorithm_at((uint32_t)n))
        n++;
    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, every_algorithm, 0, 2 * n);
    tcase_add_test(tc, somebody_can);
    tcase_add_loop_test(tc, large_group, 0, n);
    return suite_run_case("algorithms", tc);
}
