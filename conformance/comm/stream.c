#include "conformance/comm/stream.h"

#include <dlfcn.h>

static struct {
    int (*cuInit)(unsigned);
    int (*cuDeviceGetCount)(int *);
    int (*cuDevicePrimaryCtxRetain)(void **, int);
    int (*cuCtxSetCurrent)(void *);
    int (*cuStreamCreate)(void **, unsigned);
    int (*cuStreamQuery)(void *);
    int (*cuMemHostAlloc)(void **, size_t, unsigned);
} cu;

enum { NOT_READY = 600, NON_BLOCKING = 1, PORTABLE_MAPPED = 3 };

static int find(void *library, const char *name, void *slot)
{
    void *found = dlsym(library, name);
    memcpy(slot, &found, sizeof found);
    return found != NULL;
}

int32_t stream_open(const char *driver, int32_t index, void **stream, struct hd_error *err)
{
    void *library = dlopen(driver, RTLD_NOW | RTLD_LOCAL), *context;
    int count = 0, result;
    if (!library || !find(library, "cuInit", &cu.cuInit) || !find(library, "cuDeviceGetCount", &cu.cuDeviceGetCount) ||
        !find(library, "cuDevicePrimaryCtxRetain", &cu.cuDevicePrimaryCtxRetain) ||
        !find(library, "cuCtxSetCurrent", &cu.cuCtxSetCurrent) ||
        !find(library, "cuStreamCreate", &cu.cuStreamCreate) || !find(library, "cuStreamQuery", &cu.cuStreamQuery) ||
        !find(library, "cuMemHostAlloc", &cu.cuMemHostAlloc))
        return hd_fail(err, HD_E_NOTFOUND, "%s", dlerror());
    if (!(result = cu.cuInit(0)) && !(result = cu.cuDeviceGetCount(&count)) &&
        !(result = cu.cuDevicePrimaryCtxRetain(&context, count ? index % count : 0)) &&
        !(result = cu.cuCtxSetCurrent(context)))
        result = cu.cuStreamCreate(stream, NON_BLOCKING);
    return result ? hd_fail(err, HD_E_IO, "CUDA %d", result) : HD_OK;
}

int32_t stream_idle(void *stream, struct hd_error *err)
{
    int result = cu.cuStreamQuery(stream);
    if (result && result != NOT_READY)
        return hd_fail(err, HD_E_IO, "CUDA %d", result);
    return !result;
}

void *stream_memory(size_t bytes)
{
    void *at;
    if (cu.cuMemHostAlloc(&at, bytes, PORTABLE_MAPPED))
        return NULL;
    return memset(at, 0, bytes);
}
