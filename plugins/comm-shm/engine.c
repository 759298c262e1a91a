/* Operations: progress, completion, failure.
 *
 * A failure belongs to a group: its first error is kept, everything pending there completes with it, and later calls
 * return it. */
#include "../common/coarse_clock.h"
#include "internal.h"

#define HEALTH_SECONDS 0.005

struct shm_op *shm_op_new(struct shm_group *group, uint32_t kind, struct hd_error *err)
{
    struct shm_op *op = rq_take(&group->comm->ops);
    if (!op) {
        hd_fail(err, HD_E_NOMEM, "shm: no memory");
        return NULL;
    }
    op->next = NULL;
    op->group = group;
    op->done = 0;
    op->code = HD_OK;
    op->kind = (uint8_t)kind;
    op->state = OP_QUEUED;
    op->since = 0; /* the clock is read when it first has to wait */
    op->arrived = 0;
    op->step = op->cursor = 0;
    op->pass = 0;
    return op;
}

void shm_op_finish(struct shm_op *op, int32_t code)
{
    op->done = 1;
    op->code = code;
}

/* ---- failure */

static void finish_all(struct shm_group *g, int32_t code)
{
    struct shm_op *lists[] = {g->head, g->mail};
    g->head = g->mail = NULL;
    g->tail = &g->head;
    for (int k = 0; k < 2; k++)
        for (struct shm_op *op = lists[k], *next; op; op = next) {
            next = op->next;
            shm_op_finish(op, code);
        }
}

int32_t shm_fail(struct shm_group *g, const struct hd_error *err)
{
    struct shm_part *mine = g->member[g->me].part;
    if (g->error.code == HD_OK) {
        g->error = *err;
        g->error.scope = HD_SCOPE_GROUP;
        snprintf(mine->why, sizeof mine->why, "%.511s", err->message);
        atomic_store(&mine->failed, err->code);
        finish_all(g, err->code);
        shm_ring_group(g);
    }
    return g->error.code;
}

void shm_ops_orphan(struct shm_group *g)
{
    finish_all(g, HD_E_CANCELLED);
    for (uint32_t i = 0; i < g->comm->ops.n; i++) {
        struct shm_op *op = rq_at(&g->comm->ops, i);
        if (op->group == g)
            op->group = NULL;
    }
}

/* Ends every group of an aborted transport. 1: one was not over yet. */
static int aborted(struct hd_comm *comm, uint32_t by)
{
    const struct shm_control *who = comm->control.base;
    struct hd_error e = HD_ERROR_INIT;
    int32_t rank = (int32_t)by - 1, job_rank = hd_job_rank(&comm->world, rank);
    int ended = 0;
    if (rank != comm->world.rank && rank >= 0 && rank < comm->world.size && comm->peer[rank])
        who = SHM_CONTROL(comm->peer[rank]);
    e.peer = job_rank;
    hd_fail(&e, HD_E_CANCELLED, "shm: rank %d aborted: %.255s", job_rank, who->reason);
    for (struct shm_group *g = comm->groups; g; g = g->next) {
        while (shm_coll_drain(g)) /* what all have done still counts: a step that is complete is not lost */
            continue;
        ended |= g->error.code == HD_OK;
        shm_fail(g, &e);
    }
    return ended;
}

/* 1 + the rank that aborted, whose reason is then written; 0: nobody has. */
static uint32_t abort_flag(const struct hd_comm *comm)
{
    uint32_t by = atomic_load_explicit(&((struct shm_control *)comm->control.base)->aborted, memory_order_acquire);
    return by == SHM_ABORTING ? 0 : by;
}

int32_t shm_usable(struct shm_group *g, struct hd_error *err)
{
    uint32_t by = abort_flag(g->comm);
    if (__builtin_expect(by != 0, 0))
        aborted(g->comm, by);
    if (__builtin_expect(g->error.code != HD_OK, 0)) {
        hd_error_copy(err, &g->error);
        return g->error.code;
    }
    return HD_OK;
}

/* ---- health: looked at a few hundred times a second, and only while something waits */

static const char *op_text(const struct shm_op *op, char out[160])
{
    if (op->kind == SHM_COLLECTIVE)
        shm_coll_text(shm_coll_what(op), op->count, op->tag, out);
    else
        snprintf(out, 160, "%s of %llu bytes %s rank %d (stream %u)", op->kind == SHM_SEND ? "send" : "recv",
                 (unsigned long long)op->bytes, op->kind == SHM_SEND ? "to" : "from", shm_job_rank(op->group, op->peer),
                 op->stream);
    return out;
}

static int waits_for(const struct shm_op *op, int32_t i)
{
    return op->kind == SHM_COLLECTIVE ? shm_coll_late(op, i) : op->peer == i;
}

static void late_members(const struct shm_op *op, char *out, size_t room, int64_t *first)
{
    size_t n = 0;
    *first = -1;
    for (int32_t i = 0; i < op->group->n && n < room; i++)
        if (i != op->group->me && waits_for(op, i)) {
            n += (size_t)snprintf(out + n, room - n, "%s%d", n ? ", " : "", shm_job_rank(op->group, i));
            *first = *first < 0 ? shm_job_rank(op->group, i) : *first;
        }
}

static int32_t fail_late(struct shm_op *op, double waited)
{
    struct hd_error e = HD_ERROR_INIT;
    char late[256] = "", text[160];
    late_members(op, late, sizeof late, &e.peer);
    if (e.peer >= 0)
        hd_fail(&e, HD_E_TIMEOUT, "shm: %s in group %s: no sign of rank %s after %.1f s", op_text(op, text),
                op->group->name, late, waited);
    else
        hd_fail(&e, HD_E_TIMEOUT, "shm: %s in group %s did not finish in %.1f s", op_text(op, text), op->group->name,
                waited);
    return shm_fail(op->group, &e);
}

/* A member that will never come: dead, gone, or out of the group. Whatever it did before was looked at already. */
static int32_t fail_gone(struct shm_op *op, int32_t i)
{
    struct hd_error e = HD_ERROR_INIT;
    struct shm_member *m = &op->group->member[i];
    char text[160];
    int32_t failed = atomic_load(&m->part->failed), rank = shm_job_rank(op->group, i);
    e.peer = rank;
    if (failed != HD_OK)
        hd_fail(&e, failed, "shm: rank %d gave group %s up: %.511s", rank, op->group->name, m->part->why);
    else if (shm_peer_gone(m->peer))
        hd_fail(&e, HD_E_PEER, "shm: rank %d (process %d) died; %s in group %s cannot complete", rank, m->peer->pid,
                op_text(op, text), op->group->name);
    else
        hd_fail(&e, HD_E_PEER, "shm: rank %d has closed the transport; %s in group %s cannot complete", rank,
                op_text(op, text), op->group->name);
    return shm_fail(op->group, &e);
}

static int is_gone(struct shm_member *m)
{
    return m->peer && (atomic_load(&m->part->failed) != HD_OK || atomic_load(&SHM_CONTROL(m->peer)->closed) ||
                       shm_peer_gone(m->peer));
}

static int advance(struct shm_group *g)
{
    int moved = g->head ? shm_coll_advance(g) : 0;
    return g->mail ? moved | shm_mail_advance(g) : moved;
}

static void check_group(struct shm_group *g, double looked, double now)
{
    uint8_t gone[SHM_MEMBERS];
    int any = 0;
    for (int32_t i = 0; i < g->n; i++)
        any |= gone[i] = (uint8_t)is_gone(&g->member[i]);
    while (any && advance(g)) /* what they published before they went still counts */
        continue;
    if (g->error.code == HD_OK)
        shm_coll_compare(g);
    struct shm_op *lists[] = {g->head, g->mail};
    for (int k = 0; k < 2; k++)
        for (struct shm_op *op = lists[k]; op && g->error.code == HD_OK; op = op->next) {
            for (int32_t i = 0; any && i < g->n && g->error.code == HD_OK; i++)
                if (gone[i] && waits_for(op, i))
                    fail_gone(op, i);
            if (g->error.code != HD_OK)
                return;
            if (hd_wait_is_late(&op->since, looked, g->comm->world.timeout, now))
                fail_late(op, now - op->since);
            if (k == 0)
                break; /* collectives behind the head wait for the head */
        }
}

static void check_health(struct hd_comm *comm)
{
    double now = shm_now(), looked = comm->checked;
    if (now - looked < HEALTH_SECONDS)
        return;
    comm->checked = now;
    for (struct shm_group *g = comm->groups; g; g = g->next)
        if (g->head || g->mail)
            check_group(g, looked, now);
}

/* ---- progress, test, wait */

static int progress(struct hd_comm *comm)
{
    int moved = 0;
    uint32_t by = abort_flag(comm);
    if (__builtin_expect(by != 0, 0))
        return aborted(comm, by);
    for (struct shm_group *g = comm->groups; g; g = g->next)
        if (g->head || g->mail)
            moved |= advance(g);
    if (moved)
        comm->idle = 0;
    else if ((++comm->idle & 255) == 0 || comm->idle_since != 0)
        check_health(comm);
    return moved;
}

int32_t shm_progress(struct hd_comm *comm, struct hd_error *err)
{
    (void)err; /* failures belong to the requests */
    return progress(comm);
}

static int32_t finish(struct hd_comm *comm, struct shm_op *op, struct hd_error *err)
{
    int32_t code = op->code;
    if (code != HD_OK) {
        if (op->group)
            hd_error_copy(err, &op->group->error);
        else
            hd_fail(err, code, "shm: the group was freed while the operation was under way");
    }
    rq_give(&comm->ops, &op->id);
    return code;
}

int32_t shm_test(struct hd_comm *comm, hd_request request, int32_t *done, struct hd_error *err)
{
    struct shm_op *op = rq_find(&comm->ops, request, "shm", err);
    if (!op)
        return HD_E_INVALID;
    if (!op->done) {
        *done = 0;
        return HD_OK;
    }
    *done = 1;
    return finish(comm, op, err);
}

int32_t shm_wait(struct hd_comm *comm, hd_request request, double deadline, struct hd_error *err)
{
    struct shm_op *op = rq_find(&comm->ops, request, "shm", err);
    struct hd_deadline end = hd_deadline_from(deadline, coarse_now());
    if (!op)
        return HD_E_INVALID;
    comm->idle = 0;
    comm->idle_since = 0;
    while (!op->done) {
        if (progress(comm) || op->done)
            continue;
        shm_relax(comm);
        if (comm->idle_since == 0 || (comm->idle & 7) != 0)
            continue;
        double now = shm_now();
        if (hd_deadline_passed(&end, now)) {
            double since = op->since != 0 ? op->since : now;
            fail_late(op->kind == SHM_COLLECTIVE ? op->group->head : op, now - since);
        }
    }
    return finish(comm, op, err);
}
