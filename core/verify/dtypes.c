/* Dtypes. A buffer has the dtype that was last written to it, and is read in no other. What an op writes has the dtype
 * of its row in the table (ops.h, `dtypes`); gradients, weights and states have what `precision` says, and a gradient
 * travels in what it says, or in what a strategy's compression makes of that. */
#include "core/base/dtype.h"
#include "core/verify/verify.h"

/* The dtype of a flat's tensor; 0: any floating-point one. */
static uint8_t dtype_of_role(const struct hd_program *p, const struct hd__flat *flat, uint32_t role)
{
    if (role == HD__FLAT_MASTER || role == HD__FLAT_GLOBAL_COPY)
        return p->precision.master;
    if (role == HD__FLAT_COMPUTE_COPY || role == HD__FLAT_FULL)
        return p->precision.compute;
    if (role == HD__FLAT_GRAD || role == HD__FLAT_SHARD)
        return p->precision.grad;
    return role < HD__FLAT_FULL && flat->n_params
               ? (uint8_t)p->params.at[flat->params[0]].state[role - HD__FLAT_OPTIM].dtype
               : 0;
}

/* The dtype of output k; 0: any floating-point one. */
static uint8_t dtype_of_output(const struct hd_program *p, const struct hd__instr *i, uint32_t k)
{
    const struct hd__tensor *t = hd__tensor_const(p, i->out[k]);
    const char *row = i->custom ? i->custom->out : hd__op(i->op)->dtypes;
    char letter = row ? row[HD__MIN(k, (uint32_t)strlen(row) - 1)] : '*';
    const struct hd__flat *updated = hd__is_update(i) ? hd__flat_of_update(p, i) : NULL;
    int model = hd__op(i->op)->class == HD__CLASS_MODEL,
        tile = (i->op == HD_OP_ATTENTION_MERGE && t->dtype != p->precision.compute) || (i->axes && model);
    if (updated && k && k <= updated->n_states)
        return dtype_of_role(p, updated, HD__FLAT_OPTIM + k - 1);
    if (t->role == HD__ROLE_GRAD || (t->role == HD__ROLE_FLAT && t->param && i->n_in &&
                                     (model || i->op == HD_OP_ACCUM ||
                                      (i->op == HD_OP_COPY && (i->phase == HD__PHASE_B || i->phase == HD__PHASE_W)))))
        return p->precision.grad;
    if (i->op == HD_OP_COPY && hd__tensor_const(p, i->in[0])->dtype == t->dtype)
        return t->dtype;
    if (letter == '=')
        return hd__tensor_const(p, i->in[0])->dtype;
    if (model && t->role != HD__ROLE_ACT)
        return 0;
    switch (letter) {
    case 'a': /* attention of one tile of a ring is a statistic, and so is what they are merged to, but for the last */
        return tile ? p->precision.fixed : p->precision.compute;
    case 'f':
        return p->precision.fixed;
    case 'i':
        return HD_I32;
    case 'u':
        return HD_U8;
    case 'd':
        return HD_F64;
    default:
        return 0;
    }
}

/* Sums over ranks are in the dtype of the wire; those of pipeline stages, and of parameters, in their own. Compression
 * has one of its own where precision.reduce says nothing. */
static void check_wire(struct hd__walk *w, const struct hd__instr *i)
{
    const struct hd_program *p = w->p;
    const struct hd__tensor *t = hd__tensor_const(p, i->in[0]);
    if (!hd__op_sums(i->op) || t->role != HD__ROLE_FLAT || t->dtype == p->precision.reduce ||
        (i->axes & HD_AXIS_BIT(HD_AXIS_PP) && t->dtype == p->precision.grad) ||
        (w->own_section && t->dtype == p->precision.master))
        return;
    if (p->precision.reduce != p->precision.grad || !hd__is_float(t->dtype))
        hd__diag(w, "%s travels in %s, but precision.reduce is %s", t->name, hd_dtype_name(t->dtype),
                 hd_dtype_name(p->precision.reduce));
}

static void check_read(struct hd__walk *w, hd_tensor tensor)
{
    const struct hd__tensor *t = hd__tensor_const(w->p, tensor);
    uint8_t *held = &w->buffer[t->buffer].dtype;
    if (!*held)
        *held = t->dtype;
    if (*held != t->dtype)
        hd__diag(w, "%s is read as %s, but its memory holds %s", t->name, hd_dtype_name(t->dtype),
                 hd_dtype_name(*held));
}

static void check_write(struct hd__walk *w, const struct hd__instr *i, uint32_t k)
{
    const struct hd__tensor *t = hd__tensor_const(w->p, i->out[k]);
    uint8_t *held = &w->buffer[t->buffer].dtype, wanted = dtype_of_output(w->p, i, k);
    if (hd__reads_output(i, k))
        check_read(w, i->out[k]);
    if (wanted ? t->dtype != wanted : !hd__is_float(t->dtype))
        hd__diag(w, "%s is %s, but this output of %s is %s", t->name, hd_dtype_name(t->dtype), hd__instr_name(i),
                 wanted ? hd_dtype_name(wanted) : "floating-point");
    else if (*held && *held != t->dtype && w->p->buffers.at[t->buffer].life != HD__LIFE_TEMP)
        hd__diag(w, "%s is written as %s, but its memory holds %s from step to step", t->name, hd_dtype_name(t->dtype),
                 hd_dtype_name(*held));
    *held = t->dtype;
}

static void begin(struct hd__walk *w)
{
    const struct hd_program *p = w->p;
    const struct {
        hd_tensor tensor;
        uint8_t dtype;
    } scalars[] = {{p->loss_sum, p->precision.fixed},
                   {p->norm2, HD_F64},
                   {p->norm_digits, HD_F64},
                   {p->hyper, HD_F64},
                   {p->scale, HD_F64},
                   {p->auxiliary_scale, HD_F64}};
    for (uint32_t n = 0; n < HD__COUNT(scalars); n++)
        if (scalars[n].tensor)
            w->buffer[hd__tensor_const(p, scalars[n].tensor)->buffer].dtype = scalars[n].dtype;
    for (uint32_t n = 0; n < p->flats.count * HD__FLAT_ROLES; n++) {
        hd_tensor t = p->flats.at[n / HD__FLAT_ROLES].tensor[n % HD__FLAT_ROLES];
        if (t)
            w->buffer[hd__tensor_const(p, t)->buffer].dtype = hd__tensor_const(p, t)->dtype;
    }
}

static void visit(struct hd__walk *w, const struct hd__instr *i)
{
    if (i->op == HD_OP_RELEASE)
        return;
    for (uint32_t k = 0; k < i->n_in; k++) {
        check_read(w, i->in[k]);
        if (i->custom && !hd__custom_takes(i->custom->in[k], hd__tensor_const(w->p, i->in[k])->dtype))
            hd__diag(w, "%s is %s, and %s takes '%c' here", hd__name_of(w, i->in[k]),
                     hd_dtype_name(hd__tensor_const(w->p, i->in[k])->dtype), i->custom->name, i->custom->in[k]);
    }
    for (uint32_t k = 0; k < i->n_out; k++)
        check_write(w, i, k);
    if (i->n_in)
        check_wire(w, i);
}

static void finish(struct hd__walk *w)
{
    const struct hd_program *p = w->p;
    for (uint32_t n = 0; n < p->flats.count * HD__FLAT_ROLES; n++) {
        hd_tensor t = p->flats.at[n / HD__FLAT_ROLES].tensor[n % HD__FLAT_ROLES];
        uint8_t is = t ? hd__tensor_const(p, t)->dtype : 0,
                wanted = dtype_of_role(p, &p->flats.at[n / HD__FLAT_ROLES], n % HD__FLAT_ROLES);
        if (t && (wanted ? is != wanted : !hd__is_float(is)))
            hd__diag(w, "%s is %s, but precision asks for %s", hd__name_of(w, t), hd_dtype_name(is),
                     wanted ? hd_dtype_name(wanted) : "a floating-point dtype");
    }
}

const struct hd__rules hd__rules_dtypes = {.begin = begin, .visit = visit, .finish = finish};
