/* heddle bench --train: steps of a job, and how they scale. Each number of ranks trains in a child process, in a
 * scratch folder: the job's own run has no part in it. What the steps were is read from the child's metrics.jsonl. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/bench/bench.h"
#include "cli/ranks.h"
#include "cli/scratch.h"
#include "cli/warnings/warnings.h"
#include "runtime/cpu/parallel_for.h"
#include "runtime/exec/roofline.h"
#include "runtime/exec/select.h"
#include "service/metrics/metrics.h"
#include "service/metrics/watch.h"
#include "service/train/train.h"

enum { RANKS_MAX = 32 };

struct train_bench {
    struct hd__cli_job_arguments arguments;
    int64_t ranks[RANKS_MAX], most_ranks, steps, warmup;
    int n_ranks, json, checks; /* n_ranks 0: those of the job; checks: a child only looks whether it could train */
    char folder[64];           /* scratch */
    json_t *rows;
};

static volatile sig_atomic_t child, stopped_by;

static void on_signal(int sig)
{
    stopped_by = sig;
    if (child > 0)
        kill(child, SIGTERM);
}

/* ---- the child */

static int train_rank(void *user, const struct hd__launch_env *env)
{
    return hd__train(user, env);
}

/* Steps alone: nothing is saved, evaluated, shown or wrapped. */
static void strip_job(struct hd__job *job, const struct train_bench *b)
{
    job->steps = b->warmup + b->steps;
    job->epochs = 0;
    job->checkpoint = NULL;
    job->checkpoint_dir = NULL;
    job->resume = "never";
    job->eval_every = 0;
    job->metrics_every = 1;
    job->n_sinks = job->n_hooks = 0;
    job->metrics_profile = 0;
    job->metrics_roofline = 1;
    job->metrics_blocks = NULL;
    job->trace.file = NULL;
    memset(&job->watch, 0, sizeof job->watch);
    job->metrics_jsonl = hd__arena_format(&job->arena, "%s/metrics.jsonl", b->folder);
}

/* Warnings about the measurement go to `out`. */
static int train_child(const struct train_bench *b, const struct hd__cli_job_arguments *arguments, FILE *out)
{
    struct hd__text said = {0};
    struct hd__cli_job loaded = {0};
    struct hd_error err = HD_ERROR_INIT;
    int code = hd__cli_resolve_job(arguments, 0, &loaded);
    if (code)
        return code;
    if (loaded.job->nodes_max > 1) {
        hd__job_fail(
            loaded.job, "launch.nodes", &err,
            "launch.nodes: `heddle bench --train` measures ranks of this machine alone: say launch.nodes=1 and "
            "a mesh of it, or --ranks");
        return hd__cli_print_error(&err, HD__EXIT_REFUSED);
    }
    strip_job(loaded.job, b);
    if ((code = hd__cli_compile_job(&loaded)))
        return code;
    int32_t ranks = loaded.compiled->mesh.ranks;
    if (loaded.compiled->info.untrainable) {
        hd_fail(&err, HD_E_UNSUPPORTED, "model: %s", loaded.compiled->info.untrainable);
        return hd__cli_print_error(&err, HD__EXIT_REFUSED);
    }
    for (uint32_t i = 0; i < loaded.compiled->selection->comms.count; i++)
        if (ranks > 1 && loaded.compiled->selection->comms.at[i].component->ops.comm.launcher) {
            hd_fail(&err, HD_E_UNSUPPORTED, "comm-%s wants its ranks started by another command: use shm",
                    loaded.compiled->selection->comms.at[i].component->name);
            return hd__cli_print_error(&err, HD__EXIT_REFUSED);
        }
    if (hd__train_check_memory(loaded.compiled, ranks, &err) || hd__launch_check_files(ranks, &err))
        return hd__cli_print_error(&err, HD__EXIT_REFUSED);
    if (b->checks ? ranks == b->most_ranks : !b->n_ranks)
        hd__warn_medians(&loaded, b->warmup + 1, b->warmup + b->steps, &said);
    hd__text_print(&said, out);
    fclose(out);
    if (b->checks)
        return HD__EXIT_DONE;
    const struct hd__reporter reporter = hd__cli_reporter(loaded.job);
    const struct hd__launch_env alone = {.size = 1, .local_size = 1, .reporter = &reporter};
    return ranks == 1 ? hd__train(loaded.compiled, &alone)
                      : hd__launch_local(ranks, loaded.job->comm_dead_after, &reporter, &(struct hd__launch_policy){0},
                                         train_rank, loaded.compiled);
}

static void redirect(int stream, const char *path)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd >= 0)
        dup2(fd, stream);
}

/* Returns the child's exit code. What it said on standard error is shown where that is not 0. */
static int run_child(const struct train_bench *b, const struct hd__cli_job_arguments *arguments)
{
    char path[96];
    int status, ended;
    snprintf(path, sizeof path, "%s/stderr", b->folder);
    fflush(NULL);
    pid_t pid = fork();
    if (!pid) {
        FILE *own = fdopen(dup(STDERR_FILENO), "w");
        prctl(PR_SET_PDEATHSIG, SIGTERM);
        redirect(STDOUT_FILENO, "/dev/null");
        redirect(STDERR_FILENO, path);
        exit(train_child(b, arguments, own));
    }
    if (pid < 0) {
        fprintf(stderr, "heddle bench: no process: %s\n", strerror(errno));
        return HD__EXIT_FAILED;
    }
    child = pid;
    while ((ended = waitpid(pid, &status, 0)) < 0 && errno == EINTR)
        if (stopped_by)
            kill(pid, SIGTERM);
    child = 0;
    int code = stopped_by ? HD__EXIT_STOPPED : WIFEXITED(status) ? WEXITSTATUS(status) : HD__EXIT_FAILED;
    if (code && !stopped_by)
        hd__scratch_show(b->folder, "stderr");
    return code;
}

/* ---- what it measured */

/* NaN: no line has it. */
static double median(const json_t *lines, const char *key)
{
    size_t n = 0, i;
    const json_t *line;
    double *values = hd__alloc((json_array_size(lines) + 1) * sizeof *values), middle = NAN;
    json_array_foreach(lines, i, line) if (json_is_number(json_object_get(line, key))) values[n++] =
        hd__json_number(line, key);
    if (n)
        middle = hd__watch_median(values, n);
    free(values);
    return middle;
}

static int64_t most(const json_t *lines, const char *key)
{
    int64_t top = 0;
    size_t i;
    const json_t *line;
    json_array_foreach(lines, i, line) top = HD__MAX(top, json_integer_value(json_object_get(line, key)));
    return top;
}

/* The first line, those of the steps after the warm-up, and the event that has the roofline, or NULL. */
static json_t *read_metrics(const struct train_bench *b, json_t **start, json_t **roofline)
{
    json_t *all = hd__scratch_lines(b->folder, "metrics.jsonl"), *lines = json_array(), *object;
    size_t k;
    *start = *roofline = NULL;
    json_array_foreach(all, k, object)
    {
        if (!*start)
            *start = json_incref(object);
        else if (!strcmp(hd__json_word(object, "event"), "roofline"))
            *roofline = json_incref(object);
        else if (json_integer_value(json_object_get(object, "step")) > b->warmup)
            json_array_append(lines, object);
    }
    json_decref(all);
    return lines;
}

/* By the row's own medians; null where the machine's rates are not known. */
static void add_roofline(json_t *row, const json_t *event)
{
    double least = event ? hd__json_number(event, "products_s") + hd__json_number(event, "other_s") +
                               hd__json_number(row, "exposed_comm_s")
                         : 0;
    json_object_set_new(row, "roofline_s", event ? json_real(least) : json_null());
    json_object_set_new(row, "roofline_ratio", event ? json_real(hd__json_number(row, "step_s") / least) : json_null());
}

/* NULL: there are no steps. */
static json_t *measured(const struct train_bench *b)
{
    json_t *start, *roofline, *lines = read_metrics(b, &start, &roofline), *row = NULL, *size;
    const json_t *last = json_array_get(lines, json_array_size(lines) - 1);
    int64_t ranks = 1, step = json_integer_value(json_object_get(last, "step"));
    const char *axis;
    json_object_foreach(json_object_get(start, "mesh"), axis, size) ranks *= json_integer_value(size);
    if (last) {
        int64_t tokens = json_integer_value(json_object_get(last, "tokens")) / step;
        double step_s = median(lines, "step_s"), mfu = median(lines, "mfu");
        row = json_pack("{s:I, s:O, s:I, s:f, s:f, s:f, s:o, s:I, s:I}", "ranks", (json_int_t)ranks, "batch",
                        json_object_get(json_object_get(json_object_get(start, "job"), "data"), "batch"),
                        "tokens_per_step", (json_int_t)tokens, "step_s", step_s, "tokens_per_s",
                        (double)tokens / step_s, "exposed_comm_s", median(lines, "comm_s"), "mfu",
                        mfu > 0 ? json_real(mfu) : json_null(), "arena_bytes", (json_int_t)most(lines, "arena_bytes"),
                        "rss_bytes", (json_int_t)most(lines, "rss_bytes"));
        json_object_set(row, "device", json_object_get(json_object_get(start, "job"), "device"));
        add_roofline(row, roofline);
    }
    json_decref(roofline);
    json_decref(lines);
    json_decref(start);
    return row;
}

/* `ranks` and `batch` 0: those of the job. *row: the caller's. */
static int measure(struct train_bench *b, int64_t ranks, int64_t batch, json_t **row)
{
    struct hd__cli_job_arguments arguments = b->arguments;
    const char **words = hd__alloc((arguments.n_overrides + 3) * sizeof *words);
    struct hd_error err = HD_ERROR_INIT;
    char ranks_word[48], batch_word[48];
    memcpy(words, arguments.overrides, arguments.n_overrides * sizeof *words);
    snprintf(ranks_word, sizeof ranks_word, "launch.ranks=%" PRId64, ranks);
    snprintf(batch_word, sizeof batch_word, "data.batch=%" PRId64, batch);
    if (ranks) {
        words[arguments.n_overrides++] = "launch.nodes=1";
        words[arguments.n_overrides++] = ranks_word;
    }
    if (batch)
        words[arguments.n_overrides++] = batch_word;
    arguments.overrides = words;
    *row = NULL;
    if (hd__scratch_make("heddle-bench", b->folder, &err)) {
        free(words);
        return hd__cli_print_error(&err, HD__EXIT_FAILED);
    }
    int code = run_child(b, &arguments);
    if (!code && !b->checks && !(*row = measured(b))) {
        fprintf(stderr, "heddle bench: the run of %" PRId64 " ranks logged no step after the warm-up\n", ranks);
        code = HD__EXIT_FAILED;
    }
    hd__scratch_remove(b->folder);
    free(words);
    return code;
}

/* ---- the table */

static double efficiency(const json_t *row, const json_t *base)
{
    double ranks = hd__json_number(row, "ranks") / hd__json_number(base, "ranks");
    return hd__json_number(row, "tokens_per_s") / (ranks * hd__json_number(base, "tokens_per_s"));
}

static void print_row(const json_t *row)
{
    const json_t *weak = json_object_get(row, "weak"), *mfu = json_object_get(row, "mfu"),
                 *ratio = json_object_get(row, "roofline_ratio");
    char memory[32], utilization[32] = "-", roofline[32] = "-";
    if (json_is_number(ratio))
        snprintf(roofline, sizeof roofline, "%.2f", json_number_value(ratio));
    if (json_is_number(mfu))
        snprintf(utilization, sizeof utilization, "%.1f%%", 100 * json_number_value(mfu));
    printf("%6.0f %10.1f %12.0f %11.1f%% %8s %9s %12.1f %12s", hd__json_number(row, "ranks"),
           1e3 * hd__json_number(row, "step_s"), hd__json_number(row, "tokens_per_s"),
           100 * hd__json_number(row, "efficiency"), utilization, roofline,
           1e3 * hd__json_number(row, "exposed_comm_s"),
           hd__bytes_text((uint64_t)hd__json_number(row, "arena_bytes"), memory));
    if (json_is_object(weak))
        printf(" %10.0f %12.0f %11.1f%%", hd__json_number(weak, "batch"), hd__json_number(weak, "tokens_per_s"),
               100 * hd__json_number(weak, "efficiency"));
    putchar('\n');
    fflush(stdout);
}

static void print_head(const struct train_bench *b)
{
    char machine[256];
    hd__bench_machine_text(machine);
    printf("# %s; %s\n# medians of %" PRId64 " steps after %" PRId64
           "; efficiency: tokens/s over that of the first row times the ranks; roofline: step over roofline\n",
           b->arguments.file, machine, b->steps, b->warmup);
    if (b->n_ranks > 1)
        printf("# strong scaling: the job's batch on all ranks together; weak: a batch that grows with the ranks\n");
    printf("%6s %10s %12s %12s %8s %9s %12s %12s%s\n", "ranks", "step ms", "tokens/s", "efficiency", "MFU", "roofline",
           "exposed ms", "arena", b->n_ranks > 1 ? " weak batch     tokens/s   efficiency" : "");
}

/* The same ranks with as many sequences each as the first row's have; null where that is no whole batch. */
static int add_weak(struct train_bench *b, json_t *row, const json_t *base)
{
    int64_t ranks = json_integer_value(json_object_get(row, "ranks")),
            first = json_integer_value(json_object_get(base, "ranks")),
            batch = json_integer_value(json_object_get(base, "batch"));
    json_t *weak = row == base ? json_incref(row) : NULL;
    int code = weak || batch * ranks % first ? HD__EXIT_DONE : measure(b, ranks, batch * ranks / first, &weak);
    if (code)
        return code;
    json_object_set_new(row, "weak",
                        weak ? json_pack("{s:O, s:O, s:O, s:f}", "batch", json_object_get(weak, "batch"), "step_s",
                                         json_object_get(weak, "step_s"), "tokens_per_s",
                                         json_object_get(weak, "tokens_per_s"), "efficiency", efficiency(weak, base))
                             : json_null());
    json_decref(weak);
    return HD__EXIT_DONE;
}

static int measure_all(struct train_bench *b)
{
    int code = HD__EXIT_DONE, doubted = 0, beaten = 0;
    b->checks = 1;
    for (int i = 0; i < b->n_ranks; i++)
        b->most_ranks = HD__MAX(b->most_ranks, b->ranks[i]);
    for (int i = 0; i < b->n_ranks && !code; i++)
        code = measure(b, b->ranks[i], 0, &(json_t *){NULL});
    b->checks = 0;
    if (!code)
        hd__bench_warn_cores("--ranks", b->most_ranks, hd__cpu_count());
    if (!code && !b->json)
        print_head(b);
    for (int i = 0; i < HD__MAX(b->n_ranks, 1) && !code; i++) {
        json_t *row;
        code = measure(b, b->n_ranks ? b->ranks[i] : 0, 0, &row);
        if (code)
            break;
        json_array_append_new(b->rows, row);
        if (!b->n_ranks)
            hd__bench_warn_cores("ranks", json_integer_value(json_object_get(row, "ranks")), hd__cpu_count());
        doubted |= hd__json_number(row, "mfu") > HD__MFU_DOUBTED;
        const json_t *base = json_array_get(b->rows, 0), *ratio = json_object_get(row, "roofline_ratio");
        beaten |= json_is_number(ratio) && json_number_value(ratio) < HD__ROOFLINE_DOUBTED;
        json_object_set_new(row, "efficiency", json_real(efficiency(row, base)));
        if (b->n_ranks > 1)
            code = add_weak(b, row, base);
        if (!code && !b->json)
            print_row(row);
    }
    if (doubted)
        hd__log(HD_LOG_WARN, NULL, "%s", HD__MFU_WORDS);
    if (beaten)
        hd__log(HD_LOG_WARN, NULL, "a step takes less than its roofline: %s", HD__ROOFLINE_WORDS);
    return code;
}

/* ---- the command line */

static int parse_number(const char *text, int64_t least, int64_t top, int64_t *out)
{
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (end == text || *end || errno || value < least || value > top)
        return 0;
    *out = value;
    return 1;
}

static int parse_ranks(const char *text, struct train_bench *b)
{
    struct hd__arena arena = {0};
    char *rest = hd__arena_strdup(&arena, text);
    int good = 1;
    for (char *word; good && (word = strsep(&rest, ",")); b->n_ranks += good) {
        good = b->n_ranks < RANKS_MAX && parse_number(word, 1, 1024, &b->ranks[b->n_ranks]);
        for (int i = 0; good && i < b->n_ranks; i++)
            good = b->ranks[i] != b->ranks[b->n_ranks];
    }
    hd__arena_free(&arena);
    return good;
}

static int parse(int argc, char **argv, struct train_bench *b)
{
    const char *ranks = NULL, *steps = NULL, *warmup = NULL;
    const struct hd__cli_flag flags[] = {{"--train", NULL, NULL},
                                         {"--json", NULL, &b->json},
                                         {"--ranks", &ranks, NULL},
                                         {"--steps", &steps, NULL},
                                         {"--warmup", &warmup, NULL}};
    static const char *const idle[] = {"job.steps", "checkpoint", "eval", "metrics", "watch", "comm.hooks"};
    struct hd__launch_env env;
    int found = 0, code = hd__cli_job_arguments(&hd__command_bench, argc, argv, flags, HD__COUNT(flags), &b->arguments);
    if (code)
        return code;
    for (size_t i = 0; i < b->arguments.n_overrides; i++)
        for (size_t k = 0; k < HD__COUNT(idle); k++)
            if (!strncmp(b->arguments.overrides[i], idle[k], strlen(idle[k])) &&
                strchr(".=", b->arguments.overrides[i][strlen(idle[k])]))
                hd__log(HD_LOG_WARN, NULL, "%s has no effect on --train: steps alone are measured",
                        b->arguments.overrides[i]);
    if (ranks && !parse_ranks(ranks, b))
        return hd__cli_usage_error(&hd__command_bench,
                                   "--ranks '%s': wanted different numbers from 1 to 1024 with commas between them, at "
                                   "most %d: 1,2,4,8",
                                   ranks, RANKS_MAX);
    if (steps && !parse_number(steps, 1, 100000, &b->steps))
        return hd__cli_usage_error(&hd__command_bench, "--steps '%s': a number from 1 to 100000 is wanted", steps);
    if (warmup && !parse_number(warmup, 0, 100000, &b->warmup))
        return hd__cli_usage_error(&hd__command_bench, "--warmup '%s': a number from 0 to 100000 is wanted", warmup);
    if (hd__launch_detect(&env, &found, NULL) || found || hd__launch_check_alone(NULL))
        return hd__cli_usage_error(&hd__command_bench,
                                   "--train starts its ranks itself: run it without mpirun, srun or torchrun");
    return HD__EXIT_DONE;
}

int hd__bench_train(int argc, char **argv)
{
    struct train_bench b = {.steps = 20, .warmup = 5};
    const struct sigaction action = {.sa_handler = on_signal};
    int code = parse(argc, argv, &b);
    if (code)
        return code;
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    b.rows = json_array();
    code = measure_all(&b);
    if (!code && b.json) {
        char machine[256];
        hd__bench_machine_text(machine);
        json_t *root = json_pack("{s:s, s:s, s:I, s:I, s:O}", "job", b.arguments.file, "machine", machine, "warmup",
                                 (json_int_t)b.warmup, "steps", (json_int_t)b.steps, "rows", b.rows);
        hd__cli_print_json(root, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
    }
    json_decref(b.rows);
    return code;
}
