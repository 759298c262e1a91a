/* service/train/resume_diff: keys that differ from the job that saved a checkpoint and change the training. */
#ifndef HD_SERVICE_TRAIN_RESUME_DIFF_H
#define HD_SERVICE_TRAIN_RESUME_DIFF_H

#include "core/job/job.h"

/* `state`: of the checkpoint `name` (hd__ckpt_state). Logs one line for each key that changes the training; with
 * weights_only just those that change the weights' computation. `data` and `samples`: the state's "data" and
 * "data_samples" as they would be saved now; "": not known. */
void hd__train_resume_diff_log(struct hd__job *job, const char *name, const json_t *state, const char *data,
                               const char *samples, int weights_only);

/* Explains a checkpoint that does not fit: prepends the keys behind it, and the position of the first, to the
 * message in `err`. `section`: "model." or "optimizer.", whose keys are the cause where there are some. Returns its
 * code. */
int32_t hd__train_resume_diff_explain(struct hd__job *job, const json_t *state, const char *section, int weights_only,
                                      struct hd_error *err);

/* A number of the job that saved it; `otherwise` if it is missing. */
int64_t hd__train_resume_saved_int(const json_t *state, const char *section, const char *key, int64_t otherwise);

#endif
