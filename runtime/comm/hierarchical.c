#include "runtime/comm/hierarchical.h"

#include <stdlib.h>

#include "runtime/comm/algorithm_counts.h"
#include "runtime/comm/algorithms/plan.h"
#include "runtime/comm/hierarchical_plan.h"
#include "runtime/comm/wrapper.h"

struct op {
    struct hd__layer_op base;
    struct hd__levels_plan plan;
    uint32_t phase, started;
};

struct hd_comm_group {
    struct hd__layer_group base;
    struct hd_comm_group *sub[HD__SUBS]; /* HD__ACROSS, HD__INSIDE, HD__WORLD, HD__BACK; NULL where there is none */
    struct hd__spread lies;
};

struct hd_comm {
    struct hd__layer base; /* below: HD__ACROSS, HD__INSIDE */
    int32_t any_order, told;
    int32_t *firsts, *places; /* of each rank: the first rank of its machine, and its number there */
};

static struct hd__comm *transport(struct hd__layer *l, uint32_t where)
{
    return &l->below[where == HD__INSIDE || where == HD__BACK ? HD__INSIDE : HD__ACROSS];
}

/* ---- running: the phases of an operation */

static int32_t start_part(struct hd_comm_group *g, struct hd__part *p, struct hd_error *err)
{
    struct hd__comm *t = transport(g->base.layer, p->where);
    const void *source = p->call.recv;
    if (p->where != HD__DIVIDE) {
        int32_t code = t->ops.collective(g->sub[p->where], &p->call, &p->request, err);
        p->open = code == HD_OK;
        return code;
    }
    hd__reduce(p->call.recv, &source, 1, g->lies.n, p->call.count, p->call.dtype, HD_AVG);
    return HD_OK;
}

/* 1: all of the phase are done; 0: not yet; or an error. */
static int32_t test_phase(struct op *op, struct hd_error *err)
{
    int32_t all = 1;
    for (uint32_t i = 0; i < op->plan.parts.count; i++) {
        struct hd__part *p = &op->plan.parts.at[i];
        struct hd__comm *t = transport(op->base.group->layer, p->where);
        int32_t done = 0, code;
        if (p->phase != op->phase || !p->open)
            continue;
        code = t->ops.test(t->comm, p->request, &done, err);
        if (code != HD_OK)
            return code;
        p->open = !done;
        all &= done;
    }
    return all;
}

/* Has it begun all that it has to do in this group? */
static int has_passed(const struct op *op, uint32_t where)
{
    for (uint32_t i = 0; i < op->plan.parts.count; i++) {
        const struct hd__part *p = &op->plan.parts.at[i];
        if (p->where == where && (p->phase > op->phase || (p->phase == op->phase && !op->started)))
            return 0;
    }
    return 1;
}

/* Every group has its parts in the order of the operations, on all ranks. Two are under way: the first never waits. */
static int may_start(const struct op *op)
{
    const struct hd__layer_op *head = op->base.group->head;
    int may = 1;
    for (uint32_t i = 0; i < op->plan.parts.count && head != &op->base && may; i++)
        if (op->plan.parts.at[i].phase == op->phase && op->plan.parts.at[i].where != HD__DIVIDE)
            may = head->over || has_passed((const struct op *)head, op->plan.parts.at[i].where);
    return may;
}

static int32_t levels_advance(struct hd__layer_op *head, struct hd_error *err)
{
    struct op *op = (struct op *)head;
    int32_t code = HD_OK, moved = 0;
    for (; op->phase < HD__PHASES; op->phase++, op->started = 0, moved = 1) {
        if (!op->started && !may_start(op))
            return moved;
        for (uint32_t i = 0; i < op->plan.parts.count && !op->started && code == HD_OK; i++)
            if (op->plan.parts.at[i].phase == op->phase)
                code = start_part((struct hd_comm_group *)head->group, &op->plan.parts.at[i], err);
        op->started = 1;
        code = code < 0 ? code : test_phase(op, err);
        if (code <= 0)
            return code < 0 ? code : moved;
        code = HD_OK;
    }
    head->over = 1;
    return 1;
}

static int32_t levels_late(struct hd__layer_op *head, struct hd_error *err)
{
    struct op *op = (struct op *)head;
    for (uint32_t i = 0; i < op->plan.parts.count; i++) {
        struct hd__part *p = &op->plan.parts.at[i];
        struct hd__comm *t = transport(head->group->layer, p->where);
        if (p->phase != op->phase || !p->open)
            continue;
        p->open = 0;
        return t->ops.wait(t->comm, p->request, hd__now(), err);
    }
    return HD_OK;
}

static void op_clear(struct hd__layer_op *op)
{
    free(((struct op *)op)->plan.scratch);
    ((struct op *)op)->plan.scratch = NULL;
}

static void op_free(struct hd__layer_op *op)
{
    op_clear(op);
    hd__free_array(&((struct op *)op)->plan.parts);
}

/* ---- slots */

static void levels_group_free(struct hd_comm_group *g)
{
    hd__layer_group_finish(&g->base);
    for (uint32_t where = 0; where < HD__SUBS; where++) {
        struct hd__comm *t = transport(g->base.layer, where);
        if (g->sub[where] && t->ops.group_free)
            t->ops.group_free(g->sub[where]);
    }
    free(g);
}

static void levels_finish(struct hd__layer *layer)
{
    struct hd_comm *c = (struct hd_comm *)layer;
    free(c->firsts);
    free(c->places);
}

static int32_t make_sub(struct hd_comm_group *g, uint32_t where, const char *name, const int32_t *ranks, int32_t n,
                        struct hd_error *err)
{
    struct hd__comm *t = transport(g->base.layer, where);
    return t->ops.group(t->comm, name, ranks, n, &g->sub[where], err);
}

static int32_t make_subs(struct hd_comm_group *g, const char *name, const int32_t *ranks, struct hd_error *err)
{
    const int32_t *places = ((struct hd_comm *)g->base.layer)->places;
    int32_t *some = hd__alloc((size_t)g->lies.n * sizeof *some), rc = HD_OK;
    int32_t machine = g->lies.me / g->lies.locals, place = g->lies.me % g->lies.locals;
    char full[128];
    for (int32_t i = 0; i < g->lies.locals; i++)
        some[i] = places[ranks[machine * g->lies.locals + i]];
    snprintf(full, sizeof full, "%s/inside", name);
    rc = make_sub(g, HD__INSIDE, full, some, g->lies.locals, err);
    snprintf(full, sizeof full, "%s/back", name);
    if (!rc && g->lies.machines > 1)
        rc = make_sub(g, HD__BACK, full, some, g->lies.locals, err);
    for (int32_t m = 0; m < g->lies.machines; m++)
        some[m] = ranks[m * g->lies.locals + place];
    snprintf(full, sizeof full, "%s/across", name);
    if (!rc && g->lies.machines > 1)
        rc = make_sub(g, HD__ACROSS, full, some, g->lies.machines, err);
    free(some);
    return rc;
}

static int32_t levels_group(struct hd_comm *c, const char *name, const int32_t *ranks, int32_t n, struct hd_comm_group **group,
                            struct hd_error *err)
{
    struct hd_comm_group *g = hd__alloc(sizeof *g);
    int32_t rc = HD_OK, me = 0;
    uint32_t home;
    for (int32_t i = 0; i < n; i++) /* where it lies is looked up by rank; all else the transports below see to */
        if (ranks[i] < 0 || ranks[i] >= c->base.world.size) {
            free(g);
            return hd_fail(err, HD_E_INVALID, "group %s names rank %d of a world of %d", name, ranks[i], c->base.world.size);
        }
    hd__layer_group_init(&c->base, &g->base, name);
    for (int32_t i = 0; i < n; i++)
        me = ranks[i] == c->base.world.rank ? i : me;
    g->lies = hd__levels_spread(c->firsts, ranks, n, me);
    if (!g->lies.locals && g->lies.me == 0 && !c->told++) /* once: other groups will be like it */
        hd__log(HD_LOG_INFO, "comm", "group %s goes in one level between machines: they do not have as many of its %d members each, "
                "one machine after the other", name, n);
    if (g->lies.machines != 1)
        rc = make_sub(g, HD__WORLD, name, ranks, n, err);
    if (!rc && (g->lies.machines == 1 || g->lies.locals > 1))
        rc = make_subs(g, name, ranks, err);
    if (rc) {
        levels_group_free(g);
        return rc;
    }
    home = hd__levels_home(&g->lies);
    g->base.home = transport(&c->base, home);
    g->base.there = g->sub[home];
    *group = g;
    return HD_OK;
}

static int32_t levels_collective(struct hd_comm_group *g, const struct hd_comm_call *call, hd_request *request,
                                 struct hd_error *err)
{
    struct hd_comm *c = (struct hd_comm *)g->base.layer;
    struct op *op;
    uint64_t scratch;
    int32_t code;
    int two;
    if (!hd__levels_two(&g->lies)) /* no order to keep */
        return hd__layer_pass(&g->base, call, request, err);
    code = hd__layer_usable(&g->base, err);
    if (code != HD_OK)
        return code;
    op = hd__layer_op_new(&g->base);
    op->phase = op->started = op->plan.parts.count = 0;
    two = hd__levels_can(&g->lies, call, c->any_order);
    scratch = two ? hd__levels_scratch(&g->lies, call) : 0;
    op->plan.scratch = scratch ? hd__alloc(scratch) : NULL;
    hd__levels_plan(&op->plan, &g->lies, call, two);
    if (two)
        hd__ran_count(transport(&c->base, HD__ACROSS)->ran, g->base.name, call->coll, "two levels");
    return hd__layer_enqueue(&op->base, request, err);
}

static const struct hd__layer_kind levels = {.op_bytes = sizeof(struct op),
                                             .at_once = 2, /* may_start knows of two */
                                             .advance = levels_advance,
                                             .late = levels_late,
                                             .op_clear = op_clear,
                                             .op_free = op_free,
                                             .finish = levels_finish,
                                             .group = levels_group,
                                             .group_free = levels_group_free,
                                             .collective = levels_collective};

struct hd_world hd__levels_inside(const struct hd_world *world, const int32_t *firsts, int32_t *job_ranks)
{
    struct hd_world inside = *world;
    inside.rank = inside.size = 0;
    for (int32_t r = 0; r < world->size; r++) {
        if (firsts[r] != firsts[world->rank])
            continue;
        inside.rank += r < world->rank;
        job_ranks[inside.size++] = hd_job_rank(world, r);
    }
    inside.local_rank = inside.rank;
    inside.local_size = inside.size;
    inside.job_ranks = job_ranks;
    return inside;
}

void hd__levels_create(struct hd__comm *across, struct hd__comm *inside, const struct hd_world *world, const int32_t *firsts,
                       struct hd__comm *out)
{
    size_t size = (size_t)world->size;
    struct hd_comm *c = hd__alloc(sizeof *c);
    c->base = (struct hd__layer){
        .kind = &levels, .below = {[HD__ACROSS] = *across, [HD__INSIDE] = *inside}, .n_below = 2, .world = *world};
    c->any_order = (across->tuning && across->tuning->any_order) || (across->ops.caps & HD_COMM_ANY_ORDER);
    c->firsts = hd__alloc(size * sizeof *firsts);
    memcpy(c->firsts, firsts, size * sizeof *firsts);
    c->places = hd__levels_places(firsts, world->size);
    hd__layer_become(&c->base, HD_COMM_HOST_PROGRESS | (c->any_order ? HD_COMM_ANY_ORDER : 0), out);
}
