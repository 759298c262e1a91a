/* Shapes of what a model emits. Of all ops, for einsum (matmul) this alone: a dim is a letter with one extent, outputs
 * have dims of inputs alone, and what they lack is summed over. Then what the op's row in ops.c says. */
#include "core/program/ops.h"

/* Does a tensor have the dims of `form`, up to `end`? A letter is that dim, ? any, $ the last of input 0, * any
 * number, = all of input 0. */
static int matches(const struct hd_program *p, const struct hd__instr *i, hd_tensor id, const char *form,
                   const char *end)
{
    const struct hd__tensor *t = hd__tensor_const(p, id), *first = hd__tensor_const(p, i->in[0]);
    const char *star = memchr(form, '*', (size_t)(end - form));
    int32_t fixed = (int32_t)(end - form) - (star != NULL);
    if (*form == '=')
        return t->ndim == first->ndim && !memcmp(t->dim, first->dim, (size_t)t->ndim * sizeof *t->dim);
    if (t->ndim < fixed || (t->ndim > fixed && !star))
        return 0;
    for (int32_t d = 0, n = (int32_t)(end - form); d < n; d++) {
        int32_t at = star && form + d > star ? d + t->ndim - n : d; /* behind the *: counted from the end */
        uint16_t wanted = form[d] == '$' && first->ndim ? first->dim[first->ndim - 1] : p->letter[(int)form[d]];
        if (form[d] != '*' && form[d] != '?' && t->dim[at] != wanted)
            return 0;
    }
    return 1;
}

/* Operand by operand; the last form is that of all further ones. */
static void check_side(struct hd_program *p, const struct hd__instr *i, const hd_tensor *ids, uint32_t count,
                       const char *form, const char *side)
{
    struct hd__text dims = {0};
    for (uint32_t n = 0; n < count && !p->failed; n++) {
        const struct hd__tensor *t = hd__tensor_const(p, ids[n]);
        const char *end = form + strcspn(form, ",>");
        if (!matches(p, i, ids[n], form, end)) {
            for (int32_t d = 0; d < t->ndim; d++)
                hd__text_add(&dims, "%s", p->dims.at[t->dim[d]].name);
            hd__program_fail(p, HD_E_INVALID, "%s %u of %s has dims %s; it must have %.*s%s: heddle/ops.h", side, n,
                             hd__op(i->op)->name, dims.at ? dims.at : "()", (int)(end - form), form,
                             *form == '=' ? " (those of input 0)" : "");
        }
        form = *end == ',' ? end + 1 : form;
    }
    hd__text_free(&dims);
}

void hd__check_shapes(struct hd_program *p, const struct hd__instr *i)
{
    const struct hd__op *row = hd__op(i->op);
    const char *wrong = !p->failed && row->wrong ? row->wrong(p, i) : NULL;
    for (uint32_t n = 0; n < i->n_out && i->n_in && !(row->flags & HD__OP_NEW_DIMS) && !p->failed; n++) {
        const struct hd__tensor *t = hd__tensor_const(p, i->out[n]);
        for (int32_t d = 0, known = 1; d < t->ndim && known; d++) {
            known = 0;
            for (uint32_t in = 0; in < i->n_in; in++)
                known |= hd__dim_index(hd__tensor_const(p, i->in[in]), t->dim[d]) >= 0;
            if (!known)
                hd__program_fail(p, HD_E_INVALID, "output of %s has dimension '%s', which no input has", row->name,
                                 p->dims.at[t->dim[d]].name);
        }
    }
    if (row->form) {
        check_side(p, i, i->in, i->n_in, row->form, "input");
        check_side(p, i, i->out, i->n_out, strchr(row->form, '>') + 1, "output");
    }
    if (wrong)
        hd__program_fail(p, HD_E_INVALID, "%s %s", row->name, wrong);
}
