/* runtime/rendezvous/store: the job's rendezvous: a small key-value store that all ranks share, and barriers.
 *
 * One process serves it over TCP (rank 0, or the launcher); every rank connects once, both sides prove that they know
 * the job's secret (runtime/rendezvous/auth.h), and the connection stays until the end: it is also how a dead rank is
 * noticed (runtime/rendezvous/liveness.h). Where all ranks are on one machine, the server can hand its port and secret
 * to processes of the same user (runtime/rendezvous/local_discovery.h). Nothing of a training step goes through here.
 *
 *     hd__server_open -> hd__server_port -> (ranks) hd__store_connect ... put, get, barrier ... hd__store_close
 *     -> hd__server_close
 *
 * All calls may come from any thread. Deadlines are CLOCK_MONOTONIC seconds (hd__now). */
#ifndef HD_RUNTIME_RENDEZVOUS_STORE_H
#define HD_RUNTIME_RENDEZVOUS_STORE_H

#include <signal.h>

#include "heddle/host.h"
#include "heddle/types.h"
#include "runtime/rendezvous/dump_collect.h"

#define HD__SECRET_BYTES 32
#define HD__SECRET_TEXT (2 * HD__SECRET_BYTES + 1) /* hexadecimal, terminated */

struct hd__server;
struct hd__liveness;
struct ssl_ctx_st;

/* Memory of the serving process that PUT and GET reach instead of the table of keys. Called from the server's thread;
 * an error's code is the answer. */
struct hd__server_memory {
    int32_t (*put)(void *user, const char *key, const void *value, size_t bytes);
    /* *bytes: room at `value`, 64 KiB, then what was read. */
    int32_t (*get)(void *user, const char *key, void *value, size_t *bytes);
    void *user;
};

struct hd__server_options {
    const char *address; /* to listen at, a name or address of this machine */
    uint16_t port;       /* 0: any */
    uint16_t reserved;
    int32_t size;               /* ranks of the job */
    int32_t rank;               /* rank of the serving process; -1: the launcher */
    double dead_after;          /* seconds until all others have ended after a rank fell silent */
    double late_after, timeout; /* seconds until the log names ranks that have not come, and until that ends the
                                                job; 0: never */
    uint8_t secret[HD__SECRET_BYTES];
    struct ssl_ctx_st *tls;      /* of hd__tls_context; NULL: plain */
    const char *discovery_id;    /* tells local ranks that ask by this id its port and secret; NULL: none */
    hd__rank_dumps_fn *on_dumps; /* told what the ranks were doing; NULL: nobody asks */
    void *user;
    /* 1: the ranks are agents of machines, which come and go: the end of one ends nobody else's connection, and it may
     * come again; messages call it a node. */
    int32_t members;
    int32_t reserved2;
    const sigset_t *stops; /* blocked signals; one of them that is pending asks all ranks to stop. NULL: none do */
    const struct hd__server_memory *memory; /* lives as long as the server; NULL: keys have a table of their own */
};

/* Listens and serves in a thread of its own until closed. */
int32_t hd__server_open(const struct hd__server_options *options, struct hd__server **server, struct hd_error *err);
uint16_t hd__server_port(const struct hd__server *server);
/* The rank that died or gave up first, and so ended the job; -1: none did. *code: HD_E_PEER if it died,
 * HD_E_CANCELLED if it said why. */
int32_t hd__server_ended_by(const struct hd__server *server, int32_t *code);
/* Stops the server, when it has read all that came. Have all ranks left in order, and said by which exit codes? Then
 * the highest, else -1. */
int32_t hd__server_exit_code(struct hd__server *server);
/* [any-thread] Has every rank connected? Not of members. */
int hd__server_is_complete(const struct hd__server *server);
/* [any-thread] Of members: counts how often one has come and gone; odd: it is here. */
uint32_t hd__server_visits(const struct hd__server *server, int32_t rank);
/* [any-thread] All ranks are asked to stop: one whose connection closes has died only if others are here 2 s later. */
void hd__server_stopping(struct hd__server *server);
/* [any-thread] Ends the job as if this rank had died by `cause`, unless it has ended. */
void hd__server_end(struct hd__server *server, int32_t rank, const char *cause);
/* [any-thread] hd__now() up to which ranks said that they are busy; 0: none did. */
double hd__server_busy_until(const struct hd__server *server);
/* Waits until every rank has said goodbye or died, or the deadline, while none is busy. For the rank that serves,
 * before it closes. */
void hd__server_drain(struct hd__server *server, double deadline);
void hd__server_close(struct hd__server *server); /* NULL is fine */

struct hd__store_options {
    const char *host; /* name or address of the server */
    uint16_t port;
    uint16_t reserved;
    int32_t rank, size;
    double dead_after;
    double late_after; /* seconds until the log says who is waited for, and again when that has doubled; 0: never */
    uint8_t secret[HD__SECRET_BYTES];
    struct ssl_ctx_st *tls; /* as the server's */
    int32_t members;        /* as the server's */
    int32_t reserved2;
    const char *discovery_id; /* asks for port and secret by this id, on this machine; NULL: they are as above */
};

/* Connects, trying again until the deadline while nobody listens yet. HD_E_TIMEOUT: nobody did until then. */
int32_t hd__store_connect(const struct hd__store_options *options, double deadline, struct hd_store **store,
                          struct hd_error *err);
/* Says goodbye, so that the others do not take it for a death. Where the job ended by a fault it returns when the
 * server has put the report together, after HD__REPORT_SECONDS at most. NULL is fine. */
void hd__store_close(struct hd_store *store);
/* The same, but the store stays: for a process that ends while another thread may still ask it. */
void hd__store_leave(struct hd_store *store);

/* As in struct hd_host. */
int32_t hd__store_put(struct hd_store *store, const char *key, const void *value, size_t bytes, struct hd_error *err);
int32_t hd__store_get(struct hd_store *store, const char *key, void *value, size_t *bytes, double deadline,
                      struct hd_error *err);
/* Forgets the key, where it is there: for what all have read. */
int32_t hd__store_remove(struct hd_store *store, const char *key, struct hd_error *err);
/* Seconds that the server's hd__now() is ahead of this rank's: from the shortest of some round trips. 0 where that
 * is less than such a trip takes, as on one machine. */
int32_t hd__store_clock_offset(struct hd_store *store, double *offset, struct hd_error *err);
/* Returns when all ranks of the job have called it with this name; a name may be used again afterwards.
 * HD_E_TIMEOUT names the ranks that did not come. */
int32_t hd__store_barrier(struct hd_store *store, const char *name, double deadline, struct hd_error *err);

/* So many seconds from now on the ranks that are left may be at work after a fault, and need the server: of what was
 * said last. */
void hd__store_busy(struct hd_store *store, double seconds);
/* After the end of the job (a death, an abort): requests are answered again, as long as the server is there. */
void hd__store_outlive(struct hd_store *store);
/* Returns when all ranks that are still connected have called it with this name, or at the first deadline: present[r]
 * is 1 for those that had. All get the same answer, who comes later too. */
int32_t hd__store_roll_call(struct hd_store *store, const char *name, uint8_t *present, double deadline,
                            struct hd_error *err);

/* The liveness of the other ranks, as this rank knows it; never NULL, lives as long as the store. */
struct hd__liveness *hd__store_liveness(struct hd_store *store);
/* Ends the job: every rank, this one too, learns the error's message and origin within a second; an error without an
 * origin gets a new one, of this rank. Of several ranks that do so at once, the first that the server heard counts for
 * all of them: it is known when this returns. */
void hd__store_end(struct hd_store *store, const struct hd_error *err);
/* The same for a new error. */
void hd__store_fail(struct hd_store *store, int32_t code, const char *reason);
void hd__store_abort(struct hd_store *store, const char *reason); /* the same by request: HD_E_CANCELLED */
/* [control] By which code its process will exit. Said as it leaves. */
void hd__store_say_exit(struct hd_store *store, int32_t exit_code);
/* [any-thread] When this rank last waited for what another puts, or for a barrier: now, while it does; 0: never. */
double hd__store_last_wait(const struct hd_store *store);
int hd__store_is_waiting(const struct hd_store *store); /* [any-thread] now */
/* For tests of faults: breaks the connection to the server, as a network would. */
void hd__store_reset(struct hd_store *store);
/* Rank of the process that serves; -1: the launcher, or no process. */
int32_t hd__store_server_rank(const struct hd_store *store);
/* The address of this machine that its connection to the server has: others reach it there. */
int32_t hd__store_local_address(const struct hd_store *store, char *out, size_t room, struct hd_error *err);

/* Status of this rank, for a report: called when the server asks for it and when the job ends, from any thread. */
struct hd__store_status_provider {
    void *user;
    size_t (*write_dump)(void *user, char *out, size_t room); /* writes its part; returns the bytes */
    double (*wait_seconds)(void *user);      /* seconds that it has waited for others by now; 0: it does not */
    void (*went_on)(void *user, double now); /* it had been stopped, as by Ctrl-Z, until now: it did not wait */
    /* Seconds: after such a wait, and each doubling of it, all are asked what they do; soon after `timeout` too. */
    double poll_after, timeout;
};
/* [control] NULL removes it; after that returns, no call is under way. */
void hd__store_set_status_provider(struct hd_store *store, const struct hd__store_status_provider *witness);

void hd__store_secret_generate(uint8_t secret[HD__SECRET_BYTES]);
/* Bytes to 64 hexadecimal digits; and from 64 or 32 of them, 0 if the text is anything else. */
void hd__store_secret_format(const uint8_t secret[HD__SECRET_BYTES], char text[HD__SECRET_TEXT]);
int hd__store_secret_parse(const char *text, uint8_t secret[HD__SECRET_BYTES]);
/* Out of text that a launcher gives to the ranks of one job only, and that is random enough to be one. */
void hd__store_secret_derive(const char *text, uint8_t secret[HD__SECRET_BYTES]);

#endif
