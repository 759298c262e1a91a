/* Packages and NUMA nodes of topologies that hwloc makes of a few words, and which ranks are inside the same one; how
 * much of a machine a process' cgroups give it. */
#include <check.h>
#include <stdlib.h>

#include "runtime/comm/topology.h"
#include "runtime/cpu/affinity.h"
#include "runtime/cpu/share.h"
#include "tests/suite.h"

static struct hd__topology *open_places(const char *topology)
{
    static const int32_t levels[] = {HD__LEVELS_MACHINE, HD__LEVELS_PACKAGE, HD__LEVELS_NUMA};
    struct hd_error err = HD_ERROR_INIT;
    struct hd__topology *places = NULL;
    setenv("HWLOC_SYNTHETIC", topology, 1);
    ck_assert_msg(hd__comm_topology_open(levels, HD__COUNT(levels), &places, &err) == HD_OK, "%s", err.message);
    return places;
}

static const struct {
    const char *topology;
    uint32_t level;
    int32_t ranks, at[9]; /* -1: in several */
} rows[] = {
    {"numa:2 core:2 pu:1", HD__LEVELS_NUMA, 4, {0, 0, 1, 1}},
    {"numa:2 core:2 pu:1", HD__LEVELS_NUMA, 2, {0, 1}},
    {"numa:2 core:2 pu:1", HD__LEVELS_NUMA, 1, {-1}},
    {"numa:2 core:2 pu:1", HD__LEVELS_NUMA, 3, {0, 0, 1}},
    {"numa:2 core:2 pu:1", HD__LEVELS_NUMA, 8, {0, 0, 1, 1, 0, 0, 1, 1}}, /* more ranks than cores: in turn */
    {"pack:2 numa:2 core:2 pu:2", HD__LEVELS_PACKAGE, 4, {0, 0, 1, 1}},
    {"pack:2 numa:2 core:2 pu:2", HD__LEVELS_NUMA, 4, {0, 1, 2, 3}},
    {"pack:2 numa:2 core:2 pu:2", HD__LEVELS_NUMA, 2, {-1, -1}},
    {"pack:2 core:3 pu:1", HD__LEVELS_NUMA, 6, {0, 0, 0, 0, 0, 0}}, /* one memory for all */
    {"pack:3 core:2 pu:1", HD__LEVELS_PACKAGE, 4, {0, 0, 1, 1}},
    {"pack:2 numa:2 core:2 pu:2", HD__LEVELS_MACHINE, 4, {0, 0, 0, 0}},
    {"pack:2 [numa] [numa] core:2 pu:1", HD__LEVELS_NUMA, 4, {0, 0, 2, 2}}, /* two memories beside the same cores */
};

START_TEST(ranks_are_in_places)
{
    struct hd__topology *places = open_places(rows[_i].topology);
    for (int32_t r = 0; r < rows[_i].ranks; r++) {
        int32_t at = hd__comm_topology_locate_by_rule(places, rows[_i].level, r, rows[_i].ranks);
        ck_assert_msg(at == rows[_i].at[r], "%s: rank %d of %d is at %d, not %d", rows[_i].topology, r, rows[_i].ranks,
                      at, rows[_i].at[r]);
        ck_assert_int_eq(hd__comm_topology_locate(places, rows[_i].level, r, rows[_i].ranks),
                         at); /* another machine's: bound in thought */
    }
    hd__comm_topology_close(places);
}
END_TEST

/* The topology is taken for this machine's, and has a node for each core: where this process is bound counts. */
START_TEST(a_binding_counts)
{
    struct hd__topology *places;
    cpu_set_t all, one;
    char topology[64];
    int32_t cpu = 0, most = 0;
    ck_assert_int_eq(sched_getaffinity(0, sizeof all, &all), 0);
    for (int32_t c = 0; c < CPU_SETSIZE; c++)
        most = CPU_ISSET(c, &all) ? c : most;
    for (hd__cpus_partition(&all, 1, 2, &one); !CPU_ISSET(cpu, &one);)
        cpu++;
    snprintf(topology, sizeof topology, "numa:%d core:1 pu:1", most + 1);
    setenv("HWLOC_THISSYSTEM", "1", 1);
    if (CPU_COUNT(&all) > 1) {
        places = open_places(topology);
        ck_assert_int_eq(hd__comm_topology_locate(places, HD__LEVELS_NUMA, 0, 8), -1);
        hd__comm_topology_close(places);
    }
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    ck_assert_int_eq(sched_setaffinity(0, sizeof one, &one), 0);
    places = open_places(topology);
    ck_assert_int_eq(hd__comm_topology_locate(places, HD__LEVELS_NUMA, 0, 8), cpu);
    ck_assert_int_eq(hd__comm_topology_locate(places, HD__LEVELS_NUMA, 5, 8), cpu);
    hd__comm_topology_close(places);
}
END_TEST

START_TEST(quotas_of_cgroups)
{
    static const struct {
        const char *group, *files; /* files: of v1 a quota in /a and a smaller one in /a/b, of v2 one in / */
        double quota;
    } groups[] = {
        {"4:cpu,cpuacct:/a", "mkdir -p cpu/a && echo 250000 >cpu/a/cpu.cfs_quota_us && echo -1 >cpu/cpu.cfs_quota_us",
         2.5},
        {"4:cpuacct,cpu:/a/b",
         "mkdir -p cpu/a/b && echo 50000 >cpu/a/b/cpu.cfs_quota_us && "
         "echo 25000 >cpu/a/b/cpu.cfs_period_us",
         2},
        {"3:cpuset:/a\n2:cpuacct:/a", "true", 0},
        {"0::/x/y", "mkdir -p x/y && echo max 100000 >x/y/cpu.max && echo 150000 100000 >cpu.max", 1.5},
        {"1:cpu:/a\n0::/", "true", 1.5},
        {"0::/../none", "rm cpu.max", 0},
    };
    char folder[] = "/tmp/heddle-quota-XXXXXX", command[512];
    ck_assert_ptr_nonnull(mkdtemp(folder));
    for (size_t i = 0; i < HD__COUNT(groups); i++) {
        snprintf(command, sizeof command, "cd %s && printf '%s\n' >groups && %s", folder, groups[i].group,
                 groups[i].files);
        ck_assert_int_eq(system(command), 0);
        snprintf(command, sizeof command, "%s/groups", folder);
        ck_assert_msg(hd__cpu_quota_of(command, folder) == groups[i].quota, "%s: %g", groups[i].group,
                      hd__cpu_quota_of(command, folder));
    }
    snprintf(command, sizeof command, "rm -r %s", folder);
    ck_assert_int_eq(system(command), 0);
}
END_TEST

/* One topology for all levels; none where no level asks. */
START_TEST(machines_need_no_topology)
{
    static const int32_t levels[] = {HD__LEVELS_MACHINE};
    struct hd_error err = HD_ERROR_INIT;
    struct hd__topology *places = (void *)levels;
    setenv("HWLOC_SYNTHETIC", "no such topology", 1);
    ck_assert_int_eq(hd__comm_topology_open(levels, 1, &places, &err), HD_OK);
    ck_assert_ptr_null(places);
    ck_assert_int_eq(hd__comm_topology_locate(places, HD__LEVELS_MACHINE, 1, 2), 0);
    ck_assert_int_eq(hd__comm_topology_locate_by_rule(places, HD__LEVELS_MACHINE, 1, 2), 0);
    hd__comm_topology_close(places);
}
END_TEST

START_TEST(firsts_of_places)
{
    static const struct {
        int32_t machine[6], at[6], firsts[6], nowhere;
    } cases[] = {
        {{0, 0, 0, 3, 3, 3}, {0, 0, 0, 0, 0, 0}, {0, 0, 0, 3, 3, 3}, -1},
        {{0, 0, 0, 0, 4, 4}, {0, 0, 1, 1, 0, 0}, {0, 0, 2, 2, 4, 4}, -1},
        {{0, 0, 0, 0, 4, 4}, {1, 0, 1, 0, 0, 1}, {0, 1, 0, 1, 4, 5}, -1},
        {{0, 0, 0, 3, 3, 3}, {0, 0, 1, 0, -1, 1}, {0, 0, 0, 3, 3, 3}, 4}, /* one is nowhere: machines, for all */
    };
    for (size_t i = 0; i < HD__COUNT(cases); i++) {
        int32_t firsts[6];
        ck_assert_int_eq(hd__comm_topology_leaders(cases[i].machine, cases[i].at, 6, firsts), cases[i].nowhere);
        for (int32_t r = 0; r < 6; r++)
            ck_assert_msg(firsts[r] == cases[i].firsts[r], "case %zu: rank %d: %d", i, r, firsts[r]);
    }
}
END_TEST

START_TEST(levels_in_levels)
{
    static int32_t node[] = {0, 0, 1, 1, 0, 0, 1, 1}, same[8], odd[] = {0, 0, 1, 1, 0, 0, 0, 1},
                   lost[] = {0, 0, 1, 1, 0, -1, 1, 1};
    static const int32_t machine[] = {0, 0, 0, 0, 4, 4, 4, 4};
    static const struct {
        int32_t levels[3], *at[3];
        uint32_t n, kept, level[3];
        int32_t firsts[3][8], nowhere;
        const char *instead;
    } cases[] = {
        {{HD__LEVELS_MACHINE, HD__LEVELS_NUMA},
         {same, node},
         2,
         2,
         {HD__LEVELS_MACHINE, HD__LEVELS_NUMA},
         {{0, 0, 0, 0, 4, 4, 4, 4}, {0, 0, 2, 2, 4, 4, 6, 6}},
         -1,
         NULL},
        {{HD__LEVELS_PACKAGE, HD__LEVELS_NUMA},
         {node, odd},
         2,
         2,
         {HD__LEVELS_PACKAGE, HD__LEVELS_NUMA}, /* odd: a node of two packages is cut */
         {{0, 0, 2, 2, 4, 4, 6, 6}, {0, 0, 2, 2, 4, 4, 6, 7}},
         -1,
         NULL},
        {{HD__LEVELS_MACHINE, HD__LEVELS_PACKAGE, HD__LEVELS_NUMA},
         {same, lost, node},
         3,
         2,
         {HD__LEVELS_MACHINE, HD__LEVELS_NUMA},
         {{0, 0, 0, 0, 4, 4, 4, 4}, {0, 0, 2, 2, 4, 4, 6, 6}},
         5,
         "that level is left out"},
        {{HD__LEVELS_MACHINE, HD__LEVELS_NUMA},
         {same, lost},
         2,
         1,
         {HD__LEVELS_MACHINE},
         {{0, 0, 0, 0, 4, 4, 4, 4}},
         5,
         "machines are the levels"},
        {{HD__LEVELS_PACKAGE, HD__LEVELS_NUMA},
         {lost, lost},
         2,
         1,
         {HD__LEVELS_MACHINE},
         {{0, 0, 0, 0, 4, 4, 4, 4}},
         5,
         "machines are the levels"},
    };
    for (size_t i = 0; i < HD__COUNT(cases); i++) {
        struct hd__arena arena = {0};
        struct hd__topology_levels nest;
        hd__comm_topology_levels(&nest, cases[i].levels, cases[i].n, machine, cases[i].at, 8, &arena);
        ck_assert_uint_eq(nest.n, cases[i].kept);
        ck_assert_int_eq(nest.unbound_rank, cases[i].nowhere);
        ck_assert(nest.unbound_rank < 0 || !strcmp(hd__comm_topology_fallback(&nest), cases[i].instead));
        for (uint32_t l = 0; l < nest.n; l++) {
            ck_assert_uint_eq(nest.level[l], cases[i].level[l]);
            for (int32_t r = 0; r < 8; r++)
                ck_assert_msg(nest.leaders[l][r] == cases[i].firsts[l][r], "case %zu, level %u: rank %d: %d", i, l, r,
                              nest.leaders[l][r]);
        }
        hd__arena_free(&arena);
    }
}
END_TEST

int main(void)
{
    TCase *tcase = tcase_create("places");
    tcase_add_loop_test(tcase, ranks_are_in_places, 0, (int)HD__COUNT(rows));
    tcase_add_test(tcase, a_binding_counts);
    tcase_add_test(tcase, quotas_of_cgroups);
    tcase_add_test(tcase, machines_need_no_topology);
    tcase_add_test(tcase, firsts_of_places);
    tcase_add_test(tcase, levels_in_levels);
    return suite_run_case("places", tcase);
}
