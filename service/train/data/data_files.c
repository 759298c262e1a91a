#include "service/train/data/data_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "heddle/file.h"
#include "service/text/indexed.h"
#include "service/text/lineage.h"
#include "service/train/data/corpus.h"
#include "service/train/data/token_origin.h"

/* ---- what is held out */

/* A file, by what its paths have in common. */
struct file_id {
    const char *path;    /* in the job's arena */
    const char *made_of; /* as in hd__token_file */
    uint64_t size;       /* 0: of a URL */
    uint64_t ends;       /* 0: not read yet */
    dev_t device;
    ino_t number;
};

struct file_ids {
    HD__ARRAY(struct file_id) list;
};

/* The files' .meta.json are read, for made_of, or left alone. */
enum meta { NO_META, META };

static void add_file(const struct hd__compiled *c, struct file_ids *to, const char *path, enum meta meta)
{
    struct stat st = {0};
    const char *kept = hd__arena_strdup(&c->job->arena, path), *url = strstr(path, "://");
    if (url || !stat(path, &st))
        hd__push(&to->list, ((struct file_id){kept, meta == META ? hd__train_token_file(c, path).made_of : NULL,
                                              (uint64_t)st.st_size, 0, st.st_dev,
                                              url ? hd__hash(path, strlen(path), 0) : st.st_ino}));
}

/* The sources, and the files of those that are folders or patterns. */
static struct file_ids list_files(const struct hd__compiled *c, const struct hd__sources *sources, enum meta meta)
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
            add_file(c, &all, files.files.at[k].path, meta);
        if (!files.files.count)
            add_file(c, &all, path, meta);
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

static const char *made_of(struct file_id *f, char own[17])
{
    snprintf(own, 17, "%016" PRIx64, f->made_of ? 0 : ends_of(f));
    return f->made_of ? f->made_of : own;
}

static enum hd__kin kin_of(struct file_id *x, struct file_id *y)
{
    char a[17], b[17];
    return x->made_of || y->made_of ? hd__lineage_compare(made_of(x, a), made_of(y, b)) : HD__KIN_NONE;
}

/* Documents that x and y, " of " a key, have in common; NULL: none. */
static const char *find_documents(struct hd__job *job, struct file_id *x, struct file_id *y, const char *of,
                                  const char *key)
{
    static const char *const why[] = {[HD__KIN_SPLITS] = "they are parts of two splits of one file",
                                      [HD__KIN_PART] = "one has what the other was split off, not the rest of it",
                                      [HD__KIN_SAME] = "both were made of one file"};
    enum hd__kin kin = kin_of(x, y);
    return kin > HD__KIN_APART ? hd__arena_format(&job->arena, "%s and %s%s%s have documents in common, because %s",
                                                  x->path, y->path, of, key, why[kin])
                               : NULL;
}

/* Says which file both have, or which copy, or which documents, or what was cut out; NULL: none. */
static const char *find_common(struct hd__job *job, struct file_ids *a, struct file_ids *b, const char *key)
{
    uint64_t left = 256 << 20;
    const char *found;
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
        if (pair >= 2 * n && pair < 3 * n && (found = find_documents(job, x, y, " of ", key)))
            return found;
    }
    return NULL;
}

int hd__train_data_files_split(const struct hd__compiled *c, int test)
{
    struct file_ids train = list_files(c, &c->job->train, META),
                    val = list_files(c, test ? &c->job->test : &c->job->val, META);
    int found = !test && !c->job->val.count && c->job->val_fraction > 0;
    for (size_t pair = 0; pair < (size_t)train.list.count * val.list.count && !found; pair++)
        found = kin_of(&val.list.at[pair / train.list.count], &train.list.at[pair % train.list.count]) != HD__KIN_NONE;
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
        *out->of[k] = 0;
        if (k < HD__COUNT(sources) && hd__train_corpus_has_url(c->job)) /* a server may be away */
            continue;
        struct file_ids files = k < HD__COUNT(sources) ? list_files(c, sources[k], NO_META) : list_weights(c);
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

/* Files in the folder of another source of data are for that to read, or to leave. */
static int reads_itself(const struct hd__job *job)
{
    return !strcmp(job->data->use, "tokens");
}

/* Says that x is y, a copy of it, or has documents of it; NULL: none of these. */
static const char *find_same(struct hd__job *job, struct file_id *x, struct file_id *y, int reads)
{
    if (!by_number(x, y))
        return hd__arena_format(&job->arena, "%s is there twice, so it is read twice an epoch: drop one", x->path);
    if (reads && x->size == y->size && ends_of(x) && ends_of(x) == ends_of(y))
        return hd__arena_format(&job->arena, "%s is a copy of %s, so the same data is read twice an epoch: drop one",
                                x->path, y->path);
    const char *documents = reads ? find_documents(job, x, y, "", "") : NULL;
    return documents ? hd__arena_format(&job->arena, "%s: they are read twice an epoch", documents) : NULL;
}

static void warn_twice(struct hd__job *job, struct file_ids *files)
{
    const char *same = NULL;
    int few = files->list.count <= 256 && reads_itself(job); /* copies are looked for by reading */
    if (!few)
        hd__sort(&files->list, by_number);
    for (uint32_t i = 1; i < files->list.count && !same; i++)
        for (struct file_id *x = &files->list.at[i], *y = few ? files->list.at : x - 1; y < x && !same; y++)
            same = find_same(job, x, y, few);
    if (same)
        hd__log(HD_LOG_WARN, NULL, "%s: data.train: %s", hd__job_where(job, "data.train"), same);
}

/* A path with one of these words, which ends at a mark, a digit or a folder's name: where the last one begins; NULL: it
 * has none. */
static const char *find_part(const char *path, const char *const *words, size_t n)
{
    const char *last = NULL;
    for (size_t k = 0; k < n; k++)
        for (const char *at = path; (at = strstr(at, words[k])); at++)
            if ((at == path || strchr("-_./", at[-1])) && strchr("-_./0123456789", at[strlen(words[k])]) &&
                (!last || at > last))
                last = at;
    return last;
}

static const char *const part_train[] = {"train", "training"}, *const part_held_out[] = {"validation", "valid", "val",
                                                                                         "dev", "test"};

/* Is the first path, but for a word of held-out data, the second, which has one of training data there? */
static int is_swapped(const char *train, const char *val)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz";
    const char *a = find_part(train, part_held_out, HD__COUNT(part_held_out)),
               *b = find_part(val, part_train, HD__COUNT(part_train));
    return a && b && a - train == b - val && !memcmp(train, val, (size_t)(a - train)) &&
           !strcmp(a + strspn(a, letters), b + strspn(b, letters));
}

/* Parts of one set of data that a folder or a pattern has taken together: to train on, and held out. */
static void warn_parts(struct hd__job *job, const struct file_ids *files)
{
    if (files->list.count <= job->train.count || !reads_itself(job)) /* each by its name */
        return;
    const char *of_train = NULL, *other = NULL;
    for (uint32_t i = 0; i < files->list.count; i++) { /* the word of their own folder or name, not of one above */
        const char *path = files->list.at[i].path, *word = find_part(path, part_train, HD__COUNT(part_train));
        if (word && (!of_train || word - path > other - of_train)) {
            of_train = path;
            other = word;
        }
    }
    for (uint32_t i = 0; i < files->list.count && of_train; i++) {
        const char *path = files->list.at[i].path, *word = find_part(path, part_held_out, HD__COUNT(part_held_out));
        if (!word || word - path != other - of_train || memcmp(path, of_train, (size_t)(word - path)) != 0)
            continue;
        hd__log(HD_LOG_WARN, NULL,
                "%s: data.train: by their names, %s is training data and %s is held out, yet both are trained on: keep "
                "the first in data.train, and move the second to data.val or data.test",
                hd__job_where(job, "data.train"), of_train, path);
        break;
    }
}

/* Files that two of data.train, the sets of data.val and data.test have in common. */
static void warn_held_out(const struct hd__compiled *c)
{
    struct hd__job *job = c->job;
    struct {
        const char *key;
        struct file_ids files;
    } parts[HD__VAL_SETS + 2] = {{"data.train", list_files(c, &job->train, META)}};
    size_t n = 1;
    for (uint64_t k = 0; k < job->n_val_sets; k++, n++) {
        parts[n].key = hd__arena_format(&job->arena, "data.val.%s", job->val_sets[k].name);
        parts[n].files = list_files(c, &job->val_sets[k].sources, META);
    }
    if (!job->n_val_sets) {
        parts[n].key = "data.val";
        parts[n++].files = list_files(c, &job->val, META);
    }
    parts[n].key = "data.test";
    parts[n++].files = list_files(c, &job->test, META);
    warn_twice(job, &parts[0].files);
    warn_parts(job, &parts[0].files);
    for (uint64_t i = 0; i < job->train.count * job->val.count; i++) {
        const char *train = job->train.at[i % job->train.count].path, *val = job->val.at[i / job->train.count].path;
        if (is_swapped(train, val))
            hd__log(HD_LOG_WARN, NULL, "%s: data.train is %s, and data.val is %s: by their names, they are swapped",
                    hd__job_where(job, "data.train"), train, val);
    }
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
    int text = hd__train_corpus_has_text(c), url = hd__train_corpus_has_url(c->job),
        chat = c->job->data_chat_template != NULL;
    const int own_ends = chat && strcmp(c->job->data_chat_template, "plain") != 0 && c->job->data_append_eod == 1;
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
                {"data.append_eod", text && !own_ends, text ? "data.chat_template has ends of its own" : no_text},
                {"data.cache", text, no_text},
                {"data.http_timeout", url, "no file is a URL: leave it out"},
                {"data.http_retries", url, "no file is a URL: leave it out"}};
    for (size_t i = 0; i < HD__COUNT(rows); i++) {
        const struct hd__job_value *value = hd__job_value_get(c->job, rows[i].key);
        if (!rows[i].used && (hd__train_is_asked(value) || (value && !strcmp(rows[i].key, "data.chat_template"))))
            hd__log(HD_LOG_WARN, NULL, "%s: %s has no effect, because %s", value->origin, rows[i].key, rows[i].why);
    }
}

/* Text whose only document is its file. */
static void warn_one_document(const struct hd__compiled *c)
{
    struct file_ids files = list_files(c, &c->job->train, NO_META);
    int alone = c->job->documents == HD__DOCUMENTS_MASK && files.list.count == 1 && c->job->train.count == 1 &&
                !has_lines(c) && hd__train_corpus_is_text(c, c->job->train.at->path);
    const struct hd__job_value *eod = hd__job_value_get(c->job, "data.eod");
    if (alone && (!eod || strtoll(eod->text, NULL, 10) < 0))
        hd__log(HD_LOG_WARN, NULL,
                "%s: data.documents is mask, but a file of text is one document, so nothing is masked inside %s: "
                "write each document as a line of JSON (.jsonl)",
                hd__job_where(c->job, "data.documents"), c->job->train.at->path);
    hd__free_array(&files.list);
}

/* Tokens of data.train that have marks of what the loss counts beside them; NULL: none have. */
static const char *marks_of(const struct hd__compiled *c)
{
    struct file_ids files = list_files(c, &c->job->train, NO_META);
    const char *found = NULL;
    for (uint32_t i = 0; i < files.list.count && !found; i++) {
        char *prefix = hd__indexed_prefix(files.list.at[i].path);
        const char *marks = hd__arena_format(&c->job->arena, "%s.loss", prefix);
        if (hd__corpus_is_tokens_name(files.list.at[i].path) && !access(marks, F_OK))
            found = marks;
        free(prefix);
    }
    hd__free_array(&files.list);
    return found;
}

void hd__train_data_files_warn(const struct hd__compiled *c, int trains)
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
    warn_one_document(c);
    if (trains && c->job->data_chat_template && (!loss || !strcmp(loss->origin, "default")) &&
        hd__train_corpus_has_text(c))
        hd__log(HD_LOG_WARN, NULL,
                "%s: data.chat_template is set and data.loss is not, so prompts are trained, too: say "
                "data.loss=completion, or all",
                hd__job_where(c->job, "data.chat_template"));
}
