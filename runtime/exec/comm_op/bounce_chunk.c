/* Chunks: how an op is cut, and the steps of a chunk through its slot. See bounce.h. */
#include "runtime/exec/comm_op/bounce.h"

/* ---- chunking */

static int64_t item_bytes(const struct hd__comm_op *x)
{
    return x->n_messages ? 1 : (int64_t)hd_dtype_size(x->call.dtype);
}

/* Elements of a call; bytes of a message. */
static int64_t item_count(const struct hd__comm_op *x)
{
    return x->n_messages ? (int64_t)x->message[0].bytes : (int64_t)x->call.count;
}

/* Blocks of item_count() that a member sends, and receives, in a call. */
static int64_t blocks_out(const struct hd__comm_op *x)
{
    return x->call.coll == HD_COLL_REDUCE_SCATTER || x->pack.n ? x->group.of->n : 1;
}

static int64_t blocks_in(const struct hd__comm_op *x)
{
    return x->call.coll == HD_COLL_ALL_GATHER || x->unpack.n ? x->group.of->n : 1;
}

/* The output overwrites the input in the slot. */
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

enum { CHUNK_ALIGN = 64 }; /* elements: chunks start at cache lines */

static int64_t max_chunk_items(int64_t widest, int64_t chunk)
{
    return HD__MAX(CHUNK_ALIGN, chunk / widest / CHUNK_ALIGN * CHUNK_ALIGN);
}

int64_t hd__exec_bounce_chunk_count(int64_t all, int64_t widest, int64_t chunk)
{
    return HD__MIN(all, max_chunk_items(widest, chunk));
}

void hd__exec_bounce_split(const struct hd__bounce *b, struct hd__bounce_op *x)
{
    const struct hd__comm_op *op = &x->op;
    int64_t all = item_count(op), calls = HD__MAX(1, op->n_calls),
            widest = HD__MAX(blocks_out(op), blocks_in(op)) * item_bytes(op);
    int64_t most = max_chunk_items(widest, b->chunk), bytes;
    int whole = x->direct || op->pack.n, root = op->call.coll == HD_COLL_BROADCAST && op->call.root == op->group.of->me;
    struct hd__bounce_queue *q = x->queue;
    x->chunk_count = whole ? all : hd__exec_bounce_chunk_count(all, widest, b->chunk);
    x->per_call = x->chunk_count ? (uint32_t)((all + x->chunk_count - 1) / x->chunk_count) : 1;
    x->calls = whole ? calls : x->per_call > 1 ? 1 : HD__MIN(calls, HD__MAX(1, most / HD__MAX(1, all)));
    x->chunks = x->per_call > 1 ? (uint32_t)calls * x->per_call : (uint32_t)((calls + x->calls - 1) / x->calls);
    q->request_room = HD__MAX(q->request_room, op->n_messages ? op->n_messages : (uint32_t)x->calls);
    if (x->direct)
        return;
    x->copies_out = op->n_messages ? message_of(op, 0) != NULL : root || op->call.coll != HD_COLL_BROADCAST;
    x->copies_in = op->n_messages ? message_of(op, 1) != NULL : !root || op->call.send != op->call.recv;
    bytes = x->chunk_count * x->calls * item_bytes(op);
    q->out_room = HD__MAX(q->out_room, bytes * blocks_out(op));
    q->in_room = HD__MAX(q->in_room, in_place(op) ? 0 : bytes * blocks_in(op));
}

/* Elements from `first` on of `calls` calls from `call` on; several calls only where none is cut. */
struct chunk {
    int64_t call, calls, first, count;
};

static struct chunk chunk_of(const struct hd__bounce_op *x, uint32_t n)
{
    struct chunk c = {.calls = 1, .count = item_count(&x->op)};
    if (x->per_call > 1) {
        c.call = n / x->per_call;
        c.first = n % x->per_call * x->chunk_count;
        c.count = HD__MIN(x->chunk_count, c.count - c.first);
    } else {
        c.call = n * x->calls;
        c.calls = HD__MIN(x->calls, HD__MAX(1, x->op.n_calls) - c.call);
    }
    return c;
}

/* ---- copies between a slot and the tensors */

struct side {
    char *device, *host;
    int64_t blocks, stride; /* stride: bytes between calls in device memory */
    uint32_t stream;
};

static int32_t copy_bytes(const struct hd__device *d, const struct side *side, char *device, char *host, int64_t bytes,
                          struct hd_error *err)
{
    int out = side->stream == HD_STREAM_OUT;
    return bytes ? d->ops->copy(d->handle, side->stream, out ? host : device, out ? device : host, (size_t)bytes, err)
                 : HD_OK;
}

/* Whole calls are contiguous on both sides; of one that is cut, each block has its own run. */
static int32_t copy_side(const struct hd__comm_op *x, const struct chunk *c, const struct side *side,
                         struct hd_error *err)
{
    const struct hd__device *d = x->path->device;
    int64_t item = item_bytes(x), part = c->count * item, whole = item_count(x) * item;
    char *from = side->device + c->call * side->stride;
    int32_t rc = HD_OK;
    if (part == whole)
        return copy_bytes(d, side, from, side->host, c->calls * whole * side->blocks, err);
    for (int64_t k = 0; k < side->blocks && !rc; k++)
        rc = copy_bytes(d, side, from + k * whole + c->first * item, side->host + k * part, part, err);
    return rc;
}

static struct side side_of(const struct hd__comm_op *x, const struct hd__bounce_slot *slot, int out)
{
    const struct hd__p2p_message *m = message_of(x, !out);
    struct side side = {.host = out || in_place(x) ? slot->out : slot->in,
                        .blocks = out ? blocks_out(x) : blocks_in(x),
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

/* Ordered after the compute before the op; records `done`. */
static int32_t copy_chunk(const struct hd__bounce_slot *slot, int out, struct hd_event *done, struct hd_error *err)
{
    const struct hd__comm_op *x = &slot->x->op;
    const struct hd__device *d = x->path->device;
    struct chunk c = chunk_of(slot->x, slot->chunk);
    struct side side = side_of(x, slot, out);
    int32_t rc = slot->chunk ? HD_OK : d->ops->follow(d->handle, side.stream, slot->x->ready, err);
    if (!rc)
        rc = copy_side(x, &c, &side, err);
    return rc ? rc : d->ops->record(d->handle, done, side.stream, err);
}

/* ---- steps of a chunk */

int32_t hd__exec_chunk_copy_out(struct hd__bounce *b, struct hd__bounce_queue *q, struct hd_error *err)
{
    struct hd__bounce_slot *slot = &q->slot[q->sent % HD__BOUNCE_SLOTS];
    struct hd__bounce_op *x = q->head;
    while (x && x->copied_out == x->chunks)
        x = x->next;
    if (!x || q->sent - q->done == HD__BOUNCE_SLOTS)
        return 0;
    int32_t rc = hd__exec_device_reached(b->path.device, slot->arrived, err);
    if (rc != 1)
        return rc;
    slot->x = x;
    slot->chunk = x->copied_out++;
    q->sent++;
    rc = x->copies_out ? copy_chunk(slot, 1, slot->copied, err) : HD_OK;
    return rc ? rc : 1;
}

static int32_t post_messages(struct hd__bounce_slot *slot, const struct chunk *c, struct hd_error *err)
{
    const struct hd__comm_op *x = &slot->x->op;
    int32_t rc = HD_OK;
    for (uint32_t n = 0; n < x->n_messages && !rc; n++) {
        const struct hd__p2p_message *m = &x->message[n];
        char *data = slot->x->direct ? (char *)m->data + c->first : m->receives ? slot->in : slot->out;
        rc = hd__exec_post_message(x, m, data, (uint64_t)c->count, &slot->requests[slot->n_requests], err);
        rc = hd__comm_done(rc, "collective", err);
        slot->n_requests += !rc;
    }
    return rc;
}

static int32_t post_calls(struct hd__bounce_slot *slot, const struct chunk *c, struct hd_error *err)
{
    const struct hd__comm_op *x = &slot->x->op;
    int64_t out = c->count * blocks_out(x) * item_bytes(x), in = c->count * blocks_in(x) * item_bytes(x);
    char *recv = in_place(x) ? slot->out : slot->in;
    int32_t rc = HD_OK;
    if (x->pack.n)
        hd__exec_permute_blocks(&x->pack, slot->x->direct ? x->pack.tensor : slot->out, 1);
    for (int64_t k = 0; k < c->calls && !rc; k++) {
        struct hd_comm_call call = x->call;
        call.count = (uint64_t)c->count;
        if (slot->x->direct) {
            call.send = (const char *)x->call.send + k * x->send_stride;
            call.recv = (char *)x->call.recv + k * x->recv_stride;
        } else if (!x->pack.n) {
            call.send = slot->out + k * out;
            call.recv = recv + k * in;
        }
        rc = x->group.transport->ops->collective(x->group.of->group, &call, &slot->requests[slot->n_requests], err);
        rc = hd__comm_done(rc, "collective", err);
        slot->n_requests += !rc;
    }
    return rc;
}

int32_t hd__exec_chunk_post(struct hd__bounce *b, struct hd__bounce_queue *q, struct hd_error *err)
{
    struct hd__progress_thread *thread = b->path.transports->progress_thread;
    struct hd__bounce_slot *slot = &q->slot[q->posted % HD__BOUNCE_SLOTS];
    struct hd__bounce_op *x = slot->x;
    int32_t rc = 1;
    if (q->posted == q->sent)
        return 0;
    if (x->direct || x->copies_out)
        rc = hd__exec_device_reached(b->path.device, x->direct ? x->ready : slot->copied, err);
    if (rc != 1)
        return rc;
    struct chunk c = chunk_of(x, slot->chunk);
    slot->n_requests = 0;
    hd__exec_progress_lock(thread);
    rc = x->op.n_messages ? post_messages(slot, &c, err) : post_calls(slot, &c, err);
    hd__exec_progress_unlock(thread, (int32_t)slot->n_requests);
    q->posted++;
    return rc ? rc : 1;
}

/* 1 when all requests of the slot are completed. */
static int32_t test_requests(const struct hd__bounce *b, struct hd__bounce_slot *slot, struct hd_error *err)
{
    struct hd__progress_thread *thread = b->path.transports->progress_thread;
    struct hd__transport *t = slot->x->op.group.transport;
    int32_t rc = HD_OK, less = 0;
    hd__exec_progress_lock(thread);
    for (uint32_t n = 0; n < slot->n_requests && !rc;) {
        int32_t done = 0;
        rc = hd__comm_done(t->ops->test(t->comm, slot->requests[n], &done, err), "test", err);
        if (!done && !rc) {
            n++;
            continue;
        }
        slot->requests[n] = slot->requests[--slot->n_requests];
        less--;
    }
    hd__exec_progress_unlock(thread, less);
    return rc ? rc : !slot->n_requests;
}

int32_t hd__exec_chunk_copy_in(struct hd__bounce *b, struct hd__bounce_queue *q, struct hd_error *err)
{
    const struct hd__device *d = b->path.device;
    struct hd__bounce_slot *slot = &q->slot[q->done % HD__BOUNCE_SLOTS];
    struct hd__bounce_op *x = slot->x;
    int32_t rc = q->done == q->posted ? 0 : test_requests(b, slot, err);
    if (rc != 1)
        return rc;
    if (x->op.unpack.n)
        hd__exec_permute_blocks(&x->op.unpack, x->direct ? x->op.unpack.tensor : slot->in, 0);
    rc = x->copies_in ? copy_chunk(slot, 0, slot->arrived, err) : HD_OK;
    q->done++;
    if (++x->copied_in == x->chunks) {
        if (!rc && x->copies_in)
            rc = d->ops->record(d->handle, x->arrived, HD_STREAM_IN, err);
        q->head = x->next;
        q->tail = q->head ? q->tail : &q->head;
        b->path.under_way--;
    }
    return rc ? rc : 1;
}
