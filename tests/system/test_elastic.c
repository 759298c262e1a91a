/* Jobs that an agent a machine runs, on network namespaces: started, waited for, broken in every way, joined again, to
 * the same bits as undisturbed. Each fault prints how long it was until the next completed step. */
#include <arpa/inet.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/system/machines.h"
#include "tests/system/system.h"

static struct curve whole, parts;

#define SMALL "llama.yaml data.seq_len=8 "
#define EXACT_ON_ONE SMALL "job.deterministic=exact comm.use=shm "
#define EXACT SMALL "job.deterministic=exact comm.use=libfabric "
/* Steps of 10 ms and more, most of which is a pause: what is done to a job comes before its end, and few steps are
 * enough. A step of exact sums has twice as many operations and more. */
#define PAUSED(every) "comm.hooks=[{\"use\":\"faults\",\"kind\":\"delay\",\"every\":" every ",\"seconds\":\"10ms\"}] "
#define PACED PAUSED("4")
#define SOON "launch.pause=10ms comm.dead_after=2s checkpoint.async=false "
#define MEET "--rendezvous 10.77.0.1:29400 "

/* An agent on machine i, with the words that all have and its own. */
static struct command *start_agent(int i, const char *environment, const char *words)
{
    struct command *c;
    machine_enter(i);
    c = command_start(keep(hd__format(TEST_SECRET " %s", environment)), "train %s", words);
    machine_enter(-1);
    return c;
}

static struct command *start_node(int i, const char *words)
{
    return start_agent(i, "A=b", keep(hd__format("%s --node-rank %d", words, i)));
}

static void start_nodes(struct command **c, int n, const char *words)
{
    for (int i = 0; i < n; i++)
        c[i] = start_node(i, words);
}

static void expect_end(struct command *c, int code)
{
    command_wait(c, 90);
    expect_code(c, code);
}

/* ---- what the metrics say */

/* Rows of a job: the n-th (from 1) with this event and what follows, or NULL. */
static char *after_event(const char *job, const char *event, int n)
{
    char path[128], words[64];
    snprintf(path, sizeof path, "runs/%s/metrics.jsonl", job);
    snprintf(words, sizeof words, "\"event\": \"%s\"", event);
    char *at = access(path, R_OK) ? NULL : read_file(path);
    for (int i = 0; i < n && at; i++)
        at = strstr(at + (i > 0), words);
    return at;
}

/* Waits for a step of the round that the n-th such event begins; prints how long it took. */
static void wait_for_step(const char *job, const char *event, int n, const char *what, double since)
{
    char *at = NULL;
    for (int waits = 0; waits < 9000; waits++) {
        at = after_event(job, event, n);
        if (at && strstr(at, "\"loss\": "))
            break;
        usleep(10000);
    }
    ck_assert_msg(at && strstr(at, "\"loss\": "), "no step after %s %d of %s", event, n, job);
    fprintf(stderr, "%-28s %6.2f s to the next step (%s)\n", what, hd__now() - since, event);
}

static json_t *row_of(const char *job, const char *event, int n)
{
    char *at = after_event(job, event, n);
    ck_assert_msg(at != NULL, "there is no %s %d in %s", event, n, job);
    while (*at != '{' || (at[-1] && at[-1] != '\n'))
        at--;
    at[strcspn(at, "\n")] = '\0';
    return json_loads(at, 0, NULL);
}

/* `lost`: the only rank; -1: none. */
static void expect_event(const char *job, const char *event, int n, int ranks, int lost)
{
    json_t *row = row_of(job, event, n), *all = json_object_get(row, "lost");
    ck_assert_int_eq(json_integer_value(json_object_get(row, "ranks")), ranks);
    ck_assert_uint_eq(json_array_size(all), lost >= 0);
    if (lost >= 0)
        ck_assert_int_eq(json_integer_value(json_array_get(all, 0)), lost);
    ck_assert_double_gt(json_real_value(json_object_get(row, "seconds")), 0);
    ck_assert_int_gt(json_integer_value(json_object_get(row, "round")), 0);
    ck_assert_ptr_nonnull(json_object_get(row, "step"));
    json_decref(row);
}

/* Each step once, and those of one machine that nobody disturbed. `lack`: so many times rank 0 died or failed, maybe
 * between the end of a step, which the others then saved, and its row. */
static void expect_undisturbed(const char *job, const char *words, int lack)
{
    curve_read(&parts, job);
    int last = (int)parts.step[parts.n - 1];
    ck_assert_msg(parts.n <= last && parts.n >= last - lack, "%d rows of %d steps", parts.n, last);
    train(&whole, "undisturbed", SMALL "job.deterministic=exact mesh.dp=2 job.steps=%d %s", last, words);
    for (int i = 0; i < parts.n; i++) {
        int64_t step = parts.step[i];
        ck_assert_msg(i == 0 || step > parts.step[i - 1], "step %d comes again", (int)step);
        ck_assert_msg(whole.step[step - 1] == step && !strcmp(parts.text[i], whole.text[step - 1]),
                      "step %d: %s, not %s", (int)step, parts.text[i], whole.text[step - 1]);
    }
}

static void wait_for_words(const struct command *c, const char *words)
{
    for (int waits = 0; waits < 6000; waits++) {
        if (!access(c->err_file, R_OK) && strstr(read_file(c->err_file), words))
            return;
        usleep(10000);
    }
    ck_abort_msg("it did not say %s: %s", words, read_file(c->err_file));
}

/* ---- starting */

/* By options, by keys, by variables of others, over IPv6; one rank a machine or two. */
static const struct {
    const char *words, *environment[2];
} starts[] = {
    {MEET "--nodes 2 mesh.dp=2", {"", ""}},
    {"launch={\"nodes\":2,\"ranks\":1,\"rendezvous\":\"10.77.0.1:29400\"}", {"NODE_RANK=0", "NODE_RANK=1"}},
    {"mesh.dp=2",
     {"NNODES=2 NODE_RANK=0 MASTER_ADDR=10.77.0.1 MASTER_PORT=29400",
      "NNODES=2 NODE_RANK=1 MASTER_ADDR=10.77.0.1 MASTER_PORT=29400"}},
    {"launch.nodes=2 --rendezvous [fd77::1]:29400 mesh.dp=2", {"JOB_COMPLETION_INDEX=0", "JOB_COMPLETION_INDEX=1"}},
    {MEET "--nodes 2 launch.ranks=2 mesh={\"dp\":2,\"tp\":2} comm.axes={\"tp\":\"shm\"}", {"", ""}},
};

/* As on one machine, over another transport. */
START_TEST(agents_start)
{
    static struct curve whole_of[2];
    struct command *c[2];
    train(&whole_of[0], "one-machine", EXACT_ON_ONE "mesh.dp=2");
    train(&whole_of[1], "one-machine-tp", EXACT_ON_ONE "mesh.dp=2 mesh.tp=2");
    machines_up(2, NULL);
    for (int i = 0; i < 2; i++)
        machine_run(i, "ip -6 addr add fd77::%d/64 dev eth0 nodad", i + 1);
    for (size_t n = 0; n < HD__COUNT(starts); n++) {
        const char *job = keep(hd__format("start%zu", n)), *words = starts[n].words;
        fprintf(stderr, "started by %s\n", words);
        for (int i = 0; i < 2; i++) {
            const char *environment = starts[n].environment[i];
            words = keep(hd__format(EXACT "%s job.name=%s %s", starts[n].words, job,
                                    environment[0] ? ""
                                    : i            ? "--node-rank 1"
                                                   : "--node-rank 0"));
            c[i] = start_agent(i, environment[0] ? environment : "A=b", words);
        }
        expect_end(c[0], 0);
        expect_end(c[1], 0);
        curve_read(&parts, job);
        expect_same_bits(&parts, &whole_of[strstr(starts[n].words, "\"tp\"") != NULL]);
    }
}
END_TEST

/* Node 0's command sums up what all of them recorded. */
START_TEST(traced)
{
    struct command *c[2];
    machines_up(2, NULL);
    for (int i = 0; i < 2; i++) {
        machine_enter(i);
        c[i] = command_start(TEST_SECRET, "trace " EXACT MEET "--nodes 2 mesh.dp=2 job.name=traced --node-rank %d", i);
        machine_enter(-1);
    }
    expect_end(c[0], 0);
    expect_end(c[1], 0);
    ck_assert_ptr_nonnull(strstr(c[0]->out, "trace of traced: steps 3 to 5 on 2 ranks"));
    ck_assert_str_eq(c[1]->out, "");
}
END_TEST

/* Machines may be late, and who waits says for whom; not longer than comm.timeout. */
START_TEST(late_machines)
{
    struct command *c[2];
#define LATE EXACT MEET "--nodes 2 mesh.dp=2 liveness.late_after=100ms job.name=late "
    machines_up(2, NULL);
    c[0] = start_node(0, LATE);
    wait_for_words(c[0], "waiting for node 1 since ");
    c[1] = start_node(1, LATE);
    expect_end(c[0], 0);
    expect_end(c[1], 0);
    c[1] = start_node(1, LATE "job.steps=21");
    wait_for_words(c[1], "node 1: waiting for node 0 at 10.77.0.1:29400 since ");
    c[0] = start_node(0, LATE "job.steps=21");
    expect_end(c[0], 0);
    expect_end(c[1], 0);
    c[0] = start_node(0, LATE "comm.timeout=1s");
    expect_end(c[0], 1);
    expect_says(c[0], "node 1 did not come within 1 s: 1 of 2 machines are here, 2 are needed");
    c[1] = start_node(1, LATE "comm.timeout=1s");
    expect_end(c[1], 1);
    expect_says(c[1], "node 0 at 10.77.0.1:29400, which leads the job, cannot be reached: Connection refused");
}
END_TEST

/* All machines are stopped, for longer than comm.timeout, while one waits for the other. */
START_TEST(stopped_while_they_wait)
{
#if SANITIZED
    printf("skipped: a sanitizer has to be loaded first\n");
#else
    static const char clock[] = "LD_PRELOAD=" ASYNC "/stopped_clock.so";
    static const char *const waits[] = {"waiting for node 1 since ", "waiting for node 0 at 10.77.0.1:29400 since "};
    struct command *c[2];
    machines_up(2, NULL);
    for (int first = 0; first < 2; first++) {
        const char *words = keep(hd__format(EXACT MEET "--nodes 2 mesh.dp=2 comm.timeout=300s liveness.dead_after=60s "
                                                       "liveness.late_after=2s job.name=stopped%d --node-rank ",
                                            first));
        c[first] = start_agent(first, clock, keep(hd__format("%s%d", words, first)));
        wait_for_words(c[first], waits[first]);
        c[!first] = start_agent(!first, clock, keep(hd__format("%s%d", words, !first)));
        expect_end(c[0], 0);
        expect_end(c[1], 0);
    }
#endif
}
END_TEST

static const struct {
    const char *environment, *words, *says;
} refusals[] = {
    {"", MEET "--nodes 2", "nothing says which of them this is: give --node-rank I (0 to 1), or set NODE_RANK"},
    {"", MEET "--nodes 2 --node-rank 2", "--node-rank '2': the 2 nodes of this job are counted from 0 to 1"},
    {"", MEET "--nodes 2 --node-rank one", "--node-rank 'one': the 2 nodes"},
    {"", MEET "--nodes 2 --node-rank -1", "--node-rank '-1': the 2 nodes"},
    {"", MEET "--nodes 2:x --node-rank 0",
     "launch.nodes: '2:x' is neither a number of machines (such as 4) nor a range MIN:MAX"},
    {"", MEET "--nodes 3:2 --node-rank 0", "launch.nodes: '3:2' is neither a number"},
    {"", MEET "--nodes 0 --node-rank 0", "launch.nodes: '0' is neither a number"},
    {"", MEET "--nodes 5000 --node-rank 0", "up to 2048"},
    {"", MEET "--node-rank 0", "--node-rank is given, and the job runs on one machine"},
    {"", "--nodes 2 --node-rank 0", "nothing says where they meet: give --rendezvous HOST:PORT"},
    {"", "--nodes 2 --node-rank 0 --rendezvous 10.77.0.1", "'10.77.0.1' is not HOST:PORT"},
    {"", "--nodes 2 --node-rank 0 --rendezvous 0.0.0.0:29400",
     "launch.rendezvous: 0.0.0.0 is every address of a machine, and none that others could connect to: name node 0"},
    {"", "--nodes 2 --node-rank 1 --rendezvous [::]:29400", "launch.rendezvous: :: is every address of a machine"},
    {"", "--nodes 2 --node-rank 0 --rendezvous fd77::1:29400", "is not HOST:PORT, [ADDRESS]:PORT for IPv6"},
    {"", "--nodes 2 --node-rank 0 --rendezvous a:65535", "with a port from 1 to 65534"},
    {"NODE_RANK=1", MEET "--nodes 2 --node-rank 0", "--node-rank says that this is node 0, and NODE_RANK that it is"},
    {"NODE_RANK=1 JOB_COMPLETION_INDEX=0", MEET "--nodes 2", "NODE_RANK says that this is node 1, and JOB_COMPLETION"},
    {"NNODES=3", MEET "--nodes 2 --node-rank 0", "launch.nodes is 2, but the environment says NNODES=3"},
    {"NNODES=many", MEET "--node-rank 0", "NNODES='many'"},
    {"MASTER_ADDR=10.77.0.2 MASTER_PORT=29400", MEET "--nodes 2 --node-rank 0",
     "launch.rendezvous is 10.77.0.1:29400, but the environment says MASTER_ADDR=10.77.0.2 and MASTER_PORT=29400"},
    {"MASTER_ADDR=10.77.0.1", "--nodes 2 --node-rank 0", "MASTER_ADDR=10.77.0.1 and MASTER_PORT=: both are needed"},
    {"RANK=0 WORLD_SIZE=1", MEET "--nodes 2 --node-rank 0", "--nodes: another launcher started this process as one of"},
    {"RANK=1", MEET "--nodes 2 --node-rank 0", "the environment has RANK, but not WORLD_SIZE"},
    {"RANK=1 WORLD_SIZE=2", MEET "--nodes 2 --node-rank 0", "set RANK and WORLD_SIZE, but not MASTER_ADDR"},
    {"HEDDLE_SECRET=", MEET "--nodes 2 --node-rank 0 mesh.dp=2 comm.use=libfabric",
     "HEDDLE_SECRET is not 32 or 64 hexadecimal digits"},
    {"",
     MEET "--nodes 2 --node-rank 0 launch.ranks=1 comm.use=libfabric "
          "metrics.sinks=[{\"use\":\"prometheus\",\"port\":29401}]",
     "command line: metrics.sinks.0: port 29401 is the rendezvous's, which uses 29400 and 29401: name another"},
    {"", MEET "--nodes 2 --node-rank 0 mesh.dp=3", "the 3 ranks of the mesh are no multiple of 2 machines"},
    {"", MEET "--nodes 2:3 --node-rank 0 launch.ranks=1 mesh.tp=4", "mesh: 2 ranks cannot be cut into"},
};

START_TEST(refused)
{
    struct command *c;
    for (size_t i = 0; i < HD__COUNT(refusals); i++) {
        c = command_run_env(
            keep(hd__format(TEST_SECRET " %s", *refusals[i].environment ? refusals[i].environment : "A=b")),
            "train llama.yaml %s", refusals[i].words);
        expect_code(c, 2);
        expect_says(c, refusals[i].says);
    }
    c = command_run("train llama.yaml " MEET "--nodes 2 --node-rank 1 mesh.dp=2 comm.use=libfabric");
    expect_code(c, 2);
    expect_says(c, "machines meet at 10.77.0.1:29400 and have no secret, so that anybody could join them");
    c = command_run("train llama.yaml --dry-run " MEET "--nodes 2 --node-rank 0 mesh.dp=2 comm.use=libfabric");
    expect_code(c, 2);
    expect_says(c, "machines meet at 10.77.0.1:29400 and have no secret");
    ck_assert_str_eq(c->out, "");
    static const char *const inside[] = {"train llama.yaml " MEET "--node-rank 0 ",
                                         "train llama.yaml --dry-run " MEET "--node-rank 1 ", "check llama.yaml "};
    for (size_t i = 0; i < HD__COUNT(inside); i++) {
        c = command_run_env(TEST_SECRET, "%scomm.use=shm launch.nodes=2 mesh.dp=2", inside[i]);
        expect_code(c, 2);
        expect_says(c, "comm-shm works inside one machine only, and dp_shard connects machines");
        ck_assert_str_eq(c->out, "");
    }
    expect_code(command_run("check llama.yaml comm.use=libfabric launch.nodes=2 mesh.dp=2"), 0);
    expect_code(command_run("check llama.yaml comm.use=shm launch.nodes=1 mesh.dp=2"), 0);
    c = command_run("eval llama.yaml launch.nodes=2 launch.ranks=1 data.val_fraction=0.1 --random-weights");
    expect_code(c, 2);
    expect_says(c, "only `heddle train` runs on several machines by agents of its own");
    c = command_run_env(TEST_SECRET,
                        "train llama.yaml --dry-run " MEET "--nodes 2 --node-rank 1 mesh.dp=2 comm.use=libfabric");
    expect_code(c, 0);
    ck_assert_ptr_nonnull(strstr(c->out, "ready: 2 ranks"));
}
END_TEST

/* Agents whose checkpoint.dir is a folder of each machine's own. */
START_TEST(folders_apart)
{
    struct command *c[2];
    machines_up(2, NULL);
    for (int i = 0; i < 2; i++)
        c[i] =
            start_node(i, keep(hd__format(EXACT MEET "--nodes 2 mesh.dp=2 job.name=apart checkpoint.dir=disk%d", i)));
    expect_end(c[0], 2);
    expect_end(c[1], 2);
    expect_says(c[1], "checkpoint.dir: ");
    expect_says(c[1], "for rank 1, is not the folder that rank 0 has, ");
    ck_assert_int_ne(access("runs/apart/metrics.jsonl", F_OK), 0);
}
END_TEST

/* ---- a rank fails */

static void kill_child(const struct command *c, int sig)
{
    pid_t ranks[1];
    command_ranks(c, 1, ranks);
    ck_assert_int_eq(kill(ranks[0], sig), 0);
}

/* Each restart goes on from the step that node 0 said. */
static void expect_restarts_from(const struct command *c, int n)
{
    const char *said = c->err, *resumed = c->out;
    for (int i = 0; i < n; i++) {
        const char words[] = "resuming from step ";
        said = strstr(said, ", from step ");
        resumed = strstr(resumed, words);
        ck_assert_msg(said && resumed, "restart %d:\n%s%s", i + 1, c->err, c->out);
        said += strlen(", from step ");
        resumed += sizeof words - 1;
        ck_assert_msg(atoll(said) == atoll(resumed), "restart %d: from %.8s, not %.8s", i + 1, resumed, said);
    }
}

START_TEST(ranks_fail)
{
    struct command *c[2];
    double since;
    machines_up(2, NULL);
    start_nodes(c, 2,
                EXACT SOON PACED MEET "--nodes 2 mesh.dp=2 job.steps=170 job.name=ranks launch.restarts=3 "
                                      "checkpoint.every=20 checkpoint.dir=ranks");
    curve_wait("ranks", 30);
    since = hd__now();
    kill_child(c[1], SIGKILL);
    wait_for_step("ranks", "restart", 1, "rank of node 1: SIGKILL", since);
    since = hd__now();
    kill_child(c[0], SIGSTOP);
    wait_for_step("ranks", "restart", 2, "rank of node 0: SIGSTOP", since);
    expect_end(c[0], 0);
    expect_end(c[1], 0);
    expect_event("ranks", "restart", 1, 2, 1);
    expect_event("ranks", "restart", 2, 2, 0);
    expect_restarts_from(c[0], 2);
    expect_undisturbed("ranks", "job.seed=1337", 1);
}
END_TEST

/* Without launch.restarts a rank that fails is the end of the job on all machines; a refusal always is. */
START_TEST(not_restarted)
{
    struct command *c[2];
    machines_up(2, NULL);
    start_nodes(c, 2, EXACT SOON MEET "--nodes 1:2 mesh.dp=2 job.steps=1000000000 job.name=once");
    curve_wait("once", 5);
    kill_child(c[1], SIGKILL);
    expect_end(c[0], 1);
    expect_end(c[1], 1);
    ck_assert_ptr_null(strstr(c[0]->err, "started again"));
    for (int i = 0; i < 2; i++)
        c[i] = start_node(i, keep(hd__format(EXACT SOON MEET "--nodes 2 mesh.dp=2 launch.restarts=3 job.name=unlike "
                                                             "job.steps=%d",
                                             20 + i)));
    expect_end(c[0], 2);
    expect_end(c[1], 2);
    ck_assert_ptr_null(strstr(c[0]->err, "started again"));
    /* other ranks a machine */
    c[0] = start_node(0, EXACT MEET "--nodes 2 launch.ranks=1 job.name=uneven");
    c[1] = start_node(1, EXACT MEET "--nodes 1:2 launch.ranks=2 launch.restarts=7 job.name=uneven comm.timeout=2s");
    wait_for_words(c[1], "launch.ranks is 2 on node 1 and 1 on node 0: all machines have as many");
    expect_end(c[1], 2);
    expect_says(c[1], "warning: launch.restarts is 7 on node 1 and 0 on node 0, which decides");
    expect_says(c[1], "warning: the least of launch.nodes is 1 on node 1 and 2 on node 0, which decides");
    command_wait(c[0], 60); /* node 1 is gone */
    c[0] = start_node(0, EXACT MEET "--nodes 2 launch.ranks=1 job.name=uneven");
    c[1] = start_node(1, EXACT MEET "--nodes 1:4 launch.ranks=1 job.name=uneven");
    expect_end(c[1], 2);
    expect_says(c[1], "launch.nodes is up to 2 on node 0, and up to 4 on this one");
    kill(c[0]->pid, SIGTERM);
    command_wait(c[0], 60);
}
END_TEST

/* A machine whose rank dies in each round is left out; the job goes on without it, and ends with 0. */
START_TEST(left_out)
{
    struct command *c[2];
    machines_up(2, NULL);
    start_nodes(c, 2,
                EXACT SOON MEET "--nodes 1:2 mesh.dp=2 job.name=out launch.restarts=9 checkpoint.every=100000 "
                                "comm.hooks=[{\"use\":\"faults\",\"rank\":1,\"at\":16,\"kind\":\"kill\"}]");
    expect_end(c[0], 0);
    expect_end(c[1], 1);
    expect_says(c[0], "node 1 is left out: it failed 3 rounds in a row");
    expect_says(c[1], "node 1 is left out: it failed three rounds in a row");
    expect_event("out", "restart", 2, 2, 1);
    expect_event("out", "shrink", 1, 1, 1);
    expect_undisturbed("out", "job.seed=1337", 0);
}
END_TEST

/* The same where no machine can be spared: launch.restarts decides. */
START_TEST(needed)
{
    struct command *c[2];
    machines_up(2, NULL);
    start_nodes(c, 2,
                EXACT SOON MEET "--nodes 2 mesh.dp=2 job.name=needed launch.restarts=4 checkpoint.every=100000 "
                                "comm.hooks=[{\"use\":\"faults\",\"rank\":1,\"at\":16,\"kind\":\"kill\"}]");
    expect_end(c[0], 1);
    expect_end(c[1], 1);
    expect_says(c[0], "node 1 failed 3 rounds in a row, and stays: launch.nodes wants 2 machines");
    expect_says(c[0], "launch.restarts: 4 in a row have made no newer checkpoint");
    expect_event("needed", "restart", 4, 2, 1);
}
END_TEST

/* ---- a machine goes, and comes back */

static const char *const ways[] = {"agent of node 1: SIGKILL", "node 1: link down", "agent of node 1: SIGSTOP"};

static void break_machine(int way, const struct command *agent)
{
    if (way == 1)
        machine_run(1, "ip link set eth0 down");
    else
        ck_assert_int_eq(kill(agent->pid, way ? SIGSTOP : SIGKILL), 0);
}

START_TEST(machine_goes)
{
#define SPOT                                                                                            \
    EXACT SOON PACED MEET "--nodes 1:2 mesh.dp=2 job.steps=1000000000 job.name=%s checkpoint.every=20 " \
                          "checkpoint.keep=3"
    struct command *c[2];
    char job[16];
    snprintf(job, sizeof job, "goes%d", _i);
    const char *words = keep(hd__format(SPOT, job));
    machines_up(2, NULL);
    start_nodes(c, 2, words);
    curve_wait(job, 30);
    double since = hd__now();
    break_machine(_i, c[1]);
    wait_for_step(job, "shrink", 1, ways[_i], since);
    since = hd__now();
    if (_i == 0)
        c[1] = start_node(1, words);
    else if (_i == 1)
        machine_run(1, "ip link set eth0 up");
    else
        kill(c[1]->pid, SIGCONT);
    wait_for_step(job, "grow", 1, "node 1 is back", since);
    kill(c[0]->pid, SIGTERM);
    expect_end(c[0], 3);
    expect_end(c[1], 3);
    expect_event(job, "shrink", 1, 1, 1);
    expect_event(job, "grow", 1, 2, -1);
    ck_assert_ptr_null(after_event(job, "restart", 1));
    /* the ranks of an agent that is stopped live: one may have ended a step that rank 0 has not, and saves it */
    expect_undisturbed(job, "job.seed=1337", _i == 2);
}
END_TEST

/* checkpoint.peers: nothing is on disk, and no rank has all of the state: the next round takes the copies in memory, of
 * the machine that is gone those that its peer holds. */
static const struct {
    const char *nodes, *words;
    int way, back; /* the same machine comes again, without its memory: as many ranks as before */
} copies[] = {
    {"1:2", "", 0, 0},
    {"1:2", "", 1, 0},
    {"2", "launch.restarts=2 liveness.late_after=200ms", 0, 1},
    {"1:2", "launch.ranks=2 mesh.tp=2 comm.axes={\"tp\":\"shm\"}", 0, 0},
};

START_TEST(machine_with_copies_goes)
{
    struct command *c[2];
    char job[16];
    int each = strstr(copies[_i].words, "ranks=2") ? 2 : 1;
    const char *event = copies[_i].back ? "restart" : "shrink";
    snprintf(job, sizeof job, "copies%d", _i);
    const char *words = keep(hd__format(EXACT SOON MEET "--nodes %s mesh.dp=2 job.steps=1000000000 job.name=%s %s "
                                                        "strategies.zero.stage=1 checkpoint.peers={\"every\":10}",
                                        copies[_i].nodes, job, copies[_i].words));
    machines_up(2, NULL);
    start_nodes(c, 2, words);
    curve_wait(job, 30);
    double since = hd__now();
    break_machine(copies[_i].way, c[1]);
    if (copies[_i].back) {
        wait_for_words(c[0], "waiting for node 1 since ");
        c[1] = start_node(1, words);
    }
    wait_for_step(job, event, 1, "copies in memory", since);
    kill(c[0]->pid, SIGTERM);
    expect_end(c[0], 3);
    json_t *row = row_of(job, event, 1);
    ck_assert_str_eq(json_string_value(json_object_get(row, "from")), "memory");
    ck_assert_int_ge(json_integer_value(json_object_get(row, "step")), 10); /* 20, but where a copy was left out */
    ck_assert_int_eq(json_integer_value(json_object_get(row, "ranks")), copies[_i].back ? 2 : each);
    ck_assert_int_eq(json_integer_value(json_object_get(row, "step")) % 10, 0);
    json_decref(row);
    expect_says(c[0], ", which is in memory (on disk: 0)");
    expect_undisturbed(job, each == 2 ? "mesh.tp=2 comm.use=shm" : "strategies.zero.stage=1", 0);
}
END_TEST

/* Two of three machines go, one after the other: what the last one holds of each is enough. */
START_TEST(copies_of_copies)
{
#define THIRDS SMALL "data.batch=6 data.micro_batch=1 optimizer.lr=1e-5 strategies.zero.stage=1 "
    struct command *c[3];
    machines_up(3, NULL);
    start_nodes(c, 3,
                THIRDS SOON MEET "comm.use=libfabric --nodes 1:3 launch.ranks=1 job.steps=1000000000 job.name=thirds "
                                 "checkpoint.peers={\"every\":10}");
    curve_wait("thirds", 40);
    for (int gone = 1; gone < 3; gone++) {
        double since = hd__now();
        ck_assert_int_eq(kill(c[3 - gone]->pid, SIGKILL), 0);
        wait_for_step("thirds", "shrink", gone, "copies of copies", since);
        json_t *row = row_of("thirds", "shrink", gone);
        int step = (int)json_integer_value(json_object_get(row, "step"));
        ck_assert_str_eq(json_string_value(json_object_get(row, "from")), "memory");
        ck_assert_int_eq(json_integer_value(json_object_get(row, "ranks")), 3 - gone);
        json_decref(row);
        curve_wait("thirds", step + 40);
    }
    kill(c[0]->pid, SIGTERM);
    expect_end(c[0], 3);
    const char *first = strstr(c[0]->err, "which is in memory (on disk: 0)");
    ck_assert_msg(first && strstr(first + 1, "which is in memory (on disk: 0)"), "it said:\n%s", c[0]->err);
    curve_read(&parts, "thirds");
    train(&whole, "undivided", THIRDS "job.steps=%d", (int)parts.step[parts.n - 1]);
    expect_close(&parts, &whole, 1e-4);
}
END_TEST

/* mesh: auto chooses for the ranks of each round. */
START_TEST(mesh_auto)
{
    struct command *c[2];
    machines_up(2, NULL);
    start_nodes(c, 2,
                "llama.yaml " SOON MEET "comm.use=libfabric --nodes 1:2 launch.ranks=1 mesh=auto strategies=auto "
                "job.steps=1000000000 job.name=chosen checkpoint.peers={\"every\":10}");
    curve_wait("chosen", 40);
    ck_assert_int_eq(kill(c[1]->pid, SIGKILL), 0);
    wait_for_step("chosen", "shrink", 1, "mesh: auto", hd__now());
    kill(c[0]->pid, SIGTERM);
    expect_end(c[0], 3);
    expect_says(c[0], "ms a step planned for 2 ranks of cpu");
    expect_says(c[0], "1 rank: data.batch stays 8, as dp 1 x ");
    curve_read(&parts, "chosen");
    expect_learns(&parts);
}
END_TEST

/* A round fails on node 0 before the ranks of node 1 have come to its rendezvous: these do not wait for that. */
START_TEST(fails_before_they_meet)
{
    struct sockaddr_in taken = {.sin_family = AF_INET, .sin_port = htons(29401)}; /* that of the ranks */
    struct command *c[2];
    machines_up(2, NULL);
    machine_enter(0);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&taken, sizeof taken), 0);
    ck_assert_int_eq(listen(fd, 1), 0);
    machine_enter(-1);
    start_nodes(c, 2, EXACT SOON MEET "--nodes 2 mesh.dp=2 job.steps=20 job.name=unmet launch.restarts=3");
    wait_for_words(c[0], ":29401");
    close(fd);
    double since = hd__now();
    expect_end(c[0], 0);
    expect_end(c[1], 0);
    ck_assert_double_lt(hd__now() - since, promptly(60)); /* comm.timeout is five minutes */
}
END_TEST

/* As many machines as ever are needed: they are waited for. */
START_TEST(fixed_nodes)
{
    struct command *c[2];
    const char *words = EXACT SOON PACED MEET "--nodes 2 mesh.dp=2 job.steps=170 job.name=fixed launch.restarts=2 "
                                              "checkpoint.every=20 liveness.late_after=200ms";
    double since;
    machines_up(2, NULL);
    start_nodes(c, 2, words);
    curve_wait("fixed", 30);
    since = hd__now();
    kill(c[1]->pid, SIGKILL);
    wait_for_words(c[0], "waiting for node 1 since ");
    c[1] = start_node(1, words);
    wait_for_step("fixed", "restart", 1, "agent of node 1, started again", since);
    expect_end(c[0], 0);
    expect_end(c[1], 0);
    expect_event("fixed", "restart", 1, 2, 1);
    expect_undisturbed("fixed", "job.seed=1337", 0);
}
END_TEST

/* SIGTERM: a machine leaves, the job goes on and ends with 0; at node 0 it is the end for all. */
START_TEST(machine_leaves)
{
    struct command *c[2];
    machines_up(2, NULL);
    start_nodes(c, 2, EXACT SOON PACED MEET "--nodes 1:2 mesh.dp=2 job.steps=170 job.name=leaves");
    curve_wait("leaves", 20);
    double since = hd__now();
    kill(c[1]->pid, SIGTERM);
    wait_for_step("leaves", "shrink", 1, "agent of node 1: SIGTERM", since);
    expect_end(c[1], 3);
    expect_says(c[1], "node 1 was asked to stop, and leaves the job");
    expect_end(c[0], 0);
    expect_says(c[0], "node 1 leaves: all ranks are started again in 0 s, from step ");
    expect_event("leaves", "shrink", 1, 1, -1);
    expect_undisturbed("leaves", "job.seed=1337", 0);
    start_nodes(c, 2, EXACT SOON MEET "--nodes 2 mesh.dp=2 job.steps=1000000000 job.name=both");
    curve_wait("both", 5);
    kill(c[1]->pid, SIGUSR1);
    expect_end(c[0], 3);
    expect_end(c[1], 3);
    expect_says(c[0], "the state is saved");
}
END_TEST

/* Node 0 leads: while it is gone nothing is trained, and when it is back all go on; for good it is the end. */
START_TEST(node_0_goes)
{
    struct command *c[2];
    const char *words = EXACT SOON PACED MEET "--nodes 1:2 mesh.dp=2 job.steps=170 job.name=zero checkpoint.every=20";
    machines_up(2, NULL);
    start_nodes(c, 2, words);
    curve_wait("zero", 30);
    double since = hd__now();
    kill(c[0]->pid, SIGKILL);
    wait_for_words(c[1], "node 1 has lost node 0, and tries to reach it for 300 s");
    c[0] = start_node(0, words);
    curve_read(&parts, "zero");
    curve_wait("zero", parts.step[parts.n - 1] + 1);
    fprintf(stderr, "%-28s %6.2f s to the next step\n", "agent of node 0, started again", hd__now() - since);
    expect_end(c[0], 0);
    expect_end(c[1], 0);
    expect_undisturbed("zero", "job.seed=1337", 1);
    words = EXACT SOON MEET "--nodes 2 mesh.dp=2 job.steps=1000000000 job.name=gone comm.timeout=3s";
    start_nodes(c, 2, words);
    curve_wait("gone", 5);
    kill(c[0]->pid, SIGKILL);
    expect_end(c[1], 1);
    expect_says(c[1], "node 0 at 10.77.0.1:29400, which leads the job, cannot be reached");
}
END_TEST

/* Three machines, and a batch of 8: two train, the third stands by until one of them is gone. */
START_TEST(stands_by)
{
    struct command *c[3];
    machines_up(3, NULL);
    start_nodes(c, 3,
                EXACT SOON PACED MEET "--nodes 2:3 launch.ranks=1 job.steps=170 job.name=spare checkpoint.every=20 "
                                      "data.micro_batch=4");
    curve_wait("spare", 30);
    expect_code(command_run("ckpt ls runs/spare"), 0);
    double since = hd__now();
    kill(c[1]->pid, SIGKILL);
    wait_for_step("spare", "restart", 1, "node 1 is replaced", since);
    expect_end(c[0], 0);
    expect_end(c[2], 0);
    expect_says(c[0], "data.batch: 8 is no multiple of");
    expect_says(c[0], "node 2 stands by: the job does not fit on 3 machines, but on 2");
    expect_event("spare", "restart", 1, 2, 1);
    expect_undisturbed("spare", "data.micro_batch=4", 0);
}
END_TEST

/* A batch of 8 on three machines has an empty place, on two it has none: the batch is the same, and so is each step. */
START_TEST(uneven)
{
#define SLOWLY SMALL "data.micro_batch=4 optimizer.lr=1e-5 "
    struct command *c[3];
    machines_up(3, NULL);
    start_nodes(c, 3,
                SLOWLY SOON PAUSED("2") MEET
                "comm.use=libfabric --nodes 2:3 launch.ranks=1 job.steps=170 job.name=uneven "
                "checkpoint.every=20");
    curve_wait("uneven", 30);
    kill(c[1]->pid, SIGKILL);
    wait_for_step("uneven", "shrink", 1, "node 1 of three is gone", hd__now());
    expect_end(c[0], 0);
    expect_end(c[2], 0);
    expect_says(c[0], "3 ranks: data.batch stays 8, as dp 3 x 1 micro-batches of 3\n");
    expect_says(c[0], "data.batch: 8 sequences take 9 places in micro-batches: 11% of the compute is of empty ones");
    expect_says(c[0], "2 ranks: data.batch stays 8, as dp 2 x 1 micro-batches of 4\n");
    curve_read(&parts, "uneven");
    train(&whole, "even", SLOWLY "job.steps=170");
    expect_close(&parts, &whole, 1e-4);
}
END_TEST

/* The number of this key in a line of metrics.jsonl. */
static double number_in(const char *line, const char *key)
{
    const char *at = strstr(line, keep(hd__format("\"%s\": ", key)));
    ck_assert_msg(at != NULL, "no %s in %s", key, line);
    return strtod(strchr(at, ':') + 1, NULL);
}

/* With half of the machines, half of the batch and of the rate, or its root. */
START_TEST(scales)
{
    const struct {
        const char *how, *words;
        double rate;
    } rows[] = {
        {"linear", "1 rank: data.batch becomes 4 and the learning rate x 0.5, as dp 1 x 2 micro-batches of 2", 0.5},
        {"sqrt", "1 rank: data.batch becomes 4 and the learning rate x 0.7071, as dp 1 x 2 micro", sqrt(0.5)}};
    machines_up(2, NULL);
    for (size_t i = 0; i < HD__COUNT(rows); i++) {
        struct command *c[2];
        const char *name = rows[i].how;
        start_nodes(c, 2,
                    keep(hd__format(EXACT SOON PACED MEET "--nodes 1:2 launch.ranks=1 job.steps=170 job.name=%s "
                                                          "launch.scale_batch=%s checkpoint.every=20",
                                    name, name)));
        curve_wait(name, 30);
        kill(c[1]->pid, SIGKILL);
        wait_for_step(name, "shrink", 1, "half of the machines are gone", hd__now());
        expect_end(c[0], 0);
        expect_says(c[0], rows[i].words);
        char *all = read_file(keep(hd__format("runs/%s/metrics.jsonl", name))), *first = strstr(all, "{\"step\": 1,");
        char *before = strstr(all, "{\"step\": 169,"), *last = strstr(all, "{\"step\": 170,");
        ck_assert(first && before && last);
        expect_number(number_in(last, "lr"), rows[i].rate * number_in(first, "lr"), 1e-6, name, 170);
        ck_assert_double_eq(number_in(last, "tokens") - number_in(before, "tokens"), number_in(first, "tokens") / 2);
    }
}
END_TEST

/* The commands of docs/elastic.md, with its job file; longer, so that the machine comes back before the end. */
START_TEST(the_page)
{
    char *page = read_file(GOLDEN_DIR "/../../../docs/elastic.md");
    char *job = strstr(page, "```yaml\n") + 8, *end = strstr(job, "```");
    struct command *c[2];
    const char *words = "spot.yaml job.steps=1000000000 checkpoint.keep=0"; /* one of them is read while others come */
    ck_assert_ptr_nonnull(strstr(page, "heddle train spot.yaml --node-rank 1"));
    write_file("spot.yaml", keep(hd__format("%.*s", (int)(end - job), job)));
    machines_up(2, NULL);
    start_nodes(c, 2, words);
    curve_wait("spot", 150);
    while (access("runs/spot/checkpoints/step-00000100", F_OK)) /* it is written beside the steps */
        usleep(10000);
    kill(c[1]->pid, SIGKILL);
    wait_for_step("spot", "shrink", 1, "the page: kill -9 AGENT", hd__now());
    expect_code(command_run("ckpt verify spot.yaml --checkpoint step-00000100"), 0);
    c[1] = start_node(1, words);
    wait_for_step("spot", "grow", 1, "the page: it comes back", hd__now());
    kill(c[1]->pid, SIGTERM);
    wait_for_step("spot", "shrink", 2, "the page: it is told before", hd__now());
    expect_end(c[1], 3);
    kill(c[0]->pid, SIGTERM);
    expect_end(c[0], 3);
    expect_says(c[0], "node 1 is gone: all ranks are started again in 0.1 s, from step ");
    expect_says(c[0], "1 rank: data.batch stays 8, as dp 1 x 4 micro-batches of 2");
    expect_says(c[0], "round 1: 1 rank on 1 of 2 machines");
}
END_TEST

int main(void)
{
    const struct system_test tests[] = {{"agents start", agents_start, 1},
                                        {"traced", traced, 1},
                                        {"late machines", late_machines, 1},
                                        {"stopped while they wait", stopped_while_they_wait, 1},
                                        {"refused", refused, 1},
                                        {"folders apart", folders_apart, 1},
                                        {"ranks fail", ranks_fail, 1},
                                        {"not restarted", not_restarted, 1},
                                        {"left out", left_out, 1},
                                        {"needed", needed, 1},
                                        {"machine goes", machine_goes, HD__COUNT(ways)},
                                        {"copies in memory", machine_with_copies_goes, HD__COUNT(copies)},
                                        {"copies of copies", copies_of_copies, 1},
                                        {"mesh: auto", mesh_auto, 1},
                                        {"fails before they meet", fails_before_they_meet, 1},
                                        {"fixed nodes", fixed_nodes, 1},
                                        {"machine leaves", machine_leaves, 1},
                                        {"node 0 goes", node_0_goes, 1},
                                        {"stands by", stands_by, 1},
                                        {"uneven", uneven, 1},
                                        {"batch scaled", scales, 1},
                                        {"the page", the_page, 1},
                                        {NULL}};
    const char *why;
    if (!machines_possible(&why)) {
        fprintf(stderr, "skipped: %s\n", why);
        return 77;
    }
    return system_run("elastic", tests);
}
