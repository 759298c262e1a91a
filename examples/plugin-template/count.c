/* hook-count: a hook as anyone may write one: counts operations as they begin and as they end, and says how many
 * there were. With `hold: N` every Nth is held back until the next progress, which may change when things happen, and
 * nothing else. */
#include <inttypes.h>
#include <stdlib.h>

#include "heddle/hook.h"

enum { MAX_HELD = 64 };

struct settings {
    int64_t hold;
};

struct hd_hook {
    const struct hd_hook_place *place;
    int64_t hold;
    uint64_t began, ended, failed, held;
    const struct hd_hook_op *waiting[MAX_HELD];
    uint64_t n_waiting;
};

static int32_t count_open(const struct hd_host *host, const void *settings, const struct hd_hook_place *place,
                          struct hd_hook **hook, struct hd_error *err)
{
    struct hd_hook *h = calloc(1, sizeof *h);
    (void)host;
    if (!h)
        return hd_fail(err, HD_E_NOMEM, "comm.hooks: count: no memory");
    h->place = place;
    h->hold = ((const struct settings *)settings)->hold;
    *hook = h;
    return HD_OK;
}

static void count_close(struct hd_hook *h)
{
    if (h)
        printf("hook-count: rank %d, comm-%s: %" PRIu64 " began, %" PRIu64 " ended, %" PRIu64 " failed, %" PRIu64
               " held\n",
               h->place->world->rank, h->place->transport, h->began, h->ended, h->failed, h->held);
    free(h);
}

static int32_t count_begin(struct hd_hook *h, struct hd_hook_op *op, struct hd_error *err)
{
    (void)err;
    h->began++;
    if (!h->hold || h->began % (uint64_t)h->hold || h->n_waiting == MAX_HELD)
        return HD_OK;
    h->waiting[h->n_waiting++] = op;
    h->held++;
    return HD_HOOK_HOLD;
}

static int32_t count_end(struct hd_hook *h, struct hd_hook_op *op, int32_t code, struct hd_error *err)
{
    (void)err;
    h->ended++;
    h->failed += code != HD_OK;
    for (uint64_t i = 0; i < h->n_waiting; i++)
        if (h->waiting[i] == op)
            h->waiting[i--] = h->waiting[--h->n_waiting];
    return code;
}

static int32_t count_progress(struct hd_hook *h, struct hd_error *err)
{
    int32_t moved = h->n_waiting > 0;
    (void)err;
    while (h->n_waiting)
        h->place->api->release(h->place, h->waiting[--h->n_waiting]);
    return moved;
}

static const struct hd_option options[] = {
    {.name = "hold",
     .value = "0",
     .help = "holds every so-many-th operation back until the next progress; 0: none",
     .min = 0,
     .max = 1e6,
     .type = HD_OPT_INT,
     .offset = offsetof(struct settings, hold)},
};

static const struct hd_hook_ops ops = {
    .struct_size = sizeof ops,
    .open = count_open,
    .close = count_close,
    .begin = count_begin,
    .end = count_end,
    .progress = count_progress,
};

HD_PLUGIN("hook-count", "0.1.0", "Apache-2.0", .kind = HD_KIND_HOOK, .name = "count",
          .summary = "counts operations, and may hold some back", HD_OPTIONS(options, struct settings), .ops = &ops)
