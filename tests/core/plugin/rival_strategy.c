/* A strategy that says what others say of themselves: it cuts an axis, CUTS, and is called ALIAS. In fact it does
 * nothing. The build sets both. */
#include "heddle/strategy.h"

static int32_t layout(const struct hd_host *host, const void *settings, struct hd_program *p, struct hd_error *err)
{
    (void)host, (void)settings, (void)p, (void)err;
    return HD_OK;
}

static const struct hd_strategy_ops ops = {
    .struct_size = sizeof ops, .api = HD_STRATEGY_API, .layout = layout, .cuts = HD_AXIS_BIT(CUTS)};

static const struct hd_alias aliases[] = {{.name = ALIAS, .summary = "what another is called"}};

HD_PLUGIN("strategy-" NAME, "1.0.0", "Apache-2.0", .kind = HD_KIND_STRATEGY, .name = NAME, .summary = "cuts nothing",
          .ops = &ops, HD_ALIASES(aliases))
