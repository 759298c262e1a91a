/* Operands as byte ranges. See access.h. */
#include "core/program/access.h"

#include <stdlib.h>

#include "core/program/ops.h"

static struct hd__access make_access(const struct hd_program *p, hd_tensor id, int reads, int writes)
{
    const struct hd__tensor *t = hd__tensor_const(p, id);
    int64_t size = (int64_t)hd_dtype_size(t->dtype);
    int64_t count = t->shard_view ? hd__global_numel(p, t) : hd__numel(p, t);
    struct hd__access out = {
        .tensor = id, .buffer = t->buffer, .lo = t->offset * size, .reads = (uint8_t)reads, .writes = (uint8_t)writes};
    out.hi = out.lo + count * size;
    return out;
}

struct hd__access hd__access_of(const struct hd_program *p, hd_tensor t)
{
    return make_access(p, t, 0, 0);
}

uint32_t hd__accesses(const struct hd_program *p, const struct hd__instr *i, struct hd__access out[HD__MAX_ACCESSES])
{
    uint32_t n = 0;
    if (i->op == HD_OP_WAIT)
        return 0;
    if (i->op == HD_OP_RELEASE) {
        uint32_t buffer = hd__tensor_const(p, i->in[0])->buffer;
        out[0] =
            (struct hd__access){.tensor = i->in[0], .buffer = buffer, .hi = p->buffers.at[buffer].bytes, .writes = 1};
        return 1;
    }
    for (uint32_t k = 0; k < i->n_in; k++)
        out[n++] = make_access(p, i->in[k], 1, 0);
    for (uint32_t k = 0; k < i->n_out; k++)
        out[n++] = make_access(p, i->out[k], hd__reads_output(i, k), 1);
    return n;
}

int hd__reads_outputs(const struct hd__instr *i)
{
    return i->custom ? i->custom->state != 0 : hd__accumulates(i) || hd__op(i->op)->class == HD__CLASS_UPDATE;
}

int hd__reads_output(const struct hd__instr *i, uint32_t out)
{
    if (i->custom)
        return i->custom->state >> out & 1;
    return hd__reads_outputs(i) && hd__op_adds(i->op, out) && !hd__is_scratch(i, out);
}

static int overlaps(const struct hd__access *a, const struct hd__access *b)
{
    if (a->tensor == b->tensor)
        return a->writes || b->writes;
    return a->buffer && a->buffer == b->buffer && hd__access_conflict(a, b);
}

int hd__can_move(const struct hd_program *p, const hd__code *code, uint32_t at, uint32_t to)
{
    struct hd__access own[HD__MAX_ACCESSES], others[HD__MAX_ACCESSES];
    uint32_t n = hd__accesses(p, &code->at[at], own);
    for (uint32_t k = at < to ? at + 1 : to + 1; k < (at < to ? to : at); k++) {
        uint32_t m = code->at[k].op ? hd__accesses(p, &code->at[k], others) : 0;
        for (uint32_t x = 0; x < n * m; x++)
            if (overlaps(&own[x / m], &others[x % m]))
                return 0;
    }
    return 1;
}

uint32_t *hd__instr_positions(const struct hd_program *p)
{
    uint32_t *at = hd__alloc(((size_t)p->next_id + 1) * sizeof *at);
    memset(at, 0xff, ((size_t)p->next_id + 1) * sizeof *at);
    for (uint32_t s = 0; s < p->sections.count; s++) {
        const hd__code *code = &p->sections.at[s].code;
        for (uint32_t n = 0; n < code->count; n++)
            if (code->at[n].id <= p->next_id)
                at[code->at[n].id] = n;
    }
    return at;
}

uint32_t hd__live_buffers(const struct hd_program *p, const hd__code *code, const uint32_t *position, uint32_t n,
                          uint32_t out[HD__MAX_ACCESSES])
{
    const struct hd__instr *i = &code->at[n];
    if (i->op == HD_OP_WAIT && (n = hd__wait_target(p, code, position, i)) != UINT32_MAX)
        i = &code->at[n];
    n = 0;
    if (i->op == HD_OP_WAIT)
        return 0;
    for (uint32_t k = 0; k < i->n_in; k++)
        out[n++] = hd__tensor_const(p, i->in[k])->buffer;
    for (uint32_t k = 0; k < i->n_out; k++)
        out[n++] = hd__tensor_const(p, i->out[k])->buffer;
    return n;
}

const char *hd__instr_text(const struct hd_program *p, const struct hd__code_section *s, uint32_t n, char out[160])
{
    const struct hd__instr *i = &s->code.at[n], *on = i;
    if (n >= s->code.count) {
        snprintf(out, 160, "%s, at its end", s->name);
        return out;
    }
    int wait = i->op == HD_OP_WAIT;
    for (uint32_t k = n; wait && k-- > 0;) /* the instruction that it waits for comes before it */
        if (s->code.at[k].id == i->wait) {
            on = &s->code.at[k];
            break;
        }
    const char *axes = hd__axes(hd__is_collective(on->op) ? on->axes : 0);
    snprintf(out, 160, "%s #%u %s%s%s%s%s%s%s", s->name, n, wait ? "wait " : "",
             wait && on == i ? "for what is not here" : hd__instr_name(on), *axes ? "(" : "", axes, *axes ? ")" : "",
             hd__instr_tensor(on) ? " " : "",
             hd__instr_tensor(on) ? hd__tensor_const(p, hd__instr_tensor(on))->name : "");
    return out;
}

int32_t hd__collective_dtype(const struct hd_program *p, const struct hd__instr *i, struct hd_error *err)
{
    const struct hd__tensor *in = hd__tensor_const(p, i->in[0]), *out = hd__tensor_const(p, i->out[0]);
    if (i->n_in && i->n_out && in->dtype != out->dtype)
        return hd_fail(err, HD_E_INVALID,
                       "%s of %s, %s, into %s, %s: a collective converts nothing; copy into a tensor of one dtype",
                       hd__op(i->op)->name, in->name, hd_dtype_name(in->dtype), out->name, hd_dtype_name(out->dtype));
    return HD_OK;
}
