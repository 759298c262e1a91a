/* metrics.trace: FILE.json, or {file: FILE.json, steps: A-B or schedule: {...}, ranks: all}. */
#include <stdlib.h>

#include "core/job/internal.h"

int32_t hd__job_steps_parse(const char *text, int64_t *first, int64_t *last)
{
    char *end = NULL;
    *first = *last = strtoll(text, &end, 10);
    if (*end == '-' && end != text)
        *last = strtoll(end + 1, &end, 10);
    return !*text || *end || end[-1] < '0' || end[-1] > '9' || *first < 1 || *last < *first ? HD_E_INVALID : HD_OK;
}

static int32_t read_steps(struct hd__job *job, const char *path, struct hd__tree_node *node, struct hd_error *err)
{
    const char *text = node->kind == HD__SCALAR ? node->text : "";
    (void)path;
    if (hd__job_steps_parse(text, &job->trace.first, &job->trace.last))
        return hd__job_node_fail(node, err,
                                 "metrics.trace.steps: %.40s is neither a step nor a range of steps: write the first "
                                 "and the last, counted from 1, as in 20-24",
                                 node->kind == HD__SCALAR ? *text ? text : "''" : hd__tree_kind_name(node));
    return HD_OK;
}

static int32_t read_ranks(struct hd__job *job, const char *path, struct hd__tree_node *node, struct hd_error *err)
{
    static const struct hd_option number = {.type = HD_OPT_INT, .min = 0, .max = INT32_MAX};
    uint64_t n = node->kind == HD__LIST ? node->count : 1;
    int32_t rc = HD_OK;
    job->trace.n_ranks = 0;
    if (node->kind == HD__SCALAR && !strcmp(node->text, "all"))
        return HD_OK;
    if (!n || node->kind == HD__MAP || (node->kind == HD__SCALAR && strpbrk(node->text, "-,:")))
        return hd__job_node_fail(node, err, "%s: all, a rank or a list of ranks is wanted: [0, 3]", path);
    job->trace.ranks = hd__arena_alloc(&job->arena, n * sizeof *job->trace.ranks);
    for (uint64_t i = 0; i < n && !rc; i++) {
        struct hd__tree_node *at = node->kind == HD__LIST ? node->value[i] : node;
        rc = hd__job_node_parse(at, path, &number, &job->trace.ranks[i], &job->arena, err);
        for (uint64_t before = 0; before < i && !rc; before++)
            if (job->trace.ranks[before] == job->trace.ranks[i])
                rc = hd__job_node_fail(at, err, "%s: rank %.20s is there twice", path, at->text);
    }
    job->trace.n_ranks = n;
    return rc;
}

/* The words of torch.profiler.schedule. */
static int32_t read_schedule(struct hd__job *job, const char *path, struct hd__tree_node *node, struct hd_error *err)
{
    static const struct hd_option steps = {.type = HD_OPT_INT, .min = 0, .max = INT32_MAX},
                                  some = {.type = HD_OPT_INT, .min = 1, .max = INT32_MAX};
    const struct hd__job_part parts[] = {{"skip_first", steps, &job->trace.skip_first},
                                         {"wait", steps, &job->trace.wait},
                                         {"warmup", steps, &job->trace.warmup},
                                         {"active", some, &job->trace.active},
                                         {"repeat", steps, &job->trace.repeat}};
    int32_t rc = node->kind == HD__MAP ? hd__job_read_parts(job, path, node, parts, HD__COUNT(parts), err) : HD_OK;
    if (!rc && !job->trace.active)
        rc = hd__job_node_fail(node, err,
                               "%s: {wait: 99, warmup: 1, active: 3, repeat: 2} is wanted, numbers of steps and of "
                               "cycles, of which active is at least 1",
                               path);
    return rc;
}

static int32_t read_file(struct hd__job *job, const char *path, struct hd__tree_node *node, struct hd_error *err)
{
    if (node->kind != HD__SCALAR || hd__tree_is_null(node) || !*node->text)
        return hd__job_node_fail(node, err, "%s: the name of a file is wanted, FILE.json", path);
    job->trace.file = node->text;
    return hd__job_path_check(node, path, err);
}

int32_t hd__job_read_trace(struct hd__job *job, const char *path, struct hd__tree_node *node, struct hd_error *err)
{
    static const struct {
        const char *key;
        hd__job_composite_fn read;
    } keys[] = {{"file", read_file}, {"steps", read_steps}, {"schedule", read_schedule}, {"ranks", read_ranks}};
    int32_t rc = HD_OK;
    memset(&job->trace, 0, sizeof job->trace);
    if (node->kind == HD__LIST)
        return hd__job_node_fail(
            node, err, "%s is a list where FILE.json or {file: FILE.json, steps: A-B, ranks: all} is wanted", path);
    if (node->kind == HD__SCALAR && !node->text[strspn(node->text, "0123456789-")])
        return hd__job_node_fail(node, err, "%s: a file is wanted: FILE.json, or {file: FILE.json, steps: A-B}", path);
    if (node->kind == HD__SCALAR)
        rc = read_file(job, path, node, err);
    for (uint32_t i = 0; i < node->count && node->kind == HD__MAP && !rc; i++) {
        size_t k = 0;
        while (k < HD__COUNT(keys) && strcmp(keys[k].key, node->key[i]->text) != 0)
            k++;
        rc = k < HD__COUNT(keys)
                 ? keys[k].read(job, hd__arena_format(&job->arena, "%s.%s", path, keys[k].key), node->value[i], err)
                 : hd__job_node_fail(node->key[i], err,
                                     "%s: unknown key %.60s; the keys are file, steps, schedule, ranks", path,
                                     node->key[i]->text);
    }
    if (!rc && job->trace.active && job->trace.first)
        rc = hd__job_node_fail(node, err, "%s: steps and schedule are two ways to say the same: leave one out", path);
    if (!rc && !job->trace.file)
        rc = hd__job_node_fail(node, err, "%s: file is missing: {file: FILE.json, steps: A-B}", path);
    return rc;
}
