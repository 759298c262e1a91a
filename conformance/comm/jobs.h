/* One collective with inputs that every rank can compute, started and checked exactly; buffers to do it in. */
#ifndef HD_CONFORMANCE_COMM_JOBS_H
#define HD_CONFORMANCE_COMM_JOBS_H

#include "conformance/comm/ranks.h"
#include "conformance/comm/values.h"

#define GUARD 64           /* bytes before and after a buffer that nobody may touch */
#define LARGEST (5u << 20) /* bytes of one of struct buffers, guards included */

enum { NO_ARENA = 0, ALL_ARENA = 1, MIXED = 2 };

struct buffers {
    uint8_t *send[2], *recv[2]; /* plain memory; the transport's, or plain where it gives none */
};

struct job {
    uint32_t coll, dtype, redop;
    int32_t root, n, me;
    uint64_t count, seed;
    int in_place;
    int memory; /* NO_ARENA, ... */
    uint8_t *send, *recv;
    hd_request request;
};

extern const uint32_t all_dtypes[6];

int coll_reduces(uint32_t coll);
int coll_is_rooted(uint32_t coll);
/* Whether the transport promises these very bits, or the sum in an order of its own. */
int sums_in_order(const struct rank *rank, const struct job *j);

/* These fail the rank (1) with a line on stderr, as EXPECT does. */
int buffers_open(struct rank *rank, struct buffers *b);
/* Places buffers at `send` and `recv` (room for guards before), fills them, starts the operation. */
int job_start(struct rank *rank, struct hd_comm_group *group, struct job *j, uint8_t *send, uint8_t *recv);
int job_check(struct rank *rank, const struct job *j);
/* Start, finish, check; buffers `skew` bytes into b's. A new seed each time; its kind (values.h) is kept. */
int job_run(struct rank *rank, struct hd_comm_group *group, struct buffers *b, struct job *j, size_t skew);

uint64_t job_send_count(const struct job *j);
uint64_t job_recv_count(const struct job *j);
int32_t finish(struct rank *rank, hd_request request, struct hd_error *err);
/* ops->test; what it says is done is done on the stream too. */
int32_t attempt(struct rank *rank, hd_request request, int32_t *done, struct hd_error *err);
/* A mean that the transport has not: asked for, it refuses, and the sum is taken instead. */
int is_refused(const struct job *j);

#endif
