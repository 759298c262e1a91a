/* Failures, late and lost peers, abort. A failure belongs to a group: its first error is recorded, every pending
 * operation of the group completes with it, and the other members are told. */
#include "internal.h"

#define HEALTH_SECONDS 0.005
#define CLOSED_SECONDS 0.05 /* what a peer sent before it left may still be on its way */
#define BROKEN_SECONDS 0.5  /* whoever knows the cause (liveness, another rank) may tell it before */

static struct lf_head reason(uint16_t kind, const char *text)
{
    return (struct lf_head){.kind = kind, .text = (uint16_t)LF_MIN(strlen(text), (size_t)LF_TEXT)};
}

static void give_up(struct hd_comm_group *g, const struct hd_error *err)
{
    struct hd_comm *c = g->comm;
    g->error = *err;
    g->error.scope = HD_SCOPE_GROUP;
    for (struct lf_op *op = c->pending, *next; op; op = next) {
        next = op->after;
        if (op->group == g)
            lf_op_finish(op, err->code);
    }
}

static void tell_failed(struct hd_comm_group *g, int32_t rank)
{
    struct lf_head head = reason(LF_FAILED, g->error.message);
    head.group = g->id;
    head.code = g->error.code;
    lf_control_send(g->comm, rank, &head, g->error.message);
}

int32_t lf_fail(struct hd_comm_group *g, const struct hd_error *err)
{
    if (g->error.code != HD_OK)
        return g->error.code;
    give_up(g, err);
    lf_ready_flush(g->comm);
    for (int32_t i = 0; i < g->n; i++)
        if (i != g->me && g->comm->peer[g->member[i].rank].known)
            tell_failed(g, g->member[i].rank);
    return g->error.code;
}

/* ---- abort */

/* The first counts. From any thread: nothing but the flag and the reason is touched. */
static void note_abort(struct hd_comm *c, int32_t by, const char *text, size_t length)
{
    int32_t none = 0;
    if (!atomic_compare_exchange_strong(&c->aborted, &none, 1))
        return;
    snprintf(c->reason, sizeof c->reason, "%.*s", (int)length, text);
    c->abort_by = by;
    atomic_store(&c->aborted, 2);
}

void lf_abort_by(struct hd_comm *c, int32_t rank, const char *text, size_t length)
{
    note_abort(c, rank, text, length);
}

void lf_abort(struct hd_comm *c, const char *text)
{
    text = text ? text : "aborted";
    note_abort(c, c->world.rank, text, strlen(text));
}

static void tell_aborted(struct hd_comm *c, int32_t rank)
{
    struct lf_head head = reason(LF_ABORTED, c->reason);
    lf_control_send(c, rank, &head, c->reason);
}

void lf_tell_ends(struct hd_comm *c, int32_t rank)
{
    for (struct hd_comm_group *g = c->groups; g; g = g->next)
        if (g->error.code != HD_OK && lf_group_member(g, rank) >= 0)
            tell_failed(g, rank);
    if (c->abort_told && c->abort_by == c->world.rank)
        tell_aborted(c, rank);
}

/* Ends every group of an aborted transport. 1: it is. */
int lf_abort_poll(struct hd_comm *c)
{
    struct hd_error e = HD_ERROR_INIT;
    if (atomic_load_explicit(&c->aborted, memory_order_acquire) != 2)
        return 0;
    e.peer = hd_job_rank(&c->world, c->abort_by);
    hd_fail(&e, HD_E_CANCELLED, "libfabric: rank %lld aborted: %s", (long long)e.peer, c->reason);
    for (struct hd_comm_group *g = c->groups; g; g = g->next)
        if (g->error.code == HD_OK)
            give_up(g, &e);
    if (!c->abort_told && c->abort_by == c->world.rank)
        for (int32_t r = 0; r < c->world.size; r++)
            if (r != c->world.rank && c->peer[r].known)
                tell_aborted(c, r);
    c->abort_told = 1;
    lf_advance(c);
    return 1;
}

int32_t lf_usable(struct hd_comm_group *g, struct hd_error *err)
{
    lf_abort_poll(g->comm);
    if (g->error.code != HD_OK)
        hd_error_copy(err, &g->error);
    return g->error.code;
}

/* ---- late, lost */

static const char *op_text(const struct lf_op *op, char out[160])
{
    snprintf(out, 160, "%s of %llu bytes %s rank %d (stream %u)", op->sending ? "send" : "recv",
             (unsigned long long)op->bytes, op->sending ? "to" : "from", lf_job_rank(op->group, op->peer),
             op->flow->stream);
    return out;
}

void lf_fail_late(struct lf_op *op)
{
    struct hd_error e = HD_ERROR_INIT;
    char text[160];
    double waited = op->since > 0 ? lf_now() - op->since : 0;
    e.peer = lf_job_rank(op->group, op->peer);
    hd_fail(&e, HD_E_TIMEOUT, "libfabric: %s in group %s: no sign of rank %lld after %.1f s", op_text(op, text),
            op->group->name, (long long)e.peer, waited);
    lf_fail(op->group, &e);
}

void lf_peer_broke(struct hd_comm *c, int32_t rank, int code)
{
    struct lf_peer *peer = &c->peer[rank];
    if (peer->broken)
        return;
    peer->broken = code;
    if (!peer->closed)
        peer->gone_at = lf_now();
}

/* Will its peer never serve it? Then the group is given up. */
static int is_lost(struct lf_op *op, double now)
{
    const struct lf_member *m = &op->group->member[op->peer];
    const struct lf_peer *peer = &op->group->comm->peer[m->rank];
    struct hd_error e = HD_ERROR_INIT;
    char text[160];
    int32_t rank = lf_job_rank(op->group, op->peer);
    e.peer = rank;
    op_text(op, text);
    if (m->failed && now - m->failed_at > CLOSED_SECONDS)
        hd_fail(&e, m->failed, "libfabric: rank %d gave group %s up: %s", rank, op->group->name, m->why ? m->why : "");
    else if (peer->closed && now - peer->gone_at > CLOSED_SECONDS)
        hd_fail(&e, HD_E_PEER, "libfabric: rank %d has closed the transport; %s in group %s cannot complete", rank,
                text, op->group->name);
    else if (peer->broken && now - peer->gone_at > BROKEN_SECONDS)
        hd_fail(&e, HD_E_PEER, "libfabric: the connection to rank %d broke (%s); %s in group %s cannot complete", rank,
                fi_strerror(peer->broken), text, op->group->name);
    else
        return 0;
    e.native = peer->broken;
    lf_fail(op->group, &e);
    return 1;
}

/* A few hundred times a second, and only while something waits and nothing moves. */
void lf_health(struct hd_comm *c)
{
    double now = lf_now(), looked = c->checked;
    struct lf_op *op = c->pending, *late = NULL; /* the newest first */
    if (now - looked < HEALTH_SECONDS)
        return;
    c->checked = now;
    while (op) {
        struct lf_op *next = op->after;
        if (hd_wait_is_late(&op->since, looked, c->world.timeout, now))
            late = op;
        if (is_lost(op, now)) {
            next = c->pending; /* a whole group ended: from the beginning */
            late = NULL;
        }
        op = next;
    }
    if (late) /* the oldest: what was posted after it may wait for its sender, who waits for the same */
        lf_fail_late(late);
}
