#include "runtime/comm/hierarchical_plan.h"

#include <stdlib.h>

#include "runtime/comm/algorithms/select.h"

enum { SMALL = 4096 /* bytes; below, rounds cost more than bytes */ };

/* ---- how a group lies */

static int32_t locals_of(const int32_t *firsts, const int32_t *ranks, int32_t n)
{
    int32_t locals = 1;
    while (locals < n && firsts[ranks[locals]] == firsts[ranks[0]])
        locals++;
    for (int32_t i = 0; i < n; i++) {
        int32_t first = firsts[ranks[i]], start = i / locals * locals;
        if (n % locals || first != firsts[ranks[start]])
            return 0;
        for (int32_t k = 0; k < start; k += locals)
            if (firsts[ranks[k]] == first)
                return 0;
    }
    return locals;
}

struct hd__spread hd__levels_spread(const int32_t *firsts, const int32_t *ranks, int32_t n, int32_t me)
{
    int32_t locals = locals_of(firsts, ranks, n);
    return (struct hd__spread){.n = n, .me = me, .locals = locals, .machines = locals ? n / locals : 0};
}

int32_t *hd__levels_places(const int32_t *firsts, int32_t size)
{
    int32_t *places = hd__alloc((size_t)size * sizeof *places), *seen = hd__alloc((size_t)size * sizeof *seen);
    for (int32_t r = 0; r < size; r++)
        places[r] = seen[firsts[r]]++;
    free(seen);
    return places;
}

int hd__levels_two(const struct hd__spread *g)
{
    return g->locals > 1 && g->machines > 1;
}

uint32_t hd__levels_home(const struct hd__spread *g)
{
    return g->machines == 1 ? HD__INSIDE : HD__WORLD;
}

/* ---- a call as parts */

static void add(struct hd__levels_plan *plan, uint32_t phase, uint32_t where, const struct hd_comm_call *like,
                uint32_t coll, const void *send, void *recv, uint64_t count)
{
    struct hd__part p = {.call = *like, .phase = phase, .where = where};
    p.call.coll = coll;
    p.call.redop = like->redop == HD_AVG ? (uint32_t)HD_SUM : like->redop;
    p.call.send = send;
    p.call.recv = recv;
    p.call.count = count;
    p.call.root = 0;
    if (count)
        hd__push(&plan->parts, p);
}

/* What does not divide by the members of a machine goes along in one level. */
static void add_tail(struct hd__levels_plan *plan, const struct hd_comm_call *call, uint64_t from, size_t esize)
{
    struct hd__part p = {.call = *call, .phase = 0, .where = HD__WORLD};
    p.call.send = (const uint8_t *)call->send + from * esize;
    p.call.recv = (uint8_t *)call->recv + from * esize;
    p.call.count = call->count - from;
    if (p.call.count)
        hd__push(&plan->parts, p);
}

static void divide(struct hd__levels_plan *plan, uint32_t phase, const struct hd_comm_call *call, void *at,
                   uint64_t count)
{
    if (call->redop != HD_AVG)
        return;
    add(plan, phase, HD__DIVIDE, call, call->coll, at, at, count);
}

static void plan_all_reduce(struct hd__levels_plan *plan, const struct hd__spread *g, const struct hd_comm_call *call,
                            size_t esize)
{
    uint64_t piece = call->count / (uint64_t)g->locals, whole = piece * (uint64_t)g->locals;
    uint8_t *mine = (uint8_t *)call->recv + (uint64_t)(g->me % g->locals) * piece * esize;
    add_tail(plan, call, whole, esize);
    add(plan, 0, HD__INSIDE, call, HD_COLL_REDUCE_SCATTER, call->send, mine, piece);
    add(plan, 1, HD__ACROSS, call, HD_COLL_ALL_REDUCE, mine, mine, piece);
    divide(plan, 2, call, mine, piece);
    add(plan, 3, HD__BACK, call, HD_COLL_ALL_GATHER, mine, call->recv, piece);
}

static void plan_reduce_scatter(struct hd__levels_plan *plan, const struct hd__spread *g,
                                const struct hd_comm_call *call, size_t esize)
{
    uint64_t bytes = call->count * esize;
    for (int32_t m = 0; m < g->machines; m++)
        add(plan, 0, HD__INSIDE, call, HD_COLL_REDUCE_SCATTER,
            (const uint8_t *)call->send + (uint64_t)(m * g->locals) * bytes, plan->scratch + (uint64_t)m * bytes,
            call->count);
    add(plan, 1, HD__ACROSS, call, HD_COLL_REDUCE_SCATTER, plan->scratch, call->recv, call->count);
    divide(plan, 2, call, call->recv, call->count);
}

static void plan_all_gather(struct hd__levels_plan *plan, const struct hd__spread *g, const struct hd_comm_call *call,
                            size_t esize)
{
    uint64_t bytes = call->count * esize;
    add(plan, 0, HD__ACROSS, call, HD_COLL_ALL_GATHER, call->send, plan->scratch, call->count);
    for (int32_t m = 0; m < g->machines; m++)
        add(plan, 1, HD__BACK, call, HD_COLL_ALL_GATHER, plan->scratch + (uint64_t)m * bytes,
            (uint8_t *)call->recv + (uint64_t)(m * g->locals) * bytes, call->count);
}

static void plan_broadcast(struct hd__levels_plan *plan, const struct hd__spread *g, const struct hd_comm_call *call,
                           size_t esize)
{
    uint64_t piece = call->count / (uint64_t)g->locals;
    uint8_t *mine = (uint8_t *)call->recv + (uint64_t)(g->me % g->locals) * piece * esize;
    int home = g->me / g->locals == call->root / g->locals;
    add_tail(plan, call, piece * (uint64_t)g->locals, esize);
    if (home) {
        add(plan, 0, HD__INSIDE, call, HD_COLL_BROADCAST, call->send, call->recv, piece * (uint64_t)g->locals);
        plan->parts.at[plan->parts.count - 1].call.root = call->root % g->locals;
    }
    add(plan, 1, HD__ACROSS, call, HD_COLL_BROADCAST, mine, mine, piece);
    plan->parts.at[plan->parts.count - 1].call.root = call->root / g->locals;
    if (!home)
        add(plan, 2, HD__BACK, call, HD_COLL_ALL_GATHER, mine, call->recv, piece);
}

typedef void plan_fn(struct hd__levels_plan *plan, const struct hd__spread *g, const struct hd_comm_call *call,
                     size_t esize);

static plan_fn *planner(uint32_t coll)
{
    switch (coll) {
    case HD_COLL_ALL_REDUCE:
        return plan_all_reduce;
    case HD_COLL_REDUCE_SCATTER:
        return plan_reduce_scatter;
    case HD_COLL_ALL_GATHER:
        return plan_all_gather;
    case HD_COLL_BROADCAST:
        return plan_broadcast;
    default:
        return NULL;
    }
}

int hd__levels_can(const struct hd__spread *g, const struct hd_comm_call *call, int any_order)
{
    int whole = call->dtype == HD_I32 || call->dtype == HD_U8, half = call->dtype == HD_BF16 || call->dtype == HD_F16;
    int sums = call->coll == HD_COLL_ALL_REDUCE || call->coll == HD_COLL_REDUCE_SCATTER;
    if (!hd__levels_two(g) || !planner(call->coll) || hd__call_bytes(call, g->n) < SMALL)
        return 0;
    if (sums && whole && call->redop == HD_AVG)
        return 0;
    return !sums || whole || call->redop == HD_MAX || any_order || (!half && !(g->locals & (g->locals - 1)));
}

uint64_t hd__levels_scratch(const struct hd__spread *g, const struct hd_comm_call *call)
{
    int some = call->coll == HD_COLL_REDUCE_SCATTER || call->coll == HD_COLL_ALL_GATHER;
    return some ? (uint64_t)g->machines * call->count * hd_dtype_size(call->dtype) : 0;
}

void hd__levels_plan(struct hd__levels_plan *plan, const struct hd__spread *g, const struct hd_comm_call *call, int two)
{
    if (two)
        planner(call->coll)(plan, g, call, hd_dtype_size(call->dtype));
    else
        hd__push(&plan->parts, ((struct hd__part){.call = *call, .where = hd__levels_home(g)}));
}
