/* Control messages: a head of fixed size, and what small messages and reasons carry behind it. They are posted in the
 * order in which they were told, peer by peer; a peer that takes nothing holds up nobody else. */
#include "internal.h"

uint64_t lf_control_bytes(const struct hd_comm *c)
{
    return sizeof(struct lf_head) + LF_MAX((uint64_t)c->settings.eager, (uint64_t)LF_TEXT);
}

/* ---- in */

/* Posts idle receive buffers to the provider. 1 if none is left. */
int lf_rx_post(struct hd_comm *c)
{
    while (c->rx_idle) {
        struct lf_rx *rx = c->rx_idle;
        if (fi_trecv(c->ep, rx->data, lf_control_bytes(c), NULL, FI_ADDR_UNSPEC, LF_TAG_CONTROL, 0, &rx->wire.context))
            return 0;
        c->rx_idle = rx->next;
    }
    return 1;
}

void lf_unexpected_add(struct hd_comm *c, struct lf_unexpected **list, const struct lf_head *head, const void *payload)
{
    uint64_t bytes = head->kind == LF_EAGER ? head->bytes : head->text;
    struct lf_unexpected *message = c->host->alloc(sizeof *message + bytes);
    if (!message) {
        c->host->log(HD_LOG_ERROR, "comm-libfabric",
                     "no memory for a message that came early; its receiver will wait in vain");
        return;
    }
    message->head = *head;
    memcpy(message->payload, payload, bytes);
    while (*list)
        list = &(*list)->next;
    *list = message;
}

static void group_failed(struct hd_comm_group *g, int32_t member, const struct lf_head *head, const uint8_t *payload)
{
    struct lf_member *m = &g->member[member];
    if (m->failed)
        return;
    m->why = g->comm->host->alloc(head->text + 1u);
    if (m->why)
        memcpy(m->why, payload, head->text);
    m->failed = head->code < 0 ? head->code : HD_E_INTERNAL;
    m->failed_at = lf_now();
}

static void peer_ended(struct hd_comm *c, const struct lf_head *head, const uint8_t *payload)
{
    struct lf_peer *peer = &c->peer[head->from];
    if (!peer->closed && !peer->broken)
        peer->gone_at = lf_now();
    if (head->kind == LF_CLOSED) {
        peer->closed = 1;
        return;
    }
    lf_abort_by(c, head->from, (const char *)payload, head->text);
}

/* About a group. */
void lf_control_handle(struct hd_comm *c, const struct lf_head *head, const uint8_t *payload)
{
    struct hd_comm_group *g = lf_group_find(c, head->group);
    int32_t member = g ? lf_group_member(g, head->from) : -1;
    if (!g && c->n_orphans < LF_ORPHANS) { /* not made here yet */
        c->n_orphans++;
        lf_unexpected_add(c, &c->orphans, head, payload);
    }
    if (member < 0 || g->error.code != HD_OK)
        return;
    if (head->kind == LF_FAILED)
        group_failed(g, member, head, payload);
    else
        lf_message_handle(g, member, head, payload);
}

/* READY, and others of the same sender behind it. */
static void ready_heard(struct hd_comm *c, struct lf_head head, const uint8_t *more)
{
    struct lf_head next;
    uint64_t left = head.text / sizeof head;
    head.text = 0;
    for (lf_control_handle(c, &head, more); left--; more += sizeof next) {
        memcpy(&next, more, sizeof next);
        if (next.kind != LF_READY || next.nonce != head.nonce || next.from != head.from || next.text != 0)
            return;
        lf_control_handle(c, &next, more);
    }
}

/* With the address of a rank that may not be known here yet. */
static void hello_came(struct hd_comm *c, const struct lf_head *head, const uint8_t *payload)
{
    uint8_t address[LF_TEXT] = {0}; /* as long as whatever the provider reads */
    c->peer[head->from].heard = 1;
    memcpy(address, payload, head->text);
    if (head->text)
        lf_peer_know(c, head->from, address);
}

/* Everything that a peer can say. Lengths are checked here, once; strangers have not the job's number. */
void lf_control_received(struct hd_comm *c, const uint8_t *data, size_t bytes)
{
    struct lf_head head;
    const uint8_t *payload = data + sizeof head;
    if (bytes < sizeof head)
        return;
    memcpy(&head, data, sizeof head);
    if (head.nonce != c->nonce || head.kind < LF_EAGER || head.kind > LF_HELLO || head.from < 0 ||
        head.from >= c->world.size || head.text > LF_TEXT ||
        bytes - sizeof head != (head.kind == LF_EAGER ? head.bytes : head.text))
        return;
    if (head.kind == LF_HELLO)
        hello_came(c, &head, payload);
    else if (head.kind == LF_CLOSED || head.kind == LF_ABORTED)
        peer_ended(c, &head, payload);
    else if (head.kind == LF_READY)
        ready_heard(c, head, payload);
    else
        lf_control_handle(c, &head, payload);
}

/* ---- out */

static struct lf_tx *tx_new(struct hd_comm *c)
{
    struct lf_tx *tx = c->free_tx;
    if (tx) {
        c->free_tx = tx->next;
        return tx;
    }
    tx = c->host->alloc(sizeof *tx + lf_control_bytes(c));
    if (tx)
        tx->wire.kind = LF_TX;
    return tx;
}

void lf_tx_free(struct hd_comm *c, struct lf_tx *tx)
{
    tx->next = c->free_tx;
    c->free_tx = tx;
}

/* 1: the provider has it; 0: not now. Short ones it copies at once. */
static int post_tx(struct hd_comm *c, struct lf_peer *peer, struct lf_tx *tx)
{
    int copied = tx->bytes <= c->info->tx_attr->inject_size;
    ssize_t rc = copied ? fi_tinject(c->ep, tx->data, tx->bytes, peer->address, LF_TAG_CONTROL)
                        : fi_tsend(c->ep, tx->data, tx->bytes, NULL, peer->address, LF_TAG_CONTROL, &tx->wire.context);
    if (rc == -FI_EAGAIN)
        return 0;
    if (rc)
        lf_peer_broke(c, tx->to, (int)-rc);
    if (rc || copied)
        lf_tx_free(c, tx);
    else
        c->tx_posted++;
    return 1;
}

static int post_notes_to(struct hd_comm *c, struct lf_peer *peer)
{
    int moved = 0;
    while (peer->first) {
        struct lf_tx *tx = peer->first;
        if (peer->broken) {
            peer->first = tx->next;
            lf_tx_free(c, tx);
            continue;
        }
        struct lf_tx *next = tx->next;
        if (!post_tx(c, peer, tx))
            break;
        peer->first = next;
        moved = 1;
    }
    return moved;
}

int lf_tx_post(struct hd_comm *c)
{
    int moved = 0;
    for (struct lf_peer **at = &c->talking; *at;) {
        struct lf_peer *peer = *at;
        moved |= post_notes_to(c, peer);
        if (peer->first) {
            at = &peer->next;
            continue;
        }
        peer->listed = 0;
        *at = peer->next;
    }
    return moved;
}

static struct lf_tx *tx_fill(struct hd_comm *c, int32_t to, struct lf_head *head, const void *payload)
{
    uint64_t bytes = head->kind == LF_EAGER ? head->bytes : head->text;
    struct lf_tx *tx = tx_new(c);
    if (!tx)
        return NULL;
    head->nonce = c->nonce;
    head->from = c->world.rank;
    tx->to = to;
    tx->next = NULL;
    tx->bytes = (uint32_t)(sizeof *head + bytes);
    memcpy(tx->data, head, sizeof *head);
    if (bytes)
        memcpy(tx->data + sizeof *head, payload, bytes);
    return tx;
}

static void tx_send(struct hd_comm *c, struct lf_tx *tx)
{
    struct lf_peer *peer = &c->peer[tx->to];
    if (!peer->first && !peer->broken && post_tx(c, peer, tx))
        return;
    *(peer->first ? peer->last : &peer->first) = tx;
    peer->last = &tx->next;
    if (!peer->listed) {
        peer->listed = 1;
        peer->next = c->talking;
        c->talking = peer;
    }
}

int32_t lf_control_send(struct hd_comm *c, int32_t to, struct lf_head *head, const void *payload)
{
    struct lf_tx *tx = tx_fill(c, to, head, payload);
    if (tx)
        tx_send(c, tx);
    return tx ? HD_OK : HD_E_NOMEM;
}

static void readies_send(struct hd_comm *c)
{
    struct lf_tx *tx = c->readies;
    c->readies = NULL;
    tx_send(c, tx);
}

void lf_ready_flush(struct hd_comm *c)
{
    c->row = 0;
    if (c->readies)
        readies_send(c);
}

/* The first recv of a row may be all there is, and a computation next: its READY leaves at once. So do those of large
 * messages, which start them. After further small ones some other call comes soon, if only to see whether they are
 * done. */
int32_t lf_control_send_ready(struct hd_comm *c, int32_t to, struct lf_head *head)
{
    enum { LARGE = 64 << 10 };
    struct lf_tx *tx = c->readies;
    struct lf_head *first = tx ? (struct lf_head *)tx->data : NULL;
    if (c->row != to + 1 || head->bytes > LARGE)
        return lf_control_send(c, to, head, NULL);
    if (tx && first->text + sizeof *head > LF_TEXT) {
        readies_send(c);
        tx = NULL;
    }
    if (!tx) {
        c->readies = tx_fill(c, to, head, NULL);
        return c->readies ? HD_OK : HD_E_NOMEM;
    }
    head->nonce = c->nonce;
    head->from = c->world.rank;
    memcpy(tx->data + tx->bytes, head, sizeof *head);
    tx->bytes += (uint32_t)sizeof *head;
    first->text = (uint16_t)(first->text + sizeof *head);
    return HD_OK;
}
