/* A collective along a dim that is not the outermost is one call for each outer index: there each piece is contiguous.
 * An all_to_all is one call on blocks: packed along the dim that is split, unpacked along the one that is joined. A step
 * around a ring is a message to the next member and one from the member before. */
#include "runtime/exec/comm_op/internal.h"

#include <stdlib.h>

#include "core/program/access.h"
#include "core/program/ops.h"

/* ---- collectives */

static uint32_t coll_of(uint16_t op)
{
    switch (op) {
    case HD_OP_ALL_REDUCE:
        return HD_COLL_ALL_REDUCE;
    case HD_OP_ALL_GATHER:
        return HD_COLL_ALL_GATHER;
    case HD_OP_REDUCE_SCATTER:
        return HD_COLL_REDUCE_SCATTER;
    case HD_OP_ALL_TO_ALL:
        return HD_COLL_ALL_TO_ALL;
    case HD_OP_BROADCAST:
        return HD_COLL_BROADCAST;
    default:
        return 0;
    }
}

/* Elements before and from dim `dim` of an operand: [outer, dim...]. */
static void split_at(const struct hd_program *p, const struct hd__tensor *t, uint16_t dim, int64_t *outer,
                     int64_t *inner)
{
    int32_t at = hd__dim_index(t, dim);
    *outer = *inner = 1;
    for (int32_t d = 0; d < t->ndim; d++)
        *(d < at ? outer : inner) *= hd__local_extent(p, t, d);
}

static struct hd__block_layout permute_of(const struct hd_program *p, hd_tensor t, uint16_t dim, int64_t n, void *data)
{
    const struct hd__tensor *x = hd__tensor_const(p, t);
    struct hd__block_layout s = {.tensor = data, .n = n};
    int64_t inner;
    split_at(p, x, dim, &s.outer, &inner);
    s.inner = inner / n * (int64_t)hd_dtype_size(x->dtype);
    return s;
}

void hd__exec_permute_blocks(const struct hd__block_layout *s, char *tensor, int to_blocks)
{
    for (int64_t b = 0; b < s->n; b++)
        for (int64_t o = 0; o < s->outer; o++) {
            char *block = s->blocks + (b * s->outer + o) * s->inner, *piece = tensor + (o * s->n + b) * s->inner;
            memcpy(to_blocks ? block : piece, to_blocks ? piece : block, (size_t)s->inner);
        }
}

static void init_permutes(struct hd__comm_op *x, const struct hd_program *p, const struct hd__instr *i)
{
    int64_t n = x->group.of->n;
    x->pack = permute_of(p, i->in[0], i->to, n, (void *)x->call.send);
    x->unpack = permute_of(p, i->out[0], i->from, n, x->call.recv);
}

/* Memory for blocks, where the transport reaches it. */
static int32_t alloc_blocks(struct hd__comm_op *x, struct hd__block_layout *s, struct hd_error *err)
{
    const struct hd__device *d = x->transports->device;
    size_t bytes = (size_t)(s->outer * s->n * s->inner);
    void *blocks = NULL;
    int32_t rc = HD_OK;
    if (x->path == HD__COMM_PATH_STREAM)
        rc = d->ops->alloc(d->handle, HD_MEM_DEVICE, bytes, &blocks, err);
    else
        blocks = hd__alloc(bytes);
    s->blocks = blocks;
    return rc;
}

static int32_t alloc_all_blocks(struct hd__comm_op *x, struct hd_error *err)
{
    int32_t rc = alloc_blocks(x, &x->pack, err);
    if (!rc)
        rc = alloc_blocks(x, &x->unpack, err);
    x->call.send = x->pack.blocks;
    x->call.recv = x->unpack.blocks;
    return rc;
}

static void free_blocks(const struct hd__comm_op *x, const struct hd__block_layout *s)
{
    const struct hd__device *d = x->transports->device;
    if (x->path != HD__COMM_PATH_STREAM)
        free(s->blocks);
    else if (s->blocks)
        d->ops->free(d->handle, HD_MEM_DEVICE, s->blocks);
}

/* What all members call an operation: its number; across stages, which number theirs alone, its tensor's name. */
static uint64_t tag_of(const struct hd_program *p, const struct hd__instr *i)
{
    const char *name = hd__tensor_const(p, i->out[0])->name;
    return i->axes & HD_AXIS_BIT(HD_AXIS_PP) ? hd__hash(name, strlen(name), 0) & INT32_MAX : i->id;
}

struct hd__coll_calls hd__exec_coll_calls(const struct hd_program *p, const struct hd__instr *i, int32_t n)
{
    const struct hd__tensor *in = hd__tensor_const(p, i->in[0]), *out = hd__tensor_const(p, i->out[0]);
    int64_t outer = 1, inner_in = hd__numel(p, in), inner_out = hd__numel(p, out), unused;
    int64_t item = (int64_t)hd_dtype_size(in->dtype), blocks = i->op == HD_OP_ALL_TO_ALL;
    struct hd__coll_calls calls = {
        .call = {.struct_size = sizeof calls.call, .coll = coll_of(i->op), .dtype = in->dtype}};
    if ((i->from || i->to) && !blocks) {
        split_at(p, in, i->from ? i->from : i->to, &outer, &inner_in);
        split_at(p, out, i->from ? i->from : i->to, &unused, &inner_out);
    }
    calls.n = outer;
    calls.send_stride = inner_in * item;
    calls.recv_stride = inner_out * item;
    calls.call.redop = i->redop ? i->redop : HD_SUM;
    calls.call.count = (uint64_t)(blocks ? inner_in / n : HD__MIN(inner_in, inner_out));
    calls.call.tag = tag_of(p, i);
    return calls;
}

static void init_collective(struct hd__comm_op *x, const struct hd_program *p, const struct hd__instr *i)
{
    struct hd__coll_calls calls = hd__exec_coll_calls(p, i, x->group.of->n);
    calls.call.send = x->call.send;
    calls.call.recv = x->call.recv;
    x->call = calls.call;
    x->n_calls = calls.n;
    x->send_stride = calls.send_stride;
    x->recv_stride = calls.recv_stride;
    if (i->op == HD_OP_ALL_TO_ALL)
        init_permutes(x, p, i);
    x->n_requests = (uint32_t)x->n_calls;
}

/* ---- messages */

static void init_ring_shift(struct hd__comm_op *x, const struct hd_program *p, const struct hd__instr *i)
{
    int32_t n = x->group.of->n, me = x->group.of->me;
    uint64_t bytes = (uint64_t)hd__tensor_bytes(p, hd__tensor_const(p, i->in[0]));
    x->message[0] =
        (struct hd__p2p_message){.data = x->call.recv, .bytes = bytes, .peer = (me + n - 1) % n, .receives = 1};
    x->message[1] = (struct hd__p2p_message){.data = (void *)x->call.send, .bytes = bytes, .peer = (me + 1) % n};
    x->n_messages = x->n_requests = 2;
}

static void init_p2p(struct hd__comm_op *x, const struct hd_program *p, const struct hd__instr *i)
{
    x->message[0] =
        (struct hd__p2p_message){.data = i->n_in ? (void *)x->call.send : x->call.recv,
                                 .bytes = (uint64_t)hd__tensor_bytes(p, hd__tensor_const(p, hd__instr_tensor(i))),
                                 .peer = i->peer,
                                 .receives = i->op == HD_OP_RECV,
                                 .stream = hd__stream_way(i)};
    x->n_messages = x->n_requests = 1;
}

/* ---- the flight recorder */

static void describe_for_recorder(struct hd__comm_op *x, const struct hd_program *p, const struct hd__instr *i,
                                  const struct hd__instr_location *place)
{
    const struct hd__group *g = x->group.of;
    const struct hd__p2p_message *m = x->n_messages == 1 ? &x->message[0] : NULL;
    int32_t from = !m ? -1 : m->receives ? g->ranks[m->peer] : g->ranks[g->me];
    int32_t to = !m ? -1 : m->receives ? g->ranks[g->me] : g->ranks[m->peer];
    const struct hd__tensor *in = i->n_in ? hd__tensor_const(p, i->in[0]) : NULL,
                            *out = i->n_out ? hd__tensor_const(p, i->out[0]) : NULL;
    x->flight_op = (struct hd__flight_op){
        .name = hd__op(i->op)->name,
        .section = place->section,
        .block = p->blocks.at[i->block],
        .channel = hd__comm_flight_channel(x->transports->flight, g->name, g->ranks, g->n, from, to, m ? m->stream : 0),
        .tag = x->call.tag,
        .count = x->call.coll ? x->call.count : (uint64_t)hd__numel(p, in ? in : out),
        .bytes = (uint64_t)HD__MAX(in ? hd__tensor_bytes(p, in) : 0, out ? hd__tensor_bytes(p, out) : 0),
        .instr = place->index,
        .dtype = (in ? in : out)->dtype,
        .redop = x->call.coll == HD_COLL_ALL_REDUCE || x->call.coll == HD_COLL_REDUCE_SCATTER ? x->call.redop : 0,
        .calls = x->n_requests,
        .root = x->call.coll == HD_COLL_BROADCAST ? x->call.root : -1,
    };
    hd__comm_flight_hash_op(&x->flight_op);
}

/* ---- life */

static uint32_t choose_path(const struct hd__transports *t, const struct hd__group_ref *group)
{
    if (!t->bounce || group->of->n == 1)
        return HD__COMM_PATH_HOST;
    return group->transport->stream_ordered ? HD__COMM_PATH_STREAM : HD__COMM_PATH_BOUNCE;
}

/* In one stream a stage that sends would keep itself from what it has to send before. */
static int32_t check_messages(const struct hd__comm_op *x, struct hd_error *err)
{
    const char *use = x->group.transport->section->use;
    if (x->path != HD__COMM_PATH_STREAM || (x->group.transport->ops->caps & HD_COMM_STREAM_APART))
        return HD_OK;
    return hd_fail(err, HD_E_UNSUPPORTED,
                   "comm-%s puts all its messages into one stream of the device, where those of a pipeline would "
                   "wait for each other: name another transport for them, comm: {use: %s, axes: {pp: shm}}",
                   use, use);
}

static int32_t register_op(struct hd__comm_op *x, const struct hd__instr *i, struct hd_error *err)
{
    int32_t rc = x->pack.n ? alloc_all_blocks(x, err) : HD_OK;
    if (!rc && x->path == HD__COMM_PATH_BOUNCE)
        return hd__exec_bounce_register(x->transports->bounce, x, i->stream, err);
    return rc || x->path == HD__COMM_PATH_HOST ? rc : hd__exec_stream_comm_register(x->transports->stream_comm, x, err);
}

int32_t hd__exec_comm_op_create(struct hd__transports *transports, struct hd_program *p, const struct hd__instr *i,
                                const struct hd__instr_location *place, const int32_t coord[HD_AXIS_COUNT], void *arena,
                                struct hd__comm_op **exchange, struct hd_error *err)
{
    struct hd__comm_op *x = hd__arena_alloc(&p->arena, sizeof *x);
    int p2p = hd__op(i->op)->class == HD__CLASS_P2P;
    int32_t rc =
        hd__exec_transports_group(transports, p2p ? HD_AXIS_BIT(HD_AXIS_PP) : i->axes, i->members, &x->group, err);
    if (rc)
        return rc;
    *exchange = x;
    x->transports = transports;
    x->path = choose_path(transports, &x->group);
    x->call.struct_size = sizeof x->call;
    x->call.send = i->n_in ? hd__tensor_address(p, i->in[0], coord, arena) : NULL;
    x->call.recv = i->n_out ? hd__tensor_address(p, i->out[0], coord, arena) : NULL;
    if (p2p && (rc = check_messages(x, err)))
        return rc;
    if (p2p)
        init_p2p(x, p, i);
    else if (i->op == HD_OP_SHIFT)
        init_ring_shift(x, p, i);
    else if (coll_of(i->op))
        init_collective(x, p, i);
    else
        return hd_fail(err, HD_E_UNSUPPORTED, "%s over %s cannot be executed between processes", hd__op(i->op)->name,
                       hd__axis_name(__builtin_ctz(i->axes)));
    x->requests = hd__arena_alloc(&p->arena, x->n_requests * sizeof *x->requests);
    describe_for_recorder(x, p, i, place);
    return register_op(x, i, err);
}

void hd__exec_comm_op_free(struct hd__comm_op *x)
{
    if (!x)
        return;
    if (x->path == HD__COMM_PATH_BOUNCE)
        hd__exec_bounce_unregister(x->transports->bounce, x);
    if (x->path == HD__COMM_PATH_STREAM)
        hd__exec_stream_comm_unregister(x->transports->stream_comm, x);
    free_blocks(x, &x->pack);
    free_blocks(x, &x->unpack);
}

/* ---- running */

static int32_t start_messages(struct hd__comm_op *x, struct hd_error *err)
{
    const struct hd_comm_ops *ops = x->group.transport->ops;
    struct hd_comm_group *g = x->group.of->group;
    int32_t rc = HD_OK;
    for (uint32_t n = 0; n < x->n_messages && !rc; n++) {
        const struct hd__p2p_message *m = &x->message[n];
        rc = m->receives ? ops->recv(g, m->peer, m->stream, m->data, m->bytes, &x->requests[n], err)
                         : ops->send(g, m->peer, m->stream, m->data, m->bytes, &x->requests[n], err);
    }
    return rc;
}

static int32_t start_collective(struct hd__comm_op *x, struct hd_error *err)
{
    int32_t rc = HD_OK;
    if (x->pack.n && x->path == HD__COMM_PATH_HOST)
        hd__exec_permute_blocks(&x->pack, x->pack.tensor, 1);
    for (int64_t n = 0; n < x->n_calls && !rc; n++) {
        struct hd_comm_call call = x->call;
        call.send = (const char *)x->call.send + n * x->send_stride;
        call.recv = (char *)x->call.recv + n * x->recv_stride;
        rc = x->group.transport->ops->collective(x->group.of->group, &call, &x->requests[n], err);
    }
    return rc;
}

/* A rank that is alone in its group. */
static int32_t copy_to_self(const struct hd__comm_op *x, struct hd_error *err)
{
    const struct hd__device *d = x->transports->device;
    size_t bytes = (size_t)(x->n_calls * x->send_stride);
    if (x->call.recv == x->call.send)
        return HD_OK;
    if (d->streams)
        return d->ops->copy(d->handle, HD_STREAM_COMPUTE, x->call.recv, x->call.send, bytes, err);
    memmove(x->call.recv, x->call.send, bytes);
    return HD_OK;
}

int32_t hd__exec_comm_op_post(struct hd__comm_op *x, struct hd_error *err)
{
    int32_t rc;
    hd__exec_progress_lock(x->transports->progress_thread);
    rc = x->n_messages ? start_messages(x, err) : start_collective(x, err);
    hd__exec_progress_unlock(x->transports->progress_thread, rc ? 0 : (int32_t)x->n_requests);
    return rc;
}

int32_t hd__exec_comm_op_start(struct hd__comm_op *x, struct hd_error *err)
{
    int32_t rc;
    if (x->group.of->n == 1)
        return copy_to_self(x, err);
    if (x->path == HD__COMM_PATH_STREAM) {
        rc = hd__exec_stream_comm_start(x->transports->stream_comm, x, err);
        x->pending = !rc;
        return rc;
    }
    x->flight_number =
        hd__comm_flight_start(x->transports->flight, &x->flight_op, hd__clock_now(&x->transports->clock));
    rc = x->path == HD__COMM_PATH_BOUNCE ? hd__exec_bounce_start(x->transports->bounce, x, err)
                                         : hd__exec_comm_op_post(x, err);
    x->pending = !rc;
    if (rc)
        hd__comm_flight_end(x->transports->flight, x->flight_number, hd__clock_now(&x->transports->clock), rc);
    return rc;
}

int32_t hd__exec_comm_op_capturable(const struct hd__comm_op *x)
{
    return x->path == HD__COMM_PATH_STREAM || (x->group.of->n == 1 && x->transports->device->streams);
}

int32_t hd__exec_comm_op_stream_ordered(const struct hd__comm_op *x)
{
    return x->path == HD__COMM_PATH_STREAM;
}

int32_t hd__exec_comm_op_pending(const struct hd__comm_op *x)
{
    return x->pending;
}

void hd__exec_comm_op_cancel(struct hd__comm_op *x, double deadline)
{
    for (uint32_t n = 0; n < x->n_requests && x->pending; n++) {
        struct hd_error none = HD_ERROR_INIT;
        (void)hd__exec_transports_wait(x->transports, x->group.transport, x->requests[n], deadline, &none);
    }
    x->pending = 0;
}

static int32_t wait_requests(struct hd__comm_op *x, double deadline, struct hd_error *err)
{
    int32_t rc = HD_OK;
    for (uint32_t n = 0; n < x->n_requests && !rc; n++)
        rc = hd__exec_transports_wait(x->transports, x->group.transport, x->requests[n], deadline, err);
    if (x->unpack.n && !rc)
        hd__exec_permute_blocks(&x->unpack, x->unpack.tensor, 0);
    return rc;
}

int32_t hd__exec_comm_op_wait(struct hd__comm_op *x, double timeout, double *seconds, struct hd_error *err)
{
    double since = hd__clock_now(&x->transports->clock), now;
    int32_t rc;
    if (!x->pending)
        return HD_OK;
    if (x->path == HD__COMM_PATH_STREAM) {
        x->pending = 0;
        return hd__exec_stream_comm_wait(x->transports->stream_comm, x, err);
    }
    hd__comm_flight_wait(x->transports->flight, x->flight_number, since);
    rc = x->path == HD__COMM_PATH_BOUNCE ? hd__exec_bounce_wait(x->transports->bounce, x, since + timeout, err)
                                         : wait_requests(x, since + timeout, err);
    x->pending = 0;
    now = hd__clock_now(&x->transports->clock);
    hd__comm_flight_end(x->transports->flight, x->flight_number, now, rc);
    *seconds += now - since;
    return rc;
}
