/* AdamW as torch.optim.AdamW: the rule stands in heddle/optimizer.h. Devices run it as HD_OP_ADAMW;
 * `step` is the same rule in plain loops and double, the reference that kernels are held against. */
#define OPTIM_SETTINGS struct adamw_settings
#include "../common/optim.h"

enum { ROUND_NEAREST = 0, ROUND_STOCHASTIC = 1 };

struct adamw_settings {
    double lr;
    struct hd_list betas;
    double eps, weight_decay, clip;
    int32_t decay;    /* OPTIM_DECAY_... */
    int32_t rounding; /* ROUND_... */
    int64_t rounding_seed;
};

static const struct hd_option options[] = {
    OPTIM_LR("3e-4", .help = OPTIM_SCHEDULED),
    OPTIM_BETAS("[0.9, 0.95]",
                .help = "decay rates of the means of the gradient and of its square, each from 0 up to but not 1"),
    OPTIM_EPS("eps", eps, "1e-8", .aliases = "adam_epsilon|adam_eps", .help = "added to the root of the second mean"),
    OPTIM_WEIGHT_DECAY("0.1", OPTIM_DECOUPLED),
    OPTIM_CLIP("1.0"),
    OPTIM_DECAY,
    OPTIM_CHOICE("rounding", rounding, "nearest|stochastic", "nearest",
                 .help = "of weights that are kept in bf16 (precision.master); stochastic: small updates are not lost"),
    OPTIM_OPTION("rounding_seed", rounding_seed, HD_OPT_INT, "0", .needs = "rounding=stochastic", .min = 0,
                 .max = 4294967295.0, .help = "of stochastic rounding"),
};

static const char *const state_names[] = {"exp_avg", "exp_avg_sq"};

OPTIM_ANSWER_DECAY(adamw_decay)
OPTIM_ANSWER(adamw_learning_rate, lr)
OPTIM_ANSWER(adamw_clip, clip)

static int32_t adamw_check(const void *settings, struct hd_error *err)
{
    return optim_check_list(&((const struct adamw_settings *)settings)->betas, "betas", "AdamW", 2, 0, 1, err);
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

static int32_t adamw_step(const void *settings, const struct hd_optim_args *a)
{
    const struct adamw_settings *s = settings;
    struct optim_adamw x =
        optim_adamw_begin(a, a->hyper[HD_HYPER_LR], s->betas.number, s->eps, optim_scale(a, s->clip));
    double decay;
    if (!hd_update_runs(a->hyper, a->norm2))
        return HD_OK;
    for (int64_t at = 0, n; at < a->count; at += n) {
        n = hd_decay_run(a, at, &decay);
        optim_adamw_run(&x, a, at, at + n, decay);
    }
    return HD_OK;
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

static const struct hd_alias aliases[] = {
    {.name = "adamw_torch", .summary = "what transformers calls it"},
    {.name = "adamw_torch_fused", .summary = "the same: every update is one pass"},
};

HD_PLUGIN("optim-adamw", "0.1.0", "Apache-2.0", .kind = HD_KIND_OPTIMIZER, .name = "adamw",
          .summary = "AdamW as PyTorch's: decoupled weight decay, bias correction",
          HD_OPTIONS(options, struct adamw_settings), .ops = &ops, HD_ALIASES(aliases))
