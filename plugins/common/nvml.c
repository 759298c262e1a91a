#include "nvml.h"

#include <dlfcn.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* NVML's ABI, as nvml.h has it since driver 450. A function that returns anything but 0 has no value. */
typedef void *nvml_device;
struct nvml_utilization {
    unsigned gpu, memory; /* percent */
};
struct nvml_memory {
    unsigned long long total, free, used;
};
enum { TEMPERATURE_GPU = 0, CLOCK_SM = 1, ECC_CORRECTED = 0, ECC_UNCORRECTED = 1, ECC_VOLATILE = 0, P2P_NVLINK = 2 };

/* X(field, symbol, parameters). Only the first four have to be there. */
#define FUNCTIONS(X)                                                                              \
    X(init, "nvmlInit_v2", (void))                                                                \
    X(shutdown, "nvmlShutdown", (void))                                                           \
    X(count, "nvmlDeviceGetCount_v2", (unsigned *))                                               \
    X(device, "nvmlDeviceGetHandleByIndex_v2", (unsigned, nvml_device *))                         \
    X(name, "nvmlDeviceGetName", (nvml_device, char *, unsigned))                                 \
    X(utilization, "nvmlDeviceGetUtilizationRates", (nvml_device, struct nvml_utilization *))     \
    X(memory, "nvmlDeviceGetMemoryInfo", (nvml_device, struct nvml_memory *))                     \
    X(power, "nvmlDeviceGetPowerUsage", (nvml_device, unsigned *))                                \
    X(power_limit, "nvmlDeviceGetEnforcedPowerLimit", (nvml_device, unsigned *))                  \
    X(temperature, "nvmlDeviceGetTemperature", (nvml_device, int, unsigned *))                    \
    X(clock, "nvmlDeviceGetClockInfo", (nvml_device, int, unsigned *))                            \
    X(clock_max, "nvmlDeviceGetMaxClockInfo", (nvml_device, int, unsigned *))                     \
    X(throttle, "nvmlDeviceGetCurrentClocksThrottleReasons", (nvml_device, unsigned long long *)) \
    X(ecc, "nvmlDeviceGetTotalEccErrors", (nvml_device, int, int, unsigned long long *))          \
    X(ancestor, "nvmlDeviceGetTopologyCommonAncestor", (nvml_device, nvml_device, int *))         \
    X(p2p, "nvmlDeviceGetP2PStatus", (nvml_device, nvml_device, int, int *))
enum { MANDATORY = 4 };

struct nvml {
    void *library;
#define FIELD(field, symbol, parameters) int(*field) parameters;
    FUNCTIONS(FIELD)
#undef FIELD
    unsigned n, reserved;
    nvml_device devices[NVML_GPUS];
};

/* Reasons that cost speed: the idle clock, and clocks that were asked for, do not count. */
static const struct {
    unsigned long long bits;
    const char *name;
} reasons[NVML_THROTTLE_REASONS] = {{0x04, "power_cap"},
                                    {0x08, "hardware_slowdown"},
                                    {0x20, "software_thermal"},
                                    {0x40, "hardware_thermal"},
                                    {0x80, "power_brake"}};

const char *nvml_throttle_name(unsigned k)
{
    return reasons[k].name;
}

static int resolve(struct nvml *n, char why[256])
{
    static const struct {
        const char *name;
        size_t at;
    } symbols[] = {
#define SYMBOL(field, symbol, parameters) {symbol, offsetof(struct nvml, field)},
        FUNCTIONS(SYMBOL)
#undef SYMBOL
    };
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
        void *at = dlsym(n->library, symbols[i].name);
        memcpy((char *)n + symbols[i].at, &at, sizeof at);
        if (!at && i < MANDATORY) {
            snprintf(why, 256, "libnvidia-ml.so.1 has no %s: update the driver", symbols[i].name);
            return 0;
        }
    }
    return 1;
}

struct nvml *nvml_open(char why[256])
{
    struct nvml *n = calloc(1, sizeof *n);
    int rc = 0;
    if (!n || !(n->library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)))
        snprintf(why, 256, "no NVIDIA driver: libnvidia-ml.so.1 cannot be opened");
    else if (!resolve(n, why))
        rc = -1;
    else if ((rc = n->init()))
        snprintf(why, 256, "nvmlInit returns %d: the driver is not loaded, or not of this library's version", rc);
    else if ((rc = n->count(&n->n)))
        snprintf(why, 256, "nvmlDeviceGetCount returns %d", rc);
    if (!n || !n->library || rc) {
        nvml_close(n);
        return NULL;
    }
    n->n = n->n < NVML_GPUS ? n->n : NVML_GPUS;
    for (unsigned i = 0; i < n->n; i++)
        if (n->device(i, &n->devices[i]))
            n->devices[i] = NULL;
    return n;
}

void nvml_close(struct nvml *n)
{
    if (n && n->library && n->shutdown)
        n->shutdown(); /* the library stays: a driver leaves threads and handlers behind */
    free(n);
}

unsigned nvml_count(const struct nvml *n)
{
    return n->n;
}

static void read_counts(const struct nvml *n, nvml_device d, struct nvml_gpu *out)
{
    struct nvml_utilization used = {0};
    struct nvml_memory memory = {0};
    unsigned long long count = 0;
    if (n->utilization && !n->utilization(d, &used))
        out->utilization = used.gpu / 100.0;
    if (n->memory && !n->memory(d, &memory)) {
        out->memory_used = (double)memory.used;
        out->memory_total = (double)memory.total;
    }
    if (n->ecc && !n->ecc(d, ECC_CORRECTED, ECC_VOLATILE, &count))
        out->ecc_corrected = (double)count;
    if (n->ecc && !n->ecc(d, ECC_UNCORRECTED, ECC_VOLATILE, &count))
        out->ecc_uncorrected = (double)count;
    count = 0;
    if (n->throttle && !n->throttle(d, &count))
        for (unsigned k = 0; k < NVML_THROTTLE_REASONS; k++)
            out->throttle |= count & reasons[k].bits ? 1u << k : 0;
}

void nvml_read(const struct nvml *n, unsigned gpu, struct nvml_gpu *out)
{
    nvml_device d = n->devices[gpu];
    unsigned value = 0;
    *out = (struct nvml_gpu){.utilization = NAN,
                             .memory_used = NAN,
                             .memory_total = NAN,
                             .power = NAN,
                             .power_limit = NAN,
                             .temperature = NAN,
                             .clock = NAN,
                             .clock_max = NAN,
                             .ecc_corrected = NAN,
                             .ecc_uncorrected = NAN};
    if (!d)
        return;
    if (!n->name || n->name(d, out->name, sizeof out->name))
        out->name[0] = 0;
    read_counts(n, d, out);
    if (n->power && !n->power(d, &value))
        out->power = value * 1e-3;
    if (n->power_limit && !n->power_limit(d, &value))
        out->power_limit = value * 1e-3;
    if (n->temperature && !n->temperature(d, TEMPERATURE_GPU, &value))
        out->temperature = value;
    if (n->clock && !n->clock(d, CLOCK_SM, &value))
        out->clock = value * 1e6;
    if (n->clock_max && !n->clock_max(d, CLOCK_SM, &value))
        out->clock_max = value * 1e6;
}

int nvml_link(const struct nvml *n, unsigned a, unsigned b)
{
    int status = -1, level = -1;
    if (!n->devices[a] || !n->devices[b])
        return NVML_LINK_UNKNOWN;
    if (n->p2p && !n->p2p(n->devices[a], n->devices[b], P2P_NVLINK, &status) && !status)
        return NVML_LINK_NVLINK;
    if (!n->ancestor || n->ancestor(n->devices[a], n->devices[b], &level))
        return NVML_LINK_UNKNOWN;
    return level <= 20 ? NVML_LINK_PCIE : level <= 30 ? NVML_LINK_HOST : NVML_LINK_NODES;
}
