/* The loss without whole logits (a chunked, fused linear cross-entropy). If nothing at a model's end is sharded along
 * the vocabulary, the chain
 *
 *     z = einsum(x, w); m = rowmax(z); l, c = xent_local(z, m, labels); n = nll(l, m, c)
 *     dn = spread([scale]); dl, dc = nll_grad(l, dn); dz = xent_grad(z, m, labels, dl, dc)
 *     dx = einsum(dz, w); dw = einsum(dz, x)
 *
 * becomes n, dx, dw = xent_head(x, w, labels, [scale]), at the position of l and c. It is found by makers and readers
 * of tensors, never by name: a conversion between two of them, or another reader, leaves it as it is. So does a w that
 * is released and gathered again in between, since a fused op would hold dw for as long. In an evaluation the chain is
 * only its first line, and n = xent_head(x, w, labels). */
#include <stdlib.h>

#include "core/passes/passes.h"
#include "core/program/access.h"
#include "core/program/ops.h"

#define MAX_READERS 3

struct flow {
    uint32_t maker;   /* index + 1 of the instruction that writes the tensor */
    uint32_t readers; /* how many operands read it */
    uint32_t reader[MAX_READERS];
};

enum { LOGITS, MAX, SUMS, NLL, SPREAD, NLL_GRAD, GRAD, DX, DW, PARTS };

struct head {
    struct hd_program *p;
    hd__code *code;
    struct flow *flow;
    uint32_t part[PARTS]; /* positions */
    hd_tensor x, w;       /* as the logits' einsum reads them */
    int moved;            /* instructions have other positions than in `flow` */
    int gathered_twice;   /* a loss was left as it is because w is not one tensor */
};

static struct hd__instr *part(const struct head *h, uint32_t which)
{
    return &h->code->at[h->part[which]];
}

static struct flow *find_flow(const struct hd_program *p, const hd__code *code)
{
    struct flow *flow = hd__alloc(p->tensors.count * sizeof *flow);
    for (uint32_t k = 0; k < code->count; k++) {
        const struct hd__instr *i = &code->at[k];
        for (uint32_t n = 0; n < i->n_out && i->op; n++)
            flow[i->out[n]].maker = k + 1;
        for (uint32_t n = 0; n < i->n_in && i->op; n++) {
            struct flow *f = &flow[i->in[n]];
            if (f->readers < MAX_READERS)
                f->reader[f->readers] = k;
            f->readers++;
        }
    }
    return flow;
}

/* Is t a temporary of this section, made by an instruction of this op as its output `out`, with so many readers? */
static int made_by(struct head *h, uint32_t which, hd_tensor t, uint16_t op, uint32_t out, uint32_t readers)
{
    const struct flow *f = &h->flow[t];
    if (!f->maker || hd__tensor_const(h->p, t)->buffer || f->readers != readers)
        return 0;
    h->part[which] = f->maker - 1;
    return part(h, which)->op == op && part(h, which)->out[out] == t;
}

/* The rest of the loss behind instruction SUMS, whose two sums have no other reader. */
static int find_nll(struct head *h)
{
    const struct hd__instr *sums = part(h, SUMS), *nll;
    if (!h->flow[sums->out[1]].readers)
        return 0;
    h->part[NLL] = h->flow[sums->out[1]].reader[0];
    nll = part(h, NLL);
    return h->flow[sums->out[1]].readers == 1 && nll->op == HD_OP_NLL && nll->in[0] == sums->out[0] &&
           nll->in[1] == sums->in[1] && nll->in[2] == sums->out[1] && h->flow[nll->out[0]].readers == 1 &&
           h->code->at[h->flow[nll->out[0]].reader[0]].op == HD_OP_TOTAL;
}

/* ---- the chain, from xent_grad backwards */

static int find_loss(struct head *h)
{
    const struct hd__instr *grad = part(h, GRAD), *sums;
    hd_tensor z = grad->in[0], m = grad->in[1], labels = grad->in[2];
    if (!made_by(h, LOGITS, z, HD_OP_EINSUM, 0, 3) || !made_by(h, MAX, m, HD_OP_ROWMAX, 0, 3) ||
        part(h, MAX)->in[0] != z)
        return 0;
    if (!made_by(h, NLL_GRAD, grad->in[3], HD_OP_NLL_GRAD, 0, 1) || part(h, NLL_GRAD)->out[1] != grad->in[4] ||
        h->flow[grad->in[4]].readers != 1)
        return 0;
    if (!made_by(h, SPREAD, part(h, NLL_GRAD)->in[1], HD_OP_SPREAD, 0, 1) ||
        !made_by(h, SUMS, part(h, NLL_GRAD)->in[0], HD_OP_XENT_LOCAL, 0, 2))
        return 0;
    sums = part(h, SUMS);
    return sums->in[0] == z && sums->in[1] == m && sums->in[2] == labels && find_nll(h);
}

/* Without a gradient, from xent_local. */
static int find_forward(struct head *h)
{
    const struct hd__instr *sums = part(h, SUMS);
    hd_tensor z = sums->in[0], m = sums->in[1];
    return made_by(h, LOGITS, z, HD_OP_EINSUM, 0, 2) && made_by(h, MAX, m, HD_OP_ROWMAX, 0, 2) &&
           part(h, MAX)->in[0] == z && h->flow[sums->out[0]].readers == 1 &&
           h->flow[sums->in[2]].maker <= h->part[LOGITS] && find_nll(h);
}

/* ---- the matmuls */

/* Are both views of the same elements, which nothing writes in between? Strategies make a view for every use. */
static int same_values(const struct head *h, hd_tensor a, hd_tensor b, uint32_t from, uint32_t to)
{
    const struct hd__tensor *x = hd__tensor_const(h->p, a), *y = hd__tensor_const(h->p, b);
    if (a == b)
        return 1;
    if (!x->buffer || x->buffer != y->buffer || x->offset != y->offset || x->shard_view || y->shard_view)
        return 0;
    if (x->dtype != y->dtype || !hd__same_shape(x, y))
        return 0;
    for (uint32_t k = from + 1; k < to; k++) {
        const struct hd__instr *i = &h->code->at[k];
        for (uint32_t n = 0; n < i->n_out; n++)
            if (hd__tensor_const(h->p, i->out[n])->buffer == x->buffer)
                return 0;
        if (i->op == HD_OP_RELEASE && hd__tensor_const(h->p, i->in[0])->buffer == x->buffer)
            return 0;
    }
    return 1;
}

/* z[.., v] = x[.., h] w[v, h], with v and h not sharded. */
static int logits_fit(struct head *h)
{
    const struct hd__instr *i = part(h, LOGITS);
    const struct hd__tensor *z = hd__tensor_const(h->p, i->out[0]), *x = hd__tensor_const(h->p, i->in[0]);
    const struct hd__tensor *w = hd__tensor_const(h->p, i->in[1]);
    uint32_t last = z->ndim - 1u;
    h->x = i->in[0];
    h->w = i->in[1];
    if (hd__accumulates(i) || x->ndim != z->ndim || w->ndim != 2 || x->dtype != w->dtype || x->placement.partial ||
        z->placement.partial)
        return 0;
    if (z->dim[last] != w->dim[0] || x->dim[last] != w->dim[1] || memcmp(x->dim, z->dim, last * sizeof *x->dim) ||
        memcmp(x->placement.shard, z->placement.shard, last * sizeof *x->placement.shard))
        return 0;
    if (h->p->dims.at[w->dim[0]].used < h->p->dims.at[w->dim[0]].extent)
        return 0;
    return !w->placement.shard[0] && !w->placement.shard[1] && !z->placement.shard[last] && !x->placement.shard[last];
}

/* Is this reader of dz einsum(dz, with), with an output that looks like `like`? */
static int is_product(struct head *h, uint32_t which, hd_tensor with, hd_tensor like)
{
    const struct hd__instr *i = part(h, which);
    const struct hd__tensor *out = hd__tensor_const(h->p, i->out[0]);
    if (i->op != HD_OP_EINSUM || i->in[0] != part(h, GRAD)->out[0] || hd__accumulates(i) || out->buffer ||
        !hd__same_shape(out, hd__tensor_const(h->p, like)))
        return 0;
    int same = same_values(h, with, i->in[1], h->part[LOGITS], h->part[which]);
    uint32_t param = hd__tensor_const(h->p, with)->param;
    h->gathered_twice |= !same && param && param == hd__tensor_const(h->p, i->in[1])->param;
    return same;
}

static int find_products(struct head *h)
{
    const struct flow *dz = &h->flow[part(h, GRAD)->out[0]];
    if (dz->readers != 2 || hd__tensor_const(h->p, part(h, GRAD)->out[0])->buffer || !logits_fit(h))
        return 0;
    for (uint32_t k = 0; k < 2; k++) {
        h->part[DX] = dz->reader[k];
        h->part[DW] = dz->reader[!k];
        if (is_product(h, DX, h->w, h->x) && is_product(h, DW, h->x, h->w))
            return 1;
    }
    return 0;
}

/* ---- rewriting */

/* dw is computed earlier now: if its buffer is cleared in between, the clearing moves in front. */
static void clear_earlier(struct head *h)
{
    const struct flow *dw = &h->flow[part(h, DW)->out[0]];
    uint32_t at = h->part[SUMS], clear = 0;
    uint32_t buffer = dw->readers == 1 && h->code->at[dw->reader[0]].op == HD_OP_ACCUM
                          ? hd__tensor_const(h->p, h->code->at[dw->reader[0]].out[0])->buffer
                          : 0;
    for (uint32_t k = at + 1; buffer && !clear && k < dw->reader[0]; k++) {
        const struct hd__instr *i = &h->code->at[k];
        for (uint32_t n = 0; n < (uint32_t)i->n_in + i->n_out; n++)
            if (hd__tensor_const(h->p, n < i->n_in ? i->in[n] : i->out[n - i->n_in])->buffer == buffer)
                clear = k;
    }
    if (!clear || h->code->at[clear].op != HD_OP_FILL0)
        return;
    struct hd__instr first = h->code->at[clear];
    memmove(&h->code->at[at + 1], &h->code->at[at], (clear - at) * sizeof first);
    h->code->at[at] = first;
    for (uint32_t k = 0; k < PARTS; k++)
        h->part[k] += h->part[k] >= at && h->part[k] < clear;
    h->moved = 1;
}

static void rewrite(struct head *h)
{
    clear_earlier(h);
    struct hd__instr head = *part(h, SUMS);
    head.op = HD_OP_XENT_HEAD;
    head.attrs = hd__attrs_new(h->p, part(h, SPREAD)->attrs);
    head.n_in = head.n_out = 3;
    if (part(h, SPREAD)->n_in) /* the loss scale */
        head.in[head.n_in++] = part(h, SPREAD)->in[0];
    head.in[0] = h->x;
    head.in[1] = h->w;
    head.out[0] = part(h, NLL)->out[0];
    head.out[1] = part(h, DX)->out[0];
    head.out[2] = part(h, DW)->out[0];
    for (uint32_t k = 0; k < PARTS; k++)
        part(h, k)->op = 0;
    *part(h, SUMS) = head;
}

/* The fused op replaces the logits' einsum in place: a strategy may release w right behind. */
static void rewrite_forward(struct head *h)
{
    struct hd__instr *head = part(h, LOGITS);
    hd_tensor labels = part(h, SUMS)->in[2];
    head->op = HD_OP_XENT_HEAD;
    head->n_in = 3;
    head->n_out = 1;
    head->in[0] = h->x;
    head->in[1] = h->w;
    head->in[2] = labels;
    head->out[0] = part(h, NLL)->out[0];
    part(h, SUMS)->op = part(h, MAX)->op = part(h, NLL)->op = 0;
}

/* Fuses the loss that instruction k belongs to, if it matches. */
static void fuse_at(struct head *h, uint32_t k)
{
    h->part[GRAD] = h->part[SUMS] = k;
    if (h->code->at[k].op == HD_OP_XENT_GRAD && find_loss(h) && find_products(h))
        rewrite(h);
    else if (h->code->at[k].op == HD_OP_XENT_LOCAL && find_forward(h) && logits_fit(h))
        rewrite_forward(h);
}

/* Losses share no instruction between their logits and their matmuls, so `flow` serves for all. */
int hd__fuse_loss_head(struct hd_program *p, hd__code *code)
{
    struct head h = {.p = p, .code = code, .moved = 1};
    for (uint32_t k = 0; k < code->count; k++) {
        if (code->at[k].op != HD_OP_XENT_GRAD && code->at[k].op != HD_OP_XENT_LOCAL)
            continue;
        if (h.moved) {
            free(h.flow);
            h.flow = find_flow(p, code);
            h.moved = 0;
        }
        fuse_at(&h, k);
    }
    hd__code_compact(code);
    free(h.flow);
    return h.gathered_twice;
}
