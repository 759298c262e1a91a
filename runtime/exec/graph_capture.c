/* Graph capture: runs of instructions that need no work of the host are replayed with one launch (CUDA graphs).
 *
 * A segment is a run of instructions between two of the host: a feed, or a comm op over a transport that the host
 * drives. Async instructions that start in a segment are waited for in it. The first run is a warm-up, the second is
 * captured, all others are replayed. A segment that the device cannot capture is launched instruction by
 * instruction: a capture runs nothing, so that it can be launched again. */
#include <stdlib.h>

#include "runtime/exec/internal.h"

/* ---- finding segments */

static int is_capturable(const struct hd__prepared *s)
{
    switch (s->kind) {
    case HD__PREPARED_FEED:
        return 0;
    case HD__PREPARED_COMM:
    case HD__PREPARED_COMM_WAIT:
        return hd__exec_comm_op_capturable(s->comm_op);
    case HD__PREPARED_COPY:
    case HD__PREPARED_COPY_WAIT:
        return s->copy->engine->ops->capturable;
    default:
        return 1;
    }
}

/* Excludes a start whose wait is in another segment, and the wait; that splits segments, so repeats until nothing
 * changes. */
static void exclude_split_pairs(const struct hd__prepared_section *section, char *capturable)
{
    uint32_t *run = hd__alloc((section->n + 1) * sizeof *run);
    for (int moved = 1; moved;) {
        uint32_t number = 0;
        moved = 0;
        for (uint32_t k = 0; k < section->n; k++)
            run[k] = capturable[k] ? number : ++number;
        for (uint32_t k = 0; k < section->n; k++) {
            uint32_t wait = section->prepared[k].wait;
            if (!wait || (capturable[k] == capturable[wait] && (!capturable[k] || run[k] == run[wait])))
                continue;
            capturable[k] = capturable[wait] = 0;
            moved = 1;
        }
    }
    free(run);
}

static struct hd__graph_segment make_segment(const struct hd__prepared_section *section, uint32_t first, uint32_t end)
{
    struct hd__graph_segment segment = {.first = first, .end = end};
    for (uint32_t k = first; k < end; k++) {
        const struct hd__prepared *s = &section->prepared[k];
        segment.launches += s->kind == HD__PREPARED_KERNEL || s->wait;
        if (s->kind == HD__PREPARED_COMM && hd__exec_comm_op_stream_ordered(s->comm_op))
            hd__push(&segment.comm_ops, s->comm_op);
    }
    return segment;
}

void hd__exec_find_segments(struct hd__exec *e, struct hd__prepared_section *section)
{
    char *capturable = hd__alloc(section->n + 1);
    if (e->device.streams && e->device.ops->capture_begin && e->config.compiled->job->device_capture) {
        for (uint32_t k = 0; k < section->n; k++)
            capturable[k] = (char)is_capturable(&section->prepared[k]);
        exclude_split_pairs(section, capturable);
    }
    for (uint32_t k = 0, first; k < section->n; k++) {
        for (first = k; k < section->n && capturable[k]; k++)
            ;
        struct hd__graph_segment segment = make_segment(section, first, k);
        if (segment.launches > 1)
            hd__push(&section->segments, segment);
        else
            hd__free_array(&segment.comm_ops);
    }
    free(capturable);
}

static void drop_graph(struct hd__exec *e, struct hd__graph_segment *segment)
{
    if (segment->graph)
        e->device.ops->captured_free(e->device.handle, segment->graph);
    segment->graph = NULL;
}

void hd__exec_free_segments(struct hd__exec *e, struct hd__prepared_section *section)
{
    for (uint32_t n = 0; n < section->segments.count; n++) {
        drop_graph(e, &section->segments.at[n]);
        hd__free_array(&section->segments.at[n].comm_ops);
    }
    hd__free_array(&section->segments);
}

/* ---- running segments */

static int32_t launch_each(struct hd__exec *e, struct hd__prepared_section *section,
                           const struct hd__graph_segment *segment, struct hd_error *err)
{
    int32_t rc = HD_OK;
    for (uint32_t k = segment->first; k < segment->end && !rc; k++) {
        __atomic_store_n(&e->current_instr, k, __ATOMIC_RELAXED);
        rc = hd__exec_run_prepared(e, &section->prepared[k], err);
    }
    return rc;
}

/* HD_E_UNSUPPORTED where the segment has an operation that cannot be captured. A library below the device may fail with
 * another code; then the end of the capture has it. */
static int32_t capture(struct hd__exec *e, struct hd__prepared_section *section, struct hd__graph_segment *segment,
                       struct hd_error *err)
{
    const struct hd__device *d = &e->device;
    int32_t ended, rc = d->ops->capture_begin(d->handle, err);
    if (rc)
        return rc;
    hd__exec_comm_ops_set_capturing(segment->comm_ops.at, segment->comm_ops.count, e->capturing = 1);
    rc = launch_each(e, section, segment, err);
    if (rc) /* before the capture ends: the transport's own streams must be joined */
        hd__exec_comm_ops_cancel(segment->comm_ops.at, segment->comm_ops.count);
    hd__exec_comm_ops_set_capturing(segment->comm_ops.at, segment->comm_ops.count, e->capturing = 0);
    ended = d->ops->capture_end(d->handle, &segment->graph, rc ? &(struct hd_error)HD_ERROR_INIT : err);
    if (!rc)
        return ended;
    drop_graph(e, segment); /* incomplete after the failure */
    return ended == HD_E_UNSUPPORTED ? ended : rc;
}

/* NCCL wants an operation captured on all ranks of its group or on none. One pass over the groups reaches all ranks
 * that they connect, since they are products of mesh axes. */
static int32_t agree(struct hd__exec *e, const struct hd__graph_segment *segment, int32_t *refused,
                     struct hd_error *err)
{
    struct hd__comm_op *const *ops = segment->comm_ops.at;
    struct hd__flight_channel *unused;
    int32_t rc = HD_OK;
    for (uint32_t k = 0, n; k < segment->comm_ops.count && !rc; k++) {
        const struct hd__group *of = hd__exec_comm_op_group(ops[k], &unused)->of;
        for (n = 0; n < k && hd__exec_comm_op_group(ops[n], &unused)->of != of;)
            n++;
        rc = n == k ? hd__exec_group_max(e, ops[k], refused, err) : HD_OK;
    }
    return rc;
}

static int32_t replay(struct hd__exec *e, struct hd__graph_segment *segment, struct hd_error *err)
{
    struct hd__stream_inflight *inflight = NULL;
    int32_t rc = HD_OK;
    if (segment->comm_ops.count)
        rc = hd__exec_comm_ops_begin_replay(segment->comm_ops.at, segment->comm_ops.count, &inflight, err);
    if (!rc)
        rc = e->device.ops->replay(e->device.handle, segment->graph, err);
    if (!rc && inflight)
        rc = hd__exec_comm_ops_end_replay(segment->comm_ops.at, inflight, err);
    e->graph_replays++;
    return rc ? rc : hd__exec_progress(e, err);
}

int32_t hd__exec_run_segment(struct hd__exec *e, struct hd__prepared_section *section,
                             struct hd__graph_segment *segment, struct hd_error *err)
{
    if (!segment->graph && segment->runs++ == 1) {
        int32_t rc = capture(e, section, segment, err), refused = rc != HD_OK;
        struct hd_error why = *err;
        if (!rc || rc == HD_E_UNSUPPORTED)
            rc = agree(e, segment, &refused, err);
        if (rc)
            return rc;
        __atomic_store_n(&e->current_section, section, __ATOMIC_RELEASE);
        if (refused) {
            hd__log(HD_LOG_WARN, "run", "section %s, instructions %u to %u are launched one by one: %s",
                    section->of->name, segment->first, segment->end - 1,
                    segment->graph ? "another rank cannot capture them" : why.message);
            drop_graph(e, segment);
            *err = (struct hd_error)HD_ERROR_INIT;
        }
    }
    __atomic_store_n(&e->current_instr, segment->first, __ATOMIC_RELAXED);
    return segment->graph ? replay(e, segment, err) : launch_each(e, section, segment, err);
}

uint32_t hd__exec_graph_count(const struct hd__exec *e, uint64_t *replays)
{
    uint32_t n = 0;
    for (uint32_t s = 0; s < e->p->sections.count; s++)
        for (uint32_t k = 0; k < e->sections[s].segments.count; k++)
            n += e->sections[s].segments.at[k].graph != NULL;
    *replays = e->graph_replays;
    return n;
}
