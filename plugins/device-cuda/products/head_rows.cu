/* Cross-entropy of rows of logits and, in place, its gradient: scale (softmax(z) - onehot). A block a row; the largest
 * logit and the sum come from one pass (Milakov and Gimelshein, arXiv 1805.02867), the gradient from a second: out of
 * shared memory where two blocks of a multiprocessor have room for their rows, else out of the cache. Exponentials are
 * powers of two: log2 e is folded into the sum that they are of. */
#include "kernels/kernel.cuh"
#include "products/head.h"

enum { THREADS = 512, AHEAD = 4 }; /* at most; packs of 8 logits that a thread has on their way */
enum { BESIDE = 2048 };            /* bytes of shared memory that sums and CUDA itself want */

/* sum 2^(z log2 e - shift) over what was seen, shift = most log2 e. */
struct online {
    float most, shift, sum;
};

/* 8 logits as they lie in memory. */
template <class T> struct pack {
    cu_pack16<T> raw[sizeof(T) / 2];
};

template <class T> CU_DEVICE void fetch(pack<T> &p, const T *z)
{
#pragma unroll
    for (int j = 0; j < (int)sizeof(T) / 2; j++)
        p.raw[j] = reinterpret_cast<const cu_pack16<T> *>(z)[j];
}

template <class T> CU_DEVICE void widen(float (&v)[8], const pack<T> &p)
{
#pragma unroll
    for (int j = 0; j < 8; j++)
        v[j] = cu_float(p.raw[j * sizeof(T) / 16].at[j % (16 / sizeof(T))]);
}

CU_DEVICE void rise(online &o, float most)
{
    if (most > o.most) {
        float shift = most * CU_LOG2E;
        o.sum *= cu_exp2(o.shift - shift);
        o.most = most;
        o.shift = shift;
    }
}

/* The first n: 8, or what is left of a row. */
CU_DEVICE void see(online &o, const float (&z)[8], int n)
{
    float most = o.most;
#pragma unroll
    for (int j = 0; j < 8; j++)
        most = j < n ? fmaxf(most, z[j]) : most;
    rise(o, most);
    float shift = o.most == -INFINITY ? 0 : o.shift; /* -Inf alone so far: less itself it would be NaN */
#pragma unroll
    for (int j = 0; j < 8; j++)
        o.sum += j < n ? cu_exp2(z[j] * CU_LOG2E - shift) : 0.0f;
}

/* A copy of 8 logits, where there is to be one. */
template <class T> CU_DEVICE void keep(T *kept, int at, const pack<T> &p)
{
    if (kept)
#pragma unroll
        for (int j = 0; j < (int)sizeof(T) / 2; j++)
            reinterpret_cast<cu_pack16<T> *>(kept + 8 * (int64_t)at)[j] = p.raw[j];
}

/* f(logits, their pack, how many of them are there) for a thread's packs of a row of v, with AHEAD of them read before
 * the first is used. All go to `kept`, too, unless that is NULL: a thread that reads it again finds its own there. */
template <class T, class F> CU_DEVICE void for_packs(const T *row, T *kept, int v, F f)
{
    int whole = v / 8, step = blockDim.x, at = threadIdx.x;
    float z[8];
    for (; at + (AHEAD - 1) * step < whole; at += AHEAD * step) {
        pack<T> on_their_way[AHEAD];
#pragma unroll
        for (int k = 0; k < AHEAD; k++)
            fetch(on_their_way[k], row + 8 * (int64_t)(at + k * step));
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            widen(z, on_their_way[k]);
            f(z, at + k * step, 8);
            keep(kept, at + k * step, on_their_way[k]);
        }
    }
    for (; at < whole; at += step) {
        pack<T> one;
        fetch(one, row + 8 * (int64_t)at);
        widen(z, one);
        f(z, at, 8);
        keep(kept, at, one);
    }
    if (at == whole && v % 8) {
#pragma unroll
        for (int j = 0; j < 8; j++) {
            z[j] = j < v % 8 ? cu_float(row[8 * (int64_t)at + j]) : 0.0f;
            if (kept && j < v % 8)
                kept[8 * (int64_t)at + j] = row[8 * (int64_t)at + j];
        }
        f(z, at, v % 8);
    }
}

/* KEEPS: shared memory has room for a row. */
template <class T, int KEEPS> static __global__ void __launch_bounds__(THREADS, 2) rows_kernel(cu_head_rows a)
{
    CU_SHARED_DYNAMIC(T, memory);
    T *kept = KEEPS ? memory : nullptr;
    float scale = (float)(a.scale * (a.seed ? *a.seed : 1.0));
    for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
        T *logits = (T *)a.z + row * a.ld;
        int64_t label = a.labels[row] - a.start;
        int here = label >= 0 && label < a.v, ignored = a.labels[row] < 0;
        online o = {-INFINITY, -INFINITY, 0};
        for_packs<T>(logits, kept, (int)a.v, [&](const float(&z)[8], int, int n) { see(o, z, n); });
        float shift = cu_block_max(o.shift);
        float sum = cu_block_sum(o.sum == 0 ? 0.0f : o.sum * cu_exp2(o.shift - shift)), of_label = 0;
        if (threadIdx.x == 0) {
            of_label = here ? cu_float(logits[label]) : 0.0f;
            a.nll[row] = ignored ? 0.0f : (log2f(sum) + shift) / CU_LOG2E - of_label;
        }
        if (!a.trains)
            continue;
        float share = ignored ? 0.0f : __fdividef(scale, sum);
        __syncthreads(); /* the label's logit has been read */
        for_packs<T>(KEEPS ? kept : logits, nullptr, (int)a.v, [&](float(&z)[8], int at, int n) {
#pragma unroll
            for (int j = 0; j < 8; j++)
                z[j] = share * cu_exp2(z[j] * CU_LOG2E - shift);
            if (n == 8)
                return cu_write(logits + 8 * (int64_t)at, z);
#pragma unroll
            for (int j = 0; j < 8; j++)
                if (j < n)
                    logits[8 * (int64_t)at + j] = cu_to<T>(z[j]);
        });
        __syncthreads(); /* the label's gradient has been written, without its own part */
        if (threadIdx.x == 0 && here)
            logits[label] = cu_to<T>(share * cu_exp2(of_label * CU_LOG2E - shift) - scale);
    }
}

typedef void (*rows_fn)(cu_head_rows);

static rows_fn kernel_of(const struct cu_head_rows *a)
{
    if (a->dtype == HD_BF16)
        return a->kept ? rows_kernel<cu_bf16, 1> : rows_kernel<cu_bf16, 0>;
    if (a->dtype == HD_F16)
        return a->kept ? rows_kernel<cu_f16, 1> : rows_kernel<cu_f16, 0>;
    return a->kept ? rows_kernel<float, 1> : rows_kernel<float, 0>;
}

extern "C" int32_t cu_head_prepare(struct hd_device *d, struct cu_head_rows *a, struct hd_error *err)
{
    int64_t bytes = a->ld * (int64_t)hd_dtype_size(a->dtype);
    a->kept = a->trains && bytes <= d->shared_limit / 2 - BESIDE ? bytes : 0;
    return a->kept ? cu_fail(err, cu_allow_shared(kernel_of(a), (size_t)(d->shared_limit / 2)), NULL,
                             "shared memory for rows of logits")
                   : HD_OK;
}

extern "C" int32_t cu_head_launch(struct hd_kernel *k, const struct cu_head_rows *a, cudaStream_t stream,
                                  struct hd_error *err)
{
    unsigned blocks = cu_blocks(k->device, a->rows, 1), threads = THREADS;
    while (threads > 32 && (int64_t)threads * 8 * AHEAD > a->v)
        threads /= 2;
    return cu_launched(k, CU_LAUNCH(kernel_of(a), blocks, threads, (size_t)a->kept, stream, *a), err);
}
