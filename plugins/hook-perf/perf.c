/* perf: count, bytes and time of operations by group, kind and size. */
#include <inttypes.h>
#include <stdlib.h>

#include "../common/hook_file.h"

/* Operations of one kind in one group with at most `up_to` bytes, 0 or a power of two, on the larger side. */
struct row {
    const char *group;
    uint32_t coll, reserved;
    uint64_t up_to, n, failed;
    double bytes, seconds, least, most; /* bytes: of the larger side */
};

struct hd_hook {
    const struct hd_host *host;
    const struct hd_hook_place *place;
    struct row *rows;
    size_t n, room;
};

static int32_t perf_open(const struct hd_host *host, const void *settings, const struct hd_hook_place *place,
                         struct hd_hook **hook, struct hd_error *err)
{
    struct hd_hook *h = calloc(1, sizeof *h);
    (void)settings;
    if (!h)
        return hd_fail(err, HD_E_NOMEM, "comm.hooks: perf: no memory");
    h->host = host;
    h->place = place;
    *hook = h;
    return HD_OK;
}

/* NULL: out of memory. */
static struct row *row_of(struct hd_hook *h, const struct hd_hook_op *op, uint64_t up_to)
{
    for (size_t i = 0; i < h->n; i++) {
        struct row *r = &h->rows[i];
        if (r->coll == op->call->coll && r->up_to == up_to && !strcmp(r->group, op->group->name))
            return r;
    }
    if (h->n == h->room) {
        size_t room = h->room ? 2 * h->room : 64;
        struct row *rows = realloc(h->rows, room * sizeof *rows);
        if (!rows)
            return NULL;
        h->rows = rows;
        h->room = room;
    }
    h->rows[h->n] = (struct row){.group = op->group->name, .coll = op->call->coll, .up_to = up_to, .least = 1e300};
    return &h->rows[h->n++];
}

static int32_t perf_end(struct hd_hook *h, struct hd_hook_op *op, int32_t code, struct hd_error *err)
{
    double seconds = op->ended - op->began;
    uint64_t sent, received, most;
    struct row *r;
    hd_hook_op_bytes(op, &sent, &received);
    most = sent > received ? sent : received;
    r = row_of(h, op, most > 1 ? UINT64_C(1) << (64 - __builtin_clzll(most - 1)) : most);
    if (!r)
        return code ? code : hd_fail(err, HD_E_NOMEM, "comm.hooks: perf: no memory for %zu rows", h->n + 1);
    r->n++;
    r->failed += code != HD_OK;
    r->bytes += (double)most;
    r->seconds += seconds;
    r->least = seconds < r->least ? seconds : r->least;
    r->most = seconds > r->most ? seconds : r->most;
    return code;
}

static int by_group_and_size(const void *a, const void *b)
{
    const struct row *x = a, *y = b;
    int order = strcmp(x->group, y->group);
    if (!order)
        order = (x->coll > y->coll) - (x->coll < y->coll);
    return order ? order : (x->up_to > y->up_to) - (x->up_to < y->up_to);
}

/* ---- the table of rank 0 */

static const char *bytes_text(uint64_t bytes, char out[32])
{
    static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    double x = (double)bytes;
    size_t u = 0;
    for (; x >= 1024 && u < 5; u++)
        x /= 1024;
    snprintf(out, 32, u ? "%.1f %s" : "%.0f %s", x, unit[u]);
    return out;
}

static void print(const struct hd_hook *h)
{
    char bytes[32];
    fprintf(stderr, "operations of rank 0 on comm-%s\n  %-16s %-14s %9s %9s %10s %10s %10s %8s\n", h->place->transport,
            "group", "operation", "up to", "calls", "least us", "mean us", "most us", "GB/s");
    for (size_t i = 0; i < h->n; i++) {
        const struct row *r = &h->rows[i];
        fprintf(stderr, "  %-16s %-14s %9s %9" PRIu64 " %10.1f %10.1f %10.1f %8.3f\n", r->group,
                hd_hook_coll_name(r->coll), bytes_text(r->up_to, bytes), r->n, r->least * 1e6,
                r->seconds / (double)r->n * 1e6, r->most * 1e6, r->seconds > 0 ? r->bytes / r->seconds / 1e9 : 0);
    }
}

struct algorithms {
    FILE *file;
    const char *transport;
    int n, reserved;
};

static void print_algorithm(void *user, const char *group, uint32_t coll, const char *algorithm, uint64_t calls)
{
    struct algorithms *a = user;
    if (!a->n++)
        fprintf(stderr, "algorithms of rank 0 over comm-%s\n  %-16s %-14s %-14s %9s\n", a->transport, "group",
                "operation", "algorithm", "calls");
    fprintf(stderr, "  %-16s %-14s %-14s %9" PRIu64 "\n", group, hd_coll_name(coll), algorithm, calls);
}

/* ---- the file of every rank */

static void write_algorithm(void *user, const char *group, uint32_t coll, const char *algorithm, uint64_t calls)
{
    struct algorithms *a = user;
    fprintf(a->file, "%s\n {\"group\": \"%s\", \"op\": \"%s\", \"algorithm\": \"%s\", \"calls\": %" PRIu64 "}",
            a->n++ ? "," : "", group, hd_coll_name(coll), algorithm, calls);
}

static void write_json(const void *user, FILE *f)
{
    const struct hd_hook *h = user;
    struct algorithms algorithms = {.file = f};
    fprintf(f, "{\"rank\": %d, \"transport\": \"%s\", \"rows\": [", h->place->world->rank, h->place->transport);
    for (size_t i = 0; i < h->n; i++) {
        const struct row *r = &h->rows[i];
        fprintf(f,
                "%s\n {\"group\": \"%s\", \"op\": \"%s\", \"up_to_bytes\": %" PRIu64 ", \"calls\": %" PRIu64
                ", \"failed\": %" PRIu64 ", \"bytes\": %.0f, \"seconds\": %.9f, \"least_s\": %.9f, \"most_s\": %.9f}",
                i ? "," : "", r->group, hd_hook_coll_name(r->coll), r->up_to, r->n, r->failed, r->bytes, r->seconds,
                r->least, r->most);
    }
    fputs("], \"algorithms\": [", f);
    h->place->api->each_algorithm(h->place, write_algorithm, &algorithms);
    fputs("\n]}\n", f);
}

static void perf_close(struct hd_hook *h)
{
    struct algorithms algorithms = {0};
    if (!h)
        return;
    if (h->n)
        qsort(h->rows, h->n, sizeof *h->rows, by_group_and_size);
    if (h->place->world->rank == 0) {
        print(h);
        algorithms.transport = h->place->transport;
        h->place->api->each_algorithm(h->place, print_algorithm, &algorithms);
    }
    hook_file_write(h->host, h->place, "perf", write_json, h);
    free(h->rows);
    free(h);
}

static const struct hd_hook_ops ops = {
    .struct_size = sizeof ops,
    .open = perf_open,
    .close = perf_close,
    .end = perf_end,
};

static const struct hd_component component = {
    .struct_size = sizeof component,
    .kind = HD_KIND_HOOK,
    .name = "perf",
    .summary = "count, bytes and time of operations by group, kind and size",
    .ops = &ops,
};

HD_PLUGIN_ONE("hook-perf", "0.1.0", "Apache-2.0", component)
