#include "service/checkpoint/memory_copy.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "service/checkpoint/internal.h"
#include "service/checkpoint/train_state.h"

static const char magic[8] = "HDCOPY1";

_Static_assert(sizeof(struct hd__copy_header) <= HD__COPY_HEADER, "the header has its room");

/* ---- one copy */

uint64_t hd__copy_bytes(const struct hd__copy_header *h)
{
    const uint64_t most = UINT64_C(1) << 60;
    if (h->n_runs > most / sizeof(struct hd__copy_run) || h->state_bytes > most || h->data_bytes > most)
        return UINT64_MAX;
    return HD__COPY_HEADER + h->n_runs * sizeof(struct hd__copy_run) + h->state_bytes + h->data_bytes;
}

static uint64_t hash_header(const struct hd__copy_header *h)
{
    return hd__hash(h, offsetof(struct hd__copy_header, hash), 0);
}

uint64_t hd__copy_planned_bytes(struct hd_program *const *stages, int32_t n_stages, const char *const *state_names,
                                int32_t rank)
{
    struct hd__ckpt_train_state state = {0};
    int32_t coord[HD_AXIS_COUNT];
    hd__mesh_coord(&stages[0]->mesh, rank, coord);
    const struct hd__ckpt_training training = {.program = stages[n_stages > 1 ? coord[HD_AXIS_PP] : 0],
                                               .stages = stages,
                                               .n_stages = n_stages,
                                               .coord = coord,
                                               .arena = (void *)(uintptr_t)HD__COPY_HEADER, /* nothing is read */
                                               .state_names = state_names};
    hd__ckpt_collect_train_state(&state, &training, 1, NULL);
    hd__ckpt_collect_rank_state(&state, &training);
    uint64_t bytes = HD__COPY_HEADER + state.runs.count * sizeof(struct hd__copy_run);
    for (uint32_t i = 0; i < state.runs.count; i++) {
        const struct hd__ckpt_run *run = &state.runs.at[i];
        bytes += (uint64_t)run->count * hd_dtype_size(state.tensors.at[run->tensor].dtype);
    }
    hd__ckpt_train_state_free(&state);
    return bytes;
}

/* The file in memory; NULL where that fails. */
static char *map(int fd, uint64_t bytes, int protection)
{
    char *at = mmap(NULL, bytes, protection, MAP_SHARED, fd, 0);
    return at == MAP_FAILED ? NULL : at;
}

static uint64_t hash_tensor(const struct hd__ckpt_tensor *t, uint64_t seed)
{
    uint32_t type[2] = {t->dtype, t->ndim};
    seed = hd__hash(t->group, strlen(t->group) + 1, seed);
    seed = hd__hash(t->name, strlen(t->name) + 1, seed);
    seed = hd__hash(type, sizeof type, seed);
    return hd__hash(t->shape, t->ndim * sizeof *t->shape, seed);
}

void hd__copy_hash_tensors(const struct hd__ckpt_tensor *tensors, uint32_t n, uint64_t *most, uint64_t *all)
{
    *most = *all = n;
    *most = 0;
    for (uint32_t i = 0; i < n; i++) {
        *all = hash_tensor(&tensors[i], *all);
        if (strcmp(tensors[i].group, "strategy-ranks") != 0)
            *most = hash_tensor(&tensors[i], *most);
    }
}

void hd__copy_clear(int fd)
{
    static const char none[HD__COPY_HEADER];
    ssize_t written = pwrite(fd, none, sizeof none, 0);
    (void)written; /* a file without a header has no copy either */
}

/* Runs, JSON, data, in this order. */
static void fill(char *at, const struct hd__ckpt_save *save, const char *state, const struct hd__copy_header *h)
{
    struct hd__copy_run *table = (struct hd__copy_run *)(at + HD__COPY_HEADER);
    uint64_t offset = HD__COPY_HEADER + h->n_runs * sizeof *table + h->state_bytes;
    memcpy(at + offset - h->state_bytes, state, h->state_bytes);
    for (uint32_t i = 0; i < save->n_runs; i++) {
        const struct hd__ckpt_run *run = &save->runs[i];
        table[i] =
            (struct hd__copy_run){.tensor = run->tensor, .first = run->first, .count = run->count, .offset = offset};
        if (run->count)
            memcpy(at + offset, run->data, hd__ckpt_run_bytes(save, i));
        offset += hd__ckpt_run_bytes(save, i);
    }
}

/* The pages stay mapped from copy to copy: touching them costs as much as filling them. */
static int32_t reserve(struct hd__copy_file *f, uint64_t bytes, struct hd_error *err)
{
    char text[32];
    if (bytes <= f->bytes)
        return HD_OK;
    hd__copy_unmap(f);
    if (fallocate(f->fd, 0, 0, (off_t)bytes) || !(f->at = map(f->fd, bytes, PROT_READ | PROT_WRITE)))
        return hd_fail(err, HD_E_NOMEM,
                       "checkpoint.peers: no memory for a copy of %s: %s; leave it out, or train fewer ranks on this "
                       "machine",
                       hd__bytes_text(bytes, text), strerror(errno));
    f->bytes = bytes;
#ifdef MADV_POPULATE_WRITE
    madvise(f->at, bytes, MADV_POPULATE_WRITE); /* in one call, not a fault a page */
#endif
    return HD_OK;
}

void hd__copy_unmap(struct hd__copy_file *f)
{
    if (f->at)
        munmap(f->at, f->bytes);
    f->at = NULL;
    f->bytes = 0;
}

int32_t hd__copy_write(struct hd__copy_file *f, const struct hd__ckpt_save *save, struct hd__copy_header *h,
                       struct hd_error *err)
{
    char *state = json_dumps(save->state, JSON_COMPACT);
    memcpy(h->magic, magic, sizeof magic);
    memset(h->run, 0, sizeof h->run);
    snprintf(h->run, sizeof h->run, "%s", save->run ? save->run : "");
    h->step = (int64_t)save->step;
    h->n_runs = save->n_runs;
    h->state_bytes = state ? strlen(state) : 0;
    h->data_bytes = 0;
    for (uint32_t i = 0; i < save->n_runs; i++)
        h->data_bytes += hd__ckpt_run_bytes(save, i);
    hd__copy_hash_tensors(save->tensors, save->n_tensors, &h->tensors, &h->all_tensors);
    hd__copy_clear(f->fd);
    int32_t rc = state ? reserve(f, hd__copy_bytes(h), err)
                       : hd_fail(err, HD_E_INTERNAL,
                                 "checkpoint.peers: the state cannot be written as JSON (NaN, or not UTF-8)");
    if (!rc)
        fill(f->at, save, state, h);
    free(state);
    return rc;
}

void hd__copy_seal(struct hd__copy_file *f, struct hd__copy_header *h)
{
    h->body_hash = hd__hash(f->at + HD__COPY_HEADER, hd__copy_bytes(h) - HD__COPY_HEADER, 0);
    h->hash = hash_header(h);
    memcpy(f->at, h, sizeof *h);
}

int hd__copy_read_header(int fd, struct hd__copy_header *h)
{
    struct stat file;
    return !fstat(fd, &file) && pread(fd, h, sizeof *h, 0) == (ssize_t)sizeof *h &&
           !memcmp(h->magic, magic, sizeof magic) && h->hash == hash_header(h) &&
           hd__copy_bytes(h) <= (uint64_t)file.st_size;
}

int hd__copy_is_whole(int fd, const struct hd__copy_header *h)
{
    char *at = map(fd, hd__copy_bytes(h), PROT_READ);
    int whole = at && hd__hash(at + HD__COPY_HEADER, hd__copy_bytes(h) - HD__COPY_HEADER, 0) == h->body_hash;
    if (at)
        munmap(at, hd__copy_bytes(h));
    return whole;
}

/* ---- a set */

struct source_run {
    struct hd__copy_run run;
    int32_t source, reserved;
};

static int by_first(const void *a, const void *b)
{
    const struct hd__copy_run *x = &((const struct source_run *)a)->run, *y = &((const struct source_run *)b)->run;
    if (x->tensor != y->tensor)
        return x->tensor < y->tensor ? -1 : 1;
    return (x->first > y->first) - (x->first < y->first);
}

/* The last that begins at or before this element; n: none does. */
static uint64_t find_run(const struct source_run *all, uint64_t n, uint32_t tensor, int64_t element)
{
    const struct source_run key = {.run = {.tensor = tensor, .first = element}};
    uint64_t low = 0, high = n;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        if (by_first(&all[middle], &key) <= 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low ? low - 1 : n;
}

static int32_t load_run(const struct hd__copy_set *set, const struct source_run *all, uint64_t n,
                        const struct hd__ckpt_tensor *tensor, const struct hd__ckpt_run *wanted, struct hd_error *err)
{
    int64_t at = wanted->first, end = wanted->first + wanted->count, size = (int64_t)hd_dtype_size(tensor->dtype);
    for (uint64_t i = find_run(all, n, wanted->tensor, at); at < end; i++) {
        const struct hd__copy_run *run = i < n ? &all[i].run : NULL;
        if (!run || run->tensor != wanted->tensor || run->first > at || run->first + run->count <= at)
            return hd_fail(err, HD_E_CORRUPT, "the copies in memory lack element %lld of %s/%s", (long long)at,
                           tensor->group, tensor->name);
        int64_t count = HD__MIN(run->first + run->count, end) - at;
        int32_t rc = set->read(set->user, all[i].source, run->offset + (uint64_t)((at - run->first) * size),
                               (char *)wanted->data + (at - wanted->first) * size, (uint64_t)(count * size), err);
        if (rc)
            return rc;
        at += count;
    }
    return HD_OK;
}

int32_t hd__copy_load(const struct hd__copy_set *set, const struct hd__ckpt_tensor *tensors, uint32_t n_tensors,
                      const struct hd__ckpt_run *runs, uint32_t n_runs, struct hd_error *err)
{
    uint64_t n = 0;
    int32_t rc = HD_OK;
    for (int32_t s = 0; s < set->n; s++)
        n += set->of[s].n_runs;
    struct source_run *all = hd__alloc((n + 1) * sizeof *all);
    n = 0;
    for (int32_t s = 0; s < set->n; s++)
        for (uint64_t i = 0; set->runs[s] && i < set->of[s].n_runs; i++)
            if (set->runs[s][i].count > 0)
                all[n++] = (struct source_run){.run = set->runs[s][i], .source = s};
    qsort(all, n, sizeof *all, by_first);
    for (uint32_t i = 0; i < n_runs && !rc; i++)
        rc = runs[i].tensor < n_tensors
                 ? load_run(set, all, n, &tensors[runs[i].tensor], &runs[i], err)
                 : hd_fail(err, HD_E_INTERNAL, "checkpoint: a run of tensor %u of %u", runs[i].tensor, n_tensors);
    free(all);
    return rc;
}
