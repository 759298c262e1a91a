/* The builder API of models: declares dims and parameters, emits logical instructions. Errors are sticky. */
#include <ctype.h>
#include <math.h>
#include <stdlib.h>

#include "core/program/ops.h"
#include "core/program/param_file.h"

static uint16_t letter_dim(struct hd_program *p, char letter, const char *what)
{
    uint16_t d = letter > 0 ? p->letter[(int)letter] : 0;
    if (!d)
        hd__program_fail(p, HD_E_INVALID, "%s uses dimension '%c', which the model did not declare", what, letter);
    return d;
}

/* Numbers of elements stay countable: in bytes, and those of parameters in sums over the model. */
static void check_size(struct hd_program *p, const struct hd__tensor *t, const char *what)
{
    int64_t n = 1;
    int bits = t->role == HD__ROLE_PARAM ? 46 : 54;
    struct hd__text sizes = {0};
    for (int32_t i = 0; i < t->ndim; i++)
        n = __builtin_mul_overflow(n, p->dims.at[t->dim[i]].extent, &n) ? INT64_MAX : n;
    if (n <= INT64_C(1) << bits || p->failed)
        return;
    for (int32_t i = 0; i < t->ndim; i++)
        hd__text_add(&sizes, "%s%s %lld", i ? " x " : "", p->dims.at[t->dim[i]].long_name,
                     (long long)p->dims.at[t->dim[i]].extent);
    hd__program_fail(p, HD_E_INVALID, "%s would have %s elements, more than 2^%d: make one of them smaller", what,
                     sizes.at, bits);
    hd__text_free(&sizes);
}

/* Parses letters up to a comma or the end into t->dim; returns where it stopped. */
static const char *parse_dims(struct hd_program *p, const char *s, struct hd__tensor *t, const char *what)
{
    for (; *s && *s != ','; s++) {
        if (t->ndim == HD_MAX_DIMS) {
            hd__program_fail(p, HD_E_INVALID, "%s has more than %d dimensions", what, HD_MAX_DIMS);
            break;
        }
        t->dim[t->ndim++] = letter_dim(p, *s, what);
    }
    check_size(p, t, what);
    return s;
}

static void b_dim(struct hd_program *p, char letter, const char *name, int64_t extent)
{
    char text[2] = {letter, 0};
    if (p->failed)
        return;
    if (!name)
        name = "";
    if (!isalpha((unsigned char)letter) || p->letter[(int)letter]) {
        hd__program_fail(p, HD_E_INVALID, "dimension '%c' (%s) is no letter or declared twice", letter, name);
        return;
    }
    if (extent < 1) {
        hd__program_fail(p, HD_E_INVALID, "dimension '%c' (%s) has extent %lld; it must be 1 or more", letter, name,
                         (long long)extent);
        return;
    }
    p->letter[(int)letter] = hd__dim_new(p, text, extent);
    p->dims.at[p->letter[(int)letter]].long_name = hd__arena_strdup(&p->arena, name);
}

static int64_t b_extent(struct hd_program *p, char letter)
{
    return letter > 0 ? p->dims.at[p->letter[(int)letter]].extent : 0;
}

static void b_block(struct hd_program *p, const char *name)
{
    if (p->failed)
        return; /* what is said has the block of the call that failed */
    if (name)
        p->block = hd__block_id(p, name);
    else
        hd__program_fail(p, HD_E_INVALID, "hd_builder_api.block: the name is NULL");
}

static hd_tensor b_param(struct hd_program *p, const struct hd_param_desc *desc)
{
    struct hd__param param = {0};
    struct hd__tensor t = {.role = HD__ROLE_PARAM, .dtype = p->precision.compute, .block = p->block};
    if (p->failed)
        return 0;
    if (!desc || !desc->name || !desc->dims)
        return hd__program_fail(p, HD_E_INVALID, "a parameter has no name or no dims");
    if (desc->struct_size < HD__END(struct hd_param_desc, flags)) /* the last of ABI 1.0 */
        return hd__program_fail(p, HD_E_INVALID, "parameter %s: struct_size is %zu: set it with sizeof", desc->name,
                                desc->struct_size);
    if (desc->init < HD_INIT_NORMAL || desc->init > HD_INIT_ONES)
        return hd__program_fail(p, HD_E_INVALID,
                                "parameter %s: init is %u; it must be one of HD_INIT_NORMAL, ZEROS, ONES", desc->name,
                                desc->init);
    if (desc->init == HD_INIT_NORMAL && !(desc->std > 0 && isfinite(desc->std)))
        return hd__program_fail(p, HD_E_INVALID,
                                "parameter %s: HD_INIT_NORMAL with std %g: give it a std above 0, or use HD_INIT_ZEROS",
                                desc->name, desc->std);
    memcpy(&param.desc, desc, HD__MIN(desc->struct_size, sizeof param.desc));
    param.desc.name = t.name = hd__arena_strdup(&p->arena, desc->name);
    param.desc.dims = hd__arena_strdup(&p->arena, desc->dims);
    param.desc.file_name = desc->file_name ? hd__arena_strdup(&p->arena, desc->file_name) : NULL;
    param.desc.file_axes = desc->file_axes ? hd__arena_strdup(&p->arena, desc->file_axes) : NULL;
    parse_dims(p, desc->dims, &t, t.name);
    if (p->failed)
        return 0;
    t.placement.redop = HD_SUM;
    t.param = p->params.count + 1;
    param.tensor = hd__tensor_new(p, &t);
    hd__check_param_file(p, &param);
    hd__push(&p->params, param);
    return param.tensor;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct hd_param_desc *)a)->name, ((const struct hd_param_desc *)b)->name);
}

static const char *file_name(const struct hd_param_desc *d)
{
    return d->file_name ? d->file_name : d->name;
}

static uint32_t part_of(const struct hd_param_desc *d)
{
    return d->parts > 1 ? d->part : 0;
}

static int by_place(const void *a, const void *b)
{
    const struct hd_param_desc *x = a, *y = b;
    int order = strcmp(file_name(x), file_name(y));
    return order ? order : (part_of(x) > part_of(y)) - (part_of(x) < part_of(y));
}

void hd__builder_check_params(struct hd_program *p)
{
    uint32_t n = p->params.count;
    struct hd_param_desc *all = hd__alloc((size_t)n * sizeof *all);
    for (uint32_t i = 0; i < n; i++)
        all[i] = p->params.at[i].desc;
    qsort(all, n, sizeof *all, by_name);
    for (uint32_t i = 1; i < n; i++)
        if (!by_name(&all[i - 1], &all[i]))
            hd__program_fail(p, HD_E_INVALID, "parameter %s is declared twice", all[i].name);
    qsort(all, n, sizeof *all, by_place);
    for (uint32_t i = 1; i < n; i++)
        if (!by_place(&all[i - 1], &all[i]))
            hd__program_fail(p, HD_E_INVALID,
                             "parameters %s and %s are both part %u of %s in files, and an export would lack one: give "
                             "each a file_name or a part of its own",
                             all[i - 1].name, all[i].name, part_of(&all[i]), file_name(&all[i]));
    free(all);
}

static hd_tensor b_input(struct hd_program *p, const char *name)
{
    static const char *const names[] = {"ids", "labels", "positions"};
    hd_tensor *slot = NULL;
    struct hd__tensor t = {.role = HD__ROLE_INPUT, .dtype = HD_I32, .placement.redop = HD_SUM};
    if (p->failed)
        return 0;
    for (uint32_t n = 0; n < HD__COUNT(names) && name; n++)
        slot = strcmp(name, names[n]) ? slot : &p->inputs[n];
    if (!slot)
        return hd__program_fail(p, HD_E_INVALID, "input '%s' is unknown; there are ids, labels and positions",
                                name ? name : "");
    if (slot == &p->positions && !p->documents)
        return 0;
    if (*slot)
        return *slot;
    t.name = hd__arena_strdup(&p->arena, name);
    parse_dims(p, "bs", &t, name);
    return *slot = hd__tensor_new(p, &t);
}

static int32_t check_operands(struct hd_program *p, const struct hd__op *row, const hd_tensor *ins, uint32_t n_in,
                              uint32_t n_out)
{
    if (!row->name || row->class != HD__CLASS_MODEL || row->n_out < 0) /* several forms: a fusion makes it */
        return (int32_t)hd__program_fail(p, HD_E_INVALID, "a model may not emit %s",
                                         row->name ? row->name : "an unknown op");
    if (!hd__op_takes(row, n_in) || n_in > HD_MAX_IN)
        return (int32_t)hd__program_fail(p, HD_E_INVALID, "%s does not take %u inputs: see its row in heddle/ops.h",
                                         row->name, n_in);
    if (n_out != (uint32_t)row->n_out)
        return (int32_t)hd__program_fail(p, HD_E_INVALID, "%s has %d outputs, not %u", row->name, row->n_out, n_out);
    for (uint32_t n = 0; n < n_in; n++)
        if (!ins[n] || ins[n] >= p->tensors.count)
            return (int32_t)hd__program_fail(p, HD_E_INVALID, "input %u of %s is no tensor", n, row->name);
    return 1;
}

static hd_tensor b_emit(struct hd_program *p, uint32_t op, const struct hd_attrs *attrs, const hd_tensor *ins,
                        uint32_t n_in, const char *out_dims, hd_tensor *outs)
{
    if (op > UINT16_MAX || !out_dims || (n_in && !ins))
        return hd__program_fail(p, HD_E_INVALID, "hd_builder_api.emit: op %u, or a pointer that is NULL", op);
    const struct hd__op *row = hd__op((uint16_t)op);
    uint32_t n_out = 1;
    for (int32_t n = 0; n < row->n_out && outs; n++)
        outs[n] = 0;
    for (const char *s = out_dims; *s; s++)
        n_out += *s == ',';
    if (p->failed || !check_operands(p, row, ins, n_in, n_out))
        return 0;
    if (attrs && attrs->struct_size < HD__END(struct hd_attrs, z_scale)) /* the last of ABI 1.0 */
        return hd__program_fail(p, HD_E_INVALID, "attributes of %s: struct_size is %zu: set it with sizeof", row->name,
                                attrs->struct_size);
    struct hd__instr i = hd__instr_new(p, (uint16_t)op);
    i.n_in = (uint8_t)n_in;
    i.n_out = (uint8_t)n_out;
    i.attrs = attrs ? hd__attrs_new(p, attrs) : NULL;
    if (n_in)
        memcpy(i.in, ins, n_in * sizeof *ins);
    for (uint32_t n = 0; n < n_out; n++) {
        struct hd__tensor t = {.block = p->block, .placement.redop = row->redop ? row->redop : HD_SUM};
        t.dtype = row->dtypes[n] == 'f' ? p->precision.fixed : row->dtypes[n] == 'i' ? HD_I32 : p->precision.compute;
        t.name = hd__arena_format(&p->arena, "%s.%u", row->name, p->tensors.count);
        out_dims = parse_dims(p, out_dims, &t, row->name);
        out_dims += *out_dims == ',';
        i.out[n] = hd__tensor_new(p, &t);
        if (outs)
            outs[n] = i.out[n];
    }
    hd__check_shapes(p, &i);
    hd__push(&p->logical, i);
    return p->failed ? 0 : i.out[0];
}

/* Nothing has failed so far, and t is a tensor, or 0: what a call returned that failed. */
static int is_tensor(struct hd_program *p, hd_tensor t, const char *call)
{
    if (t >= p->tensors.count)
        hd__program_fail(p, HD_E_INVALID, "hd_builder_api.%s: tensor %u does not exist", call, t);
    else if (!t)
        hd__program_fail(p, HD_E_INVALID, "hd_builder_api.%s: there is no tensor 0", call);
    return !p->failed;
}

static hd_tensor mark(struct hd_program *p, hd_tensor t, uint8_t mark)
{
    if (is_tensor(p, t, mark == HD__MARK_RESIDUAL ? "residual" : "tokenwise"))
        hd__tensor_at(p, t)->mark = mark;
    return t;
}

static hd_tensor b_residual(struct hd_program *p, hd_tensor t)
{
    return mark(p, t, HD__MARK_RESIDUAL);
}

static hd_tensor b_tokenwise(struct hd_program *p, hd_tensor t)
{
    return mark(p, t, HD__MARK_TOKENS);
}

static void b_loss(struct hd_program *p, hd_tensor loss)
{
    if (is_tensor(p, loss, "loss"))
        p->loss = loss;
}

static void b_logits(struct hd_program *p, hd_tensor logits)
{
    if (is_tensor(p, logits, "logits"))
        p->logits = logits;
}

static void b_auxiliary(struct hd_program *p, hd_tensor loss)
{
    if (is_tensor(p, loss, "auxiliary"))
        hd__push(&p->auxiliary, loss);
}

static double b_loss_scale(struct hd_program *p)
{
    return p->token_weight;
}

const struct hd_builder_api hd__builder_api = {
    .struct_size = sizeof(struct hd_builder_api),
    .dim = b_dim,
    .extent = b_extent,
    .block = b_block,
    .param = b_param,
    .input = b_input,
    .emit = b_emit,
    .residual = b_residual,
    .tokenwise = b_tokenwise,
    .loss = b_loss,
    .logits = b_logits,
    .loss_scale = b_loss_scale,
    .fail = hd__program_refuse,
    .auxiliary = b_auxiliary,
};
