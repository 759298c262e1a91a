/* The update: outer reductions, the global norm, the optimizer on each shard, shards back into the whole. */
#include "internal.h"

#define SLOTS 3

/* Axes over which parts of the norm lie on different ranks. Of all the model's parameters: every pipeline stage must
 * name the same. */
static uint32_t norm_axes(const struct zero *z)
{
    uint32_t axes = 0, live = z->api->live_axes(z->p);
    for (uint32_t i = 0; i < z->n_params; i++) {
        axes |= live & ~z->params[i].replicated;
        if (z->stage)
            axes |= z->params[i].obligation & z->params[i].replicated & z->shard_axes;
    }
    return axes;
}

/* Each parameter counts once: weighted by 1 / (ranks along the norm's axes that hold the same shard). */
static void add_norm(struct zero *z, struct zero_flat *f, uint32_t axes, struct hd_range *ranges)
{
    struct hd_pass_flat flat;
    struct hd_attrs attrs = {.struct_size = sizeof attrs, .ranges = ranges, .n_ranges = f->n_params};
    struct hd_pass_instr i = zero_instr(z, f, HD_OP_SUMSQ, f->shard, z->api->norm2(z->p), 0);
    z->api->flat_get(z->p, f->id, &flat);
    for (uint32_t k = 0; k < f->n_params; k++) {
        const struct hd_pass_param *param = &z->params[f->params[k]];
        double copies = 1;
        for (uint32_t a = 0; a < HD_AXIS_COUNT; a++)
            if ((axes & param->replicated & HD_AXIS_BIT(a)) && !(f->stage && (f->axes & HD_AXIS_BIT(a))))
                copies *= z->api->axis_size(z->p, a);
        if (zero_tied(param))
            copies *= __builtin_popcountll(param->stages);
        ranges[k] = (struct hd_range){flat.offset[k], param->count, 1 / copies};
    }
    i.attrs = &attrs;
    z->api->append(z->p, "update", &i);
}

static void clear_gradients(struct zero *z)
{
    for (uint32_t f = 0; f < z->n_flats; f++) {
        struct hd_pass_instr i = zero_instr(z, &z->flats[f], HD_OP_FILL0, 0,
                                            z->flats[f].stage < 2 ? z->flats[f].grad : z->flats[f].shard, 0);
        if (z->flats[f].stage < 2 || !zero_sums_once(z, &z->flats[f]))
            z->api->append(z->p, "begin", &i);
    }
}

/* After a checkpoint was loaded into the master weights: everything that compute reads. */
static void restore(struct zero *z)
{
    for (uint32_t f = 0; f < z->n_flats; f++) {
        struct zero_flat *flat = &z->flats[f];
        const uint32_t parts = HD_PART_MASTER | HD_PART_LOW;
        struct hd_pass_instr gather = zero_instr(z, flat, HD_OP_ALL_GATHER, flat->home, flat->whole, flat->axes);
        if (flat->low) {
            struct hd_pass_instr copy;
            z->api->fetch(z->p, "restore", flat->id, parts, HD_PART_MASTER, f % SLOTS);
            copy = zero_instr(z, flat, HD_OP_COPY, z->api->staged(z->p, "restore", flat->master),
                              z->api->staged(z->p, "restore", flat->low), 0);
            z->api->append(z->p, "restore", &copy);
            z->api->store(z->p, "restore", flat->id, HD_PART_LOW);
        }
        if (zero_gathers(flat))
            z->api->append(z->p, "restore", &gather);
    }
}

/* The flat that is updated as the n-th: the one that the next step needs first, so that its gather has most to hide
 * behind. */
static struct zero_flat *nth(struct zero *z, uint32_t n)
{
    if (n == 0 && z->early)
        return &z->flats[z->early - 1];
    return &z->flats[n < z->early ? n - 1 : n];
}

/* Offloaded state of a flat is copied in while the flat before it is updated, and back while the next one is: so there
 * are three slots. The first is copied in while the norm is reduced. The low-precision copy is fetched as well: a
 * skipped update writes nothing. */
static void fetch(struct zero *z, uint32_t n)
{
    const uint32_t all = HD_PART_MASTER | HD_PART_LOW | HD_PART_STATES;
    if (n < z->n_flats)
        z->api->fetch(z->p, "update", nth(z, n)->id, all, all, n % SLOTS);
}

static void update_flat(struct zero *z, uint32_t n)
{
    struct zero_flat *flat = nth(z, n);
    struct hd_pass_instr gather = zero_instr(z, flat, HD_OP_ALL_GATHER, flat->home, flat->whole, flat->axes);
    fetch(z, z->settings.overlap ? n + 1 : n);
    z->api->update(z->p, flat->id, flat->low);
    if (zero_gathers(flat) && !flat->late)
        z->api->append(z->p, "update", &gather);
}

void zero_update(struct zero *z)
{
    const uint32_t stages = HD_AXIS_BIT(HD_AXIS_PP);
    uint32_t axes = norm_axes(z);
    struct hd_range *ranges = z->host->alloc((z->n_params + 1) * sizeof *ranges);
    clear_gradients(z);
    restore(z);
    if (z->settings.overlap)
        fetch(z, 0);
    zero_reduce_outer(z);
    for (uint32_t f = 0; f < z->n_flats; f++) /* tied parameters: each stage has a part of the gradient */
        if (z->flats[f].members) {
            struct hd_pass_instr i =
                zero_instr(z, &z->flats[f], HD_OP_ALL_REDUCE, z->flats[f].shard, z->flats[f].shard, stages);
            i.members = z->flats[f].members;
            z->api->append(z->p, "update", &i);
        }
    for (uint32_t f = 0; ranges && f < z->n_flats; f++)
        add_norm(z, &z->flats[f], axes, ranges);
    axes |= z->api->axis_size(z->p, HD_AXIS_PP) > 1 ? stages : 0;
    if (axes) {
        struct hd_pass_instr i = {.struct_size = sizeof i,
                                  .op = HD_OP_ALL_REDUCE,
                                  .phase = HD_PHASE_O,
                                  .axes = axes,
                                  .redop = HD_SUM,
                                  .n_in = 1,
                                  .n_out = 1};
        i.in[0] = i.out[0] = z->api->norm2(z->p);
        i.flags = z->settings.overlap ? 0 : HD_PASS_WAIT;
        z->api->append(z->p, "update", &i);
    }
    for (uint32_t f = 0; f < z->n_flats; f++)
        update_flat(z, f);
    if (!ranges)
        z->api->fail(z->p, "strategy-zero: out of memory");
    z->host->free(ranges);
}
