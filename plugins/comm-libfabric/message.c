/* Send and recv: the two halves of a message, and how they meet. */
#include "internal.h"

enum { EAGER_CREDIT = 64 }; /* small messages to one peer that wait for its answer; more wait for READY */

static struct lf_head head_of(const struct lf_op *op, uint16_t kind)
{
    return (struct lf_head){.kind = kind,
                            .group = op->group->id,
                            .bytes = op->bytes,
                            .stream = op->flow->stream,
                            .number = op->number,
                            .token = op->token};
}

static int32_t rank_of(const struct lf_op *op)
{
    return op->group->member[op->peer].rank;
}

static int32_t tell(struct lf_op *op, uint16_t kind, const void *payload)
{
    struct lf_head head = head_of(op, kind);
    return lf_control_send(op->group->comm, rank_of(op), &head, payload);
}

static int is_small(const struct lf_op *op)
{
    return op->bytes <= (uint64_t)op->group->comm->settings.eager;
}

static void fail_size(struct lf_op *op, uint64_t theirs)
{
    const struct hd_comm_group *g = op->group;
    int32_t other = lf_job_rank(g, op->peer), me = lf_job_rank(g, g->me);
    uint64_t sent = op->sending ? op->bytes : theirs, received = op->sending ? theirs : op->bytes;
    struct hd_error e = HD_ERROR_INIT;
    e.peer = other;
    hd_fail(&e, HD_E_MISMATCH,
            "libfabric: message in group %s, stream %u: rank %d sends %llu bytes, rank %d receives %llu", g->name,
            op->flow->stream, op->sending ? me : other, (unsigned long long)sent, op->sending ? other : me,
            (unsigned long long)received);
    lf_fail(op->group, &e);
}

static void fail_memory(struct hd_comm_group *g)
{
    struct hd_error e = HD_ERROR_INIT;
    hd_fail(&e, HD_E_NOMEM, "libfabric: no memory for a message in group %s", g->name);
    lf_fail(g, &e);
}

/* ---- the sender */

static void send_eager(struct lf_op *op)
{
    struct lf_peer *peer = &op->group->comm->peer[rank_of(op)];
    if (tell(op, LF_EAGER, op->data) != HD_OK) /* no memory: once READY is there, and something was given back */
        return;
    op->gone = 1;
    peer->eager++;
}

static void ready_came(struct lf_op *op, const struct lf_head *head)
{
    struct lf_peer *peer = &op->group->comm->peer[rank_of(op)];
    if (op->gone)
        peer->eager--;
    if (head->bytes != op->bytes) {
        if (!op->gone)
            tell(op, LF_REFUSED, NULL); /* EAGER would have told the size */
        fail_size(op, head->bytes);
        return;
    }
    if (op->gone) {
        lf_op_finish(op, HD_OK);
        return;
    }
    op->token = head->token;
    if (!is_small(op))
        lf_chunks_begin(op);
    else if (tell(op, LF_EAGER, op->data) == HD_OK)
        lf_op_finish(op, HD_OK);
    else
        fail_memory(op->group);
}

/* ---- the receiver */

static void eager_came(struct lf_op *op, const struct lf_head *head, const uint8_t *payload)
{
    if (head->bytes != op->bytes || head->kind == LF_REFUSED) {
        fail_size(op, head->bytes);
        return;
    }
    if (op->bytes)
        memcpy(op->data, payload, op->bytes);
    lf_op_finish(op, HD_OK);
}

void lf_ready_send(struct lf_op *op)
{
    struct lf_head head = head_of(op, LF_READY);
    op->ready = 1;
    if (lf_control_send_ready(op->group->comm, rank_of(op), &head) != HD_OK)
        fail_memory(op->group);
}

/* ---- meeting */

/* The control message that came for this operation before it was posted; NULL: none. */
static struct lf_unexpected *take_unexpected(struct lf_flow *flow, uint32_t number, int sending)
{
    for (struct lf_unexpected **at = &flow->unexpected; *at; at = &(*at)->next)
        if ((*at)->head.number == number && ((*at)->head.kind == LF_READY) == sending) {
            struct lf_unexpected *message = *at;
            *at = message->next;
            return message;
        }
    return NULL;
}

static struct lf_op *find_op(struct lf_op *list, uint32_t number)
{
    while (list && list->number != number)
        list = list->next;
    return list;
}

void lf_message_handle(struct hd_comm_group *g, int32_t member, const struct lf_head *head, const uint8_t *payload)
{
    struct lf_flow *flow = lf_flow(g, member, head->stream);
    struct lf_op *op = flow ? find_op(head->kind == LF_READY ? flow->sends : flow->recvs, head->number) : NULL;
    if (!flow)
        return;
    if (!op)
        lf_unexpected_add(g->comm, &flow->unexpected, head, payload);
    else if (head->kind == LF_READY)
        ready_came(op, head);
    else
        eager_came(op, head, payload);
}

/* In a large group: HELLO makes this rank known there, so that the other side hears of whatever ends the group. */
static int32_t first_talk(struct hd_comm *c, int32_t rank, struct hd_error *err)
{
    int32_t code;
    if (c->peer[rank].known)
        return HD_OK;
    lf_ready_flush(c);
    code = lf_peer_connect(c, rank, err);
    if (code == HD_OK)
        lf_hello(c, rank);
    return code;
}

static int32_t begin(struct hd_comm_group *g, int32_t peer, uint32_t stream, void *data, uint64_t bytes, int sending,
                     struct lf_op **out, struct hd_error *err)
{
    struct lf_flow *flow;
    struct lf_op *op, **at;
    int32_t code = lf_usable(g, err);
    if (code != HD_OK)
        return code;
    if (peer < 0 || peer >= g->n)
        return hd_fail(err, HD_E_INVALID, "libfabric: member %d in group %s of %d", peer, g->name, g->n);
    code = first_talk(g->comm, g->member[peer].rank, err);
    if (code != HD_OK)
        return code;
    flow = lf_flow(g, peer, stream);
    op = flow ? lf_op_new(g) : NULL;
    if (!op)
        return hd_fail(err, HD_E_NOMEM, "libfabric: no memory, or more than %u operations under way",
                       1u << LF_INDEX_BITS);
    op->flow = flow;
    op->peer = peer;
    op->data = data;
    op->bytes = bytes;
    op->sending = (uint8_t)sending;
    op->number = sending ? flow->sent++ : flow->received++;
    for (at = sending ? &flow->sends : &flow->recvs; *at; at = &(*at)->next)
        continue;
    *at = op;
    *out = op;
    return HD_OK;
}

int32_t lf_send(struct hd_comm_group *g, int32_t peer, uint32_t stream, const void *data, uint64_t bytes,
                hd_request *request, struct hd_error *err)
{
    struct hd_comm *c = g->comm;
    struct lf_unexpected *message;
    struct lf_op *op;
    int32_t code;
    lf_ready_flush(c);
    code = begin(g, peer, stream, (void *)data, bytes, 1, &op, err);
    if (code != HD_OK)
        return code;
    *request = rq_number(&op->id);
    message = take_unexpected(op->flow, op->number, 1);
    if (message)
        ready_came(op, &message->head);
    else if (is_small(op) && c->peer[g->member[peer].rank].eager < EAGER_CREDIT)
        send_eager(op);
    c->host->free(message);
    return HD_OK;
}

int32_t lf_recv(struct hd_comm_group *g, int32_t peer, uint32_t stream, void *data, uint64_t bytes, hd_request *request,
                struct hd_error *err)
{
    struct hd_comm *c = g->comm;
    struct lf_unexpected *message;
    struct lf_op *op;
    int32_t code = begin(g, peer, stream, data, bytes, 0, &op, err);
    if (code != HD_OK)
        return code;
    if (c->row != rank_of(op) + 1)
        lf_ready_flush(c);
    *request = rq_number(&op->id);
    op->token = lf_op_token(op);
    message = take_unexpected(op->flow, op->number, 0);
    if (is_small(op) || message)
        lf_ready_send(op);
    else
        lf_chunks_begin(op);
    if (message && !op->done) /* telling may have failed, and the group with it */
        eager_came(op, &message->head, message->payload);
    c->host->free(message);
    c->row = rank_of(op) + 1;
    return HD_OK;
}
