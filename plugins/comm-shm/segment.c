/* Segments: creating them, telling the others, mapping theirs; arenas, and the way from a pointer to a ref and back. */
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "internal.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
#ifndef MFD_HUGETLB
#define MFD_HUGETLB 4u
#endif

#define REF_SHIFT 56

static size_t round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

/* Maps at an address that is a multiple of 2 MiB, so that huge pages can be used where the kernel gives them. */
static int map_aligned(struct shm_segment *s, int fd, size_t bytes)
{
    size_t align = bytes >= SHM_HUGE ? SHM_HUGE : SHM_PAGE;
    uint8_t *space = mmap(NULL, bytes + align, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (space == MAP_FAILED)
        return -1;
    uint8_t *at = (uint8_t *)round_up((uintptr_t)space, align);
    if (mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) {
        int error = errno;
        munmap(space, bytes + align);
        errno = error;
        return -1;
    }
    s->origin = space;
    s->mapped = bytes + align;
    s->base = at;
    return 0;
}

/* Free pages of the 2 MiB pool. */
static size_t huge_free(void)
{
    char text[32] = "";
    int fd = open("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", O_RDONLY | O_CLOEXEC);
    size_t n = 0;
    if (fd >= 0) {
        ssize_t got = read(fd, text, sizeof text - 1);
        for (ssize_t i = 0; i < got && text[i] >= '0' && text[i] <= '9'; i++)
            n = n * 10 + (size_t)(text[i] - '0');
        close(fd);
    }
    return n;
}

/* Huge pages also where the system gives shared memory none by itself (transparent_hugepage/shmem_enabled: never, as
 * most do): a page that is there becomes a huge one where it is asked for, from Linux 6.1 on. The first that does not
 * is the last. */
static void collapse_pages(uint8_t *base, size_t bytes)
{
    for (size_t at = 0; at + SHM_HUGE <= bytes; at += SHM_HUGE) {
        ((volatile uint8_t *)base)[at] = 0;
        if (madvise(base + at, SHM_HUGE, MADV_COLLAPSE) != 0)
            return;
    }
}

/* Every page exists afterwards: no page fault later, and memory that is not there is missed now. */
static int populate_pages(uint8_t *base, size_t bytes, int huge)
{
    if (huge)
        collapse_pages(base, bytes);
    if (madvise(base, bytes, MADV_POPULATE_WRITE) == 0)
        return 0;
    if (errno != EINVAL) /* EINVAL: a kernel before 5.14 */
        return -1;
    for (size_t at = 0; at < bytes; at += SHM_PAGE)
        ((volatile uint8_t *)base)[at] = 0;
    return 0;
}

static int open_memory(size_t bytes, int huge, struct shm_segment *s)
{
    if (huge && huge_free() >= bytes / SHM_HUGE) {
        size_t whole = round_up(bytes, SHM_HUGE);
        s->fd = memfd_create("heddle", MFD_CLOEXEC | MFD_HUGETLB);
        /* fallocate takes the pages: a limit of the cgroup, which a reservation does not ask, is SIGBUS in a fault */
        if (s->fd >= 0 && fallocate(s->fd, 0, 0, (off_t)whole) == 0 && map_aligned(s, s->fd, whole) == 0)
            return 0;
        if (s->fd >= 0)
            close(s->fd);
    }
    s->fd = memfd_create("heddle", MFD_CLOEXEC);
    if (s->fd < 0 || ftruncate(s->fd, (off_t)bytes) != 0 || map_aligned(s, s->fd, bytes) != 0)
        return -1;
    if (huge)
        madvise(s->base, bytes, MADV_HUGEPAGE); /* a wish */
    return 0;
}

int32_t shm_segment_create(struct hd_comm *comm, size_t bytes, int populate, struct shm_segment *segment,
                           struct hd_error *err)
{
    struct shm_segment s = {.fd = -1};
    size_t whole = round_up(bytes, SHM_PAGE) + SHM_PAGE;
    int huge = populate && bytes >= SHM_HUGE && comm->settings.huge == SHM_AUTO;
    if (open_memory(whole, huge, &s) != 0 || (populate && populate_pages(s.base, whole, huge) != 0) ||
        getrandom(s.nonce, sizeof s.nonce, 0) != sizeof s.nonce) {
        int error = errno;
        shm_segment_free(&s);
        if (err)
            err->native = error;
        return hd_fail(err, error == ENOMEM ? HD_E_NOMEM : HD_E_IO, "shm: %zu bytes of shared memory: %s", bytes,
                       strerror(error));
    }
    s.bytes = whole - SHM_PAGE;
    struct shm_trailer *t = (void *)((uint8_t *)s.base + s.bytes);
    *t = (struct shm_trailer){SHM_MAGIC, {s.nonce[0], s.nonce[1]}, s.bytes};
    *segment = s;
    return HD_OK;
}

void shm_segment_free(struct shm_segment *segment)
{
    if (segment->origin)
        munmap(segment->origin, segment->mapped);
    if (segment->fd >= 0)
        close(segment->fd);
    *segment = (struct shm_segment){.fd = -1};
}

/* ---- telling and finding */

int32_t shm_announce(struct hd_comm *comm, const char *key, const struct shm_segment *segment, struct hd_error *err)
{
    struct shm_stored_handle handle = {.magic = SHM_MAGIC, .layout = comm->layout, .at = shm_handle_here()};
    if (!handle.at.machine)
        return hd_fail(err, HD_E_IO, "shm: " SHM_BOOT_ID ": %s", strerror(errno));
    handle.at.nonce[0] = segment->nonce[0];
    handle.at.nonce[1] = segment->nonce[1];
    handle.at.bytes = segment->bytes;
    handle.at.fd = segment->fd;
    return comm->host->store_put(comm->world.store, key, &handle, sizeof handle, err);
}

static int32_t check_handle(const struct hd_comm *comm, const struct shm_stored_handle *handle, size_t bytes,
                            int32_t rank, struct hd_error *err)
{
    struct shm_handle mine = shm_handle_here();
    if (!mine.machine)
        return hd_fail(err, HD_E_IO, "shm: " SHM_BOOT_ID ": %s", strerror(errno));
    rank = hd_job_rank(&comm->world, rank);
    if (err)
        err->peer = rank;
    if (bytes != sizeof *handle || handle->magic != SHM_MAGIC)
        return hd_fail(err, HD_E_MISMATCH, "shm: rank %d runs another version of comm-shm", rank);
    if (handle->at.machine != mine.machine)
        return hd_fail(err, HD_E_INVALID, "shm: rank %d runs on another machine; use another transport for this axis",
                       rank);
    if (handle->at.pid_space != mine.pid_space)
        return hd_fail(err, HD_E_INVALID,
                       "shm: rank %d runs in another container (process namespace): start all ranks in one, or use "
                       "another transport",
                       rank);
    if (handle->layout != comm->layout)
        return hd_fail(err, HD_E_MISMATCH, "shm: rank %d has other settings (small, stage) than rank %d", rank,
                       hd_job_rank(&comm->world, comm->world.rank));
    if (err)
        err->peer = -1;
    return HD_OK;
}

/* `rank`: of the job. */
static int32_t map_handle(const struct shm_handle *handle, int32_t rank, struct shm_segment *segment,
                          struct hd_error *err)
{
    struct shm_segment s = {.fd = -1};
    uint64_t size;
    int fd = shm_handle_open(handle, &size);
    int bad = fd < 0 || size < handle->bytes + SHM_PAGE || handle->bytes + SHM_PAGE < handle->bytes ||
              map_aligned(&s, fd, size) != 0;
    int error = errno;
    if (fd >= 0)
        close(fd);
    if (err && bad)
        err->peer = rank;
    if (bad)
        return hd_fail(err, error == ENOENT || error == ESRCH ? HD_E_PEER : HD_E_IO,
                       "shm: memory of rank %d (process %lld) cannot be mapped: %s", rank, (long long)handle->pid,
                       strerror(error));
    const struct shm_trailer *t = (const void *)((uint8_t *)s.base + handle->bytes);
    if (t->magic != SHM_MAGIC || t->nonce[0] != handle->nonce[0] || t->nonce[1] != handle->nonce[1]) {
        shm_segment_free(&s);
        return hd_fail(err, HD_E_PEER, "shm: process %lld is not rank %d any more", (long long)handle->pid, rank);
    }
    s.bytes = handle->bytes;
    *segment = s;
    return HD_OK;
}

int32_t shm_attach(struct hd_comm *comm, const char *key, int32_t rank, struct shm_segment *segment, int64_t *pid,
                   struct hd_error *err)
{
    struct shm_stored_handle handle = {0};
    size_t bytes = sizeof handle;
    int32_t code = comm->host->store_get(comm->world.store, key, &handle, &bytes, shm_now() + comm->world.timeout, err);
    if (code == HD_E_TIMEOUT) {
        rank = hd_job_rank(&comm->world, rank);
        if (err)
            err->peer = rank;
        return hd_fail(err, code, "shm: rank %d did not come within %.0f s (%s)", rank, comm->world.timeout, key);
    }
    if (code != HD_OK || (code = check_handle(comm, &handle, bytes, rank, err)) != HD_OK)
        return code;
    if (pid)
        *pid = handle.at.pid;
    return map_handle(&handle.at, hd_job_rank(&comm->world, rank), segment, err);
}

/* ---- peers and arenas */

static void key_of(const struct hd_comm *comm, char key[192], const char *what, int32_t number, int32_t rank)
{
    snprintf(key, 192, "%s/%s/%d/%d", comm->instance, what, number, rank);
}

static int32_t map_arena(struct hd_comm *comm, struct shm_peer *peer, int32_t k, struct hd_error *err)
{
    char key[192];
    key_of(comm, key, "arena", k, peer->rank);
    return peer->arena[k].base ? HD_OK : shm_attach(comm, key, peer->rank, &peer->arena[k], NULL, err);
}

int32_t shm_memory(struct hd_comm *comm, size_t bytes, void **base, struct hd_error *err)
{
    char key[192];
    int32_t k = comm->arenas;
    if (k == SHM_ARENAS)
        return hd_fail(err, HD_E_UNSUPPORTED, "shm: memory was asked for %d times already", SHM_ARENAS);
    int32_t code = shm_segment_create(comm, SHM_MAX(bytes, (size_t)1), 1, &comm->arena[k], err);
    if (code != HD_OK)
        return code;
    comm->arenas++;
    key_of(comm, key, "arena", k, comm->world.rank);
    code = shm_announce(comm, key, &comm->arena[k], err);
    for (int32_t r = 0; r < comm->world.size && code == HD_OK; r++)
        if (comm->peer[r])
            code = map_arena(comm, comm->peer[r], k, err);
    if (code == HD_OK)
        *base = comm->arena[k].base;
    return code;
}

int32_t shm_map_peer(struct hd_comm *comm, int32_t rank, struct hd_error *err)
{
    char key[192];
    int64_t pid = 0;
    int32_t code = HD_OK;
    if (!comm->peer[rank]) {
        struct shm_segment control;
        key_of(comm, key, "control", 0, rank);
        code = shm_attach(comm, key, rank, &control, &pid, err);
        if (code != HD_OK)
            return code;
        struct shm_peer *peer = comm->host->alloc(sizeof *peer);
        if (!peer) {
            shm_segment_free(&control);
            return hd_fail(err, HD_E_NOMEM, "shm: no memory");
        }
        for (int k = 0; k < SHM_ARENAS; k++)
            peer->arena[k].fd = -1;
        peer->control = control;
        peer->rank = rank;
        peer->pid = (int32_t)pid;
        peer->pidfd = (int)syscall(SYS_pidfd_open, (pid_t)pid, 0); /* -1 on old kernels: kill(pid, 0) serves */
        comm->peer[rank] = peer;
    }
    for (int32_t k = 0; k < comm->arenas && code == HD_OK; k++)
        code = map_arena(comm, comm->peer[rank], k, err);
    return code;
}

void shm_forget(struct hd_comm *comm, int32_t rank)
{
    struct shm_peer *peer = comm->peer[rank];
    if (!peer)
        return;
    for (int k = 0; k < SHM_ARENAS; k++)
        shm_segment_free(&peer->arena[k]);
    shm_segment_free(&peer->control);
    if (peer->pidfd >= 0)
        close(peer->pidfd);
    comm->host->free(peer);
    comm->peer[rank] = NULL;
}

shm_ref shm_ref_of(const struct hd_comm *comm, const void *p, uint64_t bytes)
{
    for (int32_t k = 0; k < comm->arenas; k++) {
        uintptr_t offset = (uintptr_t)p - (uintptr_t)comm->arena[k].base;
        if (offset < comm->arena[k].bytes && bytes <= comm->arena[k].bytes - offset)
            return (uint64_t)(k + 1) << REF_SHIFT | offset;
    }
    return 0;
}

uint8_t *shm_at(const struct hd_comm *comm, const struct shm_peer *peer, shm_ref ref)
{
    const struct shm_segment *arena = peer ? peer->arena : comm->arena;
    return (uint8_t *)arena[(ref >> REF_SHIFT) - 1].base + (ref & ((UINT64_C(1) << REF_SHIFT) - 1));
}
