/* Event files: TFRecord framing and the few protobuf fields that scalars need.
 *
 *     Event      { double wall_time = 1; int64 step = 2; string file_version = 3; Summary summary = 5;
 *                  SessionLog session_log = 7; }
 *     Summary    { repeated Value value = 1; }
 *     Value      { string tag = 1; float simple_value = 2; }
 *     SessionLog { enum status = 1; }   START = 1 */
#include "events.h"

#include <stdlib.h>
#include <string.h>

enum { VARINT = 0, FIXED64 = 1, LENGTH = 2, FIXED32 = 5 }; /* protobuf's wire types */

/* ---- CRC-32C (Castagnoli), reflected */

uint32_t events_crc32c(const void *data, size_t bytes)
{
    const uint8_t *p = data;
    uint32_t c = 0xffffffff;
    for (size_t i = 0; i < bytes; i++) { /* a few hundred bytes a step: no table */
        c ^= p[i];
        for (int k = 0; k < 8; k++)
            c = c >> 1 ^ (c & 1 ? 0x82f63b78 : 0);
    }
    return ~c;
}

static uint32_t masked_crc(const void *data, size_t bytes)
{
    uint32_t c = events_crc32c(data, bytes);
    return (c >> 15 | c << 17) + 0xa282ead8;
}

/* ---- bytes */

static void put(struct events *out, const void *data, size_t n)
{
    if (out->length + n > out->room) {
        size_t room = out->room * 2 > out->length + n ? out->room * 2 : out->length + n;
        uint8_t *at = realloc(out->at, room);
        if (!at)
            out->no_memory = 1;
        else
            *out = (struct events){at, out->length, room, out->no_memory};
    }
    if (out->no_memory)
        return;
    memcpy(out->at + out->length, data, n);
    out->length += n;
}

static void put_varint(struct events *out, uint64_t v)
{
    uint8_t bytes[10];
    size_t n = 0;
    for (; v > 127; v >>= 7)
        bytes[n++] = (uint8_t)(v | 128);
    bytes[n++] = (uint8_t)v;
    put(out, bytes, n);
}

static void put_key(struct events *out, uint32_t field, uint32_t type)
{
    put_varint(out, field << 3 | type);
}

static void put_bytes(struct events *out, uint32_t field, const void *data, size_t n)
{
    put_key(out, field, LENGTH);
    put_varint(out, n);
    put(out, data, n);
}

static void put_record(struct events *out, struct events *event)
{
    uint64_t length = event->length;
    uint32_t crc = masked_crc(&length, sizeof length);
    put(out, &length, sizeof length);
    put(out, &crc, sizeof crc);
    crc = masked_crc(event->at, event->length);
    put(out, event->at, event->length);
    put(out, &crc, sizeof crc);
    out->no_memory |= event->no_memory;
    events_free(event);
}

void events_free(struct events *out)
{
    free(out->at);
    *out = (struct events){0};
}

/* ---- events */

static void put_event_header(struct events *event, double wall, int64_t step)
{
    put_key(event, 1, FIXED64);
    put(event, &wall, sizeof wall);
    if (!step) /* protobuf leaves out zeros */
        return;
    put_key(event, 2, VARINT);
    put_varint(event, (uint64_t)step);
}

void events_version(struct events *out, double wall)
{
    struct events event = {0};
    put_event_header(&event, wall, 0);
    put_bytes(&event, 3, "brain.Event:2", 13);
    put_record(out, &event);
}

void events_restart(struct events *out, double wall, int64_t step)
{
    static const uint8_t start[] = {1 << 3 | VARINT, 1};
    struct events event = {0};
    put_event_header(&event, wall, step);
    put_bytes(&event, 7, start, sizeof start);
    put_record(out, &event);
}

void events_scalar(struct events *summary, const char *tag, double value)
{
    struct events scalar = {0};
    float x = (float)value;
    put_bytes(&scalar, 1, tag, strlen(tag));
    put_key(&scalar, 2, FIXED32);
    put(&scalar, &x, sizeof x);
    put_bytes(summary, 1, scalar.at, scalar.length);
    summary->no_memory |= scalar.no_memory;
    events_free(&scalar);
}

void events_summary(struct events *out, double wall, int64_t step, struct events *summary)
{
    struct events event = {.no_memory = summary->no_memory};
    if (summary->length) {
        put_event_header(&event, wall, step);
        put_bytes(&event, 5, summary->at, summary->length);
        put_record(out, &event);
    }
    out->no_memory |= event.no_memory;
    events_free(summary);
}
