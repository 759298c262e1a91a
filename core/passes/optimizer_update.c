/* The optimizer's instructions, for strategies: its states of a flat buffer, and its step. */
#include "core/passes/strategy_api.h"

#include "core/program/ops.h"

uint32_t hd__pass_optimizer_states(const struct hd_program *p)
{
    const struct hd__optimizer *o = hd__pass_optimizer(p);
    return o->ops->states ? o->ops->states(o->settings) : o->ops->n_states;
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

int32_t hd__optimizer_rule(struct hd_program *p, const struct hd__optimizer *o, struct hd_error *err)
{
    struct hd_attrs attrs;
    int32_t rc = rule(o, &p->update_op, &attrs, err);
    p->update_rule = hd__attrs_new(p, &attrs);
    for (uint32_t n = 0; n < p->params.count && o->ops->decay; n++) {
        struct hd__param *param = &p->params.at[n];
        const struct hd__tensor *t = hd__tensor_const(p, param->tensor);
        param->decay = o->ops->decay(o->settings, t->name, hd__pass_file_ndim(param, t));
    }
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

/* An optimizer without HD_OPTIM_FLAT updates whole parameters: neither the mesh nor a shard of the flat may cut one. */
static int parameters_are_whole(struct hd_program *p, const struct hd__flat *f)
{
    int64_t shard = f->count / hd__mesh_ways(&p->mesh, f->axes);
    for (uint32_t i = 0; i < f->n_params; i++) {
        const struct hd__tensor *t = hd__tensor_const(p, p->params.at[f->params[i]].tensor);
        int64_t n = hd__numel(p, t);
        if (n != hd__global_numel(p, t))
            return (int)hd__program_fail(p, HD_E_UNSUPPORTED,
                                         "optimizer.use: it updates whole parameters (its plugin does not say "
                                         "HD_OPTIM_FLAT), and the mesh cuts %s: use mesh.tp: 1 and mesh.ep: 1",
                                         t->name);
        if (f->offset[i] / shard != (f->offset[i] + n - 1) / shard)
            return (int)hd__program_fail(p, HD_E_UNSUPPORTED,
                                         "optimizer.use: it updates whole parameters (its plugin does not say "
                                         "HD_OPTIM_FLAT), and a shard of the strategy ends within %s: use {use: zero, "
                                         "stage: 0}",
                                         t->name);
    }
    return 1;
}

static void add_states(struct hd_program *p, uint32_t id)
{
    const struct hd__optimizer *o = hd__pass_optimizer(p);
    uint32_t n = p->flats.at[id - 1].states_created ? 0 : hd__pass_optimizer_states(p);
    p->flats.at[id - 1].states_created = 1;
    for (uint32_t s = 0; s < n; s++) {
        struct hd__flat *f = &p->flats.at[id - 1];
        struct hd__tensor t = *hd__tensor_const(p, f->tensor[HD__FLAT_MASTER]);
        t.name = hd__arena_format(&p->arena, "%s.%s", o->ops->state_names[s], f->name);
        t.dtype = p->precision.optimizer;
        t.origin = 0;
        t.shard_view = 0;
        t.offset = 0;
        f->tensor[HD__FLAT_OPTIM + s] = hd__tensor_new_with_buffer(p, &t, HD__LIFE_PERSISTENT);
        hd__tensor_set_memory(p, f->tensor[HD__FLAT_OPTIM + s], f->state_memory);
        f->n_states = s + 1;
    }
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

void hd__pass_update(struct hd_program *p, uint32_t id, hd_tensor low)
{
    struct hd_pass_instr new = {.struct_size = sizeof new, .phase = HD_PHASE_O};
    struct hd_attrs attrs;
    struct hd_range *ranges;
    struct hd__flat *f;
    if (!hd__pass_args(p, __func__, "3fT", id, low))
        return;
    if (!p->flats.at[id - 1].tensor[HD__FLAT_MASTER] || !p->flats.at[id - 1].tensor[HD__FLAT_SHARD]) {
        hd__pass_refuse(p,
                        "hd_pass_api.update: flat %s has no tensor of role HD_FLAT_MASTER or HD_FLAT_SHARD: set both "
                        "first",
                        p->flats.at[id - 1].name);
        return;
    }
    if (!(hd__pass_optimizer(p)->ops->caps & HD_OPTIM_FLAT) && !parameters_are_whole(p, &p->flats.at[id - 1]))
        return;
    add_states(p, id);
    f = &p->flats.at[id - 1];
    f->tensor[HD__FLAT_COMPUTE_COPY] = low;
    if (rule(hd__pass_optimizer(p), &new.op, &attrs, &p->error)) {
        p->failed = p->error.code;
        return;
    }
    seed_rounding(p, f, &attrs);
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
    hd__pass_append(p, "update", &new);
    hd__offload_store(p, "update", id, HD_PART_MASTER | HD_PART_LOW | HD_PART_STATES);
}
