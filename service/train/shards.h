/* service/train/shards: the files of data.train, val and test: folders and patterns become their files, and by
 * data.on_error: skip those that cannot be read are skipped by all ranks alike, from the same sequence on whatever the
 * mesh. Checkpoints say which. */
#ifndef HD_SERVICE_TRAIN_SHARDS_H
#define HD_SERVICE_TRAIN_SHARDS_H

#include "service/train/session.h"

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

/* For checkpoints: the files with their tokens, and which are skipped. NULL: nothing can be skipped. */
json_t *hd__train_shards_json(const struct hd__train_session *s);
void hd__train_shards_load(struct hd__job *job, const json_t *files);

#endif
