/* Shared by the analyses of this folder: where a fault is, and the list of faults. */
#ifndef HD_CORE_VERIFY_VERIFY_H
#define HD_CORE_VERIFY_VERIFY_H

#include "core/program/access.h"
#include "core/program/ops.h"
#include "core/program/value_number.h"

/* verify.c: rules within one rank. The first faults, one a line, go to err->message. */
int32_t hd__verify(struct hd_program *p, struct hd_error *err);
/* staleness.c: between steps what the model reads may be older than the master weights: then `restore` runs before
 * an evaluation. */
int hd__verify_gather_deferred(const struct hd_program *p);

struct hd__verify_diags {
    const struct hd_program *p;
    const struct hd__code_section *section; /* where the walk is */
    uint32_t position;
    uint64_t contribution[HD_MAX_OUT]; /* the values that this instruction makes or adds: value_numbers.c */
    const uint32_t *terms; /* by tensor: how many it has been made of in this section, this instruction's included */
    uint32_t count;
    struct hd__text text;
};

/* Adds "section #n op tensor: ..." unless enough were found; while there is no section, a fault of the program as a
 * whole, which is not counted. */
void hd__verify_diag(struct hd__verify_diags *f, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* memory_overlap.c: no two temporaries of a section that are alive at once share memory. By buffer: `carried`, which
 * lives for a step and was made by an earlier section of it; those of this one join. */
void hd__verify_memory_overlap(struct hd__verify_diags *f, const struct hd__code_section *section,
                               const uint32_t *position, uint8_t *carried);

/* Persistent buffers of each memory share no byte and lie inside its arena; arenas share none. */
void hd__verify_memory_arenas(struct hd__verify_diags *f);

/* A proof is walked through a program's sections, in the order of a step; what it knows lies in a state of its own.
 * Any slot but step may be NULL. */
struct hd__verify_analysis {
    void *(*create)(const struct hd_program *p);
    void (*destroy)(void *state);
    void (*section_begin)(void *state, struct hd__verify_diags *f); /* f->section */
    void (*visit)(void *state, struct hd__verify_diags *f, const struct hd__instr *i);
    void (*section_end)(void *state, struct hd__verify_diags *f);
    void (*finish)(void *state, struct hd__verify_diags *f); /* behind all sections */
};

/* every instruction reads and makes what the model says, and other stages are sent it. The first to be asked: fills
 * f->gains */
extern const struct hd__verify_analysis hd__verify_value_numbers;
/* every gradient is summed over all axes that it owes once: reports what is summed twice, mixed, or missing when the
 * optimizer reads */
extern const struct hd__verify_analysis hd__verify_grad_reduce;
/* loss and norm are summed once, and parameters are updated once */
extern const struct hd__verify_analysis hd__verify_once;
/* what the model reads of parameters is as new as their master weights */
extern const struct hd__verify_analysis hd__verify_staleness;
/* ranks that are apart are brought together, by the mean of what they have trained */
extern const struct hd__verify_analysis hd__verify_replica_sync;
/* what goes around a ring is used where it has come to */
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

/* staleness.c: does a, which is no window, lie over all of b? */
int hd__verify_covers(const struct hd_program *p, hd_tensor a, hd_tensor b);

#endif
