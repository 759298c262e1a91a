/* core/verify/grad_reduce: shared by grad_reduce.c, grad_intervals.c and grad_lowrank.c. A buffer of gradients is a
 * list of intervals, in elements of the full flat buffer. A shard stands for the full buffer: all ranks' shards are
 * alike. */
#ifndef HD_CORE_VERIFY_GRAD_REDUCE_INTERNAL_H
#define HD_CORE_VERIFY_GRAD_REDUCE_INTERNAL_H

#include "core/verify/verify.h"

struct hd__verify_interval {
    int64_t lo, hi; /* of encoded gradients too: the elements that they stand for */
    uint32_t param; /* index into hd_program.params */
    uint32_t unreduced_axes;
    uint32_t decode_axes; /* encoded: axes whose members' parts are here, to be summed when they are decoded */
    uint32_t form;        /* HD__INTERVAL_GRADIENT, ... */
    uint64_t value;       /* value number over a step, all micro-batches: value_numbers.c */
};

#define HD__INTERVAL_NO_PARAM UINT32_MAX /* a low-rank factor that nothing was projected onto yet */

/* A gradient; its product with a low-rank factor; that orthogonalised, equal on all members; zeros. */
enum { HD__INTERVAL_GRADIENT = 0, HD__INTERVAL_PROJECTED, HD__INTERVAL_ORTHOGONAL, HD__INTERVAL_ZERO };

typedef HD__ARRAY(struct hd__verify_interval) hd__verify_intervals; /* sorted, disjoint */

struct hd__verify_grads {
    const struct hd_program *p;
    uint32_t *list_of; /* by buffer: index + 1 into lists */
    HD__ARRAY(hd__verify_intervals) intervals;
    uint32_t *flat_of; /* by tensor: the flat, index + 1, whose shard it is */
};

struct hd__verify_range {
    int64_t lo, hi;
};

/* ---- grad_intervals.c */
void *hd__verify_grads_create(const struct hd_program *p);
void hd__verify_grads_destroy(void *owed);
const char *hd__verify_grad_name(const struct hd__verify_grads *o, uint32_t param);
/* The intervals of a tensor's buffer; NULL if it has none, unless they are to be made. Making them moves the others. */
hd__verify_intervals *hd__verify_intervals_of(struct hd__verify_grads *o, hd_tensor t, int make);
/* Elements of the full flat buffer that a tensor stands for. */
struct hd__verify_range hd__verify_range_of(const struct hd_program *p, hd_tensor id);
uint32_t hd__verify_interval_find(const hd__verify_intervals *l, int64_t lo); /* the first that ends after lo */
void hd__verify_interval_split(hd__verify_intervals *l, int64_t at);          /* no interval crosses `at` afterwards */
void hd__verify_interval_erase(hd__verify_intervals *l, struct hd__verify_range r);
void hd__verify_interval_set(hd__verify_intervals *l, struct hd__verify_interval x);
/* Adds x to a tensor's memory: both must be unreduced over the same axes. */
void hd__verify_interval_add(struct hd__verify_grads *o, struct hd__verify_diags *f, hd_tensor to,
                             struct hd__verify_interval x);

/* ---- grad_lowrank.c: one instruction each; then the state that is left at the update */
void hd__verify_lowrank_orthogonalise(struct hd__verify_grads *o, struct hd__verify_diags *f,
                                      const struct hd__instr *i);
void hd__verify_lowrank_multiply(struct hd__verify_grads *o, struct hd__verify_diags *f, const struct hd__instr *i);
void hd__verify_lowrank_blend(struct hd__verify_grads *o, struct hd__verify_diags *f, const struct hd__instr *i);
void hd__verify_lowrank_check_state(struct hd__verify_grads *o, struct hd__verify_diags *f);

#endif
