/* Races are found, and what orders threads is known: compiled with -fsanitize=thread, whose calls emulate/race.cc
 * takes. */
#include "kernels/mma.cuh"
#include "tests/suite.h"
#include <check.h>

/* A thread writes an element of `tile` and reads that of another; what is between the two, or before the next write. */
enum between {
    BARRIER,
    WARP_BARRIER,
    OF_HALF_A_WARP,
    VOTE_OF_THE_BLOCK,
    RACES,
    NOTHING = RACES,
    SHUFFLE,
    VOTE,
    ONLY_A_WARP,
    WRONG_HALF,
    WRITTEN_AGAIN,
    KINDS
};

static __global__ void exchange(float *y, int between)
{
    CU_SHARED(float, tile, [64]);
    int me = (int)threadIdx.x, other = between == ONLY_A_WARP ? me ^ 32 : between == WRONG_HALF ? me ^ 16 : me ^ 1;
    tile[me] = (float)me;
    if (between == BARRIER || between == WRITTEN_AGAIN)
        __syncthreads();
    if (between == WARP_BARRIER || between == ONLY_A_WARP)
        __syncwarp();
    if (between == OF_HALF_A_WARP || between == WRONG_HALF)
        __syncwarp(me % 32 < 16 ? 0xffffu : 0xffff0000u);
    if (between == VOTE_OF_THE_BLOCK)
        __syncthreads_or(me);
    if (between == SHUFFLE)
        __shfl_xor_sync(0xffffffffu, me, 1);
    if (between == VOTE)
        __any_sync(0xffffffffu, me);
    y[me] = tile[other];
    if (between == WRITTEN_AGAIN)
        tile[me] = 0;
}

/* Copies of a thread are there for it when it has waited, for others behind a barrier. */
static __global__ void copied(float *y, const float *x, int barrier)
{
    CU_SHARED(float4, tile, [32]);
    int me = (int)threadIdx.x;
    cu_copy16(&tile[me], x + 4 * me, 1);
    cu_copy_commit();
    cu_copy_wait<0>();
    if (barrier)
        __syncwarp();
    y[me] = tile[me ^ 1].x;
}

/* The 8 rows of 16 bytes that another lane has written. */
static __global__ void loaded(float *y, int barrier)
{
    CU_SHARED(uint4, tile, [32]);
    int me = (int)threadIdx.x;
    uint32_t r[4];
    tile[me] = make_uint4((unsigned)me, 0, 0, 0);
    if (barrier)
        __syncwarp();
    cu_ldmatrix(r, &tile[me]);
    tile[me] = make_uint4(0, 0, 0, 0); /* all rows have been read */
    y[me] = (float)r[0];
}

enum { OWN, SHARED_BY_BLOCKS, COUNTED, COUNTED_AND_READ };

static __global__ void blocks(float *y, unsigned *count, int how)
{
    if (how == OWN)
        y[blockIdx.x] = 1;
    if (how == SHARED_BY_BLOCKS)
        y[0] = 1;
    if (how == COUNTED || how == COUNTED_AND_READ)
        atomicAdd(count, 1u);
    if (how == COUNTED_AND_READ)
        y[blockIdx.x] = (float)*count;
}

static cudaStream_t stream;
static float *memory; /* of the device, 256 floats */

static void begin(void)
{
    void *p;
    ck_assert_int_eq(cudaMalloc(&p, 256 * sizeof *memory), cudaSuccess);
    ck_assert_int_eq(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, 0), cudaSuccess);
    ck_assert_int_eq(cudaMemsetAsync(p, 0, 256 * sizeof *memory, stream), cudaSuccess);
    memory = static_cast<float *>(p);
}

static void finish(void)
{
    ck_assert_int_eq(cudaStreamSynchronize(stream), cudaSuccess);
}

#define RUN(kernel, grid, block, ...)                                                              \
    ck_assert_int_eq(CU_LAUNCH(kernel, grid, block, 0, stream, memory, __VA_ARGS__), cudaSuccess); \
    finish()

/* Many orders of threads: none of them is a race. */
START_TEST(ordered_threads_do_not_race)
{
    for (int i = 0; i < 8; i++) {
        RUN(exchange, 1, 64, _i);
        RUN(exchange, 1, 64, _i); /* launches are ordered */
    }
}
END_TEST

START_TEST(unordered_threads_race)
{
    RUN(exchange, 1, 64, _i);
}
END_TEST

START_TEST(copies_behind_a_barrier_do_not_race)
{
    for (int i = 0; i < 8; i++) {
        RUN(copied, 1, 32, memory + 128, 1);
        RUN(loaded, 1, 32, 1);
    }
}
END_TEST

START_TEST(copies_without_a_barrier_race)
{
    RUN(copied, 1, 32, memory + 128, 0);
}
END_TEST

START_TEST(ldmatrix_without_a_barrier_races)
{
    RUN(loaded, 1, 32, 0);
}
END_TEST

START_TEST(blocks_with_elements_of_their_own_do_not_race)
{
    RUN(blocks, 8, 1, reinterpret_cast<unsigned *>(memory + 255), OWN);
    RUN(blocks, 8, 32, reinterpret_cast<unsigned *>(memory + 255), COUNTED);
}
END_TEST

START_TEST(blocks_race)
{
    RUN(blocks, 8, 1, reinterpret_cast<unsigned *>(memory + 255), SHARED_BY_BLOCKS);
}
END_TEST

START_TEST(atomics_and_plain_reads_race)
{
    RUN(blocks, 8, 1, reinterpret_cast<unsigned *>(memory + 255), COUNTED_AND_READ);
}
END_TEST

int main(void)
{
    enum { ABORTS = 6 };
    TCase *tests = tcase_create("race");
    tcase_add_checked_fixture(tests, begin, NULL);
    tcase_add_loop_test(tests, ordered_threads_do_not_race, 0, RACES);
    tcase_add_loop_test_raise_signal(tests, unordered_threads_race, ABORTS, RACES, KINDS);
    tcase_add_test(tests, copies_behind_a_barrier_do_not_race);
    tcase_add_test_raise_signal(tests, copies_without_a_barrier_race, ABORTS);
    tcase_add_test_raise_signal(tests, ldmatrix_without_a_barrier_races, ABORTS);
    tcase_add_test(tests, blocks_with_elements_of_their_own_do_not_race);
    tcase_add_test_raise_signal(tests, blocks_race, ABORTS);
    tcase_add_test_raise_signal(tests, atomics_and_plain_reads_race, ABORTS);
    return suite_run_case("race", tests);
}
