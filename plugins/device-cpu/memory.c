/* Memory for arenas: zeroed, in huge pages where the kernel gives them, all pages present before the first step. */
#include "internal.h"
#include <errno.h>
#include <sys/mman.h>

#define HUGE_PAGE ((size_t)2 << 20)

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

struct cpu_block {
    struct cpu_block *next;
    void *map;
    size_t mapped;
    void *memory;
};

struct range {
    char *memory;
    size_t bytes;
};

static void populate_pages(void *context, int64_t first, int64_t last)
{
    const struct range *all = context;
    char *memory = all->memory + (size_t)first * HUGE_PAGE;
    size_t end = (size_t)last * HUGE_PAGE, bytes = (end < all->bytes ? end : all->bytes) - (size_t)first * HUGE_PAGE;
    if (madvise(memory, bytes, MADV_POPULATE_WRITE) == 0)
        return;
    for (size_t i = 0; i < bytes; i += 4096) /* Linux before 5.14 */
        ((volatile char *)memory)[i] = 0;
}

/* Makes the pages present, so that no compute thread meets a fault later. The kernel clears them: half of a short
 * start, so all threads do it. */
static void populate(struct hd_device *device, char *memory, size_t bytes)
{
    struct range all = {memory, bytes};
    madvise(memory, bytes, MADV_HUGEPAGE);
    cpu_parallel(device, (int64_t)((bytes + HUGE_PAGE - 1) / HUGE_PAGE), 1, populate_pages, &all);
}

int32_t cpu_alloc(struct hd_device *device, uint32_t kind, size_t bytes, void **memory, struct hd_error *err)
{
    if (kind != HD_MEM_HOST)
        return hd_fail(err, HD_E_UNSUPPORTED, "device cpu has host memory only, not memory kind %u", kind);
    struct cpu_block *block = device->host->alloc(sizeof *block);
    if (!block)
        return hd_fail(err, HD_E_NOMEM, "no memory to note an allocation of %zu bytes", bytes);
    bytes = (bytes + 4095) & ~(size_t)4095;
    size_t align = bytes >= HUGE_PAGE ? HUGE_PAGE : 4096;
    block->mapped = bytes + align;
    block->map = mmap(NULL, block->mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (block->map == MAP_FAILED) {
        int cause = errno;
        device->host->free(block);
        return hd_fail(err, HD_E_NOMEM, "cannot map %zu bytes for an arena: %s", bytes, strerror(cause));
    }
    block->memory = (void *)(((uintptr_t)block->map + align - 1) & ~(uintptr_t)(align - 1));
    populate(device, block->memory, bytes);
    block->next = device->blocks;
    device->blocks = block;
    *memory = block->memory;
    return HD_OK;
}

void cpu_free(struct hd_device *device, uint32_t kind, void *memory)
{
    (void)kind;
    if (!memory)
        return;
    for (struct cpu_block **at = &device->blocks; *at; at = &(*at)->next) {
        struct cpu_block *block = *at;
        if (block->memory != memory)
            continue;
        *at = block->next;
        munmap(block->map, block->mapped);
        device->host->free(block);
        return;
    }
}

void cpu_free_all(struct hd_device *device)
{
    while (device->blocks)
        cpu_free(device, HD_MEM_HOST, device->blocks->memory);
}
