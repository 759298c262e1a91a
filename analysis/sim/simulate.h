/* The token machine with times: a timeline of each rank for one step, on a machine described by a few rates.
 *
 * Modelled: an instruction takes as long as its FLOPs at the device's rate or its bytes at the memory's, whichever
 * is longer, plus a constant; a collective or message takes a latency plus the bytes that one rank sends at its axis'
 * rate, and begins when all its members are there and the stream is free. Not modelled: streams that share a link,
 * noise. Times do not depend on the order in which the machine meets events. */
#ifndef HD_ANALYSIS_SIM_SIMULATE_H
#define HD_ANALYSIS_SIM_SIMULATE_H

#include <jansson.h>

#include "analysis/sim/machine.h"

struct hd__sim_rates {
    /* Seconds of a compute instruction, if measured; NULL: from flops, memory and kernel. */
    double (*seconds)(const struct hd_program *p, const struct hd__instr *i);
    /* Seconds of any instruction or transfer, instead of all that follows; NULL: there is no such model. */
    double (*cost)(const void *user, const struct hd_program *p, const struct hd__instr *i);
    /* Does a rank wait for this transfer as soon as it has started it? NULL: for none. */
    int (*blocks)(const void *user, const struct hd__instr *i);
    const void *user;
    const double *speed;           /* of compute, by rank; NULL: 1 */
    double slowed;                 /* share of its speed that compute loses while a collective is under way */
    double flops;                  /* FLOPs a second */
    double memory;                 /* bytes a second */
    double kernel;                 /* fixed seconds per instruction */
    double latency[HD_AXIS_COUNT]; /* fixed seconds per collective or message */
    double link[HD_AXIS_COUNT];    /* bytes a second that one rank sends */
    uint32_t named;                /* axes that the text named */
};

/* Rates of a server core and its machine's shared memory; see simulate.c. */
struct hd__sim_rates hd__sim_rates_default(void);
/* Overrides some rates: "flops=2e12,memory=1e11,kernel=1e-6,latency=2e-6,link=1e10,tp.link=2e11". Without an axis
 * before it a rate is for all axes; dp is both its parts. */
int32_t hd__sim_rates_parse(struct hd__sim_rates *rates, const char *text, struct hd_error *err);
/* One line: the rates, in the syntax of hd__sim_rates_parse. */
void hd__sim_rates_text(const struct hd__sim_rates *rates, struct hd__text *out);

struct hd__timeline_lane { /* a rank's stream */
    uint16_t stream, reserved;
    uint32_t reserved2;
    HD__ARRAY(struct hd__sim_span) spans; /* by start */
};

struct hd__rank_times {
    int32_t rank;
    uint32_t n_lanes;
    double weight;                  /* ranks for which it stands in sums and means; 0: none */
    struct hd__timeline_lane *lane; /* compute first; then the used streams */
    double first, last;             /* model compute: the first forward's start, the last backward's end */
    double work;                    /* seconds of model compute */
    double finish;                  /* the step's end */
    double comm, overlapped;        /* seconds with a transfer on the wire; of these, seconds with compute */
};

enum { HD__TIMELINE_MAX_PERIODIC = 4 };

struct hd__timeline {
    uint32_t n_ranks; /* recorded ranks */
    int32_t stages;
    struct hd__rank_times *ranks;
    const struct hd_program *const *programs; /* by rank, borrowed */
    double seconds;                           /* length of the step */
    double busy;                              /* average share of it spent computing */
    double span;                              /* the longest of a rank, first to last */
    double bubble_of_work;                    /* idle time of all of them in that span, over their work */
    double bubble_of_span;                    /* the same over the span */
    double comm, overlapped;                  /* sums over ranks */
    struct {                                  /* sections outside of the step: those that run every N steps */
        const char *name;
        double seconds; /* seconds of a run alone, after the others */
        uint32_t every, reserved;
    } periodic[HD__TIMELINE_MAX_PERIODIC];
    uint32_t n_periodic, reserved;
};

enum { HD__SIM_STAGES = -1, HD__SIM_KINDS = -2 };

/* Simulates a typical step. programs: by rank; they outlive the timeline. rank: recorded besides the first of each
 * stage; HD__SIM_STAGES: none; HD__SIM_KINDS: one of each kind of ranks that behave alike is recorded instead.
 * HD_E_MISMATCH where the programs do not match. */
int32_t hd__sim_timeline(const struct hd__mesh *mesh, const struct hd_program *const *programs,
                         const struct hd__sim_rates *rates, int32_t rank, struct hd__timeline *out,
                         struct hd_error *err);
void hd__timeline_free(struct hd__timeline *t);

/* ---- timeline.c, timeline_trace.c: pictures. `title`: the job's name. only: one rank; -1: all. */
void hd__timeline_text(const struct hd__timeline *t, int32_t only, int32_t columns, struct hd__text *out);
void hd__timeline_svg(const struct hd__timeline *t, int32_t only, const char *title, struct hd__text *out);
/* Chrome's trace format (chrome://tracing, Perfetto); the caller owns the reference. */
#define HD__TIMELINE_TRACE_BEGINS "{\"otherData\":{\"by\":\"heddle\"}" /* first bytes of its compact text */
json_t *hd__timeline_trace(const struct hd__timeline *t, int32_t only);
/* "step 12.3 ms ...": the totals, as lines. */
void hd__timeline_summary(const struct hd__timeline *t, struct hd__text *out);

/* Shared by the pictures. */
const char *hd__seconds_text(double seconds, char out[32]); /* "12.3 ms" */

#endif
