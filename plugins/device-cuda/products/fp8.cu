/* Operands of 16 bits as fp8, [batch outer k] with k's side by side, as cuBLASLt wants them on every GPU that has fp8.
 *
 * Two launches for both operands: blocks find the largest element of their share, then every block reduces those
 * shares, which gives all of them the same scale, and casts. Bytes an element: two reads of 2, a write of 1. Operands
 * that lie the other way are turned in tiles of shared memory. */
#include "kernels/kernel.cuh"
#include "products/fp8.h"

enum { THREADS = 256, PACK = 8, TILE = 64, PITCH = TILE + 4, WORDS = TILE / 4 };

/* ---- numbers */

struct e4m3 {
    static constexpr int MANTISSA = 3, BIAS = 7, TOP = 8; /* the largest: 1.75 2^TOP = 448 */
    static constexpr unsigned INF = 0x7f, NOT = 0x7f;
};
struct e5m2 {
    static constexpr int MANTISSA = 2, BIAS = 15, TOP = 15; /* 57344 */
    static constexpr unsigned INF = 0x7c, NOT = 0x7e;
};

/* To nearest even, saturating. Subnormals: added to a float whose last place is their step, they are rounded there. */
template <class F> CU_DEVICE unsigned round_to(float x)
{
    constexpr int DROP = 23 - F::MANTISSA;
    constexpr unsigned LARGEST = (unsigned)(127 + F::TOP) << 23 | 0x600000u;
    constexpr unsigned NORMAL = (unsigned)(128 - F::BIAS) << 23, MAGIC = (unsigned)(151 - F::BIAS - F::MANTISSA) << 23;
    unsigned bits = __float_as_uint(x), sign = bits >> 24 & 0x80u, v = bits & 0x7fffffffu;
    if (v >= 0x7f800000u)
        return sign | (v > 0x7f800000u ? F::NOT : F::INF);
    v = v < LARGEST ? v : LARGEST;
    if (v < NORMAL)
        return sign | (__float_as_uint(__uint_as_float(v) + __uint_as_float(MAGIC)) - MAGIC);
    v += (1u << (DROP - 1)) - 1 + (v >> DROP & 1);
    return sign | ((v >> DROP) - ((unsigned)(127 - F::BIAS) << F::MANTISSA));
}

/* Exponent of the scale: largest 2^e is at most the type's largest, and more than half of it. Both 2^e and 2^-e are
 * normal. */
template <class F> CU_DEVICE int exponent_for(float largest)
{
    unsigned bits = __float_as_uint(largest);
    int e = F::TOP - ((int)(bits >> 23) - 127) - ((bits & 0x7fffffu) > 0x600000u);
    return !bits ? 0 : e < 126 ? e : 126;
}

CU_DEVICE float power_of_two(int e)
{
    return __uint_as_float((unsigned)(e + 127) << 23);
}

/* ---- the largest */

/* Pack number p of the operand, counted as it lies. */
CU_DEVICE void read_pack(const cu_fp8_operand &x, uint32_t p, float (&v)[PACK])
{
    uint32_t length = x.turned ? x.outer : x.k, lines = x.turned ? x.k : x.outer, line = p / (length / PACK);
    int64_t at = line / lines * x.batch_stride + line % lines * x.ld + p % (length / PACK) * PACK;
    cu_get8(cu_in{x.from, x.dtype, x.wide}, at, at + PACK, v);
}

CU_DEVICE uint32_t packs_of(const cu_fp8_operand &x)
{
    return x.batch * x.outer * (x.k / PACK);
}

/* The largest finite element: those that are not finite show in the product. */
static __global__ void __launch_bounds__(THREADS) largest_kernel(cu_fp8_cast c)
{
    const cu_fp8_operand &x = c.of[blockIdx.y];
    float most = 0;
    for (uint32_t p = (uint32_t)cu_thread(), n = packs_of(x); p < n; p += (uint32_t)cu_threads()) {
        float v[PACK];
        read_pack(x, p, v);
#pragma unroll
        for (int j = 0; j < PACK; j++)
            most = fmaxf(most, fabsf(v[j]) < INFINITY ? fabsf(v[j]) : 0.0f);
    }
    most = cu_block_max(most);
    if (threadIdx.x == 0)
        c.largest[blockIdx.y * CU_FP8_PARTS + blockIdx.x] = most;
}

/* ---- casts */

CU_DEVICE float largest_of(const cu_fp8_cast &c)
{
    float most = 0;
    for (unsigned i = threadIdx.x; i < gridDim.x; i += THREADS)
        most = fmaxf(most, c.largest[blockIdx.y * CU_FP8_PARTS + i]);
    return cu_block_max(most);
}

template <class F> CU_DEVICE void cast_lines(const cu_fp8_operand &x, float scale)
{
    for (uint32_t p = (uint32_t)cu_thread(), n = packs_of(x); p < n; p += (uint32_t)cu_threads()) {
        float v[PACK];
        unsigned word[2] = {0, 0};
        read_pack(x, p, v);
#pragma unroll
        for (int j = 0; j < PACK; j++)
            word[j / 4] |= round_to<F>(v[j] * scale) << j % 4 * 8;
        reinterpret_cast<uint2 *>(x.to)[p] = make_uint2(word[0], word[1]);
    }
}

/* TILE k's by TILE outer's from (k0, o0) on; 16 divides both sizes, so packs and words are whole. */
template <class F>
CU_DEVICE void read_tile(const cu_fp8_operand &x, uint32_t b, uint32_t k0, uint32_t o0, float scale,
                         unsigned char (&tile)[TILE * PITCH])
{
    for (uint32_t i = threadIdx.x; i < TILE * TILE / PACK; i += THREADS) {
        uint32_t k = i / (TILE / PACK), o = i % (TILE / PACK) * PACK;
        float v[PACK];
        if (k0 + k >= x.k || o0 + o >= x.outer)
            continue;
        read_pack(x, (b * x.k + k0 + k) * (x.outer / PACK) + (o0 + o) / PACK, v);
#pragma unroll
        for (uint32_t j = 0; j < PACK; j++)
            tile[(o + j) * PITCH + k] = (unsigned char)round_to<F>(v[j] * scale);
    }
}

CU_DEVICE void write_tile(const cu_fp8_operand &x, uint32_t b, uint32_t k0, uint32_t o0,
                          unsigned char (&tile)[TILE * PITCH])
{
    for (uint32_t i = threadIdx.x; i < TILE * WORDS; i += THREADS) {
        uint32_t o = i / WORDS, k = i % WORDS * 4;
        if (k0 + k < x.k && o0 + o < x.outer)
            *reinterpret_cast<unsigned *>(x.to + ((int64_t)b * x.outer + o0 + o) * x.k + k0 + k) =
                *reinterpret_cast<const unsigned *>(&tile[o * PITCH + k]);
    }
}

template <class F> CU_DEVICE void cast_turned(const cu_fp8_operand &x, float scale, unsigned char (&tile)[TILE * PITCH])
{
    uint32_t across = (x.outer + TILE - 1) / TILE, down = (x.k + TILE - 1) / TILE;
    for (uint32_t t = blockIdx.x; t < x.batch * down * across; t += gridDim.x) {
        uint32_t b = t / (down * across), k0 = t / across % down * TILE, o0 = t % across * TILE;
        read_tile<F>(x, b, k0, o0, scale, tile);
        __syncthreads();
        write_tile(x, b, k0, o0, tile);
        __syncthreads();
    }
}

template <class F> CU_DEVICE void cast_as(const cu_fp8_cast &c, unsigned char (&tile)[TILE * PITCH])
{
    const cu_fp8_operand &x = c.of[blockIdx.y];
    int e = exponent_for<F>(largest_of(c));
    if (blockIdx.x == 0 && threadIdx.x == 0)
        c.scale[blockIdx.y * CU_FP8_SCALE] = power_of_two(-e);
    if (x.turned)
        cast_turned<F>(x, power_of_two(e), tile);
    else
        cast_lines<F>(x, power_of_two(e));
}

static __global__ void __launch_bounds__(THREADS, 6) cast_kernel(cu_fp8_cast c)
{
    struct alignas(4) tile_bytes {
        unsigned char at[TILE * PITCH];
    };
    CU_SHARED(tile_bytes, tile, [1]);
    if (c.of[blockIdx.y].type == CU_E5M2)
        cast_as<e5m2>(c, tile[0].at);
    else
        cast_as<e4m3>(c, tile[0].at);
}

/* Both kernels have the same grid: the second reads as many shares as the first has blocks. */
extern "C" int32_t cu_fp8_cast_launch(const struct hd_kernel *k, const struct cu_fp8_cast *c, cudaStream_t stream,
                                      struct hd_error *err)
{
    int64_t most = 0;
    for (int n = 0; n < 2; n++) {
        int64_t packs = (int64_t)c->of[n].batch * c->of[n].outer * (c->of[n].k / PACK);
        most = packs > most ? packs : most;
    }
    unsigned blocks = cu_blocks(k->device, most, THREADS);
    dim3 grid(blocks < CU_FP8_PARTS ? blocks : (unsigned)CU_FP8_PARTS, 2);
    cudaError_t rc = CU_LAUNCH(largest_kernel, grid, THREADS, 0, stream, *c);
    if (rc == cudaSuccess)
        rc = CU_LAUNCH(cast_kernel, grid, THREADS, 0, stream, *c);
    return cu_launched(k, rc, err);
}
