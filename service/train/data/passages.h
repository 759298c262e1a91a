/* service/train/passages: text that is there twice, by passages of 64 tokens at places that their own hash chooses
 * (Schleimer, Wilkerson, Aiken: Winnowing, SIGMOD 2003), so that documents are recognised wherever they begin. */
#ifndef HD_SERVICE_TRAIN_PASSAGES_H
#define HD_SERVICE_TRAIN_PASSAGES_H

#include "service/data/data.h"

struct hd__passages {
    HD__ARRAY(uint64_t) hashes; /* sorted; each once */
    uint64_t repeated;          /* of these, those that occur more than once */
};

/* The passages of the first `tokens` of the data that 16 tokens or more differ in. `single`: without those that are
 * repeated, as prompts are that documents have in common. Reading stops at a failure. */
struct hd__passages hd__passages_of(const struct hd__data *data, int64_t seq_len, uint64_t tokens, int single);
void hd__passages_free(struct hd__passages *passages);
/* How many of `a` are in `b`. */
uint64_t hd__passages_common(const struct hd__passages *a, const struct hd__passages *b);

#endif
