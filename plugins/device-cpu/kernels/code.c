/* Codes, a block at a time in fp32. Blocks belong to one thread each: the same bits for any number of threads. */
#include "kernels/code.h"
#include "kernels/rows.h"

enum { GRAIN = 16, CHUNK = CPU_CHUNK };

/* Values of elements [at, at + n) of the gradient with its error; zeros outside of all ranges, which ascend. */
static void values(const struct hd_kernel *k, int64_t at, int64_t n, float *x)
{
    const struct hd_attrs *a = &k->d.attrs;
    float gb[CHUNK], eb[CHUNK];
    int64_t count = hd_operand_count(&k->in[0]), start = k->in[0].start[0];
    memset(x, 0, (size_t)n * sizeof *x);
    for (uint64_t r = 0; r < a->n_ranges; r++) {
        int64_t from = a->ranges[r].first - start, to = cpu_min(cpu_min(from + a->ranges[r].count, at + n), count);
        from = from > at ? from : at;
        if (from >= to)
            continue;
        const float *g = cpu_read(&k->in[0], from, to - from, gb), *e = cpu_read(&k->out[1], from, to - from, eb);
        for (int64_t i = from; i < to; i++)
            x[i - at] = g[i - from] + e[i - from];
    }
}

CPU_CLONES(float, largest, (const float *x, int64_t n), (x, n))
{
    uint32_t most = 0; /* of positive floats the bits are ordered, and NaN lies above infinity */
#pragma omp simd reduction(max : most)
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits = ((union cpu_bits){.f = x[i]}).u & 0x7fffffffu;
        most = bits > most ? bits : most;
    }
    return ((union cpu_bits){.u = most}).f;
}

/* q = x / scale to nearest even, by adding 1.5 * 2^23; x becomes what that leaves out. */
CPU_CLONES(void, quantise, (float *x, int32_t *q, int64_t n, float scale), (x, q, n, scale))
{
    const float magic = 12582912.0f;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float code = (x[i] / scale + magic) - magic;
        q[i] = (int32_t)code;
        x[i] -= code * scale;
    }
}

CPU_CLONES(void, pack, (uint8_t * to, const int32_t *q, int64_t n, uint32_t bits), (to, q, n, bits))
{
    if (bits == 8)
        for (int64_t i = 0; i < n; i++)
            to[i] = (uint8_t)(q[i] + 128);
    else
        for (int64_t i = 0; i < n / 2; i++)
            to[i] = (uint8_t)((q[2 * i] + 8) | (q[2 * i + 1] + 8) << 4);
}

static void encode_block(struct hd_kernel *k, const struct cpu_code *c, int64_t part, int64_t block)
{
    int64_t first = block * c->block, last = cpu_min(first + c->block, c->part), count = hd_operand_count(&k->out[1]);
    float x[CHUNK], most = 0, scale;
    int32_t q[CHUNK];
    for (int64_t at = first; at < last; at += CHUNK) {
        int64_t n = cpu_min(CHUNK, last - at);
        values(k, part * c->part + at, n, x);
        float here = largest(x, n);
        most = here > most || isnan(here) ? here : most;
        if (isnan(most))
            break;
    }
    scale = isfinite(most) ? most / (float)cpu_code_most(c) : NAN;
    *cpu_code_scale(c, part, block) = scale;
    for (int64_t at = first; at < last; at += CHUNK) {
        int64_t n = cpu_min(CHUNK, last - at), whole = part * c->part + at;
        memset(q, 0, sizeof q);
        values(k, whole, n, x);
        if (scale > 0)
            quantise(x, q, n, scale);
        pack(cpu_code_at(c, part, at), q, n, c->bits);
        if (isfinite(scale) && whole < count)
            cpu_write(&k->out[1], whole, cpu_min(n, count - whole), x);
    }
}

static void encode_blocks(void *context, int64_t first, int64_t last)
{
    struct hd_kernel *k = context;
    struct cpu_code c = cpu_code_of(k);
    for (int64_t n = first; n < last; n++)
        encode_block(k, &c, n / c.blocks, n % c.blocks);
}

static void run_encode(struct hd_kernel *k)
{
    struct cpu_code c = cpu_code_of(k);
    int64_t used = c.part * c.bits / 8 + c.blocks * 4;
    for (int64_t part = 0; part < c.parts; part++)
        memset(c.data + part * c.bytes + used, 0, (size_t)(c.bytes - used));
    cpu_parallel(k->device, c.parts * c.blocks, GRAIN, encode_blocks, k);
}

int32_t cpu_fast_encode(struct hd_kernel *k, struct hd_error *err)
{
    k->run = run_encode;
    return cpu_fast_dtypes(k, 1 << 16, err);
}

/* ---- decoding */

CPU_CLONES(void, add_codes, (float *y, const uint8_t *from, int64_t n, uint32_t bits, float scale),
           (y, from, n, bits, scale))
{
    if (bits == 8) {
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            y[i] += (float)(from[i] - 128) * scale;
        return;
    }
    for (int64_t i = 0; i < n; i++)
        y[i] += (float)((i & 1 ? from[i / 2] >> 4 : from[i / 2] & 15) - 8) * scale;
}

/* Elements [at, at + n) of the result, all in one block of a part. */
static void decode_chunk(struct hd_kernel *k, const struct cpu_code *c, int64_t at, int64_t n)
{
    int64_t first = c->sums ? 0 : at / c->part, last = c->sums ? c->parts : first + 1, in = at % c->part;
    float y[CHUNK] = {0};
    for (int64_t part = first; part < last; part++)
        add_codes(y, cpu_code_at(c, part, in), n, c->bits, *cpu_code_scale(c, part, in / c->block));
    cpu_end(k, 0, at, n, y);
}

static void decode_blocks(void *context, int64_t first, int64_t last)
{
    struct hd_kernel *k = context;
    struct cpu_code c = cpu_code_of(k);
    int64_t count = hd_operand_count(&k->out[0]);
    for (int64_t b = first; b < last; b++) {
        int64_t in = b % c.blocks * c.block, end = cpu_min(in + c.block, c.part), base = b / c.blocks * c.part;
        for (int64_t at = in; at < end; at += CHUNK)
            if (base + at < count)
                decode_chunk(k, &c, base + at, cpu_min(cpu_min(CHUNK, end - at), count - base - at));
    }
}

static void run_decode(struct hd_kernel *k)
{
    struct cpu_code c = cpu_code_of(k);
    cpu_parallel(k->device, (c.sums ? 1 : c.parts) * c.blocks, GRAIN, decode_blocks, k);
}

int32_t cpu_fast_decode(struct hd_kernel *k, struct hd_error *err)
{
    k->run = run_decode;
    return cpu_fast_dtypes(k, 1, err);
}
