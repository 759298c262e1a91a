#include "core/program/memory_kinds.h"

#include <stdlib.h>

#include "core/program/access.h"

static uint8_t flat_kind(uint32_t role, int has_narrow_copy)
{
    switch (role) {
    case HD__FLAT_MASTER:
        return has_narrow_copy ? HD__MEMORY_OPTIMIZER : HD__MEMORY_PARAMETERS;
    case HD__FLAT_COMPUTE_COPY:
    case HD__FLAT_FULL:
        return HD__MEMORY_PARAMETERS;
    case HD__FLAT_GRAD:
    case HD__FLAT_SHARD:
        return HD__MEMORY_GRADIENTS;
    default:
        return HD__MEMORY_OPTIMIZER;
    }
}

static int is_gradient_of_parameter(const struct hd_program *p, const struct hd__tensor *t)
{
    return t->role == HD__ROLE_GRAD && t->grad_of && hd__tensor_const(p, t->grad_of)->role == HD__ROLE_PARAM;
}

/* By buffer. What holds weights or gradients only for a while is of their kind where a flat says so, else a buffer. */
static uint8_t *classify_buffers(const struct hd_program *p)
{
    uint8_t *kind = hd__alloc(p->buffers.count);
    for (uint32_t b = 0; b < p->buffers.count; b++)
        kind[b] = p->buffers.at[b].life == HD__LIFE_PERSISTENT ? HD__MEMORY_BUFFERS : HD__MEMORY_ACTIVATIONS;
    for (uint32_t t = 1; t < p->tensors.count; t++) {
        const struct hd__tensor *x = hd__tensor_const(p, t);
        if (x->buffer && x->role == HD__ROLE_PARAM)
            kind[x->buffer] =
                p->buffers.at[x->buffer].life == HD__LIFE_PERSISTENT ? HD__MEMORY_PARAMETERS : HD__MEMORY_BUFFERS;
        else if (x->buffer && is_gradient_of_parameter(p, x))
            kind[x->buffer] = HD__MEMORY_GRADIENTS;
    }
    for (uint32_t f = 0; f < p->flats.count; f++)
        for (uint32_t role = 0; role < HD__FLAT_ROLES; role++) {
            hd_tensor t = p->flats.at[f].tensor[role];
            const struct hd__tensor *x = t ? hd__tensor_const(p, t) : NULL;
            const hd_tensor *all = p->flats.at[f].tensor;
            hd_tensor full = all[HD__FLAT_COMPUTE_COPY] ? all[HD__FLAT_COMPUTE_COPY] : all[HD__FLAT_FULL];
            if (!x || !x->buffer)
                continue;
            kind[x->buffer] = flat_kind(role, full && hd__tensor_const(p, full)->dtype != x->dtype);
            if (p->buffers.at[x->buffer].life != HD__LIFE_PERSISTENT && kind[x->buffer] == HD__MEMORY_PARAMETERS)
                kind[x->buffer] = HD__MEMORY_BUFFERS; /* gathered */
        }
    return kind;
}

/* A temporary's life, in positions of all sections of a step one behind another. */
struct life {
    uint32_t first, last; /* from 1; first 0: not of a step */
    uint32_t next;        /* another buffer that begins where this one does */
};

static struct life *find_lives(const struct hd_program *p, uint32_t *positions)
{
    struct life *lives = hd__alloc(p->buffers.count * sizeof *lives);
    uint32_t *position = hd__instr_positions(p), base = 1;
    uint32_t t[HD__MAX_ACCESSES];
    for (uint32_t s = 0; s < p->sections.count; s++) {
        const hd__code *code = &p->sections.at[s].code;
        for (uint32_t n = 0; n < code->count && p->sections.at[s].repeat > 0; n++, base++)
            for (uint32_t k = hd__live_buffers(p, code, position, n, t); k-- > 0;) {
                struct life *life = &lives[t[k]];
                life->first = life->first ? life->first : base;
                life->last = base;
            }
    }
    for (uint32_t b = 1; b < p->buffers.count; b++)
        if (p->buffers.at[b].life == HD__LIFE_STEP)
            lives[b].last = base;
        else if (p->buffers.at[b].life == HD__LIFE_PERSISTENT || p->buffers.at[b].memory != HD__MEM_MAIN)
            lives[b].first = 0;
    free(position);
    *positions = base;
    return lives;
}

/* Bytes of temporaries by kind where a step needs the most; the most that activations need at any time. */
static int64_t measure_peak(const struct hd_program *p, const uint8_t *kind, int64_t peak[HD__MEMORY_KINDS])
{
    uint32_t positions;
    struct life *lives = find_lives(p, &positions);
    int64_t live[HD__MEMORY_KINDS] = {0}, sum = 0, most = 0, activations = 0;
    uint32_t *begins = hd__alloc((positions + 1) * sizeof *begins), *ends = hd__alloc((positions + 1) * sizeof *ends);
    uint32_t *next_end = hd__alloc(p->buffers.count * sizeof *next_end);
    for (uint32_t b = 1; b < p->buffers.count; b++) {
        if (!lives[b].first)
            continue;
        lives[b].next = begins[lives[b].first];
        begins[lives[b].first] = b;
        next_end[b] = ends[lives[b].last];
        ends[lives[b].last] = b;
    }
    for (uint32_t n = 1; n <= positions; n++) {
        for (uint32_t b = begins[n]; b; b = lives[b].next) {
            live[kind[b]] += p->buffers.at[b].bytes;
            sum += p->buffers.at[b].bytes;
        }
        activations = HD__MAX(activations, live[HD__MEMORY_ACTIVATIONS]);
        if (sum > most) {
            most = sum;
            memcpy(peak, live, sizeof live);
        }
        for (uint32_t b = ends[n]; b; b = next_end[b]) {
            live[kind[b]] -= p->buffers.at[b].bytes;
            sum -= p->buffers.at[b].bytes;
        }
    }
    free(next_end);
    free(ends);
    free(begins);
    free(lives);
    return activations;
}

/* Persistent memory, and the temporaries at their peak; what the plan needs beyond both, to align and to fit, is
 * added to the buffers. */
struct hd__memory_use hd__memory_use(const struct hd_program *p)
{
    uint8_t *kind = classify_buffers(p);
    int64_t peak[HD__MEMORY_KINDS] = {0};
    struct hd__memory_use use = {0};
    for (uint32_t b = 1; b < p->buffers.count; b++)
        if (p->buffers.at[b].life == HD__LIFE_PERSISTENT && p->buffers.at[b].memory == HD__MEM_MAIN &&
            p->buffers.at[b].offset >= 0)
            use.kind[kind[b]] += p->buffers.at[b].bytes;
    use.activations = measure_peak(p, kind, peak);
    for (uint32_t k = 0; k < HD__MEMORY_KINDS; k++)
        use.live += use.kind[k] += peak[k];
    use.kind[HD__MEMORY_BUFFERS] += p->arena_bytes - use.live;
    free(kind);
    return use;
}

const char *hd__memory_kind_name(uint32_t kind)
{
    static const char *const names[] = {
#define KIND_NAME(constant, name) name,
        HD__MEMORY_KIND_NAMES(KIND_NAME)
#undef KIND_NAME
    };
    return names[kind];
}
