/* Queues, and who may go on. */
#include "tests/plugins/async.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { LONGEST = 300, TICK_NS = 2000000 };

struct async_streams {
    struct hd_device *device;
    pthread_mutex_t lock;
    pthread_t thread;
    int32_t stop, capturing;
    struct async_queue queue[ASYNC_STREAMS];
    struct async_queue captured;
    uint64_t state, asked;              /* asked: times that the core let it work */
    uint32_t rank[ASYNC_STREAMS], left; /* who goes first, for so many ops more */
    struct async_refusal refusal;
    int64_t given; /* to the piece that is captured: launches, copies, calls */
    struct hd_error error;
};

static uint32_t draw(struct async_streams *s, uint32_t n)
{
    s->state = s->state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)((s->state >> 33) % n);
}

/* ---- marks */

static void leave(struct async_mark *m)
{
    if (m && !--m->users)
        free(m);
}

/* ---- one op */

static void shuffle(struct async_streams *s)
{
    for (uint32_t i = ASYNC_STREAMS; i-- > 1;) {
        uint32_t k = draw(s, i + 1), other = s->rank[k];
        s->rank[k] = s->rank[i];
        s->rank[i] = other;
    }
    s->left = 1 + draw(s, draw(s, 2) ? LONGEST : 4);
}

static void free_op(struct async_op *op)
{
    leave(op->mark);
    free(op->user);
    free(op);
}

/* 1: the head of a queue was done; 0: it has to wait. */
static int32_t try_head(struct async_streams *s, struct async_queue *q)
{
    struct async_op *op = q->head;
    int32_t rc = 1;
    if (op->kind == ASYNC_FOLLOW)
        rc = op->mark->done;
    else if (op->kind == ASYNC_RECORD)
        op->mark->done = 1;
    else if (op->kind == ASYNC_CALL)
        rc = op->call(op->user, &s->error);
    else
        rc = async_do(s->device, op, &s->error) ? -1 : 1;
    if (rc != 1)
        return rc;
    q->head = op->next;
    if (!q->head)
        q->tail = &q->head;
    free_op(op);
    return 1;
}

/* One op of the first stream that can go on. 1 if there was one. */
static int32_t turn(struct async_streams *s)
{
    if (!s->left--)
        shuffle(s);
    for (uint32_t i = 0; i < ASYNC_STREAMS && !s->error.code; i++) {
        struct async_queue *q = &s->queue[s->rank[i]];
        if (q->head && try_head(s, q) == 1)
            return 1;
    }
    return 0;
}

static void turns(struct async_streams *s, uint32_t n)
{
    while (n-- && turn(s))
        ;
}

static void *go_on(void *user)
{
    struct async_streams *s = user;
    const struct timespec tick = {.tv_nsec = TICK_NS};
    uint64_t seen = 0;
    pthread_mutex_lock(&s->lock);
    while (!s->stop) {
        if (s->asked == seen)
            turns(s, 64);
        seen = s->asked;
        pthread_mutex_unlock(&s->lock);
        nanosleep(&tick, NULL);
        pthread_mutex_lock(&s->lock);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* ---- life */

struct async_streams *async_streams_open(struct hd_device *device, uint64_t seed, struct async_refusal refusal)
{
    struct async_streams *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    s->device = device;
    s->state = seed * 2 + 1;
    s->refusal = refusal;
    s->error = (struct hd_error)HD_ERROR_INIT;
    for (uint32_t i = 0; i < ASYNC_STREAMS; i++) {
        s->queue[i].tail = &s->queue[i].head;
        s->rank[i] = i;
    }
    pthread_mutex_init(&s->lock, NULL);
    if (pthread_create(&s->thread, NULL, go_on, s)) {
        free(s);
        return NULL;
    }
    return s;
}

void async_streams_close(struct async_streams *s)
{
    if (!s)
        return;
    pthread_mutex_lock(&s->lock);
    s->stop = 1;
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->thread, NULL);
    pthread_mutex_destroy(&s->lock);
    for (uint32_t i = 0; i < ASYNC_STREAMS; i++)
        for (struct async_op *op; (op = s->queue[i].head); free_op(op))
            s->queue[i].head = op->next;
    free(s);
}

/* ---- enqueueing */

static int32_t failed(const struct async_streams *s, struct hd_error *err)
{
    return s->error.code ? hd_fail(err, s->error.code, "%s", s->error.message) : HD_OK;
}

/* Has what cannot be captured come already? */
static int is_void(const struct async_streams *s)
{
    return s->refusal.voids && s->refusal.at > 0 && s->given >= s->refusal.at;
}

static int32_t refused(struct async_streams *s, struct hd_error *err)
{
    int was_void = is_void(s);
    if (s->capturing && (++s->given == s->refusal.at || was_void))
        return hd_fail(err, HD_E_UNSUPPORTED, "device async refuses the %lldth thing in a piece", (long long)s->given);
    return HD_OK;
}

static int32_t append(struct async_streams *s, struct async_op *op)
{
    struct async_queue *q = s->capturing ? &s->captured : &s->queue[op->stream];
    op->next = NULL;
    *q->tail = op;
    q->tail = &op->next;
    if (!s->capturing && !draw(s, 8))
        turns(s, 1 + draw(s, 4));
    return HD_OK;
}

static struct async_op *op_new(uint32_t kind, uint32_t stream, struct async_mark *mark)
{
    struct async_op *op = calloc(1, sizeof *op);
    if (op) {
        op->kind = kind;
        op->stream = stream;
        op->mark = mark;
        mark->users++;
    }
    return op;
}

int32_t async_enqueue(struct async_streams *s, struct async_op *op, struct hd_error *err)
{
    int32_t rc;
    pthread_mutex_lock(&s->lock);
    rc = failed(s, err);
    if (!rc)
        rc = refused(s, err);
    if (rc)
        free_op(op);
    else
        rc = append(s, op);
    pthread_mutex_unlock(&s->lock);
    return rc;
}

int32_t async_record(struct async_streams *s, struct hd_event *event, uint32_t stream, struct hd_error *err)
{
    struct async_mark *mark = calloc(1, sizeof *mark);
    struct async_op *op;
    int32_t rc;
    pthread_mutex_lock(&s->lock);
    mark->users = 1;
    mark->captured = s->capturing;
    leave(event->mark);
    event->mark = mark;
    op = op_new(ASYNC_RECORD, stream, mark);
    rc = failed(s, err);
    if (!rc)
        append(s, op);
    else
        free_op(op);
    pthread_mutex_unlock(&s->lock);
    return rc;
}

int32_t async_follow(struct async_streams *s, uint32_t stream, struct hd_event *event, struct hd_error *err)
{
    int32_t rc;
    pthread_mutex_lock(&s->lock);
    rc = failed(s, err);
    if (!rc && event->mark && event->mark->captured != s->capturing)
        rc = hd_fail(err, HD_E_INVALID,
                     s->capturing ? "a captured piece follows what is not part of it"
                                  : "what was recorded in a captured piece is no place in a stream");
    if (!rc && event->mark)
        append(s, op_new(ASYNC_FOLLOW, stream, event->mark));
    pthread_mutex_unlock(&s->lock);
    return rc;
}

void async_unmark(struct async_streams *s, struct hd_event *event)
{
    pthread_mutex_lock(&s->lock);
    leave(event->mark);
    pthread_mutex_unlock(&s->lock);
}

/* ---- asking */

int32_t async_reached(struct async_streams *s, struct hd_event *event, int32_t *done, struct hd_error *err)
{
    int32_t rc;
    pthread_mutex_lock(&s->lock);
    s->asked++;
    rc = failed(s, err);
    if (!rc && s->capturing)
        rc = hd_fail(err, HD_E_INVALID, "nothing can be waited for in a captured piece");
    *done = !event->mark || event->mark->done;
    if (!rc && !*done)
        turns(s, 1 + draw(s, 16));
    pthread_mutex_unlock(&s->lock);
    return rc;
}

int32_t async_sync(struct async_streams *s, uint32_t stream, struct hd_error *err)
{
    for (;;) {
        int32_t rc, idle;
        pthread_mutex_lock(&s->lock);
        s->asked++;
        rc = failed(s, err);
        idle = !s->queue[stream].head;
        if (!rc && !idle)
            turns(s, 16);
        pthread_mutex_unlock(&s->lock);
        if (rc || idle)
            return rc;
        sched_yield();
    }
}

/* ---- captured pieces */

int32_t async_capture_begin(struct async_streams *s, struct hd_error *err)
{
    int32_t rc;
    pthread_mutex_lock(&s->lock);
    rc = s->capturing ? hd_fail(err, HD_E_INVALID, "a piece is being captured") : failed(s, err);
    if (!rc && s->refusal.at == -1)
        rc = hd_fail(err, HD_E_UNSUPPORTED, "device async refuses to begin a piece");
    if (!rc) {
        s->capturing = 1;
        s->given = 0;
        s->captured = (struct async_queue){.tail = &s->captured.head};
    }
    pthread_mutex_unlock(&s->lock);
    return rc;
}

static int has(const struct async_op *ops, uint32_t kind, uint32_t stream, const struct async_mark *mark)
{
    for (; ops; ops = ops->next)
        if (ops->kind == kind && (!mark || ops->mark == mark) && ops->stream == stream)
            return 1;
    return 0;
}

/* Every other stream begins by following, and compute follows its end. */
static const char *fault_of(const struct async_op *ops)
{
    for (uint32_t stream = 1; stream < HD_STREAM_COUNT; stream++) {
        const struct async_op *first = NULL, *last = NULL;
        for (const struct async_op *op = ops; op; op = op->next)
            if (op->stream == stream) {
                first = first ? first : op;
                last = op;
            }
        if (first && first->kind != ASYNC_FOLLOW)
            return "a captured piece has a stream that does not follow compute";
        if (last && (last->kind != ASYNC_RECORD || !has(ops, ASYNC_FOLLOW, HD_STREAM_COMPUTE, last->mark)))
            return "a captured piece has a stream whose end compute does not follow";
    }
    return NULL;
}

static void free_ops(struct async_op *ops)
{
    for (struct async_op *op; (op = ops); free_op(op))
        ops = op->next;
}

int32_t async_capture_end(struct async_streams *s, struct hd_captured **captured, struct hd_error *err)
{
    struct hd_captured *c = calloc(1, sizeof *c);
    const char *fault;
    int32_t rc = HD_OK;
    pthread_mutex_lock(&s->lock);
    s->capturing = 0;
    fault = fault_of(s->captured.head);
    if (s->refusal.at == -2 || is_void(s))
        rc = hd_fail(err, HD_E_UNSUPPORTED, "device async refuses to end a piece");
    else if (fault)
        rc = hd_fail(err, HD_E_INVALID, "%s", fault);
    if (rc) {
        free_ops(s->captured.head);
        free(c);
    } else {
        c->ops = s->captured.head;
        *captured = c;
    }
    pthread_mutex_unlock(&s->lock);
    return rc;
}

/* Marks of the piece and of this run of it. */
struct pair {
    const struct async_mark *old;
    struct async_mark *new;
};

static struct async_mark *renew(struct pair *pairs, uint32_t *n, const struct async_mark *old)
{
    for (uint32_t i = 0; i < *n; i++)
        if (pairs[i].old == old)
            return pairs[i].new;
    pairs[*n] = (struct pair){old, calloc(1, sizeof(struct async_mark))};
    pairs[*n].new->users = 1;
    return pairs[(*n)++].new;
}

int32_t async_replay(struct async_streams *s, struct hd_captured *captured, struct hd_error *err)
{
    struct pair *pairs;
    uint32_t n = 0, most = 0;
    int32_t rc;
    pthread_mutex_lock(&s->lock);
    rc = failed(s, err);
    for (struct async_op *op = captured->ops; op; op = op->next)
        most++;
    pairs = calloc(most + 1, sizeof *pairs);
    for (struct async_op *op = captured->ops; op && !rc; op = op->next) {
        struct async_op *again = calloc(1, sizeof *again);
        *again = *op;
        again->stream += again->stream ? HD_STREAM_COUNT : 0; /* compute, and streams of the piece's own */
        if (op->mark) {
            again->mark = renew(pairs, &n, op->mark);
            again->mark->users++;
        }
        if (op->user) {
            again->user = malloc(op->bytes);
            memcpy(again->user, op->user, op->bytes);
        }
        append(s, again);
    }
    for (uint32_t i = 0; i < n; i++)
        leave(pairs[i].new);
    free(pairs);
    pthread_mutex_unlock(&s->lock);
    return rc;
}

void async_captured_free(struct async_streams *s, struct hd_captured *captured)
{
    pthread_mutex_lock(&s->lock);
    free_ops(captured->ops);
    free(captured);
    pthread_mutex_unlock(&s->lock);
}
