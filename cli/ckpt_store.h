/* cli/ckpt_store: what `heddle ckpt` does with checkpoints beyond looking at one: those of a folder without its job,
 * differences of two, and removal. */
#ifndef HD_CLI_CKPT_STORE_H
#define HD_CLI_CKPT_STORE_H

#include "cli/job.h"
#include "service/checkpoint/checkpoint.h"

/* Checkpoints of a folder of this machine, as ckpt-posix stores them, or of an s3://BUCKET/PREFIX. */
struct hd__cli_store {
    struct hd__plugins *plugins;
    struct hd__arena arena;
    struct hd__ckpt_store store;
    const char *dir; /* the folder, or the one named checkpoints in it (a run's) */
};

int32_t hd__cli_store_open(const char *folder, struct hd__cli_store *out, struct hd_error *err);
void hd__cli_store_close(struct hd__cli_store *s); /* {0} is fine */

/* Prints what differs between two checkpoints that are named by their paths. *differ: tensors do. */
int32_t hd__cli_store_diff(const char *a, const char *b, int *differ, struct hd_error *err);
/* Removes one, or those that the job's checkpoint.keep lets go. Refused while a run has the folder. */
int32_t hd__cli_store_remove(const struct hd__ckpt_store *store, const char *dir, const char *name,
                             struct hd_error *err);
int32_t hd__cli_store_prune(const struct hd__ckpt_store *store, const struct hd__job *job, struct hd_error *err);
/* "2026-11-24 18:00:00 UTC  val_loss 1.2345  dp_shard 2", of those that it has. */
void hd__cli_store_describe(const json_t *state, struct hd__text *out);

#endif
