/* runtime/comm/algorithm_counts: which algorithms the collectives of each group took, counted as they are started. One thread. */
#ifndef HD_RUNTIME_COMM_ALGORITHM_COUNTS_H
#define HD_RUNTIME_COMM_ALGORITHM_COUNTS_H

#include "core/base/base.h"

struct hd__ran_row {
    const char *group, *how; /* an algorithm's name, or "two levels" */
    uint32_t coll, reserved; /* HD_COLL_... */
    uint64_t calls;
};

struct hd__ran {
    struct hd__arena arena;
    HD__ARRAY(struct hd__ran_row) rows;
};

/* `how` lives as long as the program. NULL: nobody asked, nothing is counted. */
void hd__ran_count(struct hd__ran *ran, const char *group, uint32_t coll, const char *how);
void hd__ran_free(struct hd__ran *ran);

#endif
