/* The state of a training loop, shared by the files of this folder. */
#ifndef HD_SERVICE_TRAIN_LOOP_INTERNAL_H
#define HD_SERVICE_TRAIN_LOOP_INTERNAL_H

#include <inttypes.h>

#include "runtime/exec/profile.h"
#include "service/metrics/metrics.h"
#include "service/train/checkpointer/checkpointer.h"
#include "service/train/replicas.h"
#include "service/train/rerun.h"
#include "service/train/save/shared_place.h"
#include "service/train/session.h"
#include "service/train/trace/trace.h"

/* The plan is held against the median of so many steps, behind the first ones. */
enum { HD__PLANNED_AFTER = 10, HD__PLANNED_STEPS = 10 };

struct hd__train_loop {
    struct hd__train_session s;
    struct hd__job *job;
    struct hd_program *p;
    struct hd__train_progress progress;
    struct hd__train_checkpointer *checkpointer; /* NULL where nothing is saved */
    int64_t saved;                               /* step of the newest checkpoint of this run, -1 if there is none */
    int64_t copy_skipped;                        /* copies of checkpoint.peers that were left out */
    uint64_t *files;                             /* a hash of size and time of each file of data.train; of rank 0 */
    int64_t saves_skipped;                       /* left out since the last one began; of rank 0 */
    double loss, norm, lr, scale, val_loss;      /* scale: of the loss, in this step */
    double val_losses[HD__VAL_SETS];
    double step_s, comm_s, data_wait_s, peak_flops; /* peak: FLOP/s of all ranks' devices */
    double rank_sums[HD__RANK_NUMBERS];             /* HD__RANK_... of this rank, over the steps since the last row */
    double *ranks;                                  /* HD__GATHERED numbers of each, at the last row */
    int64_t summed_steps;
    int32_t ranks_known;                         /* how many of them these are of: all, or this one */
    double saved_at, longest_step, longest_save; /* seconds: when the last save began, of rank 0's clock */
    double trained_s, best_val_loss;             /* of the steps since this process began */
    int64_t trained_tokens, best_step;           /* best 0: nothing was evaluated */
    int64_t steps_run, profiled_steps;           /* steps of this run; those that are in the profile */
    double profiled_s;
    int64_t measured_steps; /* of the roofline: as in a profile */
    double measured_s, measured_comm_s;
    struct hd__roofline_rates rates;        /* 0: not asked for, or not known */
    double planned_from[HD__PLANNED_STEPS]; /* seconds of the steps that are held against the plan */
    struct hd__train_trace trace;
    struct hd__train_replicas replicas;
    int64_t rerun_every;
    int64_t last_step;                   /* of the job, or of the trace that it runs for */
    struct hd__metrics *machine_metrics; /* of the first rank of another machine than rank 0's: sinks without rows */
    struct hd__metrics *metrics;         /* of rank 0, as what follows */
    struct hd__run_locks locks;
    char run[HD__RUN_ID];
    int is_leader;
    int in_step, skips_updates; /* the step that has begun is not over; its updates did nothing */
    int said_still;             /* a norm of 0 has been said */
    int storage_failed;         /* the last save, by a fault of its own */
};

/* rows.c: the metrics of a run. Collective where ranks' numbers are gathered. */
int32_t hd__loop_open_metrics(struct hd__train_loop *l, const struct hd__compiled *c, struct hd_error *err);
int32_t hd__loop_open_sink(struct hd__train_loop *l, struct hd__metrics *metrics, const struct hd__chosen *chosen,
                           struct hd_error *err);
/* FLOP/s of this rank's device, for rank 0; measured once, however often the ranks are started again. */
double hd__loop_device_peak(const struct hd__train_loop *l);
void hd__loop_add_rank_step(struct hd__train_loop *l);
int32_t hd__loop_log_row(struct hd__train_loop *l, int32_t failed, struct hd_error *err);

/* console.c: lines at the start and at the end, of rank 0 */
void hd__loop_print_start(const struct hd__train_loop *l, const struct hd__compiled *c);
void hd__loop_print_end(const struct hd__train_loop *l);

/* profile.c: metrics.profile, metrics.blocks, metrics.roofline, and a step beside its plan */
const struct hd__train_plan *hd__loop_plan(void);
void hd__loop_compare_plan(struct hd__train_loop *l);
void hd__loop_profile_begin(struct hd__train_loop *l);
void hd__loop_profile_end(struct hd__train_loop *l);
int32_t hd__loop_check_blocks(const struct hd__train_loop *l, struct hd_error *err);
void hd__loop_measure_rates(struct hd__train_loop *l); /* of this rank's machine; with all ranks at once */
void hd__loop_print_profile(const struct hd__train_loop *l);

#endif
