/* runtime/rendezvous/client_internal: one rank's side of the store, for the files that make it up:
 *   client.c         opening and closing, the requests, the end of a job
 *   client_link.c    the connection: frames out, the thread that listens and beats, what the rank tells of itself
 *   client_connect.c finding the server, greeting it */
#ifndef HD_RUNTIME_RENDEZVOUS_CLIENT_INTERNAL_H
#define HD_RUNTIME_RENDEZVOUS_CLIENT_INTERNAL_H

#include <pthread.h>
#include <time.h>

#include "core/base/timed_wait.h"
#include "heddle/comm.h"
#include "runtime/rendezvous/auth.h"
#include "runtime/rendezvous/kv.h"
#include "runtime/rendezvous/liveness.h"
#include "runtime/rendezvous/store.h"
#include "runtime/rendezvous/tls.h"
#include "runtime/rendezvous/wire.h"

/* A request that waits for its reply; lives on the caller's stack. */
struct store_request {
    struct store_request *next;
    uint32_t id;
    int32_t code;
    int done;
    size_t bytes, room; /* bytes: as sent; what exceeds `room` is cut */
    uint8_t *value;
};

struct hd_store {
    struct hd__liveness live;
    int32_t rank, size;
    int32_t server_rank;
    const char *noun; /* of a rank, for messages */
    int fd, wake;
    struct hd__tls *tls; /* NULL: plain */
    double dead_after, last_heard;
    int here;              /* the server is on this machine */
    int32_t server_thread; /* of its heartbeats */
    pthread_t thread;
    pthread_mutex_t write_lock;       /* whole frames, in the order of their numbers */
    int sealed;                       /* the handshake is over */
    struct hd__auth_channel from, to; /* the server's frames, ours */
    char server[128];                 /* "node1:29400", for messages */
    char end[256];                    /* room for why the connection is over */
    pthread_mutex_t lock;             /* pending, next_id, stop */
    pthread_cond_t replied;
    struct store_request *requests;
    uint32_t next_id;
    pthread_t owner;       /* that connected: what other threads wait for is not what the rank waits for */
    _Atomic int waiting;   /* its GETs and BARRIERs under way */
    _Atomic double waited; /* when the last of them ended */
    int stop;
    int32_t exit_code;                       /* + 1 */
    _Atomic int outlives, lost;              /* requests go on after the end of the job; the connection is over */
    pthread_mutex_t status_lock;             /* held while the witness tells */
    struct hd__store_status_provider status; /* tell NULL: there is none */
    double next_dump_request;                /* of the present wait */
    int final_dump_sent;                     /* at the end */
    size_t in_bytes;
    uint8_t *in; /* WIRE_SEALED_MAX */
};

/* client_link.c: HD_OK, HD_E_TIMEOUT or HD_E_PEER. */
int32_t hd__store_send(struct hd_store *s, const struct hd__frame *frame, double deadline);
void *hd__store_thread(void *store); /* the thread */
/* Sends this rank's part, HD__GATHER_...; at the end only once. */
void hd__store_send_dump(struct hd_store *s, int32_t what);
void hd__store_record_end(struct hd_store *s, int32_t code, int32_t fault, int32_t rank, uint64_t origin,
                          const char *cause);

/* client_connect.c: once. HD_E_IO: nobody listens yet, or somebody let us go without a word; `err` says no more than
 * that. */
int32_t hd__store_handshake(struct hd_store *s, const struct hd__store_options *o, struct hd_deadline *end,
                            struct hd_error *err);

#endif
