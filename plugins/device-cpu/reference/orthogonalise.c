/* Orthogonalises columns: modified Gram-Schmidt, repeated for each column as often as needed (Kahan and Parlett: twice
 * is enough, unless it shrinks once more). */
#include "reference/reference.h"

int32_t cpu_check_orthogonalise(struct hd_kernel *k, struct hd_error *err)
{
    const struct hd_operand *a = &k->in[0], *q = &k->out[0];
    if (q->ndim != 2 || a->ndim != 2 || a->extent[0] != q->extent[0] || a->extent[1] != q->extent[1])
        return cpu_invalid(k, err, "orthogonalise wants a matrix, and another of its shape");
    if (q->extent[1] > q->extent[0])
        return cpu_invalid(k, err, "%lld columns of %lld rows cannot all be orthogonal", (long long)q->extent[1],
                           (long long)q->extent[0]);
    return HD_OK;
}

static double dot(const struct hd_operand *q, int64_t i, int64_t j)
{
    double sum = 0;
    for (int64_t row = 0; row < q->extent[0]; row++)
        sum += cpu_load(q, row * q->extent[1] + i) * cpu_load(q, row * q->extent[1] + j);
    return sum;
}

/* Column j += factor * column i. */
static void add_column(const struct hd_operand *q, int64_t j, double factor, int64_t i)
{
    for (int64_t row = 0; row < q->extent[0]; row++) {
        int64_t at = row * q->extent[1];
        cpu_store(q, at + j, cpu_load(q, at + j) + factor * cpu_load(q, at + i));
    }
}

/* Takes out of column j what lies along those before it. Its length then, or 0 where nothing but rounding is left. */
static double project(const struct hd_operand *q, int64_t j)
{
    double whole = sqrt(dot(q, j, j)), before = whole, length = whole;
    for (int pass = 0; (pass < 2 || length < before / 2) && length > cpu_rounding(q->dtype) * whole; pass++) {
        before = length;
        for (int64_t i = 0; i < j; i++)
            add_column(q, j, -dot(q, i, j), i);
        length = sqrt(dot(q, j, j));
    }
    return length > cpu_rounding(q->dtype) * whole ? length : 0;
}

static int all_finite(const struct hd_operand *q)
{
    int finite = 1;
    for (int64_t i = 0; i < hd_operand_count(q); i++)
        finite &= isfinite(cpu_load(q, i)) != 0;
    return finite;
}

void cpu_ref_orthogonalise(struct hd_kernel *k)
{
    const struct hd_operand *q = &k->out[0];
    int64_t rows = q->extent[0], columns = q->extent[1];
    int finite = all_finite(&k->in[0]);
    for (int64_t i = 0; i < rows * columns; i++)
        cpu_store(q, i, finite ? cpu_load(&k->in[0], i) : NAN);
    for (int64_t j = 0; j < columns && finite; j++) {
        double length = project(q, j);
        for (uint32_t attempt = 0; length == 0; attempt++) {
            for (int64_t row = 0; row < rows; row++)
                cpu_store(q, row * columns + j, hd_direction(row, j, attempt));
            length = project(q, j);
        }
        add_column(q, j, 1 / length - 1, j);
    }
}
