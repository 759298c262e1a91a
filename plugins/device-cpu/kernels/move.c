/* Ops that move elements without arithmetic: copies and casts, constants, parts of a dim. */
#include "kernels/rows.h"

enum { GRAIN = 64, BLOCK = 4096 };

/* ---- copy: blocks of equal dtypes as bytes, else chunks through fp32 */

static void copy_chunks(void *context, int64_t first, int64_t last)
{
    struct hd_kernel *k = context;
    float buf[CPU_CHUNK];
    int64_t count = hd_operand_count(&k->out[0]);
    for (int64_t c = first; c < last; c++) {
        int64_t at = c * CPU_CHUNK, n = cpu_min(CPU_CHUNK, count - at);
        cpu_end(k, 0, at, n, cpu_read(&k->in[0], at, n, buf));
    }
}

static void run_copy(struct hd_kernel *k)
{
    cpu_parallel(k->device, cpu_chunks(hd_operand_count(&k->out[0])), GRAIN, copy_chunks, k);
}

static void copy_blocks(void *context, int64_t first, int64_t last)
{
    struct hd_kernel *k = context;
    size_t size = hd_dtype_size(k->out[0].dtype), bytes = (size_t)hd_operand_count(&k->out[0]) * size;
    size_t at = (size_t)first * BLOCK, end = (size_t)last * BLOCK;
    end = end < bytes ? end : bytes;
    memmove((char *)k->out[0].data + at, (const char *)k->in[0].data + at, end - at);
}

static int64_t blocks(const struct hd_operand *o)
{
    return (hd_operand_count(o) * (int64_t)hd_dtype_size(o->dtype) + BLOCK - 1) / BLOCK;
}

static void run_copy_bytes(struct hd_kernel *k)
{
    if (k->out[0].data != k->in[0].data)
        cpu_parallel(k->device, blocks(&k->out[0]), GRAIN, copy_blocks, k);
}

int32_t cpu_fast_copy(struct hd_kernel *k, struct hd_error *err)
{
    if (k->in[0].dtype == k->out[0].dtype && !cpu_accumulates(k)) {
        k->run = run_copy_bytes;
        return HD_OK;
    }
    k->run = run_copy;
    return cpu_fast_dtypes(k, 0, err);
}

/* ---- constants */

static void zero_blocks(void *context, int64_t first, int64_t last)
{
    const struct hd_operand *o = context;
    size_t bytes = (size_t)hd_operand_count(o) * hd_dtype_size(o->dtype);
    size_t at = (size_t)first * BLOCK, end = (size_t)last * BLOCK;
    end = end < bytes ? end : bytes;
    memset((char *)o->data + at, 0, end - at);
}

static void run_fill0(struct hd_kernel *k)
{
    cpu_parallel(k->device, blocks(&k->out[0]), GRAIN, zero_blocks, &k->out[0]);
}

int32_t cpu_fast_fill0(struct hd_kernel *k, struct hd_error *err)
{
    (void)err;
    k->run = run_fill0;
    return HD_OK;
}

static void spread_chunks(void *context, int64_t first, int64_t last)
{
    struct hd_kernel *k = context;
    float buf[CPU_CHUNK];
    int64_t count = hd_operand_count(&k->out[0]);
    for (int i = 0; i < CPU_CHUNK; i++)
        buf[i] = (float)cpu_seed(k, 0);
    for (int64_t c = first; c < last; c++)
        cpu_end(k, 0, c * CPU_CHUNK, cpu_min(CPU_CHUNK, count - c * CPU_CHUNK), buf);
}

static void run_spread(struct hd_kernel *k)
{
    cpu_parallel(k->device, cpu_chunks(hd_operand_count(&k->out[0])), GRAIN, spread_chunks, k);
}

int32_t cpu_fast_spread(struct hd_kernel *k, struct hd_error *err)
{
    k->run = run_spread;
    return cpu_fast_dtypes(k, 1, err);
}

/* ---- conversions of this rank's shard: whole runs of bytes; where sums are asked for, the reference does them */

static int32_t plain_move(const struct hd_kernel *k, struct hd_error *err)
{
    if (cpu_accumulates(k))
        return hd_fail(err, HD_E_UNSUPPORTED, "accumulates");
    if (k->in[0].dtype != k->out[0].dtype)
        return hd_fail(err, HD_E_UNSUPPORTED, "changes the dtype");
    return HD_OK;
}

static void run_mask(struct hd_kernel *k)
{
    if (k->d.attrs.index == 0)
        run_copy_bytes(k);
    else
        run_fill0(k);
}

int32_t cpu_fast_mask(struct hd_kernel *k, struct hd_error *err)
{
    k->run = run_mask;
    return plain_move(k, err);
}

/* Bytes of one run: the part's extent along the dim and all dims inside it. */
static size_t run_bytes(const struct hd_operand *small, uint32_t dim)
{
    uint32_t at = (uint32_t)cpu_dim(small, (uint8_t)dim);
    return (size_t)(small->extent[at] * cpu_stride(small, at)) * hd_dtype_size(small->dtype);
}

static int64_t runs(const struct hd_operand *small, size_t bytes)
{
    return bytes ? hd_operand_count(small) * (int64_t)hd_dtype_size(small->dtype) / (int64_t)bytes : 0;
}

static void slice_runs(void *context, int64_t first, int64_t last)
{
    struct hd_kernel *k = context;
    size_t bytes = run_bytes(&k->out[0], k->d.attrs.to);
    for (int64_t i = first; i < last; i++)
        memcpy((char *)k->out[0].data + (size_t)i * bytes,
               (const char *)k->in[0].data + ((size_t)i * k->d.attrs.parts + k->d.attrs.index) * bytes, bytes);
}

static void run_slice(struct hd_kernel *k)
{
    size_t bytes = run_bytes(&k->out[0], k->d.attrs.to);
    cpu_parallel(k->device, runs(&k->out[0], bytes), 1 + (int64_t)(65536 / (bytes + 1)), slice_runs, k);
}

int32_t cpu_fast_slice(struct hd_kernel *k, struct hd_error *err)
{
    k->run = run_slice;
    return plain_move(k, err);
}

static void pad_runs(void *context, int64_t first, int64_t last)
{
    struct hd_kernel *k = context;
    size_t bytes = run_bytes(&k->in[0], k->d.attrs.from);
    for (int64_t i = first; i < last; i++)
        for (size_t part = 0; part < k->d.attrs.parts; part++) {
            char *to = (char *)k->out[0].data + ((size_t)i * k->d.attrs.parts + part) * bytes;
            if (part == k->d.attrs.index)
                memcpy(to, (const char *)k->in[0].data + (size_t)i * bytes, bytes);
            else
                memset(to, 0, bytes);
        }
}

static void run_pad(struct hd_kernel *k)
{
    size_t bytes = run_bytes(&k->in[0], k->d.attrs.from);
    cpu_parallel(k->device, runs(&k->in[0], bytes), 1 + (int64_t)(65536 / (bytes + 1)), pad_runs, k);
}

int32_t cpu_fast_pad(struct hd_kernel *k, struct hd_error *err)
{
    k->run = run_pad;
    return plain_move(k, err);
}
