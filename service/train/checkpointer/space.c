/* Room on the disk against what the checkpoints of a run need. */
#include <stdlib.h>
#include <sys/statvfs.h>

#include "service/train/checkpointer/internal.h"

/* The folder may not be there yet: then the first above it counts. Is it known? */
static int find_free(const char *folder, uint64_t *bytes)
{
    struct statvfs at;
    char *path = hd__strdup(folder);
    int known;
    while (!(known = !statvfs(*path ? path : ".", &at)) && *path) {
        char *slash = strrchr(path, '/');
        *(slash ? slash + (slash == path && slash[1]) : path) = 0;
    }
    free(path);
    *bytes = known ? (uint64_t)at.f_bavail * at.f_frsize : 0;
    return known;
}

/* All tensors of all ranks. */
static uint64_t checkpoint_bytes(const struct hd__train_checkpointer *k)
{
    struct hd__ckpt_train_state state = {0};
    uint64_t bytes = 0;
    hd__ckpt_collect_train_state(&state, &k->training, 1, NULL);
    hd__ckpt_collect_rank_state(&state, &k->training);
    for (uint32_t i = 0; i < state.tensors.count; i++)
        bytes += hd__ckpt_tensor_numel(&state.tensors.at[i]) * hd_dtype_size(state.tensors.at[i].dtype);
    hd__ckpt_train_state_free(&state);
    return bytes;
}

void hd__checkpointer_warn_space(const struct hd__train_checkpointer *k, int64_t step, int64_t here)
{
    struct hd__job *job = k->s->compiled->job;
    int64_t left = HD__MAX(job->steps - step, 0), keep = job->checkpoint_keep, every = job->checkpoint_every;
    int64_t most = every                                 ? (left + every - 1) / every
                   : job->checkpoint_seconds > 0 && keep ? HD__MIN(keep + 1, left)
                                                         : 1;
    if (keep) /* one more than stay, while it is saved; of those that are there the oldest go */
        most = HD__MAX(1, HD__MIN(most, keep + 1 - here));
    uint64_t bytes, there = 0;
    char need[32], is[32];
    if (!left || job->trace.ends || strstr(k->dir, "://") || !find_free(k->dir, &there))
        return;
    bytes = checkpoint_bytes(k);
    hd__bytes_text(bytes, need);
    hd__bytes_text(there, is);
    if (bytes > there)
        hd__log(HD_LOG_WARN, NULL,
                "%s: checkpoint.dir: a checkpoint takes %s, and the disk of %s has %s free: the save would fail: free "
                "some, or name another folder",
                hd__job_where(job, "checkpoint.dir"), need, k->dir, is);
    else if (bytes * (uint64_t)most > there)
        hd__log(HD_LOG_WARN, NULL,
                "%s: checkpoint.dir: %lld more checkpoints of %s each are to be there at once (checkpoint.keep), and "
                "the disk of %s has %s free: keep fewer, free some, or name another folder",
                hd__job_where(job, "checkpoint.dir"), (long long)most, need, k->dir, is);
}
