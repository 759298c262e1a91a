#include "runtime/comm/hook.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "runtime/comm/algorithm_counts.h"
#include "runtime/comm/wrapper.h"
#include "runtime/rendezvous/store.h"

struct op {
    struct hd__wrapper_op base;
    struct hd_hook_op view; /* of the hook */
    int32_t held, reserved;
};

struct group {
    struct hd__wrapper_group base;
    struct hd_hook_group view;
    uint64_t seq; /* collectives so far */
};

struct hook {
    struct hd__wrapper base;
    struct hd_hook_place place;
    const struct hd_hook_ops *ops;
    const char *name;
    struct hd_hook *hook; /* the plug-in's */
    struct hd__flight *flight;
    const struct hd__flight_op *retracted; /* removed from the recorder during `begin` */
    uint64_t number;
    int32_t beginning, reserved;
};

#define CONTAINER(type, member, pointer) ((type *)((uintptr_t)(pointer)-offsetof(type, member)))

static struct hook *hook_of(const struct hd_hook_place *place)
{
    return CONTAINER(struct hook, place, place);
}

/* ---- hd_hook_api */

static const struct hd_hook_group *next_group(const struct hd_hook_place *place, const struct hd_hook_group *group)
{
    const struct hd__wrapper_group *next =
        group ? CONTAINER(struct group, view, group)->base.next : hook_of(place)->base.groups;
    return next ? &((const struct group *)next)->view : NULL;
}

static void each_op(const struct hd_hook_place *place, void (*visit)(void *user, const struct hd_hook_op *op),
                    void *user)
{
    const struct hd__request_pool *ops = &hook_of(place)->base.ops;
    for (uint32_t i = 0; i < ops->at.count; i++) {
        const struct op *op = ops->at.at[i];
        if (op->base.request.used)
            visit(user, &op->view);
    }
}

static void release(const struct hd_hook_place *place, const struct hd_hook_op *op)
{
    (void)place;
    CONTAINER(struct op, view, op)->held = 0;
}

static int32_t aborted(const struct hd_hook_place *place)
{
    return atomic_load(&hook_of(place)->base.aborted);
}

static void retract(const struct hd_hook_place *place)
{
    struct hook *h = hook_of(place);
    if (h->beginning && h->flight && !h->retracted)
        h->retracted = hd__comm_flight_retract(h->flight);
}

static void each_algorithm(const struct hd_hook_place *place,
                           void (*visit)(void *user, const char *group, uint32_t coll, const char *algorithm,
                                         uint64_t calls),
                           void *user)
{
    const struct hd__algorithm_counts *counts = hook_of(place)->base.below[0].counts;
    for (uint32_t i = 0; counts && i < counts->rows.count; i++) {
        const struct hd__algorithm_count *row = &counts->rows.at[i];
        visit(user, row->group, row->coll, row->algorithm, row->calls);
    }
}

static void reset_store(const struct hd_hook_place *place)
{
    hd__store_reset(hook_of(place)->base.world.store);
}

static const struct hd_hook_api api = {.struct_size = sizeof api,
                                       .next_group = next_group,
                                       .each_op = each_op,
                                       .release = release,
                                       .aborted = aborted,
                                       .retract = retract,
                                       .each_algorithm = each_algorithm,
                                       .reset_store = reset_store};

/* ---- flight recorder: has the call as the hook changed it */

static const struct hd__flight_op *changed_flight_op(struct hd__flight *flight, const struct hd__flight_op *before,
                                                     const struct hd__wrapper_op *op)
{
    const struct hd_comm_call *call = &op->call;
    const struct hd__wrapper_group *g = op->group;
    struct hd__flight_op *now = hd__arena_copy(&flight->arena, before, sizeof *before);
    if (hd__comm_is_message(call)) {
        now->count = call->count / hd_dtype_size(before->dtype);
        now->bytes = call->count;
    } else {
        now->dtype = call->dtype;
        now->redop = call->redop;
        now->root = call->coll == HD_COLL_BROADCAST || call->coll == HD_COLL_REDUCE ? call->root : -1;
        now->count = call->count;
        now->name = hd_coll_name(call->coll);
        for (struct hd__flight_channel *c = flight->channels; c; c = c->next)
            if (c->from < 0 && c->n == g->n && !strcmp(c->group, g->name))
                now->channel = c;
    }
    hd__comm_flight_hash_op(now);
    return now;
}

static void record_again(struct hook *h, const struct hd__wrapper_op *op, int changed)
{
    const struct hd__flight_op *before = h->retracted;
    h->retracted = NULL;
    if (changed && !before && h->flight)
        before = hd__comm_flight_retract(h->flight);
    if (before)
        hd__comm_flight_start(h->flight, changed ? changed_flight_op(h->flight, before, op) : before, hd__now());
}

/* A slot's answer, with a message where it gave none: of the hook, not of the transport around which it stands. */
static int32_t answer(const struct hook *h, const char *slot, int32_t code, int32_t most, struct hd_error *err)
{
    char whose[80];
    if (code >= 0 && code <= most) /* of each operation, and each time that a wait polls */
        return code;
    snprintf(whose, sizeof whose, "hook %s's", h->name);
    return hd__slot_failed(code, whose, slot, err);
}

/* ---- the wrapper */

static int32_t begin_in_hook(struct hook *h, struct op *op, struct hd_error *err)
{
    const struct hd_comm_call asked = op->base.call;
    const struct group *g = (const struct group *)op->base.group;
    h->beginning = 1;
    int32_t code = h->ops->begin(h->hook, &op->view, err);
    h->beginning = 0;
    if (op->view.group != &g->view) {
        struct group *other = CONTAINER(struct group, view, op->view.group);
        op->base.group = &other->base;
        op->view.seq = op->view.seq ? ++other->seq : 0;
    }
    record_again(h, &op->base, op->base.group != &g->base || memcmp(&asked, &op->base.call, sizeof asked));
    return code;
}

static int32_t hook_begin(struct hd__wrapper_op *base, struct hd_error *err)
{
    struct hook *h = (struct hook *)base->group->wrapper;
    struct op *op = (struct op *)base;
    struct group *g = (struct group *)base->group;
    op->held = 0;
    op->view = (struct hd_hook_op){.struct_size = sizeof op->view,
                                   .call = &base->call,
                                   .group = &g->view,
                                   .peer = base->peer,
                                   .stream = base->stream,
                                   .number = ++h->number,
                                   .began = hd__now()};
    if (!hd__comm_is_message(&base->call))
        op->view.seq = ++g->seq;
    int32_t code = h->ops->begin ? begin_in_hook(h, op, err) : HD_OK;
    if (code < 0)
        return answer(h, "begin", code, HD_HOOK_HOLD, err);
    if (code > HD_HOOK_HOLD)
        return hd_fail(err, HD_E_INVALID, "hook %s: begin returned %d: return HD_OK, HD_HOOK_HOLD or an HD_E_ code",
                       h->name, code);
    op->held = code == HD_HOOK_HOLD;
    return op->held || base->group->head ? HD__WRAPPER_QUEUE : HD_OK;
}

static int32_t hook_end(struct hd__wrapper_op *base, int32_t code, struct hd_error *err)
{
    struct hook *h = (struct hook *)base->group->wrapper;
    struct op *op = (struct op *)base;
    if (!h->ops->end)
        return code;
    op->view.ended = hd__now();
    return answer(h, "end", h->ops->end(h->hook, &op->view, code, err), HD_OK, err);
}

/* Starts the operation unless the hook holds it. */
static int32_t hook_advance(struct hd__wrapper_op *base, struct hd_error *err)
{
    if (atomic_load(&base->group->wrapper->aborted))
        return hd_fail(err, HD_E_CANCELLED, "%s of group %s was held back when the job ended",
                       hd_hook_coll_name(base->call.coll), base->group->name);
    if (((struct op *)base)->held)
        return 0;
    int32_t code = hd__comm_wrapper_pass_through(base, err);
    base->finished = code == HD_OK;
    return code == HD_OK ? 1 : code;
}

static int32_t hook_on_timeout(struct hd__wrapper_op *head, struct hd_error *err)
{
    return hd_fail(err, HD_E_TIMEOUT, "%s of group %s was held back by comm.hooks: %s until the deadline",
                   hd_hook_coll_name(head->call.coll), head->group->name, ((struct hook *)head->group->wrapper)->name);
}

static int32_t hook_group(struct hd__wrapper_group *base, const int32_t *ranks, struct hd_error *err)
{
    struct hook *h = (struct hook *)base->wrapper;
    struct group *g = (struct group *)base;
    const struct hd__comm *inner = &h->base.below[0];
    int32_t code = inner->ops.group(inner->comm, base->name, ranks, base->n, &base->inner_group, err);
    code = hd__comm_result(code, "group", base->inner_group, err);
    if (code != HD_OK)
        return code;
    base->home = inner;
    g->view = (struct hd_hook_group){.struct_size = sizeof g->view,
                                     .name = base->name,
                                     .ranks = base->ranks,
                                     .n = base->n,
                                     .me = base->me,
                                     .below = base->inner_group};
    return h->ops->group ? answer(h, "group", h->ops->group(h->hook, &g->view, err), HD_OK, err) : HD_OK;
}

static void hook_group_free(struct hd__wrapper_group *base)
{
    if (base->home && base->home->ops.group_free)
        base->home->ops.group_free(base->inner_group);
    ((struct group *)base)->view.below = NULL;
}

static int32_t hook_progress(struct hd__wrapper *base, struct hd_error *err)
{
    struct hook *h = (struct hook *)base;
    return answer(h, "progress", h->ops->progress(h->hook, err), INT32_MAX, err);
}

static void hook_leave(struct hd__wrapper *base)
{
    struct hook *h = (struct hook *)base;
    if (h->ops->leave)
        h->ops->leave(h->hook);
}

static void hook_finish(struct hd__wrapper *base)
{
    struct hook *h = (struct hook *)base;
    h->ops->close(h->hook);
}

static const struct hd__wrapper_kind hook_kind = {.op_bytes = sizeof(struct op),
                                                  .group_bytes = sizeof(struct group),
                                                  .max_inflight = 1,
                                                  .begin = hook_begin,
                                                  .advance = hook_advance,
                                                  .on_timeout = hook_on_timeout,
                                                  .end = hook_end,
                                                  .group = hook_group,
                                                  .group_free = hook_group_free,
                                                  .progress = hook_progress,
                                                  .leave = hook_leave,
                                                  .finish = hook_finish};

int32_t hd__comm_hook_wrap(struct hd__comm *transport, const struct hd_hook_ops *ops, const char *name,
                           const void *settings, const struct hd__hook_context *context, struct hd_error *err)
{
    struct hook *h;
    if (transport->n_hooks == HD__HOOKS_MAX)
        return hd_fail(err, HD_E_UNSUPPORTED, "comm.hooks: %s: more than %d hooks around one transport: remove some",
                       name, HD__HOOKS_MAX);
    h = hd__alloc(sizeof *h);
    h->base = (struct hd__wrapper){
        .kind = &hook_kind, .below = {*transport}, .n_below = 1, .world = *context->world, .polls = !!ops->progress};
    h->ops = ops;
    h->name = name;
    h->flight = context->flight;
    h->place = (struct hd_hook_place){.struct_size = sizeof h->place,
                                      .api = &api,
                                      .world = &h->base.world,
                                      .transport = context->transport,
                                      .folder = context->folder ? context->folder : ".",
                                      .below = &h->base.below[0].ops,
                                      .comm = h->base.below[0].comm,
                                      .stream = HD__STREAM_HOOKS + transport->n_hooks};
    int32_t code = ops->open(context->host, settings, &h->place, &h->hook, err);
    if (code != HD_OK) {
        free(h);
        return code;
    }
    hd__comm_wrapper_make_table(&h->base, transport->ops.caps, transport);
    transport->n_hooks++;
    return HD_OK;
}
