/* service/train/corpus: data.train and data.val that are text. Their tokens are written once into a cache
 * (service/text/token_cache.h), by one rank of each machine, and the data plug-in opens the cache instead. */
#ifndef HD_SERVICE_TRAIN_CORPUS_H
#define HD_SERVICE_TRAIN_CORPUS_H

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
