#include "runtime/rendezvous/dump_collect.h"

#include <stdlib.h>

#include "core/base/base.h"

void hd__gather_init(struct hd__gather *g, int32_t size)
{
    *g = (struct hd__gather){.size = size};
    g->part = hd__alloc((size_t)size * sizeof *g->part);
    g->answered = hd__alloc((size_t)size);
}

void hd__gather_finish(struct hd__gather *g)
{
    for (int32_t r = 0; r < g->size; r++)
        free(g->part[r]);
    free(g->part);
    free(g->answered);
    *g = (struct hd__gather){0};
}

/* Many ranks wait for one, and each asks: one look serves all, and the next has to be for a wait half as long again. */
int hd__gather_begin(struct hd__gather *g, int32_t what, double waited, double now)
{
    if (what == HD__GATHER_LOOK && (g->active || now < g->quiet_until))
        return 0;
    for (int32_t r = 0; r < g->size; r++) /* who gave up has sent its part before it said so */
        g->answered[r] = what == HD__GATHER_END && g->answered[r] == HD__GATHER_END ? HD__GATHER_END : 0;
    g->active = what;
    g->waited = waited;
    g->deadline = now + HD__GATHER_SECONDS;
    g->quiet_until = now + waited / 2;
    return 1;
}

void hd__gather_put(struct hd__gather *g, int32_t rank, int32_t what, const void *text, size_t bytes)
{
    free(g->part[rank]);
    g->part[rank] = hd__alloc(bytes + 1);
    if (bytes)
        memcpy(g->part[rank], text, bytes);
    g->answered[rank] = (uint8_t)what;
}

int hd__gather_complete(const struct hd__gather *g, const uint8_t *state, double now)
{
    for (int32_t r = 0; r < g->size; r++)
        if (state[r] == HD__PART_HERE && g->answered[r] < g->active && now < g->deadline)
            return 0;
    return 1;
}

void hd__gather_show(struct hd__gather *g, struct hd__gathered *out)
{
    out->size = g->size;
    out->waited = g->waited;
    out->part = hd__alloc((size_t)g->size * sizeof *out->part);
    for (int32_t r = 0; r < g->size; r++)
        out->part[r] = g->answered[r] >= g->active ? g->part[r] : NULL;
    g->active = 0;
}
