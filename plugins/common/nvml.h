/* plugins/common/nvml: GPUs as the NVIDIA driver reports them, by libnvidia-ml.so.1, opened where it is there. */
#ifndef HD_PLUGINS_COMMON_NVML_H
#define HD_PLUGINS_COMMON_NVML_H

#include <stdint.h>

enum { NVML_GPUS = 64, NVML_THROTTLE_REASONS = 5 };

struct nvml;

/* Numbers that the GPU does not have, or hides, are NaN. */
struct nvml_gpu {
    char name[96];
    double utilization;                    /* part of the last sample period in which a kernel ran, 0 to 1 */
    double memory_used, memory_total;      /* bytes */
    double power, power_limit;             /* watts */
    double temperature;                    /* degrees Celsius */
    double clock, clock_max;               /* of the SMs, hertz */
    double ecc_corrected, ecc_uncorrected; /* errors since the driver was loaded; NaN: ECC is off or not there */
    uint32_t throttle;                     /* bit k: nvml_throttle_name(k) holds the clock down */
    uint32_t reserved;
};

/* Link between two GPUs. */
enum { NVML_LINK_UNKNOWN, NVML_LINK_NVLINK, NVML_LINK_PCIE, NVML_LINK_HOST, NVML_LINK_NODES };

/* NULL where the library or its driver is not there; `why` says it. */
struct nvml *nvml_open(char why[256]);
void nvml_close(struct nvml *n); /* NULL is fine */
unsigned nvml_count(const struct nvml *n);
void nvml_read(const struct nvml *n, unsigned gpu, struct nvml_gpu *out);
int nvml_link(const struct nvml *n, unsigned a, unsigned b);
const char *nvml_throttle_name(unsigned k); /* "thermal" */

#endif
