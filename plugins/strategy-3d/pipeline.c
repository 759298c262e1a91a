/* From the settings to chunks and actions: schedule.h says in which order, split.h which layers. */
#include "pipeline.h"

#include <math.h>

#include "schedule.h"
#include "split.h"

struct pipe {
    const struct hd_host *host;
    const struct hd_pass_api *api;
    const struct pipe_settings *settings;
    struct hd_program *p;
    struct pp_schedule schedule;
    uint32_t *chunk_of_block, *stage_of_chunk;
    int32_t *chunk_of_layer;
    double *weight; /* by block */
    const char **name;
    struct hd_action *list;
    struct hd_error *err;
    int32_t blocks, layers; /* the first block (embedding) and the last (head) are no layers */
};

/* ---- split */

static int is_word(const struct hd_list *split, const char *word)
{
    return split->count == 1 && !strcmp(split->text[0], word);
}

static int is_file(const struct hd_list *split)
{
    size_t length = split->count == 1 ? strlen(split->text[0]) : 0;
    return length > 4 && !strcmp(split->text[0] + length - 4, ".csv");
}

/* The weight of each block: its parameters, or its estimated time in bytes that could be moved meanwhile. */
static void weigh(struct pipe *k, int by_time)
{
    for (int32_t b = 0; b < k->blocks; b++) {
        struct hd_pass_block block = {.struct_size = sizeof block};
        k->api->block(k->p, (uint32_t)b, &block);
        k->name[b] = block.name;
        k->weight[b] = by_time ? 0 : (double)block.params;
        for (int part = 0; part < 3 && by_time; part++)
            k->weight[b] += block.flops[part] / k->settings->intensity + block.bytes[part];
    }
}

static int32_t split_layers(struct pipe *k)
{
    const struct hd_list *split = &k->settings->split;
    int32_t chunks = k->schedule.chunks;
    if (is_word(split, "layers")) {
        pp_split_evenly(k->layers, chunks, k->chunk_of_layer);
        return HD_OK;
    }
    if (is_word(split, "params") || is_word(split, "time") || is_file(split)) {
        weigh(k, is_word(split, "time"));
        if (is_file(split) && pp_split_read(split->text[0], k->name, k->blocks, k->weight, k->err))
            return k->err->code;
        return pp_split_balanced(k->weight + 1, k->layers, k->weight[0], k->weight[k->blocks - 1], chunks,
                                 k->chunk_of_layer, k->err);
    }
    for (uint64_t n = 0; n < split->count; n++)
        if (isnan(split->number[n]))
            return hd_fail(k->err, HD_E_INVALID,
                           "strategies.3d.split: '%s' is not one of layers, params, time, FILE.csv, nor a list of "
                           "numbers, one a chunk",
                           split->text[n]);
    return pp_split_by_hand(split->number, (int32_t)split->count, k->layers, chunks, k->chunk_of_layer, k->err);
}

static int32_t check_layers(const struct pipe *k, int32_t stages, int64_t chunks)
{
    if (k->layers >= chunks)
        return HD_OK;
    return hd_fail(k->err, HD_E_INVALID,
                   "mesh.pp = %d with %lld chunk%s a stage needs %lld layers or more, the model has %d: mesh.pp x "
                   "virtual may be up to %d",
                   stages, (long long)(chunks / stages), chunks > stages ? "s" : "", (long long)chunks, k->layers,
                   k->layers);
}

static int32_t say_chunks(struct pipe *k)
{
    int32_t chunks = k->schedule.chunks, rc;
    if ((rc = check_layers(k, k->schedule.stages, chunks)) || (rc = split_layers(k)))
        return rc;
    for (int32_t b = 0; b < k->blocks; b++) {
        int32_t layer = b < 1 ? 0 : b > k->layers ? k->layers - 1 : b - 1;
        k->chunk_of_block[b] = (uint32_t)k->chunk_of_layer[layer];
    }
    for (int32_t c = 0; c < chunks; c++)
        k->stage_of_chunk[c] = (uint32_t)k->schedule.stage_of[c];
    k->api->chunks(k->p, (uint32_t)chunks, k->stage_of_chunk, k->chunk_of_block);
    return HD_OK;
}

/* ---- actions */

/* The core takes B as I and W as one unless the stage's list has W for that chunk: then a file that has both kinds says
 * W for each. */
static int has_w(const struct pp_list *l, int32_t chunk)
{
    for (int32_t n = 0; n < l->count; n++)
        if (l->at[n].kind == PP_W && l->at[n].chunk == chunk)
            return 1;
    return 0;
}

static void say_actions(struct pipe *k, int32_t stage)
{
    static const uint32_t kinds[] = {
        [PP_F] = HD_ACTION_F, [PP_B] = HD_ACTION_B, [PP_I] = HD_ACTION_B, [PP_W] = HD_ACTION_W};
    const struct pp_list *l = &k->schedule.stage[stage];
    uint32_t n = 0;
    for (int32_t i = 0; i < l->count; i++) {
        const struct pp_action *a = &l->at[i];
        k->list[n++] = (struct hd_action){kinds[a->kind], (uint32_t)a->chunk, (uint32_t)a->micro};
        if (a->kind == PP_B && has_w(l, a->chunk))
            k->list[n++] = (struct hd_action){HD_ACTION_W, (uint32_t)a->chunk, (uint32_t)a->micro};
    }
    k->api->actions(k->p, (uint32_t)stage, k->list, n);
}

static size_t longest(const struct pp_schedule *s)
{
    int32_t most = 0;
    for (int32_t p = 0; p < s->stages; p++)
        most = s->stage[p].count > most ? s->stage[p].count : most;
    return 2 * (size_t)most;
}

static int32_t take_memory(struct pipe *k)
{
    size_t blocks = (size_t)k->blocks + 1;
    k->chunk_of_block = k->host->alloc(blocks * sizeof *k->chunk_of_block);
    k->chunk_of_layer = k->host->alloc(blocks * sizeof *k->chunk_of_layer);
    k->weight = k->host->alloc(blocks * sizeof *k->weight);
    k->name = k->host->alloc(blocks * sizeof *k->name);
    k->stage_of_chunk = k->host->alloc((size_t)k->schedule.chunks * sizeof *k->stage_of_chunk);
    k->list = k->host->alloc(longest(&k->schedule) * sizeof *k->list);
    if (k->chunk_of_block && k->chunk_of_layer && k->weight && k->name && k->stage_of_chunk && k->list)
        return HD_OK;
    return hd_fail(k->err, HD_E_NOMEM, "strategy-3d: out of memory");
}

int32_t pipe_partition(const struct hd_host *host, const struct pipe_settings *s, struct hd_program *p,
                       struct hd_error *err)
{
    const struct hd_pass_api *api = host->pass;
    struct pipe k = {.host = host, .api = api, .settings = s, .p = p, .err = err, .blocks = (int32_t)api->n_blocks(p)};
    int32_t stages = api->axis_size(p, HD_AXIS_PP), rc;
    k.layers = k.blocks - 2;
    if (stages == 1)
        return HD_OK;
    rc = check_layers(&k, stages, stages * (s->virtual ? s->virtual : 1)); /* before so many are made */
    if (!rc)
        rc = pp_make(s->schedule, stages, (int32_t)api->micro_batches(p), (int32_t)s->virtual, &k.schedule, err);
    if (!rc)
        rc = take_memory(&k);
    if (!rc)
        rc = say_chunks(&k);
    for (int32_t stage = 0; stage < stages && !rc; stage++)
        say_actions(&k, stage);
    host->free(k.chunk_of_block);
    host->free(k.chunk_of_layer);
    host->free(k.weight);
    host->free(k.name);
    host->free(k.stage_of_chunk);
    host->free(k.list);
    pp_free(&k.schedule);
    return rc;
}
