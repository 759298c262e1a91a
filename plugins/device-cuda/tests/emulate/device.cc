/* The GPU that is emulated, and names of codes. HEDDLE_EMULATE_DEVICES: how many there are, or "driver" for a
 * machine without a driver. HEDDLE_EMULATE_CAPABILITY: its compute capability, 90 for 9.0. */
#include "device.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static pid_t owner; /* the process that started the driver; 0: none has */
static int connections;

bool emulate_started(void)
{
    return owner == getpid();
}

int emulate_connections(void)
{
    return emulate_started() ? connections : 0;
}

cudaError_t emulate_start(int *count)
{
    const char *word = getenv("HEDDLE_EMULATE_DEVICES");
    *count = 0;
    if (owner && !emulate_started())
        return cudaErrorInitializationError;
    if (word && !strcmp(word, "driver"))
        return cudaErrorInsufficientDriver;
    *count = word ? atoi(word) : 1;
    if (!*count)
        return cudaErrorNoDevice;
    if (!owner) {
        const char *queues = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
        connections = queues ? atoi(queues) : 8;
    }
    owner = getpid();
    return cudaSuccess;
}

extern "C" {

const char *cudaGetErrorName(cudaError_t rc)
{
    switch (rc) {
#define NAME(constant) \
    case constant:     \
        return #constant;
        NAME(cudaSuccess)
        NAME(cudaErrorInvalidValue)
        NAME(cudaErrorMemoryAllocation)
        NAME(cudaErrorInitializationError)
        NAME(cudaErrorInvalidConfiguration)
        NAME(cudaErrorStubLibrary)
        NAME(cudaErrorInsufficientDriver)
        NAME(cudaErrorNoDevice)
        NAME(cudaErrorInvalidDevice)
        NAME(cudaErrorECCUncorrectable)
        NAME(cudaErrorInvalidResourceHandle)
        NAME(cudaErrorNotReady)
        NAME(cudaErrorIllegalAddress)
        NAME(cudaErrorLaunchTimeout)
        NAME(cudaErrorAssert)
        NAME(cudaErrorHardwareStackError)
        NAME(cudaErrorIllegalInstruction)
        NAME(cudaErrorMisalignedAddress)
        NAME(cudaErrorInvalidAddressSpace)
        NAME(cudaErrorInvalidPc)
        NAME(cudaErrorLaunchFailure)
        NAME(cudaErrorNotSupported)
        NAME(cudaErrorStreamCaptureUnsupported)
        NAME(cudaErrorStreamCaptureInvalidated)
        NAME(cudaErrorStreamCaptureMerge)
        NAME(cudaErrorStreamCaptureUnmatched)
        NAME(cudaErrorStreamCaptureUnjoined)
        NAME(cudaErrorStreamCaptureIsolation)
        NAME(cudaErrorStreamCaptureImplicit)
        NAME(cudaErrorCapturedEvent)
        NAME(cudaErrorStreamCaptureWrongThread)
#undef NAME
    }
    return "cudaErrorUnknown";
}

const char *cudaGetErrorString(cudaError_t rc)
{
    return cudaGetErrorName(rc);
}

cudaError_t cudaGetDeviceCount(int *count)
{
    return emulate_start(count);
}

cudaError_t cudaSetDevice(int device)
{
    int count;
    cudaError_t rc = cudaGetDeviceCount(&count);
    return rc ? rc : device < 0 || device >= count ? cudaErrorInvalidDevice : cudaSuccess;
}

static int capability()
{
    const char *word = getenv("HEDDLE_EMULATE_CAPABILITY");
    return word ? atoi(word) : 90;
}

/* Few processors, so that blocks work in strides of the grid. */
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr what, int)
{
    switch (what) {
    case cudaDevAttrClockRate:
        *value = getenv("HEDDLE_EMULATE_CLOCK") ? atoi(getenv("HEDDLE_EMULATE_CLOCK")) : 1000000;
        return cudaSuccess;
    case cudaDevAttrMultiProcessorCount:
        *value = 2;
        return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
        *value = capability() / 10;
        return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
        *value = capability() % 10;
        return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
        *value = 227 << 10;
        return cudaSuccess;
    }
    return cudaErrorInvalidValue;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}
}
