/* Included before a template: its component has a probe that refuses where a test says so. */
#include "absent.h"
#include "heddle/host.h"
#include "heddle/plugin.h"

static int32_t probe(const struct hd_host *host, struct hd_error *err)
{
    (void)host;
    return absent(LABEL, err);
}

#undef HD_PLUGIN
#define HD_PLUGIN(plugin_name, plugin_version, spdx, ...)                         \
    static const struct hd_component hd_plugin_component = {                      \
        .struct_size = sizeof(struct hd_component), .probe = probe, __VA_ARGS__}; \
    HD_PLUGIN_ONE(plugin_name, plugin_version, spdx, hd_plugin_component)
