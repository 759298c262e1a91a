/* Edits of a step program, for what plants faults. */
#ifndef HD_CONFORMANCE_EDITS_H
#define HD_CONFORMANCE_EDITS_H

#include <assert.h>

#include "core/program/program.h"

static inline void erase(hd__code *code, uint32_t at)
{
    assert(at < code->count);
    memmove(code->at + at, code->at + at + 1, (code->count - at - 1) * sizeof *code->at);
    code->count--;
}

static inline void insert(hd__code *code, uint32_t at, struct hd__instr i)
{
    hd__push(code, i);
    memmove(code->at + at + 1, code->at + at, (code->count - at - 1) * sizeof *code->at);
    code->at[at] = i;
}

/* Where instruction `id` is waited for; code->count if nowhere. */
static inline uint32_t wait_of(const hd__code *code, uint32_t id)
{
    uint32_t n = 0;
    while (n < code->count && (code->at[n].op != HD_OP_WAIT || code->at[n].wait != id))
        n++;
    return n;
}

#endif
