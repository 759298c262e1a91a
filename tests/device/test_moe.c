/* Ops of mixtures of experts: fast kernels against the reference, gradients against central differences, and facts
 * small enough to write down. Which token lies in which slot comes from gates as a job makes them: random logits,
 * the gate, the route. */
#include "conformance/device/harness.h"
#include "tests/suite.h"
#include <check.h>
#include <math.h>
#include <stdlib.h>

/* Dropless: a slot a token; capacity: c slots an expert, fewer than tokens want. In a later shard tokens count from
 * 5. */
static const char *const meshes[] = {"b=2 s=7 e=5 h=9 f=6 c=3 v=1", "b=1 s=40 e=4 h=70 f=33 c=17 v=1",
                                     "b=3 s=6@5 e=3 h=8 f=4 c=2 v=1", "b=2 s=5 e=7 h=3 f=2 c=1 v=1",
                                     "b=1 s=3 e=2 h=600 f=530 c=3 v=1"};
enum { MESHES = 5 };

struct op {
    const char *name;
    uint32_t op;
    const char *in, *out;
    int32_t rows, gates; /* which inputs are rows and gates; -1: none */
    struct hd_attrs attrs;
    uint32_t gradient; /* of input `wrt`: operands as in test_reference.c */
    const char *grad_in;
    int32_t wrt;
};

#define LOSS                          \
    {                                 \
        .scale = 0.3, .z_scale = 0.07 \
    }

/* In dims, # is s (dropless) or c. */
static const struct op ops[] = {
    {"gate", HD_OP_GATE, "bse", "f:bse", -1, -1, {.top_k = 2}, HD_OP_GATE_GRAD, "y0 d0", 0},
    {"dispatch", HD_OP_DISPATCH, "bsh i:be#", "be#h", 1, -1, {0}, HD_OP_DISPATCH_DX, "d0 x1", 0},
    {"grouped", HD_OP_GROUPED, "be#h efh i:be#", "be#f", 2, -1, {0}, HD_OP_GROUPED, "d0 x1 x2", 0},
    {"grouped, dw", HD_OP_GROUPED, "be#h efh i:be#", "be#f", 2, -1, {0}, HD_OP_GROUPED_DW, "d0 x0 x2", 1},
    {"grouped, transposed, dw", HD_OP_GROUPED, "be#h ehf i:be#", "be#f", 2, -1, {0}, HD_OP_GROUPED_DW, "d0 x0 x2", 1},
    {"grouped, transposed", HD_OP_GROUPED, "be#h ehf i:be#", "be#f", 2, -1, {0}, HD_OP_GROUPED, "d0 x1 x2", 0},
    {"combine, dz", HD_OP_COMBINE, "be#h f:bse i:be#", "bsh", 2, 1, {0}, HD_OP_COMBINE_DZ, "d0 x1 x2", 0},
    {"combine, dg", HD_OP_COMBINE, "be#h f:bse i:be#", "bsh", 2, 1, {0}, HD_OP_COMBINE_DG, "x0 d0 x2", 1},
    {"router_loss", HD_OP_ROUTER_LOSS, "bse +:be", "f:bs", -1, -1, LOSS, HD_OP_ROUTER_LOSS_DZ, "x0 x1 d0", 0},
    {"expert_count", HD_OP_EXPERT_COUNT, "f:bse", "f:be", -1, 0, {0}, 0, NULL, 0},
    {"route", HD_OP_ROUTE, "f:bse", "i:be#", -1, 0, {0}, 0, NULL, 0},
};
#define N_OPS ((int)(sizeof ops / sizeof ops[0]))

static void with_slots(char *out, const char *dims, int dropless)
{
    strcpy(out, dims);
    for (char *p = out; *p; p++)
        if (*p == '#')
            *p = dropless ? 's' : 'c';
}

/* Gates of random logits, and the slots that follow, as a job has them. */
static struct h_instr *routed(struct h_device *d, const char *dims, int dropless, uint64_t seed)
{
    const struct h_case gate = {"gate", HD_OP_GATE, "bse", "f:bse", dims, {.top_k = 2}};
    const struct h_case route = {"route", HD_OP_ROUTE, "f:bse", dropless ? "i:bes" : "i:bec", dims, {0}};
    struct h_instr *g = h_make(&gate, HD_F64, seed), *r = h_make(&route, HD_F64, seed);
    h_run(d, g);
    h_copy(&r->in[0], &g->out[0]);
    h_run(d, r);
    h_free(g);
    return r;
}

struct made {
    char in[64], out[64];
    struct h_case c;
    struct h_instr *instr;
};

/* The forward instruction in fp64 with consistent gates and slots. */
static void make(struct made *m, struct h_device *reference, const struct op *op, const char *dims, int dropless,
                 uint64_t seed)
{
    struct h_instr *r = routed(reference, dims, dropless, seed);
    with_slots(m->in, op->in, dropless);
    with_slots(m->out, op->out, dropless);
    m->c = (struct h_case){op->name, op->op, m->in, m->out, dims, op->attrs};
    m->instr = h_make(&m->c, HD_F64, seed + 1);
    if (op->rows >= 0)
        h_copy(&m->instr->in[op->rows], &r->out[0]);
    if (op->gates >= 0)
        h_copy(&m->instr->in[op->gates], &r->in[0]);
    h_free(r);
}

/* The gradient instruction over the forward's operands; see test_reference.c. */
static struct h_instr *gradient_of(const struct op *op, const struct h_instr *f, const struct h_instr *weights)
{
    struct h_instr borrowed = {.d = f->d};
    borrowed.d.op = op->gradient;
    borrowed.d.n_in = 0;
    borrowed.d.n_out = 1;
    for (const char *p = op->grad_in; *p; p += p[2] ? 3 : 2) {
        int at = p[1] - '0';
        borrowed.in[borrowed.d.n_in++] = p[0] == 'x' ? f->in[at] : p[0] == 'y' ? f->out[at] : weights->out[at];
    }
    borrowed.out[0] = f->in[op->wrt];
    return h_as(&borrowed, HD_F64);
}

static double loss(struct h_device *d, struct h_instr *i, const struct h_instr *weights)
{
    double sum = 0;
    h_run(d, i);
    for (int64_t e = 0; e < hd_operand_count(&i->out[0]); e++)
        sum += h_get(&i->out[0], e) * h_get(&weights->out[0], e);
    return sum;
}

/* Gates of experts that were not chosen stand still: a change would not choose them. */
static int moves(const struct op *op, const struct hd_operand *x, int64_t e)
{
    return op->wrt != op->gates || h_get(x, e) > 0;
}

static void check_differences(const struct op *op, const char *dims, int dropless, int adds)
{
    struct h_device *d = h_open(1, H_REFERENCE);
    struct made f, w;
    const double step = 1e-5;
    make(&f, d, op, dims, dropless, 21);
    make(&w, d, op, dims, dropless, 33);
    h_run(d, f.instr);
    struct h_instr *grad = gradient_of(op, f.instr, w.instr), *want = h_as(grad, HD_F64);
    struct hd_operand *x = &f.instr->in[op->wrt];
    grad->d.attrs.flags = adds ? HD_ATTR_ACCUMULATE : 0;
    h_run(d, grad);
    for (int64_t e = 0; e < hd_operand_count(x); e++) {
        double at = h_get(x, e), above, below, before = adds ? h_get(&want->out[0], e) : 0;
        if (!moves(op, x, e)) {
            h_set(&want->out[0], e, h_get(&grad->out[0], e));
            continue;
        }
        h_set(x, e, at + step);
        above = loss(d, f.instr, w.instr);
        h_set(x, e, at - step);
        below = loss(d, f.instr, w.instr);
        h_set(x, e, at);
        h_set(&want->out[0], e, (above - below) / (2 * step) + before);
    }
    h_near(op->name, grad, want, 1e-8);
    h_free(grad);
    h_free(want);
    h_free(f.instr);
    h_free(w.instr);
    h_close(d);
}

START_TEST(gradients_agree_with_differences)
{
    for (int mesh = 0; mesh < 4; mesh += mesh ? 1 : 2) /* the larger ones take long */
        for (int dropless = 0; dropless < 2; dropless++)
            for (int adds = 0; adds < 2; adds++)
                if (ops[_i].gradient)
                    check_differences(&ops[_i], meshes[mesh], dropless, adds);
}
END_TEST

/* ---- fast kernels */

static const struct {
    uint32_t dtype;
    double tolerance;
} dtypes[] = {{HD_F32, 2e-6}, {HD_BF16, 6e-3}, {HD_F16, 1e-3}};

/* 1 and 3 threads give the same bits, near the reference on the same values; none declines. */
static void check_fast(const char *name, const struct h_instr *exact, uint32_t dtype, double tolerance, int adds)
{
    struct h_device *one = h_open(1, H_FAST), *three = h_open(3, H_FAST), *plain = h_open(1, H_REFERENCE);
    struct h_instr *a = h_as(exact, dtype), *b = h_as(exact, dtype), *want;
    want = h_as(a, HD_F64);
    a->d.attrs.flags = b->d.attrs.flags = want->d.attrs.flags = adds ? HD_ATTR_ACCUMULATE : 0;
    h_warnings = 0;
    h_run(one, a);
    h_run(three, b);
    h_run(plain, want);
    ck_assert_msg(h_warnings == 0, "%s: %s", name, h_last_log);
    h_near(name, a, want, tolerance);
    h_equal(name, a, b);
    h_free(a);
    h_free(b);
    h_free(want);
    h_close(one);
    h_close(three);
    h_close(plain);
}

static int fp32_only(uint32_t op) /* a look at gates, which are fp32 */
{
    return op == HD_OP_ROUTE || op == HD_OP_EXPERT_COUNT;
}

START_TEST(fast_kernels_are_near_the_reference)
{
    const struct op *op = &ops[_i];
    struct h_device *plain = h_open(1, H_REFERENCE);
    for (int mesh = 0; mesh < MESHES; mesh++)
        for (int dropless = 0; dropless < 2; dropless++)
            for (int d = 0; d < (fp32_only(op->op) ? 1 : 3); d++)
                for (int adds = 0; adds < 2; adds++) {
                    struct made f;
                    make(&f, plain, op, meshes[mesh], dropless, 5);
                    if (!(adds && op->op == HD_OP_ROUTE))
                        check_fast(op->name, f.instr, dtypes[d].dtype, dtypes[d].tolerance, adds);
                    if (op->gradient) {
                        struct made w;
                        make(&w, plain, op, meshes[mesh], dropless, 6);
                        h_run(plain, f.instr);
                        struct h_instr *grad = gradient_of(op, f.instr, w.instr);
                        check_fast(op->name, grad, dtypes[d].dtype, dtypes[d].tolerance, adds);
                        h_free(grad);
                        h_free(w.instr);
                    }
                    h_free(f.instr);
                }
    h_close(plain);
}
END_TEST

/* ---- facts */

START_TEST(gates_are_the_softmax_of_the_largest)
{
    static const struct h_case c = {"gate", HD_OP_GATE, "bse", "f:bse", "b=1 s=3 e=4 v=1", {.top_k = 2}};
    static const double z[12] = {1, 3, 2, 0, 5, 5, 5, 5, -1e4, 200, 199, -3};
    for (int kernels = H_FAST; kernels <= H_REFERENCE; kernels++) {
        struct h_device *d = h_open(1, kernels);
        struct h_instr *i = h_make(&c, HD_F32, 1);
        double e = exp(1) / (exp(1) + 1);
        const double want[12] = {0, e, 1 - e, 0, 0.5, 0.5, 0, 0, 0, e, 1 - e, 0};
        for (int n = 0; n < 12; n++)
            h_set(&i->in[0], n, z[n]);
        h_run(d, i);
        for (int n = 0; n < 12; n++)
            ck_assert_double_eq_tol(h_get(&i->out[0], n), want[n], 1e-6);
        h_free(i);
        h_close(d);
    }
}
END_TEST

/* One expert takes all: with a capacity of two the third and fourth token are dropped; dropless keeps each in its
 * place. */
START_TEST(slots_are_filled_in_order)
{
    static const double gates[12] = {0.5, 0, 0.5, 1, 0, 0, 0.25, 0.75, 0, 1, 0, 0}; /* [4 tokens, 3 experts] */
    static const int32_t capacity[6] = {11, 12, 13, 0, 11, 0},
                         dropless[12] = {11, 12, 13, 14, 0, 0, 13, 0, 11, 0, 0, 0};
    static const struct h_case cases[] = {{"route", HD_OP_ROUTE, "f:bse", "i:bec", "b=1 s=4@10 e=3 c=2 v=1", {0}},
                                          {"route", HD_OP_ROUTE, "f:bse", "i:bes", "b=1 s=4@10 e=3 v=1", {0}}};
    for (int kernels = H_FAST; kernels <= H_REFERENCE; kernels++)
        for (int c = 0; c < 2; c++) {
            struct h_device *d = h_open(1, kernels);
            struct h_instr *i = h_make(&cases[c], HD_F32, 1);
            for (int n = 0; n < 12; n++)
                h_set(&i->in[0], n, gates[n]);
            h_run(d, i);
            for (int n = 0; n < (c ? 12 : 6); n++)
                ck_assert_int_eq((int)h_get(&i->out[0], n), (c ? dropless : capacity)[n]);
            h_free(i);
            h_close(d);
        }
}
END_TEST

/* Slots without a token are never read: NaN in them does not show, and the output has zeros there. */
START_TEST(empty_slots_are_not_read)
{
    struct h_device *plain = h_open(1, H_REFERENCE);
    for (int kernels = H_FAST; kernels <= H_REFERENCE; kernels++)
        for (int which = 2; which < 8; which++) {
            struct h_device *d = h_open(1, kernels);
            struct made f;
            make(&f, plain, &ops[which], meshes[0], 0, 9);
            struct h_instr *i = h_as(f.instr, HD_F32);
            const struct hd_operand *rows = &i->in[2], *x = &i->in[0];
            for (int64_t e = 0; e < hd_operand_count(x); e++)
                if (h_get(rows, e / x->extent[3]) == 0)
                    h_set(x, e, NAN);
            h_run(d, i);
            for (int64_t e = 0; e < hd_operand_count(&i->out[0]); e++) {
                ck_assert_msg(isfinite(h_get(&i->out[0], e)), "%s read an empty slot", ops[which].name);
                if (i->d.op == HD_OP_GROUPED && h_get(rows, e / i->out[0].extent[3]) == 0)
                    ck_assert_double_eq(h_get(&i->out[0], e), 0);
            }
            h_free(i);
            h_free(f.instr);
            h_close(d);
        }
    h_close(plain);
}
END_TEST

int main(void)
{
    TCase *t = tcase_create("moe");
    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, gradients_agree_with_differences, 0, N_OPS);
    tcase_add_loop_test(t, fast_kernels_are_near_the_reference, 0, N_OPS);
    tcase_add_test(t, gates_are_the_softmax_of_the_largest);
    tcase_add_test(t, slots_are_filled_in_order);
    tcase_add_test(t, empty_slots_are_not_read);
    return suite_run_case("moe", t);
}
