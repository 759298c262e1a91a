/* service/train/train: the training loop of one rank. */
#ifndef HD_SERVICE_TRAIN_TRAIN_H
#define HD_SERVICE_TRAIN_TRAIN_H

#include "runtime/exec/profile.h"
#include "runtime/exec/select.h"
#include "service/launch/launch.h"

/* A step by a machine file, for rank 0 to print beside what it takes. It outlives the training. NULL: nothing. */
struct hd__train_plan {
    const char *machine;
    double step_s;
    hd__exec_planned instr_s;
    struct hd__roofline_rates rates;
};
void hd__train_set_plan(const struct hd__train_plan *plan);

/* Trains until the job's last step, a signal or a fault. Returns the exit code. */
int hd__train(struct hd__compiled *compiled, const struct hd__launch_env *env);

/* Before it starts: is metrics.jsonl the job's own to write? */
int32_t hd__train_check_metrics(struct hd__job *job, struct hd_error *err);
/* Logs rules of `watch` that the job asks for, and that raise no alarm in it, or one in each step. */
void hd__train_watch_warn(struct hd__job *job);

/* Bytes: minimum of the machine's free memory and the cgroup's (v2, v1) remaining limit; not above 0: unknown. */
int64_t hd__train_memory_available(void);
/* As if these were /proc/meminfo, /proc/self/cgroup and /sys/fs/cgroup. */
int64_t hd__train_memory_of(const char *meminfo, const char *groups, const char *root);

/* Checks that the plan fits this machine (and its cgroup). HD_E_NOMEM with the numbers. */
int32_t hd__train_check_memory(const struct hd__compiled *compiled, int32_t local_ranks, struct hd_error *err);

#endif
