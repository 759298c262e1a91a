/* Communicators: made without blocking, watched, ended. The first member makes the id and puts it into the store; the
 * others look for it there. Groups over all ranks are split off the first of them, where NCCL can (ncclCommSplit is for
 * all members of what is split, and a group is made by its own members alone). */
#include <sched.h>

#include "internal.h"

#define ASK_SECONDS 0.001 /* between two looks for an id */

/* ---- making */

/* Two ranks that make two lanes of messages, each the other one first, would wait for each other. */
static int is_blocking(const struct nc_lane *l)
{
    return l->group->comm->settings.blocking && l->from < 0;
}

static int32_t join(struct nc_lane *l, const struct nc_id *id, struct hd_error *err)
{
    struct hd_comm *c = l->group->comm;
    struct nc_config config = c->config;
    nc_comm comm = NULL;
    config.blocking = is_blocking(l);
    if (l->from >= 0 && c->settings.message_ctas > 0) {
        config.max_ctas = (int)c->settings.message_ctas;
        config.min_ctas = NC_UNSET;
    }
    int result = c->api.CommInitRankConfig(&comm, l->n, *id, l->me, &config);
    if (result && result != NC_IN_PROGRESS)
        return nc_check(&c->api, NULL, result, "ncclCommInitRankConfig", err);
    l->comm = comm;
    l->state = NC_JOINING;
    return HD_OK;
}

static int32_t lead(struct nc_lane *l, struct hd_error *err)
{
    struct hd_comm *c = l->group->comm;
    struct nc_id id;
    int32_t rc = nc_check(&c->api, NULL, c->api.GetUniqueId(&id), "ncclGetUniqueId", err);
    if (!rc && l->n > 1)
        rc = c->host->store_put(c->world.store, l->key, &id, sizeof id, err);
    return rc ? rc : join(l, &id, err);
}

static int32_t follow(struct nc_lane *l, int *moved, struct hd_error *err)
{
    struct hd_comm *c = l->group->comm;
    struct hd_error none = HD_ERROR_INIT;
    struct nc_id id;
    size_t bytes = sizeof id;
    double now = nc_now();
    int32_t rc;
    if (now - l->looked < ASK_SECONDS)
        return HD_OK;
    l->looked = now;
    rc = c->host->store_get(c->world.store, l->key, &id, &bytes, now, &none);
    if (rc == HD_E_TIMEOUT)
        return HD_OK;
    if (rc) {
        hd_error_copy(err, &none);
        return rc;
    }
    if (bytes != sizeof id)
        return hd_fail(err, HD_E_CORRUPT, "nccl: the id of group %s has %zu bytes", l->group->name, bytes);
    *moved = 1;
    return join(l, &id, err);
}

static int can_split(const struct nc_lane *l)
{
    const struct hd_comm *c = l->group->comm;
    return l->from < 0 && l->n == c->world.size && l->n > 1 && c->base && c->api.CommSplit;
}

/* What was given to the base before has to be enqueued first. */
static int32_t split(struct nc_lane *l, int *moved, struct hd_error *err)
{
    struct hd_comm *c = l->group->comm;
    struct nc_config config = c->config;
    int result;
    c->splitting = 1;
    if (c->base_lane && c->base_lane->launched)
        return HD_OK;
    if (!(l->born = c->host->alloc(sizeof *l->born)))
        return hd_fail(err, HD_E_NOMEM, "nccl: no memory");
    result = c->api.CommSplit(c->base, 0, l->me, l->born, &config);
    l->state = NC_JOINING;
    *moved = 1;
    return result == NC_IN_PROGRESS ? HD_OK : nc_check(&c->api, c->base, result, "ncclCommSplit", err);
}

static int32_t begin(struct nc_lane *l, int *moved, struct hd_error *err)
{
    if (can_split(l))
        return split(l, moved, err);
    return l->me == 0 ? lead(l, err) : follow(l, moved, err);
}

static int32_t joining(struct nc_lane *l, int *moved, struct hd_error *err)
{
    struct hd_comm *c = l->group->comm;
    nc_comm asked = l->comm ? l->comm : c->base;
    int state = NC_SUCCESS, result = c->api.CommGetAsyncError(asked, &state);
    if (!result && state == NC_IN_PROGRESS)
        return HD_OK;
    if (result || state)
        return nc_check(&c->api, asked, result ? result : state, "making a communicator", err);
    *moved = 1;
    if (!l->comm) { /* the base is done; is what it bore? */
        c->splitting = 0;
        l->comm = *l->born;
        c->host->free(l->born);
        return l->comm ? HD_OK : hd_fail(err, HD_E_IO, "nccl: ncclCommSplit gave no communicator");
    }
    l->state = NC_READY;
    if (l->from < 0 && l->n == c->world.size && l->n > 1 && !c->base) {
        c->base = l->comm;
        c->base_lane = l;
        l->shared = 1;
    }
    return HD_OK;
}

static int32_t launch(struct nc_lane *l, struct hd_error *err)
{
    struct nc_op *op = l->head;
    struct hd_comm *c = l->group->comm;
    char text[160];
    int result;
    l->head = op->next;
    if (!l->head)
        l->tail = &l->head;
    if (op->empty) {
        nc_op_finish(op, HD_OK);
        return HD_OK;
    }
    int32_t rc = nc_cu_check(&c->api, c->api.cuStreamWaitEvent(l->stream, op->begin, 0), "ordering a stream", err);
    if (!rc && c->settings.registered) {
        nc_lane_know(l, op->from, op->bytes);
        nc_lane_know(l, op->to, op->bytes);
    }
    l->launched = op; /* so that a failure finds it */
    if (rc)
        return rc;
    result = op->kind == NC_COLLECTIVE ? nc_call(op) : nc_message(op);
    if (result == NC_IN_PROGRESS)
        return HD_OK;
    if (result)
        return nc_check(&c->api, l->comm, result, nc_op_text(op, text), err);
    return nc_enqueued(op, err);
}

static int32_t ready(struct nc_lane *l, int *moved, struct hd_error *err)
{
    struct hd_comm *c = l->group->comm;
    int state = NC_SUCCESS, result;
    char text[160];
    int32_t rc = HD_OK;
    if (l->launched) {
        result = c->api.CommGetAsyncError(l->comm, &state);
        if (!result && state == NC_IN_PROGRESS)
            return HD_OK;
        if (result || state)
            return nc_check(&c->api, l->comm, result ? result : state, nc_op_text(l->launched, text), err);
        rc = nc_enqueued(l->launched, err);
        *moved = 1;
    }
    while (!rc && l->head && !l->launched && !(l->shared && c->splitting)) {
        rc = launch(l, err);
        *moved = 1;
    }
    return rc;
}

int32_t nc_lane_advance(struct nc_lane *l, int *moved, struct hd_error *err)
{
    if (l->group->comm->stopped) /* whose communicators end meanwhile */
        return HD_OK;
    switch (l->state) {
    case NC_MEETING:
        return begin(l, moved, err);
    case NC_JOINING:
        return joining(l, moved, err);
    case NC_READY:
        return ready(l, moved, err);
    case NC_SELF:
        return nc_self_advance(l, moved, err);
    default:
        return HD_OK;
    }
}

int32_t nc_lane_settle(struct nc_lane *l, struct hd_error *err)
{
    struct nc_group *g = l->group;
    struct hd_comm *c = g->comm;
    double deadline = nc_now() + c->world.timeout;
    while (l->state != NC_READY) {
        int32_t rc = nc_usable(g, err);
        if (rc)
            return rc;
        if (nc_turn(c))
            continue;
        if (nc_now() > deadline)
            return hd_fail(err, HD_E_TIMEOUT, "nccl: group %s of %d ranks: some did not come within %.0f s", g->name,
                           g->n, c->world.timeout);
        nc_unlock(c);
        sched_yield();
        nc_lock(c);
    }
    return HD_OK;
}

/* Before kernels of the device's: NCCL's are short, and others wait for them. */
static int make_stream(const struct nc_api *api, void **stream)
{
    int least = 0, greatest = 0, result = api->cuCtxGetStreamPriorityRange(&least, &greatest);
    return result ? result : api->cuStreamCreateWithPriority(stream, NC_CU_NON_BLOCKING, greatest);
}

struct nc_lane *nc_lane_new(struct nc_group *g, int32_t from, int32_t to, uint32_t tag, struct hd_error *err)
{
    struct hd_comm *c = g->comm;
    struct nc_lane *l = c->host->alloc(sizeof *l), **at = &g->lanes;
    int result, self = from >= 0 && from == to;
    if (!l) {
        hd_fail(err, HD_E_NOMEM, "nccl: no memory");
        return NULL;
    }
    l->group = g;
    l->from = from;
    l->to = to;
    l->tag = tag;
    l->number = from < 0 ? c->n_lanes++ % (NC_SCRATCH / 8) : 0;
    l->n = from < 0 ? g->n : 2;
    l->me = from < 0 ? g->me : from == g->me ? 0 : 1;
    l->tail = &l->head;
    l->sent_tail = &l->sent;
    l->state = self ? NC_SELF : NC_MEETING;
    if (from < 0)
        snprintf(l->key, sizeof l->key, "%s/nccl/%016llx", c->world.instance, (unsigned long long)g->id);
    else
        snprintf(l->key, sizeof l->key, "%s/nccl/%016llx/%d-%d-%u", c->world.instance, (unsigned long long)g->id, from,
                 to, tag);
    result = make_stream(&c->api, &l->stream);
    if (!result)
        result = c->api.cuEventCreate(&l->mark, NC_CU_NO_TIMING);
    if (nc_cu_check(&c->api, result, "a stream of a group", err)) {
        nc_lane_free(l);
        return NULL;
    }
    while (*at)
        at = &(*at)->next;
    *at = l;
    return l;
}

/* ---- memory */

void nc_lane_know(struct nc_lane *l, const void *at, uint64_t bytes)
{
    struct hd_comm *c = l->group->comm;
    uint64_t base = 0, address = (uintptr_t)at;
    size_t size = 0;
    int status = 0;
    if (!at || !bytes || !c->api.CommRegister || !c->api.CommDeregister)
        return;
    for (uint32_t i = 0; i < l->n_buffers; i++)
        if (address >= l->buffer[i].base && address + bytes <= l->buffer[i].base + l->buffer[i].bytes)
            return;
    if (c->api.cuStreamIsCapturing(c->world.stream, &status) || status ||
        c->api.cuMemGetAddressRange_v2(&base, &size, address))
        return;
    if (l->n_buffers == l->buffer_room) {
        uint32_t room = l->buffer_room ? 2 * l->buffer_room : 4;
        struct nc_buffer *buffer = c->host->alloc(room * sizeof *buffer);
        if (!buffer)
            return;
        memcpy(buffer, l->n_buffers ? l->buffer : buffer, l->n_buffers * sizeof *buffer);
        c->host->free(l->buffer);
        l->buffer = buffer;
        l->buffer_room = room;
    }
    struct nc_buffer *b = &l->buffer[l->n_buffers++];
    *b = (struct nc_buffer){.base = base, .bytes = size};
    if (c->api.CommRegister(l->comm, (void *)(uintptr_t)base, size, &b->handle))
        b->handle = NULL; /* it works without */
}

static void forget_memory(struct nc_lane *l, nc_comm comm)
{
    struct hd_comm *c = l->group->comm;
    for (uint32_t i = 0; i < l->n_buffers; i++)
        if (comm && l->buffer[i].handle)
            c->api.CommDeregister(comm, l->buffer[i].handle);
    l->n_buffers = 0;
}

/* ---- ending */

/* Nothing is under way: waits for what the stream still has, and takes leave. 1 if that was in time. */
static int finalize(struct hd_comm *c, nc_comm comm)
{
    double deadline = nc_now() + c->world.timeout;
    int state = NC_SUCCESS, result = c->api.CommFinalize(comm);
    while (!result || result == NC_IN_PROGRESS) {
        result = c->api.CommGetAsyncError(comm, &state);
        if (!result && state != NC_IN_PROGRESS)
            return state == NC_SUCCESS && c->api.CommDestroy(comm) == NC_SUCCESS;
        if (c->stopped || nc_now() > deadline)
            return 0;
        sched_yield();
    }
    return 0;
}

static void end_lane(struct hd_comm *c, struct nc_lane *l, int in_order)
{
    nc_comm comm = atomic_exchange(&l->comm, NULL);
    l->armed = l->unmarked = 0;
    if (l->state == NC_OVER || l->state == NC_SELF)
        return;
    l->state = NC_OVER;
    if (in_order && comm)
        forget_memory(l, comm);
    if (l->shared) {
        c->base_lane = NULL;
        if (!in_order && comm)
            c->api.CommAbort(atomic_exchange(&c->base, NULL));
        return;
    }
    if (comm && (!in_order || !finalize(c, comm)))
        c->api.CommAbort(comm);
}

static void end_lanes(struct hd_comm *c, struct nc_group *group, int blocking, int in_order)
{
    for (struct nc_group *g = group ? group : c->groups; g; g = group ? NULL : g->next)
        for (struct nc_lane *l = g->lanes; l; l = l->next)
            if (is_blocking(l) == blocking)
                end_lane(c, l, in_order);
}

static void end_base(struct hd_comm *c, int in_order)
{
    nc_comm base = atomic_exchange(&c->base, NULL);
    if (base && (!in_order || !finalize(c, base)))
        c->api.CommAbort(base);
}

/* At once: all in one call of NCCL, since what runs of one may hold up the end of another; but those that block and
 * those that do not apart, since NCCL takes only one kind in a call. */
void nc_lanes_end(struct hd_comm *c, struct nc_group *group, int in_order)
{
    for (int blocking = 0; blocking < 2; blocking++) {
        if (!in_order)
            c->api.GroupStart();
        end_lanes(c, group, blocking, in_order);
        if (!group && blocking == (c->settings.blocking != 0))
            end_base(c, in_order);
        if (!in_order)
            c->api.GroupEnd();
    }
}

void nc_lane_free(struct nc_lane *l)
{
    struct hd_comm *c = l->group->comm;
    if (l->stream)
        c->api.cuStreamDestroy_v2(l->stream);
    if (l->mark)
        c->api.cuEventDestroy_v2(l->mark);
    c->host->free(l->buffer);
    c->host->free(l);
}
