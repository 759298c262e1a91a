/* Flat tensors -> runs of global tensors. */
#include "service/checkpoint/train_state.h"

#include <stdlib.h>

#include "service/checkpoint/shard_map.h"

/* Makes a run of elements that of the numbers which state s has for them. 0: there are none, but those of the run
 * before: of a matrix all numbers belong to its first element. */
static int to_state(const struct hd__ckpt_shard_walk *walk, uint32_t s, struct hd__ckpt_shard_run *run)
{
    const struct hd__param *param = &walk->p->params.at[run->param];
    const struct hd_optim_state *state = &param->state[s];
    const struct hd__tensor *t = hd__tensor_const(walk->p, walk->tensor);
    int64_t size = param->optim.all_rows * param->optim.all_cols, all = hd__state_count(walk->p, param, s, 1);
    if (state->kind == HD_STATE_BLOCK) {
        run->count = (run->count + state->block - 1) / state->block;
        run->first /= state->block;
        run->offset /= state->block;
    } else if (state->kind != HD_STATE_ELEMENT) {
        if (run->offset != walk->flat->offset[walk->param] - hd__global_start(walk->p, t, 0, walk->coord))
            return 0;
        run->first =
            size ? run->first / size * size * all / hd__global_numel(walk->p, hd__tensor_const(walk->p, param->tensor))
                 : 0;
        run->count = hd__state_count(walk->p, param, s, 0);
        run->offset = walk->flat->optim[walk->param].state[s];
    }
    return 1;
}

/* Adds every parameter in another group, with its runs in the tensors of this role; HD__FLAT_ROLES: without runs.
 * n_states: it is the last of so many states of the optimizer, which some parameters do not have; 0: none. */
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
        if (n_states)
            row.dtype = p->params.at[i].state[n_states - 1].dtype;
        if (n_states && p->params.at[i].state[n_states - 1].kind != HD_STATE_ELEMENT) {
            row.ndim = 1;
            row.shape[0] = hd__state_count(p, &p->params.at[i], n_states - 1, 1);
        }
        hd__push(&state->tensors, row);
        row_of[i] = state->tensors.count;
    }
    for (uint32_t f = 0; f < p->flats.count && role < HD__FLAT_ROLES; f++) {
        const struct hd__flat *flat = &p->flats.at[f];
        hd_tensor tensor = flat->tensor[role]; /* states lie as the elements of the weights do */
        struct hd__ckpt_shard_walk walk = {.p = p,
                                           .flat = flat,
                                           .coord = from->coord,
                                           .tensor = n_states && tensor ? flat->tensor[HD__FLAT_MASTER] : tensor};
        struct hd__ckpt_shard_run run;
        while (walk.tensor && hd__ckpt_shard_next(&walk, &run)) {
            if (!row_of[run.param] || (n_states && !to_state(&walk, n_states - 1, &run)))
                continue;
            char *data = hd__tensor_address(p, tensor, from->coord, from->arena);
            struct hd__ckpt_run row = {.tensor = row_of[run.param] - 1, .first = run.first, .count = run.count};
            row.data = data + run.offset * (int64_t)hd_dtype_size(hd__tensor_const(p, tensor)->dtype);
            if ((!owned || hd__ckpt_owns_shard(p, flat, run.param, walk.tensor, from->coord)))
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
