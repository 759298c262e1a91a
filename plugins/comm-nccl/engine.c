/* Operations: their way to the stream; progress, test, wait. */
#include <sched.h>
#include <time.h>

#include "internal.h"

#define CHECK_SECONDS 0.01

double nc_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

void nc_lock(struct hd_comm *c)
{
    pthread_mutex_lock(&c->lock);
    nc_enter(c);
}

void nc_unlock(struct hd_comm *c)
{
    pthread_mutex_unlock(&c->lock);
}

/* ---- operations */

void nc_ops_free(struct hd_comm *c)
{
    for (uint32_t i = 0; i < c->ops.n; i++) {
        struct nc_op *op = rq_at(&c->ops, i);
        if (op->begin)
            c->api.cuEventDestroy_v2(op->begin);
        if (op->end)
            c->api.cuEventDestroy_v2(op->end);
    }
    rq_finish(&c->ops);
}

struct nc_op *nc_op_new(struct nc_group *g, struct nc_queue *queue, uint32_t kind, struct hd_error *err)
{
    struct hd_comm *c = g->comm;
    struct nc_op *op = rq_take(&c->ops);
    int result = 0;
    if (!op) {
        hd_fail(err, HD_E_NOMEM, "nccl: no memory");
        return NULL;
    }
    if (!op->begin)
        result = c->api.cuEventCreate(&op->begin, NC_CU_NO_TIMING);
    if (!result && !op->end)
        result = c->api.cuEventCreate(&op->end, NC_CU_NO_TIMING);
    if (nc_cu_check(&c->api, result, "an event", err)) {
        rq_give(&c->ops, &op->id);
        return NULL;
    }
    *op = (struct nc_op){
        .id = op->id, .group = g, .queue = queue, .begin = op->begin, .end = op->end, .kind = (uint8_t)kind};
    return op;
}

void nc_op_release(struct hd_comm *c, struct nc_op *op)
{
    op->group = NULL;
    rq_give(&c->ops, &op->id);
}

void nc_op_finish(struct nc_op *op, int32_t code)
{
    op->done = 1;
    op->code = code;
}

const char *nc_op_text(const struct nc_op *op, char out[160])
{
    if (op->kind == NC_COLLECTIVE)
        return nc_call_text(&op->call, out);
    snprintf(out, 160, "%s of %llu bytes %s rank %d (stream %u)", op->kind == NC_SEND ? "send" : "recv",
             (unsigned long long)op->bytes, op->kind == NC_SEND ? "to" : "from", op->group->ranks[op->peer],
             op->stream);
    return out;
}

/* ---- to the stream */

int32_t nc_post(struct nc_op *op, hd_request *request, struct hd_error *err)
{
    struct nc_group *g = op->group;
    struct nc_queue *q = op->queue;
    struct hd_comm *c = g->comm;
    struct hd_error why = HD_ERROR_INIT;
    int self_send = q->state == NC_SELF && op->kind == NC_SEND, moved = 0, status = 0;
    int result = c->api.cuEventRecord(op->begin, c->world.stream);
    if (!result && !c->api.cuStreamIsCapturing(c->world.stream, &status) && !status) {
        result = c->api.cuEventRecord(q->place[1], c->world.stream);
        q->placed = 1;
    }
    int32_t rc = nc_cu_check(&c->api, result, "marking the device's stream", err);
    if (rc) {
        nc_op_release(c, op);
        return rc;
    }
    *(self_send ? q->sent_tail : q->tail) = op;
    *(self_send ? &q->sent_tail : &q->tail) = &op->next;
    if (nc_queue_advance(q, &moved, &why)) {
        nc_group_fail(g, &why);
        nc_op_release(c, op);
        return nc_usable(g, err);
    }
    *request = rq_number(&op->id);
    return HD_OK;
}

/* The watch: one operation of a lane at a time, then the last of those that came since. What is being captured runs
 * later, and more than once: nothing marks its end. */
static int32_t watch(struct nc_queue *q, struct hd_error *err)
{
    const struct hd_comm *c = q->group->comm;
    void *place = q->place[0];
    int status = 0;
    if (q->armed || !q->unmarked || c->api.cuStreamIsCapturing(q->stream, &status))
        return HD_OK;
    q->captured |= status != 0;
    if (status)
        return HD_OK;
    q->armed = 1;
    q->unmarked = 0;
    q->since = nc_now();
    q->marked = q->last;
    if (q->placed) { /* else place[0] is the last one's: it was posted before the one ahead was enqueued */
        q->place[0] = q->place[1];
        q->place[1] = place;
        q->placed = 0;
    }
    return nc_cu_check(&c->api, c->api.cuEventRecord(q->mark, q->stream), "marking a stream", err);
}

int32_t nc_enqueued(struct nc_op *op, struct hd_error *err)
{
    struct nc_queue *q = op->queue;
    const struct nc_api *api = &op->group->comm->api;
    int32_t rc = nc_cu_check(api, api->cuEventRecord(op->end, q->stream), "marking a stream", err);
    q->last = *op;
    q->unmarked = 1;
    if (!rc)
        rc = watch(q, err);
    if (rc)
        return rc;
    q->launched = NULL;
    nc_op_finish(op, HD_OK);
    return HD_OK;
}

/* ---- what goes wrong by itself */

static int32_t late(const struct nc_queue *q, const char *what, double waited, struct hd_error *err)
{
    const struct nc_group *g = q->group;
    int32_t peer = q->from >= 0 ? g->ranks[q->from == g->me ? q->to : q->from] : g->n == 2 ? g->ranks[!g->me] : -1;
    err->peer = peer;
    if (peer >= 0)
        return hd_fail(err, HD_E_TIMEOUT, "nccl: %s in group %s: no sign of rank %d after %.1f s", what, g->name, peer,
                       waited);
    return hd_fail(err, HD_E_TIMEOUT,
                   "nccl: %s in group %s did not finish in %.1f s: one of its %d members has not come", what, g->name,
                   waited, g->n);
}

/* A query of an event must not disturb a capture, in whatever thread that is. */
static int reached(const struct hd_comm *c, void *event)
{
    int mode = NC_CU_RELAXED, result;
    c->api.cuThreadExchangeStreamCaptureMode(&mode);
    result = c->api.cuEventQuery(event);
    c->api.cuThreadExchangeStreamCaptureMode(&mode);
    return result;
}

static int32_t check_running(struct nc_queue *q, double looked, double now, struct hd_error *err)
{
    const struct hd_comm *c = q->group->comm;
    int state = NC_SUCCESS, result;
    char text[160];
    int32_t rc;
    if (q->armed && (result = reached(c, q->mark)) != NC_CU_NOT_READY) {
        if (result)
            return nc_cu_check(&c->api, result, nc_op_text(&q->marked, text), err);
        q->armed = 0;
    }
    if (!q->armed && (rc = watch(q, err)))
        return rc;
    if (!q->armed && !q->captured)
        return HD_OK;
    if (q->armed && reached(c, q->place[0]) == NC_CU_NOT_READY) /* the device has not come to it: it waits for nobody */
        q->since = now;
    nc_op_text(q->armed ? &q->marked : &q->last, text);
    if (q->comm && !q->launched) {
        result = c->api.CommGetAsyncError(q->comm, &state);
        if (result || (state && state != NC_IN_PROGRESS))
            return nc_check(&c->api, q->comm, result ? result : state, text, err);
    }
    return q->armed && hd_wait_is_late(&q->since, looked, c->world.timeout, now) ? late(q, text, now - q->since, err)
                                                                                 : HD_OK;
}

static int32_t check_queue(struct nc_queue *q, double looked, double now, struct hd_error *err)
{
    struct nc_op *op = q->launched ? q->launched : q->head ? q->head : q->sent;
    char text[160];
    if (op && hd_wait_is_late(&op->since, looked, q->group->comm->world.timeout, now))
        return late(q, nc_op_text(op, text), now - op->since, err);
    return check_running(q, looked, now, err);
}

static void check_all(struct hd_comm *c, double looked, double now)
{
    for (struct nc_group *g = c->groups; g; g = g->next)
        for (struct nc_queue *q = g->queues; q && g->error.code == HD_OK; q = q->next) {
            struct hd_error err = HD_ERROR_INIT;
            if (check_queue(q, looked, now, &err))
                nc_group_fail(g, &err);
        }
}

/* ---- progress */

int nc_turn(struct hd_comm *c)
{
    int moved = 0;
    double now = nc_now(), looked = c->checked;
    if (nc_poll_abort(c, NULL))
        return 0;
    for (struct nc_group *g = c->groups; g; g = g->next)
        for (struct nc_queue *q = g->queues; q && g->error.code == HD_OK; q = q->next) {
            struct hd_error err = HD_ERROR_INIT;
            if ((q->head || q->launched || q->state == NC_JOINING || q->state == NC_MEETING) &&
                nc_queue_advance(q, &moved, &err))
                nc_group_fail(g, &err);
        }
    if (now - looked > CHECK_SECONDS) {
        c->checked = now;
        check_all(c, looked, now);
    }
    return moved;
}

int32_t nc_progress(struct hd_comm *c, struct hd_error *err)
{
    int32_t moved;
    nc_lock(c);
    moved = nc_turn(c);
    if (c->failure.code != HD_OK) {
        hd_error_copy(err, &c->failure);
        moved = c->failure.code;
    }
    nc_unlock(c);
    return moved;
}

/* Done: from now on the device's stream waits for it. */
static int32_t finish(struct hd_comm *c, struct nc_op *op, struct hd_error *err)
{
    int32_t code = op->code;
    if (code != HD_OK && op->group)
        hd_error_copy(err, &op->group->error);
    else if (code != HD_OK)
        hd_fail(err, code, "nccl: the group was freed while the operation was under way");
    else if (!op->empty)
        code = nc_cu_check(&c->api, c->api.cuStreamWaitEvent(c->world.stream, op->end, 0),
                           "ordering the device's stream", err);
    nc_op_release(c, op);
    return code;
}

int32_t nc_test(struct hd_comm *c, hd_request request, int32_t *done, struct hd_error *err)
{
    struct nc_op *op;
    int32_t rc = HD_E_INVALID;
    nc_lock(c);
    nc_poll_abort(c, NULL);
    op = rq_find(&c->ops, request, "nccl", err);
    if (op) {
        *done = op->done;
        rc = op->done ? finish(c, op, err) : HD_OK;
    }
    nc_unlock(c);
    return rc;
}

static void give_up(struct nc_op *op, double began)
{
    struct hd_error err = HD_ERROR_INIT;
    char text[160];
    late(op->queue, nc_op_text(op, text), nc_now() - began, &err);
    nc_group_fail(op->group, &err);
}

int32_t nc_wait(struct hd_comm *c, hd_request request, double deadline, struct hd_error *err)
{
    double began = nc_now();
    struct hd_deadline end = hd_deadline_from(deadline, began);
    struct nc_op *op;
    int32_t rc;
    nc_lock(c);
    op = rq_find(&c->ops, request, "nccl", err);
    for (uint32_t idle = 0; op && !op->done;) {
        if (nc_turn(c) || op->done) {
            idle = 0;
            continue;
        }
        if (op->group && hd_deadline_passed(&end, nc_now())) {
            give_up(op, began);
            continue;
        }
        nc_unlock(c);
        rq_relax(idle++);
        nc_lock(c);
    }
    rc = op ? finish(c, op, err) : HD_E_INVALID;
    nc_unlock(c);
    return rc;
}
