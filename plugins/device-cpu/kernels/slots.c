/* Tokens into the slots of their experts and back. Slots without a token are zeros; nothing else of them is touched. */
#include "kernels/moe.h"
#include "kernels/rows.h"

enum { GRAIN = 8192 };

/* The state: for every token [b s] and expert the slot that holds it, or -1. */
static void find_slots(struct hd_kernel *k, const struct cpu_slots *s)
{
    int32_t *slot_of = k->state;
    memset(slot_of, 0xff, (size_t)(s->b * s->s * s->e) * sizeof *slot_of);
    for (int64_t slot = 0; slot < s->count; slot++) {
        int64_t token = cpu_token(s, slot);
        if (token >= 0)
            slot_of[token * s->e + slot / s->slots % s->e] = (int32_t)slot;
    }
}

static int32_t prepare_tokens(struct hd_kernel *k, void (*run)(struct hd_kernel *), uint32_t rows,
                              const struct hd_operand *tokens, struct hd_error *err)
{
    struct cpu_slots s = cpu_slots(&k->in[rows], tokens);
    int32_t rc = cpu_fast_dtypes(k, UINT32_C(1) << rows, err);
    k->run = run;
    if (!rc && s.count > INT32_MAX)
        return hd_fail(err, HD_E_UNSUPPORTED, "more than 2^31 slots");
    return rc ? rc : cpu_kernel_state(k, (size_t)(s.b * s.s * s.e) * sizeof(int32_t), err);
}

CPU_CLONES(void, add_scaled, (float *y, const float *x, float a, int64_t n), (y, x, a, n))
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        y[i] += a * x[i];
}

CPU_CLONES(float, dot, (const float *x, const float *y, int64_t n), (x, y, n))
{
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++)
        sum += x[i] * y[i];
    return sum;
}

/* ---- into slots */

static void into_slots(void *context, int64_t first, int64_t last)
{
    struct hd_kernel *k = context;
    const struct hd_operand *gates = k->d.op == HD_OP_COMBINE_DZ ? &k->in[1] : NULL;
    struct cpu_slots s = cpu_slots(&k->in[k->d.n_in - 1], &k->in[0]);
    float in[CPU_CHUNK], out[CPU_CHUNK], one;
    for (int64_t slot = first; slot < last; slot++) {
        int64_t token = cpu_token(&s, slot);
        float gate = 1;
        if (gates && token >= 0)
            gate = *cpu_read(gates, token * s.e + slot / s.slots % s.e, 1, &one);
        for (int64_t h = 0; h < s.width; h += CPU_CHUNK) {
            int64_t n = cpu_min(CPU_CHUNK, s.width - h);
            memset(out, 0, (size_t)n * sizeof *out);
            if (token >= 0)
                add_scaled(out, cpu_read(&k->in[0], token * s.width + h, n, in), gate, n);
            cpu_end(k, 0, slot * s.width + h, n, out);
        }
    }
}

static void run_into(struct hd_kernel *k)
{
    struct cpu_slots s = cpu_slots(&k->in[k->d.n_in - 1], &k->in[0]);
    cpu_parallel(k->device, s.count, 1 + GRAIN / (s.width + 1), into_slots, k);
}

int32_t cpu_fast_dispatch(struct hd_kernel *k, struct hd_error *err)
{
    k->run = run_into;
    return cpu_fast_dtypes(k, 1 << 1, err);
}

int32_t cpu_fast_combine_dz(struct hd_kernel *k, struct hd_error *err)
{
    k->run = run_into;
    return cpu_fast_dtypes(k, 1 << 2, err);
}

/* ---- out of slots: a sum over the experts of each token, in their order */

static void out_of_slots(void *context, int64_t first, int64_t last)
{
    struct hd_kernel *k = context;
    const struct hd_operand *gates = k->d.op == HD_OP_COMBINE ? &k->in[1] : NULL;
    struct cpu_slots s = cpu_slots(&k->in[k->d.n_in - 1], &k->out[0]);
    const int32_t *slot_of = k->state;
    float in[CPU_CHUNK], sum[CPU_CHUNK], one;
    for (int64_t token = first; token < last; token++)
        for (int64_t h = 0; h < s.width; h += CPU_CHUNK) {
            int64_t n = cpu_min(CPU_CHUNK, s.width - h);
            memset(sum, 0, (size_t)n * sizeof *sum);
            for (int64_t at = token * s.e; at < (token + 1) * s.e; at++) {
                float gate = gates && slot_of[at] >= 0 ? *cpu_read(gates, at, 1, &one) : 1;
                if (slot_of[at] >= 0)
                    add_scaled(sum, cpu_read(&k->in[0], slot_of[at] * s.width + h, n, in), gate, n);
            }
            cpu_end(k, 0, token * s.width + h, n, sum);
        }
}

static void run_out_of(struct hd_kernel *k)
{
    struct cpu_slots s = cpu_slots(&k->in[k->d.n_in - 1], &k->out[0]);
    find_slots(k, &s);
    cpu_parallel(k->device, s.b * s.s, 1 + GRAIN / (s.width + 1), out_of_slots, k);
}

int32_t cpu_fast_dispatch_dx(struct hd_kernel *k, struct hd_error *err)
{
    return prepare_tokens(k, run_out_of, 1, &k->out[0], err);
}

int32_t cpu_fast_combine(struct hd_kernel *k, struct hd_error *err)
{
    return prepare_tokens(k, run_out_of, 2, &k->out[0], err);
}

static void gate_gradients(void *context, int64_t first, int64_t last)
{
    struct hd_kernel *k = context;
    struct cpu_slots s = cpu_slots(&k->in[2], &k->in[1]);
    const int32_t *slot_of = k->state;
    float a[CPU_CHUNK], b[CPU_CHUNK];
    for (int64_t at = first * s.e; at < last * s.e; at++) {
        float sum = 0;
        for (int64_t h = 0; slot_of[at] >= 0 && h < s.width; h += CPU_CHUNK) {
            int64_t n = cpu_min(CPU_CHUNK, s.width - h);
            sum += dot(cpu_read(&k->in[0], slot_of[at] * s.width + h, n, a),
                       cpu_read(&k->in[1], at / s.e * s.width + h, n, b), n);
        }
        cpu_end(k, 0, at, 1, &sum);
    }
}

static void run_combine_dg(struct hd_kernel *k)
{
    struct cpu_slots s = cpu_slots(&k->in[2], &k->in[1]);
    find_slots(k, &s);
    cpu_parallel(k->device, s.b * s.s, 1 + GRAIN / (s.width + 1), gate_gradients, k);
}

int32_t cpu_fast_combine_dg(struct hd_kernel *k, struct hd_error *err)
{
    return prepare_tokens(k, run_combine_dg, 2, &k->in[1], err);
}
