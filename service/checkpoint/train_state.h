/* service/checkpoint/train_state: training state as named global tensors, and this rank's runs of them.
 *
 * Tensors: every parameter in group "model", in the master dtype; then every optimizer state under the same names in
 * group "optim-STATE". With local SGD, group "model" is the global copy, each replica's own parameters and states
 * are in "replicaN-model" and "replicaN-optim-STATE", and the strategy's state in "strategy-NAME". The list is the
 * same on all ranks, and on any mesh with the same number of replicas. Runs point into the arena. */
#ifndef HD_SERVICE_CHECKPOINT_TRAIN_STATE_H
#define HD_SERVICE_CHECKPOINT_TRAIN_STATE_H

#include "core/program/program.h"
#include "service/checkpoint/checkpoint.h"

struct hd__ckpt_train_state {
    HD__ARRAY(struct hd__ckpt_tensor) tensors;
    HD__ARRAY(struct hd__ckpt_run) runs;
    struct hd__arena arena;
};

/* The training whose state is collected, on one rank. */
struct hd__ckpt_training {
    const struct hd_program *program;
    struct hd_program *const *stages; /* programs of all pipeline stages */
    const int32_t *coord;
    void *arena; /* host mirror */
    const char *const *state_names;
    int32_t n_stages;
    uint32_t reserved;
};

/* Replaces the contents of `state` (initially {0}). `owned`: only runs that this rank stores (others hold copies);
 * 0: all that it needs. `weights`: only the weights of this group, "model" or "strategy-NAME", to use the model;
 * NULL: all. */
void hd__ckpt_collect_train_state(struct hd__ckpt_train_state *state, const struct hd__ckpt_training *from, int owned,
                                  const char *weights);
/* Adds per-rank state: a strategy's error feedback. Group
 * "strategy-ranks", one tensor for each of every stage's, with a row per rank of the stage: loadable on the same
 * mesh only. The list is the same on all ranks, the run is this rank's row. */
void hd__ckpt_collect_rank_state(struct hd__ckpt_train_state *state, const struct hd__ckpt_training *from);
void hd__ckpt_train_state_free(struct hd__ckpt_train_state *state);

#endif
