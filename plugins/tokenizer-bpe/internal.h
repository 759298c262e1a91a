/* tokenizer-bpe: byte pair encoding. A file becomes a list of normalizers, a list of pre-tokenizers and a table of
 * merges; text passes through them in this order, as in Hugging Face's tokenizers:
 *
 *     text -> added tokens cut out -> normalizers -> added tokens again -> pre-tokenizers -> merges of a word -> ids */
#ifndef TOKENIZER_BPE_INTERNAL_H
#define TOKENIZER_BPE_INTERNAL_H

#define PCRE2_CODE_UNIT_WIDTH 8
#include <jansson.h>
#include <pcre2.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

#include "heddle/host.h"
#include "heddle/tokenizer.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* Limits for files of strangers: no table grows beyond them. */
enum { BPE_MOST_IDS = 1 << 24, BPE_MOST_STEPS = 16, BPE_MOST_FRAME = 16 };

/* Bytes that grow. */
struct bpe_text {
    char *at;
    size_t length, room;
};

/* ---- text.c: bytes, UTF-8 */
/* Out of memory the text is empty, what is added is lost, and bpe_text_failed is true until it is cleared. */
void bpe_text_add(struct bpe_text *text, const void *bytes, size_t count);
void bpe_text_clear(struct bpe_text *text);
bool bpe_text_failed(const struct bpe_text *text);
size_t bpe_utf8_length(const uint8_t *at, size_t left);     /* of the character at the start; 0: it is none */
size_t bpe_utf8_valid(const char *text, size_t bytes);      /* how many bytes from the start are valid */
size_t bpe_utf8_invalid(const char *text, size_t bytes);    /* how many bytes from the start are no characters */
uint32_t bpe_utf8_decode(const uint8_t *at, size_t length); /* of a valid character */
size_t bpe_utf8_encode(uint32_t character, char out[4]);
/* The alphabet of byte-level BPE (GPT-2's bytes_to_unicode): 256 characters that can be printed, one for each byte. */
uint32_t bpe_byte_character(uint8_t byte);
/* The bytes that a text of these characters stands for; false: another character is among them. `out` has room for as
 * many bytes as the text. */
bool bpe_bytes_of(const char *text, size_t bytes, char *out, size_t *count);

/* ---- map.c: byte strings to ids */
struct bpe_entry {
    size_t at; /* in the pool */
    uint32_t length;
    int32_t id;
};

struct bpe_map {
    uint32_t *slots; /* index + 1 of an entry; 0: free */
    struct bpe_entry *entries;
    struct bpe_text pool;
    uint32_t slot_bits, count;
};

bool bpe_map_reserve(struct bpe_map *map, size_t entries);
/* The later id of two equal strings counts. False: no memory, or no room was reserved. */
bool bpe_map_put(struct bpe_map *map, const char *text, size_t bytes, int32_t id);
int32_t bpe_map_find(const struct bpe_map *map, const char *text, size_t bytes); /* -1: it is not there */
void bpe_map_free(struct bpe_map *map);

/* ---- merge.c: the model */
struct bpe_pair {
    uint64_t key; /* left id + 1 in the upper half, right id in the lower; 0: free */
    uint32_t rank;
    int32_t id; /* of what the two become */
};

struct bpe_model {
    struct bpe_map words; /* in byte-level BPE the bytes that tokens stand for, else tokens */
    struct bpe_pair *pairs;
    int32_t *merged; /* by rank */
    uint32_t pair_bits, reserved_first;
    bool byte_level, byte_fallback, fuse_unk, ignore_merges, cut_at_space;
    uint8_t reserved[3];
    int32_t unk, reserved_too;
    int32_t byte_id[256]; /* of a byte, or of <0x00> ... <0xFF> of byte_fallback; -1: there is none */
};

bool bpe_pairs_reserve(struct bpe_model *model, size_t pairs, size_t ranks);
void bpe_pairs_put(struct bpe_model *model, int32_t left, int32_t right, uint32_t rank, int32_t id);
void bpe_model_free(struct bpe_model *model);

/* ---- regex.c */
struct bpe_regex {
    pcre2_code *code;
    uint32_t jit, reserved;
};

enum { BPE_REGEX_ONIGURUMA, BPE_REGEX_RUST }; /* whose syntax a pattern has */
/* Compiles a pattern; what PCRE2 reads in another way is translated or refused. `where` begins the message. */
int32_t bpe_regex_compile(struct bpe_regex *regex, const char *pattern, size_t bytes, int dialect, const char *where,
                          struct hd_error *err);
int32_t bpe_regex_compile_text(struct bpe_regex *regex, const char *text, size_t bytes, const char *where,
                               struct hd_error *err); /* matches exactly this text */
void bpe_regex_free(struct bpe_regex *regex);

/* ---- steps */
enum { BPE_REMOVED, BPE_ISOLATED, BPE_MERGED_WITH_PREVIOUS, BPE_MERGED_WITH_NEXT, BPE_CONTIGUOUS };
enum {
    BPE_SPLIT,     /* by a regex */
    BPE_PREFIX,    /* a space before a text that has none */
    BPE_METASPACE, /* spaces become the replacement, one is put before the text, words begin with it */
    BPE_SPELL,     /* bytes become the characters that stand for them in byte-level BPE */
};
enum { BPE_PREPEND_NEVER, BPE_PREPEND_ALWAYS, BPE_PREPEND_FIRST };

/* One pre-tokenizer. */
struct bpe_split {
    uint32_t kind; /* BPE_SPLIT, ... */
    uint32_t behavior;
    bool invert, cut;
    uint8_t reserved[2];
    uint32_t scheme;        /* of METASPACE: BPE_PREPEND_... */
    struct bpe_regex regex; /* of SPLIT, and of METASPACE: its replacement */
    char replacement[8];
    size_t replacement_length;
};

enum { BPE_NFC, BPE_NFD, BPE_NFKC, BPE_NFKD, BPE_LOWERCASE, BPE_PREPEND, BPE_REPLACE, BPE_STRIP };

/* One normalizer. */
struct bpe_normalizer {
    uint32_t kind; /* BPE_NFC, ... */
    bool left, right;
    uint8_t reserved[2];
    struct bpe_regex regex; /* of REPLACE */
    struct bpe_text content;
};

enum { BPE_DECODE_BYTE_LEVEL, BPE_DECODE_BYTE_FALLBACK, BPE_DECODE_REPLACE, BPE_DECODE_METASPACE };

/* One decoder of tokens by themselves. */
struct bpe_decoder {
    uint32_t kind;   /* BPE_DECODE_... */
    bool drop_first; /* of METASPACE: the first token's replacement is nothing */
    uint8_t reserved[3];
    struct bpe_text from, to;
};

/* ---- added.c: added tokens */
struct bpe_added {
    int32_t id;
    bool special, normalized, single_word, lstrip, rstrip;
    uint8_t reserved[7];
    struct bpe_text content; /* as the text to look for has it */
};

struct bpe_node {
    int32_t token, child, sibling; /* -1: there is none; token: index of bpe_added */
    uint32_t byte;
};

/* Tokens by their bytes. */
struct bpe_trie {
    struct bpe_node *nodes;
    uint32_t count, room;
    int32_t root[256];
};

struct bpe_context;
struct hd_tokenizer;
typedef int32_t (*bpe_piece)(struct bpe_context *c, const char *text, size_t bytes, bool first);

bool bpe_trie_add(struct bpe_trie *trie, const struct bpe_text *content, int32_t token);
void bpe_trie_init(struct bpe_trie *trie);
/* Calls `next` with what lies between added tokens, and gives their ids. */
int32_t bpe_cut_added(struct bpe_context *c, const struct bpe_trie *trie, const char *text, size_t bytes, bool first,
                      bpe_piece next);

size_t bpe_is_space(const char *text, size_t bytes); /* bytes of the White_Space at the start; 0: there is none */

/* ---- the tokenizer */
struct bpe_slice {
    size_t at;
    size_t length;
};

struct hd_tokenizer {
    const struct hd_host *host;
    char *path;
    struct bpe_model model;
    struct bpe_map names; /* tokens as the file has them, added ones too */
    struct bpe_added *added;
    struct bpe_trie raw, normalized; /* added tokens that are looked for before and after the normalizers */
    struct bpe_normalizer normalizers[BPE_MOST_STEPS];
    struct bpe_split splits[BPE_MOST_STEPS];
    struct bpe_decoder decoders[BPE_MOST_STEPS];
    int32_t prefix[BPE_MOST_FRAME], suffix[BPE_MOST_FRAME]; /* what the file puts around a text */
    uint32_t n_added, n_normalizers, n_splits, n_decoders, n_prefix, n_suffix;
    int64_t vocab, bos, eos, pad;
    /* By id: what decode gives, and gives for the first token of a text. -1 in `at`: there is no such id. */
    struct bpe_slice *decoded, *decoded_first;
    struct bpe_text decoded_pool;
    uint8_t *special; /* by id */
    char strip[8];    /* taken off the start of the decoded text, at most strip_most times */
    uint32_t strip_length, strip_most;
    bool join;    /* no decoder: spaces between tokens */
    bool fused;   /* the decoders so far make one text of all tokens */
    bool spelled; /* words are characters that stand for bytes: one of the splits is BPE_SPELL */
    uint8_t reserved[5];
    pthread_mutex_t lock;
    struct bpe_context *idle; /* contexts that no call uses */
};

/* ---- context.c: what one call of encode works with. As many are kept as calls ran at once. */
enum { BPE_CACHED_BYTES = 22, BPE_CACHED_IDS = 9, BPE_CACHE_BITS = 14, BPE_EMIT = 2048 };

struct bpe_cached {        /* a cache line */
    uint8_t length, count; /* length 0: free */
    char bytes[BPE_CACHED_BYTES];
    int32_t reserved;
    int32_t ids[BPE_CACHED_IDS];
};

struct bpe_symbol {
    int32_t id;          /* -1: merged into another */
    uint32_t prev, next; /* UINT32_MAX: there is none */
};

struct bpe_context {
    const struct hd_tokenizer *t;
    struct bpe_context *next;
    struct bpe_cached *cache;
    pcre2_match_data *match[BPE_MOST_STEPS + 1]; /* one a pre-tokenizer, and one for normalizers */
    pcre2_jit_stack *stack;
    pcre2_match_context *match_context;
    struct bpe_text scratch[BPE_MOST_STEPS + 1]; /* of pre-tokenizers that change text, and of a word */
    struct bpe_text normal[2];
    struct bpe_symbol *symbols;
    uint64_t *heap;
    size_t symbol_room, heap_room;
    /* of this call */
    void (*emit)(void *user, const int32_t *ids, size_t count);
    void *user;
    struct hd_error *err;
    uint32_t flags, n_ids;
    bool valid; /* the text is UTF-8 */
    uint8_t reserved[7];
    int32_t ids[BPE_EMIT];
};

struct bpe_context *bpe_context_get(const struct hd_tokenizer *t);
void bpe_context_put(struct bpe_context *c);
void bpe_context_free(struct bpe_context *c);
void bpe_emit_ids(struct bpe_context *c, const int32_t *ids, size_t count);
void bpe_flush(struct bpe_context *c);
int32_t bpe_no_memory(struct bpe_context *c);

/* The next match from `from` on; *start == bytes where there is none. `last` is the end of the match before, or
 * SIZE_MAX: an empty match there does not count. */
int32_t bpe_regex_next(struct bpe_context *c, const struct bpe_regex *regex, uint32_t slot, const char *text,
                       size_t bytes, size_t from, size_t last, size_t *start, size_t *end);
int32_t bpe_normalize(struct bpe_context *c, const char *text, size_t bytes, bool first);
int32_t bpe_normalize_text(struct bpe_context *c, const char **text, size_t *bytes);
int32_t bpe_pre_tokenize(struct bpe_context *c, const char *text, size_t bytes, bool first);
int32_t bpe_word(struct bpe_context *c, const char *text, size_t bytes);

/* ---- decode.c */
int32_t bpe_byte_of_token(const char *token, size_t bytes);             /* "<0x0A>": 10; -1: another token */
int32_t bpe_decode_table(struct hd_tokenizer *t, struct hd_error *err); /* after names, added and decoders are known */
int32_t bpe_decode(const struct hd_tokenizer *t, const int32_t *ids, size_t count, uint32_t flags,
                   void (*emit)(void *user, const char *text, size_t bytes), void *user, struct hd_error *err);

/* ---- files */
int32_t bpe_read_json(struct hd_tokenizer *t, const char *text, size_t bytes, struct hd_error *err);
int32_t bpe_read_normalizer(struct hd_tokenizer *t, json_t *step, struct hd_error *err);
int32_t bpe_read_pre_tokenizer(struct hd_tokenizer *t, json_t *step, struct hd_error *err);
int32_t bpe_read_decoder(struct hd_tokenizer *t, json_t *step, struct hd_error *err);
int32_t bpe_read_post_processor(struct hd_tokenizer *t, json_t *step, struct hd_error *err);
int32_t bpe_read_tiktoken(struct hd_tokenizer *t, const char *text, size_t bytes, struct hd_error *err);
int32_t bpe_check_unique(const struct hd_tokenizer *t, struct hd_error *err); /* are the ids of all names? */
/* Puts added tokens into the tries, with their normalized form where they ask for it. */
int32_t bpe_index_added(struct hd_tokenizer *t, struct hd_error *err);

#endif
