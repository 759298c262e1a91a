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
        i = zero_instr(z, f, HD_OP_REDUCE_SCATTER, grad, part, f->axes);
        z->api->insert(z->p, section, index, 1, &i);
        flush(z, tail, section, index);
        *tail = (struct tail){f, grad, part};
    }
}

/* The parameter, index + 1, whose gradient instruction k contributes to; 0 if none. */
static uint32_t contributes(const struct zero *z, uint32_t section, uint32_t k)
{
    struct hd_pass_instr i;
    z->api->instr(z->p, section, k, &i);
    return i.op == HD_OP_ACCUM ? z->api->param_of(z->p, i.out[0]) : 0;
}

/* Contributions to flat f go into its whole gradient; at stages 2 and 3 a temporary one for this micro-batch. */
static hd_tensor collect(struct zero *z, uint32_t f, uint32_t section, uint32_t last)
{
    const struct hd_pass_api *api = z->api;
    hd_tensor grad = z->flats[f].stage < 2 ? z->flats[f].grad : 0;
    for (uint32_t k = 0; k <= last; k++) {
        uint32_t param = contributes(z, section, k);
        if (!param || z->owner[param - 1] != f + 1)
            continue;
        if (!grad) {
            struct hd_pass_instr clear;
            grad = api->flat_whole(z->p, z->flats[f].id, "g", api->dtype(z->p, "grad"), HD_LIFE_TEMP);
            clear = zero_instr(z, &z->flats[f], HD_OP_FILL0, 0, grad, 0);
            api->insert(z->p, section, k, 0, &clear);
        }
        api->replace_out(z->p, section, k, 0, api->flat_view(z->p, z->flats[f].id, grad, param - 1));
    }
    return grad;
}

int zero_gradients(struct zero *z, uint32_t section, int last)
{
    uint32_t n = z->api->n_instr(z->p, section);
    uint32_t *flat_at = z->host->alloc((n + 1) * sizeof *flat_at); /* where a flat's last contribution is: its index + 1 */
    uint32_t *end = z->host->alloc((z->n_flats + 1) * sizeof *end);
    struct tail tail = {0};
    int ok = flat_at && end;
    for (uint32_t k = 0; ok && k < n; k++) {
        uint32_t param = contributes(z, section, k);
        if (param && z->owner[param - 1])
            end[z->owner[param - 1]] = k + 1;
    }
    for (uint32_t f = 1; ok && f <= z->n_flats; f++)
        if (end[f])
            flat_at[end[f] - 1] = f;
    for (uint32_t k = 0; ok && k < n; k++) { /* in the order in which they are complete: tails follow one another */
        uint32_t f = flat_at[k];
        hd_tensor grad = f ? collect(z, f - 1, section, k) : 0;
        if (f && (z->flats[f - 1].stage >= 2 || last))
            reduce(z, &z->flats[f - 1], grad, &tail, section, k);
    }
    if (ok && n)
        flush(z, &tail, section, n - 1);
    z->host->free(flat_at);
    z->host->free(end);
    return ok;
}
