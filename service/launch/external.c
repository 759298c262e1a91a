#include "service/launch/external.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/base/base.h"
#include "core/base/file.h"
#include "service/launch/launch.h"

#define GRACE_SECONDS 4.0 /* seconds for a command to end by itself after its caller has died */

static const char **make_argv(const struct hd_comm_launcher *l, const char *number, const char *const *words)
{
    size_t n = 0, at = 0;
    const char **argv;
    for (size_t i = 0; l->command[i]; i++)
        n++;
    for (size_t i = 0; words[i]; i++)
        n++;
    argv = hd__alloc((n + 1) * sizeof *argv);
    for (size_t i = 0; l->command[i]; i++)
        argv[at++] = strcmp(l->command[i], "%n") ? l->command[i] : number;
    for (size_t i = 0; words[i]; i++)
        argv[at++] = words[i];
    return argv;
}

/* ---- in the child */

/* Ends with the caller: PR_SET_PDEATHSIG, unless the parent has died already. */
static void die_with_parent(pid_t parent, int signal)
{
    prctl(PR_SET_PDEATHSIG, signal);
    if (getppid() != parent)
        _exit(1);
}

static void set_environment(const char *const *words)
{
    for (size_t i = 0; words && words[i]; i++) {
        char *name = hd__strdup(words[i]), *value = strchr(name, '=');
        if (value) {
            *value++ = '\0';
            setenv(name, value, 0);
        }
        free(name);
    }
}

static void run_command(const struct hd_comm_launcher *l, const char **argv, int error_pipe)
{
    sigset_t none;
    int in = open("/dev/null", O_RDONLY);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    if (in >= 0)
        dup2(in, STDIN_FILENO);
    set_environment(l->environment);
    if (l->struct_size >= HD__END(struct hd_comm_launcher, local_environment) && !hd__launch_names_machines())
        set_environment(l->local_environment);
    setenv(HD__LAUNCHED_ENV, isatty(STDOUT_FILENO) ? "terminal" : "file", 1);
    execvp(argv[0], (char *const *)argv);
    if (write(error_pipe, &errno, sizeof errno) < 0)
        _exit(126);
    _exit(127);
}

/* Forwards signals until the command has ended, and ends with its exit code. After the caller's death the ranks
 * notice by themselves, and the command ends as after any failure. A signal is the last resort: Open MPI 4.1's
 * mpirun, signalled while ranks end, may crash and leave the files of its ranks. */
static void forward_signals(pid_t command, const sigset_t *signals)
{
    int status;
    double until = 0; /* set when the caller has died */
    for (;;) {
        struct timespec second = {.tv_sec = 1};
        int sig = until > 0 ? sigtimedwait(signals, NULL, &second) : sigwaitinfo(signals, NULL);
        if (waitpid(command, &status, WNOHANG) == command)
            _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
        if (sig == SIGHUP && !until)
            until = hd__now() + GRACE_SECONDS;
        else if (sig == SIGTERM || sig == SIGINT || sig == SIGUSR1)
            kill(command, sig);
        if (until > 0 && hd__now() > until) {
            kill(command, SIGTERM);
            until = INFINITY;
        }
    }
}

/* The kernel sends the parent-death signal once for each of the parent's threads, and mpirun takes a second SIGTERM
 * for impatience: it exits without clean-up. So a single-threaded process stands between the caller and the command,
 * and signals it once. Signals of the caller's terminal go to the caller, which forwards them. */
static void supervise(const struct hd_comm_launcher *l, const char **argv, pid_t parent, int error_pipe)
{
    static const int passed[] = {SIGCHLD, SIGHUP, SIGTERM, SIGINT, SIGUSR1};
    sigset_t signals;
    pid_t supervisor = getpid(), command;
    sigemptyset(&signals);
    for (size_t i = 0; i < HD__COUNT(passed); i++)
        sigaddset(&signals, passed[i]);
    sigprocmask(SIG_SETMASK, &signals, NULL);
    setpgid(0, 0);
    die_with_parent(parent, SIGHUP);
    command = fork();
    if (command == 0) {
        die_with_parent(supervisor, SIGTERM);
        run_command(l, argv, error_pipe);
    }
    if (command < 0)
        _exit(write(error_pipe, &errno, sizeof errno) < 0 ? 126 : 127);
    close_range(3, ~0U, 0); /* the caller's sockets are the caller's */
    forward_signals(command, &signals);
}

/* ---- in the caller */

int32_t hd__launch_external_start(const struct hd_comm_launcher *l, int32_t n, const char *const *words, pid_t *pid,
                                  struct hd_error *err)
{
    char number[16];
    int error_pipe[2], problem = 0;
    const char **argv, *source = NULL;
    pid_t parent = getpid();
    if (l->struct_size > offsetof(struct hd_comm_launcher, source))
        source = l->source;
    if (pipe2(error_pipe, O_CLOEXEC))
        return hd_fail(err, HD_E_IO, "pipe: %s", strerror(errno));
    snprintf(number, sizeof number, "%d", n);
    argv = make_argv(l, number, words);
    fflush(NULL);
    *pid = fork();
    if (*pid == 0)
        supervise(l, argv, parent, error_pipe[1]);
    close(error_pipe[1]);
    if (*pid < 0 || read(error_pipe[0], &problem, sizeof problem) == sizeof problem)
        hd_fail(err, HD_E_NOTFOUND, "%s, which starts the ranks of this transport: %s%s%s", argv[0],
                strerror(*pid < 0 ? errno : problem), problem == ENOENT && source ? "; it comes with " : "",
                problem == ENOENT && source ? source : "");
    close(error_pipe[0]);
    free(argv);
    return *pid < 0 || problem ? HD_E_NOTFOUND : HD_OK;
}

const char *hd__launch_self_path(char path[4096])
{
    ssize_t n = readlink("/proc/self/exe", path, 4095);
    path[n > 0 ? n : 0] = '\0';
    return path;
}

int hd__launch_join_external(void)
{
    const char *mark = getenv(HD__LAUNCHED_ENV);
    if (!mark)
        return 0;
    if (!strcmp(mark, "file"))
        hd__output_set_not_terminal();
    unsetenv(HD__LAUNCHED_ENV); /* for the commands that it runs */
    unsetenv(HD__LAUNCH_RENDEZVOUS_ENV);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    return 1;
}

/* ---- shared memory: a memfd, opened by others through /proc/PID/fd */

void *hd__launch_share_memory(size_t bytes, char path[64])
{
    void *at = MAP_FAILED;
    int fd = memfd_create("launcher", MFD_CLOEXEC);
    if (fd >= 0 && !ftruncate(fd, (off_t)bytes))
        at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    snprintf(path, 64, "/proc/%d/fd/%d", (int)getpid(), fd); /* stays open until the process ends */
    return at == MAP_FAILED ? NULL : at;
}

void *hd__launch_attach_memory(const char *path, size_t bytes)
{
    int fd = open(path, O_RDWR | O_CLOEXEC);
    void *at = fd < 0 ? MAP_FAILED : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fd >= 0)
        close(fd);
    return at == MAP_FAILED ? NULL : at;
}
