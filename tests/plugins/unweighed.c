/* model-unweighed: model-encoder that forgets to say where the weights of model.from are. */
#include <stdlib.h>

#include "heddle/model.h"
#include "tests/plugins/inner.h"

static struct hd_model_ops ops;
static struct hd_component component;
static const struct hd_model_ops *encoder;

static int32_t unweighed_info(struct hd_model *model, struct hd_model_info *info, struct hd_error *err)
{
    int32_t rc = encoder->info(model, info, err);
    info->weights = NULL;
    return rc;
}

HD_PLUGIN_DESCRIPTOR(plugin, "model-unweighed", "0.1.0", "Apache-2.0", component);

__attribute__((visibility("default"))) const struct hd_plugin *HD_PLUGIN_ENTRY(void);
const struct hd_plugin *HD_PLUGIN_ENTRY(void)
{
    const struct hd_component *inner = inner_component(MODEL_ENCODER);
    if (!inner)
        return NULL;
    encoder = inner->ops;
    ops = *encoder;
    ops.info = unweighed_info;
    component = *inner;
    component.name = "unweighed";
    component.ops = &ops;
    return &plugin;
}
