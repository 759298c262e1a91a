/* trace: every operation with its times, as a trace for chrome://tracing and Perfetto: one file a rank, one track a group. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "runtime/comm/hook.h"

struct settings {
    int64_t most;
};

struct event {
    uint32_t what, dtype;
    int32_t peer, group;
    uint64_t seq, count, tag, sent, received;
    double began, ended;
};

struct trace {
    struct event *at; /* `room` of them */
    uint64_t n, room, lost;
    struct hd__arena arena;
    HD__ARRAY(const char *) groups; /* names, which outlive the groups here */
};

static const struct hd_option options[] = {
    {.name = "most",
     .value = "100000",
     .unit = "operations",
     .help = "of a rank that are kept; later ones are only counted",
     .min = 1,
     .max = 1e9,
     .type = HD_OPT_INT,
     .offset = offsetof(struct settings, most)},
};

static int32_t trace_open(struct hd__hook *h, struct hd_error *err)
{
    const struct settings *s = h->settings;
    struct trace *t = hd__alloc(sizeof *t);
    t->room = (uint64_t)s->most;
    t->at = calloc(t->room, sizeof *t->at);
    h->state = t;
    if (t->at)
        return HD_OK;
    free(t);
    return hd_fail(err, HD_E_NOMEM, "comm.hooks: trace: no memory for %lld operations", (long long)s->most);
}

static int32_t group_of(struct trace *t, const char *name)
{
    for (uint32_t i = 0; i < t->groups.count; i++)
        if (!strcmp(t->groups.at[i], name))
            return (int32_t)i;
    return -1;
}

static int32_t trace_group(struct hd__hook *h, struct hd__hook_group *g, struct hd_error *err)
{
    struct trace *t = h->state;
    (void)err;
    if (group_of(t, g->name) < 0)
        hd__push(&t->groups, hd__arena_strdup(&t->arena, g->name));
    return HD_OK;
}

static int32_t trace_end(struct hd__hook *h, struct hd__hook_op *op, int32_t code, struct hd_error *err)
{
    struct trace *t = h->state;
    struct event *e = t->n < t->room ? &t->at[t->n++] : NULL;
    (void)err;
    t->lost += !e;
    if (!e)
        return code;
    *e = (struct event){.what = op->what,
                        .dtype = op->call.dtype,
                        .group = group_of(t, op->group->name),
                        .seq = op->seq,
                        .peer = op->seq ? -1 : op->group->ranks[op->peer],
                        .count = op->call.count,
                        .tag = op->call.tag,
                        .began = op->since,
                        .ended = hd__now()};
    hd__comm_hook_op_bytes(op, &e->sent, &e->received);
    return code;
}

/* Operations of one group overlap, so each is a pair of events with a number of its own, of no other rank either: viewers match numbers
 * across processes, and files of several ranks may be looked at together. Times are microseconds of the
 * monotonic clock: ranks of one machine share it. */
static void write_event(FILE *f, const struct trace *t, const struct event *e, uint64_t number, int32_t rank)
{
    const char *group = e->group >= 0 ? t->groups.at[e->group] : "?";
    fprintf(f,
            ",\n{\"ph\":\"b\",\"cat\":\"%s\",\"name\":\"%s\",\"id\":%" PRIu64
            ",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"args\":{",
            group, hd__comm_hook_op_name(e->what), number, rank, e->group, e->began * 1e6);
    if (e->peer >= 0)
        fprintf(f, "\"peer\":%d,", e->peer);
    else
        fprintf(f, "\"seq\":%" PRIu64 ",\"tag\":%" PRId64 ",", e->seq, (int64_t)e->tag);
    fprintf(f, "\"dtype\":\"%s\",\"count\":%" PRIu64 ",\"sent\":%" PRIu64 ",\"received\":%" PRIu64 "}}",
            hd_dtype_name(e->dtype), e->count, e->sent, e->received);
    fprintf(f, ",\n{\"ph\":\"e\",\"cat\":\"%s\",\"name\":\"%s\",\"id\":%" PRIu64 ",\"pid\":%d,\"tid\":%d,\"ts\":%.3f}",
            group, hd__comm_hook_op_name(e->what), number, rank, e->group, e->ended * 1e6);
}

static void trace_close(struct hd__hook *h)
{
    struct trace *t = h->state;
    char path[512];
    FILE *f = fopen(hd__comm_hook_output_path(h, "trace", path), "we");
    if (f) {
        fprintf(f,
                "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"rank\":%d,\"transport\":\"%s\",\"not_kept\":%" PRIu64
                "},\"traceEvents\":[\n"
                "{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%d,\"args\":{\"name\":\"rank %d\"}}",
                h->world.rank, h->context.transport, t->lost, h->world.rank, h->world.rank);
        for (uint64_t i = 0; i < t->n; i++)
            write_event(f, t, &t->at[i], ((uint64_t)h->world.rank << 32) + i, h->world.rank);
        fputs("\n]}\n", f);
    }
    if (!f || fclose(f))
        hd__log(HD_LOG_WARN, "trace", "%s: %s", path, strerror(errno));
    hd__free_array(&t->groups);
    hd__arena_free(&t->arena);
    free(t->at);
    free(t);
}

const struct hd__hook_kind hd__comm_hook_trace = {
    .name = "trace",
    .summary = "every operation with its times, as a Chrome trace for each rank",
    .options = options,
    .n_options = HD__COUNT(options),
    .settings_size = sizeof(struct settings),
    .open = trace_open,
    .group = trace_group,
    .end = trace_end,
    .close = trace_close,
};
