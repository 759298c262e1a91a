/* The walk of the token machine. See machine.h. Everything is driven by what just happened: a rank is looked
 * at again only when what it waits for completes, so a run costs a constant a started or completed
 * instruction. */
#include <stdlib.h>

#include "analysis/sim/machine_internal.h"

#define BURST 8 /* instructions that a rank of the emulator runs before something else may happen */

/* ---- creation */

static struct hd__image *image_of(struct hd__machine *m, const struct hd_program *p)
{
    for (uint32_t n = m->images.count; n-- > 0;)
        if (m->images.at[n]->p == p)
            return m->images.at[n];
    hd__push(&m->images, hd__image_new(m, p));
    return m->images.at[m->images.count - 1];
}

static void rank_init(struct hd__machine *m, struct hd__rank *r)
{
    r->queues = hd__alloc(m->streams.count * sizeof *r->queues);
    r->issue = hd__alloc(r->image->n_async * sizeof *r->issue);
    if (m->options.costs) {
        r->start = hd__alloc(r->image->n_async * sizeof *r->start);
        r->end = hd__alloc(r->image->n_async * sizeof *r->end);
    }
}

struct hd__machine *hd__machine_create(const struct hd__mesh *mesh, const struct hd_program *const *programs,
                                       const struct hd__machine_options *options)
{
    struct hd__machine *m = hd__alloc(sizeof *m);
    m->mesh = *mesh;
    m->options = options ? *options : (struct hd__machine_options){0};
    if (m->options.kernels)
        m->kernels = *m->options.kernels;
    if (m->options.costs)
        m->costs = *m->options.costs;
    m->random = m->options.seed * 2 + 1;
    m->ranks = hd__alloc((size_t)mesh->ranks * sizeof *m->ranks);
    for (int32_t r = 0; r < mesh->ranks; r++) {
        m->ranks[r].image = image_of(m, programs[r]);
        hd__mesh_coord(mesh, r, m->ranks[r].coord);
    }
    for (int32_t r = 0; r < mesh->ranks; r++)
        rank_init(m, &m->ranks[r]);
    hd__channels_join(m);
    return m;
}

void hd__machine_destroy(struct hd__machine *m)
{
    if (!m)
        return;
    hd__emulate_close(m);
    for (int32_t n = 0; n < m->mesh.ranks; n++) {
        struct hd__rank *r = &m->ranks[n];
        for (uint32_t q = 0; q < m->streams.count; q++)
            free(r->queues[q].ring);
        free(r->queues);
        free(r->issue);
        free(r->start);
        free(r->end);
    }
    for (uint32_t n = 0; n < m->images.count; n++)
        hd__image_free(m->images.at[n]);
    for (uint32_t n = 0; n < m->channels.count; n++)
        free(m->channels.at[n].meeting);
    hd__free_array(&m->images);
    hd__free_array(&m->channels);
    hd__free_array(&m->meetings);
    hd__free_array(&m->members);
    hd__free_array(&m->streams);
    hd__free_array(&m->runnable);
    hd__free_array(&m->events);
    hd__text_free(&m->report);
    free(m->ranks);
    free(m);
}

/* ---- chance */

static uint32_t pick(struct hd__machine *m, uint32_t n)
{
    m->random = m->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)((m->random >> 33) % n);
}

/* ---- queues */

static void push_queue(struct hd__queue *q, uint32_t pc)
{
    if (q->count == q->room) {
        uint32_t room = q->room ? 2 * q->room : 8, *ring = hd__alloc(room * sizeof *ring);
        for (uint32_t n = 0; n < q->count; n++)
            ring[n] = q->ring[(q->head + n) % q->room];
        free(q->ring);
        q->ring = ring;
        q->room = room;
        q->head = 0;
    }
    q->ring[(q->head + q->count++) % q->room] = pc;
    q->issued++;
}

static void make_runnable(struct hd__machine *m, int32_t rank)
{
    struct hd__rank *r = &m->ranks[rank];
    if (r->listed || r->done)
        return;
    r->listed = 1;
    r->blocked = 0;
    hd__push(&m->runnable, rank);
}

static int wait_is_over(const struct hd__rank *r, const struct hd__do *wait)
{
    return wait->async != UINT32_MAX && r->issue[wait->async] &&
           r->queues[wait->queue].completed >= r->issue[wait->async];
}

/* ---- meetings and messages */

/* A receive at the head of one of the peer's queues that answers this send, or the other way round. */
static int find_partner(struct hd__machine *m, int32_t rank, uint16_t queue, struct hd__event *e)
{
    const struct hd__do *mine = hd__head(&m->ranks[rank], queue);
    int32_t peer = hd__peer_rank(m, rank, mine->instr->peer);
    uint8_t wanted = mine->kind == HD__DO_SEND ? HD__DO_RECV : HD__DO_SEND;
    for (uint32_t q = 0; peer >= 0 && q < m->streams.count; q++) {
        const struct hd__do *its = hd__head(&m->ranks[peer], q);
        if (!its || its->kind != wanted || m->ranks[peer].queues[q].matched ||
            its->instr->tag != mine->instr->tag || hd__peer_rank(m, peer, its->instr->peer) != rank)
            continue;
        *e = mine->kind == HD__DO_SEND ? (struct hd__event){UINT32_MAX, rank, peer, queue, (uint16_t)q}
                                       : (struct hd__event){UINT32_MAX, peer, rank, (uint16_t)q, queue};
        return 1;
    }
    return 0;
}

static int32_t message_arrives(struct hd__machine *m, int32_t rank, uint16_t queue)
{
    struct hd__event e;
    if (!find_partner(m, rank, queue, &e))
        return HD_OK;
    m->ranks[e.rank].queues[e.queue].matched = m->ranks[e.peer].queues[e.peer_queue].matched = 1;
    if (hd__head(&m->ranks[e.rank], e.queue)->signature !=
        hd__head(&m->ranks[e.peer], e.peer_queue)->signature) {
        hd__report_message(m, &e);
        return HD_E_MISMATCH;
    }
    hd__push(&m->events, e);
    return HD_OK;
}

/* The head of a queue is new: its group may now be complete. */
static int32_t head_arrives(struct hd__machine *m, int32_t rank, uint16_t queue)
{
    const struct hd__do *d = hd__head(&m->ranks[rank], queue);
    struct hd__meeting *meeting;
    uint32_t at;
    if (d->kind == HD__DO_COPY) {
        hd__push(&m->events, ((struct hd__event){UINT32_MAX, rank, -1, queue, 0}));
        return HD_OK;
    }
    if (d->kind != HD__DO_COLLECTIVE)
        return message_arrives(m, rank, queue);
    at = m->channels.at[d->channel].meeting[rank];
    if (!at)
        return HD_OK; /* not a member of its own group: it can only get stuck, and the report says so */
    meeting = &m->meetings.at[at - 1];
    if (!meeting->arrived) {
        meeting->signature = d->signature;
        meeting->first_rank = rank;
    } else if (meeting->signature != d->signature) {
        hd__report_mismatch(m, meeting, rank, (uint32_t)(d - m->ranks[rank].image->code));
        return HD_E_MISMATCH;
    }
    if (++meeting->arrived == meeting->size)
        hd__push(&m->events, ((struct hd__event){at - 1, -1, -1, queue, 0}));
    return HD_OK;
}

static void tell(struct hd__machine *m, int32_t rank, const struct hd__do *d, double start, double end)
{
    const struct hd__rank *r = &m->ranks[rank];
    const struct hd__instr *i = d->instr;
    struct hd__machine_span span = {.instr = i, .start = start, .end = end, .section = r->section, .micro = i->micro};
    if (!m->options.costs || !m->costs.span || end <= start)
        return;
    if (i->micro < 0 && i->phase != HD__PHASE_O)
        span.micro = r->image->micro0[r->section] + r->round;
    m->costs.span(m->costs.user, rank, &span);
}

static int32_t pop_queue(struct hd__machine *m, int32_t rank, uint16_t queue, double start, double end)
{
    struct hd__rank *r = &m->ranks[rank];
    struct hd__queue *q = &r->queues[queue];
    const struct hd__do *d = hd__head(r, queue), *at = &r->image->code[r->pc];
    if (r->end)
        r->end[d->async] = q->free_at = end;
    tell(m, rank, d, start, end);
    q->head = (q->head + 1) % q->room;
    q->count--;
    q->completed++;
    q->matched = 0;
    m->stats.events++;
    if (r->blocked && wait_is_over(r, at))
        make_runnable(m, rank);
    return q->count ? head_arrives(m, rank, queue) : HD_OK;
}

/* When all can begin, and with the longest of their costs the end. */
static double ready_at(const struct hd__rank *r, uint16_t queue, double begin)
{
    const struct hd__do *d = hd__head(r, queue);
    return HD__MAX(begin, HD__MAX(r->start[d->async], r->queues[queue].free_at));
}

static int32_t meet(struct hd__machine *m, const struct hd__event *e, struct hd_error *err)
{
    struct hd__meeting *meeting = &m->meetings.at[e->meeting];
    const int32_t *members = m->members.at + meeting->first_member;
    double begin = 0, took = 0;
    int32_t code = HD_OK;
    for (uint32_t k = 0; k < meeting->size && m->options.costs; k++) {
        begin = ready_at(&m->ranks[members[k]], e->queue, begin);
        took = HD__MAX(took, hd__head(&m->ranks[members[k]], e->queue)->cost);
    }
    if (m->options.kernels && hd__emulate_meeting(m, meeting, err))
        return err->code;
    meeting->arrived = 0;
    m->stats.collectives++;
    for (uint32_t k = 0; k < meeting->size && !code; k++)
        code = pop_queue(m, members[k], e->queue, begin, begin + took);
    return code;
}

static int32_t deliver(struct hd__machine *m, const struct hd__event *e)
{
    double begin = 0, end = 0;
    int32_t code;
    if (m->options.costs) {
        begin = ready_at(&m->ranks[e->peer], e->peer_queue, ready_at(&m->ranks[e->rank], e->queue, 0));
        end = begin + hd__head(&m->ranks[e->rank], e->queue)->cost;
    }
    if (m->options.kernels)
        hd__emulate_message(m, e);
    m->stats.messages++;
    code = pop_queue(m, e->rank, e->queue, begin, end);
    return code ? code : pop_queue(m, e->peer, e->peer_queue, begin, end);
}

/* Between two memories of one rank: nobody else has to come. */
static int32_t copy(struct hd__machine *m, const struct hd__event *e)
{
    struct hd__rank *r = &m->ranks[e->rank];
    const struct hd__do *d = hd__head(r, e->queue);
    double begin = m->options.costs ? ready_at(r, e->queue, 0) : 0;
    if (m->options.kernels)
        hd__emulate_copy(r, d->instr);
    m->stats.copies++;
    return pop_queue(m, e->rank, e->queue, begin, begin + d->cost);
}

/* ---- ranks */

static int section_runs(const struct hd__machine *m, const struct hd__code_section *s)
{
    return m->only ? !strcmp(s->name, m->only) : hd__section_due(s, m->step);
}

/* Puts the rank at the start of section s or of the next one that runs and has code. */
static void enter(struct hd__machine *m, struct hd__rank *r, uint32_t s)
{
    const struct hd_program *p = r->image->p;
    while (s < p->sections.count && (!section_runs(m, &p->sections.at[s]) || !p->sections.at[s].code.count))
        s++;
    r->section = s;
    r->pc = r->image->first[s];
    r->round = 0;
    r->done = s == p->sections.count;
    if (!r->done && m->options.kernels)
        hd__emulate_section(r);
}

static void step_on(struct hd__machine *m, struct hd__rank *r)
{
    const struct hd_program *p = r->image->p;
    m->stats.events++;
    if (++r->pc < r->image->first[r->section + 1])
        return;
    if (++r->round < p->sections.at[r->section].repeat) {
        r->pc = r->image->first[r->section];
        if (m->options.kernels)
            hd__emulate_section(r);
        return;
    }
    enter(m, r, r->section + 1);
}

static int32_t issue(struct hd__machine *m, int32_t rank, const struct hd__do *d)
{
    struct hd__rank *r = &m->ranks[rank];
    struct hd__queue *q = &r->queues[d->queue];
    push_queue(q, r->pc);
    r->issue[d->async] = q->issued;
    if (r->start)
        r->start[d->async] = r->now;
    if (m->options.kernels)
        hd__emulate_issue(r, d->instr);
    return q->count == 1 ? head_arrives(m, rank, d->queue) : HD_OK;
}

static int32_t compute(struct hd__machine *m, int32_t rank, const struct hd__do *d, struct hd_error *err)
{
    struct hd__rank *r = &m->ranks[rank];
    tell(m, rank, d, r->now, r->now + d->cost);
    r->now += d->cost;
    r->busy += d->cost;
    return m->options.kernels ? hd__emulate_compute(m, rank, r->pc, err) : HD_OK;
}

static int32_t advance(struct hd__machine *m, int32_t rank, uint32_t limit, struct hd_error *err)
{
    struct hd__rank *r = &m->ranks[rank];
    for (uint32_t n = 0; n < limit && !r->done; n++) {
        const struct hd__do *d = &r->image->code[r->pc];
        int32_t code = HD_OK;
        if (d->kind == HD__DO_WAIT) {
            if (!wait_is_over(r, d)) {
                r->blocked = 1;
                return HD_OK;
            }
            if (r->end)
                r->now = HD__MAX(r->now, r->end[d->async]);
        } else {
            code = d->kind == HD__DO_COMPUTE ? compute(m, rank, d, err) : issue(m, rank, d);
        }
        if (code)
            return code;
        step_on(m, r);
    }
    make_runnable(m, rank);
    return HD_OK;
}

/* ---- the run */

static int32_t next_rank(struct hd__machine *m, uint32_t limit, struct hd_error *err)
{
    uint32_t n = limit == UINT32_MAX ? m->runnable.count - 1 : pick(m, m->runnable.count);
    int32_t rank = m->runnable.at[n];
    m->runnable.at[n] = m->runnable.at[--m->runnable.count];
    m->ranks[rank].listed = 0;
    return advance(m, rank, limit, err);
}

static int32_t next_event(struct hd__machine *m, struct hd_error *err)
{
    uint32_t n = pick(m, m->events.count);
    struct hd__event e = m->events.at[n];
    m->events.at[n] = m->events.at[--m->events.count];
    if (e.rank < 0)
        return meet(m, &e, err);
    return e.peer < 0 ? copy(m, &e) : deliver(m, &e);
}

static void start(struct hd__machine *m)
{
    m->runnable.count = m->events.count = 0;
    m->stats = (struct hd__machine_stats){0};
    hd__text_free(&m->report);
    for (uint32_t n = 0; n < m->meetings.count; n++)
        m->meetings.at[n].arrived = 0;
    for (int32_t n = 0; n < m->mesh.ranks; n++) {
        struct hd__rank *r = &m->ranks[n];
        for (uint32_t q = 0; q < m->streams.count; q++) {
            r->queues[q].count = r->queues[q].issued = r->queues[q].completed = r->queues[q].matched = 0;
            r->queues[q].free_at = 0;
        }
        memset(r->issue, 0, r->image->n_async * sizeof *r->issue);
        r->now = r->busy = 0;
        r->listed = 0;
        enter(m, r, 0);
        make_runnable(m, n);
    }
}

static int all_done(const struct hd__machine *m)
{
    for (int32_t n = 0; n < m->mesh.ranks; n++) {
        if (!m->ranks[n].done)
            return 0;
        for (uint32_t q = 0; q < m->streams.count; q++)
            if (m->ranks[n].queues[q].count)
                return 0;
    }
    return 1;
}

static void sum_times(struct hd__machine *m)
{
    double busy = 0;
    for (int32_t n = 0; n < m->mesh.ranks && m->options.costs; n++) {
        m->stats.seconds = HD__MAX(m->stats.seconds, m->ranks[n].now);
        busy += m->ranks[n].busy;
    }
    if (m->stats.seconds > 0)
        m->stats.idle = 1 - busy / (m->stats.seconds * m->mesh.ranks);
}

int32_t hd__machine_run(struct hd__machine *m, const char *section, int64_t step, struct hd_error *err)
{
    uint32_t limit = m->options.kernels ? BURST : UINT32_MAX;
    int32_t code = HD_OK;
    m->only = section;
    m->step = step;
    if (m->options.kernels && hd__emulate_open(m, err))
        return err->code;
    start(m);
    while (!code && (m->runnable.count || m->events.count)) {
        int rank = m->runnable.count && (!m->events.count || limit == UINT32_MAX || pick(m, 4));
        code = rank ? next_rank(m, limit, err) : next_event(m, err);
    }
    if (!code && !all_done(m)) {
        hd__report_stuck(m);
        code = HD_E_MISMATCH;
    }
    sum_times(m);
    if (code && m->report.length)
        return hd_fail(err, code, "%s", m->report.at);
    return code;
}

int32_t hd__machine_prove(struct hd__machine *m, struct hd_error *err)
{
    int32_t code = hd__machine_run(m, NULL, 1, err);
    struct hd__machine_stats sum = m->stats;
    const struct hd_program *p = m->ranks[0].image->p;
    for (uint32_t s = 0; s < p->sections.count && !code; s++) {
        if (hd__section_due(&p->sections.at[s], 1))
            continue;
        code = hd__machine_run(m, p->sections.at[s].name, 1, err);
        sum.events += m->stats.events;
        sum.collectives += m->stats.collectives;
        sum.messages += m->stats.messages;
        sum.copies += m->stats.copies;
    }
    m->stats = sum;
    return code;
}

const char *hd__machine_report(const struct hd__machine *m)
{
    return m->report.at ? m->report.at : "";
}

struct hd__machine_stats hd__machine_stats(const struct hd__machine *m)
{
    return m->stats;
}

double hd__machine_finish(const struct hd__machine *m, int32_t rank)
{
    return m->ranks[rank].now;
}

double hd__machine_busy(const struct hd__machine *m, int32_t rank)
{
    return m->ranks[rank].busy;
}
