#include "runtime/comm/tuning_file.h"

#include <stdlib.h>

#include "core/base/file.h"
#include "core/base/option.h"
#include "core/base/yaml_tree.h"

enum { FORMAT = 1 };

struct row {
    int32_t op, reserved; /* index of the choice: one below HD_COLL_... */
    int64_t ranks, bytes, chunk;
    const char *use;
};

#define OFFSET(field) .offset = offsetof(struct row, field)
static const struct hd_option keys[] = {
    {.name = "op",
     .type = HD_OPT_ENUM,
     .value = "all_reduce",
     OFFSET(op),
     .choices = "all_reduce|all_gather|reduce_scatter|all_to_all|broadcast|reduce|barrier"},
    {.name = "ranks", .type = HD_OPT_INT, .value = "2147483647", .min = 1, .max = INT32_MAX, OFFSET(ranks)},
    {.name = "bytes", .type = HD_OPT_SIZE, .value = "1000000000000000", .min = 0, .max = 1e15, OFFSET(bytes)},
    {.name = "use", .type = HD_OPT_STRING, .value = "", OFFSET(use)},
    {.name = "chunk", .type = HD_OPT_SIZE, .value = "0", .min = 0, .max = 1 << 30, OFFSET(chunk)}};
static const struct hd__options table = {keys, HD__COUNT(keys), sizeof(struct hd_option)};

/* ---- reading */

static int32_t read_key(const struct hd__tree_node *key, const struct hd__tree_node *value, struct row *row,
                        struct hd__arena *arena, struct hd_error *err)
{
    int64_t at = hd__option_find(&table, key->text);
    struct hd_error why = HD_ERROR_INIT;
    if (at < 0)
        return hd_fail(err, HD_E_INVALID, "%s: unknown key %.60s; the keys are op, ranks, bytes, use, chunk",
                       key->origin, key->text);
    if (value->kind != HD__SCALAR)
        return hd_fail(err, HD_E_INVALID, "%s: %s is %s where a single value is wanted", value->origin, key->text,
                       hd__tree_kind_name(value));
    struct hd_option option = hd__option_at(&table, (size_t)at);
    if (hd__option_parse(&option, value->text, row, arena, &why))
        return hd_fail(err, HD_E_INVALID, "%s: %s: %s", value->origin, key->text, why.message);
    return HD_OK;
}

static int32_t read_rule(const struct hd__tree_node *node, struct hd__tuning *tuning, struct hd__arena *arena,
                         struct hd_error *err)
{
    struct row row = {0};
    int32_t rc = hd__options_defaults(&table, &row, arena, err);
    if (node->kind != HD__MAP)
        return hd_fail(err, HD_E_INVALID, "%s: a rule is %s where {\"op\": ..., \"use\": ...} is wanted", node->origin,
                       hd__tree_kind_name(node));
    for (uint32_t i = 0; i < node->count && !rc; i++)
        rc = read_key(node->key[i], node->value[i], &row, arena, err);
    if (!rc && (!hd__tree_get(node, "op") || !hd__tree_get(node, "use")))
        rc = hd_fail(err, HD_E_INVALID, "%s: a rule needs op and use", node->origin);
    if (rc)
        return rc;
    struct hd__tuning_rule rule = (struct hd__tuning_rule){(uint32_t)row.op + 1, (int32_t)row.ranks,
                                                           (uint64_t)row.bytes, NULL, (uint64_t)row.chunk};
    rule.use = hd__comm_algorithm_find(rule.coll, row.use);
    if (!rule.use) {
        struct hd__text names = {0};
        const struct hd__algorithm *a;
        for (uint32_t i = 0; (a = hd__comm_algorithm_at(i)); i++)
            if (a->coll == rule.coll)
                hd__text_add(&names, "%s%s", names.length ? ", " : "", a->name);
        rc = hd_fail(err, HD_E_INVALID, "%s: use: there is no algorithm '%.60s' for %s; there are %s",
                     hd__tree_get(node, "use")->origin, row.use, hd_coll_name(rule.coll), names.at);
        hd__text_free(&names);
        return rc;
    }
    hd__push(&tuning->rules, rule);
    return HD_OK;
}

static int32_t read_root(const struct hd__tree_node *root, struct hd__tuning *tuning, struct hd__arena *arena,
                         struct hd_error *err)
{
    const struct hd__tree_node *format = hd__tree_get(root, "heddle_tuning"), *rules = hd__tree_get(root, "rules");
    int32_t rc = HD_OK;
    if (!format || format->kind != HD__SCALAR || strcmp(format->text, "1"))
        return hd_fail(err, HD_E_INVALID,
                       "%s: not a tuning file of `heddle bench --tune`: \"heddle_tuning\": %d is missing", root->origin,
                       FORMAT);
    for (uint32_t i = 0; i < root->count; i++)
        if (strcmp(root->key[i]->text, "heddle_tuning") && strcmp(root->key[i]->text, "rules"))
            return hd_fail(err, HD_E_INVALID, "%s: unknown key %.60s; the keys are heddle_tuning and rules",
                           root->key[i]->origin, root->key[i]->text);
    if (!rules || rules->kind != HD__LIST)
        return hd_fail(err, HD_E_INVALID, "%s: rules: a list is wanted", rules ? rules->origin : root->origin);
    for (uint32_t i = 0; i < rules->count && !rc; i++)
        rc = read_rule(rules->value[i], tuning, arena, err);
    return rc;
}

/* Hash of the parsed rules: equal for files that differ in white space only. */
static uint64_t hash_rules(const struct hd__tuning *tuning)
{
    uint64_t hash = 1;
    for (uint32_t i = 0; i < tuning->rules.count; i++) {
        const struct hd__tuning_rule *r = &tuning->rules.at[i];
        uint64_t fields[] = {r->coll, (uint64_t)r->ranks, r->bytes, r->chunk,
                             hd__hash(r->use->name, strlen(r->use->name), 0)};
        hash = hd__hash(fields, sizeof fields, hash);
    }
    return hash;
}

int32_t hd__comm_tuning_parse(const char *name, const char *text, size_t bytes, struct hd__tuning *tuning,
                              struct hd_error *err)
{
    struct hd__arena arena = {0};
    struct hd__tree_node *root = NULL;
    int32_t rc = hd__tree_parse(name, text, bytes, NULL, &arena, &root, err);
    if (!rc)
        rc = read_root(root, tuning, &arena, err);
    hd__arena_free(&arena);
    if (rc)
        hd__comm_tuning_free(tuning);
    tuning->hash = hash_rules(tuning);
    return rc;
}

int32_t hd__comm_tuning_read(const char *path, struct hd__tuning *tuning, struct hd_error *err)
{
    size_t bytes;
    char *text = hd__read_text(path, "tuning file", HD__TREE_BYTES, &bytes, err);
    int32_t rc = text ? hd__comm_tuning_parse(path, text, bytes, tuning, err) : err->code;
    free(text);
    return rc;
}

/* ---- writing */

int32_t hd__comm_tuning_write(const char *path, const struct hd__tuning *tuning, struct hd_error *err)
{
    FILE *out = hd__output_create(path, HD__TUNING_BEGINS, err);
    if (!out)
        return err->code;
    fprintf(out, HD__TUNING_BEGINS "%d, \"rules\": [", FORMAT);
    for (uint32_t i = 0; i < tuning->rules.count; i++) {
        const struct hd__tuning_rule *r = &tuning->rules.at[i];
        fprintf(out, "%s\n  {\"op\": \"%s\", \"ranks\": %d, ", i ? "," : "", hd_coll_name(r->coll), r->ranks);
        if (r->bytes < UINT64_C(1000000000000000)) /* else: any */
            fprintf(out, "\"bytes\": %llu, ", (unsigned long long)r->bytes);
        fprintf(out, "\"use\": \"%s\"", r->use->name);
        if (r->chunk)
            fprintf(out, ", \"chunk\": %llu", (unsigned long long)r->chunk);
        fputc('}', out);
    }
    fputs("\n]}\n", out);
    return hd__output_close(out, path, err);
}

void hd__comm_tuning_free(struct hd__tuning *tuning)
{
    hd__free_array(&tuning->rules);
    tuning->rules.at = NULL;
    tuning->rules.count = tuning->rules.room = 0;
}
