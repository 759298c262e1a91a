/* Runs that other launchers started (torchrun, mpirun, srun, a person with RANK and its like): how ranks meet, what of
 * the environment is refused, and how such runs end. */
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "runtime/cpu/parallel_for.h"
#include "tests/system/system.h"

static struct command *start_launched(int rank, int size, int port, const char *words)
{
    return command_start_rank(rank, size, 0, port, "train llama.yaml %s", words);
}

START_TEST(launched_by_environment)
{
    static struct curve ours, theirs;
    int port = free_port();
    struct command *one = start_launched(1, 2, port, "job.name=launched");
    struct command *zero = start_launched(0, 2, port, "job.name=launched");
    command_wait(zero, 60);
    command_wait(one, 60);
    expect_code(zero, 0);
    expect_code(one, 0);
    curve_read(&theirs, "launched");
    train(&ours, "forked", "llama.yaml mesh.dp=2");
    expect_same_bits(&ours, &theirs);
}
END_TEST

/* Launchers that say who is who, but not where to meet: two ranks each, in the launcher's variables. */
static const struct {
    const char *name, *environment; /* of the rank */
} meeting[] = {
    {"mpirun",
     "OMPI_COMM_WORLD_RANK=%d OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=%d OMPI_COMM_WORLD_LOCAL_SIZE=2 "
     "PMIX_NAMESPACE=test%d PMIX_RANK=0"},
    {"mpiexec", "PMI_RANK=%d PMI_SIZE=2 MPI_LOCALRANKID=%d MPI_LOCALNRANKS=2 I_MPI_HYDRA_UUID=test%d"},
    {"srun", "SLURM_PROCID=%d SLURM_NTASKS=2 SLURM_LOCALID=%d SLURM_JOB_ID=%d SLURM_STEP_ID=0 SLURM_NODEID=0 "
             "SLURM_STEP_TASKS_PER_NODE=2"},
    {"srun-pmi2", "PMI_RANK=%1$d PMI_SIZE=2 SLURM_PROCID=%1$d SLURM_NTASKS=2 SLURM_LOCALID=%2$d SLURM_JOB_ID=%3$d "
                  "SLURM_STEP_ID=1 SLURM_NODEID=0 SLURM_STEP_TASKS_PER_NODE=2"},
};

START_TEST(launched_without_an_address)
{
    static struct curve ours, theirs;
    struct command *c[2];
    char environment[256];
    for (int rank = 1; rank >= 0; rank--) {
        snprintf(environment, sizeof environment, meeting[_i].environment, rank, rank, (int)getpid());
        c[rank] = command_start(environment, "train llama.yaml job.steps=5 job.name=met-%s", meeting[_i].name);
    }
    for (int rank = 0; rank < 2; rank++) {
        command_wait(c[rank], 60);
        expect_code(c[rank], 0);
    }
    snprintf(environment, sizeof environment, "met-%s", meeting[_i].name);
    curve_read(&theirs, environment);
    train(&ours, "met", "llama.yaml job.steps=5 mesh.dp=2");
    expect_same_bits(&ours, &theirs);
}
END_TEST

/* The real one, where it is installed. */
START_TEST(under_mpirun)
{
    static struct curve ours, theirs;
    if (system("mpirun --version >/dev/null 2>&1")) {
        printf("skipped: there is no mpirun here\n");
        return;
    }
    ck_assert_int_eq(system("mpirun --allow-run-as-root --oversubscribe -np 2 " HEDDLE
                            " train llama.yaml job.steps=5 job.name=mpi "
                            "</dev/null >mpi.log 2>&1"),
                     0);
    ck_assert_ptr_null(strchr(read_file("mpi.log"), '\033')); /* mpirun gives its ranks a terminal */
    curve_read(&theirs, "mpi");
    train(&ours, "met", "llama.yaml job.steps=5 mesh.dp=2");
    expect_same_bits(&ours, &theirs);
}
END_TEST

/* Launched ranks watch each other, without a parent of ours. */
START_TEST(launched_rank_killed)
{
    for (int victim = 0; victim < 2; victim++) {
        int port = free_port();
        char words[64], job[16];
        struct command *c[2];
        double since;
        snprintf(job, sizeof job, "alone%d", victim);
        snprintf(words, sizeof words, "job.steps=1000000000 job.name=%s", job);
        c[0] = start_launched(0, 2, port, words);
        c[1] = start_launched(1, 2, port, words);
        curve_wait(job, 3);
        since = unhindered_now();
        kill(c[victim]->pid, SIGKILL);
        command_wait(c[!victim], 20);
        ck_assert_msg(unhindered_now() - since < promptly(5), "it took %g s", unhindered_now() - since);
        command_wait(c[victim], 1);
        expect_code(c[!victim], 1);
        expect_first_named(c[!victim], victim);
    }
}
END_TEST

/* What every rank would say, the first says; what another rank alone has to say ends the job for all. */
START_TEST(refused)
{
    int port = free_port();
    struct command *c[2];
    for (int rank = 0; rank < 2; rank++)
        c[rank] = start_launched(rank, 2, port, "model.layers=two");
    for (int rank = 0; rank < 2; rank++) {
        command_wait(c[rank], 20);
        expect_code(c[rank], 2);
    }
    expect_says(c[0], "model.layers: 'two' is not a whole number");
    ck_assert_str_eq(c[1]->err, "");
    c[0] = start_launched(0, 2, port, "job.name=alone");
    c[1] = start_launched(1, 2, port, "model.layers=two");
    for (int rank = 0; rank < 2; rank++) {
        command_wait(c[rank], 20);
        expect_code(c[rank], 2);
        expect_says(c[rank], "rank 1: command line: model.layers: 'two' is not a whole number");
    }
}
END_TEST

/* Ranks numbered by hand, one of them wrongly: all end at once, and know why. With a secret, and without. */
START_TEST(misnumbered)
{
    static const struct {
        int rank[3], size[3];
        const char *message;
    } rows[] = {{{0, 1, 1}, {3, 3, 3}, "rank 1 has connected before: two processes were started as this rank"},
                {{0, 0, 1}, {3, 3, 3}, "rank 0 has connected before: two processes were started as this rank"},
                {{0, 1, 2}, {3, 2, 3}, "the job has 3 ranks here and 2 there"}};
    struct command *c[3];
    int port = free_port();
    for (int i = 0; i < 3; i++) {
        char environment[256];
        snprintf(environment, sizeof environment, "RANK=%d WORLD_SIZE=%d MASTER_ADDR=127.0.0.1 MASTER_PORT=%d %s",
                 rows[_i / 2].rank[i], rows[_i / 2].size[i], port, _i % 2 ? TEST_SECRET : "");
        c[i] = command_start(environment, "train llama.yaml job.name=misnumbered data.batch=12 comm.timeout=60s");
    }
    for (int i = 0; i < 3; i++) {
        command_wait(c[i], 20);
        expect_code(c[i], 2);
        expect_says(c[i], rows[_i / 2].message);
    }
    ck_assert_int_ne(access("runs/misnumbered/metrics.jsonl", F_OK), 0);
}
END_TEST

/* A rank whose peers never come can be stopped, and gives up by itself after comm.timeout. */
START_TEST(alone)
{
    struct timespec second = {.tv_sec = 1};
    for (int rank = 0; rank < 2; rank++) {
        struct command *c = start_launched(rank, 2, free_port(), "job.name=lonely");
        nanosleep(&second, NULL);
        ck_assert_int_eq(waitpid(c->pid, NULL, WNOHANG), 0); /* it waits */
        kill(c->pid, rank ? SIGTERM : SIGINT);
        command_wait(c, 2);
        expect_code(c, 3);
        expect_says(c, "stopped before the first step");
    }
    /* long enough for a busy machine to be at the rendezvous by then */
    struct command *c = start_launched(0, 2, free_port(), "job.name=lonely comm.timeout=4s");
    command_wait(c, 9);
    expect_code(c, 1);
    expect_says(c, "error: rank 1 did not connect within "); /* it looks at the clock later */
    expect_says(c, "rank 0 at the rendezvous: ");
    expect_says(c, " s to the local socket of port or job ");
    expect_says(c, "rank 1 never came");
    c = start_launched(0, 3, free_port(), "job.name=lonely data.batch=12 liveness.late_after=1s comm.timeout=3s");
    command_wait(c, 9);
    expect_code(c, 1);
    expect_says(c, "warning: ranks 1, 2 did not connect within ");
    expect_says(c, "rank 1 never came"); /* to the rendezvous or the transport: both wait as long */
    expect_says(c, "rank 2 never came");
    ck_assert_int_ne(access("runs/lonely/metrics.jsonl", F_OK), 0);
}
END_TEST

static void expect_environment_refused(const char *environment, const char *words, const char *message)
{
    struct command *c = command_run_env(environment, "train llama.yaml job.name=wrong %s", words);
    expect_code(c, 2);
    expect_says(c, message);
    ck_assert_int_ne(access("runs/wrong/metrics.jsonl", F_OK), 0);
}

START_TEST(wrong_environment)
{
#define AT " MASTER_ADDR=127.0.0.1 MASTER_PORT=29400"
    expect_environment_refused("RANK=0 WORLD_SIZE=2" AT, "mesh.dp=4",
                               "command line: mesh: 2 ranks are not pp 1 x dp 4");
    expect_environment_refused("RANK=0 WORLD_SIZE=3" AT, "", "data.batch: 8 is no multiple of micro_batch 2 x dp 3");
    expect_environment_refused("RANK=2 WORLD_SIZE=2" AT, "", "RANK must be below WORLD_SIZE");
    expect_environment_refused("RANK=two WORLD_SIZE=2" AT, "", "RANK='two': not a whole number");
    expect_environment_refused("RANK=0 WORLD_SIZE=two" AT, "", "WORLD_SIZE='two': not a whole number");
    expect_environment_refused("RANK=0" AT, "", "RANK, but not WORLD_SIZE");
    expect_environment_refused("WORLD_SIZE=2" AT, "", "WORLD_SIZE, but not RANK");
    expect_environment_refused("RANK=0 WORLD_SIZE=2", "", "not MASTER_ADDR and MASTER_PORT");
    expect_environment_refused("RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=many", "",
                               "MASTER_PORT is 'many', which is no port: a number from 1 to 65534 is wanted");
    expect_environment_refused("RANK=1 WORLD_SIZE=2 MASTER_ADDR=http://127.0.0.1 MASTER_PORT=29400", "",
                               "MASTER_ADDR is 'http://127.0.0.1': a name or an address alone is wanted");
    expect_environment_refused("RANK=1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1:29400 MASTER_PORT=29400", "",
                               "MASTER_ADDR is '127.0.0.1:29400': a name or an address alone is wanted, and the port");
    expect_environment_refused(
        "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_SIZE=1 PMIX_NAMESPACE=7", "",
        "mpirun started 2 ranks, 1 of them on this machine, and MASTER_ADDR and MASTER_PORT are not set");
    expect_environment_refused(
        "SLURM_PROCID=8 SLURM_LOCALID=0 SLURM_NTASKS=11 SLURM_STEP_ID=0 SLURM_JOB_ID=3 SLURM_NODEID=2 "
        "SLURM_STEP_TASKS_PER_NODE=4(x2),3",
        "data.batch=22 data.micro_batch=2", "srun started 11 ranks, 3 of them on this machine");
    expect_environment_refused("PMI_RANK=2 PMI_SIZE=4 SLURM_PROCID=2 SLURM_LOCALID=0 SLURM_NTASKS=4 SLURM_STEP_ID=0 "
                               "SLURM_JOB_ID=3 SLURM_NODEID=1 SLURM_STEP_TASKS_PER_NODE=2(x2)",
                               "", "srun started 4 ranks, 2 of them on this machine"); /* --mpi=pmi2 */
    expect_environment_refused("OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2", "",
                               "mpirun set OMPI_COMM_WORLD_RANK and");
    expect_environment_refused("RANK=0 WORLD_SIZE=0" AT, "", "WORLD_SIZE='0': not a whole number from 1");
    expect_environment_refused("LOCAL_RANK=1", "", "LOCAL_RANK, but not RANK: the launcher sets both");
    expect_environment_refused("OMPI_COMM_WORLD_RANK=1", "", "OMPI_COMM_WORLD_RANK, but not OMPI_COMM_WORLD_SIZE");
    expect_environment_refused("OMPI_COMM_WORLD_SIZE=4", "", "OMPI_COMM_WORLD_SIZE, but not OMPI_COMM_WORLD_RANK");
    expect_environment_refused("OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=many", "", "WORLD_SIZE='many': not a");
    expect_environment_refused("PMI_RANK=1", "", "PMI_RANK, but not PMI_SIZE: mpiexec sets both");
    expect_environment_refused("PMI_SIZE=2", "", "PMI_SIZE, but not PMI_RANK: mpiexec sets both");
    expect_environment_refused("RANK=0 WORLD_SIZE=2 LOCAL_RANK=x" AT, "", "LOCAL_RANK='x': not a whole number");
    expect_environment_refused("RANK=0 WORLD_SIZE=2 LOCAL_RANK=2" AT, "",
                               "LOCAL_RANK=2, but this machine has 2 of its ranks: they count from 0");
    expect_environment_refused("RANK=0 WORLD_SIZE=2 LOCAL_WORLD_SIZE=3" AT, "",
                               "LOCAL_WORLD_SIZE=3, but WORLD_SIZE=2: there are not so many ranks");
    expect_environment_refused("RANK=1 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2" AT, "",
                               "rank 1 of 2, but LOCAL_RANK=0 of the 2 ranks on this machine: they count from 0 in");
    expect_environment_refused("RANK=0 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 " TEST_SECRET AT, "",
                               "the order of RANK, each by a number of its own");
    expect_environment_refused("PMIX_RANK=0", "", "PMIX_RANK, but not how many ranks there are");
    expect_environment_refused("RANK=0 WORLD_SIZE=2 MASTER_ADDR= MASTER_PORT=29400", "",
                               "not MASTER_ADDR and MASTER_PORT");
    expect_environment_refused("NNODES=2", "", "nothing says which of them this is: give --node-rank I");
    expect_environment_refused("NNODES=2 NODE_RANK=1", "", "nothing says where they meet: give --rendezvous");
    expect_environment_refused("NNODES=2 NODE_RANK=1" AT, "mesh.dp=2", "comm-shm works inside one machine only");
    if (runs_over("libfabric"))
        expect_environment_refused("NNODES=2 NODE_RANK=1" AT, "mesh.dp=2 comm.use=libfabric",
                                   "and have no secret, so that anybody could join");
    expect_environment_refused("PET_NNODES=2 PET_NODE_RANK=1", "", "has PET_NNODES=2, but not RANK and WORLD_SIZE");
    expect_environment_refused("PET_NODE_RANK=1", "", "has PET_NODE_RANK=1, but not RANK and WORLD_SIZE");
    expect_environment_refused("NODE_RANK=0", "", "NODE_RANK=0, but not RANK and WORLD_SIZE");
    expect_environment_refused("JOB_COMPLETION_INDEX=0", "", "JOB_COMPLETION_INDEX=0, but not RANK and WORLD_SIZE");
    expect_environment_refused("MASTER_ADDR=node1", "", "has MASTER_ADDR, but not RANK and WORLD_SIZE");
    expect_environment_refused("MASTER_PORT=29400", "mesh.dp=2", "has MASTER_PORT, but not RANK and WORLD_SIZE");
    expect_environment_refused("HEDDLE_SECRET=hunter2", "--dry-run", "HEDDLE_SECRET is not 32 or 64 hexadecimal");
    expect_environment_refused("HEDDLE_TLS_CA=ca.pem", "mesh.dp=2", "HEDDLE_TLS_CA is set, but not HEDDLE_TLS_");
    expect_environment_refused("HEDDLE_TLS_CAFILE=ca.pem", "", "no variable of this name: did you mean HEDDLE_TLS_CA?");
    expect_environment_refused("HEDDLE_TLS=1", "",
                               "reads no variable of this name. Unset it: the job would be less safe");
    expect_environment_refused("HEDDLE_SECRETS=hunter2", "", "no variable of this name: did you mean HEDDLE_SECRET?");
    expect_environment_refused("heddle_secret=hunter2", "", "has heddle_secret, and heddle reads no variable of this");
    expect_environment_refused("HEDDLE_LAUNCHED=1", "", "HEDDLE_LAUNCHED, which heddle sets for the ranks that it");
    expect_environment_refused("RANK=0 WORLD_SIZE=2 HEDDLE_RENDEZVOUS='29400 00'" AT, "",
                               "HEDDLE_RENDEZVOUS, which heddle sets for the ranks that it starts by mpirun");
    expect_environment_refused("HEDDLE_BENCH='0 a b'", "", "it did not start this process: unset it");
}
END_TEST

/* Variables that change nothing, and launchers of one rank. */
START_TEST(idle_environment)
{
    struct command *warned = command_run_env("HEDDLE_PLUGINS_PATH=x HEDDLE_TEST_X=y", "train llama.yaml --dry-run");
    expect_code(warned, 0);
    expect_says(warned, "warning: the environment has HEDDLE_PLUGINS_PATH, and heddle reads no variable of this name: "
                        "did you mean HEDDLE_PLUGIN_PATH?\n");
    ck_assert_ptr_null(strstr(warned->err, "HEDDLE_TEST"));
    warned = command_run_env("HEDDLE_THREADS=4 HEDDLE_TEXT_=y", "train llama.yaml --dry-run");
    expect_says(warned, "has HEDDLE_THREADS, and heddle reads no variable of this name: the job says device.threads");
    expect_says(warned, "has HEDDLE_TEXT_, and heddle reads no variable of this name");
    warned = command_run_env("OMP_NUM_THREADS=9999", "train llama.yaml --dry-run device.threads=0");
    expect_says(warned, "warning: OMP_NUM_THREADS is 9999, and not read: a rank has ");
    warned = command_run_env("OMP_NUM_THREADS=9999", "train llama.yaml --dry-run"); /* which says device.threads */
    ck_assert_ptr_null(strstr(warned->err, "OMP_NUM_THREADS"));
    warned = command_run_env("HEDDLE_RANKS=4 HEDDLE_CACHE=y", "train llama.yaml --dry-run");
    expect_says(warned, "has HEDDLE_RANKS, and heddle reads no variable of this name\n");
    expect_says(warned, "has HEDDLE_CACHE, and heddle reads no variable of this name\n");
    ck_assert_ptr_null(strstr(warned->err, "HEDDLE_TEST_?"));
    warned = command_run_env("PET_NNODES=1 PET_NODE_RANK=0 PET_NPROC_PER_NODE=4", "train llama.yaml --dry-run");
    expect_code(warned, 0);
    expect_says(warned,
                "warning: the environment has PET_NPROC_PER_NODE=4, an option of torchrun, which did not start");
    expect_code(command_run_env("NNODES=1" AT, "train llama.yaml --dry-run"), 0);
    expect_code(command_run_env("SLURM_PROCID=0 SLURM_NTASKS=1 SLURM_JOB_ID=7 SLURM_STEP_ID=0" AT,
                                "train llama.yaml --dry-run"),
                0);
    expect_code(command_run_env("NNODES=1 NODE_RANK=0", "train llama.yaml job.steps=1 job.name=one-node"), 0);
    struct command *c = command_run_env("RANK=0 WORLD_SIZE=1", "train llama.yaml --dry-run launch.ranks=4");
    expect_code(c, 0);
    expect_says(c,
                "command line: launch.ranks is 4, but variables of a launcher (RANK, WORLD_SIZE or their like) say 1, "
                "and they count");
#define TWO_MACHINES "train llama.yaml --dry-run launch.ranks=1 launch.nodes="
    c = command_run_env("RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1" AT, TWO_MACHINES "2");
    expect_code(c, 2);
    expect_says(c,
                "command line: launch.nodes is 2, but variables of a launcher (WORLD_SIZE, LOCAL_WORLD_SIZE or their "
                "like) say 1 rank on 1 machine: make them equal");
    expect_code(command_run_env("RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1" AT, TWO_MACHINES "1:2"), 0);
    c = command_run_env("RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 " TEST_SECRET AT,
                        TWO_MACHINES "2 comm.use=mpi");
    ck_assert_msg(!strstr(c->err, "launch.nodes is") && !strstr(c->err, "launch.ranks is"), "it said: %s", c->err);
}
END_TEST

/* Two launchers, of which one is left over in the environment: with fewer ranks than the other has processes each of
 * these would train a job of its own. Ranks within the tasks of another launcher are as many as those or more. */
START_TEST(two_launchers)
{
#define MPIRUN(rank, size) \
    "OMPI_COMM_WORLD_RANK=" rank " OMPI_COMM_WORLD_SIZE=" size " PMIX_NAMESPACE=test OMPI_COMM_WORLD_LOCAL_SIZE=" size
#define SRUN(rank, size) \
    "SLURM_PROCID=" rank " SLURM_NTASKS=" size " SLURM_LOCALID=0 SLURM_STEP_ID=0 SLURM_JOB_ID=7 SLURM_NODEID=" rank
    static const struct {
        const char *environment, *message;
    } refused[] = {
        {"RANK=0 WORLD_SIZE=1 " MPIRUN("1", "2"),
         "the environment has RANK=0 and WORLD_SIZE=1, but mpirun set OMPI_COMM_WORLD_RANK=1 and "
         "OMPI_COMM_WORLD_SIZE=2: each of its 2 processes would train a job of its own. Unset RANK and WORLD_SIZE, or "
         "OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE, whichever are left over"},
        {"RANK=0 WORLD_SIZE=1 " SRUN("1", "2"), "but srun set SLURM_PROCID=1 and SLURM_NTASKS=2"},
        {"RANK=0 WORLD_SIZE=1 PMI_RANK=0 PMI_SIZE=4", "but mpiexec set PMI_RANK=0 and PMI_SIZE=4"},
        {"RANK=1 WORLD_SIZE=2" AT " " SRUN("3", "4"), "has RANK=1 and WORLD_SIZE=2, but srun set SLURM_PROCID=3 and"},
        {MPIRUN("0", "1") " " SRUN("1", "2"), "has OMPI_COMM_WORLD_RANK=0 and OMPI_COMM_WORLD_SIZE=1, but srun set"},
        {"RANK=0 WORLD_SIZE=1 NNODES=2 NODE_RANK=1",
         "the environment has RANK=0 and WORLD_SIZE=1, but also NNODES=2: fewer ranks than machines"},
        {"RANK=0 WORLD_SIZE=1 NNODES=2 NODE_RANK=1" AT, "but also NNODES=2: fewer ranks than machines"},
        {"RANK=1 WORLD_SIZE=2 NNODES=3:4 NODE_RANK=1" AT, "but also NNODES=3:4: fewer ranks than machines"},
        {"RANK=0 WORLD_SIZE=1 NODE_RANK=1", "but also NODE_RANK=1: fewer ranks than machines"},
    };
    static const char *const fine[] = {
        "RANK=1 WORLD_SIZE=4 LOCAL_WORLD_SIZE=2 LOCAL_RANK=1 NNODES=2 NODE_RANK=0 " TEST_SECRET AT, /* torchrun */
        "RANK=2 WORLD_SIZE=4 LOCAL_WORLD_SIZE=2 LOCAL_RANK=0 " TEST_SECRET AT " " SRUN("1", "2"),
        "RANK=1 WORLD_SIZE=2 LOCAL_WORLD_SIZE=1 LOCAL_RANK=0 " TEST_SECRET AT " " SRUN("0", "2"),
        "RANK=0 WORLD_SIZE=1 NNODES=1 NODE_RANK=0",
        "RANK=0 WORLD_SIZE=1 NNODES=1:2 NODE_RANK=0",
        "RANK=0 WORLD_SIZE=1 " SRUN("0", "1"),
        /* what is left of an allocation, whose shell no srun started */
        "SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_JOB_ID=7 SLURM_STEP_ID=4294967290",
        "RANK=0 WORLD_SIZE=1 SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_JOB_ID=7 SLURM_STEP_ID=4294967290",
        MPIRUN("0", "1") " SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_JOB_ID=7 SLURM_STEP_ID=4294967291",
        "OMPI_MCA_btl=self OMPI_MCA_orte_default_hostfile=hosts SLURM_NTASKS=4",
        MPIRUN("1", "4") " OMPI_COMM_WORLD_LOCAL_RANK=2", /* --map-by package --rank-by fill */
        "RANK=1 WORLD_SIZE=4 LOCAL_RANK=2 LOCAL_WORLD_SIZE=4" AT " " MPIRUN("1", "4") " OMPI_COMM_WORLD_LOCAL_RANK=2",
    };
    for (size_t i = 0; i < HD__COUNT(refused); i++)
        expect_environment_refused(refused[i].environment, "", refused[i].message);
    for (size_t i = 0; i < HD__COUNT(fine); i++) {
        struct command *c = command_run_env(fine[i], "train llama.yaml --dry-run");
        ck_assert_msg(c->code == 0, "with %s it said: %s", fine[i], c->err);
    }
}
END_TEST

/* Each rank would write a part of the checkpoint: they look whether it is one folder before the first step. */
START_TEST(folders_apart)
{
    struct command *c[2];
    int port = free_port();
    for (int rank = 0; rank < 2; rank++)
        c[rank] = start_launched(rank, 2, port,
                                 rank ? "job.name=apart checkpoint.dir=disk1" : "job.name=apart checkpoint.dir=disk0");
    for (int rank = 0; rank < 2; rank++) {
        command_wait(c[rank], 60);
        expect_code(c[rank], 2);
    }
    expect_says(c[1], "command line: checkpoint.dir: ");
    expect_says(c[1], "/disk1 on ");
    expect_says(c[1], "for rank 1, is not the folder that rank 0 has, ");
    expect_says(c[1], "name one that all machines see (NFS, Lustre), or a store, as s3://BUCKET/PATH");
    ck_assert_int_ne(access("runs/apart/metrics.jsonl", F_OK), 0);
    for (int rank = 0; rank < 2; rank++)
        c[rank] = start_launched(rank, 2, port, "job.steps=3 job.name=together checkpoint.dir=disk0");
    for (int rank = 0; rank < 2; rank++) {
        command_wait(c[rank], 60);
        expect_code(c[rank], 0);
    }
    ck_assert_int_eq(system("ls -A disk0 | grep -v heddle-lock > left; echo step-00000003 | cmp - left"), 0);
}
END_TEST

/* Its own variables are wrong, but rank 0 has been found by the others': all end at once, and know why. */
START_TEST(wrong_local_rank)
{
    int port = free_port();
    char environment[160];
    struct command *zero = start_launched(0, 2, port, "comm.timeout=60s job.name=wrong-local");
    snprintf(environment, sizeof environment,
             "RANK=1 WORLD_SIZE=2 LOCAL_RANK=9 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=%d", port);
    struct command *one = command_start(environment, "train llama.yaml comm.timeout=60s job.name=wrong-local");
    command_wait(one, 30);
    command_wait(zero, 30);
    expect_code(one, 2);
    expect_says(one, "LOCAL_RANK=9, but this machine has 2 of its ranks");
    ck_assert_int_ne(zero->code, 0);
    expect_says(zero, "LOCAL_RANK=9, but this machine has 2 of its ranks");
}
END_TEST

/* Every second rank is on the same machine, as with srun's cyclic distribution. */
START_TEST(ranks_not_in_a_row)
{
    struct command *c[4];
    int port = free_port();
    if (!runs_over("libfabric"))
        return;
    for (int rank = 0; rank < 4; rank++) {
        char environment[256];
        snprintf(environment, sizeof environment,
                 "RANK=%d WORLD_SIZE=4 LOCAL_RANK=%d LOCAL_WORLD_SIZE=2 " TEST_SECRET
                 " MASTER_ADDR=127.0.0.1 MASTER_PORT=%d",
                 rank, rank / 2, port);
        c[rank] = command_start(environment, "train llama.yaml mesh.dp=4 comm.use=libfabric comm.provider=tcp "
                                             "comm.inside=shm comm.timeout=60s job.name=cyclic");
    }
    for (int rank = 0; rank < 4; rank++) {
        command_wait(c[rank], 60);
        ck_assert_int_ne(c[rank]->code, 0);
        expect_says(c[rank], "the launcher says that rank 3 is number 1 on its machine, counted from 0: comm.inside");
    }
}
END_TEST

/* Ranks of a launcher that others could join have a secret, or there is no job. */
START_TEST(no_secret)
{
    static const char key[] = "00112233445566778899aabbccddeeff0123456789abcdef0123456789abcdef\n";
    struct command *c;
    expect_environment_refused("RANK=0 WORLD_SIZE=2 LOCAL_WORLD_SIZE=1" AT, "",
                               "ranks meet at MASTER_ADDR=127.0.0.1 and have no secret");
    expect_environment_refused(
        "RANK=1 WORLD_SIZE=2 MASTER_ADDR=192.0.2.1 MASTER_PORT=29400", "",
        "`export HEDDLE_SECRET=$(openssl rand -hex 32)`, the same for every rank of the launcher "
        "(or MASTER_ADDR=localhost where all are on one machine)");
    expect_environment_refused("SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_NODEID=0 "
                               "SLURM_STEP_TASKS_PER_NODE=1(x2)" AT,
                               "", "the same for every rank of srun");
    expect_environment_refused("RANK=0 WORLD_SIZE=2 HEDDLE_SECRET=00112233445566778899aabbccddee" AT, "",
                               "HEDDLE_SECRET is not 32 or 64 hexadecimal digits");
    expect_environment_refused("RANK=0 WORLD_SIZE=2 HEDDLE_SECRET_FILE=nowhere" AT, "",
                               "HEDDLE_SECRET_FILE: nowhere: No such file or directory");
    expect_environment_refused("RANK=0 WORLD_SIZE=2 HEDDLE_SECRET_FILE=key " TEST_SECRET AT, "",
                               "HEDDLE_SECRET and HEDDLE_SECRET_FILE are both set");
    write_file("key", key);
    ck_assert_int_eq(chmod("key", 0640), 0);
    expect_environment_refused("RANK=0 WORLD_SIZE=2 HEDDLE_SECRET_FILE=key" AT, "", "key can be read by others");
    ck_assert_int_eq(chmod("key", 0600), 0);
    c = command_run_env("RANK=0 WORLD_SIZE=2 LOCAL_WORLD_SIZE=1 HEDDLE_SECRET_FILE=key" AT,
                        "train llama.yaml --dry-run");
    expect_code(c, 0);
    write_file("key", "none");
    ck_assert_int_eq(chmod("key", 0600), 0);
    expect_environment_refused("RANK=0 WORLD_SIZE=2 HEDDLE_SECRET_FILE=key" AT, "",
                               "key does not begin with a line of 32 or 64 hexadecimal digits");
}
END_TEST

/* comm.timeout and liveness.late_after hold before the first connection, too. */
START_TEST(rank_0_never_comes)
{
    static const char *const secret[] = {"", " " TEST_SECRET};
    char environment[256], where[64];
    int port = free_port();
    struct command *c;
    snprintf(where, sizeof where, _i ? "127.0.0.1:%d" : "the local socket of port or job %d", port);
    snprintf(environment, sizeof environment, "RANK=1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=%d%s", port,
             secret[_i]);
    c = command_run_env(environment, "train llama.yaml comm.timeout=3 liveness.late_after=0.1");
    ck_assert_int_ne(c->code, 0);
    expect_says(c, keep(hd__format("waiting for rank 0 at %s since ", where)));
    expect_says(c, keep(hd__format("s for rank 0 at %s (Connection refused)", where)));
}
END_TEST

static struct command *dry_run(int rank, int each, const char *mesh)
{
    char environment[256];
    struct command *c;
    snprintf(environment, sizeof environment, "RANK=%d WORLD_SIZE=4 LOCAL_RANK=%d LOCAL_WORLD_SIZE=%d " TEST_SECRET AT,
             rank, rank % each, each);
    c = command_run_env(environment, "train llama.yaml --dry-run strategies=[{\"use\":\"3d\"},{\"use\":\"zero\"}] %s",
                        mesh);
    expect_code(c, 0);
    return c;
}

START_TEST(tensor_parallel_across_machines)
{
    struct command *c = dry_run(0, 2, "mesh.tp=4");
    expect_says(c, "mesh.tp = 4 spans 2 machines of 2 ranks (ranks 0 to 3)");
    expect_says(c, "mesh.tp=2 stays inside a machine, with mesh.dp or mesh.pp 2 times as large");
    expect_says(dry_run(0, 1, "mesh.tp=2 mesh.dp=2"), "mesh.tp = 2 spans 2 machines of 1 rank (ranks 0 to 1)");
    expect_says(dry_run(0, 3, "mesh.tp=2 mesh.dp=2"), "(ranks 2 to 3)");
    for (int i = 0; i < 2; i++) {
        c = command_run("%s llama.yaml mesh.tp=4 strategies=[{\"use\":\"3d\"},{\"use\":\"zero\"}] --per-machine 2",
                        i ? "check" : "explain");
        expect_code(c, 0);
        expect_says(c, "mesh.tp = 4 spans 2 machines of 2 ranks (ranks 0 to 3)");
    }
    ck_assert_ptr_null(strstr(dry_run(2, 2, "mesh.tp=4")->err, "spans")); /* one says it */
    ck_assert_ptr_null(strstr(dry_run(0, 2, "mesh.tp=2 mesh.dp=2")->err, "spans"));
    ck_assert_ptr_null(strstr(dry_run(0, 1, "mesh.dp=4")->err, "spans"));
}
END_TEST

/* Neither the parent of ranks and its children say it, nor two ranks of a launcher. */
START_TEST(an_added_strategy_is_said_once)
{
    static const char note[] =
        "mesh.tp is 2: strategy 3d is used (add {use: 3d, ...} to `strategies` to set its options)\n";
    static const char *const lines[] = {"train llama.yaml mesh.tp=2 job.steps=1",
                                        "train llama.yaml mesh.tp=2 --dry-run",
                                        "train llama.yaml mesh.tp=2 --print-config", "check llama.yaml mesh.tp=2",
                                        "explain llama.yaml mesh.tp=2 --json"};
    for (size_t i = 0; i < HD__COUNT(lines); i++) {
        struct command *c = command_run("%s", lines[i]);
        const char *at = strstr(c->err, note);
        expect_code(c, 0);
        ck_assert_msg(at && !strstr(at + 1, "mesh.tp is 2"), "%s: %s", lines[i], c->err);
    }
    for (int rank = 0; rank < 2; rank++) {
        char environment[160];
        struct command *c;
        snprintf(environment, sizeof environment, "RANK=%d WORLD_SIZE=2 LOCAL_RANK=%d LOCAL_WORLD_SIZE=2" AT, rank,
                 rank);
        c = command_run_env(environment, "train llama.yaml --dry-run mesh.tp=2");
        expect_code(c, 0);
        ck_assert_int_eq(strstr(c->err, note) != NULL, rank == 0);
    }
    ck_assert_ptr_null(strstr(command_run("check llama.yaml mesh.dp=2")->err, "is used"));
}
END_TEST

/* A batch script of Slurm has SLURM_PROCID as well, but its step is none that srun started: we start our own ranks. */
START_TEST(in_a_batch_script)
{
    struct command *c = command_run_env("SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_JOB_ID=7 SLURM_STEP_ID=4294967291",
                                        "train llama.yaml job.steps=2 job.name=batch mesh.dp=2");
    static struct curve curve;
    expect_code(c, 0);
    expect_says(c, "Slurm gave 4 tasks (SLURM_NTASKS), but srun did not start this process");
    curve_read(&curve, "batch");
    ck_assert_int_eq(curve.n, 2);
}
END_TEST

/* Two threads of a rank on its one core sleep where they wait: each would hold the core against the other. */
START_TEST(threads_that_share_cores)
{
    int cores = hd__cpu_count();
    for (int i = 0; i < 2; i++) {
        struct command *c = command_run_env("GOMP_SPINCOUNT=20000",
                                            "train llama.yaml mesh.dp=2 job.steps=1000000 job.name=waits "
                                            "device.threads=%d launch.notice={\"command\":\"env>seen\",\"every\":0.01}",
                                            i ? HD__MAX(cores, 2) : HD__MAX(cores / 2, 1));
        expect_code(c, 3);
        const char *seen = read_file("seen");
        ck_assert_msg((strstr(seen, "OMP_WAIT_POLICY=passive") != NULL) == (i != 0) &&
                          (strstr(seen, "GOMP_SPINCOUNT=") == NULL) == (i != 0),
                      "%d: %s", i, seen);
    }
}
END_TEST

int main(void)
{
    const struct system_test tests[] = {{"launched by environment", launched_by_environment, 1},
                                        {"launched without an address", launched_without_an_address, 3},
                                        {"under mpirun", under_mpirun, 1},
                                        {"in a batch script", in_a_batch_script, 1},
                                        {"launched rank killed", launched_rank_killed, 1},
                                        {"refused", refused, 1},
                                        {"alone", alone, 1},
                                        {"wrong environment", wrong_environment, 1},
                                        {"idle environment", idle_environment, 1},
                                        {"two launchers", two_launchers, 1},
                                        {"folders apart", folders_apart, 1},
                                        {"wrong local rank", wrong_local_rank, 1},
                                        {"ranks not in a row", ranks_not_in_a_row, 1},
                                        {"misnumbered", misnumbered, 6},
                                        {"no secret", no_secret, 1},
                                        {"rank 0 never comes", rank_0_never_comes, 2},
                                        {"tensor parallel across machines", tensor_parallel_across_machines, 1},
                                        {"an added strategy is said once", an_added_strategy_is_said_once, 1},
                                        {"threads that share cores", threads_that_share_cores, 1},
                                        {NULL, NULL, 0}};
    return system_run("system-launched", tests);
}
