/* Products with a bias, a GELU and their gradients behind them, against device cpu's references: as one product of
 * cuBLASLt and, where shapes are none, as the instructions that they stand for. */
#include "conformance/device/staged.h"
#include "tests/suite.h"
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct h_case forward[] = {
    {"bias", HD_OP_EINSUM_BIAS, "bsh fh f", "bsf", "b=2 s=9 h=24 f=40", {0}},
    {"bias of heads", HD_OP_EINSUM_BIAS, "bsh hkgd kgd", "bskgd", "b=2 s=5 h=16 k=2 g=3 d=8", {0}},
    {"bias of a product that is transposed", HD_OP_EINSUM_BIAS, "hf bsh f", "bsf", "b=2 s=5 h=16 f=24", {0}},
    {"bias of experts", HD_OP_EINSUM_BIAS, "ebh efh f", "ebf", "e=3 b=5 h=16 f=24", {0}},
    {"bias of the last dim of heads", HD_OP_EINSUM_BIAS, "bsh hkd d", "bskd", "b=2 s=5 h=16 k=2 d=8", {0}},
    {"gelu", HD_OP_EINSUM_GELU, "bsh hf f", "bsf bsf", "b=2 s=9 h=24 f=40", {0}},
    {"gelu of an odd width", HD_OP_EINSUM_GELU, "bsh hf f", "bsf bsf", "b=2 s=9 h=24 f=13", {0}},
    {"gelu alone", HD_OP_EINSUM_GELU, "bsh hf f", "bsf", "b=2 s=9 h=24 f=13", {0}},
    {"gelu_grad", HD_OP_EINSUM_GELU_GRAD, "bsh fh bsf", "bsf", "b=2 s=9 h=24 f=40", {0}},
    {"gelu_grad of an odd width", HD_OP_EINSUM_GELU_GRAD, "bsh fh bsf", "bsf", "b=2 s=9 h=24 f=13", {0}},
};

static const struct h_case backward[] = {
    {"bias_dw", HD_OP_EINSUM_BIAS_DW, "bsf bsh", "f:fh f:f", "b=2 s=9 h=24 f=40", {0}},
    {"bias_dw, the other order", HD_OP_EINSUM_BIAS_DW, "bsf bsh", "f:hf f:f", "b=2 s=9 h=24 f=13", {0}},
    {"bias_dw of heads", HD_OP_EINSUM_BIAS_DW, "bskgd bsh", "hkgd kgd", "b=2 s=5 h=16 k=2 g=3 d=8", {0}},
    {"bias_dw of experts", HD_OP_EINSUM_BIAS_DW, "ebf ebh", "f:efh f:ef", "e=3 b=5 h=16 f=24", {0}},
};

static const struct {
    uint32_t dtype;
    double tolerance;
} dtypes[] = {{HD_F64, 1e-12}, {HD_F32, 1e-5}, {HD_BF16, 1e-2}, {HD_F16, 2e-3}};
enum { DTYPES = sizeof dtypes / sizeof dtypes[0] };

START_TEST(forward_is_near_its_reference)
{
    for (int d = 0; d < DTYPES; d++)
        h_fast_case(&forward[_i], dtypes[d].dtype, dtypes[d].tolerance, 0);
}
END_TEST

START_TEST(backward_is_near_its_reference)
{
    for (int d = 0; d < DTYPES; d++)
        h_fast_case(&backward[_i], dtypes[d].dtype, dtypes[d].tolerance, 1);
}
END_TEST

/* The share of output 0's elements that are not what the reference says, rounded once. */
static double share_off(const struct h_case *c)
{
    struct h_device *fast = h_open(1, H_FAST), *plain = h_open(1, H_REFERENCE);
    struct h_instr *got = h_make(c, HD_BF16, 5), *want = h_as(got, HD_F64);
    int64_t n = hd_operand_count(&got->out[0]), off = 0;
    h_run(fast, got);
    h_run(plain, want);
    for (int64_t i = 0; i < n; i++)
        off += h_get(&got->out[0], i) != h_bf16(h_get(&want->out[0], i));
    h_free(got);
    h_free(want);
    h_close(fast);
    h_close(plain);
    return (double)off / (double)n;
}

/* Made by an epilogue nothing is rounded between the product and what stands behind it; by kernels of their own it
 * is. cuBLASLt's GELU is by an approximation of tanh: on an H100 (13.1) 8 % of its elements and 25 % of its gradient's
 * are not what is nearest; the emulator's is exact. */
START_TEST(an_epilogue_rounds_once)
{
    static const struct h_case at_once[] = {
        {"bias", HD_OP_EINSUM_BIAS, "bsh fh f", "bsf", "b=2 s=20 h=64 f=64", {0}},
        {"gelu", HD_OP_EINSUM_GELU, "bsh fh f", "bsf bsf", "b=2 s=20 h=64 f=64", {0}},
        {"gelu alone", HD_OP_EINSUM_GELU, "bsh fh f", "bsf", "b=2 s=20 h=64 f=64", {0}},
        {"gelu_grad", HD_OP_EINSUM_GELU_GRAD, "bsh fh bsf", "bsf", "b=2 s=20 h=64 f=64", {0}},
    };
    static const struct h_case apart[] = {
        {"bias of experts", HD_OP_EINSUM_BIAS, "ebh efh f", "ebf", "e=3 b=20 h=64 f=64", {0}},
        {"gelu of an odd width", HD_OP_EINSUM_GELU, "bsh fh f", "bsf bsf", "b=2 s=20 h=64 f=63", {0}},
    };
    for (size_t i = 0; i < sizeof at_once / sizeof at_once[0]; i++) {
        /* sums in fp32 may fall to the other side of a half */
        double allowed =
            at_once[i].op == HD_OP_EINSUM_BIAS || strstr(getenv("HEDDLE_TEST_DEVICE"), "emulated") ? 0.01 : 0.3;
        ck_assert_double_le(share_off(&at_once[i]), allowed);
    }
    for (size_t i = 0; i < sizeof apart / sizeof apart[0]; i++)
        ck_assert_double_ge(share_off(&apart[i]), 0.05);
}
END_TEST

/* Kernels of one shape share a product, and each has its own bias: one that is alive, elsewhere, when the others run.
 */
START_TEST(biases_are_not_mixed_up)
{
    static const struct h_case c = {"bias", HD_OP_EINSUM_BIAS, "bsh fh f", "bsf", "b=2 s=3 h=8 f=16", {0}};
    struct h_device *fast = h_open(1, H_FAST), *plain = h_open(1, H_REFERENCE);
    struct h_instr *got[3], *want[3];
    for (uint64_t n = 0; n < 3; n++) {
        got[n] = h_make(&c, HD_F32, n + 1);
        want[n] = h_as(got[n], HD_F64);
        h_run(plain, want[n]);
    }
    h_run_staged_all(fast, got, 3);
    for (int n = 0; n < 3; n++) {
        h_near(c.name, got[n], want[n], 1e-5);
        h_free(got[n]);
        h_free(want[n]);
    }
    h_close(fast);
    h_close(plain);
}
END_TEST

/* How many lines of the log have this. */
static int logged(const char *text)
{
    int n = 0;
    for (const char *at = h_log; (at = strstr(at, text)); at++)
        n++;
    return n;
}

/* Which form is taken is chance on the emulator, as its times are: both are right, and each shape is timed once. */
START_TEST(tuning_times_both_forms)
{
    static const struct h_case all[] = {
        {"gelu", HD_OP_EINSUM_GELU, "bsh fh f", "bsf bsf", "b=2 s=9 h=24 f=40", {0}},
        {"gelu_grad", HD_OP_EINSUM_GELU_GRAD, "bsh fh bsf", "bsf", "b=2 s=9 h=24 f=40", {0}},
        {"bias_dw", HD_OP_EINSUM_BIAS_DW, "bsf bsh", "f:fh f:f", "b=2 s=9 h=24 f=40", {0}},
        {"bias_dw", HD_OP_EINSUM_BIAS_DW, "bsf bsh", "f:fh f:f", "b=2 s=9 h=24 f=40", {.flags = HD_ATTR_ACCUMULATE}},
    };
    struct h_device *fast = h_open_with(1, H_FAST, "tune", 1), *plain = h_open(1, H_REFERENCE);
    h_log[0] = 0;
    for (uint64_t seed = 0; seed < 3; seed++)
        for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
            struct h_instr *got = h_make(&all[i], HD_BF16, seed), *want = h_as(got, HD_F64);
            h_run(fast, got);
            h_run(plain, want);
            h_near(all[i].name, got, want, 1e-2);
            h_free(got);
            h_free(want);
        }
    ck_assert_msg(logged("one product") == 4 && logged("kernels behind a product") == 4, "%s", h_log);
    h_close(fast);
    h_close(plain);
}
END_TEST

/* cuBLASLt has no kernels of Hopper's own for gradients of biases in bf16. */
START_TEST(what_is_slow_on_a_gpu_is_done_apart)
{
    static const struct h_case dw = {"bias_dw", HD_OP_EINSUM_BIAS_DW, "bsf bsh", "f:fh f:f", "b=2 s=9 h=24 f=40", {0}};
    static const struct h_case bias = {"bias", HD_OP_EINSUM_BIAS, "bsh fh f", "bsf", "b=2 s=9 h=24 f=40", {0}};
    static const struct {
        const char *capability;
        const struct h_case *c;
        uint32_t dtype;
        int apart;
    } all[] = {{"90", &dw, HD_BF16, 1},
               {"90", &dw, HD_F16, 0},
               {"80", &dw, HD_BF16, 0},
               {"100", &dw, HD_BF16, 0},
               {"90", &bias, HD_BF16, 0}};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        setenv("HEDDLE_EMULATE_CAPABILITY", all[i].capability, 1);
        struct h_device *fast = h_open(1, H_FAST);
        struct h_instr *got = h_make(all[i].c, all[i].dtype, 5);
        h_log[0] = 0;
        h_run(fast, got);
        ck_assert_msg(logged("cuBLASLt is slow with the two at once") == all[i].apart, "%zu: %s", i, h_log);
        h_free(got);
        h_close(fast);
    }
    unsetenv("HEDDLE_EMULATE_CAPABILITY");
}
END_TEST

/* Nothing is left of a cuBLASLt whose workspace could not be had. */
START_TEST(every_product_wants_the_workspace)
{
    static const struct h_case c = {"product", HD_OP_EINSUM, "mk kn", "mn", "m=8 n=8 k=8", {0}};
    struct h_device *fast = h_open_with(1, H_FAST, "workspace", INT64_C(1) << 60);
    struct h_instr *i = h_make(&c, HD_BF16, 1);
    for (int n = 0; n < 2; n++) {
        struct hd_error err = HD_ERROR_INIT;
        struct hd_kernel *k;
        ck_assert_int_eq(h_prepare(fast, i, &k, &err), HD_E_NOMEM);
    }
    h_free(i);
    h_close(fast);
}
END_TEST

int main(void)
{
    TCase *t = tcase_create("epilogues");
    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, forward_is_near_its_reference, 0, sizeof forward / sizeof forward[0]);
    tcase_add_loop_test(t, backward_is_near_its_reference, 0, sizeof backward / sizeof backward[0]);
    tcase_add_test(t, an_epilogue_rounds_once);
    tcase_add_test(t, biases_are_not_mixed_up);
    tcase_add_test(t, tuning_times_both_forms);
    tcase_add_test(t, every_product_wants_the_workspace);
    if (strstr(getenv("HEDDLE_TEST_DEVICE"), "emulated"))
        tcase_add_test(t, what_is_slow_on_a_gpu_is_done_apart);
    return suite_run_case("epilogues", t);
}
