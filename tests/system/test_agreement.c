/* Ranks of another launcher each have a job file and a command line of their own: they train only where they agree. */
#include <stdlib.h>
#include <unistd.h>

#include "tests/system/system.h"

#define JOB "llama.yaml comm.use=shm"

static void start_ranks(struct command **c, int n, int odd, const char *words, const char *odd_words)
{
    int port = free_port();
    for (int rank = 0; rank < n; rank++)
        c[rank] = command_start_rank(rank, n, 0, port, "train %s job.steps=3 data.batch=12 %s", words,
                                     rank == odd ? odd_words : "job.name=agree");
}

static void expect_refused(int n, int odd, const char *words, const char *odd_words, const char *message)
{
    struct command *c[3];
    start_ranks(c, n, odd, words, odd_words);
    for (int rank = 0; rank < n; rank++) {
        command_wait(c[rank], 60);
        ck_assert_msg(c[rank]->code == 2, "rank %d: exit code %d with %s; it said: %s", rank, c[rank]->code, odd_words,
                      c[rank]->err);
        expect_says(c[rank], message);
        ck_assert_msg(!strstr(c[rank]->err, "step 1"), "rank %d trained: %s", rank, c[rank]->err);
    }
    ck_assert_int_ne(access("runs/agree/metrics.jsonl", F_OK), 0);
}

START_TEST(an_option_differs)
{
    static const struct {
        const char *words, *message;
    } rows[] = {
        {"optimizer.lr=5e-2", "command line: optimizer.lr is 0.05 on rank 1 and 0.001 on rank 0: all ranks train with "
                              "the same values; start each with the same job file"},
        {"job.seed=7", "command line: job.seed is 7 on rank 1 and 1337 on rank 0: "},
        {"data.shuffle=false", "command line: data.shuffle is false on rank 1 and true on rank 0: "},
        {"strategies.zero.bucket=1MiB", "command line: strategies.zero.bucket is 1MiB on rank 1 and "},
        {"optimizer.lr=5e-2 optimizer.weight_decay=0.9 job.seed=7",
         "job.seed is 7 on rank 1 and 1337 on rank 0, optimizer.lr, optimizer.weight_decay: "},
        {"device.kernels=reference", "device.kernels is reference on rank 1 and fast on rank 0: "},
        {"device.isa=avx2", "device.isa is avx2 on rank 1 and auto on rank 0: "},
        {"metrics.profile=true", "metrics.profile is true on rank 1 and false on rank 0: "},
        {"metrics.blocks=blocks.csv", "metrics.blocks is blocks.csv on rank 1 and not set on rank 0: "},
        {"checkpoint={\"dir\":\"elsewhere\"}", "checkpoint.async is true on rank 1 and not set on rank 0, "},
        {"data.train=other.txt", "data.train is other.txt on rank 1 and corpus.txt on rank 0: "},
        {"strategies=[{\"use\":\"zero\"},{\"use\":\"ema\"}]",
         "strategies.ema.decay is 0.999 on rank 1 and not set on rank 0, strategies.ema.every"},
        {"optimizer={\"use\":\"sgd\",\"lr\":3e-3}", "optimizer.betas is not set on rank 1 and "},
    };
    ck_assert_int_eq(system("cp corpus.txt other.txt"), 0);
    for (size_t i = 0; i < HD__COUNT(rows); i++)
        expect_refused(2, 1, JOB, rows[i].words, rows[i].message);
}
END_TEST

/* The words are those of the rank that differs from rank 0, or of the first of several. */
START_TEST(any_rank_differs)
{
    expect_refused(3, 2, JOB, "job.seed=7", "job.seed is 7 on rank 2 and 1337 on rank 0");
    expect_refused(2, 0, JOB, "job.seed=7", "job.seed is 1337 on rank 1 and 7 on rank 0");
}
END_TEST

/* Files of one name, on each machine its own: another size, another end, and weights of the same shapes. */
START_TEST(a_file_differs)
{
    ck_assert_int_eq(system("mkdir longer end && cp corpus.txt longer && echo more >> longer/corpus.txt && "
                            "head -c -1 corpus.txt > end/corpus.txt && printf '~' >> end/corpus.txt && "
                            "mkdir one two && cp -r " GOLDEN_DIR "/llama one && cp -r " GOLDEN_DIR "/llama two && "
                            "head -c -4 one/llama/model.safetensors > two/llama/model.safetensors && "
                            "printf '\\0\\0\\0\\0' >> two/llama/model.safetensors && "
                            "head -c 4000 corpus.txt | tr -c a-p a | tr a-p '\\0-\\17' > tokens.txt"),
                     0);
    expect_refused(2, 1, JOB, "data.train=longer/corpus.txt", "command line: data.train[0] is ");
    expect_refused(2, 1, JOB, "data.train=end/corpus.txt", " bytes, ");
#define FROM                                                                               \
    JOB " data={\"train\":\"tokens.txt\",\"format\":\"bytes\",\"seq_len\":8,\"batch\":8} " \
        "model={\"use\":\"transformer\",\"from\":"
    expect_refused(2, 1, FROM "\"one/llama\"}", "model.from=two/llama",
                   "command line: model.from/model.safetensors is ");
}
END_TEST

/* More than the store takes under one key. */
START_TEST(long_values)
{
    struct hd__text job = {0};
    hd__text_add(&job, "%scomm: {use: shm}\n", read_file("llama.yaml"));
    char *data = strstr(job.at, "data:"), *brace = data ? strchr(data, '{') : NULL;
    ck_assert_ptr_nonnull(brace);
    struct hd__text all = {0};
    hd__text_add(&all, "%.*s{val: [a.txt", (int)(brace - job.at), job.at);
    for (int i = 0; i < 9000; i++)
        hd__text_add(&all, ", a%d.txt", i);
    hd__text_add(&all, "], %s", brace + 1);
    ck_assert_uint_gt(all.length, 65536);
    write_file("long.yaml", all.at);
    hd__text_free(&all);
    hd__text_free(&job);
    expect_refused(2, 1, "long.yaml", "job.seed=7", "job.seed is 7 on rank 1 and 1337 on rank 0");
}
END_TEST

/* Two builds of one plug-in, each in a folder of its own: all values are the same, programs are not. */
START_TEST(a_build_differs)
{
    static const char *const commands[] = {
        "mkdir -p one two same",
        "cp " ASYNC "/variant1.so one/heddle-strategy-variant.so",
        "cp " ASYNC "/variant1.so same/heddle-strategy-variant.so",
        "cp " ASYNC "/variant2.so two/heddle-strategy-variant.so",
        "mkdir -p later && cp one/*.so later && printf x >> later/heddle-strategy-variant.so",
    };
#define VARIANT "llama.yaml comm.use=shm strategies=[{\"use\":\"zero\"},{\"use\":\"variant\"}] plugins.path="
    struct command *c[2];
    for (size_t i = 0; i < HD__COUNT(commands); i++)
        ck_assert_int_eq(system(commands[i]), 0);
    expect_refused(2, 1, VARIANT "one", "plugins.path=two",
                   "rank 1 has another program than rank 0, though all options agree: strategy-variant is 1.0, file ");
    for (int later = 0; later < 2; later++) { /* one that makes the same program is named */
        start_ranks(c, 2, 1, VARIANT "one", later ? "plugins.path=later" : "plugins.path=same");
        for (int rank = 0; rank < 2; rank++) {
            command_wait(c[rank], 60);
            expect_code(c[rank], 0);
            ck_assert_msg(!strstr(c[rank]->err, "another build") == !(later && rank), "it said: %s", c[rank]->err);
        }
    }
    expect_says(c[1], "rank 1 has another build of a plug-in than rank 0: strategy-variant is 1.0, file ");
}
END_TEST

/* An optimizer's numbers, though its plug-in does not say so (HD_OPTION_GLOBAL). */
START_TEST(an_unmarked_number)
{
#define UNMARKED "llama.yaml comm.use=shm plugins.path=rounds optimizer={\"use\":\"mylion\",\"lr\":1e-3}"
    ck_assert_int_eq(system("mkdir -p rounds && cp " ASYNC "/rounds.so rounds/heddle-optim-mylion.so"), 0);
    expect_refused(2, 1, UNMARKED, "optimizer.lr=5e-2", "optimizer.lr is 0.05 on rank 1 and 0.001 on rank 0: ");
}
END_TEST

/* Folders, threads and logging are each rank's own. */
START_TEST(what_may_differ)
{
    struct command *c[2];
    static struct curve curve;
    ck_assert_int_eq(system("mkdir -p elsewhere && cp corpus.txt elsewhere"), 0);
    start_ranks(c, 2, 1, JOB,
                "job.name=mine data.train=elsewhere/corpus.txt metrics.jsonl=mine.jsonl "
                "device.threads=1 liveness.late_after=3s liveness.operations=32 data.check_tokens=0");
    for (int rank = 0; rank < 2; rank++) {
        command_wait(c[rank], 60);
        expect_code(c[rank], 0);
    }
    curve_read(&curve, "agree");
    ck_assert_int_eq(curve.n, 3);
}
END_TEST

int main(void)
{
    const struct system_test tests[] = {
        {"an option differs", an_option_differs, 1},   {"any rank differs", any_rank_differs, 1},
        {"a file differs", a_file_differs, 1},         {"long values", long_values, 1},
        {"an unmarked number", an_unmarked_number, 1}, {"a build differs", a_build_differs, 1},
        {"what may differ", what_may_differ, 1},       {NULL, NULL, 0}};
    return system_run("system-agreement", tests);
}
