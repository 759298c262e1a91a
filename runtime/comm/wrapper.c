#include "runtime/comm/wrapper.h"

#include <stdatomic.h>
#include <stdlib.h>

static struct hd__wrapper *wrapper_of(struct hd_comm *comm)
{
    return (struct hd__wrapper *)comm;
}

/* ---- operations */

static int32_t finish_op(struct hd__wrapper_op *op, int32_t code, struct hd_error *err)
{
    struct hd__wrapper *w = op->group->wrapper;
    int32_t ended = w->kind->end ? w->kind->end(op, code, err) : code;
    if (op->code != HD_OK) { /* parts may be in flight: its memory stays until the transports below are closed */
        hd__comm_request_retire(&op->request);
    } else {
        if (w->kind->op_clear)
            w->kind->op_clear(op);
        hd__comm_request_give_back(&w->ops, &op->request);
    }
    return ended ? ended : code;
}

/* ---- queues */

/* Completes the whole queue with the group's first error. */
static void poison_group(struct hd__wrapper_group *g, const struct hd_error *err)
{
    if (g->error.code == HD_OK)
        g->error = *err;
    for (struct hd__wrapper_op *op = g->head, *next; op; op = next) {
        next = op->next;
        op->done = 1;
        op->code = g->error.code;
    }
    g->head = NULL;
    g->tail = &g->head;
}

static int32_t advance_head_ops(struct hd__wrapper_group *g)
{
    const struct hd__wrapper_kind *kind = g->wrapper->kind;
    struct hd__wrapper_op *op = g->head;
    int32_t moved = 0;
    for (uint32_t i = 0; op && i < kind->max_inflight; i++, op = op->next) {
        struct hd_error err = HD_ERROR_INIT;
        int32_t code = op->finished ? 0 : kind->advance(op, &err);
        if (code < 0) {
            poison_group(g, &err);
            return 1;
        }
        moved |= code;
    }
    return moved;
}

/* Removes finished operations from the head. 1: others are at the head now. */
static int pop_finished(struct hd__wrapper_group *g)
{
    const struct hd__wrapper_op *first = g->head;
    for (; g->head && g->head->finished; g->head = g->head->next)
        g->head->done = 1;
    g->tail = g->head ? g->tail : &g->head;
    return g->head && g->head != first;
}

static int32_t advance_group(struct hd__wrapper_group *g)
{
    int32_t moved = 0;
    do
        moved |= advance_head_ops(g);
    while (pop_finished(g));
    return moved;
}

static int32_t group_failed(const struct hd__wrapper_group *g, struct hd_error *err)
{
    if (g->error.code != HD_OK)
        hd_error_copy(err, &g->error);
    return g->error.code;
}

static int32_t enqueue(struct hd__wrapper_op *op, struct hd_error *err)
{
    struct hd__wrapper_group *g = op->group;
    int32_t code = group_failed(g, err);
    if (code != HD_OK)
        return code;
    *g->tail = op;
    g->tail = &op->next;
    advance_group(g);
    return op->code == HD_OK ? HD_OK : group_failed(g, err);
}

int32_t hd__comm_wrapper_pass_through(struct hd__wrapper_op *op, struct hd_error *err)
{
    struct hd__wrapper_group *g = op->group;
    const struct hd_comm_ops *ops = &g->home->ops;
    const struct hd_comm_call *call = &op->call;
    int32_t code;
    if (call->coll == HD_HOOK_SEND)
        code = ops->send(g->inner_group, op->peer, op->stream, call->send, call->count, &op->inner, err);
    else if (call->coll == HD_HOOK_RECV)
        code = ops->recv(g->inner_group, op->peer, op->stream, call->recv, call->count, &op->inner, err);
    else
        code = ops->collective(g->inner_group, call, &op->inner, err);
    op->below = code == HD_OK ? g->home : NULL;
    return hd__comm_done(code, hd_hook_coll_name(call->coll), err);
}

/* ---- slots: starting */

static int32_t start_op(struct hd_comm_group *group, const struct hd_comm_call *call, int32_t peer, uint32_t stream,
                        hd_request *request, struct hd_error *err)
{
    struct hd__wrapper_group *g = (struct hd__wrapper_group *)group;
    struct hd__wrapper_op *op = hd__comm_request_take(&g->wrapper->ops, g->wrapper->kind->op_bytes);
    /* fields of the kind keep the values of the record's last operation */
    *op = (struct hd__wrapper_op){.request = op->request, .group = g, .call = *call, .peer = peer, .stream = stream};
    int32_t code = g->wrapper->kind->begin(op, err);
    if (code >= 0)
        code = code == HD__WRAPPER_QUEUE ? enqueue(op, err) : hd__comm_wrapper_pass_through(op, err);
    if (code != HD_OK)
        return finish_op(op, code, err);
    *request = hd__comm_request_number(&op->request);
    return HD_OK;
}

static int32_t wrapper_collective(struct hd_comm_group *group, const struct hd_comm_call *call, hd_request *request,
                                  struct hd_error *err)
{
    return start_op(group, call, -1, 0, request, err);
}

static int32_t wrapper_send(struct hd_comm_group *group, int32_t peer, uint32_t stream, const void *data,
                            uint64_t bytes, hd_request *request, struct hd_error *err)
{
    struct hd_comm_call call = {
        .struct_size = sizeof call, .coll = HD_HOOK_SEND, .dtype = HD_U8, .root = -1, .send = data, .count = bytes};
    return start_op(group, &call, peer, stream, request, err);
}

static int32_t wrapper_recv(struct hd_comm_group *group, int32_t peer, uint32_t stream, void *data, uint64_t bytes,
                            hd_request *request, struct hd_error *err)
{
    struct hd_comm_call call = {
        .struct_size = sizeof call, .coll = HD_HOOK_RECV, .dtype = HD_U8, .root = -1, .recv = data, .count = bytes};
    return start_op(group, &call, peer, stream, request, err);
}

/* ---- slots: groups, memory, the end */

static void free_group(struct hd__wrapper_group *g)
{
    struct hd__wrapper *w = g->wrapper;
    struct hd_error err = HD_ERROR_INIT;
    hd_fail(&err, HD_E_CANCELLED, "group %s was freed while an operation was in flight", g->name);
    poison_group(g, &err);
    for (struct hd__wrapper_group **at = &w->groups; *at; at = &(*at)->next)
        if (*at == g) {
            *at = g->next;
            break;
        }
    for (uint32_t i = 0; i < w->ops.at.count; i++) { /* no wait will follow */
        struct hd__wrapper_op *op = w->ops.at.at[i];
        if (op->request.used && op->group == g)
            hd__comm_request_retire(&op->request);
    }
    if (w->kind->group_free)
        w->kind->group_free(g);
    else if (g->home && g->home->ops.group_free)
        g->home->ops.group_free(g->inner_group);
}

static void wrapper_group_free(struct hd_comm_group *group)
{
    if (group)
        free_group((struct hd__wrapper_group *)group);
}

static int32_t wrapper_group(struct hd_comm *comm, const char *name, const int32_t *ranks, int32_t n,
                             struct hd_comm_group **group, struct hd_error *err)
{
    struct hd__wrapper *w = wrapper_of(comm);
    struct hd__wrapper_group *g = hd__arena_alloc(&w->arena, w->kind->group_bytes);
    int32_t *job_ranks = hd__arena_alloc(&w->arena, (size_t)n * sizeof *job_ranks), code;
    for (int32_t i = 0; i < n; i++) {
        job_ranks[i] = hd_job_rank(&w->world, ranks[i]);
        g->me = ranks[i] == w->world.rank ? i : g->me;
    }
    g->wrapper = w;
    g->name = hd__arena_strdup(&w->arena, name);
    g->ranks = job_ranks;
    g->n = n;
    g->tail = &g->head;
    g->error = (struct hd_error)HD_ERROR_INIT;
    g->next = w->groups;
    w->groups = g;
    code = w->kind->group(g, ranks, err);
    if (code == HD_OK)
        *group = (struct hd_comm_group *)g;
    else
        free_group(g);
    return code;
}

static int32_t wrapper_memory(struct hd_comm *comm, size_t bytes, void **base, struct hd_error *err)
{
    struct hd__comm *last = &wrapper_of(comm)->below[wrapper_of(comm)->n_below - 1];
    return last->ops.memory(last->comm, bytes, base, err);
}

static void wrapper_close(struct hd_comm *comm)
{
    struct hd__wrapper *w = wrapper_of(comm);
    if (!w)
        return;
    while (w->groups)
        free_group(w->groups);
    if (w->kind->leave)
        w->kind->leave(w);
    for (uint32_t i = w->n_below; i-- > 0;)
        hd__comm_close(&w->below[i]);
    for (uint32_t i = 0; i < w->ops.at.count && w->kind->op_free; i++)
        w->kind->op_free(w->ops.at.at[i]);
    hd__comm_requests_free(&w->ops);
    if (w->kind->finish)
        w->kind->finish(w);
    hd__arena_free(&w->arena);
    free(w);
}

static void wrapper_abort(struct hd_comm *comm, const char *reason)
{
    struct hd__wrapper *w = wrapper_of(comm);
    atomic_store(&w->aborted, 1);
    for (uint32_t i = w->n_below; i-- > 0;)
        w->below[i].ops.abort(w->below[i].comm, reason);
}

/* ---- slots: progress, test, wait */

static int32_t wrapper_progress(struct hd_comm *comm, struct hd_error *err)
{
    struct hd__wrapper *w = wrapper_of(comm);
    int32_t moved = 0, code = 0;
    for (uint32_t i = w->n_below; i-- > 0 && code >= 0; moved |= code)
        code = hd__comm_moved(w->below[i].ops.progress(w->below[i].comm, err), err);
    if (code >= 0 && w->polls) {
        code = w->kind->progress(w, err);
        moved |= code;
    }
    if (code < 0)
        return code;
    for (struct hd__wrapper_group *g = w->groups; g; g = g->next)
        if (g->head)
            moved |= advance_group(g);
    return moved;
}

static int32_t wrapper_test(struct hd_comm *comm, hd_request request, int32_t *done, struct hd_error *err)
{
    struct hd__wrapper_op *op = hd__comm_request_find(&wrapper_of(comm)->ops, request, err);
    int32_t code = HD_OK;
    if (!op)
        return HD_E_INVALID;
    *done = op->done;
    if (op->below) {
        *done = 0;
        code = op->below->ops.test(op->below->comm, op->inner, done, err);
        code = hd__comm_done(code, "test", err);
    } else if (op->code != HD_OK) {
        code = group_failed(op->group, err);
    }
    return code != HD_OK || *done ? finish_op(op, code, err) : HD_OK;
}

static int32_t wait_below(struct hd__wrapper_op *op, double deadline, struct hd_error *err)
{
    const struct hd__comm *b = op->below;
    int32_t code = b->ops.wait ? b->ops.wait(b->comm, op->inner, deadline, err)
                               : hd_fail(err, HD_E_TIMEOUT, "the transport did not complete an operation in time");
    return finish_op(op, hd__comm_done(code, "wait", err), err);
}

/* All pending work is that of a single transport below. */
static int only_passthrough(const struct hd__wrapper *w)
{
    const struct hd__wrapper_group *g = w->groups;
    while (g && !g->head)
        g = g->next;
    return w->n_below == 1 && !w->polls && !g;
}

static int32_t wrapper_wait(struct hd_comm *comm, hd_request request, double deadline, struct hd_error *err)
{
    struct hd__wrapper *w = wrapper_of(comm);
    struct hd__wrapper_op *op = hd__comm_request_find(&w->ops, request, err);
    if (op && op->below && op->below->ops.wait && only_passthrough(w))
        return wait_below(op, deadline, err);
    struct hd_deadline end = hd_deadline_from(deadline, hd__now());
    for (uint32_t idle = 0;; idle++) {
        struct hd_error late = HD_ERROR_INIT;
        int32_t done = 0, code = wrapper_test(comm, request, &done, err);
        if (code != HD_OK || done)
            return code;
        code = wrapper_progress(comm, err);
        if (code < 0)
            return code;
        idle = code ? 0 : idle;
        hd__comm_backoff(idle);
        if (idle % 64 != 63 || !hd_deadline_passed(&end, hd__now()))
            continue;
        if (op->below)
            return wait_below(op, 0, err);
        if (op->group->head && w->kind->on_timeout(op->group->head, &late) != HD_OK)
            poison_group(op->group, &late);
    }
}

void hd__comm_wrapper_make_table(struct hd__wrapper *w, uint64_t caps, struct hd__comm *out)
{
    out->comm = (struct hd_comm *)w;
    out->ops = (struct hd_comm_ops){.struct_size = sizeof(struct hd_comm_ops),
                                    .caps = caps,
                                    .close = wrapper_close,
                                    .group = wrapper_group,
                                    .group_free = wrapper_group_free,
                                    .memory = w->below[w->n_below - 1].ops.memory ? wrapper_memory : NULL,
                                    .collective = wrapper_collective,
                                    .send = wrapper_send,
                                    .recv = wrapper_recv,
                                    .progress = wrapper_progress,
                                    .test = wrapper_test,
                                    .wait = wrapper_wait,
                                    .abort = wrapper_abort};
}
