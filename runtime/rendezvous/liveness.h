/* runtime/rendezvous/liveness: who of the job is dead, and whether the job is ending.
 *
 * Each rank's connection to the store has a thread that sleeps in poll(), sends a heartbeat now and then and
 * listens. When a rank's connection breaks, or it is silent for `dead_after`, the server tells all others; an abort
 * travels the same way. The first event is kept. hd__store_liveness_check is one atomic load when all is well: wait
 * loops call it freely. */
#ifndef HD_RUNTIME_RENDEZVOUS_LIVENESS_H
#define HD_RUNTIME_RENDEZVOUS_LIVENESS_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

#include "heddle/types.h"

struct hd__liveness {
    _Atomic int32_t code; /* HD_OK while all is well; then HD_E_PEER or HD_E_CANCELLED */
    int32_t rank;         /* who died or aborted; -1: the launcher, or unknown */
    int32_t fault;        /* why who aborted did, HD_E_...; HD_E_PEER of a death */
    uint64_t origin;      /* of the failure, as in struct hd_error; 0 of a death, and of what the server found */
    pthread_mutex_t lock;
    void (*notify)(void *user, const char *cause);
    void *user;
    char cause[512];
};

/* Initialises the caller's memory: no rank has died. finish frees the lock, when no other thread uses it any more. */
void hd__store_liveness_init(struct hd__liveness *live);
void hd__store_liveness_finish(struct hd__liveness *live);
/* [any-thread] HD_OK; or HD_E_PEER with the rank that died, or HD_E_CANCELLED with the rank that aborted. `err` gets
 * the cause, its rank and its origin. Both may be NULL. */
int32_t hd__store_liveness_check(struct hd__liveness *live, int32_t *rank, struct hd_error *err);
/* [any-thread] Why: of an event that was recorded, else HD_OK. */
int32_t hd__store_liveness_fault(const struct hd__liveness *live);
/* [any-thread] Records an event; only the first counts. */
void hd__store_liveness_record(struct hd__liveness *live, int32_t code, int32_t fault, int32_t rank, uint64_t origin,
                               const char *cause);
/* [control] Called once, from the listening thread, when something happens: the place to call a transport's abort().
 * Called at once if it already has. NULL removes it; after that returns, no call is under way. */
void hd__store_liveness_notify(struct hd__liveness *live, void (*notify)(void *user, const char *cause), void *user);

/* A heartbeat that comes late on a busy machine would look like a death. Before a rank is bound to cores of its own:
 * the store's threads keep all that it has now, so that one core that stands still does not silence it. */
void hd__store_keep_cores(void);
/* [any-thread] The calling thread gets these cores, and is scheduled first where this process may ask for it. */
void hd__store_favour_thread(void);
/* fork(), while no thread of a store or server is awake: for a process that has them. The child has none of them. */
pid_t hd__store_fork(void);
/* For these threads: around all that they do but waiting. */
void hd__store_thread_wakes(void);
void hd__store_thread_sleeps(void);
/* Id of the calling thread, sent with its heartbeats. */
int32_t hd__store_thread_id(void);
/* Silence is over its limit: does the peer's thread, of this machine, wait for a core? It was woken by a frame: else it
 * is stopped or hangs. After a few times the limit it is as good as dead. */
int hd__store_is_starved(int32_t thread, double silent, double dead_after);

/* Seconds between two heartbeats. */
double hd__store_heartbeat_seconds(double dead_after);
/* Silence after which a rank counts as dead: somewhat before dead_after, so that the others have ended by then. */
double hd__store_silence_seconds(double dead_after);

#endif
