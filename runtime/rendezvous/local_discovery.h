/* runtime/rendezvous/local_discovery: how ranks on one machine find the rendezvous when nobody said where it is: at a local socket whose name
 * follows from an id that their launcher gave to all of them. It is no file: nothing stays behind, and what an earlier run
 * left cannot be met. Only processes of the same user are let in. */
#ifndef HD_RUNTIME_RENDEZVOUS_LOCAL_DISCOVERY_H
#define HD_RUNTIME_RENDEZVOUS_LOCAL_DISCOVERY_H

#include "runtime/rendezvous/store.h"

/* For rank 0: tells ranks 1 to size - 1 where the rendezvous is, and returns when all know. HD_E_TIMEOUT names who did not
 * come. */
int32_t hd__store_discovery_serve(const char *id, int32_t size, uint16_t port, const uint8_t secret[HD__SECRET_BYTES],
                                  double deadline, struct hd_error *err);
/* For the others: asks until the deadline while rank 0 is not there yet. */
int32_t hd__store_discovery_find(const char *id, int32_t rank, uint16_t *port, uint8_t secret[HD__SECRET_BYTES],
                                 double deadline, struct hd_error *err);

#endif
