/* The reference kernels' gradients against central differences in fp64.
 *
 * L = sum of r y over the forward's outputs, with random weights r. For each input x that a gradient kernel has an
 * answer for, dL/dx is measured element by element and compared with what the kernel says when dy is r. */
#include "conformance/device/harness.h"
#include "tests/suite.h"
#include <check.h>
#include <math.h>
#include <stdlib.h>

struct gradient {
    struct h_case forward;
    uint32_t op;
    const char *in;  /* x<i>, y<i>: the forward's inputs and outputs; d<i>: the weights of output i */
    const char *wrt; /* which forward input each output of the gradient kernel belongs to: "02" */
    struct hd_attrs attrs;
};

static const double inverse_frequencies[] = {1, 0.4, 0.1};

#define NORM        \
    {               \
        .eps = 1e-2 \
    }
#define TABLE .table = inverse_frequencies, .n_table = 3

static const struct gradient gradients[] = {
    {{"einsum, da", HD_OP_EINSUM, "bsh vh", "bsv", "b=2 s=3 h=5 v=4", {0}}, HD_OP_EINSUM, "d0 x1", "0", {0}},
    {{"einsum, db", HD_OP_EINSUM, "bsh vh", "bsv", "b=2 s=3 h=5 v=4", {0}}, HD_OP_EINSUM, "d0 x0", "1", {0}},
    {{"einsum of heads, da", HD_OP_EINSUM, "bskgd kgdh", "bsh", "b=2 s=2 k=2 g=2 d=3 h=4", {0}},
     HD_OP_EINSUM,
     "d0 x1",
     "0",
     {0}},
    {{"einsum with a batch, db", HD_OP_EINSUM, "bsk bkt", "tbs", "b=2 s=3 k=4 t=2", {0}},
     HD_OP_EINSUM,
     "x0 d0",
     "1",
     {0}},
    {{"bias", HD_OP_BIAS, "bskd kd", "bskd", "b=2 s=3 k=2 d=2", {0}}, HD_OP_BIAS_DW, "d0", "1", {0}},
    {{"bias of a middle dim", HD_OP_BIAS, "bskd s", "bskd", "b=2 s=3 k=2 d=2", {0}}, HD_OP_BIAS_DW, "d0", "1", {0}},
    {{"rmsnorm", HD_OP_RMSNORM, "bsh h", "bsh", "b=2 s=2 h=5", NORM}, HD_OP_RMSNORM_DX, "x0 x1 d0", "0", NORM},
    {{"rmsnorm, dw", HD_OP_RMSNORM, "bsh h", "bsh", "b=2 s=2 h=5", NORM}, HD_OP_RMSNORM_DW, "x0 d0", "1", NORM},
    {{"layernorm", HD_OP_LAYERNORM, "bsh h h", "bsh", "b=2 s=2 h=5", NORM}, HD_OP_LAYERNORM_DX, "x0 x1 d0", "0", NORM},
    {{"layernorm, dw dc", HD_OP_LAYERNORM, "bsh h h", "bsh", "b=2 s=2 h=5", NORM},
     HD_OP_LAYERNORM_DW,
     "x0 d0",
     "12",
     NORM},
    {{"add_rmsnorm, first term", HD_OP_ADD_RMSNORM, "bsh bsh h", "bsh bsh", "b=2 s=2 h=5", NORM},
     HD_OP_RMSNORM_DX_ADD,
     "d0 y0 x2 d1",
     "0",
     NORM},
    {{"add_layernorm, second term", HD_OP_ADD_LAYERNORM, "bsh bsh h h", "bsh bsh", "b=2 s=2 h=5", NORM},
     HD_OP_LAYERNORM_DX_ADD,
     "d0 y0 x2 d1",
     "1",
     NORM},
    {{"add_rmsnorm, both", HD_OP_ADD_RMSNORM, "bsh bsh h", "bsh bsh", "b=2 s=2 h=5", NORM},
     HD_OP_RMSNORM_GRAD_ADD,
     "d0 y0 x2 d1",
     "02",
     NORM},
    {{"add_layernorm, all", HD_OP_ADD_LAYERNORM, "bsh bsh h h", "bsh bsh", "b=2 s=2 h=5", NORM},
     HD_OP_LAYERNORM_GRAD_ADD,
     "d0 y0 x2 d1",
     "023",
     NORM},
    {{"rope", HD_OP_ROPE, "bskd", "bskd", "b=2 s=4@3 k=2 d=6", {.sign = 1, .scale = 0.8, TABLE}},
     HD_OP_ROPE,
     "d0",
     "0",
     {.sign = -1, .scale = 0.8, TABLE}},
    {{"attention", HD_OP_ATTENTION, "bskgd bskd bskd", "bskgd f:bskg", "b=2 s=5 k=2 g=2 d=3", {.scale = 0.6}},
     HD_OP_ATTENTION_GRAD,
     "x0 x1 x2 y0 y1 d0",
     "012",
     {.scale = 0.6}},
    {{"attention with a window",
      HD_OP_ATTENTION,
      "bskgd bskd bskd",
      "bskgd f:bskg",
      "b=1 s=6 k=1 g=3 d=3",
      {.scale = 0.6, .window = 2}},
     HD_OP_ATTENTION_GRAD,
     "x0 x1 x2 y0 y1 d0",
     "012",
     {.scale = 0.6, .window = 2}},
    {{"attention of a later shard",
      HD_OP_ATTENTION,
      "bskgd btkd btkd",
      "bskgd f:bskg",
      "b=2 s=3@3 t=6 k=2 g=1 d=2",
      {.scale = 0.6}},
     HD_OP_ATTENTION_GRAD,
     "x0 x1 x2 y0 y1 d0",
     "012",
     {.scale = 0.6}},
    {{"attention to keys that begin later",
      HD_OP_ATTENTION,
      "bskgd btkd btkd",
      "bskgd f:bskg",
      "b=1 s=5 t=3@2 k=1 g=1 d=2",
      {.scale = 0.6}},
     HD_OP_ATTENTION_GRAD,
     "x0 x1 x2 y0 y1 d0",
     "012",
     {.scale = 0.6}},
    {{"swiglu", HD_OP_SWIGLU, "bf bf", "bf", "b=3 f=5", {0}}, HD_OP_SWIGLU_GRAD, "x0 x1 d0", "01", {0}},
    {{"gelu", HD_OP_GELU, "bf", "bf", "b=3 f=5", {0}}, HD_OP_GELU_GRAD, "x0 d0", "0", {0}},
    {{"rope, partial and interleaved",
      HD_OP_ROPE,
      "bskd",
      "bskd",
      "b=2 s=4@3 k=2 d=10",
      {.sign = 1, .scale = 0.8, .flags = HD_ATTR_INTERLEAVED, TABLE}},
     HD_OP_ROPE,
     "d0",
     "0",
     {.sign = -1, .scale = 0.8, .flags = HD_ATTR_INTERLEAVED, TABLE}},
    {{"attention without a mask, capped",
      HD_OP_ATTENTION,
      "bskgd bskd bskd",
      "bskgd f:bskg",
      "b=2 s=5 k=2 g=2 d=3",
      {.scale = 0.6, .flags = HD_ATTR_NOT_CAUSAL, .clip = 0.7}},
     HD_OP_ATTENTION_GRAD,
     "x0 x1 x2 y0 y1 d0",
     "012",
     {.scale = 0.6, .flags = HD_ATTR_NOT_CAUSAL, .clip = 0.7}},
    {{"attention with a window on both sides",
      HD_OP_ATTENTION,
      "bskgd bskd bskd",
      "bskgd f:bskg",
      "b=1 s=6 k=1 g=3 d=3",
      {.scale = 0.6, .flags = HD_ATTR_NOT_CAUSAL, .window = 2}},
     HD_OP_ATTENTION_GRAD,
     "x0 x1 x2 y0 y1 d0",
     "012",
     {.scale = 0.6, .flags = HD_ATTR_NOT_CAUSAL, .window = 2}},
    {{"attention with a prefix",
      HD_OP_ATTENTION,
      "bskgd bskd bskd",
      "bskgd f:bskg",
      "b=1 s=6 k=1 g=3 d=3",
      {.scale = 0.6, .top_k = 3}},
     HD_OP_ATTENTION_GRAD,
     "x0 x1 x2 y0 y1 d0",
     "012",
     {.scale = 0.6, .top_k = 3}},
    {{"gelu_erf", HD_OP_GELU_ERF, "bf", "bf", "b=3 f=5", {0}}, HD_OP_GELU_ERF_GRAD, "x0 d0", "0", {0}},
    {{"relu2", HD_OP_RELU2, "bf", "bf", "b=3 f=5", {0}}, HD_OP_RELU2_GRAD, "x0 d0", "0", {0}},
    {{"softcap", HD_OP_SOFTCAP, "bf", "bf", "b=3 f=5", {.scale = 0.9}},
     HD_OP_SOFTCAP_GRAD,
     "y0 d0",
     "0",
     {.scale = 0.9}},
    {{"scale", HD_OP_SCALE, "bf", "bf", "b=3 f=5", {.scale = -1.7}}, HD_OP_SCALE, "d0", "0", {.scale = -1.7}},
    {{"embed", HD_OP_EMBED, "i:bs vh", "bsh", "b=2 s=5 v=6 h=3", {0}}, HD_OP_EMBED_DW, "x0 d0", "1", {0}},
    {{"embed of a shard", HD_OP_EMBED, "i:bs vh", "bsh", "b=2 s=9 v=6@6 h=3", {0}}, HD_OP_EMBED_DW, "x0 d0", "1", {0}},
    {{"position", HD_OP_POSITION, "bsh ph", "bsh", "b=2 s=3@2 p=6 h=3", {0}}, HD_OP_POSITION_DW, "d0", "1", {0}},
    {{"xent_local", HD_OP_XENT_LOCAL, "bsv f:bs i:bs", "f:bs f:bs", "b=2 s=3 v=5", {0}},
     HD_OP_XENT_GRAD,
     "x0 x1 x2 d0 d1",
     "0",
     {0}},
    {{"xent_local of a shard", HD_OP_XENT_LOCAL, "bsv f:bs i:bs", "f:bs f:bs", "b=2 s=7 v=5@5", {0}},
     HD_OP_XENT_GRAD,
     "x0 x1 x2 d0 d1",
     "0",
     {0}},
    {{"nll", HD_OP_NLL, "+:bs f:bs f:bs", "f:bs", "b=2 s=3", {0}}, HD_OP_NLL_GRAD, "x0 d0", "02", {0}},
    {{"mask", HD_OP_MASK, "bs", "bs", "b=2 s=3", {.index = 0, .parts = 2}},
     HD_OP_MASK,
     "d0",
     "0",
     {.index = 0, .parts = 2}},
    {{"add", HD_OP_ADD, "bs bs", "bs", "b=2 s=3", {0}}, HD_OP_COPY, "d0", "1", {0}},
    {{"copy", HD_OP_COPY, "bs", "bs", "b=2 s=3", {0}}, HD_OP_COPY, "d0", "0", {0}},
};

/* lse of attention is a statistic: the gradient kernel takes none for it, so its weights are zero. */
static int has_weight(const struct gradient *g, uint32_t out)
{
    return !(g->forward.op == HD_OP_ATTENTION && out == 1);
}

static double loss(struct h_device *d, struct h_instr *i, const struct h_instr *weights)
{
    double sum = 0;
    h_run(d, i);
    for (uint32_t o = 0; o < i->d.n_out; o++)
        for (int64_t e = 0; e < hd_operand_count(&i->out[o]); e++)
            if (isfinite(h_get(&i->out[o], e)))
                sum += h_get(&i->out[o], e) * h_get(&weights->out[o], e);
    return sum;
}

/* The gradient instruction over the forward's operands; its outputs look like the inputs they are gradients of. */
static struct h_instr *gradient_instr(const struct gradient *g, const struct h_instr *f, const struct h_instr *weights)
{
    struct h_instr borrowed = {.d = f->d};
    borrowed.d.op = g->op;
    borrowed.d.attrs = g->attrs;
    borrowed.d.n_in = borrowed.d.n_out = 0;
    for (const char *p = g->in; *p; p += p[2] ? 3 : 2) {
        int at = p[1] - '0';
        borrowed.in[borrowed.d.n_in++] = p[0] == 'x' ? f->in[at] : p[0] == 'y' ? f->out[at] : weights->out[at];
    }
    for (const char *p = g->wrt; *p; p++)
        borrowed.out[borrowed.d.n_out++] = f->in[*p - '0'];
    return h_as(&borrowed, HD_F64);
}

static double measured(struct h_device *d, struct h_instr *f, const struct h_instr *weights, struct hd_operand *x,
                       int64_t e)
{
    const double step = 1e-5;
    double at = h_get(x, e);
    h_set(x, e, at + step);
    double above = loss(d, f, weights);
    h_set(x, e, at - step);
    double below = loss(d, f, weights);
    h_set(x, e, at);
    return (above - below) / (2 * step);
}

static void check_gradient(const struct gradient *g, int adds)
{
    struct h_device *d = h_open(1, H_REFERENCE);
    struct h_instr *f = h_make(&g->forward, HD_F64, 11), *weights = h_make(&g->forward, HD_F64, 12);
    for (uint32_t o = 0; o < f->d.n_out; o++)
        for (int64_t e = 0; !has_weight(g, o) && e < hd_operand_count(&f->out[o]); e++)
            h_set(&weights->out[o], e, 0);
    h_run(d, f);
    struct h_instr *grad = gradient_instr(g, f, weights), *want = h_as(grad, HD_F64);
    if (adds)
        grad->d.attrs.flags |= HD_ATTR_ACCUMULATE;
    h_run(d, grad);
    int weights_alone = g->op == HD_OP_RMSNORM_GRAD_ADD || g->op == HD_OP_LAYERNORM_GRAD_ADD;
    for (uint32_t o = 0; o < grad->d.n_out; o++) {
        struct hd_operand *x = &f->in[g->wrt[o] - '0'];
        int added = adds && (o || !weights_alone);
        for (int64_t e = 0; e < hd_operand_count(x); e++)
            h_set(&want->out[o], e, measured(d, f, weights, x, e) + (added ? h_get(&want->out[o], e) : 0));
    }
    h_near(g->forward.name, grad, want, 1e-8);
    h_free(f);
    h_free(weights);
    h_free(grad);
    h_free(want);
    h_close(d);
}

START_TEST(gradient_agrees_with_differences)
{
    check_gradient(&gradients[_i], 0);
}
END_TEST

START_TEST(gradient_is_added_where_asked)
{
    check_gradient(&gradients[_i], 1);
}
END_TEST

/* ---- a padded vocabulary: what is at or above attrs.window is as if it were not there, and its gradient is 0 */

START_TEST(padding_does_not_count)
{
    static const struct {
        uint32_t op;
        const char *in, *out;
    } rows[] = {{HD_OP_ROWMAX, "sv", "f:s"},
                {HD_OP_XENT_LOCAL, "sv f:s i:s", "f:s f:s"},
                {HD_OP_XENT_GRAD, "sv f:s i:s f:s f:s", "sv"}};
    struct h_device *d = h_open(1, H_REFERENCE);
    for (size_t n = 0; n < sizeof rows / sizeof rows[0]; n++) {
        const struct h_case padded = {"padded", rows[n].op, rows[n].in, rows[n].out, "s=6 v=8@8", {.window = 13}},
                            plain = {"plain", rows[n].op, rows[n].in, rows[n].out, "s=6 v=5@8", {0}};
        struct h_instr *a = h_make(&padded, HD_F64, 1), *b = h_make(&plain, HD_F64, 1);
        for (int r = 0; r < 6; r++) {
            for (int j = 0; j < 8; j++)
                if (j < 5)
                    h_set(&b->in[0], r * 5 + j, h_get(&a->in[0], r * 8 + j));
                else
                    h_set(&a->in[0], r * 8 + j, 100); /* the largest, were it to count */
            for (uint32_t k = 1; k < b->d.n_in; k++)
                h_set(&b->in[k], r, k == 2 ? 8 + r % 5 : h_get(&a->in[k], r));
            if (a->d.n_in > 2)
                h_set(&a->in[2], r, 8 + r % 5);
        }
        h_run(d, a);
        h_run(d, b);
        for (uint32_t k = 0; k < a->d.n_out; k++)
            for (int r = 0; r < 6; r++)
                for (int j = 0; j < (a->out[k].ndim > 1 ? 8 : 1); j++) {
                    int width = a->out[k].ndim > 1 ? 8 : 1;
                    double want = j < 5 ? h_get(&b->out[k], r * (width > 1 ? 5 : 1) + j) : 0;
                    ck_assert_msg(h_get(&a->out[k], r * width + j) == want, "op %u, output %u: [%d, %d] is %g, not %g",
                                  rows[n].op, k, r, j, h_get(&a->out[k], r * width + j), want);
                }
        h_free(a);
        h_free(b);
    }
    h_close(d);
}
END_TEST

/* ---- the whole loss: rowmax, local sums, nll, and back, for two shards of the vocabulary as for one */

enum { ROWS = 6, V = 8 };

static double run_loss(struct h_device *d, const double *z, const int32_t *labels, int shards, double *dz)
{
    static const struct h_case max = {"rowmax", HD_OP_ROWMAX, "sv", "f:s", "s=6 v=8", {0}};
    static const struct h_case halves[] = {{"xent", HD_OP_XENT_LOCAL, "sv f:s i:s", "f:s f:s", "s=6 v=4", {0}},
                                           {"xent", HD_OP_XENT_LOCAL, "sv f:s i:s", "f:s f:s", "s=6 v=4@4", {0}}};
    static const struct h_case whole = {"xent", HD_OP_XENT_LOCAL, "sv f:s i:s", "f:s f:s", "s=6 v=8", {0}};
    static const struct h_case nll = {"nll", HD_OP_NLL, "+:s f:s f:s", "f:s", "s=6", {0}};
    static const struct h_case back = {"nll_grad", HD_OP_NLL_GRAD, "+:s f:s", "f:s f:s", "s=6", {0}};
    struct h_instr *m = h_make(&max, HD_F64, 1), *n = h_make(&nll, HD_F64, 1), *g = h_make(&back, HD_F64, 1), *x[2];
    double total = 0;
    int width = V / shards;
    for (int e = 0; e < ROWS * V; e++)
        h_set(&m->in[0], e, z[e]);
    h_run(d, m);
    for (int r = 0; r < ROWS; r++) {
        h_set(&n->in[0], r, 0);
        h_set(&n->in[2], r, 0);
        h_set(&n->in[1], r, h_get(&m->out[0], r));
        h_set(&g->in[1], r, 1);
    }
    for (int s = 0; s < shards; s++) {
        x[s] = h_make(shards == 1 ? &whole : &halves[s], HD_F64, 1);
        for (int r = 0; r < ROWS; r++) {
            h_set(&x[s]->in[1], r, h_get(&m->out[0], r));
            h_set(&x[s]->in[2], r, labels[r]);
            for (int j = 0; j < width; j++)
                h_set(&x[s]->in[0], r * width + j, z[r * V + s * width + j]);
        }
        h_run(d, x[s]);
        for (int r = 0; r < ROWS; r++) { /* the all_reduce between ranks */
            h_set(&n->in[0], r, h_get(&n->in[0], r) + h_get(&x[s]->out[0], r));
            h_set(&n->in[2], r, h_get(&n->in[2], r) + h_get(&x[s]->out[1], r));
        }
    }
    h_run(d, n);
    h_copy(&g->in[0], &n->in[0]);
    h_run(d, g);
    for (int s = 0; s < shards; s++) {
        struct h_instr b = {.d = x[s]->d};
        b.d.op = HD_OP_XENT_GRAD;
        b.d.n_in = 5;
        b.d.n_out = 1;
        memcpy(b.in, x[s]->in, 3 * sizeof b.in[0]);
        b.in[3] = g->out[0];
        b.in[4] = g->out[1];
        b.out[0] = x[s]->in[0];
        struct h_instr *dx = h_as(&b, HD_F64);
        h_run(d, dx);
        for (int r = 0; r < ROWS; r++)
            for (int j = 0; j < width; j++)
                dz[r * V + s * width + j] = h_get(&dx->out[0], r * width + j);
        h_free(dx);
        h_free(x[s]);
    }
    for (int r = 0; r < ROWS; r++)
        total += h_get(&n->out[0], r);
    h_free(m);
    h_free(n);
    h_free(g);
    return total;
}

START_TEST(cross_entropy_is_whole)
{
    struct h_device *d = h_open(1, H_REFERENCE);
    double z[ROWS * V], dz[ROWS * V], shard_dz[ROWS * V];
    int32_t labels[ROWS] = {0, 7, 3, -100, 5, 2}; /* one that is ignored */
    uint64_t seed = 3;
    for (int e = 0; e < ROWS * V; e++)
        z[e] = 20 * h_random(&seed);
    double one = run_loss(d, z, labels, 1, dz), two = run_loss(d, z, labels, 2, shard_dz), direct = 0;
    for (int r = 0; r < ROWS; r++) {
        long double sum = 0;
        for (int j = 0; j < V; j++)
            sum += expl((long double)z[r * V + j]);
        direct += labels[r] < 0 ? 0 : (double)(logl(sum) - (long double)z[r * V + labels[r]]);
        for (int j = 0; j < V; j++) {
            double want = labels[r] < 0 ? 0 : (double)(expl((long double)z[r * V + j]) / sum) - (j == labels[r]);
            ck_assert_double_eq_tol(dz[r * V + j], want, 1e-13);
            ck_assert_double_eq_tol(shard_dz[r * V + j], want, 1e-13);
        }
    }
    ck_assert_double_eq_tol(one, direct, 1e-11);
    ck_assert_double_eq_tol(two, direct, 1e-11);
    h_close(d);
}
END_TEST

/* ---- facts small enough to write down */

START_TEST(attention_row_without_keys_is_zero)
{
    static const struct h_case c = {
        "attention", HD_OP_ATTENTION, "bskgd btkd btkd", "bskgd f:bskg", "b=1 s=3 t=3@1 k=1 g=1 d=2", {.scale = 1}};
    struct h_device *d = h_open(1, H_REFERENCE);
    struct h_instr *i = h_make(&c, HD_F32, 1);
    h_run(d, i); /* query 0 is before all keys, query 1 sees key 0 alone */
    ck_assert(h_get(&i->out[1], 0) == -INFINITY);
    for (int e = 0; e < 2; e++) {
        ck_assert_double_eq(h_get(&i->out[0], e), 0);
        ck_assert_double_eq(h_get(&i->out[0], 2 + e), h_get(&i->in[2], e));
    }
    h_free(i);
    h_close(d);
}
END_TEST

/* Four equal logits: the loss is log(4), however large they are. */
START_TEST(loss_of_large_logits_is_not_absorbed)
{
    static const struct h_case c = {"nll", HD_OP_NLL, "f:s f:s f:s", "f:s", "s=2", {0}};
    for (int kernels = H_FAST; kernels <= H_REFERENCE; kernels++) {
        struct h_device *d = h_open(1, kernels);
        struct h_instr *i = h_make(&c, HD_F32, 1);
        for (int r = 0; r < 2; r++) {
            h_set(&i->in[0], r, 4);
            h_set(&i->in[1], r, r == 0 ? 1e30 : -1e30);
            h_set(&i->in[2], r, r == 0 ? 1e30 : -1e30);
        }
        h_run(d, i);
        for (int r = 0; r < 2; r++)
            ck_assert_double_eq_tol(h_get(&i->out[0], r), log(4), 1e-6);
        h_free(i);
        h_close(d);
    }
}
END_TEST

START_TEST(sums_are_those_of_their_ranges)
{
    static const struct hd_range ranges[] = {{2, 3, 2}, {8, 10, 0.5}};
    static const struct h_case c = {"sumsq", HD_OP_SUMSQ, "n", "d:", "n=6@4", {.ranges = ranges, .n_ranges = 2}};
    for (int kernels = H_FAST; kernels <= H_REFERENCE; kernels++) {
        struct h_device *d = h_open(1, kernels);
        struct h_instr *i = h_make(&c, HD_F32, 1);
        for (int e = 0; e < 6; e++)
            h_set(&i->in[0], e, e + 1);
        h_set(&i->out[0], 0, 100);
        h_run(d, i); /* global element 4 is 1: weight 2; elements 8 and 9 are 5 and 6: weight a half */
        ck_assert_double_eq(h_get(&i->out[0], 0), 100 + 2 * 1 + 0.5 * (25 + 36));
        h_free(i);
        h_close(d);
    }
}
END_TEST

START_TEST(half_precision_goes_round)
{
    static const struct h_case c = {"copy", HD_OP_COPY, "f:n", "n", "n=65536", {0}};
    struct h_device *d = h_open(1, H_REFERENCE);
    struct h_instr *i = h_make(&c, HD_F32, 1);
    i->in[0].dtype = HD_F16; /* 65536 halves in the room of as many floats */
    for (uint32_t h = 0; h < 65536; h++)
        ((uint16_t *)i->in[0].data)[h] = (uint16_t)h;
    h_run(d, i);
    const float *wide = i->out[0].data;
    ck_assert_float_eq(wide[0x3c00], 1.0f);
    ck_assert_float_eq(wide[0x3555], 0x1.554p-2f);
    ck_assert_float_eq(wide[0x7bff], 65504.0f);
    ck_assert_float_eq(wide[0x8001], -0x1p-24f);
    ck_assert_float_eq(wide[0x03ff], 0x3ffp-24f);
    ck_assert(isinf(wide[0x7c00]) && isnan(wide[0x7e01]));
    i->in[0].dtype = HD_F32;
    struct h_instr *back = h_as(i, HD_F32);
    h_copy(&back->in[0], &i->out[0]);
    back->out[0].dtype = HD_F16;
    h_run(d, back);
    uint32_t wrong = 0;
    for (uint32_t h = 0; h < 65536; h++)
        wrong += !isnan(wide[h]) && ((uint16_t *)back->out[0].data)[h] != h;
    ck_assert_uint_eq(wrong, 0);
    back->out[0].dtype = HD_F32;
    h_free(i);
    h_free(back);
    h_close(d);
}
END_TEST

START_TEST(rounding_to_half_is_to_nearest_even)
{
    static const struct {
        float from;
        uint16_t to;
    } facts[] = {{1 + 0x1p-11f, 0x3c00}, {1 + 0x3p-11f, 0x3c02}, {1 + 0x1.02p-11f, 0x3c01},
                 {65519, 0x7bff},        {65520, 0x7c00},        {0x1p-25f, 0},
                 {0x1.8p-24f, 2},        {0x3ff.cp-24f, 0x400},  {-2047.9f, 0xe800}};
    static const struct h_case c = {"copy", HD_OP_COPY, "f:n", "n", "n=9", {0}};
    struct h_device *d = h_open(1, H_REFERENCE);
    struct h_instr *i = h_make(&c, HD_BF16, 1);
    i->out[0].dtype = HD_F16;
    for (int e = 0; e < 9; e++)
        h_set(&i->in[0], e, facts[e].from);
    h_run(d, i);
    for (int e = 0; e < 9; e++)
        ck_assert_msg(((uint16_t *)i->out[0].data)[e] == facts[e].to, "%a gives %04x, not %04x", facts[e].from,
                      ((uint16_t *)i->out[0].data)[e], facts[e].to);
    h_free(i);
    h_close(d);
}
END_TEST

int main(void)
{
    TCase *t = tcase_create("reference");
    int n = sizeof gradients / sizeof gradients[0];
    tcase_set_timeout(t, 30);
    tcase_add_loop_test(t, gradient_agrees_with_differences, 0, n);
    tcase_add_loop_test(t, gradient_is_added_where_asked, 0, n);
    tcase_add_test(t, padding_does_not_count);
    tcase_add_test(t, cross_entropy_is_whole);
    tcase_add_test(t, attention_row_without_keys_is_zero);
    tcase_add_test(t, loss_of_large_logits_is_not_absorbed);
    tcase_add_test(t, sums_are_those_of_their_ranges);
    tcase_add_test(t, half_precision_goes_round);
    tcase_add_test(t, rounding_to_half_is_to_nearest_even);
    return suite_run_case("reference", t);
}
