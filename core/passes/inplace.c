/* Outputs reuse the memory of inputs that die, where the table of ops allows it.
 *
 * Two temporaries of equal size become one buffer if the same instruction is the last to access the input and the first
 * to access the output. An asynchronous instruction accesses its operands until its wait, so memory in flight is never
 * reused. The input's tensor keeps its buffer but is undefined afterwards: verify.c checks that. */
#include <stdlib.h>

#include "core/passes/passes.h"
#include "core/program/access.h"
#include "core/program/ops.h"

struct inplace {
    struct hd_program *p;
    uint32_t *root;         /* by buffer: the one that it was merged into; itself */
    uint32_t *first, *last; /* by buffer: positions in the section */
};

static uint32_t root_of(const struct inplace *a, uint32_t buffer)
{
    while (a->root[buffer] != buffer)
        buffer = a->root[buffer] = a->root[a->root[buffer]];
    return buffer;
}

/* First and last access of every buffer of the section; an asynchronous instruction has access until its wait. */
static void find_lives(struct inplace *a, const hd__code *code, const uint32_t *position)
{
    uint32_t t[HD__MAX_ACCESSES];
    memset(a->first, 0xff, a->p->buffers.count * sizeof *a->first);
    for (uint32_t n = 0; n < code->count; n++)
        for (uint32_t k = hd__live_buffers(a->p, code, position, n, t); k-- > 0;) {
            a->first[t[k]] = HD__MIN(a->first[t[k]], n);
            a->last[t[k]] = n;
        }
}

/* Is this the only operand in the buffer, which is about to change its meaning? */
static int sole_operand(const struct inplace *a, const struct hd__instr *i, uint32_t buffer)
{
    uint32_t n = 0;
    for (uint32_t k = 0; k < i->n_in; k++)
        n += root_of(a, hd__tensor_const(a->p, i->in[k])->buffer) == buffer;
    for (uint32_t k = 0; k < i->n_out; k++)
        n += root_of(a, hd__tensor_const(a->p, i->out[k])->buffer) == buffer;
    return n == 1;
}

/* `end`: the position at which the instruction is complete. */
static void share_buffer(struct inplace *a, const struct hd__instr *i, uint32_t n, uint32_t end)
{
    const struct hd__tensor *in = hd__tensor_const(a->p, i->in[0]), *out = hd__tensor_const(a->p, i->out[0]);
    uint32_t from = root_of(a, in->buffer), to = out->buffer;
    const struct hd__buffer *x = &a->p->buffers.at[from], *y = &a->p->buffers.at[to];
    if (from == to || x->life != HD__LIFE_TEMP || y->life != HD__LIFE_TEMP || x->bytes != y->bytes ||
        x->memory != y->memory || x->paged != y->paged)
        return;
    if (in->offset || out->offset || hd__tensor_bytes(a->p, in) != hd__tensor_bytes(a->p, out))
        return;
    if (a->last[from] != end || a->first[to] != n || !sole_operand(a, i, from) || !sole_operand(a, i, to))
        return;
    a->root[to] = from;
    a->last[from] = a->last[to];
}

/* x + y is y + x to the last bit: puts the operand that dies first. */
static void swap_terms(const struct inplace *a, struct hd__instr *i, uint32_t n)
{
    hd_tensor x = i->in[0], y = i->in[1];
    int two = hd__op(i->op)->flags & HD__OP_COMMUTES && (i->op != HD_OP_ADD || i->n_in == 2);
    if (!two || a->last[root_of(a, hd__tensor_const(a->p, x)->buffer)] == n ||
        a->last[root_of(a, hd__tensor_const(a->p, y)->buffer)] != n || hd__reads_outputs(i))
        return;
    i->in[0] = y;
    i->in[1] = x;
}

static void share_buffers(struct inplace *a, const hd__code *code, const uint32_t *position)
{
    uint32_t *end = hd__alloc(code->count * sizeof *end);
    for (uint32_t n = 0; n < code->count; n++)
        end[n] = n;
    for (uint32_t n = 0; n < code->count; n++) {
        uint32_t on = code->at[n].op == HD_OP_WAIT ? hd__wait_target(a->p, code, position, &code->at[n]) : UINT32_MAX;
        if (on != UINT32_MAX)
            end[on] = n;
    }
    for (uint32_t n = 0; n < code->count; n++) {
        struct hd__instr *i = &code->at[n];
        if (!(hd__op(i->op)->flags & HD__OP_IN_PLACE) || !i->n_in || !i->n_out)
            continue;
        swap_terms(a, i, n);
        share_buffer(a, i, n, end[n]);
    }
    free(end);
}

void hd__inplace(struct hd_program *p)
{
    size_t n = p->buffers.count;
    struct inplace a = {p, hd__alloc(n * sizeof(uint32_t)), hd__alloc(n * sizeof(uint32_t)),
                        hd__alloc(n * sizeof(uint32_t))};
    uint32_t *position = hd__instr_positions(p);
    for (uint32_t b = 0; b < n; b++)
        a.root[b] = b;
    for (uint32_t s = 0; s < p->sections.count; s++) {
        find_lives(&a, &p->sections.at[s].code, position);
        share_buffers(&a, &p->sections.at[s].code, position);
    }
    for (uint32_t t = 1; t < p->tensors.count; t++)
        p->tensors.at[t].buffer = root_of(&a, p->tensors.at[t].buffer);
    free(position);
    free(a.root);
    free(a.first);
    free(a.last);
}
