/* Rules that a step program must satisfy within one rank: operands fit their op, and are defined, waited for and not
 * released. The analyses in the table below are asked of every instruction. Across ranks: machine.c. */
#include "core/verify/verify.h"

#include <stdlib.h>

#include "heddle/reference.h"

#define MAX_DIAGS 8

void hd__verify_diag(struct hd__verify_diags *f, const char *format, ...)
{
    va_list args;
    char where[160], what[512];
    if (f->section && f->count++ >= MAX_DIAGS)
        return;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    if (f->section)
        hd__text_add(&f->text, "%s%s: %s", f->text.length ? "\n" : "",
                     hd__instr_text(f->p, f->section, f->position, where), what);
    else
        hd__text_add(&f->text, "%s%s", f->text.length ? "\n" : "", what);
}

struct flight {
    struct hd__access touch;
    uint32_t instr; /* position */
    uint32_t next;  /* of the same buffer; 0: none */
};

enum { ABSENT = 0, DEFINED, RELEASED };
enum { IDLE = 0, IN_FLIGHT, REPORTED, WAITED }; /* BLAMED: touched too early, which was reported; once is enough */

static const struct hd__verify_analysis *const analyses[] = {
    &hd__verify_value_numbers, &hd__verify_grad_reduce, &hd__verify_once,      &hd__verify_staleness,
    &hd__verify_replica_sync,  &hd__verify_ring_offset, &hd__verify_placement, &hd__verify_dtypes,
    &hd__verify_rank_view,     &hd__verify_attributes};
#define ANALYSES HD__COUNT(analyses)

struct walk {
    const struct hd_program *p;
    struct hd__verify_diags diags;
    const hd__code *code;
    const uint32_t *position;
    uint8_t *buffer;  /* by buffer: ABSENT, DEFINED, RELEASED */
    uint8_t *carried; /* by buffer: an earlier section of this step has touched what lives for a step */
    uint8_t *taken;   /* by tensor: another has taken its memory */
    /* by tensor: how many of this section wrote it, the last that does not add and those behind it */
    uint32_t *written;
    uint8_t *in_flight; /* by position: IDLE, FLYING, ... */
    uint32_t *head;     /* by buffer: first flight; 0: none */
    HD__ARRAY(struct flight) flights;
    void *state[ANALYSES]; /* of proofs[] */
};

static const char *name_of(const struct walk *w, hd_tensor t)
{
    return hd__tensor_const(w->p, t)->name;
}

/* ---- operands */

static int arity_fits(const struct walk *w, const struct hd__instr *i)
{
    const struct hd__op *row = hd__op(i->op);
    if (!row->name)
        return 0;
    if ((row->n_in >= 0 && i->n_in != row->n_in) || (row->n_out >= 0 && i->n_out != row->n_out) ||
        i->n_in > HD_MAX_IN || i->n_out > HD_MAX_OUT)
        return 0;
    for (uint32_t k = 0; k < (uint32_t)i->n_in + i->n_out; k++) {
        hd_tensor t = k < i->n_in ? i->in[k] : i->out[k - i->n_in];
        if (!t || t >= w->p->tensors.count)
            return 0;
    }
    return 1;
}

/* Compute and communication use the main memory; a copy of the copy streams has one end in another. */
static void check_memories(struct walk *w, const struct hd__instr *i)
{
    uint32_t elsewhere = 0;
    for (uint32_t k = 0; k < (uint32_t)i->n_in + i->n_out; k++) {
        hd_tensor t = k < i->n_in ? i->in[k] : i->out[k - i->n_in];
        elsewhere += hd__memory_of(w->p, t) != HD__MEM_MAIN;
        if (hd__memory_of(w->p, t) != HD__MEM_MAIN && !hd__is_copy(i))
            hd__verify_diag(&w->diags, "%s is offloaded: only copies may access it", name_of(w, t));
    }
    if (hd__is_copy(i) && elsewhere != 1)
        hd__verify_diag(&w->diags, "offload copy must have exactly one end in device memory");
    if (hd__is_copy(i) && hd__tensor_const(w->p, i->in[0])->dtype != hd__tensor_const(w->p, i->out[0])->dtype)
        hd__verify_diag(&w->diags, "offload copy cannot change %s's dtype", name_of(w, i->in[0]));
}

static int operands_exist(struct walk *w, const struct hd__instr *i)
{
    struct hd__access t[HD__MAX_ACCESSES];
    uint8_t class = hd__op(i->op)->class;
    if (!arity_fits(w, i)) {
        hd__verify_diag(&w->diags, "op %u with %u inputs and %u outputs does not match its row in the op table", i->op,
                        i->n_in, i->n_out);
        return 0;
    }
    if ((class == HD__CLASS_COLLECTIVE || class == HD__CLASS_P2P || (i->op == HD_OP_COPY && hd__is_copy(i))) !=
        hd__is_async(i)) {
        hd__verify_diag(&w->diags, hd__is_async(i)
                                       ? "only collectives, sends, receives and offload copies are asynchronous"
                                       : "collectives, sends and receives cannot run on the compute stream");
        return 0;
    }
    for (uint32_t n = hd__accesses(w->p, i, t), k = 0; k < n; k++) {
        int64_t bytes = w->p->buffers.at[t[k].buffer].bytes;
        if (!t[k].buffer) {
            hd__verify_diag(&w->diags, "%s has no buffer", name_of(w, t[k].tensor));
            return 0;
        }
        if (t[k].lo < 0 || t[k].hi > bytes)
            hd__verify_diag(&w->diags, "%s is bytes [%lld, %lld) of buffer %s, which has %lld", name_of(w, t[k].tensor),
                            (long long)t[k].lo, (long long)t[k].hi, w->p->buffers.at[t[k].buffer].name,
                            (long long)bytes);
    }
    check_memories(w, i);
    return 1;
}

/* Of so many values, encoded, or decoded: in parts that are joined, or summed. */
static int64_t code_bytes(const struct hd__instr *i, int64_t values)
{
    const struct hd_attrs *a = i->attrs;
    int sums = i->op == HD_OP_DECODE && a && !(a->flags & HD_ATTR_CONCAT);
    if (!a || !a->parts || !a->window)
        return -1;
    return a->parts * hd_code_bytes(sums ? values : hd_code_part(values, a->parts), a->window, a->index);
}

/* Elements that a collective's input must have, for one of its output; by ways. */
static int sizes_fit(const struct walk *w, const struct hd__instr *i)
{
    int64_t in, out, ways = i->members ? __builtin_popcount(i->members) : hd__mesh_ways(&w->p->mesh, i->axes);
    if (!i->n_in || !i->n_out)
        return 1;
    in = hd__numel(w->p, hd__tensor_const(w->p, i->in[0]));
    out = hd__numel(w->p, hd__tensor_const(w->p, i->out[0]));
    switch (i->op) {
    case HD_OP_ALL_GATHER:
        return out == in * ways;
    case HD_OP_REDUCE_SCATTER:
        return in == out * ways;
    case HD_OP_ALL_REDUCE:
    case HD_OP_ALL_TO_ALL:
    case HD_OP_BROADCAST:
    case HD_OP_ACCUM:
    case HD_OP_COPY:
        return in == out;
    case HD_OP_EINSUM: /* a product has the dims of its factors */
        for (int32_t d = 0; d < hd__tensor_const(w->p, i->out[0])->ndim; d++)
            if (hd__dim_index(hd__tensor_const(w->p, i->in[0]), hd__tensor_const(w->p, i->out[0])->dim[d]) < 0 &&
                hd__dim_index(hd__tensor_const(w->p, i->in[1]), hd__tensor_const(w->p, i->out[0])->dim[d]) < 0)
                return 0;
        return 1;
    case HD_OP_ENCODE:
        return out == code_bytes(i, in);
    case HD_OP_DECODE:
        return in == code_bytes(i, out);
    default:
        return 1;
    }
}

/* ---- definitions, waits */

static void check_read(struct walk *w, const struct hd__access *t)
{
    if (w->p->buffers.at[t->buffer].life == HD__LIFE_PERSISTENT)
        return;
    if (w->buffer[t->buffer] == RELEASED)
        hd__verify_diag(&w->diags, "use of %s after its release", name_of(w, t->tensor));
    else if (w->buffer[t->buffer] == ABSENT)
        hd__verify_diag(&w->diags, "use of %s before its definition", name_of(w, t->tensor));
    else if (hd__tensor_const(w->p, t->tensor)->role == HD__ROLE_ACT && !w->written[t->tensor])
        hd__verify_diag(&w->diags, "use of %s before its definition: its memory holds another tensor",
                        name_of(w, t->tensor));
    else if (!t->writes && hd__tensor_const(w->p, t->tensor)->n_terms > 1 &&
             hd__tensor_const(w->p, t->tensor)->n_terms != w->written[t->tensor])
        hd__verify_diag(&w->diags, "use of %s with %u of its %u terms accumulated", name_of(w, t->tensor),
                        w->written[t->tensor], hd__tensor_const(w->p, t->tensor)->n_terms);
    else if (w->taken[t->tensor])
        hd__verify_diag(&w->diags, "use of %s after its memory was reused by an in-place output",
                        name_of(w, t->tensor));
}

static void check_in_flight(struct walk *w, const struct hd__access *t)
{
    char on[160];
    uint32_t *link = &w->head[t->buffer];
    while (*link) {
        const struct flight *x = &w->flights.at[*link];
        if (w->in_flight[x->instr] != IN_FLIGHT) {
            *link = x->next;
            continue;
        }
        if (hd__access_conflict(&x->touch, t)) {
            hd__verify_diag(&w->diags, "accesses %s while %s is in flight: missing wait", name_of(w, t->tensor),
                            hd__instr_text(w->p, w->diags.section, x->instr, on));
            w->in_flight[x->instr] = REPORTED;
            return;
        }
        link = &w->flights.at[*link].next;
    }
}

static void check_wait(struct walk *w, const struct hd__instr *i)
{
    uint32_t on = hd__wait_target(w->p, w->code, w->position, i);
    if (on >= w->diags.position)
        hd__verify_diag(&w->diags, "waits for instruction %u, which is not before it in this section", i->wait);
    else if (w->in_flight[on] != IN_FLIGHT && w->in_flight[on] != REPORTED)
        hd__verify_diag(&w->diags, "waits for an operation that is not in flight%s",
                        w->in_flight[on] == WAITED ? " any more" : "");
    else
        w->in_flight[on] = WAITED;
}

static void define(struct walk *w, const struct hd__instr *i, const struct hd__access *t, uint32_t n)
{
    for (uint32_t k = 0; k < n; k++)
        if (t[k].writes) {
            w->buffer[t[k].buffer] = i->op == HD_OP_RELEASE ? RELEASED : DEFINED;
            w->taken[t[k].tensor] = 0;
            w->written[t[k].tensor] = t[k].reads ? w->written[t[k].tensor] + 1 : 1;
        }
    for (uint32_t k = 0; k < n && hd__is_async(i); k++) {
        hd__push(&w->flights, ((struct flight){t[k], w->diags.position, w->head[t[k].buffer]}));
        w->head[t[k].buffer] = w->flights.count - 1;
    }
    if (i->n_in && i->n_out && i->in[0] != i->out[0] && hd__op(i->op)->flags & HD__OP_IN_PLACE &&
        hd__tensor_const(w->p, i->in[0])->buffer == hd__tensor_const(w->p, i->out[0])->buffer)
        w->taken[i->in[0]] = 1;
}

static void check_instr(struct walk *w, const struct hd__instr *i)
{
    struct hd__access t[HD__MAX_ACCESSES];
    uint32_t n;
    if (i->op == HD_OP_WAIT) {
        check_wait(w, i);
        return;
    }
    if (!operands_exist(w, i))
        return;
    if ((i->op == HD_OP_ALL_REDUCE || i->op == HD_OP_REDUCE_SCATTER) &&
        i->redop != hd__tensor_const(w->p, i->in[0])->placement.redop)
        hd__verify_diag(&w->diags, "%s has the wrong reduction: %s is a partial %s", hd__op(i->op)->name,
                        name_of(w, i->in[0]),
                        hd__tensor_const(w->p, i->in[0])->placement.redop == HD_MAX ? "maximum" : "sum");
    if (!sizes_fit(w, i))
        hd__verify_diag(&w->diags, "%s does not have the size of %s of %s", name_of(w, i->out[0]), hd__op(i->op)->name,
                        name_of(w, i->in[0]));
    n = hd__accesses(w->p, i, t);
    for (uint32_t k = 0; k < n; k++) {
        if (t[k].reads || i->op == HD_OP_RELEASE)
            check_read(w, &t[k]);
        check_in_flight(w, &t[k]);
    }
    define(w, i, t, n);
    w->in_flight[w->diags.position] = hd__is_async(i) ? IN_FLIGHT : IDLE;
    for (size_t k = 0; k < ANALYSES; k++)
        analyses[k]->visit(w->state[k], &w->diags, i);
}

/* Buffers that live for a step carry over from one of its sections to the next. */
static void reset_temporaries(struct walk *w, const struct hd__code_section *s)
{
    int in_step = s->repeat > 0 && s->kind != HD__SECTION_BEGIN;
    for (uint32_t b = 0; b < w->p->buffers.count; b++) {
        if (in_step && w->p->buffers.at[b].life == HD__LIFE_STEP)
            continue;
        w->buffer[b] = ABSENT;
        w->carried[b] = s->repeat > 0 ? 0 : w->carried[b];
    }
}

static void check_section(struct walk *w, const struct hd__code_section *s)
{
    w->diags.section = s;
    w->code = &s->code;
    w->in_flight = hd__alloc(s->code.count + 1);
    reset_temporaries(w, s);
    memset(w->taken, 0, w->p->tensors.count);
    memset(w->written, 0, w->p->tensors.count * sizeof *w->written);
    memset(w->head, 0, w->p->buffers.count * sizeof *w->head);
    w->flights.count = 1; /* index 0 is none */
    for (size_t n = 0; n < ANALYSES; n++)
        if (analyses[n]->section_begin)
            analyses[n]->section_begin(w->state[n], &w->diags);
    for (w->diags.position = 0; w->diags.position < s->code.count; w->diags.position++)
        check_instr(w, &s->code.at[w->diags.position]);
    for (w->diags.position = 0; w->diags.position < s->code.count; w->diags.position++)
        if (w->in_flight[w->diags.position] == IN_FLIGHT)
            hd__verify_diag(&w->diags, "is never waited for");
    for (size_t n = 0; n < ANALYSES; n++) /* also where nothing is left of it */
        if (analyses[n]->section_end)
            analyses[n]->section_end(w->state[n], &w->diags);
    free(w->in_flight);
}

/* Of a step, and what is no part of any. */
static void check_step(struct walk *w, int64_t step)
{
    const struct hd_program *p = w->p;
    for (uint32_t s = 0; s < p->sections.count; s++) {
        uint32_t before = w->diags.count;
        if (p->sections.at[s].after >= step || (p->sections.at[s].last && p->sections.at[s].last < step))
            continue;
        for (int32_t round = hd__section_walks(&p->sections.at[s]); round > 0 && w->diags.count == before; round--)
            check_section(w, &p->sections.at[s]);
        if (p->arena_bytes && w->diags.count == before)
            hd__verify_memory_overlap(&w->diags, &p->sections.at[s], w->position, w->carried);
    }
}

/* The first step, and where later ones differ one of them. */
static void check_sections(struct walk *w)
{
    int64_t steady = hd__steady_step(w->p);
    hd__push(&w->flights, (struct flight){.instr = 0});
    check_step(w, 1);
    if (steady > 1 && !w->diags.count)
        check_step(w, steady);
}

static struct walk open_walk(const struct hd_program *p, const uint32_t *position)
{
    struct walk w = {.p = p,
                     .diags.p = p,
                     .position = position,
                     .buffer = hd__alloc(p->buffers.count),
                     .carried = hd__alloc(p->buffers.count),
                     .taken = hd__alloc(p->tensors.count),
                     .head = hd__alloc(p->buffers.count * sizeof(uint32_t)),
                     .written = hd__alloc(p->tensors.count * sizeof(uint32_t))};
    w.diags.terms = w.written;
    for (size_t n = 0; n < ANALYSES; n++)
        w.state[n] = analyses[n]->create ? analyses[n]->create(p) : NULL;
    return w;
}

static void close_walk(struct walk *w)
{
    for (size_t n = 0; n < ANALYSES; n++)
        if (analyses[n]->destroy)
            analyses[n]->destroy(w->state[n]);
    hd__text_free(&w->diags.text);
    hd__free_array(&w->flights);
    free(w->buffer);
    free(w->carried);
    free(w->taken);
    free(w->written);
    free(w->head);
}

int32_t hd__verify(struct hd_program *p, struct hd_error *err)
{
    int32_t code = HD_OK;
    uint32_t *position = hd__instr_positions(p);
    struct walk w = open_walk(p, position);
    if (p->arena_bytes)
        hd__verify_memory_arenas(&w.diags);
    check_sections(&w);
    w.diags.section = NULL;
    for (size_t n = 0; n < ANALYSES; n++)
        if (analyses[n]->finish)
            analyses[n]->finish(w.state[n], &w.diags);
    if (w.diags.count > MAX_DIAGS)
        hd__text_add(&w.diags.text, "\nand %u more", w.diags.count - MAX_DIAGS);
    if (w.diags.text.length)
        code = hd_fail(err, HD_E_INVALID, "%s", w.diags.text.at);
    close_walk(&w);
    free(position);
    return code;
}
