/* Times that seconds.c and assume.c share. */
#ifndef HD_ANALYSIS_PLAN_SECONDS_INTERNAL_H
#define HD_ANALYSIS_PLAN_SECONDS_INTERNAL_H

#include "analysis/plan/seconds.h"

double hd__pass_seconds(const struct hd__machine *m, double bytes); /* the same, of a pass over memory */

/* assume.c: attention with its scores in memory, and what other instructions cost beyond heddle's. */
double hd__assumed_attention(const struct hd__machine *m, const struct hd__assume *assume, const struct hd_program *p,
                             const struct hd__instr *i);
double hd__assumed_extra(const struct hd__machine *m, const struct hd__assume *assume, const struct hd_program *p,
                         const struct hd__instr *i);

int hd__is_tp_transfer(const struct hd__instr *i);

#endif
