#include "tests/system/machines.h"

#include <check.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static pid_t holder[MACHINES_MAX + 1]; /* the last: the switch */
static int home = -1;

/* A process that does nothing but keep a namespace alive. */
static pid_t hold(void)
{
    char ready;
    int done[2];
    pid_t pid, parent = getpid();
    if (pipe(done) || (pid = fork()) < 0)
        return -1;
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent || unshare(CLONE_NEWNET) || write(done[1], "", 1) != 1)
            _exit(1);
        for (;;)
            pause();
    }
    close(done[1]);
    int made = read(done[0], &ready, 1) == 1;
    close(done[0]);
    if (!made)
        waitpid(pid, NULL, 0);
    return made ? pid : -1;
}

/* A command in the namespace of a holder. */
static int run_in(pid_t pid, const char *format, ...)
{
    char words[256], line[400];
    va_list args;
    va_start(args, format);
    vsnprintf(words, sizeof words, format, args);
    va_end(args);
    snprintf(line, sizeof line, "PATH=$PATH:/usr/sbin:/sbin nsenter --net=/proc/%d/ns/net %s 2>&1", (int)pid, words);
    return system(line);
}

/* Commands of `ip` there, a line each: one process for all of them. */
static void ip_in(pid_t pid, const char *format, ...)
{
    char line[128];
    va_list args;
    snprintf(line, sizeof line, "PATH=$PATH:/usr/sbin:/sbin nsenter --net=/proc/%d/ns/net ip -batch - 2>&1", (int)pid);
    FILE *ip = popen(line, "w");
    ck_assert_ptr_nonnull(ip);
    va_start(args, format);
    vfprintf(ip, format, args);
    va_end(args);
    ck_assert_int_eq(pclose(ip), 0);
}

int machines_possible(const char **why)
{
    pid_t pid;
    int rc;
    *why = "network namespaces need root";
    if (geteuid())
        return 0;
    *why = "the kernel or the container permits no network namespaces";
    if ((pid = hold()) < 0)
        return 0;
    *why = "`ip` and `nsenter` (iproute2, util-linux) cannot set an interface up in a network namespace here";
    rc = run_in(pid, "ip link add probe0 type veth peer name probe1 >/dev/null");
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    return rc == 0;
}

/* An interface is there a moment after it was set up: libfabric overlooks it before. */
static void wait_until_up(pid_t pid)
{
    int down = 1;
    for (int i = 0; i < 1000 && down; i++) {
        down = run_in(pid, "ip -o link show eth0 | grep -q 'state UP'");
        if (down)
            usleep(10000);
    }
    ck_assert_msg(!down, "eth0 of a network namespace does not come up");
}

void machines_up(int n, const char *rate)
{
    pid_t to = hold();
    ck_assert_int_gt(to, 0);
    holder[MACHINES_MAX] = to;
    ip_in(to, "link add br0 type bridge\nlink set br0 up\n");
    for (int i = 0; i < n; i++) {
        pid_t pid = holder[i] = hold();
        ck_assert_int_gt(pid, 0);
        ip_in(to, "link add port%d type veth peer name eth0 netns %d\nlink set port%d master br0 up\n", i, (int)pid, i);
        ip_in(pid, "addr add 10.77.0.%d/24 dev eth0\nlink set eth0 up\nlink set lo up\n", i + 1);
        if (rate)
            ck_assert_int_eq(run_in(pid, "tc qdisc add dev eth0 root tbf rate %s burst 256kb latency 50ms", rate), 0);
    }
    for (int i = 0; i < n; i++)
        wait_until_up(holder[i]);
}

void machines_alone(int n)
{
    for (int i = 0; i < n; i++)
        ck_assert_int_gt(holder[i] = hold(), 0);
}

void machine_run(int i, const char *format, ...)
{
    char words[200];
    va_list args;
    va_start(args, format);
    vsnprintf(words, sizeof words, format, args);
    va_end(args);
    ck_assert_msg(run_in(holder[i], "%s", words) == 0, "%s", words);
}

unsigned long long machine_sent(int i)
{
    char line[256] = "", word[64];
    unsigned long long bytes = 0;
    FILE *f;
    snprintf(line, sizeof line, "PATH=$PATH:/usr/sbin:/sbin nsenter --net=/proc/%d/ns/net ip -s link show eth0",
             (int)holder[i]);
    f = popen(line, "r");
    ck_assert_ptr_nonnull(f);
    while (fgets(line, sizeof line, f)) /* "TX: bytes packets ...", and the numbers in the next line */
        if (sscanf(line, " %63s", word) == 1 && !strcmp(word, "TX:") && fgets(line, sizeof line, f))
            ck_assert_int_eq(sscanf(line, "%llu", &bytes), 1);
    pclose(f);
    return bytes;
}

void machines_rsh(const char *path)
{
    FILE *f = fopen(path, "w");
    ck_assert_ptr_nonnull(f);
    fprintf(f, "#!/bin/bash\nhost=$1; shift\ncase $host in\n");
    for (int i = 0; i < MACHINES_MAX && holder[i]; i++)
        fprintf(f, "n%d) pid=%d ;;\n", i + 1, (int)holder[i]);
    fprintf(
        f,
        "*) exit 1 ;;\nesac\n"
        "exec nsenter --net=/proc/$pid/ns/net unshare --uts bash -c 'hostname $0; exec bash -c \"$*\"' $host \"$@\"\n");
    ck_assert_int_eq(fchmod(fileno(f), 0755), 0);
    fclose(f);
}

void machine_loses(int i, int percent)
{
    ck_assert_int_eq(run_in(holder[i], "nft add table inet lossy"), 0);
    ck_assert_int_eq(run_in(holder[i], "nft add chain inet lossy in '{ type filter hook input priority 0; }'"), 0);
    ck_assert_int_eq(
        run_in(holder[i], "nft add rule inet lossy in iif eth0 numgen random mod 100 \\< %d drop", percent), 0);
}

/* Every machine has been up for another time: what it starts has a monotonic clock of its own. */
static void set_clock(int i)
{
    FILE *f = unshare(CLONE_NEWTIME) ? NULL : fopen("/proc/self/timens_offsets", "w"); /* Linux 5.6 */
    if (!f)
        return;
    fprintf(f, "monotonic %d 0\n", 100000 * (i + 1));
    ck_assert_int_eq(fclose(f), 0);
}

void machine_enter(int i)
{
    char path[64];
    int there = home;
    if (home < 0)
        there = home = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    if (i >= 0) {
        snprintf(path, sizeof path, "/proc/%d/ns/net", (int)holder[i]);
        there = open(path, O_RDONLY | O_CLOEXEC);
    }
    ck_assert_int_eq(setns(there, CLONE_NEWNET), 0);
    set_clock(i);
    if (i >= 0)
        close(there);
}
