/* core/program/fusion: the one table of fusions that a device may want. A row names the pair of ops that a fused op
 * replaces: core/passes/fuse_patterns.c finds the pairs, and value_number.c derives the values of the fused op. Bit k
 * of hd_program.fusions: row k may be used in this program. To add one: a row here, one in ops.c. */
#ifndef HD_CORE_PROGRAM_FUSION_H
#define HD_CORE_PROGRAM_FUSION_H

#include "core/program/program.h"

/* Sets of rows that are switched together: HD__COMPILE_FUSE, HD__COMPILE_NO_FUSE. */
enum {
    HD__FUSE_LOSS_HEAD = 1,   /* the loss without whole logits */
    HD__FUSE_EPILOGUES = 2,   /* biases, GELUs and their gradients as epilogues of matmuls */
    HD__FUSE_NORM_SUMS = 4,   /* norms with the residual sums beside them */
    HD__FUSE_NORM_GRADS = 16, /* behind those: the gradient of a norm's weights with that of its input */
    HD__FUSE_ADDS_ONCE = 8,   /* exact sums: a matmul adds its result once (HD_ATTR_ONCE): an attribute, not an op */
};

#define HD__FUSION_AS_FIRST 1      /* attributes, block and phase are the first instruction's; else the second's */
#define HD__FUSION_ACROSS_BLOCKS 2 /* the two may be of different blocks, though not of different chunks */
#define HD__FUSION_EITHER_INPUT 4  /* the second's two inputs may be exchanged */
#define HD__FUSION_MAY_DROP 8      /* the last output is left out if nothing reads it */
#define HD__FUSION_SIBLINGS 16     /* the second does not read the first: its inputs are the first's, `same` */
#define HD__FUSION_ACROSS_PHASES 32

/* Operands of a fused op: operand n of the first or of the second instruction. */
#define HD__FUSION_FIRST(n) (0x10 | (n))
#define HD__FUSION_SECOND(n) (0x20 | (n))
#define HD__FUSION_PART(operand) ((operand) >> 5) /* 0: the first, 1: the second */
#define HD__FUSION_OPERAND(operand) ((operand)&15)

struct hd__fusion {
    uint16_t op;            /* the fused op */
    uint16_t first, second; /* the pair that it replaces; 0: no pair, a pass of its own makes it */
    uint8_t set, flags;
    uint8_t link;                           /* the second's input that is output 0 of the first */
    uint8_t same[HD_MAX_IN];                /* of siblings: the first's operands that the second reads; 0 ends them */
    uint8_t in[HD_MAX_IN], out[HD_MAX_OUT]; /* HD__FUSION_FIRST and _SECOND; 0 ends them */
    uint32_t grads;                         /* dtypes of gradients with which it may be made, as a mask; 0: all */
    /* Further conditions; NULL: none. */
    int (*fits)(const struct hd_program *p, const struct hd__instr *first, const struct hd__instr *second);
};

extern const struct hd__fusion hd__fusions[];
extern const uint32_t hd__n_fusions;

/* The row that makes this op of two others; NULL where there is none. */
const struct hd__fusion *hd__fusion_of(uint16_t op);
/* The rows of these sets, as hd_program.fusions has them. */
uint32_t hd__fusion_rows(uint32_t sets);

#endif
