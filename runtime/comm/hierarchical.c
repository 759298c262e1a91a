#include "runtime/comm/hierarchical.h"

#include <stdlib.h>

#include "runtime/comm/algorithm_counts.h"
#include "runtime/comm/algorithms/plan.h"
#include "runtime/comm/hierarchical_plan.h"
#include "runtime/comm/wrapper.h"

struct op {
    struct hd__wrapper_op base;
    struct hd__hier_plan plan;
    uint32_t phase, started;
};

struct group {
    struct hd__wrapper_group base;
    struct hd_comm_group *sub[HD__HIER_GROUPS]; /* by HD__HIER_...; NULL: not needed */
    struct hd__hier_layout layout;
};

struct hierarchical {
    struct hd__wrapper base; /* below: HD__HIER_INTER, HD__HIER_INTRA */
    int32_t any_order, logged;
    int32_t *leaders, *local_ranks; /* by rank: the first rank of its machine, and its index there */
};

static struct hd__comm *transport_of(struct hd__wrapper *l, uint32_t where)
{
    return &l->below[where == HD__HIER_INTRA || where == HD__HIER_INTRA_AFTER ? HD__HIER_INTRA : HD__HIER_INTER];
}

/* ---- running the phases of an operation */

static int32_t start_part(struct group *g, struct hd__hier_part *p, struct hd_error *err)
{
    struct hd__comm *t = transport_of(g->base.wrapper, p->where);
    const void *source = p->call.recv;
    if (p->where != HD__HIER_DIVIDE) {
        int32_t code = t->ops.collective(g->sub[p->where], &p->call, &p->request, err);
        code = hd__comm_done(code, "collective", err);
        p->open = code == HD_OK;
        return code;
    }
    hd__comm_reduce(p->call.recv, &source, 1, g->layout.n, p->call.count, p->call.dtype, HD_AVG);
    return HD_OK;
}

/* 1: all parts of the phase are done; 0: not yet; or an error. */
static int32_t test_phase(struct op *op, struct hd_error *err)
{
    int32_t all = 1;
    for (uint32_t i = 0; i < op->plan.parts.count; i++) {
        struct hd__hier_part *p = &op->plan.parts.at[i];
        struct hd__comm *t = transport_of(op->base.group->wrapper, p->where);
        int32_t done = 0, code;
        if (p->phase != op->phase || !p->open)
            continue;
        code = hd__comm_done(t->ops.test(t->comm, p->request, &done, err), "test", err);
        if (code != HD_OK)
            return code;
        p->open = !done;
        all &= done;
    }
    return all;
}

/* Has it started all its parts in this subgroup? */
static int has_started_all(const struct op *op, uint32_t where)
{
    for (uint32_t i = 0; i < op->plan.parts.count; i++) {
        const struct hd__hier_part *p = &op->plan.parts.at[i];
        if (p->where == where && (p->phase > op->phase || (p->phase == op->phase && !op->started)))
            return 0;
    }
    return 1;
}

/* Every subgroup gets parts in the order of the operations, on all ranks. With two in flight the first never waits. */
static int may_start(const struct op *op)
{
    const struct hd__wrapper_op *head = op->base.group->head;
    int may = 1;
    for (uint32_t i = 0; i < op->plan.parts.count && head != &op->base && may; i++)
        if (op->plan.parts.at[i].phase == op->phase && op->plan.parts.at[i].where != HD__HIER_DIVIDE)
            may = head->finished || has_started_all((const struct op *)head, op->plan.parts.at[i].where);
    return may;
}

static int32_t hier_advance(struct hd__wrapper_op *head, struct hd_error *err)
{
    struct op *op = (struct op *)head;
    int32_t code = HD_OK, moved = 0;
    for (; op->phase < HD__HIER_PHASES; op->phase++, op->started = 0, moved = 1) {
        if (!op->started && !may_start(op))
            return moved;
        for (uint32_t i = 0; i < op->plan.parts.count && !op->started && code == HD_OK; i++)
            if (op->plan.parts.at[i].phase == op->phase)
                code = start_part((struct group *)head->group, &op->plan.parts.at[i], err);
        op->started = 1;
        code = code < 0 ? code : test_phase(op, err);
        if (code <= 0)
            return code < 0 ? code : moved;
        code = HD_OK;
    }
    head->finished = 1;
    return 1;
}

static int32_t hier_on_timeout(struct hd__wrapper_op *head, struct hd_error *err)
{
    struct op *op = (struct op *)head;
    for (uint32_t i = 0; i < op->plan.parts.count; i++) {
        struct hd__hier_part *p = &op->plan.parts.at[i];
        struct hd__comm *t = transport_of(head->group->wrapper, p->where);
        if (p->phase != op->phase || !p->open)
            continue;
        p->open = 0;
        return hd__comm_done(t->ops.wait(t->comm, p->request, 0, err), "wait", err);
    }
    return HD_OK;
}

static void op_clear(struct hd__wrapper_op *op)
{
    free(((struct op *)op)->plan.scratch);
    ((struct op *)op)->plan.scratch = NULL;
}

static void op_free(struct hd__wrapper_op *op)
{
    op_clear(op);
    hd__free_array(&((struct op *)op)->plan.parts);
}

/* ---- the wrapper */

static void hier_group_free(struct hd__wrapper_group *base)
{
    struct group *g = (struct group *)base;
    for (uint32_t where = 0; where < HD__HIER_GROUPS; where++) {
        struct hd__comm *t = transport_of(base->wrapper, where);
        if (g->sub[where] && t->ops.group_free)
            t->ops.group_free(g->sub[where]);
    }
}

static void hier_finish(struct hd__wrapper *wrapper)
{
    struct hierarchical *c = (struct hierarchical *)wrapper;
    free(c->leaders);
    free(c->local_ranks);
}

static int32_t create_subgroup(struct group *g, uint32_t where, const char *name, const int32_t *ranks, int32_t n,
                               struct hd_error *err)
{
    struct hd__comm *t = transport_of(g->base.wrapper, where);
    int32_t code = t->ops.group(t->comm, name, ranks, n, &g->sub[where], err);
    return hd__comm_result(code, "group", g->sub[where], err);
}

static int32_t create_subgroups(struct group *g, const int32_t *ranks, struct hd_error *err)
{
    const int32_t *local_ranks = ((struct hierarchical *)g->base.wrapper)->local_ranks;
    int32_t *some = hd__alloc((size_t)g->layout.n * sizeof *some), rc = HD_OK;
    int32_t machine = g->layout.me / g->layout.per_machine, local_rank = g->layout.me % g->layout.per_machine;
    char full[128];
    for (int32_t i = 0; i < g->layout.per_machine; i++)
        some[i] = local_ranks[ranks[machine * g->layout.per_machine + i]];
    snprintf(full, sizeof full, "%s/inside", g->base.name);
    rc = create_subgroup(g, HD__HIER_INTRA, full, some, g->layout.per_machine, err);
    snprintf(full, sizeof full, "%s/back", g->base.name);
    if (!rc && g->layout.machines > 1)
        rc = create_subgroup(g, HD__HIER_INTRA_AFTER, full, some, g->layout.per_machine, err);
    for (int32_t m = 0; m < g->layout.machines; m++)
        some[m] = ranks[m * g->layout.per_machine + local_rank];
    snprintf(full, sizeof full, "%s/across", g->base.name);
    if (!rc && g->layout.machines > 1)
        rc = create_subgroup(g, HD__HIER_INTER, full, some, g->layout.machines, err);
    free(some);
    return rc;
}

static int32_t hier_group(struct hd__wrapper_group *base, const int32_t *ranks, struct hd_error *err)
{
    struct hierarchical *c = (struct hierarchical *)base->wrapper;
    struct group *g = (struct group *)base;
    int32_t rc = HD_OK;
    for (int32_t i = 0; i < base->n; i++) /* indices of `leaders`; the transports below check the rest */
        if (ranks[i] < 0 || ranks[i] >= c->base.world.size)
            return hd_fail(err, HD_E_INVALID, "group %s names rank %d of a world of %d", base->name, ranks[i],
                           c->base.world.size);
    g->layout = hd__comm_hier_layout(c->leaders, ranks, base->n, base->me);
    if (!g->layout.per_machine && g->layout.me == 0 && !c->logged++)
        hd__log(HD_LOG_INFO, "comm",
                "group %s uses one level between machines: two need its %d members in runs of equal length, one for "
                "each machine",
                base->name, base->n);
    if (g->layout.machines != 1)
        rc = create_subgroup(g, HD__HIER_WORLD, base->name, ranks, base->n, err);
    if (!rc && (g->layout.machines == 1 || g->layout.per_machine > 1))
        rc = create_subgroups(g, ranks, err);
    uint32_t home = hd__comm_hier_home(&g->layout);
    base->home = transport_of(&c->base, home);
    base->inner_group = g->sub[home];
    return rc;
}

static int32_t hier_begin(struct hd__wrapper_op *base, struct hd_error *err)
{
    const struct group *g = (const struct group *)base->group;
    struct hierarchical *c = (struct hierarchical *)base->group->wrapper;
    struct op *op = (struct op *)base;
    const struct hd_comm_call *call = &base->call;
    (void)err;
    if (hd__comm_is_message(call) || !hd__comm_hier_applies(&g->layout))
        return HD_OK;
    op->phase = op->started = op->plan.parts.count = 0;
    int two = hd__comm_hier_supports(&g->layout, call, c->any_order);
    uint64_t scratch = two ? hd__comm_hier_scratch_bytes(&g->layout, call) : 0;
    op->plan.scratch = scratch ? hd__alloc(scratch) : NULL;
    hd__comm_hier_build_plan(&op->plan, &g->layout, call, two);
    if (two)
        hd__comm_count_algorithm(transport_of(&c->base, HD__HIER_INTER)->counts, g->base.name, call->coll,
                                 "two levels");
    return HD__WRAPPER_QUEUE;
}

static const struct hd__wrapper_kind hier_kind = {.op_bytes = sizeof(struct op),
                                                  .group_bytes = sizeof(struct group),
                                                  .max_inflight = 2, /* may_start assumes two */
                                                  .begin = hier_begin,
                                                  .advance = hier_advance,
                                                  .on_timeout = hier_on_timeout,
                                                  .op_clear = op_clear,
                                                  .op_free = op_free,
                                                  .group = hier_group,
                                                  .group_free = hier_group_free,
                                                  .finish = hier_finish};

struct hd_world hd__comm_hier_intra_world(const struct hd_world *world, const int32_t *leaders, int32_t *job_ranks)
{
    struct hd_world intra = *world;
    intra.rank = intra.size = 0;
    for (int32_t r = 0; r < world->size; r++) {
        if (leaders[r] != leaders[world->rank])
            continue;
        intra.rank += r < world->rank;
        job_ranks[intra.size++] = hd_job_rank(world, r);
    }
    intra.local_rank = intra.rank;
    intra.local_size = intra.size;
    intra.job_ranks = job_ranks;
    return intra;
}

void hd__comm_hier_create(struct hd__comm *inter, struct hd__comm *intra, const struct hd_world *world,
                          const int32_t *leaders, struct hd__comm *out)
{
    size_t size = (size_t)world->size;
    struct hierarchical *c = hd__alloc(sizeof *c);
    c->base = (struct hd__wrapper){.kind = &hier_kind,
                                   .below = {[HD__HIER_INTER] = *inter, [HD__HIER_INTRA] = *intra},
                                   .n_below = 2,
                                   .world = *world};
    c->any_order = (inter->tuning && inter->tuning->any_order) || (inter->ops.caps & HD_COMM_ANY_ORDER);
    c->leaders = hd__alloc(size * sizeof *leaders);
    memcpy(c->leaders, leaders, size * sizeof *leaders);
    c->local_ranks = hd__comm_hier_local_ranks(leaders, world->size);
    hd__comm_wrapper_make_table(&c->base, HD_COMM_HOST_PROGRESS | (c->any_order ? HD_COMM_ANY_ORDER : 0), out);
}
