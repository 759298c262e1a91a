/* Unequal shares of a step (data.micro_batches): what a program may not do then, and the proof of the rank with the
 * fewest micro-batches beside that of the one with the most. */
#include "core/compile/internal.h"
#include "core/verify/verify.h"

static struct hd__code_section *repeated(const struct hd_program *p)
{
    for (uint32_t s = 0; s < p->sections.count; s++)
        if (p->sections.at[s].kind == HD__SECTION_MICRO)
            return &p->sections.at[s];
    return NULL;
}

/* An instruction of a section whose rounds differ that is for ranks along mesh.dp; NULL: none. */
static const struct hd__instr *meets_others(const struct hd_program *p)
{
    for (uint32_t s = 0; s < p->sections.count; s++) {
        const struct hd__code_section *x = &p->sections.at[s];
        for (uint32_t k = 0; k < x->code.count && (x->kind == HD__SECTION_MICRO || x->kind == HD__SECTION_EVAL); k++)
            if (hd__is_async(&x->code.at[k]) && x->code.at[k].axes & HD__DP_AXES)
                return &x->code.at[k];
    }
    return NULL;
}

static int32_t check_rounds(const struct hd__compiled *c, const struct hd_program *p,
                            const struct hd__code_section *repeats, int32_t fewest, struct hd_error *err)
{
    const struct hd__instr *i = meets_others(p);
    int32_t apart = p->accumulation - (repeats ? repeats->repeat : 0);
    if (i)
        hd__job_fail(c->job, "data.micro_batches", err,
                     "data.micro_batches: ranks along mesh.dp run %s in each micro-batch, so all need the same number "
                     "of them: take strategies.zero.stage 0 or 1, or leave data.micro_batches out",
                     hd__instr_name(i));
    else if (fewest <= apart)
        hd__job_fail(c->job, "data.micro_batches", err,
                     "data.micro_batches: %d is too few, since the %s: at least %d are needed on each rank", fewest,
                     apart > 1 ? "first and the last have code of their own" : "last has code of its own", apart + 1);
    else
        return HD_OK;
    return err->code = HD_E_UNSUPPORTED;
}

/* The walk of a section that is repeated proves any number of rounds from two on; one is proved by itself. */
int32_t hd__compile_verify(const struct hd__compiled *c, struct hd_program *p, struct hd_error *err)
{
    struct hd__code_section *repeats = repeated(p);
    int32_t fewest = p->accumulation, repeat = repeats ? repeats->repeat : 0;
    for (uint32_t d = 0; p->micro_batches && d < c->job->micro_batches.count; d++)
        fewest = HD__MIN(fewest, p->micro_batches[d]);
    if (fewest < p->accumulation && check_rounds(c, p, repeats, fewest, err))
        return err->code;
    if (p->no_offsets)
        return HD_OK;
    if (hd__verify(p, err))
        return err->code = HD_E_INTERNAL;
    if (fewest == p->accumulation || repeat - (p->accumulation - fewest) > 1)
        return HD_OK;
    int32_t most = p->accumulation;
    repeats->repeat = 1;
    p->accumulation = most - repeat + 1;
    p->micro_factors -= 1;
    int32_t rc = hd__verify(p, err) ? (err->code = HD_E_INTERNAL) : HD_OK;
    p->micro_factors += 1;
    p->accumulation = most;
    repeats->repeat = repeat;
    return rc;
}
