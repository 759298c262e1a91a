#include "runtime/comm/algorithm_counts.h"

#include <stdlib.h>

void hd__comm_count_algorithm(struct hd__algorithm_counts *counts, const char *group, uint32_t coll,
                              const char *algorithm)
{
    struct hd__algorithm_count row = {.algorithm = algorithm, .coll = coll, .calls = 1};
    if (!counts)
        return;
    for (uint32_t i = 0; i < counts->rows.count; i++) {
        struct hd__algorithm_count *r = &counts->rows.at[i];
        if (r->coll == coll && r->algorithm == algorithm && !strcmp(r->group, group)) {
            r->calls++;
            return;
        }
    }
    row.group = hd__arena_strdup(&counts->arena, group);
    hd__push(&counts->rows, row);
}

void hd__comm_counts_free(struct hd__algorithm_counts *counts)
{
    hd__free_array(&counts->rows);
    hd__arena_free(&counts->arena);
}
