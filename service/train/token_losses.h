/* service/train/token_losses: the loss of each token, from an open session that was compiled with
 * HD__COMPILE_LOSSES. */
#ifndef HD_SERVICE_TRAIN_TOKEN_LOSSES_H
#define HD_SERVICE_TRAIN_TOKEN_LOSSES_H

#include "service/train/session.h"

/* A row of a micro-batch, or this rank's positions of it. */
struct hd__train_losses_row {
    int64_t sequence, count;
    const int64_t *position;  /* [count] */
    const float *loss;        /* [count] -log p(label); NaN: the label does not count, infinite: it is not finite */
    const uint8_t *likeliest; /* [count] is the label the likeliest token? */
};

struct hd__train_losses_config {
    struct hd__train_feed *feed; /* whole batches of data, from its first sequence on; or NULL: */
    int32_t (*token)(void *user, int64_t sequence, int64_t position, int labels); /* a label below 0 does not count */
    int64_t sequences;
    int32_t (*visit)(void *user, const struct hd__train_losses_row *row, struct hd_error *err);
    void *user;
};

/* Calls `visit` for each row whose losses this rank makes, of as many micro-batches as `sequences` take; ranks of one
 * tp group make the same. Collective. */
int32_t hd__train_token_losses(struct hd__train_session *session, const struct hd__train_losses_config *config,
                               struct hd_error *err);

#endif
