/* Groups: a communicator each, made by its members alone. */
#include "internal.h"

#define TAG_BARRIER 16
#define BARRIER_TAGS (1u << 14) /* MPI may have no tag above 2^15 - 1 */

static uint64_t hash_of(const char *name, const int32_t *ranks, int32_t n)
{
    uint64_t h = UINT64_C(0xcbf29ce484222325);
    for (; *name; name++)
        h = (h ^ (uint8_t)*name) * UINT64_C(0x100000001b3);
    for (int32_t i = 0; i < n; i++)
        h = (h ^ (uint32_t)ranks[i]) * UINT64_C(0x100000001b3);
    return (h ^ h >> 31) | 1;
}

/* A group that is made again, after it was freed, is another one. */
static int32_t new_group_id(struct hd_comm *c, uint64_t *id, struct hd_error *err)
{
    uint64_t hash = *id;
    for (uint32_t i = 0; i < c->n_hashes; i++)
        *id += c->hashes[i] == hash ? UINT64_C(0x9e3779b97f4a7c16) : 0;
    if (c->n_hashes == c->hash_room) {
        uint32_t room = CM_MAX(32, 2 * c->hash_room);
        uint64_t *hashes = c->host->alloc(room * sizeof *hashes);
        if (!hashes)
            return hd_fail(err, HD_E_NOMEM, "mpi: no memory");
        memcpy(hashes, c->n_hashes ? c->hashes : hashes, c->n_hashes * sizeof *hashes);
        c->host->free(c->hashes);
        c->hashes = hashes;
        c->hash_room = room;
    }
    c->hashes[c->n_hashes++] = hash;
    return HD_OK;
}

static int32_t check_members(const struct hd_comm *c, const char *name, const int32_t *ranks, int32_t n, int32_t *me,
                             struct hd_error *err)
{
    *me = -1;
    for (int32_t i = 0; i < n; i++) {
        if (ranks[i] < 0 || ranks[i] >= c->world.size)
            return hd_fail(err, HD_E_INVALID, "mpi: group %s names rank %d, the job has %d", name, ranks[i],
                           c->world.size);
        for (int32_t j = 0; j < i; j++)
            if (ranks[j] == ranks[i])
                return hd_fail(err, HD_E_INVALID, "mpi: group %s names rank %d twice", name, ranks[i]);
        if (ranks[i] == c->world.rank)
            *me = i;
    }
    if (n < 1 || *me < 0)
        return hd_fail(err, HD_E_INVALID, "mpi: group %s of %d ranks is asked for by rank %d, which is no member", name,
                       n, c->world.rank);
    return HD_OK;
}

/* MPI waits without end for a member that never comes. So all wait for all by messages first, which can be given up:
 * round k, to the member 2^k after and from the one 2^k before. */
static int32_t barrier(struct cm_group *g, struct hd_error *err)
{
    struct hd_comm *c = g->comm;
    int tag = TAG_BARRIER + (int)(g->id % BARRIER_TAGS), code;
    static char in, out; /* given up, a message is MPI's still; what it says is nothing */
    char what[160];
    snprintf(what, sizeof what, "making group %s", g->name);
    for (int32_t step = 1; step < g->n; step *= 2) {
        MPI_Request pair[2] = {MPI_REQUEST_NULL, MPI_REQUEST_NULL};
        code = MPI_Irecv(&in, 1, MPI_BYTE, g->ranks[(g->me - step + g->n) % g->n], tag, c->mpi, &pair[0]);
        if (code == MPI_SUCCESS)
            code = MPI_Isend(&out, 1, MPI_BYTE, g->ranks[(g->me + step) % g->n], tag, c->mpi, &pair[1]);
        if (code != MPI_SUCCESS)
            return cm_fail(err, code, what);
        int32_t rc = cm_wait_all(c, 2, pair, what, err);
        if (rc)
            return rc;
    }
    return HD_OK;
}

static int32_t make_communicator(struct cm_group *g, struct hd_error *err)
{
    MPI_Group all, members;
    int code = MPI_Comm_group(g->comm->mpi, &all);
    if (code != MPI_SUCCESS)
        return cm_fail(err, code, "MPI_Comm_group");
    code = MPI_Group_incl(all, g->n, g->ranks, &members);
    if (code == MPI_SUCCESS) {
        code = MPI_Comm_create_group(g->comm->mpi, members, (int)(g->id % BARRIER_TAGS), &g->mpi);
        MPI_Group_free(&members);
    }
    MPI_Group_free(&all);
    if (code != MPI_SUCCESS)
        return cm_fail(err, code, "MPI_Comm_create_group");
    MPI_Comm_set_errhandler(g->mpi, MPI_ERRORS_RETURN);
    return HD_OK;
}

int32_t cm_group(struct hd_comm *c, const char *name, const int32_t *ranks, int32_t n, struct hd_comm_group **group,
                 struct hd_error *err)
{
    int32_t me, rc = check_members(c, name, ranks, n, &me, err);
    uint64_t id = rc ? 0 : hash_of(name, ranks, n);
    struct cm_group *g;
    if (rc || (rc = new_group_id(c, &id, err)))
        return rc;
    if (c->error.code != HD_OK)
        return hd_fail(err, c->error.code, "%s", c->error.message);
    g = c->host->alloc(sizeof *g + (size_t)n * sizeof *ranks);
    if (!g)
        return hd_fail(err, HD_E_NOMEM, "mpi: no memory");
    g->comm = c;
    g->mpi = MPI_COMM_NULL;
    g->n = n;
    g->me = me;
    g->id = id;
    g->ranks = memcpy(g + 1, ranks, (size_t)n * sizeof *ranks);
    g->tail = &g->head;
    g->error = (struct hd_error)HD_ERROR_INIT;
    snprintf(g->name, sizeof g->name, "%s", name);
    g->next = c->groups;
    c->groups = g;
    if ((rc = barrier(g, err)) || (rc = make_communicator(g, err)) || (rc = cm_flags_open(g, err))) {
        c->failed = 1;
        cm_group_free((struct hd_comm_group *)g);
        return rc;
    }
    *group = (struct hd_comm_group *)g;
    return HD_OK;
}

void cm_group_free(struct hd_comm_group *group)
{
    struct cm_group *g = (struct cm_group *)group;
    struct hd_error err = HD_ERROR_INIT;
    if (!g)
        return;
    int idle = g->error.code == HD_OK && !g->head && !g->n_messages;
    hd_fail(&err, HD_E_CANCELLED, "mpi: group %s was freed while an operation was under way", g->name);
    cm_group_fail(g, &err);
    for (struct cm_group **at = &g->comm->groups; *at; at = &(*at)->next)
        if (*at == g) {
            *at = g->next;
            break;
        }
    for (uint32_t i = 0; i < g->comm->ops.n; i++) {
        struct cm_op *op = rq_at(&g->comm->ops, i);
        if (op->group == g)
            op->group = NULL;
    }
    if (idle && g->mpi != MPI_COMM_NULL)
        MPI_Comm_free(&g->mpi); /* after a failure it stays: what was begun in it is MPI's still */
    cm_flags_close(&g->flags);
    g->comm->host->free(g->message);
    g->comm->host->free(g->request);
    g->comm->host->free(g->index);
    g->comm->host->free(g->status);
    g->comm->host->free(g);
}
