/* AdamW as torch.optim.AdamW: the rule stands in heddle/optimizer.h. Devices run it as HD_OP_ADAMW;
 * `step` is the same rule in plain loops and double, the reference that kernels are held against. */
#include <math.h>

#include "heddle/optimizer.h"

enum { DECAY_MATRICES = 0, DECAY_ALL = 1 };
enum { ROUND_NEAREST = 0, ROUND_STOCHASTIC = 1 };

struct adamw_settings {
    double lr;
    struct hd_list betas;
    double eps, weight_decay, clip;
    int32_t decay;    /* DECAY_... */
    int32_t rounding; /* ROUND_... */
    int64_t rounding_seed;
};

#define OFFSET(field) .offset = offsetof(struct adamw_settings, field)

static const struct hd_option options[] = {
    {.name = "lr",
     .aliases = "learning_rate",
     .value = "3e-4",
     .type = HD_OPT_FLOAT,
     .min = 0,
     .max = 1e6,
     .flags = HD_OPTION_GLOBAL,
     OFFSET(lr),
     .help = "peak learning rate; the schedule section shapes it"},
    {.name = "betas",
     .value = "[0.9, 0.95]",
     .type = HD_OPT_LIST,
     .flags = HD_OPTION_GLOBAL,
     OFFSET(betas),
     .help = "decay rates of the means of the gradient and of its square, each from 0 up to but not 1"},
    {.name = "eps",
     .aliases = "adam_epsilon|adam_eps",
     .value = "1e-8",
     .type = HD_OPT_FLOAT,
     .min = 0,
     .max = 1,
     .flags = HD_OPTION_GLOBAL,
     OFFSET(eps),
     .help = "added to the root of the second mean"},
    {.name = "weight_decay",
     .value = "0.1",
     .type = HD_OPT_FLOAT,
     .min = 0,
     .max = 1e3,
     .flags = HD_OPTION_GLOBAL,
     OFFSET(weight_decay),
     .help = "decoupled: parameters shrink by lr times this"},
    {.name = "clip",
     .value = "1.0",
     .type = HD_OPT_FLOAT,
     .min = 0,
     .max = 1e30,
     .aliases = "grad_clip|max_grad_norm|gradient_clipping|clip_grad",
     .flags = HD_OPTION_GLOBAL,
     OFFSET(clip),
     .help = "largest global gradient norm, 0 for no clipping"},
    {.name = "decay",
     .needs = "weight_decay!=0",
     .value = "matrices",
     .type = HD_OPT_ENUM,
     .choices = "matrices|all",
     .flags = HD_OPTION_GLOBAL,
     OFFSET(decay),
     .help = "what decays: tensors of two dimensions or more, or all"},
    {.name = "rounding",
     .value = "nearest",
     .type = HD_OPT_ENUM,
     .choices = "nearest|stochastic",
     .flags = HD_OPTION_GLOBAL,
     OFFSET(rounding),
     .help = "of weights that are kept in bf16 (precision.master); stochastic: small updates are not lost"},
    {.name = "rounding_seed",
     .needs = "rounding=stochastic",
     .value = "0",
     .type = HD_OPT_INT,
     .min = 0,
     .max = 4294967295.0,
     .flags = HD_OPTION_GLOBAL,
     OFFSET(rounding_seed),
     .help = "of stochastic rounding"},
};

static const char *const state_names[] = {"exp_avg", "exp_avg_sq"};

static double adamw_decay(const void *settings, const char *param, uint32_t ndim)
{
    const struct adamw_settings *s = settings;
    (void)param;
    return s->decay == DECAY_ALL || ndim >= 2 ? s->weight_decay : 0.0;
}

static int32_t adamw_check(const void *settings, struct hd_error *err)
{
    const struct hd_list *betas = &((const struct adamw_settings *)settings)->betas;
    if (betas->count != 2)
        return hd_fail(err, HD_E_INVALID, "optimizer.betas has %llu number%s, AdamW needs two: [0.9, 0.95]",
                       (unsigned long long)betas->count, betas->count == 1 ? "" : "s");
    for (int i = 0; i < 2; i++)
        if (!(betas->number[i] >= 0 && betas->number[i] < 1)) /* NaN too */
            return hd_fail(err, HD_E_INVALID, "optimizer.betas: '%s' is not a number from 0 up to but not 1",
                           betas->text[i]);
    return HD_OK;
}

static int32_t adamw_emit(const void *settings, uint32_t *op, struct hd_attrs *attrs, struct hd_error *err)
{
    const struct adamw_settings *s = settings;
    (void)err;
    *op = HD_OP_ADAMW;
    attrs->beta1 = s->betas.number[0];
    attrs->beta2 = s->betas.number[1];
    attrs->eps = s->eps;
    attrs->clip = s->clip;
    if (s->rounding == ROUND_STOCHASTIC) {
        attrs->flags |= HD_ATTR_STOCHASTIC;
        attrs->index = (uint32_t)s->rounding_seed;
    }
    return HD_OK;
}

/* Elements [first, first + count) of the call, all with one decay. */
static void update(const struct adamw_settings *s, const struct hd_optim_args *a, int64_t first, int64_t count,
                   double decay)
{
    double lr = a->hyper[HD_HYPER_LR], t = a->hyper[HD_HYPER_STEP], inv_scale = a->hyper[HD_HYPER_INV_SCALE];
    double b1 = s->betas.number[0], b2 = s->betas.number[1];
    double scale = inv_scale * hd_clip_factor(a->norm2 * inv_scale * inv_scale, s->clip, sqrt);
    double rate = lr / (1 - pow(b1, t)), root = sqrt(1 - pow(b2, t));
    for (int64_t i = first; i < first + count; i++) {
        double g = a->grad[i] * scale;
        double m = b1 * a->state[0][i] + (1 - b1) * g;
        double v = b2 * a->state[1][i] + (1 - b2) * g * g;
        double p = a->param[i] * (1 - lr * decay);
        a->param[i] = (float)(p - rate * m / (sqrt(v) / root + s->eps));
        a->state[0][i] = (float)m;
        a->state[1][i] = (float)v;
    }
}

static int32_t adamw_step(const void *settings, const struct hd_optim_args *a)
{
    double decay;
    if (!hd_update_runs(a->hyper, a->norm2))
        return HD_OK;
    for (int64_t at = 0, n; at < a->count; at += n) {
        n = hd_decay_run(a, at, &decay);
        update(settings, a, at, n, decay);
    }
    return HD_OK;
}

static double adamw_learning_rate(const void *settings)
{
    return ((const struct adamw_settings *)settings)->lr;
}

static double adamw_clip(const void *settings)
{
    return ((const struct adamw_settings *)settings)->clip;
}

static const struct hd_optimizer_ops ops = {
    .struct_size = sizeof ops,
    .caps = HD_OPTIM_FLAT,
    .n_states = 2,
    .state_names = state_names,
    .decay = adamw_decay,
    .emit = adamw_emit,
    .step = adamw_step,
    .learning_rate = adamw_learning_rate,
    .clip = adamw_clip,
    .check = adamw_check,
};

HD_PLUGIN("optim-adamw", "0.1.0", "Apache-2.0", .kind = HD_KIND_OPTIMIZER, .name = "adamw",
          .summary = "AdamW as PyTorch's: decoupled weight decay, bias correction",
          HD_OPTIONS(options, struct adamw_settings), .ops = &ops)
