/* analysis/tp_span_warning: tensor parallelism across machines. */
#ifndef HD_ANALYSIS_TP_SPAN_WARNING_H
#define HD_ANALYSIS_TP_SPAN_WARNING_H

#include "core/compile/compile.h"

/* Warns if tp groups span several machines of `per_machine` consecutive ranks each, with the bytes sent and a size
 * that fits. */
void hd__warn_tp_span(const struct hd__compiled *c, int32_t per_machine);

#endif
