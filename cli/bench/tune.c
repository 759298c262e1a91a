/* heddle bench --tune: measures every algorithm that the core has for an operation, in several chunk sizes, at every
 * size; the best are written to a file. */
#include <stdlib.h>

#include "cli/bench/bench.h"
#include "cli/command.h"
#include "runtime/comm/tuning_file.h"

enum { SIZES = 128, CUT = 128 << 10 /* the smallest size at which the chunk matters */ };

static const uint64_t chunks[] = {64 << 10, 256 << 10, 1 << 20};

/* The best so far at each size. */
struct best {
    uint64_t bytes;
    double time_us;
    const struct hd__algorithm *use;
    uint64_t chunk;
};

struct tune_trial {
    struct best *best;
    uint32_t n;
    const struct hd__tuning_rule *rule;
    uint64_t errors;
};

static void on_row(void *user, const struct hd__bench_row *row)
{
    struct tune_trial *t = user;
    uint32_t i = 0;
    t->errors += row->errors;
    while (i < t->n && t->best[i].bytes != row->bytes)
        i++;
    if (i == SIZES)
        return;
    if (i == t->n)
        t->best[t->n++] = (struct best){.bytes = row->bytes};
    if (!t->best[i].use || row->time_us < t->best[i].time_us) {
        t->best[i].time_us = row->time_us;
        t->best[i].use = t->rule->use;
        t->best[i].chunk = t->rule->chunk;
    }
}

static int32_t try_one(struct hd__bench *bench, struct tune_trial *t, const struct hd__algorithm *a, uint64_t chunk,
                       int any_order, struct hd_error *err)
{
    struct hd__tuning tuning = {.any_order = any_order};
    struct hd__tuning_rule rule = {a->coll, INT32_MAX, UINT64_MAX, a, chunk};
    hd__push(&tuning.rules, rule);
    bench->tuning = &tuning;
    t->rule = &rule;
    int32_t rc = hd__bench_run(bench, on_row, t, err);
    bench->tuning = NULL;
    hd__free_array(&tuning.rules);
    if (!rc && t->errors)
        rc = hd_fail(err, HD_E_INTERNAL, "%s by %s gives wrong results", hd_coll_name(a->coll), a->name);
    return rc;
}

/* Adjacent sizes with the same winner become one rule; the last rule has no upper limit. */
static void add_rules(struct hd__tuning *out, const struct tune_trial *t, uint32_t coll, int32_t ranks)
{
    for (uint32_t i = 0; i < t->n; i++) {
        const struct best *b = &t->best[i];
        struct hd__tuning_rule rule = {coll, ranks, i + 1 < t->n ? b->bytes : UINT64_MAX, b->use, b->chunk};
        printf("  %-14s %12llu   %-14s %8llu %12.2f\n", hd_coll_name(coll), (unsigned long long)b->bytes, b->use->name,
               (unsigned long long)b->chunk, b->time_us);
        if (i + 1 == t->n || t->best[i + 1].use != b->use || t->best[i + 1].chunk != b->chunk)
            hd__push(&out->rules, rule);
    }
    fflush(stdout);
}

static int32_t tune_one(const struct hd__bench *asked, uint32_t op, uint32_t coll, int any_order,
                        struct hd__tuning *out, struct hd_error *err)
{
    struct best best[SIZES] = {0};
    struct tune_trial t = {.best = best};
    struct hd_comm_call call = {.coll = coll, .dtype = asked->dtype, .redop = HD_SUM, .count = 1};
    const struct hd__algorithm *a;
    int32_t rc = HD_OK, others = 0;
    for (uint32_t i = 0; (a = hd__comm_algorithm_at(i)); i++)
        others += a->coll == coll && hd__comm_algorithm_supports(a, &call, asked->ranks, any_order);
    for (uint32_t i = 0; (a = hd__comm_algorithm_at(i)) && !rc && others > 0; i++) {
        if (a->coll != coll || !hd__comm_algorithm_supports(a, &call, asked->ranks, any_order))
            continue;
        for (size_t k = 0; k < HD__COUNT(chunks) && !rc; k++) {
            struct hd__bench bench = *asked;
            bench.both = 0;
            bench.n_ops = 1;
            bench.ops[0] = op;
            if (k) /* below CUT all chunk sizes are equivalent */
                while ((double)bench.first < CUT && bench.first <= bench.last)
                    bench.first = (uint64_t)((double)bench.first * bench.factor);
            if (bench.first <= bench.last)
                rc = try_one(&bench, &t, a, chunks[k], any_order, err);
            hd__log_setup(HD_LOG_WARN, NULL); /* what a transport says of itself is known from the first trial */
        }
    }
    hd__log_setup(HD_LOG_INFO, NULL);
    if (!rc && hd__bench_is_root(asked))
        add_rules(out, &t, coll, asked->ranks);
    return rc;
}

static int refused(const struct hd__bench *bench)
{
    const struct hd__component *c = bench->component;
    if (c->ops.comm.collective)
        fprintf(stderr, "heddle bench: comm-%s has its own collectives: there is no algorithm to tune\n", c->name);
    else if (bench->in_place || bench->ranks < 2)
        fprintf(stderr, "heddle bench: --tune wants two ranks or more, out of place\n");
    else
        return 0;
    return 1;
}

int hd__bench_tune(struct hd__bench *bench, const char *path, int any_order)
{
    static const uint32_t colls[HD__BENCH_OP_COUNT] = {
#define COLL_OF(constant, value, name, coll, parts, factor) [value] = coll,
        HD__BENCH_OPS(COLL_OF)
#undef COLL_OF
    };
    struct hd__tuning out = {0};
    struct hd_error err = HD_ERROR_INIT;
    int32_t rc = HD_OK;
    if (refused(bench))
        return HD__EXIT_REFUSED;
    if (hd__bench_is_root(bench)) {
        printf("# comm-%s, %d ranks, %s: the best by size\n", bench->component->name, bench->ranks,
               hd_dtype_name(bench->dtype));
        printf("# %-14s %12s   %-14s %8s %12s\n", "op", "size", "algorithm", "chunk", "time (us)");
    }
    for (uint32_t i = 0; i < bench->n_ops && !rc; i++)
        if (colls[bench->ops[i]] && colls[bench->ops[i]] != HD_COLL_BARRIER)
            rc = tune_one(bench, bench->ops[i], colls[bench->ops[i]], any_order, &out, &err);
    if (!rc && hd__bench_is_root(bench))
        rc = hd__comm_tuning_write(path, &out, &err);
    hd__comm_tuning_free(&out);
    if (rc)
        fprintf(stderr, "heddle bench: %s\n", err.message);
    return rc ? HD__EXIT_FAILED : HD__EXIT_DONE;
}
