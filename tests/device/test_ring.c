/* Attention in pieces: every rank's queries against the keys of every rank, in zig-zag order, merged, is attention
 * over the whole sequence; the gradients of the pieces add up to the whole gradients. The reference kernels in fp64
 * say what the whole is; pieces are checked with reference kernels in fp64 and with fast ones in fp32 and bf16. */
#include "conformance/device/harness.h"
#include "tests/suite.h"
#include <check.h>
#include <stdlib.h>

#define FORWARD HD_OP_ATTENTION, "bskgd bskd bskd", "bskgd f:bskg"
#define BACKWARD HD_OP_ATTENTION_GRAD, "bskgd bskd bskd bskgd f:bskg bskgd", "bskgd bskd bskd"
#define FORWARD_DOCUMENTS HD_OP_ATTENTION, "bskgd bskd bskd n:bs", "bskgd f:bskg"
#define BACKWARD_DOCUMENTS HD_OP_ATTENTION_GRAD, "bskgd bskd bskd bskgd f:bskg bskgd n:bs", "bskgd bskd bskd"
#define MERGE HD_OP_ATTENTION_MERGE, "bskgd f:bskg bskgd f:bskg", "bskgd f:bskg"

enum { Q, K, V, O, LSE, DO };

static const struct {
    const char *whole, *part;
    int64_t parts, length, window, prefix;
    uint32_t mask; /* HD_ATTR_NOT_CAUSAL */
    int documents;
} shapes[] = {
    {"b=2 s=12 k=1 g=1 d=8", "b=2 s=6 k=1 g=1 d=8", 2, 12},
    {"b=1 s=42 k=2 g=1 d=16", "b=1 s=14 k=2 g=1 d=16", 3, 42},
    {"b=2 s=520 k=1 g=2 d=32", "b=2 s=130 k=1 g=2 d=32", 4, 520},
    {"b=2 s=120 k=1 g=2 d=16", "b=2 s=30 k=1 g=2 d=16", 4, 120, 0, 0, HD_ATTR_NOT_CAUSAL},
    {"b=1 s=120 k=1 g=2 d=16", "b=1 s=30 k=1 g=2 d=16", 4, 120, 20, 0, HD_ATTR_NOT_CAUSAL},
    {"b=1 s=120 k=1 g=2 d=16", "b=1 s=30 k=1 g=2 d=16", 4, 120, 0, 50},
    {"b=4 s=120 k=1 g=2 d=16", "b=4 s=30 k=1 g=2 d=16", 4, 120, 0, 0, 0, 1},
    {"b=2 s=1040 k=1 g=1 d=16", "b=2 s=260 k=1 g=1 d=16", 4, 1040, 0, 0, 0, 1},
};

static const struct {
    uint32_t dtype;
    int kernels;
    double tolerance;
} kinds[] = {{HD_F64, H_REFERENCE, 1e-12}, {HD_F32, H_FAST, 1e-5}, {HD_BF16, H_FAST, 2e-2}};

static const int64_t *order(int shape)
{
    static int64_t both[2];
    both[0] = shapes[shape].parts;
    both[1] = shapes[shape].length;
    return both;
}

static struct hd_attrs attrs(int shape)
{
    return (struct hd_attrs){.scale = 0.6,
                             .zigzag_parts = order(shape)[0],
                             .zigzag_length = order(shape)[1],
                             .window = shapes[shape].window,
                             .top_k = shapes[shape].prefix,
                             .flags = shapes[shape].mask};
}

static struct h_case forward_case(int shape, const char *dims, struct hd_attrs a)
{
    return shapes[shape].documents ? (struct h_case){"forward", FORWARD_DOCUMENTS, dims, a}
                                   : (struct h_case){"forward", FORWARD, dims, a};
}

static struct h_case backward_case(int shape, const char *dims, struct hd_attrs a)
{
    return shapes[shape].documents ? (struct h_case){"backward", BACKWARD_DOCUMENTS, dims, a}
                                   : (struct h_case){"backward", BACKWARD, dims, a};
}

/* Of the whole sequence, which lies as it is. */
static struct hd_attrs whole_attrs(int shape)
{
    struct hd_attrs a = attrs(shape);
    a.zigzag_parts = a.zigzag_length = 0;
    return a;
}

/* Rows of `part` out of the whole, or (add) back into it. */
static void exchange(int shape, int64_t part, const struct hd_operand *whole, const struct hd_operand *piece, int back)
{
    struct hd_attrs a = attrs(shape);
    int64_t length = piece->extent[1], row = hd_operand_count(piece) / piece->extent[0] / length;
    for (int64_t b = 0; b < piece->extent[0]; b++)
        for (int64_t i = 0; i < length; i++)
            for (int64_t e = 0; e < row; e++) {
                int64_t at = (b * length + i) * row + e;
                int64_t in_whole = (b * whole->extent[1] + hd_position(&a, part * length + i)) * row + e;
                if (back)
                    h_set(whole, in_whole, h_get(whole, in_whole) + h_get(piece, at));
                else
                    h_set(piece, at, h_get(whole, in_whole));
            }
}

/* An instruction over the queries of one part and the keys of another; inputs come from the whole one. */
static struct h_instr *piece(int shape, const struct h_case *c, uint32_t dtype, const struct h_instr *whole,
                             int64_t queries, int64_t keys)
{
    struct h_instr *i = h_make(c, dtype, 5);
    for (uint32_t n = 0; n < i->d.n_in; n++) {
        int64_t part = n == K || n == V ? keys : queries;
        i->in[n].start[1] = part * i->in[n].extent[1];
        exchange(shape, part, &whole->in[n], &i->in[n], 0);
    }
    return i;
}

static void zero(const struct hd_operand *o)
{
    for (int64_t i = 0; i < hd_operand_count(o); i++)
        h_set(o, i, 0);
}

static struct h_instr *whole_forward(int shape, struct h_device *plain)
{
    struct h_case c = forward_case(shape, shapes[shape].whole, whole_attrs(shape));
    struct h_instr *i = h_make(&c, HD_F64, 7);
    h_run(plain, i);
    return i;
}

/* The attention of one part's queries: over the keys of each part in the order of the ring. */
static struct h_instr *around(int shape, struct h_device *d, uint32_t dtype, const struct h_instr *whole, int64_t me)
{
    struct h_case tile = forward_case(shape, shapes[shape].part, attrs(shape));
    struct h_case merge = {"merge", MERGE, shapes[shape].part, attrs(shape)};
    struct h_instr *sum = NULL;
    for (int64_t step = 0; step < shapes[shape].parts; step++) {
        int64_t keys = (me + shapes[shape].parts - step) % shapes[shape].parts;
        struct h_instr *t = piece(shape, &tile, dtype, whole, me, keys), *m;
        h_run(d, t);
        if (!sum) {
            sum = t;
            continue;
        }
        m = h_make(&merge, dtype, 6);
        for (int n = 0; n < 2; n++) {
            h_copy(&m->in[n], &sum->out[n]);
            h_copy(&m->in[2 + n], &t->out[n]);
        }
        h_run(d, m);
        h_free(t);
        h_free(sum);
        sum = m;
    }
    return sum;
}

START_TEST(pieces_merge_to_the_whole)
{
    int shape = _i / 3, kind = _i % 3;
    struct h_device *plain = h_open(1, H_REFERENCE), *d = h_open(2, kinds[kind].kernels);
    struct h_instr *whole = whole_forward(shape, plain), *got = h_as(whole, HD_F64);
    h_warnings = 0;
    zero(&got->out[0]);
    zero(&got->out[1]);
    for (int64_t me = 0; me < shapes[shape].parts; me++) {
        struct h_instr *mine = around(shape, d, kinds[kind].dtype, whole, me);
        for (int n = 0; n < 2; n++)
            exchange(shape, me, &got->out[n], &mine->out[n], 1);
        h_free(mine);
    }
    ck_assert_msg(h_warnings == 0, "%s", h_last_log);
    h_near(shapes[shape].whole, got, whole, kinds[kind].tolerance);
    h_free(got);
    h_free(whole);
    h_close(d);
    h_close(plain);
}
END_TEST

START_TEST(gradients_of_pieces_add_up)
{
    int shape = _i / 3, kind = _i % 3;
    struct h_device *plain = h_open(1, H_REFERENCE), *d = h_open(2, kinds[kind].kernels);
    struct h_case c = backward_case(shape, shapes[shape].whole, whole_attrs(shape));
    struct h_case tile = backward_case(shape, shapes[shape].part, attrs(shape));
    struct h_instr *forward = whole_forward(shape, plain), *whole = h_make(&c, HD_F64, 9), *got;
    for (int n = 0; n < 3; n++)
        h_copy(&whole->in[n], &forward->in[n]);
    if (shapes[shape].documents)
        h_copy(&whole->in[DO + 1], &forward->in[V + 1]);
    h_copy(&whole->in[O], &forward->out[0]);
    h_copy(&whole->in[LSE], &forward->out[1]);
    got = h_as(whole, HD_F64);
    h_run(plain, whole);
    h_warnings = 0;
    for (int n = 0; n < 3; n++)
        zero(&got->out[n]);
    for (int64_t me = 0; me < shapes[shape].parts; me++)
        for (int64_t keys = 0; keys < shapes[shape].parts; keys++) {
            struct h_instr *t = piece(shape, &tile, kinds[kind].dtype, whole, me, keys);
            h_run(d, t);
            for (int n = 0; n < 3; n++)
                exchange(shape, n ? keys : me, &got->out[n], &t->out[n], 1);
            h_free(t);
        }
    ck_assert_msg(h_warnings == 0, "%s", h_last_log);
    h_near(shapes[shape].whole, got, whole, kinds[kind].tolerance);
    h_free(got);
    h_free(whole);
    h_free(forward);
    h_close(d);
    h_close(plain);
}
END_TEST

START_TEST(merge_is_near_its_reference)
{
    struct h_case c = {"merge", MERGE, "b=2 s=9 k=2 g=3 d=40", {0}};
    h_fast_case(&c, HD_F32, 1e-6, 0);
    h_fast_case(&c, HD_BF16, 1e-2, 0);
}
END_TEST

/* The order deals out every position once, and as much causal work to each part. */
START_TEST(the_order_is_fair)
{
    for (int64_t parts = 1; parts <= 8; parts++) {
        struct hd_attrs a = {.zigzag_parts = parts, .zigzag_length = parts * 6};
        int64_t seen = 0, work[8] = {0};
        for (int64_t i = 0; i < parts * 6; i++) {
            int64_t at = hd_position(&a, i);
            ck_assert(at >= 0 && at < parts * 6 && !(seen >> at & 1));
            ck_assert(i % 6 == 0 || at > hd_position(&a, i - 1));
            seen |= INT64_C(1) << at;
            work[i / 6] += at + 1;
        }
        for (int64_t part = 1; part < parts; part++)
            ck_assert_int_eq(work[part], work[0]);
    }
}
END_TEST

int main(void)
{
    TCase *c = tcase_create("ring");
    int n = 3 * (int)(sizeof shapes / sizeof *shapes);
    tcase_set_timeout(c, 60);
    tcase_add_loop_test(c, pieces_merge_to_the_whole, 0, n);
    tcase_add_loop_test(c, gradients_of_pieces_add_up, 0, n);
    tcase_add_test(c, merge_is_near_its_reference);
    tcase_add_test(c, the_order_is_fair);
    return suite_run_case("ring", c);
}
