/* A member's board: a ring of what it calls, in memory that the next member reads. One line of cache goes from one to the
 * other where a message of MPI's would, in half the time. */
#include <sys/mman.h>
#include <sys/random.h>

#include "../common/shm_handle.h"
#include "internal.h"

#define LINE 64
#define ROOM 64 /* signs that the next member has not read */

struct notice {
    _Alignas(LINE) struct cm_sign sign;
    _Atomic uint64_t number; /* of the sign, from 1 */
    uint64_t unused[3];
};

struct cm_notices {
    struct notice ring[ROOM];
    _Alignas(LINE) _Atomic uint64_t read; /* by the next member */
    uint64_t nonce[2], unused[5];
};

int cm_board_put(struct cm_board *b, const struct cm_sign *sign)
{
    struct notice *at = &b->own->ring[b->put % ROOM];
    if (b->put - b->read == ROOM) {
        b->read = atomic_load_explicit(&b->own->read, memory_order_acquire);
        if (b->put - b->read == ROOM)
            return 0;
    }
    at->sign = *sign;
    atomic_store_explicit(&at->number, ++b->put, memory_order_release);
    return 1;
}

int cm_board_take(struct cm_board *b, struct cm_sign *sign)
{
    struct notice *at = &b->before->ring[b->taken % ROOM];
    if (atomic_load_explicit(&at->number, memory_order_acquire) != b->taken + 1)
        return 0;
    *sign = at->sign;
    atomic_store_explicit(&b->before->read, ++b->taken, memory_order_release);
    return 1;
}

/* ---- opening */

static void unmap(struct cm_notices **notices)
{
    if (*notices)
        munmap(*notices, sizeof **notices);
    *notices = NULL;
}

static struct cm_notices *map(int fd)
{
    void *p = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof(struct cm_notices), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return p == MAP_FAILED ? NULL : p;
}

/* The card's fd is -1 where there is no such memory. */
static struct card make_own(struct cm_board *b)
{
    struct card card = card_here();
    card.bytes = sizeof *b->own;
    card.fd = memfd_create("heddle", MFD_CLOEXEC);
    if (card.fd < 0)
        return card;
    if (ftruncate((int)card.fd, sizeof *b->own) == 0 &&
        getrandom(card.nonce, sizeof card.nonce, 0) == sizeof card.nonce)
        b->own = map((int)card.fd);
    if (b->own) {
        memcpy(b->own->nonce, card.nonce, sizeof card.nonce);
        return card;
    }
    close((int)card.fd);
    card.fd = -1;
    return card;
}

static void map_before(struct cm_board *b, const struct card *card)
{
    uint64_t bytes;
    int fd = card_open(card, &bytes);
    b->before = map(fd);
    if (fd >= 0)
        close(fd);
    if (b->before && memcmp(b->before->nonce, card->nonce, sizeof card->nonce))
        unmap(&b->before);
}

/* Where a member is, and its board. */
struct place {
    struct card card;
    int64_t node;
};

static int all_here(const struct place *at, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        if (at[i].node != at[0].node || at[i].card.machine != at[0].card.machine ||
            at[i].card.pid_space != at[0].card.pid_space || at[i].card.fd < 0)
            return 0;
    return 1;
}

/* What MPI is given while a board is opened: not on the stack, as it is MPI's for good after a failure. */
struct meeting {
    int32_t good, all_good;
    struct place at[];
};

/* Have all members what they need? */
static int32_t find_before(struct cm_group *g, struct meeting *m, struct hd_error *err)
{
    static const char what[] = "making a group's boards";
    struct cm_board *b = &g->board;
    MPI_Request request;
    int32_t rc;
    int code = MPI_Iallgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, m->at, sizeof *m->at, MPI_BYTE, g->mpi, &request);
    if (code != MPI_SUCCESS)
        return cm_fail(err, code, what);
    if ((rc = cm_settle(g->comm, 1, &request, what, err)))
        return rc;
    if (all_here(m->at, g->n))
        map_before(b, &m->at[(g->me + g->n - 1) % g->n].card);
    m->good = b->before != NULL;
    code = MPI_Iallreduce(&m->good, &m->all_good, 1, MPI_INT32_T, MPI_MIN, g->mpi, &request);
    return code == MPI_SUCCESS ? cm_settle(g->comm, 1, &request, what, err) : cm_fail(err, code, what);
}

/* All members do the same here, with or without memory: they have met, so none is waited for long. */
int32_t cm_board_open(struct cm_group *g, struct hd_error *err)
{
    if (g->n < 2 || !g->comm->settings.compare || !g->comm->settings.boards)
        return HD_OK;
    struct meeting *m = g->comm->host->alloc(sizeof *m + (size_t)g->n * sizeof *m->at);
    if (!m)
        return hd_fail(err, HD_E_NOMEM, "mpi: no memory");
    struct card mine = make_own(&g->board);
    m->at[g->me] = (struct place){.card = mine, .node = g->comm->node};
    int32_t rc = find_before(g, m, err);
    if (mine.fd >= 0)
        close((int)mine.fd); /* everybody has it open, or nobody will */
    if (rc || !m->all_good)
        cm_board_close(&g->board);
    if (!rc)
        g->comm->host->free(m);
    else
        g->mpi = MPI_COMM_NULL; /* MPI's for good, as is *m */
    return rc;
}

void cm_board_close(struct cm_board *b)
{
    unmap(&b->own);
    unmap(&b->before);
}
