#include "service/launch/notice.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "core/base/base.h"
#include "heddle/comm.h"

#define COMMAND_SECONDS 10.0 /* longest time of a command, or the interval where that is longer */

static void sleep_for(double seconds)
{
    struct timespec time = {.tv_sec = (time_t)seconds};
    time.tv_nsec = (long)((seconds - (double)time.tv_sec) * 1e9);
    nanosleep(&time, NULL);
}

/* Exit code of the command; 128 + signal where it was killed, also for taking too long. */
static int run_command(const char *command, double limit)
{
    struct hd_deadline until = hd_deadline_in(limit, hd__now());
    int status, killed = 0;
    pid_t pid = fork();
    if (pid == 0) {
        int null = open("/dev/null", O_RDWR);
        setpgid(0, 0);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        dup2(null, STDIN_FILENO);
        dup2(null, STDOUT_FILENO);
        dup2(null, STDERR_FILENO);
        execl("/bin/sh", "sh", "-c", command, (char *)NULL);
        _exit(127);
    }
    while (pid > 0 && waitpid(pid, &status, WNOHANG) != pid) {
        if (!killed && hd_deadline_passed(&until, hd__now())) {
            kill(-pid, SIGKILL);
            killed = 1;
        }
        sleep_for(0.02);
    }
    if (pid < 0)
        return 127;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* A command that cannot work is said once: it would never give notice. */
static int is_told(const char *file, const char *command, double every, int *warned)
{
    if (file)
        return !access(file, F_OK);
    int code = run_command(command, every > COMMAND_SECONDS ? every : COMMAND_SECONDS);
    if (code > 125 && !*warned)
        hd__log(HD_LOG_WARN, NULL, "launch.notice: `%s` %s: no notice comes from it", command,
                code == 127   ? "is not found"
                : code == 126 ? "cannot be run"
                              : "was killed, or took too long");
    *warned |= code > 125;
    return !code;
}

static void watch(pid_t tell, const char *file, const char *command, double every, pid_t rank)
{
    sigset_t none;
    int warned = 0;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setpgid(0, 0); /* signals of the terminal are the ranks' */
    sigemptyset(&none);
    for (int sig = 1; sig < NSIG; sig++)
        signal(sig, SIG_DFL);
    sigprocmask(SIG_SETMASK, &none, NULL);
    close_range(3, ~0U, 0); /* locks and sockets are the rank's */
    while (getppid() == rank) {
        if (is_told(file, command, every, &warned)) {
            hd__log(HD_LOG_INFO, NULL, "launch.notice: %s%s: the job saves and ends", file ? file : command,
                    file ? " is there" : " exited with 0");
            kill(tell, SIGUSR1);
            _exit(0);
        }
        sleep_for(every);
    }
    _exit(0);
}

pid_t hd__launch_notice_start(pid_t tell, const char *file, const char *command, double every)
{
    pid_t rank = getpid(), pid;
    fflush(NULL);
    pid = fork();
    if (pid == 0)
        watch(tell, file, command, every, rank);
    if (pid < 0)
        hd__log(HD_LOG_WARN, NULL, "launch.notice: no process looks for it: fork: %s", strerror(errno));
    return pid;
}

void hd__launch_notice_stop(pid_t watcher)
{
    if (watcher <= 0)
        return;
    kill(watcher, SIGKILL);
    while (waitpid(watcher, NULL, 0) < 0 && errno == EINTR)
        continue;
}
