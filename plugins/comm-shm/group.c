/* Groups: a part per member, mapped by all members before the call returns. */
#include <unistd.h>

#include "internal.h"

struct layout {
    size_t slot, said, small, in[2], out[2], box, small_box, stage_box, bytes;
    size_t stride, mail_stride;
};

static size_t line_up(size_t n)
{
    return (n + SHM_LINE - 1) / SHM_LINE * SHM_LINE;
}

static size_t page_up(size_t n)
{
    return (n + SHM_PAGE - 1) / SHM_PAGE * SHM_PAGE;
}

/* No power of two: payloads share no set of a cache. */
static size_t stride_of(uint64_t small)
{
    return line_up(small) + SHM_LINE;
}

/* Bytes of an operation that waits for all, with a core each. Between two, one payload is read: up to four times as
 * much costs less than a second wait. */
static int64_t small_met(const struct hd_comm *comm, int32_t n)
{
    return n == 2 ? 4 * comm->settings.small : comm->settings.small;
}

/* Bytes of a broadcast or reduce where ranks share cores: to run ahead saves changes of the process on a core. */
static int64_t small_rooted_crowded(const struct hd_comm *comm)
{
    return 4 * comm->settings.small_rooted;
}

/* With room for payloads of all sizes: which one it is, is known when all members are. Only used ones have pages. */
static struct layout layout_of(const struct hd_comm *comm, int32_t n)
{
    int64_t mail = SHM_MAX(comm->settings.small, comm->settings.small_crowded);
    int64_t most = SHM_MAX(SHM_MAX(mail, small_met(comm, n)), small_rooted_crowded(comm));
    struct layout l = {.stride = stride_of((uint64_t)most), .mail_stride = stride_of((uint64_t)mail)};
    size_t stage = line_up((size_t)comm->settings.stage);
    l.slot = page_up(sizeof(struct shm_part));
    l.said = l.slot + SHM_SLOTS * sizeof(struct shm_slot);
    l.small = line_up(l.said + SHM_SLOTS * sizeof(struct shm_said));
    l.box = page_up(l.small + SHM_SLOTS * l.stride);
    l.small_box = l.box + (size_t)n * sizeof(struct shm_box);
    size_t at = page_up(l.small_box + (size_t)n * SHM_MAIL * l.mail_stride);
    for (int k = 0; k < 2; k++, at += stage)
        l.in[k] = at;
    for (int k = 0; k < 2; k++, at += stage)
        l.out[k] = at;
    l.stage_box = at;
    l.bytes = at + (size_t)n * 2 * stage;
    return l;
}

static uint64_t hash_of(const char *name, const int32_t *ranks, int32_t n)
{
    uint64_t h = UINT64_C(0xcbf29ce484222325);
    for (; *name; name++)
        h = (h ^ (uint8_t)*name) * UINT64_C(0x100000001b3);
    for (int32_t i = 0; i < n; i++)
        for (int b = 0; b < 32; b += 8)
            h = (h ^ ((uint32_t)ranks[i] >> b & 255)) * UINT64_C(0x100000001b3);
    return h;
}

/* How many groups with this hash were created before: a group may be freed and created again. */
static int32_t count_group(struct hd_comm *comm, uint64_t hash, uint32_t *before, struct hd_error *err)
{
    *before = 0;
    for (uint32_t i = 0; i < comm->n_hashes; i++)
        *before += comm->hashes[i] == hash;
    if (comm->n_hashes == comm->hash_room) {
        uint32_t room = comm->hash_room ? comm->hash_room * 2 : 32;
        uint64_t *hashes = comm->host->alloc(room * sizeof *hashes);
        if (!hashes)
            return hd_fail(err, HD_E_NOMEM, "shm: no memory");
        if (comm->n_hashes)
            memcpy(hashes, comm->hashes, comm->n_hashes * sizeof *hashes);
        comm->host->free(comm->hashes);
        comm->hashes = hashes;
        comm->hash_room = room;
    }
    comm->hashes[comm->n_hashes++] = hash;
    return HD_OK;
}

static int32_t check_members(const struct hd_comm *comm, const char *name, const int32_t *ranks, int32_t n, int32_t *me,
                             struct hd_error *err)
{
    *me = -1;
    if (n < 1 || n > SHM_MEMBERS)
        return hd_fail(err, HD_E_INVALID, "shm: group %s of %d ranks (1 to %d allowed)", name, n, SHM_MEMBERS);
    for (int32_t i = 0; i < n; i++) {
        if (ranks[i] < 0 || ranks[i] >= comm->world.size)
            return hd_fail(err, HD_E_INVALID, "shm: group %s names rank %d of a world of %d", name, ranks[i],
                           comm->world.size);
        for (int32_t j = 0; j < i; j++)
            if (ranks[j] == ranks[i])
                return hd_fail(err, HD_E_INVALID, "shm: group %s names rank %d twice", name, ranks[i]);
        if (ranks[i] == comm->world.rank)
            *me = i;
    }
    if (*me < 0)
        return hd_fail(err, HD_E_INVALID, "shm: rank %d asks for group %s, of which it is no member", comm->world.rank,
                       name);
    return HD_OK;
}

static struct shm_group *group_alloc(struct hd_comm *comm, const char *name, const int32_t *ranks, int32_t n)
{
    size_t members = line_up((size_t)n * sizeof(struct shm_member)), pointers = (size_t)n * sizeof(void *);
    uint8_t *memory =
        comm->host->alloc(line_up(sizeof(struct shm_group)) + members + 2 * pointers + (size_t)n * sizeof *ranks);
    if (!memory)
        return NULL;
    struct shm_group *g = (void *)memory;
    g->member = (void *)(memory += line_up(sizeof *g));
    g->src = (void *)(memory += members);
    g->dst = (void *)(memory += pointers);
    g->ranks = memcpy(memory + pointers, ranks, (size_t)n * sizeof *ranks);
    g->comm = comm;
    g->n = n;
    g->tail = &g->head;
    g->error = (struct hd_error)HD_ERROR_INIT;
    snprintf(g->name, sizeof g->name, "%s", name);
    for (int32_t i = 0; i < n; i++)
        g->member[i].segment.fd = -1;
    return g;
}

static void map_member(struct shm_member *m, const struct layout *l)
{
    uint8_t *base = m->segment.base;
    m->part = (void *)base;
    m->slot = (void *)(base + l->slot);
    m->said = (void *)(base + l->said);
    m->small = base + l->small;
    for (int k = 0; k < 2; k++) {
        m->in[k] = base + l->in[k];
        m->out[k] = base + l->out[k];
    }
}

static void map_pairs(struct shm_group *g, const struct layout *l)
{
    size_t stage = line_up((size_t)g->comm->settings.stage);
    uint8_t *mine = g->member[g->me].segment.base;
    for (int32_t i = 0; i < g->n; i++) {
        struct shm_pair *p = &g->member[i].pair;
        uint8_t *theirs = g->member[i].segment.base;
        p->mine = (struct shm_box *)(mine + l->box) + i;
        p->theirs = (struct shm_box *)(theirs + l->box) + g->me;
        p->small_out = mine + l->small_box + (size_t)i * SHM_MAIL * l->mail_stride;
        p->small_in = theirs + l->small_box + (size_t)g->me * SHM_MAIL * l->mail_stride;
        p->stage_out = mine + l->stage_box + (size_t)i * 2 * stage;
        p->stage_in = theirs + l->stage_box + (size_t)g->me * 2 * stage;
        p->out_turn = p->in_turn = 1;
    }
}

/* All have mapped all: nobody's descriptor is needed any more, and whoever leaves early hurts nobody. */
static int32_t await_members(struct shm_group *g, struct hd_error *err)
{
    double now = shm_now(), next_check = 0;
    struct hd_deadline end = hd_deadline_in(g->comm->world.timeout, now);
    atomic_store(&g->member[g->me].part->mapped, 1);
    g->comm->idle = 0;
    for (int32_t i = 0; i < g->n;) {
        struct shm_peer *peer = g->member[i].peer;
        if (atomic_load(&g->member[i].part->mapped)) {
            i++;
            continue;
        }
        g->comm->idle++;
        shm_relax(g->comm);
        now = shm_now();
        if (now < next_check)
            continue;
        next_check = now + 0.005;
        int32_t rank = shm_job_rank(g, i);
        if (err)
            err->peer = rank;
        int gone = shm_peer_gone(peer) || atomic_load(&SHM_CONTROL(peer)->closed);
        if (gone && !atomic_load(&g->member[i].part->mapped))
            return hd_fail(err, HD_E_PEER, "shm: rank %d died while group %s was made", rank, g->name);
        if (atomic_load(&((struct shm_control *)g->comm->control.base)->aborted))
            return hd_fail(err, HD_E_CANCELLED, "shm: aborted while group %s was made", g->name);
        if (hd_deadline_passed(&end, now))
            return hd_fail(err, HD_E_TIMEOUT, "shm: rank %d did not join group %s within %.0f s", rank, g->name,
                           g->comm->world.timeout);
    }
    if (err)
        err->peer = -1;
    return HD_OK;
}

static int32_t map_members(struct shm_group *g, const char *prefix, struct hd_error *err)
{
    struct hd_comm *comm = g->comm;
    struct layout l = layout_of(comm, g->n);
    char key[192];
    int32_t code = shm_segment_create(comm, l.bytes, 0, &g->member[g->me].segment, err);
    if (code != HD_OK)
        return code;
    snprintf(key, sizeof key, "%s/%d", prefix, g->me);
    code = shm_announce(comm, key, &g->member[g->me].segment, err);
    for (int32_t i = 0; i < g->n && code == HD_OK; i++) {
        if (i != g->me) {
            code = shm_map_peer(comm, g->ranks[i], err);
            if (code != HD_OK)
                return code;
            g->member[i].peer = comm->peer[g->ranks[i]];
            snprintf(key, sizeof key, "%s/%d", prefix, i);
            code = shm_attach(comm, key, g->ranks[i], &g->member[i].segment, NULL, err);
        }
        if (code == HD_OK)
            map_member(&g->member[i], &l);
    }
    if (code != HD_OK)
        return code;
    map_pairs(g, &l);
    shm_count_cores(comm);
    int crowded = shm_crowded(g);
    g->small = (uint64_t)(crowded ? comm->settings.small_crowded : comm->settings.small);
    g->small_met = crowded ? g->small : (uint64_t)small_met(comm, g->n);
    g->small_rooted = (uint64_t)(crowded ? small_rooted_crowded(comm) : comm->settings.small_rooted);
    g->stride = stride_of(SHM_MAX(SHM_MAX(g->small, g->small_met), g->small_rooted));
    g->mail_stride = stride_of(g->small); /* close together: fewer pages */
    return await_members(g, err);
}

int32_t shm_group(struct hd_comm *comm, const char *name, const int32_t *ranks, int32_t n, struct hd_comm_group **group,
                  struct hd_error *err)
{
    char prefix[160];
    int32_t me;
    uint32_t before;
    uint64_t hash = hash_of(name, ranks, SHM_MAX(n, 0));
    int32_t code = check_members(comm, name, ranks, n, &me, err);
    if (code != HD_OK || (code = count_group(comm, hash, &before, err)) != HD_OK)
        return code;
    struct shm_group *g = group_alloc(comm, name, ranks, n);
    if (!g)
        return hd_fail(err, HD_E_NOMEM, "shm: no memory");
    g->me = me;
    g->next = comm->groups;
    comm->groups = g;
    snprintf(prefix, sizeof prefix, "%s/group/%016llx.%u", comm->instance, (unsigned long long)hash, before);
    code = map_members(g, prefix, err);
    if (code != HD_OK) {
        shm_group_free((struct hd_comm_group *)g);
        return code;
    }
    close(g->member[me].segment.fd);
    g->member[me].segment.fd = -1;
    *group = (struct hd_comm_group *)g;
    return HD_OK;
}

void shm_group_free(struct hd_comm_group *group)
{
    struct shm_group *g = (struct shm_group *)group;
    if (!g)
        return;
    for (struct shm_group **at = &g->comm->groups; *at; at = &(*at)->next)
        if (*at == g) {
            *at = g->next;
            break;
        }
    shm_ops_orphan(g);
    for (int32_t i = 0; i < g->n; i++)
        shm_segment_free(&g->member[i].segment);
    g->comm->host->free(g);
}
