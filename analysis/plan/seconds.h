/* analysis/plan/seconds: how long a machine takes for an instruction, a collective or a message.
 *
 * An instruction takes a launch and the longer of its FLOPs, at the rate that its kind and shape reach, and its bytes.
 * A product is cut into tiles, which the device's units compute in waves. A collective takes a ring's hops, or, where
 * it is shorter, a tree's, and the bytes that a rank sends at the slowest level of the network that the ring crosses.
 */
#ifndef HD_ANALYSIS_PLAN_SECONDS_H
#define HD_ANALYSIS_PLAN_SECONDS_H

#include "analysis/plan/machine_file.h"
#include "core/program/program.h"

/* Numbers of equal parts of a job's ranks, in their order: one for each kind of machine, or for each machine. */
struct hd__parts {
    double at[64];
    uint32_t count, reserved; /* 0: all ranks have the machine's */
};

/* The least of `n` ranks from `first` on, of a job with `ranks`; `other` where there are no parts. */
double hd__parts_least(const struct hd__parts *parts, int32_t first, int32_t n, int32_t ranks, double other);

/* How another system runs the same job, where it differs from heddle's program. Zeros: it does not. */
struct hd__assume {
    int32_t unfused_attention;  /* scores, softmax and their gradients in memory, of all pairs of positions */
    int32_t dropout;            /* of scores, where they are in memory, and of what is added to the residual stream */
    int32_t blocking_tp;        /* transfers over tp do not overlap with compute */
    int32_t pipelined_tp;       /* they overlap with the products before or behind them, piece by piece */
    int32_t blocking_dp;        /* those over the data axes follow after the last micro-batch */
    int32_t separate_kernels;   /* biases, activations, sums and norms run one after another */
    int32_t separate_optimizer; /* gradients are copied, unscaled, checked and clipped in passes of their own */
    int32_t whole_recompute;    /* recomputed blocks are run again to their end, needed or not */
    int32_t recomputed_scores;  /* set by the plan: the scores are computed again before their gradients */
    double recomputed_products; /* share of the blocks' products that run again before their gradients */
    double states;              /* bytes a parameter of weights, gradients and optimizer states; 0: the program's */
    /* Seconds of a stage's forward pass, gradients of inputs and of weights for a micro-batch, and of a message; where
     * stage_f is above 0 nothing else takes time. */
    double stage_f, stage_b, stage_w, stage_send;
    struct hd__parts speeds; /* of compute; the machine's is 1 */
    struct hd__parts memory; /* bytes */
};

/* "fused_attention=no,dropout=yes,states=18" */
int32_t hd__assume_parse(const char *text, struct hd__assume *assume, struct hd_error *err);
/* HD_E_INVALID where parts do not divide the ranks. */
int32_t hd__assume_fits(const struct hd__assume *assume, int64_t ranks, struct hd_error *err);
/* Shares of `total` micro-batches, at least 3 each, with which `n` coordinates of these speeds are done earliest. */
void hd__assume_shares(const double *speed, uint32_t n, int64_t total, int64_t *shares);
/* Does the rank wait for this transfer as soon as it has started it? Does it run after the last micro-batch? */
int hd__assume_blocks(const struct hd__assume *assume, const struct hd__instr *i);
int hd__assume_defers(const struct hd__assume *assume, const struct hd__instr *i);

struct hd__product {       /* `batch` products of [m k] x [k n] */
    double batch, m, n, k; /* elements */
    double bytes, written; /* that all of them read and write, and of these what they write at their end */
    double peak;           /* FLOPs a second */
};
double hd__product_seconds(const struct hd__machine *m, const struct hd__product *x); /* without the launch */

/* Bytes a second that a rank sends on a ring over these axes; infinite where that is one rank. */
double hd__ring_rate(const struct hd__machine *machine, const struct hd__mesh *mesh, uint32_t axes);

/* Seconds of one instruction on a machine whose ranks lie in their order. */
double hd__plan_seconds(const struct hd__machine *machine, const struct hd__assume *assume, const struct hd_program *p,
                        const struct hd__instr *i);

#endif
