/* core/program/access: operands as byte ranges, the one view of them that waits, lifetimes and the proofs share. */
#ifndef HD_CORE_PROGRAM_ACCESS_H
#define HD_CORE_PROGRAM_ACCESS_H

#include "core/program/program.h"

/* Bytes [lo, hi) of a buffer. A shard view's offset depends on the rank, so it counts as the full tensor; a release as
 * a write of the whole buffer. */
struct hd__access {
    hd_tensor tensor;
    uint32_t buffer;
    int64_t lo, hi;
    uint8_t reads, writes;
    uint16_t reserved;
    uint32_t reserved2;
};

#define HD__MAX_ACCESSES (HD_MAX_IN + HD_MAX_OUT)

/* Inputs first, then outputs. Returns how many; none for a wait. */
uint32_t hd__accesses(const struct hd_program *p, const struct hd__instr *i, struct hd__access out[HD__MAX_ACCESSES]);

/* The bytes of one tensor. */
struct hd__access hd__access_of(const struct hd_program *p, hd_tensor t);

/* Does it add to its output? */
static inline int hd__accumulates(const struct hd__instr *i)
{
    return i->op == HD_OP_ACCUM || (i->attrs && i->attrs->flags & HD_ATTR_ACCUMULATE);
}

/* Outputs that are read as well: added to, or updated in place. Any of them; the one with this index. */
int hd__reads_outputs(const struct hd__instr *i);
int hd__reads_output(const struct hd__instr *i, uint32_t out);

/* May the instruction at `at` move to `to`? Before schedule.c: tensors may have no buffer yet. */
int hd__can_move(const struct hd_program *p, const hd__code *code, uint32_t at, uint32_t to);

/* By instruction id: its position in its section; UINT32_MAX where there is none. Caller frees. */
uint32_t *hd__instr_positions(const struct hd_program *p);

/* Position of what a wait waits for; UINT32_MAX if it is not in this section. */
static inline uint32_t hd__wait_target(const struct hd_program *p, const hd__code *code, const uint32_t *position,
                                       const struct hd__instr *wait)
{
    uint32_t n = wait->wait <= p->next_id ? position[wait->wait] : UINT32_MAX;
    return n < code->count && code->at[n].id == wait->wait ? n : UINT32_MAX;
}
/* The buffers that instruction n keeps alive, one an operand: a wait has those of the instruction that it waits for. */
uint32_t hd__live_buffers(const struct hd_program *p, const hd__code *code, const uint32_t *position, uint32_t n,
                          uint32_t out[HD__MAX_ACCESSES]);

/* "micro #118 all_gather p.L0": how messages name instruction n of a section. Returns out. */
const char *hd__instr_text(const struct hd_program *p, const struct hd__code_section *s, uint32_t n, char out[160]);

/* A collective converts nothing: HD_E_INVALID, in err, where its tensors have two dtypes. */
int32_t hd__collective_dtype(const struct hd_program *p, const struct hd__instr *i, struct hd_error *err);

/* The first output, else the first input; 0 for a wait. */
static inline hd_tensor hd__instr_tensor(const struct hd__instr *i)
{
    return i->n_out ? i->out[0] : i->n_in ? i->in[0] : 0;
}
static inline int hd__access_conflict(const struct hd__access *a, const struct hd__access *b)
{
    return (a->writes || b->writes) && a->lo < b->hi && b->lo < a->hi;
}

#endif
