// The optimizer of optimizer.c with one state, in C++11: what a plugin in C++ has to write.
#include <cstddef>
#include <vector>

#include "heddle/optimizer.h"

namespace
{
struct settings {
    double lr;
};

std::vector<hd_option> make_options()
{
    hd_option lr = hd_option();
    lr.name = "lr";
    lr.value = "1e-2";
    lr.help = "learning rate";
    lr.type = HD_OPT_FLOAT;
    lr.offset = offsetof(settings, lr);
    return std::vector<hd_option>(1, lr);
}

const std::vector<hd_option> options = make_options();
const char *const names[] = {"a"};

double learning_rate(const void *s)
{
    return static_cast<const settings *>(s)->lr;
}

int32_t step(const void *, const hd_optim_args *a)
{
    for (int64_t i = 0; i < a->count; i++) {
        a->state[0][i] = 0.5f * a->state[0][i] + a->grad[i];
        a->param[i] -= static_cast<float>(a->hyper[HD_HYPER_LR] * a->state[0][i]);
    }
    return HD_OK;
}

hd_optimizer_ops make_ops()
{
    hd_optimizer_ops ops = hd_optimizer_ops();
    ops.struct_size = sizeof ops;
    ops.caps = HD_OPTIM_FLAT;
    ops.n_states = 1;
    ops.state_names = names;
    ops.step = step;
    ops.learning_rate = learning_rate;
    return ops;
}

const hd_optimizer_ops ops = make_ops();

hd_component make_component()
{
    hd_component c = hd_component();
    c.struct_size = sizeof c;
    c.kind = HD_KIND_OPTIMIZER;
    c.name = "momentum";
    c.summary = "gradient descent with momentum, in C++";
    c.options = options.data();
    c.n_options = options.size();
    c.option_size = sizeof(hd_option);
    c.settings_size = sizeof(settings);
    c.ops = &ops;
    return c;
}

const hd_component component = make_component();
} // namespace

HD_PLUGIN_ONE("optim-momentum", "0.1.0", "Apache-2.0", component)
