/* A pipeline as strategies declare it: blocks -> chunks -> stages, and each stage's actions in a step. */
#include <stdlib.h>

#include "core/passes/passes.h"
#include "core/passes/strategy_api.h"
#include "core/program/ops.h"

/* ---- queries */

int32_t hd__pass_stage(const struct hd_program *p)
{
    return p->stage;
}

uint32_t hd__pass_micro_batches(const struct hd_program *p)
{
    return (uint32_t)p->accumulation;
}

/* Ids of the blocks that compute something, in the order of the forward pass. */
static uint32_t model_blocks(const struct hd_program *p, uint16_t *ids)
{
    uint32_t n = 0;
    for (uint32_t k = 0; k < p->template.count && p->template.at[k].phase == HD__PHASE_F; k++) {
        uint32_t known = 0;
        while (known < n && ids[known] != p->template.at[k].block)
            known++;
        if (known == n)
            ids[n++] = p->template.at[k].block;
    }
    return n;
}

static uint16_t *list_blocks(const struct hd_program *p, uint32_t *n)
{
    uint16_t *ids = hd__alloc(p->blocks.count * sizeof *ids);
    *n = model_blocks(p, ids);
    return ids;
}

uint32_t hd__pass_n_blocks(const struct hd_program *p)
{
    uint32_t n;
    free(list_blocks(p, &n));
    return n;
}

static void add_costs(const struct hd_program *p, uint16_t block, struct hd_pass_block *out)
{
    for (uint32_t k = 0; k < p->template.count; k++) {
        const struct hd__instr *i = &p->template.at[k];
        uint32_t part = i->phase == HD__PHASE_F ? 0 : i->phase == HD__PHASE_W ? 2 : 1;
        if (i->block != block || hd__is_async(i))
            continue;
        out->flops[part] += hd__instr_flops(p, i);
        out->bytes[part] += hd__instr_bytes(p, i);
    }
}

void hd__pass_block(const struct hd_program *p, uint32_t index, struct hd_pass_block *out)
{
    uint32_t n;
    if (!hd__pass_args(p, __func__, "*", out))
        return;
    uint16_t *ids = list_blocks(p, &n);
    *out = (struct hd_pass_block){.struct_size = sizeof *out, .name = ""};
    if (index >= n)
        hd__pass_refuse(p, "hd_pass_api.block: block %u does not exist: the model has %u", index, n);
    else {
        out->id = ids[index];
        out->name = p->blocks.at[ids[index]];
        for (uint32_t k = 0; k < p->params.count; k++)
            if (hd__tensor_const(p, p->params.at[k].tensor)->block == ids[index]) {
                out->n_params++;
                out->params += hd__numel(p, hd__tensor_const(p, p->params.at[k].tensor));
            }
        add_costs(p, ids[index], out);
    }
    free(ids);
}

/* ---- declarations */

static int chunks_fit(struct hd_program *p, uint32_t n_chunks, const uint32_t *stage, const uint32_t *chunk,
                      uint32_t n_blocks)
{
    uint32_t stages = (uint32_t)p->mesh.size[HD_AXIS_PP];
    if (p->pipeline)
        return (int)hd__program_fail(p, HD_E_INVALID,
                                     "the model is cut into chunks already by a strategy before this one");
    if (n_chunks < stages || n_chunks > n_blocks)
        return (int)hd__program_fail(p, HD_E_INVALID,
                                     "%u chunks for %u pipeline stages and a model of %u blocks: there must be one a "
                                     "stage or more, and a block for each",
                                     n_chunks, stages, n_blocks);
    for (uint32_t c = 0; c < n_chunks; c++)
        if (stage[c] >= stages)
            return (int)hd__program_fail(p, HD_E_INVALID, "chunk %u is given to stage %u, but mesh.pp is %u", c,
                                         stage[c], stages);
    for (uint32_t b = 0; b < n_blocks; b++) {
        uint32_t before = b ? chunk[b - 1] : 0;
        if (chunk[b] < before || chunk[b] > before + (b > 0) || (b == n_blocks - 1 && chunk[b] != n_chunks - 1))
            return (int)hd__program_fail(p, HD_E_INVALID,
                                         "block %u is put into chunk %u after chunk %u: chunks follow one another, and "
                                         "each has a block",
                                         b, chunk[b], before);
    }
    return 1;
}

void hd__pass_chunks(struct hd_program *p, uint32_t n_chunks, const uint32_t *stage_of_chunk,
                     const uint32_t *chunk_of_block)
{
    struct hd__pipeline *made;
    uint32_t n;
    uint16_t *ids = list_blocks(p, &n);
    if (hd__pass_args(p, __func__, "2+**", n_chunks, stage_of_chunk, chunk_of_block) &&
        chunks_fit(p, n_chunks, stage_of_chunk, chunk_of_block, n)) {
        made = hd__arena_alloc(&p->arena, sizeof *made);
        made->n_chunks = n_chunks;
        made->n_blocks = n;
        made->stage = hd__arena_copy(&p->arena, stage_of_chunk, n_chunks * sizeof *stage_of_chunk);
        made->chunk = hd__arena_alloc(&p->arena, p->blocks.count * sizeof *made->chunk);
        made->actions = hd__arena_alloc(&p->arena, (size_t)p->mesh.size[HD_AXIS_PP] * sizeof *made->actions);
        for (uint32_t b = 0; b < n; b++)
            made->chunk[ids[b]] = chunk_of_block[b];
        p->pipeline = made;
    }
    free(ids);
}

void hd__pass_actions(struct hd_program *p, uint32_t stage, const struct hd_action *list, uint32_t n)
{
    if (!hd__pass_args(p, __func__, "2*", list))
        return;
    if (!p->pipeline || stage >= (uint32_t)p->mesh.size[HD_AXIS_PP])
        hd__program_fail(p, HD_E_INVALID, "actions for stage %u before the model was cut into chunks for it", stage);
    else
        p->pipeline->actions[stage] = (struct hd__actions){hd__arena_copy(&p->arena, list, n * sizeof *list), n};
}

/* ---- is it complete? */

struct seen { /* of one chunk */
    uint32_t count[3];
    uint32_t last_forward; /* micro-batch + 1 */
};

static const char kind_letter[] = "FBW";

static int32_t check_action(const struct hd_program *p, uint32_t stage, const struct hd_action *a, uint8_t *done,
                            struct seen *seen, struct hd_error *err)
{
    const struct hd__pipeline *pipe = p->pipeline;
    uint32_t micros = (uint32_t)p->accumulation;
    if (a->kind > HD_ACTION_W || a->chunk >= pipe->n_chunks || pipe->stage[a->chunk] != stage || a->micro >= micros)
        return hd_fail(err, HD_E_INVALID,
                       "schedule of stage %u: action kind %u of chunk %u for micro-batch %u is not this stage's: there "
                       "are %u chunks and %u micro-batches",
                       stage, a->kind, a->chunk, a->micro, pipe->n_chunks, micros);
    done += ((size_t)a->chunk * micros + a->micro) * 3;
    if (done[a->kind] || (a->kind && !done[a->kind - 1]))
        return hd_fail(err, HD_E_INVALID, "schedule of stage %u: %c of chunk %u for micro-batch %u comes %s", stage,
                       kind_letter[a->kind], a->chunk, a->micro,
                       done[a->kind]            ? "twice"
                       : a->kind == HD_ACTION_B ? "before its F"
                                                : "before its B");
    if (a->kind == HD_ACTION_F && a->micro + 1 <= seen[a->chunk].last_forward)
        return hd_fail(err, HD_E_INVALID,
                       "schedule of stage %u: F of chunk %u for micro-batch %u comes after that for %u: micro-batches "
                       "enter a chunk in their order",
                       stage, a->chunk, a->micro, seen[a->chunk].last_forward - 1);
    done[a->kind] = 1;
    seen[a->chunk].count[a->kind]++;
    if (a->kind == HD_ACTION_F)
        seen[a->chunk].last_forward = a->micro + 1;
    return HD_OK;
}

static int32_t check_stage(const struct hd_program *p, uint32_t stage, struct hd_error *err)
{
    const struct hd__pipeline *pipe = p->pipeline;
    const struct hd__actions *list = &pipe->actions[stage];
    uint32_t micros = (uint32_t)p->accumulation;
    uint8_t *done = hd__alloc((size_t)pipe->n_chunks * micros * 3);
    struct seen *seen = hd__alloc(pipe->n_chunks * sizeof *seen);
    int32_t rc = HD_OK;
    for (uint32_t k = 0; k < list->n && !rc; k++)
        rc = check_action(p, stage, &list->at[k], done, seen, err);
    for (uint32_t c = 0; c < pipe->n_chunks && !rc; c++)
        if (pipe->stage[c] == stage && (seen[c].count[0] != micros || seen[c].count[1] != micros))
            rc = hd_fail(err, HD_E_INVALID, "schedule of stage %u: chunk %u has %u F and %u B for %u micro-batches",
                         stage, c, seen[c].count[0], seen[c].count[1], micros);
    free(done);
    free(seen);
    return rc;
}

/* ---- can it run? */

struct progress {
    const struct hd__pipeline *pipe;
    uint32_t micros, depth; /* sends of a stream in flight at once; 0: any number */
    uint32_t *index;        /* by kind F or B, chunk and micro-batch: where its stage has the action */
    uint32_t *done;         /* by stage: actions that it has completed */
};

static uint32_t *index_of(const struct progress *g, uint32_t kind, uint32_t chunk, uint32_t micro)
{
    return &g->index[((size_t)kind * g->pipe->n_chunks + chunk) * g->micros + micro];
}

/* The chunk that an action sends to, or with `receives` hears from; n_chunks or more: none. */
static uint32_t neighbour(const struct hd_action *a, int receives)
{
    return a->chunk + ((a->kind == HD_ACTION_F) != receives ? 1 : UINT32_MAX);
}

/* A send in the stream's queue completes when its receive is posted: one action early. */
static int may_send(const struct progress *g, uint32_t stage, const struct hd_action *list, uint32_t at)
{
    const struct hd__pipeline *pipe = g->pipe;
    uint32_t to = neighbour(&list[at], 0), sends = 0;
    if (!g->depth || to >= pipe->n_chunks || pipe->stage[to] == stage)
        return 1;
    for (uint32_t k = at; k-- > 0;) {
        const struct hd_action *a = &list[k];
        uint32_t next = neighbour(a, 0);
        if (a->kind == list[at].kind && next < pipe->n_chunks && pipe->stage[next] == pipe->stage[to] &&
            ++sends == g->depth)
            return g->done[pipe->stage[to]] + 1 >= *index_of(g, a->kind, next, a->micro);
    }
    return 1;
}

static int may_run(const struct progress *g, uint32_t stage, const struct hd_action *list, uint32_t at)
{
    const struct hd_action *a = &list[at];
    uint32_t from = neighbour(a, 1);
    if (a->kind == HD_ACTION_W)
        return 1;
    if (from < g->pipe->n_chunks && g->done[g->pipe->stage[from]] <= *index_of(g, a->kind, from, a->micro))
        return 0;
    return may_send(g, stage, list, at);
}

static int all_run(const struct progress *g, uint32_t stages)
{
    int moved = 1, left = 1;
    memset(g->done, 0, stages * sizeof *g->done);
    while (moved) {
        moved = left = 0;
        for (uint32_t s = 0; s < stages; s++) {
            const struct hd__actions *list = &g->pipe->actions[s];
            for (; g->done[s] < list->n && may_run(g, s, list->at, g->done[s]); moved = 1)
                g->done[s]++;
            left |= g->done[s] < list->n;
        }
    }
    return !left;
}

/* The fewest sends in flight with which no stage waits for ever; all_run says yes to any larger number, too. */
static void search_depth(struct progress *g, uint32_t stages)
{
    uint32_t waits = 0, runs;
    for (g->depth = 1; !all_run(g, stages); g->depth *= 2)
        waits = g->depth;
    for (runs = g->depth; runs - waits > 1;) {
        g->depth = waits + (runs - waits) / 2;
        *(all_run(g, stages) ? &runs : &waits) = g->depth;
    }
    g->depth = runs;
}

/* 1, but for schedules of a user's own. */
static int32_t find_send_depth(struct hd_program *p, struct hd_error *err)
{
    uint32_t stages = (uint32_t)p->mesh.size[HD_AXIS_PP], micros = (uint32_t)p->accumulation;
    struct progress g = {.pipe = p->pipeline, .micros = micros};
    g.index = hd__alloc(2 * (size_t)p->pipeline->n_chunks * micros * sizeof *g.index);
    g.done = hd__alloc(stages * sizeof *g.done);
    for (uint32_t s = 0; s < stages; s++)
        for (uint32_t k = 0; k < p->pipeline->actions[s].n; k++) {
            const struct hd_action *a = &p->pipeline->actions[s].at[k];
            if (a->kind != HD_ACTION_W)
                *index_of(&g, a->kind, a->chunk, a->micro) = k;
        }
    if (!all_run(&g, stages)) /* with any number */
        hd_fail(err, HD_E_INVALID,
                "schedule: stages wait for each other for ever, however many messages are under way: order their "
                "actions so that each comes after what it needs");
    else
        search_depth(&g, stages);
    p->send_depth = g.depth;
    free(g.index);
    free(g.done);
    return g.depth ? HD_OK : err->code;
}

int32_t hd__pipeline_check(struct hd_program *p, struct hd_error *err)
{
    int32_t rc = HD_OK;
    if (!p->pipeline && p->mesh.size[HD_AXIS_PP] > 1)
        return hd_fail(err, HD_E_INVALID,
                       "mesh.pp is %d, but no strategy of the job cuts the model into stages: add one to "
                       "`strategies` that does (`heddle plugins` lists them)",
                       p->mesh.size[HD_AXIS_PP]);
    for (uint32_t s = 0; p->pipeline && s < (uint32_t)p->mesh.size[HD_AXIS_PP] && !rc; s++)
        rc = check_stage(p, s, err);
    return p->pipeline && !rc ? find_send_depth(p, err) : rc;
}
