/* Layers to chunks. */
#include "split.h"

#include <math.h>
#include <stdlib.h>

void pp_split_evenly(int32_t layers, int32_t chunks, int32_t *chunk_of)
{
    int32_t l = 0;
    for (int32_t c = 0; c < chunks; c++)
        for (int32_t k = 0; k < layers / chunks + (c < layers % chunks); k++)
            chunk_of[l++] = c;
}

/* ---- balanced: dynamic programming over (chunks used, layers used) */

struct table {
    const double *sum; /* of the first l weights */
    double before, after;
    int32_t layers, chunks;
    double *best;   /* [chunks + 1][layers + 1] */
    int32_t *first; /* of the last chunk, where best was found */
};

static double load(const struct table *t, int32_t chunk, int32_t from, int32_t to)
{
    return t->sum[to] - t->sum[from] + (chunk == 0 ? t->before : 0) + (chunk == t->chunks - 1 ? t->after : 0);
}

/* Each chunk has a layer. `limit` < 0: minimise the heaviest; else the sum of squares with none heavier than it. Larger
 * first chunks win ties. Returns the best value of all. */
static double solve(struct table *t, double limit)
{
    int32_t width = t->layers + 1;
    for (int32_t i = 0; i < (t->chunks + 1) * width; i++)
        t->best[i] = INFINITY;
    t->best[0] = 0;
    for (int32_t c = 1; c <= t->chunks; c++)
        for (int32_t to = c; to <= t->layers; to++)
            for (int32_t from = to - 1; from >= c - 1; from--) {
                double mine = load(t, c - 1, from, to), so_far = t->best[(c - 1) * width + from], value;
                if (limit >= 0 && mine > limit)
                    continue;
                value = limit < 0 ? fmax(so_far, mine) : so_far + mine * mine;
                if (value < t->best[c * width + to]) {
                    t->best[c * width + to] = value;
                    t->first[c * width + to] = from;
                }
            }
    return t->best[t->chunks * width + t->layers];
}

static void read_back(const struct table *t, int32_t *chunk_of)
{
    for (int32_t c = t->chunks, to = t->layers; c > 0; c--) {
        int32_t from = t->first[c * (t->layers + 1) + to];
        for (int32_t l = from; l < to; l++)
            chunk_of[l] = c - 1;
        to = from;
    }
}

int32_t pp_split_balanced(const double *weight, int32_t layers, double before, double after, int32_t chunks,
                          int32_t *chunk_of, struct hd_error *err)
{
    size_t cells = (size_t)(chunks + 1) * (size_t)(layers + 1);
    double *sum = calloc((size_t)layers + 1, sizeof *sum);
    struct table t = {.sum = sum,
                      .before = before,
                      .after = after,
                      .layers = layers,
                      .chunks = chunks,
                      .best = malloc(cells * sizeof *t.best),
                      .first = calloc(cells, sizeof *t.first)};
    int32_t rc = sum && t.best && t.first ? HD_OK : hd_fail(err, HD_E_NOMEM, "no memory to split %d layers", layers);
    if (!rc) {
        for (int32_t l = 0; l < layers; l++)
            sum[l + 1] = sum[l] + weight[l];
        solve(&t, solve(&t, -1) * (1 + 1e-12));
        read_back(&t, chunk_of);
    }
    free(sum);
    free(t.best);
    free(t.first);
    return rc;
}

int32_t pp_split_by_hand(const double *counts, int32_t n_counts, int32_t layers, int32_t chunks, int32_t *chunk_of,
                         struct hd_error *err)
{
    int64_t at = 0;
    if (n_counts != chunks)
        return hd_fail(err, HD_E_INVALID,
                       "strategies.3d.split has %d numbers, the pipeline %d chunks (mesh.pp x virtual): one number of "
                       "layers a chunk",
                       n_counts, chunks);
    for (int32_t c = 0; c < chunks; c++) {
        if (!(counts[c] >= 1) || counts[c] != floor(counts[c]) || counts[c] > layers)
            return hd_fail(err, HD_E_INVALID,
                           "strategies.3d.split[%d] = %g: each chunk has a whole number of layers, 1 to %d", c,
                           counts[c], layers);
        for (int64_t k = 0; k < (int64_t)counts[c]; k++, at++)
            if (at < layers)
                chunk_of[at] = c;
    }
    if (at != layers)
        return hd_fail(err, HD_E_INVALID,
                       "strategies.3d.split adds up to %lld layers, the model has %d: say a list that adds up to that, "
                       "or layers, which shares them evenly",
                       (long long)at, layers);
    return HD_OK;
}
