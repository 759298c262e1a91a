#include "service/train/corpus.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/file.h"
#include "heddle/file.h"
#include "service/text/documents.h"
#include "service/text/indexed.h"
#include "service/text/token_cache.h"
#include "service/train/batch_feed.h"
#include "service/train/frequencies.h"
#include "service/train/token_origin.h"

#define BEAT "data/tokens/beat"
#define HASH "data/tokens/hash"
enum { BEAT_SECONDS = 5 };

struct corpus {
    const struct hd__compiled *compiled;
    struct hd__job *job;
    struct hd__tokenizer tokenizer;
    int64_t eod;
    const struct hd__chat_template *chat;
    const char *key; /* that says the tokenizer: "data.tokenizer", "model.from" */
    int how, met;    /* met: the first rank of this machine has them */
    int32_t missing;
    struct hd_store *store; /* gets beats; may be NULL */
    double beaten;
    uint64_t beats;
};

/* ---- which of the paths are text */

static int is_value(struct hd__job *job, const char *key, const char *value)
{
    const struct hd__job_value *v = hd__job_value_get(job, key);
    return v && !strcmp(v->text, value);
}

static const struct hd__tokenized *find_tokenized(const struct hd__job *job, const char *path)
{
    for (uint32_t i = 0; i < job->tokenized.count; i++)
        if (!strcmp(job->tokenized.at[i].path, path))
            return &job->tokenized.at[i];
    return NULL;
}

const char *hd__train_corpus_path(const struct hd__job *job, const char *path)
{
    const struct hd__tokenized *t = find_tokenized(job, path);
    return t ? t->tokens : path;
}

static int is_pattern(const char *path)
{
    struct stat st;
    return stat(path, &st) && strpbrk(path, "*?[") && !strstr(path, "://");
}

static int is_tokens_name(const char *path)
{
    return hd__ends_with(path, ".bin") || hd__ends_with(path, ".npy");
}

int32_t hd__train_corpus_shards(const char *path, struct hd__corpus *shards, struct hd_error *err)
{
    struct stat st;
    *shards = (struct hd__corpus){0};
    if (is_pattern(path) ? is_tokens_name(path) : !stat(path, &st) && S_ISDIR(st.st_mode))
        return hd__corpus_find_tokens(path, shards, err);
    return HD_OK;
}

static int holds_shards(const char *path)
{
    struct hd_error unused = HD_ERROR_INIT;
    struct hd__corpus shards;
    int found = !hd__train_corpus_shards(path, &shards, &unused) && shards.files.count;
    hd__corpus_free(&shards);
    return found;
}

static int is_folder_or_pattern(const char *path)
{
    struct stat st;
    return stat(path, &st) ? strpbrk(path, "*?[") != NULL : S_ISDIR(st.st_mode);
}

/* Without data.tokenizer a model of bytes reads text as it is, and other data plug-ins know their paths. */
int hd__train_corpus_is_text(const struct hd__compiled *c, const char *path)
{
    struct hd__job *job = c->job;
    if (is_tokens_name(path) || strstr(path, "://") || holds_shards(path)) /* behind a URL: as they are */
        return 0;
    if (job->data_tokenizer)
        return 1;
    if (strcmp(job->data->use, "tokens") != 0 || !is_value(job, "data.format", "auto"))
        return 0;
    return is_folder_or_pattern(path) || (c->info.weights && c->info.vocab != 256 && hd__corpus_is_text_name(path));
}

int hd__train_corpus_has_text(const struct hd__compiled *c)
{
    const struct hd__sources *both[] = {&c->job->train, &c->job->val};
    int found = 0;
    for (size_t k = 0; k < HD__COUNT(both); k++)
        for (uint64_t i = 0; i < both[k]->count; i++)
            found |= hd__train_corpus_is_text(c, both[k]->at[i].path);
    return found;
}

/* Counts the prompts with completions among the first lines of a source. */
static void count_bare(const char *path, uint64_t *bare, uint64_t *lines)
{
    struct hd_error unused = HD_ERROR_INIT;
    struct hd__corpus files = {0};
    struct hd__documents *documents = NULL;
    struct hd__document d;
    int more = !hd__corpus_list(path, &files, &unused) &&
               !hd__documents_open(&files, (struct hd__documents_position){0}, &documents, &unused);
    for (size_t i = 0; i < 1024 && more && !hd__documents_next(documents, &d, &more, &unused) && more; i++) {
        json_t *line = json_loadb(d.text, d.bytes, JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, NULL);
        *bare += json_object_get(line, "completion") != NULL;
        ++*lines;
        json_decref(line);
    }
    hd__documents_close(documents);
    hd__corpus_free(&files);
}

int hd__train_corpus_is_bare(const struct hd__compiled *c)
{
    uint64_t bare = 0, lines = 0;
    for (uint64_t i = 0; i < c->job->train.count; i++)
        if (hd__train_corpus_is_text(c, c->job->train.at[i].path))
            count_bare(c->job->train.at[i].path, &bare, &lines);
    return bare && bare == lines;
}

const char *hd__train_corpus_bytes(const struct hd__compiled *c)
{
    struct hd__job *job = c->job;
    int all = is_value(job, "data.format", "bytes"),
        some = is_value(job, "data.format", "auto") && c->info.vocab == 256;
    for (uint64_t i = 0; i < job->train.count && !strcmp(job->data->use, "tokens"); i++) {
        const char *path = job->train.at[i].path;
        if (all || (some && !is_tokens_name(path) && !strstr(path, "://") && !is_folder_or_pattern(path)))
            return path;
    }
    return NULL;
}

/* ---- what is held out */

/* A file, by what its paths have in common. */
struct file_id {
    const char *path;  /* in the job's arena */
    uint64_t split_of; /* ends of the file that `heddle data split` made it of; 0: none */
    uint64_t size;     /* 0: of a URL */
    uint64_t ends;     /* 0: not read yet */
    dev_t device;
    ino_t number;
};

struct file_ids {
    HD__ARRAY(struct file_id) list;
};

static void add_file(const struct hd__compiled *c, struct file_ids *to, const char *path)
{
    struct stat st = {0};
    const char *kept = hd__arena_strdup(&c->job->arena, path), *url = strstr(path, "://");
    if (url || !stat(path, &st))
        hd__push(&to->list, ((struct file_id){kept, hd__train_token_file(c, path).split_of, (uint64_t)st.st_size, 0,
                                              st.st_dev, url ? hd__hash(path, strlen(path), 0) : st.st_ino}));
}

/* The sources, and the files of those that are folders or patterns. */
static struct file_ids list_files(const struct hd__compiled *c, const struct hd__sources *sources)
{
    struct file_ids all = {0};
    for (uint64_t i = 0; i < sources->count; i++) {
        const char *path = sources->at[i].path;
        struct hd_error unused = HD_ERROR_INIT;
        struct hd__corpus files;
        if (hd__train_corpus_is_text(c, path))
            hd__corpus_list(path, &files, &unused);
        else
            hd__train_corpus_shards(path, &files, &unused);
        for (uint32_t k = 0; k < files.files.count; k++)
            add_file(c, &all, files.files.at[k].path);
        if (!files.files.count)
            add_file(c, &all, path);
        hd__corpus_free(&files);
    }
    return all;
}

static int by_number(const void *a, const void *b)
{
    return memcmp(&((const struct file_id *)a)->device, &((const struct file_id *)b)->device,
                  sizeof(struct file_id) - offsetof(struct file_id, device));
}

static uint64_t ends_of(struct file_id *f)
{
    f->ends = f->ends || !f->size ? f->ends : hd_file_ends(f->path, &f->size);
    return f->ends;
}

/* Is the middle of x in the last *left bytes of y, off which held-out data is mostly cut? One that repeats itself, as
 * padding does, says nothing. */
static int has_middle(const struct file_id *x, const struct file_id *y, uint64_t *left)
{
    enum { LOOK = O_RDONLY | O_CLOEXEC | O_NONBLOCK };
    char middle[8192]; /* more than a system prompt, say, that all have */
    off_t from = (off_t)(y->size - HD__MIN(y->size, *left)) & ~(off_t)0xffff; /* whole pages */
    size_t n = HD__MIN(x->size, sizeof middle), searched = y->size - (uint64_t)from;
    int a = open(x->path, LOOK), b = open(y->path, LOOK), found = 0;
    void *map = n < 64 || !searched || !*left ? MAP_FAILED : mmap(NULL, searched, PROT_READ, MAP_PRIVATE, b, from);
    if (map != MAP_FAILED) {
        found = pread(a, middle, n, (off_t)((x->size - n) / 2)) == (ssize_t)n && memcmp(middle, middle + 4, n - 4) &&
                memmem(map, searched, middle, n);
        *left -= HD__MIN(*left, searched);
        munmap(map, searched);
    }
    close(a);
    close(b);
    return found;
}

/* Says which file both have, or which copy, or which was split off or cut out; NULL: none. */
static const char *find_common(struct hd__job *job, struct file_ids *a, struct file_ids *b, const char *key)
{
    uint64_t left = 256 << 20;
    for (size_t pair = 0, n = (size_t)a->list.count * b->list.count; pair < 4 * n; pair++) {
        struct file_id *x = &a->list.at[pair % n / b->list.count], *y = &b->list.at[pair % b->list.count];
        if (pair < n && !by_number(x, y))
            return hd__arena_format(&job->arena, "%s is a file that %s has, too", x->path, key);
        if (pair >= n && pair < 2 * n && x->size == y->size && ends_of(x) && ends_of(x) == ends_of(y))
            return hd__arena_format(&job->arena, "%s has the same %s as %s of %s", x->path,
                                    x->size > 2 * HD_FILE_END ? "size and the same first and last bytes" : "bytes",
                                    y->path, key);
        if (pair >= 3 * n && left && has_middle(x, y, &left))
            return hd__arena_format(&job->arena, "the middle of %s is in %s of %s, too", x->path, y->path, key);
        if (pair >= 2 * n && x->split_of && x->split_of == ends_of(y))
            return hd__arena_format(&job->arena, "%s was split off %s, which %s names instead of the other part",
                                    x->path, y->path, key);
    }
    return NULL;
}

int hd__train_corpus_is_split(const struct hd__compiled *c, int test)
{
    struct file_ids train = list_files(c, &c->job->train), val = list_files(c, test ? &c->job->test : &c->job->val);
    int found = !test && !c->job->val.count && c->job->val_fraction > 0;
    for (size_t pair = 0; pair < (size_t)train.list.count * val.list.count; pair++) {
        uint64_t of = val.list.at[pair / train.list.count].split_of;
        found |= of && of == train.list.at[pair % train.list.count].split_of;
    }
    hd__free_array(&train.list);
    hd__free_array(&val.list);
    return found;
}

/* ---- marks of files */

const char *hd__train_mark_key(int k)
{
    static const char *const keys[HD__MARKS] = {"data.train", "data.val", "data.test", "model.from"};
    return keys[k];
}

/* Sizes have to do where the files are many. A URL, say, leaves the mark empty. */
static void mark_files(struct file_ids *files, char out[HD__MARK])
{
    uint64_t bytes = 0, sum = 0;
    int known = files->list.count > 0, few = files->list.count <= 256;
    for (uint32_t i = 0; i < files->list.count && known; i++) {
        const uint64_t one[] = {few ? ends_of(&files->list.at[i]) : 1, files->list.at[i].size};
        known = one[0] && one[1];
        sum += hd__hash(one, sizeof one, 0);
        bytes += one[1];
    }
    *out = 0;
    if (known && files->list.count == 1)
        snprintf(out, HD__MARK, "%" PRIu64 " bytes, checksum %08x", bytes, (uint32_t)sum);
    else if (known)
        snprintf(out, HD__MARK, "%u files, %" PRIu64 " bytes, checksum %08x", files->list.count, bytes, (uint32_t)sum);
    hd__free_array(&files->list);
}

static struct file_ids list_weights(const struct hd__compiled *c)
{
    struct file_ids all = {0};
    DIR *dir = c->info.weights ? opendir(c->info.weights) : NULL;
    for (const struct dirent *e; dir && (e = readdir(dir));) {
        const char *path = hd__arena_format(&c->job->arena, "%s/%s", c->info.weights, e->d_name);
        struct stat st;
        if (hd__ends_with(path, ".safetensors") && !stat(path, &st))
            hd__push(&all.list, ((struct file_id){.path = path, .size = (uint64_t)st.st_size}));
    }
    if (dir)
        closedir(dir);
    return all;
}

void hd__train_marks_make(const struct hd__compiled *c, struct hd__train_marks *out)
{
    const struct hd__sources *sources[] = {&c->job->train, &c->job->val, &c->job->test};
    for (size_t k = 0; k < HD__MARKS; k++) {
        struct file_ids files = k < HD__COUNT(sources) ? list_files(c, sources[k]) : list_weights(c);
        mark_files(&files, out->of[k]);
    }
}

json_t *hd__train_marks_json(const struct hd__train_marks *marks)
{
    json_t *o = json_object();
    for (int k = 0; k < HD__MARKS; k++)
        if (*marks->of[k])
            json_object_set_new(o, hd__train_mark_key(k), json_string(marks->of[k]));
    return o;
}

/* ---- warnings */

/* Says that x is y, a copy of it, or split off it; NULL: none of these. */
static const char *find_same(struct hd__job *job, struct file_id *x, struct file_id *y, int reads)
{
    if (!by_number(x, y))
        return hd__arena_format(&job->arena, "%s is there twice, and read twice an epoch", x->path);
    if (reads && x->size == y->size && ends_of(x) && ends_of(x) == ends_of(y))
        return hd__arena_format(&job->arena, "%s is there twice, and read twice an epoch: it is a copy of %s", x->path,
                                y->path);
    if (reads && x->split_of && x->split_of == ends_of(y))
        return hd__arena_format(&job->arena, "%s was split off %s, so its tokens are read twice an epoch", x->path,
                                y->path);
    return NULL;
}

static void warn_twice(struct hd__job *job, struct file_ids *files)
{
    const char *same = NULL;
    int few = files->list.count <= 256; /* copies are looked for by reading */
    if (!few)
        qsort(files->list.at, files->list.count, sizeof *files->list.at, by_number);
    for (uint32_t i = 1; i < files->list.count && !same; i++)
        for (struct file_id *x = &files->list.at[i], *y = few ? files->list.at : x - 1; y < x && !same; y++) {
            same = find_same(job, x, y, few);
            same = same || !few ? same : find_same(job, y, x, few);
        }
    if (same)
        hd__log(HD_LOG_WARN, NULL, "%s: data.train: %s", hd__job_where(job, "data.train"), same);
}

/* A name with one of these words, which ends at a mark or a digit: where it begins; NULL: it has none. */
static const char *find_part(const char *path, const char *const *words, size_t n)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    for (size_t k = 0; k < n; k++)
        for (const char *at = name; (at = strstr(at, words[k])); at++)
            if ((at == name || strchr("-_.", at[-1])) && strchr("-_.0123456789", at[strlen(words[k])]))
                return at;
    return NULL;
}

static int has_lines_name(const char *path)
{
    return strstr(path, ".jsonl") || strstr(path, ".ndjson") || strstr(path, ".json");
}

/* Parts of one set of data that a folder or a pattern has taken together: to train on, and held out. */
static void warn_parts(struct hd__job *job, const struct file_ids *files)
{
    if (files->list.count <= job->train.count) /* each by its name */
        return;
    static const char *const train[] = {"train", "training"}, *const held_out[] = {"validation", "valid", "val", "dev",
                                                                                   "test"};
    const char *where = hd__job_where(job, "data.train"), *of_train = NULL, *card = NULL, *lines = NULL;
    for (uint32_t i = 0; i < files->list.count; i++) {
        const char *path = files->list.at[i].path, *word = find_part(path, train, HD__COUNT(train));
        of_train = of_train || !word ? of_train : path;
        card = hd__ends_with(path, "/README.md") ? path : card;
        lines = has_lines_name(path) ? path : lines;
    }
    for (uint32_t i = 0; i < files->list.count && of_train; i++) {
        const char *path = files->list.at[i].path, *word = find_part(path, held_out, HD__COUNT(held_out)),
                   *other = find_part(of_train, train, HD__COUNT(train));
        if (!word || word - path != other - of_train || memcmp(path, of_train, (size_t)(word - path)) != 0)
            continue;
        hd__log(
            HD_LOG_WARN, NULL,
            "%s: data.train: by their names %s is to train on and %s is held out, and both are trained on: name the "
            "first in data.train, and this one in data.val or data.test",
            where, of_train, path);
        break;
    }
    if (card && lines)
        hd__log(HD_LOG_WARN, NULL,
                "%s: data.train: %s is text that is trained on, beside %s: is it what describes the data? A pattern "
                "(*.jsonl) "
                "leaves it out",
                where, card, lines);
}

/* Files that two of data.train, the sets of data.val and data.test have in common. */
static void warn_held_out(const struct hd__compiled *c)
{
    struct hd__job *job = c->job;
    struct {
        const char *key;
        struct file_ids files;
    } parts[HD__VAL_SETS + 2] = {{"data.train", list_files(c, &job->train)}};
    size_t n = 1;
    for (uint64_t k = 0; k < job->n_val_sets; k++, n++) {
        parts[n].key = hd__arena_format(&job->arena, "data.val.%s", job->val_sets[k].name);
        parts[n].files = list_files(c, &job->val_sets[k].sources);
    }
    if (!job->n_val_sets) {
        parts[n].key = "data.val";
        parts[n++].files = list_files(c, &job->val);
    }
    parts[n].key = "data.test";
    parts[n++].files = list_files(c, &job->test);
    warn_twice(job, &parts[0].files);
    warn_parts(job, &parts[0].files);
    for (size_t h = 1; h < n; h++)
        for (size_t other = 0; other < h; other++) {
            const char *both = find_common(job, &parts[h].files, &parts[other].files, parts[other].key);
            if (both)
                hd__log(HD_LOG_WARN, NULL, "%s: %s: %s: %s", hd__job_where(job, parts[h].key), parts[h].key, both,
                        !other      ? "it is not held out"
                        : h < n - 1 ? "val_loss counts it twice"
                                    : "the test is on what was evaluated before");
        }
    for (size_t k = 0; k < n; k++)
        hd__free_array(&parts[k].files.list);
}

int hd__train_corpus_has_url(const struct hd__job *job)
{
    const struct hd__sources *all[] = {&job->train, &job->val, &job->test};
    int found = 0;
    for (size_t k = 0; k < HD__COUNT(all); k++)
        for (uint64_t i = 0; i < all[k]->count; i++)
            found |= strstr(all[k]->at[i].path, "://") != NULL;
    return found;
}

/* Is any text of train and val in JSON lines? */
static int has_lines(const struct hd__compiled *c)
{
    const struct hd__sources *both[] = {&c->job->train, &c->job->val};
    int found = 0;
    for (size_t k = 0; k < HD__COUNT(both); k++)
        for (uint64_t i = 0; i < both[k]->count; i++) {
            struct hd_error unused = HD_ERROR_INIT;
            struct hd__corpus files = {0};
            if (hd__train_corpus_is_text(c, both[k]->at[i].path))
                hd__corpus_list(both[k]->at[i].path, &files, &unused);
            for (uint32_t n = 0; n < files.files.count; n++)
                found |= (int)files.files.at[n].lines;
            hd__corpus_free(&files);
        }
    return found;
}

/* Keys of text in a job that reads none, and of URLs. */
static void warn_idle_keys(const struct hd__compiled *c)
{
    int text = hd__train_corpus_has_text(c), url = hd__train_corpus_has_url(c->job), chat = c->job->data_chat_template != NULL;
    const char *no_text = c->job->data_tokenizer ? "nothing is tokenized: the files are tokens"
                                                 : "nothing is tokenized: set data.tokenizer, or leave it out";
    const struct {
        const char *key;
        int used;
        const char *why;
    } rows[] = {{"data.field", text && !chat && has_lines(c),
                 !text  ? no_text
                 : chat ? "data.chat_template reads messages, or prompt and completion"
                        : "no file is of JSON lines (.jsonl, .json)"},
                {"data.chat_template", text, no_text},
                {"data.append_eod", text, no_text},
                {"data.cache", text, no_text},
                {"data.http_timeout", url, "no file is a URL: leave it out"},
                {"data.http_retries", url, "no file is a URL: leave it out"}};
    for (size_t i = 0; i < HD__COUNT(rows); i++) {
        const struct hd__job_value *value = hd__job_value_get(c->job, rows[i].key);
        if (value && !rows[i].used && strcmp(value->origin, "default") != 0)
            hd__log(HD_LOG_WARN, NULL, "%s: %s has no effect, because %s", value->origin, rows[i].key, rows[i].why);
    }
}

/* Tokens of data.train that have marks of what the loss counts beside them; NULL: none have. */
static const char *marks_of(const struct hd__compiled *c)
{
    struct file_ids files = list_files(c, &c->job->train);
    const char *found = NULL;
    for (uint32_t i = 0; i < files.list.count && !found; i++) {
        char *prefix = hd__indexed_prefix(files.list.at[i].path);
        const char *marks = hd__arena_format(&c->job->arena, "%s.loss", prefix);
        if (is_tokens_name(files.list.at[i].path) && !access(marks, F_OK))
            found = marks;
        free(prefix);
    }
    hd__free_array(&files.list);
    return found;
}

void hd__train_corpus_warn(const struct hd__compiled *c, int trains)
{
    const struct hd__job_value *loss = hd__job_value_get(c->job, "data.loss");
    const char *marks = trains && loss && !strcmp(loss->origin, "default") ? marks_of(c) : NULL;
    if (marks)
        hd__log(HD_LOG_WARN, NULL,
                "%s: data.train: %s marks what is to be learnt, and data.loss is not set, so prompts are trained, too: "
                "say data.loss=completion, or all",
                hd__job_where(c->job, "data.train"), marks);
    warn_held_out(c);
    hd__train_token_origin_warn(c);
    warn_idle_keys(c);
    if (trains && c->job->data_chat_template && (!loss || !strcmp(loss->origin, "default")) &&
        hd__train_corpus_has_text(c))
        hd__log(HD_LOG_WARN, NULL,
                "%s: data.chat_template is set and data.loss is not, so prompts are trained, too: say "
                "data.loss=completion, or all",
                hd__job_where(c->job, "data.chat_template"));
}

/* ---- the tokenizer */

/* Does the plug-in read what the cache has? */
static int32_t check_plugin(struct hd__job *job, struct hd_error *err)
{
    if (strcmp(job->data->use, "tokens") != 0)
        return hd__job_fail(job, "data.tokenizer", err,
                            "data.tokenizer: data.use is %s, which reads its paths itself: leave one of them out",
                            job->data->use);
    if (!is_value(job, "data.format", "auto") && !is_value(job, "data.format", "megatron"))
        return hd__job_fail(job, "data.format", err,
                            "data.format: with data.tokenizer the files are text, and what is made of them is "
                            "megatron: leave it out");
    return HD_OK;
}

/* Before hours of tokenizing: what the plug-in would refuse then of the tokens. */
static int32_t check_reading(struct hd__job *job, struct hd_error *err)
{
    const struct hd__job_value *type = hd__job_value_get(job, "data.token_dtype");
    if (type && strcmp(type->origin, "default") != 0)
        return hd__job_fail(job, "data.token_dtype", err,
                            "data.token_dtype: what is made of text says its type itself: leave it out");
    if (is_value(job, "data.loss", "completion") && !job->data_chat_template)
        return hd__job_fail(job, "data.loss", err,
                            "data.loss: completion counts what data.chat_template says of text: set that, or say all");
    return HD_OK;
}

static int32_t find_eod(struct corpus *c, struct hd_error *err)
{
    enum { NEVER = 2, ALWAYS = 1 };
    struct hd__job *job = c->job;
    c->eod = job->data_append_eod == NEVER ? -1 : hd__tokenizer_eod(&c->tokenizer);
    if (c->eod >= 0 || job->data_append_eod != ALWAYS)
        return HD_OK;
    return hd__job_fail(job, "data.append_eod", err, "data.append_eod: %s names no token that ends a document",
                        c->tokenizer.path);
}

static int32_t check_vocab(struct corpus *c, struct hd_error *err)
{
    int64_t has = c->tokenizer.info.vocab, model = c->compiled->info.vocab;
    const char *from = c->compiled->info.weights;
    if (has <= model)
        return HD_OK;
    if (from)
        return hd__job_fail(c->job, c->key, err,
                            "%s: %s has %lld ids, and the model of %s has rows for %lld: enlarge it in transformers "
                            "(resize_token_embeddings, save_pretrained)%s",
                            c->key, c->tokenizer.path, (long long)has, from, (long long)model,
                            c->job->data_tokenizer ? ", or take its own tokenizer" : "");
    return hd__job_fail(c->job, hd__job_value_get(c->job, "model.vocab") ? "model.vocab" : c->key, err,
                        "model.vocab: %lld, and %s has %lld ids: say model.vocab: %lld, or more", (long long)model,
                        c->tokenizer.path, (long long)has, (long long)has);
}

static int32_t find_chat(struct corpus *c, struct hd_error *err)
{
    const char *name = c->job->data_chat_template;
    c->chat = name ? hd__chat_find(name) : NULL;
    if (!name)
        return HD_OK;
    if (!c->chat)
        return hd__job_fail(c->job, "data.chat_template", err, "data.chat_template: %s: " HD__CHAT_THERE_ARE, name);
    if (hd__chat_check(&c->tokenizer, c->chat, err))
        return hd__job_fail(c->job, "data.chat_template", err, "data.chat_template: %s", err->message);
    return HD_OK;
}

static int32_t open_tokenizer(struct corpus *c, const char *key, const char *source, struct hd_error *err)
{
    struct hd__job *job = c->job;
    const char *path = job->data_tokenizer ? job->data_tokenizer : c->compiled->info.weights;
    c->key = job->data_tokenizer ? "data.tokenizer" : "model.from";
    int32_t rc = job->data_tokenizer ? check_plugin(job, err) : HD_OK;
    rc = rc ? rc : check_reading(job, err);
    if (rc)
        return rc;
    struct hd__corpus files = {0};
    if (!path && hd__corpus_list(source, &files, err))
        return hd__job_fail(job, key, err, "%s: %s", key, err->message);
    hd__corpus_free(&files);
    if (!path)
        return hd__job_fail(
            job, key, err,
            "%s: %s: a folder or a pattern that is not of token files alone (.bin, .npy) is read as text, "
            "and text needs a tokenizer: set data.tokenizer: FILE (tokenizer.json, tokenizer.model), "
            "or name files of tokens",
            key, source);
    if ((rc = hd__tokenizer_open(c->compiled->plugins, c->compiled->host, NULL, path, &c->tokenizer, err))) {
        hd__job_fail(job, c->key, err, "%s: %s%s", c->key, err->message,
                     job->data_tokenizer ? "" : "; data.tokenizer names another, for text");
        return err->code = rc == HD_E_IO || rc == HD_E_NOMEM ? rc : HD_E_INVALID;
    }
    rc = check_vocab(c, err);
    if (!rc)
        rc = find_chat(c, err);
    return rc ? rc : find_eod(c, err);
}

/* ---- one source */

static int32_t beat(void *user, struct hd_error *err)
{
    struct corpus *c = user;
    double now = hd__now();
    if (!c->store || now - c->beaten < BEAT_SECONDS)
        return HD_OK;
    c->beaten = now;
    c->beats++;
    return hd__store_put(c->store, BEAT, &c->beats, sizeof c->beats, err);
}

static void say(const struct corpus *c, const struct hd__token_cache *cache)
{
    char bytes[32];
    printf("%s: %s: %u file%s of %s would be tokenized by %s into %s\n", cache->key, cache->source,
           cache->corpus.files.count, cache->corpus.files.count > 1 ? "s" : "",
           hd__bytes_text(cache->corpus.bytes, bytes), c->tokenizer.path, cache->prefix);
}

static int32_t prepare_source(struct corpus *c, const char *key, const char *source, struct hd_error *err)
{
    struct hd__job *job = c->job;
    struct hd__token_cache cache = {.config = {.tokenizer = &c->tokenizer,
                                               .field = job->data_field,
                                               .eod = c->eod,
                                               .chat = c->chat,
                                               .chat_name = job->data_chat_template,
                                               .flags = HD_TOKENIZER_SPECIAL | HD_TOKENIZER_FRAME},
                                    .source = source,
                                    .folder = job->data_cache,
                                    .key = key,
                                    .timeout = job->comm_timeout,
                                    .beat = beat,
                                    .user = c};
    const int compare = c->met                     ? HD__TOKEN_CACHE_SIZES
                        : c->how == HD__CORPUS_SAY ? HD__TOKEN_CACHE_HASHES
                                                   : HD__TOKEN_CACHE_TIMES;
    int valid = 0, why = 0;
    int32_t rc = hd__token_cache_open(&cache, err);
    if (!rc)
        rc = hd__token_cache_look(&cache, compare, &valid, err);
    if (!rc && !valid && c->how != HD__CORPUS_LOOK)
        why = hd__can_write(hd__arena_format(&job->arena, "%s.lock", cache.prefix));
    if (why && c->how == HD__CORPUS_MAKE) /* a folder that is read alone */
        rc = hd__token_cache_look(&cache, HD__TOKEN_CACHE_HASHES, &valid, err);
    if (!rc && !valid && why) {
        hd__token_cache_close(&cache);
        return hd__job_fail(job, "data.cache", err, "data.cache: %s: %s", job->data_cache, strerror(why));
    }
    for (uint32_t i = 0; i < cache.corpus.files.count && !rc && !valid && c->chat; i++)
        if (!cache.corpus.files.at[i].lines)
            rc = hd_fail(err, HD_E_INVALID, "%s: is no file of JSON lines, and a chat template is for these alone",
                         cache.corpus.files.at[i].path);
    if (!rc && !valid && c->how != HD__CORPUS_LOOK)
        rc = hd__tokenize_look(&cache.corpus, err);
    if (!rc && !valid && c->how != HD__CORPUS_LOOK)
        hd__tokenize_warn_of_pages(&cache.corpus);
    if (!rc && !valid && c->how == HD__CORPUS_MAKE) {
        rc = hd__token_cache_make(&cache, err);
        valid = !rc;
    }
    if (!rc && !valid && c->how == HD__CORPUS_SAY)
        say(c, &cache);
    if (valid)
        hd__push(&job->tokenized,
                 (struct hd__tokenized){.path = source,
                                        .tokens = hd__arena_format(&job->arena, "%s.bin", cache.prefix),
                                        .hash = cache.hash});
    c->missing += !valid;
    hd__token_cache_close(&cache);
    if (!rc)
        return HD_OK;
    int32_t code = rc == HD_E_IO || rc == HD_E_NOMEM || rc == HD_E_TIMEOUT || rc == HD_E_PEER ? rc : HD_E_INVALID;
    hd__job_fail(job, key, err, "%s: %s", key, err->message);
    return err->code = code;
}

static int32_t prepare_sources(struct corpus *c, const char *key, const struct hd__sources *sources,
                               struct hd_error *err)
{
    int32_t rc = HD_OK;
    for (uint64_t i = 0; i < sources->count && !rc; i++) {
        const char *path = sources->at[i].path;
        if (!hd__train_corpus_is_text(c->compiled, path) || find_tokenized(c->job, path))
            continue;
        if (!c->tokenizer.handle)
            rc = open_tokenizer(c, key, path, err);
        if (!rc)
            rc = prepare_source(c, key, path, err);
    }
    return rc;
}

/* data.train and all sets of data.val. */
static int32_t prepare(struct corpus *c, struct hd_error *err)
{
    int32_t rc = prepare_sources(c, "data.train", &c->job->train, err);
    if (!rc)
        rc = prepare_sources(c, "data.val", &c->job->val, err);
    hd__tokenizer_close(&c->tokenizer);
    return rc;
}

int32_t hd__train_corpus_prepare(const struct hd__compiled *compiled, int how, int32_t *missing, struct hd_error *err)
{
    struct corpus c = {.compiled = compiled, .job = compiled->job, .how = how};
    int32_t rc = hd__train_token_origin(compiled, err);
    if (!rc)
        rc = prepare(&c, err);
    *missing = c.missing;
    return rc;
}

int32_t hd__train_corpus_make(const struct hd__compiled *compiled, const char *key, const struct hd__sources *sources,
                              struct hd_error *err)
{
    struct corpus c = {.compiled = compiled, .job = compiled->job, .how = HD__CORPUS_MAKE};
    int32_t rc = prepare_sources(&c, key, sources, err);
    hd__tokenizer_close(&c.tokenizer);
    return rc;
}

/* ---- ranks */

/* Until all are here, as long as one that still writes gets on: a rank that dies ends the wait by itself. */
static int32_t wait_for_all(struct hd_store *store, double timeout, struct hd_error *err)
{
    struct hd_error why = HD_ERROR_INIT;
    uint64_t before = 0, beats = 0;
    for (;;) {
        int32_t rc = hd__store_barrier(store, "tokens of data.train", hd__now() + timeout, &why);
        size_t bytes = sizeof beats;
        if (rc == HD_E_TIMEOUT && !hd__store_get(store, BEAT, &beats, &bytes, hd__now() + 1, NULL) && beats != before) {
            before = beats;
            continue;
        }
        if (rc)
            *err = why;
        return rc;
    }
}

/* Every machine has made its own: of the same files? job->tokenized has them as they were found, which may differ. */
static int32_t compare_hash(struct hd__job *job, const struct hd__launch_env *env, struct hd_store *store,
                            struct hd_error *err)
{
    const struct hd__sources *both[] = {&job->train, &job->val};
    uint64_t mine = 0, rank0 = 0;
    size_t bytes = sizeof rank0;
    const struct hd__tokenized *t;
    for (size_t k = 0; k < HD__COUNT(both); k++)
        for (uint64_t i = 0; i < both[k]->count; i++)
            if ((t = find_tokenized(job, both[k]->at[i].path)))
                mine = hd__hash(&t->hash, sizeof mine, mine);
    if (!env->rank)
        return hd__store_put(store, HASH, &mine, sizeof mine, err);
    int32_t rc = hd__store_get(store, HASH, &rank0, &bytes, hd__now() + job->comm_timeout, err);
    if (rc || mine == rank0)
        return rc;
    return hd__job_fail(
        job, "data.train", err,
        "data.train: rank %d has other tokens than rank 0: all machines need the same text and the same "
        "tokenizer",
        env->rank);
}

int32_t hd__train_corpus_meet(const struct hd__compiled *compiled, const struct hd__launch_env *env,
                              struct hd_store *store, struct hd_error *err)
{
    struct hd__job *job = compiled->job;
    struct corpus c = {.compiled = compiled, .job = job, .how = HD__CORPUS_LOOK, .store = store};
    int32_t rc = HD_OK, leads = env->local_rank == 0;
    if (!store || !hd__train_corpus_has_text(compiled))
        return HD_OK;
    if (leads) {
        uint32_t before = job->tokenized.count;
        c.how = HD__CORPUS_MAKE;
        rc = prepare(&c, err);
        if (!rc && job->tokenized.count != before) /* they could not be looked at before the start */
            rc = hd__train_feed_check(compiled, HD__FEED_TRAIN, 1, err);
        if (!rc && job->tokenized.count != before && job->eval_every)
            rc = hd__train_feed_check_sets(compiled, 1, err);
        if (!rc && job->tokenized.count != before)
            hd__train_frequencies_check(compiled, job->eval_every > 0);
    } else if (env->local_rank == 1) {
        rc = prepare(&c, err);
        if (!rc && c.missing)
            hd__log(HD_LOG_INFO, NULL,
                    "waiting for the first rank of this machine, which makes the tokens of %s or finds them",
                    job->train.at[0].path);
    }
    if (!rc)
        rc = wait_for_all(store, job->comm_timeout, err);
    c.missing = 0;
    c.how = HD__CORPUS_LOOK;
    c.met = 1;
    if (!rc)
        rc = prepare(&c, err);
    if (!rc && c.missing)
        rc = hd__job_fail(job, "data.cache", err,
                          "data.cache: %s: rank %d does not find there what the first rank of its machine has written: "
                          "name a folder that both see",
                          job->data_cache, env->rank);
    return rc ? rc : compare_hash(job, env, store, err);
}
