/* runtime/rendezvous/wire: the frames between a rank and the rendezvous server.
 *
 * A frame is a header of 16 bytes, then `key_bytes` of key, then `value_bytes` of value; all integers little-endian.
 * The header says every length, and a header whose lengths exceed the bounds below is refused before anything is
 * read or allocated for it. HELLO, CHALLENGE and PROOF begin a connection; the frames after them are sealed: a tag
 * follows each (runtime/rendezvous/auth.h). */
#ifndef HD_RUNTIME_RENDEZVOUS_WIRE_H
#define HD_RUNTIME_RENDEZVOUS_WIRE_H

#include <stddef.h>
#include <stdint.h>

enum {
    WIRE_HEADER = 16,
    WIRE_KEY_MAX = 255,
    WIRE_VALUE_MAX = 65536,
    WIRE_FRAME_MAX = WIRE_HEADER + WIRE_KEY_MAX + WIRE_VALUE_MAX,
    WIRE_SECRET = 32,
    WIRE_NONCE = 32,
    WIRE_TAG = 32, /* of a sealed frame; a proof */
    WIRE_SEALED_MAX = WIRE_FRAME_MAX + WIRE_TAG,
    WIRE_HELLO = 8 + WIRE_NONCE,            /* rank, size, nonce */
    WIRE_CHALLENGE = WIRE_NONCE + WIRE_TAG, /* nonce, proof */
    WIRE_ORIGIN = 8,                        /* in front of the cause in ABORT and DEAD: hd_error.origin */
    WIRE_VERSION = 3                        /* 2 sent the secret in the clear */
};

/* X(constant, value, longest value, key wanted). Requests carry an id that the reply repeats; `arg` is a time in
 * milliseconds for GET, BARRIER, ROLL_CALL, BUSY and LATE (how long the rank has waited), the sender's thread for
 * HEARTBEAT, 1 + the exit code for BYE where it is known, a result code for REPLY and for a rank's ABORT, a rank for
 * DEAD, WELCOME and the server's ABORT, HD__GATHER_... for PART and SHOW (runtime/rendezvous/dump_collect.h). */
#define WIRE_TYPES(X)                             \
    X(WIRE_NOTHING, 0, 0, 0)                      \
    X(WIRE_SAY_HELLO, 1, WIRE_HELLO, 0)           \
    X(WIRE_PUT, 2, WIRE_VALUE_MAX, 1)             \
    X(WIRE_GET, 3, 0, 1)                          \
    X(WIRE_BARRIER, 4, 0, 1)                      \
    X(WIRE_HEARTBEAT, 5, 0, 0)                    \
    X(WIRE_BYE, 6, 0, 0)                          \
    X(WIRE_ABORT, 7, 1024, 0)                     \
    X(WIRE_WELCOME, 8, 8, 0)                      \
    X(WIRE_REJECT, 9, 1024, 0)                    \
    X(WIRE_REPLY, 10, WIRE_VALUE_MAX, 0)          \
    X(WIRE_DEAD, 11, 1024, 0)                     \
    X(WIRE_DUMP, 12, WIRE_VALUE_MAX, 0)           \
    X(WIRE_WAITING, 13, 0, 0)                     \
    X(WIRE_DUMP_REQUEST, 14, 0, 0)                \
    X(WIRE_REMOVE, 15, 0, 1)                      \
    X(WIRE_CHALLENGE_RANK, 16, WIRE_CHALLENGE, 0) \
    X(WIRE_PROVE, 17, WIRE_TAG, 0)                \
    X(WIRE_ROLL_CALL, 18, 0, 1)                   \
    X(WIRE_CLOCK, 19, 0, 0)                       \
    X(WIRE_BUSY, 20, 0, 0)

enum {
#define WIRE_ENUM(constant, value, longest, key) constant = value,
    WIRE_TYPES(WIRE_ENUM)
#undef WIRE_ENUM
        WIRE_TYPE_COUNT
};

struct hd__frame {
    uint32_t type, id;
    int32_t arg;
    uint32_t key_bytes, value_bytes;
    const char *key;      /* not terminated */
    const uint8_t *value; /* both point into the bytes that were parsed */
};

/* Bytes of the frame at the front of `data`, and the frame; 0: more bytes are needed; -1: no frame of ours. */
ptrdiff_t hd__store_wire_parse(const uint8_t *data, size_t bytes, struct hd__frame *frame);
/* Writes the frame to `out` (room for WIRE_FRAME_MAX); returns its bytes. The lengths are within bounds. */
size_t hd__store_wire_write(uint8_t *out, const struct hd__frame *frame);

/* 4 bytes, little-endian, at any address. */
uint32_t hd__store_wire_u32(const uint8_t *at);
void hd__store_wire_put_u32(uint8_t *at, uint32_t value);
/* The value of an ABORT or DEAD: put writes it, cut where there is no room, and returns its bytes; the other reads it,
 * and returns 0 where it is too short. */
uint32_t hd__store_wire_put_end(uint8_t *out, size_t room, uint64_t origin, const char *cause);
int hd__store_wire_end(const struct hd__frame *frame, uint64_t *origin, char *cause, size_t room);
#endif
