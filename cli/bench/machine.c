/* heddle bench: the machine's processor, cores, memory and kernel. Never its host name. */
#include <sched.h>
#include <stdio.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "cli/bench/bench.h"
#include "runtime/cpu/parallel_for.h"
#include "runtime/cpu/share.h"

void hd__bench_machine_text(char out[256])
{
    char name[96];
    struct utsname kernel;
    cpu_set_t all;
    int cores = sched_getaffinity(0, sizeof all, &all) ? 0 : CPU_COUNT(&all);
    double memory = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE) / (1 << 30);
    int major = 0, minor = 0;
    hd__cpu_name(name);
    if (uname(&kernel) || sscanf(kernel.release, "%d.%d", &major, &minor) != 2)
        major = minor = 0;
    snprintf(out, 256, "%s, %d core%s, %.0f GiB, Linux %d.%d", *name ? name : "a processor without a name", cores,
             cores == 1 ? "" : "s", memory, major, minor);
}

void hd__bench_warn_cores(const char *who, int64_t ranks, int32_t cores)
{
    if (ranks > cores)
        hd__log(HD_LOG_WARN, NULL,
                "%s %lld: this machine has %d core%s, so the ranks take turns: the result includes that, and measuring "
                "takes longer",
                who, (long long)ranks, cores, cores > 1 ? "s" : "");
}
