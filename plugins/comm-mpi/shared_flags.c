/* Shared flags: a ring of the signatures of a member's calls, in memory that the next member reads. One line of cache
 * goes from one to the other in place of an MPI message, in half the time. */
#include <sys/mman.h>
#include <sys/random.h>

#include "../common/shm_handle.h"
#include "internal.h"

#define LINE 64
#define ROOM 64 /* signatures that the next member has not read */

struct flag {
    _Alignas(LINE) struct cm_signature signature;
    _Atomic uint64_t number; /* of the signature, from 1 */
    uint64_t unused[3];
};

struct cm_flag_ring {
    struct flag ring[ROOM];
    _Alignas(LINE) _Atomic uint64_t read; /* by the next member */
    uint64_t nonce[2], unused[5];
};

int cm_flags_put(struct cm_flags *b, const struct cm_signature *signature)
{
    struct flag *at = &b->own->ring[b->put % ROOM];
    if (b->put - b->read == ROOM) {
        b->read = atomic_load_explicit(&b->own->read, memory_order_acquire);
        if (b->put - b->read == ROOM)
            return 0;
    }
    at->signature = *signature;
    atomic_store_explicit(&at->number, ++b->put, memory_order_release);
    return 1;
}

int cm_flags_take(struct cm_flags *b, struct cm_signature *signature)
{
    struct flag *at = &b->before->ring[b->taken % ROOM];
    if (atomic_load_explicit(&at->number, memory_order_acquire) != b->taken + 1)
        return 0;
    *signature = at->signature;
    atomic_store_explicit(&b->before->read, ++b->taken, memory_order_release);
    return 1;
}

/* ---- opening */

static void unmap(struct cm_flag_ring **ring)
{
    if (*ring)
        munmap(*ring, sizeof **ring);
    *ring = NULL;
}

static struct cm_flag_ring *map(int fd)
{
    void *p = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof(struct cm_flag_ring), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return p == MAP_FAILED ? NULL : p;
}

/* The handle's fd is -1 where there is no such memory. */
static struct shm_handle make_own(struct cm_flags *b)
{
    struct shm_handle handle = shm_handle_here();
    handle.bytes = sizeof *b->own;
    handle.fd = memfd_create("heddle", MFD_CLOEXEC);
    if (handle.fd < 0)
        return handle;
    if (ftruncate((int)handle.fd, sizeof *b->own) == 0 &&
        getrandom(handle.nonce, sizeof handle.nonce, 0) == sizeof handle.nonce)
        b->own = map((int)handle.fd);
    if (b->own) {
        memcpy(b->own->nonce, handle.nonce, sizeof handle.nonce);
        return handle;
    }
    close((int)handle.fd);
    handle.fd = -1;
    return handle;
}

static void map_before(struct cm_flags *b, const struct shm_handle *handle)
{
    uint64_t bytes;
    int fd = shm_handle_open(handle, &bytes);
    b->before = map(fd);
    if (fd >= 0)
        close(fd);
    if (b->before && memcmp(b->before->nonce, handle->nonce, sizeof handle->nonce))
        unmap(&b->before);
}

/* A member's machine, and the handle of its ring. */
struct contact {
    struct shm_handle handle;
    int64_t node;
};

static int on_one_machine(const struct contact *at, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        if (at[i].node != at[0].node || at[i].handle.machine != at[0].handle.machine ||
            at[i].handle.pid_space != at[0].handle.pid_space || at[i].handle.fd < 0)
            return 0;
    return 1;
}

/* MPI's buffers while the flags are opened: not on the stack, as they are MPI's for good after a failure. */
struct contacts {
    int32_t good, all_good;
    struct contact at[];
};

/* Exchanges handles, maps the ring of the member before, and finds out whether all members could. */
static int32_t exchange_handles(struct cm_group *g, struct contacts *m, struct hd_error *err)
{
    static const char what[] = "making a group's shared flags";
    struct cm_flags *b = &g->flags;
    MPI_Request request;
    int32_t rc;
    int code = MPI_Iallgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, m->at, sizeof *m->at, MPI_BYTE, g->mpi, &request);
    if (code != MPI_SUCCESS)
        return cm_fail(err, code, what);
    if ((rc = cm_wait_all(g->comm, 1, &request, what, err)))
        return rc;
    if (on_one_machine(m->at, g->n))
        map_before(b, &m->at[(g->me + g->n - 1) % g->n].handle);
    m->good = b->before != NULL;
    code = MPI_Iallreduce(&m->good, &m->all_good, 1, MPI_INT32_T, MPI_MIN, g->mpi, &request);
    return code == MPI_SUCCESS ? cm_wait_all(g->comm, 1, &request, what, err) : cm_fail(err, code, what);
}

/* All members do the same here, with or without memory: they have met, so none is waited for long. */
int32_t cm_flags_open(struct cm_group *g, struct hd_error *err)
{
    if (g->n < 2 || !g->comm->settings.compare || !g->comm->settings.boards)
        return HD_OK;
    struct contacts *m = g->comm->host->alloc(sizeof *m + (size_t)g->n * sizeof *m->at);
    if (!m)
        return hd_fail(err, HD_E_NOMEM, "mpi: no memory");
    struct shm_handle mine = make_own(&g->flags);
    m->at[g->me] = (struct contact){.handle = mine, .node = g->comm->node};
    int32_t rc = exchange_handles(g, m, err);
    if (mine.fd >= 0)
        close((int)mine.fd); /* all members have it open, or none will */
    if (rc || !m->all_good)
        cm_flags_close(&g->flags);
    if (!rc)
        g->comm->host->free(m);
    else
        g->mpi = MPI_COMM_NULL; /* MPI's for good, as is *m */
    return rc;
}

void cm_flags_close(struct cm_flags *b)
{
    unmap(&b->own);
    unmap(&b->before);
}
