/* The sum beside a norm, made where the norm is:
 *
 *     t = add(x0, x1); y = rmsnorm(t, w)              t, y = add_rmsnorm(x0, x1, w)
 *     t = add(x0, x1); y = layernorm(t, w, c)         t, y = add_layernorm(x0, x1, w, c)
 *     g = rmsnorm_dx(x, w, dy); dx = add(r, g)        dx = rmsnorm_dx_add(r, x, w, dy)
 *     g = layernorm_dx(x, w, dy); dx = add(r, g)      dx = layernorm_dx_add(r, x, w, dy)
 *
 * Forward it is the residual stream, whose sum is read again behind the norm: both are written. Backward it is the
 * stream's gradient, and nobody else reads g. Of 11 passes over a layer's norm and sum 8 are left.
 *
 * The last sum of one block is normed by the next, so the two may be of different blocks, though not of different
 * chunks of a pipeline. */
#include <stdlib.h>

#include "core/passes/passes.h"
#include "core/program/access.h"
#include "core/program/fusion.h"
#include "core/program/ops.h"

struct fusion {
    struct hd_program *p;
    hd__code *code;
    struct hd__tensor_use *use;
};

static int same_schedule(const struct hd__instr *a, const struct hd__instr *b)
{
    return a->phase == b->phase && a->micro == b->micro && a->chunk == b->chunk;
}

/* The instruction that makes t, for instruction k; NULL where it has to stay as it is. */
static struct hd__instr *find_producer(const struct fusion *f, hd_tensor t, uint32_t k)
{
    uint32_t m = f->use[t].maker;
    struct hd__instr *i = m ? &f->code->at[m - 1] : NULL;
    if (!i || m > k || i->n_out != 1 || hd__tensor_const(f->p, t)->buffer || hd__reads_outputs(i) ||
        !same_schedule(i, &f->code->at[k]))
        return NULL;
    return i;
}

/* Of two terms that lie like their sum, where nothing is owed any more. */
static int is_plain_sum(const struct hd_program *p, const struct hd__instr *add)
{
    const struct hd__tensor *sum = hd__tensor_const(p, add->out[0]);
    if (add->op != HD_OP_ADD || add->n_in != 2 || hd__reads_outputs(add) || sum->placement.partial)
        return 0;
    for (uint32_t n = 0; n < 2; n++) {
        const struct hd__tensor *t = hd__tensor_const(p, add->in[n]);
        if (t->ndim != sum->ndim || memcmp(t->dim, sum->dim, t->ndim * sizeof *t->dim) || t->dtype != sum->dtype ||
            memcmp(t->placement.shard, sum->placement.shard, sizeof t->placement.shard) || t->placement.partial)
            return 0;
    }
    return 1;
}

/* Where both may stand as one: at the later one's place if the earlier one may move there, else the other way round.
 * NULL: nowhere. */
static struct hd__instr *fused_position(const struct fusion *f, uint32_t first, uint32_t second)
{
    if (hd__can_move(f->p, f->code, first, second))
        return &f->code->at[second];
    return hd__can_move(f->p, f->code, second, first) ? &f->code->at[first] : NULL;
}

/* `one`, labelled as the norm, stands at `place` for both. */
static void replace(struct hd__instr *place, struct hd__instr *a, struct hd__instr *b, const struct hd__instr *one)
{
    struct hd__instr copy = *one;
    a->op = b->op = 0;
    *place = copy;
}

static void fuse_forward(struct fusion *f, uint32_t k, uint16_t op)
{
    struct hd__instr *norm = &f->code->at[k], *add = find_producer(f, norm->in[0], k), *place, one = *norm;
    if (!add || !hd__may_fuse(f->p, op) || !is_plain_sum(f->p, add) || hd__reads_outputs(norm))
        return;
    place = fused_position(f, (uint32_t)(add - f->code->at), k);
    if (!place)
        return;
    one.op = op;
    one.in[0] = add->in[0];
    one.in[1] = add->in[1];
    memcpy(one.in + 2, norm->in + 1, (norm->n_in - 1u) * sizeof *one.in);
    one.n_in = (uint8_t)(norm->n_in + 1);
    one.out[0] = add->out[0];
    one.out[1] = norm->out[0];
    one.n_out = 2;
    replace(place, add, norm, &one);
}

static void fuse_backward(struct fusion *f, uint32_t k, uint32_t term)
{
    struct hd__instr *add = &f->code->at[k], *grad, *place, one;
    uint16_t op;
    if (!is_plain_sum(f->p, add) || f->use[add->in[term]].count != 1)
        return;
    grad = find_producer(f, add->in[term], k);
    if (!grad || (grad->op != HD_OP_RMSNORM_DX && grad->op != HD_OP_LAYERNORM_DX))
        return;
    op = grad->op == HD_OP_RMSNORM_DX ? HD_OP_RMSNORM_DX_ADD : HD_OP_LAYERNORM_DX_ADD;
    place = hd__may_fuse(f->p, op) ? fused_position(f, (uint32_t)(grad - f->code->at), k) : NULL;
    if (!place)
        return;
    one = *grad;
    one.op = op;
    one.in[0] = add->in[!term];
    memcpy(one.in + 1, grad->in, 3 * sizeof *one.in);
    one.n_in = 4;
    one.out[0] = add->out[0];
    replace(place, grad, add, &one);
}

void hd__fuse_norms(struct hd_program *p, hd__code *code)
{
    struct fusion f = {p, code, hd__count_uses(p, code)};
    for (uint32_t k = 0; k < code->count; k++) {
        uint16_t op = code->at[k].op;
        if (op == HD_OP_RMSNORM || op == HD_OP_LAYERNORM)
            fuse_forward(&f, k, op == HD_OP_RMSNORM ? HD_OP_ADD_RMSNORM : HD_OP_ADD_LAYERNORM);
        for (uint32_t term = 0; term < 2 && code->at[k].op == HD_OP_ADD; term++)
            fuse_backward(&f, k, term);
    }
    hd__code_compact(code);
    free(f.use);
}
