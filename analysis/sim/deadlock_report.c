/* The token machine's deadlock report: a mismatch between two members, or the wait-for cycle. */
#include <stdlib.h>

#include "analysis/sim/machine_internal.h"

#define MAX_RANKS 8 /* limit of ranks described one by one */

/* "micro #118 all_gather(tp) p.L0" for an index into a rank's code. */
static const char *op_text(const struct hd__sim_rank *r, uint32_t pc, char out[160])
{
    const struct hd__sim_program *image = r->program;
    uint32_t s = 0;
    while (s < image->p->sections.count && pc >= image->first[s + 1])
        s++;
    if (s == image->p->sections.count)
        snprintf(out, 160, "the end");
    else
        hd__instr_text(image->p, &image->p->sections.at[s], pc - image->first[s], out);
    return out;
}

/* ---- mismatches */

static void add_signature(struct hd__text *text, const struct hd__sim_rank *r, uint32_t pc)
{
    const struct hd_program *p = r->program->p;
    const struct hd__instr *i = r->program->code[pc].instr;
    const struct hd__tensor *t = hd__tensor_const(p, i->n_in ? i->in[0] : i->out[0]);
    char where[160];
    hd__text_add(text, "%s (%lld x %s%s%s%s%s", op_text(r, pc, where), (long long)hd__numel(p, t),
                 hd_dtype_name(t->dtype),
                 i->redop == HD_MAX   ? ", max"
                 : i->redop == HD_SUM ? ", sum"
                                      : "",
                 i->from ? ", from " : "", i->from ? p->dims.at[i->from].name : "", i->to ? ", to " : "");
    hd__text_add(text, "%s)", i->to ? p->dims.at[i->to].name : "");
}

static uint32_t head_pc(const struct hd__sim_rank *r, uint32_t queue)
{
    const struct hd__sim_queue *q = &r->queues[queue];
    return q->ring[q->head];
}

void hd__sim_report_mismatch(struct hd__sim *m, const struct hd__sim_meeting *meeting, int32_t rank, uint32_t pc)
{
    const struct hd__sim_channel *c = &m->channels.at[meeting->channel];
    const struct hd__sim_rank *first = &m->ranks[meeting->first_rank];
    hd__text_add(&m->report, "mismatch: rank %d issues ", rank);
    add_signature(&m->report, &m->ranks[rank], pc);
    hd__text_add(&m->report, ", rank %d of its group ", meeting->first_rank);
    add_signature(&m->report, first, head_pc(first, c->queue));
}

static uint64_t value_of(const struct hd__sim_rank *r, uint32_t queue)
{
    return hd__tensor_const(r->program->p, hd__instr_tensor(hd__sim_queue_head(r, queue)->instr))->value_number;
}

void hd__sim_report_message(struct hd__sim *m, const struct hd__sim_event *e)
{
    hd__text_add(&m->report, "mismatch: rank %d sends ", e->rank);
    add_signature(&m->report, &m->ranks[e->rank], head_pc(&m->ranks[e->rank], e->queue));
    hd__text_add(&m->report, ", rank %d receives ", e->peer);
    add_signature(&m->report, &m->ranks[e->peer], head_pc(&m->ranks[e->peer], e->peer_queue));
    if (value_of(&m->ranks[e->rank], e->queue) != value_of(&m->ranks[e->peer], e->peer_queue))
        hd__text_add(&m->report, ": another tensor, or another micro-batch's");
}

/* ---- who waits for whom */

/* The queue that a stuck rank waits for; UINT32_MAX: none of the started operations. */
static uint32_t waits_on(const struct hd__sim *m, const struct hd__sim_rank *r)
{
    const struct hd__sim_op *d = &r->program->code[r->pc];
    if (!r->done)
        return d->kind == HD__SIM_WAIT && d->async != UINT32_MAX && r->issue[d->async] ? d->queue : UINT32_MAX;
    for (uint32_t q = 0; q < m->streams.count; q++)
        if (r->queues[q].count)
            return q;
    return UINT32_MAX;
}

/* A member that is missing in the group of this queue's head; -1: all are there. */
static int32_t missing_member(const struct hd__sim *m, int32_t rank, uint32_t queue)
{
    const struct hd__sim_op *d = hd__sim_queue_head(&m->ranks[rank], queue);
    const struct hd__sim_meeting *meeting;
    uint32_t at = m->channels.at[d->channel].meeting[rank];
    if (!at)
        return -1;
    meeting = &m->meetings.at[at - 1];
    for (uint32_t k = 0; k < meeting->size; k++) {
        int32_t member = m->members.at[meeting->first_member + k];
        const struct hd__sim_op *its = hd__sim_queue_head(&m->ranks[member], queue);
        if (!its || its->kind != HD__SIM_COLLECTIVE || its->channel != d->channel)
            return member;
    }
    return -1;
}

static int32_t waits_for(const struct hd__sim *m, int32_t rank, uint32_t queue)
{
    const struct hd__sim_op *d = queue == UINT32_MAX ? NULL : hd__sim_queue_head(&m->ranks[rank], queue);
    if (!d)
        return -1;
    return d->kind == HD__SIM_COLLECTIVE ? missing_member(m, rank, queue) : hd__sim_peer_rank(m, rank, d->instr->peer);
}

static int is_stuck(const struct hd__sim *m, int32_t rank)
{
    const struct hd__sim_rank *r = &m->ranks[rank];
    return !r->done || waits_on(m, r) != UINT32_MAX;
}

static void report_rank(struct hd__sim *m, int32_t rank)
{
    const struct hd__sim_rank *r = &m->ranks[rank];
    uint32_t on = waits_on(m, r);
    int32_t peer = waits_for(m, rank, on);
    char text[160];
    hd__text_add(&m->report, "\nrank %d at %s", rank, op_text(r, r->pc, text));
    if (on == UINT32_MAX)
        hd__text_add(&m->report, ", which was never started");
    else
        hd__text_add(&m->report, "; first in that stream: %s", op_text(r, head_pc(r, on), text));
    if (peer >= 0 && hd__sim_queue_head(r, on)->kind == HD__SIM_COLLECTIVE)
        hd__text_add(&m->report, ", which rank %d has not reached", peer);
    else if (peer >= 0)
        hd__text_add(&m->report, ", which rank %d has not answered", peer);
    else if (on != UINT32_MAX)
        hd__text_add(&m->report, ", whose group this rank is not in");
    for (uint32_t q = 0; q < m->streams.count; q++)
        if (q != on && r->queues[q].count)
            hd__text_add(&m->report, "; also in flight: %s", op_text(r, head_pc(r, q), text));
}

/* Follows the wait-for graph from a stuck rank until it closes a cycle or ends. */
static void report_cycle(struct hd__sim *m, int32_t from)
{
    uint32_t *seen = hd__alloc((size_t)m->mesh.ranks * sizeof *seen), n = 0;
    int32_t rank = from;
    char text[160];
    while (rank >= 0 && !seen[rank]) {
        seen[rank] = ++n;
        rank = waits_for(m, rank, waits_on(m, &m->ranks[rank]));
    }
    if (rank >= 0) { /* second walk around the cycle: print it */
        int32_t at = rank;
        hd__text_add(&m->report, "\ncycle:");
        do {
            uint32_t on = waits_on(m, &m->ranks[at]);
            int32_t next = waits_for(m, at, on);
            hd__text_add(&m->report, "%s rank %d waits for rank %d (%s)", at == rank ? "" : ",", at, next,
                         op_text(&m->ranks[at], head_pc(&m->ranks[at], on), text));
            at = next;
        } while (at != rank);
    }
    free(seen);
}

void hd__sim_report_deadlock(struct hd__sim *m)
{
    int32_t stuck = 0, first = -1;
    for (int32_t n = 0; n < m->mesh.ranks; n++)
        stuck += is_stuck(m, n);
    hd__text_add(&m->report, "deadlock: %d of %d ranks cannot proceed", stuck, m->mesh.ranks);
    for (int32_t n = 0, shown = 0; n < m->mesh.ranks && shown < MAX_RANKS; n++) {
        if (!is_stuck(m, n))
            continue;
        first = first < 0 ? n : first;
        report_rank(m, n);
        shown++;
    }
    if (first >= 0)
        report_cycle(m, first);
}
