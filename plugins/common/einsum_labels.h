/* An einsum's labels, for devices that make it of matrix products.
 *
 * c (+)= a b with labelled dims. Each label falls in one group: batch (in a, b and c), m (a and c), n (b and c) or k (a
 * and b). Neighbouring labels that lie next to each other in every operand that has them are one: y[bskgd] = x[bsh]
 * w[kgdh] has m = bs, n = kgd, k = h. */
#ifndef HD_COMMON_EINSUM_LABELS_H
#define HD_COMMON_EINSUM_LABELS_H

#include "heddle/program.h"

enum { LABELS_A, LABELS_B, LABELS_C, LABELS_OPERANDS };
enum { LABEL_IN_A = 1, LABEL_IN_B = 2, LABEL_IN_C = 4 };
enum {
    LABEL_BATCH = LABEL_IN_A | LABEL_IN_B | LABEL_IN_C,
    LABEL_M = LABEL_IN_A | LABEL_IN_C,
    LABEL_N = LABEL_IN_B | LABEL_IN_C,
    LABEL_K = LABEL_IN_A | LABEL_IN_B
};
enum { LABELS_MOST = 3 * HD_MAX_DIMS };

/* A label, or several fused: where it occurs, its extent, its stride in each operand (elements; 0 where absent). */
struct label {
    uint32_t where;
    uint32_t id;
    int64_t extent;
    int64_t stride[LABELS_OPERANDS];
};

struct labels {
    struct label at[LABELS_MOST];
    int64_t count;
};

/* A group without labels: extent 1. */
extern const struct label label_none;

/* Enters the dims of a, b or c (LABELS_A ...); those of extent 1 are left out. 0 if a label occurs twice in an operand
 * or with different extents. */
int labels_enter(struct labels *l, const struct hd_operand *o, int which);
/* Makes one of labels that lie next to each other wherever they occur. */
void labels_fuse(struct labels *l);
/* Is each label in one of the four groups? Sums over a dim of one operand alone are nobody's product. */
int labels_valid(const struct labels *l);
int64_t labels_count(const struct labels *l, uint32_t where);
/* label_none beyond the last. */
const struct label *labels_member(const struct labels *l, uint32_t where, int64_t index);

/* A dense matrix needs both strides: what a missing label takes beside the other. */
void label_strides(const struct label *row, const struct label *col, int which, int64_t *rs, int64_t *cs);

#endif
