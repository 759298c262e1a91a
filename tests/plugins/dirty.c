/* comm-dirty: comm-shm, whose memory is what the environment says: none, not zeroed, or not aligned. */
#include <stdlib.h>
#include <string.h>

#include "heddle/comm.h"
#include "tests/plugins/inner.h"

static struct hd_comm_ops ops;
static struct hd_component component;
static const struct hd_comm_ops *shm;

static int32_t dirty_memory(struct hd_comm *comm, size_t bytes, void **base, struct hd_error *err)
{
    const char *how = getenv("DIRTY");
    int32_t rc = !strcmp(how, "none") ? HD_OK : shm->memory(comm, bytes + 4096, base, err);
    if (!rc && !strcmp(how, "full"))
        memset(*base, 0x5a, bytes);
    if (!rc && !strcmp(how, "odd"))
        *base = (char *)*base + 64;
    return rc;
}

HD_PLUGIN_DESCRIPTOR(plugin, "comm-dirty", "0.1.0", "Apache-2.0", component);

__attribute__((visibility("default"))) const struct hd_plugin *HD_PLUGIN_ENTRY(void);
const struct hd_plugin *HD_PLUGIN_ENTRY(void)
{
    const struct hd_component *inner = inner_component(COMM_SHM);
    if (!inner)
        return NULL;
    shm = inner->ops;
    ops = *shm;
    ops.memory = dirty_memory;
    component = *inner;
    component.name = "dirty";
    component.ops = &ops;
    return &plugin;
}
