/* One instruction of a step runs twice: the same inputs give the same bits, or the hardware made an error. */
#include "core/program/access.h"
#include "runtime/exec/internal.h"

static int overlap(const struct hd__exec *e, hd_tensor a, hd_tensor b)
{
    const char *at = hd__tensor_address(e->p, a, e->coord, e->arena),
               *other = hd__tensor_address(e->p, b, e->coord, e->arena);
    return at < other + hd__tensor_bytes(e->p, hd__tensor_const(e->p, b)) &&
           other < at + hd__tensor_bytes(e->p, hd__tensor_const(e->p, a));
}

/* Not where an output is added to, or lies in the memory of an input: the second run would read what the first wrote.
 * Custom ops promise nothing. */
static int can_run_twice(const struct hd__exec *e, const struct hd__prepared_section *section, uint32_t k)
{
    const struct hd__instr *i = &section->of->code.at[k];
    int apart = section->prepared[k].kind == HD__PREPARED_KERNEL && hd__op(i->op)->class == HD__CLASS_MODEL &&
                !i->custom && i->n_out && !hd__reads_outputs(i);
    for (uint32_t n = 0; n < (uint32_t)i->n_in * i->n_out && apart; n++)
        apart = !overlap(e, i->in[n / i->n_out], i->out[n % i->n_out]);
    return apart;
}

void hd__exec_rerun_next(struct hd__exec *e, uint64_t draw)
{
    e->rerun = (struct hd__exec_rerun){.wanted = 1, .draw = draw};
    hd__exec_replay_no_comm(e);
}

const struct hd__exec_rerun *hd__exec_get_rerun(const struct hd__exec *e)
{
    return &e->rerun;
}

/* Counts those of the step's sections, and chooses number `chosen` of them. */
static uint64_t count(struct hd__exec *e, int64_t step, uint64_t chosen)
{
    uint64_t n = 0;
    for (uint32_t s = 0; s < e->p->sections.count; s++)
        for (uint32_t k = 0; k < e->sections[s].n && hd__section_due(e->sections[s].of, step); k++)
            if (can_run_twice(e, &e->sections[s], k) && n++ == chosen) {
                e->rerun.section = s;
                e->rerun.instr = k;
            }
    return n;
}

void hd__exec_rerun_choose(struct hd__exec *e, int64_t step)
{
    struct hd__exec_rerun *r = &e->rerun;
    uint64_t n = count(e, step, UINT64_MAX);
    r->wanted = 0;
    if (!n)
        return;
    count(e, step, r->draw % n);
    r->run = (int32_t)((r->draw >> 32) %
                       (uint64_t)HD__MAX(1, hd__section_rounds(e->p, e->sections[r->section].of, e->config.rank)));
    r->chosen = 1;
}

static int32_t hash_outputs(struct hd__exec *e, const struct hd__instr *i, uint64_t hash[HD_MAX_OUT],
                            struct hd_error *err)
{
    int32_t rc = hd__exec_copy_tensors(e, HD__D2H, i->out, i->n_out, err);
    for (uint32_t k = 0; k < i->n_out && !rc; k++)
        hash[k] = hd__hash(hd__tensor_address(e->p, i->out[k], e->coord, e->host_mirror),
                           (size_t)hd__tensor_bytes(e->p, hd__tensor_const(e->p, i->out[k])), 0);
    return rc;
}

int32_t hd__exec_rerun_compare(struct hd__exec *e, const struct hd__prepared_section *section, uint32_t k,
                               struct hd_error *err)
{
    const struct hd__instr *i = &section->of->code.at[k];
    uint64_t first[HD_MAX_OUT], second[HD_MAX_OUT];
    int32_t rc = hash_outputs(e, i, first, err);
    if (!rc)
        rc = hd__exec_run_prepared(e, &section->prepared[k], err);
    if (!rc)
        rc = hash_outputs(e, i, second, err);
    for (uint32_t n = i->n_out; n-- > 0 && !rc;)
        if (first[n] != second[n])
            e->rerun.differs = i->out[n];
    e->rerun.compared = 1;
    hd__exec_drop_mirror(e);
    return rc;
}
