/* Streams and events of the device. */
#include "runtime/exec/device.h"

#include "core/base/process.h"
#include "runtime/cpu/share.h"
#include "runtime/exec/copy/copy.h"
#include "runtime/exec/transports.h"

/* Derives `streams` and `discrete` from the capabilities. */
static int32_t check_caps(struct hd__device *d, struct hd_error *err)
{
    d->streams = (d->ops->caps & HD_DEVICE_STREAMS) != 0;
    d->discrete = !(d->ops->caps & HD_DEVICE_HOST_MEMORY);
    if (d->discrete && !d->streams)
        return hd_fail(
            err, HD_E_UNSUPPORTED,
            "device-%s has neither HD_DEVICE_HOST_MEMORY nor HD_DEVICE_STREAMS: it needs one of them for copies",
            d->name);
    return HD_OK;
}

/* A message that begins with a key of the device is of that key's line. */
static int32_t locate(const struct hd__compiled *c, struct hd_error *err)
{
    const char *key = hd__arena_format(&c->job->arena, "%.*s", (int)strcspn(err->message, ": "), err->message);
    return hd__job_locate_error(c->job, hd__job_value_get(c->job, key) ? key : "device", err);
}

int32_t hd__exec_device_open(struct hd__device *d, const struct hd__compiled *c, int32_t local_rank,
                             int32_t local_ranks, struct hd_error *err)
{
    struct hd__process process;
    struct hd_device_place place = {.struct_size = sizeof place,
                                    .local_rank = local_rank,
                                    .local_ranks = local_ranks,
                                    .threads = hd__cpu_share_of_rank(local_ranks)};
    int32_t rc = hd__plugin_probe(c->plugins, c->device_choice.component, err);
    if (rc)
        return rc;
    d->ops = &c->device_choice.component->ops.device;
    d->name = c->device_choice.section->use;
    hd__process_note(&process);
    rc = hd__slot_result(d->ops->open(hd__exec_host_table(), c->device_choice.settings, &place, &d->handle, err),
                         "the device's", "open", err);
    hd__process_restore_after(&process, (uintptr_t)d->ops->open);
    return rc ? locate(c, err) : check_caps(d, err);
}

static int32_t probe_all(const struct hd__compiled *c, const struct hd__chosen *chosen, uint32_t n,
                         struct hd_error *err)
{
    for (uint32_t i = 0; i < n; i++)
        if (hd__plugin_probe(c->plugins, chosen[i].component, err))
            return hd__job_locate_error(c->job, hd__arena_format(&c->job->arena, "%s.use", chosen[i].section->path),
                                        err);
    return HD_OK;
}

int32_t hd__exec_check_plugins(const struct hd__compiled *c, int32_t open_for, struct hd_error *err)
{
    const struct hd__selection *s = c->selection;
    struct hd__device device = {0};
    int32_t rc = probe_all(c, &c->device_choice, 1, err);
    if (!rc && open_for)
        rc = hd__exec_device_open(&device, c, open_for - 1, open_for, err);
    if (device.handle)
        device.ops->close(device.handle);
    if (!rc && c->checkpoint_choice.component)
        rc = probe_all(c, &c->checkpoint_choice, 1, err);
    rc = rc ? rc : probe_all(c, &c->model_choice, 1, err);
    rc = rc ? rc : probe_all(c, &c->optimizer_choice, 1, err);
    rc = rc ? rc : probe_all(c, c->strategies, (uint32_t)c->n_strategies, err);
    rc = rc ? rc : probe_all(c, s->comms.at, s->comms.count, err);
    rc = rc ? rc : probe_all(c, s->hooks.at, s->hooks.count, err);
    return rc ? rc : probe_all(c, s->sinks.at, s->sinks.count, err);
}

static int32_t check_all(const struct hd__compiled *c, const struct hd__chosen *chosen, uint32_t n, int apart,
                         struct hd_error *err)
{
    const void *before[16];
    struct hd_check_job here = {.struct_size = sizeof here, .ranks = c->mesh.ranks, .apart = apart, .before = before};
    for (uint32_t i = 0; i < n; i++) {
        const struct hd__component *component = chosen[i].component;
        const char *path = chosen[i].section->path;
        here.n_before = 0;
        for (uint32_t k = 0; k < i && here.n_before < HD__COUNT(before); k++)
            if (chosen[k].component == component)
                before[here.n_before++] = chosen[k].settings;
        if (!component->check || !component->check(hd__exec_host_table(), chosen[i].settings, &here, err))
            continue;
        return component->kind == HD_KIND_METRICS ? hd__job_fail(c->job, path, err, "%s: %s", path, err->message)
                                                  : hd__job_locate_error(c->job, path, err);
    }
    return HD_OK;
}

static int is_opened(const struct hd__compiled *c, const struct hd__job_section *section)
{
    int opened = section == hd__exec_transports_section(c, hd__mesh_axes(&c->mesh));
    for (int32_t a = 0; a < HD_AXIS_COUNT; a++)
        opened |= c->mesh.size[a] > 1 && section == hd__exec_transports_section(c, HD_AXIS_BIT(a));
    return section == c->job->comm_inside ? is_opened(c, c->job->comm) : opened;
}

/* Which ranks a transport of one axis serves is not known of several machines. */
static int32_t check_transports(const struct hd__compiled *c, int apart, struct hd_error *err)
{
    int32_t rc = HD_OK;
    for (uint32_t i = 0; i < c->selection->comms.count && !rc; i++) {
        const struct hd__chosen *chosen = &c->selection->comms.at[i];
        int inside = chosen->section == c->job->comm_inside;
        if (is_opened(c, chosen->section) && (!apart || inside || chosen->section == c->job->comm))
            rc = check_all(c, chosen, 1, apart && !inside, err);
    }
    return rc;
}

int32_t hd__exec_check_settings(const struct hd__compiled *c, int apart, int leads, struct hd_error *err)
{
    const struct hd__selection *s = c->selection;
    int32_t rc = c->mesh.ranks > 1 ? check_transports(c, apart, err) : HD_OK;
    rc = rc ? rc : check_all(c, s->hooks.at, s->hooks.count, apart, err);
    if (!rc && leads)
        rc = check_all(c, s->sinks.at, s->sinks.count, apart, err);
    for (int32_t i = 0; i < c->n_stages && !rc; i++)
        rc = hd__exec_check_offload(c->stage[i], err);
    return rc;
}

int32_t hd__exec_device_order_streams(const struct hd__device *d, uint32_t earlier, uint32_t later,
                                      struct hd_event *event, struct hd_error *err)
{
    int32_t rc = d->ops->record(d->handle, event, earlier, err);
    return rc ? rc : d->ops->follow(d->handle, later, event, err);
}

int32_t hd__exec_device_create_event(const struct hd__device *d, struct hd_event **event, struct hd_error *err)
{
    return d->ops->event(d->handle, event, err);
}

int32_t hd__exec_device_reached(const struct hd__device *d, struct hd_event *event, struct hd_error *err)
{
    int32_t done = 0, rc = d->ops->reached(d->handle, event, &done, err);
    return rc ? rc : done != 0;
}

void hd__exec_device_free_event(const struct hd__device *d, struct hd_event *event)
{
    if (event)
        d->ops->event_free(d->handle, event);
}

int32_t hd__exec_device_alloc_pinned(const struct hd__device *d, size_t bytes, void **memory, struct hd_error *err)
{
    return d->ops->alloc(d->handle, HD_MEM_PINNED, bytes, memory, err);
}

void hd__exec_device_free_pinned(const struct hd__device *d, void *memory)
{
    if (memory)
        d->ops->free(d->handle, HD_MEM_PINNED, memory);
}
