/* core/compile/internal: what the files of this room share. */
#ifndef HD_CORE_COMPILE_INTERNAL_H
#define HD_CORE_COMPILE_INTERNAL_H

#include "core/compile/compile.h"

/* components.c: the strategies that the job names, and in front of them those that its mesh needs. */
int32_t hd__compile_strategies(struct hd__compiled *c, struct hd_error *err);
/* custom_ops.c: notes the strategy that reduces buckets; whether one was asked; the ops that strategies brought. */
int32_t hd__compile_find_reducer(struct hd__compiled *c, struct hd_error *err);
int32_t hd__compile_check_reducer(const struct hd__compiled *c, const struct hd_program *p, struct hd_error *err);
int32_t hd__compile_check_custom(const struct hd__compiled *c, const struct hd_program *p, struct hd_error *err);
/* micro_batch_mean.c: the weight of a token's loss, and how many micro-batches add up. */
void hd__compile_micro_batch_mean(const struct hd__job *job, struct hd_program *p);
/* micro_batch_shares.c: proves the finished program; with data.micro_batches for the ranks with the fewest, too. */
int32_t hd__compile_verify(const struct hd__compiled *c, struct hd_program *p, struct hd_error *err);
/* fusions.c: hd_program.fusions of a program with this precision. `flags`: HD__COMPILE_... */
uint32_t hd__compile_fusions(const struct hd__compiled *c, const struct hd__precision *precision, uint32_t flags);

#endif
