/* comm-shm: ranks of one machine move data through memory that all of them map.
 *
 * Every rank owns three kinds of segment, memfds without a name that peers open as /proc/PID/fd/N once the store has
 * told them the numbers:
 *   control   a page: doorbell, abort flag. One a rank.
 *   arena     what `memory` gives: peers read and write it directly.
 *   part      one a group: slots where this member posts its operations, counters, staging for buffers that lie
 *             outside the arena, mailboxes for send and recv.
 * A word of shared memory has one writer; what several ranks wait for lies on a cache line of its own.
 *
 * Collectives of a group run one after the other, in the order of enqueueing (coll.c). Sends and recvs run beside them
 * (p2p.c). Nothing happens but in collective, send, recv, progress and wait: there is no thread. */
#ifndef HD_COMM_SHM_INTERNAL_H
#define HD_COMM_SHM_INTERNAL_H

#include <sched.h>
#include <stdatomic.h>

#include "../common/request_pool.h"
#include "../common/shm_handle.h"
#include "heddle/comm.h"
#include "heddle/host.h"
#include "kernels.h"

#pragma GCC diagnostic ignored "-Wpadded" /* what follows never crosses the ABI */

#define SHM_MIN(a, b) ((a) < (b) ? (a) : (b))
#define SHM_MAX(a, b) ((a) > (b) ? (a) : (b))
#define SHM_LINE 64u
#define SHM_PAGE 4096u
#define SHM_HUGE (2u << 20)
#define SHM_MAGIC UINT64_C(0x32306d6873646568) /* "hedshm02" */

enum { SHM_ARENAS = 8, SHM_MEMBERS = 1024, SHM_STEP_BITS = 24 };
enum { SHM_AHEAD = 64, SHM_SLOTS = 2 * SHM_AHEAD }; /* operations that a member may be ahead of the others */
enum { SHM_TINY = 48 };                             /* bytes that travel in a slot itself */
enum { SHM_MAIL = 64 };                             /* messages under way between two ranks */
enum { SHM_FETCH = 4 };                             /* how far ahead of its use a slot is fetched */

#define SHM_ABORTING UINT32_MAX /* of shm_control.aborted: its owner is writing the reason */

enum { SHM_AUTO = 0, SHM_OFF = 1 };

struct shm_settings {
    int64_t small, small_crowded, small_rooted, stage, stream, quantum;
    double spin;
    int32_t huge;
    int32_t reserved;
};

/* ---- what lies in shared memory */

/* The last page of every segment: proof that it is the one that was announced. */
struct shm_trailer {
    uint64_t magic, nonce[2], bytes;
};

struct shm_control {
    _Alignas(SHM_LINE) _Atomic uint32_t sleeping; /* the owner sleeps on `doorbell` */
    _Atomic uint32_t doorbell;
    _Alignas(SHM_LINE) _Atomic uint32_t aborted; /* 1 + the rank that aborted; written by that rank */
    _Alignas(SHM_LINE) _Atomic uint32_t closed;
    char reason[256];       /* of the owner's abort */
    uint8_t cpus[1024 / 8]; /* the owner's affinity */
};

/* A collective's buffer: arena number + 1 in the top byte and the offset; 0: outside the arenas, staged. */
typedef uint64_t shm_ref;

/* Posted once an operation, the sequence number last. A member that needs nothing of the others (a small broadcast's
 * root) does not wait for them. Whoever posts operation s has compared what all posted up to s - SHM_AHEAD; so when
 * somebody writes s + SHM_SLOTS over s, everyone has posted s + SHM_AHEAD, and looks at slot s no more. `past` digests
 * all calls up to this one: to compare one slot is to compare all before it. A small operation has its payload in here
 * (everything is one line) or in the slot's payload memory behind all slots; another, the two refs. Two lines apart:
 * processors fetch lines in pairs. */
struct shm_slot {
    _Alignas(2 * SHM_LINE) _Atomic uint64_t seq;
    uint64_t past;
    union {
        uint8_t tiny[SHM_TINY];
        shm_ref refs[2]; /* send, recv */
    };
};

/* The call behind a slot's digest: read only to report a mismatch between two members. */
struct shm_said {
    uint64_t what, count, tag;
};

enum { MAIL_EMPTY = 0, MAIL_POSTED = 1, MAIL_FINISHED = 2 }; /* the sender's word */
enum { ACK_ACCEPTED = 1, ACK_DONE = 2, ACK_MISMATCH = 3 };   /* the receiver's */

/* A small message is in here, or in the mail's payload memory behind all boxes. */
struct shm_mail {
    _Alignas(SHM_LINE) _Atomic uint64_t state; /* seq << 3 | MAIL_... */
    uint64_t bytes;
    uint32_t stream, reserved;
    union {
        uint8_t tiny[40];
        shm_ref ref;
    };
};

struct shm_ack {
    _Alignas(SHM_LINE) _Atomic uint64_t state; /* seq << 3 | ACK_... */
    uint64_t bytes;
    shm_ref ref;
    uint64_t ticket; /* turn in the pair's staging, from 1; 0: not staged */
};

/* One per peer in every part: what the owner sends to it, and what it answers to what that peer sends. A small message
 * is answered in `got`, like ack.state: only a sender without a free mail waits for it, and looks at a line of them at
 * once. */
struct shm_box {
    struct shm_mail mail[SHM_MAIL];
    struct shm_ack ack[SHM_MAIL];
    _Alignas(SHM_LINE) _Atomic uint64_t got[SHM_MAIL];
    _Alignas(SHM_LINE) _Atomic uint64_t sent;  /* staged chunks, as the sender */
    _Alignas(SHM_LINE) _Atomic uint64_t taken; /* as the receiver */
};

/* Counters are seq << SHM_STEP_BITS | steps done. */
struct shm_part {
    _Alignas(SHM_LINE) _Atomic uint64_t ready; /* staging of the step is filled */
    _Atomic uint64_t done;                     /* the owner's share of the step is finished */
    _Alignas(SHM_LINE) _Atomic int32_t failed; /* HD_E_...: the owner gave the group up */
    _Atomic uint32_t mapped;                   /* the owner has mapped every part of the group */
    char why[512];
};

/* ---- what is private */

struct shm_segment {
    void *base;
    size_t bytes;  /* without the trailer */
    size_t mapped; /* bytes to unmap, from `origin` */
    void *origin;
    int fd; /* -1: a peer's */
    uint64_t nonce[2];
};

/* A segment's entry in the store. */
struct shm_stored_handle {
    uint64_t magic, layout;
    struct shm_handle at; /* bytes: without the trailer */
};

struct shm_peer {
    int32_t rank, pid, pidfd, dead;
    struct shm_segment control;
    struct shm_segment arena[SHM_ARENAS];
};

struct shm_group;

enum { SHM_COLLECTIVE = 0, SHM_SEND, SHM_RECV };
enum { OP_QUEUED = 0, OP_POSTED, OP_WORK, OP_DRAIN, OP_ACCEPTED, OP_PULL, OP_PUSH, OP_STAGED, OP_AWAIT };

struct shm_op {
    struct rq_record id;
    struct shm_op *next;
    struct shm_group *group;
    int32_t code; /* once done */
    uint8_t done, kind, state;
    uint32_t coll, dtype, redop;
    int32_t root;
    const void *send;
    void *recv;
    uint64_t count, tag, seq;
    double since; /* enqueued at */
    /* collectives */
    uint32_t esize;
    int32_t arrived;      /* members seen so far, in member order, by the present wait */
    uint64_t steps, step; /* 0 steps: small */
    uint64_t per_step;    /* elements */
    uint64_t first, last; /* this member's share of the present step */
    uint64_t cursor;      /* elements of the share that are done, times passes */
    int32_t n_src, n_dst, pass, passes;
    shm_ref send_ref, recv_ref;
    /* send, recv */
    int32_t peer;
    uint32_t stream;
    uint64_t bytes, ticket;
};

/* A peer's message that was seen and waits for its recv. */
struct shm_unexpected {
    uint64_t seq, bytes;
    uint32_t stream, mail;
};

struct shm_pair {
    struct shm_box *mine, *theirs;
    uint8_t *small_out, *small_in; /* payloads that I fill, one a mail; that the peer fills */
    uint8_t *stage_out, *stage_in;
    uint64_t posted, seen;      /* messages sent; messages of the peer that were looked at */
    uint64_t tickets;           /* staged transfers that I, as the receiver, have granted */
    uint64_t out_turn, in_turn; /* the staged transfer under way, from 1 */
    uint64_t busy;              /* bit m: mail m is in use */
    uint32_t n_unexpected;
    uint32_t reserved;
    struct shm_unexpected unexpected[SHM_MAIL];
};

struct shm_member {
    struct shm_peer *peer; /* NULL: me */
    struct shm_part *part;
    struct shm_slot *slot;   /* SHM_SLOTS of them */
    struct shm_said *said;   /* as many */
    uint8_t *small;          /* payloads, one a slot */
    uint8_t *in[2], *out[2]; /* staging */
    struct shm_segment segment;
    struct shm_pair pair;
};

struct shm_group {
    struct hd_comm *comm;
    struct shm_group *next;
    char name[64];
    const int32_t *ranks;
    int32_t n, me;
    /* Bytes, the same on all members: of the largest payload of a message, of a collective that waits for all, of a
     * broadcast or reduce; from one payload to the next, of slots and of mails. */
    uint64_t small, small_met, small_rooted, stride, mail_stride;
    uint64_t seq, compared; /* of the last collective enqueued; of one that all members posted, all the same up to it */
    uint64_t past;          /* the digest of what was posted */
    struct shm_op *head, **tail;
    struct shm_op *mail;   /* sends and recvs under way, oldest first */
    struct hd_error error; /* code != HD_OK: poisoned */
    const uint8_t **src;   /* of the operation at the head, at the start of its share */
    uint8_t **dst;
    struct shm_member *member;
};

struct hd_comm {
    const struct hd_host *host;
    struct shm_settings settings;
    struct hd_world world;
    char instance[96];
    struct shm_segment control;
    struct shm_segment arena[SHM_ARENAS];
    int32_t arenas;
    int32_t crowded;                  /* fewer cores than ranks that are mapped: never spin */
    _Atomic(struct shm_peer *) *peer; /* by world rank; NULL: not mapped */
    struct shm_group *groups;
    uint64_t *hashes; /* hashes of groups created so far */
    uint32_t n_hashes, hash_room;
    struct rq_pool ops; /* struct shm_op */
    uint32_t idle;      /* progress calls in a row that moved nothing */
    double idle_since, checked;
    uint64_t layout;
    const struct shm_kernels *kernels;
};

/* For a line that this member reads soon. A function that does nothing else gcc takes for pure, and throws away: hence
 * the empty asm. */
static inline void shm_fetch(const void *p)
{
    __builtin_prefetch(p);
    __asm__ volatile("" : : "r"(p));
}

/* A member's rank in the job, for messages. */
static inline int32_t shm_job_rank(const struct shm_group *g, int32_t member)
{
    return hd_job_rank(&g->comm->world, g->ranks[member]);
}

#define SHM_CONTROL(peer) ((struct shm_control *)(peer)->control.base)

/* segment.c */
int32_t shm_segment_create(struct hd_comm *comm, size_t bytes, int populate, struct shm_segment *segment,
                           struct hd_error *err);
void shm_segment_free(struct shm_segment *segment);
int32_t shm_announce(struct hd_comm *comm, const char *key, const struct shm_segment *segment, struct hd_error *err);
int32_t shm_attach(struct hd_comm *comm, const char *key, int32_t rank, struct shm_segment *segment, int64_t *pid,
                   struct hd_error *err);
int32_t shm_memory(struct hd_comm *comm, size_t bytes, void **base, struct hd_error *err);
int32_t shm_map_peer(struct hd_comm *comm, int32_t rank, struct hd_error *err); /* control and arenas of a peer */
void shm_forget(struct hd_comm *comm, int32_t rank);
shm_ref shm_ref_of(const struct hd_comm *comm, const void *p, uint64_t bytes);
uint8_t *shm_at(const struct hd_comm *comm, const struct shm_peer *peer, shm_ref ref); /* peer NULL: mine */

/* group.c */
int32_t shm_group(struct hd_comm *comm, const char *name, const int32_t *ranks, int32_t n, struct hd_comm_group **group,
                  struct hd_error *err);
void shm_group_free(struct hd_comm_group *group);

/* engine.c */
struct shm_op *shm_op_new(struct shm_group *group, uint32_t kind, struct hd_error *err);
void shm_op_finish(struct shm_op *op, int32_t code); /* the caller has taken it off its list */
void shm_ops_orphan(struct shm_group *group);        /* the group goes away: what is pending is cancelled */
/* Poisons the group with the error that was filled in, unless it is already. Returns the code. */
int32_t shm_fail(struct shm_group *group, const struct hd_error *err);
int32_t shm_progress(struct hd_comm *comm, struct hd_error *err);
int32_t shm_test(struct hd_comm *comm, hd_request request, int32_t *done, struct hd_error *err);
int32_t shm_wait(struct hd_comm *comm, hd_request request, double deadline, struct hd_error *err);
/* An error return if the group is poisoned or the transport aborted. */
int32_t shm_usable(struct shm_group *group, struct hd_error *err);

/* coll.c */
int32_t shm_collective(struct hd_comm_group *group, const struct hd_comm_call *call, hd_request *request,
                       struct hd_error *err);
int shm_coll_advance(struct shm_group *group);         /* 1 if anything moved */
int shm_coll_drain(struct shm_group *group);           /* the same, of what only waits for the others to have done */
int shm_coll_late(const struct shm_op *op, int32_t i); /* does it wait for member i? */
void shm_coll_compare(struct shm_group *g);            /* all that was posted; fails the group if two calls differ */
void shm_coll_text(uint64_t what, uint64_t count, uint64_t tag, char out[160]);
uint64_t shm_coll_what(const struct shm_op *op);

/* p2p.c */
int32_t shm_send(struct hd_comm_group *group, int32_t peer, uint32_t stream, const void *data, uint64_t bytes,
                 hd_request *request, struct hd_error *err);
int32_t shm_recv(struct hd_comm_group *group, int32_t peer, uint32_t stream, void *data, uint64_t bytes,
                 hd_request *request, struct hd_error *err);
int shm_mail_advance(struct shm_group *group);

/* wait.c */
double shm_now(void);
void shm_pause(void);
void shm_ring(struct shm_peer *peer); /* wakes it if it sleeps */
void shm_ring_group(struct shm_group *group);
/* One turn of a wait in which nothing moved: spins, yields or sleeps, as long as it has been so. */
void shm_relax(struct hd_comm *comm);
void shm_note_cores(struct hd_comm *comm); /* once, at open: all members count with the same */
void shm_count_cores(struct hd_comm *comm);
int shm_crowded(const struct shm_group *group); /* the same on all members */
int shm_peer_gone(struct shm_peer *peer);       /* 1: its process is dead */

#endif
