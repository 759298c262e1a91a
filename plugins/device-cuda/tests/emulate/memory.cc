/* Memories and copies. Device memory can be touched by what streams run, and by nobody else; a page behind each
 * allocation by none at all. HEDDLE_EMULATE_GUARD=0 leaves it open, for a debugger. */
#include "memory.h"
#include "device.h"
#include "queue.h"
#include <mutex>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <vector>

namespace
{

struct piece {
    char *at;
    size_t bytes; /* whole pages */
};

enum { PAGE = 4096 };
std::vector<piece> device, pinned;
std::recursive_mutex lock;
int opened;

bool guards(void)
{
    static int on = -1;
    const char *word = getenv("HEDDLE_EMULATE_GUARD");
    if (on < 0)
        on = !word || strcmp(word, "0") != 0;
    return on;
}

void protect(const piece &p, int open)
{
    if (guards() && mprotect(p.at, p.bytes, open ? PROT_READ | PROT_WRITE : PROT_NONE))
        abort();
}

bool lies_in(const std::vector<piece> &all, const void *p)
{
    const char *at = static_cast<const char *>(p);
    for (const piece &each : all)
        if (at >= each.at && at < each.at + each.bytes)
            return true;
    return false;
}

cudaError_t get(std::vector<piece> &all, void **memory, size_t bytes, int fill)
{
    size_t whole = (bytes + PAGE - 1) / PAGE * PAGE;
    void *p =
        whole ? mmap(nullptr, whole + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) : MAP_FAILED;
    if (p == MAP_FAILED)
        return emulate_said(cudaErrorMemoryAllocation);
    madvise(p, whole, MADV_HUGEPAGE); /* each launch opens and closes all of it */
    if (whole <= (size_t)64 << 20)
        memset(p, fill, whole);
    mprotect(static_cast<char *>(p) + whole, PAGE, PROT_NONE);
    all.push_back({static_cast<char *>(p), whole});
    *memory = p;
    return cudaSuccess;
}

cudaError_t put_back(std::vector<piece> &all, void *memory)
{
    if (!memory)
        return cudaSuccess;
    for (size_t i = 0; i < all.size(); i++)
        if (all[i].at == memory) {
            munmap(all[i].at, all[i].bytes + PAGE);
            all.erase(all.begin() + (long)i);
            return cudaSuccess;
        }
    return cudaErrorInvalidValue;
}

/* Pageable memory may be gone or changed when the stream comes to it: CUDA copies before it returns. */
bool is_pageable(const void *p)
{
    std::lock_guard<std::recursive_mutex> held(lock);
    return !lies_in(device, p) && !lies_in(pinned, p);
}

} // namespace

void emulate_memory_open(int open)
{
    std::lock_guard<std::recursive_mutex> held(lock);
    opened += open ? 1 : -1;
    if (opened == open) /* the first that opens, the last that closes */
        for (const piece &p : device)
            protect(p, open);
}

cudaError_t emulate_memory_range(const void *at, uint64_t *base, size_t *bytes)
{
    std::lock_guard<std::recursive_mutex> held(lock);
    for (const piece &p : device)
        if (at >= p.at && at < p.at + p.bytes) {
            *base = (uintptr_t)p.at;
            *bytes = p.bytes;
            return cudaSuccess;
        }
    return cudaErrorInvalidValue;
}

extern "C" {

cudaError_t cudaMalloc(void **memory, size_t bytes)
{
    int count;
    cudaError_t started = emulate_start(&count);
    if (started != cudaSuccess)
        return started;
    std::lock_guard<std::recursive_mutex> held(lock);
    cudaError_t rc = get(device, memory, bytes, 0xff);
    if (rc == cudaSuccess && !opened)
        protect(device.back(), 0);
    return rc;
}

cudaError_t cudaFree(void *memory)
{
    cudaError_t rc = cudaDeviceSynchronize();
    std::lock_guard<std::recursive_mutex> held(lock);
    return rc ? rc : put_back(device, memory);
}

cudaError_t cudaHostAlloc(void **memory, size_t bytes, unsigned)
{
    int count;
    cudaError_t started = emulate_start(&count);
    if (started != cudaSuccess)
        return started;
    std::lock_guard<std::recursive_mutex> held(lock);
    return get(pinned, memory, bytes, 0);
}

cudaError_t cudaFreeHost(void *memory)
{
    cudaError_t rc = cudaDeviceSynchronize();
    std::lock_guard<std::recursive_mutex> held(lock);
    return rc ? rc : put_back(pinned, memory);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind, cudaStream_t stream)
{
    cudaError_t rc = emulate_enqueue(stream, [=] { memmove(to, from, bytes); });
    emulate_copied(bytes);
    return rc == cudaSuccess && (is_pageable(to) || is_pageable(from)) ? cudaStreamSynchronize(stream) : rc;
}

cudaError_t cudaMemsetAsync(void *memory, int value, size_t bytes, cudaStream_t stream)
{
    return emulate_enqueue(stream, [=] { memset(memory, value, bytes); });
}
}
