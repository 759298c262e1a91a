/* Inside executor*.c. */
#ifndef HD_RUNTIME_EXEC_INTERNAL_H
#define HD_RUNTIME_EXEC_INTERNAL_H

#include "core/program/ops.h"
#include "runtime/exec/bounce.h"
#include "runtime/exec/comm_op.h"
#include "runtime/exec/copy_engine.h"
#include "runtime/exec/device.h"
#include "runtime/exec/executor.h"
#include "runtime/exec/file_offload.h"
#include "runtime/exec/profile.h"
#include "runtime/exec/stream_comm.h"
#include "runtime/exec/transports.h"

enum { STEP_KERNEL = 0, STEP_EXCHANGE, STEP_EXCHANGE_WAIT, STEP_COPY, STEP_COPY_WAIT, STEP_FEED, STEP_NOTHING };

/* Tokens on their way to a device with streams. */
struct hd__feeding {
    int32_t *pinned;
    struct hd_event *copied; /* `pinned` may be written again */
};

struct hd__step {
    uint32_t kind;
    uint32_t instr;   /* index in its section */
    union {
        struct hd_kernel *kernel;
        struct hd__exchange *exchange;
        struct hd__copy *copy;
        struct {
            int32_t *out;
            int64_t count;
            struct hd__feeding *by; /* NULL: `out` is written at once */
            int32_t labels;
        } feed;
    };
};

/* Steps [first, end) of a section, launched as one. */
struct hd__piece {
    uint32_t first, end, launches, runs;
    struct hd_captured *captured; /* NULL: not yet, or never */
    HD__ARRAY(struct hd__exchange *) exchanges;
};

struct hd__exec_section {
    const struct hd__code_section *of;
    struct hd__step *steps;
    HD__ARRAY(struct hd__piece) pieces; /* in order; none where the device cannot capture */
    uint32_t n, reserved;
};

struct hd__exec {
    struct hd__exec_config config;
    struct hd_program *p;
    int32_t coord[HD_AXIS_COUNT];
    struct hd__device device;
    struct hd__transports transports;
    void *arena;                /* as the device sees it */
    char *view;                 /* as the host does: the arena itself, or a copy of what was pulled */
    struct hd_event *settled;   /* of a device with streams */
    struct hd__memories memories; /* the others */
    struct hd__copies *copies;
    struct hd__spill *spill; /* of a device with streams that keeps state in a file */
    int32_t arena_from; /* 0: transport (freed with it), 1: device, 2: mmap */
    int32_t in_flight;
    struct hd__exec_section *sections;
    struct hd__group_ref world; /* of = NULL: there is one rank */
    struct hd__exec_agreement {  /* where the world's transport is ordered: its numbers in the device's memory */
        void *device;
        int32_t *pinned;
        struct hd_event *done;
    } agreement;
    struct hd__flight_op agree, meet; /* hd__exec_agree and hd__exec_meet, for the recorder */
    const char *does;                 /* between sections */
    double comm_seconds;
    struct hd__profile *profile; /* NULL: nobody asked */
    uint64_t replays;
    int32_t profiling, capturing;
    char *bad; /* not NULL: where the first bad number is named; "" until there is one */
    const struct hd__exec_section *at_section;
    uint32_t at_step;
};

/* arena.c: the arena, its view, the other memories. */
int32_t hd__exec_map(struct hd__exec *e, struct hd_error *err);
void hd__exec_stop_copies(struct hd__exec *e); /* before the transports are closed, which may own the arena */
void hd__exec_unmap(struct hd__exec *e);
/* Waits until compute has done all that it was given; nothing where launches are synchronous. */
int32_t hd__exec_settle(struct hd__exec *e, struct hd_error *err);
/* Until an event is reached. deadline 0: none, for what compute does. */
int32_t hd__exec_await(struct hd__exec *e, struct hd_event *event, double deadline, struct hd_error *err);

/* prepare.c: every instruction becomes a step, with final addresses. */
int32_t hd__exec_prepare(struct hd__exec *e, struct hd_error *err);
void hd__exec_release(struct hd__exec *e);

/* run.c */
int32_t hd__exec_progress(struct hd__exec *e, struct hd_error *err); /* of what is in flight: HD_OK or an error */
int32_t hd__exec_run(struct hd__exec *e, struct hd__step *s, struct hd_error *err);

/* graph_capture.c */
void hd__exec_find_pieces(struct hd__exec *e, struct hd__exec_section *section);
void hd__exec_free_pieces(struct hd__exec *e, struct hd__exec_section *section);
int32_t hd__exec_run_piece(struct hd__exec *e, struct hd__exec_section *section, struct hd__piece *piece, struct hd_error *err);

/* nan_check.c: a step while bad numbers are looked for. */
int32_t hd__exec_look(struct hd__exec *e, const struct hd__exec_section *section, uint32_t k, struct hd_error *err);

#endif
