/* Initial parameters: from the seed, or from safetensors. */
#include "service/checkpoint/param_init.h"

#include <math.h>
#include <stdlib.h>

#include "core/base/float_convert.h"
#include "core/base/thread_pool.h"
#include "service/checkpoint/safetensors.h"
#include "service/checkpoint/shard_map.h"

enum { CHUNK = 4096, PART = 32768 }; /* elements: on a stack; worth a thread */

/* SplitMix64's finaliser (Steele, Lea, Flood 2014) over a counter: a value a number, no state. */
static uint64_t mix(uint64_t x)
{
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

void hd__normal(uint64_t key, int64_t first, int64_t count, double std, float *out)
{
    for (int64_t pair = first >> 1; 2 * pair < first + count; pair++) { /* elements 2 pair and 2 pair + 1 */
        uint64_t bits = mix(key ^ mix((uint64_t)pair));
        float u = ((float)(bits >> 40) + 0.5f) * 0x1p-24f, angle = (float)(bits & 0xffffff) * (6.2831853f * 0x1p-24f);
        float radius = (float)std * sqrtf(-2.0f * logf(u)), sine, cosine;
        sincosf(angle, &sine, &cosine);
        if (2 * pair >= first)
            out[2 * pair - first] = radius * cosine;
        if (2 * pair + 1 < first + count)
            out[2 * pair + 1 - first] = radius * sine;
    }
}

static void store(void *data, uint32_t dtype, int64_t at, const float *values, int64_t n)
{
    char *to = (char *)data + at * (int64_t)hd_dtype_size(dtype);
    hd__from_f32(dtype, values, to, (uint64_t)n);
}

/* ---- from the seed */

struct fill {
    struct hd_program *p;
    void *data;
    uint32_t dtype;
    uint64_t seed;
    struct hd__st *files;
    struct hd_error *err;
};

struct draw {
    const struct fill *f;
    const struct hd__piece *piece;
};

/* Values depend on the element alone, so it does not matter which thread draws them. */
static int32_t draw_part(void *user, uint64_t part, char *block, struct hd_error *err)
{
    const struct draw *w = user;
    const struct hd_param_desc *d = &w->f->p->params.at[w->piece->param].desc;
    int64_t at = (int64_t)part * PART, n = HD__MIN(PART, w->piece->count - at);
    float *values = (float *)(void *)block;
    (void)err;
    if (d->init == HD_INIT_NORMAL)
        hd__normal(hd__hash(d->name, strlen(d->name), w->f->seed), w->piece->first + at, n, d->std, values);
    else
        for (int64_t i = 0; i < n; i++)
            values[i] = d->init == HD_INIT_ONES ? 1.0f : 0.0f;
    store(w->f->data, w->f->dtype, w->piece->offset + at, values, n);
    return HD_OK;
}

static int32_t fill_seed(void *user, const struct hd__piece *piece)
{
    struct fill *f = user;
    struct draw draw = {f, piece};
    return hd__workers((uint32_t)hd__cores(), (uint64_t)(piece->count + PART - 1) / PART, PART * sizeof(float), draw_part, &draw,
                       f->err);
}

/* ---- from files */

int64_t hd__file_tensors(const struct hd_program *p, uint32_t param)
{
    const struct hd__param *a = &p->params.at[param];
    return a->desc.file_axes && a->desc.file_axes[0] == '*' ? p->dims.at[hd__tc(p, a->tensor)->dim[0]].extent : 1;
}

char *hd__file_tensor_name(const struct hd_program *p, uint32_t param, int64_t index)
{
    const struct hd_param_desc *d = &p->params.at[param].desc;
    const char *name = d->file_name ? d->file_name : d->name;
    const char *star = d->file_axes && d->file_axes[0] == '*' ? strchr(name, '*') : NULL;
    return star ? hd__format("%.*s%lld%s", (int)(star - name), name, (long long)index, star + 1) : hd__strdup(name);
}

/* A parameter, or one of the several tensors that it is made of, in its file: the file's array as rows of `width` elements, of
 * which the parameter has `own` from `skip`. Elements [first, end) of the parameter lie there. */
struct in_file {
    const struct hd__st_tensor *t;
    int64_t own, width, skip, first, end;
};

static int32_t wrong_shape(struct fill *f, const struct hd_param_desc *d, const struct hd__st_tensor *t, int64_t count)
{
    return hd_fail(f->err, HD_E_INVALID, "%s: tensor %s has %llu elements, but parameter %s needs %lld of them: another model?",
                   hd__st_file_name(f->files, t->file), t->name, (unsigned long long)t->count, d->name,
                   (long long)(count * (d->parts > 1 ? d->parts : 1)));
}

static const struct hd__st_tensor *find_tensor(struct fill *f, uint32_t param, int64_t index)
{
    char *name = hd__file_tensor_name(f->p, param, index);
    const struct hd__st_tensor *t = hd__st_find(f->files, name);
    if (!t)
        hd_fail(f->err, HD_E_INVALID, "the weights have no tensor %s, which parameter %s needs", name,
                f->p->params.at[param].desc.name);
    free(name);
    return t;
}

/* Where element `at` of a parameter lies. */
static int32_t find_in_file(struct fill *f, uint32_t param, int64_t at, struct in_file *where)
{
    const struct hd_param_desc *d = &f->p->params.at[param].desc;
    const struct hd__tensor *t = hd__tc(f->p, f->p->params.at[param].tensor);
    int64_t tensors = hd__file_tensors(f->p, param), count = hd__global_numel(f->p, t) / tensors, inner = 1;
    uint32_t parts = d->parts > 1 ? d->parts : 1;
    *where = (struct in_file){.first = at / count * count};
    where->end = where->first + count;
    where->t = find_tensor(f, param, at / count);
    if (!where->t)
        return f->err->code;
    if (where->t->count != (uint64_t)count * parts)
        return wrong_shape(f, d, where->t, count);
    for (int32_t i = 0; i < t->ndim; i++) /* elements of one row along the axis that is cut into parts */
        if (!d->file_axes || (d->file_axes[i] != '*' && (uint32_t)(d->file_axes[i] - '0') >= d->part_axis))
            inner *= f->p->dims.at[t->dim[i]].extent;
    where->own = parts > 1 ? inner : count;
    where->width = where->own * parts;
    where->skip = where->own * d->part;
    return HD_OK;
}

static int32_t fill_file(void *user, const struct hd__piece *piece)
{
    struct fill *f = user;
    struct in_file where = {0};
    float values[CHUNK];
    int32_t rc = HD_OK;
    for (int64_t done = 0, n; done < piece->count && !rc; done += n) {
        int64_t at = piece->first + done, row, column;
        if (at >= where.end && (rc = find_in_file(f, piece->param, at, &where)))
            return rc;
        row = (at - where.first) / where.own;
        column = (at - where.first) % where.own;
        n = HD__MIN(HD__MIN(CHUNK, piece->count - done), where.own - column);
        rc = hd__st_read_f32(f->files, where.t, (uint64_t)(row * where.width + where.skip + column), (uint64_t)n, values, f->err);
        if (!rc)
            store(f->data, f->dtype, piece->offset + done, values, n);
    }
    return rc;
}

/* ---- all tensors that hold parameters */

static int32_t fill_flat(struct hd_program *p, const struct hd__flat *flat, hd_tensor holder, const int32_t *coord, void *arena,
                         struct fill *f, int32_t (*visit)(void *, const struct hd__piece *))
{
    f->dtype = hd__tc(p, holder)->dtype;
    f->data = hd__address(p, holder, coord, arena);
    return hd__pieces(p, flat, holder, coord, visit, f);
}

static int32_t fill_all(struct hd_program *p, const int32_t *coord, void *arena, struct fill *f,
                        int32_t (*visit)(void *, const struct hd__piece *))
{
    int32_t rc = HD_OK;
    for (uint32_t n = 0; n < p->kept.count && !rc; n++)
        if (hd__is_average(p, &p->kept.at[n]))
            rc = fill_flat(p, &p->flats.at[p->kept.at[n].flat], p->kept.at[n].tensor, coord, arena, f, visit);
    for (uint32_t k = 0; k < p->flats.count && !rc; k++) {
        const struct hd__flat *flat = &p->flats.at[k];
        const hd_tensor holders[] = {flat->master, flat->whole, flat->low, flat->common};
        for (uint32_t h = 0; h < HD__COUNT(holders) && !rc; h++) {
            if (holders[h] && (h == 1 || !hd__tc(p, holders[h])->window)) /* windows lie inside the whole */
                rc = fill_flat(p, flat, holders[h], coord, arena, f, visit);
        }
    }
    return rc;
}

int32_t hd__init_parameters(struct hd_program *p, const int32_t coord[HD_AXIS_COUNT], void *arena, uint64_t seed,
                            struct hd_error *err)
{
    struct fill f = {.p = p, .seed = seed, .err = err};
    return fill_all(p, coord, arena, &f, fill_seed);
}

int32_t hd__init_from_files(struct hd_program *p, const int32_t coord[HD_AXIS_COUNT], void *arena, const char *folder,
                            struct hd_error *err)
{
    struct fill f = {.p = p, .err = err};
    int32_t rc = hd__st_open(folder, &f.files, err);
    if (!rc)
        rc = fill_all(p, coord, arena, &f, fill_file);
    hd__st_close(f.files);
    return rc;
}

void hd__init_zeros(struct hd_program *p, const int32_t coord[HD_AXIS_COUNT], void *arena)
{
    for (uint32_t n = 0; n < p->zeros.count; n++)
        memset(hd__address(p, p->zeros.at[n], coord, arena), 0, (size_t)hd__tensor_bytes(p, hd__tc(p, p->zeros.at[n])));
}
