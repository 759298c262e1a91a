/* What CUDA C++ adds to C++, for tests: kernels run on the CPU, a block after another, its threads as fibers
 * (block.cc).
 *
 * Threads of a block run one at a time, each until it waits for others; which goes next is random, so a missing
 * barrier shows as a wrong result with some seed (HEDDLE_EMULATE_SEED). Shared memory is full of NaN when a block
 * begins. */
#ifndef HEDDLE_EMULATE_CUDA_RUNTIME_H
#define HEDDLE_EMULATE_CUDA_RUNTIME_H

#include "cuda_runtime_api.h"
#include "matrix.h"
#include "queue.h"
#include "race.h"
#include <math.h>
#include <string.h>
#include <tuple>
#include <type_traits>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((unused))
#define __launch_bounds__(...)
#define __align__(n) alignas(n)
#define __grid_constant__

struct uint3 {
    unsigned x, y, z;
};
struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c)
    {
    }
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(8) int2 {
    int x, y;
};
struct alignas(16) int4 {
    int x, y, z, w;
};
static inline float2 make_float2(float x, float y)
{
    return {x, y};
}
static inline float4 make_float4(float x, float y, float z, float w)
{
    return {x, y, z, w};
}
static inline uint2 make_uint2(unsigned x, unsigned y)
{
    return {x, y};
}
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w)
{
    return {x, y, z, w};
}

/* ---- where this thread is */

struct emulate_place {
    uint3 thread, block;
    dim3 block_dim, grid_dim;
};
extern emulate_place emulate_here;
#define threadIdx (emulate_here.thread)
#define blockIdx (emulate_here.block)
#define blockDim (emulate_here.block_dim)
#define gridDim (emulate_here.grid_dim)
static constexpr int warpSize = 32;

/* ---- memory and launches: the words that kernels use in place of CUDA's own syntax */

/* The block's memory for this place in the code; `at` is one address a place. */
void *emulate_shared(const void *at, size_t bytes);
void *emulate_dynamic(void);

#define CU_SHARED(type, name, dims) \
    static char name##_place;       \
    typedef type name##_type dims;  \
    name##_type &name = *static_cast<name##_type *>(emulate_shared(&name##_place, sizeof(name##_type)))
#define CU_SHARED_DYNAMIC(type, name) type *name = static_cast<type *>(emulate_dynamic())

cudaError_t emulate_launch(const char *name, const void *kernel, dim3 grid, dim3 block, size_t shared,
                           cudaStream_t stream, std::function<void()> body);
/* What cudaFuncSetAttribute allowed: a launch that wants more fails, as on a GPU. */
cudaError_t emulate_allow(const void *kernel, size_t bytes);

template <class... P, class... A>
static inline cudaError_t emulate_call(const char *name, void (*kernel)(P...), dim3 grid, dim3 block, size_t shared,
                                       cudaStream_t stream, A &&...args)
{
    std::tuple<std::decay_t<P>...> kept(std::forward<A>(args)...);
    return emulate_launch(name, (const void *)kernel, grid, block, shared, stream, [=] { std::apply(kernel, kept); });
}
/* What <<<>>> and cudaPeekAtLastError are: an error of before is this launch's. */
#define CU_LAUNCH(kernel, grid, block, shared, stream, ...) \
    (emulate_call(#kernel, kernel, (grid), (block), (shared), (stream), __VA_ARGS__), cudaPeekAtLastError())

template <class F> static inline cudaError_t cu_allow_shared(F *kernel, size_t bytes)
{
    return emulate_allow((const void *)kernel, bytes);
}

/* ---- threads wait for one another */

void __syncthreads(void);
int __syncthreads_or(int predicate);
int __syncthreads_and(int predicate);
int __syncthreads_count(int predicate);
static inline void __threadfence(void)
{
}
static inline void __threadfence_block(void)
{
}

enum { EMULATE_EXCHANGE = 48 }; /* most bytes that a lane gives the others */
/* Gives the lanes of `mask` these bytes; what lane i gave is at [i * EMULATE_EXCHANGE]. Valid until the next
 * exchange. */
const unsigned char *emulate_exchange(unsigned mask, const void *value, size_t bytes);
unsigned emulate_lane(void);
unsigned emulate_thread(void); /* index in the block */

static inline void __syncwarp(unsigned mask = 0xffffffffu)
{
    emulate_exchange(mask, nullptr, 0);
}

template <class T> static inline T emulate_from(unsigned mask, T value, unsigned source)
{
    T got;
    const unsigned char *all = emulate_exchange(mask, &value, sizeof value);
    memcpy(&got, all + source % 32 * EMULATE_EXCHANGE, sizeof got);
    return got;
}
template <class T> static inline T __shfl_sync(unsigned mask, T v, int source, int width = 32)
{
    unsigned lane = emulate_lane();
    return emulate_from(mask, v, (lane & ~(unsigned)(width - 1)) | ((unsigned)source & (unsigned)(width - 1)));
}
template <class T> static inline T __shfl_xor_sync(unsigned mask, T v, int bits, int width = 32)
{
    unsigned lane = emulate_lane(), other = lane ^ (unsigned)bits;
    return emulate_from(mask, v, (other & ~(unsigned)(width - 1)) > lane ? lane : other);
}
template <class T> static inline T __shfl_up_sync(unsigned mask, T v, unsigned by, int width = 32)
{
    unsigned lane = emulate_lane();
    return emulate_from(mask, v, lane % (unsigned)width < by ? lane : lane - by);
}
template <class T> static inline T __shfl_down_sync(unsigned mask, T v, unsigned by, int width = 32)
{
    unsigned lane = emulate_lane();
    return emulate_from(mask, v, lane % (unsigned)width + by >= (unsigned)width ? lane : lane + by);
}
unsigned __ballot_sync(unsigned mask, int predicate);
static inline int __any_sync(unsigned mask, int predicate)
{
    return __ballot_sync(mask, predicate) != 0;
}
static inline int __all_sync(unsigned mask, int predicate)
{
    return __ballot_sync(mask, predicate) == mask;
}

/* ---- atomics: threads run one at a time */

#define EMULATE_ATOMIC __attribute__((no_sanitize("thread")))

template <class T> EMULATE_ATOMIC static inline T atomicAdd(T *p, T v)
{
    emulate_race_atomic(p, sizeof *p);
    T old = *p;
    *p = old + v;
    return old;
}
template <class T> EMULATE_ATOMIC static inline T atomicExch(T *p, T v)
{
    emulate_race_atomic(p, sizeof *p);
    T old = *p;
    *p = v;
    return old;
}
template <class T> EMULATE_ATOMIC static inline T atomicMax(T *p, T v)
{
    emulate_race_atomic(p, sizeof *p);
    T old = *p;
    *p = old < v ? v : old;
    return old;
}
template <class T> EMULATE_ATOMIC static inline T atomicMin(T *p, T v)
{
    emulate_race_atomic(p, sizeof *p);
    T old = *p;
    *p = v < old ? v : old;
    return old;
}
template <class T> EMULATE_ATOMIC static inline T atomicCAS(T *p, T expected, T v)
{
    emulate_race_atomic(p, sizeof *p);
    T old = *p;
    *p = old == expected ? v : old;
    return old;
}
/* Wraps as CUDA's: back to zero after `most`. */
EMULATE_ATOMIC static inline unsigned atomicInc(unsigned *p, unsigned most)
{
    emulate_race_atomic(p, sizeof *p);
    unsigned old = *p;
    *p = old >= most ? 0 : old + 1;
    return old;
}

/* ---- arithmetic */

template <class To, class From> static inline To emulate_cast(From from)
{
    To to;
    static_assert(sizeof to == sizeof from, "the same bits");
    memcpy(&to, &from, sizeof to);
    return to;
}
static inline float __uint_as_float(unsigned x)
{
    return emulate_cast<float>(x);
}
static inline unsigned __float_as_uint(float x)
{
    return emulate_cast<unsigned>(x);
}
static inline int __float_as_int(float x)
{
    return emulate_cast<int>(x);
}
static inline float __int_as_float(int x)
{
    return emulate_cast<float>(x);
}
static inline float rsqrtf(float x)
{
    return 1.0f / sqrtf(x);
}
static inline double rsqrt(double x)
{
    return 1.0 / sqrt(x);
}
#define __expf emulate_expf
#define __logf emulate_logf
#define __sincosf emulate_sincosf
static inline float emulate_expf(float x)
{
    return expf(x);
}
static inline float emulate_logf(float x)
{
    return logf(x);
}
static inline float __fdividef(float a, float b)
{
    return a / b;
}
static inline float __frcp_rn(float x)
{
    return 1.0f / x;
}
static inline void emulate_sincosf(float x, float *s, float *c)
{
    *s = sinf(x);
    *c = cosf(x);
}
static inline int __popc(unsigned x)
{
    return __builtin_popcount(x);
}
static inline int __ffs(int x)
{
    return __builtin_ffs(x);
}
static inline int __clz(int x)
{
    return x ? __builtin_clz((unsigned)x) : 32;
}
template <class T> static inline T __ldg(const T *p)
{
    return *p;
}
template <class A, class B> static inline std::common_type_t<A, B> min(A a, B b)
{
    return b < a ? b : a;
}
template <class A, class B> static inline std::common_type_t<A, B> max(A a, B b)
{
    return a < b ? b : a;
}

uint16_t emulate_to_bfloat(float x);
uint16_t emulate_to_half(float x);
float emulate_from_half(uint16_t x);
double emulate_from_fp8(uint8_t code, int mantissa_bits); /* 3: e4m3, 2: e5m2 */

#endif
