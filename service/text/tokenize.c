/* Batches of documents in a ring: the caller's thread fills and writes them, workers encode. */
#include "service/text/tokenize.h"

#include <ctype.h>
#include <errno.h>
#include <iconv.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "service/text/indexed.h"
#include "service/text/tokenize_internal.h"
#include "service/text/unpack.h"

enum { BATCH_BYTES = 1 << 20, BATCH_DOCUMENTS = 4096, IN_FLIGHT = 1 << 28, KEPT = 1 << 23, FRAMES = 256 };
enum { EMPTY, FILLED, ENCODING, ENCODED };

struct item {
    struct hd__document document; /* text is NULL until the batch is encoded: it lies at `text_at` */
    size_t text_at;
    size_t ids_end;      /* of the batch's ids */
    int bad, bare;       /* bare: chat: a prompt with its completion */
    const char *letters; /* a special token that stands as letters in a content, or (no chat) in the text */
};

struct batch {
    int state;
    HD__ARRAY(struct item) items;
    struct hd__text text;
    struct hd__ids ids;
    uint8_t *counts; /* chat: of each id, whether the loss counts it */
    size_t n_counts;
    struct hd__chat_ids chat;
    struct hd__documents_position end;
    uint64_t consumed;
    int32_t rc, read_rc; /* of the item after the last that has ids; of reading the next document */
    struct hd_error err, read_err;
};

struct tokenize {
    const struct hd__tokenize_config *config;
    struct hd__documents *documents;
    struct hd__indexed_writer *writer;
    struct hd__tokenize_progress done; /* written */
    struct hd__tokenize_state state;
    double began, flushed;
    uint64_t flushed_tokens, empty; /* empty: answers, or texts, since it began or went on */
    uint64_t feeds, escaped;        /* JSON lines that have a line feed, and those that have a backslash and an n */
    uint64_t unknown;               /* tokens that are the tokenizer's unk */
    uint32_t separators;            /* lines of text that are SEPARATOR alone */
    uint32_t framed;                /* documents of which the first and the last id were looked at: at most FRAMES */
    int64_t first, last;            /* these ids, where all have them in common; -1: they differ */

    pthread_mutex_t mutex; /* of what follows, and of the states of batches */
    pthread_cond_t work, ready;
    struct batch *ring;
    uint32_t n_ring, n_threads;
    uint64_t read, taken, written; /* batches */
    size_t in_flight;              /* bytes of text */
    int at_end, stop, finished;    /* finished: by an earlier call */
    pthread_t threads[256];
};

/* ---- one document */

static void add_ids(struct batch *b, const int32_t *ids, size_t n)
{
    if (b->ids.count + n > b->ids.room) {
        b->ids.room = HD__MAX(2 * b->ids.room, b->ids.count + n);
        b->ids.at = hd__realloc(b->ids.at, b->ids.room * sizeof *b->ids.at);
    }
    if (n)
        memcpy(b->ids.at + b->ids.count, ids, n * sizeof *ids);
    b->ids.count += n;
}

/* A conversation brings the tokens that end it. */
static int32_t encode_chat(const struct hd__tokenize_config *c, const json_t *line, struct batch *b,
                           struct hd_error *err)
{
    int32_t rc = hd__chat_encode(c->tokenizer, c->chat, line, &b->chat, err);
    if (rc)
        return rc;
    add_ids(b, b->chat.ids.at, b->chat.ids.count);
    if (b->ids.count > b->n_counts) {
        b->n_counts = 2 * b->ids.count;
        b->counts = hd__realloc(b->counts, b->n_counts);
    }
    if (b->chat.ids.count)
        memcpy(b->counts + b->ids.count - b->chat.ids.count, b->chat.counts, b->chat.ids.count);
    return HD_OK;
}

static int32_t encode_text(const struct hd__tokenize_config *c, const char *text, size_t bytes, struct batch *b,
                           struct hd_error *err)
{
    const int32_t eod = (int32_t)c->eod;
    size_t before = b->ids.count;
    int32_t rc = hd__tokenizer_encode(c->tokenizer, text, bytes, bytes ? c->flags : 0, &b->ids, err);
    if (!rc && eod >= 0 && b->ids.count > before && b->ids.at[b->ids.count - 1] != eod)
        add_ids(b, &eod, 1);
    return rc;
}

/* The text of {"field": "..."}, or a conversation. Whole numbers of other fields may be of any size. */
static int32_t encode_line(const struct hd__tokenize_config *c, const struct hd__document *d, struct batch *b,
                           struct hd_error *err)
{
    json_error_t why;
    json_t *line = json_loadb(d->text, d->bytes, JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, &why);
    const json_t *text = json_object_get(line, c->field);
    const char *other = hd__chat_other_form(line);
    int32_t rc;
    if (d->line == 1 && d->text[strspn(d->text, " \t\r")] == '[' && (!line || json_is_object(json_array_get(line, 0))))
        rc = hd_fail(err, HD_E_UNSUPPORTED,
                     "is one JSON array, and an object a line is read: write these by jq -c '.[]' %s >FILE.jsonl",
                     d->path);
    else if (!line)
        rc = hd_fail(err, HD_E_INVALID, "is no JSON object: %s (column %d)", why.text, why.column);
    else if (!json_is_object(line))
        rc = hd_fail(err, HD_E_INVALID, "is no JSON object but %s: a line is {\"%s\": \"...\"}",
                     json_is_array(line) ? "an array" : "a single value", c->field);
    else if (c->chat)
        rc = encode_chat(c, line, b, err);
    else if (!text)
        rc = hd_fail(err, HD_E_INVALID, "has no field \"%s\"%s%s", c->field, other ? "; " : "",
                     json_object_get(line, "messages") || json_object_get(line, "completion")
                         ? ", but a conversation: name its template by --chat-template (data.chat_template in a job)"
                     : other ? other
                             : "; --field names another (data.field in a job)");
    else if (!json_is_string(text))
        rc = hd_fail(err, HD_E_INVALID, "field \"%s\" is no string%s", c->field,
                     json_is_number(json_array_get(text, 0))
                         ? " but a list of numbers: token ids go into a .npy (docs/data.md), and data.train names that"
                         : "");
    else
        rc = encode_text(c, json_string_value(text), json_string_length(text), b, err);
    json_decref(line);
    return rc;
}

static void free_batch(struct batch *b)
{
    hd__free_array(&b->items);
    hd__text_free(&b->text);
    free(b->ids.at);
    free(b->counts);
    hd__chat_ids_free(&b->chat);
}

/* Is it text? Bytes of another encoding, or of a file that is none, would be tokens that no word has. */
static int32_t check_text(const struct hd__document *d, struct hd_error *err)
{
    uint32_t sink[4096];
    char *at = (char *)d->text, *zero = memchr(at, 0, d->bytes);
    size_t left = d->bytes;
    iconv_t to = iconv_open("UCS-4LE", "UTF-8");
    if (to == (iconv_t)-1)
        return hd_fail(err, HD_E_IO, "whether it is UTF-8 cannot be found out: %s", strerror(errno));
    for (int more = 1; left && more;) {
        char *out = (char *)sink;
        size_t room = sizeof sink;
        more = iconv(to, &at, &left, &out, &room) != (size_t)-1 || errno == E2BIG;
    }
    iconv_close(to);
    if (left && (!zero || zero > at))
        return hd_fail(err, HD_E_INVALID,
                       "is not UTF-8: its byte %zu is 0x%02x: convert it, where it is Latin-1 by iconv -f LATIN1 -t "
                       "UTF-8",
                       (size_t)(at - d->text) + d->skipped, (unsigned)(uint8_t)*at);
    if (zero)
        return hd_fail(err, HD_E_INVALID, "is no text: its byte %zu is zero: name files of text",
                       (size_t)(zero - d->text) + d->skipped);
    return HD_OK;
}

static int32_t encode_document(const struct hd__tokenize_config *c, const struct hd__document *d, struct batch *b,
                               struct hd_error *err)
{
    if (!d->line && c->chat)
        return hd_fail(err, HD_E_UNSUPPORTED, "is no file of JSON lines, and a chat template is for these alone");
    if (d->line)
        return encode_line(c, d, b, err);
    int32_t rc = check_text(d, err);
    return rc ? rc : encode_text(c, d->text, d->bytes, b, err);
}

static void locate(const struct hd__tokenize_config *c, const struct hd__document *d, struct hd_error *err)
{
    struct hd_error why = *err;
    const char *hint = c->skip_hint && why.code == HD_E_INVALID ? c->skip_hint : "";
    if (d->line)
        hd_fail(err, why.code, "%s:%llu: %s%s%s", d->path, (unsigned long long)d->line, why.message, *hint ? "; " : "",
                hint);
    else
        hd_fail(err, why.code, "%s: %s%s%s", d->path, why.message, *hint ? "; " : "", hint);
}

/* A page around a file, as a link to it in a browser leads to, is markup and hardly the text that is meant. */
static int is_page(const char *path)
{
    struct hd_error unused = HD_ERROR_INIT;
    struct hd__unpack *file = NULL;
    char first[256] = "", *at = first;
    size_t n;
    if (strcasestr(path, ".htm") || hd__unpack_open(path, &file, &unused))
        return 0;
    if (!hd__unpack_read(file, first, sizeof first - 1, &n, &unused))
        at += strspn(first, " \t\r\n\xef\xbb\xbf");
    hd__unpack_close(file);
    return !strncasecmp(at, "<!doctype html", 14) || !strncasecmp(at, "<html", 5);
}

/* The file that this one was packed from, which is named just before it; NULL: none. */
static const char *find_unpacked(const struct hd__corpus *corpus, uint32_t file)
{
    for (uint32_t i = file; i-- && file - i <= 2;) {
        const char *path = corpus->files.at[i].path, *packed = corpus->files.at[file].path;
        const size_t n = strlen(path);
        if (!strncmp(packed, path, n) && (!strcmp(packed + n, ".gz") || !strcmp(packed + n, ".zst")))
            return path;
    }
    return NULL;
}

/* Descriptions of the data, in a folder or a pattern. */
static int is_card(const struct hd__corpus *corpus, const struct hd__corpus_file *f)
{
    return strcmp(corpus->sources.at[f->source], f->path) != 0 &&
           (hd__ends_with(f->path, "/README.md") || hd__ends_with(f->path, "/LICENSE.txt") ||
            hd__ends_with(f->path, "/LICENSE.md"));
}

void hd__tokenize_warn_of_files(const struct hd__corpus *corpus)
{
    const char *page = NULL, *card = NULL, *lines = NULL, *twice = NULL, *unpacked;
    uint32_t pages = 0;
    for (uint32_t i = 0; i < corpus->files.count; i++) {
        const struct hd__corpus_file *f = &corpus->files.at[i];
        if (!f->lines && is_page(f->path) && !pages++)
            page = f->path;
        card = !card && is_card(corpus, f) ? f->path : card;
        lines = !lines && f->lines ? f->path : lines;
        if (!twice && (unpacked = find_unpacked(corpus, i)) && (twice = f->path))
            hd__log(
                HD_LOG_WARN, NULL,
                "%s: %s is there, too, and both are read, so their documents twice an epoch: name one, or remove it",
                twice, unpacked);
    }
    if (card && lines)
        hd__log(HD_LOG_WARN, NULL,
                "%s: is text that is trained on, beside %s: is it what describes the data? A pattern (*.jsonl) leaves "
                "it out",
                card, lines);
    if (pages)
        hd__log(
            HD_LOG_WARN, NULL,
            "%s: is an HTML page%s, and all of its markup becomes tokens: fetch the file itself (from GitHub by its "
            "raw link), or write its text to a file; where markup is meant, call it .html",
            page, pages > 1 ? ", as are others" : "");
}

/* The first line of file number `i`. */
static int32_t try_line(const struct hd__tokenize_config *c, uint32_t i, struct hd_error *err)
{
    struct batch b = {0};
    struct hd__document d;
    struct hd__documents *documents = NULL;
    int found = 0;
    int32_t rc = hd__documents_open(c->corpus, (struct hd__documents_position){.file = i}, &documents, err);
    if (!rc)
        rc = hd__documents_next(documents, &d, &found, err);
    if (!rc && found && (rc = encode_document(c, &d, &b, err)))
        locate(c, &d, err);
    hd__documents_close(documents);
    free_batch(&b);
    return rc;
}

int32_t hd__tokenize_look(const struct hd__tokenize_config *config, struct hd_error *err)
{
    const struct hd__corpus *corpus = config->corpus;
    char first[4096];
    int32_t rc = HD_OK;
    for (uint32_t i = 0; i < corpus->files.count && !rc; i++) {
        const struct hd__corpus_file *f = &corpus->files.at[i];
        struct hd__document d = {.path = f->path, .text = first};
        struct hd__unpack *file = NULL;
        rc = hd__unpack_open(f->path, &file, err);
        if (!rc)
            rc = hd__unpack_read(file, first, sizeof first, &d.bytes, err);
        while (d.bytes && (first[d.bytes - 1] & 0xc0) == 0x80) /* the last character may be cut */
            d.bytes--;
        d.bytes -= d.bytes && first[d.bytes - 1] & 0x80;
        if (!rc && !f->lines && (rc = check_text(&d, err)))
            locate(config, &d, err);
        if (!rc && f->lines)
            rc = try_line(config, i, err);
        hd__unpack_close(file);
    }
    return rc;
}

static int32_t encode_item(const struct hd__tokenize_config *c, struct batch *b, struct item *item)
{
    size_t before = b->ids.count;
    item->document.text = b->text.at + item->text_at;
    int32_t rc = encode_document(c, &item->document, b, &b->err);
    item->letters =
        c->chat ? b->chat.letters : hd__chat_find_lacking(c->tokenizer, item->document.text, item->document.bytes);
    item->bare = c->chat && b->chat.bare;
    if (rc) {
        b->err.code = rc;
        b->ids.count = before;
        locate(c, &item->document, &b->err);
    }
    if (rc == HD_E_INVALID && c->skip_bad) {
        item->bad = 1;
        rc = HD_OK;
    }
    item->ids_end = b->ids.count;
    return rc;
}

static void encode_batch(const struct hd__tokenize_config *c, struct batch *b)
{
    b->rc = HD_OK;
    b->err = (struct hd_error)HD_ERROR_INIT;
    for (uint32_t i = 0; i < b->items.count && !b->rc; i++)
        if ((b->rc = encode_item(c, b, &b->items.at[i])))
            b->items.count = i; /* those before it are written */
    if (!b->rc && (b->rc = b->read_rc))
        b->err = b->read_err;
}

static void *worker(void *user)
{
    struct tokenize *t = user;
    pthread_mutex_lock(&t->mutex);
    while (!t->stop) {
        struct batch *b = &t->ring[t->taken % t->n_ring];
        if (t->taken == t->read) {
            pthread_cond_wait(&t->work, &t->mutex);
            continue;
        }
        t->taken++;
        b->state = ENCODING;
        pthread_mutex_unlock(&t->mutex);
        encode_batch(t->config, b);
        pthread_mutex_lock(&t->mutex);
        b->state = ENCODED;
        pthread_cond_signal(&t->ready);
    }
    pthread_mutex_unlock(&t->mutex);
    return NULL;
}

/* ---- reading */

static void trim(struct batch *b)
{
    if (b->text.room > KEPT || b->ids.room > KEPT / 4) {
        hd__text_free(&b->text);
        free(b->ids.at);
        free(b->counts);
        b->ids = (struct hd__ids){0};
        b->counts = NULL;
        b->n_counts = 0;
    }
    b->items.count = 0;
    b->text.length = b->ids.count = 0;
}

#define SEPARATOR "<|endoftext|>"

static void look_at(struct tokenize *t, const struct hd__document *d)
{
    static const char separator[] = "\n" SEPARATOR "\n";
    const char *end = d->text + d->bytes, *at = d->text;
    int feeds = 0, escaped = 0;
    if (!d->bytes)
        return;
    for (; !d->line && t->separators < 10 && (at = memmem(at, (size_t)(end - at), separator, sizeof separator - 1));
         at++)
        t->separators++;
    for (; d->line && (at = memchr(at, '\\', (size_t)(end - at))) && end - at > 3; at += 2) {
        feeds |= at[1] == 'n';
        escaped |= at[1] == '\\' && at[2] == 'n' && !islower((unsigned char)at[3]); /* no \nabla */
    }
    t->feeds += (uint64_t)feeds;
    t->escaped += (uint64_t)escaped;
}

/* *found: it has documents. */
static int32_t fill(struct tokenize *t, struct batch *b, int *found, struct hd_error *err)
{
    size_t limit = t->config->batch_bytes ? t->config->batch_bytes : BATCH_BYTES;
    int32_t rc = HD_OK;
    trim(b);
    for (int more = 1; !rc && more && b->text.length < limit && b->items.count < BATCH_DOCUMENTS;) {
        struct hd__document d;
        rc = hd__documents_next(t->documents, &d, &more, err);
        if (rc || !more)
            break;
        look_at(t, &d);
        hd__push(&b->items, (struct item){.document = d, .text_at = b->text.length});
        hd__text_add_bytes(&b->text, d.text, d.bytes);
    }
    b->end = hd__documents_position(t->documents);
    b->consumed = hd__documents_consumed(t->documents);
    *found = b->items.count > 0;
    return rc;
}

static int can_read(const struct tokenize *t)
{
    return !t->at_end && t->read - t->written < t->n_ring && (t->in_flight < IN_FLIGHT || t->read == t->written);
}

/* A failure to read is said after what was read before it is written: the batch carries it. */
static void read_batch(struct tokenize *t)
{
    struct batch *b = &t->ring[t->read % t->n_ring];
    int found;
    pthread_mutex_unlock(&t->mutex);
    b->read_err = (struct hd_error)HD_ERROR_INIT;
    b->read_rc = fill(t, b, &found, &b->read_err);
    pthread_mutex_lock(&t->mutex);
    t->at_end = b->read_rc || !found;
    if (!found && !b->read_rc)
        return;
    t->in_flight += b->text.length;
    b->state = FILLED;
    t->read++;
    pthread_cond_signal(&t->work);
}

/* ---- writing */

static void look_at_ids(struct tokenize *t, const int32_t *ids, size_t n)
{
    const int64_t unk = t->config->tokenizer->info.unk;
    for (size_t i = 0; i < n && unk >= 0; i++)
        t->unknown += ids[i] == unk;
    if (t->framed == FRAMES)
        return;
    t->first = !t->framed || t->first == ids[0] ? ids[0] : -1;
    t->last = !t->framed || t->last == ids[n - 1] ? ids[n - 1] : -1;
    t->framed++;
}

static int32_t write_items(struct tokenize *t, const struct batch *b, struct hd_error *err)
{
    int32_t rc = HD_OK;
    size_t begin = 0;
    for (uint32_t i = 0; i < b->items.count && !rc; i++) {
        const struct item *item = &b->items.at[i];
        struct hd__tokenize_share *share = &t->done.shares[item->document.source];
        size_t n = item->ids_end - begin;
        if (item->bad) {
            t->done.left_out++;
            continue;
        }
        size_t counted = 0;
        for (size_t k = 0; k < n && t->config->chat; k++)
            counted += b->counts[begin + k];
        t->empty += t->config->chat ? counted <= 1 /* the token that ends it */ : !n;
        if (n) { /* an empty document has no sequence, as Megatron writes it */
            look_at_ids(t, b->ids.at + begin, n);
            rc = hd__indexed_add(t->writer, b->ids.at + begin, n, t->config->chat ? b->counts + begin : NULL, err);
        }
        if (!rc)
            rc = hd__indexed_end_document(t->writer, err);
        share->documents++;
        share->tokens += n;
        share->letters += item->letters != NULL;
        share->bare += (uint64_t)item->bare;
        share->token = item->letters ? item->letters : share->token;
        t->done.size.documents++;
        t->done.size.tokens += n;
        begin = item->ids_end;
    }
    return rc;
}

static int32_t flush(struct tokenize *t, struct hd_error *err)
{
    t->flushed = hd__now();
    t->flushed_tokens = t->done.size.tokens;
    int32_t rc = hd__indexed_flush(t->writer, &t->done.size, err);
    return rc ? rc : hd__tokenize_progress_write(t->config, &t->done, err);
}

static int32_t report(struct tokenize *t, uint64_t consumed, struct hd_error *err)
{
    t->state.seconds = hd__now() - t->began;
    t->state.bytes = consumed;
    t->state.documents = t->done.size.documents;
    t->state.tokens = t->done.size.tokens;
    t->state.left_out = t->done.left_out;
    return t->config->progress ? t->config->progress(t->config->progress_user, &t->state, err) : HD_OK;
}

static int32_t write_batch(struct tokenize *t, struct batch *b, struct hd_error *err)
{
    uint64_t every = t->config->flush_tokens ? t->config->flush_tokens : UINT64_C(64) << 20;
    int32_t rc = write_items(t, b, err);
    if (!rc && b->rc) {
        *err = b->err;
        return b->rc;
    }
    if (rc)
        return rc;
    t->done.at = b->end;
    if (t->done.size.tokens - t->flushed_tokens >= every || hd__now() - t->flushed >= 10)
        rc = flush(t, err);
    return rc ? rc : report(t, b->consumed, err);
}

/* ---- all of it */

static int32_t run(struct tokenize *t, struct hd_error *err)
{
    int32_t rc = HD_OK;
    pthread_mutex_lock(&t->mutex);
    while (!rc && !(t->at_end && t->written == t->read)) {
        struct batch *b = &t->ring[t->written % t->n_ring];
        if (t->written < t->read && b->state == ENCODED) {
            pthread_mutex_unlock(&t->mutex);
            rc = write_batch(t, b, err);
            pthread_mutex_lock(&t->mutex);
            t->in_flight -= HD__MIN(t->in_flight, b->text.length);
            b->state = EMPTY;
            t->written++;
        } else if (can_read(t)) {
            read_batch(t);
        } else {
            pthread_cond_wait(&t->ready, &t->mutex);
        }
    }
    t->stop = 1;
    pthread_cond_broadcast(&t->work);
    pthread_mutex_unlock(&t->mutex);
    return rc;
}

static int32_t start_threads(struct tokenize *t, struct hd_error *err)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    uint32_t wanted = (uint32_t)(t->config->threads > 0 ? t->config->threads : HD__MAX(cores, 1));
    wanted = HD__MIN(wanted, HD__COUNT(t->threads));
    t->n_ring = 2 * wanted + 2;
    t->ring = hd__alloc(t->n_ring * sizeof *t->ring);
    pthread_mutex_init(&t->mutex, NULL);
    pthread_cond_init(&t->work, NULL);
    pthread_cond_init(&t->ready, NULL);
    while (t->n_threads < wanted && !pthread_create(&t->threads[t->n_threads], NULL, worker, t))
        t->n_threads++;
    return t->n_threads ? HD_OK : hd_fail(err, HD_E_NOMEM, "no thread could be started to tokenize");
}

static void stop_threads(struct tokenize *t)
{
    if (!t->ring)
        return;
    pthread_mutex_lock(&t->mutex);
    t->stop = 1;
    pthread_cond_broadcast(&t->work);
    pthread_mutex_unlock(&t->mutex);
    for (uint32_t i = 0; i < t->n_threads; i++)
        pthread_join(t->threads[i], NULL);
    for (uint32_t i = 0; i < t->n_ring; i++)
        free_batch(&t->ring[i]);
    free(t->ring);
    pthread_cond_destroy(&t->work);
    pthread_cond_destroy(&t->ready);
    pthread_mutex_destroy(&t->mutex);
}

static int32_t open_from_progress(struct tokenize *t, struct hd_error *err)
{
    const struct hd__tokenize_config *c = t->config;
    int32_t rc = hd__documents_open(c->corpus, t->done.at, &t->documents, err);
    if (!rc && !t->done.size.documents) /* an older progress is not of what is written from here on */
        hd__tokenize_progress_remove(c);
    return rc ? rc
              : hd__indexed_create(c->prefix, hd__indexed_type_for(c->tokenizer->info.vocab), c->chat != NULL,
                                   t->done.size, &t->writer, err);
}

/* Files with their names have what the progress says, which was written before they got them. */
static int is_finished(const struct tokenize *t)
{
    struct hd__indexed there = {0};
    char *part = hd__format("%s.bin.part", t->config->prefix);
    int finished = t->config->keeps_progress && t->done.size.documents && access(part, F_OK) &&
                   !hd__indexed_open(t->config->prefix, &there, NULL) && there.documents == t->done.size.documents &&
                   there.tokens == t->done.size.tokens;
    hd__indexed_close(&there);
    free(part);
    return finished;
}

static int32_t open_all(struct tokenize *t, struct hd_error *err)
{
    const struct hd__tokenize_config *c = t->config;
    int32_t rc = hd__indexed_check_output(c->prefix, c->overwrite, err);
    if (!rc)
        rc = hd__tokenize_progress_read(c, &t->done, err);
    if (!rc && is_finished(t)) {
        t->finished = 1;
        return report(t, c->corpus->bytes, err);
    }
    if (!rc)
        rc = open_from_progress(t, err);
    if (rc == HD_E_CORRUPT && t->documents && c->overwrite) { /* less is there than was written */
        hd__documents_close(t->documents);
        t->documents = NULL;
        memset(t->done.shares, 0, c->corpus->sources.count * sizeof *t->done.shares);
        t->done = (struct hd__tokenize_progress){.shares = t->done.shares};
        rc = open_from_progress(t, err);
    }
    t->state.all_bytes = c->corpus->bytes;
    t->state.begun_at = rc ? 0 : hd__documents_consumed(t->documents);
    t->flushed_tokens = t->done.size.tokens;
    return rc ? rc : start_threads(t, err);
}

static int32_t finish(struct tokenize *t, struct hd_error *err)
{
    const struct hd__tokenize_share *share = t->done.shares;
    const char *chat = t->config->chat_name;
    for (uint32_t i = 0; i < t->config->corpus->sources.count; i++, share++) {
        if (share->bare && strcmp(chat, "plain") != 0)
            hd__log(HD_LOG_WARN, NULL,
                    "%s: %" PRIu64 " of %" PRIu64 " documents are prompt and completion, which %s does not render: "
                    "write messages where it is meant, or say plain",
                    t->config->corpus->sources.at[i], share->bare, share->documents, chat);
        if (share->token && !t->config->chat && share->letters >= 10 && 100 * share->letters >= share->documents)
            hd__log(HD_LOG_WARN, NULL,
                    "%s: %" PRIu64 " of %" PRIu64 " documents have %s, which is no token of %s and becomes pieces of "
                    "text: take the tokenizer that their chat template belongs to",
                    t->config->corpus->sources.at[i], share->letters, share->documents, share->token,
                    t->config->tokenizer->path);
        else if (share->token && t->config->chat)
            hd__log(HD_LOG_WARN, NULL,
                    "%s: %" PRIu64 " of %" PRIu64 " documents have the text of %s in a content, as letters: if "
                    "the token is meant, leave it to the template",
                    t->config->corpus->sources.at[i], share->letters, share->documents, share->token);
    }
    int32_t rc = t->config->keeps_progress ? flush(t, err) : HD_OK;
    if (rc)
        return rc;
    char *meta = hd__tokenize_meta(t->config, &t->done);
    rc = hd__indexed_finish(t->writer, meta, err);
    t->writer = NULL;
    if (!rc && !t->config->keeps_progress)
        hd__tokenize_progress_remove(t->config);
    free(meta);
    return rc;
}

/* Does an id that all documents have there tell one from the next? The period of all last sentences does not. */
static int is_mark(const struct tokenize *t, int64_t id)
{
    return id >= 0 && !hd__tokenizer_is_word(t->config->tokenizer, (int32_t)id);
}

static void warn_texts(const struct tokenize *t)
{
    const struct hd__tokenize_config *c = t->config;
    const char *source = c->corpus->sources.at[0];
    unsigned long long empty = t->empty, all = t->done.size.documents;
    if (t->separators >= 10 && hd__tokenizer_find(c->tokenizer, SEPARATOR) < 0)
        hd__log(HD_LOG_WARN, NULL,
                "%s: has lines of " SEPARATOR ", which is no token of %s and becomes pieces of text: put there what "
                "ends a document by it, or make each document a line of JSON",
                source, c->tokenizer->path);
    if (!t->feeds && t->escaped >= 10 && 2 * t->escaped > all)
        hd__log(HD_LOG_WARN, NULL,
                "%s: %llu of %llu documents have \\n as a backslash and an n, and none has a line feed: was their JSON "
                "escaped twice?",
                source, (unsigned long long)t->escaped, all);
    if (100 * t->unknown > t->done.size.tokens && c->tokenizer->info.unk != hd__tokenizer_eod(c->tokenizer))
        hd__log(HD_LOG_WARN, NULL,
                "%s: %llu of %llu tokens are <unk> (%lld), as %s lacks characters of this text, if that has no <unk> "
                "itself: take a tokenizer that has them, or that falls back to bytes",
                source, (unsigned long long)t->unknown, (unsigned long long)t->done.size.tokens,
                (long long)c->tokenizer->info.unk, c->tokenizer->path);
    if (!c->chat && !c->endless && c->eod < 0 && t->framed >= 10 && !is_mark(t, t->first) && !is_mark(t, t->last))
        hd__log(HD_LOG_WARN, NULL, "%s: %llu documents follow one another without a token that ends one: say %s",
                source, all,
                hd__tokenizer_eod(c->tokenizer) < 0 ? "which by --eod TOKEN of `heddle data tokenize`"
                                                    : "--append-eod, which is the default of a job");
    if (2 * empty <= all)
        return;
    if (c->chat)
        hd__log(HD_LOG_WARN, NULL,
                "%s: %llu of %llu documents have no answer but the token that ends one: a model learns from them to "
                "say nothing",
                source, empty, all);
    else if (c->corpus->files.at[0].lines)
        hd__log(HD_LOG_WARN, NULL,
                "%s: %llu of %llu documents are empty: is \"%s\" the field of their text? --field names another "
                "(data.field in a job)",
                source, empty, all, c->field);
    else
        hd__log(HD_LOG_WARN, NULL, "%s: %llu of %llu documents are empty", source, empty, all);
}

int32_t hd__tokenize(const struct hd__tokenize_config *config, struct hd__tokenize_state *state, struct hd_error *err)
{
    struct tokenize *t = hd__alloc(sizeof *t);
    t->config = config;
    t->began = t->flushed = hd__now();
    t->done.shares = hd__alloc((config->corpus->sources.count + 1) * sizeof *t->done.shares);
    int32_t rc = open_all(t, err);
    if (!rc && !t->finished)
        rc = run(t, err);
    stop_threads(t);
    if (!rc)
        warn_texts(t);
    int none = !rc && !t->done.size.documents && (t->done.left_out || !config->overwrite);
    if (none)
        hd__tokenize_progress_remove(config);
    else if (!rc && !t->finished)
        rc = finish(t, err);
    hd__indexed_abandon(t->writer, !none);
    hd__documents_close(t->documents);
    if (!rc && state)
        *state = t->state;
    free(t->done.shares);
    free(t);
    return rc;
}
