/* core/passes/strategy_api: queries and edits of a lowered program, for strategies (heddle/strategy.h). */
#ifndef HD_CORE_PASSES_STRATEGY_API_H
#define HD_CORE_PASSES_STRATEGY_API_H

#include "core/program/program.h"
#include "heddle/strategy.h"

extern const struct hd_pass_api hd__pass_api;

/* The program's access to the optimizer, without the plugin: filled by compile/. */
struct hd__optimizer {
    const struct hd_optimizer_ops *ops;
    const void *settings;
};

/* The strategy that reduces buckets for others; ops NULL: none. */
struct hd__reducer {
    const struct hd_host *host;
    const struct hd_strategy_ops *ops;
    const void *settings;
    uint32_t buckets; /* that it was given so far */
    uint32_t running;
};

enum { HD__PASS_LAYOUT, HD__PASS_PARTITION, HD__PASS_TRANSFORM };
/* A strategy's slot runs between these two: edits are recorded, then applied together. */
void hd__pass_begin(struct hd_program *p, const struct hd__optimizer *optimizer, struct hd__reducer *reducer,
                    int32_t phase);
int32_t hd__pass_end(struct hd_program *p, struct hd_error *err);

/* strategy_args.c: validates the arguments of the slot `function` (__func__), a letter of `kinds` each: s section,
 * i instruction of it, t tensor, T the same or none, f flat, p parameter, b block, D dim, a axis, A mask of axes,
 * c letter of a dim, d dtype, l lifetime, m memory, r role, F mask of facts, w mask of parts, + number of at least 1,
 * and the star pointer; and before them 1, 2, 3: only in layout, partition, transform. 0 where one is wrong, which is
 * sticky: then, and after any other failure, a slot does nothing, unless a ? stands first: it fills in arrays, which
 * callers index. */
int hd__pass_args(const struct hd_program *p, const char *function, const char *kinds, ...);
int hd__pass_instr_valid(const struct hd_program *p, const char *slot, const struct hd_pass_instr *new);
/* Records a wrong call of the strategy that runs; 0. */
int hd__pass_refuse(const struct hd_program *p, const char *format, ...) __attribute__((format(printf, 2, 3)));
int hd__pass_ok(const struct hd_program *p); /* nothing has failed so far */
int32_t hd__pass_phase(const struct hd_program *p);

/* For slots in other files. Called between begin and end. */
const struct hd__optimizer *hd__pass_optimizer(const struct hd_program *p);
struct hd__reducer *hd__pass_reducer(const struct hd_program *p);
/* optimizer_update.c: notes the rule of updates, and of every parameter how it decays. */
int32_t hd__optimizer_rule(struct hd_program *p, const struct hd__optimizer *optimizer, struct hd_error *err);
void hd__pass_append(struct hd_program *p, const char *section, const struct hd_pass_instr *new);
uint32_t hd__pass_file_ndim(const struct hd__param *param,
                            const struct hd__tensor *t); /* as checkpoint files count a parameter's dimensions */
/* Elements along an axis of the file, '0' or '1': on this rank, or of all ranks. */
int64_t hd__pass_file_extent(const struct hd_program *p, const struct hd__param *param, char axis, int global);

/* flat_buffers.c: the slots about flat buffers, and vectors that fit them. */
uint32_t hd__pass_flat(struct hd_program *p, const char *name, uint32_t block, uint32_t axes, const uint32_t *params,
                       uint32_t n, uint64_t members);
void hd__pass_flat_get(const struct hd_program *p, uint32_t id, struct hd_pass_flat *out);
uint32_t hd__pass_n_flats(const struct hd_program *p);
hd_tensor hd__pass_flat_whole(struct hd_program *p, uint32_t id, const char *name, uint32_t type, uint32_t life);
hd_tensor hd__pass_flat_shard(struct hd_program *p, uint32_t id, const char *name, uint32_t type, uint32_t life,
                              hd_tensor inside);
hd_tensor hd__pass_flat_shard_in(struct hd_program *p, uint32_t id, const char *name, uint32_t type, uint32_t memory);
hd_tensor hd__pass_flat_view(struct hd_program *p, uint32_t id, hd_tensor whole, uint32_t index);
hd_tensor hd__pass_flat_range(struct hd_program *p, uint32_t id, hd_tensor whole, int64_t first, int64_t n);
void hd__pass_flat_role(struct hd_program *p, uint32_t id, uint32_t role, hd_tensor t);
void hd__pass_states_in(struct hd_program *p, uint32_t id, uint32_t memory);
hd_tensor hd__pass_vector(struct hd_program *p, uint32_t id, const char *name, int64_t n, uint32_t type, uint32_t axes,
                          uint32_t life);
hd_tensor hd__pass_vector_like(struct hd_program *p, const char *name, hd_tensor like, uint32_t axes, uint32_t life);
hd_tensor hd__tensor_new_with_buffer(struct hd_program *p, struct hd__tensor *t,
                                     uint32_t life); /* a new buffer of its size, with `t` in it */
void hd__tensor_set_memory(struct hd_program *p, hd_tensor t, uint32_t memory); /* HD__MEM_... */

/* optimizer_update.c: the slots about the optimizer. */
uint32_t hd__pass_optimizer_states(const struct hd_program *p);
void hd__pass_fetch(struct hd_program *p, const char *section, uint32_t id, uint32_t what, uint32_t load,
                    uint32_t slot);
void hd__pass_update(struct hd_program *p, uint32_t id, hd_tensor low);

/* pipeline.c: the slots about blocks, chunks and actions. */
int32_t hd__pass_stage(const struct hd_program *p);
uint32_t hd__pass_micro_batches(const struct hd_program *p);
uint32_t hd__pass_n_blocks(const struct hd_program *p);
void hd__pass_block(const struct hd_program *p, uint32_t index, struct hd_pass_block *out);
void hd__pass_chunks(struct hd_program *p, uint32_t n_chunks, const uint32_t *stage_of_chunk,
                     const uint32_t *chunk_of_block);
void hd__pass_actions(struct hd_program *p, uint32_t stage, const struct hd_action *list, uint32_t n);

/* replicas.c */
void hd__pass_apart(struct hd_program *p, uint32_t axes);
void hd__pass_section(struct hd_program *p, const char *name, uint32_t every);
void hd__pass_declare(struct hd_program *p, hd_tensor t, uint32_t what, uint32_t axes, const char *section);
void hd__pass_keep(struct hd_program *p, uint32_t flat, hd_tensor t, const char *name);
/* custom_ops.c; the op of a number, NULL if it is none of a strategy's; the number that a strategy sees */
uint32_t hd__pass_custom_op(struct hd_program *p, const struct hd_custom_op *op);
const struct hd_custom_op *hd__pass_custom(const struct hd_program *p, uint32_t op);
uint32_t hd__pass_op_number(const struct hd_program *p, const struct hd__instr *i);
int hd__pass_custom_valid(const struct hd_program *p, const char *slot, const struct hd_pass_instr *new);
uint32_t hd__pass_reduce(struct hd_program *p, const struct hd_pass_bucket *bucket);
/* section_split.c */
void hd__pass_split_section(struct hd_program *p, uint32_t section, int64_t last);
void hd__pass_first_round(struct hd_program *p, uint32_t section);
int hd__pass_unedited(struct hd_program *p); /* or an error: only then may a section be duplicated */

/* offload.c: the staged twin with which `section` computes; the tensor itself if it is in the main memory. */
hd_tensor hd__offload_staged(struct hd_program *p, const char *section, hd_tensor home);
uint16_t hd__offload_stream(const struct hd_program *p, hd_tensor from, hd_tensor to);
void hd__offload_fetch(struct hd_program *p, const char *section, uint32_t flat, uint32_t what, uint32_t load,
                       uint32_t slot);
void hd__offload_store(struct hd_program *p, const char *section, uint32_t flat, uint32_t what);

#endif
