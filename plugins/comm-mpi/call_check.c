/* Do the members call the same? MPI does not ask: a call of another size writes where it must not, and the process dies in
 * MPI's code. So each tells the next member what it calls, 32 bytes, and starts when it knows that the one before calls the
 * same. Who differs, and the one behind it, do not start: where one member differs, its call does not get into MPI. (Where two
 * neighbours differ alike, the second of them does start; the group is given up as soon as the others are heard.) They tell it on
 * boards in memory (shared_flags.c) where the group is inside one machine, else by messages. */
#include "internal.h"

static struct cm_sign sign_of(const struct hd_comm_call *c)
{
    struct cm_sign s = {.tag = c->tag, .coll = c->coll};
    if (c->coll == HD_COLL_BARRIER)
        return s;
    s.count = c->count;
    s.dtype = c->dtype;
    s.redop = cm_reduces(c->coll) ? c->redop : 0;
    s.root = c->coll == HD_COLL_BROADCAST || c->coll == HD_COLL_REDUCE ? c->root : -1;
    return s;
}

/* Puts up what the room on the board allows, in order. */
static void put_up(struct cm_group *g)
{
    while (g->unsaid && cm_board_put(&g->board, &g->unsaid->mine))
        g->unsaid = g->unsaid->next;
}

int cm_agree_begin(struct cm_op *op)
{
    struct cm_group *g = op->group;
    int code;
    op->mine = sign_of(&op->call);
    op->signing[0] = op->signing[1] = MPI_REQUEST_NULL;
    if (g->board.own) {
        g->unsaid = g->unsaid ? g->unsaid : op;
        put_up(g);
        return MPI_SUCCESS;
    }
    code = MPI_Irecv(&op->theirs, sizeof op->theirs, MPI_BYTE, (g->me + g->n - 1) % g->n, CM_TAG_SIGN, g->mpi,
                     &op->signing[0]);
    if (code == MPI_SUCCESS)
        code =
            MPI_Isend(&op->mine, sizeof op->mine, MPI_BYTE, (g->me + 1) % g->n, CM_TAG_SIGN, g->mpi, &op->signing[1]);
    return code;
}

static void say_sign(const struct cm_sign *s, char out[200])
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
    say_sign(&op->mine, mine);
    say_sign(&op->theirs, theirs);
    err.peer = before;
    hd_fail(&err, HD_E_MISMATCH, "mpi: members of group %s do not do the same: rank %d has %s, rank %d has %s", g->name,
            before, theirs, g->ranks[g->me], mine);
    cm_group_give_up(g, &err);
}

/* *done: theirs is known, and mine is on its way. */
static int exchanged(struct cm_op *op, int *done)
{
    struct cm_group *g = op->group;
    if (!g->board.own)
        return MPI_Testall(2, op->signing, done, MPI_STATUSES_IGNORE);
    put_up(g);
    *done = op != g->unsaid && cm_board_take(&g->board, &op->theirs);
    return MPI_SUCCESS;
}

int cm_agree_advance(struct cm_group *g)
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

void cm_agree_cancel(struct cm_group *g)
{
    for (struct cm_op *op = g->unstarted; op; op = op->next)
        if (op->signing[0] != MPI_REQUEST_NULL)
            MPI_Cancel(&op->signing[0]);
    g->unstarted = g->unsaid = NULL;
}
