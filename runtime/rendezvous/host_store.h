/* runtime/rendezvous/host_store: host table for transports without a job, in `heddle bench` and tests: log, memory,
 * store; functions that build programs are NULL. */
#ifndef HD_RUNTIME_RENDEZVOUS_HOST_STORE_H
#define HD_RUNTIME_RENDEZVOUS_HOST_STORE_H

#include "heddle/host.h"

/* Static; never NULL. */
const struct hd_host *hd__store_host_table(void);

#endif
