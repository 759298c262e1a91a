/* Rotary positions: cosines and sines are made once, when the instruction is prepared; of positions that are an input
 * (rope_at), when it runs. */
#include "kernels/rows.h"
#include "reference/reference.h"

enum { ROW_GRAIN = 16384 };

/* Rows of the table: one a local position, or of rope_at one a row of x. */
static int64_t table_rows(const struct hd_kernel *k)
{
    return k->d.n_in > 1 ? cpu_span(&k->in[0], 0, 2) : k->in[0].extent[1];
}

/* The state: in each row, a cosine for each pair then a sine for each, times the scale. */
static void fill_table(struct hd_kernel *k, float *table)
{
    const struct hd_operand *x = &k->in[0];
    const int32_t *at = k->d.n_in > 1 ? k->in[1].data : NULL;
    int64_t half = cpu_pairs(k).n;
    double scale = k->d.attrs.scale != 0 ? k->d.attrs.scale : 1;
    for (int64_t s = 0; s < table_rows(k); s++)
        for (int64_t i = 0; i < half; i++) {
            double position = (double)(at ? at[s] : hd_position(&k->d.attrs, x->start[1] + s));
            double angle = k->d.attrs.sign * position * k->d.attrs.table[i];
            table[2 * half * s + i] = (float)(scale * cos(angle));
            table[2 * half * s + half + i] = (float)(scale * sin(angle));
        }
}

CPU_INLINE void turn_pairs(float *y, const float *x, const float *table, int64_t n, int64_t step, int64_t apart)
{
    const float *c = table, *s = table + n;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float a = x[i * step], b = x[i * step + apart];
        y[i * step] = a * c[i] - b * s[i];
        y[i * step + apart] = b * c[i] + a * s[i];
    }
}

CPU_CLONES(void, turn, (float *y, const float *x, const float *table, const struct cpu_pairs *pairs),
           (y, x, table, pairs))
{
    if (pairs->step == 1)
        turn_pairs(y, x, table, pairs->n, 1, pairs->n);
    else
        turn_pairs(y, x, table, pairs->n, 2, 1);
}

static void turn_rows(void *context, int64_t first, int64_t last)
{
    struct hd_kernel *k = context;
    const struct hd_operand *x = &k->in[0];
    struct cpu_pairs pairs = cpu_pairs(k);
    float in[CPU_CHUNK], out[CPU_CHUNK];
    int64_t d = x->extent[x->ndim - 1], heads = cpu_span(x, 2, x->ndim - 1), rows = table_rows(k);
    for (int64_t row = first; row < last; row++) {
        const float *table = (const float *)k->state + row % rows * 2 * pairs.n;
        for (int64_t head = 0; head < heads; head++) {
            int64_t at = (row * heads + head) * d;
            float *y = cpu_begin(k, 0, at, out);
            const float *from = cpu_read(x, at, d, in);
            turn(y, from, table, &pairs);
            if (y != from)
                memcpy(y + 2 * pairs.n, from + 2 * pairs.n, (size_t)(d - 2 * pairs.n) * sizeof *y);
            cpu_end(k, 0, at, d, y);
        }
    }
}

static void run(struct hd_kernel *k)
{
    int64_t per_row = cpu_stride(&k->in[0], 1);
    if (k->d.n_in > 1)
        fill_table(k, k->state);
    cpu_parallel(k->device, cpu_span(&k->in[0], 0, 2), 1 + ROW_GRAIN / (per_row + 1), turn_rows, k);
}

int32_t cpu_fast_rope(struct hd_kernel *k, struct hd_error *err)
{
    const struct hd_operand *x = &k->in[0];
    int64_t d = x->extent[x->ndim - 1];
    int32_t rc = cpu_fast_dtypes(k, 1 << 1, err);
    if (!rc && d > CPU_CHUNK)
        return hd_fail(err, HD_E_UNSUPPORTED, "head size %lld is beyond %d", (long long)d, CPU_CHUNK);
    if (!rc)
        rc = cpu_kernel_state(k, (size_t)(table_rows(k) * 2 * cpu_pairs(k).n) * sizeof(float), err);
    if (rc)
        return rc;
    if (k->d.n_in == 1)
        fill_table(k, k->state);
    k->run = run;
    return HD_OK;
}
