/* Sampling: softmax of logits / temperature over the top k and top p, drawn with a counter-based generator. */
#include "service/train/sample.h"

#include <math.h>
#include <stdlib.h>

#include "core/base/dtype.h"
#include "service/checkpoint/safetensors.h"

struct sampler {
    const struct hd__train_sample_config *config;
    int64_t seq, vocab;
    int32_t *tokens; /* the whole sequence so far */
    int64_t n;
    float *logits;
    int32_t *order;
    uint64_t draws;
};

static int32_t feed_prompt(void *user, int32_t labels, int32_t *out, int64_t count, struct hd_error *err)
{
    const struct sampler *s = user;
    int64_t from = s->n > s->seq ? s->n - s->seq : 0;
    (void)err;
    memset(out, 0, (size_t)count * sizeof *out);
    if (!labels)
        memcpy(out, s->tokens + from, (size_t)(s->n - from) * sizeof *out);
    return HD_OK;
}

static const float *sort_by;

static int by_logit(const void *a, const void *b)
{
    float x = sort_by[*(const int32_t *)a], y = sort_by[*(const int32_t *)b];
    return x > y ? -1 : x < y ? 1 : *(const int32_t *)a - *(const int32_t *)b;
}

static double weight(const struct sampler *s, int64_t rank)
{
    return exp((s->logits[s->order[rank]] - s->logits[s->order[0]]) / s->config->temperature);
}

/* Nucleus sampling (arXiv 1904.09751): the likeliest tokens up to the one whose sum reaches top_p. *total: the sum. */
static int64_t keep_top(const struct sampler *s, double *total)
{
    int64_t keep = s->config->top_k > 0 ? HD__MIN(s->config->top_k, s->vocab) : s->vocab, n = 0;
    double all = 0, sum = 0;
    for (int64_t v = 0; v < keep; v++)
        all += weight(s, v);
    *total = all;
    if (s->config->top_p >= 1)
        return keep;
    while (n < keep && sum < s->config->top_p * all)
        sum += weight(s, n++);
    *total = n ? sum : weight(s, 0);
    return HD__MAX(n, 1);
}

static int32_t likeliest(const struct sampler *s)
{
    int32_t best = 0;
    for (int64_t v = 1; v < s->vocab; v++)
        if (s->logits[v] > s->logits[best])
            best = (int32_t)v;
    return best;
}

static int32_t sample_token(struct sampler *s)
{
    double total, target;
    int64_t keep;
    if (s->config->temperature <= 0)
        return likeliest(s);
    for (int64_t v = 0; v < s->vocab; v++)
        s->order[v] = (int32_t)v;
    sort_by = s->logits;
    qsort(s->order, (size_t)s->vocab, sizeof *s->order, by_logit);
    keep = keep_top(s, &total);
    target = (double)(hd__hash(&s->draws, sizeof s->draws, s->config->seed) >> 11) * 0x1p-53 * total;
    s->draws++;
    for (int64_t v = 0; v < keep; v++) {
        target -= weight(s, v);
        if (target < 0)
            return s->order[v];
    }
    return s->order[keep - 1];
}

static int32_t next_token(struct hd__train_session *session, struct sampler *s, int32_t *token, struct hd_error *err)
{
    struct hd_program *p = hd__exec_program(session->exec);
    const struct hd__tensor *t = hd__tensor_const(p, p->kept_logits);
    int64_t at = HD__MIN(s->n, s->seq) - 1;
    int32_t rc = hd__exec_run_section(session->exec, HD__SECTION_EVAL, err);
    const char *row = hd__exec_host_data(session->exec, p->kept_logits);
    if (!rc)
        rc = hd__exec_copy_tensors(session->exec, HD__D2H, &p->kept_logits, 1, err);
    if (rc)
        return rc;
    hd__to_f32(t->dtype, row + at * s->vocab * (int64_t)hd_dtype_size(t->dtype), s->logits, (uint64_t)s->vocab);
    *token = sample_token(s);
    return HD_OK;
}

int32_t hd__train_sample(struct hd__train_session *session, const struct hd__train_sample_config *config,
                         struct hd_error *err)
{
    struct sampler s = {
        .config = config, .seq = session->compiled->job->seq_len, .vocab = session->compiled->info.vocab};
    int32_t rc = HD_OK;
    s.tokens = hd__alloc((size_t)(config->n_prompt + config->count) * sizeof *s.tokens);
    s.logits = hd__alloc((size_t)s.vocab * sizeof *s.logits);
    s.order = hd__alloc((size_t)s.vocab * sizeof *s.order);
    memcpy(s.tokens, config->prompt, (size_t)config->n_prompt * sizeof *s.tokens);
    s.n = config->n_prompt;
    hd__train_session_override_feed(session, feed_prompt, &s);
    for (int64_t i = 0; i < config->count && !rc; i++) {
        int32_t token;
        rc = next_token(session, &s, &token, err);
        if (rc)
            break;
        s.tokens[s.n++] = token;
        if (config->emit(config->user, token))
            break;
    }
    hd__train_session_override_feed(session, NULL, NULL);
    free(s.tokens);
    free(s.logits);
    free(s.order);
    return rc;
}
