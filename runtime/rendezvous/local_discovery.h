/* runtime/rendezvous/local_discovery: hands the port and the secret of a rendezvous to ranks on the same machine,
 * through an abstract Unix socket whose name is derived from an id that they have in common. It is not a file, so
 * nothing is left behind by an earlier run. The kernel says who is at the other end (SO_PEERCRED): only processes of
 * the same user get an answer, and only of such one is believed. */
#ifndef HD_RUNTIME_RENDEZVOUS_LOCAL_DISCOVERY_H
#define HD_RUNTIME_RENDEZVOUS_LOCAL_DISCOVERY_H

#include "runtime/rendezvous/store.h"

/* The server: a non-blocking listener in *fd. */
int32_t hd__store_discovery_listen(const char *id, int *fd, struct hd_error *err);
/* Answers one that asks; it may be nobody by now. Never blocks. */
void hd__store_discovery_answer(int fd, uint16_t port, const uint8_t secret[HD__SECRET_BYTES]);
/* A rank: asks once. HD_E_IO: nobody of this user listens yet. */
int32_t hd__store_discovery_find(const char *id, uint16_t *port, uint8_t secret[HD__SECRET_BYTES],
                                 struct hd_error *err);

#endif
