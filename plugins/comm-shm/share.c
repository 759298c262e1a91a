/* A member's share of a collective: from where its data lies to where it belongs. */
#include "coll.h"

const struct shm_rule shm_rules[HD_COLL_BARRIER + 1] = {
    [HD_COLL_ALL_REDUCE] = {"all_reduce", FROM_ALL, FROM_ALL, BY_SLICE, 1, 1, 1},
    [HD_COLL_ALL_GATHER] = {"all_gather", FROM_ME, FROM_ALL, 0, 0, 1, 0},
    [HD_COLL_REDUCE_SCATTER] = {"reduce_scatter", FROM_ALL, FROM_ME, 0, 1, 0, 1},
    [HD_COLL_ALL_TO_ALL] = {"all_to_all", FROM_ME, FROM_ALL, BY_PEER, 0, 0, 0},
    [HD_COLL_BROADCAST] = {"broadcast", FROM_ROOT, FROM_ME, 0, 0, 1, 1},
    [HD_COLL_REDUCE] = {"reduce", FROM_ALL, FROM_ROOT, BY_SLICE, 1, 1, 1},
    [HD_COLL_BARRIER] = {"barrier", FROM_NONE, FROM_NONE, 0, 0, 0, 0},
};

/* ---- where it lies */

/* Address of element `at` of the step in `block` of member i's send (or recv) buffer, for this member to read
 * (write). */
static uint8_t *element_address(struct shm_op *op, int32_t i, int recv, uint64_t block, uint64_t at)
{
    struct shm_group *g = op->group;
    struct shm_member *m = &g->member[i];
    uint64_t whole = block * op->count + step_start(op) + at;
    if (i == g->me)
        return (recv ? (uint8_t *)op->recv : (uint8_t *)(uintptr_t)op->send) + whole * op->esize;
    shm_ref ref = slot_of(op, i)->refs[recv];
    if (ref)
        return shm_at(g->comm, m->peer, ref) + whole * op->esize;
    return (recv ? m->out : m->in)[op->step & 1] + (block * op->per_step + at) * op->esize;
}

/* Fills staging for the present step. */
void shm_copy_in(struct shm_op *op)
{
    struct shm_group *g = op->group;
    uint64_t n = step_count(op);
    if (op->send_ref || !exposed(op, g->me, 0))
        return;
    for (uint64_t p = 0; p < blocks(RULE(op)->send_blocks, g->n); p++)
        memcpy(g->member[g->me].in[op->step & 1] + p * op->per_step * op->esize,
               (const uint8_t *)op->send + (p * op->count + step_start(op)) * op->esize, n * op->esize);
}

/* Copies out what other members wrote to this member's staging in this step. Its own share went to its buffer
 * directly. */
void shm_copy_out(struct shm_op *op)
{
    struct shm_group *g = op->group;
    uint64_t n = step_count(op), first = 0, last = 0;
    if (op->recv_ref || !exposed(op, g->me, 1))
        return;
    if (RULE(op)->share == BY_SLICE) {
        first = op->first;
        last = op->last;
    }
    for (uint64_t p = 0; p < blocks(RULE(op)->recv_blocks, g->n); p++) {
        const uint8_t *from = g->member[g->me].out[op->step & 1] + p * op->per_step * op->esize;
        uint8_t *to = (uint8_t *)op->recv + (p * op->count + step_start(op)) * op->esize;
        if (RULE(op)->share != BY_SLICE && p == (uint64_t)g->me)
            continue;
        memcpy(to, from, first * op->esize);
        memcpy(to + last * op->esize, from + last * op->esize, (n - last) * op->esize);
    }
}

/* ---- small operations */

/* Member i's send buffer. This member's own lies where it was: what it has just written to its slot, it would wait
 * for. */
static const uint8_t *input(const struct shm_op *op, int32_t i, uint64_t bytes)
{
    return i == op->group->me ? op->send : payload(op, i, bytes);
}

static void small_copy(void *to, const void *from, uint64_t bytes)
{
    if (to != from && bytes)
        memmove(to, from, bytes);
}

static void small_reduce(struct shm_op *op, uint64_t block)
{
    struct shm_group *g = op->group;
    uint64_t bytes = send_bytes(op), skip = block * op->count * op->esize;
    uint8_t *dst = op->recv;
    for (int32_t i = 0; i < g->n; i++)
        g->src[i] = input(op, i, bytes) + skip;
    shm_kernel(g->comm->kernels, op->dtype, op->redop)(&dst, 1, g->src, g->n, op->count, 0);
}

void shm_small(struct shm_op *op)
{
    struct shm_group *g = op->group;
    uint64_t bytes = send_bytes(op), block = op->count * op->esize;
    if (op->count == 0)
        return;
    switch (op->coll) {
    case HD_COLL_ALL_REDUCE:
        small_reduce(op, 0);
        break;
    case HD_COLL_REDUCE_SCATTER:
        small_reduce(op, (uint64_t)g->me);
        break;
    case HD_COLL_REDUCE:
        if (g->me == op->root)
            small_reduce(op, 0);
        break;
    case HD_COLL_ALL_GATHER:
        for (int32_t i = 0; i < g->n; i++)
            small_copy((uint8_t *)op->recv + (uint64_t)i * block, input(op, i, bytes), block);
        break;
    case HD_COLL_ALL_TO_ALL:
        for (int32_t i = 0; i < g->n; i++)
            small_copy((uint8_t *)op->recv + (uint64_t)i * block, input(op, i, bytes) + (uint64_t)g->me * block, block);
        break;
    case HD_COLL_BROADCAST:
        small_copy(op->recv, input(op, op->root, bytes), block);
        break;
    default:
        break; /* barrier */
    }
}

/* ---- the share of a step */

/* Sets first, last, passes and the addresses of the present pass. */
static void plan_pass(struct shm_op *op)
{
    struct shm_group *g = op->group;
    const struct shm_rule *r = RULE(op);
    int32_t peer = r->share == BY_PEER ? (g->me + op->pass) % g->n : g->me;
    uint64_t from_block = r->share == BY_PEER ? (uint64_t)peer : r->send_blocks ? 0 : (uint64_t)g->me;
    uint64_t to_block = r->recv_blocks ? 0 : (uint64_t)g->me;
    op->n_src = op->n_dst = 0;
    for (int32_t i = 0; i < g->n; i++) {
        if (r->reads == FROM_ALL || (r->reads == FROM_ROOT ? i == op->root : i == g->me))
            g->src[op->n_src++] = element_address(op, i, 0, from_block, op->first);
        int mine = r->share == BY_PEER ? i == peer
                                       : r->writes == FROM_ALL || (r->writes == FROM_ROOT ? i == op->root : i == g->me);
        if (mine)
            g->dst[op->n_dst++] = element_address(op, i, 1, to_block, op->first);
    }
}

void shm_plan_step(struct shm_op *op)
{
    struct shm_group *g = op->group;
    uint64_t n = step_count(op), lines = SHM_LINE / op->esize;
    op->first = 0;
    op->last = n;
    op->cursor = 0;
    op->pass = 0;
    op->passes = RULE(op)->share == BY_PEER ? g->n : 1;
    if (RULE(op)->share == BY_SLICE) { /* whole cache lines, so that no two members write one */
        uint64_t slice = (n + (uint64_t)g->n - 1) / (uint64_t)g->n;
        slice = (slice + lines - 1) / lines * lines;
        op->first = SHM_MIN(n, (uint64_t)g->me * slice);
        op->last = SHM_MIN(n, op->first + slice);
    }
    plan_pass(op);
}

static void copy_block(struct shm_group *g, struct shm_op *op, uint64_t at, uint64_t count, int stream)
{
    enum { BLOCK = 16384 }; /* several destinations: the source comes from the cache after the first */
    uint64_t bytes = count * op->esize;
    at *= op->esize;
    for (uint64_t b = 0; b < bytes; b += BLOCK)
        for (int32_t j = 0; j < op->n_dst; j++) {
            uint64_t k = op->n_dst == 1 ? bytes : SHM_MIN((uint64_t)BLOCK, bytes - b);
            uint8_t *dst = g->dst[j] + at + b;
            const uint8_t *src = g->src[0] + at + b;
            if (dst == src) /* in place */
                ;
            else if (stream)
                g->comm->kernels->copy_stream(dst, src, k);
            else
                memcpy(dst, src, k);
            if (op->n_dst == 1)
                return;
        }
}

/* Streaming to several destinations: each gets a block at a time, from a sum in the first cache. Memory likes long
 * runs. */
static void reduce_blocks(struct shm_group *g, struct shm_op *op, shm_reduce_fn *reduce, uint8_t **dst,
                          const uint8_t **src, uint64_t count)
{
    enum { BLOCK = 8192 };
    _Alignas(SHM_LINE) uint8_t sum[BLOCK], *to = sum;
    uint64_t most = BLOCK / op->esize;
    for (uint64_t at = 0; at < count; at += most) {
        uint64_t k = SHM_MIN(most, count - at);
        reduce(&to, 1, src, op->n_src, k, 0);
        for (int32_t j = 0; j < op->n_dst; j++) {
            g->comm->kernels->copy_stream(dst[j], sum, k * op->esize);
            dst[j] += k * op->esize;
        }
        for (int32_t i = 0; i < op->n_src; i++)
            src[i] += k * op->esize;
    }
}

static void reduce_block(struct shm_group *g, struct shm_op *op, uint64_t at, uint64_t count, int stream)
{
    const uint8_t *src[SHM_MEMBERS];
    uint8_t *dst[SHM_MEMBERS];
    for (int32_t i = 0; i < op->n_src; i++)
        src[i] = g->src[i] + at * op->esize;
    for (int32_t i = 0; i < op->n_dst; i++) {
        dst[i] = g->dst[i] + at * op->esize;
        for (int32_t j = 0; stream && j < op->n_src; j++)
            stream = dst[i] != src[j]; /* in place: the lines are in the cache already */
    }
    shm_reduce_fn *reduce = shm_kernel(g->comm->kernels, op->dtype, op->redop);
    if (!stream || op->n_dst == 1)
        reduce(dst, op->n_dst, src, op->n_src, count, stream);
    else
        reduce_blocks(g, op, reduce, dst, src, count);
}

/* A quantum of the share. 1 when the share is finished. */
int shm_work(struct shm_op *op)
{
    struct shm_group *g = op->group;
    uint64_t share = op->last - op->first, left = share - op->cursor;
    uint64_t quantum = (uint64_t)g->comm->settings.quantum / op->esize / (uint64_t)SHM_MAX(op->n_src, op->n_dst);
    uint64_t count = SHM_MIN(left, SHM_MAX(quantum / 64 * 64, (uint64_t)64));
    int stream = SHM_MAX(send_bytes(op), recv_bytes(op)) >= (uint64_t)g->comm->settings.stream;
    if (count) {
        if (RULE(op)->reduces)
            reduce_block(g, op, op->cursor, count, stream);
        else
            copy_block(g, op, op->cursor, count, stream);
    }
    op->cursor += count;
    if (op->cursor < share)
        return 0;
    op->cursor = 0;
    if (++op->pass < op->passes) {
        plan_pass(op);
        return 0;
    }
    if (stream)
        g->comm->kernels->fence();
    return 1;
}
