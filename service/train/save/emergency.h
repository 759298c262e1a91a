/* service/train/save/emergency: after a fault, the ranks that are left save the state of the last step that they have
 * whole.
 *
 * They meet in the rendezvous, which knows who is left, and tell each other which step's state they hold. Of the newest
 * step whose holders have every element among them a checkpoint is saved, as any other but for what its state says. */
#ifndef HD_SERVICE_TRAIN_EMERGENCY_H
#define HD_SERVICE_TRAIN_EMERGENCY_H

#include "service/train/checkpointer/checkpointer.h"
#include "service/train/resume_diff.h"

struct hd__emergency {
    struct hd__train_session *session;
    struct hd__train_checkpointer *checkpointer;
    const struct hd__train_progress *progress;
    int whole;          /* this rank's state is that of progress->step; 0: a step has begun to change it */
    int storage_failed; /* it has just refused a save */
    int64_t saved;      /* the newest step of which a save has begun */
    const char *run;    /* of rank 0; "" elsewhere */
    const char *folder; /* of the checkpoints */
    const struct hd_error *why;
    double loss, norm, scale; /* of progress->step */
};

/* A step that was saved, as those tell rank 0 who saved it: it may have failed in that step. */
struct hd__emergency_saved {
    int64_t step, sequence, tokens, skipped; /* step 0: none was */
    double loss, norm, scale;
};

/* Makes the run's id known to all ranks, in time. Rank 0. */
void hd__train_emergency_prepare(struct hd__train_session *session, const char run[HD__RUN_ID]);
/* The id that rank 0 made known. A session of one rank has no store, and `run` stays. */
int32_t hd__train_emergency_find_run(const struct hd__train_session *session, char run[HD__RUN_ID],
                                     struct hd_error *err);
/* The same of what rank 0 knows of the data; NULL: it did not say, or this is a session of one rank. */
void hd__train_emergency_tell_data(struct hd__train_session *session, const struct hd__train_data_mark *data);
json_t *hd__train_emergency_find_data(const struct hd__train_session *session);
/* Collective over the ranks that are left, after hd__speaker_fail. Says what became of it. Returns 1 if this rank took
 * part in a save that came to its end. *saved is filled in on rank 0, also where others saved. */
int hd__train_emergency_save(const struct hd__emergency *e, struct hd__emergency_saved *saved);

#endif
