/* service/report/diagnose_internal: what the judge works on, for the files that make it up:
 *   diagnose.c     wrong turns, deaths, the whole
 *   wait_graph.c   who waits for whom
 * Everything is looked up by rank or in the sorted operations: a report of thousands of ranks is judged in one walk. */
#ifndef HD_SERVICE_REPORT_DIAGNOSE_INTERNAL_H
#define HD_SERVICE_REPORT_DIAGNOSE_INTERNAL_H

#include "service/report/diagnose.h"

struct hd__court {
    const json_t *report, *end;
    struct hd__seen_all seen;
    const json_t **part;          /* by rank; NULL: it has none */
    const struct hd__seen **wait; /* by rank: what it waits for; NULL: it does not, or says nothing */
    int32_t size;
    struct hd__verdict *v;
};

static inline int hd__court_answered(const struct hd__court *c, int32_t rank)
{
    const char *state = json_string_value(json_object_get(c->part[rank], "state"));
    return state && !strcmp(state, "answered");
}

/* Is the rank one of the channel's? Of messages only the two ends are. */
int hd__court_takes_part(const struct hd__seen *op, int32_t rank);
void hd__court_blame(struct hd__court *c, int32_t kind, int32_t rank, const struct hd__seen *what);
/* The wait that lasts longest is followed to its end. 0: nobody waits. */
int hd__court_waits(struct hd__court *c);

#endif
