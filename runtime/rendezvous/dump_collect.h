/* runtime/rendezvous/dump_collect: what every rank was doing, brought together at the server: when the job ends by a fault, and when
 * somebody has waited for long.
 *
 *     a rank sends its part by itself when it hears of the end, or when it is asked (look)
 *     -> the server waits for all that are alive, at most GATHER_SECONDS -> hands the parts to whoever opened it
 *
 * A part is text of at most WIRE_VALUE_MAX bytes; a rank that sends none in time is silent. Not thread-safe: the server's
 * thread only. */
#ifndef HD_RUNTIME_RENDEZVOUS_DUMP_COLLECT_H
#define HD_RUNTIME_RENDEZVOUS_DUMP_COLLECT_H

#include "heddle/types.h"

enum { HD__RANK_ABSENT = 0, HD__RANK_CONNECTED, HD__RANK_LEFT, HD__RANK_DEAD }; /* what became of a rank */

struct hd__rank_dumps {
    int32_t size; /* ranks */
    int32_t code; /* why the job ends; HD_OK: it does not, this is a look */
    int32_t rank; /* who died or gave up; -1 */
    int32_t reserved;
    double waited;        /* of a look: how long the rank that asked has waited, in seconds */
    const char *cause;    /* of the end */
    const char **dump;    /* by rank; NULL: it sent none */
    const uint8_t *state; /* by rank: HD__PART_... */
};

/* Told by the server, in its thread. For a look it may find that the job is lost: then it returns an HD_E_ code, *rank and
 * the cause, and the job ends by that. */
typedef int32_t hd__rank_dumps_fn(void *user, const struct hd__rank_dumps *gathered, int32_t *rank, char cause[512]);

/* Who writes reports, and how: outlives the server that calls it. */
struct hd__reporter {
    hd__rank_dumps_fn *on_dumps; /* hd__report_on_dumps; `user` is this struct */
    const char *job;             /* its name */
    const char *folder;          /* of the files; it is made when needed */
    double late_after;           /* seconds that somebody has to wait before the log says so */
    double timeout;              /* comm.timeout: until that ends the job */
};

#define HD__DUMP_SECONDS 2.0
#define HD__REPORT_SECONDS \
    3.5 /* the same, and until the report is written; less than a launcher of ours waits (spawn.c) */

struct hd__dump_collect {
    char **dump; /* by rank */
    uint8_t *answered;
    int32_t size;
    int32_t active; /* 0: nobody asked; HD__DUMP_SNAPSHOT or _END */
    double deadline, waited, next_snapshot;
};

enum { HD__DUMP_SNAPSHOT = 1, HD__DUMP_FINAL = 2 };

/* Fills in *g for `size` ranks; hd__server_dump_finish frees what it holds, the parts too. */
void hd__server_dump_init(struct hd__dump_collect *g, int32_t size);
void hd__server_dump_finish(struct hd__dump_collect *g);
/* Begins; an end takes the place of a look. 0: not now. */
int hd__server_dump_begin(struct hd__dump_collect *g, int32_t what, double waited, double now);
/* A rank's part, for a look or an end. */
void hd__server_dump_put(struct hd__dump_collect *g, int32_t rank, int32_t what, const void *text, size_t bytes);
/* Is every part there that can come? */
int hd__server_dump_complete(const struct hd__dump_collect *g, const uint8_t *state, double now);
/* Ends it: fills in size, waited and part; the caller frees the array `part`, not the texts. */
void hd__server_dump_take(struct hd__dump_collect *g, struct hd__rank_dumps *out);

#endif
