/* cli/bench/chart: an operation as an SVG: two panels, time and bus bandwidth over size, all axes logarithmic, a
 * line and a marker per transport. Points show their numbers as tooltips. */
#ifndef HD_CLI_BENCH_CHART_H
#define HD_CLI_BENCH_CHART_H

#include <jansson.h>
#include <stdio.h>

#include "cli/plot.h"

enum { HD__BENCH_CHART_WIDTH = 960, HD__BENCH_CHART_HEIGHT = 380, HD__BENCH_CHART_COMMS = HD__PLOT_SERIES };

/* Writes elements into a box of the size above, at `top`. 0: nothing to draw (a barrier has no size) */
int hd__bench_write_chart(FILE *file, const json_t *rows, const char *const *comm, int n, const char *op, int in_place,
                          int top);

#endif
