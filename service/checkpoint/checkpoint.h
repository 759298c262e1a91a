/* service/checkpoint/checkpoint: mesh-independent checkpoints over any store of kind ckpt.
 *
 *     step-00000100/index.json                      run, step, tensors, files, checksums, the caller's state
 *     step-00000100/GROUP-00001-of-00002.safetensors
 *
 * Every logical tensor is stored unsharded, in global row-major order, in the safetensors files of its group
 * ("model", "optim-exp_avg", ...). A rank passes runs: ranges of elements that are contiguous in the global tensor
 * and in its memory. Files do not depend on the mesh, so any mesh can load the checkpoint of any other, reading only
 * the blocks that hold its runs. (Per-rank state, in "strategy-ranks", is a tensor with a row per rank: only the
 * mesh that saved it can load it.)
 *
 * Each file is cut into blocks of 4 MiB with an XXH3 checksum each (64 bits, seed 0). A block that one rank writes
 * alone is hashed from memory as it is written; blocks that ranks share are read back, each by one rank. index.json
 * is written last and carries a checksum of itself. Loading verifies every block that it touches.
 *
 * Saving is collective. Ranks exchange their status after every phase, so that an error of one ends the save on all
 * of them, with its message; nothing is visible before the commit.
 *
 * Files: save.c, load.c, index.c (index.json), layout.c (tensors in files, runs in blocks), async_save.c. */
#ifndef HD_SERVICE_CHECKPOINT_CHECKPOINT_H
#define HD_SERVICE_CHECKPOINT_CHECKPOINT_H

#include <jansson.h>

#include "core/base/base.h"
#include "heddle/ckpt.h"
#include "heddle/program.h"

/* A logical tensor; the list is the same on all ranks. */
struct hd__ckpt_tensor {
    const char *group; /* "model", "optim-exp_avg": the group of files that holds it */
    const char *name;  /* unique in its group */
    uint32_t dtype;    /* HD_... */
    uint32_t ndim;
    int64_t shape[HD_MAX_DIMS];
};

uint64_t hd__ckpt_tensor_numel(const struct hd__ckpt_tensor *tensor); /* elements; UINT64_MAX: too many */

/* Elements [first, first + count) of a tensor, at data. For saving, the runs of all ranks cover every tensor exactly
 * once; for loading, any runs are allowed. */
struct hd__ckpt_run {
    uint32_t tensor; /* index into the list */
    uint32_t reserved;
    int64_t first, count;
    void *data;
};

/* Collective communication while saving. It is called from the thread that saves: with background saving that is a
 * separate thread, so it needs a transport that the training does not use at the same time. */
struct hd__ckpt_peers {
    int32_t rank, ranks; /* ranks 0 or 1: none of the collectives below is called */
    /* To the first rank: there `take` gets what each has given, of any length, in the order of ranks. Then all get its
     * `answer`, which `take` may change. */
    int32_t (*gather)(void *user, const void *mine, uint64_t bytes,
                      void (*take)(void *to, const void *part, uint64_t bytes), void *to, void *answer,
                      uint64_t answer_bytes, struct hd_error *err);
    /* all-gather: `all` gets ranks * bytes, in the order of ranks */
    int32_t (*all_gather)(void *user, const void *mine, uint64_t bytes, void *all, struct hd_error *err);
    /* all-reduce: `fold` adds the others' values to the first rank's, in the order of ranks; `mine` becomes the sum */
    int32_t (*all_reduce)(void *user, void *mine, uint64_t bytes, void (*fold)(void *sum, const void *other),
                          struct hd_error *err);
    /* A rank of them writes or reads so many from now on, and the others wait for it; 0: it is done. NULL: nobody
     * asks. */
    void (*busy)(void *user, uint64_t bytes);
    void (*saved)(void *user, uint64_t step); /* on each rank, once it is on disk; NULL: nobody asks */
    void *user;
};

struct hd__ckpt_store {
    const struct hd_ckpt_ops *ops;
    struct hd_ckpt *ckpt;
    struct hd__ckpt_peers peers;
    uint32_t threads; /* threads that assemble, hash and write, or read and verify; 0 means 2 */
    uint32_t reserved;
    uint64_t file_bytes; /* size above which a new file begins; 0 means 2 GiB */
};

struct hd__ckpt_save {
    uint64_t step;
    const struct hd__ckpt_tensor *tensors;
    const struct hd__ckpt_run *runs;
    uint32_t n_tensors, n_runs;
    json_t *state;       /* any JSON; rank 0's is stored; NULL: none */
    const char *version; /* heddle's version, for the record */
    const char *run;     /* the run's id; NULL: none */
    uint32_t keep;       /* remove older checkpoints of this run than the newest `keep`; 0: none */
    uint32_t keep_best;  /* but not those so many whose state has the lowest val_loss, */
    uint64_t keep_every; /* nor those of a multiple of so many steps; 0: none for that */
};

/* [collective] Saves and commits. */
int32_t hd__ckpt_save(const struct hd__ckpt_store *store, const struct hd__ckpt_save *save, struct hd_error *err);

/* Removes what a save with these `keep` fields of this `run` would, and counts it. Not collective. */
int32_t hd__ckpt_prune(const struct hd__ckpt_store *store, const struct hd__ckpt_save *policy, uint32_t *removed,
                       struct hd_error *err);

/* ---- saving in the background: one save at a time */
struct hd__ckpt_async_writer;
struct hd__ckpt_async_writer *hd__ckpt_async_writer_create(const struct hd__ckpt_store *store);
/* Copies the data of `runs` and the state, then returns; `tensors` are borrowed until the join. Waits for a save
 * that is under way first, and returns its error. */
int32_t hd__ckpt_async_writer_start(struct hd__ckpt_async_writer *saver, const struct hd__ckpt_save *save,
                                    struct hd_error *err);
int hd__ckpt_async_writer_busy(const struct hd__ckpt_async_writer *saver); /* NULL: no */
double hd__ckpt_async_writer_seconds(
    const struct hd__ckpt_async_writer *saver); /* that the last took; below 0: it failed */
/* Waits for the save that is under way, if any, and returns its result. */
int32_t hd__ckpt_async_writer_join(struct hd__ckpt_async_writer *saver, struct hd_error *err);
void hd__ckpt_async_writer_destroy(struct hd__ckpt_async_writer *saver); /* joins; NULL is fine */

/* ---- loading */

enum { HD__TORN_REASON = 512 };

/* "step-00000100" */
void hd__ckpt_step_name(uint64_t step, char name[32]);
/* The newest complete checkpoint: the largest step. HD_E_NOTFOUND where there is none. A newer folder without an index
 * is passed over with a warning (of rank 0). */
int32_t hd__ckpt_latest(const struct hd__ckpt_store *store, char name[32], struct hd_error *err);
/* All of them, oldest first. Free *steps. *torn (NULL is fine): how many folders without an index, which are no
 * checkpoints, follow in it, oldest first. */
int32_t hd__ckpt_list_steps(const struct hd__ckpt_store *store, uint64_t **steps, uint32_t *n, uint32_t *torn,
                            struct hd_error *err);

/* Why the index of a step's folder cannot be read, as " (PATH: Permission denied)"; "": there is none. */
const char *hd__ckpt_torn_reason(const struct hd__ckpt_store *store, uint64_t step, char text[HD__TORN_REASON]);

struct hd__ckpt; /* an open checkpoint: its index */
int32_t hd__ckpt_open(const struct hd__ckpt_store *store, const char *name, struct hd__ckpt **ckpt,
                      struct hd_error *err);
void hd__ckpt_close(struct hd__ckpt *ckpt); /* NULL is fine */

/* Contents of its index; borrowed from `ckpt`. */
uint64_t hd__ckpt_step(const struct hd__ckpt *ckpt);
const char *hd__ckpt_run_id(const struct hd__ckpt *ckpt); /* the run's id; "" in a checkpoint of a heddle without ids */
const json_t *hd__ckpt_state(const struct hd__ckpt *ckpt);
const struct hd__ckpt_tensor *hd__ckpt_tensors(const struct hd__ckpt *ckpt, uint32_t *n);
int64_t hd__ckpt_find_tensor(const struct hd__ckpt *ckpt, const char *group, const char *name); /* its index, or -1 */
uint64_t hd__ckpt_total_bytes(const struct hd__ckpt *ckpt); /* sum of the tensor files */

/* Checks that this is a checkpoint of that model: every tensor of the list is there with its shape and dtype, and
 * the groups of the list have no others. HD_E_MISMATCH names the first tensor. */
int32_t hd__ckpt_check_tensors(const struct hd__ckpt *ckpt, const struct hd__ckpt_tensor *tensors, uint32_t n,
                               struct hd_error *err);
/* Checks, then fills the runs. */
int32_t hd__ckpt_load(const struct hd__ckpt *ckpt, const struct hd__ckpt_tensor *tensors, uint32_t n_tensors,
                      const struct hd__ckpt_run *runs, uint32_t n_runs, struct hd_error *err);
/* Verifies every block of every file, and the index against the files' own headers. */
int32_t hd__ckpt_verify(const struct hd__ckpt *ckpt, struct hd_error *err);
/* Are all files there, with their sizes? */
int32_t hd__ckpt_check_files(const struct hd__ckpt *ckpt, struct hd_error *err);

#endif
