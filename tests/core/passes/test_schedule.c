/* Where waits go, which buffers tensors get, and how weight gradients sink. */
#include <check.h>
#include <stdlib.h>

#include "core/passes/passes.h"
#include "core/passes/strategy_api.h"
#include "core/program/ops.h"
#include "tests/suite.h"
#include "tests/support/tiny.h"

static struct hd_program *p;
static struct hd_error err;
static uint32_t s;

static void set_up(void)
{
    err = (struct hd_error)HD_ERROR_INIT;
    p = tiny_program(2, 1, 2, 0);
    s = tiny_section(p, "micro", 1);
}

static void tear_down(void)
{
    hd__program_free(p);
}

static void assert_scheduled(const char *expected)
{
    ck_assert_msg(hd__schedule_instrs(p, &err) == HD_OK, "%s", err.message);
    char *listing = tiny_listing(p, s);
    ck_assert_str_eq(listing, expected);
    free(listing);
}

START_TEST(waits_before_the_first_reader)
{
    hd_tensor a = tiny_vector(p, "a", 8), b = tiny_vector(p, "b", 8), c = tiny_vector(p, "c", 8),
              d = tiny_vector(p, "d", 8);
    tiny_op(p, s, HD_OP_FILL0, NONE, T(a));
    tiny_collective(p, s, HD_OP_ALL_REDUCE, HD_AXIS_TP, a, b);
    tiny_op(p, s, HD_OP_GELU, T(a), T(c));
    tiny_op(p, s, HD_OP_GELU, T(b), T(d));
    assert_scheduled("fill0 a; all_reduce b; gelu c; wait b; gelu d");
}
END_TEST

START_TEST(waits_before_a_writer_of_what_is_read)
{
    hd_tensor a = tiny_vector(p, "a", 8), b = tiny_vector(p, "b", 8), c = tiny_vector(p, "c", 8);
    tiny_op(p, s, HD_OP_FILL0, NONE, T(a));
    tiny_collective(p, s, HD_OP_ALL_REDUCE, HD_AXIS_TP, a, b);
    tiny_op(p, s, HD_OP_FILL0, NONE, T(c));
    tiny_op(p, s, HD_OP_FILL0, NONE, T(a));
    assert_scheduled("fill0 a; all_reduce b; fill0 c; wait b; fill0 a");
}
END_TEST

START_TEST(waits_before_a_release)
{
    hd_tensor a = tiny_vector(p, "a", 8), b = tiny_vector(p, "b", 8);
    tiny_op(p, s, HD_OP_FILL0, NONE, T(a));
    tiny_collective(p, s, HD_OP_ALL_REDUCE, HD_AXIS_TP, a, b);
    tiny_op(p, s, HD_OP_RELEASE, T(a), NONE);
    assert_scheduled("fill0 a; all_reduce b; wait b; release a");
}
END_TEST

START_TEST(waits_at_the_end_for_the_rest_and_once_only)
{
    hd_tensor a = tiny_vector(p, "a", 8), b = tiny_vector(p, "b", 8), c = tiny_vector(p, "c", 8);
    tiny_op(p, s, HD_OP_FILL0, NONE, T(a));
    tiny_collective(p, s, HD_OP_ALL_REDUCE, HD_AXIS_TP, a, b);
    tiny_collective(p, s, HD_OP_ALL_REDUCE, HD_AXIS_PP, a, c);
    assert_scheduled("fill0 a; all_reduce b; all_reduce c; wait b; wait c");
    assert_scheduled("fill0 a; all_reduce b; all_reduce c; wait b; wait c");
}
END_TEST

START_TEST(views_that_do_not_overlap_do_not_wait)
{
    hd_tensor g = tiny_vector(p, "g", 64), left = tiny_view(p, "left", g, 0, 32),
              right = tiny_view(p, "right", g, 32, 32);
    tiny_op(p, s, HD_OP_FILL0, NONE, T(g));
    tiny_collective(p, s, HD_OP_ALL_REDUCE, HD_AXIS_TP, left, left);
    tiny_op(p, s, HD_OP_FILL0, NONE, T(right));
    tiny_op(p, s, HD_OP_FILL0, NONE, T(g));
    assert_scheduled("fill0 g; all_reduce left; fill0 right; wait left; fill0 g");
}
END_TEST

START_TEST(a_window_counts_as_its_whole_view)
{
    hd_tensor g = tiny_vector(p, "g", 64), part = tiny_shard(p, "part", 32, HD_AXIS_TP),
              right = tiny_view(p, "right", g, 32, 32);
    hd__tensor_at(p, part)->buffer = hd__tensor_const(p, g)->buffer;
    hd__tensor_at(p, part)->shard_view = 1;
    tiny_op(p, s, HD_OP_FILL0, NONE, T(g));
    tiny_collective(p, s, HD_OP_REDUCE_SCATTER, HD_AXIS_TP, g, part);
    tiny_op(p, s, HD_OP_FILL0, NONE, T(right));
    assert_scheduled("fill0 g; reduce_scatter part; wait part; fill0 right");
}
END_TEST

START_TEST(sends_wait_for_earlier_sends_of_their_stream)
{
    hd_tensor a = tiny_vector(p, "a", 8), b = tiny_vector(p, "b", 8), c = tiny_vector(p, "c", 8);
    tiny_op(p, s, HD_OP_FILL0, NONE, T(a));
    tiny_op(p, s, HD_OP_FILL0, NONE, T(b));
    tiny_op(p, s, HD_OP_FILL0, NONE, T(c));
    tiny_send(p, s, 1, 1, a);
    tiny_send(p, s, 1, 2, b);
    tiny_send(p, s, 1, 3, c);
    p->send_depth = 2;
    assert_scheduled("fill0 a; fill0 b; fill0 c; send a; send b; wait a; send c; wait b; wait c");
}
END_TEST

START_TEST(weight_gradients_fill_waits)
{
    hd_tensor x = tiny_vector(p, "x", 8), dx = tiny_vector(p, "dx", 8), all = tiny_vector(p, "all", 8);
    hd_tensor dw = tiny_vector(p, "dw", 8), dy = tiny_vector(p, "dy", 8), g = tiny_state(p, "g", 8);
    tiny_op(p, s, HD_OP_FILL0, NONE, T(x));
    tiny_op(p, s, HD_OP_GELU, T(x), T(dx));
    tiny_op(p, s, HD_OP_GELU, T(x), T(dw))->phase = HD__PHASE_W;
    tiny_op(p, s, HD_OP_ACCUM, T(dw), T(g))->phase = HD__PHASE_W;
    tiny_collective(p, s, HD_OP_ALL_REDUCE, HD_AXIS_TP, dx, all);
    tiny_op(p, s, HD_OP_GELU, T(all), T(dy));
    assert_scheduled("fill0 x; gelu dx; all_reduce all; gelu dw; accum g; wait all; gelu dy");
}
END_TEST

START_TEST(weight_gradients_stay_where_nothing_waits)
{
    hd_tensor x = tiny_vector(p, "x", 8), dw = tiny_vector(p, "dw", 8), g = tiny_state(p, "g", 8),
              y = tiny_vector(p, "y", 8);
    tiny_op(p, s, HD_OP_FILL0, NONE, T(x));
    tiny_op(p, s, HD_OP_GELU, T(x), T(dw))->phase = HD__PHASE_W;
    tiny_op(p, s, HD_OP_ACCUM, T(dw), T(g))->phase = HD__PHASE_W;
    tiny_op(p, s, HD_OP_GELU, T(x), T(y));
    assert_scheduled("fill0 x; gelu dw; accum g; gelu y");
}
END_TEST

START_TEST(held_weight_gradients_come_before_who_needs_them)
{
    hd_tensor x = tiny_vector(p, "x", 8), y = tiny_vector(p, "y", 8), z = tiny_vector(p, "z", 8),
              g = tiny_state(p, "g", 8);
    tiny_op(p, s, HD_OP_FILL0, NONE, T(x));
    tiny_op(p, s, HD_OP_ACCUM, T(x), T(g))->phase = HD__PHASE_W;
    tiny_op(p, s, HD_OP_FILL0, NONE, T(y));
    tiny_op(p, s, HD_OP_FILL0, NONE, T(x)); /* overwrites what the held accum reads */
    tiny_collective(p, s, HD_OP_ALL_REDUCE, HD_AXIS_TP, y, z);
    tiny_op(p, s, HD_OP_GELU, T(z), T(x));
    assert_scheduled("fill0 x; fill0 y; accum g; fill0 x; all_reduce z; wait z; gelu x");
}
END_TEST

START_TEST(buffers_are_rounded_and_live_by_role)
{
    hd_tensor a = tiny_vector(p, "a", 17), w = tiny_vector(p, "w", 16);
    hd__tensor_at(p, w)->role = HD__ROLE_PARAM;
    tiny_op(p, s, HD_OP_GELU, T(w), T(a));
    ck_assert_int_eq(hd__schedule_instrs(p, &err), HD_OK);
    const struct hd__buffer *ab = &p->buffers.at[hd__tensor_const(p, a)->buffer],
                            *wb = &p->buffers.at[hd__tensor_const(p, w)->buffer];
    ck_assert_int_eq(ab->bytes, 128);
    ck_assert_int_eq(ab->life, HD__LIFE_TEMP);
    ck_assert_int_eq(wb->bytes, 64);
    ck_assert_int_eq(wb->life, HD__LIFE_PERSISTENT);
}
END_TEST

START_TEST(a_temporary_of_two_sections_is_refused)
{
    hd_tensor a = tiny_vector(p, "a", 8), b = tiny_vector(p, "b", 8);
    uint32_t last = tiny_section(p, "micro_last", 1);
    tiny_op(p, s, HD_OP_FILL0, NONE, T(a));
    tiny_op(p, last, HD_OP_GELU, T(a), T(b));
    ck_assert_int_eq(hd__schedule_instrs(p, &err), HD_E_INTERNAL);
    ck_assert_str_eq(err.message,
                     "temporary a is used in sections micro and micro_last: give it a persistent buffer, or each "
                     "section its own tensor");
}
END_TEST

/* ---- sections */

/* The core's have a kind each; one that a strategy adds has none, whatever its name is, and neither has the first
 * round that is split from another. */
START_TEST(a_section_is_known_by_its_kind)
{
    static const char *const names[] = {"begin", "micro",    "micro_last", "step",   "update",
                                        "eval",  "eval_end", "decode",     "restore"};
    struct hd_program *own = tiny_program(1, 1, 1, 0);
    for (uint8_t kind = HD__SECTION_BEGIN; kind < HD__SECTION_COUNT; kind++) {
        ck_assert_uint_eq(hd__section_kind(names[kind - 1]), kind);
        if (kind == HD__SECTION_STEP)
            continue;
        ck_assert_str_eq(hd__section_new(own, kind, 3)->name, names[kind - 1]);
        ck_assert_ptr_eq(hd__program_section_of(own, kind), hd__program_section(own, names[kind - 1]));
    }
    hd__pass_begin(own, NULL, NULL, HD__PASS_TRANSFORM);
    hd__pass_section(own, "step", 4);
    hd__pass_section(own, "outer", 4);
    hd__pass_first_round(own, (uint32_t)(hd__program_section(own, "micro") - own->sections.at));
    ck_assert_int_eq(hd__pass_end(own, NULL), HD_OK);
    ck_assert_ptr_null(hd__program_section_of(own, HD__SECTION_STEP));
    ck_assert_uint_eq(hd__program_section(own, "step")->kind, HD__SECTION_OTHER);
    ck_assert_uint_eq(hd__program_section(own, "micro_first")->kind, HD__SECTION_OTHER);
    ck_assert_uint_eq(hd__section_kind("outer"), HD__SECTION_OTHER);
    ck_assert(hd__same_section(hd__program_section(own, "outer"), hd__program_section(own, "outer")));
    ck_assert(!hd__same_section(hd__program_section(own, "outer"), hd__program_section(own, "step")));
    ck_assert(!hd__same_section(hd__program_section(own, "micro"), hd__program_section(own, "micro_first")));
    hd__program_free(own);
}
END_TEST

int main(void)
{
    TCase *c = tcase_create("schedule");
    tcase_add_checked_fixture(c, set_up, tear_down);
    tcase_add_test(c, a_section_is_known_by_its_kind);
    tcase_add_test(c, waits_before_the_first_reader);
    tcase_add_test(c, waits_before_a_writer_of_what_is_read);
    tcase_add_test(c, waits_before_a_release);
    tcase_add_test(c, waits_at_the_end_for_the_rest_and_once_only);
    tcase_add_test(c, views_that_do_not_overlap_do_not_wait);
    tcase_add_test(c, a_window_counts_as_its_whole_view);
    tcase_add_test(c, sends_wait_for_earlier_sends_of_their_stream);
    tcase_add_test(c, weight_gradients_fill_waits);
    tcase_add_test(c, weight_gradients_stay_where_nothing_waits);
    tcase_add_test(c, held_weight_gradients_come_before_who_needs_them);
    tcase_add_test(c, buffers_are_rounded_and_live_by_role);
    tcase_add_test(c, a_temporary_of_two_sections_is_refused);
    return suite_run_case("schedule", c);
}
