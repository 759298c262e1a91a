/* Initial parameters: from the seed, or from safetensors. */
#include "service/checkpoint/param_init.h"

#include <math.h>
#include <stdlib.h>

#include "core/base/dtype.h"
#include "core/program/param_file.h"
#include "runtime/cpu/parallel_for.h"
#include "service/checkpoint/safetensors.h"
#include "service/checkpoint/shard_map.h"

enum { CHUNK = 4096, PART = 32768, READ = 1 << 18 }; /* elements: of a stack buffer; of a thread's task */

/* Normal deviates [first, first + count) of the stream `key`: Box-Muller over a counter-based hash. */
static void fill_normal(uint64_t key, int64_t first, int64_t count, double std, float *out)
{
    for (int64_t pair = first >> 1; 2 * pair < first + count; pair++) { /* elements 2 pair and 2 pair + 1 */
        uint64_t bits = hd__mix64(key ^ hd__mix64((uint64_t)pair));
        float u = ((float)(bits >> 40) + 0.5f) * 0x1p-24f, angle = (float)(bits & 0xffffff) * (6.2831853f * 0x1p-24f);
        float radius = (float)std * sqrtf(-2.0f * logf(u)), sine, cosine;
        sincosf(angle, &sine, &cosine);
        if (2 * pair >= first)
            out[2 * pair - first] = radius * cosine;
        if (2 * pair + 1 < first + count)
            out[2 * pair + 1 - first] = radius * sine;
    }
}

static void store_values(void *data, uint32_t dtype, int64_t at, const float *values, int64_t n)
{
    char *to = (char *)data + at * (int64_t)hd_dtype_size(dtype);
    hd__from_f32(dtype, values, to, (uint64_t)n);
}

/* ---- from the seed */

struct init_context {
    const struct hd_program *p;
    void *data;
    uint32_t dtype;
    uint64_t seed;
    struct hd__ckpt_st *files;
    struct hd_error *err;
};

struct run_task {
    const struct init_context *f;
    const struct hd__ckpt_shard_run *run;
};

/* Values depend on the element alone, so any thread may draw them. */
static int32_t draw_chunk(void *user, uint64_t part, char *block, struct hd_error *err)
{
    const struct run_task *w = user;
    const struct hd_param_desc *d = &w->f->p->params.at[w->run->param].desc;
    int64_t at = (int64_t)part * PART, n = HD__MIN(PART, w->run->count - at);
    float *values = (float *)(void *)block;
    (void)err;
    if (d->init == HD_INIT_NORMAL)
        fill_normal(hd__hash(d->name, strlen(d->name), w->f->seed), w->run->first + at, n, d->std, values);
    else
        for (int64_t i = 0; i < n; i++)
            values[i] = d->init == HD_INIT_ONES ? 1.0f : 0.0f;
    store_values(w->f->data, w->f->dtype, w->run->offset + at, values, n);
    return HD_OK;
}

static int32_t init_run_from_seed(struct init_context *f, const struct hd__ckpt_shard_run *run)
{
    struct run_task task = {f, run};
    return hd__parallel_for((uint32_t)hd__cpu_count(), (uint64_t)(run->count + PART - 1) / PART, PART * sizeof(float),
                            draw_chunk, &task, f->err);
}

/* ---- from files */

int64_t hd__ckpt_file_tensor_count(const struct hd_program *p, uint32_t param)
{
    const struct hd__param *a = &p->params.at[param];
    return a->desc.file_axes && a->desc.file_axes[0] == '*' ? p->dims.at[hd__tensor_const(p, a->tensor)->dim[0]].extent
                                                            : 1;
}

char *hd__ckpt_file_tensor_name(const struct hd_program *p, uint32_t param, int64_t index)
{
    const struct hd_param_desc *d = &p->params.at[param].desc;
    const char *name = d->file_name ? d->file_name : d->name;
    const char *star = d->file_axes && d->file_axes[0] == '*' ? strchr(name, '*') : NULL;
    return star ? hd__format("%.*s%lld%s", (int)(star - name), name, (long long)index, star + 1) : hd__strdup(name);
}

uint32_t hd__ckpt_file_tensor_shape(const struct hd_program *p, uint32_t param, int64_t shape[HD_MAX_DIMS])
{
    const struct hd__param *a = &p->params.at[param];
    const struct hd__tensor *t = hd__tensor_const(p, a->tensor);
    struct hd__file_part part = hd__param_file_part(p, a);
    uint32_t ndim = 0;
    for (int32_t i = 0; i < t->ndim; i++) {
        int32_t axis = hd__param_file_axis(&a->desc, i);
        while ((int32_t)ndim <= axis)
            shape[ndim++] = 1;
        if (axis >= 0)
            shape[axis] *= p->dims.at[t->dim[i]].used;
    }
    if (part.axis >= 0)
        shape[part.axis] = shape[part.axis] / part.span * part.parts;
    return ndim;
}

/* Equal but for dims of 1, which move no element. */
static int same_shape(const int64_t *a, uint32_t n_a, const int64_t *b, uint32_t n_b)
{
    uint32_t i = 0, k = 0;
    for (;; i++, k++) {
        while (i < n_a && a[i] == 1)
            i++;
        while (k < n_b && b[k] == 1)
            k++;
        if (i == n_a || k == n_b)
            return i == n_a && k == n_b;
        if (a[i] != b[k])
            return 0;
    }
}

static const char *extents_text(const int64_t *shape, uint32_t ndim, char text[HD_MAX_DIMS * 24])
{
    int at = 0;
    for (uint32_t i = 0; i < ndim; i++)
        at += sprintf(text + at, "%s%lld", i ? ", " : "", (long long)shape[i]);
    text[at] = 0;
    return text;
}

static int32_t check_tensor(struct init_context *f, uint32_t param, const struct hd__ckpt_st_tensor *t)
{
    int64_t want[HD_MAX_DIMS] = {0};
    uint32_t ndim = hd__ckpt_file_tensor_shape(f->p, param, want);
    char has[HD_MAX_DIMS * 24], wanted[HD_MAX_DIMS * 24];
    if (!hd__is_float(t->dtype)) /* which it refuses */
        return hd__ckpt_st_read_f32(f->files, t, 0, 0, NULL, f->err);
    if (same_shape(t->shape, t->ndim, want, ndim))
        return HD_OK;
    if (!t->count)
        return hd_fail(
            f->err, HD_E_INVALID,
            "%s: tensor %s is empty ([%s]): was it saved under ZeRO-3 without gathering the parameters? Save "
            "again with stage3_gather_16bit_weights_on_model_save, or run DeepSpeed's zero_to_fp32.py",
            hd__ckpt_st_file_name(f->files, t->file), t->name, extents_text(t->shape, t->ndim, has));
    return hd_fail(f->err, HD_E_INVALID, "%s: tensor %s is [%s], but parameter %s wants [%s]: %s",
                   hd__ckpt_st_file_name(f->files, t->file), t->name, extents_text(t->shape, t->ndim, has),
                   f->p->params.at[param].desc.name, extents_text(want, ndim, wanted),
                   t->ndim == 2 && ndim == 2 && t->shape[0] == want[1] && t->shape[1] == want[0]
                       ? "transposed? Hugging Face has GPT-2's projections as [in, out] (Conv1D; nanoGPT: [out, in]), "
                         "all else as [out, in]: transpose it, and the square ones that were saved like it"
                       : "another model?");
}

/* The tensor that differs from `name` by words before one of its dots: prefixes that a save adds or leaves out. */
static const char *find_by_end(const struct hd__ckpt_st *files, const char *name)
{
    for (uint32_t i = 0; i < hd__ckpt_st_count(files); i++) {
        const char *has = hd__ckpt_st_tensor_at(files, i)->name;
        size_t n = strlen(has), wanted = strlen(name);
        const char *longer = n > wanted ? has : name;
        if (n != wanted && longer[strlen(longer) - HD__MIN(n, wanted) - 1] == '.' &&
            hd__ends_with(longer, n > wanted ? name : has))
            return has;
    }
    return NULL;
}

/* A parameter, or one of the several tensors that it consists of, in its file: hd__file_part. It holds
 * elements [first, end) of the parameter. */
struct file_slice {
    const struct hd__ckpt_st_tensor *t;
    int64_t own, width, skip, first, end;
};

/* Finds the file tensor of element `at` of a parameter. */
static int32_t locate_in_file(struct init_context *f, uint32_t param, int64_t at, struct file_slice *where)
{
    const struct hd_param_desc *d = &f->p->params.at[param].desc;
    const struct hd__tensor *t = hd__tensor_const(f->p, f->p->params.at[param].tensor);
    int64_t tensors = hd__ckpt_file_tensor_count(f->p, param), count = hd__global_numel(f->p, t) / tensors;
    struct hd__file_part part = hd__param_file_part(f->p, &f->p->params.at[param]);
    *where = (struct file_slice){.first = at / count * count};
    where->end = where->first + count;
    char *name = hd__ckpt_file_tensor_name(f->p, param, at / count);
    where->t = hd__ckpt_st_find(f->files, name);
    const char *like = where->t ? NULL : find_by_end(f->files, name);
    if (!where->t)
        hd_fail(f->err, HD_E_INVALID, "the weights have no tensor %s, which parameter %s needs%s%s%s", name, d->name,
                like ? "; they have " : "", like ? like : "",
                like                                    ? ": rename it, and all that differ like it"
                : hd__ends_with(name, "lm_head.weight") ? ": was the base model saved, without its head?"
                                                        : "");
    free(name);
    if (!where->t)
        return f->err->code;
    if (check_tensor(f, param, where->t))
        return f->err->code;
    where->own = part.own;
    where->width = part.width;
    where->skip = part.skip;
    return HD_OK;
}

/* The first value that is not finite; NULL: all are. */
static const float *find_broken(const float *values, int64_t n)
{
    int finite = 1;
    for (int64_t i = 0; i < n; i++) /* without an exit: in vectors */
        finite &= isfinite(values[i]) != 0;
    while (!finite && isfinite(*values))
        values++;
    return finite ? NULL : values;
}

static int32_t read_chunk(void *user, uint64_t part, char *block, struct hd_error *err)
{
    const struct run_task *w = user;
    const struct hd__ckpt_shard_run *run = w->run;
    struct init_context f = *w->f;
    struct file_slice where = {0};
    float *values = (float *)(void *)block;
    int64_t done = (int64_t)part * READ, end = HD__MIN(done + READ, run->count), n;
    int32_t rc = HD_OK;
    f.err = err;
    for (; done < end && !rc; done += n) {
        int64_t at = run->first + done, row, column;
        if (at >= where.end && (rc = locate_in_file(&f, run->param, at, &where)))
            return rc;
        row = (at - where.first) / where.own;
        column = (at - where.first) % where.own;
        n = HD__MIN(end - done, where.own - column);
        rc = hd__ckpt_st_read_f32(f.files, where.t, (uint64_t)(row * where.width + where.skip + column), (uint64_t)n,
                                  values, err);
        const float *broken = rc ? NULL : find_broken(values, n);
        if (broken)
            rc = hd_fail(err, HD_E_CORRUPT, "%s: tensor %s has %s among its values: these weights are broken",
                         hd__ckpt_st_file_name(f.files, where.t->file), where.t->name,
                         isnan(*broken) ? "NaN" : "infinity");
        if (!rc)
            store_values(f.data, f.dtype, run->offset + done, values, n);
    }
    return rc;
}

static int32_t init_run_from_file(struct init_context *f, const struct hd__ckpt_shard_run *run)
{
    struct run_task task = {f, run};
    return hd__parallel_for((uint32_t)hd__cpu_count(), (uint64_t)(run->count + READ - 1) / READ, READ * sizeof(float),
                            read_chunk, &task, f->err);
}

/* ---- all tensors that hold parameters */

static int32_t init_all_tensors(const int32_t *coord, void *arena, struct init_context *f,
                                int32_t (*init_run)(struct init_context *, const struct hd__ckpt_shard_run *))
{
    const struct hd_program *p = f->p;
    int32_t rc = HD_OK;
    for (struct hd__flat_tensor t = {0}; !rc && hd__flat_next(p, HD__FLAT_IS_PARAM | HD__FLAT_IS_PERSISTENT, &t);) {
        struct hd__ckpt_shard_walk walk = {.p = p, .flat = &p->flats.at[t.flat], .coord = coord, .tensor = t.tensor};
        struct hd__ckpt_shard_run run;
        if (hd__tensor_const(p, t.tensor)->shard_view) /* part of the full weights */
            continue;
        f->dtype = hd__tensor_const(p, t.tensor)->dtype;
        f->data = hd__tensor_address(p, t.tensor, coord, arena);
        if (hd__is_padded(p))
            memset(f->data, 0, (size_t)hd__tensor_bytes(p, hd__tensor_const(p, t.tensor)));
        while (!rc && hd__ckpt_shard_next(&walk, &run))
            rc = init_run(f, &run);
    }
    return rc;
}

int32_t hd__ckpt_init_params(struct hd_program *p, const int32_t coord[HD_AXIS_COUNT], void *arena, uint64_t seed,
                             struct hd_error *err)
{
    struct init_context f = {.p = p, .seed = seed, .err = err};
    return init_all_tensors(coord, arena, &f, init_run_from_seed);
}

int32_t hd__ckpt_init_from_safetensors(struct hd_program *p, const int32_t coord[HD_AXIS_COUNT], void *arena,
                                       const char *folder, struct hd_error *err)
{
    struct init_context f = {.p = p, .err = err};
    int32_t rc = hd__ckpt_st_open(folder, &f.files, err);
    if (!rc)
        rc = init_all_tensors(coord, arena, &f, init_run_from_file);
    hd__ckpt_st_close(f.files);
    return rc;
}

/* Tensors that files have and models ignore: buffers that are computed, and GPT-2's causal mask. */
static int is_redundant(const char *name)
{
    static const char *const ends[] = {".rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias"};
    for (size_t i = 0; i < HD__COUNT(ends); i++)
        if (hd__ends_with(name, ends[i]))
            return 1;
    return 0;
}

static int32_t compare_values(const struct hd__ckpt_st *files, const struct hd__ckpt_st_tensor *a,
                              const struct hd__ckpt_st_tensor *b, int *equal, struct hd_error *err)
{
    float x[CHUNK], y[CHUNK];
    int32_t rc = HD_OK;
    *equal = same_shape(a->shape, a->ndim, b->shape, b->ndim) && hd__is_float(a->dtype) && hd__is_float(b->dtype);
    for (uint64_t at = 0, n; at < a->count && *equal && !rc; at += n) {
        n = HD__MIN(CHUNK, a->count - at);
        rc = hd__ckpt_st_read_f32(files, a, at, n, x, err);
        if (!rc)
            rc = hd__ckpt_st_read_f32(files, b, at, n, y, err);
        *equal = !rc && !memcmp(x, y, n * sizeof *x);
    }
    return rc;
}

/* A head that the model has no parameter for is tied: it must be what the embedding is. */
static int32_t check_tied_head(const struct hd__ckpt_st *files, const struct hd__ckpt_st_tensor *head,
                               const uint8_t *used, struct hd_error *err)
{
    int equal = 0;
    for (uint32_t i = 0; i < hd__ckpt_st_count(files) && !equal; i++)
        if (used[i] && compare_values(files, head, hd__ckpt_st_tensor_at(files, i), &equal, err))
            return err->code;
    if (equal)
        return HD_OK;
    return hd_fail(err, HD_E_INVALID,
                   "%s: tensor %s is not the embedding, which is this model's head: say \"tie_word_embeddings\": false "
                   "in config.json to train both, as transformers 5 would, or leave the tensor out, as transformers 4 "
                   "would",
                   hd__ckpt_st_file_name(files, head->file), head->name);
}

static int32_t check_all_used(const struct hd__ckpt_st *files, const char *folder, const uint8_t *used,
                              struct hd_error *err)
{
    struct hd__text names = {0};
    uint32_t unused = 0;
    int32_t rc = HD_OK;
    for (uint32_t i = 0; i < hd__ckpt_st_count(files) && !rc; i++) {
        const struct hd__ckpt_st_tensor *t = hd__ckpt_st_tensor_at(files, i);
        if (used[i] || is_redundant(t->name))
            continue;
        if (hd__ends_with(t->name, "lm_head.weight"))
            rc = check_tied_head(files, t, used, err);
        else if (unused++ < 3)
            hd__text_add(&names, "%s%s", unused > 1 ? ", " : "", t->name);
    }
    if (!rc && unused)
        rc = hd_fail(err, HD_E_INVALID,
                     "%s: this model has no place for %u tensor%s of the weights (%.400s%s): another model, or a "
                     "config.json that is not theirs?",
                     folder, unused, unused > 1 ? "s" : "", names.at, unused > 3 ? ", ..." : "");
    hd__text_free(&names);
    return rc;
}

/* Names the matrices that are all 0: they, and mostly what is behind them, never get a gradient. */
static int32_t list_zeros(const struct hd__ckpt_st *files, const uint8_t *used, struct hd__text *zeros,
                          struct hd_error *err)
{
    float values[CHUNK];
    uint32_t found = 0;
    for (uint32_t i = 0; i < hd__ckpt_st_count(files); i++) {
        const struct hd__ckpt_st_tensor *t = hd__ckpt_st_tensor_at(files, i);
        uint64_t n = 0, k = 0;
        for (uint64_t at = 0; used[i] && t->ndim > 1 && k == n && at < t->count; at += n) {
            n = HD__MIN(CHUNK, t->count - at);
            if (hd__ckpt_st_read_f32(files, t, at, n, values, err))
                return err->code;
            for (k = 0; k < n && values[k] == 0; k++)
                ;
        }
        if (n && k == n && ++found < 3)
            hd__text_add(zeros, "%s%s", found > 1 ? ", " : "", t->name);
    }
    if (found > 2)
        hd__text_add(zeros, " and %u more", found - 2);
    return HD_OK;
}

int32_t hd__ckpt_check_safetensors(struct hd_program *const *stages, int32_t n_stages, const char *folder,
                                   struct hd__text *zeros, struct hd_error *err)
{
    struct init_context f = {.err = err};
    struct file_slice where;
    uint8_t *used = NULL;
    int32_t rc = hd__ckpt_st_open(folder, &f.files, err);
    if (!rc)
        used = hd__alloc(hd__ckpt_st_count(f.files));
    for (int32_t s = 0; s < n_stages && !rc; s++) {
        f.p = stages[s];
        for (uint32_t i = 0; i < f.p->params.count && !rc; i++) {
            int64_t end = hd__global_numel(f.p, hd__tensor_const(f.p, f.p->params.at[i].tensor));
            for (int64_t at = 0; at < end && !(rc = locate_in_file(&f, i, at, &where)); at = where.end)
                used[where.t - hd__ckpt_st_tensor_at(f.files, 0)] = 1;
        }
    }
    if (!rc)
        rc = check_all_used(f.files, folder, used, err);
    if (!rc && zeros)
        rc = list_zeros(f.files, used, zeros, err);
    free(used);
    hd__ckpt_st_close(f.files);
    return rc;
}

void hd__ckpt_init_zeros(struct hd_program *p, const int32_t coord[HD_AXIS_COUNT], void *arena)
{
    for (uint32_t n = 0; n < p->facts.count; n++)
        if (p->facts.at[n].what & (HD_FACT_ZERO_SUM | HD_FACT_FEEDBACK))
            memset(hd__tensor_address(p, p->facts.at[n].tensor, coord, arena), 0,
                   (size_t)hd__tensor_bytes(p, hd__tensor_const(p, p->facts.at[n].tensor)));
}
