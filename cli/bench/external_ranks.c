/* A bench over ranks that another launcher started, on one machine or several: they share only the rendezvous store. */
#include <stdlib.h>

#include "cli/bench/rank.h"
#include "runtime/comm/hierarchical.h"
#include "runtime/rendezvous/host_store.h"
#include "runtime/rendezvous/store.h"

int32_t hd__bench_gather_timings(struct hd__bench_rank *b)
{
    double deadline = hd__now() + b->bench->timeout;
    char key[64];
    int32_t code = HD_OK;
    snprintf(key, sizeof key, "bench/board/%d", b->rank);
    if (!b->bench->external)
        return HD_OK;
    if (b->rank)
        return hd__store_put(b->store, key, &b->timings[b->rank], sizeof *b->timings, b->err);
    for (int32_t r = 1; r < b->bench->ranks && code == HD_OK; r++) {
        size_t bytes = sizeof *b->timings;
        snprintf(key, sizeof key, "bench/board/%d", r);
        code = hd__store_get(b->store, key, &b->timings[r], &bytes, deadline, b->err);
        if (code == HD_OK)
            code = hd__store_remove(b->store, key, b->err);
    }
    return code;
}

/* First rank of each rank's machine. */
static int32_t find_machines(const struct hd__bench *bench, struct hd_store *store, int32_t *firsts,
                             struct hd_error *err)
{
    int32_t first = bench->external->rank - bench->external->local_rank, code;
    double deadline = hd__now() + bench->timeout;
    char key[64];
    snprintf(key, sizeof key, "bench/first/%d/%d", bench->external->runs, bench->external->rank);
    code = hd__store_put(store, key, &first, sizeof first, err);
    for (int32_t r = 0; r < bench->ranks && code == HD_OK; r++) {
        size_t bytes = sizeof *firsts;
        snprintf(key, sizeof key, "bench/first/%d/%d", bench->external->runs, r);
        code = hd__store_get(store, key, &firsts[r], &bytes, deadline, err);
        if (code == HD_OK && (firsts[r] < 0 || firsts[r] > r))
            code = hd_fail(err, HD_E_INVALID, "the launcher says that rank %d is the %d-th on its machine", r,
                           r - firsts[r]);
    }
    return code;
}

int32_t hd__bench_open_hierarchical(const struct hd__bench *bench, const struct hd_world *world,
                                    struct hd__bench_intra *in, struct hd__comm *both, struct hd_error *err)
{
    int32_t *firsts = hd__alloc((size_t)world->size * sizeof *firsts);
    struct hd__comm intra = {.tuning = both->tuning}, inter = *both;
    int32_t code = find_machines(bench, world->store, firsts, err);
    if (code == HD_OK) {
        in->ranks = hd__alloc((size_t)world->size * sizeof *in->ranks);
        struct hd_world ours = hd__comm_hier_intra_world(world, firsts, in->ranks);
        snprintf(in->instance, sizeof in->instance, "comm/bench/%d/inside/%d", bench->external->runs,
                 firsts[world->rank]);
        ours.instance = in->instance;
        code =
            hd__comm_open(&bench->intra->ops.comm, hd__store_host_table(), bench->intra_settings, &ours, &intra, err);
    }
    if (code == HD_OK)
        hd__comm_hier_create(&inter, &intra, world, firsts, both);
    else
        hd__comm_close(both);
    free(firsts);
    return code;
}

int32_t hd__bench_run_external(const struct hd__bench *bench, void (*row)(void *user, const struct hd__bench_row *row),
                               void *user, struct hd_error *err)
{
    struct hd__bench_timings *timings = hd__alloc((size_t)bench->ranks * sizeof *timings);
    struct hd__bench_sink sink = {.out = -1, .row = row, .user = user};
    hd__bench_pin_rank(bench->external->local_rank);
    int32_t code = hd__bench_rank(bench, bench->external->rank, bench->external->store, timings, &sink, err);
    bench->external->runs++;
    free(timings);
    return code;
}
