/* heddle doctor: what was planted is found and named, each with a remedy. */
#include <netinet/in.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/system/system.h"

/* The line of that group and object; fails where there is none or it has another state. */
static const json_t *line_of(const struct command *c, const char *group, const char *object, const char *state)
{
    json_t *root = keep(json_loads(c->out, 0, NULL)), *line;
    size_t i;
    ck_assert_msg(root != NULL, "no JSON: %s", c->out);
    json_array_foreach(json_object_get(root, "lines"), i, line)
    {
        if (strcmp(json_string_value(json_object_get(line, "group")), group) ||
            strcmp(json_string_value(json_object_get(line, "object")), object))
            continue;
        ck_assert_msg(!strcmp(json_string_value(json_object_get(line, "state")), state), "%s %s: %s", group, object,
                      json_dumps(line, 0));
        return line;
    }
    ck_abort_msg("no line %s %s: %.1000s", group, object, c->out);
}

static void expect_line(const struct command *c, const char *group, const char *object, const char *state,
                        const char *words)
{
    const json_t *line = line_of(c, group, object, state);
    ck_assert_msg(strstr(json_string_value(json_object_get(line, "words")), words), "'%s' is not in %s", words,
                  json_dumps(line, 0));
    ck_assert_int_eq(json_is_string(json_object_get(line, "remedy")), strcmp(state, "ok") != 0);
}

static void limit_files(rlim_t n)
{
    struct rlimit limit = {n, n};
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

START_TEST(lines_and_exit_code)
{
    struct command *c = command_run("doctor --json llama.yaml mesh.dp=2"), *text;
    json_t *root = keep(json_loads(c->out, 0, NULL)), *line;
    size_t i, bad = 0;
    ck_assert_ptr_nonnull(root);
    json_array_foreach(json_object_get(root, "lines"), i, line)
    {
        const char *state = json_string_value(json_object_get(line, "state"));
        bad += !strcmp(state, "bad");
        ck_assert_int_eq(json_is_string(json_object_get(line, "remedy")), strcmp(state, "ok") != 0);
    }
    ck_assert_int_gt(i, 20);
    ck_assert_int_eq(json_is_true(json_object_get(root, "ok")), !bad);
    expect_code(c, bad ? 1 : 0);
    expect_line(c, "job", "transport", "ok", "shm");
    expect_line(c, "job", "memory", "ok", "for each of 2 ranks here");
    expect_line(c, "plugin", "device-cpu", "ok", "");
    expect_line(c, "rendezvous", "ranks", "ok", "no launcher");
    text = command_run("doctor llama.yaml mesh.dp=2");
    expect_code(text, c->code);
    ck_assert_msg(strstr(text->out, "can be used (`heddle plugins` lists them)\n") &&
                      strstr(text->out, " to look at, "),
                  "%s", text->out);
}
END_TEST

START_TEST(few_files)
{
    limit_files(16);
    struct command *c = command_run("doctor --json");
    expect_code(c, 1);
    expect_line(c, "limit", "nofile", "bad", "16 open files: too few for 1 rank on this machine");
    c = command_run("doctor");
    expect_code(c, 1);
    ck_assert_msg(strstr(c->out, "bad   limit       nofile") && strstr(c->out, "remedy: ulimit -n 1024"), "%s", c->out);
}
END_TEST

/* Limits of a process: a job trains for longer. */
START_TEST(processor_time)
{
    struct rlimit limit = {3600, 3600};
    ck_assert_int_eq(setrlimit(RLIMIT_CPU, &limit), 0);
    expect_line(command_run("doctor --json"), "limit", "cpu", "warn", "the kernel kills a process after 3600 s of");
    struct command *c = command_run("train llama.yaml --dry-run");
    expect_code(c, 0);
    expect_says(c,
                "warning: a process may use 3600 s of processor time here (ulimit -t), and the kernel then kills it");
}
END_TEST

/* The job's own device and transport, which this machine lacks. */
START_TEST(absent_plugins)
{
    struct command *c =
        command_run_env("HEDDLE_TEST_ABSENT=device-async", "doctor --json llama.yaml "
                                                           "plugins.path=[\"" ASYNC "\"] device.use=async");
    expect_code(c, 1);
    expect_line(c, "job", "device", "bad", "async: ");
    c = command_run("doctor --json llama.yaml plugins.path=[\"" ASYNC "\"] device.use=async");
    expect_line(c, "job", "device", "ok", "async");
}
END_TEST

START_TEST(a_job_that_does_not_fit)
{
    struct command *c = command_run("doctor --json llama.yaml model.hidden=65536 model.ffn=262144 model.layers=8");
    expect_code(c, 1);
    expect_line(c, "job", "memory", "bad", "does not fit");
    c = command_run("doctor --json llama.yaml model.heads=3");
    expect_code(c, 1);
    expect_line(c, "job", "compiles", "bad", "heads");
    if (runs_over("libfabric")) {
        c = command_run("doctor --json llama.yaml mesh.dp=2 "
                        "comm={\"use\":\"libfabric\",\"provider\":\"tcp\",\"interface\":\"nowhere0\"}");
        expect_code(c, 1);
        expect_line(c, "job", "settings", "bad", "interface 'nowhere0' is not on this machine");
    }
    c = command_run("doctor llama.yaml job.stepz=3");
    expect_code(c, 2);
    expect_says(c, "unknown key stepz");
    expect_code(command_run("doctor nowhere.yaml"), 2);
    c = command_run("doctor --jsonn");
    expect_code(c, 2);
}
END_TEST

/* ---- where ranks meet */

#define MEETS(words) "MASTER_ADDR=127.0.0.1 MASTER_PORT=29555 " words

START_TEST(rendezvous)
{
    static const struct {
        const char *environment, *object, *state, *words;
        int code;
    } rows[] = {
        {"MASTER_ADDR=nowhere.invalid MASTER_PORT=29555", "MASTER_ADDR", "bad", "nowhere.invalid cannot be resolved",
         1},
        {"MASTER_ADDR=127.0.0.1", "MASTER_PORT", "bad", "MASTER_ADDR=127.0.0.1 MASTER_PORT=", 1},
        {"MASTER_ADDR=127.0.0.1 MASTER_PORT=70000", "MASTER_PORT", "bad", "70000", 1},
        {MEETS(""), "MASTER_ADDR", "ok", "this machine; the port is free", 0},
        {MEETS(""), "secret", "warn", "none", 0},
        {MEETS("HEDDLE_SECRET=abc"), "secret", "bad", "not 32 or 64 hexadecimal digits", 1},
        {"HEDDLE_SECRET=abc", "secret", "bad", "not 32 or 64 hexadecimal digits", 1},
        {MEETS(TEST_SECRET), "secret", "ok", "it is there", 0},
        {MEETS("HEDDLE_SECRET_FILE=nowhere"), "secret", "bad", "nowhere: No such file", 1},
        {MEETS("HEDDLE_SECRET_FILE=corpus.txt"), "secret", "bad", "can be read by others", 1},
        {MEETS("HEDDLE_SECRET_FILE=secret"), "secret", "ok", "it is there", 0},
        {MEETS("HEDDLE_TLS_CA=nowhere"), "TLS", "bad", "HEDDLE_TLS", 1},
        {"MASTER_ADDR=::1 MASTER_PORT=29555", "MASTER_ADDR", "ok", "::1 ([::1]:29555), this machine; the port is free",
         0},
        {"NNODES=2", "launcher", "warn", "a job of its own on each machine", 0},
        {"RANK=0", "launcher", "bad", "the environment has RANK, but not WORLD_SIZE", 1},
        {MEETS("RANK=0 WORLD_SIZE=4 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2"), "launcher", "bad", "have no secret", 1},
        {MEETS("RANK=0 WORLD_SIZE=4 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 " TEST_SECRET), "MASTER_ADDR", "bad",
         "is a loopback address, which other machines cannot reach", 1},
        {MEETS("RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2"), "ranks", "ok", "this is rank 1 of 2", 0},
        {MEETS("RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2"), "secret", "ok", "all ranks are on this machine",
         0},
    };
    int bad = command_run("doctor")->code; /* of the machine */
    write_file("secret", "00112233445566778899aabbccddeeff\n");
    chmod("secret", 0600);
    chmod("corpus.txt", 0644);
    for (size_t i = 0; i < HD__COUNT(rows); i++) {
        struct command *c = command_run_env(rows[i].environment, "doctor --json");
        expect_code(c, rows[i].code | bad);
        expect_line(c, "rendezvous", rows[i].object, rows[i].state, rows[i].words);
    }
}
END_TEST

/* As the job names it, for the agents of machines. */
START_TEST(rendezvous_of_the_job)
{
    static const char *const rows[][3] = {
        {"nowhere.invalid:29555", "bad", "nowhere.invalid cannot be resolved"},
        {"127.0.0.1:29555", "bad", "is a loopback address, which other machines cannot reach"}};
    for (size_t i = 0; i < HD__COUNT(rows); i++) {
        struct command *c =
            command_run("doctor --json llama.yaml launch.nodes=2 launch.ranks=1 launch.rendezvous=%s", rows[i][0]);
        expect_code(c, 1);
        expect_line(c, "rendezvous", "launch.rendezvous", rows[i][1], rows[i][2]);
        expect_line(c, "rendezvous", "secret", "warn", "none");
    }
}
END_TEST

START_TEST(port_in_use)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof at;
    char environment[128];
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    ck_assert(!bind(fd, (struct sockaddr *)&at, sizeof at) && !listen(fd, 1) &&
              !getsockname(fd, (struct sockaddr *)&at, &n));
    snprintf(environment, sizeof environment, "MASTER_ADDR=127.0.0.1 MASTER_PORT=%d", ntohs(at.sin_port));
    expect_line(command_run_env(environment, "doctor --json"), "rendezvous", "MASTER_ADDR", "warn",
                "a program listens");
    close(fd);
}
END_TEST

/* ---- GPUs, of a driver of the tests' */

static struct command *with_gpus(const char *setting)
{
    return command_run_env(keep(hd__format("LD_LIBRARY_PATH=" PLUGINS_OF_TESTS " FAKE_NVML=%s", setting)),
                           "doctor --json");
}

START_TEST(gpus)
{
    struct command *c = with_gpus("gpus=4");
    int bad = command_run("doctor")->code;
    expect_code(c, bad);
    expect_line(c, "gpu", "gpu 3", "ok", "NVIDIA H100 \"3\", 80.0 GiB, 71 degrees, 650 of 700 W");
    expect_line(c, "gpu", "links", "ok", "2 pairs by NVLink");
    ck_assert_ptr_nonnull(strstr(c->out, "4 pairs by PCIe host bridge"));
    c = with_gpus("gpus=2,ecc=3");
    expect_code(c, 1);
    expect_line(c, "gpu", "gpu 0", "bad", "3 uncorrected ECC errors");
    expect_line(c, "gpu", "gpu 1", "ok", "");
    c = with_gpus("gpus=1,throttle=0x44");
    expect_code(c, bad);
    expect_line(c, "gpu", "gpu 0", "warn", "held down by power_cap, hardware_thermal");
    c = with_gpus("gpus=2,mute=1");
    expect_code(c, 1);
    expect_line(c, "gpu", "gpu 1", "bad", "does not answer");
    expect_line(with_gpus("gpus=0"), "gpu", "driver", "warn", "sees no GPU");
    expect_line(with_gpus("init=9"), "gpu", "driver", "ok", "nvmlInit returns 9");
}
END_TEST

/* ---- in a mount namespace of its own: files of the tests' in place of the kernel's */

static void put_over(const char *path, const char *name, const char *text)
{
    if (text)
        write_file(name, text);
    ck_assert_msg(!mount(name, path, NULL, MS_BIND | MS_REC, NULL), "%s over %s", name, path);
}

static void enter_namespace(void)
{
    ck_assert_int_eq(unshare(CLONE_NEWNS), 0);
    ck_assert_int_eq(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL), 0);
}

START_TEST(small_shared_memory)
{
    enter_namespace();
    ck_assert_int_eq(mount("tmpfs", "/dev/shm", "tmpfs", 0, "size=8m"), 0);
    struct command *c = command_run("doctor --json");
    expect_code(c, 1);
    expect_line(c, "limit", "/dev/shm", "bad", "8.0 MiB free of 8.0 MiB");
    ck_assert_int_eq(mount("tmpfs", "/dev/shm", "tmpfs", 0, "size=512m"), 0);
    expect_line(command_run("doctor --json"), "limit", "/dev/shm", "ok", "512.0 MiB");
}
END_TEST

START_TEST(planted_kernel)
{
    struct rlimit locked = {65536, 65536};
    enter_namespace();
    mkdir("cgroup", 0755);
    write_file("cgroup/cpu.max", "50000 100000\n");
    put_over("/sys/fs/cgroup", "cgroup", NULL);
    put_over("/sys/kernel/mm/transparent_hugepage/enabled", "enabled", "always madvise [never]\n");
    put_over("/sys/devices/system/clocksource/clocksource0/current_clocksource", "source", "hpet\n");
    ck_assert_int_eq(system("mkdir -p class/infiniband/mlx5_0/ports/1 class/net"), 0);
    write_file("class/infiniband/mlx5_0/ports/1/state", "1: DOWN\n");
    put_over("/sys/class", "class", NULL);
    ck_assert_int_eq(setrlimit(RLIMIT_MEMLOCK, &locked), 0);
    struct command *c = command_run("doctor --json");
    expect_code(c, 1);
    expect_line(c, "cgroup", "cpu quota", "warn", "0.5 of ");
    expect_line(c, "memory", "huge pages", "warn", "never");
    expect_line(c, "clock", "source", "warn", "hpet");
    expect_line(c, "network", "mlx5_0 port 1", "warn", "1: DOWN");
    expect_line(c, "limit", "memlock", "bad", "64.0 KiB: too little to register memory");
    write_file("class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n");
    write_file("class/infiniband/mlx5_0/ports/1/rate", "400 Gb/sec (4X NDR)\n");
    expect_line(command_run("doctor --json"), "network", "mlx5_0 port 1", "ok", "4: ACTIVE, 400 Gb/sec");
    ck_assert_int_eq(system("rm -r class/infiniband/mlx5_0"), 0); /* the kernel has its module, and no device */
    expect_line(command_run("doctor --json"), "limit", "memlock", "ok", "64.0 KiB, and no RDMA device");
}
END_TEST

/* A rank has as many threads as its share of the quota lets run, not one for each core. */
START_TEST(threads_of_a_quota)
{
    enter_namespace();
    mkdir("cgroup", 0755);
    write_file("cgroup/cpu.max", "150000 100000\n");
    put_over("/sys/fs/cgroup", "cgroup", NULL);
    struct command *c = command_run_env("OMP_NUM_THREADS=9999", "train llama.yaml --dry-run device.threads=0");
    expect_code(c, 0);
    expect_says(c, "OMP_NUM_THREADS is 9999, and not read: a rank has 1 of the cores");
    ck_assert(!strstr(c->err, "quota"));
    expect_says(command_run("train llama.yaml --dry-run mesh.dp=2 device.threads=0"),
                "mesh: 2 ranks of 1 thread, and the quota of the cgroup is 1.5 cores, so that the kernel stops them");
    expect_says(command_run("train llama.yaml --dry-run device.threads=2"), "1 rank of 2 threads, and the quota");
}
END_TEST

/* Mounts need root. */
static int may_mount(void)
{
    int done = system("unshare -m mount -t tmpfs tmpfs /mnt 2> /dev/null");
    if (done)
        fprintf(stderr, "without the tests in a mount namespace: they need root\n");
    return done == 0;
}

int main(void)
{
    const struct system_test tests[] = {{"lines", lines_and_exit_code, 1},
                                        {"few files", few_files, 1},
                                        {"processor time", processor_time, 1},
                                        {"absent plug-ins", absent_plugins, 1},
                                        {"a job that does not fit", a_job_that_does_not_fit, 1},
                                        {"rendezvous", rendezvous, 1},
                                        {"rendezvous of the job", rendezvous_of_the_job, 1},
                                        {"port in use", port_in_use, 1},
                                        {"GPUs", gpus, 1},
                                        {may_mount() ? "small shared memory" : NULL, small_shared_memory, 1},
                                        {"planted kernel", planted_kernel, 1},
                                        {"threads of a quota", threads_of_a_quota, 1},
                                        {NULL, NULL, 0}};
    return system_run("doctor", tests);
}
