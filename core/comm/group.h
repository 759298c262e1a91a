/* core/comm/group: from mesh axes to the ranks of a group, and one transport group per set of axes.
 *
 * A rank's place in the mesh is row-major: pp outermost, tq innermost (the order of HD_AXES). The group of a mask of
 * axes at a rank is all ranks that differ from it in those axes only, in rank order: the order of group members. */
#ifndef HD_CORE_COMM_GROUP_H
#define HD_CORE_COMM_GROUP_H

#include "heddle/comm.h"
#include "heddle/types.h"

struct hd__mesh {
    int32_t sizes[HD_AXIS_COUNT]; /* each 1 or more */
};

int32_t hd__mesh_ranks(const struct hd__mesh *mesh);
void hd__mesh_place(const struct hd__mesh *mesh, int32_t rank, int32_t place[HD_AXIS_COUNT]);
int32_t hd__mesh_rank(const struct hd__mesh *mesh, const int32_t place[HD_AXIS_COUNT]);
/* Members of the group, and in *me this rank's index among them. */
int32_t hd__mesh_group_size(const struct hd__mesh *mesh, uint32_t axes);
int32_t hd__mesh_group(const struct hd__mesh *mesh, uint32_t axes, int32_t rank, int32_t *ranks, int32_t *me);
/* "dp_shard+tp"; "world" when the axes larger than 1 are all of the mesh's; "self" when none is larger than 1. */
void hd__mesh_axes_text(const struct hd__mesh *mesh, uint32_t axes, char *out, size_t room);

/* Groups of one transport, created when first asked for. All ranks ask in the same order. */
struct hd__groups;
struct hd__group {
    struct hd_comm_group *group; /* NULL when n is 1: nothing to do there */
    const int32_t *ranks;
    int32_t n, me;
    uint32_t axes;
    uint32_t reserved;
    const char *name;
};

struct hd__groups *hd__groups_create(const struct hd_comm_ops *ops, struct hd_comm *comm, const struct hd__mesh *mesh,
                                     int32_t rank);
/* Same axes, same group (axes of size 1 do not count). Lives until hd__groups_destroy. */
int32_t hd__groups_get(struct hd__groups *groups, uint32_t axes, const struct hd__group **group, struct hd_error *err);
void hd__groups_destroy(struct hd__groups *groups); /* before the transport is closed; NULL is fine */

#endif
