/* Text and JSON of routes. */
#include <stdlib.h>

#include "analysis/comm_plan.h"

static const char *const places[] = {
    [HD__HIER_INTER] = "between", [HD__HIER_INTRA] = "inside", [HD__HIER_WORLD] = "world"};

/* "between", with several levels "between machines"; all of a unit of the enclosing level: "inside machines". */
static void add_where(struct hd__text *out, const struct hd__routes *routes, const struct hd__hop *hop)
{
    int whole = hop->where == HD__HIER_WORLD && hop->level && !hop->remainder;
    if (hop->where == HD__HIER_WORLD && !whole)
        hd__text_add(out, "of the rest");
    else if (routes->levels.n == 1)
        hd__text_add(out, "%s", places[hop->where]);
    else
        hd__text_add(out, "%s %ss", places[whole ? (uint32_t)HD__HIER_INTRA : hop->where],
                     hd__comm_topology_level_name(routes->levels.level[hop->level - (uint32_t)whole]));
}

static int alike(const struct hd__hop *a, const struct hd__hop *b)
{
    return a->coll == b->coll && a->where == b->where && a->level == b->level && a->remainder == b->remainder;
}

/* Equal hops are printed once, with their count. */
static void add_hops(struct hd__text *out, const struct hd__routes *routes, const struct hd__route *r)
{
    for (uint32_t i = 0; i < r->hops.count; i++) {
        const struct hd__hop *hop = &r->hops.at[i];
        uint32_t n = 0, before = 0;
        for (uint32_t k = 0; k < r->hops.count; k++) {
            n += (uint32_t)alike(&r->hops.at[k], hop);
            before += k < i && alike(&r->hops.at[k], hop);
        }
        if (before)
            continue;
        hd__text_add(out, "%s", i ? ", " : "");
        if (n > 1)
            hd__text_add(out, "%u x ", n);
        if (r->levels > 1) {
            hd__text_add(out, "%s ", hd_coll_name(hop->coll));
            add_where(out, routes, hop);
            hd__text_add(out, " (");
        }
        if (!hop->coll)
            hd__text_add(out, "a message");
        else
            hd__text_add(out, "%s%s", hop->algorithm ? hop->algorithm : hop->transport, hop->algorithm ? "" : "'s own");
        hd__text_add(out, r->levels > 1 ? ")" : "");
    }
}

/* Number of machines, packages or NUMA nodes and members on each; at inner levels, those of this rank. */
static void add_levels(struct hd__text *out, const struct hd__routes *routes, const struct hd__route_group *g)
{
    for (uint32_t l = 0; l < g->n_layouts; l++) {
        const char *word = hd__comm_topology_level_name(routes->levels.level[l]), *there = l ? " there" : "";
        const struct hd__hier_layout *lies = &g->layouts[l];
        if (lies->machines == 1)
            hd__text_add(out, ", all on one %s%s", word, there);
        else if (hd__comm_hier_applies(lies) && !l)
            hd__text_add(out, ", %s inside: %d %ss of %d", g->intra_transport, lies->machines, word, lies->per_machine);
        else if (hd__comm_hier_applies(lies))
            hd__text_add(out, ", %d %ss of %d%s", lies->machines, word, lies->per_machine, there);
        else if (lies->per_machine)
            hd__text_add(out, ", in one level%s: one member on each %s", there, word);
        else
            hd__text_add(out, ", in one level%s: its %ss do not have as many members each, one after the other", there,
                         word);
    }
}

static const char *transport_text(const struct hd__route_group *g)
{
    return g->intra_transport && g->layouts[0].machines == 1 ? g->intra_transport : g->transport;
}

static const char *const counts[] = {"no", "one", "two", "three", "four"};

/* Sizes with the same route share a line. */
static void add_lines(struct hd__text *out, const struct hd__routes *routes, const struct hd__route_group *g)
{
    struct hd__text *ways = hd__alloc((g->routes.count + 1) * sizeof *ways);
    char low[32], high[32];
    for (uint32_t i = 0; i < g->routes.count; i++)
        add_hops(&ways[i], routes, &g->routes.at[i]);
    for (uint32_t i = 0; i < g->routes.count; i++) {
        uint64_t least = UINT64_MAX, most = 0;
        double calls = 0;
        int first = 1;
        for (uint32_t k = 0; k < g->routes.count; k++) {
            const struct hd__route *a = &g->routes.at[i], *b = &g->routes.at[k];
            if (strcmp(a->op, b->op) || a->levels != b->levels || strcmp(ways[i].at, ways[k].at))
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
        if (g->routes.at[i].levels > 1)
            hd__text_add(out, ": in %s levels", counts[g->routes.at[i].levels]);
        hd__text_add(out, ": %s\n", ways[i].at);
    }
    for (uint32_t i = 0; i < g->routes.count; i++)
        hd__text_free(&ways[i]);
    free(ways);
}

void hd__routes_text(const struct hd__routes *routes, struct hd__text *out)
{
    if (routes->fallback)
        hd__text_add(out, "   comm.levels is not applied: %s\n", routes->fallback);
    for (uint32_t i = 0; i < routes->groups.count; i++) {
        const struct hd__route_group *g = &routes->groups.at[i];
        hd__text_add(out, "   %-13s %d ranks over %s", g->name, g->layouts[0].n, transport_text(g));
        add_levels(out, routes, g);
        hd__text_add(out, "\n");
        add_lines(out, routes, g);
    }
}

void hd__routes_line(const struct hd__routes *routes, struct hd__text *out)
{
    for (uint32_t i = 0; i < routes->groups.count; i++) {
        const struct hd__route_group *g = &routes->groups.at[i];
        uint32_t last = 0; /* nested levels that divide */
        hd__text_add(out, "%s%s (%d ranks) over %s", i ? "; " : "", g->name, g->layouts[0].n, transport_text(g));
        if (g->n_layouts && hd__comm_hier_applies(&g->layouts[0]))
            hd__text_add(out, " and %s, ", g->intra_transport);
        for (; last < g->n_layouts && hd__comm_hier_applies(&g->layouts[last]); last++)
            hd__text_add(out, "%d x ", g->layouts[last].machines);
        if (last)
            hd__text_add(out, "%d", g->layouts[last - 1].per_machine);
    }
    if (routes->fallback)
        hd__text_add(out, "; comm.levels is not applied: %s", routes->fallback);
}

/* ---- JSON */

static json_t *hop_json(const struct hd__routes *all, const struct hd__hop *hop)
{
    json_t *o = json_pack("{s:s,s:s,s:s,s:i,s:I}", "op", hop->coll ? hd_coll_name(hop->coll) : "message", "where",
                          places[hop->where], "transport", hop->transport, "members", hop->members, "bytes",
                          (json_int_t)hop->bytes);
    if (all->levels.n > 1)
        json_object_set_new(o, "level", json_string(hd__comm_topology_level_name(all->levels.level[hop->level])));
    json_object_set_new(o, "algorithm", hop->algorithm ? json_string(hop->algorithm) : json_null());
    if (hop->chunk)
        json_object_set_new(o, "chunk", json_integer((json_int_t)hop->chunk));
    return o;
}

static json_t *route_json(const struct hd__routes *all, const struct hd__route *r)
{
    json_t *hops = json_array();
    for (uint32_t i = 0; i < r->hops.count; i++)
        json_array_append_new(hops, hop_json(all, &r->hops.at[i]));
    return json_pack("{s:s,s:s,s:I,s:f,s:i,s:o}", "op", r->op, "dtype", hd_dtype_name(r->dtype), "bytes",
                     (json_int_t)r->bytes, "calls", r->calls, "levels", (int)r->levels, "parts", hops);
}

/* Layout of a group, level by level. */
static void add_layouts(json_t *o, const struct hd__routes *all, const struct hd__route_group *g)
{
    json_t *within = json_array();
    for (uint32_t l = 0; l < g->n_layouts; l++) {
        json_t *one = json_pack("{s:s,s:i,s:i}", "level", hd__comm_topology_level_name(all->levels.level[l]),
                                "machines", g->layouts[l].machines, "of_each", g->layouts[l].per_machine);
        if (l)
            json_array_append_new(within, one);
        else
            json_object_update_new(o, one);
    }
    json_object_set_new(o, "inside", json_string(g->intra_transport));
    if (json_array_size(within))
        json_object_set(o, "within", within);
    json_decref(within);
}

static json_t *group_json(const struct hd__routes *all, const struct hd__route_group *g)
{
    json_t *ranks = json_array(), *routes = json_array(), *o;
    for (int32_t i = 0; i < g->layouts[0].n; i++)
        json_array_append_new(ranks, json_integer(g->ranks[i]));
    for (uint32_t i = 0; i < g->routes.count; i++)
        json_array_append_new(routes, route_json(all, &g->routes.at[i]));
    o = json_pack("{s:s,s:o,s:s,s:o}", "name", g->name, "ranks", ranks, "transport", g->transport, "operations",
                  routes);
    if (g->intra_transport)
        add_layouts(o, all, g);
    if (g->intra_transport && all->fallback)
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
