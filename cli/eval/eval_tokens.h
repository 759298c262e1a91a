/* cli/eval_tokens: log-likelihoods of single tokens, and of requests as lm-evaluation-harness makes them. */
#ifndef HD_CLI_EVAL_TOKENS_H
#define HD_CLI_EVAL_TOKENS_H

#include "cli/text.h"
#include "service/train/token_losses.h"

/* `heddle eval --per-token FILE`: rows of float32, or of a file *.jsonl lines {"sequence", "loglikelihoods"}. */
int32_t hd__eval_per_token_check(const char *path, struct hd_error *err);
int32_t hd__eval_per_token(struct hd__train_session *session, int32_t part, int64_t sequences, const char *path,
                           struct hd_error *err);

/* `heddle eval --requests FILE --to FILE`. Init by {0}. */
struct hd__eval_row { /* tokens [first, first + count + 1) of the pool: the labels from `counted` on count */
    size_t first;
    int64_t count, counted;
    uint32_t request, reserved;
};
struct hd__eval_requests {
    const char *path, *to;
    struct hd__ids pool;
    HD__ARRAY(struct hd__eval_row) rows;
    HD__ARRAY(int64_t) tokens; /* of each request: labels that count */
    uint32_t cut, reserved;    /* requests whose context loses its beginning */
};
/* Reads and tokenizes the requests, and looks whether the answers can be written. Messages name file and line. */
int32_t hd__eval_requests_read(struct hd__eval_requests *requests, const struct hd__cli_text *text, int64_t seq_len,
                               struct hd_error *err);
int32_t hd__eval_requests_run(struct hd__train_session *session, const struct hd__eval_requests *requests,
                              struct hd_error *err);
void hd__eval_requests_free(struct hd__eval_requests *requests);

#endif
