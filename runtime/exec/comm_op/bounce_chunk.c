/* A chunk: how exchanges are cut into them, and the way of one through a slot. See bounce.h. */
#include "runtime/exec/comm_op/bounce_internal.h"

/* ---- how an exchange is cut */

static int64_t item_bytes(const struct hd__comm_op *x)
{
    return x->n_messages ? 1 : (int64_t)hd_dtype_size(x->call.dtype);
}

/* Elements of a call, or bytes of a message. */
static int64_t item_count(const struct hd__comm_op *x)
{
    return x->n_messages ? (int64_t)x->message[0].bytes : (int64_t)x->call.count;
}

/* Pieces of that length which a member sends and receives in a call. */
static int64_t blocks_out(const struct hd__comm_op *x)
{
    return x->call.coll == HD_COLL_REDUCE_SCATTER || x->pack.n ? x->group.of->n : 1;
}

static int64_t blocks_in(const struct hd__comm_op *x)
{
    return x->call.coll == HD_COLL_ALL_GATHER || x->unpack.n ? x->group.of->n : 1;
}

/* Sum and copy lie where the input lay. */
static int in_place(const struct hd__comm_op *x)
{
    return x->call.coll == HD_COLL_ALL_REDUCE || x->call.coll == HD_COLL_BROADCAST;
}

static const struct hd__p2p_message *message_of(const struct hd__comm_op *x, int receives)
{
    for (uint32_t n = 0; n < x->n_messages; n++)
        if (x->message[n].receives == receives)
            return &x->message[n];
    return NULL;
}

static int is_root(const struct hd__comm_op *x)
{
    return x->call.coll == HD_COLL_BROADCAST && x->call.root == x->group.of->me;
}

int hd__exec_bounce_sends(const struct hd__comm_op *x)
{
    if (x->n_messages)
        return message_of(x, 0) != NULL;
    return x->call.coll != HD_COLL_BROADCAST || is_root(x);
}

int hd__exec_bounce_receives(const struct hd__comm_op *x)
{
    if (x->n_messages)
        return message_of(x, 1) != NULL;
    return !is_root(x) || x->call.send != x->call.recv;
}

enum { CHUNK_ALIGN = 64 }; /* elements: chunks begin at whole lines */

static int64_t max_chunk_items(int64_t widest, int64_t chunk)
{
    return HD__MAX(CHUNK_ALIGN, chunk / widest / CHUNK_ALIGN * CHUNK_ALIGN);
}

int64_t hd__exec_bounce_chunk_count(int64_t all, int64_t widest, int64_t chunk)
{
    return HD__MIN(all, max_chunk_items(widest, chunk));
}

void hd__exec_bounce_split(const struct hd__bounce *stage, struct hd__comm_op *x)
{
    struct hd__bounce_op *s = &x->bounce;
    int64_t all = item_count(x), calls = HD__MAX(1, x->n_calls),
            widest = HD__MAX(blocks_out(x), blocks_in(x)) * item_bytes(x);
    int64_t most = max_chunk_items(widest, stage->chunk);
    int whole = s->direct || x->pack.n;
    s->chunk_count = whole ? all : hd__exec_bounce_chunk_count(all, widest, stage->chunk);
    s->per_call = s->chunk_count ? (uint32_t)((all + s->chunk_count - 1) / s->chunk_count) : 1;
    s->calls = whole ? calls : s->per_call > 1 ? 1 : HD__MIN(calls, HD__MAX(1, most / HD__MAX(1, all)));
    s->chunks = s->per_call > 1 ? (uint32_t)calls * s->per_call : (uint32_t)((calls + s->calls - 1) / s->calls);
}

void hd__exec_bounce_chunk_bytes(const struct hd__comm_op *x, int64_t *out, int64_t *in)
{
    int64_t bytes = x->bounce.chunk_count * x->bounce.calls * item_bytes(x);
    *out = bytes * blocks_out(x);
    *in = in_place(x) ? 0 : bytes * blocks_in(x);
}

/* Elements from `first` on of `calls` calls from `call` on: more than one only where they are whole. */
struct chunk {
    int64_t call, calls, first, count;
};

static struct chunk chunk_of(const struct hd__comm_op *x, uint32_t n)
{
    const struct hd__bounce_op *s = &x->bounce;
    struct chunk c = {.calls = 1, .count = item_count(x)};
    if (s->per_call > 1) {
        c.call = n / s->per_call;
        c.first = n % s->per_call * s->chunk_count;
        c.count = HD__MIN(s->chunk_count, item_count(x) - c.first);
    } else {
        c.call = n * s->calls;
        c.calls = HD__MIN(s->calls, HD__MAX(1, x->n_calls) - c.call);
    }
    return c;
}

/* ---- copies between a slot and the tensors */

struct side {
    char *device, *host;
    int64_t pieces, stride; /* step: bytes from one call to the next in the device's memory */
    uint32_t stream;
};

static int32_t copy_bytes(const struct hd__bounce *stage, const struct side *side, char *device, char *host,
                          int64_t bytes, struct hd_error *err)
{
    const struct hd__device *d = stage->device;
    int out = side->stream == HD_STREAM_OUT;
    return bytes ? d->ops->copy(d->handle, side->stream, out ? host : device, out ? device : host, (size_t)bytes, err)
                 : HD_OK;
}

/* Whole calls lie one behind another in both; of one that is cut each piece has a part of its own. */
static int32_t copy_side(const struct hd__bounce *stage, const struct hd__comm_op *x, const struct chunk *c,
                         const struct side *side, struct hd_error *err)
{
    int64_t item = item_bytes(x), part = c->count * item, whole = item_count(x) * item;
    char *from = side->device + c->call * side->stride;
    int32_t rc = HD_OK;
    if (part == whole)
        return copy_bytes(stage, side, from, side->host, c->calls * whole * side->pieces, err);
    for (int64_t k = 0; k < side->pieces && !rc; k++)
        rc = copy_bytes(stage, side, from + k * whole + c->first * item, side->host + k * part, part, err);
    return rc;
}

static struct side side_of(const struct hd__comm_op *x, const struct hd__bounce_slot *slot, int out)
{
    const struct hd__p2p_message *m = message_of(x, !out);
    struct side side = {.host = out || in_place(x) ? slot->out : slot->in,
                        .pieces = out ? blocks_out(x) : blocks_in(x),
                        .stride = out ? x->send_stride : x->recv_stride,
                        .stream = out ? HD_STREAM_OUT : HD_STREAM_IN};
    if (m)
        side.device = m->data;
    else if (x->pack.n)
        side.device = out ? x->pack.tensor : x->unpack.tensor;
    else
        side.device = out ? (char *)(uintptr_t)x->call.send : x->call.recv;
    return side;
}

/* Behind what compute did before the exchange began; `done` follows. */
static int32_t copy_chunk(const struct hd__bounce *stage, const struct hd__bounce_slot *slot, int out,
                          struct hd_event *done, struct hd_error *err)
{
    const struct hd__device *d = stage->device;
    struct chunk c = chunk_of(slot->x, slot->chunk);
    struct side side = side_of(slot->x, slot, out);
    int32_t rc = slot->chunk ? HD_OK : d->ops->follow(d->handle, side.stream, slot->x->bounce.ready, err);
    if (!rc)
        rc = copy_side(stage, slot->x, &c, &side, err);
    return rc ? rc : d->ops->record(d->handle, done, side.stream, err);
}

/* ---- a chunk's way */

int32_t hd__exec_chunk_copy_out(struct hd__bounce *stage, struct hd__bounce_queue *l, struct hd__comm_op *x,
                                struct hd_error *err)
{
    struct hd__bounce_slot *slot = &l->slot[l->sent % HD__BOUNCE_SLOTS];
    int32_t rc = HD_OK;
    slot->x = x;
    slot->chunk = x->bounce.copied_out;
    if (!x->bounce.direct && hd__exec_bounce_sends(x))
        rc = copy_chunk(stage, slot, 1, slot->copied, err);
    x->bounce.copied_out++;
    l->sent++;
    return rc;
}

static int32_t post_messages(struct hd__comm_op *x, struct hd__bounce_slot *slot, const struct chunk *c,
                             struct hd_error *err)
{
    const struct hd_comm_ops *ops = x->group.transport->ops;
    int32_t rc = HD_OK;
    for (uint32_t n = 0; n < x->n_messages && !rc; n++) {
        const struct hd__p2p_message *m = &x->message[n];
        char *data = x->bounce.direct ? (char *)m->data + c->first : m->receives ? slot->in : slot->out;
        hd_request *request = &slot->requests[slot->n_requests];
        rc = m->receives ? ops->recv(x->group.of->group, m->peer, m->stream, data, (uint64_t)c->count, request, err)
                         : ops->send(x->group.of->group, m->peer, m->stream, data, (uint64_t)c->count, request, err);
        slot->n_requests += !rc;
    }
    return rc;
}

static int32_t post_calls(struct hd__comm_op *x, struct hd__bounce_slot *slot, const struct chunk *c,
                          struct hd_error *err)
{
    int64_t out = c->count * blocks_out(x) * item_bytes(x), in = c->count * blocks_in(x) * item_bytes(x);
    char *recv = in_place(x) ? slot->out : slot->in;
    int32_t rc = HD_OK;
    if (x->pack.n)
        hd__exec_permute_blocks(&x->pack, x->bounce.direct ? x->pack.tensor : slot->out, 1);
    for (int64_t k = 0; k < c->calls && !rc; k++) {
        struct hd_comm_call call = x->call;
        call.count = (uint64_t)c->count;
        if (x->bounce.direct) {
            call.send = (const char *)x->call.send + k * x->send_stride;
            call.recv = (char *)x->call.recv + k * x->recv_stride;
        } else if (!x->pack.n) {
            call.send = slot->out + k * out;
            call.recv = recv + k * in;
        }
        rc = x->group.transport->ops->collective(x->group.of->group, &call, &slot->requests[slot->n_requests], err);
        slot->n_requests += !rc;
    }
    return rc;
}

int32_t hd__exec_chunk_post(struct hd__bounce *stage, struct hd__bounce_queue *l, struct hd__bounce_slot *slot,
                            struct hd_error *err)
{
    struct chunk c = chunk_of(slot->x, slot->chunk);
    int32_t rc;
    slot->n_requests = 0;
    hd__exec_progress_lock(stage->transports->progress_thread);
    rc = slot->x->n_messages ? post_messages(slot->x, slot, &c, err) : post_calls(slot->x, slot, &c, err);
    hd__exec_progress_unlock(stage->transports->progress_thread, (int32_t)slot->n_requests);
    slot->x->bounce.posted++;
    l->posted++;
    return rc;
}

int32_t hd__exec_chunk_test(struct hd__bounce *stage, struct hd__bounce_slot *slot, struct hd_error *err)
{
    struct hd__transport *t = slot->x->group.transport;
    int32_t rc = HD_OK, less = 0;
    hd__exec_progress_lock(stage->transports->progress_thread);
    for (uint32_t n = 0; n < slot->n_requests && !rc;) {
        int32_t done = 0;
        rc = t->ops->test(t->comm, slot->requests[n], &done, err);
        if (!done && !rc) {
            n++;
            continue;
        }
        slot->requests[n] = slot->requests[--slot->n_requests];
        less--;
    }
    hd__exec_progress_unlock(stage->transports->progress_thread, less);
    return rc ? rc : !slot->n_requests;
}

/* Into the device's memory. */
int32_t hd__exec_chunk_copy_in(struct hd__bounce *stage, struct hd__bounce_queue *l, struct hd__bounce_slot *slot,
                               struct hd_error *err)
{
    const struct hd__device *d = stage->device;
    struct hd__comm_op *x = slot->x;
    int copies = !x->bounce.direct && hd__exec_bounce_receives(x);
    int32_t rc = HD_OK;
    if (x->unpack.n)
        hd__exec_permute_blocks(&x->unpack, x->bounce.direct ? x->unpack.tensor : slot->in, 0);
    if (copies)
        rc = copy_chunk(stage, slot, 0, slot->arrived, err);
    l->done++;
    if (++x->bounce.copied_in == x->bounce.chunks) {
        if (!rc && copies)
            rc = d->ops->record(d->handle, x->bounce.arrived, HD_STREAM_IN, err);
        l->head = x->bounce.next;
        l->tail = l->head ? l->tail : &l->head;
        stage->under_way--;
    }
    return rc;
}
