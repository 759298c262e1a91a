/* service/train/session: one rank of a job that is open: rendezvous, executor, data. What training, evaluation and sampling
 * share. */
#ifndef HD_SERVICE_TRAIN_SESSION_H
#define HD_SERVICE_TRAIN_SESSION_H

#include "runtime/exec/executor.h"
#include "service/launch/exit_watchdog.h"
#include "service/launch/launch.h"
#include "service/train/batch_feed.h"

struct hd__session {
    struct hd__compiled *compiled;
    const struct hd__place_in_job *place;
    struct hd_store *store;
    struct hd__server *server;
    struct hd__exec *exec;
    struct hd__feed *train, *held_out; /* NULL where not opened */
    struct hd__feed *feeding;          /* the one that the executor reads now */
    int failed;                        /* others were told */
    struct hd__way_out way_out;        /* while it opens and closes */
    int32_t (*other_feed)(void *user, int32_t labels, int32_t *out, int64_t count, struct hd_error *err);
    void *other_user;
};

/* Connects and opens the executor. Parameters are not initialised yet. */
int32_t hd__session_open(struct hd__session *s, struct hd__compiled *compiled, const struct hd__place_in_job *place,
                         struct hd_error *err);
/* Ends the job on all ranks, unless it has ended: hd__live_dead then says whose failure it is, the same on all of them. */
void hd__session_fail(struct hd__session *s, int32_t code, const char *reason);
/* `failed`: HD_OK, or why the job ends badly: others are told, if they were not. */
void hd__session_close(struct hd__session *s, int32_t failed, const char *reason);

/* A refusal before the first step: does another rank say it? Where all are refused alike rank 0 does, which always
 * speaks. May wait a second for it. Under another launcher every rank speaks: each may have a log of its own. */
int hd__session_said(struct hd__session *s, const struct hd_error *err);

/* Values of parameters for a fresh start: from the model's files, or from the seed. */
int32_t hd__session_initialise(struct hd__session *s, struct hd_error *err);

/* Loss on the held-out part, over `batches` batches. */
int32_t hd__session_evaluate(struct hd__session *s, int64_t batches, double *loss, struct hd_error *err);

/* Tokens come from a function instead of the job's data; NULL: from the data again. */
void hd__session_feed(struct hd__session *s,
                      int32_t (*feed)(void *user, int32_t labels, int32_t *out, int64_t count, struct hd_error *err), void *user);

/* Scalars of the program, whatever their dtype. */
int32_t hd__session_scalars(struct hd__session *s, const hd_tensor *scalars, uint32_t n, double *values, struct hd_error *err);

#endif
