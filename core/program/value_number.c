/* Value numbering, as in a compiler's GVN: a value number is a hash of the expression that computes a tensor. That of
 * an op's output hashes the op, its attributes and the numbers of its inputs; a parameter, an input, or a message from
 * another stage has a number of its own. Ops that only move, slice or concatenate keep the number. A sum has the sum of
 * its terms' numbers: the order and place of addition do not matter, but every term counts once. A fused op has the
 * number of the chain that it replaces.
 *
 * The lowered program is numbered before anything is fused, reordered, moved or sent; verify numbers the final program
 * and compares. So a pass that reads the wrong tensor, gathers other parameters, or loses a term is found at the
 * instruction that does it. Sharding is not seen here: placement.c checks which shard a rank has. */
#include "core/program/value_number.h"

#include <stdlib.h>

#include "core/program/access.h"
#include "core/program/fusion.h"
#include "core/program/ops.h"

/* ---- expressions */

enum { OF_PARAM = HD_OP_LIMIT, OF_FLAT, OF_ATTRS }; /* behind all ops */

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

static uint64_t attrs_value(const struct hd_attrs *a)
{
    const struct hd_attrs neutral = {.struct_size = sizeof neutral};
    a = a ? a : &neutral;
    const double real[] = {a->scale, a->eps, a->share, a->z_scale};
    const int64_t whole[] = {a->sign, a->window, a->zigzag_parts, a->zigzag_length, a->top_k};
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

/* See fuse_loss_head.c. The factor of the loss's gradient is left out: loss_scale.c adds it later. */
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

static uint64_t output_value(const struct hd_program *p, const struct hd__instr *i, uint32_t k, const uint64_t *in);

/* The value of output k: that of the instruction of the pair that makes it. */
static uint64_t fused_value(const struct hd_program *p, const struct hd__fusion *row, const struct hd__instr *i,
                            uint32_t k, const uint64_t *in)
{
    struct hd__instr part[2] = {{.op = row->first}, {.op = row->second}};
    uint64_t read[2][HD_MAX_IN] = {{0}}, made;
    part[!(row->flags & HD__FUSION_AS_FIRST)].attrs = i->attrs;
    for (uint32_t n = 0; n < i->n_in && row->in[n]; n++) {
        uint32_t of = HD__FUSION_PART(row->in[n]), operand = HD__FUSION_OPERAND(row->in[n]);
        read[of][operand] = in[n];
        part[of].n_in = (uint8_t)HD__MAX(part[of].n_in, operand + 1);
    }
    made = output_value(p, &part[0], 0, read[0]);
    read[1][row->link] = row->flags & HD__FUSION_SIBLINGS ? read[0][0] : made;
    part[1].n_in = (uint8_t)HD__MAX(part[1].n_in, row->link + 1);
    return HD__FUSION_PART(row->out[k]) ? output_value(p, &part[1], 0, read[1]) : made;
}

/* The value of output k of instruction i on these inputs; of an accumulation, that of the term added. */
static uint64_t output_value(const struct hd_program *p, const struct hd__instr *i, uint32_t k, const uint64_t *in)
{
    const struct hd__fusion *fused = hd__fusion_of(i->op);
    uint64_t sum = 0;
    switch (i->op) {
    case HD_OP_ADD:
        for (uint32_t n = 0; n < i->n_in; n++)
            sum += in[n];
        return sum;
    case HD_OP_FILL0:
        return 0;
    case HD_OP_ACCUM:
    case HD_OP_COPY:
    case HD_OP_SLICE:
    case HD_OP_MASK:
    case HD_OP_PAD:
        return in[0];
    case HD_OP_FEED:
        return hd__hash(hd__tensor_const(p, i->out[k])->name, strlen(hd__tensor_const(p, i->out[k])->name),
                        mix(i->op, (uint64_t)i->micro));
    case HD_OP_RECV:
        return mix(i->op, (uint64_t)i->tag << 32 | hd__stream_way(i) << 16 | (uint16_t)i->peer);
    case HD_OP_SPREAD:
        return op_value(i->op, k, i->attrs, 0, NULL);
    case HD_OP_XENT_HEAD:
        return loss_head_value(i, k, in);
    default:
        if (hd__is_collective(i->op))
            return in[0];
        if (fused)
            return fused_value(p, fused, i, k, in);
        sum = op_value(i->op, k, i->attrs, i->n_in, in);
        return i->tag ? mix(sum, i->tag) : sum;
    }
}

/* Is input n a parameter? Accumulators of parameters hold gradients. */
int hd__value_number_reads_weight(const struct hd__value_numbers *m, const struct hd__instr *i, uint32_t n)
{
    const struct hd__tensor *t = hd__tensor_const(m->p, i->in[n]);
    return t->param && (t->role == HD__ROLE_PARAM || t->role == HD__ROLE_FLAT) && i->op != HD_OP_ADD;
}

static uint64_t read_value(const struct hd__value_numbers *m, const struct hd__instr *i, uint32_t n)
{
    return hd__value_number_reads_weight(m, i, n) ? mix(OF_PARAM, hd__tensor_const(m->p, i->in[n])->param)
                                                  : m->value[i->in[n]];
}

/* Numbers the outputs; contribution: the number that each gets, or that is added to it. */
void hd__value_number_outputs(struct hd__value_numbers *m, const struct hd__instr *i, uint64_t contribution[HD_MAX_OUT])
{
    int update = hd__op(i->op)->class == HD__CLASS_UPDATE;
    uint64_t in[HD_MAX_IN];
    for (uint32_t n = 0; n < i->n_in; n++)
        in[n] = read_value(m, i, n);
    for (uint32_t k = 0; k < i->n_out; k++)
        contribution[k] = update ? 0 : output_value(m->p, i, k, in);
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
        m->sends_value += mix(i->tag, in[0]);
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
    m->shard_of = hd__flats_by_shard(p);
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
    free(m->shard_of);
    free(m);
}

/* ---- the lowered program */

/* Records a section's contributions: to gradients in `walks` rounds of it; to the loss, and in messages, in one. */
static void annotate(struct hd__value_numbers *m, struct hd_program *p, struct hd__code_section *s, uint64_t walks)
{
    uint64_t contribution[HD_MAX_OUT];
    s->loss_value = m->sends_value = 0;
    for (uint32_t n = 0; n < s->code.count; n++) {
        const struct hd__instr *i = &s->code.at[n];
        hd__value_number_outputs(m, i, contribution);
        for (uint32_t k = 0; k < i->n_out; k++) {
            uint32_t param = hd__tensor_const(p, i->out[k])->param;
            if (param && i->op == HD_OP_ACCUM)
                p->params.at[param - 1].gradient_value += walks * contribution[k];
            else if (hd__tensor_const(p, i->out[k])->role == HD__ROLE_ACT ||
                     hd__tensor_const(p, i->out[k])->role == HD__ROLE_INPUT)
                hd__tensor_at(p, i->out[k])->value_number = m->value[i->out[k]];
            if (i->op == HD_OP_ACCUM && i->out[k] == p->loss_sum)
                s->loss_value += contribution[k];
        }
    }
    s->sends_value = m->sends_value;
}

void hd__value_numbers_annotate(struct hd_program *p)
{
    struct hd__value_numbers *m = hd__value_numbers_create(p);
    for (uint32_t s = 0; s < p->sections.count; s++)
        annotate(m, p, &p->sections.at[s], (uint64_t)hd__section_walks(&p->sections.at[s]));
    hd__value_numbers_destroy(m);
}

void hd__value_numbers_annotate_section(struct hd_program *p, struct hd__code_section *s)
{
    struct hd__value_numbers *m = hd__value_numbers_create(p);
    annotate(m, p, s, 1);
    hd__value_numbers_destroy(m);
}
