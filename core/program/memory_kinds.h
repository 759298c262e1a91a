/* core/program/memory_kinds: what the arena of a rank holds when it is fullest, by kind. */
#ifndef HD_CORE_PROGRAM_MEMORY_KINDS_H
#define HD_CORE_PROGRAM_MEMORY_KINDS_H

#include "core/program/program.h"

/* X(constant, name) */
#define HD__MEMORY_KIND_NAMES(X)             \
    X(HD__MEMORY_PARAMETERS, "parameters")   \
    X(HD__MEMORY_GRADIENTS, "gradients")     \
    X(HD__MEMORY_OPTIMIZER, "optimizer")     \
    X(HD__MEMORY_ACTIVATIONS, "activations") \
    X(HD__MEMORY_BUFFERS, "buffers")
enum {
#define HD__MEMORY_ENUM(constant, name) constant,
    HD__MEMORY_KIND_NAMES(HD__MEMORY_ENUM)
#undef HD__MEMORY_ENUM
        HD__MEMORY_KINDS
};

const char *hd__memory_kind_name(uint32_t kind);
/* Bytes. */
struct hd__memory_use {
    int64_t kind[HD__MEMORY_KINDS]; /* when the arena is fullest; they add up to it */
    int64_t live;                   /* of these: in use at once, without what aligning and fitting adds */
    int64_t activations;            /* when activations need most */
};
/* The memory of `p` must be planned. */
struct hd__memory_use hd__memory_use(const struct hd_program *p);

#endif
