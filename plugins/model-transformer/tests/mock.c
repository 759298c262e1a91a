#include "mock.h"

#include <check.h>
#include <stdlib.h>

static const char *op_name(uint32_t op)
{
    switch (op) {
#define CASE(constant, value, name) \
    case constant:                  \
        return name;
        HD_OPS(CASE)
#undef CASE
    default:
        return "?";
    }
}

static const char *dims_of(const struct hd_program *p, hd_tensor t)
{
    ck_assert_msg(t > 0 && t < p->n_tensors, "tensor %u does not exist", t);
    return p->tensors[t].dims;
}

static hd_tensor new_tensor(struct hd_program *p, const char *dims, int32_t maker)
{
    struct mock_tensor *t = &p->tensors[p->n_tensors];
    ck_assert_uint_lt(p->n_tensors, MOCK_TENSORS);
    ck_assert_uint_le(strlen(dims), HD_MAX_DIMS);
    for (const char *at = dims; *at; at++) {
        ck_assert_msg(p->extent[(unsigned char)*at] > 0, "dim %c is not declared", *at);
        ck_assert_msg(!strchr(at + 1, *at), "dim %c twice in %s", *at, dims);
    }
    *t = (struct mock_tensor){.param = -1, .maker = maker};
    snprintf(t->dims, sizeof t->dims, "%s", dims);
    snprintf(t->block, sizeof t->block, "%s", p->block);
    return p->n_tensors++;
}

/* ---- the rules, from the comments in heddle/ops.h. "=" stands for the dims of the first input. */

static const struct rule {
    uint32_t op;
    const char *ins, *outs;
} rules[] = {
    {HD_OP_RMSNORM, "bsh,h", "="},
    {HD_OP_RMSNORM, "bskgd,d", "="},
    {HD_OP_RMSNORM, "bskd,d", "="},
    {HD_OP_LAYERNORM, "bsh,h,h", "="},
    {HD_OP_ATTENTION, "bskgd,bskd,bskd", "bskgd,bskg"},
    {HD_OP_SWIGLU, "bsf,bsf", "="},
    {HD_OP_SWIGLU, "besf,besf", "="},
    {HD_OP_GELU, "bsf", "="},
    {HD_OP_EMBED, "bs,vh", "bsh"},
    {HD_OP_POSITION, "bsh,ph", "bsh"},
    {HD_OP_ROWMAX, "bsv", "bs"},
    {HD_OP_XENT_LOCAL, "bsv,bs,bs", "bs,bs"},
    {HD_OP_NLL, "bs,bs,bs", "bs"},
    {HD_OP_TOTAL, "bs", ""},
    {HD_OP_GATE, "bse", "="},
    {HD_OP_ROUTE, "bse", "bes"},
    {HD_OP_DISPATCH, "bsh,bes", "besh"},
    {HD_OP_GROUPED, "besh,efh,bes", "besf"},
    {HD_OP_GROUPED, "besf,ehf,bes", "besh"},
    {HD_OP_COMBINE, "besh,bse,bes", "bsh"},
    {HD_OP_EXPERT_COUNT, "bse", "be"},
    {HD_OP_ROUTER_LOSS, "bse,be", "bs"},
};

static void join_ins(const struct hd_program *p, const struct mock_instr *i, char *out, size_t room)
{
    out[0] = '\0';
    for (uint32_t n = 0; n < i->n_in; n++)
        snprintf(out + strlen(out), room - strlen(out), "%s%s", n ? "," : "", dims_of(p, i->in[n]));
}

static void check_einsum(const char *a, const char *b, const char *c)
{
    for (const char *at = c; *at; at++)
        ck_assert_msg(strchr(a, *at) || strchr(b, *at), "einsum %s,%s->%s: %c comes from nowhere", a, b, c, *at);
    for (const char *at = a; *at; at++)
        ck_assert_msg(strchr(b, *at) || strchr(c, *at), "einsum %s,%s->%s: %c is summed in one input", a, b, c, *at);
    for (const char *at = b; *at; at++)
        ck_assert_msg(strchr(a, *at) || strchr(c, *at), "einsum %s,%s->%s: %c is summed in one input", a, b, c, *at);
}

/* Is `part` what is left of `whole` after dropping letters? */
static int subset(const char *part, const char *whole)
{
    for (; *part; part++, whole++) {
        whole = strchr(whole, *part);
        if (!whole)
            return 0;
    }
    return 1;
}

static void check_by_table(const struct hd_program *p, const struct mock_instr *i, const char *out_dims)
{
    char ins[64];
    join_ins(p, i, ins, sizeof ins);
    for (size_t r = 0; r < sizeof rules / sizeof rules[0]; r++) {
        int other = r + 1 < sizeof rules / sizeof rules[0] && rules[r + 1].op == i->op && strcmp(rules[r].ins, ins);
        if (rules[r].op != i->op || other)
            continue;
        ck_assert_msg(!strcmp(rules[r].ins, ins), "%s <- %s, not %s", op_name(i->op), ins, rules[r].ins);
        const char *outs = rules[r].outs[0] == '=' ? dims_of(p, i->in[0]) : rules[r].outs;
        ck_assert_msg(!strcmp(outs, out_dims), "%s -> %s, not %s", op_name(i->op), out_dims, outs);
        return;
    }
    ck_abort_msg("the mock does not know %s", op_name(i->op));
}

static void check_rope(const struct hd_program *p, const struct mock_instr *i, const char *out_dims)
{
    ck_assert_str_eq(out_dims, dims_of(p, i->in[0]));
    ck_assert_int_eq(out_dims[strlen(out_dims) - 1], 'd');
    ck_assert_int_eq(i->attrs.sign, 1);
    ck_assert_uint_eq(i->attrs.n_table, (uint64_t)p->extent['d'] / 2);
    ck_assert_ptr_nonnull(i->attrs.table);
}

static void check(const struct hd_program *p, const struct mock_instr *i, const char *out_dims)
{
    const char *first = dims_of(p, i->in[0]);
    if (i->op == HD_OP_EINSUM) {
        ck_assert_uint_eq(i->n_in, 2);
        check_einsum(first, dims_of(p, i->in[1]), out_dims);
    } else if (i->op == HD_OP_ADD) {
        for (uint32_t n = 0; n < i->n_in; n++)
            ck_assert_str_eq(dims_of(p, i->in[n]), out_dims);
    } else if (i->op == HD_OP_BIAS) {
        ck_assert_str_eq(first, out_dims);
        ck_assert(subset(dims_of(p, i->in[1]), first));
    } else if (i->op == HD_OP_ROPE) {
        check_rope(p, i, out_dims);
    } else {
        check_by_table(p, i, out_dims);
    }
}

/* ---- the slots */

static void mock_dim(struct hd_program *p, char letter, const char *name, int64_t extent)
{
    ck_assert_msg(!p->extent[(unsigned char)letter], "dim %c (%s) is declared twice", letter, name);
    ck_assert_int_gt(extent, 0);
    p->extent[(unsigned char)letter] = extent;
}

static int64_t mock_extent(struct hd_program *p, char letter)
{
    return p->extent[(unsigned char)letter];
}

static void mock_block(struct hd_program *p, const char *name)
{
    snprintf(p->block, sizeof p->block, "%s", name);
}

static hd_tensor mock_add_param(struct hd_program *p, const struct hd_param_desc *desc)
{
    struct mock_param *row = &p->params[p->n_params];
    ck_assert_uint_lt(p->n_params, MOCK_PARAMS);
    ck_assert_uint_eq(desc->struct_size, sizeof *desc);
    ck_assert_uint_eq(strlen(desc->file_axes), strlen(desc->dims));
    for (uint32_t i = 0; i < p->n_params; i++)
        if (!strcmp(p->params[i].name, desc->name))
            ck_abort_msg("parameter %s twice", desc->name);
    *row = (struct mock_param){.init = desc->init,
                               .std = desc->std,
                               .part = desc->part,
                               .parts = desc->parts,
                               .part_axis = desc->part_axis,
                               .tensor = new_tensor(p, desc->dims, -1)};
    snprintf(row->name, sizeof row->name, "%s", desc->name);
    snprintf(row->file, sizeof row->file, "%s", desc->file_name);
    snprintf(row->dims, sizeof row->dims, "%s", desc->dims);
    snprintf(row->axes, sizeof row->axes, "%s", desc->file_axes);
    snprintf(row->block, sizeof row->block, "%s", p->block);
    p->tensors[row->tensor].param = (int32_t)p->n_params++;
    return row->tensor;
}

static hd_tensor mock_input(struct hd_program *p, const char *name)
{
    int ids = !strcmp(name, "ids");
    if (!strcmp(name, "positions"))
        return 0;
    ck_assert(ids || !strcmp(name, "labels"));
    hd_tensor t = new_tensor(p, "bs", -1);
    *(ids ? &p->ids : &p->labels) = t;
    return t;
}

static hd_tensor mock_emit(struct hd_program *p, uint32_t op, const struct hd_attrs *attrs, const hd_tensor *ins,
                           uint32_t n_in, const char *out_dims, hd_tensor *outs)
{
    struct mock_instr *i = &p->instrs[p->n_instrs];
    char copy[64], *at = copy, *dims;
    ck_assert_uint_lt(p->n_instrs, MOCK_TENSORS);
    ck_assert_uint_le(n_in, HD_MAX_IN);
    *i = (struct mock_instr){.op = op, .n_in = n_in};
    snprintf(i->block, sizeof i->block, "%s", p->block);
    if (attrs)
        i->attrs = *attrs;
    for (uint32_t n = 0; n < n_in; n++) {
        i->in[n] = ins[n];
        p->tensors[ins[n]].users++;
    }
    check(p, i, out_dims);
    snprintf(copy, sizeof copy, "%s", out_dims);
    while ((dims = strsep(&at, ",")))
        outs[i->n_out] = i->out[i->n_out] = new_tensor(p, dims, (int32_t)p->n_instrs), i->n_out++;
    p->n_instrs++;
    return outs[0];
}

static hd_tensor mock_residual(struct hd_program *p, hd_tensor t)
{
    ck_assert_str_eq(dims_of(p, t), "bsh");
    p->tensors[t].residual = 1;
    return t;
}

static hd_tensor mock_tokenwise(struct hd_program *p, hd_tensor t)
{
    ck_assert_str_eq(dims_of(p, t), "bs");
    p->tensors[t].tokenwise = 1;
    return t;
}

static void mock_loss(struct hd_program *p, hd_tensor t)
{
    ck_assert_str_eq(dims_of(p, t), "");
    p->loss = t;
}

static void mock_auxiliary(struct hd_program *p, hd_tensor t)
{
    ck_assert_str_eq(dims_of(p, t), "");
    p->n_auxiliary++;
}

static void mock_logits(struct hd_program *p, hd_tensor t)
{
    ck_assert_str_eq(dims_of(p, t), "bsv");
    p->logits = t;
}

static double mock_loss_scale(struct hd_program *p)
{
    (void)p;
    return MOCK_LOSS_SCALE;
}

static void mock_fail(struct hd_program *p, const char *format, ...)
{
    (void)p;
    ck_abort_msg("the model failed: %s", format);
}

const struct hd_builder_api mock_builder = {
    .struct_size = sizeof mock_builder,
    .dim = mock_dim,
    .extent = mock_extent,
    .block = mock_block,
    .param = mock_add_param,
    .input = mock_input,
    .emit = mock_emit,
    .residual = mock_residual,
    .tokenwise = mock_tokenwise,
    .loss = mock_loss,
    .logits = mock_logits,
    .loss_scale = mock_loss_scale,
    .fail = mock_fail,
    .auxiliary = mock_auxiliary,
};

/* ---- looking at the record */

struct hd_program *mock_new(int64_t batch, int64_t seq)
{
    struct hd_program *p = calloc(1, sizeof *p);
    ck_assert_ptr_nonnull(p);
    p->n_tensors = 1;
    p->extent['b'] = batch;
    p->extent['s'] = seq;
    return p;
}

void mock_free(struct hd_program *p)
{
    free(p);
}

int64_t mock_count(const struct hd_program *p, const char *dims)
{
    int64_t n = 1;
    for (; *dims; dims++)
        n *= p->extent[(unsigned char)*dims];
    return n;
}

int64_t mock_parameters(const struct hd_program *p)
{
    int64_t n = 0;
    for (uint32_t i = 0; i < p->n_params; i++)
        n += mock_count(p, p->params[i].dims);
    return n;
}

const struct mock_param *mock_param(const struct hd_program *p, const char *name)
{
    for (uint32_t i = 0; i < p->n_params; i++)
        if (!strcmp(p->params[i].name, name))
            return &p->params[i];
    ck_abort_msg("no parameter %s", name);
    return NULL;
}

void mock_ops(const struct hd_program *p, const char *block, char *out, size_t room)
{
    out[0] = '\0';
    for (uint32_t i = 0; i < p->n_instrs; i++)
        if (!strcmp(p->instrs[i].block, block))
            snprintf(out + strlen(out), room - strlen(out), "%s%s", out[0] ? " " : "", op_name(p->instrs[i].op));
}
