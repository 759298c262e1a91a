/* Plug-ins of others for data and metrics (tests/plugins): a job names them, and nothing else knows of them. */
#include <glob.h>
#include <inttypes.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/system/system.h"

static struct curve a, b;

#define PLUGINS "plugins.path=[\"" ASYNC "\"] "
#define PATTERN PLUGINS "data.use=pattern data.train=endless "

/* ---- data */

static void write_tokens(const char *path)
{
    FILE *f = fopen(path, "w");
    for (uint64_t i = 0; i < 100000; i++)
        ck_assert_int_ge(fputc((int)(i * 7 % 251), f), 0);
    ck_assert_int_eq(fclose(f), 0);
}

/* The same tokens from a rule and from a file train to the same bits, on one rank and on two, with a part held out. */
START_TEST(data_source)
{
    static const char job[] = "llama.yaml job.steps=8 data.val_fraction=0.1 eval.every=4 eval.batches=2";
    write_tokens("tokens.txt");
    train(&a, "file", "%s data.train=tokens.txt", job);
    expect_learns(&a);
    for (int dp = 1; dp <= 2; dp++) {
        train(&a, "file", "%s data.train=tokens.txt mesh.dp=%d", job, dp);
        train(&b, "pattern", "%s " PATTERN "mesh.dp=%d", job, dp);
        expect_same_bits(&a, &b);
    }
    train(&b, "stride", "%s " PATTERN "data.stride=11", job); /* its options are heard */
    ck_assert_double_ne(a.loss[0], b.loss[0]);
}
END_TEST

START_TEST(data_refusals)
{
    static const struct {
        const char *words, *says;
    } rows[] = {
        {"data.strid=3", "command line: data: unknown key strid; did you mean stride?"},
        {"data.format=bytes", "command line: data: unknown key format"}, /* that is data-tokens' */
        {"data.stride=251", "command line: data.stride: 251 is not below data.period, 251"},
        {"data.train=corpus.txt", "command line: data.train: corpus.txt: there is only the pattern 'endless'"},
        {"data.tokens=32", "command line: data.train: endless: 32 tokens are too few for one sequence"},
        {"data.period=300",
         "command line: data.train: endless: token 37 is 259, outside the model's vocabulary of 256"},
    };
    for (size_t r = 0; r < HD__COUNT(rows); r++) {
        struct command *c = command_run("train llama.yaml job.name=refused " PATTERN "%s", rows[r].words);
        expect_code(c, 2);
        expect_says(c, rows[r].says);
    }
}
END_TEST

/* The resolved job is a job, and names the source and its options. */
START_TEST(data_printed)
{
    struct command *c = command_run("train llama.yaml " PATTERN "data.period=99 --print-config");
    expect_code(c, 0);
    ck_assert_ptr_nonnull(strstr(c->out, "  use: pattern "));
    ck_assert_ptr_nonnull(strstr(c->out, "  period: 99 "));
    ck_assert_ptr_nonnull(strstr(c->out, "  stride: 7 "));
    c = command_run("plugins data-tokens");
    expect_code(c, 0);
    ck_assert_ptr_nonnull(strstr(c->out, "token_dtype"));
}
END_TEST

/* ---- metrics */

#define LINES PLUGINS "metrics.sinks=[{\"use\":\"lines\",\"path\":\"%s\"}] "

/* Lines of the sink from *text on: a beginning, steps first to last with the numbers of metrics.jsonl, an end. */
static void expect_lines(char **text, const struct curve *c, const char *begins, int64_t first, int64_t last)
{
    char *line = strsep(text, "\n");
    ck_assert_msg(!strncmp(line, begins, strlen(begins)), "%s", line);
    for (int64_t step = first; step <= last; step++) {
        char wanted[64];
        line = strsep(text, "\n");
        snprintf(wanted, sizeof wanted, "%" PRId64 " loss=%.9g ", step, c->loss[step - 1]);
        ck_assert_int_eq(c->step[step - 1], step);
        ck_assert_msg(!strncmp(line, wanted, strlen(wanted)), "'%s' does not begin with '%s'", line, wanted);
        ck_assert_ptr_nonnull(strstr(line, " tokens="));
    }
    ck_assert_str_eq(strsep(text, "\n"), "end");
}

/* On two ranks too there is one sink; a resumed job tells it from where it goes on. */
START_TEST(metrics_sink)
{
    static const char job[] = "llama.yaml mesh.dp=2 checkpoint.dir=kept";
    char *text;
    train(&a, "sink", "%s job.steps=4 " LINES, job, "steps.txt");
    text = read_file("steps.txt");
    expect_lines(&text, &a, "sink from 0 to 4 {\"event\":\"start\",", 1, 4);
    ck_assert_str_eq(text, "");
    train(&a, "sink", "%s job.steps=6 " LINES, job, "steps.txt");
    text = read_file("steps.txt");
    expect_lines(&text, &a, "sink from 0 to 4 ", 1, 4);
    expect_lines(&text, &a, "sink from 4 to 6 {\"event\":\"resume\",", 5, 6);
    ck_assert_str_eq(text, "");
}
END_TEST

/* Before the first step a sink may refuse; then its errors cost its lines, not the run. */
START_TEST(metrics_sink_fails)
{
    for (int dp = 1; dp <= 2; dp++) {
        struct command *c = command_run("train llama.yaml job.name=refused mesh.dp=%d " LINES, dp, "no/where.txt");
        expect_code(c, 2);
        expect_says(c, "command line: metrics.sinks.0: no/where.txt: No such file or directory");
        c = command_run("train llama.yaml job.name=full mesh.dp=%d " LINES, dp, "/dev/full");
        expect_code(c, 0);
        expect_says(c, "metrics.sinks.0: /dev/full: No space left on device; steps are dropped");
    }
    struct command *c = command_run("train llama.yaml job.name=refused metrics.sinks=[{\"use\":\"nobody\"}]");
    expect_code(c, 2);
    expect_says(c, "command line: there is no plugin metrics-nobody");
    c = command_run("train llama.yaml job.name=own " LINES, "./runs/own/metrics.jsonl");
    expect_code(c, 2);
    expect_says(c, "metrics.sinks.0.path: runs/own/metrics.jsonl is heddle's own file (metrics.jsonl)");
    c = command_run("train llama.yaml job.name=refused " PLUGINS "metrics.sinks=[\"lines\"]");
    expect_code(c, 2);
    expect_says(c, "command line: metrics.sinks.0 needs path (the file)");
}
END_TEST

static size_t event_files(const char *dir)
{
    char pattern[64];
    glob_t found;
    snprintf(pattern, sizeof pattern, "%s/*/events.out.tfevents.*", dir);
    size_t n = glob(pattern, 0, NULL, &found) ? 0 : found.gl_pathc;
    for (size_t i = 0; i < n; i++) { /* more than what a file begins with */
        struct stat st;
        ck_assert_int_eq(stat(found.gl_pathv[i], &st), 0);
        ck_assert_int_gt(st.st_size, 200);
    }
    globfree(&found);
    return n;
}

static size_t folders(const char *dir)
{
    char pattern[64];
    glob_t found;
    snprintf(pattern, sizeof pattern, "%s/*", dir);
    size_t n = glob(pattern, GLOB_ONLYDIR, NULL, &found) ? 0 : found.gl_pathc;
    globfree(&found);
    return n;
}

/* The short form and the long one, and both beside another sink. Each run has a folder in it, which a resumed one
 * keeps. */
START_TEST(metrics_tensorboard)
{
    train(&a, "short", "llama.yaml job.steps=2 mesh.dp=2 metrics.tensorboard=tb");
    ck_assert_uint_eq(event_files("tb"), 1);
    train(&a, "long",
          "llama.yaml job.steps=2 " PLUGINS "metrics.tensorboard=tb "
          "metrics.sinks=[{\"use\":\"tensorboard\",\"dir\":\"tb2\"},{\"use\":\"lines\",\"path\":\"l.txt\"}]");
    ck_assert_uint_eq(event_files("tb"), 2);
    ck_assert_uint_eq(event_files("tb2"), 1);
    ck_assert_uint_eq(folders("tb"), 2);
    train(&a, "kept", "llama.yaml job.steps=2 checkpoint={} metrics.tensorboard=tb3");
    train(&a, "kept", "llama.yaml job.steps=3 checkpoint={} metrics.tensorboard=tb3");
    ck_assert_uint_eq(event_files("tb3"), 2);
    ck_assert_uint_eq(folders("tb3"), 1);
    char *text = read_file("l.txt");
    curve_read(&a, "long");
    expect_lines(&text, &a, "long from 0 to 2 ", 1, 2);
}
END_TEST

/* ---- mistakes */

/* Memory of a transport that is not what heddle/comm.h promises. */
START_TEST(memory)
{
    static const char *const rows[][2] = {{"DIRTY=none", "comm-dirty: its `memory` returned HD_OK and gave nothing"},
                                          {"DIRTY=odd", "returned HD_OK and what is not 4096-byte aligned"},
                                          {"DIRTY=full", "comm-dirty: its `memory` gave what is not zeroed"}};
    for (size_t r = 0; r < HD__COUNT(rows); r++) {
        struct command *c = command_run_env(rows[r][0], "train llama.yaml mesh.dp=2 " PLUGINS "comm.use=dirty");
        ck_assert_int_ne(c->code, 0);
        expect_says(c, rows[r][1]);
    }
}
END_TEST

/* A step that leaves another rounding changes no number of heddle's: what it saved is read. */
START_TEST(rounding)
{
#define ROUNDS                                                                                                       \
    "train llama.yaml job.name=rounds plugins.path=rounds checkpoint={} optimizer={\"use\":\"mylion\",\"lr\":1e-3} " \
    "job.steps="
    ck_assert_int_eq(system("mkdir -p rounds && cp " ASYNC "/rounds.so rounds/heddle-optim-mylion.so"), 0);
    struct command *c = command_run(ROUNDS "2");
    expect_code(c, 0);
    expect_says(c, "device-cpu: warning: the optimizer's step left another rounding of floats (fesetround)");
    c = command_run(ROUNDS "3");
    expect_code(c, 0);
    ck_assert_ptr_nonnull(strstr(c->out, "step 3/3"));
}
END_TEST

/* Weights that model.from has, and a model does not name. */
START_TEST(unweighed)
{
#define ENCODER "\"layers\":1,\"hidden\":32,\"heads\":2,\"ffn\":40,\"vocab\":256,\"positions\":32}"
    struct command *c = command_run("train llama.yaml job.name=encoded job.steps=1 checkpoint={} " PLUGINS
                                    "model={\"use\":\"encoder\"," ENCODER);
    expect_code(c, 0);
    expect_code(command_run("ckpt export llama.yaml checkpoint.dir=runs/encoded/checkpoints --to exported " PLUGINS
                            "model={\"use\":\"encoder\"," ENCODER),
                0);
    c = command_run("train llama.yaml job.name=unweighed --dry-run " PLUGINS
                    "model={\"use\":\"unweighed\",\"from\":\"exported\"," ENCODER);
    expect_code(c, 0);
    expect_says(c, "model.from: model-unweighed names no weights (hd_model_info.weights), so training begins from");
    c = command_run("train llama.yaml job.name=unweighed --dry-run " PLUGINS "model={\"use\":\"unweighed\"," ENCODER);
    ck_assert_msg(c->code == 0 && !strstr(c->err, "model.from"), "%s", c->err);
}
END_TEST

/* Positions that are an embedding's rows: no more tokens than that. */
START_TEST(positions)
{
    struct command *c = command_run(
        "train llama.yaml " PLUGINS
        "model={\"use\":\"encoder\",\"layers\":1,\"hidden\":32,\"heads\":2,\"ffn\":40,\"vocab\":256,\"positions\":8}");
    expect_code(c, 2);
    expect_says(c, "position has a table with fewer rows than the sequence has tokens: use a smaller data.seq_len");
}
END_TEST

/* ---- what is not here */

/* "ready" is a promise: --dry-run refuses what train refuses, in its words. */
START_TEST(absent)
{
#define JOB "train llama.yaml mesh.dp=2 plugins.path=[\"" ASYNC "\",\"" PIPES "\"] "
    static const struct {
        const char *name, *words, *message;
    } rows[] = {
        {"device-async", "device.use=async comm.use=ordered",
         "command line: plugin device-async cannot be used on this machine: there is no device-async"},
        {"last-device", "device.use=async comm.use=ordered", "there is no last-device"},
        {"comm-ordered", "device.use=async comm.use=ordered",
         "command line: plugin comm-ordered cannot be used on this machine: there is no comm-ordered"},
        {"hook-count", "comm.hooks=[{\"use\":\"count\"}]", "command line: plugin hook-count cannot be used on this"},
        {"strategy-dp", "strategies=[{\"use\":\"dp\"}]", "command line: plugin strategy-dp cannot be used on this"},
        {"optim-mylion", "optimizer={\"use\":\"mylion\"}", "command line: plugin optim-mylion cannot be used on this"},
        {"model-neox", "model={\"use\":\"neox\",\"layers\":1,\"hidden\":32,\"heads\":2,\"ffn\":64,\"vocab\":256}",
         "command line: plugin model-neox cannot be used on this machine: there is no model-neox"},
        {"metrics-lines", "metrics.sinks=[{\"use\":\"lines\",\"path\":\"l\"}]",
         "command line: plugin metrics-lines cannot be used on this"},
    };
    for (size_t i = 0; i < HD__COUNT(rows); i++) {
        char environment[64];
        snprintf(environment, sizeof environment, "HEDDLE_TEST_ABSENT=%s", rows[i].name);
        struct command *train = command_run_env(environment, JOB "%s", rows[i].words),
                       *dry = command_run_env(environment, JOB "%s --dry-run", rows[i].words);
        expect_code(train, 2);
        expect_code(dry, 2);
        expect_says(train, rows[i].message);
        expect_says(dry, rows[i].message);
        ck_assert_str_eq(dry->out, "");
        dry = command_run(JOB "%s --dry-run", rows[i].words);
        expect_code(dry, 0);
        ck_assert_msg(!strncmp(dry->out, "ready: 2 ranks", 14), "it said: %s%s", dry->out, dry->err);
    }
    ck_assert_int_eq(access("l", F_OK), -1);
}
END_TEST

int main(void)
{
    const struct system_test tests[] = {{"data source", data_source, 1},
                                        {"data refusals", data_refusals, 1},
                                        {"data printed", data_printed, 1},
                                        {"metrics sink", metrics_sink, 1},
                                        {"metrics sink fails", metrics_sink_fails, 1},
                                        {"metrics tensorboard", metrics_tensorboard, 1},
                                        {"memory", memory, 1},
                                        {"rounding", rounding, 1},
                                        {"unweighed", unweighed, 1},
                                        {"positions", positions, 1},
                                        {"absent", absent, 1},
                                        {NULL, NULL, 0}};
    return system_run("system-kinds", tests);
}
