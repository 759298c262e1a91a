/* service/checkpoint/survivors: training state that some of the ranks store, where the others are gone. */
#ifndef HD_SERVICE_CHECKPOINT_SURVIVORS_H
#define HD_SERVICE_CHECKPOINT_SURVIVORS_H

#include "service/checkpoint/train_state.h"

/* As hd__ckpt_collect_train_state with per-rank state, of all, but with the runs that rank `me` stores where `ranks`,
 * ascending, of which it may be one, are all there are: every element is stored by one of them. *most: the most bytes
 * that one of them stores; *total: that all do. HD_E_NOTFOUND names what none of them has. Not collective: all ranks
 * compute the same. */
int32_t hd__ckpt_collect_survivors(struct hd__ckpt_train_state *state, const struct hd__ckpt_training *from, int32_t me,
                                   const int32_t *ranks, uint32_t n, uint64_t *most, uint64_t *total,
                                   struct hd_error *err);

#endif
