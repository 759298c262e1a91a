/* Text and JSON of a step program. */
#ifndef HD_ANALYSIS_PRINT_H
#define HD_ANALYSIS_PRINT_H

#include <jansson.h>

#include "core/program/cost.h"
#include "core/program/program.h"

struct hd__program_print_options {
    const char *section; /* one section; NULL: all */
    int32_t rank;        /* rank of the addresses; must be in the program's pipeline stage */
};

/* One instruction a line, with totals at the end. */
void hd__program_print(const struct hd_program *p, const struct hd__program_print_options *options,
                       struct hd__text *out);
/* The same as an object (docs/explain-json.md); the caller owns the reference. */
json_t *hd__program_print_json(const struct hd_program *p, const struct hd__program_print_options *options);

#endif
