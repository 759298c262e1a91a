/* service/train/session: one rank of a job that is open: rendezvous, executor, data. What training, evaluation and
 * sampling share. */
#ifndef HD_SERVICE_TRAIN_SESSION_H
#define HD_SERVICE_TRAIN_SESSION_H

#include <signal.h>

#include "runtime/exec/executor.h"
#include "service/launch/exit_watchdog.h"
#include "service/launch/launch.h"
#include "service/report/speaker.h"
#include "service/train/data/batch_feed.h"

struct hd__train_session {
    struct hd__compiled *compiled;
    const struct hd__launch_env *env;
    struct hd_store *store;
    struct hd__server *server;
    struct hd__exec *exec;
    struct hd__train_feed *train_feed;                              /* NULL where not opened, as the next */
    struct hd__train_feed *eval_feeds[HD__FEED_VAL + HD__VAL_SETS]; /* data.test, then the sets of data.val */
    struct hd__train_feed *current_feed;                            /* the one that the executor reads now */
    struct hd__speaker speaker;
    struct hd__launch_exit_watchdog exit_watchdog; /* while it opens and closes */
    int32_t (*feed_override)(void *user, int32_t input, int32_t *out, int64_t count, struct hd_error *err);
    void *feed_override_user;
    uint32_t weights_for; /* HD__DIFF_...: what weights are loaded for where they are not trained */
};

/* Evaluation asks what was held out, an export how long sequences were; above the effects of resume_diff.c. */
enum { HD__DIFF_EVAL = 8, HD__DIFF_EXPORT = 16, HD__DIFF_TEST = 32 }; /* TEST: with EVAL, of data.test */

/* Connects and opens the executor. Parameters are not initialised yet. */
int32_t hd__train_session_open(struct hd__train_session *s, struct hd__compiled *compiled,
                               const struct hd__launch_env *env, struct hd_error *err);
/* Next phase of the start, named in reports: all ranks go through the same. */
void hd__train_session_phase(struct hd__train_session *s, const char *phase);
/* A file of measurements that is there: a warning that this run replaces it, unless it was only started again. */
void hd__train_session_warn_replaced(const struct hd__train_session *s, const char *key, const char *path);
/* The next plug-in is closed, "closing data.train": from here on it is watched. */
void hd__train_session_closing(struct hd__train_session *s, const char *what);
/* `failed`: the job ends badly, and hd__speaker_fail has said why. */
void hd__train_session_close(struct hd__train_session *s, int failed);

/* Values of parameters for a fresh start: from the model's files, or from the seed. */
int32_t hd__train_session_init_params(struct hd__train_session *s, struct hd_error *err);

/* Tokens of so many steps over the labels of them that count, of all ranks: the factor that makes a mean over tokens
 * one over labels, 1 where all count and 0 where none does. `counted`: this rank's, from hd__train_feed_count_labels.
 * Collective. */
int32_t hd__train_session_label_factor(struct hd__train_session *s, int64_t steps, int64_t counted, double *factor,
                                       struct hd_error *err);
/* Loss on a part of the data, HD__FEED_..., over `batches` batches, and the labels of them that count. With `stop`,
 * beside training, both are NaN where a rank's *stop ended it between two, and the loss is where no label counts, which
 * is an error without. */
int32_t hd__train_session_evaluate(struct hd__train_session *s, int32_t part, int64_t batches, const _Atomic int *stop,
                                   double *loss, double *labels, struct hd_error *err);
/* The same on all sets of data.val: losses[k] of set k, and the mean over all their labels. */
int32_t hd__train_session_evaluate_sets(struct hd__train_session *s, int64_t batches, const _Atomic int *stop,
                                        double losses[HD__VAL_SETS], double *loss, struct hd_error *err);

/* Inputs, HD__INPUT_..., come from a function instead of the job's data; NULL: from the data again. */
void hd__train_session_override_feed(struct hd__train_session *s,
                                     int32_t (*feed)(void *user, int32_t input, int32_t *out, int64_t count,
                                                     struct hd_error *err),
                                     void *user);

/* Positions of sequences that are one document. */
void hd__train_session_feed_positions(const struct hd__train_session *s, int32_t *out, int64_t count);

/* Scalars of the program, whatever their dtype. */
int32_t hd__train_session_read_scalars(struct hd__train_session *s, const hd_tensor *scalars, uint32_t n,
                                       double *values, struct hd_error *err);

#endif
