/* The walk of the token machine. See machine.h. Everything is driven by what just happened: a rank is looked
 * at again only when what it waits for completes, so a run costs a constant a started or completed
 * instruction. */
#include <stdlib.h>

#include "analysis/sim/machine_internal.h"

#define BURST 8 /* instructions that a rank of the emulator runs before something else may happen */

/* ---- creation */

/* `rank`: the program's number of it; -1: a stage alone, without data parallel ranks. */
static struct hd__sim_program *program_of(struct hd__sim *m, const struct hd_program *p, int32_t rank, double speed)
{
    int32_t micro_batches = hd__micro_batches_of(p, rank);
    for (uint32_t n = m->programs.count; n-- > 0;) {
        struct hd__sim_program *x = m->programs.at[n];
        if (x->p == p && x->micro_batches == micro_batches && !(x->speed < speed || x->speed > speed))
            return x;
    }
    hd__push(&m->programs, hd__sim_program_new(m, p, rank, speed));
    return m->programs.at[m->programs.count - 1];
}

static void rank_init(struct hd__sim *m, struct hd__sim_rank *r)
{
    r->queues = hd__alloc(m->streams.count * sizeof *r->queues);
    r->issue = hd__alloc(r->program->n_async * sizeof *r->issue);
    if (m->options.costs) {
        r->start = hd__alloc(r->program->n_async * sizeof *r->start);
        r->end = hd__alloc(r->program->n_async * sizeof *r->end);
    }
}

static void ranks_free(struct hd__sim *m)
{
    for (int32_t n = 0; n < m->mesh.ranks && m->ranks; n++) {
        struct hd__sim_rank *r = &m->ranks[n];
        for (uint32_t q = 0; q < m->streams.count; q++)
            free(r->queues[q].ring);
        free(r->queues);
        free(r->issue);
        free(r->start);
        free(r->end);
    }
    free(m->ranks);
}

/* Axes along which all ranks run the same programs as fast and belong to all of their groups. */
static uint32_t find_alike(const struct hd__sim *m)
{
    uint32_t alike = m->options.kernels ? 0 : hd__mesh_live(&m->whole);
    for (uint32_t n = 0; n < m->channels.count; n++)
        alike &= m->channels.at[n].members ? ~m->channels.at[n].axes : alike;
    for (int32_t r = 0; r < m->whole.ranks && alike; r++)
        for (int32_t a = 0; a < HD_AXIS_COUNT; a++) {
            int32_t coord[HD_AXIS_COUNT];
            hd__mesh_coord(&m->whole, r, coord);
            coord[a] = 0;
            if (m->seated[r] != m->seated[hd__mesh_rank(&m->whole, coord)])
                alike &= ~HD_AXIS_BIT(a);
        }
    return alike;
}

/* Ranks to walk: one of those that are alike along `alike`. */
static void seat(struct hd__sim *m, uint32_t alike)
{
    int32_t size[HD_AXIS_COUNT];
    ranks_free(m);
    m->alike = alike;
    for (int32_t a = 0; a < HD_AXIS_COUNT; a++)
        size[a] = alike & HD_AXIS_BIT(a) ? 1 : m->whole.size[a];
    m->mesh = hd__mesh_make(size);
    m->ranks = hd__alloc((size_t)m->mesh.ranks * sizeof *m->ranks);
    for (int32_t r = 0; r < m->mesh.ranks; r++) {
        hd__mesh_coord(&m->mesh, r, m->ranks[r].coord);
        m->ranks[r].program = m->seated[hd__mesh_rank(&m->whole, m->ranks[r].coord)];
        rank_init(m, &m->ranks[r]);
    }
    hd__sim_channels_join(m);
}

static int32_t rank_in(const struct hd_program *p, const struct hd__mesh *mesh, int32_t rank)
{
    int32_t coord[HD_AXIS_COUNT];
    hd__mesh_coord(mesh, rank, coord);
    for (int32_t a = HD_AXIS_DP_REPLICATE; a <= HD_AXIS_DP_SHARD; a++)
        if (mesh->size[a] != p->mesh.size[a])
            return -1;
    return hd__mesh_rank(&p->mesh, coord);
}

struct hd__sim *hd__sim_create(const struct hd__mesh *mesh, const struct hd_program *const *programs,
                               const struct hd__sim_options *options)
{
    struct hd__sim *m = hd__alloc(sizeof *m);
    m->whole = *mesh;
    m->options = options ? *options : (struct hd__sim_options){0};
    if (m->options.kernels)
        m->kernels = *m->options.kernels;
    if (m->options.costs)
        m->costs = *m->options.costs;
    m->random = m->options.seed * 2 + 1;
    m->seated = hd__alloc((size_t)mesh->ranks * sizeof *m->seated);
    for (int32_t r = 0; r < mesh->ranks; r++)
        m->seated[r] =
            program_of(m, programs[r], rank_in(programs[r], mesh, r), m->costs.speed ? m->costs.speed[r] : 1);
    seat(m, find_alike(m));
    return m;
}

void hd__sim_destroy(struct hd__sim *m)
{
    if (!m)
        return;
    hd__sim_emulate_close(m);
    ranks_free(m);
    for (uint32_t n = 0; n < m->programs.count; n++)
        hd__sim_program_free(m->programs.at[n]);
    for (uint32_t n = 0; n < m->channels.count; n++)
        free(m->channels.at[n].meeting);
    hd__free_array(&m->programs);
    hd__free_array(&m->channels);
    hd__free_array(&m->meetings);
    hd__free_array(&m->members);
    hd__free_array(&m->streams);
    hd__free_array(&m->runnable);
    hd__free_array(&m->events);
    hd__text_free(&m->report);
    free(m->seated);
    free(m);
}

/* ---- chance */

static uint32_t random_below(struct hd__sim *m, uint32_t n)
{
    m->random = m->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)((m->random >> 33) % n);
}

/* ---- queues */

static void push_queue(struct hd__sim_queue *q, uint32_t pc)
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

static void make_runnable(struct hd__sim *m, int32_t rank)
{
    struct hd__sim_rank *r = &m->ranks[rank];
    if (r->queued_to_run || r->done)
        return;
    r->queued_to_run = 1;
    r->blocked = 0;
    hd__push(&m->runnable, rank);
}

static int wait_is_over(const struct hd__sim_rank *r, const struct hd__sim_op *wait)
{
    return wait->async != UINT32_MAX && r->issue[wait->async] &&
           r->queues[wait->queue].completed >= r->issue[wait->async];
}

/* ---- meetings and messages */

/* A receive at the head of one of the peer's queues that answers this send, or the other way round. */
static int find_partner(struct hd__sim *m, int32_t rank, uint16_t queue, struct hd__sim_event *e)
{
    const struct hd__sim_op *mine = hd__sim_queue_head(&m->ranks[rank], queue);
    int32_t peer = hd__sim_peer_rank(m, rank, mine->instr->peer);
    uint8_t wanted = mine->kind == HD__SIM_SEND ? HD__SIM_RECV : HD__SIM_SEND;
    for (uint32_t q = 0; peer >= 0 && q < m->streams.count; q++) {
        const struct hd__sim_op *its = hd__sim_queue_head(&m->ranks[peer], q);
        if (!its || its->kind != wanted || m->ranks[peer].queues[q].matched || its->instr->tag != mine->instr->tag ||
            hd__sim_peer_rank(m, peer, its->instr->peer) != rank)
            continue;
        *e = mine->kind == HD__SIM_SEND ? (struct hd__sim_event){UINT32_MAX, rank, peer, queue, (uint16_t)q}
                                        : (struct hd__sim_event){UINT32_MAX, peer, rank, (uint16_t)q, queue};
        return 1;
    }
    return 0;
}

static int32_t on_message_ready(struct hd__sim *m, int32_t rank, uint16_t queue)
{
    struct hd__sim_event e;
    if (!find_partner(m, rank, queue, &e))
        return HD_OK;
    m->ranks[e.rank].queues[e.queue].matched = m->ranks[e.peer].queues[e.peer_queue].matched = 1;
    if (hd__sim_queue_head(&m->ranks[e.rank], e.queue)->signature !=
        hd__sim_queue_head(&m->ranks[e.peer], e.peer_queue)->signature) {
        hd__sim_report_message(m, &e);
        return HD_E_MISMATCH;
    }
    hd__push(&m->events, e);
    return HD_OK;
}

static int32_t run_collective(struct hd__sim *m, const struct hd__sim_event *e, struct hd_error *err);

/* The head of a queue is new: its group may now be complete. With costs alone, a group of one goes at once: the rank's
 * next instructions are slowed by it. */
static int32_t on_head_ready(struct hd__sim *m, int32_t rank, uint16_t queue)
{
    const struct hd__sim_op *d = hd__sim_queue_head(&m->ranks[rank], queue);
    struct hd__sim_meeting *meeting;
    uint32_t at;
    if (d->kind == HD__SIM_COPY) {
        hd__push(&m->events, ((struct hd__sim_event){UINT32_MAX, rank, -1, queue, 0}));
        return HD_OK;
    }
    if (d->kind != HD__SIM_COLLECTIVE)
        return on_message_ready(m, rank, queue);
    at = m->channels.at[d->channel].meeting[rank];
    if (!at)
        return HD_OK; /* not a member of its own group: it can only get stuck, and the report says so */
    meeting = &m->meetings.at[at - 1];
    if (!meeting->arrived) {
        meeting->signature = d->signature;
        meeting->first_rank = rank;
    } else if (meeting->signature != d->signature) {
        hd__sim_report_mismatch(m, meeting, rank, (uint32_t)(d - m->ranks[rank].program->code));
        return HD_E_MISMATCH;
    }
    if (++meeting->arrived == meeting->size && meeting->alone && m->options.costs && !m->options.kernels)
        return run_collective(m, &(struct hd__sim_event){at - 1, -1, -1, queue, 0}, NULL);
    if (meeting->arrived == meeting->size)
        hd__push(&m->events, ((struct hd__sim_event){at - 1, -1, -1, queue, 0}));
    return HD_OK;
}

static void record_span(struct hd__sim *m, int32_t rank, const struct hd__sim_op *d, double start, double end)
{
    const struct hd__sim_rank *r = &m->ranks[rank];
    const struct hd__instr *i = d->instr;
    struct hd__sim_span span = {.instr = i, .start = start, .end = end, .section = r->section, .micro = i->micro};
    if (!m->options.costs || !m->costs.span || end <= start)
        return;
    if (i->micro < 0 && i->phase != HD__PHASE_O)
        span.micro = r->program->micro0[r->section] + r->round;
    m->costs.span(m->costs.user, hd__mesh_rank(&m->whole, r->coord), &span);
}

static int32_t pop_queue(struct hd__sim *m, int32_t rank, uint16_t queue, double start, double end)
{
    struct hd__sim_rank *r = &m->ranks[rank];
    struct hd__sim_queue *q = &r->queues[queue];
    const struct hd__sim_op *d = hd__sim_queue_head(r, queue), *at = &r->program->code[r->pc];
    if (r->end)
        r->end[d->async] = q->free_at = end;
    record_span(m, rank, d, start, end);
    q->head = (q->head + 1) % q->room;
    q->count--;
    q->completed++;
    q->matched = 0;
    m->stats.events++;
    if (r->blocked && wait_is_over(r, at))
        make_runnable(m, rank);
    return q->count ? on_head_ready(m, rank, queue) : HD_OK;
}

/* When all can begin, and with the longest of their costs the end. */
static double ready_at(const struct hd__sim_rank *r, uint16_t queue, double begin)
{
    const struct hd__sim_op *d = hd__sim_queue_head(r, queue);
    return HD__MAX(begin, HD__MAX(r->start[d->async], r->queues[queue].free_at));
}

static int32_t run_collective(struct hd__sim *m, const struct hd__sim_event *e, struct hd_error *err)
{
    struct hd__sim_meeting *meeting = &m->meetings.at[e->meeting];
    const int32_t *members = m->members.at + meeting->first_member;
    double begin = 0, took = 0;
    int32_t code = HD_OK;
    for (uint32_t k = 0; k < meeting->size && m->options.costs; k++) {
        const struct hd__sim_rank *r = &m->ranks[members[k]];
        begin = ready_at(r, e->queue, begin);
        took = HD__MAX(took, hd__sim_cost(r, hd__sim_queue_head(r, e->queue)));
    }
    if (m->options.kernels && hd__sim_emulate_meeting(m, meeting, err))
        return err->code;
    meeting->arrived = 0;
    m->stats.collectives += (uint64_t)hd__mesh_ways(&m->whole, m->alike & ~m->channels.at[meeting->channel].axes);
    for (uint32_t k = 0; k < meeting->size; k++)
        m->ranks[members[k]].transfers_until = HD__MAX(m->ranks[members[k]].transfers_until, begin + took);
    for (uint32_t k = 0; k < meeting->size && !code; k++)
        code = pop_queue(m, members[k], e->queue, begin, begin + took);
    return code;
}

static int32_t run_message(struct hd__sim *m, const struct hd__sim_event *e)
{
    double begin = 0, end = 0;
    if (m->options.costs) {
        const struct hd__sim_rank *r = &m->ranks[e->rank];
        begin = ready_at(&m->ranks[e->peer], e->peer_queue, ready_at(r, e->queue, 0));
        end = begin + hd__sim_cost(r, hd__sim_queue_head(r, e->queue));
    }
    if (m->options.kernels)
        hd__sim_emulate_message(m, e);
    m->stats.messages++;
    int32_t code = pop_queue(m, e->rank, e->queue, begin, end);
    return code ? code : pop_queue(m, e->peer, e->peer_queue, begin, end);
}

/* Between two memories of one rank: nobody else has to come. */
static int32_t run_copy(struct hd__sim *m, const struct hd__sim_event *e)
{
    struct hd__sim_rank *r = &m->ranks[e->rank];
    const struct hd__sim_op *d = hd__sim_queue_head(r, e->queue);
    double begin = m->options.costs ? ready_at(r, e->queue, 0) : 0;
    if (m->options.kernels)
        hd__sim_emulate_copy(r, d->instr);
    m->stats.copies++;
    return pop_queue(m, e->rank, e->queue, begin, begin + hd__sim_cost(r, d));
}

/* ---- ranks */

static int section_runs(const struct hd__sim *m, const struct hd__code_section *s)
{
    return m->only ? hd__same_section(s, m->only) : hd__section_due(s, m->step);
}

/* Puts the rank at the start of section s or of the next one that runs and has code. */
static void enter_section(struct hd__sim *m, struct hd__sim_rank *r, uint32_t s)
{
    const struct hd_program *p = r->program->p;
    while (s < p->sections.count && (!section_runs(m, &p->sections.at[s]) || !p->sections.at[s].code.count))
        s++;
    r->section = s;
    r->pc = r->program->first[s];
    r->round = 0;
    r->done = s == p->sections.count;
    if (!r->done && m->options.kernels)
        hd__sim_emulate_section(r);
}

static void next_section(struct hd__sim *m, struct hd__sim_rank *r)
{
    m->stats.events++;
    if (++r->pc < r->program->first[r->section + 1])
        return;
    if (++r->round < r->program->rounds[r->section]) {
        r->pc = r->program->first[r->section];
        if (m->options.kernels)
            hd__sim_emulate_section(r);
        return;
    }
    enter_section(m, r, r->section + 1);
}

static int32_t issue(struct hd__sim *m, int32_t rank, const struct hd__sim_op *d)
{
    struct hd__sim_rank *r = &m->ranks[rank];
    struct hd__sim_queue *q = &r->queues[d->queue];
    push_queue(q, r->pc);
    r->issue[d->async] = q->issued;
    if (r->start)
        r->start[d->async] = r->now;
    if (m->options.kernels)
        hd__sim_emulate_issue(r, d->instr);
    return q->count == 1 ? on_head_ready(m, rank, d->queue) : HD_OK;
}

/* Seconds of a compute instruction, of which those during a collective count for less. */
static double compute_time(const struct hd__sim *m, const struct hd__sim_rank *r, double cost)
{
    double slowed = m->options.costs ? m->costs.slowed : 0, shared = r->transfers_until - r->now;
    if (slowed <= 0 || shared <= 0)
        return cost;
    return cost + slowed * HD__MIN(shared, cost / (1 - slowed));
}

static int32_t advance(struct hd__sim *m, int32_t rank, uint32_t limit, struct hd_error *err)
{
    struct hd__sim_rank *r = &m->ranks[rank];
    for (uint32_t n = 0; n < limit && !r->done; n++) {
        const struct hd__sim_op *d = &r->program->code[r->pc];
        int32_t code = HD_OK;
        if (d->kind == HD__SIM_WAIT) {
            if (!wait_is_over(r, d)) {
                r->blocked = 1;
                return HD_OK;
            }
            if (r->end)
                r->now = HD__MAX(r->now, r->end[d->async]);
        } else if (d->kind == HD__SIM_COMPUTE) {
            double took = compute_time(m, r, hd__sim_cost(r, d) / r->program->speed);
            record_span(m, rank, d, r->now, r->now + took);
            r->now += took;
            r->busy += took;
            code = m->options.kernels ? hd__sim_emulate_compute(m, rank, r->pc, err) : HD_OK;
        } else {
            code = issue(m, rank, d);
            if (d->blocks && wait_is_over(r, d))
                r->now = HD__MAX(r->now, r->end[d->async]);
        }
        if (code)
            return code;
        next_section(m, r);
    }
    make_runnable(m, rank);
    return HD_OK;
}

/* ---- the run */

static int32_t next_rank(struct hd__sim *m, uint32_t limit, struct hd_error *err)
{
    uint32_t n = limit == UINT32_MAX ? m->runnable.count - 1 : random_below(m, m->runnable.count);
    int32_t rank = m->runnable.at[n];
    m->runnable.at[n] = m->runnable.at[--m->runnable.count];
    m->ranks[rank].queued_to_run = 0;
    return advance(m, rank, limit, err);
}

static int32_t next_event(struct hd__sim *m, struct hd_error *err)
{
    uint32_t n = random_below(m, m->events.count);
    struct hd__sim_event e = m->events.at[n];
    m->events.at[n] = m->events.at[--m->events.count];
    if (e.rank < 0)
        return run_collective(m, &e, err);
    return e.peer < 0 ? run_copy(m, &e) : run_message(m, &e);
}

static void start(struct hd__sim *m)
{
    m->runnable.count = m->events.count = 0;
    m->stats = (struct hd__sim_stats){0};
    hd__text_free(&m->report);
    for (uint32_t n = 0; n < m->meetings.count; n++)
        m->meetings.at[n].arrived = 0;
    for (int32_t n = 0; n < m->mesh.ranks; n++) {
        struct hd__sim_rank *r = &m->ranks[n];
        for (uint32_t q = 0; q < m->streams.count; q++) {
            r->queues[q].count = r->queues[q].issued = r->queues[q].completed = r->queues[q].matched = 0;
            r->queues[q].free_at = 0;
        }
        memset(r->issue, 0, r->program->n_async * sizeof *r->issue);
        r->now = r->busy = r->transfers_until = 0;
        r->queued_to_run = 0;
        enter_section(m, r, 0);
        make_runnable(m, n);
    }
}

static int all_done(const struct hd__sim *m)
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

static void sum_times(struct hd__sim *m)
{
    double busy = 0;
    for (int32_t n = 0; n < m->mesh.ranks && m->options.costs; n++) {
        m->stats.seconds = HD__MAX(m->stats.seconds, m->ranks[n].now);
        busy += m->ranks[n].busy;
    }
    if (m->stats.seconds > 0)
        m->stats.idle = 1 - busy / (m->stats.seconds * m->mesh.ranks);
}

/* Adds the work of ranks that are like a walked one. */
static void count_alike(struct hd__sim *m)
{
    uint64_t each = (uint64_t)hd__mesh_ways(&m->whole, m->alike);
    m->stats.walked = m->stats.events;
    m->stats.events *= each;
    m->stats.messages *= each;
    m->stats.copies *= each;
}

int32_t hd__sim_run(struct hd__sim *m, const struct hd__code_section *section, int64_t step, struct hd_error *err)
{
    uint32_t limit = m->options.kernels ? BURST : UINT32_MAX;
    int32_t code = HD_OK;
    m->only = section;
    m->step = step;
    if (m->options.kernels && hd__sim_emulate_open(m, err))
        return err->code;
    start(m);
    while (!code && (m->runnable.count || m->events.count)) {
        int rank = m->runnable.count && (!m->events.count || limit == UINT32_MAX || random_below(m, 4));
        code = rank ? next_rank(m, limit, err) : next_event(m, err);
    }
    if (m->alike && (code || !all_done(m))) {
        seat(m, 0);
        return hd__sim_run(m, section, step, err);
    }
    if (!code && !all_done(m)) {
        hd__sim_report_deadlock(m);
        code = HD_E_MISMATCH;
    }
    sum_times(m);
    count_alike(m);
    if (code && m->report.length)
        return hd_fail(err, code, "%s", m->report.at);
    return code;
}

int32_t hd__sim_verify(struct hd__sim *m, struct hd_error *err)
{
    int32_t code = hd__sim_run(m, NULL, 1, err);
    struct hd__sim_stats sum = m->stats;
    const struct hd_program *p = m->ranks[0].program->p;
    for (uint32_t s = 0; s < p->sections.count && !code; s++) {
        if (hd__section_due(&p->sections.at[s], 1))
            continue;
        code = hd__sim_run(m, &p->sections.at[s], 1, err);
        sum.events += m->stats.events;
        sum.collectives += m->stats.collectives;
        sum.messages += m->stats.messages;
        sum.copies += m->stats.copies;
        sum.walked += m->stats.walked;
    }
    m->stats = sum;
    return code;
}

const char *hd__sim_report(const struct hd__sim *m)
{
    return m->report.at ? m->report.at : "";
}

struct hd__sim_stats hd__sim_stats(const struct hd__sim *m)
{
    return m->stats;
}

/* Index into m->ranks. */
static int32_t walked(const struct hd__sim *m, int32_t rank)
{
    int32_t coord[HD_AXIS_COUNT];
    hd__mesh_coord(&m->whole, rank, coord);
    for (int32_t a = 0; a < HD_AXIS_COUNT; a++)
        coord[a] = m->alike & HD_AXIS_BIT(a) ? 0 : coord[a];
    return hd__mesh_rank(&m->mesh, coord);
}

int32_t hd__sim_alike(const struct hd__sim *m, int32_t rank)
{
    return hd__mesh_rank(&m->whole, m->ranks[walked(m, rank)].coord);
}

double hd__sim_finish_time(const struct hd__sim *m, int32_t rank)
{
    return m->ranks[walked(m, rank)].now;
}

double hd__sim_busy_time(const struct hd__sim *m, int32_t rank)
{
    return m->ranks[walked(m, rank)].busy;
}
