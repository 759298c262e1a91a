/* Large messages: chunks under way, `window` of them at a time, sent and received under tags made of the receiver's
 * token and the chunk's number. The receiver says READY when its first window is posted. */
#include "internal.h"

static uint64_t tag_of(uint32_t token, uint64_t chunk)
{
    return LF_TAG_CHUNK | (uint64_t)token << LF_CHUNK_BITS | chunk;
}

static struct lf_chunk *chunk_new(struct hd_comm *c)
{
    struct lf_chunk *chunk = c->free_chunks;
    if (chunk) {
        c->free_chunks = chunk->next;
        return chunk;
    }
    chunk = c->host->alloc(sizeof *chunk);
    if (chunk)
        chunk->wire.kind = LF_CHUNK;
    return chunk;
}

void lf_chunk_free(struct hd_comm *c, struct lf_chunk *chunk)
{
    chunk->next = c->free_chunks;
    c->free_chunks = chunk;
}

static int post_chunk(struct lf_op *op)
{
    struct hd_comm *c = op->group->comm;
    uint64_t at = op->posted * op->chunk, bytes = LF_MIN(op->chunk, op->bytes - at);
    fi_addr_t peer = c->peer[op->group->member[op->peer].rank].address;
    struct lf_chunk *chunk = chunk_new(c);
    uint64_t tag = tag_of(op->token, op->posted);
    ssize_t rc;
    if (!chunk)
        return 0;
    chunk->op = op;
    chunk->generation = op->id.generation;
    chunk->bytes = bytes;
    chunk->number = (uint32_t)(op->posted % LF_WINDOW);
    rc = op->sending ? fi_tsend(c->ep, op->data + at, bytes, NULL, peer, tag, &chunk->wire.context)
                     : fi_trecv(c->ep, op->data + at, bytes, NULL, FI_ADDR_UNSPEC, tag, 0, &chunk->wire.context);
    if (rc) {
        lf_chunk_free(c, chunk);
        if (rc != -FI_EAGAIN)
            lf_peer_broke(c, op->group->member[op->peer].rank, (int)-rc);
        return 0;
    }
    op->inflight[chunk->number] = chunk;
    op->posted++;
    return 1;
}

static int post_some(struct lf_op *op)
{
    uint64_t window = op->window, before = op->posted;
    while (op->posted < op->chunks && op->posted - op->finished < window && !op->inflight[op->posted % LF_WINDOW])
        if (!post_chunk(op))
            break;
    if (!op->sending && !op->ready && (op->posted == op->chunks || op->posted >= window))
        lf_ready_send(op);
    return op->posted != before;
}

static int has_more(const struct lf_op *op)
{
    return !op->done && (op->posted < op->chunks || (!op->sending && !op->ready));
}

/* The receiver has said READY: its places are posted. Yet ofi_rxm asks again for each message of more than
 * LF_RXM_EAGER, three ways instead of one. Up to a window of them a message goes in pieces that it does not ask for;
 * inside a machine the way is short, and copies of small pieces cost more. All ranks find the same. */
static void cut(struct lf_op *op)
{
    const struct hd_comm *c = op->group->comm;
    int asks = c->rendezvous && op->bytes <= (uint64_t)LF_WINDOW * LF_RXM_EAGER;
    op->chunk = c->settings.chunk ? (uint64_t)c->settings.chunk : asks ? LF_RXM_EAGER : LF_CHUNK_BYTES;
    op->window = asks && !c->settings.chunk ? LF_WINDOW : (uint32_t)c->settings.window;
}

void lf_chunks_begin(struct lf_op *op)
{
    struct hd_comm *c = op->group->comm;
    uint64_t most = c->info->ep_attr->max_msg_size, numbers = UINT64_C(1) << LF_CHUNK_BITS;
    struct lf_op **last;
    cut(op);
    op->chunk = LF_MAX(op->chunk, (op->bytes + numbers - 1) / numbers);
    op->chunk = LF_MIN(op->chunk, most);
    op->chunks = (op->bytes + op->chunk - 1) / op->chunk;
    op->posted = op->finished = 0;
    post_some(op);
    if (!has_more(op))
        return;
    op->busy = 1;
    op->busy_next = NULL;
    for (last = &c->busy; *last; last = &(*last)->busy_next) /* behind those that wait longer */
        ;
    *last = op;
}

int lf_chunks_post(struct hd_comm *c)
{
    int moved = 0;
    for (struct lf_op **at = &c->busy; *at;) {
        struct lf_op *op = *at;
        if (!op->done)
            moved |= post_some(op);
        if (has_more(op)) {
            at = &op->busy_next;
            continue;
        }
        *at = op->busy_next;
        op->busy = 0;
    }
    return moved;
}

void lf_chunk_done(struct hd_comm *c, struct lf_chunk *chunk, uint64_t bytes)
{
    struct lf_op *op = chunk->op;
    int current = op->id.generation == chunk->generation && !op->done;
    if (current) {
        op->inflight[chunk->number] = NULL;
        op->finished++;
    }
    if (current && !op->sending && bytes != chunk->bytes) {
        struct hd_error e = HD_ERROR_INIT;
        e.peer = lf_job_rank(op->group, op->peer);
        hd_fail(&e, HD_E_INTERNAL, "libfabric: a chunk of %llu bytes from rank %lld where %llu were expected",
                (unsigned long long)bytes, (long long)e.peer, (unsigned long long)chunk->bytes);
        lf_fail(op->group, &e);
    } else if (current && op->finished == op->chunks) {
        lf_op_finish(op, HD_OK);
    }
    lf_chunk_free(c, chunk);
}

/* Cancels the chunks of a failed message. With the providers shm and tcp;ofi_rxm, fi_cancel takes back receives that no
 * chunk has matched, before it returns; it does not find sends, nor receives that are matched. These go on until they
 * complete, the connection breaks, or the endpoint is closed. That is not waited for: a stopped peer would set the
 * time, and buffers stay until the transport is closed anyway (heddle/comm.h). */
void lf_chunks_cancel(struct lf_op *op)
{
    for (int i = 0; i < LF_WINDOW; i++) {
        if (op->inflight[i] && !op->sending)
            fi_cancel(&op->group->comm->ep->fid, &op->inflight[i]->wire.context);
        op->inflight[i] = NULL;
    }
}
