/* metrics-prometheus: the machine's counters, from /proc and NVML, as they are when a scrape comes. */
#ifndef METRICS_PROMETHEUS_MACHINE_H
#define METRICS_PROMETHEUS_MACHINE_H

#include <stdio.h>

struct nvml;

/* Families of the text format. `proc`: "/proc". gpus NULL: there are none. What cannot be read is left out. */
void machine_print(FILE *out, const char *proc, const struct nvml *gpus);

#endif
