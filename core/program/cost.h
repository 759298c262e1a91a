/* core/program/cost: what a step costs a rank, and the names of streams, memories and phases. */
#ifndef HD_CORE_PROGRAM_COST_H
#define HD_CORE_PROGRAM_COST_H

#include "core/program/program.h"

/* Costs of one step on one rank: all sections times their repeat (0: evaluation and the like), or one section. */
struct hd__cost_totals {
    double flops;
    double sent[1 << HD_AXIS_COUNT]; /* bytes, by mask of axes; sends count as pp */
    double copied[HD__MEM_COUNT];    /* bytes between the main memory and this one, both ways */
    int64_t instructions;
};
void hd__cost_totals(const struct hd_program *p, const char *section, struct hd__cost_totals *totals);

/* Bytes that it reads and writes: what is added to is read too, as are the states of an optimizer; of a table only the
 * rows that are looked up. */
double hd__instr_moved_bytes(const struct hd_program *p, const struct hd__instr *i);

/* "compute", "tp", "world", "pp>1" (sends to stage 1), "pp<1": names of streams. Returns out. */
const char *hd__stream_text(const struct hd__instr *i, char out[32]);
/* "main", "host", "file" */
const char *hd__memory_name(uint32_t memory);
const char *hd__phase_name(uint8_t phase);

#endif
