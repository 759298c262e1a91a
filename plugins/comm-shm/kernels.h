/* comm-shm/kernels: the arithmetic. dst[0..m-1] = src[0] op src[1] op ..., element by element, in the binary tree over
 * the sources that heddle/comm.h prescribes.
 *
 * fp16 and bf16 are summed in fp32 and rounded once, to nearest even. int32 and uint8 sums wrap; their averages are
 * formed from the exact sum and truncated. A maximum is NaN if any input is. Every dst gets the same bits. A dst may be
 * one of the srcs, whole; they overlap in no other way. */
#ifndef HD_COMM_SHM_KERNELS_H
#define HD_COMM_SHM_KERNELS_H

#include <stddef.h>
#include <stdint.h>

/* `stream`: write around the caches, for buffers larger than these. */
typedef void shm_reduce_fn(uint8_t *const *dst, int m, const uint8_t *const *src, int n, size_t count, int stream);
typedef void shm_copy_fn(uint8_t *dst, const uint8_t *src, size_t bytes);

struct shm_kernels {
    const char *name;
    shm_reduce_fn *reduce[8][4]; /* by HD_ dtype and HD_ redop; NULL: the reference's */
    shm_copy_fn *copy_stream;
    void (*fence)(void); /* after streaming stores, before anyone is told */
};

extern const struct shm_kernels shm_kernels_reference, shm_kernels_avx2, shm_kernels_avx512;

/* The best set that this processor runs, and the one with this name (NULL if it does not run here): for tests. */
const struct shm_kernels *shm_kernels_best(void);
const struct shm_kernels *shm_kernels_named(const char *name);
shm_reduce_fn *shm_kernel(const struct shm_kernels *set, uint32_t dtype, uint32_t redop);

#endif
