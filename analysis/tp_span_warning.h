/* analysis/tp_span_warning: tensor parallelism across machines. */
#ifndef HD_ANALYSIS_TP_SPAN_WARNING_H
#define HD_ANALYSIS_TP_SPAN_WARNING_H

#include "core/compile/compile.h"

/* Warns where ranks along tp are on several machines, of `per_machine` ranks each, one machine after the other: with the bytes
 * that they send, and what would fit. */
void hd__warn_tp_span(const struct hd__compiled *c, int32_t per_machine);

#endif
