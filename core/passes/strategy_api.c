/* Queries and edits for strategies. Edits are recorded and applied together in hd__pass_end, so indexes stay valid. */
#include "core/passes/strategy_api.h"

#include <stdarg.h>
#include <stdlib.h>

#include "core/program/ops.h"
#include "core/program/param_file.h"

struct edit {
    uint32_t section, index;
    uint32_t order; /* edits at one place keep the order in which they were made */
    int32_t after;
    struct hd__instr instr;
};

struct hd__pass {
    const struct hd__optimizer *optimizer;
    struct hd__reducer *reducer;
    int32_t phase; /* HD__PASS_... */
    HD__ARRAY(struct edit) edits;
    struct hd_error error; /* the first wrong call of this strategy, queries of a const program included */
};

/* ---- queries */

/* Independent replicas (independent_axes) do not count: strategies reduce nothing over them. */
static uint32_t live_axes(const struct hd_program *p)
{
    return hd__mesh_live(&p->mesh) & ~p->independent_axes;
}

static int32_t axis_size(const struct hd_program *p, uint32_t axis)
{
    return hd__pass_args(p, __func__, "a", axis) ? p->mesh.size[axis] : 1;
}

static uint32_t n_sections(const struct hd_program *p)
{
    return p->sections.count;
}

static const char *section_name(const struct hd_program *p, uint32_t section)
{
    return hd__pass_args(p, __func__, "s", section) ? p->sections.at[section].name : "";
}

static uint32_t n_instr(const struct hd_program *p, uint32_t section)
{
    return hd__pass_args(p, __func__, "s", section) ? p->sections.at[section].code.count : 0;
}

static void instr(const struct hd_program *p, uint32_t section, uint32_t index, struct hd_pass_instr *out)
{
    if (out)
        *out = (struct hd_pass_instr){.struct_size = sizeof *out};
    if (!hd__pass_args(p, __func__, "si*", section, index, out))
        return;
    const struct hd__instr *i = &p->sections.at[section].code.at[index];
    *out = (struct hd_pass_instr){.struct_size = sizeof *out,
                                  .id = i->id,
                                  .op = hd__pass_op_number(p, i),
                                  .block = i->block,
                                  .phase = i->phase,
                                  .axes = i->axes,
                                  .members = i->members,
                                  .redop = i->redop,
                                  .n_in = i->n_in,
                                  .n_out = i->n_out,
                                  .micro = i->micro,
                                  .chunk = i->chunk,
                                  .attrs = i->attrs};
    memcpy(out->in, i->in, sizeof out->in);
    memcpy(out->out, i->out, sizeof out->out);
}

static uint32_t n_params(const struct hd_program *p)
{
    return p->params.count;
}

/* Dimensions in a checkpoint file: a bias over heads and head_dim is one vector there. */
uint32_t hd__pass_file_ndim(const struct hd__param *param, const struct hd__tensor *t)
{
    return t->ndim ? (uint32_t)hd__param_file_axis(&param->desc, t->ndim - 1) + 1 : 0;
}

int64_t hd__pass_file_extent(const struct hd_program *p, const struct hd__param *param, char axis, int global)
{
    const struct hd__tensor *t = hd__tensor_const(p, param->tensor);
    int64_t n = 1;
    for (int32_t d = 0; d < t->ndim; d++)
        if (hd__param_file_axis(&param->desc, d) == axis - '0')
            n *= global ? p->dims.at[t->dim[d]].extent : hd__local_extent(p, t, d);
    return n;
}

/* Local size of the first of two dimensions as a checkpoint file has them. */
static int64_t matrix_rows(const struct hd_program *p, const struct hd__param *param, const struct hd__tensor *t)
{
    if (hd__pass_file_ndim(param, t) != 2 || (param->desc.file_axes && strchr(param->desc.file_axes, '*')))
        return 0;
    return hd__pass_file_extent(p, param, '0', 0);
}

static void param(const struct hd_program *p, uint32_t index, struct hd_pass_param *out)
{
    if (out)
        *out = (struct hd_pass_param){.struct_size = sizeof *out};
    if (!hd__pass_args(p, __func__, "p*", index, out))
        return;
    const struct hd__param *a = &p->params.at[index];
    const struct hd__tensor *t = hd__tensor_const(p, a->tensor);
    *out = (struct hd_pass_param){.struct_size = sizeof *out,
                                  .name = t->name,
                                  .tensor = a->tensor,
                                  .block = t->block,
                                  .ndim = t->ndim,
                                  .obligation = a->unreduced_axes & ~p->independent_axes,
                                  .stages = a->stages,
                                  .count = hd__numel(p, t),
                                  .rows = matrix_rows(p, a, t),
                                  .parts = a->parts,
                                  .group = a->optim.group | (a->whole ? 0 : HD_OPTIM_CUT)};
    for (int32_t axis = 0; axis < HD_AXIS_COUNT; axis++)
        if ((live_axes(p) & HD_AXIS_BIT(axis)) && hd__placement_on(t, axis) == HD__REPLICATED)
            out->replicated |= HD_AXIS_BIT(axis);
}

static uint32_t param_of(const struct hd_program *p, hd_tensor t)
{
    return hd__pass_args(p, __func__, "t", t) && hd__tensor_const(p, t)->role == HD__ROLE_PARAM
               ? hd__tensor_const(p, t)->param
               : 0;
}

static int64_t count(const struct hd_program *p, hd_tensor t)
{
    return hd__pass_args(p, __func__, "t", t) ? hd__numel(p, hd__tensor_const(p, t)) : 0;
}

static uint32_t partial(const struct hd_program *p, hd_tensor t)
{
    return hd__pass_args(p, __func__, "t", t) ? hd__tensor_const(p, t)->placement.partial : 0;
}

static uint32_t dtype(const struct hd_program *p, const char *what)
{
    const struct {
        const char *name;
        uint8_t dtype;
    } known[] = {{"compute", p->precision.compute},
                 {"grad", p->precision.grad},
                 {"reduce", p->precision.reduce},
                 {"master", p->precision.master},
                 {"optimizer", p->precision.optimizer}};
    for (uint32_t n = 0; n < HD__COUNT(known) && what; n++)
        if (!strcmp(known[n].name, what))
            return known[n].dtype;
    hd__pass_refuse(p, "hd_pass_api.dtype: '%s' must be one of compute, grad, reduce, master, optimizer",
                    what ? what : "");
    return 0;
}

/* ---- layout */

static void shard(const struct hd_program *p, uint32_t *table, char dim, uint32_t axis)
{
    if (p->mesh.size[axis] > 1)
        table[(int)dim] = hd__shard_push(table[(int)dim], (int32_t)axis);
}

static int64_t extent(const struct hd_program *p, char dim)
{
    return hd__pass_args(p, __func__, "c", dim) ? p->dims.at[p->letter[(int)dim]].extent : 0;
}

static void shard_params(struct hd_program *p, char dim, uint32_t axis)
{
    if (hd__pass_args(p, __func__, "1ca", dim, axis))
        shard(p, p->param_shard, dim, axis);
}

static void shard_residual(struct hd_program *p, char dim, uint32_t axis)
{
    if (hd__pass_args(p, __func__, "1ca", dim, axis))
        shard(p, p->mark_shard[HD__MARK_RESIDUAL], dim, axis);
}

static void ring_attention(struct hd_program *p, uint32_t axis)
{
    if (hd__pass_args(p, __func__, "1a", axis) && p->mesh.size[axis] > 1)
        p->ring_axes |= HD_AXIS_BIT(axis);
}

/* ---- tensors, the mesh */

static uint32_t dim(struct hd_program *p, const char *name, int64_t extent)
{
    if (!hd__pass_args(p, __func__, "*", name))
        return 0;
    if (extent < 1)
        return (uint32_t)hd__pass_refuse(p, "hd_pass_api.dim: %s has extent %lld; it must be 1 or more", name,
                                         (long long)extent);
    return hd__dim_new(p, name, extent);
}

static hd_tensor view(struct hd_program *p, hd_tensor inside, const char *name, int64_t first, const uint32_t *dims,
                      uint32_t n)
{
    int64_t count = 1;
    if (!hd__pass_args(p, __func__, "3t*", inside, dims))
        return 0;
    struct hd__tensor t = *hd__tensor_const(p, inside);
    for (uint32_t k = 0; k < n && n <= HD_MAX_DIMS; k++) {
        if (!hd__pass_args(p, __func__, "D", dims[k]))
            return 0;
        count *= p->dims.at[dims[k]].extent;
    }
    if (n > HD_MAX_DIMS || first < 0 || count > hd__numel(p, &t) - first)
        return (hd_tensor)hd__pass_refuse(p, "hd_pass_api.view: %u dims with %lld elements from %lld do not lie in %s",
                                          n, (long long)count, (long long)first, t.name);
    t.name = name ? hd__arena_strdup(&p->arena, name) : t.name;
    t.ndim = (uint8_t)n;
    for (uint32_t k = 0; k < n; k++)
        t.dim[k] = (uint16_t)dims[k];
    memset(&t.placement.shard, 0, sizeof t.placement.shard);
    t.offset += first;
    t.shard_view = 0;
    t.origin = 0;
    return hd__tensor_new(p, &t);
}

static void split_tp(struct hd_program *p, int32_t ways)
{
    int32_t *size = p->mesh.size;
    if (!hd__pass_args(p, __func__, "1"))
        return;
    if (ways < 1 || size[HD_AXIS_TP] % ways || size[HD_AXIS_TQ] != 1) {
        hd__program_fail(p, HD_E_INVALID, "mesh.tp = %d is not split %d ways", size[HD_AXIS_TP], ways);
        return;
    }
    size[HD_AXIS_TP] /= ways;
    size[HD_AXIS_TQ] = ways;
}

static void file_folder(struct hd_program *p, const char *folder)
{
    if (hd__pass_args(p, __func__, "*", folder))
        p->file_folder = hd__arena_strdup(&p->arena, folder);
}

static hd_tensor staged(struct hd_program *p, const char *section, hd_tensor t)
{
    return hd__pass_args(p, __func__, "3*T", section, t) ? hd__offload_staged(p, section, t) : 0;
}

static void store(struct hd_program *p, const char *section, uint32_t flat, uint32_t what)
{
    if (hd__pass_args(p, __func__, "3*fw", section, flat, what))
        hd__offload_store(p, section, flat, what);
}

/* ---- edits */

static struct hd__instr make(struct hd_program *p, const struct hd_pass_instr *new)
{
    struct hd__instr i = hd__instr_new(p, (uint16_t)HD__MIN(new->op, HD_OP_LIMIT));
    if ((i.custom = hd__pass_custom(p, new->op)))
        i.op = HD_OP_CUSTOM;
    i.block = (uint16_t) new->block;
    i.phase = (uint8_t) new->phase;
    i.axes = new->axes;
    i.members = new->members;
    i.redop = (uint8_t)(new->redop ? new->redop : HD_SUM);
    i.n_in = (uint8_t) new->n_in;
    i.n_out = (uint8_t) new->n_out;
    i.attrs = new->attrs ? hd__attrs_new(p, new->attrs) : NULL;
    memcpy(i.in, new->in, sizeof i.in);
    memcpy(i.out, new->out, sizeof i.out);
    if (i.op == HD_OP_COPY && i.n_in && i.n_out)
        i.stream = hd__offload_stream(p, i.in[0], i.out[0]);
    if (hd__is_collective(i.op)) {
        int32_t several = (i.axes & HD_AXIS_BIT(HD_AXIS_PP)) != 0;
        int32_t axis = i.axes ? __builtin_ctz(i.axes) : HD_AXIS_TP; /* over no axis: a group of one, on any stream */
        i.stream = (uint16_t)(several ? HD__STREAM_WORLD : HD__STREAM_AXIS + axis);
        if (i.op == HD_OP_ALL_GATHER)
            i.from = hd__tensor_const(p, i.in[0])->dim[0];
        if (i.op == HD_OP_ALL_TO_ALL)
            i.from = i.to = hd__tensor_const(p, i.in[0])->dim[0];
        if (i.op == HD_OP_REDUCE_SCATTER)
            i.to = hd__tensor_const(p, i.out[0])->dim[0];
    }
    return i;
}

static int wants_wait(const struct hd_pass_instr *new, const struct hd__instr *i)
{
    return new->flags &HD_PASS_WAIT &&hd__is_async(i);
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

static void insert(struct hd_program *p, uint32_t section, uint32_t index, int32_t after,
                   const struct hd_pass_instr *new)
{
    struct edit e = {.section = section, .index = index, .after = after, .order = p->pass->edits.count};
    if (!hd__pass_args(p, __func__, "3si", section, index) || !hd__pass_instr_valid(p, __func__, new))
        return;
    e.instr = make(p, new);
    e.instr.micro = p->sections.at[section].code.at[index].micro;
    e.instr.chunk = p->sections.at[section].code.at[index].chunk;
    hd__push(&p->pass->edits, e);
    if (wants_wait(new, &e.instr)) {
        struct hd__instr wait = wait_of(p, &e.instr);
        e.instr = wait;
        e.order = p->pass->edits.count;
        hd__push(&p->pass->edits, e);
    }
}

void hd__pass_append(struct hd_program *p, const char *section, const struct hd_pass_instr *new)
{
    if (!hd__pass_args(p, __func__, "*", section) || !hd__pass_instr_valid(p, __func__, new))
        return;
    struct hd__code_section *s = hd__program_section(p, section);
    if (!s) {
        hd__program_fail(p, HD_E_INVALID, "there is no section '%s' to append to", section);
        return;
    }
    struct hd__instr i = make(p, new);
    hd__push(&s->code, i);
    if (wants_wait(new, &i))
        hd__push(&s->code, wait_of(p, &i));
}

static int has_operand(const struct hd_program *p, const char *slot, const struct hd__instr *i, uint32_t k, uint32_t n)
{
    if (!i->op)
        return hd__pass_refuse(p, "hd_pass_api.%s: the instruction was removed", slot);
    return k < n || hd__pass_refuse(p, "hd_pass_api.%s: operand %u of an instruction that has %u", slot, k, n);
}

static void replace_in(struct hd_program *p, uint32_t section, uint32_t index, uint32_t k, hd_tensor t)
{
    if (hd__pass_args(p, __func__, "3sit", section, index, t) &&
        has_operand(p, __func__, &p->sections.at[section].code.at[index], k,
                    p->sections.at[section].code.at[index].n_in))
        p->sections.at[section].code.at[index].in[k] = t;
}

static void replace_out(struct hd_program *p, uint32_t section, uint32_t index, uint32_t k, hd_tensor t)
{
    if (hd__pass_args(p, __func__, "3sit", section, index, t) &&
        has_operand(p, __func__, &p->sections.at[section].code.at[index], k,
                    p->sections.at[section].code.at[index].n_out))
        p->sections.at[section].code.at[index].out[k] = t;
}

/* Instructions of op 0 leave when the pass ends. */
static void remove_instr(struct hd_program *p, uint32_t section, uint32_t index)
{
    if (!hd__pass_args(p, "remove", "3si", section, index))
        return;
    hd__code *code = &p->sections.at[section].code;
    if (!code->at[index].op || code->at[index].op == HD_OP_WAIT) {
        hd__pass_refuse(p, "hd_pass_api.remove: instruction %u of %s %s", index, p->sections.at[section].name,
                        code->at[index].op ? "is a wait: it leaves with what it waits for" : "was removed before");
        return;
    }
    for (uint32_t n = 0; n < code->count; n++)
        if (n == index || (code->at[n].op == HD_OP_WAIT && code->at[n].wait == code->at[index].id))
            code->at[n].op = 0;
}

static hd_tensor norm2(struct hd_program *p)
{
    return p->norm2;
}

static hd_tensor hyper(struct hd_program *p)
{
    return p->hyper;
}

/* ---- applying */

int hd__pass_unedited(struct hd_program *p)
{
    if (p->pass->edits.count)
        hd__program_fail(p, HD_E_INVALID, "a section is split before it is edited");
    return !p->pass->edits.count;
}

const struct hd__optimizer *hd__pass_optimizer(const struct hd_program *p)
{
    return p->pass->optimizer;
}

struct hd__reducer *hd__pass_reducer(const struct hd_program *p)
{
    return p->pass->reducer;
}

int hd__pass_ok(const struct hd_program *p)
{
    return !p->failed && !(p->pass && p->pass->error.code);
}

int32_t hd__pass_phase(const struct hd_program *p)
{
    return p->pass->phase;
}

int hd__pass_refuse(const struct hd_program *p, const char *format, ...)
{
    va_list args;
    if (hd__pass_ok(p)) {
        p->pass->error.code = HD_E_INVALID;
        va_start(args, format);
        vsnprintf(p->pass->error.message, sizeof p->pass->error.message, format, args);
        va_end(args);
    }
    return 0;
}

void hd__pass_begin(struct hd_program *p, const struct hd__optimizer *optimizer, struct hd__reducer *reducer,
                    int32_t phase)
{
    p->pass = hd__alloc(sizeof *p->pass);
    p->pass->optimizer = optimizer;
    p->pass->reducer = reducer;
    p->pass->phase = phase;
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
    hd__sort(&pass->edits, by_place);
    for (uint32_t s = 0; s < p->sections.count && pass->edits.count; s++) {
        hd__code old = p->sections.at[s].code, fresh = {0};
        for (uint32_t k = 0; k < old.count; k++) {
            for (; e < pass->edits.count && pass->edits.at[e].section == s && pass->edits.at[e].index == k &&
                   !pass->edits.at[e].after;
                 e++)
                hd__push(&fresh, pass->edits.at[e].instr);
            hd__push(&fresh, old.at[k]);
            for (; e < pass->edits.count && pass->edits.at[e].section == s && pass->edits.at[e].index == k; e++)
                hd__push(&fresh, pass->edits.at[e].instr);
        }
        p->sections.at[s].code = fresh;
        hd__free_array(&old);
    }
    for (uint32_t s = 0; s < p->sections.count; s++)
        hd__code_compact(&p->sections.at[s].code);
    if (pass->error.code)
        hd__program_refuse(p, "%s", pass->error.message);
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
    .optimizer_states = hd__pass_optimizer_states,
    .flat = hd__pass_flat,
    .flat_get = hd__pass_flat_get,
    .flat_whole = hd__pass_flat_whole,
    .flat_shard = hd__pass_flat_shard,
    .flat_view = hd__pass_flat_view,
    .flat_range = hd__pass_flat_range,
    .flat_role = hd__pass_flat_role,
    .insert = insert,
    .append = hd__pass_append,
    .replace_in = replace_in,
    .replace_out = replace_out,
    .update = hd__pass_update,
    .norm2 = norm2,
    .fail = hd__program_refuse,
    .stage = hd__pass_stage,
    .micro_batches = hd__pass_micro_batches,
    .n_blocks = hd__pass_n_blocks,
    .block = hd__pass_block,
    .chunks = hd__pass_chunks,
    .actions = hd__pass_actions,
    .flat_shard_in = hd__pass_flat_shard_in,
    .vector = hd__pass_vector,
    .vector_like = hd__pass_vector_like,
    .dim = dim,
    .view = view,
    .split_section = hd__pass_split_section,
    .split_tp = split_tp,
    .states_in = hd__pass_states_in,
    .file_folder = file_folder,
    .fetch = hd__pass_fetch,
    .staged = staged,
    .store = store,
    .ring_attention = ring_attention,
    .apart = hd__pass_apart,
    .n_flats = hd__pass_n_flats,
    .section = hd__pass_section,
    .keep = hd__pass_keep,
    .declare = hd__pass_declare,
    .first_round = hd__pass_first_round,
    .custom_op = hd__pass_custom_op,
    .remove = remove_instr,
    .hyper = hyper,
    .reduce = hd__pass_reduce,
};
