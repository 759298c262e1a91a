/* Exchanges on the device's own streams: see stream_comm.h. */
#include "runtime/exec/stream_comm.h"

#include <stdlib.h>

#include "runtime/exec/comm_op_internal.h"

struct hd__watched {
    struct hd__watched *next;
    struct hd_event *ready, *done;
    const char *name; /* of the first operation */
    uint64_t *flown;  /* their numbers in the recorder */
    uint32_t n, room;
    int32_t ended, reserved; /* compute has come to the wait: `done` says when it is complete */
};

struct hd__ordered {
    const struct hd__device *device;
    struct hd__transports *transports;
    struct hd__watched *head, **tail; /* under way, in order */
    struct hd__watched *unused;
    double timeout, since; /* since when the first of them may run; 0: it has not begun */
    int32_t capturing, reserved;
};

/* ---- what is watched */

struct hd__ordered *hd__ordered_create(const struct hd__device *d, struct hd__transports *transports, double timeout)
{
    struct hd__ordered *o = hd__alloc(sizeof *o);
    o->device = d;
    o->transports = transports;
    o->timeout = timeout;
    o->tail = &o->head;
    return o;
}

static void free_list(const struct hd__ordered *o, struct hd__watched *w)
{
    for (struct hd__watched *next; w; w = next) {
        next = w->next;
        hd__device_event_free(o->device, w->ready);
        hd__device_event_free(o->device, w->done);
        free(w->flown);
        free(w);
    }
}

void hd__ordered_free(struct hd__ordered *o)
{
    if (!o)
        return;
    free_list(o, o->head);
    free_list(o, o->unused);
    free(o);
}

static int32_t take(struct hd__ordered *o, struct hd__watched **watched, struct hd_error *err)
{
    struct hd__watched *w = o->unused;
    int32_t rc;
    if (w) {
        o->unused = w->next;
        w->n = 0;
        w->ended = 0;
        *watched = w;
        return HD_OK;
    }
    w = hd__alloc(sizeof *w);
    rc = hd__device_event(o->device, &w->ready, err);
    if (!rc)
        rc = hd__device_event(o->device, &w->done, err);
    if (rc)
        free_list(o, w);
    else
        *watched = w;
    return rc;
}

static void fly(struct hd__ordered *o, struct hd__watched *w, const struct hd__exchange *x)
{
    uint64_t flown = hd__flight_start(o->transports->flight, &x->flight, hd__clock_now(&o->transports->clock));
    struct {
        uint64_t *at;
        uint32_t count, room;
    } all = {w->flown, w->n, w->room};
    hd__push(&all, flown);
    w->name = w->n ? w->name : x->flight.name;
    w->flown = all.at;
    w->n = all.count;
    w->room = all.room;
}

static void watch(struct hd__ordered *o, struct hd__watched *w)
{
    w->next = NULL;
    *o->tail = w;
    o->tail = &w->next;
}

static void land(struct hd__ordered *o, double now, int32_t code)
{
    struct hd__watched *w = o->head;
    for (uint32_t n = 0; n < w->n; n++)
        hd__flight_end(o->transports->flight, w->flown[n], now, code);
    o->head = w->next;
    o->tail = o->head ? o->tail : &o->head;
    w->next = o->unused;
    o->unused = w;
    o->since = 0;
}

static int32_t reached(const struct hd__ordered *o, struct hd_event *event, int32_t *done, struct hd_error *err)
{
    return o->device->ops->reached(o->device->at, event, done, err);
}

int32_t hd__ordered_look(struct hd__ordered *o, struct hd_error *err)
{
    double now = hd__clock_now(&o->transports->clock);
    int32_t done = 1, rc = HD_OK;
    while (o->head && o->head->ended && done && !rc) {
        rc = reached(o, o->head->done, &done, err);
        if (!rc && done)
            land(o, now, HD_OK);
    }
    if (rc || !o->head || !o->head->ended)
        return rc;
    done = 0;
    if (o->since == 0)
        rc = reached(o, o->head->ready, &done, err);
    if (done)
        o->since = now;
    if (rc || o->since == 0 || now < o->since + o->timeout)
        return rc;
    rc = hd_fail(err, HD_E_TIMEOUT, "%s%s: on the device for %.0f s (comm.timeout) without coming to an end: is another rank "
                 "somewhere else?", o->head->name, o->head->n > 1 ? ", or one that follows it" : "", o->timeout);
    land(o, now, rc);
    return rc;
}

int32_t hd__ordered_busy(const struct hd__ordered *o)
{
    return o->head != NULL;
}

/* ---- packing */

/* [outer, n, inner] <-> [n, outer, inner]: a copy whose dims stand in another order. */
static int32_t prepare_shuffle(struct hd__ordered *o, const struct hd__shuffle *s, uint32_t dtype, int to_blocks,
                               struct hd_kernel **kernel, struct hd_error *err)
{
    int64_t inner = s->inner / (int64_t)hd_dtype_size(dtype);
    struct hd_operand tensor = {.data = s->tensor, .dtype = dtype, .ndim = 3, .dim = {'a', 'b', 'c'},
                                .extent = {s->outer, s->n, inner}};
    struct hd_operand blocks = {.data = s->blocks, .dtype = dtype, .ndim = 3, .dim = {'b', 'a', 'c'},
                                .extent = {s->n, s->outer, inner}};
    struct hd_instr_desc desc = {.struct_size = sizeof desc, .op = HD_OP_COPY, .n_in = 1, .n_out = 1,
                                 .in = to_blocks ? &tensor : &blocks, .out = to_blocks ? &blocks : &tensor,
                                 .attrs = {.struct_size = sizeof desc.attrs, .peer = -1}, .label = "all_to_all"};
    if (!(o->device->ops->caps & HD_DEVICE_PERMUTES))
        return HD_OK;
    return o->device->ops->prepare(o->device->at, &desc, kernel, err);
}

static int32_t shuffle(struct hd__ordered *o, const struct hd__shuffle *s, struct hd_kernel *kernel, int to_blocks,
                       struct hd_error *err)
{
    const struct hd__device *d = o->device;
    int32_t rc = HD_OK;
    if (kernel)
        return d->ops->launch(d->at, kernel, HD_STREAM_COMPUTE, err);
    for (int64_t b = 0; b < s->n; b++)
        for (int64_t k = 0; k < s->outer && !rc; k++) {
            char *block = s->blocks + (b * s->outer + k) * s->inner, *piece = s->tensor + (k * s->n + b) * s->inner;
            rc = d->ops->copy(d->at, HD_STREAM_COMPUTE, to_blocks ? block : piece, to_blocks ? piece : block, (size_t)s->inner, err);
        }
    return rc;
}

/* ---- an exchange */

int32_t hd__ordered_add(struct hd__ordered *o, struct hd__exchange *x, struct hd_error *err)
{
    int32_t rc = hd__device_event(o->device, &x->order.ready, err);
    if (!rc)
        rc = hd__device_event(o->device, &x->order.done, err);
    if (!rc && x->pack.n)
        rc = prepare_shuffle(o, &x->pack, x->call.dtype, 1, &x->order.pack, err);
    if (!rc && x->unpack.n)
        rc = prepare_shuffle(o, &x->unpack, x->call.dtype, 0, &x->order.unpack, err);
    return rc;
}

void hd__ordered_remove(struct hd__ordered *o, struct hd__exchange *x)
{
    hd__device_event_free(o->device, x->order.ready);
    hd__device_event_free(o->device, x->order.done);
    if (x->order.pack)
        o->device->ops->release(o->device->at, x->order.pack);
    if (x->order.unpack)
        o->device->ops->release(o->device->at, x->order.unpack);
}

int32_t hd__ordered_start(struct hd__ordered *o, struct hd__exchange *x, struct hd_error *err)
{
    const struct hd__device *d = o->device;
    struct hd_event *ready = x->order.ready;
    struct hd__watched *w = NULL;
    int32_t rc = o->capturing ? HD_OK : take(o, &w, err);
    if (rc)
        return rc;
    if (w) {
        fly(o, w, x);
        watch(o, w);
        ready = w->ready;
    }
    x->order.watched = w;
    if (x->pack.n)
        rc = shuffle(o, &x->pack, x->order.pack, 1, err);
    if (!rc)
        rc = hd__device_order(d, HD_STREAM_COMPUTE, HD_STREAM_COMM, ready, err);
    return rc ? rc : hd__exchange_post(x, err);
}

/* The transport says done when its operations are in the stream; from then on the stream waits for them, and what it is given
 * earlier does not. So they are asked for here. */
static int32_t join(struct hd__ordered *o, struct hd__exchange *x, struct hd_error *err)
{
    double deadline = hd__clock_now(&o->transports->clock) + o->timeout;
    int32_t rc = HD_OK;
    for (uint32_t n = 0; n < x->n_requests && !rc; n++)
        rc = hd__transports_wait(o->transports, x->group.transport, x->requests[n], deadline, err);
    return rc;
}

int32_t hd__ordered_wait(struct hd__ordered *o, struct hd__exchange *x, struct hd_error *err)
{
    const struct hd__device *d = o->device;
    struct hd__watched *w = x->order.watched;
    int32_t rc = join(o, x, err);
    if (!rc)
        rc = hd__device_order(d, HD_STREAM_COMM, HD_STREAM_COMPUTE, w ? w->done : x->order.done, err);
    if (w)
        w->ended = 1;
    return rc || !x->unpack.n ? rc : shuffle(o, &x->unpack, x->order.unpack, 0, err);
}

/* ---- captured pieces */

void hd__ordered_capture(struct hd__ordered *o, int32_t on)
{
    o->capturing = on;
}

int32_t hd__ordered_begin(struct hd__ordered *o, struct hd__exchange *const *x, uint32_t n, struct hd__watched **watched,
                          struct hd_error *err)
{
    int32_t rc = take(o, watched, err);
    if (rc)
        return rc;
    for (uint32_t k = 0; k < n; k++)
        fly(o, *watched, x[k]);
    watch(o, *watched);
    return o->device->ops->record(o->device->at, (*watched)->ready, HD_STREAM_COMPUTE, err);
}

int32_t hd__ordered_end(struct hd__ordered *o, struct hd__watched *watched, struct hd_error *err)
{
    watched->ended = 1;
    return o->device->ops->record(o->device->at, watched->done, HD_STREAM_COMPUTE, err);
}
