/* The token machine's form of a program: flat code with queues, channels and signatures as numbers, so that the walk
 * of a thousand ranks needs no look-ups. */
#include <stdlib.h>

#include "analysis/sim/machine_internal.h"

static uint16_t queue_of(struct hd__sim *m, uint16_t stream)
{
    for (uint32_t n = 0; n < m->streams.count; n++)
        if (m->streams.at[n] == stream)
            return (uint16_t)n;
    hd__push(&m->streams, stream);
    return (uint16_t)(m->streams.count - 1);
}

static uint32_t channel_of(struct hd__sim *m, const struct hd__instr *i, uint16_t queue)
{
    for (uint32_t n = 0; n < m->channels.count; n++) {
        const struct hd__sim_channel *c = &m->channels.at[n];
        if (c->axes == i->axes && c->members == i->members && c->queue == queue)
            return n;
    }
    hd__push(&m->channels, ((struct hd__sim_channel){.axes = i->axes, .members = i->members, .queue = queue}));
    return m->channels.count - 1;
}

static const char *dim_name(const struct hd_program *p, uint16_t dim)
{
    return dim ? p->dims.at[dim].name : "";
}

/* Attributes that all members of a collective must agree on. Names, not numbers: each stage numbers its own dims and
 * tensors. */
static uint64_t signature(const struct hd_program *p, const struct hd__instr *i)
{
    const struct hd__tensor *in = hd__tensor_const(p, i->n_in ? i->in[0] : i->out[0]),
                            *out = hd__tensor_const(p, i->n_out ? i->out[0] : i->in[0]);
    uint64_t fixed[] = {i->op,
                        i->axes,
                        i->members,
                        i->redop,
                        (uint64_t)hd__numel(p, in),
                        (uint64_t)hd__numel(p, out),
                        in->dtype,
                        out->dtype,
                        i->op == HD_OP_SHIFT ? (uint64_t)hd__shift_steps(p, i) : 0};
    uint64_t h = hd__hash(fixed, sizeof fixed, 0);
    h = hd__hash(dim_name(p, i->from), strlen(dim_name(p, i->from)), h);
    h = hd__hash(dim_name(p, i->to), strlen(dim_name(p, i->to)), h);
    return hd__hash(out->name, strlen(out->name), h);
}

static double cost(const struct hd__sim *m, const struct hd_program *p, const struct hd__instr *i)
{
    const struct hd__sim_costs *c = &m->costs;
    uint32_t axes = i->axes ? i->axes : HD_AXIS_BIT(HD_AXIS_PP);
    int32_t axis = HD_AXIS_PP;
    if (i->op == HD_OP_WAIT || i->op == HD_OP_RELEASE)
        return 0;
    if (!hd__is_async(i))
        return c->seconds ? c->seconds(c->user, p, i) : 0;
    if (c->transfer)
        return c->transfer(c->user, p, i);
    if (hd__is_copy(i)) {
        double rate = c->copy_bandwidth[HD__MAX(hd__memory_of(p, i->in[0]), hd__memory_of(p, i->out[0]))];
        return rate > 0 ? (double)hd__tensor_bytes(p, hd__tensor_const(p, i->in[0])) / rate : 0;
    }
    while (!(axes & HD_AXIS_BIT(axis)) || (i->axes && p->mesh.size[axis] == 1 && axes >> (axis + 1)))
        axis++;
    return c->latency[axis] + (c->bandwidth[axis] > 0 ? hd__instr_traffic(p, i) / c->bandwidth[axis] : 0);
}

static struct hd__sim_op flatten(struct hd__sim *m, struct hd__sim_program *program, const struct hd__instr *i)
{
    struct hd__sim_op d = {.instr = i, .async = UINT32_MAX};
    if (i->op == HD_OP_WAIT) {
        d.kind = HD__SIM_WAIT;
        return d;
    }
    if (!hd__is_async(i))
        return d;
    d.queue = queue_of(m, i->stream);
    d.async = program->n_async++;
    if (hd__is_copy(i)) {
        d.kind = HD__SIM_COPY;
    } else if (i->op == HD_OP_SEND || i->op == HD_OP_RECV) {
        d.kind = i->op == HD_OP_SEND ? HD__SIM_SEND : HD__SIM_RECV;
        const struct hd__tensor *t = hd__tensor_const(program->p, hd__instr_tensor(i));
        uint64_t match[] = {i->tag, (uint64_t)hd__numel(program->p, t), t->dtype, t->value_number};
        d.signature = hd__hash(match, sizeof match, 0);
    } else {
        d.kind = HD__SIM_COLLECTIVE;
        d.signature = signature(program->p, i);
        d.channel = channel_of(m, i, d.queue);
        d.blocks = m->options.costs && m->costs.blocks && m->costs.blocks(m->costs.user, i);
    }
    return d;
}

static void resolve_waits(struct hd__sim_program *program)
{
    const struct hd_program *p = program->p;
    uint32_t *position = hd__instr_positions(p);
    for (uint32_t s = 0; s < p->sections.count; s++) {
        const hd__code *code = &p->sections.at[s].code;
        for (uint32_t n = 0; n < code->count; n++) {
            uint32_t on = code->at[n].op == HD_OP_WAIT ? hd__wait_target(p, code, position, &code->at[n]) : UINT32_MAX;
            if (on == UINT32_MAX)
                continue;
            program->code[program->first[s] + n].async = program->code[program->first[s] + on].async;
            program->code[program->first[s] + n].queue = program->code[program->first[s] + on].queue;
        }
    }
    free(position);
}

struct hd__sim_program *hd__sim_program_new(struct hd__sim *m, const struct hd_program *p, int32_t rank, double speed)
{
    struct hd__sim_program *program = hd__alloc(sizeof *program);
    uint32_t n = 0;
    program->p = p;
    program->micro_batches = hd__micro_batches_of(p, rank);
    program->speed = speed;
    program->first = hd__alloc((p->sections.count + 1) * sizeof *program->first);
    program->micro0 = hd__alloc((p->sections.count + 1) * sizeof *program->micro0);
    program->rounds = hd__alloc((p->sections.count + 1) * sizeof *program->rounds);
    for (uint32_t s = 0; s < p->sections.count; s++)
        n += p->sections.at[s].code.count;
    program->code = hd__alloc((n + 1) * sizeof *program->code);
    program->cost = m->options.costs ? hd__alloc((n + 1) * sizeof *program->cost) : NULL;
    n = 0;
    for (uint32_t s = 0; s < p->sections.count; s++) {
        const hd__code *code = &p->sections.at[s].code;
        program->first[s] = n;
        program->micro0[s] = hd__micro_batches_before(p, s, rank);
        program->rounds[s] = hd__section_rounds(p, &p->sections.at[s], rank);
        for (uint32_t k = 0; k < code->count; k++, n++) {
            program->code[n] = flatten(m, program, &code->at[k]);
            if (program->cost)
                program->cost[n] = cost(m, p, &code->at[k]);
        }
    }
    program->first[p->sections.count] = n;
    resolve_waits(program);
    return program;
}

void hd__sim_program_free(struct hd__sim_program *program)
{
    free(program->code);
    free(program->cost);
    free(program->first);
    free(program->micro0);
    free(program->rounds);
    free(program);
}

/* ---- groups */

static void join_channel(struct hd__sim *m, struct hd__sim_channel *c)
{
    int32_t *group = hd__alloc((size_t)m->mesh.ranks * sizeof *group);
    free(c->meeting);
    c->meeting = hd__alloc((size_t)m->mesh.ranks * sizeof *c->meeting);
    for (int32_t r = 0; r < m->mesh.ranks; r++) {
        int32_t n, mine = 0;
        if (c->meeting[r])
            continue;
        n = hd__mesh_group(&m->mesh, r, c->axes, c->members, group);
        for (int32_t k = 0; k < n; k++)
            mine |= group[k] == r;
        if (!mine)
            continue;
        hd__push(&m->meetings, ((struct hd__sim_meeting){.first_member = m->members.count,
                                                         .size = (uint32_t)n,
                                                         .alone = n * hd__mesh_ways(&m->whole, m->alike & c->axes) == 1,
                                                         .channel = (uint32_t)(c - m->channels.at)}));
        hd__append(&m->members, group, n);
        for (int32_t k = 0; k < n; k++)
            c->meeting[group[k]] = m->meetings.count;
    }
    free(group);
}

void hd__sim_channels_join(struct hd__sim *m)
{
    m->meetings.count = m->members.count = 0;
    for (uint32_t n = 0; n < m->channels.count; n++)
        join_channel(m, &m->channels.at[n]);
}

int32_t hd__sim_peer_rank(const struct hd__sim *m, int32_t rank, int32_t stage)
{
    int32_t coord[HD_AXIS_COUNT];
    if (stage < 0 || stage >= m->mesh.size[HD_AXIS_PP])
        return -1;
    memcpy(coord, m->ranks[rank].coord, sizeof coord);
    coord[HD_AXIS_PP] = stage;
    return hd__mesh_rank(&m->mesh, coord);
}
