/* runtime/rendezvous/host_store: the host table for whoever opens a transport and builds no programs: `heddle bench`, tests.
 * log, alloc, free, store_put, store_get; the rest is NULL. */
#ifndef HD_RUNTIME_RENDEZVOUS_HOST_STORE_H
#define HD_RUNTIME_RENDEZVOUS_HOST_STORE_H

#include "heddle/host.h"

/* Static; never NULL. */
const struct hd_host *hd__store_host_table(void);

#endif
