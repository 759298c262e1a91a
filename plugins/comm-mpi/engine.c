/* Operations: completion, failure; progress, test, wait.
 *
 * A failure belongs to a group: its first error is recorded, pending operations complete with it, and later calls
 * return it. */
#include <sched.h>
#include <time.h>

#include "internal.h"

#define CHECK_SECONDS 0.01

double cm_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ---- operations */

void cm_ops_free(struct hd_comm *c)
{
    for (uint32_t i = 0; i < c->ops.n; i++)
        c->host->free(((struct cm_op *)rq_at(&c->ops, i))->requests);
    rq_finish(&c->ops);
}

struct cm_op *cm_op_new(struct cm_group *g, uint32_t kind, struct hd_error *err)
{
    struct cm_op *op = rq_take(&g->comm->ops);
    if (!op) {
        hd_fail(err, HD_E_NOMEM, "mpi: no memory");
        return NULL;
    }
    *op = (struct cm_op){.id = op->id, .group = g, .requests = op->requests, .room = op->room, .kind = (uint8_t)kind};
    return op;
}

void cm_op_release(struct hd_comm *c, struct cm_op *op)
{
    if (!op->failed) /* else MPI may still write there */
        c->host->free(op->after.scratch);
    op->group = NULL;
    rq_give(&c->ops, &op->id);
}

MPI_Request *cm_op_request(struct cm_op *op)
{
    const struct hd_host *host = op->group->comm->host;
    if (op->n == op->room) {
        uint32_t room = CM_MAX(2, 2 * op->room);
        MPI_Request *requests = host->alloc(room * sizeof *requests);
        if (!requests)
            return NULL;
        memcpy(requests, op->n ? op->requests : requests, op->n * sizeof *requests);
        host->free(op->requests);
        op->requests = requests;
        op->room = room;
    }
    op->requests[op->n] = MPI_REQUEST_NULL;
    return &op->requests[op->n++];
}

void cm_op_finish(struct cm_op *op, int32_t code)
{
    op->done = 1;
    op->code = code;
    op->failed = code != HD_OK;
}

const char *cm_op_text(const struct cm_op *op, char out[160])
{
    if (op->kind == CM_COLLECTIVE)
        return cm_call_text(&op->call, out);
    snprintf(out, 160, "%s of %llu bytes %s rank %d (stream %u)", op->kind == CM_SEND ? "send" : "recv",
             (unsigned long long)op->bytes, op->kind == CM_SEND ? "to" : "from", op->group->ranks[op->peer],
             op->stream);
    return out;
}

/* ---- failure */

/* Operations that MPI has begun stay its own; only receives can be cancelled. */
void cm_group_fail(struct cm_group *g, const struct hd_error *err)
{
    if (g->error.code != HD_OK)
        return;
    g->error = *err;
    g->error.scope = HD_SCOPE_GROUP;
    g->comm->failed |= err->code != HD_E_CANCELLED || g->head || g->n_messages;
    cm_check_cancel(g);
    for (struct cm_op *op = g->head, *next; op; op = next) {
        next = op->next;
        cm_op_finish(op, err->code);
    }
    g->head = NULL;
    g->tail = &g->head;
    for (uint32_t i = 0; i < g->n_messages; i++) {
        if (g->message[i]->kind == CM_RECV && g->request[i] != MPI_REQUEST_NULL)
            MPI_Cancel(&g->request[i]);
        cm_op_finish(g->message[i], err->code);
    }
    g->n_messages = 0;
}

void cm_group_give_up(struct cm_group *g, const struct hd_error *err)
{
    if (g->error.code != HD_OK)
        return;
    cm_group_fail(g, err);
    cm_control_send(g->comm, g, err->code, err->message);
}

int32_t cm_usable(struct cm_group *g, struct hd_error *err)
{
    if (__builtin_expect(atomic_load_explicit(&g->comm->aborting, memory_order_relaxed) != 0, 0))
        cm_control_poll(g->comm);
    if (__builtin_expect(g->error.code != HD_OK, 0))
        hd_error_copy(err, &g->error);
    return g->error.code;
}

/* MPI does not say who is missing. In a pair it is the other one. */
static void fail_late(struct cm_op *op, double waited)
{
    struct hd_error err = HD_ERROR_INIT;
    struct cm_group *g = op->group;
    char text[160];
    err.peer = op->kind != CM_COLLECTIVE ? g->ranks[op->peer] : g->n == 2 ? g->ranks[!g->me] : -1;
    if (err.peer >= 0)
        hd_fail(&err, HD_E_TIMEOUT, "mpi: %s in group %s: no sign of rank %lld after %.1f s", cm_op_text(op, text),
                g->name, (long long)err.peer, waited);
    else
        hd_fail(&err, HD_E_TIMEOUT, "mpi: %s in group %s did not finish in %.1f s: one of its %d members has not come",
                cm_op_text(op, text), g->name, waited, g->n);
    cm_group_give_up(g, &err);
}

static int is_late(struct cm_op *op, double looked, double now)
{
    return hd_wait_is_late(&op->since, looked, op->group->comm->world.timeout, now);
}

static void check_late(struct cm_group *g, double looked, double now)
{
    struct cm_op *late = g->head && is_late(g->head, looked, now) ? g->head : NULL;
    for (uint32_t i = 0; i < g->n_messages; i++)
        if (is_late(g->message[i], looked, now) && !late)
            late = g->message[i];
    if (late)
        fail_late(late, now - late->since);
}

/* ---- progress */

static void complete(struct cm_op *op)
{
    struct cm_group *g = op->group;
    struct cm_after *after = &op->after;
    if (after->to && after->widened)
        cm_narrow(after->to, after->from, after->dtype, after->count, after->divide ? g->n : 1);
    else if (after->to && after->from)
        memcpy(after->to, after->from, after->bytes);
    if (after->to && after->divide && !after->widened)
        cm_divide(after->to, after->dtype, after->count, g->n);
    g->head = op->next;
    if (!g->head)
        g->tail = &g->head;
    cm_op_finish(op, HD_OK);
}

/* Completes what is done at the head of the queue. */
static int advance(struct cm_group *g)
{
    int moved = g->unstarted ? cm_check_advance(g) : 0, done = 1;
    while (g->head != g->unstarted) {
        struct cm_op *op = g->head;
        int code = op->n == 1 ? MPI_Test(op->requests, &done, MPI_STATUS_IGNORE)
                              : MPI_Testall((int)op->n, op->requests, &done, MPI_STATUSES_IGNORE);
        if (code != MPI_SUCCESS) {
            struct hd_error err = HD_ERROR_INIT;
            char text[160];
            cm_fail(&err, code, cm_op_text(op, text));
            cm_group_give_up(g, &err);
            return 1;
        }
        if (!done)
            break;
        complete(op);
        moved = 1;
    }
    return g->n_messages ? moved | cm_messages_advance(g) : moved;
}

/* While nothing moves: control messages, and operations that are late. */
static void check_health(struct hd_comm *c)
{
    double now = cm_now(), looked = c->checked;
    cm_control_poll(c);
    if (now - looked < CHECK_SECONDS)
        return;
    c->checked = now;
    for (struct cm_group *g = c->groups; g; g = g->next)
        check_late(g, looked, now);
}

static int progress(struct hd_comm *c)
{
    int moved = 0;
    for (struct cm_group *g = c->groups; g; g = g->next)
        if (g->head || g->n_messages)
            moved |= advance(g);
    if (moved)
        c->idle = 0;
    else if ((++c->idle & 63) == 0 || atomic_load_explicit(&c->aborting, memory_order_relaxed))
        check_health(c);
    return moved;
}

int32_t cm_progress(struct hd_comm *c, struct hd_error *err)
{
    (void)err; /* failures belong to the requests */
    return progress(c);
}

static int32_t finish(struct hd_comm *c, struct cm_op *op, struct hd_error *err)
{
    int32_t code = op->code;
    if (code != HD_OK && op->group)
        hd_error_copy(err, &op->group->error);
    else if (code != HD_OK)
        hd_fail(err, code, "mpi: the group was freed while the operation was under way");
    cm_op_release(c, op);
    return code;
}

int32_t cm_test(struct hd_comm *c, hd_request request, int32_t *done, struct hd_error *err)
{
    struct cm_op *op = rq_find(&c->ops, request, "mpi", err);
    if (!op)
        return HD_E_INVALID;
    *done = op->done;
    return op->done ? finish(c, op, err) : HD_OK;
}

int32_t cm_wait(struct hd_comm *c, hd_request request, double deadline, struct hd_error *err)
{
    struct cm_op *op = rq_find(&c->ops, request, "mpi", err);
    struct hd_deadline end = hd_deadline_from(deadline, cm_now());
    if (!op)
        return HD_E_INVALID;
    c->idle = 0;
    while (!op->done) {
        if (progress(c) || op->done)
            continue;
        if (c->idle > c->spins)
            sched_yield();
        if ((c->idle & 63) == 0 && hd_deadline_passed(&end, cm_now())) {
            struct cm_op *late = op->kind == CM_COLLECTIVE ? op->group->head : op;
            fail_late(late, late->since != 0 ? end.looked - late->since : 0);
        }
    }
    return finish(c, op, err);
}

int32_t cm_wait_all(struct hd_comm *c, int n, MPI_Request *requests, const char *what, struct hd_error *err)
{
    struct hd_deadline end = hd_deadline_in(c->world.timeout, cm_now());
    int done = 0, code;
    for (uint32_t idle = 1;; idle++) {
        if ((code = MPI_Testall(n, requests, &done, MPI_STATUSES_IGNORE)) != MPI_SUCCESS)
            return cm_fail(err, code, what);
        if (done)
            return HD_OK;
        if (idle > c->spins)
            sched_yield();
        if (idle % 64)
            continue;
        cm_control_poll(c);
        if (c->error.code != HD_OK) {
            hd_error_copy(err, &c->error);
            return c->error.code;
        }
        if (hd_deadline_passed(&end, cm_now()))
            return hd_fail(err, HD_E_TIMEOUT, "mpi: %s: some rank did not come within %.0f s", what, c->world.timeout);
    }
}
