/* Which matrix product an einsum becomes, as cuBLAS will be told: sizes, transposes, strides, batch, loops; and what
 * it refuses. */
#include "products/plan.h"
#include "tests/suite.h"
#include <check.h>
#include <stdlib.h>

/* Extents of the letters in use. */
static int64_t extent_of(char letter)
{
    static const struct {
        char letter;
        int64_t extent;
    } all[] = {{'b', 2}, {'s', 3},  {'k', 4},  {'g', 5}, {'d', 8},   {'h', 16}, {'f', 7}, {'e', 6},
               {'t', 9}, {'m', 11}, {'n', 13}, {'u', 1}, {'z', 100}, {'q', 48}, {'r', 48}};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (all[i].letter == letter)
            return all[i].extent;
    ck_abort_msg("no extent for %c", letter);
}

static struct hd_operand operand(const char *dims, uint32_t dtype)
{
    static char memory[1];
    struct hd_operand o = {.data = memory, .dtype = dtype};
    for (; *dims; dims++, o.ndim++) {
        o.dim[o.ndim] = (uint8_t)*dims;
        o.extent[o.ndim] = extent_of(*dims);
    }
    return o;
}

static const char *plan_of(struct cu_plan *p, const char *a, const char *b, const char *c)
{
    struct hd_operand in[2] = {operand(a, HD_BF16), operand(b, HD_BF16)}, out = operand(c, HD_F32);
    return cu_plan(p, in, &out, 0);
}

static void expect(const char *name, const struct cu_matrix *x, int64_t rows, int64_t cols, int64_t ld, uint32_t trans,
                   int64_t batch_stride)
{
    ck_assert_msg(x->rows == rows && x->cols == cols && x->ld == ld && x->trans == trans &&
                      x->batch_stride == batch_stride,
                  "%s is %lld x %lld, ld %lld, trans %u, %lld a batch", name, (long long)x->rows, (long long)x->cols,
                  (long long)x->ld, x->trans, (long long)x->batch_stride);
}

/* y [bs kgd] = x [bs h] w [kgd h]^T: column-major, y^T [kgd bs] = w [kgd h] x^T [h bs]; w lies as [h kgd]. */
START_TEST(projection)
{
    struct cu_plan p;
    ck_assert_ptr_null(plan_of(&p, "bsh", "kgdh", "bskgd"));
    ck_assert_int_eq(p.product.m, 160);
    ck_assert_int_eq(p.product.n, 6);
    ck_assert_int_eq(p.product.k, 16);
    ck_assert_int_eq(p.product.batch, 1);
    ck_assert_int_eq(p.loops, 1);
    ck_assert_uint_eq(p.swapped, 0);
    expect("a", &p.product.a, 16, 160, 16, 1, 0);
    expect("b", &p.product.b, 16, 6, 16, 0, 0);
    expect("d", &p.product.d, 160, 6, 160, 0, 0);
}
END_TEST

/* dw [kgd h] = dy [bs kgd]^T x [bs h]. */
START_TEST(gradient_of_weights)
{
    struct cu_plan p;
    ck_assert_ptr_null(plan_of(&p, "bskgd", "bsh", "kgdh"));
    ck_assert_int_eq(p.product.m, 16);
    ck_assert_int_eq(p.product.n, 160);
    ck_assert_int_eq(p.product.k, 6);
    expect("a", &p.product.a, 16, 6, 16, 0, 0);
    expect("b", &p.product.b, 160, 6, 160, 1, 0);
    expect("d", &p.product.d, 16, 160, 16, 0, 0);
}
END_TEST

/* The output ends in a dim of the first input: the operands change places. */
START_TEST(output_in_the_other_order)
{
    struct cu_plan p;
    ck_assert_ptr_null(plan_of(&p, "bsh", "bskgd", "kgdh"));
    ck_assert_uint_eq(p.swapped, 1);
    ck_assert_int_eq(p.product.m, 16);
    ck_assert_int_eq(p.product.n, 160);
    expect("a", &p.product.a, 16, 6, 16, 0, 0);
    expect("b", &p.product.b, 160, 6, 160, 1, 0);
}
END_TEST

/* An expert each: e is the batch. */
START_TEST(experts_are_a_batch)
{
    struct cu_plan p;
    ck_assert_ptr_null(plan_of(&p, "ebh", "efh", "ebf"));
    ck_assert_int_eq(p.product.batch, 6);
    ck_assert_int_eq(p.loops, 1);
    expect("a", &p.product.a, 16, 7, 16, 1, 7 * 16);
    expect("b", &p.product.b, 16, 2, 16, 0, 2 * 16);
    expect("d", &p.product.d, 7, 2, 7, 0, 2 * 7);
}
END_TEST

/* Slots of experts, b e t: e and b cannot be one. One is the batch, the other a loop. */
START_TEST(what_is_left_is_looped_over)
{
    struct cu_plan p;
    ck_assert_ptr_null(plan_of(&p, "beth", "efh", "betf"));
    ck_assert_int_eq(p.product.batch, 6);
    ck_assert_int_eq(p.loops, 2);
    ck_assert_uint_eq(p.sums, 0);
    ck_assert_int_eq(p.outer.count, 1);
    ck_assert_int_eq(p.outer.at[0].id, 'b');
    ck_assert_int_eq(p.outer.at[0].stride[LABELS_B], 0);
}
END_TEST

/* Terms from two places are summed by products that add; into bf16 they would be rounded in between. */
START_TEST(summed_loops_add)
{
    struct cu_plan p;
    struct hd_operand in[2] = {operand("skbm", HD_BF16), operand("knb", HD_BF16)}, out = operand("smn", HD_F32);
    ck_assert_ptr_null(cu_plan(&p, in, &out, 0));
    ck_assert_uint_eq(p.sums, 1);
    ck_assert_int_eq(p.outer.at[p.outer.count - 1].where, LABEL_K);
    out.dtype = HD_BF16;
    ck_assert_str_eq(cu_plan(&p, in, &out, 0), "a sum over separated dims would be rounded between its parts");
}
END_TEST

START_TEST(extents_of_one_do_not_count)
{
    struct cu_plan p;
    ck_assert_ptr_null(plan_of(&p, "uh", "fh", "uf"));
    ck_assert_int_eq(p.product.n, 1);
    expect("b", &p.product.b, 16, 1, 16, 0, 0);
    expect("d", &p.product.d, 7, 1, 7, 0, 0);
    ck_assert_ptr_null(plan_of(&p, "h", "h", "u"));
    ck_assert_int_eq(p.product.m * p.product.n, 1);
    ck_assert_int_eq(p.product.k, 16);
    expect("a", &p.product.a, 16, 1, 16, 1, 0);
}
END_TEST

START_TEST(what_is_no_product_is_refused)
{
    static const struct {
        const char *a, *b, *c, *why;
    } all[] = {
        {"mke", "nke", "mne", "no matrix product with these orders of dims"},
        {"mkf", "nk", "mn", "a sum over one operand alone"},
        {"mm", "m", "m", "a dim occurs twice or with two extents"},
        {"zbs", "ztb", "zst", NULL}, /* a batch, not 100 products */
    };
    struct cu_plan p;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        const char *why = plan_of(&p, all[i].a, all[i].b, all[i].c);
        ck_assert_msg(why == NULL ? !all[i].why : all[i].why && !strcmp(why, all[i].why), "%s %s -> %s: %s", all[i].a,
                      all[i].b, all[i].c, why ? why : "a product");
    }
    struct hd_operand in[2] = {operand("mk", HD_BF16), operand("nk", HD_F32)}, out = operand("mn", HD_F32);
    ck_assert_str_eq(cu_plan(&p, in, &out, 0), "the inputs have two dtypes");
    in[1].dtype = HD_BF16;
    out.dtype = HD_F16;
    ck_assert_str_eq(cu_plan(&p, in, &out, 0), "the output has another dtype");
    in[0].extent[0] = 0;
    out.dtype = HD_F32;
    ck_assert_str_eq(cu_plan(&p, in, &out, 0), "an input is empty");
}
END_TEST

START_TEST(too_many_products_are_one_plain_kernel)
{
    struct cu_plan p;
    struct hd_operand in[2] = {operand("zbth", HD_BF16), operand("zhbf", HD_BF16)}, out = operand("ztbf", HD_F32);
    in[0].extent[0] = in[1].extent[0] = out.extent[0] = in[0].extent[1] = in[1].extent[2] = out.extent[2] = 257;
    ck_assert_str_eq(cu_plan(&p, in, &out, 0), "too many products");
    in[0] = operand("z", HD_BF16);
    in[0].extent[0] = INT32_MAX;
    in[1] = out = in[0];
    ck_assert_ptr_null(cu_plan(&p, in, &out, 0));
    in[0].extent[0] = in[1].extent[0] = out.extent[0] = (INT64_C(1) << 32) + 5; /* a batch is counted in 32 bits */
    ck_assert_str_eq(cu_plan(&p, in, &out, 0), "too many products");
}
END_TEST

/* ---- epilogues */

static const char *epilogue_of(struct cu_plan *p, uint32_t op, const char *ins, const char *outs, uint32_t out_dtype,
                               uint32_t accumulate)
{
    char text[64];
    struct hd_operand in[4], out[4];
    uint32_t n_in = 0, n_out = 0;
    snprintf(text, sizeof text, "%s", ins);
    for (char *at = strtok(text, " "); at; at = strtok(NULL, " "))
        in[n_in++] = operand(at, HD_BF16);
    snprintf(text, sizeof text, "%s", outs);
    for (char *at = strtok(text, " "); at; at = strtok(NULL, " "))
        out[n_out++] = operand(at, out_dtype);
    const char *why = cu_plan(p, in, out, accumulate);
    return why ? why : cu_plan_epilogue(p, op, in, out, n_out);
}

/* Output rows are columns of cuBLAS's d, so a bias of the last dims is one of d's rows. A gradient's sum is over the
 * terms of the product, of the operand that has the bias's dims: b where d's columns are them, a where its rows are. */
START_TEST(epilogues)
{
    static const struct {
        uint32_t op;
        const char *in, *out;
        uint32_t dtype, accumulate, epilogue;
    } all[] = {
        {HD_OP_EINSUM_BIAS, "bsh kgdh kgd", "bskgd", HD_BF16, 0, CU_EPILOGUE_BIAS},
        {HD_OP_EINSUM_BIAS, "bsh hkgd kgd", "bskgd", HD_BF16, 0, CU_EPILOGUE_BIAS},
        {HD_OP_EINSUM_BIAS, "kgdh bsh kgd", "bskgd", HD_BF16, 0, CU_EPILOGUE_BIAS},
        {HD_OP_EINSUM_GELU, "bsd hd h", "bsh bsh", HD_BF16, 0, CU_EPILOGUE_GELU_AUX_BIAS},
        {HD_OP_EINSUM_GELU, "bsd hd h", "bsh", HD_BF16, 0, CU_EPILOGUE_GELU_BIAS},
        {HD_OP_EINSUM_GELU, "bsh fh f", "bsf", HD_BF16, 0, CU_EPILOGUE_GELU_BIAS},
        {HD_OP_EINSUM_GELU_GRAD, "bsd dh bsh", "bsh", HD_BF16, 0, CU_EPILOGUE_DGELU},
        {HD_OP_EINSUM_BIAS_DW, "bsf bsh", "fh f", HD_F32, 1, CU_EPILOGUE_BGRADB},
        {HD_OP_EINSUM_BIAS_DW, "bsf bsh", "hf f", HD_F32, 1, CU_EPILOGUE_BGRADA},
        {HD_OP_EINSUM_BIAS_DW, "bskgd bsh", "kgdh kgd", HD_BF16, 0, CU_EPILOGUE_BGRADB},
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        struct cu_plan p;
        const char *why = epilogue_of(&p, all[i].op, all[i].in, all[i].out, all[i].dtype, all[i].accumulate);
        ck_assert_msg(!why && p.product.epilogue == all[i].epilogue, "%s -> %s: %s, epilogue %u", all[i].in, all[i].out,
                      why ? why : "fine", p.product.epilogue);
    }
}
END_TEST

START_TEST(products_that_have_none)
{
    static const struct {
        uint32_t op;
        const char *in, *out;
        uint32_t dtype, accumulate;
        const char *why;
    } all[] = {
        {HD_OP_EINSUM_BIAS, "ebh efh f", "ebf", HD_BF16, 0, "several products"},
        {HD_OP_EINSUM_BIAS, "bsh hkd d", "bskd", HD_BF16, 0, "the bias is no row of the product"},
        {HD_OP_EINSUM_BIAS, "bsh hf f", "bsf", HD_F32, 0, "the bias has another dtype"},
        {HD_OP_EINSUM_GELU, "bsh fh f", "bsf bsf", HD_BF16, 0, "rows of what GELU is of are no multiple of 8"},
        {HD_OP_EINSUM_GELU_GRAD, "bsh fh bsf", "bsf", HD_BF16, 0, "rows of what GELU is of are no multiple of 8"},
        {HD_OP_EINSUM_GELU_GRAD, "bsd dh bsh", "bsh", HD_F32, 0, "what GELU is of has another dtype"},
        {HD_OP_EINSUM_BIAS_DW, "ebf ebh", "efh ef", HD_F32, 0, "several products"},
        {HD_OP_EINSUM_BIAS_DW, "bsf bsh", "fh b", HD_F32, 0, "the sum is not over the terms of the product"},
        {HD_OP_EINSUM_BIAS_DW, "bsf bsh", "fh f", HD_BF16, 1,
         "the gradient of the bias would be rounded before it is added"},
        {HD_OP_EINSUM, "bsh fh", "bsf", HD_BF16, 0, "no such epilogue"},
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        struct cu_plan p;
        const char *why = epilogue_of(&p, all[i].op, all[i].in, all[i].out, all[i].dtype, all[i].accumulate);
        ck_assert_msg(why && !strcmp(why, all[i].why) && !p.product.epilogue, "%s -> %s: %s", all[i].in, all[i].out,
                      why ? why : "fine");
    }
}
END_TEST

/* ---- fp8 */

START_TEST(products_that_may_be_in_fp8)
{
    static const struct {
        const char *a, *b, *c;
        uint32_t dtype;
        int64_t h, above;
        const char *why;
    } all[] = {
        {"qh", "rh", "qr", HD_BF16, 16, 0, NULL},
        {"hq", "hr", "qr", HD_F16, 32, 24, NULL}, /* 48 48 / 96 */
        {"eqh", "erh", "eqr", HD_BF16, 16, 0, NULL},
        {"qh", "rh", "qr", HD_BF16, 16, 25, "it is too small to pay for casts: option fp8_above"},
        {"qh", "rh", "qr", HD_F32, 16, 0, "its operands are not in 16 bits"},
        {"qh", "rh", "qr", HD_BF16, 24, 0, "its sizes are no multiples of 16"},
        {"fh", "rh", "fr", HD_BF16, 16, 0, "its sizes are no multiples of 16"},
        {"qh", "fh", "qf", HD_BF16, 16, 0, "its sizes are no multiples of 16"},
        {"qh", "rh", "qr", HD_BF16, INT64_C(1) << 30, 0, "it is too large"},
        {"etqh", "terh", "etqr", HD_BF16, 16, 0, "several products"},
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        struct hd_operand in[2] = {operand(all[i].a, all[i].dtype), operand(all[i].b, all[i].dtype)},
                          out = operand(all[i].c, all[i].dtype);
        struct cu_plan p;
        for (int n = 0; n < 2; n++)
            for (uint32_t k = 0; k < in[n].ndim; k++)
                in[n].extent[k] = in[n].dim[k] == 'h' ? all[i].h : in[n].extent[k];
        ck_assert_ptr_null(cu_plan(&p, in, &out, 0));
        const char *why = cu_plan_fp8(&p, all[i].above);
        ck_assert_msg(all[i].why ? why && !strcmp(why, all[i].why) : !why, "%s, %s: %s", all[i].a, all[i].b,
                      why ? why : "fine");
    }
}
END_TEST

/* ---- chunks of logits */

START_TEST(rows_of_logits_fill_the_gpu)
{
    static const struct {
        int64_t rows, most, width, processors, want;
    } all[] = {
        {32768, 6003, 768, 132, 5504},   /* 129 tiles of 132, six times; 576 MiB of GPT-2's logits */
        {32768, 12006, 768, 132, 11008}, /* 258 of 264, three times */
        {32768, 2668, 768, 132, 2560},   /* no wave is full: the fewest chunks */
        {16384, 9437, 2048, 132, 8192},  /* 512 of 528, twice */
        {16384, 9437, 2048, 108, 8192},  /* 512 of 540 */
        {150, 64, 33, 132, 64},          {150, 100, 33, 132, 96}, {150, 1000, 33, 132, 150},
        {63, 64, 17, 132, 63},           {0, 64, 17, 132, 1},
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        ck_assert_int_eq(cu_plan_rows(all[i].rows, all[i].most, all[i].width, all[i].processors), all[i].want);
}
END_TEST

int main(void)
{
    TCase *t = tcase_create("plan");
    tcase_add_test(t, projection);
    tcase_add_test(t, gradient_of_weights);
    tcase_add_test(t, output_in_the_other_order);
    tcase_add_test(t, experts_are_a_batch);
    tcase_add_test(t, what_is_left_is_looped_over);
    tcase_add_test(t, summed_loops_add);
    tcase_add_test(t, extents_of_one_do_not_count);
    tcase_add_test(t, what_is_no_product_is_refused);
    tcase_add_test(t, too_many_products_are_one_plain_kernel);
    tcase_add_test(t, epilogues);
    tcase_add_test(t, products_that_have_none);
    tcase_add_test(t, products_that_may_be_in_fp8);
    tcase_add_test(t, rows_of_logits_fill_the_gpu);
    return suite_run_case("plan", t);
}
