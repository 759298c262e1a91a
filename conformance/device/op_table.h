/* A case of every op that a model emits or autodiff makes of it. */
#ifndef HD_CONFORMANCE_DEVICE_OP_TABLE_H
#define HD_CONFORMANCE_DEVICE_OP_TABLE_H

#include "conformance/device/harness.h"

struct op_row {
    const char *name;
    uint32_t op;
    const char *in, *out, *dims;
    struct hd_attrs attrs;
    int routed;
    const char *cannot; /* dims that no rule shards and the row does not name, or NULL: their sums go into no sum */
};

extern const struct op_row op_table[];
extern const int op_table_count;

/* Gates of random logits, and the slots that follow, into the operands that are these; of a routed row. */
void op_table_route(struct h_device *reference, const char *dims, struct h_instr *i);
/* The checks of this file: heddle's own table of ops against the reference kernels. */
void op_table_run(void);

#endif
