/* Bounce-buffer queues and their ops: see bounce.h. */
#include "runtime/exec/comm_op/bounce.h"

#include <stdlib.h>

#include "runtime/comm/request_pool.h"

/* ---- queues */

static struct hd__bounce_queue *find_or_add_queue(struct hd__bounce *b, uint32_t id)
{
    struct hd__bounce_queue *q = b->queues;
    while (q && q->id != id)
        q = q->next;
    if (q)
        return q;
    q = hd__alloc(sizeof *q);
    q->id = id;
    q->tail = &q->head;
    q->next = b->queues;
    return b->queues = q;
}

static int32_t alloc_slot(const struct hd__bounce *b, const struct hd__bounce_queue *q, struct hd__bounce_slot *slot,
                          struct hd_error *err)
{
    int64_t out = (q->out_room + 4095) & ~INT64_C(4095);
    void *memory = NULL;
    int32_t rc = hd__exec_device_create_event(b->path.device, &slot->copied, err);
    if (!rc)
        rc = hd__exec_device_create_event(b->path.device, &slot->arrived, err);
    if (!rc && out + q->in_room > 0)
        rc = hd__exec_device_alloc_pinned(b->path.device, (size_t)(out + q->in_room), &memory, err);
    slot->out = memory;
    slot->in = slot->out ? slot->out + out : NULL;
    slot->requests = hd__alloc(q->request_room * sizeof *slot->requests);
    return rc;
}

int32_t hd__exec_bounce_alloc_slots(struct hd__comm_path *path, struct hd_error *err)
{
    struct hd__bounce *b = (struct hd__bounce *)path;
    int32_t rc = HD_OK;
    for (struct hd__bounce_queue *q = b->queues; q; q = q->next)
        for (int n = 0; n < HD__BOUNCE_SLOTS && !rc; n++)
            rc = alloc_slot(b, q, &q->slot[n], err);
    return rc;
}

static void bounce_free(struct hd__comm_path *path)
{
    struct hd__bounce *b = (struct hd__bounce *)path;
    for (struct hd__bounce_queue *q; (q = b->queues); free(q)) {
        b->queues = q->next;
        for (int n = 0; n < HD__BOUNCE_SLOTS; n++) {
            hd__exec_device_free_pinned(path->device, q->slot[n].out);
            hd__exec_device_free_event(path->device, q->slot[n].copied);
            hd__exec_device_free_event(path->device, q->slot[n].arrived);
            free(q->slot[n].requests);
        }
    }
    free(b);
}

static int32_t bounce_progress(struct hd__comm_path *path, struct hd_error *err)
{
    static int32_t (*const steps_of_chunk[])(struct hd__bounce *, struct hd__bounce_queue *, struct hd_error *) = {
        hd__exec_chunk_copy_in, hd__exec_chunk_copy_out, hd__exec_chunk_post};
    struct hd__bounce *b = (struct hd__bounce *)path;
    int32_t moved = 0;
    for (struct hd__bounce_queue *q = path->under_way ? b->queues : NULL; q; q = q->next)
        for (size_t n = 0; n < HD__COUNT(steps_of_chunk) && q->head; n++) {
            int32_t rc = steps_of_chunk[n](b, q, err);
            if (rc < 0)
                return rc;
            moved |= rc;
        }
    return moved;
}

/* ---- ops */

static int32_t bounce_prepare(struct hd__comm_op *op, struct hd_error *err)
{
    struct hd__bounce_op *x = (struct hd__bounce_op *)op;
    struct hd__bounce *b = (struct hd__bounce *)op->path;
    const struct hd__device *d = b->path.device;
    int reaches = !d->discrete || (op->group.transport->ops->caps & HD_COMM_DEVICE_MEMORY);
    int32_t rc = hd__exec_blocks_alloc(op, err);
    x->queue = find_or_add_queue(b, op->queue);
    x->direct = reaches && !(d->discrete && op->pack.n);
    hd__exec_bounce_split(b, x);
    if (!rc)
        rc = hd__exec_device_create_event(d, &x->ready, err);
    return rc ? rc : hd__exec_device_create_event(d, &x->arrived, err);
}

static void bounce_release(struct hd__comm_op *op)
{
    struct hd__bounce_op *x = (struct hd__bounce_op *)op;
    hd__exec_device_free_event(op->path->device, x->ready);
    hd__exec_device_free_event(op->path->device, x->arrived);
    hd__exec_blocks_free(op);
}

/* The event orders the op after the compute enqueued so far. */
static int32_t bounce_start(struct hd__comm_op *op, struct hd_error *err)
{
    struct hd__bounce_op *x = (struct hd__bounce_op *)op;
    const struct hd__device *d = op->path->device;
    int32_t rc = d->ops->record(d->handle, x->ready, HD_STREAM_COMPUTE, err);
    if (rc)
        return rc;
    x->copied_out = x->copied_in = 0;
    x->next = NULL;
    *x->queue->tail = x;
    x->queue->tail = &x->next;
    op->path->under_way++;
    rc = bounce_progress(op->path, err);
    return HD__MIN(rc, HD_OK);
}

/* Lets the transport name the late rank, unless the op still waits for the device. */
static int32_t timeout_error(const struct hd__bounce_op *x, struct hd_error *err)
{
    const struct hd__bounce_queue *q = x->queue;
    const struct hd__bounce_slot *slot = &q->slot[q->done % HD__BOUNCE_SLOTS];
    if (q->done == q->posted)
        return hd_fail(err, HD_E_TIMEOUT, "the device did not reach this comm op before the deadline");
    int32_t rc =
        hd__exec_transports_wait(x->op.path->transports, slot->x->op.group.transport, slot->requests[0], 0, err);
    return rc ? rc
              : hd_fail(err, HD_E_TIMEOUT, "a comm op of %u chunks is at chunk %u at the deadline", x->chunks,
                        x->copied_in);
}

/* Waits for the transport, and orders later compute behind the copy to the device. */
static int32_t bounce_wait(struct hd__comm_op *op, double deadline, struct hd_error *err)
{
    struct hd__bounce_op *x = (struct hd__bounce_op *)op;
    const struct hd__device *d = op->path->device;
    struct hd_deadline end = hd_deadline_from(deadline, hd__now());
    int32_t rc;
    for (uint32_t idle = 0; x->copied_in < x->chunks; idle++) {
        int32_t pushed = hd__exec_transports_progress(op->path->transports, err);
        rc = pushed < 0 ? pushed : bounce_progress(op->path, err);
        if (rc < 0)
            return rc;
        idle = rc || pushed ? 0 : idle;
        hd__comm_backoff(idle);
        if (idle % 64 == 63 && hd_deadline_passed(&end, hd__now()))
            return timeout_error(x, err);
    }
    return x->copies_in ? d->ops->follow(d->handle, HD_STREAM_COMPUTE, x->arrived, err) : HD_OK;
}

static const struct hd__comm_path_ops bounce_ops = {.op_bytes = sizeof(struct hd__bounce_op),
                                                    .prepare = bounce_prepare,
                                                    .release = bounce_release,
                                                    .start = bounce_start,
                                                    .wait = bounce_wait,
                                                    .progress = bounce_progress,
                                                    .free = bounce_free};

struct hd__comm_path *hd__exec_bounce_create(struct hd__transports *transports, int64_t chunk)
{
    struct hd__bounce *b = hd__alloc(sizeof *b);
    b->path = (struct hd__comm_path){.ops = &bounce_ops, .device = transports->device, .transports = transports};
    b->chunk = chunk;
    return &b->path;
}
