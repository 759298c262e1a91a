/* runtime/comm/hierarchical_plan: a collective of several machines as parts: inside machines, between them, and what stays
 * whole. hierarchical.c runs the parts; `heddle explain` prints them. */
#ifndef HD_RUNTIME_COMM_HIERARCHICAL_PLAN_H
#define HD_RUNTIME_COMM_HIERARCHICAL_PLAN_H

#include "core/base/base.h"
#include "heddle/comm.h"

/* BACK: inside too, what follows on what went across, in a group of its own: so the next collective goes inside meanwhile.
 * DIVIDE: recv = recv / members, here. */
enum {
    HD__HIER_INTER,
    HD__HIER_INTRA,
    HD__HIER_WORLD,
    HD__HIER_INTRA_AFTER,
    HD__HIER_DIVIDE,
    HD__HIER_GROUPS = HD__HIER_DIVIDE
};
enum { HD__HIER_PHASES = 4 };

/* How the members of a group lie on machines. */
struct hd__hier_layout {
    int32_t n, me;
    int32_t per_machine; /* members on each machine, one machine after the other; 0: it is not so */
    int32_t machines;    /* 0 where locals is */
};

/* One collective over a part of the group, or a division. Parts of one phase may run at once. */
struct hd__hier_part {
    struct hd_comm_call call;
    uint32_t where, phase;
    hd_request request; /* of who runs it */
    int32_t open, reserved;
};

struct hd__hier_plan {
    HD__ARRAY(struct hd__hier_part) parts; /* by phase */
    uint8_t *scratch;                      /* hd__comm_hier_scratch_bytes bytes, of who runs it */
};

/* firsts[r]: the first rank on the machine of rank r. */
struct hd__hier_layout hd__comm_hier_layout(const int32_t *leaders, const int32_t *ranks, int32_t n, int32_t me);
/* The number of each rank among those of its machine; the caller frees it. */
int32_t *hd__comm_hier_local_ranks(const int32_t *leaders, int32_t size);
/* Whether a group has collectives that go in two levels, and whether this is one. any_order: of sums. */
int hd__comm_hier_applies(const struct hd__hier_layout *g);
int hd__comm_hier_supports(const struct hd__hier_layout *g, const struct hd_comm_call *call, int any_order);
uint64_t hd__comm_hier_scratch_bytes(const struct hd__hier_layout *g, const struct hd_comm_call *call);
/* Adds the parts of a call that can go so; of any other the whole of it, as one part. */
void hd__comm_hier_build_plan(struct hd__hier_plan *plan, const struct hd__hier_layout *g,
                              const struct hd_comm_call *call, int two_level);
/* Where messages go, and what goes in one level. */
uint32_t hd__comm_hier_home(const struct hd__hier_layout *g);

#endif
