/* Routes for people and for other programs. */
#include <stdlib.h>

#include "core/comm/places.h"
#include "core/run/routes.h"

static const char *const places[] = {[HD__ACROSS] = "between", [HD__INSIDE] = "inside", [HD__WORLD] = "world"};

static void add_way(struct hd__text *out, const struct hd__hop *hop)
{
    if (!hop->coll)
        hd__text_add(out, "a message");
    else if (hop->algorithm)
        hd__text_add(out, "%s", hop->algorithm);
    else
        hd__text_add(out, "%s's own", hop->transport);
}

/* Of one kind in a row the first is said, and how many they are. */
static void add_hops(struct hd__text *out, const struct hd__route *r)
{
    for (uint32_t i = 0, n; i < r->hops.count; i += n) {
        const struct hd__hop *hop = &r->hops.at[i];
        for (n = 1;
             i + n < r->hops.count && r->hops.at[i + n].coll == hop->coll && r->hops.at[i + n].where == hop->where;)
            n++;
        hd__text_add(out, "%s", i ? ", " : "");
        if (n > 1)
            hd__text_add(out, "%u x ", n);
        if (r->two)
            hd__text_add(out, "%s %s (", hd_coll_name(hop->coll),
                         hop->where == HD__WORLD ? "of the rest" : places[hop->where]);
        add_way(out, hop);
        hd__text_add(out, r->two ? ")" : "");
    }
}

/* On how many machines, packages or nodes, and how many members on each. */
static void add_levels(struct hd__text *out, const struct hd__routes *routes, const struct hd__route_group *g)
{
    const char *word = hd__places_word(routes->levels);
    if (!g->inside)
        return;
    if (g->lies.machines == 1)
        hd__text_add(out, ", all on one %s", word);
    else if (hd__levels_two(&g->lies))
        hd__text_add(out, ", %s inside: %d %ss of %d", g->inside, g->lies.machines, word, g->lies.locals);
    else if (g->lies.locals)
        hd__text_add(out, ", in one level: one member on each %s", word);
    else
        hd__text_add(out, ", in one level: its %ss do not have as many members each, one after the other", word);
}

static const char *over(const struct hd__route_group *g)
{
    return g->inside && g->lies.machines == 1 ? g->inside : g->transport;
}

/* Sizes that go the same way share a line. */
static void add_lines(struct hd__text *out, const struct hd__route_group *g)
{
    struct hd__text *ways = hd__alloc((g->routes.count + 1) * sizeof *ways);
    char low[32], high[32];
    for (uint32_t i = 0; i < g->routes.count; i++)
        add_hops(&ways[i], &g->routes.at[i]);
    for (uint32_t i = 0; i < g->routes.count; i++) {
        uint64_t least = UINT64_MAX, most = 0;
        double calls = 0;
        int first = 1;
        for (uint32_t k = 0; k < g->routes.count; k++) {
            const struct hd__route *a = &g->routes.at[i], *b = &g->routes.at[k];
            if (strcmp(a->op, b->op) || a->two != b->two || strcmp(ways[i].at, ways[k].at))
                continue;
            first &= k >= i;
            least = HD__MIN(least, b->bytes);
            most = HD__MAX(most, b->bytes);
            calls += b->calls;
        }
        if (!first)
            continue;
        hd__text_add(out, "      %-14s %6.6g x %s%s%s", g->routes.at[i].op, calls, hd__bytes_text(least, low),
                     least < most ? " to " : "", least < most ? hd__bytes_text(most, high) : "");
        hd__text_add(out, ": %s%s\n", g->routes.at[i].two ? "in two levels: " : "", ways[i].at);
    }
    for (uint32_t i = 0; i < g->routes.count; i++)
        hd__text_free(&ways[i]);
    free(ways);
}

void hd__routes_text(const struct hd__routes *routes, struct hd__text *out)
{
    if (routes->fallback)
        hd__text_add(out, "   comm.levels is not kept: %s; machines are the levels\n", routes->fallback);
    for (uint32_t i = 0; i < routes->groups.count; i++) {
        const struct hd__route_group *g = &routes->groups.at[i];
        hd__text_add(out, "   %-13s %d ranks over %s", g->name, g->lies.n, over(g));
        add_levels(out, routes, g);
        hd__text_add(out, "\n");
        add_lines(out, g);
    }
}

void hd__routes_line(const struct hd__routes *routes, struct hd__text *out)
{
    for (uint32_t i = 0; i < routes->groups.count; i++) {
        const struct hd__route_group *g = &routes->groups.at[i];
        hd__text_add(out, "%s%s (%d ranks) over %s", i ? "; " : "", g->name, g->lies.n, over(g));
        if (g->inside && hd__levels_two(&g->lies))
            hd__text_add(out, " and %s, %d x %d", g->inside, g->lies.machines, g->lies.locals);
    }
    if (routes->fallback)
        hd__text_add(out, "; comm.levels is not kept: %s", routes->fallback);
}

/* ---- JSON */

static json_t *hop_json(const struct hd__hop *hop)
{
    json_t *o = json_pack("{s:s,s:s,s:s,s:i,s:I}", "op", hop->coll ? hd_coll_name(hop->coll) : "message", "where",
                          places[hop->where], "transport", hop->transport, "members", hop->members, "bytes",
                          (json_int_t)hop->bytes);
    json_object_set_new(o, "algorithm", hop->algorithm ? json_string(hop->algorithm) : json_null());
    if (hop->chunk)
        json_object_set_new(o, "chunk", json_integer((json_int_t)hop->chunk));
    return o;
}

static json_t *route_json(const struct hd__route *r)
{
    json_t *hops = json_array();
    for (uint32_t i = 0; i < r->hops.count; i++)
        json_array_append_new(hops, hop_json(&r->hops.at[i]));
    return json_pack("{s:s,s:s,s:I,s:f,s:i,s:o}", "op", r->op, "dtype", hd_dtype_name(r->dtype), "bytes",
                     (json_int_t)r->bytes, "calls", r->calls, "levels", r->two ? 2 : 1, "parts", hops);
}

static json_t *group_json(const struct hd__routes *all, const struct hd__route_group *g)
{
    json_t *ranks = json_array(), *routes = json_array(), *o;
    for (int32_t i = 0; i < g->lies.n; i++)
        json_array_append_new(ranks, json_integer(g->ranks[i]));
    for (uint32_t i = 0; i < g->routes.count; i++)
        json_array_append_new(routes, route_json(&g->routes.at[i]));
    o = json_pack("{s:s,s:o,s:s,s:o}", "name", g->name, "ranks", ranks, "transport", g->transport, "operations",
                  routes);
    if (g->inside)
        json_object_update_new(o, json_pack("{s:s,s:s,s:i,s:i}", "inside", g->inside, "level",
                                            hd__places_word(all->levels), "machines", g->lies.machines, "of_each",
                                            g->lies.locals));
    if (g->inside && all->fallback)
        json_object_set_new(o, "fallback", json_string(all->fallback));
    return o;
}

json_t *hd__routes_json(const struct hd__routes *routes)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < routes->groups.count; i++)
        json_array_append_new(list, group_json(routes, &routes->groups.at[i]));
    return list;
}
