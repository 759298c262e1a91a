/* runtime/comm/algorithms/select: algorithm and chunk size of a call, by collective, members and bytes.
 *
 * Rules are tried in order, those of a tuning file before the built-in ones; the first that covers the call and whose
 * algorithm supports it is used. All members have the same rules, and so make the same choice. */
#ifndef HD_RUNTIME_COMM_ALGORITHMS_SELECT_H
#define HD_RUNTIME_COMM_ALGORITHMS_SELECT_H

#include "core/base/base.h"
#include "heddle/comm.h"

struct hd__coll_plan;
typedef void hd__coll_build_fn(struct hd__coll_plan *s, const struct hd_comm_call *call, size_t esize);

/* Restrictions of an algorithm. */
enum { HD__NEEDS_POWER_OF_TWO = 1, HD__NEEDS_ANY_ORDER = 2, HD__ROUNDS_HALVES = 4, HD__NO_EXACT_AVERAGE = 8 };

struct hd__algorithm {
    const char *name; /* unique within a collective */
    uint32_t coll, needs;
    hd__coll_build_fn *build;
};

struct hd__tuning_rule {
    uint32_t coll;
    int32_t ranks;  /* at most */
    uint64_t bytes; /* at most; of the larger buffer, as nccl-tests and `heddle bench` count */
    const struct hd__algorithm *use;
    uint64_t chunk; /* bytes; 0: HD__DEFAULT_CHUNK */
};

struct hd__tuning {
    HD__ARRAY(struct hd__tuning_rule) rules; /* before the built-in ones */
    int32_t any_order;                       /* of sums: comm.sums: any */
    uint64_t hash;                           /* of the rules; compared between ranks at start */
};

enum { HD__DEFAULT_CHUNK = 256 << 10 };

/* Enumerates the algorithms; NULL after the last. */
const struct hd__algorithm *hd__comm_algorithm_at(uint32_t i);
const struct hd__algorithm *hd__comm_algorithm_find(uint32_t coll, const char *name);
/* Does it support this call of n members: n, dtype, redop and order? */
int hd__comm_algorithm_supports(const struct hd__algorithm *a, const struct hd_comm_call *call, int32_t n,
                                int any_order);
/* The rule of a tuning file that counts for a call of n members; NULL: none, or tuning is NULL. */
const struct hd__tuning_rule *hd__comm_tuning_find(const struct hd__tuning *tuning, const struct hd_comm_call *call,
                                                   int32_t n);
/* tuning NULL: the built-in rules, tree order. *chunk is never 0. */
const struct hd__algorithm *hd__comm_algorithm_select(const struct hd__tuning *tuning, const struct hd_comm_call *call,
                                                      int32_t n, uint64_t *chunk);
/* Bytes of the larger buffer of a call. */
uint64_t hd__comm_call_bytes(const struct hd_comm_call *call, int32_t n);

#endif
