/* The memory that is left of a machine and its cgroup. */
#include <check.h>
#include <sys/stat.h>

#include "service/train/train.h"
#include "tests/suite.h"
#include "tests/support/scratch.h"

/* In MiB: the machine's, and a cgroup's limit, use and cache; v1 counts those of the groups below apart. */
static const struct row {
    const char *group; /* as in /proc/self/cgroup; `folder` has the limit, at it or above it */
    const char *folder;
    long long available, limit, used, inactive, active, left;
} rows[] = {
    {"0::/", "", 9000, 4096, 1000, 0, 0, 3096},
    {"0::/", "", 9000, 4096, 4000, 2500, 1000, 3596},
    {"0::/", "", 2000, 4096, 4000, 2500, 1000, 2000},
    {"0::/", "", 9000, 4096, 1000, 900, 900, 4096},
    {"0::/", "", 9000, -1, 4000, 2500, 1000, 9000},
    {"0::/job", "job/", 9000, 4096, 1000, 0, 0, 3096},
    {"0::/job/step/task", "job/", 9000, 4096, 1000, 0, 0, 3096},
    {"0::/other", "job/", 9000, 4096, 1000, 0, 0, 9000},
    {"5:memory:/", "memory/", 9000, 4096, 1000, 0, 0, 3096},
    {"5:memory:/", "memory/", 9000, 4096, 4000, 2500, 1000, 3596},
    {"1:cpu:/\n5:hugetlb,memory:/job/step", "memory/job/", 9000, 4096, 4000, 2500, 1000, 3596},
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
    char text[256], stat[64];
    int v1 = !strncmp(r->folder, "memory/", 7);
    scratch_init(&s);
    ck_assert_int_eq(mkdir(scratch_path(&s, "memory"), 0700), 0);
    ck_assert_int_eq(mkdir(scratch_path(&s, "memory/job"), 0700), 0);
    ck_assert_int_eq(mkdir(scratch_path(&s, "job"), 0700), 0);
    snprintf(text, sizeof text, "MemTotal: 1 kB\nMemAvailable: %lld kB\n", r->available << 10);
    scratch_write(&s, "meminfo", text, strlen(text));
    scratch_write(&s, "groups", r->group, strlen(r->group));
    write_number(&s, r->folder, v1 ? "memory.limit_in_bytes" : "memory.max", r->limit);
    write_number(&s, r->folder, v1 ? "memory.usage_in_bytes" : "memory.current", r->used);
    snprintf(text, sizeof text, "inactive_anon 9\n%sinactive_file %lld\n%sactive_file %lld\n", v1 ? "total_" : "",
             r->inactive << 20, v1 ? "total_" : "", r->active << 20);
    snprintf(text + strlen(text), 64, v1 ? "inactive_file 7\nactive_file 7\n" : "");
    snprintf(stat, sizeof stat, "%smemory.stat", r->folder);
    scratch_write(&s, stat, text, strlen(text));
    ck_assert_int_eq(hd__train_memory_of(scratch_path(&s, "meminfo"), scratch_path(&s, "groups"), s.dir),
                     r->left * 1048576);
    scratch_finish(&s);
}
END_TEST

int main(void)
{
    TCase *c = tcase_create("memory fit");
    tcase_add_loop_test(c, cache_makes_way, 0, HD__COUNT(rows));
    return suite_run_case("memory fit", c);
}
