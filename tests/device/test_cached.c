/* A step of decoding: kernels of a device against their references, and steps against attention over all positions. */
#include <stdio.h>

#include "conformance/device/harness.h"
#include "tests/suite.h"

#define CACHED HD_OP_ATTENTION_CACHED, "btkgd btkd btkd bskd bskd i:bt", "btkgd bskd bskd"

static const struct h_case cases[] = {
    {"one query", CACHED, "b=1 t=1 s=9 k=1 g=1 d=8 p=9", {.scale = 0.7}},
    {"groups", CACHED, "b=2 t=1 s=70 k=2 g=3 d=20 p=70", {.scale = 0.7}},
    {"several queries", CACHED, "b=2 t=3 s=300 k=3 g=2 d=16 p=300", {.scale = 0.7}},
    {"a window", CACHED, "b=3 t=2 s=300 k=2 g=1 d=40 p=300", {.scale = 0.7, .window = 30}},
    {"heads of more elements than a block has threads", CACHED, "b=1 t=2 s=70 k=1 g=2 d=136 p=70", {.scale = 0.3}},
    {"a soft cap", CACHED, "b=2 t=2 s=60 k=1 g=2 d=32 p=60", {.scale = 0.7, .clip = 1.5}},
};

static const struct {
    uint32_t dtype;
    double tolerance;
} dtypes[] = {{HD_F32, 1e-5}, {HD_BF16, 1e-2}, {HD_F16, 2e-3}};

START_TEST(near_its_reference)
{
    for (size_t t = 0; t < sizeof dtypes / sizeof dtypes[0]; t++)
        h_fast_case(&cases[_i], dtypes[t].dtype, dtypes[t].tolerance, 0);
}
END_TEST

static void copy_row(const struct hd_operand *to, int64_t at, const struct hd_operand *from, int64_t row)
{
    int64_t n = hd_operand_count(from) / from->extent[1];
    for (int64_t e = 0; e < n; e++)
        h_set(to, at * n + e, h_get(from, row * n + e));
}

/* Step by step, each with the caches of the one before: the rows of one attention over the sequence. */
START_TEST(steps_are_rows)
{
    enum { LENGTH = 37 };
    const struct hd_attrs attrs = {.scale = 0.5, .window = 11};
    const struct h_case whole = {"whole",        HD_OP_ATTENTION,        "bskgd bskd bskd",
                                 "bskgd f:bskg", "b=1 s=37 k=2 g=2 d=8", attrs};
    const struct h_case one = {"step", CACHED, "b=1 t=1 s=37 k=2 g=2 d=8 p=37", attrs};
    struct h_device *d = h_open(1, _i);
    struct h_instr *all = h_make(&whole, HD_F32, 3), *step = h_make(&one, HD_F32, 4);
    h_run(d, all);
    for (int64_t at = 0; at < LENGTH; at++) {
        struct h_instr *want = h_as(step, HD_F32);
        for (int n = 0; n < 3; n++)
            copy_row(&step->in[n], 0, &all->in[n], at);
        h_set(&step->in[5], 0, (double)at);
        h_run(d, step);
        for (int n = 1; n < 3; n++) {
            h_copy(&want->out[n], &want->in[2 + n]);
            copy_row(&want->out[n], at, &all->in[n], at);
            h_copy(&step->in[2 + n], &step->out[n]);
        }
        copy_row(&want->out[0], 0, &all->out[0], at);
        h_near("a step", step, want, 1e-6);
        h_free(want);
    }
    h_free(all);
    h_free(step);
    h_close(d);
}
END_TEST

/* Padding has a position below 0: no row changes, and its output is zeros; a row that is not there is not written. */
START_TEST(padding)
{
    struct h_device *d = h_open(1, _i);
    struct h_case c = {"padding", CACHED, "b=1 t=3 s=5 k=1 g=2 d=4 p=5", {.scale = 0.5}};
    struct h_instr *i = h_make(&c, HD_F32, 3);
    const double at[] = {2, -1, 5};
    for (int t = 0; t < 3; t++)
        h_set(&i->in[5], t, at[t]);
    h_run(d, i);
    for (int64_t e = 0; e < hd_operand_count(&i->out[1]); e++)
        ck_assert_double_eq(h_get(&i->out[1], e), e / 4 == 2 ? h_get(&i->in[1], e % 4) : h_get(&i->in[3], e));
    for (int64_t e = 0; e < hd_operand_count(&i->out[0]); e++)
        ck_assert_int_eq(h_get(&i->out[0], e) != 0, e < 8);
    h_free(i);
    h_close(d);
}
END_TEST

/* Keys whose scores overflow to -Inf have no share, even where they are the first that a query meets. */
START_TEST(infinite_scores_below_count_for_nothing)
{
    struct h_device *d = h_open(1, _i);
    struct h_case c = {"-inf", CACHED, "b=1 t=1 s=12 k=1 g=1 d=4 p=12", {.scale = 0.5}};
    struct h_instr *i = h_make(&c, HD_F32, 3);
    for (int64_t e = 0; e < 4; e++) {
        h_set(&i->in[0], e, e ? 0 : 1e30);
        h_set(&i->in[1], e, 0);
        h_set(&i->in[2], e, 11);
    }
    for (int64_t e = 0; e < 48; e++) {
        h_set(&i->in[3], e, e % 4 || e >= 32 ? 0 : -1e30); /* of rows 0 to 7 */
        h_set(&i->in[4], e, (double)(e / 4));
    }
    h_set(&i->in[5], 0, 11);
    h_run(d, i);
    for (int64_t e = 0; e < 4; e++)
        ck_assert_double_eq_tol(h_get(&i->out[0], e), 9.5, 1e-5);
    h_free(i);
    h_close(d);
}
END_TEST

START_TEST(refusals)
{
    struct h_device *d = h_open(1, H_REFERENCE);
    struct h_case c = cases[0];
    c.attrs.top_k = 3;
    h_refused(d, &c, HD_F32, HD_E_INVALID, "without a prefix");
    c = cases[0];
    c.in = "btkgd btkd btkd bskd bskd bt";
    h_refused(d, &c, HD_F32, HD_E_INVALID, "positions must be int32");
    c.in = "btkgd btkd btkd bsgd bsgd i:bt";
    c.dims = "b=1 t=1 s=9 k=2 g=1 d=8 p=9";
    h_refused(d, &c, HD_F32, HD_E_INVALID, "differ in batch, heads or head size");
    c.in = "btkgd btkd btkd f:bskd bskd i:bt";
    h_refused(d, &c, HD_BF16, HD_E_INVALID, "a cache has the dtype of what it keeps");
    c = (struct h_case){"rope_at", HD_OP_ROPE_AT, "btd bt", "btd", "b=1 t=2 d=4", {.sign = 1}};
    c.attrs.table = (const double[]){1, 0.1};
    c.attrs.n_table = 2;
    h_refused(d, &c, HD_F32, HD_E_INVALID, "positions must be int32");
    h_close(d);
}
END_TEST

int main(void)
{
    TCase *t = tcase_create("cached");
    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, near_its_reference, 0, (int)(sizeof cases / sizeof cases[0]));
    tcase_add_loop_test(t, steps_are_rows, H_FAST, H_REFERENCE + 1);
    tcase_add_loop_test(t, padding, H_FAST, H_REFERENCE + 1);
    tcase_add_loop_test(t, infinite_scores_below_count_for_nothing, H_FAST, H_REFERENCE + 1);
    tcase_add_test(t, refusals);
    return suite_run_case("cached", t);
}
