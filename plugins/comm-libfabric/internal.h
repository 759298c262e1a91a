/* comm-libfabric: ranks move data by the tagged messages of a libfabric provider.
 *
 * Each rank has one endpoint (reliable, unconnected), whose address it leaves in the job's store. A message takes place
 * in two halves that meet, whichever comes first:
 *   the receiver   READY {group, stream, number, bytes, token}, as soon as it receives; those of several small recvs in
 *                  a row are sent together
 *   the sender     small: EAGER {group, stream, number, bytes} and the bytes, as soon as it sends
 *                  large: waits for READY; then the bytes, in chunks, under tags that only this token has
 * So both learn both sizes, nothing large arrives unasked for, and of a small message the sender is done when READY is
 * there, the receiver when EAGER is: one way each, both at once. Messages carry their number, and nothing depends on
 * the order in which a provider delivers.
 *
 * Providers do not say reliably that a peer died: the core's liveness calls `abort`. A rank that gives a group up,
 * closes or aborts tells the others in a control message. Nothing happens but in send, recv, progress, test, wait and
 * close. */
#ifndef HD_COMM_LIBFABRIC_INTERNAL_H
#define HD_COMM_LIBFABRIC_INTERNAL_H

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_tagged.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "../common/request_pool.h"
#include "heddle/comm.h"
#include "heddle/host.h"

#pragma GCC diagnostic ignored "-Wpadded" /* what follows never crosses the ABI */

#define LF_MIN(a, b) ((a) < (b) ? (a) : (b))
#define LF_MAX(a, b) ((a) > (b) ? (a) : (b))

enum {
    LF_WINDOW = 16, /* chunks of one message under way, at most */
    LF_CHUNK_BYTES = 8 << 20,
    LF_RXM_EAGER = 16 << 10, /* what ofi_rxm sends without asking (FI_OFI_RXM_BUFFER_SIZE) */
    LF_RX_BUFFERS = 64,      /* control messages that can arrive between two calls of progress without being buffered */
    LF_TEXT = 512,           /* bytes of a reason in a control message */
    LF_ADDRESS = 256,        /* bytes of an endpoint's, at most */
    LF_GREETED = 64,         /* groups up to this size connect when they are made, larger ones when they first talk */
    LF_ORPHANS = 1 << 16,    /* control messages that may wait for their group to be created */
    LF_INDEX_BITS = 18,      /* of a token: the operation's index; above it its generation */
    LF_TURN_BITS = 10,
    LF_CHUNK_BITS = 16 /* of a tag: the chunk's number */
};
#define LF_TAG_CONTROL UINT64_C(1)
#define LF_TAG_CHUNK (UINT64_C(1) << 47) /* token and chunk below; 48 bits, as the narrowest provider has */

struct lf_settings {
    const char *provider, *interface, *domain;
    int64_t eager, chunk, window, spin;
};

/* ---- what travels */

enum { LF_EAGER = 1, LF_READY, LF_REFUSED, LF_FAILED, LF_CLOSED, LF_ABORTED, LF_HELLO };

struct lf_head {
    uint64_t nonce; /* the job's: what strangers send is dropped */
    uint64_t group, bytes;
    uint32_t stream, number, token;
    int32_t from; /* world rank */
    int32_t code; /* FAILED */
    uint16_t kind;
    uint16_t text; /* bytes behind it: FAILED, ABORTED a reason, READY the heads of further ones, HELLO an address */
};

/* ---- what the provider holds: fi_context first */

enum { LF_RX, LF_TX, LF_CHUNK };

struct lf_wire {
    struct fi_context2 context;
    uint32_t kind;
};

struct lf_rx { /* a receive buffer for control messages */
    struct lf_wire wire;
    struct lf_rx *next; /* to be posted again */
    _Alignas(16) uint8_t data[];
};

struct lf_tx { /* a control message on its way out */
    struct lf_wire wire;
    struct lf_tx *next;
    int32_t to;
    uint32_t bytes;
    _Alignas(16) uint8_t data[];
};

struct lf_chunk { /* a chunk of a large message, posted to the provider */
    struct lf_wire wire;
    struct lf_chunk *next;
    struct lf_op *op;
    uint32_t generation;
    uint32_t number;
    uint64_t bytes;
};

/* ---- what is private */

struct lf_unexpected { /* came before its operation: EAGER or READY; or before its group: any kind */
    struct lf_unexpected *next;
    struct lf_head head;
    uint8_t payload[];
};

struct lf_op {
    struct rq_record id;
    struct lf_op *next;           /* in its flow */
    struct lf_op *before, *after; /* among all that is pending */
    struct lf_op *busy_next;      /* has chunks to post */
    struct hd_comm_group *group;
    struct lf_flow *flow;
    uint8_t *data;
    uint64_t bytes, chunk;
    uint64_t chunks, posted, finished;
    double since;
    uint32_t number, token;
    int32_t code, peer;
    uint32_t window; /* chunks under way */
    uint8_t done, sending, busy;
    uint8_t gone;  /* sending: the bytes left in EAGER */
    uint8_t ready; /* sending: READY came; receiving: it was sent */
    struct lf_chunk *inflight[LF_WINDOW];
};

struct lf_flow { /* one stream between this rank and one member, both ways */
    struct lf_flow *next;
    uint32_t stream, sent, received;
    struct lf_op *sends, *recvs;
    struct lf_unexpected *unexpected;
};

struct lf_member {
    struct lf_flow *flows;
    int32_t rank;
    int32_t failed; /* HD_E_...: it gave the group up */
    double failed_at;
    char *why;
};

struct hd_comm_group {
    struct hd_comm *comm;
    struct hd_comm_group *next;
    char name[64];
    uint64_t id;
    int32_t n, me;
    struct hd_error error; /* the first; all later calls return it */
    struct lf_member member[];
};

struct lf_peer { /* by world rank */
    fi_addr_t address;
    int32_t known, greeted, heard; /* its address; HELLO to it; HELLO from it */
    int32_t eager;                 /* small messages under way without an answer */
    int32_t broken;                /* FI_E...: the provider failed to send to it */
    int32_t closed;
    double gone_at;              /* when it broke or closed */
    struct lf_tx *first, **last; /* waiting to be posted */
    struct lf_peer *next;        /* has some */
    int32_t listed;
};

struct lf_group_count { /* how many groups of this name and these ranks were created */
    struct lf_group_count *next;
    uint64_t hash, times;
};

struct hd_comm {
    const struct hd_host *host;
    struct lf_settings settings;
    struct hd_world world;
    char instance[128];
    uint64_t nonce;
    struct fi_info *info;
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_ep *ep;
    struct fid_cq *cq;
    struct fid_av *av;
    uint8_t address[LF_ADDRESS]; /* of the endpoint */
    size_t address_bytes;
    struct lf_peer *peer;
    struct lf_peer *talking; /* peers with control messages to post */
    struct hd_comm_group *groups;
    struct lf_group_count *counts;
    struct lf_unexpected *orphans;
    uint32_t n_orphans;
    struct rq_pool ops; /* struct lf_op */
    struct lf_op *pending, *busy;
    uint32_t idle;
    int32_t rendezvous; /* ranks on other machines, and a provider that asks before it sends a large message */
    struct lf_rx *rx_idle, *rx[LF_RX_BUFFERS];
    struct lf_tx *free_tx;
    struct lf_chunk *free_chunks;
    uint32_t tx_posted;    /* not complete */
    int32_t row;           /* 1 + the rank that the last call was a recv from; 0: it was no recv */
    struct lf_tx *readies; /* of these recvs, not sent yet */
    double checked;
    int32_t listener;         /* the provider's listening socket; 0: not known */
    int64_t expected;         /* descriptors that the job may need */
    double next_look, looked; /* for strangers: when to count, when they were last looked for */
    int32_t strangers;        /* 1: some were shut down, and it was said */
    _Atomic int32_t aborted;  /* 1: reason is being written, 2: written */
    int32_t abort_told;
    int32_t abort_by;
    char reason[LF_TEXT];
};

/* A member's rank in the job, for messages. */
static inline int32_t lf_job_rank(const struct hd_comm_group *g, int32_t member)
{
    return hd_job_rank(&g->comm->world, g->member[member].rank);
}

static inline int lf_by_shm(const struct hd_comm *c)
{
    return !strcmp(c->info->fabric_attr->prov_name, "shm");
}

/* provider.c: which provider and interface. `local`: all ranks are on this machine. */
int32_t lf_choose(const struct hd_host *host, const struct lf_settings *settings, int local, struct fi_info **info,
                  struct hd_error *err);

/* endpoint.c */
int32_t lf_endpoint_open(struct hd_comm *comm, struct hd_error *err);
void lf_endpoint_close(struct hd_comm *comm);
int32_t lf_peer_connect(struct hd_comm *comm, int32_t rank, struct hd_error *err); /* waits until it is open */
int lf_peer_know(struct hd_comm *comm, int32_t rank, const void *address);         /* 0: not one of the provider's */
/* Asks the store for what is there: it answers unless the job has ended, and then says who died. For waits while the
 * transport is being opened, when nobody else would tell it. */
int32_t lf_job_lives(struct hd_comm *comm, struct hd_error *err);

/* shm_names.c: the shm provider's names in /dev/shm go once all ranks know each other. */
int32_t lf_names_settle(struct hd_comm *comm, struct hd_error *err);
void lf_names_sweep(const struct hd_comm *comm); /* of the dead */

/* control_msg.c */
uint64_t lf_control_bytes(const struct hd_comm *comm);
int lf_rx_post(struct hd_comm *comm);
int lf_tx_post(struct hd_comm *comm); /* 1: something moved */
void lf_tx_free(struct hd_comm *comm, struct lf_tx *tx);
/* Copies head and payload (EAGER: head->bytes, else head->text of it) and sends them, now or later. */
int32_t lf_control_send(struct hd_comm *comm, int32_t to, struct lf_head *head, const void *payload);
/* Sends a recv's READY at once, or holds it back to send it with those of further small recvs from the same rank:
 * lf_ready_flush does, at any call but another recv from that rank. */
int32_t lf_control_send_ready(struct hd_comm *comm, int32_t to, struct lf_head *head);
void lf_ready_flush(struct hd_comm *comm);
void lf_control_received(struct hd_comm *comm, const uint8_t *data, size_t bytes); /* from the provider: checks it */
void lf_control_handle(struct hd_comm *comm, const struct lf_head *head, const uint8_t *payload);
void lf_unexpected_add(struct hd_comm *comm, struct lf_unexpected **list, const struct lf_head *head,
                       const void *payload);

/* message.c */
int32_t lf_send(struct hd_comm_group *g, int32_t peer, uint32_t stream, const void *data, uint64_t bytes,
                hd_request *request, struct hd_error *err);
int32_t lf_recv(struct hd_comm_group *g, int32_t peer, uint32_t stream, void *data, uint64_t bytes, hd_request *request,
                struct hd_error *err);
void lf_message_handle(struct hd_comm_group *g, int32_t member, const struct lf_head *head, const uint8_t *payload);
void lf_ready_send(struct lf_op *op);

/* chunk.c */
void lf_chunks_begin(struct lf_op *op);
int lf_chunks_post(struct hd_comm *comm); /* 1: something moved */
void lf_chunk_done(struct hd_comm *comm, struct lf_chunk *chunk, uint64_t bytes);
void lf_chunks_cancel(struct lf_op *op);
void lf_chunk_free(struct hd_comm *comm, struct lf_chunk *chunk);

/* group.c */
int32_t lf_group(struct hd_comm *comm, const char *name, const int32_t *ranks, int32_t n, struct hd_comm_group **group,
                 struct hd_error *err);
void lf_group_free(struct hd_comm_group *g);
void lf_groups_forget(struct hd_comm *comm);
void lf_hello(struct hd_comm *comm, int32_t rank); /* once */
/* Sends HELLO to all and waits for theirs: then there are connections in both directions. */
int32_t lf_greet(struct hd_comm *comm, const char *name, const int32_t *ranks, int32_t n, struct hd_error *err);
struct hd_comm_group *lf_group_find(const struct hd_comm *comm, uint64_t id);
int32_t lf_group_member(const struct hd_comm_group *g, int32_t rank); /* -1: none */
struct lf_flow *lf_flow(struct hd_comm_group *g, int32_t member, uint32_t stream);

/* engine.c */
double lf_now(void);
struct lf_op *lf_op_new(struct hd_comm_group *g); /* NULL: no memory, or too many */
uint32_t lf_op_token(const struct lf_op *op);
void lf_op_finish(struct lf_op *op, int32_t code);
void lf_ops_orphan(struct hd_comm_group *g);
int lf_advance(struct hd_comm *comm); /* 1: something moved */
int32_t lf_progress(struct hd_comm *comm, struct hd_error *err);
int32_t lf_test(struct hd_comm *comm, hd_request request, int32_t *done, struct hd_error *err);
int32_t lf_wait(struct hd_comm *comm, hd_request request, double deadline, struct hd_error *err);

/* strangers.c. `address`: of the endpoint. */
void lf_strangers_init(struct hd_comm *comm, const void *address, size_t bytes);
void lf_strangers(struct hd_comm *comm);

/* peer_health.c */
int32_t lf_fail(struct hd_comm_group *g, const struct hd_error *err);
void lf_fail_late(struct lf_op *op);
void lf_peer_broke(struct hd_comm *comm, int32_t rank, int code);
void lf_health(struct hd_comm *comm);
void lf_abort(struct hd_comm *comm, const char *reason);
void lf_abort_by(struct hd_comm *comm, int32_t rank, const char *text, size_t length);
int lf_abort_poll(struct hd_comm *comm); /* 1: some rank aborted */
/* To a peer that was not known yet when the others were told: groups given up, and an abort. */
void lf_tell_ends(struct hd_comm *comm, int32_t rank);
int32_t lf_usable(struct hd_comm_group *g, struct hd_error *err);

#endif
