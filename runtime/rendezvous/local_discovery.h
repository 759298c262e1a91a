/* runtime/rendezvous/local_discovery: finds the rendezvous of a single-machine job without an address: through an
 * abstract Unix socket whose name is derived from the launcher's job id. It is not a file, so nothing is left behind
 * by an earlier run. Only processes of the same user are accepted. */
#ifndef HD_RUNTIME_RENDEZVOUS_LOCAL_DISCOVERY_H
#define HD_RUNTIME_RENDEZVOUS_LOCAL_DISCOVERY_H

#include "runtime/rendezvous/store.h"

/* Rank 0: sends port and secret to ranks 1 to size - 1; returns when all have them. HD_E_TIMEOUT names a missing
 * rank. */
int32_t hd__store_discovery_serve(const char *id, int32_t size, uint16_t port, const uint8_t secret[HD__SECRET_BYTES],
                                  double deadline, struct hd_error *err);
/* Other ranks: retries until the deadline while rank 0 does not listen yet. */
int32_t hd__store_discovery_find(const char *id, int32_t rank, uint16_t *port, uint8_t secret[HD__SECRET_BYTES],
                                 double deadline, struct hd_error *err);

#endif
