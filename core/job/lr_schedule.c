/* The learning rate of every step; the formulas are in the header. */
#include "core/job/lr_schedule.h"

#include <math.h>

static double interpolate(int32_t shape, double lr, double min_lr, double p)
{
    switch (shape) {
    case HD__DECAY_COSINE:
        return min_lr + (lr - min_lr) * (1 + cos(M_PI * p)) / 2;
    case HD__DECAY_SQRT:
        return lr + (min_lr - lr) * sqrt(p);
    default:
        return lr + (min_lr - lr) * p;
    }
}

/* How far `done` of `all` is, 0 to 1; a phase of no steps is over at once. */
static double progress(int64_t done, int64_t all)
{
    if (done <= 0)
        return 0;
    return done >= all ? 1 : (double)done / (double)all;
}

double hd__lr(const struct hd__lr_schedule *s, int64_t step, int64_t steps)
{
    int64_t decay = s->decay > 0 ? s->decay : steps / 10;
    if (step <= s->warmup)
        return s->lr * (double)step / (double)s->warmup;
    switch (s->kind) {
    case HD__LR_LINEAR:
        return interpolate(HD__DECAY_LINEAR, s->lr, s->min_lr, progress(step - 1 - s->warmup, steps - s->warmup));
    case HD__LR_COSINE:
        return interpolate(HD__DECAY_COSINE, s->lr, s->min_lr, progress(step - 1 - s->warmup, steps - s->warmup));
    case HD__LR_WSD:
        return interpolate(s->decay_shape, s->lr, s->min_lr, progress(step - 1 - (steps - decay), decay));
    default:
        return s->lr;
    }
}
