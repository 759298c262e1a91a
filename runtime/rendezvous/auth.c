#include "runtime/rendezvous/auth.h"

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <openssl/rand.h>
#include <pthread.h>

#include "core/base/base.h"
#include "runtime/rendezvous/store.h"

#define ROLE_BYTES 16 /* of the label */
#define HANDSHAKE_BYTES (ROLE_BYTES + 12 + 2 * WIRE_NONCE)

/* Nobody is let in, nor left out, by a library that failed. */
static void check(int ok, const char *what)
{
    if (!ok)
        hd__die("libcrypto: %s: %s", what, ERR_reason_error_string(ERR_get_error()));
}

/* Without openssl.cnf, and without a clean-up at exit, where threads may still send. */
static void init_library(void)
{
    check(OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT | OPENSSL_INIT_NO_LOAD_CONFIG, NULL), "initialisation");
}

void hd__auth_use_library(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, init_library);
}

void hd__auth_random(void *out, size_t bytes)
{
    hd__auth_use_library();
    check(RAND_bytes(out, (int)bytes) == 1, "random numbers");
}

void hd__store_secret_derive(const char *text, uint8_t secret[HD__SECRET_BYTES])
{
    hd__auth_use_library();
    check(EVP_Digest(text, strlen(text), secret, NULL, EVP_sha256(), NULL), "SHA-256");
}

/* HMAC-SHA256 of two pieces. */
static void mac(const uint8_t key[WIRE_SECRET], const void *first, size_t first_bytes, const void *second,
                size_t second_bytes, uint8_t out[WIRE_TAG])
{
    OSSL_PARAM digest[] = {OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, (char[]){"SHA256"}, 0),
                           OSSL_PARAM_construct_end()};
    EVP_MAC *hmac;
    EVP_MAC_CTX *ctx;
    size_t bytes = 0;
    hd__auth_use_library();
    hmac = EVP_MAC_fetch(NULL, "HMAC", NULL);
    ctx = hmac ? EVP_MAC_CTX_new(hmac) : NULL;
    check(ctx && EVP_MAC_init(ctx, key, WIRE_SECRET, digest) && EVP_MAC_update(ctx, first, first_bytes) &&
              EVP_MAC_update(ctx, second, second_bytes) && EVP_MAC_final(ctx, out, &bytes, WIRE_TAG) &&
              bytes == WIRE_TAG,
          "HMAC-SHA256");
    EVP_MAC_CTX_free(ctx);
    EVP_MAC_free(hmac);
}

void hd__auth_bind(uint8_t secret[WIRE_SECRET], const uint8_t session[WIRE_SECRET])
{
    uint8_t out[WIRE_TAG];
    mac(secret, "session", 7, session, WIRE_SECRET, out);
    memcpy(secret, out, WIRE_SECRET);
}

/* Label and handshake as bytes. */
static void write_handshake(enum hd__auth_role role, const struct hd__auth_handshake *h, uint8_t out[HANDSHAKE_BYTES])
{
    static const char labels[][ROLE_BYTES] = {[HD__AUTH_RANK] = "heddle rank", [HD__AUTH_SERVER] = "heddle server"};
    memcpy(out, labels[role], ROLE_BYTES);
    hd__store_wire_put_u32(out + ROLE_BYTES, WIRE_VERSION);
    hd__store_wire_put_u32(out + ROLE_BYTES + 4, h->rank);
    hd__store_wire_put_u32(out + ROLE_BYTES + 8, h->size);
    memcpy(out + ROLE_BYTES + 12, h->rank_nonce, WIRE_NONCE);
    memcpy(out + ROLE_BYTES + 12 + WIRE_NONCE, h->server_nonce, WIRE_NONCE);
}

void hd__auth_prove(const uint8_t secret[WIRE_SECRET], enum hd__auth_role role, const struct hd__auth_handshake *h,
                    uint8_t proof[WIRE_TAG])
{
    uint8_t text[HANDSHAKE_BYTES];
    write_handshake(role, h, text);
    mac(secret, "proof", 5, text, sizeof text, proof);
}

int hd__auth_check_proof(const uint8_t secret[WIRE_SECRET], enum hd__auth_role role, const struct hd__auth_handshake *h,
                         const uint8_t proof[WIRE_TAG])
{
    uint8_t right[WIRE_TAG];
    hd__auth_prove(secret, role, h, right);
    return !CRYPTO_memcmp(right, proof, sizeof right);
}

void hd__auth_channel_init(struct hd__auth_channel *c, const uint8_t secret[WIRE_SECRET], enum hd__auth_role role,
                           const struct hd__auth_handshake *h)
{
    uint8_t text[HANDSHAKE_BYTES];
    write_handshake(role, h, text);
    OSSL_PARAM params[] = {
        OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, (char[]){"SHA256"}, 0),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_KEY, (void *)secret, WIRE_SECRET),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_SALT, text + sizeof text - (size_t)2 * WIRE_NONCE,
                                          (size_t)2 * WIRE_NONCE),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_INFO, text, sizeof text), OSSL_PARAM_construct_end()};
    EVP_KDF *hkdf;
    EVP_KDF_CTX *ctx;
    hd__auth_use_library();
    hkdf = EVP_KDF_fetch(NULL, "HKDF", NULL);
    ctx = hkdf ? EVP_KDF_CTX_new(hkdf) : NULL;
    check(ctx && EVP_KDF_derive(ctx, c->key, sizeof c->key, params) == 1, "HKDF");
    c->frames = 0;
    EVP_KDF_CTX_free(ctx);
    EVP_KDF_free(hkdf);
}

static void tag_of(const struct hd__auth_channel *c, const uint8_t *frame, size_t bytes, uint8_t tag[WIRE_TAG])
{
    uint8_t number[8];
    hd__store_wire_put_u32(number, (uint32_t)c->frames);
    hd__store_wire_put_u32(number + 4, (uint32_t)(c->frames >> 32));
    mac(c->key, number, sizeof number, frame, bytes, tag);
}

size_t hd__auth_seal(struct hd__auth_channel *c, uint8_t *out, const struct hd__frame *frame)
{
    size_t bytes = hd__store_wire_write(out, frame);
    tag_of(c, out, bytes, out + bytes);
    c->frames++;
    return bytes + WIRE_TAG;
}

ptrdiff_t hd__auth_open(struct hd__auth_channel *c, const uint8_t *data, size_t bytes, struct hd__frame *frame)
{
    ptrdiff_t used = hd__store_wire_parse(data, bytes, frame);
    uint8_t tag[WIRE_TAG];
    if (used <= 0)
        return used;
    if (bytes < (size_t)used + WIRE_TAG)
        return 0;
    tag_of(c, data, (size_t)used, tag);
    if (CRYPTO_memcmp(tag, data + used, WIRE_TAG))
        return -2;
    c->frames++;
    return used + WIRE_TAG;
}
