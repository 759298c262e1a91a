/* Choice of kernels by what the processor says of itself. */
#include "kernels.h"

#include <string.h>

#include "heddle/types.h"

static int runs_here(const struct shm_kernels *set)
{
#if defined(__x86_64__)
    if (set == &shm_kernels_avx512)
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512vl");
    if (set == &shm_kernels_avx2)
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
#endif
    return set == &shm_kernels_reference;
}

static const struct shm_kernels *const sets[] = {&shm_kernels_avx512, &shm_kernels_avx2, &shm_kernels_reference};

const struct shm_kernels *shm_kernels_best(void)
{
    for (size_t i = 0; i + 1 < sizeof sets / sizeof *sets; i++)
        if (runs_here(sets[i]))
            return sets[i];
    return &shm_kernels_reference;
}

const struct shm_kernels *shm_kernels_named(const char *name)
{
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++)
        if (strcmp(sets[i]->name, name) == 0 && runs_here(sets[i]))
            return sets[i];
    return NULL;
}

shm_reduce_fn *shm_kernel(const struct shm_kernels *set, uint32_t dtype, uint32_t redop)
{
    shm_reduce_fn *fn = set->reduce[dtype][redop];
    return fn ? fn : shm_kernels_reference.reduce[dtype][redop];
}
