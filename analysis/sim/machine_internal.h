/* State of the token machine, shared by its files: flatten.c (a program, flattened), machine.c (the walk),
 * emulate.c (numbers), deadlock_report.c (the report). */
#ifndef HD_ANALYSIS_SIM_MACHINE_INTERNAL_H
#define HD_ANALYSIS_SIM_MACHINE_INTERNAL_H

#include "analysis/sim/machine.h"
#include "core/program/access.h"
#include "core/program/ops.h"

enum { HD__SIM_COMPUTE = 0, HD__SIM_WAIT, HD__SIM_COLLECTIVE, HD__SIM_SEND, HD__SIM_RECV, HD__SIM_COPY };

struct hd__sim_op {
    const struct hd__instr *instr;
    uint64_t signature; /* collective or message: must be equal on all members */
    /* asynchronous: its number in the program; wait: number of the awaited instruction; UINT32_MAX: unknown */
    uint32_t async;
    uint32_t channel; /* collective */
    uint16_t queue;   /* asynchronous: dense stream number; wait: that of the awaited instruction */
    uint8_t kind;     /* HD__SIM_... */
    uint8_t blocks;   /* costs: the rank waits for it at once */
};

/* A program, flattened: shared by ranks that have it, as many micro-batches, and the same speed. */
struct hd__sim_program {
    const struct hd_program *p;
    struct hd__sim_op *code;
    double *cost;    /* by index into code; NULL: without costs */
    uint32_t *first; /* by section: index into code; one more at the end */
    int32_t *micro0; /* by section: micro-batches fed by earlier sections */
    int32_t *rounds; /* by section: in a step that has it; 0: run on demand */
    double speed;    /* of compute */
    uint32_t n_async;
    int32_t micro_batches; /* of a step */
};

struct hd__sim_queue { /* Queue of a rank and stream: a ring of indexes into code. */
    uint32_t *ring;
    uint32_t head, count, room;
    uint32_t issued, completed;
    uint32_t matched; /* the head is matched and scheduled */
    uint32_t reserved;
    double free_at; /* costs */
};

struct hd__sim_rank {
    const struct hd__sim_program *program;
    struct hd__sim_queue *queues;
    uint32_t *issue;     /* by async: position of the issue in its queue, from 1; 0: never */
    double *start, *end; /* by async (costs) */
    char *arena;
    void **kernels; /* by index into code */
    int32_t coord[HD_AXIS_COUNT];
    uint32_t section, pc;
    int32_t round; /* iteration of the section's repeat */
    uint8_t done, blocked, queued_to_run, reserved;
    double now, busy;
    double transfers_until; /* costs: the end of the last collective */
};

struct hd__sim_meeting {   /* one group of a channel */
    uint32_t first_member; /* into machine.members */
    uint32_t size, arrived, channel;
    int32_t first_rank; /* first rank that arrived */
    uint32_t alone;     /* a group of one, without ranks that are alike either */
    uint64_t signature;
};

struct hd__sim_channel { /* groups along the same axes on the same stream */
    uint64_t members;
    uint32_t axes;
    uint16_t queue, reserved;
    uint32_t *meeting; /* by rank: index + 1; 0: not a member */
};

/* an event that can happen now: a collective, or a message (rank != -1), or a copy (peer == -1 as well) */
struct hd__sim_event {
    uint32_t meeting;
    int32_t rank, peer;
    uint16_t queue, peer_queue;
};

struct hd__sim {
    struct hd__mesh whole, mesh; /* mesh: of the ranks that are walked: 1 along the axes in `alike` */
    uint32_t alike, reserved;    /* HD_AXIS_BITs */
    struct hd__sim_options options;
    struct hd__sim_kernels kernels; /* options points to these copies */
    struct hd__sim_costs costs;
    HD__ARRAY(struct hd__sim_program *) programs;
    HD__ARRAY(struct hd__sim_channel) channels;
    HD__ARRAY(struct hd__sim_meeting) meetings;
    HD__ARRAY(int32_t) members;
    HD__ARRAY(uint16_t) streams;     /* by queue: stream */
    struct hd__sim_program **seated; /* by rank of the whole mesh */
    struct hd__sim_rank *ranks;      /* by rank of the mesh that is walked */
    HD__ARRAY(int32_t) runnable;
    HD__ARRAY(struct hd__sim_event) events;
    struct hd__sim_stats stats;
    struct hd__text report;
    uint64_t random;
    const struct hd__code_section *only; /* NULL: the sections of a step */
    int64_t step;
};

/* flatten.c */
struct hd__sim_program *hd__sim_program_new(struct hd__sim *m, const struct hd_program *p, int32_t rank, double speed);
void hd__sim_program_free(struct hd__sim_program *image);
void hd__sim_channels_join(struct hd__sim *m);
int32_t hd__sim_peer_rank(const struct hd__sim *m, int32_t rank, int32_t stage);

/* emulate.c: 0, or a code with the report filled */
int32_t hd__sim_emulate_open(struct hd__sim *m, struct hd_error *err);
void hd__sim_emulate_close(struct hd__sim *m);
void hd__sim_emulate_section(struct hd__sim_rank *r);
int32_t hd__sim_emulate_compute(struct hd__sim *m, int32_t rank, uint32_t pc, struct hd_error *err);
void hd__sim_emulate_issue(struct hd__sim_rank *r, const struct hd__instr *i);
int32_t hd__sim_emulate_meeting(struct hd__sim *m, const struct hd__sim_meeting *meeting, struct hd_error *err);
void hd__sim_emulate_message(struct hd__sim *m, const struct hd__sim_event *e);
void hd__sim_emulate_copy(struct hd__sim_rank *r, const struct hd__instr *i);

/* deadlock_report.c */
void hd__sim_report_deadlock(struct hd__sim *m);
void hd__sim_report_mismatch(struct hd__sim *m, const struct hd__sim_meeting *meeting, int32_t rank, uint32_t pc);
void hd__sim_report_message(struct hd__sim *m, const struct hd__sim_event *e);

static inline double hd__sim_cost(const struct hd__sim_rank *r, const struct hd__sim_op *d)
{
    return r->program->cost ? r->program->cost[d - r->program->code] : 0;
}

/* The head of a queue; NULL: empty. */
static inline struct hd__sim_op *hd__sim_queue_head(const struct hd__sim_rank *r, uint32_t queue)
{
    const struct hd__sim_queue *q = &r->queues[queue];
    return q->count ? &r->program->code[q->ring[q->head]] : NULL;
}

#endif
