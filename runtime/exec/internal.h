/* Inside executor*.c. */
#ifndef HD_RUNTIME_EXEC_INTERNAL_H
#define HD_RUNTIME_EXEC_INTERNAL_H

#include "core/program/ops.h"
#include "runtime/exec/comm_op/comm_op.h"
#include "runtime/exec/copy/copy.h"
#include "runtime/exec/device.h"
#include "runtime/exec/executor.h"
#include "runtime/exec/profile.h"
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

/* Tokens on their way to a device with streams. */
struct hd__feed_staging {
    int32_t *pinned;
    struct hd_event *copied; /* `pinned` may be written again */
};

struct hd__prepared {
    uint32_t kind;
    uint32_t wait; /* of a start: where in the section its wait is; else 0 */
    union {
        struct hd_kernel *kernel;
        struct hd__comm_op *comm_op;
        struct hd__copy_op *copy;
        struct {
            int32_t *out;
            int64_t count;
            struct hd__feed_staging *by; /* NULL: `out` is written at once */
            int32_t labels;
        } feed;
    };
};

/* Steps [first, end) of a section, launched as one. */
struct hd__graph_segment {
    uint32_t first, end, launches, runs;
    struct hd_captured *graph; /* NULL: not yet, or never */
    HD__ARRAY(struct hd__comm_op *) comm_ops;
};

struct hd__prepared_section {
    const struct hd__code_section *of;
    struct hd__prepared *prepared;
    HD__ARRAY(struct hd__graph_segment) segments; /* in order; none where the device cannot capture */
    uint32_t n, reserved;
};

struct hd__exec {
    struct hd__exec_config config;
    struct hd_program *p;
    int32_t coord[HD_AXIS_COUNT];
    struct hd__device device;
    struct hd__transports transports;
    void *arena;                      /* as the device sees it */
    char *host_mirror;                /* as the host does: the arena itself, or a copy of what was pulled */
    struct hd_event *sync_event;      /* of a device with streams */
    struct hd__host_pools host_pools; /* the others */
    struct hd__copy_engine *copy_engines[HD__MEM_COUNT]; /* of those that are there */
    struct hd__copy_engine *polled_engine;               /* one of them that moves in its progress only; NULL */
    int32_t arena_from;                                  /* 0: transport (freed with it), 1: device, 2: mmap */
    int32_t reserved;
    struct hd__comm_engine *comm;
    struct hd__prepared_section *sections;
    struct hd__group_ref world;  /* of = NULL: there is one rank */
    struct hd__exec_max_buffer { /* where the world's transport is ordered: its numbers in the device's memory */
        void *device;
        int32_t *pinned;
        struct hd_event *done;
    } max_buffer;
    struct hd__flight_op max_op, barrier_op; /* hd__exec_all_reduce_max and hd__exec_barrier, for the recorder */
    const char *status;                      /* between sections */
    double comm_seconds;
    struct hd__profile *profile; /* NULL: nobody asked */
    uint64_t graph_replays;
    int32_t profiling, capturing;
    char *nonfinite; /* not NULL: where the first bad number is named; "" until there is one */
    const struct hd__prepared_section *current_section;
    uint32_t current_instr;
};

/* arena.c: the arena, its view, the other memories. */
int32_t hd__exec_map_memory(struct hd__exec *e, struct hd_error *err);
void hd__exec_unmap_memory(struct hd__exec *e); /* after the transports are closed */
/* Waits until compute has done all that it was given; nothing where launches are synchronous. */
int32_t hd__exec_synchronize(struct hd__exec *e, struct hd_error *err);
/* Until an event is reached. deadline 0: none, for what compute does. */
int32_t hd__exec_wait_event(struct hd__exec *e, struct hd_event *event, double deadline, struct hd_error *err);

/* prepare.c: every instruction becomes a step, with final addresses. */
int32_t hd__exec_prepare(struct hd__exec *e, struct hd_error *err);
void hd__exec_release(struct hd__exec *e);

/* run.c */
int32_t hd__exec_progress(struct hd__exec *e, struct hd_error *err); /* of what is in flight: HD_OK or an error */
int32_t hd__exec_run_prepared(struct hd__exec *e, struct hd__prepared *s, struct hd_error *err);

/* graph_capture.c */
void hd__exec_find_segments(struct hd__exec *e, struct hd__prepared_section *section);
void hd__exec_free_segments(struct hd__exec *e, struct hd__prepared_section *section);
int32_t hd__exec_run_segment(struct hd__exec *e, struct hd__prepared_section *section, struct hd__graph_segment *piece,
                             struct hd_error *err);

/* nan_check.c: a step while bad numbers are looked for. */
int32_t hd__exec_check_finite(struct hd__exec *e, const struct hd__prepared_section *section, uint32_t k,
                              struct hd_error *err);

#endif
