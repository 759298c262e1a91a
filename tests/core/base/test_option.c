/* One value as text -> a field; tables that are wrong; printing. */
#include <check.h>
#include <math.h>
#include <stdlib.h>

#include "core/base/option.h"
#include "tests/suite.h"

struct settings {
    int32_t flag, choice;
    int64_t count, bytes;
    double rate, wait;
    const char *name;
    struct hd_list list, ratios;
};

#define AT(field) offsetof(struct settings, field)
static const struct hd_option table[] = {
    {.name = "flag", .type = HD_OPT_BOOL, .value = "yes", .offset = AT(flag), .help = "a switch"},
    {.name = "choice",
     .type = HD_OPT_ENUM,
     .value = "1f1b",
     .choices = "gpipe|1f1b|interleaved",
     .offset = AT(choice),
     .help = "a schedule",
     .aliases = "order|kind"},
    {.name = "count",
     .type = HD_OPT_INT,
     .value = "3",
     .min = 0,
     .max = 9,
     .offset = AT(count),
     .unit = "layers",
     .help = "how many"},
    {.name = "bytes",
     .type = HD_OPT_SIZE,
     .value = "25MB",
     .min = 1,
     .max = INFINITY,
     .offset = AT(bytes),
     .level = HD_LEVEL_TUNER,
     .help = "a bucket"},
    {.name = "rate",
     .type = HD_OPT_FLOAT,
     .flags = HD_OPTION_REQUIRED | HD_OPTION_GLOBAL,
     .offset = AT(rate),
     .help = "speed"},
    {.name = "wait.for", .type = HD_OPT_DURATION, .value = "5m", .offset = AT(wait), .help = "patience"},
    {.name = "name", .type = HD_OPT_STRING, .offset = AT(name), .help = "a word"},
    {.name = "list", .type = HD_OPT_LIST, .value = "[a, 'b, c', \"d\\\"\"]", .offset = AT(list), .help = "words"},
    {.name = "ratios",
     .type = HD_OPT_LIST,
     .value = "[0.9, 0.95]",
     .min = 0,
     .max = 1,
     .offset = AT(ratios),
     .help = "numbers"},
};
static const struct hd__options options = HD__OPTIONS(table);

static struct hd__arena arena;
static struct hd_error err = HD_ERROR_INIT;

/* Parses `text` as the option called `name`; returns what the field then reads as, or the message. */
static const char *parse(const char *name, const char *text)
{
    struct settings s = {0}, before = {0};
    struct hd_option o = hd__option_at(&options, (size_t)hd__option_find(&options, name));
    if (hd__option_parse(&o, text, &s, &arena, &err)) {
        ck_assert_int_eq(err.code, HD_E_INVALID);
        ck_assert_mem_eq(&s, &before, sizeof s); /* nothing is written on an error */
        return err.message;
    }
    return hd__option_text(&o, &s, &arena);
}

static const struct {
    const char *option, *text, *want;
} values[] = {
    {"flag", "true", "true"},
    {"flag", "no", "false"},
    {"flag", "True", "true"},
    {"flag", "OFF", "false"},
    {"flag", "off", "false"},
    {"flag", "on", "true"},
    {"flag", "Treu", "'Treu' is neither true nor false"},
    {"flag", "1", "'1' is neither true nor false"},
    {"count", "7", "7"},
    {"count", "+7", "7"},
    {"count", "0_0", "0"},
    {"count", "010", "'010' begins with a zero: write 10"}, /* octal elsewhere */
    {"count", "1__0", "'1__0' is not a whole number"},
    {"count", "10", "10 is out of range: 0 to 9"},
    {"count", "-1", "-1 is out of range: 0 to 9"},
    {"count", "2e0", "2"},
    {"count", "0.03E2", "3"},
    {"count", "1.0", "'1.0' is not written as a whole number: write 1"},
    {"count", "1e1", "1e1 is out of range: 0 to 9"},
    {"count", "15e-1", "'15e-1' is not a whole number of layers"},
    {"choice", "GPipe", "gpipe"},
    {"count", "2.0", "'2.0' is not written as a whole number: write 2"},
    {"count", "2.5", "'2.5' is not a whole number of layers"},
    {"count", "0x5", "'0x5' is not a whole number"},
    {"count", "5 ", "'5 ' is not a whole number"},
    {"count", "5_", "'5_' is not a whole number"},
    {"count", "_5", "'_5' is not a whole number"},
    {"count", "", "'' is not a whole number"},
    {"count", "-", "'-' is not a whole number"},
    {"count", "99999999999999999999", "'99999999999999999999' does not fit 64 bits"},
    {"rate", "1e-4", "0.0001"},
    {"rate", "3e-5", "3.0e-05"},
    {"rate", "-.5", "-0.5"},
    {"rate", "0.1", "0.1"},
    {"rate", "1", "1"},
    {"rate", "1e400", "'1e400' is too large for a 64-bit float"},
    {"rate", "1e-400", "'1e-400' is too small for a 64-bit float"},
    {"rate", "inf", "'inf' is not a number"},
    {"rate", "nan", "'nan' is not a number"},
    {"rate", "1.2.3", "'1.2.3' is not a number"},
    {"rate", "1,5", "'1,5' is not a number"},
    {"rate", "no", "'no' is not a number"},
    {"rate", "0x1p3", "'0x1p3' is not a number"},
    {"bytes", "25MB", "25MB"},
    {"bytes", "1MiB", "1MiB"},
    {"bytes", "1.5 GiB", "1536MiB"},
    {"bytes", "0.1MB", "100kB"},
    {"bytes", "4096", "4KiB"},
    {"bytes", "1000", "1kB"},
    {"bytes", "1001", "1001"},
    {"bytes", "17B", "17"},
    {"bytes", "0", "0 is too small: at least 1"},
    {"bytes", "0.5B", "'0.5B' is not a whole number of bytes"},
    {"bytes", "-1MB", "'-1MB' is not a possible number of bytes"},
    {"bytes", "9000000TiB", "'9000000TiB' is not a possible number of bytes"},
    {"bytes", "25M", "'25M': M is not a unit; write MB (powers of 1000) or MiB (of 1024)"},
    {"bytes", "25k", "'25k': k is not a unit; write kB (powers of 1000) or KiB (of 1024)"},
    {"bytes", "25mb", "'25mb': unknown unit; allowed are B, kB, MB, GB, TB, KiB, MiB, GiB, TiB"},
    {"bytes", "big", "'big' is not a size: write 25MB (10^6 bytes), 16MiB (2^20) or 4096"},
    {"wait.for", "300s", "300s"},
    {"wait.for", "5m", "300s"},
    {"wait.for", "20ms", "0.02s"},
    {"wait.for", "7us", "7.0e-06s"},
    {"wait.for", "1.5h", "5400s"},
    {"wait.for", "2", "2s"},
    {"wait.for", "-2s", "'-2s' is not a duration: write 300s, 5m or 20ms"},
    {"wait.for", "2 weeks", "'2 weeks': unknown unit; allowed are us, ms, s, m, h, d"},
    {"choice", "interleaved", "interleaved"},
    {"choice", "gpip", "'gpip' is none of gpipe, 1f1b, interleaved; did you mean gpipe?"},
    {"choice", "whatever", "'whatever' is none of gpipe, 1f1b, interleaved"},
    {"name", "a/b.txt", "a/b.txt"},
    {"name", "no", "no"},
    {"name", "null", "\"null\""},
    {"name", "", "\"\""},
    {"name", "a: b # c", "\"a: b # c\""},
    {"name", "tab\there", "\"tab\\x09here\""},
    {"name", "caf\xc3\xa9", "\"caf\xc3\xa9\""},
    {"name", "\xe2\x80\xa8", "\"\\u2028\""},
    {"list", "[x, y]", "[x, y]"},
    {"list", "x", "[x]"},
    {"list", "[]", "[]"},
    {"list", "[x", "'[x' is not a list: write [a, b, c]"},
    {"list", "['x]", "'['x]' is not a list: write [a, b, c]"},
    {"list", "[x] y", "'[x] y' is not a list: write [a, b, c]"},
    {"ratios", "[0.5, x]", "item 2, 'x', is not a number"},
    {"ratios", "[0.5, 1.5]", "1.5 is out of range: 0 to 1"},
};

START_TEST(many_choices)
{
    enum { CHOICES = 100 };
    struct hd__text choices = {0};
    int32_t at = -1;
    for (int i = 0; i < CHOICES; i++)
        hd__text_add(&choices, "%sc%d", i ? "|" : "", i);
    struct hd_option o = {.name = "n", .type = HD_OPT_ENUM, .choices = choices.at};
    ck_assert_int_eq(hd__option_parse(&o, "c99", &at, &arena, &err), HD_OK);
    ck_assert_int_eq(at, 99);
    ck_assert_int_eq(hd__option_parse(&o, "c100", &at, &arena, &err), HD_E_INVALID);
    ck_assert_ptr_nonnull(strstr(err.message, "98, c99; did you mean c10?"));
    hd__text_free(&choices);
}
END_TEST

START_TEST(value)
{
    ck_assert_str_eq(parse(values[_i].option, values[_i].text), values[_i].want);
}
END_TEST

/* Words are spellings of values, of all names of a key or of one; "?": there is no such value, and why. */
START_TEST(words)
{
    struct hd_option o = {.name = "n",
                          .type = HD_OPT_INT,
                          .value = "1",
                          .help = "a number",
                          .words = "true=1|other:lots=7|gone=?it went",
                          .flags = HD_OPTION_FIXED};
    struct hd__options one = {&o, 1, sizeof o};
    struct hd__text text = {0};
    ck_assert_str_eq(hd__option_word(&o, "n", "TRUE", &arena), "1");
    ck_assert_str_eq(hd__option_word(&o, "other", "lots", &arena), "7");
    ck_assert_ptr_null(hd__option_word(&o, "n", "lots", &arena));
    ck_assert_str_eq(hd__option_word(&o, "n", "gone", &arena), "?it went");
    ck_assert_ptr_null(hd__option_word(&o, "n", "tru", &arena));
    ck_assert_ptr_null(hd__option_word(&o, "n", "other:lots", &arena));
    hd__options_print(&one, &text);
    ck_assert_ptr_nonnull(strstr(text.at, "a number; true = 1, other: lots = 7; always so\n"));
    hd__text_free(&text);
    ck_assert_int_eq(hd__options_check(&one, sizeof(int64_t), &err), HD_OK);
    o.words = "true=yes";
    ck_assert_int_eq(hd__options_check(&one, sizeof(int64_t), &err), HD_E_INVALID);
    ck_assert_str_eq(err.message, "option n: 'true=yes' among its words: 'yes' is not a whole number");
    o.words = "true";
    ck_assert_int_eq(hd__options_check(&one, sizeof(int64_t), &err), HD_E_INVALID);
    ck_assert_str_eq(err.message, "option n: 'true' among its words: WORD=VALUE is wanted");
    o.words = o.value = NULL;
    ck_assert_int_eq(hd__options_check(&one, sizeof(int64_t), &err), HD_E_INVALID);
    ck_assert_str_eq(err.message, "option n is always its default and has none");
}
END_TEST

/* A dotted option's alias is one beside it, too; an alias with dots is a mapping. */
START_TEST(names_beside)
{
    static const struct hd_option rows[] = {{.name = "compress.rank", .aliases = "approximation_rank"},
                                            {.name = "path", .aliases = "nvme.path|folder"}};
    struct hd__options t = HD__OPTIONS(rows);
    ck_assert_int_eq(hd__option_find(&t, "approximation_rank"), 0);
    ck_assert_int_eq(hd__option_find(&t, "compress.approximation_rank"), 0);
    ck_assert_int_eq(hd__option_find(&t, "offload.approximation_rank"), -1);
    ck_assert_int_eq(hd__option_find(&t, "nvme.path"), 1);
    ck_assert_int_eq(hd__option_find(&t, "nvme.folder"), -1);
    ck_assert(hd__option_prefix(&t, "compress"));
    ck_assert(hd__option_prefix(&t, "nvme"));
    ck_assert(!hd__option_prefix(&t, "folder"));
}
END_TEST

START_TEST(extremes)
{
    struct settings s;
    struct hd_option o = {.name = "n", .type = HD_OPT_INT, .offset = AT(count)};
    ck_assert_int_eq(hd__option_parse(&o, "9223372036854775807", &s, &arena, &err), HD_OK);
    ck_assert_int_eq(s.count, INT64_MAX);
    ck_assert_int_eq(hd__option_parse(&o, "-9223372036854775808", &s, &arena, &err), HD_OK);
    ck_assert_int_eq(s.count, INT64_MIN);
    o = (struct hd_option){.name = "x", .type = HD_OPT_FLOAT, .offset = AT(rate)};
    ck_assert_int_eq(hd__option_parse(&o, "0.30000000000000004", &s, &arena, &err), HD_OK);
    ck_assert_double_eq(s.rate, 0.1 + 0.2);
    ck_assert_str_eq(hd__option_text(&o, &s, &arena), "0.30000000000000004");
    char long_number[400];
    memset(long_number, '1', sizeof long_number - 1);
    long_number[sizeof long_number - 1] = 0;
    ck_assert_int_eq(hd__option_parse(&o, long_number, &s, &arena, &err), HD_E_INVALID);
    o.type = 77;
    ck_assert_int_eq(hd__option_parse(&o, "1", &s, &arena, &err), HD_E_INTERNAL);
}
END_TEST

START_TEST(defaults)
{
    struct settings s = {0};
    ck_assert_int_eq(hd__options_check(&options, sizeof s, &err), HD_OK);
    ck_assert_int_eq(hd__options_defaults(&options, &s, &arena, &err), HD_OK);
    ck_assert_int_eq(s.flag, 1);
    ck_assert_int_eq(s.choice, 1);
    ck_assert_int_eq(s.bytes, 25000000);
    ck_assert_double_eq(s.wait, 300);
    ck_assert_ptr_null(s.name);
    ck_assert_uint_eq(s.list.count, 3);
    ck_assert_str_eq(s.list.text[1], "b, c");
    ck_assert_str_eq(s.list.text[2], "d\"");
    ck_assert(isnan(s.list.number[0]));
    ck_assert_double_eq(s.ratios.number[1], 0.95);
    ck_assert_int_eq(hd__option_find(&options, "order"), 1);
    ck_assert_int_eq(hd__option_find(&options, "orde"), -1);
    ck_assert(hd__option_prefix(&options, "wait"));
    ck_assert(!hd__option_prefix(&options, "wai"));
}
END_TEST

/* A plugin of older headers has shorter rows: what it does not have is zero. */
START_TEST(shorter_rows)
{
    enum { SHORT = offsetof(struct hd_option, offset) + sizeof(size_t), ROW = SHORT + 16 };
    static char bytes[2 * ROW];
    memcpy(bytes, &table[0], SHORT);
    memcpy(bytes + ROW, &table[2], SHORT);
    struct hd__options longer = {(const struct hd_option *)(void *)bytes, 2, ROW};
    ck_assert_str_eq(hd__option_at(&longer, 1).name, "count");
    ck_assert_int_eq(hd__option_find(&longer, "count"), 1);
    struct hd__options shorter = {(const struct hd_option *)(void *)bytes, 1, offsetof(struct hd_option, choices)};
    ck_assert_str_eq(hd__option_at(&shorter, 0).help, "a switch");
    ck_assert_uint_eq(hd__option_at(&shorter, 0).type, 0);
}
END_TEST

static const struct {
    struct hd_option row[2];
    const char *want;
} wrong[] = {
    {{{.type = HD_OPT_INT}}, "option 0 has no name"},
    {{{.name = "use", .type = HD_OPT_INT}}, "no option may be called use: it names the component"},
    {{{.name = "Big", .type = HD_OPT_INT}}, "option Big: names are lower-case letters, digits, _ - and ."},
    {{{.name = "x", .type = 9}}, "option x has the unknown type 9"},
    {{{.name = "x", .type = HD_OPT_INT, .offset = 12}},
     "option x: 8 bytes at offset 12 do not fit settings of 16 bytes"},
    {{{.name = "x", .type = HD_OPT_INT, .offset = SIZE_MAX - 7}},
     "option x: 8 bytes at offset 18446744073709551608 do not fit settings of 16 bytes"},
    {{{.name = "x", .type = HD_OPT_LIST}}, "option x: 24 bytes at offset 0 do not fit settings of 16 bytes"},
    {{{.name = "x", .type = HD_OPT_ENUM}}, "option x is an enum without choices"},
    {{{.name = "x", .type = HD_OPT_INT, .value = "1", .flags = HD_OPTION_REQUIRED}},
     "option x is required and has a default"},
    {{{.name = "x", .type = HD_OPT_INT}, {.name = "x", .type = HD_OPT_INT}}, "two options are called x"},
    {{{.name = "x", .type = HD_OPT_INT, .aliases = "a|y"}, {.name = "y", .type = HD_OPT_INT}},
     "two options are called y"},
    {{{.name = "y", .type = HD_OPT_INT}, {.name = "x", .type = HD_OPT_INT, .aliases = "a|y"}},
     "two options are called y"},
    {{{.name = "x", .type = HD_OPT_INT}, {.name = "y", .type = HD_OPT_BOOL, .offset = 4}},
     "options x and y share their field, at offset 4: give each its own"},
    {{{.name = "x", .type = HD_OPT_INT, .value = "one"}}, "the default of option x: 'one' is not a whole number"},
};

START_TEST(wrong_table)
{
    struct hd__options t = {wrong[_i].row, wrong[_i].row[1].name ? 2 : 1, sizeof(struct hd_option)};
    ck_assert_int_eq(hd__options_check(&t, 16, &err), HD_E_INVALID);
    ck_assert_str_eq(err.message, wrong[_i].want);
}
END_TEST

START_TEST(printed)
{
    struct hd__text out = {0};
    hd__options_print(&options, &out);
    ck_assert_str_eq(out.at,
                     "option    type      default             what\n"
                     "flag      bool      yes                 a switch\n"
                     "choice    enum      1f1b                a schedule; one of gpipe, 1f1b, interleaved; also called "
                     "order, kind\n"
                     "count     int       3                   how many [layers]; 0 to 9\n"
                     "bytes     size      25MB                a bucket; at least 1; for tuning\n"
                     "rate      float     (required)          speed\n"
                     "wait.for  duration  5m                  patience\n"
                     "name      string    -                   a word\n"
                     "list      list      [a, 'b, c', \"d\\\"\"]  words\n"
                     "ratios    list      [0.9, 0.95]         numbers; 0 to 1\n");
    hd__text_free(&out);
    json_t *json = hd__options_json(&options);
    const char *name, *help;
    int required;
    double low, high;
    ck_assert_uint_eq(json_array_size(json), HD__COUNT(table));
    ck_assert_int_eq(json_unpack(json_array_get(json, 2), "{s:s, s:F, s:F, s:s}", "name", &name, "min", &low, "max",
                                 &high, "help", &help),
                     0);
    ck_assert_str_eq(name, "count");
    ck_assert_double_eq(high, 9);
    ck_assert_int_eq(json_unpack(json_array_get(json, 4), "{s:b}", "required", &required), 0);
    ck_assert_int_eq(required, 1);
    ck_assert_str_eq(json_string_value(json_array_get(json_object_get(json_array_get(json, 1), "aliases"), 1)), "kind");
    ck_assert(json_is_null(json_object_get(json_array_get(json, 3), "max")));
    json_decref(json);
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("option");
    tcase_add_loop_test(tc, value, 0, HD__COUNT(values));
    tcase_add_loop_test(tc, wrong_table, 0, HD__COUNT(wrong));
    tcase_add_test(tc, many_choices);
    tcase_add_test(tc, extremes);
    tcase_add_test(tc, words);
    tcase_add_test(tc, names_beside);
    tcase_add_test(tc, defaults);
    tcase_add_test(tc, shorter_rows);
    tcase_add_test(tc, printed);
    int failed = suite_run_case("option", tc);
    hd__arena_free(&arena);
    return failed;
}
