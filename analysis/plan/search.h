/* analysis/plan/search: the fastest ways to run a job on so many ranks of a machine: mesh, ZeRO stage, schedule,
 * micro-batch and recompute. Candidates are tried in the order of a bound that their time does not fall below, and no
 * more of them once that bound is above the slowest of the best. Bounds are first closed forms; where a candidate
 * comes first by them, from programs of one and two layers, less 5 %; then, of a pipeline, from programs of few
 * micro-batches, less 2 %. So the best are the best of all candidates, by the plan's own estimates. Then variants of
 * the fastest are tried: other schedules, longer prefetch. Where hardly anything fits, larger segments of recomputation
 * and offloaded states are candidates too. */
#ifndef HD_ANALYSIS_PLAN_SEARCH_H
#define HD_ANALYSIS_PLAN_SEARCH_H

#include "analysis/plan/candidates.h"
#include "runtime/exec/select.h"

enum { HD__SEARCH_BEST = 10 };

struct hd__search_request {
    const char *file; /* of the job */
    const char *const *overrides;
    size_t n_overrides;
    const char *device;
    const struct hd__machine *machine;
    const struct hd__assume *assume;
    struct hd__plugins *plugins;
    int64_t ranks;
    int32_t without_offload, reserved; /* else the states may be offloaded where hardly anything fits */
    const int64_t *only;               /* mesh[HD_AXIS_COUNT] that all plans must have; NULL: any */
};

struct hd__search_plan {
    char *words; /* the overrides that make it, for a shell: "'mesh=...' 'data...'" */
    char *lines; /* the same, a line each */
    char *job;   /* the resolved job, as YAML */
    struct hd__plan plan;
    struct hd__candidate of;
    double bound;      /* seconds that no candidate of this mesh, schedule and recompute can be faster than */
    const char *binds; /* the largest part of what keeps it from the machine's peak */
};

struct hd__search {
    struct hd__search_plan best[HD__SEARCH_BEST]; /* fastest first */
    struct hd__candidate_job job;
    int64_t ranks, inside; /* inside: of one machine */
    uint32_t n_best, candidates, too_large, refused, slower,
        tried; /* slower: not tried, their bound is above the best */
};

/* HD_E_NOTFOUND: nothing fits; the message says how much is missing at least. Errors of the job as it is. */
int32_t hd__search(const struct hd__search_request *request, struct hd__search *search, struct hd_error *err);
/* The fewest ranks that can hold the job, up to request->ranks, and the best ways to run it on these; `below`: why one
 * rank less does not do, "" of 1. Errors as hd__search's on request->ranks. */
int32_t hd__search_fewest(const struct hd__search_request *request, int64_t *ranks, struct hd__search *search,
                          struct hd_error *below, struct hd_error *err);
void hd__search_free(struct hd__search *search);

/* The largest part of what keeps a plan from the machine's peak: "products", an axis, ... */
const char *hd__plan_binds(const struct hd__plan *plan, const struct hd__machine *machine);

/* ---- rules.c: a line and an object for each rule of thumb of the field that says something about such a job. */
json_t *hd__search_rules(const struct hd__search *search, struct hd__text *out);

void hd__search_text(const struct hd__search *search, struct hd__text *out);
json_t *hd__search_json(const struct hd__search *search);

#endif
