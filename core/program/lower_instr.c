/* Lowers one instruction of one rank: local shapes, addresses, and what depends on the rank's coordinates. */
#include "core/program/ops.h"
#include "core/program/program.h"

static const char phase_letter[] = "FRBWO";

void *hd__tensor_address(const struct hd_program *p, hd_tensor id, const int32_t coord[HD_AXIS_COUNT], void *arena)
{
    const struct hd__tensor *t = hd__tensor_const(p, id);
    int64_t at = t->offset, stride = 1;
    if (!arena || !t->buffer || p->buffers.at[t->buffer].offset < 0)
        return NULL;
    for (int32_t i = t->ndim - 1; i >= 0 && t->shard_view; i--) {
        at += hd__global_start(p, t, i, coord) * stride;
        stride *= p->dims.at[t->dim[i]].extent;
    }
    return (char *)arena + p->arena_base[p->buffers.at[t->buffer].memory] + p->buffers.at[t->buffer].offset +
           at * (int64_t)hd_dtype_size(t->dtype);
}

/* Dims have one byte in operands. Those of flat buffers and of strategies, too many for that, are 255, 254, ... in the
 * order in which an instruction has them. */
enum { OWN_NAME = 192 };

struct names {
    uint16_t dim[255 - OWN_NAME];
    uint8_t n;
};

static uint8_t short_dim(struct names *names, uint16_t dim)
{
    uint8_t k = 0;
    if (dim < OWN_NAME)
        return (uint8_t)dim;
    while (k < names->n && names->dim[k] != dim)
        k++;
    if (k == names->n)
        names->dim[names->n++] = dim;
    return (uint8_t)(255 - k);
}

static void operand(const struct hd_program *p, hd_tensor id, const int32_t coord[HD_AXIS_COUNT], void *arena,
                    struct names *names, struct hd_operand *o)
{
    const struct hd__tensor *t = hd__tensor_const(p, id);
    *o = (struct hd_operand){.data = hd__tensor_address(p, id, coord, arena), .dtype = t->dtype, .ndim = t->ndim};
    for (int32_t i = 0; i < t->ndim; i++) {
        o->dim[i] = short_dim(names, t->dim[i]);
        o->extent[i] = hd__local_extent(p, t, i);
        o->start[i] = hd__global_start(p, t, i, coord);
    }
}

/* This rank's index along the axes of a local conversion, the outermost axis major. */
static uint32_t shard_index(const struct hd_program *p, uint32_t axes, const int32_t coord[HD_AXIS_COUNT])
{
    uint32_t part = 0;
    for (int32_t a = 0; a < HD_AXIS_COUNT; a++)
        if (axes & HD_AXIS_BIT(a))
            part = part * (uint32_t)p->mesh.size[a] + (uint32_t)coord[a];
    return part;
}

/* Global position of keys and values in a ring: that of the member `steps` back, which they come from. */
static void set_ring_origin(const struct hd_program *p, const struct hd__instr *i, const int32_t coord[HD_AXIS_COUNT],
                            hd_tensor id, struct hd_operand *o)
{
    const struct hd__tensor *t = hd__tensor_const(p, id);
    int32_t home[HD_AXIS_COUNT], axis = __builtin_ctz(i->axes), n = p->mesh.size[axis];
    memcpy(home, coord, sizeof home);
    home[axis] = (coord[axis] + n - i->tag % n) % n;
    for (int32_t d = 0; d < t->ndim; d++)
        o->start[d] = hd__global_start(p, t, d, home);
}

/* Entries of a padded vocabulary that count; 0: it is not padded. */
static int64_t vocabulary(const struct hd_program *p, hd_tensor logits)
{
    const struct hd__tensor *z = hd__tensor_const(p, logits);
    const struct hd__dim *dim = &p->dims.at[z->dim[z->ndim - 1]];
    return dim->used < dim->extent ? dim->used : 0;
}

static void attributes(const struct hd_program *p, const struct hd__instr *i, const int32_t coord[HD_AXIS_COUNT],
                       struct names *names, struct hd_attrs *a)
{
    if (i->attrs)
        *a = *i->attrs;
    else
        memset(a, 0, sizeof *a);
    a->struct_size = sizeof *a;
    a->peer = -1;
    a->zigzag_parts = hd__zigzag_parts(p);
    a->zigzag_length = a->zigzag_parts ? p->dims.at[p->letter['s']].extent : 0;
    if (i->redop)
        a->redop = i->redop;
    if (i->from)
        a->from = short_dim(names, i->from);
    if (i->to)
        a->to = short_dim(names, i->to);
    if (hd__op(i->op)->class == HD__CLASS_LOCAL) {
        a->index = shard_index(p, i->axes, coord);
        a->parts = (uint32_t)hd__mesh_ways(&p->mesh, i->axes);
    }
    if (i->op == HD_OP_ROWMAX || i->op == HD_OP_XENT_LOCAL || i->op == HD_OP_XENT_GRAD)
        a->window = vocabulary(p, i->in[0]);
    if (i->op == HD_OP_BLEND && i->axes)
        a->parts = (uint32_t)hd__mesh_ways(&p->mesh, i->axes);
    if (hd__op(i->op)->class == HD__CLASS_P2P) {
        int32_t there[HD_AXIS_COUNT];
        memcpy(there, coord, sizeof there);
        there[HD_AXIS_PP] = i->peer;
        a->peer = hd__mesh_rank(&p->mesh, there);
    }
}

/* "L3 F attention #118": the number is its position in its section, as explain prints it. */
static void label(const struct hd_program *p, const struct hd__instr *i, char out[64])
{
    uint32_t number = i->id;
    for (uint32_t s = 0; s < p->sections.count; s++) {
        const hd__code *code = &p->sections.at[s].code;
        if (i >= code->at && i < code->at + code->count)
            number = (uint32_t)(i - code->at);
    }
    snprintf(out, 64, "%.32s%s%c %s #%u", p->blocks.at[i->block], *p->blocks.at[i->block] ? " " : "",
             phase_letter[i->phase], hd__instr_name(i), number);
}

/* The logits, or their gradient. */
static int of_logits(const struct hd_program *p, hd_tensor id)
{
    const struct hd__tensor *t = hd__tensor_const(p, id);
    return p->logits && (t->origin == p->logits || t->grad_of == p->logits);
}

static void roles(const struct hd_program *p, const struct hd__instr *i, struct hd_instr_desc *desc)
{
    int logits = 0;
    for (uint32_t k = 0; k < i->n_in; k++) {
        desc->grads |= (uint32_t)(hd__tensor_const(p, i->in[k])->grad_of != 0) << k;
        logits |= of_logits(p, i->in[k]);
    }
    for (uint32_t k = 0; k < i->n_out; k++)
        logits |= of_logits(p, i->out[k]);
    desc->flags = (logits ? HD_INSTR_LOGITS : 0) | (p->exact ? HD_INSTR_EXACT : 0);
}

/* Parameters in the flat buffer of an update, for an optimizer's own step. */
static void parameters(const struct hd_program *p, const struct hd__instr *i, struct hd_instr_desc *desc)
{
    const struct hd__flat *f = hd__flat_of_update(p, i);
    if (!f)
        return;
    desc->params = f->optim;
    desc->n_params = f->n_params;
}

void hd__instr_lower(const struct hd_program *p, const struct hd__instr *i, const int32_t coord[HD_AXIS_COUNT],
                     void *arena, struct hd_instr_desc *desc, struct hd_operand *in, struct hd_operand *out)
{
    struct names names = {.n = 0};
    *desc = (struct hd_instr_desc){
        .struct_size = sizeof *desc, .op = i->op, .n_in = i->n_in, .n_out = i->n_out, .in = in, .out = out};
    for (uint32_t k = 0; k < i->n_in; k++)
        operand(p, i->in[k], coord, arena, &names, &in[k]);
    for (uint32_t k = 0; k < i->n_out; k++)
        operand(p, i->out[k], coord, arena, &names, &out[k]);
    int gradient = i->op == HD_OP_ATTENTION_GRAD, ring = (i->op == HD_OP_ATTENTION || gradient) && i->axes;
    for (uint32_t k = 1; k <= 2 && ring; k++) { /* k, v; dk, dv */
        set_ring_origin(p, i, coord, i->in[k], &in[k]);
        if (gradient)
            set_ring_origin(p, i, coord, i->out[k], &out[k]);
    }
    attributes(p, i, coord, &names, &desc->attrs);
    roles(p, i, desc);
    if (i->op == HD_OP_OPTIM_STEP)
        parameters(p, i, desc);
    desc->custom = i->custom;
    label(p, i, desc->label);
}
