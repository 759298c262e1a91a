/* analysis/comm_plan: transport, levels and algorithm of each operation of a rank, before anything runs, from the
 * functions that choose them when the job runs (transports.c, comm/levels_plan.h, comm/algorithms/choose.h,
 * comm/open.h). */
#ifndef HD_ANALYSIS_COMM_PLAN_H
#define HD_ANALYSIS_COMM_PLAN_H

#include <jansson.h>

#include "runtime/comm/hierarchical_plan.h"
#include "runtime/comm/topology.h"
#include "runtime/exec/select.h"

/* One collective call or one message of a transport. */
struct hd__hop {
    uint32_t coll;  /* HD_COLL_...; 0: a message */
    uint32_t where; /* HD__HIER_INTER, HD__HIER_INTRA, HD__HIER_WORLD */
    uint32_t level; /* index into hd__routes.levels */
    int32_t members;
    int32_t remainder; /* WORLD: the remainder that cannot be divided */
    int32_t tuned;     /* a rule of comm.tune is for it */
    uint64_t bytes;    /* size of the larger buffer */
    uint64_t chunk;    /* bytes per message of a core algorithm that divides into chunks; else 0 */
    const char *transport;
    const char *algorithm; /* the core's algorithm; NULL: the transport's own */
};

/* Equal operations of a group. */
struct hd__route {
    const char *op;         /* "all_gather", "send" */
    uint32_t dtype, levels; /* number of levels, at least 1 */
    uint64_t bytes;         /* size of the larger buffer of one call */
    double calls;           /* per step, or per run of the section */
    HD__ARRAY(struct hd__hop) hops;
};

struct hd__route_group {
    const char *name;
    const int32_t *ranks;
    const char *transport, *intra_transport; /* comm.inside; NULL: one transport for all */
    /* with intra_transport: by level, the members in this rank's unit */
    struct hd__hier_layout layouts[HD__LEVELS_COUNT];
    uint32_t n_layouts, reserved; /* levels used; the first entry is always set */
    HD__ARRAY(struct hd__route) routes;
};

struct hd__routes {
    struct hd__arena arena;
    HD__ARRAY(struct hd__route_group) groups; /* groups of two members or more, in program order */
    struct hd__topology_levels levels;        /* effective levels; n is 0 without comm.inside */
    const char *fallback;                     /* NULL, or why comm.levels cannot be applied */
};

struct hd__routes_options {
    const char *section; /* NULL: operations of one step */
    int32_t per_machine; /* ranks per machine, in order, bound by heddle; 0: all on one */
    int32_t reserved;
    /* NULL, or the routes of another rank with these options: its topology is used; it must outlive these */
    const struct hd__routes *shared;
};

void hd__routes_find(const struct hd__compiled *c, int32_t rank, const struct hd__routes_options *options,
                     struct hd__routes *routes);
void hd__routes_free(struct hd__routes *routes);

/* Warns of keys of comm that no operation of a step obeys. */
void hd__routes_notes(const struct hd__compiled *c, struct hd__text *out);

void hd__routes_text(const struct hd__routes *routes, struct hd__text *out);
/* One line: groups and their transports. */
void hd__routes_line(const struct hd__routes *routes, struct hd__text *out);
json_t *hd__routes_json(const struct hd__routes *routes);

#endif
