/* Buffers for all tensors, and explicit waits.
 *
 * An asynchronous instruction starts after every compute instruction listed before it and is complete at its wait. So a
 * wait goes before the first instruction that accesses an output of the operation, or writes an input of it; for a
 * send, which has no output, before the send that would put more than `send_depth` of its stream in flight; else at the
 * section's end. */
#include <stdlib.h>

#include "core/passes/passes.h"
#include "core/program/access.h"
#include "core/program/ops.h"

/* ---- buffers */

#define ALIGN 64
#define NO_SECTION UINT32_MAX

static void give_buffer(struct hd_program *p, hd_tensor id)
{
    const struct hd__tensor *t = hd__tensor_const(p, id);
    int64_t bytes = (hd__tensor_bytes(p, t) + ALIGN - 1) & ~(int64_t)(ALIGN - 1);
    int lasts = t->role == HD__ROLE_PARAM || t->role == HD__ROLE_FLAT || t->role == HD__ROLE_STATE;
    uint32_t buffer = hd__buffer_new(p, t->name, HD__MAX(bytes, ALIGN), lasts ? HD__LIFE_PERSISTENT : HD__LIFE_TEMP);
    p->buffers.at[buffer].section = NO_SECTION;
    p->buffers.at[buffer].block = t->block;
    hd__tensor_at(p, id)->buffer = buffer;
}

/* A temporary belongs to one section: each section plans the same memory anew. */
static int32_t claim_buffer(struct hd_program *p, hd_tensor id, uint32_t section, struct hd_error *err)
{
    if (!hd__tensor_const(p, id)->buffer)
        give_buffer(p, id);
    struct hd__buffer *b = &p->buffers.at[hd__tensor_const(p, id)->buffer];
    if (b->life != HD__LIFE_TEMP)
        return HD_OK;
    if (b->section == NO_SECTION)
        b->section = section;
    if (b->section != section)
        return hd_fail(
            err, HD_E_INTERNAL,
            "temporary %s is used in sections %s and %s: give it a persistent buffer, or each section its own tensor",
            b->name, p->sections.at[b->section].name, p->sections.at[section].name);
    return HD_OK;
}

static int32_t give_buffers(struct hd_program *p, struct hd_error *err)
{
    for (uint32_t b = 1; b < p->buffers.count; b++)
        p->buffers.at[b].section = NO_SECTION;
    for (uint32_t s = 0; s < p->sections.count; s++)
        for (uint32_t n = 0; n < p->sections.at[s].code.count; n++) {
            const struct hd__instr *i = &p->sections.at[s].code.at[n];
            for (uint32_t k = 0; k < (uint32_t)i->n_in + i->n_out; k++)
                if (claim_buffer(p, k < i->n_in ? i->in[k] : i->out[k - i->n_in], s, err))
                    return err->code;
        }
    return HD_OK;
}

/* ---- sinking weight gradients: only reductions read the results of W instructions: if a collective comes soon, they
 * are held until something would wait for it, and fill that wait */

#define SINK_WINDOW 32 /* instructions: how near the next collective must be to hold a W for it */
#define SINK_LIMIT 64  /* instructions held at most: each keeps its inputs alive */

enum { MADE = 1, READ = 2, PENDING = 4 };

struct sink {
    const struct hd_program *p;
    uint8_t *state; /* by buffer: MADE, READ by what is held; PENDING: an asynchronous instruction writes it */
    hd__code out, held;
};

static void release_held(struct sink *s)
{
    struct hd__access t[HD__MAX_ACCESSES];
    for (uint32_t n = 0; n < s->held.count; n++)
        for (uint32_t k = hd__accesses(s->p, &s->held.at[n], t); k-- > 0;)
            s->state[t[k].buffer] &= (uint8_t) ~(MADE | READ);
    hd__append(&s->out, s->held.at, s->held.count);
    s->held.count = 0;
}

static void hold_back(struct sink *s, const struct hd__instr *i, const struct hd__access *t, uint32_t n)
{
    for (uint32_t k = 0; k < n; k++)
        s->state[t[k].buffer] |= (uint8_t)((t[k].reads ? READ : 0) | (t[k].writes ? MADE : 0));
    hd__push(&s->held, *i);
    if (s->held.count >= SINK_LIMIT)
        release_held(s);
}

static void emit_unheld(struct sink *s, const struct hd__instr *i, const struct hd__access *t, uint32_t n)
{
    int now = 0;
    for (uint32_t k = 0; k < n; k++) {
        uint8_t state = s->state[t[k].buffer];
        now |= state & MADE || (t[k].writes && state & READ) || (!hd__is_async(i) && state & PENDING);
    }
    if (now)
        release_held(s);
    for (uint32_t k = 0; k < n; k++)
        s->state[t[k].buffer] &= (uint8_t)~PENDING;
    for (uint32_t k = 0; k < n && hd__is_async(i); k++)
        if (t[k].writes)
            s->state[t[k].buffer] |= PENDING;
    hd__push(&s->out, *i);
}

static void sink_weight_gradients(struct hd_program *p, hd__code *code)
{
    struct sink s = {.p = p, .state = hd__alloc(p->buffers.count)};
    struct hd__access t[HD__MAX_ACCESSES];
    uint32_t *next = hd__alloc((code->count + 1) * sizeof *next); /* the next collective that something waits for */
    next[code->count] = UINT32_MAX;
    for (uint32_t n = code->count; n-- > 0;)
        next[n] = hd__is_async(&code->at[n]) && code->at[n].phase != HD__PHASE_O ? n : next[n + 1];
    for (uint32_t n = 0; n < code->count; n++) {
        const struct hd__instr *i = &code->at[n];
        uint32_t touched = hd__accesses(p, i, t);
        int weight = i->phase == HD__PHASE_W && !hd__is_async(i) && i->op != HD_OP_WAIT;
        if (weight && (s.held.count || (next[n] != UINT32_MAX && next[n] - n <= SINK_WINDOW)))
            hold_back(&s, i, t, touched);
        else
            emit_unheld(&s, i, t, touched);
    }
    release_held(&s);
    free(code->at);
    *code = s.out;
    hd__free_array(&s.held);
    free(s.state);
    free(next);
}

/* ---- waits */

struct pending {
    struct hd__access access;
    uint32_t instr; /* position in the section before waits */
    uint32_t next;  /* of the same buffer; 0: none */
};

struct send {
    uint32_t instr;
    uint16_t stream;
    uint16_t reserved;
};

struct waits {
    struct hd_program *p;
    const hd__code *code;
    hd__code out;
    uint8_t *waited; /* by position */
    uint32_t *head;  /* by buffer: first pending; 0: none */
    HD__ARRAY(struct pending) pending;
    HD__ARRAY(struct send) sends; /* in flight, oldest first */
};

static void wait_for(struct waits *w, uint32_t n)
{
    const struct hd__instr *i = &w->code->at[n];
    if (w->waited[n])
        return;
    w->waited[n] = 1;
    struct hd__instr wait = hd__instr_new(w->p, HD_OP_WAIT);
    wait.wait = i->id;
    wait.block = i->block;
    wait.chunk = i->chunk;
    wait.micro = i->micro;
    wait.phase = i->phase;
    hd__push(&w->out, wait);
}

/* Waits for everything in flight that conflicts with this access. */
static void wait_for_conflicts(struct waits *w, const struct hd__access *t)
{
    uint32_t *link = &w->head[t->buffer];
    while (*link) {
        const struct pending *x = &w->pending.at[*link];
        if (!w->waited[x->instr] && hd__access_conflict(&x->access, t))
            wait_for(w, x->instr);
        if (w->waited[x->instr])
            *link = x->next;
        else
            link = &w->pending.at[*link].next;
    }
}

/* Keeps at most `depth` sends of a stream in flight, with the one that starts now. */
static void queue_send(struct waits *w, uint32_t n, uint32_t depth)
{
    uint32_t alike = 0, kept = 0;
    uint16_t stream = w->code->at[n].stream;
    for (uint32_t k = 0; k < w->sends.count; k++)
        alike += w->sends.at[k].stream == stream && !w->waited[w->sends.at[k].instr];
    for (uint32_t k = 0; k < w->sends.count; k++) {
        struct send *s = &w->sends.at[k];
        if (s->stream == stream && !w->waited[s->instr] && alike-- >= depth)
            wait_for(w, s->instr);
        if (!w->waited[s->instr])
            w->sends.at[kept++] = *s;
    }
    w->sends.count = kept;
    hd__push(&w->sends, ((struct send){.instr = n, .stream = stream}));
}

static void place_waits(struct waits *w, const uint32_t *position)
{
    struct hd__access t[HD__MAX_ACCESSES];
    uint32_t depth = w->p->send_depth ? w->p->send_depth : 1;
    hd__push(&w->pending, (struct pending){.instr = 0}); /* index 0 is none */
    for (uint32_t n = 0; n < w->code->count; n++) {
        const struct hd__instr *i = &w->code->at[n];
        uint32_t count = hd__accesses(w->p, i, t);
        if (i->op == HD_OP_WAIT) { /* a strategy's own */
            uint32_t on = hd__wait_target(w->p, w->code, position, i);
            if (on < n && !w->waited[on]) {
                w->waited[on] = 1;
                hd__push(&w->out, *i);
            }
            continue;
        }
        for (uint32_t k = 0; k < count; k++)
            wait_for_conflicts(w, &t[k]);
        if (i->op == HD_OP_SEND && hd__is_async(i))
            queue_send(w, n, depth);
        for (uint32_t k = 0; k < count && hd__is_async(i); k++) {
            hd__push(&w->pending, ((struct pending){t[k], n, w->head[t[k].buffer]}));
            w->head[t[k].buffer] = w->pending.count - 1;
        }
        hd__push(&w->out, *i);
    }
    for (uint32_t n = 0; n < w->code->count; n++)
        if (hd__is_async(&w->code->at[n]))
            wait_for(w, n);
}

static void insert_waits(struct hd_program *p, hd__code *code, const uint32_t *position)
{
    struct waits w = {
        .p = p, .code = code, .waited = hd__alloc(code->count), .head = hd__alloc(p->buffers.count * sizeof(uint32_t))};
    place_waits(&w, position);
    free(code->at);
    *code = w.out;
    hd__free_array(&w.pending);
    hd__free_array(&w.sends);
    free(w.waited);
    free(w.head);
}

int32_t hd__schedule_instrs(struct hd_program *p, struct hd_error *err)
{
    if (give_buffers(p, err))
        return err->code;
    for (uint32_t s = 0; s < p->sections.count && !p->keep_weight_order; s++)
        sink_weight_gradients(p, &p->sections.at[s].code);
    uint32_t *position = hd__instr_positions(p);
    for (uint32_t s = 0; s < p->sections.count; s++)
        insert_waits(p, &p->sections.at[s].code, position);
    free(position);
    return HD_OK;
}
