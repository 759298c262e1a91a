#include "runtime/comm/hierarchical_plan.h"

#include <stdlib.h>

#include "core/base/dtype.h"
#include "runtime/comm/algorithms/select.h"

enum { SMALL = 4096 /* bytes; below, latency dominates */ };

/* ---- layout of a group */

static int32_t members_per_machine(const int32_t *leaders, const int32_t *ranks, int32_t n)
{
    int32_t per_machine = 1;
    while (per_machine < n && leaders[ranks[per_machine]] == leaders[ranks[0]])
        per_machine++;
    for (int32_t i = 0; i < n; i++) {
        int32_t first = leaders[ranks[i]], start = i / per_machine * per_machine;
        if (n % per_machine || first != leaders[ranks[start]])
            return 0;
        for (int32_t k = 0; k < start; k += per_machine)
            if (leaders[ranks[k]] == first)
                return 0;
    }
    return per_machine;
}

struct hd__hier_layout hd__comm_hier_layout(const int32_t *leaders, const int32_t *ranks, int32_t n, int32_t me)
{
    int32_t per_machine = members_per_machine(leaders, ranks, n);
    return (struct hd__hier_layout){
        .n = n, .me = me, .per_machine = per_machine, .machines = per_machine ? n / per_machine : 0};
}

int32_t *hd__comm_hier_local_ranks(const int32_t *leaders, int32_t size)
{
    int32_t *local_ranks = hd__alloc((size_t)size * sizeof *local_ranks),
            *seen = hd__alloc((size_t)size * sizeof *seen);
    for (int32_t r = 0; r < size; r++)
        local_ranks[r] = seen[leaders[r]]++;
    free(seen);
    return local_ranks;
}

int hd__comm_hier_applies(const struct hd__hier_layout *g)
{
    return g->per_machine > 1 && g->machines > 1;
}

uint32_t hd__comm_hier_home(const struct hd__hier_layout *g)
{
    return g->machines == 1 ? HD__HIER_INTRA : HD__HIER_WORLD;
}

/* ---- parts of a call */

static void add_part(struct hd__hier_plan *plan, uint32_t phase, uint32_t where, const struct hd_comm_call *like,
                     uint32_t coll, const void *send, void *recv, uint64_t count)
{
    struct hd__hier_part p = {.call = *like, .phase = phase, .where = where};
    p.call.coll = coll;
    p.call.redop = like->redop == HD_AVG ? (uint32_t)HD_SUM : like->redop;
    p.call.send = send;
    p.call.recv = recv;
    p.call.count = count;
    p.call.root = 0;
    if (count)
        hd__push(&plan->parts, p);
}

/* The remainder of a division by the members of a machine goes in one level, at the same time. */
static void add_tail(struct hd__hier_plan *plan, const struct hd_comm_call *call, uint64_t from, size_t esize)
{
    struct hd__hier_part p = {.call = *call, .phase = 0, .where = HD__HIER_WORLD};
    p.call.send = (const uint8_t *)call->send + from * esize;
    p.call.recv = (uint8_t *)call->recv + from * esize;
    p.call.count = call->count - from;
    if (p.call.count)
        hd__push(&plan->parts, p);
}

static void add_divide(struct hd__hier_plan *plan, uint32_t phase, const struct hd_comm_call *call, void *at,
                       uint64_t count)
{
    if (call->redop == HD_AVG)
        add_part(plan, phase, HD__HIER_DIVIDE, call, call->coll, at, at, count);
}

static void plan_all_reduce(struct hd__hier_plan *plan, const struct hd__hier_layout *g,
                            const struct hd_comm_call *call, size_t esize)
{
    uint64_t piece = call->count / (uint64_t)g->per_machine, whole = piece * (uint64_t)g->per_machine;
    uint8_t *mine = (uint8_t *)call->recv + (uint64_t)(g->me % g->per_machine) * piece * esize;
    add_tail(plan, call, whole, esize);
    add_part(plan, 0, HD__HIER_INTRA, call, HD_COLL_REDUCE_SCATTER, call->send, mine, piece);
    add_part(plan, 1, HD__HIER_INTER, call, HD_COLL_ALL_REDUCE, mine, mine, piece);
    add_divide(plan, 2, call, mine, piece);
    add_part(plan, 3, HD__HIER_INTRA_AFTER, call, HD_COLL_ALL_GATHER, mine, call->recv, piece);
}

static void plan_reduce_scatter(struct hd__hier_plan *plan, const struct hd__hier_layout *g,
                                const struct hd_comm_call *call, size_t esize)
{
    uint64_t bytes = call->count * esize;
    for (int32_t m = 0; m < g->machines; m++)
        add_part(plan, 0, HD__HIER_INTRA, call, HD_COLL_REDUCE_SCATTER,
                 (const uint8_t *)call->send + (uint64_t)(m * g->per_machine) * bytes,
                 plan->scratch + (uint64_t)m * bytes, call->count);
    add_part(plan, 1, HD__HIER_INTER, call, HD_COLL_REDUCE_SCATTER, plan->scratch, call->recv, call->count);
    add_divide(plan, 2, call, call->recv, call->count);
}

static void plan_all_gather(struct hd__hier_plan *plan, const struct hd__hier_layout *g,
                            const struct hd_comm_call *call, size_t esize)
{
    uint64_t bytes = call->count * esize;
    add_part(plan, 0, HD__HIER_INTER, call, HD_COLL_ALL_GATHER, call->send, plan->scratch, call->count);
    for (int32_t m = 0; m < g->machines; m++)
        add_part(plan, 1, HD__HIER_INTRA_AFTER, call, HD_COLL_ALL_GATHER, plan->scratch + (uint64_t)m * bytes,
                 (uint8_t *)call->recv + (uint64_t)(m * g->per_machine) * bytes, call->count);
}

static void plan_broadcast(struct hd__hier_plan *plan, const struct hd__hier_layout *g, const struct hd_comm_call *call,
                           size_t esize)
{
    uint64_t piece = call->count / (uint64_t)g->per_machine;
    uint8_t *mine = (uint8_t *)call->recv + (uint64_t)(g->me % g->per_machine) * piece * esize;
    int home = g->me / g->per_machine == call->root / g->per_machine;
    add_tail(plan, call, piece * (uint64_t)g->per_machine, esize);
    if (home) {
        add_part(plan, 0, HD__HIER_INTRA, call, HD_COLL_BROADCAST, call->send, call->recv,
                 piece * (uint64_t)g->per_machine);
        plan->parts.at[plan->parts.count - 1].call.root = call->root % g->per_machine;
    }
    add_part(plan, 1, HD__HIER_INTER, call, HD_COLL_BROADCAST, mine, mine, piece);
    plan->parts.at[plan->parts.count - 1].call.root = call->root / g->per_machine;
    if (!home)
        add_part(plan, 2, HD__HIER_INTRA_AFTER, call, HD_COLL_ALL_GATHER, mine, call->recv, piece);
}

typedef void plan_fn(struct hd__hier_plan *plan, const struct hd__hier_layout *g, const struct hd_comm_call *call,
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

int hd__comm_hier_supports(const struct hd__hier_layout *g, const struct hd_comm_call *call, int any_order)
{
    int whole = !hd__is_float(call->dtype), narrow = hd__is_narrow(call->dtype);
    int sums = call->coll == HD_COLL_ALL_REDUCE || call->coll == HD_COLL_REDUCE_SCATTER;
    if (!hd__comm_hier_applies(g) || !planner(call->coll) || hd__comm_call_bytes(call, g->n) < SMALL)
        return 0;
    if (sums && whole && call->redop == HD_AVG)
        return 0;
    return !sums || whole || call->redop == HD_MAX || any_order ||
           (!narrow && !(g->per_machine & (g->per_machine - 1)));
}

uint64_t hd__comm_hier_scratch_bytes(const struct hd__hier_layout *g, const struct hd_comm_call *call)
{
    int some = call->coll == HD_COLL_REDUCE_SCATTER || call->coll == HD_COLL_ALL_GATHER;
    return some ? (uint64_t)g->machines * call->count * hd_dtype_size(call->dtype) : 0;
}

void hd__comm_hier_build_plan(struct hd__hier_plan *plan, const struct hd__hier_layout *g,
                              const struct hd_comm_call *call, int two_level)
{
    if (two_level)
        planner(call->coll)(plan, g, call, hd_dtype_size(call->dtype));
    else
        hd__push(&plan->parts, ((struct hd__hier_part){.call = *call, .where = hd__comm_hier_home(g)}));
}
