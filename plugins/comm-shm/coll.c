/* Collectives, all by one scheme, in the order of the group:
 *
 *   post    every member writes what it is about to do, and where its buffers lie, into its slot
 *   gather  it waits for everyone's slot and compares: a difference is a mismatch, found by all at once
 *   small   operations carry their data in the slot: every member has all inputs and computes its own result;
 *           finished. A member that needs only the root's, or nothing, does not wait for the rest: those are compared
 *           up to SHM_AHEAD operations later, many at once
 *   work    else each member does its share, reading and writing the others' buffers where they lie
 *   drain   and waits until all have done theirs: then its buffers are its own again
 *
 * A buffer outside the arena is staged: the operation is cut into steps of a chunk, inputs are copied to the member's
 * staging before a step, outputs from it afterwards; copying in for step k + 1 happens while others work at step k.
 *
 *                    others read my   others write my   my share
 *   all_reduce       send             recv              a slice of the elements: n sources, n destinations
 *   all_gather       -                recv              my block, to all
 *   reduce_scatter   send             -                 my block: n sources
 *   all_to_all       -                recv              my blocks, one to each
 *   broadcast        send (root's)    -                 my copy of the root's
 *   reduce           send             recv (root's)     a slice: n sources, to the root
 */
#include "coll.h"

/* ---- what is compared */

uint64_t shm_coll_what(const struct shm_op *op)
{
    return op->coll | op->dtype << 8 | op->redop << 16 | (uint64_t)(uint32_t)op->root << 32;
}

void shm_coll_text(uint64_t what, uint64_t count, uint64_t tag, char out[160])
{
    static const char *const redops[] = {"", " sum", " max", " avg"};
    uint32_t coll = what & 255;
    const struct shm_rule *r = coll > 0 && coll <= HD_COLL_BARRIER ? &shm_rules[coll] : NULL;
    char root[24] = "", body[64] = "";
    if (coll == HD_COLL_BROADCAST || coll == HD_COLL_REDUCE)
        snprintf(root, sizeof root, " root %d", (int)(what >> 32));
    if (coll != HD_COLL_BARRIER)
        snprintf(body, sizeof body, " %s%s count %llu", hd_dtype_name(what >> 8 & 255), redops[what >> 16 & 3],
                 (unsigned long long)count);
    snprintf(out, 160, "%s%s%s tag %llu", r ? r->name : "?", body, root, (unsigned long long)tag);
}

static inline struct shm_said *said_at(const struct shm_group *g, int32_t i, uint64_t seq)
{
    return &g->member[i].said[seq % SHM_SLOTS];
}

/* Odd factors, mixed downwards: no small change of one word undoes that of another. */
static inline uint64_t digest(uint64_t past, const struct shm_said *said)
{
    uint64_t x = said->what * UINT64_C(0x9e3779b97f4a7c15);
    x ^= said->count * UINT64_C(0xc2b2ae3d27d4eb4f) ^ said->tag * UINT64_C(0x165667b19e3779f9);
    x = (past ^ x ^ x >> 32) * UINT64_C(0xd6e8feb86659fd93);
    return x ^ x >> 32;
}

/* ---- posting */

static void post(struct shm_op *op)
{
    struct shm_group *g = op->group;
    struct shm_slot *slot = slot_of(op, g->me);
    struct shm_said *said = said_at(g, g->me, op->seq);
    uint64_t bytes = send_bytes(op);
    *said = (struct shm_said){shm_coll_what(op), op->count, op->tag};
    slot->past = g->past = digest(g->past, said);
    if (op->steps == 0) {
        if (bytes && (op->coll != HD_COLL_BROADCAST || op->root == g->me))
            memcpy(payload(op, g->me, bytes), op->send, bytes);
    } else {
        slot->refs[0] = op->send_ref = shm_ref_of(g->comm, op->send, bytes);
        slot->refs[1] = op->recv_ref = shm_ref_of(g->comm, op->recv, recv_bytes(op));
        shm_copy_in(op);
    }
    atomic_store_explicit(&slot->seq, op->seq, memory_order_release);
    shm_ring_group(g);
    op->state = OP_POSTED;
}

/* ---- gathering */

/* 1: all members have reached `goal`. Continues where it stopped the last time. */
static inline int all_at(struct shm_op *op, int done, uint64_t goal)
{
    struct shm_group *g = op->group;
    for (; op->arrived < g->n; op->arrived++) {
        struct shm_part *part = g->member[op->arrived].part;
        if (atomic_load_explicit(done ? &part->done : &part->ready, memory_order_acquire) < goal)
            return 0;
    }
    op->arrived = 0;
    return 1;
}

static void fail_mismatch(struct shm_group *g, int32_t i, uint64_t seq)
{
    const struct shm_said *mine = said_at(g, g->me, seq), *theirs = said_at(g, i, seq);
    struct hd_error e = HD_ERROR_INIT;
    char here[160], there[160];
    shm_coll_text(mine->what, mine->count, mine->tag, here);
    shm_coll_text(theirs->what, theirs->count, theirs->tag, there);
    e.peer = shm_job_rank(g, i);
    hd_fail(&e, HD_E_MISMATCH, "shm: operation %llu of group %s differs: rank %d has %s; rank %d has %s",
            (unsigned long long)seq, g->name, shm_job_rank(g, g->me), here, shm_job_rank(g, i), there);
    shm_fail(g, &e);
}

static inline int has_posted(const struct shm_group *g, int32_t i, uint64_t seq)
{
    return atomic_load_explicit(&slot_at(g, i, seq)->seq, memory_order_acquire) == seq;
}

static inline int is_same(const struct shm_group *g, int32_t i, uint64_t seq)
{
    return slot_at(g, i, seq)->past == slot_at(g, g->me, seq)->past;
}

/* Has member i posted what this member did, up to `seq`, which both have? 0: it has not, and the group failed. */
static inline int check_same(struct shm_group *g, int32_t i, uint64_t seq)
{
    uint64_t first = g->compared + 1;
    if (__builtin_expect(is_same(g, i, seq), 1))
        return 1;
    while (first < seq && is_same(g, i, first))
        first++;
    fail_mismatch(g, i, first);
    return 0;
}

enum { NOT_YET = 0, MATCH = 1, FAILED = -1 };

/* Compares the calls of all members up to `seq`, which this one has posted. It continues where it
 * stopped the last time. */
static inline int compare_all(struct shm_op *op, uint64_t seq)
{
    struct shm_group *g = op->group;
    if (g->compared >= seq)
        return MATCH;
    for (; op->arrived < g->n; op->arrived++)
        if (!has_posted(g, op->arrived, seq))
            return NOT_YET;
    op->arrived = 0;
    for (int32_t i = 0; i < g->n; i++)
        if (!check_same(g, i, seq))
            return FAILED;
    g->compared = seq;
    return MATCH;
}

/* Other members may wait for different members, each before it compares with this one: compare_all alone would find a
 * difference later. */
void shm_coll_compare(struct shm_group *g)
{
    uint64_t posted = !g->head ? g->seq : g->head->state == OP_QUEUED ? g->head->seq - 1 : g->head->seq;
    for (int32_t i = 0; i < g->n; i++) {
        uint64_t last = posted;
        while (last > g->compared && !has_posted(g, i, last))
            last--;
        if (last > g->compared && !check_same(g, i, last))
            return;
    }
}

/* The members that the operation waits for when it is posted. */
static int awaits(const struct shm_op *op)
{
    int root = op->root == op->group->me;
    if (op->steps == 0 && RULE(op)->reads == FROM_ROOT)
        return root ? FROM_NONE : FROM_ROOT;
    if (op->steps == 0 && RULE(op)->writes == FROM_ROOT && !root)
        return FROM_NONE;
    return FROM_ALL;
}

static inline int compare_awaited(struct shm_op *op)
{
    switch (awaits(op)) {
    case FROM_NONE:
        return MATCH;
    case FROM_ROOT:
        if (!has_posted(op->group, op->root, op->seq))
            return NOT_YET;
        return check_same(op->group, op->root, op->seq) ? MATCH : FAILED;
    default:
        return compare_all(op, op->seq);
    }
}

/* The operation that all members must have posted before this member posts this one. A member that is too far ahead
 * waits until it is so by half: so slots of others are not fetched at every operation. */
static inline uint64_t before(const struct shm_op *op)
{
    return op->group->compared + SHM_AHEAD >= op->seq ? 0 : op->seq - SHM_AHEAD / 2;
}

/* Is any exposed buffer of any member outside its arena? */
static int any_staged(struct shm_op *op)
{
    struct shm_group *g = op->group;
    for (int32_t i = 0; i < g->n; i++)
        for (int recv = 0; recv < 2; recv++)
            if (exposed(op, i, recv) && !slot_of(op, i)->refs[recv])
                return 1;
    return 0;
}

/* ---- the machine */

static uint64_t mark(const struct shm_op *op, uint64_t steps)
{
    return op->seq << SHM_STEP_BITS | steps;
}

static void pop(struct shm_group *g, struct shm_op *op)
{
    g->head = op->next;
    if (!g->head)
        g->tail = &g->head;
    shm_op_finish(op, HD_OK);
}

/* Prefetches lines for the next operations: a member that did not have to wait finds them written in all likelihood.
 * Earlier, they would be taken from the members that write them. */
static void fetch_ahead(const struct shm_op *op)
{
    struct shm_group *g = op->group;
    uint64_t seq = op->seq + SHM_FETCH, bytes = send_bytes(op), most = SHM_MIN(bytes, (uint64_t)4 * SHM_LINE);
    for (int32_t i = 0; i < g->n; i++) {
        if (i == g->me || (RULE(op)->reads == FROM_ROOT && i != op->root))
            continue;
        shm_fetch(slot_at(g, i, seq));
        for (uint64_t at = 0; bytes > SHM_TINY && at < most; at += SHM_LINE)
            shm_fetch(payload_at(g, i, seq) + at);
    }
}

/* The members that it waits for have posted theirs. */
static void begin(struct shm_op *op)
{
    if (op->steps == 0) {
        if (is_rooted(op) && awaits(op) != FROM_NONE && !op->group->comm->idle)
            fetch_ahead(op);
        shm_small(op);
        pop(op->group, op);
        return;
    }
    if (!any_staged(op)) { /* post() had cut it into steps in case */
        op->steps = 1;
        op->per_step = op->count;
    }
    shm_plan_step(op);
    op->state = OP_WORK;
}

static void share_done(struct shm_op *op)
{
    struct shm_part *mine = op->group->member[op->group->me].part;
    atomic_store_explicit(&mine->done, mark(op, op->step + 1), memory_order_release);
    if (op->step + 1 < op->steps) {
        op->step++;
        shm_copy_in(op);
        op->step--;
        atomic_store_explicit(&mine->ready, mark(op, op->step + 1), memory_order_release);
    }
    shm_ring_group(op->group);
    op->state = OP_DRAIN;
}

/* 1: one state forward; 0: another member has to post or finish first. */
static int advance(struct shm_group *g, struct shm_op *op)
{
    int rc;
    switch (op->state) {
    case OP_QUEUED:
        rc = compare_all(op, before(op));
        if (rc == MATCH)
            post(op);
        if (rc == MATCH && awaits(op) == FROM_NONE)
            begin(op);
        return rc != NOT_YET;
    case OP_POSTED:
        rc = compare_awaited(op);
        if (rc == MATCH)
            begin(op);
        return rc != NOT_YET;
    case OP_WORK:
        if (op->step && op->cursor == 0 && op->pass == 0 && !all_at(op, 0, mark(op, op->step)))
            return 0;
        if (shm_work(op))
            share_done(op);
        return 1;
    default:
        if (!all_at(op, 1, mark(op, op->step + 1)))
            return 0;
        shm_copy_out(op);
        if (++op->step == op->steps) {
            pop(g, op);
        } else {
            shm_plan_step(op);
            op->state = OP_WORK;
        }
        return 1;
    }
}

int shm_coll_advance(struct shm_group *g)
{
    int moved = 0;
    for (struct shm_op *op = g->head; op; op = g->head) {
        int before = op->state;
        if (!advance(g, op))
            break;
        moved = 1;
        if (before == OP_WORK && g->head == op)
            break; /* a quantum a call */
    }
    return moved;
}

int shm_coll_drain(struct shm_group *g)
{
    return g->head && g->head->state == OP_DRAIN && advance(g, g->head);
}

int shm_coll_late(const struct shm_op *op, int32_t i)
{
    const struct shm_member *m = &op->group->member[i];
    switch (op->state) {
    case OP_QUEUED:
        return before(op) && !has_posted(op->group, i, before(op));
    case OP_POSTED:
        return (awaits(op) == FROM_ALL || i == op->root) && !has_posted(op->group, i, op->seq);
    case OP_WORK:
        return op->step && atomic_load(&m->part->ready) < mark(op, op->step);
    default:
        return atomic_load(&m->part->done) < mark(op, op->step + 1);
    }
}

/* ---- enqueueing */

static int32_t check_call(const struct shm_group *g, const struct hd_comm_call *call, struct hd_error *err)
{
    if (call->coll < HD_COLL_ALL_REDUCE || call->coll > HD_COLL_BARRIER)
        return hd_fail(err, HD_E_UNSUPPORTED, "shm: collective %u is unknown", call->coll);
    if (call->coll == HD_COLL_BARRIER)
        return HD_OK;
    const struct shm_rule *r = &shm_rules[call->coll];
    size_t esize = hd_dtype_size(call->dtype);
    if (!esize)
        return hd_fail(err, HD_E_UNSUPPORTED, "shm: %s of dtype %u", r->name, call->dtype);
    if (r->reduces && (call->redop < HD_SUM || call->redop > HD_AVG))
        return hd_fail(err, HD_E_UNSUPPORTED, "shm: %s with reduction %u", r->name, call->redop);
    if ((call->coll == HD_COLL_BROADCAST || call->coll == HD_COLL_REDUCE) && (call->root < 0 || call->root >= g->n))
        return hd_fail(err, HD_E_INVALID, "shm: %s from root %d in group %s of %d", r->name, call->root, g->name, g->n);
    if (call->coll == HD_COLL_ALL_TO_ALL && call->send == call->recv && call->count && g->n > 1)
        return hd_fail(err, HD_E_INVALID, "shm: all_to_all cannot be in place");
    if (call->count > (UINT64_C(1) << 55) / esize / (uint64_t)g->n)
        return hd_fail(err, HD_E_INVALID, "shm: %s of %llu elements", r->name, (unsigned long long)call->count);
    return HD_OK;
}

/* How it is cut if it has to be staged; 0 steps: small. Depends only on what all members agree on. */
static void cut(struct shm_op *op)
{
    const struct shm_settings *s = &op->group->comm->settings;
    uint64_t most = SHM_MAX(blocks(RULE(op)->send_blocks, op->group->n), blocks(RULE(op)->recv_blocks, op->group->n));
    op->steps = 0;
    op->per_step = op->count;
    uint64_t small = is_rooted(op) ? op->group->small_rooted : op->group->small_met;
    if (op->coll == HD_COLL_BARRIER || op->count == 0 || send_bytes(op) <= small)
        return;
    op->per_step = SHM_MAX((uint64_t)s->stage / op->esize / most / 16 * 16, (uint64_t)1);
    op->steps = (op->count + op->per_step - 1) / op->per_step;
}

int32_t shm_collective(struct hd_comm_group *group, const struct hd_comm_call *call, hd_request *request,
                       struct hd_error *err)
{
    struct shm_group *g = (struct shm_group *)group;
    int32_t code = shm_usable(g, err);
    if (code != HD_OK || (code = check_call(g, call, err)) != HD_OK)
        return code;
    struct shm_op *op = shm_op_new(g, SHM_COLLECTIVE, err);
    if (!op)
        return HD_E_NOMEM;
    op->coll = call->coll;
    op->dtype = call->dtype;
    op->redop = RULE(op)->reduces ? call->redop : 0;
    op->root = call->coll == HD_COLL_BROADCAST || call->coll == HD_COLL_REDUCE ? call->root : 0;
    op->send = call->send;
    op->recv = call->recv;
    op->count = call->coll == HD_COLL_BARRIER ? 0 : call->count;
    op->tag = call->tag;
    op->esize = call->coll == HD_COLL_BARRIER ? 1 : (uint32_t)hd_dtype_size(call->dtype);
    if (call->coll == HD_COLL_BARRIER)
        op->dtype = 0;
    op->send_ref = op->recv_ref = 0;
    op->seq = ++g->seq;
    cut(op);
    *g->tail = op;
    g->tail = &op->next;
    if (g->head == op)
        advance(g, op);
    *request = rq_number(&op->id);
    return HD_OK;
}
