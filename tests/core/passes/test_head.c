/* The fused head in whole jobs: where it stands, what it leaves, what it saves, and the numbers with and
 * without it. */
#include <stdlib.h>

#include "analysis/numerics.h"
#include "analysis/sim/machine.h"
#include "core/program/access.h"
#include "core/program/fusion.h"
#include "core/program/ops.h"
#include "tests/suite.h"
#include "tests/support/compile.h"

enum { VOCAB = 96, HIDDEN = 32 };

struct kind {
    int shard, tp, vocab_parallel, stage, micro_batch, tied;
};

static void job_text(const struct kind *k, const char *more, char out[2048])
{
    snprintf(out, 2048,
             "job: {name: head, steps: 2}\n"
             "mesh: {dp: {shard: %d}, tp: %d}\n"
             "strategies: [{use: 3d, vocab_parallel: %s}, {use: zero, stage: %d}]\n"
             "optimizer: {use: adamw, lr: 1e-2, weight_decay: 0.1, clip: 1.0}\n"
             "model: {use: transformer, family: gpt2, layers: 2, hidden: %d, heads: 4, vocab: %d, max_seq_len: 8, "
             "tied: %s}\n"
             "data: {train: none, seq_len: 8, batch: 8, micro_batch: %d}\n%s",
             k->shard, k->tp, k->vocab_parallel ? "true" : "false", k->stage, HIDDEN, VOCAB, k->tied ? "true" : "false",
             k->micro_batch, more);
}

/* Instructions of an op that touch something as wide as the vocabulary, or any of it where `wide` is 0. */
static uint32_t count(const struct hd_program *p, const hd__code *code, uint16_t op, int wide)
{
    uint32_t n = 0;
    for (uint32_t k = 0; k < code->count; k++) {
        const struct hd__instr *i = &code->at[k];
        const struct hd__tensor *t = hd__tensor_const(p, hd__instr_tensor(i));
        n += i->op == op && (!wide || (t->ndim == 3 && t->dim[2] == p->letter['v']));
    }
    return n;
}

static hd_tensor output_of(const hd__code *code, uint16_t op, uint32_t out)
{
    for (uint32_t k = 0; k < code->count; k++)
        if (code->at[k].op == op)
            return code->at[k].out[out];
    return 0;
}

static uint32_t chain_length(const struct hd_program *p, const hd__code *code)
{
    static const uint16_t chain[] = {HD_OP_ROWMAX,   HD_OP_XENT_LOCAL, HD_OP_NLL,
                                     HD_OP_NLL_GRAD, HD_OP_XENT_GRAD,  HD_OP_SPREAD};
    uint32_t n = count(p, code, HD_OP_EINSUM, 1);
    for (uint32_t k = 0; k < HD__COUNT(chain); k++)
        n += count(p, code, chain[k], 0);
    return n;
}

/* ---- where it stands */

static void check_section(const struct hd_program *p, const struct hd__code_section *s, int fused, const char *text)
{
    int trains = !strncmp(s->name, "micro", 5), evaluates = !strcmp(s->name, "eval");
    uint32_t heads = count(p, &s->code, HD_OP_XENT_HEAD, 0), chain = chain_length(p, &s->code);
    ck_assert_msg(heads == (uint32_t)((trains || evaluates) && fused), "%u fused heads in %s of\n%s", heads, s->name,
                  text);
    ck_assert_msg(chain == (fused       ? 0u
                            : trains    ? 7u
                            : evaluates ? 4u
                                        : 0u),
                  "%u instructions of the chain in %s of\n%s", chain, s->name, text);
    if (!heads || evaluates)
        return;
    hd_tensor dw = output_of(&s->code, HD_OP_XENT_HEAD, 2);
    ck_assert_msg(hd__tensor_const(p, dw)->param && hd__tensor_const(p, dw)->role == HD__ROLE_FLAT,
                  "dw is apart in %s of\n%s", s->name, text);
}

static void check_job(const struct kind *k, int fused)
{
    char text[2048];
    struct compiled c;
    struct hd_error err = HD_ERROR_INIT;
    job_text(k, "", text);
    compile_flags(&c, text, 0);
    const struct hd_program *p = c.c->stage[0], **programs = hd__alloc((size_t)c.c->mesh.ranks * sizeof *programs);
    for (uint32_t s = 0; s < p->sections.count; s++)
        check_section(p, &p->sections.at[s], fused, text);
    for (int32_t r = 0; r < c.c->mesh.ranks; r++)
        programs[r] = p;
    struct hd__sim *m = hd__sim_create(&c.c->mesh, programs, &(struct hd__sim_options){.seed = 1});
    ck_assert_msg(!hd__sim_verify(m, &err), "%s\n%s", err.message, text);
    hd__sim_destroy(m);
    free(programs);
    compiled_free(&c);
}

START_TEST(training_sections_have_it)
{
    for (int shard = 1; shard <= 2; shard++)
        for (int rounds = 1; rounds <= 2; rounds++)
            for (int tied = 0; tied < 2; tied++)
                check_job(&(struct kind){shard, 1, 1, _i, 8 / shard / rounds, tied}, 1);
}
END_TEST

START_TEST(a_sharded_vocabulary_keeps_the_chain)
{
    for (int tied = 0; tied < 2; tied++) {
        check_job(&(struct kind){1, 2, 1, _i, 8, tied}, 0);
        check_job(&(struct kind){1, 2, 0, _i, 8, tied}, 1);
    }
}
END_TEST

START_TEST(it_can_be_switched_off)
{
    char text[2048];
    struct compiled c;
    job_text(&(struct kind){1, 1, 0, 0, 4, 1}, "", text);
    compile_flags(&c, text, HD__COMPILE_NO_FUSE(HD__FUSE_LOSS_HEAD));
    for (uint32_t s = 0; s < c.c->stage[0]->sections.count; s++)
        check_section(c.c->stage[0], &c.c->stage[0]->sections.at[s], 0, text);
    compiled_free(&c);
}
END_TEST

/* ---- the work of three products, none of it twice */

START_TEST(flops_are_those_of_the_chain)
{
    char text[2048];
    double flops[2];
    for (uint32_t keep = 0; keep < 2; keep++) {
        struct compiled c;
        job_text(&(struct kind){1, 1, 0, 0, 8, 1}, "", text);
        compile_flags(&c, text, keep ? HD__COMPILE_NO_FUSE(HD__FUSE_LOSS_HEAD) : 0);
        flops[keep] = flops_of(&c, "micro_last");
        compiled_free(&c);
    }
    ck_assert_double_eq(flops[0], flops[1]);
}
END_TEST

/* ---- memory: a GPT-2 of 124M parameters, 1024 tokens */

START_TEST(whole_logits_are_saved)
{
    int64_t bytes[2], logits = INT64_C(4) * 256 * 50304 * 2;
    for (uint32_t keep = 0; keep < 2; keep++) {
        struct compiled c;
        compile_flags(&c,
                      "job: {name: gpt2, steps: 1}\n"
                      "optimizer: {use: adamw}\n"
                      "precision: {compute: bf16}\n"
                      "model: {use: transformer, family: gpt2, layers: 12, hidden: 768, heads: 12, vocab: 50304, "
                      "max_seq_len: 1024}\n"
                      /* with one of them, gradients would lie there later */
                      "data: {train: none, seq_len: 256, batch: 8, micro_batch: 4}\n",
                      keep ? HD__COMPILE_NO_FUSE(HD__FUSE_LOSS_HEAD) : 0);
        bytes[keep] = c.c->stage[0]->arena_bytes;
        compiled_free(&c);
    }
    printf("GPT-2 124M, 1024 tokens, bf16: arena %.1f MiB; with whole logits %.1f MiB\n", (double)bytes[0] / (1 << 20),
           (double)bytes[1] / (1 << 20));
    ck_assert_int_ge(bytes[1] - bytes[0], logits * 9 / 10);
}
END_TEST

/* ---- numbers: two steps in fp64, the chain on one rank against the fused head */

START_TEST(numbers_are_those_of_the_chain)
{
    static const char *const exact = "precision: {compute: fp64}\ndevice: {use: cpu, kernels: reference, threads: 1}\n";
    static const struct kind plain = {1, 1, 0, 0, 8, 0}, plain_tied = {1, 1, 0, 0, 8, 1};
    for (int shard = 1; shard <= 2; shard++)
        for (int rounds = 1; rounds <= 2; rounds++)
            for (int tied = 0; tied < 2; tied++) {
                char text[2048], plain_text[2048];
                struct compiled one, many;
                struct hd__numerics result;
                struct hd_error err = HD_ERROR_INIT;
                job_text(&(struct kind){shard, 1, 0, _i, 8 / shard / rounds, tied}, exact, text);
                job_text(tied ? &plain_tied : &plain, exact, plain_text);
                compile_flags(&one, plain_text, HD__COMPILE_NO_FUSE(HD__FUSE_LOSS_HEAD));
                compile_flags(&many, text, 0);
                ck_assert_msg(!hd__numerics(one.c, many.c, 2, 7, &result, &err), "%s\n%s", err.message, text);
                ck_assert_msg(result.worst < 1e-12, "%s differs by %g\n%s", result.where, result.worst, text);
                compiled_free(&one);
                compiled_free(&many);
            }
}
END_TEST

int main(void)
{
    TCase *c = tcase_create("head");
    tcase_set_timeout(c, 60);
    tcase_add_loop_test(c, training_sections_have_it, 0, 4);
    tcase_add_loop_test(c, a_sharded_vocabulary_keeps_the_chain, 0, 4);
    tcase_add_test(c, it_can_be_switched_off);
    tcase_add_test(c, flops_are_those_of_the_chain);
    tcase_add_test(c, whole_logits_are_saved);
    tcase_add_loop_test(c, numbers_are_those_of_the_chain, 0, 4);
    return suite_run_case("head", c);
}
