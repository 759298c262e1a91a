#include "conformance/check.h"

#include <errno.h>
#include <ftw.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/plugin/crash.h"
#include "service/launch/external.h"

double conf_seconds = 60;
enum { PASSED = 83 }; /* exit code of a check that was run to its end: a plug-in may end the process with 0 */
static unsigned passed, failed;
static char folder[64];
static volatile pid_t running; /* the check, and what it started: a group of its own, which no terminal ends */

static const int stops[] = {SIGINT, SIGTERM, SIGHUP};

/* A signal that ends this process ends the check that runs. */
static void on_stop(int sig)
{
    if (running > 0) {
        kill(-running, SIGKILL);
        waitpid(running, NULL, 0);
    }
    signal(sig, SIG_DFL);
    raise(sig);
}

void conf_fail(const char *file, int line, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fprintf(stderr, "%s:%d: ", file, line);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    fflush(NULL);
    _exit(1);
}

static int remove_one(const char *path, const struct stat *s, int type, struct FTW *at)
{
    (void)s, (void)type, (void)at;
    return remove(path);
}

const char *conf_folder(void)
{
    return folder;
}

/* Output of a check, at most 60 lines, below the check's own line. */
static void print_output(FILE *output)
{
    char line[2048];
    rewind(output);
    for (int n = 0; n < 60 && fgets(line, sizeof line, output); n++)
        printf("        %s%s", line, strchr(line, '\n') ? "" : "\n");
}

static void become_check(FILE *output, void (*test)(int i), int i)
{
    setpgid(0, 0);
    dup2(fileno(output), STDERR_FILENO);
    dup2(fileno(output), STDOUT_FILENO);
    hd__crash_catch("heddle test", "");
    test(i);
    fflush(NULL);
    _exit(PASSED);
}

static const char *end_of(pid_t pid, char text[64])
{
    const char *multiplier = getenv("CK_TIMEOUT_MULTIPLIER");
    double deadline = hd__now() + conf_seconds * HD__MAX(1.0, multiplier ? atof(multiplier) / 5 : 1);
    int status;
    while (!waitpid(pid, &status, WNOHANG)) {
        if (hd__now() > deadline) {
            kill(-pid, SIGKILL);
            waitpid(pid, &status, 0);
            return "it hangs, and was killed";
        }
        usleep(500);
    }
    kill(-pid, SIGKILL); /* what it left running */
    if (WIFSIGNALED(status))
        snprintf(text, 64, "ended by signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
    else if (WEXITSTATUS(status) != 1)
        snprintf(text, 64, "ended with exit code %d before it was through", WEXITSTATUS(status));
    else
        *text = '\0';
    return WIFEXITED(status) && WEXITSTATUS(status) == PASSED ? NULL : text;
}

static void run_one(const char *label, void (*test)(int i), int i)
{
    const char *top = getenv("TMPDIR"), *why = "no process could be started, or no folder made: set TMPDIR";
    char text[64];
    FILE *output = tmpfile();
    pid_t pid = -1;
    snprintf(folder, sizeof folder, "%s/heddle-test-XXXXXX", top && strlen(top) < 32 ? top : "/tmp");
    fflush(NULL);
    for (size_t k = 0; k < HD__COUNT(stops); k++)
        if (signal(stops[k], on_stop) == SIG_IGN) /* nohup */
            signal(stops[k], SIG_IGN);
    if (output && mkdtemp(folder) && !(pid = fork()))
        become_check(output, test, i);
    running = pid;
    if (pid > 0)
        setpgid(pid, pid), why = end_of(pid, text);
    running = 0;
    printf("%s  %s%s%s\n", why ? "FAILED" : "ok    ", label, why && *why ? ": " : "", why ? why : "");
    if (why && output)
        print_output(output);
    why ? failed++ : passed++;
    nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    if (output)
        fclose(output);
    fflush(stdout);
}

void conf_run(const char *name, void (*test)(int i), int from, int to, const char *unit)
{
    char label[128];
    for (int i = from; i < to; i++) {
        size_t n = (size_t)snprintf(label, sizeof label - 24, "%s", name);
        if (to - from > 1 || unit)
            snprintf(label + n, sizeof label - n, ", %d%s%s", i, unit ? " " : "", unit ? unit : "");
        for (char *c = label; *c; c++)
            *c = *c == '_' ? ' ' : *c;
        if (!conf_target.only || strstr(label, conf_target.only))
            run_one(label, test, i);
    }
}

int conf_finish(void)
{
    if (!passed && !failed)
        fprintf(stderr, "heddle test: no check of %s has '%s' in its line\n", conf_target.label, conf_target.only);
    printf("%u passed, %u failed\n", passed, failed);
    if (fflush(stdout) || ferror(stdout)) {
        fprintf(stderr, "heddle test: what it prints could not be written: %s\n", strerror(errno));
        return 1;
    }
    return failed || !passed;
}

/* ---- whole jobs */

static void write_file(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    ck_assert_msg(f && fputs(text, f) >= 0 && !fclose(f), "%s cannot be written", path);
}

int conf_train(const char *where, const char *job, const char *words, struct hd__text *printed)
{
    char self[4096], line[4096], command[6000], *slash;
    FILE *out;
    slash = strrchr(hd__launch_self_path(self), '/');
    ck_assert(slash && chdir(where) == 0);
    write_file("job.yaml", job);
    FILE *text = fopen("text", "w");
    for (int i = 0; i < 400 && text; i++)
        fprintf(text, "%d: the warp and the weft are woven into one cloth, again and again.\n", i * i);
    ck_assert(text && !fclose(text));
    snprintf(command, sizeof command, "exec '%.*s/heddle' train job.yaml %s%s%s%s 2>&1", (int)(slash - self), self,
             words, conf_target.folder ? " 'plugins.path=[" : "", conf_target.folder ? conf_target.folder : "",
             conf_target.folder ? "]'" : "");
    ck_assert_msg((out = popen(command, "r")), "no shell");
    while (fgets(line, sizeof line, out))
        hd__text_add(printed, "%s", line);
    int status = pclose(out);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

void conf_use(struct hd__text *text)
{
    hd__text_add(text, "{use: %s", conf_target.name);
    for (size_t i = 0; i < conf_target.n_set; i++)
        hd__text_add(text, ", %.*s: %s", (int)strcspn(conf_target.set[i], "="), conf_target.set[i],
                     strchr(conf_target.set[i], '=') + 1);
    hd__text_add(text, "}");
}

void conf_end(const struct hd__text *printed, char end[128])
{
    const char *last = NULL;
    for (const char *at = printed->at; at && (at = strstr(at, "step ")); at++)
        last = strstr(at, " lr") ? strstr(at, "loss") : last;
    ck_assert_msg(last, "no step was printed:\n%s", printed->at ? printed->at : "");
    snprintf(end, 128, "%.*s", (int)(strstr(last, " lr") - last), last);
}
