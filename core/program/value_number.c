/* Value numbering, as in a compiler's GVN: a value number is a hash of the expression that computes a tensor. That of
 * an op's output hashes the op, its attributes and the numbers of its inputs; a parameter or an input has a number of
 * its own. Ops that only move, slice or concatenate keep the number. A sum has the sum of its terms' numbers: the order
 * and place of addition do not matter, but every term counts once. A fused op has the number of the chain that it
 * replaces.
 *
 * The template is numbered before anything is recomputed, cut into tiles, instantiated for micro-batches, fused,
 * reordered, moved or sent; verify numbers the final program and compares. So a pass that reads the wrong tensor or
 * micro-batch, gathers other parameters, or loses a term is found at the instruction that does it. A received tensor
 * has the number that its tensor was promised; machine.c compares it with the sender's. Sharding is not seen here:
 * placement.c checks which shard a rank has. */
#include "core/program/value_number.h"

#include <stdlib.h>

#include "core/program/access.h"
#include "core/program/fusion.h"
#include "core/program/ops.h"

/* ---- expressions */

enum { OF_PARAM = HD_OP_LIMIT, OF_FLAT, OF_ATTRS, OF_MICRO, OF_LSE }; /* behind all ops */

static uint64_t mix(uint64_t a, uint64_t b)
{
    uint64_t both[2] = {a, b};
    return hd__hash(both, sizeof both, 0);
}

/* Part 0: weights, in whatever precision; 1 and up: states. */
uint64_t hd__value_number_of_flat(uint32_t flat, uint32_t part)
{
    return mix(OF_FLAT, (uint64_t)flat << 32 | part);
}

/* Values of a micro-batch's tensors are the template's times its factor (modulo 2^64), which moving and adding keep;
 * other ops see them without it. */
uint64_t hd__value_number_micro(int32_t micro)
{
    return micro < 0 ? 1 : mix(OF_MICRO, (uint64_t)micro) | 1;
}

/* Modulo 2^64, by Newton's iteration: 3 bits are right at first, and each round doubles them. */
static uint64_t inverse(uint64_t odd)
{
    uint64_t x = odd;
    for (int32_t round = 0; round < 5 && odd != 1; round++)
        x *= 2 - odd * x;
    return x;
}

uint64_t hd__value_number_message(uint16_t tag, uint64_t value)
{
    return mix(tag, value);
}

static uint64_t input_value(const struct hd_program *p, hd_tensor t)
{
    const char *name = hd__tensor_const(p, t)->name;
    return hd__hash(name, strlen(name), HD_OP_FEED);
}

static uint64_t attrs_value(const struct hd_attrs *a)
{
    const struct hd_attrs neutral = {.struct_size = sizeof neutral};
    a = a ? a : &neutral;
    const double real[] = {a->scale, a->eps, a->share, a->z_scale, a->clip};
    const uint32_t kinds = HD_ATTR_NOT_CAUSAL | HD_ATTR_INTERLEAVED;
    const int64_t whole[] = {a->sign, a->window, a->zigzag_parts, a->zigzag_length, a->top_k, a->flags & kinds};
    uint64_t value = hd__hash(real, sizeof real, OF_ATTRS);
    value = hd__hash(whole, sizeof whole, value);
    return a->n_table ? hd__hash(a->table, a->n_table * sizeof *a->table, value) : value;
}

/* Output k of an op on so many inputs. */
static uint64_t op_value(uint16_t op, uint32_t k, const struct hd_attrs *attrs, uint32_t n, const uint64_t *in)
{
    return hd__hash(in, n * sizeof *in, mix((uint64_t)op << 32 | k, attrs_value(attrs)));
}

#define VALUE(op, k, attrs, ...) \
    op_value(op, k, attrs, sizeof((uint64_t[]){__VA_ARGS__}) / sizeof(uint64_t), (uint64_t[]){__VA_ARGS__})

/* See fuse_loss_head.c. The factor of the loss's gradient is left out: lower.c adds it later. */
static uint64_t loss_head_value(const struct hd__instr *i, uint32_t k, const uint64_t *in)
{
    uint64_t x = in[0], w = in[1], labels = in[2];
    uint64_t z = VALUE(HD_OP_EINSUM, 0, NULL, x, w), m = VALUE(HD_OP_ROWMAX, 0, NULL, z);
    uint64_t l = VALUE(HD_OP_XENT_LOCAL, 0, NULL, z, m, labels), c = VALUE(HD_OP_XENT_LOCAL, 1, NULL, z, m, labels);
    uint64_t dn = op_value(HD_OP_SPREAD, 0, i->attrs, 0, NULL);
    uint64_t dl = VALUE(HD_OP_NLL_GRAD, 0, NULL, l, dn), dc = VALUE(HD_OP_NLL_GRAD, 1, NULL, l, dn);
    uint64_t dz = VALUE(HD_OP_XENT_GRAD, 0, NULL, z, m, labels, dl, dc);
    return k == 0 ? VALUE(HD_OP_NLL, 0, NULL, l, m, c) : VALUE(HD_OP_EINSUM, 0, NULL, dz, k == 1 ? w : x);
}

/* A blend of one value, with weights that sum to 1, is that value: a copy, and a mean of ranks' parameters. */
static uint64_t blend_value(const struct hd__instr *i, const uint64_t *in)
{
    double sum = 0;
    int same = i->attrs && i->attrs->n_table == i->n_in;
    for (uint32_t n = 0; n < i->n_in && same; n++) {
        sum += i->attrs->table[n];
        same &= in[n] == in[0];
    }
    return same && sum > 1 - 1e-9 && sum < 1 + 1e-9 ? in[0] : op_value(i->op, 0, i->attrs, i->n_in, in);
}

/* ---- ring attention: the value of the whole is the sum of the values of the tiles that it needs */

/* Does some query of a member see a key that has moved `step` members on? Each member has two runs of the sequence. */
static int tile_is_needed(const struct hd_program *p, const struct hd__instr *i, int64_t step)
{
    const struct hd_attrs causal = {0};
    int64_t ways = hd__mesh_ways(&p->mesh, i->axes), run = p->dims.at[p->letter['s']].extent / (2 * ways);
    for (int64_t at = 0; at < 4 * ways; at++) {
        int64_t member = at / 4, from = (member - step + ways) % ways,
                query = hd__sequence_position(p, (2 * member + at % 2) * run),
                key = hd__sequence_position(p, (2 * from + at / 2 % 2) * run);
        /* of two runs apart, the positions that are nearest */
        if (query == key || hd_attends(i->attrs ? i->attrs : &causal, query + (query < key ? run - 1 : 0),
                                       key + (key < query ? run - 1 : 0)))
            return 1;
    }
    return 0;
}

/* The tile of a rank's own keys has what those of the other steps leave. */
static uint64_t tile_value(const struct hd_program *p, const struct hd__instr *i, uint64_t whole)
{
    uint64_t rest = whole;
    if (i->tag)
        return mix(whole, i->tag);
    for (int64_t step = 1; i->axes && step < hd__mesh_ways(&p->mesh, i->axes); step++)
        rest -= tile_is_needed(p, i, step) ? mix(whole, (uint64_t)step) : 0;
    return rest;
}

/* ---- decoding: tensors of one position have the value of the tensors of all */

static uint64_t positions_value(void)
{
    static const char name[] = "positions";
    return hd__hash(name, sizeof name - 1, HD_OP_FEED);
}

static uint64_t rope_at_value(const struct hd__instr *i, const uint64_t *in)
{
    int at = i->n_in == 2 && in[1] == positions_value();
    return op_value(at ? HD_OP_ROPE : i->op, 0, i->attrs, at ? 1 : i->n_in, in);
}

/* The caches stay what the section `eval` left, and what is added to them is the same of another position. */
static uint64_t cached_value(const struct hd_program *p, const struct hd__instr *i, uint32_t k, const uint64_t *in)
{
    const uint64_t qkv[] = {in[0], in[1], in[2], in[5]};
    if (i->n_in != 6 || in[1] != in[3] || in[2] != in[4] || in[5] != positions_value())
        return op_value(i->op, k, i->attrs, i->n_in, in);
    return k ? in[2 + k] : op_value(HD_OP_ATTENTION, 0, i->attrs, p->documents ? 4 : 3, qkv);
}

/* Attention and its log-sum-exp, output 1: a multiple, so that merged tiles of both can be told to be the same. */
static uint64_t attention_value(const struct hd_program *p, const struct hd__instr *i, uint32_t k, const uint64_t *in)
{
    const uint64_t lse = mix(OF_LSE, 0) | 1;
    if (i->op == HD_OP_ATTENTION_CACHED)
        return cached_value(p, i, k, in);
    if (i->op == HD_OP_ATTENTION)
        return tile_value(p, i, op_value(i->op, 0, i->attrs, i->n_in, in)) * (k ? lse : 1);
    if (i->op == HD_OP_ATTENTION_GRAD)
        return tile_value(p, i, op_value(i->op, k, i->attrs, i->n_in, in));
    if (in[1] != in[0] * lse || in[3] != in[2] * lse)
        return op_value(i->op, k, i->attrs, i->n_in, in);
    return in[k] + in[2 + k];
}

static uint64_t output_value(const struct hd_program *p, const struct hd__instr *i, uint32_t k, const uint64_t *in);

/* The value of output k: that of the instruction of the pair that makes it. */
static uint64_t fused_value(const struct hd_program *p, const struct hd__fusion *row, const struct hd__instr *i,
                            uint32_t k, const uint64_t *in)
{
    struct hd__instr part[2] = {{.op = row->first}, {.op = row->second}};
    uint64_t read[2][HD_MAX_IN] = {{0}}, made;
    int siblings = row->flags & HD__FUSION_SIBLINGS;
    part[!(row->flags & HD__FUSION_AS_FIRST)].attrs = i->attrs;
    for (uint32_t n = 0; n < i->n_in && row->in[n]; n++) {
        uint32_t of = HD__FUSION_PART(row->in[n]), operand = HD__FUSION_OPERAND(row->in[n]);
        read[of][operand] = in[n];
        part[of].n_in = (uint8_t)HD__MAX(part[of].n_in, operand + 1);
    }
    made = output_value(p, &part[0], 0, read[0]);
    if (siblings)
        part[1].attrs = i->attrs;
    else
        read[1][row->link] = made;
    part[1].n_in = (uint8_t)HD__MAX(part[1].n_in, row->link + !siblings);
    for (; siblings && row->same[part[1].n_in]; part[1].n_in++)
        read[1][part[1].n_in] = read[0][HD__FUSION_OPERAND(row->same[part[1].n_in])];
    return HD__FUSION_PART(row->out[k]) ? output_value(p, &part[1], HD__FUSION_OPERAND(row->out[k]), read[1]) : made;
}

/* The value of output k of instruction i on these inputs; of an accumulation, that of the term added. */
static uint64_t output_value(const struct hd_program *p, const struct hd__instr *i, uint32_t k, const uint64_t *in)
{
    const struct hd__fusion *fused = hd__fusion_of(i->op);
    uint64_t sum = 0;
    switch (hd__op(i->op)->value) {
    case HD__VALUE_INPUT:
        return in[0];
    case HD__VALUE_SUM:
        for (uint32_t n = 0; n < i->n_in; n++)
            sum += in[n];
        return sum;
    case HD__VALUE_NONE:
        return 0;
    case HD__VALUE_FED:
        return input_value(p, i->out[k]);
    case HD__VALUE_ATTRS:
        return op_value(i->op, k, i->attrs, 0, NULL);
    case HD__VALUE_BLEND:
        return blend_value(i, in);
    case HD__VALUE_ATTENTION:
        return attention_value(p, i, k, in);
    case HD__VALUE_POSITION:
        return in[0] + VALUE(HD_OP_EMBED, 0, NULL, positions_value(), in[1]);
    case HD__VALUE_ROPE_AT:
        return rope_at_value(i, in);
    case HD__VALUE_LOSS_HEAD:
        return loss_head_value(i, k, in);
    default:
        return fused ? fused_value(p, fused, i, k, in) : op_value(i->op, k, i->attrs, i->n_in, in);
    }
}

/* Is input n a parameter? Accumulators of parameters hold gradients. */
int hd__value_number_reads_weight(const struct hd__value_numbers *m, const struct hd__instr *i, uint32_t n)
{
    const struct hd__tensor *t = hd__tensor_const(m->p, i->in[n]);
    return t->param && (t->role == HD__ROLE_PARAM || t->role == HD__ROLE_FLAT) && i->op != HD_OP_ADD;
}

void hd__value_number_outputs(struct hd__value_numbers *m, const struct hd__instr *i, uint64_t contribution[HD_MAX_OUT])
{
    uint64_t in[HD_MAX_IN], factor = hd__value_number_micro(i->micro), divisor = inverse(factor);
    for (uint32_t n = 0; n < i->n_in; n++)
        in[n] = hd__value_number_reads_weight(m, i, n) ? mix(OF_PARAM, hd__tensor_const(m->p, i->in[n])->param)
                                                       : m->value[i->in[n]] * divisor;
    for (uint32_t k = 0; k < i->n_out; k++)
        contribution[k] = hd__op(i->op)->value == HD__VALUE_PROMISED ? hd__tensor_const(m->p, i->out[k])->value_number
                                                                     : output_value(m->p, i, k, in) * factor;
    for (uint32_t k = 0; k < i->n_out; k++) {
        const struct hd__tensor *t = hd__tensor_const(m->p, i->out[k]);
        uint64_t value = contribution[k] + (hd__reads_output(i, k) ? m->value[i->out[k]] : 0);
        m->value[i->out[k]] = m->pinned[i->out[k]] ? m->pinned[i->out[k]] : value;
        if (t->param)
            continue;
        m->buffer_value[t->buffer] = m->value[i->out[k]];
        m->buffer_offset[t->buffer] = t->offset;
    }
    if (i->op == HD_OP_SEND)
        m->sends_value += hd__value_number_message(i->tag, m->value[i->in[0]]);
}

/* ---- initial values */

static void pin_value(struct hd__value_numbers *m, hd_tensor t, uint64_t value)
{
    m->pinned[t] = m->value[t] = m->buffer_value[hd__tensor_const(m->p, t)->buffer] = value;
    m->buffer_offset[hd__tensor_const(m->p, t)->buffer] = hd__tensor_const(m->p, t)->offset;
}

struct hd__value_numbers *hd__value_numbers_create(const struct hd_program *p)
{
    struct hd__value_numbers *m = hd__alloc(sizeof *m);
    m->p = p;
    m->value = hd__alloc(p->tensors.count * sizeof *m->value);
    m->pinned = hd__alloc(p->tensors.count * sizeof *m->pinned);
    m->buffer_value = hd__alloc(p->buffers.count * sizeof *m->buffer_value);
    m->buffer_offset = hd__alloc(p->buffers.count * sizeof *m->buffer_offset);
    m->flat_of = hd__alloc((p->params.count + 1) * sizeof *m->flat_of);
    /* The full weights come after the master weights, which may be inside them. */
    for (struct hd__flat_tensor t = {0}; hd__flat_next(p, HD__FLAT_IS_PARAM | HD__FLAT_IS_OPTIM_STATE, &t);)
        pin_value(m, t.tensor,
                  hd__value_number_of_flat(t.flat, t.kinds & HD__FLAT_IS_PARAM ? 0 : 1 + t.role - HD__FLAT_OPTIM));
    for (uint32_t n = 0; n < p->flats.count; n++)
        for (uint32_t k = 0; k < p->flats.at[n].n_params; k++)
            m->flat_of[p->flats.at[n].params[k]] = n + 1;
    for (uint32_t n = 0; n < p->offloaded.count; n++)
        pin_value(m, p->offloaded.at[n].main_copy, m->pinned[p->offloaded.at[n].home]);
    return m;
}

void hd__value_numbers_destroy(struct hd__value_numbers *m)
{
    free(m->value);
    free(m->pinned);
    free(m->buffer_value);
    free(m->buffer_offset);
    free(m->flat_of);
    free(m);
}

/* ---- the template */

static int on_stage(const struct hd_program *p, const struct hd__instr *i)
{
    return !p->pipeline || (int32_t)p->pipeline->stage[p->pipeline->chunk[i->block]] == p->stage;
}

void hd__value_numbers_promise(struct hd_program *p)
{
    struct hd__value_numbers *m = hd__value_numbers_create(p);
    uint64_t contribution[HD_MAX_OUT];
    for (size_t n = 0; n < HD__INPUTS; n++)
        if (p->inputs[n])
            hd__tensor_at(p, p->inputs[n])->value_number = m->value[p->inputs[n]] = input_value(p, p->inputs[n]);
    for (uint32_t n = 0; n < p->params.count; n++)
        p->params.at[n].gradient_value = 0;
    for (uint32_t n = 0; n < p->template.count; n++) {
        const struct hd__instr *i = &p->template.at[n];
        hd__value_number_outputs(m, i, contribution);
        for (uint32_t k = 0; k < i->n_out; k++) {
            struct hd__tensor *t = hd__tensor_at(p, i->out[k]);
            if (t->param && i->op == HD_OP_ACCUM && on_stage(p, i))
                p->params.at[t->param - 1].gradient_value += contribution[k];
            else if (t->role == HD__ROLE_ACT)
                t->value_number = m->value[i->out[k]];
        }
        if (p->loss && i->n_out && i->out[0] == p->loss && on_stage(p, i))
            p->loss_value = m->value[p->loss];
    }
    hd__value_numbers_destroy(m);
}

void hd__value_numbers_annotate(struct hd_program *p)
{
    for (uint32_t n = 0; n < p->sections.count; n++) {
        struct hd__code_section *s = &p->sections.at[n];
        uint64_t factors =
            s->kind == HD__SECTION_MICRO || s->kind == HD__SECTION_MICRO_LAST || s->kind == HD__SECTION_EVAL;
        for (int32_t micro = 0; s->kind == HD__SECTION_STEP && micro < p->accumulation; micro++)
            factors += hd__value_number_micro(micro);
        s->loss_value = p->loss_value * factors;
        if (s->kind != HD__SECTION_EVAL)
            p->micro_factors += (uint64_t)hd__section_walks(s) * factors;
    }
}
