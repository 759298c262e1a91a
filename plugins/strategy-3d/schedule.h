/* Pipeline schedules: in which order each stage runs its actions. Pure functions of (stages, micro-batches, chunks a
 * stage): nothing here knows a program.
 *
 *   gpipe        all forwards, then all backwards (Huang et al., arXiv 1811.06965)
 *   1f1b         one forward, one backward in turn; at most P - p micro-batches alive on stage p (Narayanan et al.,
 *                arXiv 1806.03377, flushed as in arXiv 2104.04473, section 2.2)
 *   interleaved  1f1b over `virtual` chunks a stage, micro-batches in groups of P (arXiv 2104.04473, section 2.2)
 *   zb-h1        1f1b whose gradients of weights are actions of their own: stage p holds p of them back, which fill its
 *                bubble at the end; the memory of 1f1b (Qi et al., arXiv 2401.10241, section 3.1)
 *   zb-v         two chunks a stage, laid out as a V: first and last chunk share stage 0 (same paper, section 6)
 *   FILE.csv     the user's own: schedule_csv.c
 *
 * A chunk is a run of the model's blocks; a stage holds one or more. Every schedule sums a parameter's gradients in the
 * order of micro-batches, which is why they agree bit for bit (a file may choose another order). */
#ifndef HD_STRATEGY_3D_SCHEDULE_H
#define HD_STRATEGY_3D_SCHEDULE_H

#include <stdint.h>

#include "heddle/types.h"

/* F: forward. I: gradients of activations. W: gradients of weights. B: I and W as one. */
enum { PP_F = 0, PP_B, PP_I, PP_W };

struct pp_action {
    int32_t kind, chunk, micro;
    int32_t line, column; /* where a file has it; 0: not from a file */
};

struct pp_list {
    struct pp_action *at;
    int32_t count, reserved;
};

struct pp_schedule {
    const char *name; /* or the file's path: lives as long as the caller's */
    int32_t stages, micros, chunks;
    int32_t split;         /* some W is an action of its own */
    int32_t *stage_of;     /* by chunk */
    struct pp_list *stage; /* by stage: its actions in order */
};

/* A schedule by name, or from a file where the name ends in ".csv". `virtual`: chunks a stage, 0: what suits the
 * schedule (for a file: what it says). A schedule that was made has passed pp_check. */
int32_t pp_make(const char *name, int32_t stages, int32_t micros, int32_t virtual, struct pp_schedule *s,
                struct hd_error *err);
void pp_free(struct pp_schedule *s);

/* schedule_csv.c */
int32_t pp_read(const char *path, int32_t stages, int32_t micros, int32_t virtual, struct pp_schedule *s,
                struct hd_error *err);

/* schedule_check.c: every action once; F before B or I, I before W; sends and receives of two stages in one order; no
 * cycle of dependences across stages. */
int32_t pp_check(const struct pp_schedule *s, struct hd_error *err);

/* schedule_time.c: when everything happens if chunk c takes these times, and a message from stage to stage `message`.
 */
struct pp_times {
    const double *f, *i, *w; /* by chunk, of one micro-batch */
    double message;
};
struct pp_bubble {
    double span;       /* the longest of a stage, from the start of its first action to the end of its last */
    double ideal;      /* work of the stage that works longest: no schedule can be shorter */
    double over_ideal; /* idle time: of all stages within that span, over their work */
    double over_whole; /* and over the whole span */
};
/* Returns 0 if the actions depend on each other in a cycle: then stuck[stage] is the action at which each stops.
 * `stuck` may be NULL. HD_E_NOMEM is a negative result. */
int32_t pp_time(const struct pp_schedule *s, const struct pp_times *times, struct pp_bubble *bubble, int32_t *stuck);

/* ---- shared by the files */
int32_t pp_alloc(struct pp_schedule *s, const char *name, int32_t stages, int32_t micros, int32_t chunks,
                 struct hd_error *err);
int32_t pp_room(struct pp_schedule *s, int32_t stage, int32_t actions, struct hd_error *err); /* once a stage */
static inline void pp_add(struct pp_list *l, int32_t kind, int32_t chunk, int32_t micro)
{
    l->at[l->count++] = (struct pp_action){kind, chunk, micro, 0, 0};
}
static inline char pp_letter(int32_t kind)
{
    return "FBIW"[kind];
}

#endif
