/* Flat buffers, for strategies: parameters one after another, full or sharded, and vectors of the same size. */
#include <stdlib.h>

#include "core/passes/strategy_api.h"

/* ---- places of the parameters */

/* Elements: every parameter begins at a cache line of fp32, and where a number of the optimizer's states begins. */
static int64_t grain(const struct hd_program *p, const struct hd__flat *f)
{
    int64_t n = 16;
    for (uint32_t i = 0; i < f->n_params; i++)
        for (uint32_t s = 0; s < p->params.at[f->params[i]].n_states; s++)
            n = HD__MAX(n, p->params.at[f->params[i]].state[s].block);
    return n;
}

static int64_t aligned(int64_t n, int64_t to)
{
    return (n + to - 1) / to * to;
}

static void lay_in_order(struct hd_program *p, struct hd__flat *f, int64_t ways)
{
    int64_t to = grain(p, f);
    for (uint32_t i = 0; i < f->n_params; i++) {
        f->offset[i] = f->count;
        f->count = aligned(f->count + p->params.at[f->params[i]].optim.count, to);
    }
    f->count = aligned(f->count, to * ways);
}

struct pile {          /* what one shard gets */
    double cost, load; /* load: of its rank, by the flats before */
    int64_t count;
};

/* The cost of a parameter's update. */
static double cost(const struct hd_program *p, uint32_t param)
{
    const struct hd__param *a = &p->params.at[param];
    return a->update_flops > 0 ? a->update_flops : (double)a->optim.count;
}

/* Pipeline stages that share a flat have other flats before it, and must do the same. */
static void add_loads(const struct hd_program *p, const struct hd__flat *f, struct pile *piles)
{
    for (uint32_t n = 0; n < p->flats.count && !f->members; n++) {
        const struct hd__flat *g = &p->flats.at[n];
        for (uint32_t i = 0; i < g->n_params && g->axes == f->axes; i++)
            piles[g->offset[i] / (g->count / hd__mesh_ways(&p->mesh, g->axes))].load += cost(p, g->params[i]);
    }
}

/* None is cut: the most expensive first, to the shard that has least to do of this flat; of those, of all flats. */
static void deal(struct hd_program *p, struct hd__flat *f, uint32_t ways)
{
    struct pile *piles = hd__alloc(ways * sizeof *piles);
    uint32_t *of = hd__alloc(f->n_params * sizeof *of), *order = hd__alloc(f->n_params * sizeof *order), n = 0;
    int64_t to = grain(p, f), shard = to;
    for (uint32_t i = 0; i < f->n_params; i++) /* insertion: stable */
        for (uint32_t j = order[i] = i; j > 0 && cost(p, f->params[order[j - 1]]) < cost(p, f->params[i]); j--) {
            order[j] = order[j - 1];
            order[j - 1] = i;
        }
    add_loads(p, f, piles);
    for (uint32_t i = 0; i < f->n_params; i++) {
        uint32_t best = 0, param = f->params[order[i]];
        for (uint32_t s = 1; s < ways; s++)
            if (piles[s].cost < piles[best].cost ||
                (piles[s].cost <= piles[best].cost && piles[s].load < piles[best].load))
                best = s;
        of[order[i]] = best;
        piles[best].cost += cost(p, param);
        piles[best].count += aligned(p->params.at[param].optim.count, to);
        shard = HD__MAX(shard, piles[best].count);
    }
    memcpy(order, f->params, f->n_params * sizeof *order);
    for (uint32_t s = 0; s < ways; s++) {
        int64_t at = s * shard;
        for (uint32_t i = 0; i < f->n_params; i++)
            if (of[i] == s) {
                f->params[n] = order[i];
                f->offset[n++] = at;
                at += aligned(p->params.at[order[i]].optim.count, to);
            }
    }
    f->count = shard * ways;
    free(piles);
    free(of);
    free(order);
}

static void lay_out(struct hd_program *p, struct hd__flat *f, int64_t ways)
{
    uint32_t whole = 0;
    for (uint32_t i = 0; i < f->n_params; i++)
        whole |= p->params.at[f->params[i]].whole;
    if (whole && ways > 1)
        deal(p, f, (uint32_t)ways);
    else
        lay_in_order(p, f, ways);
    for (uint32_t i = 0; i < f->n_params; i++) {
        f->optim[i] = p->params.at[f->params[i]].optim;
        f->optim[i].first = f->offset[i];
    }
}

uint32_t hd__pass_flat(struct hd_program *p, const char *name, uint32_t block, uint32_t axes, const uint32_t *params,
                       uint32_t n, uint64_t members)
{
    struct hd__flat f = {.block = (uint16_t)block, .axes = axes, .members = members, .n_params = n};
    if (!hd__pass_args(p, __func__, "3*bA*+", name, block, axes, params, n))
        return 0;
    for (uint32_t i = 0; i < n; i++)
        if (!hd__pass_args(p, __func__, "p", params[i]))
            return 0;
    f.name = hd__arena_strdup(&p->arena, name);
    int64_t ways = hd__mesh_ways(&p->mesh, axes);
    f.params = hd__arena_copy(&p->arena, params, n * sizeof *params);
    f.offset = hd__arena_alloc(&p->arena, n * sizeof *f.offset);
    f.optim = hd__arena_alloc(&p->arena, n * sizeof *f.optim);
    lay_out(p, &f, ways);
    f.dim = hd__dim_new(p, hd__arena_format(&p->arena, "#%s", name), f.count);
    hd__push(&p->flats, f);
    return p->flats.count;
}

void hd__pass_flat_get(const struct hd_program *p, uint32_t id, struct hd_pass_flat *out)
{
    if (out)
        *out = (struct hd_pass_flat){.struct_size = sizeof *out};
    if (!hd__pass_args(p, __func__, "?f*", id, out))
        return;
    const struct hd__flat *f = &p->flats.at[id - 1];
    *out = (struct hd_pass_flat){.struct_size = sizeof *out,
                                 .block = f->block,
                                 .axes = f->axes,
                                 .members = f->members,
                                 .n_params = f->n_params,
                                 .params = f->params,
                                 .offset = f->offset,
                                 .count = f->count,
                                 .ways = hd__mesh_ways(&p->mesh, f->axes),
                                 .whole = f->tensor[HD__FLAT_FULL],
                                 .master = f->tensor[HD__FLAT_MASTER],
                                 .low = f->tensor[HD__FLAT_COMPUTE_COPY],
                                 .common = f->tensor[HD__FLAT_GLOBAL_COPY]};
}

uint32_t hd__pass_n_flats(const struct hd_program *p)
{
    return p->flats.count;
}

static struct hd__tensor flat_tensor(struct hd_program *p, const struct hd__flat *f, const char *name, uint32_t type)
{
    return (struct hd__tensor){.name = hd__arena_format(&p->arena, "%s.%s", name, f->name),
                               .ndim = 1,
                               .dtype = (uint8_t)type,
                               .role = HD__ROLE_FLAT,
                               .block = f->block,
                               .dim = {f->dim},
                               .placement.redop = HD_SUM};
}

static void along(struct hd_program *p, struct hd__tensor *t, uint32_t axes)
{
    for (int32_t axis = 0; axis < HD_AXIS_COUNT; axis++)
        if ((axes & HD_AXIS_BIT(axis)) && p->mesh.size[axis] > 1)
            t->placement.shard[0] = hd__shard_push(t->placement.shard[0], axis);
}

hd_tensor hd__tensor_new_with_buffer(struct hd_program *p, struct hd__tensor *t, uint32_t life)
{
    t->buffer = hd__buffer_new(p, t->name, (hd__tensor_bytes(p, t) + 63) & ~(int64_t)63, (uint8_t)life);
    p->buffers.at[t->buffer].block = t->block;
    return hd__tensor_new(p, t);
}

hd_tensor hd__pass_flat_whole(struct hd_program *p, uint32_t id, const char *name, uint32_t type, uint32_t life)
{
    if (!hd__pass_args(p, __func__, "3f*dl", id, name, type, life))
        return 0;
    struct hd__tensor t = flat_tensor(p, &p->flats.at[id - 1], name, type);
    return hd__tensor_new_with_buffer(p, &t, life);
}

hd_tensor hd__pass_flat_shard(struct hd_program *p, uint32_t id, const char *name, uint32_t type, uint32_t life,
                              hd_tensor inside)
{
    if (!hd__pass_args(p, __func__, "3f*dlT", id, name, type, life, inside))
        return 0;
    const struct hd__flat *f = &p->flats.at[id - 1];
    struct hd__tensor t = flat_tensor(p, f, name, type);
    if (inside && hd__tensor_const(p, inside)->dim[0] != f->dim)
        return (hd_tensor)hd__pass_refuse(p, "hd_pass_api.flat_shard: %s is no whole tensor of flat %s",
                                          hd__tensor_const(p, inside)->name, f->name);
    along(p, &t, f->axes);
    if (!inside)
        return hd__tensor_new_with_buffer(p, &t, life);
    t.dtype = hd__tensor_const(p, inside)->dtype;
    t.buffer = hd__tensor_const(p, inside)->buffer;
    t.offset = hd__tensor_const(p, inside)->offset;
    t.shard_view = 1;
    return hd__tensor_new(p, &t);
}

hd_tensor hd__pass_flat_view(struct hd_program *p, uint32_t id, hd_tensor whole, uint32_t index)
{
    uint32_t i = 0;
    if (!hd__pass_args(p, __func__, "3ftp", id, whole, index))
        return 0;
    const struct hd__flat *f = &p->flats.at[id - 1];
    struct hd__tensor t = *hd__tensor_const(p, p->params.at[index].tensor);
    const struct hd__tensor *w = hd__tensor_const(p, whole);
    while (i < f->n_params && f->params[i] != index)
        i++;
    if (i == f->n_params || w->dim[0] != f->dim)
        return (hd_tensor)hd__pass_refuse(p, "hd_pass_api.flat_view: %s does not lie in %s of flat %s", t.name, w->name,
                                          f->name);
    t.offset = w->offset + f->offset[i];
    t.name = hd__arena_format(&p->arena, "%.*s:%s", (int)strcspn(w->name, "."), w->name, t.name);
    t.origin = p->params.at[index].tensor;
    t.role = HD__ROLE_FLAT;
    t.dtype = w->dtype;
    t.buffer = w->buffer;
    return hd__tensor_new(p, &t);
}

hd_tensor hd__pass_flat_range(struct hd_program *p, uint32_t id, hd_tensor whole, int64_t first, int64_t n)
{
    char name[96];
    if (!hd__pass_args(p, __func__, "3ft", id, whole))
        return 0;
    const struct hd__flat *f = &p->flats.at[id - 1];
    struct hd__tensor t = *hd__tensor_const(p, whole);
    if (first < 0 || n < 1 || n > hd__numel(p, &t) - first)
        return (hd_tensor)hd__pass_refuse(p, "hd_pass_api.flat_range: elements %lld to %lld do not lie in %s",
                                          (long long)first, (long long)(first + n), t.name);
    snprintf(name, sizeof name, "#%s[%lld:%lld]", f->name, (long long)first, (long long)(first + n));
    t.dim[0] = hd__dim_new(p, name, n);
    t.name = hd__arena_format(&p->arena, "%s[%lld:%lld]", t.name, (long long)first, (long long)(first + n));
    t.offset += first;
    t.origin = 0;
    return hd__tensor_new(p, &t);
}

hd_tensor hd__pass_vector(struct hd_program *p, uint32_t id, const char *name, int64_t n, uint32_t type, uint32_t axes,
                          uint32_t life)
{
    if (!hd__pass_args(p, __func__, "3f*dAl", id, name, type, axes, life))
        return 0;
    if (n < 1 || n % hd__mesh_ways(&p->mesh, axes))
        return (hd_tensor)hd__pass_refuse(p,
                                          "hd_pass_api.vector: %s of %lld elements is not cut into %lld equal shards",
                                          name, (long long)n, (long long)hd__mesh_ways(&p->mesh, axes));
    struct hd__tensor t = flat_tensor(p, &p->flats.at[id - 1], name, type);
    t.dim[0] = hd__dim_new(p, hd__arena_format(&p->arena, "#%s", t.name), n);
    along(p, &t, axes);
    return hd__tensor_new_with_buffer(p, &t, life);
}

hd_tensor hd__pass_vector_like(struct hd_program *p, const char *name, hd_tensor like, uint32_t axes, uint32_t life)
{
    if (!hd__pass_args(p, __func__, "3*tAl", name, like, axes, life))
        return 0;
    struct hd__tensor t = *hd__tensor_const(p, like);
    t.name = hd__arena_format(&p->arena, "%s%s", name, strchr(t.name, '.') ? strchr(t.name, '.') : "");
    t.offset = 0;
    t.shard_view = 0;
    memset(t.placement.shard, 0, sizeof t.placement.shard);
    along(p, &t, axes);
    return hd__tensor_new_with_buffer(p, &t, life);
}

void hd__pass_flat_role(struct hd_program *p, uint32_t id, uint32_t role, hd_tensor t)
{
    static const uint8_t roles[] = {HD__FLAT_FULL,  HD__FLAT_MASTER,       HD__FLAT_GRAD,
                                    HD__FLAT_SHARD, HD__FLAT_COMPUTE_COPY, HD__FLAT_GLOBAL_COPY}; /* by HD_FLAT_... */
    if (!hd__pass_args(p, __func__, "3frT", id, role, t))
        return;
    p->flats.at[id - 1].tensor[roles[role]] = t;
}

void hd__tensor_set_memory(struct hd_program *p, hd_tensor t, uint32_t memory)
{
    struct hd__buffer *b = &p->buffers.at[hd__tensor_const(p, t)->buffer];
    b->memory = (uint8_t)memory;
    b->paged = memory == HD__MEM_FILE;
}

hd_tensor hd__pass_flat_shard_in(struct hd_program *p, uint32_t id, const char *name, uint32_t type, uint32_t memory)
{
    hd_tensor t =
        hd__pass_args(p, __func__, "3m", memory) ? hd__pass_flat_shard(p, id, name, type, HD__LIFE_PERSISTENT, 0) : 0;
    if (t)
        hd__tensor_set_memory(p, t, memory);
    return t;
}

void hd__pass_states_in(struct hd_program *p, uint32_t id, uint32_t memory)
{
    if (hd__pass_args(p, __func__, "3fm", id, memory))
        p->flats.at[id - 1].state_memory = memory;
}
