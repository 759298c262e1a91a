/* All pipeline schedules and splits give the bits of one rank, where nothing sums across stages but in another order:
 * the norm, which clipping would need. Emulated in fp64 with reference kernels, events in random order. */
#include <check.h>
#include <stdlib.h>
#include <unistd.h>

#include "analysis/numerics.h"
#include "core/program/fusion.h"
#include "tests/suite.h"
#include "tests/support/plugins.h"

static char path[] = "/tmp/heddle-pipeline-XXXXXX.csv";

/* The `more` of 3d's options; pp 1: one rank. */
static int32_t compile(const char *model, int pp, const char *more, struct hd__job **job,
                       struct hd__compiled **compiled, struct hd_error *err)
{
    char text[1024];
    snprintf(text, sizeof text,
             "job: {name: bits, steps: 3}\nmesh: {pp: %d}\nstrategies: [{use: 3d, %s}, {use: zero}]\n"
             "device: {use: cpu, kernels: reference, threads: 1}\nprecision: {compute: fp64}\n"
             "optimizer: {use: adamw, lr: 1e-2, weight_decay: 0.1, clip: 0}\n"
             "model: {use: transformer, %s, hidden: 16, heads: 4, ffn: 32, vocab: 32, max_seq_len: 8}\n"
             "data: {train: none, seq_len: 8, batch: 8, micro_batch: 1}\n",
             pp, more, model);
    int32_t rc = hd__job_parse("job", text, strlen(text), NULL, 0, job, err);
    if (!rc)
        rc = hd__job_resolve(*job, 0, err);
    return rc ? rc : hd__exec_compile_with(*job, plugins, HD__COMPILE_NO_FUSE(HD__FUSE_LOSS_HEAD), compiled, err);
}

static void assert_same_bits(const char *model, int pp, const char *more)
{
    struct hd_error err = HD_ERROR_INIT;
    struct hd__job *jobs[2] = {NULL, NULL};
    struct hd__compiled *one, *many;
    struct hd__numerics result;
    ck_assert_msg(!compile(model, 1, "vocab_parallel: true", &jobs[0], &one, &err), "%s", err.message);
    ck_assert_msg(!compile(model, pp, more, &jobs[1], &many, &err), "%s, %s: %s", model, more, err.message);
    ck_assert_msg(!hd__numerics(one, many, 3, 1, &result, &err), "%s, %s: %s", model, more, err.message);
    ck_assert_msg(result.loss == 0 && result.gradient == 0 && result.parameter == 0, "%s, %s: %g at %s", model, more,
                  result.worst, result.where);
    ck_assert_double_lt(result.norm, 1e-12);
    hd__exec_compiled_free(one);
    hd__exec_compiled_free(many);
    hd__job_free(jobs[0]);
    hd__job_free(jobs[1]);
}

static const char *const models[] = {"family: llama, layers: 8", "family: gpt2, layers: 8, tied: false"};

START_TEST(schedules)
{
    static const char *const more[] = {
        "schedule: gpipe", "schedule: 1f1b", "schedule: zb-h1", "schedule: interleaved", "schedule: zb-v",
    };
    for (size_t m = 0; m < HD__COUNT(models); m++)
        for (size_t k = 0; k < HD__COUNT(more); k++)
            for (int pp = 2; pp <= 4; pp += 2)
                assert_same_bits(models[m], pp, more[k]);
    assert_same_bits(models[0], 2, "schedule: interleaved, virtual: 4");
}
END_TEST

START_TEST(splits)
{
    static const char *const more[] = {"split: layers", "split: params", "split: time", "split: [5, 1, 2]",
                                       "schedule: zb-v, split: [1, 1, 1, 1, 2, 2]"};
    for (size_t k = 0; k < HD__COUNT(more); k++)
        assert_same_bits(models[0], 3, more[k]);
}
END_TEST

static void write_file(const char *text)
{
    FILE *f = fopen(path, "wb");
    ck_assert_ptr_nonnull(f);
    fputs(text, f);
    fclose(f);
}

/* Whole and split backwards in one chunk, chunks 0 and 2 on one stage, gradients of weights late. */
START_TEST(a_schedule_of_the_users)
{
    char more[64];
    write_file("0F0,0F1,2F0,2I0,2F1,0F2,2W0,2B1,2F2,0F3,0B0,2I2,0I1,2F3,2W2,2B3,0F4,2F4,0W1,0B2,2B4,0B3,0F5,2F5,2B5,"
               "0F6,0F7,0B4,2F6,2B6,0B5,2F7,2B7,0B6,0B7\n"
               "1F0,1F1,1F2,1I0,1I1,1F3,1W0,1W1,1I2,1F4,1W2,1B3,1F5,1B4,1B5,1F6,1F7,1B6,1B7\n");
    snprintf(more, sizeof more, "schedule: %s", path);
    assert_same_bits(models[0], 2, more);
}
END_TEST

/* Stage 0 sends three micro-batches ahead of what stage 1 receives, which itself sends ahead: with one message of a
 * stream under way both would wait for each other. */
START_TEST(a_schedule_that_sends_ahead)
{
    char more[64];
    write_file("0F0,,0F1,,0B0,0F2,0I1,0F3,0F4,0W1,0F5,,0F6,0B2,0F7,0B3,0B4,0I5,0W5,,0B6,0B7\n"
               ",1F0,1B0,1F1,1B1,,1F2,,1F3,1B2,1F4,1B3,1B4,1F5,1F6,1F7,1I5,1W5,,1I6,1I7,1W6,1W7\n");
    snprintf(more, sizeof more, "schedule: %s", path);
    assert_same_bits(models[0], 2, more);
}
END_TEST

START_TEST(refusals)
{
    static const struct {
        int pp;
        const char *more, *says, *place; /* place: of another key than the first of the strategy */
    } rows[] = {
        {3, "schedule: interleaved",
         "groups of mesh.pp = 3: 8 of them is no multiple; the nearest that work are 6 and 9"},
        {4, "schedule: interleaved, virtual: 4", "16 layers or more, the model has 8: mesh.pp x virtual may be up to 8",
         "job:2:12: "},
        {2, "schedule: 1f2b", "there is no schedule '1f2b'"},
        {2, "split: [4, 4, 0]", "split has 3 numbers, the pipeline 2 chunks", "job:3:31: "},
        {2, "split: halves", "split: 'halves' is not one of layers, params, time", "job:3:31: "},
        {2, "schedule: /nowhere/s.csv", "strategies.3d.schedule: cannot open /nowhere/s.csv"},
    };
    for (size_t k = 0; k < HD__COUNT(rows); k++) {
        struct hd_error err = HD_ERROR_INIT;
        struct hd__job *job = NULL;
        struct hd__compiled *compiled;
        ck_assert_int_ne(compile(models[0], rows[k].pp, rows[k].more, &job, &compiled, &err), HD_OK);
        ck_assert_msg(strstr(err.message, rows[k].says) != NULL, "'%s' is not in: %s", rows[k].says, err.message);
        ck_assert_msg(!strncmp(err.message, rows[k].place ? rows[k].place : "job:3:34: ", 10), "%s", err.message);
        hd__job_free(job);
    }
}
END_TEST

int main(void)
{
    TCase *c = tcase_create("pipeline");
    int fd = mkstemps(path, 4);
    if (fd < 0)
        return 1;
    close(fd);
    tcase_add_checked_fixture(c, setup, teardown);
    tcase_set_timeout(c, 60);
    tcase_add_test(c, schedules);
    tcase_add_test(c, splits);
    tcase_add_test(c, a_schedule_of_the_users);
    tcase_add_test(c, a_schedule_that_sends_ahead);
    tcase_add_test(c, refusals);
    int failed = suite_run_case("pipeline", c);
    unlink(path);
    return failed;
}
