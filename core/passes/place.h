/* core/passes/place: the state of the placement pass, shared by place.c (ops) and convert.c (conversions of a
 * tensor). */
#ifndef HD_CORE_PASSES_PLACE_H
#define HD_CORE_PASSES_PLACE_H

#include "core/program/ops.h"

/* The wanted placement of a tensor on each axis: HD__REPLICATED, HD__PARTIAL, or a dim id. */
typedef uint16_t hd__goal[HD_AXIS_COUNT];

struct hd__conversion { /* a conversion that exists already */
    hd_tensor tensor, origin;
    uint32_t next; /* index + 1 of the next one of the same origin */
    uint16_t block;
    uint8_t backward, reserved;
};

struct hd__placer {
    struct hd_program *p;
    hd__code *code; /* where instructions go */
    int32_t axes[HD_AXIS_COUNT];
    int32_t n_axes;             /* live axes, outermost first */
    uint32_t logical;           /* tensors below this number are logical */
    hd_tensor *current;         /* by logical tensor: the placed version that consumers start from */
    uint32_t *first_conversion; /* by logical tensor: index + 1 into made */
    HD__ARRAY(struct hd__conversion) conversions;
};

/* Is it a shard, neither replicated (R) nor partial (P)? */
static inline int hd__is_shard(uint16_t at)
{
    return at != HD__REPLICATED && at != HD__PARTIAL;
}

/* The goal that leaves t as it is. */
void hd__goal_of(const struct hd__placer *w, const struct hd__tensor *t, hd__goal goal);
/* Converts t; conversions that exist already are used again. Only live axes of the goal are read. */
hd_tensor hd__convert(struct hd__placer *w, hd_tensor t, const hd__goal goal);
/* Same axes on the same dims, another order of major and minor: gather and slice again. shard is by dim index of t. */
hd_tensor hd__reorder(struct hd__placer *w, hd_tensor t, const uint32_t *shard);
/* Does any placement rule allow these placements of inputs and outputs on one axis? Outputs are given separately: an
 * accumulator is not an output of its op. */
int hd__place_allows(const struct hd_program *p, const struct hd__instr *i, const struct hd__tensor *const *outs,
                     int32_t axis);

#endif
