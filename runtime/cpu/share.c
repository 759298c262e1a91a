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

/* ":cpu,cpuacct", or ":cpuacct,cpu" as older kernels have it. */
static int has_controller(const char *controllers, const char *name)
{
    size_t n = strlen(name);
    for (const char *c = controllers; c; c = strchr(c + 1, ','))
        if (!strncmp(c + 1, name, n) && (c[n + 1] == ',' || !c[n + 1]))
            return 1;
    return 0;
}

void hd__cpu_cgroups(const char *groups, const char *root, const char *controller,
                     void (*visit)(const char *folder, void *user), void *user)
{
    FILE *f = fopen(groups, "re");
    char line[4096];
    while (f && fgets(line, sizeof line, f)) {
        char *of = strchr(line, ':'), *group = of ? strchr(of + 1, ':') : NULL, *slash;
        if (!group)
            continue;
        *group++ = 0;
        group[strcspn(group, "\n")] = 0;
        group[strcmp(group, "/") ? strlen(group) : 0] = 0;
        int v2 = !strcmp(of, ":");
        if (!v2 && !has_controller(of, controller))
            continue;
        char *path = hd__format("%s%s%s%s", root, v2 ? "" : "/", v2 ? "" : controller, group);
        size_t base = strlen(path) - strlen(group);
        for (visit(path, user); (slash = strrchr(path, '/')) && (size_t)(slash - path) >= base; visit(path, user))
            *slash = 0;
        free(path);
    }
    if (f)
        fclose(f);
}

static void least_quota(const char *folder, void *user)
{
    static const char *const names[] = {"cpu.max", "cpu.cfs_quota_us"}; /* of v2, of v1 */
    double *least = user;
    char text[64];
    for (size_t i = 0; i < HD__COUNT(names); i++) {
        char *at = hd__format("%s/%s", folder, names[i]);
        double quota = 0, period = 100000;
        if (hd__cpu_file_line(at, "", text, sizeof text))
            sscanf(text, "%lf %lf", &quota, &period);
        free(at);
        at = hd__format("%s/cpu.cfs_period_us", folder);
        if (i && hd__cpu_file_line(at, "", text, sizeof text))
            period = strtod(text, NULL);
        free(at);
        if (quota > 0 && period > 0)
            *least = *least > 0 ? fmin(*least, quota / period) : quota / period;
    }
}

double hd__cpu_quota_of(const char *groups, const char *root)
{
    double least = 0;
    hd__cpu_cgroups(groups, root, "cpu", least_quota, &least);
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
