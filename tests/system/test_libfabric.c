/* Training over comm-libfabric: the same bits as over comm-shm, alone and beside it; nothing left in /dev/shm when all
 * processes are killed. */
#include "tests/system/system.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

static struct curve a, b;

/* Every process's name of the shm provider begins with its number; other suites may run beside this one. */
static int names_of(const pid_t *pids, int n)
{
    DIR *dir = opendir("/dev/shm");
    int found = 0;
    for (struct dirent *e = dir ? readdir(dir) : NULL; e; e = readdir(dir))
        for (int i = 0; i < n; i++)
            found += atoi(e->d_name) == pids[i];
    if (dir)
        closedir(dir);
    return found;
}

static void same_as_shm(const char *job, const char *comm)
{
    train(&a, "over-shm", "%s job.steps=6", job);
    expect_learns(&a);
    train(&b, "over-libfabric", "%s job.steps=6 %s", job, comm);
    expect_same_bits(&a, &b);
}

START_TEST(over_shm)
{
    same_as_shm("llama.yaml mesh.dp=2 strategies.zero.stage=3",
                "comm.use=libfabric comm.provider=shm comm.progress=thread");
    same_as_shm("llama.yaml mesh.pp=2 strategies=[{\"use\":\"3d\"},{\"use\":\"zero\"}]", "comm.use=libfabric");
}
END_TEST

START_TEST(over_tcp)
{
    same_as_shm("gpt2.yaml mesh.dp=2 strategies.zero.stage=1", "comm.use=libfabric comm.provider=tcp");
    same_as_shm(
        "llama.yaml mesh.tp=2 mesh.dp=2 strategies=[{\"use\":\"3d\"},{\"use\":\"zero\",\"stage\":2}]",
        "comm.use=libfabric comm.provider=tcp comm.eager=1KiB comm.chunk=4KiB comm.window=2 comm.progress=thread");
}
END_TEST

START_TEST(beside_shm)
{
    same_as_shm("llama.yaml mesh.tp=2 mesh.dp=2 strategies=[{\"use\":\"3d\"},{\"use\":\"zero\",\"stage\":1}]",
                "comm.axes={\"dp\":{\"use\":\"libfabric\",\"provider\":\"tcp\"}}");
}
END_TEST

/* kill -9 of everything at once: no process is left that could clean up. */
START_TEST(killed)
{
    struct command *c = command_start(NULL, "train llama.yaml mesh.dp=2 launch.ranks=2 job.steps=100000 "
                                            "job.name=killed comm.use=libfabric comm.provider=shm");
    pid_t ranks[2];
    command_ranks(c, 2, ranks);
    curve_wait("killed", 2);
    ck_assert_int_eq(names_of(ranks, 2), 0);
    kill(c->pid, SIGSTOP);
    kill(ranks[0], SIGKILL);
    kill(ranks[1], SIGKILL);
    kill(c->pid, SIGKILL);
    command_wait(c, 20);
    ck_assert_int_eq(names_of(ranks, 2), 0);
}
END_TEST

START_TEST(a_rank_dies)
{
    const char *provider = _i ? "tcp" : "shm";
    struct command *c = command_start(
        NULL,
        "train llama.yaml mesh.dp=2 launch.ranks=2 job.steps=100000 job.name=%s comm.use=libfabric comm.provider=%s",
        provider, provider);
    pid_t ranks[2];
    command_ranks(c, 2, ranks);
    curve_wait(provider, 2);
    kill(ranks[1], SIGKILL);
    command_wait(c, 20);
    expect_code(c, 1);
    expect_says(c, "rank 1");
}
END_TEST

/* All ranks are refused alike; one says so, in one line. */
static void refused(const char *words, const char *says)
{
    int lines = 0;
    struct command *c =
        command_run("train llama.yaml --dry-run mesh.dp=2 launch.ranks=2 job.steps=2 comm.use=libfabric %s", words);
    expect_code(c, 2);
    expect_says(c, says);
    c = command_run("train llama.yaml mesh.dp=2 launch.ranks=2 job.steps=2 comm.use=libfabric %s", words);
    expect_code(c, 2);
    expect_says(c, says);
    for (const char *at = c->err; (at = strchr(at, '\n')) != NULL; at++)
        lines++;
    ck_assert_msg(lines == 1, "%d lines:\n%s", lines, c->err);
}

START_TEST(refusals)
{
    refused("comm.provider=sockets",
            "command line: libfabric: comm.provider: provider 'sockets' is not used here: it hangs");
    refused("comm.provider=nosuch", "command line: libfabric: comm.provider: no provider 'nosuch'");
    refused("comm.chunk=1KiB", "libfabric: comm.chunk: 0, or 4KiB and more");
    refused("comm.interface=nosuch0", "interface 'nosuch0' is not on this machine");
    refused("comm.provider=shm comm.interface=lo", "comm.interface: provider shm is memory, and has no interfaces");
    refused("comm.provider=tcp comm.domain=nosuch",
            "command line: libfabric: comm.domain: provider 'tcp' has no domain 'nosuch' that would do here; there "
            "are: ");
    refused("comm.domain=nosuch", "provider 'auto' has no domain 'nosuch'");
    refused("comm.provider=tcp comm.interface=lo comm.domain=nosuch",
            "'nosuch' at lo that would do here; there are: lo");
    expect_code(
        command_run("train llama.yaml --dry-run mesh.dp=2 comm={\"use\":\"libfabric\",\"interface\":\"nosuch0\","
                    "\"axes\":{\"dp\":\"shm\"}}"),
        0); /* nothing goes over it */
    train(&a, "domain", "llama.yaml mesh.dp=2 job.steps=1 comm.use=libfabric comm.provider=tcp comm.domain=lo");
    refused("comm.provider=shm comm.hooks=[{\"use\":\"faults\",\"rank\":5}]",
            "command line: comm.hooks: faults.rank: 5: give a rank from 0 to 1");
}
END_TEST

/* Its provider is said once, though `bench --tune` opens it for each trial. */
START_TEST(auto_is_said)
{
    static const char *const words[] = {"--op all_reduce", "--op all_reduce --tune t.json", ":provider=tcp"};
    for (int i = 0; i < 3; i++) {
        struct command *c =
            command_run("bench --ranks 2 -b 8 -e 8 -n 5 --comm libfabric%s%s", i < 2 ? " " : "", words[i]);
        const char *first = strstr(c->err, "comm-libfabric: provider ");
        expect_code(c, 0);
        ck_assert_msg((first != NULL) == (i < 2) && (!first || !strstr(first + 1, "comm-libfabric: ")), "%s", c->err);
    }
}
END_TEST

/* More silent connections than a rank may have files: they are let go of, and the state is saved. */
START_TEST(strangers)
{
    enum { FILES = 128, STRANGERS = 100, ENOUGH = 20 };
    struct rlimit limit, few;
    struct command *c;
    pid_t ranks[2];
    int fd[2 * STRANGERS], gone[2] = {0};
    char byte;
    ck_assert(!getrlimit(RLIMIT_NOFILE, &limit) && limit.rlim_cur > 4 * STRANGERS);
    few = limit;
    few.rlim_cur = FILES;
    setrlimit(RLIMIT_NOFILE, &few);
    c = command_start(NULL,
                      "train llama.yaml mesh.dp=2 job.steps=1000000000 job.name=crowd checkpoint.every=1000000000 "
                      "comm={\"use\":\"libfabric\",\"provider\":\"tcp\",\"interface\":\"lo\"}");
    setrlimit(RLIMIT_NOFILE, &limit);
    curve_wait("crowd", 2);
    command_ranks(c, 2, ranks);
    for (int k = 0; k < 2 * STRANGERS; k++) {
        struct sockaddr_in at = {.sin_family = AF_INET,
                                 .sin_port = htons((uint16_t)listening_port(ranks[k % 2], "0100007F")),
                                 .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        fd[k] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        ck_assert_int_eq(connect(fd[k], (struct sockaddr *)&at, sizeof at), 0);
    }
    while (gone[0] < ENOUGH || gone[1] < ENOUGH) /* Check ends what hangs */
        for (int k = 0; k < 2 * STRANGERS; k++)
            if (fd[k] >= 0 && recv(fd[k], &byte, 1, MSG_DONTWAIT) == 0) {
                close(fd[k]);
                fd[k] = -1;
                gone[k % 2]++;
            }
    kill(c->pid, SIGTERM);
    command_wait(c, 60);
    expect_code(c, 3);
    expect_says(c, "connections to this rank's port that say nothing are closed");
    expect_says(c, "the state is saved");
}
END_TEST

int main(void)
{
    const struct system_test tests[] = {
        {"over shm", over_shm, 1}, {"over tcp", over_tcp, 1},       {"beside shm", beside_shm, 1},
        {"killed", killed, 1},     {"a rank dies", a_rank_dies, 2}, {"refusals", refusals, 1},
        {"auto", auto_is_said, 1}, {"strangers", strangers, 1},     {NULL, NULL, 0}};
    return system_run("system-libfabric", tests);
}
