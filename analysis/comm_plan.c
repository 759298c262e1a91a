#include "analysis/comm_plan.h"

#include <stdlib.h>

#include "core/program/access.h"
#include "core/program/ops.h"
#include "runtime/exec/comm_op/comm_op.h"

struct finder {
    const struct hd__compiled *c;
    const struct hd_program *p;
    int32_t rank, unused;
    struct hd__routes *out;
};

/* ---- what a transport does */

static uint64_t caps_of(const struct finder *f, const struct hd__job_section *section)
{
    const struct hd__chosen *chosen = hd__exec_chosen_comm(f->c, section);
    const struct hd_comm_ops *ops = &chosen->component->ops.comm;
    return hd__comm_caps(ops, hd__comm_caps_with(ops, chosen->settings), &f->c->selection->tuning);
}

static struct hd__hop hop_of(const struct finder *f, const struct hd__job_section *section,
                             const struct hd_comm_call *call, uint32_t where, int32_t members)
{
    struct hd__hop hop = {.coll = call->coll,
                          .where = where,
                          .members = members,
                          .bytes = hd__comm_call_bytes(call, members),
                          .transport = section->use};
    if (!(caps_of(f, section) & HD_COMM_MESSAGES_ONLY))
        return hop;
    const struct hd__algorithm *use = hd__comm_algorithm_select(&f->c->selection->tuning, call, members, &hop.chunk);
    hop.algorithm = use ? use->name : NULL;
    hop.tuned = hd__comm_tuning_find(&f->c->selection->tuning, call, members) != NULL;
    return hop;
}

/* Members of a group within one unit of the enclosing level. */
struct members {
    const int32_t *ranks;
    int32_t n, me;
    uint32_t level, depth; /* levels that have divided the call so far */
};

static struct hd__hier_layout layout_of(const struct finder *f, const struct members *m)
{
    return hd__comm_hier_layout(f->out->levels.leaders[m->level], m->ranks, m->n, m->me);
}

/* Members in this rank's unit, one level further in. */
static struct members intra_members(const struct members *m, const struct hd__hier_layout *g, uint32_t depth)
{
    return (struct members){.ranks = m->ranks + g->me / g->per_machine * g->per_machine,
                            .n = g->per_machine,
                            .me = g->me % g->per_machine,
                            .level = m->level + 1,
                            .depth = depth};
}

/* Between units of the outermost level comm.use is the transport, otherwise comm.inside. */
static const struct hd__job_section *section_at(const struct finder *f, uint32_t level, uint32_t where)
{
    return level || where == HD__HIER_INTRA ? f->c->job->comm_inside : f->c->job->comm;
}

/* The parts into which hierarchical.c divides a call, level by level. */
static void add_parts(const struct finder *f, struct hd__route *r, const struct members *m,
                      const struct hd_comm_call *call)
{
    struct hd__hier_layout g = layout_of(f, m);
    int any =
        f->c->selection->tuning.any_order || (caps_of(f, section_at(f, m->level, HD__HIER_INTER)) & HD_COMM_ANY_ORDER);
    static uint8_t nowhere[64]; /* addresses that are never dereferenced */
    struct hd_comm_call of = *call;
    struct hd__hier_plan plan = {.scratch = nowhere};
    int32_t two = hd__comm_hier_supports(&g, call, any);
    uint32_t depth = m->depth + (uint32_t)two;
    of.send = of.recv = nowhere;
    r->levels = HD__MAX(r->levels, depth + 1);
    hd__comm_hier_build_plan(&plan, &g, &of, two);
    for (uint32_t i = 0; i < plan.parts.count; i++) {
        const struct hd__hier_part *part = &plan.parts.at[i];
        uint32_t where = part->where == HD__HIER_INTRA_AFTER ? HD__HIER_INTRA : part->where;
        if (where == HD__HIER_INTRA && m->level + 1 < f->out->levels.n) {
            struct members inside = intra_members(m, &g, depth);
            add_parts(f, r, &inside, &part->call);
        } else if (where != HD__HIER_DIVIDE) {
            int32_t n = where == HD__HIER_INTRA ? g.per_machine : where == HD__HIER_INTER ? g.machines : g.n;
            struct hd__hop hop = hop_of(f, section_at(f, m->level, where), &part->call, where, n);
            hop.level = m->level;
            hop.remainder = two && where == HD__HIER_WORLD;
            hd__push(&r->hops, hop);
        }
    }
    hd__free_array(&plan.parts);
}

/* Layout of a group at each level, until one member is left. */
static void find_layouts(const struct finder *f, struct hd__route_group *g, struct members m)
{
    const struct hd__hier_layout *layout = NULL;
    for (; m.level < f->out->levels.n && (!layout || layout->per_machine > 1); m = intra_members(&m, layout, 0)) {
        g->layouts[m.level] = layout_of(f, &m);
        layout = &g->layouts[m.level];
        g->n_layouts++;
        if (!layout->per_machine)
            return;
    }
}

/* ---- groups and routes */

static struct hd__route_group *group_of(struct finder *f, uint32_t axes, uint64_t members,
                                        const struct hd__job_section *section)
{
    const struct hd__mesh *mesh = &f->c->mesh;
    const struct hd__job *job = f->c->job;
    struct hd__route_group new = {.transport = section->use};
    int32_t *ranks, n, me = 0;
    char name[96];
    hd__exec_transports_group_name(mesh, axes, members, name);
    for (uint32_t i = 0; i < f->out->groups.count; i++)
        if (!strcmp(f->out->groups.at[i].name, name))
            return &f->out->groups.at[i];
    ranks = hd__arena_alloc(&f->out->arena, (size_t)mesh->ranks * sizeof *ranks);
    n = hd__mesh_group(mesh, f->rank, axes, members, ranks);
    for (int32_t i = 0; i < n; i++)
        me = ranks[i] == f->rank ? i : me;
    new.name = hd__arena_strdup(&f->out->arena, name);
    new.ranks = ranks;
    new.layouts[0] = (struct hd__hier_layout){.n = n, .me = me};
    if (section == job->comm && job->comm_inside && n > 1) {
        new.intra_transport = job->comm_inside->use;
        find_layouts(f, &new, (struct members){.ranks = ranks, .n = n, .me = me});
    }
    hd__push(&f->out->groups, new);
    return &f->out->groups.at[f->out->groups.count - 1];
}

static int same_hops(const struct hd__route *a, const struct hd__route *b)
{
    for (uint32_t i = 0; i < a->hops.count && a->hops.count == b->hops.count; i++)
        if (memcmp(&a->hops.at[i], &b->hops.at[i], sizeof *a->hops.at))
            return 0;
    return a->hops.count == b->hops.count;
}

static void add_route(struct hd__route_group *g, struct hd__route *new)
{
    for (uint32_t i = 0; i < g->routes.count; i++) {
        struct hd__route *r = &g->routes.at[i];
        if (!strcmp(r->op, new->op) && r->dtype == new->dtype && r->bytes == new->bytes &&
            r->levels == new->levels &&same_hops(r, new)) {
            r->calls += new->calls;
            hd__free_array(&new->hops);
            return;
        }
    }
    hd__push(&g->routes, *new);
}

static void add_call(struct finder *f, struct hd__route_group *g, const struct hd__job_section *section, const char *op,
                     const struct hd_comm_call *call, double times)
{
    struct members all = {.ranks = g->ranks, .n = g->layouts[0].n, .me = g->layouts[0].me};
    struct hd__route r = {
        .op = op, .dtype = call->dtype, .levels = 1, .bytes = hd__comm_call_bytes(call, all.n), .calls = times};
    if (g->intra_transport)
        add_parts(f, &r, &all, call);
    else
        hd__push(&r.hops, hop_of(f, section, call, HD__HIER_WORLD, all.n));
    add_route(g, &r);
}

/* Elements that the transport gets per call: all, unless they go in chunks (runtime/exec/comm_op/bounce.h).
 * Hierarchical calls use host memory, whatever the transports below support. */
static uint64_t elements_per_call(const struct finder *f, const struct hd__route_group *g,
                                  const struct hd__job_section *section, const struct hd_comm_call *call)
{
    uint64_t device = f->c->device_choice.component->ops.device.caps,
             caps = g->intra_transport ? 0 : caps_of(f, section);
    struct hd_comm_call one = *call;
    one.count = 1;
    if (!(device & HD_DEVICE_STREAMS) || (device & HD_DEVICE_HOST_MEMORY) ||
        (caps & (HD_COMM_STREAM_ORDERED | HD_COMM_DEVICE_MEMORY)) || call->coll == HD_COLL_ALL_TO_ALL)
        return call->count;
    return (uint64_t)hd__exec_bounce_chunk_count(
        (int64_t)call->count, (int64_t)hd__comm_call_bytes(&one, g->layouts[0].n), f->c->job->device_staging);
}

static void add_collective(struct finder *f, struct hd__route_group *g, const struct hd__job_section *section,
                           const char *op, const struct hd__coll_calls *calls, double times)
{
    struct hd_comm_call call = calls->call;
    uint64_t part = elements_per_call(f, g, section, &call), rest = part ? call.count % part : 0;
    double each = times * (double)calls->n;
    call.count = part;
    if (part || !calls->call.count)
        add_call(f, g, section, op, &call, each * (part ? (double)(calls->call.count / part) : 1));
    call.count = rest;
    if (rest)
        add_call(f, g, section, op, &call, each);
}

static void add_message(const struct finder *f, struct hd__route_group *g, const struct hd__job_section *section,
                        const struct hd__instr *i, double times)
{
    const struct hd__tensor *t = hd__tensor_const(f->p, hd__instr_tensor(i));
    struct hd__route r = {.op = hd__op(i->op)->name, .dtype = t->dtype, .levels = 1, .calls = times};
    struct hd__hop hop = {.where = HD__HIER_WORLD, .members = 2, .transport = section->use};
    for (uint32_t l = 0; l < g->n_layouts && (hop.where == HD__HIER_INTRA || !l);
         l++) { /* down to the innermost level that holds both */
        hop.where = hd__comm_hier_home(&g->layouts[l]);
        hop.level = l;
        hop.transport = section_at(f, l, hop.where)->use;
    }
    r.bytes = hop.bytes = (uint64_t)hd__tensor_bytes(f->p, t);
    hd__push(&r.hops, hop);
    add_route(g, &r);
}

static void add_instruction(struct finder *f, const struct hd__instr *i, double times)
{
    int p2p = hd__op(i->op)->class == HD__CLASS_P2P;
    struct hd__coll_calls calls = {.n = 0};
    uint32_t axes = p2p ? HD_AXIS_BIT(HD_AXIS_PP) : i->axes;
    if (!p2p && hd__op(i->op)->class != HD__CLASS_COLLECTIVE)
        return;
    const struct hd__job_section *section = hd__exec_transports_section(f->c, axes);
    struct hd__route_group *g = group_of(f, axes, i->members, section);
    if (g->layouts[0].n < 2)
        return;
    if (!p2p)
        calls = hd__exec_coll_calls(f->p, i, g->layouts[0].n);
    if (calls.call.coll)
        add_collective(f, g, section, hd__op(i->op)->name, &calls, times);
    else
        add_message(f, g, section, i, times);
}

/* Topology of the ranks: all machines are like this one, and heddle binds their ranks. */
static void find_levels(struct finder *f, int32_t per_machine)
{
    const struct hd__job *job = f->c->job;
    int32_t n = f->c->mesh.ranks, *all = hd__alloc((1 + HD__LEVELS_COUNT) * (size_t)n * sizeof *all),
            *at[HD__LEVELS_COUNT];
    struct hd__topology_levels *nest = &f->out->levels;
    struct hd_error err = HD_ERROR_INIT;
    struct hd__topology *places;
    int32_t rc = hd__comm_topology_open(job->comm_levels, job->n_comm_levels, &places, &err);
    for (int32_t r = 0; r < n; r++)
        all[r] = per_machine ? r / per_machine * per_machine : 0;
    for (uint32_t i = 0; i < job->n_comm_levels; i++) {
        uint32_t level = (uint32_t)job->comm_levels[i];
        at[i] = all + (1 + i) * (size_t)n;
        for (int32_t r = 0; r < n; r++)
            at[i][r] = rc ? -1
                          : hd__comm_topology_locate_by_rule(places, level, r - all[r],
                                                             per_machine ? HD__MIN(per_machine, n - all[r]) : n);
    }
    hd__comm_topology_close(places);
    hd__comm_topology_levels(nest, job->comm_levels, job->n_comm_levels, all, at, n, &f->out->arena);
    if (err.code != HD_OK)
        f->out->fallback = hd__arena_format(&f->out->arena, "the job will not start: %s", err.message);
    else if (nest->unbound_rank >= 0)
        f->out->fallback = hd__arena_format(&f->out->arena, "rank %d will run on the cores of more than one %s; %s",
                                            nest->unbound_rank, hd__comm_topology_level_name(nest->dropped_level),
                                            hd__comm_topology_fallback(nest));
    free(all);
}

void hd__routes_find(const struct hd__compiled *c, int32_t rank, const struct hd__routes_options *options,
                     struct hd__routes *routes)
{
    struct finder f = {.c = c, .p = hd__compiled_program(c, rank), .rank = rank, .out = routes};
    const struct hd__routes *beside = options->shared;
    if (beside) {
        routes->levels = beside->levels;
        routes->fallback = beside->fallback;
    } else if (c->job->comm_inside) {
        find_levels(&f, options->per_machine);
    }
    for (uint32_t s = 0; s < f.p->sections.count && c->mesh.ranks > 1; s++) {
        const struct hd__code_section *x = &f.p->sections.at[s];
        double times = hd__section_runs_per_step(x, options->section);
        for (uint32_t n = 0; n < x->code.count && times > 0; n++)
            add_instruction(&f, &x->code.at[n], times);
    }
    uint32_t kept = 0;
    for (uint32_t i = 0; i < routes->groups.count; i++)
        if (routes->groups.at[i].layouts[0].n > 1)
            routes->groups.at[kept++] = routes->groups.at[i];
    routes->groups.count = kept;
}

/* Bytes of a step that algorithms of the core move: all, and those by rules of comm.tune. */
static void count_bytes(const struct hd__routes *routes, double *all, double *tuned)
{
    for (uint32_t g = 0; g < routes->groups.count; g++)
        for (uint32_t r = 0; r < routes->groups.at[g].routes.count; r++) {
            const struct hd__route *route = &routes->groups.at[g].routes.at[r];
            for (uint32_t h = 0; h < route->hops.count; h++) {
                const struct hd__hop *hop = &route->hops.at[h];
                *all += hop->algorithm ? route->calls * (double)hop->bytes : 0;
                *tuned += hop->tuned ? route->calls * (double)hop->bytes : 0;
            }
        }
}

/* A rule that is never reached, behind another of as many ranks and bytes that does every call; NULL: there is none. */
static const char *unreached(const struct hd__tuning *t, struct hd__arena *arena)
{
    for (uint32_t i = 1; i < t->rules.count; i++)
        for (uint32_t k = 0; k < i; k++) {
            const struct hd__tuning_rule *a = &t->rules.at[k], *b = &t->rules.at[i];
            if (a->coll == b->coll && a->ranks >= b->ranks && a->bytes >= b->bytes && !a->use->needs)
                return hd__arena_format(arena, "rule %u, of %s", i + 1, hd_coll_name(b->coll));
        }
    return NULL;
}

#define ALL_OWN "has no effect, as all transports have collectives of their own: leave it out"

void hd__routes_notes(const struct hd__compiled *c, struct hd__text *out)
{
    struct hd__job *job = c->job;
    const struct hd__tuning *rules = &c->selection->tuning;
    const struct finder f = {.c = c};
    const char *any = NULL, *dead = unreached(rules, &job->arena);
    char few[192];
    double all = 0, tuned = 0;
    int core = 0, known = job->comm_tune && !job->comm_inside; /* whose ranks are known once they have started */
    for (uint32_t i = 0; i < c->selection->comms.count; i++)
        core |= (caps_of(&f, c->selection->comms.at[i].section) & HD_COMM_MESSAGES_ONLY) != 0;
    for (uint32_t i = 0; i < rules->rules.count && !rules->any_order; i++)
        any = rules->rules.at[i].use->needs & HD__NEEDS_ANY_ORDER ? rules->rules.at[i].use->name : any;
    for (int32_t s = 0; s < c->n_stages && core && known; s++) {
        struct hd__routes routes = {0};
        hd__routes_find(c, s * (c->mesh.ranks / c->n_stages), &(struct hd__routes_options){0}, &routes);
        count_bytes(&routes, &all, &tuned);
        hd__routes_free(&routes);
    }
    snprintf(few, sizeof few,
             "has rules for %.0f %% of the bytes of a step, whose operations `heddle explain` lists with ranks and "
             "bytes: make the file with `heddle bench --tune` for all of them",
             100 * tuned / HD__MAX(all, 1));
    const struct {
        int is;
        const char *key, *why, *name;
    } rows[] = {
        {job->comm_tune && !core, "comm.tune", ALL_OWN, ""},
        {job->comm_sums == HD__SUMS_ANY && !core && !job->comm_inside, "comm.sums", ALL_OWN, ""},
        {core && any, "comm.tune", "has rules that are ignored without comm.sums: any, for the algorithm ", any},
        {core && dead, "comm.tune",
         "has a rule that is never reached, behind one of as many ranks and bytes or more (put those of less first): ",
         dead},
        {core && !any && known && (2 * tuned < all || !all), "comm.tune", few, ""},
    };
    for (size_t i = 0; i < HD__COUNT(rows) && c->mesh.ranks > 1; i++)
        if (rows[i].is)
            hd__text_add(out, "%s: warning: %s %s%s\n", hd__job_where(job, rows[i].key), rows[i].key, rows[i].why,
                         rows[i].name);
}

void hd__routes_free(struct hd__routes *routes)
{
    for (uint32_t g = 0; g < routes->groups.count; g++) {
        for (uint32_t r = 0; r < routes->groups.at[g].routes.count; r++)
            hd__free_array(&routes->groups.at[g].routes.at[r].hops);
        hd__free_array(&routes->groups.at[g].routes);
    }
    hd__free_array(&routes->groups);
    hd__arena_free(&routes->arena);
}
