/* service/text/token_cache: the tokens of a source of text, written once and found again.
 *
 * A cache is PREFIX.bin and PREFIX.idx in a folder, and PREFIX.cache.json beside them, which has size, time and hash
 * of every file that they were made of and of the files themselves. A file whose size and time are the same is taken
 * for the same; where its time differs, its hash decides, once: the process that has the lock notes the time. PREFIX
 * has the hash of what else the tokens depend on: the tokenizer's file, the field, the end of documents. */
#ifndef HD_SERVICE_TEXT_TOKEN_CACHE_H
#define HD_SERVICE_TEXT_TOKEN_CACHE_H

#include "service/text/tokenize.h"

/* Comparing: a process that has met the one that made the tokens needs sizes alone. */
enum { HD__TOKEN_CACHE_SIZES, HD__TOKEN_CACHE_TIMES, HD__TOKEN_CACHE_HASHES };

struct hd__token_cache {
    struct hd__tokenize_config config; /* corpus, prefix and progress are the cache's own */
    const char *source, *folder;
    const char *key; /* of the job: "data.train" */
    double timeout;  /* seconds that another process may write this cache without getting on */
    /* Called as tokens are written and files are hashed; may be NULL. A failure ends it. */
    int32_t (*beat)(void *user, struct hd_error *err);
    void *user;
    /* By hd__token_cache_open. */
    struct hd__corpus corpus;
    char *prefix;
    uint64_t hash; /* of the tokens, where they are there */
    int lock;      /* while this process makes them; else 0 */
    double touched;
};

/* Finds the files of the source. */
int32_t hd__token_cache_open(struct hd__token_cache *cache, struct hd_error *err);
/* Are their tokens there? With HD__TOKEN_CACHE_TIMES "no" means that hashes have to say so. */
int32_t hd__token_cache_look(struct hd__token_cache *cache, int compare, int *valid, struct hd_error *err);
/* Writes them, unless they are there once the lock is this process's. */
int32_t hd__token_cache_make(struct hd__token_cache *cache, struct hd_error *err);
void hd__token_cache_close(struct hd__token_cache *cache);

#endif
