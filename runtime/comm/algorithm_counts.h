/* runtime/comm/algorithm_counts: which algorithms the collectives of each group took, counted as they are started. One thread. */
#ifndef HD_RUNTIME_COMM_ALGORITHM_COUNTS_H
#define HD_RUNTIME_COMM_ALGORITHM_COUNTS_H

#include "core/base/base.h"

struct hd__algorithm_count {
    const char *group, *algorithm; /* an algorithm's name, or "two levels" */
    uint32_t coll, reserved;       /* HD_COLL_... */
    uint64_t calls;
};

struct hd__algorithm_counts {
    struct hd__arena arena;
    HD__ARRAY(struct hd__algorithm_count) rows;
};

/* `how` lives as long as the program. NULL: nobody asked, nothing is counted. */
void hd__comm_count_algorithm(struct hd__algorithm_counts *counts, const char *group, uint32_t coll,
                              const char *algorithm);
void hd__comm_counts_free(struct hd__algorithm_counts *counts);

#endif
