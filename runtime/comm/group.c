#include "runtime/comm/group.h"

#include <stdlib.h>

#include "core/base/base.h"
#include "runtime/comm/open.h"

struct hd__groups {
    const struct hd_comm_ops *ops;
    struct hd_comm *comm;
    int32_t rank;
    struct hd__arena arena;
    HD__ARRAY(struct hd__group *) at;
};

struct hd__groups *hd__comm_groups_create(const struct hd_comm_ops *ops, struct hd_comm *comm, int32_t rank)
{
    struct hd__groups *groups = hd__alloc(sizeof *groups);
    groups->ops = ops;
    groups->comm = comm;
    groups->rank = rank;
    return groups;
}

int32_t hd__comm_groups_get(struct hd__groups *groups, const char *name, const int32_t *ranks, int32_t n,
                            const struct hd__group **group, struct hd_error *err)
{
    struct hd__group *g;
    for (uint32_t i = 0; i < groups->at.count; i++) {
        g = groups->at.at[i];
        if (g->n == n && strcmp(g->name, name) == 0 && memcmp(g->ranks, ranks, (size_t)n * sizeof *ranks) == 0) {
            *group = g;
            return HD_OK;
        }
    }
    g = hd__arena_alloc(&groups->arena, sizeof *g);
    g->name = hd__arena_strdup(&groups->arena, name);
    g->ranks = hd__arena_copy(&groups->arena, ranks, (size_t)n * sizeof *ranks);
    g->n = n;
    g->me = -1;
    for (int32_t i = 0; i < n; i++)
        if (ranks[i] == groups->rank)
            g->me = i;
    if (g->me < 0)
        return hd_fail(err, HD_E_INTERNAL, "rank %d asks for group %s, of which it is not a member", groups->rank,
                       name);
    if (n > 1) {
        int32_t code = groups->ops->group(groups->comm, g->name, g->ranks, n, &g->group, err);
        code = hd__comm_result(code, "group", g->group, err);
        if (code != HD_OK)
            return code;
    }
    hd__push(&groups->at, g);
    *group = g;
    return HD_OK;
}

void hd__comm_groups_destroy(struct hd__groups *groups)
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
