/* An einsum as a matrix product: one label of each group m, n and k, such that every operand has a unit stride in one
 * of its two; one label more as the batch of a strided product; loops over what is left. See
 * ../common/einsum_labels.h. */
#include "products/plan.h"

/* Strides of an operand seen as a matrix of rows and columns. */
struct view {
    int64_t rs, cs;
};

struct choice {
    const struct label *m, *n, *k;
    struct view a, b, c; /* a [m k], b [k n], c [m n] */
};

static struct view view_of(const struct label *row, const struct label *col, int which)
{
    struct view v;
    label_strides(row, col, which, &v.rs, &v.cs);
    return v;
}

static int has_unit(const struct view *v)
{
    return v->rs == 1 || v->cs == 1;
}

static int fits(struct choice *x)
{
    x->a = view_of(x->m, x->k, LABELS_A);
    x->b = view_of(x->k, x->n, LABELS_B);
    x->c = view_of(x->m, x->n, LABELS_C);
    return has_unit(&x->a) && has_unit(&x->b) && has_unit(&x->c);
}

static int64_t at_least_one(int64_t n)
{
    return n ? n : 1;
}

/* The largest product of those that fit; 0 if there is none. */
static int choose(const struct labels *l, struct choice *best)
{
    double most = 0;
    for (int64_t m = 0; m < at_least_one(labels_count(l, LABEL_M)); m++)
        for (int64_t n = 0; n < at_least_one(labels_count(l, LABEL_N)); n++)
            for (int64_t k = 0; k < at_least_one(labels_count(l, LABEL_K)); k++) {
                struct choice x = {labels_member(l, LABEL_M, m),
                                   labels_member(l, LABEL_N, n),
                                   labels_member(l, LABEL_K, k),
                                   {0},
                                   {0},
                                   {0}};
                double size = (double)x.m->extent * (double)x.n->extent * (double)x.k->extent;
                if (fits(&x) && size > most) {
                    most = size;
                    *best = x;
                }
            }
    return most > 0;
}

/* An operand [rows cols] that is used as its transpose, since cuBLAS is column-major: stored as [cols rows] where
 * columns lie side by side, and that is how it is used; else stored as [rows cols], and transposed. */
static struct cu_matrix matrix_of(uint32_t dtype, const struct view *v, int64_t rows, int64_t cols)
{
    struct cu_matrix x = {.dtype = dtype, .trans = v->cs != 1};
    x.rows = x.trans ? rows : cols;
    x.cols = x.trans ? cols : rows;
    x.ld = x.trans ? v->cs : v->rs;
    if (x.cols == 1 || x.ld < x.rows) /* one column: nothing is that far away */
        x.ld = x.rows;
    return x;
}

/* c row-major, by swapping the operands where it is not: the transpose of c is a product of transposes. */
static uint32_t make_row_major(struct choice *x)
{
    struct choice t = *x;
    if (x->c.cs == 1)
        return 0;
    x->m = t.n;
    x->n = t.m;
    x->a = (struct view){t.b.cs, t.b.rs};
    x->b = (struct view){t.a.cs, t.a.rs};
    x->c = (struct view){t.c.cs, t.c.rs};
    return 1;
}

/* The remaining labels: the longest that is not summed becomes the batch, the others loops, summed ones last. */
static void split_rest(struct cu_plan *p, const struct labels *l, const struct choice *x)
{
    const struct label *batch = NULL;
    for (int64_t i = 0; i < l->count; i++) {
        const struct label *y = &l->at[i];
        if (y != x->m && y != x->n && y != x->k && y->where != LABEL_K && (!batch || y->extent > batch->extent))
            batch = y;
    }
    for (int pass = 0; pass < 2; pass++)
        for (int64_t i = 0; i < l->count; i++) {
            const struct label *y = &l->at[i];
            if (y != x->m && y != x->n && y != x->k && y != batch && (y->where == LABEL_K) == pass) {
                p->outer.at[p->outer.count++] = *y;
                p->loops *= y->extent;
                p->sums |= (uint32_t)pass;
            }
        }
    if (!batch)
        return;
    int first = p->swapped ? LABELS_A : LABELS_B;
    p->product.batch = batch->extent;
    p->product.a.batch_stride = batch->stride[first];
    p->product.b.batch_stride = batch->stride[first == LABELS_A ? LABELS_B : LABELS_A];
    p->product.d.batch_stride = batch->stride[LABELS_C];
}

static int one_of(uint32_t dtype, uint32_t a, uint32_t b)
{
    return dtype == a || dtype == b;
}

/* cuBLASLt's table of types: equal inputs; 16-bit ones give themselves or fp32. */
static const char *check_dtypes(const struct hd_operand *in, const struct hd_operand *out)
{
    uint32_t dtype = in[0].dtype;
    if (dtype != in[1].dtype)
        return "the inputs have two dtypes";
    if (one_of(dtype, HD_F32, HD_F64))
        return out->dtype == dtype ? NULL : "the output has another dtype";
    if (one_of(dtype, HD_BF16, HD_F16))
        return one_of(out->dtype, dtype, HD_F32) ? NULL : "the output has another dtype";
    return "there is no product of this dtype";
}

const char *cu_plan(struct cu_plan *p, const struct hd_operand *in, const struct hd_operand *out, uint32_t accumulate)
{
    struct labels l = {.count = 0};
    struct choice x = {&label_none, &label_none, &label_none, {0}, {0}, {0}};
    const char *why = check_dtypes(in, out);
    *p = (struct cu_plan){.loops = 1};
    if (why)
        return why;
    if (!hd_operand_count(&in[0]) || !hd_operand_count(&in[1]))
        return "an input is empty";
    if (!labels_enter(&l, &in[0], LABELS_A) || !labels_enter(&l, &in[1], LABELS_B) || !labels_enter(&l, out, LABELS_C))
        return "a dim occurs twice or with two extents";
    labels_fuse(&l);
    if (!labels_valid(&l))
        return "a sum over one operand alone";
    if (!choose(&l, &x))
        return "no matrix product with these orders of dims";
    p->swapped = make_row_major(&x);
    const struct hd_operand *a = &in[p->swapped], *b = &in[!p->swapped];
    p->product.m = x.n->extent;
    p->product.n = x.m->extent;
    p->product.k = x.k->extent;
    p->product.batch = 1;
    p->product.a = matrix_of(b->dtype, &x.b, x.k->extent, x.n->extent);
    p->product.b = matrix_of(a->dtype, &x.a, x.m->extent, x.k->extent);
    p->product.d = matrix_of(out->dtype, &x.c, x.m->extent, x.n->extent);
    p->product.accumulate = accumulate;
    split_rest(p, &l, &x);
    if (p->loops > CU_LOOPS_MOST || p->product.batch > INT32_MAX)
        return "too many products";
    if (p->sums && out->dtype != HD_F32 && out->dtype != HD_F64)
        return "a sum over separated dims would be rounded between its parts";
    return NULL;
}

/* ---- epilogues: the product is one, d is row-major [n m] and whole, so a bias of its last dims is [m] */

static const char *plan_bias(struct cu_product *p, const struct hd_operand *bias, const struct hd_operand *out,
                             uint32_t epilogue)
{
    if (hd_operand_count(bias) != p->m)
        return "the bias is no row of the product";
    if (bias->dtype != out->dtype)
        return "the bias has another dtype";
    p->epilogue = epilogue;
    return NULL;
}

static const char *check_aux(const struct cu_product *p, const struct hd_operand *aux, const struct hd_operand *out)
{
    if (aux->dtype != out->dtype)
        return "what GELU is of has another dtype";
    return p->m % 8 ? "rows of what GELU is of are no multiple of 8" : NULL;
}

/* The sum of in[0] over the terms of the product. */
static const char *plan_bias_dw(struct cu_product *p, uint32_t swapped, const struct hd_operand *in,
                                const struct hd_operand *out)
{
    int64_t rows = swapped ? p->m : p->n;
    if (hd_operand_count(&out[1]) != rows || hd_operand_count(&in[0]) != rows * p->k)
        return "the sum is not over the terms of the product";
    if (out[1].dtype != out[0].dtype)
        return "the gradient of the bias has another dtype";
    if (p->accumulate && out[1].dtype != HD_F32)
        return "the gradient of the bias would be rounded before it is added";
    p->epilogue = swapped ? CU_EPILOGUE_BGRADA : CU_EPILOGUE_BGRADB;
    return NULL;
}

const char *cu_plan_epilogue(struct cu_plan *plan, uint32_t op, const struct hd_operand *in,
                             const struct hd_operand *out, uint32_t n_out)
{
    struct cu_product *p = &plan->product;
    const char *why;
    if (plan->loops != 1 || p->batch != 1)
        return "several products";
    if (out[0].dtype == HD_F64)
        return "fp64 has none";
    switch (op) {
    case HD_OP_EINSUM_BIAS:
        return plan_bias(p, &in[2], out, CU_EPILOGUE_BIAS);
    case HD_OP_EINSUM_GELU:
        why = n_out > 1 ? check_aux(p, &out[1], out) : NULL;
        return why ? why : plan_bias(p, &in[2], out, n_out > 1 ? CU_EPILOGUE_GELU_AUX_BIAS : CU_EPILOGUE_GELU_BIAS);
    case HD_OP_EINSUM_GELU_GRAD:
        why = check_aux(p, &in[2], out);
        p->epilogue = why ? CU_EPILOGUE_NONE : CU_EPILOGUE_DGELU;
        return why;
    case HD_OP_EINSUM_BIAS_DW:
        return plan_bias_dw(p, plan->swapped, in, out);
    default:
        return "no such epilogue";
    }
}

/* ---- chunks of logits */

static int64_t up(int64_t n, int64_t unit)
{
    return (n + unit - 1) / unit;
}

int64_t cu_plan_rows(int64_t rows, int64_t most, int64_t width, int64_t processors)
{
    enum { UNIT = 32, TALL = 128, WIDE = 256 };
    int64_t unit = most < TALL ? UNIT : TALL, fewest = INT64_MAX, best = most / unit * unit,
            all = up(rows, unit) * unit;
    for (int64_t n = best < all ? best : all; n > 0; n -= unit) {
        int64_t waves = rows / n * up(up(n, TALL) * up(width, WIDE), processors) +
                        up(up(rows % n, TALL) * up(width, WIDE), processors);
        if (waves < fewest) { /* else as many in more chunks */
            fewest = waves;
            best = n;
        }
    }
    if (rows < 1)
        return 1;
    best = up(up(rows, up(rows, best)), unit) * unit; /* chunks of one size */
    return best < rows ? best : rows;
}

/* ---- fp8: cuBLASLt wants all sizes in 16s. What it saves goes with m n k, what casts cost with (m + n) k. */

const char *cu_plan_fp8(const struct cu_plan *plan, int64_t above)
{
    const struct cu_product *p = &plan->product;
    const int64_t most = INT64_C(1) << 34; /* elements of an operand: packs of 8 are counted in 32 bits */
    if (plan->loops != 1)
        return "several products";
    if (!one_of(p->a.dtype, HD_BF16, HD_F16))
        return "its operands are not in 16 bits";
    if (p->m % 16 || p->n % 16 || p->k % 16 || p->d.ld % 16 || p->d.batch_stride % 16)
        return "its sizes are no multiples of 16";
    if ((double)p->m * (double)p->n < (double)above * (double)(p->m + p->n))
        return "it is too small to pay for casts: option fp8_above";
    if (p->batch >= most || p->m >= most || p->n >= most || p->k >= most || p->batch * p->m >= most / p->k ||
        p->batch * p->n >= most / p->k)
        return "it is too large";
    return NULL;
}
