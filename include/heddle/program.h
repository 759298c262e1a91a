/* heddle/program.h: the step program as plugins see it.
 *
 * A model builds a *logical* program with struct hd_builder_api: global shapes, no mesh. The core then derives the
 * backward program, places every tensor on the mesh and inserts the collectives. A device finally sees one
 * instruction at a time, lowered to this rank's local shapes and addresses: struct hd_instr_desc. */
#ifndef HEDDLE_PROGRAM_H
#define HEDDLE_PROGRAM_H

#include "heddle/ops.h"
#include "heddle/reference.h"
#include "heddle/types.h"

#define HD_MAX_DIMS 6
#define HD_MAX_IN 8
#define HD_MAX_OUT 6 /* an update with four states and a low-precision copy */

struct hd_program;
struct hd_optim_param;

/* A tensor of a program; 0 is none. */
typedef uint32_t hd_tensor;

/* A value for elements [first, first + count) of a flat buffer: weight decay, weights in a norm. */
struct hd_range {
    int64_t first;
    int64_t count;
    double value;
};

#define HD_ATTR_ACCUMULATE (UINT32_C(1) << 0) /* outputs += instead of = */
#define HD_ATTR_ONCE \
    (UINT32_C(1) << 1) /* with it: what is added is the whole result, rounded to the output's dtype before */
#define HD_ATTR_STOCHASTIC (UINT32_C(1) << 2)   /* adamw: stochastic rounding of bf16 weights: heddle/reference.h */
#define HD_ATTR_CONCAT (UINT32_C(1) << 8)       /* decode: parts follow one another instead of being summed */
#define HD_ATTR_NOT_CAUSAL (UINT32_C(1) << 9)   /* attention: keys behind the query's position are seen too */
#define HD_ATTR_INTERLEAVED (UINT32_C(1) << 10) /* rope: pairs of neighbours */

/* Attributes of an instruction besides its operands; heddle/ops.h says which fields an op uses.
 * Zero everywhere is the neutral value. Pointers belong to the program. */
struct hd_attrs {
    size_t struct_size;
    double scale; /* attention, rope, total, spread, softcap, scale */
    double eps;   /* norms */
    int32_t sign; /* rope: +1 forward, -1 gradient */
    uint32_t flags;
    uint32_t redop;    /* HD_SUM ... */
    uint32_t from, to; /* conversions: dim ids */
    uint32_t index;    /* slice, mask, pad: which part is this rank's; shift; adamw: the seed of stochastic rounding;
                        * optim_step: the number of states */
    uint32_t parts;    /* optim_step: 1 + the output that is scratch memory, 0 if none */
    int32_t peer;      /* send, recv: world rank */
    int64_t window;
    const double *table;
    uint64_t n_table;
    const struct hd_range *ranges; /* in elements of the whole flat buffer; cut them with operand.start[0] */
    uint64_t n_ranges;
    double beta1, beta2, clip; /* adamw, sgd (beta1 = momentum), clip 0 = none; attention: clip is the soft cap */
    int32_t (*step)(const void *settings, const void *args); /* optim_step: see heddle/optimizer.h */
    const void *settings;
    /* Maps an index on dim s to a position of the sequence: hd_position. 0: identity. */
    int64_t zigzag_parts, zigzag_length;
    int64_t top_k;         /* gate; attention: the prefix */
    double share, z_scale; /* grouped, grouped_dw; router_loss */
};

/* Attention's mask: does the query at one position see the key at another? With attrs of zeros it is causal. */
static inline int32_t hd_attends(const struct hd_attrs *a, int64_t query, int64_t key)
{
    int64_t back = query - key;
    if (back < 0 && !(a->flags & HD_ATTR_NOT_CAUSAL))
        return key < a->top_k;
    return a->window <= 0 || (back < a->window && -back < a->window);
}

/* Ring attention stores a sequence in zig-zag order, so that every rank has as much causal work as any other: cut in
 * 2 n equal runs, part r of n holds runs r and 2 n - 1 - r (Llama 3, arXiv 2407.21783, section 3.3.2). Within a part
 * positions rise. attrs: zigzag_parts = n, zigzag_length = the whole sequence. */
static inline int64_t hd_position(const struct hd_attrs *a, int64_t index)
{
    int64_t run = a->zigzag_parts > 1 ? a->zigzag_length / (2 * a->zigzag_parts) : 0;
    if (run < 1)
        return index;
    int64_t part = index / (2 * run), at = index % (2 * run);
    return at < run ? part * run + at : (2 * a->zigzag_parts - 1 - part) * run + at - run;
}

/* One operand, lowered: dense, row-major, contiguous. Equal dim ids in one instruction are the same logical dim. */
struct hd_operand {
    void *data;
    uint32_t dtype;
    uint32_t ndim;               /* 0: a scalar */
    uint8_t dim[8];              /* logical dim ids; the first HD_MAX_DIMS are used */
    int64_t extent[HD_MAX_DIMS]; /* on this rank */
    int64_t start[HD_MAX_DIMS];  /* global index of local element 0 */
};

static inline int64_t hd_operand_count(const struct hd_operand *o)
{
    int64_t n = 1;
    for (uint32_t i = 0; i < o->ndim; i++)
        n *= o->extent[i];
    return n;
}

/* Entries of the vocabulary in this shard of logits that are no padding: heddle/ops.h, rowmax. */
static inline int64_t hd_vocabulary(const struct hd_attrs *a, const struct hd_operand *z)
{
    int64_t n = z->extent[z->ndim - 1], left = a->window - z->start[z->ndim - 1];
    return a->window > 0 && left < n ? (left > 0 ? left : 0) : n;
}

struct hd_custom_op;

#define HD_INSTR_LOGITS (UINT32_C(1) << 0) /* logits or their gradient are among the operands */
#define HD_INSTR_EXACT (UINT32_C(1) << 1)  /* the same bits are promised on every mesh */

/* One instruction of one rank, ready to be prepared by a device. */
struct hd_instr_desc {
    size_t struct_size;
    uint32_t op;
    uint32_t n_in, n_out;
    uint32_t reserved;
    const struct hd_operand *in;
    const struct hd_operand *out;
    struct hd_attrs attrs;
    char label[64]; /* "L3 F attention #118": for messages and traces */
    /* For devices that round operands; 0 from an older host. */
    uint32_t grads; /* bit n: input n is a gradient */
    uint32_t flags; /* HD_INSTR_... */
    /* optim_step: the parameters of the whole flat buffer, in the order in which they lie (heddle/optimizer.h). */
    const struct hd_optim_param *params;
    uint64_t n_params;
    /* custom: what it calls. Lives as long as the program. */
    const struct hd_custom_op *custom;
};

/* ---- custom ops: arithmetic that a strategy brings (hd_pass_api.custom_op) ---- */

/* What output 0 is where input 0 is a gradient, for the proofs. */
enum {
    HD_CUSTOM_OTHER = 0,  /* no gradient: a statistic, a buffer of its own */
    HD_CUSTOM_LINEAR = 1, /* each element times a factor that all ranks have in common: a partial sum stays one */
    HD_CUSTOM_MAP = 2,    /* any other function, element by element: of gradients that are summed over all ranks */
    /* codes of it, in attrs.parts parts one after another, of equally many bytes: part k is of the k-th of as many
     * equal runs of elements, and what an all_to_all sends to member k */
    HD_CUSTOM_ENCODE = 3,
    /* what codes of attrs.parts members stand for: their sum, or with HD_ATTR_CONCAT one after another. operand.start
     * of the output says which elements are wanted, where the codes are of more (after an all_gather) */
    HD_CUSTOM_DECODE = 4
};

/* [progress] Computes one instruction: operands with their memory, attrs, label. `stream`: the device's own, to enqueue
 * on, as hd_device_ops.native returns it; NULL on devices that compute on host memory, where the function is done when
 * it returns. It allocates nothing and keeps nothing but what its outputs are. Several may run at once, of other
 * instructions. An error ends the job on this step, with err as the cause. */
typedef int32_t (*hd_custom_fn)(const void *settings, const struct hd_instr_desc *instr, void *stream,
                                struct hd_error *err);

/* A kernel for a device that does not compute on host memory. */
struct hd_custom_kernel {
    const char *device; /* its name: "cuda" */
    hd_custom_fn run;
};

/* An op of a strategy's own. Dtypes are a letter an operand: f fp32, d fp64, i int32, u uint8 (codes), * any
 * floating-point dtype. `check --numerics` computes in fp64: it runs ops whose floating-point operands are all * or d,
 * and names those that it leaves out. */
struct hd_custom_op {
    size_t struct_size;
    const char *name; /* 1 to 31 of a-z, 0-9, _; for `explain`, traces and messages; of no other op */
    const char *in, *out;
    uint32_t proof; /* HD_CUSTOM_... */
    /* Outputs that are read and written, as a mask: state such as error feedback. Each is declared HD_FACT_FEEDBACK and
     * has the elements of input 0; nothing but this op writes it; checkpoints have it. */
    uint32_t state;
    double flops; /* per element of input 0, of output 0 where there is no input; bytes are those of the operands */
    const void *settings; /* copied; without pointers to what ends before the job */
    size_t settings_bytes;
    hd_custom_fn run;                       /* on host memory; NULL: there is none */
    const struct hd_custom_kernel *kernels; /* by device, each once; copied */
    uint64_t n_kernels;
    /* [control] Refuses operands by their shapes and attributes, when the job is compiled; data is NULL. May be
     * NULL. */
    int32_t (*check)(const void *settings, const struct hd_instr_desc *instr, struct hd_error *err);
};

/* ---- building the logical program (models) ---- */

enum { HD_INIT_NORMAL = 1, HD_INIT_ZEROS = 2, HD_INIT_ONES = 3 };

/* A parameter. Dims are single letters: "kgdh". */
struct hd_param_desc {
    size_t struct_size;
    const char *name; /* unique; also its name in checkpoints: "layers.0.attention.wq" */
    const char *dims;
    uint32_t init; /* HD_INIT_... */
    uint32_t reserved;
    double std; /* NORMAL: mean 0 */
    /* Location in a Hugging Face file: tensor `file_name` seen as a 2-d (or 1-d) array whose dims are this
     * parameter's, in the same order, some of them merged. GPT-2's fused c_attn.weight [h, 3 h]: part 0, 1, 2 of
     * parts 3 along file axis 1. `file_axes[i]` says which file axis parameter dim i belongs to ("1112" -> "0001"). */
    const char *file_name;
    /* one digit a dim: dims kgdh of [heads*d, h]: "0001". A first dim of '*' counts file tensors: its index stands
     * for the * in file_name: dims efh of "experts.*.w1" [f, h]: "*01" */
    const char *file_axes;
    uint32_t part, parts, part_axis;
    uint32_t flags; /* HD_PARAM_... */
    /* Parts that lie inside a merged file axis: they come before dim number part_dim - 1, and this parameter has
     * part_span of them (0: one). 0: at the beginning of part_axis. GPT-NeoX's query_key_value.weight [heads 3 d, h]:
     * dims kgdh, "0001", part 0, 1, 2 of parts 3, part_dim 3. Falcon's [k (g + 2) d, h]: queries kgdh, part 0 of parts
     * g + 2, part_dim 2, part_span g; keys kdh, "001", part g, values part g + 1, part_dim 2. */
    uint32_t part_dim, part_span;
};

/* never sharded by strategies' marks: a router's weight, though it has dim e */
#define HD_PARAM_WHOLE (UINT32_C(1) << 0)

/* Errors are sticky: after the first, every call returns 0 and does nothing; the core reports it, with the block.
 * So a model's code reads as straight lines. All slots are [control]. Dims must be declared before they are used. */
struct hd_builder_api {
    size_t struct_size;
    /* Declares logical dim `letter`; b (one micro-batch of the whole data-parallel world, in sequences) and s are
     * declared by the core. */
    void (*dim)(struct hd_program *p, char letter, const char *name, int64_t extent);
    int64_t (*extent)(struct hd_program *p, char letter); /* 0 if unknown */
    /* Everything that follows belongs to this block: "embed", "L0", ..., "head". Blocks are what strategies gather,
     * recompute and cut at. */
    void (*block)(struct hd_program *p, const char *name);
    hd_tensor (*param)(struct hd_program *p, const struct hd_param_desc *desc);
    /* "ids", "labels" or "positions": int32 [b, s]. Positions count from 0 in each document: attention's last input,
     * and rows of a table of positions. 0, which is no error, where the job's attention crosses documents. */
    hd_tensor (*input)(struct hd_program *p, const char *name);
    /* Emits op; out_dims has one string an output, separated by commas: "bskgd,bskg". The dtype of outputs follows
     * the table of ops. Writes n outputs to outs; returns the first. attrs may be NULL. */
    hd_tensor (*emit)(struct hd_program *p, uint32_t op, const struct hd_attrs *attrs, const hd_tensor *ins,
                      uint32_t n_in, const char *out_dims, hd_tensor *outs);
    /* Says that t is the residual stream: strategies may pin where it lies (sequence parallel). Returns t. */
    hd_tensor (*residual)(struct hd_program *p, hd_tensor t);
    /* Says that t lies like the token ids whatever the strategies do with the residual stream. Returns t. */
    hd_tensor (*tokenwise)(struct hd_program *p, hd_tensor t);
    /* The scalar to minimise, and the logits that evaluation and sampling read. */
    void (*loss)(struct hd_program *p, hd_tensor loss);
    void (*logits)(struct hd_program *p, hd_tensor logits);
    /* The sum over the loss's tokens is scaled by 1 / (tokens of the global batch), which only the core knows. */
    double (*loss_scale)(struct hd_program *p);
    /* Reports a fault of the model's settings; sticky. */
    void (*fail)(struct hd_program *p, const char *format, ...) __attribute__((format(printf, 2, 3)));
    /* A further scalar to minimise, with attrs.scale from loss_scale: its gradient is added to the loss's, its value is
     * not part of the logged loss. It stays a mean over all tokens where some labels do not count. */
    void (*auxiliary)(struct hd_program *p, hd_tensor loss);
};

#endif
