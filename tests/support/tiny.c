/* Hand-built step programs. See tiny.h. */
#include "tests/support/tiny.h"

#include <stdlib.h>

#include "core/passes/passes.h"
#include "core/program/access.h"
#include "core/program/ops.h"
#include "core/program/value_number.h"

struct hd_program *tiny_program(int32_t pp, int32_t dp_shard, int32_t tp, int32_t stage)
{
    int32_t size[HD_AXIS_COUNT] = {[HD_AXIS_PP] = pp, [HD_AXIS_DP_REPLICATE] = 1, [HD_AXIS_DP_SHARD] = dp_shard,
                                   [HD_AXIS_CP] = 1,  [HD_AXIS_EP] = 1,           [HD_AXIS_TP] = tp,
                                   [HD_AXIS_TQ] = 1};
    struct hd__mesh mesh = hd__mesh_make(size);
    return hd__program_new(&mesh, stage);
}

uint32_t tiny_section(struct hd_program *p, const char *name, int32_t repeat)
{
    hd__push(&p->sections, ((struct hd__code_section){.name = name, .kind = hd__section_kind(name), .repeat = repeat}));
    return p->sections.count - 1;
}

hd_tensor tiny_vector(struct hd_program *p, const char *name, int64_t count)
{
    struct hd__tensor t = {.name = name, .ndim = 1, .dtype = HD_F32, .placement.redop = HD_SUM};
    t.dim[0] = hd__dim_new(p, "#n", count);
    return hd__tensor_new(p, &t);
}

hd_tensor tiny_shard(struct hd_program *p, const char *name, int64_t count, int32_t axis)
{
    hd_tensor t = tiny_vector(p, name, count * p->mesh.size[axis]);
    hd__tensor_at(p, t)->placement.shard[0] = hd__shard_push(0, axis);
    return t;
}

static uint32_t buffer_of(struct hd_program *p, hd_tensor t, uint8_t life)
{
    int64_t bytes = hd__tensor_bytes(p, hd__tensor_const(p, t));
    if (!hd__tensor_const(p, t)->buffer)
        hd__tensor_at(p, t)->buffer =
            hd__buffer_new(p, hd__tensor_const(p, t)->name, (bytes + 63) & ~(int64_t)63, life);
    return hd__tensor_const(p, t)->buffer;
}

hd_tensor tiny_state(struct hd_program *p, const char *name, int64_t count)
{
    hd_tensor t = tiny_vector(p, name, count);
    buffer_of(p, t, HD__LIFE_PERSISTENT);
    return t;
}

hd_tensor tiny_view(struct hd_program *p, const char *name, hd_tensor of, int64_t first, int64_t count)
{
    hd_tensor t = tiny_vector(p, name, count);
    hd__tensor_at(p, t)->buffer = buffer_of(p, of, HD__LIFE_TEMP);
    hd__tensor_at(p, t)->offset = hd__tensor_const(p, of)->offset + first;
    hd__tensor_at(p, t)->role = HD__ROLE_FLAT;
    return t;
}

struct hd__instr *tiny_op(struct hd_program *p, uint32_t section, uint16_t op, const hd_tensor *ins,
                          const hd_tensor *outs)
{
    struct hd__instr i = hd__instr_new(p, op);
    hd__code *code = &p->sections.at[section].code;
    while (*ins)
        i.in[i.n_in++] = *ins++;
    while (*outs)
        i.out[i.n_out++] = *outs++;
    hd__push(code, i);
    return &code->at[code->count - 1];
}

struct hd__instr *tiny_collective(struct hd_program *p, uint32_t section, uint16_t op, int32_t axis, hd_tensor in,
                                  hd_tensor out)
{
    struct hd__instr *i = tiny_op(p, section, op, T(in), T(out));
    i->axes = HD_AXIS_BIT(axis);
    i->stream = (uint16_t)(HD__STREAM_AXIS + axis);
    if (op == HD_OP_ALL_REDUCE || op == HD_OP_REDUCE_SCATTER)
        i->redop = HD_SUM;
    if (op == HD_OP_ALL_GATHER || op == HD_OP_ALL_TO_ALL)
        i->from = hd__tensor_const(p, in)->dim[0];
    if (op == HD_OP_REDUCE_SCATTER || op == HD_OP_ALL_TO_ALL)
        i->to = hd__tensor_const(p, in)->dim[0];
    return i;
}

/* One stream a peer and direction. */
static struct hd__instr *p2p(struct hd__instr *i, int32_t stage, uint16_t tag, int32_t receives)
{
    i->stream = (uint16_t)(HD__STREAM_PP + 2 * stage + receives);
    i->peer = (int16_t)stage;
    i->tag = tag;
    return i;
}

struct hd__instr *tiny_send(struct hd_program *p, uint32_t section, int32_t stage, uint16_t tag, hd_tensor t)
{
    return p2p(tiny_op(p, section, HD_OP_SEND, T(t), NONE), stage, tag, 0);
}

struct hd__instr *tiny_recv(struct hd_program *p, uint32_t section, int32_t stage, uint16_t tag, hd_tensor t)
{
    return p2p(tiny_op(p, section, HD_OP_RECV, NONE, T(t)), stage, tag, 1);
}

/* ---- a training step */

enum { BEGIN, MICRO, MICRO_LAST, UPDATE };

#define DP HD_AXIS_BIT(HD_AXIS_DP_SHARD)
#define TP HD_AXIS_BIT(HD_AXIS_TP)

struct step {
    struct hd_program *p;
    struct hd__flat *flat;
    uint16_t rows, columns, n; /* dims */
    hd_tensor params[2];
    int32_t stage;
};

static hd_tensor flat_tensor(struct step *s, const char *name, int shard, uint8_t life)
{
    struct hd__tensor t = {.name = name,
                           .ndim = 1,
                           .dtype = HD_F32,
                           .role = HD__ROLE_FLAT,
                           .dim = {s->flat->dim},
                           .placement.redop = HD_SUM};
    if (shard && s->p->mesh.size[HD_AXIS_DP_SHARD] > 1)
        t.placement.shard[0] = hd__shard_push(0, HD_AXIS_DP_SHARD);
    hd_tensor id = hd__tensor_new(s->p, &t);
    buffer_of(s->p, id, life);
    return id;
}

static hd_tensor param_view(struct step *s, hd_tensor whole, uint32_t k)
{
    struct hd__tensor t = *hd__tensor_const(s->p, s->params[k]);
    t.name = k ? "G:n" : "G:w";
    t.role = HD__ROLE_FLAT;
    t.buffer = hd__tensor_const(s->p, whole)->buffer;
    t.offset = s->flat->offset[k];
    return hd__tensor_new(s->p, &t);
}

/* x[rows, columns, n], its rows cut on dp, its columns on tp; w[columns, n] and n[n]: the sums over what they lack. */
static hd_tensor tensor_of(struct step *s, const char *name, int rows, int columns)
{
    const int32_t *size = s->p->mesh.size;
    struct hd__tensor t = {.name = name, .dtype = HD_F32, .placement.redop = HD_SUM};
    if (rows) {
        t.placement.shard[t.ndim] = size[HD_AXIS_DP_SHARD] > 1 ? hd__shard_push(0, HD_AXIS_DP_SHARD) : 0;
        t.dim[t.ndim++] = s->rows;
    }
    if (columns) {
        t.placement.shard[t.ndim] = size[HD_AXIS_TP] > 1 ? hd__shard_push(0, HD_AXIS_TP) : 0;
        t.dim[t.ndim++] = s->columns;
    }
    t.dim[t.ndim++] = s->n;
    return hd__tensor_new(s->p, &t);
}

static void add_param(struct step *s, uint32_t k, uint32_t obligation)
{
    struct hd_program *p = s->p;
    s->params[k] = tensor_of(s, k ? "n" : "w", 0, !k);
    hd__tensor_at(p, s->params[k])->role = HD__ROLE_PARAM;
    hd__tensor_at(p, s->params[k])->param = k + 1;
    hd__push(&p->params, ((struct hd__param){.tensor = s->params[k], .unreduced_axes = obligation, .stages = 1}));
}

static void add_flat(struct step *s)
{
    static uint32_t indexes[] = {0, 1};
    static int64_t offsets[] = {0, 16};
    struct hd_program *p = s->p;
    hd__push(&p->flats, ((struct hd__flat){.name = "f",
                                           .dim = hd__dim_new(p, "#f", 32),
                                           .axes = s->stage ? DP : 0,
                                           .n_params = 2,
                                           .params = indexes,
                                           .offset = offsets,
                                           .count = 32}));
    s->flat = &p->flats.at[0];
    s->flat->tensor[HD__FLAT_FULL] = flat_tensor(s, "P", 0, HD__LIFE_PERSISTENT);
    s->flat->tensor[HD__FLAT_GRAD] = s->stage < 2 ? flat_tensor(s, "G", 0, HD__LIFE_PERSISTENT) : 0;
    s->flat->tensor[HD__FLAT_SHARD] =
        s->stage ? flat_tensor(s, "GS", 1, HD__LIFE_PERSISTENT) : s->flat->tensor[HD__FLAT_GRAD];
    s->flat->tensor[HD__FLAT_MASTER] =
        s->stage ? flat_tensor(s, "M", 1, HD__LIFE_PERSISTENT) : s->flat->tensor[HD__FLAT_FULL];
}

static void backward(struct step *s, uint32_t section, hd_tensor grad)
{
    struct hd_program *p = s->p;
    hd_tensor x = tensor_of(s, "x", 1, 1);
    tiny_op(p, section, HD_OP_FILL0, NONE, T(x));
    for (uint32_t k = 0; k < 2; k++) {
        hd_tensor d = tensor_of(s, k ? "dn" : "dw", 0, !k), v = param_view(s, grad, k);
        hd__tensor_at(p, d)->placement.partial = (uint8_t)p->params.at[k].unreduced_axes;
        tiny_op(p, section, HD_OP_BIAS_DW, T(x), T(d))->phase = HD__PHASE_W;
        tiny_op(p, section, HD_OP_ACCUM, T(d), T(v))->phase = HD__PHASE_W;
    }
}

static void reduce(struct step *s, uint32_t section, hd_tensor grad, hd_tensor shard)
{
    struct hd_program *p = s->p;
    hd_tensor range = tiny_view(p, "G[16:32]", grad, 16, 16);
    if (p->mesh.size[HD_AXIS_TP] > 1)
        tiny_collective(p, section, HD_OP_ALL_REDUCE, HD_AXIS_TP, range, range);
    if (p->mesh.size[HD_AXIS_DP_SHARD] == 1)
        return;
    if (s->stage == 0)
        tiny_collective(p, section, HD_OP_ALL_REDUCE, HD_AXIS_DP_SHARD, grad, grad);
    else
        tiny_collective(p, section, HD_OP_REDUCE_SCATTER, HD_AXIS_DP_SHARD, grad, shard);
}

static void micro(struct step *s, uint32_t section, int last)
{
    struct hd_program *p = s->p;
    if (s->stage < 2) {
        backward(s, section, s->flat->tensor[HD__FLAT_GRAD]);
        if (last)
            reduce(s, section, s->flat->tensor[HD__FLAT_GRAD], s->flat->tensor[HD__FLAT_SHARD]);
        return;
    }
    hd_tensor g = flat_tensor(s, "g", 0, HD__LIFE_TEMP), part = flat_tensor(s, "gs", 1, HD__LIFE_TEMP);
    tiny_op(p, section, HD_OP_FILL0, NONE, T(g));
    backward(s, section, g);
    reduce(s, section, g, part);
    tiny_op(p, section, HD_OP_RELEASE, T(g), NONE);
    tiny_op(p, section, HD_OP_ACCUM, T(part), T(s->flat->tensor[HD__FLAT_SHARD]));
}

struct hd_program *tiny_step_raw(int32_t dp_shard, int32_t tp, int32_t stage)
{
    struct step s = {.p = tiny_program(1, dp_shard, tp, 0), .stage = stage};
    struct hd_program *p = s.p;
    uint32_t dp = dp_shard > 1 ? DP : 0;
    s.rows = hd__dim_new(p, "#rows", dp_shard);
    s.columns = hd__dim_new(p, "#columns", tp);
    s.n = hd__dim_new(p, "#n", 16);
    add_param(&s, 0, dp);
    add_param(&s, 1, dp | (tp > 1 ? TP : 0));
    add_flat(&s);
    tiny_section(p, "begin", 1);
    tiny_section(p, "micro", 2);
    tiny_section(p, "micro_last", 1);
    tiny_section(p, "update", 1);
    tiny_op(p, BEGIN, HD_OP_FILL0, NONE, T(s.flat->tensor[HD__FLAT_SHARD]));
    if (s.flat->tensor[HD__FLAT_GRAD] && s.flat->tensor[HD__FLAT_GRAD] != s.flat->tensor[HD__FLAT_SHARD])
        tiny_op(p, BEGIN, HD_OP_FILL0, NONE, T(s.flat->tensor[HD__FLAT_GRAD]));
    micro(&s, MICRO, 0);
    micro(&s, MICRO_LAST, 1);
    tiny_op(p, UPDATE, HD_OP_SGD,
            T(s.flat->tensor[HD__FLAT_SHARD], tiny_state(p, "norm2", 1), tiny_state(p, "hyper", 8)),
            T(s.flat->tensor[HD__FLAT_MASTER]));
    if (stage && dp_shard > 1)
        tiny_collective(p, UPDATE, HD_OP_ALL_GATHER, HD_AXIS_DP_SHARD, s.flat->tensor[HD__FLAT_MASTER],
                        s.flat->tensor[HD__FLAT_FULL]);
    for (uint32_t section = MICRO_LAST; section >= MICRO; section--) { /* tensors of both, and what one of them adds */
        p->template = p->sections.at[section].code;
        hd__value_numbers_promise(p);
    }
    p->template = (hd__code){0};
    hd__value_numbers_annotate(p);
    return p;
}

void tiny_finish(struct hd_program *p)
{
    struct hd_error err = HD_ERROR_INIT;
    if (hd__schedule_instrs(p, &err) || hd__memory_plan(p, &err))
        hd__die("%s", err.message);
}

struct hd_program *tiny_step(int32_t dp_shard, int32_t tp, int32_t stage)
{
    struct hd_program *p = tiny_step_raw(dp_shard, tp, stage);
    tiny_finish(p);
    return p;
}

uint32_t tiny_find(const struct hd_program *p, uint32_t section, uint16_t op, const char *tensor, uint32_t nth)
{
    const hd__code *code = &p->sections.at[section].code;
    for (uint32_t n = 0; n < code->count; n++)
        if (code->at[n].op == op &&
            (!tensor || !strcmp(hd__tensor_const(p, hd__instr_tensor(&code->at[n]))->name, tensor)) && nth-- == 0)
            return n;
    hd__die("no such instruction");
}

static void erase(hd__code *code, uint32_t at)
{
    memmove(code->at + at, code->at + at + 1, (code->count - at - 1) * sizeof *code->at);
    code->count--;
}

void tiny_drop(struct hd_program *p, uint32_t section, uint32_t at)
{
    hd__code *code = &p->sections.at[section].code;
    uint32_t id = code->at[at].id;
    erase(code, at);
    for (uint32_t n = code->count; n-- > 0;)
        if (code->at[n].op == HD_OP_WAIT && code->at[n].wait == id)
            erase(code, n);
}

void tiny_insert(struct hd_program *p, uint32_t section, uint32_t at, struct hd__instr i)
{
    hd__code *code = &p->sections.at[section].code;
    hd__push(code, i);
    memmove(code->at + at + 1, code->at + at, (code->count - at - 1) * sizeof *code->at);
    code->at[at] = i;
}

/* ---- printing */

char *tiny_listing(const struct hd_program *p, uint32_t section)
{
    const struct hd__code_section *s = &p->sections.at[section];
    struct hd__text text = {0};
    uint32_t *position = hd__instr_positions(p);
    for (uint32_t n = 0; n < s->code.count; n++) {
        const struct hd__instr *i = &s->code.at[n];
        uint32_t on = i->op == HD_OP_WAIT ? hd__wait_target(p, &s->code, position, i) : n;
        hd_tensor t = on < s->code.count ? hd__instr_tensor(&s->code.at[on]) : 0;
        hd__text_add(&text, "%s%s %s", n ? "; " : "", hd__op(i->op)->name,
                     t ? hd__tensor_const(p, t)->name : "nothing");
    }
    free(position);
    return text.at ? text.at : hd__strdup("");
}
