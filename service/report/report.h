/* service/report/report: what all ranks were doing when a job ended by a fault, or while one is late: one file, one
 * verdict.
 *
 *     rank: its part, JSON (hd__report_rank_dump) -> server gathers (runtime/rendezvous/dump_collect.h) ->
 *     hd__report_on_dumps: puts the parts
 *     together, judges (service/report/diagnose.h), writes runs/NAME/report-TIME.json and says the cause on stderr
 *     `heddle debug` reads the file again (hd__report_load) and prints the operations side by side (hd__report_table)
 *
 * docs/running.md describes the file. */
#ifndef HD_SERVICE_REPORT_REPORT_H
#define HD_SERVICE_REPORT_REPORT_H

#include <jansson.h>

#include "runtime/comm/flight_recorder.h"
#include "runtime/rendezvous/dump_collect.h"

enum {
    HD__REPORT_OPS_SHOWN = 20
}; /* operations of each rank that are shown to people; the file has all that were kept */

/* A rank's dump: what it was doing, as JSON of less than `room` bytes; the oldest operations are left out to fit. `at`
 * is hd__exec_position's text. Returns the bytes. */
size_t hd__report_rank_dump(const struct hd__flight *flight, int32_t rank, const char *at, double call, char *out,
                            size_t room);

/* For hd__server_options; `user` is a struct hd__reporter. A look names late ranks in the log, and ends the job
 * where two ranks do not do the same. */
hd__rank_dumps_fn hd__report_on_dumps;
/* The same for a rank whose rendezvous is gone: its own part alone. */
void hd__report_write_local(const struct hd__reporter *reporter, int32_t rank, int32_t size, const char *dump,
                            int32_t lost, const char *cause);

/* Reads reports; several of one job, each with some ranks' parts, become one. Caller owns *report. */
int32_t hd__report_load(const char *const *files, size_t n, json_t **report, struct hd_error *err);
/* The verdict in words, then what each rank was at, a line each. */
void hd__report_summary(const json_t *report, struct hd__text *out);
/* The last operations of all ranks side by side, one row a number in its channel; the first difference is marked. */
void hd__report_table(const json_t *report, struct hd__text *out);

#endif
