/* Flat tensors -> runs of global tensors. */
#include "service/checkpoint/train_state.h"

#include <stdlib.h>

#include "service/checkpoint/shard_map.h"

struct collector {
    struct hd__ckpt_train_state *state;
    struct hd_program *p;
    const struct hd__flat *flat;
    const int32_t *coord;
    char *data;
    hd_tensor tensor;
    uint32_t base; /* index of the tensor of parameter 0 */
    int owned;
};

static int32_t add_run(void *user, const struct hd__ckpt_shard_run *shard)
{
    struct collector *c = user;
    int64_t item = (int64_t)hd_dtype_size(hd__tensor_const(c->p, c->tensor)->dtype);
    struct hd__ckpt_run run = {.tensor = c->base + shard->param,
                               .first = shard->first,
                               .count = shard->count,
                               .data = c->data + shard->offset * item};
    if (!c->owned || hd__ckpt_owns_shard(c->p, c->flat, shard->param, c->tensor, c->coord))
        hd__push(&c->state->runs, run);
    return HD_OK;
}

/* Every parameter, in one more group; returns the index of the first. */
static uint32_t add_group(struct hd__ckpt_train_state *state, const struct hd_program *p, const char *group,
                          uint32_t dtype)
{
    uint32_t base = state->tensors.count;
    for (uint32_t i = 0; i < p->params.count; i++) {
        const struct hd__tensor *t = hd__tensor_const(p, p->params.at[i].tensor);
        struct hd__ckpt_tensor row = {.group = group, .name = t->name, .dtype = dtype, .ndim = t->ndim};
        for (int32_t d = 0; d < t->ndim; d++)
            row.shape[d] = p->dims.at[t->dim[d]].extent;
        hd__push(&state->tensors, row);
    }
    return base;
}

static void collect_flat(struct collector *c, const struct hd__flat *flat, hd_tensor tensor, uint32_t base, void *arena)
{
    c->flat = flat;
    c->tensor = tensor;
    c->base = base;
    c->data = hd__tensor_address(c->p, tensor, c->coord, arena);
    hd__ckpt_visit_shard_runs(c->p, flat, tensor, c->coord, add_run, c);
}

/* What the optimizer works on: of every replica where ranks are apart. Its weights are the model where they are not. */
static void collect_training(struct collector *c, const char *const *state_names, int64_t replica, int64_t replicas,
                             void *arena)
{
    struct hd_program *p = c->p;
    const char *prefix = "";
    uint32_t n_states = p->flats.count ? p->flats.at[0].n_states : 0, base = 0, mine = 0;
    int own = p->flats.count && p->flats.at[0].global_copy; /* the model is not what is trained */
    for (int64_t r = 0; r < replicas; r++) {
        if (own) {
            prefix = hd__arena_format(&c->state->arena, "replica%lld-", (long long)r);
            base = add_group(c->state, p, hd__arena_format(&c->state->arena, "%smodel", prefix), p->precision.master);
        }
        if (own && r == replica)
            for (uint32_t f = 0; f < p->flats.count; f++)
                collect_flat(c, &p->flats.at[f], p->flats.at[f].master, base, arena);
        for (uint32_t s = 0; s < n_states; s++) {
            base = add_group(c->state, p, hd__arena_format(&c->state->arena, "%soptim-%s", prefix, state_names[s]),
                             p->precision.optimizer);
            mine = r == replica && !s ? base : mine;
        }
    }
    for (uint32_t f = 0; f < p->flats.count; f++)
        for (uint32_t s = 0; s < n_states; s++)
            collect_flat(c, &p->flats.at[f], p->flats.at[f].state[s], mine + s * p->params.count, arena);
}

/* A strategy's: as many groups as there are names. */
static void collect_strategy_state(struct collector *c, void *arena)
{
    for (uint32_t n = 0; n < c->p->strategy_states.count; n++) {
        const struct hd__strategy_state *kept = &c->p->strategy_states.at[n];
        const char *group = hd__arena_format(&c->state->arena, "strategy-%s", kept->name);
        uint32_t base = 0;
        while (base < c->state->tensors.count && strcmp(c->state->tensors.at[base].group, group) != 0)
            base++;
        if (base == c->state->tensors.count)
            add_group(c->state, c->p, group, hd__tensor_const(c->p, kept->tensor)->dtype);
        collect_flat(c, &c->p->flats.at[kept->flat], kept->tensor, base, arena);
    }
}

void hd__ckpt_collect_train_state(struct hd__ckpt_train_state *state, struct hd_program *p,
                                  const int32_t coord[HD_AXIS_COUNT], void *arena, const char *const *state_names,
                                  int owned, const char *weights)
{
    struct collector c = {.state = state, .p = p, .coord = coord, .owned = owned};
    int64_t replica = 0;
    uint32_t base;
    *state = (struct hd__ckpt_train_state){.n_params = p->params.count};
    for (int32_t a = 0; a < HD_AXIS_COUNT; a++)
        if (p->local_axes & HD_AXIS_BIT(a))
            replica = replica * p->mesh.size[a] + coord[a];
    base = add_group(state, p, weights ? weights : "model", p->precision.master);
    for (uint32_t f = 0; f < p->flats.count; f++) {
        const struct hd__flat *flat = &p->flats.at[f];
        collect_flat(&c, flat, flat->global_copy && !weights ? flat->global_copy : flat->master, base, arena);
    }
    if (weights)
        return;
    collect_training(&c, state_names, replica, hd__mesh_ways(&p->mesh, p->local_axes), arena);
    collect_strategy_state(&c, arena);
}

static int is_strategy_state(const struct hd_program *p, hd_tensor t)
{
    for (uint32_t n = 0; n < p->strategy_states.count; n++)
        if (p->strategy_states.at[n].tensor == t)
            return 1;
    return 0;
}

void hd__ckpt_collect_rank_state(struct hd__ckpt_train_state *state, struct hd_program *const *stages, int32_t n_stages,
                                 const int32_t coord[HD_AXIS_COUNT], void *arena)
{
    for (int32_t s = 0; s < n_stages; s++) {
        struct hd_program *p = stages[s];
        int32_t ranks = p->mesh.ranks / n_stages;
        for (uint32_t n = 0; n < p->zero_init.count; n++) {
            const struct hd__tensor *t = hd__tensor_const(p, p->zero_init.at[n]);
            struct hd__ckpt_tensor row = {.group = "strategy-ranks", .dtype = t->dtype, .ndim = 2};
            struct hd__ckpt_run run = {.tensor = state->tensors.count, .count = hd__numel(p, t)};
            if (is_strategy_state(p, p->zero_init.at[n]))
                continue;
            row.name = hd__arena_format(&state->arena, "stage%d.%s", s, t->name);
            row.shape[0] = ranks;
            row.shape[1] = run.count;
            hd__push(&state->tensors, row);
            run.first = hd__mesh_rank(&p->mesh, coord) % ranks * run.count;
            if (s == coord[HD_AXIS_PP])
                run.data = hd__tensor_address(p, p->zero_init.at[n], coord, arena);
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
