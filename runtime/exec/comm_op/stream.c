/* The stream path: transports that enqueue their operations in a stream of the device (HD_COMM_STREAM_ORDERED).
 *
 * An op starts after an event of the compute stream; the wait orders the compute stream behind its end, without
 * blocking the host. Ops in flight are polled, for the flight recorder, and so that one that hangs on the device for
 * longer than comm.timeout ends the job. Kernels on the compute stream pack and unpack an all_to_all. */
#include <stdlib.h>

#include "runtime/exec/comm_op/internal.h"

/* One op, or all of a replayed graph. */
struct hd__stream_inflight {
    struct hd__stream_inflight *next;
    struct hd_event *ready, *done;
    const char *name;                   /* of the first operation */
    HD__ARRAY(uint64_t) flight_numbers; /* in the flight recorder */
    int32_t wait_recorded, reserved;    /* `done` is recorded */
};

struct stream_path {
    struct hd__comm_path path;
    struct hd__flight *flight;
    struct hd__clock *clock;
    struct hd__stream_inflight *head, **tail; /* in flight, in order */
    struct hd__stream_inflight *unused;
    double timeout, since; /* since: when the head's start event completed; 0: not yet */
    double looked;         /* when `since` was last looked at */
    int32_t capturing, reserved;
};

struct stream_op {
    struct hd__comm_op op;
    struct hd__stream_inflight *inflight; /* while it is pending */
    struct hd_event *ready, *done;        /* in a capture */
    struct hd_kernel *pack, *unpack;      /* NULL: one device copy for each run */
};

/* ---- ops in flight */

static void free_list(const struct stream_path *s, struct hd__stream_inflight *w)
{
    for (struct hd__stream_inflight *next; w; w = next) {
        next = w->next;
        hd__exec_device_free_event(s->path.device, w->ready);
        hd__exec_device_free_event(s->path.device, w->done);
        hd__free_array(&w->flight_numbers);
        free(w);
    }
}

static int32_t take_inflight(struct stream_path *s, struct hd__stream_inflight **inflight, struct hd_error *err)
{
    struct hd__stream_inflight *w = s->unused;
    if (w) {
        s->unused = w->next;
        w->flight_numbers.count = 0;
        w->wait_recorded = 0;
        *inflight = w;
        return HD_OK;
    }
    w = hd__alloc(sizeof *w);
    int32_t rc = hd__exec_device_create_event(s->path.device, &w->ready, err);
    if (!rc)
        rc = hd__exec_device_create_event(s->path.device, &w->done, err);
    if (rc)
        free_list(s, w);
    else
        *inflight = w;
    return rc;
}

static void record_start(struct stream_path *s, struct hd__stream_inflight *w, const struct hd__comm_op *x)
{
    w->name = w->flight_numbers.count ? w->name : x->flight_op.name;
    hd__push(&w->flight_numbers, hd__comm_flight_start(s->flight, &x->flight_op, hd__clock_now(s->clock)));
}

static void append_inflight(struct stream_path *s, struct hd__stream_inflight *w)
{
    w->next = NULL;
    *s->tail = w;
    s->tail = &w->next;
    s->path.under_way++;
}

static void complete_head(struct stream_path *s, double now, int32_t code)
{
    struct hd__stream_inflight *w = s->head;
    for (uint32_t n = 0; n < w->flight_numbers.count; n++)
        hd__comm_flight_end(s->flight, w->flight_numbers.at[n], now, code);
    s->head = w->next;
    s->tail = s->head ? s->tail : &s->head;
    w->next = s->unused;
    s->unused = w;
    s->since = 0;
    s->path.under_way--;
}

/* HD_E_TIMEOUT where the oldest op has run on the device for longer than comm.timeout. */
static int32_t stream_progress(struct hd__comm_path *path, struct hd_error *err)
{
    struct stream_path *s = (struct stream_path *)path;
    double now = hd__clock_now(s->clock);
    int32_t rc = 1;
    while (s->head && s->head->wait_recorded && rc == 1) {
        rc = hd__exec_device_reached(path->device, s->head->done, err);
        if (rc == 1)
            complete_head(s, now, HD_OK);
    }
    if (rc < 0 || !s->head || !s->head->wait_recorded)
        return HD__MIN(rc, HD_OK);
    s->since = s->since > 0 ? hd_excuse(s->since, s->looked, HD_LOOK_SECONDS, now) : 0;
    s->looked = now;
    if (s->since == 0) {
        rc = hd__exec_device_reached(path->device, s->head->ready, err);
        if (rc == 1)
            s->since = now;
    }
    if (rc < 0 || s->since == 0 || now < s->since + s->timeout)
        return HD__MIN(rc, HD_OK);
    rc = hd_fail(err, HD_E_TIMEOUT,
                 "%s%s: not finished after %.0f s (comm.timeout) on the device: check that all ranks are alive and run "
                 "the same operations",
                 s->head->name, s->head->flight_numbers.count > 1 ? ", or one that follows it" : "", s->timeout);
    complete_head(s, now, rc);
    return rc;
}

/* ---- packing */

/* Allocates the blocks in device memory and prepares the permuting copy [outer, n, inner] <-> [n, outer, inner]. */
static int32_t prepare_blocks(const struct hd__comm_op *x, struct hd__block_layout *s, struct hd_kernel **kernel,
                              struct hd_error *err)
{
    const struct hd__device *d = x->path->device;
    uint32_t dtype = x->call.dtype;
    int64_t inner = s->inner / (int64_t)hd_dtype_size(dtype);
    int to_blocks = s == &x->pack;
    void *memory = NULL;
    int32_t rc = d->ops->alloc(d->handle, HD_MEM_DEVICE, (size_t)(s->outer * s->n * s->inner), &memory, err);
    s->blocks = memory;
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
    return rc || !(d->ops->caps & HD_DEVICE_PERMUTES) ? rc : d->ops->prepare(d->handle, &desc, kernel, err);
}

static int32_t run_permute(const struct hd__device *d, const struct hd__block_layout *s, struct hd_kernel *kernel,
                           int to_blocks, struct hd_error *err)
{
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

static void release_blocks(const struct hd__device *d, struct hd__block_layout *s, struct hd_kernel *kernel)
{
    if (kernel)
        d->ops->release(d->handle, kernel);
    if (s->blocks)
        d->ops->free(d->handle, HD_MEM_DEVICE, s->blocks);
}

/* ---- ops */

static int32_t stream_prepare(struct hd__comm_op *op, struct hd_error *err)
{
    struct stream_op *x = (struct stream_op *)op;
    int32_t rc = hd__exec_device_create_event(op->path->device, &x->ready, err);
    if (!rc)
        rc = hd__exec_device_create_event(op->path->device, &x->done, err);
    if (rc || !op->pack.n)
        return rc;
    rc = prepare_blocks(op, &op->pack, &x->pack, err);
    if (!rc)
        rc = prepare_blocks(op, &op->unpack, &x->unpack, err);
    op->call.send = op->pack.blocks;
    op->call.recv = op->unpack.blocks;
    return rc;
}

static void stream_release(struct hd__comm_op *op)
{
    struct stream_op *x = (struct stream_op *)op;
    hd__exec_device_free_event(op->path->device, x->ready);
    hd__exec_device_free_event(op->path->device, x->done);
    release_blocks(op->path->device, &op->pack, x->pack);
    release_blocks(op->path->device, &op->unpack, x->unpack);
}

static int32_t stream_start(struct hd__comm_op *op, struct hd_error *err)
{
    struct stream_op *x = (struct stream_op *)op;
    struct stream_path *s = (struct stream_path *)op->path;
    int32_t rc = HD_OK;
    x->inflight = NULL;
    if (!s->capturing) {
        rc = take_inflight(s, &x->inflight, err);
        if (rc)
            return rc;
        record_start(s, x->inflight, op);
        append_inflight(s, x->inflight);
    }
    if (op->pack.n)
        rc = run_permute(s->path.device, &op->pack, x->pack, 1, err);
    if (!rc)
        rc = hd__exec_device_order_streams(s->path.device, HD_STREAM_COMPUTE, HD_STREAM_COMM,
                                           x->inflight ? x->inflight->ready : x->ready, err);
    return rc ? rc : hd__exec_comm_op_post(op, err);
}

/* Orders compute behind the op. The transport completes a request when its operations are enqueued, and only what
 * the stream gets after that runs after them: so the requests are waited for before the event is recorded. */
static int32_t stream_wait(struct hd__comm_op *op, double deadline, struct hd_error *err)
{
    struct stream_op *x = (struct stream_op *)op;
    const struct hd__device *d = op->path->device;
    struct hd__stream_inflight *w = x->inflight;
    int32_t rc = hd__exec_comm_op_wait_requests(op, deadline, err);
    if (!rc)
        rc = hd__exec_device_order_streams(d, HD_STREAM_COMM, HD_STREAM_COMPUTE, w ? w->done : x->done, err);
    if (w)
        w->wait_recorded = 1;
    return rc || !op->unpack.n ? rc : run_permute(d, &op->unpack, x->unpack, 0, err);
}

static void stream_cancel(struct hd__comm_op *op, double deadline)
{
    for (uint32_t n = 0; n < op->n_requests; n++) {
        struct hd_error none = HD_ERROR_INIT;
        (void)hd__exec_transports_wait(op->path->transports, op->group.transport, op->requests[n], deadline, &none);
    }
}

/* ---- graph capture */

void hd__exec_comm_ops_set_capturing(struct hd__comm_op *const *ops, uint32_t n, int32_t on)
{
    if (n)
        ((struct stream_path *)ops[0]->path)->capturing = on;
}

int32_t hd__exec_comm_ops_begin_replay(struct hd__comm_op *const *ops, uint32_t n,
                                       struct hd__stream_inflight **inflight, struct hd_error *err)
{
    struct stream_path *s = (struct stream_path *)ops[0]->path;
    const struct hd__device *d = s->path.device;
    int32_t rc = take_inflight(s, inflight, err);
    if (rc)
        return rc;
    for (uint32_t k = 0; k < n; k++)
        record_start(s, *inflight, ops[k]);
    append_inflight(s, *inflight);
    return d->ops->record(d->handle, (*inflight)->ready, HD_STREAM_COMPUTE, err);
}

int32_t hd__exec_comm_ops_end_replay(struct hd__comm_op *const *ops, struct hd__stream_inflight *inflight,
                                     struct hd_error *err)
{
    const struct hd__device *d = ops[0]->path->device;
    inflight->wait_recorded = 1;
    return d->ops->record(d->handle, inflight->done, HD_STREAM_COMPUTE, err);
}

/* ---- the path */

static void stream_free(struct hd__comm_path *path)
{
    struct stream_path *s = (struct stream_path *)path;
    free_list(s, s->head);
    free_list(s, s->unused);
    free(s);
}

static const struct hd__comm_path_ops stream_ops = {.op_bytes = sizeof(struct stream_op),
                                                    .capturable = 1,
                                                    .prepare = stream_prepare,
                                                    .release = stream_release,
                                                    .start = stream_start,
                                                    .wait = stream_wait,
                                                    .cancel = stream_cancel,
                                                    .progress = stream_progress,
                                                    .free = stream_free};

struct hd__comm_path *hd__exec_stream_create(struct hd__transports *transports, struct hd__flight *flight,
                                             struct hd__clock *clock, double timeout)
{
    struct stream_path *s = hd__alloc(sizeof *s);
    s->path = (struct hd__comm_path){.ops = &stream_ops, .device = transports->device, .transports = transports};
    s->flight = flight;
    s->clock = clock;
    s->timeout = timeout;
    s->tail = &s->head;
    return &s->path;
}
