/* The token machine with times: when each rank does what in one step, on a machine described by a few numbers.
 *
 * What it knows: an instruction takes as long as its FLOPs at the device's rate or its bytes at the memory's, whichever
 * is longer, plus a constant; a collective or message takes a latency plus the bytes that one rank sends at its axis'
 * rate, and begins when all its members are there and the stream is free. What it does not: streams that share a link,
 * kernels that communication slows, noise. Times do not depend on the order in which the machine meets events. */
#ifndef HD_ANALYSIS_SIM_SIMULATE_H
#define HD_ANALYSIS_SIM_SIMULATE_H

#include <jansson.h>

#include "analysis/sim/machine.h"

struct hd__sim_rates {
    /* Seconds of a compute instruction, where they are known better; NULL: from flops, memory and kernel. */
    double (*seconds)(const struct hd_program *p, const struct hd__instr *i);
    double flops;                  /* a second */
    double memory;                 /* bytes a second */
    double kernel;                 /* seconds an instruction, whatever it does */
    double latency[HD_AXIS_COUNT]; /* seconds a collective or message */
    double link[HD_AXIS_COUNT];    /* bytes a second that one rank sends */
};

/* Of a core of a server and the shared memory of its machine; see simulate.c. */
struct hd__sim_rates hd__sim_rates_default(void);
/* Changes some: "flops=2e12,memory=1e11,kernel=1e-6,latency=2e-6,link=1e10,tp.link=2e11". A rate is for all axes unless
 * an axis stands before it; dp is both its parts. */
int32_t hd__sim_rates_parse(struct hd__sim_rates *rates, const char *text, struct hd_error *err);
/* One line: the rates, in the words that hd__sim_rates_parse reads. */
void hd__sim_rates_text(const struct hd__sim_rates *rates, struct hd__text *out);

struct hd__timeline_lane { /* a rank's stream */
    uint16_t stream, reserved;
    uint32_t reserved2;
    HD__ARRAY(struct hd__sim_span) spans; /* by start */
};

struct hd__rank_times {
    int32_t rank;
    uint32_t n_lanes;
    struct hd__timeline_lane *lane; /* compute first; then those that were used */
    double first, last;             /* of the model's compute: the first forward's start, the last backward's end */
    double work;                    /* seconds of that compute */
    double finish;                  /* the step's end */
    double comm, overlapped; /* seconds in which something was on the wire; of these, in which the rank computed */
};

enum { HD__TIMELINE_MAX_PERIODIC = 4 };

struct hd__timeline {
    uint32_t n_ranks; /* that were looked at: one a pipeline stage, and the one asked for */
    int32_t stages;
    struct hd__rank_times *ranks;
    const struct hd_program *const *programs; /* by rank, lent */
    double seconds;                           /* of the step */
    double busy;                              /* share of it in which they computed, on average */
    double span;                              /* the longest of a rank, first to last */
    double bubble_of_work;                    /* idle time of all of them in that span, over their work */
    double bubble_of_span;                    /* and over the span */
    double comm, overlapped;                  /* sums */
    struct {                                  /* what the step does not have: sections that run every N steps */
        const char *name;
        double seconds; /* alone, behind the others */
        uint32_t every, reserved;
    } periodic[HD__TIMELINE_MAX_PERIODIC];
    uint32_t n_periodic, reserved;
};

/* A step as most are. programs: by rank; they outlive the timeline. rank: looked at besides the first of each stage; -1: none.
 * HD_E_MISMATCH where the programs do not fit together. */
int32_t hd__sim_timeline(const struct hd__mesh *mesh, const struct hd_program *const *programs,
                         const struct hd__sim_rates *rates, int32_t rank, struct hd__timeline *out,
                         struct hd_error *err);
void hd__timeline_free(struct hd__timeline *t);

/* ---- timeline.c, timeline_trace.c: pictures. `title`: the job's name. only: this rank; -1: all. */
void hd__timeline_text(const struct hd__timeline *t, int32_t only, int32_t columns, struct hd__text *out);
void hd__timeline_svg(const struct hd__timeline *t, int32_t only, const char *title, struct hd__text *out);
/* Chrome's trace format (chrome://tracing, Perfetto); the caller owns the reference. */
json_t *hd__timeline_trace(const struct hd__timeline *t, int32_t only);
/* "step 12.3 ms ...": the numbers, in lines. */
void hd__timeline_summary(const struct hd__timeline *t, struct hd__text *out);

/* Shared by the pictures. */
const char *hd__seconds_text(double seconds, char out[32]); /* "12.3 ms" */

#endif
