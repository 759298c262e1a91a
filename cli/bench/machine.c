/* heddle bench: the machine's processor, cores, memory and kernel. Never its host name. */
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "cli/bench/bench.h"

/* "model name      : X" */
static void processor(char out[96])
{
    FILE *f = fopen("/proc/cpuinfo", "r");
    char line[256];
    snprintf(out, 96, "a processor without a name");
    while (f && fgets(line, sizeof line, f)) {
        char *at = strncmp(line, "model name", 10) ? NULL : strchr(line, ':');
        if (!at)
            continue;
        snprintf(out, 96, "%.95s", at + 1 + strspn(at + 1, " \t"));
        out[strcspn(out, "\n")] = 0;
        break;
    }
    if (f)
        fclose(f);
}

void hd__bench_machine_text(char out[256])
{
    char cpu[96];
    struct utsname kernel;
    cpu_set_t all;
    int cores = sched_getaffinity(0, sizeof all, &all) ? 0 : CPU_COUNT(&all);
    double memory = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE) / (1 << 30);
    processor(cpu);
    int major = 0, minor = 0;
    if (uname(&kernel) || sscanf(kernel.release, "%d.%d", &major, &minor) != 2)
        major = minor = 0;
    snprintf(out, 256, "%s, %d core%s, %.0f GiB, Linux %d.%d", cpu, cores, cores == 1 ? "" : "s", memory, major, minor);
}
