/* The token machine with numbers: an arena a rank at the planned offsets, kernels for what a rank computes,
 * collectives in double precision, sums in the tree over members. Everything that must not be read yet, or any more,
 * is NaN: all bytes 0xff is one in every floating dtype, and no valid token id. */
#include <stdlib.h>

#include "analysis/sim/machine_internal.h"
#include "core/base/dtype.h"

#define POISON 0xff

/* ---- arenas */

int32_t hd__sim_emulate_open(struct hd__sim *m, struct hd_error *err)
{
    for (int32_t n = 0; n < m->mesh.ranks; n++) {
        struct hd__sim_rank *r = &m->ranks[n];
        const struct hd__sim_program *image = r->program;
        size_t bytes = (size_t)HD__MAX(hd__arena_total_bytes(image->p), 64);
        if (r->arena)
            continue;
        r->arena = aligned_alloc(4096, (bytes + 4095) & ~(size_t)4095);
        if (!r->arena)
            return hd_fail(err, HD_E_NOMEM, "no memory for the emulated arena of rank %d (%zu bytes)", n, bytes);
        memset(r->arena, POISON, bytes);
        r->kernels = hd__alloc((image->first[image->p->sections.count] + 1) * sizeof *r->kernels);
    }
    return HD_OK;
}

void hd__sim_emulate_close(struct hd__sim *m)
{
    for (int32_t n = 0; n < m->mesh.ranks; n++) {
        struct hd__sim_rank *r = &m->ranks[n];
        uint32_t count = r->program->first[r->program->p->sections.count];
        for (uint32_t k = 0; k < count && r->kernels && m->kernels.release; k++)
            if (r->kernels[k])
                m->kernels.release(m->kernels.user, n, r->kernels[k]);
        free(r->kernels);
        free(r->arena);
    }
}

void *hd__sim_arena(struct hd__sim *m, int32_t rank)
{
    struct hd_error err = HD_ERROR_INIT;
    return !m->options.kernels || hd__sim_emulate_open(m, &err) ? NULL : m->ranks[rank].arena;
}

void *hd__sim_tensor_data(struct hd__sim *m, int32_t rank, hd_tensor t)
{
    const struct hd__sim_rank *r = &m->ranks[rank];
    return hd__tensor_address(r->program->p, t, r->coord, hd__sim_arena(m, rank));
}

/* First buffer at or behind `at` that an earlier section of this step has made for later ones; NULL: none. */
static const struct hd__buffer *next_carried(const struct hd__sim_rank *r, int64_t at)
{
    const struct hd_program *p = r->program->p;
    const struct hd__buffer *next = NULL;
    for (uint32_t b = 1; b < p->buffers.count && p->sections.at[r->section].repeat; b++) {
        const struct hd__buffer *x = &p->buffers.at[b];
        if (x->life == HD__LIFE_STEP && x->section < r->section && x->offset >= at &&
            (!next || x->offset < next->offset))
            next = x;
    }
    return next;
}

/* All else that is temporary is dead between sections. */
void hd__sim_emulate_section(struct hd__sim_rank *r)
{
    const struct hd_program *p = r->program->p;
    int64_t at = p->persistent_bytes;
    for (const struct hd__buffer *x; (x = next_carried(r, at)); at = x->offset + x->bytes)
        memset(r->arena + at, POISON, (size_t)(x->offset - at));
    memset(r->arena + at, POISON, (size_t)(p->arena_bytes - at));
}

/* ---- what a rank computes */

static int32_t feed(struct hd__sim *m, int32_t rank, const struct hd__instr *i, struct hd_error *err)
{
    struct hd__sim_rank *r = &m->ranks[rank];
    struct hd_instr_desc desc;
    struct hd_operand in[HD_MAX_IN], out[HD_MAX_OUT];
    int32_t micro = i->micro >= 0 ? i->micro : r->program->micro0[r->section] + r->round;
    hd__instr_lower(r->program->p, i, r->coord, r->arena, &desc, in, out);
    return m->kernels.feed(m->kernels.user, rank, i, micro, out, err);
}

static int32_t prepare(struct hd__sim *m, int32_t rank, const struct hd__instr *i, void **kernel, struct hd_error *err)
{
    struct hd__sim_rank *r = &m->ranks[rank];
    struct hd_instr_desc desc;
    struct hd_operand in[HD_MAX_IN], out[HD_MAX_OUT];
    hd__instr_lower(r->program->p, i, r->coord, r->arena, &desc, in, out);
    return m->kernels.prepare(m->kernels.user, rank, &desc, kernel, err);
}

int32_t hd__sim_emulate_compute(struct hd__sim *m, int32_t rank, uint32_t pc, struct hd_error *err)
{
    struct hd__sim_rank *r = &m->ranks[rank];
    const struct hd__instr *i = r->program->code[pc].instr;
    if (i->op == HD_OP_RELEASE) {
        const struct hd__buffer *b = &r->program->p->buffers.at[hd__tensor_const(r->program->p, i->in[0])->buffer];
        memset(r->arena + b->offset, POISON, (size_t)b->bytes);
        return HD_OK;
    }
    if (i->op == HD_OP_FEED)
        return feed(m, rank, i, err);
    if (!r->kernels[pc] && prepare(m, rank, i, &r->kernels[pc], err))
        return err->code;
    return m->kernels.run(m->kernels.user, rank, r->kernels[pc], err);
}

/* Poisons the output of an asynchronous instruction until its wait, except where it lies over input 0. */
void hd__sim_emulate_issue(struct hd__sim_rank *r, const struct hd__instr *i)
{
    const struct hd_program *p = r->program->p;
    char *keep = i->n_in ? hd__tensor_address(p, i->in[0], r->coord, r->arena) : NULL, *out, *end;
    char *keep_end = keep ? keep + hd__tensor_bytes(p, hd__tensor_const(p, i->in[0])) : NULL;
    if (!i->n_out)
        return;
    out = hd__tensor_address(p, i->out[0], r->coord, r->arena);
    end = out + hd__tensor_bytes(p, hd__tensor_const(p, i->out[0]));
    if (!keep || keep_end <= out || keep >= end) {
        memset(out, POISON, (size_t)(end - out));
        return;
    }
    if (keep > out)
        memset(out, POISON, (size_t)(keep - out));
    if (keep_end < end)
        memset(keep_end, POISON, (size_t)(end - keep_end));
}

/* ---- collectives */

struct collective_view { /* a collective, seen from all its members */
    const struct hd__sim *m;
    const struct hd__sim_meeting *meeting;
    const struct hd__instr *instr; /* the first member's; all have the same shapes */
    const struct hd_program *p;
    int64_t in_bytes;
    char *in;   /* all members' inputs, one after another */
    char **out; /* each member's output */
};

/* A tensor as [outer][extent][inner bytes] around one dim. */
struct dim_split {
    int64_t outer, extent, inner;
};

static struct dim_split split_at(const struct hd_program *p, hd_tensor id, uint16_t dim)
{
    const struct hd__tensor *t = hd__tensor_const(p, id);
    struct dim_split c = {1, 1, (int64_t)hd_dtype_size(t->dtype)};
    int32_t at = hd__dim_index(t, dim);
    for (int32_t i = 0; i < t->ndim; i++)
        *(i < at ? &c.outer : i == at ? &c.extent : &c.inner) *= hd__local_extent(p, t, i);
    return c;
}

static const struct hd__instr *instr_of(const struct collective_view *a, uint32_t k, struct hd__sim_rank **r)
{
    const struct hd__sim_channel *c = &a->m->channels.at[a->meeting->channel];
    *r = &a->m->ranks[a->m->members.at[a->meeting->first_member + k]];
    return hd__sim_queue_head(*r, c->queue)->instr;
}

static const char *input_of(const struct collective_view *a, uint32_t k)
{
    return a->in + k * a->in_bytes;
}

static double combine(const struct collective_view *a, double x, double y)
{
    if (a->instr->redop != HD_MAX)
        return x + y;
    return y > x || y != y ? y : x;
}

/* One element of the reduction over members first .. first + n - 1, in the binary tree of heddle/comm.h. */
static double tree_at(const struct collective_view *a, uint32_t dtype, int64_t offset, uint32_t first, uint32_t n)
{
    uint32_t left = 1;
    if (n == 1)
        return hd__dtype_load(dtype, input_of(a, first) + offset);
    while (2 * left < n)
        left *= 2;
    return combine(a, tree_at(a, dtype, offset, first, left), tree_at(a, dtype, offset, first + left, n - left));
}

static double reduce_at(const struct collective_view *a, uint32_t dtype, int64_t at)
{
    double x = tree_at(a, dtype, at * (int64_t)hd_dtype_size(dtype), 0, a->meeting->size);
    return a->instr->redop == HD_AVG ? x / a->meeting->size : x;
}

static void all_reduce(const struct collective_view *a)
{
    uint32_t dtype = hd__tensor_const(a->p, a->instr->in[0])->dtype;
    int64_t size = (int64_t)hd_dtype_size(dtype);
    for (int64_t e = 0; e < a->in_bytes / size; e++) {
        double x = reduce_at(a, dtype, e);
        for (uint32_t k = 0; k < a->meeting->size; k++)
            hd__dtype_store(dtype, a->out[k] + e * size, x);
    }
}

static void reduce_scatter(const struct collective_view *a)
{
    uint32_t dtype = hd__tensor_const(a->p, a->instr->in[0])->dtype;
    struct dim_split c = split_at(a->p, a->instr->in[0], a->instr->to);
    int64_t size = (int64_t)hd_dtype_size(dtype), part = c.extent / a->meeting->size * (c.inner / size);
    for (uint32_t k = 0; k < a->meeting->size; k++) {
        char *out = a->out[k];
        for (int64_t o = 0; o < c.outer; o++)
            for (int64_t e = 0; e < part; e++, out += size)
                hd__dtype_store(dtype, out, reduce_at(a, dtype, (o * a->meeting->size + k) * part + e));
    }
}

/* Member k's input becomes part k of dim `from` of everybody's output. */
static void all_gather(const struct collective_view *a)
{
    struct dim_split c = split_at(a->p, a->instr->in[0], a->instr->from);
    int64_t row = c.extent * c.inner;
    for (uint32_t to = 0; to < a->meeting->size; to++)
        for (uint32_t k = 0; k < a->meeting->size; k++)
            for (int64_t o = 0; o < c.outer; o++)
                memcpy(a->out[to] + (o * a->meeting->size + k) * row, input_of(a, k) + o * row, (size_t)row);
}

/* Part `to` along dim `to` of member k's input becomes part k along dim `from` of member `to`'s output. */
static void copy_block(const struct collective_view *a, uint32_t to, uint32_t k)
{
    const struct hd__tensor *in = hd__tensor_const(a->p, a->instr->in[0]);
    int64_t extent[HD_MAX_DIMS] = {0}, index[HD_MAX_DIMS] = {0}, count = 1, size = (int64_t)hd_dtype_size(in->dtype);
    int32_t split = hd__dim_index(in, a->instr->to), combine = hd__dim_index(in, a->instr->from);
    char *out = a->out[to];
    for (int32_t i = 0; i < in->ndim; i++) {
        extent[i] = hd__local_extent(a->p, in, i) / (i == split ? a->meeting->size : 1);
        count *= extent[i];
    }
    for (int64_t e = 0; e < count; e++) {
        int64_t from_at = 0, to_at = 0;
        for (int32_t i = 0; i < in->ndim; i++) {
            from_at = from_at * extent[i] * (i == split ? a->meeting->size : 1) + index[i] +
                      (i == split ? to * extent[i] : 0);
            to_at = to_at * extent[i] * (i == combine ? a->meeting->size : 1) + index[i] +
                    (i == combine ? k * extent[i] : 0);
        }
        memcpy(out + to_at * size, input_of(a, k) + from_at * size, (size_t)size);
        for (int32_t i = in->ndim - 1; i >= 0 && ++index[i] == extent[i]; i--)
            index[i] = 0;
    }
}

static void all_to_all(const struct collective_view *a)
{
    for (uint32_t to = 0; to < a->meeting->size; to++)
        for (uint32_t k = 0; k < a->meeting->size; k++)
            copy_block(a, to, k);
}

static void broadcast(const struct collective_view *a)
{
    for (uint32_t k = 0; k < a->meeting->size; k++)
        memcpy(a->out[k], input_of(a, 0), (size_t)a->in_bytes);
}

static void shift(const struct collective_view *a)
{
    uint32_t steps = (uint32_t)hd__shift_steps(a->p, a->instr);
    for (uint32_t k = 0; k < a->meeting->size; k++)
        memcpy(a->out[(k + steps) % a->meeting->size], input_of(a, k), (size_t)a->in_bytes);
}

/* Inputs are copied first: outputs may be the same memory. */
static void open_view(struct collective_view *a)
{
    struct hd__sim_rank *r;
    a->instr = instr_of(a, 0, &r);
    a->p = r->program->p;
    a->in_bytes = hd__tensor_bytes(a->p, hd__tensor_const(a->p, a->instr->in[0]));
    a->in = hd__alloc((size_t)a->in_bytes * a->meeting->size);
    a->out = hd__alloc(a->meeting->size * sizeof *a->out);
    for (uint32_t k = 0; k < a->meeting->size; k++) {
        const struct hd__instr *i = instr_of(a, k, &r);
        memcpy(a->in + k * a->in_bytes, hd__tensor_address(r->program->p, i->in[0], r->coord, r->arena),
               (size_t)a->in_bytes);
        a->out[k] = hd__tensor_address(r->program->p, i->out[0], r->coord, r->arena);
    }
}

int32_t hd__sim_emulate_meeting(struct hd__sim *m, const struct hd__sim_meeting *meeting, struct hd_error *err)
{
    static void (*const act[HD_OP_LIMIT])(const struct collective_view *) = {
        [HD_OP_ALL_REDUCE] = all_reduce, [HD_OP_ALL_GATHER] = all_gather, [HD_OP_REDUCE_SCATTER] = reduce_scatter,
        [HD_OP_ALL_TO_ALL] = all_to_all, [HD_OP_BROADCAST] = broadcast,   [HD_OP_SHIFT] = shift};
    struct collective_view a = {.m = m, .meeting = meeting};
    for (uint32_t k = 0; k < meeting->size; k++) {
        struct hd__sim_rank *r;
        const struct hd__instr *i = instr_of(&a, k, &r);
        if (hd__collective_dtype(r->program->p, i, err))
            return err->code;
    }
    open_view(&a);
    if (act[a.instr->op])
        act[a.instr->op](&a);
    free(a.in);
    free(a.out);
    if (!act[a.instr->op])
        return hd_fail(err, HD_E_UNSUPPORTED, "the emulator has no collective %s", hd__op(a.instr->op)->name);
    return HD_OK;
}

void hd__sim_emulate_message(struct hd__sim *m, const struct hd__sim_event *e)
{
    struct hd__sim_rank *from = &m->ranks[e->rank], *to = &m->ranks[e->peer];
    hd_tensor in = hd__sim_queue_head(from, e->queue)->instr->in[0],
              out = hd__sim_queue_head(to, e->peer_queue)->instr->out[0];
    memcpy(hd__tensor_address(to->program->p, out, to->coord, to->arena),
           hd__tensor_address(from->program->p, in, from->coord, from->arena),
           (size_t)hd__tensor_bytes(to->program->p, hd__tensor_const(to->program->p, out)));
}

void hd__sim_emulate_copy(struct hd__sim_rank *r, const struct hd__instr *i)
{
    const struct hd_program *p = r->program->p;
    memmove(hd__tensor_address(p, i->out[0], r->coord, r->arena), hd__tensor_address(p, i->in[0], r->coord, r->arena),
            (size_t)hd__tensor_bytes(p, hd__tensor_const(p, i->in[0])));
}
