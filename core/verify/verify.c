/* Rules that a step program must satisfy within one rank: operands fit their op, and are defined, waited for and not
 * released. The rules in the table below see every instruction. Across ranks: machine.c. */
#include "core/verify/verify.h"

#include <stdlib.h>

#include "heddle/reference.h"

#define MAX_DIAGS 8

void hd__diag(struct hd__walk *w, const char *format, ...)
{
    va_list args;
    char where[160], what[512];
    if (w->section && w->count++ >= MAX_DIAGS)
        return;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    if (w->section)
        hd__text_add(&w->text, "%s%s: %s", w->text.length ? "\n" : "",
                     hd__instr_text(w->p, w->section, w->position, where), what);
    else
        hd__text_add(&w->text, "%s%s", w->text.length ? "\n" : "", what);
}

enum { ABSENT = 0, DEFINED, RELEASED };
enum { IDLE = 0, IN_FLIGHT, REPORTED, WAITED }; /* REPORTED: touched too early, which was reported; once is enough */

static const struct hd__rules *const rules[] = {
    &hd__rules_value_numbers, &hd__rules_grad_reduce, &hd__rules_once,   &hd__rules_staleness, &hd__rules_facts,
    &hd__rules_ring_offset,   &hd__rules_placement,   &hd__rules_dtypes, &hd__rules_rank_view, &hd__rules_attributes};

/* ---- operands */

static int arity_fits(const struct hd__walk *w, const struct hd__instr *i)
{
    const struct hd__op *row = hd__op(i->op);
    if (!row->name || !hd__op_takes(row, i->n_in) || (row->n_out >= 0 && i->n_out != row->n_out) ||
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
static void check_memories(struct hd__walk *w, const struct hd__instr *i)
{
    uint32_t elsewhere = 0;
    for (uint32_t k = 0; k < (uint32_t)i->n_in + i->n_out; k++) {
        hd_tensor t = k < i->n_in ? i->in[k] : i->out[k - i->n_in];
        elsewhere += hd__memory_of(w->p, t) != HD__MEM_MAIN;
        if (hd__memory_of(w->p, t) != HD__MEM_MAIN && !hd__is_copy(i))
            hd__diag(w, "%s is offloaded: only copies may access it", hd__name_of(w, t));
    }
    if (hd__is_copy(i) && elsewhere != 1)
        hd__diag(w, "offload copy must have exactly one end in device memory");
    if (hd__is_copy(i) && hd__tensor_const(w->p, i->in[0])->dtype != hd__tensor_const(w->p, i->out[0])->dtype)
        hd__diag(w, "offload copy cannot change %s's dtype", hd__name_of(w, i->in[0]));
}

static int operands_exist(struct hd__walk *w, const struct hd__instr *i)
{
    const struct hd__access *t = w->access;
    uint8_t class = hd__op(i->op)->class;
    if (!arity_fits(w, i)) {
        hd__diag(w, "op %u with %u inputs and %u outputs does not match its row in the op table", i->op, i->n_in,
                 i->n_out);
        return 0;
    }
    if ((class == HD__CLASS_COLLECTIVE || class == HD__CLASS_P2P || (i->op == HD_OP_COPY && hd__is_copy(i))) !=
        hd__is_async(i)) {
        hd__diag(w, hd__is_async(i) ? "only collectives, sends, receives and offload copies are asynchronous"
                                    : "collectives, sends and receives cannot run on the compute stream");
        return 0;
    }
    w->n_accesses = hd__accesses(w->p, i, w->access);
    for (uint32_t k = 0; k < w->n_accesses; k++) {
        int64_t bytes = w->p->buffers.at[t[k].buffer].bytes;
        if (!t[k].buffer) {
            hd__diag(w, "%s has no buffer", hd__name_of(w, t[k].tensor));
            return 0;
        }
        if (t[k].lo < 0 || t[k].hi > bytes)
            hd__diag(w, "%s is bytes [%lld, %lld) of buffer %s, which has %lld", hd__name_of(w, t[k].tensor),
                     (long long)t[k].lo, (long long)t[k].hi, w->p->buffers.at[t[k].buffer].name, (long long)bytes);
    }
    check_memories(w, i);
    return 1;
}

/* Bytes of so many values, encoded, or decoded: in parts that are joined, or summed. */
static int64_t code_bytes(const struct hd__instr *i, int64_t values)
{
    const struct hd_attrs *a = i->attrs;
    int sums = i->op == HD_OP_DECODE && a && !(a->flags & HD_ATTR_CONCAT);
    if (!a || !a->parts || !a->window)
        return -1;
    return a->parts * hd_code_bytes(sums ? values : hd_code_part(values, a->parts), a->window, a->index);
}

/* Elements that a collective's input must have, for one of its output; by ways. */
static int sizes_fit(const struct hd__walk *w, const struct hd__instr *i)
{
    int64_t in, out, ways = i->members ? __builtin_popcountll(i->members) : hd__mesh_ways(&w->p->mesh, i->axes);
    if (!i->n_in || !i->n_out)
        return 1;
    in = hd__numel(w->p, hd__tensor_const(w->p, i->in[0]));
    out = hd__numel(w->p, hd__tensor_const(w->p, i->out[0]));
    if (hd__is_collective(i->op))
        return hd__op_splits(i->op) == hd__op_joins(i->op) ? in == out
               : hd__op_joins(i->op)                       ? out == in * ways
                                                           : in == out * ways;
    switch (i->op) {
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

static void check_read(struct hd__walk *w, const struct hd__access *t)
{
    if (w->p->buffers.at[t->buffer].life == HD__LIFE_PERSISTENT)
        return;
    if (w->buffer[t->buffer].life == RELEASED)
        hd__diag(w, "use of %s after its release", hd__name_of(w, t->tensor));
    else if (w->buffer[t->buffer].life == ABSENT)
        hd__diag(w, "use of %s before its definition", hd__name_of(w, t->tensor));
    else if (hd__tensor_const(w->p, t->tensor)->role == HD__ROLE_ACT && !w->tensor[t->tensor].terms)
        hd__diag(w, "use of %s before its definition: its memory holds another tensor", hd__name_of(w, t->tensor));
    else if (!t->writes && hd__tensor_const(w->p, t->tensor)->n_terms > 1 &&
             hd__tensor_const(w->p, t->tensor)->n_terms != w->tensor[t->tensor].terms)
        hd__diag(w, "use of %s with %u of its %u terms accumulated", hd__name_of(w, t->tensor),
                 w->tensor[t->tensor].terms, hd__tensor_const(w->p, t->tensor)->n_terms);
    else if (w->tensor[t->tensor].taken)
        hd__diag(w, "use of %s after its memory was reused by an in-place output", hd__name_of(w, t->tensor));
}

static void check_in_flight(struct hd__walk *w, const struct hd__access *t)
{
    char on[160];
    uint32_t *link = &w->buffer[t->buffer].in_flight;
    while (*link) {
        const struct hd__async_access *x = &w->flights.at[*link];
        if (w->waits[x->instr] != IN_FLIGHT) {
            *link = x->next;
            continue;
        }
        if (hd__access_conflict(&x->touch, t)) {
            hd__diag(w, "accesses %s while %s is in flight: missing wait", hd__name_of(w, t->tensor),
                     hd__instr_text(w->p, w->section, x->instr, on));
            w->waits[x->instr] = REPORTED;
            return;
        }
        link = &w->flights.at[*link].next;
    }
}

static void check_wait(struct hd__walk *w, const struct hd__instr *i)
{
    uint32_t on = hd__wait_target(w->p, &w->section->code, w->instr_at, i);
    if (on >= w->position)
        hd__diag(w, "waits for instruction %u, which is not before it in this section", i->wait);
    else if (w->waits[on] != IN_FLIGHT && w->waits[on] != REPORTED)
        hd__diag(w, "waits for an operation that is not in flight%s", w->waits[on] == WAITED ? " any more" : "");
    else
        w->waits[on] = WAITED;
}

static void define(struct hd__walk *w, const struct hd__instr *i)
{
    const struct hd__access *t = w->access;
    uint32_t n = w->n_accesses;
    for (uint32_t k = 0; k < n; k++)
        if (t[k].writes) {
            w->buffer[t[k].buffer].life = i->op == HD_OP_RELEASE ? RELEASED : DEFINED;
            w->tensor[t[k].tensor].taken = 0;
            w->tensor[t[k].tensor].terms = t[k].reads ? w->tensor[t[k].tensor].terms + 1 : 1;
        }
    for (uint32_t k = 0; k < n && hd__is_async(i); k++) {
        hd__push(&w->flights, ((struct hd__async_access){t[k], w->position, w->buffer[t[k].buffer].in_flight}));
        w->buffer[t[k].buffer].in_flight = w->flights.count - 1;
    }
    if (i->n_in && i->n_out && i->in[0] != i->out[0] && hd__op(i->op)->flags & HD__OP_IN_PLACE &&
        hd__tensor_const(w->p, i->in[0])->buffer == hd__tensor_const(w->p, i->out[0])->buffer)
        w->tensor[i->in[0]].taken = 1;
}

static void check_instr(struct hd__walk *w, const struct hd__instr *i)
{
    if (i->op == HD_OP_WAIT) {
        check_wait(w, i);
        return;
    }
    if (!operands_exist(w, i))
        return;
    if (hd__op_sums(i->op) && i->redop != hd__tensor_const(w->p, i->in[0])->placement.redop)
        hd__diag(w, "%s has the wrong reduction: %s is a partial %s", hd__op(i->op)->name, hd__name_of(w, i->in[0]),
                 hd__tensor_const(w->p, i->in[0])->placement.redop == HD_MAX ? "maximum" : "sum");
    if (!sizes_fit(w, i))
        hd__diag(w, "%s does not have the size of %s of %s", hd__name_of(w, i->out[0]), hd__op(i->op)->name,
                 hd__name_of(w, i->in[0]));
    for (uint32_t k = 0; k < w->n_accesses; k++) {
        if (w->access[k].reads || i->op == HD_OP_RELEASE)
            check_read(w, &w->access[k]);
        check_in_flight(w, &w->access[k]);
    }
    define(w, i);
    w->waits[w->position] = hd__is_async(i) ? IN_FLIGHT : IDLE;
    for (size_t k = 0; k < HD__COUNT(rules); k++)
        rules[k]->visit(w, i);
}

/* Slots that several rules may have. */
#define ALL_RULES(slot)                             \
    for (size_t k = 0; k < HD__COUNT(rules); k++) { \
        if (rules[k]->slot)                         \
            rules[k]->slot(w);                      \
    }

/* Facts about this section's own tensors and buffers are forgotten; buffers that live for a step carry over from one
 * of its sections to the next. */
static void forget_temporaries(struct hd__walk *w)
{
    int in_step = w->section->repeat > 0 && w->section->kind != HD__SECTION_BEGIN;
    for (uint32_t b = 0; b < w->p->buffers.count; b++) {
        w->buffer[b].in_flight = 0;
        if (in_step && w->p->buffers.at[b].life == HD__LIFE_STEP)
            continue;
        w->buffer[b].life = ABSENT;
        w->buffer[b].carried = w->section->repeat > 0 ? 0 : w->buffer[b].carried;
    }
    for (hd_tensor t = 0; t < w->p->tensors.count; t++)
        w->tensor[t].taken = w->tensor[t].terms = 0;
    w->flights.count = 1; /* index 0 is none */
}

static void check_section(struct hd__walk *w)
{
    const hd__code *code = &w->section->code;
    w->waits = hd__alloc(code->count + 1);
    forget_temporaries(w);
    ALL_RULES(section_begin)
    for (w->position = 0; w->position < code->count; w->position++)
        check_instr(w, &code->at[w->position]);
    for (w->position = 0; w->position < code->count; w->position++)
        if (w->waits[w->position] == IN_FLIGHT)
            hd__diag(w, "is never waited for");
    ALL_RULES(section_end) /* also where nothing is left of it */
    free(w->waits);
}

/* Sections of a step, and what is no part of any. */
static void check_step(struct hd__walk *w, int64_t step)
{
    for (uint32_t s = 0; s < w->p->sections.count; s++) {
        uint32_t before = w->count;
        w->section = &w->p->sections.at[s];
        if (w->section->after >= step || (w->section->last && w->section->last < step))
            continue;
        for (int32_t round = hd__section_walks(w->section); round > 0 && w->count == before; round--)
            check_section(w);
        if (w->p->arena_bytes && w->count == before)
            hd__check_temporaries(w);
    }
}

static struct hd__walk *open_walk(const struct hd_program *p)
{
    struct hd__walk *w = hd__alloc(sizeof *w);
    w->p = p;
    w->tensor = hd__alloc(p->tensors.count * sizeof *w->tensor);
    w->buffer = hd__alloc(p->buffers.count * sizeof *w->buffer);
    w->flat = hd__alloc((p->flats.count + 1) * sizeof *w->flat);
    w->values = hd__value_numbers_create(p);
    w->instr_at = hd__instr_positions(p);
    hd__push(&w->flights, (struct hd__async_access){.instr = 0});
    for (uint32_t f = 0; f < p->flats.count; f++)
        w->tensor[p->flats.at[f].tensor[HD__FLAT_SHARD]].shard_of = f + 1;
    w->tensor[0].shard_of = 0;
    ALL_RULES(begin)
    return w;
}

static void close_walk(struct hd__walk *w)
{
    for (uint32_t b = 0; b < w->p->buffers.count; b++)
        hd__free_array(&w->buffer[b].gradients);
    hd__value_numbers_destroy(w->values);
    hd__text_free(&w->text);
    hd__free_array(&w->flights);
    hd__free_array(&w->norm_terms);
    hd__free_array(&w->followed);
    hd__arena_free(&w->arena);
    hd__free_array(&w->asked);
    free(w->instr_at);
    free(w->tensor);
    free(w->buffer);
    free(w->flat);
    free(w);
}

static int32_t close_verdict(struct hd__walk *w, struct hd_error *err)
{
    if (w->count > MAX_DIAGS)
        hd__text_add(&w->text, "\nand %u more", w->count - MAX_DIAGS);
    int32_t code = w->text.length ? hd_fail(err, HD_E_INVALID, "%s", w->text.at) : HD_OK;
    close_walk(w);
    return code;
}

int32_t hd__verify_memory(struct hd_program *p, struct hd_error *err)
{
    struct hd__walk *w = open_walk(p);
    hd__check_arenas(w);
    for (uint32_t s = 0; s < p->sections.count; s++) {
        w->section = &p->sections.at[s];
        hd__check_temporaries(w);
    }
    return close_verdict(w, err);
}

int32_t hd__verify(struct hd_program *p, struct hd_error *err)
{
    int64_t steady = hd__steady_step(p);
    struct hd__walk *w = open_walk(p);
    p->gather_deferred = w->stale_at_end;
    if (p->arena_bytes)
        hd__check_arenas(w);
    check_step(w, 1); /* where later ones differ, one of them as well */
    if (steady > 1 && !w->count)
        check_step(w, steady);
    w->section = NULL;
    ALL_RULES(finish)
    return close_verdict(w, err);
}
