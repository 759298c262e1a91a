/* Gradients: accumulate into flat buffers, reduce when the last contribution of a flat is there.
 *
 * What needs the result of a reduction is put after the NEXT reduction: right behind it, its wait would stop the compute
 * stream. */
#include "zero.h"

struct tail { /* consumers of the previous reduction (stage 2, 3) */
    struct zero_flat *flat;
    hd_tensor grad, part;
};

/* Obligations that zero does not own (norms under sequence parallel: P on tp): one all_reduce a run of neighbours. */
static void settle(struct zero *z, struct zero_flat *f, hd_tensor grad, uint32_t section, uint32_t index)
{
    struct hd_pass_flat flat;
    z->api->flat_get(z->p, f->id, &flat);
    for (uint32_t i = 0; i < f->n_params;) {
        uint32_t minor = z->params[f->params[i]].obligation & ~(f->axes | f->outer), j = i + 1;
        int64_t first = flat.offset[i], end;
        while (j < f->n_params && (z->params[f->params[j]].obligation & ~(f->axes | f->outer)) == minor)
            j++;
        end = flat.offset[j - 1] + z->params[f->params[j - 1]].count;
        if (minor) {
            hd_tensor range = z->api->flat_range(z->p, f->id, grad, first, end - first);
            struct hd_pass_instr sum = zero_instr(z, f, HD_OP_ALL_REDUCE, range, range, minor);
            z->api->insert(z->p, section, index, 1, &sum);
        }
        i = j;
    }
}

static void flush(struct zero *z, struct tail *t, uint32_t section, uint32_t index)
{
    struct hd_pass_instr release, sum;
    if (!t->flat)
        return;
    release = zero_instr(z, t->flat, HD_OP_RELEASE, t->grad, 0, 0);
    sum = zero_instr(z, t->flat, HD_OP_ACCUM, t->part, t->flat->shard, 0);
    z->api->insert(z->p, section, index, 1, &release);
    z->api->insert(z->p, section, index, 1, &sum);
    t->flat = NULL;
}

/* All that follows the last contribution to a flat in this section. */
static void reduce(struct zero *z, struct zero_flat *f, hd_tensor grad, struct tail *tail, uint32_t section, uint32_t index)
{
    struct hd_pass_instr i;
    settle(z, f, grad, section, index);
    if (f->stage == 0 && (f->axes | f->outer)) {
        i = zero_instr(z, f, HD_OP_ALL_REDUCE, grad, grad, f->axes | f->outer);
        z->api->insert(z->p, section, index, 1, &i);
    } else if (f->stage == 1) {
        i = zero_instr(z, f, HD_OP_REDUCE_SCATTER, grad, f->shard, f->axes);
        z->api->insert(z->p, section, index, 1, &i);
    } else if (f->stage >= 2) {
        struct hd_pass_flat flat;
        hd_tensor part = z->api->flat_shard(z->p, f->id, "gs", z->api->dtype(z->p, "grad"), HD_LIFE_TEMP, 0);
        z->api->flat_get(z->p, f->id, &flat);
        i = zero_instr(z, f, f->axes ? HD_OP_REDUCE_SCATTER : HD_OP_COPY, grad, part, f->axes);
        z->api->insert(z->p, section, index, 1, &i);
        flush(z, tail, section, index);
        *tail = (struct tail){f, grad, part};
    }
}

/* ---- one section
 * Contributions to a flat make a group: at stages 0 and 1 all of the section; at stages 2 and 3 those of one micro-batch, which
 * go into a temporary of their own. Where a section has many micro-batches (a pipeline), groups may overlap. */

struct group {
    uint32_t flat; /* index + 1; 0: none */
    uint32_t end;  /* index + 1 of its last contribution */
    hd_tensor grad;
};

/* The parameter, index + 1, whose gradient the instruction contributes to; 0 if none that is ours. */
static uint32_t contributes(const struct zero *z, const struct hd_pass_instr *i)
{
    uint32_t param = i->op == HD_OP_ACCUM ? z->api->param_of(z->p, i->out[0]) : 0;
    return param && z->owner[param - 1] ? param : 0;
}

static struct group *group_of(const struct zero *z, struct group *groups, uint32_t param, const struct hd_pass_instr *i)
{
    uint32_t f = z->owner[param - 1] - 1, micros = z->api->micro_batches(z->p);
    uint32_t micro = z->flats[f].stage >= 2 && i->micro > 0 ? (uint32_t)i->micro : 0;
    groups[f * micros + micro].flat = f + 1;
    return &groups[f * micros + micro];
}

/* Where a group's contributions go; a temporary is cleared before the first. */
static hd_tensor gradient(struct zero *z, struct group *g, uint32_t section, uint32_t k)
{
    struct zero_flat *f = &z->flats[g->flat - 1];
    struct hd_pass_instr clear;
    if (!g->grad && f->stage >= 2) {
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
}

int zero_gradients(struct zero *z, uint32_t section, int last)
{
    uint32_t n = z->api->n_instr(z->p, section);
    struct group *groups = z->host->alloc(((size_t)z->n_flats * z->api->micro_batches(z->p) + 1) * sizeof *groups);
    struct tail tail = {0};
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
            reduce(z, &z->flats[g->flat - 1], g->grad, &tail, section, k);
    }
    if (n)
        flush(z, &tail, section, n - 1);
    z->host->free(groups);
    return 1;
}
