/* heddle/optimizer.h: an optimizer updates shards of flat parameter buffers.
 *
 * A strategy cuts the parameters into flat shards and asks the optimizer for the instructions that update one.
 * The simplest optimizer gives `step`, a plain function over host memory, and the core emits one instruction that
 * calls it. One that wants device kernels gives `emit`. */
#ifndef HEDDLE_OPTIMIZER_H
#define HEDDLE_OPTIMIZER_H

#include "heddle/plugin.h"
#include "heddle/program.h"

/* ---- the update rules of HD_OP_ADAMW and HD_OP_SGD, which kernels and `step` functions share
 *
 * For every element, with lr, t, inv_scale, skip from hyper (LR, STEP, INV_SCALE, SKIP), the rest from hd_attrs, and
 * norm2 the squared global norm of the gradients *as they lie in memory* (so before inv_scale):
 *
 *     unless hd_update_runs(hyper, norm2): nothing is written, neither parameters nor states nor the low-precision copy
 *     c  = hd_clip_factor(norm2 * inv_scale^2, clip, sqrt)
 *     g' = g * (inv_scale * c)
 *
 *     adamw  (torch.optim.AdamW; Loshchilov and Hutter 2019, algorithm 2; decoupled decay, bias correction)
 *         p  = p * (1 - lr * decay)
 *         m  = beta1 * m + (1 - beta1) * g'
 *         v  = beta2 * v + (1 - beta2) * g'^2
 *         p  = p - lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps)
 *
 *     sgd    (torch.optim.SGD, dampening 0, not Nesterov; decay is coupled, after clipping; beta1 is the momentum)
 *         g" = g' + decay * p
 *         m  = beta1 * m + g"           (m starts at 0; without a momentum operand m is g" itself)
 *         p  = p - lr * m
 *
 * States are fp32 and start at zero. `decay` is the value of the range in hd_attrs.ranges (hd_optim_args.decay) that
 * holds the element's index in the whole flat buffer, 0 outside all ranges; ranges ascend and do not overlap.
 * p and the low-precision copy, where there is one, are the new p rounded to nearest even (or as HD_ATTR_STOCHASTIC
 * says). Factors common to all elements are formed in double; whether an element is computed in float or double is the
 * kernel's choice. */

/* Any range of a parameter's elements will do (AdamW). An optimizer that does not say so gets whole parameters, but for
 * those of which its `group` says HD_OPTIM_CUT: shards end between parameters, and a job whose mesh cuts one is
 * refused. */
#define HD_OPTIM_FLAT (UINT64_C(1) << 0)

/* hd_optim_param.flags: how the model uses it. */
#define HD_OPTIM_EMBEDDING (UINT32_C(1) << 0) /* its rows are looked up */
#define HD_OPTIM_HEAD (UINT32_C(1) << 1)      /* logits are products of it */

/* Part of the answer of `group`: any range of this parameter's elements will do. */
#define HD_OPTIM_CUT (UINT32_C(1) << 31)

/* A parameter, as an optimizer sees it. Elements lie row-major as in its Hugging Face file; [first, first + count) is
 * its place in the flat buffer, as hd_optim_args.first counts. A parameter that holds several matrices (experts) has
 * them one after another: count is a multiple of rows * cols. */
struct hd_optim_param {
    size_t struct_size;
    const char *name; /* lives as long as the program */
    int64_t first, count;
    int64_t rows, cols;         /* of one matrix on this rank; 0: no matrix */
    int64_t all_rows, all_cols; /* of the whole matrix: more than on this rank where the mesh cuts it */
    uint32_t ndim;              /* as in its file */
    uint32_t group;             /* what `group` answered, without HD_OPTIM_CUT */
    uint32_t flags;             /* HD_OPTIM_EMBEDDING, HD_OPTIM_HEAD */
    uint32_t reserved;
    int64_t state[4]; /* in `step`, of a whole parameter: index in hd_optim_args.state[s] of its first number */
};

/* What a state has a number for. Of several matrices those of the first come first. */
enum {
    HD_STATE_ELEMENT = 0,   /* every element */
    HD_STATE_BLOCK,         /* every `block` elements of a parameter; the last ones may be fewer */
    HD_STATE_ROW,           /* every row; this and what follows: of whole parameters alone, */
    HD_STATE_COLUMN,        /* every column; and all but ONE of matrices alone */
    HD_STATE_ROW_FACTOR,    /* every pair of rows: a matrix [rows, rows] */
    HD_STATE_COLUMN_FACTOR, /* every pair of columns: [cols, cols] */
    HD_STATE_ONE,           /* every matrix, or the parameter that is none */
};

/* A state of the parameters of one group. All bytes are 0 at first. Checkpoints have it in the parameter's shape, or
 * as a vector, whatever the mesh. */
struct hd_optim_state {
    size_t struct_size;
    uint32_t kind;  /* HD_STATE_... */
    uint32_t dtype; /* HD_F32, HD_U8, ... */
    int64_t block;  /* HD_STATE_BLOCK: a power of two from 16 to 65536. Parameters and shards begin at multiples of it;
                     * a job whose mesh cuts a parameter elsewhere is refused */
};

/* A matrix in host memory: element (i, j) lies at data + i * row + j * col, in elements; row or col is 1. */
struct hd_optim_matrix {
    void *data;
    int64_t row, col;
};

/* Services of the device, on its own threads, for `step` alone and from its thread. */
struct hd_optim_host {
    size_t struct_size;
    void *context;
    /* c[m, n] = a[m, k] b[k, n], summed in fp32. a and b have the dtype `dtype`, HD_F32 or HD_BF16, c is fp32 with
     * col 1. c overlaps neither. The same bits for any number of threads. */
    int32_t (*product)(void *context, uint32_t dtype, int64_t m, int64_t n, int64_t k, const struct hd_optim_matrix *a,
                       const struct hd_optim_matrix *b, const struct hd_optim_matrix *c, struct hd_error *err);
    /* Calls fn for ranges that cover [0, n), several at once. What is made of an item must not depend on its range. */
    void (*parallel)(void *context, int64_t n, void (*fn)(void *user, int64_t first, int64_t last), void *user);
};

/* Arguments of `step`: elements [first, first + count) of a flat buffer, updated in place. Element 0 of grad, param and
 * state is element `first` of the buffer; none of them overlap. */
struct hd_optim_args {
    size_t struct_size;
    int64_t first, count;
    const float *grad;            /* [count], not yet scaled, not yet clipped */
    float *param;                 /* [count], master weights */
    float *state[4];              /* n_states of them, [count] each, but where the slot `state` says else: then they
                                   * begin with the numbers of the first parameter, or block, of this call, and are
                                   * of the dtype it says */
    double norm2;                 /* squared global norm of the gradients, as they are in `grad` */
    const double *hyper;          /* [HD_HYPER_COUNT] */
    const struct hd_range *decay; /* weight decay by range of the whole flat buffer */
    uint64_t n_decay;
    struct hd_error *err; /* why `step` fails; may be NULL */
    /* From ABI 1.2. The parameters of which there are elements in [first, first + count), in the order of `first`. */
    const struct hd_optim_param *params;
    uint64_t n_params;
    void *scratch; /* as many bytes as `scratch` asked for, 64-byte aligned; not kept between calls */
    const struct hd_optim_host *host; /* products and threads; never NULL */
};

/* Length of the run of elements from `at` (counted from args->first) that have one weight decay, at least 1 before
 * args->count, and that decay. Of overlapping ranges the one listed first counts. */
static inline int64_t hd_decay_run(const struct hd_optim_args *args, int64_t at, double *decay)
{
    int64_t end = args->count;
    *decay = 0;
    for (uint64_t i = 0; i < args->n_decay; i++) {
        int64_t from = args->decay[i].first - args->first, to = from + args->decay[i].count;
        if (to <= at || to <= from)
            continue;
        if (from <= at) {
            *decay = args->decay[i].value;
            return (to < end ? to : end) - at;
        }
        end = from < end ? from : end;
    }
    return end - at;
}

/* The same, of the elements before `end`. */
static inline int64_t hd_decay_run_to(const struct hd_optim_args *args, int64_t at, int64_t end, double *decay)
{
    int64_t n = hd_decay_run(args, at, decay);
    return n < end - at ? n : end - at;
}

/* Tensors of one shard. */
struct hd_optim_shard {
    size_t struct_size;
    hd_tensor grad, norm2, hyper;
    hd_tensor master;   /* fp32 */
    hd_tensor low;      /* low-precision copy to write as well; 0 if none */
    hd_tensor state[4]; /* n_states of them */
    uint32_t reserved;
    const struct hd_range *decay;
    uint64_t n_decay;
};

struct hd_optimizer_ops {
    size_t struct_size;
    uint64_t caps;
    uint32_t n_states; /* 0 to 4 tensors: fp32 and of the parameters' size, but where the slot `state` says else */
    uint32_t reserved;
    const char *const *state_names; /* "exp_avg", "exp_avg_sq": in names of a checkpoint's files, so each
                                     * once, without '/' and '.', 80 bytes at most */
    /* [control] Weight decay of a parameter of ndim dimensions, counted as in its Hugging Face file (a
     * bias is one-dimensional even where the program splits it into heads). NULL: none. */
    double (*decay)(const void *settings, const char *param, uint32_t ndim);
    /* [control] Fills op and attrs of the one instruction that updates a shard: HD_OP_ADAMW, HD_OP_SGD. NULL slot:
     * HD_OP_OPTIM_STEP with `step`. The core adds operands and the decay ranges. */
    int32_t (*emit)(const void *settings, uint32_t *op, struct hd_attrs *attrs, struct hd_error *err);
    /* [progress] Updates one shard in host memory; needed where emit is NULL. Anything but HD_OK ends the job on this
     * step, with args->err as the cause. */
    int32_t (*step)(const void *settings, const struct hd_optim_args *args);
    /* [control] Number of states that these settings need (SGD without momentum: 0). NULL: n_states. */
    uint32_t (*states)(const void *settings);
    /* [control] Peak learning rate, which the training loop schedules: a number of at least 0. Mandatory. */
    double (*learning_rate)(const void *settings);
    /* [control] The gradient norm above which these settings clip; 0: never. Not called: clipping is the update's
     * own, by attrs.clip of `emit` or in `step`. May be NULL. */
    double (*clip)(const void *settings);
    /* [control] Refuses settings that pass the option table. Called once, when the job is read, before any other
     * slot. A message that begins with the key, "optimizer.betas ...", is printed with that key's place in the job.
     * NULL: all are accepted. */
    int32_t (*check)(const void *settings, struct hd_error *err);
    /* ---- from ABI 1.2: all of what follows may be NULL; param->group is set but for `group`, `first` is not */
    /* [control] The parameter's group, a number below 2^16 that means something to the optimizer alone: it comes back
     * in hd_optim_param.group. Parameters of different groups lie in different flat buffers. HD_OPTIM_CUT says that
     * this one need not be whole. NULL: 0. */
    uint32_t (*group)(const void *settings, const struct hd_optim_param *param);
    /* [control] Number of states of the parameters of a group, at most what `states` or n_states says: the first of
     * them. NULL: as many as that. */
    uint32_t (*group_states)(const void *settings, uint32_t group);
    /* [control] Bytes of scratch memory that `step` needs while it updates this parameter: the call gets the largest
     * of its parameters'. Part of the memory plan. An optimizer with scratch has at most 3 states. NULL: 0. */
    uint64_t (*scratch)(const void *settings, const struct hd_optim_param *param);
    /* [control] FLOPs of the update of this parameter: whole parameters are dealt to ranks by it, and it is counted as
     * the cost of the step. NULL: 0, and dealt by size. */
    double (*flops)(const void *settings, const struct hd_optim_param *param);
    /* [control] What state number `state` of the parameters of a group is. `out` says HD_STATE_ELEMENT in the dtype of
     * precision.optimizer; what differs is written into it. Not beside `emit`. NULL: they are all so. */
    void (*state)(const void *settings, uint32_t group, uint32_t state, struct hd_optim_state *out);
};

#endif
