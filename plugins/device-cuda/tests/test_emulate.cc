/* The emulator finds what it is made to find, and its tensor cores multiply. */
#include "kernels/wgmma.cuh"
#include "tests/suite.h"
#include <check.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

/* ---- kernels with and without a mistake */

static __global__ void reverse(float *y, const float *x, int barrier)
{
    CU_SHARED(float, tile, [64]);
    tile[threadIdx.x] = x[threadIdx.x];
    if (barrier)
        __syncthreads();
    y[threadIdx.x] = tile[63 - threadIdx.x];
}

/* Sums over the block, one after another. Without the barrier a warp that is two shuffles of warps ahead of another
 * writes what that has not read. */
static __global__ void sums_in_a_row(float *y, const float *x, int barrier)
{
    CU_SHARED(float, partial, [4]);
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    for (int i = 0; i < 4; i++) {
        float v = cu_warp_sum(x[threadIdx.x + 128 * i]);
        if (barrier)
            __syncthreads();
        if (lane == 0)
            partial[warp] = v;
        __syncthreads();
        y[threadIdx.x + 128 * i] = cu_warp_sum(lane < 4 ? partial[lane] : 0.0f);
    }
}

static __global__ void much_shared(void)
{
    CU_SHARED(float, tile, [10 << 10]);
    CU_SHARED_DYNAMIC(float, room);
    room[threadIdx.x] = tile[threadIdx.x];
}

static __global__ void half_waits(void)
{
    if (threadIdx.x < 16)
        __shfl_xor_sync(0xffffffffu, 1, 1);
}

static __global__ void sums(float *y, const float *x, int n)
{
    float v = 0;
    for (int i = (int)threadIdx.x; i < n; i += (int)blockDim.x)
        v += x[i];
    v = cu_block_sum(v);
    float most = cu_block_max(threadIdx.x < (unsigned)n ? x[threadIdx.x] : -1e30f);
    if (threadIdx.x == 0) {
        y[0] = v;
        y[1] = most;
    }
}

/* c = a b, 16 x 16 by 16 x 8: a by rows through ldmatrix, b by rows through the transposed one. */
template <class T> static __global__ void product(float *c, const T *a, const T *b)
{
    CU_SHARED(cu_pack16<T>, tile_a, [32]);
    CU_SHARED(cu_pack16<T>, tile_b, [32]);
    int lane = (int)threadIdx.x, g = lane / 4, t = lane % 4;
    uint32_t ra[4], rb[4];
    float sum[4] = {};
    cu_copy16(&tile_a[lane], a + 8 * lane, 1);
    cu_copy16(&tile_b[lane], b + 8 * (lane % 16), lane < 16);
    cu_copy_commit();
    cu_copy_wait<0>();
    __syncwarp();
    cu_ldmatrix(ra, &tile_a[lane % 16 * 2 + lane / 16]);
    cu_ldmatrix_trans(rb, &tile_b[lane]);
    uint32_t b_registers[2] = {rb[0], rb[1]};
    cu_mma<T>(sum, ra, b_registers);
    for (int i = 0; i < 4; i++)
        c[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = sum[i];
}

/* What a kernel of warpgroups may do wrong. */
enum wgmma_mistake { NONE, NOT_BEGUN, NOT_FENCED, FENCED_LATE, SUMS_TOUCHED, NOT_WAITED };

/* c = a b', 64 x 128 by rows of 128 elements, then d = (what of c is rounded) b, 64 x 128: both ways of naming an
 * operand, panels beside panels. */
template <class T> static __global__ void group_products(float *c, float *d, const T *a, const T *b, int mistake)
{
    CU_SHARED_DYNAMIC(cu_chunk, base);
    cu_chunk *room = cu_panels(base + 1), *left = room, *right = room + 64 * 16;
    int thread = (int)threadIdx.x, row = thread / 32 * 16 + thread % 32 / 4;
    float sums[16][4], next[16][4] = {};
    uint32_t narrow[16][2];
    cu_fetch_panels<128, 64, 128>(left, (const char *)a, 256, 64, 16);
    cu_fetch_panels<128, 128, 128>(right, (const char *)b, 256, 120, 15); /* the last rows and columns are zeros */
    cu_copy_commit();
    cu_copy_wait<0>();
    if (mistake != NOT_FENCED && mistake != FENCED_LATE)
        cu_fence_async();
    __syncthreads();
    if (mistake == FENCED_LATE) /* the copies of a thread that has not come so far */
        cu_fence_async();
    if (mistake != NOT_BEGUN)
        cu_wgmma_begin();
    cu_wgmma_rows<T, 128, 64, 128>(sums, left, right);
    cu_wgmma_commit();
    cu_wgmma_wait<0>();
    for (int n = 0; n < 16; n++)
        for (int half = 0; half < 2; half++)
            narrow[n][half] = cu_pair<T>(sums[n][2 * half], sums[n][2 * half + 1]);
    cu_wgmma_begin();
    cu_wgmma_columns<T, 128, 128, 128>(next, narrow, right);
    cu_wgmma_commit();
    if (mistake == SUMS_TOUCHED)
        for (int n = 0; n < 16; n++)
            next[n][0] += 1;
    if (mistake != NOT_WAITED)
        cu_wgmma_wait<0>();
    for (int n = 0; n < 16; n++)
        for (int i = 0; i < 4; i++) {
            c[(row + i / 2 * 8) * 128 + 8 * n + thread % 4 * 2 + i % 2] = sums[n][i];
            d[(row + i / 2 * 8) * 128 + 8 * n + thread % 4 * 2 + i % 2] = next[n][i];
        }
}

/* ---- helpers */

static std::vector<cudaStream_t> streams;

static cudaStream_t a_stream(void)
{
    cudaStream_t s;
    ck_assert_int_eq(cudaStreamCreateWithPriority(&s, cudaStreamNonBlocking, 0), cudaSuccess);
    streams.push_back(s);
    return s;
}

static void give_back(void)
{
    for (cudaStream_t s : streams)
        cudaStreamDestroy(s);
    streams = {};
}

/* One test dies of a segmentation fault, which AddressSanitizer would make another exit of. */
extern "C" __attribute__((visibility("default"))) const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
    return "handle_segv=0";
}

template <class T> static T *on_device(const std::vector<T> &host, cudaStream_t s)
{
    void *p;
    ck_assert_int_eq(cudaMalloc(&p, host.size() * sizeof(T)), cudaSuccess);
    ck_assert_int_eq(cudaMemcpyAsync(p, host.data(), host.size() * sizeof(T), cudaMemcpyDefault, s), cudaSuccess);
    return static_cast<T *>(p);
}

template <class T> static std::vector<T> to_host(const T *device, size_t n, cudaStream_t s)
{
    std::vector<T> host(n);
    ck_assert_int_eq(cudaMemcpyAsync(host.data(), device, n * sizeof(T), cudaMemcpyDefault, s), cudaSuccess);
    return host;
}

static std::vector<float> counted(size_t n)
{
    std::vector<float> x(n);
    for (size_t i = 0; i < n; i++)
        x[i] = (float)((int)(i * 37 % 101) - 50) / 16;
    return x;
}

static int reversed_right(int barrier)
{
    cudaStream_t s = a_stream();
    std::vector<float> x = counted(64);
    float *in = on_device(x, s), *out = on_device(x, s);
    ck_assert_int_eq(CU_LAUNCH(reverse, 1, 64, 0, s, out, in, barrier), cudaSuccess);
    std::vector<float> y = to_host(out, 64, s);
    int right = 1;
    for (size_t i = 0; i < 64; i++)
        right &= y[i] == x[63 - i];
    return right;
}

/* ---- tests */

START_TEST(missing_barrier_shows)
{
    int wrong = 0;
    for (int i = 0; i < 8; i++) {
        ck_assert(reversed_right(1));
        wrong += !reversed_right(0);
    }
    ck_assert_int_eq(wrong, 8);
}
END_TEST

static int sums_are_right(int barrier)
{
    cudaStream_t s = a_stream();
    std::vector<float> x = counted(512);
    float *in = on_device(x, s), *out = on_device(x, s);
    ck_assert_int_eq(CU_LAUNCH(sums_in_a_row, 1, 128, 0, s, out, in, barrier), cudaSuccess);
    std::vector<float> y = to_host(out, 512, s);
    int right = 1;
    for (size_t i = 0; i < 4; i++) {
        float want = 0; /* exact: multiples of 1/16 */
        for (size_t j = 0; j < 128; j++)
            want += x[128 * i + j];
        for (size_t j = 0; j < 128; j++)
            right &= y[128 * i + j] == want;
    }
    return right;
}

/* Whatever threads do between two barriers: warps are far apart then, too. */
START_TEST(barrier_that_only_a_warp_far_ahead_misses_shows)
{
    int wrong = 0;
    for (int i = 0; i < 16; i++) {
        ck_assert(sums_are_right(1));
        wrong += !sums_are_right(0);
    }
    ck_assert_int_gt(wrong, 4);
}
END_TEST

START_TEST(shuffle_that_not_all_reach_ends_the_process)
{
    cudaStream_t s = a_stream();
    emulate_call("half_waits", half_waits, 1, 32, 0, s);
    cudaStreamSynchronize(s);
}
END_TEST

/* 40 KiB and 16 more: static and dynamic memory share 48 KiB where a kernel has not asked for more. */
START_TEST(too_much_shared_memory_ends_the_process)
{
    cudaStream_t s = a_stream();
    ck_assert_int_eq(emulate_call("much_shared", much_shared, 1, 32, 8 << 10, s), cudaSuccess);
    ck_assert_int_eq(cudaStreamSynchronize(s), cudaSuccess);
    emulate_call("much_shared", much_shared, 1, 32, 16 << 10, s);
    cudaStreamSynchronize(s);
}
END_TEST

START_TEST(host_cannot_touch_device_memory)
{
    void *p;
    ck_assert_int_eq(cudaMalloc(&p, 64), cudaSuccess);
    *static_cast<volatile char *>(p) = 1;
}
END_TEST

START_TEST(block_is_reduced)
{
    cudaStream_t s = a_stream();
    for (unsigned threads = 32; threads <= 1024; threads *= 2) {
        std::vector<float> x = counted(1000), y(2);
        float *in = on_device(x, s), *out = on_device(y, s), want = 0, most = x[0];
        for (float v : x)
            want += v;
        for (size_t i = 0; i < 1000 && i < threads; i++)
            most = fmaxf(most, x[i]);
        ck_assert_int_eq(CU_LAUNCH(sums, 1, threads, 0, s, out, in, 1000), cudaSuccess);
        y = to_host(out, 2, s);
        ck_assert_float_eq_tol(y[0], want, 1e-3);
        ck_assert_float_eq(y[1], most);
    }
}
END_TEST

template <class T> static void check_product(void)
{
    cudaStream_t s = a_stream();
    std::vector<float> x = counted(256), y = counted(384);
    std::vector<T> a(256), b(128);
    for (size_t i = 0; i < 256; i++)
        a[i] = cu_to<T>(x[i]);
    for (size_t i = 0; i < 128; i++)
        b[i] = cu_to<T>(y[i + 200]);
    T *da = on_device(a, s), *db = on_device(b, s);
    float *dc = on_device(std::vector<float>(128), s);
    ck_assert_int_eq(CU_LAUNCH(product<T>, 1, 32, 0, s, dc, da, db), cudaSuccess);
    std::vector<float> c = to_host(dc, 128, s);
    for (size_t i = 0; i < 128; i++) {
        float want = 0;
        for (size_t k = 0; k < 16; k++)
            want += x[i / 8 * 16 + k] * y[200 + k * 8 + i % 8];
        ck_assert_float_eq_tol(c[i], want, 1e-4);
    }
}

START_TEST(warp_multiplies_matrices)
{
    check_product<cu_bf16>();
    check_product<cu_f16>();
}
END_TEST

enum { GROUP_SHARED = 64 * 256 + 128 * 256 + 2048 };

template <class T> static void check_group(int mistake)
{
    cudaStream_t s = a_stream();
    std::vector<float> x = counted(64 * 128), y = counted(128 * 128);
    std::vector<T> a(x.size()), b(y.size());
    for (size_t i = 0; i < x.size(); i++)
        a[i] = cu_to<T>(x[i]);
    for (size_t i = 0; i < y.size(); i++) {
        y[i] = i / 128 < 120 && i % 128 < 120 ? y[i] / 8 : 0;
        b[i] = cu_to<T>(y[i]);
    }
    T *da = on_device(a, s), *db = on_device(b, s);
    float *dc = on_device(std::vector<float>(x.size()), s), *dd = on_device(std::vector<float>(x.size()), s);
    ck_assert_int_eq(cu_allow_shared(group_products<T>, GROUP_SHARED), cudaSuccess);
    ck_assert_int_eq(CU_LAUNCH(group_products<T>, 1, 128, GROUP_SHARED, s, dc, dd, da, db, mistake), cudaSuccess);
    std::vector<float> c = to_host(dc, x.size(), s), d = to_host(dd, x.size(), s);
    for (size_t i = 0; i < x.size(); i++) {
        float want = 0, next = 0;
        for (size_t k = 0; k < 128; k++) {
            want += x[i / 128 * 128 + k] * y[i % 128 * 128 + k];
            next += cu_float(cu_to<T>(c[i / 128 * 128 + k])) * y[k * 128 + i % 128];
        }
        ck_assert_float_eq_tol(c[i], want, 1e-3);
        ck_assert_float_eq_tol(d[i], next, 1e-2);
    }
}

START_TEST(warpgroup_multiplies_panels)
{
    for (int i = 0; i < 4; i++) {
        check_group<cu_bf16>(NONE);
        check_group<cu_f16>(NONE);
    }
}
END_TEST

/* On a GPU they would be wrong sometimes. */
START_TEST(mistakes_of_warpgroups_end_the_process)
{
    check_group<cu_bf16>(NOT_BEGUN + _i);
}
END_TEST

/* Work of two streams runs in either order, unless an event says which. */
START_TEST(streams_run_apart_and_events_order_them)
{
    int first[2] = {0, 0};
    for (int i = 0; i < 64; i++) {
        cudaStream_t a = a_stream(), b = a_stream();
        cudaEvent_t e;
        int at = 0, seen = -1, ordered = -1;
        cudaEventCreateWithFlags(&e, 0);
        emulate_enqueue(a, [&] { at = 1; });
        emulate_enqueue(b, [&] { seen = at; });
        cudaEventRecord(e, a);
        cudaStreamWaitEvent(b, e, 0);
        emulate_enqueue(b, [&] { ordered = at; });
        ck_assert_int_eq(at, 0); /* nothing has run */
        ck_assert_int_eq(cudaDeviceSynchronize(), cudaSuccess);
        ck_assert_int_eq(ordered, 1);
        first[seen]++;
        cudaEventDestroy(e);
    }
    ck_assert_int_gt(first[0], 0);
    ck_assert_int_gt(first[1], 0);
}
END_TEST

static cudaError_t capture(cudaStream_t a, cudaStream_t b, int *count, int joins, cudaGraph_t *graph)
{
    cudaEvent_t fork, join;
    cudaEventCreateWithFlags(&fork, 0);
    cudaEventCreateWithFlags(&join, 0);
    ck_assert_int_eq(cudaStreamBeginCapture(a, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    emulate_enqueue(a, [=] { ++*count; });
    cudaEventRecord(fork, a);
    cudaStreamWaitEvent(b, fork, 0);
    emulate_enqueue(b, [=] { *count *= 2; });
    cudaEventRecord(join, b);
    if (joins) {
        cudaStreamWaitEvent(a, join, 0);
        emulate_enqueue(a, [=] { *count += 100; });
    }
    cudaError_t rc = cudaStreamEndCapture(a, graph);
    cudaEventDestroy(fork);
    cudaEventDestroy(join);
    return rc;
}

START_TEST(graph_runs_as_often_as_it_is_launched)
{
    cudaStream_t a = a_stream(), b = a_stream();
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    int count = 0;
    ck_assert_int_eq(capture(a, b, &count, 1, &graph), cudaSuccess);
    ck_assert_int_eq(count, 0);
    ck_assert_int_eq(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(cudaGraphLaunch(exec, a), cudaSuccess);
    ck_assert_int_eq(cudaStreamSynchronize(a), cudaSuccess);
    ck_assert_int_eq(count, ((0 + 1) * 2 + 100 + 1) * 2 + 100);
    ck_assert_int_eq(capture(a, b, &count, 0, &graph), cudaErrorStreamCaptureUnjoined);
    ck_assert_int_eq(cudaStreamBeginCapture(a, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    ck_assert_int_eq(cudaStreamSynchronize(a), cudaErrorStreamCaptureUnsupported);
    ck_assert_int_eq(cudaStreamEndCapture(a, &graph), cudaErrorStreamCaptureInvalidated);
    cudaGraphExecDestroy(exec);
}
END_TEST

/* What a process says that is forked here and asks for GPUs. */
static int asked_by_a_child(void)
{
    int status = 0, count;
    pid_t child = fork();
    if (child == 0)
        _exit(cudaGetDeviceCount(&count));
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

START_TEST(driver_runs_in_one_process)
{
    int count;
    ck_assert_int_eq(asked_by_a_child(), cudaSuccess);
    ck_assert_int_eq(cudaGetDeviceCount(&count), cudaSuccess);
    ck_assert_int_eq(asked_by_a_child(), cudaErrorInitializationError);
}
END_TEST

/* ---- the plugin's words for CUDA's codes */

START_TEST(codes_become_heddles)
{
    static const struct {
        cudaError_t rc;
        int32_t code;
    } rows[] = {
        {cudaSuccess, HD_OK},
        {cudaErrorMemoryAllocation, HD_E_NOMEM},
        {cudaErrorInvalidValue, HD_E_INVALID},
        {cudaErrorInvalidConfiguration, HD_E_INVALID},
        {cudaErrorNotSupported, HD_E_UNSUPPORTED},
        {cudaErrorIllegalAddress, HD_E_IO},
        {cudaErrorLaunchFailure, HD_E_IO},
    };
    struct hd_error err = {};
    err.struct_size = sizeof err;
    for (const auto &row : rows)
        ck_assert_int_eq(cu_fail(&err, row.rc, NULL, "calling"), row.code);
    for (int rc = cudaErrorStreamCaptureUnsupported; rc <= cudaErrorStreamCaptureWrongThread; rc++)
        ck_assert_int_eq(cu_fail(&err, (cudaError_t)rc, NULL, "capturing"), HD_E_UNSUPPORTED);
    ck_assert_int_eq(err.scope, HD_SCOPE_OP);
    ck_assert_str_eq(err.message, "capturing: cudaErrorStreamCaptureWrongThread (cudaErrorStreamCaptureWrongThread)");
}
END_TEST

/* After these nothing runs any more in the process. */
START_TEST(some_codes_end_the_process)
{
    static const cudaError_t all[] = {cudaErrorECCUncorrectable,   cudaErrorIllegalAddress,
                                      cudaErrorLaunchTimeout,      cudaErrorAssert,
                                      cudaErrorHardwareStackError, cudaErrorIllegalInstruction,
                                      cudaErrorMisalignedAddress,  cudaErrorInvalidAddressSpace,
                                      cudaErrorInvalidPc,          cudaErrorLaunchFailure};
    struct hd_error err = {};
    err.struct_size = sizeof err;
    for (cudaError_t rc : all) {
        ck_assert_int_eq(cu_fail(&err, rc, NULL, "launching"), HD_E_IO);
        ck_assert_int_eq(err.scope, HD_SCOPE_PROCESS);
        ck_assert_int_eq(err.native, rc);
    }
}
END_TEST

/* A launch finds an error of before, unless it was told. */
START_TEST(errors_are_told_once)
{
    cudaStream_t s = a_stream();
    float *on = on_device(counted(64), s);
    void *p;
    ck_assert_int_eq(cudaMalloc(&p, (size_t)1 << 60), cudaErrorMemoryAllocation);
    ck_assert_int_eq(CU_LAUNCH(reverse, 1, 64, 0, s, on, on, 1), cudaErrorMemoryAllocation);
    ck_assert_int_eq(cu_fail(NULL, cudaErrorMemoryAllocation, NULL, "memory"), HD_E_NOMEM);
    ck_assert_int_eq(CU_LAUNCH(reverse, 1, 64, 0, s, on, on, 1), cudaSuccess);
}
END_TEST

int main(void)
{
    TCase *tests = tcase_create("emulate");
    tcase_add_checked_fixture(tests, NULL, give_back);
    tcase_add_test(tests, missing_barrier_shows);
    tcase_add_test(tests, barrier_that_only_a_warp_far_ahead_misses_shows);
    tcase_add_test_raise_signal(tests, shuffle_that_not_all_reach_ends_the_process, 6);
    tcase_add_test_raise_signal(tests, too_much_shared_memory_ends_the_process, 6);
    tcase_add_test_raise_signal(tests, host_cannot_touch_device_memory, 11);
    tcase_add_test(tests, block_is_reduced);
    tcase_add_test(tests, warp_multiplies_matrices);
    tcase_add_test(tests, warpgroup_multiplies_panels);
    tcase_add_loop_test_raise_signal(tests, mistakes_of_warpgroups_end_the_process, 6, 0, NOT_WAITED);
    tcase_add_test(tests, streams_run_apart_and_events_order_them);
    tcase_add_test(tests, graph_runs_as_often_as_it_is_launched);
    tcase_add_test(tests, driver_runs_in_one_process);
    tcase_add_test(tests, codes_become_heddles);
    tcase_add_test(tests, some_codes_end_the_process);
    tcase_add_test(tests, errors_are_told_once);
    return suite_run_case("emulate", tests);
}
