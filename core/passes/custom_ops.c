/* Custom ops of strategies, and the bucket that one strategy lets another reduce: slots of hd_pass_api. */
#include <math.h>

#include "core/passes/strategy_api.h"
#include "core/program/ops.h"

static int valid_name(const char *name)
{
    size_t n = strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_");
    for (uint32_t op = 0; op < HD_OP_LIMIT; op++)
        if (hd__op((uint16_t)op)->name && !strcmp(hd__op((uint16_t)op)->name, name))
            return 0;
    return n > 0 && n < 32 && !name[n];
}

static int valid_letters(const char *letters, size_t max)
{
    return letters && strlen(letters) <= max && letters[strspn(letters, "fdiu*")] == 0;
}

enum { KERNELS_MAX = 16, SETTINGS_MAX = 1 << 20 };

/* Kernels: on host memory, or by device, each once; one at least. */
static int valid_kernels(const struct hd_custom_op *op)
{
    int ok = (op->run || op->n_kernels) && op->n_kernels <= KERNELS_MAX;
    for (uint64_t k = 0; k < op->n_kernels && ok; k++) {
        ok = op->kernels && op->kernels[k].device && op->kernels[k].run;
        for (uint64_t n = 0; n < k && ok; n++)
            ok = strcmp(op->kernels[n].device, op->kernels[k].device) != 0;
    }
    return ok;
}

/* The fault of an op; NULL: none. */
static const char *fault_of(const struct hd_custom_op *op)
{
    uint32_t carries = op->proof == HD_CUSTOM_OTHER ? 0 : 1;
    if (!op->name || !valid_name(op->name))
        return "its name is 1 to 31 of a-z, 0-9 and _, and that of no op of heddle/ops.h";
    if (!valid_letters(op->in, HD_MAX_IN) || !valid_letters(op->out, HD_MAX_OUT) || !*op->out)
        return "`in` and `out` have a letter of f, d, i, u, * an operand, and there is an output";
    if (op->proof > HD_CUSTOM_DECODE)
        return "`proof` is one of HD_CUSTOM_OTHER to HD_CUSTOM_DECODE";
    if (carries && !*op->in)
        return "its `proof` is about input 0, and it has no input";
    if ((op->proof == HD_CUSTOM_ENCODE && *op->out != 'u') || (op->proof == HD_CUSTOM_DECODE && *op->in != 'u'))
        return "codes are of dtype u, uint8: output 0 of HD_CUSTOM_ENCODE, input 0 of HD_CUSTOM_DECODE";
    if (op->state >> strlen(op->out) || (op->state & carries))
        return "`state` is a mask of its outputs, without output 0 where that stands for input 0";
    if (op->state && !*op->in)
        return "its state has the elements of input 0, and it has no input";
    if (!valid_kernels(op))
        return "it has a `run`, or `kernels`, each with a device of its own and a `run`";
    if (!(op->flops >= 0 && isfinite(op->flops)))
        return "`flops` is a number of at least 0";
    return op->settings_bytes > SETTINGS_MAX || (op->settings_bytes && !op->settings)
               ? "settings is NULL, and settings_bytes is not 0; or they are more than a MiB"
               : NULL;
}

static int is_the_same(const struct hd_custom_op *a, const struct hd_custom_op *b)
{
    return !strcmp(a->in, b->in) && !strcmp(a->out, b->out) && a->proof == b->proof && a->state == b->state &&
           a->run == b->run && a->settings_bytes == b->settings_bytes && a->check == b->check &&
           (!a->settings_bytes || !memcmp(a->settings, b->settings, a->settings_bytes));
}

static struct hd_custom_op *copy(struct hd_program *p, const struct hd_custom_op *op)
{
    struct hd_custom_op *new = hd__arena_copy(&p->arena, op, sizeof *op);
    struct hd_custom_kernel *kernels = hd__arena_alloc(&p->arena, (op->n_kernels + 1) * sizeof *kernels);
    new->name = hd__arena_strdup(&p->arena, op->name);
    new->in = hd__arena_strdup(&p->arena, op->in);
    new->out = hd__arena_strdup(&p->arena, op->out);
    new->settings = op->settings_bytes ? hd__arena_copy(&p->arena, op->settings, op->settings_bytes) : NULL;
    for (uint64_t k = 0; k < op->n_kernels; k++)
        kernels[k] = (struct hd_custom_kernel){hd__arena_strdup(&p->arena, op->kernels[k].device), op->kernels[k].run};
    new->kernels = kernels;
    return new;
}

uint32_t hd__pass_custom_op(struct hd_program *p, const struct hd_custom_op *op)
{
    if (!hd__pass_args(p, __func__, "3*", op))
        return 0;
    if (op->struct_size != sizeof *op)
        return (uint32_t)hd__pass_refuse(p, "hd_pass_api.custom_op: struct_size is %zu: set it with sizeof",
                                         op->struct_size);
    if (fault_of(op))
        return (uint32_t)hd__pass_refuse(p, "hd_pass_api.custom_op: %s: %s", op->name ? op->name : "", fault_of(op));
    for (uint32_t n = 0; n < p->custom_ops.count; n++)
        if (!strcmp(p->custom_ops.at[n]->name, op->name))
            return is_the_same(p->custom_ops.at[n], op)
                       ? HD_OP_LIMIT + n
                       : (uint32_t)hd__pass_refuse(
                             p, "hd_pass_api.custom_op: %s: there is another op of this name, which is not the same",
                             op->name);
    const struct hd_custom_op *new = copy(p, op);
    hd__push(&p->custom_ops, new);
    return HD_OP_LIMIT + p->custom_ops.count - 1;
}

const struct hd_custom_op *hd__pass_custom(const struct hd_program *p, uint32_t op)
{
    return op >= HD_OP_LIMIT && op - HD_OP_LIMIT < p->custom_ops.count ? p->custom_ops.at[op - HD_OP_LIMIT] : NULL;
}

uint32_t hd__pass_op_number(const struct hd_program *p, const struct hd__instr *i)
{
    for (uint32_t n = 0; n < p->custom_ops.count && i->custom; n++)
        if (p->custom_ops.at[n] == i->custom)
            return HD_OP_LIMIT + n;
    return i->op;
}

int hd__pass_custom_valid(const struct hd_program *p, const char *slot, const struct hd_pass_instr *new)
{
    const struct hd_custom_op *op = hd__pass_custom(p, new->op);
    if (new->n_in != strlen(op->in) || new->n_out != strlen(op->out))
        return hd__pass_refuse(p, "hd_pass_api.%s: %s with %u inputs and %u outputs: it was given as '%s' to '%s'",
                               slot, op->name, new->n_in, new->n_out, op->in, op->out);
    for (uint32_t k = 0; k < new->n_in + new->n_out; k++) {
        hd_tensor t = k < new->n_in ? new->in[k] : new->out[k - new->n_in];
        char letter = k < new->n_in ? op->in[k] : op->out[k - new->n_in];
        if (!hd__pass_args(p, slot, "t", t))
            return 0;
        if (!hd__custom_takes(letter, hd__tensor_const(p, t)->dtype))
            return hd__pass_refuse(p, "hd_pass_api.%s: %s takes '%c' here, and %s is %s", slot, op->name, letter,
                                   hd__tensor_const(p, t)->name, hd_dtype_name(hd__tensor_const(p, t)->dtype));
    }
    return 1;
}

/* ---- a bucket for another strategy */

static int valid_bucket(const struct hd_program *p, const struct hd_pass_bucket *b)
{
    if (b->struct_size != sizeof *b)
        return hd__pass_refuse(p, "hd_pass_api.reduce: struct_size of the bucket is %zu: set it with sizeof",
                               b->struct_size);
    if (!hd__pass_args(p, "reduce", "fAsiitt+", b->flat, b->axes, b->section, b->index, b->last, b->grad, b->out,
                       b->rounds))
        return 0;
    const struct hd__tensor *grad = hd__tensor_const(p, b->grad), *out = hd__tensor_const(p, b->out);
    uint16_t dim = p->flats.at[b->flat - 1].dim;
    if (b->last < b->index)
        return hd__pass_refuse(p,
                               "hd_pass_api.reduce: the sum of %s is complete behind instruction %u, before its last "
                               "contribution, %u",
                               grad->name, b->last, b->index);
    if (!b->axes || grad->ndim != 1 || out->ndim != 1 || grad->dim[0] != dim || out->dim[0] != dim ||
        grad->placement.shard[0])
        return hd__pass_refuse(p, "hd_pass_api.reduce: %s into %s over [%s] is not all of flat %s into it or its shard",
                               grad->name, out->name, hd__axes(b->axes), p->flats.at[b->flat - 1].name);
    return 1;
}

uint32_t hd__pass_reduce(struct hd_program *p, const struct hd_pass_bucket *bucket)
{
    struct hd__reducer *r = hd__pass_reducer(p);
    struct hd_error err = HD_ERROR_INIT;
    if (!hd__pass_args(p, __func__, "3") || (bucket && !valid_bucket(p, bucket)) || !r || !r->ops)
        return 0;
    if (r->running)
        return (uint32_t)hd__pass_refuse(p, "hd_pass_api.reduce: the strategy that reduces asks for itself");
    if (!bucket)
        return 1;
    r->running = 1;
    r->buckets++;
    if (hd__slot_result(r->ops->reduce(r->host, r->settings, p, bucket, &err), "the strategy's", "reduce", &err))
        hd__pass_refuse(p, "%s", err.message);
    r->running = 0;
    return 1;
}
