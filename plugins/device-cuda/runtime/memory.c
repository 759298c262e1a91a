/* Memory: what the core asks for (arenas, pinned and host memory), and the device's own tables and scratch. */
#include "internal.h"
#include <stdlib.h>

struct cu_block {
    struct cu_block *next;
    void *memory;
    size_t bytes;
    uint32_t kind; /* HD_MEM_... */
    uint32_t reserved;
};

/* A table that cu_table gave: equal ones share it. The host's copy follows. */
struct cu_table {
    struct cu_table *next;
    void *memory;
    size_t bytes;
};

enum { POOL = 1 << 20, UNIT = 256 };

static cudaError_t get(uint32_t kind, size_t bytes, void **memory)
{
    if (kind == HD_MEM_DEVICE)
        return cudaMalloc(memory, bytes);
    if (kind == HD_MEM_PINNED)
        return cudaHostAlloc(memory, bytes, cudaHostAllocPortable);
    *memory = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    if (*memory)
        memset(*memory, 0, bytes);
    return *memory ? cudaSuccess : cudaErrorMemoryAllocation;
}

static void put_back(uint32_t kind, void *memory)
{
    if (kind == HD_MEM_DEVICE)
        cudaFree(memory);
    else if (kind == HD_MEM_PINNED)
        cudaFreeHost(memory);
    else
        free(memory);
}

static int32_t new_block(struct hd_device *d, uint32_t kind, size_t bytes, struct cu_block **list, struct hd_error *err)
{
    static const char *const names[] = {"host", "pinned", "device"};
    struct cu_block *b = d->host->alloc(sizeof *b);
    char what[128];
    cudaError_t rc;
    if (!b)
        return hd_fail(err, HD_E_NOMEM, "no memory to note an allocation");
    rc = get(kind, bytes ? bytes : 1, &b->memory);
    if (rc == cudaSuccess && kind == HD_MEM_DEVICE)
        rc = cudaMemsetAsync(b->memory, 0, bytes, d->stream[HD_STREAM_COMPUTE]);
    if (rc == cudaSuccess && kind == HD_MEM_DEVICE)
        rc = cudaStreamSynchronize(d->stream[HD_STREAM_COMPUTE]);
    if (rc != cudaSuccess) {
        if (b->memory)
            put_back(kind, b->memory);
        d->host->free(b);
        snprintf(what, sizeof what, "device cuda %d: %zu bytes of %s memory", d->index, bytes, names[kind]);
        return cu_fail(err, rc, NULL, what);
    }
    b->bytes = bytes;
    b->kind = kind;
    b->next = *list;
    *list = b;
    return HD_OK;
}

/* Gives back the block that begins at `memory`, where the list has it. */
static void free_block(struct hd_device *d, struct cu_block **list, const void *memory)
{
    for (struct cu_block **at = list; *at; at = &(*at)->next) {
        struct cu_block *b = *at;
        if (b->memory != memory)
            continue;
        *at = b->next;
        put_back(b->kind, b->memory);
        d->host->free(b);
        return;
    }
}

static void free_list(struct hd_device *d, struct cu_block **list)
{
    while (*list) {
        struct cu_block *b = *list;
        *list = b->next;
        put_back(b->kind, b->memory);
        d->host->free(b);
    }
}

/* ---- what the core asks for */

int32_t cu_alloc(struct hd_device *d, uint32_t kind, size_t bytes, void **memory, struct hd_error *err)
{
    if (kind > HD_MEM_DEVICE)
        return hd_fail(err, HD_E_UNSUPPORTED, "device cuda has no memory of kind %u", kind);
    int32_t rc = new_block(d, kind, bytes, &d->allocations, err);
    if (rc == HD_OK)
        *memory = d->allocations->memory;
    return rc;
}

void cu_free(struct hd_device *d, uint32_t kind, void *memory)
{
    (void)kind;
    free_block(d, &d->allocations, memory);
}

/* ---- tables and scratch */

int32_t cu_zeros(struct hd_device *d, size_t bytes, void **memory, struct hd_error *err)
{
    bytes = (bytes + UNIT - 1) / UNIT * UNIT;
    if (!d->pool || d->pool_left < bytes) {
        int32_t rc = new_block(d, HD_MEM_DEVICE, bytes > POOL ? bytes : POOL, &d->blocks, err);
        if (rc)
            return rc;
        d->pool = d->blocks->memory;
        d->pool_left = d->blocks->bytes;
    }
    *memory = d->pool;
    d->pool += bytes;
    d->pool_left -= bytes;
    return HD_OK;
}

int32_t cu_table(struct hd_device *d, const void *host, size_t bytes, const void **table, struct hd_error *err)
{
    for (struct cu_table *t = d->tables; t; t = t->next)
        if (t->bytes == bytes && memcmp(t + 1, host, bytes) == 0) {
            *table = t->memory;
            return HD_OK;
        }
    struct cu_table *t = d->host->alloc(sizeof *t + bytes);
    if (!t)
        return hd_fail(err, HD_E_NOMEM, "no memory for a table of %zu bytes", bytes);
    t->bytes = bytes;
    memcpy(t + 1, host, bytes);
    int32_t rc = cu_zeros(d, bytes, &t->memory, err);
    if (rc == HD_OK)
        rc =
            cu_fail(err, cudaMemcpyAsync(t->memory, t + 1, bytes, cudaMemcpyHostToDevice, d->stream[HD_STREAM_COMPUTE]),
                    NULL, "copying a table");
    if (rc == HD_OK)
        rc = cu_fail(err, cudaStreamSynchronize(d->stream[HD_STREAM_COMPUTE]), NULL, "copying a table");
    if (rc) {
        d->host->free(t);
        return rc;
    }
    t->next = d->tables;
    d->tables = t;
    *table = t->memory;
    return HD_OK;
}

/* The old scratch goes where nothing was captured, as while the core prepares: captured launches hold its address,
 * others ask for it. cudaFree waits for what is under way. */
int32_t cu_scratch_reserve(struct hd_device *d, size_t bytes, struct hd_error *err)
{
    void *old = d->scratch;
    if (bytes <= d->scratch_bytes)
        return HD_OK;
    int32_t rc = new_block(d, HD_MEM_DEVICE, bytes, &d->blocks, err);
    if (rc)
        return rc;
    d->scratch = d->blocks->memory;
    d->scratch_bytes = bytes;
    if (old && !d->captured)
        free_block(d, &d->blocks, old);
    return HD_OK;
}

void cu_memory_close(struct hd_device *d)
{
    while (d->tables) {
        struct cu_table *t = d->tables;
        d->tables = t->next;
        d->host->free(t);
    }
    free_list(d, &d->blocks);
    free_list(d, &d->allocations);
}
