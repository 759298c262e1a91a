/* The context of a call of encode: buffers, the cache of words, the stack of the regexes. A call takes an idle one, so
 * that threads share nothing. */
#include "internal.h"

enum { JIT_STACK = 1 << 20 };

void bpe_context_free(struct bpe_context *c)
{
    if (!c)
        return;
    for (size_t i = 0; i < COUNT(c->match); i++)
        pcre2_match_data_free(c->match[i]);
    for (size_t i = 0; i < COUNT(c->scratch); i++)
        free(c->scratch[i].at);
    free(c->normal[0].at);
    free(c->normal[1].at);
    pcre2_match_context_free(c->match_context);
    pcre2_jit_stack_free(c->stack);
    free(c->symbols);
    free(c->heap);
    free(c->cache);
    free(c);
}

static struct bpe_context *create(void)
{
    struct bpe_context *c = calloc(1, sizeof *c);
    if (!c)
        return NULL;
    bool made = (c->cache = aligned_alloc(64, sizeof *c->cache << BPE_CACHE_BITS)) != NULL;
    if (made)
        memset(c->cache, 0, sizeof *c->cache << BPE_CACHE_BITS);
    for (size_t i = 0; i < COUNT(c->match); i++)
        made = (c->match[i] = pcre2_match_data_create(1, NULL)) && made;
    made = (c->match_context = pcre2_match_context_create(NULL)) && made;
    made = (c->stack = pcre2_jit_stack_create(32 << 10, JIT_STACK, NULL)) && made;
    if (!made) {
        bpe_context_free(c);
        return NULL;
    }
    pcre2_jit_stack_assign(c->match_context, NULL, c->stack);
    return c;
}

struct bpe_context *bpe_context_get(const struct hd_tokenizer *tokenizer)
{
    struct hd_tokenizer *t = (struct hd_tokenizer *)tokenizer; /* only its list of contexts changes */
    pthread_mutex_lock(&t->lock);
    struct bpe_context *c = t->idle;
    if (c)
        t->idle = c->next;
    pthread_mutex_unlock(&t->lock);
    c = c ? c : create();
    if (c) {
        c->t = t;
        c->n_ids = 0;
    }
    return c;
}

void bpe_context_put(struct bpe_context *c)
{
    struct hd_tokenizer *t = (struct hd_tokenizer *)c->t;
    pthread_mutex_lock(&t->lock);
    c->next = t->idle;
    t->idle = c;
    pthread_mutex_unlock(&t->lock);
}

void bpe_flush(struct bpe_context *c)
{
    if (c->n_ids)
        c->emit(c->user, c->ids, c->n_ids);
    c->n_ids = 0;
}

void bpe_emit_ids(struct bpe_context *c, const int32_t *ids, size_t count)
{
    if (count > BPE_EMIT - c->n_ids)
        bpe_flush(c);
    if (count > BPE_EMIT) {
        c->emit(c->user, ids, count);
        return;
    }
    memcpy(c->ids + c->n_ids, ids, count * sizeof *ids);
    c->n_ids += (uint32_t)count;
}

int32_t bpe_no_memory(struct bpe_context *c)
{
    return hd_fail(c->err, HD_E_NOMEM, "%s: no memory for a text", c->t->path);
}
