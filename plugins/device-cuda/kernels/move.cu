/* Moves of elements: copy, slice, pad. The larger operand of a slice or pad is [outer, parts, inner],
 * the smaller [outer, inner]. A copy whose dims stand in another order moves runs of those that are last in both.
 *
 * Equal dtypes move as bytes, 16 at a time where everything lies on 16: each byte of the smaller operand is read once,
 * each of the output written once. Other dtypes, and sums, go element by element. */
#include "kernels/operands.cuh"

enum { THREADS = 256 };
enum { SLICE, PAD, PERMUTE };

struct move_args {
    cu_ref in, out;
    int64_t n;     /* units of the output */
    int64_t inner; /* units of a run */
    int64_t parts, index;
    int32_t adds, unit; /* bytes */
    int64_t extent[HD_MAX_DIMS], stride[HD_MAX_DIMS]; /* PERMUTE: of the output's outer dims, in runs of the input */
    int64_t ndim;
};

/* The run of the input that a run of the output is. I: a type that holds both. */
template <class I> CU_DEVICE int64_t permuted_run(const move_args &a, int64_t run)
{
    I from = 0, left = (I)run;
    for (int64_t d = a.ndim - 1; d >= 0; d--) {
        I above = left / (I)a.extent[d];
        from += (left - above * (I)a.extent[d]) * (I)a.stride[d];
        left = above;
    }
    return from;
}

/* The unit of the input that unit i of the output is; -1: it is zero. */
template <int HOW> CU_DEVICE int64_t source(const move_args &a, int64_t i)
{
    int64_t run, within;
    if (a.n <= INT32_MAX) {
        run = (uint32_t)i / (uint32_t)a.inner;
        within = (uint32_t)i - (uint32_t)run * (uint32_t)a.inner;
    } else {
        run = i / a.inner;
        within = i - run * a.inner;
    }
    if (HOW == PERMUTE)
        return (a.n <= INT32_MAX ? permuted_run<uint32_t>(a, run) : permuted_run<int64_t>(a, run)) * a.inner + within;
    if (HOW == SLICE)
        return (run * a.parts + a.index) * a.inner + within;
    int64_t outer = run / a.parts;
    return run - outer * a.parts == a.index ? outer * a.inner + within : -1;
}

template <int HOW, class U> CU_DEVICE void move_units(const move_args &a)
{
    for (int64_t i = cu_thread(); i < a.n; i += cu_threads()) {
        int64_t from = source<HOW>(a, i);
        U zero = {};
        ((U *)a.out.data)[i] = from < 0 ? zero : ((const U *)a.in.data)[from];
    }
}

template <int HOW> static __global__ void __launch_bounds__(THREADS) move_kernel(move_args a)
{
    if (a.unit == 16)
        move_units<HOW, uint4>(a);
    else if (a.unit == 8)
        move_units<HOW, uint2>(a);
    else if (a.unit == 4)
        move_units<HOW, uint32_t>(a);
    else if (a.unit == 2)
        move_units<HOW, uint16_t>(a);
    else
        move_units<HOW, uint8_t>(a);
}

template <int HOW> static __global__ void __launch_bounds__(THREADS) convert_kernel(move_args a)
{
    for (int64_t i = cu_thread(); i < a.n; i += cu_threads()) {
        int64_t from = source<HOW>(a, i);
        double v = from < 0 ? 0 : cu_load<double>(a.in, from);
        cu_store(a.out, i, a.adds ? v + cu_load<double>(a.out, i) : v);
    }
}

template <int HOW> static int32_t run(struct hd_kernel *k, cudaStream_t stream, struct hd_error *err)
{
    const move_args &a = cu_args<move_args>(k);
    unsigned blocks = cu_blocks(k->device, a.n, THREADS);
    cudaError_t rc = a.unit ? CU_LAUNCH((move_kernel<HOW>), blocks, THREADS, 0, stream, a)
                            : CU_LAUNCH((convert_kernel<HOW>), blocks, THREADS, 0, stream, a);
    return cu_launched(k, rc, err);
}

/* The largest unit that divides a run and that both memories are aligned to. */
static int32_t unit_of(const move_args *a, int64_t bytes)
{
    int32_t unit = 16;
    while (bytes % unit || !cu_aligned(a->in.data, (size_t)unit) || !cu_aligned(a->out.data, (size_t)unit))
        unit /= 2;
    return unit;
}

static int32_t prepare(const struct hd_instr_desc *i, struct hd_kernel *k, move_args *a, int how)
{
    int64_t size = (int64_t)hd_dtype_size(i->in[0].dtype);
    a->in = cu_ref_of(&i->in[0]);
    a->out = cu_ref_of(&i->out[0]);
    a->n = hd_operand_count(&i->out[0]);
    a->adds = cu_accumulates(i);
    if (a->in.dtype == a->out.dtype && !a->adds && a->n) {
        a->unit = unit_of(a, a->inner * size);
        a->inner = a->inner * size / a->unit;
        a->n = a->n * size / a->unit;
    }
    cu_pack(k, how == PAD ? run<PAD> : how == PERMUTE ? run<PERMUTE> : run<SLICE>, a, sizeof *a);
    return HD_OK;
}

extern "C" int32_t cu_prepare_add(struct hd_device *, const struct hd_instr_desc *, struct hd_kernel *,
                                  struct hd_error *);

/* The same dims in another order. */
static int permuted(const struct hd_operand *x, const struct hd_operand *y)
{
    int moved = 0;
    for (uint32_t d = 0; d < y->ndim; d++) {
        int32_t at = cu_dim(x, y->dim[d]);
        if (at < 0 || cu_dim(y, y->dim[d]) != (int32_t)d)
            return 0;
        moved |= at != (int32_t)d;
    }
    return moved && x->ndim == y->ndim;
}

static int32_t prepare_permuted(const struct hd_instr_desc *i, struct hd_kernel *k, struct hd_error *err)
{
    const struct hd_operand *x = &i->in[0], *y = &i->out[0];
    uint32_t outer = y->ndim;
    move_args a = {};
    while (x->dim[outer - 1] == y->dim[outer - 1])
        outer--;
    a.ndim = outer;
    a.inner = cu_span(y, outer, y->ndim);
    for (uint32_t d = 0; d < outer; d++) {
        uint32_t at = (uint32_t)cu_dim(x, y->dim[d]);
        if (x->extent[at] != y->extent[d])
            return cu_refuse(err, HD_E_INVALID, i, "dim id %u differs in length", y->dim[d]);
        a.extent[d] = y->extent[d];
        a.stride[d] = cu_span(x, at + 1, outer);
    }
    return prepare(i, k, &a, PERMUTE);
}

extern "C" int32_t cu_prepare_copy(struct hd_device *d, const struct hd_instr_desc *i, struct hd_kernel *k,
                                   struct hd_error *err)
{
    int32_t rc = cu_same(i, err);
    move_args a = {};
    a.inner = hd_operand_count(&i->in[0]);
    a.parts = 1;
    if (!rc && permuted(&i->in[0], &i->out[0]))
        return prepare_permuted(i, k, err);
    if (rc || (i->in[0].dtype == i->out[0].dtype && !cu_accumulates(i)))
        return rc ? rc : prepare(i, k, &a, SLICE);
    return cu_prepare_add(d, i, k, err);
}

static int32_t part(const struct hd_instr_desc *i, struct hd_kernel *k, const struct hd_operand *small,
                    const struct hd_operand *large, uint32_t dim, struct hd_error *err)
{
    int32_t at = cu_dim(small, (uint8_t)dim);
    move_args a = {};
    if (at < 0 || small->ndim != large->ndim)
        return cu_refuse(err, HD_E_INVALID, i, "dim id %u is not in the operands", dim);
    if (i->attrs.index >= i->attrs.parts)
        return cu_refuse(err, HD_E_INVALID, i, "part %u of %u", i->attrs.index, i->attrs.parts);
    a.inner = cu_span(small, (uint32_t)at, small->ndim);
    a.parts = i->attrs.parts;
    a.index = i->attrs.index;
    int32_t rc = cu_want(i, large, hd_operand_count(small) * a.parts, "the whole", err);
    return rc ? rc : prepare(i, k, &a, large == &i->out[0] ? PAD : SLICE);
}

extern "C" int32_t cu_prepare_slice(struct hd_device *d, const struct hd_instr_desc *i, struct hd_kernel *k,
                                    struct hd_error *err)
{
    (void)d;
    return part(i, k, &i->out[0], &i->in[0], i->attrs.to, err);
}

extern "C" int32_t cu_prepare_pad(struct hd_device *d, const struct hd_instr_desc *i, struct hd_kernel *k,
                                  struct hd_error *err)
{
    (void)d;
    return part(i, k, &i->in[0], &i->out[0], i->attrs.from, err);
}
