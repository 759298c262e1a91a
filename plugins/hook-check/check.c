/* check: the contract of heddle/comm.h, for transports that do not check it themselves.
 *
 *   arguments   buffers, dtype, reduction, root, member; no buffer is written by one operation and used by another
 *   mismatch    each member sends the signature of its call to the next one, on a stream of its own, and compares the
 *               one from the previous member: a collective mismatch is reported while the operation is in flight
 *   buffers     send buffers do not change until the operation completes */
#include <stdlib.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "heddle/hook.h"

/* The message between members. */
struct signature {
    uint64_t seq, count, tag;
    uint32_t coll, dtype, redop;
    int32_t root;
};

/* Signatures of an operation, kept until both messages complete, maybe after the operation. */
struct signature_swap {
    struct signature_swap *next;
    const struct hd_hook_group *group;
    struct signature mine, theirs;
    hd_request send, recv;
    int32_t sent, received;
};

struct hd_hook {
    const struct hd_hook_place *place;
    struct signature_swap *in_flight, **tail, *idle;
    struct hd_error failed; /* code != HD_OK: a mismatch was found */
};

static int32_t check_open(const struct hd_host *host, const void *settings, const struct hd_hook_place *place,
                          struct hd_hook **hook, struct hd_error *err)
{
    struct hd_hook *h;
    (void)host, (void)settings;
    if (place->world->stream) /* buffers are device memory, and requests complete when operations are enqueued */
        return hd_fail(err, HD_E_UNSUPPORTED,
                       "comm.hooks: check needs buffers in host memory, but comm-%s works in a stream of device %s: "
                       "remove check, or "
                       "use a transport of host memory, as shm",
                       place->transport, place->world->device);
    h = calloc(1, sizeof *h);
    if (!h)
        return hd_fail(err, HD_E_NOMEM, "comm.hooks: check: no memory");
    h->place = place;
    h->tail = &h->in_flight;
    h->failed = (struct hd_error)HD_ERROR_INIT;
    *hook = h;
    return HD_OK;
}

static void free_all(struct signature_swap *x)
{
    for (struct signature_swap *next; x; x = next) {
        next = x->next;
        free(x);
    }
}

static void check_close(struct hd_hook *h)
{
    if (!h)
        return;
    free_all(h->in_flight);
    free_all(h->idle);
    free(h);
}

/* ---- arguments */

static int overlap(const void *a, uint64_t n, const void *b, uint64_t m)
{
    uintptr_t x = (uintptr_t)a, y = (uintptr_t)b;
    return n && m && x < y + m && y < x + n;
}

static int is_rooted(uint32_t coll)
{
    return coll == HD_COLL_BROADCAST || coll == HD_COLL_REDUCE;
}

static int reduces(uint32_t coll)
{
    return coll == HD_COLL_ALL_REDUCE || coll == HD_COLL_REDUCE_SCATTER || coll == HD_COLL_REDUCE;
}

struct overlap_search {
    const struct hd_hook_op *op, *with;
};

/* Finds an operation in flight of which one writes a buffer that the other reads or writes. */
static void find_overlap(void *user, const struct hd_hook_op *other)
{
    struct overlap_search *search = user;
    const struct hd_comm_call *ours = search->op->call, *theirs = other->call;
    uint64_t sent, received, their_sent, their_received;
    if (other == search->op)
        return;
    hd_hook_op_bytes(search->op, &sent, &received);
    hd_hook_op_bytes(other, &their_sent, &their_received);
    if (overlap(ours->recv, received, theirs->recv, their_received) ||
        overlap(ours->recv, received, theirs->send, their_sent) ||
        overlap(ours->send, sent, theirs->recv, their_received))
        search->with = other;
}

static const char *argument_error(const struct hd_hook *h, const struct hd_hook_op *op)
{
    const struct hd_comm_call *call = op->call;
    uint64_t sent, received;
    if (hd_hook_is_message(op))
        return op->peer < 0 || op->peer >= op->group->n    ? "the peer is not a member"
               : op->stream == h->place->stream            ? "the stream is reserved for the hook check"
               : call->count && !call->send && !call->recv ? "the buffer is NULL"
                                                           : NULL;
    if (call->coll < HD_COLL_ALL_REDUCE || call->coll > HD_COLL_BARRIER)
        return "unknown collective";
    if (call->coll == HD_COLL_BARRIER)
        return NULL;
    if (!hd_dtype_size(call->dtype))
        return "unknown dtype";
    if (reduces(call->coll) && (call->redop < HD_SUM || call->redop > HD_AVG))
        return "unknown reduction";
    if (is_rooted(call->coll) && (call->root < 0 || call->root >= op->group->n))
        return "the root is not a member";
    hd_hook_op_bytes(op, &sent, &received);
    if ((sent && !call->send) || (received && !call->recv))
        return "a buffer is NULL";
    if (((uintptr_t)call->send | (uintptr_t)call->recv) % hd_dtype_size(call->dtype))
        return "a buffer is not aligned to its dtype";
    if (call->coll == HD_COLL_ALL_TO_ALL && op->group->n > 1 && overlap(call->send, sent, call->recv, received))
        return "all_to_all cannot be in place";
    return NULL;
}

static int32_t check_arguments(const struct hd_hook *h, const struct hd_hook_op *op, struct hd_error *err)
{
    struct overlap_search search = {.op = op};
    const char *wrong = argument_error(h, op);
    if (wrong)
        return hd_fail(err, HD_E_INVALID, "check: rank %d, operation %llu, %s in group %s: %s", h->place->world->rank,
                       (unsigned long long)op->number, hd_hook_coll_name(op->call->coll), op->group->name, wrong);
    h->place->api->each_op(h->place, find_overlap, &search);
    if (search.with)
        return hd_fail(err, HD_E_INVALID,
                       "check: rank %d, operation %llu, %s in group %s: its buffers are in use by operation %llu, %s "
                       "in group %s, which is not complete",
                       h->place->world->rank, (unsigned long long)op->number, hd_hook_coll_name(op->call->coll),
                       op->group->name, (unsigned long long)search.with->number,
                       hd_hook_coll_name(search.with->call->coll), search.with->group->name);
    return HD_OK;
}

/* ---- mismatch */

static struct signature signature_of(const struct hd_hook_op *op)
{
    const struct hd_comm_call *c = op->call;
    int bare = c->coll == HD_COLL_BARRIER;
    return (struct signature){.seq = op->seq,
                              .count = bare ? 0 : c->count,
                              .tag = c->tag,
                              .coll = c->coll,
                              .dtype = bare ? 0 : c->dtype,
                              .redop = reduces(c->coll) ? c->redop : 0,
                              .root = is_rooted(c->coll) ? c->root : 0};
}

static const char *text_of(const struct signature *s, char out[160])
{
    static const char *const redops[] = {"", " sum", " max", " avg"};
    snprintf(out, 160, "%s %s%s count %llu root %d tag %llu", hd_hook_coll_name(s->coll), hd_dtype_name(s->dtype),
             redops[s->redop & 3], (unsigned long long)s->count, s->root, (unsigned long long)s->tag);
    return out;
}

static int32_t send_signature(struct hd_hook *h, const struct hd_hook_op *op, struct hd_error *err)
{
    const struct hd_hook_place *at = h->place;
    const struct hd_hook_group *g = op->group;
    struct signature_swap *x = h->idle;
    int32_t code;
    if (x)
        h->idle = x->next;
    else if (!(x = malloc(sizeof *x)))
        return hd_fail(err, HD_E_NOMEM, "comm.hooks: check: no memory");
    *x = (struct signature_swap){.group = g, .mine = signature_of(op)};
    code =
        at->below->recv(g->below, (g->me + g->n - 1) % g->n, at->stream, &x->theirs, sizeof x->theirs, &x->recv, err);
    if (code == HD_OK)
        code = at->below->send(g->below, (g->me + 1) % g->n, at->stream, &x->mine, sizeof x->mine, &x->send, err);
    *h->tail = x;
    h->tail = &x->next;
    return code;
}

static void report_mismatch(struct hd_hook *h, const struct signature_swap *x)
{
    const struct hd_hook_group *g = x->group;
    int32_t other = g->ranks[(g->me + g->n - 1) % g->n];
    char a[160], b[160];
    h->failed.peer = other;
    hd_fail(&h->failed, HD_E_MISMATCH, "check: operation %llu of group %s differs: rank %d has %s; rank %d has %s",
            (unsigned long long)x->mine.seq, g->name, h->place->world->rank, text_of(&x->mine, a), other,
            text_of(&x->theirs, b));
}

/* The mismatch that was found, if any. */
static int32_t mismatch(const struct hd_hook *h, struct hd_error *err)
{
    if (h->failed.code)
        hd_error_copy(err, &h->failed);
    return h->failed.code;
}

static int32_t test_messages(struct hd_hook *h, struct signature_swap *x, struct hd_error *err)
{
    const struct hd_hook_place *at = h->place;
    int32_t code = HD_OK;
    if (!x->sent)
        code = at->below->test(at->comm, x->send, &x->sent, err);
    if (code == HD_OK && !x->received) {
        code = at->below->test(at->comm, x->recv, &x->received, err);
        if (code == HD_OK && x->received && memcmp(&x->mine, &x->theirs, sizeof x->mine))
            report_mismatch(h, x);
    }
    return code;
}

static int32_t check_progress(struct hd_hook *h, struct hd_error *err)
{
    int32_t code = HD_OK;
    for (struct signature_swap **at = &h->in_flight, *x; (x = *at) && code == HD_OK && !h->failed.code;) {
        if (x->group->below) /* else it was freed: its messages are not waited for */
            code = test_messages(h, x, err);
        if (x->sent && x->received) {
            *at = x->next;
            if (!*at)
                h->tail = at;
            x->next = h->idle;
            h->idle = x;
        } else {
            at = &x->next;
        }
    }
    return h->failed.code ? mismatch(h, err) : code;
}

/* ---- buffers */

static uint64_t hash_of_sent(const struct hd_hook_op *op)
{
    const struct hd_comm_call *call = op->call;
    uint64_t sent, received;
    hd_hook_op_bytes(op, &sent, &received);
    if (!call->send || !sent || overlap(call->send, sent, call->recv, received))
        return 0;
    return XXH3_64bits(call->send, sent);
}

static int32_t check_begin(struct hd_hook *h, struct hd_hook_op *op, struct hd_error *err)
{
    int32_t code = check_arguments(h, op, err);
    if (code != HD_OK)
        return code;
    op->user[0] = hash_of_sent(op);
    return hd_hook_is_message(op) ? HD_OK : send_signature(h, op, err);
}

static int32_t check_end(struct hd_hook *h, struct hd_hook_op *op, int32_t code, struct hd_error *err)
{
    if (h->failed.code)
        return mismatch(h, err); /* the cause of any other error */
    if (code == HD_OK && hash_of_sent(op) != op->user[0])
        return hd_fail(
            err, HD_E_INVALID,
            "check: rank %d, operation %llu, %s in group %s: its send buffer was changed before it completed",
            h->place->world->rank, (unsigned long long)op->number, hd_hook_coll_name(op->call->coll), op->group->name);
    return code;
}

static const struct hd_hook_ops ops = {
    .struct_size = sizeof ops,
    .open = check_open,
    .close = check_close,
    .begin = check_begin,
    .end = check_end,
    .progress = check_progress,
};

static const struct hd_component component = {
    .struct_size = sizeof component,
    .kind = HD_KIND_HOOK,
    .name = "check",
    .summary = "the contract: calls match, arguments are valid, buffers are not modified",
    .ops = &ops,
};

HD_PLUGIN_ONE("hook-check", "0.1.0", "Apache-2.0", component)
