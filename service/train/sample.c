/* Sampling: softmax of logits / temperature over the top k and top p, drawn with a counter-based generator. */
#include "service/train/sample.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "core/base/dtype.h"

struct sampler {
    struct hd__train_session *session;
    const struct hd__train_sample_config *config;
    int64_t seq, vocab;
    int32_t *tokens; /* the whole sequence so far */
    int64_t n;
    float *logits;
    int32_t *order;
    uint64_t draws;
    int64_t cached; /* tokens whose keys and values are in the caches */
    int decoding;   /* the section that runs is decode */
};

/* The inputs of a step, of which only position 0 counts: the last token's. */
static void feed_step(const struct sampler *s, int32_t input, int32_t *out, int64_t count)
{
    const struct hd_program *p = hd__exec_program(s->session->exec);
    for (int64_t i = 0; i < count; i++)
        out[i] = input == HD__INPUT_IDS                ? s->tokens[s->n - 1]
                 : input == HD__INPUT_LABELS           ? 0
                 : i % p->dims.at[p->step].extent == 0 ? (int32_t)s->n - 1
                                                       : -1;
}

/* The last seq_len tokens; every sequence of the micro-batch is the one that is continued. */
static void feed_window(const struct sampler *s, int32_t input, int32_t *out, int64_t count)
{
    const struct hd_program *p = hd__exec_program(s->session->exec);
    const struct hd__tensor *t = hd__tensor_const(p, p->inputs[input]);
    int64_t from = HD__MAX(s->n - s->seq, 0), length = hd__local_extent(p, t, 1),
            start = hd__global_start(p, t, 1, hd__exec_coord(s->session->exec));
    for (int64_t i = 0; i < count; i++) {
        int64_t at = hd__sequence_position(p, start + i % length);
        out[i] = input == HD__INPUT_IDS && from + at < s->n ? s->tokens[from + at] : 0;
    }
}

static int32_t feed(void *user, int32_t input, int32_t *out, int64_t count, struct hd_error *err)
{
    const struct sampler *s = user;
    (void)err;
    if (s->decoding)
        feed_step(s, input, out, count);
    else if (input == HD__INPUT_POSITIONS)
        hd__train_session_feed_positions(s->session, out, count);
    else
        feed_window(s, input, out, count);
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

/* ---- logits of one position, which lie on some of the ranks */

/* Do the ranks at other coordinates of these axes have the same? Then those at 0 speak for them. */
static int speaks(const struct hd_program *p, const struct hd__tensor *t, const int32_t *coord)
{
    uint32_t apart = t->placement.partial | HD_AXIS_BIT(HD_AXIS_PP);
    for (int32_t d = 0; d < t->ndim; d++)
        apart |= hd__shard_mask(t->placement.shard[d]);
    for (int32_t a = 0; a < HD_AXIS_COUNT; a++)
        if (!(apart & HD_AXIS_BIT(a)) && coord[a])
            return 0;
    return hd__global_start(p, t, 0, coord) == 0;
}

/* The first sequence's logits at a position, as far as this rank has them; zeros elsewhere. */
static int32_t own_logits(struct sampler *s, hd_tensor logits, int64_t position, struct hd_error *err)
{
    struct hd__exec *exec = s->session->exec;
    struct hd_program *p = hd__exec_program(exec);
    const struct hd__tensor *t = hd__tensor_const(p, logits);
    const int32_t *coord = hd__exec_coord(exec);
    memset(s->logits, 0, (size_t)s->vocab * sizeof *s->logits);
    if (!logits || !speaks(p, t, coord))
        return HD_OK;
    int32_t rc = hd__exec_copy_tensors(exec, HD__D2H, &logits, 1, err);
    const char *data = hd__exec_host_data(exec, logits);
    int64_t width = hd__local_extent(p, t, 2), first = hd__global_start(p, t, 2, coord),
            start = hd__global_start(p, t, 1, coord), count = HD__MIN(width, s->vocab - first);
    for (int64_t i = 0; i < hd__local_extent(p, t, 1) && !rc && count > 0; i++)
        if (hd__sequence_position(p, start + i) == position)
            hd__to_f32(t->dtype, data + i * width * (int64_t)hd_dtype_size(t->dtype), s->logits + first,
                       (uint64_t)count);
    return rc;
}

/* All ranks have the same logits, and so take the same token. Beyond seq_len tokens every position shifts: what is in
 * the caches is of no use, and the whole window is computed each time. */
static int32_t next_token(struct sampler *s, int32_t *token, struct hd_error *err)
{
    struct hd_program *p = hd__exec_program(s->session->exec);
    s->decoding = p->keep_cache && !p->no_cache && s->cached == s->n - 1 && s->n <= s->seq;
    int32_t rc = hd__exec_run_section(s->session->exec, s->decoding ? HD__SECTION_DECODE : HD__SECTION_EVAL, err);
    if (!rc)
        rc = s->decoding ? own_logits(s, p->decode_logits, 0, err)
                         : own_logits(s, p->kept_logits, HD__MIN(s->n, s->seq) - 1, err);
    s->cached = s->n;
    if (!rc)
        rc = hd__exec_all_reduce_floats(s->session->exec, s->logits, s->vocab, err);
    if (rc)
        return rc;
    int64_t none = 0; /* logits of -Inf, which are never drawn */
    for (int64_t v = 0; v < s->vocab; v++) {
        none += s->logits[v] == -INFINITY;
        if (!(s->logits[v] < INFINITY) || none == s->vocab) {
            err->origin = hd__speaker_shared(&s->session->speaker, (uint32_t)s->n); /* all ranks find it */
            return hd_fail(err, HD_E_CORRUPT,
                           "the logits of token %" PRId64 " are not finite, so none can be drawn: precision.compute "
                           "overflows (fp32 has more room), or these weights are broken",
                           s->n + 1);
        }
    }
    *token = sample_token(s);
    return HD_OK;
}

static int32_t prepare(struct hd__train_session *session, struct hd_error *err)
{
    int32_t rc = HD_OK;
    if (hd__exec_program(session->exec)->gather_deferred)
        rc = hd__exec_run_section(session->exec, HD__SECTION_RESTORE, err);
    return rc ? rc : hd__exec_run_section(session->exec, HD__SECTION_BEGIN, err);
}

int32_t hd__train_sample(struct hd__train_session *session, const struct hd__train_sample_config *config,
                         struct hd_error *err)
{
    struct sampler s = {.session = session,
                        .config = config,
                        .seq = session->compiled->job->seq_len,
                        .vocab = session->compiled->info.vocab};
    int32_t rc = prepare(session, err);
    s.tokens = hd__alloc((size_t)(config->n_prompt + config->count) * sizeof *s.tokens);
    s.logits = hd__alloc((size_t)s.vocab * sizeof *s.logits);
    s.order = hd__alloc((size_t)s.vocab * sizeof *s.order);
    memcpy(s.tokens, config->prompt, (size_t)config->n_prompt * sizeof *s.tokens);
    s.n = config->n_prompt;
    hd__train_session_override_feed(session, feed, &s);
    for (int64_t i = 0; i < config->count && !rc; i++) {
        int32_t token = 0;
        rc = next_token(&s, &token, err);
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
