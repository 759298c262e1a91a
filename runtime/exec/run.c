/* Running sections of the step program. */
#include "runtime/exec/internal.h"

static double deadline(const struct hd__exec *e)
{
    return hd__now() + e->config.compiled->job->comm_timeout;
}

/* ---- instructions */

int32_t hd__exec_progress(struct hd__exec *e, struct hd_error *err)
{
    int32_t rc;
    if (e->polled_engine && (rc = e->polled_engine->ops->progress(e->polled_engine, err)) < 0)
        return rc;
    return hd__exec_comm_engine_progress(e->comm, err);
}

static int32_t run_feed(struct hd__exec *e, const struct hd__prepared *s, struct hd_error *err)
{
    const struct hd__device *d = &e->device;
    struct hd__feed_staging *by = s->feed.by;
    if (!by)
        return e->config.feed(e->config.user, s->feed.input, s->feed.out, s->feed.count, err);
    int32_t rc = hd__exec_wait_event(e, by->copied, 0, err);
    if (!rc)
        rc = e->config.feed(e->config.user, s->feed.input, by->pinned, s->feed.count, err);
    if (!rc)
        rc = d->ops->copy(d->handle, HD_STREAM_COMPUTE, s->feed.out, by->pinned,
                          (size_t)s->feed.count * sizeof *by->pinned, err);
    return rc ? rc : d->ops->record(d->handle, by->copied, HD_STREAM_COMPUTE, err);
}

int32_t hd__exec_run_prepared(struct hd__exec *e, struct hd__prepared *s, struct hd_error *err)
{
    int32_t rc;
    switch (s->kind) {
    case HD__PREPARED_KERNEL:
        rc = e->device.ops->launch(e->device.handle, s->kernel, HD_STREAM_COMPUTE, err);
        if (rc || e->capturing || (!hd__exec_comm_engine_pending(e->comm) && !e->polled_engine))
            return rc;
        return hd__exec_progress(e, err);
    case HD__PREPARED_COMM:
        return hd__exec_comm_op_start(s->comm_op, err);
    case HD__PREPARED_COMM_WAIT:
        return hd__exec_comm_op_wait(s->comm_op, &e->comm_seconds[hd__exec_comm_op_axis(s->comm_op)], err);
    case HD__PREPARED_COPY:
        return s->copy->engine->ops->start(s->copy, err);
    case HD__PREPARED_COPY_WAIT:
        return s->copy->engine->ops->wait(s->copy, deadline(e), err);
    case HD__PREPARED_FEED:
        return run_feed(e, s, err);
    default:
        return HD_OK;
    }
}

/* ---- sections */

/* Synchronizes after each instruction, so that an asynchronous device is timed too. */
static int32_t run_timed(struct hd__exec *e, const struct hd__prepared_section *section, uint32_t k,
                         struct hd_error *err)
{
    uint32_t s = (uint32_t)(section - e->sections);
    if (section->prepared[k].kind == HD__PREPARED_NOTHING)
        return HD_OK;
    double start = hd__now(), end;
    int32_t rc = hd__exec_run_prepared(e, &section->prepared[k], err);
    if (!rc)
        rc = hd__exec_synchronize(e, err);
    end = hd__now();
    if (e->profiling)
        hd__exec_profile_add(e->profile, s, k, end - start);
    if (e->trace)
        hd__trace_add(e->trace, (uint16_t)s, (uint16_t)e->run, k, start, end);
    return rc;
}

/* Has this run of the section the instruction that is run twice? */
static int runs_twice(const struct hd__exec *e, const struct hd__prepared_section *section)
{
    return e->rerun.chosen && !e->rerun.compared && section == &e->sections[e->rerun.section] && e->run == e->rerun.run;
}

static int32_t run_update_hook(struct hd__exec *e, const struct hd__instr *i, struct hd_error *err)
{
    int updates = hd__op(i->op)->class == HD__CLASS_UPDATE && i->op != HD_OP_SUMSQ;
    const struct hd__flat *flat = updates ? hd__flat_of_update(e->p, i) : NULL;
    return flat ? e->update_hook(e->update_hook_user, flat, err) : HD_OK;
}

static int32_t run_instr(struct hd__exec *e, const struct hd__prepared_section *section, uint32_t k,
                         struct hd_error *err)
{
    __atomic_store_n(&e->current_instr, k, __ATOMIC_RELAXED);
    if (e->nonfinite)
        return hd__exec_check_finite(e, section, k, err);
    int32_t rc = e->update_hook ? run_update_hook(e, &section->of->code.at[k], err) : HD_OK;
    if (rc)
        return rc;
    rc = e->observed ? run_timed(e, section, k, err) : hd__exec_run_prepared(e, &section->prepared[k], err);
    return rc || !runs_twice(e, section) || k != e->rerun.instr ? rc : hd__exec_rerun_compare(e, section, k, err);
}

static int32_t run_once(struct hd__exec *e, struct hd__prepared_section *section, struct hd_error *err)
{
    struct hd__graph_segment *segment = section->segments.at, *last = segment + section->segments.count;
    int32_t rc = HD_OK;
    if (e->nonfinite || e->observed || runs_twice(e, section) || (e->update_hook && section->first_update < section->n))
        last = segment;
    __atomic_store_n(&e->current_section, section, __ATOMIC_RELEASE);
    for (uint32_t k = 0; k < section->n && !rc;) {
        while (segment < last && (segment->first < k || (e->no_comm_replay && segment->comm_ops.count)))
            segment++;
        int whole = segment < last && segment->first == k;
        hd__exec_note_state_writes(e, section, whole ? segment->end : k + 1);
        if (whole) {
            rc = hd__exec_run_segment(e, section, segment, err);
            k = segment++->end;
        } else {
            rc = run_instr(e, section, k++, err);
        }
    }
    if (rc && !err->where[0])
        hd__exec_position(e, err->where);
    return rc;
}

static int32_t run_section(struct hd__exec *e, struct hd__prepared_section *section, struct hd_error *err)
{
    int32_t rc = HD_OK;
    int32_t rounds = HD__MAX(1, hd__section_rounds(e->p, section->of, e->config.rank));
    for (e->run = 0; e->run < rounds && !rc; e->run++)
        rc = run_once(e, section, err);
    return rc;
}

int32_t hd__exec_run_step(struct hd__exec *e, int64_t step, struct hd_error *err)
{
    int32_t rc = HD_OK;
    if (!e->nonfinite) /* the same step once more */
        e->state_written = 0;
    if (e->rerun.wanted)
        hd__exec_rerun_choose(e, step);
    for (uint32_t s = 0; s < e->p->sections.count && !rc; s++)
        if (hd__section_due(e->sections[s].of, step))
            rc = run_section(e, &e->sections[s], err);
    e->no_comm_replay = 0;
    return rc;
}

int32_t hd__exec_run_section(struct hd__exec *e, uint8_t kind, struct hd_error *err)
{
    const struct hd__code_section *of = hd__program_section_of(e->p, kind);
    return of ? run_section(e, &e->sections[of - e->p->sections.at], err) : HD_OK;
}

/* ---- between steps */

/* Bytes of the result of `op` on all members. */
static size_t result_bytes(const struct hd__group_ref *g, const struct hd__flight_op *op)
{
    return op->bytes * (size_t)(op->redop ? 1 : g->of->n);
}

/* Stages the operands in device memory. */
static int32_t call_on_device(struct hd__exec *e, const struct hd__group_ref *g, struct hd_comm_call *call,
                              const struct hd__flight_op *op, hd_request *request, struct hd_error *err)
{
    const struct hd__device *d = &e->device;
    struct hd__exec_world_buffer *a = &e->world_buffer;
    size_t at = op->redop ? 0 : result_bytes(g, op); /* all_reduce is in place */
    memcpy(a->pinned, call->send, op->bytes);
    call->send = (char *)a->device + at;
    call->recv = a->device;
    int32_t rc = d->ops->copy(d->handle, HD_STREAM_COMM, (char *)a->device + at, a->pinned, op->bytes, err);
    if (!rc)
        rc = g->transport->ops->collective(g->of->group, call, request, err);
    return hd__comm_done(rc, "collective", err);
}

static int32_t copy_back(struct hd__exec *e, void *out, size_t bytes, struct hd_error *err)
{
    const struct hd__device *d = &e->device;
    struct hd__exec_world_buffer *a = &e->world_buffer;
    int32_t rc = d->ops->copy(d->handle, HD_STREAM_COMM, a->pinned, a->device, bytes, err);
    if (!rc)
        rc = d->ops->record(d->handle, a->done, HD_STREAM_COMM, err);
    if (!rc)
        rc = hd__exec_wait_event(e, a->done, deadline(e), err);
    if (!rc)
        memcpy(out, a->pinned, bytes);
    return rc;
}

/* Over a group, of `op`'s count of its dtype: an all_reduce, or an all_gather where it has no redop. */
static int32_t call_group(struct hd__exec *e, const struct hd__group_ref *g, const struct hd__flight_op *op,
                          const void *mine, void *out, struct hd_error *err)
{
    struct hd_comm_call call = {.struct_size = sizeof call,
                                .coll = op->redop ? HD_COLL_ALL_REDUCE : HD_COLL_ALL_GATHER,
                                .dtype = op->dtype,
                                .redop = op->redop ? op->redop : HD_SUM,
                                .send = mine,
                                .recv = out,
                                .count = op->count,
                                .tag = UINT64_MAX};
    hd_request request;
    __atomic_store_n(&e->current_section, NULL, __ATOMIC_RELAXED);
    uint64_t flight_number = hd__comm_flight_start(e->transports.flight, op, hd__now());
    hd__exec_progress_lock(e->transports.progress_thread);
    int32_t rc = g->transport->stream_ordered ? call_on_device(e, g, &call, op, &request, err)
                                              : g->transport->ops->collective(g->of->group, &call, &request, err);
    rc = hd__comm_done(rc, "collective", err);
    hd__exec_progress_unlock(e->transports.progress_thread, !rc);
    hd__comm_flight_wait(e->transports.flight, flight_number, hd__now());
    if (!rc)
        rc = hd__exec_transports_wait(&e->transports, g->transport, request, deadline(e), err);
    if (!rc && g->transport->stream_ordered)
        rc = copy_back(e, out, result_bytes(g, op), err);
    hd__comm_flight_end(e->transports.flight, flight_number, hd__now(), rc);
    return rc;
}

int32_t hd__exec_group_max(struct hd__exec *e, const struct hd__comm_op *x, int32_t *value, struct hd_error *err)
{
    struct hd__flight_op *op = hd__arena_alloc(&e->p->arena, sizeof *op); /* the flight recorder keeps it */
    *op = e->max_op;
    op->section = "capture";
    op->count = 1;
    op->bytes = sizeof *value;
    const struct hd__group_ref *g = hd__exec_comm_op_group(x, &op->channel);
    hd__comm_flight_hash_op(op);
    int32_t rc = hd__exec_synchronize(e, err); /* graphs have the group's operations in the compute stream */
    return rc ? rc : call_group(e, g, op, value, value, err);
}

static int32_t all_reduce_max(struct hd__exec *e, const struct hd__flight_op *op, int32_t mine, int32_t *highest,
                              struct hd_error *err)
{
    *highest = mine;
    if (!e->world.of)
        return HD_OK;
    int32_t hash = (int32_t)(e->transports.flight->op_hash >> 33), value[3] = {mine, hash, -hash}, most[3];
    int32_t rc = call_group(e, &e->world, op, value, most, err);
    if (!rc)
        *highest = most[0];
    /* Collective mismatch that the transport did not detect, as a sum on one rank and a maximum on another: the largest
     * and the smallest hash of all operations differ. Pipeline stages have different programs, and ranks of uneven
     * shares do some operations more often: these are not compared. */
    int uneven = e->config.compiled->job->micro_batches.count > 0;
    if (rc || e->config.compiled->n_stages > 1 || uneven || most[1] == -most[2])
        return rc;
    return hd_fail(err, HD_E_MISMATCH,
                   "collective mismatch: the ranks have not done the same operations in the same order");
}

int32_t hd__exec_all_reduce_sum(struct hd__exec *e, double mine, double *sum, struct hd_error *err)
{
    *sum = mine;
    return e->world.of ? call_group(e, &e->world, &e->sum_op, &mine, sum, err) : HD_OK;
}

int32_t hd__exec_all_gather(struct hd__exec *e, const double mine[HD__GATHERED], double *all, struct hd_error *err)
{
    memcpy(all, mine, HD__GATHERED * sizeof *all);
    return e->world.of ? call_group(e, &e->world, &e->gather_op, mine, all, err) : HD_OK;
}

/* In calls of one size, which the flight recorder has a description of. */
int32_t hd__exec_all_reduce_floats(struct hd__exec *e, float *values, int64_t count, struct hd_error *err)
{
    float part[HD__WORLD_BYTES / sizeof(float)];
    int32_t rc = HD_OK;
    for (int64_t at = 0; at < count && e->world.of && !rc; at += (int64_t)HD__COUNT(part)) {
        size_t bytes = (size_t)HD__MIN(count - at, (int64_t)HD__COUNT(part)) * sizeof *part;
        memset(part, 0, sizeof part);
        memcpy(part, values + at, bytes);
        rc = call_group(e, &e->world, &e->floats_op, part, part, err);
        memcpy(values + at, part, bytes);
    }
    return rc;
}

int32_t hd__exec_all_reduce_max(struct hd__exec *e, int32_t mine, int32_t *highest, struct hd_error *err)
{
    return all_reduce_max(e, &e->max_op, mine, highest, err);
}

int32_t hd__exec_barrier(struct hd__exec *e, struct hd_error *err)
{
    int32_t unused = 0;
    return all_reduce_max(e, &e->barrier_op, 0, &unused, err);
}
