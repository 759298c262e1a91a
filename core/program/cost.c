/* Costs of one step on one rank; what runs every N steps counts 1/N. */
#include "core/program/cost.h"

#include "core/program/access.h"
#include "core/program/ops.h"

void hd__cost_totals(const struct hd_program *p, const char *section, struct hd__cost_totals *totals)
{
    memset(totals, 0, sizeof *totals);
    for (uint32_t s = 0; s < p->sections.count; s++) {
        const struct hd__code_section *x = &p->sections.at[s];
        double repeat = hd__section_runs_per_step(x, section);
        for (uint32_t n = 0; n < x->code.count && repeat > 0; n++) {
            const struct hd__instr *i = &x->code.at[n];
            uint32_t axes = hd__is_collective(i->op) ? i->axes : HD_AXIS_BIT(HD_AXIS_PP);
            totals->flops += repeat * hd__instr_flops(p, i);
            if (hd__is_copy(i))
                totals->copied[HD__MAX(hd__memory_of(p, i->in[0]), hd__memory_of(p, i->out[0]))] +=
                    repeat * (double)hd__tensor_bytes(p, hd__tensor_const(p, i->in[0]));
            totals->sent[axes & ((1 << HD_AXIS_COUNT) - 1)] += repeat * hd__instr_traffic(p, i);
        }
        totals->instructions += (int64_t)(repeat * x->code.count);
    }
}

double hd__instr_moved_bytes(const struct hd_program *p, const struct hd__instr *i)
{
    double bytes = hd__instr_bytes(p, i);
    if (i->op == HD_OP_EMBED) /* reads the rows that it looks up */
        return 2 * (double)hd__tensor_bytes(p, hd__tensor_const(p, i->out[0]));
    if (i->op == HD_OP_EMBED_DW) /* adds to such rows */
        return 5 * (double)hd__tensor_bytes(p, hd__tensor_const(p, i->in[1]));
    for (uint32_t n = 0; n < i->n_out; n++)
        if (hd__reads_output(i, n))
            bytes += (double)hd__tensor_bytes(p, hd__tensor_const(p, i->out[n]));
    return bytes;
}

const char *hd__memory_name(uint32_t memory)
{
    static const char *const names[HD__MEM_COUNT] = {"main", "host", "file"};
    return memory < HD__MEM_COUNT ? names[memory] : "?";
}

const char *hd__phase_name(uint8_t phase)
{
    static const char *const names[] = {"F", "R", "B", "W", "O"};
    return phase < HD__COUNT(names) ? names[phase] : "?";
}

const char *hd__stream_text(const struct hd__instr *i, char out[32])
{
    if (i->op == HD_OP_SEND || i->op == HD_OP_RECV)
        snprintf(out, 32, "pp%c%d", i->op == HD_OP_SEND ? '>' : '<', i->peer);
    else if (hd__is_copy(i))
        snprintf(out, 32, "%s", i->stream == HD__STREAM_IN ? "in" : "out");
    else if (i->stream == HD__STREAM_COMPUTE)
        snprintf(out, 32, "compute");
    else if (i->stream < HD__STREAM_AXIS + HD_AXIS_COUNT)
        snprintf(out, 32, "%s", hd__axis_name(i->stream - HD__STREAM_AXIS));
    else if (i->stream == HD__STREAM_WORLD)
        snprintf(out, 32, "world");
    else
        snprintf(out, 32, "stream%u", i->stream);
    return out;
}
