/* Software collectives over the send and recv of a transport: each runs a plan (algorithms/plan.h).
 *
 * Collectives of a group complete in order; MAX_INFLIGHT run concurrently, each on its own stream, which hides
 * latency. At a fence, receives behind it are posted early where their buffer is free: a transport whose senders
 * need a posted receive (libfabric) can then send at once. Messages pass through. A transport with collectives but
 * no wait only gets wait. */
#include <stdlib.h>

#include "core/base/dtype.h"
#include "runtime/comm/algorithm_counts.h"
#include "runtime/comm/algorithms/plan.h"
#include "runtime/comm/wrapper.h"

/* collectives in flight; plan steps examined, and receives posted, at a fence */
enum { MAX_INFLIGHT = 2, LOOKAHEAD_STEPS = 24, MAX_EARLY_RECVS = 8 };

struct op {
    struct hd__wrapper_op base; /* stream: of its messages */
    struct hd__coll_plan plan;
    uint32_t at;       /* next step */
    uint32_t examined; /* the last fence with early receives */
    uint64_t messages; /* before the next step */
    struct {
        hd_request request;
        uint64_t number; /* of the message, from 0 */
        uint32_t step, reserved;
    } * pending;
    uint32_t n_pending, pending_room;
};

struct group {
    struct hd__wrapper_group base;
    uint32_t calls, reserved; /* of collectives */
};

/* ---- running a plan */

/* Runs step `at`; `number`: of the op's messages before it. */
static int32_t run_step(struct op *op, uint32_t at, uint64_t number, struct hd_error *err)
{
    const struct hd__coll_step *step = &op->plan.steps.at[at];
    const struct hd__wrapper_group *g = op->base.group;
    const struct hd_comm_ops *inner = &g->home->ops;
    hd_request request;
    int32_t code = HD_OK;
    switch (step->kind) {
    case HD__COLL_STEP_SEND:
        code = inner->send(g->inner_group, step->peer, op->base.stream, step->from, step->bytes, &request, err);
        code = hd__comm_done(code, "send", err);
        break;
    case HD__COLL_STEP_RECV:
        code = inner->recv(g->inner_group, step->peer, op->base.stream, step->to, step->bytes, &request, err);
        code = hd__comm_done(code, "recv", err);
        break;
    case HD__COLL_STEP_COPY:
        memmove(step->to, step->from, step->bytes);
        return HD_OK;
    case HD__COLL_STEP_WIDEN:
        hd__to_f32(step->dtype, step->from, step->to, step->bytes);
        return HD_OK;
    case HD__COLL_STEP_NARROW:
        hd__from_f32(step->dtype, step->from, step->to, step->bytes);
        return HD_OK;
    default:
        hd__comm_reduce(step->to, op->plan.sources.at + step->first, (int32_t)step->n, g->n, step->bytes, step->dtype,
                        step->redop);
        return HD_OK;
    }
    if (code != HD_OK)
        return code;
    if (op->n_pending == op->pending_room)
        op->pending = hd__array_grow(op->pending, &op->pending_room, op->n_pending + 1, sizeof *op->pending);
    op->pending[op->n_pending].request = request;
    op->pending[op->n_pending].number = number;
    op->pending[op->n_pending++].step = at;
    return HD_OK;
}

/* ---- early receives */

static int overlap(const uint8_t *a, uint64_t a_bytes, const void *b, uint64_t b_bytes)
{
    const uint8_t *at = b;
    return a < at + b_bytes && at < a + a_bytes;
}

/* Does the step access the `bytes` at `at`? */
static int touches_memory(const struct hd__coll_plan *s, const struct hd__coll_step *step, const uint8_t *at,
                          uint64_t bytes)
{
    size_t esize = hd_dtype_size(step->dtype), wide = sizeof(float);
    int used;
    switch (step->kind) {
    case HD__COLL_STEP_SEND:
        return overlap(at, bytes, step->from, step->bytes);
    case HD__COLL_STEP_RECV:
    case HD__COLL_STEP_POSTED:
        return overlap(at, bytes, step->to, step->bytes);
    case HD__COLL_STEP_COPY:
        return overlap(at, bytes, step->from, step->bytes) || overlap(at, bytes, step->to, step->bytes);
    case HD__COLL_STEP_WIDEN:
        return overlap(at, bytes, step->from, step->bytes * esize) || overlap(at, bytes, step->to, step->bytes * wide);
    case HD__COLL_STEP_NARROW:
        return overlap(at, bytes, step->from, step->bytes * wide) || overlap(at, bytes, step->to, step->bytes * esize);
    case HD__COLL_STEP_REDUCE:
        used = overlap(at, bytes, step->to, step->bytes * esize);
        for (uint32_t k = 0; k < step->n && !used; k++)
            used = overlap(at, bytes, s->sources.at[step->first + k], step->bytes * esize);
        return used;
    default:
        return 0;
    }
}

/* May step `at`, a receive, be posted before the steps from op->at on? */
static int is_recv_safe(const struct op *op, uint32_t at)
{
    const struct hd__coll_step *step = &op->plan.steps.at[at];
    for (uint32_t i = 0; i < op->n_pending; i++)
        if (touches_memory(&op->plan, &op->plan.steps.at[op->pending[i].step], step->to, step->bytes))
            return 0;
    for (uint32_t i = op->at; i < at; i++)
        if (touches_memory(&op->plan, &op->plan.steps.at[i], step->to, step->bytes))
            return 0;
    return 1;
}

/* Posts receives in order, since messages match in order, until one is not safe. */
static int32_t post_early(struct op *op, struct hd_error *err)
{
    uint32_t last = HD__MIN(op->at + LOOKAHEAD_STEPS, op->plan.steps.count), early = 0;
    uint64_t number = op->messages;
    op->examined = op->at;
    for (uint32_t i = 0; i < op->n_pending; i++)
        early += op->plan.steps.at[op->pending[i].step].kind == HD__COLL_STEP_POSTED;
    for (uint32_t i = op->at; i < last && early < MAX_EARLY_RECVS; i++) {
        struct hd__coll_step *step = &op->plan.steps.at[i];
        if (step->kind == HD__COLL_STEP_RECV) {
            int32_t code = is_recv_safe(op, i) ? run_step(op, i, number, err) : 1;
            if (code)
                return code < 0 ? code : HD_OK;
            step->kind = HD__COLL_STEP_POSTED;
            early++;
        }
        number += step->kind == HD__COLL_STEP_SEND || step->kind == HD__COLL_STEP_POSTED;
    }
    return HD_OK;
}

/* 1: the first `messages` are complete; 0: not yet; or an error. */
static int32_t test_messages(struct op *op, uint64_t messages, struct hd_error *err)
{
    const struct hd__comm *inner = op->base.group->home;
    int32_t none = 1;
    for (uint32_t i = 0; i < op->n_pending;) {
        int32_t done = 0, code = inner->ops.test(inner->comm, op->pending[i].request, &done, err);
        code = hd__comm_done(code, "test", err);
        if (code != HD_OK)
            return code;
        if (!done)
            none &= op->pending[i++].number >= messages;
        else
            op->pending[i] = op->pending[--op->n_pending];
    }
    return none;
}

static int32_t software_advance(struct hd__wrapper_op *head, struct hd_error *err)
{
    struct op *op = (struct op *)head;
    int32_t moved = 0;
    while (op->at < op->plan.steps.count) {
        const struct hd__coll_step *step = &op->plan.steps.at[op->at];
        int is_message =
            step->kind == HD__COLL_STEP_SEND || step->kind == HD__COLL_STEP_RECV || step->kind == HD__COLL_STEP_POSTED;
        int32_t code = step->kind == HD__COLL_STEP_FENCE ? test_messages(op, step->bytes, err) : HD_OK;
        if (step->kind != HD__COLL_STEP_FENCE && step->kind != HD__COLL_STEP_POSTED)
            code = run_step(op, op->at, op->messages, err);
        if (step->kind == HD__COLL_STEP_FENCE && code == 0 && op->examined != op->at)
            code = post_early(op, err);
        if (code < 0)
            return code;
        if (step->kind == HD__COLL_STEP_FENCE && code == 0)
            return moved;
        op->messages += (uint64_t)is_message;
        op->at++;
        moved = 1;
    }
    head->finished = 1;
    return 1;
}

static int32_t software_on_timeout(struct hd__wrapper_op *head, struct hd_error *err)
{
    struct op *op = (struct op *)head;
    const struct hd__wrapper_group *g = head->group;
    const struct hd__comm *inner = g->home;
    uint32_t oldest = 0; /* later ones may be late only because of it */
    for (uint32_t i = 1; i < op->n_pending; i++)
        oldest = op->pending[i].number < op->pending[oldest].number ? i : oldest;
    if (inner->ops.wait && op->n_pending) {
        int32_t code = inner->ops.wait(inner->comm, op->pending[oldest].request, 0, err);
        code = hd__comm_done(code, "wait", err);
        op->pending[oldest] = op->pending[--op->n_pending];
        return code;
    }
    err->peer = op->n_pending ? g->ranks[op->plan.steps.at[op->pending[oldest].step].peer] : -1;
    return hd_fail(err, HD_E_TIMEOUT, "%s (tag %llu) in group %s: no sign of rank %lld in time",
                   hd_coll_name(head->call.coll), (unsigned long long)head->call.tag, g->name, (long long)err->peer);
}

static void op_clear(struct hd__wrapper_op *op)
{
    hd__comm_plan_clear(&((struct op *)op)->plan);
}

static void op_free(struct hd__wrapper_op *op)
{
    hd__comm_plan_free(&((struct op *)op)->plan);
    free(((struct op *)op)->pending);
}

/* ---- the wrapper */

static int32_t software_begin(struct hd__wrapper_op *base, struct hd_error *err)
{
    struct op *op = (struct op *)base;
    struct group *g = (struct group *)base->group;
    const struct hd__comm *inner = base->group->home;
    if (hd__comm_is_message(&base->call))
        return base->stream < HD__STREAM_COLLECTIVES
                   ? HD_OK
                   : hd_fail(err, HD_E_INVALID, "stream %u is for collectives", base->stream);
    if (inner->ops.collective)
        return HD_OK;
    op->at = op->n_pending = op->examined = 0;
    op->messages = 0;
    int32_t code = hd__comm_plan_build(&op->plan, inner->tuning, g->base.n, g->base.me, &base->call, err);
    if (code != HD_OK)
        return code;
    base->stream = HD__STREAM_COLLECTIVES + g->calls++ % MAX_INFLIGHT;
    if (op->plan.use)
        hd__comm_count_algorithm(inner->counts, g->base.name, base->call.coll, op->plan.use->name);
    return HD__WRAPPER_QUEUE;
}

static int32_t software_group(struct hd__wrapper_group *g, const int32_t *ranks, struct hd_error *err)
{
    const struct hd__comm *inner = &g->wrapper->below[0];
    int32_t code = inner->ops.group(inner->comm, g->name, ranks, g->n, &g->inner_group, err);
    code = hd__comm_result(code, "group", g->inner_group, err);
    g->home = code == HD_OK ? inner : NULL;
    return code;
}

static const struct hd__wrapper_kind software_kind = {.op_bytes = sizeof(struct op),
                                                      .group_bytes = sizeof(struct group),
                                                      .max_inflight = MAX_INFLIGHT,
                                                      .begin = software_begin,
                                                      .advance = software_advance,
                                                      .on_timeout = software_on_timeout,
                                                      .op_clear = op_clear,
                                                      .op_free = op_free,
                                                      .group = software_group};

void hd__comm_software_create(struct hd__comm *inner, const struct hd_world *world, struct hd__comm *out)
{
    struct hd__wrapper *w = hd__alloc(sizeof *w);
    *w = (struct hd__wrapper){.kind = &software_kind, .below = {*inner}, .n_below = 1, .world = *world};
    hd__comm_wrapper_make_table(w, inner->ops.caps, out);
}
