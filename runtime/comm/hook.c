/* The engine of all hooks: a table that passes on, requests of its own, and the order of what is held back. */
#include "runtime/comm/hook.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>

struct hd_comm {
    struct hd__hook hook;
    struct hd__hook_group *groups;
    struct hd__arena arena;
    struct hd__request_pool ops; /* of struct hd__hook_op */
    uint64_t number;
};

static const struct hd__hook_kind *const kinds[] = {&hd__comm_hook_check, &hd__comm_hook_trace, &hd__comm_hook_faults,
                                                    &hd__comm_hook_perf};

const struct hd__hook_kind *hd__comm_hook_at(size_t i)
{
    return i < HD__COUNT(kinds) ? kinds[i] : NULL;
}

const struct hd__hook_kind *hd__comm_hook_find(const char *name)
{
    for (size_t i = 0; i < HD__COUNT(kinds); i++)
        if (!strcmp(kinds[i]->name, name))
            return kinds[i];
    return NULL;
}

/* ---- for hooks */

struct hd__hook_group *hd__comm_hook_groups(struct hd__hook *hook)
{
    return hook->outer->groups;
}

void hd__comm_hook_each_op(struct hd__hook *hook, void (*fn)(void *user, struct hd__hook_op *op), void *user)
{
    for (uint32_t i = 0; i < hook->outer->ops.at.count; i++) {
        struct hd__hook_op *op = hook->outer->ops.at.at[i];
        if (op->request.used)
            fn(user, op);
    }
}

const char *hd__comm_hook_op_name(uint32_t what)
{
    return what == HD__HOOK_SEND ? "send" : what == HD__HOOK_RECV ? "recv" : hd_coll_name(what);
}

void hd__comm_hook_op_bytes(const struct hd__hook_op *op, uint64_t *sent, uint64_t *received)
{
    uint64_t one = op->call.count * hd_dtype_size(op->call.dtype), n = (uint64_t)op->group->n;
    *sent = *received = one;
    switch (op->what) {
    case HD__HOOK_SEND:
        *received = 0;
        break;
    case HD__HOOK_RECV:
        *sent = 0;
        break;
    case HD_COLL_ALL_GATHER:
        *received = n * one;
        break;
    case HD_COLL_REDUCE_SCATTER:
        *sent = n * one;
        break;
    case HD_COLL_ALL_TO_ALL:
        *sent = *received = n * one;
        break;
    case HD_COLL_BROADCAST:
        *sent = op->call.root == op->group->me ? one : 0;
        break;
    case HD_COLL_REDUCE:
        *received = op->call.root == op->group->me ? one : 0;
        break;
    case HD_COLL_BARRIER:
        *sent = *received = 0;
        break;
    }
}

const char *hd__comm_hook_output_path(const struct hd__hook *hook, const char *name, char out[512])
{
    const char *folder = hook->context.folder ? hook->context.folder : ".";
    mkdir(folder, 0777); /* the last part of it; what else is missing shows when the file is opened */
    snprintf(out, 512, "%.400s/%s-%s-rank%d.json", folder, name, hook->context.transport, hook->world.rank);
    return out;
}

/* ---- requests */

static struct hd__hook_op *op_new(struct hd_comm *c, struct hd__hook_group *g)
{
    struct hd__hook_op *op = hd__comm_request_take(&c->ops, sizeof *op);
    *op = (struct hd__hook_op){.request = op->request, .group = g, .number = ++c->number, .since = hd__now()};
    return op;
}

/* ---- starting, and holding back */

static int32_t start_inner(struct hd_comm *c, struct hd__hook_op *op, struct hd_error *err)
{
    const struct hd_comm_ops *inner = &c->hook.inner.ops;
    struct hd_comm_group *g = op->group->inner;
    if (op->what == HD__HOOK_SEND)
        return inner->send(g, op->peer, op->stream, op->call.send, op->call.count, &op->inner, err);
    if (op->what == HD__HOOK_RECV)
        return inner->recv(g, op->peer, op->stream, op->call.recv, op->call.count, &op->inner, err);
    return inner->collective(g, &op->call, &op->inner, err);
}

static void hold_back(struct hd__hook_op *op)
{
    op->held = 1;
    op->next = NULL;
    *op->group->held_tail = op;
    op->group->held_tail = &op->next;
}

/* Starts what is no longer held, in order, until one that is. What fails shows when it is waited for. */
static int32_t start_held(struct hd_comm *c)
{
    int32_t moved = 0;
    for (struct hd__hook_group *g = c->groups; g; g = g->next)
        while (g->held && g->held->held != 1) {
            struct hd__hook_op *op = g->held;
            struct hd_error err = HD_ERROR_INIT;
            g->held = op->next;
            if (!g->held)
                g->held_tail = &g->held;
            op->held = 0;
            op->code = start_inner(c, op, &err);
            moved = 1;
        }
    return moved;
}

static int32_t start_op(struct hd_comm *c, struct hd__hook_op *op, hd_request *request, struct hd_error *err)
{
    const struct hd__hook_kind *kind = c->hook.kind;
    int32_t code = kind->begin ? kind->begin(&c->hook, op, err) : HD_OK;
    if (code == HD_OK && op->group->held) { /* behind what is held, and free to go after it */
        hold_back(op);
        op->held = 2;
    } else if (code == HD__HOOK_HOLD) {
        hold_back(op);
    } else if (code == HD_OK) {
        code = start_inner(c, op, err);
    }
    if (code < 0) {
        if (kind->end)
            code = kind->end(&c->hook, op, code, err);
        hd__comm_request_give_back(&c->ops, &op->request);
        return code;
    }
    *request = hd__comm_request_number(&op->request);
    return HD_OK;
}

/* ---- slots */

static void hook_close(struct hd_comm *c)
{
    if (!c)
        return;
    for (struct hd__hook_group *g = c->groups; g; g = g->next)
        if (g->inner && c->hook.inner.ops.group_free)
            c->hook.inner.ops.group_free(g->inner);
    hd__comm_requests_free(&c->ops);
    if (c->hook.kind->leave)
        c->hook.kind->leave(&c->hook);
    hd__comm_close(&c->hook.inner);
    if (c->hook.kind->close)
        c->hook.kind->close(&c->hook);
    hd__arena_free(&c->arena);
    free(c);
}

static int32_t hook_memory(struct hd_comm *c, size_t bytes, void **base, struct hd_error *err)
{
    return c->hook.inner.ops.memory(c->hook.inner.comm, bytes, base, err);
}

static int32_t hook_group(struct hd_comm *c, const char *name, const int32_t *ranks, int32_t n,
                          struct hd_comm_group **group, struct hd_error *err)
{
    struct hd_comm_group *inner;
    int32_t code = c->hook.inner.ops.group(c->hook.inner.comm, name, ranks, n, &inner, err);
    if (code != HD_OK)
        return code;
    struct hd__hook_group *g = hd__arena_alloc(&c->arena, sizeof *g);
    *g = (struct hd__hook_group){.next = c->groups, .comm = c, .inner = inner, .n = n};
    g->name = hd__arena_strdup(&c->arena, name);
    g->ranks = hd__arena_copy(&c->arena, ranks, (size_t)n * sizeof *ranks);
    for (int32_t i = 0; i < n; i++)
        g->me = ranks[i] == c->hook.world.rank ? i : g->me;
    g->held_tail = &g->held;
    c->groups = g;
    code = c->hook.kind->group ? c->hook.kind->group(&c->hook, g, err) : HD_OK;
    *group = (struct hd_comm_group *)g;
    return code;
}

static void hook_group_free(struct hd_comm_group *group)
{
    struct hd__hook_group *g = (struct hd__hook_group *)group;
    if (!g)
        return;
    for (struct hd__hook_group **at = &g->comm->groups; *at; at = &(*at)->next)
        if (*at == g) {
            *at = g->next;
            break;
        }
    if (g->comm->hook.inner.ops.group_free)
        g->comm->hook.inner.ops.group_free(g->inner);
}

static int32_t hook_collective(struct hd_comm_group *group, const struct hd_comm_call *call, hd_request *request,
                               struct hd_error *err)
{
    struct hd__hook_group *g = (struct hd__hook_group *)group;
    struct hd__hook_op *op = op_new(g->comm, g);
    op->what = call->coll;
    op->call = *call;
    op->seq = ++g->seq;
    return start_op(g->comm, op, request, err);
}

static int32_t start_message(struct hd_comm_group *group, uint32_t what, int32_t peer, uint32_t stream,
                             const void *data, uint64_t bytes, hd_request *request, struct hd_error *err)
{
    struct hd__hook_group *g = (struct hd__hook_group *)group;
    struct hd__hook_op *op = op_new(g->comm, g);
    op->what = what;
    op->peer = peer;
    op->stream = stream;
    op->call = (struct hd_comm_call){.struct_size = sizeof op->call, .dtype = HD_U8, .count = bytes, .root = -1};
    *(what == HD__HOOK_SEND ? &op->call.send : (const void **)&op->call.recv) = data;
    return start_op(g->comm, op, request, err);
}

static int32_t hook_send(struct hd_comm_group *group, int32_t peer, uint32_t stream, const void *data, uint64_t bytes,
                         hd_request *request, struct hd_error *err)
{
    return start_message(group, HD__HOOK_SEND, peer, stream, data, bytes, request, err);
}

static int32_t hook_recv(struct hd_comm_group *group, int32_t peer, uint32_t stream, void *data, uint64_t bytes,
                         hd_request *request, struct hd_error *err)
{
    return start_message(group, HD__HOOK_RECV, peer, stream, data, bytes, request, err);
}

static int32_t hook_progress(struct hd_comm *c, struct hd_error *err)
{
    int32_t moved = c->hook.inner.ops.progress(c->hook.inner.comm, err), code = HD_OK;
    if (moved >= 0 && c->hook.kind->progress)
        code = c->hook.kind->progress(&c->hook, err);
    return moved < 0 ? moved : code < 0 ? code : moved | code | start_held(c);
}

static int32_t finish_op(struct hd_comm *c, struct hd__hook_op *op, int32_t code, struct hd_error *err)
{
    if (c->hook.kind->end)
        code = c->hook.kind->end(&c->hook, op, code, err);
    hd__comm_request_give_back(&c->ops, &op->request);
    return code;
}

static int32_t hook_test(struct hd_comm *c, hd_request request, int32_t *done, struct hd_error *err)
{
    struct hd__hook_op *op = hd__comm_request_find(&c->ops, request, err);
    int32_t code;
    if (!op)
        return HD_E_INVALID;
    *done = 0;
    if (op->held && atomic_load(&c->hook.aborted))
        return finish_op(c, op,
                         hd_fail(err, HD_E_CANCELLED, "%s of group %s was held back when the job ended",
                                 hd__comm_hook_op_name(op->what), op->group->name),
                         err);
    if (op->held)
        return HD_OK;
    if (op->code != HD_OK)
        return finish_op(c, op, hd_fail(err, op->code, "an operation that was held back could not be started"), err);
    code = c->hook.inner.ops.test(c->hook.inner.comm, op->inner, done, err);
    return code != HD_OK || *done ? finish_op(c, op, code, err) : HD_OK;
}

static int32_t hook_wait(struct hd_comm *c, hd_request request, double deadline, struct hd_error *err)
{
    struct hd__hook_op *op = hd__comm_request_find(&c->ops, request, err);
    int32_t done = 0, code;
    if (!op)
        return HD_E_INVALID;
    if (!op->held && !c->hook.kind->progress) {
        code = c->hook.inner.ops.wait(c->hook.inner.comm, op->inner, deadline, err);
        return finish_op(c, op, code, err);
    }
    for (uint32_t idle = 0; hd__now() < deadline; idle++) {
        code = hook_test(c, request, &done, err);
        if (code != HD_OK || done)
            return code;
        code = hook_progress(c, err);
        if (code < 0)
            return code;
        idle = code ? 0 : idle;
        hd__comm_backoff(idle);
    }
    if (!op->held) { /* the transport knows best whom it misses */
        code = c->hook.inner.ops.wait(c->hook.inner.comm, op->inner, deadline, err);
        return finish_op(c, op, code, err);
    }
    return hd_fail(err, HD_E_TIMEOUT, "%s of group %s was held back by comm.hooks: %s until the deadline",
                   hd__comm_hook_op_name(op->what), op->group->name, c->hook.kind->name);
}

static void hook_abort(struct hd_comm *c, const char *reason)
{
    atomic_store(&c->hook.aborted, 1);
    c->hook.inner.ops.abort(c->hook.inner.comm, reason);
}

int32_t hd__comm_hook_wrap(struct hd__comm *transport, const struct hd__hook_kind *kind, const void *settings,
                           const struct hd__hook_context *place, struct hd_error *err)
{
    struct hd_comm *c = hd__alloc(sizeof *c);
    int32_t code;
    c->hook = (struct hd__hook){
        .kind = kind, .settings = settings, .context = *place, .world = *place->world, .inner = *transport, .outer = c};
    code = kind->open ? kind->open(&c->hook, err) : HD_OK;
    if (code != HD_OK) {
        free(c);
        return code;
    }
    transport->comm = c;
    transport->ops = (struct hd_comm_ops){
        .struct_size = sizeof transport->ops,
        .caps = transport->ops.caps,
        .close = hook_close,
        .memory = transport->ops.memory ? hook_memory : NULL,
        .group = hook_group,
        .group_free = hook_group_free,
        .collective = hook_collective,
        .send = hook_send,
        .recv = hook_recv,
        .progress = hook_progress,
        .test = hook_test,
        .wait = hook_wait,
        .abort = hook_abort,
    };
    return HD_OK;
}
