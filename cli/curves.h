/* cli/curves: rows of JSON as an SVG: two panels, a field of them in each over another, all axes logarithmic, a line
 * and a marker per series. Points show their numbers as tooltips. */
#ifndef HD_CLI_CURVES_H
#define HD_CLI_CURVES_H

#include <jansson.h>
#include <stdio.h>

#include "cli/plot.h"

enum { HD__CURVES_WIDTH = 960, HD__CURVES_HEIGHT = 380 };

struct hd__curves {
    const json_t *rows;
    const char *series; /* field whose values tell series apart: "comm" */
    const char *const *name;
    int n, is_bytes;        /* series; is x a size, K = 1024? */
    const char *x, *x_name; /* its field; rows where it is 0 are left out */
    struct {
        const char *key, *title, *unit, *better; /* better: "; lower is better" */
    } value[3];                                  /* the panels', and one more for the tooltips */
};

/* Writes elements into a box of the size above, at `top`. 0: nothing to draw (a barrier has no size) */
int hd__curves_write(FILE *file, const struct hd__curves *curves, int top);

#endif
