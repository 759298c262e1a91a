/* The overlay: a transport's table made of another's send and recv, with collectives as schedules.
 *
 * Collectives of a group are done one after the other; some are under way at once, each on a stream of its own, so that the
 * network is busy while one of them turns around. Messages pass through. Where the inner
 * transport has collectives but no wait, only wait is added. */
#include <stdlib.h>

#include "core/comm/algorithms/schedule.h"
#include "core/comm/layer.h"
#include "core/comm/ran.h"

enum { AT_ONCE = 2 };

struct op {
    struct hd__layer_op base;
    struct hd_comm_call call;
    struct hd__schedule schedule;
    uint32_t at;     /* next step */
    uint32_t stream;
    uint64_t posted; /* messages so far */
    struct {
        hd_request request;
        uint64_t number; /* of the message, from 0 */
        int32_t peer;
    } *pending;
    uint32_t n_pending, pending_room;
};

struct hd_comm_group {
    struct hd__layer_group base;
    int32_t n, me;
    int32_t *ranks; /* of the job */
    uint32_t calls; /* of collectives */
};

struct hd_comm {
    struct hd__layer base;
};

static struct hd_comm_group *group_of(const struct op *op)
{
    return (struct hd_comm_group *)op->base.group;
}

/* ---- running a schedule */

static void add_pending(struct op *op, hd_request request, int32_t peer)
{
    if (op->n_pending == op->pending_room)
        op->pending = hd__array_grow(op->pending, &op->pending_room, op->n_pending + 1, sizeof *op->pending);
    op->pending[op->n_pending].request = request;
    op->pending[op->n_pending].number = op->posted++;
    op->pending[op->n_pending++].peer = peer;
}

static int32_t run_step(struct op *op, const struct hd__step *step, struct hd_error *err)
{
    struct hd_comm_group *g = group_of(op);
    const struct hd_comm_ops *inner = &g->base.home->ops;
    hd_request request;
    int32_t code = HD_OK;
    switch (step->kind) {
    case HD__STEP_SEND:
        code = inner->send(g->base.there, step->peer, op->stream, step->from, step->bytes, &request, err);
        break;
    case HD__STEP_RECV:
        code = inner->recv(g->base.there, step->peer, op->stream, step->to, step->bytes, &request, err);
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
    const struct hd__comm *inner = op->base.group->home;
    int32_t none = 1;
    for (uint32_t i = 0; i < op->n_pending;) {
        int32_t done = 0, code = inner->ops.test(inner->comm, op->pending[i].request, &done, err);
        if (code != HD_OK)
            return code;
        if (!done)
            none &= op->pending[i++].number >= messages;
        else
            op->pending[i] = op->pending[--op->n_pending];
    }
    return none;
}

static int32_t overlay_advance(struct hd__layer_op *head, struct hd_error *err)
{
    struct op *op = (struct op *)head;
    int32_t moved = 0;
    while (op->at < op->schedule.steps.count) {
        const struct hd__step *step = &op->schedule.steps.at[op->at];
        int32_t code = step->kind == HD__STEP_FENCE ? drain(op, step->bytes, err) : run_step(op, step, err);
        if (code < 0)
            return code;
        if (step->kind == HD__STEP_FENCE && code == 0)
            return moved;
        op->at++;
        moved = 1;
    }
    head->over = 1;
    return 1;
}

static int32_t overlay_late(struct hd__layer_op *head, struct hd_error *err)
{
    struct op *op = (struct op *)head;
    const struct hd_comm_group *g = group_of(op);
    const struct hd__comm *inner = g->base.home;
    if (inner->ops.wait && op->n_pending) {
        int32_t code = inner->ops.wait(inner->comm, op->pending[0].request, hd__now(), err);
        op->pending[0] = op->pending[--op->n_pending];
        return code;
    }
    err->peer = op->n_pending ? g->ranks[op->pending[0].peer] : -1;
    return hd_fail(err, HD_E_TIMEOUT, "collective %u (tag %llu) in group %s: no sign of rank %lld in time", op->call.coll,
                   (unsigned long long)op->call.tag, g->base.name, (long long)err->peer);
}

static void op_clear(struct hd__layer_op *op)
{
    hd__schedule_clear(&((struct op *)op)->schedule);
}

static void op_free(struct hd__layer_op *op)
{
    hd__schedule_free(&((struct op *)op)->schedule);
    free(((struct op *)op)->pending);
}

/* ---- slots */

static int32_t overlay_group(struct hd_comm *o, const char *name, const int32_t *ranks, int32_t n,
                             struct hd_comm_group **group, struct hd_error *err)
{
    const struct hd__comm *inner = &o->base.below[0];
    struct hd_comm_group *there, *g;
    int32_t code = n > 1024 ? hd_fail(err, HD_E_UNSUPPORTED, "group %s of %d ranks (1024 at most)", name, n)
                            : inner->ops.group(inner->comm, name, ranks, n, &there, err);
    if (code != HD_OK)
        return code;
    g = hd__alloc(sizeof *g);
    hd__layer_group_init(&o->base, &g->base, name);
    g->base.home = inner;
    g->base.there = there;
    g->n = n;
    g->ranks = hd__alloc((size_t)n * sizeof *ranks);
    for (int32_t i = 0; i < n; i++) {
        g->ranks[i] = hd_job_rank(&o->base.world, ranks[i]);
        g->me = ranks[i] == o->base.world.rank ? i : g->me;
    }
    *group = g;
    return HD_OK;
}

static void overlay_group_free(struct hd_comm_group *g)
{
    hd__layer_group_finish(&g->base);
    if (g->base.home->ops.group_free)
        g->base.home->ops.group_free(g->base.there);
    free(g->ranks);
    free(g);
}

static int32_t overlay_collective(struct hd_comm_group *g, const struct hd_comm_call *call, hd_request *request,
                                  struct hd_error *err)
{
    const struct hd__comm *inner = g->base.home;
    struct op *op;
    int32_t code;
    if (inner->ops.collective)
        return hd__layer_pass(&g->base, call, request, err);
    code = hd__layer_usable(&g->base, err);
    if (code != HD_OK)
        return code;
    op = hd__layer_op_new(&g->base);
    op->call = *call;
    op->at = op->n_pending = 0;
    op->posted = 0;
    code = hd__schedule_build(&op->schedule, inner->tuning, g->n, g->me, call, err);
    if (code != HD_OK) {
        hd__layer_op_drop(&op->base);
        return code;
    }
    op->stream = HD__STREAM_COLLECTIVES + g->calls++ % AT_ONCE;
    if (op->schedule.use)
        hd__ran_count(inner->ran, g->base.name, call->coll, op->schedule.use->name);
    return hd__layer_enqueue(&op->base, request, err);
}

static const struct hd__layer_kind overlay = {.op_bytes = sizeof(struct op),
                                              .own_stream = HD__STREAM_COLLECTIVES,
                                              .at_once = AT_ONCE,
                                              .advance = overlay_advance,
                                              .late = overlay_late,
                                              .op_clear = op_clear,
                                              .op_free = op_free,
                                              .group = overlay_group,
                                              .group_free = overlay_group_free,
                                              .collective = overlay_collective};

void hd__overlay_create(struct hd__comm *inner, const struct hd_world *world, struct hd__comm *out)
{
    struct hd_comm *o = hd__alloc(sizeof *o);
    o->base = (struct hd__layer){.kind = &overlay, .below = {*inner}, .n_below = 1, .world = *world};
    hd__layer_become(&o->base, inner->ops.caps, out);
}
