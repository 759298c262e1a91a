/* core/program/value_number: a value number for every tensor, by one walk of the program in order. See
 * value_number.c. */
#ifndef HD_CORE_PROGRAM_VALUE_NUMBER_H
#define HD_CORE_PROGRAM_VALUE_NUMBER_H

#include "core/program/program.h"

struct hd__value_numbers {
    const struct hd_program *p;
    uint64_t *value;        /* by tensor */
    uint64_t *pinned;       /* by tensor: of weights and states of flats, which updates do not renumber; 0: of others */
    uint64_t *buffer_value; /* by buffer: the value written there last */
    int64_t *buffer_offset; /* by buffer: at which element of it that begins */
    uint32_t *flat_of;      /* by parameter: index + 1 */
    uint64_t sends_value;   /* of this section: the sum over its messages */
};

/* Initial values: weights and states of flats have theirs. Caller destroys. */
struct hd__value_numbers *hd__value_numbers_create(const struct hd_program *p);
void hd__value_numbers_destroy(struct hd__value_numbers *m);
/* Walks one instruction: numbers its outputs. contribution: the number that each gets, or that is added to it. */
void hd__value_number_outputs(struct hd__value_numbers *m, const struct hd__instr *i,
                              uint64_t contribution[HD_MAX_OUT]);
/* Is input n a parameter? */
int hd__value_number_reads_weight(const struct hd__value_numbers *m, const struct hd__instr *i, uint32_t n);
/* The number of flat `flat`: part 0: its weights, in whatever precision; 1 and up: its states. */
uint64_t hd__value_number_of_flat(uint32_t flat, uint32_t part);

/* Factor of the values of a micro-batch's tensors, an odd number; 1 for -1, the template and what is repeated. */
uint64_t hd__value_number_micro(int32_t micro);
/* A message, which a section adds to its sends_value. */
uint64_t hd__value_number_message(uint16_t tag, uint64_t value);

/* Writes the template's numbers into it, as placement left it: before recomputation, ring attention and pipelines; and
 * into the sections of the lowered program how often they are added up. */
void hd__value_numbers_promise(struct hd_program *p);
void hd__value_numbers_annotate(struct hd_program *p);

/* Rounds of a section that verify walks in a step: two if it repeats, so that a round starts from what one left
 * behind. */
static inline int32_t hd__section_walks(const struct hd__code_section *s)
{
    return s->repeat > 1 ? 2 : 1;
}

#endif
