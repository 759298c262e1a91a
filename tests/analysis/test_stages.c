/* Faults planted at random in real programs of two pipeline stages: verify or the token machine finds every one. */
#include <check.h>

#include "analysis/sim/machine.h"
#include "conformance/edits.h"
#include "core/verify/verify.h"
#include "heddle/host.h"
#include "runtime/exec/select.h"
#include "tests/suite.h"

static struct hd__plugins *plugins;
static struct hd__job *job;
static struct hd__compiled *fine, *broken;
static uint64_t state;
static struct hd_error err;

static const char *const schedules[] = {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-v"};

static uint32_t pick(uint32_t n)
{
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)((state >> 33) % n);
}

/* Two stages of two ranks: 0 and 1, 2 and 3. */
static void compile(uint32_t schedule, int32_t zero)
{
    static char text[1024];
    snprintf(
        text, sizeof text,
        "job: {name: stages, steps: 1}\nmesh: {pp: 2, dp: 2}\n"
        "strategies:\n  - {use: 3d, schedule: %s}\n  - {use: zero, stage: %d, bucket: 0}\n"
        "optimizer: {use: adamw, lr: 1e-2}\n"
        "model: {use: transformer, family: gpt2, layers: 4, tied: true, hidden: 16, heads: 4, ffn: 32, vocab: 32}\n"
        "data: {train: none, seq_len: 8, batch: 16, micro_batch: 2}\n",
        schedules[schedule], zero);
    ck_assert_msg(!hd__job_parse("job", text, strlen(text), NULL, 0, &job, &err) && !hd__job_resolve(job, 0, &err) &&
                      !hd__exec_compile(job, plugins, &fine, &err) && !hd__exec_compile(job, plugins, &broken, &err),
                  "%s\n%s", err.message, text);
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
    state = 11;
    hd__log_setup(HD_LOG_ERROR, NULL); /* stage 3 warns */
}

static void tear_down(void)
{
    hd__plugins_destroy(plugins);
}

/* ---- faults */

typedef int wanted(const struct hd__instr *i);

static int is_send(const struct hd__instr *i)
{
    return i->op == HD_OP_SEND;
}

static int is_recv(const struct hd__instr *i)
{
    return i->op == HD_OP_RECV;
}

static int is_tied_sum(const struct hd__instr *i)
{
    return i->op == HD_OP_ALL_REDUCE && i->members;
}

static uint32_t choose(hd__code *code, wanted *want)
{
    for (;;) {
        uint32_t n = pick(code->count);
        if (want(&code->at[n]))
            return n;
    }
}

static hd__code *section(uint32_t stage, const char *name)
{
    return &hd__program_section(broken->stage[stage], name)->code;
}

static void drop(hd__code *code, uint32_t at)
{
    erase(code, wait_of(code, code->at[at].id));
    erase(code, at);
}

static void assert_refused(uint32_t stage, const char *part)
{
    ck_assert_int_eq(hd__verify(broken->stage[stage], &err), HD_E_INVALID);
    ck_assert_msg(strstr(err.message, part) != NULL, "'%s' is not in: %s", part, err.message);
}

/* `rank` runs the broken program of its stage, the others the fine one of theirs; with -1 all run the broken ones. */
static int32_t prove(int32_t rank)
{
    const struct hd_program *programs[4];
    struct hd__sim *m;
    int32_t rc;
    for (int32_t r = 0; r < 4; r++)
        programs[r] = (r == rank || rank < 0 ? broken : fine)->stage[r / 2];
    m = hd__sim_create(&fine->mesh, programs, NULL);
    rc = hd__sim_verify(m, &err);
    ck_assert_msg(!rc || strstr(hd__sim_report(m), "rank") != NULL, "%s", hd__sim_report(m));
    hd__sim_destroy(m);
    return rc;
}

static void a_send_is_dropped(void)
{
    int32_t rank = (int32_t)pick(4);
    hd__code *code = section((uint32_t)rank / 2, "step");
    drop(code, choose(code, is_send));
    ck_assert_int_eq(prove(rank), HD_E_MISMATCH);
}

static void a_receive_is_dropped(void)
{
    uint32_t stage = pick(2);
    hd__code *code = section(stage, "step");
    drop(code, choose(code, is_recv));
    assert_refused(stage, "before its definition");
    ck_assert_int_eq(prove((int32_t)(2 * stage + pick(2))), HD_E_MISMATCH);
}

static void a_receive_is_not_waited_for(void)
{
    uint32_t stage = pick(2);
    hd__code *code = section(stage, "step");
    erase(code, wait_of(code, code->at[choose(code, is_recv)].id));
    assert_refused(stage, "");
    ck_assert_msg(strstr(err.message, "missing wait") || strstr(err.message, "is never waited for"), "%s", err.message);
}

/* The next message of the same stream; code->count if there is none. */
static uint32_t next_alike(const hd__code *code, uint32_t at)
{
    uint32_t n = at + 1;
    while (n < code->count && (code->at[n].op != code->at[at].op || code->at[n].stream != code->at[at].stream))
        n++;
    return n;
}

static void swap_messages(wanted *want)
{
    int32_t rank = (int32_t)pick(4);
    hd__code *code = section((uint32_t)rank / 2, "step");
    uint32_t a, b;
    do {
        a = choose(code, want);
        b = next_alike(code, a);
    } while (b == code->count);
    struct hd__instr x = code->at[a];
    code->at[a] = code->at[b];
    code->at[b] = x;
    ck_assert_int_eq(prove(rank), HD_E_MISMATCH);
}

static void two_sends_are_swapped(void)
{
    swap_messages(is_send);
}

static void two_receives_are_swapped(void)
{
    swap_messages(is_recv);
}

static void a_message_to_the_wrong_stage(void)
{
    int32_t rank = (int32_t)pick(4);
    hd__code *code = section((uint32_t)rank / 2, "step");
    struct hd__instr *i = &code->at[choose(code, is_send)];
    i->peer = (int16_t)!i->peer;
    ck_assert_int_eq(prove(rank), HD_E_MISMATCH);
}

static int shared(void)
{
    for (uint32_t k = 0; k < section(0, "update")->count; k++)
        if (is_tied_sum(&section(0, "update")->at[k]))
            return 1;
    return 0; /* zb-v has the first and the last chunk on one stage */
}

static void tied_embeddings_are_not_summed(void)
{
    for (uint32_t stage = 0; stage < 2; stage++) {
        hd__code *code = section(stage, "update");
        drop(code, choose(code, is_tied_sum));
        assert_refused(stage, "not reduced over pp");
    }
    ck_assert_int_eq(prove((int32_t)pick(4)), HD_E_MISMATCH); /* only one rank leaves it out */
}

/* Plants a fault in sections that are put back afterwards. */
static void plant(void (*fault)(void))
{
    hd__code saved[4] = {{0}};
    for (uint32_t n = 0; n < 4; n++) {
        const hd__code *code = section(n / 2, n % 2 ? "step" : "update");
        hd__append(&saved[n], code->at, code->count);
    }
    fault();
    for (uint32_t n = 0; n < 4; n++) {
        hd__code *code = section(n / 2, n % 2 ? "step" : "update");
        memcpy(code->at, saved[n].at, saved[n].count * sizeof *code->at);
        code->count = saved[n].count;
        hd__free_array(&saved[n]);
    }
}

START_TEST(faults_are_found)
{
    static void (*const faults[])(void) = {
        a_send_is_dropped,        a_receive_is_dropped,         a_receive_is_not_waited_for,   two_sends_are_swapped,
        two_receives_are_swapped, a_message_to_the_wrong_stage, tied_embeddings_are_not_summed};
    for (uint32_t schedule = 0; schedule < HD__COUNT(schedules); schedule++)
        for (int32_t zero = 0; zero < 4; zero++) {
            compile(schedule, zero);
            ck_assert_msg(!prove(-1), "%s", err.message);
            ck_assert_int_eq(shared(), strcmp(schedules[schedule], "zb-v") != 0);
            for (uint32_t n = 0; n < 2 * HD__COUNT(faults); n++)
                if (faults[n / 2] != tied_embeddings_are_not_summed || shared())
                    plant(faults[n / 2]);
            ck_assert_msg(!prove(-1), "%s", err.message);
            discard();
        }
}
END_TEST

/* Why there is a stream for each peer, direction and phase: with one for all, each rank waits behind its own send. */
START_TEST(one_stream_is_not_enough)
{
    compile(1, 0);
    for (uint32_t stage = 0; stage < 2; stage++)
        for (uint32_t k = 0; k < section(stage, "step")->count; k++) {
            struct hd__instr *i = &section(stage, "step")->at[k];
            if (is_send(i) || is_recv(i))
                i->stream = HD__STREAM_PP;
        }
    ck_assert_int_eq(prove(-1), HD_E_MISMATCH);
    discard();
}
END_TEST

int main(void)
{
    TCase *c = tcase_create("stages");
    tcase_add_checked_fixture(c, set_up, tear_down);
    tcase_set_timeout(c, 50);
    tcase_add_test(c, faults_are_found);
    tcase_add_test(c, one_stream_is_not_enough);
    return suite_run_case("stages", c);
}
