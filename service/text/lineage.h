/* service/text/lineage: what files of tokens were made of by `heddle data split`, `shuffle` and `merge`, and whether
 * two have documents in common by it.
 *
 * HD__LINEAGE_KEY of PREFIX.meta.json: of each file that was tokenized its hd_file_ends, and for each split since then
 * " ORDER:FIRST-END", places that were taken of a file's documents in the order of a seed, in hex; commas between. */
#ifndef HD_SERVICE_TEXT_LINEAGE_H
#define HD_SERVICE_TEXT_LINEAGE_H

#include <jansson.h>

#include "service/text/indexed.h"

#define HD__LINEAGE_KEY "made_of"
#define HD__LINEAGE_INPUTS "inputs"

/* APART: parts of one split that have none in common. SPLITS: of two. PART: one has what the other was split off. */
enum hd__kin { HD__KIN_NONE, HD__KIN_APART, HD__KIN_SPLITS, HD__KIN_PART, HD__KIN_SAME };

/* Two values of the key, or the hd_file_ends of a file that has none: the nearest that any of theirs are. */
enum hd__kin hd__lineage_compare(const char *a, const char *b);
/* Adds a file, whose meta may be NULL: its documents at places [first, end) of the order of this seed; none: all. Its
 * path is added to `inputs`, HD__LINEAGE_INPUTS, which has the hd_file_ends of files that were read on the way. */
void hd__lineage_add(struct hd__text *made_of, json_t *inputs, const struct hd__indexed *file, const json_t *meta,
                     int64_t seed, uint64_t first, uint64_t end);

#endif
