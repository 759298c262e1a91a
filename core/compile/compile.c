/* Job + plugins -> one verified step program per pipeline stage. */
#include "core/compile/internal.h"

#include <math.h>
#include <stdlib.h>

#include "core/base/process.h"
#include "core/passes/passes.h"
#include "core/program/ops.h"
#include "core/program/value_number.h"
#include "core/verify/verify.h"

enum { INSTRS_MAX = 1 << 21 }; /* of one program: seconds to compile and prove */

int32_t hd__compile_locate_error(struct hd__job *job, const char *section, struct hd_error *err)
{
    if (!err->message[0])
        hd_fail(err, err->code ? err->code : HD_E_INTERNAL, "its plugin failed without a message (hd_fail)");
    const char *key = hd__job_key_of(job, err->message), *last = err->message;
    /* Keys that do not go together: the one on the command line is to blame; "KEY: ..." is about that key alone. */
    while (key && err->message[strlen(key)] != ':' && (last = strchr(last, ' '))) {
        const char *other = hd__job_key_of(job, ++last);
        const struct hd__job_value *value = other ? hd__job_value_get(job, other) : NULL;
        key = value && !strcmp(value->origin, "command line") ? other : key;
    }
    return hd__job_locate_error(job, key ? key : section, err);
}

static int32_t check_optimizer(struct hd__compiled *c, struct hd_error *err)
{
    const struct hd_optimizer_ops *ops = &c->optimizer_choice.component->ops.optimizer;
    int32_t rc = ops->check ? ops->check(c->optimizer_choice.settings, err) : HD_OK;
    if (rc)
        return hd__compile_locate_error(c->job, "optimizer", err);
    if (ops->states && ops->states(c->optimizer_choice.settings) > ops->n_states)
        return hd__job_fail(c->job, "optimizer.use", err, "%s: `states` says %u, above its n_states, %u",
                            c->optimizer_choice.component->label, ops->states(c->optimizer_choice.settings),
                            ops->n_states);
    double peak = ops->learning_rate(c->optimizer_choice.settings);
    if (!(peak >= 0 && isfinite(peak)))
        return hd__job_fail(c->job, "optimizer.use", err,
                            "%s: `learning_rate` says %g, which is no learning rate: a number of at least 0 is",
                            c->optimizer_choice.component->label, peak);
    if (c->job->schedule.min_lr > peak)
        return hd__job_fail(c->job, "schedule.min_lr", err,
                            "schedule.min_lr: %g is above optimizer.lr, %g: the schedule must decay to a lower rate",
                            c->job->schedule.min_lr, peak);
    return HD_OK;
}

static int32_t open_plugins(struct hd__compiled *c, struct hd_error *err)
{
    struct hd__job *job = c->job;
    struct hd__process process;
    int32_t rc;
    if ((rc = hd__compile_choose(job, c->plugins, HD_KIND_MODEL, job->model, &c->model_choice, err)) ||
        (rc = hd__compile_choose(job, c->plugins, HD_KIND_OPTIMIZER, job->optimizer, &c->optimizer_choice, err)) ||
        (rc = hd__compile_strategies(c, err)) || (rc = hd__compile_find_reducer(c, err)) ||
        (rc = check_optimizer(c, err)))
        return rc;
    c->optimizer = (struct hd__optimizer){&c->optimizer_choice.component->ops.optimizer, c->optimizer_choice.settings};
    job->schedule.lr = c->optimizer.ops->learning_rate(c->optimizer.settings);
    hd__process_note(&process);
    rc = c->model_choice.component->ops.model.open(c->host, c->model_choice.settings, &c->model, err);
    hd__process_restore_after(&process, (uintptr_t)c->model_choice.component->ops.model.open);
    if (rc)
        return hd__compile_locate_error(job, "model", err);
    c->info.struct_size = sizeof c->info;
    return c->model_choice.component->ops.model.info(c->model, &c->info, err);
}

/* Default layout: batch sharded over the data axes and ep, sequence over cp; for token ids, and for the residual stream
 * unless a strategy sets another. */
static void base_layout(struct hd_program *p)
{
    static const struct {
        char dim;
        int32_t axis;
    } rows[] = {{'b', HD_AXIS_DP_REPLICATE}, {'b', HD_AXIS_DP_SHARD}, {'b', HD_AXIS_EP}, {'s', HD_AXIS_CP}};
    for (uint32_t mark = HD__MARK_RESIDUAL; mark <= HD__MARK_TOKENS; mark++)
        for (uint32_t r = 0; r < HD__COUNT(rows); r++)
            if (p->mesh.size[rows[r].axis] > 1)
                p->mark_shard[mark][(int)rows[r].dim] =
                    hd__shard_push(p->mark_shard[mark][(int)rows[r].dim], rows[r].axis);
}

/* Refuses an axis that shards nothing: its ranks would duplicate each other's work and memory. */
static int32_t check_axes(const struct hd__compiled *c, const struct hd_program *p, struct hd_error *err)
{
    static const int32_t axes[] = {HD_AXIS_EP, HD_AXIS_CP, HD_AXIS_TP};
    for (uint32_t a = 0; a < HD__COUNT(axes); a++) {
        const char *name = hd__axis_name(axes[a]);
        uint32_t used = p->mesh.size[axes[a]] == 1;
        for (uint32_t letter = 0; letter < HD__COUNT(p->param_shard); letter++)
            used |= HD_AXIS_BIT(axes[a]) &
                    (hd__shard_mask(p->param_shard[letter]) | hd__shard_mask(p->mark_shard[HD__MARK_RESIDUAL][letter]));
        if (!used)
            return hd__job_fail(
                c->job, hd__arena_format(&c->job->arena, "mesh.%s", name), err,
                "mesh.%s is %d, but no strategy of the job cuts anything on %s: add one to `strategies` that does "
                "(`heddle plugins` lists them)",
                name, p->mesh.size[axes[a]], name);
    }
    /* ep shards the batch too: without experts it would be data parallelism under another name */
    if (p->mesh.size[HD_AXIS_EP] > 1 && !(hd__shard_mask(p->param_shard['e']) & HD_AXIS_BIT(HD_AXIS_EP)))
        return hd__job_fail(c->job, "mesh.ep", err, "mesh.ep is %d, but %s", p->mesh.size[HD_AXIS_EP],
                            p->letter['e'] ? "no strategy of the job puts experts on ep: add one to `strategies` that "
                                             "does (`heddle plugins` lists them)"
                                           : "the model has no experts: use ep: 1 and a larger dp");
    return HD_OK;
}

static void set_precision(struct hd_program *p, const struct hd__job *job)
{
    p->precision = (struct hd__precision){
        .compute = (uint8_t)job->precision.compute,
        .grad = (uint8_t)job->precision.grad,
        .reduce = (uint8_t)job->precision.reduce,
        .master = (uint8_t)job->precision.master,
        .optimizer = (uint8_t)job->precision.optimizer,
        .fixed = HD_F32,
    };
    /* Everything in fp64, but a wire that rounds stays what it is. */
    int wide = job->precision.reduce == job->precision.grad ||
               hd_dtype_size(job->precision.reduce) > hd_dtype_size(job->precision.grad);
    uint8_t reduce = wide ? HD_F64 : (uint8_t)job->precision.reduce;
    if (job->precision.compute == HD_F64)
        p->precision = (struct hd__precision){HD_F64, HD_F64, reduce, HD_F64, HD_F64, HD_F64, {0, 0}};
}

/* hd_model_info against the dims that the model built: planning reads the one, the step is the other. */
static void check_info(struct hd_program *p, const struct hd_model_info *info)
{
    const struct {
        const char *name, *dims;
        int64_t says;
    } rows[] = {{"vocab", "v", info->vocab},       {"hidden", "h", info->hidden},     {"heads", "kg", info->heads},
                {"kv_heads", "k", info->kv_heads}, {"head_dim", "d", info->head_dim}, {"ffn", "f", info->ffn},
                {"experts", "e", info->experts}};
    for (uint32_t r = 0; r < HD__COUNT(rows) && !p->failed; r++) {
        int64_t built = 1;
        for (const char *letter = rows[r].dims; *letter; letter++)
            built *= p->letter[(int)*letter] ? p->dims.at[p->letter[(int)*letter]].extent : 0;
        if (built && rows[r].says && built != rows[r].says)
            hd__program_fail(p, HD_E_INVALID,
                             "the model says in hd_model_info that %s is %lld, but builds dim%s %s with %lld: one of "
                             "them is wrong",
                             rows[r].name, (long long)rows[r].says, rows[r].dims[1] ? "s" : "", rows[r].dims,
                             (long long)built);
    }
    if (info->max_seq_len && p->dims.at[p->letter['s']].extent > info->max_seq_len && !p->failed)
        hd__program_fail(p, HD_E_INVALID, "data.seq_len is %lld, but this model has %lld positions: use at most these",
                         (long long)p->dims.at[p->letter['s']].extent, (long long)info->max_seq_len);
}

static int32_t build_model(struct hd__compiled *c, struct hd_program *p, struct hd_error *err)
{
    struct hd__job *job = c->job;
    int64_t data = job->mesh[HD_AXIS_DP_REPLICATE] * job->mesh[HD_AXIS_DP_SHARD] * job->mesh[HD_AXIS_EP];
    hd__builder_api.dim(p, 'b', "micro-batch", job->micro_batch * data);
    hd__builder_api.dim(p, 's', "sequence", job->seq_len);
    hd__compile_micro_batch_mean(job, p);
    int32_t rc = c->model_choice.component->ops.model.build(c->model, p, err);
    size_t said = strlen(p->error.message);
    if (p->failed && p->block)
        snprintf(p->error.message + said, sizeof p->error.message - said, " (in block %s)", p->blocks.at[p->block]);
    if (!rc)
        hd__builder_check_params(p);
    if (!rc)
        check_info(p, &c->info);
    if (!rc && p->failed) {
        *err = p->error;
        rc = p->failed;
    }
    return rc ? hd__compile_locate_error(job, "model", err) : HD_OK;
}

static int32_t place(struct hd__compiled *c, struct hd_program *p, struct hd_error *err)
{
    return hd__place(p, err) ? hd__compile_locate_error(c->job, "mesh", err) : HD_OK;
}

static int32_t ring_attention(struct hd__compiled *c, struct hd_program *p, struct hd_error *err)
{
    return hd__ring_attention(p, err) ? hd__compile_locate_error(c->job, "data.seq_len", err) : HD_OK;
}

static int32_t run_strategy(struct hd__compiled *c, struct hd_program *p, const struct hd__chosen *strategy, int slot,
                            struct hd_error *err)
{
    const struct hd_strategy_ops *ops = &strategy->component->ops.strategy;
    int32_t (*const slots[])(const struct hd_host *, const void *, struct hd_program *,
                             struct hd_error *) = {ops->layout, ops->partition, ops->transform};
    if (!slots[slot])
        return HD_OK;
    hd__pass_begin(p, &c->optimizer, &c->reducer, slot);
    int32_t rc = slots[slot](c->host, strategy->settings, p, err);
    int32_t end = hd__pass_end(p, rc ? NULL : err);
    return rc ? rc : end;
}

/* Messages name a strategy by the alias that the job uses: the command line can set that. */
static void name_as_written(const struct hd__job_section *section, struct hd_error *err)
{
    const char *key = err->message; /* a plug-in's message begins with it */
    char own[80], message[sizeof err->message];
    size_t n = (size_t)snprintf(own, sizeof own, "strategies.%s.", section->use);
    if (!section->alias || strncmp(key, own, n) != 0)
        return;
    snprintf(message, sizeof message, "%s", err->message);
    snprintf(err->message, sizeof err->message, "%s.%.*s", section->path, (int)sizeof message - 80, message + n);
}

static int32_t run_strategies(struct hd__compiled *c, struct hd_program *p, int slot, struct hd_error *err)
{
    int32_t rc = HD_OK;
    for (uint64_t s = 0; s < c->n_strategies && !rc; s++) {
        rc = run_strategy(c, p, &c->strategies[s], slot, err);
        if (!rc)
            continue;
        name_as_written(c->job->strategies[s], err);
        hd__compile_locate_error(c->job, c->job->strategies[s]->path, err);
    }
    return rc;
}

static int32_t check_padding(const struct hd__compiled *c, const struct hd_program *p, struct hd_error *err)
{
    const struct hd__component *device = c->device_choice.component;
    if (!hd__is_padded(p) || device->ops.device.caps & HD_DEVICE_PADDED_VOCAB)
        return HD_OK;
    return hd__job_fail(c->job, "device.use", err,
                        "%s has no kernels for a vocabulary that the mesh does not divide (HD_DEVICE_PADDED_VOCAB): "
                        "use a model.vocab that it divides, or vocab_parallel: false in {use: 3d}",
                        device->label);
}

int hd__compiled_counts_labels(const struct hd__compiled *c)
{
    const struct hd_data_ops *ops = c->data_choice.component ? &c->data_choice.component->ops.data : NULL;
    return c->job->documents || (ops && ops->labels && (!ops->labeled || ops->labeled(c->data_choice.settings)));
}

/* Does the instruction ask for what devices learnt with HD_DEVICE_MASKS? */
static int wants_masks(const struct hd_program *p, const struct hd__instr *i)
{
    const struct hd_attrs *a = i->attrs;
    const struct hd__tensor *x = hd__tensor_const(p, i->in[0]);
    if (i->op == HD_OP_ROPE)
        return a &&
               (a->flags & HD_ATTR_INTERLEAVED || (int64_t)a->n_table < p->dims.at[x->dim[x->ndim - 1]].extent / 2);
    return i->op == HD_OP_ATTENTION && a && (a->flags & HD_ATTR_NOT_CAUSAL || a->top_k > 0 || a->clip > 0);
}

static int32_t check_masks(const struct hd__compiled *c, const struct hd_program *p, struct hd_error *err)
{
    const struct hd__component *device = c->device_choice.component;
    if ((hd__compiled_counts_labels(c) || p->empty) && !(device->ops.device.caps & HD_DEVICE_IGNORED_LABELS))
        return hd__job_fail(c->job, "device.use", err,
                            "%s does not ignore labels (HD_DEVICE_IGNORED_LABELS), and not all of this %s count: use "
                            "another device",
                            device->label, p->empty ? "batch (data.pad_batch)" : "data");
    for (uint32_t k = 0; k < p->forward && !(device->ops.device.caps & HD_DEVICE_MASKS); k++)
        if (wants_masks(p, &p->logical.at[k]))
            return hd__job_fail(c->job, "device.use", err,
                                "%s has no kernels for %s with this model's attributes (HD_DEVICE_MASKS): use another "
                                "device",
                                device->label, hd__op(p->logical.at[k].op)->name);
    return HD_OK;
}

/* Does the instruction see across documents? */
static int crosses_documents(const struct hd_program *p, const struct hd__instr *i)
{
    return i->op == HD_OP_POSITION || (i->op == HD_OP_ATTENTION && (i->n_in < 4 || i->in[3] != p->positions));
}

static int32_t check_documents(const struct hd__compiled *c, const struct hd_program *p, struct hd_error *err)
{
    const struct hd__component *device = c->device_choice.component, *data = c->data_choice.component;
    for (uint32_t k = 0; k < p->forward && p->documents; k++)
        if (crosses_documents(p, &p->logical.at[k]))
            return hd__job_fail(c->job, "data.documents", err,
                                "data.documents: %s does not give the input \"positions\" to %s: use continue, or a "
                                "model that keeps documents apart, as transformer",
                                c->model_choice.component->label, hd__op(p->logical.at[k].op)->name);
    if (p->documents && !(device->ops.device.caps & HD_DEVICE_DOCUMENTS))
        return hd__job_fail(c->job, "data.documents", err,
                            "data.documents: %s has no attention that keeps documents apart (HD_DEVICE_DOCUMENTS): use "
                            "continue, or another device",
                            device->label);
    if (p->documents && data && !data->ops.data.document_end)
        return hd__job_fail(c->job, "data.documents", err,
                            "data.documents: %s does not say where documents end: use continue, or another source",
                            data->label);
    return HD_OK;
}

/* A sequence without labels adds nothing to a loss of labels; to one of something else it would. */
static int32_t check_empty_sequences(const struct hd__compiled *c, const struct hd_program *p, struct hd_error *err)
{
    int of_labels = 0;
    for (uint32_t k = 0; k < p->forward && p->empty; k++)
        of_labels |= p->logical.at[k].op == HD_OP_XENT_LOCAL;
    if (!p->empty || (of_labels && !p->auxiliary.count))
        return HD_OK;
    return hd__job_fail(c->job, "data.batch", err,
                        "data.batch: %lld is no multiple of data.micro_batch x dp x ep, and %s, to which %lld empty "
                        "sequence%s (data.pad_batch) would add: take a batch that they divide",
                        (long long)c->job->batch,
                        p->auxiliary.count ? "the model has an auxiliary loss over all tokens, as routers of experts"
                                           : "the model's loss is no cross entropy of labels",
                        (long long)p->empty, p->empty > 1 ? "s" : "");
}

/* Bytes of all tensors together are counted in 64 bits: memory_plan.c. */
static int32_t check_sizes(const struct hd__compiled *c, const struct hd_program *p, struct hd_error *err)
{
    for (uint32_t t = 1; t < p->tensors.count; t++)
        if (hd__numel(p, hd__tensor_const(p, t)) > INT64_C(1) << 43)
            return hd__job_fail(c->job, "model", err,
                                "model: %s would have %lld elements on one rank, more than 2^43: make the model, "
                                "data.micro_batch or data.seq_len smaller, or the mesh larger",
                                hd__tensor_const(p, t)->name, (long long)hd__numel(p, hd__tensor_const(p, t)));
    return HD_OK;
}

/* Pipelines and exact sums write out every micro-batch: refused before anyone lists that many. */
static int32_t check_unrolled(const struct hd__compiled *c, const struct hd_program *p, struct hd_error *err)
{
    int32_t stages = p->mesh.size[HD_AXIS_PP], exact = c->job->deterministic == HD__DETERMINISTIC_EXACT;
    int64_t instrs = (int64_t)p->template.count * p->accumulation / stages;
    if (stages > HD__STAGES)
        return hd__job_fail(c->job, "mesh.pp", err, "mesh.pp: a pipeline has at most %d stages, not %d", HD__STAGES,
                            stages);
    if ((stages == 1 && !exact) || (p->accumulation <= INT16_MAX && instrs <= INSTRS_MAX))
        return HD_OK;
    return hd__job_fail(c->job, "data.batch", err,
                        "data.batch: %s writes out every micro-batch: %d of them make a program of about %lld "
                        "instructions, and at most %d micro-batches and %d instructions are compiled: take a larger "
                        "data.micro_batch",
                        stages > 1 ? "a pipeline" : "job.deterministic: exact", p->accumulation, (long long)instrs,
                        INT16_MAX, INSTRS_MAX);
}

static int32_t partition(struct hd__compiled *c, struct hd_program *p, struct hd_error *err)
{
    int32_t rc = check_unrolled(c, p, err);
    if (rc)
        return rc;
    rc = run_strategies(c, p, HD__PASS_PARTITION, err);
    if (!rc && (rc = hd__pipeline_check(p, err)))
        hd__job_locate_error(c->job, "mesh.pp", err);
    return rc;
}

static int32_t scale_loss(const struct hd__compiled *c, struct hd_program *p)
{
    if (c->job->precision.loss_scaling != HD__LOSS_SCALE_NONE || hd__compiled_counts_labels(c))
        hd__scale_loss(p);
    return HD_OK;
}

static int32_t recompute(struct hd__compiled *c, struct hd_program *p, struct hd_error *err)
{
    const struct hd__job *job = c->job;
    uint32_t every = job->recompute == HD__RECOMPUTE_EVERY ? (uint32_t)job->recompute_every : 1;
    if (job->recompute == HD__RECOMPUTE_NONE)
        return HD_OK;
    int32_t rc = hd__recompute(p, every, job->recompute == HD__RECOMPUTE_SELECTIVE, err);
    return rc ? hd__job_locate_error(c->job, "recompute", err) : HD_OK;
}

/* Exact sums form a full binary tree over the micro-batches of all ranks. */
static int32_t check_exact(const struct hd__job *job, const struct hd_program *p, struct hd_error *err)
{
    int64_t micros = job->batch / job->micro_batch;
    const struct {
        int wrong;
        const char *what;
    } rows[] = {
        {p->empty != 0, "data.micro_batch x dp x ep must divide data.batch: empty sequences of "
                        "data.pad_batch would change the order of sums"},
        {p->micro_batches != NULL, "data.micro_batches would change the order of sums: leave it out"},
        {(micros & (micros - 1)) != 0, "data.batch / data.micro_batch must be a power of two"},
        {hd_dtype_size(job->precision.grad) < 4, "precision.grad must be fp32: sums of 16 bits are rounded once "
                                                 "between ranks, and in each addition within one"},
        {job->precision.reduce != job->precision.grad,
         "precision.reduce must be precision.grad: rounding between ranks depends on how many there are"},
    };
    for (size_t i = 0; i < HD__COUNT(rows); i++)
        if (rows[i].wrong)
            return hd_fail(err, HD_E_UNSUPPORTED, "%s", rows[i].what);
    return HD_OK;
}

static int32_t locate_exact_error(struct hd__compiled *c, struct hd_error *err)
{
    int32_t code = err->code;
    hd__job_fail(c->job, "job.deterministic", err, "job.deterministic: exact: %s", err->message);
    return err->code = code;
}

static int32_t lower(struct hd__compiled *c, struct hd_program *p, struct hd_error *err)
{
    p->exact = c->job->deterministic == HD__DETERMINISTIC_EXACT;
    if (p->exact && check_exact(c->job, p, err))
        return locate_exact_error(c, err);
    if (p->exact)
        hd__exact_partition(p);
    if (hd__lower(p, err))
        return err->code;
    hd__value_numbers_annotate(p);
    return p->exact && hd__exact_sums(p, err) ? locate_exact_error(c, err) : HD_OK;
}

/* An optimizer without an instruction of its own runs on the host: on a device that computes in host memory. */
static int32_t check_update(const struct hd__compiled *c, const struct hd_program *p, struct hd_error *err)
{
    const struct hd__component *device = c->device_choice.component;
    if (!device || device->abi_minor < 1 || device->ops.device.supports(NULL, p->update_op, p->precision.compute) == 1)
        return HD_OK;
    return hd_fail(
        err, HD_E_UNSUPPORTED,
        "optimizer.use: %s has no kernel for the update of %s (%s): use device.use: cpu, or an optimizer that "
        "names an instruction, as adamw or sgd",
        device->label, c->optimizer_choice.component->label, hd__op((uint16_t)p->update_op)->name);
}

/* An emulation computes in fp64 for them. */
static int32_t check_fp64_update(const struct hd__compiled *c, const struct hd_program *p, struct hd_error *err)
{
    const char *use = c->optimizer_choice.section->use;
    if (p->precision.master != HD_F64)
        return HD_OK;
    if (!c->optimizer.ops->emit)
        return hd__job_fail(c->job, "precision.compute", err,
                            "precision.compute is fp64, in which optimizer %s, whose step function works on fp32, "
                            "cannot update: use optimizer.use=adamw or sgd, or precision.compute=fp32",
                            use);
    if (p->update_rule->flags & HD_ATTR_STOCHASTIC)
        return hd__job_fail(c->job, "optimizer.rounding", err,
                            "optimizer.rounding: stochastic rounding is for precision.master=bf16, and with "
                            "precision.compute=fp64 the weights are in fp64: leave one of them out");
    return HD_OK;
}

static int32_t transform(struct hd__compiled *c, struct hd_program *p, struct hd_error *err)
{
    int32_t rc = hd__optimizer_rule(p, &c->optimizer, err);
    if (rc || (rc = check_update(c, p, err)))
        return hd__compile_locate_error(c->job, "optimizer", err);
    rc = run_strategies(c, p, HD__PASS_TRANSFORM, err);
    if (!rc && p->params.count && !p->flats.count)
        rc = hd__job_fail(c->job, "strategies", err,
                          "strategies: none of these updates the parameters: add {use: zero} as the last");
    if (!rc)
        rc = hd__compile_check_reducer(c, p, err);
    return !rc && p->exact && hd__exact_reduce(p, err) ? locate_exact_error(c, err) : rc;
}

static int32_t fuse(struct hd__compiled *c, struct hd_program *p, struct hd_error *err)
{
    return hd__fuse(p, err) ? locate_exact_error(c, err) : HD_OK;
}

/* Replicas of local SGD see different gradients: options that need the same decision on all ranks are refused. */
static int32_t check_independent_axes(struct hd__compiled *c, struct hd_program *p, struct hd_error *err)
{
    const struct {
        int asked;
        const char *path, *what;
    } rows[] = {
        {c->job->precision.loss_scaling == HD__LOSS_SCALE_DYNAMIC, "precision.loss_scale",
         "dynamic: a step that overflows is skipped by all ranks alike, and these do not see each other's gradients; "
         "use compute: bf16, or a number"},
        {c->job->deterministic == HD__DETERMINISTIC_EXACT, "job.deterministic",
         "exact: gradients are not summed over all data ranks, so there is no order to fix; leave it out"},
        {c->job->documents, "data.documents",
         "mask and pack: the loss is the mean over the labels of all ranks, and these take steps by their own; use "
         "continue"},
        {p->micro_batches != NULL, "data.micro_batches",
         "of unequal numbers: the loss is the mean over the sequences of all ranks, and these take steps by their own; "
         "leave it out"},
        {p->empty != 0, "data.pad_batch",
         "with empty sequences: the loss is the mean over the sequences of all ranks, and these take steps by their "
         "own; take a data.batch that data.micro_batch x dp x ep divides"},
        {hd__compiled_counts_labels(c), "data.use",
         "labels of the data's own (data.loss: completion): the loss is the mean over the labels of all ranks, and "
         "these take steps by their own; use a source without, or data.loss: all"},
    };
    for (size_t i = 0; i < HD__COUNT(rows) && p->independent_axes; i++)
        if (rows[i].asked) {
            hd__job_fail(c->job, rows[i].path, err, "local SGD along %s excludes %s %s", hd__axes(p->independent_axes),
                         rows[i].path, rows[i].what);
            return err->code = HD_E_UNSUPPORTED;
        }
    hd__scale_independent_gradients(p);
    return HD_OK;
}

/* A device without the kernels of decoding computes each token with all before it. */
static void check_cache(const struct hd__compiled *c, struct hd_program *p)
{
    static const uint16_t ops[] = {HD_OP_ROPE_AT, HD_OP_ATTENTION_CACHED};
    const struct hd__component *device = c->device_choice.component;
    for (size_t k = 0; k < HD__COUNT(ops) && p->keep_cache; k++)
        if (device->abi_minor < 1 || device->ops.device.supports(NULL, ops[k], p->precision.compute) != 1)
            p->no_cache = hd__arena_format(&p->arena, "%s has no kernel for %s", device->label, hd__op(ops[k])->name);
}

/* Gives back the template, and the room that instructions and tensors left: a long pipeline keeps as many programs as
 * it has stages. */
static void fit(struct hd_program *p)
{
    hd__free_array(&p->template);
    for (uint32_t s = 0; s < p->sections.count; s++) {
        hd__code *code = &p->sections.at[s].code;
        if (code->count)
            code->at = hd__realloc(code->at, (code->room = code->count) * sizeof *code->at);
    }
    p->tensors.at = hd__realloc(p->tensors.at, (p->tensors.room = p->tensors.count) * sizeof *p->tensors.at);
}

static int32_t compile_stage(struct hd__compiled *c, struct hd_program *p, uint32_t flags, struct hd_error *err)
{
    int32_t rc;
    base_layout(p);
    if ((rc = build_model(c, p, err)) || (rc = run_strategies(c, p, HD__PASS_LAYOUT, err)) ||
        (rc = check_axes(c, p, err)) || (rc = hd__autodiff(p, err)) || (rc = check_independent_axes(c, p, err)) ||
        (rc = place(c, p, err)) || (rc = check_sizes(c, p, err)) || (rc = check_padding(c, p, err)) ||
        (rc = check_masks(c, p, err)) || (rc = check_documents(c, p, err)) || (rc = check_empty_sequences(c, p, err)) ||
        (rc = partition(c, p, err)))
        return rc;
    check_cache(c, p);
    hd__value_numbers_promise(p);
    if ((rc = recompute(c, p, err)) || (rc = ring_attention(c, p, err)) || (rc = lower(c, p, err)) ||
        (rc = scale_loss(c, p)) || (rc = transform(c, p, err)) || (rc = fuse(c, p, err)) ||
        (rc = hd__schedule_instrs(p, err)) || (rc = hd__memory_plan(p, err)))
        return rc;
    if (hd__compile_verify(c, p, err))
        return err->code;
    if (flags & HD__COMPILE_EVALUATION && (hd__memory_evaluation(p, err) || hd__verify_memory(p, err)))
        return err->code;
    fit(p);
    return hd__compile_check_custom(c, p, err);
}

struct hd__compiled *hd__compiled_new(struct hd__job *job, struct hd__plugins *plugins, const struct hd_host *host)
{
    struct hd__compiled *c = hd__alloc(sizeof *c);
    int32_t size[HD_AXIS_COUNT];
    c->job = job;
    c->plugins = plugins;
    c->host = host;
    for (int32_t a = 0; a < HD_AXIS_COUNT; a++)
        size[a] = (int32_t)job->mesh[a];
    c->mesh = hd__mesh_make(size);
    c->n_stages = size[HD_AXIS_PP];
    c->stage = hd__alloc((size_t)c->n_stages * sizeof *c->stage);
    return c;
}

int32_t hd__compile_stages(struct hd__compiled *c, uint32_t flags, struct hd_error *err)
{
    const struct hd__mesh asked = c->mesh;
    int32_t rc = open_plugins(c, err);
    if (flags & HD__COMPILE_WIDEN && !(flags & HD__COMPILE_KEEP_REDUCER)) /* what travels is not rounded */
        c->reducer.ops = NULL;
    for (int32_t s = 0; s < (flags & HD__COMPILE_FIRST ? 1 : c->n_stages) && !rc; s++) {
        c->stage[s] = hd__program_new(&asked, s);
        c->stage[s]->documents = c->job->documents != HD__DOCUMENTS_CONTINUE;
        c->stage[s]->keep_logits = flags & HD__COMPILE_LOGITS;
        c->stage[s]->keep_cache = (flags & HD__COMPILE_DECODE) != 0;
        c->stage[s]->keep_losses = (flags & HD__COMPILE_LOSSES) != 0;
        c->stage[s]->keep_weight_order = flags & HD__COMPILE_KEEP_WEIGHT_ORDER;
        c->stage[s]->no_offsets = flags & HD__COMPILE_ESTIMATE;
        set_precision(c->stage[s], c->job);
        c->stage[s]->fusions = hd__compile_fusions(c, &c->stage[s]->precision, flags);
        rc = compile_stage(c, c->stage[s], flags, err);
        if (!rc && flags & HD__COMPILE_WIDEN)
            rc = hd__widen(c->stage[s], err);
        else if (!rc && !(flags & HD__COMPILE_EVALUATION))
            rc = check_fp64_update(c, c->stage[s], err);
        c->mesh = c->stage[s]->mesh; /* a strategy may have split tp */
    }
    return rc;
}

int32_t hd__compile_offsets(struct hd__compiled *c, struct hd_error *err)
{
    int32_t rc = HD_OK;
    for (int32_t s = 0; s < c->n_stages && !rc; s++) {
        c->stage[s]->no_offsets = 0;
        rc = hd__memory_offsets(c->stage[s], err);
    }
    return rc;
}

void hd__compiled_finish(struct hd__compiled *c)
{
    for (int32_t s = 0; s < c->n_stages; s++)
        hd__program_free(c->stage[s]);
    if (c->model)
        c->model_choice.component->ops.model.close(c->model);
    free(c->strategies);
    free(c->stage);
    free(c);
}

void hd__compile_fill_host(struct hd_host *host)
{
    host->build = &hd__builder_api;
    host->pass = &hd__pass_api;
}

/* A parameter of an expert counts for the share of the experts that a token is routed to. */
static double active_parameters(const struct hd__compiled *c, const struct hd_program *p, const struct hd__param *param)
{
    double n = (double)hd__global_numel(p, hd__tensor_const(p, param->tensor));
    int expert = c->info.experts > 0 && p->letter['e'] && !(param->desc.flags & HD_PARAM_WHOLE) &&
                 hd__dim_index(hd__tensor_const(p, param->tensor), p->letter['e']) >= 0;
    return expert ? n * (double)c->info.experts_per_token / (double)c->info.experts : n;
}

int64_t hd__compiled_parameter_count(const struct hd__compiled *c)
{
    const struct hd_program *p = c->stage[0];
    int64_t n = 0;
    for (uint32_t i = 0; i < p->params.count; i++)
        n += hd__global_numel(p, hd__tensor_const(p, p->params.at[i].tensor));
    return n;
}

/* Elements of embedding tables (inputs of embed and position) that no matmul reads. */
static int64_t looked_up_only(const struct hd_program *p)
{
    enum { LOOKED_UP = 1, MULTIPLIED = 2 };
    uint8_t *uses = hd__alloc((size_t)p->tensors.count);
    int64_t n = 0;
    for (uint32_t k = 0; k < p->forward; k++)
        for (uint32_t a = 0; a < p->logical.at[k].n_in; a++) {
            uint16_t op = p->logical.at[k].op;
            uses[p->logical.at[k].in[a]] |= op == HD_OP_EMBED || op == HD_OP_POSITION ? LOOKED_UP
                                            : op == HD_OP_EINSUM                      ? MULTIPLIED
                                                                                      : 0;
        }
    for (uint32_t i = 0; i < p->params.count; i++)
        if (uses[p->params.at[i].tensor] == LOOKED_UP)
            n += hd__global_numel(p, hd__tensor_const(p, p->params.at[i].tensor));
    free(uses);
    return n;
}

double hd__compiled_flops_per_token(const struct hd__compiled *c)
{
    const struct hd_program *p = c->stage[0];
    double n = -(double)looked_up_only(p);
    double width = (double)(c->info.heads * c->info.head_dim), share = 1;
    for (uint32_t k = 0; k < p->forward; k++)
        if (p->logical.at[k].op == HD_OP_ATTENTION)
            share = hd__mask_share(p, &p->logical.at[k]);
    for (uint32_t i = 0; i < p->params.count; i++)
        n += active_parameters(c, p, &p->params.at[i]);
    return 6 * n + 12.0 * (double)c->info.layers * width * (double)c->job->seq_len / 2 * share;
}
