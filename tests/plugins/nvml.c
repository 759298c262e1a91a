/* libnvidia-ml.so.1 of the tests: GPUs that FAKE_NVML describes: "gpus=2 throttle=0x40 ecc=3 mute=1 init=9". */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

static unsigned long setting(const char *name, unsigned long otherwise)
{
    const char *text = getenv("FAKE_NVML"), *at = text ? strstr(text, name) : NULL;
    return at ? strtoul(at + strlen(name), NULL, 0) : otherwise;
}

static unsigned index_of(const void *device)
{
    return (unsigned)((size_t)device - 1);
}

/* NVML_ERROR_GPU_IS_LOST of the GPU that is mute. */
static int lost(const void *device)
{
    return setting("mute=", 99) == index_of(device) ? 15 : 0;
}

EXPORT int nvmlInit_v2(void)
{
    return (int)setting("init=", 0);
}

EXPORT int nvmlShutdown(void)
{
    return 0;
}

EXPORT int nvmlDeviceGetCount_v2(unsigned *n)
{
    *n = (unsigned)setting("gpus=", 1);
    return 0;
}

EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **device)
{
    *device = (void *)(size_t)(i + 1);
    return 0;
}

EXPORT int nvmlDeviceGetName(void *device, char *name, unsigned room)
{
    if (!lost(device))
        snprintf(name, room, "NVIDIA H100 \"%u\"", index_of(device));
    return lost(device);
}

EXPORT int nvmlDeviceGetUtilizationRates(void *device, unsigned out[2])
{
    out[0] = 90 + index_of(device);
    out[1] = 40;
    return lost(device);
}

EXPORT int nvmlDeviceGetMemoryInfo(void *device, unsigned long long out[3])
{
    out[0] = 80ull << 30;
    out[1] = 60ull << 30;
    out[2] = 20ull << 30;
    return lost(device);
}

EXPORT int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts)
{
    *milliwatts = 650500;
    return lost(device);
}

EXPORT int nvmlDeviceGetEnforcedPowerLimit(void *device, unsigned *milliwatts)
{
    *milliwatts = 700000;
    return lost(device);
}

EXPORT int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *degrees)
{
    *degrees = 71;
    return sensor ? 2 : lost(device);
}

EXPORT int nvmlDeviceGetClockInfo(void *device, int clock, unsigned *mhz)
{
    *mhz = 1755;
    return clock == 1 ? lost(device) : 2;
}

EXPORT int nvmlDeviceGetMaxClockInfo(void *device, int clock, unsigned *mhz)
{
    *mhz = 1980;
    return clock == 1 ? lost(device) : 2;
}

EXPORT int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *bits)
{
    *bits = 1 | setting("throttle=", 0); /* idle: no reason that costs speed */
    return lost(device);
}

/* GPU 0 has the errors; "ecc=off": NVML_ERROR_NOT_SUPPORTED. */
EXPORT int nvmlDeviceGetTotalEccErrors(void *device, int is_uncorrected, int since_reset, unsigned long long *n)
{
    const char *text = getenv("FAKE_NVML");
    *n = !is_uncorrected ? 7 : index_of(device) ? 0 : setting("ecc=", 0);
    return since_reset || (text && strstr(text, "ecc=off")) ? 3 : lost(device);
}

EXPORT int nvmlDeviceGetP2PStatus(void *a, void *b, int kind, int *status)
{
    *status = kind == 2 && index_of(a) / 2 == index_of(b) / 2 ? 0 : 1; /* NVLink between neighbours */
    return 0;
}

EXPORT int nvmlDeviceGetTopologyCommonAncestor(void *a, void *b, int *level)
{
    (void)a, (void)b;
    *level = 30;
    return 0;
}
