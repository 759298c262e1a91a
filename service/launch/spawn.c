/* fork, pin, watch. The parent serves the rendezvous, so that it outlives every rank; a rank whose parent dies is
 * killed by the kernel. */
#include "service/launch/launch.h"

#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/cpu/affinity.h"
#include "runtime/rendezvous/liveness.h"
#include "service/launch/external.h"
#include "service/report/speaker.h"

#define LONGEST_PAUSE 600.0 /* seconds; or launch.pause, where that is longer */
#define GRACE_SECONDS 4.0   /* seconds that the other ranks have to end by themselves after one failed */

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

static int run_child(int32_t rank, int32_t n, int port_pipe, struct hd__launch_env *env, pid_t parent,
                     int (*body)(void *, const struct hd__launch_env *), void *user)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent || read(port_pipe, &env->store.port, sizeof env->store.port) != sizeof env->store.port)
        return 1;
    close(port_pipe);
    pin_rank(rank, n);
    env->rank = env->local_rank = rank;
    return body(user, env);
}

/* The first rank that ended badly; before all others the first that somebody killed: they may have seen it sooner. */
struct failure {
    int code; /* 0: none did */
    int32_t rank, killed;
    double since; /* of the first in any case */
};

/* A child ended, or was stopped or continued: a stopped one cannot end by itself when it has to. */
static void record_status(struct child *child, int32_t rank, int status, struct failure *first)
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
            .code = child->exit_code, .rank = rank, .killed = killed, .since = is_first ? hd__now() : first->since};
    if (killed || (is_first && child->signal && child->signal != SIGKILL)) /* ours: it was said why */
        hd__log(HD_LOG_ERROR, NULL, "rank %d (process %d) was killed by signal %d (%s)", rank, (int)child->pid,
                child->signal, strsignal(child->signal));
}

static void send_signal(struct child *child, int sig)
{
    child->sent = sig;
    kill(child->pid, sig);
}

/* Those that were for `seconds`. */
static void kill_stopped(struct child *children, int32_t n, double seconds)
{
    for (int32_t i = 0; i < n; i++)
        if (children[i].running && children[i].stopped && hd__now() >= children[i].since + seconds) {
            hd__log(HD_LOG_ERROR, NULL, "rank %d (process %d) had been stopped by a signal; it is killed", i,
                    (int)children[i].pid);
            send_signal(&children[i], SIGKILL);
            children[i].stopped = 0;
        }
}

static int asks_to_stop(int sig)
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

/* Collects children that ended; returns how many still run. */
static int32_t reap_children(struct child *children, int32_t n, struct failure *first)
{
    int32_t running = 0;
    for (int32_t i = 0; i < n; i++) {
        int status;
        while (children[i].running &&
               waitpid(children[i].pid, &status, WNOHANG | WUNTRACED | WCONTINUED) == children[i].pid)
            record_status(&children[i], i, status, first);
        running += children[i].running;
    }
    return running;
}

/* This process was stopped too, as by Ctrl-Z: nobody is to blame for the time. */
static void restart_stop_timers(struct child *children, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        children[i].since = hd__now();
}

/* Ranks that save what is left. */
static double busy_until(const struct hd__launch_progress *progress)
{
    double until;
    __atomic_load(&progress->busy_until, &until, __ATOMIC_RELAXED);
    return until;
}

/* A rank that is stopped for dead_after is dead, also where it never came to the rendezvous, or was the last to
 * leave it. */
static struct failure wait_children(struct child *children, int32_t n, double dead_after,
                                    const struct hd__launch_progress *progress, const sigset_t *signals, int *stopped)
{
    struct failure first = {0};
    int killed = 0;
    while (reap_children(children, n, &first)) {
        struct timespec wait = {.tv_nsec = 100000000};
        double before = hd__now();
        int sig = sigtimedwait(signals, NULL, &wait);
        if (asks_to_stop(sig)) {
            signal_all(children, n, sig);
            *stopped = 1;
        }
        if (hd__now() - before > dead_after / 2)
            restart_stop_timers(children, n);
        kill_stopped(children, n, first.code && first.code != 3 ? 0 : dead_after);
        if (first.code && first.code != 3 && !killed &&
            hd__now() > HD__MAX(first.since + GRACE_SECONDS, busy_until(progress))) {
            hd__log(HD_LOG_WARN, NULL, "ranks that did not end by themselves are killed");
            signal_all(children, n, SIGKILL);
            killed = 1;
        }
    }
    return first;
}

/* How a round ended. */
struct outcome {
    int code, stopped; /* of the job; this process was asked to stop */
    int32_t *lost;     /* room for all ranks */
    int32_t n_lost;
    double since; /* the first failure */
};

/* Those that somebody killed, else the one that the job ended by. */
static void list_lost(const struct child *children, int32_t n, int32_t rank, struct outcome *out)
{
    out->n_lost = 0;
    for (int32_t i = 0; i < n; i++)
        if (children[i].signal && children[i].signal != children[i].sent)
            out->lost[out->n_lost++] = i;
    if (!out->n_lost)
        out->lost[out->n_lost++] = rank;
}

static void serve_and_watch(struct child *children, int32_t n, int port_pipe, const struct hd__server_options *options,
                            const struct hd__launch_progress *progress, const sigset_t *signals, struct outcome *out)
{
    struct hd_error err = HD_ERROR_INIT;
    struct hd__server *server = NULL;
    struct failure first;
    int32_t culprit = -1, why = HD_OK, rank;
    uint16_t port = 0;
    if (n > 1 && hd__server_open(options, &server, &err)) {
        hd__log(HD_LOG_ERROR, NULL, "%s", err.message);
        signal_all(children, n, SIGKILL);
    } else {
        port = server ? hd__server_port(server) : 0; /* one rank alone asks nobody */
        for (int32_t i = 0; i < n; i++)
            if (write(port_pipe, &port, sizeof port) != sizeof port &&
                errno != EPIPE) /* a rank that died at once: watch tells */
                hd__log(HD_LOG_ERROR, NULL, "cannot tell rank %d where the rendezvous is", i);
    }
    close(port_pipe);
    first = wait_children(children, n, options->dead_after, progress, signals, &out->stopped);
    culprit = server ? hd__server_ended_by(server, &why) : -1;
    hd__server_close(server);
    rank = culprit >= 0 ? culprit : first.rank;
    if (first.code)
        hd__speaker_exit(rank, (int32_t)children[rank].pid, children[rank].exit_code, children[rank].signal, why);
    list_lost(children, n, rank, out);
    out->since = first.since;
    out->code = !first.killed && culprit >= 0 && children[culprit].exit_code ? children[culprit].exit_code : first.code;
}

void hd__launch_set_timeouts(struct hd__server_options *options, const struct hd__reporter *reporter)
{
    options->late_after = reporter ? reporter->late_after : 0;
    options->timeout = reporter ? reporter->timeout : 0;
}

static struct hd__server_options make_server_options(int32_t n, double dead_after, const struct hd__reporter *reporter)
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
static void block_signals(sigset_t *signals)
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
    struct hd__server_options options = make_server_options(n, dead_after, reporter);
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
    double since; /* of the fault; 0: there was none */
    int sent;
};

static void stop_late_launcher(pid_t pid, const struct hd__server *server, struct launcher_stop *end)
{
    int32_t why = HD_OK;
    if (server)
        hd__server_ended_by(server, &why);
    if (!end->since && why)
        end->since = hd__now();
    if (!end->since || hd__now() < end->since + (2 + end->sent) * GRACE_SECONDS)
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
    block_signals(&signals);
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
        if (asks_to_stop(sig))
            kill(pid, SIGUSR1);
        stop_late_launcher(pid, server, &end);
    }
    hd__server_close(server);
    return WIFEXITED(status) && WEXITSTATUS(status) <= 3 ? WEXITSTATUS(status) : 1;
}

/* Descriptors of a process that starts ranks or is one, beside a connection for each rank. */
enum { FILES_OF_A_PROCESS = 48 };

int32_t hd__launch_check_files(int32_t local_ranks, struct hd_error *err)
{
    struct rlimit limit;
    rlim_t need = FILES_OF_A_PROCESS + (rlim_t)local_ranks;
    if (getrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur >= need)
        return HD_OK;
    if (limit.rlim_max >= need) {
        limit.rlim_cur = limit.rlim_max;
        if (!setrlimit(RLIMIT_NOFILE, &limit))
            return HD_OK;
    }
    return hd_fail(err, HD_E_INVALID,
                   "a process may open %llu files here, and a job of %d rank%s on this machine needs %llu: raise the "
                   "limit (ulimit -n %llu)",
                   (unsigned long long)limit.rlim_cur, local_ranks, local_ranks > 1 ? "s" : "",
                   (unsigned long long)need, (unsigned long long)HD__MAX(need, 1024));
}

static int fail_start(const char *what)
{
    hd__log(HD_LOG_ERROR, NULL, "the ranks cannot be started: %s: %s", what, strerror(errno));
    return 2;
}

struct rounds {
    int32_t n;
    double dead_after;
    const struct hd__reporter *reporter;
    const struct hd__launch_policy *policy;
    int (*body)(void *user, const struct hd__launch_env *env);
    void *user;
    sigset_t signals;
    struct hd__launch_env env; /* of the ranks */
    HD__ARRAY(struct hd__launch_restart) restarts;
    int32_t in_a_row;
    int64_t best, failed_step; /* the newest checkpoint, and the step that failed, as of the round before */
};

/* Starts all ranks and waits for their end. Returns 0, or an exit code where they cannot be started. */
static int run_round(struct rounds *r, struct outcome *out)
{
    struct hd__server_options options = make_server_options(r->n, r->dead_after, r->reporter);
    struct child *children = hd__alloc((size_t)r->n * sizeof *children);
    pid_t parent = getpid();
    int port_pipe[2];
    if (pipe(port_pipe)) {
        free(children);
        return fail_start("pipe");
    }
    memcpy(r->env.store.secret, options.secret, sizeof options.secret);
    fflush(NULL);
    for (int32_t i = 0; i < r->n; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            close(port_pipe[1]);
            free(children);
            int code = run_child(i, r->n, port_pipe[0], &r->env, parent, r->body, r->user);
            fflush(NULL);
            _exit(code);
        }
        if (pid < 0) { /* those that are there read the end of the pipe, and end */
            fail_start("fork");
            close(port_pipe[0]);
            close(port_pipe[1]);
            while (wait(NULL) > 0)
                continue;
            free(children);
            return 2;
        }
        children[i] = (struct child){.pid = pid, .running = 1};
    }
    close(port_pipe[0]);
    serve_and_watch(children, r->n, port_pipe[1], &options, r->env.progress, &r->signals, out);
    free(children);
    return 0;
}

/* ---- rounds */

static double pause_of(const struct rounds *r)
{
    double pause = r->policy->pause;
    for (int32_t i = 1; i < r->in_a_row && pause < LONGEST_PAUSE; i++)
        pause = HD__MIN(2 * pause, LONGEST_PAUSE);
    return pause;
}

/* Is there to be another round? Says why not. */
static int may_restart(struct rounds *r, const struct outcome *out)
{
    struct hd__launch_progress *p = r->env.progress;
    int64_t failed = p->failed_step, before = r->failed_step;
    r->failed_step = failed;
    p->failed_step = 0;
    r->in_a_row = p->saved > r->best ? 1 : r->in_a_row + 1;
    r->best = HD__MAX(r->best, p->saved);
    if (!out->code || out->code == 2 || out->code == 3 || out->stopped || p->stopping)
        return 0;
    if (failed && failed == before) {
        hd__log(HD_LOG_ERROR, NULL, "step %" PRId64 " has failed twice by itself: the ranks are not started again",
                failed);
        return 0;
    }
    if (r->in_a_row > r->policy->restarts) {
        hd__log(HD_LOG_ERROR, NULL,
                "launch.restarts: %" PRId64 " in a row have made no newer checkpoint: the job has failed",
                r->policy->restarts);
        return 0;
    }
    if (r->policy->deadline > 0 && hd__now() + pause_of(r) >= r->policy->deadline) {
        hd__log(HD_LOG_ERROR, NULL, "the job's time is up: the ranks are not started again");
        return 0;
    }
    return 1;
}

/* Returns 0 where this process was asked to stop meanwhile. */
static int pause_round(const struct rounds *r)
{
    double until = hd__now() + pause_of(r), left;
    while ((left = until - hd__now()) > 0) {
        double most = HD__MIN(left, 1.0);
        struct timespec wait = {.tv_sec = (time_t)most, .tv_nsec = (long)((most - (double)(time_t)most) * 1e9)};
        if (asks_to_stop(sigtimedwait(&r->signals, NULL, &wait)))
            return 0;
    }
    return 1;
}

static void announce_restart(struct rounds *r, const struct outcome *out)
{
    struct hd__launch_restart restart = {
        .round = (int32_t)r->restarts.count + 1, .n_lost = out->n_lost, .since = out->since};
    int32_t *lost = hd__alloc((size_t)out->n_lost * sizeof *lost);
    char from[64];
    memcpy(lost, out->lost, (size_t)out->n_lost * sizeof *lost);
    restart.lost = lost;
    hd__push(&r->restarts, restart);
    r->env.restarts = r->restarts.at;
    r->env.n_restarts = (int32_t)r->restarts.count;
    snprintf(from, sizeof from, "step %" PRId64, r->env.progress->saved);
    hd__log(HD_LOG_WARN, NULL, "restart %d of %" PRId64 " in a row: all ranks are started again in %.3g s, from %s",
            r->in_a_row, r->policy->restarts, pause_of(r),
            r->env.progress->saved ? from : "the beginning, since there is no checkpoint yet");
}

static int run_rounds(struct rounds *r)
{
    struct outcome out = {.lost = hd__alloc((size_t)r->n * sizeof(int32_t))};
    int code;
    while (!(code = run_round(r, &out)) && r->policy->restarts && may_restart(r, &out)) {
        announce_restart(r, &out);
        if (!pause_round(r)) {
            hd__log(HD_LOG_INFO, NULL, "stopped before the restart");
            out.code = r->env.progress->saved ? 3 : out.code; /* 3: a state is saved */
            break;
        }
        out.code = 0;
    }
    free(out.lost);
    return code ? code : out.code;
}

int hd__launch_local(int32_t n, double dead_after, const struct hd__reporter *reporter,
                     const struct hd__launch_policy *policy, int (*body)(void *user, const struct hd__launch_env *env),
                     void *user)
{
    struct rounds r = {.n = n,
                       .dead_after = dead_after,
                       .reporter = reporter,
                       .policy = policy,
                       .body = body,
                       .user = user,
                       .env = {.size = n,
                               .local_size = n,
                               .launched_by_heddle = 1,
                               .reporter = reporter,
                               .deadline = policy->deadline,
                               .store = {.host = "127.0.0.1", .dead_after = dead_after}}};
    int code;
    r.env.progress = mmap(NULL, sizeof *r.env.progress, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (r.env.progress == MAP_FAILED)
        return fail_start("mmap");
    block_signals(&r.signals);
    signal(SIGPIPE, SIG_IGN); /* the others may have read their port, and the one that is left be dead */
    code = run_rounds(&r);
    for (uint32_t i = 0; i < r.restarts.count; i++)
        free((void *)r.restarts.at[i].lost);
    hd__free_array(&r.restarts);
    munmap(r.env.progress, sizeof *r.env.progress);
    return code;
}
