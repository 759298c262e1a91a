/* Jobs over comm-mpi, whose ranks mpirun starts: the same curves, and ends that name their cause and leave nothing. */
#include <dirent.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/system/system.h"

#define CUTS "{\"use\":\"3d\"},{\"use\":\"zero\",\"stage\":2}"
#define FOUR "llama.yaml job.steps=8 mesh.tp=2 mesh.dp=2 strategies=[" CUTS "] "
#define ENDLESS "llama.yaml job.steps=1000000000 mesh.dp=3 data.batch=12 comm.use=mpi comm.dead_after=2 "

/* DP_TRANSPORT: libfabric where it was built */
static struct curve a, b;

/* ---- curves */

START_TEST(learns_as_over_shm)
{
    train(&a, "shm", "llama.yaml mesh.dp=2 strategies=[%s]", "{\"use\":\"zero\",\"stage\":1}");
    train(&b, "mpi", "llama.yaml mesh.dp=2 strategies=[%s] comm.use=mpi", "{\"use\":\"zero\",\"stage\":1}");
    expect_learns(&b);
    expect_same_bits(&a, &b); /* of two numbers there is one sum */
    train(&b, "mpi-bf16", "llama.yaml mesh.dp=2 strategies=[%s] comm.use=mpi precision.compute=bf16",
          "{\"use\":\"zero\",\"stage\":3}");
    expect_learns(&b);
}
END_TEST

START_TEST(one_axis_over_mpi)
{
    train(&a, "shm", "%s", FOUR);
    train(&b, "mixed", "%s comm.use=shm comm.axes={\"dp\":\"mpi\"}", FOUR);
    expect_learns(&b);
    expect_close(&b, &a, 1e-6);
    expect_says(command_run("train llama.yaml mesh.dp=2 comm.axes={\"tp\":\"mpi\"} --dry-run"),
                "warning: comm.axes.tp has no effect where mesh.tp is 1: leave it out");
}
END_TEST

/* Inside one machine mpi serves all ranks; in the order of its sums only where no order is asked for. */
START_TEST(inside)
{
    struct command *c;
    train(&a, "shm", "llama.yaml mesh.dp=2 strategies=[%s]", "{\"use\":\"zero\",\"stage\":1}");
    train(&b, "inside", "llama.yaml mesh.dp=2 strategies=[%s] comm.inside=mpi comm.sums=any",
          "{\"use\":\"zero\",\"stage\":1}");
    expect_same_bits(&a, &b);
    c = command_run("train llama.yaml mesh.dp=2 comm.inside=mpi");
    expect_code(c, 2);
    expect_says(c, "comm.inside: mpi adds in an order of its own");
#ifdef HWLOC
    setenv("HWLOC_SYNTHETIC", "numa:2 core:1 pu:1", 1);
    c = command_run("train llama.yaml mesh.dp=4 comm.inside=mpi comm.sums=any comm.levels=numa");
    expect_code(c, 2);
    expect_says(c, "MPI has 4 ranks here, and 2 of them are to have a transport of their own");
#endif
}
END_TEST

START_TEST(core_order_gives_the_bits_of_shm)
{
    train(&a, "shm", "%s mesh.dp=3 mesh.tp=1 data.batch=12 strategies=[%s]", "llama.yaml job.steps=8",
          "{\"use\":\"zero\",\"stage\":2}");
    train(&b, "core", "%s mesh.dp=3 mesh.tp=1 data.batch=12 strategies=[%s] comm.use=mpi comm.collectives=core",
          "llama.yaml job.steps=8", "{\"use\":\"zero\",\"stage\":2}");
    expect_same_bits(&a, &b);
}
END_TEST

/* As with InfiniBand: UCX leaves MPI 2^23 tags. Signatures then travel as messages, and sums of the core. */
START_TEST(few_tags)
{
    if (system("ompi_info 2>&1 | grep -q 'pml: ucx'"))
        return;
    setenv("OMPI_MCA_pml", "ucx", 1);
    setenv("OMPI_MCA_pml_ucx_tls", "any", 1);
    setenv("OMPI_MCA_pml_ucx_devices", "any", 1);
    setenv("UCX_TLS", "self,sysv,posix,tcp", 1);
    train(&a, "ucx", "%s", "llama.yaml job.steps=3 mesh.dp=2 comm={\"use\":\"mpi\",\"boards\":false}");
    train(&b, "ucx-core", "%s",
          "llama.yaml job.steps=3 mesh.dp=2 comm={\"use\":\"mpi\",\"boards\":false,\"collectives\":\"core\"}");
    expect_close(&b, &a, 1e-5);
}
END_TEST

START_TEST(exact_is_exact)
{
    train(&a, "one", "%s", "llama.yaml job.steps=6 job.deterministic=exact");
    train(&b, "four", "%s",
          "llama.yaml job.steps=6 job.deterministic=exact mesh.dp=4 data.micro_batch=2 comm.use=mpi "
          "strategies=[{\"use\":\"zero\",\"stage\":2}]");
    expect_same_bits(&a, &b);
}
END_TEST

/* ---- bytes: what each transport was given, by the perf hook, is what `heddle explain` says of its axis */

#define MIXED "llama.yaml mesh.dp=2 mesh.pp=2 strategies=[{\"use\":\"3d\"},{\"use\":\"zero\",\"stage\":1}] "

/* Bytes that rank `rank` has sent over this transport in group `group`, where it has two members. */
static double sent_over(const char *transport, const char *group, int rank)
{
    char path[128];
    snprintf(path, sizeof path, "runs/mixed/perf-%s-rank%d.json", transport, rank);
    json_t *file = json_load_file(path, 0, NULL), *row;
    double sent = 0;
    size_t i;
    ck_assert_msg(file != NULL, "%s is not there", path);
    json_array_foreach(json_object_get(file, "rows"), i, row)
    {
        const char *op = json_string_value(json_object_get(row, "op"));
        double bytes = json_number_value(json_object_get(row, "bytes")); /* of the larger buffer */
        if (strcmp(json_string_value(json_object_get(row, "group")), group) || !strcmp(op, "recv"))
            continue;
        sent += strcmp(op, "send") && strcmp(op, "all_reduce") ? bytes / 2 : bytes;
    }
    json_decref(file);
    return sent;
}

static double planned(const char *axes, int rank)
{
    struct command *c = command_run("explain " MIXED "--json --rank %d", rank);
    json_t *all = json_loads(c->out, 0, NULL);
    double bytes =
        json_number_value(json_object_get(json_object_get(json_object_get(all, "totals"), "sent_bytes"), axes));
    expect_code(c, 0);
    json_decref(all);
    return bytes;
}

START_TEST(bytes_by_transport)
{
    static const char *const axes[] = {"dp_shard", "pp"}, *const others[] = {"shm", "mpi", DP_TRANSPORT};
    train(&a, "alone", MIXED "job.steps=4");
    train(&b, "mixed",
          MIXED "job.steps=%d comm={\"use\":\"shm\",\"hooks\":[\"perf\"],\"axes\":{\"dp\":\"" DP_TRANSPORT
                "\",\"pp\":\"mpi\"}}",
          4);
    expect_same_bits(&a, &b); /* of two numbers there is one sum */
    for (int rank = 0; rank < 4; rank += 3)
        for (int k = 0; k < 2; k++) {
            const char *own = k ? "mpi" : DP_TRANSPORT;
            ck_assert_double_eq(sent_over(own, axes[k], rank), 4 * planned(axes[k], rank));
            ck_assert_double_gt(sent_over(own, axes[k], rank), 0);
            for (size_t t = 0; t < HD__COUNT(others); t++)
                if (strcmp(others[t], own))
                    ck_assert_double_eq(sent_over(others[t], axes[k], rank), 0);
        }
}
END_TEST

/* ---- ends */

/* What is in the folder that Open MPI was told to put its files into, shared memory too. */
static int left_in(const char *folder)
{
    DIR *dir = opendir(folder);
    int n = -2; /* itself and the one above */
    ck_assert_ptr_nonnull(dir);
    while (readdir(dir))
        n++;
    closedir(dir);
    return n;
}

struct running {
    struct command *command;
    pid_t pids[5]; /* who starts mpirun, mpirun, and its ranks */
    char folder[128];
};

static void run_three(struct running *r, const char *job)
{
    struct command keeper = {0}, launcher = {0};
    char here[64], environment[400];
    ck_assert_ptr_nonnull(getcwd(here, sizeof here));
    snprintf(r->folder, sizeof r->folder, "%s/%s", here, job);
    ck_assert_int_eq(mkdir(r->folder, 0700), 0);
    snprintf(environment, sizeof environment, "TMPDIR=%s OMPI_MCA_btl_vader_backing_directory=%s", r->folder,
             r->folder);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    r->command = command_start(environment, "train " ENDLESS "job.name=%s", job);
    curve_wait(job, 10);
    ck_assert_int_gt(left_in(r->folder), 0);
    command_ranks(r->command, 1, r->pids);
    keeper.pid = r->pids[0];
    command_ranks(&keeper, 1, r->pids + 1);
    launcher.pid = r->pids[1];
    command_ranks(&launcher, 3, r->pids + 2);
}

static void expect_nothing_left(const struct running *r)
{
    expect_gone(r->pids, 5, 10);
    ck_assert_int_eq(left_in(r->folder), 0);
}

START_TEST(a_lost_rank_is_named)
{
    static const int signals[] = {SIGKILL, SIGSTOP};
    static const char *const names[] = {"killed", "stopped"};
    struct running r;
    char words[32];
    int lost = _i == 0 ? 1 : 2;
    run_three(&r, names[_i]);
    kill(r.pids[2 + lost], signals[_i]);
    command_wait(r.command, 10);
    expect_code(r.command, 1);
    snprintf(words, sizeof words, "rank %d", lost);
    expect_says(r.command, words);
    expect_nothing_left(&r);
}
END_TEST

static void signal_command(struct running *r, const char *job, int signal)
{
    run_three(r, job);
    kill(r->command->pid, signal);
    command_wait(r->command, 10);
    expect_nothing_left(r);
}

/* No rank listens at the machine's networks if all are on it. */
START_TEST(no_port_is_open)
{
    struct running r;
    run_three(&r, "ports");
    for (int k = 2; k < 5; k++)
        ck_assert_int_eq(listening_port(r.pids[k], "00000000"), 0);
    kill(r.command->pid, SIGTERM);
    command_wait(r.command, 10);
    expect_code(r.command, 3);
    expect_nothing_left(&r);
}
END_TEST

START_TEST(stops_when_asked)
{
    struct running r;
    signal_command(&r, "asked", SIGTERM);
    expect_code(r.command, 3);
    expect_says(r.command, "after step");
}
END_TEST

/* Commands of a rank may be heddle again, and no ranks: its variables are not theirs. */
START_TEST(a_command_is_no_rank)
{
    write_file("notice",
               "#!/bin/sh\ngrep -qs grad_norm runs/noticed/metrics.jsonl && env > seen\n"); /* once it trains */
    ck_assert_int_eq(chmod("notice", 0755), 0);
    struct command *c =
        command_run("train " ENDLESS "job.name=noticed launch.notice={\"command\":\"./notice\",\"every\":\"10ms\"}");
    const char *seen = read_file("seen");
    expect_code(c, 3);
    ck_assert_msg(strstr(seen, "OMPI_COMM_WORLD_RANK=") && !strstr(seen, "HEDDLE_RENDEZVOUS=") &&
                      !strstr(seen, "HEDDLE_LAUNCHED="),
                  "%s", seen);
}
END_TEST

START_TEST(nothing_outlives_the_command)
{
    struct running r;
    signal_command(&r, "orphans", SIGKILL);
}
END_TEST

/* A launcher that does not notice by itself that its caller is gone is told. */
START_TEST(a_launcher_is_told_in_the_end)
{
    struct command keeper = {0}, *c;
    char here[64], environment[200];
    pid_t pids[2];
    ck_assert_ptr_nonnull(getcwd(here, sizeof here));
    write_file("mpirun",
               "#!/bin/sh\ntrap 'echo told >told; exit 1' TERM\necho started >started\nwhile :; do sleep 0.05; done\n");
    ck_assert_int_eq(chmod("mpirun", 0755), 0);
    snprintf(environment, sizeof environment, "PATH=%s:/usr/bin:/bin", here);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    c = command_start(environment, "train llama.yaml mesh.dp=2 comm.use=mpi");
    while (access("started", F_OK)) /* Check ends what hangs */
        usleep(2000);
    command_ranks(c, 1, pids);
    keeper.pid = pids[0];
    command_ranks(&keeper, 1, pids + 1);
    kill(c->pid, SIGKILL);
    command_wait(c, 10);
    expect_gone(pids, 2, 20);
    ck_assert_int_eq(access("told", F_OK), 0);
}
END_TEST

/* As Open MPI's does on a busy machine: the ranks know better. */
START_TEST(a_launcher_that_did_not_hear_of_the_end)
{
    struct command *c;
    char here[64], *environment;
    ck_assert_ptr_nonnull(getcwd(here, sizeof here));
    write_file("mpirun", "#!/bin/sh\nPATH=${PATH#*:} mpirun \"$@\"\nexit 1\n");
    ck_assert_int_eq(chmod("mpirun", 0755), 0);
    environment = keep(hd__format("PATH=%s:%s", here, getenv("PATH")));
    c = command_run_env(environment, "train llama.yaml mesh.dp=2 job.steps=3 comm.use=mpi job.name=unheard");
    expect_code(c, 0);
    expect_says(c, "mpirun ended with exit code 1, but every rank had reported 0: ");
    c = command_run_env(environment, "train llama.yaml mesh.dp=2 optimizer.lr=1e6 comm.use=mpi job.name=unheard-fails");
    expect_code(c, 1);
    expect_says(c, "the loss is ");
    /* One that crashed as its process ended, after it had said 0: mpirun's code has the signal. */
    write_file("mpirun", "#!/bin/sh\nPATH=${PATH#*:} mpirun \"$@\"\nexit 139\n");
    expect_code(command_run_env(environment, "train llama.yaml mesh.dp=2 job.steps=3 comm.use=mpi job.name=crashes"),
                1);
}
END_TEST

/* ---- starts */

START_TEST(refuses_what_it_cannot_be)
{
    struct command *c = command_run_env("PATH=/nowhere", "train llama.yaml mesh.dp=2 comm.use=mpi");
    expect_code(c, 2);
    expect_says(c, "mpirun, which starts the ranks of this transport: No such file or directory; it comes with "
                   "Debian's package openmpi-bin");
    c = command_run_env("RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=1",
                        "train llama.yaml mesh.dp=2 comm.use=mpi --dry-run");
    expect_code(c, 0);
}
END_TEST

START_TEST(bench_beside_shm)
{
    struct command *c = command_run(
        "bench --comm shm,mpi --op all_reduce,all_to_all,barrier -b 64 -e 4K -f 8 -n 20 --ranks %d", 1 + 2 * _i);
    expect_code(c, 0);
    ck_assert_msg(strstr(c->out, " shm ") && strstr(c->out, " mpi ") && strstr(c->out, "# barrier"), "%s", c->out);
}
END_TEST

/* mpirun starts the bench, as it does nccl-tests: one table, of rank 0. */
START_TEST(bench_under_mpirun)
{
    json_t *all;
    ck_assert_int_eq(system("timeout 300 mpirun --allow-run-as-root --oversubscribe -np 3 " HEDDLE
                            " bench --json --comm mpi,shm --op all_reduce,barrier "
                            "-b 12 -e 12 --out-of-place </dev/null >bench.json 2>bench.log"),
                     0);
    all = json_load_file("bench.json", 0, NULL);
    ck_assert_int_eq(json_array_size(json_object_get(all, "rows")), 4);
    json_decref(all);
    ck_assert((strstr(read_file("bench.log"), "ranks here 3: this machine has ") != NULL) ==
              (sysconf(_SC_NPROCESSORS_ONLN) < 3));
}
END_TEST

int main(void)
{
    const struct system_test tests[] = {
        {"learns", learns_as_over_shm, 1},
        {"mixed", one_axis_over_mpi, 1},
        {"inside", inside, 1},
        {"order", core_order_gives_the_bits_of_shm, 1},
        {"few tags", few_tags, 1},
        {"exact", exact_is_exact, 1},
        {"lost", a_lost_rank_is_named, 2},
        {"no port is open", no_port_is_open, 1},
        {"asked", stops_when_asked, 1},
        {"commands", a_command_is_no_rank, 1},
        {"orphans", nothing_outlives_the_command, 1},
        {"told", a_launcher_is_told_in_the_end, 1},
        {"a launcher that did not hear of the end", a_launcher_that_did_not_hear_of_the_end, 1},
        {"starts", refuses_what_it_cannot_be, 1},
        {"bench", bench_beside_shm, 2},
        {"bench under mpirun", bench_under_mpirun, 1},
        {"bytes", bytes_by_transport, 1},
        {NULL, NULL, 0},
    };
    return system_run("mpi", tests);
}
