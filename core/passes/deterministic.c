/* Sums in an order that no mesh changes (`deterministic: exact`). The micro-batches of a step form one sequence, of
 * which data rank r has the run from r A to (r + 1) A. Gradients and losses are added in the binary tree over that
 * sequence: first within a rank, where a tree of adds replaces accumulation, then across ranks, in the order that
 * heddle/comm.h prescribes to every transport. So the tree does not depend on the number of data ranks, as long as all
 * counts are powers of two.
 *
 * A parameter that two blocks use (tied embeddings) has a tree for each of them, since they may be on two pipeline
 * stages: a strategy sums each over all data ranks, and then adds the two. A sum of two has no order.
 *
 *   hd__exact_partition   a step without a pipeline becomes one stage's actions: every micro-batch has its own
 *                         instructions
 *   hd__exact_sums        accum, accum, ... -> adds, and one accum
 *   hd__exact_reduce      checks that gradients are not compressed and weights not rounded by random numbers, and sums
 *                         the norm of gradients independently of the order: HD_OP_SUMSQ */
#include <math.h>
#include <stdlib.h>

#include "core/base/dtype.h"
#include "core/passes/passes.h"
#include "core/passes/strategy_api.h"
#include "core/program/ops.h"

void hd__exact_partition(struct hd_program *p)
{
    uint32_t n = hd__pass_n_blocks(p), micros = (uint32_t)p->accumulation;
    uint32_t *chunk_of_block, stage = 0;
    struct hd_action *list;
    if (p->pipeline)
        return;
    chunk_of_block = hd__alloc(n * sizeof *chunk_of_block);
    list = hd__alloc(2 * micros * sizeof *list);
    for (uint32_t m = 0; m < micros; m++) {
        list[2 * m] = (struct hd_action){.kind = HD_ACTION_F, .micro = m};
        list[2 * m + 1] = (struct hd_action){.kind = HD_ACTION_B, .micro = m};
    }
    hd__pass_chunks(p, 1, &stage, chunk_of_block);
    hd__pass_actions(p, 0, list, 2 * micros);
    free(list);
    free(chunk_of_block);
}

/* ---- trees within a rank: nodes on the left edge of a tree are the accumulator itself: the leaf of the first
 * micro-batch initialises it, and every later one adds its right half. Pending halves: one per level of the tree, less
 * one. */

enum { IN_ACCUMULATOR = UINT32_MAX };

struct sums {
    struct hd_program *p;
    uint32_t leaves;  /* micro-batches of this rank: a power of two */
    size_t rows;      /* trees: the loss, and two of each parameter */
    uint16_t *first;  /* by parameter: the block of its first part, + 1 */
    uint32_t *left;   /* [rows][leaves]: contributions still to come */
    hd_tensor *value; /* [rows][2 leaves]: nodes of the tree, its root at 1, its leaves from `leaves` on */
    hd__code out;
};

/* Row + 1 of the sum that the instruction contributes to; 0: none. */
static uint32_t tree_of(const struct sums *s, const struct hd__instr *i)
{
    uint32_t param = i->op == HD_OP_ACCUM ? hd__tensor_const(s->p, i->out[0])->param : 0;
    if (!param)
        return i->op == HD_OP_ACCUM && i->out[0] == s->p->loss_sum;
    return 2 * param + (s->p->params.at[param - 1].parts && s->first[param - 1] != i->block + 1);
}

static hd_tensor emit_add(struct sums *s, const struct hd__instr *accum, hd_tensor a, hd_tensor b, uint8_t flag)
{
    struct hd__instr i = *accum;
    struct hd__tensor sum = *hd__tensor_const(s->p, a);
    sum.name = hd__arena_format(&s->p->arena, "sum.%u", s->p->tensors.count);
    sum.value_number += hd__tensor_const(s->p, b)->value_number;
    i.id = ++s->p->next_id;
    i.op = HD_OP_ADD;
    i.flags |= flag;
    i.n_in = 2;
    i.in[0] = a;
    i.in[1] = b;
    i.out[0] = hd__tensor_new(s->p, &sum);
    hd__push(&s->out, i);
    return i.out[0];
}

/* All accums belong to the last micro-batch: a strategy that reduces in every micro-batch reduces once. */
static hd_tensor emit_accum(struct sums *s, const struct hd__instr *accum, hd_tensor value)
{
    struct hd__instr i = *accum;
    i.id = ++s->p->next_id;
    i.in[0] = value;
    i.micro = (int16_t)(s->leaves - 1);
    hd__push(&s->out, i);
    return IN_ACCUMULATOR;
}

static int left_edge(uint32_t node)
{
    return (node & (node - 1)) == 0;
}

/* Adds a leaf to the tree, and every node that is then complete. */
static void add_leaf(struct sums *s, const struct hd__instr *accum, hd_tensor *node, hd_tensor value)
{
    uint32_t at = s->leaves + (uint32_t)accum->micro;
    for (node[at] = left_edge(at) ? emit_accum(s, accum, value) : value; at > 1 && node[at ^ 1]; at /= 2)
        node[at / 2] = left_edge(at / 2)
                           ? emit_accum(s, accum, node[at | 1])
                           : emit_add(s, accum, node[at & ~1u], node[at | 1], at >= s->leaves ? HD__FLAG_LEAVES : 0);
}

static void build_trees(struct sums *s, const hd__code *code)
{
    hd_tensor *part = hd__alloc(s->rows * s->leaves * sizeof *part); /* sums within a leaf that has several terms */
    for (uint32_t k = 0; k < code->count; k++)
        if (tree_of(s, &code->at[k]))
            s->left[(tree_of(s, &code->at[k]) - 1) * s->leaves + (uint32_t)code->at[k].micro]++;
    for (uint32_t k = 0; k < code->count; k++) {
        const struct hd__instr *i = &code->at[k];
        uint32_t row = tree_of(s, i), at = row ? (row - 1) * s->leaves + (uint32_t)i->micro : 0;
        if (!row) {
            hd__push(&s->out, *i);
            continue;
        }
        part[at] = part[at] ? emit_add(s, i, part[at], i->in[0], HD__FLAG_LEAF) : i->in[0];
        if (--s->left[at] == 0)
            add_leaf(s, i, s->value + (size_t)(row - 1) * 2 * s->leaves, part[at]);
    }
    free(part);
}

/* In how many blocks is each parameter used? All stages must say the same, so the template is asked. */
static int32_t count_blocks(struct sums *s, struct hd_error *err)
{
    struct hd_program *p = s->p;
    uint16_t *last = hd__alloc(p->params.count * sizeof *last + 1);
    for (uint32_t k = 0; k < p->template.count; k++) {
        const struct hd__instr *i = &p->template.at[k];
        uint32_t param = i->op == HD_OP_ACCUM ? hd__tensor_const(p, i->out[0])->param : 0;
        uint16_t block = i->block + 1;
        if (!param || last[param - 1] == block)
            continue;
        if (!s->first[param - 1])
            s->first[param - 1] = block;
        last[param - 1] = block;
        p->params.at[param - 1].parts++;
    }
    free(last);
    for (uint32_t n = 0; n < p->params.count; n++) {
        struct hd__param *param = &p->params.at[n];
        if (param->parts > 2 && __builtin_popcountll(param->stages) > 1)
            return hd_fail(err, HD_E_UNSUPPORTED,
                           "%s is used in %u blocks and in several pipeline stages, each of which sums its part of the "
                           "gradient, so sums would depend on mesh.pp: use mesh.pp: 1",
                           param->desc.name, param->parts);
        param->parts = param->parts == 2 ? 2 : 0;
    }
    return HD_OK;
}

int32_t hd__exact_sums(struct hd_program *p, struct hd_error *err)
{
    struct hd__code_section *step = hd__program_section_of(p, HD__SECTION_STEP);
    struct sums s = {.p = p, .leaves = (uint32_t)p->accumulation, .rows = 2 * (size_t)p->params.count + 1};
    s.first = hd__alloc(p->params.count * sizeof *s.first + 1);
    int32_t rc = count_blocks(&s, err);
    if (!rc) {
        s.left = hd__alloc(s.rows * s.leaves * sizeof *s.left);
        s.value = hd__alloc(s.rows * 2 * s.leaves * sizeof *s.value);
        build_trees(&s, &step->code);
        free(step->code.at);
        step->code = s.out;
    }
    free(s.first);
    free(s.left);
    free(s.value);
    return rc;
}

/* ---- after the strategies */

/* The digits replace norm2 among the sums that a step clears. */
static hd_tensor new_digits(struct hd_program *p)
{
    struct hd__tensor t = *hd__tensor_const(p, p->norm2);
    hd__code *begin = &hd__program_section_of(p, HD__SECTION_BEGIN)->code;
    t.name = "norm2.digits";
    t.ndim = 1;
    t.dim[0] = hd__dim_new(p, "#digits", HD_SUM_DIGITS);
    t.buffer = hd__buffer_new(p, t.name, HD_SUM_DIGITS * sizeof(double), HD__LIFE_PERSISTENT);
    hd_tensor digits = hd__tensor_new(p, &t);
    for (uint32_t k = 0; k < begin->count; k++)
        if (begin->at[k].op == HD_OP_FILL0 && begin->at[k].out[0] == p->norm2)
            begin->at[k].out[0] = digits;
    return digits;
}

/* Digits add without rounding if the weight of each square is a power of two, or zero. */
static int32_t check_weights(const struct hd__instr *i, struct hd_error *err)
{
    int unused;
    for (uint64_t k = 0; i->op == HD_OP_SUMSQ && k < i->attrs->n_ranges; k++)
        if (i->attrs->ranges[k].value != 0 && frexp(i->attrs->ranges[k].value, &unused) != 0.5)
            return hd_fail(err, HD_E_UNSUPPORTED,
                           "%g ranks have copies of a parameter, so its part of the gradient's norm would be rounded: "
                           "use sizes of mesh.tp, cp and ep that are powers of two",
                           1 / i->attrs->ranges[k].value);
    return HD_OK;
}

/* Inserts an instruction at this position. */
static void insert_instr(hd__code *code, uint32_t at, struct hd__instr i)
{
    i.phase = HD__PHASE_O;
    i.block = 0;
    hd__push(code, i);
    memmove(&code->at[at + 1], &code->at[at], (code->count - 1 - at) * sizeof i);
    code->at[at] = i;
}

/* The norm is summed in digits, over shards and ranks, and they are added at the end. */
static int32_t sum_in_digits(struct hd_program *p, struct hd_error *err)
{
    hd__code *code = &hd__program_section_of(p, HD__SECTION_UPDATE)->code;
    struct hd__instr total = hd__instr_new(p, HD_OP_TOTAL);
    uint32_t at = 0;
    for (uint32_t k = 0; k < code->count; k++) {
        struct hd__instr *i = &code->at[k];
        if (!i->n_out || i->out[0] != p->norm2)
            continue;
        if (check_weights(i, err))
            return err->code;
        p->norm_digits = p->norm_digits ? p->norm_digits : new_digits(p);
        i->out[0] = p->norm_digits;
        i->in[0] = i->op == HD_OP_ALL_REDUCE ? p->norm_digits : i->in[0];
        at = k + 1;
    }
    if (!at)
        return HD_OK;
    struct hd_attrs *attrs = hd__attrs_new(p, NULL);
    attrs->scale = 1;
    total.attrs = attrs;
    total.in[total.n_in++] = p->norm_digits;
    total.out[total.n_out++] = p->norm2;
    insert_instr(code, at, total);
    return HD_OK;
}

/* Compressed gradients are refused: their rounding depends on the number of ranks. */
static int is_compressed(const struct hd_program *p, const struct hd__instr *i)
{
    uint8_t dtype = i->n_in ? hd__tensor_const(p, i->in[0])->dtype : 0;
    int sums = i->op == HD_OP_ALL_REDUCE || i->op == HD_OP_REDUCE_SCATTER;
    return hd__instr_sum(i) == HD__SUM_ENCODED || i->op == HD_OP_ORTHOGONALISE ||
           (sums && hd__is_narrow(dtype) && dtype != p->precision.grad);
}

int32_t hd__exact_reduce(struct hd_program *p, struct hd_error *err)
{
    if (p->update_rule && p->update_rule->flags & HD_ATTR_STOCHASTIC)
        return hd_fail(err, HD_E_UNSUPPORTED,
                       "optimizer.rounding must not be stochastic: its random numbers are those of a position in a "
                       "flat buffer, which stages of zero and of a pipeline lay out differently");
    for (uint32_t s = 0; s < p->sections.count; s++)
        for (uint32_t k = 0; k < p->sections.at[s].code.count; k++)
            if (is_compressed(p, &p->sections.at[s].code.at[k]))
                return hd_fail(err, HD_E_UNSUPPORTED,
                               "gradients must not travel compressed: "
                               "leave out `compress`, and a strategy that encodes them");
    return sum_in_digits(p, err);
}
