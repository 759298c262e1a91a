/* analysis/plan/candidates: the ways to run a job on so many ranks of a machine, and bounds that their memory and time
 * cannot fall below, from closed forms alone. */
#ifndef HD_ANALYSIS_PLAN_CANDIDATES_H
#define HD_ANALYSIS_PLAN_CANDIDATES_H

#include "analysis/plan/plan.h"

struct hd__candidate {
    int32_t pp, replicate, shard, cp, ep, tp;
    int32_t stage, chunks, sequence_parallel; /* chunks: of the model on a pipeline stage */
    int32_t tier;                             /* what its bound is from: search.c */
    int32_t prefetch;                         /* blocks that stage 3 gathers ahead; 0: as many as by default */
    int32_t offload, reserved;                /* states are in the host's memory */
    int64_t micro;
    const char *schedule; /* NULL: 1f1b, or with chunks interleaved */
    const char *recompute;
    double bound; /* seconds */
};

/* More memory than full recomputation and ZeRO 3 save, at a cost in time: for jobs that fit in few other ways. */
enum { HD__SAVE_NOTHING, HD__SAVE_INPUTS /* recompute {every: N} */, HD__SAVE_STATES /* offloaded */, HD__SAVE_COUNT };

/* The job, however it is cut. */
struct hd__candidate_job {
    double parameters, model_flops;    /* flops: of a step */
    double weights, states, gradients; /* bytes a parameter: for compute, of the optimizer and its master weights */
    double reduced;                    /* bytes of an element of a gradient that is sent */
    int64_t batch, seq_len, layers, experts;
    uint32_t compute; /* dtype */
};

struct hd__candidates {
    HD__ARRAY(struct hd__candidate) list;
    uint32_t all, too_large; /* too_large: by weights and states alone; not in the list */
};

/* `only`: the mesh that candidates must have; NULL: any. saving: HD__SAVE_... */
void hd__candidates_list(const struct hd__candidate_job *job, const struct hd__machine *machine, int64_t ranks,
                         const int64_t *only, int32_t saving, struct hd__candidates *out);

/* Seconds that its products and what ZeRO sends take at least; schedules other than 1f1b and interleaved have no
 * bubble. */
double hd__candidate_least_seconds(const struct hd__candidate_job *job, const struct hd__machine *machine,
                                   int64_t ranks, const struct hd__candidate *c);
/* Bytes of a rank: weights, states and gradients alone. */
double hd__candidate_least_memory(const struct hd__candidate_job *job, const struct hd__candidate *c);
/* Bytes of what the first stage keeps for gradients, at `layer` bytes a layer. */
double hd__candidate_kept(const struct hd__candidate_job *job, const struct hd__candidate *c, double layer);
/* Micro-batches of a step. */
int64_t hd__candidate_micros(const struct hd__candidate *c, int64_t batch);
/* The overrides that make it, with `between` between them. The caller frees the text. */
char *hd__candidate_words(const struct hd__candidate *c, const char *between);

#endif
