#include "core/comm/group.h"

#include <stdlib.h>

#include "core/base/base.h"

static const char *const axis_names[HD_AXIS_COUNT] = {
#define AXIS_NAME(constant, value, name) [value] = name,
    HD_AXES(AXIS_NAME)
#undef AXIS_NAME
};

int32_t hd__mesh_ranks(const struct hd__mesh *mesh)
{
    int32_t n = 1;
    for (int a = 0; a < HD_AXIS_COUNT; a++)
        n *= mesh->sizes[a];
    return n;
}

void hd__mesh_place(const struct hd__mesh *mesh, int32_t rank, int32_t place[HD_AXIS_COUNT])
{
    for (int a = HD_AXIS_COUNT - 1; a >= 0; a--) {
        place[a] = rank % mesh->sizes[a];
        rank /= mesh->sizes[a];
    }
}

int32_t hd__mesh_rank(const struct hd__mesh *mesh, const int32_t place[HD_AXIS_COUNT])
{
    int32_t rank = 0;
    for (int a = 0; a < HD_AXIS_COUNT; a++)
        rank = rank * mesh->sizes[a] + place[a];
    return rank;
}

int32_t hd__mesh_group_size(const struct hd__mesh *mesh, uint32_t axes)
{
    int32_t n = 1;
    for (int a = 0; a < HD_AXIS_COUNT; a++)
        n *= axes & HD_AXIS_BIT(a) ? mesh->sizes[a] : 1;
    return n;
}

int32_t hd__mesh_group(const struct hd__mesh *mesh, uint32_t axes, int32_t rank, int32_t *ranks, int32_t *me)
{
    int32_t n = hd__mesh_group_size(mesh, axes), place[HD_AXIS_COUNT];
    hd__mesh_place(mesh, rank, place);
    for (int32_t i = 0; i < n; i++) {
        int32_t rest = i;
        for (int a = HD_AXIS_COUNT - 1; a >= 0; a--)
            if (axes & HD_AXIS_BIT(a)) {
                place[a] = rest % mesh->sizes[a];
                rest /= mesh->sizes[a];
            }
        ranks[i] = hd__mesh_rank(mesh, place);
        if (ranks[i] == rank)
            *me = i;
    }
    return n;
}

/* Only the axes that are larger than 1. */
static uint32_t real_axes(const struct hd__mesh *mesh, uint32_t axes)
{
    for (int a = 0; a < HD_AXIS_COUNT; a++)
        if (mesh->sizes[a] == 1)
            axes &= ~HD_AXIS_BIT(a);
    return axes & ((UINT32_C(1) << HD_AXIS_COUNT) - 1);
}

void hd__mesh_axes_text(const struct hd__mesh *mesh, uint32_t axes, char *out, size_t room)
{
    size_t n = 0;
    axes = real_axes(mesh, axes);
    if (!axes || axes == real_axes(mesh, UINT32_MAX)) {
        snprintf(out, room, "%s", axes ? "world" : "self");
        return;
    }
    for (int a = 0; a < HD_AXIS_COUNT && n < room; a++)
        if (axes & HD_AXIS_BIT(a))
            n += (size_t)snprintf(out + n, room - n, "%s%s", n ? "+" : "", axis_names[a]);
}

struct hd__groups {
    const struct hd_comm_ops *ops;
    struct hd_comm *comm;
    struct hd__mesh mesh;
    int32_t rank;
    struct hd__arena arena;
    HD__ARRAY(struct hd__group *) at;
};

struct hd__groups *hd__groups_create(const struct hd_comm_ops *ops, struct hd_comm *comm, const struct hd__mesh *mesh,
                                     int32_t rank)
{
    struct hd__groups *groups = hd__alloc(sizeof *groups);
    groups->ops = ops;
    groups->comm = comm;
    groups->mesh = *mesh;
    groups->rank = rank;
    return groups;
}

int32_t hd__groups_get(struct hd__groups *groups, uint32_t axes, const struct hd__group **group, struct hd_error *err)
{
    char name[128];
    axes = real_axes(&groups->mesh, axes);
    for (uint32_t i = 0; i < groups->at.count; i++)
        if (groups->at.at[i]->axes == axes) {
            *group = groups->at.at[i];
            return HD_OK;
        }
    struct hd__group *g = hd__arena_alloc(&groups->arena, sizeof *g);
    int32_t *ranks = hd__arena_alloc(&groups->arena, (size_t)hd__mesh_group_size(&groups->mesh, axes) * sizeof *ranks);
    hd__mesh_axes_text(&groups->mesh, axes, name, sizeof name);
    g->axes = axes;
    g->n = hd__mesh_group(&groups->mesh, axes, groups->rank, ranks, &g->me);
    g->ranks = ranks;
    g->name = hd__arena_strdup(&groups->arena, name);
    if (g->n > 1) {
        int32_t code = groups->ops->group(groups->comm, g->name, ranks, g->n, &g->group, err);
        if (code != HD_OK)
            return code;
    }
    hd__push(&groups->at, g);
    *group = g;
    return HD_OK;
}

void hd__groups_destroy(struct hd__groups *groups)
{
    if (!groups)
        return;
    for (uint32_t i = 0; i < groups->at.count; i++)
        if (groups->at.at[i]->group && groups->ops->group_free)
            groups->ops->group_free(groups->at.at[i]->group);
    hd__free_array(&groups->at);
    hd__arena_free(&groups->arena);
    free(groups);
}
