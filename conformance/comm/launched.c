#include "conformance/comm/launched.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "service/launch/external.h"

/* This program's own words. */
static void read_words(const char *words[64])
{
    static char text[8192];
    FILE *f = fopen("/proc/self/cmdline", "r");
    size_t bytes = f ? fread(text, 1, sizeof text - 1, f) : 0, n = 0;
    for (size_t at = 0; at < bytes && n < 63; at += strlen(text + at) + 1)
        words[n++] = text + at;
    words[n] = NULL;
    if (f)
        fclose(f);
}

/* The launcher's code, or -1 if it had to be killed; its ranks die with it. */
static int await(pid_t pid, double seconds)
{
    double deadline = hd__now() + seconds;
    int status;
    while (waitpid(pid, &status, WNOHANG) == 0) {
        if (hd__now() > deadline) {
            fprintf(stderr, "ranks hang: killed\n");
            kill(-pid, SIGKILL);
            waitpid(pid, &status, 0);
            return -1;
        }
        usleep(1000);
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int run_launched(const struct hd_comm_launcher *launcher, struct launched *shared, const char *path,
                 const int *expect_signal, double seconds)
{
    struct hd_error err = HD_ERROR_INIT;
    const char *words[64];
    char self[4096], folder[] = "/tmp/heddle-ranks-XXXXXX";
    pid_t pid;
    int bad = 0, code;
    /* Open MPI's processes that begin or end at once trip over each other in a folder that all have: "File exists" */
    if (mkdtemp(folder))
        setenv("TMPDIR", folder, 1);
    read_words(words);
    words[0] = hd__launch_self_path(self);
    setenv("TEST_LAUNCHED", path, 1);
    /* a launcher that ends the others at once would leave nothing to be tested: Open MPI's 4.1 and 5.0 */
    if (expect_signal) {
        setenv("OMPI_MCA_orte_enable_recovery", "1", 1);
        setenv("PRTE_MCA_state_base_recoverable", "1", 1);
        setenv("PRTE_MCA_state_base_continuous", "1", 1);
    }
    if (hd__launch_external_start(launcher, shared->options.size, words, &pid, &err)) {
        fprintf(stderr, "%s\n", err.message);
        rmdir(folder);
        return 1;
    }
    code = await(pid, seconds);
    unsetenv("TMPDIR");
    rmdir(folder);
    for (int32_t r = 0; r < shared->options.size; r++) {
        int dies = expect_signal && expect_signal[r], ended = atomic_load(&shared->ended[r]);
        if (atomic_load(&shared->came[r]) && ended == (dies ? 0 : 1))
            continue;
        fprintf(stderr, "rank %d %s %d\n", r, ended ? "ended with" : "did not end, the launcher's code is",
                ended ? ended - 1 : code);
        bad = 1;
    }
    if (code && !expect_signal)
        fprintf(stderr, "the launcher ended with code %d\n", code);
    return bad || (code && !expect_signal);
}
