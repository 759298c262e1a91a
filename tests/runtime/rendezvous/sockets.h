/* TCP sockets of tests on this machine. */
#ifndef HD_TESTS_RENDEZVOUS_SOCKETS_H
#define HD_TESTS_RENDEZVOUS_SOCKETS_H

#include <stdint.h>

/* A listening socket at a free port. */
int listen_anywhere(uint16_t *port);
/* A connection; what it receives has to come within 50 s. */
int connect_to(uint16_t port);

#endif
