/* A step program for people and for other programs. */
#ifndef HD_ANALYSIS_PRINT_H
#define HD_ANALYSIS_PRINT_H

#include <jansson.h>

#include "core/program/program.h"

struct hd__print_options {
    const char *section; /* only this one; NULL: all */
    int32_t rank;        /* whose addresses are shown; must be of the program's pipeline stage */
};

/* One instruction a line, with totals at the end. */
void hd__print(const struct hd_program *p, const struct hd__print_options *options, struct hd__text *out);
/* The same as an object (docs/explain-json.md); the caller owns the reference. */
json_t *hd__print_json(const struct hd_program *p, const struct hd__print_options *options);

/* What one step costs a rank: all sections by their repeat (0: evaluation and the like), or one section. */
struct hd__totals {
    double flops;
    double sent[1 << HD_AXIS_COUNT]; /* bytes, by mask of axes; sends count as pp */
    double copied[HD__MEM_COUNT];    /* bytes between the main memory and this one, both ways */
    int64_t instructions;
};
void hd__totals(const struct hd_program *p, const char *section, struct hd__totals *totals);

/* "compute", "tp", "world", "pp>1" (sends to stage 1), "pp<1": names of streams. Returns out. */
const char *hd__stream_text(const struct hd__instr *i, char out[32]);
/* "main", "host", "file" */
const char *hd__memory_name(uint32_t memory);
const char *hd__phase_name(uint8_t phase);

#endif
