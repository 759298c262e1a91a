/* service/checkpoint/param_init: initial values of parameters. */
#ifndef HD_SERVICE_CHECKPOINT_PARAM_INIT_H
#define HD_SERVICE_CHECKPOINT_PARAM_INIT_H

#include "core/program/program.h"

/* Initial values from the job's seed, by each parameter's description. A value depends on the seed, the parameter's
 * name and its global index only: independent of the mesh. Fills master weights, full weights and compute copies. */
int32_t hd__ckpt_init_params(struct hd_program *p, const int32_t coord[HD_AXIS_COUNT], void *arena, uint64_t seed,
                             struct hd_error *err);

/* Values from safetensors: `folder` as hd__ckpt_st_open takes it, tensors by hd_param_desc.file_name. Names a tensor
 * that is missing or has another shape. */
int32_t hd__ckpt_init_from_safetensors(struct hd_program *p, const int32_t coord[HD_AXIS_COUNT], void *arena,
                                       const char *folder, struct hd_error *err);

/* Does the folder have all tensors of these pipeline stages, in their shapes and a dtype that is read, and no others
 * but buffers and a tied head that is the embedding? Reads headers alone, and such a head. `zeros` (NULL: is not asked)
 * gets the names of weight matrices that are all 0. */
int32_t hd__ckpt_check_safetensors(struct hd_program *const *stages, int32_t n_stages, const char *folder,
                                   struct hd__text *zeros, struct hd_error *err);

/* A parameter is one tensor of its files, or part of one, or, where its first dim counts tensors (file_axes '*'),
 * several. Free the name of the index-th with free(). */
int64_t hd__ckpt_file_tensor_count(const struct hd_program *p, uint32_t param);
char *hd__ckpt_file_tensor_name(const struct hd_program *p, uint32_t param, int64_t index);

/* Extents of the file's axes: this parameter's dims merged, times its parts. Returns their number. */
uint32_t hd__ckpt_file_tensor_shape(const struct hd_program *p, uint32_t param, int64_t shape[HD_MAX_DIMS]);

/* Zeroes strategies' tensors that begin as zeros (HD_FACT_...), before the first step of a fresh or a resumed run. */
void hd__ckpt_init_zeros(struct hd_program *p, const int32_t coord[HD_AXIS_COUNT], void *arena);

#endif
