/* Options, open, close, and the table. */
#include "internal.h"

static const struct hd_option options[] = {
    {.name = "provider",
     .value = "auto",
     .help =
         "shm, tcp, verbs, efa, cxi, ... as fi_info lists them; auto: shm inside one machine, else libfabric's first",
     .type = HD_OPT_STRING,
     .flags = HD_OPTION_GLOBAL,
     .offset = offsetof(struct lf_settings, provider)},
    {.name = "interface",
     .help = "network interface or address of this machine, as eth0 or 10.0.0.3; default: the provider's first",
     .type = HD_OPT_STRING,
     .offset = offsetof(struct lf_settings, interface)},
    {.name = "domain",
     .help = "the provider's name of a device, as mlx5_0, where there are several",
     .type = HD_OPT_STRING,
     .offset = offsetof(struct lf_settings, domain)},
    {.name = "eager",
     .value = "0",
     .unit = "bytes",
     .help = "messages up to this size are sent at once and copied; larger ones wait until their receiver is ready; 0: "
             "what serves the provider "
             "well, 4048 with shm, 8144 with others",
     .aliases = "inject",
     .min = 0,
     .max = (16 << 10) -
            48, /* with its head what ofi_rxm lets go at once; the rest of more waits until its sender makes progress */
     .type = HD_OPT_SIZE,
     .level = HD_LEVEL_TUNER,
     .flags = HD_OPTION_GLOBAL,
     .offset = offsetof(struct lf_settings, eager)},
    {.name = "chunk",
     .value = "0",
     .unit = "bytes",
     .help = "larger messages travel in pieces of this size; 0: 8 MiB, and between machines over tcp 16 KiB, 16 at a "
             "time, of messages up to 256 KiB",
     .min = 0,
     .max = 1 << 30,
     .type = HD_OPT_SIZE,
     .level = HD_LEVEL_TUNER,
     .flags = HD_OPTION_GLOBAL,
     .offset = offsetof(struct lf_settings, chunk)},
    {.name = "window",
     .value = "2",
     .unit = "pieces",
     .help = "how many pieces of one message are under way at a time",
     .min = 1,
     .max = LF_WINDOW,
     .type = HD_OPT_INT,
     .level = HD_LEVEL_TUNER,
     .offset = offsetof(struct lf_settings, window)},
    {.name = "spin",
     .value = "16",
     .unit = "turns",
     .help = "how often a wait looks before it yields the core",
     .min = 0,
     .max = 1000000,
     .type = HD_OPT_INT,
     .level = HD_LEVEL_TUNER,
     .offset = offsetof(struct lf_settings, spin)},
};

static int32_t probe(const struct hd_host *host, struct hd_error *err)
{
    const struct lf_settings any = {.provider = "auto"};
    struct fi_info *info = NULL;
    int32_t code = lf_choose(host, &any, 1, &info, err);
    fi_freeinfo(info);
    return code;
}

static int32_t check(const struct hd_host *host, const void *settings, const struct hd_check_job *job,
                     struct hd_error *err)
{
    struct fi_info *info = NULL;
    int32_t code = lf_choose(host, settings, !job->apart, &info, err);
    fi_freeinfo(info);
    return code;
}

/* Tells those who listen that this rank leaves, and lets what was told go out: a bounded time, whoever takes it. */
static void say_goodbye(struct hd_comm *c)
{
    struct lf_head head = {.kind = LF_CLOSED};
    double until = lf_now() + 0.2;
    lf_abort_poll(c);
    lf_ready_flush(c);
    for (int32_t r = 0; r < c->world.size; r++)
        if (r != c->world.rank && c->peer[r].known && !c->peer[r].closed && !c->peer[r].broken)
            lf_control_send(c, r, &head, NULL);
    do
        lf_advance(c);
    while ((c->talking || c->tx_posted) && lf_now() < until);
}

static void free_tx(struct hd_comm *c, struct lf_tx *tx)
{
    for (struct lf_tx *next; tx; tx = next) {
        next = tx->next;
        c->host->free(tx);
    }
}

static void close_comm(struct hd_comm *c)
{
    if (!c)
        return;
    if (c->ep && c->peer)
        say_goodbye(c);
    lf_groups_forget(c);
    lf_endpoint_close(c);
    for (int32_t r = 0; c->peer && r < c->world.size; r++)
        free_tx(c, c->peer[r].first);
    free_tx(c, c->free_tx);
    for (struct lf_chunk *chunk = c->free_chunks, *next; chunk; chunk = next) {
        next = chunk->next;
        c->host->free(chunk);
    }
    rq_finish(&c->ops);
    c->host->free(c->peer);
    c->host->free(c);
}

static int32_t open_comm(const struct hd_host *host, const void *settings, const struct hd_world *world,
                         struct hd_comm **comm, struct hd_error *err)
{
    struct hd_comm *c = host->alloc(sizeof *c);
    int32_t code = HD_OK;
    if (!c)
        return hd_fail(err, HD_E_NOMEM, "libfabric: no memory");
    c->host = host;
    rq_init(&c->ops, host, sizeof(struct lf_op), 1u << LF_INDEX_BITS);
    c->settings = *(const struct lf_settings *)settings;
    c->world = *world;
    snprintf(c->instance, sizeof c->instance, "%s", world->instance);
    c->peer = host->alloc((size_t)world->size * sizeof *c->peer);
    code = c->peer ? lf_endpoint_open(c, err) : hd_fail(err, HD_E_NOMEM, "libfabric: no memory");
    if (code != HD_OK) {
        close_comm(c);
        return code;
    }
    *comm = c;
    return HD_OK;
}

static const struct hd_comm_ops ops = {
    .struct_size = sizeof ops,
    .caps = HD_COMM_HOST_PROGRESS,
    .open = open_comm,
    .close = close_comm,
    .group = lf_group,
    .group_free = lf_group_free,
    .send = lf_send,
    .recv = lf_recv,
    .progress = lf_progress,
    .test = lf_test,
    .wait = lf_wait,
    .abort = lf_abort,
};

HD_PLUGIN("comm-libfabric", "0.1.0", "Apache-2.0", .kind = HD_KIND_COMM, .name = "libfabric",
          .summary = "messages through libfabric: shm, tcp, verbs, efa, cxi; collectives by the core's algorithms",
          .caps = HD_COMM_HOST_PROGRESS, HD_OPTIONS(options, struct lf_settings), .probe = probe, .ops = &ops,
          .check = check)
