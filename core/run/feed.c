/* Micro-batch m holds sequences base + m B .. + B, where B is the micro-batch of all data ranks together; this rank's rows of
 * it begin where its piece of dim b begins. A step is `accumulation` micro-batches, so step s begins at s data.batch. */
#include "core/run/feed.h"

#include <stdlib.h>

struct hd__feed {
    const struct hd__compiled *compiled;
    struct hd__data *data;
    struct hd__prefetch *prefetch;
    int64_t row, rows; /* of dim b on this rank */
    int64_t s_first, s_count;
    int64_t base, global_rows;
    const int32_t *ids, *labels; /* the micro-batch that is being fed */
};

static uint64_t number_of(void *user, uint64_t request, uint32_t row)
{
    const struct hd__feed *f = user;
    return (uint64_t)f->base + request * (uint64_t)f->global_rows + (uint64_t)f->row + row;
}

static void place(struct hd__feed *f, int32_t rank)
{
    struct hd_program *p = hd__program_of(f->compiled, rank);
    const struct hd__tensor *ids = hd__tc(p, p->ids);
    int32_t coord[HD_AXIS_COUNT];
    hd__mesh_coord(&f->compiled->mesh, rank, coord);
    f->row = hd__start(p, ids, 0, coord);
    f->rows = hd__local(p, ids, 0);
    f->s_first = hd__start(p, ids, 1, coord);
    f->s_count = hd__local(p, ids, 1);
    f->global_rows = p->dims.at[ids->dim[0]].extent;
}

static const struct hd__sources *sources_of(const struct hd__job *job, int held_out)
{
    return held_out && job->val.count ? &job->val : &job->train;
}

int32_t hd__feed_open(const struct hd__compiled *compiled, int32_t rank, int held_out, struct hd__feed **feed,
                      struct hd_error *err)
{
    const struct hd__job *job = compiled->job;
    const struct hd__sources *from = sources_of(job, held_out);
    struct hd__data_source *sources = hd__alloc((from->count + 1) * sizeof *sources);
    struct hd__data_config config = {
        .sources = sources,
        .n_sources = (uint32_t)from->count,
        .format = (uint32_t)job->format,
        .token_bytes = job->token_dtype == HD__TOKEN_UINT32 ? 4 : 2,
        .mix = (int32_t)from->weighted,
        .held_out = held_out && !job->val.count,
        .shuffle = job->shuffle && !held_out,
        .val_fraction = job->val.count ? 0 : job->val_fraction,
        .seq_len = job->seq_len,
        .vocab = compiled->info.vocab,
        .seed = (uint64_t)job->seed,
    };
    struct hd__feed *f;
    int32_t rc;
    for (uint64_t i = 0; i < from->count; i++)
        sources[i] = (struct hd__data_source){from->at[i].path, from->at[i].weight};
    if (held_out && !job->val.count && job->val_fraction <= 0) {
        free(sources);
        return hd_fail(err, HD_E_NOTFOUND, "the job holds no data out: set data.val or data.val_fraction");
    }
    f = hd__alloc(sizeof *f);
    f->compiled = compiled;
    rc = hd__data_open(&config, &f->data, err);
    free(sources);
    if (rc) {
        free(f);
        return rc;
    }
    place(f, rank);
    *feed = f;
    return HD_OK;
}

int32_t hd__feed_check(const struct hd__feed *f, struct hd_error *err)
{
    return hd__data_scan(f->data, (uint64_t)f->compiled->job->check_tokens, err);
}

void hd__feed_close(struct hd__feed *f)
{
    if (!f)
        return;
    hd__prefetch_stop(f->prefetch);
    hd__data_close(f->data);
    free(f);
}

int32_t hd__feed_seek(struct hd__feed *f, int64_t sequence, struct hd_error *err)
{
    struct hd__prefetch_config config = {.data = f->data, .number = number_of, .user = f, .rows = (uint32_t)f->rows, .s_first = f->s_first, .s_count = f->s_count};
    hd__prefetch_stop(f->prefetch);
    f->prefetch = NULL;
    f->base = sequence;
    f->ids = f->labels = NULL;
    return hd__prefetch_start(&config, &f->prefetch, err);
}

int32_t hd__feed_next(void *feed, int32_t labels, int32_t *out, int64_t count, struct hd_error *err)
{
    struct hd__feed *f = feed;
    if (!labels || !f->labels) {
        int32_t rc = hd__prefetch_next(f->prefetch, &f->ids, &f->labels, err);
        if (rc)
            return rc;
    }
    memcpy(out, labels ? f->labels : f->ids, (size_t)count * sizeof *out);
    return HD_OK;
}

uint64_t hd__feed_sequences(const struct hd__feed *f)
{
    return hd__data_sequences(f->data);
}
