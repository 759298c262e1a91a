/* service/text/token_cache: the tokens of a source of text, written once and found again.
 *
 * A cache is PREFIX.bin and PREFIX.idx in a folder, and PREFIX.cache.json beside them, which has size, time and hash of
 * every file that they were made of and of the files themselves. A file whose size and time are the same is taken for
 * the same; where its time differs, its hash decides. PREFIX has the hash of what else the tokens depend on: the
 * tokenizer's file, the field, the end of documents. */
#ifndef HD_SERVICE_TEXT_TOKEN_CACHE_H
#define HD_SERVICE_TEXT_TOKEN_CACHE_H

#include "service/text/tokenize.h"

struct hd__token_cache {
    struct hd__tokenize_config config; /* corpus, prefix and progress are the cache's own */
    const char *source, *folder;
    const char *key; /* of the job: "data.train" */
    double timeout;  /* seconds that another process may write this cache without getting on */
    /* Called as tokens are written; may be NULL. A failure ends it. */
    int32_t (*beat)(void *user, struct hd_error *err);
    void *user;
    /* By hd__token_cache_open. */
    struct hd__corpus corpus;
    char *prefix;
    uint64_t hash; /* of the tokens, where they are there */
};

/* Finds the files of the source, and whether their tokens are there (*valid). */
int32_t hd__token_cache_open(struct hd__token_cache *cache, int *valid, struct hd_error *err);
/* Writes them, or waits while another process does: then *valid says that nothing is left to do. */
int32_t hd__token_cache_make(struct hd__token_cache *cache, struct hd_error *err);
void hd__token_cache_close(struct hd__token_cache *cache);

#endif
