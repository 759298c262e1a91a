/* Cuts the layers evenly over the stages and lists what each stage does.
 *
 *   gpipe  all forwards, then all backwards (Huang et al., arXiv 1811.06965)
 *   1f1b   as many forwards as stages follow, then one backward for one forward (Narayanan et al., arXiv 2104.04473):
 *          the same time, activations of `stages` micro-batches instead of all */
#include "pipeline.h"

static uint32_t put(struct hd_action *list, uint32_t n, uint32_t kind, uint32_t stage, uint32_t micro)
{
    list[n] = (struct hd_action){kind, stage, micro};
    return n + 1;
}

static uint32_t gpipe(struct hd_action *list, uint32_t stage, uint32_t stages, uint32_t micros)
{
    uint32_t n = 0;
    (void)stages;
    for (uint32_t m = 0; m < micros; m++)
        n = put(list, n, HD_ACTION_F, stage, m);
    for (uint32_t m = 0; m < micros; m++)
        n = put(list, n, HD_ACTION_B, stage, m);
    return n;
}

static uint32_t one_f_one_b(struct hd_action *list, uint32_t stage, uint32_t stages, uint32_t micros)
{
    uint32_t warm = stages - stage - 1 < micros ? stages - stage - 1 : micros, n = 0;
    for (uint32_t m = 0; m < warm; m++)
        n = put(list, n, HD_ACTION_F, stage, m);
    for (uint32_t m = 0; m < micros; m++) {
        if (m + warm < micros)
            n = put(list, n, HD_ACTION_F, stage, m + warm);
        n = put(list, n, HD_ACTION_B, stage, m);
    }
    return n;
}

/* Layers evenly; what comes before the first (embedding) and after the last (head) goes with its neighbour. */
static void split(uint32_t n_blocks, uint32_t stages, uint32_t *chunk)
{
    uint32_t layers = n_blocks - 2;
    for (uint32_t b = 0; b < n_blocks; b++)
        chunk[b] = b == 0 ? 0 : b > layers ? stages - 1 : (b - 1) * stages / layers;
}

int32_t pipe_partition(const struct hd_host *host, const struct pipe_settings *s, struct hd_program *p, struct hd_error *err)
{
    static uint32_t (*const schedules[])(struct hd_action *, uint32_t, uint32_t, uint32_t) = {gpipe, one_f_one_b};
    const struct hd_pass_api *api = host->pass;
    uint32_t stages = (uint32_t)api->axis_size(p, HD_AXIS_PP), micros = api->micro_batches(p), n = api->n_blocks(p);
    uint32_t *chunk, *stage;
    struct hd_action *list;
    if (stages == 1)
        return HD_OK;
    if (n < stages + 2)
        return hd_fail(err, HD_E_INVALID, "mesh.pp = %u, but the model has %u layers: use as many stages as layers, or fewer", stages, n - 2);
    chunk = host->alloc(n * sizeof *chunk);
    stage = host->alloc(stages * sizeof *stage);
    list = host->alloc(2 * (size_t)micros * sizeof *list);
    if (!chunk || !stage || !list)
        return hd_fail(err, HD_E_NOMEM, "strategy-3d: out of memory");
    split(n, stages, chunk);
    for (uint32_t k = 0; k < stages; k++)
        stage[k] = k;
    api->chunks(p, stages, stage, chunk);
    for (uint32_t k = 0; k < stages; k++)
        api->actions(p, k, list, schedules[s->schedule](list, k, stages, micros));
    host->free(chunk);
    host->free(stage);
    host->free(list);
    return HD_OK;
}
