/* A call -> NCCL's. */
#include "internal.h"

const char *nc_call_text(const struct hd_comm_call *call, char out[160])
{
    snprintf(out, 160, "%s of %llu %s (tag %llu)", hd_coll_name(call->coll), (unsigned long long)call->count,
             hd_dtype_name(call->dtype), (unsigned long long)call->tag);
    return out;
}

static int reduces(uint32_t coll)
{
    return coll == HD_COLL_ALL_REDUCE || coll == HD_COLL_REDUCE_SCATTER || coll == HD_COLL_REDUCE;
}

static int type_of(uint32_t dtype)
{
    static const int types[] = {[HD_F32] = NC_F32, [HD_BF16] = NC_BF16, [HD_F16] = NC_F16,
                                [HD_F64] = NC_F64, [HD_I32] = NC_I32,   [HD_U8] = NC_U8};
    return types[dtype];
}

static int op_of(uint32_t redop)
{
    return redop == HD_AVG ? NC_AVG : redop == HD_MAX ? NC_MAX : NC_SUM;
}

/* NCCL adds what it has multiplied by 1/n in the dtype, which is the mean only where n is a power of two, and integers
 * wrap before they are divided. */
static int is_mean(uint32_t dtype, int32_t n)
{
    return dtype != HD_I32 && dtype != HD_U8 && (n & (n - 1)) == 0;
}

static int32_t check(const struct nc_group *g, const struct hd_comm_call *call, struct hd_error *err)
{
    if (call->coll < HD_COLL_ALL_REDUCE || call->coll > HD_COLL_BARRIER)
        return hd_fail(err, HD_E_UNSUPPORTED, "nccl: there is no collective %u", call->coll);
    if (call->coll == HD_COLL_BARRIER)
        return HD_OK;
    if (call->dtype < HD_F32 || call->dtype > HD_U8)
        return hd_fail(err, HD_E_UNSUPPORTED, "nccl: dtype %u cannot travel", call->dtype);
    if (reduces(call->coll) && (call->redop < HD_SUM || call->redop > HD_AVG))
        return hd_fail(err, HD_E_UNSUPPORTED, "nccl: there is no reduction %u", call->redop);
    if (reduces(call->coll) && call->redop == HD_AVG && !is_mean(call->dtype, g->n))
        return hd_fail(err, HD_E_UNSUPPORTED, "nccl: NCCL's mean of %s over %d ranks is not exact: sum and divide",
                       hd_dtype_name(call->dtype), g->n);
    if ((call->coll == HD_COLL_BROADCAST || call->coll == HD_COLL_REDUCE) && (call->root < 0 || call->root >= g->n))
        return hd_fail(err, HD_E_INVALID, "nccl: root %d in group %s of %d", call->root, g->name, g->n);
    return HD_OK;
}

/* Before 2.28 NCCL has messages only. */
static int all_to_all(const struct nc_api *api, const struct nc_queue *queue, const struct hd_comm_call *call)
{
    size_t bytes = call->count * hd_dtype_size(call->dtype);
    int type = type_of(call->dtype), result, ended;
    if (api->AlltoAll)
        return api->AlltoAll(call->send, call->recv, call->count, type, queue->comm, queue->stream);
    result = api->GroupStart();
    for (int32_t i = 0; i < queue->n && !result; i++) {
        result =
            api->Send((const char *)call->send + (size_t)i * bytes, call->count, type, i, queue->comm, queue->stream);
        if (!result || result == NC_IN_PROGRESS)
            result =
                api->Recv((char *)call->recv + (size_t)i * bytes, call->count, type, i, queue->comm, queue->stream);
        result = result == NC_IN_PROGRESS ? NC_SUCCESS : result;
    }
    ended = api->GroupEnd();
    return result ? result : ended;
}

static void *of(uint64_t memory)
{
    return (void *)(uintptr_t)memory;
}

/* The first word is what all put in, the second what comes out; nobody reads either. */
static int barrier(const struct hd_comm *c, const struct nc_queue *queue)
{
    uint64_t words = c->scratch + 8 * queue->number;
    return c->api.AllReduce(of(words), of(words + 4), 1, NC_I32, NC_SUM, queue->comm, queue->stream);
}

int nc_call(struct nc_op *op)
{
    const struct hd_comm_call *c = &op->call;
    const struct nc_queue *queue = op->queue;
    const struct nc_api *api = &op->group->comm->api;
    int type = c->coll == HD_COLL_BARRIER ? 0 : type_of(c->dtype), redop = op_of(c->redop);
    switch (c->coll) {
    case HD_COLL_ALL_REDUCE:
        return api->AllReduce(c->send, c->recv, c->count, type, redop, queue->comm, queue->stream);
    case HD_COLL_ALL_GATHER:
        return api->AllGather(c->send, c->recv, c->count, type, queue->comm, queue->stream);
    case HD_COLL_REDUCE_SCATTER:
        return api->ReduceScatter(c->send, c->recv, c->count, type, redop, queue->comm, queue->stream);
    case HD_COLL_ALL_TO_ALL:
        return all_to_all(api, queue, c);
    case HD_COLL_BROADCAST: /* the root may be without a place to receive */
        return api->Broadcast(c->send, c->recv ? c->recv : (void *)(uintptr_t)c->send, c->count, type, c->root,
                              queue->comm, queue->stream);
    case HD_COLL_REDUCE:
        return api->Reduce(c->send, c->recv, c->count, type, redop, c->root, queue->comm, queue->stream);
    default:
        return barrier(op->group->comm, queue);
    }
}

int32_t nc_collective(struct hd_comm_group *group, const struct hd_comm_call *call, hd_request *request,
                      struct hd_error *err)
{
    struct nc_group *g = (struct nc_group *)group;
    struct nc_op *op;
    int32_t rc;
    nc_lock(g->comm);
    rc = nc_usable(g, err);
    if (!rc)
        rc = check(g, call, err);
    op = rc ? NULL : nc_op_new(g, g->queues, NC_COLLECTIVE, err);
    if (op) {
        op->call = *call;
        op->empty = call->coll != HD_COLL_BARRIER && !call->count;
        op->from = call->send;
        op->to = call->recv;
        rc = nc_post(op, request, err);
    } else if (!rc) {
        rc = HD_E_NOMEM;
    }
    nc_unlock(g->comm);
    return rc;
}
