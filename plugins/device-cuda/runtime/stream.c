/* Streams, events, copies, and how long a kernel takes. */
#include "internal.h"
#include <math.h>

struct hd_event {
    cudaEvent_t event;
};

int32_t cu_streams_open(struct hd_device *d, struct hd_error *err)
{
    int least, greatest;
    cudaError_t rc = cudaDeviceGetStreamPriorityRange(&least, &greatest);
    /* Communication first: its kernels are short and others wait for them. */
    for (int32_t i = 0; i < HD_STREAM_COUNT && rc == cudaSuccess; i++)
        rc = cudaStreamCreateWithPriority(&d->stream[i], cudaStreamNonBlocking, i == HD_STREAM_COMM ? greatest : least);
    return cu_fail(err, rc, NULL, "device cuda: making streams");
}

void cu_streams_close(struct hd_device *d)
{
    for (int32_t i = 0; i < HD_STREAM_COUNT; i++)
        if (d->stream[i])
            cudaStreamDestroy(d->stream[i]);
}

int32_t cu_sync(struct hd_device *d, uint32_t stream, struct hd_error *err)
{
    return cu_fail(err, cudaStreamSynchronize(d->stream[stream]), NULL, "device cuda: waiting for a stream");
}

int32_t cu_event(struct hd_device *d, struct hd_event **event, struct hd_error *err)
{
    struct hd_event *e = d->host->alloc(sizeof *e);
    if (!e)
        return hd_fail(err, HD_E_NOMEM, "no memory for an event");
    int32_t rc =
        cu_fail(err, cudaEventCreateWithFlags(&e->event, cudaEventDisableTiming), NULL, "device cuda: making an event");
    if (rc) {
        d->host->free(e);
        return rc;
    }
    *event = e;
    return HD_OK;
}

void cu_event_free(struct hd_device *d, struct hd_event *event)
{
    if (!event)
        return;
    cudaEventDestroy(event->event);
    d->host->free(event);
}

int32_t cu_record(struct hd_device *d, struct hd_event *event, uint32_t stream, struct hd_error *err)
{
    return cu_fail(err, cudaEventRecord(event->event, d->stream[stream]), NULL, "device cuda: recording an event");
}

int32_t cu_follow(struct hd_device *d, uint32_t stream, struct hd_event *event, struct hd_error *err)
{
    return cu_fail(err, cudaStreamWaitEvent(d->stream[stream], event->event, 0), NULL,
                   "device cuda: following an event");
}

int32_t cu_reached(struct hd_device *d, struct hd_event *event, int32_t *done, struct hd_error *err)
{
    (void)d;
    cudaError_t rc = cudaEventQuery(event->event);
    if (rc != cudaSuccess && rc != cudaErrorNotReady)
        return cu_fail(err, rc, NULL, "device cuda: asking for an event");
    *done = rc == cudaSuccess;
    return HD_OK;
}

/* With unified addressing the runtime knows which memories these are. */
int32_t cu_copy(struct hd_device *d, uint32_t stream, void *to, const void *from, size_t bytes, struct hd_error *err)
{
    if (!bytes)
        return HD_OK;
    return cu_fail(err, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, d->stream[stream]), NULL,
                   "device cuda: copying");
}

int32_t cu_time_kernel(struct hd_device *d, struct hd_kernel *k, float *ms, struct hd_error *err)
{
    enum { UNMEASURED = 1, ROUNDS = 3 };
    cudaStream_t stream = d->stream[HD_STREAM_COMPUTE];
    cudaEvent_t from = NULL, to = NULL;
    cudaError_t rc = cudaEventCreateWithFlags(&from, cudaEventDefault);
    int32_t ran = HD_OK;
    *ms = INFINITY;
    if (!rc)
        rc = cudaEventCreateWithFlags(&to, cudaEventDefault);
    for (int n = 0; n < UNMEASURED + ROUNDS && !rc && !ran; n++) {
        float now = INFINITY;
        rc = cudaEventRecord(from, stream);
        ran = rc ? HD_OK : k->run(k, stream, err);
        if (!rc && !ran)
            rc = cudaEventRecord(to, stream);
        if (!rc && !ran)
            rc = cudaEventSynchronize(to);
        if (!rc && !ran)
            rc = cudaEventElapsedTime(&now, from, to);
        *ms = n >= UNMEASURED && now < *ms ? now : *ms;
    }
    if (from)
        cudaEventDestroy(from);
    if (to)
        cudaEventDestroy(to);
    return ran ? ran : cu_fail(err, rc, NULL, "device cuda: timing a kernel");
}

void *cu_native(struct hd_device *d, uint32_t stream)
{
    return d->stream[stream];
}
