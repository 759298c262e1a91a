/* Finding, opening, checking, loading and verifying checkpoints. */
#include <inttypes.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

#include "runtime/cpu/parallel_for.h"
#include "service/checkpoint/internal.h"
#include "service/checkpoint/safetensors.h"

/* ---- names and steps */

void hd__ckpt_step_name(uint64_t step, char name[32])
{
    snprintf(name, 32, "step-%08llu", (unsigned long long)step);
}

struct step_list {
    HD__ARRAY(uint64_t) steps; /* ascending */
    char other[32];            /* the first name that is no step's */
};

/* Accepts exactly the names that hd__ckpt_step_name makes; of another that is a step, too, it says so once. */
static void add_step(void *user, const char *name)
{
    static atomic_int said;
    struct step_list *list = user;
    char again[32];
    if (strncmp(name, "step-", 5) || strspn(name + 5, "0123456789") != strlen(name + 5) || strlen(name) > 24) {
        if (!*list->other && strlen(name) < sizeof list->other)
            memcpy(list->other, name, strlen(name));
        return;
    }
    uint64_t step = strtoull(name + 5, NULL, 10);
    hd__ckpt_step_name(step, again);
    if (strcmp(name, again) != 0) {
        if (!atomic_fetch_add(&said, 1))
            hd__log(HD_LOG_WARN, NULL, "%s is passed over: a checkpoint of this step is called %s", name, again);
        return;
    }
    hd__push(&list->steps, step);
    for (uint32_t i = list->steps.count - 1; i && list->steps.at[i - 1] > step; i--) {
        list->steps.at[i] = list->steps.at[i - 1];
        list->steps.at[i - 1] = step;
    }
}

int32_t hd__ckpt_list_steps(const struct hd__ckpt_store *store, uint64_t **steps, uint32_t *n, uint32_t *torn,
                            struct hd_error *err)
{
    static atomic_int said;
    struct step_list list = {0};
    uint32_t kept = 0;
    int32_t rc = hd__ckpt_result(store->ops->list(store->ckpt, add_step, &list, err), "list", err);
    if (rc) {
        hd__free_array(&list.steps);
        return rc;
    }
    for (uint32_t i = 0; i < list.steps.count; i++) {
        char name[32];
        uint64_t bytes, step = list.steps.at[i];
        struct hd_error unused = HD_ERROR_INIT;
        hd__ckpt_step_name(step, name);
        if (store->ops->size(store->ckpt, name, HD__CKPT_INDEX, &bytes, &unused))
            continue;
        memmove(list.steps.at + kept + 1, list.steps.at + kept, (i - kept) * sizeof step); /* the torn, in order */
        list.steps.at[kept++] = step;
    }
    uint64_t bytes;
    struct hd_error unused = HD_ERROR_INIT;
    if (!list.steps.count && *list.other && store->peers.rank == 0 &&
        !store->ops->size(store->ckpt, list.other, HD__CKPT_INDEX, &bytes, &unused) && !atomic_fetch_add(&said, 1))
        hd__log(HD_LOG_WARN, NULL,
                "checkpoint %s is passed over, because its name is no step's, as step-00000100 is: rename it, or name "
                "it by checkpoint.resume",
                list.other);
    if (torn)
        *torn = list.steps.count - kept;
    *steps = list.steps.at;
    *n = kept;
    return HD_OK;
}

const char *hd__ckpt_torn_reason(const struct hd__ckpt_store *store, uint64_t step, char text[HD__TORN_REASON])
{
    struct hd_error why = HD_ERROR_INIT;
    uint64_t bytes;
    char name[32];
    hd__ckpt_step_name(step, name);
    int32_t rc = store->ops->size(store->ckpt, name, HD__CKPT_INDEX, &bytes, &why);
    snprintf(text, HD__TORN_REASON, rc && rc != HD_E_NOTFOUND ? " (%s)" : "", why.message);
    return text;
}

int32_t hd__ckpt_latest(const struct hd__ckpt_store *store, char name[32], struct hd_error *err)
{
    uint64_t *steps = NULL, torn;
    uint32_t n = 0, n_torn = 0;
    char why[HD__TORN_REASON];
    int32_t rc = hd__ckpt_list_steps(store, &steps, &n, &n_torn, err);
    if (!rc && n)
        hd__ckpt_step_name(steps[n - 1], name);
    torn = n_torn ? steps[n + n_torn - 1] : 0;
    if (!rc && torn > (n ? steps[n - 1] : 0) && store->peers.rank == 0)
        hd__log(HD_LOG_WARN, NULL, "step-%08lu has no index.json that can be read%s, so it is no checkpoint: %s%s",
                (unsigned long)torn, hd__ckpt_torn_reason(store, torn, why), n ? "the newest is " : "there is no other",
                n ? name : "");
    if (!rc && !n)
        rc = hd_fail(err, HD_E_NOTFOUND, "there is no checkpoint");
    free(steps);
    return rc;
}

/* ---- opening */

/* A folder that was renamed, or is a copy of the one whose name it would have. */
static int32_t refuse_renamed(const struct hd__ckpt *c, struct hd_error *err)
{
    struct hd_error unused = HD_ERROR_INIT;
    char own[32];
    uint64_t bytes;
    hd__ckpt_step_name(c->step, own);
    int taken = !c->store.ops->size(c->store.ckpt, own, HD__CKPT_INDEX, &bytes, &unused);
    return hd_fail(err, HD_E_INVALID, "checkpoint %s is of step %" PRIu64 ": %s %s", c->name, c->step,
                   taken ? "remove it, or move it to another folder: that step has a checkpoint of its own,"
                         : "give it its name back,",
                   own);
}

int32_t hd__ckpt_open(const struct hd__ckpt_store *store, const char *name, struct hd__ckpt **out, struct hd_error *err)
{
    uint64_t bytes = 0;
    if (strlen(name) > 31)
        return hd_fail(err, HD_E_NOTFOUND, "checkpoint '%.64s': not a checkpoint's name", name);
    int32_t rc = hd__ckpt_result(store->ops->size(store->ckpt, name, HD__CKPT_INDEX, &bytes, err), "size", err);
    if (rc)
        return rc;
    if (bytes > HD__CKPT_INDEX_MAX)
        return hd_fail(err, HD_E_CORRUPT, "checkpoint %s: index.json of %lu bytes", name, (unsigned long)bytes);
    struct hd__ckpt *c = hd__alloc(sizeof *c);
    c->store = *store;
    snprintf(c->name, sizeof c->name, "%s", name);
    char *text = hd__alloc(bytes);
    rc = hd__ckpt_result(store->ops->read(store->ckpt, name, HD__CKPT_INDEX, 0, text, bytes, err), "read", err);
    if (!rc)
        rc = hd__ckpt_index_parse(c, text, bytes, err);
    if (!rc && !strncmp(name, "step-", 5) && name[5] && strspn(name + 5, "0123456789") == strlen(name + 5) &&
        strtoull(name + 5, NULL, 10) != c->step)
        rc = refuse_renamed(c, err);
    free(text);
    if (rc) {
        hd__ckpt_close(c);
        return rc;
    }
    *out = c;
    return HD_OK;
}

void hd__ckpt_close(struct hd__ckpt *c)
{
    if (!c)
        return;
    json_decref(c->json);
    hd__arena_free(&c->arena);
    free(c);
}

uint64_t hd__ckpt_step(const struct hd__ckpt *c)
{
    return c->step;
}

const char *hd__ckpt_run_id(const struct hd__ckpt *c)
{
    const char *run = json_string_value(json_object_get(c->json, "run"));
    return run ? run : "";
}

const json_t *hd__ckpt_state(const struct hd__ckpt *c)
{
    return json_object_get(c->json, "state");
}

const struct hd__ckpt_tensor *hd__ckpt_tensors(const struct hd__ckpt *c, uint32_t *n)
{
    *n = c->n_tensors;
    return c->tensors;
}

uint64_t hd__ckpt_total_bytes(const struct hd__ckpt *c)
{
    return c->layout.bytes;
}

/* ---- is it of this model? */

static const char *shape_text(const struct hd__ckpt_tensor *t, char out[160])
{
    int n = snprintf(out, 160, "%s [", hd_dtype_name(t->dtype));
    for (uint32_t d = 0; d < t->ndim; d++)
        n += snprintf(out + n, 160 - (size_t)n, "%s%ld", d ? ", " : "", (long)t->shape[d]);
    snprintf(out + n, 160 - (size_t)n, "]");
    return out;
}

/* The first tensor of the checkpoint that is missing in `wanted` (sorted) although its group is there. */
static const struct hd__ckpt_tensor *find_surplus(const struct hd__ckpt *c, const struct hd__ckpt_tensor **wanted,
                                                  uint32_t n)
{
    for (uint32_t i = 0, w = 0; i < c->n_tensors; i++) {
        const struct hd__ckpt_tensor *t = c->sorted[i];
        while (w < n && hd__ckpt_by_name(&wanted[w], &t) < 0)
            w++;
        if (w < n && !hd__ckpt_by_name(&wanted[w], &t))
            continue;
        if ((w < n && !strcmp(wanted[w]->group, t->group)) || (w && !strcmp(wanted[w - 1]->group, t->group)))
            return t;
    }
    return NULL;
}

/* "optim-exp_avg" is state of the optimizer, "strategy-momentum" of a strategy. */
static const char *group_owner(const char *group)
{
    if (!strncmp(group, "strategy", 8))
        return "strategy";
    return strstr(group, "optim") ? "optimizer" : "model";
}

int32_t hd__ckpt_check_tensors(const struct hd__ckpt *c, const struct hd__ckpt_tensor *tensors, uint32_t n,
                               struct hd_error *err)
{
    char ours[160], theirs[160];
    for (uint32_t i = 0; i < n; i++) {
        const struct hd__ckpt_tensor *t = &tensors[i];
        int64_t at = hd__ckpt_find_tensor(c, t->group, t->name);
        if (at < 0)
            return hd_fail(err, HD_E_MISMATCH, "checkpoint %s is of another %s: it has no tensor %s of group %s%s",
                           c->name, group_owner(t->group), t->name, t->group,
                           strncmp(t->group, "strategy-", 9)
                               ? ""
                               : ": a strategy that keeps state can only begin with a run: "
                                 "leave it out, or take another job.name");
        const struct hd__ckpt_tensor *saved = &c->tensors[at];
        if (t->dtype != saved->dtype || t->ndim != saved->ndim ||
            memcmp(t->shape, saved->shape, t->ndim * sizeof *t->shape))
            return hd_fail(err, HD_E_MISMATCH, "checkpoint %s is of another %s: %s %s is %s there, %s here", c->name,
                           group_owner(t->group), t->group, t->name, shape_text(saved, theirs), shape_text(t, ours));
    }
    const struct hd__ckpt_tensor **sorted = hd__alloc((n + 1) * sizeof *sorted);
    for (uint32_t i = 0; i < n; i++)
        sorted[i] = &tensors[i];
    qsort(sorted, n, sizeof *sorted, hd__ckpt_by_name);
    const struct hd__ckpt_tensor *extra = find_surplus(c, sorted, n);
    free(sorted);
    if (extra)
        return hd_fail(err, HD_E_MISMATCH, "checkpoint %s is of another %s: this one has no tensor %s of group %s",
                       c->name, group_owner(extra->group), extra->name, extra->group);
    return HD_OK;
}

/* ---- reading blocks */

struct loading {
    const struct hd__ckpt *ckpt;
    struct hd__ckpt_pieces pieces;
    struct hd__arena arena;
};

/* A tensor of the block, for messages. */
static const char *tensor_at(const struct hd__ckpt *c, uint32_t file, uint64_t begin, uint64_t bytes)
{
    for (uint32_t i = 0; i < c->n_tensors; i++) {
        const struct hd__ckpt_location *p = &c->layout.locations[i];
        if (p->file == file && p->offset < begin + bytes && p->offset + p->bytes > begin && p->bytes)
            return c->tensors[i].name;
    }
    return "(the header)";
}

static int32_t read_block(const struct hd__ckpt *c, uint64_t number, char *block, const char *tensor,
                          struct hd_error *err)
{
    uint64_t begin, bytes;
    uint32_t file = hd__ckpt_locate_block(&c->layout, number, &begin, &bytes);
    const char *name = c->layout.files[file].name;
    int32_t rc = c->store.ops->read(c->store.ckpt, c->name, name, begin, block, bytes, err);
    rc = hd__ckpt_result(rc, "read", err);
    if (rc)
        return rc;
    uint64_t hash = hd__hash(block, bytes, 0);
    if (hash == c->hashes[number])
        return HD_OK;
    return hd_fail(err, HD_E_CORRUPT,
                   "checkpoint %s: %s: block %lu (bytes %lu to %lu), tensor %s: checksum %016lx, "
                   "written was %016lx: the file was changed or the disk is bad",
                   c->name, name, (unsigned long)(begin / HD__CKPT_BLOCK), (unsigned long)begin,
                   (unsigned long)(begin + bytes), tensor ? tensor : tensor_at(c, file, begin, bytes),
                   (unsigned long)hash, (unsigned long)c->hashes[number]);
}

static int32_t load_block(void *user, uint64_t number, char *block, struct hd_error *err)
{
    const struct loading *l = user;
    const struct hd__ckpt_piece *piece = l->pieces.at + l->pieces.first[number],
                                *end = l->pieces.at + l->pieces.first[number + 1];
    int32_t rc = piece == end ? HD_OK : read_block(l->ckpt, number, block, l->ckpt->tensors[piece->tensor].name, err);
    for (; piece < end && !rc; piece++)
        memcpy(piece->data, block + piece->at, piece->bytes);
    return rc;
}

static int32_t check_file(const struct hd__ckpt *c, const struct hd__ckpt_file *file, struct hd_error *err)
{
    uint64_t bytes = 0;
    int32_t rc = c->store.ops->size(c->store.ckpt, c->name, file->name, &bytes, err);
    rc = hd__ckpt_result(rc, "size", err);
    if (!rc && bytes != file->bytes)
        rc = hd_fail(err, HD_E_CORRUPT, "checkpoint %s: %s has %lu bytes, written were %lu", c->name, file->name,
                     (unsigned long)bytes, (unsigned long)file->bytes);
    return rc;
}

int32_t hd__ckpt_check_files(const struct hd__ckpt *c, struct hd_error *err)
{
    int32_t rc = HD_OK;
    for (uint32_t i = 0; i < c->layout.n_files && !rc; i++)
        rc = check_file(c, &c->layout.files[i], err);
    return rc;
}

int32_t hd__ckpt_load(const struct hd__ckpt *c, const struct hd__ckpt_tensor *tensors, uint32_t n_tensors,
                      const struct hd__ckpt_run *runs, uint32_t n_runs, struct hd_error *err)
{
    struct loading l = {.ckpt = c};
    int32_t rc = hd__ckpt_check_tensors(c, tensors, n_tensors, err);
    if (rc)
        return rc;
    /* Runs index tensors by the caller's list. */
    struct hd__ckpt_run *mine = hd__alloc(n_runs * sizeof *mine);
    for (uint32_t i = 0; i < n_runs && !rc; i++) {
        mine[i] = runs[i];
        if (runs[i].tensor >= n_tensors)
            rc = hd_fail(err, HD_E_INTERNAL, "checkpoint: a run of tensor %u of %u", runs[i].tensor, n_tensors);
        else
            mine[i].tensor =
                (uint32_t)hd__ckpt_find_tensor(c, tensors[runs[i].tensor].group, tensors[runs[i].tensor].name);
    }
    if (!rc)
        rc = hd__ckpt_cut(&l.arena, &c->layout, c->tensors, c->n_tensors, mine, n_runs, 0, &l.pieces, err);
    for (uint32_t i = 0; i < c->layout.n_files && !rc; i++) { /* rank 0 also those that it does not read */
        const struct hd__ckpt_file *file = &c->layout.files[i];
        const uint64_t *first = l.pieces.first + file->first_block;
        if (!c->store.peers.rank || first[0] < first[file->n_blocks])
            rc = check_file(c, file, err);
    }
    if (!rc)
        rc = hd__parallel_for(c->store.threads ? c->store.threads : 2, c->layout.n_blocks, HD__CKPT_BLOCK, load_block,
                              &l, err);
    hd__free_array(&l.pieces);
    hd__arena_free(&l.arena);
    free(mine);
    return rc;
}

static int32_t verify_block(void *user, uint64_t i, char *block, struct hd_error *err)
{
    return read_block(user, i, block, NULL, err);
}

/* ---- the files' own headers */

struct header_check {
    const struct hd__ckpt *ckpt;
    const char *group; /* of the file's tensors */
    uint64_t data;     /* offset of the tensors' bytes in the file */
    uint32_t file, seen;
    char differs[128]; /* a tensor that the index has otherwise */
};

static void check_tensor(void *user, const struct hd__ckpt_st_tensor *t)
{
    struct header_check *h = user;
    int64_t i = hd__ckpt_find_tensor(h->ckpt, h->group, t->name);
    const struct hd__ckpt_location *at = i < 0 ? NULL : &h->ckpt->layout.locations[i];
    const struct hd__ckpt_tensor *x = i < 0 ? NULL : &h->ckpt->tensors[i];
    h->seen++;
    if (i < 0 || at->file != h->file || at->offset != h->data + t->offset || at->bytes != t->bytes ||
        x->dtype != t->dtype || x->ndim != t->ndim || memcmp(x->shape, t->shape, t->ndim * sizeof *t->shape))
        snprintf(h->differs, sizeof h->differs, "%s", t->name);
}

static int32_t verify_header(const struct hd__ckpt *c, uint32_t file, struct hd_error *err)
{
    const struct hd_ckpt_ops *ops = c->store.ops;
    const struct hd__ckpt_file *f = &c->layout.files[file];
    struct header_check h = {.ckpt = c, .file = file, .group = ""};
    uint64_t length = 0;
    uint32_t listed = 0;
    int32_t rc = f->bytes < 8 ? HD_OK : ops->read(c->store.ckpt, c->name, f->name, 0, &length, 8, err);
    if (!rc && (f->bytes < 8 || length > f->bytes - 8))
        rc = hd_fail(err, HD_E_CORRUPT, "checkpoint %s: %s: not a safetensors file", c->name, f->name);
    if (rc)
        return rc;
    for (uint32_t i = 0; i < c->n_tensors; i++)
        if (c->layout.locations[i].file == file && ++listed)
            h.group = c->tensors[i].group;
    char *header = hd__alloc(length);
    h.data = 8 + length;
    rc = ops->read(c->store.ckpt, c->name, f->name, 8, header, length, err);
    if (!rc)
        rc = hd__ckpt_st_parse(f->name, header, length, f->bytes - h.data, check_tensor, &h, err);
    free(header);
    if (!rc && (h.differs[0] || h.seen != listed))
        rc = hd_fail(err, HD_E_CORRUPT, "checkpoint %s: index.json disagrees with the header of %s: %s%s", c->name,
                     f->name, h.differs[0] ? "tensor " : "it lists more tensors", h.differs);
    return rc;
}

int32_t hd__ckpt_verify(const struct hd__ckpt *c, struct hd_error *err)
{
    int32_t rc = hd__ckpt_check_files(c, err);
    if (!rc)
        rc = hd__parallel_for(c->store.threads ? c->store.threads : 2, c->layout.n_blocks, HD__CKPT_BLOCK, verify_block,
                              (void *)c, err);
    for (uint32_t i = 0; i < c->layout.n_files && !rc; i++)
        rc = verify_header(c, i, err);
    return rc;
}
