/* device-async: a device with streams and memory of its own, without hardware. For tests.
 *
 * It computes with device-cpu. Its memory is mapped twice: the core gets addresses that nobody may touch, kernels
 * and copies use the others. Streams are queues. What runs when is drawn from a seed, within what events allow: one
 * stream may be far ahead while another stands still, and then the other way round. So an order that the core forgot
 * to ask for shows as wrong numbers, in a run that can be had again. Work is done while the core asks (reached,
 * sync) and now and then while it enqueues; where it does neither, because it waits for another rank, a thread goes
 * on.
 *
 * Options `refuse` and `voided`: there is something in every piece that it cannot capture, as there is in CUDA.
 *
 * Transports may put work of their own into HD_STREAM_COMM: what `native` gives is a struct async_stream. */
#ifndef HD_TESTS_PLUGINS_ASYNC_H
#define HD_TESTS_PLUGINS_ASYNC_H

#include "heddle/device.h"

/* Asked again and again when its turn has come, until it says 1. */
typedef int32_t (*async_call)(void *user, struct hd_error *err);

struct async_stream {
    struct hd_device *device;
    uint32_t stream;
    uint32_t capturing; /* what is enqueued now is part of a captured piece */
    int32_t (*call)(struct async_stream *stream, async_call fn, const void *user, size_t bytes, struct hd_error *err);
    void *(*reach)(struct async_stream *stream, const void *memory); /* where it can be touched */
};

/* ---- inside: async_streams.c */

enum { ASYNC_STREAMS = 2 * HD_STREAM_COUNT }; /* the second half: streams of captured pieces */

struct async_mark { /* one recording of an event */
    int32_t done, users, captured;
};

struct hd_event {
    struct async_mark *mark; /* NULL: nothing was recorded */
};

enum { ASYNC_LAUNCH, ASYNC_COPY, ASYNC_RECORD, ASYNC_FOLLOW, ASYNC_CALL };

struct async_op {
    struct async_op *next;
    uint32_t kind, stream;
    struct hd_kernel *kernel;
    void *to;
    const void *from;
    size_t bytes;
    struct async_mark *mark;
    async_call call;
    void *user; /* of the call: a copy */
};

struct async_queue {
    struct async_op *head, **tail;
};

struct hd_captured {
    struct async_op *ops;
};

/* Options `refuse` and `voided`. */
struct async_refusal {
    int64_t at, voids;
};

struct async_streams;
struct async_streams *async_streams_open(struct hd_device *device, uint64_t seed, struct async_refusal refusal);
void async_streams_close(struct async_streams *s);
/* Takes the op, which was malloc'ed. */
int32_t async_enqueue(struct async_streams *s, struct async_op *op, struct hd_error *err);
int32_t async_record(struct async_streams *s, struct hd_event *event, uint32_t stream, struct hd_error *err);
int32_t async_follow(struct async_streams *s, uint32_t stream, struct hd_event *event, struct hd_error *err);
int32_t async_reached(struct async_streams *s, struct hd_event *event, int32_t *done, struct hd_error *err);
int32_t async_sync(struct async_streams *s, uint32_t stream, struct hd_error *err);
void async_unmark(struct async_streams *s, struct hd_event *event);
int32_t async_capture_begin(struct async_streams *s, struct hd_error *err);
int32_t async_capture_end(struct async_streams *s, struct hd_captured **captured, struct hd_error *err);
int32_t async_replay(struct async_streams *s, struct hd_captured *captured, struct hd_error *err);
void async_captured_free(struct async_streams *s, struct hd_captured *captured);

/* async.c: does an op that is not about events. */
int32_t async_do(struct hd_device *device, const struct async_op *op, struct hd_error *err);

#endif
