/* Faults planted at random in the programs of every strategy: what changes the meaning of a job is found by verify or
 * by the token machine, all of it. What neither finds is emulated: there it must train like one rank all the same.
 *
 *     test_mutations [MUTANTS [SEED]] plants more, by hand
 *     test_mutations --jobs DIR       writes its jobs there, as tests/golden/frozen.py wants them */
#include <check.h>
#include <stdlib.h>
#include <unistd.h>

#include "analysis/numerics.h"
#include "conformance/faults.h"
#include "core/program/fusion.h"
#include "runtime/exec/select.h"
#include "tests/analysis/blocks.h"
#include "tests/analysis/verbatim.h"
#include "tests/suite.h"
#include "tests/support/linked.h"
#include "tests/support/scratch.h"

static uint32_t mutants = 1500; /* of all jobs together */
static uint64_t seed = 1;
static const char *jobs_folder; /* of --jobs */

/* ---- jobs: mesh, 3d's options, zero's, the model, micro-batches */

/* Ranks that train apart and meet in every step train like one, with SGD. */
#define AVERAGED "}, {use: localsgd, every: 1, outer_lr: 1, momentum: 0"

static const struct kind_of_job {
    const char *mesh, *three, *zero, *model;
    int micro_batch; /* sequences */
    const char *recompute, *deterministic;
    uint32_t flags; /* of hd__exec_compile_with */
    int documents;  /* data.documents: mask */
} jobs[] = {
    {"dp: 4", "vocab_parallel: true", "stage: 0, bucket: 0", "family: llama, kv_heads: 2", 1},
    {"dp: 2", "vocab_parallel: true", "stage: 1, bucket: 4000", "family: gpt2, tied: true", 1},
    {"dp: {replicate: 2, shard: 2}", "vocab_parallel: true", "stage: 2, bucket: 0, gather_in_forward: false",
     "family: llama", 2},
    {"dp: 2", "vocab_parallel: true", "stage: 3, prefetch: 2", "family: llama, tied: true", 2},
    {"dp: {replicate: 2, shard: 2}", "vocab_parallel: true", "stage: 3, reshard_after_forward: false", "family: gpt2",
     2},
    {"dp: 2, tp: 2", "sequence_parallel: true", "stage: 1", "family: llama, kv_heads: 2", 2},
    {"tp: 4", "sequence_parallel: false", "stage: 0", "family: llama, kv_heads: 1", 4},
    {"tp: 4", "sequence_parallel: true", "stage: 0", "family: llama, kv_heads: 2", 4},
    {"dp: 2, cp: 2", "vocab_parallel: true", "stage: 3", "family: llama", 2},
    {"pp: 2, dp: 2", "schedule: 1f1b", "stage: 1", "family: llama", 1},
    {"pp: 3", "schedule: gpipe", "stage: 0", "family: gpt2, tied: true", 2},
    {"pp: 2, dp: 2", "schedule: interleaved", "stage: 2, bucket: 0", "family: llama, tied: true", 1},
    {"pp: 4", "schedule: zb-v", "stage: 0", "family: llama", 1},
    {"pp: 2, dp: 2", "schedule: zb-h1, split: blocks.csv", "stage: 1", "family: llama", 1}, /* see measured_split */
    {"pp: 2, tp: 2", "schedule: zb-h1, sequence_parallel: true", "stage: 3", "family: llama", 2},
    {"pp: 2, dp: 2", "schedule: 1f1b", "stage: 3", "family: gpt2", 1},
    {"dp: 2", "vocab_parallel: true", "stage: 1, bucket: 0, offload: {optimizer: host}", "family: llama", 2},
    {"dp: 2", "vocab_parallel: true", "stage: 3, offload: {optimizer: host, params: host}", "family: llama", 2},
    {"dp: 2, tp: 2", "sequence_parallel: true", "stage: 3", "family: llama", 2, "full"},
    {"pp: 2, dp: 2", "schedule: zb-v", "stage: 1", "family: gpt2", 1, "selective"},
    {"dp: 2", "vocab_parallel: true", "stage: 0, bucket: 0" AVERAGED, "family: llama", 2},
    {"dp: {replicate: 2, shard: 2}", "vocab_parallel: true", "stage: 3" AVERAGED ", axes: [dp_replicate]",
     "family: llama", 2},
    {"dp: 2", "vocab_parallel: true", "stage: 2, bucket: 0}, {use: ema, decay: 0.5", "family: llama", 2},
    {"dp: 2", "vocab_parallel: true", "stage: 0, bucket: 4000, compress: {kind: powersgd, rank: 64}", "family: llama",
     2},
    {"dp: {replicate: 2, shard: 2}", "vocab_parallel: true",
     "stage: 1, compress: {kind: powersgd, rank: 64, warmup: 1}", "family: gpt2", 1},
    {"ep: 2, dp: 2", "vocab_parallel: true", "stage: 1",
     "family: mixtral, experts: 4, experts_per_token: 2, router_aux_loss_coef: 0.3", 1},
    {"ep: 2, tp: 2", "sequence_parallel: true", "stage: 3",
     "family: mixtral, experts: 4, experts_per_token: 2, capacity: 1.5", 2},
    {"cp: 2, dp: 2", "context: ring", "stage: 2", "family: llama", 2},
    {"cp: 4", "context: ring", "stage: 1", "family: gpt2, tied: true", 4},
    {"cp: 4", "context: ring", "stage: 1", "family: llama, sliding_window: 2", 4},
    {"dp: {replicate: 2, shard: 2}", "vocab_parallel: true", "stage: 1, bucket: 0", "family: llama, tied: true", 1,
     "none", "exact"},
    {"pp: 2, dp: 2", "schedule: 1f1b", "stage: 0", "family: gpt2, tied: true", 1, "none", "exact"},
    {"dp: 2, tp: 2", "sequence_parallel: true", "stage: 2, bucket: 0", "family: gpt2", 1, "none", "normal",
     HD__COMPILE_FUSE(HD__FUSE_EPILOGUES)},
    {"pp: 2, dp: 2", "schedule: zb-h1", "stage: 3", "family: gpt2", 1, "selective", "normal",
     HD__COMPILE_FUSE(HD__FUSE_EPILOGUES)},
    {"cp: 4", "context: ring", "stage: 1", "family: gpt2", 4, "none", "normal", 0, 1},
    {"cp: 2, pp: 2", "context: ulysses", "stage: 2", "family: llama", 2, "selective", "normal", 0, 1},
    {"pp: 2, tp: 2", "schedule: zb-h1, sequence_parallel: true", "stage: 3", "family: gpt2", 2, "full", "normal", 0, 1},
    /* behind all others, which frozen.py knows: custom ops of a strategy that this program has */
    {"dp: 4", "vocab_parallel: true}, {use: verbatim", "stage: 0, bucket: 0", "family: llama", 1},
    {"dp: 2", "vocab_parallel: true}, {use: verbatim", "stage: 1, bucket: 0", "family: gpt2", 1},
    {"pp: 2, dp: 2", "schedule: 1f1b}, {use: verbatim", "stage: 2, bucket: 0", "family: llama", 1},
};

static int brings_ops(const struct kind_of_job *k)
{
    return strstr(k->three, "verbatim") != NULL;
}

static struct hd__plugins *plugins;
static struct hd__job *job, *job_of_one;
static struct conf_planted planted = {.averages_too = 1};
static char job_text[1024];
static struct hd_error err;

static void compile(const char *text, uint32_t flags, struct hd__job **j, struct hd__compiled **c)
{
    int32_t rc = *j ? HD_OK : hd__job_parse("job", text, strlen(text), NULL, 0, j, &err);
    if (!rc && !*c)
        rc = hd__job_resolve(*j, 0, &err);
    ck_assert_msg(!rc && !hd__exec_compile_with(*j, plugins, flags, c, &err), "%s\n%s", err.message, text);
}

static void write_job(const struct kind_of_job *k, const char *axes, int micro_batch)
{
    snprintf(job_text, sizeof job_text,
             "job: {name: mutations, steps: 2, deterministic: %s}\nmesh: {%s}\nstrategies: [{use: 3d, %s}, {use: zero, "
             "%s}]\n"
             "optimizer: %s\n"
             "model: {use: transformer, %s, layers: 8, hidden: 8, heads: 4, ffn: 8, vocab: 16, max_seq_len: 8}\n"
             "data: {train: none, seq_len: 8, batch: 8, micro_batch: %d%s}\n"
             "recompute: %s\nprecision: {compute: fp64}\ndevice: {use: cpu, kernels: reference, threads: 1}\n",
             k->deterministic ? k->deterministic : "normal", axes, k->three, k->zero,
             strstr(k->zero, AVERAGED) ? "{use: sgd, lr: 1e-1}" : "{use: adamw, lr: 1e-2, clip: 1.0}", k->model,
             micro_batch, k->documents ? ", documents: mask" : "", k->recompute ? k->recompute : "none");
}

static void open_job(const struct kind_of_job *k)
{
    job = job_of_one = NULL;
    planted.one = planted.fine = planted.broken = NULL;
    planted.mesh = k->mesh;
    write_job(k, "dp: 1", 8);
    compile(job_text, HD__COMPILE_NO_FUSE(HD__FUSE_LOSS_HEAD | HD__FUSE_NORM_SUMS), &job_of_one, &planted.one);
    write_job(k, k->mesh, k->micro_batch);
    compile(job_text, k->flags, &job, &planted.fine);
    ck_assert_msg(!hd__exec_compile_with(job, plugins, k->flags, &planted.broken, &err), "%s", err.message);
}

static void close_job(void)
{
    hd__exec_compiled_free(planted.one);
    hd__exec_compiled_free(planted.fine);
    hd__exec_compiled_free(planted.broken);
    hd__job_free(job);
    hd__job_free(job_of_one);
}

/* The first stage gets two of eight layers, the other six: where the job asks for times that were measured. */
static void measured_split(void)
{
    static const double seconds[] = {1, 4, 4, 1, 1, 1, 1, 1, 1, 3};
    write_blocks("blocks.csv", seconds, 8, 2);
}

static int64_t parameters(const struct hd_program *p)
{
    int64_t n = 0;
    for (uint32_t f = 0; f < p->flats.count; f++)
        n += p->flats.at[f].count;
    return n;
}

static void check_split(const struct kind_of_job *k)
{
    if (strstr(k->three, "blocks.csv"))
        ck_assert_int_gt(parameters(planted.fine->stage[1]), 2 * parameters(planted.fine->stage[0]));
}

static void open_plugins(void)
{
    err = (struct hd_error)HD_ERROR_INIT;
    plugins = hd__plugins_create(hd__exec_host_table());
    ck_assert_msg(!hd__plugins_add_folder(plugins, PLUGINS, &err) && !add_linked(plugins, HD_PLUGIN_ENTRY, &err), "%s",
                  err.message);
    conf_faults_seed(seed);
    planted = (struct conf_planted){.averages_too = 1};
}

/* Each fault in a strategy's own op is found, none is without effect. */
START_TEST(custom_ops_are_proved)
{
    struct hd__numerics result;
    open_plugins();
    planted.first_kind = CONF_FAULTS_CUSTOM;
    for (size_t j = 0; j < HD__COUNT(jobs); j++) {
        if (!brings_ops(&jobs[j]))
            continue;
        open_job(&jobs[j]);
        ck_assert_msg(!hd__numerics(planted.one, planted.fine, 2, 1, &result, &err) &&
                          result.worst < HD__NUMERICS_LIMIT,
                      "%s: %g %s", jobs[j].mesh, result.worst, err.message);
        conf_faults_plant(&planted, 400);
        close_job();
    }
    for (uint32_t k = CONF_FAULTS_CUSTOM; k < CONF_FAULTS; k++)
        ck_assert_msg(planted.found[k] > 3 && !planted.kept[k], "%s: %u found, %u without effect", conf_faults_name(k),
                      planted.found[k], planted.kept[k]);
    hd__plugins_destroy(plugins);
}
END_TEST

START_TEST(all_faults_are_found)
{
    uint32_t all = 0, each = mutants / HD__COUNT(jobs) + 1;
    struct scratch scratch;
    scratch_init(&scratch);
    ck_assert_int_eq(chdir(scratch.dir), 0);
    measured_split();
    open_plugins();
    for (size_t k = 0; k < HD__COUNT(jobs); k++) {
        open_job(&jobs[k]);
        check_split(&jobs[k]);
        conf_faults_plant(&planted, each);
        close_job();
    }
    for (uint32_t k = 0; k < CONF_FAULTS; k++) {
        fprintf(stderr, "%-24s %4u found, %3u without effect\n", conf_faults_name(k), planted.found[k],
                planted.kept[k]);
        ck_assert_uint_gt(planted.found[k], 0);
        all += planted.found[k];
    }
    fprintf(stderr, "%u faults that change the meaning are found, %u are not\n", all, planted.missed);
    ck_assert_uint_eq(planted.missed, 0);
    ck_assert_uint_ge(all, 500);
    scratch_finish(&scratch);
    hd__plugins_destroy(plugins);
}
END_TEST

START_TEST(all_jobs_are_written)
{
    ck_assert_int_eq(chdir(jobs_folder), 0);
    measured_split();
    for (size_t k = 0; k < HD__COUNT(jobs); k++) {
        char name[32];
        FILE *f;
        if (brings_ops(&jobs[k]))
            continue;
        snprintf(name, sizeof name, "%02zu.yaml", k);
        write_job(&jobs[k], jobs[k].mesh, jobs[k].micro_batch);
        f = fopen(name, "w");
        ck_assert_msg(f && fputs(job_text, f) >= 0 && !fclose(f), "%s", name);
    }
}
END_TEST

int main(int argc, char **argv)
{
    TCase *c = tcase_create("mutations");
    if (argc > 2 && !strcmp(argv[1], "--jobs")) {
        jobs_folder = argv[2];
        tcase_add_test(c, all_jobs_are_written);
        return suite_run_case("mutations", c);
    }
    if (argc > 1)
        mutants = (uint32_t)strtoul(argv[1], NULL, 10);
    if (argc > 2)
        seed = strtoull(argv[2], NULL, 10);
    tcase_set_timeout(c, argc > 1 ? 36000 : 120);
    tcase_add_test(c, all_faults_are_found);
    tcase_add_test(c, custom_ops_are_proved);
    return suite_run_case("mutations", c);
}
