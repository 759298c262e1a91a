/* Buffers in a device's memory, for transports that are ordered by its stream. A mirror in host memory is filled and
 * checked in their place. */
#include <stdlib.h>

#include "cli/bench/rank.h"
#include "heddle/device.h"
#include "runtime/comm/open.h"
#include "runtime/comm/request_pool.h"
#include "runtime/rendezvous/host_store.h"

struct hd__bench_device_memory {
    const struct hd_device_ops *ops;
    struct hd_device *device;
    struct hd_event *event;
    uint8_t *base, *mirror;
    size_t bytes;
};

int32_t hd__bench_device_open(struct hd__bench_rank *b, struct hd_world *world)
{
    const struct hd__component *component = b->bench->memory_device;
    struct hd_device_place place = {
        .struct_size = sizeof place, .local_rank = world->local_rank, .local_ranks = world->local_size, .threads = 1};
    struct hd__bench_device_memory *m = b->device = hd__alloc(sizeof *m);
    m->ops = &component->ops.device;
    int32_t rc = m->ops->open(hd__store_host_table(), b->bench->memory_device_settings, &place, &m->device, b->err);
    if (!rc)
        rc = m->ops->event(m->device, &m->event, b->err);
    if (rc)
        return rc;
    world->device = component->name;
    world->stream = m->ops->native(m->device, HD_STREAM_COMM);
    return HD_OK;
}

int32_t hd__bench_device_alloc(struct hd__bench_rank *b, size_t bytes, void **base)
{
    struct hd__bench_device_memory *m = b->device;
    int32_t rc = m->ops->alloc(m->device, HD_MEM_DEVICE, bytes, base, b->err);
    if (rc)
        return rc;
    m->base = *base;
    m->bytes = bytes;
    m->mirror = hd__alloc(bytes);
    return HD_OK;
}

void hd__bench_device_close(struct hd__bench_rank *b)
{
    struct hd__bench_device_memory *m = b->device;
    if (!m)
        return;
    if (m->event)
        m->ops->event_free(m->device, m->event);
    if (m->base)
        m->ops->free(m->device, HD_MEM_DEVICE, m->base);
    m->ops->close(m->device);
    free(m->mirror);
    free(m);
    b->device = NULL;
}

uint8_t *hd__bench_mirror(const struct hd__bench_rank *b, const void *at)
{
    const struct hd__bench_device_memory *m = b->device;
    return m ? m->mirror + ((const uint8_t *)at - m->base) : (uint8_t *)(uintptr_t)at;
}

int32_t hd__bench_settle(struct hd__bench_rank *b)
{
    struct hd__bench_device_memory *m = b->device;
    int32_t rc = m ? m->ops->record(m->device, m->event, HD_STREAM_COMM, b->err) : HD_OK, done = 0;
    double deadline = m ? hd__now() + b->bench->timeout : 0;
    for (uint32_t idle = 0; m && !rc && !done; idle++) {
        rc = m->ops->reached(m->device, m->event, &done, b->err);
        if (!rc && b->ops->progress) /* a stream ends by a failure too, which this says */
            rc = HD__MIN(b->ops->progress(b->comm, b->err), 0);
        if (!rc && !done && hd__now() > deadline)
            rc = hd_fail(b->err, HD_E_TIMEOUT, "the stream did not come to its end within %g s", b->bench->timeout);
        if (!rc && !done)
            hd__comm_backoff(idle);
    }
    return rc;
}

static int32_t copy(struct hd__bench_rank *b, void *to, const void *from)
{
    struct hd__bench_device_memory *m = b->device;
    int32_t rc = m->ops->copy(m->device, HD_STREAM_COMM, to, from, m->bytes, b->err);
    return rc ? rc : hd__bench_settle(b);
}

int32_t hd__bench_device_put(struct hd__bench_rank *b)
{
    return b->device ? copy(b, b->device->base, b->device->mirror) : HD_OK;
}

int32_t hd__bench_device_get(struct hd__bench_rank *b)
{
    return b->device ? copy(b, b->device->mirror, b->device->base) : HD_OK;
}
