/* The router of a mixture of experts: gates, their gradient, the router's losses. A warp a row of e logits, which stays
 * in the cache while the warp looks at it again. Bytes an element: z (and dg, n) once, the output once. */
#include "kernels/operands.cuh"

enum { THREADS = 256, MOST = 1024 /* experts: a lane marks 32 */ };

struct router_args {
    cu_ref z, n, dl, out;
    double scale, z_scale;
    int64_t rows, s;
    int32_t e, top_k, adds, reserved;
};

template <class C> CU_DEVICE void put(const cu_ref &y, int64_t i, C v, int adds)
{
    C one[1] = {v};
    cu_put_n<1>(y, i, one, adds);
}

/* Is (a, i) before (b, j)? The larger first, of equal ones the first, a NaN before all. */
template <class C> CU_DEVICE bool before(C a, int i, C b, int j)
{
    bool nan_a = a != a, nan_b = b != b;
    if (nan_a || nan_b)
        return nan_a && (!nan_b || i < j);
    return a > b || (a == b && i < j);
}

template <class C> static __global__ void __launch_bounds__(THREADS, 4) gate_kernel(router_args a)
{
    int lane = threadIdx.x % 32;
    for (int64_t row = cu_thread() / 32; row < a.rows; row += cu_threads() / 32) {
        uint32_t chosen = 0; /* bit k: expert lane + 32 k */
        C most = 0, sum = 0;
        for (int n = 0; n < a.top_k && n < a.e; n++) {
            C best = -INFINITY;
            int at = MOST;
            for (int j = lane, k = 0; j < a.e; j += 32, k++) {
                C z = cu_load<C>(a.z, row * a.e + j);
                if (!(chosen >> k & 1) && before(z, j, best, at)) {
                    best = z;
                    at = j;
                }
            }
            for (int d = 16; d; d /= 2) {
                C other = __shfl_xor_sync(0xffffffffu, best, d);
                int other_at = __shfl_xor_sync(0xffffffffu, at, d);
                if (before(other, other_at, best, at)) {
                    best = other;
                    at = other_at;
                }
            }
            most = n ? most : best;
            if (at % 32 == lane && at < MOST)
                chosen |= 1u << at / 32;
        }
        for (int j = lane, k = 0; j < a.e; j += 32, k++)
            sum += chosen >> k & 1 ? cu_exp(cu_load<C>(a.z, row * a.e + j) - most) : 0;
        sum = cu_sum(sum, 32, (C *)NULL);
        for (int j = lane, k = 0; j < a.e; j += 32, k++)
            put(a.out, row * a.e + j, chosen >> k & 1 ? cu_exp(cu_load<C>(a.z, row * a.e + j) - most) / sum : (C)0,
                a.adds);
    }
}

template <class C> static __global__ void __launch_bounds__(THREADS, 4) gate_grad_kernel(router_args a)
{
    int lane = threadIdx.x % 32;
    for (int64_t row = cu_thread() / 32; row < a.rows; row += cu_threads() / 32) {
        int64_t base = row * a.e;
        C dot = 0;
        for (int j = lane; j < a.e; j += 32)
            dot += cu_load<C>(a.z, base + j) * cu_load<C>(a.n, base + j);
        dot = cu_sum(dot, 32, (C *)NULL);
        for (int j = lane; j < a.e; j += 32)
            put(a.out, base + j, cu_load<C>(a.z, base + j) * (cu_load<C>(a.n, base + j) - dot), a.adds);
    }
}

/* With p = softmax(z): d/dz_j of sum n p is p_j (n_j - sum n p); of (log sum exp z)^2 it is 2 lse p_j. */
template <int GRAD, class C> static __global__ void __launch_bounds__(THREADS, 4) router_loss_kernel(router_args a)
{
    int lane = threadIdx.x % 32;
    for (int64_t row = cu_thread() / 32; row < a.rows; row += cu_threads() / 32) {
        int64_t base = row * a.e, count = row / a.s * a.e;
        C most = -INFINITY, sum = 0, balance = 0;
        for (int j = lane; j < a.e; j += 32)
            most = cu_most(most, cu_load<C>(a.z, base + j));
        most = cu_largest(most, 32, (C *)NULL);
        for (int j = lane; j < a.e; j += 32) {
            C p = cu_exp(cu_load<C>(a.z, base + j) - most);
            sum += p;
            balance += p * cu_load<C>(a.n, count + j);
        }
        sum = cu_sum(sum, 32, (C *)NULL);
        balance = cu_sum(balance, 32, (C *)NULL) / sum;
        C lse = most + cu_log(sum);
        if (!GRAD && lane == 0)
            put(a.out, row, (C)a.scale * balance + (C)a.z_scale * lse * lse, a.adds);
        for (int j = lane; GRAD && j < a.e; j += 32) {
            C p = cu_exp(cu_load<C>(a.z, base + j) - most) / sum;
            put(a.out, base + j,
                cu_load<C>(a.dl, row) * p *
                    ((C)a.scale * (cu_load<C>(a.n, count + j) - balance) + (C)(2 * a.z_scale) * lse),
                a.adds);
        }
    }
}

enum { GATE, GATE_GRAD, LOSS, LOSS_DZ };

template <int WHAT, class C> static int32_t run(struct hd_kernel *k, cudaStream_t stream, struct hd_error *err)
{
    const router_args &a = cu_args<router_args>(k);
    unsigned blocks = cu_blocks(k->device, a.rows, THREADS / 32);
    cudaError_t rc;
    if (WHAT == GATE)
        rc = CU_LAUNCH((gate_kernel<C>), blocks, THREADS, 0, stream, a);
    else if (WHAT == GATE_GRAD)
        rc = CU_LAUNCH((gate_grad_kernel<C>), blocks, THREADS, 0, stream, a);
    else
        rc = CU_LAUNCH((router_loss_kernel<WHAT == LOSS_DZ, C>), blocks, THREADS, 0, stream, a);
    return cu_launched(k, rc, err);
}

template <int WHAT> static int32_t prepare(const struct hd_instr_desc *i, struct hd_kernel *k, struct hd_error *err)
{
    const struct hd_operand *z = &i->in[0];
    router_args a = {};
    if (z->ndim != 3 || hd_operand_count(z) < 1)
        return cu_refuse(err, HD_E_INVALID, i, "an operand has %u dims; this op wants 3, none of them empty", z->ndim);
    if (z->extent[2] > MOST)
        return cu_refuse(err, HD_E_UNSUPPORTED, i, "more than %d experts", MOST);
    if (WHAT == GATE && i->attrs.top_k < 1)
        return cu_refuse(err, HD_E_INVALID, i, "top_k is %lld", (long long)i->attrs.top_k);
    a.e = (int32_t)z->extent[2];
    a.s = z->extent[1];
    a.rows = z->extent[0] * a.s;
    a.top_k = (int32_t)(i->attrs.top_k < a.e ? i->attrs.top_k : a.e);
    a.scale = i->attrs.scale;
    a.z_scale = i->attrs.z_scale;
    a.adds = cu_accumulates(i);
    a.z = cu_ref_of(z);
    a.out = cu_ref_of(&i->out[0]);
    if (i->n_in > 1)
        a.n = cu_ref_of(&i->in[1]);
    if (i->n_in > 2)
        a.dl = cu_ref_of(&i->in[2]);
    cu_pack(k, cu_wide(i) ? run<WHAT, double> : run<WHAT, float>, &a, sizeof a);
    int32_t rc = cu_want(i, &i->out[0], WHAT == LOSS ? a.rows : a.rows * a.e, "the output", err);
    if (!rc && WHAT != GATE)
        rc = cu_want(i, &i->in[1], WHAT == GATE_GRAD ? a.rows * a.e : z->extent[0] * a.e, "input 1", err);
    if (!rc && WHAT == LOSS_DZ)
        rc = cu_want(i, &i->in[2], a.rows, "input 2", err);
    return rc;
}

#define ROUTER(name, what)                                                                                             \
    extern "C" int32_t cu_prepare_##name(struct hd_device *d, const struct hd_instr_desc *i, struct hd_kernel *k,      \
                                         struct hd_error *err)                                                         \
    {                                                                                                                  \
        (void)d;                                                                                                       \
        return prepare<what>(i, k, err);                                                                               \
    }

ROUTER(gate, GATE)
ROUTER(gate_grad, GATE_GRAD)
ROUTER(router_loss, LOSS)
ROUTER(router_loss_dz, LOSS_DZ)
