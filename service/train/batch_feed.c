/* Micro-batch m holds sequences base + m B .. + B, where B is the micro-batch of all data ranks together; this rank's rows of
 * it begin where its piece of dim b begins. A step is `accumulation` micro-batches, so step s begins at s data.batch.
 *
 * With exact sums (core/passes/deterministic.c) a rank has as many rows of each step, but all from one piece of it. */
#include "service/train/batch_feed.h"

#include <stdlib.h>

struct hd__feed {
    const struct hd__compiled *compiled;
    struct hd__data *data;
    struct hd__prefetch *prefetch;
    int64_t row, rows; /* of dim b on this rank */
    struct hd__positions s[2];
    int64_t base, global_rows;
    /* A pipeline's first stage reads ids only, its last labels only; where one has both, ids may be micro-batches ahead. */
    int feeds[2];         /* ids, labels: does this rank's program read them? */
    int32_t *ahead;       /* ring of [room] micro-batches of the other kind */
    int64_t room, first, waiting;
    int32_t waiting_labels;
    int32_t pieces; /* a step's part of a rank is in one piece */
};

static uint64_t number_of(void *user, uint64_t request, uint32_t row)
{
    const struct hd__feed *f = user;
    uint64_t micros = (uint64_t)f->room;
    if (f->pieces) /* exact sums: a rank's micro-batches follow one another */
        return (uint64_t)f->base + request / micros * micros * (uint64_t)f->global_rows + (uint64_t)f->row * micros +
               request % micros * (uint64_t)f->rows + row;
    return (uint64_t)f->base + request * (uint64_t)f->global_rows + (uint64_t)f->row + row;
}

/* A rank's piece of a sequence: a run of neighbours, or two where ring attention deals it out in zig-zag. */
static void positions(const struct hd_program *p, int64_t start, int64_t count, struct hd__positions run[2])
{
    int64_t n = 1;
    while (n < count && hd__position(p, start + n) == hd__position(p, start) + n)
        n++;
    run[0] = (struct hd__positions){hd__position(p, start), n};
    run[1] = (struct hd__positions){n < count ? hd__position(p, start + n) : 0, count - n};
}

static void place(struct hd__feed *f, int32_t rank)
{
    struct hd_program *p = hd__program_of(f->compiled, rank);
    const struct hd__tensor *ids = hd__tc(p, p->ids);
    int32_t coord[HD_AXIS_COUNT];
    hd__mesh_coord(&f->compiled->mesh, rank, coord);
    f->row = hd__start(p, ids, 0, coord);
    f->rows = hd__local(p, ids, 0);
    positions(p, hd__start(p, ids, 1, coord), hd__local(p, ids, 1), f->s);
    f->global_rows = p->dims.at[ids->dim[0]].extent;
}

static void find_feeds(struct hd__feed *f, int32_t rank)
{
    const struct hd_program *p = hd__program_of(f->compiled, rank);
    for (uint32_t s = 0; s < p->sections.count; s++)
        for (uint32_t k = 0; k < p->sections.at[s].code.count; k++) {
            const struct hd__instr *i = &p->sections.at[s].code.at[k];
            if (i->op == HD_OP_FEED)
                f->feeds[hd__tc(p, i->out[0])->origin == p->labels] = 1;
        }
    f->room = p->accumulation;
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
    find_feeds(f, rank);
    f->pieces = !held_out && hd__program_of(compiled, rank)->exact;
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
    free(f->ahead);
    free(f);
}

int32_t hd__feed_seek(struct hd__feed *f, int64_t sequence, struct hd_error *err)
{
    struct hd__prefetch_config config = {.data = f->data, .number = number_of, .user = f, .rows = (uint32_t)f->rows, .s = {f->s[0], f->s[1]}};
    hd__prefetch_stop(f->prefetch);
    f->prefetch = NULL;
    f->base = sequence;
    f->first = f->waiting = 0;
    if (!f->ahead && f->feeds[0] && f->feeds[1])
        f->ahead = hd__alloc((size_t)(f->room * f->rows * (f->s[0].count + f->s[1].count)) * sizeof *f->ahead);
    return hd__prefetch_start(&config, &f->prefetch, err);
}

/* The next micro-batch of one kind; the other kind of it waits for its turn. */
static int32_t next_micro(struct hd__feed *f, int32_t labels, int32_t *out, int64_t count, struct hd_error *err)
{
    const int32_t *both[2];
    int32_t rc = hd__prefetch_next(f->prefetch, &both[0], &both[1], err);
    if (rc)
        return rc;
    memcpy(out, both[labels], (size_t)count * sizeof *out);
    if (!f->feeds[!labels])
        return HD_OK;
    if (f->waiting == f->room)
        return hd_fail(err, HD_E_INTERNAL, "%s are read more than a step before %s", labels ? "labels" : "ids", labels ? "ids" : "labels");
    memcpy(f->ahead + (f->first + f->waiting++) % f->room * count, both[!labels], (size_t)count * sizeof *out);
    f->waiting_labels = !labels;
    return HD_OK;
}

int32_t hd__feed_next(void *feed, int32_t labels, int32_t *out, int64_t count, struct hd_error *err)
{
    struct hd__feed *f = feed;
    labels = labels != 0;
    if (!f->waiting || f->waiting_labels != labels)
        return next_micro(f, labels, out, count, err);
    memcpy(out, f->ahead + f->first * count, (size_t)count * sizeof *out);
    f->first = (f->first + 1) % f->room;
    f->waiting--;
    return HD_OK;
}

uint64_t hd__feed_sequences(const struct hd__feed *f)
{
    return hd__data_sequences(f->data);
}
