/* Tokens into the slots of their experts and back. Slots without a token are zeros.
 *
 * Into slots a warp has a slot, out of them a token: it sums over the experts of the token, in their order. Bytes an
 * element: dispatch and combine_dz read rows that have a slot and write all slots; the others read slots that hold
 * tokens and write, or for gates read, tokens. With capacity a table says which slot holds a token: 8 bytes a token and
 * expert. */
#include "kernels/operands.cuh"

enum { THREADS = 256 };

struct dispatch_args {
    cu_ref in, other, gates, out; /* other: combine_dg's tokens */
    const int32_t *rows;
    int64_t b, e, slots, count; /* count = b e slots */
    int64_t s, start, h;        /* of tokens: local extent, global index of the first; V elements of a row */
    int32_t every, adds;        /* every: slot i of a sequence is token i's */
};

/* The token in a slot as an index on [b s] of this rank, -1 where there is none. */
CU_DEVICE int64_t token_in(const dispatch_args &a, int64_t slot)
{
    int64_t row = a.rows[slot], at = row - 1 - a.start;
    return row > 0 && at >= 0 && at < a.s ? slot / (a.e * a.slots) * a.s + at : -1;
}

/* ---- into slots */

template <int V, class C> static __global__ void __launch_bounds__(THREADS, 4) into_kernel(dispatch_args a)
{
    for (int64_t slot = cu_thread() / 32; slot < a.count; slot += cu_threads() / 32) {
        int64_t token = token_in(a, slot);
        C gate = 1;
        if (a.gates.data && token >= 0)
            gate = cu_load<C>(a.gates, token * a.e + slot / a.slots % a.e);
        for (int64_t j = threadIdx.x % 32; j < a.h; j += 32) {
            C x[V] = {};
            if (token >= 0)
                cu_load_n<V>(x, a.in, (token * a.h + j) * V);
#pragma unroll
            for (int i = 0; i < V; i++)
                x[i] *= gate;
            cu_put_n<V>(a.out, (slot * a.h + j) * V, x, a.adds);
        }
    }
}

/* ---- out of slots */

static __global__ void __launch_bounds__(THREADS, 4) find_kernel(dispatch_args a, int32_t *slot_of)
{
    for (int64_t slot = cu_thread(); slot < a.count; slot += cu_threads()) {
        int64_t token = token_in(a, slot);
        if (token >= 0)
            slot_of[token * a.e + slot / a.slots % a.e] = (int32_t)slot;
    }
}

/* The slot of expert e that holds a token of [b s], -1 where there is none. */
CU_DEVICE int64_t slot_of_token(const dispatch_args &a, const int32_t *slot_of, int64_t token, int64_t e)
{
    if (e >= a.e)
        return -1;
    if (!a.every)
        return slot_of[token * a.e + e];
    int64_t slot = (token / a.s * a.e + e) * a.slots + token % a.s;
    return a.rows[slot] > 0 ? slot : -1;
}

/* f(expert, slot) for those that a token of this warp has, among 32 experts from `first` on, in order. */
template <class F> CU_DEVICE void each_slot(int64_t mine, int64_t first, F f)
{
    uint32_t set = __ballot_sync(0xffffffffu, mine >= 0);
    while (set) {
        int lane = __ffs((int)set) - 1;
        set &= set - 1;
        f(first + lane, __shfl_sync(0xffffffffu, mine, lane));
    }
}

template <int V, class C>
static __global__ void __launch_bounds__(THREADS, 4) out_kernel(dispatch_args a, const int32_t *slot_of)
{
    int lane = threadIdx.x % 32;
    for (int64_t token = cu_thread() / 32; token < a.b * a.s; token += cu_threads() / 32)
        for (int64_t first = 0; first < a.h; first += 32) {
            int64_t j = first + lane;
            C sum[V] = {};
            for (int64_t group = 0; group < a.e; group += 32)
                each_slot(slot_of_token(a, slot_of, token, group + lane), group, [&](int64_t e, int64_t slot) {
                    C x[V], gate = a.gates.data ? cu_load<C>(a.gates, token * a.e + e) : (C)1;
                    if (j >= a.h)
                        return;
                    cu_load_n<V>(x, a.in, (slot * a.h + j) * V);
#pragma unroll
                    for (int i = 0; i < V; i++)
                        sum[i] += gate * x[i];
                });
            if (j < a.h)
                cu_put_n<V>(a.out, (token * a.h + j) * V, sum, a.adds);
        }
}

template <int V, class C>
static __global__ void __launch_bounds__(THREADS, 4) gates_kernel(dispatch_args a, const int32_t *slot_of)
{
    int lane = threadIdx.x % 32;
    for (int64_t token = cu_thread() / 32; token < a.b * a.s; token += cu_threads() / 32)
        for (int64_t group = 0; group < a.e; group += 32) {
            C mine[1] = {0};
            each_slot(slot_of_token(a, slot_of, token, group + lane), group, [&](int64_t e, int64_t slot) {
                C sum = 0;
                for (int64_t j = lane; j < a.h; j += 32) {
                    cu_raw<C, V> x_raw, y_raw;
                    C x[V], y[V];
                    x_raw.fetch(a.in, (slot * a.h + j) * V);
                    y_raw.fetch(a.other, (token * a.h + j) * V);
                    x_raw.widen(x, a.in);
                    y_raw.widen(y, a.other);
#pragma unroll
                    for (int i = 0; i < V; i++)
                        sum += x[i] * y[i];
                }
                sum = cu_sum(sum, 32, (C *)NULL);
                mine[0] = e == group + lane ? sum : mine[0];
            });
            if (group + lane < a.e)
                cu_put_n<1>(a.out, token * a.e + group + lane, mine, a.adds);
        }
}

enum { INTO, OUT, GATES };

template <int WHAT, int V, class C> static int32_t run(struct hd_kernel *k, cudaStream_t stream, struct hd_error *err)
{
    const dispatch_args &a = cu_args<dispatch_args>(k);
    int32_t *slot_of = (int32_t *)cu_scratch(k->device);
    unsigned blocks = cu_blocks(k->device, WHAT == INTO ? a.count : a.b * a.s, THREADS / 32);
    cudaError_t rc = cudaSuccess;
    if (WHAT == INTO)
        return cu_launched(k, CU_LAUNCH((into_kernel<V, C>), blocks, THREADS, 0, stream, a), err);
    if (!a.every)
        rc = cudaMemsetAsync(slot_of, 0xff, (size_t)(a.b * a.s * a.e) * sizeof *slot_of, stream);
    if (!a.every && rc == cudaSuccess)
        rc = CU_LAUNCH(find_kernel, cu_blocks(k->device, a.count, THREADS), THREADS, 0, stream, a, slot_of);
    if (rc == cudaSuccess && WHAT == OUT)
        rc = CU_LAUNCH((out_kernel<V, C>), blocks, THREADS, 0, stream, a, slot_of);
    else if (rc == cudaSuccess)
        rc = CU_LAUNCH((gates_kernel<V, C>), blocks, THREADS, 0, stream, a, slot_of);
    return cu_launched(k, rc, err);
}

static int32_t check(const struct hd_instr_desc *i, const struct hd_operand *rows, const struct hd_operand *tokens,
                     const struct hd_operand *slots, const struct hd_operand *gates, struct hd_error *err)
{
    if (rows->ndim != 3 || tokens->ndim != 3 || slots->ndim != 4 || hd_operand_count(rows) < 1 ||
        hd_operand_count(tokens) < 1)
        return cu_refuse(err, HD_E_INVALID, i,
                         "tokens [b s h], slots [b e # h] and [b e #] are wanted, none of them empty");
    if (rows->dtype != HD_I32)
        return cu_refuse(err, HD_E_INVALID, i, "the tokens of slots must be int32");
    if (hd_operand_count(rows) > INT32_MAX)
        return cu_refuse(err, HD_E_UNSUPPORTED, i, "more than 2^31 slots");
    if (rows->extent[0] != tokens->extent[0])
        return cu_refuse(err, HD_E_INVALID, i, "slots and tokens differ in sequences");
    int32_t rc = cu_want(i, slots, hd_operand_count(rows) * tokens->extent[2], "what lies in slots", err);
    if (!rc && gates)
        rc = cu_want(i, gates, tokens->extent[0] * tokens->extent[1] * rows->extent[1], "the gates", err);
    return rc;
}

template <int WHAT>
static int32_t prepare(struct hd_device *d, const struct hd_instr_desc *i, struct hd_kernel *k,
                       const struct hd_operand *tokens, const struct hd_operand *slots, const struct hd_operand *gates,
                       struct hd_error *err)
{
    const struct hd_operand *rows = &i->in[i->n_in - 1];
    dispatch_args a = {};
    int32_t rc = check(i, rows, tokens, slots, gates, err);
    if (rc)
        return rc;
    int wide = cu_wide_dtype(tokens->dtype) || cu_wide_dtype(slots->dtype) || (gates && cu_wide_dtype(gates->dtype));
    int v = !wide && tokens->extent[2] % 8 == 0 && cu_aligned(tokens->data, 16) && cu_aligned(slots->data, 16) ? 8 : 1;
    a.in = cu_ref_of(&i->in[0]);
    a.out = cu_ref_of(&i->out[0]);
    if (WHAT == GATES)
        a.other = cu_ref_of(tokens);
    else if (gates)
        a.gates = cu_ref_of(gates);
    a.rows = (const int32_t *)rows->data;
    a.b = rows->extent[0];
    a.e = rows->extent[1];
    a.slots = rows->extent[2];
    a.count = hd_operand_count(rows);
    a.s = tokens->extent[1];
    a.start = tokens->start[1];
    a.h = tokens->extent[2] / v;
    a.every = rows->dim[2] == tokens->dim[1];
    a.adds = cu_accumulates(i);
    cu_pack(k, wide ? run<WHAT, 1, double> : v == 8 ? run<WHAT, 8, float> : run<WHAT, 1, float>, &a, sizeof a);
    return WHAT == INTO || a.every ? HD_OK : cu_scratch_reserve(d, (size_t)(a.b * a.s * a.e) * sizeof(int32_t), err);
}

#define DISPATCH(name, what, tokens, slots, gates)                                                                     \
    extern "C" int32_t cu_prepare_##name(struct hd_device *d, const struct hd_instr_desc *i, struct hd_kernel *k,      \
                                         struct hd_error *err)                                                         \
    {                                                                                                                  \
        return prepare<what>(d, i, k, tokens, slots, gates, err);                                                      \
    }

DISPATCH(dispatch, INTO, &i->in[0], &i->out[0], NULL)
DISPATCH(dispatch_dx, OUT, &i->out[0], &i->in[0], NULL)
DISPATCH(combine, OUT, &i->out[0], &i->in[0], &i->in[1])
DISPATCH(combine_dz, INTO, &i->in[0], &i->out[0], &i->in[1])
DISPATCH(combine_dg, GATES, &i->in[1], &i->in[0], &i->out[0])
