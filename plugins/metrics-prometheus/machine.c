#include "machine.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../common/nvml.h"

static FILE *open_in(const char *folder, const char *name)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return fopen(path, "re");
}

static void print_head(FILE *out, const char *name, const char *type, const char *help)
{
    fprintf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

/* ---- /proc */

static void print_cpu(FILE *out, const char *proc)
{
    static const char *const modes[] = {"user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal"};
    double ticks[8];
    FILE *f = open_in(proc, "stat");
    int n = f ? fscanf(f, "cpu %lf %lf %lf %lf %lf %lf %lf %lf", &ticks[0], &ticks[1], &ticks[2], &ticks[3], &ticks[4],
                       &ticks[5], &ticks[6], &ticks[7])
              : 0;
    if (f)
        fclose(f);
    if (n < 8)
        return;
    print_head(out, "heddle_machine_cpu_seconds_total", "counter", "Seconds of all cores of the machine, by mode.");
    for (int k = 0; k < n; k++)
        fprintf(out, "heddle_machine_cpu_seconds_total{mode=\"%s\"} %.15g\n", modes[k],
                ticks[k] / (double)sysconf(_SC_CLK_TCK));
}

static void print_memory(FILE *out, const char *proc)
{
    FILE *f = open_in(proc, "meminfo");
    char line[256];
    double kib;
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %lf", &kib) == 1) {
            print_head(out, "heddle_machine_memory_available_bytes", "gauge",
                       "Memory that programs can get without swapping.");
            fprintf(out, "heddle_machine_memory_available_bytes %.15g\n", kib * 1024);
        }
    if (f)
        fclose(f);
}

/* Label of a device: names that the format would have to escape are left out. */
static int is_plain(const char *name)
{
    return *name && !name[strcspn(name, "\"\\\n")];
}

static void print_network(FILE *out, const char *proc)
{
    static const char family[] = "heddle_machine_network_bytes_total";
    FILE *f = open_in(proc, "net/dev");
    char line[512], name[64];
    double in, sent;
    int any = 0;
    while (f && fgets(line, sizeof line, f)) {
        if (sscanf(line, " %63[^:]: %lf %*f %*f %*f %*f %*f %*f %*f %lf", name, &in, &sent) != 3 ||
            !strcmp(name, "lo") || !is_plain(name))
            continue;
        if (!any++)
            print_head(out, family, "counter", "Bytes through a network interface.");
        fprintf(out, "%s{device=\"%s\",direction=\"receive\"} %.15g\n", family, name, in);
        fprintf(out, "%s{device=\"%s\",direction=\"transmit\"} %.15g\n", family, name, sent);
    }
    if (f)
        fclose(f);
}

/* Whole disks: what has a folder in /sys/block; not loop and ram disks. */
static int is_disk(const char *name)
{
    char path[128];
    snprintf(path, sizeof path, "/sys/block/%s", name);
    return strncmp(name, "loop", 4) && strncmp(name, "ram", 3) && is_plain(name) && !access(path, F_OK);
}

static void print_disks(FILE *out, const char *proc)
{
    static const char family[] = "heddle_machine_disk_bytes_total";
    FILE *f = open_in(proc, "diskstats");
    char line[512], name[64];
    double in, written;
    int any = 0;
    while (f && fgets(line, sizeof line, f)) {
        if (sscanf(line, " %*d %*d %63s %*f %*f %lf %*f %*f %*f %lf", name, &in, &written) != 3 || !is_disk(name))
            continue;
        if (!any++)
            print_head(out, family, "counter", "Bytes read from and written to a disk.");
        fprintf(out, "%s{device=\"%s\",direction=\"read\"} %.15g\n", family, name, in * 512);
        fprintf(out, "%s{device=\"%s\",direction=\"write\"} %.15g\n", family, name, written * 512);
    }
    if (f)
        fclose(f);
}

/* ---- GPUs */

static const struct {
    const char *name, *help;
    size_t at;
} gauges[] = {{"heddle_gpu_utilization_ratio", "Part of the last sample period in which a kernel ran, 0 to 1.",
               offsetof(struct nvml_gpu, utilization)},
              {"heddle_gpu_memory_used_bytes", "Memory in use on the GPU.", offsetof(struct nvml_gpu, memory_used)},
              {"heddle_gpu_power_watts", "Power that the GPU draws.", offsetof(struct nvml_gpu, power)},
              {"heddle_gpu_temperature_celsius", "Temperature of the GPU.", offsetof(struct nvml_gpu, temperature)},
              {"heddle_gpu_clock_hertz", "Clock of the SMs.", offsetof(struct nvml_gpu, clock)}};

static double value_of(const struct nvml_gpu *gpu, size_t at)
{
    double value;
    memcpy(&value, (const char *)gpu + at, sizeof value);
    return value;
}

static void print_errors(FILE *out, const struct nvml_gpu *gpus, unsigned n)
{
    static const char family[] = "heddle_gpu_ecc_errors_total";
    int any = 0;
    for (unsigned i = 0; i < n; i++) {
        const double errors[2] = {gpus[i].ecc_corrected, gpus[i].ecc_uncorrected};
        for (int k = 0; k < 2; k++) {
            if (isnan(errors[k]))
                continue;
            if (!any++)
                print_head(out, family, "counter", "ECC errors of the GPU's memory since its driver was loaded.");
            fprintf(out, "%s{gpu=\"%u\",kind=\"%s\"} %.15g\n", family, i, k ? "uncorrected" : "corrected", errors[k]);
        }
    }
}

static void print_gpus(FILE *out, const struct nvml *nvml)
{
    static const char throttled[] = "heddle_gpu_throttled";
    struct nvml_gpu gpus[NVML_GPUS];
    unsigned n = nvml_count(nvml);
    for (unsigned i = 0; i < n; i++)
        nvml_read(nvml, i, &gpus[i]);
    for (size_t k = 0; k < sizeof gauges / sizeof *gauges; k++) {
        int any = 0;
        for (unsigned i = 0; i < n; i++) {
            double value = value_of(&gpus[i], gauges[k].at);
            if (isnan(value))
                continue;
            if (!any++)
                print_head(out, gauges[k].name, "gauge", gauges[k].help);
            fprintf(out, "%s{gpu=\"%u\"} %.15g\n", gauges[k].name, i, value);
        }
    }
    if (n)
        print_head(out, throttled, "gauge", "Whether this reason holds the GPU's clock down, 0 or 1.");
    for (unsigned i = 0; i < n; i++)
        for (unsigned k = 0; k < NVML_THROTTLE_REASONS; k++)
            fprintf(out, "%s{gpu=\"%u\",reason=\"%s\"} %u\n", throttled, i, nvml_throttle_name(k),
                    gpus[i].throttle >> k & 1);
    print_errors(out, gpus, n);
}

void machine_print(FILE *out, const char *proc, const struct nvml *gpus)
{
    print_cpu(out, proc);
    print_memory(out, proc);
    print_network(out, proc);
    print_disks(out, proc);
    if (gpus)
        print_gpus(out, gpus);
}
