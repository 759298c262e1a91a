/* The arena and the memories beside it, and how the host sees them.
 *
 * The view has what the arena has at the same offsets. Where the device computes on host memory it is the arena. Elsewhere
 * it is address space: pull copies tensors into it, push copies them to the device, and pages that nobody touched cost
 * nothing. The other memories belong to the host in any case: their distance is counted from the view. */
#include <stdlib.h>
#include <sys/mman.h>

#include "runtime/comm/request_pool.h"
#include "runtime/exec/internal.h"

/* ---- the arena */

static uint32_t arena_kind(const struct hd__exec *e)
{
    return e->device.apart ? HD_MEM_DEVICE : HD_MEM_HOST;
}

static int32_t map_arena(struct hd__exec *e, size_t bytes, struct hd_error *err)
{
    const struct hd_device_ops *ops = e->device.ops;
    for (uint32_t i = 0; i < e->transports.at.count; i++) {
        struct hd__transport *t = e->transports.at.at[i];
        if (t->ops->memory && !e->device.apart && !e->device.streams)
            return t->ops->memory(t->comm, bytes, &e->arena, err);
    }
    if (ops->alloc) {
        e->arena_from = 1;
        return ops->alloc(e->device.at, arena_kind(e), bytes, &e->arena, err);
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

/* Every page is there before the first step. The memory is zero already, so one byte of each is enough. */
static void touch_pages(char *memory, int64_t bytes)
{
    for (int64_t at = 0; at < bytes; at += 4096)
        *(volatile char *)(memory + at) = 0;
}

/* What is persistent begins as zeros, as it does in host memory. */
static int32_t clear_arena(struct hd__exec *e, struct hd_error *err)
{
    const int64_t most = INT64_C(4) << 20;
    void *zeros;
    int32_t rc = hd__device_pinned(&e->device, (size_t)most, &zeros, err);
    if (rc)
        return rc;
    memset(zeros, 0, (size_t)most);
    for (int64_t at = 0; at < e->p->persistent_bytes && !rc; at += most)
        rc = e->device.ops->copy(e->device.at, HD_STREAM_COMPUTE, (char *)e->arena + at, zeros,
                                 (size_t)HD__MIN(most, e->p->persistent_bytes - at), err);
    if (!rc)
        rc = hd__exec_settle(e, err);
    hd__device_pinned_free(&e->device, zeros);
    return rc;
}

static int32_t map_view(struct hd__exec *e, struct hd_error *err)
{
    size_t bytes = (size_t)e->p->arena_bytes;
    void *view;
    if (!e->device.apart) {
        e->view = e->arena;
        touch_pages(e->arena, e->p->arena_bytes);
        return HD_OK;
    }
    view = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (view == MAP_FAILED)
        return hd_fail(err, HD_E_NOMEM, "no addresses for %zu bytes of the device's memory", bytes);
    e->view = view;
    return clear_arena(e, err);
}

/* ---- the others */

/* What the program keeps elsewhere, and who copies it. */
static int32_t open_memories(struct hd__exec *e, struct hd_error *err)
{
    int64_t chunk = e->config.compiled->job->device_staging & ~INT64_C(4095);
    int32_t rc, any = 0;
    for (int memory = 1; memory < HD__MEM_COUNT; memory++)
        any |= e->p->bytes[memory] > 0;
    if (!any)
        return HD_OK;
    rc = hd__memories_open(e->p, e->view, &e->device, &e->memories, err);
    if (!rc && (!e->device.streams || e->p->bytes[HD__MEM_FILE]))
        rc = hd__copies_open(e->memories.file, HD__COPIES_AUTO, &e->copies, err);
    if (!rc && e->device.streams && e->p->bytes[HD__MEM_FILE])
        rc = hd__spill_open(&e->device, e->copies, chunk, &e->spill, err);
    return rc;
}

int32_t hd__exec_map(struct hd__exec *e, struct hd_error *err)
{
    int32_t rc = e->device.streams ? hd__device_event(&e->device, &e->settled, err) : HD_OK;
    if (!rc)
        rc = map_arena(e, (size_t)e->p->arena_bytes, err);
    if (!rc)
        rc = map_view(e, err);
    return rc ? rc : open_memories(e, err);
}

void hd__exec_stop_copies(struct hd__exec *e)
{
    hd__copies_close(e->copies);
    hd__spill_close(e->spill);
}

void hd__exec_unmap(struct hd__exec *e)
{
    hd__memories_close(&e->memories, &e->device);
    if (e->device.apart && e->view)
        munmap(e->view, (size_t)e->p->arena_bytes);
    if (e->arena && e->arena_from == 1)
        e->device.ops->free(e->device.at, arena_kind(e), e->arena);
    if (e->arena && e->arena_from == 2)
        munmap(e->arena, (size_t)e->p->arena_bytes);
    hd__device_event_free(&e->device, e->settled);
}

/* ---- waiting */

int32_t hd__exec_await(struct hd__exec *e, struct hd_event *event, double deadline, struct hd_error *err)
{
    for (uint32_t idle = 0;; idle++) {
        int32_t done = 0, rc = e->device.ops->reached(e->device.at, event, &done, err);
        if (rc || done)
            return rc;
        rc = hd__exec_progress(e, err);
        if (rc)
            return rc;
        if (deadline > 0 && hd__now() > deadline)
            return hd_fail(err, HD_E_TIMEOUT, "device-%s has not come to an end before the deadline", e->device.name);
        hd__relax(idle);
    }
}

int32_t hd__exec_settle(struct hd__exec *e, struct hd_error *err)
{
    int32_t rc;
    if (!e->device.streams)
        return HD_OK;
    rc = e->device.ops->record(e->device.at, e->settled, HD_STREAM_COMPUTE, err);
    return rc ? rc : hd__exec_await(e, e->settled, 0, err);
}

/* ---- the view */

static int32_t move(struct hd__exec *e, const hd_tensor *tensors, uint32_t n, int pull, struct hd_error *err)
{
    int32_t rc = HD_OK;
    for (uint32_t k = 0; k < n && !rc && e->device.apart; k++) {
        const struct hd__tensor *t = hd__tc(e->p, tensors[k]);
        char *here = hd__address(e->p, tensors[k], e->coord, e->view), *there = (char *)e->arena + (here - e->view);
        size_t bytes = (size_t)hd__tensor_bytes(e->p, t);
        if (hd__memory_of(e->p, tensors[k]) == HD__MEM_MAIN && bytes)
            rc = e->device.ops->copy(e->device.at, HD_STREAM_COMPUTE, pull ? here : there, pull ? there : here, bytes, err);
    }
    return rc ? rc : hd__exec_settle(e, err);
}

int32_t hd__exec_pull(struct hd__exec *e, const hd_tensor *tensors, uint32_t n, struct hd_error *err)
{
    return move(e, tensors, n, 1, err);
}

int32_t hd__exec_push(struct hd__exec *e, const hd_tensor *tensors, uint32_t n, struct hd_error *err)
{
    return move(e, tensors, n, 0, err);
}

static int32_t move_state(struct hd__exec *e, int pull, struct hd_error *err)
{
    HD__ARRAY(hd_tensor) all = {0};
    int32_t rc;
    for (uint32_t f = 0; f < e->p->flats.count && e->device.apart; f++) {
        const struct hd__flat *flat = &e->p->flats.at[f];
        const hd_tensor holders[] = {pull ? 0 : flat->whole, pull ? 0 : flat->low, flat->master, flat->common,
                                     flat->state[0], flat->state[1], flat->state[2], flat->state[3]};
        for (uint32_t h = 0; h < HD__COUNT(holders); h++)
            if (holders[h])
                hd__push(&all, holders[h]);
    }
    for (uint32_t n = 0; n < e->p->zeros.count; n++)
        hd__push(&all, e->p->zeros.at[n]);
    for (uint32_t n = 0; n < e->p->kept.count; n++)
        hd__push(&all, e->p->kept.at[n].tensor);
    rc = move(e, all.at, all.count, pull, err);
    hd__free_array(&all);
    return rc;
}

int32_t hd__exec_pull_state(struct hd__exec *e, struct hd_error *err)
{
    return move_state(e, 1, err);
}

int32_t hd__exec_push_state(struct hd__exec *e, struct hd_error *err)
{
    return move_state(e, 0, err);
}

void hd__exec_forget(struct hd__exec *e)
{
    if (e->device.apart)
        madvise(e->view, (size_t)e->p->arena_bytes, MADV_DONTNEED);
}

void *hd__exec_data(struct hd__exec *e, hd_tensor tensor)
{
    return hd__address(e->p, tensor, e->coord, e->view);
}

void *hd__exec_arena(struct hd__exec *e)
{
    return e->view;
}
