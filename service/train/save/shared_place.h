/* service/train/save/shared_place: do all ranks save into one folder, or store? Each rank writes its part of a
 * checkpoint, so folders of their own would fail at the first save, hours later. */
#ifndef HD_SERVICE_TRAIN_SHARED_PLACE_H
#define HD_SERVICE_TRAIN_SHARED_PLACE_H

#include "service/train/session.h"

struct hd__shared_place {
    const struct hd__train_session *session;
    const char *dir; /* checkpoint.dir, which `ckpt` has open */
    const struct hd_ckpt_ops *ops;
    struct hd_ckpt *ckpt;
    struct hd_ckpt_tx *begun; /* between check and end */
};

/* Rank 0 begins a checkpoint of a random number, and the others look whether they see it. Behind a barrier all call
 * end, which takes it away. Nothing is done where one heddle started all ranks on one machine. */
int32_t hd__shared_place_check(struct hd__shared_place *place, struct hd_error *err);
void hd__shared_place_end(struct hd__shared_place *place); /* of zeros, or twice, is fine */

#endif
