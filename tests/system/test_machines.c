/* Training on several machines (network namespaces): the same bits as on one, and no hang when one goes away.
 *     test_system_machines        what CI runs
 *     test_system_machines long   four machines, a slow network, one that loses packets, one with a long way */
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>

#include "tests/system/machines.h"
#include "tests/system/system.h"

#define ONE_EACH "mesh.dp=2 strategies=[{\"use\":\"zero\",\"stage\":3}] "
#define TWO_EACH "mesh.dp=2 mesh.tp=2 strategies=[{\"use\":\"3d\"},{\"use\":\"zero\",\"stage\":1}] "

static struct curve a, b;

static int silent; /* the launcher does not say how many ranks a machine has */

/* Starts `n` ranks, `each` of them on a machine, with the variables that torchrun sets. */
static void start_words(struct command **ranks, int n, int each, const char *words)
{
    char environment[320];
    for (int r = 0; r < n; r++) {
        int used = snprintf(environment, sizeof environment,
                            TEST_SECRET " RANK=%d WORLD_SIZE=%d LOCAL_RANK=%d MASTER_ADDR=10.77.0.1 MASTER_PORT=29500",
                            r, n, r % each);
        if (!silent)
            snprintf(environment + used, sizeof environment - (size_t)used, " LOCAL_WORLD_SIZE=%d", each);
        machine_enter(r / each);
        ranks[r] = command_start(environment, "%s", words);
    }
    machine_enter(-1);
}

static void start_ranks(struct command **ranks, int n, int each, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

static void start_ranks(struct command **ranks, int n, int each, const char *format, ...)
{
    char words[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(words, sizeof words, format, args);
    va_end(args);
    start_words(ranks, n, each, keep(hd__format("train %s", words)));
}

static void train_apart(struct curve *c, const char *name, int n, int each, const char *words)
{
    struct command *ranks[8];
    start_ranks(ranks, n, each, "%s job.steps=6 job.name=%s", words, name);
    for (int r = 0; r < n; r++) {
        command_wait(ranks[r], 60);
        expect_code(ranks[r], 0);
        if (silent && r >= each)
            expect_says(ranks[r],
                        "is on another machine than MASTER_ADDR=10.77.0.1, and the launcher did not say which");
    }
    curve_read(c, name);
}

START_TEST(two_machines)
{
    machines_up(2, NULL);
    train(&a, "here", "llama.yaml job.steps=6 " ONE_EACH);
    expect_learns(&a);
    train_apart(&b, "apart", 2, 1, "llama.yaml " ONE_EACH "comm.use=libfabric");
    expect_same_bits(&a, &b);
    silent = 1;
    train_apart(&b, "apart", 2, 1, "llama.yaml " ONE_EACH "comm.use=libfabric");
    expect_same_bits(&a, &b);
}
END_TEST

/* Tensor parallel over shared memory inside a machine, data parallel over the network. */
START_TEST(two_transports)
{
    machines_up(2, NULL);
    train(&a, "mixed-here", "llama.yaml job.steps=6 " TWO_EACH);
    train_apart(&b, "mixed-apart", 4, 2,
                "llama.yaml " TWO_EACH "comm={\"use\":\"libfabric\",\"interface\":\"eth0\",\"axes\":{\"tp\":\"shm\"}}");
    expect_same_bits(&a, &b);
}
END_TEST

/* heddle bench between machines, in one level and in two: rank 0 has everybody's times, and every result is right. */
START_TEST(bench_apart)
{
    struct command *ranks[4];
    json_t *all, *rows, *row;
    size_t k;
    machines_up(2, NULL);
    start_words(ranks, 4, 2,
                "bench --json --op all_reduce,all_gather,barrier -b 16 -e 1M -f 256 -n 20 --out-of-place "
                "--comm libfabric:interface=eth0,libfabric:interface=eth0:inside=shm");
    for (int r = 0; r < 4; r++) {
        command_wait(ranks[r], 60);
        expect_code(ranks[r], 0);
        ck_assert_msg((r == 0) == (*ranks[r]->out != 0), "rank %d said: %.200s", r, ranks[r]->out);
    }
    all = json_loads(ranks[0]->out, 0, NULL);
    rows = json_object_get(all, "rows");
    ck_assert_int_eq(json_array_size(rows), 2 * (3 + 3 + 1));
    json_array_foreach(rows, k, row)
    {
        ck_assert_int_eq(json_integer_value(json_object_get(row, "ranks")), 4);
        ck_assert_int_eq(json_integer_value(json_object_get(row, "errors")), 0);
        ck_assert_double_gt(json_real_value(json_object_get(row, "time_us")), 0);
    }
    json_decref(all);
    start_words(ranks, 4, 2, "bench --ranks 2 --comm libfabric");
    for (int r = 0; r < 4; r++) {
        command_wait(ranks[r], 60);
        expect_code(ranks[r], 2);
        expect_says(ranks[r], "--ranks 2: the launcher started 4 ranks; leave --ranks out");
    }
}
END_TEST

static void refused(int each, const char *words, const char *says)
{
    struct command *ranks[4];
    start_ranks(ranks, 2 * each, each, "llama.yaml job.steps=2 job.name=refused %s", words);
    for (int r = 0; r < 2 * each; r++) {
        command_wait(ranks[r], 60);
        expect_code(ranks[r], 2);
        expect_says(ranks[r], says);
    }
}

START_TEST(refusals)
{
    machines_up(2, NULL);
    refused(1, ONE_EACH "comm.use=shm", "comm-shm works inside one machine only");
    refused(1, ONE_EACH "comm.use=libfabric comm.provider=shm", "provider shm works inside one machine only");
    silent = 1;
    refused(1, ONE_EACH "comm.use=libfabric comm.provider=shm", "is on another than rank");
    silent = 0;
    refused(2, TWO_EACH "comm={\"use\":\"libfabric\",\"axes\":{\"dp\":\"shm\"}}",
            "comm-shm works inside one machine only");
}
END_TEST

/* Rank 1, on the other machine, is killed or stopped: rank 0 ends in time, and says who is missing. */
START_TEST(one_goes)
{
    struct command *ranks[2];
    double since;
    const char *name = _i ? "stops" : "dies";
    machines_up(2, NULL);
    start_ranks(ranks, 2, 1, "llama.yaml job.steps=100000 job.name=%s comm.dead_after=2s comm.use=libfabric " ONE_EACH,
                name);
    curve_wait(name, 3);
    since = unhindered_now();
    kill(ranks[1]->pid, _i ? SIGSTOP : SIGKILL);
    command_wait(ranks[0], 20);
    ck_assert_msg(unhindered_now() - since < promptly(2 + 5), "it took %.1f s", unhindered_now() - since);
    expect_code(ranks[0], 1);
    expect_says(ranks[0], "rank 1");
    kill(ranks[1]->pid, SIGKILL);
    waitpid(ranks[1]->pid, NULL, 0);
}
END_TEST

START_TEST(four_machines)
{
    machines_up(4, "1gbit");
    train(&a, "four-here", "llama.yaml job.steps=6 mesh.dp=4 data.micro_batch=1 strategies.zero.stage=2");
    train_apart(&b, "four-apart", 4, 1,
                "llama.yaml mesh.dp=4 data.micro_batch=1 strategies.zero.stage=2 comm.use=libfabric");
    expect_same_bits(&a, &b);
}
END_TEST

START_TEST(a_network_that_loses)
{
    machines_up(2, NULL);
    machine_loses(0, 2);
    machine_loses(1, 2);
    train(&a, "sound", "llama.yaml job.steps=6 " ONE_EACH);
    train_apart(&b, "lossy", 2, 1, "llama.yaml " ONE_EACH "comm.use=libfabric");
    expect_same_bits(&a, &b);
}
END_TEST

static double least_step(const char *job)
{
    char path[128], *rest;
    double least = 1e9;
    snprintf(path, sizeof path, "runs/%s/metrics.jsonl", job);
    rest = read_file(path);
    for (char *line; (line = strsep(&rest, "\n"));) {
        const char *at = strstr(line, "\"step_s\": ");
        double step = at ? strtod(at + 10, NULL) : least;
        least = step < least ? step : least;
    }
    return least;
}

/* ---- two levels and one: what crosses between the machines, and how long a step takes */

enum { AS_IT_IS, SLOW, LOSSY, FAR }; /* networks */
static const char *const network_names[] = {"as it is", "200 Mbit/s", "200 Mbit/s, 1 % lost", "10 ms away"};

static void network_up(int kind, int machines)
{
    if (kind == FAR) {
        machines_far(machines, 0.01);
        return;
    }
    machines_up(machines, kind == AS_IT_IS ? NULL : "200mbit");
    for (int i = 0; i < machines && kind == LOSSY; i++)
        machine_loses(i, 1);
}

#define RING ",\"sums\":\"any\",\"tune\":\"ring.json\""

/* In the order in which they are compared. */
static const struct {
    const char *name, *use, *words;
    int mpirun;
} ways[] = {
    {"libfabric", "libfabric", ",\"interface\":\"eth0\"", 0},
    {"libfabric-ring", "libfabric", ",\"interface\":\"eth0\"" RING, 0},
    {"libfabric-levels", "libfabric", ",\"interface\":\"eth0\",\"inside\":\"shm\"", 0},
    {"mpi", "mpi", "", 1},
    {"mpi-ring", "mpi", ",\"collectives\":\"core\"" RING, 1},
    {"mpi-levels", "mpi", ",\"collectives\":\"core\",\"inside\":\"shm\"", 1},
};

/* The same job, started by mpirun, two ranks a machine. */
static void train_by_mpirun(struct curve *c, const char *name, int machines, const char *words, const char *comm)
{
    struct hd__text hosts = {0};
    machines_rsh("rsh");
    for (int i = 0; i < machines; i++)
        hd__text_add(&hosts, "%sn%d:2", i ? "," : "", i + 1);
    machine_enter(0);
    ck_assert_msg(
        !system(keep(hd__format(
            "exec timeout 120 mpirun --allow-run-as-root --mca plm_rsh_agent $PWD/rsh --mca oob_tcp_if_include eth0 "
            "--mca btl self,vader,tcp --mca btl_tcp_if_include eth0 --mca mpi_yield_when_idle 1 --bind-to none "
            "-H %s -x MASTER_ADDR=10.77.0.1 -x MASTER_PORT=29501 " HEDDLE " train %s '%s' job.steps=6 job.name=%s "
            "</dev/null >%s.log 2>&1",
            hosts.at, words, comm, name, name))),
        "%.3000s", read_file(keep(hd__format("%s.log", name))));
    machine_enter(-1);
    hd__text_free(&hosts);
    curve_read(c, name);
}

static unsigned long long sent(int machines)
{
    unsigned long long bytes = 0;
    for (int i = 0; i < machines; i++)
        bytes += machine_sent(i);
    return bytes;
}

static int has_mpirun(void)
{
    return !system("mpirun --version >/dev/null 2>&1");
}

/* Machines of two ranks, two and four of them: the same training in one level, by a flat ring and in two levels,
 * over libfabric and MPI. How long a step takes is printed; what crosses is counted: all_reduce of S bytes by a ring
 * of R ranks on M machines sends 2 S (R - 1) / R over each of M links, in two levels 2 S (M - 1) / M. */
START_TEST(two_levels)
{
    int machines = _i < 4 ? 2 : 4, kind = _i % 4, ranks = 2 * machines;
    double crosses = (machines - 1.0) / machines * ranks / (ranks - 1.0);
    unsigned long long bytes[HD__COUNT(ways)];
    char words[128], comm[128];
    write_file("ring.json",
               "{\"heddle_tuning\": 1, \"rules\": [{\"op\": \"all_reduce\", \"ranks\": 4, \"use\": \"ring\"}, "
               "{\"op\": \"all_reduce\", \"ranks\": 8, \"use\": \"ring\"}]}");
    network_up(kind, machines);
    snprintf(words, sizeof words, "llama.yaml mesh.dp=%d data.micro_batch=1", ranks);
    train(&a, "near", "%s job.steps=6", words);
    for (size_t k = 0; k < HD__COUNT(ways); k++) {
        if (ways[k].mpirun && !has_mpirun())
            continue;
        bytes[k] = sent(machines);
        snprintf(comm, sizeof comm, "comm={\"use\":\"%s\"%s}", ways[k].use, ways[k].words);
        if (ways[k].mpirun)
            train_by_mpirun(&b, ways[k].name, machines, words, comm);
        else
            train_apart(&b, ways[k].name, ranks, 2, keep(hd__format("%s %s", words, comm)));
        bytes[k] = sent(machines) - bytes[k];
        if (ways[k].mpirun || strstr(ways[k].words, "any"))
            expect_close(&b, &a, 1e-5); /* MPI and the ring have orders of their own */
        else
            expect_same_bits(&a, &b);
        if (kind == FAR)
            ck_assert_double_gt(least_step(ways[k].name), 0.02); /* there and back: it did go the long way */
        fprintf(stderr, "%d machines, %-20s %-17s %8.1f ms a step %8.2f MB\n", machines, network_names[kind],
                ways[k].name, 1e3 * least_step(ways[k].name), (double)bytes[k] / 1e6);
        if (k % 3 == 2)
            ck_assert_double_lt((double)bytes[k], 1.05 * crosses * (double)bytes[k - 1]);
    }
}
END_TEST

int main(int argc, char **argv)
{
    const struct system_test quick[] = {{"two machines", two_machines, 1}, {"two transports", two_transports, 1},
                                        {"bench apart", bench_apart, 1},   {"refusals", refusals, 1},
                                        {"one goes", one_goes, 2},         {NULL, NULL, 0}};
    const struct system_test more[] = {{"four machines", four_machines, 1},
                                       {"a network that loses", a_network_that_loses, 1},
                                       {"two levels", two_levels, 8},
                                       {NULL, NULL, 0}};
    const char *why;
    if (!machines_possible(&why)) {
        fprintf(stderr, "skipped: %s\n", why);
        return 77;
    }
    return system_run("system-machines", argc > 1 && !strcmp(argv[1], "long") ? more : quick);
}
