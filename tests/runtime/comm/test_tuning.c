/* Files of rules: what is read is what was written, and what is wrong is said with its place. */
#include <check.h>
#include <stdlib.h>
#include <unistd.h>

#include "runtime/comm/tuning_file.h"
#include "tests/suite.h"

static const char good[] =
    "{\"heddle_tuning\": 1, \"rules\": [\n"
    "  {\"op\": \"all_reduce\", \"ranks\": 4, \"bytes\": 64KiB, \"use\": \"tree\", \"chunk\": 4096},\n"
    "  {\"op\": \"all_reduce\", \"use\": \"ring\"},\n"
    "  {\"op\": \"broadcast\", \"use\": \"chain\", \"bytes\": 1000000}]}\n";

static const char *chosen(const struct hd__tuning *t, uint32_t coll, uint64_t count, int32_t n, uint64_t *chunk)
{
    struct hd_comm_call call = {.coll = coll, .dtype = HD_F32, .redop = HD_SUM, .count = count};
    return hd__comm_algorithm_select(t, &call, n, chunk)->name;
}

START_TEST(rules_decide)
{
    struct hd__tuning t = {0};
    struct hd_error err = HD_ERROR_INIT;
    uint64_t chunk;
    ck_assert_msg(hd__comm_tuning_parse("t.json", good, sizeof good - 1, &t, &err) == HD_OK, "%s", err.message);
    ck_assert_uint_eq(t.rules.count, 3);
    ck_assert_str_eq(chosen(&t, HD_COLL_ALL_REDUCE, 16384, 4, &chunk), "tree");
    ck_assert_uint_eq(chunk, 4096);
    ck_assert_str_eq(chosen(&t, HD_COLL_ALL_REDUCE, 1 << 20, 4, &chunk), "slices"); /* a ring is not the tree's order */
    ck_assert_str_eq(chosen(&t, HD_COLL_ALL_REDUCE, 16384, 5, &chunk), "slices");
    ck_assert_str_eq(chosen(&t, HD_COLL_BROADCAST, 250000, 2, &chunk), "chain");
    ck_assert_str_eq(chosen(&t, HD_COLL_BROADCAST, 250001, 2, &chunk), "binomial");
    t.any_order = 1;
    ck_assert_str_eq(chosen(&t, HD_COLL_ALL_REDUCE, 16384, 5, &chunk), "ring");
    ck_assert_uint_eq(chunk, HD__DEFAULT_CHUNK);
    hd__comm_tuning_free(&t);
}
END_TEST

START_TEST(written_and_read)
{
    struct hd__tuning a = {0}, b = {0};
    struct hd_error err = HD_ERROR_INIT;
    char path[] = "/tmp/heddle-tuning-XXXXXX";
    int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    close(fd);
    ck_assert(hd__comm_tuning_parse("t.json", good, sizeof good - 1, &a, &err) == HD_OK);
    ck_assert_msg(hd__comm_tuning_write(path, &a, &err) == HD_OK, "%s", err.message);
    ck_assert_msg(hd__comm_tuning_read(path, &b, &err) == HD_OK, "%s", err.message);
    unlink(path);
    ck_assert_uint_eq(a.hash, b.hash);
    ck_assert_uint_eq(b.rules.count, 3);
    a.rules.count = 0;
    b.rules.at[0].chunk++;
    ck_assert(hd__comm_tuning_parse("t.json", good, sizeof good - 1, &a, &err) == HD_OK && a.hash == b.hash);
    hd__comm_tuning_free(&a);
    hd__comm_tuning_free(&b);
}
END_TEST

static const struct {
    const char *text, *message;
} bad[] = {
    {"", "t.json:1:1: "},
    {"[1]", "t.json:1:1: not a tuning file"},
    {"{\"heddle_tuning\": 2, \"rules\": []}", "t.json:1:1: not a tuning file"},
    {"{\"heddle_tuning\": 1}", "rules: a list is wanted"},
    {"{\"heddle_tuning\": 1, \"rules\": 5}", "t.json:1:31: rules: a list is wanted"},
    {"{\"heddle_tuning\": 1, \"rules\": [], \"more\": 1}", "t.json:1:35: unknown key more"},
    {"{\"heddle_tuning\": 1, \"rules\": [\n5]}", "t.json:2:1: a rule is a single value"},
    {"{\"heddle_tuning\": 1, \"rules\": [\n{\"op\": \"all_reduce\"}]}", "t.json:2:1: a rule needs op and use"},
    {"{\"heddle_tuning\": 1, \"rules\": [\n{\"use\": \"ring\"}]}", "t.json:2:1: a rule needs op and use"},
    {"{\"heddle_tuning\": 1, \"rules\": [\n{\"op\": \"sum\", \"use\": \"ring\"}]}", "t.json:2:8: op: "},
    {"{\"heddle_tuning\": 1, \"rules\": [\n{\"op\": \"broadcast\", \"use\": \"ring\"}]}",
     "t.json:2:28: use: there is no algorithm 'ring' for broadcast; there are binomial, chain"},
    {"{\"heddle_tuning\": 1, \"rules\": [\n{\"op\": \"reduce\", \"use\": \"tree\", \"ranks\": 0}]}",
     "t.json:2:42: ranks: "},
    {"{\"heddle_tuning\": 1, \"rules\": [\n{\"op\": \"reduce\", \"use\": \"tree\", \"byte\": 0}]}",
     "t.json:2:33: unknown key byte; the keys are op, ranks, bytes, use, chunk"},
    {"{\"heddle_tuning\": 1, \"rules\": [\n{\"op\": \"reduce\", \"use\": \"tree\", \"chunk\": [1]}]}",
     "t.json:2:42: chunk is a list where a single value is wanted"},
};

START_TEST(refused_with_the_place)
{
    struct hd__tuning t = {0};
    struct hd_error err = HD_ERROR_INIT;
    ck_assert_int_eq(hd__comm_tuning_parse("t.json", bad[_i].text, strlen(bad[_i].text), &t, &err), HD_E_INVALID);
    ck_assert_msg(strstr(err.message, bad[_i].message) && !strncmp(err.message, "t.json", 6), "%s", err.message);
    ck_assert_uint_eq(t.rules.count, 0);
}
END_TEST

/* Bytes changed at random: rules or a message, nothing else. */
START_TEST(any_bytes)
{
    uint64_t random = 99;
    for (int k = 0; k < 20000; k++) {
        struct hd__tuning t = {0};
        struct hd_error err = HD_ERROR_INIT;
        char text[sizeof good];
        memcpy(text, good, sizeof good);
        for (int i = 0; i <= k % 4; i++) {
            random = random * UINT64_C(6364136223846793005) + 1;
            text[(random >> 33) % (sizeof good - 1)] =
                (char)(k & 1 ? good[(random >> 45) % (sizeof good - 1)] : (char)(random >> 56));
        }
        if (hd__comm_tuning_parse("t.json", text, sizeof good - 1, &t, &err) && strncmp(err.message, "t.json", 6))
            ck_abort_msg("%s", err.message);
        hd__comm_tuning_free(&t);
    }
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("tuning");
    tcase_add_test(tc, rules_decide);
    tcase_add_test(tc, written_and_read);
    tcase_add_loop_test(tc, refused_with_the_place, 0, (int)HD__COUNT(bad));
    tcase_add_test(tc, any_bytes);
    return suite_run_case("tuning", tc);
}
