/* Activation checkpointing, on the template: forward tensors that a block's own backward pass reads are discarded and
 * recomputed (phase R), each just before its first use there.
 *
 * Blocks form segments, never across chunks. A segment keeps what other segments read of it; its inputs are kept. The
 * block of the loss is left alone: its backward pass follows at once. Recomputed are
 *
 *   all     all that a segment's backward pass reads, back to the segment's inputs, collectives too
 *   cheap   only ops other than matmuls, attention and collectives, from tensors that are kept anyway: each of them
 *           saves memory, and nothing is kept for it */
#include <stdlib.h>

#include "core/passes/passes.h"
#include "core/program/ops.h"

struct recompute {
    struct hd_program *p;
    uint32_t *segment; /* by block; 0: none */
    uint32_t *maker;   /* by tensor: index + 1 of the forward instruction that makes it */
    uint8_t *near;     /* by tensor: the backward pass of its own segment reads it */
    uint8_t *far;      /* another segment's does: it is kept anyway */
    uint8_t *redo;     /* it may be recomputed */
    hd_tensor *again;  /* its recomputed twin, once there is one */
    uint32_t n_tensors;
    hd__code out;
    struct hd__arena scratch;
};

static int is_backward(const struct hd__instr *i)
{
    return i->phase == HD__PHASE_B || i->phase == HD__PHASE_W;
}

static uint32_t segment_of(const struct recompute *r, hd_tensor t) /* the segment in which t is made */
{
    return r->segment[r->p->template.at[r->maker[t] - 1].block];
}

/* ---- segments */

static void find_makers(struct recompute *r)
{
    const hd__code *code = &r->p->template;
    for (uint32_t k = 0; k < code->count && code->at[k].phase == HD__PHASE_F; k++)
        for (uint32_t n = 0; n < code->at[k].n_out; n++)
            r->maker[code->at[k].out[n]] = k + 1;
}

/* By block: does its backward pass read what its forward pass makes? */
static uint8_t *find_saving_blocks(struct recompute *r)
{
    const hd__code *code = &r->p->template;
    uint8_t *keeps = hd__arena_alloc(&r->scratch, r->p->blocks.count);
    for (uint32_t k = 0; k < code->count; k++)
        for (uint32_t n = 0; n < code->at[k].n_in && is_backward(&code->at[k]); n++) {
            uint32_t made = r->maker[code->at[k].in[n]];
            keeps[code->at[k].block] |= made && code->at[made - 1].block == code->at[k].block;
        }
    for (uint32_t k = 0; k < code->count; k++)
        if (code->at[k].n_out && code->at[k].out[0] == r->p->loss)
            keeps[code->at[k].block] = 0;
    return keeps;
}

/* Groups the blocks that keep activations into segments of `every`, in forward order. Returns their number. */
static uint32_t find_segments(struct recompute *r, uint32_t every)
{
    const hd__code *code = &r->p->template;
    const struct hd__pipeline *pipe = r->p->pipeline;
    const uint8_t *keeps = find_saving_blocks(r);
    uint32_t segments = 0, length = 0;
    uint16_t last = 0;
    for (uint32_t k = 0; k < code->count && code->at[k].phase == HD__PHASE_F; k++) {
        uint16_t block = code->at[k].block;
        if (!keeps[block] || r->segment[block])
            continue;
        if (!segments || length == every || (pipe && pipe->chunk[last] != pipe->chunk[block])) {
            segments++;
            length = 0;
        }
        r->segment[block] = segments;
        last = block;
        length++;
    }
    return segments;
}

/* ---- tensors to recompute */

static void find_readers(struct recompute *r)
{
    const hd__code *code = &r->p->template;
    for (uint32_t k = 0; k < code->count; k++)
        for (uint32_t n = 0; n < code->at[k].n_in && is_backward(&code->at[k]); n++) {
            hd_tensor t = code->at[k].in[n];
            if (!r->maker[t])
                continue;
            if (segment_of(r, t) == r->segment[code->at[k].block])
                r->near[t] = 1;
            else
                r->far[t] = 1;
        }
}

/* Is t available in the backward pass of a segment without being kept for this? */
static int is_available(const struct recompute *r, hd_tensor t, uint32_t segment)
{
    if (!r->maker[t] || r->far[t])
        return 1; /* a parameter, the tokens; or kept for others */
    return segment_of(r, t) == segment ? r->redo[t] || r->near[t] : r->near[t] && !r->redo[t];
}

static int is_cheap(const struct recompute *r, const struct hd__instr *i)
{
    const struct hd__op *row = hd__op(i->op);
    int cheap = (row->class == HD__CLASS_MODEL && !row->flops) || row->class == HD__CLASS_LOCAL;
    for (uint32_t n = 0; n < i->n_in && cheap; n++)
        cheap = is_available(r, i->in[n], r->segment[i->block]);
    return cheap;
}

static void find_redo(struct recompute *r, int cheap_only)
{
    const hd__code *code = &r->p->template;
    for (uint32_t k = 0; k < code->count && code->at[k].phase == HD__PHASE_F; k++) {
        const struct hd__instr *i = &code->at[k];
        uint8_t redo = r->segment[i->block] && (!cheap_only || is_cheap(r, i));
        for (uint32_t n = 0; n < i->n_out; n++)
            r->redo[i->out[n]] = redo && !r->far[i->out[n]];
    }
}

/* ---- recomputation */

static hd_tensor twin_of(struct hd_program *p, hd_tensor t)
{
    struct hd__tensor twin = *hd__tensor_const(p, t);
    twin.name = hd__arena_format(&p->arena, "%s'", twin.name);
    return hd__tensor_new(p, &twin);
}

/* The tensor that the backward pass of `segment` reads instead of t; emits its recomputation. Recursion is no deeper
 * than a segment is long. */
static hd_tensor recompute_tensor(struct recompute *r, hd_tensor t, uint32_t segment)
{
    if (t >= r->n_tensors || !r->maker[t] || segment_of(r, t) != segment || !r->redo[t])
        return t;
    if (r->again[t])
        return r->again[t];
    struct hd__instr i = r->p->template.at[r->maker[t] - 1];
    for (uint32_t n = 0; n < i.n_in; n++)
        i.in[n] = recompute_tensor(r, i.in[n], segment);
    for (uint32_t n = 0; n < i.n_out; n++)
        i.out[n] = r->again[i.out[n]] = twin_of(r->p, i.out[n]);
    i.id = ++r->p->next_id;
    i.phase = HD__PHASE_R;
    hd__push(&r->out, i);
    return r->again[t];
}

static void rewrite(struct recompute *r)
{
    hd__code *code = &r->p->template;
    for (uint32_t k = 0; k < code->count; k++) {
        struct hd__instr i = code->at[k];
        uint32_t segment = r->segment[i.block];
        for (uint32_t n = 0; n < i.n_in && is_backward(&i) && segment; n++)
            i.in[n] = recompute_tensor(r, i.in[n], segment);
        hd__push(&r->out, i);
    }
    free(code->at);
    *code = r->out;
}

int32_t hd__recompute(struct hd_program *p, uint32_t every, int cheap_only, struct hd_error *err)
{
    size_t n = p->tensors.count;
    struct recompute r = {.p = p, .n_tensors = (uint32_t)n};
    int32_t rc = HD_OK;
    r.segment = hd__arena_alloc(&r.scratch, p->blocks.count * sizeof *r.segment);
    r.maker = hd__arena_alloc(&r.scratch, n * sizeof *r.maker);
    r.again = hd__arena_alloc(&r.scratch, n * sizeof *r.again);
    r.near = hd__arena_alloc(&r.scratch, n);
    r.far = hd__arena_alloc(&r.scratch, n);
    r.redo = hd__arena_alloc(&r.scratch, n);
    find_makers(&r);
    if (find_segments(&r, every)) {
        find_readers(&r);
        find_redo(&r, cheap_only);
        rewrite(&r);
    } else {
        rc = hd_fail(err, HD_E_UNSUPPORTED,
                     "the model has no block before that of the loss which keeps anything for its backward "
                     "pass, so there is nothing to make again: use recompute: none");
    }
    hd__arena_free(&r.scratch);
    return rc;
}
