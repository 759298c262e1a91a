/* Calibration of the processor's time-stamp counter. */
#include "core/base/clock.h"

#ifndef __x86_64__

double hd__clock_recalibrate(struct hd__clock *clock)
{
    (void)clock;
    return hd__now();
}

#else

enum { UNKNOWN, NOT_TRUSTED, COUNTING };

#define SPAN 0.01         /* seconds between calibrations: a clock that NTP slews moves by 5 us at most meanwhile */
#define INTERRUPTED 20000 /* ticks: a reading of the system's clock that took longer was interrupted, and is dropped */

/* The kernel has checked that the counters of all processors agree, do not stop, and have one rate. */
static int32_t is_trusted(void)
{
    char name[8] = "";
    FILE *f = fopen("/sys/devices/system/clocksource/clocksource0/current_clocksource", "r");
    int32_t yes = f && fgets(name, sizeof name, f) && strcmp(name, "tsc\n") == 0;
    if (f)
        fclose(f);
    return yes;
}

double hd__clock_recalibrate(struct hd__clock *c)
{
    if (c->state == UNKNOWN)
        c->state = is_trusted() ? COUNTING : NOT_TRUSTED;
    if (c->state == NOT_TRUSTED)
        return hd__now();
    uint64_t before = __rdtsc();
    double now = hd__now();
    uint64_t after = __rdtsc();
    double guess = c->at + (double)(before - c->anchor) * c->scale;
    if (c->span && guess > now && guess < now + 1e-4)
        now = guess; /* the counter was fast: hold the time rather than go back */
    if (after - before > INTERRUPTED)
        return now;
    before += (after - before) / 2;
    if (!c->first || before < c->first)
        *c = (struct hd__clock){.first = before, .first_at = now, .state = COUNTING};
    if (now - c->first_at >= SPAN) { /* the longer the baseline, the better the scale */
        c->scale = (now - c->first_at) / (double)(before - c->first);
        c->span = (uint64_t)(SPAN / c->scale);
    }
    c->anchor = before;
    c->at = now;
    return now;
}

#endif
