/* Communicators: made without blocking, watched, ended. The first member makes the id and puts it into the store; the
 * others look for it there. Groups over all ranks are split off the first of them, where NCCL can (ncclCommSplit is for
 * all members of what is split, and a group is made by its own members alone). */
#include <sched.h>

#include "internal.h"

#define ASK_SECONDS 0.001 /* between two look-ups of an id */

/* ---- making */

/* Two ranks that make two lanes of messages, each the other one first, would wait for each other. */
static int is_blocking(const struct nc_queue *q)
{
    return q->group->comm->settings.blocking && q->from < 0;
}

static int32_t join(struct nc_queue *q, const struct nc_id *id, struct hd_error *err)
{
    struct hd_comm *c = q->group->comm;
    struct nc_config config = c->config;
    nc_comm comm = NULL;
    config.blocking = is_blocking(q);
    if (q->from >= 0 && c->settings.message_ctas > 0) {
        config.max_ctas = (int)c->settings.message_ctas;
        config.min_ctas = NC_UNSET;
    }
    int result = c->api.CommInitRankConfig(&comm, q->n, *id, q->me, &config);
    if (result && result != NC_IN_PROGRESS)
        return nc_check(&c->api, NULL, result, "ncclCommInitRankConfig", err);
    q->comm = comm;
    q->state = NC_JOINING;
    return HD_OK;
}

static int32_t lead(struct nc_queue *q, struct hd_error *err)
{
    struct hd_comm *c = q->group->comm;
    struct nc_id id;
    int32_t rc = nc_check(&c->api, NULL, c->api.GetUniqueId(&id), "ncclGetUniqueId", err);
    if (!rc && q->n > 1)
        rc = c->host->store_put(c->world.store, q->key, &id, sizeof id, err);
    return rc ? rc : join(q, &id, err);
}

static int32_t follow(struct nc_queue *q, int *moved, struct hd_error *err)
{
    struct hd_comm *c = q->group->comm;
    struct hd_error none = HD_ERROR_INIT;
    struct nc_id id;
    size_t bytes = sizeof id;
    double now = nc_now();
    int32_t rc;
    if (now - q->checked < ASK_SECONDS)
        return HD_OK;
    q->checked = now;
    rc = c->host->store_get(c->world.store, q->key, &id, &bytes, now, &none);
    if (rc == HD_E_TIMEOUT)
        return HD_OK;
    if (rc) {
        hd_error_copy(err, &none);
        return rc;
    }
    if (bytes != sizeof id)
        return hd_fail(err, HD_E_CORRUPT, "nccl: the id of group %s has %zu bytes", q->group->name, bytes);
    *moved = 1;
    return join(q, &id, err);
}

static int can_split(const struct nc_queue *q)
{
    const struct hd_comm *c = q->group->comm;
    return q->from < 0 && q->n == c->world.size && q->n > 1 && c->base && c->api.CommSplit;
}

/* Operations that the base communicator was given before have to be enqueued first. */
static int32_t split(struct nc_queue *q, int *moved, struct hd_error *err)
{
    struct hd_comm *c = q->group->comm;
    struct nc_config config = c->config;
    int result;
    c->splitting = 1;
    if (c->base_queue && c->base_queue->launched)
        return HD_OK;
    if (!(q->born = c->host->alloc(sizeof *q->born)))
        return hd_fail(err, HD_E_NOMEM, "nccl: no memory");
    result = c->api.CommSplit(c->base, 0, q->me, q->born, &config);
    q->state = NC_JOINING;
    *moved = 1;
    return result == NC_IN_PROGRESS ? HD_OK : nc_check(&c->api, c->base, result, "ncclCommSplit", err);
}

static int32_t begin(struct nc_queue *q, int *moved, struct hd_error *err)
{
    if (can_split(q))
        return split(q, moved, err);
    return q->me == 0 ? lead(q, err) : follow(q, moved, err);
}

static int32_t joining(struct nc_queue *q, int *moved, struct hd_error *err)
{
    struct hd_comm *c = q->group->comm;
    nc_comm asked = q->comm ? q->comm : c->base;
    int state = NC_SUCCESS, result = c->api.CommGetAsyncError(asked, &state);
    if (!result && state == NC_IN_PROGRESS)
        return HD_OK;
    if (result || state)
        return nc_check(&c->api, asked, result ? result : state, "making a communicator", err);
    *moved = 1;
    if (!q->comm) { /* the base is done; is what it bore? */
        c->splitting = 0;
        q->comm = *q->born;
        c->host->free(q->born);
        return q->comm ? HD_OK : hd_fail(err, HD_E_IO, "nccl: ncclCommSplit gave no communicator");
    }
    q->state = NC_READY;
    if (q->from < 0 && q->n == c->world.size && q->n > 1 && !c->base) {
        c->base = q->comm;
        c->base_queue = q;
        q->shared = 1;
    }
    return HD_OK;
}

static int32_t launch(struct nc_queue *q, struct hd_error *err)
{
    struct nc_op *op = q->head;
    struct hd_comm *c = q->group->comm;
    char text[160];
    int result;
    q->head = op->next;
    if (!q->head)
        q->tail = &q->head;
    if (op->empty) {
        nc_op_finish(op, HD_OK);
        return HD_OK;
    }
    int32_t rc = nc_cu_check(&c->api, c->api.cuStreamWaitEvent(q->stream, op->begin, 0), "ordering a stream", err);
    if (!rc && c->settings.registered) {
        nc_queue_register(q, op->from);
        nc_queue_register(q, op->to);
    }
    q->launched = op; /* so that a failure finds it */
    if (rc)
        return rc;
    result = op->kind == NC_COLLECTIVE ? nc_call(op) : nc_message(op);
    if (result == NC_IN_PROGRESS)
        return HD_OK;
    if (result)
        return nc_check(&c->api, q->comm, result, nc_op_text(op, text), err);
    return nc_enqueued(op, err);
}

static int32_t ready(struct nc_queue *q, int *moved, struct hd_error *err)
{
    struct hd_comm *c = q->group->comm;
    int state = NC_SUCCESS, result;
    char text[160];
    int32_t rc = HD_OK;
    if (q->launched) {
        result = c->api.CommGetAsyncError(q->comm, &state);
        if (!result && state == NC_IN_PROGRESS)
            return HD_OK;
        if (result || state)
            return nc_check(&c->api, q->comm, result ? result : state, nc_op_text(q->launched, text), err);
        rc = nc_enqueued(q->launched, err);
        *moved = 1;
    }
    while (!rc && q->head && !q->launched && !(q->shared && c->splitting)) {
        rc = launch(q, err);
        *moved = 1;
    }
    return rc;
}

int32_t nc_queue_advance(struct nc_queue *q, int *moved, struct hd_error *err)
{
    if (q->group->comm->stopped) /* whose communicators end meanwhile */
        return HD_OK;
    switch (q->state) {
    case NC_MEETING:
        return begin(q, moved, err);
    case NC_JOINING:
        return joining(q, moved, err);
    case NC_READY:
        return ready(q, moved, err);
    case NC_SELF:
        return nc_self_advance(q, moved, err);
    default:
        return HD_OK;
    }
}

int32_t nc_queue_connect(struct nc_queue *q, struct hd_error *err)
{
    struct nc_group *g = q->group;
    struct hd_comm *c = g->comm;
    struct hd_deadline end = hd_deadline_in(c->world.timeout, nc_now());
    for (uint32_t idle = 0; q->state != NC_READY;) {
        int32_t rc = nc_usable(g, err);
        if (rc)
            return rc;
        if (nc_turn(c)) {
            idle = 0;
            continue;
        }
        if (hd_deadline_passed(&end, nc_now()))
            return hd_fail(err, HD_E_TIMEOUT, "nccl: group %s of %d ranks: some did not come within %.0f s", g->name,
                           g->n, c->world.timeout);
        nc_unlock(c);
        rq_relax(idle++);
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

/* Ending a communicator is collective among the ranks of a machine: a group's end in one order on all members, whatever
 * the order in which each of them first used them. */
static int comes_before(const struct nc_queue *a, const struct nc_queue *b)
{
    return a->from != b->from ? a->from < b->from : a->to != b->to ? a->to < b->to : a->tag < b->tag;
}

struct nc_queue *nc_queue_new(struct nc_group *g, int32_t from, int32_t to, uint32_t tag, struct hd_error *err)
{
    struct hd_comm *c = g->comm;
    struct nc_queue *q = c->host->alloc(sizeof *q), **at = &g->queues;
    int result, self = from >= 0 && from == to;
    if (!q) {
        hd_fail(err, HD_E_NOMEM, "nccl: no memory");
        return NULL;
    }
    q->group = g;
    q->from = from;
    q->to = to;
    q->tag = tag;
    q->number = from < 0 ? c->n_queues++ % (NC_SCRATCH / 8) : 0;
    q->n = from < 0 ? g->n : 2;
    q->me = from < 0 ? g->me : from == g->me ? 0 : 1;
    q->tail = &q->head;
    q->sent_tail = &q->sent;
    q->state = self ? NC_SELF : NC_MEETING;
    if (from < 0)
        snprintf(q->key, sizeof q->key, "%s/nccl/%016llx", c->world.instance, (unsigned long long)g->id);
    else
        snprintf(q->key, sizeof q->key, "%s/nccl/%016llx/%d-%d-%u", c->world.instance, (unsigned long long)g->id, from,
                 to, tag);
    result = make_stream(&c->api, &q->stream);
    if (!result)
        result = c->api.cuEventCreate(&q->mark, NC_CU_NO_TIMING);
    for (int n = 0; n < 2 && !result; n++)
        result = c->api.cuEventCreate(&q->place[n], NC_CU_NO_TIMING);
    if (nc_cu_check(&c->api, result, "a stream of a group", err)) {
        nc_queue_free(q);
        return NULL;
    }
    while (*at && comes_before(*at, q))
        at = &(*at)->next;
    q->next = *at;
    *at = q;
    return q;
}

/* ---- memory */

void nc_queue_register(struct nc_queue *q, const void *at)
{
    struct hd_comm *c = q->group->comm;
    uint64_t base = 0, address = (uintptr_t)at;
    size_t size = 0;
    int status = 0;
    if (!at || !c->api.CommRegister || !c->api.CommDeregister)
        return;
    for (uint32_t i = 0; i < q->n_buffers; i++)
        if (address >= q->buffer[i].base && address < q->buffer[i].base + q->buffer[i].bytes)
            return;
    if (c->api.cuStreamIsCapturing(c->world.stream, &status) || status ||
        c->api.cuMemGetAddressRange_v2(&base, &size, address))
        return;
    if (q->n_buffers == q->buffer_room) {
        uint32_t room = q->buffer_room ? 2 * q->buffer_room : 4;
        struct nc_buffer *buffer = c->host->alloc(room * sizeof *buffer);
        if (!buffer)
            return;
        memcpy(buffer, q->n_buffers ? q->buffer : buffer, q->n_buffers * sizeof *buffer);
        c->host->free(q->buffer);
        q->buffer = buffer;
        q->buffer_room = room;
    }
    struct nc_buffer *b = &q->buffer[q->n_buffers++];
    *b = (struct nc_buffer){.base = base, .bytes = size};
    if (c->api.CommRegister(q->comm, (void *)(uintptr_t)base, size, &b->handle))
        b->handle = NULL; /* it works without */
}

static void forget_memory(struct nc_queue *q, nc_comm comm)
{
    struct hd_comm *c = q->group->comm;
    for (uint32_t i = 0; i < q->n_buffers; i++)
        if (comm && q->buffer[i].handle)
            c->api.CommDeregister(comm, q->buffer[i].handle);
    q->n_buffers = 0;
}

/* ---- ending */

/* Nothing is under way: waits for what the stream still has, and takes leave. 1 if that was in time. */
static int finalize(struct hd_comm *c, nc_comm comm)
{
    double deadline = nc_now() + c->world.timeout;
    int state = NC_SUCCESS, result = c->api.CommFinalize(comm);
    for (uint32_t idle = 0; !result || result == NC_IN_PROGRESS; idle++) {
        result = c->api.CommGetAsyncError(comm, &state);
        if (!result && state != NC_IN_PROGRESS)
            return state == NC_SUCCESS && c->api.CommDestroy(comm) == NC_SUCCESS;
        if (c->stopped || nc_now() > deadline)
            return 0;
        rq_relax(idle);
    }
    return 0;
}

static void end_queue(struct hd_comm *c, struct nc_queue *q, int in_order)
{
    nc_comm comm = atomic_exchange(&q->comm, NULL);
    q->armed = q->unmarked = q->captured = 0;
    if (q->state == NC_OVER || q->state == NC_SELF)
        return;
    q->state = NC_OVER;
    if (in_order && comm)
        forget_memory(q, comm);
    if (q->shared) {
        c->base_queue = NULL;
        if (!in_order && comm)
            c->api.CommAbort(atomic_exchange(&c->base, NULL));
        return;
    }
    if (comm && (!in_order || !finalize(c, comm)))
        c->api.CommAbort(comm);
}

static void end_queues(struct hd_comm *c, struct nc_group *group, int blocking, int in_order)
{
    for (struct nc_group *g = group ? group : c->groups; g; g = group ? NULL : g->next)
        for (struct nc_queue *q = g->queues; q; q = q->next)
            if (is_blocking(q) == blocking)
                end_queue(c, q, in_order);
}

static void end_base(struct hd_comm *c, int in_order)
{
    nc_comm base = atomic_exchange(&c->base, NULL);
    if (base && (!in_order || !finalize(c, base)))
        c->api.CommAbort(base);
}

/* At once: all in one call of NCCL, since what runs of one may hold up the end of another; but those that block and
 * those that do not apart, since NCCL takes only one kind in a call. */
void nc_queues_end(struct hd_comm *c, struct nc_group *group, int in_order)
{
    for (int blocking = 0; blocking < 2; blocking++) {
        if (!in_order)
            c->api.GroupStart();
        end_queues(c, group, blocking, in_order);
        if (!group && blocking == (c->settings.blocking != 0))
            end_base(c, in_order);
        if (!in_order)
            c->api.GroupEnd();
    }
}

void nc_queue_free(struct nc_queue *q)
{
    struct hd_comm *c = q->group->comm;
    if (q->stream)
        c->api.cuStreamDestroy_v2(q->stream);
    if (q->mark)
        c->api.cuEventDestroy_v2(q->mark);
    for (int n = 0; n < 2; n++)
        if (q->place[n])
            c->api.cuEventDestroy_v2(q->place[n]);
    c->host->free(q->buffer);
    c->host->free(q);
}
