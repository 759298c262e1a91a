/* fork, pin, watch. The parent serves the rendezvous, so that it outlives every rank; a rank whose parent dies is
 * killed by the kernel. */
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "heddle/comm.h"
#include "runtime/cpu/affinity.h"
#include "runtime/rendezvous/liveness.h"
#include "service/launch/external.h"
#include "service/launch/round_internal.h"
#include "service/report/speaker.h"

#define GRACE_SECONDS 4.0 /* seconds that the other ranks have to end by themselves after one failed */
#define LONGEST_LOOK 0.5  /* seconds between two looks at them, unless this process is stopped */

/* Ask for a checkpoint and the end: from the user, a terminal that is closed, Slurm before the time is up. */
static const int stop_signals[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1};

struct child {
    pid_t pid;
    int running, exit_code, signal, stopped;
    int sent;     /* the last signal of this process to it */
    double since; /* when it was stopped */
};

/* Cores this process may use, dealt to the local ranks. */
static void pin_rank(int32_t local_rank, int32_t local_size)
{
    cpu_set_t all, mine;
    hd__store_keep_cores();
    if (sched_getaffinity(0, sizeof all, &all))
        return;
    hd__cpus_partition(&all, local_rank, local_size, &mine);
    sched_setaffinity(0, sizeof mine, &mine);
}

void hd__launch_setup_rank(const struct hd__launch_env *env)
{
    if (hd__launch_join_external())
        pin_rank(env->local_rank, env->local_size);
}

static int run_child(struct hd__launch_round *r, int32_t i, int port_pipe, pid_t parent)
{
    struct hd__launch_env *env = &r->env;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent || read(port_pipe, &env->store.port, sizeof env->store.port) != sizeof env->store.port)
        return 1;
    close(port_pipe);
    pin_rank(i, r->n);
    env->local_rank = i;
    env->rank = r->first + i;
    return r->body(r->user, env);
}

/* The first rank that ended badly; before all others the first that somebody killed: they may have seen it sooner. */
struct failure {
    int code; /* 0: none did */
    int32_t child, killed;
    double since; /* of the first in any case */
};

/* A child ended, or was stopped or continued: a stopped one cannot end by itself when it has to. */
static void record_status(struct child *child, int32_t i, int32_t rank, int status, struct failure *first)
{
    int killed, is_first;
    if (WIFSTOPPED(status) || WIFCONTINUED(status)) {
        child->stopped = WIFSTOPPED(status);
        child->since = hd__now();
        return;
    }
    child->running = 0;
    child->exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 1;
    child->signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    killed = child->signal && child->signal != child->sent;
    is_first = child->exit_code && !first->code;
    if (is_first || killed > first->killed)
        *first = (struct failure){
            .code = child->exit_code, .child = i, .killed = killed, .since = is_first ? hd__now() : first->since};
    if (killed || (is_first && child->signal && child->signal != SIGKILL)) /* ours: it was said why */
        hd__log(HD_LOG_ERROR, NULL, "rank %d (process %d) was killed by signal %d (%s)", rank, (int)child->pid,
                child->signal, strsignal(child->signal));
}

static void send_signal(struct child *child, int sig)
{
    child->sent = sig;
    kill(child->pid, sig);
}

/* Those that were before `late`. The rendezvous hears it before their connections close: the cause is that they were
 * stopped, not that somebody killed them. */
static void kill_stopped(const struct hd__launch_round *r, struct child *children, struct hd__server *server,
                         double late)
{
    for (int32_t i = 0; i < r->n; i++)
        if (children[i].running && children[i].stopped && late >= children[i].since) {
            char cause[64];
            snprintf(cause, sizeof cause, "rank %d died (silent for %.1f s)", r->first + i,
                     hd__now() - children[i].since);
            if (server)
                hd__server_end(server, r->first + i, cause);
            hd__log(HD_LOG_ERROR, NULL, "rank %d (process %d) had been stopped by a signal; it is killed", r->first + i,
                    (int)children[i].pid);
            send_signal(&children[i], SIGKILL);
            children[i].stopped = 0;
        }
}

/* A rank that a signal or a notice of its own ended before all had met: the others would wait for it. On one machine
 * all are stopped with it (1); those of other machines are told. */
static int end_unmet(const struct hd__launch_round *r, const struct child *children, struct hd__server *server)
{
    char cause[64];
    for (int32_t i = 0; i < r->n && !hd__server_is_complete(server); i++)
        if (!children[i].running && children[i].exit_code == 3) {
            if (r->env.size == r->n)
                return 1;
            snprintf(cause, sizeof cause, "rank %d was stopped before all ranks had met", r->first + i);
            hd__server_end(server, r->first + i, cause);
        }
    return 0;
}

int hd__launch_asks_to_stop(int sig)
{
    int found = 0;
    for (size_t i = 0; i < HD__COUNT(stop_signals); i++)
        found |= sig == stop_signals[i];
    return found;
}

static void signal_all(struct child *children, int32_t n, int sig)
{
    for (int32_t i = 0; i < n; i++)
        if (children[i].running)
            send_signal(&children[i], sig);
}

/* Ranks of one machine are told by their own signals, and close their connections by that. */
static void stop_all(const struct hd__launch_round *r, struct child *children, struct hd__server *server, int sig)
{
    if (server && r->env.size == r->n)
        hd__server_stopping(server);
    signal_all(children, r->n, sig);
}

/* Collects children that ended; returns how many still run. */
static int32_t reap_children(const struct hd__launch_round *r, struct child *children, struct failure *first)
{
    int32_t running = 0;
    for (int32_t i = 0; i < r->n; i++) {
        int status;
        while (children[i].running &&
               waitpid(children[i].pid, &status, WNOHANG | WUNTRACED | WCONTINUED) == children[i].pid)
            record_status(&children[i], i, r->first + i, status, first);
        running += children[i].running;
    }
    return running;
}

/* Ranks that save what is left; `slept`: for so long they could not. */
static double busy_until(struct hd__launch_progress *progress, double slept)
{
    double until;
    __atomic_load(&progress->busy_until, &until, __ATOMIC_RELAXED);
    until += slept;
    if (slept > 0)
        __atomic_store(&progress->busy_until, &until, __ATOMIC_RELAXED);
    return until;
}

/* A rank that is stopped for dead_after is dead, also where it never came to the rendezvous, or was the last to
 * leave it. */
static struct failure wait_children(const struct hd__launch_round *r, struct child *children, struct hd__server *server,
                                    int *stopped)
{
    struct failure first = {0};
    double looked = hd__now(), now, busy;
    int killed = 0;
    for (; reap_children(r, children, &first); looked = now) {
        struct timespec wait = {.tv_nsec = 100000000};
        int sig = sigtimedwait(&r->signals, NULL, &wait);
        if (hd__launch_asks_to_stop(sig)) {
            stop_all(r, children, server, sig);
            *stopped = 1;
        }
        now = hd__now();
        for (int32_t i = 0; i < r->n; i++) /* this process may have been stopped, too */
            children[i].since = hd_excuse(children[i].since, looked, LONGEST_LOOK, now);
        first.since = hd_excuse(first.since, looked, LONGEST_LOOK, now);
        busy = busy_until(r->env.progress, hd_slept(looked, LONGEST_LOOK, now));
        if (r->tick && r->tick(r->tick_user, server) && (!first.code || first.code == 3))
            first = (struct failure){.code = 1, .child = -1, .since = hd__now()};
        if (server && (!*stopped || r->env.size > r->n) && end_unmet(r, children, server)) {
            stop_all(r, children, server, SIGTERM);
            *stopped = 1;
        }
        kill_stopped(r, children, server, now - (first.code && first.code != 3 ? 0 : r->dead_after));
        if (first.code && first.code != 3 && !killed && now > HD__MAX(first.since + GRACE_SECONDS, busy)) {
            hd__log(HD_LOG_WARN, NULL, "ranks that did not end by themselves are killed");
            signal_all(children, r->n, SIGKILL);
            killed = 1;
        }
    }
    return first;
}

/* Those that somebody killed, else the one that the job ended by. */
static void list_lost(const struct hd__launch_round *r, const struct child *children, int32_t rank,
                      struct hd__launch_outcome *out)
{
    out->n_lost = 0;
    for (int32_t i = 0; i < r->n; i++) {
        int killed = children[i].signal && children[i].signal != children[i].sent;
        out->ended[i] = killed ? -children[i].signal : children[i].exit_code;
        if (killed)
            out->lost[out->n_lost++] = r->first + i;
    }
    out->killed = out->n_lost > 0;
    if (!out->n_lost && rank >= 0)
        out->lost[out->n_lost++] = rank;
}

static void summarize(const struct hd__launch_round *r, const struct child *children, const struct failure *first,
                      int32_t culprit, int32_t why, struct hd__launch_outcome *out)
{
    int32_t own = culprit - r->first, rank = culprit >= 0 || first->child < 0 ? culprit : r->first + first->child;
    const struct child *blamed = rank >= r->first && rank < r->first + r->n ? &children[rank - r->first] : NULL;
    if (first->code && blamed && r->serve)
        hd__speaker_exit(rank, (int32_t)blamed->pid, blamed->exit_code, blamed->signal, why);
    list_lost(r, children, r->serve || culprit >= 0 ? rank : -1, out);
    out->culprit = culprit;
    out->since = first->since;
    out->code = first->code;
    if (!first->killed && culprit >= 0 && own >= 0 && own < r->n && children[own].exit_code)
        out->code = children[own].exit_code;
    if (culprit >= 0 && !out->code) /* a rank left with 0 while others were at work */
        out->code = 1;
}

static void serve_and_watch(struct hd__launch_round *r, struct child *children, int port_pipe,
                            struct hd__launch_outcome *out)
{
    struct hd_error err = HD_ERROR_INIT;
    struct hd__server *server = NULL;
    struct failure first;
    int32_t culprit = -1, why = HD_OK;
    uint16_t port = r->env.store.port;
    struct hd__server_options options = r->serve ? *r->serve : (struct hd__server_options){0};
    sigset_t stops = r->signals;
    sigdelset(&stops, SIGCHLD);
    options.stops = r->env.size == r->n ? &stops : NULL;
    if (r->serve && r->env.size > 1 && hd__server_open(&options, &server, &err)) {
        hd__log(HD_LOG_ERROR, NULL, "%s", err.message);
        signal_all(children, r->n, SIGKILL);
    } else {
        port = server ? hd__server_port(server) : port; /* one rank alone asks nobody */
        for (int32_t i = 0; i < r->n; i++)
            if (write(port_pipe, &port, sizeof port) != sizeof port &&
                errno != EPIPE) /* a rank that died at once: watch tells */
                hd__log(HD_LOG_ERROR, NULL, "cannot tell rank %d where the rendezvous is", r->first + i);
    }
    close(port_pipe);
    first = wait_children(r, children, server, &out->stopped);
    if (server && r->env.size > r->n) { /* ranks of other machines still close, or have yet to hear of the end */
        int ends = !hd__server_is_complete(server) || (first.code && first.code != 3);
        end_unmet(r, children, server); /* the last of ours may just have ended */
        hd__server_drain(server, hd__now() + (ends ? GRACE_SECONDS : r->serve->timeout + 10));
    }
    culprit = server ? hd__server_ended_by(server, &why) : -1;
    hd__server_close(server);
    summarize(r, children, &first, culprit, why, out);
}

void hd__launch_set_timeouts(struct hd__server_options *options, const struct hd__reporter *reporter)
{
    options->late_after = reporter ? reporter->late_after : 0;
    options->timeout = reporter ? reporter->timeout : 0;
}

struct hd__server_options hd__launch_server_options(int32_t n, double dead_after, const struct hd__reporter *reporter)
{
    struct hd__server_options options = {.address = "127.0.0.1",
                                         .size = n,
                                         .rank = -1,
                                         .dead_after = dead_after,
                                         .on_dumps = reporter ? reporter->on_dumps : NULL,
                                         .user = (void *)reporter};
    hd__launch_set_timeouts(&options, reporter);
    hd__store_secret_generate(options.secret);
    return options;
}

/* SIGCHLD, so that waiting for a signal is also waiting for the end; whoever ignored it gave that to us, and then
 * there would be no child to wait for. They stay blocked: a second request that comes when the ranks have ended does
 * not change the exit code. A rank that starts unblocks them when it can answer. */
void hd__launch_block_signals(sigset_t *signals)
{
    struct sigaction hangup;
    signal(SIGCHLD, SIG_DFL);
    sigemptyset(signals);
    sigaddset(signals, SIGCHLD);
    for (size_t i = 0; i < HD__COUNT(stop_signals); i++)
        sigaddset(signals, stop_signals[i]);
    sigaction(SIGHUP, NULL, &hangup);
    if (hangup.sa_handler == SIG_IGN) /* nohup; a blocked signal would be taken all the same */
        sigdelset(signals, SIGHUP);
    sigprocmask(SIG_BLOCK, signals, NULL);
}

/* Serves the rendezvous, and leaves word of it in the environment. */
static int32_t serve_rendezvous(int32_t n, double dead_after, const struct hd__reporter *reporter,
                                struct hd__server **server, struct hd_error *err)
{
    struct hd__server_options options = hd__launch_server_options(n, dead_after, reporter);
    char secret[HD__SECRET_TEXT], word[HD__SECRET_TEXT + 8];
    int32_t rc = getenv("MASTER_ADDR") ? HD_OK : hd__server_open(&options, server, err);
    if (rc || !*server)
        return rc;
    hd__store_secret_format(options.secret, secret);
    snprintf(word, sizeof word, "%u %s", hd__server_port(*server), secret);
    setenv(HD__LAUNCH_RENDEZVOUS_ENV, word, 1);
    return HD_OK;
}

/* The job ended by a fault, and the command that started its ranks does not end: it may not even have started them. */
struct launcher_stop {
    double since, looked; /* since: the fault; 0: there was none */
    int sent;
};

static void stop_late_launcher(pid_t pid, const struct hd__server *server, struct launcher_stop *end)
{
    double now = hd__now(), slept = hd_slept(end->looked, LONGEST_LOOK, now);
    int32_t why = HD_OK;
    if (server)
        hd__server_ended_by(server, &why);
    end->since = end->since > 0 ? end->since + slept : why ? now : 0;
    end->looked = now;
    if (!end->since || slept > 0 ||
        now < HD__MAX(end->since + (2 + end->sent) * GRACE_SECONDS, server ? hd__server_busy_until(server) : 0))
        return;
    if (!end->sent)
        hd__log(HD_LOG_WARN, NULL, "the command that started the ranks did not end by itself and is ended");
    kill(pid, end->sent ? SIGKILL : SIGTERM);
    end->sent++;
}

int hd__launch_command(const struct hd_comm_launcher *launcher, int32_t n, double dead_after,
                       const struct hd__reporter *reporter, const char *const *words)
{
    struct hd_error err = HD_ERROR_INIT;
    struct hd__server *server = NULL;
    sigset_t signals;
    struct launcher_stop end = {0};
    pid_t pid;
    int status, sig;
    hd__launch_block_signals(&signals);
    if (serve_rendezvous(n, dead_after, reporter, &server, &err) ||
        hd__launch_external_start(launcher, n, words, &pid, &err)) {
        hd__log(HD_LOG_ERROR, NULL, "%s", err.message);
        hd__server_close(server);
        return 2;
    }
    unsetenv(HD__LAUNCH_RENDEZVOUS_ENV);
    while (waitpid(pid, &status, WNOHANG) != pid) {
        struct timespec wait = {.tv_nsec = 100000000};
        sig = sigtimedwait(&signals, NULL, &wait);
        if (hd__launch_asks_to_stop(sig))
            kill(pid, SIGUSR1);
        stop_late_launcher(pid, server, &end);
    }
    int code = WIFEXITED(status) && WEXITSTATUS(status) <= 3 ? WEXITSTATUS(status) : 1,
        own = server ? hd__server_exit_code(server) : -1;
    hd__server_close(server);
    /* A rank that crashes or is killed as its process ends has another code than mpirun's own. */
    if (code == own || own < 0 || (WIFEXITED(status) && WEXITSTATUS(status) > 1))
        return code;
    hd__log(
        HD_LOG_WARN, NULL,
        "%s ended with exit code %d, but every rank had reported %d: it did not notice in time, as happens on a busy "
        "machine; this command ends with %d",
        launcher->command[0], code, own, own);
    return own;
}

/* Descriptors of a process that starts ranks or is one, beside a connection for each rank. */
enum { FILES_OF_A_PROCESS = 48 };

int32_t hd__launch_check_files(int32_t ranks, struct hd_error *err)
{
    struct rlimit limit;
    rlim_t need = FILES_OF_A_PROCESS + (rlim_t)ranks;
    if (getrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur >= need)
        return HD_OK;
    if (limit.rlim_max >= need) {
        limit.rlim_cur = limit.rlim_max;
        if (!setrlimit(RLIMIT_NOFILE, &limit))
            return HD_OK;
    }
    return hd_fail(err, HD_E_INVALID,
                   "a process may open %llu files here, and one that meets %d rank%s needs %llu: raise the limit "
                   "(ulimit -n %llu)",
                   (unsigned long long)limit.rlim_cur, ranks, ranks > 1 ? "s" : "", (unsigned long long)need,
                   (unsigned long long)HD__MAX(need, 1024));
}

int64_t hd__launch_processor_limit(void)
{
    struct rlimit limit;
    return getrlimit(RLIMIT_CPU, &limit) || limit.rlim_cur == RLIM_INFINITY ? 0 : (int64_t)limit.rlim_cur;
}

int hd__launch_fail_start(const char *what)
{
    hd__log(HD_LOG_ERROR, NULL, "the ranks cannot be started: %s: %s", what, strerror(errno));
    return 2;
}

int hd__launch_run_round(struct hd__launch_round *r, struct hd__launch_outcome *out)
{
    struct child *children = hd__alloc((size_t)r->n * sizeof *children);
    pid_t parent = getpid();
    int port_pipe[2];
    if (pipe(port_pipe)) {
        free(children);
        return hd__launch_fail_start("pipe");
    }
    if (r->serve)
        memcpy(r->env.store.secret, r->serve->secret, sizeof r->serve->secret);
    fflush(NULL);
    for (int32_t i = 0; i < r->n; i++) {
        pid_t pid = hd__store_fork();
        if (pid == 0) {
            close(port_pipe[1]);
            free(children);
            int code = run_child(r, i, port_pipe[0], parent);
            fflush(NULL);
            _exit(code);
        }
        if (pid < 0) { /* those that are there read the end of the pipe, and end */
            hd__launch_fail_start("fork");
            close(port_pipe[0]);
            close(port_pipe[1]);
            while (i-- > 0) /* the others of this process go on: the agent's watcher of notices */
                waitpid(children[i].pid, NULL, 0);
            free(children);
            return 2;
        }
        children[i] = (struct child){.pid = pid, .running = 1};
    }
    close(port_pipe[0]);
    serve_and_watch(r, children, port_pipe[1], out);
    free(children);
    return 0;
}
