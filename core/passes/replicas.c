/* Local SGD (arXiv 1805.09767) and DiLoCo (arXiv 2311.08105): along independent_axes every rank trains its own
 * parameters for some steps, and a section that runs every so often makes them equal again (equal_axes).
 *
 * The logical program is unchanged: the batch is sharded along these axes, and weight gradients are P there. But they
 * are not pending reductions (grad_reduce.c, strategy_api.c): a rank's gradient is that of the mean over its own
 * tokens. So the seeds, which have the mean over all tokens, are multiplied by the number of ranks. The loss that is
 * logged is still the mean over all. replica_sync.c has the rules of sync sections. */
#include "core/passes/passes.h"
#include "core/passes/strategy_api.h"

void hd__pass_apart(struct hd_program *p, uint32_t axes)
{
    const uint32_t data = HD_AXIS_BIT(HD_AXIS_DP_REPLICATE) | HD_AXIS_BIT(HD_AXIS_DP_SHARD);
    if (!hd__pass_args(p, __func__, "1A", axes))
        return;
    if (axes & ~data)
        hd__program_fail(
            p, HD_E_INVALID,
            "local SGD needs replicas, and ranks along %s are none: they share one sequence or one model; use axes "
            "of dp",
            hd__axes(axes & ~data));
    p->independent_axes |= axes & hd__mesh_live(&p->mesh);
}

void hd__scale_independent_gradients(struct hd_program *p)
{
    for (uint32_t k = p->forward; k < p->logical.count && p->independent_axes; k++) {
        struct hd__instr *i = &p->logical.at[k];
        struct hd_attrs attrs;
        if (i->op != HD_OP_SPREAD)
            continue;
        attrs = *i->attrs;
        attrs.scale *= (double)hd__mesh_ways(&p->mesh, p->independent_axes);
        i->attrs = hd__attrs_new(p, &attrs);
    }
}

void hd__pass_section(struct hd_program *p, const char *name, uint32_t every, uint32_t together)
{
    if (!hd__pass_args(p, __func__, "3*A", name, together))
        return;
    if (hd__program_section(p, name) || !every)
        hd__program_fail(p, HD_E_INVALID,
                         "section '%s' every %u steps: there is one of that name, or 0 is no number of steps", name,
                         every);
    hd__push(&p->sections, ((struct hd__code_section){.name = hd__arena_strdup(&p->arena, name),
                                                      .repeat = 1,
                                                      .every = every,
                                                      .equal_axes = together & p->independent_axes}));
}

void hd__pass_keep(struct hd_program *p, uint32_t flat, hd_tensor t, const char *name)
{
    uint32_t n = 0;
    if (!hd__pass_args(p, __func__, "3ft*", flat, t, name))
        return;
    while (n < p->strategy_states.count && strcmp(p->strategy_states.at[n], name) != 0)
        n++;
    if (n == HD__FLAT_ROLES - HD__FLAT_STRATEGY || p->flats.at[flat - 1].tensor[HD__FLAT_STRATEGY + n]) {
        hd__program_refuse(p, "state '%s' of parameters %s: %s", name, p->flats.at[flat - 1].name,
                           n < p->strategy_states.count ? "a strategy has registered one of that name: give it another"
                                                        : "there is no room for one more name: use fewer strategies");
        return;
    }
    if (n == p->strategy_states.count)
        hd__push(&p->strategy_states, hd__arena_strdup(&p->arena, name));
    p->flats.at[flat - 1].tensor[HD__FLAT_STRATEGY + n] = t;
    hd__tensor_at(p, t)->global_copy = 1;
}
