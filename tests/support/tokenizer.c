#include "tests/support/tokenizer.h"

#include "tests/support/scratch.h"

static void add_ids(void *user, const int32_t *ids, size_t count)
{
    struct tokenizer_ids *out = user;
    if (out->count + count > out->room)
        out->at = hd__realloc(out->at, (out->room = 2 * (out->count + count)) * sizeof *out->at);
    memcpy(out->at + out->count, ids, count * sizeof *ids);
    out->count += count;
}

static void add_text(void *user, const char *text, size_t bytes)
{
    struct hd__text *out = user;
    if (out->length + bytes + 1 > out->room)
        out->at = hd__realloc(out->at, out->room = 2 * (out->length + bytes) + 1);
    memcpy(out->at + out->length, text, bytes);
    out->at[out->length += bytes] = 0;
}

struct hd_tokenizer *tokenizer_open(const struct hd_tokenizer_ops *ops, const char *path)
{
    struct hd_error err = HD_ERROR_INIT;
    struct hd_tokenizer *t = NULL;
    ck_ok(ops->open(NULL, path, &t, &err));
    return t;
}

struct tokenizer_ids tokenizer_encode(const struct hd_tokenizer_ops *ops, const struct hd_tokenizer *t,
                                      const char *text, size_t bytes, uint32_t flags)
{
    struct hd_error err = HD_ERROR_INIT;
    struct tokenizer_ids ids = {0};
    ck_ok(ops->encode(t, text, bytes, flags, add_ids, &ids, &err));
    return ids;
}

struct hd__text tokenizer_decode(const struct hd_tokenizer_ops *ops, const struct hd_tokenizer *t,
                                 const struct tokenizer_ids *ids, uint32_t flags)
{
    struct hd_error err = HD_ERROR_INIT;
    struct hd__text text = {0};
    ck_ok(ops->decode(t, ids->at, ids->count, flags, add_text, &text, &err));
    add_text(&text, "", 0);
    return text;
}

const char *tokenizer_golden_path(const char *name)
{
    static char path[4200];
    snprintf(path, sizeof path, "%s/tokenizer/%s", GOLDEN_DIR, name);
    return path;
}

static uint64_t fnv(const struct tokenizer_ids *ids)
{
    const uint8_t *at = (const uint8_t *)ids->at;
    uint64_t value = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < ids->count * sizeof *ids->at; i++)
        value = (value ^ at[i]) * UINT64_C(0x100000001b3);
    return value;
}

static void document(const struct hd_tokenizer_ops *ops, const struct hd_tokenizer *t, const char *text, size_t bytes,
                     const char *want, int exact)
{
    struct tokenizer_ids special = tokenizer_encode(ops, t, text, bytes, HD_TOKENIZER_SPECIAL);
    struct tokenizer_ids plain = tokenizer_encode(ops, t, text, bytes, 0);
    struct hd__text back = tokenizer_decode(ops, t, &plain, 0);
    char got[100];
    snprintf(got, sizeof got, "%zu %016llx %zu %016llx", special.count, (unsigned long long)fnv(&special), plain.count,
             (unsigned long long)fnv(&plain));
    ck_assert_msg(!strncmp(want, got, strlen(got)) && want[strlen(got)] == '\n', "\"%.60s\": %s instead of %s", text,
                  got, want);
    ck_assert_msg(!exact || (back.length == bytes && !memcmp(back.at, text, bytes)),
                  "\"%.60s\" comes back as \"%.60s\"", text, back.at);
    free(special.at);
    free(plain.at);
    hd__text_free(&back);
}

void tokenizer_golden(const struct hd_tokenizer_ops *ops, const struct hd_tokenizer *t, const char *name, int exact)
{
    size_t bytes, count = 0;
    char file[64], *all = scratch_read(tokenizer_golden_path("documents"), &bytes), *at = all, want[128];
    snprintf(file, sizeof file, "%s.ids", name);
    FILE *ids = fopen(tokenizer_golden_path(file), "r");
    ck_assert_msg(all && ids, "no golden ids of %s", name);
    for (; at < all + bytes; count++) {
        size_t n = strtoul(at, &at, 10);
        ck_assert_msg(fgets(want, sizeof want, ids) != NULL, "%s has too few lines", file);
        document(ops, t, at + 1, n, want, exact);
        at += n + 2;
    }
    ck_assert(count > 100 && !fgets(want, sizeof want, ids));
    fclose(ids);
    free(all);
}
