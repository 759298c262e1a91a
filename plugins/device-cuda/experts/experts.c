/* Products of experts: y[b e # n] = x[b e # m] w[e ..] and dw[e ..] = dy[b e # n] x[b e # m], over slots that hold
 * tokens. Which do is known on the device alone, and cuBLASLt wants sizes. Where few slots are filled (no capacity: a
 * slot a token and expert) and operands have 16 bits, a kernel of our own takes those alone: grouped.cu. Else rows are
 * copied to scratch, zeros where a slot is empty, and all of them are multiplied. For dw they are copied by expert, so
 * that one product an expert sums over sequences and slots. */
#include "experts/experts.h"
#include "experts/grouped.h"
#include "op_table.h"
#include "products/einsum.h"

/* Our kernel reaches about half of cuBLASLt's rate: an estimate, tests/gpu/run has the word. */
#define FEW 0.4

enum { MOST_COPIES = 2 };

struct experts {
    struct cu_einsum of;
    struct cu_expert_rows copy[MOST_COPIES]; /* of inputs 0 and 1; `to` is an offset in scratch */
    int64_t copies;
    const void *second; /* an input that is no copy */
    void *out;
};

static void *in_scratch(const struct hd_kernel *k, int64_t offset)
{
    return (char *)cu_scratch(k->device) + offset;
}

static int32_t run(struct hd_kernel *k, cudaStream_t stream, struct hd_error *err)
{
    const struct experts *x = k->state;
    const void *in[2] = {NULL, x->second};
    int32_t rc = HD_OK;
    for (int64_t i = 0; i < x->copies && rc == HD_OK; i++) {
        struct cu_expert_rows copy = x->copy[i];
        copy.to = in_scratch(k, (int64_t)(intptr_t)copy.to);
        in[i] = copy.to;
        rc = cu_expert_rows_launch(k, &copy, stream, err);
    }
    return rc ? rc : cu_einsum_run(&x->of, in[0], in[1], x->out, stream, err);
}

/* The copy as an operand; `offset` moves behind it. */
static struct hd_operand copied(struct cu_expert_rows *copy, const struct hd_operand *o,
                                const struct hd_operand *tokens, uint32_t by_expert, int64_t *offset)
{
    struct hd_operand c = *o;
    int64_t row = o->extent[3] * (int64_t)hd_dtype_size(o->dtype);
    *copy = (struct cu_expert_rows){.from = o->data,
                                    .to = (void *)(intptr_t)*offset,
                                    .token = tokens->data,
                                    .b = o->extent[0],
                                    .e = o->extent[1],
                                    .slots = o->extent[2],
                                    .row_bytes = row,
                                    .by_expert = by_expert,
                                    .wide = row % 16 == 0 && cu_aligned(o->data, 16)};
    *offset += (copy->b * copy->e * copy->slots * row + 255) / 256 * 256;
    c.data = CU_SCRATCH_LATER;
    for (uint32_t d = 0; d < 2 && by_expert; d++) {
        c.dim[d] = o->dim[1 - d];
        c.extent[d] = o->extent[1 - d];
    }
    return c;
}

static int32_t prepare(struct hd_device *d, const struct hd_instr_desc *i, struct hd_kernel *k, int64_t copies,
                       struct hd_error *err)
{
    struct hd_error why = HD_ERROR_INIT;
    struct hd_operand in[2] = {i->in[0], i->in[1]};
    int64_t bytes = 0;
    if (i->in[2].dtype != HD_I32 || i->in[0].ndim != 4)
        return cu_refuse(err, HD_E_INVALID, i, "slots are [b e # h] with tokens in int32");
    struct experts *x = d->host->alloc(sizeof *x);
    if (!x)
        return cu_refuse(err, HD_E_NOMEM, i, "no memory for products of experts");
    k->state = x;
    k->run = run;
    x->copies = copies;
    x->second = i->in[1].data;
    x->out = i->out[0].data;
    for (int64_t n = 0; n < copies; n++)
        in[n] = copied(&x->copy[n], &i->in[n], &i->in[2], copies == MOST_COPIES, &bytes);
    int32_t rc = cu_einsum_prepare(d, in, &i->out[0], cu_accumulates(i), &x->of, &why);
    if (rc)
        return cu_refuse(err, rc, i, "products of experts: %s", why.message);
    return cu_scratch_reserve(d, (size_t)bytes, err);
}

/* ---- those that hold tokens alone */

static int is_fine(const struct hd_operand *o, uint32_t dtype)
{
    return o->dtype == dtype && cu_aligned(o->data, 16);
}

/* Is it what grouped.cu is for? */
static int few(const struct hd_device *d, const struct hd_instr_desc *i, struct cu_grouped *a)
{
    const struct hd_operand *in = i->in, *out = &i->out[0], *weights = a->kind == CU_GROUPED_SUMS ? out : &in[1];
    uint32_t dtype = in[0].dtype;
    return d->major >= 8 && (dtype == HD_BF16 || dtype == HD_F16) && i->attrs.share > 0 && i->attrs.share < FEW &&
           in[0].ndim == 4 && weights->ndim == 3 && is_fine(&in[0], dtype) && is_fine(&in[1], dtype) &&
           is_fine(out, out->dtype == HD_F32 ? HD_F32 : dtype) && weights->extent[1] % 8 == 0 &&
           weights->extent[2] % 8 == 0 && hd_operand_count(out) > 0 && hd_operand_count(&in[0]) > 0 &&
           weights->extent[1] <= INT32_MAX && weights->extent[2] <= INT32_MAX;
}

static struct cu_grouped grouped_of(const struct hd_instr_desc *i, int32_t kind)
{
    const struct hd_operand *x = &i->in[0];
    return (struct cu_grouped){.from = x->data,
                               .with = i->in[1].data,
                               .to = i->out[0].data,
                               .token = i->in[2].data,
                               .b = x->extent[0],
                               .e = x->extent[1],
                               .slots = x->extent[2],
                               .dtype = x->dtype,
                               .to_dtype = i->out[0].dtype,
                               .kind = kind,
                               .adds = (int32_t)cu_accumulates(i)};
}

static int32_t prepare_rows(struct hd_device *d, const struct hd_instr_desc *i, struct hd_kernel *k,
                            struct hd_error *err)
{
    int turned = i->in[1].ndim == 3 && i->in[1].dim[1] != i->in[0].dim[3];
    struct cu_grouped a = grouped_of(i, turned ? CU_GROUPED_TURNED : CU_GROUPED_ROWS);
    if (i->in[2].dtype != HD_I32 || !few(d, i, &a))
        return HD_E_UNSUPPORTED;
    a.k = (int32_t)i->in[0].extent[3];
    a.n = (int32_t)i->out[0].extent[3];
    return cu_grouped_prepare(d, k, &a, err);
}

/* dy or x comes first: whichever has the rows of dw. */
static int32_t prepare_sums(struct hd_device *d, const struct hd_instr_desc *i, struct hd_kernel *k,
                            struct hd_error *err)
{
    struct cu_grouped a = grouped_of(i, CU_GROUPED_SUMS);
    if (i->in[2].dtype != HD_I32 || i->in[1].ndim != 4 || !few(d, i, &a))
        return HD_E_UNSUPPORTED;
    if (i->out[0].dim[1] != i->in[0].dim[3]) {
        a.from = i->in[1].data;
        a.with = i->in[0].data;
    }
    a.m = (int32_t)i->out[0].extent[1];
    a.n = (int32_t)i->out[0].extent[2];
    return cu_grouped_prepare(d, k, &a, err);
}

/* ---- the ops */

int32_t cu_prepare_grouped(struct hd_device *d, const struct hd_instr_desc *i, struct hd_kernel *k,
                           struct hd_error *err)
{
    int32_t rc = prepare_rows(d, i, k, err);
    return rc == HD_E_UNSUPPORTED ? prepare(d, i, k, 1, err) : rc;
}

int32_t cu_prepare_grouped_dw(struct hd_device *d, const struct hd_instr_desc *i, struct hd_kernel *k,
                              struct hd_error *err)
{
    int32_t rc = prepare_sums(d, i, k, err);
    return rc == HD_E_UNSUPPORTED ? prepare(d, i, k, MOST_COPIES, err) : rc;
}
