/* Gradient descent with momentum in `step`, and one peculiarity by flag: STEP_FAILS in the third step, STATES of them
 * instead of one, WHOLE parameters wanted, STATES_SAID beyond n_states. */
#include <stddef.h>

#include "heddle/optimizer.h"

struct settings {
    double lr;
};

static const struct hd_option options[] = {{.name = "lr",
                                            .value = "1e-2",
                                            .help = "learning rate",
                                            .type = HD_OPT_FLOAT,
                                            .offset = offsetof(struct settings, lr)}};

static const char *const names[] = {"a", "b", "c", "d"};

static double learning_rate(const void *settings)
{
    return ((const struct settings *)settings)->lr;
}

#ifndef STATES
#define STATES 1
#endif
#ifndef CAPS
#define CAPS HD_OPTIM_FLAT
#endif

/* The update uses the mean of all states, which are equal: with any number of them it trains the same. */
static int32_t step(const void *settings, const struct hd_optim_args *a)
{
    (void)settings;
#ifdef STEP_FAILS
    if (a->hyper[HD_HYPER_STEP] == 3)
        return hd_fail(a->err, HD_E_UNSUPPORTED, "the factors of step 3 do not converge");
#endif
    for (int64_t i = 0; i < a->count; i++) {
        double mean = 0;
        for (int s = 0; s < STATES; s++) {
            a->state[s][i] = 0.5f * a->state[s][i] + a->grad[i];
            mean += a->state[s][i] / STATES;
        }
        a->param[i] -= (float)(a->hyper[HD_HYPER_LR] * mean);
    }
    return HD_OK;
}

#ifdef STATES_SAID
static uint32_t states(const void *settings)
{
    (void)settings;
    return STATES_SAID;
}
#endif

static const struct hd_optimizer_ops ops = {.struct_size = sizeof ops,
                                            .caps = CAPS,
                                            .n_states = STATES,
                                            .state_names = names,
                                            .step = step,
#ifdef STATES_SAID
                                            .states = states,
#endif
                                            .learning_rate = learning_rate};

HD_PLUGIN("optim-" NAME, "0.1.0", "Apache-2.0", .kind = HD_KIND_OPTIMIZER, .name = NAME, .summary = "for a test",
          HD_OPTIONS(options, struct settings), .ops = &ops)
