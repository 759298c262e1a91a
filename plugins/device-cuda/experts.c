/* Products of experts: y[b e # n] = x[b e # m] w[e ..] and dw[e ..] = dy[b e # n] x[b e # m], over slots that hold tokens. Which do
 * is known on the device alone, and cuBLASLt wants sizes: rows are copied to scratch, zeros where a slot is empty, and all of them are
 * multiplied. For dw they are copied by expert, so that one product an expert sums over sequences and slots. */
#include "einsum.h"
#include "experts.h"
#include "slots.h"

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
static struct hd_operand copied(struct cu_expert_rows *copy, const struct hd_operand *o, const struct hd_operand *tokens,
                                uint32_t by_expert, int64_t *offset)
{
    struct hd_operand c = *o;
    int64_t row = o->extent[3] * (int64_t)hd_dtype_size(o->dtype);
    *copy = (struct cu_expert_rows){.from = o->data, .to = (void *)(intptr_t)*offset, .token = tokens->data,
                                    .b = o->extent[0], .e = o->extent[1], .slots = o->extent[2], .row_bytes = row,
                                    .by_expert = by_expert, .wide = row % 16 == 0 && cu_aligned(o->data, 16)};
    *offset += (copy->b * copy->e * copy->slots * row + 255) / 256 * 256;
    c.data = CU_SCRATCH_LATER;
    for (uint32_t d = 0; d < 2 && by_expert; d++) {
        c.dim[d] = o->dim[1 - d];
        c.extent[d] = o->extent[1 - d];
    }
    return c;
}

static int32_t prepare(struct hd_device *d, const struct hd_instr_desc *i, struct hd_kernel *k, int64_t copies, struct hd_error *err)
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

int32_t cu_prepare_grouped(struct hd_device *d, const struct hd_instr_desc *i, struct hd_kernel *k, struct hd_error *err)
{
    return prepare(d, i, k, 1, err);
}

int32_t cu_prepare_grouped_dw(struct hd_device *d, const struct hd_instr_desc *i, struct hd_kernel *k, struct hd_error *err)
{
    return prepare(d, i, k, MOST_COPIES, err);
}
