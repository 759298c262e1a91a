/* Walking the steps. */
#include "runtime/exec/internal.h"

static double deadline(const struct hd__exec *e)
{
    return hd__now() + e->config.compiled->job->comm_timeout;
}

/* ---- steps */

int32_t hd__exec_progress(struct hd__exec *e, struct hd_error *err)
{
    struct hd__ordered *ordered = e->transports.in_order;
    int32_t rc;
    if (e->spill && (rc = hd__spill_progress(e->spill, err)) < 0)
        return rc;
    if (!e->in_flight && !(ordered && hd__ordered_busy(ordered)))
        return HD_OK;
    rc = hd__transports_progress(&e->transports, err);
    if (rc >= 0 && ordered)
        rc = hd__ordered_look(ordered, err);
    if (rc >= 0 && e->transports.stage)
        rc = hd__stage_progress(e->transports.stage, err);
    return HD__MIN(rc, HD_OK);
}

static int32_t start_exchange(struct hd__exec *e, struct hd__exchange *x, struct hd_error *err)
{
    int32_t rc = hd__exchange_start(x, err);
    e->in_flight += hd__exchange_pending(x);
    return rc;
}

static int32_t wait_exchange(struct hd__exec *e, struct hd__exchange *x, struct hd_error *err)
{
    if (!hd__exchange_pending(x))
        return HD_OK;
    e->in_flight--;
    return hd__exchange_wait(x, e->config.compiled->job->comm_timeout, &e->comm_seconds, err);
}

static int32_t start_copy(struct hd__exec *e, struct hd__copy *c, struct hd_error *err)
{
    const struct hd__device *d = &e->device;
    uint32_t stream = c->out ? HD_STREAM_OUT : HD_STREAM_IN;
    int32_t rc;
    if (!d->streams)
        return hd__copies_start(e->copies, c, err);
    if (!c->other)
        return hd__spill_start(e->spill, c, err);
    rc = hd__device_order(d, HD_STREAM_COMPUTE, stream, c->done, err);
    if (!rc)
        rc = d->ops->copy(d->at, stream, c->out ? c->other : c->main, c->out ? c->main : c->other, (size_t)c->bytes, err);
    return rc ? rc : d->ops->record(d->at, c->done, stream, err);
}

static int32_t wait_copy(struct hd__exec *e, struct hd__copy *c, struct hd_error *err)
{
    if (e->device.streams && !c->other)
        return hd__spill_wait(e->spill, c, deadline(e), err);
    if (e->device.streams)
        return e->device.ops->follow(e->device.at, HD_STREAM_COMPUTE, c->done, err);
    return hd__copies_wait(e->copies, c, deadline(e), err);
}

static int32_t feed(struct hd__exec *e, const struct hd__step *s, struct hd_error *err)
{
    const struct hd__device *d = &e->device;
    struct hd__feeding *by = s->feed.by;
    int32_t rc;
    if (!by)
        return e->config.feed(e->config.user, s->feed.labels, s->feed.out, s->feed.count, err);
    rc = hd__exec_await(e, by->copied, 0, err);
    if (!rc)
        rc = e->config.feed(e->config.user, s->feed.labels, by->pinned, s->feed.count, err);
    if (!rc)
        rc = d->ops->copy(d->at, HD_STREAM_COMPUTE, s->feed.out, by->pinned, (size_t)s->feed.count * sizeof *by->pinned, err);
    return rc ? rc : d->ops->record(d->at, by->copied, HD_STREAM_COMPUTE, err);
}

int32_t hd__exec_run(struct hd__exec *e, struct hd__step *s, struct hd_error *err)
{
    int32_t rc;
    switch (s->kind) {
    case STEP_KERNEL:
        rc = e->device.ops->launch(e->device.at, s->kernel, HD_STREAM_COMPUTE, err);
        return rc || e->capturing || (!e->in_flight && !e->spill) ? rc : hd__exec_progress(e, err);
    case STEP_EXCHANGE:
        return start_exchange(e, s->exchange, err);
    case STEP_EXCHANGE_WAIT:
        return wait_exchange(e, s->exchange, err);
    case STEP_COPY:
        return start_copy(e, s->copy, err);
    case STEP_COPY_WAIT:
        return wait_copy(e, s->copy, err);
    case STEP_FEED:
        return feed(e, s, err);
    default:
        return HD_OK;
    }
}

/* ---- sections */

/* Of a device that only enqueues each instruction is waited for, so that its time is its own. */
static int32_t time_step(struct hd__exec *e, const struct hd__exec_section *section, uint32_t k, struct hd_error *err)
{
    double start = hd__now();
    int32_t rc = hd__exec_run(e, &section->steps[k], err);
    if (!rc)
        rc = hd__exec_settle(e, err);
    hd__profile_add(e->profile, (uint32_t)(section - e->sections), k, hd__now() - start);
    return rc;
}

static int32_t run_one(struct hd__exec *e, const struct hd__exec_section *section, uint32_t k, struct hd_error *err)
{
    __atomic_store_n(&e->at_step, k, __ATOMIC_RELAXED);
    if (e->bad)
        return hd__exec_look(e, section, k, err);
    return e->profiling ? time_step(e, section, k, err) : hd__exec_run(e, &section->steps[k], err);
}

static int32_t run_once(struct hd__exec *e, struct hd__exec_section *section, struct hd_error *err)
{
    struct hd__piece *piece = section->pieces.at, *last = e->bad || e->profiling ? piece : piece + section->pieces.count;
    int32_t rc = HD_OK;
    __atomic_store_n(&e->at_section, section, __ATOMIC_RELAXED);
    for (uint32_t k = 0; k < section->n && !rc;) {
        if (piece < last && piece->first == k) {
            rc = hd__exec_run_piece(e, section, piece, err);
            k = piece++->end;
        } else {
            rc = run_one(e, section, k++, err);
        }
    }
    if (rc && !err->where[0])
        hd__exec_where(e, err->where);
    return rc;
}

static int32_t run_section(struct hd__exec *e, struct hd__exec_section *section, struct hd_error *err)
{
    int32_t rc = HD_OK;
    for (int32_t n = 0; n < HD__MAX(1, section->of->repeat) && !rc; n++)
        rc = run_once(e, section, err);
    return rc;
}

int32_t hd__exec_step(struct hd__exec *e, int64_t step, struct hd_error *err)
{
    int32_t rc = HD_OK;
    for (uint32_t s = 0; s < e->p->sections.count && !rc; s++)
        if (hd__section_due(e->sections[s].of, step))
            rc = run_section(e, &e->sections[s], err);
    return rc;
}

int32_t hd__exec_section(struct hd__exec *e, const char *name, struct hd_error *err)
{
    const struct hd__code_section *of = hd__section(e->p, name);
    return of ? run_section(e, &e->sections[of - e->p->sections.at], err) : HD_OK;
}

/* ---- between steps */

/* Ranks of one program have done the same so far: a transport may not notice where it is not so, as with sums that one rank
 * takes for other numbers. Largest and smallest hash must be one. Stages have programs of their own. */
static int32_t check_chain(const struct hd__exec *e, const int32_t highest[3], struct hd_error *err)
{
    if (e->config.compiled->n_stages > 1 || highest[1] == -highest[2])
        return HD_OK;
    return hd_fail(err, HD_E_MISMATCH, "the ranks have not done the same operations, or not in the same order");
}

/* The numbers go through the device's memory. */
static int32_t reduce_on_device(struct hd__exec *e, struct hd_comm_call *call, hd_request *request, struct hd_error *err)
{
    const struct hd__device *d = &e->device;
    struct hd__exec_agreement *a = &e->agreement;
    int32_t rc;
    memcpy(a->pinned, call->send, call->count * sizeof *a->pinned);
    call->send = call->recv = a->device;
    rc = d->ops->copy(d->at, HD_STREAM_COMM, a->device, a->pinned, call->count * sizeof *a->pinned, err);
    if (!rc)
        rc = e->world.transport->ops->collective(e->world.of->group, call, request, err);
    return rc;
}

static int32_t fetch(struct hd__exec *e, int32_t *most, uint64_t count, struct hd_error *err)
{
    const struct hd__device *d = &e->device;
    struct hd__exec_agreement *a = &e->agreement;
    int32_t rc = d->ops->copy(d->at, HD_STREAM_COMM, a->pinned, a->device, count * sizeof *most, err);
    if (!rc)
        rc = d->ops->record(d->at, a->done, HD_STREAM_COMM, err);
    if (!rc)
        rc = hd__exec_await(e, a->done, deadline(e), err);
    if (!rc)
        memcpy(most, a->pinned, count * sizeof *most);
    return rc;
}

static int32_t agree(struct hd__exec *e, const struct hd__flight_op *op, int32_t mine, int32_t *highest, struct hd_error *err)
{
    int32_t chain = (int32_t)(e->transports.flight->chain >> 33), value[3] = {mine, chain, -chain}, most[3];
    struct hd_comm_call call = {.struct_size = sizeof call, .coll = HD_COLL_ALL_REDUCE, .dtype = HD_I32, .redop = HD_MAX,
                                .send = value, .recv = most, .count = 3, .tag = UINT64_MAX};
    hd_request request;
    uint64_t flown;
    int32_t rc;
    *highest = mine;
    if (!e->world.of)
        return HD_OK;
    __atomic_store_n(&e->at_section, NULL, __ATOMIC_RELAXED);
    flown = hd__flight_start(e->transports.flight, op, hd__now());
    hd__pump_enter(e->transports.pump);
    rc = e->agreement.device ? reduce_on_device(e, &call, &request, err)
                             : e->world.transport->ops->collective(e->world.of->group, &call, &request, err);
    hd__pump_leave(e->transports.pump, !rc);
    hd__flight_wait(e->transports.flight, flown, hd__now());
    if (!rc)
        rc = hd__transports_wait(&e->transports, e->world.transport, request, deadline(e), err);
    if (!rc && e->agreement.device)
        rc = fetch(e, most, call.count, err);
    hd__flight_end(e->transports.flight, flown, hd__now(), rc);
    if (!rc)
        *highest = most[0];
    return rc ? rc : check_chain(e, most, err);
}

int32_t hd__exec_agree(struct hd__exec *e, int32_t mine, int32_t *highest, struct hd_error *err)
{
    return agree(e, &e->agree, mine, highest, err);
}

int32_t hd__exec_meet(struct hd__exec *e, struct hd_error *err)
{
    int32_t nobody = 0;
    return agree(e, &e->meet, 0, &nobody, err);
}
