#include "runtime/comm/wrapper.h"

#include <stdlib.h>

static struct hd__wrapper *wrapper_of(struct hd_comm *comm)
{
    return (struct hd__wrapper *)comm;
}

/* ---- operations */

void *hd__comm_wrapper_op_take(struct hd__wrapper_group *g)
{
    struct hd__wrapper_op *op = hd__comm_request_take(&g->layer->ops, g->layer->kind->op_bytes);
    op->next = NULL;
    op->group = g;
    op->below = NULL;
    op->finished = op->done = 0;
    op->code = HD_OK;
    return op;
}

static void release_op(struct hd__wrapper *l, struct hd__wrapper_op *op)
{
    if (op->code != HD_OK) { /* parts of it may be under way: its memory stays until the transports below close */
        hd__comm_request_retire(&op->request);
        return;
    }
    l->kind->op_clear(op);
    hd__comm_request_give_back(&l->ops, &op->request);
}

void hd__comm_wrapper_op_give_back(struct hd__wrapper_op *op)
{
    release_op(op->group->layer, op);
}

/* Poisons the group: everything in its queue completes with the first cause. */
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
    const struct hd__wrapper_kind *kind = g->layer->kind;
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

/* Those that are through leave. 1: others come up for them. */
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

int32_t hd__comm_wrapper_group_status(const struct hd__wrapper_group *g, struct hd_error *err)
{
    return g->error.code == HD_OK ? HD_OK : hd_fail(err, g->error.code, "%s", g->error.message);
}

int32_t hd__comm_wrapper_enqueue(struct hd__wrapper_op *op, hd_request *request, struct hd_error *err)
{
    struct hd__wrapper_group *g = op->group;
    *g->tail = op;
    g->tail = &op->next;
    advance_group(g);
    if (op->code != HD_OK) {
        release_op(g->layer, op);
        return hd__comm_wrapper_group_status(g, err);
    }
    *request = hd__comm_request_number(&op->request);
    return HD_OK;
}

/* ---- what passes through: requests below get numbers of ours */

static int32_t wrap_request(struct hd__wrapper_group *g, int32_t code, hd_request inner, hd_request *request)
{
    struct hd__wrapper_op *op;
    if (code != HD_OK)
        return code;
    op = hd__comm_wrapper_op_take(g);
    op->below = g->home;
    op->inner = inner;
    *request = hd__comm_request_number(&op->request);
    return HD_OK;
}

int32_t hd__comm_wrapper_pass_through(struct hd__wrapper_group *g, const struct hd_comm_call *call, hd_request *request,
                                      struct hd_error *err)
{
    hd_request inner = 0;
    int32_t code = g->home->ops.collective(g->inner_group, call, &inner, err);
    return wrap_request(g, code, inner, request);
}

static int32_t check_stream(const struct hd__wrapper_group *g, uint32_t stream, struct hd_error *err)
{
    if (g->layer->kind->first_reserved_stream && stream >= g->layer->kind->first_reserved_stream)
        return hd_fail(err, HD_E_INVALID, "stream %u is for collectives", stream);
    return HD_OK;
}

static int32_t wrapper_send(struct hd_comm_group *group, int32_t peer, uint32_t stream, const void *data,
                            uint64_t bytes, hd_request *request, struct hd_error *err)
{
    struct hd__wrapper_group *g = (struct hd__wrapper_group *)group;
    hd_request inner = 0;
    int32_t code = check_stream(g, stream, err);
    code = code ? code : g->home->ops.send(g->inner_group, peer, stream, data, bytes, &inner, err);
    return wrap_request(g, code, inner, request);
}

static int32_t wrapper_recv(struct hd_comm_group *group, int32_t peer, uint32_t stream, void *data, uint64_t bytes,
                            hd_request *request, struct hd_error *err)
{
    struct hd__wrapper_group *g = (struct hd__wrapper_group *)group;
    hd_request inner = 0;
    int32_t code = check_stream(g, stream, err);
    code = code ? code : g->home->ops.recv(g->inner_group, peer, stream, data, bytes, &inner, err);
    return wrap_request(g, code, inner, request);
}

/* ---- groups */

void hd__comm_wrapper_group_init(struct hd__wrapper *l, struct hd__wrapper_group *g, const char *name)
{
    g->layer = l;
    snprintf(g->name, sizeof g->name, "%s", name);
    g->tail = &g->head;
    g->error = (struct hd_error)HD_ERROR_INIT;
    g->next = l->groups;
    l->groups = g;
}

void hd__comm_wrapper_group_finish(struct hd__wrapper_group *g)
{
    struct hd_error err = HD_ERROR_INIT;
    hd_fail(&err, HD_E_CANCELLED, "group %s was freed while an operation was under way", g->name);
    poison_group(g, &err);
    for (struct hd__wrapper_group **at = &g->layer->groups; *at; at = &(*at)->next)
        if (*at == g) {
            *at = g->next;
            break;
        }
    for (uint32_t i = 0; i < g->layer->ops.at.count; i++) {
        struct hd__wrapper_op *op = g->layer->ops.at.at[i];
        op->group = op->group == g ? NULL : op->group;
    }
}

/* ---- slots */

static void wrapper_close(struct hd_comm *comm)
{
    struct hd__wrapper *l = wrapper_of(comm);
    if (!l)
        return;
    while (l->groups)
        l->kind->group_free((struct hd_comm_group *)l->groups);
    for (uint32_t i = l->n_below; i-- > 0;)
        hd__comm_close(&l->below[i]);
    for (uint32_t i = 0; i < l->ops.at.count; i++)
        l->kind->op_free(l->ops.at.at[i]);
    hd__comm_requests_free(&l->ops);
    if (l->kind->finish)
        l->kind->finish(l);
    free(l);
}

static void wrapper_group_free(struct hd_comm_group *group)
{
    if (group)
        ((struct hd__wrapper_group *)group)->layer->kind->group_free(group);
}

static int32_t wrapper_memory(struct hd_comm *comm, size_t bytes, void **base, struct hd_error *err)
{
    struct hd__comm *last = &wrapper_of(comm)->below[wrapper_of(comm)->n_below - 1];
    return last->ops.memory(last->comm, bytes, base, err);
}

static int32_t wrapper_progress(struct hd_comm *comm, struct hd_error *err)
{
    struct hd__wrapper *l = wrapper_of(comm);
    int32_t moved = 0;
    for (uint32_t i = l->n_below; i-- > 0;) {
        int32_t code = l->below[i].ops.progress(l->below[i].comm, err);
        if (code < 0)
            return code;
        moved |= code;
    }
    for (struct hd__wrapper_group *g = l->groups; g; g = g->next)
        if (g->head)
            moved |= advance_group(g);
    return moved;
}

static int32_t wrapper_test(struct hd_comm *comm, hd_request request, int32_t *done, struct hd_error *err)
{
    struct hd__wrapper *l = wrapper_of(comm);
    struct hd__wrapper_op *op = hd__comm_request_find(&l->ops, request, err);
    int32_t code;
    if (!op)
        return HD_E_INVALID;
    if (op->below) {
        code = op->below->ops.test(op->below->comm, op->inner, done, err);
        if (code != HD_OK || *done)
            release_op(l, op);
        return code;
    }
    *done = op->done;
    if (!op->done)
        return HD_OK;
    code = op->code;
    if (code != HD_OK && op->group && err)
        err->peer = op->group->error.peer;
    if (code != HD_OK)
        hd_fail(err, code, "%s",
                op->group ? op->group->error.message : "the group was freed while the operation was under way");
    release_op(l, op);
    return code;
}

static int32_t wait_below(struct hd__wrapper *l, struct hd__wrapper_op *op, double deadline, struct hd_error *err)
{
    const struct hd__comm *b = op->below;
    int32_t code = b->ops.wait ? b->ops.wait(b->comm, op->inner, deadline, err)
                               : hd_fail(err, HD_E_TIMEOUT, "the transport did not complete an operation in time");
    release_op(l, op);
    return code;
}

static void handle_timeout(struct hd__wrapper_group *g)
{
    struct hd_error err = HD_ERROR_INIT;
    if (g->layer->kind->on_timeout(g->head, &err) != HD_OK)
        poison_group(g, &err);
}

/* Nothing has to move but the one transport below. */
static int only_passthrough(const struct hd__wrapper *l)
{
    const struct hd__wrapper_group *g = l->groups;
    while (g && !g->head)
        g = g->next;
    return l->n_below == 1 && !g;
}

static int32_t wrapper_wait(struct hd_comm *comm, hd_request request, double deadline, struct hd_error *err)
{
    struct hd__wrapper *l = wrapper_of(comm);
    struct hd__wrapper_op *op = hd__comm_request_find(&l->ops, request, err);
    if (op && op->below && op->below->ops.wait && only_passthrough(l))
        return wait_below(l, op, deadline, err);
    for (uint32_t idle = 0;; idle++) {
        int32_t done = 0, code = wrapper_test(comm, request, &done, err);
        if (code != HD_OK || done)
            return code;
        code = wrapper_progress(comm, err);
        if (code < 0)
            return code;
        idle = code ? 0 : idle;
        hd__comm_backoff(idle);
        if (idle % 64 != 63 || hd__now() < deadline)
            continue;
        if (op->below)
            return wait_below(l, op, hd__now(), err);
        if (op->group && op->group->head)
            handle_timeout(op->group);
    }
}

static void wrapper_abort(struct hd_comm *comm, const char *reason)
{
    struct hd__wrapper *l = wrapper_of(comm);
    for (uint32_t i = l->n_below; i-- > 0;)
        l->below[i].ops.abort(l->below[i].comm, reason);
}

void hd__comm_wrapper_make_table(struct hd__wrapper *l, uint64_t caps, struct hd__comm *out)
{
    out->comm = (struct hd_comm *)l;
    out->ops = (struct hd_comm_ops){.struct_size = sizeof(struct hd_comm_ops),
                                    .caps = caps,
                                    .close = wrapper_close,
                                    .group = l->kind->group,
                                    .group_free = wrapper_group_free,
                                    .memory = l->below[l->n_below - 1].ops.memory ? wrapper_memory : NULL,
                                    .collective = l->kind->collective,
                                    .send = wrapper_send,
                                    .recv = wrapper_recv,
                                    .progress = wrapper_progress,
                                    .test = wrapper_test,
                                    .wait = wrapper_wait,
                                    .abort = wrapper_abort};
}
