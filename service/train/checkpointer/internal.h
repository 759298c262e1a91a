/* A session's checkpoints, shared by the files of this folder. */
#ifndef HD_SERVICE_TRAIN_CHECKPOINTER_INTERNAL_H
#define HD_SERVICE_TRAIN_CHECKPOINTER_INTERNAL_H

#include "service/checkpoint/checkpoint.h"
#include "service/checkpoint/train_state.h"
#include "service/train/checkpointer/checkpointer.h"
#include "service/train/resume_diff.h"
#include "service/train/save/shared_place.h"
#include "service/train/save/store_gather.h"

struct hd__train_checkpointer {
    struct hd__train_session *s;
    const struct hd_ckpt_ops *ops;
    struct hd_ckpt *ckpt;
    const char *dir;
    struct hd__ckpt_store store;
    struct hd__ckpt_training training;
    struct hd__ckpt_async_writer *async_writer; /* checkpoint.async; NULL without it */
    struct hd__ckpt_train_state saving;         /* borrowed by the async writer */
    struct hd__ckpt_train_state left;           /* after a fault */
    uint64_t left_bytes;                        /* of all ranks */
    char run[HD__RUN_ID];                       /* of this run */
    struct hd__train_loaded loaded;
    const char *only_run; /* "auto" is one of this run; NULL: of any */
    struct hd__train_data_mark data;
    int falls_back; /* what is damaged is passed over, and the caller says so */
    int fell_back;  /* a newer one was damaged, of run damaged_run where its index could be read */
    char damaged_run[HD__RUN_ID];
    struct hd__train_saved saved; /* the last save; step 0: none that was not told */
    uint64_t *aside;              /* steps that are another run's from now on, or torn */
    uint32_t n_aside;
    const char *aside_are;
    struct hd__store_gather gather, gather_left;
    struct hd__shared_place place;
    struct hd__peer_copies *copies; /* checkpoint.peers; NULL without it */
};

/* ---- checkpointer.c */

int32_t hd__checkpointer_open_store(const struct hd__compiled *compiled, const char *dir, struct hd_ckpt **store,
                                    struct hd_error *err);

/* ---- others.c */

/* Refuses a folder with checkpoints that the job does not go on from. */
int32_t hd__checkpointer_check_others(struct hd__train_checkpointer *k, struct hd_error *err);

/* ---- space.c */

/* Warns where the checkpoints that are to come after `step` do not fit on the disk: the folder has `here` of this run.
 * Only of local folders. Not collective. */
void hd__checkpointer_warn_space(const struct hd__train_checkpointer *k, int64_t step, int64_t here);

/* ---- load.c. `weights` as in hd__train_checkpointer_load. */

static inline int hd__checkpointer_is_damage(int32_t code)
{
    return code == HD_E_CORRUPT || code == HD_E_NOTFOUND;
}

/* Position and schedule of the checkpoint's `state`, and the mesh that it was saved on. */
void hd__checkpointer_use_state(struct hd__train_checkpointer *k, const json_t *state, uint64_t step,
                                struct hd__train_progress *progress);
/* Reads a checkpoint into the host's arena; use_read then brings it to the device, or drops it where rc is an error. */
int32_t hd__checkpointer_read(struct hd__train_checkpointer *k, const char *name, const char *weights,
                              struct hd__train_progress *progress, struct hd_error *err);
int32_t hd__checkpointer_use_read(struct hd__train_checkpointer *k, int32_t rc, struct hd_error *err);
/* Each local-SGD replica has its own model: as many as were saved? */
int32_t hd__checkpointer_check_replicas(const struct hd__train_checkpointer *k, const char *name,
                                        const struct hd__ckpt *ckpt, struct hd_error *err);
/* The words for a damaged or incomplete checkpoint, which is kept: they name another. Returns rc, or HD_E_CORRUPT. */
int32_t hd__checkpointer_mention_others(const struct hd__train_checkpointer *k, const char *name, int32_t rc,
                                        const char *weights, struct hd_error *err);
/* State that this job's optimizer and strategies have no use for. */
void hd__checkpointer_say_discarded(const struct hd__train_checkpointer *k, const char *name,
                                    const struct hd__ckpt *ckpt, const struct hd__ckpt_train_state *state);
/* The keys that explain why tensors do not fit: "model." or "optimizer.". */
const char *hd__checkpointer_misfit(const struct hd__ckpt *ckpt, const struct hd__ckpt_train_state *state);
/* A path: its folder is the storage, "" for the job's own, and its last component the name. */
const char *hd__checkpointer_split_path(struct hd__job *job, const char *path, const char **name);

/* ---- start.c */

/* Words for a path that is no checkpoint: it holds some, lies in one, or is another's. */
const char *hd__checkpointer_no_checkpoint(struct hd__job *job, const char *path, const char *folder, const char *name);

/* ---- newest.c */

/* Loads the newest copy of checkpoint.peers, where it is newer than what is on disk. */
int32_t hd__checkpointer_load_copies(struct hd__train_checkpointer *k, struct hd__train_progress *progress, int *loaded,
                                     struct hd_error *err);
/* Tries one after the other, on all ranks at once; progress is unchanged where there is none. */
int32_t hd__checkpointer_load_newest(struct hd__train_checkpointer *k, struct hd__train_progress *progress,
                                     struct hd_error *err);

#endif
