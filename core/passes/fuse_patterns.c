/* Fuses pairs of instructions by the table of core/program/fusion.h. Nothing between the two may access the operands of
 * the one that moves. */
#include <stdlib.h>

#include "core/passes/passes.h"
#include "core/program/access.h"
#include "core/program/fusion.h"
#include "core/program/ops.h"

struct matcher {
    struct hd_program *p;
    hd__code *code;
    struct hd__tensor_use *use;
    struct readers {
        uint32_t first, last;
    } * readers; /* by tensor: where its readers lie; first above last: it has none */
};

static uint32_t accumulation_of(const struct hd__instr *i)
{
    return i->attrs ? i->attrs->flags & (HD_ATTR_ACCUMULATE | HD_ATTR_ONCE) : 0;
}

static int same_schedule(const struct hd__fusion *row, const struct hd__instr *a, const struct hd__instr *b)
{
    return a->micro == b->micro && a->chunk == b->chunk &&
           (row->flags & HD__FUSION_ACROSS_PHASES || a->phase == b->phase) &&
           (row->flags & HD__FUSION_ACROSS_BLOCKS || a->block == b->block);
}

static int keeps_link(const struct hd__fusion *row)
{
    for (uint32_t n = 0; row->out[n]; n++)
        if (row->out[n] == HD__FUSION_FIRST(0))
            return 1;
    return 0;
}

/* The first instruction of a pair: it makes the second's input `link`, for the second alone unless the fused op writes
 * it as well. NULL if it cannot be fused. */
static struct hd__instr *find_maker(const struct matcher *f, const struct hd__fusion *row, uint32_t k, uint32_t link)
{
    const struct hd__instr *second = &f->code->at[k];
    const struct hd__tensor_use *use = &f->use[second->in[link]];
    struct hd__instr *first = use->maker ? &f->code->at[use->maker - 1] : NULL;
    if (!first || use->maker > k || first->op != row->first || first->n_out != 1 || accumulation_of(first) ||
        accumulation_of(second) || !same_schedule(row, first, second))
        return NULL;
    if (hd__tensor_const(f->p, second->in[link])->buffer || (use->count != 1 && !keeps_link(row)))
        return NULL;
    return !row->fits || row->fits(f->p, first, second) ? first : NULL;
}

/* The instruction that the fused one replaces: the later one if the earlier one may move there, else the earlier one if
 * the later one may move up; NULL: neither. */
static struct hd__instr *fused_position(const struct matcher *f, uint32_t first, uint32_t second)
{
    if (hd__can_move(f->p, f->code, first, second))
        return &f->code->at[second];
    return hd__can_move(f->p, f->code, second, first) ? &f->code->at[first] : NULL;
}

/* Both accumulate or neither, but a first that cannot: the fused op then adds to the second's outputs alone. */
static int is_sibling(const struct matcher *f, const struct hd__fusion *row, uint32_t n, uint32_t k)
{
    const struct hd__instr *first = &f->code->at[n], *second = &f->code->at[k];
    if (first->op != row->first || !same_schedule(row, first, second) ||
        (hd__op(first->op)->flags & HD__OP_ACCUMULATES && accumulation_of(first) != accumulation_of(second)))
        return 0;
    for (uint32_t i = 0; row->same[i]; i++)
        if (first->in[HD__FUSION_OPERAND(row->same[i])] != second->in[i])
            return 0;
    return row->fits(f->p, first, second) && fused_position(f, k, n);
}

static void note_readers(struct matcher *f, uint32_t k)
{
    for (uint32_t n = 0; n < f->code->at[k].n_in; n++) {
        struct readers *r = &f->readers[f->code->at[k].in[n]];
        r->first = HD__MIN(r->first, k);
        r->last = HD__MAX(r->last, k);
    }
}

static void find_readers(struct matcher *f)
{
    f->readers = hd__alloc(f->p->tensors.count * sizeof *f->readers);
    for (uint32_t t = 0; t < f->p->tensors.count; t++)
        f->readers[t].first = UINT32_MAX;
    for (uint32_t k = 0; k < f->code->count; k++)
        note_readers(f, k);
}

/* The nearest sibling with which the second may stand together. It reads the second's first input. */
static struct hd__instr *find_sibling(const struct matcher *f, const struct hd__fusion *row, uint32_t k)
{
    struct hd__instr *second = &f->code->at[k];
    struct readers r = f->readers[second->in[0]];
    for (uint32_t n = 1; (k + n <= r.last || r.first + n <= k) && !(accumulation_of(second) & HD_ATTR_ONCE); n++) {
        if (k + n <= r.last && is_sibling(f, row, k + n, k))
            return second + n;
        if (n <= k && is_sibling(f, row, k - n, k))
            return second - n;
    }
    return NULL;
}

/* `link`: the second's input that the first makes. */
static void replace(struct matcher *f, const struct hd__fusion *row, struct hd__instr *first, struct hd__instr *second,
                    struct hd__instr *place, uint32_t link)
{
    struct hd__instr part[] = {*first, *second}, one = row->flags & HD__FUSION_AS_FIRST ? *first : *second;
    if (link != row->link)
        part[1].in[link] = part[1].in[row->link];
    if (row->flags & HD__FUSION_SIBLINGS)
        one.attrs = second->attrs;
    one.op = row->op;
    one.n_in = one.n_out = 0;
    for (; row->in[one.n_in]; one.n_in++)
        one.in[one.n_in] = part[HD__FUSION_PART(row->in[one.n_in])].in[HD__FUSION_OPERAND(row->in[one.n_in])];
    for (; row->out[one.n_out]; one.n_out++)
        one.out[one.n_out] = part[HD__FUSION_PART(row->out[one.n_out])].out[HD__FUSION_OPERAND(row->out[one.n_out])];
    if (row->flags & HD__FUSION_MAY_DROP && f->use[one.out[one.n_out - 1]].count == 1)
        one.n_out--;
    first->op = second->op = 0;
    *place = one;
    note_readers(f, (uint32_t)(place - f->code->at));
    for (uint32_t n = 0; n < one.n_out; n++)
        f->use[one.out[n]].maker = (uint32_t)(place - f->code->at) + 1;
}

static int fuse_pair(struct matcher *f, const struct hd__fusion *row, uint32_t k, uint32_t link)
{
    struct hd__instr *second = &f->code->at[k], *place;
    int siblings = row->flags & HD__FUSION_SIBLINGS;
    struct hd__instr *first = siblings ? find_sibling(f, row, k) : find_maker(f, row, k, link);
    if (!first)
        return 0;
    place = siblings ? fused_position(f, k, (uint32_t)(first - f->code->at))
                     : fused_position(f, (uint32_t)(first - f->code->at), k);
    if (place)
        replace(f, row, first, second, place, link);
    return place != NULL;
}

void hd__fuse_patterns(struct hd_program *p, hd__code *code)
{
    struct matcher f = {p, code, hd__count_uses(p, code), NULL};
    find_readers(&f);
    for (uint32_t r = 0; r < hd__n_fusions; r++)
        for (uint32_t k = 0; k < code->count; k++) {
            const struct hd__fusion *row = &hd__fusions[r];
            int either = row->flags & HD__FUSION_EITHER_INPUT;
            if (!row->first || !(p->fusions >> r & 1) || code->at[k].op != row->second)
                continue;
            if (!either || !fuse_pair(&f, row, k, !row->link))
                fuse_pair(&f, row, k, row->link);
        }
    hd__code_compact(code);
    free(f.readers);
    free(f.use);
}
