/* Secret of a job: generated, formatted, parsed. */
#include <ctype.h>

#include "core/base/base.h"
#include "runtime/rendezvous/auth.h"
#include "runtime/rendezvous/store.h"

_Static_assert(HD__SECRET_BYTES == WIRE_SECRET, "one secret");

void hd__store_secret_generate(uint8_t secret[HD__SECRET_BYTES])
{
    hd__auth_random(secret, HD__SECRET_BYTES);
}

void hd__store_secret_format(const uint8_t secret[HD__SECRET_BYTES], char text[HD__SECRET_TEXT])
{
    for (int i = 0; i < HD__SECRET_BYTES; i++)
        snprintf(text + 2 * i, 3, "%02x", secret[i]);
}

int hd__store_secret_parse(const char *text, uint8_t secret[HD__SECRET_BYTES])
{
    uint8_t out[HD__SECRET_BYTES] = {0};
    size_t n = strlen(text);
    if (n != 2 * HD__SECRET_BYTES && n != HD__SECRET_BYTES) /* 128 bits are enough for a key of HMAC */
        return 0;
    for (size_t i = 0; i < n; i++) {
        const char *digits = "0123456789abcdef", *d = strchr(digits, tolower((unsigned char)text[i]));
        if (!d || !*d)
            return 0;
        out[i / 2] = (uint8_t)(out[i / 2] << 4 | (d - digits));
    }
    memcpy(secret, out, sizeof out);
    return 1;
}
