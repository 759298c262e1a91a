/* Ids, communicators, groups of calls. FAKE_VERSION says which NCCL this is: before 2.28 a call is enqueued at once,
 * from then on by a thread, while the communicator is in progress; all_to_all came with 2.28, registration with 2.19.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fake.h"

#define PUBLIC __attribute__((visibility("default")))

#define DECLARE(needed, name, result, arguments) result nccl##name arguments;
NC_NCCL(DECLARE)

struct identity {
    uint32_t magic;
    int32_t process, descriptor;
};

static __thread char last_error[200];
static struct {
    int (*launch_host)(void *stream, void (*call)(void *), void *data);
    int (*capture)(void *stream, int *status, uint64_t *id, void **graph, const void **after, size_t *n);
    int (*object)(void **object, void *data, void (*destroy)(void *), unsigned references, unsigned flags);
    int (*retain)(void *graph, void *object, unsigned count, unsigned flags);
    int (*range)(uint64_t *base, size_t *bytes, uint64_t at);
} driver; /* capture, object, retain: NULL where it captures nothing */

enum { NO_SYNC = 1, MOVE = 1 }; /* flags of an object, and of how a graph gets it */

static int fail(int result, const char *text)
{
    snprintf(last_error, sizeof last_error, "%s", text);
    return result;
}

PUBLIC int ncclGetVersion(int *version)
{
    *version = FAKE_VERSION;
    return NC_SUCCESS;
}

PUBLIC const char *ncclGetErrorString(int result)
{
    static const char *const text[] = {"no error",
                                       "unhandled cuda error",
                                       "unhandled system error",
                                       "internal error",
                                       "invalid argument",
                                       "invalid usage",
                                       "remote process exited or there was a network error",
                                       "in progress"};
    return result >= 0 && result < 8 ? text[result] : "unknown result code";
}

PUBLIC const char *ncclGetLastError(nc_comm comm)
{
    (void)comm;
    return last_error;
}

/* ---- ids: memory without a name, which the others open as a descriptor of the first until all have come */

PUBLIC int ncclGetUniqueId(struct nc_id *id)
{
    struct identity i = {.magic = 0xfa4e, .process = getpid(), .descriptor = memfd_create("fake", MFD_CLOEXEC)};
    if (i.descriptor < 0 || ftruncate(i.descriptor, sizeof(struct shared)))
        return fail(NC_SYSTEM, "memfd_create");
    memset(id, 0, sizeof *id);
    memcpy(id, &i, sizeof i);
    return NC_SUCCESS;
}

static struct shared *attach(const struct identity *i)
{
    char path[64];
    int fd, own = i->process == getpid();
    void *at;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", i->process, i->descriptor);
    fd = own ? i->descriptor : open(path, O_RDWR | O_CLOEXEC);
    at = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof(struct shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (!own && fd >= 0)
        close(fd);
    return at == MAP_FAILED ? NULL : at;
}

/* ---- communicators */

static nc_comm comm_new(const struct nc_config *config, int users)
{
    nc_comm c = calloc(1, sizeof *c);
    if (c) {
        c->blocking = !config || config->blocking != 0;
        c->result = NC_IN_PROGRESS;
        c->users = users;
    }
    return c;
}

void comm_drop(nc_comm c)
{
    if (--c->users)
        return;
    if (c->shared)
        munmap(c->shared, sizeof *c->shared);
    free(c);
}

struct birth {
    nc_comm parent, comm; /* parent: it is split */
    nc_comm *out;
    struct identity id;
    int key;
};

static int meet(nc_comm c, const struct identity *id)
{
    if (id->magic != 0xfa4e || !(c->shared = attach(id)))
        return fail(NC_SYSTEM, "the first rank is gone");
    c->shared->joined++;
    for (unsigned idle = 0; c->shared->joined < (uint32_t)c->n && !c->aborted; idle++)
        relax(idle);
    if (id->process == getpid())
        close(id->descriptor);
    return c->aborted ? NC_INTERNAL : NC_SUCCESS;
}

static void *be_born(void *arg)
{
    struct birth *b = arg;
    int result = meet(b->comm, &b->id);
    b->comm->result = result;
    comm_drop(b->comm);
    free(b);
    return NULL;
}

/* The members in the order of their keys; the first of the old makes the id. */
static int agree(struct birth *b)
{
    nc_comm p = b->parent, c = b->comm;
    struct nc_id id;
    p->shared->keys[p->rank] = b->key;
    if (p->rank == 0 && ncclGetUniqueId(&p->shared->born))
        return NC_SYSTEM;
    if (!steps_meet(p, p->shared->splits))
        return NC_INTERNAL;
    id = p->shared->born;
    memcpy(&b->id, &id, sizeof b->id);
    c->n = p->n;
    for (int r = 0; r < p->n; r++)
        c->rank += p->shared->keys[r] < b->key || (p->shared->keys[r] == b->key && r < p->rank);
    return steps_meet(p, p->shared->splits) ? meet(c, &b->id) : NC_INTERNAL;
}

static void *be_split(void *arg)
{
    struct birth *b = arg;
    nc_comm parent = b->parent;
    int result = agree(b);
    b->comm->result = result;
    __atomic_store_n(b->out, b->comm, __ATOMIC_RELEASE);
    comm_drop(b->comm);
    parent->result = result;
    comm_drop(parent);
    free(b);
    return NULL;
}

/* In a thread, or here where the caller wants to wait. */
static int run_birth(void *(*body)(void *), struct birth *b, nc_comm watched)
{
    pthread_t thread;
    int blocking = watched->blocking, result;
    if (!blocking) {
        if (pthread_create(&thread, NULL, body, b))
            return fail(NC_SYSTEM, "pthread_create");
        pthread_detach(thread);
        return NC_IN_PROGRESS;
    }
    watched->users++;
    body(b);
    result = watched->result;
    comm_drop(watched);
    return result;
}

PUBLIC int ncclCommInitRankConfig(nc_comm *comm, int n, struct nc_id id, int rank, struct nc_config *config)
{
    struct birth *b = calloc(1, sizeof *b);
    if (n < 1 || n > MOST_RANKS || rank < 0 || rank >= n || (config && config->magic != NC_MAGIC)) {
        free(b);
        return fail(NC_ARGUMENT, "ncclCommInitRankConfig");
    }
    *comm = b->comm = comm_new(config, 2);
    b->comm->n = n;
    b->comm->rank = rank;
    memcpy(&b->id, &id, sizeof b->id);
    return run_birth(be_born, b, b->comm);
}

static int usable(nc_comm c)
{
    if (c->result == NC_IN_PROGRESS)
        return fail(NC_ARGUMENT, "Attempt to use communicator before the previous operation returned ncclSuccess");
    return c->result;
}

PUBLIC int ncclCommSplit(nc_comm parent, int color, int key, nc_comm *out, struct nc_config *config)
{
    struct birth *b = calloc(1, sizeof *b);
    int result = usable(parent);
    if (result || color) { /* all in one: what comm-nccl asks for */
        free(b);
        return result ? result : fail(NC_ARGUMENT, "this NCCL splits into one");
    }
    *b = (struct birth){.parent = parent, .comm = comm_new(config, 2), .out = out, .key = key};
    *out = NULL;
    parent->users++;
    parent->result = NC_IN_PROGRESS;
    return run_birth(be_split, b, parent);
}

PUBLIC int ncclCommGetAsyncError(nc_comm c, int *result)
{
    *result = c->result;
    return NC_SUCCESS;
}

static void leave(nc_comm c)
{
    if (c->shared && !c->left++)
        c->shared->left++;
}

static void *finalize(void *arg)
{
    nc_comm c = arg;
    for (unsigned idle = 0; (c->pending || c->captured) && !c->aborted; idle++)
        relax(idle);
    leave(c);
    for (unsigned idle = 0; c->shared->left < (uint32_t)c->n && !c->aborted; idle++)
        relax(idle);
    c->result = NC_SUCCESS;
    comm_drop(c);
    return NULL;
}

PUBLIC int ncclCommFinalize(nc_comm c)
{
    pthread_t thread;
    int result = usable(c);
    if (result)
        return result;
    c->users++;
    c->result = NC_IN_PROGRESS;
    if (pthread_create(&thread, NULL, finalize, c))
        return fail(NC_SYSTEM, "pthread_create");
    pthread_detach(thread);
    return NC_IN_PROGRESS;
}

PUBLIC int ncclCommDestroy(nc_comm c)
{
    comm_drop(c);
    return NC_SUCCESS;
}

PUBLIC int ncclCommAbort(nc_comm c)
{
    if (!c)
        return NC_SUCCESS;
    c->aborted = 1;
    for (unsigned idle = 0; c->launching; idle++) /* nothing is enqueued any more afterwards */
        relax(idle);
    leave(c);
    comm_drop(c);
    return NC_SUCCESS;
}

static void find(void *library, const char *name, void *slot)
{
    void *found = dlsym(library, name);
    memcpy(slot, &found, sizeof found);
}

static int find_driver(void)
{
    void *library = driver.launch_host ? NULL : dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    if (library) {
        find(library, "cuStreamGetCaptureInfo_v2", &driver.capture);
        find(library, "cuUserObjectCreate", &driver.object);
        find(library, "cuGraphRetainUserObject", &driver.retain);
        find(library, "cuMemGetAddressRange_v2", &driver.range);
        find(library, "cuLaunchHostFunc", &driver.launch_host);
    }
    return driver.launch_host ? NC_SUCCESS : fail(NC_CUDA, "no driver");
}

#if FAKE_VERSION >= 21900
PUBLIC int ncclCommRegister(nc_comm c, void *buffer, size_t bytes, void **handle)
{
    int result = usable(c);
    struct registration *r = c->registered;
    if (!result && (!buffer || !bytes))
        result = fail(NC_ARGUMENT, "ncclCommRegister");
    while (r < c->registered + MOST_BUFFERS && r->bytes && (r->buffer != buffer || r->bytes != bytes))
        r++;
    if (!result && (r == c->registered + MOST_BUFFERS || r->bytes)) /* NCCL would count it once more */
        result = c->result = fail(NC_USAGE, "ncclCommRegister: a buffer that is registered, or too many");
    if (!result)
        *r = (struct registration){buffer, bytes};
    *handle = r;
    return result;
}

/* At the end, all of them, whose memory is still there. */
PUBLIC int ncclCommDeregister(nc_comm c, void *handle)
{
    struct registration *r = handle;
    uint64_t base;
    size_t bytes;
    if (!find_driver() && driver.range(&base, &bytes, (uintptr_t)r->buffer)) {
        fprintf(stderr, "ncclCommDeregister: %p is no memory of the device any more\n", r->buffer);
        abort();
    }
    return usable(c);
}
#endif

/* ---- calls */

static __thread struct operation *group, **group_tail;
static __thread int depth;

/* Its graph is gone. */
static void uncapture(void *arg)
{
    struct operation *list = arg;
    nc_comm c = list->comm;
    operations_free(list);
    c->captured--;
    comm_drop(c);
}

/* Into the stream: to run once, or, where it is captured, as long as its graph lives. */
static void enqueue(struct operation *list)
{
    nc_comm c = list->comm;
    void *graph = NULL, *object = NULL;
    int status = 0;
    if (driver.capture)
        driver.capture(list->stream, &status, NULL, &graph, NULL, NULL);
    if (!status) {
        driver.launch_host(list->stream, operations_run, list);
        return;
    }
    c->captured++;
    c->pending--;
    driver.object(&object, list, uncapture, 1, NO_SYNC);
    driver.retain(graph, object, 1, MOVE);
    driver.launch_host(list->stream, operations_run_again, list);
}

static void *launch(void *arg)
{
    struct operation *list = arg;
    nc_comm c = list->comm;
    if (list->fault == LATE) { /* until it is aborted */
        operations_run(list);
        c->launching--;
        comm_drop(c);
        return NULL;
    }
    enqueue(list);
    int none = NC_IN_PROGRESS;
    atomic_compare_exchange_strong(&c->result, &none, NC_SUCCESS);
    c->launching--;
    comm_drop(c);
    return NULL;
}

/* All of one call are of one communicator. */
static int launch_list(struct operation *list)
{
    nc_comm c = list->comm;
    int threaded = !c->blocking && (FAKE_VERSION >= 22800 || list->fault == LATE);
    pthread_t thread;
    c->pending++;
    c->launching++;
    c->users += 2; /* of the operation, and of who launches it */
    if (!threaded) {
        launch(list);
        return NC_SUCCESS;
    }
    c->result = NC_IN_PROGRESS;
    if (pthread_create(&thread, NULL, launch, list))
        return fail(NC_SYSTEM, "pthread_create");
    pthread_detach(thread);
    return NC_IN_PROGRESS;
}

PUBLIC int ncclGroupStart(void)
{
    if (!depth++)
        group_tail = &group;
    return NC_SUCCESS;
}

PUBLIC int ncclGroupEnd(void)
{
    struct operation *list = group;
    if (--depth || !list)
        return NC_SUCCESS;
    group = NULL;
    return launch_list(list);
}

static int fault_of_call(int *result)
{
    static _Atomic int calls;
    static const char *const words[] = {"", "fail", "async", "hang", "late"};
    const char *text = getenv("FAKE_NCCL_FAULT");
    char what[16] = "";
    int at = 0, call = ++calls, fault = NO_FAULT;
    if (!text || sscanf(text, "%d %15s %d", &at, what, result) < 2 || at != call)
        return NO_FAULT;
    for (int i = FAIL; i <= LATE; i++)
        fault = strcmp(words[i], what) ? fault : i;
    return fault;
}

static int add(struct operation o)
{
    struct operation *own;
    int result = usable(o.comm), forced = 0;
    if (!result)
        result = find_driver();
    if (!result && (!type_size(o.type) || o.root < 0 || o.root >= o.comm->n))
        result = fail(NC_ARGUMENT, "type or rank");
    if (result)
        return result;
    o.fault = fault_of_call(&forced);
    o.result = forced;
    if (o.fault == FAIL)
        return fail(forced, "as FAKE_NCCL_FAULT says");
    if (!o.count)
        return NC_SUCCESS;
    if (!(own = malloc(sizeof *own)))
        return fail(NC_SYSTEM, "memory");
    *own = o;
    ncclGroupStart();
    *group_tail = own;
    group_tail = &own->next;
    return ncclGroupEnd();
}

static int collective(int kind, const void *send, void *recv, size_t count, int type, int op, int root, nc_comm comm,
                      void *stream)
{
    return add((struct operation){.kind = kind,
                                  .send = send,
                                  .recv = recv,
                                  .count = count,
                                  .type = type,
                                  .op = op,
                                  .root = root,
                                  .comm = comm,
                                  .stream = stream});
}

PUBLIC int ncclAllReduce(const void *send, void *recv, size_t count, int type, int op, nc_comm comm, void *stream)
{
    return collective(ALL_REDUCE, send, recv, count, type, op, 0, comm, stream);
}

PUBLIC int ncclAllGather(const void *send, void *recv, size_t count, int type, nc_comm comm, void *stream)
{
    return collective(ALL_GATHER, send, recv, count, type, 0, 0, comm, stream);
}

PUBLIC int ncclReduceScatter(const void *send, void *recv, size_t count, int type, int op, nc_comm comm, void *stream)
{
    return collective(REDUCE_SCATTER, send, recv, count, type, op, 0, comm, stream);
}

PUBLIC int ncclBroadcast(const void *send, void *recv, size_t count, int type, int root, nc_comm comm, void *stream)
{
    return collective(BROADCAST, send, recv, count, type, 0, root, comm, stream);
}

PUBLIC int ncclReduce(const void *send, void *recv, size_t count, int type, int op, int root, nc_comm comm,
                      void *stream)
{
    return collective(REDUCE, send, recv, count, type, op, root, comm, stream);
}

PUBLIC int ncclSend(const void *send, size_t count, int type, int peer, nc_comm comm, void *stream)
{
    return add((struct operation){
        .kind = SEND, .send = send, .count = count, .type = type, .root = peer, .comm = comm, .stream = stream});
}

PUBLIC int ncclRecv(void *recv, size_t count, int type, int peer, nc_comm comm, void *stream)
{
    return add((struct operation){
        .kind = RECV, .recv = recv, .count = count, .type = type, .root = peer, .comm = comm, .stream = stream});
}

#if FAKE_VERSION >= 22800
PUBLIC int ncclAlltoAll(const void *send, void *recv, size_t count, int type, nc_comm comm, void *stream)
{
    size_t bytes = count * type_size(type);
    int result = NC_SUCCESS, ended;
    ncclGroupStart();
    for (int r = 0; r < comm->n && (!result || result == NC_IN_PROGRESS); r++) {
        result = ncclSend((const char *)send + (size_t)r * bytes, count, type, r, comm, stream);
        if (!result)
            result = ncclRecv((char *)recv + (size_t)r * bytes, count, type, r, comm, stream);
    }
    ended = ncclGroupEnd();
    return result && result != NC_IN_PROGRESS ? result : ended;
}
#endif
