/* Opening and closing: device, transports, memory, groups. */
#include "runtime/exec/executor.h"

#include <stdlib.h>
#include <unistd.h>

#include "runtime/exec/internal.h"

/* ---- groups */

/* Groups that span pipeline stages. Creating a group blocks until its members do too, and stages use theirs in
 * different orders: so every rank creates all of them in one order, that of the stages' programs. */
static int32_t open_stage_groups(struct hd__exec *e, struct hd_error *err)
{
    const struct hd__compiled *c = e->config.compiled;
    HD__ARRAY(const struct hd__instr *) groups_seen = {0};
    int32_t rc = HD_OK;
    for (int32_t stage = 0; stage < c->n_stages && c->n_stages > 1; stage++)
        for (uint32_t s = 0; s < c->stage[stage]->sections.count; s++)
            for (uint32_t k = 0; k < c->stage[stage]->sections.at[s].code.count && !rc; k++) {
                const struct hd__instr *i = &c->stage[stage]->sections.at[s].code.at[k];
                struct hd__group_ref unused;
                uint32_t n = 0;
                if (!(i->axes & HD_AXIS_BIT(HD_AXIS_PP)))
                    continue;
                while (n < groups_seen.count &&
                       (groups_seen.at[n]->axes != i->axes || groups_seen.at[n]->members != i->members))
                    n++;
                if (n < groups_seen.count)
                    continue;
                hd__push(&groups_seen, i);
                if (!i->members || i->members >> e->coord[HD_AXIS_PP] & 1)
                    rc = hd__exec_transports_group(&e->transports, i->axes, i->members, &unused, err);
            }
    hd__free_array(&groups_seen);
    return rc;
}

static int32_t alloc_world_buffer(struct hd__exec *e, struct hd_error *err)
{
    size_t gathered = (size_t)(e->world.of->n + 1) * e->gather_op.bytes, bytes = HD__MAX(gathered, e->floats_op.bytes);
    int32_t rc = hd__exec_device_create_event(&e->device, &e->world_buffer.done, err);
    if (!rc)
        rc = hd__exec_device_alloc_pinned(&e->device, bytes, &e->world_buffer.pinned, err);
    return rc ? rc : e->device.ops->alloc(e->device.handle, HD_MEM_DEVICE, bytes, &e->world_buffer.device, err);
}

static struct hd__flight_op world_op(struct hd__exec *e, const char *name, const char *section, uint64_t count,
                                     uint32_t dtype, uint32_t redop)
{
    struct hd__flight_op op = {.name = name,
                               .section = section,
                               .block = "",
                               .tag = UINT64_MAX,
                               .count = count,
                               .bytes = count * hd_dtype_size(dtype),
                               .dtype = dtype,
                               .redop = redop,
                               .calls = 1,
                               .root = -1,
                               .channel = hd__comm_flight_channel(e->transports.flight, e->world.of->name,
                                                                  e->world.of->ranks, e->world.of->n, -1, -1, 0)};
    hd__comm_flight_hash_op(&op);
    return op;
}

/* The group of all ranks, and the flight recorder's descriptions of its operations. */
static int32_t open_world(struct hd__exec *e, struct hd_error *err)
{
    int32_t rc = e->config.compiled->mesh.ranks > 1
                     ? hd__exec_transports_group(&e->transports, ~UINT32_C(0), 0, &e->world, err)
                     : HD_OK;
    if (rc || !e->world.of)
        return rc;
    e->max_op = world_op(e, "all_reduce_max", "step end", 3, HD_I32, HD_MAX);
    e->barrier_op = world_op(e, "barrier", "start", 3, HD_I32, HD_MAX);
    e->sum_op = world_op(e, "all_reduce", "step begin", 1, HD_F64, HD_SUM);
    e->floats_op = world_op(e, "all_reduce", "logits", HD__WORLD_BYTES / sizeof(float), HD_F32, HD_SUM);
    e->gather_op = world_op(e, "all_gather", "step end", HD__GATHERED, HD_F64, 0);
    return e->device.streams ? alloc_world_buffer(e, err) : HD_OK;
}

/* ---- opening and closing */

static int32_t open_device(struct hd__exec *e, struct hd_error *err)
{
    const struct hd__compiled *c = e->config.compiled;
    int32_t rc = hd__exec_device_open(&e->device, c, e->config.local_rank, e->config.local_ranks, err);
    if (rc)
        return rc;
    e->comm = hd__exec_comm_engine_create(&e->transports, c->job->device_staging, c->job->comm_timeout);
    return HD_OK;
}

struct hd__exec *hd__exec_create(const struct hd__exec_config *config)
{
    struct hd__exec *e = hd__alloc(sizeof *e);
    pthread_mutex_init(&e->positions, NULL);
    e->config = *config;
    e->p = hd__compiled_program(config->compiled, config->rank);
    hd__mesh_coord(&config->compiled->mesh, config->rank, e->coord);
    e->transports = (struct hd__transports){.compiled = config->compiled,
                                            .store = config->store,
                                            .rank = config->rank,
                                            .local_rank = config->local_rank,
                                            .local_ranks = config->local_ranks,
                                            .device = &e->device,
                                            .exec = e,
                                            .lock = PTHREAD_MUTEX_INITIALIZER};
    e->transports.flight = hd__comm_flight_create((uint64_t)(config->operations ? config->operations : 64));
    hd__exec_set_status(e, "opening the device");
    return e;
}

static int32_t open_transports(struct hd__exec *e, struct hd_error *err)
{
    return hd__exec_transports_open(&e->transports, err);
}

int32_t hd__exec_open(struct hd__exec *e, struct hd_error *err)
{
    static const struct {
        const char *what;
        int32_t (*stage)(struct hd__exec *e, struct hd_error *err);
    } opening_steps[] = {{"opening the device", open_device},           {"opening transports", open_transports},
                         {"allocating the arena", hd__exec_map_memory}, {"creating groups", open_world},
                         {"creating groups", open_stage_groups},        {"preparing kernels", hd__exec_prepare}};
    int32_t rc = HD_OK;
    for (size_t i = 0; i < HD__COUNT(opening_steps) && !rc; i++) {
        hd__exec_begin_call(e, opening_steps[i].what);
        rc = opening_steps[i].stage(e, err);
    }
    if (rc)
        return rc;
    hd__exec_begin_call(e, NULL);
    hd__exec_transports_start_thread(&e->transports);
    return HD_OK;
}

void hd__exec_shut(struct hd__exec *e)
{
    struct hd_error ignored = HD_ERROR_INIT;
    if (!e || e->shut)
        return;
    e->shut = 1;
    pthread_mutex_lock(&e->positions);
    __atomic_store_n(&e->current_section, NULL, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&e->positions);
    hd__exec_begin_call(e, "closing");
    for (uint32_t s = 0; s < HD_STREAM_COUNT && e->device.streams; s++) /* kernels still use what is freed here */
        e->device.ops->sync(e->device.handle, s, &ignored);
    for (uint32_t s = 0; e->sections && s < e->p->sections.count; s++) /* a transport waits for graphs that hold its */
        hd__exec_free_segments(e, &e->sections[s]);
    for (int memory = 0; memory < HD__MEM_COUNT; memory++) /* they may still use an arena that is a transport's */
        hd__exec_copy_engine_close(e->copy_engines[memory]);
    hd__exec_transports_close(&e->transports); /* which knows memory that is freed below, and may still write to it */
    hd__exec_begin_call(e, "closing the device");
    hd__exec_release(e);
    hd__exec_profile_free(e->profile);
    if (e->world_buffer.device)
        e->device.ops->free(e->device.handle, HD_MEM_DEVICE, e->world_buffer.device);
    hd__exec_device_free_pinned(&e->device, e->world_buffer.pinned);
    hd__exec_device_free_event(&e->device, e->world_buffer.done);
    hd__exec_unmap_memory(e);
    if (e->device.ops)
        e->device.ops->close(e->device.handle);
    hd__exec_begin_call(e, NULL);
}

void hd__exec_close(struct hd__exec *e)
{
    if (!e)
        return;
    hd__exec_shut(e);
    hd__comm_flight_destroy(e->transports.flight);
    free(e);
}

struct hd__flight *hd__exec_flight(struct hd__exec *e)
{
    return e->transports.flight;
}

void hd__exec_abort(struct hd__exec *e, const char *reason)
{
    hd__exec_transports_abort(&e->transports, reason);
}

/* ---- accessors */

struct hd_program *hd__exec_program(struct hd__exec *e)
{
    return e->p;
}

const int32_t *hd__exec_coord(const struct hd__exec *e)
{
    return e->coord;
}

double hd__exec_comm_seconds(struct hd__exec *e, double by_axis[HD_AXIS_COUNT])
{
    double sum = 0;
    for (int32_t a = 0; a < HD_AXIS_COUNT; a++)
        sum += by_axis[a] = e->comm_seconds[a];
    memset(e->comm_seconds, 0, sizeof e->comm_seconds);
    return sum;
}

void hd__exec_set_profiling(struct hd__exec *e, int on)
{
    if (on && !e->profile)
        e->profile = hd__exec_profile_create(e->p);
    e->profiling = on;
    e->observed = on || e->trace;
}

void hd__exec_set_trace(struct hd__exec *e, struct hd__trace *trace)
{
    e->trace = trace;
    e->observed = e->profiling || trace;
}

void hd__exec_replay_no_comm(struct hd__exec *e)
{
    e->no_comm_replay = 1;
}

void hd__exec_set_update_hook(struct hd__exec *e,
                              int32_t (*hook)(void *user, const struct hd__flat *flat, struct hd_error *err),
                              void *user)
{
    e->update_hook = hook;
    e->update_hook_user = user;
}

const struct hd__profile *hd__exec_get_profile(const struct hd__exec *e)
{
    return e->profile;
}

double hd__exec_peak_flops(struct hd__exec *e)
{
    return e->device.ops->peak_flops ? e->device.ops->peak_flops(e->device.handle, e->p->precision.compute) : 0;
}
