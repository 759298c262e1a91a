/* State of an interrupted call on the disk, and the description of a finished output. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <unistd.h>

#include "heddle/file.h"
#include "service/text/tokenize_internal.h"

int32_t hd__file_hash_blocks(const char *path, int32_t (*each)(void *user, struct hd_error *err), void *user,
                             uint64_t *hash, struct hd_error *err)
{
    enum { BLOCK = 1 << 20 };
    uint64_t bytes;
    int fd = -1;
    int32_t rc = hd_open_regular(path, &fd, &bytes, err);
    if (rc)
        return rc;
    char *block = hd__alloc(BLOCK);
    ssize_t n;
    for (*hash = 0; !rc && (n = read(fd, block, BLOCK)) > 0; rc = each ? each(user, err) : HD_OK)
        *hash = hd__hash(block, (size_t)n, *hash);
    if (!rc && n < 0)
        rc = hd_fail(err, HD_E_IO, "%s: %s", path, strerror(errno));
    close(fd);
    free(block);
    return rc;
}

int32_t hd__file_hash(const char *path, uint64_t *hash, struct hd_error *err)
{
    return hd__file_hash_blocks(path, NULL, NULL, hash, err);
}

static json_t *hex(uint64_t hash)
{
    return json_sprintf("%016" PRIx64, hash);
}

static uint64_t hash_files(const struct hd__corpus *c)
{
    uint64_t hash = 0;
    for (uint32_t i = 0; i < c->files.count; i++) {
        const struct hd__corpus_file *f = &c->files.at[i];
        const uint64_t row[] = {f->source, f->lines, f->bytes, (uint64_t)f->mtime};
        hash = hd__hash(f->path, strlen(f->path), hd__hash(row, sizeof row, hash));
    }
    return hash;
}

/* Arguments that the output depends on. The keys are those of the command, for a message. */
static json_t *arguments_json(const struct hd__tokenize_config *c)
{
    uint64_t tokenizer = 0;
    hd__file_hash(c->tokenizer->path, &tokenizer, NULL);
    return json_pack("{s:o, s:s, s:s, s:I, s:I, s:b, s:s, s:o}", "--tokenizer", hex(tokenizer), "--use",
                     c->tokenizer->plugin, "--field", c->field, "--append-eod", (json_int_t)c->eod, "--no-special",
                     (json_int_t)c->flags, "--skip-bad", c->skip_bad, "--chat-template", c->chat ? c->chat_name : "",
                     "FILES", hex(hash_files(c->corpus)));
}

static char *progress_path(const struct hd__tokenize_config *c)
{
    return hd__format("%s.progress", c->prefix);
}

/* ---- reading */

static int32_t compare(const struct hd__tokenize_config *c, const char *path, const json_t *begun, struct hd_error *err)
{
    json_t *mine = arguments_json(c), *value;
    const char *key, *other = NULL;
    json_object_foreach(mine, key, value) if (!other && !json_equal(value, json_object_get(begun, key))) other = key;
    if (other)
        hd_fail(err, HD_E_MISMATCH,
                "%s: tokenizing was begun with another %s%s: say the same to go on, or --overwrite to begin anew", path,
                other, !strcmp(other, "FILES") ? " (or they have changed)" : "");
    json_decref(mine);
    return other ? HD_E_MISMATCH : HD_OK;
}

static int read_numbers(const struct hd__tokenize_config *c, json_t *o, struct hd__tokenize_progress *p)
{
    json_int_t n[8];
    json_t *shares = NULL;
    if (json_unpack(o, "{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o}", "file", &n[0], "offset", &n[1], "line", &n[2],
                    "sequences", &n[3], "documents", &n[4], "tokens", &n[5], "left_out", &n[6], "shares", &shares) ||
        json_array_size(shares) != c->corpus->sources.count)
        return 0;
    for (size_t i = 0; i < 7; i++)
        if (n[i] < 0)
            return 0;
    p->at = (struct hd__documents_position){.file = (uint32_t)n[0], .offset = (uint64_t)n[1], .line = (uint64_t)n[2]};
    p->size = (struct hd__indexed_size){(uint64_t)n[3], (uint64_t)n[4], (uint64_t)n[5]};
    p->left_out = (uint64_t)n[6];
    for (uint32_t i = 0; i < c->corpus->sources.count; i++) {
        json_t *pair = json_array_get(shares, i);
        p->shares[i].documents = (uint64_t)json_integer_value(json_array_get(pair, 0));
        p->shares[i].tokens = (uint64_t)json_integer_value(json_array_get(pair, 1));
        p->shares[i].bare = (uint64_t)json_integer_value(json_array_get(pair, 2));
    }
    return 1;
}

int32_t hd__tokenize_progress_read(const struct hd__tokenize_config *c, struct hd__tokenize_progress *p,
                                   struct hd_error *err)
{
    char *path = progress_path(c);
    int32_t rc = HD_OK;
    json_error_t why;
    json_t *o = access(path, F_OK) ? NULL : json_load_file(path, 0, &why);
    if (o)
        rc = compare(c, path, json_object_get(o, "arguments"), err);
    if ((!o && !access(path, F_OK)) || (o && !rc && !read_numbers(c, o, p)))
        rc = hd_fail(err, HD_E_CORRUPT, "%s: cannot be read: remove it, or say --overwrite to begin anew", path);
    if (rc && c->overwrite)
        rc = HD_OK;
    json_decref(o);
    free(path);
    return rc;
}

/* ---- writing */

static json_t *shares_json(const struct hd__tokenize_config *c, const struct hd__tokenize_progress *p)
{
    json_t *all = json_array();
    for (uint32_t i = 0; i < c->corpus->sources.count; i++)
        json_array_append_new(all, json_pack("[I, I, I]", (json_int_t)p->shares[i].documents,
                                             (json_int_t)p->shares[i].tokens, (json_int_t)p->shares[i].bare));
    return all;
}

int32_t hd__tokenize_progress_write(const struct hd__tokenize_config *c, const struct hd__tokenize_progress *p,
                                    struct hd_error *err)
{
    char *path = progress_path(c), *part = hd__format("%s.part", path);
    json_t *o =
        json_pack("{s:o, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o}", "arguments", arguments_json(c), "file",
                  (json_int_t)p->at.file, "offset", (json_int_t)p->at.offset, "line", (json_int_t)p->at.line,
                  "sequences", (json_int_t)p->size.sequences, "documents", (json_int_t)p->size.documents, "tokens",
                  (json_int_t)p->size.tokens, "left_out", (json_int_t)p->left_out, "shares", shares_json(c, p));
    FILE *f = fopen(part, "we");
    int bad = !f || json_dumpf(o, f, JSON_COMPACT) || fflush(f) || fsync(fileno(f));
    if ((f && fclose(f)) || bad || rename(part, path))
        bad = 1;
    int32_t rc = bad ? hd_fail(err, HD_E_IO, "%s: cannot be written: %s", path, strerror(errno)) : HD_OK;
    json_decref(o);
    free(part);
    free(path);
    return rc;
}

void hd__tokenize_progress_remove(const struct hd__tokenize_config *c)
{
    char *path = progress_path(c);
    unlink(path);
    free(path);
}

/* ---- the finished output */

/* File names may be no UTF-8, which JSON has to be. */
static json_t *path_json(const char *path)
{
    char *copy = hd__strdup(path);
    json_t *text = json_string(hd__printable(copy));
    free(copy);
    return text;
}

char *hd__tokenize_meta(const struct hd__tokenize_config *c, const struct hd__tokenize_progress *p)
{
    const struct hd__tokenizer *t = c->tokenizer;
    json_t *sources = json_array();
    uint64_t bare = 0;
    for (uint32_t i = 0; i < c->corpus->sources.count; i++)
        json_array_append_new(sources,
                              json_pack("{s:o, s:I, s:I}", "path", path_json(c->corpus->sources.at[i]), "documents",
                                        (json_int_t)p->shares[i].documents, "tokens", (json_int_t)p->shares[i].tokens));
    for (uint32_t i = 0; i < c->corpus->sources.count; i++)
        bare += p->shares[i].bare;
    json_t *o =
        json_pack("{s:I, s:I, s:s, s:I, s:o, s:o, s:I, s:o}", "documents", (json_int_t)p->size.documents, "tokens",
                  (json_int_t)p->size.tokens, "dtype", hd__indexed_type_name(hd__indexed_type_for(t->info.vocab)),
                  "vocab", (json_int_t)t->info.vocab, "eod", c->eod >= 0 ? json_integer(c->eod) : json_null(),
                  "arguments", arguments_json(c), "left_out", (json_int_t)p->left_out, "sources", sources);
    json_object_set_new(o, "tokenizer", path_json(t->path));
    if (bare)
        json_object_set_new(o, "bare", json_integer((json_int_t)bare));
    char *text = json_dumps(o, JSON_INDENT(1));
    json_decref(o);
    return text;
}

const char *hd__tokens_template(const json_t *meta)
{
    const char *name = json_string_value(json_object_get(json_object_get(meta, "arguments"), "--chat-template"));
    json_int_t bare = json_integer_value(json_object_get(meta, "bare"));
    if (!name || !*name)
        return NULL;
    return bare && bare == json_integer_value(json_object_get(meta, "documents")) ? "plain" : name;
}

const char *hd__tokens_maker(const json_t *meta, uint64_t *hash)
{
    const char *text = json_string_value(json_object_get(json_object_get(meta, "arguments"), "--tokenizer"));
    *hash = text ? strtoull(text, NULL, 16) : 0;
    return text ? json_string_value(json_object_get(meta, "tokenizer")) : NULL;
}
