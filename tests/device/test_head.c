/* The fused head: its reference against the chain of reference kernels that it stands for and against central
 * differences; its fast kernel against the reference, in one chunk and in several. */
#include "conformance/device/harness.h"
#include "tests/suite.h"
#include <check.h>
#include <math.h>
#include <stdlib.h>

#define SCALE 0.37

static const struct h_case small = {"xent_head",   HD_OP_XENT_HEAD,   "bsh vh i:bs",
                                    "f:bs bsh vh", "b=2 s=3 h=5 v=7", {.scale = SCALE}};
static const struct h_case later = {"xent_head of later entries", HD_OP_XENT_HEAD, "bsh vh i:bs", "f:bs bsh vh",
                                    "b=2 s=9 h=5 v=6@6",          {.scale = SCALE}};

/* ---- the chain */

/* An instruction whose operands are borrowed; only `made` new ones, all zero, are its own. */
static struct h_instr *borrow(uint32_t op, const struct hd_operand *in, uint32_t n_in, const struct hd_operand *out,
                              uint32_t n_out)
{
    struct h_instr *i = calloc(1, sizeof *i);
    i->d = (struct hd_instr_desc){
        .struct_size = sizeof i->d, .op = op, .n_in = n_in, .n_out = n_out, .in = i->in, .out = i->out};
    i->d.attrs.struct_size = sizeof i->d.attrs;
    if (n_in)
        memcpy(i->in, in, n_in * sizeof *in);
    memcpy(i->out, out, n_out * sizeof *out);
    return i;
}

static void step(struct h_device *d, uint32_t op, struct hd_attrs attrs, const struct hd_operand *in, uint32_t n_in,
                 const struct hd_operand *out, uint32_t n_out)
{
    struct h_instr *i = borrow(op, in, n_in, out, n_out);
    i->d.attrs = attrs;
    i->d.attrs.struct_size = sizeof attrs;
    h_run(d, i);
    free(i);
}

static struct hd_operand made(const struct hd_operand *like, uint32_t ndim, double *data)
{
    struct hd_operand o = *like;
    o.ndim = ndim;
    o.dtype = HD_F64;
    o.data = data;
    return o;
}

#define OPERANDS(...) \
    (struct hd_operand[]){__VA_ARGS__}, sizeof((struct hd_operand[]){__VA_ARGS__}) / sizeof(struct hd_operand)

/* What stands in a program without the fused op. `i`: its operands in fp64. */
static void chain(struct h_device *d, struct h_instr *i)
{
    double *memory = calloc(1 << 14, sizeof *memory), *at = memory;
    struct hd_operand x = i->in[0], w = i->in[1], labels = i->in[2], row[6];
    struct hd_attrs none = {0}, adds = {.flags = i->d.attrs.flags}, spread = {.scale = i->d.attrs.scale};
    int64_t rows = hd_operand_count(&labels);
    struct hd_operand z = made(&x, x.ndim, at), dz;
    z.dim[2] = 'v';
    z.extent[2] = w.extent[0];
    z.start[2] = w.start[0];
    at += hd_operand_count(&z);
    dz = made(&z, z.ndim, at);
    at += hd_operand_count(&z);
    for (int k = 0; k < 6; k++, at += rows)
        row[k] = made(&labels, 2, at);
    enum { M, L, C, DN, DL, DC };
    step(d, HD_OP_EINSUM, none, OPERANDS(x, w), OPERANDS(z));
    step(d, HD_OP_ROWMAX, none, OPERANDS(z), OPERANDS(row[M]));
    step(d, HD_OP_XENT_LOCAL, none, OPERANDS(z, row[M], labels), OPERANDS(row[L], row[C]));
    step(d, HD_OP_NLL, none, OPERANDS(row[L], row[M], row[C]), OPERANDS(i->out[0]));
    step(d, HD_OP_SPREAD, spread, NULL, 0, OPERANDS(row[DN]));
    step(d, HD_OP_NLL_GRAD, none, OPERANDS(row[L], row[DN]), OPERANDS(row[DL], row[DC]));
    step(d, HD_OP_XENT_GRAD, none, OPERANDS(z, row[M], labels, row[DL], row[DC]), OPERANDS(dz));
    step(d, HD_OP_EINSUM, none, OPERANDS(dz, w), OPERANDS(i->out[1]));
    step(d, HD_OP_EINSUM, adds, OPERANDS(dz, x), OPERANDS(i->out[2]));
    free(memory);
}

/* Only dw is added to: the chain's other instructions write. */
START_TEST(reference_is_the_chain)
{
    struct h_case c = _i & 1 ? later : small;
    c.attrs.flags = _i & 2 ? HD_ATTR_ACCUMULATE : 0;
    struct h_device *d = h_open(1, H_REFERENCE);
    struct h_instr *a = h_make(&c, HD_F64, 4), *b = h_as(a, HD_F64);
    h_run(d, a);
    chain(d, b);
    h_near(c.name, a, b, 1e-13);
    for (int64_t e = 0; e < hd_operand_count(&a->out[0]); e++)
        ck_assert_double_gt(fabs(h_get(&a->out[0], e)), 0);
    h_free(a);
    h_free(b);
    h_close(d);
}
END_TEST

/* ---- central differences */

static double loss(struct h_device *d, struct h_instr *i)
{
    double sum = 0;
    h_run(d, i);
    for (int64_t e = 0; e < hd_operand_count(&i->out[0]); e++)
        sum += SCALE * h_get(&i->out[0], e);
    return sum;
}

START_TEST(reference_agrees_with_differences)
{
    const double width = 1e-5;
    struct h_device *d = h_open(1, H_REFERENCE);
    struct h_instr *i = h_make(_i ? &later : &small, HD_F64, 9), *want = h_as(i, HD_F64);
    h_run(d, i);
    h_copy(&want->out[0], &i->out[0]);
    for (int side = 0; side < 2; side++) /* x and w */
        for (int64_t e = 0; e < hd_operand_count(&i->in[side]); e++) {
            double at = h_get(&i->in[side], e);
            h_set(&i->in[side], e, at + width);
            double above = loss(d, i);
            h_set(&i->in[side], e, at - width);
            double below = loss(d, i);
            h_set(&i->in[side], e, at);
            h_set(&want->out[1 + side], e, (above - below) / (2 * width));
        }
    h_run(d, i);
    h_near(small.name, i, want, 1e-8);
    h_free(i);
    h_free(want);
    h_close(d);
}
END_TEST

/* ---- fast */

static const struct {
    uint32_t dtype;
    double tolerance;
} dtypes[] = {{HD_F32, 1e-5}, {HD_BF16, 1e-2}, {HD_F16, 2e-3}};

/* Rows below, at and above 64, the smallest chunk; then one, two and many chunks with a short last one. */
static const struct {
    const char *dims;
    const char *out;
} chunked[] = {
    {"b=3 s=21 h=17 v=50", "f:bs bsh f:vh"},   {"b=4 s=16 h=16 v=32", "f:bs bsh vh"},
    {"b=5 s=13 h=9 v=33", "f:bs f:bsh f:vh"},  {"b=1 s=150 h=33 v=77@70", "f:bs bsh f:vh"},
    {"b=2 s=150 h=24 v=130", "f:bs bsh f:vh"}, {"b=1 s=70 h=8 v=2099", "f:bs bsh f:vh"},
};

static void chunked_case(int which, uint32_t flags, uint32_t dtype, double tolerance)
{
    struct h_case c = {chunked[which].dims, HD_OP_XENT_HEAD,     "bsh vh i:bs",
                       chunked[which].out,  chunked[which].dims, {.scale = 0.02, .flags = flags}};
    struct h_device *one = h_open_with(1, H_FAST, "logits", 0), *three = h_open_with(3, H_FAST, "logits", 0);
    struct h_device *plain = h_open(1, H_REFERENCE);
    struct h_instr *a = h_make(&c, dtype, 3), *b = h_make(&c, dtype, 3), *want = h_as(a, HD_F64);
    h_warnings = 0;
    h_run(one, a);
    h_run(three, b);
    h_run(plain, want);
    ck_assert_msg(h_warnings == 0, "%s: %s", c.name, h_last_log);
    h_near(c.name, a, want, tolerance);
    h_equal(c.name, a, b);
    h_free(a);
    h_free(b);
    h_free(want);
    h_close(one);
    h_close(three);
    h_close(plain);
}

START_TEST(chunks_are_near_the_reference)
{
    for (int d = 0; d < 3; d++)
        for (uint32_t flags = 0; flags <= HD_ATTR_ACCUMULATE; flags += HD_ATTR_ACCUMULATE)
            chunked_case(_i, flags, dtypes[d].dtype, dtypes[d].tolerance);
}
END_TEST

/* One output: the same loss to the bit, on any kernels, whatever the chunks. */
START_TEST(the_loss_alone)
{
    for (int kernels = H_FAST; kernels <= H_REFERENCE; kernels++)
        for (int d = 0; d < 3; d++) {
            struct h_case c = {chunked[_i].dims, HD_OP_XENT_HEAD,  "bsh vh i:bs",
                               "f:bs bsh vh",    chunked[_i].dims, {.scale = 0.02}};
            struct h_device *device = h_open_with(2, kernels, "logits", 0);
            struct h_instr *all = h_make(&c, dtypes[d].dtype, 3), *loss;
            c.out = "f:bs";
            loss = h_make(&c, dtypes[d].dtype, 3);
            h_run(device, all);
            h_run(device, loss);
            for (int64_t row = 0; row < hd_operand_count(&loss->out[0]); row++) {
                ck_assert_double_eq(h_get(&loss->out[0], row), h_get(&all->out[0], row));
                ck_assert_double_gt(h_get(&loss->out[0], row), 0);
            }
            h_free(all);
            h_free(loss);
            h_close(device);
        }
}
END_TEST

#ifdef HAVE_ONEDNN
START_TEST(onednn_makes_the_products_too)
{
    struct h_case c = {"onednn",        HD_OP_XENT_HEAD,       "bsh vh i:bs",
                       "f:bs bsh f:vh", "b=2 s=40 h=24 v=130", {.scale = 0.02}};
    struct h_device *d = h_open_with(1, H_FAST, "products", 1);
    struct h_instr *a = h_make(&c, HD_F32, 3);
    h_check(d, a, h_as(a, HD_F64), 1e-5);
    h_close(d);
}
END_TEST
#endif

/* The loss of one row, and its dx, are no number; other rows are. All of dw is lost. */
START_TEST(not_a_number_is_kept)
{
    static const struct h_case c = {"nan",           HD_OP_XENT_HEAD,     "bsh vh i:bs",
                                    "f:bs bsh f:vh", "b=1 s=70 h=9 v=20", {.scale = 1}};
    for (int kernels = H_FAST; kernels <= H_REFERENCE; kernels++) {
        struct h_device *d = h_open_with(1, kernels, "logits", 0);
        struct h_instr *i = h_make(&c, HD_F32, 3);
        h_set(&i->in[0], 66 * 9 + 4, NAN);
        h_run(d, i);
        for (int64_t row = 0; row < 70; row++) {
            ck_assert_int_eq(isnan(h_get(&i->out[0], row)) != 0, row == 66);
            ck_assert_int_eq(isnan(h_get(&i->out[1], row * 9)) != 0, row == 66);
        }
        ck_assert(isnan(h_get(&i->out[2], 0)));
        h_free(i);
        h_close(d);
    }
}
END_TEST

/* Logits that overflow to -Inf have no share, even where they are all that a thread sees first. */
START_TEST(an_infinite_logit_below_counts_for_nothing)
{
    static const struct {
        uint32_t dtype;
        double large; /* its square overflows */
    } of[] = {{HD_F32, 1e38}, {HD_F16, 60000}};
    static const struct h_case c = {"-inf",          HD_OP_XENT_HEAD,    "bsh vh i:bs",
                                    "f:bs bsh f:vh", "b=1 s=3 h=8 v=40", {.scale = 1}};
    for (int kernels = H_FAST; kernels <= H_REFERENCE; kernels++)
        for (size_t n = 0; n < sizeof of / sizeof of[0]; n++) {
            struct h_device *d = h_open(1, kernels);
            struct h_instr *i = h_make(&c, of[n].dtype, 3);
            for (int64_t e = 0; e < hd_operand_count(&i->in[0]); e++)
                h_set(&i->in[0], e, e % 8 ? 0 : of[n].large);
            for (int64_t e = 0; e < hd_operand_count(&i->in[1]); e++)
                h_set(&i->in[1], e, e % 8 || e / 8 >= 24 ? 0 : -of[n].large); /* 24 of 40 entries */
            for (int64_t row = 0; row < 3; row++)
                h_set(&i->in[2], row, (double)(30 + row));
            h_run(d, i);
            for (int64_t row = 0; row < 3; row++)
                ck_assert_double_eq_tol(h_get(&i->out[0], row), log(16), 1e-3);
            for (int64_t e = 0; e < hd_operand_count(&i->out[1]); e++)
                ck_assert(isfinite(h_get(&i->out[1], e)));
            h_free(i);
            h_close(d);
        }
}
END_TEST

START_TEST(operands_that_do_not_fit_are_refused)
{
    static const struct {
        const char *in, *out, *message;
    } wrong[] = {
        {"bsh hv i:bs", "f:bs bsh vh", "wrong: xent_head wants x [.., h] and w [v, h] with at least one row"},
        {"bsh vh bs", "f:bs bsh vh", "wrong: labels must be int32"},
        {"bsh vh i:b", "f:bs bsh vh", "wrong: labels has 2 elements, the others ask for 6"},
        {"bsh vh i:bs", "f:b bsh vh", "wrong: the loss has 2 elements, the others ask for 6"},
        {"bsh vh i:bs", "f:bs bsv vh", "wrong: dx has 42 elements, the others ask for 30"},
        {"bsh vh i:bs", "f:bs bsh", "wrong: xent_head gives the loss alone, or with dx and dw"},
        {"bsh vh i:bs", "f:bs bsh v", "wrong: dw has 7 elements, the others ask for 35"},
    };
    struct h_device *d = h_open(1, H_FAST);
    for (size_t n = 0; n < sizeof wrong / sizeof wrong[0]; n++) {
        struct h_case c = {"wrong", HD_OP_XENT_HEAD, wrong[n].in, wrong[n].out, "b=2 s=3 h=5 v=7", {.scale = 1}};
        struct h_instr *i = h_make(&c, HD_F32, 3);
        struct hd_error err = HD_ERROR_INIT;
        struct hd_kernel *k;
        ck_assert_int_eq(h_prepare(d, i, &k, &err), HD_E_INVALID);
        ck_assert_str_eq(err.message, wrong[n].message);
        h_free(i);
    }
    h_close(d);
}
END_TEST

int main(void)
{
    TCase *t = tcase_create("head");
    tcase_set_timeout(t, 30);
    tcase_add_loop_test(t, reference_is_the_chain, 0, 4);
    tcase_add_loop_test(t, reference_agrees_with_differences, 0, 2);
    tcase_add_loop_test(t, chunks_are_near_the_reference, 0, (int)(sizeof chunked / sizeof chunked[0]));
    tcase_add_loop_test(t, the_loss_alone, 0, (int)(sizeof chunked / sizeof chunked[0]));
#ifdef HAVE_ONEDNN
    if (!h_has_memory())
        tcase_add_test(t, onednn_makes_the_products_too);
#endif
    tcase_add_test(t, not_a_number_is_kept);
    tcase_add_test(t, an_infinite_logit_below_counts_for_nothing);
    if (!h_has_memory()) /* what device cpu says */
        tcase_add_test(t, operands_that_do_not_fit_are_refused);
    return suite_run_case("device head", t);
}
