/* Exchanges on the device's own streams: see stream.h. */
#include "runtime/exec/comm_op/stream.h"

#include <stdlib.h>

#include "runtime/exec/comm_op/internal.h"

struct hd__stream_inflight {
    struct hd__stream_inflight *next;
    struct hd_event *ready, *done;
    const char *name;         /* of the first operation */
    uint64_t *flight_numbers; /* their numbers in the recorder */
    uint32_t n, room;
    int32_t wait_recorded, reserved; /* compute has come to the wait: `done` says when it is complete */
};

struct hd__stream_comm {
    const struct hd__device *device;
    struct hd__transports *transports;
    struct hd__stream_inflight *head, **tail; /* under way, in order */
    struct hd__stream_inflight *unused;
    double timeout, since; /* since when the first of them may run; 0: it has not begun */
    int32_t capturing, reserved;
};

/* ---- what is watched */

struct hd__stream_comm *hd__exec_stream_comm_create(const struct hd__device *d, struct hd__transports *transports,
                                                    double timeout)
{
    struct hd__stream_comm *o = hd__alloc(sizeof *o);
    o->device = d;
    o->transports = transports;
    o->timeout = timeout;
    o->tail = &o->head;
    return o;
}

static void free_list(const struct hd__stream_comm *o, struct hd__stream_inflight *w)
{
    for (struct hd__stream_inflight *next; w; w = next) {
        next = w->next;
        hd__exec_device_free_event(o->device, w->ready);
        hd__exec_device_free_event(o->device, w->done);
        free(w->flight_numbers);
        free(w);
    }
}

void hd__exec_stream_comm_free(struct hd__stream_comm *o)
{
    if (!o)
        return;
    free_list(o, o->head);
    free_list(o, o->unused);
    free(o);
}

static int32_t take_inflight(struct hd__stream_comm *o, struct hd__stream_inflight **watched, struct hd_error *err)
{
    struct hd__stream_inflight *w = o->unused;
    int32_t rc;
    if (w) {
        o->unused = w->next;
        w->n = 0;
        w->wait_recorded = 0;
        *watched = w;
        return HD_OK;
    }
    w = hd__alloc(sizeof *w);
    rc = hd__exec_device_create_event(o->device, &w->ready, err);
    if (!rc)
        rc = hd__exec_device_create_event(o->device, &w->done, err);
    if (rc)
        free_list(o, w);
    else
        *watched = w;
    return rc;
}

static void record_start(struct hd__stream_comm *o, struct hd__stream_inflight *w, const struct hd__comm_op *x)
{
    uint64_t flown = hd__comm_flight_start(o->transports->flight, &x->flight_op, hd__clock_now(&o->transports->clock));
    struct {
        uint64_t *at;
        uint32_t count, room;
    } all = {w->flight_numbers, w->n, w->room};
    hd__push(&all, flown);
    w->name = w->n ? w->name : x->flight_op.name;
    w->flight_numbers = all.at;
    w->n = all.count;
    w->room = all.room;
}

static void append_inflight(struct hd__stream_comm *o, struct hd__stream_inflight *w)
{
    w->next = NULL;
    *o->tail = w;
    o->tail = &w->next;
}

static void complete_head(struct hd__stream_comm *o, double now, int32_t code)
{
    struct hd__stream_inflight *w = o->head;
    for (uint32_t n = 0; n < w->n; n++)
        hd__comm_flight_end(o->transports->flight, w->flight_numbers[n], now, code);
    o->head = w->next;
    o->tail = o->head ? o->tail : &o->head;
    w->next = o->unused;
    o->unused = w;
    o->since = 0;
}

static int32_t event_reached(const struct hd__stream_comm *o, struct hd_event *event, int32_t *done,
                             struct hd_error *err)
{
    return o->device->ops->reached(o->device->handle, event, done, err);
}

int32_t hd__exec_stream_comm_poll(struct hd__stream_comm *o, struct hd_error *err)
{
    double now = hd__clock_now(&o->transports->clock);
    int32_t done = 1, rc = HD_OK;
    while (o->head && o->head->wait_recorded && done && !rc) {
        rc = event_reached(o, o->head->done, &done, err);
        if (!rc && done)
            complete_head(o, now, HD_OK);
    }
    if (rc || !o->head || !o->head->wait_recorded)
        return rc;
    done = 0;
    if (o->since == 0)
        rc = event_reached(o, o->head->ready, &done, err);
    if (done)
        o->since = now;
    if (rc || o->since == 0 || now < o->since + o->timeout)
        return rc;
    rc = hd_fail(err, HD_E_TIMEOUT,
                 "%s%s: on the device for %.0f s (comm.timeout) without coming to an end: is another rank "
                 "somewhere else?",
                 o->head->name, o->head->n > 1 ? ", or one that follows it" : "", o->timeout);
    complete_head(o, now, rc);
    return rc;
}

int32_t hd__exec_stream_comm_busy(const struct hd__stream_comm *o)
{
    return o->head != NULL;
}

/* ---- packing */

/* [outer, n, inner] <-> [n, outer, inner]: a copy whose dims stand in another order. */
static int32_t prepare_permute(struct hd__stream_comm *o, const struct hd__block_layout *s, uint32_t dtype,
                               int to_blocks, struct hd_kernel **kernel, struct hd_error *err)
{
    int64_t inner = s->inner / (int64_t)hd_dtype_size(dtype);
    struct hd_operand tensor = {
        .data = s->tensor, .dtype = dtype, .ndim = 3, .dim = {'a', 'b', 'c'}, .extent = {s->outer, s->n, inner}};
    struct hd_operand blocks = {
        .data = s->blocks, .dtype = dtype, .ndim = 3, .dim = {'b', 'a', 'c'}, .extent = {s->n, s->outer, inner}};
    struct hd_instr_desc desc = {.struct_size = sizeof desc,
                                 .op = HD_OP_COPY,
                                 .n_in = 1,
                                 .n_out = 1,
                                 .in = to_blocks ? &tensor : &blocks,
                                 .out = to_blocks ? &blocks : &tensor,
                                 .attrs = {.struct_size = sizeof desc.attrs, .peer = -1},
                                 .label = "all_to_all"};
    if (!(o->device->ops->caps & HD_DEVICE_PERMUTES))
        return HD_OK;
    return o->device->ops->prepare(o->device->handle, &desc, kernel, err);
}

static int32_t run_permute(struct hd__stream_comm *o, const struct hd__block_layout *s, struct hd_kernel *kernel,
                           int to_blocks, struct hd_error *err)
{
    const struct hd__device *d = o->device;
    int32_t rc = HD_OK;
    if (kernel)
        return d->ops->launch(d->handle, kernel, HD_STREAM_COMPUTE, err);
    for (int64_t b = 0; b < s->n; b++)
        for (int64_t k = 0; k < s->outer && !rc; k++) {
            char *block = s->blocks + (b * s->outer + k) * s->inner, *piece = s->tensor + (k * s->n + b) * s->inner;
            rc = d->ops->copy(d->handle, HD_STREAM_COMPUTE, to_blocks ? block : piece, to_blocks ? piece : block,
                              (size_t)s->inner, err);
        }
    return rc;
}

/* ---- an exchange */

int32_t hd__exec_stream_comm_register(struct hd__stream_comm *o, struct hd__comm_op *x, struct hd_error *err)
{
    int32_t rc = hd__exec_device_create_event(o->device, &x->stream_op.ready, err);
    if (!rc)
        rc = hd__exec_device_create_event(o->device, &x->stream_op.done, err);
    if (!rc && x->pack.n)
        rc = prepare_permute(o, &x->pack, x->call.dtype, 1, &x->stream_op.pack, err);
    if (!rc && x->unpack.n)
        rc = prepare_permute(o, &x->unpack, x->call.dtype, 0, &x->stream_op.unpack, err);
    return rc;
}

void hd__exec_stream_comm_unregister(struct hd__stream_comm *o, struct hd__comm_op *x)
{
    hd__exec_device_free_event(o->device, x->stream_op.ready);
    hd__exec_device_free_event(o->device, x->stream_op.done);
    if (x->stream_op.pack)
        o->device->ops->release(o->device->handle, x->stream_op.pack);
    if (x->stream_op.unpack)
        o->device->ops->release(o->device->handle, x->stream_op.unpack);
}

int32_t hd__exec_stream_comm_start(struct hd__stream_comm *o, struct hd__comm_op *x, struct hd_error *err)
{
    const struct hd__device *d = o->device;
    struct hd_event *ready = x->stream_op.ready;
    struct hd__stream_inflight *w = NULL;
    int32_t rc = o->capturing ? HD_OK : take_inflight(o, &w, err);
    if (rc)
        return rc;
    if (w) {
        record_start(o, w, x);
        append_inflight(o, w);
        ready = w->ready;
    }
    x->stream_op.inflight = w;
    if (x->pack.n)
        rc = run_permute(o, &x->pack, x->stream_op.pack, 1, err);
    if (!rc)
        rc = hd__exec_device_order_streams(d, HD_STREAM_COMPUTE, HD_STREAM_COMM, ready, err);
    return rc ? rc : hd__exec_comm_op_post(x, err);
}

/* The transport says done when its operations are in the stream; from then on the stream waits for them, and what it is given
 * earlier does not. So they are asked for here. */
static int32_t wait_enqueued(struct hd__stream_comm *o, struct hd__comm_op *x, struct hd_error *err)
{
    double deadline = hd__clock_now(&o->transports->clock) + o->timeout;
    int32_t rc = HD_OK;
    for (uint32_t n = 0; n < x->n_requests && !rc; n++)
        rc = hd__exec_transports_wait(o->transports, x->group.transport, x->requests[n], deadline, err);
    return rc;
}

int32_t hd__exec_stream_comm_wait(struct hd__stream_comm *o, struct hd__comm_op *x, struct hd_error *err)
{
    const struct hd__device *d = o->device;
    struct hd__stream_inflight *w = x->stream_op.inflight;
    int32_t rc = wait_enqueued(o, x, err);
    if (!rc)
        rc = hd__exec_device_order_streams(d, HD_STREAM_COMM, HD_STREAM_COMPUTE, w ? w->done : x->stream_op.done, err);
    if (w)
        w->wait_recorded = 1;
    return rc || !x->unpack.n ? rc : run_permute(o, &x->unpack, x->stream_op.unpack, 0, err);
}

/* ---- captured pieces */

void hd__exec_stream_comm_set_capturing(struct hd__stream_comm *o, int32_t on)
{
    o->capturing = on;
}

int32_t hd__exec_stream_comm_begin_replay(struct hd__stream_comm *o, struct hd__comm_op *const *x, uint32_t n,
                                          struct hd__stream_inflight **watched, struct hd_error *err)
{
    int32_t rc = take_inflight(o, watched, err);
    if (rc)
        return rc;
    for (uint32_t k = 0; k < n; k++)
        record_start(o, *watched, x[k]);
    append_inflight(o, *watched);
    return o->device->ops->record(o->device->handle, (*watched)->ready, HD_STREAM_COMPUTE, err);
}

int32_t hd__exec_stream_comm_end_replay(struct hd__stream_comm *o, struct hd__stream_inflight *watched,
                                        struct hd_error *err)
{
    watched->wait_recorded = 1;
    return o->device->ops->record(o->device->handle, watched->done, HD_STREAM_COMPUTE, err);
}
