/* Groups: members and their flows. A group's number follows from its name and ranks, and from how many like it were
 * created before. Its members exchange a greeting, so that connections exist before they are needed, or their lack is
 * reported. */
#include <sched.h>

#include "internal.h"

#define ASK_SECONDS 0.05

static uint64_t hash(const void *data, size_t bytes, uint64_t h)
{
    for (size_t i = 0; i < bytes; i++)
        h = (h ^ ((const uint8_t *)data)[i]) * UINT64_C(0x100000001b3); /* FNV-1a */
    return h;
}

/* How many groups of this name and these ranks were created before. */
static uint64_t count_group(struct hd_comm *c, uint64_t h)
{
    struct lf_group_count *m = c->counts;
    while (m && m->hash != h)
        m = m->next;
    if (!m) {
        m = c->host->alloc(sizeof *m);
        if (!m)
            return 0;
        m->hash = h;
        m->next = c->counts;
        c->counts = m;
    }
    return ++m->times;
}

static int32_t check_ranks(const struct hd_comm *c, const char *name, const int32_t *ranks, int32_t n, int32_t *me,
                           struct hd_error *err)
{
    *me = -1;
    for (int32_t i = 0; i < n; i++) {
        if (ranks[i] < 0 || ranks[i] >= c->world.size)
            return hd_fail(err, HD_E_INVALID, "libfabric: group %s has rank %d, but the world has %d", name, ranks[i],
                           c->world.size);
        for (int32_t k = 0; k < i; k++)
            if (ranks[k] == ranks[i])
                return hd_fail(err, HD_E_INVALID, "libfabric: group %s has rank %d twice", name, ranks[i]);
        *me = ranks[i] == c->world.rank ? i : *me;
    }
    return *me >= 0 ? HD_OK : hd_fail(err, HD_E_INVALID, "libfabric: rank %d is not in group %s", c->world.rank, name);
}

struct hd_comm_group *lf_group_find(const struct hd_comm *c, uint64_t id)
{
    struct hd_comm_group *g = c->groups;
    while (g && g->id != id)
        g = g->next;
    return g;
}

int32_t lf_group_member(const struct hd_comm_group *g, int32_t rank)
{
    for (int32_t i = 0; i < g->n; i++)
        if (g->member[i].rank == rank)
            return i;
    return -1;
}

struct lf_flow *lf_flow(struct hd_comm_group *g, int32_t member, uint32_t stream)
{
    struct lf_member *m = &g->member[member];
    for (struct lf_flow *f = m->flows; f; f = f->next)
        if (f->stream == stream)
            return f;
    struct lf_flow *f = g->comm->host->alloc(sizeof *f);
    if (!f)
        return NULL;
    f->stream = stream;
    f->next = m->flows;
    m->flows = f;
    return f;
}

/* Control messages that came for this group before it was created. */
static void deliver_orphans(struct hd_comm *c, uint64_t id)
{
    struct lf_unexpected *mine = NULL, **last = &mine;
    for (struct lf_unexpected **at = &c->orphans; *at;) {
        struct lf_unexpected *message = *at;
        if (message->head.group != id) {
            at = &message->next;
            continue;
        }
        *at = message->next;
        *last = message;
        last = &message->next;
        *last = NULL;
        c->n_orphans--;
    }
    while (mine) {
        struct lf_unexpected *message = mine;
        mine = message->next;
        lf_control_handle(c, &message->head, message->payload);
        c->host->free(message);
    }
}

static int32_t unheard(const struct hd_comm *c, const int32_t *ranks, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        if (!c->peer[ranks[i]].heard && !c->peer[ranks[i]].closed && ranks[i] != c->world.rank)
            return ranks[i];
    return -1;
}

/* Whom a greeting has not left for, -1: all have been told. */
static int32_t untold(const struct hd_comm *c, const int32_t *ranks, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        if (c->peer[ranks[i]].first && !c->peer[ranks[i]].broken && !c->peer[ranks[i]].closed)
            return ranks[i];
    return -1;
}

void lf_hello(struct hd_comm *c, int32_t rank)
{
    struct lf_head head = {.kind = LF_HELLO, .text = (uint16_t)c->address_bytes};
    if (!c->peer[rank].greeted++)
        lf_control_send(c, rank, &head, c->address);
}

int32_t lf_greet(struct hd_comm *c, const char *name, const int32_t *ranks, int32_t n, struct hd_error *err)
{
    double asked = lf_now();
    struct hd_deadline end = hd_deadline_in(c->world.timeout, asked);
    int32_t rank, code;
    uint32_t idle = 0;
    for (int32_t i = 0; i < n; i++)
        if (ranks[i] != c->world.rank)
            lf_hello(c, ranks[i]);
    while ((rank = unheard(c, ranks, n)) >= 0 || (rank = untold(c, ranks, n)) >= 0) {
        const struct lf_peer *peer = &c->peer[rank];
        if (lf_abort_poll(c))
            return hd_fail(err, HD_E_CANCELLED, "libfabric: rank %d aborted: %s", hd_job_rank(&c->world, c->abort_by),
                           c->reason);
        if (hd_deadline_passed(&end, lf_now()) || (peer->broken && lf_now() > peer->gone_at + 1))
            return hd_fail(err, peer->broken ? HD_E_PEER : HD_E_TIMEOUT,
                           "libfabric: rank %d cannot reach rank %d to make group %s "
                           "(provider %s, %s%s%s)%s",
                           hd_job_rank(&c->world, c->world.rank), hd_job_rank(&c->world, rank), name,
                           c->info->fabric_attr->prov_name, c->info->domain_attr->name, peer->broken ? ", " : "",
                           peer->broken ? fi_strerror(peer->broken) : "",
                           lf_by_shm(c)
                               ? ""
                               : ": can these machines reach each other over this network? comm.interface names one");
        if (lf_now() - asked > ASK_SECONDS) {
            if ((code = lf_job_lives(c, err)) != HD_OK)
                return code;
            asked = lf_now();
        }
        if (lf_advance(c))
            idle = 0;
        else
            rq_relax(idle++);
    }
    return HD_OK;
}

int32_t lf_group(struct hd_comm *c, const char *name, const int32_t *ranks, int32_t n, struct hd_comm_group **group,
                 struct hd_error *err)
{
    struct hd_comm_group *g;
    uint64_t h;
    int32_t me, code = check_ranks(c, name, ranks, n, &me, err);
    lf_ready_flush(c);
    for (int32_t i = 0; i < n && n <= LF_GREETED && code == HD_OK; i++)
        code = lf_peer_connect(c, ranks[i], err);
    if (code == HD_OK && n <= LF_GREETED)
        code = lf_greet(c, name, ranks, n, err);
    if (code != HD_OK)
        return code;
    g = c->host->alloc(sizeof *g + (size_t)n * sizeof *g->member);
    if (!g)
        return hd_fail(err, HD_E_NOMEM, "libfabric: no memory");
    h = hash(ranks, (size_t)n * sizeof *ranks, hash(name, strlen(name) + 1, UINT64_C(0xcbf29ce484222325)));
    g->id = h + count_group(c, h) * UINT64_C(0x9e3779b97f4a7c15);
    g->comm = c;
    g->n = n;
    g->me = me;
    g->error = (struct hd_error)HD_ERROR_INIT;
    snprintf(g->name, sizeof g->name, "%s", name);
    for (int32_t i = 0; i < n; i++)
        g->member[i].rank = ranks[i];
    g->next = c->groups;
    c->groups = g;
    deliver_orphans(c, g->id);
    *group = g;
    return HD_OK;
}

static void free_unexpected(struct hd_comm *c, struct lf_unexpected *message)
{
    for (struct lf_unexpected *next; message; message = next) {
        next = message->next;
        c->host->free(message);
    }
}

void lf_group_free(struct hd_comm_group *g)
{
    struct hd_comm *c = g ? g->comm : NULL;
    if (!g)
        return;
    lf_ready_flush(c);
    lf_ops_orphan(g);
    for (struct hd_comm_group **at = &c->groups; *at; at = &(*at)->next)
        if (*at == g) {
            *at = g->next;
            break;
        }
    for (int32_t i = 0; i < g->n; i++) {
        for (struct lf_flow *f = g->member[i].flows, *next; f; f = next) {
            next = f->next;
            free_unexpected(c, f->unexpected);
            c->host->free(f);
        }
        c->host->free(g->member[i].why);
    }
    c->host->free(g);
}

/* At close: what never found its group, and the count of those that were made. */
void lf_groups_forget(struct hd_comm *c)
{
    while (c->groups)
        lf_group_free(c->groups);
    free_unexpected(c, c->orphans);
    for (struct lf_group_count *m = c->counts, *next; m; m = next) {
        next = m->next;
        c->host->free(m);
    }
}
