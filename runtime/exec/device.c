/* Streams and events of the device. */
#include "runtime/exec/device.h"

int32_t hd__exec_device_check(struct hd__device *d, struct hd_error *err)
{
    d->streams = (d->ops->caps & HD_DEVICE_STREAMS) != 0;
    d->discrete = !(d->ops->caps & HD_DEVICE_HOST_MEMORY);
    if (d->discrete && !d->streams)
        return hd_fail(
            err, HD_E_UNSUPPORTED,
            "device-%s has neither HD_DEVICE_HOST_MEMORY nor HD_DEVICE_STREAMS: it needs one of them for copies",
            d->name);
    return HD_OK;
}

int32_t hd__exec_device_order_streams(const struct hd__device *d, uint32_t earlier, uint32_t later,
                                      struct hd_event *event, struct hd_error *err)
{
    int32_t rc = d->ops->record(d->handle, event, earlier, err);
    return rc ? rc : d->ops->follow(d->handle, later, event, err);
}

int32_t hd__exec_device_create_event(const struct hd__device *d, struct hd_event **event, struct hd_error *err)
{
    return d->ops->event(d->handle, event, err);
}

int32_t hd__exec_device_reached(const struct hd__device *d, struct hd_event *event, struct hd_error *err)
{
    int32_t done = 0, rc = d->ops->reached(d->handle, event, &done, err);
    return rc ? rc : done != 0;
}

void hd__exec_device_free_event(const struct hd__device *d, struct hd_event *event)
{
    if (event)
        d->ops->event_free(d->handle, event);
}

int32_t hd__exec_device_alloc_pinned(const struct hd__device *d, size_t bytes, void **memory, struct hd_error *err)
{
    return d->ops->alloc(d->handle, HD_MEM_PINNED, bytes, memory, err);
}

void hd__exec_device_free_pinned(const struct hd__device *d, void *memory)
{
    if (memory)
        d->ops->free(d->handle, HD_MEM_PINNED, memory);
}
