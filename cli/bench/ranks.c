/* Starting the ranks of a bench and collecting what they measure. */
#include "cli/bench/rank.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/rendezvous/store.h"
#include "service/launch/external.h"

static const char *const op_names[] = {
#define OP_NAME(constant, value, name, coll, parts, factor) [value] = name,
    HD__BENCH_OPS(OP_NAME)
#undef OP_NAME
};

const char *hd__bench_op_name(uint32_t op)
{
    return op_names[op];
}

int32_t hd__bench_op_find(const char *name)
{
    for (int32_t i = 0; i < HD__BENCH_OP_COUNT; i++) {
        const char *own = op_names[i], *given = name; /* with or without underscores: allreduce */
        for (; *own && (*own == *given || *own == '_'); own++)
            given += *own == *given;
        if (!*own && !*given)
            return i;
    }
    return -1;
}

int32_t hd__bench_has_in_place(uint32_t op)
{
    return op != HD__BENCH_ALL_TO_ALL && op != HD__BENCH_SENDRECV && op != HD__BENCH_BARRIER;
}

void hd__bench_pin_rank(int32_t rank)
{
    cpu_set_t all, one;
    if (sched_getaffinity(0, sizeof all, &all) != 0)
        return;
    int32_t want = rank % CPU_COUNT(&all);
    for (int c = 0; c < CPU_SETSIZE; c++)
        if (CPU_ISSET(c, &all) && want-- == 0) {
            CPU_ZERO(&one);
            CPU_SET(c, &one);
            sched_setaffinity(0, sizeof one, &one);
            return;
        }
}

/* Memory shared by the ranks and their parent. The ranks are forked first, while the process has one thread. */
struct rank_shared {
    _Atomic int32_t port; /* 0: not yet; -1: no server */
    uint8_t secret[HD__SECRET_BYTES];
    _Alignas(64) struct hd__bench_timings timings[];
};

static int rank_main(const struct hd__bench *bench, int32_t rank, struct rank_shared *shared, int out)
{
    struct hd_error err = HD_ERROR_INIT;
    struct hd_store *store = NULL;
    struct hd__store_options o = {
        .host = "127.0.0.1", .rank = rank, .size = bench->ranks, .dead_after = bench->timeout};
    int32_t port;
    while ((port = atomic_load(&shared->port)) == 0)
        usleep(200);
    if (port < 0)
        return 1;
    o.port = (uint16_t)port;
    memcpy(o.secret, shared->secret, sizeof o.secret);
    hd__bench_pin_rank(rank);
    int32_t code = hd__store_connect(&o, hd__now() + bench->timeout, &store, &err);
    if (code == HD_OK)
        code = hd__bench_rank(bench, rank, store, shared->timings, &(struct hd__bench_sink){.out = out}, &err);
    if (code != HD_OK)
        fprintf(stderr, "heddle bench: rank %d: %s\n", rank, err.message);
    hd__store_close(store);
    return code != HD_OK;
}

static int read_all(int fd, void *data, size_t bytes)
{
    for (size_t at = 0; at < bytes;) {
        ssize_t got = read(fd, (uint8_t *)data + at, bytes - at);
        if (got == 0 || (got < 0 && errno != EINTR))
            return -1;
        at += got > 0 ? (size_t)got : 0;
    }
    return 0;
}

/* Waits for all. A failed rank ends the others through the transport or the rendezvous. */
static int join_ranks(const struct hd__bench *bench, const pid_t *pids)
{
    int bad = 0, status;
    for (int32_t left = bench->ranks; left > 0; left--) {
        pid_t pid = waitpid(-1, &status, 0);
        if (pid < 0)
            return -1;
        if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
            continue;
        for (int32_t r = 0; r < bench->ranks; r++)
            if (pids[r] == pid && WIFSIGNALED(status))
                fprintf(stderr, "heddle bench: rank %d was ended by signal %d\n", r, WTERMSIG(status));
        bad++;
    }
    return bad;
}

static int32_t start_server(const struct hd__bench *bench, struct rank_shared *shared, struct hd__server **server,
                            struct hd_error *err)
{
    struct hd__server_options options = {
        .address = "127.0.0.1", .size = bench->ranks, .rank = -1, .dead_after = bench->timeout};
    hd__store_secret_generate(options.secret);
    memcpy(shared->secret, options.secret, sizeof shared->secret);
    int32_t code = hd__server_open(&options, server, err);
    atomic_store(&shared->port, code == HD_OK ? hd__server_port(*server) : -1);
    return code;
}

static size_t shared_bytes(const struct hd__bench *bench)
{
    return sizeof(struct rank_shared) + (size_t)bench->ranks * sizeof(struct hd__bench_timings);
}

static int32_t run_forked(const struct hd__bench *bench, void (*row)(void *user, const struct hd__bench_row *row),
                          void *user, struct hd_error *err)
{
    struct hd__server *server = NULL;
    struct hd__bench_row r;
    int pipes[2];
    size_t bytes = shared_bytes(bench);
    struct rank_shared *shared = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED || pipe(pipes) != 0)
        return hd_fail(err, HD_E_IO, "bench cannot start: %s", strerror(errno));
    pid_t *pids = hd__alloc((size_t)bench->ranks * sizeof *pids);
    fflush(NULL);
    for (int32_t k = 0; k < bench->ranks; k++)
        if ((pids[k] = fork()) == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            close(pipes[0]);
            _exit(rank_main(bench, k, shared, pipes[1]));
        }
    close(pipes[1]);
    int32_t code = start_server(bench, shared, &server, err);
    while (read_all(pipes[0], &r, sizeof r) == 0)
        row(user, &r);
    close(pipes[0]);
    int bad = join_ranks(bench, pids);
    hd__server_close(server);
    munmap(shared, bytes);
    free(pids);
    if (code != HD_OK)
        return code;
    return bad ? hd_fail(err, HD_E_PEER, "%d of %d ranks failed", bad, bench->ranks) : HD_OK;
}

/* ---- ranks that a launcher starts: this command again. It finds the shared memory by the path of our descriptors. */

#define JOIN_ENV "HEDDLE_BENCH"

/* Reads rows until the launcher has ended and the pipe is empty. Returns its exit status. */
static int read_rows(int in, pid_t pid, void (*row)(void *user, const struct hd__bench_row *row), void *user)
{
    struct hd__bench_row r;
    int status = 0, ended = 0;
    for (;;) {
        struct pollfd wait = {.fd = in, .events = POLLIN};
        if (poll(&wait, 1, 50) == 1 && read(in, &r, sizeof r) == sizeof r) /* a row is written atomically */
            row(user, &r);
        else if (ended)
            return status;
        else
            ended = waitpid(pid, &status, WNOHANG) == pid;
    }
}

static int32_t run_launched(const struct hd__bench *bench, void (*row)(void *user, const struct hd__bench_row *row),
                            void *user, struct hd_error *err)
{
    struct hd__server *server = NULL;
    char path[64], join[256];
    int pipes[2], status = 0;
    pid_t pid;
    struct rank_shared *shared = hd__launch_share_memory(shared_bytes(bench), path);
    if (!shared || pipe2(pipes, O_CLOEXEC | O_NONBLOCK))
        return hd_fail(err, HD_E_IO, "bench cannot start: %s", strerror(errno));
    snprintf(join, sizeof join, "%d %s /proc/%d/fd/%d", bench->index, path, (int)getpid(), pipes[1]);
    setenv(JOIN_ENV, join, 1);
    int32_t code = start_server(bench, shared, &server, err);
    if (code == HD_OK)
        code = hd__launch_external_start(bench->component->ops.comm.launcher, bench->ranks, bench->words, &pid, err);
    if (code == HD_OK)
        status = read_rows(pipes[0], pid, row, user);
    unsetenv(JOIN_ENV);
    close(pipes[0]);
    close(pipes[1]);
    hd__server_close(server);
    munmap(shared, shared_bytes(bench));
    if (code != HD_OK)
        return code;
    return status ? hd_fail(err, HD_E_PEER, "the ranks of comm-%s failed", bench->component->name) : HD_OK;
}

static int32_t read_join(char path[64], char out[64])
{
    const char *text = getenv(JOIN_ENV);
    int32_t which;
    return text && sscanf(text, "%d %63s %63s", &which, path, out) == 3 ? which : -1;
}

int32_t hd__bench_launched_index(void)
{
    char path[64], out[64];
    return read_join(path, out);
}

int hd__bench_run_launched_rank(const struct hd__bench *bench, int32_t rank)
{
    char path[64], out[64];
    int fd = read_join(path, out) >= 0 && hd__launch_join_external() ? open(out, O_WRONLY | O_CLOEXEC) : -1;
    struct rank_shared *shared = fd >= 0 ? hd__launch_attach_memory(path, shared_bytes(bench)) : NULL;
    if (shared)
        return rank_main(bench, rank, shared, fd);
    fprintf(stderr, "heddle bench: " JOIN_ENV " is set, but not by a bench that runs: unset it\n");
    return 2;
}

/* ---- either way */

int32_t hd__bench_run(const struct hd__bench *bench, void (*row)(void *user, const struct hd__bench_row *row),
                      void *user, struct hd_error *err)
{
    if (bench->external)
        return hd__bench_run_external(bench, row, user, err);
    return (bench->component->ops.comm.launcher ? run_launched : run_forked)(bench, row, user, err);
}
