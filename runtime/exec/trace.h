/* runtime/exec/trace: when each instruction of some steps ran on one rank (`metrics.trace`).
 *
 * An event is an instruction's time on the thread that walks the program: a kernel's own on a device whose launches are
 * synchronous; on one with streams the device is waited for after each instruction. Of a collective or message there
 * are two: its start, and its wait. */
#ifndef HD_RUNTIME_EXEC_TRACE_H
#define HD_RUNTIME_EXEC_TRACE_H

#include "core/base/base.h"

enum { HD__TRACE_STEP = UINT16_MAX }; /* as a section: a whole step */

struct hd__trace_event {
    double start; /* hd__now() */
    float seconds;
    uint32_t instr; /* its index in the section */
    uint32_t step;
    uint16_t section, run; /* run: of a section that is repeated */
};

struct hd__trace {
    HD__ARRAY(struct hd__trace_event) events; /* by start, but that a step's comes after it */
    uint32_t limit, dropped;                  /* at most so many; those that found no room */
    uint32_t step, reserved;                  /* the one that runs */
};

static inline void hd__trace_add(struct hd__trace *t, uint16_t section, uint16_t run, uint32_t instr, double start,
                                 double end)
{
    const struct hd__trace_event event = {start, (float)(end - start), instr, t->step, section, run};
    if (t->events.count < t->limit)
        hd__push(&t->events, event);
    else
        t->dropped++;
}

#endif
