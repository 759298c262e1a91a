/* Micro-batch m of a step holds its sequences m B .. + B, where B is the micro-batch of all data ranks together; this
 * rank's rows of it begin where its shard of dim b begins (core/program/micro_batches.c, with uneven shares too). Step
 * s begins at base + s data.batch. Where all micro-batches have room for more (data.pad_batch), what is behind a step's
 * last sequence stays empty.
 *
 * With exact sums (core/passes/deterministic.c) a rank has the same number of rows of each step, but contiguous
 * ones. */
#include "service/train/data/batch_feed.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>

#include "service/text/indexed.h"
#include "service/train/data/corpus.h"

struct hd__train_feed {
    const struct hd__compiled *compiled;
    struct hd__data *data;
    struct hd__data_prefetch *prefetch;
    int32_t rank;
    int64_t row, rows; /* rows of dim b on this rank */
    struct hd__data_range ranges[2];
    int64_t base;
    /* A pipeline's first stage reads ids only, its last labels only; on a rank with both, ids may be micro-batches
     * ahead. */
    int reads[2];      /* ids, labels: whether this rank's program reads them */
    int32_t *buffered; /* ring of [capacity] micro-batches of the other kind */
    int64_t capacity, first, n_buffered;
    int32_t buffered_labels;
    uint64_t positions; /* micro-batches of them that were fed */
    double waited;      /* seconds, since it was asked */
    int32_t contiguous; /* a rank's rows of a step are contiguous */
    int32_t counts;     /* this rank counts the labels of its rows: one of those that read the same */
    const char *key;    /* of the files, in the job */
};

static uint64_t sequence_number(void *user, uint64_t request, uint32_t row)
{
    const struct hd__train_feed *f = user;
    uint64_t micros = (uint64_t)f->capacity, micro = request % micros, batch = (uint64_t)f->compiled->job->batch;
    uint64_t at = row + (f->contiguous ? (uint64_t)f->row * micros + micro * (uint64_t)f->rows
                                       : (uint64_t)hd__first_sequence(hd__compiled_program(f->compiled, f->rank),
                                                                      f->rank, (int64_t)micro));
    return at < batch ? (uint64_t)f->base + request / micros * batch + at : HD__NO_SEQUENCE;
}

int64_t hd__train_feed_sequence(struct hd__train_feed *f, int64_t micro, int64_t row)
{
    uint64_t number = sequence_number(f, (uint64_t)micro, (uint32_t)row);
    return number == HD__NO_SEQUENCE ? -1 : (int64_t)number - f->base;
}

/* A rank's shard of a sequence: one range, or two where ring attention distributes it in zig-zag. */
static void split_ranges(const struct hd_program *p, int64_t start, int64_t count, struct hd__data_range run[2])
{
    int64_t n = 1;
    while (n < count && hd__sequence_position(p, start + n) == hd__sequence_position(p, start) + n)
        n++;
    run[0] = (struct hd__data_range){hd__sequence_position(p, start), n};
    run[1] = (struct hd__data_range){n < count ? hd__sequence_position(p, start + n) : 0, count - n};
}

static void locate_rows(struct hd__train_feed *f, int32_t rank)
{
    struct hd_program *p = hd__compiled_program(f->compiled, rank);
    const struct hd__tensor *ids = hd__tensor_const(p, p->ids);
    int32_t coord[HD_AXIS_COUNT];
    hd__mesh_coord(&f->compiled->mesh, rank, coord);
    f->row = hd__global_start(p, ids, 0, coord);
    f->rows = hd__local_extent(p, ids, 0);
    split_ranges(p, hd__global_start(p, ids, 1, coord), hd__local_extent(p, ids, 1), f->ranges);
    f->counts =
        hd__compiled_counts_labels(f->compiled) && !coord[HD_AXIS_PP] && !coord[HD_AXIS_TP] && !coord[HD_AXIS_TQ];
}

/* The files of a part, and the key that names them. */
static const struct hd__sources *part_sources(struct hd__job *job, int32_t part, const char **key)
{
    if (part == HD__FEED_TEST) {
        *key = "data.test";
        return &job->test;
    }
    if (part >= HD__FEED_VAL && job->n_val_sets) {
        const struct hd__val_set *set = &job->val_sets[part - HD__FEED_VAL];
        *key = hd__arena_format(&job->arena, "data.val.%s", set->name);
        return &set->sources;
    }
    int val = part >= HD__FEED_VAL && job->val.count;
    *key = val ? "data.val" : "data.train";
    return val ? &job->val : &job->train;
}

/* Without data.val, what is evaluated on is the end of data.train. */
static int is_tail(const struct hd__job *job, int32_t part)
{
    return part >= HD__FEED_VAL && !job->val.count;
}

static int32_t check_part(const struct hd__job *job, int32_t part, struct hd_error *err)
{
    if (part == HD__FEED_TEST && !job->test.count)
        return hd_fail(err, HD_E_NOTFOUND, "the job has no test data: set data.test");
    if (is_tail(job, part) && job->val_fraction <= 0)
        return hd_fail(err, HD_E_NOTFOUND, "the job has no held-out data: set data.val or data.val_fraction");
    return HD_OK;
}

/* Places the error in the job file; failures of the disk stay what they are. */
static int32_t fail_data(struct hd__job *job, const char *key, struct hd_error *err)
{
    int32_t code = err->code == HD_E_IO || err->code == HD_E_NOMEM ? err->code : HD_E_INVALID;
    hd__job_fail(job, key, err, "%s: %s", key, err->message);
    return err->code = code;
}

int32_t hd__train_feed_open(const struct hd__compiled *compiled, int32_t rank, int32_t part,
                            struct hd__train_feed **feed, struct hd_error *err)
{
    struct hd__job *job = compiled->job;
    const struct hd_program *p = hd__compiled_program(compiled, rank);
    const char *key;
    const struct hd__sources *from = part_sources(job, part, &key);
    const int32_t trains = part == HD__FEED_TRAIN, packs = job->documents == HD__DATA_PACK,
                  documents = packs && part == HD__FEED_UNPACKED ? HD__DATA_MASK : job->documents;
    struct hd__shards shards = {0};
    struct hd__data_config config = {
        .ops = &compiled->data_choice.component->ops.data,
        .settings = compiled->data_choice.settings,
        .host = compiled->host,
        .mix = (int32_t)from->weighted,
        .held_out = is_tail(job, part),
        .shuffle = trains ? job->shuffle : documents == HD__DATA_PACK, /* an evaluation of some is of all lengths */
        .shuffle_buffer = trains ? job->shuffle_buffer : 0,
        .documents = documents,
        .val_fraction = part == HD__FEED_TEST || job->val.count ? 0 : job->val_fraction,
        .seq_len = job->seq_len,
        .vocab = compiled->info.vocab,
        .seed = trains ? (uint64_t)job->seed : 0,
    };
    struct hd__train_feed *f;
    int32_t rc = hd__train_corpus_make(compiled, key, from, err);
    if (!rc)
        rc = check_part(job, part, err);
    if (rc)
        return rc;
    f = hd__alloc(sizeof *f);
    f->compiled = compiled;
    f->rank = rank;
    f->key = config.held_out ? "data.val_fraction" : key;
    rc = hd__plugin_probe(compiled->plugins, compiled->data_choice.component, err);
    if (!rc)
        rc = hd__train_shards_find(job, from, &shards, err);
    if (!rc)
        rc = hd__train_shards_open(job, &shards, &config, part == HD__FEED_TRAIN && job->on_error, &f->data, err);
    hd__train_shards_free(&shards);
    if (rc) {
        fail_data(compiled->job, f->key, err);
        free(f);
        return err->code;
    }
    locate_rows(f, rank);
    f->capacity = hd__micro_batches_of(p, rank);
    for (uint32_t s = 0; s < p->sections.count; s++)
        for (uint32_t k = 0; k < p->sections.at[s].code.count; k++) {
            const struct hd__instr *i = &p->sections.at[s].code.at[k];
            int32_t input = i->op == HD_OP_FEED ? hd__program_input(p, i->out[0]) : HD__INPUT_POSITIONS;
            if (input != HD__INPUT_POSITIONS)
                f->reads[input] = 1;
        }
    f->contiguous = part == HD__FEED_TRAIN && p->exact;
    if (part == HD__FEED_TRAIN && (rc = hd__job_count_steps(job, hd__data_sequences(f->data), err))) {
        hd__train_feed_close(f);
        return rc;
    }
    *feed = f;
    return HD_OK;
}

/* The first source of a file, where they lie in order, of which the first `asked` tokens have nothing; NULL: none, or
 * its .meta.json does not say. */
static const char *unread_source(struct hd__job *job, const char *path, uint64_t has, uint64_t asked)
{
    char *prefix = hd__indexed_prefix(path);
    json_t *meta = json_load_file(hd__arena_format(&job->arena, "%s.meta.json", prefix), 0, NULL), *row;
    const json_t *sources = json_object_get(meta, "sources");
    const int ordered = (uint64_t)json_integer_value(json_object_get(meta, "tokens")) == has &&
                        !json_is_true(json_object_get(meta, "shuffled"));
    const char *unread = NULL;
    uint64_t begin = 0, tokens;
    for (size_t i = 0; i < json_array_size(sources) && ordered && !unread; i++, begin += tokens) {
        row = json_array_get(sources, i);
        tokens = (uint64_t)json_integer_value(json_object_get(row, "tokens"));
        if (tokens && begin >= asked && json_is_string(json_object_get(row, "path")))
            unread = hd__arena_strdup(&job->arena, json_string_value(json_object_get(row, "path")));
    }
    json_decref(meta);
    free(prefix);
    return unread;
}

/* The first of the listed files, or of the sources of one, of which the first `asked` sequences have nothing; NULL:
 * none. */
static const char *unread_file(const struct hd__train_feed *f, int32_t part, uint64_t asked)
{
    struct hd__job *job = f->compiled->job;
    const char *key;
    const struct hd__sources *from = part_sources(job, part, &key);
    uint64_t begin = 0, tokens = 0;
    int skipped;
    if (from->weighted || is_tail(job, part) || job->documents == HD__DATA_PACK ||
        hd__data_files(f->data) != from->count)
        return NULL;
    for (uint32_t k = 0; k < from->count; k++, begin += tokens) {
        hd__data_file(f->data, k, &tokens, &skipped);
        if (tokens && begin >= asked * (uint64_t)job->seq_len)
            return from->at[k].path;
    }
    return from->count > 1
               ? NULL
               : unread_source(job, hd__train_corpus_path(job, from->at->path), tokens, asked * (uint64_t)job->seq_len);
}

/* A step, or an evaluation, that reads sequences again; and a source that a mix repeats far more than the rest. Up to 4
 * times teach nearly as much as new text (Muennighoff et al., arXiv 2305.16264): 10 are hardly meant. */
static void warn_repeats(const struct hd__train_feed *f, int32_t part)
{
    struct hd__job *job = f->compiled->job;
    struct hd__data_repeats x[2];
    const int trains = part == HD__FEED_TRAIN;
    uint64_t batch = (uint64_t)job->batch, asked = trains ? batch : (uint64_t)job->eval_batches * batch,
             has = hd__data_sequences(f->data);
    double all = (double)(job->batch * job->steps) / (double)has;
    const char *unread = trains || asked >= has || has > 10 * asked ? NULL : unread_file(f, part, asked);
    hd__data_most_repeated(f->data, (double)(job->batch * job->steps), x, 1);
    if (unread)
        hd__log(HD_LOG_WARN, NULL,
                "%s: eval.batches: an evaluation reads only the first %llu of %llu sequences, none of which is of %s: "
                "raise eval.batches to %llu, or %s",
                hd__job_where(job, "eval.batches"), (unsigned long long)asked, (unsigned long long)has, unread,
                (unsigned long long)((has + batch - 1) / batch),
                hd__data_files(f->data) == 1 ? "shuffle the file's documents: heddle data shuffle"
                                             : "evaluate each file by itself: data.val: {A: FILE, B: FILE}");
    if (asked > has)
        hd__log(
            HD_LOG_WARN, NULL,
            trains ? "%s: data.batch: %llu sequences of data.seq_len tokens are more than the %llu that there are: "
                     "a step reads some of them %llu times"
                   : "%s: eval.batches: %llu batches of data.batch sequences are more than the %llu that are held out: "
                     "an evaluation reads some of them %llu times",
            hd__job_where(job, trains ? "data.batch" : "eval.batches"),
            (unsigned long long)(trains ? batch : (uint64_t)job->eval_batches), (unsigned long long)has,
            (unsigned long long)((asked - 1) / has + 1));
    if (trains && all > 1000 && job->steps >= 1000000 && job->epochs <= 0)
        hd__log(HD_LOG_WARN, NULL,
                "%s: job.steps: %" PRId64 " steps of %" PRId64 " tokens read data.train %.3g times: it counts steps of "
                "the optimizer, not tokens",
                hd__job_where(job, "job.steps"), job->steps, job->batch * job->seq_len, all);
    if (trains && x->times > 10 && x->times > 4 * all)
        hd__log(HD_LOG_WARN, NULL,
                "%s: data.train: %s is seen %.3g times over the whole run, all data together %.3g times: beyond about "
                "4 times a source teaches less and less; for 4 times, set its weight to %.2g",
                hd__job_where(job, "data.train"), job->train.at[x->source].path, x->times, all,
                job->train.at[x->source].weight * (1 - x->share) / (x->times / 4 - x->share));
}

/* The tail that data.val_fraction holds out of files, one behind the other, may have whole ones in it. */
static void say_held_out(const struct hd__data *d)
{
    uint64_t begins = 0, tokens;
    uint32_t whole = 0, first = 0;
    int skipped;
    for (uint32_t k = 0; k < hd__data_files(d); k++, begins += tokens) {
        hd__data_file(d, k, &tokens, &skipped);
        if (k && begins >= hd__data_tokens(d) && !skipped && !whole++)
            first = k;
    }
    char more[48];
    snprintf(more, sizeof more, whole > 1 ? " and %u more file%s" : "", whole - 1, whole > 2 ? "s" : "");
    if (whole)
        hd__log(HD_LOG_INFO, NULL, "held out, and not trained on at all: %s%s",
                hd__data_file(d, first, &tokens, &skipped), more);
}

int32_t hd__train_feed_check(const struct hd__compiled *compiled, int32_t part, int tokens, struct hd_error *err)
{
    struct hd__train_feed *f = NULL;
    struct hd__job *job = compiled->job;
    const char *key;
    int32_t rc = HD_OK;
    part_sources(job, part, &key);
    if (is_tail(job, part) && job->val_fraction > 0) /* where the files are to blame, they are named */
        rc = hd__train_feed_check(compiled, HD__FEED_TRAIN, 0, err);
    if (!rc)
        rc = hd__train_feed_open(compiled, 0, part, &f, err);
    if (!rc && tokens && (rc = hd__train_shards_scan(job, f->data, part == HD__FEED_TRAIN && job->on_error, err)))
        rc = fail_data(job, key, err);
    if (!rc && tokens)
        warn_repeats(f, part);
    if (!rc && tokens && part == HD__FEED_TRAIN && is_tail(job, HD__FEED_VAL) && job->val_fraction > 0 &&
        !job->train.weighted)
        say_held_out(f->data);
    hd__train_feed_close(f);
    return rc;
}

const struct hd__data *hd__train_feed_data(const struct hd__train_feed *f)
{
    return f->data;
}

int32_t hd__train_feed_check_sets(const struct hd__compiled *compiled, int tokens, struct hd_error *err)
{
    int32_t rc = HD_OK;
    for (int32_t k = 0; k < hd__train_feed_sets(compiled->job) && !rc; k++)
        rc = hd__train_feed_check(compiled, HD__FEED_VAL + k, tokens, err);
    return rc;
}

void hd__train_feed_close(struct hd__train_feed *f)
{
    if (!f)
        return;
    hd__data_prefetch_stop(f->prefetch);
    hd__data_close(f->data);
    free(f->buffered);
    free(f);
}

int32_t hd__train_feed_seek(struct hd__train_feed *f, int64_t sequence, struct hd_error *err)
{
    const struct hd__job *job = f->compiled->job;
    const int64_t ahead = job->read_ahead;
    struct hd__data_prefetch_config config = {
        .data = f->data,
        .number = sequence_number,
        .user = f,
        .rows = (uint32_t)f->rows,
        .depth = (uint32_t)HD__MAX(ahead, f->counts || job->on_error ? f->capacity + 1 : 1),
        .ranges = {f->ranges[0], f->ranges[1]}};
    hd__data_prefetch_stop(f->prefetch);
    f->prefetch = NULL;
    f->base = sequence;
    f->first = f->n_buffered = 0;
    f->positions = 0;
    if (!f->buffered && f->reads[0] && f->reads[1])
        f->buffered = hd__alloc((size_t)(f->capacity * f->rows * (f->ranges[0].count + f->ranges[1].count)) *
                                sizeof *f->buffered);
    return hd__data_prefetch_start(&config, &f->prefetch, err);
}

int32_t hd__train_feed_wait(struct hd__train_feed *f, struct hd_error *err)
{
    int64_t unused;
    double start = hd__now();
    int32_t rc = hd__data_prefetch_count(f->prefetch, (uint32_t)f->capacity, &unused, err);
    f->waited += hd__now() - start;
    return rc;
}

int32_t hd__train_feed_skip(struct hd__train_feed *f, uint32_t file, int64_t sequence, struct hd_error *err)
{
    hd__data_prefetch_stop(f->prefetch);
    f->prefetch = NULL;
    int32_t rc = hd__data_skip(f->data, file, err);
    return rc ? fail_data(f->compiled->job, f->key, err) : hd__train_feed_seek(f, sequence, err);
}

int32_t hd__train_feed_count_labels(struct hd__train_feed *f, int64_t *counted, struct hd_error *err)
{
    int64_t mine = 0;
    double start = hd__now();
    int32_t rc = f->counts ? hd__data_prefetch_count(f->prefetch, (uint32_t)f->capacity, &mine, err) : HD_OK;
    f->waited += hd__now() - start;
    *counted += mine;
    return rc;
}

double hd__train_feed_waited(struct hd__train_feed *f)
{
    double waited = f->waited;
    f->waited = 0;
    return waited;
}

const char *hd__train_feed_key(const struct hd__train_feed *f)
{
    return f->key;
}

const char *hd__train_feed_where(const struct hd__train_feed *f)
{
    return hd__job_where(f->compiled->job, f->key);
}

/* Reads the next micro-batch of one kind and queues the other kind. */
static int32_t next_micro_batch(struct hd__train_feed *f, int32_t labels, int32_t *out, int64_t count,
                                struct hd_error *err)
{
    const int32_t *both[2];
    double start = hd__now();
    int32_t rc = hd__data_prefetch_next(f->prefetch, &both[0], &both[1], err);
    f->waited += hd__now() - start;
    if (rc)
        return rc;
    memcpy(out, both[labels], (size_t)count * sizeof *out);
    if (!f->reads[!labels])
        return HD_OK;
    if (f->n_buffered == f->capacity)
        return hd_fail(err, HD_E_INTERNAL, "%s are read more than a step before %s", labels ? "labels" : "ids",
                       labels ? "ids" : "labels");
    memcpy(f->buffered + (f->first + f->n_buffered++) % f->capacity * count, both[!labels],
           (size_t)count * sizeof *out);
    f->buffered_labels = !labels;
    return HD_OK;
}

/* Whole sequences, in the order in which they are stored: they take no reading, and so no queue. */
static int32_t next_positions(struct hd__train_feed *f, int32_t *out, int64_t count, struct hd_error *err)
{
    const struct hd_program *p = hd__compiled_program(f->compiled, f->rank);
    int64_t length = f->compiled->job->seq_len;
    int32_t *row = hd__alloc((size_t)length * sizeof *row), rc = HD_OK;
    for (int64_t j = 0; j < count / length && !rc; j++) {
        uint64_t number = sequence_number(f, f->positions, (uint32_t)j);
        for (int64_t k = 0; k < length; k++)
            row[k] = (int32_t)k; /* of an empty one */
        if (number != HD__NO_SEQUENCE)
            rc = hd__data_positions(f->data, number, row, err);
        for (int64_t k = 0; k < length && !rc; k++)
            out[j * length + k] = row[hd__sequence_position(p, k)];
    }
    f->positions++;
    free(row);
    return rc;
}

int32_t hd__train_feed_next(void *feed, int32_t input, int32_t *out, int64_t count, struct hd_error *err)
{
    struct hd__train_feed *f = feed;
    int32_t labels = input == HD__INPUT_LABELS;
    if (input == HD__INPUT_POSITIONS)
        return next_positions(f, out, count, err);
    if (!f->n_buffered || f->buffered_labels != labels)
        return next_micro_batch(f, labels, out, count, err);
    memcpy(out, f->buffered + f->first * count, (size_t)count * sizeof *out);
    f->first = (f->first + 1) % f->capacity;
    f->n_buffered--;
    return HD_OK;
}
