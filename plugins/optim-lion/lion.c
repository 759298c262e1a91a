/* Lion (Chen et al., "Symbolic Discovery of Optimization Algorithms", arXiv 2302.06675, algorithm 2):
 *
 *     p = p (1 - lr weight_decay) - lr sign(beta1 m + (1 - beta1) g)
 *     m = beta2 m + (1 - beta2) g */
#define OPTIM_SETTINGS struct lion_settings
#include "../common/optim.h"

struct lion_settings {
    double lr, weight_decay, clip;
    struct hd_list betas;
    int32_t decay; /* OPTIM_DECAY_... */
    int32_t reserved;
};

static const struct hd_option options[] = {
    OPTIM_LR("1e-4", .help = "peak learning rate, a third to a tenth of AdamW's; the schedule section shapes it"),
    OPTIM_BETAS("[0.9, 0.99]",
                .help = "share of the mean of the gradient in the update, and decay rate of that mean, each from 0 up "
                        "to but not 1"),
    OPTIM_WEIGHT_DECAY("0.1", OPTIM_DECOUPLED),
    OPTIM_CLIP("1.0"),
    OPTIM_DECAY,
};

static const char *const state_names[] = {"exp_avg"};

OPTIM_ANSWER_DECAY(lion_decay)
OPTIM_ANSWER(lion_learning_rate, lr)
OPTIM_ANSWER(lion_clip, clip)

static int32_t lion_check(const void *settings, struct hd_error *err)
{
    return optim_check_list(&((const struct lion_settings *)settings)->betas, "betas", "Lion", 2, 0, 1, err);
}

struct lion {
    const struct hd_optim_args *a;
    int64_t at;
    double lr, scale, decay, beta1, beta2;
};

static void update(void *user, int64_t first, int64_t last)
{
    const struct lion *x = user;
    const struct hd_optim_args *a = x->a;
    for (int64_t i = x->at + first; i < x->at + last; i++) {
        double g = a->grad[i] * x->scale, m = a->state[0][i], u = x->beta1 * m + (1 - x->beta1) * g;
        a->param[i] = (float)(a->param[i] * (1 - x->lr * x->decay) - x->lr * (double)((u > 0) - (u < 0)));
        a->state[0][i] = (float)(x->beta2 * m + (1 - x->beta2) * g);
    }
}

static int32_t lion_step(const void *settings, const struct hd_optim_args *a)
{
    const struct lion_settings *s = settings;
    struct lion x = {.a = a,
                     .lr = a->hyper[HD_HYPER_LR],
                     .scale = optim_scale(a, s->clip),
                     .beta1 = s->betas.number[0],
                     .beta2 = s->betas.number[1]};
    if (!hd_update_runs(a->hyper, a->norm2))
        return HD_OK;
    for (int64_t n; x.at < a->count; x.at += n) {
        n = hd_decay_run(a, x.at, &x.decay);
        a->host->parallel(a->host->context, n, update, &x);
    }
    return HD_OK;
}

static const struct hd_optimizer_ops ops = {
    .struct_size = sizeof ops,
    .caps = HD_OPTIM_FLAT,
    .n_states = 1,
    .state_names = state_names,
    .decay = lion_decay,
    .step = lion_step,
    .learning_rate = lion_learning_rate,
    .clip = lion_clip,
    .check = lion_check,
};

HD_PLUGIN("optim-lion", "0.1.0", "Apache-2.0", .kind = HD_KIND_OPTIMIZER, .name = "lion",
          .summary = "Lion: the sign of a mean of gradients, half of AdamW's state",
          HD_OPTIONS(options, struct lion_settings), .ops = &ops)
