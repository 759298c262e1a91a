/* The plugin as the core sees it: descriptor, memory, refusals, what a kernel keeps. */
#include "conformance/device/harness.h"
#include "tests/suite.h"
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
    static const uint32_t not_ours[] = {
        HD_OP_ALL_REDUCE, HD_OP_ALL_GATHER, HD_OP_REDUCE_SCATTER, HD_OP_ALL_TO_ALL, HD_OP_BROADCAST, HD_OP_SEND,
        HD_OP_RECV, HD_OP_FEED, HD_OP_RELEASE, HD_OP_WAIT, HD_OP_SHIFT,
        /* run, but slower than what they stand for */
        HD_OP_EINSUM_BIAS, HD_OP_EINSUM_GELU, HD_OP_EINSUM_GELU_GRAD, HD_OP_EINSUM_BIAS_DW};
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
        ck_assert_int_eq(d->ops->supports(NULL, all[i].op, HD_F32), ours); /* before a device is open */
        ck_assert_int_eq(d->ops->supports(d->device, all[i].op, HD_I32), 0);
    }
    ck_assert_int_eq(d->ops->supports(d->device, 1000, HD_F32), 0);
    h_close(d);
}
END_TEST

#ifdef HAVE_ONEDNN
/* In place of the library's: the plug-in finds that of the program first. */
int dnnl_primitive_execute(const void *primitive, void *stream, int n, const void *args);
int dnnl_primitive_execute(const void *primitive, void *stream, int n, const void *args)
{
    (void)primitive, (void)stream, (void)n, (void)args;
    return 5; /* dnnl_runtime_error */
}

START_TEST(a_failed_product_of_onednn_is_an_error)
{
    struct h_device *d = h_open_with(1, H_FAST, "products", 1);
    struct h_instr *a = h_make(&product, HD_F32, 3);
    struct hd_kernel *k;
    struct hd_error err = HD_ERROR_INIT;
    ck_assert_int_eq(h_prepare(d, a, &k, &err), HD_OK);
    ck_assert_int_eq(d->ops->launch(d->device, k, 0, &err), HD_E_INTERNAL);
    ck_assert_ptr_nonnull(strstr(err.message, "a matrix product of oneDNN failed (status 5): set device.products=own"));
    d->ops->release(d->device, k);
    h_free(a);
    h_close(d);
}
END_TEST
#endif

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
    {{"one factor", HD_OP_EINSUM, "mk", "mn", "m=3 k=4 n=5", {0}},
     HD_E_INVALID,
     "one factor: op 1 wants 2 to 2 inputs"},
    {{"no source", HD_OP_EINSUM, "mk kn", "mz", "m=3 k=4 n=5 z=2", {0}}, HD_E_INVALID, "is in no input"},
    {{"add", HD_OP_ADD, "mk m", "mk", "m=3 k=4", {0}}, HD_E_INVALID, "3 elements"},
    {{"norm", HD_OP_RMSNORM, "mh k", "mh", "m=3 h=4 k=5", {.eps = 1}}, HD_E_INVALID, "the last one of the input"},
    {{"rope", HD_OP_ROPE, "bsd", "bsd", "b=1 s=2 d=5", {.sign = 1}}, HD_E_INVALID, "the head size even"},
    {{"rope", HD_OP_ROPE, "bsd", "bsd", "b=1 s=2 d=6", {.sign = 1}}, HD_E_INVALID, "all 3 pairs"},
    {{"softcap", HD_OP_SOFTCAP, "bv", "bv", "b=1 v=2", {0}}, HD_E_INVALID, "above 0, not 0"},
    {{"attention",
      HD_OP_ATTENTION,
      "bskgd bskd bskd",
      "bskgd f:bskg",
      "b=1 s=2 k=2 g=1 d=2",
      {.scale = 1, .top_k = 1, .window = 1}},
     HD_E_INVALID,
     "has no window"},
    {{"attention", HD_OP_ATTENTION, "bskgd bsKd bsKd", "bskgd f:bskg", "b=1 s=2 k=2 K=3 g=1 d=2", {.scale = 1}},
     HD_E_INVALID,
     "differ in heads"},
    {{"embed", HD_OP_EMBED, "f:bs vh", "bsh", "b=1 s=2 v=3 h=4", {0}}, HD_E_INVALID, "must be int32"},
    {{"slice", HD_OP_SLICE, "bs", "bs", "b=2 s=4", {.to = 's', .index = 2, .parts = 2}}, HD_E_INVALID, "part 2 of 2"},
    {{"slice", HD_OP_SLICE, "bs", "bs", "b=2 s=4", {.to = 's', .index = 1, .parts = 2}}, HD_E_INVALID, "the whole"},
    {{"adamw", HD_OP_ADAMW, "n d: d:y", "n n m", "n=4 m=5 y=8", {0}}, HD_E_INVALID, "5 elements"},
    {{"sgd", HD_OP_SGD, "n d: d:y", "n", "n=4 y=8", {.beta1 = 0.9}}, HD_E_INVALID, "momentum"},
    {{"step", HD_OP_OPTIM_STEP, "n d: d:y", "n", "n=4 y=8", {0}}, HD_E_INVALID, "no step function"},
    {{"custom", HD_OP_CUSTOM, "n", "n", "n=4", {0}}, HD_E_INVALID, "a custom op without a function for host memory"},
    {{"foreign", HD_OP_ALL_REDUCE, "n", "n", "n=4", {0}}, HD_E_UNSUPPORTED, "no kernel for op 50"},
};

START_TEST(nonsense_is_refused)
{
    for (int kernels = H_FAST; kernels <= H_REFERENCE; kernels++) {
        struct h_device *d = h_open(1, kernels);
        h_refused(d, &wrong[_i].c, HD_F32, wrong[_i].code, wrong[_i].says);
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
        ck_assert_double_eq_tol(h_get(&i->out[0], e), x / (1 + exp(-2 * sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))),
                                1e-14);
    }
    h_free(i);
    h_close(d);
}
END_TEST

/* ---- descriptors gone wrong: refused, or run without touching what is not theirs. Guards see what is written there,
 * sanitizers what is read. */

static int draw(uint64_t *seed, int n)
{
    return (int)((h_random(seed) + 1) / 2 * n);
}

static const struct {
    uint32_t op;
    const char *in, *out;
} valid[] = {
    {HD_OP_EINSUM, "bsh fh", "bsf"},
    {HD_OP_EINSUM, "bskgd kgdh", "bsh"},
    {HD_OP_EINSUM, "bsk bkt", "tbs"},
    {HD_OP_ADD, "bsh bsh bsh", "bsh"},
    {HD_OP_BIAS, "bskd kd", "bskd"},
    {HD_OP_BIAS_DW, "bskd", "kd"},
    {HD_OP_RMSNORM, "bsh h", "bsh"},
    {HD_OP_RMSNORM_DX, "bsh h bsh", "bsh"},
    {HD_OP_RMSNORM_DW, "bsh bsh", "h"},
    {HD_OP_LAYERNORM, "bsh h h", "bsh"},
    {HD_OP_LAYERNORM_DX, "bsh h bsh", "bsh"},
    {HD_OP_LAYERNORM_DW, "bsh bsh", "h h"},
    {HD_OP_ADD_RMSNORM, "bsh bsh h", "bsh bsh"},
    {HD_OP_ADD_LAYERNORM, "bsh bsh h h", "bsh bsh"},
    {HD_OP_RMSNORM_DX_ADD, "bsh bsh h bsh", "bsh"},
    {HD_OP_LAYERNORM_DX_ADD, "bsh bsh h bsh", "bsh"},
    {HD_OP_RMSNORM_GRAD_ADD, "bsh bsh h bsh", "bsh h"},
    {HD_OP_LAYERNORM_GRAD_ADD, "bsh bsh h bsh", "bsh h h"},
    {HD_OP_ROPE, "bskd", "bskd"},
    {HD_OP_ATTENTION, "bskgd btkd btkd", "bskgd f:bskg"},
    {HD_OP_ATTENTION_GRAD, "bskgd btkd btkd bskgd f:bskg bskgd", "bskgd btkd btkd"},
    {HD_OP_SWIGLU, "bf bf", "bf"},
    {HD_OP_SWIGLU_GRAD, "bf bf bf", "bf bf"},
    {HD_OP_GELU, "bf", "bf"},
    {HD_OP_GELU_GRAD, "bf bf", "bf"},
    {HD_OP_GELU_ERF, "bf", "bf"},
    {HD_OP_GELU_ERF_GRAD, "bf bf", "bf"},
    {HD_OP_RELU2, "bf", "bf"},
    {HD_OP_RELU2_GRAD, "bf bf", "bf"},
    {HD_OP_SOFTCAP, "bf", "bf"},
    {HD_OP_SOFTCAP_GRAD, "bf bf", "bf"},
    {HD_OP_SCALE, "bf", "bf"},
    {HD_OP_EMBED, "i:bs vh", "bsh"},
    {HD_OP_EMBED_DW, "i:bs bsh", "vh"},
    {HD_OP_POSITION, "bsh ph", "bsh"},
    {HD_OP_POSITION_DW, "bsh", "ph"},
    {HD_OP_ROWMAX, "bsv", "f:bs"},
    {HD_OP_XENT_LOCAL, "bsv f:bs i:bs", "f:bs f:bs"},
    {HD_OP_NLL, "f:bs f:bs f:bs", "f:bs"},
    {HD_OP_NLL_GRAD, "f:bs f:bs", "f:bs f:bs"},
    {HD_OP_XENT_GRAD, "bsv f:bs i:bs f:bs f:bs", "bsv"},
    {HD_OP_XENT_HEAD, "bsh vh i:bs", "f:bs bsh vh"},
    {HD_OP_TOTAL, "bs", "f:"},
    {HD_OP_SPREAD, "", "bs"},
    {HD_OP_SLICE, "bsh", "bth"},
    {HD_OP_MASK, "bs", "bs"},
    {HD_OP_PAD, "bth", "bsh"},
    {HD_OP_FILL0, "", "bs"},
    {HD_OP_ACCUM, "bs", "bs"},
    {HD_OP_COPY, "bs", "f:bs"},
    {HD_OP_SUMSQ, "n", "d:"},
    {HD_OP_ADAMW, "n d: d:y", "n n n n"},
    {HD_OP_SGD, "n d: d:y", "n n n"},
};

/* Replaces, drops or doubles one letter; kinds stay. */
static void damage(uint64_t *seed, char *text)
{
    size_t length = strlen(text), at = length ? (size_t)draw(seed, (int)length) : 0;
    if (!length || text[at] == ' ' || text[at] == ':' || text[at + 1] == ':')
        return;
    if (draw(seed, 2))
        text[at] = "bskgdthfvpny"[draw(seed, 12)];
    else if (length > 1 && strcspn(text + at, " ") + (at && text[at - 1] != ' ') > 1)
        memmove(text + at, text + at + 1, length - at);
}

static void random_dims(uint64_t *seed, char *text)
{
    static const int starts[] = {0, 0, 0, 1, 3};
    *text = 0;
    for (const char *letter = "bskgdthfvpn"; *letter; letter++)
        text += sprintf(text, "%c=%d@%d ", *letter,
                        *letter == 'v' || *letter == 'p' ? 1 + draw(seed, 9) : draw(seed, 12), starts[draw(seed, 5)]);
    sprintf(text, "y=8");
}

static struct hd_attrs random_attrs(uint64_t *seed)
{
    static const double table[8] = {1, 0.5};
    static const struct hd_range ranges[2] = {{-3, 5, 1}, {4, 100, 2}};
    return (struct hd_attrs){.scale = 1,
                             .eps = 1,
                             .sign = 1,
                             .from = "bst"[draw(seed, 3)],
                             .to = "bst"[draw(seed, 3)],
                             .index = (uint32_t)draw(seed, 3),
                             .parts = 1 + (uint32_t)draw(seed, 3),
                             .window = draw(seed, 3),
                             .table = table,
                             .n_table = 2 + (uint64_t)draw(seed, 7),
                             .ranges = ranges,
                             .n_ranges = (uint64_t)draw(seed, 3),
                             .flags = (uint32_t)draw(seed, 2),
                             .beta1 = draw(seed, 2) * 0.5};
}

/* Returns 1 where the device took it. */
static int try(struct h_device *d, struct h_instr *i)
{
    struct hd_error err = HD_ERROR_INIT;
    struct hd_kernel *k;
    if (h_prepare(d, i, &k, &err)) {
        ck_assert_msg(err.code < 0 && err.message[0], "a refusal without a reason");
        return 0;
    }
    int32_t rc = d->ops->launch(d->device, k, 0, &err);
    d->ops->release(d->device, k);
    ck_assert_msg(rc == HD_OK, "%s", err.message);
    return 1;
}

START_TEST(damaged_descriptors_do_no_harm)
{
    static const uint32_t dtypes[] = {HD_F32, HD_BF16, HD_F64};
    uint64_t seed = 100 + (uint64_t)_i;
    int taken = 0;
    struct h_device *fast = h_open(1, H_FAST), *plain = h_open(1, H_REFERENCE);
    for (int round = 0; round < 200; round++) {
        char in[128], out[128], dims[256];
        snprintf(in, sizeof in, "%s", valid[_i].in);
        snprintf(out, sizeof out, "%s", valid[_i].out);
        random_dims(&seed, dims);
        if (round % 4 > 1)
            damage(&seed, round % 4 == 2 ? in : out);
        struct h_case c = {"damaged", valid[_i].op, in, out, dims, random_attrs(&seed)};
        struct h_instr *i = h_make(&c, dtypes[draw(&seed, 3)], seed);
        int a = try(fast, i), b = try(plain, i);
        ck_assert_msg(a == b, "only one of fast and reference refuses %s <- %s with %s", out, in, dims);
        taken += a;
        h_free(i);
    }
    ck_assert_int_gt(taken, 0); /* or nothing was tried */
    h_close(fast);
    h_close(plain);
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
    const struct h_case c = {"step",      HD_OP_OPTIM_STEP, "f:n d: d:y",
                             "f:n f:n n", "n=5@100 y=8",    {.step = step, .settings = &factor, .index = 1}};
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

/* ---- a strategy's own op */

static int32_t scale_by(const void *settings, const struct hd_instr_desc *i, void *stream, struct hd_error *err)
{
    double factor = *(const double *)settings;
    ck_assert_ptr_null(stream);
    ck_assert_int_eq(i->in[0].start[0], 100);
    if (factor == 0)
        return hd_fail(err, HD_E_UNSUPPORTED, "a factor of 0");
    for (int64_t e = 0; e < hd_operand_count(&i->out[0]); e++)
        h_set(&i->out[0], e, factor * h_get(&i->in[0], e));
    return HD_OK;
}

static int32_t five_elements(const void *settings, const struct hd_instr_desc *i, struct hd_error *err)
{
    (void)settings;
    return i->in[0].extent[0] == 5 ? HD_OK : hd_fail(err, HD_E_INVALID, "%d elements", (int)i->in[0].extent[0]);
}

START_TEST(a_strategys_function_is_called)
{
    double factor = 3;
    const struct hd_custom_op op = {
        .struct_size = sizeof op, .name = "scale", .settings = &factor, .run = scale_by, .check = five_elements};
    const struct h_case c = {"scale", HD_OP_CUSTOM, "n", "n", "n=5@100", {0}},
                        four = {"scale", HD_OP_CUSTOM, "n", "n", "n=4@100", {0}};
    struct h_device *d = h_open(1, H_FAST);
    struct h_instr *i = h_make(&c, HD_F32, 1), *few = h_make(&four, HD_F32, 1);
    struct hd_error err = HD_ERROR_INIT;
    struct hd_kernel *k;
    i->d.custom = few->d.custom = &op;
    h_run(d, i);
    for (int e = 0; e < 5; e++)
        ck_assert_double_eq(h_get(&i->out[0], e), (float)(3 * h_get(&i->in[0], e)));
    ck_assert_int_eq(h_prepare(d, few, &k, &err), HD_E_INVALID);
    ck_assert_str_eq(err.message, "4 elements");
    factor = 0; /* what fails ends the job, with the instruction's name */
    ck_assert_int_eq(h_prepare(d, i, &k, &err), HD_OK);
    ck_assert_int_eq(d->ops->launch(d->device, k, 0, &err), HD_E_UNSUPPORTED);
    ck_assert_str_eq(err.message, "scale failed: a factor of 0");
    d->ops->release(d->device, k);
    h_free(i);
    h_free(few);
    h_close(d);
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
    TCase *t = tcase_create("device");
    tcase_set_timeout(t, 30);
    tcase_add_test(t, descriptor_is_complete);
    tcase_add_test(t, memory_is_aligned_zeroed_and_writable);
    tcase_add_test(t, every_device_op_is_supported);
    tcase_add_test(t, kernel_keeps_what_it_needs);
    tcase_add_loop_test(t, nonsense_is_refused, 0, (int)(sizeof wrong / sizeof wrong[0]));
    tcase_add_loop_test(t, damaged_descriptors_do_no_harm, 0, (int)(sizeof valid / sizeof valid[0]));
#ifdef HAVE_ONEDNN
    tcase_add_test(t, a_failed_product_of_onednn_is_an_error);
#endif
    tcase_add_test(t, operands_without_memory_are_refused);
    tcase_add_test(t, slow_kernels_are_announced_once);
    tcase_add_test(t, an_optimizers_step_is_called);
    tcase_add_test(t, a_strategys_function_is_called);
    tcase_add_test(t, peak_is_known_only_where_measured);
    return suite_run_case("device", t);
}
