/* Finding files by name, folder and pattern. */
#include "service/text/corpus.h"

#include <dirent.h>
#include <errno.h>
#include <glob.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "heddle/file.h"

enum { DEPTH = 64 }; /* of folders: a symbolic link may lead back */

/* ---- names */

static int ends_with(const char *s, size_t n, const char *tail)
{
    size_t m = strlen(tail);
    return n > m && !strncasecmp(s + n - m, tail, m);
}

/* Length of the name without the suffix of its compression. */
static size_t unpacked_length(const char *path)
{
    static const char *const packed[] = {".gz", ".zst", ".zstd"};
    size_t n = strlen(path);
    for (size_t i = 0; i < HD__COUNT(packed); i++)
        if (ends_with(path, n, packed[i]))
            return n - strlen(packed[i]);
    return n;
}

static int has_suffix(const char *path, const char *const *suffixes)
{
    size_t n = unpacked_length(path);
    while (*suffixes && !ends_with(path, n, *suffixes))
        suffixes++;
    return *suffixes != NULL;
}

static int is_lines_name(const char *path)
{
    static const char *const suffixes[] = {".jsonl", ".ndjson", ".json", NULL};
    return has_suffix(path, suffixes);
}

int hd__corpus_is_text_name(const char *path)
{
    static const char *const suffixes[] = {".txt", ".text", ".md", ".rst", NULL};
    return has_suffix(path, suffixes) || is_lines_name(path);
}

static int is_table_name(const char *path)
{
    static const char *const suffixes[] = {".csv", ".tsv", NULL};
    return has_suffix(path, suffixes);
}

int hd__corpus_is_tokens_name(const char *path)
{
    size_t n = strlen(path);
    return ends_with(path, n, ".bin") || ends_with(path, n, ".npy");
}

/* Files that are written beside tokens: PREFIX.meta.json, PREFIX.cache.json. */
static int is_own_name(const char *path)
{
    size_t n = strlen(path);
    return ends_with(path, n, ".meta.json") || ends_with(path, n, ".cache.json");
}

/* ---- files */

static void add_file(struct hd__corpus *c, const char *path, const struct stat *st)
{
    hd__push(&c->files,
             (struct hd__corpus_file){.path = hd__strdup(path),
                                      .source = c->sources.count - 1,
                                      .lines = (uint32_t)is_lines_name(path),
                                      .bytes = (uint64_t)st->st_size,
                                      .mtime = (int64_t)st->st_mtim.tv_sec * 1000000000 + st->st_mtim.tv_nsec});
    c->bytes += (uint64_t)st->st_size;
}

static int32_t add_path(struct hd__corpus *c, const char *path, int depth, uint32_t *left_out, struct hd_error *err);

/* Hidden files and folders are left out without a word, as a shell's patterns do. */
static int is_visible(const struct dirent *e)
{
    return e->d_name[0] != '.';
}

static int32_t add_folder(struct hd__corpus *c, const char *folder, int depth, uint32_t *left_out, struct hd_error *err)
{
    struct dirent **entries = NULL;
    int n = scandir(folder, &entries, is_visible, NULL);
    int32_t rc = n < 0           ? hd_fail(err, HD_E_IO, "%s: %s", folder, strerror(errno))
                 : depth > DEPTH ? hd_fail(err, HD_E_INVALID,
                                           "%s: folders in folders, %d deep: is there a link that "
                                           "leads back?",
                                           folder, DEPTH)
                                 : HD_OK;
    if (n > 0)
        qsort(entries, (size_t)n, sizeof *entries, (int (*)(const void *, const void *))alphasort);
    int length = (int)strlen(folder) - (folder[strlen(folder) - 1] == '/');
    char *state = hd__format("%s/state.json", folder); /* beside data-00000-of-00001.arrow */
    if (!rc && !c->tokens && n > 0 && ends_with(entries[0]->d_name, strlen(entries[0]->d_name), ".arrow") &&
        !access(state, F_OK))
        rc = hd_fail(err, HD_E_UNSUPPORTED,
                     "%s: is a folder of Hugging Face datasets in Arrow, which is not read: write JSON lines by "
                     "load_from_disk('%.*s').to_json('%.*s.jsonl')",
                     folder, length, folder, length, folder);
    free(state);
    for (int i = 0; i < n; i++) {
        char *path = hd__format("%s%s%s", folder, folder[strlen(folder) - 1] == '/' ? "" : "/", entries[i]->d_name);
        if (!rc)
            rc = add_path(c, path, depth + 1, left_out, err);
        free(path);
        free(entries[i]);
    }
    free(entries);
    return rc;
}

/* A file, or a folder and what is below it. depth 0: it was named; below that only names of text are read. */
static int32_t add_path(struct hd__corpus *c, const char *path, int depth, uint32_t *left_out, struct hd_error *err)
{
    struct stat st;
    uint64_t bytes;
    int fd = -1;
    if (stat(path, &st))
        return hd_fail(err, errno == ENOENT ? HD_E_NOTFOUND : HD_E_IO, "%s: %s", path,
                       strstr(path, "://") ? "text is read of files, not of URLs: download it first" : strerror(errno));
    if (S_ISDIR(st.st_mode))
        return add_folder(c, path, depth, left_out, err);
    if (depth && c->tokens && !hd__corpus_is_tokens_name(path)) {
        c->texts += hd__corpus_is_text_name(path) && !is_own_name(path);
        return HD_OK;
    }
    if (depth && !c->tokens && is_own_name(path))
        return HD_OK;
    if (depth && !c->tokens && (!S_ISREG(st.st_mode) || !hd__corpus_is_text_name(path))) {
        if (!c->silent && !(*left_out)++)
            hd__log(HD_LOG_WARN, NULL,
                    "%s: its name does not say text or JSON lines, so it is left out: name it, or a "
                    "pattern that it matches, to read it",
                    path);
        return HD_OK;
    }
    if ((!depth && !c->tokens) || !S_ISREG(st.st_mode)) { /* a folder of thousands is not opened to be listed */
        int32_t rc = hd_open_regular(path, &fd, &bytes, err);
        if (rc)
            return rc;
        close(fd);
    }
    if (!c->tokens && hd__corpus_is_tokens_name(path))
        return hd_fail(err, HD_E_UNSUPPORTED,
                       "%s: its name says tokens, and not text: these need no tokenizer: name it in data.train, or "
                       "rename it, if it is text",
                       path);
    if (!c->tokens && is_table_name(path))
        return hd_fail(err, HD_E_UNSUPPORTED,
                       "%s: its name says a table, of which no column is read as text: make JSON lines of it, as by "
                       "pandas.read_csv(IN).to_json(OUT, orient=\"records\", lines=True), and name the column by "
                       "data.field (--field); or call it .txt, to read it whole as one document",
                       path);
    add_file(c, path, &st);
    return HD_OK;
}

static int32_t add_pattern(struct hd__corpus *c, const char *pattern, uint32_t *left_out, struct hd_error *err)
{
    glob_t found = {0};
    int32_t rc = HD_OK;
    if (strstr(pattern, "**"))
        return hd_fail(err, HD_E_UNSUPPORTED,
                       "%s: ** is no pattern here: name the folder, which is read with its subfolders", pattern);
    int why = glob(pattern, GLOB_ERR, NULL, &found);
    if (why)
        rc = hd_fail(err, why == GLOB_NOMATCH ? HD_E_NOTFOUND : HD_E_IO, "%s: %s", pattern,
                     why == GLOB_NOMATCH ? "no file matches this pattern" : strerror(errno));
    for (size_t i = 0; i < found.gl_pathc && !rc; i++)
        rc = add_path(c, found.gl_pathv[i], 0, left_out, err);
    globfree(&found);
    return rc;
}

static int32_t add_source(struct hd__corpus *c, const char *source, struct hd_error *err)
{
    struct stat st;
    uint32_t before = c->files.count, left_out = 0;
    hd__push(&c->sources, hd__strdup(source));
    int32_t rc = stat(source, &st) && strpbrk(source, "*?[") ? add_pattern(c, source, &left_out, err)
                                                             : add_path(c, source, 0, &left_out, err);
    if (!rc && left_out > 1)
        hd__log(HD_LOG_WARN, NULL, "%s: so are %u more", source, left_out - 1);
    if (!rc && c->files.count == before && !c->tokens)
        rc = hd_fail(err, HD_E_NOTFOUND,
                     "%s: has no file of text or JSON lines (.txt .text .md .rst .jsonl .ndjson "
                     ".json, or these with .gz or .zst)",
                     source);
    return rc;
}

int32_t hd__corpus_find(const char *const *sources, size_t n, struct hd__corpus *corpus, struct hd_error *err)
{
    int32_t rc = HD_OK;
    *corpus = (struct hd__corpus){0};
    for (size_t i = 0; i < n && !rc; i++)
        rc = add_source(corpus, sources[i], err);
    if (rc)
        hd__corpus_free(corpus);
    return rc;
}

int32_t hd__corpus_list(const char *source, struct hd__corpus *corpus, struct hd_error *err)
{
    *corpus = (struct hd__corpus){.silent = 1};
    int32_t rc = add_source(corpus, source, err);
    if (rc)
        hd__corpus_free(corpus);
    return rc;
}

int32_t hd__corpus_find_tokens(const char *source, struct hd__corpus *corpus, struct hd_error *err)
{
    *corpus = (struct hd__corpus){.tokens = 1};
    int32_t rc = add_source(corpus, source, err);
    if (rc || corpus->texts)
        hd__corpus_free(corpus);
    return rc;
}

void hd__corpus_free(struct hd__corpus *c)
{
    for (uint32_t i = 0; i < c->files.count; i++)
        free(c->files.at[i].path);
    for (uint32_t i = 0; i < c->sources.count; i++)
        free(c->sources.at[i]);
    hd__free_array(&c->files);
    hd__free_array(&c->sources);
    c->bytes = 0;
}
