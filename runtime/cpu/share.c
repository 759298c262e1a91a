#include "runtime/cpu/share.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "runtime/cpu/parallel_for.h"

int hd__cpu_file_line(const char *path, const char *begins, char *out, size_t room)
{
    char line[512];
    size_t n = strlen(begins);
    int found = 0;
    FILE *f = fopen(path, "re");
    while (f && !found && fgets(line, sizeof line, f))
        found = !strncmp(line, begins, n);
    if (f)
        fclose(f);
    snprintf(out, room, "%.*s", found ? (int)strcspn(line + n, "\n") : 0, line + n);
    return found;
}

void hd__cpu_name(char out[96])
{
    char line[128];
    hd__cpu_file_line("/proc/cpuinfo", "model name", line, sizeof line); /* "\t: X" */
    snprintf(out, 96, "%.95s", line + strspn(line, " \t:"));
}

/* The least quota, in cores, of this process' cgroups (v2, then v1), up to the root of what can be seen; 0: none. */
static double least_quota(const char *root, const char *group, const char *file)
{
    char *path = hd__format("%s%s", root, group), text[64];
    double least = 0;
    for (size_t base = strlen(root);;) {
        char *at = hd__format("%s/%s", path, file), *slash;
        double quota = 0, period = 100000;
        if (hd__cpu_file_line(at, "", text, sizeof text)) {
            sscanf(text, "%lf %lf", &quota, &period);
            free(at);
            at = hd__format("%s/cpu.cfs_period_us", path);
            if (strcmp(file, "cpu.max") && hd__cpu_file_line(at, "", text, sizeof text))
                period = strtod(text, NULL);
        }
        free(at);
        if (quota > 0 && period > 0)
            least = least > 0 ? fmin(least, quota / period) : quota / period;
        slash = strrchr(path, '/');
        if (!slash || (size_t)(slash - path) < base)
            break;
        *slash = 0;
    }
    free(path);
    return least;
}

/* ":cpu,cpuacct", or ":cpuacct,cpu" as older kernels have it. */
static int has_cpu(const char *controllers)
{
    for (const char *c = controllers; c; c = strchr(c + 1, ','))
        if (!strncmp(c + 1, "cpu", 3) && (c[4] == ',' || !c[4]))
            return 1;
    return 0;
}

double hd__cpu_quota_of(const char *groups, const char *root)
{
    FILE *f = fopen(groups, "re");
    char line[4096], *cpu = hd__format("%s/cpu", root);
    double least = 0;
    while (f && fgets(line, sizeof line, f)) {
        char *of = strchr(line, ':'), *group = of ? strchr(of + 1, ':') : NULL;
        double quota = 0;
        if (!group)
            continue;
        *group++ = 0;
        group[strcspn(group, "\n")] = 0;
        group[strcmp(group, "/") ? strlen(group) : 0] = 0;
        if (!strcmp(of, ":"))
            quota = least_quota(root, group, "cpu.max");
        else if (has_cpu(of))
            quota = least_quota(cpu, group, "cpu.cfs_quota_us");
        if (quota > 0)
            least = least > 0 ? fmin(least, quota) : quota;
    }
    if (f)
        fclose(f);
    free(cpu);
    return least;
}

double hd__cpu_quota(void)
{
    return hd__cpu_quota_of("/proc/self/cgroup", "/sys/fs/cgroup");
}

int32_t hd__cpu_share(int32_t of_cores, int32_t of_quota)
{
    double quota = hd__cpu_quota() / of_quota;
    int32_t cores = hd__cpu_count() / of_cores;
    return HD__MAX(1, quota > 0 && quota < cores ? (int32_t)quota : cores);
}

int32_t hd__cpu_share_of_rank(int32_t local_ranks)
{
    int pinned = hd__cpu_count() < sysconf(_SC_NPROCESSORS_ONLN);
    return hd__cpu_share(pinned ? 1 : local_ranks, local_ranks);
}
