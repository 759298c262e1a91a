/* The pipeline of strategy-3d: stages and schedules. */
#ifndef HD_STRATEGY_3D_PIPELINE_H
#define HD_STRATEGY_3D_PIPELINE_H

#include "heddle/experimental/strategy.h"
#include "heddle/host.h"

enum { PIPE_GPIPE = 0, PIPE_1F1B };

struct pipe_settings {
    int32_t schedule; /* PIPE_... */
    int32_t reserved;
};

int32_t pipe_partition(const struct hd_host *host, const struct pipe_settings *settings, struct hd_program *p, struct hd_error *err);

#endif
