/* Machine files: where they lie, and what is in them. */
#include "analysis/plan/machine_file.h"

#include <dirent.h>
#include <limits.h>
#include <stdlib.h>
#include <unistd.h>

#include "core/base/dtype.h"
#include "core/base/file.h"
#include "core/base/option.h"
#include "core/base/yaml_tree.h"
#include "core/program/ops.h"

/* Ranges refuse figures in other units than ours: GB a second, microseconds, TFLOP/s, hours. */
#define ROW(key, kind, in, field, least, most, of)                                                           \
    {                                                                                                        \
        .name = key, .type = HD_OPT_##kind, .min = least, .max = most, .offset = offsetof(struct in, field), \
        .unit = of                                                                                           \
    }
#define RATE(key, field, least, most, of) ROW(key, FLOAT, hd__machine, field, least, most, of)
#define LEVEL(key, kind, least, most, of) ROW(#key, kind, hd__machine_level, key, least, most, of)
#define SHARE(key, field, of) RATE(key, field, 0.01, 1, of)

static const struct hd_option machine_keys[] = {
    ROW("name", STRING, hd__machine, name, 0, 0, "text"),
    ROW("device", STRING, hd__machine, device, 0, 0, "a device plugin"),
    ROW("ranks", INT, hd__machine, ranks, 1, 1 << 20, "devices of one machine"),
    ROW("threads", INT, hd__machine, threads, 1, 1 << 16, "compute threads of a rank"),
    ROW("processor", STRING, hd__machine, processor, 0, 0, "text"),
    ROW("memory", SIZE, hd__machine, memory, 1e6, 1e18, "bytes, as 80GB"),
    RATE("bandwidth", bandwidth, 1e8, 1e30, "bytes a second"),
    RATE("host_link", host_link, 1e8, 1e30, "bytes a second"),
    ROW("host_memory", SIZE, hd__machine, host_memory, 1e6, 1e18, "bytes of a machine, as 2TB"),
    RATE("kernel", kernel, 0, 0.1, "seconds"),
    RATE("peak_16", peak_16, 1e6, 1e30, "FLOPs a second of bf16 and fp16"),
    RATE("peak_fp32", peak_fp32, 1e6, 1e30, "FLOPs a second of fp32"),
    RATE("peak_fp64", peak_fp64, 1e6, 1e30, "FLOPs a second of fp64"),
    SHARE("product", product, "of the peak, by large products"),
    SHARE("attention", attention, "of the peak, by attention"),
    SHARE("attention_grad", attention_grad, "of the peak, by the gradients of attention"),
    SHARE("memory_share", memory_share, "of the bandwidth"),
    SHARE("link_share", link_share, "of a link's bandwidth"),
    RATE("half", half, 0, 1e30, "length of a dim at which a product reaches half"),
    RATE("units", units, 0, 1e30, "that compute a product's tiles"),
    RATE("tile_m", tile_m, 1, 1e30, "rows of a tile"),
    RATE("tile_n", tile_n, 1, 1e30, "columns of a tile"),
    RATE("collective", collective, 0, 0.1, "seconds"),
    RATE("slowed", slowed, 0, 0.9, "of the speed, while a collective is under way"),
    RATE("price", price, 0, 1e30, "dollars a rank and hour"),
    RATE("spot_price", spot_price, 0, 1e30, "dollars a rank and hour of a spot instance"),
    SHARE("spot_share", spot_share, "of the rank-hours are spot"),
    RATE("power", power, 1, 1e30, "watts a rank"),
    ROW("mtbf", DURATION, hd__machine, mtbf, 3600, 1e12, "seconds between failures of a rank"),
};

static const struct hd_option level_keys[] = {
    LEVEL(name, STRING, 0, 0, "text"),
    LEVEL(ranks, INT, 1, 1 << 30, "that reach each other"),
    LEVEL(bandwidth, FLOAT, 1e6, 1e30, "bytes a second"),
    LEVEL(latency, FLOAT, 0, 0.1, "seconds"),
    LEVEL(share, FLOAT, 0.01, 1, "of the bandwidth"),
};

struct instruction {
    const char *op;
    double wide, narrow;
};

static const struct hd_option instruction_keys[] = {
    ROW("op", STRING, instruction, op, 0, 0, "an op's name"),
    ROW("fp32", FLOAT, instruction, wide, 0.01, 1000, "times as long, of fp32"),
    ROW("16", FLOAT, instruction, narrow, 0.01, 1000, "times as long, of bf16 and fp16"),
};

/* ---- values */

static int32_t read_map(const struct hd__tree_node *map, const struct hd__options *table, void *out,
                        struct hd__arena *arena, struct hd_error *err)
{
    struct hd_error why = HD_ERROR_INIT;
    for (uint32_t i = 0; i < map->count; i++) {
        const char *key = map->key[i]->text;
        int64_t row = hd__option_find(table, key);
        if (table->at == machine_keys && (!strcmp(key, "levels") || !strcmp(key, "instructions")))
            continue;
        if (row < 0)
            return hd_fail(err, HD_E_INVALID, "%s: unknown key %.60s", map->key[i]->origin, key);
        if (map->value[i]->kind != HD__SCALAR)
            return hd_fail(err, HD_E_INVALID, "%s: %s is one value", map->value[i]->origin, key);
        struct hd_option option = hd__option_at(table, (size_t)row);
        if (option.type == HD_OPT_DURATION && !strpbrk(map->value[i]->text, "smhd"))
            return hd_fail(err, HD_E_INVALID, "%s: %s: %.60s has no unit: write 8060h or 300d", map->value[i]->origin,
                           key, map->value[i]->text);
        if (hd__option_parse(&option, map->value[i]->text, out, arena, &why))
            return hd_fail(err, HD_E_INVALID, "%s: %s: %s (%s)", map->value[i]->origin, key, why.message, option.unit);
    }
    return HD_OK;
}

static int32_t read_levels(const struct hd__tree_node *root, struct hd__machine *m, struct hd_error *err)
{
    const struct hd__tree_node *levels = hd__tree_get(root, "levels");
    const struct hd__options table = HD__OPTIONS(level_keys);
    if (!levels || levels->kind != HD__LIST || !levels->count || levels->count > HD__MACHINE_LEVELS)
        return hd_fail(err, HD_E_INVALID, "%s: levels is a list of 1 to %d levels of the network, the innermost first",
                       m->path, HD__MACHINE_LEVELS);
    for (uint32_t i = 0; i < levels->count; i++) {
        struct hd__machine_level *l = &m->level[m->n_levels++];
        if (levels->value[i]->kind != HD__MAP)
            return hd_fail(err, HD_E_INVALID, "%s: a level is {name, ranks, bandwidth, latency, share}",
                           levels->value[i]->origin);
        int32_t rc = read_map(levels->value[i], &table, l, &m->arena, err);
        if (rc)
            return rc;
        if (l->bandwidth <= 0 || (l->ranks ? i && l->ranks % l[-1].ranks : i + 1 < levels->count))
            return hd_fail(err, HD_E_INVALID,
                           "%s: a level has a bandwidth, and all but the last have ranks, a multiple of the level's "
                           "before",
                           levels->value[i]->origin);
        if (!l->ranks)
            l->ranks = INT32_MAX;
    }
    return HD_OK;
}

uint16_t hd__op_named(const char *name)
{
    uint16_t op = 0;
    while (op < HD_OP_LIMIT && !(hd__op(op)->name && !strcmp(hd__op(op)->name, name)))
        op++;
    return op;
}

static int32_t read_instructions(const struct hd__tree_node *root, struct hd__machine *m, struct hd_error *err)
{
    const struct hd__tree_node *list = hd__tree_get(root, "instructions");
    const struct hd__options table = HD__OPTIONS(instruction_keys);
    if (list && list->kind != HD__LIST)
        return hd_fail(err, HD_E_INVALID, "%s: instructions is a list of {op, fp32, 16}", list->origin);
    for (uint32_t k = 0; list && k < list->count; k++) {
        struct instruction i = {0};
        if (list->value[k]->kind != HD__MAP)
            return hd_fail(err, HD_E_INVALID, "%s: an instruction is {op, fp32, 16}", list->value[k]->origin);
        if (read_map(list->value[k], &table, &i, &m->arena, err))
            return err->code;
        uint16_t op = hd__op_named(i.op ? i.op : "");
        if (op == HD_OP_LIMIT)
            return hd_fail(err, HD_E_INVALID,
                           "%s: there is no op %.60s: an instruction is {op, fp32, 16}, and heddle explain "
                           "names a job's ops",
                           list->value[k]->origin, i.op ? i.op : "");
        if (m->times[op][0] > 0 || m->times[op][1] > 0)
            return hd_fail(err, HD_E_INVALID, "%s: %s is there twice: write it once, as {op: %s, fp32: F, 16: N}",
                           list->value[k]->origin, i.op, i.op);
        m->times[op][0] = i.wide;
        m->times[op][1] = i.narrow;
    }
    return HD_OK;
}

static int32_t parse(const char *text, size_t bytes, struct hd__machine *m, struct hd_error *err)
{
    struct hd__tree_node *root = NULL;
    const struct hd__options table = HD__OPTIONS(machine_keys);
    int32_t rc = hd__tree_parse(m->path, text, bytes, NULL, &m->arena, &root, err);
    if (!rc && root->kind != HD__MAP)
        rc = hd_fail(err, HD_E_INVALID, "%s: a machine file is a mapping", m->path);
    if (!rc && hd__tree_get(root, "model") && hd__tree_get(root, "data"))
        rc = hd_fail(err, HD_E_INVALID,
                     "%s is a job file: a machine file has name, device, memory, bandwidth and levels, as "
                     "machines/h100-8.yaml",
                     m->path);
    if (!rc)
        rc = read_map(root, &table, m, &m->arena, err);
    if (!rc)
        rc = read_levels(root, m, err);
    if (!rc)
        rc = read_instructions(root, m, err);
    if (!rc && ((m->spot_share > 0) != (m->spot_price > 0) || (m->spot_share > 0 && m->price <= 0)))
        rc = hd_fail(err, HD_E_INVALID, "%s: spot_share, spot_price and price are wanted together", m->path);
    if (!rc && m->spot_price > m->price)
        rc = hd_fail(err, HD_E_INVALID, "%s: spot_price is above price: they are dollars a rank and hour", m->path);
    m->price += m->spot_share * (m->spot_price - m->price);
    if (!rc && (!m->name || !m->device || m->memory <= 0 || m->bandwidth <= 0 || m->peak_fp32 <= 0))
        rc = hd_fail(err, HD_E_INVALID, "%s: name, device, memory, bandwidth and peak_fp32 are needed", m->path);
    return rc;
}

/* ---- files */

/* The folder machines/ beside the command in its build, or share/heddle/machines of the prefix it is installed in. */
static char *machines_folder(void)
{
    char exe[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    static const char *const at[] = {"machines", "../share/heddle/machines"};
    exe[HD__MAX(n, 0)] = 0;
    char *slash = strrchr(exe, '/');
    if (slash)
        *slash = 0;
    for (size_t i = 0; i < HD__COUNT(at) && slash; i++) {
        char *folder = hd__format("%s/%s", exe, at[i]);
        if (!access(folder, R_OK | X_OK))
            return folder;
        free(folder);
    }
    return NULL;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int32_t refuse_unknown(const char *name, const char *folder, struct hd_error *err)
{
    DIR *dir = folder ? opendir(folder) : NULL;
    HD__ARRAY(char *) names = {0};
    struct hd__text list = {0};
    for (const struct dirent *e; dir && (e = readdir(dir));) {
        size_t n = strlen(e->d_name);
        if (n > 5 && !strcmp(e->d_name + n - 5, ".yaml"))
            hd__push(&names, hd__format("%.*s", (int)(n - 5), e->d_name));
    }
    if (dir)
        closedir(dir);
    hd__sort(&names, by_text);
    for (uint32_t i = 0; i < names.count; i++) {
        hd__text_add(&list, "%s%s", i ? ", " : "", names.at[i]);
        free(names.at[i]);
    }
    hd_fail(err, HD_E_NOTFOUND, "there is no machine '%.60s': %s, or a file of your own, FILE.yaml", name,
            list.length ? list.at : "none is installed");
    hd__free_array(&names);
    hd__text_free(&list);
    return HD_E_NOTFOUND;
}

int32_t hd__machine_read(const char *name, struct hd__machine *m, struct hd_error *err)
{
    int is_file = strchr(name, '/') || hd__ends_with(name, ".yaml");
    char *folder = is_file ? NULL : machines_folder();
    char *path = is_file ? hd__strdup(name) : hd__format("%s/%s.yaml", folder ? folder : ".", name);
    *m = (struct hd__machine){
        .ranks = 1, .product = 1, .attention = 1, .memory_share = 1, .link_share = 1, .tile_m = 128, .tile_n = 256};
    if (!is_file && (!folder || access(path, F_OK))) {
        int32_t rc = refuse_unknown(name, folder, err);
        free(folder);
        free(path);
        return rc;
    }
    size_t bytes;
    char *text = hd__read_text(path, "machine file", HD__TREE_BYTES, &bytes, err);
    m->path = hd__arena_strdup(&m->arena, path);
    int32_t rc = text ? parse(text, bytes, m, err) : err->code;
    free(text);
    free(folder);
    free(path);
    if (rc)
        hd__machine_free(m);
    return rc;
}

void hd__machine_free(struct hd__machine *m)
{
    hd__arena_free(&m->arena);
    *m = (struct hd__machine){0};
}

int32_t hd__machine_reaches(const struct hd__machine *m, int64_t ranks, struct hd_error *err)
{
    const struct hd__machine_level *last = &m->level[m->n_levels - 1];
    if (ranks > last->ranks)
        return hd_fail(
            err, HD_E_INVALID,
            "%lld ranks: %s has no level beyond %lld of %s: add one, as infiniband in machines/h100-8.yaml; where "
            "they are on one machine, measure as many (heddle calibrate --ranks)",
            (long long)ranks, m->path, (long long)last->ranks, last->name ? last->name : "its last");
    return HD_OK;
}

double hd__machine_peak(const struct hd__machine *m, uint32_t dtype)
{
    size_t bytes = hd_dtype_size(dtype);
    double wide = m->peak_fp64 > 0 ? m->peak_fp64 : m->peak_fp32 / 2;
    return bytes >= 8 ? wide : bytes >= 4 || m->peak_16 <= 0 ? m->peak_fp32 : m->peak_16;
}
