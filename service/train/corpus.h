/* service/train/corpus: data.train and data.val that are text. Their tokens are written once into a cache
 * (service/text/token_cache.h), by one rank of each machine, and the data plug-in opens the cache instead. */
#ifndef HD_SERVICE_TRAIN_CORPUS_H
#define HD_SERVICE_TRAIN_CORPUS_H

#include <jansson.h>

#include "core/compile/compile.h"
#include "service/launch/launch.h"
#include "service/text/corpus.h"

enum {
    HD__CORPUS_LOOK, /* is the cache there? */
    HD__CORPUS_SAY,  /* the same, and what would be done is printed */
    HD__CORPUS_MAKE  /* it is there when this returns */
};

/* The sources of data.train and data.val. *missing: how many sources have no tokens yet. Refused is a tokenizer that
 * cannot be read, has more ids than the model or has not made the tokens there are (token_origin.h), and text without a
 * tokenizer. A job whose data is tokens passes at once. */
int32_t hd__train_corpus_prepare(const struct hd__compiled *compiled, int how, int32_t *missing, struct hd_error *err);

int hd__train_corpus_is_text(const struct hd__compiled *compiled, const char *path);
int hd__train_corpus_has_text(const struct hd__compiled *compiled);
/* Is a file of data.train, data.val or data.test behind a URL? */
int hd__train_corpus_has_url(const struct hd__job *job);
/* Are all (first) lines of data.train's text prompts with completions, which no chat template renders? */
int hd__train_corpus_is_bare(const struct hd__compiled *compiled);
/* A path of data.train that is read as bytes; NULL: none is. */
const char *hd__train_corpus_bytes(const struct hd__compiled *compiled);

/* Warns of files that two of data.train, the sets of data.val and data.test have, by whatever path or as a copy, of
 * tokens by another tokenizer than that of model.from, and of keys without effect. */
void hd__train_corpus_warn(const struct hd__compiled *compiled, int trains);
/* Is data.val, or data.test, cut off data.train: by data.val_fraction, or by `heddle data split` of one file? */
int hd__train_corpus_is_split(const struct hd__compiled *compiled, int test);
/* Files behind keys of the job, told from others under the same names by size and checksum of their ends: "8192 bytes,
 * checksum 0123abcd"; "": there are none, or not all are files here. */
enum { HD__MARK_TRAIN, HD__MARK_VAL, HD__MARK_TEST, HD__MARK_FROM, HD__MARKS, HD__MARK = 72 };
struct hd__train_marks {
    char of[HD__MARKS][HD__MARK];
};
const char *hd__train_mark_key(int k);
void hd__train_marks_make(const struct hd__compiled *compiled, struct hd__train_marks *out);
json_t *hd__train_marks_json(const struct hd__train_marks *marks); /* those that are known, by their keys */
/* Makes those of some sources, of this key of the job. */
int32_t hd__train_corpus_make(const struct hd__compiled *compiled, const char *key, const struct hd__sources *sources,
                              struct hd_error *err);
/* For the ranks of a job, once they have met: those of a machine wait for one of them, and all for the last machine. */
int32_t hd__train_corpus_meet(const struct hd__compiled *compiled, const struct hd__launch_env *env,
                              struct hd_store *store, struct hd_error *err);
/* The token files of a folder or a pattern of them (hd__corpus_find_tokens); none where the path is something else. */
int32_t hd__train_corpus_shards(const char *path, struct hd__corpus *shards, struct hd_error *err);
/* Path for the data plug-in: the cache of a source, or the path itself. */
const char *hd__train_corpus_path(const struct hd__job *job, const char *path);

#endif
