/* Memory of the machine against what the ranks' arenas need. */
#include <stdio.h>
#include <stdlib.h>

#include "runtime/cpu/share.h"
#include "service/checkpoint/memory_copy.h"
#include "service/train/train.h"

static int64_t read_number(const char *path, const char *key)
{
    char line[256], *end;
    hd__cpu_file_line(path, key, line, sizeof line);
    long long value = strtoll(line, &end, 10);
    return end != line ? value : -1;
}

/* The rest of a cgroup's limit. `used` counts the cache of files that were read and written, which makes way. */
static void cgroup_left(const char *folder, void *user)
{
    static const struct {
        const char *limit, *used, *cache[3]; /* of v2, and of v1 */
    } names[] = {{"memory.max", "memory.current", {"inactive_file ", "active_file ", "slab_reclaimable "}},
                 {"memory.limit_in_bytes",
                  "memory.usage_in_bytes",
                  {"total_inactive_file ", "total_active_file ", "total_slab_reclaimable "}}};
    int64_t *left = user;
    char path[4500];
    for (size_t i = 0; i < HD__COUNT(names); i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i].limit);
        int64_t limit = read_number(path, "");
        snprintf(path, sizeof path, "%s/%s", folder, names[i].used);
        int64_t used = read_number(path, "");
        if (limit <= 0 || used < 0)
            continue;
        snprintf(path, sizeof path, "%s/memory.stat", folder);
        for (size_t k = 0; k < HD__COUNT(names[i].cache); k++)
            used -= HD__MAX(read_number(path, names[i].cache[k]), 0);
        *left = HD__MIN(*left, limit - HD__MAX(used, 0));
    }
}

int64_t hd__train_memory_of(const char *meminfo, const char *groups, const char *root)
{
    int64_t left = read_number(meminfo, "MemAvailable:") * 1024;
    hd__cpu_cgroups(groups, root, "memory", cgroup_left, &left);
    return left;
}

int64_t hd__train_memory_available(void)
{
    return hd__train_memory_of("/proc/meminfo", "/proc/self/cgroup", "/sys/fs/cgroup");
}

/* checkpoint.peers, on the machine of rank 0, which stores most: two copies of each rank here, and two of each that
 * another machine sends. */
static int64_t copies_bytes(const struct hd__compiled *compiled, int32_t local_ranks)
{
    const struct hd__job *job = compiled->job;
    const char *const *names = compiled->optimizer.ops->state_names;
    uint64_t bytes = 0;
    for (int32_t r = 0; r < local_ranks && job->checkpoint_peers; r++)
        bytes += hd__copy_planned_bytes(compiled->stage, compiled->n_stages, names, r);
    return (int64_t)(bytes * (job->nodes_max > 1 ? 4 : 2));
}

int32_t hd__train_check_memory(const struct hd__compiled *compiled, int32_t local_ranks, struct hd_error *err)
{
    int64_t left = hd__train_memory_available(), need = 0, copies = copies_bytes(compiled, local_ranks);
    char a[32], b[32], c[32];
    int in_host = (compiled->device_choice.component->ops.device.caps & HD_DEVICE_HOST_MEMORY) != 0;
    for (int32_t s = 0; s < compiled->n_stages && in_host; s++) /* another device says what it has */
        need = HD__MAX(need, compiled->stage[s]->arena_bytes);
    if (left <= 0 || need * local_ranks + copies <= left)
        return HD_OK;
    hd__bytes_text((uint64_t)left, c);
    if (need * local_ranks <= left)
        return hd__job_fail(compiled->job, "checkpoint.peers", err,
                            "checkpoint.peers: does not fit: arenas take %s, copies of the state %s, and %s are free: "
                            "leave it out, or train fewer ranks on this machine",
                            hd__bytes_text((uint64_t)(need * local_ranks), a), hd__bytes_text((uint64_t)copies, b), c);
    if (local_ranks == 1)
        return hd_fail(err, HD_E_NOMEM,
                       "does not fit: the arena takes %s, and %s are free: use a smaller micro_batch or model",
                       hd__bytes_text((uint64_t)need, a), c);
    return hd_fail(err, HD_E_NOMEM,
                   "does not fit: the arena of a rank takes %s, %d ranks here take %s, and %s are free: use a smaller "
                   "micro_batch, a higher zero stage, or fewer ranks on this machine",
                   hd__bytes_text((uint64_t)need, a), local_ranks, hd__bytes_text((uint64_t)(need * local_ranks), b),
                   c);
}
