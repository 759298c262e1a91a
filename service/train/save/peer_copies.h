/* service/train/save/peer_copies: checkpoint.peers: the state of each rank in the memory of its machine and of another.
 *
 * Every N steps a rank copies its state into memory that its launcher has opened (hd__launch_env.copies). A thread then
 * sends it to a peer, the same rank of the next machine, which keeps it in memory of its own launcher; the peer serves
 * that as a rendezvous does, with the secret and TLS of the job. Both places have two copies, of which one is replaced
 * when all ranks have made the other: at any time there is a whole set of one step, also when a machine is lost.
 *
 * A round that begins asks all ranks what they hold, and takes the newest whole set: from this machine where it is
 * here, else from a rank that has it. The mesh may be another than that of the round before. */
#ifndef HD_SERVICE_TRAIN_PEER_COPIES_H
#define HD_SERVICE_TRAIN_PEER_COPIES_H

#include "service/checkpoint/checkpoint.h"
#include "service/train/session.h"

struct hd__peer_copies;

/* A copy that came to its end. */
struct hd__peer_copied {
    int64_t step, bytes;     /* of this rank */
    double seconds, exposed; /* until the peer had it; of these the training waited */
};

/* For a session whose launcher has opened memory. */
int32_t hd__peer_copies_open(struct hd__train_session *s, struct hd__peer_copies **copies, struct hd_error *err);
void hd__peer_copies_close(struct hd__peer_copies *copies); /* waits for a copy under way; NULL is fine */

/* Collective, before a copy: 1 where all ranks have ended the last one; 0: this one is to be left out. */
int32_t hd__peer_copies_ready(struct hd__peer_copies *copies, int *ready, struct hd_error *err);
/* Copies the state in `save`, and returns while it is sent. What could not be sent is a warning. */
int32_t hd__peer_copies_save(struct hd__peer_copies *copies, const struct hd__ckpt_save *save, struct hd_error *err);
/* Once for each copy that this rank has ended: 1, and what it was. */
int hd__peer_copies_finished(struct hd__peer_copies *copies, struct hd__peer_copied *copied);

/* The state that a rank needs. The runs behind the first n_own_runs are of single ranks. */
struct hd__peer_wanted {
    const struct hd__ckpt_tensor *tensors;
    const struct hd__ckpt_run *runs;
    uint32_t n_tensors, n_runs, n_own_runs, reserved;
    const char *run;
    int64_t step;
};
/* Collective: fills the runs from the newest whole set of this run that is newer than `step`, and *found becomes its
 * step; -1: there is none, or a rank could not read it, which is a warning. Where the set is of another mesh, the runs
 * of single ranks are left out, and *rank_state becomes 0. *state: what rank 0 gave as save.state; the caller frees. */
int32_t hd__peer_copies_load(struct hd__peer_copies *copies, const struct hd__peer_wanted *wanted, int64_t *found,
                             json_t **state, int *rank_state, struct hd_error *err);

#endif
