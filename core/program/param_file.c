/* A parameter's place in other people's files: hd_param_desc's file_axes and parts. */
#include "core/program/param_file.h"

int32_t hd__param_file_axis(const struct hd_param_desc *d, int32_t dim)
{
    if (!d->file_axes)
        return dim;
    return d->file_axes[dim] == '*' ? -1 : d->file_axes[dim] - '0';
}

struct hd__file_part hd__param_file_part(const struct hd_program *p, const struct hd__param *param)
{
    const struct hd_param_desc *d = &param->desc;
    const struct hd__tensor *t = hd__tensor_const(p, param->tensor);
    struct hd__file_part part = {.parts = 1, .span = 1, .own = 1};
    int32_t first = (int32_t)d->part_dim - 1;
    if (d->parts > 1) {
        part.parts = d->parts;
        part.span = d->part_span ? d->part_span : 1;
        while (first < 0 || hd__param_file_axis(d, first) < (d->part_dim ? 0 : (int32_t)d->part_axis))
            first++;
    }
    for (int32_t k = 0; k < t->ndim; k++)
        if (hd__param_file_axis(d, k) >= 0 && k >= first)
            part.own *= p->dims.at[t->dim[k]].used;
    part.axis = first < 0 ? -1 : hd__param_file_axis(d, first);
    part.width = part.own / part.span * part.parts;
    part.skip = part.own / part.span * d->part;
    return part;
}

/* A digit a dim, each that of the dim before or the next, from 0; a first * counts tensors. */
static const char *axes_wrong(const struct hd_param_desc *d, size_t ndim)
{
    const char *axes = d->file_axes, *name = d->file_name ? d->file_name : d->name;
    char last = '0' - 1;
    if (strlen(axes) != ndim)
        return "must have one digit for each dim";
    for (size_t k = *axes == '*'; k < ndim; last = axes[k++])
        if (axes[k] < '0' || axes[k] > last + 1 || axes[k] < last)
            return "must be digits that rise from 0 by 0 or 1";
    return *axes == '*' && !strchr(name, '*') ? "begins with *, but file_name has none" : NULL;
}

void hd__check_param_file(struct hd_program *p, const struct hd__param *param)
{
    const struct hd_param_desc *d = &param->desc;
    int32_t ndim = (int32_t)strlen(d->dims), last = -1;
    const char *wrong = d->file_axes ? axes_wrong(d, (size_t)ndim) : NULL;
    uint32_t span = d->part_span ? d->part_span : 1;
    if (wrong)
        return (void)hd__program_fail(p, HD_E_INVALID, "parameter %s: file_axes \"%s\" %s", d->name, d->file_axes,
                                      wrong);
    if (d->parts <= 1)
        return;
    for (int32_t k = 0; k < ndim; k++)
        last = hd__param_file_axis(d, k);
    if (d->part >= d->parts || span > d->parts - d->part)
        hd__program_fail(p, HD_E_INVALID, "parameter %s: parts %u to %u of %u: there are no such", d->name, d->part,
                         d->part + span - 1, d->parts);
    else if (d->part_dim ? (int32_t)d->part_dim > ndim || hd__param_file_axis(d, (int32_t)d->part_dim - 1) < 0
                         : (int32_t)d->part_axis > last)
        hd__program_fail(p, HD_E_INVALID, "parameter %s: part_%s %u: it has %d dims in files", d->name,
                         d->part_dim ? "dim" : "axis", d->part_dim ? d->part_dim : d->part_axis, last + 1);
    else if (hd__param_file_part(p, param).own % span)
        hd__program_fail(p, HD_E_INVALID, "parameter %s: its %lld elements from part_dim on are no %u equal parts",
                         d->name, (long long)hd__param_file_part(p, param).own, span);
}
