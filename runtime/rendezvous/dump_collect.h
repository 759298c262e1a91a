/* runtime/rendezvous/dump_collect: collects a status dump of every rank at the server, when the job fails (final),
 * and when a rank has waited for long (snapshot).
 *
 * A rank sends its dump when it learns of the failure, or when it is asked for a snapshot; the server waits for all
 * ranks that are alive, at most HD__DUMP_SECONDS, and calls the reporter. A dump is text of at most WIRE_VALUE_MAX
 * bytes. Not thread-safe: the server's thread only. The reporter has a thread of its own. */
#ifndef HD_RUNTIME_RENDEZVOUS_DUMP_COLLECT_H
#define HD_RUNTIME_RENDEZVOUS_DUMP_COLLECT_H

#include "heddle/types.h"

enum { HD__RANK_ABSENT = 0, HD__RANK_CONNECTED, HD__RANK_LEFT, HD__RANK_DEAD }; /* state of a rank */

struct hd__rank_dumps {
    int32_t size; /* ranks */
    int32_t code; /* of the failure; HD_OK: a snapshot */
    int32_t rank; /* that died or failed, or -1 */
    int32_t reserved;
    double waited;        /* snapshot: seconds that the requesting rank has waited */
    const char *cause;    /* of the failure */
    const char **dump;    /* by rank; NULL: none was sent */
    const uint8_t *state; /* by rank: HD__RANK_... */
};

/* Called in a thread of its own, one call at a time. For a snapshot it may find a deadlock: then it returns an HD_E_
 * code, *rank and the cause, and the job fails with these. */
typedef int32_t hd__rank_dumps_fn(void *user, const struct hd__rank_dumps *gathered, int32_t *rank, char cause[512]);

/* Callback and settings for reports; outlives the server. */
struct hd__reporter {
    hd__rank_dumps_fn *on_dumps; /* hd__report_on_dumps; `user` is this struct */
    const char *job;             /* name */
    const char *folder;          /* of the files, created on demand */
    double late_after;           /* seconds of a wait before the log names the late rank */
    double timeout;              /* comm.timeout: seconds of a wait before the job fails */
};

#define HD__DUMP_SECONDS 2.0
/* HD__DUMP_SECONDS and the time to write the report; less than the grace of our launcher (spawn.c) */
#define HD__REPORT_SECONDS 3.5

struct hd__dump_collect {
    char **dump; /* by rank */
    uint8_t *answered;
    int32_t size;
    int32_t active; /* 0, HD__DUMP_SNAPSHOT or HD__DUMP_FINAL */
    double deadline, waited, next_snapshot;
    double again; /* > 0: the wait of a snapshot that was asked for during another */
};

struct hd__arena;
enum { HD__DUMP_SNAPSHOT = 1, HD__DUMP_FINAL = 2 };

/* Initializes *g for `size` ranks; hd__server_dump_finish frees it, with the dumps. */
void hd__server_dump_init(struct hd__dump_collect *g, int32_t size);
void hd__server_dump_finish(struct hd__dump_collect *g);
/* Starts a collection; a final one replaces a snapshot. 0: not now. */
int hd__server_dump_begin(struct hd__dump_collect *g, int32_t what, double waited, double now);
/* Stores the dump of a rank. */
void hd__server_dump_put(struct hd__dump_collect *g, int32_t rank, int32_t what, const void *text, size_t bytes);
/* Have all ranks that are alive answered, or is the time over? */
int hd__server_dump_complete(const struct hd__dump_collect *g, const uint8_t *state, double now);
/* Ends the collection: sets size, waited, dump and state, with copies in the arena. */
void hd__server_dump_take(struct hd__dump_collect *g, const uint8_t *state, struct hd__arena *arena,
                          struct hd__rank_dumps *out);

#endif
