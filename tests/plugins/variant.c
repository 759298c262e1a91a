/* strategy-variant: two builds of one plug-in, whose programs differ though a job says the same of both: VARIANT is 1
 * or 2. */
#include "heddle/host.h"
#include "heddle/strategy.h"

struct settings {
    int64_t unused;
};

static int32_t transform(const struct hd_host *host, const void *settings, struct hd_program *program,
                         struct hd_error *err)
{
    (void)settings, (void)err;
    host->pass->section(program, "variant", VARIANT);
    return HD_OK;
}

static const struct hd_strategy_ops ops = {.struct_size = sizeof ops, .api = HD_STRATEGY_API, .transform = transform};

static const struct hd_component component = {
    .struct_size = sizeof component,
    .kind = HD_KIND_STRATEGY,
    .name = "variant",
    .summary = "a section of its own, in steps that its build chose",
    .settings_size = sizeof(struct settings),
    .ops = &ops,
};

HD_PLUGIN_ONE("strategy-variant", "1.0", "Apache-2.0", component)
