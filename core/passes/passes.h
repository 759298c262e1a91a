/* core/passes/passes: the passes of a compilation, in the order in which core/compile runs them. Each returns HD_OK
 * or a code with the error filled. */
#ifndef HD_CORE_PASSES_PASSES_H
#define HD_CORE_PASSES_PASSES_H

#include "core/program/program.h"

int32_t hd__autodiff(struct hd_program *p, struct hd_error *err); /* autodiff.c */
void hd__scale_independent_gradients(struct hd_program *p);       /* replicas.c, after autodiff */
int32_t hd__place(struct hd_program *p, struct hd_error *err);    /* place.c */
/* pipeline.c: after the strategies' partition: is there a pipeline where mesh.pp asks for it, and is it complete? */
int32_t hd__pipeline_check(struct hd_program *p, struct hd_error *err);
/* recompute.c: segments of `every` blocks; cheap_only: recompute no matmul, no attention and no collective. */
int32_t hd__recompute(struct hd_program *p, uint32_t every, int cheap_only, struct hd_error *err);
int32_t hd__ring_attention(struct hd_program *p,
                           struct hd_error *err); /* ring_attention.c: attention over a sharded sequence */
/* deterministic.c: before hd__lower, after it, and after the strategies' transform. */
void hd__exact_partition(struct hd_program *p);
int32_t hd__exact_sums(struct hd_program *p, struct hd_error *err);
int32_t hd__exact_reduce(struct hd_program *p, struct hd_error *err);
int32_t hd__lower(struct hd_program *p, struct hd_error *err); /* lower.c */
/* pipeline_unroll.c, called by hd__lower: template and actions -> code of this program's stage. */
void hd__unroll_stages(struct hd_program *p); /* fills hd__param.stages */
/* One step: all micro-batches in the order of the stage's actions. */
void hd__unroll_step(struct hd_program *p, struct hd__code_section *section);
/* One micro-batch, forward only; what is kept is set on the stage that makes it. */
void hd__unroll_eval(struct hd_program *p, struct hd__code_section *section);
/* decode.c, called by hd__lower around the eval section: which tensors of the template it keeps, as caches of the
 * program; and, with a function that makes a section of one micro-batch of a template, the section `decode`. */
void hd__decode_find_caches(struct hd_program *p);
void hd__decode_lower(struct hd_program *p, void (*emit)(struct hd_program *p, struct hd__code_section *section));
void hd__scale_loss(struct hd_program *p); /* lower.c, after hd__lower where the job scales its loss */
int32_t hd__fuse(struct hd_program *p, struct hd_error *err); /* fuse.c */
struct hd__tensor_use {
    uint32_t maker; /* index + 1 of the instruction that writes the tensor */
    uint32_t count; /* how many operands read it */
};
struct hd__tensor_use *hd__count_uses(const struct hd_program *p,
                                      const hd__code *code);  /* fuse.c: by tensor; caller frees */
void hd__fuse_patterns(struct hd_program *p, hd__code *code); /* fuse_patterns.c, called by hd__fuse */
/* fuse_loss_head.c, called by hd__fuse. Returns whether a loss is left because its weights are gathered twice. */
int hd__fuse_loss_head(struct hd_program *p, hd__code *code);
int32_t hd__schedule_instrs(struct hd_program *p, struct hd_error *err); /* schedule.c: buffers for all, then waits */
int32_t hd__memory_plan(struct hd_program *p,
                        struct hd_error *err); /* memory_plan.c: hd__inplace, then hd__memory_offsets */
int32_t hd__memory_offsets(struct hd_program *p, struct hd_error *err); /* of all buffers, but as no_offsets says */
/* Leaves of a proved program what loads weights and evaluates them, or decodes. A step has no code left; gradients
 * and states of optimizers and strategies have no memory, and no role in their flats. */
int32_t hd__memory_evaluation(struct hd_program *p, struct hd_error *err);
void hd__inplace(struct hd_program *p); /* outputs reuse the memory of inputs that die, where the op allows it */
int32_t hd__widen(struct hd_program *p, struct hd_error *err); /* widen.c: a program that was proved, in fp64 */

int hd__same_shape(const struct hd__tensor *a, const struct hd__tensor *b); /* dims and shards */

#endif
