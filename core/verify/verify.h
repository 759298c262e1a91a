/* core/verify: the proofs within a rank, and what they share: the position of a diagnostic, and the list of
 * diagnostics. */
#ifndef HD_CORE_VERIFY_VERIFY_H
#define HD_CORE_VERIFY_VERIFY_H

#include "core/program/access.h"
#include "core/program/ops.h"
#include "core/program/value_number.h"

/* verify.c: rules within one rank. The first diagnostics, one a line, go to err->message. */
int32_t hd__verify(struct hd_program *p, struct hd_error *err);
/* staleness.c: may full weights be older than their master weights between steps? `restore` then runs before an
 * evaluation. */
int hd__verify_gather_deferred(const struct hd_program *p);

struct hd__verify_diags {
    const struct hd_program *p;
    const struct hd__code_section *section; /* where the walk is */
    uint32_t position;
    uint64_t contribution[HD_MAX_OUT]; /* value numbers that this instruction makes or adds: value_numbers.c */
    const uint32_t *terms; /* by tensor: terms added to it so far in this section, with this instruction's */
    uint32_t count;
    struct hd__text text;
};

/* Adds "section #n op tensor: ..." unless enough were found; while there is no section, a fault of the program as a
 * whole, which is not counted. */
void hd__verify_diag(struct hd__verify_diags *f, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* memory_overlap.c: no two temporaries of a section that are live at the same time share memory. By buffer: `carried`:
 * it lives for a step and an earlier section of it made it; those of this section are added. */
void hd__verify_memory_overlap(struct hd__verify_diags *f, const struct hd__code_section *section,
                               const uint32_t *position, uint8_t *carried);

/* Persistent buffers of each memory share no byte and lie inside its arena; arenas share none. */
void hd__verify_memory_arenas(struct hd__verify_diags *f);

/* An analysis is walked through a program's sections, in the order of a step; its state is its own. Any slot but visit
 * may be NULL. */
struct hd__verify_analysis {
    void *(*create)(const struct hd_program *p);
    void (*destroy)(void *state);
    void (*section_begin)(void *state, struct hd__verify_diags *f); /* f->section */
    void (*visit)(void *state, struct hd__verify_diags *f, const struct hd__instr *i);
    void (*section_end)(void *state, struct hd__verify_diags *f);
    void (*finish)(void *state, struct hd__verify_diags *f); /* after all sections */
};

/* every instruction computes what the lowered model says, and sends it to other stages. The first analysis: fills
 * f->contribution */
extern const struct hd__verify_analysis hd__verify_value_numbers;
/* every gradient is summed exactly once over all axes that it is partial on: reports sums that are done twice, mixed
 * up, or missing when the optimizer reads */
extern const struct hd__verify_analysis hd__verify_grad_reduce;
/* loss and norm are summed once, and parameters are updated once */
extern const struct hd__verify_analysis hd__verify_once;
/* full weights are as new as their master weights */
extern const struct hd__verify_analysis hd__verify_staleness;
/* replicas are synchronized, by the mean of what they have trained */
extern const struct hd__verify_analysis hd__verify_replica_sync;
/* keys, values and gradients in a ring are used at their ring offset */
extern const struct hd__verify_analysis hd__verify_ring_offset;
/* the placements of an instruction's outputs follow from those of its inputs */
extern const struct hd__verify_analysis hd__verify_placement;
/* everything has the dtype that its op and `precision` say, and is read in the one that it was written in */
extern const struct hd__verify_analysis hd__verify_dtypes;
/* pieces, members and positions of one rank are those that placements say */
extern const struct hd__verify_analysis hd__verify_rank_view;
/* factors of the loss, the loss scale, and the attributes of updates */
extern const struct hd__verify_analysis hd__verify_attributes;

/* Does it change parameters? */
static inline int hd__is_update(const struct hd__instr *i)
{
    return hd__op(i->op)->class == HD__CLASS_UPDATE && i->op != HD_OP_SUMSQ;
}

/* staleness.c: does a, which is no shard view, cover all of b? */
int hd__verify_covers(const struct hd_program *p, hd_tensor a, hd_tensor b);

#endif
