/* service/train/batch_feed: the batches of a job for one rank: data/ with the rank's rows and positions. */
#ifndef HD_SERVICE_TRAIN_BATCH_FEED_H
#define HD_SERVICE_TRAIN_BATCH_FEED_H

#include "runtime/exec/select.h"
#include "service/data/data.h"

struct hd__train_feed;

/* held_out: the part to evaluate on. `rank` decides which rows (dp, ep) and positions (cp) are read. HD_E_NOTFOUND with
 * held_out when the job has no such part. The message has the place of the data in the job file. */
int32_t hd__train_feed_open(const struct hd__compiled *compiled, int32_t rank, int held_out,
                            struct hd__train_feed **feed, struct hd_error *err);
/* Opens the data once, to refuse what is missing, too short or, where `tokens` is set, has an id outside the vocabulary
 * among the first data.check_tokens. */
int32_t hd__train_feed_check(const struct hd__compiled *compiled, int held_out, int tokens, struct hd_error *err);
const struct hd__data *hd__train_feed_data(const struct hd__train_feed *feed);
void hd__train_feed_close(struct hd__train_feed *feed); /* NULL is fine */
/* The next micro-batch begins with sequence `sequence` of the endless stream, whose micro-batches follow from there
 * on. A step takes data.batch sequences. */
int32_t hd__train_feed_seek(struct hd__train_feed *feed, int64_t sequence, struct hd_error *err);
/* Adds the labels of a step from sequence `sequence` on, of all ranks, that count: all of them where the source has no
 * labels of its own. Reads them. */
int32_t hd__train_feed_count_labels(const struct hd__train_feed *feed, int64_t sequence, int64_t *counted,
                                    struct hd_error *err);
/* Tokens of so many steps from sequence `sequence` on over the labels of them that count: a factor that makes of the
 * mean over tokens one over labels. HD_E_INVALID where none counts. */
int32_t hd__train_feed_label_factor(const struct hd__train_feed *feed, int64_t sequence, int64_t steps, int64_t counted,
                                    double *factor, struct hd_error *err);
/* For hd__exec_config.feed: of each input, HD__INPUT_..., a micro-batch at a time. */
int32_t hd__train_feed_next(void *feed, int32_t input, int32_t *out, int64_t count, struct hd_error *err);

#endif
