/* Is what a checkpoint holds whole? It changes between the first instruction that writes any of it and the end of the
 * step; before that it is the state after the step before, whatever became of this one. */
#include <stdlib.h>

#include "core/program/access.h"
#include "runtime/exec/internal.h"

/* By buffer: holds tensors of a checkpoint. Caller frees. */
static uint8_t *saved_buffers(const struct hd_program *p)
{
    uint8_t *saved = hd__alloc(p->buffers.count + 1);
    for (struct hd__flat_tensor t = {0}; hd__flat_next(p, HD__FLAT_IS_SAVED, &t);)
        saved[hd__tensor_const(p, t.tensor)->buffer] = 1;
    for (uint32_t k = 0; k < p->facts.count; k++)
        if (p->facts.at[k].what & HD_FACT_FEEDBACK)
            saved[hd__tensor_const(p, p->facts.at[k].tensor)->buffer] = 1;
    return saved;
}

/* A gather in place writes the other ranks' parts around this rank's, which stays. */
static int is_gather_in_place(const struct hd_program *p, const struct hd__instr *i)
{
    return i->op == HD_OP_ALL_GATHER && hd__tensor_const(p, i->in[0])->buffer == hd__tensor_const(p, i->out[0])->buffer;
}

static int writes_state(const struct hd_program *p, const struct hd__instr *i, const uint8_t *saved)
{
    struct hd__access a[HD__MAX_ACCESSES];
    int found = 0;
    if (i->op == HD_OP_RELEASE || is_gather_in_place(p, i))
        return 0;
    for (uint32_t n = hd__accesses(p, i, a); n-- > 0;)
        found |= a[n].writes && saved[a[n].buffer];
    return found;
}

void hd__exec_find_state_writes(struct hd__exec *e, struct hd__prepared_section *section)
{
    uint8_t *saved = saved_buffers(e->p);
    section->first_update = section->first_write = section->n;
    for (uint32_t k = section->n; k-- > 0;) {
        const struct hd__instr *i = &section->of->code.at[k];
        if (!writes_state(e->p, i, saved))
            continue;
        if (hd__op(i->op)->class == HD__CLASS_UPDATE)
            section->first_update = k;
        else
            section->first_write = k;
    }
    free(saved);
}

void hd__exec_note_state_writes(struct hd__exec *e, const struct hd__prepared_section *section, uint32_t end)
{
    if (end > section->first_update)
        e->state_written |= HD__STATE_UPDATED;
    if (end > section->first_write)
        e->state_written |= HD__STATE_WRITTEN;
}

void hd__exec_settle(struct hd__exec *e)
{
    struct hd_error ignored = HD_ERROR_INIT;
    e->settled = 1;
    for (uint32_t s = 0; s < HD_STREAM_COUNT && e->device.streams; s++)
        e->device.ops->sync(e->device.handle, s, &ignored);
}

uint32_t hd__exec_state_written(const struct hd__exec *e)
{
    return e->state_written;
}
