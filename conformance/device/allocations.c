/* Allocations are counted: these functions stand before libc's, for the plugin too. Sanitizers have their own. */
#include <stdlib.h>

#include "conformance/device/harness.h"

long h_allocations;
#if !defined __SANITIZE_ADDRESS__ && !defined __SANITIZE_THREAD__
/* glibc's own, behind those here. NOLINTBEGIN(bugprone-reserved-identifier) */
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t n, size_t bytes);
void *__libc_realloc(void *p, size_t bytes);
void *__libc_memalign(size_t align, size_t bytes);
/* NOLINTEND(bugprone-reserved-identifier) */

void *malloc(size_t bytes)
{
    __atomic_add_fetch(&h_allocations, 1, __ATOMIC_RELAXED);
    return __libc_malloc(bytes);
}

void *calloc(size_t n, size_t bytes)
{
    __atomic_add_fetch(&h_allocations, 1, __ATOMIC_RELAXED);
    return __libc_calloc(n, bytes);
}

void *realloc(void *p, size_t bytes)
{
    __atomic_add_fetch(&h_allocations, 1, __ATOMIC_RELAXED);
    return __libc_realloc(p, bytes);
}

void *aligned_alloc(size_t align, size_t bytes)
{
    __atomic_add_fetch(&h_allocations, 1, __ATOMIC_RELAXED);
    return __libc_memalign(align, bytes);
}

int posix_memalign(void **p, size_t align, size_t bytes)
{
    *p = aligned_alloc(align, bytes);
    return *p ? 0 : 12; /* ENOMEM */
}
#endif
