#include "cli/ckpt_store.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "core/base/dtype.h"
#include "core/base/file.h"
#include "service/train/run_lock.h"

/* ---- a folder */

int32_t hd__cli_store_open(const char *folder, struct hd__cli_store *s, struct hd_error *err)
{
    const struct hd__component *c;
    char name[HD__STORE_NAME];
    const char *inside, *store = hd__store_of(folder, name);
    int32_t rc;
    *s = (struct hd__cli_store){.plugins = hd__plugins_create(hd__exec_host_table())};
    inside = hd__arena_format(&s->arena, "%s/checkpoints", folder);
    s->dir = hd__is_folder(inside) ? inside : hd__arena_strdup(&s->arena, folder);
    if (!access(hd__arena_format(&s->arena, "%s/index.json", folder), F_OK))
        return hd_fail(err, HD_E_INVALID,
                       "%s is one checkpoint: name the folder that it is in (and it by --checkpoint)", folder);
    rc = hd__plugins_add_default_folders(s->plugins, err);
    if (!rc)
        rc = hd__plugin_find(s->plugins, HD_KIND_CKPT, store ? store : "posix", &c, err);
    if (rc)
        return rc;
    char *settings = hd__arena_alloc(&s->arena, c->settings_size + 1);
    for (size_t i = 0; i < c->n_options && !rc; i++)
        if (c->options[i].value)
            rc = hd__option_parse(&c->options[i], c->options[i].value, settings, &s->arena, err);
    s->store.ops = &c->ops.ckpt;
    return rc ? rc : s->store.ops->open(hd__exec_host_table(), settings, s->dir, &s->store.ckpt, err);
}

void hd__cli_store_close(struct hd__cli_store *s)
{
    if (s->store.ckpt)
        s->store.ops->close(s->store.ckpt);
    hd__plugins_destroy(s->plugins);
    hd__arena_free(&s->arena);
    *s = (struct hd__cli_store){0};
}

/* ---- diff */

struct side {
    struct hd__cli_store store;
    struct hd__ckpt *ckpt;
    const struct hd__ckpt_tensor *tensors;
    uint32_t n, first, held; /* `data` has `held` tensors from `first` on, each at its own place */
    size_t at[64];
    char *data;
};

static int32_t open_side(const char *path, struct side *side, struct hd_error *err)
{
    char *folder = hd__strdup(path), *slash;
    int32_t rc;
    while (strlen(folder) > 1 && folder[strlen(folder) - 1] == '/')
        folder[strlen(folder) - 1] = 0;
    slash = strrchr(folder, '/');
    if (slash)
        *slash = 0;
    rc = hd__cli_store_open(!slash ? "." : *folder ? folder : "/", &side->store, err);
    if (!rc)
        rc = hd__ckpt_open(&side->store.store, slash ? slash + 1 : folder, &side->ckpt, err);
    if (rc == HD_E_NOTFOUND)
        hd_fail(err, rc, "%s is no checkpoint: name one as runs/NAME/checkpoints/step-00000100", path);
    if (!rc)
        side->tensors = hd__ckpt_tensors(side->ckpt, &side->n);
    free(folder);
    return rc;
}

/* Small tensors are read together: a block, which is read as a whole, is not read again for each of its tensors. */
static int32_t read_tensor(struct side *side, uint32_t i, const char **data, struct hd_error *err)
{
    struct hd__ckpt_run runs[HD__COUNT(side->at)];
    size_t bytes = 0;
    uint32_t n = 0;
    int32_t rc = HD_OK;
    if (i < side->first || i - side->first >= side->held) {
        for (; n < HD__COUNT(runs) && i + n < side->n && bytes < 4 << 20; n++) {
            const struct hd__ckpt_tensor *t = &side->tensors[i + n];
            runs[n] = (struct hd__ckpt_run){.tensor = i + n, .count = (int64_t)hd__ckpt_tensor_numel(t)};
            side->at[n] = bytes;
            bytes += (size_t)runs[n].count * hd_dtype_size(t->dtype);
        }
        side->data = hd__realloc(side->data, bytes + 1);
        for (uint32_t k = 0; k < n; k++)
            runs[k].data = side->data + side->at[k];
        side->first = i;
        side->held = n;
        rc = hd__ckpt_load(side->ckpt, side->tensors, side->n, runs, n, err);
    }
    *data = side->data + side->at[i - side->first];
    return rc;
}

static int same_shape(const struct hd__ckpt_tensor *a, const struct hd__ckpt_tensor *b)
{
    return a->dtype == b->dtype && a->ndim == b->ndim && !memcmp(a->shape, b->shape, a->ndim * sizeof *a->shape);
}

/* A line where elements differ; 1 if they do. */
static int print_difference(const struct hd__ckpt_tensor *t, const char *a, const char *b)
{
    size_t size = hd_dtype_size(t->dtype);
    int64_t n = (int64_t)hd__ckpt_tensor_numel(t), differ = 0;
    double most = 0, sum = 0;
    for (int64_t i = 0; i < n; i++) {
        const char *x = a + (size_t)i * size, *y = b + (size_t)i * size;
        if (!memcmp(x, y, size))
            continue;
        double off = fabs(hd__dtype_load(t->dtype, x) - hd__dtype_load(t->dtype, y));
        differ++;
        most = off > most || isnan(off) ? off : most;
        sum += off * off;
    }
    if (differ)
        printf("  %-16s %s: %" PRId64 " of %" PRId64 " elements differ, by %.6g at most, %.6g rms\n", t->group, t->name,
               differ, n, most, sqrt(sum / (double)n));
    return differ > 0;
}

static int32_t compare_tensors(struct side *a, struct side *b, int *differ, struct hd_error *err)
{
    const char *ours, *theirs;
    uint32_t different = 0;
    int32_t rc = HD_OK;
    for (uint32_t i = 0; i < a->n && !rc; i++) {
        const struct hd__ckpt_tensor *t = &a->tensors[i];
        int64_t j = hd__ckpt_find_tensor(b->ckpt, t->group, t->name);
        if (j < 0 || !same_shape(t, &b->tensors[j])) {
            printf("  %-16s %s: %s\n", t->group, t->name, j < 0 ? "only in A" : "of another shape or dtype in B");
            different++;
            continue;
        }
        rc = read_tensor(a, i, &ours, err);
        if (!rc && !(rc = read_tensor(b, (uint32_t)j, &theirs, err)))
            different += (uint32_t)print_difference(t, ours, theirs);
    }
    for (uint32_t j = 0; j < b->n && !rc; j++)
        if (hd__ckpt_find_tensor(a->ckpt, b->tensors[j].group, b->tensors[j].name) < 0) {
            printf("  %-16s %s: only in B\n", b->tensors[j].group, b->tensors[j].name);
            different++;
        }
    if (!rc)
        printf("%u tensor%s of A and %u of B: %u differ\n", a->n, a->n == 1 ? "" : "s", b->n, different);
    *differ = different > 0;
    return rc;
}

static void print_value(const json_t *value)
{
    char *text = value ? json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(9)) : NULL;
    printf("%s", text ? text : "-");
    free(text);
}

/* Keys of the state in which they differ, "job.optimizer.lr: 0.001 in A, 0.01 in B". */
static void compare_state(const json_t *a, const json_t *b, const char *prefix)
{
    json_t *all = json_object(), *value;
    const char *key;
    json_object_update(all, (json_t *)a);
    json_object_update_missing(all, (json_t *)b);
    json_object_foreach(all, key, value)
    {
        const json_t *x = json_object_get(a, key), *y = json_object_get(b, key);
        if (json_equal(x, y) || (!*prefix && !strcmp(key, "time")))
            continue;
        char *name = hd__format("%s%s", prefix, key);
        if (json_is_object(x) && json_is_object(y)) {
            char *inner = hd__format("%s.", name);
            compare_state(x, y, inner);
            free(inner);
        } else {
            printf("  %s: ", name);
            print_value(x);
            printf(" in A, ");
            print_value(y);
            printf(" in B\n");
        }
        free(name);
    }
    json_decref(all);
}

int32_t hd__cli_store_diff(const char *a, const char *b, int *differ, struct hd_error *err)
{
    struct side sides[2] = {0};
    int32_t rc = open_side(a, &sides[0], err);
    rc = rc ? rc : open_side(b, &sides[1], err);
    if (!rc) {
        printf("A %s, step %" PRIu64 "\nB %s, step %" PRIu64 "\n", a, hd__ckpt_step(sides[0].ckpt), b,
               hd__ckpt_step(sides[1].ckpt));
        compare_state(hd__ckpt_state(sides[0].ckpt), hd__ckpt_state(sides[1].ckpt), "");
        rc = compare_tensors(&sides[0], &sides[1], differ, err);
    }
    for (size_t i = 0; i < HD__COUNT(sides); i++) {
        free(sides[i].data);
        hd__ckpt_close(sides[i].ckpt);
        hd__cli_store_close(&sides[i].store);
    }
    return rc;
}

/* ---- removal */

int32_t hd__cli_store_remove(const struct hd__ckpt_store *store, const char *dir, const char *name,
                             struct hd_error *err)
{
    struct hd__run_locks locks = {{-1, -1}};
    uint64_t *steps = NULL;
    uint32_t n = 0, torn = 0;
    int found = 0;
    int32_t rc = hd__ckpt_list_steps(store, &steps, &n, &torn, err);
    for (uint32_t i = 0; i < n + torn && !rc; i++) {
        char is[32];
        hd__ckpt_step_name(steps[i], is);
        found |= !strcmp(is, name);
    }
    free(steps);
    if (!rc && !found)
        rc = hd_fail(err, HD_E_NOTFOUND, "%s has no checkpoint %s: `heddle ckpt ls` lists them", dir, name);
    if (!rc)
        rc = hd__run_lock_folder(dir, &locks.fd[0], err);
    if (!rc)
        rc = store->ops->remove(store->ckpt, name, err);
    hd__run_locks_release(&locks);
    if (!rc)
        printf("%s/%s is removed\n", dir, name);
    return rc;
}

/* The id of the run that the newest belongs to; keep counts those. */
static int32_t newest_run(const struct hd__ckpt_store *store, char run[64], struct hd_error *err)
{
    struct hd__ckpt *ckpt = NULL;
    char name[32];
    int32_t rc = hd__ckpt_latest(store, name, err);
    if (!rc)
        rc = hd__ckpt_open(store, name, &ckpt, err);
    if (!rc)
        snprintf(run, 64, "%s", hd__ckpt_run_id(ckpt));
    hd__ckpt_close(ckpt);
    return rc;
}

int32_t hd__cli_store_prune(const struct hd__ckpt_store *store, const struct hd__job *job, struct hd_error *err)
{
    struct hd__run_locks locks = {{-1, -1}};
    char run[64] = "";
    uint32_t removed = 0;
    const struct hd__ckpt_save policy = {.step = UINT64_MAX,
                                         .run = run,
                                         .keep = (uint32_t)job->checkpoint_keep,
                                         .keep_best = (uint32_t)job->checkpoint_keep_best,
                                         .keep_every = (uint64_t)job->checkpoint_keep_every};
    int32_t rc = newest_run(store, run, err);
    if (rc == HD_E_NOTFOUND)
        return hd_fail(err, rc, "no checkpoint in %s", job->checkpoint_dir);
    if (!policy.keep)
        return hd_fail(err, HD_E_INVALID,
                       "checkpoint.keep is 0, which keeps all: say how many of the newest to keep, as in "
                       "checkpoint.keep=3; `heddle ckpt rm` removes one");
    if (!rc)
        rc = hd__run_lock_folder(job->checkpoint_dir, &locks.fd[0], err);
    if (!rc)
        rc = hd__ckpt_prune(store, &policy, &removed, err);
    hd__run_locks_release(&locks);
    if (!rc)
        printf("%s: %u checkpoint%s of run %s removed\n", job->checkpoint_dir, removed, removed == 1 ? "" : "s",
               *run ? run : "(without an id)");
    return rc;
}

/* ---- ls */

void hd__cli_store_describe(const json_t *state, struct hd__text *out)
{
    const json_t *val = json_object_get(state, "val_loss"), *size;
    time_t when = (time_t)json_integer_value(json_object_get(state, "time"));
    char date[32];
    const char *axis, *separator = "  ";
    struct tm utc;
    if (when) {
        strftime(date, sizeof date, "%Y-%m-%d %H:%M:%S UTC", gmtime_r(&when, &utc));
        hd__text_add(out, "  %s", date);
    }
    if (json_is_number(val))
        hd__text_add(out, "  val_loss %.4f", json_number_value(val));
    json_object_foreach(json_object_get(state, "mesh"), axis, size) if (json_integer_value(size) > 1)
    {
        hd__text_add(out, "%s%s %" JSON_INTEGER_FORMAT, separator, axis, json_integer_value(size));
        separator = ", ";
    }
    const json_t *emergency = json_object_get(state, "emergency"), *rank;
    size_t i;
    if (!emergency)
        return;
    hd__text_add(out, "  saved after a fault");
    json_array_foreach(json_object_get(emergency, "lost"), i, rank)
        hd__text_add(out, "%s%" JSON_INTEGER_FORMAT, i ? ", " : ", without rank ", json_integer_value(rank));
}
