/* Peephole: a gradient accumulates where it is made. accum(view <- t), where t is made by an op that can accumulate and
 * is used by nothing else, becomes that op writing into the view with HD_ATTR_ACCUMULATE. */
#include <stdlib.h>

#include "core/program/ops.h"

struct use {
    uint32_t maker; /* index + 1 of the instruction that writes the tensor */
    uint32_t count; /* how many instructions read it */
};

static struct use *count_uses(const struct hd_program *p, const hd__code *code)
{
    struct use *use = hd__alloc(p->tensors.count * sizeof *use);
    for (uint32_t k = 0; k < code->count; k++) {
        const struct hd__instr *i = &code->at[k];
        for (uint32_t n = 0; n < i->n_out; n++)
            use[i->out[n]].maker = k + 1;
        for (uint32_t n = 0; n < i->n_in; n++)
            use[i->in[n]].count++;
    }
    return use;
}

/* Does anything between the two touch the buffer that the accum writes? */
static int touched_between(const struct hd_program *p, const hd__code *code, uint32_t from, uint32_t to, uint32_t buffer)
{
    for (uint32_t k = from + 1; k < to; k++) {
        const struct hd__instr *i = &code->at[k];
        for (uint32_t n = 0; n < i->n_in; n++)
            if (hd__tc(p, i->in[n])->buffer == buffer)
                return i->op != HD_OP_ACCUM;
        for (uint32_t n = 0; n < i->n_out; n++)
            if (hd__tc(p, i->out[n])->buffer == buffer && i->op != HD_OP_ACCUM && !(i->attrs && i->attrs->flags & HD_ATTR_ACCUMULATE))
                return 1;
    }
    return 0;
}

static int same_shape(const struct hd_program *p, hd_tensor a, hd_tensor b)
{
    const struct hd__tensor *x = hd__tc(p, a), *y = hd__tc(p, b);
    return x->ndim == y->ndim && !memcmp(x->dim, y->dim, x->ndim * sizeof *x->dim) &&
           !memcmp(x->place.shard, y->place.shard, sizeof x->place.shard);
}

/* The maker of accum k's input, if it may write the accumulator itself; NULL otherwise. */
static struct hd__instr *accumulator(struct hd_program *p, hd__code *code, const struct use *use, uint32_t k)
{
    const struct hd__instr *accum = &code->at[k];
    uint32_t m = use[accum->in[0]].maker;
    struct hd__instr *maker = m ? &code->at[m - 1] : NULL;
    if (!maker || use[accum->in[0]].count != 1 || !(hd__op(maker->op)->flags & HD__OP_ACCUMULATES) || m > k + 1)
        return NULL;
    if (!hd__tc(p, accum->out[0])->buffer || !same_shape(p, accum->in[0], accum->out[0]))
        return NULL;
    return touched_between(p, code, m - 1, k, hd__tc(p, accum->out[0])->buffer) ? NULL : maker;
}

/* Several outputs accumulate together or not at all. */
static int all_fusable(struct hd_program *p, hd__code *code, const struct use *use, const uint32_t *accum_of, struct hd__instr *maker)
{
    for (uint32_t n = 0; n < maker->n_out; n++) {
        uint32_t k = accum_of[maker->out[n]];
        if (!k || accumulator(p, code, use, k - 1) != maker)
            return 0;
    }
    return 1;
}

static void fuse_section(struct hd_program *p, hd__code *code)
{
    struct use *use = count_uses(p, code);
    uint32_t *accum_of = hd__alloc(p->tensors.count * sizeof *accum_of), kept = 0;
    uint8_t *gone = hd__alloc(code->count + 1);
    for (uint32_t k = 0; k < code->count; k++)
        if (code->at[k].op == HD_OP_ACCUM)
            accum_of[code->at[k].in[0]] = k + 1;
    for (uint32_t k = 0; k < code->count; k++) {
        struct hd__instr *maker = &code->at[k];
        struct hd_attrs *attrs;
        if (!(hd__op(maker->op)->flags & HD__OP_ACCUMULATES) || !all_fusable(p, code, use, accum_of, maker))
            continue;
        attrs = hd__attrs_new(p, maker->attrs);
        attrs->flags |= HD_ATTR_ACCUMULATE;
        maker->attrs = attrs;
        for (uint32_t n = 0; n < maker->n_out; n++) {
            uint32_t at = accum_of[maker->out[n]] - 1;
            gone[at] = 1;
            maker->out[n] = code->at[at].out[0];
        }
    }
    for (uint32_t k = 0; k < code->count; k++)
        if (!gone[k])
            code->at[kept++] = code->at[k];
    code->count = kept;
    free(gone);
    free(accum_of);
    free(use);
}

int32_t hd__fuse(struct hd_program *p, struct hd_error *err)
{
    (void)err;
    for (uint32_t s = 0; s < p->sections.count; s++)
        fuse_section(p, &p->sections.at[s].code);
    return HD_OK;
}
