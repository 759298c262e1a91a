/* Opening by the plug-in that can read a file; ids and bytes gathered from a plug-in's pieces. */
#include "service/text/tokenizer.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "service/text/unpack.h"

static const char *const shipped[] = {"bpe", "sentencepiece"};

/* ---- the file */

/* The folder's only file whose name ends in .tiktoken; NULL if there is none or more than one. */
static char *find_tiktoken(const char *folder)
{
    DIR *dir = opendir(folder);
    char *found = NULL;
    uint32_t count = 0;
    for (const struct dirent *entry; dir && (entry = readdir(dir));) {
        size_t n = strlen(entry->d_name);
        if (n > strlen(".tiktoken") && !strcmp(entry->d_name + n - strlen(".tiktoken"), ".tiktoken") && !count++)
            found = hd__format("%s/%s", folder, entry->d_name);
    }
    if (dir)
        closedir(dir);
    if (count > 1) {
        free(found);
        found = NULL;
    }
    return found;
}

/* May it be a name on the Hugging Face hub, as gpt2 or ORG/MODEL? */
static int is_hub_name(const char *path)
{
    const char *slash = strchr(path, '/');
    return !strspn(path, "./~") && (!slash || (slash[1] && !strchr(slash + 1, '/'))) && !strstr(path, ".json") &&
           !strstr(path, ".model") && !strstr(path, ".tiktoken");
}

int32_t hd__tokenizer_file(const char *path, char **file, struct hd_error *err)
{
    static const char *const names[] = {"tokenizer.json", "tokenizer.model"};
    struct stat st;
    if (stat(path, &st) && errno == ENOENT && is_hub_name(path))
        return hd_fail(err, HD_E_NOTFOUND,
                       "%s: No such file or directory; a name on the hub? `hf download %s tokenizer.json --local-dir "
                       "DIR`, then DIR",
                       path, path);
    if (stat(path, &st))
        return hd_fail(err, errno == ENOENT ? HD_E_NOTFOUND : HD_E_IO, "%s: %s", path, strerror(errno));
    if (!S_ISDIR(st.st_mode)) {
        *file = hd__strdup(path);
        return S_ISREG(st.st_mode) ? HD_OK : hd_fail(err, HD_E_INVALID, "%s: is not a file", path);
    }
    for (size_t i = 0; i < HD__COUNT(names); i++) {
        *file = hd__format("%s/%s", path, names[i]);
        if (!stat(*file, &st) && S_ISREG(st.st_mode))
            return HD_OK;
        free(*file);
    }
    *file = find_tiktoken(path);
    return *file ? HD_OK
                 : hd_fail(err, HD_E_NOTFOUND,
                           "%s: this folder has no tokenizer: neither tokenizer.json nor tokenizer.model nor one file "
                           "*.tiktoken",
                           path);
}

/* ---- the plug-in */

static int32_t slot_result(int32_t code, const char *slot, struct hd_error *err)
{
    return hd__slot_result(code, "the tokenizer's", slot, err);
}

static int32_t open_with(struct hd__plugins *plugins, const struct hd_host *host, const char *use,
                         struct hd__tokenizer *t, struct hd_error *err)
{
    const struct hd__component *c;
    int32_t rc = hd__plugin_find(plugins, HD_KIND_TOKENIZER, use, &c, err);
    if (!rc && hd__plugin_probe(plugins, c, err))
        rc = HD_E_UNSUPPORTED; /* whatever its code: others may be asked */
    if (rc)
        return rc;
    t->ops = &c->ops.tokenizer;
    t->plugin = c->name;
    return slot_result(t->ops->open(host, t->path, &t->handle, err), "open", err);
}

static int is_shipped(const char *name)
{
    for (size_t i = 0; i < HD__COUNT(shipped); i++)
        if (!strcmp(shipped[i], name))
            return 1;
    return 0;
}

/* The plug-ins that are asked, in turn: heddle's own, then the others in its folders; NULL behind the last. */
static const char *nth_plugin(struct hd__plugins *plugins, size_t i)
{
    const struct hd__component *c;
    size_t others = i - HD__COUNT(shipped);
    if (i < HD__COUNT(shipped))
        return shipped[i];
    for (uint32_t n = 0; (c = hd__plugin_nth(plugins, HD_KIND_TOKENIZER, n)); n++)
        if (!is_shipped(c->name) && !others--)
            return c->name;
    return NULL;
}

static int32_t open_any(struct hd__plugins *plugins, const struct hd_host *host, struct hd__tokenizer *t,
                        struct hd_error *err)
{
    struct hd__text tried = {0};
    struct hd__unpack *file = NULL;
    const char *name;
    int32_t rc = HD_E_UNSUPPORTED;
    for (size_t i = 0; rc && (name = nth_plugin(plugins, i)); i++) {
        struct hd_error one = HD_ERROR_INIT;
        rc = open_with(plugins, host, name, t, &one);
        if (rc && rc != HD_E_UNSUPPORTED && rc != HD_E_NOTFOUND) {
            *err = one;
            hd__text_free(&tried);
            return rc;
        }
        if (rc)
            hd__text_add(&tried, "%s%s: %s", tried.length ? "; " : "", name, one.message);
    }
    if (rc && !hd__unpack_open(t->path, &file, err)) /* which names what no text is: a Git LFS pointer */
        rc = hd_fail(err, HD_E_UNSUPPORTED, "%s: no tokenizer plug-in reads this file: %s", t->path, tried.at);
    hd__unpack_close(file);
    hd__text_free(&tried);
    return rc;
}

int32_t hd__tokenizer_open(struct hd__plugins *plugins, const struct hd_host *host, const char *use, const char *path,
                           struct hd__tokenizer *t, struct hd_error *err)
{
    *t = (struct hd__tokenizer){0};
    int32_t rc = hd__tokenizer_file(path, &t->path, err);
    if (!rc)
        rc = use ? open_with(plugins, host, use, t, err) : open_any(plugins, host, t, err);
    if (rc) {
        t->handle = NULL;
        hd__tokenizer_close(t);
        return rc;
    }
    t->info.struct_size = sizeof t->info;
    t->ops->info(t->handle, &t->info);
    return HD_OK;
}

void hd__tokenizer_close(struct hd__tokenizer *t)
{
    if (t->handle)
        t->ops->close(t->handle);
    free(t->path);
    *t = (struct hd__tokenizer){0};
}

/* ---- text and ids */

static void add_ids(void *user, const int32_t *ids, size_t count)
{
    struct hd__ids *out = user;
    if (out->count + count > out->room) {
        out->room = HD__MAX(2 * out->room, out->count + count);
        out->at = hd__realloc(out->at, out->room * sizeof *out->at);
    }
    memcpy(out->at + out->count, ids, count * sizeof *ids);
    out->count += count;
}

int32_t hd__tokenizer_encode(const struct hd__tokenizer *t, const char *text, size_t bytes, uint32_t flags,
                             struct hd__ids *ids, struct hd_error *err)
{
    size_t begin = ids->count;
    int32_t rc = slot_result(t->ops->encode(t->handle, text, bytes, flags, add_ids, ids, err), "encode", err);
    if (!rc && (flags & HD_TOKENIZER_FRAME) && t->info.bos >= 0 && ids->count - begin > 1 &&
        ids->at[begin] == t->info.bos && ids->at[begin + 1] == t->info.bos)
        memmove(ids->at + begin, ids->at + begin + 1, (--ids->count - begin) * sizeof *ids->at);
    return rc;
}

static void add_text(void *user, const char *text, size_t bytes)
{
    struct hd__text *out = user;
    if (out->length + bytes + 1 > out->room) {
        out->room = HD__MAX(2 * out->room, out->length + bytes + 1);
        out->at = hd__realloc(out->at, out->room);
    }
    memcpy(out->at + out->length, text, bytes);
    out->at[out->length += bytes] = 0;
}

int32_t hd__tokenizer_decode(const struct hd__tokenizer *t, const int32_t *ids, size_t count, uint32_t flags,
                             struct hd__text *text, struct hd_error *err)
{
    return slot_result(t->ops->decode(t->handle, ids, count, flags, add_text, text, err), "decode", err);
}

int64_t hd__tokenizer_find(const struct hd__tokenizer *t, const char *token)
{
    return t->ops->find(t->handle, token, strlen(token));
}

int64_t hd__tokenizer_eod(const struct hd__tokenizer *t)
{
    /* of GPT-2, Llama 3, Gemma, DeepSeek, Llama 2: </s> is also a tag of HTML, so that the others' come before it */
    static const char *const names[] = {
        "<|endoftext|>", "<|end_of_text|>", "<eos>", "<\uff5cend\u2581of\u2581sentence\uff5c>", "</s>", "<|endofdoc|>"};
    int64_t id = t->info.eos;
    for (size_t i = 0; i < HD__COUNT(names) && id < 0; i++)
        id = hd__tokenizer_find(t, names[i]);
    return id;
}

int hd__tokenizer_is_word(const struct hd__tokenizer *t, int32_t id)
{
    struct hd_error unused = HD_ERROR_INIT;
    struct hd__text text = {0};
    int word = !hd__tokenizer_decode(t, &id, 1, HD_TOKENIZER_SKIP_SPECIAL, &text, &unused) && text.length &&
               text.at[strspn(text.at, " \t\r\n")];
    hd__text_free(&text);
    return word;
}
