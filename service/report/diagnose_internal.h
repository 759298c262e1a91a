/* service/report/diagnose_internal: what the judge works on, for the files that make it up:
 *   diagnose.c     collective mismatches, dead ranks, the order of the checks
 *   wait_graph.c   who waits for whom
 * Everything is looked up by rank or in the sorted operations: a report of thousands of ranks is judged in one walk. */
#ifndef HD_SERVICE_REPORT_DIAGNOSE_INTERNAL_H
#define HD_SERVICE_REPORT_DIAGNOSE_INTERNAL_H

#include "service/report/diagnose.h"

struct hd__report_context {
    const json_t *report, *end;
    struct hd__report_op_records ops;
    const json_t **dump;                           /* by rank; NULL: it has none */
    const struct hd__report_op_record **waits_for; /* by rank: what it waits for; NULL: it does not, or says nothing */
    int32_t size;
    struct hd__report_diagnosis *diagnosis;
};

static inline int hd__report_rank_answered(const struct hd__report_context *c, int32_t rank)
{
    const char *state = json_string_value(json_object_get(c->dump[rank], "state"));
    return state && !strcmp(state, "answered");
}

/* Is the rank one of the channel's? Of messages only the two ends are. */
int hd__report_is_member(const struct hd__report_context *c, const struct hd__report_op_record *op, int32_t rank);
void hd__report_attribute(struct hd__report_context *c, int32_t kind, int32_t rank,
                          const struct hd__report_op_record *what);
/* The wait that lasts longest is followed to its end. 0: nobody waits. */
int hd__report_walk_wait_graph(struct hd__report_context *c);

#endif
