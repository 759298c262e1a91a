/* trace: a Chrome trace of all operations, for chrome://tracing and Perfetto: one file per rank, one track per
 * group. */
#include <inttypes.h>
#include <stdlib.h>

#include "../common/hook_file.h"

struct settings {
    int64_t most;
};

struct event {
    const char *group;
    uint32_t coll, dtype;
    int32_t peer, track;
    uint64_t seq, count, tag, sent, received;
    double began, ended;
};

struct hd_hook {
    const struct hd_host *host;
    const struct hd_hook_place *place;
    struct event *at; /* `room` of them */
    uint64_t n, room, lost;
    const char **tracks; /* names of groups, each once */
    int32_t n_tracks, reserved;
};

static const struct hd_option options[] = {
    {.name = "most",
     .value = "100000",
     .unit = "operations",
     .help = "kept for each rank; later ones are only counted",
     .min = 1,
     .max = 1e9,
     .type = HD_OPT_INT,
     .offset = offsetof(struct settings, most)},
};

static int32_t trace_open(const struct hd_host *host, const void *settings, const struct hd_hook_place *place,
                          struct hd_hook **hook, struct hd_error *err)
{
    const struct settings *s = settings;
    struct hd_hook *h = calloc(1, sizeof *h);
    if (h)
        h->at = calloc((size_t)s->most, sizeof *h->at);
    if (!h || !h->at) {
        free(h);
        return hd_fail(err, HD_E_NOMEM, "comm.hooks: trace: no memory for %lld operations", (long long)s->most);
    }
    h->host = host;
    h->place = place;
    h->room = (uint64_t)s->most;
    *hook = h;
    return HD_OK;
}

static int32_t track_of(const struct hd_hook *h, const char *name)
{
    for (int32_t i = 0; i < h->n_tracks; i++)
        if (!strcmp(h->tracks[i], name))
            return i;
    return -1;
}

static int32_t trace_group(struct hd_hook *h, const struct hd_hook_group *g, struct hd_error *err)
{
    const char **tracks;
    if (track_of(h, g->name) >= 0)
        return HD_OK;
    tracks = realloc(h->tracks, (size_t)(h->n_tracks + 1) * sizeof *tracks);
    if (!tracks)
        return hd_fail(err, HD_E_NOMEM, "comm.hooks: trace: no memory for group %s", g->name);
    tracks[h->n_tracks++] = g->name;
    h->tracks = tracks;
    return HD_OK;
}

static int32_t trace_end(struct hd_hook *h, struct hd_hook_op *op, int32_t code, struct hd_error *err)
{
    struct event *e = h->n < h->room ? &h->at[h->n++] : NULL;
    (void)err;
    h->lost += !e;
    if (!e)
        return code;
    *e = (struct event){.group = op->group->name,
                        .coll = op->call->coll,
                        .dtype = op->call->dtype,
                        .track = track_of(h, op->group->name),
                        .seq = op->seq,
                        .peer = op->peer >= 0 && op->peer < op->group->n ? op->group->ranks[op->peer] : -1,
                        .count = op->call->count,
                        .tag = op->call->tag,
                        .began = op->began,
                        .ended = op->ended};
    hd_hook_op_bytes(op, &e->sent, &e->received);
    return code;
}

/* Operations of a group overlap, so each is a pair of events with an id, unique over all ranks: viewers match ids
 * across processes when the files of several ranks are merged. Times are microseconds of the monotonic clock, which
 * the ranks of a machine share. */
static void write_event(FILE *f, const struct event *e, uint64_t number, int32_t rank)
{
    const char *name = hd_hook_coll_name(e->coll);
    fprintf(f,
            ",\n{\"ph\":\"b\",\"cat\":\"%s\",\"name\":\"%s\",\"id\":%" PRIu64
            ",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"args\":{",
            e->group, name, number, rank, e->track, e->began * 1e6);
    if (e->peer >= 0)
        fprintf(f, "\"peer\":%d,", e->peer);
    else
        fprintf(f, "\"seq\":%" PRIu64 ",\"tag\":%" PRId64 ",", e->seq, (int64_t)e->tag);
    fprintf(f, "\"dtype\":\"%s\",\"count\":%" PRIu64 ",\"sent\":%" PRIu64 ",\"received\":%" PRIu64 "}}",
            hd_dtype_name(e->dtype), e->count, e->sent, e->received);
    fprintf(f, ",\n{\"ph\":\"e\",\"cat\":\"%s\",\"name\":\"%s\",\"id\":%" PRIu64 ",\"pid\":%d,\"tid\":%d,\"ts\":%.3f}",
            e->group, name, number, rank, e->track, e->ended * 1e6);
}

static void write_trace(const void *user, FILE *f)
{
    const struct hd_hook *h = user;
    int32_t rank = h->place->world->rank;
    fprintf(f,
            "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"rank\":%d,\"transport\":\"%s\",\"not_kept\":%" PRIu64
            "},\"traceEvents\":[\n"
            "{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%d,\"args\":{\"name\":\"rank %d\"}}",
            rank, h->place->transport, h->lost, rank, rank);
    for (uint64_t i = 0; i < h->n; i++)
        write_event(f, &h->at[i], ((uint64_t)rank << 32) + i, rank);
    fputs("\n]}\n", f);
}

static void trace_close(struct hd_hook *h)
{
    if (!h)
        return;
    hook_file_write(h->host, h->place, "trace", write_trace, h);
    free(h->tracks);
    free(h->at);
    free(h);
}

static const struct hd_hook_ops ops = {
    .struct_size = sizeof ops,
    .open = trace_open,
    .close = trace_close,
    .group = trace_group,
    .end = trace_end,
};

static const struct hd_component component = {
    .struct_size = sizeof component,
    .kind = HD_KIND_HOOK,
    .name = "trace",
    .summary = "every operation with its times, as a Chrome trace for each rank",
    .options = options,
    .n_options = sizeof options / sizeof options[0],
    .option_size = sizeof options[0],
    .settings_size = sizeof(struct settings),
    .ops = &ops,
};

HD_PLUGIN_ONE("hook-trace", "0.1.0", "Apache-2.0", component)
