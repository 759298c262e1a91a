/* Tokens made by steps with keys and values that are kept, and by whole forward passes: the same tokens, of logits that
 * are the same to 1e-5, also beyond the sequence, where passes take over. */
#include <math.h>
#include <stdlib.h>

#include "core/base/dtype.h"
#include "service/checkpoint/param_init.h"
#include "service/train/sample.h"
#include "tests/suite.h"
#include "tests/support/compile.h"
#include "tests/support/golden.h"

enum { TOKENS = 24, PROMPT = 3 };

struct sampled {
    struct hd__train_session session;
    struct compiled compiled;
    int32_t ids[TOKENS];
    float *logits; /* [TOKENS, vocab] */
    int64_t n, seq, vocab, steps;
};

/* Logits of the section that has just run; a step of decode has those of one position. */
static int collect(void *user, int32_t token)
{
    struct sampled *s = user;
    struct hd_program *p = hd__exec_program(s->session.exec);
    int64_t length = PROMPT + s->n, at = HD__MIN(length, s->seq) - 1;
    int stepped = p->decode_logits && s->n > 0 && length <= s->seq;
    const struct hd__tensor *t = hd__tensor_const(p, stepped ? p->decode_logits : p->kept_logits);
    const float *data = hd__exec_host_data(s->session.exec, stepped ? p->decode_logits : p->kept_logits);
    ck_assert_uint_eq(t->dtype, HD_F32);
    memcpy(s->logits + s->n * s->vocab, data + (stepped ? 0 : at) * s->vocab, (size_t)s->vocab * sizeof *data);
    s->steps += stepped;
    s->ids[s->n++] = token;
    return 0;
}

static void prepare(struct sampled *s, const char *model, const char *kernels, uint32_t flags)
{
    static const struct hd__launch_env alone = {.size = 1, .local_size = 1};
    struct hd_error err = HD_ERROR_INIT;
    char text[1024];
    *s = (struct sampled){.n = 0};
    snprintf(text, sizeof text,
             "job: {name: sampled, steps: 1}\ndevice: {use: cpu, threads: 1, kernels: %s}\n"
             "model: {use: transformer, %s}\ndata: {train: none.txt, seq_len: 12, batch: 1}\n"
             "optimizer: {use: sgd, lr: 1}\n",
             kernels, model);
    compile_flags(&s->compiled, text, HD__COMPILE_LOGITS | flags);
    s->seq = s->compiled.job->seq_len;
    s->vocab = s->compiled.c->info.vocab;
    s->logits = hd__alloc((size_t)(TOKENS * s->vocab) * sizeof *s->logits);
    ck_assert_msg(!hd__train_session_open(&s->session, s->compiled.c, &alone, &err), "%s", err.message);
    ck_assert_msg(!hd__train_session_init_params(&s->session, &err), "%s", err.message);
}

static int32_t draw(struct sampled *s, double temperature, struct hd_error *err)
{
    static const int32_t prompt[PROMPT] = {3, 1, 4};
    struct hd__train_sample_config config = {.prompt = prompt,
                                             .n_prompt = PROMPT,
                                             .count = TOKENS,
                                             .top_p = 1,
                                             .temperature = temperature,
                                             .seed = 1,
                                             .emit = collect,
                                             .user = s};
    return hd__train_sample(&s->session, &config, err);
}

static void sample(struct sampled *s, const char *model, const char *kernels, uint32_t flags)
{
    struct hd_error err = HD_ERROR_INIT;
    prepare(s, model, kernels, flags);
    ck_assert_msg(!draw(s, 0, &err), "%s: %s", err.where, err.message);
    ck_assert_int_eq(s->n, TOKENS);
}

static void finish(struct sampled *s)
{
    hd__train_session_close(&s->session, 0);
    compiled_free(&s->compiled);
    free(s->logits);
}

static void expect_alike(const char *model, const char *kernels, double tolerance)
{
    struct sampled steps, passes;
    sample(&steps, model, kernels, HD__COMPILE_DECODE);
    sample(&passes, model, kernels, 0);
    ck_assert_int_eq(steps.steps, steps.seq - PROMPT);
    ck_assert_int_eq(passes.steps, 0);
    for (int64_t n = 0; n < TOKENS; n++) {
        double norm2 = 0, diff2 = 0;
        for (int64_t v = 0; v < steps.vocab; v++) {
            double is = steps.logits[n * steps.vocab + v], should = passes.logits[n * steps.vocab + v];
            norm2 += should * should;
            diff2 += (is - should) * (is - should);
        }
        ck_assert_msg(sqrt(diff2) <= tolerance * sqrt(norm2) && norm2 > 0, "%s, %s, token %d: off by %g of %g", model,
                      kernels, (int)n, sqrt(diff2), sqrt(norm2));
        ck_assert_msg(steps.ids[n] == passes.ids[n], "%s, %s, token %d: %d, not %d", model, kernels, (int)n,
                      steps.ids[n], passes.ids[n]);
    }
    finish(&steps);
    finish(&passes);
}

START_TEST(models_of_others)
{
    struct golden g;
    char model[600];
    golden_open(&g, golden_names[_i]);
    snprintf(model, sizeof model, "from: %s", g.folder);
    expect_alike(model, "fast", 1e-5);
    expect_alike(model, "reference", 1e-5);
    golden_close(&g);
}
END_TEST

START_TEST(models_by_fields)
{
    static const char *const models[] = {
        "family: llama, layers: 3, hidden: 48, heads: 6, kv_heads: 2, vocab: 50, sliding_window: 5",
        "family: gpt2, layers: 2, hidden: 32, heads: 4, vocab: 40, max_seq_len: 12",
        "family: qwen3, layers: 2, hidden: 32, heads: 4, kv_heads: 1, vocab: 40",
    };
    for (size_t i = 0; i < HD__COUNT(models); i++)
        expect_alike(models[i], "fast", 1e-5);
}
END_TEST

static float *weights(struct sampled *s, const char *name)
{
    struct hd_program *p = hd__exec_program(s->session.exec);
    float *found = NULL;
    for (uint32_t f = 0; f < p->flats.count; f++)
        for (uint32_t k = 0; k < p->flats.at[f].n_params; k++) {
            char *of = hd__ckpt_file_tensor_name(p, p->flats.at[f].params[k], 0);
            if (!strcmp(of, name))
                found = (float *)hd__exec_host_data(s->session.exec, p->flats.at[f].tensor[HD__FLAT_MASTER]) +
                        p->flats.at[f].offset[k];
            free(of);
        }
    ck_assert_ptr_nonnull(found);
    return found;
}

/* Tokens whose logits are -Inf, as those of a vocabulary's unused rows may be, are never drawn: the others are. Where
 * all are, none can be. */
START_TEST(infinite_logits_below)
{
    enum { HIDDEN = 8, VOCAB = 16 };
    for (int drawn = 2; drawn >= 0; drawn -= 2)
        for (int greedy = 0; greedy < 2; greedy++) {
            struct hd_error err = HD_ERROR_INIT;
            struct sampled s;
            prepare(&s,
                    "family: gpt2, layers: 1, hidden: 8, heads: 2, vocab: 16, max_seq_len: 40, tie_embeddings: false",
                    "fast", 0);
            float *head = weights(&s, "lm_head.weight"), *scale = weights(&s, "transformer.ln_f.weight"),
                  *shift = weights(&s, "transformer.ln_f.bias");
            for (int i = 0; i < HIDDEN; i++)
                scale[i] = 0, shift[i] = 100; /* what the head gets */
            for (int v = drawn; v < VOCAB; v++)
                head[v * HIDDEN] = -3e38f;
            int32_t rc = draw(&s, greedy ? 0 : 1, &err);
            ck_assert_msg(!rc == (drawn > 0), "%s", err.message);
            ck_assert(drawn || strstr(err.message, "the logits of token 4 are not finite"));
            for (int64_t n = 0; n < s.n; n++)
                ck_assert_int_lt(s.ids[n], drawn);
            finish(&s);
        }
}
END_TEST

int main(void)
{
    TCase *c = tcase_create("sample");
    tcase_set_timeout(c, 60);
    tcase_add_loop_test(c, models_of_others, 0, GOLDEN_NAMES);
    tcase_add_test(c, models_by_fields);
    tcase_add_test(c, infinite_logits_below);
    return suite_run_case("sample", c);
}
