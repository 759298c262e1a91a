/* Hand-built step programs. See tiny.h. */
#include "tests/program/tiny.h"

#include <stdlib.h>

#include "core/program/ops.h"
#include "core/program/touch.h"

struct hd_program *tiny_program(int32_t pp, int32_t dp_shard, int32_t tp, int32_t stage)
{
    int32_t size[HD_AXIS_COUNT] = {[HD_AXIS_PP] = pp, [HD_AXIS_DP_REPLICATE] = 1, [HD_AXIS_DP_SHARD] = dp_shard,
                                   [HD_AXIS_CP] = 1, [HD_AXIS_EP] = 1, [HD_AXIS_TP] = tp, [HD_AXIS_TQ] = 1};
    struct hd__mesh mesh = hd__mesh_make(size);
    return hd__program_new(&mesh, stage);
}

uint32_t tiny_section(struct hd_program *p, const char *name, int32_t repeat)
{
    hd__push(&p->sections, ((struct hd__code_section){.name = name, .repeat = repeat}));
    return p->sections.count - 1;
}

hd_tensor tiny_vector(struct hd_program *p, const char *name, int64_t count)
{
    struct hd__tensor t = {.name = name, .ndim = 1, .dtype = HD_F32, .place.redop = HD_SUM};
    t.dim[0] = hd__dim_new(p, "#n", count);
    return hd__tensor_new(p, &t);
}

hd_tensor tiny_shard(struct hd_program *p, const char *name, int64_t count, int32_t axis)
{
    hd_tensor t = tiny_vector(p, name, count * p->mesh.size[axis]);
    hd__t(p, t)->place.shard[0] = hd__shard_push(0, axis);
    return t;
}

static uint32_t buffer_of(struct hd_program *p, hd_tensor t, uint8_t life)
{
    int64_t bytes = hd__tensor_bytes(p, hd__tc(p, t));
    if (!hd__tc(p, t)->buffer)
        hd__t(p, t)->buffer = hd__buffer_new(p, hd__tc(p, t)->name, (bytes + 63) & ~(int64_t)63, life);
    return hd__tc(p, t)->buffer;
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
    hd__t(p, t)->buffer = buffer_of(p, of, HD__LIFE_TEMP);
    hd__t(p, t)->offset = hd__tc(p, of)->offset + first;
    return t;
}

struct hd__instr *tiny_op(struct hd_program *p, uint32_t section, uint16_t op, const hd_tensor *ins, const hd_tensor *outs)
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
        i->from = hd__tc(p, in)->dim[0];
    if (op == HD_OP_REDUCE_SCATTER || op == HD_OP_ALL_TO_ALL)
        i->to = hd__tc(p, in)->dim[0];
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

char *tiny_listing(const struct hd_program *p, uint32_t section)
{
    const struct hd__code_section *s = &p->sections.at[section];
    struct hd__text text = {0};
    uint32_t *position = hd__positions(p);
    for (uint32_t n = 0; n < s->code.count; n++) {
        const struct hd__instr *i = &s->code.at[n];
        uint32_t on = i->op == HD_OP_WAIT ? hd__waited(p, &s->code, position, i) : n;
        hd_tensor t = on < s->code.count ? hd__instr_tensor(&s->code.at[on]) : 0;
        hd__text_add(&text, "%s%s %s", n ? "; " : "", hd__op(i->op)->name, t ? hd__tc(p, t)->name : "nothing");
    }
    free(position);
    return text.at ? text.at : hd__strdup("");
}
