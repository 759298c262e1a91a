/* Flat tensors -> runs of global tensors. */
#include "core/run/state.h"

#include <stdlib.h>

#include "core/run/pieces.h"

struct collect {
    struct hd__state *state;
    struct hd_program *p;
    const struct hd__flat *flat;
    const int32_t *coord;
    char *data;
    hd_tensor tensor;
    uint32_t base; /* index of the tensor of parameter 0 */
    int owned;
};

static int32_t add_run(void *user, const struct hd__piece *piece)
{
    struct collect *c = user;
    int64_t item = (int64_t)hd_dtype_size(hd__tc(c->p, c->tensor)->dtype);
    struct hd__ckpt_run run = {.tensor = c->base + piece->param, .first = piece->first, .count = piece->count,
                               .data = c->data + piece->offset * item};
    if (!c->owned || hd__piece_owner(c->p, c->flat, piece->param, c->tensor, c->coord))
        hd__push(&c->state->runs, run);
    return HD_OK;
}

static void add_tensor(struct hd__state *state, const struct hd_program *p, uint32_t param, const char *group, uint32_t dtype)
{
    const struct hd__tensor *t = hd__tc(p, p->params.at[param].tensor);
    struct hd__ckpt_tensor row = {.group = group, .name = t->name, .dtype = dtype, .ndim = t->ndim};
    for (int32_t d = 0; d < t->ndim; d++)
        row.shape[d] = p->dims.at[t->dim[d]].extent;
    hd__push(&state->tensors, row);
}

static void collect_flat(struct collect *c, hd_tensor tensor, void *arena)
{
    c->tensor = tensor;
    c->data = hd__address(c->p, tensor, c->coord, arena);
    hd__pieces(c->p, c->flat, tensor, c->coord, add_run, c);
}

void hd__state_collect(struct hd__state *state, struct hd_program *p, const int32_t coord[HD_AXIS_COUNT], void *arena,
                       const char *const *state_names, int owned, int weights_only)
{
    struct collect c = {.state = state, .p = p, .coord = coord, .owned = owned};
    uint32_t n_states = p->flats.count && !weights_only ? p->flats.at[0].n_states : 0;
    *state = (struct hd__state){.n_params = p->params.count};
    for (uint32_t i = 0; i < p->params.count; i++)
        add_tensor(state, p, i, "model", p->precision.master);
    for (uint32_t s = 0; s < n_states; s++) {
        const char *group = hd__arena_format(&state->arena, "optim-%s", state_names[s]);
        for (uint32_t i = 0; i < p->params.count; i++)
            add_tensor(state, p, i, group, p->precision.optimizer);
    }
    for (uint32_t f = 0; f < p->flats.count; f++) {
        c.flat = &p->flats.at[f];
        c.base = 0;
        collect_flat(&c, c.flat->master, arena);
        for (uint32_t s = 0; s < n_states; s++) {
            c.base = (s + 1) * p->params.count;
            collect_flat(&c, c.flat->state[s], arena);
        }
    }
}

void hd__state_free(struct hd__state *state)
{
    hd__free_array(&state->tensors);
    hd__free_array(&state->runs);
    hd__arena_free(&state->arena);
}
