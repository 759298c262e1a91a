/* Products, attention, passes over memory, rings and trees. */
#include "analysis/plan/seconds.h"

#include <math.h>
#include <stdlib.h>

#include "analysis/plan/seconds_internal.h"
#include "core/program/access.h"
#include "core/program/cost.h"
#include "core/program/ops.h"
#include "runtime/exec/profile.h"

/* ---- products */

/* Tiles that libraries choose among, as parts of the machine's largest, and the share of its rate that each reaches: a
 * smaller tile loads more for each FLOP. They also cut k into `splits` parts, so that a product of few tiles keeps all
 * units busy, and add the parts' fp32 sums. With FILL and WRITTEN these give the 34 products of
 * bench/plan/products-h200.csv to 4 % (root mean square). */
static const struct {
    double m, n, rate;
} tiles[] = {{1, 1, 1}, {1, 0.5, 0.9}, {0.5, 0.5, 0.5}};
static const double splits[] = {1, 2, 3, 4, 6, 8, 16};
#define FILL 64     /* steps along k that filling a tile's pipeline takes */
#define WRITTEN 0.7 /* of the time that writing the product takes: the rest hides behind the next tiles */

/* Seconds of the tiles alone, at `rate` FLOPs a second and `memory` bytes a second. */
static double wave_seconds(const struct hd__machine *m, const struct hd__product *x, double rate, double memory)
{
    double best = INFINITY;
    for (size_t t = 0; t < HD__COUNT(tiles); t++) {
        double rows = tiles[t].m * m->tile_m, columns = tiles[t].n * m->tile_n;
        double flops = m->units * rows * columns * 2 / tiles[t].rate; /* of a wave, a step along k */
        for (size_t s = 0; s < HD__COUNT(splits); s++) {
            double waves = ceil(x->batch * splits[s] * ceil(x->m / rows) * ceil(x->n / columns) / m->units);
            double sums = s ? x->batch * splits[s] * x->m * x->n * 8 / memory : 0;
            best = fmin(best, waves * flops * (x->k / splits[s] + FILL) / rate + sums);
        }
    }
    return best;
}

/* The share of the rate that each dim leaves: d / (d + half). */
static double short_dims(const struct hd__machine *m, const struct hd__product *x)
{
    const double dims[] = {x->m, x->n, x->k};
    double share = 1;
    for (size_t d = 0; d < HD__COUNT(dims); d++)
        share *= fmax(dims[d], 1) / (fmax(dims[d], 1) + m->half);
    return share;
}

double hd__product_seconds(const struct hd__machine *m, const struct hd__product *x)
{
    double memory = m->bandwidth * m->memory_share, rate = x->peak * m->product, seconds;
    if (m->units > 0)
        seconds = wave_seconds(m, x, rate, memory) + WRITTEN * x->written / memory;
    else
        seconds = 2 * x->batch * x->m * x->n * x->k / (rate * short_dims(m, x));
    return fmax(seconds, x->bytes / memory);
}

double hd__pass_seconds(const struct hd__machine *m, double bytes)
{
    return bytes / (m->bandwidth * m->memory_share);
}

/* Bytes that a fused product moves behind its tiles: what else than factors and product is read and written, the factor
 * that it sums for the gradient of a bias, the logits of a head for their softmax. */
static double fused_bytes(const struct hd_program *p, const struct hd__instr *i, const struct hd__product *x)
{
    double bytes = 0;
    if (i->op == HD_OP_XENT_HEAD)
        return 2 * x->m * x->n * (double)hd_dtype_size(hd__tensor_const(p, i->in[0])->dtype);
    for (uint32_t n = 2; n < i->n_in; n++)
        bytes += (double)hd__tensor_bytes(p, hd__tensor_const(p, i->in[n]));
    for (uint32_t n = 1; n < i->n_out; n++)
        bytes += (double)hd__tensor_bytes(p, hd__tensor_const(p, i->out[n]));
    return bytes + (i->op == HD_OP_EINSUM_BIAS_DW ? (double)hd__tensor_bytes(p, hd__tensor_const(p, i->in[0])) : 0);
}

/* m, n and k follow from the sizes of the factors and the FLOPs. */
static double product_seconds(const struct hd__machine *m, const struct hd_program *p, const struct hd__instr *i,
                              double flops, double bytes)
{
    double products = i->op == HD_OP_XENT_HEAD ? i->n_out : 1, mnk = flops / 2 / products;
    double a = (double)hd__numel(p, hd__tensor_const(p, i->in[0]));
    double b = (double)hd__numel(p, hd__tensor_const(p, i->in[1]));
    struct hd__product x = {.batch = 1, .m = mnk / b, .n = mnk / a, .k = a * b / mnk, .bytes = bytes / products};
    x.peak = hd__machine_peak(m, hd__tensor_const(p, i->in[0])->dtype);
    x.written =
        x.m * x.n * (double)hd_dtype_size(hd__tensor_const(p, i->out[0])->dtype) * (hd__reads_output(i, 0) ? 2 : 1);
    return products * hd__product_seconds(m, &x) + hd__pass_seconds(m, fused_bytes(p, i, &x));
}

/* ---- other instructions */

static double attention_share(const struct hd__machine *m, uint16_t op)
{
    return op == HD_OP_ATTENTION_GRAD && m->attention_grad > 0 ? m->attention_grad : m->attention;
}

static double compute_seconds(const struct hd__machine *m, const struct hd__assume *assume, const struct hd_program *p,
                              const struct hd__instr *i)
{
    double flops = hd__instr_flops(p, i), bytes = hd__instr_moved_bytes(p, i), seconds = hd__pass_seconds(m, bytes);
    double peak = i->n_in ? hd__machine_peak(m, hd__tensor_const(p, i->in[0])->dtype) : m->peak_fp32;
    if (i->op == HD_OP_WAIT || i->op == HD_OP_RELEASE)
        return 0;
    if ((i->op == HD_OP_ATTENTION || i->op == HD_OP_ATTENTION_GRAD) && assume->unfused_attention)
        return hd__assumed_attention(m, assume, p, i);
    if (i->op == HD_OP_ATTENTION || i->op == HD_OP_ATTENTION_GRAD)
        seconds = fmax(seconds, flops / (peak * attention_share(m, i->op)));
    else if (flops > 0 && i->n_in > 1 && hd__op(i->op)->class == HD__CLASS_MODEL)
        seconds = product_seconds(m, p, i, flops, bytes) *
                  (i->phase == HD__PHASE_F && i->op != HD_OP_XENT_HEAD ? 1 + assume->recomputed_products : 1);
    else if (flops > 0)
        seconds = fmax(seconds, flops / (peak * m->product));
    double times = m->times[i->op][hd__instr_is_narrow(p, i)];
    return (m->kernel + seconds) * (times > 0 ? times : 1) + hd__assumed_extra(m, assume, p, i);
}

/* ---- transfers */

/* The first of a group's ranks, and of those that are in one unit of `unit` ranks with it: how many? */
static int64_t together(const int32_t *ranks, int32_t n, int64_t unit)
{
    int64_t k = 0;
    for (int32_t r = 0; r < n; r++)
        k += ranks[r] / unit == ranks[0] / unit;
    return k;
}

struct route {         /* what a ring and a tree over a group cross */
    double rate;       /* bytes a second that a rank sends on the ring */
    double ring, tree; /* seconds of the hops of one way around, or up */
    double farthest;   /* latency of the outermost level that is crossed */
};

/* Members lie at one level of the network after another: each rank sends at its rate within the innermost unit; the
 * members of a unit share what it has to the outside, each by its own link. */
static struct route find_route(const struct hd__machine *m, const int32_t *ranks, int32_t n)
{
    struct route r = {.rate = INFINITY};
    int64_t inside = 1; /* members in one unit of the level below */
    for (uint32_t l = 0; l < m->n_levels && inside < n; l++) {
        const struct hd__machine_level *level = &m->level[l];
        int64_t here = l + 1 < m->n_levels ? together(ranks, n, level->ranks) : n;
        double share = level->share > 0 ? level->share : m->link_share;
        if (here > inside) {
            r.rate = fmin(r.rate, level->bandwidth * share * (double)inside);
            r.ring += level->latency * ((double)n / (double)inside - (double)n / (double)here);
            r.tree += level->latency * (l ? ceil(log2((double)here / (double)inside)) : (double)(here - inside));
            r.farthest = level->latency;
        }
        inside = here;
    }
    return r;
}

double hd__ring_rate(const struct hd__machine *m, const struct hd__mesh *mesh, uint32_t axes)
{
    int32_t *ranks = hd__alloc((size_t)mesh->ranks * sizeof *ranks), n = hd__mesh_group(mesh, 0, axes, 0, ranks);
    double rate = n > 1 ? find_route(m, ranks, n).rate : INFINITY;
    free(ranks);
    return rate;
}

static double transfer_seconds(const struct hd__machine *m, const struct hd_program *p, const struct hd__instr *i)
{
    int32_t *ranks = hd__alloc(((size_t)p->mesh.ranks + 2) * sizeof *ranks), n = 2;
    int collective = hd__is_collective(i->op);
    if (collective) {
        n = hd__mesh_group(&p->mesh, 0, i->axes, i->members, ranks);
    } else { /* between stages, whose ranks are neighbours in the mesh's slowest axis */
        ranks[1] = (int32_t)(p->mesh.ranks / p->mesh.size[HD_AXIS_PP]);
    }
    struct route r = find_route(m, ranks, n);
    double hops = r.ring;
    if (!collective || i->op == HD_OP_SHIFT)
        hops = r.farthest;
    else if (hd__op_sums(i->op) && !hd__op_splits(i->op))
        hops = 2 * fmin(r.ring, r.tree);
    free(ranks);
    return m->collective + hops + hd__instr_traffic(p, i) / r.rate;
}

double hd__plan_seconds(const struct hd__machine *m, const struct hd__assume *assume, const struct hd_program *p,
                        const struct hd__instr *i)
{
    if (!hd__is_async(i))
        return compute_seconds(m, assume, p, i);
    if (hd__is_copy(i)) {
        double bytes = (double)hd__tensor_bytes(p, hd__tensor_const(p, i->out[0]));
        return m->kernel + (m->host_link > 0 ? bytes / (m->host_link * m->link_share) : hd__pass_seconds(m, 2 * bytes));
    }
    double pieces = assume->pipelined_tp && hd__is_tp_transfer(i) ? (double)hd__mesh_ways(&p->mesh, i->axes) : 1;
    return transfer_seconds(m, p, i) / pieces; /* what overlaps with a product takes no time of its own */
}
