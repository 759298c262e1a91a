/* service/train/batch_feed: the batches of a job for one rank: data/ with the rank's rows and positions. */
#ifndef HD_SERVICE_TRAIN_BATCH_FEED_H
#define HD_SERVICE_TRAIN_BATCH_FEED_H

#include "runtime/exec/select.h"
#include "service/data/data.h"

struct hd__train_feed;

/* Parts of the data: what is trained on, data.test, and the sets of data.val from HD__FEED_VAL on, or in their place
 * the held-out tail of data.val_fraction. UNPACKED: what is trained on as if data.documents were not `pack`, but
 * `mask`, to count its tokens. */
enum { HD__FEED_UNPACKED = -2, HD__FEED_TEST = -1, HD__FEED_TRAIN = 0, HD__FEED_VAL = 1 };
/* Sets to evaluate on, at least 1. */
static inline int32_t hd__train_feed_sets(const struct hd__job *job)
{
    return job->n_val_sets ? (int32_t)job->n_val_sets : 1;
}

/* `rank` decides which rows (dp, ep) and positions (cp) are read. HD_E_NOTFOUND where the job has no such part. The
 * message has the place of the data in the job file. Of the part to train on the job gets its steps (job.epochs). */
int32_t hd__train_feed_open(const struct hd__compiled *compiled, int32_t rank, int32_t part,
                            struct hd__train_feed **feed, struct hd_error *err);
/* Opens the data once, to refuse what is missing, too short or, where `tokens` is set, has an id outside the vocabulary
 * among the first data.check_tokens. */
int32_t hd__train_feed_check(const struct hd__compiled *compiled, int32_t part, int tokens, struct hd_error *err);
/* The same of all sets of HD__FEED_VAL. */
int32_t hd__train_feed_check_sets(const struct hd__compiled *compiled, int tokens, struct hd_error *err);
const struct hd__data *hd__train_feed_data(const struct hd__train_feed *feed);
void hd__train_feed_close(struct hd__train_feed *feed); /* NULL is fine */
/* The next micro-batch begins with sequence `sequence` of the endless stream, whose micro-batches follow from there
 * on. A step takes data.batch sequences. */
int32_t hd__train_feed_seek(struct hd__train_feed *feed, int64_t sequence, struct hd_error *err);
/* Sequence in this row of this rank's micro-batch, both counted from where the feed was set; -1: the place is empty. */
int64_t hd__train_feed_sequence(struct hd__train_feed *feed, int64_t micro, int64_t row);
/* Adds how many labels of the next step's micro-batches count, of those that this rank counts: the sum over all ranks
 * has each label once. 0 where all labels count (hd__compiled_counts_labels). Before the step's first micro-batch. */
int32_t hd__train_feed_count_labels(struct hd__train_feed *feed, int64_t *counted, struct hd_error *err);
/* Waits until a step's micro-batches are read; what reading them meets is returned. */
int32_t hd__train_feed_wait(struct hd__train_feed *feed, struct hd_error *err);
/* hd__data_skip, and the next micro-batch begins with sequence `sequence`. */
int32_t hd__train_feed_skip(struct hd__train_feed *feed, uint32_t file, int64_t sequence, struct hd_error *err);
/* Seconds that steps waited for reading, since the last call. */
double hd__train_feed_waited(struct hd__train_feed *feed);
/* The key that names the files, as data.val.NAME, and its place in the job file. */
const char *hd__train_feed_key(const struct hd__train_feed *feed);
const char *hd__train_feed_where(const struct hd__train_feed *feed);
/* ---- shards.c: the files of a path, and those that are skipped. Folders and patterns become their files. With
 * data.on_error: skip those that cannot be read are skipped by all ranks alike, from the same sequence on whatever the
 * mesh; checkpoints say which. */

struct hd__train_session;
struct hd__shards {
    HD__ARRAY(struct hd__data_source) files;
    HD__ARRAY(char *) paths; /* of these */
};

/* HD_E_NOTFOUND: a pattern that no file matches. */
int32_t hd__train_shards_find(const struct hd__job *job, const struct hd__sources *from, struct hd__shards *shards,
                              struct hd_error *err);
void hd__train_shards_free(struct hd__shards *shards);
/* hd__data_open of them. `skips`: one that cannot be opened is skipped, and the log says why. */
int32_t hd__train_shards_open(struct hd__job *job, struct hd__shards *shards, struct hd__data_config *config, int skips,
                              struct hd__data **data, struct hd_error *err);

/* hd__data_scan, which goes on without a file that it meets a failure in, where `skips`. */
int32_t hd__train_shards_scan(struct hd__job *job, struct hd__data *data, int skips, struct hd_error *err);

/* Once a checkpoint is loaded: all ranks skip what any of them cannot open, and those of the checkpoint. Opens the
 * session's train_feed again where that changes it. Collective. */
int32_t hd__train_shards_agree(struct hd__train_session *s, struct hd_error *err);
/* Before a step, which begins with this sequence: what it takes is read on all ranks. With data.on_error: skip a file
 * that one of them cannot read is skipped by all from here on. Collective. */
int32_t hd__train_shards_ready(struct hd__train_session *s, int64_t sequence, struct hd_error *err);

/* For checkpoints: the files with their tokens, and which are skipped. NULL: there is one, which cannot be skipped. */
json_t *hd__train_shards_json(const struct hd__train_session *s);
void hd__train_shards_load(struct hd__job *job, const json_t *files);

/* For hd__exec_config.feed: of each input, HD__INPUT_..., a micro-batch at a time. */
int32_t hd__train_feed_next(void *feed, int32_t input, int32_t *out, int64_t count, struct hd_error *err);

#endif
