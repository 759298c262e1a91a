/* service/train/checkpointer: a job's checkpoints: choice of the one to start from, saving and loading a session. */
#ifndef HD_SERVICE_TRAIN_CHECKPOINTER_CHECKPOINTER_H
#define HD_SERVICE_TRAIN_CHECKPOINTER_CHECKPOINTER_H

#include <jansson.h>

#include "service/train/data/token_origin.h"
#include "service/train/loss_scaler.h"
#include "service/train/run_lock.h"
#include "service/train/session.h"

/* Progress of a run: part of every checkpoint. */
struct hd__train_progress {
    int64_t step;     /* completed steps */
    int64_t sequence; /* the next sequence of the data stream */
    int64_t tokens;   /* tokens trained on */
    struct hd__train_loss_scaler scaler;
    double val_loss; /* after this step; NaN: not evaluated */
};

/* A save that is on disk. */
struct hd__train_saved {
    int64_t step, bytes;
    double seconds;  /* from its begin to its commit */
    double exposed;  /* of these the training waited */
    double val_loss; /* NaN: none */
};

/* The checkpoint that a run goes on from. */
struct hd__train_loaded {
    const char *dir; /* its folder; NULL: nothing was loaded */
    uint64_t step;
    char run[HD__RUN_ID];          /* "": it does not say */
    char saved_on[160];            /* ", saved on dp_shard 4", or "" where it was this mesh */
    struct hd__token_maker tokens; /* the tokenizer of the tokens that it was trained on */
    int64_t positions;             /* that a run from scratch trained; 0: it is not known */
    int in_memory;                 /* it was a copy of checkpoint.peers */
};

struct hd__peer_copies;
struct hd__train_checkpointer; /* the job's checkpoint store and the save under way */

/* Opens checkpoint storage for a session; *checkpointer stays NULL if the job has no checkpoint section. `dir` replaces
 * the job's folder unless it is NULL. */
int32_t hd__train_checkpointer_open(struct hd__train_session *s, const char *dir,
                                    struct hd__train_checkpointer **checkpointer, struct hd_error *err);
void hd__train_checkpointer_close(
    struct hd__train_checkpointer *checkpointer); /* waits for a save under way; NULL is fine */

/* Refuses a folder that is not writable, before the first save, and with checkpoint.resume=never one that has
 * checkpoints. Not collective. */
int32_t hd__train_checkpointer_check_dir(struct hd__train_checkpointer *checkpointer, struct hd_error *err);

struct hd__shared_place *hd__train_checkpointer_place(struct hd__train_checkpointer *checkpointer);

/* Before a job starts: is the checkpoint there that checkpoint.resume names? */
int32_t hd__train_checkpointer_check_resume(const struct hd__compiled *compiled, struct hd_error *err);

/* For --dry-run: would a run refuse what is in the folder, or the checkpoint that it goes on from? Tensors are not
 * read. What a run would report of changed keys is. *step: where it goes on; 0: at the start. */
int32_t hd__train_checkpointer_check_start(struct hd__compiled *compiled, int64_t *step, struct hd_error *err);

/* Words for a folder near checkpoint.dir, which has no checkpoint, that has some: inside it, or beside the job file.
 * "": none. */
const char *hd__train_checkpointer_find_near(struct hd__job *job);
/* Warns of such a folder where `step` is 0, and of a checkpoint behind `step`, the newest one of checkpoint.dir, that
 * the last run saved elsewhere. On rank 0. */
void hd__train_checkpointer_warn_elsewhere(struct hd__job *job, int64_t step);

/* From now on "auto" means the checkpoints of this run alone, and the run keeps its id: it was restarted. */
void hd__train_checkpointer_continue(struct hd__train_checkpointer *checkpointer, const char *run);

/* Loads weights, optimizer state and position. `which`: "auto" (the newest; progress is unchanged if there is none),
 * "never", "overwrite" (nothing is loaded), or the name or path of a checkpoint. With "auto" and all of the state, one
 * that any rank finds damaged is passed over by all, with a warning. `weights`: for evaluation and
 * sampling, only these, "model" or the name of an average that a strategy has registered; NULL: all, to train. */
int32_t hd__train_checkpointer_load(struct hd__train_checkpointer *checkpointer, const char *which, const char *weights,
                                    struct hd__train_progress *progress, struct hd_error *err);

/* Begins a run, after the load, on rank 0: which one? `run` becomes the id of the newest checkpoint where that was
 * loaded; else it is another run, with the id that is in `run`, and what is newer in the folder than the one that was
 * loaded (all, without one or with one from elsewhere) is in its way: set_aside moves that to a folder beside it. */
int32_t hd__train_checkpointer_begin(struct hd__train_checkpointer *checkpointer, char run[HD__RUN_ID],
                                     struct hd_error *err);
int32_t hd__train_checkpointer_set_aside(struct hd__train_checkpointer *checkpointer, struct hd_error *err);
/* On the other ranks: until rank 0 has begun and set aside. In a store of objects what is moved is copied: for each as
 * long as a slow disk takes for its bytes, beside comm.timeout. */
int32_t hd__train_checkpointer_wait_aside(struct hd__train_checkpointer *checkpointer, struct hd_error *err);
/* Its address stays valid until close; NULL is fine: nothing was loaded. */
const struct hd__train_loaded *hd__train_checkpointer_loaded(const struct hd__train_checkpointer *checkpointer);
/* Marks of the files, as checkpoints will have them; on rank 0. */
const struct hd__train_marks *hd__train_checkpointer_marks(const struct hd__train_checkpointer *checkpointer);

/* Saves the state. With checkpoint.async it returns once the state is copied. Collective. */
int32_t hd__train_checkpointer_save(struct hd__train_checkpointer *checkpointer,
                                    const struct hd__train_progress *progress, struct hd_error *err);
/* checkpoint.peers: NULL where no copies are made. */
struct hd__peer_copies *hd__train_checkpointer_copies(const struct hd__train_checkpointer *checkpointer);
/* Makes one, where hd__peer_copies_ready said so. */
int32_t hd__train_checkpointer_copy(struct hd__train_checkpointer *checkpointer,
                                    const struct hd__train_progress *progress, struct hd_error *err);
/* After a fault: a save of all ranks that is under way fails. Returns the newest step that is on disk: `saved`, where
 * that save did not fail. */
int64_t hd__train_checkpointer_end(struct hd__train_checkpointer *checkpointer, int64_t saved);
/* Then, with the `n` ranks that are left, in ascending order: the state is collected, with an error where they
 * do not hold all of it, and else launchers hear how long a save of it takes; and saved by them together and read
 * back. `run`: its id, which rank 0 alone knew. `emergency`: what the checkpoint says of it; owned. */
int32_t hd__train_checkpointer_collect_left(struct hd__train_checkpointer *checkpointer, const int32_t *ranks,
                                            int32_t n, struct hd_error *err);
int32_t hd__train_checkpointer_save_left(struct hd__train_checkpointer *checkpointer,
                                         const struct hd__train_progress *progress, const int32_t *ranks,
                                         const char run[HD__RUN_ID], json_t *emergency, struct hd_error *err);
/* Waits until the save is on disk. */
int32_t hd__train_checkpointer_wait(struct hd__train_checkpointer *checkpointer, struct hd_error *err);
int hd__train_checkpointer_busy(const struct hd__train_checkpointer *checkpointer); /* it is not yet; NULL: no */
/* Once for each save that came to its end: 1, and what it was. */
int hd__train_checkpointer_finished(struct hd__train_checkpointer *checkpointer, struct hd__train_saved *saved);

#endif
