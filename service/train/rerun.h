/* service/train/rerun: does an instruction give the same bits twice? (`watch.rerun`)
 *
 * In every Nth step each rank runs one of its instructions twice, another each time. What differs was changed by the
 * hardware: no copy of it need exist, as `watch.replicas` wants. */
#ifndef HD_SERVICE_TRAIN_RERUN_H
#define HD_SERVICE_TRAIN_RERUN_H

#include "service/train/session.h"

/* Steps between two; 0: none. */
int64_t hd__train_rerun_every(const struct hd__compiled *c);
/* Chooses an instruction of step `step`, which is about to run. The choice is the same whenever the step is run. */
void hd__train_rerun_next(struct hd__train_session *session, int64_t step);
/* Some rank had a difference in step `step`. HD_E_CORRUPT, which names rank, op, block, tensor and step. Collective. */
int32_t hd__train_rerun_name(struct hd__train_session *session, int64_t step, int32_t *wrong, struct hd_error *err);

#endif
