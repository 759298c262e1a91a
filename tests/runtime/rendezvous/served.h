/* A rendezvous that a test serves, and ranks that join it. */
#ifndef HD_TESTS_RENDEZVOUS_SERVED_H
#define HD_TESTS_RENDEZVOUS_SERVED_H

#include "runtime/rendezvous/store.h"

extern struct hd__server *server; /* that of `serve` */
extern struct hd__server_options server_options;

void serve(int32_t size, double dead_after);
struct hd__store_options client_options(int32_t rank);
struct hd_store *join(int32_t rank);

#endif
