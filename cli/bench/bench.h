/* cli/bench: declarations shared by the parts of `heddle bench`. */
#ifndef HD_CLI_BENCH_BENCH_H
#define HD_CLI_BENCH_BENCH_H

#include <jansson.h>

#include "cli/bench/ranks.h"
#include "core/plugin/plugin.h"
#include "service/launch/launch.h"
#include "service/report/json_fields.h"

/* A component that works here, and its settings by OPTION=VALUE words; the others get defaults. */
int32_t hd__bench_find(struct hd__plugins *plugins, uint32_t kind, const char *name, const char *const *set, int sets,
                       struct hd__arena *arena, const struct hd__component **c, void **settings, struct hd_error *err);
/* "PROCESSOR, 8 cores, 64 GiB, Linux 6.1" */
void hd__bench_machine_text(char out[256]);
/* Says where these are more than `cores`. `who`: "--ranks" */
void hd__bench_warn_cores(const char *who, int64_t ranks, int32_t cores);

/* ---- this process as a rank of another launcher (external_ranks.c) */
struct hd__bench_launch {
    struct hd__launch_env env;
    struct hd__bench_external external; /* store: NULL before the rendezvous */
    struct hd__server *server;          /* in the rank that serves the rendezvous, else NULL */
};
/* Detects a launcher; sets bench->among and bench->ranks if there is one. `asked`: --ranks, 0 without it. */
int32_t hd__bench_detect_launch(struct hd__bench_launch *m, struct hd__bench *bench, int32_t asked, int overlap,
                                struct hd_error *err);
int32_t hd__bench_connect(struct hd__bench_launch *m, const struct hd__bench *bench, struct hd_error *err);
/* Waits at most this long for the others in the rendezvous. */
void hd__bench_disconnect(struct hd__bench_launch *m, double timeout);

/* ---- rows are those of --json; `comm` is a transport as written on the command line (table.c) */

/* Table of one transport, a line printed per size as it is measured. */
struct hd__bench_table {
    const struct hd__bench *bench;
    uint32_t op; /* the newest row */
    int started;
};
void hd__bench_print_row(struct hd__bench_table *table, uint32_t op, const json_t *row);
/* Table of several transports, after all were measured. */
void hd__bench_print_comparison(const struct hd__bench *bench, const char *const *comm, int n, const json_t *rows);
/* NULL: none */
const json_t *hd__bench_find_row(const json_t *rows, const char *comm, const char *op, int in_place, uint64_t bytes);
/* Index of the fastest at this size among those without wrong results; -1: none. */
int hd__bench_fastest(const json_t *rows, const char *const *comm, int n, const char *op, int in_place, uint64_t bytes);

/* heddle bench --html FILE: a page with charts of each operation and the numbers. */
int32_t hd__bench_write_html(const char *path, const char *title, const char *const *words, const json_t *rows,
                             struct hd_error *err);
/* heddle bench --tune FILE: the best algorithm by size for each operation asked for. Returns an exit code. */
int hd__bench_tune(struct hd__bench *bench, const char *path, int any_order);
/* heddle bench --svg FILE: the charts alone, a picture. */
int32_t hd__bench_write_svg(const char *path, const char *title, const json_t *rows, struct hd_error *err);
/* heddle bench --peak: the peak rates of a device. Returns an exit code. */
int hd__bench_peak(struct hd__plugins *plugins, const char *device, const char *const *set, int sets, uint64_t bytes,
                   int json);
/* heddle bench --train JOB: steps of a job (train.c). Returns an exit code. */
int hd__bench_train(int argc, char **argv);

#endif
