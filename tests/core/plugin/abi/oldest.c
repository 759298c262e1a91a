/* The optimizer of optimizer.c with one state, built for ABI 1.0: it must train and pass the tests of optimizers with
 * every later heddle of ABI 1. */
#include "abi_1_0.h"

struct settings {
    double lr;
};

static const struct hd_option options[] = {{.name = "lr",
                                            .value = "1e-2",
                                            .help = "learning rate",
                                            .type = HD_OPT_FLOAT,
                                            .flags = HD_OPTION_GLOBAL,
                                            .max = 1}};
static const char *const state_names[] = {"a"};

static double learning_rate(const void *settings)
{
    return ((const struct settings *)settings)->lr;
}

static double clip(const void *settings)
{
    (void)settings;
    return 0;
}

static int32_t check(const void *settings, struct hd_error *err)
{
    if (learning_rate(settings) > 0)
        return HD_OK;
    err->code = HD_E_INVALID;
    __builtin_strcpy(err->message, "optimizer.lr: 0 does not train");
    return HD_E_INVALID;
}

static int32_t step(const void *settings, const struct hd_optim_args *a)
{
    (void)settings;
    if (a->hyper[HD_HYPER_SKIP] != 0 || a->norm2 - a->norm2 != 0)
        return HD_OK;
    for (int64_t i = 0; i < a->count; i++) {
        a->state[0][i] = 0.5f * a->state[0][i] + (float)(a->grad[i] * a->hyper[HD_HYPER_INV_SCALE]);
        a->param[i] -= (float)(a->hyper[HD_HYPER_LR] * a->state[0][i]);
    }
    return HD_OK;
}

static const struct hd_optimizer_ops ops = {.struct_size = sizeof ops,
                                            .caps = HD_OPTIM_FLAT,
                                            .n_states = 1,
                                            .state_names = state_names,
                                            .step = step,
                                            .learning_rate = learning_rate,
                                            .clip = clip,
                                            .check = check};
static const struct hd_component component = {.struct_size = sizeof component,
                                              .kind = HD_KIND_OPTIMIZER,
                                              .name = "oldest",
                                              .summary = "momentum, for ABI 1.0",
                                              .options = options,
                                              .n_options = 1,
                                              .option_size = sizeof options[0],
                                              .settings_size = sizeof(struct settings),
                                              .ops = &ops};
static const struct hd_component *const components[] = {&component, NULL};
static const struct hd_plugin plugin = {"heddle\n\x1a", sizeof plugin, 0,         0, "optim-oldest",
                                        "1.0.0",        "Apache-2.0",  components};

__attribute__((visibility("default"))) const struct hd_plugin *heddle_plugin_v1(void);
const struct hd_plugin *heddle_plugin_v1(void)
{
    return &plugin;
}
