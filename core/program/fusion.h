/* core/program/fusion: the one table of what the compiler makes of several instructions where the device gains by it.
 * Bit k of hd_program.fusions: row k may be made in this program. */
#ifndef HD_CORE_PROGRAM_FUSION_H
#define HD_CORE_PROGRAM_FUSION_H

#include "core/program/program.h"

/* Sets of rows that are switched together: HD__COMPILE_FUSE, HD__COMPILE_NO_FUSE. */
enum {
    HD__FUSE_LOSS_HEAD = 1, /* the loss without whole logits */
    HD__FUSE_EPILOGUES = 2, /* biases, GELUs and their gradients with the products before them */
    HD__FUSE_NORM_SUMS = 4, /* norms with the sums beside them */
    HD__FUSE_ADDS_ONCE = 8, /* exact sums add a product where it is made (HD_ATTR_ONCE): an attribute, not an op */
};

struct hd__fusion {
    uint16_t op; /* what is made */
    uint16_t set;
    uint32_t grads; /* dtypes of gradients with which it may be made, as a mask; 0: all */
};

extern const struct hd__fusion hd__fusions[];
extern const uint32_t hd__n_fusions;

/* May this op be made of others in the program? */
int hd__may_fuse(const struct hd_program *p, uint16_t op);
/* The rows of these sets, as hd_program.fusions has them. */
uint32_t hd__fusion_rows(uint32_t sets);

#endif
