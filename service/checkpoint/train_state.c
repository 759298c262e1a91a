/* Flat tensors -> runs of global tensors. */
#include "service/checkpoint/train_state.h"

#include <stdlib.h>

#include "service/checkpoint/shard_map.h"

/* Adds every parameter in another group, with its runs in the tensors of this role; HD__FLAT_ROLES: without runs.
 * Only those that have at least n_states states of the optimizer. */
static void add_group(struct hd__ckpt_train_state *state, const struct hd__ckpt_training *from, int owned,
                      const char *group, uint32_t dtype, uint32_t role, uint32_t n_states)
{
    const struct hd_program *p = from->program;
    uint32_t *row_of = hd__alloc((p->params.count + 1) * sizeof *row_of); /* + 1 */
    for (uint32_t i = 0; i < p->params.count; i++) {
        if (p->params.at[i].n_states < n_states)
            continue;
        const struct hd__tensor *t = hd__tensor_const(p, p->params.at[i].tensor);
        struct hd__ckpt_tensor row = {.group = group, .name = t->name, .dtype = dtype, .ndim = t->ndim};
        for (int32_t d = 0; d < t->ndim; d++)
            row.shape[d] = p->dims.at[t->dim[d]].used;
        hd__push(&state->tensors, row);
        row_of[i] = state->tensors.count;
    }
    for (uint32_t f = 0; f < p->flats.count && role < HD__FLAT_ROLES; f++) {
        const struct hd__flat *flat = &p->flats.at[f];
        struct hd__ckpt_shard_walk walk = {.p = p, .flat = flat, .coord = from->coord, .tensor = flat->tensor[role]};
        struct hd__ckpt_shard_run run;
        while (walk.tensor && hd__ckpt_shard_next(&walk, &run)) {
            char *data = hd__tensor_address(p, walk.tensor, from->coord, from->arena);
            struct hd__ckpt_run row = {.tensor = row_of[run.param] - 1, .first = run.first, .count = run.count};
            row.data = data + run.offset * (int64_t)hd_dtype_size(hd__tensor_const(p, walk.tensor)->dtype);
            if (row_of[run.param] && (!owned || hd__ckpt_owns_shard(p, flat, run.param, walk.tensor, from->coord)))
                hd__push(&state->runs, row);
        }
    }
    free(row_of);
}

void hd__ckpt_collect_train_state(struct hd__ckpt_train_state *state, const struct hd__ckpt_training *from, int owned,
                                  const char *weights)
{
    const struct hd_program *p = from->program;
    const struct hd__flat *first = p->flats.count ? &p->flats.at[0] : &(struct hd__flat){0};
    int local = first->tensor[HD__FLAT_GLOBAL_COPY] != 0; /* the trained weights are not the model */
    int64_t replicas = hd__mesh_ways(&p->mesh, p->independent_axes), replica = 0;
    uint32_t n_states = 0;
    const char *prefix = "";
    for (uint32_t i = 0; i < p->params.count; i++)
        n_states = HD__MAX(n_states, p->params.at[i].n_states);
    hd__arena_free(&state->arena);
    state->tensors.count = state->runs.count = 0;
    for (int32_t a = 0; a < HD_AXIS_COUNT; a++)
        if (p->independent_axes & HD_AXIS_BIT(a))
            replica = replica * p->mesh.size[a] + from->coord[a];
    add_group(state, from, owned, weights ? weights : "model", p->precision.master,
              local && !weights ? HD__FLAT_GLOBAL_COPY : HD__FLAT_MASTER, 0);
    if (weights)
        return;
    for (int64_t r = 0; r < replicas; r++) {
        if (local) {
            prefix = hd__arena_format(&state->arena, "replica%lld-", (long long)r);
            add_group(state, from, owned, hd__arena_format(&state->arena, "%smodel", prefix), p->precision.master,
                      r == replica ? HD__FLAT_MASTER : HD__FLAT_ROLES, 0);
        }
        for (uint32_t s = 0; s < n_states; s++)
            add_group(state, from, owned, hd__arena_format(&state->arena, "%soptim-%s", prefix, from->state_names[s]),
                      p->precision.optimizer, r == replica ? HD__FLAT_OPTIM + s : HD__FLAT_ROLES, s + 1);
    }
    for (uint32_t n = 0; n < p->strategy_states.count; n++) {
        uint32_t dtype = 0;
        for (uint32_t f = 0; f < p->flats.count && !dtype; f++)
            dtype = hd__tensor_const(p, p->flats.at[f].tensor[HD__FLAT_STRATEGY + n])->dtype; /* 0 for tensor 0 */
        add_group(state, from, owned, hd__arena_format(&state->arena, "strategy-%s", p->strategy_states.at[n]), dtype,
                  HD__FLAT_STRATEGY + n, 0);
    }
}

void hd__ckpt_collect_rank_state(struct hd__ckpt_train_state *state, const struct hd__ckpt_training *from)
{
    for (int32_t s = 0; s < from->n_stages; s++) {
        struct hd_program *p = from->stages[s];
        int32_t ranks = p->mesh.ranks / from->n_stages;
        for (uint32_t n = 0; n < p->facts.count; n++) {
            const struct hd__tensor *t = hd__tensor_const(p, p->facts.at[n].tensor);
            struct hd__ckpt_tensor row = {.group = "strategy-ranks", .dtype = t->dtype, .ndim = 2};
            struct hd__ckpt_run run = {.tensor = state->tensors.count, .count = hd__numel(p, t)};
            if (!(p->facts.at[n].what & HD_FACT_FEEDBACK)) /* others are in groups of their own */
                continue;
            row.name = hd__arena_format(&state->arena, "stage%d.%s", s, t->name);
            row.shape[0] = ranks;
            row.shape[1] = run.count;
            hd__push(&state->tensors, row);
            run.first = hd__mesh_rank(&p->mesh, from->coord) % ranks * run.count;
            if (s == from->coord[HD_AXIS_PP])
                run.data = hd__tensor_address(p, p->facts.at[n].tensor, from->coord, from->arena);
            if (run.data)
                hd__push(&state->runs, run);
        }
    }
}

void hd__ckpt_train_state_free(struct hd__ckpt_train_state *state)
{
    hd__free_array(&state->tensors);
    hd__free_array(&state->runs);
    hd__arena_free(&state->arena);
}
