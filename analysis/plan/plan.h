/* analysis/plan: a job on a kind of machine: memory, traffic and time of a step, from its own step programs.
 *
 * Memory is that of the program's plan, to the byte. Time is a simulation (analysis/sim) of one rank a pipeline stage:
 * the ranks of a stage run the same program at the same time, so the others add nothing. seconds.h says how long each
 * instruction takes. Not modelled: streams that share a link, variation between machines. */
#ifndef HD_ANALYSIS_PLAN_PLAN_H
#define HD_ANALYSIS_PLAN_PLAN_H

#include <jansson.h>

#include "analysis/plan/machine_file.h"
#include "analysis/plan/seconds.h"
#include "analysis/sim/simulate.h"
#include "core/compile/compile.h"
#include "core/program/memory_kinds.h"

struct hd__plan {
    int64_t parameters, ranks, tokens; /* tokens: of a step */
    double active;                     /* parameters that a token meets */
    struct hd__memory_use memory;      /* of the fullest rank: nearest its limit */
    int64_t peak, limit;               /* limit: the machine's, or the rank's own */
    int64_t offloaded[HD__MEM_COUNT];  /* bytes of a rank in the host's memory and in files; the most of any stage */
    int64_t host_limit;                /* a rank's share of the host's memory; 0: not known */
    int64_t copies;                    /* of checkpoint.peers, in host memory: of the rank that has most of them */
    int32_t stage;                     /* the fullest rank's */
    int32_t fits;
    const char *device;            /* that the programs are compiled for */
    double model_flops, flops;     /* of a step, all ranks: of the model; with what is computed again */
    double seconds, compute;       /* compute: seconds of it in which a rank computes, mean over stages */
    double bubble;                 /* idle time of the stages over their work */
    double peak_flops;             /* of all ranks, in the job's compute dtype */
    double traffic[HD_AXIS_COUNT]; /* bytes that a rank sends a step, by axis; the most of any stage */
    double exposed[HD_AXIS_COUNT]; /* seconds of it in which the rank computes nothing, mean over stages */
    double copied, copy_exposed;   /* bytes to and from the host's memory a step; seconds of it as above */
    int64_t shares[64];            /* data.micro_batches that would suit the speeds of --assume best */
    uint32_t n_shares, reserved2;
    double assumed_states, assumed_activations; /* bytes by closed forms, where hd__assume.states is above 0 */
};

/* HD_E_MISMATCH where the programs do not match. */
int32_t hd__plan_make(const struct hd__compiled *compiled, const struct hd__machine *machine,
                      const struct hd__assume *assume, struct hd__plan *plan, struct hd_error *err);
/* Sets peak, limit, stage, offloaded and fits anew. */
void hd__plan_fit(const struct hd__compiled *compiled, const struct hd__machine *machine,
                  const struct hd__parts *memory, struct hd__plan *plan);
/* Sets assumed_states and assumed_activations. */
int32_t hd__plan_closed_form(const struct hd__compiled *compiled, const struct hd__assume *assume,
                             struct hd__plan *plan, struct hd_error *err);
/* One page; `tokens`: of the whole training, 0: not known, so of that nothing is said (null). */
void hd__plan_text(const struct hd__plan *plan, const struct hd__machine *machine, double tokens, struct hd__text *out);
json_t *hd__plan_json(const struct hd__plan *plan, const struct hd__machine *machine, double tokens);
/* Seconds to save: what a rank has of a checkpoint at a gigabyte a second, a common share of a parallel file system. */
double hd__plan_save_seconds(const struct hd__plan *plan);
/* Figures of these: "1.05 T"; "13.7 days". */
const char *hd__plan_count_text(double n, char out[32]);
const char *hd__plan_long_text(double seconds, char out[32]);

#endif
