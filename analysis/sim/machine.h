/* The token machine: all ranks' programs at once, in one thread.
 *
 * Each rank walks its program; asynchronous instructions go into a queue a stream; a collective happens when
 * it is at the head of the same stream of every member of its group; a send when its receive is at the head
 * of a stream of the peer (synchronous: the worst case of buffering). What may happen next is chosen at
 * random, from a seed.
 *
 * Without kernels, ranks that are alike are walked once. Along an axis, but pp, ranks are alike if they run the same
 * programs and no collective along it leaves some of them out. If they take their steps together, then what one of
 * them meets, all do: that is one of the orders in which the whole machine may run, and whether a run ends does not
 * depend on the order, as an event that can happen stays possible until it does. If such a run fails, all ranks are
 * walked one by one, for the report.
 *
 *   as it is        the proof: if all ranks finish, nothing can deadlock or mismatch; if not, the report says
 * who waits for whom with kernels    the emulator: real numbers in one arena a rank at the planned offsets;
 * what is in flight, released or dead between sections is NaN, so that a missing wait or a wrong lifetime
 * shows in the result with costs      the simulator: when each rank is done, and how long it was idle */
#ifndef HD_ANALYSIS_SIM_MACHINE_H
#define HD_ANALYSIS_SIM_MACHINE_H

#include "core/program/program.h"

struct hd__sim;

/* prepare is called once for each instruction that a rank computes, with final addresses; run each time. feed
 * writes micro-batch `micro` of the step (0, 1, ...) to the output of a FEED. Codes as everywhere; release
 * may be NULL. */
struct hd__sim_kernels {
    void *user;
    int32_t (*prepare)(void *user, int32_t rank, const struct hd_instr_desc *instr, void **kernel,
                       struct hd_error *err);
    int32_t (*run)(void *user, int32_t rank, void *kernel, struct hd_error *err);
    void (*release)(void *user, int32_t rank, void *kernel);
    int32_t (*feed)(void *user, int32_t rank, const struct hd__instr *instr, int32_t micro,
                    const struct hd_operand *out, struct hd_error *err);
};

/* Something that took time: compute, or the transfer of an asynchronous instruction, from when all its members were
 * there. */
struct hd__sim_span {
    const struct hd__instr *instr;
    double start, end; /* seconds */
    uint32_t section;  /* index */
    int32_t micro;     /* micro-batch of the step; -1: of none */
};

/* A collective over several axes costs what its outermost one costs. */
struct hd__sim_costs {
    void *user;
    /* Called with everything that took time on a rank that is walked, in any order; NULL: not wanted. */
    void (*span)(void *user, int32_t rank, const struct hd__sim_span *span);
    double (*seconds)(void *user, const struct hd_program *p, const struct hd__instr *instr); /* of compute */
    /* Seconds of a collective or message; NULL: by latency and bandwidth. */
    double (*transfer)(void *user, const struct hd_program *p, const struct hd__instr *i);
    /* Does a rank wait for this collective, if it is alone in its group, as soon as it starts it? NULL: for none. */
    int (*blocks)(void *user, const struct hd__instr *i);
    const double *speed;                  /* of compute, by rank; NULL: 1 */
    double slowed;                        /* share of its speed that compute loses while a collective is under way */
    double latency[HD_AXIS_COUNT];        /* seconds an operation */
    double bandwidth[HD_AXIS_COUNT];      /* bytes a second that one rank sends */
    double copy_bandwidth[HD__MEM_COUNT]; /* bytes a second between the main memory and this one; 0: no time at all */
};

struct hd__sim_options {
    const struct hd__sim_kernels *kernels; /* NULL: none */
    const struct hd__sim_costs *costs;     /* NULL: none */
    uint64_t seed;                         /* order of events */
};

struct hd__sim_stats {
    uint64_t events; /* instructions that were started or completed */
    uint64_t collectives, messages, copies;
    uint64_t walked; /* events without those of ranks that were not walked, being like another */
    double seconds;  /* of the slowest rank (costs) */
    double idle;     /* share of all ranks' time in which they computed nothing (costs) */
};

/* `programs`: by rank; ranks that are alike share one, which must outlive the machine. */
struct hd__sim *hd__sim_create(const struct hd__mesh *mesh, const struct hd_program *const *programs,
                               const struct hd__sim_options *options);
void hd__sim_destroy(struct hd__sim *m);

/* Runs one section of every rank, or, with NULL, all sections of step `step` (from 1); those with repeat 0
 * (evaluation) run only when they are asked for. `section` is of any stage's program. On failure err has the
 * first lines of hd__sim_report. */
int32_t hd__sim_run(struct hd__sim *m, const struct hd__code_section *section, int64_t step, struct hd_error *err);

/* Runs the first step, then each section that is not part of it by itself. The stats are those of all of them. */
int32_t hd__sim_verify(struct hd__sim *m, struct hd_error *err);

/* The reason for which the last run stopped; "" if nothing stopped it. */
const char *hd__sim_report(const struct hd__sim *m);
struct hd__sim_stats hd__sim_stats(const struct hd__sim *m);
int32_t hd__sim_alike(const struct hd__sim *m, int32_t rank);      /* the rank that is walked for this one */
double hd__sim_finish_time(const struct hd__sim *m, int32_t rank); /* seconds (costs) */
double hd__sim_busy_time(const struct hd__sim *m, int32_t rank);
/* A tensor of a rank in its arena (kernels); NULL otherwise. */
void *hd__sim_tensor_data(struct hd__sim *m, int32_t rank, hd_tensor t);
void *hd__sim_arena(struct hd__sim *m, int32_t rank);

#endif
