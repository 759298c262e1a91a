/* Options, open, close, abort, and the table. */
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "internal.h"

static const struct hd_option options[] = {
    {.name = "small",
     .value = "256",
     .unit = "bytes",
     .help = "messages and operations without a root up to this size (operations of two ranks: four times this) "
             "travel with what announces them",
     .min = 64,
     .max = 1 << 20,
     .type = HD_OPT_SIZE,
     .level = HD_LEVEL_TUNER,
     .flags = HD_OPTION_GLOBAL,
     .offset = offsetof(struct shm_settings, small)},
    {.name = "small_crowded",
     .value = "4KiB",
     .unit = "bytes",
     .help = "the same where there are more ranks than cores, and one wait less is worth more copying",
     .min = 64,
     .max = 1 << 20,
     .type = HD_OPT_SIZE,
     .level = HD_LEVEL_TUNER,
     .flags = HD_OPTION_GLOBAL,
     .offset = offsetof(struct shm_settings, small_crowded)},
    {.name = "small_rooted",
     .value = "4KiB",
     .unit = "bytes",
     .help = "the same for broadcasts and reduces, whose members then need not wait for each other (more ranks than "
             "cores: four times this)",
     .min = 64,
     .max = 1 << 20,
     .type = HD_OPT_SIZE,
     .level = HD_LEVEL_TUNER,
     .flags = HD_OPTION_GLOBAL,
     .offset = offsetof(struct shm_settings, small_rooted)},
    {.name = "stage",
     .value = "256KiB",
     .unit = "bytes",
     .help = "chunk of the pipeline for buffers outside the arena; two are in use, each way",
     .min = 65536,
     .max = 1 << 30,
     .type = HD_OPT_SIZE,
     .level = HD_LEVEL_TUNER,
     .flags = HD_OPTION_GLOBAL,
     .offset = offsetof(struct shm_settings, stage)},
    {.name = "stream",
     .value = "16MiB",
     .unit = "bytes",
     .help = "operations that write this much or more write around the caches",
     .min = 0,
     .max = 1e15,
     .type = HD_OPT_SIZE,
     .level = HD_LEVEL_TUNER,
     .offset = offsetof(struct shm_settings, stream)},
    {.name = "quantum",
     .value = "512KiB",
     .unit = "bytes",
     .help = "the most that one call of progress copies or adds for one operation",
     .min = 4096,
     .max = 1e15,
     .type = HD_OPT_SIZE,
     .level = HD_LEVEL_TUNER,
     .offset = offsetof(struct shm_settings, quantum)},
    {.name = "spin",
     .value = "0.00005",
     .unit = "seconds",
     .help = "how long a wait spins before it yields the core; never, when there are more ranks than cores",
     .min = 0,
     .max = 1,
     .type = HD_OPT_DURATION,
     .level = HD_LEVEL_TUNER,
     .offset = offsetof(struct shm_settings, spin)},
    {.name = "huge",
     .value = "auto",
     .help = "huge pages for the arena where the system gives them",
     .choices = "auto|off",
     .type = HD_OPT_ENUM,
     .level = HD_LEVEL_TUNER,
     .offset = offsetof(struct shm_settings, huge)},
};

/* Other ranks map our memory as /proc/PID/fd/N: is that possible here? */
static int32_t probe(const struct hd_host *host, struct hd_error *err)
{
    char path[64];
    (void)host;
    int fd = memfd_create("heddle", MFD_CLOEXEC);
    if (fd < 0)
        return hd_fail(err, HD_E_UNSUPPORTED, "memfd_create: %s (Linux 3.17 is needed)", strerror(errno));
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)getpid(), fd);
    int again = open(path, O_RDWR | O_CLOEXEC), error = errno;
    close(fd);
    if (again < 0)
        return hd_fail(err, HD_E_UNSUPPORTED, "%s: %s%s", path, strerror(error),
                       error == ENOENT ? " (/proc must be mounted)" : "");
    close(again);
    return HD_OK;
}

/* Hash of what all members must agree on. */
static uint64_t layout_hash(const struct shm_settings *s)
{
    const uint64_t parts[] = {(uint64_t)s->small,
                              (uint64_t)s->small_crowded,
                              (uint64_t)s->small_rooted,
                              (uint64_t)s->stage,
                              sizeof(struct shm_box),
                              sizeof(struct shm_part),
                              SHM_SLOTS,
                              SHM_MAIL};
    uint64_t h = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        h = (h ^ parts[i]) * UINT64_C(0x9e3779b97f4a7c15) ^ h >> 29;
    return h;
}

static void close_comm(struct hd_comm *comm)
{
    if (!comm)
        return;
    while (comm->groups)
        shm_group_free((struct hd_comm_group *)comm->groups);
    if (comm->control.base)
        atomic_store(&((struct shm_control *)comm->control.base)->closed, 1);
    for (int32_t r = 0; comm->peer && r < comm->world.size; r++) {
        if (comm->peer[r])
            shm_ring(comm->peer[r]);
        shm_forget(comm, r);
    }
    for (int k = 0; k < SHM_ARENAS; k++)
        shm_segment_free(&comm->arena[k]);
    shm_segment_free(&comm->control);
    rq_finish(&comm->ops);
    comm->host->free(comm->hashes);
    comm->host->free(comm->peer);
    comm->host->free(comm);
}

static int32_t open_comm(const struct hd_host *host, const void *settings, const struct hd_world *world,
                         struct hd_comm **comm, struct hd_error *err)
{
    char key[160];
    struct hd_comm *c = host->alloc(sizeof *c);
    if (!c)
        return hd_fail(err, HD_E_NOMEM, "shm: no memory");
    c->host = host;
    rq_init(&c->ops, host, sizeof(struct shm_op), 0);
    c->settings = *(const struct shm_settings *)settings;
    c->world = *world;
    c->layout = layout_hash(&c->settings);
    c->kernels = shm_kernels_best();
    snprintf(c->instance, sizeof c->instance, "%s", world->instance);
    c->control.fd = -1;
    for (int k = 0; k < SHM_ARENAS; k++)
        c->arena[k].fd = -1;
    c->peer = host->alloc((size_t)world->size * sizeof *c->peer);
    int32_t code = c->peer ? shm_segment_create(c, sizeof(struct shm_control), 1, &c->control, err)
                           : hd_fail(err, HD_E_NOMEM, "shm: no memory");
    if (code == HD_OK) {
        shm_note_cores(c);
        shm_count_cores(c);
        snprintf(key, sizeof key, "%s/control/0/%d", c->instance, world->rank);
        code = shm_announce(c, key, &c->control, err);
    }
    if (code != HD_OK) {
        close_comm(c);
        return code;
    }
    *comm = c;
    return HD_OK;
}

/* From any thread: only atomics, and peers that are mapped (they stay until close). */
static void abort_comm(struct hd_comm *comm, const char *reason)
{
    struct shm_control *mine = comm->control.base;
    uint32_t none = 0, me = (uint32_t)comm->world.rank + 1;
    if (!atomic_compare_exchange_strong(&mine->aborted, &none, SHM_ABORTING))
        return;
    snprintf(mine->reason, sizeof mine->reason, "%s", reason ? reason : "aborted");
    atomic_store(&mine->aborted, me);
    for (int32_t r = 0; r < comm->world.size; r++) {
        struct shm_peer *peer = comm->peer[r];
        if (!peer)
            continue;
        none = 0;
        atomic_compare_exchange_strong(&SHM_CONTROL(peer)->aborted, &none, me);
        shm_ring(peer);
    }
}

static const struct hd_comm_ops ops = {
    .struct_size = sizeof ops,
    .caps = HD_COMM_HOST_PROGRESS | HD_COMM_LOCAL_ONLY,
    .open = open_comm,
    .close = close_comm,
    .memory = shm_memory,
    .group = shm_group,
    .group_free = shm_group_free,
    .collective = shm_collective,
    .send = shm_send,
    .recv = shm_recv,
    .progress = shm_progress,
    .test = shm_test,
    .wait = shm_wait,
    .abort = abort_comm,
};

HD_PLUGIN("comm-shm", "0.1.0", "Apache-2.0", .kind = HD_KIND_COMM, .name = "shm",
          .summary = "collectives and messages between processes of one machine, through shared memory",
          .caps = HD_COMM_HOST_PROGRESS | HD_COMM_LOCAL_ONLY, HD_OPTIONS(options, struct shm_settings), .probe = probe,
          .ops = &ops)
