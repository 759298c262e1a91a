/* Chunks on their way: see file_offload.h. Out: device -> slot -> file. In: file -> slot -> device. */
#include "runtime/exec/file_offload.h"

#include <stdlib.h>

#include "runtime/comm/request_pool.h"

enum { SLOTS = 3 };

struct slot {
    struct hd__copy *of;
    struct hd__copy file;      /* between the slot and the file */
    struct hd_event *moved;    /* the device's copy is done */
    int64_t at;                /* bytes of `of` before this chunk */
};

struct direction {
    struct hd__copy *head, **tail; /* under way, in order */
    struct hd__copy *next;         /* whose next chunk begins next; NULL: all have begun */
    int64_t at;                    /* bytes of it that have begun */
    uint64_t begun, half, done;    /* chunks, since the beginning; half: the file's turn (out), the device's (in) */
    struct slot slot[SLOTS];
};

struct hd__spill {
    const struct hd__device *device;
    struct hd__copies *copies;
    int64_t chunk;
    struct direction direction[2]; /* [1]: out of the device's memory */
};

/* ---- life */

static int32_t open_slot(const struct hd__spill *s, struct slot *slot, struct hd_error *err)
{
    int32_t rc = hd__device_event(s->device, &slot->moved, err);
    return rc ? rc : hd__device_pinned(s->device, (size_t)s->chunk, &slot->file.main, err);
}

int32_t hd__spill_open(const struct hd__device *d, struct hd__copies *copies, int64_t chunk, struct hd__spill **spill,
                       struct hd_error *err)
{
    struct hd__spill *s = hd__alloc(sizeof *s);
    int32_t rc = HD_OK;
    s->device = d;
    s->copies = copies;
    s->chunk = chunk;
    for (int way = 0; way < 2; way++) {
        s->direction[way].tail = &s->direction[way].head;
        for (int n = 0; n < SLOTS && !rc; n++)
            rc = open_slot(s, &s->direction[way].slot[n], err);
    }
    if (rc)
        hd__spill_close(s);
    else
        *spill = s;
    return rc;
}

void hd__spill_close(struct hd__spill *s)
{
    if (!s)
        return;
    for (int way = 0; way < 2; way++)
        for (int n = 0; n < SLOTS; n++) {
            hd__device_event_free(s->device, s->direction[way].slot[n].moved);
            hd__device_pinned_free(s->device, s->direction[way].slot[n].file.main);
        }
    free(s);
}

/* ---- a chunk */

static int32_t reached(const struct hd__spill *s, struct hd_event *event, struct hd_error *err)
{
    int32_t done = 0, rc = s->device->ops->reached(s->device->at, event, &done, err);
    return rc ? rc : done;
}

static int32_t device_copy(const struct hd__spill *s, struct slot *slot, struct hd_error *err)
{
    const struct hd__device *d = s->device;
    uint32_t stream = slot->of->out ? HD_STREAM_OUT : HD_STREAM_IN;
    char *there = (char *)slot->of->main + slot->at;
    int32_t rc = slot->at ? HD_OK : d->ops->follow(d->at, stream, slot->of->done, err);
    if (!rc)
        rc = d->ops->copy(d->at, stream, slot->of->out ? slot->file.main : there, slot->of->out ? there : slot->file.main,
                          (size_t)slot->file.bytes, err);
    return rc ? rc : d->ops->record(d->at, slot->moved, stream, err);
}

/* 1 when the file has, or gave, what is in a slot. */
static int32_t file_done(const struct hd__spill *s, const struct slot *slot, struct hd_error *err)
{
    struct hd_error why = HD_ERROR_INIT;
    int32_t rc = hd__copies_wait(s->copies, &slot->file, 0, &why);
    if (rc && rc != HD_E_TIMEOUT)
        *err = why;
    return rc == HD_E_TIMEOUT ? 0 : rc ? rc : 1;
}

static int32_t begin(struct hd__spill *s, struct direction *d, struct hd_error *err)
{
    struct slot *slot = &d->slot[d->begun % SLOTS];
    int32_t rc = d->begun - d->done < SLOTS && d->next ? reached(s, slot->moved, err) : 0;
    if (rc != 1)
        return rc;
    slot->of = d->next;
    slot->at = d->at;
    slot->file.at = d->next->at + d->at;
    slot->file.bytes = HD__MIN(s->chunk, d->next->bytes - d->at);
    slot->file.out = d->next->out;
    rc = slot->of->out ? device_copy(s, slot, err) : hd__copies_start(s->copies, &slot->file, err);
    d->begun++;
    d->at += slot->file.bytes;
    if (d->at == d->next->bytes) {
        d->next = d->next->next;
        d->at = 0;
    }
    return rc ? rc : 1;
}

static int32_t go_on(struct hd__spill *s, struct direction *d, struct hd_error *err)
{
    struct slot *slot = &d->slot[d->half % SLOTS];
    int32_t rc = d->half == d->begun ? 0 : slot->of->out ? reached(s, slot->moved, err) : file_done(s, slot, err);
    if (rc != 1)
        return rc;
    rc = slot->of->out ? hd__copies_start(s->copies, &slot->file, err) : device_copy(s, slot, err);
    d->half++;
    return rc ? rc : 1;
}

static int32_t finish(struct hd__spill *s, struct direction *d, struct hd_error *err)
{
    struct slot *slot = &d->slot[d->done % SLOTS];
    struct hd__copy *c = slot->of;
    int32_t rc = d->done == d->half ? 0 : c->out ? file_done(s, slot, err) : 1;
    if (rc != 1)
        return rc;
    d->done++;
    if (slot->at + slot->file.bytes < c->bytes)
        return 1;
    c->under_way = 0;
    d->head = c->next;
    d->tail = d->head ? d->tail : &d->head;
    rc = c->out ? HD_OK : s->device->ops->record(s->device->at, c->done, HD_STREAM_IN, err);
    return rc ? rc : 1;
}

/* ---- copies */

int32_t hd__spill_start(struct hd__spill *s, struct hd__copy *copy, struct hd_error *err)
{
    struct direction *d = &s->direction[copy->out != 0];
    int32_t rc = s->device->ops->record(s->device->at, copy->done, HD_STREAM_COMPUTE, err);
    if (rc)
        return rc;
    copy->next = NULL;
    copy->under_way = 1;
    *d->tail = copy;
    d->tail = &copy->next;
    d->next = d->next ? d->next : copy;
    rc = hd__spill_progress(s, err);
    return HD__MIN(rc, HD_OK);
}

int32_t hd__spill_progress(struct hd__spill *s, struct hd_error *err)
{
    static int32_t (*const tries[])(struct hd__spill *, struct direction *, struct hd_error *) = {finish, begin, go_on};
    int32_t moved = 0;
    for (int way = 0; way < 2; way++)
        for (size_t n = 0; n < HD__COUNT(tries) && s->direction[way].head; n++) {
            int32_t rc = tries[n](s, &s->direction[way], err);
            if (rc < 0)
                return rc;
            moved |= rc;
        }
    return moved;
}

int32_t hd__spill_wait(struct hd__spill *s, struct hd__copy *copy, double deadline, struct hd_error *err)
{
    for (uint32_t idle = 0; copy->under_way; idle++) {
        int32_t rc = hd__spill_progress(s, err);
        if (rc < 0)
            return rc;
        idle = rc ? 0 : idle;
        hd__relax(idle);
        if (idle % 64 == 63 && hd__now() > deadline)
            return hd_fail(err, HD_E_TIMEOUT, "a copy between the device and the file of offloaded state is not done before the deadline");
    }
    return copy->out ? HD_OK : s->device->ops->follow(s->device->at, HD_STREAM_COMPUTE, copy->done, err);
}
