/* cuDNN's attention on the emulated device, by a cuDNN of our own (cudnn/library.cc) that computes graphs as they
 * are written: near the reference, used only where verification passed, never for what it is not for; and why it
 * could not be opened. On a GPU HEDDLE_TEST_CUDNN names the real one: tests/gpu/run. What needs faults is left out
 * there. */
#include "conformance/device/harness.h"
#include "plugins/device-cuda/attention/cudnn_attention.h"
#include "tests/suite.h"
#include <check.h>
#include <stdarg.h>
#include <stdlib.h>

#define FORWARD HD_OP_ATTENTION, "bskgd btkd btkd", "bskgd f:bskg"
#define BACKWARD HD_OP_ATTENTION_GRAD, "bskgd btkd btkd bskgd f:bskg bskgd", "bskgd btkd btkd"

/* The last ones take too long without a GPU. */
static const struct {
    const char *name, *dims;
    uint32_t dtype;
} shapes[] = {
    {"one head", "b=1 s=21 t=21 k=1 g=1 d=8", HD_BF16},
    {"heads and sequences", "b=2 s=17 t=17 k=3 g=1 d=16", HD_BF16},
    {"groups", "b=2 s=19 t=19 k=2 g=3 d=24", HD_BF16},
    {"fp16", "b=1 s=33 t=33 k=2 g=2 d=64", HD_F16},
    {"head size 128", "b=1 s=12 t=12 k=1 g=2 d=128", HD_BF16},
    {"a whole one", "b=2 s=512 t=512 k=2 g=4 d=64", HD_BF16},
    {"no whole tile", "b=2 s=300 t=300 k=3 g=1 d=96", HD_F16},
};
enum { SHAPES = sizeof shapes / sizeof shapes[0], LARGE = 2, FAULTS = 4 };

static const char *library(void)
{
    const char *real = getenv("HEDDLE_TEST_CUDNN");
    return real ? real : getenv("HEDDLE_TEST_FAKE_CUDNN");
}

/* ---- a device with two options, whose words are kept */

static char words[8192];
static int warnings;

__attribute__((format(printf, 3, 4))) static void keep(uint32_t level, const char *component, const char *format, ...)
{
    size_t n = strlen(words);
    va_list args;
    (void)component;
    warnings += level <= HD_LOG_WARN;
    if (level > HD_LOG_INFO || n + 1 >= sizeof words)
        return;
    va_start(args, format);
    vsnprintf(words + n, sizeof words - n, format, args);
    va_end(args);
}

static void *zeroed(size_t bytes)
{
    return calloc(1, bytes ? bytes : 1);
}

static const struct hd_host host = {
    .struct_size = sizeof host, .abi_minor = HD_ABI_MINOR, .log = keep, .alloc = zeroed, .free = free};

static void set(struct h_device *d, const char *name, const void *value, size_t bytes)
{
    const struct hd_component *c = h_component();
    for (size_t i = 0; i < c->n_options; i++)
        if (!strcmp(c->options[i].name, name)) {
            memcpy(d->settings + c->options[i].offset, value, bytes);
            return;
        }
    ck_abort_msg("no option %s", name);
}

static int32_t open_at(struct h_device *d, int32_t attention, const char *library, struct hd_error *err)
{
    struct hd_device_place place = {.struct_size = sizeof place, .local_ranks = 1};
    memset(d, 0, sizeof *d);
    ck_assert_uint_le(h_component()->settings_size, sizeof d->settings);
    set(d, "attention", &attention, sizeof attention);
    set(d, "cudnn_library", &library, sizeof library);
    d->ops = h_component()->ops;
    words[0] = 0;
    warnings = 0;
    return d->ops->open(&host, d->settings, &place, &d->device, err);
}

static void open_with(struct h_device *d, int32_t attention)
{
    struct hd_error err = HD_ERROR_INIT;
    ck_assert_msg(open_at(d, attention, library(), &err) == HD_OK, "%s", err.message);
}

static int said(const char *what)
{
    return strstr(words, what) != NULL;
}

/* ---- instructions: a gradient has the o and lse of the reference's forward */

static const struct hd_attrs attrs = {.scale = 0.3};

static struct h_instr *made(const char *dims, uint32_t dtype, int back)
{
    struct h_case f = {"forward", FORWARD, dims, attrs}, b = {"backward", BACKWARD, dims, attrs};
    struct h_instr *forward = h_make(&f, dtype, 5), *i;
    if (!back)
        return forward;
    struct h_device *plain = h_open(1, H_REFERENCE);
    i = h_make(&b, dtype, 6);
    for (int n = 0; n < 3; n++)
        h_copy(&forward->in[n], &i->in[n]);
    h_run(plain, forward);
    h_copy(&i->in[3], &forward->out[0]);
    h_copy(&i->in[4], &forward->out[1]);
    h_free(forward);
    h_close(plain);
    return i;
}

/* Runs it and holds it against the reference in fp64. */
static void check_run(struct h_device *d, struct h_instr *i)
{
    struct h_device *plain = h_open(1, H_REFERENCE);
    struct h_instr *want = h_as(i, HD_F64);
    h_run(d, i);
    h_run(plain, want);
    h_near(i->d.label, i, want, i->in[0].dtype == HD_BF16 ? 1e-2 : 2e-3);
    h_free(want);
    h_free(i);
    h_close(plain);
}

/* Forward and backward, of a cuDNN with a fault or NULL. */
static void check_with(const char *fault, int32_t attention, int shape, const char *says, int warned)
{
    struct h_device d;
    if (fault)
        setenv("FAKE_CUDNN", fault, 1);
    for (int back = 0; back < 2; back++) {
        open_with(&d, attention);
        check_run(&d, made(shapes[shape].dims, shapes[shape].dtype, back));
        ck_assert_msg(said(says), "%s", words);
        ck_assert_msg(warnings == warned, "%d warnings: %s", warnings, words);
        d.ops->close(d.device);
    }
}

START_TEST(its_graphs_are_attention)
{
    check_with(NULL, CU_ATTENTION_CUDNN, _i, "cuDNN's is used", 0);
}
END_TEST

/* A shape is tried once, and both of its instructions run on what scratch has become meanwhile. */
START_TEST(a_shape_is_tried_once)
{
    struct h_device d;
    open_with(&d, CU_ATTENTION_CUDNN);
    check_run(&d, made(shapes[2].dims, HD_BF16, 0));
    words[0] = 0;
    check_run(&d, made(shapes[2].dims, HD_BF16, 0));
    ck_assert_str_eq(words, "");
    d.ops->close(d.device);
}
END_TEST

START_TEST(scratch_may_move_after_prepare)
{
    struct hd_error err = HD_ERROR_INIT;
    struct h_device d;
    struct h_instr *i = made(shapes[1].dims, HD_BF16, 1), *more = made("b=4 s=40 t=40 k=4 g=2 d=64", HD_BF16, 1);
    struct hd_kernel *k, *l;
    open_with(&d, CU_ATTENTION_CUDNN);
    ck_assert_int_eq(h_prepare(&d, i, &k, &err), HD_OK);
    ck_assert_int_eq(h_prepare(&d, more, &l, &err), HD_OK);
    d.ops->release(d.device, l);
    d.ops->release(d.device, k);
    check_run(&d, i);
    h_free(more);
    d.ops->close(d.device);
}
END_TEST

/* No kernel at all, one at the second proposal, a wrong row, a result that is not written. */
START_TEST(faults_are_noticed)
{
    static const struct {
        const char *fault, *says;
        int warned;
    } faults[FAULTS] = {
        {"none", "attention is heddle's own: cuDNN has no kernel for it", 0},
        {"second", "cuDNN's is used", 0},
        {"wrong", "cuDNN's is wrong, and not used", 1},
        {"unwritten", "cuDNN's is wrong, and not used", 1},
    };
    check_with(faults[_i].fault, CU_ATTENTION_CUDNN, 2, faults[_i].says, faults[_i].warned);
}
END_TEST

START_TEST(the_clock_decides)
{
    check_with(NULL, CU_ATTENTION_AUTO, 2, " ms, ours ", 0);
}
END_TEST

START_TEST(ours_asks_for_no_library)
{
    struct hd_error err = HD_ERROR_INIT;
    struct h_device d;
    ck_assert_int_eq(open_at(&d, CU_ATTENTION_OWN, "/nowhere/libcudnn.so.9", &err), HD_OK);
    check_run(&d, made(shapes[0].dims, HD_BF16, 0));
    ck_assert_str_eq(words, "");
    d.ops->close(d.device);
}
END_TEST

/* ---- what it is not for */

START_TEST(others_are_ours_without_autotuning)
{
    static const struct {
        struct h_case c;
        uint32_t dtype, flags;
    } others[] = {
        {{"a window", FORWARD, "b=1 s=9 t=9 k=1 g=1 d=8", {.scale = 0.3, .window = 4}}, HD_BF16, 0},
        {{"queries after their keys", FORWARD, "b=1 s=4@5 t=9 k=1 g=1 d=8", {.scale = 0.3}}, HD_BF16, 0},
        {{"fp32", FORWARD, "b=1 s=9 t=9 k=1 g=1 d=8", {.scale = 0.3}}, HD_F32, 0},
        {{"a head size", FORWARD, "b=1 s=9 t=9 k=1 g=1 d=12", {.scale = 0.3}}, HD_BF16, 0},
        {{"outputs in fp32",
          HD_OP_ATTENTION,
          "bskgd btkd btkd",
          "f:bskgd f:bskg",
          "b=1 s=9 t=9 k=1 g=1 d=8",
          {.scale = 0.3}},
         HD_BF16,
         0},
        {{"a sum", FORWARD, "b=1 s=9 t=9 k=1 g=1 d=8", {.scale = 0.3, .flags = HD_ATTR_ACCUMULATE}}, HD_BF16, 0},
        {{"exact", FORWARD, "b=1 s=9 t=9 k=1 g=1 d=8", {.scale = 0.3}}, HD_BF16, HD_INSTR_EXACT},
    };
    struct h_device d;
    open_with(&d, CU_ATTENTION_CUDNN);
    for (size_t n = 0; n < sizeof others / sizeof others[0]; n++) {
        struct h_instr *i = h_make(&others[n].c, others[n].dtype, 3);
        struct hd_error err = HD_ERROR_INIT;
        struct hd_kernel *k;
        i->d.flags = others[n].flags;
        ck_assert_msg(h_prepare(&d, i, &k, &err) == HD_OK, "%s: %s", others[n].c.name, err.message);
        ck_assert_msg(!said("cuDNN's is"), "%s: %s", others[n].c.name, words);
        d.ops->release(d.device, k);
        h_free(i);
    }
    d.ops->close(d.device);
}
END_TEST

/* ---- opening */

START_TEST(a_missing_library_is_said)
{
    struct hd_error err = HD_ERROR_INIT;
    struct h_device d;
    ck_assert_int_eq(open_at(&d, CU_ATTENTION_CUDNN, "/nowhere/libcudnn.so.9", &err), HD_E_NOTFOUND);
    ck_assert_msg(strstr(err.message, "attention: cudnn: cuDNN was not found: /nowhere/libcudnn.so.9") != NULL, "%s",
                  err.message);
    ck_assert_ptr_nonnull(strstr(err.message, "device.cudnn_library=PATH"));
    ck_assert_int_eq(open_at(&d, CU_ATTENTION_AUTO, "/nowhere/libcudnn.so.9", &err), HD_OK);
    check_run(&d, made(shapes[0].dims, HD_BF16, 1));
    ck_assert_msg(said("attention without cuDNN: cuDNN was not found"), "%s", words);
    d.ops->close(d.device);
}
END_TEST

START_TEST(another_version_is_refused)
{
    static const char *const versions[] = {"90999", "8907", "100000"};
    for (size_t n = 0; n < sizeof versions / sizeof versions[0]; n++) {
        struct hd_error err = HD_ERROR_INIT;
        struct h_device d;
        setenv("FAKE_CUDNN_VERSION", versions[n], 1);
        ck_assert_int_eq(open_at(&d, CU_ATTENTION_CUDNN, library(), &err), HD_E_UNSUPPORTED);
        ck_assert_msg(strstr(err.message, "a 9 from 9.10 on is needed") != NULL, "%s", err.message);
    }
}
END_TEST

int main(void)
{
    TCase *t = tcase_create("cudnn");
    int real = getenv("HEDDLE_TEST_CUDNN") != NULL;
    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, its_graphs_are_attention, 0, real ? SHAPES : SHAPES - LARGE);
    tcase_add_test(t, a_shape_is_tried_once);
    tcase_add_test(t, scratch_may_move_after_prepare);
    tcase_add_test(t, the_clock_decides);
    tcase_add_test(t, ours_asks_for_no_library);
    tcase_add_test(t, others_are_ours_without_autotuning);
    tcase_add_test(t, a_missing_library_is_said);
    if (!real) {
        tcase_add_loop_test(t, faults_are_noticed, 0, FAULTS);
        tcase_add_test(t, another_version_is_refused);
    }
    return suite_run_case("cudnn", t);
}
