/* Forward, loss, gradients and twenty AdamW steps against transformers and torch (tests/golden/transformer.py). */
#include <math.h>
#include <stdlib.h>

#include "service/checkpoint/param_init.h"
#include "service/checkpoint/shard_map.h"
#include "service/train/session.h"
#include "tests/suite.h"
#include "tests/support/compile.h"
#include "tests/support/golden.h"

struct run {
    struct golden golden;
    struct compiled compiled;
    struct hd__exec *exec;
    int64_t step;
    int64_t alone, length; /* the first token of a document that is fed alone, and its length; 0: the whole batch */
};

static int32_t feed(void *user, int32_t input, int32_t *out, int64_t count, struct hd_error *err)
{
    static const char *const inputs[] = {"ids", "labels", "positions"};
    struct run *r = user;
    int32_t *tokens = golden_tokens(&r->golden, inputs[input], r->step);
    (void)err;
    for (int64_t i = 0; i < count; i++) /* behind a document: one of zeros, without labels */
        out[i] = !r->length                     ? tokens[i]
                 : input == HD__INPUT_POSITIONS ? (int32_t)(i % r->golden.seq)
                 : i < r->length                ? tokens[r->alone + i]
                 : input == HD__INPUT_LABELS    ? -1
                                                : 0;
    free(tokens);
    return HD_OK;
}

/* The models that are examples of plug-ins have their sizes in the job; {from} is appended. */
static const struct {
    const char *name, *model;
} examples[] = {{"neox", "use: neox, layers: 2, hidden: 32, heads: 4, ffn: 40, vocab: 32, rotary: 0.5"},
                {"encoder", "use: encoder, layers: 2, hidden: 16, heads: 4, ffn: 24, vocab: 32, positions: 12"}};

static const char *model_of(const char *name)
{
    for (size_t i = 0; i < HD__COUNT(examples); i++)
        if (!strcmp(examples[i].name, name))
            return examples[i].model;
    return "use: transformer";
}

static void run_open(struct run *r, const char *name, const char *kernels)
{
    struct hd_error err = HD_ERROR_INIT;
    struct hd__exec_config config = {.local_ranks = 1, .feed = feed, .user = r};
    char text[2048];
    golden_open(&r->golden, name);
    snprintf(
        text, sizeof text,
        "job: {name: golden, steps: %lld}\n"
        "device: {use: cpu, threads: 1, kernels: %s}\n"
        "plugins: {path: [" EXAMPLES "]}\n"
        "model: {%s, from: %s}\n"
        "data: {use: %s, documents: %s, train: none.txt, seq_len: %lld, batch: %lld, micro_batch: %lld}\n"
        "optimizer: {use: adamw, lr: %.17g, betas: [%.17g, %.17g], eps: %.17g, weight_decay: %.17g, clip: %.17g}\n",
        (long long)r->golden.steps, kernels, model_of(name), r->golden.folder,
        strcmp(name, "encoder") ? "tokens" : "pairs", strstr(name, "-documents") ? "mask" : "continue",
        (long long)r->golden.seq, (long long)r->golden.batch, (long long)r->golden.batch, r->golden.lr, r->golden.beta1,
        r->golden.beta2, r->golden.eps, r->golden.weight_decay, r->golden.clip);
    compile_text(&r->compiled, text, NULL, 0, 1);
    config.compiled = r->compiled.c;
    ck_assert_int_eq(hd__compiled_parameter_count(r->compiled.c), r->golden.parameters);
    r->exec = hd__exec_create(&config);
    ck_assert_msg(!hd__exec_open(r->exec, &err), "%s", err.message);
    ck_assert_msg(!hd__ckpt_init_from_safetensors(hd__exec_program(r->exec), hd__exec_coord(r->exec),
                                                  hd__exec_host_arena(r->exec), r->compiled.c->info.weights, &err),
                  "%s", err.message);
}

static void run_close(struct run *r)
{
    hd__exec_close(r->exec);
    compiled_free(&r->compiled);
    golden_close(&r->golden);
}

static void section(struct run *r, const char *name)
{
    struct hd_error err = HD_ERROR_INIT;
    ck_assert_msg(!hd__exec_run_section(r->exec, hd__section_kind(name), &err), "%s: %s", err.where, err.message);
}

static double scalar(struct run *r, hd_tensor t)
{
    const void *data = hd__exec_host_data(r->exec, t);
    return hd__tensor_const(hd__exec_program(r->exec), t)->dtype == HD_F64 ? *(const double *)data
                                                                           : *(const float *)data;
}

/* Each gradient within 1e-5 of the norm of torch's; where the true gradient is zero (GPT-2's key bias), of an
 * absolute floor. */
static void compare_gradients(struct run *r)
{
    struct hd_program *p = hd__exec_program(r->exec);
    for (uint32_t f = 0; f < p->flats.count; f++) {
        const struct hd__flat *flat = &p->flats.at[f];
        const float *grad = hd__exec_host_data(r->exec, flat->tensor[HD__FLAT_GRAD]);
        for (uint32_t k = 0; k < flat->n_params; k++) {
            const struct hd__param *param = &p->params.at[flat->params[k]];
            int64_t extents[HD_MAX_DIMS], count;
            double norm2 = 0, diff2 = 0;
            float *want;
            for (int32_t d = 0; d < hd__tensor_const(p, param->tensor)->ndim; d++)
                extents[d] = p->dims.at[hd__tensor_const(p, param->tensor)->dim[d]].extent;
            want = golden_part(r->golden.expected, "grad.", &param->desc, extents, &count);
            for (int64_t i = 0; i < count; i++) {
                double got = grad[flat->offset[k] + i];
                norm2 += (double)want[i] * want[i];
                diff2 += (got - want[i]) * (got - want[i]);
            }
            free(want);
            ck_assert_msg(sqrt(diff2) <= 1e-5 * sqrt(norm2) + 1e-7, "gradient of %s: off by %g of a norm of %g",
                          param->desc.name, sqrt(diff2), sqrt(norm2));
        }
    }
}

/* Tokens over labels that count, in a step. */
static double label_share(struct run *r)
{
    int32_t *labels = golden_tokens(&r->golden, "labels", r->step);
    int64_t n = r->golden.batch * r->golden.seq, counted = 0;
    for (int64_t i = 0; i < n; i++)
        counted += labels[i] >= 0;
    free(labels);
    return (double)n / (double)counted;
}

static void set_hyper(struct run *r)
{
    hd_tensor scale = hd__exec_program(r->exec)->scale;
    if (scale)
        *(double *)hd__exec_host_data(r->exec, scale) = label_share(r);
    double *hyper = hd__exec_host_data(r->exec, hd__exec_program(r->exec)->hyper);
    hyper[HD_HYPER_LR] = r->golden.lr;
    hyper[HD_HYPER_STEP] = (double)(r->step + 1);
    hyper[HD_HYPER_INV_SCALE] = 1;
    hyper[HD_HYPER_SKIP] = 0;
}

static void train(const char *name, const char *kernels)
{
    struct run r = {0};
    run_open(&r, name, kernels);
    for (r.step = 0; r.step < r.golden.steps; r.step++) {
        struct hd_program *p = hd__exec_program(r.exec);
        double loss, norm, tolerance = r.step ? 1e-4 : 1e-5;
        set_hyper(&r);
        section(&r, "begin");
        section(&r, "micro_last");
        if (r.step == 0)
            compare_gradients(&r);
        section(&r, "update");
        loss = scalar(&r, p->loss_sum) * label_share(&r);
        norm = sqrt(scalar(&r, p->norm2));
        ck_assert_msg(fabs(loss - r.golden.losses[r.step]) <= tolerance * r.golden.losses[r.step],
                      "%s step %lld: loss %.9g, torch %.9g", name, (long long)r.step + 1, loss,
                      r.golden.losses[r.step]);
        ck_assert_msg(fabs(norm - r.golden.grad_norms[r.step]) <= tolerance * r.golden.grad_norms[r.step],
                      "%s step %lld: gradient norm %.9g, torch %.9g", name, (long long)r.step + 1, norm,
                      r.golden.grad_norms[r.step]);
    }
    run_close(&r);
}

START_TEST(fast_kernels_train_as_torch_does)
{
    train(golden_names[_i], "fast");
}
END_TEST

START_TEST(examples_train_as_torch_does)
{
    train(examples[_i].name, "fast");
    train(examples[_i].name, "reference");
}
END_TEST

/* The gradients of all parameters, added to `sum`, and the loss. */
static double one_batch(struct run *r, double *sum, int64_t room)
{
    struct hd_program *p = hd__exec_program(r->exec);
    int64_t at = 0;
    section(r, "begin");
    section(r, "micro_last");
    for (uint32_t f = 0; f < p->flats.count; f++) {
        const struct hd__flat *flat = &p->flats.at[f];
        const float *grad = hd__exec_host_data(r->exec, flat->tensor[HD__FLAT_GRAD]);
        for (uint32_t k = 0; k < flat->n_params; k++) {
            int64_t n = hd__numel(p, hd__tensor_const(p, p->params.at[flat->params[k]].tensor));
            ck_assert_int_le(at + n, room);
            for (int64_t i = 0; i < n; i++)
                sum[at++] += grad[flat->offset[k] + i];
        }
    }
    return scalar(r, p->loss_sum);
}

/* Sequences of several documents have the loss and the gradients of each document alone, together. */
START_TEST(documents_train_as_if_alone)
{
    static const char *const names[] = {"gpt2-documents", "llama-documents"};
    enum { ROOM = 1 << 16 };
    static double together[ROOM], alone[ROOM];
    double loss, losses = 0, norm2 = 0, far2 = 0;
    struct run r = {0};
    run_open(&r, names[_i], "fast");
    int32_t *positions = golden_tokens(&r.golden, "positions", 0);
    set_hyper(&r);
    loss = one_batch(&r, together, ROOM);
    for (int64_t end, n = r.golden.batch * r.golden.seq; r.alone < n; r.alone = end) {
        for (end = r.alone + 1; end < n && positions[end]; end++) {
        }
        r.length = end - r.alone;
        losses += one_batch(&r, alone, ROOM);
    }
    ck_assert_msg(fabs(losses - loss) <= 1e-6 * loss, "%s: loss %.9g together, %.9g alone", names[_i], loss, losses);
    for (int64_t i = 0; i < ROOM; i++) {
        norm2 += together[i] * together[i];
        far2 += (together[i] - alone[i]) * (together[i] - alone[i]);
    }
    ck_assert_double_gt(norm2, 0);
    ck_assert_msg(far2 <= 1e-12 * norm2, "%s: gradients differ by %g of their norm", names[_i], sqrt(far2 / norm2));
    free(positions);
    run_close(&r);
}
END_TEST

/* Documents of a few tokens, and torch's attention with an explicit mask. */
START_TEST(documents_train_as_torch_does)
{
    static const char *const names[] = {"gpt2-documents", "llama-documents"};
    train(names[_i], "fast");
    train(names[_i], "reference");
}
END_TEST

START_TEST(reference_kernels_train_as_torch_does)
{
    train(golden_names[_i], "reference");
}
END_TEST

/* A section of every second step runs in the second step. */
START_TEST(predicates)
{
    struct hd_error err = HD_ERROR_INIT;
    struct run r = {0};
    run_open(&r, golden_names[0], "fast");
    hd__program_section(hd__exec_program(r.exec), "update")->every = 2;
    set_hyper(&r);
    for (int64_t step = 1; step <= 4; step++) {
        ck_assert_msg(!hd__exec_run_step(r.exec, step, &err), "%s: %s", err.where, err.message);
        ck_assert_int_eq(scalar(&r, hd__exec_program(r.exec)->norm2) > 0, step % 2 == 0);
    }
    run_close(&r);
}
END_TEST

static float *parameter(struct run *r, const char *name)
{
    struct hd_program *p = hd__exec_program(r->exec);
    for (uint32_t f = 0; f < p->flats.count; f++)
        for (uint32_t k = 0; k < p->flats.at[f].n_params; k++)
            if (!strcmp(p->params.at[p->flats.at[f].params[k]].desc.name, name))
                return (float *)hd__exec_host_data(r->exec, p->flats.at[f].tensor[HD__FLAT_MASTER]) +
                       p->flats.at[f].offset[k];
    ck_abort_msg("no parameter %s", name);
}

/* What made the first bad number is named; where it is a parameter, that. */
START_TEST(bad_numbers)
{
    static const char norm[] = "transformer.h.0.ln_1.weight";
    char where[160];
    struct hd_error err = HD_ERROR_INIT;
    struct run r = {0};
    run_open(&r, golden_names[0], "fast");
    set_hyper(&r);
    ck_assert_int_eq(hd__exec_find_nonfinite(r.exec, 1, where, &err), 0);
    *parameter(&r, norm) = 3e38f;
    ck_assert_int_eq(hd__exec_find_nonfinite(r.exec, 1, where, &err), 1);
    ck_assert_msg(!strncmp(where, "block L0, layernorm (section micro_last, ", 41), "%s", where);
    *parameter(&r, norm) = INFINITY;
    ck_assert_int_eq(hd__exec_find_nonfinite(r.exec, 1, where, &err), 1);
    ck_assert_str_eq(where, "parameter transformer.h.0.ln_1.weight, before the step");
    run_close(&r);
}
END_TEST

int main(void)
{
    TCase *c = tcase_create("golden");
    tcase_set_timeout(c, 60);
    tcase_add_loop_test(c, fast_kernels_train_as_torch_does, 0, GOLDEN_NAMES);
    tcase_add_loop_test(c, reference_kernels_train_as_torch_does, 0, GOLDEN_NAMES);
    tcase_add_loop_test(c, examples_train_as_torch_does, 0, (int)HD__COUNT(examples));
    tcase_add_loop_test(c, documents_train_as_torch_does, 0, 2);
    tcase_add_loop_test(c, documents_train_as_if_alone, 0, 2);
    tcase_add_test(c, predicates);
    tcase_add_test(c, bad_numbers);
    return suite_run_case("training", c);
}
