/* service/report/diagnose: root cause: reads the ranks' dumps in a report and finds the first rank that did not do as
 * the others.
 *
 * Operations are numbered in their channel (runtime/comm/flight_recorder.h), so the dumps need no common clock:
 *   - two members whose operations of the same number differ: one diverged (a collective mismatch); the minority, where
 *     there is one
 *   - else a rank that waits, waits for the members that have not reached that number; following this from rank to rank
 *     ends at one that waits for nobody (a straggler: it computes, reads, swaps), at one that did not answer, or in a
 *     cycle */
#ifndef HD_SERVICE_REPORT_DIAGNOSE_H
#define HD_SERVICE_REPORT_DIAGNOSE_H

#include <jansson.h>

#include "core/base/base.h"

/* X(constant, name in the file): what is wrong */
#define HD__DIAGNOSES(X)                                                      \
    X(HD__DIAGNOSIS_NONE, "nothing found")                                    \
    X(HD__DIAGNOSIS_DEAD, "dead")         /* the rank died */                 \
    X(HD__DIAGNOSIS_SILENT, "silent")     /* others wait for it; no answer */ \
    X(HD__DIAGNOSIS_MISMATCH, "mismatch") /* its call is not the others' */   \
    X(HD__DIAGNOSIS_LATE, "late")         /* others wait for it; it lives */  \
    X(HD__DIAGNOSIS_CYCLE, "circle")      /* they wait for each other */      \
    X(HD__DIAGNOSIS_STUCK, "stuck")       /* all came, and it does not end */ \
    X(HD__DIAGNOSIS_FAILED, "failed")     /* it gave up for a reason of its own */

enum {
#define HD__DIAGNOSIS_ENUM(constant, name) constant,
    HD__DIAGNOSES(HD__DIAGNOSIS_ENUM)
#undef HD__DIAGNOSIS_ENUM
};

struct hd__report_diagnosis {
    int32_t kind;              /* HD__DIAGNOSIS_... */
    int32_t rank;              /* the first to blame; -1: nobody */
    double waited;             /* seconds that the wait took so far; of a circle the shortest */
    char summary[1024];        /* one sentence */
    int32_t op_rank, reserved; /* where the operation below is found: in this rank's part; -1: there is none */
    uint64_t op_number; /* of the operation that the others wait for, or that differs, in that rank's numbering */
};

/* State of a rank that never connected. */
#define HD__REPORT_NEVER_CAME "never came"

/* `report` has size, end and rank (docs/running.md); parts that lack fields are passed over. */
void hd__report_diagnose(const json_t *report, struct hd__report_diagnosis *diagnosis);
const char *hd__report_diagnosis_name(int32_t kind);

/* ---- shared with the table */

enum { HD__REPORT_RUNS = 8 }; /* whose sum the members of a group may be */

/* An operation of a part. Text belongs to the report. */
struct hd__report_op_record {
    int32_t rank;
    const char *channel; /* a key that is the same on all members */
    const char *name, *section, *dtype, *redop, *code;
    json_int_t number, seq, instr, count, bytes, calls, root, tag;
    int32_t p2p;                        /* between two ranks */
    double enqueued, waited, completed; /* seconds before the part was written; -1: not yet */
};
struct hd__report_op_records {
    HD__ARRAY(struct hd__report_op_record) list; /* by channel, seq, rank */
    struct hd__arena arena;
};
void hd__report_op_records_read(const json_t *report, struct hd__report_op_records *all);
void hd__report_op_records_free(struct hd__report_op_records *all);
int hd__report_op_records_differ(const struct hd__report_op_record *a, const struct hd__report_op_record *b);
/* "#49 reduce_scatter fp32 sum count 434560 (operation 12 of dp, 0-3)". Returns out. */
const char *hd__report_op_record_text(const struct hd__report_op_record *record, char out[256]);

#endif
