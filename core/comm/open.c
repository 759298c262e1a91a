#include "core/comm/open.h"

int32_t hd__comm_open(const struct hd_comm_ops *component, const struct hd_host *host, const void *settings,
                           const struct hd_world *world, struct hd__comm *transport, struct hd_error *err)
{
    struct hd_comm *comm = NULL;
    int32_t code = component->open(host, settings, world, &comm, err);
    if (code != HD_OK)
        return code;
    transport->ops = *component;
    transport->comm = comm;
    if (!component->collective || !component->wait) {
        transport->ops = hd__overlay_ops;
        transport->ops.caps = component->caps;
        transport->ops.memory = component->memory ? hd__overlay_ops.memory : NULL;
        transport->comm = hd__overlay_create(component, comm, world->rank);
    }
    return HD_OK;
}

void hd__comm_close(struct hd__comm *transport)
{
    if (transport->comm)
        transport->ops.close(transport->comm);
    transport->comm = NULL;
}
