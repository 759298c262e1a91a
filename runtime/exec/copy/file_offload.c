/* File offload: copies between the memory of a device with streams and the file of offloaded state.
 *
 * Chunks go through pinned slots, device -> slot -> file or file -> slot -> device, with slots for each direction,
 * so that the disk and the device work at the same time. A copy starts after the compute enqueued so far; the wait
 * ends when the file has all of it, or when compute is ordered behind the last chunk. */
#include "runtime/exec/copy/copy.h"

#include <stdlib.h>

#include "runtime/comm/request_pool.h"

enum { SLOTS = 3 };

struct slot {
    struct hd__copy_op *of;
    struct hd__copy_op file; /* between the slot and the file */
    struct hd_event *moved;  /* the device's copy is done */
    int64_t at;              /* offset of the chunk in `of` */
};

struct direction {
    struct hd__copy_op *head, **tail; /* in flight, in order */
    struct hd__copy_op *next;         /* the first with chunks to start, or NULL */
    int64_t at;                       /* bytes of it that are started */
    uint64_t begun, half, done;       /* chunks since the start; half: past the device (out) or the file (in) */
    struct slot slot[SLOTS];
};

struct file_offload {
    struct hd__copy_engine engine;
    const struct hd__device *device;
    struct hd__copy_engine *file; /* owned */
    int64_t chunk;
    struct direction direction[2]; /* [1]: out of device memory */
};

/* ---- chunks */

static int32_t device_copy(const struct file_offload *s, struct slot *slot, struct hd_error *err)
{
    const struct hd__device *d = s->device;
    uint32_t stream = slot->of->out ? HD_STREAM_OUT : HD_STREAM_IN;
    char *there = (char *)slot->of->main + slot->at;
    int32_t rc = slot->at ? HD_OK : d->ops->follow(d->handle, stream, slot->of->done, err);
    if (!rc)
        rc = d->ops->copy(d->handle, stream, slot->of->out ? slot->file.main : there,
                          slot->of->out ? there : slot->file.main, (size_t)slot->file.bytes, err);
    return rc ? rc : d->ops->record(d->handle, slot->moved, stream, err);
}

/* 1 when the file engine is done with the slot, 0 if not yet, or an error. */
static int32_t file_done(struct slot *slot, struct hd_error *err)
{
    struct hd_error why = HD_ERROR_INIT;
    int32_t rc = slot->file.engine->ops->wait(&slot->file, 0, &why);
    if (rc && rc != HD_E_TIMEOUT)
        *err = why;
    return rc == HD_E_TIMEOUT ? 0 : rc ? rc : 1;
}

static int32_t start_chunk(struct file_offload *s, struct direction *d, struct hd_error *err)
{
    struct slot *slot = &d->slot[d->begun % SLOTS];
    int32_t rc = d->begun - d->done < SLOTS && d->next ? hd__exec_device_reached(s->device, slot->moved, err) : 0;
    if (rc != 1)
        return rc;
    slot->of = d->next;
    slot->at = d->at;
    slot->file.offset = d->next->offset + d->at;
    slot->file.bytes = HD__MIN(s->chunk, d->next->bytes - d->at);
    slot->file.out = d->next->out;
    rc = slot->of->out ? device_copy(s, slot, err) : s->file->ops->start(&slot->file, err);
    d->begun++;
    d->at += slot->file.bytes;
    if (d->at == d->next->bytes) {
        d->next = d->next->next;
        d->at = 0;
    }
    return rc ? rc : 1;
}

static int32_t continue_chunk(struct file_offload *s, struct direction *d, struct hd_error *err)
{
    struct slot *slot = &d->slot[d->half % SLOTS];
    int32_t rc = d->half == d->begun ? 0
                 : slot->of->out     ? hd__exec_device_reached(s->device, slot->moved, err)
                                     : file_done(slot, err);
    if (rc != 1)
        return rc;
    rc = slot->of->out ? s->file->ops->start(&slot->file, err) : device_copy(s, slot, err);
    d->half++;
    return rc ? rc : 1;
}

static int32_t finish_chunk(struct file_offload *s, struct direction *d, struct hd_error *err)
{
    struct slot *slot = &d->slot[d->done % SLOTS];
    struct hd__copy_op *c = slot->of;
    int32_t rc = d->done == d->half ? 0 : c->out ? file_done(slot, err) : 1;
    if (rc != 1)
        return rc;
    d->done++;
    if (slot->at + slot->file.bytes < c->bytes)
        return 1;
    c->under_way = 0;
    d->head = c->next;
    d->tail = d->head ? d->tail : &d->head;
    rc = c->out ? HD_OK : s->device->ops->record(s->device->handle, c->done, HD_STREAM_IN, err);
    return rc ? rc : 1;
}

/* ---- copies */

static int32_t offload_progress(struct hd__copy_engine *engine, struct hd_error *err)
{
    static int32_t (*const steps_of_chunk[])(struct file_offload *, struct direction *,
                                             struct hd_error *) = {finish_chunk, start_chunk, continue_chunk};
    struct file_offload *s = (struct file_offload *)engine;
    int32_t moved = 0;
    for (int way = 0; way < 2; way++)
        for (size_t n = 0; n < HD__COUNT(steps_of_chunk) && s->direction[way].head; n++) {
            int32_t rc = steps_of_chunk[n](s, &s->direction[way], err);
            if (rc < 0)
                return rc;
            moved |= rc;
        }
    return moved;
}

static int32_t offload_start(struct hd__copy_op *copy, struct hd_error *err)
{
    struct file_offload *s = (struct file_offload *)copy->engine;
    struct direction *d = &s->direction[copy->out != 0];
    int32_t rc = s->device->ops->record(s->device->handle, copy->done, HD_STREAM_COMPUTE, err);
    if (rc)
        return rc;
    copy->next = NULL;
    copy->under_way = 1;
    *d->tail = copy;
    d->tail = &copy->next;
    d->next = d->next ? d->next : copy;
    rc = offload_progress(copy->engine, err);
    return HD__MIN(rc, HD_OK);
}

static int32_t offload_wait(struct hd__copy_op *copy, double deadline, struct hd_error *err)
{
    const struct hd__device *d = ((struct file_offload *)copy->engine)->device;
    struct hd_deadline end = hd_deadline_from(deadline, hd__now());
    for (uint32_t idle = 0; copy->under_way; idle++) {
        int32_t rc = offload_progress(copy->engine, err);
        if (rc < 0)
            return rc;
        idle = rc ? 0 : idle;
        hd__comm_backoff(idle);
        if (idle % 64 == 63 && hd_deadline_passed(&end, hd__now()))
            return hd_fail(err, HD_E_TIMEOUT,
                           "a copy between the device and the offload file did not finish before the deadline");
    }
    return copy->out ? HD_OK : d->ops->follow(d->handle, HD_STREAM_COMPUTE, copy->done, err);
}

/* ---- the engine */

static void offload_close(struct hd__copy_engine *engine)
{
    struct file_offload *s = (struct file_offload *)engine;
    hd__exec_copy_engine_close(s->file);
    for (int way = 0; way < 2; way++)
        for (int n = 0; n < SLOTS; n++) {
            hd__exec_device_free_event(s->device, s->direction[way].slot[n].moved);
            hd__exec_device_free_pinned(s->device, s->direction[way].slot[n].file.main);
        }
    free(s);
}

static const struct hd__copy_engine_ops offload_ops = {.name = "file offload",
                                                       .start = offload_start,
                                                       .wait = offload_wait,
                                                       .progress = offload_progress,
                                                       .close = offload_close};

int32_t hd__exec_file_offload_open(const struct hd__device *d, int64_t chunk, struct hd__copy_engine **engine,
                                   struct hd_error *err)
{
    struct file_offload *s = hd__alloc(sizeof *s);
    int32_t rc = HD_OK;
    s->engine.ops = &offload_ops;
    s->device = d;
    s->file = *engine;
    s->chunk = chunk;
    *engine = &s->engine;
    for (int way = 0; way < 2; way++) {
        s->direction[way].tail = &s->direction[way].head;
        for (int n = 0; n < SLOTS && !rc; n++) {
            struct slot *slot = &s->direction[way].slot[n];
            slot->file.engine = s->file;
            rc = hd__exec_device_create_event(d, &slot->moved, err);
            if (!rc)
                rc = hd__exec_device_alloc_pinned(d, (size_t)chunk, &slot->file.main, err);
        }
    }
    return rc;
}
