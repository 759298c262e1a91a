/* heddle doctor: the processor, its clocks and the machine's; memory, cgroup, huge pages and limits. */
#include <dirent.h>
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/timex.h>
#include <unistd.h>

#include "cli/bench/bench.h"
#include "cli/doctor/doctor.h"
#include "runtime/cpu/share.h"
#include "service/train/train.h"

#define OK HD__DOCTOR_OK
#define WARN HD__DOCTOR_WARN
#define BAD HD__DOCTOR_BAD

/* Below this, mpi, libfabric and nccl do not get their segments: docker's default is 64 MiB. */
#define SHM_LEAST (INT64_C(128) << 20)

/* ---- processor and clocks */

static int32_t cores(void)
{
    cpu_set_t all;
    return sched_getaffinity(0, sizeof all, &all) ? (int32_t)sysconf(_SC_NPROCESSORS_ONLN) : CPU_COUNT(&all);
}

static void check_processor(struct hd__doctor *d)
{
    char machine[256], governor[64];
    int32_t n = cores();
    hd__bench_machine_text(machine);
    hd__doctor_add(d, OK, "cpu", "processor", NULL, "%s", machine);
    if (d->ranks > n)
        hd__doctor_add(d, WARN, "cpu", "cores",
                       "start fewer ranks on this machine, or give the process more cores (taskset, cpuset)",
                       "%d for %d ranks: they take turns", n, d->ranks);
    if (!hd__cpu_file_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "", governor, sizeof governor))
        hd__doctor_add(d, OK, "cpu", "frequency", NULL, "not shown here, as in virtual machines");
    else if (!strcmp(governor, "powersave") || !strcmp(governor, "conservative"))
        hd__doctor_add(d, WARN, "cpu", "frequency", "cpupower frequency-set -g performance",
                       "governor %s: cores may run below their frequency", governor);
    else
        hd__doctor_add(d, OK, "cpu", "frequency", NULL, "governor %s", governor);
}

static void check_clocks(struct hd__doctor *d)
{
    char source[64];
    struct timex t = {.modes = 0};
    int state = adjtimex(&t);
    if (!hd__cpu_file_line("/sys/devices/system/clocksource/clocksource0/current_clocksource", "", source,
                           sizeof source))
        hd__doctor_add(d, OK, "clock", "source", NULL, "not shown here");
    else if (!strcmp(source, "hpet") || !strcmp(source, "acpi_pm") || !strcmp(source, "jiffies"))
        hd__doctor_add(d, WARN, "clock", "source",
                       "see dmesg for why the kernel left tsc; the boot option tsc=reliable keeps it",
                       "%s: each reading of the time costs microseconds", source);
    else
        hd__doctor_add(d, OK, "clock", "source", NULL, "%s", source);
    if (state == TIME_ERROR || (state >= 0 && t.status & STA_UNSYNC))
        hd__doctor_add(d, WARN, "clock", "time of day", "start chronyd or systemd-timesyncd",
                       "not synchronised: logs of several machines will not line up (training does not need it)");
    else
        hd__doctor_add(d, OK, "clock", "time of day", NULL, "%s", state < 0 ? "not shown here" : "synchronised");
}

/* ---- cgroup */

static void check_cgroup(struct hd__doctor *d)
{
    double quota = hd__cpu_quota(), n = cores();
    if (!(quota > 0))
        hd__doctor_add(d, OK, "cgroup", "cpu quota", NULL, "none");
    else if (quota < n)
        hd__doctor_add(d, WARN, "cgroup", "cpu quota",
                       "device.threads and launch.ranks within the quota, or a container with more (--cpus)",
                       "%.3g of %.0f cores: threads beyond it are stopped in the middle of a step", quota, n);
    else
        hd__doctor_add(d, OK, "cgroup", "cpu quota", NULL, "%.3g cores", quota);
}

/* ---- memory */

static void check_memory(struct hd__doctor *d)
{
    int64_t left = hd__train_memory_available();
    double all = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    char a[32], b[32];
    hd__bytes_text((uint64_t)HD__MAX(left, 0), a);
    hd__bytes_text((uint64_t)all, b);
    if (left <= 0)
        hd__doctor_add(d, WARN, "memory", "available", "mount /proc", "unknown: /proc/meminfo cannot be read");
    else if (left < INT64_C(1) << 30)
        hd__doctor_add(d, WARN, "memory", "available", "end other programs, or raise the cgroup's memory.max",
                       "%s of %s, within the cgroup's limit", a, b);
    else
        hd__doctor_add(d, OK, "memory", "available", NULL, "%s of %s, within the cgroup's limit", a, b);
}

static void check_huge_pages(struct hd__doctor *d)
{
    char mode[64], *chosen, *end;
    if (!hd__cpu_file_line("/sys/kernel/mm/transparent_hugepage/enabled", "", mode, sizeof mode) ||
        !(chosen = strchr(mode, '[')) || !(end = strchr(chosen, ']'))) {
        hd__doctor_add(d, WARN, "memory", "huge pages", "a kernel with CONFIG_TRANSPARENT_HUGEPAGE",
                       "this kernel has no transparent ones");
        return;
    }
    *end = 0;
    if (!strcmp(chosen + 1, "never"))
        hd__doctor_add(d, WARN, "memory", "huge pages", "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
                       "never: the arena has small pages, and large products are slower");
    else
        hd__doctor_add(d, OK, "memory", "huge pages", NULL, "%s", chosen + 1);
}

/* ---- limits */

static void check_files(struct hd__doctor *d)
{
    struct hd_error err = HD_ERROR_INIT;
    struct rlimit limit = {0};
    char *remedy = hd__format("ulimit -n %d, or nofile in /etc/security/limits.conf", HD__MAX(1024, 64 + d->ranks));
    getrlimit(RLIMIT_NOFILE, &limit);
    if (hd__launch_check_files(d->ranks, &err))
        hd__doctor_add(d, BAD, "limit", "nofile", remedy, "%llu open files: too few for %d rank%s on this machine",
                       (unsigned long long)limit.rlim_cur, d->ranks, d->ranks == 1 ? "" : "s");
    else
        hd__doctor_add(d, OK, "limit", "nofile", NULL, "%llu open files", (unsigned long long)limit.rlim_cur);
    free(remedy);
}

static void check_processor_time(struct hd__doctor *d)
{
    int64_t limit = hd__launch_processor_limit();
    if (limit)
        hd__doctor_add(d, WARN, "limit", "cpu", "ulimit -t unlimited, or cpu in /etc/security/limits.conf",
                       "the kernel kills a process after %lld s of processor time", (long long)limit);
    else
        hd__doctor_add(d, OK, "limit", "cpu", NULL, "no limit of processor time");
}

/* The folder is there with the kernel's module, also without a device. */
static int has_rdma(void)
{
    DIR *folder = opendir("/sys/class/infiniband");
    int found = 0;
    for (struct dirent *e; folder && !found && (e = readdir(folder));)
        found = e->d_name[0] != '.';
    if (folder)
        closedir(folder);
    return found;
}

static void check_locked(struct hd__doctor *d)
{
    struct rlimit limit = {0};
    char text[32];
    int rdma = has_rdma();
    getrlimit(RLIMIT_MEMLOCK, &limit);
    if (limit.rlim_cur == RLIM_INFINITY)
        hd__doctor_add(d, OK, "limit", "memlock", NULL, "unlimited");
    else if (rdma)
        hd__doctor_add(d, BAD, "limit", "memlock",
                       "`* - memlock unlimited` in /etc/security/limits.conf (containers: --ulimit memlock=-1)",
                       "%s: too little to register memory with this machine's RDMA devices",
                       hd__bytes_text(limit.rlim_cur, text));
    else
        hd__doctor_add(d, OK, "limit", "memlock", NULL, "%s, and no RDMA device that would want more",
                       hd__bytes_text(limit.rlim_cur, text));
}

static void check_shared_memory(struct hd__doctor *d)
{
    static const char remedy[] = "mount -o remount,size=1g /dev/shm (containers: --shm-size=1g)";
    struct statvfs at;
    char free_text[32], all[32];
    if (statvfs("/dev/shm", &at)) {
        hd__doctor_add(d, BAD, "limit", "/dev/shm", "mount -t tmpfs tmpfs /dev/shm",
                       "%s: mpi, libfabric and nccl need it", strerror(errno));
        return;
    }
    int64_t left = (int64_t)at.f_bavail * (int64_t)at.f_frsize;
    hd__bytes_text((uint64_t)left, free_text);
    hd__bytes_text((uint64_t)at.f_blocks * at.f_frsize, all);
    if (access("/dev/shm", W_OK | X_OK))
        hd__doctor_add(d, BAD, "limit", "/dev/shm", "chmod 1777 /dev/shm", "this user cannot write it: %s",
                       strerror(errno));
    else if (left < SHM_LEAST)
        hd__doctor_add(d, BAD, "limit", "/dev/shm", remedy,
                       "%s free of %s: too little for segments of mpi, libfabric and nccl (shm needs none)", free_text,
                       all);
    else
        hd__doctor_add(d, OK, "limit", "/dev/shm", NULL, "%s free of %s", free_text, all);
}

void hd__doctor_machine(struct hd__doctor *d)
{
    check_processor(d);
    check_clocks(d);
    check_cgroup(d);
    check_memory(d);
    check_huge_pages(d);
    check_files(d);
    check_processor_time(d);
    check_locked(d);
    check_shared_memory(d);
}
