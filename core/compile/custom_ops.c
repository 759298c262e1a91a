/* Custom ops of strategies against the job: the device has a kernel for each, shapes are as the op wants them, and
 * somebody asks the strategy that reduces buckets. */
#include "core/compile/internal.h"
#include "core/program/ops.h"

int32_t hd__compile_find_reducer(struct hd__compiled *c, struct hd_error *err)
{
    for (uint64_t s = 0; s < c->n_strategies; s++) {
        const struct hd_strategy_ops *ops = &c->strategies[s].component->ops.strategy;
        if (!ops->reduce)
            continue;
        if (c->reducer.ops)
            return hd__job_fail(c->job, c->job->strategies[s]->path, err,
                                "%s: another strategy of the job reduces buckets as well: leave one of them out",
                                c->job->strategies[s]->path);
        c->reducer = (struct hd__reducer){.host = c->host, .ops = ops, .settings = c->strategies[s].settings};
        c->reducing = s;
    }
    return HD_OK;
}

int32_t hd__compile_check_reducer(const struct hd__compiled *c, const struct hd_program *p, struct hd_error *err)
{
    uint32_t owed = 0;
    for (uint32_t n = 0; n < p->params.count; n++)
        owed |= p->params.at[n].unreduced_axes & HD__DP_AXES;
    if (!c->reducer.ops || c->reducer.buckets || !(owed & ~p->independent_axes))
        return HD_OK;
    return hd__job_fail(c->job, c->job->strategies[c->reducing]->path, err,
                        "%s: no strategy of the job asks it to reduce a bucket: add {use: zero} behind it",
                        c->job->strategies[c->reducing]->path);
}

/* Does the device run it: on host memory, or by a kernel for this device? */
static int has_kernel(const struct hd__component *device, const struct hd_custom_op *op)
{
    int found = op->run && device->ops.device.caps & HD_DEVICE_HOST_MEMORY;
    for (uint64_t k = 0; k < op->n_kernels; k++)
        found |= !strcmp(op->kernels[k].device, device->name);
    return found && device->ops.device.supports(NULL, HD_OP_CUSTOM, HD_F32);
}

static int32_t check_op(const struct hd__compiled *c, const struct hd_program *p, const struct hd__instr *i,
                        struct hd_error *err)
{
    const int32_t coord[HD_AXIS_COUNT] = {[HD_AXIS_PP] = p->stage};
    struct hd_operand in[HD_MAX_IN], out[HD_MAX_OUT];
    struct hd_instr_desc desc;
    struct hd_error why = HD_ERROR_INIT;
    if (!has_kernel(c->device_choice.component, i->custom))
        return hd__job_fail(
            c->job, "device.use", err,
            "device.use: %s cannot run %s, an op of a strategy: it has %s%s; use a device that computes "
            "on host memory, or leave the strategy out",
            c->device_choice.component->label, i->custom->name,
            i->custom->run ? "a function for host memory" : "no function for host memory",
            i->custom->n_kernels ? " and kernels for other devices" : " and no kernel");
    if (c->job->precision.loss_scaling == HD__LOSS_SCALE_DYNAMIC && i->custom->state)
        return hd__job_fail(c->job, "precision.loss_scale", err,
                            "precision.loss_scale: %s keeps state of gradients from step to step, which dynamic loss "
                            "scaling multiplies by another factor each time: use compute: bf16, or a number",
                            i->custom->name);
    hd__instr_lower(p, i, coord, NULL, &desc, in, out);
    if (i->custom->check && i->custom->check(i->custom->settings, &desc, &why))
        return hd__job_fail(c->job, "strategies", err, "strategies: %s: %s", desc.label,
                            why.message[0] ? why.message : "the op's check refuses it without a message");
    return HD_OK;
}

int32_t hd__compile_check_custom(const struct hd__compiled *c, const struct hd_program *p, struct hd_error *err)
{
    for (uint32_t s = 0; s < p->sections.count; s++)
        for (uint32_t k = 0; k < p->sections.at[s].code.count; k++) {
            const struct hd__instr *i = &p->sections.at[s].code.at[k];
            if (i->custom && check_op(c, p, i, err))
                return err->code;
        }
    return HD_OK;
}
