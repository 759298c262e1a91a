/* Frames to bytes and back. The parser is a pure function of its input: the robustness test feeds it noise. */
#include "runtime/rendezvous/wire.h"

#include <stdio.h>
#include <string.h>

static const struct {
    uint32_t longest, key;
} type_rules[WIRE_TYPE_COUNT] = {
#define WIRE_RULE(constant, value, longest, key) [value] = {longest, key},
    WIRE_TYPES(WIRE_RULE)
#undef WIRE_RULE
};

uint32_t hd__store_wire_u32(const uint8_t *at)
{
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

void hd__store_wire_put_u32(uint8_t *at, uint32_t value)
{
    for (int i = 0; i < 4; i++)
        at[i] = (uint8_t)(value >> 8 * i);
}

uint32_t hd__store_wire_put_end(uint8_t *out, size_t room, uint64_t origin, const char *cause)
{
    size_t bytes = strnlen(cause, room - WIRE_ORIGIN);
    hd__store_wire_put_u32(out, (uint32_t)origin);
    hd__store_wire_put_u32(out + 4, (uint32_t)(origin >> 32));
    memcpy(out + WIRE_ORIGIN, cause, bytes);
    return (uint32_t)(WIRE_ORIGIN + bytes);
}

int hd__store_wire_end(const struct hd__frame *f, uint64_t *origin, char *cause, size_t room)
{
    if (f->value_bytes < WIRE_ORIGIN)
        return 0;
    *origin = hd__store_wire_u32(f->value) | (uint64_t)hd__store_wire_u32(f->value + 4) << 32;
    snprintf(cause, room, "%.*s", (int)(f->value_bytes - WIRE_ORIGIN), (const char *)f->value + WIRE_ORIGIN);
    return 1;
}

/* Header: version u8, type u8, key bytes u16, value bytes u32, id u32, arg i32. */
ptrdiff_t hd__store_wire_parse(const uint8_t *data, size_t bytes, struct hd__frame *frame)
{
    struct hd__frame f = {0};
    if (bytes >= 1 && data[0] != WIRE_VERSION)
        return -1;
    if (bytes < WIRE_HEADER)
        return 0;
    f.type = data[1];
    f.key_bytes = (uint32_t)data[2] | (uint32_t)data[3] << 8;
    f.value_bytes = hd__store_wire_u32(data + 4);
    f.id = hd__store_wire_u32(data + 8);
    f.arg = (int32_t)hd__store_wire_u32(data + 12);
    if (f.type == WIRE_NOTHING || f.type >= WIRE_TYPE_COUNT || f.value_bytes > type_rules[f.type].longest ||
        f.key_bytes > WIRE_KEY_MAX || !f.key_bytes != !type_rules[f.type].key)
        return -1;
    size_t need = WIRE_HEADER + (size_t)f.key_bytes + f.value_bytes;
    if (bytes < need)
        return 0;
    f.key = (const char *)data + WIRE_HEADER;
    f.value = data + WIRE_HEADER + f.key_bytes;
    *frame = f;
    return (ptrdiff_t)need;
}

size_t hd__store_wire_write(uint8_t *out, const struct hd__frame *frame)
{
    out[0] = WIRE_VERSION;
    out[1] = (uint8_t)frame->type;
    out[2] = (uint8_t)frame->key_bytes;
    out[3] = (uint8_t)(frame->key_bytes >> 8);
    hd__store_wire_put_u32(out + 4, frame->value_bytes);
    hd__store_wire_put_u32(out + 8, frame->id);
    hd__store_wire_put_u32(out + 12, (uint32_t)frame->arg);
    if (frame->key_bytes)
        memcpy(out + WIRE_HEADER, frame->key, frame->key_bytes);
    if (frame->value_bytes)
        memcpy(out + WIRE_HEADER + frame->key_bytes, frame->value, frame->value_bytes);
    return WIRE_HEADER + (size_t)frame->key_bytes + frame->value_bytes;
}
