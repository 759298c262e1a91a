/* SGD with momentum as torch.optim.SGD: the rule stands in heddle/optimizer.h. Devices run it as
 * HD_OP_SGD; `step` is the same rule in plain loops and double, the reference that kernels are held
 * against. */
#define OPTIM_SETTINGS struct sgd_settings
#include "../common/optim.h"

enum { DECAY_ALL = 0, DECAY_MATRICES = 1 };

struct sgd_settings {
    double lr, momentum, weight_decay, clip;
    int32_t decay; /* DECAY_... */
    int32_t reserved;
};

static const struct hd_option options[] = {
    OPTIM_LR("0.1", .help = OPTIM_SCHEDULED),
    OPTIM_NUMBER("momentum", momentum, "0", 1,
                 .help = "share of the last step's direction that is kept; 0 keeps no state at all"),
    OPTIM_WEIGHT_DECAY("0", "coupled: parameters times this are added to the clipped gradient"),
    OPTIM_CLIP("0"),
    OPTIM_CHOICE("decay", decay, "all|matrices", "all", .needs = "weight_decay!=0",
                 .help = "what decays: all tensors, or those of two dimensions or more"),
};

static const char *const state_names[] = {"momentum_buffer"};

static double sgd_decay(const void *settings, const char *param, uint32_t ndim)
{
    const struct sgd_settings *s = settings;
    (void)param;
    return s->decay == DECAY_ALL || ndim >= 2 ? s->weight_decay : 0.0;
}

static int32_t sgd_check(const void *settings, struct hd_error *err)
{
    return ((const struct sgd_settings *)settings)->momentum < 1
               ? HD_OK
               : hd_fail(err, HD_E_INVALID,
                         "optimizer.momentum is 1: no gradient is ever forgotten, and steps only grow; use 0.9");
}

static int32_t sgd_emit(const void *settings, uint32_t *op, struct hd_attrs *attrs, struct hd_error *err)
{
    const struct sgd_settings *s = settings;
    (void)err;
    *op = HD_OP_SGD;
    attrs->beta1 = s->momentum;
    attrs->clip = s->clip;
    return HD_OK;
}

static uint32_t sgd_states(const void *settings)
{
    return ((const struct sgd_settings *)settings)->momentum > 0 ? 1 : 0;
}

/* Elements [first, first + count) of the call, all with one decay. */
static void update(const struct sgd_settings *s, const struct hd_optim_args *a, int64_t first, int64_t count,
                   double decay)
{
    double lr = a->hyper[HD_HYPER_LR], scale = optim_scale(a, s->clip);
    float *momentum = s->momentum > 0 ? a->state[0] : NULL;
    for (int64_t i = first; i < first + count; i++) {
        double m = a->grad[i] * scale + decay * a->param[i];
        if (momentum) {
            m += s->momentum * momentum[i];
            momentum[i] = (float)m;
        }
        a->param[i] = (float)(a->param[i] - lr * m);
    }
}

static int32_t sgd_step(const void *settings, const struct hd_optim_args *a)
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

OPTIM_ANSWER(sgd_learning_rate, lr)
OPTIM_ANSWER(sgd_clip, clip)

static const struct hd_optimizer_ops ops = {
    .struct_size = sizeof ops,
    .caps = HD_OPTIM_FLAT,
    .n_states = 1,
    .state_names = state_names,
    .check = sgd_check,
    .decay = sgd_decay,
    .emit = sgd_emit,
    .step = sgd_step,
    .states = sgd_states,
    .learning_rate = sgd_learning_rate,
    .clip = sgd_clip,
};

HD_PLUGIN("optim-sgd", "0.1.0", "Apache-2.0", .kind = HD_KIND_OPTIMIZER, .name = "sgd",
          .summary = "stochastic gradient descent with momentum as PyTorch's", HD_OPTIONS(options, struct sgd_settings),
          .ops = &ops)
