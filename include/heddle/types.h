/* heddle/types.h: words that every part of the ABI shares: codes, dtypes, reductions, mesh axes, errors.
 *
 * Rules of all public headers: every struct that crosses begins with `struct_size` (set it with sizeof); fields are
 * only ever appended; no bool, long, enum or bit-field is a field's type; outputs are written only on success. A
 * function that can fail returns int32_t: HD_OK or a negative HD_E_ code, and fills the caller's `struct hd_error`,
 * which may be NULL (hd_fail and hd_error_copy know).
 *
 * Whose: what a pointer argument leads to is the caller's and lives until the call returns, unless its comment says
 * more; so a plugin copies names, arrays and structs that it wants to keep. `settings` live until what was opened
 * with them is closed, `host` until the process ends.
 *
 * Thread tags, in each slot's comment: [load] while plugins are looked at, before anything is open; [control] the
 * one thread that builds, opens and closes; [any-thread]; [progress] the thread that runs the step program. */
#ifndef HEDDLE_TYPES_H
#define HEDDLE_TYPES_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define HD_ABI_MAJOR 1
#define HD_ABI_MINOR 2

/* ---- results: X(constant, value, name) */
#define HD_CODES(X)                                                                                 \
    X(HD_OK, 0, "ok")                                                                               \
    X(HD_E_INVALID, -1, "invalid")         /* the caller, the job file or an input is wrong */      \
    X(HD_E_UNSUPPORTED, -2, "unsupported") /* a missing slot, or a combination nobody offers */     \
    X(HD_E_NOMEM, -3, "no memory")                                                                  \
    X(HD_E_IO, -4, "input/output")                                                                  \
    X(HD_E_TIMEOUT, -5, "timed out")   /* the deadline passed; nothing else is known to be wrong */ \
    X(HD_E_PEER, -6, "peer lost")      /* another rank died or left; hd_error.peer says which */    \
    X(HD_E_MISMATCH, -7, "mismatch")   /* two ranks disagree about an operation */                  \
    X(HD_E_CANCELLED, -8, "cancelled") /* aborted by request */                                     \
    X(HD_E_CORRUPT, -9, "corrupt")     /* stored data fails its checksum or its format */           \
    X(HD_E_NOTFOUND, -10, "not found")                                                              \
    X(HD_E_INTERNAL, -11, "internal") /* heddle's own fault */

enum {
#define HD_CODE_ENUM(constant, value, name) constant = value,
    HD_CODES(HD_CODE_ENUM)
#undef HD_CODE_ENUM
};

/* What must be rebuilt after an error. */
enum { HD_SCOPE_OP = 0, HD_SCOPE_PEER, HD_SCOPE_GROUP, HD_SCOPE_DEVICE, HD_SCOPE_PROCESS };

/* Filled by whoever finds the cause; owned by the caller. `message` is one line: what, which object, remedy. */
struct hd_error {
    size_t struct_size;
    int32_t code;    /* HD_E_... */
    int32_t scope;   /* HD_SCOPE_... */
    int64_t native;  /* errno, MPI class, CUDA code, ...; 0 if none */
    int64_t peer;    /* rank at fault, -1 if none */
    char where[128]; /* file:line:column, instruction, or component; may be empty */
    char message[1024];
    /* Identity of the failure. High half: the rank that found it + 1, 0 where every rank finds it by itself; low half:
     * its number there. The core sets it, and tells failures apart by it when a job ends. 0: not known. */
    uint64_t origin;
};

#define HD_ERROR_INIT                                                            \
    {                                                                            \
        sizeof(struct hd_error), HD_OK, HD_SCOPE_OP, 0, /* peer */ -1, "", "", 0 \
    }

/* Sets code and message and returns the code, so that a failing function ends in `return hd_fail(err, ...)`. */
__attribute__((format(printf, 3, 4))) static inline int32_t hd_fail(struct hd_error *err, int32_t code,
                                                                    const char *format, ...)
{
    if (err) {
        va_list args;
        err->code = code;
        va_start(args, format);
        vsnprintf(err->message, sizeof err->message, format, args);
        va_end(args);
    }
    return code;
}

/* What is known of an error, into another; `where` stays the receiver's. `to` may be NULL. */
static inline void hd_error_copy(struct hd_error *to, const struct hd_error *from)
{
    if (!to)
        return;
    to->code = from->code;
    to->scope = from->scope;
    to->native = from->native;
    to->peer = from->peer;
    memcpy(to->message, from->message, sizeof to->message);
    if (to->struct_size >= sizeof *to) /* older plug-ins have a shorter struct */
        to->origin = from->struct_size >= sizeof *from ? from->origin : 0;
}

/* "?" of an unknown one. */
static inline const char *hd_code_name(int32_t code)
{
    switch (code) {
#define HD_CODE_CASE(constant, value, name) \
    case constant:                          \
        return name;
        HD_CODES(HD_CODE_CASE)
#undef HD_CODE_CASE
    default:
        return "?";
    }
}

/* ---- element types: X(constant, value, name, bytes) */
#define HD_DTYPES(X)                                                      \
    X(HD_F32, 1, "fp32", 4)                                               \
    X(HD_BF16, 2, "bf16", 2)                                              \
    X(HD_F16, 3, "fp16", 2)                                               \
    X(HD_F64, 4, "fp64", 8) /* reference kernels and the emulator only */ \
    X(HD_I32, 5, "int32", 4)                                              \
    X(HD_U8, 6, "uint8", 1)

enum {
#define HD_DTYPE_ENUM(constant, value, name, bytes) constant = value,
    HD_DTYPES(HD_DTYPE_ENUM)
#undef HD_DTYPE_ENUM
};

/* Bytes of one element; 0 for an unknown dtype. */
static inline size_t hd_dtype_size(uint32_t dtype)
{
    switch (dtype) {
#define HD_DTYPE_CASE(constant, value, name, bytes) \
    case constant:                                  \
        return bytes;
        HD_DTYPES(HD_DTYPE_CASE)
#undef HD_DTYPE_CASE
    default:
        return 0;
    }
}

static inline const char *hd_dtype_name(uint32_t dtype)
{
    switch (dtype) {
#define HD_DTYPE_CASE(constant, value, name, bytes) \
    case constant:                                  \
        return name;
        HD_DTYPES(HD_DTYPE_CASE)
#undef HD_DTYPE_CASE
    default:
        return "?";
    }
}

/* ---- reductions */
enum { HD_SUM = 1, HD_MAX = 2, HD_AVG = 3 };

/* ---- mesh axes, outermost to innermost: X(constant, value, name).
 * tq is a factor of tp: tp 4 over 2 kv heads is tp 2 x tq 2 (kv heads sharded on tp, replicated on tq). */
#define HD_AXES(X)                             \
    X(HD_AXIS_PP, 0, "pp")                     \
    X(HD_AXIS_DP_REPLICATE, 1, "dp_replicate") \
    X(HD_AXIS_DP_SHARD, 2, "dp_shard")         \
    X(HD_AXIS_CP, 3, "cp")                     \
    X(HD_AXIS_EP, 4, "ep")                     \
    X(HD_AXIS_TP, 5, "tp")                     \
    X(HD_AXIS_TQ, 6, "tq")

enum {
#define HD_AXIS_ENUM(constant, value, name) constant = value,
    HD_AXES(HD_AXIS_ENUM)
#undef HD_AXIS_ENUM
        HD_AXIS_COUNT = 7
};

/* A set of axes is a bit mask: bit n is axis n. */
#define HD_AXIS_BIT(axis) (UINT32_C(1) << (axis))

#endif
