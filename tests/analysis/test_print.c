/* The text and the JSON of a step program. */
#include <check.h>
#include <stdlib.h>

#include "analysis/print.h"
#include "tests/suite.h"
#include "tests/support/tiny.h"

static struct hd__text text;

static void set_up(void)
{
    text = (struct hd__text){0};
}

static void tear_down(void)
{
    hd__text_free(&text);
}

/* Line by line: Check cannot show a text as long as this. */
static void assert_lines(const char *is, const char *expected)
{
    for (int line = 1; *expected; line++) {
        int n = (int)strcspn(expected, "\n"), m = (int)strcspn(is, "\n");
        ck_assert_msg(n == m && !strncmp(is, expected, (size_t)n), "line %d is '%.*s', not '%.*s'", line, m, is, n,
                      expected);
        expected += n + 1;
        is += m + 1;
    }
    ck_assert_int_eq(*is, 0);
}

START_TEST(a_section_as_text)
{
    struct hd_program *p = tiny_step(2, 2, 1);
    hd__program_print(p, &(struct hd__program_print_options){.section = "micro_last", .rank = 3}, &text);
    assert_lines(
        text.at,
        "-- rank 3 of 4: dp 1/2, tp 1/2\n"
        "-- micro_last, once: 9 instructions\n"
        "   0 compute     F fill0              512+64  x f32[1,1,16 #rows:dp #columns:tp]\n"
        "   1 compute     W bias_dw            576+64  dw f32[1,16 #columns:tp P(dp)] <- x f32[1,1,16 #rows:dp "
        "#columns:tp]\n"
        "   2 compute     W accum              128+64  G:w f32[1,16 #columns:tp] +<- dw f32[1,16 #columns:tp P(dp)]\n"
        "   3 compute     W bias_dw            576+64  dn f32[16 P(dp.tp)] <- x f32[1,1,16 #rows:dp #columns:tp]\n"
        "   4 compute     W accum              192+64  G:n f32[16] +<- dn f32[16 P(dp.tp)]\n"
        "   5 tp          F all_reduce(tp)     192+64  G[16:32] f32[16] <- G[16:32] f32[16]\n"
        "   6 compute     F wait                       for #5 all_reduce G[16:32]\n"
        "   7 dp          F reduce_scatter(dp) 256+64  GS f32[16 #f:dp] <- G f32[32]\n"
        "   8 compute     F wait                       for #7 reduce_scatter GS\n"
        "-- totals of section micro_last, this rank\n"
        "   instructions  9\n"
        "   FLOPs         0\n"
        "   sent over     64 B (dp)\n"
        "   sent over     64 B (tp)\n"
        "   arena         640 B = persistent 512 B + temporary 128 B (peak live: 128 B, ratio 1.000)\n"
        "   peak          640 bytes\n");
    hd__program_free(p);
}
END_TEST

START_TEST(all_sections_and_their_totals)
{
    struct hd_program *p = tiny_step(2, 2, 2);
    struct hd__cost_totals totals;
    hd__program_print(p, NULL, &text);
    ck_assert_ptr_nonnull(strstr(text.at, "-- begin, once: 1 instructions\n"));
    ck_assert_ptr_nonnull(strstr(text.at, "-- micro, 2 times: 12 instructions\n"));
    ck_assert_ptr_nonnull(strstr(text.at, "-- totals of one step, this rank\n   instructions  40\n"));
    hd__cost_totals(p, NULL, &totals);
    ck_assert_double_eq(totals.sent[HD_AXIS_BIT(HD_AXIS_TP)], 3 * 64); /* 2 N (n-1)/n of 64 bytes, three times */
    ck_assert_double_eq(totals.sent[HD_AXIS_BIT(HD_AXIS_DP_SHARD)],
                        3 * 64 + 64); /* N (n-1)/n of 128, three times; a gather */
    hd__program_free(p);
}
END_TEST

static json_t *at(json_t *object, const char *key)
{
    json_t *value = json_object_get(object, key);
    ck_assert_msg(value != NULL, "no field %s", key);
    return value;
}

START_TEST(json_says_the_same)
{
    struct hd_program *p = tiny_step(2, 2, 1);
    json_t *all = hd__program_print_json(p, &(struct hd__program_print_options){.rank = 2}), *last, *list, *i, *t;
    ck_assert_int_eq(json_integer_value(at(all, "version")), 1);
    ck_assert_int_eq(json_integer_value(at(at(at(all, "mesh"), "dp_shard"), "coordinate")), 1);
    ck_assert_uint_eq(json_array_size(at(all, "sections")), 4);
    last = json_array_get(at(all, "sections"), 2);
    ck_assert_str_eq(json_string_value(at(last, "name")), "micro_last");
    list = at(last, "instructions");
    ck_assert_uint_eq(json_array_size(list), 9);
    i = json_array_get(list, 7);
    ck_assert_str_eq(json_string_value(at(i, "op")), "reduce_scatter");
    ck_assert_str_eq(json_string_value(at(i, "stream")), "dp_shard");
    ck_assert(json_is_null(at(i, "micro")));
    ck_assert_double_eq(json_real_value(at(i, "sent_bytes")), 64);
    t = json_array_get(at(i, "out"), 0);
    ck_assert_str_eq(json_string_value(at(t, "name")), "GS");
    ck_assert_int_eq(json_integer_value(json_array_get(at(t, "shape"), 0)), 16);
    ck_assert_int_eq(json_integer_value(json_array_get(at(t, "start"), 0)), 16);
    ck_assert_str_eq(json_string_value(json_array_get(at(at(t, "shard"), "#f"), 0)), "dp_shard");
    ck_assert_int_eq(json_integer_value(at(t, "offset")), 256);
    ck_assert(json_is_true(at(t, "persistent")));
    ck_assert_int_eq(json_integer_value(at(json_array_get(list, 8), "waits_for")), 7);
    ck_assert_int_eq(json_integer_value(at(at(at(all, "totals"), "memory"), "arena_bytes")), p->arena_bytes);
    json_decref(all);
    hd__program_free(p);
}
END_TEST

int main(void)
{
    TCase *c = tcase_create("print");
    tcase_add_checked_fixture(c, set_up, tear_down);
    tcase_add_test(c, a_section_as_text);
    tcase_add_test(c, all_sections_and_their_totals);
    tcase_add_test(c, json_says_the_same);
    return suite_run_case("print", c);
}
