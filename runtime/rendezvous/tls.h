/* runtime/rendezvous/tls: the connections of the rendezvous by TLS 1.3, by OpenSSL's libssl; an option, for networks
 * that others share. Below it everything stays as it is: the handshake by the secret, the sealed frames.
 *
 * Both ends show a certificate that the job's CA has signed. Names in it are not compared: the secret's proofs cover
 * this TLS session too (hd__tls_bind), so another holder of a certificate of that CA cannot stand in between. */
#ifndef HD_RUNTIME_RENDEZVOUS_TLS_H
#define HD_RUNTIME_RENDEZVOUS_TLS_H

#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>

#include "heddle/types.h"
#include "runtime/rendezvous/wire.h"

struct hd_deadline;
struct ssl_ctx_st; /* OpenSSL's SSL_CTX */
struct hd__tls;    /* one connection */

/* Out of HEDDLE_TLS_CA, HEDDLE_TLS_CERT and HEDDLE_TLS_KEY, files of PEM; NULL where none is set. It lives as long as
 * the process. */
int32_t hd__tls_context(struct ssl_ctx_st **context, struct hd_error *err);

/* On a connected socket, which stays the caller's. free: NULL is fine. */
struct hd__tls *hd__tls_new(struct ssl_ctx_st *context, int fd, int is_server);
void hd__tls_free(struct hd__tls *tls);
/* A rank's part of the handshake; the server's comes with its reads. */
int32_t hd__tls_connect(struct hd__tls *tls, struct hd_deadline *deadline, struct hd_error *err);
/* The secret becomes one of this session. */
void hd__tls_bind(struct hd__tls *tls, uint8_t secret[WIRE_SECRET]);

/* As recv and send with MSG_DONTWAIT; from two threads at a time. What write has taken may still have to be flushed. */
ssize_t hd__tls_read(struct hd__tls *tls, void *out, size_t bytes);
ssize_t hd__tls_write(struct hd__tls *tls, const void *data, size_t bytes);
int hd__tls_unflushed(struct hd__tls *tls); /* tries to; 1: something is left */
int hd__tls_pending(struct hd__tls *tls);   /* has something to read that poll() does not know of */
/* Why read, write or connect failed, where it was not the network; else NULL. */
const char *hd__tls_error(struct hd__tls *tls);

/* recv and send on a connection with TLS, or without (NULL). */
static inline ssize_t hd__tls_recv(int fd, struct hd__tls *tls, void *out, size_t bytes)
{
    return tls ? hd__tls_read(tls, out, bytes) : recv(fd, out, bytes, MSG_DONTWAIT);
}

static inline ssize_t hd__tls_send(int fd, struct hd__tls *tls, const void *data, size_t bytes)
{
    return tls ? hd__tls_write(tls, data, bytes) : send(fd, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* First byte of a record: a handshake, an alert. No frame of ours begins so. */
enum { HD__TLS_ALERT = 21, HD__TLS_HANDSHAKE = 22 };

#endif
