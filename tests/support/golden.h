/* The golden numbers of tests/golden/transformer.py: a tiny model, its batches, and what torch made of it. */
#ifndef HD_TESTS_SUPPORT_GOLDEN_H
#define HD_TESTS_SUPPORT_GOLDEN_H

#include "service/checkpoint/safetensors.h"

enum { GOLDEN_STEPS = 64 };

/* "wte.weight" in a file may be several parameters of heddle: see golden_part. */
struct golden {
    char folder[512];             /* for model.from */
    struct hd__ckpt_st *weights;  /* model.safetensors */
    struct hd__ckpt_st *expected; /* expected.safetensors: ids, labels, logits, grad.TENSOR */
    int64_t steps, batch, seq;    /* of ids and labels */
    int64_t parameters;
    double lr, beta1, beta2, eps, weight_decay, clip; /* of the AdamW run */
    double losses[GOLDEN_STEPS], grad_norms[GOLDEN_STEPS];
};

extern const char *const golden_names[];
enum { GOLDEN_NAMES = 8 };

void golden_open(struct golden *g, const char *name); /* asserts */
void golden_close(struct golden *g);

/* Tokens of one step, [batch, seq]; the caller frees. which: "ids" or "labels". */
int32_t *golden_tokens(const struct golden *g, const char *which, int64_t step);
/* A whole tensor as fp32; the caller frees. *count may be NULL. */
float *golden_floats(const struct hd__ckpt_st *file, const char *name, int64_t *count);
/* What belongs to a parameter of `param`'s mapping out of tensor PREFIXfile_name, in the parameter's own
 * order. `extents` are those of its dims. The caller frees. prefix: "" for weights, "grad." for expected
 * gradients. */
float *golden_part(const struct hd__ckpt_st *file, const char *prefix, const struct hd_param_desc *param,
                   const int64_t *extents, int64_t *count);

#endif
