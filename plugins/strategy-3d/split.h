/* Which blocks make which chunk: runs of layers, in the model's order. What comes before the first layer (embeddings)
 * belongs to the first chunk, what comes after the last (norm, head) to the last one. */
#ifndef HD_STRATEGY_3D_SPLIT_H
#define HD_STRATEGY_3D_SPLIT_H

#include <stdint.h>

#include "heddle/types.h"

/* Layers as evenly as they go; where they do not divide, earlier chunks have one more. */
void pp_split_evenly(int32_t layers, int32_t chunks, int32_t *chunk_of);

/* Minimises the heaviest chunk, then the sum of squares, so that the rest is even too. weight: of each layer; before
 * and after: of what the first and the last chunk have besides. HD_E_NOMEM is the only fault. */
int32_t pp_split_balanced(const double *weight, int32_t layers, double before, double after, int32_t chunks,
                          int32_t *chunk_of, struct hd_error *err);

/* weight: what a file of measured times says of each block (split_file.c). Errors name the file and its line. */
int32_t pp_split_read(const char *path, const char *const *name, int32_t blocks, double *weight, struct hd_error *err);

/* By hand: how many layers each chunk has. */
int32_t pp_split_by_hand(const double *counts, int32_t n_counts, int32_t layers, int32_t chunks, int32_t *chunk_of,
                         struct hd_error *err);

#endif
