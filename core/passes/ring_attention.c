/* Ring attention (Liu et al., arXiv 2310.01889): if placement left the sequence of attention sharded over an axis, each
 * rank keeps its queries, and keys and values are passed around the ring of that axis. A step computes attention over
 * the current keys while the next ones are in flight. Partial softmaxes are merged by their log-sum-exp. In the
 * backward pass the gradients of keys and values travel with them, one step behind, and a last step returns them to
 * their owners.
 *
 * Sums over the steps are formed in the dtype of statistics. Runs on the template, one micro-batch. */
#include <stdlib.h>

#include "core/passes/passes.h"
#include "core/program/ops.h"

struct ring {
    struct hd_program *p;
    hd__code *code;
    const struct hd__instr *of; /* the attention that is replaced */
    int32_t axis, size;
};

static hd_tensor tensor_like(const struct ring *r, hd_tensor of, uint8_t dtype)
{
    struct hd__tensor t = *hd__tensor_const(r->p, of);
    t.origin = 0;
    t.mark = HD__MARK_NONE;
    t.value_number = 0;
    t.dtype = dtype;
    t.name = hd__arena_format(&r->p->arena, "ring.%u", r->p->tensors.count);
    return hd__tensor_new(r->p, &t);
}

static hd_tensor statistic_like(const struct ring *r, hd_tensor of)
{
    return tensor_like(r, of, r->p->precision.fixed);
}

static struct hd__instr instr_like(const struct ring *r, uint16_t op)
{
    struct hd__instr i = hd__instr_new(r->p, op);
    i.block = r->of->block;
    i.phase = r->of->phase;
    i.chunk = r->of->chunk;
    i.micro = r->of->micro;
    return i;
}

/* Shifts to the next member of the ring. `to` 0: a new tensor. */
static hd_tensor emit_shift(const struct ring *r, hd_tensor from, hd_tensor to)
{
    struct hd__instr i = instr_like(r, HD_OP_SHIFT);
    i.axes = HD_AXIS_BIT(r->axis);
    i.stream = (uint16_t)(HD__STREAM_AXIS + r->axis);
    i.in[i.n_in++] = from;
    i.out[i.n_out++] = to = to ? to : tensor_like(r, from, hd__tensor_const(r->p, from)->dtype);
    hd__push(r->code, i);
    return to;
}

/* Does the first zig-zag chunk of the sequence attend to the second? */
static int attends_run(const struct ring *r, int64_t queries, int64_t keys)
{
    const struct hd_attrs causal = {0};
    int64_t run = r->p->dims.at[r->p->letter['s']].extent / (2 * r->size);
    return queries == keys ||
           hd_attends(r->of->attrs ? r->of->attrs : &causal, queries * run + (queries < keys) * (run - 1),
                      keys * run + (keys < queries) * (run - 1));
}

/* Does the member at `at` attend to any of the keys of the member `step` back? */
static int has_work(const struct ring *r, int32_t at, int32_t step)
{
    int64_t runs = 2 * r->size, from = (at - step + r->size) % r->size, queries[2] = {at, runs - 1 - at},
            keys[2] = {from, runs - 1 - from};
    return attends_run(r, queries[0], keys[0]) || attends_run(r, queries[0], keys[1]) ||
           attends_run(r, queries[1], keys[0]) || attends_run(r, queries[1], keys[1]);
}

/* Does any member have work in this step? Steps in which all keys lie outside the queries' windows are left out. */
static int any_rank_has_work(const struct ring *r, int32_t step)
{
    int32_t at = 0;
    while (at < r->size && !has_work(r, at, step))
        at++;
    return at < r->size;
}

static int32_t last_step(const struct ring *r)
{
    int32_t last = r->size - 1;
    while (!any_rank_has_work(r, last))
        last--;
    return last;
}

/* Attention, or its gradient, over the keys of the member `step` back. */
static struct hd__instr tile(const struct ring *r, int32_t step, const hd_tensor keys[2])
{
    struct hd__instr i = *r->of;
    i.id = ++r->p->next_id;
    i.axes = HD_AXIS_BIT(r->axis);
    i.tag = (uint16_t)step;
    i.in[1] = keys[0];
    i.in[2] = keys[1];
    return i;
}

static void shift_keys(const struct ring *r, const hd_tensor keys[2], hd_tensor next[2])
{
    for (int32_t k = 0; k < 2; k++)
        next[k] = emit_shift(r, keys[k], 0);
}

/* The result itself if it has the dtype of sums, 0 if it is a copy of the sum. */
static hd_tensor final_target(const struct ring *r, int32_t n)
{
    hd_tensor to = r->of->out[n];
    return hd__tensor_const(r->p, to)->dtype == r->p->precision.fixed ? to : 0;
}

static void copy_result(const struct ring *r, hd_tensor from, hd_tensor to)
{
    struct hd__instr i = instr_like(r, HD_OP_COPY);
    i.in[i.n_in++] = from;
    i.out[i.n_out++] = to;
    if (from != to)
        hd__push(r->code, i);
}

static void forward(const struct ring *r)
{
    hd_tensor keys[2] = {r->of->in[1], r->of->in[2]}, next[2] = {0, 0}, sum[2] = {0, 0};
    for (int32_t step = 0, last = last_step(r); step <= last; step++, memcpy(keys, next, sizeof keys)) {
        struct hd__instr i = tile(r, step, keys), merge = instr_like(r, HD_OP_ATTENTION_MERGE);
        if (step < last)
            shift_keys(r, keys, next);
        if (!any_rank_has_work(r, step))
            continue;
        for (int32_t n = 0; n < 2; n++)
            i.out[n] = last || !final_target(r, n) ? statistic_like(r, r->of->out[n]) : r->of->out[n];
        hd__push(r->code, i);
        for (int32_t n = 0; n < 2 && step; n++) {
            merge.in[n] = sum[n];
            merge.in[2 + n] = i.out[n];
            merge.out[n] = step < last ? statistic_like(r, r->of->out[n]) : r->of->out[n];
        }
        merge.n_in = 4;
        merge.n_out = 2;
        if (step)
            hd__push(r->code, merge);
        memcpy(sum, step ? merge.out : i.out, sizeof sum);
    }
    for (int32_t n = 0; n < 2; n++)
        copy_result(r, sum[n], r->of->out[n]);
}

static hd_tensor emit_add(const struct ring *r, hd_tensor a, hd_tensor b, hd_tensor to)
{
    struct hd__instr i = instr_like(r, HD_OP_ADD);
    i.in[i.n_in++] = a;
    i.in[i.n_in++] = b;
    i.out[i.n_out++] = to = to ? to : statistic_like(r, a);
    hd__push(r->code, i);
    return to;
}

static void backward(const struct ring *r)
{
    hd_tensor keys[2] = {r->of->in[1], r->of->in[2]}, next[2] = {0, 0}, sum[3] = {0, 0, 0};
    int32_t last = last_step(r);
    for (int32_t step = 0; step < r->size; step++, memcpy(keys, next, sizeof keys)) {
        struct hd__instr i = tile(r, step, keys);
        if (step < last)
            shift_keys(r, keys, next);
        for (int32_t n = 1; n <= 2 && step; n++) /* the part that other members added to these keys' gradients */
            sum[n] = emit_shift(r, sum[n], 0);
        if (!any_rank_has_work(r, step))
            continue;
        for (int32_t n = 0; n < 3; n++)
            i.out[n] = statistic_like(r, r->of->out[n]);
        hd__push(r->code, i);
        for (int32_t n = 0; n < 3; n++)
            sum[n] = step ? emit_add(r, sum[n], i.out[n], n || step < last ? 0 : final_target(r, 0)) : i.out[n];
    }
    for (int32_t n = 1; n <= 2; n++)
        sum[n] = emit_shift(r, sum[n], final_target(r, n));
    for (int32_t n = 0; n < 3; n++)
        copy_result(r, sum[n], r->of->out[n]);
}

/* The axis that shards the sequence of an attention's queries; -1 if none does. */
static int32_t ring_axis(const struct hd_program *p, const struct hd__instr *i)
{
    const struct hd__tensor *q = hd__tensor_const(p, i->in[0]);
    int32_t s = hd__dim_index(q, p->letter['s']);
    if ((i->op != HD_OP_ATTENTION && i->op != HD_OP_ATTENTION_GRAD) || s < 0 || !q->placement.shard[s])
        return -1;
    return hd__shard_minor(q->placement.shard[s]);
}

static int32_t check(const struct hd_program *p, struct hd_error *err)
{
    for (uint32_t n = 0; n < p->params.count; n++) /* pieces of a parameter are consecutive elements of it */
        if (hd__dim_index(hd__tensor_const(p, p->params.at[n].tensor), p->letter['s']) >= 0)
            return hd_fail(err, HD_E_UNSUPPORTED,
                           "strategies: ring attention stores sequences in zig-zag order over mesh.cp = %lld, and "
                           "parameter %s has dim s, the sequence: use context: ulysses, or mesh.cp: 1",
                           (long long)hd__mesh_ways(&p->mesh, p->ring_axes), p->params.at[n].desc.name);
    int64_t length = p->dims.at[p->letter['s']].extent, ways = hd__mesh_ways(&p->mesh, p->ring_axes);
    if (length % (2 * ways))
        return hd_fail(err, HD_E_INVALID,
                       "data.seq_len: %lld is not a multiple of 2 x mesh.cp = %lld, as ring attention needs; nearest "
                       "that work: %lld, %lld",
                       (long long)length, (long long)(2 * ways), (long long)(length / (2 * ways) * 2 * ways),
                       (long long)((length / (2 * ways) + 1) * 2 * ways));
    return HD_OK;
}

int32_t hd__ring_attention(struct hd_program *p, struct hd_error *err)
{
    hd__code old = p->template, fresh = {0};
    int32_t rc = p->ring_axes ? check(p, err) : HD_OK;
    if (!p->ring_axes || rc)
        return rc;
    for (uint32_t k = 0; k < old.count; k++) {
        struct ring r = {.p = p, .code = &fresh, .of = &old.at[k], .axis = ring_axis(p, &old.at[k])};
        if (r.axis < 0) {
            hd__push(&fresh, old.at[k]);
            continue;
        }
        r.size = p->mesh.size[r.axis];
        r.of->op == HD_OP_ATTENTION ? forward(&r) : backward(&r);
    }
    p->template = fresh;
    hd__free_array(&old);
    return HD_OK;
}
