/* runtime/comm/group: the groups of one transport, created when first asked for and kept.
 *
 * Which ranks make a group of mesh axes is the program's knowledge (hd__mesh_group); here a group is its name and its
 * list of ranks, in member order. All members ask for their groups in the same order, since creation is collective. */
#ifndef HD_RUNTIME_COMM_GROUP_H
#define HD_RUNTIME_COMM_GROUP_H

#include "heddle/comm.h"
#include "heddle/types.h"

struct hd__groups;

struct hd__group {
    struct hd_comm_group *group; /* NULL when n is 1: nothing to do there */
    const char *name;
    const int32_t *ranks;
    int32_t n, me;
};

/* Groups of an open transport, which outlives them; `rank`: ours in the world. Caller owns. */
struct hd__groups *hd__comm_groups_create(const struct hd_comm_ops *ops, struct hd_comm *comm, int32_t rank);
/* The same name and ranks, the same group. Lives until hd__comm_groups_destroy. */
int32_t hd__comm_groups_get(struct hd__groups *groups, const char *name, const int32_t *ranks, int32_t n,
                            const struct hd__group **group, struct hd_error *err);
void hd__comm_groups_destroy(struct hd__groups *groups); /* before the transport is closed; NULL is fine */

#endif
