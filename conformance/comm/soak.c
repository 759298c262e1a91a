/* All ranks draw the same plan. It goes by blocks: a rank starts its operations of a block, in an order of its own
 * that keeps what the contract keeps (collectives of a group; messages of a sender, receiver and stream), and then
 * finishes those of the block before, again in an order of its own. So two blocks are in flight, and nobody waits
 * for an operation that another rank starts only later. */
#include "conformance/comm/soak.h"

#include <stdlib.h>

#include "conformance/comm/jobs.h"

enum { BLOCK = 12, SETS = 16, RANKS = 16, ROOM = 256 << 10, RENEW = 32, STREAMS = 3 };

uint64_t soak_operations = 1000, soak_seed = 1;

struct set {
    int32_t ranks[RANKS], n, me;
    struct hd_comm_group *group; /* NULL: no member */
};

struct planned {
    uint64_t number;
    uint32_t set;
    int32_t from, to; /* a message's members; from < 0: a collective */
    uint32_t stream, began;
    struct job job; /* of a message: seed and count, in bytes */
};

struct soak {
    struct rank *rank;
    uint64_t plan, own; /* states: the same on all ranks; this rank's */
    struct set sets[SETS];
    uint32_t n_sets;
    uint8_t *memory[2]; /* plain, the transport's: for each slot of two blocks a send and a receive buffer */
    struct planned blocks[2][BLOCK];
};

/* ---- groups */

static void add_set(struct soak *s, int32_t first, int32_t step, int32_t n)
{
    struct set *set = &s->sets[s->n_sets];
    if (n < 1 || s->n_sets == SETS)
        return;
    *set = (struct set){.n = n, .me = -1};
    for (int32_t i = 0; i < n; i++) {
        set->ranks[i] = (first + i * step + s->rank->size) % s->rank->size;
        set->me = set->ranks[i] == s->rank->rank ? i : set->me;
    }
    s->n_sets++;
}

/* Creating is collective, and all create in the order of the sets. */
static int open_set(struct soak *s, uint32_t k)
{
    struct rank *rank = s->rank;
    struct set *set = &s->sets[k];
    struct hd_error err = HD_ERROR_INIT;
    char name[16];
    snprintf(name, sizeof name, "set-%u", k);
    if (set->me >= 0)
        EXPECT(rank->ops->group(rank->comm, name, set->ranks, set->n, &set->group, &err) == HD_OK, "%s", err.message);
    return 0;
}

static int open_sets(struct soak *s)
{
    int32_t n = s->rank->size;
    add_set(s, 0, 1, n);
    add_set(s, n - 1, -1, n);
    add_set(s, 0, 2, (n + 1) / 2);
    add_set(s, 1, 2, n / 2);
    add_set(s, 1, 1, n - 1);
    add_set(s, n - 2, -1, n - 1);
    for (int32_t r = 0; r + 1 < n; r += 2)
        add_set(s, r, 1, 2);
    for (int32_t r = 1; r + 1 < n; r += 2)
        add_set(s, r + 1, -1, 2);
    for (uint32_t k = 0; k < s->n_sets; k++)
        if (open_set(s, k))
            return 1;
    return 0;
}

/* ---- the plan */

/* Elements of one part; mostly few. */
static uint64_t draw_count(uint64_t *state, uint64_t most)
{
    uint64_t bits = value_below(state, 10), count = value_draw(state);
    if (bits == 0)
        return count % 3;
    return bits < 6   ? count % HD__MIN(most, UINT64_C(200))
           : bits < 9 ? count % HD__MIN(most, UINT64_C(5000))
                      : count % most;
}

static struct planned draw_operation(struct soak *s, uint64_t number)
{
    uint64_t *p = &s->plan;
    struct planned o = {.number = number, .set = (uint32_t)value_below(p, s->n_sets), .from = -1};
    const struct set *set = &s->sets[o.set];
    int32_t n = set->n;
    o.job = (struct job){.n = n, .me = set->me, .coll = 1 + (uint32_t)value_below(p, 9), .seed = number + 1};
    if (o.job.coll > HD_COLL_BARRIER && n > 1) {
        o.from = (int32_t)value_below(p, (uint64_t)n);
        o.to = (int32_t)((uint64_t)o.from + 1 + value_below(p, (uint64_t)n - 1)) % n;
        o.stream = (uint32_t)value_below(p, STREAMS);
        o.job.count = draw_count(p, ROOM - 2 * GUARD);
        return o;
    }
    o.job.coll = HD__MIN(o.job.coll, (uint32_t)HD_COLL_BARRIER);
    o.job.dtype = all_dtypes[value_below(p, HD__COUNT(all_dtypes))];
    o.job.redop = HD_SUM + (uint32_t)value_below(p, 3);
    o.job.root = (int32_t)value_below(p, (uint64_t)n);
    o.job.count = draw_count(p, (ROOM - 4 * GUARD) / hd_dtype_size(o.job.dtype) / (uint64_t)n);
    o.job.in_place = value_below(p, 2) && o.job.coll != HD_COLL_ALL_TO_ALL;
    return o;
}

static int mine(const struct soak *s, const struct planned *o)
{
    int32_t me = s->sets[o->set].me;
    return me >= 0 && (o->from < 0 || me == o->from || me == o->to);
}

/* Must keep their order on this rank. */
static int ordered(const struct planned *a, const struct planned *b)
{
    if (a->set != b->set || (a->from < 0) != (b->from < 0))
        return 0;
    return a->from < 0 || (a->from == b->from && a->to == b->to && a->stream == b->stream);
}

/* ---- running */

static int start(struct soak *s, struct planned *o, int slot)
{
    struct rank *rank = s->rank;
    struct set *set = &s->sets[o->set];
    struct hd_error err = HD_ERROR_INIT;
    uint8_t *at = s->memory[value_below(&s->own, 2)] + (size_t)slot * 2 * ROOM;
    size_t skew = value_below(&s->own, 2) ? 0 : 8 * value_below(&s->own, 8);
    o->began = 1;
    if (o->from >= 0) {
        int sends = set->me == o->from;
        struct job *j = &o->job;
        j->recv = at + GUARD;
        if (sends)
            values_fill(at, HD_U8, j->seed, o->from, 0, j->count);
        else
            memset(at, 0xa5, j->count + 2 * GUARD);
        int32_t code = sends ? rank->ops->send(set->group, o->to, o->stream, at, j->count, &j->request, &err)
                             : rank->ops->recv(set->group, o->from, o->stream, j->recv, j->count, &j->request, &err);
        EXPECT(code == HD_OK, "operation %llu: %s", (unsigned long long)o->number, err.message);
        return 0;
    }
    if (o->job.coll != HD_COLL_BARRIER)
        return job_start(rank, set->group, &o->job, at + skew, at + ROOM + skew);
    struct hd_comm_call call = {.struct_size = sizeof call, .coll = HD_COLL_BARRIER, .tag = o->job.seed};
    EXPECT(rank->ops->collective(set->group, &call, &o->job.request, &err) == HD_OK, "%s", err.message);
    return 0;
}

static int check(struct soak *s, const struct planned *o)
{
    struct rank *rank = s->rank;
    if (o->from < 0)
        return o->job.coll == HD_COLL_BARRIER ? 0 : job_check(rank, &o->job);
    if (s->sets[o->set].me == o->from)
        return 0;
    uint64_t count = o->job.count, at = values_differ(o->job.recv, HD_U8, o->job.seed, o->from, 0, count);
    EXPECT(at == count, "message of %llu bytes: byte %llu", (unsigned long long)count, (unsigned long long)at);
    for (int i = 0; i < GUARD; i++)
        EXPECT(o->job.recv[-1 - i] == 0xa5 && o->job.recv[count + (uint64_t)i] == 0xa5,
               "message of %llu bytes: wrote outside its buffer", (unsigned long long)count);
    return 0;
}

static int start_block(struct soak *s, struct planned *block, int first_slot)
{
    for (int left = BLOCK; left > 0; left--) {
        int pick = (int)value_below(&s->own, (uint64_t)left), at = 0;
        while (block[at].began || pick-- > 0)
            at++;
        for (int k = 0; k < at; k++) /* the first of those that must keep their order */
            if (!block[k].began && ordered(&block[k], &block[at]))
                at = k;
        block[at].began = 1;
        if (mine(s, &block[at]) && start(s, &block[at], first_slot + at))
            return 1;
    }
    return 0;
}

static int finish_block(struct soak *s, struct planned *block)
{
    struct rank *rank = s->rank;
    int first = (int)value_below(&s->own, BLOCK), tests = value_below(&s->own, 2) == 0;
    for (int k = 0; k < BLOCK; k++) {
        struct planned *o = &block[(first + k) % BLOCK];
        struct hd_error err = HD_ERROR_INIT;
        int32_t done = 0, code = HD_OK;
        if (!o->began || !mine(s, o))
            continue;
        if (tests)
            code = attempt(rank, o->job.request, &done, &err);
        if (code == HD_OK && !done)
            code = finish(rank, o->job.request, &err);
        EXPECT(code == HD_OK, "operation %llu of seed %llu: %s", (unsigned long long)o->number,
               (unsigned long long)soak_seed, err.message);
        if (check(s, o)) {
            fprintf(stderr, "rank %d: operation %llu of seed %llu\n", rank->rank, (unsigned long long)o->number,
                    (unsigned long long)soak_seed);
            return 1;
        }
    }
    memset(block, 0, BLOCK * sizeof *block);
    return 0;
}

/* Everything is done: a group goes and comes again, with the same name. */
static int renew(struct soak *s)
{
    uint32_t k = (uint32_t)value_below(&s->plan, s->n_sets);
    if (s->sets[k].group)
        s->rank->ops->group_free(s->sets[k].group);
    s->sets[k].group = NULL;
    return open_set(s, k);
}

static int open_memory(struct soak *s)
{
    struct rank *rank = s->rank;
    struct hd_error err = HD_ERROR_INIT;
    size_t bytes = (size_t)2 * BLOCK * 2 * ROOM;
    void *base = NULL;
    s->memory[0] = s->memory[1] = rank_memory(rank, bytes);
    EXPECT(s->memory[0], "memory");
    if (!rank->ops->memory)
        return 0;
    EXPECT(rank->ops->memory(rank->comm, bytes, &base, &err) == HD_OK, "%s", err.message);
    s->memory[1] = base;
    return 0;
}

int soak(struct rank *rank)
{
    struct soak *s = hd__alloc(sizeof *s);
    s->rank = rank;
    s->plan = soak_seed;
    s->own = soak_seed ^ (uint64_t)(rank->rank + 1) << 32;
    EXPECT(rank->size <= RANKS, "at most %d ranks", RANKS);
    if (open_memory(s) || open_sets(s))
        return 1;
    uint64_t number = 0;
    for (uint64_t b = 0; number < soak_operations; b++) {
        struct planned *block = s->blocks[b & 1];
        for (int k = 0; k < BLOCK; k++)
            block[k] = draw_operation(s, number++);
        if (start_block(s, block, (int)(b & 1) * BLOCK) || finish_block(s, s->blocks[~b & 1]))
            return 1;
        if (b % RENEW == RENEW - 1 && (finish_block(s, block) || renew(s)))
            return 1;
    }
    for (int k = 0; k < 2; k++)
        if (finish_block(s, s->blocks[k]))
            return 1;
    free(s);
    return 0;
}
