/* service/checkpoint/param_init: values of parameters before the first step. */
#ifndef HD_SERVICE_CHECKPOINT_PARAM_INIT_H
#define HD_SERVICE_CHECKPOINT_PARAM_INIT_H

#include "core/program/program.h"

/* Initial values from the job's seed, as each parameter's description says. A value depends on the seed, the parameter's
 * name and its global index only: the same whatever the mesh. Fills master, whole and low-precision copies. */
int32_t hd__ckpt_init_params(struct hd_program *p, const int32_t coord[HD_AXIS_COUNT], void *arena, uint64_t seed,
                             struct hd_error *err);

/* Values from safetensors: `folder` as hd__ckpt_st_open takes it, tensors by hd_param_desc.file_name. A tensor that lacks, or
 * has another shape, is named. */
int32_t hd__ckpt_init_from_safetensors(struct hd_program *p, const int32_t coord[HD_AXIS_COUNT], void *arena,
                                       const char *folder, struct hd_error *err);

/* A parameter is one tensor of its files, or part of one, or, where its first dim counts tensors (file_axes '*'), several.
 * The name of the index-th is the caller's, by free(). */
int64_t hd__ckpt_file_tensor_count(const struct hd_program *p, uint32_t param);
char *hd__ckpt_file_tensor_name(const struct hd_program *p, uint32_t param, int64_t index);

/* count normal deviates of the stream `key`, elements [first, first + count): Box-Muller over a counter-based hash. */
void hd__ckpt_fill_normal(uint64_t key, int64_t first, int64_t count, double std, float *out);

/* Strategies' own tensors that begin as zeros; before the first step of a fresh or a resumed run. */
void hd__ckpt_init_zeros(struct hd_program *p, const int32_t coord[HD_AXIS_COUNT], void *arena);

#endif
