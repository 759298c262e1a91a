#include "service/checkpoint/survivors.h"

#include <stdlib.h>

#include "service/checkpoint/internal.h"

/* A run that a rank holds. */
struct held {
    struct hd__ckpt_run run;
    int32_t rank, reserved;
};

typedef HD__ARRAY(struct held) held_runs;

static int by_place(const void *a, const void *b)
{
    const struct held *x = a, *y = b;
    if (x->run.tensor != y->run.tensor)
        return x->run.tensor < y->run.tensor ? -1 : 1;
    if (x->run.first != y->run.first)
        return x->run.first < y->run.first ? -1 : 1;
    return x->rank - y->rank;
}

static void add_held(held_runs *all, const struct hd__ckpt_training *from, int32_t rank)
{
    struct hd__ckpt_train_state state = {0};
    struct hd__ckpt_training of = *from;
    int32_t coord[HD_AXIS_COUNT];
    hd__mesh_coord(&from->program->mesh, rank, coord);
    of.coord = coord;
    of.program = from->stages[from->n_stages > 1 ? coord[HD_AXIS_PP] : 0];
    hd__ckpt_collect_train_state(&state, &of, 0, NULL);
    hd__ckpt_collect_rank_state(&state, &of);
    for (uint32_t i = 0; i < state.runs.count; i++) {
        struct held held = {.run = state.runs.at[i], .rank = rank};
        hd__push(all, held);
    }
    hd__ckpt_train_state_free(&state);
}

/* Ranges that nobody holds: the first in words, and how many there are. */
struct missing {
    char first[256];
    uint32_t ranges;
    int64_t bytes;
};

static void add_missing(struct missing *m, const struct hd__ckpt_tensor *t, int64_t begin, int64_t end)
{
    if (begin >= end)
        return;
    if (!m->ranges++)
        snprintf(m->first, sizeof m->first, "elements %lld to %lld of %s/%s", (long long)begin, (long long)end - 1,
                 t->group, t->name);
    m->bytes += (end - begin) * (int64_t)hd_dtype_size(t->dtype);
}

/* Ranges that several ranks hold are stored by the first of them. `stores`: by rank, gets the bytes. */
static void divide(struct hd__ckpt_train_state *state, const held_runs *all, int32_t me, struct missing *missing,
                   uint64_t *stores)
{
    uint32_t i = 0;
    for (uint32_t t = 0; t < state->tensors.count; t++) {
        const struct hd__ckpt_tensor *tensor = &state->tensors.at[t];
        int64_t at = 0, size = (int64_t)hd_dtype_size(tensor->dtype);
        for (; i < all->count && all->at[i].run.tensor == t; i++) {
            struct hd__ckpt_run run = all->at[i].run;
            int64_t end = run.first + run.count, skip = HD__MAX(0, at - run.first);
            add_missing(missing, tensor, at, run.first);
            run.first += skip;
            run.count -= skip;
            if (run.count <= 0)
                continue;
            run.data = (char *)run.data + skip * size;
            stores[all->at[i].rank] += (uint64_t)(run.count * size);
            if (all->at[i].rank == me)
                hd__push(&state->runs, run);
            at = end;
        }
        add_missing(missing, tensor, at, (int64_t)hd__ckpt_tensor_numel(tensor));
    }
}

int32_t hd__ckpt_collect_survivors(struct hd__ckpt_train_state *state, const struct hd__ckpt_training *from, int32_t me,
                                   const int32_t *ranks, uint32_t n, uint64_t *most, uint64_t *total,
                                   struct hd_error *err)
{
    struct missing missing = {0};
    uint64_t *stores = hd__alloc(((size_t)ranks[n - 1] + 1) * sizeof *stores);
    held_runs all = {0};
    char bytes[32], others[80] = "";
    hd__ckpt_collect_train_state(state, from, 0, NULL);
    hd__ckpt_collect_rank_state(state, from);
    state->runs.count = 0;
    for (uint32_t i = 0; i < n; i++)
        add_held(&all, from, ranks[i]);
    hd__sort(&all, by_place);
    divide(state, &all, me, &missing, stores);
    *most = *total = 0;
    for (uint32_t i = 0; i < n; i++) {
        *most = HD__MAX(*most, stores[ranks[i]]);
        *total += stores[ranks[i]];
    }
    free(stores);
    hd__free_array(&all);
    if (!missing.ranges)
        return HD_OK;
    hd__bytes_text((uint64_t)missing.bytes, bytes);
    if (missing.ranges > 1)
        snprintf(others, sizeof others, " and %u other ranges, %s in all", missing.ranges - 1, bytes);
    return hd_fail(err, HD_E_NOTFOUND, "%s%s", missing.first, others);
}
