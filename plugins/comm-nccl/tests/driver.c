/* A libcuda.so.1 without a GPU, as far as comm-nccl, its tests and the NCCL beside it need one: device memory is
 * host memory, a stream is a queue with a thread of its own, an event counts how often it was recorded and how often
 * that was reached. It runs in the process that calls cuInit; a child of that one cannot start it again.
 * FAKE_CUDA_DEVICES=0: there is no GPU. fake_capture(1): all streams are captured; fake_capture(0): the calls of what
 * was captured run, on a stream of the graph. */
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "plugins/comm-nccl/api.h"

#define PUBLIC __attribute__((visibility("default")))

#define DECLARE(name, arguments) int name arguments;
NC_DRIVER(DECLARE)
DECLARE(cuStreamCreate, (void **stream, unsigned flags))
DECLARE(cuStreamQuery, (void *stream))
DECLARE(cuLaunchHostFunc, (void *stream, void (*call)(void *), void *data))
DECLARE(cuDevicePrimaryCtxRetain, (void **context, int device))
DECLARE(cuMemHostAlloc, (void **memory, size_t bytes, unsigned flags))
DECLARE(cuMemFreeHost, (void *memory))
DECLARE(fake_capture, (int on))

enum { OK = 0, INVALID = 1, NO_MEMORY = 2, NOT_STARTED = 3, NO_DEVICE = 100, NOT_READY = 600 };
enum { WAIT, RECORD, CALL, COPY };
enum { GREATEST = -5 }; /* priority of a stream; 0 is the least */

struct event {
    uint64_t recorded, reached;
    int32_t users, gone;
};

struct item {
    struct item *next;
    int kind;
    struct event *event;
    uint64_t number;
    void (*call)(void *);
    void *to, *data; /* of a call, or a copy's source */
    size_t bytes;
};

struct stream {
    struct item *head, **tail;
    int busy, closing;
};

struct range {
    struct range *next;
    uint64_t base, bytes;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct range *ranges;
static _Thread_local void *current;
static struct item *captured, **captured_tail;
static int capturing;
static pid_t owner; /* the process that called cuInit; 0: none has */

/* ---- streams */

static void leave(struct event *e)
{
    if (--e->users == 0 && e->gone)
        free(e);
}

/* Under the lock, which is given away for what takes time. */
static void run(struct item *i)
{
    switch (i->kind) {
    case WAIT:
        while (i->event->reached < i->number)
            pthread_cond_wait(&changed, &lock);
        leave(i->event);
        break;
    case RECORD:
        if (i->event->reached < i->number)
            i->event->reached = i->number;
        leave(i->event);
        break;
    default:
        pthread_mutex_unlock(&lock);
        if (i->kind == CALL)
            i->call(i->data);
        else
            memmove(i->to, i->data, i->bytes);
        pthread_mutex_lock(&lock);
    }
}

static void *serve(void *arg)
{
    struct stream *s = arg;
    pthread_mutex_lock(&lock);
    for (;;) {
        while (!s->head && !s->closing)
            pthread_cond_wait(&changed, &lock);
        struct item *i = s->head;
        if (!i)
            break;
        s->head = i->next;
        if (!s->head)
            s->tail = &s->head;
        s->busy = 1;
        run(i);
        s->busy = 0;
        free(i);
        pthread_cond_broadcast(&changed);
    }
    pthread_mutex_unlock(&lock);
    free(s);
    return NULL;
}

static int enqueue(struct stream *s, struct item item)
{
    struct item *i = malloc(sizeof *i);
    if (!i)
        return NO_MEMORY;
    pthread_mutex_lock(&lock);
    if (capturing && item.kind != CALL) {
        free(i);
        pthread_mutex_unlock(&lock);
        return OK;
    }
    if (item.kind == RECORD)
        item.number = ++item.event->recorded;
    if (item.kind == WAIT)
        item.number = item.event->recorded;
    if (item.event)
        item.event->users++;
    *i = item;
    i->next = NULL;
    *(capturing ? captured_tail : s->tail) = i;
    *(capturing ? &captured_tail : &s->tail) = &i->next;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    return OK;
}

PUBLIC int cuStreamCreate(void **stream, unsigned flags)
{
    struct stream *s = calloc(1, sizeof *s);
    pthread_t thread;
    (void)flags;
    if (!s)
        return NO_MEMORY;
    s->tail = &s->head;
    if (pthread_create(&thread, NULL, serve, s)) {
        free(s);
        return NO_MEMORY;
    }
    pthread_detach(thread);
    *stream = s;
    return OK;
}

PUBLIC int cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    *least = 0;
    *greatest = GREATEST;
    return OK;
}

/* The transport's: they go before others. */
PUBLIC int cuStreamCreateWithPriority(void **stream, unsigned flags, int priority)
{
    return priority == GREATEST ? cuStreamCreate(stream, flags) : INVALID;
}

PUBLIC int cuStreamDestroy_v2(void *stream)
{
    pthread_mutex_lock(&lock);
    ((struct stream *)stream)->closing = 1;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    return OK;
}

PUBLIC int cuStreamQuery(void *stream)
{
    struct stream *s = stream;
    pthread_mutex_lock(&lock);
    int result = s->head || s->busy ? NOT_READY : OK;
    pthread_mutex_unlock(&lock);
    return result;
}

PUBLIC int cuStreamWaitEvent(void *stream, void *event, unsigned flags)
{
    (void)flags;
    return enqueue(stream, (struct item){.kind = WAIT, .event = event});
}

PUBLIC int cuLaunchHostFunc(void *stream, void (*call)(void *), void *data)
{
    return enqueue(stream, (struct item){.kind = CALL, .call = call, .data = data});
}

PUBLIC int cuMemcpyAsync(uint64_t to, uint64_t from, size_t bytes, void *stream)
{
    return enqueue(
        stream,
        (struct item){.kind = COPY, .to = (void *)(uintptr_t)to, .data = (void *)(uintptr_t)from, .bytes = bytes});
}

PUBLIC int cuStreamIsCapturing(void *stream, int *status)
{
    (void)stream;
    pthread_mutex_lock(&lock);
    *status = capturing;
    pthread_mutex_unlock(&lock);
    return OK;
}

PUBLIC int fake_capture(int on)
{
    void *graph = NULL;
    int result = on ? OK : cuStreamCreate(&graph, 0);
    if (result)
        return result;
    pthread_mutex_lock(&lock);
    capturing = on;
    if (on) {
        captured = NULL;
        captured_tail = &captured;
    } else {
        ((struct stream *)graph)->head = captured;
        pthread_cond_broadcast(&changed);
    }
    pthread_mutex_unlock(&lock);
    return OK;
}

PUBLIC int cuThreadExchangeStreamCaptureMode(int *mode)
{
    static _Thread_local int now;
    int was = now;
    now = *mode;
    *mode = was;
    return OK;
}

/* ---- events */

PUBLIC int cuEventCreate(void **event, unsigned flags)
{
    (void)flags;
    *event = calloc(1, sizeof(struct event));
    return *event ? OK : NO_MEMORY;
}

PUBLIC int cuEventDestroy_v2(void *event)
{
    struct event *e = event;
    pthread_mutex_lock(&lock);
    e->gone = 1;
    e->users++;
    leave(e);
    pthread_mutex_unlock(&lock);
    return OK;
}

PUBLIC int cuEventRecord(void *event, void *stream)
{
    return enqueue(stream, (struct item){.kind = RECORD, .event = event});
}

PUBLIC int cuEventQuery(void *event)
{
    struct event *e = event;
    pthread_mutex_lock(&lock);
    int result = e->reached < e->recorded ? NOT_READY : OK;
    pthread_mutex_unlock(&lock);
    return result;
}

/* ---- device, context, memory */

static int devices(void)
{
    const char *text = getenv("FAKE_CUDA_DEVICES");
    return text ? atoi(text) : 64;
}

PUBLIC int cuInit(unsigned flags)
{
    (void)flags;
    if (owner && owner != getpid())
        return NOT_STARTED;
    if (!devices())
        return NO_DEVICE;
    owner = getpid();
    return OK;
}

PUBLIC int cuDriverGetVersion(int *version)
{
    *version = 13000;
    return OK;
}

PUBLIC int cuDeviceGetCount(int *count)
{
    *count = devices();
    return owner == getpid() ? OK : NOT_STARTED;
}

PUBLIC int cuGetErrorString(int result, const char **text)
{
    *text = result == NO_DEVICE     ? "no CUDA-capable device is detected"
            : result == NO_MEMORY   ? "out of memory"
            : result == NOT_STARTED ? "initialization error"
                                    : "invalid argument";
    return OK;
}

PUBLIC int cuDevicePrimaryCtxRetain(void **context, int device)
{
    static char contexts[64];
    if (owner != getpid())
        return NOT_STARTED;
    if (device < 0 || device >= devices())
        return INVALID;
    *context = &contexts[device];
    return OK;
}

PUBLIC int cuCtxGetCurrent(void **context)
{
    *context = current;
    return owner == getpid() ? OK : NOT_STARTED;
}

PUBLIC int cuCtxSetCurrent(void *context)
{
    current = context;
    return OK;
}

PUBLIC int cuMemHostAlloc(void **memory, size_t bytes, unsigned flags)
{
    struct range *r = malloc(sizeof *r);
    (void)flags;
    *memory = r ? aligned_alloc(4096, (bytes + 4095) / 4096 * 4096) : NULL;
    if (!*memory) {
        free(r);
        return NO_MEMORY;
    }
    pthread_mutex_lock(&lock);
    *r = (struct range){.next = ranges, .base = (uintptr_t)*memory, .bytes = bytes};
    ranges = r;
    pthread_mutex_unlock(&lock);
    return OK;
}

PUBLIC int cuMemFreeHost(void *memory)
{
    pthread_mutex_lock(&lock);
    for (struct range **at = &ranges; *at; at = &(*at)->next)
        if ((*at)->base == (uintptr_t)memory) {
            struct range *r = *at;
            *at = r->next;
            free(r);
            break;
        }
    pthread_mutex_unlock(&lock);
    free(memory);
    return OK;
}

PUBLIC int cuMemAlloc_v2(uint64_t *memory, size_t bytes)
{
    void *at;
    int result = cuMemHostAlloc(&at, bytes, 0);
    *memory = (uintptr_t)at;
    return result;
}

PUBLIC int cuMemFree_v2(uint64_t memory)
{
    return cuMemFreeHost((void *)(uintptr_t)memory);
}

PUBLIC int cuMemGetAddressRange_v2(uint64_t *base, size_t *bytes, uint64_t at)
{
    int result = INVALID;
    pthread_mutex_lock(&lock);
    for (const struct range *r = ranges; r && result; r = r->next)
        if (at >= r->base && at < r->base + r->bytes) {
            *base = r->base;
            *bytes = r->bytes;
            result = OK;
        }
    pthread_mutex_unlock(&lock);
    return result;
}
