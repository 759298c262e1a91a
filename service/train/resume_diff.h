/* service/train/resume_diff: a checkpoint says what job saved it; what this one trains that is another. */
#ifndef HD_SERVICE_TRAIN_RESUME_DIFF_H
#define HD_SERVICE_TRAIN_RESUME_DIFF_H

#include "core/job/job.h"

/* `state`: of the checkpoint `name` (hd__ckpt_state). One line of the log for each key that changes what is trained; with
 * weights_only those alone that change what the weights compute. */
void hd__train_resume_diff_log(struct hd__job *job, const char *name, const json_t *state, int weights_only);

/* The checkpoint does not fit, as the message in `err` says: the keys behind that, and where the first is written, come in front.
 * Returns the code that is there. */
int32_t hd__train_resume_diff_explain(struct hd__job *job, const json_t *state, int weights_only, struct hd_error *err);

/* A number of the job that saved it; `otherwise` where it does not say. */
int64_t hd__train_resume_saved_int(const json_t *state, const char *section, const char *key, int64_t otherwise);

#endif
