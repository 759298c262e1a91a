/* analysis/comm_plan: what a rank's operations will go over: transport, levels, algorithms. Answered by the functions that
 * choose when the job runs (transports.c, comm/levels_plan.h, comm/algorithms/choose.h, comm/open.h), before anything
 * runs. */
#ifndef HD_ANALYSIS_COMM_PLAN_H
#define HD_ANALYSIS_COMM_PLAN_H

#include <jansson.h>

#include "runtime/comm/hierarchical_plan.h"
#include "runtime/comm/topology.h"
#include "runtime/exec/select.h"

/* One collective that a transport is given, or one message. */
struct hd__hop {
    uint32_t coll;  /* HD_COLL_...; 0: a message */
    uint32_t where; /* HD__HIER_INTER, HD__HIER_INTRA, HD__HIER_WORLD */
    uint32_t level; /* of hd__routes.nest: whose */
    int32_t members;
    int32_t remainder; /* WORLD: what does not divide, beside the parts of the level */
    int32_t reserved;
    uint64_t bytes; /* of the larger buffer */
    uint64_t chunk; /* bytes of a message of it, where the core's algorithm cuts; else 0 */
    const char *transport;
    const char *algorithm; /* of the core's; NULL: the transport's own way */
};

/* Operations of a group that are alike. */
struct hd__route {
    const char *op;         /* "all_gather", "send" */
    uint32_t dtype, levels; /* in how many it goes: 1, or more */
    uint64_t bytes;         /* of the larger buffer, of one call */
    double calls;           /* in one step, or in one run of the section */
    HD__ARRAY(struct hd__hop) hops;
};

struct hd__route_group {
    const char *name;
    const int32_t *ranks;
    const char *transport, *intra_transport; /* inside: NULL where there is one transport for all */
    struct hd__hier_layout
        layouts[HD__LEVELS_COUNT]; /* where there is `inside`: by level, of the members in this rank's place */
    uint32_t n_layouts, reserved;  /* so many levels say something of it; the first is there always */
    HD__ARRAY(struct hd__route) routes;
};

struct hd__routes {
    struct hd__arena arena;
    HD__ARRAY(struct hd__route_group) groups; /* with two members and more, in the program's order */
    struct hd__topology_levels levels;        /* as it will be; n is 0 without comm.inside */
    const char *fallback;                     /* NULL, or why it will not be as the job says */
};

struct hd__routes_options {
    const char *section; /* NULL: those of a step */
    int32_t per_machine; /* ranks of each machine, one machine after the other, bound by heddle; 0: all are on one */
    int32_t reserved;
    const struct hd__routes
        *shared; /* NULL, or another rank's by these options: it knows where ranks lie, and lives longer */
};

void hd__routes_find(const struct hd__compiled *c, int32_t rank, const struct hd__routes_options *options,
                     struct hd__routes *routes);
void hd__routes_free(struct hd__routes *routes);

void hd__routes_text(const struct hd__routes *routes, struct hd__text *out);
/* One line: groups and what they go over. */
void hd__routes_line(const struct hd__routes *routes, struct hd__text *out);
json_t *hd__routes_json(const struct hd__routes *routes);

#endif
