/* Groups: what members share, and what ends with a failure. */
#include "internal.h"

static uint64_t hash_of(const char *name, const int32_t *ranks, int32_t n)
{
    uint64_t h = UINT64_C(0xcbf29ce484222325);
    for (; *name; name++)
        h = (h ^ (uint8_t)*name) * UINT64_C(0x100000001b3);
    for (int32_t i = 0; i < n; i++)
        h = (h ^ (uint32_t)ranks[i]) * UINT64_C(0x100000001b3);
    return h;
}

/* A group that is made again, after it was freed, is another one, on all members alike. */
static int32_t new_group_id(struct hd_comm *c, uint64_t hash, uint64_t *id, struct hd_error *err)
{
    uint32_t at = 0;
    while (at < c->n_counts && c->counts[at].hash != hash)
        at++;
    if (at == c->counts_room) {
        uint32_t room = at ? 2 * at : 32;
        struct nc_group_count *counts = c->host->alloc(room * sizeof *counts);
        if (!counts)
            return hd_fail(err, HD_E_NOMEM, "nccl: no memory");
        memcpy(counts, at ? c->counts : counts, at * sizeof *counts);
        c->host->free(c->counts);
        c->counts = counts;
        c->counts_room = room;
    }
    if (at == c->n_counts)
        c->counts[c->n_counts++] = (struct nc_group_count){.hash = hash};
    *id = hash + UINT64_C(0x9e3779b97f4a7c15) * c->counts[at].times++;
    return HD_OK;
}

static int32_t check_members(const struct hd_comm *c, const char *name, const int32_t *ranks, int32_t n, int32_t *me,
                             struct hd_error *err)
{
    *me = -1;
    for (int32_t i = 0; i < n; i++) {
        if (ranks[i] < 0 || ranks[i] >= c->world.size)
            return hd_fail(err, HD_E_INVALID, "nccl: group %s names rank %d, the job has %d", name, ranks[i],
                           c->world.size);
        for (int32_t j = 0; j < i; j++)
            if (ranks[j] == ranks[i])
                return hd_fail(err, HD_E_INVALID, "nccl: group %s names rank %d twice", name, ranks[i]);
        if (ranks[i] == c->world.rank)
            *me = i;
    }
    if (n < 1 || *me < 0)
        return hd_fail(err, HD_E_INVALID, "nccl: group %s of %d ranks is asked for by rank %d, which is no member",
                       name, n, c->world.rank);
    return HD_OK;
}

static struct nc_group *new_group(struct hd_comm *c, const char *name, const int32_t *ranks, int32_t n, int32_t me,
                                  uint64_t id)
{
    struct nc_group *g = c->host->alloc(sizeof *g + (size_t)n * sizeof *ranks);
    if (!g)
        return NULL;
    g->comm = c;
    g->n = n;
    g->me = me;
    g->id = id;
    g->ranks = memcpy(g + 1, ranks, (size_t)n * sizeof *ranks);
    g->error = (struct hd_error)HD_ERROR_INIT;
    snprintf(g->name, sizeof g->name, "%s", name);
    g->next = c->groups;
    c->groups = g;
    return g;
}

int32_t nc_group(struct hd_comm *c, const char *name, const int32_t *ranks, int32_t n, struct hd_comm_group **group,
                 struct hd_error *err)
{
    struct nc_group *g = NULL;
    struct nc_queue *queue = NULL;
    uint64_t id = 0;
    int32_t me, rc = check_members(c, name, ranks, n, &me, err);
    if (rc)
        return rc;
    nc_lock(c);
    rc = nc_poll_abort(c, err);
    if (!rc)
        rc = new_group_id(c, hash_of(name, ranks, n), &id, err);
    if (!rc && !(g = new_group(c, name, ranks, n, me, id)))
        rc = hd_fail(err, HD_E_NOMEM, "nccl: no memory");
    if (!rc && !(queue = nc_queue_new(g, -1, -1, 0, err)))
        rc = err ? err->code : HD_E_IO;
    if (!rc)
        rc = nc_queue_connect(queue, err);
    nc_unlock(c);
    if (rc) {
        nc_group_free((struct hd_comm_group *)g);
        return rc;
    }
    *group = (struct hd_comm_group *)g;
    return HD_OK;
}

/* ---- failure */

static void finish_all(struct nc_op **head, struct nc_op ***tail, int32_t code)
{
    for (struct nc_op *op = *head, *next; op; op = next) {
        next = op->next;
        nc_op_finish(op, code);
    }
    *head = NULL;
    *tail = head;
}

void nc_group_fail(struct nc_group *g, const struct hd_error *err)
{
    if (g->error.code != HD_OK)
        return;
    g->error = *err;
    g->error.scope = err->scope == HD_SCOPE_DEVICE ? HD_SCOPE_DEVICE : HD_SCOPE_GROUP;
    for (struct nc_queue *q = g->queues; q; q = q->next) {
        finish_all(&q->head, &q->tail, err->code);
        finish_all(&q->sent, &q->sent_tail, err->code);
        if (q->launched)
            nc_op_finish(q->launched, err->code);
        q->launched = NULL;
        if ((q->armed || q->unmarked || q->captured) &&
            g->comm->failure.code == HD_OK) /* something was done that now is not */
            g->comm->failure = g->error;
    }
    nc_queues_end(g->comm, g, 0);
}

int32_t nc_usable(struct nc_group *g, struct hd_error *err)
{
    nc_poll_abort(g->comm, NULL);
    if (__builtin_expect(g->error.code != HD_OK, 0))
        hd_error_copy(err, &g->error);
    return g->error.code;
}

static void forget(struct hd_comm *c, struct nc_group *g)
{
    for (struct nc_group **at = &c->groups; *at; at = &(*at)->next)
        if (*at == g) {
            *at = g->next;
            break;
        }
    for (uint32_t i = 0; i < c->ops.n; i++) {
        struct nc_op *op = rq_at(&c->ops, i);
        if (op->group == g)
            op->group = NULL;
    }
}

static int is_idle(const struct nc_group *g)
{
    for (const struct nc_queue *q = g->queues; q; q = q->next)
        if (q->head || q->sent || q->launched || q->state == NC_MEETING || q->state == NC_JOINING)
            return 0;
    return g->error.code == HD_OK;
}

void nc_group_free(struct hd_comm_group *group)
{
    struct nc_group *g = (struct nc_group *)group;
    struct hd_error err = HD_ERROR_INIT;
    struct hd_comm *c;
    if (!g)
        return;
    c = g->comm;
    nc_lock(c);
    nc_poll_abort(c, NULL);
    nc_queues_end(c, g, is_idle(g));
    hd_fail(&err, HD_E_CANCELLED, "nccl: group %s was freed while an operation was under way", g->name);
    nc_group_fail(g, &err);
    forget(c, g);
    for (struct nc_queue *q = g->queues, *next; q; q = next) {
        next = q->next;
        nc_queue_free(q);
    }
    nc_unlock(c);
    c->host->free(g);
}
