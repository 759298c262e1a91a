/* Peepholes. First the loss (fuse_loss_head.c). Then accumulation is folded into the op that makes a gradient:
 * accum(view <- t), where t is made by an op that can accumulate and is used by nothing else, becomes that op writing
 * into the view with HD_ATTR_ACCUMULATE. Then sums of activations' gradients, first writes, and pairs that have a fused
 * op (fuse_patterns.c). */
#include <stdlib.h>

#include "core/passes/passes.h"
#include "core/program/access.h"
#include "core/program/fusion.h"
#include "core/program/ops.h"

struct hd__tensor_use *hd__count_uses(const struct hd_program *p, const hd__code *code)
{
    struct hd__tensor_use *use = hd__alloc(p->tensors.count * sizeof *use);
    for (uint32_t k = 0; k < code->count; k++) {
        const struct hd__instr *i = &code->at[k];
        for (uint32_t n = 0; n < i->n_out; n++)
            use[i->out[n]].maker = k + 1;
        for (uint32_t n = 0; n < i->n_in; n++)
            use[i->in[n]].count++;
    }
    return use;
}

/* Does any instruction between the two access the buffer that the accum writes? */
static int touched_between(const struct hd_program *p, const hd__code *code, uint32_t from, uint32_t to,
                           uint32_t buffer)
{
    for (uint32_t k = from + 1; k < to; k++) {
        const struct hd__instr *i = &code->at[k];
        for (uint32_t n = 0; n < i->n_in; n++)
            if (hd__tensor_const(p, i->in[n])->buffer == buffer)
                return i->op != HD_OP_ACCUM;
        for (uint32_t n = 0; n < i->n_out; n++)
            if (hd__tensor_const(p, i->out[n])->buffer == buffer && !hd__accumulates(i))
                return 1;
    }
    return 0;
}

int hd__same_shape(const struct hd__tensor *a, const struct hd__tensor *b)
{
    return a->ndim == b->ndim && !memcmp(a->dim, b->dim, a->ndim * sizeof *a->dim) &&
           !memcmp(a->placement.shard, b->placement.shard, sizeof a->placement.shard);
}

static int adds_once(const struct hd_program *p, const struct hd__instr *maker)
{
    return maker->op == HD_OP_EINSUM && p->fusions & hd__fusion_rows(HD__FUSE_ADDS_ONCE);
}

/* With exact sums an accumulator is a node of a tree: only complete leaves may be added to it. A matmul that adds its
 * result once may do so itself, and so may the first leaf, which finds zeros. */
static int stays_exact(const struct hd_program *p, const hd__code *code, const struct hd__instr *maker, uint32_t k)
{
    uint32_t first = 0;
    if (!p->exact || adds_once(p, maker))
        return 1;
    while (code->at[first].op != HD_OP_ACCUM ||
           hd__tensor_const(p, code->at[first].out[0])->param != hd__tensor_const(p, code->at[k].out[0])->param ||
           hd__tensor_const(p, code->at[first].out[0])->buffer != hd__tensor_const(p, code->at[k].out[0])->buffer)
        first++;
    return first == k;
}

/* The maker of accum k's input, if it may write the accumulator itself; NULL otherwise. */
static struct hd__instr *accumulator(struct hd_program *p, hd__code *code, const struct hd__tensor_use *use, uint32_t k)
{
    const struct hd__instr *accum = &code->at[k];
    uint32_t m = use[accum->in[0]].maker;
    struct hd__instr *maker = m ? &code->at[m - 1] : NULL;
    if (!maker || use[accum->in[0]].count != 1 || !(hd__op(maker->op)->flags & HD__OP_ACCUMULATES) || m > k + 1)
        return NULL;
    if (!hd__tensor_const(p, accum->out[0])->buffer ||
        !hd__same_shape(hd__tensor_const(p, accum->in[0]), hd__tensor_const(p, accum->out[0])) ||
        !stays_exact(p, code, maker, k))
        return NULL;
    return touched_between(p, code, m - 1, k, hd__tensor_const(p, accum->out[0])->buffer) ? NULL : maker;
}

/* The outputs of an op accumulate all together, or none does. */
static int all_fusable(struct hd_program *p, hd__code *code, const struct hd__tensor_use *use, const uint32_t *accum_of,
                       struct hd__instr *maker)
{
    uint32_t adding = 0;
    for (uint32_t n = 0; n < maker->n_out; n++) {
        uint32_t k = accum_of[maker->out[n]];
        if (!hd__op_adds(maker->op, n))
            continue;
        adding++;
        if (!k || accumulator(p, code, use, k - 1) != maker)
            return 0;
    }
    return adding > 0;
}

static void fuse_section(struct hd_program *p, hd__code *code)
{
    struct hd__tensor_use *use = hd__count_uses(p, code);
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
        attrs->flags |= HD_ATTR_ACCUMULATE | (p->exact ? HD_ATTR_ONCE : 0);
        maker->attrs = attrs;
        for (uint32_t n = 0; n < maker->n_out; n++) {
            uint32_t at = accum_of[maker->out[n]] - 1;
            if (!hd__op_adds(maker->op, n))
                continue;
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

/* ---- sums of gradients: add(t <- t0, t1, ...) whose terms are made by ops that can accumulate: the first term's maker
 * writes t, the others add to it. For exact sums the first may be any op, and a term added to another leaf must be a
 * matmul */

enum { SUMS = HD__FLAG_GRADSUM | HD__FLAG_LEAF | HD__FLAG_LEAVES };

static int is_term(const struct hd_program *p, const hd__code *code, const struct hd__tensor_use *use, uint32_t k,
                   hd_tensor term)
{
    const struct hd__tensor *t = hd__tensor_const(p, term), *sum = hd__tensor_const(p, code->at[k].out[0]);
    uint32_t m = use[term].maker;
    return m && m <= k && code->at[m - 1].op && !hd__is_async(&code->at[m - 1]) && use[term].count == 1 && !t->buffer &&
           hd__same_shape(t, sum) && t->dtype == sum->dtype && t->placement.partial == sum->placement.partial;
}

static int can_add(const struct hd_program *p, const struct hd__instr *maker, uint8_t flags)
{
    return maker->n_out == 1 && (hd__op(maker->op)->flags & HD__OP_ACCUMULATES) && !hd__accumulates(maker) &&
           (!(flags & HD__FLAG_LEAVES) || adds_once(p, maker));
}

/* Index of the first term's maker; UINT32_MAX if the terms' makers cannot accumulate. */
static uint32_t first_maker(const struct hd_program *p, const hd__code *code, const struct hd__tensor_use *use,
                            uint32_t k)
{
    const struct hd__instr *add = &code->at[k];
    uint32_t first = UINT32_MAX;
    if (add->op != HD_OP_ADD || !(add->flags & SUMS))
        return UINT32_MAX;
    for (uint32_t n = 0; n < add->n_in; n++) {
        if (!is_term(p, code, use, k, add->in[n]))
            return UINT32_MAX;
        first = HD__MIN(first, use[add->in[n]].maker - 1);
    }
    for (uint32_t n = 0; n < add->n_in; n++) {
        uint32_t m = use[add->in[n]].maker - 1;
        if ((m != first || add->flags & HD__FLAG_GRADSUM) && !can_add(p, &code->at[m], add->flags))
            return UINT32_MAX;
    }
    return first;
}

static void write_into(struct hd__instr *maker, hd_tensor was, hd_tensor is)
{
    for (uint32_t n = 0; n < maker->n_out; n++)
        if (maker->out[n] == was)
            maker->out[n] = is;
}

static void fuse_sums(struct hd_program *p, hd__code *code)
{
    struct hd__tensor_use *use = hd__count_uses(p, code);
    for (uint32_t k = 0; k < code->count; k++) {
        struct hd__instr *add = &code->at[k];
        uint32_t first = first_maker(p, code, use, k);
        if (first == UINT32_MAX)
            continue;
        for (uint32_t n = 0; n < add->n_in; n++) {
            struct hd__instr *maker = &code->at[use[add->in[n]].maker - 1];
            write_into(maker, add->in[n], add->out[0]);
            if (maker != &code->at[first]) {
                struct hd_attrs *attrs = hd__attrs_new(p, maker->attrs);
                attrs->flags |= HD_ATTR_ACCUMULATE | (add->flags & HD__FLAG_LEAVES ? HD_ATTR_ONCE : 0);
                maker->attrs = attrs;
            }
        }
        hd__tensor_at(p, add->out[0])->n_terms = add->n_in;
        add->op = 0;
    }
    hd__code_compact(code);
    free(use);
}

/* ---- first writes: if a gradient buffer is cleared and each parameter's first contribution comes in the same run of
 * instructions, that contribution writes instead of adding, and the buffer is not cleared */

static const struct hd__flat *flat_of(const struct hd_program *p, hd_tensor t)
{
    for (uint32_t f = 0; f < p->flats.count; f++)
        if (p->flats.at[f].dim == hd__tensor_const(p, t)->dim[0] && hd__tensor_const(p, t)->role == HD__ROLE_FLAT)
            return &p->flats.at[f];
    return NULL;
}

/* Fills writer[param] with index + 1 of the first contribution to it in `code` from `from` on. Returns 0 unless all of
 * the flat's parameters have one and nothing else accesses the buffer before. */
static int first_contributions(const struct hd_program *p, const hd__code *code, uint32_t from, uint32_t buffer,
                               const struct hd__flat *flat, uint32_t *writer)
{
    uint32_t found = 0;
    for (uint32_t k = from; k < code->count && found < flat->n_params; k++) {
        const struct hd__instr *i = &code->at[k];
        for (uint32_t n = 0; n < i->n_in; n++)
            if (hd__tensor_const(p, i->in[n])->buffer == buffer)
                return 0;
        for (uint32_t n = 0; n < i->n_out; n++) {
            const struct hd__tensor *t = hd__tensor_const(p, i->out[n]);
            if (t->buffer != buffer)
                continue;
            if (!t->param || !hd__accumulates(i))
                return 0;
            found += !writer[t->param - 1];
            if (!writer[t->param - 1])
                writer[t->param - 1] = k + 1;
        }
    }
    return found == flat->n_params;
}

/* An instruction with several outputs writes all of them or none. */
static int whole_writers(const struct hd_program *p, const hd__code *code, const struct hd__flat *flat,
                         const uint32_t *writer)
{
    for (uint32_t k = 0; k < flat->n_params; k++) {
        uint32_t w = writer[flat->params[k]];
        const struct hd__instr *i = &code->at[w - 1];
        for (uint32_t n = 0; n < i->n_out; n++)
            if (hd__op_adds(i->op, n) && writer[hd__tensor_const(p, i->out[n])->param - 1] != w)
                return 0;
    }
    return 1;
}

static int write_first(struct hd_program *p, hd__code *code, uint32_t from, hd_tensor cleared)
{
    const struct hd__flat *flat = flat_of(p, cleared);
    uint32_t *writer = hd__alloc((p->params.count + 1) * sizeof *writer);
    int done = flat && first_contributions(p, code, from, hd__tensor_const(p, cleared)->buffer, flat, writer) &&
               whole_writers(p, code, flat, writer);
    for (uint32_t k = 0; done && k < flat->n_params; k++) {
        struct hd__instr *i = &code->at[writer[flat->params[k]] - 1];
        if (i->op == HD_OP_ACCUM) {
            i->op = HD_OP_COPY;
        } else {
            struct hd_attrs *attrs = hd__attrs_new(p, i->attrs);
            attrs->flags &= ~(HD_ATTR_ACCUMULATE | HD_ATTR_ONCE);
            i->attrs = attrs;
        }
    }
    free(writer);
    return done;
}

static void drop_clears(struct hd_program *p, hd__code *clears, hd__code *code)
{
    for (uint32_t k = 0; k < clears->count; k++) {
        struct hd__instr i = clears->at[k];
        if (i.op == HD_OP_FILL0 && write_first(p, code, clears == code ? k + 1 : 0, i.out[0]))
            i.op = 0;
        clears->at[k] = i;
    }
    hd__code_compact(clears);
}

int32_t hd__fuse(struct hd_program *p, struct hd_error *err)
{
    struct hd__code_section *begin = hd__program_section_of(p, HD__SECTION_BEGIN),
                            *last = hd__program_section_of(p, HD__SECTION_MICRO_LAST),
                            *step = hd__program_section_of(p, HD__SECTION_STEP);
    for (uint32_t s = 0; s < p->sections.count && p->fusions & hd__fusion_rows(HD__FUSE_LOSS_HEAD); s++)
        if (hd__fuse_loss_head(p, &p->sections.at[s].code) && p->exact)
            return hd_fail(err, HD_E_UNSUPPORTED,
                           "the weights of the head are gathered for the loss and again for its gradient, and ops "
                           "apart have other last bits than a fused one: take strategies.3d.schedule 1f1b, or "
                           "strategies.zero.stage 0 to 2");
    for (uint32_t s = 0; s < p->sections.count; s++) {
        fuse_section(p, &p->sections.at[s].code);
        fuse_sums(p, &p->sections.at[s].code);
        drop_clears(p, &p->sections.at[s].code, &p->sections.at[s].code);
    }
    if (step && !step->after) /* it runs once, so its first contribution is the first of all */
        drop_clears(p, &begin->code, &step->code);
    else if (begin && last && !last->after && p->accumulation == 1)
        drop_clears(p, &begin->code, &last->code);
    for (uint32_t s = 0; s < p->sections.count; s++)
        hd__fuse_patterns(p, &p->sections.at[s].code);
    return HD_OK;
}
