/* service/data/packing: whole documents in sequences, by best-fit decreasing (Johnson, "Near-optimal bin packing
 * algorithms", 1973; Ding et al., arXiv 2404.10830): the longest first, each into the fullest sequence that has room
 * for it. The result is a function of the lengths alone. O(n log room), 8 bytes a piece when done and about 50
 * before. */
#ifndef HD_SERVICE_DATA_PACKING_H
#define HD_SERVICE_DATA_PACKING_H

#include "core/base/base.h"

/* A document, or a part of one that is longer than a sequence. */
struct hd__piece {
    uint64_t first; /* token */
    uint32_t length, reserved;
};

struct hd__packing {
    uint64_t *piece;  /* the first token of each, sequence by sequence */
    uint32_t *begins; /* [sequences + 1]: where a sequence's pieces begin */
    uint64_t sequences, pieces, tokens;
};

/* n pieces of 1 to `room` tokens, below 2^32 of them. The caller frees. */
void hd__pack(const struct hd__piece *pieces, uint32_t n, uint32_t room, struct hd__packing *packing);
void hd__packing_free(struct hd__packing *packing);

#endif
