/* runtime/cpu/share: threads that this process can keep busy, by its cores and its cgroups' quota. */
#ifndef HD_RUNTIME_CPU_SHARE_H
#define HD_RUNTIME_CPU_SHARE_H

#include "core/base/base.h"

/* Into `out`: the rest of the first line with this beginning, in a file of the kernel's. 0: there is none, and `out` is
 * empty. */
int hd__cpu_file_line(const char *path, const char *begins, char *out, size_t room);

/* "AMD EPYC 9654"; "": the kernel does not say. */
void hd__cpu_name(char out[96]);

/* Visits the folders of the cgroups in the file `groups` below `root`, of v2 and of v1's controller, each with those
 * that it is in, up to the root of what can be seen. */
void hd__cpu_cgroups(const char *groups, const char *root, const char *controller,
                     void (*visit)(const char *folder, void *user), void *user);

/* Cores' worth of time that this process' cgroups allow it; 0: no limit. */
double hd__cpu_quota(void);
/* The same of the cgroups in the file `groups`, below `root`. */
double hd__cpu_quota_of(const char *groups, const char *root);
/* Its threads where so many processes share its cores, and so many the quota: more, where each is bound to cores of
 * its own. At least 1. */
int32_t hd__cpu_share(int32_t of_cores, int32_t of_quota);
/* The calling rank's, one of so many on this machine: its affinity is its own, where it has one. */
int32_t hd__cpu_share_of_rank(int32_t local_ranks);

#endif
