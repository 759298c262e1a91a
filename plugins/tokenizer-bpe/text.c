/* Bytes, UTF-8 and the alphabet of byte-level BPE. */
#include "internal.h"

void bpe_text_clear(struct bpe_text *text)
{
    text->length = 0;
    text->room = text->at ? text->room : 0;
}

bool bpe_text_failed(const struct bpe_text *text)
{
    return text->room == SIZE_MAX;
}

void bpe_text_add(struct bpe_text *text, const void *bytes, size_t count)
{
    if (bpe_text_failed(text) || !count)
        return;
    if (text->length + count + 1 > text->room) {
        size_t room = 2 * text->room > text->length + count + 1 ? 2 * text->room : text->length + count + 64;
        char *at = realloc(text->at, room);
        if (!at) {
            free(text->at);
            *text = (struct bpe_text){NULL, 0, SIZE_MAX};
            return;
        }
        text->at = at;
        text->room = room;
    }
    memcpy(text->at + text->length, bytes, count);
    text->at[text->length += count] = 0;
}

size_t bpe_utf8_length(const uint8_t *at, size_t left)
{
    if (at[0] < 0x80)
        return 1;
    size_t n = at[0] >= 0xf0 ? 4 : at[0] >= 0xe0 ? 3 : 2;
    if (at[0] < 0xc2 || at[0] > 0xf4 || left < n)
        return 0;
    uint8_t least = at[0] == 0xe0 ? 0xa0 : at[0] == 0xf0 ? 0x90 : 0x80;
    uint8_t most = at[0] == 0xed ? 0x9f : at[0] == 0xf4 ? 0x8f : 0xbf; /* no surrogates, nothing above U+10FFFF */
    if (at[1] < least || at[1] > most)
        return 0;
    for (size_t i = 2; i < n; i++)
        if ((at[i] & 0xc0) != 0x80)
            return 0;
    return n;
}

size_t bpe_utf8_valid(const char *text, size_t bytes)
{
    const uint8_t *at = (const uint8_t *)text;
    size_t i = 0, n;
    for (uint64_t eight; i < bytes; i += n) {
        while (bytes - i >= 8 && (memcpy(&eight, at + i, 8), !(eight & UINT64_C(0x8080808080808080))))
            i += 8;
        if (i == bytes || !(n = bpe_utf8_length(at + i, bytes - i)))
            break;
    }
    return i;
}

size_t bpe_utf8_invalid(const char *text, size_t bytes)
{
    size_t i = 0;
    while (i < bytes && !bpe_utf8_length((const uint8_t *)text + i, bytes - i))
        i++;
    return i;
}

uint32_t bpe_utf8_decode(const uint8_t *at, size_t length)
{
    static const uint8_t mask[] = {0, 0x7f, 0x1f, 0x0f, 0x07};
    uint32_t c = at[0] & mask[length];
    for (size_t i = 1; i < length; i++)
        c = c << 6 | (at[i] & 0x3f);
    return c;
}

size_t bpe_utf8_encode(uint32_t c, char out[4])
{
    size_t n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    static const uint8_t lead[] = {0, 0, 0xc0, 0xe0, 0xf0};
    for (size_t i = n - 1; i > 0; i--, c >>= 6)
        out[i] = (char)(0x80 | (c & 0x3f));
    out[0] = (char)(lead[n] | c);
    return n;
}

/* Those that can be printed in Latin-1 stand for themselves, the others for U+0100 and up, in order. */
static bool is_printed(uint32_t byte)
{
    return (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

uint32_t bpe_byte_character(uint8_t byte)
{
    uint32_t others = 0;
    if (is_printed(byte))
        return byte;
    for (uint32_t b = 0; b < byte; b++)
        others += !is_printed(b);
    return 256 + others;
}

/* The byte of a character; -1: it is none of the alphabet. */
static int32_t byte_of(uint32_t character)
{
    if (character < 256)
        return is_printed(character) ? (int32_t)character : -1;
    for (uint32_t b = 0, n = 256; b < 256 && character < 256 + 68; b++)
        if (!is_printed(b) && n++ == character)
            return (int32_t)b;
    return -1;
}

bool bpe_bytes_of(const char *text, size_t bytes, char *out, size_t *count)
{
    const uint8_t *at = (const uint8_t *)text;
    *count = 0;
    for (size_t i = 0, n; i < bytes; i += n) {
        if (!(n = bpe_utf8_length(at + i, bytes - i)))
            return false;
        int32_t byte = byte_of(bpe_utf8_decode(at + i, n));
        if (byte < 0)
            return false;
        out[(*count)++] = (char)byte;
    }
    return true;
}
