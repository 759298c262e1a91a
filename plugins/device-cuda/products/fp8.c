/* Products in fp8: which they are, where their operands are cast to, and how cuBLASLt gets them. Both operands lie with
 * k's side by side then ("TN"), which every GPU with fp8 multiplies; their scales stay on the device, so that nothing
 * waits for the host. */
#include "products/fp8.h"
#include "products/blas.h"
#include <stddef.h>

enum { LEAST_CAPABILITY = 89, UNIT = 256 };

/* Head of the scratch memory, before the operands. cuBLASLt 13.1 refuses to run a product one of whose scales does not
 * lie on 16 bytes, though it offers algorithms for it. */
struct head {
    float largest[2][CU_FP8_PARTS];
    float scale[2][CU_FP8_SCALE];
};
enum { HEAD = (sizeof(struct head) + UNIT - 1) / UNIT * UNIT };

/* ---- which */

static const char *plan_of(const struct hd_device *d, const struct hd_instr_desc *i, struct cu_plan *plan)
{
    const char *why;
    if (i->struct_size < offsetof(struct hd_instr_desc, flags) + sizeof i->flags)
        return "this heddle does not say which operands are gradients and which are logits";
    if (i->flags & HD_INSTR_LOGITS)
        return "logits keep their dtype";
    why =
        cu_plan(plan, i->in, &i->out[0], (i->op == HD_OP_EINSUM || i->op == HD_OP_EINSUM_BIAS_DW) && cu_accumulates(i));
    if (!why)
        why = cu_plan_fp8(plan, d->settings->fp8_above);
    return why || cu_aligned(i->out[0].data, 16) ? why : "the output does not begin at 16 bytes";
}

int cu_fp8_takes(const struct hd_device *d, const struct hd_instr_desc *i)
{
    struct cu_plan plan;
    return d->settings->fp8 != CU_FP8_OFF && !plan_of(d, i, &plan);
}

/* Gradients reach over more powers of two than values do. There is no product of two e5m2. */
static uint32_t type_of(const struct hd_device *d, uint32_t grads, uint32_t n)
{
    return d->settings->fp8 == CU_FP8_HYBRID && grads == 1u << n ? CU_E5M2 : CU_E4M3;
}

/* ---- prepare */

static struct cu_fp8_operand operand_of(const struct hd_operand *o, const struct cu_matrix *x, int64_t batch,
                                        uint32_t turned, uint32_t type)
{
    struct cu_fp8_operand y = {.from = o->data,
                               .batch_stride = x->batch_stride,
                               .ld = x->ld,
                               .turned = turned,
                               .dtype = o->dtype,
                               .type = type};
    y.batch = x->batch_stride ? (uint32_t)batch : 1;
    y.outer = (uint32_t)(turned ? x->rows : x->cols);
    y.k = (uint32_t)(turned ? x->cols : x->rows);
    y.wide = cu_aligned(o->data, 16) && x->ld % 8 == 0 && x->batch_stride % 8 == 0;
    return y;
}

static struct cu_matrix matrix_of(const struct cu_fp8_operand *x, uint32_t trans)
{
    return (struct cu_matrix){.dtype = x->type,
                              .trans = trans,
                              .rows = x->k,
                              .cols = x->outer,
                              .ld = x->k,
                              .batch_stride = x->batch > 1 ? (int64_t)x->outer * x->k : 0};
}

/* Behind one another; returns where they end. */
static int64_t lay_out(struct cu_fp8 *x)
{
    int64_t end = HEAD;
    for (int n = 0; n < 2; n++) {
        x->at[n] = end;
        end += ((int64_t)x->cast.of[n].batch * x->cast.of[n].outer * x->cast.of[n].k + UNIT - 1) / UNIT * UNIT;
    }
    return end;
}

static struct cu_fp8_cast layout(const struct cu_fp8 *x, void *scratch)
{
    struct cu_fp8_cast c = x->cast;
    struct head *head = scratch;
    c.largest = head->largest[0];
    c.scale = head->scale[0];
    for (int n = 0; n < 2; n++)
        c.of[n].to = (uint8_t *)scratch + x->at[n];
    return c;
}

static int32_t prepare_gemm(struct hd_device *d, const struct cu_product *product, void *c, struct cu_fp8 *x,
                            struct hd_error *err)
{
    struct cu_product p = *product;
    struct cu_fp8_cast cast = layout(x, cu_scratch(d));
    const struct cu_beside beside = {.scale = {&cast.scale[0], &cast.scale[CU_FP8_SCALE]}};
    p.a = matrix_of(&x->cast.of[0], 1);
    p.b = matrix_of(&x->cast.of[1], 0);
    return cu_gemm_prepare(d, &p, cast.of[0].to, cast.of[1].to, c, &beside, &x->gemm, err);
}

int32_t cu_fp8_prepare(struct hd_device *d, const struct hd_instr_desc *i, struct cu_fp8 *x, struct hd_error *err)
{
    struct cu_plan plan;
    const char *why = plan_of(d, i, &plan);
    if (!why && i->flags & HD_INSTR_EXACT)
        return cu_refuse(err, HD_E_INVALID, i,
                         "deterministic: exact promises the same bits on every mesh, and scales of fp8 are of what a "
                         "rank holds: device.fp8=off, or job.deterministic=normal");
    if (why)
        return hd_fail(err, HD_E_UNSUPPORTED, "%s", why);
    const struct cu_product *p = &plan.product;
    uint32_t a = !plan.swapped, b = plan.swapped;
    x->cast.of[0] = operand_of(&i->in[a], &p->a, p->batch, !p->a.trans, type_of(d, i->grads & 3, a));
    x->cast.of[1] = operand_of(&i->in[b], &p->b, p->batch, p->b.trans, type_of(d, i->grads & 3, b));
    int32_t rc = cu_scratch_reserve(d, (size_t)lay_out(x), err);
    return rc ? rc : prepare_gemm(d, p, i->out[0].data, x, err);
}

int32_t cu_fp8_run(const struct hd_kernel *k, const struct cu_fp8 *x, void *c, cudaStream_t stream,
                   struct hd_error *err)
{
    struct cu_fp8_cast cast = layout(x, cu_scratch(k->device));
    const struct cu_beside beside = {.scale = {&cast.scale[0], &cast.scale[CU_FP8_SCALE]}};
    int32_t rc = cu_fp8_cast_launch(k, &cast, stream, err);
    return rc ? rc : cu_gemm_run(x->gemm, cast.of[0].to, cast.of[1].to, c, &beside, stream, err);
}

/* ---- open */

/* Prepares the product on memory that is never read. */
static int32_t try_types(struct hd_device *d, uint32_t a, uint32_t b, struct hd_error *err)
{
    const struct cu_product p = {
        .m = 64, .n = 64, .k = 64, .batch = 1, .d = {.dtype = HD_BF16, .rows = 64, .cols = 64, .ld = 64}};
    struct cu_fp8 x = {
        .cast.of = {{.batch = 1, .outer = 64, .k = 64, .type = a}, {.batch = 1, .outer = 64, .k = 64, .type = b}}};
    struct hd_error why = HD_ERROR_INIT;
    int32_t rc = cu_scratch_reserve(d, (size_t)lay_out(&x), &why);
    if (rc == HD_OK)
        rc = prepare_gemm(d, &p, CU_SCRATCH_LATER, &x, &why);
    return rc ? hd_fail(err, rc, "device option fp8: %s; device.fp8=off does without", why.message) : HD_OK;
}

int32_t cu_fp8_check(struct hd_device *d, struct hd_error *err)
{
    if (d->settings->fp8 == CU_FP8_OFF)
        return HD_OK;
    if (d->major * 10 + d->minor < LEAST_CAPABILITY)
        return hd_fail(err, HD_E_UNSUPPORTED,
                       "device option fp8: GPU %d has compute capability %d.%d, and products in fp8 need 8.9 or newer; "
                       "device.fp8=off does "
                       "without",
                       d->index, d->major, d->minor);
    int32_t rc = try_types(d, CU_E4M3, CU_E4M3, err);
    if (rc == HD_OK && d->settings->fp8 == CU_FP8_HYBRID)
        rc = try_types(d, CU_E4M3, CU_E5M2, err);
    return rc;
}
