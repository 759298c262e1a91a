/* Ranks that are apart, each with parameters of its own (independent_axes), and the facts that strategies declare of
 * parameters and of their own tensors; verify/facts.c proves them.
 *
 * The logical program is unchanged: the batch is sharded along these axes, and weight gradients are P there. But they
 * are not pending reductions (grad_reduce.c, strategy_api.c): a rank's gradient is that of the mean over its own
 * tokens. So the seeds, which have the mean over all tokens, are multiplied by the number of ranks. The loss that is
 * logged is still the mean over all. */
#include "core/passes/passes.h"
#include "core/passes/strategy_api.h"

void hd__pass_apart(struct hd_program *p, uint32_t axes)
{
    if (!hd__pass_args(p, __func__, "1A", axes))
        return;
    if (axes & ~HD__DP_AXES)
        hd__program_fail(
            p, HD_E_INVALID,
            "hd_pass_api.apart: ranks along %s share one sequence or one model, and cannot train apart; use axes of dp",
            hd__axes(axes & ~HD__DP_AXES));
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

void hd__pass_section(struct hd_program *p, const char *name, uint32_t every)
{
    if (!hd__pass_args(p, __func__, "3*", name))
        return;
    if (hd__program_section(p, name) || !every)
        hd__program_fail(p, HD_E_INVALID,
                         "section '%s' every %u steps: there is one of that name, or 0 is no number of steps", name,
                         every);
    hd__push(&p->sections,
             ((struct hd__code_section){.name = hd__arena_strdup(&p->arena, name), .repeat = 1, .every = every}));
}

static int is_saved(const struct hd_program *p, hd_tensor t)
{
    struct hd__flat_tensor f = {0};
    while (hd__flat_next(p, HD__FLAT_IS_SAVED, &f))
        if (f.tensor == t && f.role >= HD__FLAT_GLOBAL_COPY)
            return 1;
    return 0;
}

void hd__pass_declare(struct hd_program *p, hd_tensor t, uint32_t what, uint32_t axes, const char *section)
{
    if (!hd__pass_args(p, __func__, "3TFA", t, what, axes))
        return;
    struct hd__code_section *s = section ? hd__program_section(p, section) : NULL, *own = s && s->every ? s : NULL;
    uint32_t of_params = what & (HD_FACT_AVERAGE | HD_FACT_ZERO_SUM), feedback = what == HD_FACT_FEEDBACK;
    const struct {
        int wrong;
        const char *why;
    } rows[] = {
        {section && !own, "there is no such section of the strategy's own"},
        {!t && what != HD_FACT_EQUAL && what != HD_FACT_MIX, "of parameters there is HD_FACT_EQUAL or HD_FACT_MIX"},
        {t && !feedback && (what & ~(uint32_t)HD_FACT_EQUAL) != HD_FACT_AVERAGE &&
             (what & ~(uint32_t)HD_FACT_EQUAL) != HD_FACT_ZERO_SUM,
         "of a tensor there is HD_FACT_AVERAGE or HD_FACT_ZERO_SUM, with or without HD_FACT_EQUAL, or HD_FACT_FEEDBACK "
         "alone"},
        {feedback && (own || axes), "error feedback is each rank's own, and no section's: axes 0, section NULL"},
        {!feedback && !own, "it holds where a section of the strategy's own ends, the only one that writes it"},
        {axes & ~(t && !(what & HD_FACT_EQUAL) ? 0 : p->independent_axes),
         "axes are for HD_FACT_EQUAL and HD_FACT_MIX, and those of `apart`"},
        {t && p->buffers.at[hd__tensor_const(p, t)->buffer].life != HD__LIFE_PERSISTENT,
         "it does not live from step to step: HD_LIFE_PERSISTENT"},
        {t && hd__fact_of(p, t)->what, "its facts are declared already: add them up in one call"},
        {of_params && !is_saved(p, t), "checkpoints do not have it: `keep` it, or make it HD_FLAT_COMMON, first"},
    };
    for (size_t n = 0; n < HD__COUNT(rows); n++)
        if (rows[n].wrong)
            hd__pass_refuse(p, "hd_pass_api.declare: %s, section %s: %s",
                            t ? hd__tensor_const(p, t)->name : "parameters", section ? section : "NULL", rows[n].why);
    if (!hd__pass_ok(p))
        return;
    if (t) {
        hd__push(&p->facts, ((struct hd__fact){t, what, axes, own ? own->name : NULL}));
        return;
    }
    own->declares |= (uint8_t)what;
    *(what == HD_FACT_MIX ? &own->mixed_axes : &own->equal_axes) |= axes;
}

void hd__pass_keep(struct hd_program *p, uint32_t flat, hd_tensor t, const char *name)
{
    uint32_t n = 0;
    if (!hd__pass_args(p, __func__, "3ft*", flat, t, name))
        return;
    while (n < p->strategy_states.count && strcmp(p->strategy_states.at[n], name) != 0)
        n++;
    const char *wrong =
        !hd__is_state_name(name) || !strcmp(name, "ranks")
            ? "checkpoints' files are named after it: leave out '/' and '.', 80 bytes at most, and not 'ranks'"
        : n == HD__FLAT_ROLES - HD__FLAT_STRATEGY ? "there is no room for one more name: use fewer strategies"
        : p->flats.at[flat - 1].tensor[HD__FLAT_STRATEGY + n]
            ? "a strategy has registered one of that name: give it another"
            : NULL;
    if (wrong) {
        hd__program_refuse(p, "state '%s' of parameters %s: %s", name, p->flats.at[flat - 1].name, wrong);
        return;
    }
    if (n == p->strategy_states.count)
        hd__push(&p->strategy_states, hd__arena_strdup(&p->arena, name));
    p->flats.at[flat - 1].tensor[HD__FLAT_STRATEGY + n] = t;
}
