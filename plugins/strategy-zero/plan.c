/* Which parameters lie together in which flat buffer, and which tensors exist for each at a stage. */
#include <string.h>

#include "zero.h"

#define BIT(axis) HD_AXIS_BIT(axis)

/* Axes whose replication zero may remove; others are settled first (tp) or on the shard (dp_replicate). */
static const uint32_t zero_axes = BIT(HD_AXIS_DP_SHARD) | BIT(HD_AXIS_CP) | BIT(HD_AXIS_EP);
static const uint32_t outer_axes = BIT(HD_AXIS_DP_REPLICATE);

struct key {
    uint32_t param, bucket, axes, minor, order;
};

static int before(const struct key *a, const struct key *b)
{
    if (a->bucket != b->bucket)
        return a->bucket < b->bucket;
    if (a->axes != b->axes)
        return a->axes < b->axes;
    if (a->minor != b->minor) /* neighbours by what must be settled first: one all_reduce a run */
        return a->minor < b->minor;
    return a->order < b->order;
}

static void sort(struct key *k, uint32_t n) /* insertion: stable, and nearly sorted already */
{
    for (uint32_t i = 1; i < n; i++)
        for (uint32_t j = i; j > 0 && before(&k[j], &k[j - 1]); j--) {
            struct key t = k[j];
            k[j] = k[j - 1];
            k[j - 1] = t;
        }
}

/* Parameters that the program uses, in the order in which their gradients are made. */
static uint32_t used_params(struct zero *z, struct key *keys)
{
    const struct hd_pass_api *api = z->api;
    uint32_t n = 0;
    for (uint32_t s = 0; s < api->n_sections(z->p); s++)
        for (uint32_t k = 0; k < api->n_instr(z->p, s); k++) {
            struct hd_pass_instr i;
            uint32_t param;
            api->instr(z->p, s, k, &i);
            param = i.op == HD_OP_ACCUM ? api->param_of(z->p, i.out[0]) : 0;
            if (!param || z->owner[param - 1])
                continue;
            z->owner[param - 1] = 1;
            keys[n] = (struct key){.param = param - 1, .order = n};
            n++;
        }
    return n;
}

/* Buckets: whole blocks, in the order of the backward pass, until the size is reached. Stage 3: a block each. */
static void assign_buckets(struct zero *z, struct key *keys, uint32_t n)
{
    int64_t bytes = 0, limit = z->stage < 3 ? z->settings.bucket : 0;
    int64_t item = (int64_t)hd_dtype_size(z->api->dtype(z->p, "grad"));
    uint32_t bucket = 0;
    for (uint32_t k = 0; k < n; k++) {
        const struct hd_pass_param *param = &z->params[keys[k].param];
        uint32_t in_zero = param->obligation & param->replicated & zero_axes;
        if (k && param->block != z->params[keys[k - 1].param].block && bytes >= limit) {
            bucket++;
            bytes = 0;
        }
        bytes += param->count * item;
        keys[k].bucket = bucket;
        keys[k].axes = in_zero;
        keys[k].minor = param->obligation & ~(in_zero | outer_axes);
    }
    /* A tied parameter's gradients arrive from two blocks, so blocks may alternate: a block stays where it began. */
    for (uint32_t k = 1; k < n; k++)
        for (uint32_t j = 0; j < k; j++)
            if (z->params[keys[j].param].block == z->params[keys[k].param].block) {
                keys[k].bucket = keys[j].bucket;
                break;
            }
}

static void make_tensors(struct zero *z, struct zero_flat *f)
{
    const struct hd_pass_api *api = z->api;
    uint32_t compute = api->dtype(z->p, "compute"), master = api->dtype(z->p, "master"), grad = api->dtype(z->p, "grad");
    uint32_t keep = HD_LIFE_PERSISTENT;
    int low = compute != master;
    if (z->stage < 3)
        f->whole = api->flat_whole(z->p, f->id, "P", compute, keep);
    if (z->stage < 2)
        f->grad = api->flat_whole(z->p, f->id, "G", grad, keep);
    if (z->stage == 0) {
        f->master = low ? api->flat_whole(z->p, f->id, "M", master, keep) : f->whole;
        f->low = low ? f->whole : 0;
        f->shard = f->grad;
        return;
    }
    f->shard = api->flat_shard(z->p, f->id, "GS", grad, keep, f->grad); /* stage 1: a window of the whole gradient */
    if (z->stage < 3) {
        hd_tensor window = api->flat_shard(z->p, f->id, "PW", compute, keep, f->whole);
        f->master = low ? api->flat_shard(z->p, f->id, "M", master, keep, 0) : window;
        f->low = low ? window : 0;
        f->home = window;
    } else {
        f->master = api->flat_shard(z->p, f->id, "M", master, keep, 0);
        f->low = low ? api->flat_shard(z->p, f->id, "PS", compute, keep, 0) : 0;
        f->home = low ? f->low : f->master;
    }
}

static void make_flat(struct zero *z, const struct key *keys, uint32_t n)
{
    struct zero_flat *f = &z->flats[z->n_flats++];
    char name[64];
    f->params = z->host->alloc(n * sizeof *f->params);
    if (!f->params)
        return;
    f->n_params = n;
    f->block = z->params[keys[0].param].block;
    f->axes = keys[0].axes;
    for (uint32_t i = 0; i < n; i++) {
        f->params[i] = keys[i].param;
        f->outer |= z->params[keys[i].param].obligation & outer_axes;
        z->owner[keys[i].param] = z->n_flats;
    }
    snprintf(name, sizeof name, "%u", z->n_flats - 1);
    f->id = z->api->flat(z->p, name, f->block, z->stage ? f->axes : 0, f->params, n, 0);
    f->ways = 1;
    for (uint32_t a = 0; a < HD_AXIS_COUNT; a++)
        if (f->axes & BIT(a))
            f->ways *= z->api->axis_size(z->p, a);
    make_tensors(z, f);
    z->api->flat_role(z->p, f->id, HD_FLAT_WHOLE, f->whole);
    z->api->flat_role(z->p, f->id, HD_FLAT_MASTER, f->master);
    z->api->flat_role(z->p, f->id, HD_FLAT_GRAD, f->grad);
    z->api->flat_role(z->p, f->id, HD_FLAT_SHARD, f->shard);
}

int zero_plan(struct zero *z)
{
    struct key *keys;
    uint32_t n, first = 0;
    z->n_params = z->api->n_params(z->p);
    z->params = z->host->alloc((z->n_params + 1) * sizeof *z->params);
    z->owner = z->host->alloc((z->n_params + 1) * sizeof *z->owner);
    z->flats = z->host->alloc((z->n_params + 1) * sizeof *z->flats);
    keys = z->host->alloc((z->n_params + 1) * sizeof *keys);
    if (!z->params || !z->owner || !z->flats || !keys)
        return 0;
    for (uint32_t i = 0; i < z->n_params; i++)
        z->api->param(z->p, i, &z->params[i]);
    n = used_params(z, keys);
    assign_buckets(z, keys, n);
    sort(keys, n);
    for (uint32_t k = 1; k <= n; k++)
        if (k == n || keys[k].bucket != keys[first].bucket || keys[k].axes != keys[first].axes) {
            make_flat(z, keys + first, k - first);
            if (!z->flats[z->n_flats - 1].params)
                return 0;
            first = k;
        }
    z->host->free(keys);
    return 1;
}

void zero_free(struct zero *z)
{
    for (uint32_t f = 0; z->flats && f < z->n_flats; f++)
        z->host->free(z->flats[f].params);
    z->host->free(z->flats);
    z->host->free(z->owner);
    z->host->free(z->params);
}

struct hd_pass_instr zero_instr(const struct zero *z, const struct zero_flat *f, uint32_t op, hd_tensor in, hd_tensor out,
                                uint32_t axes)
{
    struct hd_pass_instr i = {.struct_size = sizeof i, .op = op, .block = f->block, .phase = HD_PHASE_O, .axes = axes,
                              .redop = HD_SUM};
    (void)z;
    if (in)
        i.in[i.n_in++] = in;
    if (out)
        i.out[i.n_out++] = out;
    return i;
}
