/* runtime/comm/hierarchical_plan: a collective as parts: intra-machine, inter-machine, and in one level.
 * hierarchical.c runs the parts; `heddle explain` prints them. */
#ifndef HD_RUNTIME_COMM_HIERARCHICAL_PLAN_H
#define HD_RUNTIME_COMM_HIERARCHICAL_PLAN_H

#include "core/base/base.h"
#include "heddle/comm.h"

/* INTRA_AFTER: intra-machine after the inter part, in a group of its own, so that it overlaps with INTRA parts of
 * the next collective. DIVIDE: recv = recv / members, computed locally. */
enum {
    HD__HIER_INTER,
    HD__HIER_INTRA,
    HD__HIER_WORLD,
    HD__HIER_INTRA_AFTER,
    HD__HIER_DIVIDE,
    HD__HIER_GROUPS = HD__HIER_DIVIDE
};
enum { HD__HIER_PHASES = 4 };

/* Layout of a group's members on machines. */
struct hd__hier_layout {
    int32_t n, me;
    int32_t per_machine; /* members on each machine, numbered machine by machine; 0: no such layout */
    int32_t machines;    /* 0 where per_machine is */
};

/* A collective of a subgroup, or a division. Parts of one phase may run concurrently. */
struct hd__hier_part {
    struct hd_comm_call call;
    uint32_t where, phase;
    hd_request request; /* of hierarchical.c */
    int32_t open, reserved;
};

struct hd__hier_plan {
    HD__ARRAY(struct hd__hier_part) parts; /* by phase */
    uint8_t *scratch;                      /* hd__comm_hier_scratch_bytes bytes; of hierarchical.c */
};

/* leaders[r]: the first rank on the machine of rank r. */
struct hd__hier_layout hd__comm_hier_layout(const int32_t *leaders, const int32_t *ranks, int32_t n, int32_t me);
/* Index of each rank on its machine; caller frees. */
int32_t *hd__comm_hier_local_ranks(const int32_t *leaders, int32_t size);
/* Does a group have two-level collectives; is this call one? any_order: of sums. */
int hd__comm_hier_applies(const struct hd__hier_layout *g);
int hd__comm_hier_supports(const struct hd__hier_layout *g, const struct hd_comm_call *call, int any_order);
uint64_t hd__comm_hier_scratch_bytes(const struct hd__hier_layout *g, const struct hd_comm_call *call);
/* Adds the parts of a two-level call; else the whole call as one part. */
void hd__comm_hier_build_plan(struct hd__hier_plan *plan, const struct hd__hier_layout *g,
                              const struct hd_comm_call *call, int two_level);
/* The subgroup for messages and one-level calls. */
uint32_t hd__comm_hier_home(const struct hd__hier_layout *g);

#endif
