/* comm-ordered: a transport that puts its operations into a stream of device-async (async.h), as NCCL does into CUDA's. For
 * tests. comm-shm moves the data, when the operation's turn in the stream has come. */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "heddle/comm.h"
#include "heddle/host.h"
#include "tests/plugins/async.h"

enum { MESSAGES = 16 };

struct settings {
    char shm[256]; /* comm-shm's own */
};

struct message {
    struct hd_comm_group *group;
    int32_t peer, receives;
    uint32_t stream, reserved;
    void *data;
    uint64_t bytes;
};

/* One turn of the stream: a collective, or messages that go together. */
struct turn {
    struct hd_comm *comm;
    struct hd_comm_group *group;
    struct hd_comm_call call;
    struct message message[MESSAGES];
    uint32_t n_messages, begun, n_requests, reserved;
    hd_request requests[MESSAGES];
};

struct hd_comm {
    const struct hd_comm_ops *shm_ops;
    struct hd_comm *shm;
    struct async_stream *stream;
    struct turn waiting; /* messages that were posted */
    uint64_t posted;
};

struct hd_comm_group {
    struct hd_comm *comm;
    struct hd_comm_group *shm;
};

static const struct hd_component *shm_component(void)
{
    void *library = dlopen(COMM_SHM, RTLD_NOW | RTLD_LOCAL);
    hd_plugin_entry entry;
    *(void **)&entry = library ? dlsym(library, HD_PLUGIN_SYMBOL) : NULL;
    return entry ? entry()->components[0] : NULL;
}

/* ---- in the stream */

static int32_t begin(struct turn *t, struct hd_error *err)
{
    const struct hd_comm_ops *ops = t->comm->shm_ops;
    int32_t rc = HD_OK;
    t->begun = 1;
    if (!t->n_messages)
        return ops->collective(t->group->shm, &t->call, &t->requests[t->n_requests++], err);
    for (uint32_t n = 0; n < t->n_messages && !rc; n++) {
        const struct message *m = &t->message[n];
        hd_request *request = &t->requests[t->n_requests++];
        rc = m->receives ? ops->recv(m->group->shm, m->peer, m->stream, m->data, m->bytes, request, err)
                         : ops->send(m->group->shm, m->peer, m->stream, m->data, m->bytes, request, err);
    }
    return rc;
}

static int32_t go_on(void *user, struct hd_error *err)
{
    struct turn *t = user;
    const struct hd_comm_ops *ops = t->comm->shm_ops;
    int32_t rc = t->begun ? HD_OK : begin(t, err);
    if (!rc)
        rc = ops->progress(t->comm->shm, err);
    for (uint32_t n = 0; n < t->n_requests && rc >= 0;) {
        int32_t done = 0;
        rc = ops->test(t->comm->shm, t->requests[n], &done, err);
        if (!rc && done)
            t->requests[n] = t->requests[--t->n_requests];
        else
            n++;
    }
    return rc < 0 ? rc : !t->n_requests;
}

static int32_t enqueue(struct hd_comm *c, const struct turn *t, struct hd_error *err)
{
    return c->stream->call(c->stream, go_on, t, sizeof *t, err);
}

static int32_t flush(struct hd_comm *c, struct hd_error *err)
{
    int32_t rc = c->waiting.n_messages ? enqueue(c, &c->waiting, err) : HD_OK;
    c->waiting.n_messages = 0;
    return rc;
}

/* ---- slots */

static int32_t ordered_open(const struct hd_host *host, const void *settings, const struct hd_world *world, struct hd_comm **comm,
                            struct hd_error *err)
{
    struct hd_comm *c;
    int32_t rc;
    if (!world->stream || strcmp(world->device, "async") != 0)
        return hd_fail(err, HD_E_UNSUPPORTED, "comm-ordered works with device-async only");
    c = calloc(1, sizeof *c);
    c->shm_ops = shm_component()->ops;
    c->stream = world->stream;
    c->waiting.comm = c;
    rc = c->shm_ops->open(host, ((const struct settings *)settings)->shm, world, &c->shm, err);
    if (rc)
        free(c);
    else
        *comm = c;
    return rc;
}

static void ordered_close(struct hd_comm *c)
{
    if (c)
        c->shm_ops->close(c->shm);
    free(c);
}

static int32_t ordered_group(struct hd_comm *c, const char *name, const int32_t *ranks, int32_t n, struct hd_comm_group **group,
                             struct hd_error *err)
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

static int32_t ordered_collective(struct hd_comm_group *g, const struct hd_comm_call *call, hd_request *request, struct hd_error *err)
{
    struct hd_comm *c = g->comm;
    struct turn t = {.comm = c, .group = g, .call = *call};
    int32_t rc = flush(c, err);
    t.call.send = c->stream->reach(c->stream, call->send);
    t.call.recv = c->stream->reach(c->stream, call->recv);
    if (!rc)
        rc = enqueue(c, &t, err);
    *request = ++c->posted;
    return rc;
}

static int32_t post(struct hd_comm_group *g, const struct message *m, hd_request *request, struct hd_error *err)
{
    struct hd_comm *c = g->comm;
    int32_t rc = c->waiting.n_messages == MESSAGES ? flush(c, err) : HD_OK;
    c->waiting.message[c->waiting.n_messages] = *m;
    c->waiting.message[c->waiting.n_messages++].data = c->stream->reach(c->stream, m->data);
    *request = ++c->posted;
    return rc;
}

static int32_t ordered_send(struct hd_comm_group *g, int32_t peer, uint32_t stream, const void *data, uint64_t bytes,
                            hd_request *request, struct hd_error *err)
{
    return post(g, &(struct message){.group = g, .peer = peer, .stream = stream, .data = (void *)(uintptr_t)data, .bytes = bytes},
                request, err);
}

static int32_t ordered_recv(struct hd_comm_group *g, int32_t peer, uint32_t stream, void *data, uint64_t bytes, hd_request *request,
                            struct hd_error *err)
{
    return post(g, &(struct message){.group = g, .peer = peer, .receives = 1, .stream = stream, .data = data, .bytes = bytes},
                request, err);
}

static int32_t ordered_progress(struct hd_comm *c, struct hd_error *err)
{
    return flush(c, err);
}

static int32_t ordered_test(struct hd_comm *c, hd_request request, int32_t *done, struct hd_error *err)
{
    (void)request;
    *done = 1;
    return flush(c, err);
}

static int32_t ordered_wait(struct hd_comm *c, hd_request request, double deadline, struct hd_error *err)
{
    (void)request, (void)deadline;
    return flush(c, err);
}

static void ordered_abort(struct hd_comm *c, const char *reason)
{
    c->shm_ops->abort(c->shm, reason);
}

static const struct hd_comm_ops ops = {
    .struct_size = sizeof ops,
    .caps = HD_COMM_STREAM_ORDERED | HD_COMM_DEVICE_MEMORY | HD_COMM_LOCAL_ONLY,
    .open = ordered_open,
    .close = ordered_close,
    .group = ordered_group,
    .group_free = ordered_group_free,
    .collective = ordered_collective,
    .send = ordered_send,
    .recv = ordered_recv,
    .progress = ordered_progress,
    .test = ordered_test,
    .wait = ordered_wait,
    .abort = ordered_abort,
};

static struct hd_component component = {
    .struct_size = sizeof component,
    .kind = HD_KIND_COMM,
    .name = "ordered",
    .summary = "comm-shm inside a stream of device-async: for tests",
    .option_size = sizeof(struct hd_option),
    .settings_size = sizeof(struct settings),
    .ops = &ops,
};

static const struct hd_component *const components[] = {&component, NULL};
static const struct hd_plugin plugin = {
    .magic = HD_PLUGIN_MAGIC,
    .struct_size = sizeof plugin,
    .abi_minor = HD_ABI_MINOR,
    .name = "comm-ordered",
    .version = "0.1.0",
    .licence = "Apache-2.0",
    .components = components,
};

/* Its options are comm-shm's. */
__attribute__((visibility("default"))) const struct hd_plugin *HD_PLUGIN_ENTRY(void);
const struct hd_plugin *HD_PLUGIN_ENTRY(void)
{
    const struct hd_component *shm = shm_component();
    if (!shm || shm->settings_size > sizeof(struct settings))
        return NULL;
    component.options = shm->options;
    component.n_options = shm->n_options;
    return &plugin;
}
