/* Ranks that their transport's launcher starts (mpirun): the test's own program, run again. What run_ranks would
 * hand to a forked child, it leaves in memory that they share. */
#ifndef HD_CONFORMANCE_COMM_LAUNCHED_H
#define HD_CONFORMANCE_COMM_LAUNCHED_H

#include <stdatomic.h>

#include "conformance/comm/ranks.h"

/* What the ranks must know of the server. Forked ones are there first, while there is one thread only. */
struct notice {
    _Atomic uint32_t port;
    _Atomic int32_t over; /* ranks whose body has returned */
    uint8_t secret[HD__SECRET_BYTES];
};

struct launched {
    struct notice notice;
    struct ranks_options options; /* settings: in `settings` */
    char settings[256];
    intptr_t body;                       /* from run_ranks on */
    _Atomic int32_t came[64], ended[64]; /* by rank: 1; 1 + the result, 0 while it has none */
};

/* As run_ranks, from where the server is there. */
int run_launched(const struct hd_comm_launcher *launcher, struct launched *shared, const char *path,
                 const int *expect_signal, double seconds);

#endif
