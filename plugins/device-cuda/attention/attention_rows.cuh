/* Row operations of attention on products, by mma or wgmma: weights, slopes, results. A warp has 16 M rows. */
#ifndef HD_DEVICE_CUDA_ATTENTION_ATTENTION_ROWS_CUH
#define HD_DEVICE_CUDA_ATTENTION_ATTENTION_ROWS_CUH

#include "attention/attention_store.cuh"

/* ---- forward */

/* Scores of one row become weights, its maximum and sum move on. Returns what its o so far is multiplied by. */
template <int N> CU_DEVICE float cu_weigh_row(float (&s)[N][4], int half, float scale, float &most, float &total)
{
    float now = most;
#pragma unroll
    for (int n = 0; n < N; n++)
        now = fmaxf(now, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
    now = cu_quad_most(now);
    float shift = now == -INFINITY ? 0 : now * scale, shrink = cu_exp2(most * scale - shift);
    float sum = 0;
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int c = 2 * half; c < 2 * half + 2; c++) {
            s[n][c] = cu_exp2(s[n][c] * scale - shift);
            sum += s[n][c];
        }
    total = total * shrink + sum;
    most = now;
    return shrink;
}

template <class T, int M, int N> CU_DEVICE void cu_narrow(uint32_t (&p)[M][N][2], const float (&s)[M][N][4])
{
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < N; n++) {
            p[m][n][0] = cu_pair<T>(s[m][n][0], s[m][n][1]);
            p[m][n][1] = cu_pair<T>(s[m][n][2], s[m][n][3]);
        }
}

/* o over its sum, and lse. A row's sum is at total[row * step]. */
template <class T, int D, int M>
CU_DEVICE void cu_finish_rows(const cu_attention &a, const cu_extent *w, const float (&o)[M][D / 8][4],
                              const float (&most)[2 * M], const float *total, int step)
{
    int heads = a.h.k * a.h.g, thread = cu_again((int)threadIdx.x),
        first = w->at + thread / 32 * 16 * M + thread % 32 / 4;
#pragma unroll
    for (int r = 0; r < 2 * M; r++) {
        int i = first + 8 * r;
        int64_t row = ((int64_t)w->b * a.h.s + i) * heads + w->head;
        float sum = cu_quad_sum(total[r * step]);
        if (i >= a.h.s)
            continue;
        cu_put_row<T, D>(a, 0, row * a.h.d, o[r / 2], r % 2, sum == 0 ? 0 : 1 / sum);
        if (thread % 4 == 0)
            a.out_lse[row] = sum == 0 ? -INFINITY : most[r] * a.scale + logf(sum);
    }
}

/* ---- backward */

/* The rows of so many queries of one head on their way: lse, then the sums. */
template <int ROWS> CU_DEVICE void cu_fetch_rows(const cu_attention &a, float *rows, int b, int head, int q0)
{
    int heads = a.h.k * a.h.g, which = (int)threadIdx.x / (ROWS / 4), n = (int)threadIdx.x % (ROWS / 4) * 4;
    if (which < 2)
        cu_copy16(rows + which * ROWS + n, a.rows + (((int64_t)which * a.h.b + b) * heads + head) * a.s_room + q0 + n,
                  1);
}

/* Scores of a tile, rows are queries, become weights: 2^(s - lse). lse: of the lane's first row. Returns their sum. */
template <int M, int N> CU_DEVICE float cu_weigh_queries(float (&s)[M][N][4], const float *lse, float scale)
{
    float sum = 0;
#pragma unroll
    for (int r = 0; r < 2 * M; r++) {
        float l = lse[8 * r];
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int c = r % 2 * 2; c < r % 2 * 2 + 2; c++) {
                s[r / 2][n][c] = cu_exp2(s[r / 2][n][c] * scale - l);
                sum += s[r / 2][n][c];
            }
    }
    return sum;
}

/* And with what came of the gradient slopes. delta: of the lane's first row. */
template <class T, int M, int N>
CU_DEVICE void cu_query_slopes(uint32_t (&ds)[M][N][2], const float (&s)[M][N][4], const float (&dp)[M][N][4],
                               const float *delta)
{
#pragma unroll
    for (int r = 0; r < 2 * M; r++) {
        float sum = delta[8 * r];
#pragma unroll
        for (int n = 0; n < N; n++) {
            const float *x = s[r / 2][n] + r % 2 * 2, *y = dp[r / 2][n] + r % 2 * 2;
            ds[r / 2][n][r % 2] = cu_pair<T>(x[0] * (y[0] - sum), x[1] * (y[1] - sum));
        }
    }
}

template <class T, int D, int M>
CU_DEVICE void cu_finish_keys(const cu_attention &a, const cu_extent *w, const float (&dk)[M][D / 8][4],
                              const float (&dv)[M][D / 8][4])
{
    int thread = cu_again((int)threadIdx.x), first = w->at + thread / 32 * 16 * M + thread % 32 / 4;
#pragma unroll
    for (int r = 0; r < 2 * M; r++) {
        int j = first + 8 * r;
        int64_t at = (((int64_t)w->b * a.h.t + j) * a.h.k + w->head) * a.h.d;
        if (j >= a.h.t)
            continue;
        cu_put_row<T, D>(a, 1, at, dk[r / 2], r % 2, a.scale);
        cu_put_row<T, D>(a, 2, at, dv[r / 2], r % 2, 1);
    }
}

template <class T, int D, int M>
CU_DEVICE void cu_finish_queries(const cu_attention &a, const cu_extent *w, const float (&dq)[M][D / 8][4])
{
    int heads = a.h.k * a.h.g, thread = cu_again((int)threadIdx.x),
        first = w->at + thread / 32 * 16 * M + thread % 32 / 4;
#pragma unroll
    for (int r = 0; r < 2 * M; r++) {
        int i = first + 8 * r;
        if (i < a.h.s)
            cu_put_row<T, D>(a, 0, (((int64_t)w->b * a.h.s + i) * heads + w->head) * a.h.d, dq[r / 2], r % 2, a.scale);
    }
}

#endif
