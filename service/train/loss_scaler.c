#include "service/train/loss_scaler.h"

#include <math.h>

#define GROWTH_STEPS 2000
#define GROWTH 2.0
#define BACKOFF 0.5
#define LEAST 1.0

void hd__train_loss_scaler_init(struct hd__train_loss_scaler *s, const struct hd__job *job)
{
    *s = (struct hd__train_loss_scaler){.scaling = job->precision.loss_scaling, .scale = job->precision.loss_scale};
    if (s->scaling == HD__LOSS_SCALE_NONE)
        s->scale = 1;
}

int hd__train_loss_scaler_update(struct hd__train_loss_scaler *s, int overflow)
{
    if (s->scaling != HD__LOSS_SCALE_DYNAMIC)
        return !overflow;
    if (overflow) {
        if (s->scale * BACKOFF < LEAST)
            return 0;
        s->scale *= BACKOFF;
        s->good = 0;
        s->skipped++;
    } else if (++s->good == GROWTH_STEPS) {
        if (isfinite((float)(s->scale * GROWTH))) /* seeds are fp32 */
            s->scale *= GROWTH;
        s->good = 0;
    }
    return 1;
}

json_t *hd__train_loss_scaler_json(const struct hd__train_loss_scaler *s)
{
    return json_pack("{s:f,s:I,s:I}", "scale", s->scale, "good_steps", (json_int_t)s->good, "skipped",
                     (json_int_t)s->skipped);
}

void hd__train_loss_scaler_load(struct hd__train_loss_scaler *s, const json_t *saved)
{
    const json_t *scale = json_object_get(saved, "scale"), *good = json_object_get(saved, "good_steps");
    const json_t *skipped = json_object_get(saved, "skipped");
    if (json_is_integer(skipped) && json_integer_value(skipped) >= 0)
        s->skipped = json_integer_value(skipped);
    if (s->scaling != HD__LOSS_SCALE_DYNAMIC || !json_is_number(scale) || !json_is_integer(good))
        return;
    if (json_number_value(scale) < LEAST || !isfinite(json_number_value(scale)))
        return;
    s->scale = json_number_value(scale);
    s->good = json_integer_value(good);
}
