/* service/train/frequencies: data and weights that do not fit, by the frequencies of tokens: those of a sample of
 * labels, spread over the data. Files behind URLs are not read for it. */
#ifndef HD_SERVICE_TRAIN_FREQUENCIES_H
#define HD_SERVICE_TRAIN_FREQUENCIES_H

#include "service/train/data/batch_feed.h"

/* Warns where data.train repeats itself, and, where it is evaluated on them, of sets of HD__FEED_VAL that have other
 * tokens than data.train, or the same text. Both have been opened before. */
void hd__train_frequencies_check(const struct hd__compiled *compiled, int evaluates);

/* Warns where the loss of weights that were loaded is above the entropy of the frequencies: they know less of these
 * tokens than a table of their shares would. `when`: "step 1". */
void hd__train_frequencies_judge(const struct hd__compiled *compiled, const struct hd__train_feed *feed, double loss,
                                 const char *when);

#endif
