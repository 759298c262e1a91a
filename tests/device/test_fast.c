/* Every fast kernel against its reference: fp32 to 1e-5 of the norm, bf16 to 1e-2; odd and even sizes, sums into what
 * is there, shards that start elsewhere, and the same bits for any number of threads. */
#include "conformance/device/harness.h"
#include "tests/suite.h"
#include <check.h>
#include <math.h>
#include <stdlib.h>

static const double inverse_frequencies[] = {1, 0.4, 0.1, 0.03, 0.01};

static const double factors[] = {1, -0.7, 0.63, 2};

#define BLEND(n, parts_)                                \
    {                                                   \
        .table = factors, .n_table = n, .parts = parts_ \
    }
#define NORM        \
    {               \
        .eps = 1e-5 \
    }
#define ROPE(sign_, scale_)                                                        \
    {                                                                              \
        .sign = sign_, .scale = scale_, .table = inverse_frequencies, .n_table = 5 \
    }
#define INTERLEAVED(sign_)                                                                      \
    {                                                                                           \
        .sign = sign_, .table = inverse_frequencies, .n_table = 5, .flags = HD_ATTR_INTERLEAVED \
    }

/* Small and odd; then large enough that each of three threads has work, with tails. */
static const struct h_case cases[] = {
    {"add of two", HD_OP_ADD, "bsh bsh", "bsh", "b=2 s=3 h=7", {0}},
    {"add of two, large", HD_OP_ADD, "bsh bsh", "bsh", "b=2 s=130 h=257", {0}},
    {"add of eight", HD_OP_ADD, "bh bh bh bh bh bh bh bh", "bh", "b=64 h=1030", {0}},
    {"add of one", HD_OP_ADD, "bh", "bh", "b=3 h=5", {0}},
    {"add in two dtypes", HD_OP_ADD, "bh f:bh", "f:bh", "b=3 h=700", {0}},
    {"bias of one dim", HD_OP_BIAS, "bsh h", "bsh", "b=2 s=3 h=7", {0}},
    {"bias of three dims, large", HD_OP_BIAS, "bskgd kgd", "bskgd", "b=2 s=100 k=3 g=2 d=50", {0}},
    {"bias in fp32, wide", HD_OP_BIAS, "bf f:f", "bf", "b=50 f=1200", {0}},
    {"bias_dw", HD_OP_BIAS_DW, "bsh", "h", "b=2 s=3 h=7", {0}},
    {"bias_dw, large", HD_OP_BIAS_DW, "bskd", "f:kd", "b=4 s=101 k=4 d=65", {0}},
    {"bias_dw, wide", HD_OP_BIAS_DW, "bf", "f", "b=90 f=1111", {0}},
    {"rmsnorm", HD_OP_RMSNORM, "bsh h", "bsh", "b=2 s=3 h=7", NORM},
    {"rmsnorm, large", HD_OP_RMSNORM, "bsh h", "bsh", "b=2 s=65 h=513", NORM},
    {"rmsnorm of heads", HD_OP_RMSNORM, "bskgd f:d", "bskgd", "b=2 s=7 k=2 g=2 d=16", NORM},
    {"rmsnorm_dx", HD_OP_RMSNORM_DX, "bsh h bsh", "bsh", "b=2 s=3 h=7", NORM},
    {"rmsnorm_dx, large", HD_OP_RMSNORM_DX, "bsh h bsh", "bsh", "b=2 s=65 h=513", NORM},
    {"rmsnorm_dw", HD_OP_RMSNORM_DW, "bsh bsh", "h", "b=2 s=3 h=7", NORM},
    {"rmsnorm_dw, large", HD_OP_RMSNORM_DW, "bsh bsh", "f:h", "b=3 s=101 h=514", NORM},
    {"layernorm", HD_OP_LAYERNORM, "bsh h h", "bsh", "b=2 s=3 h=6", NORM},
    {"layernorm, large", HD_OP_LAYERNORM, "bsh f:h f:h", "bsh", "b=2 s=65 h=513", NORM},
    {"layernorm_dx", HD_OP_LAYERNORM_DX, "bsh h bsh", "bsh", "b=2 s=3 h=7", NORM},
    {"layernorm_dx, large", HD_OP_LAYERNORM_DX, "bsh h bsh", "bsh", "b=2 s=65 h=1025", NORM},
    {"layernorm_dw", HD_OP_LAYERNORM_DW, "bsh bsh", "h h", "b=2 s=3 h=7", NORM},
    {"layernorm_dw, large", HD_OP_LAYERNORM_DW, "bsh bsh", "f:h f:h", "b=3 s=101 h=514", NORM},
    {"rmsnorm_dx_add", HD_OP_RMSNORM_DX_ADD, "bsh bsh h bsh", "bsh", "b=2 s=3 h=7", NORM},
    {"rmsnorm_dx_add, large", HD_OP_RMSNORM_DX_ADD, "bsh bsh f:h bsh", "bsh", "b=2 s=65 h=513", NORM},
    {"layernorm_dx_add", HD_OP_LAYERNORM_DX_ADD, "bsh bsh h bsh", "bsh", "b=2 s=3 h=7", NORM},
    {"layernorm_dx_add, large", HD_OP_LAYERNORM_DX_ADD, "bsh bsh h bsh", "bsh", "b=2 s=65 h=1025", NORM},
    {"rmsnorm_grad_add", HD_OP_RMSNORM_GRAD_ADD, "bsh bsh h bsh", "bsh h", "b=2 s=3 h=7", NORM},
    {"rmsnorm_grad_add, large", HD_OP_RMSNORM_GRAD_ADD, "bsh bsh f:h bsh", "bsh f:h", "b=3 s=101 h=513", NORM},
    {"layernorm_grad_add", HD_OP_LAYERNORM_GRAD_ADD, "bsh bsh h bsh", "bsh h h", "b=2 s=3 h=7", NORM},
    {"layernorm_grad_add, large", HD_OP_LAYERNORM_GRAD_ADD, "bsh bsh h bsh", "bsh f:h f:h", "b=2 s=65 h=1025", NORM},
    {"rope", HD_OP_ROPE, "bskd", "bskd", "b=2 s=5 k=2 d=10", ROPE(1, 0)},
    {"rope, one head", HD_OP_ROPE, "bsd", "bsd", "b=2 s=5 d=6", ROPE(1, 0)},
    {"rope of a later shard, large", HD_OP_ROPE, "bskgd", "bskgd", "b=2 s=300@300 k=3 g=2 d=10", ROPE(-1, 0.7)},
    {"swiglu", HD_OP_SWIGLU, "bf bf", "bf", "b=3 f=7", {0}},
    {"swiglu, large", HD_OP_SWIGLU, "bf bf", "bf", "b=50 f=1001", {0}},
    {"swiglu_grad", HD_OP_SWIGLU_GRAD, "bf bf bf", "bf bf", "b=3 f=7", {0}},
    {"swiglu_grad, large", HD_OP_SWIGLU_GRAD, "bf bf bf", "bf bf", "b=50 f=1001", {0}},
    {"gelu", HD_OP_GELU, "bf", "bf", "b=3 f=7", {0}},
    {"gelu, large", HD_OP_GELU, "bf", "bf", "b=50 f=1001", {0}},
    {"gelu_grad", HD_OP_GELU_GRAD, "bf bf", "bf", "b=3 f=7", {0}},
    {"gelu_grad, large", HD_OP_GELU_GRAD, "bf bf", "bf", "b=50 f=1001", {0}},
    {"rope_at", HD_OP_ROPE_AT, "btkd i:bt", "btkd", "b=3 t=5 k=2 d=10 p=1000", ROPE(1, 0.7)},
    {"rope, partial", HD_OP_ROPE, "bskd", "bskd", "b=2 s=5 k=2 d=24", ROPE(1, 0.7)},
    {"rope, interleaved", HD_OP_ROPE, "bskd", "bskd", "b=2 s=5 k=2 d=24", INTERLEAVED(1)},
    {"rope, interleaved, large", HD_OP_ROPE, "bskgd", "bskgd", "b=2 s=300@300 k=3 g=2 d=10", INTERLEAVED(-1)},
    {"gelu_erf", HD_OP_GELU_ERF, "bf", "bf", "b=3 f=7", {0}},
    {"gelu_erf, large", HD_OP_GELU_ERF, "bf", "bf", "b=50 f=1001", {0}},
    {"gelu_erf_grad, large", HD_OP_GELU_ERF_GRAD, "bf bf", "bf", "b=50 f=1001", {0}},
    {"relu2, large", HD_OP_RELU2, "bf", "bf", "b=50 f=1001", {0}},
    {"relu2_grad, large", HD_OP_RELU2_GRAD, "bf bf", "bf", "b=50 f=1001", {0}},
    {"softcap, large", HD_OP_SOFTCAP, "bf", "bf", "b=50 f=1001", {.scale = 0.9}},
    {"softcap of small numbers", HD_OP_SOFTCAP, "bf", "bf", "b=50 f=1001", {.scale = 300}},
    {"softcap_grad, large", HD_OP_SOFTCAP_GRAD, "bf bf", "bf", "b=50 f=1001", {.scale = 0.9}},
    {"scale, large", HD_OP_SCALE, "bf", "bf", "b=50 f=1001", {.scale = -1.7}},
    {"embed", HD_OP_EMBED, "i:bs vh", "bsh", "b=2 s=5 v=11 h=7", {0}},
    {"embed of a shard, large", HD_OP_EMBED, "i:bs f:vh", "bsh", "b=2 s=60 v=40@40 h=515", {0}},
    {"embed_dw", HD_OP_EMBED_DW, "i:bs bsh", "vh", "b=2 s=5 v=11 h=7", {0}},
    {"embed_dw of a shard, large", HD_OP_EMBED_DW, "i:bs bsh", "f:vh", "b=2 s=100 v=40@40 h=515", {0}},
    {"position", HD_OP_POSITION, "bsh ph", "bsh", "b=2 s=5 p=9 h=7", {0}},
    {"position of a later shard, large", HD_OP_POSITION, "bsh f:ph", "bsh", "b=2 s=100@7 p=107 h=515", {0}},
    {"position beyond the table", HD_OP_POSITION, "bsh ph", "bsh", "b=2 s=8 p=5@2 h=7", {0}},
    {"position_dw", HD_OP_POSITION_DW, "bsh", "ph", "b=2 s=5 p=9 h=7", {0}},
    {"position_dw of a later shard, large", HD_OP_POSITION_DW, "bsh", "f:ph", "b=3 s=100@7 p=110 h=515", {0}},
    {"xent_local", HD_OP_XENT_LOCAL, "bsv +:bs i:bs", "f:bs f:bs", "b=2 s=5 v=11", {0}},
    {"xent_local of a shard, large", HD_OP_XENT_LOCAL, "bsv +:bs i:bs", "f:bs f:bs", "b=2 s=30 v=1030@1030", {0}},
    {"nll", HD_OP_NLL, "+:bs f:bs f:bs", "f:bs", "b=2 s=5", {0}},
    {"nll, large", HD_OP_NLL, "+:bs f:bs f:bs", "f:bs", "b=50 s=1001", {0}},
    {"nll_grad", HD_OP_NLL_GRAD, "+:bs f:bs", "f:bs f:bs", "b=50 s=1001", {0}},
    {"xent_grad", HD_OP_XENT_GRAD, "bsv +:bs i:bs f:bs f:bs", "bsv", "b=2 s=5 v=11", {0}},
    {"xent_grad of a shard, large", HD_OP_XENT_GRAD, "bsv +:bs i:bs f:bs f:bs", "bsv", "b=2 s=30 v=1030@1030", {0}},
    {"xent_local, padded", HD_OP_XENT_LOCAL, "bsv +:bs i:bs", "f:bs f:bs", "b=2 s=30 v=1030@1030", {.window = 2050}},
    {"xent_grad, padded", HD_OP_XENT_GRAD, "bsv +:bs i:bs f:bs f:bs", "bsv", "b=2 s=30 v=1030@1030", {.window = 2050}},
    {"xent_grad, padded by a chunk",
     HD_OP_XENT_GRAD,
     "bsv +:bs i:bs f:bs f:bs",
     "bsv",
     "b=2 s=5 v=1030",
     {.window = 7}},
    {"xent_head", HD_OP_XENT_HEAD, "bsh vh i:bs", "f:bs bsh f:vh", "b=2 s=5 h=7 v=11", {.scale = 0.3}},
    {"xent_head, large", HD_OP_XENT_HEAD, "bsh vh i:bs", "f:bs bsh vh", "b=2 s=51 h=65 v=1030", {.scale = 0.01}},
    {"total", HD_OP_TOTAL, "bs", "f:", "b=5 s=1001", {.scale = 0.25}},
    {"spread", HD_OP_SPREAD, NULL, "bs", "b=50 s=2001", {.scale = 0.3}},
    {"blend", HD_OP_BLEND, "f:h f:h f:h", "f:h", "h=7", BLEND(3, 0)},
    {"blend, a share of a mean, large", HD_OP_BLEND, "f:h f:h", "f:h", "h=390001", BLEND(2, 3)},
    {"blend into another dtype", HD_OP_BLEND, "f:h f:h f:h f:h", "h", "h=5001", BLEND(4, 2)},
    {"copy, widening", HD_OP_COPY, "bh", "f:bh", "b=50 h=2001", {0}},
    {"copy, rounding", HD_OP_COPY, "f:bh", "bh", "b=50 h=2001", {0}},
    {"copy of equals", HD_OP_COPY, "bh", "bh", "b=150 h=2001", {0}},
};

/* These write what they say, whatever the flags. */
static const struct h_case plain_cases[] = {
    {"rowmax", HD_OP_ROWMAX, "bsv", "f:bs", "b=2 s=5 v=11", {0}},
    {"rowmax, large", HD_OP_ROWMAX, "bsv", "f:bs", "b=2 s=30 v=1030", {0}},
    {"rowmax, padded", HD_OP_ROWMAX, "bsv", "f:bs", "b=2 s=30 v=1030@1030", {.window = 1050}},
    {"add_rmsnorm", HD_OP_ADD_RMSNORM, "bsh bsh h", "bsh bsh", "b=2 s=3 h=7", NORM},
    {"add_rmsnorm, large", HD_OP_ADD_RMSNORM, "bsh bsh f:h", "bsh bsh", "b=2 s=65 h=513", NORM},
    {"add_layernorm", HD_OP_ADD_LAYERNORM, "bsh bsh h h", "bsh bsh", "b=2 s=3 h=6", NORM},
    {"add_layernorm, large", HD_OP_ADD_LAYERNORM, "bsh bsh h h", "bsh bsh", "b=2 s=65 h=1025", NORM},
    {"fill0", HD_OP_FILL0, NULL, "bh", "b=150 h=2001", {0}},
    {"accum", HD_OP_ACCUM, "bh", "bh", "b=50 h=1001", {0}},
    {"accum into fp32", HD_OP_ACCUM, "bh", "f:bh", "b=3 h=5", {0}},
    {"mask, first", HD_OP_MASK, "bh", "bh", "b=150 h=2001", {.index = 0, .parts = 2}},
    {"mask, second", HD_OP_MASK, "bh", "bh", "b=150 h=2001", {.index = 1, .parts = 2}},
};

static const struct {
    uint32_t dtype;
    double tolerance;
} dtypes[] = {{HD_F32, 1e-5}, {HD_BF16, 1e-2}, {HD_F16, 2e-3}};

static const int n_cases = sizeof cases / sizeof cases[0];
static const int n_plain = sizeof plain_cases / sizeof plain_cases[0];

START_TEST(kernel_is_near_its_reference)
{
    for (int d = 0; d < 3; d++)
        h_fast_case(&cases[_i], dtypes[d].dtype, dtypes[d].tolerance, 1);
}
END_TEST

START_TEST(kernel_without_sums_is_near_its_reference)
{
    for (int d = 0; d < 3; d++)
        h_fast_case(&plain_cases[_i], dtypes[d].dtype, dtypes[d].tolerance, 0);
}
END_TEST

/* Labels below 0 do not count: of xent_local the first shard says a loss of 0 (l = 1, c = m), the others nothing. */
START_TEST(labels_below_0_are_ignored)
{
    static const struct h_case of[] = {
        {"xent_local", HD_OP_XENT_LOCAL, "bsv +:bs i:bs", "f:bs f:bs", "b=2 s=9 v=1030", {0}},
        {"xent_local of a shard", HD_OP_XENT_LOCAL, "bsv +:bs i:bs", "f:bs f:bs", "b=2 s=9 v=1030@1030", {0}},
        {"xent_grad", HD_OP_XENT_GRAD, "bsv +:bs i:bs f:bs f:bs", "bsv", "b=2 s=9 v=1030", {0}},
        {"xent_head", HD_OP_XENT_HEAD, "bsh vh i:bs", "f:bs bsh vh", "b=2 s=9 h=16 v=1032", {.scale = 0.3}}};
    for (size_t c = 0; c < sizeof of / sizeof of[0]; c++)
        for (int d = 0; d < 3; d++) {
            struct h_device *fast = h_open(3, H_FAST), *plain = h_open(1, H_REFERENCE);
            struct h_instr *i = h_make(&of[c], dtypes[d].dtype, 3), *want;
            for (int64_t row = 0; row < 18; row += 3)
                h_set(&i->in[2], row, row ? -100 : -1);
            want = h_as(i, HD_F64);
            h_run(fast, i);
            h_run(plain, want);
            h_near(of[c].name, i, want, dtypes[d].tolerance);
            for (int64_t row = 0; row < 18; row += 3)
                if (of[c].op == HD_OP_XENT_LOCAL) {
                    int first = i->in[0].start[2] == 0;
                    ck_assert_double_eq(h_get(&i->out[0], row), first);
                    ck_assert_double_eq(h_get(&i->out[1], row), first ? h_get(&i->in[1], row) : 0);
                } else if (of[c].op == HD_OP_XENT_HEAD) {
                    ck_assert_double_eq(h_get(&i->out[0], row), 0);
                    ck_assert_double_eq(h_get(&i->out[1], row * 16), 0);
                } else {
                    ck_assert_double_eq(h_get(&i->out[0], row * 1030 + 7), 0);
                }
            h_free(i);
            h_free(want);
            h_close(fast);
            h_close(plain);
        }
}
END_TEST

/* The extent of a part's dim differs between the operands, which h_make cannot say: they are made apart. */
static void part_case(uint32_t op, uint32_t index, uint32_t dtype)
{
    static const char *const shapes[][2] = {{"b=2 s=12 h=5", "b=2 s=4 h=5"}, {"b=40 s=90 h=33", "b=40 s=30 h=33"}};
    for (int i = 0; i < 2; i++) {
        struct h_case a = {"part", HD_OP_COPY, "bsh", "bsh", shapes[i][0], {0}};
        struct h_case b = {"part", HD_OP_COPY, "bsh", "bsh", shapes[i][1], {0}};
        struct h_instr *large = h_make(&a, dtype, 1), *small = h_make(&b, dtype, 2);
        struct h_instr *kernels[2];
        for (int j = 0; j < 2; j++) { /* operands of one instruction, borrowed from two */
            struct h_instr *k = calloc(1, sizeof *k);
            *k = *(op == HD_OP_SLICE ? large : small);
            memset(k->memory, 0, sizeof k->memory);
            k->d.op = op;
            k->d.attrs = (struct hd_attrs){.from = 's', .to = 's', .index = index, .parts = 3};
            k->out[0] = op == HD_OP_SLICE ? small->out[0] : large->out[0];
            k->d.in = k->in;
            k->d.out = k->out;
            kernels[j] = h_as(k, dtype);
            free(k);
        }
        struct h_device *fast = h_open(3, H_FAST), *plain = h_open(1, H_REFERENCE);
        h_run(fast, kernels[0]);
        h_run(plain, kernels[1]);
        h_equal(op == HD_OP_SLICE ? "slice" : "pad", kernels[0], kernels[1]);
        /* The definition, said once more: element (b, s, h) of the part is (b, index * extent + s, h) of the whole. */
        const struct hd_operand *p = op == HD_OP_SLICE ? &kernels[0]->out[0] : &kernels[0]->in[0];
        const struct hd_operand *w = op == HD_OP_SLICE ? &kernels[0]->in[0] : &kernels[0]->out[0];
        int64_t inner = p->extent[1] * p->extent[2];
        for (int64_t e = 0; e < hd_operand_count(p); e++)
            ck_assert_double_eq(h_get(p, e), h_get(w, (e / inner * 3 + index) * inner + e % inner));
        h_close(fast);
        h_close(plain);
        h_free(kernels[0]);
        h_free(kernels[1]);
        h_free(large);
        h_free(small);
    }
}

START_TEST(parts_are_cut_and_padded)
{
    for (uint32_t index = 0; index < 3; index++)
        for (int d = 0; d < 3; d++) {
            part_case(HD_OP_SLICE, index, dtypes[d].dtype);
            part_case(HD_OP_PAD, index, dtypes[d].dtype);
        }
}
END_TEST

/* ---- updates */

static const struct hd_range ranges[] = {{0, 100, 0.1}, {100, 613, 0}, {900, 50000, 0.3}, {60000, 1000, 1}};

static const struct h_case updates[] = {
    {"sumsq", HD_OP_SUMSQ, "n", "d:", "n=40001", {.ranges = ranges, .n_ranges = 4}},
    {"sumsq of a later shard", HD_OP_SUMSQ, "n", "d:", "n=1777@50", {.ranges = ranges, .n_ranges = 4}},
    {"sumsq in digits", HD_OP_SUMSQ, "n", "d:y", "n=40001 y=24", {.ranges = ranges, .n_ranges = 4}},
    {"sumsq in digits, later shard", HD_OP_SUMSQ, "n", "d:y", "n=1777@50 y=24", {.ranges = ranges, .n_ranges = 4}},
    {"adamw",
     HD_OP_ADAMW,
     "f:n d: d:y",
     "f:n +:n +:n",
     "n=61001 y=8",
     {.ranges = ranges, .n_ranges = 4, .eps = 1e-8, .beta1 = 0.9, .beta2 = 0.95, .clip = 1}},
    {"adamw with a copy, later shard",
     HD_OP_ADAMW,
     "n d: d:y",
     "f:n +:n +:n n",
     "n=1777@50 y=8",
     {.ranges = ranges, .n_ranges = 4, .eps = 1e-8, .beta1 = 0.9, .beta2 = 0.999}},
    {"sgd with momentum and a copy",
     HD_OP_SGD,
     "n d: d:y",
     "f:n f:n n",
     "n=61001 y=8",
     {.ranges = ranges, .n_ranges = 4, .beta1 = 0.9, .clip = 2}},
    {"sgd", HD_OP_SGD, "f:n d: d:y", "f:n", "n=1777@50 y=8", {.ranges = ranges, .n_ranges = 4}},
};

static const double plausible_hyper[HD_HYPER_COUNT] = {0.01, 3, 0.5};

static void set_hyper(struct h_instr *i, double skip)
{
    if (i->d.n_in < 3)
        return;
    h_set(&i->in[1], 0, 40);
    for (int j = 0; j < HD_HYPER_COUNT; j++)
        h_set(&i->in[2], j, plausible_hyper[j]);
    h_set(&i->in[2], HD_HYPER_SKIP, skip);
}

START_TEST(update_is_near_its_reference)
{
    const struct h_case *c = &updates[_i];
    for (int d = 0; d < 3; d++) {
        struct h_device *one = h_open(1, H_FAST), *three = h_open(3, H_FAST), *plain = h_open(1, H_REFERENCE);
        struct h_instr *a = h_make(c, dtypes[d].dtype, 5);
        set_hyper(a, 0);
        /* norm2 and hyper stay fp64 in every variant */
        struct h_instr *b = h_make(c, dtypes[d].dtype, 5), *want = h_as(a, HD_F64), *before = h_as(a, HD_F64);
        set_hyper(b, 0);
        h_warnings = 0;
        h_run(one, a);
        h_run(three, b);
        h_run(plain, want);
        ck_assert_msg(h_warnings == 0, "%s: %s", c->name, h_last_log);
        h_near(c->name, a, want, dtypes[d].tolerance);
        h_equal(c->name, a, b);
        ck_assert_double_gt(h_distance(&before->out[0], &want->out[0]), 1e-4);
        h_free(a);
        h_free(b);
        h_free(want);
        h_free(before);
        h_close(one);
        h_close(three);
        h_close(plain);
    }
}
END_TEST

START_TEST(skipped_update_changes_nothing)
{
    for (int kernels = H_FAST; kernels <= H_REFERENCE; kernels++) {
        struct h_device *d = h_open(1, kernels);
        struct h_instr *a = h_make(&updates[_i], HD_BF16, 5), *b = h_make(&updates[_i], HD_BF16, 5);
        set_hyper(a, 1);
        h_run(d, a);
        h_equal(updates[_i].name, a, b);
        h_free(a);
        h_free(b);
        h_close(d);
    }
}
END_TEST

/* ---- what goes wrong in a training run must show */

START_TEST(not_a_number_is_kept)
{
    static const struct h_case seen[] = {
        {"gelu", HD_OP_GELU, "bf", "bf", "b=2 f=33", {0}},
        {"swiglu", HD_OP_SWIGLU, "bf bf", "bf", "b=2 f=33", {0}},
        {"rowmax", HD_OP_ROWMAX, "bsv", "f:bs", "b=1 s=1 v=66", {0}},
        {"xent_local", HD_OP_XENT_LOCAL, "bsv f:bs i:bs", "f:bs f:bs", "b=1 s=1 v=66", {0}},
        {"copy", HD_OP_COPY, "f:bf", "bf", "b=2 f=33", {0}},
        {"rmsnorm", HD_OP_RMSNORM, "bh h", "bh", "b=1 h=66", NORM},
    };
    for (size_t c = 0; c < sizeof seen / sizeof seen[0]; c++)
        for (int at = 0; at < 66; at += 13) {
            struct h_device *d = h_open(1, H_FAST);
            struct h_instr *i = h_make(&seen[c], HD_BF16, 3);
            int64_t out = hd_operand_count(&i->out[0]) > 1 ? at : 0;
            if (i->in[0].dtype == HD_BF16)
                ((uint16_t *)i->in[0].data)[at] = 0x7fff; /* a NaN whose rounding would overflow */
            else
                h_set(&i->in[0], at, NAN);
            h_run(d, i);
            ck_assert_msg(isnan(h_get(&i->out[0], out)), "%s hides a NaN at %d", seen[c].name, at);
            h_free(i);
            h_close(d);
        }
}
END_TEST

/* Every upper half with lower halves around the tie: to the nearest, ties to even. */
START_TEST(bf16_is_rounded_to_nearest_even)
{
    static const uint32_t low[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff};
    static const struct h_case c = {"round", HD_OP_COPY, "f:n", "n", "n=390000", {0}};
    struct h_instr *i = h_make(&c, HD_BF16, 1), *same = h_make(&c, HD_BF16, 1);
    struct h_device *fast = h_open(1, H_FAST), *plain = h_open(1, H_REFERENCE);
    for (uint32_t j = 0; j < 390000; j++) {
        uint32_t bits = j / 6 << 16 | low[j % 6];
        memcpy((uint32_t *)i->in[0].data + j, &bits, sizeof bits);
        memcpy((uint32_t *)same->in[0].data + j, &bits, sizeof bits);
    }
    h_run(fast, i);
    h_run(plain, same);
    for (int64_t j = 0; j < 390000; j++) { /* which NaN is a machine's own */
        uint16_t a = ((const uint16_t *)i->out[0].data)[j], b = ((const uint16_t *)same->out[0].data)[j];
        ck_assert_msg(a == b || (isnan(h_get(&i->out[0], j)) && isnan(h_get(&same->out[0], j))),
                      "%#x becomes %#x, not %#x", ((const uint32_t *)i->in[0].data)[j], a, b);
    }
    uint32_t right = 0, finite = 0x7f80 * 6; /* and positive */
    for (uint32_t j = 0; j < finite; j++) {
        uint32_t up = low[j % 6] > 0x8000 || (low[j % 6] == 0x8000 && (j / 6 & 1));
        right += ((uint16_t *)i->out[0].data)[j] == j / 6 + up;
    }
    ck_assert_uint_eq(right, finite);
    h_free(i);
    h_free(same);
    h_close(fast);
    h_close(plain);
}
END_TEST

START_TEST(gates_are_right_far_from_zero)
{
    static const struct h_case gates[] = {
        {"gelu", HD_OP_GELU, "f", "f", "f=4001", {0}},
        {"gelu_grad", HD_OP_GELU_GRAD, "f f", "f", "f=4001", {0}},
        {"swiglu", HD_OP_SWIGLU, "f f", "f", "f=4001", {0}},
        {"swiglu_grad", HD_OP_SWIGLU_GRAD, "f f f", "f f", "f=4001", {0}},
    };
    struct h_device *fast = h_open(1, H_FAST), *plain = h_open(1, H_REFERENCE);
    struct h_instr *i = h_make(&gates[_i], HD_F32, 3);
    for (int64_t j = 0; j < 4001; j++)
        h_set(&i->in[0], j, (double)(j - 2000) * 0.1);
    struct h_instr *want = h_as(i, HD_F64);
    h_run(fast, i);
    h_run(plain, want);
    for (uint32_t o = 0; o < i->d.n_out; o++)
        for (int64_t j = 0; j < 4001; j++) {
            double a = h_get(&i->out[o], j), b = h_get(&want->out[o], j);
            ck_assert_msg(fabs(a - b) <= 2e-6 * fabs(b) + 1e-6, "%s at %g: %g, not %g", gates[_i].name,
                          h_get(&i->in[0], j), a, b);
        }
    h_free(i);
    h_free(want);
    h_close(fast);
    h_close(plain);
}
END_TEST

/* The core lets a first output take the memory of a first input that dies, for these ops. */
START_TEST(first_output_may_be_the_first_input)
{
    static const struct h_case in_place[] = {
        {"add", HD_OP_ADD, "bsf bsf", "bsf", "b=2 s=40 f=1001", {0}},
        {"add of three", HD_OP_ADD, "bsf bsf bsf", "bsf", "b=2 s=40 f=1001", {0}},
        {"bias", HD_OP_BIAS, "bsf f", "bsf", "b=2 s=40 f=1001", {0}},
        {"rope", HD_OP_ROPE, "bskd", "bskd", "b=2 s=300 k=20 d=10", ROPE(1, 0)},
        {"swiglu", HD_OP_SWIGLU, "bsf bsf", "bsf", "b=2 s=40 f=1001", {0}},
        {"swiglu_grad", HD_OP_SWIGLU_GRAD, "bsf bsf bsf", "bsf bsf", "b=2 s=40 f=1001", {0}},
        {"gelu", HD_OP_GELU, "bsf", "bsf", "b=2 s=40 f=1001", {0}},
        {"gelu_grad", HD_OP_GELU_GRAD, "bsf bsf", "bsf", "b=2 s=40 f=1001", {0}},
        {"position", HD_OP_POSITION, "bsf pf", "bsf", "b=2 s=40 p=30 f=1001", {0}},
        {"add_rmsnorm", HD_OP_ADD_RMSNORM, "bsf bsf f", "bsf bsf", "b=2 s=40 f=1001", NORM},
        {"add_layernorm", HD_OP_ADD_LAYERNORM, "bsf bsf f f", "bsf bsf", "b=2 s=40 f=1001", NORM},
        {"rmsnorm_dx_add", HD_OP_RMSNORM_DX_ADD, "bsf bsf f bsf", "bsf", "b=2 s=40 f=1001", NORM},
        {"layernorm_dx_add", HD_OP_LAYERNORM_DX_ADD, "bsf bsf f bsf", "bsf", "b=2 s=40 f=1001", NORM},
        {"rmsnorm_grad_add", HD_OP_RMSNORM_GRAD_ADD, "bsf bsf f bsf", "bsf f", "b=2 s=40 f=1001", NORM},
        {"layernorm_grad_add", HD_OP_LAYERNORM_GRAD_ADD, "bsf bsf f bsf", "bsf f f", "b=2 s=40 f=1001", NORM},
        {"nll", HD_OP_NLL, "+:bs f:bs f:bs", "f:bs", "b=2 s=1000", {0}},
        {"nll_grad", HD_OP_NLL_GRAD, "+:bs f:bs", "f:bs f:bs", "b=2 s=1000", {0}},
        {"xent_grad", HD_OP_XENT_GRAD, "bsv +:bs i:bs f:bs f:bs", "bsv", "b=2 s=30 v=1030", {0}},
        {"mask", HD_OP_MASK, "bsf", "bsf", "b=2 s=40 f=1001", {.index = 0, .parts = 2}},
        {"mask, second", HD_OP_MASK, "bsf", "bsf", "b=2 s=40 f=1001", {.index = 1, .parts = 2}},
    };
    for (size_t c = 0; c < sizeof in_place / sizeof in_place[0]; c++)
        for (int kernels = H_FAST; kernels <= H_REFERENCE; kernels++)
            for (int d = 0; d < 3; d++) {
                struct h_device *device = h_open(2, kernels);
                struct h_instr *apart = h_make(&in_place[c], dtypes[d].dtype, 9);
                struct h_instr *same = h_make(&in_place[c], dtypes[d].dtype, 9);
                void *own = same->out[0].data;
                same->out[0].data = same->in[0].data;
                h_run(device, apart);
                h_run(device, same);
                h_equal(in_place[c].name, apart, same);
                same->out[0].data = own;
                h_free(apart);
                h_free(same);
                h_close(device);
            }
}
END_TEST

int main(void)
{
    TCase *t = tcase_create("fast");
    tcase_set_timeout(t, 30);
    tcase_add_loop_test(t, kernel_is_near_its_reference, 0, n_cases);
    tcase_add_loop_test(t, kernel_without_sums_is_near_its_reference, 0, n_plain);
    tcase_add_test(t, labels_below_0_are_ignored);
    tcase_add_test(t, parts_are_cut_and_padded);
    tcase_add_loop_test(t, update_is_near_its_reference, 0, (int)(sizeof updates / sizeof updates[0]));
    tcase_add_loop_test(t, skipped_update_changes_nothing, 4, (int)(sizeof updates / sizeof updates[0]));
    tcase_add_test(t, not_a_number_is_kept);
    tcase_add_test(t, bf16_is_rounded_to_nearest_even);
    tcase_add_loop_test(t, gates_are_right_far_from_zero, 0, 4);
    tcase_add_test(t, first_output_may_be_the_first_input);
    return suite_run_case("fast", t);
}
