/* Gradients in few bits, with the error carried over: definitions. */
#include "kernels/code.h"
#include "reference/reference.h"

struct cpu_code cpu_code_of(const struct hd_kernel *k)
{
    const struct hd_attrs *a = &k->d.attrs;
    int encodes = k->d.op == HD_OP_ENCODE;
    int64_t n = hd_operand_count(encodes ? &k->in[0] : &k->out[0]);
    const struct hd_operand *code = encodes ? &k->out[0] : &k->in[0];
    struct cpu_code c = {.data = code->data, .parts = a->parts, .block = a->window, .bits = a->index};
    c.sums = !encodes && !(a->flags & HD_ATTR_CONCAT);
    c.part = c.sums ? n : hd_code_part(n, c.parts);
    c.bytes = hd_code_bytes(c.part, c.block, c.bits);
    c.blocks = (c.part + c.block - 1) / c.block;
    return c;
}

int32_t cpu_check_code(struct hd_kernel *k, struct hd_error *err)
{
    const struct hd_attrs *a = &k->d.attrs;
    const struct hd_operand *code = k->d.op == HD_OP_ENCODE ? &k->out[0] : &k->in[0];
    struct cpu_code c;
    if ((a->index != 8 && a->index != 4) || a->window < 16 || a->window % 16 || !a->parts)
        return cpu_invalid(k, err, "codes have 8 or 4 bits, blocks of a multiple of 16 elements, and parts");
    c = cpu_code_of(k);
    if (c.part % 16)
        return cpu_invalid(k, err, "parts of %lld elements are summed, not of a multiple of 16", (long long)c.part);
    if ((code->dtype != HD_U8 && (code->dtype != HD_F64 || c.bits != 8)) || hd_operand_count(code) != c.parts * c.bytes)
        return cpu_invalid(k, err, "the codes are %lld bytes, not %lld parts of %lld",
                           (long long)hd_operand_count(code), (long long)c.parts, (long long)c.bytes);
    if (k->d.op == HD_OP_ENCODE && hd_operand_count(&k->out[1]) != hd_operand_count(&k->in[0]))
        return cpu_invalid(k, err, "the error has another size than the gradient");
    return HD_OK;
}

static void put_code(const struct cpu_code *c, int64_t part, int64_t i, int32_t q)
{
    uint8_t *at = cpu_code_at(c, part, i);
    if (c->bits == 8)
        *at = (uint8_t)(q + 128);
    else if (i % 2)
        *at = (uint8_t)((*at & 0x0f) | (q + 8) << 4);
    else
        *at = (uint8_t)(q + 8);
}

static int32_t get_code(const struct cpu_code *c, int64_t part, int64_t i)
{
    uint8_t q = *cpu_code_at(c, part, i);
    return c->bits == 8 ? q - 128 : (i % 2 ? q >> 4 : q & 15) - 8;
}

/* g + e of an element of the whole; 0 outside of all ranges. */
static double value_at(const struct hd_kernel *k, int64_t i)
{
    const struct hd_operand *g = &k->in[0];
    if (i >= hd_operand_count(g) || cpu_range_value(&k->d.attrs, g->start[0] + i, 0) == 0)
        return 0;
    return cpu_load(g, i) + cpu_load(&k->out[1], i);
}

static void encode_block(const struct hd_kernel *k, const struct cpu_code *c, int64_t part, int64_t block)
{
    int64_t first = block * c->block, last = first + c->block < c->part ? first + c->block : c->part,
            base = part * c->part;
    double most = 0;
    for (int64_t i = first; i < last; i++) {
        double x = fabs(value_at(k, base + i));
        most = x > most || isnan(x) ? x : most;
    }
    float scale = isfinite(most) ? (float)most / (float)cpu_code_most(c) : NAN;
    *cpu_code_scale(c, part, block) = scale;
    for (int64_t i = first; i < last; i++) {
        double x = value_at(k, base + i);
        int32_t q = scale > 0 ? (int32_t)nearbyint(x / scale) : 0;
        put_code(c, part, i, q);
        if (isfinite(scale) && base + i < hd_operand_count(&k->out[1]))
            cpu_store(&k->out[1], base + i, x - (double)q * scale);
    }
}

/* Codes in fp64, of emulations, are the numbers themselves: no error is left. */
static double *exact_code(const struct hd_operand *code, const struct cpu_code *c, int64_t part, int64_t i)
{
    return (double *)code->data + part * c->bytes + i;
}

static void encode_exactly(const struct hd_kernel *k, const struct cpu_code *c)
{
    int64_t n = hd_operand_count(&k->out[1]);
    for (int64_t i = 0; i < c->parts * c->part; i++) {
        double x = value_at(k, i);
        *exact_code(&k->out[0], c, i / c->part, i % c->part) = x;
        if (i < n && isfinite(x))
            cpu_store(&k->out[1], i, 0);
    }
}

void cpu_ref_encode(struct hd_kernel *k)
{
    struct cpu_code c = cpu_code_of(k);
    if (k->out[0].dtype == HD_F64) {
        memset(c.data, 0, (size_t)(c.parts * c.bytes) * sizeof(double));
        encode_exactly(k, &c);
        return;
    }
    memset(c.data, 0, (size_t)(c.parts * c.bytes));
    for (int64_t part = 0; part < c.parts; part++)
        for (int64_t block = 0; block < c.blocks; block++)
            encode_block(k, &c, part, block);
}

void cpu_ref_decode(struct hd_kernel *k)
{
    struct cpu_code c = cpu_code_of(k);
    int64_t n = hd_operand_count(&k->out[0]);
    for (int64_t i = 0; i < n; i++) {
        int64_t from = c.sums ? 0 : i / c.part, to = c.sums ? c.parts : from + 1, at = i % c.part;
        double sum = 0;
        for (int64_t part = from; part < to; part++)
            sum += k->in[0].dtype == HD_F64 ? *exact_code(&k->in[0], &c, part, at)
                                            : (double)get_code(&c, part, at) * *cpu_code_scale(&c, part, at / c.block);
        cpu_put(k, 0, i, sum);
    }
}
