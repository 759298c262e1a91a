/* Ops of a strategy's own (hd_custom_op): their functions on made-up gradients, on all ranks of a job at once. */
#ifndef HD_CONFORMANCE_CUSTOM_OPS_H
#define HD_CONFORMANCE_CUSTOM_OPS_H

#include "core/compile/compile.h"

struct conf_custom_seen {
    uint32_t called;   /* instructions, each on a rank */
    uint32_t compared; /* decoders whose sums were compared with what their encoders were given */
    uint32_t left_out; /* instructions without a function for host memory, or of codes that no op before them made */
};

/* Ends the check at the first op that is not as its table says. `job`: its text, for messages. */
void conf_custom_ops(const struct hd__compiled *c, const char *job, struct conf_custom_seen *seen);

#endif
