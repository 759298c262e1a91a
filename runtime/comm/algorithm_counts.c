#include "runtime/comm/algorithm_counts.h"

#include <stdlib.h>

void hd__ran_count(struct hd__ran *ran, const char *group, uint32_t coll, const char *how)
{
    struct hd__ran_row row = {.how = how, .coll = coll, .calls = 1};
    if (!ran)
        return;
    for (uint32_t i = 0; i < ran->rows.count; i++) {
        struct hd__ran_row *r = &ran->rows.at[i];
        if (r->coll == coll && r->how == how && !strcmp(r->group, group)) {
            r->calls++;
            return;
        }
    }
    row.group = hd__arena_strdup(&ran->arena, group);
    hd__push(&ran->rows, row);
}

void hd__ran_free(struct hd__ran *ran)
{
    hd__free_array(&ran->rows);
    hd__arena_free(&ran->arena);
}
