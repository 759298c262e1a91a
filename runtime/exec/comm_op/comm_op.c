/* A collective along an inner dim is one call for each outer index, whose blocks are contiguous. An all_to_all is
 * one call on blocks, packed along the dim that is split and unpacked along the one that is joined. A ring shift is
 * a message to the next member and one from the previous. */
#include "runtime/exec/comm_op/internal.h"

#include <stdlib.h>

#include "core/program/access.h"
#include "core/program/ops.h"

struct hd__comm_engine {
    struct hd__comm_path self, host;
    struct hd__comm_path *bounce, *stream; /* NULL: the device has no streams */
    struct hd__flight *flight;
    struct hd__clock clock;
    double timeout;
    int32_t pending, reserved;
};

/* ---- collectives */

static uint32_t coll_of(uint16_t op)
{
    static const uint32_t colls[HD_OP_LIMIT] = {[HD_OP_ALL_REDUCE] = HD_COLL_ALL_REDUCE,
                                                [HD_OP_ALL_GATHER] = HD_COLL_ALL_GATHER,
                                                [HD_OP_REDUCE_SCATTER] = HD_COLL_REDUCE_SCATTER,
                                                [HD_OP_ALL_TO_ALL] = HD_COLL_ALL_TO_ALL,
                                                [HD_OP_BROADCAST] = HD_COLL_BROADCAST};
    return colls[op];
}

/* Elements before dim `dim` of an operand, and from it on: [outer, inner]. */
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
    /* equal on all members: pipeline stages number their own instructions, so across these a hash of the tensor's
     * name */
    calls.call.tag = i->axes & HD_AXIS_BIT(HD_AXIS_PP) ? hd__hash(out->name, strlen(out->name), 0) & INT32_MAX : i->id;
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
    if (i->op == HD_OP_ALL_TO_ALL) {
        x->pack = permute_of(p, i->in[0], i->to, x->group.of->n, (void *)x->call.send);
        x->unpack = permute_of(p, i->out[0], i->from, x->group.of->n, x->call.recv);
    }
    x->n_requests = (uint32_t)x->n_calls;
}

/* ---- messages */

static void init_ring_shift(struct hd__comm_op *x, const struct hd_program *p, const struct hd__instr *i)
{
    int32_t n = x->group.of->n, me = x->group.of->me, steps = (int32_t)hd__shift_steps(p, i);
    uint64_t bytes = (uint64_t)hd__tensor_bytes(p, hd__tensor_const(p, i->in[0]));
    x->message[0] =
        (struct hd__p2p_message){.data = x->call.recv, .bytes = bytes, .peer = (me + n - steps) % n, .receives = 1};
    x->message[1] = (struct hd__p2p_message){.data = (void *)x->call.send, .bytes = bytes, .peer = (me + steps) % n};
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
        .channel = hd__comm_flight_channel(x->engine->flight, g->name, g->ranks, g->n, from, to, m ? m->stream : 0),
        .tag = x->call.tag,
        .count = x->call.coll ? x->call.count : (uint64_t)hd__numel(p, in ? in : out),
        .bytes = (uint64_t)HD__MAX(in ? hd__tensor_bytes(p, in) : 0, out ? hd__tensor_bytes(p, out) : 0),
        .instr = place->index,
        .dtype = (in ? in : out)->dtype,
        .redop = x->call.coll == HD_COLL_ALL_REDUCE || x->call.coll == HD_COLL_REDUCE_SCATTER ? x->call.redop : 0,
        .calls = x->n_requests,
        .root = x->call.coll == HD_COLL_BROADCAST ? x->call.root : -1};
    hd__comm_flight_hash_op(&x->flight_op);
}

/* ---- engine */

struct hd__comm_engine *hd__exec_comm_engine_create(struct hd__transports *transports, int64_t chunk, double timeout)
{
    struct hd__comm_engine *c = hd__alloc(sizeof *c);
    struct hd__comm_path path = {.device = transports->device, .transports = transports};
    c->flight = transports->flight;
    c->timeout = timeout;
    c->self = c->host = path;
    c->self.ops = &hd__comm_path_self;
    c->host.ops = &hd__comm_path_host;
    if (transports->device->streams) {
        c->bounce = hd__exec_bounce_create(transports, chunk);
        c->stream = hd__exec_stream_create(transports, c->flight, &c->clock, timeout);
    }
    return c;
}

void hd__exec_comm_engine_free(struct hd__comm_engine *c)
{
    if (!c)
        return;
    if (c->bounce) {
        c->bounce->ops->free(c->bounce);
        c->stream->ops->free(c->stream);
    }
    free(c);
}

int32_t hd__exec_comm_engine_alloc(struct hd__comm_engine *c, struct hd_error *err)
{
    return c->bounce ? hd__exec_bounce_alloc_slots(c->bounce, err) : HD_OK;
}

int32_t hd__exec_comm_engine_progress(struct hd__comm_engine *c, struct hd_error *err)
{
    if (!c->pending && !(c->stream && c->stream->under_way))
        return HD_OK;
    int32_t rc = hd__exec_transports_progress(c->host.transports, err);
    if (rc >= 0 && c->stream)
        rc = c->stream->ops->progress(c->stream, err);
    if (rc >= 0 && c->bounce)
        rc = c->bounce->ops->progress(c->bounce, err);
    return HD__MIN(rc, HD_OK);
}

int32_t hd__exec_comm_engine_pending(const struct hd__comm_engine *c)
{
    return c->pending;
}

/* ---- ops */

/* In a single stream the messages of a pipeline stage would wait for each other: a deadlock. */
static int32_t check_messages(const struct hd__comm_op *x, struct hd_error *err)
{
    const char *use = x->group.transport->section->use;
    if (!hd__exec_comm_op_stream_ordered(x) || (x->group.transport->ops->caps & HD_COMM_INDEPENDENT_P2P))
        return HD_OK;
    return hd_fail(err, HD_E_UNSUPPORTED,
                   "comm-%s enqueues all messages in one stream of the device, where those of a pipeline would "
                   "deadlock: name another transport for them, comm: {use: %s, axes: {pp: shm}}",
                   use, use);
}

int32_t hd__exec_comm_op_create(struct hd__comm_engine *c, struct hd_program *p, const struct hd__instr *i,
                                const struct hd__instr_location *place, const int32_t coord[HD_AXIS_COUNT], void *arena,
                                struct hd__comm_op **op, struct hd_error *err)
{
    struct hd__transports *transports = c->host.transports;
    int p2p = hd__op(i->op)->class == HD__CLASS_P2P;
    struct hd__group_ref group;
    struct hd__comm_path *path;
    int32_t rc = hd__collective_dtype(p, i, err);
    if (!rc)
        rc = hd__exec_transports_group(transports, p2p ? HD_AXIS_BIT(HD_AXIS_PP) : i->axes, i->members, &group, err);
    if (rc)
        return rc;
    if (group.of->n == 1)
        path = &c->self;
    else if (!transports->device->streams)
        path = &c->host;
    else
        path = group.transport->stream_ordered ? c->stream : c->bounce;
    struct hd__comm_op *x = hd__arena_alloc(&p->arena, path->ops->op_bytes);
    x->engine = c;
    x->path = path;
    x->group = group;
    x->queue = i->stream;
    x->across_stages = p->mesh.size[HD_AXIS_PP] > 1 && (p2p || i->axes & HD_AXIS_BIT(HD_AXIS_PP));
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
    *op = x;
    return path->ops->prepare ? path->ops->prepare(x, err) : HD_OK;
}

void hd__exec_comm_op_free(struct hd__comm_op *x)
{
    if (x && x->path->ops->release)
        x->path->ops->release(x);
}

/* ---- running */

int32_t hd__exec_comm_op_start(struct hd__comm_op *x, struct hd_error *err)
{
    const struct hd__comm_path_ops *ops = x->path->ops;
    struct hd__comm_engine *c = x->engine;
    if (!ops->capturable)
        x->flight_number = hd__comm_flight_start(c->flight, &x->flight_op, hd__clock_now(&c->clock));
    int32_t rc = ops->start(x, err);
    x->pending = !rc && ops->wait;
    c->pending += x->pending;
    if (rc && !ops->capturable)
        hd__comm_flight_end(c->flight, x->flight_number, hd__clock_now(&c->clock), rc);
    return rc;
}

int32_t hd__exec_comm_op_wait(struct hd__comm_op *x, double *seconds, struct hd_error *err)
{
    const struct hd__comm_path_ops *ops = x->path->ops;
    struct hd__comm_engine *c = x->engine;
    double since = hd__clock_now(&c->clock), now;
    if (!x->pending)
        return HD_OK;
    c->pending -= x->pending;
    x->pending = 0;
    if (!ops->capturable)
        hd__comm_flight_wait(c->flight, x->flight_number, since);
    int32_t rc = ops->wait(x, since + c->timeout, err);
    if (ops->capturable)
        return rc;
    now = hd__clock_now(&c->clock);
    hd__comm_flight_end(c->flight, x->flight_number, now, rc);
    *seconds += now - since;
    return rc;
}

int32_t hd__exec_comm_op_axis(const struct hd__comm_op *x)
{
    return x->queue >= HD__STREAM_AXIS && x->queue < HD__STREAM_AXIS + HD_AXIS_COUNT
               ? (int32_t)x->queue - HD__STREAM_AXIS
               : HD_AXIS_PP;
}

const struct hd__group_ref *hd__exec_comm_op_group(const struct hd__comm_op *x, struct hd__flight_channel **channel)
{
    *channel = x->flight_op.channel;
    return &x->group;
}

/* One in the device's streams is captured on all its ranks or on none: so not where their programs differ. */
int32_t hd__exec_comm_op_capturable(const struct hd__comm_op *x)
{
    return x->path->ops->capturable && !(hd__exec_comm_op_stream_ordered(x) && x->across_stages);
}

int32_t hd__exec_comm_op_stream_ordered(const struct hd__comm_op *x)
{
    return x->path->ops->cancel != NULL;
}

void hd__exec_comm_ops_cancel(struct hd__comm_op *const *ops, uint32_t n)
{
    double deadline = n ? hd__now() + ops[0]->engine->timeout : 0;
    for (uint32_t k = 0; k < n; k++) {
        if (ops[k]->pending)
            ops[k]->path->ops->cancel(ops[k], hd__now() < deadline ? deadline : 0);
        ops[k]->engine->pending -= ops[k]->pending;
        ops[k]->pending = 0;
    }
}
