/* service/train/resume_diff: keys that differ from the job that saved a checkpoint and change the training. */
#ifndef HD_SERVICE_TRAIN_RESUME_DIFF_H
#define HD_SERVICE_TRAIN_RESUME_DIFF_H

#include "service/train/data/data_files.h"
#include "service/train/data/token_origin.h"
#include "service/train/session.h"

/* By which data are told from others under the same name: a checkpoint's "data", "data_samples", "tokenizer",
 * "files_of" and "plugins". "": not known. */
struct hd__train_data_mark {
    char text[80], samples[20];
    struct hd__token_maker tokens;
    struct hd__train_marks files;
    const char *plugins; /* hd__train_plugins_json as text, or NULL: as they were loaded, whatever lies there later */
};
void hd__train_data_describe(const struct hd__train_session *session, struct hd__train_data_mark *out);
/* The same of a checkpoint, as far as it is known. */
json_t *hd__train_data_json(const struct hd__train_data_mark *data);

/* The model's config.json as it would be exported: a checkpoint's "config". NULL: it has none. */
json_t *hd__train_model_config(const struct hd__compiled *compiled);

/* `state`: of the checkpoint `name` (hd__ckpt_state). Logs one line for each key, of the job or of config.json, that
 * changes the training; with weights_only just those that change the weights' computation, and what they are used for:
 * HD__DIFF_... of `used_for`. `data`: as it would be saved now. */
void hd__train_resume_diff_log(const struct hd__compiled *compiled, const char *name, const json_t *state,
                               const struct hd__train_data_mark *data, int weights_only, uint32_t used_for);

/* Explains a checkpoint that does not fit: prepends the keys behind it, and the position of the first, to the
 * message in `err`. `section`: "model." or "optimizer.", whose keys are the cause where there are some. Returns its
 * code. */
int32_t hd__train_resume_diff_explain(const struct hd__compiled *compiled, const json_t *state, const char *section,
                                      int weights_only, struct hd_error *err);

/* A number of the job that saved it; `otherwise` if it is missing. */
int64_t hd__train_resume_saved_int(const json_t *state, const char *section, const char *key, int64_t otherwise);

#endif
