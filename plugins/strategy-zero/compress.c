/* Gradients made smaller: which of them, and what is refused; products are in powersgd.c.
 *
 * Here, 8 or 4 bits with error feedback (Seide et al. 2014; Karimireddy et al., arXiv 1901.09847), reduced in two
 * exchanges of codes, as 1-bit Adam has it (Tang et al., arXiv 2102.02888):
 *
 *   encode g + e, keep what is left over in e      one part for each member
 *   all_to_all                                     each has everybody's codes of its part
 *   decode and sum                                 stage 1 ends here: the part is the shard
 *   encode the sum, with an error of its own; all_gather; decode
 *
 * The errors are this rank's own: checkpoints have one of every rank. */
#include "heddle/optimizer.h"

#include "internal.h"

uint32_t zero_code_axes(const struct zero *z, const struct zero_flat *f)
{
    return f->axes | (f->stage && !z->rank ? 0 : f->outer);
}

int zero_codes(const struct zero *z, const struct zero_flat *f)
{
    return (z->bits || z->rank) && zero_code_axes(z, f);
}

int64_t zero_ways(const struct zero *z, uint32_t axes)
{
    int64_t ways = 1;
    for (uint32_t a = 0; a < HD_AXIS_COUNT; a++)
        if (axes & HD_AXIS_BIT(a))
            ways *= z->api->axis_size(z->p, a);
    return ways;
}

static hd_tensor error_like(struct zero *z, const char *name, hd_tensor t, uint32_t axes)
{
    hd_tensor e = z->api->vector_like(z->p, name, t, axes, HD_LIFE_PERSISTENT);
    z->api->declare(z->p, e, HD_FACT_FEEDBACK, 0, NULL);
    return e;
}

/* Codes and their errors' places, once a flat. */
static void make_tensors(struct zero *z, struct zero_flat *f, struct zero_code *c)
{
    uint32_t grad = z->api->dtype(z->p, "grad"), wide = grad == HD_F64 ? HD_F64 : HD_F32, axes = zero_code_axes(z, f);
    struct hd_pass_flat flat;
    int64_t part, bytes;
    z->api->flat_get(z->p, f->id, &flat);
    c->ways = zero_ways(z, axes);
    part = hd_code_part(flat.count, c->ways);
    bytes = hd_code_bytes(part, z->settings.compress_block, z->bits);
    c->sent = z->api->vector(z->p, f->id, "c", c->ways * bytes, HD_U8, 0, HD_LIFE_TEMP);
    c->got = z->api->vector_like(z->p, "cx", c->sent, 0, HD_LIFE_TEMP);
    c->error = z->api->flat_whole(z->p, f->id, "E", wide, HD_LIFE_PERSISTENT);
    z->api->declare(z->p, c->error, HD_FACT_FEEDBACK, 0, NULL);
    if (f->stage)
        return;
    c->sum = z->api->vector(z->p, f->id, "s", c->ways * part, wide, axes, HD_LIFE_TEMP);
    c->sum_error = error_like(z, "ES", c->sum, axes);
    c->sum_sent = z->api->vector_like(z->p, "cs", c->sent, axes, HD_LIFE_TEMP);
    c->gathered = z->api->vector_like(z->p, "cg", c->sent, 0, HD_LIFE_TEMP);
}

static void put(struct zero *z, const struct zero_flat *f, uint32_t op, hd_tensor in, hd_tensor out, hd_tensor error,
                int64_t parts, uint32_t flags, uint32_t section, uint32_t index)
{
    struct hd_attrs attrs = {.struct_size = sizeof attrs,
                             .index = z->bits,
                             .window = z->settings.compress_block,
                             .parts = (uint32_t)parts,
                             .flags = flags};
    struct hd_range *ranges = z->host->alloc((f->n_params + 1) * sizeof *ranges);
    uint32_t axes = op == HD_OP_ALL_TO_ALL || op == HD_OP_ALL_GATHER ? zero_code_axes(z, f) : 0;
    struct hd_pass_instr i = zero_instr(z, f, op, in, out, axes);
    struct hd_pass_flat flat;
    if (!ranges) {
        z->api->fail(z->p, "strategy-zero: out of memory");
        return;
    }
    z->api->flat_get(z->p, f->id, &flat);
    for (uint32_t k = 0; k < f->n_params && op == HD_OP_ENCODE; k++)
        ranges[k] = (struct hd_range){flat.offset[k], z->params[f->params[k]].count, 1};
    if (op == HD_OP_ENCODE) {
        i.out[i.n_out++] = error;
        attrs.ranges = ranges;
        attrs.n_ranges = f->n_params;
    }
    if (op == HD_OP_ENCODE || op == HD_OP_DECODE)
        i.attrs = &attrs;
    z->api->insert(z->p, section, index, 1, &i);
    z->host->free(ranges);
}

void zero_compress(struct zero *z, struct zero_flat *f, hd_tensor grad, struct zero_tail *tail, uint32_t section,
                   uint32_t index)
{
    struct zero_code *c = &f->code;
    if (z->rank) {
        zero_project(z, f, grad, tail, section, index);
        return;
    }
    make_tensors(z, f, c);
    put(z, f, HD_OP_ENCODE, grad, c->sent, c->error, c->ways, HD_ATTR_ACCUMULATE, section, index);
    put(z, f, HD_OP_ALL_TO_ALL, c->sent, c->got, 0, 0, 0, section, index);
    zero_flush(z, tail, section, index);
    *tail = (struct zero_tail){.flat = f, .op = HD_OP_DECODE};
}

/* The codes of a part are here. */
void zero_decode(struct zero *z, struct zero_flat *f, uint32_t section, uint32_t index)
{
    struct zero_code *c = &f->code;
    c->ends = z->rank || !f->stage;
    if (z->rank) {
        zero_project_back(z, f, section, index);
        return;
    }
    put(z, f, HD_OP_DECODE, c->got, f->stage ? f->shard : c->sum, 0, c->ways, 0, section, index);
    if (f->stage)
        return;
    put(z, f, HD_OP_ENCODE, c->sum, c->sum_sent, c->sum_error, 1, HD_ATTR_ACCUMULATE, section, index);
    put(z, f, HD_OP_ALL_GATHER, c->sum_sent, c->gathered, 0, 0, 0, section, index);
}

void zero_decode_rest(struct zero *z, uint32_t section, uint32_t index)
{
    for (uint32_t n = 0; n < z->n_flats; n++) {
        struct zero_flat *f = &z->flats[n];
        if (f->code.ends && z->rank)
            zero_multiply(z, f, section, index);
        else if (f->code.ends)
            put(z, f, HD_OP_DECODE, f->code.gathered, f->grad, 0, f->code.ways, HD_ATTR_CONCAT, section, index);
        f->code.ends = 0;
    }
}

/* ---- what makes no sense */

static int scales_its_loss(const struct zero *z)
{
    for (uint32_t s = 0; s < z->api->n_sections(z->p); s++)
        for (uint32_t k = 0; k < z->api->n_instr(z->p, s); k++) {
            struct hd_pass_instr i;
            z->api->instr(z->p, s, k, &i);
            if (i.op == HD_OP_SPREAD && i.n_in)
                return 1;
        }
    return 0;
}

static int32_t check_codes(const struct zero *z, const char *kind, struct hd_error *err)
{
    if (z->stage >= 2)
        return hd_fail(err, HD_E_UNSUPPORTED,
                       "strategies.zero.compress.kind: %s keeps an error as large as all gradients on every rank, "
                       "which stage %u is there to avoid: use stage 0 or 1, or kind: bf16",
                       kind, z->stage);
    if (z->bits && z->stage == 1 && zero_ways(z, z->outer_axes & z->api->live_axes(z->p)) > 1)
        return hd_fail(err, HD_E_UNSUPPORTED,
                       "strategies.zero.compress.kind: %s at stage 1 reduces over the axes that are sharded "
                       "alone, and the job has other data axes: use stage 0, or let mesh.dp shard",
                       kind);
    if (scales_its_loss(z))
        return hd_fail(err, HD_E_UNSUPPORTED,
                       "strategies.zero.compress.kind: the error that %s carries over has the size of one loss "
                       "scale: use bf16 or fp32 and precision.loss_scale: none, and data whose labels all count "
                       "(data.documents: continue)",
                       kind);
    if (z->bits && z->settings.compress_block % 16)
        return hd_fail(err, HD_E_INVALID, "strategies.zero.compress.block (%lld) is not a multiple of 16",
                       (long long)z->settings.compress_block);
    return HD_OK;
}

/* Products want matrices first in a flat, and whole parameters are dealt to its shards in another order. */
static int32_t check_whole(const struct zero *z, struct hd_error *err)
{
    struct hd_pass_param param;
    for (uint32_t n = 0; n < z->api->n_params(z->p); n++) {
        z->api->param(z->p, n, &param);
        if (z->stage && !(param.group & HD_OPTIM_CUT))
            return hd_fail(err, HD_E_UNSUPPORTED,
                           "strategies.zero.compress.kind: powersgd with stage %u wants an optimizer that updates "
                           "parameters in pieces, and this one updates %s as a whole: use stage: 0, or int8",
                           z->stage, param.name);
    }
    return HD_OK;
}

int32_t zero_configure_compression(struct zero *z, struct hd_error *err)
{
    static const struct {
        const char *name;
        uint32_t dtype, bits;
    } kinds[] = {{"none", 0, 0}, {"fp16", HD_F16, 0}, {"bf16", HD_BF16, 0},
                 {"int8", 0, 8}, {"int4", 0, 4},      {"powersgd", 0, 0}};
    const char *kind = kinds[z->settings.compress_kind].name;
    uint32_t grad = z->api->dtype(z->p, "grad");
    z->bits = kinds[z->settings.compress_kind].bits;
    z->rank = !strcmp(kind, "powersgd") ? (uint32_t)z->settings.compress_rank : 0;
    z->wire = z->api->dtype(z->p, "reduce");
    if (z->settings.compress_warmup && !z->bits && !z->rank)
        return hd_fail(err, HD_E_INVALID,
                       "strategies.zero.compress.warmup says how many steps begin uncompressed, which "
                       "int8, int4 and powersgd know, and kind: %s does not: leave it out",
                       kind);
    if (z->api->reduce(z->p, NULL) && (z->settings.compress_kind || z->wire != grad))
        return hd_fail(err, HD_E_INVALID,
                       "%s says how gradients travel, and so does another strategy of the job, which reduces them: "
                       "leave one of them out",
                       z->settings.compress_kind ? "strategies.zero.compress.kind" : "precision.reduce");
    if (!z->settings.compress_kind)
        return HD_OK;
    if (z->wire != grad)
        return hd_fail(err, HD_E_INVALID,
                       "strategies.zero.compress.kind (%s) compresses gradients that travel in their own type, and "
                       "precision.reduce is %s where precision.grad is %s: leave compress out, or say "
                       "precision.reduce=%s",
                       kind, hd_dtype_name(z->wire), hd_dtype_name(grad), hd_dtype_name(grad));
    if (z->rank && check_whole(z, err))
        return err->code;
    if (z->bits || z->rank)
        return check_codes(z, kind, err);
    z->wire = kinds[z->settings.compress_kind].dtype;
    return HD_OK;
}
