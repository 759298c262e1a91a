/* Operations: their numbers, progress, completion. */
#include <sched.h>
#include <time.h>

#include "../common/coarse_clock.h"
#include "internal.h"

enum { COMPLETIONS = 16, BATCHES = 4 };

double lf_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ---- operations */

struct lf_op *lf_op_new(struct hd_comm_group *g)
{
    struct hd_comm *c = g->comm;
    struct lf_op *op = rq_take(&c->ops);
    if (!op)
        return NULL;
    *op = (struct lf_op){.id = op->id, .group = g, .after = c->pending};
    if (c->pending)
        c->pending->before = op;
    c->pending = op;
    return op;
}

uint32_t lf_op_token(const struct lf_op *op)
{
    return op->id.index | (op->id.generation & ((1u << LF_TURN_BITS) - 1)) << LF_INDEX_BITS;
}

void lf_op_finish(struct lf_op *op, int32_t code)
{
    struct hd_comm *c = op->group->comm;
    for (struct lf_op **at = op->sending ? &op->flow->sends : &op->flow->recvs; *at; at = &(*at)->next)
        if (*at == op) {
            *at = op->next;
            break;
        }
    *(op->before ? &op->before->after : &c->pending) = op->after;
    if (op->after)
        op->after->before = op->before;
    lf_chunks_cancel(op);
    op->done = 1;
    op->code = code;
}

static int32_t release(struct hd_comm *c, struct lf_op *op, struct hd_error *err)
{
    int32_t code = op->code;
    if (code != HD_OK && op->group)
        hd_error_copy(err, &op->group->error);
    else if (code != HD_OK)
        hd_fail(err, code, "libfabric: the group was freed while the operation was under way");
    for (struct lf_op **at = &c->busy; op->busy && *at; at = &(*at)->busy_next)
        if (*at == op) {
            *at = op->busy_next;
            break;
        }
    rq_give(&c->ops, &op->id);
    return code;
}

void lf_ops_orphan(struct hd_comm_group *g)
{
    struct hd_comm *c = g->comm;
    for (struct lf_op *op = c->pending, *next; op; op = next) {
        next = op->after;
        if (op->group == g)
            lf_op_finish(op, HD_E_CANCELLED);
    }
    for (uint32_t i = 0; i < c->ops.n; i++) {
        struct lf_op *op = rq_at(&c->ops, i);
        if (op->group == g)
            op->group = NULL;
    }
}

/* ---- progress */

static void completed(struct hd_comm *c, struct lf_wire *wire, uint64_t bytes)
{
    switch (wire->kind) {
    case LF_RX: {
        struct lf_rx *rx = (struct lf_rx *)wire;
        lf_control_received(c, rx->data, bytes);
        rx->next = c->rx_idle;
        c->rx_idle = rx;
        return;
    }
    case LF_TX:
        c->tx_posted--;
        lf_tx_free(c, (struct lf_tx *)wire);
        return;
    default:
        lf_chunk_done(c, (struct lf_chunk *)wire, bytes);
    }
}

/* The provider gave an operation up. */
static void complete_error(struct hd_comm *c)
{
    struct fi_cq_err_entry e = {0};
    struct lf_wire *wire;
    int32_t rank = -1;
    if (fi_cq_readerr(c->cq, &e, 0) != 1 || !e.op_context)
        return;
    wire = e.op_context;
    if (wire->kind == LF_TX) {
        rank = ((struct lf_tx *)wire)->to;
    } else if (wire->kind == LF_CHUNK) {
        struct lf_chunk *chunk = (struct lf_chunk *)wire;
        if (chunk->op->id.generation == chunk->generation && !chunk->op->done)
            rank = chunk->op->group->member[chunk->op->peer].rank;
        chunk->op->inflight[chunk->number] = rank >= 0 ? NULL : chunk->op->inflight[chunk->number];
    }
    if (rank >= 0 && e.err != FI_ECANCELED)
        lf_peer_broke(c, rank, e.err);
    if (wire->kind == LF_TX) {
        c->tx_posted--;
        lf_tx_free(c, (struct lf_tx *)wire);
    } else if (wire->kind == LF_CHUNK) {
        lf_chunk_free(c, (struct lf_chunk *)wire);
    } else {
        ((struct lf_rx *)wire)->next = c->rx_idle;
        c->rx_idle = (struct lf_rx *)wire;
    }
}

static int read_completions(struct hd_comm *c)
{
    struct fi_cq_tagged_entry entry[COMPLETIONS];
    int moved = 0;
    for (int batch = 0; batch < BATCHES; batch++) {
        ssize_t n = fi_cq_read(c->cq, entry, COMPLETIONS);
        if (n == -FI_EAVAIL) {
            complete_error(c);
            moved = 1;
            continue;
        }
        for (ssize_t i = 0; i < n; i++)
            if (entry[i].op_context)
                completed(c, entry[i].op_context, entry[i].flags & FI_RECV ? entry[i].len : 0);
        moved |= n > 0;
        if (n < COMPLETIONS)
            break;
    }
    return moved;
}

int lf_advance(struct hd_comm *c)
{
    int moved;
    lf_ready_flush(c);
    moved = read_completions(c);
    lf_strangers(c);
    if (c->rx_idle)
        lf_rx_post(c);
    if (c->talking)
        moved |= lf_tx_post(c);
    if (c->busy)
        moved |= lf_chunks_post(c);
    return moved;
}

int32_t lf_progress(struct hd_comm *c, struct hd_error *err)
{
    (void)err; /* failures belong to the requests */
    if (!c->abort_told && lf_abort_poll(c))
        return 1;
    if (lf_advance(c)) {
        c->idle = 0;
        return 1;
    }
    if ((++c->idle & 63) == 0 && c->pending)
        lf_health(c);
    return 0;
}

int32_t lf_test(struct hd_comm *c, hd_request request, int32_t *done, struct hd_error *err)
{
    struct lf_op *op = rq_find(&c->ops, request, "libfabric", err);
    if (!op)
        return HD_E_INVALID;
    lf_ready_flush(c);
    *done = op->done;
    return op->done ? release(c, op, err) : HD_OK;
}

/* Ranks that share a core wait for each other: yield soon, nap in the end. */
static void relax(struct hd_comm *c, uint32_t turn)
{
    if (turn > (uint32_t)c->settings.spin || turn > 4000)
        rq_relax(turn);
}

int32_t lf_wait(struct hd_comm *c, hd_request request, double deadline, struct hd_error *err)
{
    struct lf_op *op = rq_find(&c->ops, request, "libfabric", err);
    struct hd_deadline end = hd_deadline_from(deadline, coarse_now());
    if (!op)
        return HD_E_INVALID;
    lf_ready_flush(c);
    for (uint32_t turn = 0; !op->done; turn++) {
        if (lf_progress(c, err)) {
            turn = 0;
            continue;
        }
        if (!op->done && (turn & 63) == 63 && hd_deadline_passed(&end, lf_now()))
            lf_fail_late(op);
        relax(c, turn);
    }
    return release(c, op, err);
}
