/* Instructions of a strategy's own ops run in their order on every rank of a stage, on made-up gradients and errors;
 * collectives of what they made are carried out, so that a decoder gets the codes of its group. Of every op: nothing
 * but its outputs is written, all of them are, and by its inputs alone. Of a proof:
 *
 *   LINEAR, MAP     each element by itself; of LINEAR f(x) + f(y) = f(x + y)
 *   ENCODE, DECODE  with error feedback what is decoded is the sum of g + e - e' over the ranks whose codes came; e'
 *                   is what the encoder left, and does not grow without end */
#include "conformance/custom_ops.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "conformance/check.h"
#include "conformance/faults.h"
#include "core/base/dtype.h"
#include "core/plugin/crash.h"
#include "core/program/ops.h"

enum { RANKS = 8, GUARD = 4096, ALIGN = 64, ROUNDINGS = 32 };

/* Gradients and errors; of PLAIN and ZEROS the results are compared, and no op may fail on TINY, which are denormal. */
enum { PLAIN, ZEROS, TINY, LARGEST, SPECIAL, FILLS };
static const char *const fills[] = {"plain numbers", "zeros", "denormal numbers", "the largest numbers",
                                    "NaN and infinities"};

/* A tensor that custom ops made, or collectives of those. */
struct value {
    char *data[RANKS];        /* NULL: not known */
    uint32_t from[RANKS];     /* codes: the ranks that made them, a mask */
    const struct code *codes; /* of which encoder; NULL: no codes with error feedback */
};

/* The elements, from `first` on, that an encoder's codes stand for on each rank. */
struct code {
    const char *name;
    const char *input;
    int64_t first[RANKS], count[RANKS];
    double *is[RANKS], *size[RANKS]; /* g + e - e', |g| + |e| + |e'| */
    uint32_t digits;                 /* of the least precise dtype of g and e */
};

struct machine {
    const struct hd_program *p;
    const char *job;
    struct conf_custom_seen *seen;
    struct hd__arena memory;
    struct value *value; /* by tensor */
    int fill;
};

/* One instruction on one rank. */
struct call {
    struct machine *m;
    const struct hd__instr *i;
    int32_t rank;
    struct hd_instr_desc d;
    struct hd_operand in[HD_MAX_IN], out[HD_MAX_OUT];
};

#define OP_FAILS(c, ...)                                                                                         \
    do {                                                                                                         \
        char conf_says[512];                                                                                     \
        snprintf(conf_says, sizeof conf_says, __VA_ARGS__);                                                      \
        ck_abort_msg("custom op %s (%s) on rank %d of %d, given %s: %s\n%s", (c)->i->custom->name, (c)->d.label, \
                     (c)->rank, (c)->m->p->mesh.ranks, fills[(c)->m->fill], conf_says, (c)->m->job);             \
    } while (0)

/* A crash is one of this op. */
static void announce(const struct call *c)
{
    char text[256];
    snprintf(text, sizeof text, "custom op %s (%s) on rank %d of %d, given %s, has", c->i->custom->name, c->d.label,
             c->rank, c->m->p->mesh.ranks, fills[c->m->fill]);
    hd__crash_catch(text, "");
}

/* ---- operands, with guards around them */

static size_t bytes_of(const struct hd_operand *o)
{
    return (size_t)hd_operand_count(o) * hd_dtype_size(o->dtype);
}

static char *guarded(struct machine *m, size_t bytes)
{
    char *block = hd__arena_alloc(&m->memory, GUARD + bytes + GUARD + ALIGN);
    char *data = block + GUARD + (ALIGN - (uintptr_t)(block + GUARD) % ALIGN) % ALIGN;
    for (size_t k = 1; k <= GUARD; k++)
        data[-(int64_t)k] = data[bytes + k - 1] = (char)(k * 37 ^ 0xa5);
    return data;
}

static void check_guards(const struct call *c, const struct hd_operand *o, hd_tensor t, const char *side, uint32_t n)
{
    const char *data = o->data;
    size_t bytes = bytes_of(o);
    for (size_t k = 1; k <= GUARD; k++) {
        int before = data[-(int64_t)k] != (char)(k * 37 ^ 0xa5);
        if (before || data[bytes + k - 1] != (char)(k * 37 ^ 0xa5))
            OP_FAILS(c, "it writes byte %zu %s %s %u, %s, which has %zu bytes", k,
                     before ? "before" : "behind the end of", side, n, hd__tensor_const(c->m->p, t)->name, bytes);
    }
}

static double drawn(void)
{
    return ((double)conf_faults_pick(2001) - 1000) / 1000;
}

static double number(int fill, uint32_t dtype)
{
    static const double special[] = {NAN, INFINITY, -INFINITY, 0.0, -0.0, 1.0};
    switch (fill) {
    case ZEROS:
        return 0;
    case TINY:
        return drawn() * ldexp(1, dtype == HD_F64 ? -1060 : -135);
    case LARGEST:
        return conf_faults_pick(2) ? FLT_MAX : -FLT_MAX;
    case SPECIAL:
        return special[conf_faults_pick(HD__COUNT(special))];
    default:
        return drawn() * ldexp(1, -(int)conf_faults_pick(8));
    }
}

/* Is an element of a flat buffer a parameter's? The rest is padding, and zeros. */
static int is_used(const struct call *c, hd_tensor t, int64_t at)
{
    const struct hd_attrs *a = &c->d.attrs;
    const struct hd_program *p = c->m->p;
    for (uint64_t r = 0; r < a->n_ranges; r++)
        if (at >= a->ranges[r].first && at < a->ranges[r].first + a->ranges[r].count)
            return 1;
    for (uint32_t f = 0; f < p->flats.count && !a->n_ranges; f++) {
        const struct hd__flat *flat = &p->flats.at[f];
        for (uint32_t k = 0; k < flat->n_params && flat->dim == hd__tensor_const(p, t)->dim[0]; k++)
            if (at >= flat->offset[k] &&
                at < flat->offset[k] + hd__numel(p, hd__tensor_const(p, p->params.at[flat->params[k]].tensor)))
                return 1;
        if (flat->dim == hd__tensor_const(p, t)->dim[0])
            return 0;
    }
    return !a->n_ranges;
}

/* A gradient, or an error that earlier steps left. */
static void fill_gradient(const struct call *c, const struct hd_operand *o, hd_tensor t)
{
    for (int64_t n = 0; n < hd_operand_count(o); n++) {
        int used = o->ndim != 1 || is_used(c, t, o->start[0] + n);
        hd__dtype_store(o->dtype, (char *)o->data + (size_t)n * hd_dtype_size(o->dtype),
                        used ? number(c->m->fill, o->dtype) : 0);
    }
}

static void fill_input(const struct call *c, uint32_t k)
{
    const struct hd_operand *o = &c->in[k];
    const char *known = c->m->value[c->i->in[k]].data[c->rank];
    if (known)
        memcpy(o->data, known, bytes_of(o));
    else if (k == 0 && hd__is_float(o->dtype))
        fill_gradient(c, o, c->i->in[k]);
    else /* factors, counts */
        for (int64_t n = 0; n < hd_operand_count(o); n++)
            hd__dtype_store(o->dtype, (char *)o->data + (size_t)n * hd_dtype_size(o->dtype), hd__is_float(o->dtype));
}

static int is_state(const struct call *c, uint32_t k)
{
    return c->i->custom->state >> k & 1;
}

static struct call open_call(struct machine *m, const struct hd__instr *i, int32_t rank)
{
    int32_t coord[HD_AXIS_COUNT];
    struct call c = {.m = m, .i = i, .rank = rank};
    hd__mesh_coord(&m->p->mesh, rank, coord);
    hd__instr_lower(m->p, i, coord, NULL, &c.d, c.in, c.out);
    for (uint32_t k = 0; k < i->n_in; k++)
        c.in[k].data = guarded(m, bytes_of(&c.in[k]));
    for (uint32_t k = 0; k < i->n_out; k++)
        c.out[k].data = guarded(m, bytes_of(&c.out[k]));
    return c;
}

/* ---- one call */

static double element(const struct hd_operand *o, const void *data, int64_t n)
{
    return hd__dtype_load(o->dtype, (const char *)data + (size_t)n * hd_dtype_size(o->dtype));
}

static void *copy_of(struct machine *m, const struct hd_operand *o)
{
    return hd__arena_copy(&m->memory, o->data, bytes_of(o));
}

/* Fails where two runs of bytes differ. */
static void expect_same(const struct call *c, const struct hd_operand *o, const void *want, hd_tensor t,
                        const char *side, uint32_t n, const char *why)
{
    size_t size = hd_dtype_size(o->dtype), at = 0;
    while (at < bytes_of(o) && !memcmp((const char *)o->data + at, (const char *)want + at, size))
        at += size;
    if (at < bytes_of(o))
        OP_FAILS(c, "%s %u, %s, element %zu is %.9g, and was %.9g: %s", side, n, hd__tensor_const(c->m->p, t)->name,
                 at / size, element(o, o->data, (int64_t)(at / size)), element(o, want, (int64_t)(at / size)), why);
}

/* Runs the op on what its operands have; outputs begin as `garbage`, states as they are. 0: it reports an error, which
 * it may on infinities. */
static int run_op(struct call *c, int garbage)
{
    struct hd_error err = HD_ERROR_INIT;
    void *before[HD_MAX_IN];
    for (uint32_t k = 0; k < c->i->n_in; k++)
        before[k] = copy_of(c->m, &c->in[k]);
    for (uint32_t k = 0; k < c->i->n_out; k++)
        if (!is_state(c, k))
            memset(c->out[k].data, garbage, bytes_of(&c->out[k]));
    c->d.in = c->in;
    c->d.out = c->out;
    int32_t rc = c->i->custom->run(c->i->custom->settings, &c->d, NULL, &err);
    if (rc && (c->m->fill < LARGEST || !err.message[0]))
        OP_FAILS(c, "it returns %d (%s)%s%.300s", rc, hd_code_name(rc), err.message[0] ? ": " : " without a message",
                 err.message);
    for (uint32_t k = 0; k < c->i->n_in; k++) {
        check_guards(c, &c->in[k], c->i->in[k], "input", k);
        expect_same(c, &c->in[k], before[k], c->i->in[k], "input", k, "an op does not write its inputs");
    }
    for (uint32_t k = 0; k < c->i->n_out; k++)
        check_guards(c, &c->out[k], c->i->out[k], "output", k);
    return !rc;
}

/* States are what they were before the op ran. */
static void restore(struct call *c, void *const state[HD_MAX_OUT])
{
    for (uint32_t k = 0; k < c->i->n_out; k++)
        if (is_state(c, k))
            memcpy(c->out[k].data, state[k], bytes_of(&c->out[k]));
}

/* Twice, from other garbage: the same bits. */
static int run_twice(struct call *c, void *const state[HD_MAX_OUT])
{
    void *first[HD_MAX_OUT];
    if (!run_op(c, 0x5a))
        return 0;
    for (uint32_t k = 0; k < c->i->n_out; k++) {
        first[k] = copy_of(c->m, &c->out[k]);
    }
    restore(c, state);
    if (!run_op(c, 0xc3))
        OP_FAILS(c, "the second time it fails");
    for (uint32_t k = 0; k < c->i->n_out; k++)
        expect_same(c, &c->out[k], first[k], c->i->out[k], "output", k,
                    "the same inputs make the same bits, whatever was in the outputs before");
    return 1;
}

/* ---- linear ops and maps: each element by itself */

/* Half of the elements change, then the other half: what is made of the others does not. */
static void check_elementwise(const struct call *of, void *const state[HD_MAX_OUT])
{
    struct call c = *of;
    const struct hd_operand *x = &c.in[0], *y = &c.out[0];
    int64_t n = hd_operand_count(x);
    char *fx = copy_of(c.m, y), *first = copy_of(c.m, x);
    size_t size = hd_dtype_size(x->dtype), wide = hd_dtype_size(y->dtype);
    if (hd_operand_count(y) != n)
        OP_FAILS(&c, "output 0 has %lld elements, and its `proof` says that each is one of input 0, which has %lld",
                 (long long)hd_operand_count(y), (long long)n);
    for (uint32_t half = 0; half < 2; half++) {
        for (int64_t k = 0; k < n; k++)
            if (((uint32_t)k * UINT32_C(2654435761) >> 15 & 1) == half)
                hd__dtype_store(x->dtype, (char *)x->data + (size_t)k * size, 3 + drawn());
        restore(&c, state);
        run_op(&c, 0x5a);
        for (int64_t k = 0; k < n; k++)
            if (((uint32_t)k * UINT32_C(2654435761) >> 15 & 1) == half)
                memcpy((char *)y->data + (size_t)k * wide, fx + (size_t)k * wide, wide);
        expect_same(&c, y, fx, c.i->out[0], "output", 0,
                    "other elements of input 0 changed, and its `proof` says that each is made of one");
        memcpy(x->data, first, bytes_of(x));
    }
}

static void check_additive(const struct call *of, void *const state[HD_MAX_OUT])
{
    struct call c = *of;
    const struct hd_operand *x = &c.in[0], *y = &c.out[0];
    char *fx = copy_of(c.m, y), *first = copy_of(c.m, x), *fy;
    int64_t n = hd_operand_count(x);
    size_t size = hd_dtype_size(x->dtype);
    double unit = ldexp(ROUNDINGS, -(int)HD__MIN(hd__dtype(x->dtype)->digits, hd__dtype(y->dtype)->digits));
    fill_gradient(&c, x, c.i->in[0]);
    restore(&c, state);
    run_op(&c, 0x5a);
    fy = copy_of(c.m, y);
    for (int64_t k = 0; k < n; k++)
        hd__dtype_store(x->dtype, (char *)x->data + (size_t)k * size, element(x, first, k) + element(x, x->data, k));
    restore(&c, state);
    run_op(&c, 0x5a);
    for (int64_t k = 0; k < n; k++) {
        double a = element(y, fx, k), b = element(y, fy, k), both = element(y, y->data, k);
        if (!(fabs(both - a - b) <= unit * (fabs(a) + fabs(b) + fabs(both))))
            OP_FAILS(&c,
                     "output 0, element %lld: f(x) = %.9g, f(y) = %.9g, f(x + y) = %.9g; an HD_CUSTOM_LINEAR has "
                     "f(x + y) = f(x) + f(y)",
                     (long long)k, a, b, both);
    }
    memcpy(x->data, first, bytes_of(x));
}

/* ---- encoders and decoders */

/* The output that is the error, of an op with state. */
static uint32_t feedback_of(const struct call *c)
{
    return (uint32_t)__builtin_ctz(c->i->custom->state);
}

/* `old`: the error that it was given. */
static void note_codes(const struct call *c, struct code *code, const void *old)
{
    const struct hd_operand *g = &c->in[0], *e = &c->out[feedback_of(c)];
    int64_t n = hd_operand_count(g);
    double *is = hd__arena_alloc(&c->m->memory, (size_t)(n + 1) * sizeof *is),
           *size = hd__arena_copy(&c->m->memory, is, (size_t)(n + 1) * sizeof *is);
    if (hd_operand_count(e) != n)
        OP_FAILS(c, "its state has %lld elements, and input 0 has %lld", (long long)hd_operand_count(e), (long long)n);
    for (int64_t k = 0; k < n; k++) {
        double given = element(g, g->data, k), kept = element(e, old, k), left = element(e, e->data, k);
        is[k] = given + kept - left;
        size[k] = fabs(given) + fabs(kept) + fabs(left);
    }
    code->name = c->i->custom->name;
    code->input = hd__tensor_const(c->m->p, c->i->in[0])->name;
    code->first[c->rank] = g->start[0];
    code->count[c->rank] = n;
    code->is[c->rank] = is;
    code->size[c->rank] = size;
    code->digits = (uint32_t)HD__MIN(hd__dtype(g->dtype)->digits, hd__dtype(e->dtype)->digits);
}

static double norm_of(const struct hd_operand *o, const void *data)
{
    double sum = 0;
    for (int64_t k = 0; k < hd_operand_count(o); k++)
        sum += element(o, data, k) * element(o, data, k);
    return sqrt(sum);
}

/* The same gradient again and again. Codes that are no further from g + e than 0 is leave an error of at most |e| and
 * |g| for each time; others, as of a scale that is too large, leave one that grows without end. */
static void check_feedback(struct call *c, const void *old)
{
    const struct hd_operand *g = &c->in[0], *e = &c->out[feedback_of(c)];
    double each = norm_of(g, g->data), first = norm_of(e, old);
    for (int times = 2; times <= 30; times++) { /* once it was called before */
        run_op(c, 0x5a);
        double left = norm_of(e, e->data), most = times * each + first;
        if (!(left <= 2 * most))
            OP_FAILS(
                c,
                "given the same input 0 %d times, it leaves an error of norm %g, and with codes that stand for 0 it "
                "would be %g: training diverges",
                times, left, most);
    }
}

static void check_decoded(const struct call *c)
{
    const struct value *v = &c->m->value[c->i->in[0]];
    const struct code *code = v->codes;
    const struct hd_operand *y = &c->out[0];
    double unit = ldexp(ROUNDINGS, -(int)HD__MIN(code->digits, (uint32_t)hd__dtype(y->dtype)->digits));
    c->m->seen->compared++;
    for (int64_t k = 0; k < hd_operand_count(y); k++) {
        double want = 0, got = element(y, y->data, k), size = fabs(got);
        for (int32_t r = 0; r < c->m->p->mesh.ranks; r++) {
            int64_t at = y->start[0] + k - code->first[r];
            if (!(v->from[c->rank] >> r & 1) || at < 0 || at >= code->count[r])
                continue;
            want += code->is[r][at];
            size += code->size[r][at];
        }
        if (!(fabs(got - want) <= unit * size))
            OP_FAILS(c,
                     "output 0, %s, element %lld is %.9g, and should be %.9g: the sum of %s + e - e' over the ranks "
                     "whose codes it has, where e is the error that %s was given, and e' the one that it left",
                     hd__tensor_const(c->m->p, c->i->out[0])->name, (long long)k, got, want, code->input, code->name);
    }
}

/* ---- instructions in their order */

static void forget(struct machine *m, const struct hd__instr *i)
{
    for (uint32_t k = 0; k < i->n_out; k++)
        m->value[i->out[k]] = (struct value){0};
}

static int is_runnable(struct machine *m, const struct hd__instr *i, int32_t rank)
{
    int ok = i->custom->run != NULL;
    for (uint32_t k = 0; k < i->n_in; k++)
        ok &= hd__tensor_const(m->p, i->in[k])->dtype != HD_U8 || m->value[i->in[k]].data[rank];
    return ok;
}

static void publish(const struct call *c, struct code *code)
{
    for (uint32_t k = 0; k < c->i->n_out; k++) {
        struct value *v = &c->m->value[c->i->out[k]];
        v->data[c->rank] = is_state(c, k) ? NULL : c->out[k].data;
        v->from[c->rank] = UINT32_C(1) << c->rank;
        v->codes = k ? NULL : code;
    }
}

static void run_custom(struct machine *m, const struct hd__instr *i, int32_t rank, struct code *code)
{
    const struct hd_custom_op *op = i->custom;
    struct call c = open_call(m, i, rank);
    void *state[HD_MAX_OUT] = {NULL};
    announce(&c);
    for (uint32_t k = 0; k < i->n_in; k++)
        fill_input(&c, k);
    for (uint32_t k = 0; k < i->n_out; k++)
        if (is_state(&c, k)) {
            fill_gradient(&c, &c.out[k], i->out[k]);
            state[k] = copy_of(m, &c.out[k]);
        }
    if (!run_twice(&c, state))
        return;
    m->seen->called++;
    int flat = c.in[0].ndim == 1 && c.out[0].ndim == 1, feedback = op->proof == HD_CUSTOM_ENCODE && op->state && flat;
    if (feedback)
        note_codes(&c, code, state[feedback_of(&c)]);
    if (op->proof == HD_CUSTOM_DECODE && flat && m->value[i->in[0]].codes && m->fill <= ZEROS)
        check_decoded(&c);
    publish(&c, feedback ? code : NULL);
    int elementwise = op->proof == HD_CUSTOM_LINEAR || op->proof == HD_CUSTOM_MAP;
    if ((!elementwise && !feedback) || m->fill != PLAIN)
        return;
    struct call again = c; /* what it made stays */
    for (uint32_t k = 0; k < i->n_out; k++) {
        again.out[k].data = guarded(m, bytes_of(&c.out[k]));
        memcpy(again.out[k].data, c.out[k].data, bytes_of(&c.out[k]));
    }
    if (feedback)
        check_feedback(&again, state[feedback_of(&c)]);
    if (!elementwise)
        return;
    check_elementwise(&again, state);
    memcpy(again.out[0].data, c.out[0].data, bytes_of(&c.out[0]));
    if (op->proof == HD_CUSTOM_LINEAR && !op->state)
        check_additive(&again, state);
}

/* all_to_all and all_gather of flat buffers; results of others are not known. */
static void exchange(struct machine *m, const struct hd__instr *i, int32_t rank)
{
    int32_t group[RANKS], n = hd__mesh_group(&m->p->mesh, rank, i->axes, i->members, group);
    const struct value *x = &m->value[i->in[0]];
    struct value *y = &m->value[i->out[0]];
    size_t bytes = (size_t)hd__tensor_bytes(m->p, hd__tensor_const(m->p, i->out[0])), part = bytes / (size_t)n, own = 0;
    int known = i->op == HD_OP_ALL_GATHER || i->op == HD_OP_ALL_TO_ALL;
    for (int32_t k = 0; k < n; k++) {
        known &= x->data[group[k]] != NULL;
        own = group[k] == rank && i->op == HD_OP_ALL_TO_ALL ? (size_t)k * part : own;
    }
    if (!known || hd__tensor_const(m->p, i->out[0])->ndim != 1)
        return;
    y->data[rank] = hd__arena_alloc(&m->memory, bytes + 1);
    y->codes = x->codes;
    for (int32_t k = 0; k < n; k++) {
        memcpy(y->data[rank] + (size_t)k * part, x->data[group[k]] + own, part);
        y->from[rank] |= x->from[group[k]];
    }
}

static void run_instr(struct machine *m, const struct hd__instr *i)
{
    struct code *code = hd__arena_alloc(&m->memory, sizeof *code);
    forget(m, i);
    for (int32_t r = 0; r < m->p->mesh.ranks; r++) {
        int32_t coord[HD_AXIS_COUNT];
        hd__mesh_coord(&m->p->mesh, r, coord);
        if (coord[HD_AXIS_PP] != m->p->stage)
            continue;
        if (!i->custom && hd__is_collective(i->op) && i->n_in == 1 && i->n_out == 1)
            exchange(m, i, r);
        else if (i->custom && is_runnable(m, i, r))
            run_custom(m, i, r, code);
        else
            m->seen->left_out += i->custom && m->fill == PLAIN;
    }
}

static void run_program(const struct hd_program *p, const char *job, int fill, struct conf_custom_seen *seen)
{
    struct machine m = {.p = p, .job = job, .seen = seen, .fill = fill};
    m.value = hd__arena_alloc(&m.memory, p->tensors.count * sizeof *m.value);
    for (uint32_t s = 0; s < p->sections.count; s++)
        for (uint32_t k = 0; k < p->sections.at[s].code.count; k++)
            run_instr(&m, &p->sections.at[s].code.at[k]);
    hd__arena_free(&m.memory);
}

void conf_custom_ops(const struct hd__compiled *c, const char *job, struct conf_custom_seen *seen)
{
    for (int32_t stage = 0; stage < c->n_stages && c->mesh.ranks <= RANKS; stage++)
        for (int fill = 0; fill < FILLS && c->stage[stage]->custom_ops.count; fill++)
            run_program(c->stage[stage], job, fill, seen);
}
