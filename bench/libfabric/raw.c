/* comm-libfabric against libfabric alone: messages between two processes, by the plugin's send and recv and by one
 * fi_tsend and one fi_trecv of the whole message on an endpoint of the same provider.
 *
 *     build/bench/libfabric/raw PROVIDER [ROUNDS [CHUNK WINDOW EAGER]]       shm or tcp
 *
 * One message there and back shows latency: a receiver of the plugin says that it is there, a message more. 16 of
 * one direction under way show bandwidth, as collectives use it. Both take turns, sample by sample; the least of
 * each counts, so that other work on the machine does not show. */
#include "../plugin.h"
#include "plugins/comm-libfabric/internal.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ENTRIES = 64, LARGEST = 64 << 20, WINDOW = 16 };

/* ---- a store in shared memory */

static struct table {
    pthread_mutex_t lock;
    int32_t n, reserved;
    struct {
        char key[160];
        size_t bytes;
        uint8_t value[512];
    } entry[ENTRIES];
} * table;

static int32_t put(struct hd_store *store, const char *key, const void *value, size_t bytes, struct hd_error *err)
{
    (void)store;
    if (table->n == ENTRIES || bytes > sizeof table->entry[0].value)
        return hd_fail(err, HD_E_NOMEM, "the table is full");
    pthread_mutex_lock(&table->lock);
    snprintf(table->entry[table->n].key, sizeof table->entry[0].key, "%s", key);
    memcpy(table->entry[table->n].value, value, bytes);
    table->entry[table->n++].bytes = bytes;
    pthread_mutex_unlock(&table->lock);
    return HD_OK;
}

static int32_t get(struct hd_store *store, const char *key, void *value, size_t *bytes, double deadline,
                   struct hd_error *err)
{
    (void)store;
    while (lf_now() < deadline) {
        int32_t found = -1;
        pthread_mutex_lock(&table->lock);
        for (int32_t i = 0; i < table->n; i++)
            found = strcmp(table->entry[i].key, key) ? found : i;
        pthread_mutex_unlock(&table->lock);
        if (found >= 0) {
            *bytes = table->entry[found].bytes;
            memcpy(value, table->entry[found].value, *bytes);
            return HD_OK;
        }
        sched_yield();
    }
    return hd_fail(err, HD_E_TIMEOUT, "no %s", key);
}

static const struct hd_host host = {.struct_size = sizeof host,
                                    .abi_minor = HD_ABI_MINOR,
                                    .log = bench_say,
                                    .alloc = bench_alloc,
                                    .free = free,
                                    .store_put = put,
                                    .store_get = get};

/* ---- the two ways */

static struct hd_error err = HD_ERROR_INIT;
static int32_t me;
static struct hd_comm_group *group;
static struct hd_comm *bare;
static uint8_t *out, *in;

static void check(int ok, const char *what)
{
    if (!ok)
        bench_stop("%s: %s", what, err.message);
}

const struct hd_plugin *heddle_plugin_v1_libfabric(void);

static const struct hd_comm_ops *plugin(void)
{
    return heddle_plugin_v1_libfabric()->components[0]->ops;
}

static struct hd_comm *open_comm(const char *instance, const struct lf_settings *settings)
{
    struct hd_world world = {.struct_size = sizeof world,
                             .rank = me,
                             .size = 2,
                             .local_rank = me,
                             .local_size = 2,
                             .instance = instance,
                             .timeout = 60};
    struct hd_comm *c;
    check(plugin()->open(&host, settings, &world, &c, &err) == HD_OK, "open");
    return c;
}

/* A way sends or receives `count` messages, all of them under way at once. */
typedef void (*way_fn)(uint64_t bytes, int count, int sends);

static void plugin_way(uint64_t bytes, int count, int sends)
{
    hd_request request[WINDOW];
    for (int i = 0; i < count; i++)
        check((sends ? lf_send(group, !me, 0, out, bytes, &request[i], &err)
                     : lf_recv(group, !me, 0, in, bytes, &request[i], &err)) == HD_OK,
              "message");
    for (int i = 0; i < count; i++)
        check(lf_wait(group->comm, request[i], lf_now() + 60, &err) == HD_OK, "wait");
}

static void bare_look(int *under_way)
{
    struct fi_cq_tagged_entry entry;
    ssize_t rc = fi_cq_read(bare->cq, &entry, 1);
    check(rc == 1 || rc == -FI_EAGAIN, "fi_cq_read");
    *under_way -= rc == 1;
}

static void bare_way(uint64_t bytes, int count, int sends)
{
    static struct fi_context2 context[WINDOW];
    uint64_t tag = LF_TAG_CHUNK | (uint64_t)(sends ? me : !me);
    int under_way = 0;
    for (int i = 0; i < count; i++, under_way++) {
        ssize_t rc;
        do {
            rc = sends ? fi_tsend(bare->ep, out, bytes, NULL, bare->peer[!me].address, tag, &context[i])
                       : fi_trecv(bare->ep, in, bytes, NULL, FI_ADDR_UNSPEC, tag, 0, &context[i]);
            if (rc == -FI_EAGAIN)
                bare_look(&under_way);
        } while (rc == -FI_EAGAIN);
        check(rc == 0, "fi_tsend, fi_trecv");
    }
    for (int turn = 0; under_way; turn++) {
        bare_look(&under_way);
        if (turn > 16)
            sched_yield();
    }
}

/* Seconds a message: one there and one back, or WINDOW of them there and a short one back. */
static double latency(way_fn way, uint64_t bytes)
{
    double start = lf_now();
    way(bytes, 1, me == 0);
    way(bytes, 1, me != 0);
    return (lf_now() - start) / 2;
}

static double flow(way_fn way, uint64_t bytes)
{
    double start = lf_now();
    way(bytes, WINDOW, me == 0);
    way(8, 1, me != 0);
    return (lf_now() - start) / WINDOW;
}

static void least_of_each(double (*sample)(way_fn way, uint64_t bytes), uint64_t bytes, int rounds, double best[2])
{
    best[0] = best[1] = 1e9;
    for (int i = 0; i < rounds; i++) {
        double a = sample(bare_way, bytes), b = sample(plugin_way, bytes);
        best[0] = LF_MIN(best[0], a);
        best[1] = LF_MIN(best[1], b);
    }
}

static void compare(const struct lf_settings *settings, int rounds)
{
    static const int32_t ranks[2] = {0, 1};
    struct hd_comm *mine = open_comm("plugin", settings);
    bare = open_comm("bare", settings);
    check(lf_group(mine, "pair", ranks, 2, &group, &err) == HD_OK, "group");
    check(lf_peer_connect(bare, !me, &err) == HD_OK, "peer");
    out = aligned_alloc(4096, LARGEST);
    in = aligned_alloc(4096, LARGEST);
    memset(out, 1, LARGEST);
    memset(in, 2, LARGEST);
    if (!me)
        printf("%10s %30s %40s\n%10s %10s %10s %8s %16s %14s %8s\n", "", "one message", "many under way", "bytes",
               "bare us", "plugin us", "ratio", "bare GB/s", "plugin GB/s", "ratio");
    for (uint64_t bytes = 8; bytes <= LARGEST; bytes *= 8) {
        double one[2], many[2];
        int times = bytes > 1 << 20 ? rounds / 8 + 3 : rounds;
        least_of_each(latency, bytes, times, one);
        least_of_each(flow, bytes, times / 4 + 1, many);
        check(in[0] == 1 && in[bytes - 1] == 1, "the bytes");
        if (!me)
            printf("%10llu %10.2f %10.2f %8.3f %16.3f %14.3f %8.3f\n", (unsigned long long)bytes, one[0] * 1e6,
                   one[1] * 1e6, one[0] / one[1], 1e-9 * (double)bytes / many[0], 1e-9 * (double)bytes / many[1],
                   many[0] / many[1]);
    }
    fflush(stdout);
    lf_group_free(group);
    plugin()->close(mine);
    plugin()->close(bare);
}

int main(int argc, char **argv)
{
    struct lf_settings settings = {.provider = argc > 1 ? argv[1] : "shm",
                                   .eager = argc > 5 ? atoll(argv[5]) : 0,
                                   .chunk = argc > 3 ? atoll(argv[3]) : 8 << 20,
                                   .window = argc > 4 ? atoll(argv[4]) : 2,
                                   .spin = 16};
    pthread_mutexattr_t attributes;
    pid_t child;
    int status = 0;
    table = mmap(NULL, sizeof *table, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    check(table != MAP_FAILED, "mmap");
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutex_init(&table->lock, &attributes);
    child = fork();
    me = child == 0;
    if (me)
        prctl(PR_SET_PDEATHSIG, SIGKILL);
    compare(&settings, argc > 2 ? atoi(argv[2]) : 400);
    if (me)
        _exit(0);
    waitpid(child, &status, 0);
    return status != 0;
}
