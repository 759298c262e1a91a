/* tiktoken files: a line a token, its bytes in base64 and its rank, which is its id. A file says neither its regex nor
 * its special tokens; those of the published ones are known by the number of their ranks. */
#include "internal.h"

enum { TIKTOKEN_LONGEST = 256, TIKTOKEN_SPECIAL = 256 }; /* bytes of a token, special tokens */

struct special {
    const char *name;
    int32_t id;
    uint32_t reserved;
};

struct encoding {
    const char *name, *pattern, *bos;
    uint32_t ranks, last; /* lines, and the greatest rank */
    struct special special[8];
    const char *reserved; /* what further special tokens are called; NULL: there are none */
    uint32_t n_special;   /* with these; their ids are those behind the ranks */
    bool nfc;
    uint8_t padding[3];
};

/* tiktoken_ext/openai_public.py of tiktoken, llama/tokenizer.py of meta-llama/llama3, tokenization_qwen.py of Qwen. */
#define GPT2_PATTERN "'(?:[sdmt]|ll|ve|re)| ?\\p{L}++| ?\\p{N}++| ?[^\\s\\p{L}\\p{N}]++|\\s++$|\\s+(?!\\S)|\\s"
#define CL100K_PATTERN                                                                                            \
    "'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}++|\\p{N}{1,3}+| ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*+|\\s++$|" \
    "\\s*[\\r\\n]|\\s+(?!\\S)|\\s"
#define O200K_PATTERN                                                                                                  \
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+(?i:'s|'t|'re|'ve|'m|'"  \
    "ll|"                                                                                                              \
    "'d)?|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*(?i:'s|'t|'re|'ve|" \
    "'m|'ll|'d)?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define WORDS_PATTERN(number)                                                                               \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" number "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" \
    "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

static const struct encoding encodings[] = {
    {"r50k_base", GPT2_PATTERN, NULL, 50256, 50255, {{"<|endoftext|>", 50256, 0}}},
    {"p50k_base", GPT2_PATTERN, NULL, 50280, 50280, {{"<|endoftext|>", 50256, 0}}},
    {"cl100k_base",
     CL100K_PATTERN,
     NULL,
     100256,
     100255,
     {{"<|endoftext|>", 100257, 0},
      {"<|fim_prefix|>", 100258, 0},
      {"<|fim_middle|>", 100259, 0},
      {"<|fim_suffix|>", 100260, 0},
      {"<|endofprompt|>", 100276, 0}}},
    {"o200k_base", O200K_PATTERN, NULL, 199998, 199997, {{"<|endoftext|>", 199999, 0}, {"<|endofprompt|>", 200018, 0}}},
    {"Llama 3",
     WORDS_PATTERN("\\p{N}{1,3}"),
     "<|begin_of_text|>",
     128000,
     127999,
     {{"<|begin_of_text|>", 128000, 0},
      {"<|end_of_text|>", 128001, 0},
      {"<|start_header_id|>", 128006, 0},
      {"<|end_header_id|>", 128007, 0},
      {"<|eot_id|>", 128009, 0}},
     "<|reserved_special_token_%u|>",
     256,
     false,
     {0}},
    {"Qwen",
     WORDS_PATTERN("\\p{N}"),
     NULL,
     151643,
     151642,
     {{"<|endoftext|>", 151643, 0}, {"<|im_start|>", 151644, 0}, {"<|im_end|>", 151645, 0}},
     "<|extra_%u|>",
     208,
     true,
     {0}},
};

/* ---- lines */

static int32_t digit_of(uint8_t c)
{
    if (c >= 'A' && c <= 'Z')
        return c - 'A';
    if (c >= 'a' && c <= 'z')
        return c - 'a' + 26;
    return c >= '0' && c <= '9' ? c - '0' + 52 : c == '+' ? 62 : c == '/' ? 63 : -1;
}

/* The bytes of base64; false: it is none. */
static bool base64(const char *text, size_t n, char *out, size_t *bytes)
{
    uint32_t bits = 0;
    size_t pad = n >= 2 && text[n - 1] == '=' ? 1 + (text[n - 2] == '=') : 0;
    *bytes = 0;
    for (size_t i = 0; i < n - pad; i++) {
        int32_t digit = digit_of((uint8_t)text[i]);
        if (digit < 0)
            return false;
        bits = bits << 6 | (uint32_t)digit;
        if (i % 4)
            out[(*bytes)++] = (char)(bits >> (6 - 2 * (i % 4)));
    }
    return n && n % 4 == 0;
}

struct line {
    const char *text; /* base64 */
    size_t bytes;
    int64_t rank; /* -1: the line is no token's */
};

/* The line at *at, which moves behind it; false at the end. Empty lines are passed over. */
static bool next_line(const char *text, size_t bytes, size_t *at, struct line *line)
{
    while (*at < bytes && (text[*at] == '\n' || text[*at] == '\r'))
        ++*at;
    if (*at == bytes)
        return false;
    const char *start = text + *at, *end = memchr(start, '\n', bytes - *at);
    size_t n = end ? (size_t)(end - start) : bytes - *at, i;
    const char *space = memchr(start, ' ', n);
    *at += n;
    n -= n && start[n - 1] == '\r';
    *line = (struct line){start, space ? (size_t)(space - start) : 0, -1};
    if (!line->bytes || line->bytes + 1 >= n)
        return true;
    line->rank = 0;
    for (i = line->bytes + 1; i < n && line->rank >= 0; i++)
        line->rank =
            start[i] < '0' || start[i] > '9' || line->rank >= BPE_MOST_IDS ? -1 : line->rank * 10 + start[i] - '0';
    if (line->rank >= BPE_MOST_IDS)
        line->rank = -1;
    return true;
}

static int32_t bad_line(const struct hd_tokenizer *t, uint32_t number, struct hd_error *err)
{
    if (number == 1)
        return hd_fail(err, HD_E_UNSUPPORTED, "%s: neither a tokenizer.json nor a tiktoken file", t->path);
    return hd_fail(err, HD_E_CORRUPT, "%s: token %u is not base64, a space and a rank that no other has", t->path,
                   number);
}

static int32_t count_lines(const struct hd_tokenizer *t, const char *text, size_t bytes, uint32_t *count,
                           struct hd_error *err)
{
    struct line line;
    *count = 0;
    for (size_t at = 0; next_line(text, bytes, &at, &line);) {
        if (line.rank < 0 || line.bytes % 4)
            return bad_line(t, *count + 1, err);
        ++*count;
    }
    return *count ? HD_OK : bad_line(t, 1, err);
}

static int32_t read_lines(struct hd_tokenizer *t, const char *text, size_t bytes, struct hd_error *err)
{
    struct line line;
    uint32_t number = 0;
    int32_t rc = HD_OK;
    char *token = malloc(bytes + 1);
    if (!token)
        return hd_fail(err, HD_E_NOMEM, "%s: no memory", t->path);
    for (size_t at = 0, n; !rc && next_line(text, bytes, &at, &line);) {
        number++;
        if (!base64(line.text, line.bytes, token, &n) || !n || bpe_map_find(&t->names, token, n) >= 0)
            rc = bad_line(t, number, err);
        else if (!bpe_map_put(&t->names, token, n, (int32_t)line.rank) ||
                 !bpe_map_put(&t->model.words, token, n, (int32_t)line.rank))
            rc = hd_fail(err, HD_E_NOMEM, "%s: no memory", t->path);
        t->vocab = line.rank >= t->vocab ? line.rank + 1 : t->vocab;
    }
    free(token);
    return rc;
}

/* ---- merges: any two tokens whose bytes together are a token, by its rank */

static uint64_t each_pair(struct hd_tokenizer *t, bool put)
{
    const struct bpe_map *words = &t->model.words;
    uint64_t pairs = 0;
    for (uint32_t i = 0; i < words->count; i++) {
        const struct bpe_entry *e = &words->entries[i];
        const char *token = words->pool.at + e->at;
        for (uint32_t k = 1; k < e->length && e->length <= TIKTOKEN_LONGEST; k++) {
            int32_t left = bpe_map_find(words, token, k);
            int32_t right = left < 0 ? -1 : bpe_map_find(words, token + k, e->length - k);
            pairs += right >= 0;
            if (right >= 0 && put)
                bpe_pairs_put(&t->model, left, right, (uint32_t)e->id, e->id);
        }
    }
    return pairs;
}

static int32_t make_pairs(struct hd_tokenizer *t, struct hd_error *err)
{
    struct bpe_model *m = &t->model;
    for (uint32_t i = 0; i < m->words.count; i++)
        if (m->words.entries[i].length > TIKTOKEN_LONGEST)
            return hd_fail(err, HD_E_INVALID, "%s: the token %d has %u bytes: at most %d are supported", t->path,
                           m->words.entries[i].id, m->words.entries[i].length, TIKTOKEN_LONGEST);
    if (!bpe_pairs_reserve(m, each_pair(t, false), (size_t)t->vocab))
        return hd_fail(err, HD_E_NOMEM, "%s: no memory for its merges", t->path);
    each_pair(t, true);
    m->byte_level = m->ignore_merges = true;
    for (uint32_t b = 0; b < 256; b++)
        if ((m->byte_id[b] = bpe_map_find(&m->words, &(char){(char)b}, 1)) < 0)
            return hd_fail(err, HD_E_CORRUPT, "%s: the byte %02x is no token; every byte has to be one", t->path, b);
    return HD_OK;
}

/* ---- what the file does not say */

static int32_t add_special(struct hd_tokenizer *t, const char *name, int32_t id, struct hd_error *err)
{
    struct bpe_added *a = &t->added[t->n_added++];
    a->id = id;
    a->special = true;
    bpe_text_add(&a->content, name, strlen(name));
    t->vocab = id >= t->vocab ? id + 1 : t->vocab;
    return !bpe_text_failed(&a->content) && bpe_map_put(&t->names, name, strlen(name), id)
               ? HD_OK
               : hd_fail(err, HD_E_NOMEM, "%s: no memory", t->path);
}

/* Those without a name of their own are numbered. */
static int32_t add_reserved(struct hd_tokenizer *t, const struct encoding *e, struct hd_error *err)
{
    uint32_t named = t->n_added, next = 0;
    int32_t rc = HD_OK, first = (int32_t)e->last + 1;
    for (int32_t id = first; id < first + (int32_t)e->n_special && !rc; id++) {
        char name[48];
        bool taken = false;
        for (uint32_t i = 0; i < named; i++)
            taken |= t->added[i].id == id;
        if (taken)
            continue;
        snprintf(name, sizeof name, e->reserved, next++);
        rc = add_special(t, name, id, err);
    }
    return rc;
}

static int32_t apply(struct hd_tokenizer *t, const struct encoding *e, struct hd_error *err)
{
    int32_t rc = HD_OK;
    t->added = calloc(TIKTOKEN_SPECIAL, sizeof *t->added);
    if (!t->added)
        return hd_fail(err, HD_E_NOMEM, "%s: no memory", t->path);
    for (size_t i = 0; i < COUNT(e->special) && e->special[i].name && !rc; i++)
        rc = add_special(t, e->special[i].name, e->special[i].id, err);
    if (rc || (e->reserved && (rc = add_reserved(t, e, err))))
        return rc;
    t->eos = e->special[e->bos ? 1 : 0].id;
    if (e->bos) {
        t->bos = t->prefix[0] = e->special[0].id;
        t->n_prefix = 1;
    }
    if (e->nfc)
        t->normalizers[t->n_normalizers++] = (struct bpe_normalizer){.kind = BPE_NFC};
    t->n_splits = 1;
    t->splits[0] = (struct bpe_split){.kind = BPE_SPLIT, .behavior = BPE_ISOLATED};
    rc = bpe_regex_compile(&t->splits[0].regex, e->pattern, strlen(e->pattern), BPE_REGEX_RUST, t->path, err);
    return rc ? rc : bpe_index_added(t, err);
}

static int32_t identify(struct hd_tokenizer *t, uint32_t lines, struct hd_error *err)
{
    char known[240];
    size_t n = 0;
    for (size_t i = 0; i < COUNT(encodings); i++) {
        const struct encoding *e = &encodings[i];
        if (e->ranks == lines && e->last + 1 == t->vocab)
            return apply(t, e, err);
        n += (size_t)snprintf(known + n, sizeof known - n, "%s%s %u", i ? ", " : "", e->name, e->ranks);
    }
    return hd_fail(err, HD_E_INVALID,
                   "%s: a tiktoken file with %u tokens, which says neither its regex nor its special tokens; these are "
                   "known: %s. Write it as tokenizer.json: transformers.convert_slow_tokenizer.TikTokenConverter",
                   t->path, lines, known);
}

int32_t bpe_read_tiktoken(struct hd_tokenizer *t, const char *text, size_t bytes, struct hd_error *err)
{
    uint32_t lines;
    int32_t rc = count_lines(t, text, bytes, &lines, err);
    if (rc)
        return rc;
    if (!bpe_map_reserve(&t->names, (size_t)lines + TIKTOKEN_SPECIAL) || !bpe_map_reserve(&t->model.words, lines))
        return hd_fail(err, HD_E_NOMEM, "%s: no memory", t->path);
    if ((rc = read_lines(t, text, bytes, err)) || (rc = bpe_check_unique(t, err)) || (rc = identify(t, lines, err)))
        return rc;
    return make_pairs(t, err);
}
