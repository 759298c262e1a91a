/* Machines that are far apart: their eth0 is a TUN device, and a process carries the packets from one to another,
 * each after the same time. */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "core/base/base.h"
#include "tests/system/machines.h"

enum { PACKET = 9216, QUEUE = 4096, MTU = 9000 };

struct packet {
    double due;
    ssize_t bytes;
    uint8_t data[PACKET];
};

/* One delay for all, so that who came first leaves first. */
struct relay {
    int fd[MACHINES_MAX], n;
    double delay;
    uint64_t head, tail; /* packets that came, and that left */
    struct packet *queue;
};

static void take(struct relay *r, int from)
{
    for (int burst = 0; burst < 64 && r->head - r->tail < QUEUE; burst++) {
        struct packet *p = &r->queue[r->head % QUEUE];
        p->bytes = read(r->fd[from], p->data, sizeof p->data);
        if (p->bytes <= 0)
            return;
        p->due = hd__now() + r->delay;
        r->head++;
    }
}

/* To 10.77.0.N, machine N - 1: the last byte of an IPv4 destination. */
static void give(struct relay *r, double now)
{
    for (; r->tail < r->head && r->queue[r->tail % QUEUE].due <= now; r->tail++) {
        const struct packet *p = &r->queue[r->tail % QUEUE];
        int to = p->bytes >= 20 && p->data[0] >> 4 == 4 ? p->data[19] - 1 : -1;
        if (to >= 0 && to < r->n && write(r->fd[to], p->data, (size_t)p->bytes) < 0)
            continue; /* lost, as on any network */
    }
}

static void carry(struct relay *r)
{
    for (;;) {
        struct pollfd in[MACHINES_MAX];
        double now = hd__now(), wait = 1;
        give(r, now);
        if (r->tail < r->head)
            wait = HD__MAX(0.0, r->queue[r->tail % QUEUE].due - now);
        for (int i = 0; i < r->n; i++)
            in[i] = (struct pollfd){.fd = r->fd[i], .events = POLLIN};
        struct timespec until = {.tv_sec = (time_t)wait, .tv_nsec = (long)((wait - (double)(time_t)wait) * 1e9)};
        ppoll(in, (nfds_t)r->n, &until, NULL);
        for (int i = 0; i < r->n; i++)
            take(r, i);
    }
}

static int open_tun(int machine)
{
    struct ifreq name = {.ifr_flags = IFF_TUN | IFF_NO_PI, .ifr_name = "eth0"};
    machine_enter(machine);
    int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    ck_assert_msg(fd >= 0 && !ioctl(fd, TUNSETIFF, &name), "/dev/net/tun: %s", strerror(errno));
    machine_enter(-1);
    return fd;
}

void machines_far(int n, double delay)
{
    struct relay relay = {.n = n, .delay = delay};
    pid_t parent = getpid(), pid;
    machines_alone(n);
    for (int i = 0; i < n; i++) {
        relay.fd[i] = open_tun(i);
        machine_run(i, "ip addr add 10.77.0.%d/24 dev eth0", i + 1);
        machine_run(i, "ip link set eth0 mtu %d up", MTU);
        machine_run(i, "ip link set lo up");
    }
    relay.queue = malloc(QUEUE * sizeof *relay.queue);
    ck_assert_ptr_nonnull(relay.queue);
    ck_assert_int_ge(pid = fork(), 0);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() == parent)
            carry(&relay);
        _exit(1);
    }
    free(relay.queue);
    for (int i = 0; i < n; i++)
        close(relay.fd[i]);
}
