/* optim-mylion: Lion (Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms", algorithm 2)
 * as a heddle plugin.
 *
 *     u = sign(beta1 m + (1 - beta1) g)
 *     p = p - lr (u + weight_decay p)
 *     m = beta2 m + (1 - beta2) g
 *
 * A template for your own: it is built outside heddle's tree, from the installed headers alone. */
#include <math.h>

#include "heddle/optimizer.h"

/* What the options below are parsed into; the core owns it. */
struct lion_settings {
    double lr, beta1, beta2, weight_decay, clip;
};

#define OFFSET(field) .offset = offsetof(struct lion_settings, field)

/* Job files are checked against this table, and `heddle plugins optim-mylion` prints it. */
static const struct hd_option options[] = {
    {.name = "lr",
     .value = "1e-4",
     .type = HD_OPT_FLOAT,
     .min = 0,
     .max = 1e6,
     .flags = HD_OPTION_GLOBAL,
     OFFSET(lr),
     .help = "peak learning rate; Lion wants a third to a tenth of AdamW's"},
    {.name = "beta1",
     .value = "0.9",
     .type = HD_OPT_FLOAT,
     .min = 0,
     .max = 1,
     .flags = HD_OPTION_GLOBAL,
     OFFSET(beta1),
     .help = "share of the momentum in the update"},
    {.name = "beta2",
     .value = "0.99",
     .type = HD_OPT_FLOAT,
     .min = 0,
     .max = 1,
     .flags = HD_OPTION_GLOBAL,
     OFFSET(beta2),
     .help = "share of the momentum that is kept"},
    {.name = "weight_decay",
     .value = "1.0",
     .type = HD_OPT_FLOAT,
     .min = 0,
     .max = 1e3,
     .flags = HD_OPTION_GLOBAL,
     OFFSET(weight_decay),
     .help = "decoupled; for matrices only"},
    {.name = "clip",
     .value = "1.0",
     .type = HD_OPT_FLOAT,
     .min = 0,
     .max = 1e30,
     .flags = HD_OPTION_GLOBAL,
     OFFSET(clip),
     .help = "largest global gradient norm, 0 for no clipping"},
};

static const char *const state_names[] = {"exp_avg"};

static double lion_decay(const void *settings, const char *param, uint32_t ndim)
{
    (void)param;
    return ndim >= 2 ? ((const struct lion_settings *)settings)->weight_decay : 0.0;
}

static double sign(double x)
{
    return (double)((x > 0) - (x < 0));
}

/* Updates elements [a->first, a->first + a->count) of the flat parameter buffer, in place. */
static int32_t lion_step(const void *settings, const struct hd_optim_args *a)
{
    const struct lion_settings *s = settings;
    double lr = a->hyper[HD_HYPER_LR], inv_scale = a->hyper[HD_HYPER_INV_SCALE];
    double scale = inv_scale * hd_clip_factor(a->norm2 * inv_scale * inv_scale, s->clip, sqrt);
    if (!hd_update_runs(a->hyper, a->norm2)) /* the gradients overflowed: leave everything as it is */
        return HD_OK;
    for (int64_t i = 0, end; i < a->count;) {
        double decay;
        for (end = i + hd_decay_run(a, i, &decay); i < end; i++) {
            double g = a->grad[i] * scale, m = a->state[0][i], p = a->param[i];
            double u = sign(s->beta1 * m + (1 - s->beta1) * g);
            a->param[i] = (float)(p - lr * (u + decay * p));
            a->state[0][i] = (float)(s->beta2 * m + (1 - s->beta2) * g);
        }
    }
    return HD_OK;
}

static double lion_learning_rate(const void *settings)
{
    return ((const struct lion_settings *)settings)->lr;
}

static double lion_clip(const void *settings)
{
    return ((const struct lion_settings *)settings)->clip;
}

/* A slot that is not here is one that this optimizer does not offer. */
static const struct hd_optimizer_ops ops = {
    .struct_size = sizeof ops,
    .caps = HD_OPTIM_FLAT, /* any cut of the parameters will do */
    .n_states = 1,
    .state_names = state_names,
    .decay = lion_decay,
    .step = lion_step,
    .learning_rate = lion_learning_rate,
    .clip = lion_clip,
};

HD_PLUGIN("optim-mylion", "1.0.0", "Apache-2.0", .kind = HD_KIND_OPTIMIZER, .name = "mylion",
          .summary = "Lion: sign of the momentum, half of AdamW's state", HD_OPTIONS(options, struct lion_settings),
          .ops = &ops)
