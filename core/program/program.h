/* core/program: the step program. It knows no plugin and no job.
 *
 * One object, struct hd_program, grows through the passes of a compilation:
 *
 *   builder.c   a model emits the *logical* forward program: global shapes, no mesh
 *   autodiff.c  appends the logical backward program and one accum per parameter gradient
 *   place.c     places every instruction on the mesh, in order, and inserts conversions (convert.c)
 *               -> the template: one micro-batch, placed
 *   pipeline.c  strategies cut the template into chunks and list each stage's actions
 *   recompute.c activation checkpointing, on the template
 *   ring_attention.c attention whose sequence is sharded becomes a ring of tiles
 *   replicas.c  ranks that train parameters of their own between sections which make them equal
 *   deterministic.c `deterministic: exact`: sums in an order that no mesh changes; around lower.c and strategy_api.c
 *   lower.c     template -> sections: begin, micro (repeated), micro_last, update; with a pipeline begin, step, update
 *   decode.c    the section `decode`: one position of a sequence, with the keys and values that `eval` left
 *   section_split.c a section that differs in the first steps becomes two
 *   strategy_api.c strategies rewrite sections (zero: flat buffers, reductions, gathers, the update)
 *   custom_ops.c ops that strategies bring; buckets that one reduces for another
 *   fuse.c      peepholes: ops accumulate into gradients themselves; fuse_loss_head.c: the loss without whole logits
 *   schedule.c  buffers for all tensors, waits for asynchronous instructions
 *   memory_plan.c lifetimes -> offsets in one arena (interval_alloc.c)
 *   inplace.c   outputs reuse the memory of inputs that die
 *   verify.c    rules within a rank: values, placements, reductions, replicas, memory; analysis/sim: all ranks at once,
 *               as proof, emulator and simulator
 *   lower_instr.c one instruction of one rank -> struct hd_instr_desc with addresses
 *
 * All ranks of a pipeline stage share one program: they differ only in coordinates, peers and groups. */
#ifndef HD_CORE_PROGRAM_PROGRAM_H
#define HD_CORE_PROGRAM_PROGRAM_H

#include "core/base/base.h"
#include "heddle/optimizer.h"
#include "heddle/program.h"
#include "heddle/strategy.h"

/* ---- mesh */

enum { HD__STAGES = 64 }; /* of a pipeline, at most: bits of masks of them */

struct hd__mesh {
    int32_t size[HD_AXIS_COUNT];
    int32_t ranks;
};

/* Ranks are numbered with the last axis fastest: coordinates from a rank, and back. */
struct hd__mesh hd__mesh_make(const int32_t size[HD_AXIS_COUNT]);
void hd__mesh_coord(const struct hd__mesh *mesh, int32_t rank, int32_t coord[HD_AXIS_COUNT]);
int32_t hd__mesh_rank(const struct hd__mesh *mesh, const int32_t coord[HD_AXIS_COUNT]);
uint32_t hd__mesh_axes(const struct hd__mesh *mesh); /* axes larger than 1 */
/* Those that placement uses: all but pp (a stage holds other tensors, not other shards). */
uint32_t hd__mesh_live(const struct hd__mesh *mesh);
/* The group of `rank` along the axes of the mask, major axis first. `members`: a mask of coordinates on a single axis
 * (tied embeddings: first and last stage), 0 for all. Writes the ranks in order; returns how many. */
int32_t hd__mesh_group(const struct hd__mesh *mesh, int32_t rank, uint32_t axes, uint64_t members, int32_t *ranks);
int64_t hd__mesh_ways(const struct hd__mesh *mesh, uint32_t axes); /* product of sizes */
char *hd__axes_text(uint32_t axes, char out[64]);                  /* "dp_shard.tp"; returns out */
#define hd__axes(axes) hd__axes_text(axes, (char[64]){0})          /* the same, until the end of the block */

/* ---- placement
 * For each dim of a tensor the mesh axes that shard it, MAJOR FIRST: s:[cp,tp] differs from s:[tp,cp]. Four bits an
 * axis (axis + 1), the major one in the lowest bits. Only the last (minor-most) axis may leave a dim; a new one is
 * appended. `partial`: axes on which the value is P(redop). On all other axes it is replicated. */
struct hd__placement {
    uint32_t shard[HD_MAX_DIMS];
    uint8_t partial;
    uint8_t redop; /* HD_SUM or HD_MAX */
    uint16_t reserved;
};

/* The axes that shard a dim, 4 bits each (axis + 1), outermost first: one more inside; all of them as a mask. */
static inline uint32_t hd__shard_push(uint32_t shard, int32_t axis)
{
    uint32_t at = 0;
    while (shard >> at)
        at += 4;
    return shard | ((uint32_t)(axis + 1) << at);
}
static inline uint32_t hd__shard_mask(uint32_t shard)
{
    uint32_t mask = 0;
    for (; shard; shard >>= 4)
        mask |= HD_AXIS_BIT((shard & 15) - 1);
    return mask;
}
static inline int32_t hd__shard_minor(uint32_t shard) /* -1 if none */
{
    int32_t axis = -1;
    for (; shard; shard >>= 4)
        axis = (int32_t)(shard & 15) - 1;
    return axis;
}
static inline uint32_t hd__shard_pop(uint32_t shard)
{
    uint32_t at = 0;
    while (shard >> (at + 4))
        at += 4;
    return shard & ~(UINT32_C(15) << at);
}

/* ---- tensors and buffers */

enum { HD__ROLE_ACT = 0, HD__ROLE_PARAM, HD__ROLE_GRAD, HD__ROLE_INPUT, HD__ROLE_FLAT, HD__ROLE_STATE };
enum { HD__MARK_NONE = 0, HD__MARK_RESIDUAL, HD__MARK_TOKENS };
enum {
    HD__LIFE_TEMP = 0,
    HD__LIFE_PERSISTENT,
    HD__LIFE_STEP
}; /* STEP: from its first access in a step until that ends */

/* Memories. Compute and collectives use the first; the others hold persistent tensors and are reached by copies only,
 * on streams of their own. Each has an arena. */
enum { HD__MEM_MAIN = 0, HD__MEM_HOST, HD__MEM_FILE, HD__MEM_COUNT };

struct hd__buffer {
    const char *name;
    int64_t bytes;  /* on one rank */
    int64_t offset; /* in the arena of its memory; -1 before memory_plan.c */
    uint8_t life;   /* HD__LIFE_... */
    uint8_t memory; /* HD__MEM_... */
    uint16_t block;
    uint32_t section; /* TEMP: the section that uses it; STEP: the first of a step that does */
    uint32_t paged;   /* page-aligned: for direct copies from and to a file */
    uint32_t reserved;
};

struct hd__tensor {
    const char *name;
    uint8_t ndim, dtype, role, mark;
    uint16_t block;
    uint8_t shard_view; /* a shard inside the full tensor: its address is start(rank) elements into the view */
    uint8_t unused;
    uint16_t dim[HD_MAX_DIMS]; /* ids into hd_program.dims */
    struct hd__placement placement;
    hd_tensor origin;  /* the logical tensor that this is a placement of; itself for logical tensors */
    hd_tensor grad_of; /* the logical tensor whose gradient this is; 0 */
    uint32_t buffer;   /* 0: none yet */
    uint32_t param;    /* PARAM: index + 1 into hd_program.params */
    uint32_t n_terms;  /* number of instructions that add up to it: fuse.c; 0: one makes all of it */
    uint32_t reserved;
    int64_t offset;        /* elements into the buffer */
    uint64_t value_number; /* value number that the template promises: value_number.c; 0: none */
};

/* ---- instructions */

enum { HD__PHASE_F = 0, HD__PHASE_R, HD__PHASE_B, HD__PHASE_W, HD__PHASE_O }; /* R: recompute; O: strategies, update */

/* Streams: 0 compute; 1 + axis: collectives of that axis (the outermost of several); 8: several with pp; 9 and 10:
 * copies into the main memory and out of it; from 16: one a pipeline peer, direction and phase (16 + 4 peer + 2
 * receives + backward). Everything but 0 is asynchronous: it starts after every compute instruction listed before it
 * and is complete at its wait. */
enum {
    HD__STREAM_COMPUTE = 0,
    HD__STREAM_AXIS = 1,
    HD__STREAM_WORLD = 8,
    HD__STREAM_IN = 9,
    HD__STREAM_OUT = 10,
    HD__STREAM_PP = 16
};

#define HD__FLAG_CONV 1    /* inserted by placement */
#define HD__FLAG_GRADSUM 2 /* an add of gradient contributions: equal placements first */
#define HD__FLAG_LEAF 4    /* deterministic.c: an add of one micro-batch's contributions to a gradient */
#define HD__FLAG_LEAVES 8  /* deterministic.c: an add of two micro-batches' gradients */

struct hd__instr {
    uint32_t id; /* unique in the program; never 0 */
    uint16_t op;
    uint8_t n_in, n_out;
    hd_tensor in[HD_MAX_IN];
    hd_tensor out[HD_MAX_OUT];
    const struct hd_attrs *attrs;      /* in the program's arena; NULL: neutral */
    const struct hd_custom_op *custom; /* of HD_OP_CUSTOM: one of the program's */
    uint64_t members;                  /* coordinates on a single axis; 0: all */
    uint32_t axes;                     /* collectives and local conversions: mesh axes */
    uint32_t wait;                     /* WAIT: the id of what it waits for */
    uint16_t stream, block;
    uint16_t from, to; /* conversions: dim ids, 0 if none */
    int16_t chunk, micro;
    int16_t peer; /* send, recv: pp coordinate */
    uint16_t tag; /* send, recv; ring attention: ring offset of its keys and values */
    uint8_t phase, flags, redop, reserved;
};

typedef HD__ARRAY(struct hd__instr) hd__code;

/* Sections that the core knows; OTHER: a strategy's own, and the first steps or rounds of another (section_split.c). */
enum {
    HD__SECTION_OTHER = 0,
    HD__SECTION_BEGIN,
    HD__SECTION_MICRO,
    HD__SECTION_MICRO_LAST,
    HD__SECTION_STEP,
    HD__SECTION_UPDATE,
    HD__SECTION_EVAL,
    HD__SECTION_EVAL_END,
    HD__SECTION_DECODE,
    HD__SECTION_RESTORE,
    HD__SECTION_COUNT
};

struct hd__code_section {
    const char *name; /* as printed, and named by strategies and --section: begin, micro, micro_last, update, ... */
    hd__code code;
    uint8_t kind;                     /* HD__SECTION_... */
    uint8_t declares;                 /* of the parameters: HD_FACT_EQUAL, HD_FACT_MIX */
    int32_t repeat;                   /* 0: not part of a step, run only when asked for */
    uint32_t every;                   /* 0: every step; N: every N steps */
    uint32_t equal_axes, mixed_axes;  /* after it parameters are equal, or mixed, along these axes: facts.c */
    uint64_t loss_value, sends_value; /* value numbers of its part of the loss, and of its sends */
    int64_t after, last;              /* steps after `after`, and up to `last`; 0: from the first, to the end */
};

/* ---- parameters, flat buffers */

struct hd__param {
    hd_tensor tensor;
    uint32_t unreduced_axes; /* axes on which its gradient accumulator is P: each must be summed over exactly once */
    uint64_t stages;         /* mask of pp coordinates that use it */
    uint32_t parts;          /* deterministic.c: 2: contributions of its two blocks have separate sums; 0: one sum */
    uint64_t gradient_value; /* value number of what one micro-batch adds to it on this stage */
    double decay;            /* the optimizer's weight decay of it: optimizer_update.c */
    double update_flops;     /* 0: the optimizer does not say */
    uint32_t whole;          /* the optimizer updates it as a whole */
    uint32_t n_states;       /* of the optimizer */
    struct hd_optim_param optim; /* as the optimizer sees it, but for `first` and `state` */
    struct hd_optim_state state[4];
    struct hd_param_desc desc; /* strings in the program's arena */
};

/* The tensors of a flat, by role. A new role is a row here and one in flat_kinds (program.c); code that needs all of a
 * kind asks hd__flat_next. */
enum {
    HD__FLAT_MASTER = 0,   /* the weights that the optimizer updates (full, shard, or a shard view of full) */
    HD__FLAT_COMPUTE_COPY, /* a low-precision copy of the master that update writes */
    HD__FLAT_OPTIM,        /* and the next three: states of the optimizer */
    HD__FLAT_FULL = HD__FLAT_OPTIM + 4, /* P: the weights that compute reads */
    HD__FLAT_GRAD,                      /* G: the sum that compute accumulates into */
    HD__FLAT_SHARD,                     /* the gradient that the optimizer reads */
    HD__FLAT_GLOBAL_COPY,               /* an average that ranks which are apart have in common: a checkpoint's model */
    HD__FLAT_STRATEGY, /* and all behind it: states that strategies register, in the order of strategy_states */
    HD__FLAT_ROLES = HD__FLAT_STRATEGY + 16
};

/* Kinds of these tensors: a mask. */
enum {
    HD__FLAT_IS_PARAM = 1,          /* values of parameters, in whatever precision, or averages of them */
    HD__FLAT_IS_OPTIM_STATE = 2,    /* of the optimizer */
    HD__FLAT_IS_STRATEGY_STATE = 4, /* of a strategy, and no average of parameters: begins as zeros */
    HD__FLAT_IS_SAVED = 8,          /* in checkpoints; a parameter that is not is derived from one that is */
    HD__FLAT_IS_PERSISTENT = 16,    /* asked for with others: of those only what lives from step to step */
    HD__FLAT_IS_GRAD = 32           /* the gradient that the optimizer reads */
};

/* Parameters of one block with the same zero axes, one after another in one buffer. A strategy makes them; verify,
 * checkpoints and initialisation read them. */
struct hd__flat {
    const char *name;
    uint16_t block, dim; /* dim: extent = count */
    uint32_t axes;       /* mesh axes that shard it */
    uint32_t n_params;
    uint64_t members;                 /* pp coordinates that share it; 0: only this stage */
    uint32_t *params;                 /* indexes into hd_program.params */
    int64_t *offset;                  /* of each, in elements */
    int64_t count;                    /* elements, padded to a multiple of the ways of axes */
    hd_tensor tensor[HD__FLAT_ROLES]; /* 0: there is none */
    uint32_t n_states;                /* of the optimizer */
    uint32_t states_created;          /* strategy_api.c */
    uint32_t state_memory;            /* HD__MEM_... of the states */
    struct hd_optim_param *optim;     /* of each parameter */
};

/* Facts (HD_FACT_...) that a strategy declared of a tensor of its own: verify/facts.c proves them. */
struct hd__fact {
    hd_tensor tensor;
    uint32_t what, axes; /* axes: those of HD_FACT_EQUAL */
    const char *section; /* the only one that writes it; NULL: any */
};

/* An offloaded tensor, and its staged copy in the main memory, which compute uses. */
struct hd__offloaded {
    hd_tensor home, main_copy;
    const char *section;
    uint32_t slot, role; /* HD__FLAT_...: tells tensors of one slot apart */
};

struct hd__dim {
    const char *name; /* "h", "#L0/dp" */
    const char *long_name;
    int64_t extent;
    int64_t used; /* below extent: the rest is padding: place.c */
};

/* ---- the program */

/* Keys, or values, of one attention: as the template names them, and what the eval section leaves behind; 0: they are
 * another stage's. */
struct hd__cache {
    hd_tensor made, kept;
};

struct hd__precision {
    uint8_t compute, grad, reduce, master, optimizer,
        fixed; /* fixed: losses and statistics: fp32, or fp64 with compute fp64 */
    uint8_t reserved[2];
};

/* A stage's actions, from a strategy's partition: pipeline.c. */
struct hd__actions {
    const struct hd_action *at; /* heddle/strategy.h */
    uint32_t n;
};

struct hd__pipeline {
    uint32_t n_chunks, n_blocks;
    uint32_t *stage;             /* by chunk: pp coordinate */
    uint32_t *chunk;             /* by block id */
    struct hd__actions *actions; /* by stage */
};

/* Inputs that a rank is fed, int32 [b, s] of a micro-batch. Positions are fed whole: no axis cuts their sequence. */
enum { HD__INPUT_IDS = 0, HD__INPUT_LABELS, HD__INPUT_POSITIONS, HD__INPUTS };

struct hd_program {
    struct hd__arena arena;
    struct hd__mesh mesh;
    int32_t stage;                /* pp coordinate */
    int32_t accumulation;         /* micro-batches of a step; the most that a rank has */
    const int32_t *micro_batches; /* on each coordinate of dp, where they differ; NULL: `accumulation` on all */
    struct hd__precision precision;
    double token_weight; /* 1 / tokens of the global batch */
    int64_t empty;       /* sequences that fill up the last micro-batches of a step, without labels */

    HD__ARRAY(struct hd__dim) dims;       /* [0] is unused; letters live at letter[] */
    uint16_t letter[128];                 /* letter -> dim id */
    HD__ARRAY(const char *) blocks;       /* [0] is "" */
    HD__ARRAY(struct hd__tensor) tensors; /* [0] is unused */
    HD__ARRAY(struct hd__buffer) buffers; /* [0] is unused */
    HD__ARRAY(struct hd__param) params;
    HD__ARRAY(struct hd__flat) flats;
    uint32_t next_id;

    hd__code logical;              /* forward, then backward, of one micro-batch */
    uint32_t forward;              /* how many of them are forward */
    hd__code template;             /* placed */
    struct hd__pipeline *pipeline; /* NULL: no pipeline; set even with one stage if a strategy wants actions */
    HD__ARRAY(struct hd__code_section) sections;

    union { /* logical; 0: not read */
        struct {
            hd_tensor ids, labels, positions;
        };
        hd_tensor inputs[HD__INPUTS];
    };
    hd_tensor loss, logits;         /* logical */
    HD__ARRAY(hd_tensor) auxiliary; /* logical: further scalars that are minimised */
    hd_tensor kept_logits; /* with keep_logits: the placed logits that the eval section leaves behind; else 0 */
    uint32_t keep_logits;
    /* decode.c: with keep_cache and keep_logits there is a section `decode`, or `no_cache` says why not. It leaves the
     * logits behind, of which position 0 of dim `step` counts. */
    HD__ARRAY(struct hd__cache) caches;
    hd_tensor decode_logits;
    uint16_t step, keep_cache;
    const char *no_cache;
    uint32_t documents; /* attention does not cross documents: positions are an input */
    /* With keep_losses: of each token the loss, the largest logit and the label's, which the eval section leaves behind
     * on the ranks that make them; else 0. */
    hd_tensor kept_losses[3];
    uint32_t keep_losses;
    hd_tensor norm_digits;              /* deterministic.c: HD_SUM_DIGITS numbers, whose sum is norm2; 0: none */
    hd_tensor loss_sum, norm2, hyper;   /* persistent: accumulated loss, squared gradient norm, see optimizer.h */
    HD__ARRAY(struct hd__fact) facts;   /* of strategies' own persistent tensors */
    const struct hd_attrs *update_rule; /* attributes of every update, but for what each flat has of its own */
    uint32_t update_op;                 /* and its op; 0: no optimizer was asked */
    /* persistent fp64 scalars that multiply the gradients of the loss and of the auxiliary losses (loss scaling); 0:
     * there is none */
    hd_tensor scale, auxiliary_scale;

    /* layout marks, set by strategies before placement */
    uint32_t param_shard[128];   /* letter -> axes (as hd__placement.shard) for parameters */
    uint32_t mark_shard[3][128]; /* [HD__MARK_...][letter] */

    /* parameters may differ along these axes between steps, and gradients are not summed over them: replicas.c */
    uint32_t independent_axes;
    /* names of states over flats: the n-th has the role HD__FLAT_STRATEGY + n */
    HD__ARRAY(const char *) strategy_states;
    HD__ARRAY(struct hd__offloaded) offloaded;         /* offload.c */
    HD__ARRAY(const struct hd_custom_op *) custom_ops; /* of strategies, in the arena */
    const char *file_folder;                           /* where the arena HD__MEM_FILE is made; NULL: none asked for */
    uint32_t ring_axes;                                /* axes of ring attention; the others move heads by all_to_all */

    uint32_t gather_deferred; /* staleness.c: full weights may be older than their master weights between steps:
                               * `restore` runs before an evaluation */
    uint32_t exact;   /* deterministic.c runs: micro-batch m of a rank is the m-th of its own run of the batch */
    uint32_t fusions; /* fusion.h: fusions that may be made, one bit a row */

    /* value_number.c: what one micro-batch adds to the loss on this stage; the micro-batches of a step as verify.c
     * walks it, the sum of their factors */
    uint64_t loss_value, micro_factors;

    /* schedule.c */
    uint32_t send_depth;        /* sends of one stream in flight at once; 0 means 1 */
    uint32_t keep_weight_order; /* do not sink weight gradients into waits */

    /* memory_plan.c */
    uint32_t no_offsets; /* temporaries get none: temp_bytes is a lower bound of what they need */
    int64_t arena_bytes, persistent_bytes, temp_bytes, temp_bound; /* of the main memory */
    int64_t bytes[HD__MEM_COUNT]; /* of each memory's arena; [HD__MEM_MAIN] is arena_bytes */
    /* Start of each arena relative to the first. memory_plan.c lays them one behind another in the address space; a
     * caller that maps them elsewhere writes its own addresses here. */
    int64_t arena_base[HD__MEM_COUNT];

    /* building */
    uint16_t block;
    uint8_t phase;
    struct hd__pass *pass; /* strategy_api.c: edits of the strategy that runs */
    int32_t failed;        /* sticky code */
    struct hd_error error;
};

/* A program of a pipeline stage; caller frees it, and with it all that is in its arena. */
/* HD__INPUT_... of a tensor that is fed. */
int32_t hd__program_input(const struct hd_program *p, hd_tensor fed);
struct hd_program *hd__program_new(const struct hd__mesh *mesh, int32_t stage);
void hd__program_free(struct hd_program *p);
/* The flat that an update reads the gradient of; NULL: none. */
const struct hd__flat *hd__flat_of_update(const struct hd_program *p, const struct hd__instr *i);
/* Records the first error; always returns 0, so that builders can `return hd__program_fail(...)`. */
uint32_t hd__program_fail(struct hd_program *p, int32_t code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* The same with HD_E_INVALID: what plug-ins call. */
void hd__program_refuse(struct hd_program *p, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Numbers that state s of the optimizer has of a parameter: on this rank, or in all. */
int64_t hd__state_count(const struct hd_program *p, const struct hd__param *param, uint32_t s, int global);

/* Makers return the index of what they copied into the program. */
uint16_t hd__dim_new(struct hd_program *p, const char *name, int64_t extent);
uint16_t hd__block_id(struct hd_program *p, const char *name); /* makes it where it is new */
hd_tensor hd__tensor_new(struct hd_program *p, const struct hd__tensor *tensor);
uint32_t hd__buffer_new(struct hd_program *p, const char *name, int64_t bytes, uint8_t life);
void hd__code_compact(hd__code *code);                             /* instructions whose op is 0 leave */
struct hd__instr hd__instr_new(struct hd_program *p, uint16_t op); /* a fresh id, block and phase of the builder */
struct hd_attrs *hd__attrs_new(struct hd_program *p, const struct hd_attrs *from); /* a copy in the arena */

/* The tensor of an index; valid until the next hd__tensor_new. */
static inline struct hd__tensor *hd__tensor_at(struct hd_program *p, hd_tensor t)
{
    return &p->tensors.at[t];
}
static inline const struct hd__tensor *hd__tensor_const(const struct hd_program *p, hd_tensor t)
{
    return &p->tensors.at[t];
}

/* Index of a dim in a tensor, -1 if it has none. */
int32_t hd__dim_index(const struct hd__tensor *t, uint16_t dim);
/* Placement on one axis: HD__REPLICATED, HD__PARTIAL, or the dim id that it shards. */
enum { HD__REPLICATED = 0, HD__PARTIAL = 0xffff };
uint16_t hd__placement_on(const struct hd__tensor *t, int32_t axis);
int64_t hd__local_extent(const struct hd_program *p, const struct hd__tensor *t, int32_t i); /* local extent of dim i */
int64_t hd__numel(const struct hd_program *p, const struct hd__tensor *t);                   /* local elements */
int64_t hd__global_numel(const struct hd_program *p, const struct hd__tensor *t);            /* without padding */
int hd__is_padded(const struct hd_program *p);                                               /* is any dim? */
/* Chunks of the sequence in ring attention's zig-zag order; 0: the sequence is in its own order. */
int64_t hd__zigzag_parts(const struct hd_program *p);
/* The position in the sequence of element `index` of dim s. */
int64_t hd__sequence_position(const struct hd_program *p, int64_t index);
/* Global index of local element 0 along dim i at a coordinate. */
int64_t hd__global_start(const struct hd_program *p, const struct hd__tensor *t, int32_t i,
                         const int32_t coord[HD_AXIS_COUNT]);
static inline int64_t hd__tensor_bytes(const struct hd_program *p, const struct hd__tensor *t)
{
    return hd__numel(p, t) * (int64_t)hd_dtype_size(t->dtype);
}
static inline int hd__is_async(const struct hd__instr *i)
{
    return i->stream != HD__STREAM_COMPUTE;
}
/* The direction of a send or receive: 0 with the forward pass, 1 with the backward pass; the same on both sides, which
 * its stream is not. */
static inline uint32_t hd__stream_way(const struct hd__instr *i)
{
    return i->stream & 1;
}
static inline int hd__is_collective(uint16_t op)
{
    return (op >= HD_OP_ALL_REDUCE && op <= HD_OP_BROADCAST) || op == HD_OP_SHIFT;
}
/* The section of a kind (not OTHER), and of a name; NULL if there is none. */
struct hd__code_section *hd__program_section_of(struct hd_program *p, uint8_t kind);
struct hd__code_section *hd__program_section(struct hd_program *p, const char *name);
/* Appends a section of a kind, which gives its name; and the kind of a name: OTHER for names that are not the
 * core's. */
struct hd__code_section *hd__section_new(struct hd_program *p, uint8_t kind, int32_t repeat);
uint8_t hd__section_kind(const char *name);
/* Is it the same section, perhaps in another stage's program? */
static inline int hd__same_section(const struct hd__code_section *a, const struct hd__code_section *b)
{
    return a->kind == b->kind && (a->kind != HD__SECTION_OTHER || !strcmp(a->name, b->name));
}
/* How many ranks back what a SHIFT brings is. */
static inline int64_t hd__shift_steps(const struct hd_program *p, const struct hd__instr *i)
{
    return (i->attrs && i->attrs->index ? i->attrs->index : 1) % hd__mesh_ways(&p->mesh, i->axes);
}
/* Is its output just its input? */
static inline int hd__is_assignment(const struct hd__instr *i)
{
    return i->op == HD_OP_COPY || (i->op == HD_OP_BLEND && i->n_in == 1 && !i->axes && i->attrs && i->attrs->n_table &&
                                   !(i->attrs->table[0] < 1 || i->attrs->table[0] > 1));
}
/* Is it part of step `step`, counted from 1? */
static inline int hd__section_due(const struct hd__code_section *s, int64_t step)
{
    return s->repeat > 0 && (!s->every || step % s->every == 0) && step > s->after && (!s->last || step <= s->last);
}

/* Runs per step in the steady state: 1/N for what runs every N steps, 0 for what is over by then. With a name: runs of
 * that section in a step that has it, 0 of others. */
static inline double hd__section_runs_per_step(const struct hd__code_section *s, const char *section)
{
    if (section)
        return strcmp(s->name, section) ? 0 : HD__MAX(s->repeat, 1);
    return s->last ? 0 : (double)s->repeat / HD__MAX(s->every, 1);
}

/* Can both be part of one step? */
static inline int hd__sections_share_step(const struct hd__code_section *a, const struct hd__code_section *b)
{
    return !(a->last && b->after >= a->last) && !(b->last && a->after >= b->last);
}

/* ---- micro_batches.c: data.micro_batches gives ranks of different speed unequal shares of a step. One program is all
 * ranks': only the rounds of its repeated section differ. */

/* Micro-batches of a step on this rank; -1: on one that has the most. */
int32_t hd__micro_batches_of(const struct hd_program *p, int32_t rank);
/* Rounds of section s on this rank, in a step that has it. */
int32_t hd__section_rounds(const struct hd_program *p, const struct hd__code_section *s, int32_t rank);
/* On all of them, without those that are empty. */
int64_t hd__step_sequences(const struct hd_program *p);
int hd__section_feeds(const struct hd__code_section *s);
/* Micro-batches that a step has fed on this rank before section s, without sections that run in other steps. */
int32_t hd__micro_batches_before(const struct hd_program *p, uint32_t s, int32_t rank);
/* Sequence of a step's batch that the first row of micro-batch `micro` on this rank is; the others follow. Past the
 * batch where there is none. */
int64_t hd__first_sequence(const struct hd_program *p, int32_t rank, int64_t micro);

/* The first step of the steady state: all later ones are like it. */
int64_t hd__steady_step(const struct hd_program *p);

/* ---- shared by all passes */

extern const struct hd_builder_api hd__builder_api;  /* builder.c */
void hd__builder_check_params(struct hd_program *p); /* after the model has built: no name twice */
static inline int hd__is_copy(const struct hd__instr *i)
{
    return i->stream == HD__STREAM_IN || i->stream == HD__STREAM_OUT;
}
static inline uint8_t hd__memory_of(const struct hd_program *p, hd_tensor t)
{
    return p->buffers.at[hd__tensor_const(p, t)->buffer].memory;
}
/* The facts of a tensor; of nothing where none were declared. */
const struct hd__fact *hd__fact_of(const struct hd_program *p, hd_tensor t);
/* Axes along which a flat tensor's values differ between ranks that are apart. */
static inline uint32_t hd__independent_axes_of(const struct hd_program *p, hd_tensor t)
{
    const struct hd__fact *f = hd__fact_of(p, t);
    return p->independent_axes & ~(f->what & HD_FACT_EQUAL ? f->axes : 0);
}
/* Number of replicas along independent_axes; 1 where there are none. */
static inline int64_t hd__replicas(const struct hd_program *p)
{
    return hd__mesh_ways(&p->mesh, p->independent_axes);
}
/* A tensor of a flat; an iterator, init by {0}. */
struct hd__flat_tensor {
    uint32_t next; /* hd__flat_next's own */
    uint32_t flat; /* index */
    uint32_t role, kinds;
    hd_tensor tensor;
};

/* The next tensor of one of the `kinds`, flat by flat, each tensor of a flat once; 0 where there is none. */
int hd__flat_next(const struct hd_program *p, uint32_t kinds, struct hd__flat_tensor *t);
/* Bytes of all arenas one behind another, as memory_plan.c lays them. */
static inline int64_t hd__arena_total_bytes(const struct hd_program *p)
{
    return p->arena_base[HD__MEM_COUNT - 1] + p->bytes[HD__MEM_COUNT - 1];
}

/* lower_instr.c: lowers one instruction for the rank at `coord`. Operands are written to in[HD_MAX_IN],
 * out[HD_MAX_OUT], which desc points to. `arena` may be NULL: then all data pointers are NULL. */
void hd__instr_lower(const struct hd_program *p, const struct hd__instr *i, const int32_t coord[HD_AXIS_COUNT],
                     void *arena, struct hd_instr_desc *desc, struct hd_operand *in, struct hd_operand *out);
/* Address of a tensor's first element for the rank at coord. */
void *hd__tensor_address(const struct hd_program *p, hd_tensor t, const int32_t coord[HD_AXIS_COUNT], void *arena);

#endif
