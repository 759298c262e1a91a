/* service/train/data/data_files: the files of a job's data among each other, and beside those of the run before: which
 * are there twice, which are no longer what they were, and which held-out data is trained on. */
#ifndef HD_SERVICE_TRAIN_DATA_FILES_H
#define HD_SERVICE_TRAIN_DATA_FILES_H

#include <jansson.h>

#include "core/compile/compile.h"

/* Warns of files that two of data.train, the sets of data.val and data.test have, by whatever path or as a copy, of
 * tokens by another tokenizer than that of model.from, and of keys without effect. */
void hd__train_data_files_warn(const struct hd__compiled *compiled, int trains);
/* Is data.val, or data.test, cut off data.train: by data.val_fraction, or by `heddle data split` of one file? */
int hd__train_data_files_split(const struct hd__compiled *compiled, int test);
/* Files behind keys of the job, told from others under the same names by size and checksum of their ends: "8192 bytes,
 * checksum 0123abcd"; "": there are none, or not all are files here. */
enum { HD__MARK_TRAIN, HD__MARK_VAL, HD__MARK_TEST, HD__MARK_FROM, HD__MARKS, HD__MARK = 72 };
struct hd__train_marks {
    char of[HD__MARKS][HD__MARK];
};
const char *hd__train_mark_key(int k);
void hd__train_marks_make(const struct hd__compiled *compiled, struct hd__train_marks *out);
json_t *hd__train_marks_json(const struct hd__train_marks *marks); /* those that are known, by their keys */

/* Is it what the job asks for? A default in a file may be one of --print-config. */
static inline int hd__train_is_asked(const struct hd__job_value *value)
{
    return value && (value->plain || !strcmp(value->origin, "command line"));
}

#endif
