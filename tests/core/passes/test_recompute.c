/* Recomputation: the same bits with less memory. */
#include <stdlib.h>

#include "analysis/print.h"
#include "core/passes/passes.h"
#include "core/program/ops.h"
#include "service/train/session.h"
#include "tests/suite.h"
#include "tests/support/compile.h"

enum { BATCH = 4, SEQ = 32, HIDDEN = 64, HEADS = 4, FFN = 128, VOCAB = 96, STEPS = 3 };

static const char *const modes[] = {"recompute=none", "recompute=selective", "recompute=full", "recompute.every=2"};

static void compile_model(struct compiled *c, const char *family, const char *precision, int layers, const char *mode)
{
    char text[1024];
    snprintf(text, sizeof text,
             "job: {steps: 9}\n"
             "device: {use: cpu, threads: 1}\n"
             "model: {use: transformer, family: %s, layers: %d, hidden: %d, heads: %d, ffn: %d, vocab: %d, "
             "max_seq_len: %d}\n"
             "data: {train: none.txt, seq_len: %d, batch: %d, micro_batch: %d}\n"
             "optimizer: {use: adamw, lr: 1e-2, clip: 1.0}\n"
             "precision: {compute: %s}\n",
             family, layers, HIDDEN, HEADS, FFN, VOCAB, SEQ, SEQ, 2 * BATCH, BATCH, precision);
    compile_text(c, text, &mode, 1, 1);
}

/* ---- bits */

static int32_t feed(void *user, int32_t labels, int32_t *out, int64_t count, struct hd_error *err)
{
    uint64_t *at = user; /* every micro-batch has its own tokens; labels come after ids */
    (void)err;
    for (int64_t n = 0; n < count; n++)
        out[n] = (int32_t)((*at * 31 + (uint64_t)(n + labels) * 7 + (uint64_t)(n + labels) * (uint64_t)(n + labels)) %
                           VOCAB);
    *at += (uint64_t)labels;
    return HD_OK;
}

struct result {
    char *weights;
    size_t bytes;
    double loss[STEPS];
};

static double run_step(struct hd__train_session *s, int64_t step)
{
    struct hd_error err = HD_ERROR_INIT;
    double *hyper = hd__exec_host_data(s->exec, hd__exec_program(s->exec)->hyper);
    hyper[HD_HYPER_LR] = 1e-2;
    hyper[HD_HYPER_STEP] = (double)step;
    hyper[HD_HYPER_INV_SCALE] = 1;
    double loss;
    ck_assert_msg(!hd__exec_run_step(s->exec, step, &err), "%s", err.message);
    ck_assert_msg(!hd__train_session_read_scalars(s, &hd__exec_program(s->exec)->loss_sum, 1, &loss, &err), "%s",
                  err.message);
    return loss;
}

static struct result train(const char *family, const char *precision, const char *mode)
{
    static const struct hd__launch_env alone = {.size = 1, .local_size = 1};
    struct hd_error err = HD_ERROR_INIT;
    struct result result = {0};
    struct compiled c;
    struct hd__train_session s;
    uint64_t at = 1;
    compile_model(&c, family, precision, 3, mode);
    ck_assert_msg(!hd__train_session_open(&s, c.c, &alone, &err) && !hd__train_session_init_params(&s, &err), "%s",
                  err.message);
    hd__train_session_override_feed(&s, feed, &at);
    for (int64_t step = 1; step <= STEPS; step++)
        result.loss[step - 1] = run_step(&s, step);
    const struct hd_program *p = hd__exec_program(s.exec);
    for (uint32_t f = 0; f < p->flats.count; f++) {
        size_t bytes = (size_t)hd__tensor_bytes(p, hd__tensor_const(p, p->flats.at[f].tensor[HD__FLAT_MASTER]));
        result.weights = hd__realloc(result.weights, result.bytes + bytes);
        memcpy(result.weights + result.bytes, hd__exec_host_data(s.exec, p->flats.at[f].tensor[HD__FLAT_MASTER]),
               bytes);
        result.bytes += bytes;
    }
    hd__train_session_close(&s, 0);
    compiled_free(&c);
    return result;
}

START_TEST(on_and_off_give_the_same_bits)
{
    static const char *const jobs[][2] = {{"llama", "fp32"}, {"gpt2", "fp32"}, {"gpt2", "bf16"}, {"qwen3", "bf16"}};
    struct result off = train(jobs[_i][0], jobs[_i][1], modes[0]);
    ck_assert_double_ne(off.loss[STEPS - 1], off.loss[0]);
    for (size_t m = 1; m < HD__COUNT(modes); m++) {
        struct result on = train(jobs[_i][0], jobs[_i][1], modes[m]);
        ck_assert_msg(!memcmp(on.loss, off.loss, sizeof on.loss), "%s %s, %s: another loss", jobs[_i][0], jobs[_i][1],
                      modes[m]);
        ck_assert_msg(on.bytes == off.bytes && !memcmp(on.weights, off.weights, on.bytes), "%s %s, %s: other weights",
                      jobs[_i][0], jobs[_i][1], modes[m]);
        free(on.weights);
    }
    free(off.weights);
}
END_TEST

/* ---- memory and FLOPs: what one layer more adds */

struct cost {
    int64_t bytes;   /* alive at once, fp32 */
    double flops[5]; /* by phase */
};

static struct cost cost_of(const char *family, const char *mode, int layers)
{
    struct cost cost = {0};
    struct compiled c;
    compile_model(&c, family, "fp32", layers, mode);
    struct hd_program *p = c.c->stage[0];
    cost.bytes = p->temp_bound;
    const hd__code *micro = &hd__program_section(p, "micro")->code;
    for (uint32_t k = 0; k < micro->count; k++)
        cost.flops[micro->at[k].phase] += hd__instr_flops(p, &micro->at[k]);
    compiled_free(&c);
    return cost;
}

static struct cost cost_of_a_layer(const char *family, const char *mode)
{
    struct cost more = cost_of(family, mode, 7), less = cost_of(family, mode, 6);
    more.bytes -= less.bytes;
    for (int n = 0; n < 5; n++)
        more.flops[n] -= less.flops[n];
    return more;
}

/* Elements a token that a layer keeps: its input, and without recomputation also
 *   both norms, q, k, v, attention and the stream between (7 h) and attention's logarithms of sums (one a head),
 *   the products into the mlp and what its activation makes of them: 2 f for gelu, 3 f for swiglu;
 * where only what is cheap is made again, neither norms nor what the activation makes. */
static int64_t kept(int gated, const char *mode)
{
    int64_t all = 8 * HIDDEN + HEADS + (2 + gated) * FFN;
    if (!strcmp(mode, "recompute=none"))
        return all;
    return !strcmp(mode, "recompute=full") ? HIDDEN : all - 2 * HIDDEN - FFN;
}

START_TEST(memory_falls_by_what_is_made_again)
{
    static const char *const families[] = {"gpt2", "llama"};
    for (size_t m = 0; m < 3; m++) {
        struct cost layer = cost_of_a_layer(families[_i], modes[m]);
        ck_assert_msg(layer.bytes == BATCH * SEQ * 4 * kept(_i, modes[m]),
                      "%s, %s: a layer more is alive with %lld bytes, not %lld", families[_i], modes[m],
                      (long long)layer.bytes, (long long)(BATCH * SEQ * 4 * kept(_i, modes[m])));
    }
}
END_TEST

/* All products of a layer again but the last of each segment, which nothing in it reads. */
START_TEST(work_grows_by_what_is_made_again)
{
    static const char *const families[] = {"gpt2", "llama"};
    struct cost none = cost_of_a_layer(families[_i], modes[0]), cheap = cost_of_a_layer(families[_i], modes[1]),
                full = cost_of_a_layer(families[_i], modes[2]);
    double last = 2.0 * BATCH * SEQ * HIDDEN * FFN;
    ck_assert_double_gt(none.flops[HD__PHASE_F], last);
    ck_assert_double_eq(none.flops[HD__PHASE_R], 0);
    ck_assert_double_eq(cheap.flops[HD__PHASE_R], 0);
    ck_assert_double_eq(full.flops[HD__PHASE_R], none.flops[HD__PHASE_F] - last);
    for (int phase = HD__PHASE_B; phase <= HD__PHASE_W; phase++)
        ck_assert_double_eq(full.flops[phase], none.flops[phase]);
    ck_assert_double_eq(cost_of(families[_i], "recompute.every=2", 6).flops[HD__PHASE_R],
                        6 * none.flops[HD__PHASE_F] - 3 * last);
}
END_TEST

START_TEST(nothing_to_make_again_is_refused)
{
    int32_t one[HD_AXIS_COUNT];
    struct hd_error err = HD_ERROR_INIT;
    for (int a = 0; a < HD_AXIS_COUNT; a++)
        one[a] = 1;
    struct hd__mesh mesh = hd__mesh_make(one);
    struct hd_program *p = hd__program_new(&mesh, 0);
    ck_assert_int_eq(hd__recompute(p, 1, 0, &err), HD_E_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(err.message, "use recompute: none"));
    hd__program_free(p);
}
END_TEST

int main(void)
{
    TCase *c = tcase_create("recompute");
    tcase_set_timeout(c, 60);
    tcase_add_loop_test(c, on_and_off_give_the_same_bits, 0, 4);
    tcase_add_loop_test(c, memory_falls_by_what_is_made_again, 0, 2);
    tcase_add_loop_test(c, work_grows_by_what_is_made_again, 0, 2);
    tcase_add_test(c, nothing_to_make_again_is_refused);
    return suite_run_case("recompute", c);
}
