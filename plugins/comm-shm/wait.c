/* Waiting without hurting anyone: spin while every rank has a core, then yield, then sleep on the doorbell.
 *
 * A member that publishes something reads the sleeping flags of the others and rings. There is no fence between the
 * two, so that a small message costs one cache line and nothing else; in the nanoseconds that this leaves open a ring
 * can be missed, and therefore no sleep is longer than NAP. */
#include <errno.h>
#include <linux/futex.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "internal.h"

#define YIELD_SECONDS 300e-6
#define NAP_NS 2000000

double shm_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

void shm_pause(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory");
#endif
}

static void futex(_Atomic uint32_t *word, int op, uint32_t value, const struct timespec *time)
{
    syscall(SYS_futex, word, op, value, time, NULL, 0);
}

void shm_ring(struct shm_peer *peer)
{
    struct shm_control *c = SHM_CONTROL(peer);
    if (__builtin_expect(atomic_load_explicit(&c->sleeping, memory_order_relaxed) != 0, 0)) {
        atomic_fetch_add(&c->doorbell, 1);
        atomic_store(&c->sleeping, 0);
        futex(&c->doorbell, FUTEX_WAKE, 1, NULL);
    }
}

void shm_ring_group(struct shm_group *group)
{
    for (int32_t i = 0; i < group->n; i++)
        if (group->member[i].peer)
            shm_ring(group->member[i].peer);
}

static void nap(struct hd_comm *comm)
{
    struct shm_control *mine = comm->control.base;
    struct timespec time = {.tv_nsec = NAP_NS};
    uint32_t bell = atomic_load(&mine->doorbell);
    if (!atomic_load(&mine->sleeping)) {
        /* The first time round only announce it: the caller looks once more before it sleeps. */
        atomic_exchange(&mine->sleeping, 1); /* an exchange, not a store: nothing later is read before it */
        return;
    }
    futex(&mine->doorbell, FUTEX_WAIT, bell, &time);
    atomic_store(&mine->sleeping, 0);
}

void shm_relax(struct hd_comm *comm)
{
    uint32_t turn = comm->idle;
    if (turn <= 1)
        comm->idle_since = 0;
    if (!comm->crowded && turn < 64) {
        shm_pause();
        return;
    }
    if (comm->idle_since == 0)
        comm->idle_since = shm_now();
    double idle = (turn & 15) == 0 || comm->crowded ? shm_now() - comm->idle_since : 0;
    double spin = comm->crowded ? 0 : comm->settings.spin;
    if (idle > spin + YIELD_SECONDS)
        nap(comm);
    else if (idle > spin || comm->crowded)
        sched_yield();
    else
        shm_pause();
}

static void add_cores(uint8_t *all, struct shm_peer *peer)
{
    for (size_t i = 0; i < sizeof SHM_CONTROL(peer)->cpus; i++)
        all[i] |= SHM_CONTROL(peer)->cpus[i];
}

static int32_t count_cores(const uint8_t *all)
{
    int32_t cores = 0;
    for (size_t i = 0; i < sizeof((struct shm_control *)0)->cpus; i++)
        cores += __builtin_popcount(all[i]);
    return cores;
}

void shm_note_cores(struct hd_comm *comm)
{
    struct shm_control *mine = comm->control.base;
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) != 0)
        CPU_SET(0, &set);
    memcpy(mine->cpus, &set, SHM_MIN(sizeof mine->cpus, sizeof set));
}

void shm_count_cores(struct hd_comm *comm)
{
    struct shm_control *mine = comm->control.base;
    int32_t ranks = 1;
    uint8_t all[sizeof mine->cpus];
    memcpy(all, mine->cpus, sizeof all);
    for (int32_t r = 0; r < comm->world.size; r++)
        if (comm->peer[r]) {
            ranks++;
            add_cores(all, comm->peer[r]);
        }
    comm->crowded = SHM_MAX(ranks, comm->world.local_size) > count_cores(all);
}

int shm_crowded(const struct shm_group *g)
{
    uint8_t all[sizeof((struct shm_control *)0)->cpus];
    memcpy(all, ((struct shm_control *)g->comm->control.base)->cpus, sizeof all);
    for (int32_t i = 0; i < g->n; i++)
        if (g->member[i].peer)
            add_cores(all, g->member[i].peer);
    return g->n > count_cores(all);
}

int shm_peer_gone(struct shm_peer *peer)
{
    struct pollfd fd = {.fd = peer->pidfd, .events = POLLIN};
    if (peer->dead)
        return 1;
    if (peer->pidfd >= 0)
        peer->dead = poll(&fd, 1, 0) == 1 && fd.revents != 0;
    else
        peer->dead = kill(peer->pid, 0) != 0 && errno == ESRCH;
    return peer->dead;
}
