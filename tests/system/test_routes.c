/* What `heddle explain` says of groups is what runs: transports, levels and algorithms, call by call, counted by the
 * perf hook. */
#include <stdlib.h>
#include <unistd.h>

#include "tests/system/system.h"

#define STEPS 3
#define ZERO "strategies=[{\"use\":\"zero\",\"stage\":%d}] "
#define CUT "mesh.dp=2 mesh.tp=2 strategies=[{\"use\":\"3d\"},{\"use\":\"zero\",\"stage\":3}] "
#define BY_PIPES "plugins.path=" PIPES " comm.use=pipes "

static const char rules[] =
    "{\"heddle_tuning\": 1, \"rules\": [\n"
    " {\"op\": \"all_reduce\", \"bytes\": 64, \"use\": \"tree\"},\n"
    " {\"op\": \"all_gather\", \"ranks\": 3, \"bytes\": 100000, \"use\": \"ring\", \"chunk\": 8192},\n"
    " {\"op\": \"reduce_scatter\", \"use\": \"ring\"}]}\n";

/* A row of what was said or counted. */
struct row {
    char group[96], op[32], how[32];
    double calls;
    int seen;
};
struct rows {
    struct row at[64];
    int n;
};

static struct row *row_of(struct rows *rows, const char *group, const char *op, const char *how)
{
    for (int i = 0; i < rows->n; i++)
        if (!strcmp(rows->at[i].group, group) && !strcmp(rows->at[i].op, op) && !strcmp(rows->at[i].how, how))
            return &rows->at[i];
    return NULL;
}

static void add(struct rows *rows, const char *group, const char *op, const char *how, double calls)
{
    struct row *row = row_of(rows, group, op, how);
    if (!row) {
        ck_assert_int_lt(rows->n, (int)HD__COUNT(rows->at));
        row = &rows->at[rows->n++];
        snprintf(row->group, sizeof row->group, "%s", group);
        snprintf(row->op, sizeof row->op, "%s", op);
        snprintf(row->how, sizeof row->how, "%s", how);
    }
    row->calls += calls;
}

static const char *word(json_t *o, const char *key)
{
    const char *text = json_string_value(json_object_get(o, key));
    return text ? text : "";
}

/* ---- what is said; per_machine 0: all on one */

/* A group's own name, with as many levels around it "/inside", and the part of a level that an operation is. */
static void name_part(char name[96], const char *group, int level, const char *where)
{
    snprintf(name, 96, "%s", group);
    for (int l = 0; l < level; l++)
        strcat(name, "/inside");
    if (strcmp(where, "world"))
        strcat(strcat(name, "/"), strcmp(where, "between") ? where : "across");
}

/* What goes between the places of a level is the one such part of an operation that goes in two levels there. */
static void add_operation(struct rows *rows, json_t *group, json_t *operation, const char *transport)
{
    double calls = json_number_value(json_object_get(operation, "calls"));
    json_t *part, *within;
    size_t i, l;
    json_array_foreach(json_object_get(operation, "parts"), i, part)
    {
        const char *where = word(part, "where");
        int level = 0;
        char name[96];
        json_array_foreach(json_object_get(group, "within"), l, within) level =
            strcmp(word(within, "level"), word(part, "level")) ? level : (int)l + 1;
        name_part(name, word(group, "name"), level, where);
        ck_assert_msg((strcmp(where, "inside") && !level) || !strcmp(word(part, "transport"), "shm"), "inside over %s",
                      word(part, "transport"));
        if (*word(part, "algorithm") && (!transport || !strcmp(word(part, "transport"), transport)))
            add(rows, name, word(part, "op"), word(part, "algorithm"), calls);
        name_part(name, word(group, "name"), level, "world");
        if (!strcmp(where, "between"))
            add(rows, name, word(part, "op"), "two levels", calls);
    }
}

/* Of a step: collectives by the core's algorithms over `transport`, and those in two levels. */
static void said(struct rows *rows, const char *transport, const char *job, int per_machine)
{
    char machine[32] = "";
    struct command *c;
    if (per_machine)
        snprintf(machine, sizeof machine, " --per-machine %d", per_machine);
    c = command_run("explain %s --json%s", job, machine);
    json_t *all = json_loads(c->out, 0, NULL), *group, *operation;
    size_t g, o;
    expect_code(c, 0);
    rows->n = 0;
    json_array_foreach(json_object_get(all, "groups"), g, group)
        json_array_foreach(json_object_get(group, "operations"), o, operation)
            add_operation(rows, group, operation, transport);
    json_decref(all);
}

/* ---- what was counted */

/* What comes back inside a machine has a group of its own, "/back": explained it is inside like the rest. */
static void inside_of(const char *name, char out[96])
{
    *out = '\0';
    for (const char *at = name, *end; *at; at = end) {
        end = at + 1 + strcspn(at + 1, "/");
        if ((size_t)(end - at) == strlen("/back") && !strncmp(at, "/back", strlen("/back")))
            strcat(out, "/inside");
        else
            strncat(out, at, (size_t)(end - at));
    }
}

static void counted(struct rows *rows, const char *transport, const char *job)
{
    char path[128];
    json_t *file, *row;
    size_t i;
    snprintf(path, sizeof path, "runs/%s/perf-%s-rank0.json", job, transport);
    file = json_load_file(path, 0, NULL);
    ck_assert_msg(file != NULL, "%s is not there", path);
    rows->n = 0;
    json_array_foreach(json_object_get(file, "algorithms"), i, row)
    {
        char group[96];
        inside_of(word(row, "group"), group);
        add(rows, group, word(row, "op"), word(row, "algorithm"), json_number_value(json_object_get(row, "calls")));
    }
    json_decref(file);
}

/* Ranks agree at each step's end whether to stop: a small all_reduce of all of them, which is no part of the program.
 */
static int agreement(const struct row *row, const char *world)
{
    return !strcmp(row->op, "all_reduce") && !strncmp(row->group, world, strlen(world));
}

/* Before each row of the metrics, here one a step, ranks give each other their numbers: one small all_gather of all. */
static double gathers(const struct row *row, const char *world, double explained)
{
    int of_all = !strcmp(row->op, "all_gather") && !strncmp(row->group, world, strlen(world));
    return of_all && row->calls == explained + STEPS ? STEPS : 0;
}

/* Returns how many rows have the gathers of metrics: at least one where the transport of all ranks is counted. */
static int expect_same(struct rows *is, struct rows *says, const char *world)
{
    int gathered = 0;
    for (int i = 0; i < says->n; i++) {
        struct row *row = row_of(is, says->at[i].group, says->at[i].op, says->at[i].how);
        double want = says->at[i].calls * STEPS;
        ck_assert_msg(row != NULL, "%s %s by %s was explained and never ran", says->at[i].group, says->at[i].op,
                      says->at[i].how);
        row->seen = 1;
        gathered += gathers(row, world, want) > 0;
        if (agreement(row, world))
            ck_assert_double_ge(row->calls, want);
        else
            ck_assert_msg(row->calls == want + gathers(row, world, want), "%s %s by %s: %g calls, %g explained",
                          row->group, row->op, row->how, row->calls, want);
    }
    for (int i = 0; i < is->n; i++) {
        gathered += !is->at[i].seen && gathers(&is->at[i], world, 0) > 0;
        ck_assert_msg(is->at[i].seen || agreement(&is->at[i], world) || gathers(&is->at[i], world, 0),
                      "%s %s by %s ran, and was not explained", is->at[i].group, is->at[i].op, is->at[i].how);
    }
    return gathered;
}

/* ---- one machine */

static const struct {
    const char *job, *transport, *world, *must;
} jobs[] = {
    {"llama.yaml " BY_PIPES CUT, "pipes", "dp_shard.tp", "doubling"},
    {"gpt2.yaml " BY_PIPES "mesh.dp=3 data.batch=12 comm.tune=rules.json strategies.zero.stage=2", "pipes", "dp_shard",
     "ring"},
    {"gpt2.yaml " BY_PIPES "mesh.dp=4 data.batch=8 comm.sums=any comm.tune=rules.json strategies.zero.stage=3", "pipes",
     "dp_shard", "ring"},
    {"gpt2.yaml plugins.path=[\"" ASYNC "\",\"" PIPES
     "\"] comm.use=pipes device.use=async device.seed=1 device.staging=8KiB mesh.dp=4 "
     "data.batch=8 strategies.zero.stage=3",
     "pipes", "dp_shard", "bruck"},
#ifdef MPI
    {"llama.yaml comm.axes={\"dp\":{\"use\":\"mpi\",\"collectives\":\"core\"}} " CUT, "mpi", "dp_shard.tp", "bruck"},
#endif
};

START_TEST(calls_take_the_algorithm_explained)
{
    static struct curve curve;
    static struct rows says, is;
    char name[32], words[512];
    int must = 0;
    write_file("rules.json", rules);
    snprintf(name, sizeof name, "job%d", _i);
    snprintf(words, sizeof words, "%s", jobs[_i].job);
    train(&curve, name, "%s comm.hooks=[\"perf\"] job.steps=%d", words, STEPS);
    said(&says, jobs[_i].transport, words, 1);
    counted(&is, jobs[_i].transport, name);
    ck_assert_int_gt(says.n, 0);
    /* With comm.axes for dp alone, all ranks meet over shm. */
    ck_assert_int_eq(expect_same(&is, &says, jobs[_i].world) > 0, strcmp(jobs[_i].transport, "mpi") != 0);
    for (int i = 0; i < says.n; i++)
        must |= !strcmp(says.at[i].how, jobs[_i].must);
    ck_assert_msg(must, "nothing goes by %s", jobs[_i].must);
}
END_TEST

/* ---- machines, as a launcher may describe them */

#ifdef FABRIC

static void train_on_machines(const char *name, const char *job, int n, int each)
{
    struct command *ranks[8];
    int port = free_port();
    for (int r = 0; r < n; r++)
        ranks[r] = command_start_rank(r, n, each, port, "train %s job.name=%s job.steps=%d comm.hooks=[\"perf\"]", job,
                                      name, STEPS);
    for (int r = 0; r < n; r++) {
        command_wait(ranks[r], 60);
        expect_code(ranks[r], 0);
    }
}

START_TEST(levels_are_as_explained)
{
    static const int stage[] = {1, 3}, each[] = {2, 3};
    static struct rows says, is;
    char job[512], name[32];
    int two = 0;
    snprintf(job, sizeof job,
             "gpt2.yaml comm={\"use\":\"libfabric\",\"provider\":\"tcp\",\"interface\":\"lo\"} comm.inside=shm "
             "mesh.dp=4 data.batch=8 " ZERO,
             stage[_i % 2]);
    snprintf(name, sizeof name, "levels%d", _i);
    train_on_machines(name, job, 4, each[_i / 2]);
    said(&says, NULL, job, each[_i / 2]);
    counted(&is, "libfabric", name);
    ck_assert_int_gt(says.n, 0);
    ck_assert_int_gt(expect_same(&is, &says, "dp_shard"), 0);
    for (int i = 0; i < says.n; i++)
        two += !strcmp(says.at[i].how, "two levels");
    ck_assert_int_eq(two > 0, each[_i / 2] == 2); /* 3 + 1 are not as many on each */
}
END_TEST

#ifdef HWLOC
/* Two machines of two nodes of two ranks. */
START_TEST(levels_in_levels_of_machines)
{
    static struct rows says, is;
    static const char job[] =
        "gpt2.yaml comm={\"use\":\"libfabric\",\"provider\":\"tcp\",\"interface\":\"lo\"} comm.inside=shm "
        "comm.levels=[\"machine\",\"numa\"] mesh.dp=8 data.batch=16 strategies.zero.stage=3";
    struct command *c;
    setenv("HWLOC_SYNTHETIC", "numa:2 core:2 pu:1", 1);
    c = command_run("explain %s --per-machine 4", job);
    ck_assert_msg(strstr(c->out, "libfabric, shm inside: 2 machines of 4, 2 NUMA nodes of 2 there\n") != NULL, "%s",
                  strstr(c->out, "-- groups"));
    ck_assert_msg(strstr(c->out, "in three levels: all_gather between machines (") != NULL, "%s",
                  strstr(c->out, "-- groups"));
    train_on_machines("nested", job, 8, 4);
    said(&says, NULL, job, 4);
    counted(&is, "libfabric", "nested");
    ck_assert_int_gt(expect_same(&is, &says, "dp_shard"), 0);
    ck_assert(row_of(&says, "dp_shard", "all_gather", "two levels") &&
              row_of(&says, "dp_shard/inside", "all_gather", "two levels"));
}
END_TEST
#endif
#endif

/* ---- packages and NUMA nodes, of a topology in words */

#ifdef HWLOC
static const struct {
    const char *topology, *levels;
    int ranks, batch;
    const char *says;
    int deep; /* bits: 1, cut in two levels; 2, so is what is inside */
} topologies[] = {
    {"numa:2 core:2 pu:1", "comm.levels=numa", 4, 8, "pipes, shm inside: 2 NUMA nodes of 2", 1},
    {"pack:2 numa:2 core:1 pu:1", "comm.levels=package", 4, 8, "pipes, shm inside: 2 packages of 2", 1},
    {"pack:2 numa:2 core:1 pu:1", "comm.levels=numa", 4, 8, "pipes, in one level: one member on each NUMA node", 0},
    {"numa:2 core:2 pu:1", "comm.levels=numa", 3, 12, "its NUMA nodes do not have as many members each", 0},
    {"numa:4 core:2 pu:1", "comm.levels=numa", 2, 8,
     "comm.levels is not applied: rank 0 will run on the cores of more than one NUMA node", 0},
    {"numa:2 core:2 pu:1", "", 4, 8, "shm, all on one machine", 0},
    {"pack:2 numa:2 core:2 pu:1", "comm.levels=[package,numa]", 8, 16,
     "pipes, shm inside: 2 packages of 4, 2 NUMA nodes of 2 there", 3},
    {"numa:2 core:2 pu:1", "comm.levels=[machine,numa]", 4, 8, "shm, all on one machine, 2 NUMA nodes of 2 there", 2},
    {"pack:2 numa:2 core:1 pu:1", "comm.levels=[package,numa]", 4, 8,
     "pipes, shm inside: 2 packages of 2, in one level there: one member on each NUMA node", 1},
};

/* The first test that asks trains it for all of them. */
static void train_flat(struct curve *flat, const char *job, int ranks)
{
    char name[16], metrics[64];
    snprintf(name, sizeof name, "flat%d", ranks);
    snprintf(metrics, sizeof metrics, "runs/%s/metrics.jsonl", name);
    if (access(metrics, F_OK))
        train(flat, name, "%s job.steps=%d comm.use=shm comm.inside=shm comm.levels=machine", job, STEPS);
    else
        curve_read(flat, name);
}

START_TEST(levels_follow_the_topology)
{
    static struct curve flat, levels;
    static struct rows says, is;
    struct command *c;
    char job[512], name[32];
    int deep = 0;
    snprintf(job, sizeof job,
             "gpt2.yaml " BY_PIPES "comm.inside=shm strategies.zero.stage=3 mesh.dp=%d data.batch=%d %s",
             topologies[_i].ranks, topologies[_i].batch, topologies[_i].levels);
    snprintf(name, sizeof name, "topology%d", _i);
    setenv("HWLOC_SYNTHETIC", topologies[_i].topology, 1);
    c = command_run("explain %s", job);
    ck_assert_msg(strstr(c->out, topologies[_i].says) != NULL, "not '%s' but %s", topologies[_i].says,
                  strstr(c->out, "-- groups"));
    train(&levels, name, "%s job.steps=%d comm.hooks=[\"perf\"]", job, STEPS);
    said(&says, NULL, job, 0);
    counted(&is, "pipes", name);
    expect_same(&is, &says, "dp_shard");
    for (int i = 0; i < says.n; i++)
        if (!strcmp(says.at[i].how, "two levels"))
            deep |= strstr(says.at[i].group, "/inside") ? 2 : 1;
    ck_assert_int_eq(deep, topologies[_i].deep);
    train_flat(&flat, job, topologies[_i].ranks);
    expect_same_bits(&flat, &levels);
}
END_TEST
#endif

/* ---- the words */

START_TEST(words_of_groups)
{
    static const struct {
        const char *words, *says;
    } rows[] = {
        {"explain gpt2.yaml mesh.dp=4 comm.use=pipes comm.inside=shm --per-machine 2",
         "4 ranks over pipes, shm inside: 2 machines of 2\n"},
        {"explain gpt2.yaml mesh.dp=4 comm.use=pipes comm.inside=shm", "4 ranks over shm, all on one machine\n"},
        {"explain gpt2.yaml mesh.dp=4 comm.use=pipes comm.inside=shm --per-machine 1",
         "4 ranks over pipes, in one level: one member on each machine\n"},
        {"explain gpt2.yaml mesh.dp=4 comm.use=pipes comm.inside=shm --per-machine 3",
         "in one level: its machines do not have as many members"},
        {"explain gpt2.yaml mesh.dp=4 comm.use=pipes comm.inside=shm --per-machine 2",
         "in two levels: reduce_scatter inside (shm's own), all_reduce between ("},
        {"explain gpt2.yaml mesh.pp=2 strategies=[{\"use\":\"3d\"},{\"use\":\"zero\"}]", "a message\n"},
        {"explain gpt2.yaml mesh.dp=2", "shm's own\n"},
        {"check gpt2.yaml mesh.dp=4 comm.use=pipes comm.inside=shm --per-machine 2",
         "groups: dp_shard (4 ranks) over pipes and shm, 2 x 2\n"},
        {"check gpt2.yaml mesh.dp=2", "groups: dp_shard (2 ranks) over shm\n"},
    };
    for (size_t i = 0; i < HD__COUNT(rows); i++) {
        struct command *c = command_run("%s plugins.path=" PIPES, rows[i].words);
        expect_code(c, 0);
        ck_assert_msg(strstr(c->out, rows[i].says) != NULL, "%s does not say '%s':\n%s", rows[i].words, rows[i].says,
                      strstr(c->out, "-- groups") ? strstr(c->out, "-- groups") : c->out);
    }
    struct command *alone = command_run("explain gpt2.yaml");
    ck_assert(!strstr(alone->out, "-- groups"));
    alone = command_run("explain gpt2.yaml mesh.dp=2 --per-machine 3");
    expect_code(alone, 2);
    expect_says(alone, "--per-machine 3: a number from 1 to the job's 2 ranks is wanted");
}
END_TEST

int main(void)
{
    const struct system_test tests[] = {
        {"algorithms", calls_take_the_algorithm_explained, (int)HD__COUNT(jobs)},
#ifdef FABRIC
        {"levels", levels_are_as_explained, 4},
#ifdef HWLOC
        {"nested", levels_in_levels_of_machines, 1},
#endif
#endif
#ifdef HWLOC
        {"topology", levels_follow_the_topology, (int)HD__COUNT(topologies)},
#endif
        {"words", words_of_groups, 1},
        {NULL, NULL, 0},
    };
    return system_run("routes", tests);
}
