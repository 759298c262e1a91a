/* Gradients: accumulate into flat buffers; reduce.c when the last contribution of a flat is there. */
#include "internal.h"

/* ---- one section Contributions to a flat make a group: at stages 0 and 1 all of the section; at stages 2 and 3 those
 * of one micro-batch, which go into a temporary of their own. Where a section has many micro-batches (a pipeline),
 * groups may overlap.
 *
 * With exact sums a step has one group, or two, of the blocks that share a parameter. The one that is there first goes
 * into a temporary of its own. */

struct group {
    uint32_t flat;  /* index + 1; 0: none */
    uint32_t end;   /* index + 1 of its last contribution */
    uint32_t block; /* of a part */
    uint32_t more;  /* a part, and the other one ends later */
    hd_tensor grad;
};

/* The parameter, index + 1, whose gradient the instruction contributes to; 0 if none that is ours. */
static uint32_t contributes(const struct zero *z, const struct hd_pass_instr *i)
{
    uint32_t param = i->op == HD_OP_ACCUM ? z->api->param_of(z->p, i->out[0]) : 0;
    return param && z->owner[param - 1] ? param : 0;
}

static uint32_t group_count(const struct zero *z)
{
    uint32_t micros = z->api->micro_batches(z->p);
    return micros > 2 ? micros : 2;
}

static struct group *group_of(const struct zero *z, struct group *groups, uint32_t param, const struct hd_pass_instr *i)
{
    uint32_t f = z->owner[param - 1] - 1, n = group_count(z);
    uint32_t at = z->flats[f].stage >= 2 && i->micro > 0 ? (uint32_t)i->micro : 0;
    if (z->flats[f].parts)
        at = groups[f * n].flat && groups[f * n].block != i->block;
    groups[f * n + at].flat = f + 1;
    groups[f * n + at].block = i->block;
    return &groups[f * n + at];
}

/* The tensor that a group's contributions are added to; a temporary is cleared before the first. */
static hd_tensor gradient(struct zero *z, struct group *g, uint32_t section, uint32_t k)
{
    struct zero_flat *f = &z->flats[g->flat - 1];
    struct hd_pass_instr clear;
    if (!g->grad && (f->stage >= 2 || g->more)) {
        g->grad = z->api->flat_whole(z->p, f->id, "g", z->api->dtype(z->p, "grad"), HD_LIFE_TEMP);
        clear = zero_instr(z, f, HD_OP_FILL0, 0, g->grad, 0);
        z->api->insert(z->p, section, k, 0, &clear);
    } else if (!g->grad) {
        g->grad = f->grad;
    }
    return g->grad;
}

static void find_ends(const struct zero *z, struct group *groups, uint32_t section, uint32_t n)
{
    for (uint32_t k = 0; k < n; k++) {
        struct hd_pass_instr i;
        uint32_t param;
        z->api->instr(z->p, section, k, &i);
        if ((param = contributes(z, &i)))
            group_of(z, groups, param, &i)->end = k + 1;
    }
    for (uint32_t f = 0; f < z->n_flats; f++)
        if (z->flats[f].parts) {
            struct group *two = &groups[f * group_count(z)];
            two[two[1].end < two[0].end].more = two[1].end > 0;
        }
}

static void reduce(struct zero *z, const struct group *g, struct zero_tail *tail, uint32_t section, uint32_t k)
{
    struct zero_flat *f = &z->flats[g->flat - 1];
    if (f->parts && (g->more || f->first))
        zero_reduce_part(z, f, g->grad, (int)g->more, tail, section, k);
    else
        zero_reduce(z, f, g->grad, tail, section, k);
}

int zero_gradients(struct zero *z, uint32_t section, int last)
{
    uint32_t n = z->api->n_instr(z->p, section);
    struct group *groups = z->host->alloc(((size_t)z->n_flats * group_count(z) + 1) * sizeof *groups);
    struct zero_tail tail = {0};
    if (!groups)
        return 0;
    find_ends(z, groups, section, n);
    for (uint32_t k = 0; k < n; k++) { /* in the order in which groups are complete: tails follow one another */
        struct hd_pass_instr i;
        struct group *g;
        uint32_t param;
        z->api->instr(z->p, section, k, &i);
        if (!(param = contributes(z, &i)))
            continue;
        g = group_of(z, groups, param, &i);
        z->api->replace_out(z->p, section, k, 0,
                            z->api->flat_view(z->p, z->flats[g->flat - 1].id, gradient(z, g, section, k), param - 1));
        if (g->end == k + 1 && (z->flats[g->flat - 1].stage >= 2 || last))
            reduce(z, g, &tail, section, k);
    }
    if (n) {
        zero_flush(z, &tail, section, n - 1);
        zero_decode_rest(z, section, n - 1);
    }
    z->host->free(groups);
    return 1;
}
