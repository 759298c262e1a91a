/* runtime/comm/group: cache of the groups of one transport, created on first use.
 *
 * A group is its name and its ranks in member order; hd__mesh_group derives them from mesh axes. Creation is
 * collective: all members ask for their groups in the same order. */
#ifndef HD_RUNTIME_COMM_GROUP_H
#define HD_RUNTIME_COMM_GROUP_H

#include "heddle/comm.h"
#include "heddle/types.h"

struct hd__groups;

struct hd__group {
    struct hd_comm_group *group; /* NULL when n is 1 */
    const char *name;
    const int32_t *ranks;
    int32_t n, me;
};

/* The transport is open and outlives them; `rank`: this rank in its world. Caller owns. */
struct hd__groups *hd__comm_groups_create(const struct hd_comm_ops *ops, struct hd_comm *comm, int32_t rank);
/* Same name and ranks: same group. Lives until hd__comm_groups_destroy. */
int32_t hd__comm_groups_get(struct hd__groups *groups, const char *name, const int32_t *ranks, int32_t n,
                            const struct hd__group **group, struct hd_error *err);
void hd__comm_groups_destroy(struct hd__groups *groups); /* before the transport is closed; NULL is fine */

#endif
