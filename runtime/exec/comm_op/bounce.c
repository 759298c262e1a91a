/* Lanes and exchanges: see bounce.h. */
#include "runtime/exec/comm_op/bounce_internal.h"

#include <stdlib.h>

#include "runtime/comm/request_pool.h"

/* ---- life */

struct hd__bounce *hd__exec_bounce_create(const struct hd__device *d, struct hd__transports *transports, int64_t chunk)
{
    struct hd__bounce *stage = hd__alloc(sizeof *stage);
    stage->device = d;
    stage->transports = transports;
    stage->chunk = chunk;
    return stage;
}

void hd__exec_bounce_free(struct hd__bounce *stage)
{
    if (!stage)
        return;
    for (struct hd__bounce_queue *l; (l = stage->queues); free(l)) {
        stage->queues = l->next;
        for (int n = 0; n < HD__BOUNCE_SLOTS; n++) {
            hd__exec_device_free_pinned(stage->device, l->slot[n].out);
            hd__exec_device_free_event(stage->device, l->slot[n].copied);
            hd__exec_device_free_event(stage->device, l->slot[n].arrived);
            free(l->slot[n].requests);
        }
    }
    free(stage);
}

static struct hd__bounce_queue *find_or_add_queue(struct hd__bounce *stage, uint32_t id)
{
    struct hd__bounce_queue *l = stage->queues;
    while (l && l->id != id)
        l = l->next;
    if (l)
        return l;
    l = hd__alloc(sizeof *l);
    l->id = id;
    l->tail = &l->head;
    l->next = stage->queues;
    return stage->queues = l;
}

int32_t hd__exec_bounce_register(struct hd__bounce *stage, struct hd__comm_op *x, uint32_t queue_id,
                                 struct hd_error *err)
{
    struct hd__bounce_op *s = &x->bounce;
    int reaches = !stage->device->discrete || (x->group.transport->ops->caps & HD_COMM_DEVICE_MEMORY);
    int32_t rc;
    s->queue = find_or_add_queue(stage, queue_id);
    s->direct = reaches && !(stage->device->discrete && x->pack.n);
    hd__exec_bounce_split(stage, x);
    s->queue->request_room = HD__MAX(s->queue->request_room, x->n_messages ? x->n_messages : (uint32_t)s->calls);
    if (!s->direct) {
        int64_t out, in;
        hd__exec_bounce_chunk_bytes(x, &out, &in);
        s->queue->out_room = HD__MAX(s->queue->out_room, out);
        s->queue->in_room = HD__MAX(s->queue->in_room, in);
    }
    rc = hd__exec_device_create_event(stage->device, &s->ready, err);
    return rc ? rc : hd__exec_device_create_event(stage->device, &s->arrived, err);
}

void hd__exec_bounce_unregister(struct hd__bounce *stage, struct hd__comm_op *x)
{
    hd__exec_device_free_event(stage->device, x->bounce.ready);
    hd__exec_device_free_event(stage->device, x->bounce.arrived);
}

static int32_t alloc_slot(const struct hd__bounce *stage, const struct hd__bounce_queue *l,
                          struct hd__bounce_slot *slot, struct hd_error *err)
{
    int64_t out = (l->out_room + 4095) & ~INT64_C(4095);
    void *memory = NULL;
    int32_t rc = hd__exec_device_create_event(stage->device, &slot->copied, err);
    if (!rc)
        rc = hd__exec_device_create_event(stage->device, &slot->arrived, err);
    if (!rc && out + l->in_room > 0)
        rc = hd__exec_device_alloc_pinned(stage->device, (size_t)(out + l->in_room), &memory, err);
    slot->out = memory;
    slot->in = slot->out ? slot->out + out : NULL;
    slot->requests = hd__alloc(l->request_room * sizeof *slot->requests);
    return rc;
}

int32_t hd__exec_bounce_alloc_slots(struct hd__bounce *stage, struct hd_error *err)
{
    int32_t rc = HD_OK;
    for (struct hd__bounce_queue *l = stage->queues; l; l = l->next)
        for (int n = 0; n < HD__BOUNCE_SLOTS && !rc; n++)
            rc = alloc_slot(stage, l, &l->slot[n], err);
    return rc;
}

/* ---- lanes */

static struct hd__comm_op *next_to_copy_out(const struct hd__bounce_queue *l)
{
    struct hd__comm_op *x = l->head;
    while (x && x->bounce.copied_out == x->bounce.chunks)
        x = x->bounce.next;
    return x;
}

static int32_t event_reached(const struct hd__bounce *stage, struct hd_event *event, struct hd_error *err)
{
    int32_t done = 0, rc = stage->device->ops->reached(stage->device->handle, event, &done, err);
    return rc ? rc : done;
}

/* 1: sent; 0: not now. */
static int32_t try_copy_out(struct hd__bounce *stage, struct hd__bounce_queue *l, struct hd_error *err)
{
    struct hd__comm_op *x = next_to_copy_out(l);
    int32_t rc;
    if (!x || l->sent - l->done == HD__BOUNCE_SLOTS)
        return 0;
    rc = event_reached(stage, l->slot[l->sent % HD__BOUNCE_SLOTS].arrived, err);
    if (rc == 1)
        rc = hd__exec_chunk_copy_out(stage, l, x, err);
    else
        return rc;
    return rc ? rc : 1;
}

static int32_t try_post(struct hd__bounce *stage, struct hd__bounce_queue *l, struct hd_error *err)
{
    struct hd__bounce_slot *slot = &l->slot[l->posted % HD__BOUNCE_SLOTS];
    int32_t rc = 1;
    if (l->posted == l->sent)
        return 0;
    if (slot->x->bounce.direct)
        rc = event_reached(stage, slot->x->bounce.ready, err);
    else if (hd__exec_bounce_sends(slot->x))
        rc = event_reached(stage, slot->copied, err);
    if (rc == 1)
        rc = hd__exec_chunk_post(stage, l, slot, err);
    else
        return rc;
    return rc ? rc : 1;
}

static int32_t try_copy_in(struct hd__bounce *stage, struct hd__bounce_queue *l, struct hd_error *err)
{
    struct hd__bounce_slot *slot = &l->slot[l->done % HD__BOUNCE_SLOTS];
    int32_t rc = l->done == l->posted ? 0 : hd__exec_chunk_test(stage, slot, err);
    if (rc == 1)
        rc = hd__exec_chunk_copy_in(stage, l, slot, err);
    else
        return rc;
    return rc ? rc : 1;
}

int32_t hd__exec_bounce_progress(struct hd__bounce *stage, struct hd_error *err)
{
    static int32_t (*const stages_of_chunk[])(struct hd__bounce *, struct hd__bounce_queue *,
                                              struct hd_error *) = {try_copy_in, try_copy_out, try_post};
    int32_t moved = 0;
    for (struct hd__bounce_queue *l = stage->under_way ? stage->queues : NULL; l; l = l->next)
        for (size_t n = 0; n < HD__COUNT(stages_of_chunk) && l->head; n++) {
            int32_t rc = stages_of_chunk[n](stage, l, err);
            if (rc < 0)
                return rc;
            moved |= rc;
        }
    return moved;
}

/* ---- an exchange */

int32_t hd__exec_bounce_start(struct hd__bounce *stage, struct hd__comm_op *x, struct hd_error *err)
{
    const struct hd__device *d = stage->device;
    struct hd__bounce_queue *l = x->bounce.queue;
    int32_t rc = d->ops->record(d->handle, x->bounce.ready, HD_STREAM_COMPUTE, err);
    if (rc)
        return rc;
    x->bounce.copied_out = x->bounce.posted = x->bounce.copied_in = 0;
    x->bounce.next = NULL;
    *l->tail = x;
    l->tail = &x->bounce.next;
    stage->under_way++;
    rc = hd__exec_bounce_progress(stage, err);
    return HD__MIN(rc, HD_OK);
}

/* Whoever is late is the transport's to say, where it is the transport. */
static int32_t timeout_error(struct hd__bounce *stage, struct hd__comm_op *x, struct hd_error *err)
{
    const struct hd__bounce_queue *l = x->bounce.queue;
    const struct hd__bounce_slot *slot = &l->slot[l->done % HD__BOUNCE_SLOTS];
    int32_t rc;
    if (l->done == l->posted)
        return hd_fail(err, HD_E_TIMEOUT, "the device has not come to this exchange before the deadline");
    rc = hd__exec_transports_wait(stage->transports, slot->x->group.transport, slot->requests[0], hd__now(), err);
    return rc ? rc
              : hd_fail(err, HD_E_TIMEOUT, "an exchange of %u chunks is at chunk %u at the deadline", x->bounce.chunks,
                        x->bounce.copied_in);
}

int32_t hd__exec_bounce_wait(struct hd__bounce *stage, struct hd__comm_op *x, double deadline, struct hd_error *err)
{
    const struct hd__device *d = stage->device;
    int32_t rc;
    for (uint32_t idle = 0; x->bounce.copied_in < x->bounce.chunks; idle++) {
        int32_t pushed = hd__exec_transports_progress(stage->transports, err);
        rc = pushed < 0 ? pushed : hd__exec_bounce_progress(stage, err);
        if (rc < 0)
            return rc;
        idle = rc || pushed ? 0 : idle;
        hd__comm_backoff(idle);
        if (idle % 64 == 63 && hd__now() >= deadline)
            return timeout_error(stage, x, err);
    }
    if (x->bounce.direct || !hd__exec_bounce_receives(x))
        return HD_OK;
    return d->ops->follow(d->handle, HD_STREAM_COMPUTE, x->bounce.arrived, err);
}
