/* Micro-batches by rank: how many, and of which sequences. */
#include "core/program/program.h"

static int32_t data_coordinate(const struct hd_program *p, int32_t rank)
{
    int32_t coord[HD_AXIS_COUNT];
    hd__mesh_coord(&p->mesh, rank, coord);
    return coord[HD_AXIS_DP_REPLICATE] * p->mesh.size[HD_AXIS_DP_SHARD] + coord[HD_AXIS_DP_SHARD];
}

int32_t hd__micro_batches_of(const struct hd_program *p, int32_t rank)
{
    return p->micro_batches && rank >= 0 ? p->micro_batches[data_coordinate(p, rank)] : p->accumulation;
}

int64_t hd__step_sequences(const struct hd_program *p)
{
    int64_t dp = hd__mesh_ways(&p->mesh, HD__DP_AXES);
    int64_t all = p->dims.at[p->letter['b']].extent, micro_batches = 0;
    for (int32_t d = 0; d < dp; d++)
        micro_batches += p->micro_batches ? p->micro_batches[d] : p->accumulation;
    return micro_batches * (all / dp) - p->empty;
}

int32_t hd__section_rounds(const struct hd_program *p, const struct hd__code_section *s, int32_t rank)
{
    int shared = s->kind == HD__SECTION_MICRO && s->repeat > 1;
    return s->repeat - (shared ? p->accumulation - hd__micro_batches_of(p, rank) : 0);
}

int hd__section_feeds(const struct hd__code_section *s)
{
    for (uint32_t n = 0; n < s->code.count; n++)
        if (s->code.at[n].op == HD_OP_FEED)
            return 1;
    return 0;
}

int32_t hd__micro_batches_before(const struct hd_program *p, uint32_t s, int32_t rank)
{
    int32_t n = 0;
    for (uint32_t k = 0; k < s; k++)
        if (hd__section_feeds(&p->sections.at[k]) && hd__sections_share_step(&p->sections.at[k], &p->sections.at[s]))
            n += hd__section_rounds(p, &p->sections.at[k], rank);
    return n;
}

/* Even shares: micro-batch m of all ranks together is sequences [m b, (m + 1) b). Uneven ones: the same, of the
 * coordinates that still have one. */
int64_t hd__first_sequence(const struct hd_program *p, int32_t rank, int64_t micro)
{
    int32_t coord[HD_AXIS_COUNT];
    int64_t dp = hd__mesh_ways(&p->mesh, HD__DP_AXES), before = 0, row;
    int64_t all = p->dims.at[p->letter['b']].extent, each = all / dp;
    const struct hd__tensor *ids = hd__tensor_const(p, p->ids);
    hd__mesh_coord(&p->mesh, rank, coord);
    row = hd__global_start(p, ids, 0, coord);
    if (!p->micro_batches)
        return micro * all + row;
    int32_t mine = data_coordinate(p, rank);
    for (int32_t d = 0; d < dp; d++)
        before += HD__MIN(p->micro_batches[d], micro) + (d < mine && p->micro_batches[d] > micro);
    return micro < p->micro_batches[mine] ? before * each + row - mine * each : hd__step_sequences(p);
}
