/* runtime/rendezvous/host_store: the host table for whoever opens a transport and builds no programs: `heddle bench`, tests.
 * log, alloc, free, store_put, store_get; the rest is NULL. */
#ifndef HD_CORE_COMM_HOST_H
#define HD_CORE_COMM_HOST_H

#include "heddle/host.h"

/* Static; never NULL. */
const struct hd_host *hd__comm_host(void);

#endif
