/* comm-libfabric against libfabric alone: a message there and back between two processes, by the plugin's send and recv
 * and by one fi_tsend and one fi_trecv of the whole message on an endpoint of the same provider.
 *
 *     build/bench/libfabric/raw PROVIDER [ROUNDS [CHUNK WINDOW EAGER]]       shm or tcp
 *
 * Both take turns, round trip by round trip; the least of each counts, so that other work on the machine does not show.
 */
#include "plugins/comm-libfabric/fabric.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ENTRIES = 64, LARGEST = 64 << 20 };

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

static void *allocate(size_t bytes)
{
    return calloc(1, bytes + !bytes);
}

static void say(uint32_t level, const char *component, const char *format, ...)
{
    va_list args;
    if (level > HD_LOG_WARN)
        return;
    va_start(args, format);
    fprintf(stderr, "%s: ", component);
    vfprintf(stderr, format, args);
    va_end(args);
}

static const struct hd_host host = {
    .struct_size = sizeof host, .log = say, .alloc = allocate, .free = free, .store_put = put, .store_get = get};

/* ---- the two ways */

static struct hd_error err = HD_ERROR_INIT;
static int32_t me;
static struct hd_comm_group *group;
static struct hd_comm *bare;
static uint8_t *out, *in;

static void check(int ok, const char *what)
{
    if (ok)
        return;
    fprintf(stderr, "raw: %s: %s\n", what, err.message);
    exit(1);
}

static struct hd_comm *open_comm(const char *instance, const struct lf_settings *settings)
{
    struct hd_comm *c = allocate(sizeof *c);
    c->host = &host;
    c->settings = *settings;
    c->world = (struct hd_world){
        .struct_size = sizeof c->world, .rank = me, .size = 2, .local_rank = me, .local_size = 2, .timeout = 60};
    snprintf(c->instance, sizeof c->instance, "%s", instance);
    c->peer = allocate(2 * sizeof *c->peer);
    check(lf_endpoint_open(c, &err) == HD_OK, "open");
    return c;
}

static void plugin_way(uint64_t bytes, int sends)
{
    hd_request request;
    int32_t rc =
        sends ? lf_send(group, !me, 0, out, bytes, &request, &err) : lf_recv(group, !me, 0, in, bytes, &request, &err);
    check(rc == HD_OK && lf_wait(group->comm, request, lf_now() + 60, &err) == HD_OK, "message");
}

static void bare_way(uint64_t bytes, int sends)
{
    static struct fi_context2 context;
    struct fi_cq_tagged_entry entry;
    uint64_t tag = LF_TAG_CHUNK | (uint64_t)(sends ? me : !me);
    ssize_t rc;
    do {
        rc = sends ? fi_tsend(bare->ep, out, bytes, NULL, bare->peer[!me].address, tag, &context)
                   : fi_trecv(bare->ep, in, bytes, NULL, FI_ADDR_UNSPEC, tag, 0, &context);
        if (rc == -FI_EAGAIN)
            fi_cq_read(bare->cq, NULL, 0);
    } while (rc == -FI_EAGAIN);
    check(rc == 0, "fi_tsend, fi_trecv");
    for (int turn = 0; (rc = fi_cq_read(bare->cq, &entry, 1)) == -FI_EAGAIN; turn++)
        if (turn > 16)
            sched_yield();
    check(rc == 1 && entry.op_context == &context, "fi_cq_read");
}

static double there_and_back(void (*way)(uint64_t bytes, int sends), uint64_t bytes)
{
    double start = lf_now();
    way(bytes, me == 0);
    way(bytes, me != 0);
    return (lf_now() - start) / 2;
}

static void compare(const struct lf_settings *settings, int rounds)
{
    static const int32_t ranks[2] = {0, 1};
    struct hd_comm *mine = open_comm("plugin", settings);
    bare = open_comm("bare", settings);
    check(lf_group(mine, "pair", ranks, 2, &group, &err) == HD_OK && lf_peer_meet(bare, !me, &err) == HD_OK, "group");
    out = aligned_alloc(4096, LARGEST);
    in = aligned_alloc(4096, LARGEST);
    memset(out, 1, LARGEST);
    memset(in, 2, LARGEST);
    if (!me)
        printf("%10s %12s %12s %10s %10s %8s\n", "bytes", "bare us", "plugin us", "bare GB/s", "GB/s", "ratio");
    for (uint64_t bytes = 8; bytes <= LARGEST; bytes *= 8) {
        double best[2] = {1e9, 1e9};
        int times = bytes > 1 << 20 ? rounds / 8 + 3 : rounds;
        for (int i = 0; i < times; i++) {
            double a = there_and_back(bare_way, bytes), b = there_and_back(plugin_way, bytes);
            best[0] = LF_MIN(best[0], a);
            best[1] = LF_MIN(best[1], b);
        }
        check(in[0] == 1 && in[bytes - 1] == 1, "the bytes");
        if (!me)
            printf("%10llu %12.2f %12.2f %10.3f %10.3f %8.3f\n", (unsigned long long)bytes, best[0] * 1e6,
                   best[1] * 1e6, 1e-9 * (double)bytes / best[0], 1e-9 * (double)bytes / best[1], best[0] / best[1]);
    }
    fflush(stdout);
    lf_group_free(group);
    lf_endpoint_close(mine);
    lf_endpoint_close(bare);
}

int main(int argc, char **argv)
{
    struct lf_settings settings = {.provider = argc > 1 ? argv[1] : "shm",
                                   .eager = argc > 5 ? atoll(argv[5]) : 4048,
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
