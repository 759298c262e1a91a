/* One rank's view of an instruction (lower_instr.c, mesh.c), held to the placements: the members of a group have
 * consecutive pieces, in the order in which a collective joins and splits them; a slice takes the piece that its output
 * is; a mean is over as many ranks as there are; keys and positions are those of the rank that they come from. Ranks
 * differ in coordinates only: the first and the last are asked, once for all instructions that are alike. */
#include <stdlib.h>

#include "core/verify/verify.h"

/* The dim along which a tensor lies in pieces that the instruction joins or makes; -1: none. */
static int32_t cut_dim(const struct hd__tensor *t, const struct hd__instr *i, uint16_t dim)
{
    return i->flags & HD__FLAG_CONV ? hd__dim_index(t, dim) : t->ndim ? 0 : -1;
}

static int64_t start_at(const struct hd_program *p, const struct hd__tensor *t, int32_t d, int32_t rank)
{
    int32_t coord[HD_AXIS_COUNT];
    hd__mesh_coord(&p->mesh, rank, coord);
    return hd__global_start(p, t, d, coord);
}

/* Pieces of `whole` along dim, which a group has: is member k's the k-th? */
static void check_members(struct hd__walk *w, const struct hd__instr *i, const struct hd__tensor *pieces,
                          const struct hd__tensor *whole, uint16_t dim, int32_t rank)
{
    const struct hd_program *p = w->p;
    int32_t d = cut_dim(pieces, i, dim), of = cut_dim(whole, i, dim), n;
    int32_t *group = hd__alloc((size_t)hd__mesh_ways(&p->mesh, i->axes) * sizeof *group);
    n = hd__mesh_group(&p->mesh, rank, i->axes, i->members, group);
    for (int32_t k = 0; k < n && d >= 0 && of >= 0; k++) {
        int64_t is = start_at(p, pieces, d, group[k]),
                wanted = start_at(p, whole, of, rank) + k * hd__local_extent(p, pieces, d);
        if (is == wanted)
            continue;
        hd__diag(w, "%s: member %d of rank %d's group has the piece at %lld, but %s takes it for that at %lld",
                 pieces->name, k, rank, (long long)is, hd__op(i->op)->name, (long long)wanted);
        break;
    }
    free(group);
}

/* The attributes and operands that a kernel gets. */
static void check_lowered(struct hd__walk *w, const struct hd__instr *i, int32_t rank)
{
    const struct hd_program *p = w->p;
    const struct hd__tensor *in = hd__tensor_const(p, i->in[0]), *out = hd__tensor_const(p, i->out[0]);
    struct hd_operand ins[HD_MAX_IN], outs[HD_MAX_OUT];
    struct hd_instr_desc desc;
    int32_t coord[HD_AXIS_COUNT], d;
    int64_t ways = hd__mesh_ways(&p->mesh, i->axes), parts = hd__mesh_ways(&p->mesh, p->ring_axes);
    hd__mesh_coord(&p->mesh, rank, coord);
    hd__instr_lower(p, i, coord, NULL, &desc, ins, outs);
    if (desc.attrs.zigzag_parts != (parts > 1 ? parts : 0))
        hd__diag(w, "positions are those of %lld runs, but the sequence lies in %lld",
                 (long long)desc.attrs.zigzag_parts, (long long)(parts > 1 ? parts : 0));
    if ((i->op == HD_OP_BLEND && i->axes) || hd__op(i->op)->class == HD__CLASS_LOCAL)
        if (desc.attrs.parts != ways)
            hd__diag(w, "is over %u ranks, not %lld", desc.attrs.parts, (long long)ways);
    if (i->op == HD_OP_SLICE && (d = cut_dim(out, i, i->to)) >= 0 &&
        start_at(p, in, cut_dim(in, i, i->to), rank) + desc.attrs.index * outs[0].extent[d] != outs[0].start[d])
        hd__diag(w, "rank %d takes piece %u, which is not its own", rank, desc.attrs.index);
    if (i->op == HD_OP_PAD && (d = cut_dim(in, i, i->from)) >= 0 &&
        start_at(p, out, cut_dim(out, i, i->from), rank) + desc.attrs.index * ins[0].extent[d] != ins[0].start[d])
        hd__diag(w, "rank %d puts its piece in place %u, which is not its own", rank, desc.attrs.index);
    if ((i->op == HD_OP_ATTENTION || i->op == HD_OP_ATTENTION_GRAD) && i->axes && p->letter['s']) {
        int32_t *group = hd__alloc((size_t)ways * sizeof *group), n, me = 0;
        const struct hd__tensor *keys = hd__tensor_const(p, i->in[1]);
        n = hd__mesh_group(&p->mesh, rank, i->axes, 0, group);
        while (group[me] != rank)
            me++;
        d = hd__dim_index(keys, p->letter['s']);
        if (d >= 0 && ins[1].start[d] != start_at(p, keys, d, group[(me + n - i->tag % n) % n]))
            hd__diag(w, "rank %d takes its keys for those from position %lld on, which come from %lld on", rank,
                     (long long)ins[1].start[d], (long long)start_at(p, keys, d, group[(me + n - i->tag % n) % n]));
        free(group);
    }
}

static uint32_t shard_of(const struct hd__tensor *t, const struct hd__instr *i, uint16_t dim)
{
    int32_t d = cut_dim(t, i, dim);
    return d < 0 ? 0 : t->placement.shard[d];
}

static void visit(struct hd__walk *w, const struct hd__instr *i)
{
    const struct hd_program *p = w->p;
    int joins = hd__op_joins(i->op), splits = hd__op_splits(i->op), converts = (i->flags & HD__FLAG_CONV) != 0;
    const struct hd__tensor *in, *out;
    struct hd__rank_query x;
    if (!i->n_in || !i->n_out || (!joins && !splits && !(hd__op(i->op)->flags & HD__OP_RANKED)))
        return;
    in = hd__tensor_const(p, i->in[0]);
    out = hd__tensor_const(p, i->out[0]);
    x = (struct hd__rank_query){
        i->members,
        i->op,
        i->tag,
        i->axes,
        (uint32_t)converts,
        converts ? i->from : 0, /* elsewhere pieces lie along the first dim: cut_dim */
        converts ? i->to : 0,
        {shard_of(in, i, i->from), shard_of(in, i, i->to), shard_of(out, i, i->from), shard_of(out, i, i->to)}};
    for (uint32_t n = w->asked.count; n-- > 0;)
        if (!memcmp(&w->asked.at[n], &x, sizeof x))
            return;
    hd__push(&w->asked, x);
    for (int32_t rank = 0; rank < p->mesh.ranks; rank += HD__MAX(p->mesh.ranks - 1, 1)) {
        if (!joins && !splits)
            check_lowered(w, i, rank);
        /* codes lie as no dim says; conversions of placements in both ways, of flats by their shards */
        if (joins && (i->op != HD_OP_ALL_TO_ALL || converts))
            check_members(w, i, in, out, i->from, rank);
        if (splits && (i->op != HD_OP_ALL_TO_ALL || converts))
            check_members(w, i, out, in, i->to, rank);
    }
}

const struct hd__rules hd__rules_rank_view = {.visit = visit};
