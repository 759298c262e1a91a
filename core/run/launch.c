/* fork, pin, watch. The parent serves the rendezvous, so that it outlives every rank; a rank whose parent dies is killed
 * by the kernel. */
#include "core/run/launch.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/base/cpus.h"
#include "core/comm/launcher.h"

#define GRACE 4.0 /* seconds that the other ranks have to end by themselves after one failed */

struct child {
    pid_t pid;
    int running, exit_code, stopped;
};

/* Cores this process may use, dealt to the local ranks. */
static void pin(int32_t local_rank, int32_t local_size)
{
    cpu_set_t all, mine;
    if (sched_getaffinity(0, sizeof all, &all))
        return;
    hd__cpus_deal(&all, local_rank, local_size, &mine);
    sched_setaffinity(0, sizeof mine, &mine);
}

void hd__launch_settle(const struct hd__place_in_job *place)
{
    if (hd__launcher_joined())
        pin(place->local_rank, place->local_size);
}

static int run_child(int32_t rank, int32_t n, int port_pipe, struct hd__place_in_job *place, pid_t parent,
                     int (*body)(void *, const struct hd__place_in_job *), void *user)
{
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent || read(port_pipe, &place->store.port, sizeof place->store.port) != sizeof place->store.port)
        return 1;
    close(port_pipe);
    pin(rank, n);
    place->rank = place->local_rank = rank;
    return body(user, place);
}

static void say_end(int32_t rank, pid_t pid, int status)
{
    if (WIFSIGNALED(status))
        hd__log(HD_LOG_ERROR, NULL, "rank %d (process %d) was killed by signal %d (%s)", rank, (int)pid, WTERMSIG(status),
                strsignal(WTERMSIG(status)));
    else if (WEXITSTATUS(status) != 3 && WEXITSTATUS(status) != 2) /* 2: refused, and said why */
        hd__log(HD_LOG_ERROR, NULL, "rank %d (process %d) ended with exit code %d", rank, (int)pid, WEXITSTATUS(status));
}

/* A child ended, or was stopped or continued: a stopped one cannot end by itself when it has to. */
static void note(struct child *child, int32_t rank, int status, int *first, double *since)
{
    if (WIFSTOPPED(status) || WIFCONTINUED(status)) {
        child->stopped = WIFSTOPPED(status);
        return;
    }
    child->running = 0;
    child->exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 1;
    if (child->exit_code && !*first) {
        *first = child->exit_code;
        *since = hd__now();
        say_end(rank, child->pid, status);
    }
}

static void kill_stopped(struct child *children, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        if (children[i].running && children[i].stopped) {
            hd__log(HD_LOG_ERROR, NULL, "rank %d (process %d) had been stopped by a signal; it is killed", i, (int)children[i].pid);
            kill(children[i].pid, SIGKILL);
            children[i].stopped = 0;
        }
}

static void signal_all(const struct child *children, int32_t n, int sig)
{
    for (int32_t i = 0; i < n; i++)
        if (children[i].running)
            kill(children[i].pid, sig);
}

/* Collects children that ended; returns how many still run. *first is the exit code of the first that failed. */
static int32_t collect(struct child *children, int32_t n, int *first, double *since)
{
    int32_t running = 0;
    for (int32_t i = 0; i < n; i++) {
        int status;
        while (children[i].running && waitpid(children[i].pid, &status, WNOHANG | WUNTRACED | WCONTINUED) == children[i].pid)
            note(&children[i], i, status, first, since);
        running += children[i].running;
    }
    return running;
}

static int watch(struct child *children, int32_t n, const sigset_t *signals)
{
    int first = 0, killed = 0;
    double since = 0;
    while (collect(children, n, &first, &since)) {
        struct timespec wait = {.tv_nsec = 100000000};
        int sig = sigtimedwait(signals, NULL, &wait);
        if (sig == SIGTERM || sig == SIGINT)
            signal_all(children, n, sig);
        if (first && first != 3)
            kill_stopped(children, n);
        if (first && first != 3 && !killed && hd__now() > since + GRACE) {
            hd__log(HD_LOG_WARN, NULL, "ranks that did not end by themselves are killed");
            signal_all(children, n, SIGKILL);
            killed = 1;
        }
    }
    return first;
}

static int serve_and_watch(struct child *children, int32_t n, int port_pipe, const struct hd__server_options *options,
                           const sigset_t *signals)
{
    struct hd_error err = HD_ERROR_INIT;
    struct hd__server *server = NULL;
    int32_t culprit;
    int code;
    if (hd__server_open(options, &server, &err)) {
        hd__log(HD_LOG_ERROR, NULL, "%s", err.message);
        signal_all(children, n, SIGKILL);
    } else {
        uint16_t port = hd__server_port(server);
        for (int32_t i = 0; i < n; i++)
            if (write(port_pipe, &port, sizeof port) != sizeof port)
                hd__log(HD_LOG_ERROR, NULL, "cannot tell rank %d where the rendezvous is", i);
    }
    close(port_pipe);
    code = watch(children, n, signals);
    culprit = server ? hd__server_ended_by(server) : -1;
    hd__server_close(server);
    return culprit >= 0 && children[culprit].exit_code ? children[culprit].exit_code : code;
}

static struct hd__server_options options_for(int32_t n, double dead_after, const struct hd__reporter *reporter)
{
    struct hd__server_options options = {.address = "127.0.0.1", .size = n, .rank = -1, .dead_after = dead_after,
                                         .gathered = reporter ? hd__report_gathered : NULL, .user = (void *)reporter};
    hd__secret_make(options.secret);
    return options;
}

/* SIGCHLD, so that waiting for a signal is also waiting for the end; whoever ignored it gave that to us, and then there would
 * be no child to wait for. */
static void block_signals(sigset_t *signals, sigset_t *before)
{
    signal(SIGCHLD, SIG_DFL);
    sigemptyset(signals);
    sigaddset(signals, SIGCHLD);
    sigaddset(signals, SIGTERM);
    sigaddset(signals, SIGINT);
    sigprocmask(SIG_BLOCK, signals, before);
}

/* Serves the rendezvous, and leaves word of it in the environment. */
static int32_t serve_ranks(int32_t n, double dead_after, const struct hd__reporter *reporter, struct hd__server **server,
                           struct hd_error *err)
{
    struct hd__server_options options = options_for(n, dead_after, reporter);
    char secret[33], word[64];
    int32_t rc = getenv("MASTER_ADDR") ? HD_OK : hd__server_open(&options, server, err);
    if (rc || !*server)
        return rc;
    hd__secret_text(options.secret, secret);
    snprintf(word, sizeof word, "%u %s", hd__server_port(*server), secret);
    setenv(HD__RENDEZVOUS, word, 1);
    return HD_OK;
}

int hd__launch_command(const struct hd_comm_launcher *launcher, int32_t n, double dead_after, const struct hd__reporter *reporter,
                       const char *const *words)
{
    struct hd_error err = HD_ERROR_INIT;
    struct hd__server *server = NULL;
    sigset_t signals, before;
    pid_t pid;
    int status, sig;
    block_signals(&signals, &before);
    if (serve_ranks(n, dead_after, reporter, &server, &err) || hd__launcher_start(launcher, n, words, &pid, &err)) {
        hd__log(HD_LOG_ERROR, NULL, "%s", err.message);
        hd__server_close(server);
        return 2;
    }
    unsetenv(HD__RENDEZVOUS);
    while (waitpid(pid, &status, WNOHANG) != pid) {
        struct timespec wait = {.tv_nsec = 100000000};
        sig = sigtimedwait(&signals, NULL, &wait);
        if (sig == SIGTERM || sig == SIGINT)
            kill(pid, SIGUSR1);
    }
    hd__server_close(server);
    sigprocmask(SIG_SETMASK, &before, NULL);
    return WIFEXITED(status) && WEXITSTATUS(status) <= 3 ? WEXITSTATUS(status) : 1;
}

int hd__launch_local(int32_t n, double dead_after, const struct hd__reporter *reporter,
                     int (*body)(void *user, const struct hd__place_in_job *place), void *user)
{
    struct hd__place_in_job place = {.size = n, .local_size = n, .ours = 1, .reporter = reporter,
                                     .store = {.host = "127.0.0.1", .dead_after = dead_after}};
    struct hd__server_options options = options_for(n, dead_after, reporter);
    struct child *children = hd__alloc((size_t)n * sizeof *children);
    pid_t parent = getpid();
    sigset_t signals, before;
    int port_pipe[2], code;
    if (pipe(port_pipe))
        hd__die("pipe: %s", strerror(errno));
    memcpy(place.store.secret, options.secret, sizeof options.secret);
    block_signals(&signals, &before);
    fflush(NULL);
    for (int32_t i = 0; i < n; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            close(port_pipe[1]);
            free(children);
            code = run_child(i, n, port_pipe[0], &place, parent, body, user);
            fflush(NULL);
            _exit(code);
        }
        if (pid < 0)
            hd__die("fork: %s", strerror(errno));
        children[i] = (struct child){.pid = pid, .running = 1};
    }
    close(port_pipe[0]);
    code = serve_and_watch(children, n, port_pipe[1], &options, &signals);
    sigprocmask(SIG_SETMASK, &before, NULL);
    free(children);
    return code;
}
