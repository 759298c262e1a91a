/* core/program/ops: the one table of ops. Placement, autodiff, cost, printing and documentation read an op's row. To
 * add an op: a number in heddle/ops.h, a row here, a gradient, a reference kernel, a kernel per device. */
#ifndef HD_CORE_PROGRAM_OPS_H
#define HD_CORE_PROGRAM_OPS_H

#include "core/program/program.h"

enum { HD__LINEAR_NONE = 0, HD__LINEAR_FIRST, HD__LINEAR_ONE, HD__LINEAR_ALL }; /* inputs through which P flows */
enum {
    HD__CLASS_MODEL = 0,
    HD__CLASS_LOCAL,
    HD__CLASS_COLLECTIVE,
    HD__CLASS_P2P,
    HD__CLASS_STRUCTURE,
    HD__CLASS_UPDATE
};

#define HD__OP_ACCUMULATES 1 /* honours HD_ATTR_ACCUMULATE */
#define HD__OP_IN_PLACE 2    /* output 0 may be the memory of input 0 */
#define HD__OP_NEW_DIMS 4    /* outputs may have dims that no input has */
#define HD__OP_TOKENWISE \
    8 /* input 0 is first converted to the layout of the token ids: its consumers are larger than it */

#define HD__OP_COMMUTES 16 /* of two terms, inputs 0 and 1, which may be exchanged to the last bit */
#define HD__OP_PADS 32     /* makes zeros of the zeros that pad a dim, or leaves them out: place.c */
#define HD__OP_RANKED 64   /* its kernel is told where its operands lie: rank_view.c */

/* The value of outputs: value_number.c */
enum {
    HD__VALUE_HASH = 0, /* of the op, its attributes and inputs; of a fused op that of the pair that it replaces */
    HD__VALUE_INPUT,    /* its input, moved, cut, joined or summed over ranks */
    HD__VALUE_SUM,      /* of its inputs */
    HD__VALUE_NONE,     /* zeros, or a change that keeps what the output is */
    HD__VALUE_FED,
    HD__VALUE_PROMISED, /* comes from another stage: what its tensor promises */
    HD__VALUE_ATTRS,    /* of the op and its attributes alone */
    HD__VALUE_BLEND,    /* of inputs that are the same: theirs, if the weights sum to 1 */
    HD__VALUE_ATTENTION,
    HD__VALUE_POSITION, /* its input plus a look-up of positions */
    HD__VALUE_ROPE_AT,  /* that of rope, where its last input is the positions */
    HD__VALUE_LOSS_HEAD
};
/* The fate of a gradient, or of a share of a mean, in an op: grad_reduce.c, facts.c */
enum {
    HD__SUM_MOVED = 0, /* input 0 goes into output 0, summed over the axes if the op sums */
    HD__SUM_ADDED,
    HD__SUM_ENCODED,
    HD__SUM_DECODED,
    HD__SUM_ZEROED,
    HD__SUM_ENDED,
    HD__SUM_READ, /* by the optimizer */
    HD__SUM_BLENDED,
    HD__SUM_MULTIPLIED,
    HD__SUM_ORTHOGONALISED,
    HD__SUM_MAPPED, /* a function of it, which is no sum of functions of its parts */
    HD__SUM_NONE    /* outputs hold none */
};

struct hd__op {
    const char *name;
    const char *unsharded; /* letters of dims that may not be sharded; $: the last of input 0 */
    /* letters whose sharding makes this output P; "*": any that the output lacks */
    const char *partial[HD_MAX_OUT];
    uint8_t from[HD_MAX_OUT]; /* inputs that this output is made of, as a mask; 0: all */
    const char *prefer;       /* ties between shardings go to the first of these */
    /* an output each: a = compute dtype, f = fixed (fp32), i = int32, u = uint8, d = fp64, "=" = that of input 0,
     * "*" = any floating-point one; NULL: dtypes.c has another rule */
    const char *dtypes;
    double (*flops)(const struct hd_program *p, const struct hd__instr *i); /* NULL: counted as 0 */
    uint8_t class, linear, redop, flags;
    uint8_t value; /* HD__VALUE_...: proofs of its outputs' values */
    uint8_t sum;   /* HD__SUM_...: proofs of gradients and of means, which are sums over ranks */
    /* over its axes, how its input lies and its output: R replicated, P a partial sum, S sharded; "": in any way */
    char converts[3];
    int8_t n_in, n_out; /* -1: any */
    int8_t n_optional;  /* further inputs that may be left out, behind the n_in */
    /* dims of operands, "in,in>out,out", the last for all further ones: shape_rules.c; NULL: any */
    const char *form;
    /* an op's own rule: what is wrong with the attributes, as words that follow its name, or NULL */
    const char *(*wrong)(const struct hd_program *p, const struct hd__instr *i);
    uint16_t adds; /* outputs that HD_ATTR_ACCUMULATE adds to, as a mask; 0: all. The others are written */
};

/* May it have so many inputs? */
static inline int hd__op_takes(const struct hd__op *op, uint32_t n_in)
{
    return op->n_in < 0 || (n_in >= (uint32_t)op->n_in && n_in <= (uint32_t)(op->n_in + op->n_optional));
}
/* Fails the program where the op's row (form, wrong) forbids the instruction. */
void hd__check_shapes(struct hd_program *p, const struct hd__instr *i);
/* The row of an op; name is NULL where there is none. */
const struct hd__op *hd__op(uint16_t op);
/* Its name, and HD__SUM_...: of a custom op what its strategy says. */
static inline const char *hd__instr_name(const struct hd__instr *i)
{
    return i->custom ? i->custom->name : hd__op(i->op)->name;
}
uint8_t hd__instr_sum(const struct hd__instr *i);
int hd__custom_takes(char letter, uint32_t dtype); /* of hd_custom_op.in and out */
/* Does it sum over ranks? */
static inline int hd__op_sums(uint16_t op)
{
    return hd__op(op)->class == HD__CLASS_COLLECTIVE && hd__op(op)->converts[0] == 'P';
}
/* Is it a collective that joins pieces, or splits into pieces? */
static inline int hd__op_joins(uint16_t op)
{
    return hd__op(op)->class == HD__CLASS_COLLECTIVE && hd__op(op)->converts[0] == 'S';
}
static inline int hd__op_splits(uint16_t op)
{
    return hd__op(op)->class == HD__CLASS_COLLECTIVE && hd__op(op)->converts[1] == 'S';
}
/* Does HD_ATTR_ACCUMULATE apply to this output? */
static inline int hd__op_adds(uint16_t op, uint32_t out)
{
    return !hd__op(op)->adds || hd__op(op)->adds >> out & 1;
}

/* Memory that an update uses for itself: neither read nor needed afterwards. */
static inline int hd__is_scratch(const struct hd__instr *i, uint32_t out)
{
    return i->op == HD_OP_OPTIM_STEP && i->attrs && i->attrs->parts == out + 1;
}

/* The pairs of positions that an attention's mask leaves, as a share of those of a causal one. */
double hd__mask_share(const struct hd_program *p, const struct hd__instr *attention);
/* FLOPs of one instruction on one rank, and bytes that it reads and writes. */
double hd__instr_flops(const struct hd_program *p, const struct hd__instr *i);
double hd__instr_bytes(const struct hd_program *p, const struct hd__instr *i);
/* Bytes that one rank sends for a collective, by the ring algorithm. */
double hd__instr_traffic(const struct hd_program *p, const struct hd__instr *i);

#endif
