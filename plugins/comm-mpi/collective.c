/* A call -> MPI's requests, and what remains to be done when they have completed. What exceeds `largest` elements is
 * cut: data that only moves becomes one element of a larger type, sums become several sums. */
#include "internal.h"

/* A reduction's buffers: the caller's, or wider ones of ours. */
struct sum {
    const uint8_t *in;
    uint8_t *out;
    struct cm_rule rule;
    size_t esize;
    uint64_t count;
    int32_t root, in_place;
};

const char *cm_call_text(const struct hd_comm_call *call, char out[160])
{
    snprintf(out, 160, "%s of %llu %s (tag %llu)", hd_coll_name(call->coll), (unsigned long long)call->count,
             hd_dtype_name(call->dtype), (unsigned long long)call->tag);
    return out;
}

int cm_reduces(uint32_t coll)
{
    return coll == HD_COLL_ALL_REDUCE || coll == HD_COLL_REDUCE_SCATTER || coll == HD_COLL_REDUCE;
}

static int32_t check(const struct cm_group *g, const struct hd_comm_call *call, struct hd_error *err)
{
    if (call->coll < HD_COLL_ALL_REDUCE || call->coll > HD_COLL_BARRIER)
        return hd_fail(err, HD_E_UNSUPPORTED, "mpi: there is no collective %u", call->coll);
    if (call->coll == HD_COLL_BARRIER)
        return HD_OK;
    if (call->dtype < HD_F32 || call->dtype > HD_U8)
        return hd_fail(err, HD_E_UNSUPPORTED, "mpi: dtype %u cannot travel", call->dtype);
    if (cm_reduces(call->coll) && (call->redop < HD_SUM || call->redop > HD_AVG))
        return hd_fail(err, HD_E_UNSUPPORTED, "mpi: there is no reduction %u", call->redop);
    if ((call->coll == HD_COLL_BROADCAST || call->coll == HD_COLL_REDUCE) && (call->root < 0 || call->root >= g->n))
        return hd_fail(err, HD_E_INVALID, "mpi: root %d in group %s of %d", call->root, g->name, g->n);
    return HD_OK;
}

/* ---- data that moves */

static int move(struct cm_op *op, uint64_t count, MPI_Datatype type, int n)
{
    const struct hd_comm_call *c = &op->call;
    const struct cm_group *g = op->group;
    const uint8_t *send = c->send;
    uint8_t *recv = c->recv;
    uint64_t bytes = count * hd_dtype_size(c->dtype);
    MPI_Request *request = cm_op_request(op);
    if (!request)
        return MPI_ERR_NO_MEM;
    if (c->coll == HD_COLL_ALL_GATHER)
        return MPI_Iallgather(send == recv + (uint64_t)g->me * bytes ? MPI_IN_PLACE : send, n, type, recv, n, type,
                              g->mpi, request);
    if (c->coll == HD_COLL_ALL_TO_ALL)
        return MPI_Ialltoall(send, n, type, recv, n, type, g->mpi, request);
    if (g->me == c->root && recv && recv != send)
        op->after = (struct cm_after){.from = send, .to = recv, .bytes = bytes};
    return MPI_Ibcast(g->me == c->root ? (void *)(uintptr_t)send : recv, n, type, c->root, g->mpi, request);
}

static int start_move(struct cm_op *op)
{
    MPI_Datatype type;
    int n, is_new,
        code =
            cm_type(op->call.count, cm_element(op->call.dtype), op->group->comm->settings.largest, &n, &type, &is_new);
    if (code != MPI_SUCCESS)
        return code;
    code = move(op, op->call.count, type, n);
    if (is_new)
        MPI_Type_free(&type); /* lives on while a request uses it */
    return code;
}

/* ---- sums */

/* Sums of `count` elements at `at`, for all or (root >= 0) for one. */
static int start_part(struct cm_op *op, const struct sum *s, uint64_t in_at, uint64_t out_at, int32_t root)
{
    uint64_t largest = (uint64_t)op->group->comm->settings.largest;
    for (uint64_t at = 0; at < s->count; at += largest) {
        const void *in = s->in + (in_at + at) * s->esize;
        void *out = s->out ? s->out + (out_at + at) * s->esize : NULL;
        int n = (int)CM_MIN(largest, s->count - at), code;
        MPI_Request *request = cm_op_request(op);
        if (!request)
            return MPI_ERR_NO_MEM;
        if (root < 0)
            code = MPI_Iallreduce(s->in_place ? MPI_IN_PLACE : in, out, n, s->rule.type, s->rule.op, op->group->mpi,
                                  request);
        else
            code = MPI_Ireduce(s->in_place && root == op->group->me ? MPI_IN_PLACE : in,
                               root == op->group->me ? out : NULL, n, s->rule.type, s->rule.op, root, op->group->mpi,
                               request);
        if (code != MPI_SUCCESS)
            return code;
    }
    return MPI_SUCCESS;
}

static int start_scatter(struct cm_op *op, const struct sum *s)
{
    int code = MPI_SUCCESS;
    MPI_Request *request;
    if (s->count > (uint64_t)op->group->comm->settings.largest) {
        for (int32_t i = 0; i < op->group->n && code == MPI_SUCCESS; i++)
            code = start_part(op, s, (uint64_t)i * s->count, 0, i);
        return code;
    }
    if (!(request = cm_op_request(op)))
        return MPI_ERR_NO_MEM;
    return MPI_Ireduce_scatter_block(s->in, s->out, (int)s->count, s->rule.type, s->rule.op, op->group->mpi, request);
}

/* Numbers in the wider type, in memory of ours: the inputs, and behind them room for what is scattered. */
static int widen(struct cm_op *op, struct sum *s, uint32_t wide)
{
    const struct hd_comm_call *c = &op->call;
    int scatters = c->coll == HD_COLL_REDUCE_SCATTER;
    uint64_t inputs = scatters ? c->count * (uint64_t)op->group->n : c->count, all = inputs + (scatters ? c->count : 0);
    uint8_t *own = op->group->comm->host->alloc(CM_MAX(all, 1) * cm_size(wide));
    if (!own)
        return MPI_ERR_NO_MEM;
    cm_widen(own, c->send, c->dtype, inputs);
    s->esize = cm_size(wide);
    s->rule = cm_rule(wide, c->redop);
    s->in = own;
    s->out = scatters ? own + inputs * s->esize : own;
    s->in_place = !scatters;
    op->after = (struct cm_after){.scratch = own,
                                  .from = s->out,
                                  .to = c->recv,
                                  .count = c->count,
                                  .dtype = c->dtype,
                                  .widened = 1,
                                  .divide = c->redop == HD_AVG};
    return MPI_SUCCESS;
}

static int narrow(struct cm_op *op, struct sum *s)
{
    const struct hd_comm_call *c = &op->call;
    s->esize = hd_dtype_size(c->dtype);
    s->rule = cm_rule(c->dtype, c->redop);
    s->in = c->send;
    s->out = c->recv;
    s->in_place = c->send == c->recv && c->coll != HD_COLL_REDUCE_SCATTER;
    op->after = (struct cm_after){.to = c->recv, .count = c->count, .dtype = c->dtype, .divide = s->rule.divide};
    /* MPI scatters into the middle of its input in no case. */
    if (c->coll == HD_COLL_REDUCE_SCATTER && s->out >= s->in &&
        s->out < s->in + c->count * (uint64_t)op->group->n * s->esize) {
        op->after.bytes = c->count * s->esize;
        op->after.from = op->after.scratch = s->out = op->group->comm->host->alloc(op->after.bytes);
        return s->out ? MPI_SUCCESS : MPI_ERR_NO_MEM;
    }
    return MPI_SUCCESS;
}

static int start_sum(struct cm_op *op)
{
    const struct hd_comm_call *c = &op->call;
    uint32_t wide = cm_wider(c->dtype, c->redop, op->group->comm->settings.halves);
    struct sum s = {.count = c->count};
    int code = wide ? widen(op, &s, wide) : narrow(op, &s);
    if (code != MPI_SUCCESS)
        return code;
    if (c->coll == HD_COLL_REDUCE && c->root != op->group->me)
        op->after.to = NULL;
    if (c->coll == HD_COLL_REDUCE_SCATTER)
        return start_scatter(op, &s);
    return start_part(op, &s, 0, 0, c->coll == HD_COLL_REDUCE ? c->root : -1);
}

/* ---- the slot */

int cm_collective_start(struct cm_op *op)
{
    if (op->call.coll == HD_COLL_BARRIER)
        return MPI_Ibarrier(op->group->mpi, cm_op_request(op));
    return cm_reduces(op->call.coll) ? start_sum(op) : start_move(op);
}

void cm_collective_broke(struct cm_op *op, int code)
{
    struct hd_error why = HD_ERROR_INIT;
    char text[160];
    cm_fail(&why, code, cm_call_text(&op->call, text));
    cm_group_give_up(op->group, &why);
}

int32_t cm_collective(struct hd_comm_group *group, const struct hd_comm_call *call, hd_request *request,
                      struct hd_error *err)
{
    struct cm_group *g = (struct cm_group *)group;
    int32_t rc = cm_usable(g, err);
    struct cm_op *op = rc || (rc = check(g, call, err)) ? NULL : cm_op_new(g, CM_COLLECTIVE, err);
    int compared = g->n > 1 && g->comm->settings.compare, code;
    if (!op)
        return rc ? rc : HD_E_NOMEM;
    op->call = *call;
    *g->tail =
        op; /* before all else: what is still to be said is found here, and a failure completes it with all others */
    g->tail = &op->next;
    code = compared ? cm_check_begin(op) : cm_collective_start(op);
    *request = rq_number(&op->id);
    if (code != MPI_SUCCESS)
        cm_collective_broke(op, code);
    else if (compared && !g->unstarted)
        g->unstarted = op;
    if (g->unstarted)
        cm_check_advance(g);
    return HD_OK;
}
