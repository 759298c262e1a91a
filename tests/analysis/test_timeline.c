/* Bubbles of whole programs: what the papers say of a schedule must hold for the instructions that it became. */
#include <math.h>
#include <stdlib.h>

#include "analysis/sim/simulate.h"
#include "core/program/ops.h"
#include "tests/suite.h"
#include "tests/support/compile.h"

/* Seconds of a chunk's layer: all of the forward in its attention, all of the backward in the gradient of that, the
 * gradients of weights in its seven matrix products. What is not in a layer takes no time. */
static struct {
    double f, b, w;
    int apart; /* W is an action of its own; else B has it */
} times;

static double seconds(const struct hd_program *p, const struct hd__instr *i)
{
    if (p->blocks.at[i->block][0] != 'L')
        return 0;
    if (i->op == HD_OP_ATTENTION)
        return times.f;
    if (i->op == HD_OP_ATTENTION_GRAD)
        return times.b + (times.apart ? 0 : times.w);
    return i->op == HD_OP_EINSUM && i->phase == HD__PHASE_W && times.apart ? times.w / 7 : 0;
}

static void compile_schedule(struct compiled *c, const char *schedule, int stages, int micros, int virtual,
                             uint32_t flags)
{
    char text[1024];
    snprintf(
        text, sizeof text,
        "job: {name: bubble, steps: 1}\nmesh: {pp: %d}\n"
        "strategies: [{use: 3d, schedule: %s, virtual: %d}, {use: zero}]\noptimizer: {use: sgd, lr: 1}\n"
        "model: {use: transformer, family: llama, layers: %d, hidden: 8, heads: 2, ffn: 8, vocab: 16, max_seq_len: 4}\n"
        "data: {train: none, seq_len: 4, batch: %d, micro_batch: 1}\n",
        stages, schedule, virtual, stages * virtual, micros);
    compile_flags(c, text, flags);
}

/* The spans are gone; the numbers stay. */
static struct hd__timeline measure(const char *schedule, int stages, int micros, int virtual, double message,
                                   uint32_t flags)
{
    struct hd__sim_rates rates = {.seconds = seconds};
    const struct hd_program *programs[16];
    struct hd_error err = HD_ERROR_INIT;
    struct hd__timeline t, numbers;
    struct compiled c;
    compile_schedule(&c, schedule, stages, micros, virtual, flags);
    for (int32_t r = 0; r < stages; r++)
        programs[r] = hd__compiled_program(c.c, r);
    for (int32_t a = 0; a < HD_AXIS_COUNT; a++) {
        rates.latency[a] = message;
        rates.link[a] = 1e30;
    }
    ck_assert_msg(!hd__sim_timeline(&c.c->mesh, programs, &rates, -1, &t, &err), "%s", err.message);
    for (int32_t r = 0; r < stages; r++)
        ck_assert_double_eq_tol(t.ranks[r].work, micros * virtual * (times.f + times.b + times.w), 1e-6);
    numbers = t;
    hd__timeline_free(&t);
    compiled_free(&c);
    return numbers;
}

static void set_times(double f, double b, double w, int apart)
{
    times.f = f;
    times.b = b;
    times.w = w;
    times.apart = apart;
}

START_TEST(equal_stage_times)
{
    for (int p = 2; p <= 4; p += 2)
        for (int m = p; m <= 8; m *= 2) {
            double P = p, M = m, eps = 1e-9;
            set_times(2, 3, 1, 0);
            ck_assert_double_eq_tol(measure("gpipe", p, m, 1, 0, 0).bubble_of_work, (P - 1) / M, eps);
            ck_assert_double_eq_tol(measure("1f1b", p, m, 1, 0, 0).bubble_of_work, (P - 1) / M, eps);
            ck_assert_double_eq_tol(measure("1f1b", p, m, 1, 0, 0).bubble_of_span, (P - 1) / (M + P - 1), eps);
            ck_assert_double_eq_tol(measure("interleaved", p, m, 2, 0, 0).bubble_of_work, (P - 1) / (2 * M), eps);
            ck_assert_double_eq_tol(measure("interleaved", p, m, 3, 0, 0).bubble_of_work, (P - 1) / (3 * M), eps);
            set_times(1, 1, 1, 1);
            ck_assert_double_eq_tol(measure("zb-h1", p, m, 1, 0, HD__COMPILE_KEEP_WEIGHT_ORDER).bubble_of_work,
                                    (P - 1) / (3 * M), eps);
            if (m >= 2 * p - 1)
                ck_assert_double_eq_tol(measure("zb-v", p, m, 2, 0, 0).bubble_of_work, 0, eps);
        }
}
END_TEST

/* Qi et al., arXiv 2401.10241, for the stage times and messages that they measured: to the four decimals that they
 * print. Left free, gradients of weights fill waits as they come, which is a little better. */
START_TEST(published_bubbles)
{
    char line[512];
    int seen = 0;
    FILE *f = fopen(GOLDEN_DIR "/zero_bubble.csv", "rb");
    ck_assert_ptr_nonnull(f);
    while (fgets(line, sizeof line, f)) {
        int p, m;
        double tf, tb, tw, message, one, zb;
        if (sscanf(line, "%*[^,],%d,%d,%lf,%lf,%lf,%lf,%lf,%lf", &p, &m, &tf, &tb, &tw, &message, &one, &zb) != 8)
            continue;
        set_times(tf, tb, tw, 0);
        ck_assert_double_eq_tol(measure("1f1b", p, m, 1, message, 0).bubble_of_span, one, 0.5e-4);
        set_times(tf, tb, tw, 1);
        ck_assert_double_eq_tol(measure("zb-h1", p, m, 1, message, HD__COMPILE_KEEP_WEIGHT_ORDER).bubble_of_span, zb,
                                0.5e-4);
        ck_assert_double_lt(measure("zb-h1", p, m, 1, message, 0).bubble_of_span, zb);
        seen++;
    }
    fclose(f);
    ck_assert_int_eq(seen, 6);
}
END_TEST

/* Two ranks on a link on which the gradients need about as long as the backward pass: bench/overlap.py's job. */
static struct hd__timeline on_a_slow_link(const char *zero, const char *tied)
{
    struct hd__sim_rates rates = hd__sim_rates_default();
    struct hd_error err = HD_ERROR_INIT;
    struct hd__timeline t, numbers;
    struct compiled c;
    char text[1024];
    snprintf(text, sizeof text,
             "job: {name: overlap, steps: 1}\nmesh: {dp: 2}\nstrategies: [{use: zero, %s}]\n"
             "optimizer: {use: adamw, lr: 3e-4}\n"
             "model: {use: transformer, family: gpt2, layers: 12, hidden: 128, heads: 4, vocab: 256, max_seq_len: 128, "
             "tied: %s}\n"
             "data: {train: none, seq_len: 128, batch: 8, micro_batch: 4}\n",
             zero, tied);
    compile_text(&c, text, NULL, 0, 0);
    ck_assert(!hd__sim_rates_parse(&rates, "flops=8e10,memory=1e10,kernel=5e-6,latency=1e-4,link=1.25e8", &err));
    ck_assert_msg(
        !hd__sim_timeline(&c.c->mesh,
                          (const struct hd_program *[]){hd__compiled_program(c.c, 0), hd__compiled_program(c.c, 1)},
                          &rates, -1, &t, &err),
        "%s", err.message);
    numbers = t;
    hd__timeline_free(&t);
    compiled_free(&c);
    return numbers;
}

/* At least this share of the communication is hidden. Tied embeddings are complete last, and must not hold back
 * others. */
START_TEST(hidden_on_a_slow_link)
{
    static const struct {
        const char *zero;
        double share;
    } rows[] = {{"stage: 0, bucket: 0", 0.88},
                {"stage: 0, bucket: 1MB", 0.81},
                {"stage: 0", 0.64}, /* 25MB, more than the whole gradient has */
                {"stage: 3", 0.9}};
    for (size_t i = 0; i < HD__COUNT(rows); i++)
        for (int tied = 0; tied < 2; tied++) {
            struct hd__timeline t = on_a_slow_link(rows[i].zero, tied ? "true" : "false");
            ck_assert_msg(t.overlapped > rows[i].share * t.comm, "%s, tied %d: %g of %g s are hidden", rows[i].zero,
                          tied, t.overlapped, t.comm);
        }
}
END_TEST

int main(void)
{
    TCase *c = tcase_create("timeline");
    tcase_add_test(c, equal_stage_times);
    tcase_add_test(c, published_bubbles);
    tcase_add_test(c, hidden_on_a_slow_link);
    tcase_set_timeout(c, 60);
    return suite_run_case("timeline", c);
}
