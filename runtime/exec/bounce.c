/* Lanes and exchanges: see bounce.h. */
#include "runtime/exec/bounce_internal.h"

#include <stdlib.h>

#include "runtime/comm/request_pool.h"

/* ---- life */

struct hd__stage *hd__stage_create(const struct hd__device *d, struct hd__transports *transports, int64_t chunk)
{
    struct hd__stage *stage = hd__alloc(sizeof *stage);
    stage->device = d;
    stage->transports = transports;
    stage->chunk = chunk;
    return stage;
}

void hd__stage_free(struct hd__stage *stage)
{
    if (!stage)
        return;
    for (struct hd__lane *l; (l = stage->lanes); free(l)) {
        stage->lanes = l->next;
        for (int n = 0; n < HD__STAGE_SLOTS; n++) {
            hd__device_pinned_free(stage->device, l->slot[n].out);
            hd__device_event_free(stage->device, l->slot[n].copied);
            hd__device_event_free(stage->device, l->slot[n].arrived);
            free(l->slot[n].requests);
        }
    }
    free(stage);
}

static struct hd__lane *lane_of(struct hd__stage *stage, uint32_t id)
{
    struct hd__lane *l = stage->lanes;
    while (l && l->id != id)
        l = l->next;
    if (l)
        return l;
    l = hd__alloc(sizeof *l);
    l->id = id;
    l->tail = &l->head;
    l->next = stage->lanes;
    return stage->lanes = l;
}

int32_t hd__stage_add(struct hd__stage *stage, struct hd__exchange *x, uint32_t lane, struct hd_error *err)
{
    struct hd__chunked *s = &x->staged;
    int reaches = !stage->device->apart || (x->group.transport->ops->caps & HD_COMM_DEVICE_MEMORY);
    int32_t rc;
    s->lane = lane_of(stage, lane);
    s->direct = reaches && !(stage->device->apart && x->pack.n);
    hd__stage_cut(stage, x);
    s->lane->request_room = HD__MAX(s->lane->request_room, x->n_messages ? x->n_messages : (uint32_t)s->calls);
    if (!s->direct) {
        int64_t out, in;
        hd__stage_room(x, &out, &in);
        s->lane->out_room = HD__MAX(s->lane->out_room, out);
        s->lane->in_room = HD__MAX(s->lane->in_room, in);
    }
    rc = hd__device_event(stage->device, &s->ready, err);
    return rc ? rc : hd__device_event(stage->device, &s->arrived, err);
}

void hd__stage_remove(struct hd__stage *stage, struct hd__exchange *x)
{
    hd__device_event_free(stage->device, x->staged.ready);
    hd__device_event_free(stage->device, x->staged.arrived);
}

static int32_t ready_slot(const struct hd__stage *stage, const struct hd__lane *l, struct hd__lane_slot *slot,
                          struct hd_error *err)
{
    int64_t out = (l->out_room + 4095) & ~INT64_C(4095);
    void *memory = NULL;
    int32_t rc = hd__device_event(stage->device, &slot->copied, err);
    if (!rc)
        rc = hd__device_event(stage->device, &slot->arrived, err);
    if (!rc && out + l->in_room > 0)
        rc = hd__device_pinned(stage->device, (size_t)(out + l->in_room), &memory, err);
    slot->out = memory;
    slot->in = slot->out ? slot->out + out : NULL;
    slot->requests = hd__alloc(l->request_room * sizeof *slot->requests);
    return rc;
}

int32_t hd__stage_ready(struct hd__stage *stage, struct hd_error *err)
{
    int32_t rc = HD_OK;
    for (struct hd__lane *l = stage->lanes; l; l = l->next)
        for (int n = 0; n < HD__STAGE_SLOTS && !rc; n++)
            rc = ready_slot(stage, l, &l->slot[n], err);
    return rc;
}

/* ---- lanes */

static struct hd__exchange *next_to_send(const struct hd__lane *l)
{
    struct hd__exchange *x = l->head;
    while (x && x->staged.sent == x->staged.chunks)
        x = x->staged.next;
    return x;
}

static int32_t reached(const struct hd__stage *stage, struct hd_event *event, struct hd_error *err)
{
    int32_t done = 0, rc = stage->device->ops->reached(stage->device->at, event, &done, err);
    return rc ? rc : done;
}

/* 1: sent; 0: not now. */
static int32_t try_send(struct hd__stage *stage, struct hd__lane *l, struct hd_error *err)
{
    struct hd__exchange *x = next_to_send(l);
    int32_t rc;
    if (!x || l->sent - l->done == HD__STAGE_SLOTS)
        return 0;
    rc = reached(stage, l->slot[l->sent % HD__STAGE_SLOTS].arrived, err);
    if (rc == 1)
        rc = hd__chunk_send(stage, l, x, err);
    else
        return rc;
    return rc ? rc : 1;
}

static int32_t try_post(struct hd__stage *stage, struct hd__lane *l, struct hd_error *err)
{
    struct hd__lane_slot *slot = &l->slot[l->posted % HD__STAGE_SLOTS];
    int32_t rc = 1;
    if (l->posted == l->sent)
        return 0;
    if (slot->x->staged.direct)
        rc = reached(stage, slot->x->staged.ready, err);
    else if (hd__stage_sends(slot->x))
        rc = reached(stage, slot->copied, err);
    if (rc == 1)
        rc = hd__chunk_post(stage, l, slot, err);
    else
        return rc;
    return rc ? rc : 1;
}

static int32_t try_arrive(struct hd__stage *stage, struct hd__lane *l, struct hd_error *err)
{
    struct hd__lane_slot *slot = &l->slot[l->done % HD__STAGE_SLOTS];
    int32_t rc = l->done == l->posted ? 0 : hd__chunk_test(stage, slot, err);
    if (rc == 1)
        rc = hd__chunk_arrive(stage, l, slot, err);
    else
        return rc;
    return rc ? rc : 1;
}

int32_t hd__stage_progress(struct hd__stage *stage, struct hd_error *err)
{
    static int32_t (*const tries[])(struct hd__stage *, struct hd__lane *, struct hd_error *) = {try_arrive, try_send, try_post};
    int32_t moved = 0;
    for (struct hd__lane *l = stage->under_way ? stage->lanes : NULL; l; l = l->next)
        for (size_t n = 0; n < HD__COUNT(tries) && l->head; n++) {
            int32_t rc = tries[n](stage, l, err);
            if (rc < 0)
                return rc;
            moved |= rc;
        }
    return moved;
}

/* ---- an exchange */

int32_t hd__stage_start(struct hd__stage *stage, struct hd__exchange *x, struct hd_error *err)
{
    const struct hd__device *d = stage->device;
    struct hd__lane *l = x->staged.lane;
    int32_t rc = d->ops->record(d->at, x->staged.ready, HD_STREAM_COMPUTE, err);
    if (rc)
        return rc;
    x->staged.sent = x->staged.posted = x->staged.done = 0;
    x->staged.next = NULL;
    *l->tail = x;
    l->tail = &x->staged.next;
    stage->under_way++;
    rc = hd__stage_progress(stage, err);
    return HD__MIN(rc, HD_OK);
}

/* Whoever is late is the transport's to say, where it is the transport. */
static int32_t late(struct hd__stage *stage, struct hd__exchange *x, struct hd_error *err)
{
    const struct hd__lane *l = x->staged.lane;
    const struct hd__lane_slot *slot = &l->slot[l->done % HD__STAGE_SLOTS];
    int32_t rc;
    if (l->done == l->posted)
        return hd_fail(err, HD_E_TIMEOUT, "the device has not come to this exchange before the deadline");
    rc = hd__transports_wait(stage->transports, slot->x->group.transport, slot->requests[0], hd__now(), err);
    return rc ? rc : hd_fail(err, HD_E_TIMEOUT, "an exchange of %u chunks is at chunk %u at the deadline", x->staged.chunks,
                             x->staged.done);
}

int32_t hd__stage_wait(struct hd__stage *stage, struct hd__exchange *x, double deadline, struct hd_error *err)
{
    const struct hd__device *d = stage->device;
    int32_t rc;
    for (uint32_t idle = 0; x->staged.done < x->staged.chunks; idle++) {
        int32_t pushed = hd__transports_progress(stage->transports, err);
        rc = pushed < 0 ? pushed : hd__stage_progress(stage, err);
        if (rc < 0)
            return rc;
        idle = rc || pushed ? 0 : idle;
        hd__relax(idle);
        if (idle % 64 == 63 && hd__now() >= deadline)
            return late(stage, x, err);
    }
    if (x->staged.direct || !hd__stage_receives(x))
        return HD_OK;
    return d->ops->follow(d->at, HD_STREAM_COMPUTE, x->staged.arrived, err);
}
