/* check: the contract of heddle/comm.h, for transports that do not see to it themselves.
 *
 *   arguments   buffers, dtype, reduction, root, member, whole and within bounds; no two operations write to one place at once
 *   agreement   each member sends what it is about to do to the next one, on a stream of the hook's own, and compares what
 *               comes from the one before: a difference is named while the operation is still under way
 *   buffers     what is sent is the same bytes when the operation completes as when it began */
#include <stdlib.h>

#include "runtime/comm/hook.h"

/* What travels. */
struct signature {
    uint64_t seq, count, tag;
    uint32_t coll, dtype, redop;
    int32_t root;
};

/* An operation's, kept until both messages are through: longer than the operation, maybe. */
struct signature_exchange {
    struct signature_exchange *next;
    struct hd__hook_group *group;
    struct signature mine, theirs;
    hd_request send, recv;
    int32_t sent, received;
};

struct check {
    struct signature_exchange *under_way, **tail, *idle;
    struct hd_error failed; /* code != HD_OK: a difference was found */
};

static int32_t check_open(struct hd__hook *h, struct hd_error *err)
{
    struct check *c = hd__alloc(sizeof *c);
    (void)err;
    c->tail = &c->under_way;
    h->state = c;
    return HD_OK;
}

static void free_all(struct signature_exchange *x)
{
    for (struct signature_exchange *next; x; x = next) {
        next = x->next;
        free(x);
    }
}

/* ---- arguments */

static int is_message(const struct hd__hook_op *op)
{
    return op->what == HD__HOOK_SEND || op->what == HD__HOOK_RECV;
}

static int overlap(const void *a, uint64_t n, const void *b, uint64_t m)
{
    uintptr_t x = (uintptr_t)a, y = (uintptr_t)b;
    return n && m && x < y + m && y < x + n;
}

struct overlap_search {
    const struct hd__hook_op *op, *with;
};

/* Another one writes where this one reads or writes, or the other way round. */
static void find_overlap(void *user, struct hd__hook_op *other)
{
    struct overlap_search *c = user;
    uint64_t sent, received, their_sent, their_received;
    if (other == c->op)
        return;
    hd__comm_hook_op_bytes(c->op, &sent, &received);
    hd__comm_hook_op_bytes(other, &their_sent, &their_received);
    if (overlap(c->op->call.recv, received, other->call.recv, their_received) ||
        overlap(c->op->call.recv, received, other->call.send, their_sent) ||
        overlap(c->op->call.send, sent, other->call.recv, their_received))
        c->with = other;
}

static const char *argument_error(const struct hd__hook_op *op)
{
    const struct hd_comm_call *call = &op->call;
    int rooted = op->what == HD_COLL_BROADCAST || op->what == HD_COLL_REDUCE;
    int reduces = op->what == HD_COLL_ALL_REDUCE || op->what == HD_COLL_REDUCE_SCATTER || op->what == HD_COLL_REDUCE;
    uint64_t sent, received;
    if (is_message(op))
        return op->peer < 0 || op->peer >= op->group->n    ? "the peer is no member"
               : op->stream == HD__STREAM_CHECK            ? "the stream is comm.hooks: check's own"
               : call->count && !call->send && !call->recv ? "the buffer is NULL"
                                                           : NULL;
    if (op->what < HD_COLL_ALL_REDUCE || op->what > HD_COLL_BARRIER)
        return "there is no such collective";
    if (op->what == HD_COLL_BARRIER)
        return NULL;
    if (!hd_dtype_size(call->dtype))
        return "there is no such dtype";
    if (reduces && (call->redop < HD_SUM || call->redop > HD_AVG))
        return "there is no such reduction";
    if (rooted && (call->root < 0 || call->root >= op->group->n))
        return "the root is no member";
    hd__comm_hook_op_bytes(op, &sent, &received);
    if ((sent && !call->send) || (received && !call->recv))
        return "a buffer is NULL";
    if (((uintptr_t)call->send | (uintptr_t)call->recv) % hd_dtype_size(call->dtype))
        return "a buffer is not aligned to its dtype";
    if (op->what == HD_COLL_ALL_TO_ALL && op->group->n > 1 && overlap(call->send, sent, call->recv, received))
        return "all_to_all cannot be in place";
    return NULL;
}

static int32_t check_arguments(struct hd__hook *h, const struct hd__hook_op *op, struct hd_error *err)
{
    struct overlap_search overlap_search = {.op = op};
    const char *wrong = argument_error(op);
    if (wrong)
        return hd_fail(err, HD_E_INVALID, "check: rank %d, operation %llu, %s in group %s: %s", h->world.rank,
                       (unsigned long long)op->number, hd__comm_hook_op_name(op->what), op->group->name, wrong);
    hd__comm_hook_each_op(h, find_overlap, &overlap_search);
    if (overlap_search.with)
        return hd_fail(
            err, HD_E_INVALID,
            "check: rank %d, operation %llu, %s in group %s: its buffers are in use by operation %llu, %s in "
            "group %s, which is still under way",
            h->world.rank, (unsigned long long)op->number, hd__comm_hook_op_name(op->what), op->group->name,
            (unsigned long long)overlap_search.with->number, hd__comm_hook_op_name(overlap_search.with->what),
            overlap_search.with->group->name);
    return HD_OK;
}

/* ---- agreement */

static struct signature signature_of(const struct hd__hook_op *op)
{
    const struct hd_comm_call *c = &op->call;
    int rooted = op->what == HD_COLL_BROADCAST || op->what == HD_COLL_REDUCE;
    int reduces = op->what == HD_COLL_ALL_REDUCE || op->what == HD_COLL_REDUCE_SCATTER || op->what == HD_COLL_REDUCE;
    int bare = op->what == HD_COLL_BARRIER;
    return (struct signature){.seq = op->seq,
                              .count = bare ? 0 : c->count,
                              .tag = c->tag,
                              .coll = op->what,
                              .dtype = bare ? 0 : c->dtype,
                              .redop = reduces ? c->redop : 0,
                              .root = rooted ? c->root : 0};
}

static const char *text_of(const struct signature *s, char out[160])
{
    static const char *const redops[] = {"", " sum", " max", " avg"};
    snprintf(out, 160, "%s %s%s count %llu root %d tag %llu", hd__comm_hook_op_name(s->coll), hd_dtype_name(s->dtype),
             redops[s->redop & 3], (unsigned long long)s->count, s->root, (unsigned long long)s->tag);
    return out;
}

static int32_t send_signature(struct hd__hook *h, const struct hd__hook_op *op, struct hd_error *err)
{
    struct check *c = h->state;
    struct hd__hook_group *g = op->group;
    struct signature_exchange *x = c->idle;
    int32_t code;
    if (x)
        c->idle = x->next;
    else
        x = hd__alloc(sizeof *x);
    *x = (struct signature_exchange){.group = g, .mine = signature_of(op)};
    code = h->inner.ops.recv(g->inner, (g->me + g->n - 1) % g->n, HD__STREAM_CHECK, &x->theirs, sizeof x->theirs,
                             &x->recv, err);
    if (code == HD_OK)
        code =
            h->inner.ops.send(g->inner, (g->me + 1) % g->n, HD__STREAM_CHECK, &x->mine, sizeof x->mine, &x->send, err);
    *c->tail = x;
    c->tail = &x->next;
    return code;
}

static int32_t report_mismatch(struct hd__hook *h, const struct signature_exchange *x)
{
    struct check *c = h->state;
    const struct hd__hook_group *g = x->group;
    int32_t other = g->ranks[(g->me + g->n - 1) % g->n];
    char a[160], b[160];
    c->failed.peer = other;
    return hd_fail(
        &c->failed, HD_E_MISMATCH, "check: operation %llu of group %s differs: rank %d has %s; rank %d has %s",
        (unsigned long long)x->mine.seq, g->name, h->world.rank, text_of(&x->mine, a), other, text_of(&x->theirs, b));
}

static int32_t check_progress(struct hd__hook *h, struct hd_error *err)
{
    struct check *c = h->state;
    const struct hd_comm_ops *ops = &h->inner.ops;
    int32_t code = HD_OK;
    for (struct signature_exchange **at = &c->under_way, *x; (x = *at) && code == HD_OK && !c->failed.code;) {
        if (!x->sent)
            code = ops->test(h->inner.comm, x->send, &x->sent, err);
        if (code == HD_OK && !x->received) {
            code = ops->test(h->inner.comm, x->recv, &x->received, err);
            if (code == HD_OK && x->received && memcmp(&x->mine, &x->theirs, sizeof x->mine))
                report_mismatch(h, x);
        }
        if (x->sent && x->received) {
            *at = x->next;
            if (!*at)
                c->tail = at;
            x->next = c->idle;
            c->idle = x;
        } else {
            at = &x->next;
        }
    }
    if (!c->failed.code)
        return code;
    if (err)
        err->peer = c->failed.peer;
    return hd_fail(err, c->failed.code, "%s", c->failed.message);
}

/* ---- the hook */

static int in_place(const struct hd__hook_op *op)
{
    uint64_t sent, received;
    hd__comm_hook_op_bytes(op, &sent, &received);
    return overlap(op->call.send, sent, op->call.recv, received);
}

static uint64_t sum_of(const struct hd__hook_op *op)
{
    uint64_t sent, received;
    hd__comm_hook_op_bytes(op, &sent, &received);
    return op->call.send && sent && !in_place(op) ? hd__hash(op->call.send, sent, 5) : 0;
}

static int32_t check_begin(struct hd__hook *h, struct hd__hook_op *op, struct hd_error *err)
{
    int32_t code = check_arguments(h, op, err);
    if (code != HD_OK)
        return code;
    op->word[0] = sum_of(op);
    return is_message(op) ? HD_OK : send_signature(h, op, err);
}

static int32_t check_end(struct hd__hook *h, struct hd__hook_op *op, int32_t code, struct hd_error *err)
{
    struct check *c = h->state;
    if (c->failed.code) {
        if (err)
            err->peer = c->failed.peer;
        return hd_fail(err, c->failed.code, "%s", c->failed.message); /* the cause of whatever came of it */
    }
    if (code == HD_OK && sum_of(op) != op->word[0])
        return hd_fail(
            err, HD_E_INVALID,
            "check: rank %d, operation %llu, %s in group %s: what it sends was changed while it was under way",
            h->world.rank, (unsigned long long)op->number, hd__comm_hook_op_name(op->what), op->group->name);
    return code;
}

static void check_close(struct hd__hook *h)
{
    struct check *c = h->state;
    free_all(c->under_way);
    free_all(c->idle);
    free(c);
}

const struct hd__hook_kind hd__comm_hook_check = {
    .name = "check",
    .summary = "the contract: members agree, arguments are valid, buffers stay untouched",
    .open = check_open,
    .begin = check_begin,
    .end = check_end,
    .progress = check_progress,
    .close = check_close,
};
