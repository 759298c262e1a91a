/* perf: how many operations of each kind and size there were, what they moved and how long they took. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "runtime/comm/algorithm_counts.h"
#include "runtime/comm/hook.h"

/* Operations of one kind, in one group, whose larger side is of up to 2^bits bytes. */
struct row {
    const char *group;
    uint32_t what, bits;
    uint64_t n, failed;
    double bytes, seconds, least, most; /* bytes: of the larger side */
};

struct perf {
    struct hd__arena arena;
    HD__ARRAY(struct row) rows;
};

static int32_t perf_open(struct hd__hook *h, struct hd_error *err)
{
    (void)err;
    h->state = hd__alloc(sizeof(struct perf));
    return HD_OK;
}

static uint32_t size_class(uint64_t bytes)
{
    return bytes > 1 ? 64 - (uint32_t)__builtin_clzll(bytes - 1) : 0;
}

static struct row *row_of(struct perf *p, const struct hd__hook_op *op, uint32_t bits)
{
    for (uint32_t i = 0; i < p->rows.count; i++) {
        struct row *r = &p->rows.at[i];
        if (r->what == op->what && r->bits == bits && !strcmp(r->group, op->group->name))
            return r;
    }
    hd__push(
        &p->rows,
        ((struct row){
            .group = hd__arena_strdup(&p->arena, op->group->name), .what = op->what, .bits = bits, .least = 1e300}));
    return &p->rows.at[p->rows.count - 1];
}

static int32_t perf_end(struct hd__hook *h, struct hd__hook_op *op, int32_t code, struct hd_error *err)
{
    double seconds = hd__now() - op->since;
    uint64_t sent, received;
    (void)err;
    hd__comm_hook_op_bytes(op, &sent, &received);
    struct row *r = row_of(h->state, op, size_class(HD__MAX(sent, received)));
    r->n++;
    r->failed += code != HD_OK;
    r->bytes += (double)HD__MAX(sent, received);
    r->seconds += seconds;
    r->least = HD__MIN(r->least, seconds);
    r->most = HD__MAX(r->most, seconds);
    return code;
}

static int by_group_and_size(const void *a, const void *b)
{
    const struct row *x = a, *y = b;
    int order = strcmp(x->group, y->group);
    if (!order)
        order =
            x->what != y->what ? (x->what > y->what) - (x->what < y->what) : (x->bits > y->bits) - (x->bits < y->bits);
    return order;
}

static void print(const struct perf *p, const char *transport)
{
    char bytes[32];
    printf("operations of rank 0 on comm-%s\n  %-16s %-14s %9s %9s %10s %10s %10s %8s\n", transport, "group",
           "operation", "up to", "calls", "least us", "mean us", "most us", "GB/s");
    for (uint32_t i = 0; i < p->rows.count; i++) {
        const struct row *r = &p->rows.at[i];
        hd__bytes_text(UINT64_C(1) << r->bits, bytes);
        printf("  %-16s %-14s %9s %9" PRIu64 " %10.1f %10.1f %10.1f %8.3f\n", r->group, hd__comm_hook_op_name(r->what),
               r->bits ? bytes : "0 B", r->n, r->least * 1e6, r->seconds / (double)r->n * 1e6, r->most * 1e6,
               r->seconds > 0 ? r->bytes / r->seconds / 1e9 : 0);
    }
}

static void print_algorithms(const struct hd__algorithm_counts *ran, const char *transport)
{
    if (!ran || !ran->rows.count)
        return;
    printf("algorithms of rank 0 over comm-%s\n  %-16s %-14s %-14s %9s\n", transport, "group", "operation", "algorithm",
           "calls");
    for (uint32_t i = 0; i < ran->rows.count; i++) {
        const struct hd__algorithm_count *r = &ran->rows.at[i];
        printf("  %-16s %-14s %-14s %9" PRIu64 "\n", r->group, hd_coll_name(r->coll), r->algorithm, r->calls);
    }
}

static void write_algorithms(FILE *f, const struct hd__algorithm_counts *ran)
{
    fputs("], \"algorithms\": [", f);
    for (uint32_t i = 0; ran && i < ran->rows.count; i++) {
        const struct hd__algorithm_count *r = &ran->rows.at[i];
        fprintf(f, "%s\n {\"group\": \"%s\", \"op\": \"%s\", \"algorithm\": \"%s\", \"calls\": %" PRIu64 "}",
                i ? "," : "", r->group, hd_coll_name(r->coll), r->algorithm, r->calls);
    }
}

static void write_json(FILE *f, const struct perf *p, const struct hd__hook *h)
{
    fprintf(f, "{\"rank\": %d, \"transport\": \"%s\", \"rows\": [", h->world.rank, h->context.transport);
    for (uint32_t i = 0; i < p->rows.count; i++) {
        const struct row *r = &p->rows.at[i];
        fprintf(f,
                "%s\n {\"group\": \"%s\", \"op\": \"%s\", \"up_to_bytes\": %" PRIu64 ", \"calls\": %" PRIu64
                ", \"failed\": %" PRIu64 ", \"bytes\": %.0f, \"seconds\": %.9f, \"least_s\": %.9f, \"most_s\": %.9f}",
                i ? "," : "", r->group, hd__comm_hook_op_name(r->what), r->bits ? UINT64_C(1) << r->bits : 0, r->n,
                r->failed, r->bytes, r->seconds, r->least, r->most);
    }
    write_algorithms(f, h->context.counts);
    fputs("\n]}\n", f);
}

static void perf_close(struct hd__hook *h)
{
    struct perf *p = h->state;
    char path[512];
    FILE *f = fopen(hd__comm_hook_output_path(h, "perf", path), "we");
    if (p->rows.count)
        qsort(p->rows.at, p->rows.count, sizeof *p->rows.at, by_group_and_size);
    if (h->world.rank == 0) {
        print(p, h->context.transport);
        print_algorithms(h->context.counts, h->context.transport);
    }
    if (f)
        write_json(f, p, h);
    if (!f || fclose(f))
        hd__log(HD_LOG_WARN, "perf", "%s: %s", path, strerror(errno));
    hd__free_array(&p->rows);
    hd__arena_free(&p->arena);
    free(p);
}

const struct hd__hook_kind hd__comm_hook_perf = {
    .name = "perf",
    .summary = "count, bytes and time of operations by group, kind and size",
    .open = perf_open,
    .end = perf_end,
    .close = perf_close,
};
