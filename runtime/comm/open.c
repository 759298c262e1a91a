#include "runtime/comm/open.h"

#include "core/base/process.h"

uint64_t hd__comm_caps_with(const struct hd_comm_ops *component, const void *settings)
{
    return component->caps_with ? component->caps_with(settings) : component->caps;
}

uint64_t hd__comm_caps(const struct hd_comm_ops *component, uint64_t caps, const struct hd__tuning *tuning)
{
    if (component->collective && !(caps & HD_COMM_MESSAGES_ONLY))
        return caps;
    caps = (caps | HD_COMM_MESSAGES_ONLY) & ~HD_COMM_ANY_ORDER;
    return tuning && tuning->any_order ? caps | HD_COMM_ANY_ORDER : caps;
}

int32_t hd__comm_open(const struct hd_comm_ops *component, const struct hd_host *host, const void *settings,
                      const struct hd_world *world, struct hd__comm *transport, struct hd_error *err)
{
    struct hd_comm *comm = NULL;
    struct hd__process process;
    hd__process_note(&process);
    int32_t code = component->open(host, settings, world, &comm, err);
    hd__process_restore_after(&process, (uintptr_t)component->open);
    code = hd__comm_result(code, "open", comm, err);
    if (code != HD_OK)
        return code;
    transport->ops = *component;
    transport->comm = comm;
    uint64_t caps = component->caps_of ? component->caps_of(comm) : hd__comm_caps_with(component, settings);
    transport->ops.caps = hd__comm_caps(component, caps, transport->tuning);
    if (transport->ops.caps & HD_COMM_MESSAGES_ONLY)
        transport->ops.collective = NULL;
    if (!transport->ops.collective || !component->wait) {
        struct hd__comm inner = *transport;
        hd__comm_software_create(&inner, world, transport);
    }
    return HD_OK;
}

void hd__comm_close(struct hd__comm *transport)
{
    if (transport->comm)
        transport->ops.close(transport->comm);
    transport->comm = NULL;
}
