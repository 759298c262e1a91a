/* Faults planted at random in real programs, llama on several meshes: verify or the token machine finds every
 * one. */
#include <check.h>
#include <stdlib.h>

#include "analysis/numerics.h"
#include "analysis/sim/machine.h"
#include "conformance/edits.h"
#include "core/program/access.h"
#include "core/program/ops.h"
#include "core/verify/verify.h"
#include "runtime/exec/select.h"
#include "tests/suite.h"

static struct hd__plugins *plugins;
static struct hd__job *job;
static struct hd__compiled *fine, *broken;
static uint64_t state;
static char job_of[1024];
static struct hd_error err;

static uint32_t pick(uint32_t n)
{
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)((state >> 33) % n);
}

static void compile(int32_t stage)
{
    snprintf(
        job_of, sizeof job_of,
        "job: {name: faults, steps: 1}\nmesh: {dp: 2, tp: 2}\nstrategies:\n  - {use: 3d, sequence_parallel: true}\n  - "
        "{use: zero, stage: %d, bucket: 0}\noptimizer: {use: adamw, lr: 1e-2}\nmodel: {use: transformer, family: "
        "llama, layers: 2, hidden: 16, heads: 4, kv_heads: 2, ffn: 32, vocab: 32}\ndata: {train: none, seq_len: 8, "
        "batch: 16, micro_batch: 4}\nprecision: {compute: fp64}\ndevice: {use: cpu, kernels: reference, threads: 1}\n",
        stage);
    ck_assert_msg(!hd__job_parse("job", job_of, strlen(job_of), NULL, 0, &job, &err) &&
                      !hd__job_resolve(job, 0, &err) && !hd__exec_compile(job, plugins, &fine, &err) &&
                      !hd__exec_compile(job, plugins, &broken, &err),
                  "%s", err.message);
}

static void discard(void)
{
    hd__exec_compiled_free(fine);
    hd__exec_compiled_free(broken);
    hd__job_free(job);
}

static void set_up(void)
{
    err = (struct hd_error)HD_ERROR_INIT;
    plugins = hd__plugins_create(hd__exec_host_table());
    ck_assert_msg(!hd__plugins_add_folder(plugins, PLUGINS, &err), "%s", err.message);
    state = 7;
}

static void tear_down(void)
{
    hd__plugins_destroy(plugins);
}

/* ---- picking and editing */

typedef int wanted(const struct hd_program *p, const hd__code *code, uint32_t n);

static int is_wait(const struct hd_program *p, const hd__code *code, uint32_t n)
{
    (void)p;
    return code->at[n].op == HD_OP_WAIT;
}

static int is_collective(const struct hd_program *p, const hd__code *code, uint32_t n)
{
    (void)p;
    return hd__is_collective(code->at[n].op);
}

static int is_release(const struct hd_program *p, const hd__code *code, uint32_t n)
{
    (void)p;
    return code->at[n].op == HD_OP_RELEASE;
}

/* A sum of a flat's gradients over the data ranks. */
static int is_reduction(const struct hd_program *p, const hd__code *code, uint32_t n)
{
    const struct hd__instr *i = &code->at[n];
    return (i->op == HD_OP_ALL_REDUCE || i->op == HD_OP_REDUCE_SCATTER) && i->axes & HD_AXIS_BIT(HD_AXIS_DP_SHARD) &&
           hd__tensor_const(p, i->in[0])->role == HD__ROLE_FLAT;
}

/* The first instruction that makes a temporary, which another reads. */
static int is_needed(const struct hd_program *p, const hd__code *code, uint32_t n)
{
    const struct hd__instr *i = &code->at[n];
    uint32_t buffer = i->n_out ? hd__tensor_const(p, i->out[0])->buffer : 0;
    int reads = 0;
    if (!buffer || hd__is_async(i) || p->buffers.at[buffer].life != HD__LIFE_TEMP || hd__reads_outputs(i) ||
        hd__op(i->op)->flags & HD__OP_IN_PLACE || hd__op(i->op)->class == HD__CLASS_LOCAL)
        return 0;
    for (uint32_t k = 0; k < code->count; k++)
        for (uint32_t a = 0; k != n && a < code->at[k].n_out; a++)
            if (hd__tensor_const(p, code->at[k].out[a])->buffer == buffer)
                return 0; /* somebody else makes it too */
    for (uint32_t k = n + 1; k < code->count; k++)
        for (uint32_t a = 0; a < code->at[k].n_in; a++)
            reads |= code->at[k].in[a] == i->out[0];
    return reads;
}

/* A random instruction of this kind in the broken program; its section is written. */
static uint32_t choose(wanted *want, hd__code **code)
{
    struct hd_program *p = broken->stage[0];
    for (;;) {
        hd__code *c = &p->sections.at[pick(p->sections.count)].code;
        uint32_t n = c->count ? pick(c->count) : 0;
        if (c->count && want(p, c, n)) {
            *code = c;
            return n;
        }
    }
}

static void drop(hd__code *code, uint32_t at)
{
    uint32_t id = code->at[at].id, wait = hd__is_async(&code->at[at]) ? wait_of(code, id) : UINT32_MAX;
    if (wait != UINT32_MAX)
        erase(code, wait);
    erase(code, at);
}

/* ---- how a fault must show */

static void assert_refused(const char *part)
{
    ck_assert_int_eq(hd__verify(broken->stage[0], &err), HD_E_INVALID);
    ck_assert_msg(strstr(err.message, part) != NULL, "'%s' is not in: %s", part, err.message);
}

/* One rank runs the broken program, which is right by itself, the others the fine one. */
static void assert_stuck(int32_t rank)
{
    const struct hd_program *programs[4];
    char name[16];
    for (int32_t r = 0; r < 4; r++)
        programs[r] = r == rank ? broken->stage[0] : fine->stage[0];
    struct hd__sim *m = hd__sim_create(&fine->mesh, programs, NULL);
    ck_assert_int_eq(hd__sim_verify(m, &err), HD_E_MISMATCH);
    snprintf(name, sizeof name, "rank %d", rank);
    ck_assert_msg(strstr(hd__sim_report(m), name) != NULL, "%s is not in: %s", name, hd__sim_report(m));
    hd__sim_destroy(m);
}

#define EACH_STAGE_AND_TRY(tries)               \
    for (int32_t stage = 0; stage < 4; stage++) \
        for (uint32_t try = 0; try < (tries); try++)

START_TEST(nothing_planted)
{
    EACH_STAGE_AND_TRY(1)
    {
        const struct hd_program *programs[4];
        compile(stage);
        for (int32_t r = 0; r < 4; r++)
            programs[r] = broken->stage[0];
        ck_assert_msg(!hd__verify(broken->stage[0], &err), "%s", err.message);
        struct hd__sim *m = hd__sim_create(&fine->mesh, programs, NULL);
        ck_assert_msg(!hd__sim_verify(m, &err), "%s", err.message);
        hd__sim_destroy(m);
        discard();
    }
}
END_TEST

START_TEST(a_wait_is_dropped)
{
    EACH_STAGE_AND_TRY(10)
    {
        hd__code *code;
        compile(stage);
        uint32_t at = choose(is_wait, &code);
        erase(code, at);
        ck_assert_int_eq(hd__verify(broken->stage[0], &err), HD_E_INVALID);
        ck_assert_msg(strstr(err.message, "is never waited for") || strstr(err.message, "missing wait"), "%s",
                      err.message);
        discard();
    }
}
END_TEST

START_TEST(a_wait_comes_too_late)
{
    EACH_STAGE_AND_TRY(10)
    {
        hd__code *code;
        compile(stage);
        uint32_t at;
        do /* its place must matter: not among the waits at the end */
            at = choose(is_wait, &code);
        while (at + 1 == code->count || code->at[at + 1].op == HD_OP_WAIT);
        struct hd__instr wait = code->at[at];
        erase(code, at);
        insert(code, code->count, wait);
        assert_refused("in flight: missing wait");
        discard();
    }
}
END_TEST

START_TEST(a_wait_is_doubled)
{
    EACH_STAGE_AND_TRY(5)
    {
        hd__code *code;
        compile(stage);
        uint32_t at = choose(is_wait, &code);
        struct hd__instr wait = code->at[at];
        insert(code, at, wait);
        assert_refused("waits for an operation that is not in flight any more");
        discard();
    }
}
END_TEST

START_TEST(a_maker_is_dropped)
{
    EACH_STAGE_AND_TRY(10)
    {
        hd__code *code;
        compile(stage);
        uint32_t at = choose(is_needed, &code);
        erase(code, at);
        assert_refused("before its definition");
        discard();
    }
}
END_TEST

START_TEST(a_release_comes_too_early)
{
    for (int32_t stage = 2; stage < 4; stage++)
        for (uint32_t try = 0; try < 10; try++) {
            hd__code *code;
            compile(stage);
            uint32_t at = choose(is_release, &code), use = at;
            struct hd__instr release = code->at[at];
            uint32_t buffer = hd__tensor_const(broken->stage[0], release.in[0])->buffer;
            for (int found = 0; !found;) { /* the last use before it */
                struct hd__access t[HD__MAX_ACCESSES];
                use--;
                for (uint32_t k = hd__accesses(broken->stage[0], &code->at[use], t); k-- > 0;)
                    found |= t[k].buffer == buffer && t[k].reads;
            }
            erase(code, at);
            insert(code, use, release);
            assert_refused("after its release");
            discard();
        }
}
END_TEST

START_TEST(all_ranks_lack_a_reduction)
{
    EACH_STAGE_AND_TRY(5)
    {
        hd__code *code;
        compile(stage);
        uint32_t at = choose(is_reduction, &code);
        drop(code, at);
        ck_assert_int_eq(hd__verify(broken->stage[0], &err), HD_E_INVALID);
        ck_assert_msg(strstr(err.message, "not reduced") || strstr(err.message, "no gradient") ||
                          strstr(err.message, "before its"),
                      "%s", err.message);
        discard();
    }
}
END_TEST

START_TEST(a_reduction_is_done_twice)
{
    EACH_STAGE_AND_TRY(5)
    {
        hd__code *code;
        compile(stage);
        uint32_t at = choose(is_reduction, &code), wait = wait_of(code, code->at[at].id);
        ck_assert_uint_lt(wait, code->count);
        struct hd__instr again = code->at[at], again_wait = code->at[wait];
        again.id = again_wait.wait = ++broken->stage[0]->next_id;
        again_wait.id = ++broken->stage[0]->next_id;
        if (again.op == HD_OP_REDUCE_SCATTER) { /* the result once more over the same axes */
            again.op = HD_OP_ALL_REDUCE;
            again.in[0] = again.out[0];
        }
        insert(code, wait + 1, again);
        insert(code, wait + 2, again_wait);
        assert_refused("reduced twice over dp_shard");
        discard();
    }
}
END_TEST

START_TEST(one_rank_lacks_a_collective)
{
    EACH_STAGE_AND_TRY(10)
    {
        hd__code *code;
        compile(stage);
        uint32_t at = choose(is_collective, &code);
        drop(code, at);
        assert_stuck((int32_t)pick(4));
        discard();
    }
}
END_TEST

START_TEST(one_rank_has_another_operation)
{
    EACH_STAGE_AND_TRY(5)
    {
        hd__code *code;
        compile(stage);
        uint32_t at = choose(is_collective, &code);
        struct hd__instr *i = &code->at[at];
        i->redop = i->redop == HD_MAX ? HD_SUM : HD_MAX;
        assert_stuck((int32_t)pick(4));
        discard();
    }
}
END_TEST

START_TEST(one_rank_swaps_two_collectives)
{
    EACH_STAGE_AND_TRY(10)
    {
        hd__code *code;
        compile(stage);
        uint32_t a, b;
        do {
            a = choose(is_collective, &code);
            for (b = a + 1;
                 b < code->count && !(is_collective(NULL, code, b) && code->at[b].stream == code->at[a].stream);)
                b++;
        } while (b == code->count);
        struct hd__instr x = code->at[a];
        code->at[a] = code->at[b];
        code->at[b] = x;
        assert_stuck((int32_t)pick(4));
        discard();
    }
}
END_TEST

START_TEST(one_rank_joins_another_group)
{
    EACH_STAGE_AND_TRY(5)
    {
        hd__code *code;
        compile(stage);
        uint32_t at = choose(is_collective, &code);
        uint32_t tp = HD_AXIS_BIT(HD_AXIS_TP), dp = HD_AXIS_BIT(HD_AXIS_DP_SHARD);
        code->at[at].axes = code->at[at].axes == tp ? dp : tp; /* on the stream where the others meet */
        assert_stuck((int32_t)pick(4));
        discard();
    }
}
END_TEST

/* ---- the numbers show it too: what verify refuses is emulated all the same */

static double difference(void)
{
    struct hd__numerics result;
    struct hd__compiled *one;
    struct hd__job *alone;
    const char *const words[] = {"mesh={pp: 1, dp: 1, cp: 1, ep: 1, tp: 1}", "data.micro_batch=16"};
    ck_assert_msg(!hd__job_parse("job", job_of, strlen(job_of), words, 2, &alone, &err) &&
                      !hd__job_resolve(alone, 0, &err) && !hd__exec_compile(alone, plugins, &one, &err),
                  "%s", err.message);
    ck_assert_msg(!hd__numerics(one, broken, 2, 5, &result, &err), "%s", err.message);
    hd__exec_compiled_free(one);
    hd__job_free(alone);
    return result.worst;
}

START_TEST(a_missing_reduction_changes_the_numbers)
{
    EACH_STAGE_AND_TRY(2)
    {
        hd__code *code;
        compile(stage);
        ck_assert_double_lt(difference(), 1e-9);
        uint32_t at = choose(is_reduction, &code);
        struct hd__instr *i = &code->at[at];
        if (i->op == HD_OP_ALL_REDUCE) { /* a reduce_scatter cannot be left out: nothing would be there */
            drop(code, at);
            ck_assert_double_gt(difference(), 1e-6);
        }
        discard();
    }
}
END_TEST

START_TEST(a_late_wait_changes_the_numbers)
{
    uint32_t seen = 0;
    EACH_STAGE_AND_TRY(4)
    {
        hd__code *code;
        compile(stage);
        code = &hd__program_section(broken->stage[0], "micro")->code;
        uint32_t at = 0;
        while (!is_wait(NULL, code, at)) /* the first one: the embedding's reduce_scatter */
            at++;
        struct hd__instr wait = code->at[at];
        erase(code, at);
        insert(code, code->count, wait);
        seen += !(difference() < 1e-9);
        discard();
    }
    ck_assert_uint_gt(seen, 8); /* of 16: where it happens to be done in time, nothing shows */
}
END_TEST

int main(void)
{
    TCase *c = tcase_create("faults");
    tcase_add_checked_fixture(c, set_up, tear_down);
    tcase_set_timeout(c, 50);
    tcase_add_test(c, nothing_planted);
    tcase_add_test(c, a_wait_is_dropped);
    tcase_add_test(c, a_wait_comes_too_late);
    tcase_add_test(c, a_wait_is_doubled);
    tcase_add_test(c, a_maker_is_dropped);
    tcase_add_test(c, a_release_comes_too_early);
    tcase_add_test(c, all_ranks_lack_a_reduction);
    tcase_add_test(c, a_reduction_is_done_twice);
    tcase_add_test(c, one_rank_lacks_a_collective);
    tcase_add_test(c, one_rank_has_another_operation);
    tcase_add_test(c, one_rank_swaps_two_collectives);
    tcase_add_test(c, one_rank_joins_another_group);
    tcase_add_test(c, a_missing_reduction_changes_the_numbers);
    tcase_add_test(c, a_late_wait_changes_the_numbers);
    return suite_run_case("faults", c);
}
