/* service/train/trace/trace: the measured trace of some steps, of all ranks (`metrics.trace`).
 *
 * Each rank records its own (runtime/exec/trace.h); after the last step the others send theirs through the rendezvous,
 * with how far the rendezvous' clock is ahead of theirs, and rank 0 writes them on one clock, as Chrome's trace
 * format. */
#ifndef HD_SERVICE_TRAIN_TRACE_TRACE_H
#define HD_SERVICE_TRAIN_TRACE_TRACE_H

#include "runtime/exec/trace.h"
#include "service/train/session.h"

struct hd__train_trace {
    struct hd__train_session *session;
    int64_t warm;        /* from this step on it is recorded; what is before `first` is forgotten */
    int64_t first, last; /* steps; 0: there is no trace, or no further one */
    int64_t cycle;       /* of the schedule, from 0 */
    int64_t steps;       /* that are in it */
    int recorded;        /* this rank is one of those that are */
    double began;        /* the step */
    struct hd__trace trace;
};

/* Before the job starts: are these steps and ranks of the job, and may the file be written? */
int32_t hd__train_trace_check(const struct hd__compiled *c, struct hd_error *err);
/* `done`: the step from which the run goes on. */
void hd__train_trace_init(struct hd__train_trace *t, struct hd__train_session *session, int64_t done);
/* Around step `step`. The last of them, and the end of a run before it, send and write: all ranks call them alike. A
 * trace that cannot be written is a warning, and a failure of a run that is for the trace. */
void hd__train_trace_begin(struct hd__train_trace *t, int64_t step);
int32_t hd__train_trace_end(struct hd__train_trace *t, int64_t step, struct hd_error *err);
int32_t hd__train_trace_finish(struct hd__train_trace *t, struct hd_error *err); /* no step follows */
void hd__train_trace_free(struct hd__train_trace *t);

/* ---- write.c */

struct hd__trace_rank {
    const struct hd__trace_event *events;
    uint32_t count, dropped;
    int32_t rank, reserved;
    double offset; /* added to its times */
};

#define HD__TRACE_BEGINS "{\"otherData\":{\"by\":\"heddle\",\"measured\":" /* first bytes of such a file */
int32_t hd__trace_write(const struct hd__compiled *c, const struct hd__trace_rank *ranks, uint32_t n, const char *path,
                        struct hd_error *err);

#endif
