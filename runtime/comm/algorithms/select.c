#include "runtime/comm/algorithms/select.h"

#include "core/base/dtype.h"
#include "runtime/comm/algorithms/plan.h"

/* X(operation, name, needs, builder) */
#define ALGORITHMS(X)                                                                                          \
    X(HD_COLL_ALL_REDUCE, "gather", 0, hd__comm_build_gather_sum)                                              \
    X(HD_COLL_ALL_REDUCE, "doubling", HD__NO_EXACT_AVERAGE, hd__comm_build_doubling)                           \
    X(HD_COLL_ALL_REDUCE, "halving", HD__NO_EXACT_AVERAGE | HD__NEEDS_POWER_OF_TWO | HD__ROUNDS_HALVES,        \
      hd__comm_build_halving)                                                                                  \
    X(HD_COLL_ALL_REDUCE, "slices", 0, hd__comm_build_slices_sum)                                              \
    X(HD_COLL_ALL_REDUCE, "tree", HD__NO_EXACT_AVERAGE, hd__comm_build_tree)                                   \
    X(HD_COLL_ALL_REDUCE, "ring", HD__NO_EXACT_AVERAGE | HD__NEEDS_ANY_ORDER, hd__comm_build_ring)             \
    X(HD_COLL_ALL_GATHER, "bruck", 0, hd__comm_build_bruck_gather)                                             \
    X(HD_COLL_ALL_GATHER, "doubling", HD__NEEDS_POWER_OF_TWO, hd__comm_build_doubling_gather)                  \
    X(HD_COLL_ALL_GATHER, "ring", 0, hd__comm_build_ring_gather)                                               \
    X(HD_COLL_REDUCE_SCATTER, "pairwise", 0, hd__comm_build_reduce_scatter)                                    \
    X(HD_COLL_REDUCE_SCATTER, "ring", HD__NO_EXACT_AVERAGE | HD__NEEDS_ANY_ORDER, hd__comm_build_ring_scatter) \
    X(HD_COLL_ALL_TO_ALL, "pairwise", 0, hd__comm_build_all_to_all)                                            \
    X(HD_COLL_BROADCAST, "binomial", 0, hd__comm_build_broadcast)                                              \
    X(HD_COLL_BROADCAST, "chain", 0, hd__comm_build_chain)                                                     \
    X(HD_COLL_REDUCE, "tree", HD__NO_EXACT_AVERAGE, hd__comm_build_tree_reduce)                                \
    X(HD_COLL_REDUCE, "slices", 0, hd__comm_build_reduce)                                                      \
    X(HD_COLL_BARRIER, "dissemination", 0, hd__comm_build_barrier)

static const struct hd__algorithm algorithms[] = {
#define ALGORITHM(coll, name, needs, build) {name, coll, needs, build},
    ALGORITHMS(ALGORITHM)
#undef ALGORITHM
};

static const struct {
    uint32_t coll;
    int32_t ranks;
    uint64_t bytes;
    const char *use;
} built_in[] = {
    {HD_COLL_ALL_REDUCE, 2, 16 << 10, "gather"},
    {HD_COLL_ALL_REDUCE, INT32_MAX, 32 << 10, "doubling"},
    {HD_COLL_ALL_REDUCE, INT32_MAX, 16 << 10, "gather"}, /* integer averages, which doubling does not support */
    {HD_COLL_ALL_REDUCE, INT32_MAX, 512 << 10, "halving"},
    {HD_COLL_ALL_GATHER, INT32_MAX, 64 << 10, "bruck"},
    {HD_COLL_ALL_GATHER, INT32_MAX, 512 << 10, "doubling"},
    {HD_COLL_BROADCAST, 2, UINT64_MAX, "binomial"},
    {HD_COLL_BROADCAST, INT32_MAX, 256 << 10, "binomial"},
    {HD_COLL_BROADCAST, INT32_MAX, UINT64_MAX, "chain"},
    {HD_COLL_REDUCE, INT32_MAX, 64 << 10, "tree"},
    {HD_COLL_ALL_REDUCE, INT32_MAX, UINT64_MAX, "slices"}, /* the rest: supports every call */
    {HD_COLL_ALL_GATHER, INT32_MAX, UINT64_MAX, "ring"},
    {HD_COLL_REDUCE_SCATTER, INT32_MAX, UINT64_MAX, "pairwise"},
    {HD_COLL_ALL_TO_ALL, INT32_MAX, UINT64_MAX, "pairwise"},
    {HD_COLL_REDUCE, INT32_MAX, UINT64_MAX, "slices"},
    {HD_COLL_BARRIER, INT32_MAX, UINT64_MAX, "dissemination"}};

const struct hd__algorithm *hd__comm_algorithm_at(uint32_t i)
{
    return i < HD__COUNT(algorithms) ? &algorithms[i] : NULL;
}

const struct hd__algorithm *hd__comm_algorithm_find(uint32_t coll, const char *name)
{
    for (size_t i = 0; i < HD__COUNT(algorithms); i++)
        if (algorithms[i].coll == coll && strcmp(algorithms[i].name, name) == 0)
            return &algorithms[i];
    return NULL;
}

int hd__comm_algorithm_supports(const struct hd__algorithm *a, const struct hd_comm_call *call, int32_t n,
                                int any_order)
{
    int whole = !hd__is_float(call->dtype), narrow = hd__is_narrow(call->dtype);
    int rounds = !whole && call->redop != HD_MAX && !any_order; /* then the order matters */
    if ((a->needs & HD__NEEDS_POWER_OF_TWO) && (n & (n - 1)))
        return 0;
    if ((a->needs & HD__NO_EXACT_AVERAGE) && whole && call->redop == HD_AVG)
        return 0;
    return !((a->needs & HD__NEEDS_ANY_ORDER) && rounds) && !((a->needs & HD__ROUNDS_HALVES) && rounds && narrow);
}

uint64_t hd__comm_call_bytes(const struct hd_comm_call *call, int32_t n)
{
    int parts =
        call->coll == HD_COLL_ALL_GATHER || call->coll == HD_COLL_REDUCE_SCATTER || call->coll == HD_COLL_ALL_TO_ALL;
    return call->coll == HD_COLL_BARRIER ? 0 : call->count * hd_dtype_size(call->dtype) * (parts ? (uint64_t)n : 1);
}

const struct hd__tuning_rule *hd__comm_tuning_find(const struct hd__tuning *tuning, const struct hd_comm_call *call,
                                                   int32_t n)
{
    for (uint32_t i = 0; tuning && i < tuning->rules.count; i++) {
        const struct hd__tuning_rule *r = &tuning->rules.at[i];
        if (r->coll == call->coll && n <= r->ranks && hd__comm_call_bytes(call, n) <= r->bytes &&
            hd__comm_algorithm_supports(r->use, call, n, tuning->any_order))
            return r;
    }
    return NULL;
}

const struct hd__algorithm *hd__comm_algorithm_select(const struct hd__tuning *tuning, const struct hd_comm_call *call,
                                                      int32_t n, uint64_t *chunk)
{
    const struct hd__tuning_rule *rule = hd__comm_tuning_find(tuning, call, n);
    uint64_t bytes = hd__comm_call_bytes(call, n);
    int any_order = tuning && tuning->any_order;
    *chunk = rule && rule->chunk ? rule->chunk : HD__DEFAULT_CHUNK;
    if (rule)
        return rule->use;
    for (size_t i = 0; i < HD__COUNT(built_in); i++) {
        if (built_in[i].coll != call->coll || n > built_in[i].ranks || bytes > built_in[i].bytes)
            continue;
        const struct hd__algorithm *a = hd__comm_algorithm_find(call->coll, built_in[i].use);
        if (hd__comm_algorithm_supports(a, call, n, any_order))
            return a;
    }
    return NULL; /* unknown collective */
}
