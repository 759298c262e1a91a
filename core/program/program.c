/* The program as a container: dims, blocks, tensors, buffers, instructions, and what follows from a placement. */
#include "core/program/program.h"

#include <stdlib.h>

struct hd_program *hd__program_new(const struct hd__mesh *mesh, int32_t stage)
{
    struct hd_program *p = hd__alloc(sizeof *p);
    p->mesh = *mesh;
    p->stage = stage;
    p->accumulation = 1;
    p->precision = (struct hd__precision){HD_F32, HD_F32, HD_F32, HD_F32, HD_F32, HD_F32, {0, 0}};
    p->error = (struct hd_error)HD_ERROR_INIT;
    hd__push(&p->dims, (struct hd__dim){.name = ""});
    hd__push(&p->blocks, "");
    hd__push(&p->tensors, (struct hd__tensor){.name = "none"});
    hd__push(&p->buffers, (struct hd__buffer){.name = "none", .offset = -1});
    return p;
}

int32_t hd__program_input(const struct hd_program *p, hd_tensor fed)
{
    int32_t n = 0;
    while (n < HD__INPUTS - 1 && p->inputs[n] != hd__tensor_const(p, fed)->origin)
        n++;
    return n;
}

void hd__program_free(struct hd_program *p)
{
    if (!p)
        return;
    for (uint32_t i = 0; i < p->sections.count; i++)
        hd__free_array(&p->sections.at[i].code);
    hd__free_array(&p->sections);
    hd__free_array(&p->dims);
    hd__free_array(&p->auxiliary);
    hd__free_array(&p->blocks);
    hd__free_array(&p->tensors);
    hd__free_array(&p->buffers);
    hd__free_array(&p->params);
    hd__free_array(&p->flats);
    hd__free_array(&p->offloaded);
    hd__free_array(&p->strategy_states);
    hd__free_array(&p->facts);
    hd__free_array(&p->custom_ops);
    hd__free_array(&p->caches);
    hd__free_array(&p->logical);
    hd__free_array(&p->template);
    hd__arena_free(&p->arena);
    free(p);
}

static void record(struct hd_program *p, int32_t code, const char *format, va_list args)
{
    if (p->failed)
        return;
    p->failed = p->error.code = code;
    vsnprintf(p->error.message, sizeof p->error.message, format, args);
}

uint32_t hd__program_fail(struct hd_program *p, int32_t code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    record(p, code, format, args);
    va_end(args);
    return 0;
}

void hd__program_refuse(struct hd_program *p, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    record(p, HD_E_INVALID, format, args);
    va_end(args);
}

uint16_t hd__dim_new(struct hd_program *p, const char *name, int64_t extent)
{
    if (p->dims.count >= 0xffff)
        return (uint16_t)hd__program_fail(p, HD_E_UNSUPPORTED, "more than 65,534 dimensions");
    hd__push(&p->dims, ((struct hd__dim){hd__arena_strdup(&p->arena, name), "", extent, extent}));
    return (uint16_t)(p->dims.count - 1);
}

uint16_t hd__block_id(struct hd_program *p, const char *name)
{
    for (uint32_t i = p->blocks.count; i-- > 0;)
        if (!strcmp(p->blocks.at[i], name))
            return (uint16_t)i;
    if (p->blocks.count > UINT16_MAX) {
        hd__program_fail(p, HD_E_UNSUPPORTED, "the model has more than %d blocks: use fewer layers", UINT16_MAX + 1);
        return 0;
    }
    hd__push(&p->blocks, hd__arena_strdup(&p->arena, name));
    return (uint16_t)(p->blocks.count - 1);
}

hd_tensor hd__tensor_new(struct hd_program *p, const struct hd__tensor *tensor)
{
    struct hd__tensor t = *tensor; /* which may lie in the array that grows */
    if (!t.origin)
        t.origin = p->tensors.count;
    hd__push(&p->tensors, t);
    return p->tensors.count - 1;
}

uint32_t hd__buffer_new(struct hd_program *p, const char *name, int64_t bytes, uint8_t life)
{
    hd__push(&p->buffers,
             ((struct hd__buffer){.name = name, .bytes = bytes, .offset = -1, .life = life, .block = p->block}));
    return p->buffers.count - 1;
}

void hd__code_compact(hd__code *code)
{
    uint32_t kept = 0;
    for (uint32_t k = 0; k < code->count; k++)
        if (code->at[k].op)
            code->at[kept++] = code->at[k];
    code->count = kept;
}

struct hd__instr hd__instr_new(struct hd_program *p, uint16_t op)
{
    return (struct hd__instr){
        .id = ++p->next_id, .op = op, .block = p->block, .phase = p->phase, .micro = -1, .peer = -1};
}

struct hd_attrs *hd__attrs_new(struct hd_program *p, const struct hd_attrs *from)
{
    static const struct hd_attrs neutral = {.struct_size = sizeof neutral};
    struct hd_attrs *a = hd__arena_alloc(&p->arena, sizeof *a);
    if (!from)
        from = &neutral;
    memcpy(a, from, HD__MIN(from->struct_size, sizeof *a));
    a->struct_size = sizeof *a;
    a->n_table = a->table ? a->n_table : 0;
    a->n_ranges = a->ranges ? a->n_ranges : 0;
    if (a->n_table)
        a->table = hd__arena_copy(&p->arena, a->table, a->n_table * sizeof *a->table);
    if (a->n_ranges)
        a->ranges = hd__arena_copy(&p->arena, a->ranges, a->n_ranges * sizeof *a->ranges);
    return a;
}

int32_t hd__dim_index(const struct hd__tensor *t, uint16_t dim)
{
    for (int32_t i = 0; i < t->ndim; i++)
        if (t->dim[i] == dim)
            return i;
    return -1;
}

uint16_t hd__placement_on(const struct hd__tensor *t, int32_t axis)
{
    if (t->placement.partial & HD_AXIS_BIT(axis))
        return HD__PARTIAL;
    for (int32_t i = 0; i < t->ndim; i++)
        for (uint32_t s = t->placement.shard[i]; s; s >>= 4)
            if ((int32_t)(s & 15) - 1 == axis)
                return t->dim[i];
    return HD__REPLICATED;
}

static inline int64_t local(const struct hd_program *p, const struct hd__tensor *t, int32_t i)
{
    int64_t extent = p->dims.at[t->dim[i]].extent;
    return t->placement.shard[i] ? extent / hd__mesh_ways(&p->mesh, hd__shard_mask(t->placement.shard[i])) : extent;
}

int64_t hd__local_extent(const struct hd_program *p, const struct hd__tensor *t, int32_t i)
{
    return local(p, t, i);
}

int64_t hd__numel(const struct hd_program *p, const struct hd__tensor *t)
{
    int64_t n = 1;
    for (int32_t i = 0; i < t->ndim; i++)
        n *= local(p, t, i);
    return n;
}

int64_t hd__global_numel(const struct hd_program *p, const struct hd__tensor *t)
{
    int64_t n = 1;
    for (int32_t i = 0; i < t->ndim; i++)
        n *= p->dims.at[t->dim[i]].used;
    return n;
}

int hd__is_padded(const struct hd_program *p)
{
    int is = 0;
    for (uint32_t d = 0; d < p->dims.count; d++)
        is |= p->dims.at[d].used < p->dims.at[d].extent;
    return is;
}

int64_t hd__global_start(const struct hd_program *p, const struct hd__tensor *t, int32_t i,
                         const int32_t coord[HD_AXIS_COUNT])
{
    int64_t part = 0;
    for (uint32_t s = t->placement.shard[i]; s; s >>= 4) {
        int32_t axis = (int32_t)(s & 15) - 1;
        part = part * p->mesh.size[axis] + coord[axis];
    }
    return part * hd__local_extent(p, t, i);
}

int64_t hd__zigzag_parts(const struct hd_program *p)
{
    int64_t parts = hd__mesh_ways(&p->mesh, p->ring_axes);
    return parts > 1 ? parts : 0;
}

int64_t hd__sequence_position(const struct hd_program *p, int64_t index)
{
    struct hd_attrs a = {.zigzag_parts = hd__zigzag_parts(p), .zigzag_length = p->dims.at[p->letter['s']].extent};
    return hd_position(&a, index);
}

static const char *const section_names[HD__SECTION_COUNT] = {
    [HD__SECTION_BEGIN] = "begin",       [HD__SECTION_MICRO] = "micro",   [HD__SECTION_MICRO_LAST] = "micro_last",
    [HD__SECTION_STEP] = "step",         [HD__SECTION_UPDATE] = "update", [HD__SECTION_EVAL] = "eval",
    [HD__SECTION_EVAL_END] = "eval_end", [HD__SECTION_DECODE] = "decode", [HD__SECTION_RESTORE] = "restore"};

uint8_t hd__section_kind(const char *name)
{
    for (uint32_t kind = HD__SECTION_BEGIN; kind < HD__SECTION_COUNT; kind++)
        if (!strcmp(section_names[kind], name))
            return (uint8_t)kind;
    return HD__SECTION_OTHER;
}

struct hd__code_section *hd__section_new(struct hd_program *p, uint8_t kind, int32_t repeat)
{
    hd__push(&p->sections, (struct hd__code_section){.name = section_names[kind], .kind = kind, .repeat = repeat});
    return &p->sections.at[p->sections.count - 1];
}

struct hd__code_section *hd__program_section_of(struct hd_program *p, uint8_t kind)
{
    for (uint32_t i = 0; i < p->sections.count; i++)
        if (p->sections.at[i].kind == kind)
            return &p->sections.at[i];
    return NULL;
}

struct hd__code_section *hd__program_section(struct hd_program *p, const char *name)
{
    for (uint32_t i = 0; i < p->sections.count; i++)
        if (!strcmp(p->sections.at[i].name, name))
            return &p->sections.at[i];
    return NULL;
}

int64_t hd__steady_step(const struct hd_program *p)
{
    int64_t step = 1;
    for (uint32_t i = 0; i < p->sections.count; i++)
        step = HD__MAX(step, p->sections.at[i].last + 1);
    return step;
}

/* The kinds of each role; a strategy's states have the last row. */
static const uint8_t flat_kinds[HD__FLAT_STRATEGY + 1] = {
    [HD__FLAT_MASTER] = HD__FLAT_IS_PARAM | HD__FLAT_IS_SAVED,
    [HD__FLAT_COMPUTE_COPY] = HD__FLAT_IS_PARAM,
    [HD__FLAT_OPTIM... HD__FLAT_OPTIM + 3] = HD__FLAT_IS_OPTIM_STATE | HD__FLAT_IS_SAVED,
    [HD__FLAT_FULL] = HD__FLAT_IS_PARAM,
    [HD__FLAT_SHARD] = HD__FLAT_IS_GRAD,
    [HD__FLAT_GLOBAL_COPY] = HD__FLAT_IS_PARAM | HD__FLAT_IS_SAVED,
    [HD__FLAT_STRATEGY] = HD__FLAT_IS_STRATEGY_STATE | HD__FLAT_IS_SAVED};

const struct hd__fact *hd__fact_of(const struct hd_program *p, hd_tensor t)
{
    static const struct hd__fact nothing;
    for (uint32_t n = 0; n < p->facts.count; n++)
        if (p->facts.at[n].tensor == t)
            return &p->facts.at[n];
    return &nothing;
}

static uint32_t kinds_of(const struct hd_program *p, uint32_t role, hd_tensor tensor)
{
    int average = tensor && role >= HD__FLAT_STRATEGY && hd__fact_of(p, tensor)->what & HD_FACT_AVERAGE;
    return flat_kinds[average ? HD__FLAT_GLOBAL_COPY : HD__MIN(role, HD__FLAT_STRATEGY)];
}

const struct hd__flat *hd__flat_of_update(const struct hd_program *p, const struct hd__instr *i)
{
    for (uint32_t n = 0; n < p->flats.count; n++)
        if (p->flats.at[n].tensor[HD__FLAT_SHARD] == i->in[0])
            return &p->flats.at[n];
    return NULL;
}

int64_t hd__state_count(const struct hd_program *p, const struct hd__param *param, uint32_t s, int global)
{
    const struct hd_optim_param *x = &param->optim;
    const struct hd_optim_state *state = &param->state[s];
    const int64_t rows = x->all_rows, cols = x->all_cols,
                  each[] = {[HD_STATE_ROW] = rows,
                            [HD_STATE_COLUMN] = cols,
                            [HD_STATE_ROW_FACTOR] = rows * rows,
                            [HD_STATE_COLUMN_FACTOR] = cols * cols,
                            [HD_STATE_ONE] = 1};
    int64_t n = global ? hd__global_numel(p, hd__tensor_const(p, param->tensor)) : x->count;
    if (state->kind == HD_STATE_ELEMENT)
        return n;
    if (state->kind == HD_STATE_BLOCK)
        return (n + state->block - 1) / state->block;
    return rows ? n / (global ? rows * cols : x->rows * x->cols) * each[state->kind] : each[state->kind];
}

int hd__flat_next(const struct hd_program *p, uint32_t kinds, struct hd__flat_tensor *t)
{
    while (t->next < p->flats.count * HD__FLAT_ROLES) {
        t->flat = t->next / HD__FLAT_ROLES;
        t->role = t->next++ % HD__FLAT_ROLES;
        const hd_tensor *of = p->flats.at[t->flat].tensor;
        t->tensor = of[t->role];
        t->kinds = kinds_of(p, t->role, t->tensor);
        if (!t->tensor || !(t->kinds & kinds) ||
            (kinds & HD__FLAT_IS_PERSISTENT &&
             p->buffers.at[hd__tensor_const(p, t->tensor)->buffer].life != HD__LIFE_PERSISTENT))
            continue;
        uint32_t first = 0; /* the first such role of it */
        while (of[first] != t->tensor || !(kinds_of(p, first, t->tensor) & kinds))
            first++;
        if (first == t->role)
            return 1;
    }
    return 0;
}
