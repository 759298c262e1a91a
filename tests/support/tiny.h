/* Hand-built step programs: a few instructions over one-dimensional tensors, for tests of one rule at a time.
 */
#ifndef HD_TESTS_SUPPORT_TINY_H
#define HD_TESTS_SUPPORT_TINY_H

#include "core/program/program.h"

/* An empty program on a mesh of these sizes. */
struct hd_program *tiny_program(int32_t pp, int32_t dp_shard, int32_t tp, int32_t stage);

/* Adds a section; index into p->sections. */
uint32_t tiny_section(struct hd_program *p, const char *name, int32_t repeat);

/* A vector of `count` fp32 elements on one rank (of `count` times the size of the axes in all, where
 * sharded), without a buffer. */
hd_tensor tiny_vector(struct hd_program *p, const char *name, int64_t count);
hd_tensor tiny_shard(struct hd_program *p, const char *name, int64_t count, int32_t axis);
/* The same, in a persistent buffer. */
hd_tensor tiny_state(struct hd_program *p, const char *name, int64_t count);
/* Elements [first, first + count) of another tensor's buffer, which is made if it has none. */
hd_tensor tiny_view(struct hd_program *p, const char *name, hd_tensor of, int64_t first, int64_t count);

/* Appends an instruction; ins and outs end with 0. Stream 0 is compute. The pointer lives until the next
 * append. */
struct hd__instr *tiny_op(struct hd_program *p, uint32_t section, uint16_t op, const hd_tensor *ins,
                          const hd_tensor *outs);
struct hd__instr *tiny_collective(struct hd_program *p, uint32_t section, uint16_t op, int32_t axis, hd_tensor in,
                                  hd_tensor out);
struct hd__instr *tiny_send(struct hd_program *p, uint32_t section, int32_t stage, uint16_t tag, hd_tensor t);
struct hd__instr *tiny_recv(struct hd_program *p, uint32_t section, int32_t stage, uint16_t tag, hd_tensor t);
#define T(...) ((const hd_tensor[]){__VA_ARGS__, 0})
#define NONE ((const hd_tensor[]){0})

/* A training step of two parameters, w (16 elements, owes dp_shard) and n (16, owes dp_shard and tp), in one
 * flat buffer: begin, micro (twice), micro_last, update; ZeRO stage 0, 1 or 2. Scheduled and planned. */
struct hd_program *tiny_step(int32_t dp_shard, int32_t tp, int32_t stage);
/* The same without buffers, waits and offsets, to plant faults in. */
struct hd_program *tiny_step_raw(int32_t dp_shard, int32_t tp, int32_t stage);
void tiny_finish(struct hd_program *p);

/* Position of the nth (from 0) instruction with this op and, unless NULL, this first output or input; it must
 * exist. */
uint32_t tiny_find(const struct hd_program *p, uint32_t section, uint16_t op, const char *tensor, uint32_t nth);
void tiny_drop(struct hd_program *p, uint32_t section, uint32_t at); /* with its wait, if it has one */
void tiny_insert(struct hd_program *p, uint32_t section, uint32_t at, struct hd__instr i);

/* "fill0 a; all_reduce a; wait a; gelu b": ops and what they make, or read. Caller frees. */
char *tiny_listing(const struct hd_program *p, uint32_t section);

#endif
