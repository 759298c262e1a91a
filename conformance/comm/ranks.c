#include "conformance/comm/ranks.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/lsan_interface.h>
#endif

#include "conformance/comm/launched.h"
#include "conformance/comm/stream.h"
#include "core/base/option.h"
#include "core/plugin/crash.h"
#include "core/plugin/plugin.h"
#include "runtime/comm/hierarchical.h"
#include "runtime/comm/open.h"
#include "runtime/comm/request_pool.h"
#include "runtime/rendezvous/host_store.h"
#include "runtime/rendezvous/liveness.h"
#include "service/launch/external.h"

const char *transport_name = "shm", *transport_folder;
int transport_bare, transport_told, transport_strict;
const struct hd__tuning *transport_tuning;
char transport_settings[512];
int transport_narrow;
int32_t transport_most;
char transport_driver[256];
static char inside_name[32], inside_folder[256];
static int32_t inside_ranks; /* of a machine; below 0: so many machines in turn; 0: one transport for all */
static int32_t inside_nodes; /* 0, or of so many ranks each its nodes: a level more */

/* A rank is a process: it frees all by ending. What is remembered here is no leak to those who look for leaks. */
static void *keep(void *memory)
{
    static HD__ARRAY(void *) kept;
    hd__push(&kept, memory);
    return memory;
}

int transport_word(const char *word)
{
    size_t n = strlen(transport_settings);
    if (!strcmp(word, "bare"))
        return transport_bare = 1;
    if (!strcmp(word, "strict"))
        return transport_strict = 1;
    if (!strcmp(word, "alone"))
        return transport_told = 0, 1;
    if (!strcmp(word, "narrow"))
        return transport_narrow = 1;
    if (sscanf(word, "most:%d", &transport_most) == 1 || sscanf(word, "stream:%255s", transport_driver) == 1)
        return 1;
    if (sscanf(word, "inside:%31[^:]:%255[^:]:%d:%d", inside_name, inside_folder, &inside_ranks, &inside_nodes) >= 3)
        return inside_ranks != 0;
    if (strncmp(word, "set:", 4))
        return 0;
    snprintf(transport_settings + n, sizeof transport_settings - n, "%s ", word + 4);
    return 1;
}

static int parse_settings(const struct hd__component *component, const char *text, void *settings,
                          struct hd__arena *arena, struct hd_error *err)
{
    struct hd__options table = {component->options, component->n_options, sizeof(struct hd_option)};
    while (text && *text) {
        char name[64], value[256];
        int used = 0;
        if (sscanf(text, " %63[^=]=%255s %n", name, value, &used) != 2)
            return -1;
        int64_t i = hd__option_find(&table, name);
        if (i >= 0) { /* another transport has other options */
            struct hd_option option = hd__option_at(&table, (size_t)i);
            if (hd__option_parse(&option, value, settings, arena, err) != HD_OK)
                return -1;
        }
        text += used;
    }
    return 0;
}

static const struct hd__component *find_transport(const char *name, const char *folder, struct hd_error *err)
{
    struct hd__plugins *plugins = keep(hd__plugins_create(hd__store_host_table()));
    const struct hd__component *component;
    int32_t rc = folder ? hd__plugins_add_folder(plugins, folder, err) : hd__plugins_add_default_folders(plugins, err);
    if (rc != HD_OK || hd__plugin_find(plugins, HD_KIND_COMM, name, &component, err) != HD_OK)
        return NULL;
    return component;
}

/* Ranks 0 to N - 1 are the first machine, and so on; the last one may have fewer. Or the first N ranks begin a machine
 * each, and the others follow in turn. */
static int32_t first_inside(int32_t rank, int32_t each)
{
    return each > 0 ? rank / each * each : rank % -each;
}

/* Below `transport`, which has `across`, one for the ranks of each machine; and below that one for those of each
 * node. */
static int32_t open_inside(const struct hd_world *across, int32_t each, struct hd__comm *transport,
                           struct hd_error *err)
{
    const struct hd__component *component = find_transport(inside_name, inside_folder, err);
    struct hd__options table;
    struct hd_world world;
    static struct hd__arena arena;
    struct hd__comm inside = {.tuning = transport_tuning}, both = {0};
    int32_t firsts[64], code;
    if (!component)
        return HD_E_INVALID;
    table = (struct hd__options){component->options, component->n_options, sizeof(struct hd_option)};
    void *settings = hd__arena_alloc(&arena, component->settings_size);
    for (int32_t r = 0; r < across->size; r++)
        firsts[r] = first_inside(r, each);
    world = hd__comm_hier_intra_world(across, firsts, hd__arena_alloc(&arena, (size_t)across->size * sizeof *firsts));
    world.instance = hd__arena_format(&arena, "%s/inside/%d", across->instance, firsts[across->rank]);
    code = hd__options_defaults(&table, settings, &arena, err);
    code = code ? code : hd__comm_open(&component->ops.comm, hd__store_host_table(), settings, &world, &inside, err);
    if (code == HD_OK && inside_nodes && each == inside_ranks)
        code = open_inside(&world, inside_nodes, &inside, err);
    if (code == HD_OK) {
        hd__comm_hier_create(transport, &inside, across, firsts, &both);
        *transport = both;
    }
    return code;
}

static int open_transport(struct rank *rank, const struct ranks_options *o, double dead_after, struct hd_error *err)
{
    static struct hd__arena arena; /* as long as the process lives */
    const struct hd__component *component = find_transport(transport_name, transport_folder, err);
    if (!component)
        return -1;
    void *settings = hd__arena_alloc(&arena, component->settings_size);
    struct hd__options table = {component->options, component->n_options, sizeof(struct hd_option)};
    if (hd__options_defaults(&table, settings, &arena, err) != HD_OK ||
        parse_settings(component, transport_settings, settings, &arena, err) != 0 ||
        parse_settings(component, o->settings, settings, &arena, err) != 0)
        return -1;
    struct hd_world world = {.struct_size = sizeof world,
                             .rank = rank->rank,
                             .size = rank->size,
                             .local_rank = rank->rank,
                             .local_size = rank->size,
                             .store = rank->store,
                             .instance = "comm/test",
                             .timeout = rank->timeout,
                             .dead_after = dead_after};
    if (*transport_driver) {
        /* In the core's order: the probe comes when the process has opened its device. */
        if (stream_open(transport_driver, rank->rank, &rank->stream, err) ||
            component->probe(hd__store_host_table(), err))
            return -1;
        world.device = "cuda";
        world.stream = rank->stream;
    }
    struct hd_comm_ops ops = component->ops.comm;
    if (transport_bare)
        ops.collective = NULL;
    struct hd_comm_ops *own = keep(hd__alloc(sizeof *own));
    struct hd__comm *transport = keep(hd__alloc(sizeof *transport));
    *own = ops;
    transport->tuning = transport_tuning;
    int32_t code = hd__comm_open(own, hd__store_host_table(), settings, &world, transport, err);
    if (code == HD_OK && inside_ranks)
        code = open_inside(&world, inside_ranks, transport, err);
    rank->own_messages = ops.collective && !inside_ranks;
    rank->ops = &transport->ops;
    rank->comm = transport->comm;
    return code;
}

int32_t settle(struct rank *rank, double deadline, struct hd_error *err)
{
    int32_t rc;
    if (!rank->stream)
        return HD_OK;
    for (uint32_t idle = 0;; idle++) {
        int32_t over = stream_idle(rank->stream, err);
        if (over < 0 || (rc = rank->ops->progress(rank->comm, err)) < 0) /* a stream ends by a failure too */
            return over < 0 ? over : rc;
        if (over)
            return HD_OK;
        if (hd__now() > deadline)
            return hd_fail(err, HD_E_TIMEOUT, "the stream did not come to its end");
        hd__comm_backoff(idle);
    }
}

void *rank_memory(const struct rank *rank, size_t bytes)
{
    void *at = rank->stream ? stream_memory(bytes) : aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    return at && !rank->stream ? memset(keep(at), 0, bytes) : at;
}

static void on_end(void *user, const char *cause)
{
    const struct rank *rank = user;
    rank->ops->abort(rank->comm, cause);
}

static int rank_main(struct rank *rank, const struct ranks_options *o, struct notice *notice,
                     int (*body)(struct rank *rank))
{
    struct hd_error err = HD_ERROR_INIT;
    double dead_after = o->dead_after > 0 ? o->dead_after : 10;
    struct hd__store_options store = {.host = "127.0.0.1",
                                      .port = (uint16_t)atomic_load(&notice->port),
                                      .rank = rank->rank,
                                      .size = rank->size,
                                      .dead_after = dead_after};
    memcpy(store.secret, notice->secret, HD__SECRET_BYTES);
    rank->over = &notice->over;
    if (hd__store_connect(&store, hd__now() + 20, &rank->store, &err) != HD_OK ||
        (!o->no_transport && open_transport(rank, o, dead_after, &err) != HD_OK)) {
        fprintf(stderr, "rank %d: %s\n", rank->rank, err.message);
        return 2;
    }
    if (transport_told && rank->comm)
        hd__store_liveness_notify(hd__store_liveness(rank->store), on_end, rank);
    int result = body(rank);
    atomic_fetch_add(&notice->over, 1);
    for (double until = hd__now() + 20; atomic_load(&notice->over) < rank->stays && hd__now() < until; usleep(1000))
        rank->ops->progress(rank->comm, &err);
    hd__store_liveness_notify(hd__store_liveness(rank->store), NULL, NULL);
    if (rank->comm)
        rank->ops->close(rank->comm);
    hd__store_close(rank->store);
    return result;
}

/* A busy machine or a sanitizer may need longer: whoever runs the suite says so, as to Check. ./run-tests says 5. */
static double slowness(void)
{
    const char *multiplier = getenv("CK_TIMEOUT_MULTIPLIER");
    return HD__MAX(1.0, multiplier ? atof(multiplier) / 5 : 1);
}

/* What hangs is killed. */
static double patience(const struct ranks_options *o)
{
    return HD__MAX(o->patience > 0 ? o->patience : 60, 100 * slowness());
}

static int wait_ranks(const pid_t *pids, int32_t n, const int *expect_signal, double seconds)
{
    double deadline = hd__now() + seconds;
    int bad = 0, status;
    for (int32_t left = n; left > 0;) {
        pid_t pid = waitpid(-1, &status, WNOHANG);
        if (pid <= 0) {
            if (hd__now() > deadline) {
                fprintf(stderr, "ranks hang: killed\n");
                for (int32_t r = 0; r < n; r++)
                    kill(pids[r], SIGKILL);
                while (waitpid(-1, &status, 0) > 0)
                    continue;
                return 1;
            }
            usleep(1000);
            continue;
        }
        for (int32_t r = 0; r < n; r++)
            if (pids[r] == pid) {
                int sig = WIFSIGNALED(status) ? WTERMSIG(status) : 0, want = expect_signal ? expect_signal[r] : 0;
                if (sig != want || (!sig && WEXITSTATUS(status) != 0)) {
                    fprintf(stderr, "rank %d ended with status %d, signal %d\n", r, WEXITSTATUS(status), sig);
                    bad = 1;
                }
                left--;
            }
    }
    return bad;
}

static struct rank a_rank(const struct ranks_options *o, int32_t r)
{
    return (struct rank){.rank = r, .size = o->size, .timeout = (o->timeout > 0 ? o->timeout : 30) * slowness()};
}

int world_group(struct rank *rank, const char *name, struct hd_comm_group **group)
{
    struct hd_error err = HD_ERROR_INIT;
    int32_t ranks[64];
    for (int32_t i = 0; i < rank->size; i++)
        ranks[i] = i;
    EXPECT(rank->ops->group(rank->comm, name, ranks, rank->size, group, &err) == HD_OK, "%s", err.message);
    return 0;
}

/* A rank's leaks are its failure. The sanitizer itself looks only in exit, after the last word to those who wait. */
static int with_leaks(int result)
{
#if defined(__SANITIZE_ADDRESS__)
    return __lsan_do_recoverable_leak_check() ? 23 : result;
#else
    return result;
#endif
}

static void become_rank(const struct ranks_options *o, int32_t r, struct notice *notice, int (*body)(struct rank *rank))
{
    struct rank rank = a_rank(o, r);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    while (!atomic_load(&notice->port))
        usleep(200);
    hd__crash_catch("heddle test", "");
    _exit(with_leaks(rank_main(&rank, o, notice, body)));
}

/* Fills in the notice; the server starts threads. */
static struct hd__server *serve(const struct ranks_options *o, struct notice *notice)
{
    struct hd__server_options options = {
        .address = "127.0.0.1", .size = o->size, .rank = -1, .dead_after = o->dead_after > 0 ? o->dead_after : 10};
    struct hd__server *server = NULL;
    struct hd_error err = HD_ERROR_INIT;
    hd__store_secret_generate(options.secret);
    memcpy(notice->secret, options.secret, sizeof notice->secret);
    if (hd__server_open(&options, &server, &err) == HD_OK)
        atomic_store(&notice->port, hd__server_port(server));
    else
        fprintf(stderr, "server: %s\n", err.message);
    return server;
}

static int run_forked(const struct ranks_options *o, int (*body)(struct rank *rank), const int *expect_signal)
{
    pid_t pids[64];
    struct notice *notice = mmap(NULL, sizeof *notice, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (notice == MAP_FAILED)
        return 1;
    fflush(NULL);
    for (int32_t r = 0; r < o->size; r++)
        if ((pids[r] = fork()) == 0)
            become_rank(o, r, notice, body);
    struct hd__server *server = serve(o, notice);
    int bad = wait_ranks(pids, server ? o->size : 0, expect_signal, patience(o));
    for (int32_t r = 0; r < o->size && !server; r++)
        kill(pids[r], SIGKILL);
    hd__server_close(server);
    munmap(notice, sizeof *notice);
    return bad || !server;
}

/* ---- by the transport's launcher: this program again, which ends in launched_rank */

static int run_by(const struct hd_comm_launcher *launcher, const struct ranks_options *o,
                  int (*body)(struct rank *rank), const int *expect_signal)
{
    char path[64];
    struct launched *shared = hd__launch_share_memory(sizeof *shared, path);
    if (!shared)
        return 1;
    shared->options = *o;
    snprintf(shared->settings, sizeof shared->settings, "%s", o->settings ? o->settings : "");
    shared->body = (intptr_t)body - (intptr_t)&run_ranks; /* the program lies elsewhere in each process */
    struct hd__server *server = serve(o, &shared->notice);
    int bad = !server || run_launched(launcher, shared, path, expect_signal, patience(o));
    hd__server_close(server);
    munmap(shared, sizeof *shared);
    return bad;
}

int launched_rank(int *result)
{
    const char *path = getenv("TEST_LAUNCHED"), *number = getenv("OMPI_COMM_WORLD_RANK");
    struct launched *shared =
        path && number && hd__launch_join_external() ? hd__launch_attach_memory(path, sizeof *shared) : NULL;
    int (*body)(struct rank *);
    struct rank rank;
    if (!shared)
        return 0;
    struct ranks_options options = shared->options;
    options.settings = shared->settings;
    rank = a_rank(&options, atoi(number));
    body = (int (*)(struct rank *))((intptr_t)&run_ranks + shared->body);
    atomic_store(&shared->came[rank.rank], 1);
    *result = with_leaks(rank_main(&rank, &options, &shared->notice, body));
    atomic_store(&shared->ended[rank.rank], 1 + *result);
    return 1;
}

int run_ranks(const struct ranks_options *o, int (*body)(struct rank *rank), const int *expect_signal)
{
    struct hd_error err = HD_ERROR_INIT;
    const struct hd__component *component =
        o->no_transport ? NULL : find_transport(transport_name, transport_folder, &err);
    if (component && component->ops.comm.launcher)
        return run_by(component->ops.comm.launcher, o, body, expect_signal);
    return run_forked(o, body, expect_signal);
}
