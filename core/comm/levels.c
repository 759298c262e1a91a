#include "core/comm/levels.h"

#include <stdlib.h>

#include "core/comm/algorithms/schedule.h"
#include "core/comm/levels_plan.h"
#include "core/comm/ran.h"
#include "core/comm/requests.h"

struct op {
    struct hd__request request;
    struct op *next;
    struct hd_comm_group *group;
    struct hd__levels_plan plan;
    uint32_t phase, started;
    int done, passed;
    int32_t code, which; /* which: of a passed request, the transport that has it */
    hd_request inner;
};

struct hd_comm_group {
    struct hd_comm *comm;
    struct hd_comm_group *next;
    struct hd_comm_group *sub[3]; /* HD__ACROSS, HD__INSIDE, HD__WORLD; NULL where there is none */
    struct hd__spread lies;
    char name[64];
    struct op *head, **tail;
    struct hd_error error;
};

struct hd_comm {
    struct hd__comm across, inside;
    int32_t rank, size, any_order, told;
    int32_t *firsts, *places; /* of each rank: the first rank of its machine, and its number there */
    struct hd_comm_group *groups;
    struct hd__requests ops; /* of struct op */
};

static struct hd__comm *transport(struct hd_comm *c, uint32_t where)
{
    return where == HD__INSIDE ? &c->inside : &c->across;
}

/* ---- requests */

static struct op *op_new(struct hd_comm_group *g)
{
    struct op *op = hd__requests_take(&g->comm->ops, sizeof *op);
    op->next = NULL;
    op->group = g;
    op->done = op->passed = 0;
    op->code = HD_OK;
    op->phase = op->started = op->plan.parts.count = 0;
    return op;
}

static void release(struct hd_comm *c, struct op *op)
{
    if (op->code != HD_OK && op->plan.scratch) { /* parts of it may be under way: its memory stays until the transports close */
        hd__requests_drop(&op->request);
        return;
    }
    free(op->plan.scratch);
    op->plan.scratch = NULL;
    hd__requests_give(&c->ops, &op->request);
}

static int32_t pass(struct hd_comm_group *g, int32_t which, int32_t code, hd_request inner, hd_request *request)
{
    struct op *op;
    if (code != HD_OK)
        return code;
    op = op_new(g);
    op->passed = 1;
    op->which = which;
    op->inner = inner;
    *request = hd__request_number(&op->request);
    return HD_OK;
}

static void fail(struct hd_comm_group *g, const struct hd_error *err)
{
    if (g->error.code == HD_OK)
        g->error = *err;
    for (struct op *op = g->head, *next; op; op = next) {
        next = op->next;
        op->done = 1;
        op->code = g->error.code;
    }
    g->head = NULL;
    g->tail = &g->head;
}

/* ---- running: the phases of an operation, one operation of a group at a time */

static int32_t start_part(struct hd_comm_group *g, struct hd__part *p, struct hd_error *err)
{
    struct hd__comm *t = transport(g->comm, p->where);
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
    struct hd_comm_group *g = op->group;
    int32_t all = 1;
    for (uint32_t i = 0; i < op->plan.parts.count; i++) {
        struct hd__part *p = &op->plan.parts.at[i];
        struct hd__comm *t = transport(g->comm, p->where);
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

static int advance(struct hd_comm_group *g)
{
    struct op *op = g->head;
    struct hd_error err = HD_ERROR_INIT;
    int32_t code = HD_OK, moved = 0;
    for (; op->phase < HD__PHASES && code >= 0; op->phase++, op->started = 0, moved = 1) {
        for (uint32_t i = 0; i < op->plan.parts.count && !op->started && code == HD_OK; i++)
            if (op->plan.parts.at[i].phase == op->phase)
                code = start_part(g, &op->plan.parts.at[i], &err);
        op->started = 1;
        code = code < 0 ? code : test_phase(op, &err);
        if (code <= 0)
            break;
        code = HD_OK;
    }
    if (code < 0) {
        fail(g, &err);
        return 1;
    }
    if (op->phase < HD__PHASES)
        return moved;
    g->head = op->next;
    if (!g->head)
        g->tail = &g->head;
    op->done = 1;
    return 1;
}

/* ---- slots */

static void levels_group_free(struct hd_comm_group *g)
{
    struct hd_error err = HD_ERROR_INIT;
    if (!g)
        return;
    hd_fail(&err, HD_E_CANCELLED, "the group was freed while an operation was under way");
    fail(g, &err);
    for (struct hd_comm_group **at = &g->comm->groups; *at; at = &(*at)->next)
        if (*at == g) {
            *at = g->next;
            break;
        }
    for (uint32_t i = 0; i < g->comm->ops.at.count; i++) {
        struct op *op = g->comm->ops.at.at[i];
        op->group = op->group == g ? NULL : op->group;
    }
    for (uint32_t where = 0; where < 3; where++)
        if (g->sub[where] && transport(g->comm, where)->ops.group_free)
            transport(g->comm, where)->ops.group_free(g->sub[where]);
    free(g);
}

static void levels_close(struct hd_comm *c)
{
    if (!c)
        return;
    while (c->groups)
        levels_group_free(c->groups);
    hd__comm_close(&c->inside);
    hd__comm_close(&c->across);
    for (uint32_t i = 0; i < c->ops.at.count; i++) {
        struct op *op = c->ops.at.at[i];
        hd__free_array(&op->plan.parts);
        free(op->plan.scratch);
    }
    hd__requests_free(&c->ops);
    free(c->firsts);
    free(c->places);
    free(c);
}

static int32_t levels_memory(struct hd_comm *c, size_t bytes, void **base, struct hd_error *err)
{
    return c->inside.ops.memory(c->inside.comm, bytes, base, err);
}

static int32_t make_sub(struct hd_comm_group *g, uint32_t where, const char *name, const int32_t *ranks, int32_t n,
                        struct hd_error *err)
{
    struct hd__comm *t = transport(g->comm, where);
    return t->ops.group(t->comm, name, ranks, n, &g->sub[where], err);
}

static int32_t make_subs(struct hd_comm_group *g, const char *name, const int32_t *ranks, struct hd_error *err)
{
    struct hd_comm *c = g->comm;
    int32_t *some = hd__alloc((size_t)g->lies.n * sizeof *some), rc = HD_OK;
    int32_t machine = g->lies.me / g->lies.locals, place = g->lies.me % g->lies.locals;
    char full[128];
    for (int32_t i = 0; i < g->lies.locals; i++)
        some[i] = c->places[ranks[machine * g->lies.locals + i]];
    snprintf(full, sizeof full, "%s/inside", name);
    rc = make_sub(g, HD__INSIDE, full, some, g->lies.locals, err);
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
    g->comm = c;
    for (int32_t i = 0; i < n; i++)
        me = ranks[i] == c->rank ? i : me;
    g->lies = hd__levels_spread(c->firsts, ranks, n, me);
    snprintf(g->name, sizeof g->name, "%s", name);
    g->tail = &g->head;
    g->error = (struct hd_error)HD_ERROR_INIT;
    g->next = c->groups;
    c->groups = g;
    if (!g->lies.locals && g->lies.me == 0 && !c->told++) /* once: other groups will be like it */
        hd__log(HD_LOG_INFO, "comm", "group %s goes in one level between machines: they do not have as many of its %d members each, "
                "one machine after the other", name, n);
    if (g->lies.machines != 1)
        rc = make_sub(g, HD__WORLD, name, ranks, n, err);
    if (!rc && (g->lies.machines == 1 || g->lies.locals > 1))
        rc = make_subs(g, name, ranks, err);
    if (rc)
        levels_group_free(g);
    else
        *group = g;
    return rc;
}

static int32_t levels_collective(struct hd_comm_group *g, const struct hd_comm_call *call, hd_request *request,
                                 struct hd_error *err)
{
    struct hd__comm *t = transport(g->comm, hd__levels_home(&g->lies));
    struct op *op;
    hd_request inner = 0;
    uint64_t scratch;
    int two;
    if (!hd__levels_two(&g->lies)) { /* no order to keep */
        int32_t code = t->ops.collective(g->sub[hd__levels_home(&g->lies)], call, &inner, err);
        return pass(g, (int32_t)hd__levels_home(&g->lies), code, inner, request);
    }
    if (g->error.code != HD_OK)
        return hd_fail(err, g->error.code, "%s", g->error.message);
    op = op_new(g);
    two = hd__levels_can(&g->lies, call, g->comm->any_order);
    scratch = two ? hd__levels_scratch(&g->lies, call) : 0;
    op->plan.scratch = scratch ? hd__alloc(scratch) : NULL;
    hd__levels_plan(&op->plan, &g->lies, call, two);
    if (two)
        hd__ran_count(g->comm->across.ran, g->name, call->coll, "two levels");
    *g->tail = op;
    g->tail = &op->next;
    if (g->head == op)
        advance(g);
    *request = hd__request_number(&op->request);
    return HD_OK;
}

static int32_t levels_send(struct hd_comm_group *g, int32_t peer, uint32_t stream, const void *data, uint64_t bytes,
                           hd_request *request, struct hd_error *err)
{
    uint32_t home = hd__levels_home(&g->lies);
    hd_request inner = 0;
    int32_t code = transport(g->comm, home)->ops.send(g->sub[home], peer, stream, data, bytes, &inner, err);
    return pass(g, (int32_t)home, code, inner, request);
}

static int32_t levels_recv(struct hd_comm_group *g, int32_t peer, uint32_t stream, void *data, uint64_t bytes,
                           hd_request *request, struct hd_error *err)
{
    uint32_t home = hd__levels_home(&g->lies);
    hd_request inner = 0;
    int32_t code = transport(g->comm, home)->ops.recv(g->sub[home], peer, stream, data, bytes, &inner, err);
    return pass(g, (int32_t)home, code, inner, request);
}

static int32_t levels_progress(struct hd_comm *c, struct hd_error *err)
{
    int32_t a = c->inside.ops.progress(c->inside.comm, err), b = a < 0 ? a : c->across.ops.progress(c->across.comm, err);
    int32_t moved = a | b;
    if (b < 0)
        return b;
    for (struct hd_comm_group *g = c->groups; g; g = g->next)
        if (g->head)
            moved |= advance(g);
    return moved;
}

static int32_t levels_test(struct hd_comm *c, hd_request request, int32_t *done, struct hd_error *err)
{
    struct op *op = hd__requests_find(&c->ops, request, err);
    int32_t code;
    if (!op)
        return HD_E_INVALID;
    if (op->passed) {
        struct hd__comm *t = transport(c, (uint32_t)op->which);
        code = t->ops.test(t->comm, op->inner, done, err);
        if (code != HD_OK || *done)
            release(c, op);
        return code;
    }
    *done = op->done;
    if (!op->done)
        return HD_OK;
    code = op->code;
    if (code != HD_OK && op->group && err)
        err->peer = op->group->error.peer;
    if (code != HD_OK)
        hd_fail(err, code, "%s", op->group ? op->group->error.message : "the group was freed while the operation was under way");
    release(c, op);
    return code;
}

/* The transport below is asked to wait, no longer: it knows who is late, and tells the others. */
static int32_t ask_late(struct hd_comm *c, const struct op *op, struct hd_error *err)
{
    struct hd_comm_group *g = op->group;
    struct op *head = g ? g->head : NULL;
    struct hd_error why = HD_ERROR_INIT;
    if (op->passed)
        return transport(c, (uint32_t)op->which)->ops.wait(transport(c, (uint32_t)op->which)->comm, op->inner, hd__now(), err);
    for (uint32_t i = 0; head && i < head->plan.parts.count; i++) {
        struct hd__part *p = &head->plan.parts.at[i];
        if (p->phase != head->phase || !p->open)
            continue;
        p->open = 0;
        if (transport(c, p->where)->ops.wait(transport(c, p->where)->comm, p->request, hd__now(), &why) != HD_OK)
            fail(g, &why);
        break;
    }
    return HD_OK;
}

static int32_t levels_wait(struct hd_comm *c, hd_request request, double deadline, struct hd_error *err)
{
    for (uint32_t idle = 0;; idle++) {
        int32_t done = 0, code = levels_test(c, request, &done, err);
        if (code != HD_OK || done)
            return code;
        code = levels_progress(c, err);
        if (code < 0)
            return code;
        idle = code ? 0 : idle;
        hd__relax(idle);
        if (idle % 64 == 63 && hd__now() >= deadline) {
            struct op *op = hd__requests_find(&c->ops, request, NULL);
            int passed = op->passed;
            code = ask_late(c, op, err);
            if (passed) {
                release(c, op);
                return code;
            }
        }
    }
}

static void levels_abort(struct hd_comm *c, const char *reason)
{
    c->inside.ops.abort(c->inside.comm, reason);
    c->across.ops.abort(c->across.comm, reason);
}

void hd__levels_create(struct hd__comm *across, struct hd__comm *inside, int32_t rank, const int32_t *firsts, int32_t size,
                       struct hd__comm *out)
{
    struct hd_comm *c = hd__alloc(sizeof *c);
    c->across = *across;
    c->inside = *inside;
    c->any_order = (across->tuning && across->tuning->any_order) || (across->ops.caps & HD_COMM_ANY_ORDER);
    c->rank = rank;
    c->size = size;
    c->firsts = hd__alloc((size_t)size * sizeof *firsts);
    memcpy(c->firsts, firsts, (size_t)size * sizeof *firsts);
    c->places = hd__levels_places(firsts, size);
    out->comm = c;
    out->ops = (struct hd_comm_ops){.struct_size = sizeof out->ops,
                                    .caps = HD_COMM_HOST_PROGRESS | (c->any_order ? HD_COMM_ANY_ORDER : 0),
                                    .close = levels_close,
                                    .memory = inside->ops.memory ? levels_memory : NULL,
                                    .group = levels_group,
                                    .group_free = levels_group_free,
                                    .collective = levels_collective,
                                    .send = levels_send,
                                    .recv = levels_recv,
                                    .progress = levels_progress,
                                    .test = levels_test,
                                    .wait = levels_wait,
                                    .abort = levels_abort};
}
