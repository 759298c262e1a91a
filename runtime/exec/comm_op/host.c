/* The host path: the transport is called at once. The self path: in a group of one rank, a copy. */
#include <stdlib.h>

#include "runtime/exec/comm_op/internal.h"

/* ---- blocks */

void hd__exec_permute_blocks(const struct hd__block_layout *s, char *tensor, int to_blocks)
{
    for (int64_t b = 0; b < s->n; b++)
        for (int64_t o = 0; o < s->outer; o++) {
            char *block = s->blocks + (b * s->outer + o) * s->inner, *piece = tensor + (o * s->n + b) * s->inner;
            memcpy(to_blocks ? block : piece, to_blocks ? piece : block, (size_t)s->inner);
        }
}

int32_t hd__exec_blocks_alloc(struct hd__comm_op *x, struct hd_error *err)
{
    (void)err;
    if (!x->pack.n)
        return HD_OK;
    x->pack.blocks = hd__alloc((size_t)(x->pack.outer * x->pack.n * x->pack.inner));
    x->unpack.blocks = hd__alloc((size_t)(x->unpack.outer * x->unpack.n * x->unpack.inner));
    x->call.send = x->pack.blocks;
    x->call.recv = x->unpack.blocks;
    return HD_OK;
}

void hd__exec_blocks_free(struct hd__comm_op *x)
{
    free(x->pack.blocks);
    free(x->unpack.blocks);
}

/* ---- requests */

int32_t hd__exec_post_message(const struct hd__comm_op *x, const struct hd__p2p_message *m, void *data, uint64_t bytes,
                              hd_request *request, struct hd_error *err)
{
    const struct hd_comm_ops *ops = x->group.transport->ops;
    struct hd_comm_group *g = x->group.of->group;
    int32_t rc = m->receives ? ops->recv(g, m->peer, m->stream, data, bytes, request, err)
                             : ops->send(g, m->peer, m->stream, data, bytes, request, err);
    return hd__comm_done(rc, m->receives ? "recv" : "send", err);
}

int32_t hd__exec_comm_op_post(struct hd__comm_op *x, struct hd_error *err)
{
    struct hd__progress_thread *thread = x->path->transports->progress_thread;
    int32_t rc = HD_OK;
    hd__exec_progress_lock(thread);
    for (uint32_t n = 0; n < x->n_messages && !rc; n++)
        rc = hd__exec_post_message(x, &x->message[n], x->message[n].data, x->message[n].bytes, &x->requests[n], err);
    for (int64_t n = 0; n < x->n_calls && !rc; n++) {
        struct hd_comm_call call = x->call;
        call.send = (const char *)x->call.send + n * x->send_stride;
        call.recv = (char *)x->call.recv + n * x->recv_stride;
        rc = x->group.transport->ops->collective(x->group.of->group, &call, &x->requests[n], err);
        rc = hd__comm_done(rc, "collective", err);
    }
    hd__exec_progress_unlock(thread, rc ? 0 : (int32_t)x->n_requests);
    return rc;
}

int32_t hd__exec_comm_op_wait_requests(struct hd__comm_op *x, double deadline, struct hd_error *err)
{
    int32_t rc = HD_OK;
    for (uint32_t n = 0; n < x->n_requests && !rc; n++)
        rc = hd__exec_transports_wait(x->path->transports, x->group.transport, x->requests[n], deadline, err);
    return rc;
}

/* ---- host path */

static int32_t host_start(struct hd__comm_op *x, struct hd_error *err)
{
    if (x->pack.n)
        hd__exec_permute_blocks(&x->pack, x->pack.tensor, 1);
    return hd__exec_comm_op_post(x, err);
}

static int32_t host_wait(struct hd__comm_op *x, double deadline, struct hd_error *err)
{
    int32_t rc = hd__exec_comm_op_wait_requests(x, deadline, err);
    if (x->unpack.n && !rc)
        hd__exec_permute_blocks(&x->unpack, x->unpack.tensor, 0);
    return rc;
}

const struct hd__comm_path_ops hd__comm_path_host = {.op_bytes = sizeof(struct hd__comm_op),
                                                     .prepare = hd__exec_blocks_alloc,
                                                     .release = hd__exec_blocks_free,
                                                     .start = host_start,
                                                     .wait = host_wait};

/* ---- self path */

static int32_t self_start(struct hd__comm_op *x, struct hd_error *err)
{
    const struct hd__device *d = x->path->device;
    size_t bytes = (size_t)(x->n_calls * x->send_stride);
    if (x->call.recv == x->call.send)
        return HD_OK;
    if (d->streams)
        return d->ops->copy(d->handle, HD_STREAM_COMPUTE, x->call.recv, x->call.send, bytes, err);
    memmove(x->call.recv, x->call.send, bytes);
    return HD_OK;
}

const struct hd__comm_path_ops hd__comm_path_self = {
    .op_bytes = sizeof(struct hd__comm_op), .capturable = 1, .start = self_start};
