/* runtime/rendezvous/auth: how the two ends of a connection prove to each other that they know the job's secret, and
 * how each frame after that proves where it comes from. By OpenSSL's libcrypto: HMAC-SHA256 (RFC 2104) and HKDF (RFC
 * 5869).
 *
 * The handshake is a three-pass mutual authentication (ISO/IEC 9798-4); the secret itself is never sent:
 *
 *     rank   -> server   HELLO {rank, size, nonce}
 *     server -> rank     CHALLENGE {nonce, proof of "server"}
 *     rank   -> server   PROOF {proof of "rank"}
 *     server -> rank     WELCOME or REJECT, and all that follows in both directions: sealed
 *
 * A proof is an HMAC over who gives it, the version of the protocol, rank, size and both nonces. A sealed frame is
 * followed by its tag, an HMAC over its number in its direction and its bytes, by a key of this connection and
 * direction: what is altered, replayed, left out, reordered or sent back to its sender does not match. Nothing is
 * encrypted. */
#ifndef HD_RUNTIME_RENDEZVOUS_AUTH_H
#define HD_RUNTIME_RENDEZVOUS_AUTH_H

#include "runtime/rendezvous/wire.h"

/* The values of a handshake, the same on both ends. */
struct hd__auth_handshake {
    uint32_t rank, size;
    uint8_t rank_nonce[WIRE_NONCE], server_nonce[WIRE_NONCE];
};

enum hd__auth_role { HD__AUTH_RANK, HD__AUTH_SERVER };

/* One direction of a connection, by who sends. */
struct hd__auth_channel {
    uint8_t key[WIRE_TAG];
    uint64_t frames; /* sealed or opened so far */
};

void hd__auth_use_library(void); /* before any other use of OpenSSL */
void hd__auth_random(void *out, size_t bytes);

void hd__auth_prove(const uint8_t secret[WIRE_SECRET], enum hd__auth_role role, const struct hd__auth_handshake *h,
                    uint8_t proof[WIRE_TAG]);
int hd__auth_check_proof(const uint8_t secret[WIRE_SECRET], enum hd__auth_role role, const struct hd__auth_handshake *h,
                         const uint8_t proof[WIRE_TAG]);
/* The direction in which `role` sends. */
void hd__auth_channel_init(struct hd__auth_channel *c, const uint8_t secret[WIRE_SECRET], enum hd__auth_role role,
                           const struct hd__auth_handshake *h);

/* Derives from a secret the one for a session of the protocol below, by a value that only its two ends know. */
void hd__auth_bind(uint8_t secret[WIRE_SECRET], const uint8_t session[WIRE_SECRET]);

/* Writes the frame and its tag to `out` (room for WIRE_SEALED_MAX); returns the bytes. */
size_t hd__auth_seal(struct hd__auth_channel *c, uint8_t *out, const struct hd__frame *frame);
/* As hd__store_wire_parse, with the tag; -2: the tag does not match. */
ptrdiff_t hd__auth_open(struct hd__auth_channel *c, const uint8_t *data, size_t bytes, struct hd__frame *frame);

#endif
