/* heddle/strategy.h: a strategy is a pass over the step program. Part of the stable ABI: slots and fields are appended,
 * nothing else changes; HD_STRATEGY_API stays what it is.
 *
 * Life, for every pipeline stage's program: layout (before anything is placed: marks) -> partition (the placed
 * template of one micro-batch: which stage runs what, and when) -> transform (the placed program, cut into
 * sections). Strategies run in the job's order; each sees what the former left.
 *
 * A call fills in its `out` whole, struct_size too; names and arrays in it are the program's, until the pass
 * returns. Names that are given are copied.
 *
 * The program is a list of sections (begin, micro, micro_last, update); a section is a list of instructions. A pass
 * looks at instructions by (section, index) and records edits; indexes stay valid until the pass returns, then all
 * edits are applied at once. */
#ifndef HEDDLE_STRATEGY_H
#define HEDDLE_STRATEGY_H

#include "heddle/plugin.h"
#include "heddle/program.h"

#define HD_STRATEGY_API 6

enum { HD_PHASE_F = 0, HD_PHASE_R = 1, HD_PHASE_B = 2, HD_PHASE_W = 3, HD_PHASE_O = 4 };

/* insert, append: an asynchronous instruction is waited for at once. */
#define HD_PASS_WAIT (UINT32_C(1) << 0)

/* An instruction, to look at (instr) or to insert (insert: id, micro and chunk are set by the core). */
struct hd_pass_instr {
    size_t struct_size;
    uint32_t id, op;
    uint32_t block, phase;
    uint64_t members; /* coordinates on a single axis; 0: all */
    uint32_t axes;    /* mask of mesh axes: collectives */
    uint32_t redop;
    uint32_t n_in, n_out;
    int32_t micro, chunk;
    hd_tensor in[HD_MAX_IN], out[HD_MAX_OUT];
    uint32_t flags; /* HD_PASS_... */
    uint32_t reserved;
    const struct hd_attrs *attrs; /* copied at insert; may be NULL */
};

struct hd_pass_param {
    size_t struct_size;
    const char *name;
    hd_tensor tensor;
    uint32_t block;
    uint32_t ndim;
    uint32_t obligation; /* axes on which its gradient is partial: it must be reduced exactly once over each */
    uint32_t replicated; /* live axes on which the parameter is replicated */
    uint32_t reserved;
    uint64_t stages; /* mask of pipeline stages that use it */
    int64_t count;   /* elements on this rank */
    int64_t rows;    /* on this rank, of a matrix as its file has it (heads and head_dim are one dim); 0: no matrix */
    uint32_t parts;  /* 2: with exact sums the contributions of its two blocks are summed apart, all of each over every
                            data rank, and then added: pipeline stages may have one each. Else 0 */
    /* the optimizer's (heddle/optimizer.h, `group`), with HD_OPTIM_CUT: parameters of one flat buffer have the same */
    uint32_t group;
};

/* Tensors of a flat buffer; 0: none. */
struct hd_pass_flat {
    size_t struct_size;
    uint64_t members; /* pipeline stages that share it; 0: only this one */
    uint32_t block, axes, n_params, reserved;
    const uint32_t *params;
    const int64_t *offset;
    int64_t count;    /* elements, padded so that the shards are equal */
    int64_t ways;     /* how many shards */
    hd_tensor whole;  /* what compute reads */
    hd_tensor master; /* what the optimizer updates: this rank's shard, a tensor of its own or part of the whole */
    /* the copy of the master, in the compute dtype, that the whole is made of; 0: that is the master itself */
    hd_tensor low;
    hd_tensor common; /* HD_FLAT_COMMON; 0: none */
};

/* A gradient that is ready to be summed over ranks: all of a flat buffer, as this rank has accumulated it. */
struct hd_pass_bucket {
    size_t struct_size;
    uint32_t flat, axes;     /* the flat, and the axes to sum over */
    uint32_t section, index; /* of the last instruction that contributes to it: what reduces it goes behind */
    uint32_t last;           /* `out` is complete behind this one: computing in between runs beside the exchange */
    uint32_t rounds;         /* how often in a step */
    hd_tensor grad;          /* in the dtype "grad"; may be overwritten */
    hd_tensor out;           /* the sum's place: `grad` itself, or this rank's shard along the flat's axes */
};

/* A block of the model, in the order of the forward pass, as the placed template has it: what one rank computes for one
 * micro-batch, forward, backward without weight gradients, and weight gradients. */
struct hd_pass_block {
    size_t struct_size;
    const char *name;
    uint32_t id; /* as in hd_pass_instr.block */
    uint32_t n_params;
    int64_t params;  /* elements on this rank of the parameters that it is the first to use */
    double flops[3]; /* forward, backward, weights */
    double bytes[3]; /* of operands read and written */
};

/* Pipeline schedules. The model is cut into chunks, numbered from 0 in the order of the forward pass; a chunk
 * belongs to one stage, a stage may have several. An action runs a part of one chunk for one micro-batch:
 *   F  forward
 *   B  backward; with weight gradients, unless the list has a W for the same chunk and micro-batch
 *   W  weight gradients
 * A stage's list names every (chunk of the stage, micro-batch) once with F, later once with B, and later once with W
 * or not at all; the F of a chunk come in the order of micro-batches. Sends and receives follow from it: whatever
 * one chunk makes and another uses. */
enum { HD_ACTION_F = 0, HD_ACTION_B = 1, HD_ACTION_W = 2 };

struct hd_action {
    uint32_t kind; /* HD_ACTION_... */
    uint32_t chunk;
    uint32_t micro; /* from 0 */
};

enum {
    HD_FLAT_WHOLE = 0,
    HD_FLAT_MASTER = 1,
    HD_FLAT_GRAD = 2,
    HD_FLAT_SHARD = 3,
    HD_FLAT_LOW = 4,
    HD_FLAT_COMMON = 5
};
/* Facts that a strategy states of a tensor, or of the parameters, and that the core proves: `declare`. Ranks that are
 * `apart` train parameters of their own; others have the same in any case. */
enum {
    HD_FACT_EQUAL = 1,    /* the same on all ranks along the axes */
    HD_FACT_AVERAGE = 2,  /* begins as the parameters and is an average of them: their weights in it sum to 1 */
    HD_FACT_ZERO_SUM = 4, /* begins as zeros; differences of parameters: their weights in it sum to 0 */
    /* begins as zeros; what a step leaves of gradients for the next, this rank's own: a step that uses it reads what
     * is there before it writes it anew, and leaves no gradient there that the optimizer has read */
    HD_FACT_FEEDBACK = 8,
    /* of parameters: each rank's are a mean, with weights of 0 and more, of what ranks along the axes have trained,
     * and no rank is for ever without a part of another's. They need never become equal */
    HD_FACT_MIX = 16
};
/* A temporary belongs to one section. HD_LIFE_STEP: from where a step first writes it until the step ends, and
 * nothing is in it when the next one begins; before that its memory may serve temporaries. */
enum { HD_LIFE_TEMP = 0, HD_LIFE_PERSISTENT = 1, HD_LIFE_STEP = 2 };
enum { HD_MEMORY_MAIN = 0, HD_MEMORY_HOST = 1, HD_MEMORY_FILE = 2 };
enum { HD_PART_MASTER = 1, HD_PART_LOW = 2, HD_PART_STATES = 4 };

/* Errors are sticky, as in hd_builder_api. All slots are [control]. section_name, count, partial and
 * optimizer_states do what they say, though heddle's own strategies do without them. */
struct hd_pass_api {
    size_t struct_size;
    /* ---- the mesh */
    uint32_t (*live_axes)(const struct hd_program *p);
    int32_t (*axis_size)(const struct hd_program *p, uint32_t axis);
    /* ---- layout: before placement, when the model's dims are known (0: no such dim). dim is a letter; axes are
     * appended minor-most, in the order of the calls. Axes of size 1 are left out. */
    int64_t (*extent)(const struct hd_program *p, char dim);
    void (*shard_params)(struct hd_program *p, char dim, uint32_t axis);
    void (*shard_residual)(struct hd_program *p, char dim, uint32_t axis);
    /* ---- queries */
    uint32_t (*n_sections)(const struct hd_program *p);
    const char *(*section_name)(const struct hd_program *p, uint32_t section);
    uint32_t (*n_instr)(const struct hd_program *p, uint32_t section);
    void (*instr)(const struct hd_program *p, uint32_t section, uint32_t index, struct hd_pass_instr *out);
    uint32_t (*n_params)(const struct hd_program *p);
    void (*param)(const struct hd_program *p, uint32_t index, struct hd_pass_param *out);
    uint32_t (*param_of)(const struct hd_program *p, hd_tensor t); /* index + 1 of the parameter that t is; 0 if none */
    int64_t (*count)(const struct hd_program *p, hd_tensor t);     /* elements on this rank */
    uint32_t (*partial)(const struct hd_program *p, hd_tensor t);  /* axes on which t is a partial sum */
    /* The dtypes of the job: what = "compute", "grad", "reduce", "master", "optimizer". */
    uint32_t (*dtype)(const struct hd_program *p, const char *what);
    uint32_t (*optimizer_states)(const struct hd_program *p); /* how many: AdamW 2 */
    /* ---- flat buffers: parameters one after another. Returns an id from 1. `params`: indexes, as of param();
     * `axes`: those along which its shards lie; `members`: coordinates on a single axis, 0: all. Where the optimizer
     * updates whole parameters they are dealt to the shards, none cut: flat_get has them in the order in which they
     * lie. */
    uint32_t (*flat)(struct hd_program *p, const char *name, uint32_t block, uint32_t axes, const uint32_t *params,
                     uint32_t n_params, uint64_t members);
    void (*flat_get)(const struct hd_program *p, uint32_t flat, struct hd_pass_flat *out);
    /* A tensor over all of a flat, with a buffer of its own. */
    hd_tensor (*flat_whole)(struct hd_program *p, uint32_t flat, const char *name, uint32_t dtype, uint32_t life);
    /* This rank's shard of it: a buffer of its own, or with `inside` a window of that whole tensor. */
    hd_tensor (*flat_shard)(struct hd_program *p, uint32_t flat, const char *name, uint32_t dtype, uint32_t life,
                            hd_tensor inside);
    /* A parameter's place in a whole tensor, with the parameter's shape. */
    hd_tensor (*flat_view)(struct hd_program *p, uint32_t flat, hd_tensor whole, uint32_t param);
    /* Elements [first, first + count) of a whole tensor. */
    hd_tensor (*flat_range)(struct hd_program *p, uint32_t flat, hd_tensor whole, int64_t first, int64_t count);
    /* Sets the tensor of this role, for verification, checkpoints and initialisation. */
    void (*flat_role)(struct hd_program *p, uint32_t flat, uint32_t role, hd_tensor t);
    /* ---- edits */
    void (*insert)(struct hd_program *p, uint32_t section, uint32_t index, int32_t after,
                   const struct hd_pass_instr *instr);
    void (*append)(struct hd_program *p, const char *section, const struct hd_pass_instr *instr);
    void (*replace_in)(struct hd_program *p, uint32_t section, uint32_t index, uint32_t k, hd_tensor t);
    void (*replace_out)(struct hd_program *p, uint32_t section, uint32_t index, uint32_t k, hd_tensor t);
    /* Appends to the update section the optimizer's instructions for a flat: reads SHARD, updates MASTER and states
     * that the core adds; `low`: a copy in the compute dtype to write too, or 0. */
    void (*update)(struct hd_program *p, uint32_t flat, hd_tensor low);
    /* The squared global gradient norm: fp64 scalar that sumsq adds to and the update reads. */
    hd_tensor (*norm2)(struct hd_program *p);
    void (*fail)(struct hd_program *p, const char *format, ...) __attribute__((format(printf, 2, 3)));
    /* ---- pipeline: in partition. All stages see the same template and must say the same. */
    int32_t (*stage)(const struct hd_program *p);          /* pp coordinate that is compiled */
    uint32_t (*micro_batches)(const struct hd_program *p); /* of a step */
    uint32_t (*n_blocks)(const struct hd_program *p);
    void (*block)(const struct hd_program *p, uint32_t index,
                  struct hd_pass_block *out); /* index: order of the forward pass */
    /* Cuts the model: chunk_of_block[n_blocks] by index, never falling, from 0 to n_chunks - 1;
     * stage_of_chunk[n_chunks]. */
    void (*chunks)(struct hd_program *p, uint32_t n_chunks, const uint32_t *stage_of_chunk,
                   const uint32_t *chunk_of_block);
    /* Actions of a stage in one step. Called once for every stage. */
    void (*actions)(struct hd_program *p, uint32_t stage, const struct hd_action *list, uint32_t n);
    /* ---- other memories: persistent tensors that compute does not use where they lie. A COPY from or to one (insert,
     * append) runs on a stream of its own. */
    /* This rank's shard of a flat, persistent, in `memory`. */
    hd_tensor (*flat_shard_in)(struct hd_program *p, uint32_t flat, const char *name, uint32_t dtype, uint32_t memory);
    /* Memory of the optimizer's states of a flat. Before fetch and update. */
    void (*states_in)(struct hd_program *p, uint32_t flat, uint32_t memory);
    /* The folder in which HD_MEMORY_FILE is made, on each rank's machine; the file has no name. */
    void (*file_folder)(struct hd_program *p, const char *folder);
    /* Copies the offloaded tensors that `what` (HD_PART_...) names to device memory for `section`: memory in slot
     * `slot`, which other flats may use before and after, and copies of those in `load`. update needs it in the
     * section "update", and appends the copies back. */
    void (*fetch)(struct hd_program *p, const char *section, uint32_t flat, uint32_t what, uint32_t load,
                  uint32_t slot);
    /* The device copy of an offloaded tensor, or the tensor itself if it is not offloaded. */
    hd_tensor (*staged)(struct hd_program *p, const char *section, hd_tensor t);
    /* Copies back. */
    void (*store)(struct hd_program *p, const char *section, uint32_t flat, uint32_t what);
    /* ---- layout: where the sequence is cut over this axis, attention goes around a ring of its ranks instead of
     * moving heads (all_to_all). */
    void (*ring_attention)(struct hd_program *p, uint32_t axis);
    /* ---- vectors: one dim of their own, with `count` elements; with axes this rank holds its shard. */
    hd_tensor (*vector)(struct hd_program *p, uint32_t flat, const char *name, int64_t count, uint32_t dtype,
                        uint32_t axes, uint32_t life);
    /* A tensor like another with a buffer of its own: the same elements, sharded along axes. */
    hd_tensor (*vector_like)(struct hd_program *p, const char *name, hd_tensor like, uint32_t axes, uint32_t life);
    /* ---- ranks that are apart: along these axes each trains parameters of its own. In layout: gradients are not
     * summed over these axes, and are those of the mean over this rank's part of the batch. Axes of dp only. To
     * strategies, whatever their order, such an axis has one rank: live_axes, obligation and replicated leave it out.
     * The core proves that nothing but the loss crosses it, except in sections of which the parameters' fact is
     * declared. A flat needs a HD_FLAT_COMMON, the model of a checkpoint beside each rank's own parameters. */
    void (*apart)(struct hd_program *p, uint32_t axes);
    uint32_t (*n_flats)(const struct hd_program *p); /* ids 1 to n */
    /* A new section behind the others, run after `update` in steps every, 2 every, ... */
    void (*section)(struct hd_program *p, const char *name, uint32_t every);
    /* Registers t, a persistent tensor of a strategy's own over a flat's shard, as state NAME of checkpoints, which
     * have one of it: declare it, HD_FACT_EQUAL too where ranks are apart. Files have the name: no '/' or '.' in it. */
    void (*keep)(struct hd_program *p, uint32_t flat, hd_tensor t, const char *name);
    /* ---- matrices: a dim of a strategy's own, which no axis cuts, and elements [first, first + product of the
     * extents) of a tensor as a row-major block with these dims. Its name: that of the tensor where it is NULL. */
    uint32_t (*dim)(struct hd_program *p, const char *name, int64_t extent);
    hd_tensor (*view)(struct hd_program *p, hd_tensor inside, const char *name, int64_t first, const uint32_t *dims,
                      uint32_t n);
    /* Splits a section in two by the number of the step: what it is now runs in steps 1 to `last`, under a name that
     * ends in "_warmup" and with temporaries of its own, and `section`, which is one further from now on, in the steps
     * after. Before any other edit. */
    void (*split_section)(struct hd_program *p, uint32_t section, int64_t last);
    /* In layout, before shard_params: the ranks of tp become tp / ways times ways, the latter along the axis tq,
     * innermost. All stages must say the same. */
    void (*split_tp)(struct hd_program *p, int32_t ways);
    /* Splits a section that is repeated in a step (gradient accumulation) in two by the round: `section` is the
     * first one from now on, under a name that ends in "_first" and with temporaries of its own, and what follows it
     * all others. A section that runs once stays as it is. Before any other edit. */
    void (*first_round)(struct hd_program *p, uint32_t section);
    /* States facts (HD_FACT_..., added) that the core proves of every rank's program, or refuses it. Of a persistent
     * tensor of the strategy's own: AVERAGE or ZERO_SUM over a flat's shard, with EQUAL along `axes` where ranks are
     * apart, which `section`, one of the strategy's, alone writes; or FEEDBACK (axes 0, section NULL), of which
     * checkpoints have one of every rank. Of the parameters (t = 0): EQUAL or MIX along `axes`, axes of `apart`,
     * where `section` ends. There BLEND with `axes` makes a rank's term of a mean, all_reduce over them the mean, and
     * SHIFT brings what another rank has. HD_FLAT_COMMON is declared AVERAGE + EQUAL. */
    void (*declare)(struct hd_program *p, hd_tensor t, uint32_t facts, uint32_t axes, const char *section);
    /* ---- arithmetic of a strategy's own. Returns a number for hd_pass_instr.op, at least HD_OP_LIMIT; the same one
     * where this op was given before. */
    uint32_t (*custom_op)(struct hd_program *p, const struct hd_custom_op *op);
    /* Takes an instruction away, and the wait for it. Indexes stay as they are until the pass returns: insert works
     * beside it, instr says op 0. */
    void (*remove)(struct hd_program *p, uint32_t section, uint32_t index);
    /* Numbers that the training loop sets for each step: HD_HYPER_COUNT fp64 (heddle/reference.h). */
    hd_tensor (*hyper)(struct hd_program *p);
    /* Lets the strategy of the job that has the slot `reduce` sum a bucket: 1, and its instructions are recorded; 0
     * where there is none, and the caller reduces. bucket NULL: is there one? */
    uint32_t (*reduce)(struct hd_program *p, const struct hd_pass_bucket *bucket);
};

struct hd_strategy_ops {
    size_t struct_size;
    uint64_t caps;
    uint32_t api; /* HD_STRATEGY_API */
    uint32_t reserved;
    /* Errors, all three: a fault of the settings is returned (hd_fail, with a message that begins with the key,
     * "strategies.NAME.KEY ...", to be printed with its place); a fault of hd_pass_api calls, and `fail`, is sticky
     * in the program and found there when the pass returns HD_OK. */
    /* [control] Before placement: shard_params, shard_residual, apart, split_tp, ring_attention. May be NULL. */
    int32_t (*layout)(const struct hd_host *host, const void *settings, struct hd_program *program,
                      struct hd_error *err);
    /* [control] After placement and lowering. May be NULL. */
    int32_t (*transform)(const struct hd_host *host, const void *settings, struct hd_program *program,
                         struct hd_error *err);
    /* [control] After placement, before lowering: chunks, actions. May be NULL. */
    int32_t (*partition)(const struct hd_host *host, const void *settings, struct hd_program *program,
                         struct hd_error *err);
    /* Mask of the mesh axes (HD_AXIS_BIT) that do nothing unless a strategy like this one cuts the model along them.
     * If the mesh of a job has such an axis and none of the job's strategies cuts it, the one that is installed and
     * does is added in front of them, with its defaults. A strategy that cuts an axis and does not say so is not seen
     * as one, and another would cut that axis as well. */
    uint64_t cuts;
    /* [control] Sums the buckets of another strategy (zero), which calls hd_pass_api.reduce in its transform: makes
     * bucket->out the sum of every rank's bucket->grad. One strategy of a job may have it, and some strategy must ask
     * for it. May be NULL. */
    int32_t (*reduce)(const struct hd_host *host, const void *settings, struct hd_program *program,
                      const struct hd_pass_bucket *bucket, struct hd_error *err);
};

#endif
