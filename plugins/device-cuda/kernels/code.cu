/* Gradients in few bits, with the error carried over: heddle/program.h has the format.
 *
 * A block of threads has a block of codes: it finds the scale, then writes codes and what they leave out. Bytes an
 * element: encode reads g and e, the second time from the cache, and writes e and 1 or 1/2; decode reads the codes of
 * all parts, and writes y. */
#include "kernels/operands.cuh"

enum { THREADS = 128, LINE = 8 };

struct code_args {
    cu_ref x, y; /* encode: g, e; decode: y alone */
    uint8_t *data;
    const struct hd_range *ranges;
    int64_t n, start, parts, part, bytes; /* elements; global index of the first; elements and bytes of a part */
    int64_t block, blocks;                /* elements of a block, blocks of a part */
    uint64_t n_ranges;
    int32_t bits, sums, adds, vector;
};

CU_DEVICE uint8_t *code_at(const code_args &a, int64_t part, int64_t i)
{
    return a.data + part * a.bytes + i * a.bits / 8;
}

CU_DEVICE float *scale_at(const code_args &a, int64_t part, int64_t block)
{
    return (float *)(a.data + part * a.bytes + a.part * a.bits / 8) + block;
}

/* Is element i of the shard in a range whose value is not 0? r: ranges before it are behind i. */
CU_DEVICE int in_range(const code_args &a, int64_t i, uint64_t *r)
{
    i += a.start;
    while (*r < a.n_ranges && a.ranges[*r].first + a.ranges[*r].count <= i)
        ++*r;
    return *r < a.n_ranges && a.ranges[*r].first <= i && a.ranges[*r].value != 0;
}

CU_DEVICE uint64_t first_range(const code_args &a, int64_t i)
{
    uint64_t low = 0, high = a.n_ranges;
    while (low < high) {
        uint64_t mid = (low + high) / 2;
        if (a.ranges[mid].first + a.ranges[mid].count <= i + a.start)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

/* g + e of a line; 0 outside of the ranges. */
template <class C> CU_DEVICE void values(const code_args &a, int64_t i, uint64_t *r, C (&x)[LINE])
{
#pragma unroll
    for (int j = 0; j < LINE; j++)
        x[j] = i + j < a.n && in_range(a, i + j, r) ? cu_load<C>(a.x, i + j) + cu_load<C>(a.y, i + j) : (C)0;
}

/* Is this line of eight elements in one range, and on 16 bytes? */
CU_DEVICE int whole_line(const code_args &a, int64_t i, uint64_t *r)
{
    return a.vector && i + LINE <= a.n && in_range(a, i, r) &&
           a.ranges[*r].first + a.ranges[*r].count >= i + a.start + LINE;
}

CU_DEVICE void line_of(const code_args &a, int64_t i, uint64_t *r, float (&x)[LINE])
{
    if (!whole_line(a, i, r))
        return values(a, i, r, x);
    cu_load_sum<LINE>(x, a.x, a.y, i);
}

CU_DEVICE void line_of(const code_args &a, int64_t i, uint64_t *r, double (&x)[LINE])
{
    values(a, i, r, x);
}

CU_DEVICE void put_codes(const code_args &a, int64_t part, int64_t i, const int (&q)[LINE])
{
    uint32_t low = 0, high = 0;
#pragma unroll
    for (int j = 0; j < LINE; j++)
        if (a.bits == 4)
            low |= (uint32_t)(q[j] + 8) << 4 * j;
        else if (j < 4)
            low |= (uint32_t)(q[j] + 128) << 8 * j;
        else
            high |= (uint32_t)(q[j] + 128) << 8 * (j - 4);
    if (a.bits == 4)
        *(uint32_t *)code_at(a, part, i) = low;
    else
        *(uint2 *)code_at(a, part, i) = make_uint2(low, high);
}

/* Writes (or adds) the elements of a line that there are. */
CU_DEVICE void put_line(const code_args &a, int64_t i, float (&y)[LINE], int adds)
{
    if (a.vector && i + LINE <= a.n)
        return cu_put_n<LINE>(a.y, i, y, adds);
#pragma unroll
    for (int j = 0; j < LINE; j++)
        if (i + j < a.n)
            cu_store(a.y, i + j, adds ? y[j] + cu_load<float>(a.y, i + j) : y[j]);
}

CU_DEVICE void put_line(const code_args &a, int64_t i, double (&y)[LINE], int adds)
{
#pragma unroll
    for (int j = 0; j < LINE; j++)
        if (i + j < a.n)
            cu_store(a.y, i + j, adds ? y[j] + cu_load<double>(a.y, i + j) : y[j]);
}

template <class C> static __global__ void __launch_bounds__(THREADS) encode_kernel(code_args a)
{
    CU_SHARED(C, shared, [32]);
    int64_t part = blockIdx.x / a.blocks, block = blockIdx.x % a.blocks, first = block * a.block, base = part * a.part;
    int64_t last = first + a.block < a.part ? first + a.block : a.part;
    uint64_t begin = first_range(a, base + first), r = begin;
    C most = 0, x[LINE];
    for (int64_t i = first + threadIdx.x * LINE; i < last; i += THREADS * LINE) {
        line_of(a, base + i, &r, x);
#pragma unroll
        for (int j = 0; j < LINE; j++)
            most = cu_most(most, x[j] < 0 ? -x[j] : x[j]);
    }
    most = cu_largest(most, THREADS, shared);
    float scale = most - most == 0 ? (float)most / (a.bits == 8 ? 127.0f : 7.0f) : NAN;
    if (threadIdx.x == 0)
        *scale_at(a, part, block) = scale;
    r = begin;
    for (int64_t i = first + threadIdx.x * LINE; i < last; i += THREADS * LINE) {
        int q[LINE];
        line_of(a, base + i, &r, x);
#pragma unroll
        for (int j = 0; j < LINE; j++) {
            C code = scale > 0 ? rint(x[j] / (C)scale) : (C)0;
            q[j] = (int)code;
            x[j] -= code * (C)scale;
        }
        put_codes(a, part, i, q);
        if (scale - scale == 0)
            put_line(a, base + i, x, 0);
    }
    int64_t used = a.part * a.bits / 8 + a.blocks * 4;
    if (block == 0 && threadIdx.x < a.bytes - used) /* fewer than 16 */
        a.data[part * a.bytes + used + threadIdx.x] = 0;
}

template <class C> static __global__ void __launch_bounds__(THREADS) decode_kernel(code_args a)
{
    for (int64_t i = cu_thread() * LINE; i < a.n; i += cu_threads() * LINE) {
        int64_t from = a.sums ? 0 : i / a.part, to = a.sums ? a.parts : from + 1, at = i - (a.sums ? 0 : from * a.part);
        C y[LINE] = {};
        for (int64_t part = from; part < to; part++) {
            const uint8_t *code = code_at(a, part, at);
            C scale = (C)*scale_at(a, part, at / a.block);
            uint2 w = {0, 0};
            if (a.bits == 4)
                w.x = *(const uint32_t *)code;
            else
                w = *(const uint2 *)code;
#pragma unroll
            for (int j = 0; j < LINE; j++) {
                uint32_t bits = a.bits == 4 ? w.x >> 4 * j & 15 : (j < 4 ? w.x : w.y) >> 8 * (j % 4) & 255;
                y[j] += (C)((int)bits - (a.bits == 4 ? 8 : 128)) * scale;
            }
        }
        put_line(a, i, y, a.adds);
    }
}

template <class C> static int32_t run_encode(struct hd_kernel *k, cudaStream_t stream, struct hd_error *err)
{
    const code_args &a = cu_args<code_args>(k);
    return cu_launched(k, CU_LAUNCH((encode_kernel<C>), (unsigned)(a.parts * a.blocks), THREADS, 0, stream, a), err);
}

template <class C> static int32_t run_decode(struct hd_kernel *k, cudaStream_t stream, struct hd_error *err)
{
    const code_args &a = cu_args<code_args>(k);
    unsigned blocks = cu_blocks(k->device, (a.n + LINE - 1) / LINE, THREADS);
    return cu_launched(k, CU_LAUNCH((decode_kernel<C>), blocks, THREADS, 0, stream, a), err);
}

static int32_t fill(const struct hd_instr_desc *i, const struct hd_operand *code, const struct hd_operand *flat,
                    code_args *a, struct hd_error *err)
{
    int encodes = i->op == HD_OP_ENCODE;
    if ((i->attrs.index != 8 && i->attrs.index != 4) || i->attrs.window < 16 || i->attrs.window % 16 || !i->attrs.parts)
        return cu_refuse(err, HD_E_INVALID, i,
                         "codes have 8 or 4 bits, blocks of a multiple of 16 elements, and parts");
    a->data = (uint8_t *)code->data;
    a->n = hd_operand_count(flat);
    a->start = flat->start[0];
    a->bits = (int32_t)i->attrs.index;
    a->parts = i->attrs.parts;
    a->block = i->attrs.window;
    a->sums = !encodes && !(i->attrs.flags & HD_ATTR_CONCAT);
    a->adds = cu_accumulates(i);
    a->part = a->sums ? a->n : hd_code_part(a->n, a->parts);
    a->bytes = hd_code_bytes(a->part, a->block, (uint32_t)a->bits);
    a->blocks = (a->part + a->block - 1) / a->block;
    if (a->part % 16)
        return cu_refuse(err, HD_E_INVALID, i, "parts of %lld elements are summed, not of a multiple of 16",
                         (long long)a->part);
    if (code->dtype != HD_U8 || hd_operand_count(code) != a->parts * a->bytes)
        return cu_refuse(err, HD_E_INVALID, i, "the codes are %lld bytes, not %lld parts of %lld",
                         (long long)hd_operand_count(code), (long long)a->parts, (long long)a->bytes);
    if (!cu_aligned(code->data, 8))
        return cu_refuse(err, HD_E_UNSUPPORTED, i, "codes must lie on 8 bytes");
    return HD_OK;
}

extern "C" int32_t cu_prepare_encode(struct hd_device *d, const struct hd_instr_desc *i, struct hd_kernel *k,
                                     struct hd_error *err)
{
    const struct hd_operand *g = &i->in[0], *e = &i->out[1];
    const void *ranges = NULL;
    code_args a = {};
    int32_t rc = fill(i, &i->out[0], g, &a, err);
    if (!rc && hd_operand_count(e) != a.n)
        rc = cu_refuse(err, HD_E_INVALID, i, "the error has another size than the gradient");
    if (!rc && i->attrs.n_ranges)
        rc = cu_table(d, i->attrs.ranges, i->attrs.n_ranges * sizeof *i->attrs.ranges, &ranges, err);
    a.x = cu_ref_of(g);
    a.y = cu_ref_of(e);
    a.ranges = (const struct hd_range *)ranges;
    a.n_ranges = i->attrs.n_ranges;
    a.vector = cu_aligned(g->data, 16) && cu_aligned(e->data, 16);
    int wide = cu_wide_dtype(g->dtype) || cu_wide_dtype(e->dtype);
    cu_pack(k, wide ? run_encode<double> : run_encode<float>, &a, sizeof a);
    return rc;
}

extern "C" int32_t cu_prepare_decode(struct hd_device *d, const struct hd_instr_desc *i, struct hd_kernel *k,
                                     struct hd_error *err)
{
    code_args a = {};
    int32_t rc = fill(i, &i->in[0], &i->out[0], &a, err);
    (void)d;
    a.y = cu_ref_of(&i->out[0]);
    a.vector = cu_aligned(i->out[0].data, 16);
    cu_pack(k, cu_wide_dtype(i->out[0].dtype) ? run_decode<double> : run_decode<float>, &a, sizeof a);
    return rc;
}
