/* A kernel owns a deep copy of its instruction: the caller's may be gone when it runs. */
#include "internal.h"
#include <stdarg.h>

int32_t cpu_invalid(const struct hd_kernel *k, struct hd_error *err, const char *format, ...)
{
    char what[512];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    return hd_fail(err, HD_E_INVALID, "%s: %s", k->d.label[0] ? k->d.label : "instruction", what);
}

static void free_state(struct hd_kernel *k)
{
    k->device->host->free(k->state);
}

int32_t cpu_kernel_state(struct hd_kernel *k, size_t bytes, struct hd_error *err)
{
    k->state = k->device->host->alloc(bytes ? bytes : 1);
    if (!k->state)
        return hd_fail(err, HD_E_NOMEM, "%s: no memory for %zu bytes of kernel state", k->d.label, bytes);
    k->release = free_state;
    return HD_OK;
}

/* Copies `bytes` that an attribute points to; NULL stays NULL. */
static int32_t copy_array(struct hd_kernel *k, const void *from, size_t bytes, const void **to, struct hd_error *err)
{
    *to = NULL;
    if (!from || !bytes)
        return HD_OK;
    void *p = k->device->host->alloc(bytes);
    if (!p)
        return hd_fail(err, HD_E_NOMEM, "%s: no memory to copy %zu bytes of attributes", k->d.label, bytes);
    memcpy(p, from, bytes);
    *to = p;
    return HD_OK;
}

static int32_t check_operand(const struct hd_kernel *k, const struct hd_operand *o, const char *side, uint32_t i,
                             struct hd_error *err)
{
    if (!hd_dtype_size(o->dtype))
        return cpu_invalid(k, err, "%s %u has the unknown dtype %u", side, i, o->dtype);
    if (o->ndim > HD_MAX_DIMS)
        return cpu_invalid(k, err, "%s %u has %u dims, the limit is %d", side, i, o->ndim, HD_MAX_DIMS);
    for (uint32_t d = 0; d < o->ndim; d++)
        if (o->extent[d] < 0)
            return cpu_invalid(k, err, "%s %u has a negative extent along dim %u", side, i, d);
    if (!o->data && hd_operand_count(o) > 0)
        return cpu_invalid(k, err, "%s %u has no memory", side, i);
    return HD_OK;
}

static int32_t check_arity(const struct hd_kernel *k, const struct cpu_op *op, struct hd_error *err)
{
    const struct hd_instr_desc *d = &k->d;
    if (d->n_in < op->min_in || d->n_in > op->max_in || d->n_out < op->min_out || d->n_out > op->max_out)
        return cpu_invalid(k, err, "op %u wants %u to %u inputs and %u to %u outputs, not %u and %u", d->op, op->min_in,
                           op->max_in, op->min_out, op->max_out, d->n_in, d->n_out);
    for (uint32_t i = 0; i < d->n_in; i++) {
        int32_t rc = check_operand(k, &k->in[i], "input", i, err);
        if (rc)
            return rc;
    }
    for (uint32_t i = 0; i < d->n_out; i++) {
        int32_t rc = check_operand(k, &k->out[i], "output", i, err);
        if (rc)
            return rc;
    }
    return HD_OK;
}

static int32_t copy_attributes(struct hd_kernel *k, const struct hd_attrs *from, struct hd_error *err)
{
    const void *table, *ranges, *params;
    const struct hd_optim_param *given = k->d.params;
    k->d.attrs.table = NULL;
    k->d.attrs.ranges = NULL;
    k->d.params = NULL;
    int32_t rc = copy_array(k, from->table, from->n_table * sizeof *from->table, &table, err);
    if (rc)
        return rc;
    k->d.attrs.table = table;
    rc = copy_array(k, from->ranges, from->n_ranges * sizeof *from->ranges, &ranges, err);
    k->d.attrs.ranges = ranges;
    if (rc)
        return rc;
    rc = copy_array(k, given, k->d.n_params * sizeof *given, &params, err);
    k->d.params = params;
    return rc;
}

int32_t cpu_kernel_new(struct hd_device *device, const struct hd_instr_desc *instr, struct hd_kernel **kernel,
                       struct hd_error *err)
{
    const struct cpu_op *op = cpu_op(instr->op);
    size_t bytes = instr->struct_size < sizeof *instr ? instr->struct_size : sizeof *instr;
    if (!op)
        return hd_fail(err, HD_E_UNSUPPORTED, "%.64s: device cpu has no kernel for op %u", instr->label, instr->op);
    struct hd_kernel *k = device->host->alloc(sizeof *k);
    if (!k)
        return hd_fail(err, HD_E_NOMEM, "%.64s: no memory for a kernel", instr->label);
    k->device = device;
    memcpy(&k->d, instr, bytes);
    k->d.label[sizeof k->d.label - 1] = 0;
    int32_t rc = copy_attributes(k, &instr->attrs, err);
    if (!rc && (instr->n_in > HD_MAX_IN || instr->n_out > HD_MAX_OUT))
        rc = cpu_invalid(k, err, "%u inputs and %u outputs are too many", instr->n_in, instr->n_out);
    if (!rc) {
        if (instr->n_in)
            memcpy(k->in, instr->in, instr->n_in * sizeof k->in[0]);
        if (instr->n_out)
            memcpy(k->out, instr->out, instr->n_out * sizeof k->out[0]);
        k->d.in = k->in;
        k->d.out = k->out;
        rc = check_arity(k, op, err);
    }
    if (rc) {
        cpu_kernel_free(k);
        return rc;
    }
    *kernel = k;
    return HD_OK;
}

void cpu_kernel_free(struct hd_kernel *k)
{
    if (!k)
        return;
    const struct hd_host *host = k->device->host;
    if (k->release)
        k->release(k);
    host->free((void *)k->d.attrs.table);
    host->free((void *)k->d.attrs.ranges);
    host->free((void *)k->d.params);
    host->free(k);
}
