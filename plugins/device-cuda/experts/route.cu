/* Which token lies in which slot, and how many want each expert. Gates [b s e] are read once, by strides of e.
 *
 * A block has one sequence and expert (route with capacity: tokens in the order of positions, as many as there are
 * slots), or one sequence and 32 experts (counts). */
#include "kernels/operands.cuh"

enum { THREADS = 256, WARPS = THREADS / 32, COUNTERS = 512, DEEP = COUNTERS / 32 };

struct route_args {
    cu_ref g, out;
    cu_zigzag order;
    int64_t b, e, s, slots, start;
    int32_t adds, reserved;
};

CU_DEVICE int wants(const route_args &a, int64_t b, int64_t i, int64_t e)
{
    return cu_load<double>(a.g, (b * a.s + i) * a.e + e) > 0;
}

/* A slot for every token. */
static __global__ void __launch_bounds__(THREADS) every_kernel(route_args a)
{
    for (int64_t at = cu_thread(); at < a.b * a.e * a.s; at += cu_threads()) {
        int64_t pair = at / a.s, i = at - pair * a.s;
        ((int32_t *)a.out.data)[at] = wants(a, pair / a.e, i, pair % a.e) ? (int32_t)(a.start + i + 1) : 0;
    }
}

static __global__ void __launch_bounds__(THREADS) capacity_kernel(route_args a)
{
    CU_SHARED(int, totals, [WARPS]);
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int64_t b = blockIdx.x / a.e, e = blockIdx.x % a.e, used = 0;
    int32_t *out = (int32_t *)a.out.data + (int64_t)blockIdx.x * a.slots;
    for (int64_t first = 0; first < a.s && used < a.slots; first += THREADS) {
        int64_t position = first + threadIdx.x, i = position < a.s ? cu_index_of(a.order, position) : -1, to;
        int on = i >= 0 && wants(a, b, i, e);
        uint32_t ballot = __ballot_sync(0xffffffffu, on);
        __syncthreads(); /* the last tile's readers are done */
        if (lane == 0)
            totals[warp] = __popc(ballot);
        __syncthreads();
        to = used + __popc(ballot & ((1u << lane) - 1));
        for (int w = 0; w < WARPS; w++) {
            to += w < warp ? totals[w] : 0;
            used += totals[w];
        }
        if (on && to < a.slots)
            out[to] = (int32_t)(a.start + i + 1);
    }
    for (int64_t slot = used + threadIdx.x; slot < a.slots; slot += THREADS)
        out[slot] = 0;
}

static __global__ void __launch_bounds__(COUNTERS, 1) count_kernel(route_args a)
{
    CU_SHARED(int, counts, [DEEP][32]);
    int x = threadIdx.x % 32, y = threadIdx.x / 32, n = 0;
    int64_t e = (int64_t)blockIdx.y * 32 + x;
#pragma unroll 4
    for (int64_t i = y; i < a.s; i += DEEP)
        n += e < a.e && wants(a, blockIdx.x, i, e);
    counts[y][x] = n;
    __syncthreads();
    if (y || e >= a.e)
        return;
    for (int i = 1; i < DEEP; i++)
        n += counts[i][x];
    double v[1] = {(double)n};
    cu_put_n<1>(a.out, blockIdx.x * a.e + e, v, a.adds);
}

static int32_t run_every(struct hd_kernel *k, cudaStream_t stream, struct hd_error *err)
{
    const route_args &a = cu_args<route_args>(k);
    return cu_launched(
        k, CU_LAUNCH(every_kernel, cu_blocks(k->device, a.b * a.e * a.s, THREADS), THREADS, 0, stream, a), err);
}

static int32_t run_capacity(struct hd_kernel *k, cudaStream_t stream, struct hd_error *err)
{
    const route_args &a = cu_args<route_args>(k);
    return cu_launched(k, CU_LAUNCH(capacity_kernel, (unsigned)(a.b * a.e), THREADS, 0, stream, a), err);
}

static int32_t run_count(struct hd_kernel *k, cudaStream_t stream, struct hd_error *err)
{
    const route_args &a = cu_args<route_args>(k);
    dim3 grid((unsigned)a.b, (unsigned)((a.e + 31) / 32));
    return cu_launched(k, CU_LAUNCH(count_kernel, grid, COUNTERS, 0, stream, a), err);
}

static int32_t fill(const struct hd_instr_desc *i, route_args *a, uint32_t out_dims, struct hd_error *err)
{
    const struct hd_operand *g = &i->in[0], *out = &i->out[0];
    if (g->ndim != 3 || out->ndim != out_dims || hd_operand_count(g) < 1 || hd_operand_count(out) < 1)
        return cu_refuse(err, HD_E_INVALID, i, "gates [b s e] and %u dims are wanted, none of them empty", out_dims);
    if (out->extent[0] != g->extent[0] || out->extent[1] != g->extent[2])
        return cu_refuse(err, HD_E_INVALID, i, "the output differs from the gates in sequences or experts");
    a->g = cu_ref_of(g);
    a->out = cu_ref_of(out);
    a->order = cu_zigzag_of(&i->attrs);
    a->b = g->extent[0];
    a->s = g->extent[1];
    a->e = g->extent[2];
    a->start = g->start[1];
    a->adds = cu_accumulates(i);
    return HD_OK;
}

extern "C" int32_t cu_prepare_route(struct hd_device *d, const struct hd_instr_desc *i, struct hd_kernel *k,
                                    struct hd_error *err)
{
    route_args a = {};
    int32_t rc = fill(i, &a, 3, err);
    (void)d;
    if (!rc && i->out[0].dtype != HD_I32)
        return cu_refuse(err, HD_E_INVALID, i, "the tokens of slots must be int32");
    a.slots = i->out[0].extent[2];
    cu_pack(k, i->out[0].dim[2] == i->in[0].dim[1] ? run_every : run_capacity, &a, sizeof a);
    return rc;
}

extern "C" int32_t cu_prepare_expert_count(struct hd_device *d, const struct hd_instr_desc *i, struct hd_kernel *k,
                                           struct hd_error *err)
{
    route_args a = {};
    int32_t rc = fill(i, &a, 2, err);
    (void)d;
    cu_pack(k, run_count, &a, sizeof a);
    return rc;
}
