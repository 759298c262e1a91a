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

/* `times` launches one behind another; *ms: milliseconds of one of them. */
static int32_t time_launches(struct hd_device *d, struct hd_kernel *k, const cudaEvent_t event[2], int times, float *ms,
                             struct hd_error *err)
{
    cudaStream_t stream = d->stream[HD_STREAM_COMPUTE];
    cudaError_t rc = cudaEventRecord(event[0], stream);
    for (int n = 0; n < times && !rc; n++) {
        int32_t ran = k->run(k, stream, err);
        if (ran)
            return ran;
    }
    if (!rc)
        rc = cudaEventRecord(event[1], stream);
    if (!rc)
        rc = cudaEventSynchronize(event[1]);
    if (!rc)
        rc = cudaEventElapsedTime(ms, event[0], event[1]);
    *ms /= (float)times;
    return cu_fail(err, rc, NULL, "device cuda: timing a kernel");
}

/* The first launch loads what it needs, the second says how many make up ENOUGH milliseconds: one by itself would be
 * measured together with the 10 microseconds that it takes to begin. */
int32_t cu_time_kernel(struct hd_device *d, struct hd_kernel *k, float *ms, struct hd_error *err)
{
    enum { ROUNDS = 3, MOST = 20 };
    const float ENOUGH = 1;
    cudaEvent_t event[2] = {NULL, NULL};
    float now = INFINITY;
    cudaError_t made = cudaEventCreateWithFlags(&event[0], cudaEventDefault);
    *ms = INFINITY;
    if (!made)
        made = cudaEventCreateWithFlags(&event[1], cudaEventDefault);
    int32_t rc = cu_fail(err, made, NULL, "device cuda: timing a kernel");
    for (int n = 0; n < 2 && !rc; n++)
        rc = time_launches(d, k, event, 1, &now, err);
    int times = now > ENOUGH ? 1 : now * MOST < ENOUGH ? MOST : (int)(ENOUGH / now);
    for (int n = 0; n < ROUNDS && !rc; n++) {
        rc = time_launches(d, k, event, times, &now, err);
        *ms = !rc && now < *ms ? now : *ms;
    }
    for (int n = 0; n < 2; n++)
        if (event[n])
            cudaEventDestroy(event[n]);
    return rc;
}

void *cu_native(struct hd_device *d, uint32_t stream)
{
    return d->stream[stream];
}
