#include "tests/system/system.h"
#include "service/checkpoint/safetensors.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <glob.h>
#include <math.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Sanitizers make everything slower; what has to be prompt stays so. */
#if defined(__SANITIZE_THREAD__)
#define SLOWER 10
#elif defined(__SANITIZE_ADDRESS__)
#define SLOWER 4
#else
#define SLOWER 1
#endif

/* Nor is a machine with other work as fast: whoever runs the suite says so, as to Check. ./run-tests says 5. */
static double multiplier(void)
{
    const char *word = getenv("CK_TIMEOUT_MULTIPLIER");
    return HD__MAX(1.0, word ? atof(word) : 1);
}

/* Factor for limits of what has to be prompt. */
static double busy(void)
{
    return HD__MAX(1.0, multiplier() / 5);
}

double promptly(double seconds)
{
    return seconds * busy();
}

double unhindered_now(void)
{
    unsigned long long waited = 0; /* microseconds */
    FILE *f = fopen("/proc/pressure/cpu", "r");
    if (f && fscanf(f, "some %*s %*s %*s total=%llu", &waited) != 1)
        waited = 0;
    if (f)
        fclose(f);
    return hd__now() - (double)waited * 1e-6;
}

/* Factor for limits of what only has to end: long before Check and meson give up, and no measure of heddle. */
static double slower(void)
{
    return HD__MAX((double)SLOWER, HD__MIN(multiplier(), 5.0));
}

/* ---- the scratch folder */

static char folder[64];

/* Each test is a process: it frees all by ending. What is remembered here is no leak to those who look for leaks. */
void *keep(void *memory)
{
    static HD__ARRAY(void *) kept;
    hd__push(&kept, memory);
    return memory;
}

void write_file(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    ck_assert_msg(f != NULL, "%s: %s", path, strerror(errno));
    fputs(text, f);
    fclose(f);
}

static char *read_all(const char *path)
{
    struct hd__text text = {0};
    char part[4096];
    size_t n;
    FILE *f = fopen(path, "r");
    ck_assert_msg(f != NULL, "%s: %s", path, strerror(errno));
    hd__text_add(&text, "%s", "");
    while ((n = fread(part, 1, sizeof part, f)) > 0)
        hd__text_add(&text, "%.*s", (int)n, part);
    fclose(f);
    return text.at;
}

char *read_file(const char *path)
{
    return keep(read_all(path));
}

static int file_has(const char *path, const char *words)
{
    char *text = read_all(path);
    int found = strstr(text, words) != NULL;
    free(text);
    return found;
}

/* Words by a fixed generator, each drawn from a few that depend on the word before: there is something to learn. */
static void write_corpus(const char *path)
{
    static const char *const words[] = {"the",    "warp",  "is",    "set",   "and",    "a",      "weft",  "goes",
                                        "over",   "under", "one",   "by",    "each",   "heddle", "lifts", "its",
                                        "thread", "until", "cloth", "falls", "from",   "loom",   "to",    "beam",
                                        "where",  "hands", "turn",  "it",    "slowly", "again"};
    uint64_t state = 88172645463325252u;
    uint32_t word = 0;
    FILE *f = fopen(path, "w");
    for (long at = 0; f && at < 400000;) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        word = (uint32_t)((word * 7 + 3 + (state >> 33) % 5) % HD__COUNT(words));
        at += fprintf(f, "%s%s", words[word], (state >> 20) % 11 ? " " : ".\n");
    }
    if (f)
        fclose(f);
}

static void write_job(const char *path, const char *model)
{
    FILE *f = fopen(path, "w");
    if (!f)
        return;
    fprintf(f,
            "job:        {steps: 20, seed: 1337}\n"
            "device:     {use: cpu, threads: 1}\n"
            "optimizer:  {use: adamw, lr: 1e-3, clip: 1.0}\n"
            "model:      {use: transformer, %s, layers: 2, hidden: 64, heads: 4, vocab: 256}\n"
            "data:       {train: corpus.txt, seq_len: 32, batch: 8, micro_batch: 2}\n",
            model);
    fclose(f);
}

static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    (void)st, (void)flag, (void)ftw;
    return remove(path);
}

/* A launcher may have started the test itself. */
static void clean_environment(void)
{
    static const char *const names[] = {"RANK",
                                        "WORLD_SIZE",
                                        "LOCAL_RANK",
                                        "LOCAL_WORLD_SIZE",
                                        "MASTER_ADDR",
                                        "MASTER_PORT",
                                        "OMPI_COMM_WORLD_RANK",
                                        "OMPI_COMM_WORLD_SIZE",
                                        "OMPI_COMM_WORLD_LOCAL_RANK",
                                        "NNODES",
                                        "NODE_RANK",
                                        "PET_NNODES",
                                        "PET_NODE_RANK",
                                        "PET_NPROC_PER_NODE",
                                        "JOB_COMPLETION_INDEX",
                                        "SLURM_PROCID",
                                        "SLURM_NTASKS",
                                        "SLURM_LOCALID",
                                        "HEDDLE_SECRET",
                                        "HEDDLE_SECRET_FILE",
                                        "HEDDLE_TLS_CA",
                                        "HEDDLE_TLS_CERT",
                                        "HEDDLE_TLS_KEY",
                                        "HEDDLE_PLUGIN_PATH",
                                        "SLURM_STEP_ID",
                                        "SLURM_STEP_TASKS_PER_NODE",
                                        "SLURM_NODEID",
                                        "SLURM_JOB_ID",
                                        "PMI_RANK",
                                        "PMI_SIZE",
                                        "MPI_LOCALRANKID",
                                        "MPI_LOCALNRANKS",
                                        "PMIX_RANK",
                                        "PMIX_NAMESPACE",
                                        "TORCHELASTIC_RUN_ID",
                                        "TORCHELASTIC_USE_AGENT_STORE",
                                        "OMPI_COMM_WORLD_LOCAL_SIZE"};
    for (size_t i = 0; i < HD__COUNT(names); i++)
        unsetenv(names[i]);
}

int system_run(const char *suite_name, const struct system_test *tests)
{
    Suite *suite = suite_create(suite_name);
    SRunner *runner;
    int failed;
    clean_environment();
    snprintf(folder, sizeof folder, "/tmp/heddle-system-XXXXXX");
    if (!mkdtemp(folder) || chdir(folder)) {
        fprintf(stderr, "no scratch folder: %s\n", strerror(errno));
        return EXIT_FAILURE;
    }
    write_corpus("corpus.txt");
    write_job("llama.yaml", "family: llama, kv_heads: 2, ffn: 128");
    write_job("gpt2.yaml", "family: gpt2");
    write_job("mixtral.yaml", "family: mixtral, kv_heads: 2, ffn: 96, experts: 4, router_aux_loss_coef: 0.02");
    for (; tests->name; tests++) {
        TCase *tcase = tcase_create(tests->name);
        tcase_set_timeout(tcase, 100 * SLOWER);
        tcase_add_loop_test(tcase, tests->test, 0, HD__MAX(1, tests->times));
        suite_add_tcase(suite, tcase);
    }
    runner = srunner_create(suite);
    srunner_set_fork_status(runner, CK_FORK);
    srunner_run_all(runner, CK_NORMAL);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    if (chdir("/") == 0)
        nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

/* ---- commands */

static void set_environment(const char *environment)
{
    char *copy = hd__strdup(environment), *rest = copy;
    for (char *word; (word = strsep(&rest, " "));)
        putenv(word); /* lives on in the process that is started */
}

static void become(const struct command *c, const char *environment, char *line)
{
    char *argv[128] = {HEDDLE};
    int n = 1, in = open("/dev/null", O_RDONLY | O_CLOEXEC);
    int out = open(c->out_file, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    int err = open(c->err_file, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (char *word; (word = strsep(&line, " ")) && n < 127;)
        if (*word)
            argv[n++] = word;
    if (environment)
        set_environment(environment);
    if (in >= 0 && out >= 0 && err >= 0 && dup2(in, 0) == 0 && dup2(out, 1) == 1 && dup2(err, 2) == 2)
        execv(HEDDLE, argv);
    _exit(127);
}

static struct command *start(const char *environment, const char *format, va_list args)
{
    static int number;
    struct command *c = keep(hd__alloc(sizeof *c));
    char line[4096];
    vsnprintf(line, sizeof line, format, args);
    snprintf(c->out_file, sizeof c->out_file, "out-%d-%d", (int)getpid(), number);
    snprintf(c->err_file, sizeof c->err_file, "err-%d-%d", (int)getpid(), number++);
    c->started = hd__now();
    c->unhindered = -unhindered_now();
    c->pid = fork();
    ck_assert_int_ge(c->pid, 0);
    if (c->pid == 0)
        become(c, environment, line);
    return c;
}

struct command *command_start(const char *environment, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    struct command *c = start(environment, format, args);
    va_end(args);
    return c;
}

/* Below the ports that the kernel hands out, so nobody is given one by chance before it is used. A round of ranks takes
 * the next one too. */
int free_port(void)
{
    for (int tries = 0; tries < 1000; tries++) {
        uint16_t random;
        ck_assert_int_eq(getrandom(&random, sizeof random, 0), sizeof random);
        int fd[2], taken = 0, port = 10000 + random % 22000;
        for (int i = 0; i < 2; i++) {
            struct sockaddr_in address = {
                .sin_family = AF_INET, .sin_port = htons((uint16_t)(port + i)), .sin_addr.s_addr = htonl(INADDR_ANY)};
            fd[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
            taken |= bind(fd[i], (struct sockaddr *)&address, sizeof address) != 0;
        }
        close(fd[0]);
        close(fd[1]);
        if (!taken)
            return port;
    }
    ck_abort_msg("no two free ports");
    return 0;
}

static int has_socket(pid_t pid, unsigned long inode)
{
    char name[300];
    struct stat about;
    int found = 0;
    snprintf(name, sizeof name, "/proc/%d/fd", (int)pid);
    DIR *dir = opendir(name);
    for (struct dirent *e = dir ? readdir(dir) : NULL; e && !found; e = readdir(dir)) {
        snprintf(name, sizeof name, "/proc/%d/fd/%.200s", (int)pid, e->d_name);
        found = !stat(name, &about) && S_ISSOCK(about.st_mode) && about.st_ino == inode;
    }
    if (dir)
        closedir(dir);
    return found;
}

int listening_port(pid_t pid, const char *address)
{
    enum { LISTEN = 10 };
    FILE *table = fopen("/proc/net/tcp", "r");
    char line[512], at[9];
    unsigned port, state;
    unsigned long inode;
    int found = 0;
    ck_assert_ptr_nonnull(table);
    while (fgets(line, sizeof line, table))
        if (sscanf(line, " %*d: %8[0-9A-F]:%x %*x:%*x %x %*x:%*x %*x:%*x %*x %*d %*d %lu", at, &port, &state, &inode) ==
                4 &&
            state == LISTEN && !strcmp(at, address) && has_socket(pid, inode))
            found = (int)port;
    fclose(table);
    return found;
}

struct command *command_start_rank(int rank, int size, int each, int port, const char *format, ...)
{
    char environment[320], local[128] = "";
    va_list args;
    if (each) /* the last machine may have fewer */
        snprintf(local, sizeof local, " LOCAL_WORLD_SIZE=%d%s", HD__MIN(each, size - rank / each * each),
                 each < size ? " " TEST_SECRET : "");
    snprintf(environment, sizeof environment,
             "RANK=%d WORLD_SIZE=%d LOCAL_RANK=%d%s MASTER_ADDR=127.0.0.1 MASTER_PORT=%d", rank, size,
             each ? rank % each : rank, local, port);
    va_start(args, format);
    struct command *c = start(environment, format, args);
    va_end(args);
    return c;
}

static void short_sleep(void)
{
    struct timespec t = {.tv_nsec = 2000000};
    nanosleep(&t, NULL);
}

void command_wait(struct command *c, double seconds)
{
    double until = hd__now() + slower() * seconds;
    int status;
    pid_t got;
    while ((got = waitpid(c->pid, &status, WNOHANG)) == 0 && hd__now() < until)
        short_sleep();
    if (got == 0) { /* its ranks die with it */
        kill(c->pid, SIGKILL);
        waitpid(c->pid, &status, 0);
    }
    c->seconds = hd__now() - c->started;
    c->unhindered += unhindered_now();
    c->out = read_file(c->out_file);
    c->err = read_file(c->err_file);
    ck_assert_msg(got != 0, "the command did not end within %g s; it said:\n%.1500s%.2000s", seconds, c->out, c->err);
    c->code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

struct command *command_run(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    struct command *c = start(NULL, format, args);
    va_end(args);
    command_wait(c, 60);
    return c;
}

struct command *command_run_env(const char *environment, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    struct command *c = start(environment, format, args);
    va_end(args);
    command_wait(c, 60);
    return c;
}

static int children_of(pid_t pid, pid_t *out, int most)
{
    char path[64];
    int n = 0, child;
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)pid, (int)pid);
    FILE *f = fopen(path, "r");
    while (f && n < most && fscanf(f, "%d", &child) == 1)
        out[n++] = child;
    if (f)
        fclose(f);
    return n;
}

int runs_over(const char *use)
{
    if (!strcmp(use, "shm") || !strcmp(use, "pipes"))
        return 1;
    return command_run("train llama.yaml job.steps=1 mesh.dp=2 job.name=here comm.use=%s", use)->code == 0;
}

void command_ranks(const struct command *c, int n, pid_t *ranks)
{
    double until = hd__now() + 30 * slower();
    int found;
    while ((found = children_of(c->pid, ranks, n)) < n && hd__now() < until)
        short_sleep();
    ck_assert_int_eq(found, n);
}

static int exists(pid_t pid)
{
    return kill(pid, 0) == 0 || errno != ESRCH;
}

void expect_gone(const pid_t *pids, int n, double seconds)
{
    double until = unhindered_now() + busy() * seconds;
    int left = n;
    while (left && unhindered_now() < until) {
        short_sleep();
        left = 0;
        for (int i = 0; i < n; i++) {
            waitpid(pids[i], NULL, WNOHANG);
            left += exists(pids[i]);
        }
    }
    ck_assert_msg(left == 0, "%d of %d processes are still there after %g s", left, n, seconds);
}

/* Check ends a test whose message is longer than 8 KiB, and prints none of it. */
static const char *last_of(const char *text)
{
    size_t length = strlen(text);
    return length > 3000 ? text + length - 3000 : text;
}

void expect_code(const struct command *c, int code)
{
    ck_assert_msg(c->code == code, "exit code %d, not %d; it said:\n%s%s", c->code, code, last_of(c->out),
                  last_of(c->err));
}

void expect_says(const struct command *c, const char *words)
{
    ck_assert_msg(strstr(c->err, words) != NULL, "\"%s\" is not in what it said:\n%s", words, last_of(c->err));
}

void expect_first_named(const struct command *c, int rank)
{
    char words[32];
    const char *error = strstr(c->err, "error: ");
    ck_assert_msg(error != NULL, "no error was said:\n%s", c->err);
    snprintf(words, sizeof words, "error: rank %d", rank);
    ck_assert_msg(!strncmp(error, words, strlen(words)) && strchr(" ,", error[strlen(words)]),
                  "\"%s\" is not the first error in\n%s", words, c->err);
}

/* ---- metrics */

static double number_of(json_t *object, const char *key)
{
    json_t *value = json_object_get(object, key);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

/* "LOSS NORM" as printed. */
static void printed(const char *line, char out[64])
{
    const char *loss = strstr(line, "\"loss\": "), *norm = strstr(line, "\"grad_norm\": ");
    if (loss && norm)
        snprintf(out, 64, "%.*s %.*s", (int)strcspn(loss + 8, ",}"), loss + 8, (int)strcspn(norm + 13, ",}"),
                 norm + 13);
}

static void read_row(struct curve *c, const char *line, json_t *row)
{
    if (!json_object_get(row, "step") || json_object_get(row, "event"))
        return;
    ck_assert_int_lt(c->n, CURVE_MAX);
    c->step[c->n] = json_integer_value(json_object_get(row, "step"));
    c->loss[c->n] = number_of(row, "loss");
    c->norm[c->n] = number_of(row, "grad_norm");
    c->val_loss[c->n] = number_of(row, "val_loss");
    printed(line, c->text[c->n++]);
}

void curve_read(struct curve *c, const char *job)
{
    char path[256], *rest;
    snprintf(path, sizeof path, "runs/%s/metrics.jsonl", job);
    rest = read_file(path);
    memset(c, 0, sizeof *c);
    for (char *line; (line = strsep(&rest, "\n")) && *line;) {
        json_t *row = json_loads(line, 0, NULL);
        ck_assert_msg(row != NULL, "%s: not a line of JSON: %s", path, line);
        read_row(c, line, row);
        json_decref(row);
    }
}

/* The last words of all that this test has started, for a message. */
static char *said_last(void)
{
    enum { TAIL = 800 };
    char *all = keep(hd__strdup("")), pattern[32];
    glob_t files;
    snprintf(pattern, sizeof pattern, "err-%d-*", (int)getpid());
    if (glob(pattern, 0, NULL, &files) == 0)
        for (size_t i = 0; i < files.gl_pathc; i++) {
            const char *text = read_file(files.gl_pathv[i]);
            size_t bytes = strlen(text);
            all = keep(hd__format("%s\n%s: %s", all, files.gl_pathv[i], text + (bytes > TAIL ? bytes - TAIL : 0)));
        }
    return all;
}

void curve_wait(const char *job, int64_t step)
{
    char path[256], word[64];
    double until = hd__now() + 30 * slower();
    int found = 0;
    snprintf(path, sizeof path, "runs/%s/metrics.jsonl", job);
    snprintf(word, sizeof word, "{\"step\": %lld,", (long long)step);
    while (!found && hd__now() < until) {
        short_sleep();
        found = access(path, R_OK) == 0 && file_has(path, word);
    }
    if (!found)
        ck_abort_msg("%s never came to step %lld; said until then:%.3000s", job, (long long)step, said_last());
}

void expect_same_bits(const struct curve *a, const struct curve *b)
{
    ck_assert_int_eq(a->n, b->n);
    for (int i = 0; i < a->n; i++) {
        ck_assert_int_eq(a->step[i], b->step[i]);
        ck_assert_str_eq(a->text[i], b->text[i]);
    }
}

void expect_close(const struct curve *a, const struct curve *b, double relative)
{
    ck_assert_int_eq(a->n, b->n);
    for (int i = 0; i < a->n; i++) {
        ck_assert_int_eq(a->step[i], b->step[i]);
        ck_assert_msg(fabs(a->loss[i] - b->loss[i]) <= relative * fabs(b->loss[i]), "step %lld: loss %.9g against %.9g",
                      (long long)a->step[i], a->loss[i], b->loss[i]);
    }
}

void expect_learns(const struct curve *c)
{
    ck_assert_int_gt(c->n, 1);
    ck_assert_msg(c->loss[c->n - 1] < 0.9 * c->loss[0], "loss %g at first, %g at last", c->loss[0], c->loss[c->n - 1]);
}

void train(struct curve *c, const char *job, const char *format, ...)
{
    char line[2048];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    expect_code(command_run("train %s job.name=%s", line, job), 0);
    curve_read(c, job);
}

/* ---- numbers of others */

void expect_number(double is, double should, double relative, const char *what, int step)
{
    ck_assert_msg(fabs(is - should) <= relative * fabs(should), "%s of step %d is %.9g, torch has %.9g", what, step, is,
                  should);
}

static struct hd__ckpt_st *open_weights(const char *path)
{
    struct hd_error err = HD_ERROR_INIT;
    struct hd__ckpt_st *file;
    ck_assert_msg(!hd__ckpt_st_open(path, &file, &err), "%s", err.message);
    return file;
}

static float *read_tensor(struct hd__ckpt_st *file, const struct hd__ckpt_st_tensor *t)
{
    struct hd_error err = HD_ERROR_INIT;
    float *x = keep(malloc(t->count * sizeof *x));
    ck_assert_msg(!hd__ckpt_st_read_f32(file, t, 0, t->count, x, &err), "%s", err.message);
    return x;
}

void expect_weights(const char *exported, const char *golden, double relative)
{
    struct hd__ckpt_st *is = open_weights(exported), *should = open_weights(golden);
    uint32_t n = hd__ckpt_st_count(should);
    ck_assert_uint_gt(n, 10);
    for (uint32_t k = 0; k < n; k++) {
        const struct hd__ckpt_st_tensor *want = hd__ckpt_st_tensor_at(should, k),
                                        *have = hd__ckpt_st_find(is, want->name);
        double norm2 = 0, diff2 = 0;
        ck_assert_msg(have != NULL && have->count == want->count, "%s", want->name);
        const float *a = read_tensor(is, have), *b = read_tensor(should, want);
        for (uint64_t i = 0; i < want->count; i++) {
            norm2 += (double)b[i] * b[i];
            diff2 += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        }
        ck_assert_msg(diff2 <= relative * relative * norm2, "%s is off by %g of a norm of %g", want->name, sqrt(diff2),
                      sqrt(norm2));
    }
    hd__ckpt_st_close(is);
    hd__ckpt_st_close(should);
}
