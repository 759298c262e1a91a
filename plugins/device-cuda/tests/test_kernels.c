/* What the suites of tests/device do not ask of kernels that read eight elements at a time and sum in parts: fp64, rows
 * longer than what is kept in registers, biases of inner dims, zig-zag order, ids that fill many chunks, operands that
 * lie anywhere. */
#include "conformance/device/harness.h"
#include "tests/suite.h"
#include <check.h>
#include <stdlib.h>
#include <string.h>

static const double inverse_frequencies[] = {1, 0.4, 0.1, 0.03, 0.01, 0.004, 0.001, 0.0003};
static const double factors[] = {1, -0.7, 0.63, 2};

#define NORM        \
    {               \
        .eps = 1e-5 \
    }
#define ZIGZAG .zigzag_parts = 2, .zigzag_length = 16

static const struct h_case cases[] = {
    {"bias of a middle dim", HD_OP_BIAS, "bsh s", "bsh", "b=2 s=5 h=9", {0}},
    {"bias of two dims apart", HD_OP_BIAS, "bskd bk", "bskd", "b=2 s=5 k=3 d=8", {0}},
    {"bias_dw of a middle dim", HD_OP_BIAS_DW, "bsh", "s", "b=3 s=5 h=33", {0}},
    {"bias_dw of two dims apart", HD_OP_BIAS_DW, "bskd", "bk", "b=2 s=50 k=3 d=8", {0}},
    {"bias_dw of many rows", HD_OP_BIAS_DW, "bsh", "f:h", "b=9 s=100 h=24", {0}},
    {"rmsnorm of a long row", HD_OP_RMSNORM, "bsh h", "bsh", "b=1 s=3 h=4504", NORM},
    {"rmsnorm of a long odd row", HD_OP_RMSNORM, "bsh h", "bsh", "b=1 s=3 h=1033", NORM},
    {"layernorm of short rows", HD_OP_LAYERNORM, "bsh h h", "bsh", "b=5 s=13 h=16", NORM},
    {"layernorm_dx of a long row", HD_OP_LAYERNORM_DX, "bsh h bsh", "bsh", "b=1 s=3 h=2504", NORM},
    {"rmsnorm_dx of heads", HD_OP_RMSNORM_DX, "bskd d bskd", "bskd", "b=2 s=7 k=3 d=64", NORM},
    {"layernorm_dw in tiles", HD_OP_LAYERNORM_DW, "bsh bsh", "f:h f:h", "b=1 s=5 h=8200", NORM},
    {"rmsnorm_dw in odd tiles", HD_OP_RMSNORM_DW, "bsh bsh", "f:h", "b=1 s=7 h=1031", NORM},
    {"layernorm_grad_add in tiles", HD_OP_LAYERNORM_GRAD_ADD, "bsh bsh h bsh", "bsh f:h f:h", "b=1 s=5 h=8200", NORM},
    {"rmsnorm_grad_add in odd tiles", HD_OP_RMSNORM_GRAD_ADD, "bsh bsh h bsh", "bsh f:h", "b=1 s=7 h=1031", NORM},
    {"layernorm_grad_add of many rows", HD_OP_LAYERNORM_GRAD_ADD, "bsh bsh h bsh", "bsh h f:h", "b=7 s=300 h=64", NORM},
    {"add_layernorm, a warp a row", HD_OP_ADD_LAYERNORM, "bsh bsh h h", "bsh bsh", "b=2 s=33 h=768", NORM},
    {"add_rmsnorm, two warps a row", HD_OP_ADD_RMSNORM, "bsh bsh h", "bsh bsh", "b=1 s=5 h=2048", NORM},
    {"layernorm_dx_add, a warp a row", HD_OP_LAYERNORM_DX_ADD, "bsh bsh h bsh", "bsh", "b=2 s=33 h=768", NORM},
    {"layernorm_grad_add, a warp a row", HD_OP_LAYERNORM_GRAD_ADD, "bsh bsh h bsh", "bsh f:h f:h", "b=3 s=101 h=768",
     NORM},
    {"layernorm_grad_add, two warps a row", HD_OP_LAYERNORM_GRAD_ADD, "bsh bsh h bsh", "bsh f:h f:h", "b=1 s=70 h=1600",
     NORM},
    {"rmsnorm_grad_add, four warps a row", HD_OP_RMSNORM_GRAD_ADD, "bsh bsh h bsh", "bsh f:h", "b=1 s=70 h=4096", NORM},
    {"rmsnorm_grad_add of heads", HD_OP_RMSNORM_GRAD_ADD, "bskd bskd d bskd", "bskd f:d", "b=2 s=33 k=3 d=64", NORM},
    {"layernorm_dw of many rows", HD_OP_LAYERNORM_DW, "bsh bsh", "h f:h", "b=7 s=300 h=64", NORM},
    {"rmsnorm_dx_add of heads", HD_OP_RMSNORM_DX_ADD, "bskd bskd d bskd", "bskd", "b=2 s=7 k=3 d=64", NORM},
    {"layernorm_dx_add of a long row", HD_OP_LAYERNORM_DX_ADD, "bsh bsh h bsh", "bsh", "b=1 s=3 h=2504", NORM},
    {"rmsnorm_dx_add of a long odd row", HD_OP_RMSNORM_DX_ADD, "bsh bsh h bsh", "bsh", "b=1 s=3 h=1033", NORM},
    {"rope, zig-zag",
     HD_OP_ROPE,
     "bskd",
     "bskd",
     "b=2 s=8@8 k=3 d=16",
     {.sign = 1, .table = inverse_frequencies, .n_table = 8, ZIGZAG}},
    {"rope, far away",
     HD_OP_ROPE,
     "bsd",
     "bsd",
     "b=1 s=5@10000 d=16",
     {.sign = -1, .table = inverse_frequencies, .n_table = 8}},
    {"rope, partial",
     HD_OP_ROPE,
     "bskd",
     "bskd",
     "b=2 s=5 k=3 d=24",
     {.sign = 1, .scale = 0.7, .table = inverse_frequencies, .n_table = 8}},
    {"rope, interleaved",
     HD_OP_ROPE,
     "bskd",
     "bskd",
     "b=2 s=5 k=3 d=18",
     {.sign = -1, .table = inverse_frequencies, .n_table = 8, .flags = HD_ATTR_INTERLEAVED}},
    {"gelu_erf", HD_OP_GELU_ERF, "bf", "bf", "b=3 f=101", {0}},
    {"gelu_erf_grad", HD_OP_GELU_ERF_GRAD, "bf bf", "bf", "b=3 f=101", {0}},
    {"relu2", HD_OP_RELU2, "bf", "bf", "b=3 f=101", {0}},
    {"relu2_grad", HD_OP_RELU2_GRAD, "bf bf", "bf", "b=3 f=101", {0}},
    {"softcap", HD_OP_SOFTCAP, "bf", "bf", "b=3 f=101", {.scale = 0.9}},
    {"softcap_grad", HD_OP_SOFTCAP_GRAD, "bf bf", "bf", "b=3 f=101", {.scale = 0.9}},
    {"scale", HD_OP_SCALE, "bf", "bf", "b=3 f=101", {.scale = -1.7}},
    {"position, zig-zag", HD_OP_POSITION, "bsh ph", "bsh", "b=2 s=16 p=16 h=24", {ZIGZAG}},
    {"position_dw, zig-zag", HD_OP_POSITION_DW, "bsh", "f:ph", "b=7 s=8@8 p=16 h=24", {ZIGZAG}},
    {"embed of eights", HD_OP_EMBED, "i:bs vh", "bsh", "b=2 s=9 v=40@40 h=24", {0}},
    {"embed_dw of a few ids", HD_OP_EMBED_DW, "i:bs bsh", "f:vh", "b=2 s=210 v=3 h=24", {0}},
    {"embed_dw of many ids", HD_OP_EMBED_DW, "i:bs bsh", "vh", "b=3 s=200 v=1500 h=8", {0}},
    {"xent_local of odd rows", HD_OP_XENT_LOCAL, "bsv +:bs i:bs", "f:bs f:bs", "b=2 s=9 v=1031", {0}},
    {"xent_grad of odd rows", HD_OP_XENT_GRAD, "bsv +:bs i:bs f:bs f:bs", "bsv", "b=2 s=9 v=1031@1031", {0}},
    {"xent_local, padded", HD_OP_XENT_LOCAL, "bsv +:bs i:bs", "f:bs f:bs", "b=2 s=9 v=1031@1031", {.window = 2051}},
    {"xent_grad, padded", HD_OP_XENT_GRAD, "bsv +:bs i:bs f:bs f:bs", "bsv", "b=2 s=9 v=1031@1031", {.window = 2051}},
    {"total of many", HD_OP_TOTAL, "bs", "f:", "b=9 s=9001", {.scale = 0.25}},
    {"gate of many experts", HD_OP_GATE, "bse", "f:bse", "b=1 s=9 e=70", {.top_k = 7}},
    {"swiglu", HD_OP_SWIGLU, "bf bf", "bf", "b=3 f=101", {0}},
    {"gelu_grad", HD_OP_GELU_GRAD, "bf bf", "bf", "b=3 f=101", {0}},
    {"add of four", HD_OP_ADD, "bh bh bh bh", "bh", "b=3 h=101", {0}},
    {"nll", HD_OP_NLL, "+:bs f:bs f:bs", "f:bs", "b=5 s=101", {0}},
};
enum { CASES = sizeof cases / sizeof cases[0] };

START_TEST(kernel_is_near_its_reference)
{
    static const struct {
        uint32_t dtype;
        double tolerance;
    } dtypes[] = {{HD_F64, 1e-12}, {HD_F32, 1e-5}, {HD_BF16, 1e-2}};
    for (int d = 0; d < 3; d++)
        h_fast_case(&cases[_i], dtypes[d].dtype, dtypes[d].tolerance, 1);
}
END_TEST

/* ---- flat operands that begin one element later than memory does */

static const struct hd_range ranges[] = {{0, 100, 0.1}, {100, 613, 0}, {900, 50000, 0.3}};

static const struct h_case flat[] = {
    {"add", HD_OP_ADD, "n n", "n", "n=5003", {0}},
    {"blend", HD_OP_BLEND, "n n n", "n", "n=5003", {.table = factors, .n_table = 3, .parts = 2}},
    {"copy", HD_OP_COPY, "n", "n", "n=5003", {0}},
    {"copy, rounding", HD_OP_COPY, "f:n", "n", "n=5003", {0}},
    {"swiglu_grad", HD_OP_SWIGLU_GRAD, "n n n", "n n", "n=5003", {0}},
    {"sumsq", HD_OP_SUMSQ, "n", "d:", "n=5003@50", {.ranges = ranges, .n_ranges = 3}},
    {"sumsq in digits", HD_OP_SUMSQ, "n", "d:y", "n=5003@50 y=24", {.ranges = ranges, .n_ranges = 3}},
    {"adamw",
     HD_OP_ADAMW,
     "n d: d:y",
     "f:n +:n +:n n",
     "n=5003@50 y=8",
     {.ranges = ranges, .n_ranges = 3, .eps = 1e-8, .beta1 = 0.9, .beta2 = 0.95, .clip = 1}},
};

/* By 1, or back by -1. */
static void begin_later(struct h_instr *i, int by)
{
    for (uint32_t n = 0; n < i->d.n_in + i->d.n_out; n++) {
        struct hd_operand *o = n < i->d.n_in ? &i->in[n] : &i->out[n - i->d.n_in];
        if (o->ndim == 1 && o->dim[0] == 'n') {
            o->data = (char *)o->data + by * (int)hd_dtype_size(o->dtype);
            o->extent[0] -= by;
        }
    }
}

static struct h_instr *make(const struct h_case *c, uint32_t dtype)
{
    static const double hyper[HD_HYPER_COUNT] = {0.01, 3, 0.5};
    struct h_instr *i = h_make(c, dtype, 11);
    for (int j = 0; i->d.n_in > 2 && i->in[2].dim[0] == 'y' && j < HD_HYPER_COUNT; j++)
        h_set(&i->in[2], j, hyper[j]);
    if (i->d.n_in > 2 && i->in[2].dim[0] == 'y')
        h_set(&i->in[1], 0, 40);
    begin_later(i, 1);
    return i;
}

START_TEST(operands_lie_anywhere)
{
    static const uint32_t dtypes[] = {HD_F32, HD_BF16, HD_F16};
    static const double tolerances[] = {1e-5, 1e-2, 2e-3};
    for (int d = 0; d < 3; d++) {
        struct h_device *fast = h_open(1, H_FAST), *plain = h_open(1, H_REFERENCE);
        struct h_instr *got = make(&flat[_i], dtypes[d]), *again = make(&flat[_i], dtypes[d]),
                       *want = h_as(got, HD_F64);
        h_run(fast, got);
        h_run(fast, again);
        h_run(plain, want);
        h_near(flat[_i].name, got, want, tolerances[d]);
        h_equal(flat[_i].name, got, again);
        begin_later(again, -1);
        begin_later(got, -1);
        h_free(again);
        h_free(got);
        h_free(want);
        h_close(fast);
        h_close(plain);
    }
}
END_TEST

/* ---- capacity: slots in the order of positions, where the sequence is stored in zig-zag order */

START_TEST(slots_follow_positions)
{
    static const struct h_case c = {"route", HD_OP_ROUTE, "f:bse", "i:bec", "b=2 s=16 e=3 c=4", {ZIGZAG}};
    struct h_device *fast = h_open(1, H_FAST), *plain = h_open(1, H_REFERENCE);
    struct hd_attrs attrs = c.attrs;
    struct h_instr *got = NULL, *want = NULL;
    attrs.struct_size = sizeof attrs;
    for (int side = 0; side < 2; side++) {
        struct h_case made = {c.name, HD_OP_COPY, "f:bse", "f:bec", c.dims, c.attrs};
        struct h_instr *i = h_make(&made, HD_F32, 3);
        i->d.op = HD_OP_ROUTE;
        i->out[0].dtype = HD_I32;
        h_run(side ? plain : fast, i);
        *(side ? &want : &got) = i;
    }
    ck_assert_int_eq(hd_position(&attrs, 4), 12);
    h_equal(c.name, got, want);
    h_free(got);
    h_free(want);
    h_close(fast);
    h_close(plain);
}
END_TEST

/* ---- dims in another order: what an all_to_all packs; device cpu's einsum with a factor of 1 says where elements
 * belong */

START_TEST(copies_permute)
{
    static const struct {
        const char *in, *out, *dims;
    } all[] = {
        {"abc", "bac", "a=3 b=4 c=16"},
        {"abc", "bac", "a=5 b=2 c=7"},
        {"ab", "ba", "a=33 b=9"},
        {"abcd", "cbad", "a=3 b=2 c=5 d=8"},
        {"abcd", "badc", "a=3 b=2 c=5 d=3"},
        {"abcde", "ecadb", "a=2 b=3 c=4 d=2 e=5"},
    };
    static const uint32_t dtypes[] = {HD_F32, HD_BF16, HD_F64};
    for (size_t n = 0; n < sizeof all / sizeof all[0]; n++)
        for (size_t d = 0; d < sizeof dtypes / sizeof dtypes[0]; d++) {
            struct h_device *fast = h_open(1, H_FAST);
            char ins[32];
            snprintf(ins, sizeof ins, "%s u", all[n].in);
            char dims[64];
            snprintf(dims, sizeof dims, "%s u=1", all[n].dims);
            struct h_case product = {all[n].out, HD_OP_EINSUM, ins, all[n].out, dims, {0}};
            struct h_instr *got = h_make(&product, dtypes[d], 3), *want = h_as(got, HD_F64);
            h_set(&want->in[1], 0, 1);
            got->d.op = HD_OP_COPY;
            got->d.n_in = 1;
            h_check(fast, got, want, 0);
            h_close(fast);
        }
}
END_TEST

START_TEST(a_permuted_copy_may_round_and_add)
{
    static const struct h_case c = {"permuted", HD_OP_EINSUM, "f:abc u", "bac", "a=3 b=4 c=5 u=1", {0}};
    for (uint32_t adds = 0; adds < 2; adds++) {
        struct h_device *fast = h_open(1, H_FAST);
        struct h_instr *got = h_make(&c, HD_BF16, 3), *want = h_as(got, HD_F64);
        got->d.attrs.flags = want->d.attrs.flags = adds ? HD_ATTR_ACCUMULATE : 0;
        h_set(&want->in[1], 0, 1);
        got->d.op = HD_OP_COPY;
        got->d.n_in = 1;
        h_check(fast, got, want, 1e-2);
        h_close(fast);
    }
}
END_TEST

/* What a skipped -0 or a NaN would lose. */
START_TEST(copies_keep_signs)
{
    static const struct h_case c = {"copy", HD_OP_COPY, "f:n", "n", "n=19", {0}};
    struct h_device *fast = h_open(1, H_FAST);
    struct h_instr *i = h_make(&c, HD_BF16, 1);
    for (int64_t j = 0; j < 19; j++)
        h_set(&i->in[0], j, -0.0);
    h_run(fast, i);
    for (int j = 0; j < 19; j++)
        ck_assert_uint_eq(((const uint16_t *)i->out[0].data)[j], 0x8000);
    h_free(i);
    h_close(fast);
}
END_TEST

/* Few results of many terms: parts of a sum are made side by side, and none of them is rounded to 16 bits before
 * they are added. 2048 + 1 is 2048 in bf16 and in fp16. */
START_TEST(parts_of_a_sum_are_in_fp32)
{
    static const struct h_case c = {"parts", HD_OP_EINSUM, "mk nk", "mn", "m=16 n=16 k=4096", {0}};
    static const uint32_t dtypes[] = {HD_BF16, HD_F16};
    for (int d = 0; d < 2; d++) {
        struct h_device *fast = h_open(1, H_FAST);
        struct h_instr *i = h_make(&c, dtypes[d], 3);
        for (int64_t j = 0; j < 16 * 4096; j++) {
            int64_t k = j % 4096;
            h_set(&i->in[0], j, 1);
            h_set(&i->in[1], j, k == 0 ? 2048 : k == 1 ? 1 : k == 4095 ? -2048 : 0);
        }
        h_run(fast, i);
        for (int64_t j = 0; j < 16 * 16; j++)
            ck_assert_double_eq(h_get(&i->out[0], j), 1);
        h_free(i);
        h_close(fast);
    }
}
END_TEST

/* The compiler asks before a device is open, of the job's compute dtype. */
START_TEST(fused_ops_are_supported)
{
    static const uint32_t fused[] = {HD_OP_EINSUM_BIAS,       HD_OP_EINSUM_GELU,      HD_OP_EINSUM_GELU_GRAD,
                                     HD_OP_EINSUM_BIAS_DW,    HD_OP_ADD_RMSNORM,      HD_OP_ADD_LAYERNORM,
                                     HD_OP_RMSNORM_DX_ADD,    HD_OP_LAYERNORM_DX_ADD, HD_OP_RMSNORM_GRAD_ADD,
                                     HD_OP_LAYERNORM_GRAD_ADD};
    static const uint32_t dtypes[] = {HD_F32, HD_BF16, HD_F16, HD_F64};
    const struct hd_device_ops *ops = h_component()->ops;
    for (size_t d = 0; d < sizeof dtypes / sizeof dtypes[0]; d++) {
        for (size_t i = 0; i < sizeof fused / sizeof fused[0]; i++)
            ck_assert_int_eq(ops->supports(NULL, fused[i], dtypes[d]), 1);
        ck_assert_int_eq(ops->supports(NULL, HD_OP_XENT_HEAD, dtypes[d]), dtypes[d] != HD_F64);
    }
}
END_TEST

/* Peak FLOP/s of products: dense, as datasheets count, whose clock of tensor cores is below what the GPU says of its
 * own. */
START_TEST(peaks_are_those_of_the_datasheet)
{
    static const struct {
        const char *capability, *clock;
        double half, single; /* FLOP/s of the emulator's two multiprocessors */
    } all[] = {{"90", "1980000", 989.4e12 / 66, 66.9e12 / 66},
               {"90", "1000000", 2 * 4096e9, 2 * 256e9},
               {"80", "1410000", 312e12 / 54, 19.5e12 / 54},
               {"100", "1965000", 2250e12 / 74, 2 * 256 * 1.965e9}};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        setenv("HEDDLE_EMULATE_CAPABILITY", all[i].capability, 1);
        setenv("HEDDLE_EMULATE_CLOCK", all[i].clock, 1);
        struct h_device *d = h_open(1, H_FAST);
        ck_assert_double_eq_tol(d->ops->peak_flops(d->device, HD_BF16), all[i].half, all[i].half * 1e-3);
        ck_assert_double_eq_tol(d->ops->peak_flops(d->device, HD_F32), all[i].single, all[i].single * 1e-3);
        h_close(d);
    }
    unsetenv("HEDDLE_EMULATE_CAPABILITY");
    unsetenv("HEDDLE_EMULATE_CLOCK");
}
END_TEST

/* As HD_DEVICE_ZEROED_MEMORY says; what cudaMalloc gives holds anything. */
START_TEST(memory_is_zeroed)
{
    struct h_device *d = h_open(1, H_FAST);
    struct hd_error err = HD_ERROR_INIT;
    void *memory, *host;
    const size_t bytes = 5000;
    ck_assert(d->ops->caps & HD_DEVICE_ZEROED_MEMORY);
    ck_assert_int_eq(d->ops->alloc(d->device, HD_MEM_DEVICE, bytes, &memory, &err), HD_OK);
    ck_assert_int_eq(d->ops->alloc(d->device, HD_MEM_PINNED, bytes, &host, &err), HD_OK);
    memset(host, 1, bytes);
    ck_assert_int_eq(d->ops->copy(d->device, 0, host, memory, bytes, &err), HD_OK);
    ck_assert_int_eq(d->ops->sync(d->device, 0, &err), HD_OK);
    for (size_t i = 0; i < bytes; i++)
        ck_assert_int_eq(((const char *)host)[i], 0);
    d->ops->free(d->device, HD_MEM_DEVICE, memory);
    d->ops->free(d->device, HD_MEM_PINNED, host);
    h_close(d);
}
END_TEST

int main(void)
{
    TCase *t = tcase_create("kernels");
    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, kernel_is_near_its_reference, 0, CASES);
    tcase_add_loop_test(t, operands_lie_anywhere, 0, sizeof flat / sizeof flat[0]);
    tcase_add_test(t, fused_ops_are_supported);
    tcase_add_test(t, memory_is_zeroed);
    tcase_add_test(t, slots_follow_positions);
    tcase_add_test(t, copies_permute);
    tcase_add_test(t, a_permuted_copy_may_round_and_add);
    tcase_add_test(t, copies_keep_signs);
    tcase_add_test(t, parts_of_a_sum_are_in_fp32);
    if (strstr(getenv("HEDDLE_TEST_DEVICE"), "emulated"))
        tcase_add_test(t, peaks_are_those_of_the_datasheet);
    return suite_run_case("kernels", t);
}
