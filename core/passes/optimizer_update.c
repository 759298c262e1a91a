/* The optimizer's instructions, for strategies: its states of a flat buffer, and its step. */
#include "core/passes/strategy_api.h"

#include <math.h>
#include <stdlib.h>

#include "core/program/ops.h"

static uint32_t states(const struct hd__optimizer *o)
{
    return o->ops->states ? o->ops->states(o->settings) : o->ops->n_states;
}

uint32_t hd__pass_optimizer_states(const struct hd_program *p)
{
    return states(hd__pass_optimizer(p));
}

/* Op and attributes of an update, but for what each flat has of its own. */
static int32_t rule(const struct hd__optimizer *o, uint32_t *op, struct hd_attrs *attrs, struct hd_error *err)
{
    *op = HD_OP_OPTIM_STEP;
    *attrs = (struct hd_attrs){.struct_size = sizeof *attrs};
    if (o->ops->emit)
        return o->ops->emit(o->settings, op, attrs, err) ? (err->code ? err->code : HD_E_INTERNAL) : HD_OK;
    attrs->step = (int32_t(*)(const void *, const void *))o->ops->step;
    attrs->settings = o->settings;
    return HD_OK;
}

/* How the model uses each tensor. */
static uint32_t *find_uses(const struct hd_program *p)
{
    uint32_t *flags = hd__alloc(p->tensors.count * sizeof *flags);
    for (uint32_t k = 0; k < p->forward; k++) {
        const struct hd__instr *i = &p->logical.at[k];
        for (uint32_t n = 0; n < i->n_in; n++) {
            flags[i->in[n]] |= i->op == HD_OP_EMBED || i->op == HD_OP_POSITION ? HD_OPTIM_EMBEDDING : 0;
            flags[i->in[n]] |= i->op == HD_OP_XENT_HEAD || (p->logits && i->out[0] == p->logits) ? HD_OPTIM_HEAD : 0;
        }
    }
    return flags;
}

static int block_is_valid(const struct hd_optim_state *x)
{
    return x->kind != HD_STATE_BLOCK || (x->block >= 16 && x->block <= 65536 && !(x->block & (x->block - 1)));
}

/* States of a parameter, as the optimizer says. */
static void describe_states(struct hd_program *p, const struct hd__optimizer *o, struct hd__param *param)
{
    const struct hd_optimizer_ops *ops = o->ops;
    const char *name = hd__tensor_const(p, param->tensor)->name;
    param->n_states = states(o);
    if (ops->group_states)
        param->n_states = ops->group_states(o->settings, param->optim.group);
    if (param->n_states > states(o)) {
        hd__program_fail(p, HD_E_INVALID, "optimizer.use: `group_states` says %u of %s, and there are %u at most",
                         param->n_states, name, states(o));
        param->n_states = states(o);
    }
    for (uint32_t s = 0; s < param->n_states; s++) {
        struct hd_optim_state *x = &param->state[s];
        *x = (struct hd_optim_state){.struct_size = sizeof *x, .dtype = p->precision.optimizer};
        if (ops->state)
            ops->state(o->settings, param->optim.group, s, x);
        x->block = x->kind == HD_STATE_BLOCK ? x->block : 0;
        if (x->kind > HD_STATE_ONE || !hd_dtype_size(x->dtype) || !block_is_valid(x))
            hd__program_fail(p, HD_E_INVALID,
                             "optimizer.use: `state` says kind %u, dtype %u, block %lld of %s: see struct "
                             "hd_optim_state",
                             x->kind, x->dtype, (long long)x->block, o->ops->state_names[s]);
        else if (x->kind > HD_STATE_BLOCK && (!param->whole || (x->kind != HD_STATE_ONE && !param->optim.rows)))
            hd__program_fail(p, HD_E_INVALID,
                             "optimizer.use: state %s has rows, columns or factors of %s, which is %s: `group` is to "
                             "put it elsewhere",
                             o->ops->state_names[s], name, param->whole ? "no matrix" : "not updated as a whole");
    }
}

static void describe(struct hd_program *p, const struct hd__optimizer *o, const uint32_t *uses, struct hd__param *param)
{
    const struct hd_optimizer_ops *ops = o->ops;
    const struct hd__tensor *t = hd__tensor_const(p, param->tensor);
    struct hd_optim_param *x = &param->optim;
    *x = (struct hd_optim_param){.struct_size = sizeof *x,
                                 .name = t->name,
                                 .count = hd__numel(p, t),
                                 .ndim = hd__pass_file_ndim(param, t),
                                 .flags = uses[param->tensor]};
    const char row = x->ndim == 2 ? '0' : '1';
    if (x->ndim == 2 || x->ndim == 3) { /* 3: matrices one after another, of experts in one tensor */
        x->rows = hd__pass_file_extent(p, param, row, 0);
        x->cols = hd__pass_file_extent(p, param, row + 1, 0);
        x->all_rows = hd__pass_file_extent(p, param, row, 1);
        x->all_cols = hd__pass_file_extent(p, param, row + 1, 1);
    }
    x->group = ops->group ? ops->group(o->settings, x) : 0;
    if ((x->group & ~HD_OPTIM_CUT) > UINT16_MAX)
        hd__program_fail(p, HD_E_INVALID, "optimizer.use: `group` puts %s into group %u: numbers end at %u", t->name,
                         x->group & ~HD_OPTIM_CUT, UINT16_MAX);
    param->whole = !(ops->caps & HD_OPTIM_FLAT) && !(x->group & HD_OPTIM_CUT);
    x->group &= ~HD_OPTIM_CUT;
    describe_states(p, o, param);
    param->update_flops = ops->flops ? ops->flops(o->settings, x) : 0;
    param->decay = ops->decay ? ops->decay(o->settings, t->name, x->ndim) : 0;
    if (!(param->decay >= 0 && isfinite(param->decay)))
        hd__program_fail(p, HD_E_INVALID, "optimizer.use: `decay` says %g of %s: a number of at least 0 is wanted",
                         param->decay, t->name);
}

int32_t hd__optimizer_rule(struct hd_program *p, const struct hd__optimizer *o, struct hd_error *err)
{
    struct hd_attrs attrs;
    int32_t rc = rule(o, &p->update_op, &attrs, err);
    p->update_rule = hd__attrs_new(p, &attrs);
    if (!o->ops->emit && p->precision.optimizer != HD_F32 && p->precision.optimizer != HD_F64)
        return hd_fail(err, HD_E_UNSUPPORTED,
                       "precision.optimizer is %s: an optimizer's step function works on fp32 only",
                       hd_dtype_name(p->precision.optimizer));
    uint32_t *uses = find_uses(p);
    for (uint32_t n = 0; n < p->params.count; n++)
        describe(p, o, uses, &p->params.at[n]);
    free(uses);
    return rc;
}

/* Weight decay of each parameter as ranges of the flat. */
static uint64_t decay_ranges(struct hd_program *p, const struct hd__flat *f, struct hd_range **ranges)
{
    uint64_t n = 0;
    *ranges = hd__arena_alloc(&p->arena, f->n_params * sizeof **ranges);
    for (uint32_t i = 0; i < f->n_params; i++) {
        const struct hd__param *param = &p->params.at[f->params[i]];
        const struct hd__tensor *t = hd__tensor_const(p, param->tensor);
        if (param->decay != 0)
            (*ranges)[n++] = (struct hd_range){f->offset[i], hd__numel(p, t), param->decay};
    }
    return n;
}

/* Neither the mesh nor a shard of the flat may cut what the optimizer updates as a whole; experts are matrices. */
static int parameters_are_whole(struct hd_program *p, const struct hd__flat *f)
{
    int64_t shard = f->count / hd__mesh_ways(&p->mesh, f->axes);
    for (uint32_t i = 0; i < f->n_params; i++) {
        const struct hd__param *param = &p->params.at[f->params[i]];
        const struct hd_optim_param *x = &param->optim;
        const struct hd__tensor *t = hd__tensor_const(p, param->tensor);
        if (!param->whole)
            continue;
        if (x->rows ? x->rows != x->all_rows || x->cols != x->all_cols : x->count != hd__global_numel(p, t))
            return (int)hd__program_fail(
                p, HD_E_UNSUPPORTED,
                "optimizer.use: it updates whole matrices, and the mesh cuts %s: use mesh.tp: 1, with dp, pp or ep "
                "instead",
                t->name);
        if (f->offset[i] / shard != (f->offset[i] + x->count - 1) / shard)
            return (int)hd__program_fail(p, HD_E_UNSUPPORTED,
                                         "optimizer.use: it updates whole parameters, and a shard of the strategy ends "
                                         "within %s: use {use: zero, "
                                         "stage: 0}",
                                         t->name);
    }
    return 1;
}

/* Scratch memory for the parameter that needs most; 0: none. */
static hd_tensor scratch_of(struct hd_program *p, uint32_t id)
{
    const struct hd__optimizer *o = hd__pass_optimizer(p);
    const struct hd__flat *f = &p->flats.at[id - 1];
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < f->n_params && o->ops->scratch; i++)
        bytes = HD__MAX(bytes, o->ops->scratch(o->settings, &f->optim[i]));
    if (!bytes)
        return 0;
    if (f->n_states > 3)
        hd__program_fail(p, HD_E_UNSUPPORTED,
                         "optimizer.use: its plugin asks for scratch memory beside %u states: 3 at most", f->n_states);
    return hd__pass_vector(p, id, "scratch", (int64_t)((bytes + 63) / 64 * 16) * hd__mesh_ways(&p->mesh, f->axes),
                           HD_F32, f->axes, HD_LIFE_TEMP);
}

/* Numbers of state s in all shards of the flat, which are equally long: the parameters' one after another, or as the
 * elements lie. */
static int64_t lay_state(struct hd_program *p, struct hd__flat *f, uint32_t s, const struct hd_optim_state *state)
{
    int64_t ways = hd__mesh_ways(&p->mesh, f->axes), shard = f->count / ways, unit = HD__MAX(state->block, 1);
    int64_t longest = 16, at = 0;
    for (uint32_t i = 0; i < f->n_params; i++) {
        at = i && f->offset[i] / shard == f->offset[i - 1] / shard ? at : 0;
        f->optim[i].state[s] = state->kind <= HD_STATE_BLOCK ? f->offset[i] % shard / unit : at;
        at += (hd__state_count(p, &p->params.at[f->params[i]], s, 0) + 15) / 16 * 16;
        longest = HD__MAX(longest, at);
    }
    return state->kind <= HD_STATE_BLOCK ? f->count / unit : longest * ways;
}

/* A block of a state lies on one rank: pieces of the parameter are runs of whole blocks, if the mesh cuts it. */
static void check_state(struct hd_program *p, const struct hd__param *param, uint32_t s,
                        const struct hd_optim_state *state)
{
    const struct hd__tensor *t = hd__tensor_const(p, param->tensor);
    const char *name = hd__pass_optimizer(p)->ops->state_names[s];
    int64_t run = 1, block = param->state[s].block;
    int32_t d = t->ndim;
    if (s < param->n_states && memcmp(&param->state[s], state, sizeof *state))
        hd__pass_refuse(p,
                        "hd_pass_api.flat: state %s of %s is not that of its neighbours: parameters of one flat are of "
                        "one group",
                        name, t->name);
    do
        run *= d ? hd__local_extent(p, t, --d) : 1;
    while (d && !t->placement.shard[d]);
    if (block && t->placement.shard[d] && run % block)
        hd__program_fail(p, HD_E_UNSUPPORTED,
                         "optimizer.use: state %s has a number for %lld elements, and the mesh cuts %s into runs of "
                         "%lld: use mesh.tp: 1, or blocks that divide them",
                         name, (long long)block, t->name, (long long)run);
}

static void add_states(struct hd_program *p, uint32_t id)
{
    const struct hd__optimizer *o = hd__pass_optimizer(p);
    struct hd__flat *f = &p->flats.at[id - 1];
    const struct hd__param *most = &p->params.at[f->params[0]];
    for (uint32_t i = 0; i < f->n_params; i++)
        most = p->params.at[f->params[i]].n_states > most->n_states ? &p->params.at[f->params[i]] : most;
    for (uint32_t s = f->states_created ? 4 : 0; s < most->n_states; s++) {
        const struct hd_optim_state *state = &most->state[s];
        struct hd__tensor t = *hd__tensor_const(p, f->tensor[HD__FLAT_MASTER]);
        int64_t count = lay_state(p, f, s, state);
        for (uint32_t i = 0; i < f->n_params; i++)
            check_state(p, &p->params.at[f->params[i]], s, state);
        t.name = hd__arena_format(&p->arena, "%s.%s", o->ops->state_names[s], f->name);
        t.dtype = (uint8_t)state->dtype;
        if (state->kind != HD_STATE_ELEMENT)
            t.dim[0] = hd__dim_new(p, hd__arena_format(&p->arena, "#%s", t.name), count);
        t.origin = 0;
        t.shard_view = 0;
        t.offset = 0;
        f->tensor[HD__FLAT_OPTIM + s] = hd__tensor_new_with_buffer(p, &t, HD__LIFE_PERSISTENT);
        hd__tensor_set_memory(p, f->tensor[HD__FLAT_OPTIM + s], f->state_memory);
        f->n_states = s + 1;
    }
    f->states_created = 1;
}

void hd__pass_fetch(struct hd_program *p, const char *section, uint32_t id, uint32_t what, uint32_t load, uint32_t slot)
{
    if (!hd__pass_args(p, __func__, "3*fww", section, id, what, load))
        return;
    add_states(p, id);
    hd__offload_fetch(p, section, id, what, load, slot);
}

/* Stochastic rounding is for weights in bf16 (fp64 is the reference's); every buffer has its own seed. */
static void seed_rounding(struct hd_program *p, const struct hd__flat *f, struct hd_attrs *attrs)
{
    const char *name = hd__tensor_const(p, p->params.at[f->params[0]].tensor)->name;
    uint32_t master = hd__tensor_const(p, f->tensor[HD__FLAT_MASTER])->dtype;
    if (!(attrs->flags & HD_ATTR_STOCHASTIC))
        return;
    if (master != HD_BF16 && master != HD_F64)
        hd__program_fail(p, HD_E_INVALID,
                         "optimizer.rounding: stochastic rounding is for precision.master=bf16, and the weights are in "
                         "%s",
                         hd_dtype_name(master));
    attrs->index = (uint32_t)hd__hash(name, strlen(name), attrs->index);
}

/* An optimizer's own step knows fp32 alone; fp64 is the reference's. */
static void check_step(struct hd_program *p, const struct hd__flat *f)
{
    const uint8_t roles[] = {HD__FLAT_MASTER, HD__FLAT_SHARD, HD__FLAT_OPTIM};
    size_t n = hd__pass_optimizer(p)->ops->state ? 2 : 3; /* it says the dtypes of its states */
    for (size_t k = 0; k < n; k++) {
        const struct hd__tensor *t = hd__tensor_const(p, f->tensor[roles[k]]);
        if (f->tensor[roles[k]] && t->dtype != HD_F32 && t->dtype != HD_F64)
            hd__program_fail(p, HD_E_UNSUPPORTED,
                             "optimizer.use: its plugin updates weights, gradients and states in fp32, and %s is %s: "
                             "use precision.master, grad and optimizer fp32",
                             t->name, hd_dtype_name(t->dtype));
    }
}

void hd__pass_update(struct hd_program *p, uint32_t id, hd_tensor low)
{
    struct hd_pass_instr new = {.struct_size = sizeof new, .phase = HD_PHASE_O};
    struct hd_attrs attrs;
    struct hd_range *ranges;
    struct hd__flat *f;
    hd_tensor scratch;
    if (!hd__pass_args(p, __func__, "3fT", id, low))
        return;
    if (!p->flats.at[id - 1].tensor[HD__FLAT_MASTER] || !p->flats.at[id - 1].tensor[HD__FLAT_SHARD]) {
        hd__pass_refuse(p,
                        "hd_pass_api.update: flat %s has no tensor of role HD_FLAT_MASTER or HD_FLAT_SHARD: set both "
                        "first",
                        p->flats.at[id - 1].name);
        return;
    }
    if (!parameters_are_whole(p, &p->flats.at[id - 1]))
        return;
    add_states(p, id);
    scratch = hd__pass_optimizer(p)->ops->emit ? 0 : scratch_of(p, id);
    f = &p->flats.at[id - 1];
    f->tensor[HD__FLAT_COMPUTE_COPY] = low;
    if (rule(hd__pass_optimizer(p), &new.op, &attrs, &p->error)) {
        p->failed = p->error.code;
        return;
    }
    if (new.op == HD_OP_OPTIM_STEP)
        check_step(p, f);
    seed_rounding(p, f, &attrs);
    attrs.index = new.op == HD_OP_OPTIM_STEP ? f->n_states : attrs.index;
    attrs.n_ranges = decay_ranges(p, f, &ranges);
    attrs.ranges = ranges;
    new.attrs = &attrs;
    new.block = f->block;
    new.in[new.n_in++] = f->tensor[HD__FLAT_SHARD];
    new.in[new.n_in++] = p->norm2;
    new.in[new.n_in++] = p->hyper;
    new.out[new.n_out++] = hd__offload_staged(p, "update", f->tensor[HD__FLAT_MASTER]);
    for (uint32_t s = 0; s < f->n_states; s++)
        new.out[new.n_out++] = hd__offload_staged(p, "update", f->tensor[HD__FLAT_OPTIM + s]);
    if (low)
        new.out[new.n_out++] = hd__offload_staged(p, "update", low);
    if (scratch)
        new.out[new.n_out++] = scratch;
    if (scratch)
        attrs.parts = new.n_out;
    hd__pass_append(p, "update", &new);
    hd__offload_store(p, "update", id, HD_PART_MASTER | HD_PART_LOW | HD_PART_STATES);
}
