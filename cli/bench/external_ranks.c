/* A bench among ranks that another launcher started, on one machine or several: nothing is shared but the store. */
#include <stdlib.h>

#include "cli/bench/rank.h"
#include "runtime/comm/hierarchical.h"
#include "runtime/rendezvous/host_store.h"
#include "runtime/rendezvous/store.h"

int32_t hd__bench_gather(struct hd__bench_rank *b)
{
    double deadline = hd__now() + b->bench->timeout;
    char key[64];
    int32_t code = HD_OK;
    snprintf(key, sizeof key, "bench/board/%d", b->rank);
    if (!b->bench->among)
        return HD_OK;
    if (b->rank)
        return hd__store_put(b->store, key, &b->boards[b->rank], sizeof *b->boards, b->err);
    for (int32_t r = 1; r < b->bench->ranks && code == HD_OK; r++) {
        size_t bytes = sizeof *b->boards;
        snprintf(key, sizeof key, "bench/board/%d", r);
        code = hd__store_get(b->store, key, &b->boards[r], &bytes, deadline, b->err);
        if (code == HD_OK)
            code = hd__store_remove(b->store, key, b->err);
    }
    return code;
}

/* Where every rank's machine begins: the first rank on it. */
static int32_t find_machines(const struct hd__bench *bench, struct hd_store *store, int32_t *firsts, struct hd_error *err)
{
    int32_t first = bench->among->rank - bench->among->local_rank, code;
    double deadline = hd__now() + bench->timeout;
    char key[64];
    snprintf(key, sizeof key, "bench/first/%d/%d", bench->among->runs, bench->among->rank);
    code = hd__store_put(store, key, &first, sizeof first, err);
    for (int32_t r = 0; r < bench->ranks && code == HD_OK; r++) {
        size_t bytes = sizeof *firsts;
        snprintf(key, sizeof key, "bench/first/%d/%d", bench->among->runs, r);
        code = hd__store_get(store, key, &firsts[r], &bytes, deadline, err);
        if (code == HD_OK && (firsts[r] < 0 || firsts[r] > r))
            code = hd_fail(err, HD_E_INVALID, "the launcher says that rank %d is the %d-th on its machine", r, r - firsts[r]);
    }
    return code;
}

int32_t hd__bench_open_inside(const struct hd__bench *bench, const struct hd_world *world, struct hd__bench_inside *in,
                              struct hd__comm *both, struct hd_error *err)
{
    int32_t *firsts = hd__alloc((size_t)world->size * sizeof *firsts);
    struct hd__comm inside = {.tuning = both->tuning}, across = *both;
    int32_t code = find_machines(bench, world->store, firsts, err);
    if (code == HD_OK) {
        in->ranks = hd__alloc((size_t)world->size * sizeof *in->ranks);
        struct hd_world ours = hd__levels_inside(world, firsts, in->ranks);
        snprintf(in->instance, sizeof in->instance, "comm/bench/%d/inside/%d", bench->among->runs, firsts[world->rank]);
        ours.instance = in->instance;
        code = hd__comm_open(&bench->inside->ops.comm, hd__comm_host(), bench->inside_settings, &ours, &inside, err);
    }
    if (code == HD_OK)
        hd__levels_create(&across, &inside, world, firsts, both);
    else
        hd__comm_close(both);
    free(firsts);
    return code;
}

int32_t hd__bench_run_among(const struct hd__bench *bench, void (*row)(void *user, const struct hd__bench_row *row), void *user,
                            struct hd_error *err)
{
    struct hd__bench_board *boards = hd__alloc((size_t)bench->ranks * sizeof *boards);
    struct hd__bench_sink sink = {.out = -1, .row = row, .user = user};
    int32_t code;
    hd__bench_pin(bench->among->local_rank);
    code = hd__bench_rank(bench, bench->among->rank, bench->among->store, boards, &sink, err);
    bench->among->runs++;
    free(boards);
    return code;
}
