/* Added tokens: found in the text before anything else is done with it, the longest at the leftmost place. */
#include <utf8proc.h>

#include "internal.h"

/* ---- the trie */

void bpe_trie_init(struct bpe_trie *trie)
{
    *trie = (struct bpe_trie){0};
    for (size_t i = 0; i < 256; i++)
        trie->root[i] = -1;
}

/* The node of `byte` in a list of siblings; made where there is none. -1: no memory. */
static int32_t node_of(struct bpe_trie *trie, int32_t first, uint8_t byte, int32_t parent)
{
    for (int32_t i = first; i >= 0; i = trie->nodes[i].sibling)
        if (trie->nodes[i].byte == byte)
            return i;
    if (trie->count == trie->room) {
        uint32_t room = trie->room ? 2 * trie->room : 256;
        struct bpe_node *nodes = realloc(trie->nodes, room * sizeof *nodes);
        if (!nodes)
            return -1;
        trie->nodes = nodes;
        trie->room = room;
    }
    trie->nodes[trie->count] = (struct bpe_node){-1, -1, first, byte};
    if (parent < 0)
        trie->root[byte] = (int32_t)trie->count;
    else
        trie->nodes[parent].child = (int32_t)trie->count;
    return (int32_t)trie->count++;
}

bool bpe_trie_add(struct bpe_trie *trie, const struct bpe_text *content, int32_t token)
{
    int32_t at = -1;
    for (size_t i = 0; i < content->length; i++) {
        uint8_t byte = (uint8_t)content->at[i];
        at = node_of(trie, at < 0 ? trie->root[byte] : trie->nodes[at].child, byte, at);
        if (at < 0)
            return false;
    }
    if (at >= 0)
        trie->nodes[at].token = token;
    return true;
}

/* The longest token at the start of a text; -1: there is none. */
static int32_t longest(const struct bpe_trie *trie, const char *text, size_t bytes, size_t *length)
{
    int32_t found = -1, at = trie->root[(uint8_t)text[0]];
    for (size_t i = 0; at >= 0;) {
        if (trie->nodes[at].token >= 0) {
            found = trie->nodes[at].token;
            *length = i + 1;
        }
        if (++i == bytes)
            break;
        at = trie->nodes[at].child;
        while (at >= 0 && trie->nodes[at].byte != (uint8_t)text[i])
            at = trie->nodes[at].sibling;
    }
    return found;
}

/* ---- what stands beside them */

size_t bpe_is_space(const char *text, size_t bytes)
{
    size_t n = bytes ? bpe_utf8_length((const uint8_t *)text, bytes) : 0;
    uint32_t c = n ? bpe_utf8_decode((const uint8_t *)text, n) : 0;
    bool space = (c >= 9 && c <= 13) || c == ' ' || c == 0x85 || c == 0xa0 || c == 0x1680 ||
                 (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f ||
                 c == 0x3000;
    return space ? n : 0;
}

/* The start of the character before `at`; `at` if there is none. */
static size_t before(const char *text, size_t at)
{
    size_t from = at;
    for (size_t n = 1; n <= 4 && n <= at; n++)
        if (bpe_utf8_length((const uint8_t *)text + at - n, n) == n)
            from = at - n;
    return from;
}

static bool is_word(const char *text, size_t bytes)
{
    size_t n = bytes ? bpe_utf8_length((const uint8_t *)text, bytes) : 0;
    if (!n)
        return false;
    uint32_t c = bpe_utf8_decode((const uint8_t *)text, n);
    switch (utf8proc_category((utf8proc_int32_t)c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
        return true;
    default: /* join controls, and circled letters, which are alphabetic */
        return c == 0x200c || c == 0x200d || (c >= 0x24b6 && c <= 0x24e9) || (c >= 0x1f130 && c <= 0x1f189);
    }
}

static bool is_wanted(const struct bpe_context *c, const struct bpe_added *token, const char *text, size_t bytes,
                      size_t start, size_t end)
{
    if (token->special && !(c->flags & HD_TOKENIZER_SPECIAL))
        return false;
    if (!token->single_word)
        return true;
    size_t from = before(text, start);
    return !(from < start && is_word(text + from, start - from)) && !is_word(text + end, bytes - end);
}

int32_t bpe_cut_added(struct bpe_context *c, const struct bpe_trie *trie, const char *text, size_t bytes, bool first,
                      bpe_piece next)
{
    size_t done = 0, length = 0;
    int32_t rc = HD_OK;
    for (size_t at = 0; trie->count && !rc && at < bytes;) {
        int32_t found = trie->root[(uint8_t)text[at]] < 0 ? -1 : longest(trie, text + at, bytes - at, &length);
        if (found < 0) {
            at++;
            continue;
        }
        const struct bpe_added *token = &c->t->added[found];
        size_t start = at, end = at + length;
        at = end;
        if (start < done || !is_wanted(c, token, text, bytes, start, end))
            continue;
        for (size_t from; token->lstrip && start > done && (from = before(text, start)) >= done &&
                          bpe_is_space(text + from, start - from);)
            start = from;
        for (size_t n; token->rstrip && (n = bpe_is_space(text + end, bytes - end));)
            end += n;
        if (start > done)
            rc = next(c, text + done, start - done, first && done == 0);
        if (!rc)
            bpe_emit_ids(c, &token->id, 1);
        done = end;
    }
    return rc || done == bytes ? rc : next(c, text + done, bytes - done, first && done == 0);
}
