/* comm-ordered: a transport that puts its operations into a stream of device-async (async.h), as NCCL does into
 * CUDA's. For tests. comm-shm moves the data: an operation begins when its turn in the stream has come, and the
 * stream waits for it where `test` said done. An operation that nobody asked for until the transport is closed, in a
 * job that was not aborted, ends the process. As with NCCL, an operation is captured on all its ranks or on none: else
 * collectives do not match, and messages do not meet. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "heddle/comm.h"
#include "heddle/host.h"
#include "tests/plugins/absent.h"
#include "tests/plugins/async.h"
#include "tests/plugins/inner.h"

struct settings {
    int64_t apart;
    char shm[256]; /* comm-shm's own */
};

/* A collective, or a message. Kept until the transport is closed: a captured piece has it again and again. */
struct op {
    struct op *next;
    struct hd_comm_group *group;
    struct hd_comm_call call;
    void *data;
    uint64_t bytes;
    hd_request number, request;
    int32_t message, receives, peer; /* message: 0 is a collective */
    uint32_t stream, captured;
    int32_t begun, posted, done, ended; /* begun: its turn in the stream has come; ended: the stream waits for it */
    int32_t reserved;
};

struct hd_comm {
    const struct hd_comm_ops *shm_ops;
    struct hd_comm *shm;
    struct async_stream *stream;
    pthread_mutex_t lock; /* the device has a thread of its own */
    struct op *ops, **tail;
    uint64_t numbers;
    int32_t apart, aborted;
};

struct hd_comm_group {
    struct hd_comm *comm;
    struct hd_comm_group *shm;
};

/* ---- operations that have begun */

static int32_t post_op(struct hd_comm *c, struct op *op, struct hd_error *err)
{
    const struct hd_comm_ops *ops = c->shm_ops;
    struct hd_comm_call call = op->call;
    uint32_t stream = op->stream | op->captured << 30;
    op->posted = 1;
    call.tag ^= (uint64_t)op->captured << 62;
    if (!op->message)
        return ops->collective(op->group->shm, &call, &op->request, err);
    return op->receives ? ops->recv(op->group->shm, op->peer, stream, op->data, op->bytes, &op->request, err)
                        : ops->send(op->group->shm, op->peer, stream, op->data, op->bytes, &op->request, err);
}

static int32_t drive(struct hd_comm *c, struct hd_error *err)
{
    int32_t rc = c->shm_ops->progress(c->shm, err);
    for (struct op *op = c->ops; op && rc >= 0; op = op->next) {
        if (!op->begun || op->done)
            continue;
        rc = op->posted ? HD_OK : post_op(c, op, err);
        if (!rc)
            rc = c->shm_ops->test(c->shm, op->request, &op->done, err);
    }
    return rc;
}

/* ---- in the stream: where an operation may begin, and where the stream waits for it */

struct place {
    struct hd_comm *comm;
    struct op *op;
};

static int32_t begin(void *user, struct hd_error *err)
{
    const struct place *at = user;
    int32_t rc;
    pthread_mutex_lock(&at->comm->lock);
    at->op->posted = at->op->done = 0;
    at->op->begun = 1;
    rc = drive(at->comm, err);
    pthread_mutex_unlock(&at->comm->lock);
    return rc < 0 ? rc : 1;
}

static int32_t end(void *user, struct hd_error *err)
{
    const struct place *at = user;
    int32_t rc, done;
    pthread_mutex_lock(&at->comm->lock);
    rc = drive(at->comm, err);
    done = at->op->done;
    pthread_mutex_unlock(&at->comm->lock);
    return rc < 0 ? rc : done;
}

static int32_t enqueue(struct hd_comm *c, async_call what, struct op *op, struct hd_error *err)
{
    struct place at = {c, op};
    return c->stream->call(c->stream, what, &at, sizeof at, err);
}

static int32_t take(struct hd_comm_group *g, const struct op *what, hd_request *request, struct hd_error *err)
{
    struct hd_comm *c = g->comm;
    struct op *op = malloc(sizeof *op);
    *op = *what;
    op->group = g;
    op->captured = c->stream->capturing;
    pthread_mutex_lock(&c->lock);
    op->number = *request = ++c->numbers;
    *c->tail = op;
    c->tail = &op->next;
    pthread_mutex_unlock(&c->lock);
    return enqueue(c, begin, op, err);
}

/* ---- slots */

static int32_t ordered_open(const struct hd_host *host, const void *settings, const struct hd_world *world,
                            struct hd_comm **comm, struct hd_error *err)
{
    struct hd_comm *c;
    int32_t rc;
    if (!world->stream || strcmp(world->device, "async") != 0)
        return hd_fail(err, HD_E_UNSUPPORTED, "comm-ordered works with device-async only");
    c = calloc(1, sizeof *c);
    c->shm_ops = inner_component(COMM_SHM)->ops;
    c->stream = world->stream;
    c->apart = ((const struct settings *)settings)->apart != 0;
    c->tail = &c->ops;
    pthread_mutex_init(&c->lock, NULL);
    rc = c->shm_ops->open(host, ((const struct settings *)settings)->shm, world, &c->shm, err);
    if (rc)
        free(c);
    else
        *comm = c;
    return rc;
}

static void ordered_close(struct hd_comm *c)
{
    if (!c)
        return;
    for (struct op *op = c->ops; op && !c->aborted; op = op->next)
        if (!op->ended) {
            fprintf(stderr, "comm-ordered: operation %llu was never asked for\n", (unsigned long long)op->number);
            abort();
        }
    c->shm_ops->close(c->shm);
    for (struct op *op; (op = c->ops); free(op))
        c->ops = op->next;
    pthread_mutex_destroy(&c->lock);
    free(c);
}

static int32_t ordered_group(struct hd_comm *c, const char *name, const int32_t *ranks, int32_t n,
                             struct hd_comm_group **group, struct hd_error *err)
{
    struct hd_comm_group *g = calloc(1, sizeof *g);
    int32_t rc = c->shm_ops->group(c->shm, name, ranks, n, &g->shm, err);
    g->comm = c;
    if (rc)
        free(g);
    else
        *group = g;
    return rc;
}

static void ordered_group_free(struct hd_comm_group *g)
{
    if (g && g->comm->shm_ops->group_free)
        g->comm->shm_ops->group_free(g->shm);
    free(g);
}

static int32_t ordered_collective(struct hd_comm_group *g, const struct hd_comm_call *call, hd_request *request,
                                  struct hd_error *err)
{
    struct async_stream *stream = g->comm->stream;
    struct op op = {.call = *call};
    op.call.send = stream->reach(stream, call->send);
    op.call.recv = stream->reach(stream, call->recv);
    return take(g, &op, request, err);
}

static int32_t ordered_send(struct hd_comm_group *g, int32_t peer, uint32_t stream, const void *data, uint64_t bytes,
                            hd_request *request, struct hd_error *err)
{
    struct op op = {.message = 1, .peer = peer, .stream = stream, .bytes = bytes};
    op.data = g->comm->stream->reach(g->comm->stream, data);
    return take(g, &op, request, err);
}

static int32_t ordered_recv(struct hd_comm_group *g, int32_t peer, uint32_t stream, void *data, uint64_t bytes,
                            hd_request *request, struct hd_error *err)
{
    struct op op = {.message = 1, .receives = 1, .peer = peer, .stream = stream, .bytes = bytes};
    op.data = g->comm->stream->reach(g->comm->stream, data);
    return take(g, &op, request, err);
}

static int32_t ordered_progress(struct hd_comm *c, struct hd_error *err)
{
    int32_t rc;
    pthread_mutex_lock(&c->lock);
    rc = drive(c, err);
    pthread_mutex_unlock(&c->lock);
    return rc < 0 ? rc : 0;
}

static int32_t ordered_test(struct hd_comm *c, hd_request request, int32_t *done, struct hd_error *err)
{
    struct op *op = c->ops;
    while (op && op->number != request)
        op = op->next;
    if (!op || op->ended)
        return hd_fail(err, HD_E_INVALID, "no operation has the number %llu", (unsigned long long)request);
    op->ended = *done = 1;
    return enqueue(c, end, op, err);
}

static void ordered_abort(struct hd_comm *c, const char *reason)
{
    c->aborted = 1;
    c->shm_ops->abort(c->shm, reason);
}

static uint64_t caps_of(const struct hd_comm *c);

static const struct hd_comm_ops ops = {
    .struct_size = sizeof ops,
    .caps = HD_COMM_STREAM_ORDERED | HD_COMM_INDEPENDENT_P2P | HD_COMM_DEVICE_MEMORY | HD_COMM_LOCAL_ONLY,
    .open = ordered_open,
    .close = ordered_close,
    .group = ordered_group,
    .group_free = ordered_group_free,
    .collective = ordered_collective,
    .send = ordered_send,
    .recv = ordered_recv,
    .progress = ordered_progress,
    .test = ordered_test,
    .abort = ordered_abort,
    .caps_of = caps_of,
};

static uint64_t caps_of(const struct hd_comm *c)
{
    return c->apart ? ops.caps : ops.caps & ~HD_COMM_INDEPENDENT_P2P;
}

static struct hd_option options[32] = {
    {.name = "apart",
     .value = "1",
     .type = HD_OPT_INT,
     .min = 0,
     .max = 1,
     .help = "0: does not say that messages are independent",
     .offset = offsetof(struct settings, apart)},
};

static int32_t probe(const struct hd_host *host, struct hd_error *err)
{
    (void)host;
    return absent("comm-ordered", err);
}

static struct hd_component component = {
    .struct_size = sizeof component,
    .kind = HD_KIND_COMM,
    .name = "ordered",
    .summary = "comm-shm inside a stream of device-async: for tests",
    .options = options,
    .n_options = 1,
    .option_size = sizeof options[0],
    .settings_size = sizeof(struct settings),
    .ops = &ops,
    .probe = probe,
};

HD_PLUGIN_DESCRIPTOR(plugin, "comm-ordered", "0.1.0", "Apache-2.0", component);

/* Its options are comm-shm's, and one more. */
__attribute__((visibility("default"))) const struct hd_plugin *HD_PLUGIN_ENTRY(void);
const struct hd_plugin *HD_PLUGIN_ENTRY(void)
{
    const struct hd_component *shm = inner_component(COMM_SHM);
    if (!shm ||
        !inner_options(&component, options, 1, sizeof options / sizeof *options, shm, offsetof(struct settings, shm)))
        return NULL;
    return &plugin;
}
