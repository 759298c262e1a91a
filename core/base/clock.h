/* core/base/clock: a cheap hd__now() for frequent callers: the processor's time-stamp counter, calibrated against the
 * system's clock a hundred times a second. A third of the cost; equal to within some microseconds, and never backwards.
 * If the kernel's own clock does not use the counter, it is hd__now(). Init by {0}; one thread. */
#ifndef HD_CORE_BASE_CLOCK_H
#define HD_CORE_BASE_CLOCK_H

#include "core/base/base.h"

#ifdef __x86_64__
#include <x86intrin.h>
#endif

struct hd__clock {
    uint64_t first, anchor; /* ticks at the first calibration, and at the latest */
    uint64_t span;          /* ticks from the anchor for which the scale is good; 0: there is no scale yet */
    double first_at, at;    /* seconds at these */
    double scale;           /* seconds a tick */
    int32_t state, reserved;
};

double hd__clock_recalibrate(struct hd__clock *clock); /* against hd__now() */

static inline double hd__clock_now(struct hd__clock *clock)
{
#ifdef __x86_64__
    uint64_t passed = __rdtsc() - clock->anchor;
    if (passed < clock->span)
        return clock->at + (double)passed * clock->scale;
#endif
    return hd__clock_recalibrate(clock);
}

#endif
