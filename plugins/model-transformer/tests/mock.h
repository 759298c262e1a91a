/* A builder that records what a model emits, and checks each operation's dims against the words of
 * heddle/ops.h. */
#ifndef HD_MODEL_TRANSFORMER_TESTS_MOCK_H
#define HD_MODEL_TRANSFORMER_TESTS_MOCK_H

#include "heddle/program.h"

enum { MOCK_TENSORS = 4096, MOCK_PARAMS = 1024 };

struct mock_tensor {
    char dims[8];
    char block[16];
    int32_t param; /* -1: none */
    int32_t maker; /* instruction; -1: parameter or input */
    int residual, tokenwise;
    uint32_t users;
};

struct mock_instr {
    uint32_t op, n_in, n_out;
    hd_tensor in[HD_MAX_IN], out[HD_MAX_OUT];
    struct hd_attrs attrs;
    char block[16];
};

struct mock_param {
    char name[128], file[128], dims[8], axes[8], block[16];
    uint32_t init, part, parts, part_axis;
    double std;
    hd_tensor tensor;
};

struct hd_program {
    int64_t extent[128];
    char block[16];
    struct mock_tensor tensors[MOCK_TENSORS]; /* [0] is none */
    struct mock_instr instrs[MOCK_TENSORS];
    struct mock_param params[MOCK_PARAMS];
    uint32_t n_tensors, n_instrs, n_params, n_auxiliary;
    hd_tensor ids, labels, loss, logits;
};

#define MOCK_LOSS_SCALE 0.125

extern const struct hd_builder_api mock_builder;

struct hd_program *mock_new(int64_t batch, int64_t seq);
void mock_free(struct hd_program *p);
int64_t mock_count(const struct hd_program *p, const char *dims); /* product of extents */
int64_t mock_parameters(const struct hd_program *p);
const struct mock_param *mock_param(const struct hd_program *p, const char *name); /* asserts that it exists */
/* "embed rmsnorm einsum ..." of one block */
void mock_ops(const struct hd_program *p, const char *block, char *out, size_t room);

#endif
