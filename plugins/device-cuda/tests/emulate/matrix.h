/* Tensor cores and asynchronous copies, for kernels/mma.cuh: matrix.cc. */
#ifndef HEDDLE_EMULATE_MATRIX_H
#define HEDDLE_EMULATE_MATRIX_H

#include <stdint.h>

/* The floats that all patterns of T's 16 bits stand for. */
template <class T> struct emulate_table {
    float of[65536];
    emulate_table(void)
    {
        for (uint32_t x = 0; x < 65536; x++)
            of[x] = cu_float(T{(uint16_t)x});
    }
};
template <class T> const float *emulate_floats(void)
{
    static const emulate_table<T> table;
    return table.of;
}

/* One m16n8k16 of a whole warp. Products are exact, sums are rounded once. */
void emulate_mma(const float *floats, float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]);
/* Every lane gives the address of a row. */
void emulate_ldmatrix(uint32_t (&r)[4], const void *row, int transposed);
/* The copy happens at once, or when it is waited for: chosen at random. */
void emulate_copy16(void *to, const void *from, int there);
void emulate_copy_commit(void);
void emulate_copy_wait(int groups);

/* A product of a warpgroup: c[n][4] = or += a b. a: four registers, or NULL: 64 rows in shared memory, by a
 * descriptor. b: by a descriptor, its 8 n rows, or, transposed, columns. */
struct emulate_group_product {
    const float *floats;
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
