/* service/train/save/store_gather: collectives of saving ranks through the rendezvous, so that a background save uses
 * none of the training's transports; and how long their launcher is to let them live. */
#ifndef HD_SERVICE_TRAIN_STORE_GATHER_H
#define HD_SERVICE_TRAIN_STORE_GATHER_H

#include <stdatomic.h>

#include "service/checkpoint/checkpoint.h"
#include "service/train/session.h"

struct hd__store_gather {
    const struct hd__train_session *session;
    const char *name;     /* of its keys, its own */
    const int32_t *ranks; /* that take part; NULL: all */
    int32_t n;
    _Atomic int ended;              /* none succeeds from now on */
    _Atomic int64_t committed;      /* step of the newest save that is on disk, as far as this rank knows; 0: none */
    double patience;                /* seconds for the others; 0: comm.timeout */
    double busy_until;              /* or hd__now() up to which they write, where that is longer; 0: they do not */
    uint64_t exchanges, last_bytes; /* of the gather before, which are still in the store */
};

/* `gather` is filled in up to n. */
struct hd__ckpt_peers hd__store_gather_peers(struct hd__store_gather *gather);
/* As long as a slow disk takes for so many bytes. */
double hd__store_gather_seconds(uint64_t bytes);
/* A rank of them writes or reads so many bytes from now on: they wait for it, and launchers let them live, as long as
 * a slow disk takes; of what was said last. 0: that is over. */
void hd__store_gather_busy(struct hd__store_gather *gather, uint64_t bytes);

#endif
