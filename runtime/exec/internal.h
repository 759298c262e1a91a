/* Executor internals: prepared instructions, sections and graph segments. */
#ifndef HD_RUNTIME_EXEC_INTERNAL_H
#define HD_RUNTIME_EXEC_INTERNAL_H

#include <pthread.h>

#include "core/program/ops.h"
#include "runtime/exec/comm_op/comm_op.h"
#include "runtime/exec/copy/copy.h"
#include "runtime/exec/device.h"
#include "runtime/exec/executor.h"
#include "runtime/exec/profile.h"
#include "runtime/exec/trace.h"
#include "runtime/exec/transports.h"

enum {
    HD__PREPARED_KERNEL = 0,
    HD__PREPARED_COMM,
    HD__PREPARED_COMM_WAIT,
    HD__PREPARED_COPY,
    HD__PREPARED_COPY_WAIT,
    HD__PREPARED_FEED,
    HD__PREPARED_NOTHING
};

/* Pinned tokens of a feed, for a device with streams. */
struct hd__feed_staging {
    int32_t *pinned;
    struct hd_event *copied; /* then `pinned` is free again */
};

struct hd__prepared {
    uint32_t kind;
    uint32_t wait; /* of a start: index of its wait in the section; else 0 */
    union {
        struct hd_kernel *kernel;
        struct hd__comm_op *comm_op;
        struct hd__copy_op *copy;
        struct {
            int32_t *out;
            int64_t count;
            struct hd__feed_staging *by; /* NULL: `out` is host memory */
            int32_t input;               /* HD__INPUT_... */
        } feed;
    };
};

/* Instructions [first, end) of a section, captured as one graph. */
struct hd__graph_segment {
    uint32_t first, end, launches, runs;
    struct hd_captured *graph; /* NULL: not yet, or never */
    HD__ARRAY(struct hd__comm_op *) comm_ops;
};

struct hd__prepared_section {
    const struct hd__code_section *of;
    struct hd__prepared *prepared;
    HD__ARRAY(struct hd__graph_segment) segments; /* in order; empty where the device cannot capture */
    uint32_t n, reserved;
    uint32_t first_update, first_write; /* instructions that change what a checkpoint holds: updates, others */
};

enum { HD__WORLD_BYTES = 16384 }; /* of a sum over all ranks at most */

struct hd__exec {
    struct hd__exec_config config;
    struct hd_program *p;
    int32_t coord[HD_AXIS_COUNT];
    struct hd__device device;
    struct hd__transports transports;
    void *arena;                                         /* device address */
    char *host_mirror;                                   /* the arena itself, or host pages for copies of its tensors */
    struct hd_event *sync_event;                         /* of a device with streams */
    struct hd__host_pools host_pools;                    /* the other memories */
    struct hd__copy_engine *copy_engines[HD__MEM_COUNT]; /* NULL where the program has no such memory */
    struct hd__copy_engine *polled_engine;               /* the one that needs progress calls, or NULL */
    int32_t arena_from;                                  /* 0: transport (freed with it), 1: device, 2: mmap */
    int32_t reserved;
    struct hd__comm_engine *comm;
    struct hd__prepared_section *sections;
    struct hd__group_ref world;    /* of = NULL: a single rank */
    struct hd__exec_world_buffer { /* operands in device memory, where the world's transport is stream-ordered */
        void *device;              /* an all_gather's result, then its operand */
        void *pinned;
        struct hd_event *done;
    } world_buffer;
    struct hd__flight_op max_op, sum_op, gather_op, barrier_op, floats_op; /* as the flight recorder describes them */
    const char *status;                                                    /* between sections */
    double call_since;                  /* of a call that opens or closes; 0: there is none */
    double comm_seconds[HD_AXIS_COUNT]; /* since they were asked */
    struct hd__profile *profile;        /* NULL: never turned on */
    uint64_t graph_replays;
    struct hd__trace *trace; /* NULL: none is recorded */
    int32_t observed;        /* instructions run one by one, each timed: profiling, trace */
    int32_t profiling, capturing, shut;
    int32_t run;            /* of the section that is repeated */
    uint32_t state_written; /* in this step */
    int32_t settled;        /* nothing polls any more */
    int32_t no_comm_replay; /* in this step: graphs with comm ops in them are not replayed */
    char *nonfinite;        /* not NULL during a NaN check: names the first NaN or Inf; "" until there is one */
    struct hd__exec_rerun rerun;
    int32_t (*update_hook)(void *user, const struct hd__flat *flat, struct hd_error *err); /* NULL: there is none */
    void *update_hook_user;
    const struct hd__prepared_section *current_section;
    pthread_mutex_t positions; /* reports read that section from other threads, and closing frees it */
    uint32_t current_instr;
};

/* arena.c: the arena, the host mirror, the other memories. */
int32_t hd__exec_map_memory(struct hd__exec *e, struct hd_error *err);
void hd__exec_unmap_memory(struct hd__exec *e); /* after the transports are closed */
/* Waits for the compute stream; nothing where launches are synchronous. */
int32_t hd__exec_synchronize(struct hd__exec *e, struct hd_error *err);
/* Polls until an event completes, making progress meanwhile. deadline 0: none. */
int32_t hd__exec_wait_event(struct hd__exec *e, struct hd_event *event, double deadline, struct hd_error *err);

/* prepare.c */
int32_t hd__exec_prepare(struct hd__exec *e, struct hd_error *err);
void hd__exec_release(struct hd__exec *e);

/* run.c */
int32_t hd__exec_progress(struct hd__exec *e, struct hd_error *err); /* HD_OK or an error */
/* The highest value of the members of the op's group. Collective over it. */
int32_t hd__exec_group_max(struct hd__exec *e, const struct hd__comm_op *op, int32_t *value, struct hd_error *err);
int32_t hd__exec_run_prepared(struct hd__exec *e, struct hd__prepared *s, struct hd_error *err);

/* state_writes.c: finds a section's writes of the state; instructions before `end` run now. */
void hd__exec_find_state_writes(struct hd__exec *e, struct hd__prepared_section *section);
void hd__exec_note_state_writes(struct hd__exec *e, const struct hd__prepared_section *section, uint32_t end);

/* graph_capture.c */
void hd__exec_find_segments(struct hd__exec *e, struct hd__prepared_section *section);
void hd__exec_free_segments(struct hd__exec *e, struct hd__prepared_section *section);
int32_t hd__exec_run_segment(struct hd__exec *e, struct hd__prepared_section *section,
                             struct hd__graph_segment *segment, struct hd_error *err);

/* rerun.c: chooses an instruction of the step; runs it, which has just run, once more. */
void hd__exec_rerun_choose(struct hd__exec *e, int64_t step);
int32_t hd__exec_rerun_compare(struct hd__exec *e, const struct hd__prepared_section *section, uint32_t k,
                               struct hd_error *err);

/* nan_check.c: runs an instruction and checks its operands. */
int32_t hd__exec_check_finite(struct hd__exec *e, const struct hd__prepared_section *section, uint32_t k,
                              struct hd_error *err);

#endif
