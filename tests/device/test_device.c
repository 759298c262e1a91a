/* The plugin as the core sees it: descriptor, memory, refusals, what a kernel keeps. */
#include "harness.h"
#include <check.h>
#include <math.h>
#include <stdlib.h>

static const struct h_case product = {"product", HD_OP_EINSUM, "mk kn", "mn", "m=3 k=4 n=5", {0}};

START_TEST(descriptor_is_complete)
{
    const struct hd_component *c = h_component();
    const struct hd_device_ops *ops = c->ops;
    ck_assert_uint_eq(c->kind, HD_KIND_DEVICE);
    ck_assert_str_eq(c->name, "cpu");
    ck_assert_uint_eq(c->option_size, sizeof(struct hd_option));
    ck_assert_uint_eq(ops->struct_size, sizeof *ops);
    ck_assert(ops->open && ops->close && ops->supports && ops->prepare && ops->launch && ops->release);
    ck_assert(ops->caps & HD_DEVICE_HOST_MEMORY);
}
END_TEST

START_TEST(memory_is_aligned_zeroed_and_writable)
{
    struct h_device *d = h_open(1, H_FAST);
    struct hd_error err = HD_ERROR_INIT;
    static const size_t sizes[] = {1, 4096, 5000, (size_t)5 << 20};
    void *memory[4];
    for (int i = 0; i < 4; i++) {
        ck_assert_int_eq(d->ops->alloc(d->device, HD_MEM_HOST, sizes[i], &memory[i], &err), HD_OK);
        ck_assert_uint_eq((uintptr_t)memory[i] % 4096, 0);
        size_t zeros = 0;
        while (zeros < sizes[i] && ((char *)memory[i])[zeros] == 0)
            zeros++;
        ck_assert_uint_eq(zeros, sizes[i]);
        memset(memory[i], 1, sizes[i]);
    }
    d->ops->free(d->device, HD_MEM_HOST, memory[1]);
    d->ops->free(d->device, HD_MEM_HOST, NULL);
    ck_assert_int_eq(d->ops->alloc(d->device, HD_MEM_DEVICE, 1, &memory[1], &err), HD_E_UNSUPPORTED);
    ck_assert_int_eq(d->ops->alloc(d->device, HD_MEM_HOST, (size_t)1 << 60, &memory[1], &err), HD_E_NOMEM);
    h_close(d); /* frees the rest */
}
END_TEST

START_TEST(every_device_op_is_supported)
{
    static const uint32_t not_ours[] = {HD_OP_ALL_REDUCE, HD_OP_ALL_GATHER, HD_OP_REDUCE_SCATTER, HD_OP_ALL_TO_ALL,
                                        HD_OP_BROADCAST,  HD_OP_SEND,       HD_OP_RECV,           HD_OP_FEED,
                                        HD_OP_RELEASE,    HD_OP_WAIT};
    static const struct {
        uint32_t op;
        const char *name;
    } all[] = {
#define ROW(constant, value, name) {value, name},
        HD_OPS(ROW)
#undef ROW
    };
    struct h_device *d = h_open(1, H_FAST);
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        int ours = 1;
        for (size_t j = 0; j < sizeof not_ours / sizeof not_ours[0]; j++)
            ours &= all[i].op != not_ours[j];
        ck_assert_msg(d->ops->supports(d->device, all[i].op, HD_F32) == ours, "%s", all[i].name);
        ck_assert_msg(d->ops->supports(d->device, all[i].op, HD_BF16) == ours, "%s", all[i].name);
        ck_assert_int_eq(d->ops->supports(d->device, all[i].op, HD_I32), 0);
    }
    ck_assert_int_eq(d->ops->supports(d->device, 1000, HD_F32), 0);
    h_close(d);
}
END_TEST

/* The descriptor, its operands, ranges and tables may be gone when a kernel runs. */
START_TEST(kernel_keeps_what_it_needs)
{
    for (int kernels = H_FAST; kernels <= H_REFERENCE; kernels++) {
        struct hd_range ranges[1] = {{0, 8, 1}};
        double table[2] = {1, 0.5};
        const struct h_case cases[] = {
            {"sumsq", HD_OP_SUMSQ, "n", "d:", "n=8", {.ranges = ranges, .n_ranges = 1}},
            {"rope", HD_OP_ROPE, "bsd", "bsd", "b=1 s=3 d=4", {.sign = 1, .table = table, .n_table = 2}},
            product,
        };
        struct h_device *d = h_open(1, kernels);
        for (int c = 0; c < 3; c++) {
            struct h_instr *want = h_make(&cases[c], HD_F32, 1), *i = h_make(&cases[c], HD_F32, 1);
            struct hd_error err = HD_ERROR_INIT;
            struct hd_kernel *k;
            ranges[0] = (struct hd_range){0, 8, 1};
            table[0] = 1;
            h_run(d, want);
            ck_assert_int_eq(h_prepare(d, i, &k, &err), HD_OK);
            struct h_instr saved = *i;
            memset(&i->d, 0xff, sizeof i->d);
            memset(i->in, 0xff, sizeof i->in);
            memset(i->out, 0xff, sizeof i->out);
            ranges[0] = (struct hd_range){-5, 3, 1000};
            table[0] = 77;
            ck_assert_int_eq(d->ops->launch(d->device, k, 0, &err), HD_OK);
            d->ops->release(d->device, k);
            *i = saved;
            h_equal(cases[c].name, i, want);
            h_free(i);
            h_free(want);
        }
        h_close(d);
    }
}
END_TEST

/* Descriptors that make no sense: refused by name, never run. */
static const struct {
    struct h_case c;
    int32_t code;
    const char *says;
} wrong[] = {
    {{"one factor", HD_OP_EINSUM, "mk", "mn", "m=3 k=4 n=5", {0}}, HD_E_INVALID, "one factor: op 1 wants 2 to 2 inputs"},
    {{"no source", HD_OP_EINSUM, "mk kn", "mz", "m=3 k=4 n=5 z=2", {0}}, HD_E_INVALID, "is in no input"},
    {{"add", HD_OP_ADD, "mk m", "mk", "m=3 k=4", {0}}, HD_E_INVALID, "3 elements"},
    {{"norm", HD_OP_RMSNORM, "mh k", "mh", "m=3 h=4 k=5", {.eps = 1}}, HD_E_INVALID, "the last one of the input"},
    {{"rope", HD_OP_ROPE, "bsd", "bsd", "b=1 s=2 d=5", {.sign = 1}}, HD_E_INVALID, "the head size even"},
    {{"rope", HD_OP_ROPE, "bsd", "bsd", "b=1 s=2 d=6", {.sign = 1}}, HD_E_INVALID, "3 inverse frequencies"},
    {{"attention", HD_OP_ATTENTION, "bskgd bsKd bsKd", "bskgd f:bskg", "b=1 s=2 k=2 K=3 g=1 d=2", {.scale = 1}},
     HD_E_INVALID, "differ in heads"},
    {{"embed", HD_OP_EMBED, "f:bs vh", "bsh", "b=1 s=2 v=3 h=4", {0}}, HD_E_INVALID, "must be int32"},
    {{"slice", HD_OP_SLICE, "bs", "bs", "b=2 s=4", {.to = 's', .index = 2, .parts = 2}}, HD_E_INVALID, "part 2 of 2"},
    {{"slice", HD_OP_SLICE, "bs", "bs", "b=2 s=4", {.to = 's', .index = 1, .parts = 2}}, HD_E_INVALID, "the whole"},
    {{"adamw", HD_OP_ADAMW, "n d: d:y", "n n m", "n=4 m=5 y=8", {0}}, HD_E_INVALID, "5 elements"},
    {{"sgd", HD_OP_SGD, "n d: d:y", "n", "n=4 y=8", {.beta1 = 0.9}}, HD_E_INVALID, "momentum"},
    {{"step", HD_OP_OPTIM_STEP, "n d: d:y", "n", "n=4 y=8", {0}}, HD_E_INVALID, "no step function"},
    {{"foreign", HD_OP_ALL_REDUCE, "n", "n", "n=4", {0}}, HD_E_UNSUPPORTED, "no kernel for op 50"},
};

START_TEST(nonsense_is_refused)
{
    for (int kernels = H_FAST; kernels <= H_REFERENCE; kernels++) {
        struct h_device *d = h_open(1, kernels);
        struct h_instr *i = h_make(&wrong[_i].c, HD_F32, 1);
        struct hd_error err = HD_ERROR_INIT;
        struct hd_kernel *k = (struct hd_kernel *)&err;
        ck_assert_int_eq(h_prepare(d, i, &k, &err), wrong[_i].code);
        ck_assert_msg(strstr(err.message, wrong[_i].says) != NULL, "said: %s", err.message);
        ck_assert_ptr_eq(k, &err); /* outputs are written only on success */
        h_free(i);
        h_close(d);
    }
}
END_TEST

START_TEST(operands_without_memory_are_refused)
{
    struct h_device *d = h_open(1, H_FAST);
    struct h_instr *i = h_make(&product, HD_F32, 1);
    struct hd_error err = HD_ERROR_INIT;
    struct hd_kernel *k;
    void *own = i->in[1].data;
    i->in[1].data = NULL;
    ck_assert_int_eq(h_prepare(d, i, &k, &err), HD_E_INVALID);
    ck_assert_str_eq(err.message, "product: input 1 has no memory");
    i->in[1].data = own;
    i->in[1].dtype = 99;
    ck_assert_int_eq(h_prepare(d, i, &k, &err), HD_E_INVALID);
    ck_assert_str_eq(err.message, "product: input 1 has the unknown dtype 99");
    i->in[1].dtype = HD_F32;
    h_free(i);
    h_close(d);
}
END_TEST

/* A dtype that no fast kernel takes runs on the reference, and the device says so once. */
START_TEST(slow_kernels_are_announced_once)
{
    static const struct h_case c = {"gelu", HD_OP_GELU, "n", "n", "n=7", {0}};
    struct h_device *d = h_open(1, H_FAST);
    struct h_instr *i = h_make(&c, HD_F64, 1);
    h_warnings = 0;
    h_run(d, i);
    h_run(d, i);
    ck_assert_int_eq(h_warnings, 1);
    ck_assert_str_eq(h_last_log, "gelu runs on the slow reference kernel: input 0 is fp64");
    for (int e = 0; e < 7; e++) {
        double x = h_get(&i->in[0], e);
        ck_assert_double_eq_tol(h_get(&i->out[0], e), x / (1 + exp(-2 * sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))), 1e-14);
    }
    h_free(i);
    h_close(d);
}
END_TEST

/* ---- an optimizer's own step */

static int32_t step(const void *settings, const void *args)
{
    const struct hd_optim_args *a = args;
    ck_assert_int_eq(a->first, 100);
    ck_assert_int_eq(a->count, 5);
    ck_assert_double_eq(a->norm2, 9);
    ck_assert_double_eq(a->hyper[HD_HYPER_LR], 0.5);
    for (int64_t i = 0; i < a->count; i++) {
        a->state[0][i] += 1;
        a->param[i] = (float)(a->grad[i] * *(const double *)settings);
    }
    return HD_OK;
}

START_TEST(an_optimizers_step_is_called)
{
    static const double factor = 3;
    const struct h_case c = {"step", HD_OP_OPTIM_STEP, "f:n d: d:y", "f:n f:n n", "n=5@100 y=8",
                             {.step = step, .settings = &factor}};
    for (int skip = 0; skip < 2; skip++) {
        struct h_device *d = h_open(1, H_FAST);
        struct h_instr *i = h_make(&c, HD_BF16, 1), *before = h_make(&c, HD_BF16, 1);
        for (int e = 0; e < HD_HYPER_COUNT; e++)
            h_set(&i->in[2], e, 0);
        h_set(&i->in[1], 0, 9);
        h_set(&i->in[2], HD_HYPER_LR, 0.5);
        h_set(&i->in[2], HD_HYPER_SKIP, skip);
        h_run(d, i);
        if (skip)
            h_equal("skipped", i, before);
        for (int e = 0; e < 5 && !skip; e++) {
            float want = (float)(h_get(&i->in[0], e) * factor);
            ck_assert_double_eq(h_get(&i->out[0], e), want);
            ck_assert_double_eq(h_get(&i->out[1], e), (float)h_get(&before->out[1], e) + 1.0f);
            ck_assert_double_eq_tol(h_get(&i->out[2], e), want, fabsf(want) / 256);
        }
        h_free(i);
        h_free(before);
        h_close(d);
    }
}
END_TEST

START_TEST(peak_is_known_only_where_measured)
{
    struct h_device *d = h_open(1, H_FAST);
    double fp32 = d->ops->peak_flops(d->device, HD_F32), bf16 = d->ops->peak_flops(d->device, HD_BF16);
    ck_assert_double_gt(fp32, 1e8); /* no processor with the instruction sets we run on is slower */
    ck_assert_double_gt(bf16, 1e8);
    ck_assert_double_eq(fp32, d->ops->peak_flops(d->device, HD_F32)); /* measured once */
    ck_assert_double_eq(d->ops->peak_flops(d->device, HD_F64), 0);
    h_close(d);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("device");
    TCase *t = tcase_create("device");
    tcase_set_timeout(t, 30);
    tcase_add_test(t, descriptor_is_complete);
    tcase_add_test(t, memory_is_aligned_zeroed_and_writable);
    tcase_add_test(t, every_device_op_is_supported);
    tcase_add_test(t, kernel_keeps_what_it_needs);
    tcase_add_loop_test(t, nonsense_is_refused, 0, (int)(sizeof wrong / sizeof wrong[0]));
    tcase_add_test(t, operands_without_memory_are_refused);
    tcase_add_test(t, slow_kernels_are_announced_once);
    tcase_add_test(t, an_optimizers_step_is_called);
    tcase_add_test(t, peak_is_known_only_where_measured);
    suite_add_tcase(suite, t);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
