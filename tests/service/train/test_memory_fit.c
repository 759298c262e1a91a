/* The memory that is left of a machine and its cgroup. */
#include <check.h>
#include <sys/stat.h>

#include "service/train/train.h"
#include "tests/suite.h"
#include "tests/support/scratch.h"

/* In MiB: the machine's, and a cgroup's limit, use and cache; v1 counts those of the groups below apart. */
static const struct row {
    int v1;
    long long available, limit, used, inactive, active, left;
} rows[] = {
    {0, 9000, 4096, 1000, 0, 0, 3096},       {0, 9000, 4096, 4000, 2500, 1000, 3596},
    {0, 2000, 4096, 4000, 2500, 1000, 2000}, {0, 9000, 4096, 1000, 900, 900, 4096},
    {0, 9000, -1, 4000, 2500, 1000, 9000},   {1, 9000, 4096, 1000, 0, 0, 3096},
    {1, 9000, 4096, 4000, 2500, 1000, 3596},
};

static void write_number(const struct scratch *s, const char *folder, const char *name, long long mib)
{
    char path[64], text[32];
    snprintf(path, sizeof path, "%s%s", folder, name);
    snprintf(text, sizeof text, mib < 0 ? "max\n" : "%lld\n", mib * 1048576);
    scratch_write(s, path, text, strlen(text));
}

START_TEST(cache_makes_way)
{
    const struct row *r = &rows[_i];
    struct scratch s;
    char text[256], folder[] = "memory/";
    scratch_init(&s);
    ck_assert_int_eq(mkdir(scratch_path(&s, "memory"), 0700), 0);
    folder[r->v1 ? 7 : 0] = 0;
    snprintf(text, sizeof text, "MemTotal: 1 kB\nMemAvailable: %lld kB\n", r->available << 10);
    scratch_write(&s, "meminfo", text, strlen(text));
    write_number(&s, folder, r->v1 ? "memory.limit_in_bytes" : "memory.max", r->limit);
    write_number(&s, folder, r->v1 ? "memory.usage_in_bytes" : "memory.current", r->used);
    snprintf(text, sizeof text, "inactive_anon 9\n%sinactive_file %lld\n%sactive_file %lld\n", r->v1 ? "total_" : "",
             r->inactive << 20, r->v1 ? "total_" : "", r->active << 20);
    snprintf(text + strlen(text), 64, r->v1 ? "inactive_file 7\nactive_file 7\n" : "");
    scratch_write(&s, r->v1 ? "memory/memory.stat" : "memory.stat", text, strlen(text));
    ck_assert_int_eq(hd__train_memory_of(scratch_path(&s, "meminfo"), s.dir), r->left * 1048576);
    scratch_finish(&s);
}
END_TEST

int main(void)
{
    TCase *c = tcase_create("memory fit");
    tcase_add_loop_test(c, cache_makes_way, 0, HD__COUNT(rows));
    return suite_run_case("memory fit", c);
}
