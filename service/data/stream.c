/* The endless stream of sequences: source, epoch and position of each. */
#include "service/data/data.h"

#include <math.h>
#include <stdlib.h>

#include "core/base/process.h"
#include "service/data/packing.h"

struct data_file {
    char *path;
    struct hd_data *data; /* the plug-in's handle; NULL where it was skipped before it was opened */
    struct hd_data_info info;
    int32_t skipped, reserved;
};

/* A stream of tokens: consecutive files, of which [first, first + tokens) is read. */
struct token_stream {
    struct data_file *files; /* into hd__data.files */
    uint64_t *start;         /* start[k]: tokens before file k; start[n_files]: all of them */
    uint32_t n_files;
    uint32_t slots; /* positions in a round of a mix */
    uint32_t n_skipped, reserved;
    double weight; /* in a mix */
    uint64_t first, tokens, sequences;
    uint64_t key;
    struct hd__packing packing; /* HD__DATA_PACK */
    uint64_t cut, whole;        /* documents longer than a sequence, and the others */
};

/* Part of a sequence that is of one document: tokens [at, at + length) of the stream, from position `offset` on. */
struct segment {
    uint64_t at;
    int64_t offset, length;
    int32_t ends, is_padding; /* the document's last token is here */
};

/* One position of a round of a mix. */
struct mix_slot {
    uint32_t stream_index;
    uint32_t nth; /* earlier turns of this stream in the round */
};

struct hd__data {
    struct hd__data_config config; /* sources is NULL, ops the next */
    struct hd_data_ops ops;        /* labels is NULL where these settings have none */
    struct data_file *files;
    struct token_stream *streams;
    struct mix_slot *round; /* HD__DATA_MIX_SLOTS of them; NULL without a mix */
    uint32_t n_files, n_streams;
    uint64_t sequences, tokens;
    int32_t failed; /* hd__data_failed; any thread */
};

/* ---- a mix: weights become turns of a round, interleaved evenly */

/* Largest remainder method: turns add up to HD__DATA_MIX_SLOTS exactly. */
static int32_t apportion_slots(struct hd__data *d, struct hd_error *err)
{
    double sum = 0, *rest = hd__alloc(d->n_streams * sizeof *rest);
    uint32_t given = 0;
    int32_t rc = HD_OK;
    for (uint32_t k = 0; k < d->n_streams; k++)
        sum += d->streams[k].weight;
    for (uint32_t k = 0; k < d->n_streams; k++) {
        double exact = d->streams[k].weight / sum * HD__DATA_MIX_SLOTS;
        d->streams[k].slots = (uint32_t)exact;
        rest[k] = exact - floor(exact);
        given += d->streams[k].slots;
    }
    for (; given < HD__DATA_MIX_SLOTS; given++) {
        uint32_t best = 0;
        for (uint32_t k = 1; k < d->n_streams; k++)
            if (rest[k] > rest[best])
                best = k;
        d->streams[best].slots++;
        rest[best] = -1;
    }
    for (uint32_t k = 0; k < d->n_streams && !rc; k++)
        if (!d->streams[k].slots)
            rc = hd_fail(err, HD_E_INVALID, "%s: weight %g is less than 1/%d of all weights (%g)",
                         d->streams[k].files[0].path, d->streams[k].weight, HD__DATA_MIX_SLOTS, sum);
    free(rest);
    return rc;
}

/* Smooth weighted round-robin: each stream is credited its turns, the largest credit is served and pays a whole
 * round */
static void build_mix_round(struct hd__data *d)
{
    int64_t *credit = hd__alloc(d->n_streams * sizeof *credit);
    uint32_t *nth = hd__alloc(d->n_streams * sizeof *nth);
    d->round = hd__alloc(HD__DATA_MIX_SLOTS * sizeof *d->round);
    for (uint32_t i = 0; i < HD__DATA_MIX_SLOTS; i++) {
        uint32_t best = 0;
        for (uint32_t k = 0; k < d->n_streams; k++) {
            credit[k] += d->streams[k].slots;
            if (credit[k] > credit[best])
                best = k;
        }
        credit[best] -= HD__DATA_MIX_SLOTS;
        d->round[i] = (struct mix_slot){best, nth[best]++};
    }
    free(nth);
    free(credit);
}

/* ---- opening */

static int32_t check_config(const struct hd__data_config *c, struct hd_error *err)
{
    if (!c->n_sources)
        return hd_fail(err, HD_E_INVALID, "data: no files were named");
    if (c->seq_len < 1 || c->vocab < 1 || c->vocab > INT32_MAX)
        return hd_fail(err, HD_E_INVALID, "data: seq_len %ld and vocab %ld: both must be at least 1", (long)c->seq_len,
                       (long)c->vocab);
    if (!(c->val_fraction >= 0 && c->val_fraction < 1))
        return hd_fail(err, HD_E_INVALID, "data: val_fraction %g is outside 0 <= v < 1", c->val_fraction);
    for (uint32_t k = 0; c->mix && k < c->n_sources; k++)
        if (!(c->sources[k].weight > 0) || isinf(c->sources[k].weight))
            return hd_fail(err, HD_E_INVALID, "%s: weight %g; weights are above 0", c->sources[k].path,
                           c->sources[k].weight);
    return HD_OK;
}

static int32_t slot_result(int32_t code, const char *slot, struct hd_error *err)
{
    return hd__slot_result(code, "the data source's", slot, err);
}

static int32_t open_file(const struct hd__data *d, const struct hd__data_source *from, struct data_file *f,
                         struct hd_error *err)
{
    const struct hd__data_config *c = &d->config;
    const struct hd_data_source source = {.struct_size = sizeof source,
                                          .path = from->path,
                                          .hints = c->shuffle ? 0 : HD_DATA_IN_ORDER,
                                          .vocab = c->vocab};
    struct hd__process process;
    if (from->skipped) {
        *f = (struct data_file){.path = hd__strdup(from->path), .info = {.tokens = from->tokens}, .skipped = 1};
        return HD_OK;
    }
    hd__process_note(&process);
    int32_t rc = slot_result(c->ops->open(c->host, c->settings, &source, &f->data, err), "open", err);
    hd__process_restore_after(&process, (uintptr_t)c->ops->open);
    if (rc)
        return rc;
    f->info.struct_size = sizeof f->info;
    rc = slot_result(c->ops->info(f->data, &f->info, err), "info", err);
    if (rc)
        c->ops->close(f->data);
    else
        f->path = hd__strdup(from->path);
    return rc;
}

/* ---- documents */

/* The file that has token `at` of a stream. */
static const struct data_file *file_of(const struct token_stream *s, uint64_t at, uint64_t *start)
{
    uint32_t low = 0, high = s->n_files - 1;
    while (low < high) {
        uint32_t k = low + (high - low) / 2;
        if (s->start[k + 1] <= at)
            low = k + 1;
        else
            high = k;
    }
    *start = s->start[low];
    return &s->files[low];
}

/* Remembers the file of a failure. */
static int32_t note_failure(const struct hd__data *d, const struct data_file *f, int32_t rc)
{
    int32_t *failed = &((struct hd__data *)d)->failed; /* the only thing that reading changes */
    if (rc)
        __atomic_store_n(failed, (int32_t)(f - d->files), __ATOMIC_RELAXED);
    return rc;
}

/* The end of the document that has token `at` of a stream, at most `limit`. Documents end with their file, and with the
 * part of it that is read. */
static int32_t document_end(const struct hd__data *d, const struct token_stream *s, uint64_t at, uint64_t limit,
                            uint64_t *end, struct hd_error *err)
{
    uint64_t start, last = HD__MIN(limit, s->first + s->tokens);
    const struct data_file *f = file_of(s, at, &start);
    last = HD__MIN(last, start + f->info.tokens);
    int32_t rc =
        slot_result(d->config.ops->document_end(f->data, at - start, last - start, end, err), "document_end", err);
    if (!rc && (*end <= at - start || *end > last - start))
        rc = hd_fail(err, HD_E_INVALID, "%s: the document of token %lu ends at %lu, says its source", f->path,
                     (unsigned long)(at - start), (unsigned long)*end);
    *end += start;
    return note_failure(d, f, rc);
}

/* ---- skipped files: a sequence has the tokens of its own, and one more for the last label */

static int touches_skipped(const struct hd__data *d, const struct token_stream *s, uint64_t i)
{
    uint64_t length = (uint64_t)d->config.seq_len, at = s->first + i * length, start;
    uint64_t end = HD__MIN(at + length + 1, s->start[s->n_files]);
    for (const struct data_file *f = file_of(s, at, &start); start < end; start += f++->info.tokens)
        if (f->skipped && f->info.tokens)
            return 1;
    return 0;
}

static int is_left(const struct hd__data *d, const struct token_stream *s)
{
    for (uint64_t i = 0; i < s->sequences; i++)
        if (!touches_skipped(d, s, i))
            return 1;
    return 0;
}

static int32_t nothing_left(const struct token_stream *s, struct hd_error *err)
{
    return hd_fail(err, HD_E_INVALID, "%s%s: %u of %u files are skipped, and no sequence is left without them",
                   s->files[0].path, s->n_files > 1 ? " and the rest" : "", s->n_skipped, s->n_files);
}

/* Another one in the place of sequence i: drawn by the number, and where that finds none, the next that is left. */
static uint64_t replace_skipped(const struct hd__data *d, const struct token_stream *s, uint64_t i, uint64_t number)
{
    enum { DRAWS = 64 };
    for (uint64_t n = 0; n < DRAWS && touches_skipped(d, s, i); n++)
        i = hd__mix64(hd__mix64(number ^ s->key) + n) % s->sequences;
    while (touches_skipped(d, s, i))
        i = (i + 1) % s->sequences;
    return i;
}

static int32_t pack_stream(const struct hd__data *d, struct token_stream *s, struct hd_error *err)
{
    HD__ARRAY(struct hd__piece) pieces = {0};
    uint64_t room = (uint64_t)d->config.seq_len, last = s->first + s->tokens, end = s->first;
    int32_t rc = HD_OK;
    for (uint64_t at = s->first; at < last && !rc; at = end) {
        rc = document_end(d, s, at, last, &end, err);
        *(!rc && end - at > room ? &s->cut : &s->whole) += 1;
        for (uint64_t n; at < end && !rc; at += n) {
            n = HD__MIN(room, end - at);
            hd__push(&pieces, ((struct hd__piece){at, (uint32_t)n, 0}));
            if (pieces.count == UINT32_MAX)
                rc = hd_fail(err, HD_E_UNSUPPORTED, "%s: more than %u documents cannot be packed: say documents: mask",
                             s->files[0].path, UINT32_MAX);
        }
    }
    if (!rc) {
        hd__pack(pieces.at, pieces.count, (uint32_t)room, &s->packing);
        s->sequences = s->packing.sequences;
    }
    hd__free_array(&pieces);
    return rc;
}

static int32_t set_stream_range(const struct hd__data_config *c, struct token_stream *s, struct hd_error *err)
{
    uint64_t all = s->start[s->n_files], train = (uint64_t)((double)all * (1 - c->val_fraction));
    uint64_t length = (uint64_t)c->seq_len, shift = !c->ops->labels; /* the label of a sequence's last token */
    s->first = c->held_out ? train : 0;
    s->tokens = c->held_out ? all - train : train;
    if (c->documents == HD__DATA_PACK && s->tokens > 1) /* a sequence may be padded */
        return HD_OK;
    if (s->tokens < length + shift)
        return hd_fail(err, HD_E_INVALID,
                       "%s%s: %s%lu tokens%s are too few for one sequence of seq_len %ld, which takes "
                       "%ld",
                       s->files[0].path, s->n_files > 1 ? " and the rest" : "",
                       c->held_out ? "the held-out part of " : "", (unsigned long)s->tokens,
                       c->val_fraction > 0 && !c->held_out ? " (without the held-out part)" : "", (long)c->seq_len,
                       (long)(length + shift));
    s->sequences = (s->tokens - shift) / length;
    return HD_OK;
}

static int32_t open_streams(struct hd__data *d, const struct hd__data_config *c, struct hd_error *err)
{
    d->streams = hd__alloc(d->n_files * sizeof *d->streams);
    for (uint32_t at = 0, k; at < d->n_files; at += d->streams[k].n_files) {
        k = d->n_streams++;
        struct token_stream *s = &d->streams[k];
        s->files = d->files + at;
        s->weight = c->sources[at].weight;
        while (at + s->n_files < d->n_files && (!s->n_files || !c->mix || c->sources[at + s->n_files].goes_on))
            s->n_skipped += (uint32_t)s->files[s->n_files++].skipped;
        s->key = hd__mix64(c->seed ^ hd__mix64(k));
        s->start = hd__alloc((s->n_files + 1) * sizeof *s->start);
        for (uint32_t j = 0; j < s->n_files; j++)
            s->start[j + 1] = s->start[j] + s->files[j].info.tokens;
        int32_t rc = s->n_skipped == s->n_files ? nothing_left(s, err) : set_stream_range(&d->config, s, err);
        uint64_t end, start;
        if (!rc && s->n_skipped && !is_left(d, s))
            rc = nothing_left(s, err);
        if (!rc && c->documents && !file_of(s, s->first, &start)->skipped) /* where the source does not know, it says */
            rc = document_end(d, s, s->first, s->first + 1, &end, err);
        if (!rc && c->documents == HD__DATA_PACK)
            rc = pack_stream(d, s, err);
        if (rc)
            return rc;
        d->sequences += s->sequences;
        d->tokens += s->tokens;
    }
    return HD_OK;
}

int32_t hd__data_open(const struct hd__data_config *config, struct hd__data **data, struct hd_error *err)
{
    int32_t rc = check_config(config, err);
    if (rc)
        return rc;
    struct hd__data *d = hd__alloc(sizeof *d);
    d->config = *config;
    d->config.sources = NULL;
    d->ops = *config->ops;
    if (d->ops.labels && d->ops.labeled && !d->ops.labeled(config->settings))
        d->ops.labels = NULL;
    d->config.ops = &d->ops;
    d->failed = -1;
    d->files = hd__alloc(config->n_sources * sizeof *d->files);
    for (; d->n_files < config->n_sources && !rc; d->n_files += !rc)
        rc = open_file(d, &config->sources[d->n_files], &d->files[d->n_files], err);
    if (config->failed)
        *config->failed = rc ? (int32_t)d->n_files : -1;
    if (!rc)
        rc = open_streams(d, config, err);
    if (!rc && config->mix) {
        rc = apportion_slots(d, err);
        if (!rc)
            build_mix_round(d);
    }
    if (rc) {
        hd__data_close(d);
        return rc;
    }
    *data = d;
    return HD_OK;
}

void hd__data_close(struct hd__data *d)
{
    if (!d)
        return;
    for (uint32_t k = 0; k < d->n_streams; k++) {
        free(d->streams[k].start);
        hd__packing_free(&d->streams[k].packing);
    }
    for (uint32_t k = 0; k < d->n_files; k++) {
        if (d->files[k].data)
            d->config.ops->close(d->files[k].data);
        free(d->files[k].path);
    }
    free(d->streams);
    free(d->files);
    free(d->round);
    free(d);
}

uint64_t hd__data_sequences(const struct hd__data *d)
{
    return d->sequences;
}

uint64_t hd__data_tokens(const struct hd__data *d)
{
    return d->tokens;
}

uint64_t hd__data_pieces(const struct hd__data *d, uint64_t *cut, uint64_t *whole)
{
    uint64_t pieces = *cut = *whole = 0;
    for (uint32_t k = 0; k < d->n_streams; k++) {
        pieces += d->streams[k].packing.pieces;
        *cut += d->streams[k].cut;
        *whole += d->streams[k].whole;
    }
    return pieces;
}

uint64_t hd__data_all_longer(const struct hd__data *d, uint64_t most)
{
    uint64_t n = 0, room = (uint64_t)d->config.seq_len, end;
    struct hd_error unused = HD_ERROR_INIT;
    for (uint32_t k = 0; k < d->n_streams; k++) {
        const struct token_stream *s = &d->streams[k];
        uint64_t last = s->first + s->tokens;
        for (uint64_t at = s->first; at < last && n < most; at = end, n++)
            if (s->n_skipped || !d->config.ops->document_end ||
                document_end(d, s, at, HD__MIN(last, at + (1 << 20)), &end, &unused) || end - at <= room)
                return 0;
    }
    return n;
}

uint32_t hd__data_most_repeated(const struct hd__data *d, double sequences, struct hd__data_repeats *out, uint32_t n)
{
    uint32_t count = 0, at;
    for (uint32_t k = 0; k < d->n_streams; k++, count = HD__MIN(count + 1, n)) {
        double share = d->round ? (double)d->streams[k].slots / HD__DATA_MIX_SLOTS : 1,
               times = share * sequences / (double)d->streams[k].sequences;
        for (at = count; at && out[at - 1].times < times; at--)
            out[at] = out[at - 1];
        out[at] = (struct hd__data_repeats){k, share, times};
    }
    return count;
}

/* ---- reading */

enum part { TOKENS, LABELS };

#define IS_VOCAB "is model.vocab its tokenizer's, and data.token_dtype the type that they were written in?"
#define IS_LABELS \
    "-100 is for labels that do not count: save input_ids instead; which of them count is for data.loss: completion"

/* Many runs of one id, as filled-up rows have, one with token `at`. Documents of that token alone have no label. */
static void warn_padding(const struct hd__data *d, const struct data_file *f, uint64_t at, double percent)
{
    struct hd_error unused = HD_ERROR_INIT;
    uint64_t end = 0;
    int64_t id = -1;
    int alone = d->config.documents && !d->ops.document_end(f->data, at - 1, at + 1, &end, &unused) && end == at;
    if (!alone && !d->ops.read(f->data, at, 1, &id, &unused))
        hd__log(HD_LOG_WARN, NULL,
                "%s: %.0f%% of the tokens lie in runs of 8 and more of one id, as %lld: is that padding? It is trained "
                "on: if it is, save the rows without it",
                f->path, percent, (long long)id);
}

/* Labels that count; files that look padded, of another vocabulary, or not shifted. */
struct scan {
    uint64_t counted, padded, low, own;
};

/* Labels that are the ids of their own tokens, none of them another; those of which the next id is the same are no
 * sign. */
static int labels_are_own(const struct hd__data *d, const struct data_file *f, uint64_t first, uint64_t count)
{
    enum { BLOCK = 2048, FEW = 256 };
    int64_t ids[BLOCK], labels[BLOCK];
    struct hd_error unused = HD_ERROR_INIT;
    uint64_t own = 0;
    for (uint64_t end = first + count, n; first < end; first += n) {
        n = HD__MIN(BLOCK, end - first);
        if (d->ops.read(f->data, first, n, ids, &unused) || d->ops.labels(f->data, first, n, labels, &unused))
            return 0;
        for (uint64_t i = 0; i + 1 < n; i++) {
            if (labels[i] >= 0 && labels[i] != ids[i])
                return 0;
            own += labels[i] >= 0 && ids[i] != ids[i + 1];
        }
    }
    return own >= FEW;
}

/* Reads and checks tokens (or labels) [first, first + count) of a file into `out`; NULL: checks only, and counts. */
static int32_t read_file(const struct hd__data *d, const struct data_file *f, enum part part, uint64_t first,
                         uint64_t count, int32_t *out, struct scan *scan, struct hd_error *err)
{
    int labels = part == LABELS;
    enum { BLOCK = 2048, RUN = 8 };
    int64_t block[BLOCK], before = -1, largest = 0;
    uint64_t run = 0, in_runs = 0, at = 0;
    for (uint64_t end = first + count, n; first < end; first += n) {
        n = HD__MIN(BLOCK, end - first);
        int32_t rc = slot_result((labels ? d->ops.labels : d->ops.read)(f->data, first, n, block, err),
                                 labels ? "labels" : "read", err);
        for (uint64_t i = 0; i < n && !rc; i++) {
            int ignored = labels && block[i] < 0;
            if (!ignored && (uint64_t)block[i] >= (uint64_t)d->config.vocab)
                return note_failure(
                    d, f,
                    hd_fail(err, HD_E_INVALID, "%s: %s %lu is %ld, outside the model's vocabulary of %ld: %s", f->path,
                            labels ? "the label of token" : "token", (unsigned long)(first + i), (long)block[i],
                            (long)d->config.vocab, block[i] == -100 ? IS_LABELS : IS_VOCAB));
            if (out) {
                *out++ = ignored ? -1 : (int32_t)block[i];
                continue;
            }
            scan->counted += (uint64_t)(labels && !ignored);
            largest = HD__MAX(largest, block[i]);
            run = block[i] == before ? run + 1 : 1;
            before = block[i];
            in_runs += run == RUN ? RUN : run > RUN;
            at = run == RUN ? first + i : at;
        }
        if (rc)
            return note_failure(d, f, rc);
    }
    if (!out && !d->ops.labels && count >= 1024 && in_runs > count / 4 && !scan->padded++)
        warn_padding(d, f, at, 100 * (double)in_runs / (double)count);
    if (!out && !labels && count >= 1024 && largest < d->config.vocab / 8 && !scan->low++)
        hd__log(HD_LOG_WARN, NULL,
                "%s: no id is above %lld, but model.vocab is %ld: is that the tokenizer's vocabulary size, and are "
                "these token ids, not masks or positions?",
                f->path, (long long)largest, (long)d->config.vocab);
    return HD_OK;
}

/* One tokenizer's ids are of one type in all files. */
static void warn_types(const struct hd__data *d)
{
    const struct data_file *narrow = NULL, *wide = NULL;
    for (uint32_t k = 0; k < d->n_streams; k++)
        for (uint32_t j = 0; j < d->streams[k].n_files; j++) {
            const struct data_file *f = &d->streams[k].files[j];
            narrow = f->info.max_token == UINT8_MAX ? f : narrow;
            wide = f->info.max_token > UINT8_MAX ? f : wide;
        }
    if (narrow && wide)
        hd__log(HD_LOG_WARN, NULL,
                "%s has ids of one byte (uint8), or is read as bytes, and %s has ids of a wider type: are they of one "
                "vocabulary?",
                narrow->path, wide->path);
}

/* Every remaining file gets the same share of the budget: the first of many files must not use all. */
int32_t hd__data_scan(const struct hd__data *d, uint64_t tokens, struct hd_error *err)
{
    enum { SAMPLE = 1 << 20 };
    int32_t rc = HD_OK;
    uint32_t left = d->n_files;
    struct scan scan = {0};
    uint64_t looked_at = 0;
    warn_types(d);
    for (uint32_t k = 0; k < d->n_streams && !rc; k++) {
        const struct token_stream *s = &d->streams[k];
        for (uint32_t j = 0; j < s->n_files && !rc; j++, left--) {
            uint64_t from = HD__MAX(s->first, s->start[j]), to = HD__MIN(s->first + s->tokens, s->start[j + 1]), n;
            if (to <= from || s->files[j].skipped)
                continue;
            n = HD__MIN(to - from, tokens / left);
            if (d->config.ops->labels)
                rc = read_file(d, &s->files[j], LABELS, from - s->start[j], n, NULL, &scan, err);
            looked_at += n;
            tokens -= n;
            if (!rc && d->ops.labels && labels_are_own(d, &s->files[j], from - s->start[j], HD__MIN(n, SAMPLE)) &&
                !scan.own++)
                hd__log(HD_LOG_WARN, NULL,
                        "%s: each label that counts is the id of its own token, as in data for transformers, whose "
                        "models shift labels: heddle does not, so save at each token the id of the next one: labels[:, "
                        ":-1] = labels[:, 1:]; labels[:, -1] = -100",
                        s->files[j].path);
            if (s->files[j].info.max_token && s->files[j].info.max_token < d->config.vocab)
                n = HD__MIN(n, SAMPLE); /* all are inside */
            if (!rc)
                rc = read_file(d, &s->files[j], TOKENS, from - s->start[j], n, NULL, &scan, err);
        }
    }
    if (!rc && d->config.ops->labels)
        hd__log(HD_LOG_INFO, NULL, "%s%s: %llu of %s%llu tokens count in the loss", d->files[0].path,
                d->n_files > 1 ? " and the rest" : "", (unsigned long long)scan.counted,
                looked_at < d->tokens ? "the first " : "", (unsigned long long)looked_at);
    return rc;
}

/* Tokens [at, at + count) of a stream, which may begin in one file and end in another. */
static int32_t read_stream(const struct hd__data *d, const struct token_stream *s, enum part part, uint64_t at,
                           uint64_t count, int32_t *out, struct hd_error *err)
{
    uint64_t start;
    int32_t rc = HD_OK;
    for (uint32_t k = (uint32_t)(file_of(s, at, &start) - s->files); count && !rc; k++) {
        uint64_t n = HD__MIN(count, s->start[k + 1] - at);
        rc = read_file(d, &s->files[k], part, at - s->start[k], n, out, NULL, err);
        out += n;
        at += n;
        count -= n;
    }
    return rc;
}

/* The stream that serves a position, and the index of the sequence in that stream. */
static const struct token_stream *locate_sequence(const struct hd__data *d, uint64_t number, uint64_t *nth)
{
    *nth = number;
    if (!d->round)
        return d->streams;
    struct mix_slot t = d->round[number % HD__DATA_MIX_SLOTS];
    const struct token_stream *s = &d->streams[t.stream_index];
    *nth = number / HD__DATA_MIX_SLOTS * s->slots + t.nth;
    return s;
}

/* The stream of a sequence, and its index there. */
static const struct token_stream *find_sequence(const struct hd__data *d, uint64_t number, uint64_t *i)
{
    uint64_t nth;
    const struct token_stream *s = locate_sequence(d, number, &nth);
    *i = nth % s->sequences;
    if (d->config.shuffle && d->config.shuffle_buffer)
        *i =
            hd__data_permute_windows(*i, s->sequences, (uint64_t)d->config.shuffle_buffer, s->key + nth / s->sequences);
    else if (d->config.shuffle)
        *i = hd__data_permute(*i, s->sequences, s->key + nth / s->sequences);
    if (s->n_skipped)
        *i = replace_skipped(d, s, *i, number);
    return s;
}

/* ---- skipped files */

uint32_t hd__data_files(const struct hd__data *d)
{
    return d->n_files;
}

const char *hd__data_file(const struct hd__data *d, uint32_t file, uint64_t *tokens, int *skipped)
{
    *tokens = d->files[file].info.tokens;
    *skipped = d->files[file].skipped;
    return d->files[file].path;
}

int32_t hd__data_failed(const struct hd__data *d)
{
    return __atomic_load_n(&d->failed, __ATOMIC_RELAXED);
}

int32_t hd__data_skip(struct hd__data *d, uint32_t file, struct hd_error *err)
{
    uint32_t k = 0;
    while (k + 1 < d->n_streams && d->streams[k + 1].files <= &d->files[file])
        k++;
    d->streams[k].n_skipped += !d->files[file].skipped;
    d->files[file].skipped = 1;
    return is_left(d, &d->streams[k]) ? HD_OK : nothing_left(&d->streams[k], err);
}

/* A sequence's next segment, behind g; the first one where g is zeros. */
static int32_t next_segment(const struct hd__data *d, const struct token_stream *s, uint64_t i, uint64_t nth,
                            struct segment *g, struct hd_error *err)
{
    uint64_t length = (uint64_t)d->config.seq_len, end;
    int32_t rc;
    g->offset += g->length;
    uint64_t left = length - (uint64_t)g->offset;
    if (d->config.documents == HD__DATA_PACK) {
        uint64_t piece = s->packing.begins[i] + nth;
        *g = (struct segment){.offset = g->offset, .length = (int64_t)left, .is_padding = 1};
        if (piece == s->packing.begins[i + 1])
            return HD_OK;
        g->is_padding = 0;
        g->at = s->packing.piece[piece];
    } else {
        g->at = s->first + i * length + (uint64_t)g->offset;
        g->length = (int64_t)left;
        if (!d->config.documents)
            return HD_OK;
    }
    /* one token more: does the document go on behind the sequence? */
    rc = document_end(d, s, g->at, g->at + left + 1, &end, err);
    g->ends = !rc && end <= g->at + left;
    if (g->ends)
        g->length = (int64_t)(end - g->at);
    return rc;
}

/* Labels of `count` tokens of a segment, from its token `skip` on; ids are those of the tokens themselves. */
static int32_t read_labels(const struct hd__data *d, const struct token_stream *s, const struct segment *g,
                           int64_t skip, int64_t count, const int32_t *ids, int32_t *labels, struct hd_error *err)
{
    const struct hd_data_ops *ops = d->config.ops;
    int is_end = g->ends && skip + count == g->length;
    uint64_t at = g->at + (uint64_t)skip, n = (uint64_t)count;
    int32_t rc = HD_OK;
    if (ops->labels)
        rc = read_stream(d, s, LABELS, at, n, labels, err);
    else
        memcpy(labels, ids + 1, (n - 1) * sizeof *labels);
    if (is_end)
        labels[n - 1] = -1;
    else if (!ops->labels)
        rc = read_stream(d, s, TOKENS, at + n, 1, labels + n - 1, err);
    return rc;
}

int32_t hd__data_read(const struct hd__data *d, uint64_t number, int32_t *ids, int32_t *labels, int64_t s_first,
                      int64_t s_count, struct hd_error *err)
{
    uint64_t i;
    const struct token_stream *s = find_sequence(d, number, &i);
    struct segment g = {0};
    int64_t s_end = s_first + s_count;
    int32_t rc = HD_OK;
    if (s_first < 0 || s_count < 1 || s_count > d->config.seq_len || s_first > d->config.seq_len - s_count)
        return hd_fail(err, HD_E_INTERNAL, "data: positions %ld + %ld of sequences of %ld", (long)s_first,
                       (long)s_count, (long)d->config.seq_len);
    for (uint64_t nth = 0; g.offset + g.length < s_end && !rc; nth++) {
        if ((rc = next_segment(d, s, i, nth, &g, err)))
            break;
        int64_t from = HD__MAX(s_first, g.offset), count = HD__MIN(s_end, g.offset + g.length) - from;
        if (count <= 0)
            continue;
        int32_t *to = ids + (from - s_first), *label = labels + (from - s_first);
        if (g.is_padding) {
            memset(to, 0, (size_t)count * sizeof *to);
            memset(label, 0xff, (size_t)count * sizeof *label);
            continue;
        }
        rc = read_stream(d, s, TOKENS, g.at + (uint64_t)(from - g.offset), (uint64_t)count, to, err);
        if (!rc)
            rc = read_labels(d, s, &g, from - g.offset, count, to, label, err);
    }
    return rc;
}

int32_t hd__data_positions(const struct hd__data *d, uint64_t number, int32_t *positions, struct hd_error *err)
{
    uint64_t i;
    const struct token_stream *s = find_sequence(d, number, &i);
    struct segment g = {0};
    int32_t rc = HD_OK;
    for (uint64_t nth = 0; g.offset + g.length < d->config.seq_len && !rc; nth++) {
        rc = next_segment(d, s, i, nth, &g, err);
        for (int64_t k = 0; k < g.length && !rc; k++)
            positions[g.offset + k] = (int32_t)k;
    }
    return rc;
}
