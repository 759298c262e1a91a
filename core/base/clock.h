/* core/base/clock: hd__now() for whoever asks very often: by the processor's counter, set right by the system's clock a
 * hundred times a second. A third of the price; the same to within some microseconds, and never backwards. Where the
 * kernel does not trust the counter itself it is hd__now(). All zero to begin with; one thread. */
#ifndef HD_CORE_BASE_CLOCK_H
#define HD_CORE_BASE_CLOCK_H

#include "core/base/base.h"

#ifdef __x86_64__
#include <x86intrin.h>
#endif

struct hd__clock {
    uint64_t first, anchor; /* ticks: of the first look at the system's clock, and of the newest */
    uint64_t span;          /* ticks from the anchor for which the scale is good; 0: there is no scale yet */
    double first_at, at;    /* seconds, then */
    double scale;           /* seconds a tick */
    int32_t state, reserved;
};

double hd__clock_recalibrate(struct hd__clock *clock); /* at the system's clock */

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
