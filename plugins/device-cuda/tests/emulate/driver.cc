/* The driver's calls that comm-nccl and the NCCL of its tests make, over the same streams, events and memory: both
 * open this plugin as their libcuda. A job on it has a real transport in its streams. */
#include "device.h"
#include "memory.h"
#include "queue.h"
#include <stdint.h>

#define PUBLIC extern "C" __attribute__((visibility("default")))

namespace
{

thread_local void *context;

} // namespace

PUBLIC int cuInit(unsigned)
{
    int count = 0;
    return emulate_start(&count);
}

PUBLIC int cuDriverGetVersion(int *version)
{
    *version = 13000;
    return 0;
}

PUBLIC int cuDeviceGetCount(int *count)
{
    return emulate_started() ? emulate_start(count) : cudaErrorInitializationError;
}

PUBLIC int cuGetErrorString(int result, const char **text)
{
    *text = cudaGetErrorString((cudaError_t)result);
    return 0;
}

PUBLIC int cuCtxGetCurrent(void **current)
{
    static char primary;
    if (!emulate_started())
        return cudaErrorInitializationError;
    *current = context ? context : &primary;
    return 0;
}

PUBLIC int cuCtxSetCurrent(void *current)
{
    context = current;
    return 0;
}

PUBLIC int cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    return cudaDeviceGetStreamPriorityRange(least, greatest);
}

PUBLIC int cuStreamCreateWithPriority(void **stream, unsigned flags, int priority)
{
    return cudaStreamCreateWithPriority((cudaStream_t *)stream, flags, priority);
}

PUBLIC int cuStreamDestroy_v2(void *stream)
{
    return cudaStreamDestroy((cudaStream_t)stream);
}

PUBLIC int cuStreamWaitEvent(void *stream, void *event, unsigned flags)
{
    return cudaStreamWaitEvent((cudaStream_t)stream, (cudaEvent_t)event, flags);
}

PUBLIC int cuStreamIsCapturing(void *stream, int *status)
{
    *status = emulate_capture((cudaStream_t)stream) != nullptr;
    return 0;
}

PUBLIC int cuStreamGetCaptureInfo_v2(void *stream, int *status, uint64_t *, void **graph, const void **, size_t *)
{
    *graph = emulate_capture((cudaStream_t)stream);
    *status = *graph != nullptr;
    return 0;
}

/* An object with one reference, which a graph takes over. */
PUBLIC int cuUserObjectCreate(void **object, void *data, void (*destroy)(void *), unsigned, unsigned)
{
    *object = new std::shared_ptr<void>(data, destroy);
    return 0;
}

PUBLIC int cuGraphRetainUserObject(void *graph, void *object, unsigned, unsigned)
{
    auto own = static_cast<std::shared_ptr<void> *>(object);
    emulate_keep((cudaGraph_t)graph, *own);
    delete own;
    return 0;
}

PUBLIC int cuThreadExchangeStreamCaptureMode(int *mode)
{
    static thread_local int now;
    int was = now;
    now = *mode;
    *mode = was;
    return 0;
}

PUBLIC int cuLaunchHostFunc(void *stream, void (*call)(void *), void *data)
{
    return emulate_enqueue((cudaStream_t)stream, [=] { call(data); });
}

PUBLIC int cuEventCreate(void **event, unsigned flags)
{
    return cudaEventCreateWithFlags((cudaEvent_t *)event, flags);
}

PUBLIC int cuEventDestroy_v2(void *event)
{
    return cudaEventDestroy((cudaEvent_t)event);
}

PUBLIC int cuEventRecord(void *event, void *stream)
{
    return cudaEventRecord((cudaEvent_t)event, (cudaStream_t)stream);
}

PUBLIC int cuEventQuery(void *event)
{
    return cudaEventQuery((cudaEvent_t)event);
}

PUBLIC int cuMemAlloc_v2(uint64_t *memory, size_t bytes)
{
    void *at = nullptr;
    int rc = cudaMalloc(&at, bytes);
    *memory = (uintptr_t)at;
    return rc;
}

PUBLIC int cuMemFree_v2(uint64_t memory)
{
    return cudaFree((void *)(uintptr_t)memory);
}

PUBLIC int cuMemcpyAsync(uint64_t to, uint64_t from, size_t bytes, void *stream)
{
    return cudaMemcpyAsync((void *)(uintptr_t)to, (const void *)(uintptr_t)from, bytes, cudaMemcpyDefault,
                           (cudaStream_t)stream);
}

PUBLIC int cuMemGetAddressRange_v2(uint64_t *base, size_t *bytes, uint64_t at)
{
    return emulate_memory_range((const void *)(uintptr_t)at, base, bytes);
}
