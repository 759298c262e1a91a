/* cli/bench: what the parts of `heddle bench` share. */
#ifndef HD_CLI_BENCH_H
#define HD_CLI_BENCH_H

#include <jansson.h>

#include "core/plugin/plugin.h"

/* OPTION=VALUE words into a component's settings; the rest gets its defaults. */
int32_t hd__bench_settings(const struct hd__component *component, const char *const *set, int sets, void *settings,
                           struct hd__arena *arena, struct hd_error *err);
/* heddle bench --html FILE: the rows of --json as a page with a chart an operation. */
int32_t hd__bench_html(const char *path, const char *title, const json_t *rows, struct hd_error *err);
/* heddle bench --peak: what a device gives at best. Returns an exit code. */
int hd__bench_peak(struct hd__plugins *plugins, const char *device, const char *const *set, int sets, uint64_t bytes, int json);

#endif
