/* Which parameters lie together in which flat buffer, and which tensors exist for each at a stage. */
#include <string.h>

#include "heddle/optimizer.h"
#include "internal.h"

#define SMALLEST 8 /* a bucket of the ends: this part of the option `bucket` */

struct key {
    uint32_t param, bucket, axes, outer, minor, order;
    uint32_t begins; /* where its first gradient is made, from the program's end */
    uint32_t matrix; /* travels as a product */
    uint32_t small;  /* stays whole at stage 3 */
    uint32_t group;  /* the optimizer's: a flat has parameters of one */
    uint32_t tied;   /* param + 1, used by several stages or in parts: a flat of its own, alike on all stages */
    int32_t chunk;   /* of its last gradient: a bucket does not span chunks */
};

static int before(const struct key *a, const struct key *b)
{
    if (a->bucket != b->bucket)
        return a->bucket < b->bucket;
    if (a->axes != b->axes)
        return a->axes < b->axes;
    if (a->outer != b->outer)
        return a->outer < b->outer;
    if (a->tied != b->tied)
        return a->tied < b->tied;
    if (a->group != b->group)
        return a->group < b->group;
    if (a->matrix != b->matrix)
        return a->matrix > b->matrix;
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

static void reverse(struct key *k, uint32_t n)
{
    for (uint32_t i = 0; i < n / 2; i++) {
        struct key t = k[i];
        k[i] = k[n - 1 - i];
        k[n - 1 - i] = t;
    }
    for (uint32_t i = 0; i < n; i++)
        k[i].order = i;
}

/* Parameters that the program uses, in the order in which their gradients are complete: that of tied embeddings, which
 * the head begins, comes last. */
static uint32_t used_params(struct zero *z, struct key *keys)
{
    const struct hd_pass_api *api = z->api;
    uint32_t n = 0, at = 0;
    for (uint32_t s = api->n_sections(z->p); s-- > 0;)
        for (uint32_t k = api->n_instr(z->p, s); k-- > 0;) {
            struct hd_pass_instr i;
            uint32_t param;
            api->instr(z->p, s, k, &i);
            param = i.op == HD_OP_ACCUM ? api->param_of(z->p, i.out[0]) : 0;
            if (!param)
                continue;
            if (!z->owner[param - 1]) {
                keys[n] = (struct key){.param = param - 1, .chunk = i.chunk};
                z->owner[param - 1] = ++n;
            }
            keys[z->owner[param - 1] - 1].begins = at++;
        }
    reverse(keys, n);
    return n;
}

static uint32_t block_of(const struct zero *z, const struct key *k)
{
    return z->params[k->param].block;
}

/* Elements of a block, of one kind, still to come, and the bucket (from 1) of its first parameter. */
struct block_plan {
    int64_t left;
    uint32_t bucket, reserved;
};

/* Shall a bucket end before a block of `next` bytes? The first one is small, since nothing travels before it, and so is
 * the last one, which nothing hides; between them none grows to more bytes than all before it, or all behind it. */
static int is_full(int64_t bytes, int64_t next, int64_t before, int64_t behind, int64_t limit)
{
    return bytes >= limit || (bytes >= limit / SMALLEST && (bytes + next > before || bytes + next > behind - next));
}

/* Buckets: whole blocks, in the order of the backward pass, until the size is reached. Numbers go on from `bucket`. */
static uint32_t fill_buckets(struct zero *z, struct key *keys, uint32_t n, uint32_t small, uint32_t bucket,
                             struct block_plan *blocks)
{
    int gathered = z->stage == 3 && !small;
    int64_t limit = gathered ? z->settings.gather_bucket : z->settings.bucket, bytes = 0, before = 0;
    int64_t item = (int64_t)hd_dtype_size(z->api->dtype(z->p, gathered ? "compute" : "grad"));
    int64_t left = 0;
    const struct key *last = NULL;
    for (uint32_t k = 0; k < n; k++)
        if (keys[k].small == small) {
            left += z->params[keys[k].param].count;
            blocks[2 * block_of(z, &keys[k]) + small].left += z->params[keys[k].param].count;
        }
    for (uint32_t k = 0; k < n; k++) {
        struct block_plan *block = &blocks[2 * block_of(z, &keys[k]) + small];
        int64_t next, behind, count = z->params[keys[k].param].count;
        if (keys[k].small != small)
            continue;
        next = gathered ? 0 : block->left * item;
        behind = gathered ? 0 : left * item;
        block->left -= count;
        left -= count;
        if (last && block_of(z, last) != block_of(z, &keys[k]) &&
            (last->chunk != keys[k].chunk ||
             (gathered ? bytes >= limit : is_full(bytes, next, before, behind, limit)))) {
            bucket++;
            before += bytes;
            bytes = 0;
        }
        bytes += count * item;
        keys[k].bucket = bucket;
        last = &keys[k];
    }
    return bucket + 1;
}

static void assign_buckets(struct zero *z, struct key *keys, uint32_t n, struct block_plan *blocks)
{
    for (uint32_t k = 0; k < n; k++) {
        const struct hd_pass_param *param = &z->params[keys[k].param];
        keys[k].axes = param->obligation & param->replicated & z->shard_axes;
        keys[k].outer = param->obligation & z->outer_axes;
        keys[k].minor = param->obligation & ~(keys[k].axes | keys[k].outer);
        keys[k].matrix = z->rank && param->rows;
        keys[k].small = z->stage == 3 && param->count < z->settings.persist_below;
        keys[k].group = param->group;
        keys[k].tied = zero_shared(param) ? keys[k].param + 1 : 0;
    }
    fill_buckets(z, keys, n, 1, fill_buckets(z, keys, n, 0, 0, blocks), blocks);
    /* A tied parameter's gradients arrive from two blocks, so blocks may alternate: a block stays where it began. */
    for (uint32_t k = 0; k < n; k++) {
        struct block_plan *block = &blocks[2 * block_of(z, &keys[k]) + keys[k].small];
        if (!block->bucket)
            block->bucket = keys[k].bucket + 1;
        keys[k].bucket = block->bucket - 1;
    }
}

/* The low-precision shard at stage 3, or the master where compute reads that itself: both are what is gathered from. */
static hd_tensor home_shard(struct zero *z, struct zero_flat *f, const char *name, uint32_t dtype)
{
    return z->api->flat_shard_in(z->p, f->id, name, dtype, (uint32_t)z->settings.offload_params);
}

/* Master weights beside what compute reads: they go where the states go. */
static hd_tensor master_shard(struct zero *z, struct zero_flat *f)
{
    return z->api->flat_shard_in(z->p, f->id, "M", z->api->dtype(z->p, "master"),
                                 (uint32_t)z->settings.offload_optimizer);
}

static void make_tensors(struct zero *z, struct zero_flat *f)
{
    const struct hd_pass_api *api = z->api;
    uint32_t compute = api->dtype(z->p, "compute"), master = api->dtype(z->p, "master"),
             grad = api->dtype(z->p, "grad");
    uint32_t keep = HD_LIFE_PERSISTENT,
             step = z->bits || z->rank ? HD_LIFE_PERSISTENT : HD_LIFE_STEP; /* codes read what lies between gradients */
    int low = compute != master;
    if (f->stage < 3)
        f->whole = api->flat_whole(z->p, f->id, "P", compute, keep);
    if (f->stage < 2)
        f->grad = api->flat_whole(z->p, f->id, "G", grad, step);
    if (f->stage == 0) {
        f->master = low ? master_shard(z, f) : f->whole; /* no axis cuts a flat of stage 0: its shard is the whole */
        f->low = low ? f->whole : 0;
        f->shard = f->grad;
        return;
    }
    f->shard = api->flat_shard(z->p, f->id, "GS", grad, step, f->grad); /* stage 1: a window of the whole gradient */
    if (f->stage < 3) {
        hd_tensor window = api->flat_shard(z->p, f->id, "PW", compute, keep, f->whole);
        f->master = low ? master_shard(z, f) : window;
        f->low = low ? window : 0;
        f->home = window;
    } else {
        f->master = low ? master_shard(z, f) : home_shard(z, f, "M", master);
        f->low = low ? home_shard(z, f, "PS", compute) : 0;
        f->home = low ? f->low : f->master;
    }
}

/* Whole parameters were dealt to the shards: they lie in another order. */
static void take_order(struct zero *z, struct zero_flat *f)
{
    struct hd_pass_flat flat;
    z->api->flat_get(z->p, f->id, &flat);
    if (flat.n_params == f->n_params)
        memcpy(f->params, flat.params, f->n_params * sizeof *f->params);
    if (f->ways > 1 && !(z->params[f->params[0]].group & HD_OPTIM_CUT)) {
        z->dealt += f->count;
        z->padded += flat.count;
    }
}

/* The largest pile times the ranks is what a flat of few matrices takes. */
static void warn_of_padding(const struct zero *z)
{
    if (2 * z->padded > 3 * z->dealt && z->api->stage(z->p) == 0)
        z->host->log(HD_LOG_WARN, "strategy-zero",
                     "whole matrices are dealt to ranks, and equal shards pad them from %.4g to %.4g million elements: "
                     "a larger strategies.zero.%s has more matrices to deal, mesh.dp: {replicate, shard} fewer ranks",
                     (double)z->dealt / 1e6, (double)z->padded / 1e6, z->stage == 3 ? "gather_bucket" : "bucket");
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
    f->outer = keys[0].outer;
    f->stage = keys[0].small ? 2 : z->stage;
    if (!f->axes && !z->settings.offload_params)
        f->stage = 0; /* where there is nothing to cut, a shard is the whole */
    for (uint32_t i = 0; i < n; i++) {
        f->params[i] = keys[i].param;
        f->count += z->params[keys[i].param].count;
        f->n_matrices += keys[i].matrix;
        f->begins = keys[i].begins > f->begins ? keys[i].begins : f->begins;
        z->owner[keys[i].param] = z->n_flats;
    }
    if (keys[0].tied) /* stages number their flats alone; what they share has one name on all of them */
        snprintf(name, sizeof name, "tied%u", keys[0].param);
    else
        snprintf(name, sizeof name, "%u", z->n_flats - 1);
    f->members = zero_tied(&z->params[keys[0].param]) ? z->params[keys[0].param].stages : 0;
    f->parts = z->params[keys[0].param].parts;
    f->id = z->api->flat(z->p, name, f->block, f->stage ? f->axes : 0, f->params, n, f->members);
    f->ways = zero_ways(z, f->axes);
    take_order(z, f);
    make_tensors(z, f);
    z->api->flat_role(z->p, f->id, HD_FLAT_WHOLE, f->whole);
    z->api->flat_role(z->p, f->id, HD_FLAT_MASTER, f->master);
    z->api->flat_role(z->p, f->id, HD_FLAT_GRAD, f->grad);
    z->api->flat_role(z->p, f->id, HD_FLAT_SHARD, f->shard);
    z->api->flat_role(z->p, f->id, HD_FLAT_LOW, f->low);
    z->api->states_in(z->p, f->id, (uint32_t)z->settings.offload_optimizer);
}

/* The flat that the backward pass needs next after those at and beyond `begins`. */
static struct zero_flat *needed_next(struct zero *z, uint32_t begins)
{
    struct zero_flat *next = NULL;
    for (uint32_t f = 0; f < z->n_flats; f++)
        if (z->flats[f].begins < begins && (!next || z->flats[f].begins > next->begins))
            next = &z->flats[f];
    return next;
}

/* Without resharding a flat stays whole between the passes; where that is more than may live, the last ones of the
 * forward pass, which the backward pass needs first. */
static void skip_reshard(struct zero *z)
{
    int64_t live = 0;
    struct zero_flat *flat = z->settings.reshard_after_forward ? NULL : needed_next(z, UINT32_MAX);
    for (; flat; flat = needed_next(z, flat->begins)) {
        if (flat->stage != 3)
            continue;
        live += flat->count;
        flat->keep = !z->settings.max_live || live <= z->settings.max_live;
    }
}

int zero_plan(struct zero *z)
{
    struct key *keys;
    struct block_plan *blocks;
    uint32_t n, first = 0, n_blocks = 1;
    if (z->settings.path)
        z->api->file_folder(z->p, z->settings.path);
    z->n_params = z->api->n_params(z->p);
    z->params = z->host->alloc((z->n_params + 1) * sizeof *z->params);
    z->owner = z->host->alloc((z->n_params + 1) * sizeof *z->owner);
    z->flats = z->host->alloc((z->n_params + 1) * sizeof *z->flats);
    keys = z->host->alloc((z->n_params + 1) * sizeof *keys);
    if (!z->params || !z->owner || !z->flats || !keys)
        return 0;
    for (uint32_t i = 0; i < z->n_params; i++) {
        z->api->param(z->p, i, &z->params[i]);
        n_blocks = z->params[i].block >= n_blocks ? z->params[i].block + 1 : n_blocks;
    }
    blocks = z->host->alloc(2 * (size_t)n_blocks * sizeof *blocks);
    if (!blocks)
        return 0;
    n = used_params(z, keys);
    assign_buckets(z, keys, n, blocks);
    z->host->free(blocks);
    sort(keys, n);
    for (uint32_t k = 1; k <= n; k++)
        if (k == n || keys[k].bucket != keys[first].bucket || keys[k].axes != keys[first].axes ||
            keys[k].outer != keys[first].outer || keys[k].tied != keys[first].tied ||
            keys[k].group != keys[first].group) {
            make_flat(z, keys + first, k - first);
            if (!z->flats[z->n_flats - 1].params)
                return 0;
            first = k;
        }
    z->host->free(keys);
    warn_of_padding(z);
    skip_reshard(z);
    return 1;
}

void zero_free(struct zero *z)
{
    for (uint32_t f = 0; z->flats && f < z->n_flats; f++) {
        z->host->free(z->flats[f].params);
        z->host->free(z->flats[f].matrices);
    }
    z->host->free(z->flats);
    z->host->free(z->owner);
    z->host->free(z->params);
}

struct hd_pass_instr zero_instr(const struct zero *z, const struct zero_flat *f, uint32_t op, hd_tensor in,
                                hd_tensor out, uint32_t axes)
{
    struct hd_pass_instr i = {
        .struct_size = sizeof i, .op = op, .block = f->block, .phase = HD_PHASE_O, .axes = axes, .redop = HD_SUM};
    if (axes && !z->settings.overlap)
        i.flags = HD_PASS_WAIT;
    if (in)
        i.in[i.n_in++] = in;
    if (out)
        i.out[i.n_out++] = out;
    return i;
}
