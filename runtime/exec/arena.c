/* The arena, the other memories, and the host mirror.
 *
 * The mirror has the arena's offsets. Where the device computes on host memory it is the arena. Elsewhere it is
 * reserved address space into which tensors are copied and from which they are written back; untouched pages cost
 * nothing. The other memories belong to the host in any case: their offsets are relative to the mirror. */
#include <stdlib.h>
#include <sys/mman.h>

#include "runtime/comm/request_pool.h"
#include "runtime/exec/internal.h"

/* ---- the arena */

static uint32_t arena_kind(const struct hd__exec *e)
{
    return e->device.discrete ? HD_MEM_DEVICE : HD_MEM_HOST;
}

/* Memory of a transport: a sample of it is looked at. */
static int32_t check_memory(const struct hd__transport *t, const char *base, size_t bytes, struct hd_error *err)
{
    const char *use = t->section->use;
    if (!base || (uintptr_t)base % 4096)
        return hd_fail(err, HD_E_INTERNAL, "comm-%s: its `memory` returned HD_OK and %s", use,
                       base ? "what is not 4096-byte aligned" : "gave nothing");
    for (size_t k = 0; k < 64; k++)
        if (base[k * (bytes / 64)])
            return hd_fail(err, HD_E_INTERNAL, "comm-%s: its `memory` gave what is not zeroed", use);
    return HD_OK;
}

static int32_t map_arena(struct hd__exec *e, size_t bytes, struct hd_error *err)
{
    const struct hd_device_ops *ops = e->device.ops;
    for (uint32_t i = 0; i < e->transports.opened.count; i++) {
        struct hd__transport *t = e->transports.opened.at[i];
        if (t->ops->memory && !e->device.discrete && !e->device.streams) {
            int32_t rc = hd__comm_done(t->ops->memory(t->comm, bytes, &e->arena, err), "memory", err);
            return rc ? rc : check_memory(t, e->arena, bytes, err);
        }
    }
    if (ops->alloc) {
        e->arena_from = 1;
        return hd__slot_handle(ops->alloc(e->device.handle, arena_kind(e), bytes, &e->arena, err), "the device's",
                               "alloc", &e->arena, err);
    }
    e->arena_from = 2;
    e->arena = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (e->arena == MAP_FAILED) {
        e->arena = NULL;
        return hd_fail(err, HD_E_NOMEM, "cannot map the arena of %zu bytes", bytes);
    }
    madvise(e->arena, bytes, MADV_HUGEPAGE);
    return HD_OK;
}

/* Persistent tensors start as zeros, as they do in host memory. */
static int32_t clear_arena(struct hd__exec *e, struct hd_error *err)
{
    const int64_t most = INT64_C(4) << 20;
    void *zeros;
    int32_t rc = hd__exec_device_alloc_pinned(&e->device, (size_t)most, &zeros, err);
    if (rc)
        return rc;
    memset(zeros, 0, (size_t)most);
    for (int64_t at = 0; at < e->p->persistent_bytes && !rc; at += most)
        rc = e->device.ops->copy(e->device.handle, HD_STREAM_COMPUTE, (char *)e->arena + at, zeros,
                                 (size_t)HD__MIN(most, e->p->persistent_bytes - at), err);
    if (!rc)
        rc = hd__exec_synchronize(e, err);
    hd__exec_device_free_pinned(&e->device, zeros);
    return rc;
}

static int32_t map_host_mirror(struct hd__exec *e, struct hd_error *err)
{
    size_t bytes = (size_t)e->p->arena_bytes;
    if (!e->device.discrete) {
        e->host_mirror = e->arena;
        hd__exec_touch_pages(e->arena, e->p->arena_bytes);
        return HD_OK;
    }
    void *mirror = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mirror == MAP_FAILED)
        return hd_fail(
            err, HD_E_NOMEM,
            "cannot reserve %zu bytes of addresses for the host mirror of the device's memory: raise ulimit -v", bytes);
    e->host_mirror = mirror;
    return e->device.ops->caps & HD_DEVICE_ZEROED_MEMORY ? HD_OK : clear_arena(e, err);
}

/* ---- the other memories */

static int32_t open_file_engine(struct hd__exec *e, struct hd__copy_engine **engine, struct hd_error *err)
{
    struct hd_error why = HD_ERROR_INIT;
    int32_t rc = hd__exec_copy_uring_open(e->host_pools.file, engine, &why);
    if (rc) {
        hd__log(HD_LOG_WARN, "run", "offload: threads instead of io_uring read and write the file: %s", why.message);
        rc = hd__exec_copy_threads_open(e->host_pools.file, engine, err);
    }
    if (rc || !e->device.streams)
        return rc;
    rc = hd__exec_file_offload_open(&e->device, e->config.compiled->job->device_staging & ~INT64_C(4095), engine, err);
    e->polled_engine = *engine;
    return rc;
}

/* Maps the memories besides the arena and opens their copy engines. */
static int32_t open_host_pools(struct hd__exec *e, struct hd_error *err)
{
    struct hd__copy_engine **host = &e->copy_engines[HD__MEM_HOST], **file = &e->copy_engines[HD__MEM_FILE];
    int32_t rc, any = 0;
    for (int memory = 1; memory < HD__MEM_COUNT; memory++)
        any |= e->p->bytes[memory] > 0;
    if (!any)
        return HD_OK;
    rc = hd__exec_host_pools_open(e->p, e->host_mirror, &e->device, &e->host_pools, err);
    if (!rc && e->p->bytes[HD__MEM_HOST] && e->device.streams)
        *host = hd__exec_copy_stream_create(&e->device);
    else if (!rc && e->p->bytes[HD__MEM_HOST])
        rc = hd__exec_copy_threads_open(-1, host, err);
    return rc || !e->p->bytes[HD__MEM_FILE] ? rc : open_file_engine(e, file, err);
}

int32_t hd__exec_map_memory(struct hd__exec *e, struct hd_error *err)
{
    int32_t rc = e->device.streams ? hd__exec_device_create_event(&e->device, &e->sync_event, err) : HD_OK;
    if (!rc)
        rc = map_arena(e, (size_t)e->p->arena_bytes, err);
    if (!rc)
        rc = map_host_mirror(e, err);
    return rc ? rc : open_host_pools(e, err);
}

void hd__exec_unmap_memory(struct hd__exec *e)
{
    hd__exec_host_pools_close(&e->host_pools, &e->device);
    if (e->device.discrete && e->host_mirror)
        munmap(e->host_mirror, (size_t)e->p->arena_bytes);
    if (e->arena && e->arena_from == 1)
        e->device.ops->free(e->device.handle, arena_kind(e), e->arena);
    if (e->arena && e->arena_from == 2)
        munmap(e->arena, (size_t)e->p->arena_bytes);
    hd__exec_device_free_event(&e->device, e->sync_event);
}

/* ---- waiting */

int32_t hd__exec_wait_event(struct hd__exec *e, struct hd_event *event, double deadline, struct hd_error *err)
{
    struct hd_deadline end = hd_deadline_from(deadline, hd__now());
    for (uint32_t idle = 0;; idle++) {
        int32_t reached = hd__exec_device_reached(&e->device, event, err);
        /* Operations on a stream that failed look done; only `progress` says so, also after the stream has passed. */
        int32_t rc = reached < 0 ? reached : HD__MIN(hd__exec_transports_progress(&e->transports, err), HD_OK);
        if (reached || rc)
            return rc;
        rc = hd__exec_progress(e, err);
        if (rc)
            return rc;
        if (deadline > 0 && hd_deadline_passed(&end, hd__now()))
            return hd_fail(err, HD_E_TIMEOUT, "device-%s: the compute stream did not finish before the deadline",
                           e->device.name);
        hd__comm_backoff(idle);
    }
}

int32_t hd__exec_synchronize(struct hd__exec *e, struct hd_error *err)
{
    if (!e->device.streams)
        return HD_OK;
    if (e->settled)
        return e->device.ops->sync(e->device.handle, HD_STREAM_COMPUTE, err);
    int32_t rc = e->device.ops->record(e->device.handle, e->sync_event, HD_STREAM_COMPUTE, err);
    return rc ? rc : hd__exec_wait_event(e, e->sync_event, 0, err);
}

/* ---- the host mirror */

int32_t hd__exec_copy_tensors(struct hd__exec *e, int direction, const hd_tensor *tensors, uint32_t n,
                              struct hd_error *err)
{
    uint32_t kinds = HD__FLAT_IS_SAVED | (direction == HD__H2D ? HD__FLAT_IS_PARAM | HD__FLAT_IS_PERSISTENT : 0);
    HD__ARRAY(hd_tensor) all = {0};
    int32_t rc = HD_OK;
    hd__append(&all, tensors, n);
    for (struct hd__flat_tensor t = {0}; !tensors && hd__flat_next(e->p, kinds, &t);)
        hd__push(&all, t.tensor);
    for (uint32_t k = 0; !tensors && k < e->p->facts.count; k++)
        if (e->p->facts.at[k].what & HD_FACT_FEEDBACK)
            hd__push(&all, e->p->facts.at[k].tensor);
    for (uint32_t k = 0; k < all.count && !rc && e->device.discrete; k++) {
        const struct hd__tensor *t = hd__tensor_const(e->p, all.at[k]);
        char *here = hd__tensor_address(e->p, all.at[k], e->coord, e->host_mirror),
             *there = (char *)e->arena + (here - e->host_mirror);
        size_t bytes = (size_t)hd__tensor_bytes(e->p, t);
        int out = direction == HD__D2H;
        if (hd__memory_of(e->p, all.at[k]) == HD__MEM_MAIN && bytes)
            rc = e->device.ops->copy(e->device.handle, HD_STREAM_COMPUTE, out ? here : there, out ? there : here, bytes,
                                     err);
    }
    hd__free_array(&all);
    return rc ? rc : hd__exec_synchronize(e, err);
}

void hd__exec_drop_mirror(struct hd__exec *e)
{
    if (e->device.discrete)
        madvise(e->host_mirror, (size_t)e->p->arena_bytes, MADV_DONTNEED);
}

void *hd__exec_host_data(struct hd__exec *e, hd_tensor tensor)
{
    return hd__tensor_address(e->p, tensor, e->coord, e->host_mirror);
}

void *hd__exec_host_arena(struct hd__exec *e)
{
    return e->host_mirror;
}
