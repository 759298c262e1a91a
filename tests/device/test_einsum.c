/* The fast einsum against the reference: every shape of product that models make, odd sizes, and what it
 * leaves to the reference kernel. fp32 to 1e-5 of the norm, bf16 to 1e-2; the same bits for any number of
 * threads. */
#include "conformance/device/harness.h"
#include "tests/suite.h"
#include <check.h>
#include <math.h>
#include <stdlib.h>

static const struct h_case cases[] = {
    {"one by one", HD_OP_EINSUM, "h h", "f:", "h=1", {0}},
    {"dot", HD_OP_EINSUM, "h h", "f:", "h=1031", {0}},
    {"outer product", HD_OP_EINSUM, "m n", "mn", "m=37 n=45", {0}},
    {"row times matrix", HD_OP_EINSUM, "k nk", "n", "k=67 n=130", {0}},
    {"column times matrix", HD_OP_EINSUM, "mk k", "m", "m=130 k=67", {0}},
    {"projection", HD_OP_EINSUM, "bsh kgdh", "bskgd", "b=2 s=3 k=2 g=3 d=5 h=7", {0}},
    {"projection, large", HD_OP_EINSUM, "bsh kgdh", "bskgd", "b=2 s=67 k=2 g=3 d=24 h=201", {0}},
    {"projection of whole panels", HD_OP_EINSUM, "bsh kgdh", "bskgd", "b=2 s=96 k=2 g=3 d=32 h=256", {0}},
    {"output projection", HD_OP_EINSUM, "bskgd hkgd", "bsh", "b=2 s=33 k=2 g=2 d=24 h=65", {0}},
    {"gradient of x", HD_OP_EINSUM, "bskgd kgdh", "bsh", "b=2 s=33 k=2 g=3 d=24 h=67", {0}},
    {"gradient of w", HD_OP_EINSUM, "bskgd bsh", "kgdh", "b=2 s=33 k=2 g=3 d=24 h=67", {0}},
    {"gradient of w into fp32", HD_OP_EINSUM, "bskgd bsh", "f:kgdh", "b=3 s=101 k=2 g=3 d=24 h=130", {0}},
    {"gradient of w, other order", HD_OP_EINSUM, "bsh bskgd", "f:kgdh", "b=2 s=65 k=2 g=3 d=24 h=67", {0}},
    {"both transposed", HD_OP_EINSUM, "km nk", "mn", "k=131 m=66 n=35", {0}},
    {"many terms", HD_OP_EINSUM, "mk nk", "mn", "m=33 n=5 k=9001", {0}},
    {"more columns than a chunk", HD_OP_EINSUM, "mk kn", "mn", "m=5 n=2003 k=2500", {0}},
    {"wide", HD_OP_EINSUM, "mk nk", "mn", "m=37 n=701 k=530", {0}},
    {"wide, more terms than a chunk", HD_OP_EINSUM, "mk nk", "mn", "m=5 n=2003 k=2500", {0}},
    {"more rows than a chunk", HD_OP_EINSUM, "mk kn", "f:mn", "m=2503 n=7 k=1300", {0}},
    {"rows a page apart", HD_OP_EINSUM, "mk kn", "mn", "m=61 n=67 k=1024", {0}},
    {"several blocks of rows", HD_OP_EINSUM, "mk nk", "mn", "m=301 n=67 k=530", {0}},
    {"several blocks, rows side by side", HD_OP_EINSUM, "km kn", "mn", "m=301 n=35 k=1100", {0}},
    {"one expert each", HD_OP_EINSUM, "ebh efh", "ebf", "e=3 b=17 h=70 f=37", {0}},
    {"experts inside", HD_OP_EINSUM, "beh efh", "bef", "e=3 b=17 h=70 f=37", {0}},
    {"scores of heads", HD_OP_EINSUM, "bskd btkd", "bkst", "b=2 s=17 t=19 k=3 d=40", {0}},
    {"rows from two places", HD_OP_EINSUM, "asbk kn", "abns", "a=2 s=5 b=3 k=33 n=7", {0}},
    {"terms from two places", HD_OP_EINSUM, "akbm knb", "f:amn", "a=2 k=3 b=17 m=34 n=35", {0}},
    {"extents of one", HD_OP_EINSUM, "bsh kgdh", "bskgd", "b=1 s=1 k=1 g=1 d=33 h=70", {0}},
};

static const struct {
    uint32_t dtype;
    double tolerance;
} dtypes[] = {{HD_F32, 1e-5}, {HD_BF16, 1e-2}, {HD_F16, 2e-3}};

START_TEST(product_is_near_its_reference)
{
    for (int d = 0; d < 3; d++)
        h_fast_case(&cases[_i], dtypes[d].dtype, dtypes[d].tolerance, 1);
}
END_TEST

#ifdef HAVE_ONEDNN
/* oneDNN's products, where they are asked for. bf16 and fp16 only where oneDNN has them for this machine. */
START_TEST(onednn_is_near_the_reference)
{
    for (int d = 0; d < 3; d++)
        for (uint32_t flags = 0; flags <= HD_ATTR_ACCUMULATE; flags += HD_ATTR_ACCUMULATE) {
            struct h_device *fast = h_open_with(2, H_FAST, "products", 1), *plain = h_open(1, H_REFERENCE);
            struct h_instr *a = h_make(&cases[_i], dtypes[d].dtype, 3), *want = h_as(a, HD_F64);
            struct hd_kernel *k = NULL;
            struct hd_error err = HD_ERROR_INIT;
            a->d.attrs.flags = want->d.attrs.flags = flags;
            int32_t status = h_prepare(fast, a, &k, &err);
            if (status) {
                ck_assert_int_ne(dtypes[d].dtype, HD_F32);
                ck_assert_ptr_nonnull(strstr(err.message, "use products: own"));
            } else {
                ck_assert_int_eq(fast->ops->launch(fast->device, k, 0, &err), HD_OK);
                fast->ops->release(fast->device, k);
                h_run(plain, want);
                h_near(cases[_i].name, a, want, dtypes[d].tolerance);
            }
            h_free(a);
            h_free(want);
            h_close(fast);
            h_close(plain);
        }
}
END_TEST
#endif

/* No product with unit strides, a sum over one operand alone, sums of rounded sums: right, though slower. */
static const struct h_case declined[] = {
    {"unit strides in a batch dim", HD_OP_EINSUM, "mke nke", "mne", "m=5 k=6 n=7 e=3", {0}},
    {"a sum over one operand alone", HD_OP_EINSUM, "mkx nk", "mn", "m=5 k=6 n=7 x=3", {0}},
};

START_TEST(the_rest_is_left_to_the_reference)
{
    struct h_device *fast = h_open(2, H_FAST), *plain = h_open(1, H_REFERENCE);
    struct h_instr *a = h_make(&declined[_i], HD_F32, 3), *want = h_as(a, HD_F64);
    h_warnings = 0;
    h_run(fast, a);
    h_run(plain, want);
    h_near(declined[_i].name, a, want, 1e-5);
    h_free(a);
    h_free(want);
    h_close(fast);
    h_close(plain);
}
END_TEST

/* What is added once is the product to the last bit. */
static void adds_once(struct h_device *d, const struct h_case *c, uint32_t dtype)
{
    struct h_instr *product = h_make(c, dtype, 3), *sum = h_make(c, dtype, 3);
    int64_t n = hd_operand_count(&sum->out[0]);
    float *to = sum->out[0].data;
    const float *made = product->out[0].data;
    if (sum->out[0].dtype == HD_F32) {
        float *before = malloc((size_t)n * sizeof *before);
        for (int64_t i = 0; i < n; i++)
            before[i] = to[i] = (float)(i % 7) - 3.1f;
        sum->d.attrs.flags = HD_ATTR_ACCUMULATE | HD_ATTR_ONCE;
        h_run(d, product);
        h_run(d, sum);
        for (int64_t i = 0; i < n; i++)
            ck_assert_msg(to[i] == before[i] + made[i], "%s, element %lld: %.9g is not %.9g + %.9g", c->name,
                          (long long)i, (double)to[i], (double)before[i], (double)made[i]);
        free(before);
    }
    h_free(product);
    h_free(sum);
}

START_TEST(once_adds_the_product)
{
    struct h_device *of[3] = {h_open(2, H_FAST), h_open(1, H_REFERENCE)};
    size_t n = 2;
#ifdef HAVE_ONEDNN
    if (!h_has_memory())
        of[n++] = h_open_with(2, H_FAST, "products", 1);
#endif
    for (size_t i = 0; i < n; i++) {
        adds_once(of[i], &cases[_i], HD_F32);
        if (i < 2) /* oneDNN has bf16 for some machines only */
            adds_once(of[i], &cases[_i], HD_BF16);
        h_close(of[i]);
    }
}
END_TEST

/* One kernel launched again and again, beside others that share its device's scratch: the same bits. */
START_TEST(kernels_share_scratch)
{
    if (h_has_memory()) /* its kernels cannot be launched on our operands */
        return;
    struct h_device *d = h_open(2, H_FAST);
    struct h_instr *small = h_make(&cases[5], HD_BF16, 1), *again = h_make(&cases[5], HD_BF16, 1);
    struct h_instr *large = h_make(&cases[14], HD_F32, 2);
    struct hd_kernel *first, *second;
    struct hd_error err = HD_ERROR_INIT;
    ck_assert_int_eq(h_prepare(d, small, &first, &err), HD_OK);
    ck_assert_int_eq(d->ops->launch(d->device, first, 0, &err), HD_OK);
    ck_assert_int_eq(h_prepare(d, large, &second, &err), HD_OK); /* moves the scratch */
    ck_assert_int_eq(d->ops->launch(d->device, second, 0, &err), HD_OK);
    ck_assert_int_eq(d->ops->launch(d->device, first, 0, &err), HD_OK);
    h_run(d, again);
    h_equal("beside another kernel", small, again);
    d->ops->release(d->device, first);
    d->ops->release(d->device, second);
    h_free(small);
    h_free(again);
    h_free(large);
    h_close(d);
}
END_TEST

int main(void)
{
    TCase *t = tcase_create("einsum");
    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, product_is_near_its_reference, 0, (int)(sizeof cases / sizeof cases[0]));
#ifdef HAVE_ONEDNN
    if (!h_has_memory())
        tcase_add_loop_test(t, onednn_is_near_the_reference, 0, (int)(sizeof cases / sizeof cases[0]));
#endif
    if (h_can(HD_DEVICE_ADDS_ONCE))
        tcase_add_loop_test(t, once_adds_the_product, 0, (int)(sizeof cases / sizeof cases[0]));
    tcase_add_loop_test(t, the_rest_is_left_to_the_reference, 0, (int)(sizeof declined / sizeof declined[0]));
    tcase_add_test(t, kernels_share_scratch);
    return suite_run_case("einsum", t);
}
