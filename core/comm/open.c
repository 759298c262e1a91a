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
    if (component->caps_of)
        transport->ops.caps = component->caps_of(comm);
    if (transport->ops.caps & HD_COMM_MESSAGES_ONLY)
        transport->ops.collective = NULL;
    if (!transport->ops.collective || !component->wait) {
        struct hd_comm_ops inner = transport->ops;
        transport->ops = hd__overlay_ops;
        transport->ops.caps = inner.caps;
        if (!inner.collective) { /* whose order it is: the core's */
            transport->ops.caps &= ~HD_COMM_ANY_ORDER;
            transport->ops.caps |= transport->tuning && transport->tuning->any_order ? HD_COMM_ANY_ORDER : 0;
        }
        transport->ops.memory = inner.memory ? hd__overlay_ops.memory : NULL;
        transport->comm = hd__overlay_create(&inner, comm, world->rank, transport->tuning);
    }
    return HD_OK;
}

void hd__comm_close(struct hd__comm *transport)
{
    if (transport->comm)
        transport->ops.close(transport->comm);
    transport->comm = NULL;
}
