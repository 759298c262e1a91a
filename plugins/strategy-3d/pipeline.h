/* The pipeline of strategy-3d: which chunk of the model is on which stage, and what each stage does in a step. */
#ifndef HD_STRATEGY_3D_PIPELINE_H
#define HD_STRATEGY_3D_PIPELINE_H

#include "heddle/host.h"
#include "heddle/strategy.h"

struct pipe_settings {
    const char *schedule; /* a name or a file: schedule.h */
    int64_t virtual;      /* chunks a stage; 0: what suits the schedule */
    struct hd_list split; /* layers, params, time, a file of measured times, or layers of each chunk */
    double intensity;     /* split by time: FLOPs that take as long as a byte */
};

int32_t pipe_partition(const struct hd_host *host, const struct pipe_settings *settings, struct hd_program *p,
                       struct hd_error *err);

#endif
