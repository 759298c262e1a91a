/* service/train/sample: generated tokens from an open session that was compiled with HD__COMPILE_LOGITS. */
#ifndef HD_SERVICE_TRAIN_SAMPLE_H
#define HD_SERVICE_TRAIN_SAMPLE_H

#include "service/train/session.h"

struct hd__train_sample_config {
    const int32_t *prompt; /* at least one token */
    int64_t n_prompt;
    int64_t count;      /* tokens to generate */
    double temperature; /* 0: greedy */
    int64_t top_k;      /* 0: all */
    double top_p;       /* of the likeliest tokens as few as have this share of the probability; 1: all */
    uint64_t seed;
    int (*emit)(void *user, int32_t token); /* 0: go on, else this was the last */
    void *user;
};

/* Each token sees the last seq_len tokens. With HD__COMPILE_DECODE, and as long as there are no more, a token is one
 * step with the keys and values of those before it; else a forward pass over all of them. Collective: all ranks draw
 * the same tokens, and get them by `emit`, which has to say the same on all of them. */
int32_t hd__train_sample(struct hd__train_session *session, const struct hd__train_sample_config *config,
                         struct hd_error *err);

#endif
