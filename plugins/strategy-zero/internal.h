/* strategy-zero: ways to meet the obligations that placement left on the parameter gradients (ZeRO, Rajbhandari et al.,
 * arXiv 1910.02054; FSDP, Zhao et al., arXiv 2304.11277).
 *
 *   stage 0  all_reduce of gradients (DDP), in the last micro-batch
 *   stage 1  reduce_scatter there, update of the shard, all_gather of parameters
 *   stage 2  reduce_scatter in every micro-batch into the shard
 *   stage 3  parameters live as shards: gather before a block needs them, release after
 *
 * options.c reads and refuses, plan.c groups parameters into flat buffers, gradients.c, reduce.c and params.c rewrite
 * the sections, compress.c and powersgd.c make what travels smaller, update.c appends the update. */
#ifndef HD_STRATEGY_ZERO_INTERNAL_H
#define HD_STRATEGY_ZERO_INTERNAL_H

#include "heddle/host.h"
#include "heddle/strategy.h"

enum {
    ZERO_STAGE_0 = 0,
    ZERO_STAGE_1,
    ZERO_STAGE_2,
    ZERO_STAGE_3,
    ZERO_NO_SHARD,
    ZERO_SHARD_GRAD_OP,
    ZERO_FULL_SHARD,
    ZERO_HYBRID
};

struct zero_settings {
    int64_t bucket, gather_bucket;
    int64_t prefetch, prefetch_backward, prefetch_size, max_inflight;
    int64_t persist_below, max_live;
    struct hd_list axes;
    int32_t stage; /* index into the choices: ZERO_... */
    int32_t reshard_after_forward, overlap, gather_in_forward;
    int32_t offload_optimizer, offload_params; /* HD_MEMORY_... */
    int32_t reserved, compress_kind;           /* none, fp16, bf16, int8, int4, powersgd */
    int64_t compress_block, compress_rank, compress_warmup;
    const char *path; /* offload.path */
    int64_t always;   /* of HD_OPTION_FIXED; nobody reads it */
};

struct zero_code { /* compress.c: the tensors of one flat */
    int64_t ways;
    hd_tensor sent, got, error;
    hd_tensor sum, sum_error, sum_sent, gathered; /* stage 0 */
    uint32_t ends;                                /* what was gathered is still to be decoded in this section */
};

struct zero_matrix {             /* powersgd.c: M [m n] is P [m r] Q [n r]^T */
    hd_tensor moved, grad, p, q; /* moved: the gradient and the error of the steps before */
};

struct zero_flat {
    uint32_t id; /* of the host */
    uint32_t block;
    uint32_t axes;  /* shards lie along these */
    uint32_t outer; /* data axes that are settled by all_reduce on the shard, after the reduce_scatter */
    uint32_t stage; /* of this flat: small parameters stay whole at stage 3, and what no axis cuts is stage 0 */
    uint32_t keep;  /* stage 3: stays whole from the forward pass to the backward pass */
    int64_t ways;
    int64_t count; /* elements of the whole */
    uint32_t *params;
    uint32_t begins;               /* where its first gradient is made, counted from the program's end */
    uint32_t n_params, n_matrices; /* matrices come first where they travel as products of two */
    uint32_t late;                 /* gathered in the next step's forward pass, not behind the update */
    uint64_t members;              /* pipeline stages that share it; 0: only this one */
    uint32_t parts;  /* 2: of one parameter whose blocks' contributions are summed apart (exact sums); else 0 */
    hd_tensor first; /* the sum of the part that was there first, until it is added to the other one */
    hd_tensor whole, grad, shard, master, home, low; /* home: what stage 3 gathers from */
    hd_tensor travelling;                            /* the shard, or a copy of it, on the outer axes */
    uint32_t used;                                   /* the last section, + 1, that was seen to read it */
    struct zero_code code;
    struct zero_matrix *matrices;
    hd_tensor left, right; /* all P, all Q, one after another */
};

struct zero {
    const struct hd_host *host;
    const struct hd_pass_api *api;
    struct hd_program *p;
    struct zero_settings settings;
    uint32_t bits;       /* of codes; 0: none */
    uint32_t rank;       /* of products; 0: none */
    uint32_t warm;       /* the section that is rewritten runs in the first steps, in which nothing is compressed */
    uint32_t begins;     /* the section that is rewritten begins a step, and parameters are gathered there */
    uint32_t early;      /* the flat, index + 1, that it needs first: gathered behind the update of the others */
    uint32_t wire;       /* dtype in which gradients travel */
    uint32_t stage;      /* 0..3 */
    uint32_t shard_axes; /* axes whose replication may be removed: the option `axes` */
    uint32_t outer_axes; /* the other data axes: settled by all_reduce, after the reduce_scatter, on the shard */
    uint32_t n_flats, n_params, reserved;
    struct zero_flat *flats;
    struct hd_pass_param *params; /* by parameter */
    uint32_t *owner;              /* by parameter: flat index + 1; 0: not used */
    int64_t dealt, padded;        /* elements of parameters that are dealt whole, and with what pads their shards */
    int64_t gathered;             /* elements that the sections so far gather on a rank: zero_params */
    int64_t matrices, factors;    /* elements: of matrices that travel as products, and of these */
};

#define ZERO_OPTIONS 47
extern const struct hd_option zero_options[ZERO_OPTIONS];
/* Reads the settings; refuses what makes no sense on this mesh. */
int32_t zero_configure(struct zero *z, struct hd_error *err);

/* Do several pipeline stages use it? */
static inline int zero_tied(const struct hd_pass_param *param)
{
    return __builtin_popcountll(param->stages) > 1;
}

/* Or several blocks, which could be on several stages (tied embeddings)? */
static inline int zero_shared(const struct hd_pass_param *param)
{
    return zero_tied(param) || param->parts;
}

/* Is its persistent whole gathered after an update? */
static inline int zero_gathers(const struct zero_flat *f)
{
    return f->stage == 1 || f->stage == 2;
}

/* Is there one reduction of it in a step? Then its result is the shard, and nothing is cleared or added to. */
static inline int zero_sums_once(const struct zero *z, const struct zero_flat *f)
{
    return f->stage == 1 || (f->stage >= 2 && !f->parts && z->api->micro_batches(z->p) == 1);
}

int zero_plan(struct zero *z); /* 0 when out of memory; other faults are sticky in the program */
void zero_free(struct zero *z);
int zero_gradients(struct zero *z, uint32_t section, int last); /* 0 when out of memory */
struct zero_tail { /* what is done with the result of the previous reduction: to op= from; then `dead` is released */
    struct zero_flat *flat; /* NULL: nothing */
    uint32_t op;            /* 0: it lies where it belongs */
    hd_tensor dead, from, to;
};
/* All that follows the last contribution to a flat, put behind instruction `index`. */
void zero_reduce(struct zero *z, struct zero_flat *f, hd_tensor grad, struct zero_tail *tail, uint32_t section,
                 uint32_t index);
/* The same of one part of two; `more`: the other part is still to come. */
void zero_reduce_part(struct zero *z, struct zero_flat *f, hd_tensor grad, int more, struct zero_tail *tail,
                      uint32_t section, uint32_t index);
void zero_flush(struct zero *z, struct zero_tail *tail, uint32_t section, uint32_t index);
void zero_reduce_outer(struct zero *z);
/* ---- compress.c */
int32_t zero_configure_compression(struct zero *z, struct hd_error *err);
int zero_codes(const struct zero *z, const struct zero_flat *f); /* does this flat travel as codes, or products? */
uint32_t zero_code_axes(const struct zero *z, const struct zero_flat *f); /* over which it is reduced then */
int64_t zero_ways(const struct zero *z, uint32_t axes);
void zero_compress(struct zero *z, struct zero_flat *f, hd_tensor grad, struct zero_tail *tail, uint32_t section,
                   uint32_t index);
void zero_decode(struct zero *z, struct zero_flat *f, uint32_t section, uint32_t index);
void zero_decode_rest(struct zero *z, uint32_t section, uint32_t index);
/* ---- powersgd.c: the same three steps for products */
void zero_project(struct zero *z, struct zero_flat *f, hd_tensor grad, struct zero_tail *tail, uint32_t section,
                  uint32_t index);
void zero_project_back(struct zero *z, struct zero_flat *f, uint32_t section, uint32_t index);
void zero_multiply(struct zero *z, struct zero_flat *f, uint32_t section, uint32_t index);
int zero_params(struct zero *z, uint32_t section); /* 0 when out of memory */
void zero_update(struct zero *z);

/* An instruction over one flat, ready to be inserted. */
struct hd_pass_instr zero_instr(const struct zero *z, const struct zero_flat *f, uint32_t op, hd_tensor in,
                                hd_tensor out, uint32_t axes);

#endif
