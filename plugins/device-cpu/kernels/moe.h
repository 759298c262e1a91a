/* Shared by kernels of mixtures of experts: which slot holds which token. */
#ifndef HD_DEVICE_CPU_KERNELS_MOE_H
#define HD_DEVICE_CPU_KERNELS_MOE_H

#include "reference/reference.h"

/* rows [b e #] beside tokens [b s width]. */
struct cpu_slots {
    const int32_t *rows;
    int64_t b, e, slots, count; /* count = b e slots */
    int64_t s, s0, width;       /* of the tokens: local extent, global index of the first, elements each */
    int32_t each, reserved;     /* slot i of a sequence is token i's */
};

static inline struct cpu_slots cpu_slots(const struct hd_operand *rows, const struct hd_operand *tokens)
{
    struct cpu_slots s = {.rows = rows->data, .b = rows->extent[0], .e = rows->extent[1], .slots = rows->extent[2]};
    s.count = s.b * s.e * s.slots;
    s.s = tokens->extent[1];
    s.s0 = tokens->start[1];
    s.width = tokens->extent[2];
    s.each = rows->dim[2] == tokens->dim[1];
    return s;
}

/* Index on s of a position of the sequence: hd_position backwards. A part of the sequence keeps its order; the whole
 * may be stored in zig-zag order. */
static inline int64_t cpu_index_of(const struct hd_kernel *k, int64_t position)
{
    int64_t parts = k->d.attrs.zigzag_parts, run = parts > 1 ? k->d.attrs.zigzag_length / (2 * parts) : 0, at;
    if (run < 1)
        return position;
    at = position / run;
    return (at < parts ? 2 * at : 2 * (2 * parts - 1 - at) + 1) * run + position % run;
}

/* The token in a slot as an index on [b s] of this rank, -1 where there is none. */
static inline int64_t cpu_token(const struct cpu_slots *s, int64_t slot)
{
    int64_t at = s->rows[slot] - 1 - s->s0;
    return s->rows[slot] > 0 && at >= 0 && at < s->s ? slot / (s->e * s->slots) * s->s + at : -1;
}

/* The slot of expert e that holds a token of [b s], -1 where there is none. */
static inline int64_t cpu_slot_of(const struct cpu_slots *s, int64_t token, int64_t e)
{
    int64_t first = (token / s->s * s->e + e) * s->slots, i = token % s->s;
    if (s->each)
        return s->rows[first + i] > 0 ? first + i : -1;
    for (int64_t j = 0; j < s->slots && s->rows[first + j] > 0; j++)
        if (s->rows[first + j] - 1 - s->s0 == i)
            return first + j;
    return -1;
}

/* Is logit j one of the top_k largest of z[at, at + e)? Of equal ones the first. */
static inline int cpu_chosen(const struct hd_operand *z, int64_t at, int64_t e, int64_t j, int64_t top_k)
{
    double mine = cpu_load(z, at + j);
    int64_t better = 0;
    for (int64_t i = 0; i < e; i++) {
        double other = cpu_load(z, at + i);
        better += other > mine || (other == mine && i < j);
    }
    return better < top_k;
}

/* x [b e # m], w [e, m and n in any order], y [b e # n]. */
struct cpu_experts {
    int64_t b, e, slots, m, n;
    int64_t stride_m, stride_n; /* in w */
};

static inline struct cpu_experts cpu_experts(const struct hd_operand *x, const struct hd_operand *w,
                                             const struct hd_operand *y)
{
    struct cpu_experts s = {.b = x->extent[0], .e = x->extent[1], .slots = x->extent[2], .m = x->extent[3]};
    int m_last = w->dim[2] == x->dim[3];
    s.n = y->extent[3];
    s.stride_m = m_last ? 1 : s.n;
    s.stride_n = m_last ? s.m : 1;
    return s;
}

#endif
