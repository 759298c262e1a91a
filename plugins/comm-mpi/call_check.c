/* Call check: do all members call the same? MPI does not ask: a call of another size writes where it must not, and the
 * process dies in MPI's code. So each member sends the signature of its call, 32 bytes, to the next one, and starts
 * when the signature of the one before equals its own. A member that differs and the one behind it do not start, so a
 * differing call does not get into MPI. (Where two neighbours differ alike, the second of them does start; the group is
 * given up as soon as the others are heard.) Signatures travel in shared memory (shared_flags.c) where the group is
 * inside one machine, else by messages. */
#include "internal.h"

static struct cm_signature signature_of(const struct hd_comm_call *c)
{
    struct cm_signature s = {.tag = c->tag, .coll = c->coll};
    if (c->coll == HD_COLL_BARRIER)
        return s;
    s.count = c->count;
    s.dtype = c->dtype;
    s.redop = cm_reduces(c->coll) ? c->redop : 0;
    s.root = c->coll == HD_COLL_BROADCAST || c->coll == HD_COLL_REDUCE ? c->root : -1;
    return s;
}

/* Publishes signatures in order, as many as the ring has room for. */
static void publish(struct cm_group *g)
{
    while (g->unpublished && cm_flags_put(&g->flags, &g->unpublished->mine))
        g->unpublished = g->unpublished->next;
}

int cm_check_begin(struct cm_op *op)
{
    struct cm_group *g = op->group;
    int code;
    op->mine = signature_of(&op->call);
    op->signature_requests[0] = op->signature_requests[1] = MPI_REQUEST_NULL;
    if (g->flags.own) {
        g->unpublished = g->unpublished ? g->unpublished : op;
        publish(g);
        return MPI_SUCCESS;
    }
    code = MPI_Irecv(&op->theirs, sizeof op->theirs, MPI_BYTE, (g->me + g->n - 1) % g->n, CM_TAG_SIGNATURE, g->mpi,
                     &op->signature_requests[0]);
    if (code == MPI_SUCCESS)
        code = MPI_Isend(&op->mine, sizeof op->mine, MPI_BYTE, (g->me + 1) % g->n, CM_TAG_SIGNATURE, g->mpi,
                         &op->signature_requests[1]);
    return code;
}

static void print_signature(const struct cm_signature *s, char out[200])
{
    int n = snprintf(out, 200, "%s of %llu %s", hd_coll_name(s->coll), (unsigned long long)s->count,
                     hd_dtype_name(s->dtype));
    if (s->redop)
        n += snprintf(out + n, 200 - (size_t)n, ", reduction %u", s->redop);
    if (s->root >= 0)
        n += snprintf(out + n, 200 - (size_t)n, ", root %d", s->root);
    snprintf(out + n, 200 - (size_t)n, " (tag %llu)", (unsigned long long)s->tag);
}

static void differ(struct cm_op *op)
{
    struct cm_group *g = op->group;
    struct hd_error err = HD_ERROR_INIT;
    int32_t before = g->ranks[(g->me + g->n - 1) % g->n];
    char mine[200], theirs[200];
    print_signature(&op->mine, mine);
    print_signature(&op->theirs, theirs);
    err.peer = before;
    hd_fail(&err, HD_E_MISMATCH, "mpi: members of group %s do not do the same: rank %d has %s, rank %d has %s", g->name,
            before, theirs, g->ranks[g->me], mine);
    cm_group_give_up(g, &err);
}

/* *done: theirs is known, and mine is on its way. */
static int exchanged(struct cm_op *op, int *done)
{
    struct cm_group *g = op->group;
    if (!g->flags.own)
        return MPI_Testall(2, op->signature_requests, done, MPI_STATUSES_IGNORE);
    publish(g);
    *done = op != g->unpublished && cm_flags_take(&g->flags, &op->theirs);
    return MPI_SUCCESS;
}

int cm_check_advance(struct cm_group *g)
{
    int moved = 0, done = 1;
    while (g->unstarted) {
        struct cm_op *op = g->unstarted;
        int code = exchanged(op, &done);
        if (code == MPI_SUCCESS && !done)
            break;
        if (code == MPI_SUCCESS && memcmp(&op->mine, &op->theirs, sizeof op->mine)) {
            differ(op);
            return 1;
        }
        if (code == MPI_SUCCESS)
            code = cm_collective_start(op);
        if (code != MPI_SUCCESS) {
            cm_collective_broke(op, code);
            return 1;
        }
        g->unstarted = op->next;
        moved = 1;
    }
    return moved;
}

void cm_check_cancel(struct cm_group *g)
{
    for (struct cm_op *op = g->unstarted; op; op = op->next)
        if (op->signature_requests[0] != MPI_REQUEST_NULL)
            MPI_Cancel(&op->signature_requests[0]);
    g->unstarted = g->unpublished = NULL;
}
