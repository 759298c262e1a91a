/* runtime/rendezvous/server_internal: the rendezvous server, for the files that make it up:
 *   server.c           the thread, opening and closing, how a job ends
 *   server_conn.c      connections: what came, what goes out, who is silent
 *   server_requests.c  greetings, keys, barriers, and the requests that wait */
#ifndef HD_RUNTIME_RENDEZVOUS_SERVER_INTERNAL_H
#define HD_RUNTIME_RENDEZVOUS_SERVER_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "core/base/base.h"
#include "runtime/rendezvous/auth.h"
#include "runtime/rendezvous/dump_collect.h"
#include "runtime/rendezvous/kv.h"
#include "runtime/rendezvous/store.h"
#include "runtime/rendezvous/tls.h"
#include "runtime/rendezvous/wire.h"

struct server_conn {
    int fd;
    struct hd__tls *tls; /* NULL: plain */
    uint8_t secret[WIRE_SECRET];
    int32_t rank; /* -1: a stranger */
    int proved;   /* knows the secret: frames are sealed */
    int closing;  /* 1: close once `out` is written */
    int leaving;  /* 1: said goodbye, and is let go when the parts are handed over */
    double last_heard, opened, nudged;
    int local;      /* the peer is on this machine */
    int32_t thread; /* that beats there; 0: not known yet */
    char peer[64];  /* "10.0.0.2:41234" */
    struct hd__auth_handshake handshake;
    struct hd__auth_channel from, to; /* the rank's frames, the server's */
    char end[160];                    /* room for why it is over */
    uint8_t *in;                      /* `in_room`: a greeting's size for a stranger, WIRE_SEALED_MAX for a rank */
    size_t in_room;
    uint8_t *out;
    size_t in_bytes, out_at, out_bytes, out_room;
};

/* A GET, a BARRIER or a ROLL_CALL whose reply is not due yet. */
struct waiting_request {
    int32_t rank;
    uint32_t type, id;
    double deadline;
    size_t key_bytes;
    char key[WIRE_KEY_MAX];
};

struct hd__server {
    struct hd__server_options options;
    int listener, wake;
    int discovery; /* local_discovery's listener, until all ranks have come; -1: none */
    char at[300];  /* "node1:29400", for messages */
    uint16_t port;
    _Atomic int stop;
    _Atomic int32_t come;            /* ranks that have connected */
    _Atomic int32_t gone;            /* ranks that left or died */
    _Atomic int32_t said, exit_code; /* those that left with an exit code; the highest */
    pthread_t thread;
    struct hd__kv kv;
    uint8_t *rank_state; /* HD__PART_... */
    uint32_t refused;    /* connections that did not prove that they know the secret */
    int all_connected;   /* known to have */
    HD__ARRAY(struct server_conn *) conns;
    struct server_conn **conn_of; /* by rank; NULL: it has none */
    HD__ARRAY(struct waiting_request) waits;
    _Atomic int32_t ended_by; /* as hd__server_ended_by says */
    struct {
        _Atomic int32_t code; /* HD_E_PEER or HD_E_CANCELLED; set before ended_by */
        int32_t rank, fault;  /* who; why who gave up did */
        uint64_t origin;      /* of the failure that it gave up for; else 0 */
        char cause[512];
    } end; /* the first death or abort, told to ranks that connect later too */
    struct hd__dump_collect dumps;
    struct {
        pthread_t thread;
        int threads, what; /* it runs in `thread`; HD__DUMP_... that it reports, 0: there is no report now */
        struct hd__rank_dumps all;
        struct hd__arena arena; /* of what `all` points to */
        int32_t code, rank;     /* as on_dumps says; valid when done */
        char cause[512];
        _Atomic int done;
    } report;
    _Atomic uint32_t *visits; /* of members, as hd__server_visits says */
    struct {
        _Atomic int is; /* asked for; what follows was set before */
        int32_t rank;
        char cause[256];
    } ask; /* hd__server_end */
    struct {
        _Atomic int all; /* hd__server_stopping */
        int32_t rank;
        double since; /* of the first whose connection closed since then; 0: none did */
    } stopping;
    double opened, first_connected; /* when it was; when the first rank came, 0: none did */
    double absent_logged;           /* how many seconds after that the log last said who has not come */
    _Atomic double busy_until;      /* as hd__server_busy_until says */
    double slept, woke;             /* how long this process was stopped the last time, and until when */
};

/* server.c */
void hd__server_end_job(struct hd__server *s, int32_t fault, int32_t rank, uint64_t origin, const char *cause);
void hd__server_send_end(struct hd__server *s, struct server_conn *c);
/* A rank has waited so long: asks all what they do. */
void hd__server_request_dumps(struct hd__server *s, double waited, double now);

/* "2, 5 and 3 more": the ranks r of which `is[r]`; returns how many. */
int32_t hd__server_format_ranks(const struct hd__server *s, const uint8_t *is, char *out, size_t room);
/* "rank 2", "ranks 2, 5 and 3 more" that have not come; returns the first of them, -1 where all have. */
int32_t hd__server_absent_ranks(const struct hd__server *s, char out[256]);

/* server_conn.c. log_refused: a connection that did not prove what it has to. read and write say why the
 * connection is over, or NULL. */
void hd__server_log_refused(struct hd__server *s, const struct server_conn *c, const char *why);
void hd__server_conn_send(struct server_conn *c, const struct hd__frame *frame);
void hd__server_conn_accept(struct hd__server *s, double now);
const char *hd__server_conn_read(struct hd__server *s, struct server_conn *c, double now);
const char *hd__server_conn_write(struct server_conn *c);
/* Closes connection `i`; of a rank that did not say goodbye it is the death, by `cause`. */
void hd__server_conn_free(struct hd__server *s, uint32_t i, const char *cause);

/* dead_rank.c: NULL, or why a connection counts as dead; the end of the job by the death of a rank. */
const char *hd__server_conn_check_timeout(struct hd__server *s, struct server_conn *c, double now, char text[64]);
void hd__server_rank_died(struct hd__server *s, int32_t rank, const char *cause);

/* server_requests.c */
void hd__server_on_frame(struct hd__server *s, struct server_conn *c, const struct hd__frame *f, double now);
void hd__server_drop_waits(struct hd__server *s, int32_t rank); /* it left or died: roll calls do without it */
void hd__server_expire_waits(struct hd__server *s, double now);

#endif
