/* Send and recv. A sender, a receiver and a stream have a communicator of two: NCCL runs what is enqueued on one
 * communicator in order, and a message that waits for its receiver must not hold up another. Both sides make it when
 * they first use it; the sender is its rank 0 and puts the id into the store. What a rank sends itself is copied. */
#include "internal.h"

int nc_message(struct nc_op *op)
{
    const struct nc_api *api = &op->group->comm->api;
    const struct nc_queue *queue = op->queue;
    if (op->kind == NC_SEND)
        return api->Send(op->from, op->bytes, NC_U8, 1, queue->comm, queue->stream);
    return api->Recv(op->to, op->bytes, NC_U8, 0, queue->comm, queue->stream);
}

static struct nc_queue *find_queue(struct nc_group *g, int32_t from, int32_t to, uint32_t tag, struct hd_error *err)
{
    for (struct nc_queue *q = g->queues; q; q = q->next)
        if (q->from == from && q->to == to && q->tag == tag)
            return q;
    return nc_queue_new(g, from, to, tag, err);
}

static int32_t start(struct nc_group *g, uint32_t kind, int32_t peer, uint32_t stream, const void *from, void *to,
                     uint64_t bytes, hd_request *request, struct hd_error *err)
{
    int sends = kind == NC_SEND;
    struct nc_queue *queue;
    struct nc_op *op;
    int32_t rc = nc_usable(g, err);
    if (rc)
        return rc;
    if (peer < 0 || peer >= g->n)
        return hd_fail(err, HD_E_INVALID, "nccl: there is no member %d in group %s of %d", peer, g->name, g->n);
    queue = find_queue(g, sends ? g->me : peer, sends ? peer : g->me, stream, err);
    op = queue ? nc_op_new(g, queue, kind, err) : NULL;
    if (!op)
        return err ? err->code : HD_E_NOMEM;
    op->peer = peer;
    op->stream = stream;
    op->from = from;
    op->to = to;
    op->bytes = bytes;
    op->empty = !bytes;
    return nc_post(op, request, err);
}

int32_t nc_send(struct hd_comm_group *group, int32_t peer, uint32_t stream, const void *data, uint64_t bytes,
                hd_request *request, struct hd_error *err)
{
    struct nc_group *g = (struct nc_group *)group;
    int32_t rc;
    nc_lock(g->comm);
    rc = start(g, NC_SEND, peer, stream, data, NULL, bytes, request, err);
    nc_unlock(g->comm);
    return rc;
}

int32_t nc_recv(struct hd_comm_group *group, int32_t peer, uint32_t stream, void *data, uint64_t bytes,
                hd_request *request, struct hd_error *err)
{
    struct nc_group *g = (struct nc_group *)group;
    int32_t rc;
    nc_lock(g->comm);
    rc = start(g, NC_RECV, peer, stream, NULL, data, bytes, request, err);
    nc_unlock(g->comm);
    return rc;
}

/* ---- to oneself */

static int32_t copy(struct nc_queue *queue, struct nc_op *out, struct nc_op *in, struct hd_error *err)
{
    const struct nc_api *api = &queue->group->comm->api;
    int result;
    if (out->bytes != in->bytes)
        return hd_fail(err, HD_E_MISMATCH, "nccl: a message of %llu bytes to oneself in group %s, which receives %llu",
                       (unsigned long long)out->bytes, queue->group->name, (unsigned long long)in->bytes);
    result = api->cuStreamWaitEvent(queue->stream, out->begin, 0);
    if (!result)
        result = api->cuStreamWaitEvent(queue->stream, in->begin, 0);
    if (!result && in->bytes)
        result = api->cuMemcpyAsync((uintptr_t)in->to, (uintptr_t)out->from, in->bytes, queue->stream);
    return nc_cu_check(api, result, "a message to oneself", err);
}

static struct nc_op *take(struct nc_op **head, struct nc_op ***tail)
{
    struct nc_op *op = *head;
    *head = op->next;
    if (!*head)
        *tail = head;
    return op;
}

int32_t nc_self_advance(struct nc_queue *queue, int *moved, struct hd_error *err)
{
    int32_t rc = HD_OK;
    while (queue->head && queue->sent && !rc) {
        struct nc_op *in = take(&queue->head, &queue->tail), *out = take(&queue->sent, &queue->sent_tail);
        in->empty = out->empty = 0;
        rc = copy(queue, out, in, err);
        rc = rc ? rc : nc_enqueued(out, err);
        rc = rc ? rc : nc_enqueued(in, err);
        if (rc) {
            nc_op_finish(out, rc);
            nc_op_finish(in, rc);
        }
        *moved = 1;
    }
    return rc;
}
