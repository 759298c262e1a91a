/* Tensor cores and asynchronous copies, for kernels/mma.cuh: matrix.cc. */
#ifndef HEDDLE_EMULATE_MATRIX_H
#define HEDDLE_EMULATE_MATRIX_H

#include <stdint.h>

/* One m16n8k16 of a whole warp; `widen` makes a float of 16 bits. Products are exact, sums are rounded once. */
void emulate_mma(float (*widen)(uint16_t), float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]);
/* Every lane gives the address of a row. */
void emulate_ldmatrix(uint32_t (&r)[4], const void *row, int transposed);
/* The copy happens at once, or when it is waited for: chosen at random. */
void emulate_copy16(void *to, const void *from, int there);
void emulate_copy_commit(void);
void emulate_copy_wait(int groups);

/* A product of a warpgroup: c[n][4] = or += a b. a: four registers, or NULL: 64 rows in shared memory, by a
 * descriptor. b: by a descriptor, its 8 n rows, or, transposed, columns. */
struct emulate_group_product {
    float (*widen)(uint16_t);
    float *c;
    int n;
    const uint32_t *a;
    uint64_t a_at, b_at;
    int transposed, add;
};
/* Happens at once, or when it is waited for. What breaks the rules ends the process: a product that was not begun,
 * copies that no fence followed, sums that were written while it was under way. */
void emulate_wgmma(const emulate_group_product &product);
void emulate_wgmma_begin(void);
void emulate_wgmma_commit(void);
void emulate_wgmma_wait(int groups);
void emulate_fence_async(void);

/* At the end of a block: has any of its threads copies or products under way? */
int emulate_copies_left(void);
int emulate_products_left(void);

#endif
