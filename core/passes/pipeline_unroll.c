/* Template and actions -> the code of one stage. An action is one chunk's part of the template (F, B or W) for one
 * micro-batch, with its own tensors. A tensor that one chunk makes and another uses is sent and received, or used in
 * place if both chunks are on this stage. This holds for any tensor and any two chunks, not only for the residual
 * stream between neighbours. */
#include <stdlib.h>

#include "core/passes/passes.h"
#include "core/passes/strategy_api.h"
#include "core/program/ops.h"
#include "core/program/value_number.h"

enum { FORWARD = 0, BACKWARD = 1 }; /* directions of messages */

struct crossing {
    hd_tensor tensor;  /* of the template */
    uint32_t from, to; /* chunks */
    uint32_t way;
};

struct unroll {
    struct hd_program *p;
    struct hd__pipeline *pipe;
    uint8_t *kind;   /* by template instruction: HD_ACTION_... */
    uint8_t *split;  /* [micro][chunk]: its weight gradients are an action of their own */
    uint32_t *maker; /* by template tensor: index + 1 of what makes it */
    uint32_t *order; /* the template's instructions, chunk by chunk */
    uint32_t *first; /* by chunk: its first in `order`; one more at the end */
    HD__ARRAY(struct crossing) crossings;
    hd_tensor **twin;     /* [micro][chunk]: by template tensor; NULL until needed */
    uint64_t sends_value; /* of what crosses, whatever is sent */
    uint32_t n_tensors;
    int forward_only;
    struct hd__arena scratch;
};

static uint32_t chunk_of(const struct unroll *u, uint32_t k)
{
    return u->pipe->chunk[u->p->template.at[k].block];
}

/* ---- analysis of the template */

/* Finds an instruction's kind of action: W, unless F or B needs its output: a conversion that both use belongs to the
 * earlier. */
static void find_kinds(struct unroll *u)
{
    const hd__code *code = &u->p->template;
    uint8_t *needed = hd__arena_alloc(&u->scratch, u->n_tensors); /* by B */
    for (uint32_t k = code->count; k-- > 0;) {
        const struct hd__instr *i = &code->at[k];
        u->kind[k] = i->phase == HD__PHASE_F ? HD_ACTION_F : i->phase == HD__PHASE_W ? HD_ACTION_W : HD_ACTION_B;
        for (uint32_t n = 0; n < i->n_out && u->kind[k] == HD_ACTION_W; n++)
            if (i->op != HD_OP_ACCUM && needed[i->out[n]])
                u->kind[k] = HD_ACTION_B;
        for (uint32_t n = 0; n < i->n_in && u->kind[k] == HD_ACTION_B; n++)
            needed[i->in[n]] = 1;
    }
}

static void find_order(struct unroll *u)
{
    const uint32_t count = u->p->template.count, chunks = u->pipe->n_chunks;
    u->order = hd__arena_alloc(&u->scratch, (count + 1) * sizeof *u->order);
    u->first = hd__arena_alloc(&u->scratch, (chunks + 2) * sizeof *u->first);
    for (uint32_t k = 0; k < count; k++) /* counted two further on, so that placing them leaves each one's first */
        u->first[chunk_of(u, k) + 2]++;
    for (uint32_t c = 0; c < chunks; c++)
        u->first[c + 2] += u->first[c + 1];
    for (uint32_t k = 0; k < count; k++)
        u->order[u->first[chunk_of(u, k) + 1]++] = k;
}

static int crosses_already(const struct unroll *u, hd_tensor t, uint32_t to)
{
    for (uint32_t n = 0; n < u->crossings.count; n++)
        if (u->crossings.at[n].tensor == t && u->crossings.at[n].to == to)
            return 1;
    return 0;
}

static void find_crossings(struct unroll *u)
{
    const hd__code *code = &u->p->template;
    for (uint32_t k = 0; k < code->count; k++)
        for (uint32_t n = 0; n < code->at[k].n_out && code->at[k].op != HD_OP_ACCUM; n++)
            u->maker[code->at[k].out[n]] = k + 1;
    for (uint32_t k = 0; k < code->count; k++)
        for (uint32_t n = 0; n < code->at[k].n_in; n++) {
            hd_tensor t = code->at[k].in[n];
            uint32_t made = u->maker[t], to = chunk_of(u, k);
            if (!made || chunk_of(u, made - 1) == to || crosses_already(u, t, to) ||
                (u->forward_only && u->kind[k] != HD_ACTION_F))
                continue;
            hd__push(&u->crossings, ((struct crossing){t, chunk_of(u, made - 1), to,
                                                       u->kind[made - 1] == HD_ACTION_F ? FORWARD : BACKWARD}));
        }
}

/* ---- tensors of one micro-batch in one chunk */

static hd_tensor *twins(struct unroll *u, uint32_t micro, uint32_t chunk)
{
    hd_tensor **at = &u->twin[(size_t)micro * u->pipe->n_chunks + chunk];
    if (!*at)
        *at = hd__arena_alloc(&u->scratch, u->n_tensors * sizeof **at);
    return *at;
}

/* An evaluation has one, and gives it no number. */
static uint64_t micro_factor(const struct unroll *u, const struct hd_action *a)
{
    return hd__value_number_micro(u->forward_only ? -1 : (int32_t)a->micro);
}

static hd_tensor twin_of(struct unroll *u, const struct hd_action *a, hd_tensor t)
{
    struct hd__tensor copy = *hd__tensor_const(u->p, t);
    hd_tensor *twin = twins(u, a->micro, a->chunk);
    if (copy.role == HD__ROLE_PARAM || copy.role == HD__ROLE_STATE || copy.buffer) /* a cache */
        return t;
    copy.value_number *= micro_factor(u, a);
    if (!twin[t])
        twin[t] = hd__tensor_new(u->p, &copy);
    return twin[t];
}

static struct hd__instr set_micro_chunk(const struct unroll *u, const struct hd_action *a, struct hd__instr i)
{
    i.micro = u->forward_only ? -1 : (int16_t)a->micro;
    i.chunk = (int16_t)a->chunk;
    return i;
}

/* ---- one action */

/* The input of this micro-batch as another chunk of this stage was fed it; 0: none was. */
static hd_tensor fed_before(struct unroll *u, const struct hd_action *a, hd_tensor input)
{
    for (uint32_t chunk = 0; chunk < u->pipe->n_chunks; chunk++)
        if (chunk != a->chunk && (int32_t)u->pipe->stage[chunk] == u->p->stage && twins(u, a->micro, chunk)[input])
            return twins(u, a->micro, chunk)[input];
    return 0;
}

static void feed(struct unroll *u, const struct hd_action *a, hd_tensor input, hd__code *code)
{
    const hd__code *template = &u->p->template;
    for (uint32_t at = u->first[a->chunk]; input && at < u->first[a->chunk + 1]; at++)
        for (uint32_t n = 0, k = u->order[at]; n < template->at[k].n_in; n++)
            if (template->at[k].in[n] == input) {
                if ((twins(u, a->micro, a->chunk)[input] = fed_before(u, a, input)))
                    return;
                struct hd__instr i = set_micro_chunk(u, a, hd__instr_new(u->p, HD_OP_FEED));
                i.out[i.n_out++] = twin_of(u, a, input);
                hd__push(code, i);
                return;
            }
}

static struct hd__instr message(struct unroll *u, const struct hd_action *a, uint32_t n, uint16_t op, uint32_t peer)
{
    const struct crossing *x = &u->crossings.at[n];
    struct hd__instr i = set_micro_chunk(u, a, hd__instr_new(u->p, op));
    i.peer = (int16_t)peer;
    i.block = u->p->template.at[u->maker[x->tensor] - 1].block;
    i.phase = x->way == FORWARD ? HD__PHASE_F : HD__PHASE_B;
    i.tag = (uint16_t)(a->micro * u->crossings.count + n);
    i.stream = (uint16_t)(HD__STREAM_PP + 4 * peer + 2 * (op == HD_OP_RECV) + x->way);
    i.axes = HD_AXIS_BIT(HD_AXIS_PP);
    return i;
}

/* An action sends or receives the tensors that cross in its direction: F forward, B backward. */
static void receive(struct unroll *u, const struct hd_action *a, hd__code *code)
{
    for (uint32_t n = 0; n < u->crossings.count; n++) {
        const struct crossing *x = &u->crossings.at[n];
        uint32_t peer = u->pipe->stage[x->from];
        if (x->to != a->chunk || x->way != a->kind)
            continue;
        if ((int32_t)peer == u->p->stage) {
            twins(u, a->micro, a->chunk)[x->tensor] =
                twin_of(u, &(struct hd_action){a->kind, x->from, a->micro}, x->tensor);
            continue;
        }
        struct hd__instr i = message(u, a, n, HD_OP_RECV, peer);
        i.out[i.n_out++] = twin_of(u, a, x->tensor);
        hd__push(code, i);
    }
}

static void send(struct unroll *u, const struct hd_action *a, hd__code *code)
{
    for (uint32_t n = 0; n < u->crossings.count; n++) {
        const struct crossing *x = &u->crossings.at[n];
        uint32_t peer = u->pipe->stage[x->to];
        if (x->from != a->chunk || x->way != a->kind || (int32_t)peer == u->p->stage)
            continue;
        struct hd__instr i = message(u, a, n, HD_OP_SEND, peer);
        i.in[i.n_in++] = twin_of(u, a, x->tensor);
        u->sends_value +=
            hd__value_number_message(i.tag, hd__tensor_const(u->p, x->tensor)->value_number * micro_factor(u, a));
        hd__push(code, i);
    }
}

static void sum_loss(struct unroll *u, const struct hd__instr *total, hd__code *code)
{
    struct hd__instr sum = *total;
    sum.id = ++u->p->next_id;
    sum.op = HD_OP_ACCUM;
    sum.attrs = NULL;
    sum.n_in = sum.n_out = 1;
    sum.in[0] = total->out[0];
    sum.out[0] = u->p->loss_sum;
    hd__push(code, sum);
}

static int belongs(const struct unroll *u, uint32_t k, const struct hd_action *a)
{
    return u->kind[k] == a->kind || (a->kind == HD_ACTION_B && u->kind[k] == HD_ACTION_W &&
                                     !u->split[(size_t)a->micro * u->pipe->n_chunks + a->chunk]);
}

static void instructions(struct unroll *u, const struct hd_action *a, hd__code *code)
{
    const hd__code *template = &u->p->template;
    for (uint32_t at = u->first[a->chunk]; at < u->first[a->chunk + 1]; at++) {
        uint32_t k = u->order[at];
        if (!belongs(u, k, a))
            continue;
        struct hd__instr i = set_micro_chunk(u, a, template->at[k]);
        i.id = ++u->p->next_id;
        for (uint32_t n = 0; n < i.n_in; n++)
            i.in[n] = twin_of(u, a, i.in[n]);
        for (uint32_t n = 0; n < i.n_out; n++)
            i.out[n] = twin_of(u, a, i.out[n]);
        hd__push(code, i);
        if (template->at[k].out[0] == u->p->loss && i.op != HD_OP_ACCUM)
            sum_loss(u, &i, code);
    }
}

static hd__code action(struct unroll *u, const struct hd_action *a)
{
    hd__code code = {0};
    u->p->block = 0;
    u->p->phase = HD__PHASE_F;
    for (uint32_t n = 0; n < HD__INPUTS && a->kind == HD_ACTION_F; n++)
        feed(u, a, u->p->inputs[n], &code);
    receive(u, a, &code);
    instructions(u, a, &code);
    send(u, a, &code);
    return code;
}

/* ---- all of them */

static void append_instrs(const hd__code *part, int receives, hd__code *code)
{
    for (uint32_t k = 0; k < part->count; k++)
        if ((part->at[k].op == HD_OP_RECV) == receives)
            hd__push(code, part->at[k]);
}

/* Posts each action's receives one action early, never before those already posted: a stream keeps its order. */
static void interleave_receives(const hd__code *parts, uint32_t n, hd__code *code)
{
    for (uint32_t a = 0; a < n; a++) {
        if (a == 0)
            append_instrs(&parts[0], 1, code);
        if (a + 1 < n)
            append_instrs(&parts[a + 1], 1, code);
        append_instrs(&parts[a], 0, code);
    }
}

static struct unroll open_unroll(struct hd_program *p, const struct hd__actions *list, int forward_only,
                                 uint32_t micros)
{
    struct unroll u = {.p = p, .pipe = p->pipeline, .n_tensors = p->tensors.count, .forward_only = forward_only};
    u.kind = hd__arena_alloc(&u.scratch, p->template.count + 1);
    u.split = hd__arena_alloc(&u.scratch, (size_t)micros * u.pipe->n_chunks);
    u.maker = hd__arena_alloc(&u.scratch, u.n_tensors * sizeof *u.maker);
    u.twin = hd__arena_alloc(&u.scratch, (size_t)micros * u.pipe->n_chunks * sizeof *u.twin);
    for (uint32_t k = 0; k < list->n; k++)
        u.split[(size_t)list->at[k].micro * u.pipe->n_chunks + list->at[k].chunk] |= list->at[k].kind == HD_ACTION_W;
    find_kinds(&u);
    find_order(&u);
    find_crossings(&u);
    return u;
}

static void close_unroll(struct unroll *u)
{
    hd__free_array(&u->crossings);
    hd__arena_free(&u->scratch);
}

void hd__unroll_step(struct hd_program *p, struct hd__code_section *section)
{
    const struct hd__actions *list = &p->pipeline->actions[p->stage];
    struct unroll u = open_unroll(p, list, 0, (uint32_t)p->accumulation);
    hd__code *parts = hd__arena_alloc(&u.scratch, list->n * sizeof *parts);
    for (uint32_t k = 0; k < list->n; k++)
        parts[k] = action(&u, &list->at[k]);
    interleave_receives(parts, list->n, &section->code);
    section->sends_value = u.sends_value;
    for (uint32_t k = 0; k < list->n; k++)
        hd__free_array(&parts[k]);
    close_unroll(&u);
}

/* This stage's copy of a tensor of the template; 0: it has none. */
static hd_tensor made_here(const struct unroll *u, hd_tensor t)
{
    hd_tensor made = 0;
    for (uint32_t c = 0; c < u->pipe->n_chunks && t; c++)
        if (u->twin[c] && u->twin[c][t])
            made = u->twin[c][t];
    return made;
}

void hd__unroll_eval(struct hd_program *p, struct hd__code_section *section)
{
    struct hd__actions none = {0};
    struct unroll u = open_unroll(p, &none, 1, 1);
    for (uint32_t c = 0; c < p->pipeline->n_chunks; c++) {
        if ((int32_t)p->pipeline->stage[c] != p->stage)
            continue;
        hd__code part = action(&u, &(struct hd_action){HD_ACTION_F, c, 0});
        hd__append(&section->code, part.at, part.count);
        hd__free_array(&part);
    }
    section->sends_value = u.sends_value;
    p->kept_logits = p->keep_logits ? made_here(&u, p->logits) : 0;
    for (uint32_t k = 0; k < p->caches.count; k++)
        p->caches.at[k].kept = made_here(&u, p->caches.at[k].made);
    for (uint32_t k = 0; k < HD__COUNT(p->kept_losses); k++)
        p->kept_losses[k] = made_here(&u, p->kept_losses[k]);
    close_unroll(&u);
}

/* Finds the stages that read or make each parameter or its gradient. */
void hd__unroll_stages(struct hd_program *p)
{
    for (uint32_t k = 0; k < p->template.count; k++) {
        const struct hd__instr *i = &p->template.at[k];
        uint32_t stage = p->pipeline->stage[p->pipeline->chunk[i->block]];
        for (uint32_t n = 0; n < (uint32_t)i->n_in + i->n_out; n++) {
            uint32_t param = hd__tensor_const(p, n < i->n_in ? i->in[n] : i->out[n - i->n_in])->param;
            if (param)
                p->params.at[param - 1].stages |= UINT64_C(1) << stage;
        }
    }
}
