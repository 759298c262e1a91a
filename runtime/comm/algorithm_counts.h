/* runtime/comm/algorithm_counts: calls by group, collective and algorithm, counted at the start of each. One thread. */
#ifndef HD_RUNTIME_COMM_ALGORITHM_COUNTS_H
#define HD_RUNTIME_COMM_ALGORITHM_COUNTS_H

#include "core/base/base.h"

struct hd__algorithm_count {
    const char *group, *algorithm; /* name of an algorithm, or "two levels" */
    uint32_t coll, reserved;       /* HD_COLL_... */
    uint64_t calls;
};

struct hd__algorithm_counts {
    struct hd__arena arena;
    HD__ARRAY(struct hd__algorithm_count) rows;
};

/* `algorithm`: static storage. `counts` NULL: nothing is counted. */
void hd__comm_count_algorithm(struct hd__algorithm_counts *counts, const char *group, uint32_t coll,
                              const char *algorithm);
void hd__comm_counts_free(struct hd__algorithm_counts *counts);

#endif
