/* Queries and edits for strategies. Edits are recorded and applied together in hd__pass_end, so indexes stay valid. */
#include "core/program/pass.h"

#include <stdlib.h>

#include "core/program/ops.h"

struct edit {
    uint32_t section, index;
    uint32_t order; /* edits at one place keep the order in which they were made */
    int32_t after;
    struct hd__instr instr;
};

struct hd__pass {
    const struct hd__optimizer *optimizer;
    HD__ARRAY(struct edit) edits;
};

/* ---- looking */

/* Ranks that are apart have nothing to do with one another. */
static uint32_t live_axes(const struct hd_program *p)
{
    return hd__mesh_live(&p->mesh) & ~p->apart;
}

static int32_t axis_size(const struct hd_program *p, uint32_t axis)
{
    return axis < HD_AXIS_COUNT ? p->mesh.size[axis] : 1;
}

static uint32_t n_sections(const struct hd_program *p)
{
    return p->sections.count;
}

static const char *section_name(const struct hd_program *p, uint32_t section)
{
    return p->sections.at[section].name;
}

static uint32_t n_instr(const struct hd_program *p, uint32_t section)
{
    return p->sections.at[section].code.count;
}

static void instr(const struct hd_program *p, uint32_t section, uint32_t index, struct hd_pass_instr *out)
{
    const struct hd__instr *i = &p->sections.at[section].code.at[index];
    *out = (struct hd_pass_instr){.struct_size = sizeof *out, .id = i->id, .op = i->op, .block = i->block, .phase = i->phase,
                                  .axes = i->axes, .members = i->members, .redop = i->redop, .n_in = i->n_in,
                                  .n_out = i->n_out, .micro = i->micro, .chunk = i->chunk, .attrs = i->attrs};
    memcpy(out->in, i->in, sizeof out->in);
    memcpy(out->out, i->out, sizeof out->out);
}

static uint32_t n_params(const struct hd_program *p)
{
    return p->params.count;
}

/* Dimensions as other people count them: a bias over heads and head_dim is one vector in its file. */
static uint32_t file_ndim(const struct hd__param *param, const struct hd__tensor *t)
{
    uint32_t n = 0;
    for (const char *axis = param->desc.file_axes; axis && *axis; axis++)
        if (*axis != '*')
            n = HD__MAX(n, (uint32_t)(*axis - '0') + 1);
    return n ? n : t->ndim;
}

/* Local elements of the first of two dimensions as the file has them. */
static int64_t matrix_rows(const struct hd_program *p, const struct hd__param *param, const struct hd__tensor *t)
{
    const char *axes = param->desc.file_axes;
    int64_t rows = 1;
    if (file_ndim(param, t) != 2 || (axes && strchr(axes, '*')))
        return 0;
    for (int32_t d = 0; d < t->ndim && (axes ? axes[d] == '0' : d < 1); d++)
        rows *= hd__local(p, t, d);
    return rows;
}

static void param(const struct hd_program *p, uint32_t index, struct hd_pass_param *out)
{
    const struct hd__param *a = &p->params.at[index];
    const struct hd__tensor *t = hd__tc(p, a->tensor);
    *out = (struct hd_pass_param){.struct_size = sizeof *out, .name = t->name, .tensor = a->tensor, .block = t->block,
                                  .ndim = t->ndim, .obligation = a->obligation & ~p->apart, .stages = a->stages,
                                  .count = hd__numel(p, t), .rows = matrix_rows(p, a, t), .parts = a->parts};
    for (int32_t axis = 0; axis < HD_AXIS_COUNT; axis++)
        if ((live_axes(p) & HD_AXIS_BIT(axis)) && hd__at(t, axis) == HD__AT_R)
            out->replicated |= HD_AXIS_BIT(axis);
}

static uint32_t param_of(const struct hd_program *p, hd_tensor t)
{
    return hd__tc(p, t)->role == HD__ROLE_PARAM ? hd__tc(p, t)->param : 0;
}

static int64_t count(const struct hd_program *p, hd_tensor t)
{
    return hd__numel(p, hd__tc(p, t));
}

static uint32_t partial(const struct hd_program *p, hd_tensor t)
{
    return hd__tc(p, t)->place.partial;
}

static uint32_t dtype(const struct hd_program *p, const char *what)
{
    const struct {
        const char *name;
        uint8_t dtype;
    } known[] = {{"compute", p->precision.compute}, {"grad", p->precision.grad}, {"reduce", p->precision.reduce},
                 {"master", p->precision.master}, {"optimizer", p->precision.optimizer}};
    for (uint32_t n = 0; n < HD__COUNT(known); n++)
        if (!strcmp(known[n].name, what))
            return known[n].dtype;
    return 0;
}

static uint32_t optimizer_states(const struct hd_program *p)
{
    const struct hd__optimizer *o = p->pass->optimizer;
    return o->ops->states ? o->ops->states(o->settings) : o->ops->n_states;
}

/* ---- layout */

static void shard(const struct hd_program *p, uint32_t *table, char dim, uint32_t axis)
{
    if (dim > 0 && axis < HD_AXIS_COUNT && p->mesh.size[axis] > 1)
        table[(int)dim] = hd__shard_push(table[(int)dim], (int32_t)axis);
}

static int64_t extent(const struct hd_program *p, char dim)
{
    return dim > 0 ? p->dims.at[p->letter[(int)dim]].extent : 0;
}

static void shard_params(struct hd_program *p, char dim, uint32_t axis)
{
    shard(p, p->param_shard, dim, axis);
}

static void shard_residual(struct hd_program *p, char dim, uint32_t axis)
{
    shard(p, p->mark_shard[HD__MARK_RESIDUAL], dim, axis);
}

static void ring_attention(struct hd_program *p, uint32_t axis)
{
    if (axis < HD_AXIS_COUNT && p->mesh.size[axis] > 1)
        p->ring |= HD_AXIS_BIT(axis);
}

/* ---- flat buffers */

static uint32_t flat(struct hd_program *p, const char *name, uint32_t block, uint32_t axes, const uint32_t *params,
                     uint32_t n, uint32_t members)
{
    struct hd__flat f = {.name = hd__arena_strdup(&p->arena, name), .block = (uint16_t)block, .axes = axes,
                         .members = members, .n_params = n};
    int64_t ways = hd__mesh_ways(&p->mesh, axes);
    f.params = hd__arena_copy(&p->arena, params, n * sizeof *params);
    f.offset = hd__arena_alloc(&p->arena, n * sizeof *f.offset);
    for (uint32_t i = 0; i < n; i++) {
        f.offset[i] = f.count;
        f.count += hd__numel(p, hd__tc(p, p->params.at[params[i]].tensor));
        f.count = (f.count + 15) & ~(int64_t)15; /* every parameter begins at a cache line of fp32 */
    }
    f.count = (f.count + 16 * ways - 1) / (16 * ways) * (16 * ways);
    f.dim = hd__dim_new(p, hd__arena_format(&p->arena, "#%s", name), f.count);
    hd__push(&p->flats, f);
    return p->flats.count;
}

static void flat_get(const struct hd_program *p, uint32_t id, struct hd_pass_flat *out)
{
    const struct hd__flat *f = &p->flats.at[id - 1];
    *out = (struct hd_pass_flat){.struct_size = sizeof *out, .block = f->block, .axes = f->axes, .members = f->members,
                                 .n_params = f->n_params, .params = f->params, .offset = f->offset, .count = f->count,
                                 .ways = hd__mesh_ways(&p->mesh, f->axes), .whole = f->whole, .master = f->master, .low = f->low,
                                 .common = f->common};
}

static uint32_t n_flats(const struct hd_program *p)
{
    return p->flats.count;
}

static struct hd__tensor flat_tensor(struct hd_program *p, const struct hd__flat *f, const char *name, uint32_t type)
{
    return (struct hd__tensor){.name = hd__arena_format(&p->arena, "%s.%s", name, f->name), .ndim = 1, .dtype = (uint8_t)type,
                               .role = HD__ROLE_FLAT, .block = f->block, .dim = {f->dim}, .place.redop = HD_SUM};
}

static hd_tensor own_buffer(struct hd_program *p, struct hd__tensor *t, uint32_t life)
{
    t->buffer = hd__buffer_new(p, t->name, (hd__tensor_bytes(p, t) + 63) & ~(int64_t)63, (uint8_t)life);
    p->buffers.at[t->buffer].block = t->block;
    return hd__tensor_new(p, t);
}

static hd_tensor flat_whole(struct hd_program *p, uint32_t id, const char *name, uint32_t type, uint32_t life)
{
    struct hd__tensor t = flat_tensor(p, &p->flats.at[id - 1], name, type);
    return own_buffer(p, &t, life);
}

static hd_tensor flat_shard(struct hd_program *p, uint32_t id, const char *name, uint32_t type, uint32_t life, hd_tensor inside)
{
    const struct hd__flat *f = &p->flats.at[id - 1];
    struct hd__tensor t = flat_tensor(p, f, name, type);
    for (int32_t axis = 0; axis < HD_AXIS_COUNT; axis++)
        if (f->axes & HD_AXIS_BIT(axis))
            t.place.shard[0] = hd__shard_push(t.place.shard[0], axis);
    if (!inside)
        return own_buffer(p, &t, life);
    t.dtype = hd__tc(p, inside)->dtype;
    t.buffer = hd__tc(p, inside)->buffer;
    t.offset = hd__tc(p, inside)->offset;
    t.window = 1;
    return hd__tensor_new(p, &t);
}

static hd_tensor flat_view(struct hd_program *p, uint32_t id, hd_tensor whole, uint32_t index)
{
    const struct hd__flat *f = &p->flats.at[id - 1];
    struct hd__tensor t = *hd__tc(p, p->params.at[index].tensor);
    const struct hd__tensor *w = hd__tc(p, whole);
    for (uint32_t i = 0; i < f->n_params; i++)
        if (f->params[i] == index)
            t.offset = w->offset + f->offset[i];
    t.name = hd__arena_format(&p->arena, "%.*s:%s", (int)strcspn(w->name, "."), w->name, t.name);
    t.origin = p->params.at[index].tensor;
    t.role = HD__ROLE_FLAT;
    t.dtype = w->dtype;
    t.buffer = w->buffer;
    return hd__tensor_new(p, &t);
}

static hd_tensor flat_range(struct hd_program *p, uint32_t id, hd_tensor whole, int64_t first, int64_t n)
{
    const struct hd__flat *f = &p->flats.at[id - 1];
    struct hd__tensor t = *hd__tc(p, whole);
    char name[96];
    snprintf(name, sizeof name, "#%s[%lld:%lld]", f->name, (long long)first, (long long)(first + n));
    t.dim[0] = hd__dim_new(p, name, n);
    t.name = hd__arena_format(&p->arena, "%s[%lld:%lld]", t.name, (long long)first, (long long)(first + n));
    t.offset += first;
    t.origin = 0;
    return hd__tensor_new(p, &t);
}

static void along(struct hd_program *p, struct hd__tensor *t, uint32_t axes)
{
    for (int32_t axis = 0; axis < HD_AXIS_COUNT; axis++)
        if ((axes & HD_AXIS_BIT(axis)) && p->mesh.size[axis] > 1)
            t->place.shard[0] = hd__shard_push(t->place.shard[0], axis);
}

static hd_tensor vector(struct hd_program *p, uint32_t id, const char *name, int64_t n, uint32_t type, uint32_t axes, uint32_t life)
{
    struct hd__tensor t = flat_tensor(p, &p->flats.at[id - 1], name, type);
    t.dim[0] = hd__dim_new(p, hd__arena_format(&p->arena, "#%s", t.name), n);
    along(p, &t, axes);
    return own_buffer(p, &t, life);
}

static hd_tensor vector_like(struct hd_program *p, const char *name, hd_tensor like, uint32_t axes, uint32_t life)
{
    struct hd__tensor t = *hd__tc(p, like);
    t.name = hd__arena_format(&p->arena, "%s%s", name, strchr(t.name, '.') ? strchr(t.name, '.') : "");
    t.offset = 0;
    t.window = 0;
    memset(t.place.shard, 0, sizeof t.place.shard);
    along(p, &t, axes);
    return own_buffer(p, &t, life);
}

static void zeros(struct hd_program *p, hd_tensor t)
{
    hd__push(&p->zeros, t);
}

static uint32_t new_dim(struct hd_program *p, const char *name, int64_t n)
{
    return hd__dim_new(p, name, n);
}

static hd_tensor view(struct hd_program *p, hd_tensor inside, const char *name, int64_t first, const uint32_t *dims,
                      uint32_t n)
{
    struct hd__tensor t = *hd__tc(p, inside);
    t.name = name ? hd__arena_strdup(&p->arena, name) : t.name;
    t.ndim = (uint8_t)n;
    for (uint32_t k = 0; k < n && k < HD_MAX_DIMS; k++)
        t.dim[k] = (uint16_t)dims[k];
    memset(&t.place.shard, 0, sizeof t.place.shard);
    t.offset += first;
    t.window = 0;
    t.origin = 0;
    return hd__tensor_new(p, &t);
}

static void split_tp(struct hd_program *p, int32_t ways)
{
    int32_t *size = p->mesh.size;
    if (ways < 1 || size[HD_AXIS_TP] % ways || size[HD_AXIS_TQ] != 1) {
        hd__program_fail(p, HD_E_INVALID, "mesh.tp = %d is not split %d ways", size[HD_AXIS_TP], ways);
        return;
    }
    size[HD_AXIS_TP] /= ways;
    size[HD_AXIS_TQ] = ways;
}

int hd__pass_unedited(struct hd_program *p)
{
    if (p->pass->edits.count)
        hd__program_fail(p, HD_E_INVALID, "a section is split before it is edited");
    return !p->pass->edits.count;
}

static void flat_role(struct hd_program *p, uint32_t id, uint32_t role, hd_tensor t)
{
    struct hd__flat *f = &p->flats.at[id - 1];
    hd_tensor *slot[] = {&f->whole, &f->master, &f->grad, &f->shard, &f->low, &f->common};
    if (role < HD__COUNT(slot))
        *slot[role] = t;
    if (role == HD_FLAT_COMMON)
        hd__t(p, t)->common = 1;
}

static void put_in(struct hd_program *p, hd_tensor t, uint32_t memory)
{
    struct hd__buffer *b = &p->buffers.at[hd__tc(p, t)->buffer];
    b->memory = (uint8_t)memory;
    b->paged = memory == HD__MEM_FILE;
}

static hd_tensor flat_shard_in(struct hd_program *p, uint32_t id, const char *name, uint32_t type, uint32_t memory)
{
    hd_tensor t = flat_shard(p, id, name, type, HD__LIFE_PERSISTENT, 0);
    put_in(p, t, memory);
    return t;
}

static void states_in(struct hd_program *p, uint32_t id, uint32_t memory)
{
    p->flats.at[id - 1].state_memory = memory;
}

static void file_folder(struct hd_program *p, const char *folder)
{
    p->file_folder = hd__arena_strdup(&p->arena, folder);
}

/* ---- edits */

static struct hd__instr make(struct hd_program *p, const struct hd_pass_instr *new)
{
    struct hd__instr i = hd__instr_new(p, (uint16_t)new->op);
    i.block = (uint16_t)new->block;
    i.phase = (uint8_t)new->phase;
    i.axes = new->axes;
    i.members = new->members;
    i.redop = (uint8_t)(new->redop ? new->redop : HD_SUM);
    i.n_in = (uint8_t)new->n_in;
    i.n_out = (uint8_t)new->n_out;
    i.attrs = new->attrs ? hd__attrs_new(p, new->attrs) : NULL;
    memcpy(i.in, new->in, sizeof i.in);
    memcpy(i.out, new->out, sizeof i.out);
    if (i.op == HD_OP_COPY && i.n_in && i.n_out)
        i.stream = hd__copy_stream(p, i.in[0], i.out[0]);
    if (hd__is_collective(i.op)) {
        int32_t several = (i.axes & HD_AXIS_BIT(HD_AXIS_PP)) != 0;
        int32_t axis = i.axes ? __builtin_ctz(i.axes) : HD_AXIS_TP; /* over no axis: a group of one, on any stream */
        i.stream = (uint16_t)(several ? HD__STREAM_WORLD : HD__STREAM_AXIS + axis);
        if (i.op == HD_OP_ALL_GATHER)
            i.from = hd__tc(p, i.in[0])->dim[0];
        if (i.op == HD_OP_ALL_TO_ALL)
            i.from = i.to = hd__tc(p, i.in[0])->dim[0];
        if (i.op == HD_OP_REDUCE_SCATTER)
            i.to = hd__tc(p, i.out[0])->dim[0];
    }
    return i;
}

static int wants_wait(const struct hd_pass_instr *new, const struct hd__instr *i)
{
    return new->flags & HD_PASS_WAIT && hd__is_async(i);
}

static struct hd__instr wait_of(struct hd_program *p, const struct hd__instr *on)
{
    struct hd__instr i = hd__instr_new(p, HD_OP_WAIT);
    i.wait = on->id;
    i.block = on->block;
    i.phase = on->phase;
    i.micro = on->micro;
    i.chunk = on->chunk;
    return i;
}

static void insert(struct hd_program *p, uint32_t section, uint32_t index, int32_t after, const struct hd_pass_instr *new)
{
    struct edit e = {.section = section, .index = index, .after = after, .order = p->pass->edits.count};
    e.instr = make(p, new);
    if (index < p->sections.at[section].code.count) {
        e.instr.micro = p->sections.at[section].code.at[index].micro;
        e.instr.chunk = p->sections.at[section].code.at[index].chunk;
    }
    hd__push(&p->pass->edits, e);
    if (wants_wait(new, &e.instr)) {
        struct hd__instr wait = wait_of(p, &e.instr);
        e.instr = wait;
        e.order = p->pass->edits.count;
        hd__push(&p->pass->edits, e);
    }
}

static void append(struct hd_program *p, const char *section, const struct hd_pass_instr *new)
{
    struct hd__code_section *s = hd__section(p, section);
    struct hd__instr i;
    if (!s) {
        hd__program_fail(p, HD_E_INVALID, "there is no section '%s' to append to", section);
        return;
    }
    i = make(p, new);
    hd__push(&s->code, i);
    if (wants_wait(new, &i))
        hd__push(&s->code, wait_of(p, &i));
}

static void replace_in(struct hd_program *p, uint32_t section, uint32_t index, uint32_t k, hd_tensor t)
{
    p->sections.at[section].code.at[index].in[k] = t;
}

static void replace_out(struct hd_program *p, uint32_t section, uint32_t index, uint32_t k, hd_tensor t)
{
    p->sections.at[section].code.at[index].out[k] = t;
}

static hd_tensor norm2(struct hd_program *p)
{
    return p->norm2;
}

/* Weight decay of each parameter as ranges of the flat. */
static uint64_t decay_ranges(struct hd_program *p, const struct hd__flat *f, struct hd_range **ranges)
{
    const struct hd__optimizer *o = p->pass->optimizer;
    uint64_t n = 0;
    *ranges = hd__arena_alloc(&p->arena, f->n_params * sizeof **ranges);
    for (uint32_t i = 0; i < f->n_params && o->ops->decay; i++) {
        const struct hd__param *param = &p->params.at[f->params[i]];
        const struct hd__tensor *t = hd__tc(p, param->tensor);
        double value = o->ops->decay(o->settings, t->name, file_ndim(param, t));
        if (value != 0)
            (*ranges)[n++] = (struct hd_range){f->offset[i], hd__numel(p, t), value};
    }
    return n;
}

static void add_states(struct hd_program *p, uint32_t id)
{
    const struct hd__optimizer *o = p->pass->optimizer;
    uint32_t n = p->flats.at[id - 1].states_made ? 0 : optimizer_states(p);
    p->flats.at[id - 1].states_made = 1;
    for (uint32_t s = 0; s < n; s++) {
        struct hd__flat *f = &p->flats.at[id - 1];
        struct hd__tensor t = *hd__tc(p, f->master);
        t.name = hd__arena_format(&p->arena, "%s.%s", o->ops->state_names[s], f->name);
        t.dtype = p->precision.optimizer;
        t.origin = 0;
        t.window = 0;
        t.offset = 0;
        f->state[f->n_states] = own_buffer(p, &t, HD__LIFE_PERSISTENT);
        put_in(p, f->state[f->n_states++], f->state_memory);
    }
}

static void fetch(struct hd_program *p, const char *section, uint32_t id, uint32_t what, uint32_t load, uint32_t slot)
{
    if (!p->failed)
        add_states(p, id);
    hd__fetch(p, section, id, what, load, slot);
}

/* Rounding by lot is for weights in bf16 (fp64 is a reference's), and each buffer draws lots of its own. */
static void draw_lots(struct hd_program *p, const struct hd__flat *f, struct hd_attrs *attrs)
{
    const char *name = hd__tc(p, p->params.at[f->params[0]].tensor)->name;
    uint32_t master = hd__tc(p, f->master)->dtype;
    if (!(attrs->flags & HD_ATTR_STOCHASTIC))
        return;
    if (master != HD_BF16 && master != HD_F64)
        hd__program_fail(p, HD_E_INVALID, "optimizer.rounding: weights in %s are not rounded by lot; stochastic rounding is for "
                         "precision.master=bf16", hd_dtype_name(master));
    attrs->index = (uint32_t)hd__hash(name, strlen(name), attrs->index);
}

static void update(struct hd_program *p, uint32_t id, hd_tensor low)
{
    const struct hd__optimizer *o = p->pass->optimizer;
    struct hd_pass_instr new = {.struct_size = sizeof new, .phase = HD_PHASE_O, .op = HD_OP_OPTIM_STEP};
    struct hd_attrs attrs = {.struct_size = sizeof attrs};
    struct hd_range *ranges;
    struct hd__flat *f;
    if (p->failed)
        return;
    add_states(p, id);
    f = &p->flats.at[id - 1];
    f->low = low;
    if (o->ops->emit) {
        if (o->ops->emit(o->settings, &new.op, &attrs, &p->error)) {
            p->failed = p->error.code ? p->error.code : HD_E_INTERNAL;
            return;
        }
    } else {
        attrs.step = (int32_t(*)(const void *, const void *))o->ops->step;
        attrs.settings = o->settings;
    }
    draw_lots(p, f, &attrs);
    attrs.n_ranges = decay_ranges(p, f, &ranges);
    attrs.ranges = ranges;
    new.attrs = &attrs;
    new.block = f->block;
    new.in[new.n_in++] = f->shard;
    new.in[new.n_in++] = p->norm2;
    new.in[new.n_in++] = p->hyper;
    new.out[new.n_out++] = hd__staged(p, "update", f->master);
    for (uint32_t s = 0; s < f->n_states; s++)
        new.out[new.n_out++] = hd__staged(p, "update", f->state[s]);
    if (low && new.n_out < HD_MAX_OUT)
        new.out[new.n_out++] = hd__staged(p, "update", low);
    append(p, "update", &new);
    hd__store(p, "update", id, HD_PART_MASTER | HD_PART_LOW | HD_PART_STATES);
}

/* ---- applying */

void hd__pass_begin(struct hd_program *p, const struct hd__optimizer *optimizer)
{
    p->pass = hd__alloc(sizeof *p->pass);
    p->pass->optimizer = optimizer;
}

static int by_place(const void *a, const void *b)
{
    const struct edit *x = a, *y = b;
    if (x->section != y->section)
        return x->section < y->section ? -1 : 1;
    if (x->index != y->index)
        return x->index < y->index ? -1 : 1;
    if (x->after != y->after)
        return x->after < y->after ? -1 : 1;
    return x->order < y->order ? -1 : x->order > y->order;
}

int32_t hd__pass_end(struct hd_program *p, struct hd_error *err)
{
    struct hd__pass *pass = p->pass;
    uint32_t e = 0;
    if (pass->edits.count)
        qsort(pass->edits.at, pass->edits.count, sizeof *pass->edits.at, by_place);
    for (uint32_t s = 0; s < p->sections.count && pass->edits.count; s++) {
        hd__code old = p->sections.at[s].code, fresh = {0};
        for (uint32_t k = 0; k < old.count; k++) {
            for (; e < pass->edits.count && pass->edits.at[e].section == s && pass->edits.at[e].index == k && !pass->edits.at[e].after; e++)
                hd__push(&fresh, pass->edits.at[e].instr);
            hd__push(&fresh, old.at[k]);
            for (; e < pass->edits.count && pass->edits.at[e].section == s && pass->edits.at[e].index == k; e++)
                hd__push(&fresh, pass->edits.at[e].instr);
        }
        p->sections.at[s].code = fresh;
        hd__free_array(&old);
    }
    hd__free_array(&pass->edits);
    free(pass);
    p->pass = NULL;
    if (p->failed && err)
        *err = p->error;
    return p->failed;
}

const struct hd_pass_api hd__pass_api = {
    .struct_size = sizeof(struct hd_pass_api),
    .live_axes = live_axes,
    .axis_size = axis_size,
    .extent = extent,
    .shard_params = shard_params,
    .shard_residual = shard_residual,
    .n_sections = n_sections,
    .section_name = section_name,
    .n_instr = n_instr,
    .instr = instr,
    .n_params = n_params,
    .param = param,
    .param_of = param_of,
    .count = count,
    .partial = partial,
    .dtype = dtype,
    .optimizer_states = optimizer_states,
    .flat = flat,
    .flat_get = flat_get,
    .flat_whole = flat_whole,
    .flat_shard = flat_shard,
    .flat_view = flat_view,
    .flat_range = flat_range,
    .flat_role = flat_role,
    .insert = insert,
    .append = append,
    .replace_in = replace_in,
    .replace_out = replace_out,
    .update = update,
    .norm2 = norm2,
    .fail = hd__program_refuse,
    .stage = hd__pass_stage,
    .micro_batches = hd__pass_micro_batches,
    .n_blocks = hd__pass_n_blocks,
    .block = hd__pass_block,
    .chunks = hd__pass_chunks,
    .actions = hd__pass_actions,
    .flat_shard_in = flat_shard_in,
    .vector = vector,
    .vector_like = vector_like,
    .zeros = zeros,
    .dim = new_dim,
    .view = view,
    .split_section = hd__pass_split_section,
    .split_tp = split_tp,
    .states_in = states_in,
    .file_folder = file_folder,
    .fetch = fetch,
    .staged = hd__staged,
    .store = hd__store,
    .ring_attention = ring_attention,
    .apart = hd__pass_apart,
    .n_flats = n_flats,
    .section = hd__pass_section,
    .keep = hd__pass_keep,
    .first_round = hd__pass_first_round,
};
