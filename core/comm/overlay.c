/* The overlay: a transport's table made of another's send and recv, with collectives as schedules.
 *
 * Collectives of a group run one after the other, on a stream of their own; messages pass through. Where the inner
 * transport has collectives but no wait, only wait is added. */
#include <stdlib.h>

#include "core/comm/algorithms/schedule.h"
#include "core/comm/open.h"
#include "core/comm/ran.h"
#include "core/comm/requests.h"

#define OVERLAY_STREAM UINT32_MAX

struct op {
    struct hd__request request;
    struct op *next;
    struct hd_comm_group *group;
    int done, passed; /* passed: the request is the inner transport's */
    int32_t code;
    hd_request inner;
    struct hd_comm_call call;
    struct hd__schedule schedule;
    uint32_t at;     /* next step */
    uint64_t posted; /* messages so far */
    struct {
        hd_request request;
        uint64_t number; /* of the message, from 0 */
        int32_t peer;
    } *pending;
    uint32_t n_pending, pending_room;
};

struct hd_comm_group {
    struct hd_comm *comm;
    struct hd_comm_group *inner;
    struct hd_comm_group *next;
    int32_t n, me;
    int32_t *ranks;
    char name[64];
    struct op *head, **tail;
    struct hd_error error;
};

struct hd_comm {
    const struct hd_comm_ops *inner; /* &below */
    struct hd_comm_ops below;
    struct hd_comm *comm;
    int32_t rank;
    const struct hd__tuning *tuning;
    struct hd__ran *ran;
    struct hd_comm_group *groups;
    struct hd__requests ops; /* of struct op */
};

struct hd_comm *hd__overlay_create(const struct hd_comm_ops *inner, struct hd_comm *comm, int32_t rank,
                                   const struct hd__tuning *tuning, struct hd__ran *ran)
{
    struct hd_comm *o = hd__alloc(sizeof *o);
    o->below = *inner;
    o->inner = &o->below;
    o->comm = comm;
    o->rank = rank;
    o->tuning = tuning;
    o->ran = ran;
    return o;
}

/* ---- operations */

static struct op *op_new(struct hd_comm_group *g)
{
    struct op *op = hd__requests_take(&g->comm->ops, sizeof *op);
    op->next = NULL;
    op->group = g;
    op->done = op->passed = 0;
    op->code = HD_OK;
    op->at = op->n_pending = 0;
    op->posted = 0;
    return op;
}

static void release(struct hd_comm *o, struct op *op)
{
    if (op->code != HD_OK && op->schedule.scratch.count) { /* messages may be under way: it stays until the transport closes */
        hd__requests_drop(&op->request);
        return;
    }
    hd__schedule_clear(&op->schedule);
    hd__requests_give(&o->ops, &op->request);
}

/* Poisons the group: everything pending completes with the first cause. */
static void fail(struct hd_comm_group *g, const struct hd_error *err)
{
    if (g->error.code == HD_OK)
        g->error = *err;
    for (struct op *op = g->head, *next; op; op = next) {
        next = op->next;
        op->done = 1;
        op->code = g->error.code;
    }
    g->head = NULL;
    g->tail = &g->head;
}

/* ---- running a schedule */

static void add_pending(struct op *op, hd_request request, int32_t peer)
{
    if (op->n_pending == op->pending_room)
        op->pending =
            hd__array_grow(op->pending, &op->pending_room, op->n_pending + 1, sizeof *op->pending);
    op->pending[op->n_pending].request = request;
    op->pending[op->n_pending].number = op->posted++;
    op->pending[op->n_pending++].peer = peer;
}

static int32_t run_step(struct op *op, const struct hd__step *step, struct hd_error *err)
{
    struct hd_comm_group *g = op->group;
    const struct hd_comm_ops *inner = g->comm->inner;
    hd_request request;
    int32_t code = HD_OK;
    switch (step->kind) {
    case HD__STEP_SEND:
        code = inner->send(g->inner, step->peer, OVERLAY_STREAM, step->from, step->bytes, &request, err);
        break;
    case HD__STEP_RECV:
        code = inner->recv(g->inner, step->peer, OVERLAY_STREAM, step->to, step->bytes, &request, err);
        break;
    case HD__STEP_COPY:
        memmove(step->to, step->from, step->bytes);
        return HD_OK;
    case HD__STEP_WIDEN:
        hd__widen(step->to, step->from, step->bytes, step->dtype);
        return HD_OK;
    case HD__STEP_NARROW:
        hd__narrow(step->to, step->from, step->bytes, step->dtype);
        return HD_OK;
    default:
        hd__reduce(step->to, op->schedule.sources.at + step->first, (int32_t)step->n, g->n, step->bytes, step->dtype, step->redop);
        return HD_OK;
    }
    if (code == HD_OK)
        add_pending(op, request, step->peer);
    return code;
}

/* 1: of the first `messages` none is pending any more; 0: some are; or an error. */
static int32_t drain(struct op *op, uint64_t messages, struct hd_error *err)
{
    struct hd_comm *o = op->group->comm;
    int32_t none = 1;
    for (uint32_t i = 0; i < op->n_pending;) {
        int32_t done = 0, code = o->inner->test(o->comm, op->pending[i].request, &done, err);
        if (code != HD_OK)
            return code;
        if (!done)
            none &= op->pending[i++].number >= messages;
        else
            op->pending[i] = op->pending[--op->n_pending];
    }
    return none;
}

/* As far as it goes. 1 if it moved. */
static int advance(struct hd_comm_group *g)
{
    struct op *op = g->head;
    struct hd_error err = HD_ERROR_INIT;
    int moved = 0;
    while (op->at < op->schedule.steps.count) {
        const struct hd__step *step = &op->schedule.steps.at[op->at];
        int32_t code = step->kind == HD__STEP_FENCE ? drain(op, step->bytes, &err) : run_step(op, step, &err);
        if (code < 0) {
            fail(g, &err);
            return 1;
        }
        if (step->kind == HD__STEP_FENCE && code == 0)
            return moved;
        op->at++;
        moved = 1;
    }
    g->head = op->next;
    if (!g->head)
        g->tail = &g->head;
    op->done = 1;
    return 1;
}

/* ---- slots */

static void overlay_close(struct hd_comm *o)
{
    if (!o)
        return;
    while (o->groups)
        hd__overlay_ops.group_free(o->groups);
    o->inner->close(o->comm);
    for (uint32_t i = 0; i < o->ops.at.count; i++) {
        struct op *op = o->ops.at.at[i];
        hd__schedule_free(&op->schedule);
        free(op->pending);
    }
    hd__requests_free(&o->ops);
    free(o);
}

static int32_t overlay_memory(struct hd_comm *o, size_t bytes, void **base, struct hd_error *err)
{
    return o->inner->memory(o->comm, bytes, base, err);
}

static int32_t overlay_group(struct hd_comm *o, const char *name, const int32_t *ranks, int32_t n,
                             struct hd_comm_group **group, struct hd_error *err)
{
    struct hd_comm_group *inner;
    int32_t code = n > 1024 ? hd_fail(err, HD_E_UNSUPPORTED, "group %s of %d ranks (1024 at most)", name, n)
                            : o->inner->group(o->comm, name, ranks, n, &inner, err);
    if (code != HD_OK)
        return code;
    struct hd_comm_group *g = hd__alloc(sizeof *g);
    g->comm = o;
    g->inner = inner;
    g->n = n;
    g->ranks = hd__alloc((size_t)n * sizeof *ranks);
    memcpy(g->ranks, ranks, (size_t)n * sizeof *ranks);
    for (int32_t i = 0; i < n; i++)
        g->me = ranks[i] == o->rank ? i : g->me;
    snprintf(g->name, sizeof g->name, "%s", name);
    g->tail = &g->head;
    g->error = (struct hd_error)HD_ERROR_INIT;
    g->next = o->groups;
    o->groups = g;
    *group = g;
    return HD_OK;
}

static void overlay_group_free(struct hd_comm_group *g)
{
    struct hd_error err = HD_ERROR_INIT;
    if (!g)
        return;
    hd_fail(&err, HD_E_CANCELLED, "group %s was freed while an operation was under way", g->name);
    fail(g, &err);
    for (struct hd_comm_group **at = &g->comm->groups; *at; at = &(*at)->next)
        if (*at == g) {
            *at = g->next;
            break;
        }
    for (uint32_t i = 0; i < g->comm->ops.at.count; i++) {
        struct op *op = g->comm->ops.at.at[i];
        op->group = op->group == g ? NULL : op->group;
    }
    if (g->comm->inner->group_free)
        g->comm->inner->group_free(g->inner);
    free(g->ranks);
    free(g);
}

/* Requests of the inner transport go through the table, so that all are numbers of ours. */
static int32_t pass(struct hd_comm_group *g, int32_t code, hd_request inner, hd_request *request)
{
    if (code != HD_OK)
        return code;
    struct op *op = op_new(g);
    op->passed = 1;
    op->inner = inner;
    *request = hd__request_number(&op->request);
    return HD_OK;
}

static int32_t overlay_collective(struct hd_comm_group *g, const struct hd_comm_call *call, hd_request *request,
                                  struct hd_error *err)
{
    const struct hd_comm_ops *inner = g->comm->inner;
    hd_request theirs = 0;
    if (inner->collective) {
        int32_t code = inner->collective(g->inner, call, &theirs, err);
        return pass(g, code, theirs, request);
    }
    if (g->error.code != HD_OK)
        return hd_fail(err, g->error.code, "%s", g->error.message);
    struct op *op = op_new(g);
    op->call = *call;
    int32_t code = hd__schedule_build(&op->schedule, g->comm->tuning, g->n, g->me, call, err);
    if (code != HD_OK) {
        release(g->comm, op);
        return code;
    }
    if (op->schedule.use)
        hd__ran_count(g->comm->ran, g->name, call->coll, op->schedule.use->name);
    *g->tail = op;
    g->tail = &op->next;
    if (g->head == op)
        advance(g);
    if (op->done && op->code != HD_OK) {
        release(g->comm, op);
        return hd_fail(err, g->error.code, "%s", g->error.message);
    }
    *request = hd__request_number(&op->request);
    return HD_OK;
}

static int32_t overlay_send(struct hd_comm_group *g, int32_t peer, uint32_t stream, const void *data, uint64_t bytes,
                            hd_request *request, struct hd_error *err)
{
    hd_request inner = 0;
    if (stream == OVERLAY_STREAM)
        return hd_fail(err, HD_E_INVALID, "stream %u is the overlay's own", stream);
    int32_t code = g->comm->inner->send(g->inner, peer, stream, data, bytes, &inner, err);
    return pass(g, code, inner, request);
}

static int32_t overlay_recv(struct hd_comm_group *g, int32_t peer, uint32_t stream, void *data, uint64_t bytes,
                            hd_request *request, struct hd_error *err)
{
    hd_request inner = 0;
    if (stream == OVERLAY_STREAM)
        return hd_fail(err, HD_E_INVALID, "stream %u is the overlay's own", stream);
    int32_t code = g->comm->inner->recv(g->inner, peer, stream, data, bytes, &inner, err);
    return pass(g, code, inner, request);
}

static int32_t overlay_progress(struct hd_comm *o, struct hd_error *err)
{
    int32_t moved = o->inner->progress(o->comm, err);
    if (moved < 0)
        return moved;
    for (struct hd_comm_group *g = o->groups; g; g = g->next)
        if (g->head)
            moved |= advance(g);
    return moved;
}

static int32_t overlay_test(struct hd_comm *o, hd_request request, int32_t *done, struct hd_error *err)
{
    struct op *op = hd__requests_find(&o->ops, request, err);
    int32_t code = HD_OK;
    if (!op)
        return HD_E_INVALID;
    if (op->passed) {
        code = o->inner->test(o->comm, op->inner, done, err);
        if (code != HD_OK || *done)
            release(o, op);
        return code;
    }
    *done = op->done;
    if (!op->done)
        return HD_OK;
    code = op->code;
    if (code != HD_OK && op->group) {
        if (err)
            err->peer = op->group->error.peer;
        hd_fail(err, code, "%s", op->group->error.message);
    } else if (code != HD_OK) {
        hd_fail(err, code, "the group was freed while the operation was under way");
    }
    release(o, op);
    return code;
}

/* A transport that can wait is asked to, no longer: it knows best who is late, and tells the others. */
static void fail_late(struct op *op)
{
    struct hd_comm_group *g = op->group;
    struct hd_error err = HD_ERROR_INIT;
    struct op *head = g->head;
    const struct hd_comm_ops *inner = g->comm->inner;
    if (inner->wait && head->n_pending) {
        int32_t code = inner->wait(g->comm->comm, head->pending[0].request, hd__now(), &err);
        head->pending[0] = head->pending[--head->n_pending];
        if (code != HD_OK)
            fail(g, &err);
        return;
    }
    err.peer = head->n_pending ? g->ranks[head->pending[0].peer] : -1;
    hd_fail(&err, HD_E_TIMEOUT, "collective %u (tag %llu) in group %s: no sign of rank %lld in time", head->call.coll,
            (unsigned long long)head->call.tag, g->name, (long long)err.peer);
    fail(g, &err);
}

static int32_t overlay_wait(struct hd_comm *o, hd_request request, double deadline, struct hd_error *err)
{
    struct op *op = hd__requests_find(&o->ops, request, err);
    int32_t done = 0, code;
    if (op && op->passed && o->inner->wait) {
        code = o->inner->wait(o->comm, op->inner, deadline, err);
        release(o, op);
        return code;
    }
    for (uint32_t idle = 0;; idle++) {
        code = overlay_test(o, request, &done, err);
        if (code != HD_OK || done)
            return code;
        code = overlay_progress(o, err);
        if (code < 0)
            return code;
        idle = code ? 0 : idle;
        hd__relax(idle);
        if (idle % 64 != 63 || hd__now() < deadline)
            continue;
        if (op->passed)
            return hd_fail(err, HD_E_TIMEOUT, "the transport did not complete an operation in time");
        if (op->group)
            fail_late(op);
    }
}

static void overlay_abort(struct hd_comm *o, const char *reason)
{
    o->inner->abort(o->comm, reason);
}

const struct hd_comm_ops hd__overlay_ops = {
    .struct_size = sizeof(struct hd_comm_ops),
    .close = overlay_close,
    .memory = overlay_memory,
    .group = overlay_group,
    .group_free = overlay_group_free,
    .collective = overlay_collective,
    .send = overlay_send,
    .recv = overlay_recv,
    .progress = overlay_progress,
    .test = overlay_test,
    .wait = overlay_wait,
    .abort = overlay_abort,
};
