/* runtime/rendezvous/address: internet addresses, of IPv4 and IPv6 alike. */
#ifndef HD_RUNTIME_RENDEZVOUS_ADDRESS_H
#define HD_RUNTIME_RENDEZVOUS_ADDRESS_H

#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

enum { HD__ADDRESS_TEXT = 64 };

/* "10.0.0.1:29400", "[fd00::1]:29400"; of a name or address and a port, the same. */
void hd__address_text(const struct sockaddr_storage *at, char out[HD__ADDRESS_TEXT]);
void hd__address_join(const char *host, uint16_t port, char *out, size_t room);
/* The other way: HOST:PORT, or [ADDRESS]:PORT. 0: it is neither. */
int hd__address_split(const char *text, char *host, size_t room, uint16_t *port);
int hd__address_same_host(const struct sockaddr_storage *a, const struct sockaddr_storage *b);
int hd__address_is_loopback(const struct sockaddr_storage *at);
/* Does the name or address belong to this machine? */
int hd__address_is_here(const char *host);

#endif
