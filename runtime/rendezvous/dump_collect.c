#include "runtime/rendezvous/dump_collect.h"

#include <stdlib.h>

#include "core/base/base.h"

void hd__server_dump_init(struct hd__dump_collect *g, int32_t size)
{
    *g = (struct hd__dump_collect){.size = size};
    g->dump = hd__alloc((size_t)size * sizeof *g->dump);
    g->answered = hd__alloc((size_t)size);
}

void hd__server_dump_finish(struct hd__dump_collect *g)
{
    for (int32_t r = 0; r < g->size; r++)
        free(g->dump[r]);
    free(g->dump);
    free(g->answered);
    *g = (struct hd__dump_collect){0};
}

/* Many ranks wait for the same one, and each asks: one snapshot serves all, and the next needs a wait half as long
 * again. */
int hd__server_dump_begin(struct hd__dump_collect *g, int32_t what, double waited, double now)
{
    if (what == HD__DUMP_SNAPSHOT && (g->active || now < g->next_snapshot))
        return 0;
    for (int32_t r = 0; r < g->size; r++) /* a rank that failed has sent its final dump already */
        g->answered[r] = what == HD__DUMP_FINAL && g->answered[r] == HD__DUMP_FINAL ? HD__DUMP_FINAL : 0;
    g->active = what;
    g->waited = waited;
    g->deadline = now + HD__DUMP_SECONDS;
    g->next_snapshot = now + waited / 2;
    return 1;
}

void hd__server_dump_put(struct hd__dump_collect *g, int32_t rank, int32_t what, const void *text, size_t bytes)
{
    free(g->dump[rank]);
    g->dump[rank] = hd__alloc(bytes + 1);
    if (bytes)
        memcpy(g->dump[rank], text, bytes);
    g->answered[rank] = (uint8_t)what;
}

int hd__server_dump_complete(const struct hd__dump_collect *g, const uint8_t *state, double now)
{
    for (int32_t r = 0; r < g->size; r++)
        if (state[r] == HD__RANK_CONNECTED && g->answered[r] < g->active && now < g->deadline)
            return 0;
    return 1;
}

void hd__server_dump_take(struct hd__dump_collect *g, const uint8_t *state, struct hd__arena *arena,
                          struct hd__rank_dumps *out)
{
    out->size = g->size;
    out->waited = g->waited;
    out->state = hd__arena_copy(arena, state, (size_t)g->size);
    out->dump = hd__arena_alloc(arena, (size_t)g->size * sizeof *out->dump);
    for (int32_t r = 0; r < g->size; r++)
        out->dump[r] = g->answered[r] >= g->active ? hd__arena_strdup(arena, g->dump[r]) : NULL;
    g->active = 0;
}
