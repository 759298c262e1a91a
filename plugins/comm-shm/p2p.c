/* Send and recv. A pair of members has a mailbox each way: 64 messages under way at most, in order of sending.
 *
 *   sender     posts a mail: size, stream, and either the bytes (small ones) or where they lie in its arena, or neither
 *   receiver   reads mails in order, lists them as unexpected until a recv of their stream comes; then
 *     small      copies and acknowledges
 *     in arena   copies from the sender's arena and acknowledges
 *     neither    acknowledges with where its own buffer lies:
 *       in arena   the sender copies there and says finished
 *       neither    through the pair's staging, two chunks in turn; transfers queue for it by ticket
 *
 * A small send is complete when it is posted, another when its receiver has the bytes. */
#include "internal.h"

static inline uint64_t word(uint64_t seq, uint32_t what)
{
    return seq << 3 | what;
}

static uint64_t quantum(const struct shm_op *op)
{
    return SHM_MAX((uint64_t)op->group->comm->settings.quantum, (uint64_t)SHM_PAGE);
}

static void unlink_op(struct shm_op *op)
{
    for (struct shm_op **at = &op->group->mail; *at; at = &(*at)->next)
        if (*at == op) {
            *at = op->next;
            break;
        }
    op->next = NULL;
}

static int complete(struct shm_op *op)
{
    unlink_op(op);
    shm_op_finish(op, HD_OK);
    return 1;
}

static void copy_some(struct shm_op *op, uint8_t *to, const uint8_t *from)
{
    uint64_t k = SHM_MIN(quantum(op), op->bytes - op->cursor);
    int stream = op->bytes >= (uint64_t)op->group->comm->settings.stream;
    if (stream)
        op->group->comm->kernels->copy_stream(to + op->cursor, from + op->cursor, k);
    else if (k && to != from)
        memcpy(to + op->cursor, from + op->cursor, k);
    op->cursor += k;
    if (stream)
        op->group->comm->kernels->fence();
}

static int is_small(const struct shm_op *op)
{
    return op->bytes <= op->group->small;
}

static uint8_t *payload(const struct shm_op *op, struct shm_mail *mail, uint8_t *payloads)
{
    return op->bytes <= sizeof mail->tiny ? mail->tiny : payloads + op->seq % SHM_MAIL * op->group->mail_stride;
}

static int fail_size(struct shm_group *g, int32_t from, int32_t to, uint32_t stream, uint64_t sent, uint64_t received)
{
    struct hd_error e = HD_ERROR_INIT;
    e.peer = shm_job_rank(g, from == g->me ? to : from);
    hd_fail(&e, HD_E_MISMATCH, "shm: message in group %s, stream %u: rank %d sends %llu bytes, rank %d receives %llu",
            g->name, stream, shm_job_rank(g, from), (unsigned long long)sent, shm_job_rank(g, to),
            (unsigned long long)received);
    shm_fail(g, &e);
    return 1;
}

static void ring_peer(struct shm_op *op)
{
    if (op->group->member[op->peer].peer)
        shm_ring(op->group->member[op->peer].peer);
}

/* Copies the next chunk into (sender) or out of (receiver) the pair's staging, if there is room (a chunk). */
static int stage_chunk(struct shm_op *op, struct shm_pair *p)
{
    uint64_t stage = (uint64_t)op->group->comm->settings.stage, k = SHM_MIN(stage, op->bytes - op->cursor);
    int sending = op->kind == SHM_SEND;
    _Atomic uint64_t *mine = sending ? &p->mine->sent : &p->mine->taken;
    uint64_t at = atomic_load_explicit(mine, memory_order_relaxed);
    uint64_t other = atomic_load_explicit(sending ? &p->theirs->taken : &p->theirs->sent, memory_order_acquire);
    if (sending ? at - other == 2 : at == other)
        return 0;
    size_t slot = (size_t)(at & 1) * ((stage + SHM_LINE - 1) / SHM_LINE * SHM_LINE);
    if (sending)
        memcpy(p->stage_out + slot, (const uint8_t *)op->send + op->cursor, k);
    else
        memcpy((uint8_t *)op->recv + op->cursor, p->stage_in + slot, k);
    op->cursor += k;
    atomic_store_explicit(mine, at + 1, memory_order_release);
    ring_peer(op);
    return 1;
}

/* ---- the sender */

static int sent(struct shm_op *op, struct shm_pair *p)
{
    p->busy &= ~(UINT64_C(1) << op->seq % SHM_MAIL);
    return complete(op);
}

/* Small messages leave their mails to the receiver, who may have them by now: looks at those answered in one line with
 * `slot`. */
static void collect_got(struct shm_op *op, struct shm_pair *p, uint64_t slot)
{
    enum { LINE = SHM_LINE / sizeof p->theirs->got[0] };
    for (uint64_t i = slot / LINE * LINE, end = i + LINE; i < end; i++) {
        const struct shm_mail *mail = &p->mine->mail[i];
        if (!(p->busy >> i & 1) || mail->bytes > op->group->small)
            continue;
        uint64_t got = atomic_load_explicit(&p->theirs->got[i], memory_order_acquire);
        if (got >> 3 != atomic_load_explicit(&mail->state, memory_order_relaxed) >> 3)
            continue;
        if ((got & 7) == ACK_DONE)
            p->busy &= ~(UINT64_C(1) << i);
        else if (i == slot)
            fail_size(op->group, op->group->me, op->peer, mail->stream, mail->bytes, p->theirs->ack[i].bytes);
    }
}

/* The mail that the next message takes: 1: it is free. */
static int is_free(struct shm_op *op, struct shm_pair *p)
{
    uint64_t slot = (p->posted + 1) % SHM_MAIL;
    if (p->busy >> slot & 1)
        collect_got(op, p, slot);
    return !(p->busy >> slot & 1);
}

static int post_mail(struct shm_op *op, struct shm_pair *p)
{
    uint64_t seq = p->posted + 1, slot = seq % SHM_MAIL;
    for (struct shm_op *o = op->group->mail; o != op; o = o->next)
        if (o->kind == SHM_SEND && o->peer == op->peer && o->state == OP_QUEUED)
            return 0; /* order */
    if (!is_free(op, p))
        return op->group->error.code != HD_OK;
    struct shm_mail *mail = &p->mine->mail[slot];
    p->busy |= UINT64_C(1) << slot;
    p->posted = op->seq = seq;
    op->state = OP_POSTED;
    mail->bytes = op->bytes;
    mail->stream = op->stream;
    if (!is_small(op))
        mail->ref = shm_ref_of(op->group->comm, op->send, op->bytes);
    else if (op->bytes)
        memcpy(payload(op, mail, p->small_out), op->send, op->bytes);
    atomic_store_explicit(&mail->state, word(seq, MAIL_POSTED), memory_order_release);
    ring_peer(op);
    return is_small(op) ? complete(op) : 1;
}

static int read_ack(struct shm_op *op, struct shm_pair *p)
{
    struct shm_ack *ack = &p->theirs->ack[op->seq % SHM_MAIL];
    uint64_t state = atomic_load_explicit(&ack->state, memory_order_acquire);
    if (state >> 3 != op->seq)
        return 0;
    if ((state & 7) == ACK_MISMATCH)
        return fail_size(op->group, op->group->me, op->peer, op->stream, op->bytes, ack->bytes);
    if ((state & 7) == ACK_DONE)
        return sent(op, p);
    op->ticket = ack->ticket;
    op->recv_ref = ack->ref;
    op->state = ack->ticket ? OP_STAGED : OP_PUSH;
    return 1;
}

static int push(struct shm_op *op, struct shm_pair *p)
{
    struct shm_member *m = &op->group->member[op->peer];
    copy_some(op, shm_at(op->group->comm, m->peer, op->recv_ref), op->send);
    if (op->cursor < op->bytes)
        return 1;
    atomic_store_explicit(&p->mine->mail[op->seq % SHM_MAIL].state, word(op->seq, MAIL_FINISHED), memory_order_release);
    ring_peer(op);
    op->state = OP_AWAIT; /* the slot stays taken until the receiver has seen it */
    return 1;
}

static int stage_send(struct shm_op *op, struct shm_pair *p)
{
    if (op->ticket != p->out_turn || !stage_chunk(op, p))
        return 0;
    if (op->cursor < op->bytes)
        return 1;
    p->out_turn++;
    op->state = OP_AWAIT;
    return 1;
}

/* ---- the receiver */

static void answer(struct shm_op *op, struct shm_pair *p, uint32_t what)
{
    struct shm_ack *ack = &p->mine->ack[op->seq % SHM_MAIL];
    ack->bytes = op->bytes;
    ack->ref = op->recv_ref;
    ack->ticket = op->ticket;
    atomic_store_explicit(&ack->state, word(op->seq, what), memory_order_release);
    ring_peer(op);
}

static void answer_small(struct shm_op *op, struct shm_pair *p, uint32_t what)
{
    if (what == ACK_MISMATCH)
        p->mine->ack[op->seq % SHM_MAIL].bytes = op->bytes;
    atomic_store_explicit(&p->mine->got[op->seq % SHM_MAIL], word(op->seq, what), memory_order_release);
    ring_peer(op);
}

static void collect_mail(struct shm_pair *p)
{
    while (p->n_unexpected < SHM_MAIL) {
        uint64_t seq = p->seen + 1;
        struct shm_mail *mail = &p->theirs->mail[seq % SHM_MAIL];
        if (atomic_load_explicit(&mail->state, memory_order_acquire) != word(seq, MAIL_POSTED))
            break;
        p->unexpected[p->n_unexpected++] =
            (struct shm_unexpected){seq, mail->bytes, mail->stream, (uint32_t)(seq % SHM_MAIL)};
        p->seen = seq;
    }
}

/* Takes the first unexpected message of the stream off the list. */
static int take_unexpected(struct shm_pair *p, uint32_t stream, struct shm_unexpected *out)
{
    for (uint32_t i = 0; i < p->n_unexpected; i++)
        if (p->unexpected[i].stream == stream) {
            *out = p->unexpected[i];
            memmove(&p->unexpected[i], &p->unexpected[i + 1], (--p->n_unexpected - i) * sizeof p->unexpected[i]);
            return 1;
        }
    return 0;
}

static int match(struct shm_op *op, struct shm_pair *p)
{
    struct shm_unexpected unexpected;
    for (struct shm_op *o = op->group->mail; o != op; o = o->next)
        if (o->kind == SHM_RECV && o->peer == op->peer && o->stream == op->stream && o->state == OP_QUEUED)
            return 0; /* order */
    collect_mail(p);
    if (!take_unexpected(p, op->stream, &unexpected))
        return 0;
    struct shm_mail *mail = &p->theirs->mail[unexpected.mail];
    op->seq = unexpected.seq;
    if (unexpected.bytes != op->bytes) {
        if (unexpected.bytes <= op->group->small)
            answer_small(op, p, ACK_MISMATCH);
        else
            answer(op, p, ACK_MISMATCH);
        return fail_size(op->group, op->peer, op->group->me, op->stream, unexpected.bytes, op->bytes);
    }
    if (is_small(op)) {
        if (op->bytes)
            memcpy(op->recv, payload(op, mail, p->small_in), op->bytes);
        answer_small(op, p, ACK_DONE);
        return complete(op);
    }
    op->send_ref = mail->ref;
    if (mail->ref) {
        op->state = OP_PULL;
        return 1;
    }
    op->recv_ref = shm_ref_of(op->group->comm, op->recv, op->bytes);
    if (!op->recv_ref)
        op->ticket = ++p->tickets;
    op->state = op->recv_ref ? OP_AWAIT : OP_STAGED;
    answer(op, p, ACK_ACCEPTED);
    return 1;
}

static int pull(struct shm_op *op, struct shm_pair *p)
{
    struct shm_member *m = &op->group->member[op->peer];
    copy_some(op, op->recv, shm_at(op->group->comm, m->peer, op->send_ref));
    if (op->cursor < op->bytes)
        return 1;
    answer(op, p, ACK_DONE);
    return complete(op);
}

static int await_push(struct shm_op *op, struct shm_pair *p)
{
    struct shm_mail *mail = &p->theirs->mail[op->seq % SHM_MAIL];
    if (atomic_load_explicit(&mail->state, memory_order_acquire) != word(op->seq, MAIL_FINISHED))
        return 0;
    answer(op, p, ACK_DONE);
    return complete(op);
}

static int stage_recv(struct shm_op *op, struct shm_pair *p)
{
    if (op->ticket != p->in_turn || !stage_chunk(op, p))
        return 0;
    if (op->cursor < op->bytes)
        return 1;
    p->in_turn++;
    answer(op, p, ACK_DONE);
    return complete(op);
}

/* The sender's last state: only the receiver's DONE is awaited, whatever way the bytes went. */
static int await_done(struct shm_op *op, struct shm_pair *p)
{
    uint64_t state = atomic_load_explicit(&p->theirs->ack[op->seq % SHM_MAIL].state, memory_order_acquire);
    return state == word(op->seq, ACK_DONE) ? sent(op, p) : 0;
}

/* ---- the machine */

static int advance(struct shm_op *op)
{
    struct shm_pair *p = &op->group->member[op->peer].pair;
    int sending = op->kind == SHM_SEND;
    switch (op->state) {
    case OP_QUEUED:
        return sending ? post_mail(op, p) : match(op, p);
    case OP_POSTED:
        return read_ack(op, p);
    case OP_PUSH:
        return push(op, p);
    case OP_PULL:
        return pull(op, p);
    case OP_STAGED:
        return sending ? stage_send(op, p) : stage_recv(op, p);
    default:
        return sending ? await_done(op, p) : await_push(op, p);
    }
}

int shm_mail_advance(struct shm_group *g)
{
    int moved = 0;
    for (struct shm_op *op = g->mail, *next; op; op = next) {
        next = op->next;
        moved |= advance(op);
        if (g->error.code != HD_OK)
            return 1; /* the list is gone */
    }
    return moved;
}

static int32_t enqueue(struct shm_group *g, uint32_t kind, int32_t peer, uint32_t stream, const void *send, void *recv,
                       uint64_t bytes, hd_request *request, struct hd_error *err)
{
    int32_t code = shm_usable(g, err);
    if (code != HD_OK)
        return code;
    if (peer < 0 || peer >= g->n)
        return hd_fail(err, HD_E_INVALID, "shm: %s member %d of group %s of %d",
                       kind == SHM_SEND ? "send to" : "recv from", peer, g->name, g->n);
    struct shm_op *op = shm_op_new(g, kind, err);
    if (!op)
        return HD_E_NOMEM;
    op->send = send;
    op->recv = recv;
    op->bytes = bytes;
    op->peer = peer;
    op->stream = stream;
    op->ticket = 0;
    op->send_ref = op->recv_ref = 0;
    struct shm_op **at = &g->mail;
    while (*at)
        at = &(*at)->next;
    *at = op;
    *request = rq_number(&op->id);
    advance(op);
    return HD_OK;
}

int32_t shm_send(struct hd_comm_group *group, int32_t peer, uint32_t stream, const void *data, uint64_t bytes,
                 hd_request *request, struct hd_error *err)
{
    return enqueue((struct shm_group *)group, SHM_SEND, peer, stream, data, NULL, bytes, request, err);
}

int32_t shm_recv(struct hd_comm_group *group, int32_t peer, uint32_t stream, void *data, uint64_t bytes,
                 hd_request *request, struct hd_error *err)
{
    return enqueue((struct shm_group *)group, SHM_RECV, peer, stream, NULL, data, bytes, request, err);
}
