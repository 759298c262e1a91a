/* verify.c and grad_reduce.c: correct steps pass, and each planted fault is reported by section, instruction and
 * tensor. */
#include <check.h>
#include <stdlib.h>

#include "core/program/ops.h"
#include "core/verify/verify.h"
#include "tests/suite.h"
#include "tests/support/tiny.h"

enum { BEGIN, MICRO, MICRO_LAST, UPDATE };

static struct hd_error err;

static void set_up(void)
{
    err = (struct hd_error)HD_ERROR_INIT;
}

static void assert_fine(struct hd_program *p)
{
    ck_assert_msg(hd__verify(p, &err) == HD_OK, "%s", err.message);
    hd__program_free(p);
}

/* The first fault is exactly this. */
static void assert_fault(struct hd_program *p, const char *expected)
{
    ck_assert_int_eq(hd__verify(p, &err), HD_E_INVALID);
    err.message[strcspn(err.message, "\n")] = 0;
    ck_assert_str_eq(err.message, expected);
    hd__program_free(p);
}

START_TEST(correct_steps_pass)
{
    for (int32_t stage = 0; stage < 3; stage++) {
        assert_fine(tiny_step(4, 2, stage));
        assert_fine(tiny_step(4, 1, stage));
    }
    assert_fine(tiny_step(1, 2, 0));
    assert_fine(tiny_step(1, 1, 0));
}
END_TEST

/* ---- definitions and releases */

START_TEST(use_before_definition)
{
    struct hd_program *p = tiny_step(2, 2, 0);
    tiny_drop(p, MICRO, tiny_find(p, MICRO, HD_OP_FILL0, "x", 0));
    assert_fault(p, "micro #0 bias_dw dw: use of x before its definition");
}
END_TEST

START_TEST(use_after_release)
{
    struct hd_program *p = tiny_step_raw(2, 1, 2);
    uint32_t at = tiny_find(p, MICRO_LAST, HD_OP_RELEASE, "g", 0);
    struct hd__instr release = p->sections.at[MICRO_LAST].code.at[at];
    tiny_drop(p, MICRO_LAST, at);
    tiny_insert(p, MICRO_LAST, tiny_find(p, MICRO_LAST, HD_OP_REDUCE_SCATTER, NULL, 0), release);
    tiny_finish(p);
    assert_fault(p, "micro_last #7 reduce_scatter(dp_shard) gs: use of g after its release");
}
END_TEST

START_TEST(two_releases)
{
    struct hd_program *p = tiny_step_raw(2, 1, 2);
    tiny_op(p, MICRO_LAST, HD_OP_RELEASE, T(p->sections.at[MICRO_LAST].code.at[0].out[0]), NONE);
    tiny_finish(p);
    assert_fault(p, "micro_last #10 release g: use of g after its release");
}
END_TEST

START_TEST(use_after_the_memory_was_taken)
{
    struct hd_program *p = tiny_program(1, 1, 1, 0);
    hd_tensor x = tiny_vector(p, "x", 16), y = tiny_vector(p, "y", 16), z = tiny_vector(p, "z", 32);
    tiny_section(p, "micro", 1);
    tiny_op(p, 0, HD_OP_FILL0, NONE, T(x));
    tiny_op(p, 0, HD_OP_GELU, T(x), T(y));
    tiny_finish(p);
    ck_assert_uint_eq(hd__tensor_const(p, x)->buffer, hd__tensor_const(p, y)->buffer);
    hd__tensor_at(p, z)->buffer = hd__buffer_new(p, "z", 128, HD__LIFE_TEMP);
    tiny_op(p, 0, HD_OP_GELU, T(x), T(z));
    assert_fault(p, "micro #2 gelu z: use of x after its memory was reused by an in-place output");
}
END_TEST

/* ---- waits */

START_TEST(a_missing_wait)
{
    struct hd_program *p = tiny_step(2, 2, 2);
    tiny_drop(p, MICRO, tiny_find(p, MICRO, HD_OP_WAIT, NULL, 0));
    assert_fault(p, "micro #7 reduce_scatter(dp_shard) gs: accesses g while micro #6 all_reduce(tp) G[16:32] is in "
                    "flight: missing wait");
}
END_TEST

START_TEST(never_waited_for)
{
    struct hd_program *p = tiny_step(2, 1, 0);
    tiny_drop(p, MICRO_LAST, tiny_find(p, MICRO_LAST, HD_OP_WAIT, NULL, 0));
    assert_fault(p, "micro_last #5 all_reduce(dp_shard) G: is never waited for");
}
END_TEST

START_TEST(waited_for_twice)
{
    struct hd_program *p = tiny_step(2, 1, 0);
    uint32_t at = tiny_find(p, MICRO_LAST, HD_OP_WAIT, NULL, 0);
    tiny_insert(p, MICRO_LAST, at, p->sections.at[MICRO_LAST].code.at[at]);
    assert_fault(p, "micro_last #7 wait all_reduce(dp_shard) G: waits for an operation that is not in flight any more");
}
END_TEST

START_TEST(a_wait_for_another_section)
{
    struct hd_program *p = tiny_step(2, 1, 0);
    struct hd__instr wait = p->sections.at[MICRO_LAST].code.at[tiny_find(p, MICRO_LAST, HD_OP_WAIT, NULL, 0)];
    tiny_insert(p, UPDATE, 0, wait);
    ck_assert_int_eq(hd__verify(p, &err), HD_E_INVALID);
    ck_assert_msg(strstr(err.message, "which is not before it in this section") != NULL, "%s", err.message);
    hd__program_free(p);
}
END_TEST

/* ---- the plan */

START_TEST(memory_of_two_at_once)
{
    struct hd_program *p = tiny_step(2, 1, 2);
    hd_tensor x = p->sections.at[MICRO].code.at[1].out[0], g = p->sections.at[MICRO].code.at[0].out[0];
    char expected[160];
    int64_t at = p->buffers.at[hd__tensor_const(p, g)->buffer].offset;
    p->buffers.at[hd__tensor_const(p, x)->buffer].offset = at + 64;
    snprintf(expected, sizeof expected, "micro #1 fill0 x: x at [%lld, %lld) overlaps g at [%lld, %lld), which is live",
             (long long)at + 64, (long long)at + 128, (long long)at, (long long)at + 128);
    assert_fault(p, expected);
    p = tiny_step(2, 1, 2);
    p->buffers.at[hd__tensor_const(p, x)->buffer].offset = 0;
    assert_fault(p, "micro #1 fill0 x: x lies at [0, 64), outside the arena's temporary region");
}
END_TEST

START_TEST(a_newcomer_on_planned_memory)
{
    struct hd_program *p = tiny_step(2, 1, 0); /* after the plan: late lies on dw, which is still read */
    hd_tensor x = p->sections.at[MICRO].code.at[0].out[0], w = p->sections.at[MICRO].code.at[1].out[0],
              late = hd__tensor_new(p, hd__tensor_const(p, x));
    hd__tensor_at(p, late)->name = "late";
    hd__tensor_at(p, late)->buffer = hd__buffer_new(p, "late", 64, HD__LIFE_TEMP);
    p->buffers.at[hd__tensor_const(p, late)->buffer].offset = p->buffers.at[hd__tensor_const(p, w)->buffer].offset;
    tiny_insert(p, MICRO, 2,
                (struct hd__instr){
                    .id = ++p->next_id, .op = HD_OP_RMSNORM, .n_in = 2, .n_out = 1, .in = {x, x}, .out = {late}});
    assert_fault(p, "micro #2 rmsnorm late: late at [448, 512) overlaps dw at [448, 512), which is live");
}
END_TEST

/* Between the two, by their offsets, are many that lived before: verify looks past them. */
START_TEST(memory_of_one_behind_a_crowd)
{
    struct hd_program *p = tiny_program(1, 1, 1, 0);
    hd_tensor keep = tiny_state(p, "keep", 16), sum = tiny_state(p, "sum", 16 * 300), crowd[200], big, late;
    char expected[160];
    tiny_section(p, "micro", 1);
    for (uint32_t k = 0; k < HD__COUNT(crowd); k++) {
        crowd[k] = tiny_vector(p, "crowd", 16);
        tiny_op(p, 0, HD_OP_FILL0, NONE, T(crowd[k]));
        tiny_op(p, 0, HD_OP_COPY, T(crowd[k]), T(keep));
    }
    big = tiny_vector(p, "big", 16 * 300);
    late = tiny_vector(p, "late", 16);
    tiny_op(p, 0, HD_OP_FILL0, NONE, T(big));
    tiny_op(p, 0, HD_OP_FILL0, NONE, T(late));
    tiny_op(p, 0, HD_OP_COPY, T(late), T(keep));
    tiny_op(p, 0, HD_OP_COPY, T(big), T(sum));
    tiny_finish(p);
    int64_t at = p->buffers.at[hd__tensor_const(p, big)->buffer].offset;
    for (uint32_t k = 0; k < HD__COUNT(crowd); k++)
        p->buffers.at[hd__tensor_const(p, crowd[k])->buffer].offset = at + 64 * (int64_t)k;
    ck_assert_msg(hd__verify(p, &err) == HD_OK, "%s", err.message);
    p->buffers.at[hd__tensor_const(p, late)->buffer].offset = at + INT64_C(64) * 250;
    snprintf(expected, sizeof expected,
             "micro #401 fill0 late: late at [%lld, %lld) overlaps big at [%lld, %lld), which is live",
             (long long)at + 64 * 250, (long long)at + 64 * 251, (long long)at, (long long)at + 64 * 300);
    assert_fault(p, expected);
}
END_TEST

/* What lives for a step: made in micro_last, used in update, by which a temporary of update is planned beside it. */
static struct hd_program *carried_program(hd_tensor *s, hd_tensor *b)
{
    struct hd_program *p = tiny_program(1, 1, 1, 0);
    hd_tensor keep = tiny_state(p, "keep", 16);
    tiny_section(p, "begin", 1);
    tiny_section(p, "micro_last", 1);
    tiny_section(p, "update", 1);
    tiny_section(p, "eval", 0);
    *s = tiny_vector(p, "s", 16);
    *b = tiny_vector(p, "b", 16);
    hd__tensor_at(p, *s)->role = HD__ROLE_FLAT;
    hd__tensor_at(p, *s)->buffer = hd__buffer_new(p, "s", 64, HD__LIFE_STEP);
    tiny_op(p, 1, HD_OP_FILL0, NONE, T(*s));
    tiny_op(p, 2, HD_OP_FILL0, NONE, T(*b));
    tiny_op(p, 2, HD_OP_COPY, T(*s), T(keep));
    tiny_finish(p);
    return p;
}

START_TEST(what_lives_for_a_step)
{
    char expected[160];
    hd_tensor s, b;
    struct hd_program *p = carried_program(&s, &b);
    int64_t at = p->buffers.at[hd__tensor_const(p, s)->buffer].offset;
    ck_assert_msg(hd__verify(p, &err) == HD_OK, "%s", err.message);
    p->buffers.at[hd__tensor_const(p, b)->buffer].offset = at;
    snprintf(expected, sizeof expected,
             "update #0 fill0 b: b at [%lld, %lld) overlaps s at [%lld, %lld), which is live", (long long)at,
             (long long)at + 64, (long long)at, (long long)at + 64);
    assert_fault(p, expected);
    p = carried_program(&s, &b);
    tiny_drop(p, 1, 0);
    assert_fault(p, "update #1 copy keep: use of s before its definition");
    p = carried_program(&s, &b); /* nothing is in it between steps */
    tiny_op(p, 3, HD_OP_ACCUM, T(s), T(p->sections.at[2].code.at[1].out[0]));
    assert_fault(p, "eval #0 accum keep: use of s before its definition");
}
END_TEST

/* ---- operands */

/* Sizes of a collective over 4 ranks, by the column `converts` of its row: how many times 16 elements it makes of how
 * many. */
static const struct {
    uint16_t op;
    int64_t in, out;
} collectives[] = {{HD_OP_ALL_REDUCE, 1, 1}, {HD_OP_ALL_GATHER, 1, 4}, {HD_OP_REDUCE_SCATTER, 4, 1},
                   {HD_OP_ALL_TO_ALL, 1, 1}, {HD_OP_BROADCAST, 1, 1},  {HD_OP_SHIFT, 1, 1}};

START_TEST(a_collective_of_another_size)
{
    for (int64_t in = 1; in <= 4; in += 3)
        for (int64_t out = 1; out <= 4; out += 3) {
            struct hd_program *p = tiny_program(1, 4, 1, 0);
            hd_tensor x = tiny_state(p, "x", 16 * in), y = tiny_state(p, "y", 16 * out);
            int fits = in * collectives[_i].out == out * collectives[_i].in;
            set_up();
            tiny_section(p, "micro", 1);
            tiny_collective(p, 0, collectives[_i].op, HD_AXIS_DP_SHARD, x, y);
            hd__verify(p, &err);
            ck_assert_msg((strstr(err.message, "y does not have the size of") == NULL) == fits, "%s, %d to %d: %s",
                          hd__op(collectives[_i].op)->name, (int)in, (int)out, err.message);
            hd__program_free(p);
        }
}
END_TEST

START_TEST(operands_that_do_not_fit)
{
    struct hd_program *p = tiny_step(2, 1, 1);
    hd__tensor_at(p, p->flats.at[0].tensor[HD__FLAT_SHARD])->dim[0] = hd__dim_new(p, "#wrong", 24);
    ck_assert_int_eq(hd__verify(p, &err), HD_E_INVALID);
    ck_assert_msg(strstr(err.message, "GS does not have the size of reduce_scatter of G") != NULL, "%s", err.message);
    hd__program_free(p);
    p = tiny_step(2, 1, 0);
    hd__tensor_at(p, p->flats.at[0].tensor[HD__FLAT_GRAD])->offset = 1;
    assert_fault(p, "begin #0 fill0 G: G is bytes [4, 132) of buffer G, which has 128");
    p = tiny_step(2, 1, 0);
    p->sections.at[UPDATE].code.at[0].n_in = 2;
    assert_fault(p, "update #0 sgd P: op 72 with 2 inputs and 1 outputs does not match its row in the op table");
    p = tiny_step(2, 1, 0);
    p->sections.at[MICRO_LAST].code.at[tiny_find(p, MICRO_LAST, HD_OP_ALL_REDUCE, NULL, 0)].stream = 0;
    assert_fault(
        p, "micro_last #5 all_reduce(dp_shard) G: collectives, sends and receives cannot run on the compute stream");
}
END_TEST

/* ---- placements */

START_TEST(a_lost_partial_sum)
{
    struct hd_program *p = tiny_step(2, 2, 0);
    hd_tensor dw = p->sections.at[MICRO].code.at[1].out[0], x = p->sections.at[MICRO].code.at[0].out[0];
    hd__tensor_at(p, dw)->placement.partial = 0;
    assert_fault(p,
                 "micro #1 bias_dw dw: no placement rule of this op allows this on dp_shard: x #rows -> dw replicated");
    p = tiny_step(2, 2, 0);
    hd__tensor_at(p, x)->placement.partial =
        HD_AXIS_BIT(HD_AXIS_DP_SHARD); /* partial, and cut: an op that is not linear takes neither */
    hd__tensor_at(p, x)->placement.shard[0] = 0;
    ck_assert_int_eq(hd__verify(p, &err), HD_E_INVALID);
    ck_assert_msg(strstr(err.message, "on dp_shard: x partial -> dw partial") != NULL, "%s", err.message);
    hd__program_free(p);
}
END_TEST

/* A section with y = op(x), x and y as given; dims r and c of 8 each on a mesh of dp 2, tp 2. */
static struct hd_program *one(uint16_t op, uint32_t r_in, uint32_t c_in, uint32_t r_out, uint32_t c_out,
                              uint8_t partial_in, uint8_t partial_out)
{
    struct hd_program *p = tiny_program(1, 2, 2, 0);
    struct hd__tensor t = {.name = "x", .ndim = 2, .dtype = HD_F32, .placement = {{r_in, c_in}, partial_in, HD_SUM, 0}};
    hd_tensor x, y;
    t.dim[0] = hd__dim_new(p, "#r", 8);
    t.dim[1] = hd__dim_new(p, "#c", 8);
    x = hd__tensor_new(p, &t);
    t.name = "y";
    t.placement = (struct hd__placement){{r_out, c_out}, partial_out, HD_SUM, 0};
    y = hd__tensor_new(p, &t);
    tiny_section(p, "micro", 1);
    tiny_op(p, 0, HD_OP_FILL0, NONE, T(x));
    if (hd__is_collective(op))
        tiny_collective(p, 0, op, HD_AXIS_TP, x, y)->flags = HD__FLAG_CONV;
    else
        tiny_op(p, 0, op, T(x), T(y));
    tiny_finish(p);
    return p;
}

#define DP (uint32_t)(HD_AXIS_DP_SHARD + 1)
#define TP (uint32_t)(HD_AXIS_TP + 1)
#define TP_BIT HD_AXIS_BIT(HD_AXIS_TP)

START_TEST(an_op_that_no_rule_places)
{
    assert_fine(one(HD_OP_GELU, DP, TP, DP, TP, 0, 0));
    assert_fault(one(HD_OP_GELU, DP, 0, DP, 0, TP_BIT, TP_BIT), /* not linear: partial sums do not flow */
                 "micro #1 gelu y: no placement rule of this op allows this on tp: x partial -> y partial");
    assert_fault(one(HD_OP_GELU, DP, TP, DP, 0, 0, 0),
                 "micro #1 gelu y: no placement rule of this op allows this on tp: x #c -> y replicated");
    assert_fault(one(HD_OP_GELU, DP | TP << 4, 0, TP | DP << 4, 0, 0, 0),
                 "micro #1 gelu y: x and y are sharded by the same axes in a different order");
}
END_TEST

START_TEST(a_conversion_that_is_none)
{
    assert_fine(one(HD_OP_ALL_REDUCE, DP, 0, DP, 0, TP_BIT, 0));
    assert_fault(one(HD_OP_ALL_REDUCE, DP, 0, DP, 0, 0, 0),
                 "micro #1 all_reduce(tp) y: x does not have the placement of this conversion's input");
    assert_fault(one(HD_OP_ALL_REDUCE, DP, 0, DP, 0, TP_BIT, TP_BIT),
                 "micro #1 all_reduce(tp) y: y does not have the placement of this conversion's output");
    assert_fault(one(HD_OP_ALL_REDUCE, DP, 0, 0, DP, TP_BIT, 0),
                 "micro #1 all_reduce(tp) y: x is #r on dp_shard, y is #c: the conversion is not over dp_shard");
    assert_fault(one(HD_OP_ALL_GATHER, TP | DP << 4, 0, DP, 0, 0, 0), /* tp is major: what leaves is the minor axis */
                 "micro #1 all_gather(tp) y: x does not have the placement of this conversion's input");
}
END_TEST

START_TEST(pieces_that_differ)
{
    struct hd_program *p;
    assert_fine(one(HD_OP_COPY, DP, TP, DP, TP, 0, 0));
    assert_fault(one(HD_OP_COPY, DP, 0, TP, 0, 0, 0), "micro #1 copy y: x and y hold different shards of #r");
    p = tiny_step(2, 1, 1);
    hd__tensor_at(p, p->flats.at[0].tensor[HD__FLAT_SHARD])->placement.shard[0] = hd__shard_push(0, HD_AXIS_TP);
    ck_assert_int_eq(hd__verify(p, &err), HD_E_INVALID);
    ck_assert_msg(strstr(err.message, "update #0 sgd M: GS and M hold different shards of #f") != NULL, "%s",
                  err.message);
    hd__program_free(p);
    p = one(HD_OP_GELU, DP, 0, DP, 0, 0, 0);
    p->dims.at[hd__tensor_const(p, 1)->dim[0]].extent = 7;
    ck_assert_int_eq(hd__verify(p, &err), HD_E_INVALID);
    ck_assert_msg(strstr(err.message, "x cannot be sharded 2 ways along #r, whose extent is 7") != NULL, "%s",
                  err.message);
    hd__program_free(p);
}
END_TEST

/* ---- obligations */

START_TEST(a_dropped_reduction)
{
    struct hd_program *p = tiny_step(2, 2, 0);
    tiny_drop(p, MICRO_LAST, tiny_find(p, MICRO_LAST, HD_OP_ALL_REDUCE, "G", 0));
    assert_fault(p, "update #0 sgd P: w: not reduced over dp_shard");
    p = tiny_step(2, 2, 0);
    tiny_drop(p, MICRO_LAST, tiny_find(p, MICRO_LAST, HD_OP_ALL_REDUCE, "G[16:32]", 0));
    assert_fault(p, "update #0 sgd P: n: not reduced over tp");
    p = tiny_step(2, 2, 1);
    tiny_drop(p, MICRO_LAST, tiny_find(p, MICRO_LAST, HD_OP_REDUCE_SCATTER, NULL, 0));
    assert_fault(p, "update #0 sgd M: w has no gradient");
}
END_TEST

START_TEST(a_double_reduction)
{
    struct hd_program *p = tiny_step_raw(2, 2, 0);
    uint32_t at = tiny_find(p, MICRO_LAST, HD_OP_ALL_REDUCE, "G", 0);
    struct hd__instr again = p->sections.at[MICRO_LAST].code.at[at];
    again.id = ++p->next_id;
    tiny_insert(p, MICRO_LAST, at + 1, again);
    tiny_finish(p);
    assert_fault(p, "micro_last #9 all_reduce(dp_shard) G: w: reduced twice over dp_shard");
}
END_TEST

START_TEST(a_reduction_in_a_repeated_section)
{
    struct hd_program *p = tiny_step_raw(2, 1, 0); /* micro runs twice: the second round adds to reduced sums */
    tiny_collective(p, MICRO, HD_OP_ALL_REDUCE, HD_AXIS_DP_SHARD, p->flats.at[0].tensor[HD__FLAT_GRAD],
                    p->flats.at[0].tensor[HD__FLAT_GRAD]);
    tiny_finish(p);
    assert_fault(p, "micro #2 accum G:w: w: accumulated after it was partly reduced: the sum so far is "
                    "unreduced over [], this term over [dp_shard]");
}
END_TEST

START_TEST(a_contribution_with_another_placement)
{
    struct hd_program *p = tiny_step(2, 2, 0);
    uint32_t at = tiny_find(p, MICRO, HD_OP_ACCUM, "G:n", 0);
    hd_tensor *in = &p->sections.at[MICRO].code.at[at].in[0];
    *in = hd__tensor_new(p, hd__tensor_const(p, *in));
    hd__tensor_at(p, *in)->role = HD__ROLE_FLAT; /* another view of the same memory */
    hd__tensor_at(p, *in)->placement.partial = HD_AXIS_BIT(HD_AXIS_DP_SHARD);
    assert_fault(p, "micro #4 accum G:n: contribution to n is partial over [dp_shard], but its gradient must be "
                    "partial over [dp_shard.tp]");
}
END_TEST

START_TEST(a_missing_contribution)
{
    struct hd_program *p = tiny_step(2, 1, 2);
    tiny_drop(p, MICRO, tiny_find(p, MICRO, HD_OP_ACCUM, "GS", 0));
    tiny_drop(p, MICRO_LAST, tiny_find(p, MICRO_LAST, HD_OP_ACCUM, "GS", 0));
    assert_fault(p, "update #0 sgd M: w has no gradient");
    p = tiny_step(2, 1, 2);
    tiny_drop(p, MICRO_LAST, tiny_find(p, MICRO_LAST, HD_OP_ACCUM, "GS", 0));
    assert_fault(
        p, "update #0 sgd M: gradient of w is not the sum over its micro-batches: a term is missing, doubled or wrong");
}
END_TEST

START_TEST(a_dropped_clear)
{
    struct hd_program *p = tiny_step(2, 1, 0);
    tiny_drop(p, BEGIN, tiny_find(p, BEGIN, HD_OP_FILL0, NULL, 0));
    assert_fault(p, "micro #2 accum G:w: w: accumulates into a buffer that nothing has zeroed");
}
END_TEST

START_TEST(a_dropped_update)
{
    struct hd_program *p = tiny_step(2, 1, 0);
    tiny_drop(p, UPDATE, tiny_find(p, UPDATE, HD_OP_SGD, NULL, 0));
    assert_fault(p, "update, at its end: parameters f are updated 0 times in a step, not once");
}
END_TEST

/* ---- dtypes */

START_TEST(a_read_in_another_dtype)
{
    struct hd_program *p = tiny_step(2, 1, 2);
    struct hd__instr *i = &p->sections.at[MICRO].code.at[tiny_find(p, MICRO, HD_OP_BIAS_DW, NULL, 0)];
    hd_tensor view = hd__tensor_new(p, hd__tensor_const(p, i->in[0]));
    hd__tensor_at(p, view)->dtype = HD_BF16;
    i->in[0] = view;
    ck_assert_int_eq(hd__verify(p, &err), HD_E_INVALID);
    ck_assert_msg(strstr(err.message, "x is read as bf16, but its memory holds fp32"), "%s", err.message);
    hd__program_free(p);
}
END_TEST

START_TEST(a_collective_that_changes_the_dtype)
{
    struct hd_program *p = tiny_step(2, 1, 2);
    struct hd__code_section *s = &p->sections.at[MICRO_LAST];
    hd_tensor gs = s->code.at[tiny_find(p, MICRO_LAST, HD_OP_REDUCE_SCATTER, NULL, 0)].out[0];
    hd__tensor_at(p, gs)->dtype = HD_BF16;
    assert_fault(p, "micro_last #6 reduce_scatter(dp_shard) gs: gs is bf16, but this output of reduce_scatter is fp32");
}
END_TEST

/* Gradients, in fp16 where precision.reduce is bf16; a strategy compresses only where it says nothing. */
START_TEST(a_wire_of_another_dtype)
{
    struct hd_program *p = tiny_step(2, 1, 2);
    p->precision.grad = HD_BF16;
    p->precision.reduce = HD_F16;
    ck_assert_int_eq(hd__verify(p, &err), HD_E_INVALID);
    ck_assert_msg(strstr(err.message, "g travels in fp32, but precision.reduce is fp16"), "%s", err.message);
    hd__program_free(p);
}
END_TEST

/* ---- the plan of what is persistent */

START_TEST(persistent_buffers_that_overlap)
{
    struct hd_program *p = tiny_step(2, 1, 2);
    uint32_t b = p->buffers.count;
    char expected[160];
    while (p->buffers.at[--b].life != HD__LIFE_PERSISTENT || p->buffers.at[b].offset < 64)
        ;
    p->buffers.at[b].offset -= 64;
    ck_assert_int_eq(hd__verify(p, &err), HD_E_INVALID);
    snprintf(expected, sizeof expected, ", which begins at %lld", (long long)p->buffers.at[b].offset);
    ck_assert_msg(strstr(err.message, "persistent ") == err.message && strstr(err.message, expected), "%s",
                  err.message);
    hd__program_free(p);
    p = tiny_step(2, 1, 2);
    p->buffers.at[b].bytes += 64; /* out of its region, or into a neighbour */
    ck_assert_int_eq(hd__verify(p, &err), HD_E_INVALID);
    hd__program_free(p);
}
END_TEST

START_TEST(arenas_that_overlap)
{
    struct hd_program *p = tiny_step(2, 1, 2);
    p->arena_base[HD__MEM_HOST] -= 4096;
    ck_assert_int_eq(hd__verify(p, &err), HD_E_INVALID);
    ck_assert_msg(strstr(err.message, "arena 1 begins at ") == err.message, "%s", err.message);
    hd__program_free(p);
}
END_TEST

/* ---- what a step is fed, and what its gradients begin with */

START_TEST(a_micro_batch_too_many)
{
    for (int32_t accumulation = 2; accumulation <= 4; accumulation++) {
        struct hd_program *p = tiny_program(1, 1, 1, 0);
        p->accumulation = accumulation;
        tiny_section(p, "begin", 1);
        tiny_section(p, "micro", 2);
        tiny_section(p, "micro_last", 1);
        for (uint32_t s = MICRO; s <= MICRO_LAST; s++) {
            hd_tensor ids = tiny_vector(p, "ids", 16);
            p->ids = p->ids ? p->ids : ids;
            hd__tensor_at(p, ids)->origin = p->ids;
            hd__tensor_at(p, ids)->dtype = HD_I32;
            tiny_op(p, s, HD_OP_FEED, NONE, T(ids));
        }
        tiny_finish(p);
        if (accumulation == 3) {
            assert_fine(p);
            continue;
        }
        char expected[80];
        snprintf(expected, sizeof expected, "step 1 is fed 3 micro-batches of ids, and has %d", accumulation);
        assert_fault(p, expected);
    }
}
END_TEST

START_TEST(a_gradient_without_the_loss_scale)
{
    struct hd_program *p = tiny_program(1, 1, 1, 0);
    hd_tensor seed = tiny_vector(p, "seed", 16);
    p->scale = tiny_state(p, "loss_scale", 16);
    hd__tensor_at(p, p->scale)->dtype = p->precision.fixed = HD_F64;
    hd__tensor_at(p, seed)->dtype = HD_F64;
    tiny_section(p, "micro_last", 1);
    tiny_op(p, 0, HD_OP_SPREAD, NONE, T(seed));
    tiny_finish(p);
    assert_fault(p, "micro_last #0 spread seed: seed is not multiplied by its loss's scale");
}
END_TEST

/* With labels that count, the loss's scale would make a mean over tokens one over labels. */
START_TEST(an_auxiliary_loss_with_the_scale_of_the_loss)
{
    struct hd_program *p = tiny_program(1, 1, 1, 0);
    hd_tensor terms = tiny_vector(p, "terms", 16), loss = tiny_vector(p, "balance", 1);
    hd_tensor seed = tiny_vector(p, "seed", 16);
    struct hd_attrs mean = {.struct_size = sizeof mean, .scale = 0.5};
    struct hd__instr total = hd__instr_new(p, HD_OP_TOTAL), *spread;
    total.attrs = hd__attrs_new(p, &mean);
    total.in[total.n_in++] = terms;
    total.out[total.n_out++] = loss;
    hd__push(&p->logical, total);
    hd__push(&p->auxiliary, loss);
    p->forward = p->logical.count;
    p->precision.fixed = HD_F64;
    hd_tensor *scales[] = {&p->scale, &p->auxiliary_scale};
    for (int k = 0; k < 2; k++) {
        *scales[k] = tiny_state(p, k ? "auxiliary_scale" : "loss_scale", 1);
        hd__tensor_at(p, *scales[k])->dtype = HD_F64;
    }
    hd__tensor_at(p, seed)->dtype = HD_F64;
    hd__tensor_at(p, seed)->grad_of = terms;
    tiny_section(p, "micro_last", 1);
    spread = tiny_op(p, 0, HD_OP_SPREAD, T(*scales[_i]), T(seed));
    spread->attrs = hd__attrs_new(p, &mean);
    tiny_finish(p);
    if (_i)
        assert_fine(p);
    else
        assert_fault(p, "micro_last #0 spread seed: seed is not multiplied by its loss's scale");
}
END_TEST

int main(void)
{
    TCase *c = tcase_create("verify");
    tcase_add_checked_fixture(c, set_up, NULL);
    tcase_add_test(c, correct_steps_pass);
    tcase_add_test(c, use_before_definition);
    tcase_add_test(c, use_after_release);
    tcase_add_test(c, two_releases);
    tcase_add_test(c, use_after_the_memory_was_taken);
    tcase_add_test(c, a_missing_wait);
    tcase_add_test(c, never_waited_for);
    tcase_add_test(c, waited_for_twice);
    tcase_add_test(c, a_wait_for_another_section);
    tcase_add_test(c, memory_of_two_at_once);
    tcase_add_test(c, what_lives_for_a_step);
    tcase_add_test(c, a_newcomer_on_planned_memory);
    tcase_add_test(c, memory_of_one_behind_a_crowd);
    tcase_add_loop_test(c, a_collective_of_another_size, 0, (int)HD__COUNT(collectives));
    tcase_add_test(c, operands_that_do_not_fit);
    tcase_add_test(c, a_lost_partial_sum);
    tcase_add_test(c, an_op_that_no_rule_places);
    tcase_add_test(c, a_conversion_that_is_none);
    tcase_add_test(c, pieces_that_differ);
    tcase_add_test(c, a_dropped_reduction);
    tcase_add_test(c, a_double_reduction);
    tcase_add_test(c, a_reduction_in_a_repeated_section);
    tcase_add_test(c, a_contribution_with_another_placement);
    tcase_add_test(c, a_missing_contribution);
    tcase_add_test(c, a_dropped_clear);
    tcase_add_test(c, a_dropped_update);
    tcase_add_test(c, a_read_in_another_dtype);
    tcase_add_test(c, a_collective_that_changes_the_dtype);
    tcase_add_test(c, a_wire_of_another_dtype);
    tcase_add_test(c, persistent_buffers_that_overlap);
    tcase_add_test(c, arenas_that_overlap);
    tcase_add_test(c, a_micro_batch_too_many);
    tcase_add_test(c, a_gradient_without_the_loss_scale);
    tcase_add_loop_test(c, an_auxiliary_loss_with_the_scale_of_the_loss, 0, 2);
    return suite_run_case("verify", c);
}
