/* What grad_reduce.c, grad_intervals.c and grad_lowrank.c share. A buffer that holds gradients is a list of pieces, in elements of the
 * whole flat buffer. A shard stands for the whole flat: all ranks' shards are alike. */
#ifndef HD_CORE_VERIFY_GRAD_REDUCE_H
#define HD_CORE_VERIFY_GRAD_REDUCE_H

#include "core/verify/verify.h"

struct hd__owed_piece {
    int64_t lo, hi; /* of codes too: which elements they stand for */
    uint32_t param; /* index into hd_program.params */
    uint32_t owed;
    uint32_t brought; /* codes: axes whose members' parts are here, to be summed when they are decoded */
    uint32_t form;    /* HD__OWED_WHOLE, ... */
    uint64_t value;   /* of a step, all micro-batches: value_numbers.c */
};

#define HD__OWED_NO_PARAM UINT32_MAX /* directions that nothing was projected onto yet */

/* A gradient; its product with another matrix; the same at right angles, equal on all members; zeros. */
enum { HD__OWED_WHOLE = 0, HD__OWED_PROJECTED, HD__OWED_DIRECTIONS, HD__OWED_CLEARED };

typedef HD__ARRAY(struct hd__owed_piece) hd__owed_pieces; /* sorted, disjoint */

struct hd__owed {
    const struct hd_program *p;
    uint32_t *slot; /* by buffer: index + 1 into lists */
    HD__ARRAY(hd__owed_pieces) lists;
    uint32_t *flat_of; /* by tensor: the flat, index + 1, whose shard it is */
};

struct hd__owed_range {
    int64_t lo, hi;
};

/* ---- grad_intervals.c */
void *hd__owed_create(const struct hd_program *p);
void hd__owed_destroy(void *owed);
const char *hd__owed_name(const struct hd__owed *o, uint32_t param);
/* The pieces of a tensor's buffer; NULL where it has had none, unless they are to be made. Making one moves the others. */
hd__owed_pieces *hd__owed_list(struct hd__owed *o, hd_tensor t, int make);
/* Elements of the whole flat buffer that a tensor stands for. */
struct hd__owed_range hd__owed_range_of(const struct hd_program *p, hd_tensor id);
uint32_t hd__owed_first(const hd__owed_pieces *l, int64_t lo); /* the first that ends behind lo */
void hd__owed_cut(hd__owed_pieces *l, int64_t at); /* no piece crosses `at` afterwards */
void hd__owed_erase(hd__owed_pieces *l, struct hd__owed_range r);
void hd__owed_set(hd__owed_pieces *l, struct hd__owed_piece x);
/* Adding to what is in this tensor's memory: both must owe the same. */
void hd__owed_add(struct hd__owed *o, struct hd__faults *f, hd_tensor to, struct hd__owed_piece x);

/* ---- grad_lowrank.c: one instruction each; then what is left when the optimizer reads */
void hd__owed_orthogonalise(struct hd__owed *o, struct hd__faults *f, const struct hd__instr *i);
void hd__owed_multiply(struct hd__owed *o, struct hd__faults *f, const struct hd__instr *i);
void hd__owed_blend(struct hd__owed *o, struct hd__faults *f, const struct hd__instr *i);
void hd__owed_check_kept(struct hd__owed *o, struct hd__faults *f);

#endif
