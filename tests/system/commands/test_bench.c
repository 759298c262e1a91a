/* heddle bench: its tables, pages and charts, a device's peak, and ranks of another launcher. */
#include <unistd.h>

#include "tests/system/system.h"

static const json_t *rows_of(const struct command *c)
{
    const json_t *rows = json_object_get(keep(json_loads(c->out, 0, NULL)), "rows");
    ck_assert_msg(json_is_array(rows), "no rows in: %s", c->out);
    return rows;
}

static double number(const json_t *row, const char *key)
{
    ck_assert_msg(json_is_number(json_object_get(row, key)), "%s is not a number", key);
    return json_number_value(json_object_get(row, key));
}

static const char *text_of(const json_t *row, const char *key)
{
    const char *text = json_string_value(json_object_get(row, key));
    ck_assert_msg(text != NULL, "%s is not text", key);
    return text;
}

/* Two settings of one transport are two columns; the fastest of each size is marked, once. */
START_TEST(side_by_side)
{
    struct command *c = command_run("bench --comm shm,shm:stage=64KiB --op all_reduce --out-of-place -b 64 -e 4K -f 8 "
                                    "-n 20 --svg chart.svg");
    int marks = 0, lines = 0;
    expect_code(c, 0);
    ck_assert_msg(strstr(c->out, "shm:stage=64KiB") && strstr(c->out, "out-of-place; *: the fastest"), "%s", c->out);
    for (const char *at = strstr(c->out, "\n#      size"); at && *at; at++)
        marks += *at == '*';
    ck_assert_msg(marks == 3, "%d marks in 3 sizes:\n%s", marks, c->out);
    for (const char *at = read_file("chart.svg"); (at = strstr(at, "<polyline")); at++) {
        const char *stroke = strstr(at, "stroke=\"#"); /* a colour that needs no style sheet */
        ck_assert_msg(stroke && stroke < strchr(at, '>'), "a line without a colour: %.200s", at);
        lines++;
    }
    ck_assert_int_eq(lines, 4); /* of two transports, time and bandwidth */
    ck_assert_ptr_null(strstr(read_file("chart.svg"), "var(--"));
    ck_assert_ptr_null(strstr(read_file("chart.svg"), "<style"));
    c = command_run("bench --comm shm,shm --op all_gather --ranks 3 --out-of-place -b 64 -e 64 -n 5 --json");
    const json_t *second = json_array_get(rows_of(c), 1);
    ck_assert_str_eq(text_of(second, "comm"), "shm (2)");                            /* as a row, so as a column */
    ck_assert(number(second, "count") == 5 && number(second, "bytes") == 3 * 5 * 4); /* 64 is no multiple */
    c = command_run("bench --comm shm:stage");
    expect_code(c, 2);
    expect_says(c, "'stage' is not OPTION=VALUE");
    c = command_run("bench --groups 2 --ranks 3");
    expect_code(c, 2);
    expect_says(c, "--groups 2: --ranks 3 must be a multiple of it, at least twice");
    c = command_run("bench --product 64");
    expect_code(c, 2);
    expect_says(c, "--product wants --overlap");
}
END_TEST

START_TEST(overlap)
{
    struct command *c = command_run("bench --overlap --product 32 --op all_reduce -b 4K -e 4K -n 5 --json");
    const char *const keys[] = {
        "\"products\": ", "\"alone_us\": ", "\"both_us\": ", "\"hidden_percent\": ", "\"errors\": 0"};
    expect_code(c, 0);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        ck_assert_msg(strstr(c->out, keys[i]) != NULL, "no %s in\n%s", keys[i], c->out);
}
END_TEST

/* A page of its own: every operation has a chart, every transport a line, every row its numbers. */
START_TEST(html)
{
    struct command *c = command_run("bench --ranks 2 --op all_reduce,barrier -b 8 -e 512 -f 8 -n 5 --html page.html");
    const char *page;
    int lines = 0;
    expect_code(c, 0);
    page = read_file("page.html");
    ck_assert_ptr_nonnull(strstr(page, "<h2>all_reduce</h2>"));
    ck_assert_ptr_nonnull(strstr(page, "<h2>barrier</h2>"));
    ck_assert_ptr_nonnull(strstr(page, "<th class=\"first group\" colspan=\"4\">shm</th>"));
    ck_assert_ptr_nonnull(strstr(page, "<tr><td>512</td><td class=\"first\">"));
    ck_assert_ptr_nonnull(strstr(
        page, ": <code>heddle bench --ranks 2 --op all_reduce,barrier -b 8 -e 512 -f 8 -n 5 --html page.html</code>"));
    ck_assert_ptr_null(strstr(page, "nan"));
    for (; (page = strstr(page, "<polyline")); page++)
        lines++;
    ck_assert_int_eq(lines, 2); /* time and bandwidth; a barrier has no sizes */
    /* A bench that comes to nothing leaves an older page as it was, and no empty new one. */
    write_file("old.html", "of yesterday");
    expect_code(command_run("bench --comm pigeon --html old.html --svg new.svg"), 2);
    ck_assert_str_eq(read_file("old.html"), "of yesterday");
    ck_assert_int_eq(access("new.svg", F_OK), -1);
    c = command_run("bench --ranks 2 --op all_reduce -e 8 -n 5 --html no/such/folder.html");
    expect_code(c, 2);
    expect_says(c, "no/such/folder.html: No such file or directory");
}
END_TEST

/* A device's peak: products of the dtypes it has, and three streams; nothing that it would not use is taken. */
START_TEST(peak)
{
    static const char *const what[] = {"product", "product", "product", "product", "fill", "copy", "add"};
    struct command *c = command_run("bench --peak --json -e 64K --set threads=1");
    expect_code(c, 0);
    const json_t *rows = rows_of(c);
    ck_assert_uint_eq(json_array_size(rows), HD__COUNT(what));
    for (size_t i = 0; i < HD__COUNT(what); i++) {
        const json_t *row = json_array_get(rows, i);
        double value = number(row, "value");
        ck_assert_str_eq(text_of(row, "what"), what[i]);
        ck_assert_msg(i == 3 ? value == 0 : value > 0, "%s %s: %g", what[i], text_of(row, "dtype"), value);
    }
    c = command_run("bench --peak -e 64K --set threads=1");
    ck_assert((strstr(c->out, "; these fit the cache, ") != NULL) == (sysconf(_SC_LEVEL3_CACHE_SIZE) > 65536));
    c = command_run("bench --peak --op all_reduce");
    expect_code(c, 2);
    expect_says(c, "--op is for transports, not for --peak");
    c = command_run("bench --device cpu");
    expect_code(c, 2);
    expect_says(c, "--device wants --peak");
    c = command_run("bench --peak --device tpu");
    expect_code(c, 2);
    expect_says(c, "there is no plugin device-tpu");
}
END_TEST

/* A launcher of one rank: there is nobody to meet. */
START_TEST(of_one_rank)
{
    struct command *c =
        command_run_env("RANK=0 WORLD_SIZE=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=29400", "bench --op barrier");
    expect_code(c, 0);
    c = command_run_env("RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29400", "bench --overlap");
    expect_code(c, 2);
    expect_says(c, "--overlap wants ranks that it starts itself");
    char *left = keep(hd__format("RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=%d", free_port()));
    c = command_run_env(left, "bench --op barrier --timeout 0.5"); /* of a launcher that has ended */
    expect_code(c, 1);
    expect_says(c, "RANK, WORLD_SIZE or their like in the environment made this rank 0 of 2: start the others, or ");
}
END_TEST

int main(void)
{
    const struct system_test tests[] = {{"peak", peak, 1}, {"side by side", side_by_side, 1}, {"overlap", overlap, 1},
                                        {"page", html, 1}, {"of one rank", of_one_rank, 1},   {NULL, NULL, 0}};
    return system_run("system-bench", tests);
}
