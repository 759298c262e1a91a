/* Tensor cores and asynchronous copies, for cu_mma.cuh: matrix.cc. */
#ifndef HEDDLE_EMULATE_MATRIX_H
#define HEDDLE_EMULATE_MATRIX_H

#include <stdint.h>

/* One m16n8k16 of a whole warp; `widen` makes a float of 16 bits. Products are exact, sums are rounded once. */
void emulate_mma(float (*widen)(uint16_t), float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]);
/* Every lane gives the address of a row. */
void emulate_ldmatrix(uint32_t (&r)[4], const void *row, int transposed);
/* The copy happens when it is waited for, not before. */
void emulate_copy16(void *to, const void *from, int there);
void emulate_copy_commit(void);
void emulate_copy_wait(int groups);
/* At the end of a block: has any of its threads copies under way? */
int emulate_copies_left(void);

#endif
